// Warns a minute before the session ends, and keeps what was typed over the sign-in that follows.
//
// What was typed stays in this tab alone, and goes back into the form for the same person at the same page.
"use strict";
(() => {
  const WARN_S = 60, KEPT = "typed";
  const kept = () => JSON.parse(sessionStorage.getItem(KEPT) || "null");
  const keep = (typed) => sessionStorage.setItem(KEPT, JSON.stringify(typed));
  if (document.querySelector("[data-session-ended]")) {
    const typed = kept();
    if (typed) keep({ ...typed, isEnded: true });
    return;
  }
  const { sessionLeftS, who } = document.body.dataset;
  if (!who) return;
  const isText = (field) => field.name && field.matches("textarea, select, input[type=text], input:checked");
  const nameOf = (form, field) => {
    const told = ["row", "column"].map((name) => form.elements.namedItem(name)?.value || "");
    return [form.getAttribute("action"), ...told, field.name].join(" ");
  };
  const forms = () => [...document.querySelectorAll("main form[method=post]")];
  const remember = () => {
    const fields = forms().flatMap((form) => [...form.elements].filter(isText).map((one) => [nameOf(form, one), one.value]));
    keep({ who, path: location.pathname, fields: Object.fromEntries(fields) });
  };
  const before = kept();
  sessionStorage.removeItem(KEPT);
  if (before && before.isEnded && before.who === who && before.path === location.pathname) {
    let found = false;
    for (const form of forms()) {
      for (const field of form.elements) {
        const text = field.name && before.fields[nameOf(form, field)];
        if (text === undefined) continue;
        if (field.matches("input[type=radio], input[type=checkbox]")) {
          if (field.value === text) field.checked = found = true;
        } else if (field.matches("textarea, select, input[type=text]") && field.value !== text) {
          field.value = text;
          found = true;
        }
      }
    }
    document.getElementById("typed-kept").hidden = !found;
  }
  document.addEventListener("submit", remember, true);
  const notice = document.getElementById("session-ends");
  const later = (leftS) => setTimeout(look, Math.max(1, leftS > WARN_S ? leftS - WARN_S : leftS + 1) * 1000);
  const ended = () => {
    remember();
    const to = location.pathname + location.search;
    location.assign(`/sign-in?${new URLSearchParams({ to, ended: "yes" })}`);
  };
  const ask = async (path) => {
    const answer = await fetch(path, { redirect: "error" });
    if (answer.status === 401) return 0;
    return answer.ok ? Number(await answer.text()) : WARN_S * 2;
  };
  async function look() {
    let leftS = WARN_S * 2;
    try {
      leftS = await ask("/session");
    } catch { /* no network: asked again later */ }
    if (leftS <= 0) return ended();
    notice.hidden = leftS > WARN_S;
    later(leftS);
  }
  notice.querySelector("button").addEventListener("click", async () => {
    await ask("/session/stay");
    notice.hidden = true;
  });
  later(Number(sessionLeftS));
})();
