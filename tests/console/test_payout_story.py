"""Story of a payout by two people with passkeys in a real browser."""

from collections.abc import Callable
from pathlib import Path
from socket import socket

import pytest
from playwright.sync_api import expect

from paygw_batch.approval.plan_document import read_plan
from tests.console.preparing import waive_approval
from tests.console.serving import serve_pages
from tests.support.browsers import PATIENCE_MS, Desk, Keyboard
from tests.support.passkey_people import configure_origin, give_passkeys, origin_of, sign_in
from tests.support.patience import PATIENCE_S
from tests.support.people import APPROVER, MAKER, House
from tests.support.program import Program

PEOPLE = ("Achieng Otieno", "Kamau Njoroge", "Wambui Mwangi", "Halima Abdi", "Kiptoo Cheruiyot", "Zawadi Musa")
NewDesk = Callable[..., Desk]


@pytest.fixture
def program(house: House, listener: socket) -> Program:
    """Return an installation without sandbox keys, for people with passkeys."""
    return configure_origin(house.program, listener, with_keys=False)


def shown_code(desk: Desk) -> str:
    return str(desk.page.locator(".code").inner_text())


def payroll_rows(month: str, *, changed: int) -> list[str]:
    """Return a month's payroll, in which the first people have other accounts than usual."""
    numbers = [f"2547{9 if n < changed else 1}234500{n}" for n in range(len(PEOPLE))]
    return [f"KE,{month}-{n},1500.50,KES,{name},{numbers[n]},+{numbers[n]}" for n, name in enumerate(PEOPLE)]


def pay_october(program: Program) -> None:
    """Pay October from the command line in another process, because the browser owns this event loop."""
    plain = waive_approval(program)
    run = program.start("submit", program.sheet(payroll_rows("OCT", changed=0), "payroll-october.csv"))
    output = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 0, output
    program.config.write_text(plain)


def test_changed_accounts_are_approved_by_passkey(
    program: Program, listener: socket, new_desk: NewDesk, tmp_path: Path
) -> None:
    pay_october(program)
    ada, ben, origin = new_desk(), new_desk(), origin_of(listener)
    give_passkeys(program, listener, {MAKER: ada, APPROVER: ben})
    sheet = program.sheet(payroll_rows("NOV", changed=4), "payroll-november.csv")
    with serve_pages(program, listener):
        sign_in(ada, origin)
        ada.page.goto(f"{origin}/new")
        ada.page.locator("input[type=file]").set_input_files(sheet)
        ada.page.get_by_role("button", name="Upload and check").click()
        ada.page.wait_for_url("**/sheets/*")
        ada.page.goto(f"{ada.page.url}/plan")
        ada.require_accessible()
        code = shown_code(ada)
        ada.page.get_by_role("button", name="Sign with my passkey and send for approval").click()
        ada.page.get_by_text("You prepared this payout, so another person must approve it.").wait_for()
        place = ada.page.url

        keyboard, page = Keyboard(ben.page), sign_in(ben, origin)
        keyboard.press(page.get_by_role("link", name="payroll-november.csv").first)
        page.wait_for_url(place)
        ben.check_page()
        assert shown_code(ben) == code
        (plan,) = tmp_path.glob("console/*/plan.json")
        assert f"The code of this plan is {code}." in " ".join(program.run("approve", plan).stdout.split())
        changed = page.locator("details", has=page.get_by_text("4 changed accounts"))
        expect(changed).to_have_attribute("open", "")
        expect(changed.locator("tbody bdi")).to_have_text(list(PEOPLE[:4]))
        approve = page.get_by_role("button", name="Approve with my passkey")
        ben.set_recognition(is_owner=False)
        keyboard.press(approve)
        expect(page.get_by_role("alert")).to_contain_text("Nothing was signed, and nothing was sent.")
        ben.check_page()
        assert read_plan(plan).approvals == []
        ben.set_recognition(is_owner=True)
        keyboard.press(approve)
        start = page.get_by_role("button", name="Start the payout")
        start.wait_for()
        assert len(program.record()) == len(PEOPLE)
        keyboard.press(start)
        page.wait_for_url("**/payouts/*", timeout=PATIENCE_MS)
        page.get_by_role("heading", name="Finished").first.wait_for(timeout=PATIENCE_MS)
    assert len(program.record()) == 2 * len(PEOPLE)
    history = program.json("status", next(iter(tmp_path.glob("console/*/sheet/*"))), "--history")["history"]
    sentences = [entry["said"].split(" at ")[0] for entry in history[1:3]]
    assert sentences == [f"prepared by {MAKER}", f"approved by {APPROVER}"]
