"""Rows in doubt: what people are shown, and how they settle them, by hand or by a statement."""

import csv
from pathlib import Path

import pytest

from tests.cli.conftest import MachineCache
from tests.cli.stopped import stop_process, wait_for_first_payment
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
def doubtful_batch(machine_cache: MachineCache) -> Program:
    return machine_cache(prepare_doubtful_batch)


def disable_quarantine(program: Program) -> None:
    program.config.write_text(sandbox_toml().replace("[submission]", "[submission]\nquarantine_h = 0"))


def resolve(program: Program, how: str, *arguments: str | Path) -> dict[str, object]:
    return program.json("resolve", how, program.home / "payroll.csv", *arguments)


def read_states(program: Program) -> dict[str, int]:
    found: dict[str, int] = program.json("status", program.home / "payroll.csv")["states"]
    return found


def write_statement(program: Program, *lines: str, heading: str = "Order ID;Amount;Currency;Status") -> Path:
    path = program.home / "statement.csv"
    path.write_text("\n".join([heading, *lines]) + "\n")
    return path


# Status for people


def test_status_gives_next_step_for_each_row(doubtful_batch: Program) -> None:
    result = doubtful_batch.run("status", doubtful_batch.home / "payroll.csv")
    assert "do not pay them by other means" in result.stdout
    assert result.stdout.index("order TAKEN-1") < result.stdout.index("Row 6, rejected (9001)")
    assert "retry 051ffdb5ed07da9c --row 6" in result.stdout
    assert "resolve statement 051ffdb5ed07da9c" in result.stdout


def test_question_list_contains_orders_but_no_people(doubtful_batch: Program) -> None:
    out = doubtful_batch.home / "questions.csv"
    summary = doubtful_batch.json("status", doubtful_batch.home / "payroll.csv", "--in-doubt", "--out", out)
    assert summary["exit_code"] == 5
    lines = read_csv(out)
    assert [line["order_id"] for line in lines] == ["TAKEN-1", "TAKEN-2", "LOST-1"]
    assert {line["amount"] for line in lines} == {"9007.00", "9008.00"}
    assert {line["answer"] for line in lines} == {""}
    assert "Wanjiku" not in out.read_text()
    assert "254712" not in out.read_text()


def test_answered_question_list_settles_rows(doubtful_batch: Program) -> None:
    disable_quarantine(doubtful_batch)
    out = doubtful_batch.home / "questions.csv"
    doubtful_batch.json("status", doubtful_batch.home / "payroll.csv", "--in-doubt", "--out", out)
    lines = read_csv(out)
    for line, answer in zip(lines, ["paid", "rejected", "not-received"], strict=True):
        line["answer"] = answer
    with out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    summary = resolve(doubtful_batch, "statement", out, "--yes")
    assert summary["states"] == {"ready": 1, "accepted": 1, "paid": 2, "rejected": 2}


# By hand


@pytest.mark.parametrize(("word", "state"), [("paid", "paid"), ("rejected", "rejected")])
def test_person_settles_row_in_doubt(doubtful_batch: Program, word: str, state: str) -> None:
    before = read_states(doubtful_batch)
    summary = resolve(doubtful_batch, "row", "3", "--as", word, "--evidence", EVIDENCE)
    assert summary["states"] == {**before, "in_doubt": 2, state: before[state] + 1}
    doubtful_batch.json("reconcile", summary["batch"], "--out", doubtful_batch.home / "again.csv")  # type: ignore[arg-type]
    line = read_csv(doubtful_batch.home / "again.csv")[1]
    assert EVIDENCE in line["message"]
    assert line["state"] == state


def test_accepted_row_can_be_settled_as_paid(doubtful_batch: Program) -> None:
    resolve(doubtful_batch, "row", "7", "--as", "paid", "--evidence", EVIDENCE)
    assert read_states(doubtful_batch) == {"in_doubt": 3, "paid": 2, "rejected": 1}


def test_not_received_in_quarantine_shows_earliest_time(doubtful_batch: Program) -> None:
    result = doubtful_batch.run(
        "resolve", "row", doubtful_batch.home / "payroll.csv", "5", "--as", "not-received", "--evidence", EVIDENCE
    )
    assert result.exit_code == 2
    assert "settle it as not received from 20" in result.stderr
    assert "a quarantine of 24 h" in result.stderr
    assert read_states(doubtful_batch)["in_doubt"] == 3


def test_resent_not_received_row_is_possible_duplicate(doubtful_batch: Program) -> None:
    disable_quarantine(doubtful_batch)
    summary = resolve(doubtful_batch, "row", "5", "--as", "not-received", "--evidence", EVIDENCE)
    assert summary["exit_code"] == 5
    assert read_states(doubtful_batch)["ready"] == 1
    resumed = doubtful_batch.json("resume", summary["batch"])  # type: ignore[arg-type]
    line = read_csv(resumed["reconciliation"])[3]
    assert (line["sent_orderid"], line["attempts"]) == ("LOST-1", "2")
    assert "possible duplicate of attempt 1" in line["message"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["2", "--as", "rejected", "--evidence", "x"], "Row 2 is paid"),
        (["6", "--as", "paid", "--evidence", "x"], "Row 6 is rejected"),
        (["7", "--as", "not-received", "--evidence", "x"], "Row 7 is with the gateway"),
        (["99", "--as", "paid", "--evidence", "x"], "has no such row"),
        (["3", "--as", "paid", "--evidence", "  "], "--evidence must be one line"),
        (["3", "--as", "paid"], "--evidence"),
        (["3", "2", "--as", "paid", "--evidence", "x"], "Row 2 is paid"),
    ],
)
def test_invalid_resolution_changes_nothing(doubtful_batch: Program, arguments: list[str], why: str) -> None:
    before = read_states(doubtful_batch)
    result = doubtful_batch.run("resolve", "row", doubtful_batch.home / "payroll.csv", *arguments)
    assert result.exit_code == 2
    assert why in result.stderr
    assert read_states(doubtful_batch) == before


def test_row_of_running_batch_is_not_resolved(program: Program) -> None:
    (program.home / "slow.toml").write_text("[default]\ndelay_s = 0.3\n")
    program.config.write_text(f'{program.config.read_text()}\n[sandbox]\nbehaviour = "slow.toml"\n')
    sheet = program.sheet(kenyan_rows(30))
    process = program.start("submit", sheet)
    wait_for_first_payment(program, process)
    with stop_process(process):
        result = program.run("resolve", "row", sheet, "2", "--as", "rejected", "--evidence", EVIDENCE)
    process.communicate()
    assert result.exit_code == 7
    assert "nother run is using this journal" in result.stderr
    assert read_states(program) == {"paid": 30}


# By a statement


def test_statement_without_yes_is_only_previewed(doubtful_batch: Program) -> None:
    before = read_states(doubtful_batch)
    file = write_statement(
        doubtful_batch, "TAKEN-1;9007;KES;approved", "TAKEN-2;9007.00;KES;declined", "LATER-1;9002;KES;approved"
    )
    preview = resolve(doubtful_batch, "statement", file)
    assert "Nothing was changed" in str(preview["message"])
    assert preview["would_resolve"] == [
        {"row": 3, "as": "paid"},
        {"row": 4, "as": "rejected"},
        {"row": 7, "as": "paid"},
    ]
    assert read_states(doubtful_batch) == before
    summary = resolve(doubtful_batch, "statement", file, "--yes", "--evidence", "Statement of 21 November")
    assert summary["resolved"] == 3
    assert summary["still_in_doubt"] == [5]
    assert read_states(doubtful_batch) == {"in_doubt": 1, "paid": 3, "rejected": 2}


def test_repeated_statement_changes_nothing(doubtful_batch: Program) -> None:
    file = write_statement(doubtful_batch, "TAKEN-1;9007;KES;approved")
    resolve(doubtful_batch, "statement", file, "--yes")
    assert resolve(doubtful_batch, "statement", file, "--yes")["exit_code"] == 2
    again = resolve(doubtful_batch, "statement", file, "--yes", "--again")
    assert (again["resolved"], again["agreeing"]) == (0, 1)


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("NOBODY-1;9007;KES;approved", "The journal has no order NOBODY-1"),
        ("TAKEN-2;9008;KES;approved", "The statement has TAKEN-2 with KES 9,008; it was sent with KES 9,007.00"),
        ("TAKEN-2;9007;UGX;approved", "it was sent in KES"),
        ("TAKEN-2;9,007;KES;approved", "is not a plain amount"),
        ("TAKEN-2;9007;KES;limbo", "does not say what the gateway's status"),
        ("TAKEN-1;9007;KES;declined", "has 2 lines for TAKEN-1"),
        ("GOOD-1;1500.50;KES;declined", "Row 2 is paid in the journal, and rejected in the statement"),
        ("NO-1;9001;KES;approved", "The payee may have the money"),
        (";9007;KES;approved", "has no order id"),
    ],
)
def test_mismatched_statement_line_prevents_all_changes(doubtful_batch: Program, line: str, why: str) -> None:
    before = read_states(doubtful_batch)
    file = write_statement(doubtful_batch, "TAKEN-1;9007;KES;approved", line)
    for arguments in ((file,), (file, "--yes")):
        summary = resolve(doubtful_batch, "statement", *arguments)
        assert summary["exit_code"] == 3
        differences = summary["differences"]
        assert isinstance(differences, list)
        assert why in differences[-1]["message"]
    assert read_states(doubtful_batch) == before


def test_matching_only_option_settles_matching_rows(doubtful_batch: Program) -> None:
    file = write_statement(doubtful_batch, "TAKEN-1;9007;KES;approved", "NOBODY-1;9007;KES;approved")
    summary = resolve(doubtful_batch, "statement", file, "--yes", "--matching-only")
    assert (summary["resolved"], summary["exit_code"]) == (1, 5)
    assert read_states(doubtful_batch)["paid"] == 2


def test_statement_reports_orders_of_other_batches(doubtful_batch: Program) -> None:
    other = doubtful_batch.sheet(kenyan_rows(1, amount="9007", prefix="OTHER"), name="other.csv")
    doubtful_batch.json("submit", other, "--repeats-meant")
    file = write_statement(doubtful_batch, "TAKEN-1;9007;KES;approved", "OTHER-1;9007;KES;approved")
    summary = resolve(doubtful_batch, "statement", file, "--yes")
    assert (summary["resolved"], summary["elsewhere"]) == (1, 1)
    assert doubtful_batch.json("status", doubtful_batch.home / "other.csv")["states"] == {"in_doubt": 1}


def test_paid_line_for_earlier_attempt_reveals_double_payment(doubtful_batch: Program) -> None:
    doubtful_batch.json("retry", doubtful_batch.home / "payroll.csv")
    file = write_statement(doubtful_batch, "NO-1;9001;KES;approved")
    differences = resolve(doubtful_batch, "statement", file)["differences"]
    assert isinstance(differences, list)
    assert "may be paid twice" in differences[0]["message"]


# Holds by a statement


@pytest.fixture
def cleared_batch(doubtful_batch: Program) -> Program:
    """Return a machine whose row 5 is ready again, because a person called its first attempt not received."""
    disable_quarantine(doubtful_batch)
    resolve(doubtful_batch, "row", "5", "--as", "not-received", "--evidence", EVIDENCE)
    return doubtful_batch


def resume_batch(program: Program) -> dict[str, dict[str, str]]:
    """Resume the batch, and return its reconciliation by order id."""
    summary = program.json("resume", program.home / "payroll.csv")
    assert summary["exit_code"] == 5
    return {line["client_orderid"]: line for line in read_csv(summary["reconciliation"])}


@pytest.mark.share(2)
@pytest.mark.parametrize("answer", ["approved", "processing"])
@pytest.mark.parametrize("option", [(), ("--matching-only",)])
def test_statement_line_holds_ready_row_until_resolved(
    cleared_batch: Program, answer: str, option: tuple[str, ...]
) -> None:
    file = write_statement(cleared_batch, f"LOST-1;9008;KES;{answer}", "TAKEN-1;9007;KES;approved")
    preview = resolve(cleared_batch, "statement", file)
    assert (preview["would_hold"], preview["held"]) == (["LOST-1"], 0)
    assert "--yes holds them" in str(preview["message"])
    summary = resolve(cleared_batch, "statement", file, "--yes", *option)
    assert (summary["held"], summary["resolved"]) == (1, len(option))
    assert summary["exit_code"] == (5 if option else 3)
    line = resume_batch(cleared_batch)["LOST-1"]
    assert (line["state"], line["attempts"]) == ("ready", "1")
    assert "Held: the statement of" in line["message"]
    status = cleared_batch.json("status", cleared_batch.home / "payroll.csv")
    (held_row,) = [row for row in status["needs_person"] if row["held"]]
    assert held_row["row"] == 5
    assert "no run sends it" in held_row["next"]
    assert cleared_batch.json("verify")["exit_code"] == 5
    resolve(cleared_batch, "row", "5", "--as", "not-received", "--evidence", "Ticket 4712", "--by", "Amina")
    history = cleared_batch.json("status", cleared_batch.home / "payroll.csv", "--history")["history"]
    assert [(deed["what"], deed["said"]) for deed in history][-1] == ("resolved_not_received", "Ticket 4712")
    assert "Amina" in history[-1]["by"]
    assert cleared_batch.json("status", cleared_batch.home / "payroll.csv")["contradictions"] == 0
    assert resume_batch(cleared_batch)["LOST-1"]["attempts"] == "2"


@pytest.mark.parametrize(("word", "state"), [("paid", "paid"), ("rejected", "rejected")])
def test_held_row_can_be_settled(cleared_batch: Program, word: str, state: str) -> None:
    resolve(cleared_batch, "statement", write_statement(cleared_batch, "LOST-1;9008;KES;approved"), "--yes")
    resolve(cleared_batch, "row", "5", "--as", word, "--evidence", EVIDENCE)
    assert resume_batch(cleared_batch)["LOST-1"]["state"] == state


def test_ready_row_without_hold_is_not_resolved(cleared_batch: Program) -> None:
    result = cleared_batch.run(
        "resolve", "row", cleared_batch.home / "payroll.csv", "5", "--as", "paid", "--evidence", EVIDENCE
    )
    assert result.exit_code == 2
    assert "Row 5 is not sent yet" in result.stderr


def test_paid_line_holds_rejected_row_after_release(doubtful_batch: Program) -> None:
    assert (
        resolve(doubtful_batch, "statement", write_statement(doubtful_batch, "NO-1;9001;KES;approved"), "--yes")["held"]
        == 1
    )
    doubtful_batch.json("retry", doubtful_batch.home / "payroll.csv", "--row", "6")
    line = resume_batch(doubtful_batch)["NO-1"]
    assert (line["state"], line["attempts"], line["sent_orderid"]) == ("ready", "1", "NO-1")


def test_paid_line_holds_row_of_other_batch(cleared_batch: Program) -> None:
    other = cleared_batch.sheet(kenyan_rows(1, amount="33", prefix="OTHER"), name="other.csv")
    cleared_batch.json("submit", other)
    file = write_statement(cleared_batch, "LOST-1;9008;KES;approved", "LOST-1;9008;KES;approved")
    summary = cleared_batch.json("resolve", "statement", other, file, "--yes")
    assert (summary["held"], summary["exit_code"]) == (1, 3)
    assert resume_batch(cleared_batch)["LOST-1"]["attempts"] == "1"


def test_statement_line_with_different_amount_holds_nothing(cleared_batch: Program) -> None:
    summary = resolve(cleared_batch, "statement", write_statement(cleared_batch, "LOST-1;9009;KES;approved"), "--yes")
    assert (summary["held"], summary["exit_code"]) == (0, 3)


def test_declined_line_for_rejected_earlier_attempt_agrees(doubtful_batch: Program) -> None:
    doubtful_batch.json("retry", doubtful_batch.home / "payroll.csv")
    summary = resolve(doubtful_batch, "statement", write_statement(doubtful_batch, "NO-1;9001;KES;declined"))
    assert (summary["differences"], summary["agreeing"]) == ([], 1)


def test_not_received_in_answer_list_waits_for_quarantine(doubtful_batch: Program) -> None:
    file = write_statement(doubtful_batch, "LOST-1,9008,KES,not-received", heading="order_id,amount,currency,answer")
    differences = resolve(doubtful_batch, "statement", file, "--yes")["differences"]
    assert isinstance(differences, list)
    assert "settle it as not received from 20" in differences[0]["message"]


def test_statement_headings_can_be_configured(doubtful_batch: Program) -> None:
    names = '"Merchant ref" = "order_id"\nBetrag = "amount"\nCcy = "currency"\nResult = "status"\n'
    doubtful_batch.config.write_text(f"{doubtful_batch.config.read_text()}\n[statement.columns]\n{names}")
    file = write_statement(doubtful_batch, "TAKEN-1;9007;KES;approved", heading="Merchant Ref;Betrag;CCY;Result")
    assert resolve(doubtful_batch, "statement", file, "--yes")["resolved"] == 1


@pytest.mark.parametrize(
    ("heading", "why"),
    [
        ("Order ID;Amount;Currency", "either a column status"),
        ("Order ID;Amount;Currency;Status;Answer", "either a column status"),
        ("Order ID;Client Order ID;Amount;Currency;Status", "are both the order_id"),
        ("Amount;Currency;Status", "has no column order_id"),
    ],
)
def test_statement_without_needed_columns_is_refused(doubtful_batch: Program, heading: str, why: str) -> None:
    file = write_statement(doubtful_batch, ";".join("x" for _ in heading.split(";")), heading=heading)
    result = doubtful_batch.run("resolve", "statement", doubtful_batch.home / "payroll.csv", file)
    assert result.exit_code == 3
    assert why in result.stderr


def test_unreadable_statement_is_refused(doubtful_batch: Program) -> None:
    for content in (b"", b"order_id,amount,currency,status\n", b'order_id,amount,currency,status\n"x"y,1,KES,paid\n'):
        (doubtful_batch.home / "statement.csv").write_bytes(content)
        result = doubtful_batch.run(
            "resolve", "statement", doubtful_batch.home / "payroll.csv", doubtful_batch.home / "statement.csv"
        )
        assert result.exit_code == 3, result.output
    assert (
        doubtful_batch.run(
            "resolve", "statement", doubtful_batch.home / "payroll.csv", doubtful_batch.home / "none.csv"
        ).exit_code
        == 3
    )
