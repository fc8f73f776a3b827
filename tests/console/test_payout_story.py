"""A payout from the sheet to the payment, by two people with passkeys, in a real browser: `submit` verifies both."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from socket import socket

import pytest

from tests.cli.program import Program, kenyan_rows
from tests.console.browsers import Desk
from tests.console.people import APPROVER, MAKER, House
from tests.console.serving import free_port, served

NewDesk = Callable[..., Desk]


@pytest.fixture
def listener() -> Iterator[socket]:
    with closing(free_port()) as found:
        yield found


@pytest.fixture
def program(house: House, listener: socket) -> Program:
    """Ada and Ben, whose only keys will be passkeys: the folder of keys of the sandbox is not configured."""
    program = house.program
    origin = f"http://localhost:{listener.getsockname()[1]}"
    text = program.config.read_text().replace('sandbox_keys = "keys"', f'origin = "{origin}"')
    program.config.write_text(text)
    return program


def origin_of(listener: socket) -> str:
    return f"http://localhost:{listener.getsockname()[1]}"


def make_passkey(program: Program, desk: Desk, name: str) -> str:
    desk.page.goto(program.json("invite", name)["link"])
    desk.page.get_by_role("button", name="Make my passkey").click()
    return str(desk.page.locator("#line").inner_text())


def put_in_place_of_the_key(program: Program, name: str, line: str) -> None:
    lines = program.config.read_text().splitlines()
    program.config.write_text(
        "\n".join(f'"{name}" = "{line}"' if one.startswith(f'"{name}" = ') else one for one in lines) + "\n"
    )


def sign_in(desk: Desk, origin: str) -> None:
    desk.page.goto(f"{origin}/sign-in")
    desk.page.get_by_role("button", name="Sign in with your passkey").click()
    desk.page.get_by_role("link", name="Overview").wait_for()


def code_on(desk: Desk) -> str:
    return str(desk.page.locator(".code").inner_text())


def test_two_people_sign_by_passkey_and_the_payout_is_sent(
    program: Program, listener: socket, new_desk: NewDesk, tmp_path: Path
) -> None:
    ada, ben, origin = new_desk(), new_desk(), origin_of(listener)
    with served(program, listener):
        lines = {name: make_passkey(program, desk, name) for name, desk in ((MAKER, ada), (APPROVER, ben))}
    for name, line in lines.items():
        put_in_place_of_the_key(program, name, line)
    sheet = program.sheet(kenyan_rows(2), "payroll-november.csv")
    with served(program, listener):
        sign_in(ada, origin)
        ada.page.goto(f"{origin}/new")
        ada.page.locator("input[type=file]").set_input_files(sheet)
        ada.page.get_by_role("button", name="Upload and check").click()
        ada.page.wait_for_url("**/sheets/*")
        ada.page.goto(f"{ada.page.url}/plan")
        ada.require_accessible()
        code = code_on(ada)
        ada.page.get_by_role("button", name="Sign with my passkey and send for approval").click()
        ada.page.get_by_text("You prepared this payout: another person has to approve it.").wait_for()
        place = ada.page.url

        sign_in(ben, origin)
        ben.page.goto(place)
        ben.require_accessible()
        assert code_on(ben) == code
        (plan,) = tmp_path.glob("console/*/plan.json")
        assert f"The code of this plan is {code}:" in " ".join(program.run("approve", plan).stdout.split())
        approve = ben.page.get_by_role("button", name="Approve with my passkey")
        ben.recognise(is_owner=False)
        approve.click()
        ben.page.get_by_role("alert").wait_for()
        assert "Nothing was signed, and nothing was sent." in ben.page.get_by_role("alert").inner_text()
        ben.recognise(is_owner=True)
        approve.click()
        start = ben.page.get_by_role("button", name="Start the payout")
        start.wait_for()
        assert program.record() == []
        start.click()
        ben.page.wait_for_url("**/payouts/*", timeout=60_000)
        ben.page.get_by_text("Finished").first.wait_for(timeout=60_000)
    assert len(program.record()) == 2
    history = program.json("status", next(iter(tmp_path.glob("console/*/sheet/*"))), "--history")["history"]
    said = [one["said"].split(" at ")[0] for one in history[1:3]]
    assert said == [f"prepared by {MAKER}", f"approved by {APPROVER}"]
