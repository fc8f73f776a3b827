"""Stories of two people with passkeys who settle and retry rows in real browsers."""

import re
from collections.abc import Callable
from pathlib import Path
from socket import socket

import pytest
from playwright.sync_api import expect

from tests.console.preparing import pay_amounts
from tests.console.serving import serve_pages
from tests.console.settling import DECLINES
from tests.support.browsers import PATIENCE_MS, Desk, follow
from tests.support.passkey_people import configure_origin, give_passkeys, origin_of, sign_in
from tests.support.people import APPROVER, MAKER, create_sandbox
from tests.support.program import read_csv


@pytest.mark.long
def test_retry_keeps_totals_consistent(tmp_path: Path, listener: socket, new_desk: Callable[..., Desk]) -> None:
    program = configure_origin(create_sandbox(tmp_path, behaviour=DECLINES), listener, with_keys=False)
    ada, ben, origin = new_desk(), new_desk(), origin_of(listener)
    give_passkeys(program, listener, {MAKER: ada, APPROVER: ben})
    amounts = ["9001.00", "9001.10", "9001.20", "9002.00", "100.00"]
    batch = pay_amounts(program, "payroll", amounts)

    def downloaded() -> list[dict[str, str]]:
        """Return the reconciliation that Ada downloads, which must have every row once and the sheet's sums."""
        ada.page.goto(f"{origin}/payouts/{batch}")
        with ada.page.expect_download() as download:
            ada.page.get_by_role("link", name="CSV", exact=True).click()
        lines = read_csv(download.value.path())
        assert [(int(line["row"]), line["amount"]) for line in lines] == list(enumerate(amounts, 2))
        return lines

    with serve_pages(program, listener):
        for desk in (ada, ben):
            sign_in(desk, origin)
        downloaded()
        follow(ada.page.get_by_role("link", name="Retry rejected rows"))
        ada.check_page()
        ada.page.get_by_label("All rows with the reason: The account is closed.").check()
        ada.page.get_by_label("Why can these payments succeed now?").fill("Ticket 4711, by phone")
        ada.page.get_by_role("button", name="Continue").click()
        expect(ada.page.get_by_role("cell", name="27\u202f003.30")).to_be_visible()
        ada.check_page()
        code = str(ada.page.locator(".code").inner_text())
        ada.page.get_by_role("button", name="Sign with my passkey and ask a second person").click()
        expect(ada.page.get_by_text("You requested this, so another person must agree.")).to_be_visible()
        before = len(program.record())
        (program.home / "behaviour.toml").write_text('[default]\nstatus = "approved"\ndelay_s = 2\n')
        ben.page.goto(origin)
        ben.check_page()
        ben.page.locator(".note", has_text=f"{MAKER} asks you to agree").get_by_role("link").click()
        assert ben.page.locator(".code").inner_text() == code
        ben.check_page()
        ben.page.get_by_role("button", name="Agree with my passkey").click()
        start = ben.page.get_by_role("button", name="Start the payout")
        start.wait_for()
        ben.check_page()
        start.dblclick()
        expect(ben.page).to_have_url(re.compile(f"/payouts/{batch}$"), timeout=PATIENCE_MS)
        downloaded()  # The run is still active.
        expect(ben.page.get_by_role("heading", name="Finished").first).to_be_visible(timeout=PATIENCE_MS)
        after = downloaded()
        assert [line["state"] for line in after] == ["paid", "paid", "paid", "rejected", "paid"]
        assert [line["attempts"] for line in after] == ["2", "2", "2", "1", "1"]
        sent_again = [line["client_orderid"] for line in program.record()[before:]]
        assert sorted(sent_again) == ["payroll-1-r2", "payroll-2-r2", "payroll-3-r2"]
        ben.page.goto(f"{origin}/people")
        for act in ("choose rejected rows", "sign order", "agree to order", "carry order out"):
            expect(ben.page.get_by_role("cell", name=act).first).to_be_visible()
    verification = program.json("verify")
    assert (verification["checked"]["signed_orders"], verification["exit_code"]) == (1, 0)
