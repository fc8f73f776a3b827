"""Evidence counts once, and for its attempt: files that are carried out again, and words about an earlier attempt.

The judge is the sandbox's own record of what it took.
"""

import csv
from pathlib import Path

import pytest

from tests.support.program import Program, kenyan_rows, read_csv, sandbox_toml

LOSES_THE_ORDER = '[default]\nfault = "drop_before"\n'
TAKES_IT_AND_LOSES_THE_REPLY = '[default]\nfault = "drop_after"\n'
DECLINES = '[default]\nstatus = "declined"\ncommits = false\n'
PAYS = '[default]\nstatus = "approved"\n'
HEADING = "order_id,amount,currency,status"


def gateway(program: Program, behaviour: str) -> None:
    (program.home / "gateway.toml").write_text(behaviour)


def configure(program: Program, *, quarantine_h: float = 0, order_id: str = "suffix") -> None:
    program.config.write_text(
        sandbox_toml().replace("[submission]", f"[submission]\nquarantine_h = {quarantine_h}")
        + f'\n[sandbox]\nbehaviour = "gateway.toml"\n[retry]\norder_id = "{order_id}"\n'
    )


def submit(program: Program, behaviour: str, **settings: object) -> str:
    """Submit a sheet of one row, and return the batch."""
    configure(program, **settings)  # type: ignore[arg-type]  # a test's settings
    gateway(program, behaviour)
    return str(program.json("submit", program.sheet(kenyan_rows(1)))["batch"])


def times_committed(program: Program) -> int:
    return sum(line["committed"] == "yes" for line in program.record())


def states(program: Program, batch: str) -> dict[str, int]:
    found: dict[str, int] = program.json("status", batch)["states"]
    return found


def questions(program: Program, batch: str, answer: str) -> Path:
    """Write the question list, and answer it."""
    path = program.home / f"{answer}.csv"
    program.json("status", batch, "--in-doubt", "--out", path)
    lines = [{**line, "answer": answer} for line in read_csv(path)]
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    return path


def statement(program: Program, *lines: str, heading: str = HEADING, name: str = "statement.csv") -> Path:
    path = program.home / name
    path.write_text("\n".join([heading, *lines]) + "\n")
    return path


def in_doubt_once_more(program: Program, answers: str) -> tuple[str, Path]:
    """Lose an order, call it not received by a file, and send it again: now it is taken, and its reply is lost."""
    batch = submit(program, LOSES_THE_ORDER)
    if answers == "questions":
        file = questions(program, batch, "not-received")
    else:
        file = statement(program, "PAY-1,1500.50,KES,not-received", heading="order_id,amount,currency,answer")
    assert program.json("resolve", "statement", batch, file, "--yes")["resolved"] == 1
    gateway(program, TAKES_IT_AND_LOSES_THE_REPLY)
    program.json("resume", batch)
    assert (states(program, batch), times_committed(program)) == ({"in_doubt": 1}, 1)
    return batch, file


@pytest.mark.share(3)
@pytest.mark.parametrize("answers", ["questions", "by hand"])
@pytest.mark.parametrize("option", [(), ("--again",), ("--again", "--matching-only")])
def test_statement_reapplied_after_resume_pays_nothing_twice(
    program: Program, answers: str, option: tuple[str, ...]
) -> None:
    batch, file = in_doubt_once_more(program, answers)
    again = program.json("resolve", "statement", batch, file, "--yes", *option)
    assert again["exit_code"] in ({2} if not option else {3, 5})
    assert states(program, batch) == {"in_doubt": 1}
    program.json("resume", batch)
    assert times_committed(program) == 1


def test_reapplied_statement_is_refused_with_time_and_person(program: Program) -> None:
    batch = submit(program, TAKES_IT_AND_LOSES_THE_REPLY)
    file = statement(program, "PAY-1,1500.50,KES,approved")
    program.json("resolve", "statement", batch, file, "--yes", "--by", "Amina")
    refused = program.run("resolve", "statement", batch, file, "--yes")
    assert refused.exit_code == 2
    assert "statement.csv was already applied to this batch at 20" in refused.stderr
    assert "by Amina (login " in refused.stderr
    assert "--again" in refused.stderr
    previewed = program.run("resolve", "statement", batch, file)
    assert (previewed.exit_code, "was already applied to this batch at" in previewed.stdout) == (0, True)
    again = program.json("resolve", "statement", batch, file, "--yes", "--again")
    assert (again["resolved"], again["agreeing"]) == (0, 1)
    assert program.json("verify")["exit_code"] == 0


def test_statement_settling_nothing_may_be_applied_later(program: Program) -> None:
    batch = submit(program, TAKES_IT_AND_LOSES_THE_REPLY)
    file = statement(program, "PAY-1,1500.50,KES,approved", "NOBODY,1,KES,approved")
    assert program.json("resolve", "statement", batch, file, "--yes")["exit_code"] == 3
    assert program.json("resolve", "statement", batch, file, "--yes", "--matching-only")["resolved"] == 1


@pytest.mark.parametrize("word", ["declined", "approved"])
def test_reread_statement_ignores_rows_sent_since(program: Program, word: str) -> None:
    configure(program)
    gateway(program, PAYS)
    sheet = program.sheet(kenyan_rows(2))
    batch = str(program.json("submit", sheet, "--first", "1")["batch"])
    file = statement(program, "PAY-1,1500.50,KES,approved", f"PAY-2,1500.50,KES,{word}")
    program.json("resolve", "statement", batch, file, "--yes", "--matching-only")
    # A word about an order that never left holds the row until a person has looked.
    program.json("resolve", "row", batch, "3", "--as", "not-received", "--evidence", "Ticket 1")
    gateway(program, TAKES_IT_AND_LOSES_THE_REPLY)
    program.json("resume", batch)
    again = program.json("resolve", "statement", batch, file, "--yes", "--again", "--matching-only")
    assert (again["resolved"], states(program, batch)) == (0, {"paid": 1, "in_doubt": 1})
    (told,) = [one for one in again["differences"] if one["order_id"] == "PAY-2"]
    assert "was sent again after this file was first read" in told["message"]


def test_day_statement_applies_to_each_batch(program: Program) -> None:
    first = submit(program, TAKES_IT_AND_LOSES_THE_REPLY)
    second = program.json("submit", program.sheet(kenyan_rows(1, prefix="OTHER", amount="77"), name="other.csv"))
    file = statement(program, "PAY-1,1500.50,KES,approved", "OTHER-1,77,KES,approved")
    for batch in (first, str(second["batch"])):
        assert program.json("resolve", "statement", batch, file, "--yes")["resolved"] == 1
        assert states(program, batch) == {"paid": 1}


def released_under_the_same_id(program: Program) -> str:
    """Have an order declined and send it again under the same id: now it is taken, and its reply is lost."""
    batch = submit(program, DECLINES, order_id="same")
    gateway(program, TAKES_IT_AND_LOSES_THE_REPLY)
    program.json("retry", batch)
    assert (states(program, batch), times_committed(program)) == ({"in_doubt": 1}, 1)
    return batch


def pay_what_can_be_paid(program: Program, batch: str) -> None:
    gateway(program, PAYS)
    program.run("retry", batch)
    program.run("resume", batch)


def test_old_declined_line_does_not_settle_later_attempt(program: Program) -> None:
    batch = released_under_the_same_id(program)
    (difference,) = program.json(
        "resolve", "statement", batch, statement(program, "PAY-1,1500.50,KES,declined"), "--yes", "--matching-only"
    )["differences"]
    assert "the line does not say which attempt it is about" in difference["message"]
    assert "for the whole file" in difference["message"]
    pay_what_can_be_paid(program, batch)
    assert times_committed(program) == 1


def test_old_declined_line_does_not_settle_resumed_attempt(program: Program) -> None:
    batch, _ = in_doubt_once_more(program, "questions")
    file = statement(program, "PAY-1,1500.50,KES,declined")
    assert len(program.json("resolve", "statement", batch, file, "--yes", "--matching-only")["differences"]) == 1
    pay_what_can_be_paid(program, batch)
    assert times_committed(program) == 1


@pytest.mark.parametrize("option", [("--as-of", "2026-11-01T00:00:00Z"), ("--as-of", "2026-11-01"), ()])
def test_statement_line_older_than_attempt_settles_nothing(program: Program, option: tuple[str, ...]) -> None:
    batch = submit(program, TAKES_IT_AND_LOSES_THE_REPLY)
    line = "PAY-1,1500.50,KES,declined" + ("" if option else ",2026-11-01T10:00:00+03:00")
    file = statement(program, line, heading=HEADING if option else f"{HEADING},time")
    summary = program.json("resolve", "statement", batch, file, "--yes", *option)
    assert "is before the latest attempt (20" in summary["differences"][0]["message"]
    assert (summary["exit_code"], states(program, batch)) == (3, {"in_doubt": 1})


def now_as_text(program: Program, batch: str) -> str:
    """Return a time that is after the latest attempt and has come."""
    attempt: str = read_csv(questions(program, batch, "paid"))[0]["sent_at"]
    return attempt


@pytest.mark.parametrize("how", ["time", "as-of", "sent_at"])
def test_statement_line_as_recent_as_attempt_settles_row(program: Program, how: str) -> None:
    batch = released_under_the_same_id(program)
    at = now_as_text(program, batch)
    line, option = "PAY-1,1500.50,KES,approved", ("--as-of", at) if how == "as-of" else ()
    file = statement(program, line if option else f"{line},{at}", heading=HEADING if option else f"{HEADING},{how}")
    assert program.json("resolve", "statement", batch, file, "--yes", *option)["resolved"] == 1
    assert states(program, batch) == {"paid": 1}


def test_statement_day_without_hour_settles_no_attempt(program: Program) -> None:
    batch = released_under_the_same_id(program)
    file = statement(
        program, f"PAY-1,1500.50,KES,declined,{now_as_text(program, batch)[:10]}", heading=f"{HEADING},time"
    )
    (difference,) = program.json("resolve", "statement", batch, file, "--yes")["differences"]
    assert "does not say which attempt it is about" in difference["message"]
    assert states(program, batch) == {"in_doubt": 1}


@pytest.mark.parametrize(
    ("time", "why"),
    [
        ("20/11/2026 10:00", "is unclear"),
        ("2026-11-20T10:00:00", "is unclear"),
        ("2099-01-01T00:00:00Z", "is in the future"),
        ("2099-01-01", "is in the future"),
    ],
)
def test_statement_line_with_unclear_time_settles_nothing(program: Program, time: str, why: str) -> None:
    batch = submit(program, TAKES_IT_AND_LOSES_THE_REPLY)
    file = statement(program, f"PAY-1,1500.50,KES,approved,{time}", heading=f"{HEADING},time")
    assert why in program.json("resolve", "statement", batch, file, "--yes")["differences"][0]["message"]
    refused = program.run(
        "resolve", "statement", batch, statement(program, "PAY-1,1500.50,KES,approved"), "--as-of", time
    )
    assert (refused.exit_code, why in refused.stderr) == (2, True)
    assert states(program, batch) == {"in_doubt": 1}


def test_configuration_names_time_heading_of_statement(program: Program) -> None:
    batch = submit(program, TAKES_IT_AND_LOSES_THE_REPLY)
    program.config.write_text(f'{program.config.read_text()}\n[statement.columns]\n"Booked" = "time"\n')
    file = statement(program, "PAY-1,1500.50,KES,approved,2026-11-01T00:00:00Z", heading=f"{HEADING},Booked")
    assert len(program.json("resolve", "statement", batch, file, "--yes")["differences"]) == 1


@pytest.mark.parametrize("times", ["", ",2026-11-01T00:00:00Z"])
def test_older_paid_line_holds_row(program: Program, times: str) -> None:
    """It settles no later attempt, and it keeps the order from being sent when a person calls that one not received."""
    batch, _ = in_doubt_once_more(program, "questions")
    file = statement(program, f"PAY-1,1500.50,KES,approved{times}", heading=f"{HEADING},time" if times else HEADING)
    summary = program.json("resolve", "statement", batch, file, "--yes")
    assert (summary["resolved"], summary["held"], summary["exit_code"]) == (0, 1, 3)
    program.json("resolve", "row", batch, "2", "--as", "not-received", "--evidence", "Ticket 1")
    pay_what_can_be_paid(program, batch)
    assert times_committed(program) == 1
    assert "Held: the statement" in read_csv(program.home / "payroll.reconciliation.csv")[0]["message"]
    (told,) = program.json("status", batch)["needs_person"]
    assert told["held"]
    assert program.run("verify").exit_code in {0, 5}


def test_double_payment_under_same_id_is_reported(program: Program) -> None:
    batch = released_under_the_same_id(program)
    program.json("resolve", "row", batch, "2", "--as", "paid", "--evidence", "Ticket 1")
    file = statement(program, "PAY-1,1500.50,KES,approved,2026-11-01T00:00:00Z", heading=f"{HEADING},time")
    (difference,) = program.json("resolve", "statement", batch, file)["differences"]
    assert "the payee may be paid twice" in difference["message"]


def test_statement_options_without_statement_are_refused(program: Program) -> None:
    batch = submit(program, TAKES_IT_AND_LOSES_THE_REPLY)
    for option in (("--again",), ("--as-of", "2026-11-01")):
        assert program.run("resolve", "row", batch, "2", *option).exit_code == 2
