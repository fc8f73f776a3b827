"""Tests withdrawing an approved payout before it starts, and pausing it afterwards."""

import os
import signal
import sys
from contextlib import closing, suppress
from dataclasses import replace

import pytest

from paygw_batch.approval.plan_document import read_plan
from paygw_batch.console.console_app import console_app
from paygw_batch.console.start_run import last_run
from paygw_batch.journal.lock import RunLock, lock_path
from paygw_batch.opening.open_journal import open_journal_to_read
from tests.console.preparing import open_payout_folder, sheet, sign_sheet, upload_sheet, waive_approval
from tests.support.patience import wait_until
from tests.support.people import APPROVER, AUDITOR, MAKER, House, Person, parse_forms
from tests.support.program import kenyan_rows

pytestmark = pytest.mark.usefixtures("in_process_checks")
PATHS = {MAKER: "withdraw", APPROVER: "send-back"}
"""Where each person's form leads to."""


@pytest.fixture
def draft(ada: Person, ben: Person) -> str:
    draft = upload_sheet(ada, sheet(2))
    sign_sheet(ada, draft)
    assert "withdraw" in form_actions(ada, f"{draft}/plan")
    assert ben.post(f"{draft}/approve").status_code == 303
    return draft


def form_actions(person: Person, path: str) -> set[str]:
    """Return the last path segment of each form on a page."""
    return {action.rpartition("/")[2] for action, _ in parse_forms(person.get(path).text)}


@pytest.mark.parametrize("name", [MAKER, APPROVER])
def test_waiting_payout_is_withdrawn_by_entitled_people(house: House, draft: str, name: str) -> None:
    person, path = house.person(name), lock_path(house.console.settings.journal_path())
    assert {"start", PATHS[name]} <= form_actions(person, f"{draft}/plan")
    assert not {*PATHS.values()} & form_actions(house.person(AUDITOR), f"{draft}/plan")
    with closing(RunLock(path, now="2026-11-22T00:00:00.000Z", command="submit")):
        assert house.person(APPROVER).post(f"{draft}/start").status_code == 303
        run = last_run(house.console.runs, read_plan(open_payout_folder(house, draft).plan_file).content.batch)
        assert run is not None
        assert PATHS[name] in form_actions(person, f"{draft}/plan")
        assert person.post(f"{draft}/{PATHS[name]}", reason="Row 2 was paid in cash").status_code == 303
        wait_until(lambda: not run.is_alive, "the run goes on waiting")
    with open_journal_to_read(house.console.settings) as journal:
        assert [withdrawal.by for withdrawal in journal.withdrawals()] == [name]
    assert "sign" in form_actions(house.person(MAKER), f"{draft}/plan")
    assert house.program.record() == []


def test_pause_stops_run_ignoring_sigint(house: House) -> None:
    """Programs that a shell starts in the background ignore SIGINT, and so do their children."""
    waive_approval(house.program)
    batch = house.program.json("submit", house.program.sheet(kenyan_rows(3)), "--first", "1")["batch"]
    house = House(house.program)
    asleep = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print(flush=True); time.sleep(900)"
    house.console = replace(house.console, program=(sys.executable, "-S", "-c", asleep))
    house.app = console_app(house.console)
    ada, runs = house.person(MAKER), house.console.runs
    assert ada.post(f"/payouts/{batch}/continue").status_code == 303
    run = last_run(runs, batch)
    assert run is not None
    try:
        wait_until((runs / f"{batch}.out").read_bytes, "the run does not begin")
        for person in (ada, house.person(APPROVER)):
            assert "pause" in form_actions(person, f"/payouts/{batch}")
        assert ada.post(f"/payouts/{batch}/pause").status_code == 303
        wait_until(lambda: not run.is_alive, "the run was not stopped")
    finally:
        with suppress(ProcessLookupError):
            os.kill(run.pid, signal.SIGKILL)
