"""Tests the pages of a payout: overview, progress, rows by state and page, and a single row."""

import os
import re
from contextlib import closing
from pathlib import Path

import pytest

from paygw_batch.errors import HolderKind
from paygw_batch.journal.lock import RunLock, journal_holder, lock_path
from paygw_batch.settings.configuration import load_settings
from tests.console.preparing import waive_approval
from tests.console.settling import pay_rows
from tests.support.patience import wait_until
from tests.support.people import APPROVER, AUDITOR, MAKER, House, create_sandbox
from tests.support.program import kenyan_rows, kill

BEHAVIOUR = """
[[rule]]
amount_whole = 9001
status = "declined"
commits = false
[[rule]]
amount_whole = 9006
fault = "garbage"
[[rule]]
amount_whole = 9002
status = "processing"
[[rule]]
amount_whole = 7777
delay_s = 50
"""


@pytest.fixture
def house(tmp_path: Path) -> House:
    program = create_sandbox(tmp_path, behaviour=BEHAVIOUR)
    waive_approval(program)
    return House(program)


def test_payout_shows_decisions_counts_and_rows_by_state(house: House) -> None:
    batch = pay_rows(house, "100.00", "9001.00", "9006.00", "9002.00", "250.50")
    ben, auditor = house.person(APPROVER), house.person(AUDITOR)
    needing, _, payouts = house.person(MAKER).get("/").text.partition("<h2>Payouts</h2>")
    assert "1 in doubt: ask the gateway what happened to it. 1 rejected: decide whether to retry." in needing
    assert f'href="/payouts/{batch}"' in needing
    assert f'href="/payouts/{batch}"' in payouts
    assert "Nothing needs your attention." in auditor.get("/").text
    page = ben.get(f"/payouts/{batch}").text
    assert "Finished: 1 row needs your decision" in page
    for state, count in (("Paid", 2), ("Rejected", 1), ("In doubt", 1), ("With the gateway", 1)):
        assert f"<strong>{count}</strong> {state}" in page
    assert "350.50" in page
    only = ben.get(f"/payouts/{batch}?state=rejected").text
    assert ("Jane 2" in only, "Jane 1" in only) == (True, False)
    doubt = ben.get(f"/payouts/{batch}/rows/4").text
    for text in ("Do not pay this row in any other way", "<strong>In doubt</strong>", "254712345003"):
        assert text in doubt
    assert "No payment was made" in ben.get(f"/payouts/{batch}/rows/3").text
    for missing in (f"/payouts/{batch}/rows/77", "/payouts/ffffffffffffffff"):
        assert ben.get(missing).status_code == 404
    for path in (f"/payouts/{batch}", f"/payouts/{batch}/rows/2", f"/payouts/{batch}/rows/3"):
        page = auditor.get(path).text
        assert ("254712345" in page, "...00" in page) == (False, True)
    first = ben.get(f"/payouts/{batch}/progress?seen=")
    assert first.status_code == 200
    assert ben.get(f"/payouts/{batch}/progress?seen={first.headers['x-seen']}").status_code == 204


def test_payout_rows_are_paginated_and_unsent_ones_listed(house: House) -> None:
    batch = pay_rows(house, *["100.00"] * 60)
    person = house.person(MAKER)
    seen, address = [], f"/payouts/{batch}"
    for _ in range(3):
        page = person.get(address).text
        seen += [n for n in range(1, 61) if f"<bdi>Jane {n}</bdi>" in page]
        address = f"/payouts/{batch}?after={len(seen) + 1}"
    assert seen == list(range(1, 61))
    assert "Next page" not in page
    result = house.program.json("submit", house.program.sheet(kenyan_rows(6), "later.csv"), "--first", "2")
    assert "Paused: 4 rows are not sent yet" in person.get(f"/payouts/{result['batch']}").text
    assert "Not sent yet (4)" in person.get(f"/payouts/{result['batch']}?state=ready").text


def test_row_in_flight_becomes_in_doubt_after_run(house: House) -> None:
    program = house.program
    rows = [*kenyan_rows(1, amount="7777"), *kenyan_rows(1, amount="5.00", prefix="LATER")]
    run = program.start("submit", program.sheet(rows))
    person = house.person(MAKER)
    try:
        wait_until(lambda: "Being sent 1" in " ".join(re.sub(r"<[^>]+>", " ", person.get("/").text).split()))
        assert "Nothing needs your attention." in person.get("/").text
        (payout,) = set(re.findall(r'href="(/payouts/\w+)"', person.get("/").text))
        page = person.get(payout).text
        texts = ("<strong>1</strong> Being sent", "You can close this page", "In doubt")
        assert [text in page for text in texts] == [True, True, False]
        assert ",in_flight," in person.get(f"{payout}/reconciliation.csv").text
        assert "Being sent: 1 row" in person.get(f"{payout}/reconciliation.html").text
    finally:
        kill(run)
    assert "<strong>1</strong> In doubt" in person.get(payout).text
    doubtful = person.get(f"{payout}?state=in_doubt").text
    assert ("In doubt (1)" in doubtful, "Jane Wanjiku" in doubtful) == (True, True)
    assert ",in_doubt," in person.get(f"{payout}/reconciliation.csv").text


def test_reading_lock_holder_does_not_block_run(house: House) -> None:
    pay_rows(house, "100.00")
    journal = load_settings(house.program.config, environ={}).journal_path()
    assert journal_holder(journal) is None  # The file still names the last run.
    with closing(RunLock(lock_path(journal), now="2026-11-22T00:00:00.000Z", command="submit")):
        held = journal_holder(journal)
    assert held is not None
    assert (held.pid, held.command, held.kind) == (os.getpid(), "submit", HolderKind.RUN)
    for _ in range(50):  # A shared lock taken by a reader would make one of these fail.
        assert journal_holder(journal) is None
        RunLock(lock_path(journal), now="2026-11-22T00:00:00.000Z", command="submit").close()
