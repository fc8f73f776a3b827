"""People who sign in to a console by passkey in real browsers."""

from collections.abc import Mapping
from socket import socket

from playwright.sync_api import Page, expect

from tests.console.serving import serve_pages
from tests.support.browsers import Desk
from tests.support.program import Program


def origin_of(listener: socket) -> str:
    """Return the origin of the pages, for which browsers can create passkeys."""
    return f"http://localhost:{listener.getsockname()[1]}"


def configure_origin(program: Program, listener: socket, *, with_keys: bool) -> Program:
    """Add the origin of the pages to the configuration, with or without the folder of the sandbox's keys."""
    keys, origin = 'sandbox_keys = "keys"', f'origin = "{origin_of(listener)}"'
    text = program.config.read_text().replace(keys, f"{origin}\n{keys}" if with_keys else origin)
    program.config.write_text(text)
    return program


def configuration_line(program: Program, name: str) -> str:
    return next(item for item in program.config.read_text().splitlines() if item.startswith(f'"{name}" = '))


def give_passkeys(program: Program, listener: socket, desks: Mapping[str, Desk]) -> None:
    """Have each person create a passkey, and replace their key with it, as the administrator does."""
    text = program.config.read_text()
    with serve_pages(program, listener):
        for name, desk in desks.items():
            desk.page.goto(program.json("invite", name)["link"])
            desk.page.get_by_role("button", name="Create my passkey").click()
            expect(desk.page.get_by_role("button", name="Copy")).to_be_visible()
            line = desk.page.locator("#line").inner_text()
            text = text.replace(configuration_line(program, name), f'"{name}" = "{line}"')
    program.config.write_text(text)


def use_passkey(desk: Desk, origin: str) -> None:
    """Use the passkey on the first page, even if the configuration does not list it."""
    desk.page.goto(f"{origin}/sign-in")
    with desk.page.expect_navigation():
        desk.page.get_by_role("button", name="Sign in with your passkey").click()


def sign_in(desk: Desk, origin: str) -> Page:
    use_passkey(desk, origin)
    desk.page.get_by_role("link", name="Overview").wait_for()
    return desk.page
