// Asks every two seconds whether a payout has moved, and shows its part of the page anew. Slower in a hidden tab.
"use strict";
(() => {
  const VISIBLE_MS = 2000, HIDDEN_MS = 15000, AFTER_TROUBLE_MS = 10000;
  const part = document.getElementById("live");
  if (!part) return;
  async function look() {
    let next = document.hidden ? HIDDEN_MS : VISIBLE_MS;
    try {
      const address = new URL(part.dataset.from, location.href);
      address.searchParams.set("seen", part.dataset.seen);
      const answer = await fetch(address, { headers: { accept: "text/html" }, redirect: "error" });
      if (answer.status === 200) {
        const text = await answer.text();
        // What a person is using (a link that has the focus, an open list) is not taken away under the hand.
        if (!part.contains(document.activeElement)) {
          part.innerHTML = text;
          part.dataset.seen = answer.headers.get("x-seen") || "";
        }
      } else if (answer.status === 401) {
        location.reload();
        return;
      } else if (answer.status !== 204) {
        next = AFTER_TROUBLE_MS;
      }
    } catch {
      next = AFTER_TROUBLE_MS;
    }
    setTimeout(look, next);
  }
  setTimeout(look, VISIBLE_MS);
})();
