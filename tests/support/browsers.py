"""People at browsers: the system's Chromium, one window a person, with a passkey that is simulated in it."""

import os
import shutil
from dataclasses import dataclass
from typing import Any

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # it ships no types
from playwright.sync_api import Browser, BrowserContext, CDPSession, Locator, Page

from tests.support.patience import PATIENCE_S

WHERE = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
NARROW = 320
"""Of a telephone, in CSS pixels."""
PATIENCE_MS = PATIENCE_S * 1000
"""How long a page may take: the machine may have much else to do."""
HOW_TO_GET_IT = "NO BROWSER: the tests of the console were left out. `apt-get install chromium` installs one."


def chromium() -> str | None:
    """Return where the system's browser is; `PAYGW_CHROMIUM` names another one."""
    return os.environ.get("PAYGW_CHROMIUM") or next(filter(None, map(shutil.which, WHERE)), None)


def follow(link: Locator) -> None:
    """Click a link, and go on once the page behind it is there: a look at the old page would judge the wrong one."""
    with link.page.expect_navigation():
        link.click()


@dataclass
class Desk:
    """One person at a browser: a context without anybody else's cookies, a page, and an authenticator."""

    context: BrowserContext
    page: Page
    devtools: CDPSession
    authenticator: str

    @staticmethod
    def of(browser: Browser, **options: Any) -> "Desk":
        context = browser.new_context(**options)
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        devtools = context.new_cdp_session(page)
        devtools.send("WebAuthn.enable")
        made = devtools.send(
            "WebAuthn.addVirtualAuthenticator",
            {
                "options": {
                    "protocol": "ctap2",
                    "transport": "internal",
                    "hasResidentKey": True,
                    "hasUserVerification": True,
                    "isUserVerified": True,
                    "automaticPresenceSimulation": True,
                }
            },
        )
        return Desk(context, page, devtools, made["authenticatorId"])

    def recognise(self, *, is_owner: bool) -> None:
        """Let the authenticator recognise its owner from now on, or not: face, finger or PIN are wrong."""
        said = {"authenticatorId": self.authenticator, "isUserVerified": is_owner}
        self.devtools.send("WebAuthn.setUserVerified", said)

    def passkeys(self) -> int:
        """Return how many passkeys the authenticator has."""
        found = self.devtools.send("WebAuthn.getCredentials", {"authenticatorId": self.authenticator})
        return len(found["credentials"])

    def look(self) -> None:
        """Fail for a violation that axe-core finds on the page, and for what is beyond the edge of a narrow screen."""
        self.require_accessible()
        require_narrow(self.page)

    def require_accessible(self) -> None:
        """Fail for each violation that axe-core finds on the page as it is now."""
        found = Axe().run(self.page).response["violations"]
        told = [(one["id"], [node["html"] for node in one["nodes"]]) for one in found]
        assert not told, told  # not in a test's module, where pytest would show the values


PHONES = (375, 320)
_BEYOND = """() => [...document.querySelectorAll("main *")].filter(one => {
    const box = one.getBoundingClientRect();
    if (one.closest(".table:not(.stack)") || box.width <= 1 || box.height <= 1) return false;
    return box.right > innerWidth + 1 || box.left < -1;
}).map(one => one.outerHTML.slice(0, 200))"""


def require_narrow(page: Page) -> None:
    """Fail for what is beyond the edge of a telephone: no amount, name or button has to be scrolled to.

    The tables of pages that are files are left out: they are scrolled sideways.
    """
    size = page.viewport_size
    assert size is not None
    for width in PHONES:
        page.set_viewport_size({"width": width, "height": 667})
        beyond = page.evaluate(_BEYOND)
        assert not beyond, (page.url, width, beyond[:5])
        assert page.evaluate("document.documentElement.scrollWidth") <= width, (page.url, width)
    page.set_viewport_size(size)


MAX_TABS = 400


@dataclass(frozen=True)
class Keyboard:
    """A person who has a keyboard alone: goes from control to control by Tab, and never points at one."""

    page: Page

    def reach(self, control: Locator) -> Locator:
        """Go on until a control has the focus. Fails for one that Tab does not lead to."""
        for _ in range(MAX_TABS):
            if control.evaluate("one => one === document.activeElement"):
                return control
            self.page.keyboard.press("Tab")
        raise AssertionError(f"Tab does not lead to {control}")

    def press(self, control: Locator) -> None:
        self.reach(control)
        self.page.keyboard.press("Enter")

    def write(self, control: Locator, text: str) -> None:
        self.reach(control)
        self.page.keyboard.press("Control+A")
        self.page.keyboard.type(text)

    def choose_person(self, name: str) -> None:
        """Choose a person of the sandbox's list: the first has the focus, arrows lead to the others."""
        self.reach(self.page.get_by_role("radio").first)
        self.page.keyboard.press("Space")
        for _ in range(10):
            if self.page.get_by_label(name).is_checked():
                break
            self.page.keyboard.press("ArrowDown")
        self.page.keyboard.press("Enter")
        self.page.get_by_role("heading", level=1, name="Overview").wait_for()
