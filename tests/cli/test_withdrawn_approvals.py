"""A plan or an order that a person withdrew counts no more: in no copy, with whichever approvals."""

import json
import shutil
import sqlite3
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.approving import edited, plan_of, prepared, signed_again
from tests.support.program import Program, kenyan_rows, kill


def withdraw(program: Program, name: str, document: Path | None = None) -> int:
    key = program.home / f"{name}.pem"
    return program.run("withdraw", document or plan_of(program), "--key", key).exit_code


@pytest.mark.parametrize("name", ["cleo", "ada", "ben"])
def test_copy_of_withdrawn_plan_is_not_paid(careful: Program, name: str) -> None:
    sheet = prepared(careful, "cleo")
    copy = shutil.copy(plan_of(careful), careful.home / "copy.json")
    assert withdraw(careful, name) == 0
    assert careful.run("submit", sheet).exit_code == 8
    assert careful.run("submit", sheet, "--plan", copy).exit_code == 8
    key = careful.home / "ben.pem"
    assert careful.run("approve", copy).exit_code == 8, "whoever only looks learns of it"
    assert careful.run("approve", copy, "--key", key).exit_code == 8
    here = careful.config.read_text()
    careful.config.write_text(here.replace('"journal.sqlite3"', '"elsewhere.sqlite3"'))
    assert careful.run("approve", copy, "--key", key).exit_code == 0, "a machine without the journal"
    careful.config.write_text(here)
    assert careful.run("submit", sheet, "--plan", copy).exit_code == 8, "another approval does not revive it"
    assert (careful.record(), careful.json("status")["batches"]) == ([], [])
    checked = careful.json("verify")
    assert (checked["exit_code"], checked["checked"]["withdrawals"]) == (0, 1)


def test_a_journal_from_before_a_withdrawal_is_refused(careful: Program) -> None:
    careful.json("submit", careful.sheet(kenyan_rows(1, amount="1", prefix="SMALL"), "small.csv"))
    sheet = prepared(careful, "cleo")
    backup = careful.home / "monday.sqlite3"
    assert careful.run("backup", backup).exit_code == 0
    assert withdraw(careful, "cleo") == 0
    sent = careful.record()
    for ending in ("-wal", "-shm"):
        careful.journal.with_name(careful.journal.name + ending).unlink(missing_ok=True)
    backup.replace(careful.journal)
    assert careful.run("submit", sheet).exit_code == 7
    assert careful.record() == sent


def test_new_plan_after_withdrawal_is_paid(careful: Program) -> None:
    sheet = prepared(careful, "cleo")
    assert withdraw(careful, "cleo") == 0
    careful.json("plan", sheet, "--out", plan_of(careful), "--key", careful.home / "ada.pem", "--force")
    assert careful.json("approve", plan_of(careful), "--key", careful.home / "cleo.pem")["exit_code"] == 0
    assert careful.json("submit", sheet)["exit_code"] == 0


def test_withdrawal_needs_key_of_listed_person(careful: Program) -> None:
    sheet = prepared(careful, "cleo")
    assert withdraw(careful, "stranger") == 8
    assert careful.run("withdraw", plan_of(careful)).exit_code == 2
    assert careful.json("submit", sheet)["exit_code"] == 0


def test_started_payout_cannot_be_withdrawn(careful: Program) -> None:
    sheet = prepared(careful, "cleo")
    assert careful.run("submit", sheet, "--first", "1").exit_code == 6
    refused = careful.run("withdraw", plan_of(careful), "--key", careful.home / "cleo.pem")
    assert refused.exit_code == 8
    assert "The payout has started" in refused.stderr
    assert careful.json("submit", sheet)["states"] == {"paid": 3}


def test_withdrawal_works_while_run_holds_journal(careful: Program) -> None:
    sheet = prepared(careful, "cleo")
    other = careful.sheet(kenyan_rows(40, amount="10", prefix="SLOW"), "slow.csv")
    run = careful.start("submit", other, "--rate-per-s", "1", "--concurrency", "1")
    try:
        assert run.stderr is not None
        while not careful.record():
            time.sleep(0.05)
            assert run.poll() is None, run.stderr.read()
        assert careful.run("submit", sheet).exit_code == 7, "the run holds the journal"
        assert withdraw(careful, "cleo") == 0
        assert run.poll() is None, "the run goes on"
        sent = len(careful.record())
        while len(careful.record()) == sent:
            time.sleep(0.05)
            assert run.poll() is None, run.stderr.read()
    finally:
        kill(run)
    assert careful.run("submit", sheet).exit_code == 8
    assert careful.json("verify")["checked"]["withdrawals"] == 1


def test_a_withdrawal_for_another_journal_is_refused(careful: Program) -> None:
    prepared(careful, "cleo")
    careful.config.write_text(careful.config.read_text().replace("journal.sqlite3", "other.sqlite3"))
    careful.json("submit", careful.sheet(kenyan_rows(1, amount="1"), "small.csv"))
    assert withdraw(careful, "cleo") == 8


def test_verify_finds_changed_withdrawal(careful: Program) -> None:
    prepared(careful, "cleo")
    assert withdraw(careful, "cleo") == 0
    with sqlite3.connect(careful.journal) as connection:
        connection.execute("DROP TRIGGER fact_is_never_changed")
        connection.execute("UPDATE fact SET by = 'ada' WHERE kind = 'withdrawn'")
    connection.close()
    assert careful.run("verify").exit_code == 7


@pytest.fixture
def small(careful: Program) -> Program:
    """A company whose payout is below the sum that needs approval, with a plan of it all the same."""
    careful.config.write_text(careful.config.read_text().replace('KES = "1000"', 'KES = "1000000"'))
    prepared(careful)
    return careful


@pytest.mark.parametrize("is_named", [True, False])
def test_withdrawn_plan_of_small_batch_sends_nothing(small: Program, *, is_named: bool) -> None:
    copy = shutil.copy(plan_of(small), small.home / "copy.json")
    assert withdraw(small, "ada") == 0
    sheet = small.home / "payroll.csv"
    assert small.run("submit", sheet, *(("--plan", copy) if is_named else ())).exit_code == 8
    assert (small.record(), small.json("status")["batches"]) == ([], [])
    plan_of(small).unlink()
    assert small.json("submit", sheet)["exit_code"] == 0, "a person who names no plan, and has none"
    assert small.run("submit", sheet, "--plan", copy).exit_code == 8, "nor does it continue the batch"


FORGERIES: Mapping[str, Callable[[dict[str, Any]], object]] = {
    "another total": lambda plan: plan["content"]["totals"].update(KES="1.00"),
    "another endpoint": lambda plan: plan["content"].update(endpoint="elsewhere/1"),
    "fewer findings": lambda plan: plan["findings"].pop(),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_small_batch_refuses_plan_for_different_sheet(small: Program, forgery: str) -> None:
    sheet = small.home / "payroll.csv"
    signed_again(small, FORGERIES[forgery])
    assert small.run("submit", sheet, "--plan", plan_of(small)).exit_code == 8
    assert small.record() == []


def test_small_batch_refuses_edited_plan(small: Program) -> None:
    sheet, plan = small.home / "payroll.csv", plan_of(small)
    document = json.loads(plan.read_text())
    edited(small, {"made_at": "2026-01-01T00:00:00.000Z"})
    assert small.run("submit", sheet, "--plan", plan).exit_code == 8
    assert small.record() == []
    edited(small, document)
    assert small.run("submit", sheet, "--plan", plan).exit_code == 0
