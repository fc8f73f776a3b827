"""Rows in doubt: what a person is told, and how a person settles them, by hand or by a statement of the gateway's."""

import csv
from pathlib import Path

import pytest

from tests.cli.conftest import Kept
from tests.cli.stopped import stopped, wait_for_first_payment
from tests.support.program import Program, kenyan_rows, read_csv, sandbox_toml

EVIDENCE = "Ticket 4711, answered by support on the phone"


def begin_doubtful(program: Program) -> None:
    """A batch of which row 2 is paid, rows 3 to 5 are in doubt (only 3 and 4 were paid), row 6 rejected, 7 accepted."""
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
def doubtful(kept: Kept) -> Program:
    return kept(begin_doubtful)


def without_quarantine(program: Program) -> None:
    program.config.write_text(sandbox_toml().replace("[submission]", "[submission]\nquarantine_h = 0"))


def resolve(program: Program, how: str, *arguments: str | Path) -> dict[str, object]:
    return program.json("resolve", how, program.home / "payroll.csv", *arguments)


def states(program: Program) -> dict[str, int]:
    found: dict[str, int] = program.json("status", program.home / "payroll.csv")["states"]
    return found


def statement(program: Program, *lines: str, heading: str = "Order ID;Amount;Currency;Status") -> Path:
    path = program.home / "statement.csv"
    path.write_text("\n".join([heading, *lines]) + "\n")
    return path


# What a person is told


def test_status_gives_next_step_for_each_row(doubtful: Program) -> None:
    result = doubtful.run("status", doubtful.home / "payroll.csv")
    assert "do not pay them by other means" in result.stdout
    assert result.stdout.index("order TAKEN-1") < result.stdout.index("Row 6, rejected (9001)")
    assert "retry 051ffdb5ed07da9c --row 6" in result.stdout
    assert "resolve statement 051ffdb5ed07da9c" in result.stdout


def test_question_list_names_orders_but_no_people(doubtful: Program) -> None:
    out = doubtful.home / "questions.csv"
    summary = doubtful.json("status", doubtful.home / "payroll.csv", "--in-doubt", "--out", out)
    assert summary["exit_code"] == 5
    lines = read_csv(out)
    assert [line["order_id"] for line in lines] == ["TAKEN-1", "TAKEN-2", "LOST-1"]
    assert {line["amount"] for line in lines} == {"9007.00", "9008.00"}
    assert {line["answer"] for line in lines} == {""}
    assert "Wanjiku" not in out.read_text()
    assert "254712" not in out.read_text()


def test_answered_question_list_settles_rows(doubtful: Program) -> None:
    without_quarantine(doubtful)
    out = doubtful.home / "questions.csv"
    doubtful.json("status", doubtful.home / "payroll.csv", "--in-doubt", "--out", out)
    lines = read_csv(out)
    for line, answer in zip(lines, ["paid", "rejected", "not-received"], strict=True):
        line["answer"] = answer
    with out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    summary = resolve(doubtful, "statement", out, "--yes")
    assert summary["states"] == {"ready": 1, "accepted": 1, "paid": 2, "rejected": 2}


# By hand


@pytest.mark.parametrize(("word", "state"), [("paid", "paid"), ("rejected", "rejected")])
def test_a_person_settles_a_row_in_doubt(doubtful: Program, word: str, state: str) -> None:
    before = states(doubtful)
    summary = resolve(doubtful, "row", "3", "--as", word, "--evidence", EVIDENCE)
    assert summary["states"] == {**before, "in_doubt": 2, state: before[state] + 1}
    doubtful.json("reconcile", summary["batch"], "--out", doubtful.home / "again.csv")  # type: ignore[arg-type]
    line = read_csv(doubtful.home / "again.csv")[1]
    assert EVIDENCE in line["message"]
    assert line["state"] == state


def test_accepted_row_can_be_settled_as_paid(doubtful: Program) -> None:
    resolve(doubtful, "row", "7", "--as", "paid", "--evidence", EVIDENCE)
    assert states(doubtful) == {"in_doubt": 3, "paid": 2, "rejected": 1}


def test_not_received_in_quarantine_names_earliest_time(doubtful: Program) -> None:
    result = doubtful.run(
        "resolve", "row", doubtful.home / "payroll.csv", "5", "--as", "not-received", "--evidence", EVIDENCE
    )
    assert result.exit_code == 2
    assert "settle it as not received from 20" in result.stderr
    assert "a quarantine of 24 h" in result.stderr
    assert states(doubtful)["in_doubt"] == 3


def test_not_received_row_is_resent_marked_possible_duplicate(doubtful: Program) -> None:
    without_quarantine(doubtful)
    summary = resolve(doubtful, "row", "5", "--as", "not-received", "--evidence", EVIDENCE)
    assert summary["exit_code"] == 5
    assert states(doubtful)["ready"] == 1
    resumed = doubtful.json("resume", summary["batch"])  # type: ignore[arg-type]
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
def test_wrong_resolution_changes_no_row(doubtful: Program, arguments: list[str], why: str) -> None:
    before = states(doubtful)
    result = doubtful.run("resolve", "row", doubtful.home / "payroll.csv", *arguments)
    assert result.exit_code == 2
    assert why in result.stderr
    assert states(doubtful) == before


def test_row_of_running_batch_is_not_resolved(program: Program) -> None:
    (program.home / "slow.toml").write_text("[default]\ndelay_s = 0.3\n")
    program.config.write_text(f'{program.config.read_text()}\n[sandbox]\nbehaviour = "slow.toml"\n')
    sheet = program.sheet(kenyan_rows(30))
    process = program.start("submit", sheet)
    wait_for_first_payment(program, process)
    with stopped(process):
        result = program.run("resolve", "row", sheet, "2", "--as", "rejected", "--evidence", EVIDENCE)
    process.communicate()
    assert result.exit_code == 7
    assert "nother run is using this journal" in result.stderr
    assert states(program) == {"paid": 30}


# By statement


def test_statement_without_yes_is_only_previewed(doubtful: Program) -> None:
    before = states(doubtful)
    file = statement(doubtful, "TAKEN-1;9007;KES;approved", "TAKEN-2;9007.00;KES;declined", "LATER-1;9002;KES;approved")
    preview = resolve(doubtful, "statement", file)
    assert "Nothing was changed" in str(preview["message"])
    assert preview["would_resolve"] == [
        {"row": 3, "as": "paid"},
        {"row": 4, "as": "rejected"},
        {"row": 7, "as": "paid"},
    ]
    assert states(doubtful) == before
    done = resolve(doubtful, "statement", file, "--yes", "--evidence", "Statement of 21 November")
    assert done["resolved"] == 3
    assert done["still_in_doubt"] == [5]
    assert states(doubtful) == {"in_doubt": 1, "paid": 3, "rejected": 2}


def test_repeated_statement_changes_nothing(doubtful: Program) -> None:
    file = statement(doubtful, "TAKEN-1;9007;KES;approved")
    resolve(doubtful, "statement", file, "--yes")
    assert resolve(doubtful, "statement", file, "--yes")["exit_code"] == 2
    again = resolve(doubtful, "statement", file, "--yes", "--again")
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
def test_mismatched_statement_line_is_listed_changing_nothing(doubtful: Program, line: str, why: str) -> None:
    before = states(doubtful)
    file = statement(doubtful, "TAKEN-1;9007;KES;approved", line)
    for arguments in ((file,), (file, "--yes")):
        summary = resolve(doubtful, "statement", *arguments)
        assert summary["exit_code"] == 3
        differences = summary["differences"]
        assert isinstance(differences, list)
        assert why in differences[-1]["message"]
    assert states(doubtful) == before


def test_matching_only_settles_matching_rows(doubtful: Program) -> None:
    file = statement(doubtful, "TAKEN-1;9007;KES;approved", "NOBODY-1;9007;KES;approved")
    summary = resolve(doubtful, "statement", file, "--yes", "--matching-only")
    assert (summary["resolved"], summary["exit_code"]) == (1, 5)
    assert states(doubtful)["paid"] == 2


def test_statement_counts_orders_of_other_batches(doubtful: Program) -> None:
    other = doubtful.sheet(kenyan_rows(1, amount="9007", prefix="OTHER"), name="other.csv")
    doubtful.json("submit", other, "--repeats-meant")
    file = statement(doubtful, "TAKEN-1;9007;KES;approved", "OTHER-1;9007;KES;approved")
    summary = resolve(doubtful, "statement", file, "--yes")
    assert (summary["resolved"], summary["elsewhere"]) == (1, 1)
    assert doubtful.json("status", doubtful.home / "other.csv")["states"] == {"in_doubt": 1}


def test_paid_line_for_earlier_attempt_reveals_double_payment(doubtful: Program) -> None:
    doubtful.json("retry", doubtful.home / "payroll.csv")
    file = statement(doubtful, "NO-1;9001;KES;approved")
    differences = resolve(doubtful, "statement", file)["differences"]
    assert isinstance(differences, list)
    assert "may be paid twice" in differences[0]["message"]


# Rows that a statement says the gateway has


@pytest.fixture
def cleared(doubtful: Program) -> Program:
    """Row 5 is not sent yet once more: a person called its first attempt not received."""
    without_quarantine(doubtful)
    resolve(doubtful, "row", "5", "--as", "not-received", "--evidence", EVIDENCE)
    return doubtful


def resumed(program: Program) -> dict[str, dict[str, str]]:
    """Resume the batch; return its reconciliation by order id."""
    summary = program.json("resume", program.home / "payroll.csv")
    assert summary["exit_code"] == 5
    return {line["client_orderid"]: line for line in read_csv(summary["reconciliation"])}


@pytest.mark.parametrize("answer", ["approved", "processing"])
@pytest.mark.parametrize("option", [(), ("--matching-only",)])
def test_statement_line_holds_ready_row_until_resolved(cleared: Program, answer: str, option: tuple[str, ...]) -> None:
    file = statement(cleared, f"LOST-1;9008;KES;{answer}", "TAKEN-1;9007;KES;approved")
    preview = resolve(cleared, "statement", file)
    assert (preview["would_hold"], preview["held"]) == (["LOST-1"], 0)
    assert "--yes holds them" in str(preview["message"])
    summary = resolve(cleared, "statement", file, "--yes", *option)
    assert (summary["held"], summary["resolved"]) == (1, len(option))
    assert summary["exit_code"] == (5 if option else 3)
    line = resumed(cleared)["LOST-1"]
    assert (line["state"], line["attempts"]) == ("ready", "1")
    assert "Held: the statement of" in line["message"]
    shown = cleared.json("status", cleared.home / "payroll.csv")
    (told,) = [row for row in shown["needs_person"] if row["held"]]
    assert told["row"] == 5
    assert "no run sends it" in told["next"]
    assert cleared.json("verify")["exit_code"] == 5
    resolve(cleared, "row", "5", "--as", "not-received", "--evidence", "Ticket 4712", "--by", "Amina")
    history = cleared.json("status", cleared.home / "payroll.csv", "--history")["history"]
    assert [(deed["what"], deed["said"]) for deed in history][-1] == ("resolved_not_received", "Ticket 4712")
    assert "Amina" in history[-1]["by"]
    assert cleared.json("status", cleared.home / "payroll.csv")["contradictions"] == 0
    assert resumed(cleared)["LOST-1"]["attempts"] == "2"


@pytest.mark.parametrize(("word", "state"), [("paid", "paid"), ("rejected", "rejected")])
def test_settling_held_row_sets_its_state(cleared: Program, word: str, state: str) -> None:
    resolve(cleared, "statement", statement(cleared, "LOST-1;9008;KES;approved"), "--yes")
    resolve(cleared, "row", "5", "--as", word, "--evidence", EVIDENCE)
    assert resumed(cleared)["LOST-1"]["state"] == state


def test_ready_row_without_hold_is_not_resolved(cleared: Program) -> None:
    result = cleared.run("resolve", "row", cleared.home / "payroll.csv", "5", "--as", "paid", "--evidence", EVIDENCE)
    assert result.exit_code == 2
    assert "Row 5 is not sent yet" in result.stderr


def test_paid_line_holds_rejected_row_after_release(doubtful: Program) -> None:
    assert resolve(doubtful, "statement", statement(doubtful, "NO-1;9001;KES;approved"), "--yes")["held"] == 1
    doubtful.json("retry", doubtful.home / "payroll.csv", "--row", "6")
    line = resumed(doubtful)["NO-1"]
    assert (line["state"], line["attempts"], line["sent_orderid"]) == ("ready", "1", "NO-1")


def test_paid_line_holds_row_of_other_batch(cleared: Program) -> None:
    other = cleared.sheet(kenyan_rows(1, amount="33", prefix="OTHER"), name="other.csv")
    cleared.json("submit", other)
    file = statement(cleared, "LOST-1;9008;KES;approved", "LOST-1;9008;KES;approved")
    summary = cleared.json("resolve", "statement", other, file, "--yes")
    assert (summary["held"], summary["exit_code"]) == (1, 3)
    assert resumed(cleared)["LOST-1"]["attempts"] == "1"


def test_statement_line_with_different_amount_holds_nothing(cleared: Program) -> None:
    summary = resolve(cleared, "statement", statement(cleared, "LOST-1;9009;KES;approved"), "--yes")
    assert (summary["held"], summary["exit_code"]) == (0, 3)


def test_declined_line_for_rejected_earlier_attempt_agrees(doubtful: Program) -> None:
    doubtful.json("retry", doubtful.home / "payroll.csv")
    summary = resolve(doubtful, "statement", statement(doubtful, "NO-1;9001;KES;declined"))
    assert (summary["differences"], summary["agreeing"]) == ([], 1)


def test_not_received_in_answer_list_waits_for_quarantine(doubtful: Program) -> None:
    file = statement(doubtful, "LOST-1,9008,KES,not-received", heading="order_id,amount,currency,answer")
    differences = resolve(doubtful, "statement", file, "--yes")["differences"]
    assert isinstance(differences, list)
    assert "settle it as not received from 20" in differences[0]["message"]


def test_configuration_names_headings_of_statement(doubtful: Program) -> None:
    names = '"Merchant ref" = "order_id"\nBetrag = "amount"\nCcy = "currency"\nResult = "status"\n'
    doubtful.config.write_text(f"{doubtful.config.read_text()}\n[statement.columns]\n{names}")
    file = statement(doubtful, "TAKEN-1;9007;KES;approved", heading="Merchant Ref;Betrag;CCY;Result")
    assert resolve(doubtful, "statement", file, "--yes")["resolved"] == 1


@pytest.mark.parametrize(
    ("heading", "why"),
    [
        ("Order ID;Amount;Currency", "either a column status"),
        ("Order ID;Amount;Currency;Status;Answer", "either a column status"),
        ("Order ID;Client Order ID;Amount;Currency;Status", "are both the order_id"),
        ("Amount;Currency;Status", "has no column order_id"),
    ],
)
def test_statement_without_needed_columns_is_refused(doubtful: Program, heading: str, why: str) -> None:
    file = statement(doubtful, ";".join("x" for _ in heading.split(";")), heading=heading)
    result = doubtful.run("resolve", "statement", doubtful.home / "payroll.csv", file)
    assert result.exit_code == 3
    assert why in result.stderr


def test_unreadable_statement_is_refused(doubtful: Program) -> None:
    for content in (b"", b"order_id,amount,currency,status\n", b'order_id,amount,currency,status\n"x"y,1,KES,paid\n'):
        (doubtful.home / "statement.csv").write_bytes(content)
        result = doubtful.run("resolve", "statement", doubtful.home / "payroll.csv", doubtful.home / "statement.csv")
        assert result.exit_code == 3, result.output
    assert (
        doubtful.run("resolve", "statement", doubtful.home / "payroll.csv", doubtful.home / "none.csv").exit_code == 3
    )
