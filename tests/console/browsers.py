"""People at browsers: the system's Chromium, one window a person, with a passkey that is simulated in it."""

import os
import shutil
from dataclasses import dataclass
from typing import Any

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # it ships no types
from playwright.sync_api import Browser, BrowserContext, CDPSession, Page

WHERE = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
HOW_TO_GET_IT = "NO BROWSER: the tests of the console were left out. `apt-get install chromium` installs one."


def chromium() -> str | None:
    """Return where the system's browser is; `PAYGW_CHROMIUM` names another one."""
    return os.environ.get("PAYGW_CHROMIUM") or next(filter(None, map(shutil.which, WHERE)), None)


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

    def require_accessible(self) -> None:
        """Fail for each violation that axe-core finds on the page as it is now."""
        found = Axe().run(self.page).response["violations"]
        told = [(one["id"], [node["html"] for node in one["nodes"]]) for one in found]
        assert not told, told  # not in a test's module, where pytest would show the values
