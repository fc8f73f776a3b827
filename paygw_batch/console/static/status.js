// Says what was just done: a screen reader reads a status when it changes, and not when the page is loaded with it.
"use strict";
(() => {
  const DELAY_MS = 200;
  const status = document.querySelector("[role=status]");
  if (!status) return;
  const said = [...status.childNodes];
  status.replaceChildren();
  setTimeout(() => status.replaceChildren(...said), DELAY_MS);
})();
