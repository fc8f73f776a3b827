// Polls a payout every two seconds, or less often in a hidden tab, and replaces the live part of its page.
"use strict";
(() => {
  const VISIBLE_MS = 2000, HIDDEN_MS = 15000, AFTER_ERROR_MS = 10000;
  const part = document.getElementById("live");
  if (!part) return;
  async function poll() {
    let next = document.hidden ? HIDDEN_MS : VISIBLE_MS;
    try {
      const address = new URL(part.dataset.from, location.href);
      address.searchParams.set("seen", part.dataset.seen);
      const answer = await fetch(address, { headers: { accept: "text/html" }, redirect: "error" });
      if (answer.status === 200) {
        const text = await answer.text();
        // Do not replace elements while a person is using one of them, such as a focused link.
        if (!part.contains(document.activeElement)) {
          part.innerHTML = text;
          part.dataset.seen = answer.headers.get("x-seen") || "";
        }
      } else if (answer.status === 401) {
        location.reload();
        return;
      } else if (answer.status !== 204) {
        next = AFTER_ERROR_MS;
      }
    } catch {
      next = AFTER_ERROR_MS;
    }
    setTimeout(poll, next);
  }
  setTimeout(poll, VISIBLE_MS);
})();
