"""A payout from the sheet to the payment, by two people with passkeys, in a real browser: `submit` verifies both."""

from collections.abc import Callable
from pathlib import Path
from socket import socket

import pytest

from tests.cli.program import Program, kenyan_rows
from tests.console.browsers import Desk
from tests.console.passkey_people import at_origin, give_passkeys, origin_of, sign_in
from tests.console.people import APPROVER, MAKER, House
from tests.console.serving import served

NewDesk = Callable[..., Desk]


@pytest.fixture
def program(house: House, listener: socket) -> Program:
    """Ada and Ben, whose only keys will be passkeys: the folder of keys of the sandbox is not configured."""
    return at_origin(house.program, listener, with_keys=False)


def code_on(desk: Desk) -> str:
    return str(desk.page.locator(".code").inner_text())


def test_two_people_sign_by_passkey_and_the_payout_is_sent(
    program: Program, listener: socket, new_desk: NewDesk, tmp_path: Path
) -> None:
    ada, ben, origin = new_desk(), new_desk(), origin_of(listener)
    give_passkeys(program, listener, {MAKER: ada, APPROVER: ben})
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
