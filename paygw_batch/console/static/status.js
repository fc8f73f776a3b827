// Announces the last change: screen readers announce a status that changes, but not one that the page loads with.
"use strict";
(() => {
  const DELAY_MS = 200;
  const status = document.querySelector("[role=status]");
  if (!status) return;
  const content = [...status.childNodes];
  status.replaceChildren();
  setTimeout(() => status.replaceChildren(...content), DELAY_MS);
})();
