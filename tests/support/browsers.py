"""People in browsers: the system's Chromium, with one window and one simulated passkey for each person."""

import os
import shutil
from dataclasses import dataclass
from typing import Any

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # it ships no types
from playwright.sync_api import Browser, BrowserContext, CDPSession, Locator, Page

from tests.support.patience import PATIENCE_S

WHERE = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
NARROW = 320
"""The width of a phone's screen in CSS pixels."""
PATIENCE_MS = PATIENCE_S * 1000
"""The maximum time for a page. It is long, because the machine may be busy."""
HOW_TO_GET_IT = "NO BROWSER: the tests of the console were left out. `apt-get install chromium` installs one."


def chromium() -> str | None:
    """Return the path of the system's browser, or the one in `PAYGW_CHROMIUM`."""
    return os.environ.get("PAYGW_CHROMIUM") or next(filter(None, map(shutil.which, WHERE)), None)


def follow(link: Locator) -> None:
    """Click a link and wait for the next page, so that no check looks at the old page."""
    with link.page.expect_navigation():
        link.click()


@dataclass
class Desk:
    """One person at a browser: an isolated context, a page, and an authenticator."""

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
        has = ("hasResidentKey", "hasUserVerification", "isUserVerified", "automaticPresenceSimulation")
        authenticator = {"protocol": "ctap2", "transport": "internal", **dict.fromkeys(has, True)}
        created = devtools.send("WebAuthn.addVirtualAuthenticator", {"options": authenticator})
        return Desk(context, page, devtools, created["authenticatorId"])

    def sign_in(self, name: str) -> None:
        """Sign in as a person of the sandbox's list, with the keyboard."""
        self.page.goto("/sign-in")
        Keyboard(self.page).choose_person(name)

    def set_recognition(self, *, is_owner: bool) -> None:
        """Make the authenticator accept or reject its owner from now on, as for a wrong face, finger or PIN."""
        output = {"authenticatorId": self.authenticator, "isUserVerified": is_owner}
        self.devtools.send("WebAuthn.setUserVerified", output)

    def check_page(self) -> None:
        """Fail if axe-core finds a violation, or if content overflows a phone's screen.

        Then no amount, name or button needs scrolling. Tables on pages that are files are scrolled sideways.
        """
        self.require_accessible()
        size = self.page.viewport_size
        assert size is not None
        for width in (375, 320):
            self.page.set_viewport_size({"width": width, "height": 667})
            beyond = self.page.evaluate(_BEYOND)
            assert not beyond, (self.page.url, width, beyond[:5])
            assert self.page.evaluate("document.documentElement.scrollWidth") <= width, (self.page.url, width)
        self.page.set_viewport_size(size)

    def require_accessible(self) -> None:
        """Fail for each violation that axe-core finds on the current page."""
        result = Axe().run(self.page).response["violations"]
        violations = [(item["id"], [node["html"] for node in item["nodes"]]) for item in result]
        assert not violations, violations  # pytest would show the values in a test module


_BEYOND = """() => [...document.querySelectorAll("main *")].filter(one => {
    const box = one.getBoundingClientRect();
    if (one.closest(".table:not(.stack)") || box.width <= 1 || box.height <= 1) return false;
    return box.right > innerWidth + 1 || box.left < -1;
}).map(one => one.outerHTML.slice(0, 200))"""


@dataclass(frozen=True)
class Keyboard:
    """A person who uses only a keyboard, and moves between controls by Tab."""

    page: Page

    def reach(self, control: Locator) -> Locator:
        """Press Tab until a control has the focus. Fails if Tab does not reach it."""
        for _ in range(400):
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
        """Choose a person in the sandbox's list: the first has the focus, and arrow keys reach the others."""
        self.reach(self.page.get_by_role("radio").first)
        self.page.keyboard.press("Space")
        for _ in range(10):
            if self.page.get_by_label(name).is_checked():
                break
            self.page.keyboard.press("ArrowDown")
        self.page.keyboard.press("Enter")
        self.page.locator('form[action="/sign-out"]').first.wait_for(state="attached")
