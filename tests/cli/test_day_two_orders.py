"""Orders of two people to settle rows that may then be paid again."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import MachineCache
from tests.support.approving import policy
from tests.support.program import Program, kenyan_rows, sandbox_toml

EVIDENCE = "Ticket 4711, answered by support on the phone"


def prepare_doubtful_batch(program: Program) -> None:
    """Pay a batch with rows 2 and 3 in doubt, row 4 accepted and row 5 paid, too small to need a plan."""
    people = policy(program.home).replace('KES = "1000"', 'KES = "1000000"')
    configured = sandbox_toml().replace("[submission]", "[submission]\nquarantine_h = 0")
    program.config.write_text(configured + people)
    rows = [
        *kenyan_rows(1, amount="9008", prefix="LOST"),
        *kenyan_rows(1, amount="9007", prefix="TAKEN"),
        *kenyan_rows(1, amount="9002", prefix="LATER"),
        *kenyan_rows(1, prefix="GOOD"),
    ]
    summary = program.json("submit", program.sheet(rows))
    assert summary["states"] == {"in_doubt": 2, "accepted": 1, "paid": 1}


@pytest.fixture
def doubtful_batch(machine_cache: MachineCache) -> Program:
    return machine_cache(prepare_doubtful_batch)


def order_path(program: Program) -> Path:
    return program.home / "order.json"


def key_path(program: Program, name: str) -> Path:
    return program.home / f"{name}.pem"


def resolve(program: Program, how: str, *arguments: str | Path) -> dict[str, object]:
    return program.json("resolve", how, program.home / "payroll.csv", *arguments)


def write_settle_order(
    program: Program, *arguments: str | Path, maker: str = "ada", out: Path | None = None
) -> dict[str, object]:
    written = ("--out", out or order_path(program), "--key", key_path(program, maker))
    return program.json("order", "settle", program.home / "payroll.csv", *arguments, *written)


def write_approved_order(program: Program, *approvers: str, row: int = 2, word: str = "not-received") -> Path:
    """Write Ada's order to settle a row, and have it approved."""
    settlement = (str(row), "--as", word, "--evidence", EVIDENCE)
    assert write_settle_order(program, *settlement)["exit_code"] == 0
    for name in approvers:
        assert program.json("approve", order_path(program), "--key", key_path(program, name))["exit_code"] == 0
    return order_path(program)


def carry_out(program: Program, *arguments: str | Path) -> dict[str, object]:
    return program.json("carry-out", order_path(program), *arguments)


def read_states(program: Program) -> dict[str, int]:
    found: dict[str, int] = program.json("status", program.home / "payroll.csv")["states"]
    return found


def write_statement(program: Program, *lines: str) -> Path:
    path = program.home / "statement.csv"
    path.write_text("\n".join(["Order ID;Amount;Currency;Status", *lines]) + "\n")
    return path


AS_BEFORE = {"in_doubt": 2, "accepted": 1, "paid": 1}


# One person


@pytest.mark.parametrize(("row", "word"), [(2, "not-received"), (2, "rejected"), (4, "rejected")])
def test_single_person_cannot_allow_second_payment(doubtful_batch: Program, row: int, word: str) -> None:
    result = doubtful_batch.run(
        "resolve", "row", doubtful_batch.home / "payroll.csv", str(row), "--as", word, "--evidence", EVIDENCE
    )
    error_output = " ".join(result.stderr.split())
    assert result.exit_code == 8
    assert (
        f"This would allow row {row} to be paid again, so two people must agree. Nothing was settled." in error_output
    )
    assert "--out ORDER.json --key KEY` writes an order" in error_output
    assert "`paygw-batch approve ORDER.json --key KEY`" in error_output
    assert "`paygw-batch order settle " in error_output
    assert "`paygw-batch carry-out ORDER.json` carries it out" in error_output
    assert read_states(doubtful_batch) == AS_BEFORE


def test_single_person_may_settle_row_as_paid(doubtful_batch: Program) -> None:
    assert resolve(doubtful_batch, "row", "2", "--as", "paid", "--evidence", EVIDENCE)["states"] == {
        "in_doubt": 1,
        "accepted": 1,
        "paid": 2,
    }


def test_single_person_decides_without_approval_policy(doubtful_batch: Program) -> None:
    doubtful_batch.config.write_text(doubtful_batch.config.read_text().partition("[approval]")[0])
    assert resolve(doubtful_batch, "row", "2", "--as", "not-received", "--evidence", EVIDENCE)["resolved"] == 1
    refused = write_settle_order(doubtful_batch, "3", "--as", "rejected", "--evidence", EVIDENCE)
    assert (refused["exit_code"], "has no [approval]" in str(refused["message"])) == (2, True)


def test_statement_allowing_second_payment_needs_two_people(doubtful_batch: Program) -> None:
    lines = write_statement(doubtful_batch, "LOST-1;9008;KES;declined", "TAKEN-1;9007;KES;approved")
    preview = resolve(doubtful_batch, "statement", lines)
    assert "two people must agree" in str(preview["message"])
    result = doubtful_batch.run("resolve", "statement", doubtful_batch.home / "payroll.csv", lines, "--yes")
    assert result.exit_code == 8
    assert f"--statement {lines} --out ORDER.json --key KEY" in " ".join(result.stderr.split())
    assert read_states(doubtful_batch) == AS_BEFORE
    assert (
        resolve(doubtful_batch, "statement", write_statement(doubtful_batch, "TAKEN-1;9007;KES;approved"), "--yes")[
            "resolved"
        ]
        == 1
    )


# Two people


def test_order_takes_effect_only_when_carried_out(doubtful_batch: Program) -> None:
    head = doubtful_batch.json("verify")
    write_approved_order(doubtful_batch, "cleo")
    assert read_states(doubtful_batch) == AS_BEFORE
    assert {**doubtful_batch.json("verify"), "seconds": 0} == {**head, "seconds": 0}


def test_history_shows_both_people_of_order(doubtful_batch: Program) -> None:
    write_approved_order(doubtful_batch, "cleo")
    summary = carry_out(doubtful_batch, "--by", "dan")
    assert (summary["resolved"], summary["states"]) == (1, {"ready": 1, "in_doubt": 1, "accepted": 1, "paid": 1})
    history = doubtful_batch.json("status", doubtful_batch.home / "payroll.csv", "--history")["history"]
    (deed,) = [entry for entry in history if entry["what"] == "resolved_not_received"]
    digest = doubtful_batch.json("approve", order_path(doubtful_batch))["order_sha256"]
    assert deed["by"].startswith("dan (login ")
    assert deed["by"].endswith(f", by order {digest}, prepared by ada, approved by cleo")
    assert deed["said"] == EVIDENCE
    assert doubtful_batch.json("verify")["exit_code"] == 0


def test_approver_sees_rows_states_reasons_and_sums(doubtful_batch: Program) -> None:
    write_approved_order(doubtful_batch)
    result = doubtful_batch.run("approve", order_path(doubtful_batch), "--key", key_path(doubtful_batch, "cleo"))
    output = " ".join(result.stdout.split())
    for part in ("An order about 1 row of batch", "LOST-1", "doubt", "not-received", "9,008.00", "Ticket", "4711"):
        assert part in output
    assert "Prepared by ada at " in output
    assert "Approved by cleo. The order has 1 of 1 approval." in output


def test_statement_is_settled_by_order(doubtful_batch: Program) -> None:
    lines = write_statement(doubtful_batch, "LOST-1;9008;KES;declined", "TAKEN-1;9007;KES;approved")
    summary = write_settle_order(doubtful_batch, "--statement", lines)
    assert [(entry["row"], entry["act"]) for entry in summary["settlements"]] == [(2, "rejected"), (3, "paid")]  # type: ignore[attr-defined]
    assert (
        doubtful_batch.json("approve", order_path(doubtful_batch), "--key", key_path(doubtful_batch, "ben"))[
            "exit_code"
        ]
        == 0
    )
    assert carry_out(doubtful_batch)["states"] == {"rejected": 1, "accepted": 1, "paid": 2}


def test_maker_cannot_approve_own_order(doubtful_batch: Program) -> None:
    write_approved_order(doubtful_batch)
    assert (
        doubtful_batch.run("approve", order_path(doubtful_batch), "--key", key_path(doubtful_batch, "ada")).exit_code
        == 8
    )
    refused = carry_out(doubtful_batch)
    assert (refused["exit_code"], "needs 1 valid approval and has 0" in str(refused["message"])) == (8, True)
    assert read_states(doubtful_batch) == AS_BEFORE


def test_only_makers_can_write_orders(doubtful_batch: Program) -> None:
    for name in ("cleo", "stranger"):
        settlement = ("2", "--as", "not-received", "--evidence", EVIDENCE)
        refused = write_settle_order(doubtful_batch, *settlement, maker=name)
        assert refused["exit_code"] == 8
        assert not order_path(doubtful_batch).exists()


# One use, and only while it is up to date


@pytest.mark.parametrize("name", ["ada", "cleo"])
def test_withdrawn_order_settles_nothing(doubtful_batch: Program, name: str) -> None:
    write_approved_order(doubtful_batch, "cleo")
    assert doubtful_batch.run("withdraw", order_path(doubtful_batch)).exit_code == 2
    assert (
        doubtful_batch.json("withdraw", order_path(doubtful_batch), "--key", key_path(doubtful_batch, name))["document"]
        == "order"
    )
    assert carry_out(doubtful_batch)["exit_code"] == 8
    assert read_states(doubtful_batch) == AS_BEFORE
    write_approved_order(doubtful_batch, "cleo")
    assert carry_out(doubtful_batch)["resolved"] == 1
    assert (
        doubtful_batch.run("withdraw", order_path(doubtful_batch), "--key", key_path(doubtful_batch, name)).exit_code
        == 8
    )


def test_order_is_carried_out_once(doubtful_batch: Program) -> None:
    write_approved_order(doubtful_batch, "cleo")
    carry_out(doubtful_batch)
    again = carry_out(doubtful_batch)
    assert again["exit_code"] == 8
    assert "row 2 was in doubt after attempt 1, and is not sent yet after attempt 1" in str(again["message"])


def test_order_does_not_settle_next_attempt(doubtful_batch: Program) -> None:
    """The row is paid again and lost again; evidence about the first attempt says nothing about the second."""
    write_approved_order(doubtful_batch, "cleo")
    carry_out(doubtful_batch)
    assert doubtful_batch.json("resume", doubtful_batch.home / "payroll.csv")["states"] == AS_BEFORE
    again = carry_out(doubtful_batch)
    assert again["exit_code"] == 8
    assert "row 2 was in doubt after attempt 1, and is in doubt after attempt 2" in str(again["message"])
    assert read_states(doubtful_batch) == AS_BEFORE


def test_outdated_order_changes_nothing(doubtful_batch: Program) -> None:
    rows = ("2", "3", "--as", "not-received", "--evidence", EVIDENCE)
    write_settle_order(doubtful_batch, *rows)
    doubtful_batch.json("approve", order_path(doubtful_batch), "--key", key_path(doubtful_batch, "cleo"))
    resolve(doubtful_batch, "row", "3", "--as", "paid", "--evidence", EVIDENCE)
    refused = carry_out(doubtful_batch)
    assert "row 3 was in doubt after attempt 1, and is paid" in str(refused["message"])
    assert read_states(doubtful_batch) == {"in_doubt": 1, "accepted": 1, "paid": 2}


def test_order_lifts_only_its_own_hold(doubtful_batch: Program) -> None:
    """A ready row stays ready when its hold is lifted, so the order must not work a second time."""
    write_approved_order(doubtful_batch, "cleo")
    carry_out(doubtful_batch)
    assert (
        resolve(doubtful_batch, "statement", write_statement(doubtful_batch, "LOST-1;9008;KES;approved"), "--yes")[
            "held"
        ]
        == 1
    )
    alone = resolve(doubtful_batch, "row", "2", "--as", "not-received", "--evidence", EVIDENCE)
    assert alone["exit_code"] == 8
    write_approved_order(doubtful_batch, "cleo")
    assert carry_out(doubtful_batch)["resolved"] == 1
    assert carry_out(doubtful_batch)["exit_code"] == 8
    assert (
        resolve(doubtful_batch, "statement", write_statement(doubtful_batch, "LOST-1;9008;KES;processing"), "--yes")[
            "held"
        ]
        == 1
    )
    again = carry_out(doubtful_batch)
    assert again["exit_code"] == 8
    assert "row 2 is held for a different reason than when the order was made" in str(again["message"])


def test_order_for_other_journal_is_refused(doubtful_batch: Program) -> None:
    write_approved_order(doubtful_batch, "cleo")
    text = doubtful_batch.config.read_text()
    doubtful_batch.config.write_text(text.replace('"journal.sqlite3"', '"other.sqlite3"'))
    doubtful_batch.json("submit", doubtful_batch.home / "payroll.csv", "--out", doubtful_batch.home / "other.csv")
    refused = carry_out(doubtful_batch)
    assert (refused["exit_code"], "it is for the journal" in str(refused["message"])) == (8, False)
    assert "The order is for the journal " in str(refused["message"])


def test_order_is_refused_during_quarantine(doubtful_batch: Program) -> None:
    write_approved_order(doubtful_batch, "cleo")
    text = doubtful_batch.config.read_text()
    doubtful_batch.config.write_text(text.replace("quarantine_h = 0", "quarantine_h = 24"))
    refused = carry_out(doubtful_batch)
    assert (refused["exit_code"], "settle it as not received from" in str(refused["message"])) == (2, True)
    settlement = ("3", "--as", "not-received", "--evidence", EVIDENCE)
    new = write_settle_order(doubtful_batch, *settlement, out=doubtful_batch.home / "new.json")
    assert new["exit_code"] == 2
    assert read_states(doubtful_batch) == AS_BEFORE


def test_approval_of_order_expires(doubtful_batch: Program) -> None:
    write_approved_order(doubtful_batch, "cleo")
    text = doubtful_batch.config.read_text()
    doubtful_batch.config.write_text(text.replace("expires_h = 72", "expires_h = 0.000001"))
    assert "that of cleo expired at 20" in str(carry_out(doubtful_batch)["message"])


def test_changed_order_is_refused(doubtful_batch: Program) -> None:
    write_approved_order(doubtful_batch, "cleo")
    document = json.loads(order_path(doubtful_batch).read_text())
    document["content"]["rows"][0]["row"] = 3
    order_path(doubtful_batch).write_text(json.dumps(document))
    assert "changed after its maker signed it" in str(carry_out(doubtful_batch)["message"])
    assert read_states(doubtful_batch) == AS_BEFORE


def test_plan_and_order_cannot_replace_each_other(doubtful_batch: Program) -> None:
    write_approved_order(doubtful_batch, "cleo")
    sheet = doubtful_batch.sheet(kenyan_rows(2, amount="600000"), name="large.csv")
    refused = doubtful_batch.json("submit", sheet, "--plan", order_path(doubtful_batch))
    assert (refused["exit_code"], "is not a plan that this version can read" in str(refused["message"])) == (8, True)
    plan = doubtful_batch.home / "large.plan.json"
    doubtful_batch.json("plan", sheet, "--out", plan, "--key", key_path(doubtful_batch, "ada"))
    no_order = doubtful_batch.run("carry-out", plan)
    assert (no_order.exit_code, "`paygw-batch submit SHEET --plan PLAN`" in no_order.stderr) == (8, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ["2", "--as", "rejected"],
        ["2", "--evidence", "x"],
        ["--as", "rejected", "--evidence", "x"],
        ["2", "--as", "rejected", "--evidence", "x", "--again"],
        ["2", "--as", "rejected", "--evidence", "x", "--matching-only"],
        ["2", "--as", "rejected", "--evidence", "x", "--as-of", "2026-11-23"],
        ["2", "--as", "release", "--evidence", "x"],
        ["2", "--statement", "s.csv"],
        ["--as", "paid", "--statement", "s.csv"],
    ],
)
def test_conflicting_order_options_are_refused(doubtful_batch: Program, arguments: list[str]) -> None:
    assert write_settle_order(doubtful_batch, *arguments)["exit_code"] == 2
    assert not order_path(doubtful_batch).exists()
    named = ("2", "--as", "paid", "--evidence", "x")
    assert write_settle_order(doubtful_batch, *named, out=doubtful_batch.home / "order.txt")["exit_code"] == 2
    assert (
        doubtful_batch.run("order", "settle", "payroll.csv", *named, "--out", order_path(doubtful_batch)).exit_code == 2
    )


@pytest.mark.parametrize("wrong", [("--out", "x.csv"), ("--out", "x.csv", "--for-excel"), ("--force",)])
def test_settling_rows_writes_no_reconciliation(doubtful_batch: Program, wrong: tuple[str, ...]) -> None:
    write_approved_order(doubtful_batch, "cleo")
    assert carry_out(doubtful_batch, *wrong)["exit_code"] == 2
    assert read_states(doubtful_batch) == AS_BEFORE


def test_order_is_carried_out_without_naming_batch(doubtful_batch: Program) -> None:
    write_approved_order(doubtful_batch, "cleo")
    doubtful_batch.json("submit", doubtful_batch.sheet(kenyan_rows(1, prefix="NEW", amount="5"), name="other.csv"))
    wrong = carry_out(doubtful_batch, "--batch", doubtful_batch.home / "other.csv")
    assert (wrong["exit_code"], "The order is about batch" in str(wrong["message"])) == (2, True)
    right = carry_out(doubtful_batch, "--batch", doubtful_batch.home / "payroll.csv")
    assert right["resolved"] == 1
