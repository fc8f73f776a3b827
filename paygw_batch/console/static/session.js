// Warns a minute before the session ends, and keeps typed text during the sign-in that follows.
//
// The text stays in this tab, and is restored only for the same person on the same page.
"use strict";
(() => {
  const WARN_S = 60, KEPT = "typed";
  const storedText = () => JSON.parse(sessionStorage.getItem(KEPT) || "null");
  const keep = (typed) => sessionStorage.setItem(KEPT, JSON.stringify(typed));
  if (document.querySelector("[data-session-ended]")) {
    const typed = storedText();
    if (typed) keep({ ...typed, isEnded: true });
    return;
  }
  const { sessionLeftS, who } = document.body.dataset;
  if (!who) return;
  const isText = (field) => field.name && field.matches("textarea, select, input[type=text], input:checked");
  const nameOf = (form, field) => {
    const target = ["row", "column"].map((name) => form.elements.namedItem(name)?.value || "");
    return [form.getAttribute("action"), ...target, field.name].join(" ");
  };
  const forms = () => [...document.querySelectorAll("main form[method=post]")];
  const remember = () => {
    const fields = forms().flatMap((form) => [...form.elements].filter(isText).map((field) => [nameOf(form, field), field.value]));
    keep({ who, path: location.pathname, fields: Object.fromEntries(fields) });
  };
  const before = storedText();
  sessionStorage.removeItem(KEPT);
  if (before && before.isEnded && before.who === who && before.path === location.pathname) {
    let isRestored = false;
    for (const form of forms()) {
      for (const field of form.elements) {
        const text = field.name && before.fields[nameOf(form, field)];
        if (text === undefined) continue;
        if (field.matches("input[type=radio], input[type=checkbox]")) {
          if (field.value === text) field.checked = isRestored = true;
        } else if (field.matches("textarea, select, input[type=text]") && field.value !== text) {
          field.value = text;
          isRestored = true;
        }
      }
    }
    document.getElementById("typed-kept").hidden = !isRestored;
  }
  document.addEventListener("submit", remember, true);
  const notice = document.getElementById("session-ends");
  const schedule = (leftS) => setTimeout(check, Math.max(1, leftS > WARN_S ? leftS - WARN_S : leftS + 1) * 1000);
  const redirectToSignIn = () => {
    remember();
    const to = location.pathname + location.search;
    location.assign(`/sign-in?${new URLSearchParams({ to, ended: "yes" })}`);
  };
  const ask = async (path) => {
    const answer = await fetch(path, { redirect: "error" });
    if (answer.status === 401) return 0;
    return answer.ok ? Number(await answer.text()) : WARN_S * 2;
  };
  async function check() {
    let leftS = WARN_S * 2;
    try {
      leftS = await ask("/session");
    } catch { /* Without a network, ask again later. */ }
    if (leftS <= 0) return redirectToSignIn();
    notice.hidden = leftS > WARN_S;
    schedule(leftS);
  }
  notice.querySelector("button").addEventListener("click", async () => {
    await ask("/session/stay");
    notice.hidden = true;
  });
  schedule(Number(sessionLeftS));
})();
