// Copies the text of an element (data-copy has its id) or opens the phone's share menu for it (data-share). Buttons are
// hidden unless the browser supports them.
"use strict";
(() => {
  const offer = (button, act) => {
    button.hidden = false;
    button.addEventListener("click", async () => {
      try {
        await act(document.getElementById(button.dataset.copy || button.dataset.share).textContent);
        button.parentElement.querySelector("[data-copied]").hidden = false;
      } catch {
        // The person closed the menu. The text can still be selected on the page.
      }
    });
  };
  if (navigator.clipboard) {
    document.querySelectorAll("[data-copy]").forEach((button) => offer(button, (text) => navigator.clipboard.writeText(text)));
  }
  if (navigator.share) {
    document.querySelectorAll("[data-share]").forEach((button) => offer(button, (text) => navigator.share({ text })));
  }
})();
