"""Story of a person's invitation, passkey and first sign-in in a real browser."""

from collections.abc import Callable
from socket import socket

import pytest

from paygw_batch.settings.configuration import load_settings
from tests.console.serving import serve_pages
from tests.support.browsers import Desk
from tests.support.passkey_people import configuration_line, configure_origin, origin_of, use_passkey
from tests.support.people import APPROVER, House, newest_entries
from tests.support.program import Program

NewDesk = Callable[..., Desk]


@pytest.fixture
def program(house: House, listener: socket) -> Program:
    """Return a sandbox at a host name for which browsers create passkeys."""
    return configure_origin(house.program, listener, with_keys=True)


def list_key(program: Program, line: str) -> None:
    """Add a passkey's line to the approver's keys, as the administrator does."""
    text, own = program.config.read_text(), configuration_line(program, APPROVER)
    program.config.write_text(text.replace(own, f'{own.replace("= ", "= [")}, "{line}"]'))


def test_invited_person_signs_in_after_key_is_configured(program: Program, listener: socket, new_desk: NewDesk) -> None:
    desk, link = new_desk(), program.json("invite", APPROVER)["link"]
    with serve_pages(program, listener):
        desk.page.goto(f"{origin_of(listener)}/sign-in")
        desk.require_accessible()
        desk.page.goto(link)
        desk.require_accessible()
        desk.page.get_by_role("button", name="Create my passkey").click()
        line = desk.page.locator("#line").inner_text()
        desk.require_accessible()
        desk.page.goto(link)
        assert "This link has already been used" in desk.page.locator("main").inner_text()
        use_passkey(desk, origin_of(listener))
        told = desk.page.locator("main").inner_text()
        assert "This passkey is not registered. Ask your administrator to add it." in told
    list_key(program, line)
    with serve_pages(program, listener):
        use_passkey(desk, origin_of(listener))
        desk.page.get_by_role("link", name="Overview").wait_for()
        assert desk.page.locator("header bdi").inner_text() == APPROVER
        desk.require_accessible()
    entries = newest_entries(load_settings(program.config, environ={}), limit=9)
    signed_in, refused, made, invited_entry = ((entry.who, entry.act, entry.result) for entry in entries)
    assert (made, refused) == ((APPROVER, "make a passkey", "done"), ("", "use passkey", "refused"))
    assert (signed_in, invited_entry[1:]) == ((APPROVER, "sign in", "done"), ("invite", "done"))
