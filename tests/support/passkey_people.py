"""People who sign in to a console by passkey, in real browsers: what the stories have in common."""

from collections.abc import Mapping
from socket import socket

from playwright.sync_api import Page, expect

from tests.console.serving import served
from tests.support.browsers import Desk
from tests.support.program import Program


def origin_of(listener: socket) -> str:
    """Return the address of the pages: a name for which browsers make passkeys."""
    return f"http://localhost:{listener.getsockname()[1]}"


def at_origin(program: Program, listener: socket, *, with_keys: bool) -> Program:
    """Put the address of the pages into the configuration, beside the folder of the sandbox's keys or in its place."""
    keys = 'sandbox_keys = "keys"'
    origin = f'origin = "{origin_of(listener)}"'
    text = program.config.read_text().replace(keys, f"{origin}\n{keys}" if with_keys else origin)
    program.config.write_text(text)
    return program


def make_passkey(program: Program, desk: Desk, name: str) -> str:
    """Have an invited person make a passkey, and return its line for the configuration."""
    desk.page.goto(program.json("invite", name)["link"])
    desk.page.get_by_role("button", name="Make my passkey").click()
    expect(desk.page.get_by_role("button", name="Copy")).to_be_visible()
    return str(desk.page.locator("#line").inner_text())


def own_line(program: Program, name: str) -> str:
    """Return the line of the configuration that has a person's key."""
    return next(one for one in program.config.read_text().splitlines() if one.startswith(f'"{name}" = '))


def give_passkeys(program: Program, listener: socket, desks: Mapping[str, Desk]) -> None:
    """Have each person make a passkey, and put it in the place of the person's key, as the administrator does."""
    with served(program, listener):
        lines = {name: make_passkey(program, desk, name) for name, desk in desks.items()}
    for name, line in lines.items():
        text = program.config.read_text()
        program.config.write_text(text.replace(own_line(program, name), f'"{name}" = "{line}"'))


def use_passkey(desk: Desk, origin: str) -> None:
    """Use the passkey at the first page, whether the configuration knows it or not."""
    desk.page.goto(f"{origin}/sign-in")
    with desk.page.expect_navigation():
        desk.page.get_by_role("button", name="Sign in with your passkey").click()


def sign_in(desk: Desk, origin: str) -> Page:
    """Sign in by passkey; return the page."""
    use_passkey(desk, origin)
    desk.page.get_by_role("link", name="Overview").wait_for()
    return desk.page
