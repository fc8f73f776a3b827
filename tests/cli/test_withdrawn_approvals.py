"""A withdrawn plan or order is no longer valid, in any copy and with any approvals."""

import json
import shutil
import sqlite3
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.approving import edit_plan, plan_file, prepare_sheet, re_sign_plan
from tests.support.program import Program, kenyan_rows, kill


def withdraw_document(program: Program, name: str, document: Path | None = None) -> int:
    key = program.home / f"{name}.pem"
    return program.run("withdraw", document or plan_file(program), "--key", key).exit_code


@pytest.mark.parametrize("name", ["cleo", "ada", "ben"])
def test_copy_of_withdrawn_plan_is_not_paid(approving_company: Program, name: str) -> None:
    sheet = prepare_sheet(approving_company, "cleo")
    copy = shutil.copy(plan_file(approving_company), approving_company.home / "copy.json")
    assert withdraw_document(approving_company, name) == 0
    assert approving_company.run("submit", sheet).exit_code == 8
    assert approving_company.run("submit", sheet, "--plan", copy).exit_code == 8
    key = approving_company.home / "ben.pem"
    assert approving_company.run("approve", copy).exit_code == 8, "whoever only looks learns of it"
    assert approving_company.run("approve", copy, "--key", key).exit_code == 8
    here = approving_company.config.read_text()
    approving_company.config.write_text(here.replace('"journal.sqlite3"', '"elsewhere.sqlite3"'))
    assert approving_company.run("approve", copy, "--key", key).exit_code == 0, "a machine without the journal"
    approving_company.config.write_text(here)
    assert approving_company.run("submit", sheet, "--plan", copy).exit_code == 8, "another approval does not revive it"
    assert (approving_company.record(), approving_company.json("status")["batches"]) == ([], [])
    checked = approving_company.json("verify")
    assert (checked["exit_code"], checked["checked"]["withdrawals"]) == (0, 1)


def test_journal_older_than_withdrawal_is_refused(approving_company: Program) -> None:
    approving_company.json("submit", approving_company.sheet(kenyan_rows(1, amount="1", prefix="SMALL"), "small.csv"))
    sheet = prepare_sheet(approving_company, "cleo")
    backup = approving_company.home / "monday.sqlite3"
    assert approving_company.run("backup", backup).exit_code == 0
    assert withdraw_document(approving_company, "cleo") == 0
    sent = approving_company.record()
    for ending in ("-wal", "-shm"):
        approving_company.journal.with_name(approving_company.journal.name + ending).unlink(missing_ok=True)
    backup.replace(approving_company.journal)
    assert approving_company.run("submit", sheet).exit_code == 7
    assert approving_company.record() == sent


def test_new_plan_after_withdrawal_is_paid(approving_company: Program) -> None:
    sheet = prepare_sheet(approving_company, "cleo")
    assert withdraw_document(approving_company, "cleo") == 0
    approving_company.json(
        "plan", sheet, "--out", plan_file(approving_company), "--key", approving_company.home / "ada.pem", "--force"
    )
    assert (
        approving_company.json("approve", plan_file(approving_company), "--key", approving_company.home / "cleo.pem")[
            "exit_code"
        ]
        == 0
    )
    assert approving_company.json("submit", sheet)["exit_code"] == 0


def test_withdrawal_needs_key_of_listed_person(approving_company: Program) -> None:
    sheet = prepare_sheet(approving_company, "cleo")
    assert withdraw_document(approving_company, "stranger") == 8
    assert approving_company.run("withdraw", plan_file(approving_company)).exit_code == 2
    assert approving_company.json("submit", sheet)["exit_code"] == 0


def test_started_payout_cannot_be_withdrawn(approving_company: Program) -> None:
    sheet = prepare_sheet(approving_company, "cleo")
    assert approving_company.run("submit", sheet, "--first", "1").exit_code == 6
    refused = approving_company.run(
        "withdraw", plan_file(approving_company), "--key", approving_company.home / "cleo.pem"
    )
    assert refused.exit_code == 8
    assert "The payout has started" in refused.stderr
    assert approving_company.json("submit", sheet)["states"] == {"paid": 3}


def test_withdrawal_works_while_run_holds_journal(approving_company: Program) -> None:
    sheet = prepare_sheet(approving_company, "cleo")
    other = approving_company.sheet(kenyan_rows(40, amount="10", prefix="SLOW"), "slow.csv")
    run = approving_company.start("submit", other, "--rate-per-s", "1", "--concurrency", "1")
    try:
        assert run.stderr is not None
        while not approving_company.record():
            time.sleep(0.05)
            assert run.poll() is None, run.stderr.read()
        assert approving_company.run("submit", sheet).exit_code == 7, "the run holds the journal"
        assert withdraw_document(approving_company, "cleo") == 0
        assert run.poll() is None, "the run goes on"
        sent = len(approving_company.record())
        while len(approving_company.record()) == sent:
            time.sleep(0.05)
            assert run.poll() is None, run.stderr.read()
    finally:
        kill(run)
    assert approving_company.run("submit", sheet).exit_code == 8
    assert approving_company.json("verify")["checked"]["withdrawals"] == 1


def test_withdrawal_for_another_journal_is_refused(approving_company: Program) -> None:
    prepare_sheet(approving_company, "cleo")
    approving_company.config.write_text(
        approving_company.config.read_text().replace("journal.sqlite3", "other.sqlite3")
    )
    approving_company.json("submit", approving_company.sheet(kenyan_rows(1, amount="1"), "small.csv"))
    assert withdraw_document(approving_company, "cleo") == 8


def test_verify_finds_changed_withdrawal(approving_company: Program) -> None:
    prepare_sheet(approving_company, "cleo")
    assert withdraw_document(approving_company, "cleo") == 0
    with sqlite3.connect(approving_company.journal) as connection:
        connection.execute("DROP TRIGGER fact_is_never_changed")
        connection.execute("UPDATE fact SET by = 'ada' WHERE kind = 'withdrawn'")
    connection.close()
    assert approving_company.run("verify").exit_code == 7


@pytest.fixture
def small_plan(approving_company: Program) -> Program:
    """Plan a payout that is below the amount that needs approval."""
    approving_company.config.write_text(approving_company.config.read_text().replace('KES = "1000"', 'KES = "1000000"'))
    prepare_sheet(approving_company)
    return approving_company


@pytest.mark.parametrize("is_named", [True, False])
def test_withdrawn_plan_of_small_batch_sends_nothing(small_plan: Program, *, is_named: bool) -> None:
    copy = shutil.copy(plan_file(small_plan), small_plan.home / "copy.json")
    assert withdraw_document(small_plan, "ada") == 0
    sheet = small_plan.home / "payroll.csv"
    assert small_plan.run("submit", sheet, *(("--plan", copy) if is_named else ())).exit_code == 8
    assert (small_plan.record(), small_plan.json("status")["batches"]) == ([], [])
    plan_file(small_plan).unlink()
    assert small_plan.json("submit", sheet)["exit_code"] == 0, "a person who names no plan, and has none"
    assert small_plan.run("submit", sheet, "--plan", copy).exit_code == 8, "nor does it continue the batch"


FORGERIES: Mapping[str, Callable[[dict[str, Any]], object]] = {
    "another total": lambda plan: plan["content"]["totals"].update(KES="1.00"),
    "another endpoint": lambda plan: plan["content"].update(endpoint="elsewhere/1"),
    "fewer findings": lambda plan: plan["findings"].pop(),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_small_batch_refuses_plan_for_different_sheet(small_plan: Program, forgery: str) -> None:
    sheet = small_plan.home / "payroll.csv"
    re_sign_plan(small_plan, FORGERIES[forgery])
    assert small_plan.run("submit", sheet, "--plan", plan_file(small_plan)).exit_code == 8
    assert small_plan.record() == []


def test_small_batch_refuses_edited_plan(small_plan: Program) -> None:
    sheet, plan = small_plan.home / "payroll.csv", plan_file(small_plan)
    document = json.loads(plan.read_text())
    edit_plan(small_plan, {"made_at": "2026-01-01T00:00:00.000Z"})
    assert small_plan.run("submit", sheet, "--plan", plan).exit_code == 8
    assert small_plan.record() == []
    edit_plan(small_plan, document)
    assert small_plan.run("submit", sheet, "--plan", plan).exit_code == 0
