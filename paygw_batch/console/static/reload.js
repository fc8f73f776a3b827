// Reloads a page that shows something in progress after [data-reload-ms], but not while somebody is typing.
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
