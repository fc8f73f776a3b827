"""Finds injected markup in a page: tags and attributes that its templates do not use."""

import re
from html.parser import HTMLParser

from paygw_batch.console.rendering import STATIC
from tests.support.checkout import ROOT

OUR_FILES = [*STATIC.iterdir(), *(ROOT / "paygw_batch/show/static").iterdir()]
TAGS = frozenset(
    {
        *("a", "aside", "b", "bdi", "body", "br", "button", "caption", "code", "dd", "details", "div", "dl"),
        *("dt", "em", "fieldset", "footer", "form", "h1", "h2", "h3", "head", "header", "hr", "html", "input"),
        *("label", "legend", "li", "link", "main", "meta", "nav", "noscript", "ol", "option", "p", "pre"),
        *("rect", "script", "section", "select", "small", "span", "strong", "summary", "svg", "table", "tbody", "td"),
        *("textarea", "tfoot", "th", "thead", "time", "title", "tr", "ul"),
    }
)
ATTRIBUTES = frozenset(
    {
        *("accept", "action", "charset", "class", "colspan", "content", "defer", "dir", "enctype", "for", "height"),
        *("hidden", "href", "http-equiv", "id", "inputmode", "lang", "maxlength", "method", "name", "open"),
        *("rel", "required", "role", "rows", "scope", "selected", "checked", "src", "tabindex", "type"),
        *("disabled", "value", "viewbox", "width", "x", "preserveaspectratio"),
        *("aria-current", "aria-describedby", "aria-hidden", "aria-label", "aria-labelledby"),
        *("data-label", "popover", "popovertarget"),
        *("data-challenge", "data-copied", "data-copy", "data-credential", "data-from", "data-passkey"),
        "data-passkey-problem",
        *("data-reload-ms", "data-rp-id", "data-seen", "data-share", "data-user-id", "data-user-name"),
        *("aria-invalid", "autofocus", "data-session-ended", "data-session-left-s", "data-who"),
    }
)
"""Everything that templates use. Nothing of it runs, loads or styles anything by itself."""


class MarkupChecker(HTMLParser):
    """Parses a page like a browser and records markup that could run or load something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.violations: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in TAGS:
            self.violations.append(f"<{tag}>")
        for name, text in attrs:
            if name not in ATTRIBUTES or (name in TARGETS and not is_own_target(tag, text or "")):
                self.violations.append(f"<{tag} {name}={text}>")
        if tag == "script" and "src" not in dict(attrs):
            self.violations.append("<script> of its own")
        if tag == "meta" and dict(attrs).get("http-equiv", "refresh") != "refresh":
            self.violations.append("<meta>")


TARGETS = frozenset({"src", "href", "action", "formaction", "data-from"})


def is_own_target(tag: str, target: str) -> bool:
    """Return whether a link leads to our pages, or whether a loaded file is one of ours."""
    if tag in {"script", "link", "img"}:
        return target.startswith("/static/") and target.removeprefix("/static/") in {path.name for path in OUR_FILES}
    return re.match(r"(/(?!/)|#|\?)", target) is not None
