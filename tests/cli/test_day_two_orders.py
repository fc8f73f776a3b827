"""Orders of two people to settle rows or to send them again, kept in the journal, where `verify` checks them."""

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import MachineCache
from tests.support.approving import key, policy
from tests.support.program import Program, kenyan_rows, sandbox_toml

EVIDENCE = "Ticket 4711, answered by support on the phone"
LOST = ("2", "--as", "not-received", "--evidence", EVIDENCE)
AS_BEFORE = {"in_doubt": 2, "accepted": 1, "paid": 1, "rejected": 2}


def prepare_doubtful_batch(program: Program) -> None:
    """Pay a batch with rows 2 and 3 in doubt, row 4 accepted, 5 paid, 6 and 7 rejected, too small to need a plan."""
    people = policy(program.home).replace('KES = "1000"', 'KES = "1000000"')
    text = sandbox_toml().replace("[submission]", "[submission]\nquarantine_h = 0")
    program.config.write_text(f"{text}\n{people}")
    payments = (
        ("LOST", "9008", 1),
        ("TAKEN", "9007", 1),
        ("LATER", "9002", 1),
        ("GOOD", "1500.50", 1),
        ("NO", "9001", 2),
    )
    rows = [row for prefix, amount, count in payments for row in kenyan_rows(count, amount=amount, prefix=prefix)]
    assert program.json("submit", program.sheet(rows))["states"] == AS_BEFORE


@pytest.fixture
def program(machine_cache: MachineCache) -> Program:
    return machine_cache(prepare_doubtful_batch)


def order_path(program: Program) -> Path:
    return program.home / "order.json"


def resolve(program: Program, how: str, *arguments: str | Path) -> dict[str, Any]:
    return program.json("resolve", how, program.home / "payroll.csv", *arguments)


def write_order(program: Program, kind: str, *arguments: str, out: str = "order.json") -> dict[str, Any]:
    written = ("--out", program.home / out, "--key", program.home / "ada.pem")
    return program.json("order", kind, program.home / "payroll.csv", *arguments, *written)


def write_approved_order(program: Program, kind: str = "settle", *arguments: str) -> dict[str, Any]:
    summary = write_order(program, kind, *(arguments or LOST))
    approved = program.json("approve", order_path(program), "--key", program.home / "cleo.pem")
    assert (summary["exit_code"], approved["exit_code"]) == (0, 0)
    return summary


def carry_out(program: Program, *arguments: str | Path) -> dict[str, Any]:
    return program.json("carry-out", order_path(program), *arguments)


def expect_refusal(program: Program, why: str, code: int = 8) -> None:
    refused = carry_out(program)
    assert (refused["exit_code"], why in refused["message"]) == (code, True), refused


def test_one_person_decides_only_without_approval_policy(program: Program) -> None:
    for row, word in ((2, "not-received"), (4, "rejected")):
        refused = resolve(program, "row", str(row), "--as", word, "--evidence", EVIDENCE)
        why = f"This would allow row {row} to be paid again, so two people must agree. Nothing was settled."
        assert (refused["exit_code"], why in refused["message"]) == (8, True)
    assert program.states() == AS_BEFORE
    program.config.write_text(program.config.read_text().partition("[approval]")[0])
    assert resolve(program, "row", *LOST)["resolved"] == 1
    refused = write_order(program, "settle", "3", *LOST[1:])
    assert (refused["exit_code"], "has no [approval]" in refused["message"]) == (2, True)


@pytest.mark.parametrize(
    ("kind", "words", "shown"),
    [
        ("settle", LOST, ("LOST-1", "doubt", "not-received", "9,008.00", "Ticket", "4711")),
        ("release", ("--row", "6", "--evidence", EVIDENCE), ("NO-1", "9,001.00", EVIDENCE)),
    ],
)
def test_order_is_shown_before_it_takes_effect(
    program: Program, kind: str, words: tuple[str, ...], shown: tuple[str, ...]
) -> None:
    before = program.json("verify")
    write_order(program, kind, *words)
    result = program.run("approve", order_path(program), "--key", program.home / "cleo.pem")
    output = " ".join(result.stdout.split())
    approved = "Approved by cleo. The order has 1 of 1 required approval."
    for part in ("An order for 1 row of batch", *shown, "Prepared by ada at ", approved):
        assert part in output
    assert program.states() == AS_BEFORE
    assert {**program.json("verify"), "seconds": 0} == {**before, "seconds": 0}


def test_order_is_carried_out_once(program: Program) -> None:
    """The row is paid again and lost again; evidence about the first attempt says nothing about the second."""
    write_approved_order(program)
    carry_out(program)
    expect_refusal(program, "row 2 was in doubt after attempt 1 and is now not sent yet after attempt 1")
    assert program.json("resume", program.home / "payroll.csv")["states"] == AS_BEFORE
    expect_refusal(program, "row 2 was in doubt after attempt 1 and is now in doubt after attempt 2")
    assert program.states() == AS_BEFORE


def test_order_releases_only_its_own_hold(program: Program) -> None:
    """A ready row stays ready when its hold is lifted, so the order must not work a second time."""

    def hold(word: str) -> int:
        statement = program.sheet([f"LOST-1;9008;KES;{word}"], "statement.csv", "Order ID;Amount;Currency;Status")
        return int(resolve(program, "statement", statement, "--yes")["held"])

    write_approved_order(program)
    carry_out(program)
    assert hold("approved") == 1
    assert resolve(program, "row", *LOST)["exit_code"] == 8
    write_approved_order(program)
    assert carry_out(program)["resolved"] == 1
    assert carry_out(program)["exit_code"] == 8
    assert hold("processing") == 1
    expect_refusal(program, "row 2 is now held for a different reason than when the order was made")


def test_invalid_order_changes_nothing(program: Program) -> None:
    write_approved_order(program, "settle", "2", "3", *LOST[1:])
    text, signed = program.config.read_text(), order_path(program).read_text()
    for old, new, code, why in (
        ("quarantine_h = 0", "quarantine_h = 24", 2, "you can settle it as not received"),
        ("expires_h = 72", "expires_h = 0.000001", 8, "the approval by cleo expired at 20"),
    ):
        program.config.write_text(text.replace(old, new))
        expect_refusal(program, why, code)
    program.config.write_text(text)
    document = json.loads(signed)
    document["content"]["rows"][0]["row"] = 4
    order_path(program).write_text(json.dumps(document))
    expect_refusal(program, "changed after its maker signed it")
    order_path(program).write_text(signed)
    resolve(program, "row", "3", "--as", "paid", "--evidence", EVIDENCE)
    expect_refusal(program, "row 3 was in doubt after attempt 1 and is now paid")
    assert program.states() == {"in_doubt": 1, "accepted": 1, "paid": 2, "rejected": 2}
    program.config.write_text(text.replace('"journal.sqlite3"', '"other.sqlite3"'))
    program.json("submit", program.home / "payroll.csv", "--out", program.home / "other.csv")
    expect_refusal(program, "The order is for the journal ")


def test_plan_and_order_are_not_interchangeable(program: Program) -> None:
    write_approved_order(program)
    sheet = program.sheet(kenyan_rows(2, amount="600000"), name="large.csv")
    refused = program.json("submit", sheet, "--plan", order_path(program))
    assert (refused["exit_code"], "is not a plan that this version can read" in refused["message"]) == (8, True)
    plan = program.home / "large.plan.json"
    program.json("plan", sheet, "--out", plan, "--key", program.home / "ada.pem")
    no_order = program.run("carry-out", plan)
    assert (no_order.exit_code, "`paygw-batch submit SHEET --plan PLAN`" in no_order.stderr) == (8, True)


def test_conflicting_order_options_are_refused(program: Program) -> None:
    for words in (
        *("2 --as rejected", "2 --evidence x", "--as rejected --evidence x", "2 --as release --evidence x"),
        *(f"2 --as rejected --evidence x {more}" for more in ("--again", "--matching-only", "--as-of 2026-11-23")),
        *("2 --statement s.csv", "--as paid --statement s.csv"),
    ):
        assert write_order(program, "settle", *words.split())["exit_code"] == 2, words
    assert write_order(program, "settle", *LOST, out="order.txt")["exit_code"] == 2
    unsigned = ("order", "settle", program.home / "payroll.csv", *LOST, "--out", order_path(program))
    assert program.run(*unsigned).exit_code == 2
    assert not order_path(program).exists()


def test_carry_out_refuses_options_of_other_orders(program: Program) -> None:
    other = program.sheet(kenyan_rows(1, amount="7", prefix="OTHER"), "other.csv")
    assert program.json("submit", other)["exit_code"] == 0
    before = program.record()
    write_approved_order(program)
    wrong_options = (("--out", "x.csv"), ("--out", "x.csv", "--for-excel"), ("--force",), ("--statement", "x.csv"))
    for wrong in (("--batch", other), *wrong_options):
        refused = carry_out(program, *wrong)
        assert (refused["exit_code"], "The order is for batch" in refused["message"]) == (2, "--batch" in wrong)
    assert program.states() == AS_BEFORE
    assert carry_out(program, "--batch", program.home / "payroll.csv")["resolved"] == 1
    write_approved_order(program, "release", "--row", "6", "--evidence", EVIDENCE)
    for wrong in (("--statement", other), ("--batch", other), ("--out", other), ("--out", "x.xlsx", "--for-excel")):
        assert carry_out(program, *wrong)["exit_code"] == 2
    assert program.record() == before
    out = program.home / "again.csv"
    summary = carry_out(program, "--batch", program.home / "payroll.csv", "--out", out, "--for-excel")
    assert (summary["released"], summary["waiting"], summary["reconciliation"]) == (1, 0, str(out))


def test_verify_checks_orders_kept_in_journal(program: Program) -> None:
    assert "signed_orders" not in program.json("verify")["checked"]
    write_approved_order(program)
    assert carry_out(program)["resolved"] == 1
    order = write_approved_order(program, "release", "--evidence", EVIDENCE)
    assert [release["row"] for release in order["releases"]] == [6, 7], "all rejected rows, because it names none"
    assert carry_out(program)["released"] == 2
    order_path(program).unlink()
    text = program.config.read_text()
    for name in ("ada", "cleo"):
        text = re.sub(rf"^{name} = .*$", f'{name} = "{key(program.home, name)}"', text, flags=re.MULTILINE)
    program.config.write_text(text)
    summary = program.json("verify")
    assert (summary["exit_code"], summary["checked"]["signed_orders"]) == (0, 2)
    with closing(sqlite3.connect(program.journal)) as database:
        triggers = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'said'"
        for (name,) in database.execute(triggers).fetchall():
            database.execute(f"DROP TRIGGER {name}")
        database.execute("UPDATE said SET text = replace(text, '4711', '4712')")
        database.commit()
    assert program.json("verify")["exit_code"] == 7
