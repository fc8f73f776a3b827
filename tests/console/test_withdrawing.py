"""Maker and approver can withdraw an approved payout until it has begun; after that they can stop it."""

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

import pytest

from paygw_batch.approval.plan_document import read_plan
from paygw_batch.console.console_app import console_app
from paygw_batch.console.start_run import StartedRun, started_run
from paygw_batch.journal.lock import RunLock, lock_path
from paygw_batch.opening.open_journal import journal_to_read
from tests.console.preparing import folder_of, sheet, signed, submitted, uploaded, without_approval
from tests.support.patience import until
from tests.support.people import APPROVER, AUDITOR, MAKER, House, Person, forms_of
from tests.support.program import kenyan_rows

pytestmark = pytest.mark.usefixtures("checks_here")
PATHS = {MAKER: "withdraw", APPROVER: "send-back"}
"""Where each person's form leads to."""
REASONS = {MAKER: {}, APPROVER: {"reason": "Row 2 was paid in cash"}}


def signed_payout(ada: Person) -> str:
    place = uploaded(ada, sheet(2))
    signed(ada, place)
    return place


def approved_payout(ada: Person, ben: Person) -> str:
    place = signed_payout(ada)
    assert ben.post(f"{place}/approve").status_code == 303
    return place


def actions_on(person: Person, path: str) -> set[str]:
    """Return the last part of the address of each form on a page."""
    return {action.rpartition("/")[2] for action, _ in forms_of(person.get(path).text)}


def withdrawn_by(house: House) -> list[tuple[str, str]]:
    with journal_to_read(house.console.settings) as journal:
        return [(one.sha256, one.by) for one in journal.withdrawals()]


def test_withdrawal_is_offered_to_entitled_people(house: House, ada: Person, ben: Person) -> None:
    place = signed_payout(ada)
    assert "withdraw" in actions_on(ada, f"{place}/plan")
    assert ben.post(f"{place}/approve").status_code == 303
    for person in (ada, ben):
        assert {"start", PATHS[person.name]} <= actions_on(person, f"{place}/plan")
    assert not {*PATHS.values()} & actions_on(house.person(AUDITOR), f"{place}/plan")


@pytest.mark.parametrize("name", [MAKER, APPROVER])
def test_copy_of_withdrawn_payout_is_not_started(house: House, ada: Person, ben: Person, name: str) -> None:
    place, person = approved_payout(ada, ben), ada if name == MAKER else ben
    found = folder_of(house, place)
    plan, copy = read_plan(found.plan_file), shutil.copy(found.plan_file, house.program.home / "copy.json")
    start = ben.shown(f"{place}/start")
    assert person.post(f"{place}/{PATHS[name]}", **REASONS[name]).status_code == 303
    assert withdrawn_by(house) == [(plan.digest(), name)]
    assert ben.post(f"{place}/start", **start).status_code == 409
    shutil.copy(copy, found.plan_file)
    assert submitted(house.program, found)[0] == 8
    found.plan_file.unlink()
    assert "sign" in actions_on(ada, f"{place}/plan")
    assert house.program.record() == []


@contextmanager
def journal_held(house: House) -> Iterator[None]:
    """Let another payout be under way while the block lasts."""
    path = lock_path(house.console.settings.journal_path())
    with closing(RunLock(path, now="2026-11-22T00:00:00.000Z", command="submit")):
        yield


def run_of(house: House, place: str) -> StartedRun:
    run = started_run(house.console.runs, read_plan(folder_of(house, place).plan_file).content.batch)
    assert run is not None
    return run


@pytest.mark.parametrize("name", [MAKER, APPROVER])
def test_waiting_payout_can_be_withdrawn(house: House, ada: Person, ben: Person, name: str) -> None:
    place, person = approved_payout(ada, ben), ada if name == MAKER else ben
    with journal_held(house):
        assert ben.post(f"{place}/start").status_code == 303
        run = run_of(house, place)
        assert PATHS[name] in actions_on(person, f"{place}/plan")
        assert person.post(f"{place}/{PATHS[name]}", **REASONS[name]).status_code == 303
        until(lambda: not run.is_alive, "the run goes on waiting")
    assert [by for _, by in withdrawn_by(house)] == [name]
    assert "sign" in actions_on(ada, f"{place}/plan")
    assert house.program.record() == []


def test_a_started_payout_is_stopped_and_not_withdrawn(house: House, ada: Person, ben: Person) -> None:
    place = approved_payout(ada, ben)
    withdraw = ada.shown(f"{place}/withdraw")
    assert ben.post(f"{place}/start").status_code == 303
    run = run_of(house, place)
    until(lambda: not run.is_alive, "the run does not end")
    assert ada.get(f"{place}/plan").headers["location"].startswith("/payouts/")
    assert ada.post(f"{place}/withdraw", **withdraw).status_code == 409
    assert withdrawn_by(house) == []


def test_running_payout_offers_pause(house: House) -> None:
    with sleeping_run(house, "import time; time.sleep(900)") as (pages, batch, _):
        for name in (MAKER, APPROVER):
            assert "pause" in actions_on(pages.person(name), f"/payouts/{batch}")


def test_pause_ends_run_ignoring_sigint(house: House) -> None:
    """A program that a shell starts in the background ignores SIGINT, and so do its child processes."""
    asleep = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print(flush=True); time.sleep(900)"
    with sleeping_run(house, asleep) as (pages, batch, run):
        until((pages.console.runs / f"{batch}.out").read_bytes, "the run does not begin")
        assert pages.person(MAKER).post(f"/payouts/{batch}/pause").status_code == 303
        until(lambda: not run.is_alive, "the run was not stopped")


@contextmanager
def sleeping_run(house: House, program: str) -> Iterator[tuple[House, str, StartedRun]]:
    """Start another program where the console would start the run of a payout, as long as the block lasts."""
    without_approval(house.program)
    batch = house.program.json("submit", house.program.sheet(kenyan_rows(3)), "--first", "1")["batch"]
    house = House(house.program)
    house.console = replace(house.console, program=(sys.executable, "-S", "-c", program))
    house.app = console_app(house.console)
    assert house.person(MAKER).post(f"/payouts/{batch}/continue").status_code == 303
    run = started_run(house.console.runs, batch)
    assert run is not None
    try:
        yield house, batch, run
    finally:
        with suppress(ProcessLookupError):
            os.kill(run.pid, signal.SIGKILL)
