"""Tests withdrawing an approved payout before it starts, and pausing it afterwards."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

import pytest

from paygw_batch.approval.plan_document import read_plan
from paygw_batch.console.console_app import console_app
from paygw_batch.console.start_run import StartedRun, last_run
from paygw_batch.journal.lock import RunLock, lock_path
from paygw_batch.opening.open_journal import open_journal_to_read
from tests.console.preparing import open_payout_folder, sheet, sign_sheet, upload_sheet, waive_approval
from tests.support.patience import wait_until
from tests.support.people import APPROVER, AUDITOR, MAKER, House, Person, parse_forms
from tests.support.program import kenyan_rows

pytestmark = pytest.mark.usefixtures("in_process_checks")
PATHS = {MAKER: "withdraw", APPROVER: "send-back"}
"""Where each person's form leads to."""
REASONS = {MAKER: {}, APPROVER: {"reason": "Row 2 was paid in cash"}}


def sign_payout(ada: Person) -> str:
    place = upload_sheet(ada, sheet(2))
    sign_sheet(ada, place)
    return place


def approve_payout(ada: Person, ben: Person) -> str:
    place = sign_payout(ada)
    assert ben.post(f"{place}/approve").status_code == 303
    return place


def form_actions(person: Person, path: str) -> set[str]:
    """Return the last path segment of each form on a page."""
    return {action.rpartition("/")[2] for action, _ in parse_forms(person.get(path).text)}


def withdrawers(house: House) -> list[tuple[str, str]]:
    with open_journal_to_read(house.console.settings) as journal:
        return [(withdrawal.sha256, withdrawal.by) for withdrawal in journal.withdrawals()]


def test_only_entitled_people_are_offered_withdrawal(house: House, ada: Person, ben: Person) -> None:
    place = sign_payout(ada)
    assert "withdraw" in form_actions(ada, f"{place}/plan")
    assert ben.post(f"{place}/approve").status_code == 303
    for person in (ada, ben):
        assert {"start", PATHS[person.name]} <= form_actions(person, f"{place}/plan")
    assert not {*PATHS.values()} & form_actions(house.person(AUDITOR), f"{place}/plan")


@contextmanager
def hold_journal(house: House) -> Iterator[None]:
    """Hold the journal as another payout would, during the block."""
    path = lock_path(house.console.settings.journal_path())
    with closing(RunLock(path, now="2026-11-22T00:00:00.000Z", command="submit")):
        yield


def started_run(house: House, place: str) -> StartedRun:
    run = last_run(house.console.runs, read_plan(open_payout_folder(house, place).plan_file).content.batch)
    assert run is not None
    return run


@pytest.mark.parametrize("name", [MAKER, APPROVER])
def test_waiting_payout_can_be_withdrawn(house: House, ada: Person, ben: Person, name: str) -> None:
    place, person = approve_payout(ada, ben), ada if name == MAKER else ben
    with hold_journal(house):
        assert ben.post(f"{place}/start").status_code == 303
        run = started_run(house, place)
        assert PATHS[name] in form_actions(person, f"{place}/plan")
        assert person.post(f"{place}/{PATHS[name]}", **REASONS[name]).status_code == 303
        wait_until(lambda: not run.is_alive, "the run goes on waiting")
    assert [by for _, by in withdrawers(house)] == [name]
    assert "sign" in form_actions(ada, f"{place}/plan")
    assert house.program.record() == []


def test_running_payout_offers_pause(house: House) -> None:
    with sleeping_run(house, "import time; time.sleep(900)") as (pages, batch, _):
        for name in (MAKER, APPROVER):
            assert "pause" in form_actions(pages.person(name), f"/payouts/{batch}")


def test_pause_stops_run_ignoring_sigint(house: House) -> None:
    """Programs that a shell starts in the background ignore SIGINT, and so do their children."""
    asleep = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print(flush=True); time.sleep(900)"
    with sleeping_run(house, asleep) as (pages, batch, run):
        wait_until((pages.console.runs / f"{batch}.out").read_bytes, "the run does not begin")
        assert pages.person(MAKER).post(f"/payouts/{batch}/pause").status_code == 303
        wait_until(lambda: not run.is_alive, "the run was not stopped")


@contextmanager
def sleeping_run(house: House, program: str) -> Iterator[tuple[House, str, StartedRun]]:
    """Start another program in place of a payout's run during the block."""
    waive_approval(house.program)
    batch = house.program.json("submit", house.program.sheet(kenyan_rows(3)), "--first", "1")["batch"]
    house = House(house.program)
    house.console = replace(house.console, program=(sys.executable, "-S", "-c", program))
    house.app = console_app(house.console)
    assert house.person(MAKER).post(f"/payouts/{batch}/continue").status_code == 303
    run = last_run(house.console.runs, batch)
    assert run is not None
    try:
        yield house, batch, run
    finally:
        with suppress(ProcessLookupError):
            os.kill(run.pid, signal.SIGKILL)
