// Loads a page anew after a while, where it shows something that goes on without it: [data-reload-ms] says after how long.
"use strict";
(() => {
  const part = document.querySelector("[data-reload-ms]");
  if (part) setTimeout(() => location.reload(), Number(part.dataset.reloadMs));
})();
