"""Two people for settlements that let a row be paid again: an order, an approval, and one use of it."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Kept
from tests.support.approving import policy
from tests.support.program import Program, kenyan_rows, sandbox_toml

EVIDENCE = "Ticket 4711, answered by support on the phone"


def begin_doubtful(program: Program) -> None:
    """A batch of which rows 2 and 3 are in doubt, row 4 is accepted, and 5 is paid; too small to need a plan."""
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
def doubtful(kept: Kept) -> Program:
    return kept(begin_doubtful)


def order_of(program: Program) -> Path:
    return program.home / "order.json"


def pem(program: Program, name: str) -> Path:
    return program.home / f"{name}.pem"


def resolve(program: Program, how: str, *arguments: str | Path) -> dict[str, object]:
    return program.json("resolve", how, program.home / "payroll.csv", *arguments)


def settle(program: Program, *arguments: str | Path, maker: str = "ada", out: Path | None = None) -> dict[str, object]:
    written = ("--out", out or order_of(program), "--key", pem(program, maker))
    return program.json("order", "settle", program.home / "payroll.csv", *arguments, *written)


def ordered(program: Program, *approvers: str, row: int = 2, word: str = "not-received") -> Path:
    """Write ada's order to settle a row, and have it approved."""
    settlement = (str(row), "--as", word, "--evidence", EVIDENCE)
    assert settle(program, *settlement)["exit_code"] == 0
    for name in approvers:
        assert program.json("approve", order_of(program), "--key", pem(program, name))["exit_code"] == 0
    return order_of(program)


def carry_out(program: Program, *arguments: str | Path) -> dict[str, object]:
    return program.json("carry-out", order_of(program), *arguments)


def states(program: Program) -> dict[str, int]:
    found: dict[str, int] = program.json("status", program.home / "payroll.csv")["states"]
    return found


def statement(program: Program, *lines: str) -> Path:
    path = program.home / "statement.csv"
    path.write_text("\n".join(["Order ID;Amount;Currency;Status", *lines]) + "\n")
    return path


AS_BEFORE = {"in_doubt": 2, "accepted": 1, "paid": 1}


# One person alone


@pytest.mark.parametrize(("row", "word"), [(2, "not-received"), (2, "rejected"), (4, "rejected")])
def test_single_person_cannot_allow_second_payment(doubtful: Program, row: int, word: str) -> None:
    result = doubtful.run(
        "resolve", "row", doubtful.home / "payroll.csv", str(row), "--as", word, "--evidence", EVIDENCE
    )
    told = " ".join(result.stderr.split())
    assert result.exit_code == 8
    assert f"This would allow row {row} to be paid again, so two people must agree. Nothing was settled." in told
    assert "--out ORDER.json --key KEY` writes an order" in told
    assert "`paygw-batch approve ORDER.json --key KEY`" in told
    assert "`paygw-batch order settle " in told
    assert "`paygw-batch carry-out ORDER.json` carries it out" in told
    assert states(doubtful) == AS_BEFORE


def test_single_person_may_settle_row_as_paid(doubtful: Program) -> None:
    assert resolve(doubtful, "row", "2", "--as", "paid", "--evidence", EVIDENCE)["states"] == {
        "in_doubt": 1,
        "accepted": 1,
        "paid": 2,
    }


def test_single_person_decides_without_approval_policy(doubtful: Program) -> None:
    doubtful.config.write_text(doubtful.config.read_text().partition("[approval]")[0])
    assert resolve(doubtful, "row", "2", "--as", "not-received", "--evidence", EVIDENCE)["resolved"] == 1
    refused = settle(doubtful, "3", "--as", "rejected", "--evidence", EVIDENCE)
    assert (refused["exit_code"], "has no [approval]" in str(refused["message"])) == (2, True)


def test_statement_allowing_second_payment_needs_two_people(doubtful: Program) -> None:
    lines = statement(doubtful, "LOST-1;9008;KES;declined", "TAKEN-1;9007;KES;approved")
    preview = resolve(doubtful, "statement", lines)
    assert "two people must agree" in str(preview["message"])
    result = doubtful.run("resolve", "statement", doubtful.home / "payroll.csv", lines, "--yes")
    assert result.exit_code == 8
    assert f"--statement {lines} --out ORDER.json --key KEY" in " ".join(result.stderr.split())
    assert states(doubtful) == AS_BEFORE
    assert resolve(doubtful, "statement", statement(doubtful, "TAKEN-1;9007;KES;approved"), "--yes")["resolved"] == 1


# Two people


def test_order_changes_nothing_until_carried_out(doubtful: Program) -> None:
    head = doubtful.json("verify")
    ordered(doubtful, "cleo")
    assert states(doubtful) == AS_BEFORE
    assert {**doubtful.json("verify"), "seconds": 0} == {**head, "seconds": 0}


def test_history_names_both_people_of_order(doubtful: Program) -> None:
    ordered(doubtful, "cleo")
    summary = carry_out(doubtful, "--by", "dan")
    assert (summary["resolved"], summary["states"]) == (1, {"ready": 1, "in_doubt": 1, "accepted": 1, "paid": 1})
    history = doubtful.json("status", doubtful.home / "payroll.csv", "--history")["history"]
    (deed,) = [one for one in history if one["what"] == "resolved_not_received"]
    digest = doubtful.json("approve", order_of(doubtful))["order_sha256"]
    assert deed["by"].startswith("dan (login ")
    assert deed["by"].endswith(f", by order {digest}, prepared by ada, approved by cleo")
    assert deed["said"] == EVIDENCE
    assert doubtful.json("verify")["exit_code"] == 0


def test_approver_sees_rows_states_reasons_and_sums(doubtful: Program) -> None:
    ordered(doubtful)
    result = doubtful.run("approve", order_of(doubtful), "--key", pem(doubtful, "cleo"))
    told = " ".join(result.stdout.split())
    for part in ("An order about 1 row of batch", "LOST-1", "doubt", "not-received", "9,008.00", "Ticket", "4711"):
        assert part in told
    assert "Prepared by ada at " in told
    assert "Approved by cleo. The order has 1 of 1 approval." in told


def test_a_statement_is_settled_by_an_order(doubtful: Program) -> None:
    lines = statement(doubtful, "LOST-1;9008;KES;declined", "TAKEN-1;9007;KES;approved")
    made = settle(doubtful, "--statement", lines)
    assert [(one["row"], one["act"]) for one in made["settlements"]] == [(2, "rejected"), (3, "paid")]  # type: ignore[attr-defined]
    assert doubtful.json("approve", order_of(doubtful), "--key", pem(doubtful, "ben"))["exit_code"] == 0
    assert carry_out(doubtful)["states"] == {"rejected": 1, "accepted": 1, "paid": 2}


def test_maker_cannot_approve_own_order(doubtful: Program) -> None:
    ordered(doubtful)
    assert doubtful.run("approve", order_of(doubtful), "--key", pem(doubtful, "ada")).exit_code == 8
    refused = carry_out(doubtful)
    assert (refused["exit_code"], "needs 1 valid approval and has 0" in str(refused["message"])) == (8, True)
    assert states(doubtful) == AS_BEFORE


def test_person_other_than_maker_writes_no_order(doubtful: Program) -> None:
    for name in ("cleo", "stranger"):
        settlement = ("2", "--as", "not-received", "--evidence", EVIDENCE)
        refused = settle(doubtful, *settlement, maker=name)
        assert refused["exit_code"] == 8
        assert not order_of(doubtful).exists()


# Once, and as long as it is true


@pytest.mark.parametrize("name", ["ada", "cleo"])
def test_withdrawn_order_settles_nothing(doubtful: Program, name: str) -> None:
    ordered(doubtful, "cleo")
    assert doubtful.run("withdraw", order_of(doubtful)).exit_code == 2
    assert doubtful.json("withdraw", order_of(doubtful), "--key", pem(doubtful, name))["document"] == "order"
    assert carry_out(doubtful)["exit_code"] == 8
    assert states(doubtful) == AS_BEFORE
    ordered(doubtful, "cleo")
    assert carry_out(doubtful)["resolved"] == 1
    assert doubtful.run("withdraw", order_of(doubtful), "--key", pem(doubtful, name)).exit_code == 8


def test_an_order_is_carried_out_once(doubtful: Program) -> None:
    ordered(doubtful, "cleo")
    carry_out(doubtful)
    again = carry_out(doubtful)
    assert again["exit_code"] == 8
    assert "row 2 was in doubt after attempt 1, and is not sent yet after attempt 1" in str(again["message"])


def test_an_order_does_not_settle_the_next_attempt(doubtful: Program) -> None:
    """The row is paid again and lost sight of again: what was said of the first attempt says nothing of the second."""
    ordered(doubtful, "cleo")
    carry_out(doubtful)
    assert doubtful.json("resume", doubtful.home / "payroll.csv")["states"] == AS_BEFORE
    again = carry_out(doubtful)
    assert again["exit_code"] == 8
    assert "row 2 was in doubt after attempt 1, and is in doubt after attempt 2" in str(again["message"])
    assert states(doubtful) == AS_BEFORE


def test_order_with_outdated_row_changes_nothing(doubtful: Program) -> None:
    rows = ("2", "3", "--as", "not-received", "--evidence", EVIDENCE)
    settle(doubtful, *rows)
    doubtful.json("approve", order_of(doubtful), "--key", pem(doubtful, "cleo"))
    resolve(doubtful, "row", "3", "--as", "paid", "--evidence", EVIDENCE)
    refused = carry_out(doubtful)
    assert "row 3 was in doubt after attempt 1, and is paid" in str(refused["message"])
    assert states(doubtful) == {"in_doubt": 1, "accepted": 1, "paid": 2}


def test_order_for_lifted_hold_cannot_lift_next_hold(doubtful: Program) -> None:
    """A ready row that is held stays ready when its hold is lifted: the order must not serve a second time."""
    ordered(doubtful, "cleo")
    carry_out(doubtful)
    assert resolve(doubtful, "statement", statement(doubtful, "LOST-1;9008;KES;approved"), "--yes")["held"] == 1
    alone = resolve(doubtful, "row", "2", "--as", "not-received", "--evidence", EVIDENCE)
    assert alone["exit_code"] == 8
    ordered(doubtful, "cleo")
    assert carry_out(doubtful)["resolved"] == 1
    assert carry_out(doubtful)["exit_code"] == 8
    assert resolve(doubtful, "statement", statement(doubtful, "LOST-1;9008;KES;processing"), "--yes")["held"] == 1
    again = carry_out(doubtful)
    assert again["exit_code"] == 8
    assert "row 2 is held for a different reason than when the order was made" in str(again["message"])


def test_order_for_other_journal_is_refused(doubtful: Program) -> None:
    ordered(doubtful, "cleo")
    text = doubtful.config.read_text()
    doubtful.config.write_text(text.replace('"journal.sqlite3"', '"other.sqlite3"'))
    doubtful.json("submit", doubtful.home / "payroll.csv", "--out", doubtful.home / "other.csv")
    refused = carry_out(doubtful)
    assert (refused["exit_code"], "it is for the journal" in str(refused["message"])) == (8, False)
    assert "The order is for the journal " in str(refused["message"])


def test_order_is_refused_during_quarantine(doubtful: Program) -> None:
    ordered(doubtful, "cleo")
    text = doubtful.config.read_text()
    doubtful.config.write_text(text.replace("quarantine_h = 0", "quarantine_h = 24"))
    refused = carry_out(doubtful)
    assert (refused["exit_code"], "settle it as not received from" in str(refused["message"])) == (2, True)
    settlement = ("3", "--as", "not-received", "--evidence", EVIDENCE)
    new = settle(doubtful, *settlement, out=doubtful.home / "new.json")
    assert new["exit_code"] == 2
    assert states(doubtful) == AS_BEFORE


def test_an_approval_of_an_order_expires(doubtful: Program) -> None:
    ordered(doubtful, "cleo")
    text = doubtful.config.read_text()
    doubtful.config.write_text(text.replace("expires_h = 72", "expires_h = 0.000001"))
    assert "that of cleo expired at 20" in str(carry_out(doubtful)["message"])


def test_a_changed_order_is_refused(doubtful: Program) -> None:
    ordered(doubtful, "cleo")
    document = json.loads(order_of(doubtful).read_text())
    document["content"]["rows"][0]["row"] = 3
    order_of(doubtful).write_text(json.dumps(document))
    assert "changed after its maker signed it" in str(carry_out(doubtful)["message"])
    assert states(doubtful) == AS_BEFORE


def test_plan_and_order_cannot_replace_each_other(doubtful: Program) -> None:
    ordered(doubtful, "cleo")
    sheet = doubtful.sheet(kenyan_rows(2, amount="600000"), name="large.csv")
    refused = doubtful.json("submit", sheet, "--plan", order_of(doubtful))
    assert (refused["exit_code"], "is not a plan that this version can read" in str(refused["message"])) == (8, True)
    plan = doubtful.home / "large.plan.json"
    doubtful.json("plan", sheet, "--out", plan, "--key", pem(doubtful, "ada"))
    no_order = doubtful.run("carry-out", plan)
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
def test_conflicting_order_options_are_refused(doubtful: Program, arguments: list[str]) -> None:
    assert settle(doubtful, *arguments)["exit_code"] == 2
    assert not order_of(doubtful).exists()
    named = ("2", "--as", "paid", "--evidence", "x")
    assert settle(doubtful, *named, out=doubtful.home / "order.txt")["exit_code"] == 2
    assert doubtful.run("order", "settle", "payroll.csv", *named, "--out", order_of(doubtful)).exit_code == 2


@pytest.mark.parametrize("wrong", [("--out", "x.csv"), ("--out", "x.csv", "--for-excel"), ("--force",)])
def test_settling_rows_writes_no_reconciliation(doubtful: Program, wrong: tuple[str, ...]) -> None:
    ordered(doubtful, "cleo")
    assert carry_out(doubtful, *wrong)["exit_code"] == 2
    assert states(doubtful) == AS_BEFORE


def test_order_is_carried_out_without_naming_batch(doubtful: Program) -> None:
    ordered(doubtful, "cleo")
    doubtful.json("submit", doubtful.sheet(kenyan_rows(1, prefix="NEW", amount="5"), name="other.csv"))
    wrong = carry_out(doubtful, "--batch", doubtful.home / "other.csv")
    assert (wrong["exit_code"], "The order is about batch" in str(wrong["message"])) == (2, True)
    right = carry_out(doubtful, "--batch", doubtful.home / "payroll.csv")
    assert right["resolved"] == 1
