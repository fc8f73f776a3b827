// Copies the text of an element (data-copy: its id), or hands it to the telephone's own menu (data-share). The buttons
// are hidden until the browser has shown that it can.
"use strict";
(() => {
  const offer = (button, act) => {
    button.hidden = false;
    button.addEventListener("click", async () => {
      try {
        await act(document.getElementById(button.dataset.copy || button.dataset.share).textContent);
        button.parentElement.querySelector("[data-copied]").hidden = false;
      } catch {
        // The person closed the menu: the text is still on the page, to be selected.
      }
    });
  };
  if (navigator.clipboard) {
    document.querySelectorAll("[data-copy]").forEach((one) => offer(one, (text) => navigator.clipboard.writeText(text)));
  }
  if (navigator.share) {
    document.querySelectorAll("[data-share]").forEach((one) => offer(one, (text) => navigator.share({ text })));
  }
})();
