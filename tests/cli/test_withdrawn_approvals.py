"""A withdrawn plan or order is no longer valid, in any copy and with any approvals."""

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.approving import edit_plan, plan_file, prepare_sheet, re_sign_plan
from tests.support.program import Program, kenyan_rows

pytestmark = pytest.mark.usefixtures("approving_company")


def withdraw_document(program: Program, name: str) -> int:
    return program.run("withdraw", plan_file(program), "--key", program.home / f"{name}.pem").exit_code


def test_withdrawal_needs_listed_person_and_same_journal(program: Program) -> None:
    sheet = prepare_sheet(program, "cleo")
    assert withdraw_document(program, "stranger") == 8
    assert program.run("withdraw", plan_file(program)).exit_code == 2
    here = program.config.read_text()
    program.config.write_text(here.replace("journal.sqlite3", "other.sqlite3"))
    program.json("submit", program.sheet(kenyan_rows(1, amount="1", prefix="SMALL"), "small.csv"))
    assert withdraw_document(program, "cleo") == 8, "the plan is for another journal"
    program.config.write_text(here)
    assert program.json("submit", sheet)["exit_code"] == 0


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


def test_withdrawn_plan_of_small_batch_sends_nothing(program: Program) -> None:
    sheet = plan_small_sheet(program)
    copy = shutil.copy(plan_file(program), program.home / "copy.json")
    assert withdraw_document(program, "ada") == 0
    for named in ((), ("--plan", copy)):
        assert program.run("submit", sheet, *named).exit_code == 8
    assert (program.record(), program.json("status")["batches"]) == ([], [])
    plan_file(program).unlink()
    assert program.json("submit", sheet)["exit_code"] == 0, "a person who names no plan, and has none"
    assert program.run("submit", sheet, "--plan", copy).exit_code == 8, "nor does it continue the batch"


def test_small_batch_refuses_plan_for_different_sheet(program: Program) -> None:
    sheet, plan = plan_small_sheet(program), plan_file(program)
    document = plan.read_bytes()
    edit_plan(program, {"made_at": "2026-01-01T00:00:00.000Z"})
    assert program.run("submit", sheet, "--plan", plan).exit_code == 8
    forgeries: tuple[Callable[[dict[str, Any]], object], ...] = (
        lambda plan: plan["content"]["totals"].update(KES="1.00"),
        lambda plan: plan["content"].update(endpoint="elsewhere/1"),
        lambda plan: plan["findings"].pop(),
    )
    for forgery in forgeries:
        plan.write_bytes(document)
        re_sign_plan(program, forgery)
        assert program.run("submit", sheet, "--plan", plan).exit_code == 8
    assert program.record() == []
    plan.write_bytes(document)
    assert program.run("submit", sheet, "--plan", plan).exit_code == 0
