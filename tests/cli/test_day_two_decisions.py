"""Rows in doubt and rejected rows: what people are shown, how they settle them, and their next attempts."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from paygw_batch.journal.lock import RunLock, lock_path
from tests.cli.conftest import MachineCache
from tests.cli.sheets import answer_questions
from tests.support.program import Program, kenyan_rows, read_csv, sandbox_toml

EVIDENCE = "Ticket 4711, answered by support on the phone"


def mixed_rows(*payments: tuple[str, str, int]) -> list[str]:
    return [row for prefix, amount, count in payments for row in kenyan_rows(count, amount=amount, prefix=prefix)]


def prepare_doubtful_batch(program: Program) -> None:
    """Pay a batch: row 2 is paid, rows 3 to 5 are in doubt (only 3 and 4 were paid), row 6 rejected, row 7 accepted."""
    payments = (
        ("GOOD", "1500.50", 1),
        ("TAKEN", "9007", 2),
        ("LOST", "9008", 1),
        ("NO", "9001", 1),
        ("LATER", "9002", 1),
    )
    summary = program.json("submit", program.sheet(mixed_rows(*payments)))
    assert summary["states"] == {"in_doubt": 3, "accepted": 1, "paid": 1, "rejected": 1}


@pytest.fixture
def doubtful(machine_cache: MachineCache) -> Program:
    return machine_cache(prepare_doubtful_batch)


def disable_quarantine(program: Program) -> None:
    program.config.write_text(sandbox_toml().replace("[submission]", "[submission]\nquarantine_h = 0"))


def resolve(program: Program, how: str, *arguments: str | Path) -> dict[str, Any]:
    return program.json("resolve", how, program.home / "payroll.csv", *arguments)


def write_statement(program: Program, *lines: str) -> Path:
    return program.sheet([*lines], "statement.csv", "Order ID;Amount;Currency;Status")


def resume_batch(program: Program) -> dict[str, dict[str, str]]:
    """Resume the batch, and return its reconciliation by order id."""
    summary = program.json("resume", program.home / "payroll.csv")
    assert summary["exit_code"] == 5
    return {line["client_orderid"]: line for line in read_csv(summary["reconciliation"])}


# By a list of questions


def test_completed_question_list_settles_rows(doubtful: Program) -> None:
    """The list has no names, and the row that was not received is sent again as a possible duplicate."""
    shown = doubtful.run("status", doubtful.home / "payroll.csv").stdout
    for part in ("Do not pay them in any other way", "retry 051ffdb5ed07da9c --row 6", "statement 051ffdb5ed07da9c"):
        assert part in shown
    assert shown.index("order TAKEN-1") < shown.index("Row 6, rejected (9001)")
    disable_quarantine(doubtful)
    out = doubtful.home / "questions.csv"
    assert doubtful.json("status", doubtful.home / "payroll.csv", "--in-doubt", "--out", out)["exit_code"] == 5
    assert [text for text in ("Wanjiku", "254712") if text in out.read_text()] == []
    lines = answer_questions(out, "paid", "rejected", "not-received")
    questions = [(line["order_id"], line["amount"], line["answer"]) for line in lines]
    assert questions == [("TAKEN-1", "9007.00", ""), ("TAKEN-2", "9007.00", ""), ("LOST-1", "9008.00", "")]
    settled = resolve(doubtful, "statement", out, "--yes")
    assert settled["states"] == {"ready": 1, "accepted": 1, "paid": 2, "rejected": 2}
    line = resume_batch(doubtful)["LOST-1"]
    assert (line["sent_orderid"], line["attempts"]) == ("LOST-1", "2")
    assert "possible duplicate of attempt 1" in line["message"]


# By hand


def test_person_can_settle_row_in_doubt_or_accepted(doubtful: Program) -> None:
    words = {3: "paid", 4: "rejected", 7: "paid"}
    for row, word in words.items():
        summary = resolve(doubtful, "row", str(row), "--as", word, "--evidence", EVIDENCE)
    doubtful.json("reconcile", summary["batch"], "--out", doubtful.home / "again.csv")
    lines = read_csv(doubtful.home / "again.csv")
    assert {row: lines[row - 2]["state"] for row in words} == words
    assert all(EVIDENCE in lines[row - 2]["message"] for row in words)


def test_invalid_resolution_changes_nothing(doubtful: Program) -> None:
    before = doubtful.states()
    for words, why in (
        ("2 --as rejected --evidence x", "Row 2 is paid"),
        ("6 --as paid --evidence x", "Row 6 is rejected"),
        ("7 --as not-received --evidence x", "Row 7 is with the gateway"),
        ("5 --as not-received --evidence x", "(a quarantine of 24 h), you can settle it as not received."),
        ("99 --as paid --evidence x", "The batch has no row 99"),
        ("3 --as paid --evidence \u2003", "--evidence must be one line"),
        ("3 --as paid", "--evidence"),
        ("3 2 --as paid --evidence x", "Row 2 is paid"),
    ):
        result = doubtful.run("resolve", "row", doubtful.home / "payroll.csv", *words.split(" "))
        assert (result.exit_code, why in " ".join(result.stderr.split())) == (2, True), words
    assert doubtful.states() == before


# By a statement


def test_statement_without_yes_is_only_previewed(doubtful: Program) -> None:
    before = doubtful.states()
    file = write_statement(
        doubtful, "TAKEN-1;9007;KES;approved", "TAKEN-2;9007.00;KES;declined", "LATER-1;9002;KES;approved"
    )
    preview = resolve(doubtful, "statement", file)
    assert "Nothing was changed" in preview["message"]
    assert [(row["row"], row["as"]) for row in preview["would_resolve"]] == [(3, "paid"), (4, "rejected"), (7, "paid")]
    assert doubtful.states() == before
    summary = resolve(doubtful, "statement", file, "--yes", "--evidence", "Statement of 21 November")
    assert (summary["resolved"], summary["still_in_doubt"]) == (3, [5])
    assert doubtful.states() == {"in_doubt": 1, "paid": 3, "rejected": 2}


def test_statement_with_mismatched_line_is_not_applied(doubtful: Program) -> None:
    before = doubtful.states()
    file = write_statement(doubtful, "TAKEN-1;9007;KES;approved", "NO-1;9001;KES;approved")
    for arguments in ((file,), (file, "--yes")):
        summary = resolve(doubtful, "statement", *arguments)
        assert (summary["exit_code"], summary["resolved"]) == (3, 0)
        assert "The payee may have been paid" in summary["differences"][-1]["message"]
    assert doubtful.states() == before


@pytest.mark.share(2)
@pytest.mark.parametrize("answer", ["approved", "processing"])
@pytest.mark.parametrize("option", [(), ("--matching-only",)])
def test_statement_line_holds_ready_row_until_resolved(doubtful: Program, answer: str, option: tuple[str, ...]) -> None:
    disable_quarantine(doubtful)
    resolve(doubtful, "row", "5", "--as", "not-received", "--evidence", EVIDENCE)
    file = write_statement(doubtful, f"LOST-1;9008;KES;{answer}", "TAKEN-1;9007;KES;approved")
    preview = resolve(doubtful, "statement", file)
    assert (preview["would_hold"], preview["held"]) == (["LOST-1"], 0)
    assert "--yes holds them" in preview["message"]
    summary = resolve(doubtful, "statement", file, "--yes", *option)
    assert (summary["held"], summary["resolved"], summary["exit_code"]) == (1, len(option), 5 if option else 3)
    line = resume_batch(doubtful)["LOST-1"]
    assert (line["state"], line["attempts"]) == ("ready", "1")
    assert "Held: the statement of" in line["message"]
    status = doubtful.json("status", doubtful.home / "payroll.csv")
    (held_row,) = [row for row in status["needs_person"] if row["held"]]
    assert (held_row["row"], "No run will send it" in held_row["next"]) == (5, True)
    assert doubtful.json("verify")["exit_code"] == 5
    resolve(doubtful, "row", "5", "--as", "not-received", "--evidence", "Ticket 4712", "--by", "Amina")
    history = doubtful.json("status", doubtful.home / "payroll.csv", "--history")["history"]
    assert [(deed["what"], deed["said"]) for deed in history][-1] == ("resolved_not_received", "Ticket 4712")
    assert "Amina" in history[-1]["by"]
    assert doubtful.json("status", doubtful.home / "payroll.csv")["contradictions"] == 0
    assert resume_batch(doubtful)["LOST-1"]["attempts"] == "2"


# Rejected rows

SECOND_TIME_LUCKY = """
[default]
status = "approved"

[[rule]]
order_id = "PAY-[0-9]+"
amount_whole = 9001
status = "declined"
commits = false

[[rule]]
amount_whole = 9008
fault = "drop_before"
"""


@pytest.fixture
def batch(program: Program) -> str:
    """Submit two good rows (2 and 3), two that are declined under their first order id (4, 5) and one in doubt (6)."""
    (program.home / "forgiving.toml").write_text(SECOND_TIME_LUCKY)
    program.config.write_text(f'{program.config.read_text()}\n[sandbox]\nbehaviour = "forgiving.toml"\n')
    rows = mixed_rows(("GOOD", "1500.50", 2), ("PAY", "9001", 2), ("LOST", "9008", 1))
    summary = program.json("submit", program.sheet(rows))
    assert summary["states"] == {"in_doubt": 1, "paid": 2, "rejected": 2}
    return str(summary["batch"])


def test_retry_sends_rejected_rows_with_next_order_id(program: Program, batch: str) -> None:
    summary = program.json("retry", batch, "--row", "5", "--by", "Ada in finance")
    lines = read_csv(summary["reconciliation"])
    assert [line["state"] for line in lines] == ["paid", "paid", "rejected", "paid", "in_doubt"]
    opened, released = program.json("status", batch, "--history")["history"]
    assert (opened["what"], opened["row"], bool(opened["by"])) == ("opened", None, True)
    assert (released["what"], released["row"], released["attempt"]) == ("released", 5, 1)
    assert released["by"].startswith("Ada in finance (login ")
    assert released["said"] == "next attempt as PAY-2-r2"
    summary = program.json("retry", batch)
    assert (summary["released"], summary["sent_this_run"], summary["exit_code"]) == (1, 1, 5)
    lines = read_csv(summary["reconciliation"])
    assert [line["sent_orderid"] for line in lines[2:4]] == ["PAY-1-r2", "PAY-2-r2"]
    assert [line["attempts"] for line in lines] == ["1", "1", "2", "2", "1"]
    summary = program.json("retry", batch)
    assert (summary["released"], summary["sent_this_run"], summary["exit_code"]) == (0, 0, 5)
    assert "Nothing to retry" in summary["message"]


def test_retry_can_reuse_order_id(program: Program, batch: str) -> None:
    program.config.write_text(f'{program.config.read_text()}\n[retry]\norder_id = "same"\n')
    summary = program.json("retry", batch)
    assert summary["states"] == {"in_doubt": 1, "paid": 2, "rejected": 2}
    assert {line["sent_orderid"] for line in read_csv(summary["reconciliation"])[2:4]} == {"PAY-1", "PAY-2"}


def test_retry_refuses_unrejected_row(program: Program, batch: str) -> None:
    before = program.record()
    for row, why in (("2", "is paid"), ("6", "is in doubt and may have been paid"), ("99", "The batch has no row 99")):
        result = program.run("retry", batch, "--row", "4", "--row", row)
        assert (result.exit_code, why in result.stderr) == (2, True)
    with closing(RunLock(lock_path(program.journal), now="2026-11-22T00:00:00.000Z", command="submit")):
        result = program.run("retry", batch)
    assert (result.exit_code, "nother run is using this journal" in result.stderr) == (7, True)
    assert program.record() == before
    assert program.json("status", batch)["states"] == {"in_doubt": 1, "paid": 2, "rejected": 2}
