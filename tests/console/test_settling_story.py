"""Stories of two people with passkeys who settle and retry rows in real browsers."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from socket import socket

import pytest
from playwright.sync_api import expect

from tests.console.preparing import waive_approval
from tests.console.serving import serve_pages
from tests.console.settling import DECLINES, PAYS
from tests.support.browsers import PATIENCE_MS, Desk, follow, require_narrow
from tests.support.passkey_people import configure_origin, give_passkeys, origin_of, sign_in
from tests.support.patience import PATIENCE_S
from tests.support.people import APPROVER, MAKER, create_sandbox
from tests.support.program import Program, read_csv

TICKET = "Ticket 4711, by phone"


@dataclass
class Company:
    """Two signed-in people with passkeys, and their installation."""

    program: Program
    ada: Desk
    ben: Desk
    origin: str

    def submit(self, *amounts: str, name: str = "payroll") -> str:
        """Pay rows in another process, as cron does, and return the batch. The first is row 2."""
        rows = [
            f"KE,{name}-{n},{amount},KES,Jane {n},254712345{n:03},+254712345{n:03}"
            for n, amount in enumerate(amounts, 1)
        ]
        run = self.program.start("submit", self.program.sheet(rows, f"{name}.csv"))
        run.communicate(timeout=PATIENCE_S)
        return str(self.program.json("status", self.program.home / f"{name}.csv")["batch"])

    def require_ties(self, batch: str, amounts: list[str]) -> list[dict[str, str]]:
        """Return the reconciliation that Ada downloads, which must have every row once and the sheet's sums."""
        self.ada.page.goto(f"{self.origin}/payouts/{batch}")
        with self.ada.page.expect_download() as download:
            self.ada.page.get_by_role("link", name="CSV", exact=True).click()
        lines = read_csv(download.value.path())
        assert [(int(line["row"]), line["amount"]) for line in lines] == list(enumerate(amounts, 2))
        return lines


@pytest.fixture
def company(tmp_path: Path, listener: socket, new_desk: Callable[..., Desk]) -> Iterator[Company]:
    program = configure_origin(create_sandbox(tmp_path, behaviour=DECLINES), listener, with_keys=False)
    waive_approval(program)
    ada, ben, origin = new_desk(), new_desk(), origin_of(listener)
    give_passkeys(program, listener, {MAKER: ada, APPROVER: ben})
    with serve_pages(program, listener):
        for desk in (ada, ben):
            sign_in(desk, origin)
        yield Company(program, ada, ben, origin)


def require_page_accessible(desk: Desk) -> None:
    """Require the page to be accessible, wide and narrow."""
    desk.require_accessible()
    require_narrow(desk.page)


def sign(desk: Desk) -> str:
    """Sign the displayed order as its maker, and return its code."""
    require_page_accessible(desk)
    code = str(desk.page.locator(".code").inner_text())
    desk.page.get_by_role("button", name="Sign with my passkey and ask a second person").click()
    expect(desk.page.get_by_text("You requested this, so another person must agree.")).to_be_visible()
    return code


def agree(desk: Desk, company: Company, code: str) -> None:
    """Open the order from the overview, compare its code, and agree to it."""
    desk.page.goto(company.origin)
    needed = desk.page.locator(".note", has_text=f"{MAKER} asks you to agree")
    require_page_accessible(desk)
    needed.get_by_role("link").click()
    assert desk.page.locator(".code").inner_text() == code
    require_page_accessible(desk)
    desk.page.get_by_role("button", name="Agree with my passkey").click()


@pytest.mark.long
def test_story_13_and_14_retry_keeps_totals_consistent(company: Company) -> None:
    amounts = ["9001.00", "9001.10", "9001.20", "9002.00", "100.00"]
    batch = company.submit(*amounts)
    ada, ben, program = company.ada, company.ben, company.program
    company.require_ties(batch, amounts)
    follow(ada.page.get_by_role("link", name="Retry rejected rows"))
    require_page_accessible(ada)
    ada.page.get_by_label("All rows with the reason: The account is closed.").check()
    ada.page.get_by_label("Why can these payments succeed now?").fill(TICKET)
    ada.page.get_by_role("button", name="Continue").click()
    expect(ada.page.get_by_role("cell", name="27\u202f003.30")).to_be_visible()
    code = sign(ada)
    before = len(program.record())
    (program.home / "behaviour.toml").write_text(f"{PAYS}delay_s = 2\n")
    agree(ben, company, code)
    start = ben.page.get_by_role("button", name="Start the payout")
    start.wait_for()
    require_page_accessible(ben)
    start.dblclick()
    expect(ben.page).to_have_url(re.compile(f"/payouts/{batch}$"), timeout=PATIENCE_MS)
    company.require_ties(batch, amounts)  # The run is still active.
    expect(ben.page.get_by_role("heading", name="Finished").first).to_be_visible(timeout=PATIENCE_MS)
    after = company.require_ties(batch, amounts)
    assert [line["state"] for line in after] == ["paid", "paid", "paid", "rejected", "paid"]
    assert [line["attempts"] for line in after] == ["2", "2", "2", "1", "1"]
    sent_again = [line["client_orderid"] for line in program.record()[before:]]
    assert sorted(sent_again) == ["payroll-1-r2", "payroll-2-r2", "payroll-3-r2"]
    ben.page.goto(f"{company.origin}/people")
    for state in ("choose rejected rows", "sign order", "agree to order", "carry order out", "download reconciliation"):
        expect(ben.page.get_by_role("cell", name=state).first).to_be_visible()
    verification = program.json("verify")
    assert (verification["checked"]["signed_orders"], verification["exit_code"]) == (1, 0)
    assert verification["checked"]["audit_entries"] > 0
