"""A withdrawn plan or order is no longer valid, in any copy and with any approvals."""

import shutil
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.approving import edit_plan, plan_file, prepare_sheet, re_sign_plan
from tests.support.program import Program, kenyan_rows

pytestmark = pytest.mark.usefixtures("approving_company")


def withdraw_document(program: Program, name: str, document: Path | None = None) -> int:
    key = program.home / f"{name}.pem"
    return program.run("withdraw", document or plan_file(program), "--key", key).exit_code


def test_copy_of_withdrawn_plan_is_not_paid(program: Program) -> None:
    sheet = prepare_sheet(program, "cleo")
    copy = shutil.copy(plan_file(program), program.home / "copy.json")
    assert withdraw_document(program, "ben") == 0
    assert program.run("submit", sheet).exit_code == 8
    assert program.run("submit", sheet, "--plan", copy).exit_code == 8
    key = program.home / "ben.pem"
    assert program.run("approve", copy).exit_code == 8, "whoever only looks learns of it"
    assert program.run("approve", copy, "--key", key).exit_code == 8
    here = program.config.read_text()
    program.config.write_text(here.replace('"journal.sqlite3"', '"elsewhere.sqlite3"'))
    assert program.run("approve", copy, "--key", key).exit_code == 0, "a machine without the journal"
    program.config.write_text(here)
    assert program.run("submit", sheet, "--plan", copy).exit_code == 8, "another approval does not revive it"
    assert (program.record(), program.json("status")["batches"]) == ([], [])
    checked = program.json("verify")
    assert (checked["exit_code"], checked["checked"]["withdrawals"]) == (0, 1)


def test_journal_older_than_withdrawal_is_refused(program: Program) -> None:
    program.json("submit", program.sheet(kenyan_rows(1, amount="1", prefix="SMALL"), "small.csv"))
    sheet = prepare_sheet(program, "cleo")
    backup = program.home / "monday.sqlite3"
    assert program.run("backup", backup).exit_code == 0
    assert withdraw_document(program, "cleo") == 0
    sent = program.record()
    for ending in ("-wal", "-shm"):
        program.journal.with_name(program.journal.name + ending).unlink(missing_ok=True)
    backup.replace(program.journal)
    assert program.run("submit", sheet).exit_code == 7
    assert program.record() == sent


def test_withdrawal_needs_key_of_listed_person(program: Program) -> None:
    sheet = prepare_sheet(program, "cleo")
    assert withdraw_document(program, "stranger") == 8
    assert program.run("withdraw", plan_file(program)).exit_code == 2
    assert program.json("submit", sheet)["exit_code"] == 0


def test_withdrawal_of_plan_for_another_journal_is_refused(program: Program) -> None:
    prepare_sheet(program, "cleo")
    program.config.write_text(program.config.read_text().replace("journal.sqlite3", "other.sqlite3"))
    program.json("submit", program.sheet(kenyan_rows(1, amount="1"), "small.csv"))
    assert withdraw_document(program, "cleo") == 8


def test_verify_finds_changed_withdrawal(program: Program) -> None:
    prepare_sheet(program, "cleo")
    assert withdraw_document(program, "cleo") == 0
    with sqlite3.connect(program.journal) as connection:
        connection.execute("DROP TRIGGER fact_is_never_changed")
        connection.execute("UPDATE fact SET by = 'ada' WHERE kind = 'withdrawn'")
    connection.close()
    assert program.run("verify").exit_code == 7


def plan_small_sheet(program: Program) -> Path:
    """Plan a payout that is below the amount that needs approval, and return its sheet."""
    program.config.write_text(program.config.read_text().replace('KES = "1000"', 'KES = "1000000"'))
    return prepare_sheet(program)


@pytest.mark.parametrize("is_named", [True, False])
def test_withdrawn_plan_of_small_batch_sends_nothing(program: Program, *, is_named: bool) -> None:
    sheet = plan_small_sheet(program)
    copy = shutil.copy(plan_file(program), program.home / "copy.json")
    assert withdraw_document(program, "ada") == 0
    assert program.run("submit", sheet, *(("--plan", copy) if is_named else ())).exit_code == 8
    assert (program.record(), program.json("status")["batches"]) == ([], [])
    plan_file(program).unlink()
    assert program.json("submit", sheet)["exit_code"] == 0, "a person who names no plan, and has none"
    assert program.run("submit", sheet, "--plan", copy).exit_code == 8, "nor does it continue the batch"


FORGERIES: Mapping[str, Callable[[dict[str, Any]], object]] = {
    "another total": lambda plan: plan["content"]["totals"].update(KES="1.00"),
    "another endpoint": lambda plan: plan["content"].update(endpoint="elsewhere/1"),
    "fewer findings": lambda plan: plan["findings"].pop(),
}


def test_small_batch_refuses_plan_for_different_sheet(program: Program) -> None:
    sheet, plan = plan_small_sheet(program), plan_file(program)
    document = plan.read_bytes()
    edit_plan(program, {"made_at": "2026-01-01T00:00:00.000Z"})
    assert program.run("submit", sheet, "--plan", plan).exit_code == 8
    for name, forgery in FORGERIES.items():
        plan.write_bytes(document)
        re_sign_plan(program, forgery)
        assert program.run("submit", sheet, "--plan", plan).exit_code == 8, name
    assert program.record() == []
    plan.write_bytes(document)
    assert program.run("submit", sheet, "--plan", plan).exit_code == 0
