"""Rows in doubt: what people are shown, and how they settle them, by hand or by a statement."""

import csv
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import MachineCache
from tests.support.program import Program, kenyan_rows, read_csv, sandbox_toml

EVIDENCE = "Ticket 4711, answered by support on the phone"


def prepare_doubtful_batch(program: Program) -> None:
    """Pay a batch: row 2 is paid, rows 3 to 5 are in doubt (only 3 and 4 were paid), row 6 rejected, row 7 accepted."""
    rows = [
        *kenyan_rows(1, prefix="GOOD"),
        *kenyan_rows(2, amount="9007", prefix="TAKEN"),
        *kenyan_rows(1, amount="9008", prefix="LOST"),
        *kenyan_rows(1, amount="9001", prefix="NO"),
        *kenyan_rows(1, amount="9002", prefix="LATER"),
    ]
    summary = program.json("submit", program.sheet(rows))
    assert summary["states"] == {"in_doubt": 3, "accepted": 1, "paid": 1, "rejected": 1}


@pytest.fixture
def program(machine_cache: MachineCache) -> Program:
    return machine_cache(prepare_doubtful_batch)


def disable_quarantine(program: Program) -> None:
    program.config.write_text(sandbox_toml().replace("[submission]", "[submission]\nquarantine_h = 0"))


def resolve(program: Program, how: str, *arguments: str | Path) -> dict[str, Any]:
    return program.json("resolve", how, program.home / "payroll.csv", *arguments)


def read_states(program: Program) -> dict[str, int]:
    found: dict[str, int] = program.json("status", program.home / "payroll.csv")["states"]
    return found


def write_statement(program: Program, *lines: str, heading: str = "Order ID;Amount;Currency;Status") -> Path:
    path = program.home / "statement.csv"
    path.write_text("\n".join([heading, *lines]) + "\n")
    return path


# Status for people


def test_status_gives_next_step_for_each_row(program: Program) -> None:
    result = program.run("status", program.home / "payroll.csv")
    assert "Do not pay them by other means" in result.stdout
    assert result.stdout.index("order TAKEN-1") < result.stdout.index("Row 6, rejected (9001)")
    assert "retry 051ffdb5ed07da9c --row 6" in result.stdout
    assert "resolve statement 051ffdb5ed07da9c" in result.stdout


def test_question_list_has_orders_but_no_names(program: Program) -> None:
    out = program.home / "questions.csv"
    summary = program.json("status", program.home / "payroll.csv", "--in-doubt", "--out", out)
    assert summary["exit_code"] == 5
    lines = read_csv(out)
    assert [line["order_id"] for line in lines] == ["TAKEN-1", "TAKEN-2", "LOST-1"]
    assert {line["amount"] for line in lines} == {"9007.00", "9008.00"}
    assert {line["answer"] for line in lines} == {""}
    assert "Wanjiku" not in out.read_text()
    assert "254712" not in out.read_text()


def test_completed_question_list_settles_rows(program: Program) -> None:
    disable_quarantine(program)
    out = program.home / "questions.csv"
    program.json("status", program.home / "payroll.csv", "--in-doubt", "--out", out)
    lines = read_csv(out)
    for line, answer in zip(lines, ["paid", "rejected", "not-received"], strict=True):
        line["answer"] = answer
    with out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    summary = resolve(program, "statement", out, "--yes")
    assert summary["states"] == {"ready": 1, "accepted": 1, "paid": 2, "rejected": 2}


# By hand


@pytest.mark.parametrize(("row", "word"), [("3", "paid"), ("3", "rejected"), ("7", "paid")])
def test_person_can_settle_row_in_doubt_or_accepted(program: Program, row: str, word: str) -> None:
    before = read_states(program)[word]
    summary = resolve(program, "row", row, "--as", word, "--evidence", EVIDENCE)
    assert read_states(program)[word] == before + 1
    program.json("reconcile", summary["batch"], "--out", program.home / "again.csv")
    line = read_csv(program.home / "again.csv")[int(row) - 2]
    assert (line["state"], EVIDENCE in line["message"]) == (word, True)


def test_early_resolution_as_not_received_shows_earliest_time(program: Program) -> None:
    result = program.run(
        "resolve", "row", program.home / "payroll.csv", "5", "--as", "not-received", "--evidence", EVIDENCE
    )
    assert result.exit_code == 2
    assert "you can settle it as not received" in result.stderr
    assert "a quarantine of 24 h" in result.stderr
    assert read_states(program)["in_doubt"] == 3


def test_resent_not_received_row_is_possible_duplicate(program: Program) -> None:
    disable_quarantine(program)
    summary = resolve(program, "row", "5", "--as", "not-received", "--evidence", EVIDENCE)
    assert summary["exit_code"] == 5
    assert read_states(program)["ready"] == 1
    resumed = program.json("resume", summary["batch"])
    line = read_csv(resumed["reconciliation"])[3]
    assert (line["sent_orderid"], line["attempts"]) == ("LOST-1", "2")
    assert "possible duplicate of attempt 1" in line["message"]


def test_invalid_resolution_changes_nothing(program: Program) -> None:
    before = read_states(program)
    for words, why in (
        ("2 --as rejected --evidence x", "Row 2 is paid"),
        ("6 --as paid --evidence x", "Row 6 is rejected"),
        ("7 --as not-received --evidence x", "Row 7 is with the gateway"),
        ("99 --as paid --evidence x", "The batch has no row 99"),
        ("3 --as paid --evidence \u2003", "--evidence must be one line"),
        ("3 --as paid", "--evidence"),
        ("3 2 --as paid --evidence x", "Row 2 is paid"),
    ):
        result = program.run("resolve", "row", program.home / "payroll.csv", *words.split(" "))
        assert (result.exit_code, why in result.stderr) == (2, True), words
    assert read_states(program) == before


# By a statement


def test_statement_without_yes_is_only_previewed(program: Program) -> None:
    before = read_states(program)
    file = write_statement(
        program, "TAKEN-1;9007;KES;approved", "TAKEN-2;9007.00;KES;declined", "LATER-1;9002;KES;approved"
    )
    preview = resolve(program, "statement", file)
    assert "Nothing was changed" in preview["message"]
    assert [(row["row"], row["as"]) for row in preview["would_resolve"]] == [(3, "paid"), (4, "rejected"), (7, "paid")]
    assert read_states(program) == before
    summary = resolve(program, "statement", file, "--yes", "--evidence", "Statement of 21 November")
    assert (summary["resolved"], summary["still_in_doubt"]) == (3, [5])
    assert read_states(program) == {"in_doubt": 1, "paid": 3, "rejected": 2}


def test_statement_with_mismatched_line_is_not_applied(program: Program) -> None:
    before = read_states(program)
    file = write_statement(program, "TAKEN-1;9007;KES;approved", "NO-1;9001;KES;approved")
    for arguments in ((file,), (file, "--yes")):
        summary = resolve(program, "statement", *arguments)
        assert (summary["exit_code"], summary["resolved"]) == (3, 0)
        assert "The payee may have the money" in summary["differences"][-1]["message"]
    assert read_states(program) == before


def test_repeated_statement_changes_nothing(program: Program) -> None:
    file = write_statement(program, "TAKEN-1;9007;KES;approved")
    resolve(program, "statement", file, "--yes")
    assert resolve(program, "statement", file, "--yes")["exit_code"] == 2
    again = resolve(program, "statement", file, "--yes", "--again")
    assert (again["resolved"], again["agreeing"]) == (0, 1)


# Holds by a statement


@pytest.fixture
def cleared(program: Program) -> Program:
    """Return a machine whose row 5 is ready again, because a person called its first attempt not received."""
    disable_quarantine(program)
    resolve(program, "row", "5", "--as", "not-received", "--evidence", EVIDENCE)
    return program


def resume_batch(program: Program) -> dict[str, dict[str, str]]:
    """Resume the batch, and return its reconciliation by order id."""
    summary = program.json("resume", program.home / "payroll.csv")
    assert summary["exit_code"] == 5
    return {line["client_orderid"]: line for line in read_csv(summary["reconciliation"])}


@pytest.mark.share(2)
@pytest.mark.parametrize("answer", ["approved", "processing"])
@pytest.mark.parametrize("option", [(), ("--matching-only",)])
def test_statement_line_holds_ready_row_until_resolved(cleared: Program, answer: str, option: tuple[str, ...]) -> None:
    file = write_statement(cleared, f"LOST-1;9008;KES;{answer}", "TAKEN-1;9007;KES;approved")
    preview = resolve(cleared, "statement", file)
    assert (preview["would_hold"], preview["held"]) == (["LOST-1"], 0)
    assert "--yes holds them" in preview["message"]
    summary = resolve(cleared, "statement", file, "--yes", *option)
    assert (summary["held"], summary["resolved"]) == (1, len(option))
    assert summary["exit_code"] == (5 if option else 3)
    line = resume_batch(cleared)["LOST-1"]
    assert (line["state"], line["attempts"]) == ("ready", "1")
    assert "Held: the statement of" in line["message"]
    status = cleared.json("status", cleared.home / "payroll.csv")
    (held_row,) = [row for row in status["needs_person"] if row["held"]]
    assert held_row["row"] == 5
    assert "No run will send it" in held_row["next"]
    assert cleared.json("verify")["exit_code"] == 5
    resolve(cleared, "row", "5", "--as", "not-received", "--evidence", "Ticket 4712", "--by", "Amina")
    history = cleared.json("status", cleared.home / "payroll.csv", "--history")["history"]
    assert [(deed["what"], deed["said"]) for deed in history][-1] == ("resolved_not_received", "Ticket 4712")
    assert "Amina" in history[-1]["by"]
    assert cleared.json("status", cleared.home / "payroll.csv")["contradictions"] == 0
    assert resume_batch(cleared)["LOST-1"]["attempts"] == "2"


@pytest.mark.parametrize(("word", "state"), [("paid", "paid"), ("rejected", "rejected")])
def test_held_row_can_be_settled(cleared: Program, word: str, state: str) -> None:
    resolve(cleared, "statement", write_statement(cleared, "LOST-1;9008;KES;approved"), "--yes")
    resolve(cleared, "row", "5", "--as", word, "--evidence", EVIDENCE)
    assert resume_batch(cleared)["LOST-1"]["state"] == state


def test_statement_headings_are_configurable(program: Program) -> None:
    names = '"Merchant ref" = "order_id"\nBetrag = "amount"\nCcy = "currency"\nResult = "status"\n'
    program.config.write_text(f"{program.config.read_text()}\n[statement.columns]\n{names}")
    file = write_statement(program, "TAKEN-1;9007;KES;approved", heading="Merchant Ref;Betrag;CCY;Result")
    assert resolve(program, "statement", file, "--yes")["resolved"] == 1


def test_unreadable_statement_is_refused(program: Program) -> None:
    file, heading = program.home / "statement.csv", "Order ID;Amount;Currency;Status\n"
    for content, why in (
        ("Order ID;Amount;Currency\nx;x;x\n", "either a column called status"),
        (f"{heading[:-1]};Answer\nx;x;x;x;x\n", "either a column called status"),
        (f"Client Order ID;{heading}x;x;x;x;x\n", "both mean the column order_id"),
        ("Amount;Currency;Status\nx;x;x\n", "has no column order_id"),
        ("", "statement.csv"),
        (heading, "statement.csv"),
        (f'{heading}"x"y;1;KES;paid\n', "statement.csv"),
        (None, "statement.csv"),
    ):
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_text(content)
        result = program.run("resolve", "statement", program.home / "payroll.csv", file)
        assert (result.exit_code, why in result.stderr) == (3, True), content
