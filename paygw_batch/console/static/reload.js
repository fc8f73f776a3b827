// Loads a page anew after a while, where it shows something that goes on without it: [data-reload-ms] says after how long.
// Not while somebody types.
"use strict";
(() => {
  const part = document.querySelector("[data-reload-ms]");
  const reload = () => {
    if (document.activeElement.matches("input[type=text]")) later();
    else location.reload();
  };
  const later = () => setTimeout(reload, Number(part.dataset.reloadMs));
  if (part) later();
})();
