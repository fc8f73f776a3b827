"""Evidence counts once, and only for its attempt: reapplied files, and evidence about earlier attempts.

The judge is the sandbox's own record.
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


def set_behaviour(program: Program, behaviour: str) -> None:
    (program.home / "gateway.toml").write_text(behaviour)


def configure(program: Program, *, quarantine_h: float = 0, order_id: str = "suffix") -> None:
    program.config.write_text(
        sandbox_toml().replace("[submission]", f"[submission]\nquarantine_h = {quarantine_h}")
        + f'\n[sandbox]\nbehaviour = "gateway.toml"\n[retry]\norder_id = "{order_id}"\n'
    )


def submit_one_row(program: Program, behaviour: str, **settings: object) -> str:
    """Submit a sheet with one row, and return the batch."""
    configure(program, **settings)  # type: ignore[arg-type]  # a test's settings
    set_behaviour(program, behaviour)
    return str(program.json("submit", program.sheet(kenyan_rows(1)))["batch"])


def commit_count(program: Program) -> int:
    return sum(line["committed"] == "yes" for line in program.record())


def read_states(program: Program, batch: str) -> dict[str, int]:
    found: dict[str, int] = program.json("status", batch)["states"]
    return found


def write_answers(program: Program, batch: str, answer: str) -> Path:
    """Write the question list with answers."""
    path = program.home / f"{answer}.csv"
    program.json("status", batch, "--in-doubt", "--out", path)
    lines = [{**line, "answer": answer} for line in read_csv(path)]
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    return path


def write_statement(program: Program, *lines: str, heading: str = HEADING, name: str = "statement.csv") -> Path:
    path = program.home / name
    path.write_text("\n".join([heading, *lines]) + "\n")
    return path


def lose_second_attempt(program: Program, answers: str) -> tuple[str, Path]:
    """Lose an order, settle it as not received by a file, and send it again, this time accepted without a reply."""
    batch = submit_one_row(program, LOSES_THE_ORDER)
    if answers == "questions":
        file = write_answers(program, batch, "not-received")
    else:
        file = write_statement(program, "PAY-1,1500.50,KES,not-received", heading="order_id,amount,currency,answer")
    assert program.json("resolve", "statement", batch, file, "--yes")["resolved"] == 1
    set_behaviour(program, TAKES_IT_AND_LOSES_THE_REPLY)
    program.json("resume", batch)
    assert (read_states(program, batch), commit_count(program)) == ({"in_doubt": 1}, 1)
    return batch, file


@pytest.mark.share(3)
@pytest.mark.parametrize("answers", ["questions", "by hand"])
@pytest.mark.parametrize("option", [(), ("--again",), ("--again", "--matching-only")])
def test_statement_reapplied_after_resume_pays_nothing_twice(
    program: Program, answers: str, option: tuple[str, ...]
) -> None:
    batch, file = lose_second_attempt(program, answers)
    again = program.json("resolve", "statement", batch, file, "--yes", *option)
    assert again["exit_code"] in ({2} if not option else {3, 5})
    assert read_states(program, batch) == {"in_doubt": 1}
    program.json("resume", batch)
    assert commit_count(program) == 1


def test_reapplied_statement_is_refused_with_time_and_person(program: Program) -> None:
    batch = submit_one_row(program, TAKES_IT_AND_LOSES_THE_REPLY)
    file = write_statement(program, "PAY-1,1500.50,KES,approved")
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


def test_statement_without_effect_may_be_applied_later(program: Program) -> None:
    batch = submit_one_row(program, TAKES_IT_AND_LOSES_THE_REPLY)
    file = write_statement(program, "PAY-1,1500.50,KES,approved", "NOBODY,1,KES,approved")
    assert program.json("resolve", "statement", batch, file, "--yes")["exit_code"] == 3
    assert program.json("resolve", "statement", batch, file, "--yes", "--matching-only")["resolved"] == 1


@pytest.mark.parametrize("word", ["declined", "approved"])
def test_reread_statement_ignores_later_attempts(program: Program, word: str) -> None:
    configure(program)
    set_behaviour(program, PAYS)
    sheet = program.sheet(kenyan_rows(2))
    batch = str(program.json("submit", sheet, "--first", "1")["batch"])
    file = write_statement(program, "PAY-1,1500.50,KES,approved", f"PAY-2,1500.50,KES,{word}")
    program.json("resolve", "statement", batch, file, "--yes", "--matching-only")
    # Evidence about an order that was never sent holds the row until a person has checked it.
    program.json("resolve", "row", batch, "3", "--as", "not-received", "--evidence", "Ticket 1")
    set_behaviour(program, TAKES_IT_AND_LOSES_THE_REPLY)
    program.json("resume", batch)
    again = program.json("resolve", "statement", batch, file, "--yes", "--again", "--matching-only")
    assert (again["resolved"], read_states(program, batch)) == (0, {"paid": 1, "in_doubt": 1})
    (difference_found,) = [difference for difference in again["differences"] if difference["order_id"] == "PAY-2"]
    assert "was sent again after this file was first read" in difference_found["message"]


def test_day_statement_applies_to_each_batch(program: Program) -> None:
    first = submit_one_row(program, TAKES_IT_AND_LOSES_THE_REPLY)
    second = program.json("submit", program.sheet(kenyan_rows(1, prefix="OTHER", amount="77"), name="other.csv"))
    file = write_statement(program, "PAY-1,1500.50,KES,approved", "OTHER-1,77,KES,approved")
    for batch in (first, str(second["batch"])):
        assert program.json("resolve", "statement", batch, file, "--yes")["resolved"] == 1
        assert read_states(program, batch) == {"paid": 1}


def release_with_same_id(program: Program) -> str:
    """Have an order declined and send it again under the same id, this time accepted without a reply."""
    batch = submit_one_row(program, DECLINES, order_id="same")
    set_behaviour(program, TAKES_IT_AND_LOSES_THE_REPLY)
    program.json("retry", batch)
    assert (read_states(program, batch), commit_count(program)) == ({"in_doubt": 1}, 1)
    return batch


def resume_and_retry(program: Program, batch: str) -> None:
    set_behaviour(program, PAYS)
    program.run("retry", batch)
    program.run("resume", batch)


def test_declined_line_does_not_settle_later_attempt(program: Program) -> None:
    batch = release_with_same_id(program)
    (difference,) = program.json(
        "resolve",
        "statement",
        batch,
        write_statement(program, "PAY-1,1500.50,KES,declined"),
        "--yes",
        "--matching-only",
    )["differences"]
    assert "the line does not say which attempt it is about" in difference["message"]
    assert "for the whole file" in difference["message"]
    resume_and_retry(program, batch)
    assert commit_count(program) == 1


def test_declined_line_does_not_settle_resumed_attempt(program: Program) -> None:
    batch, _ = lose_second_attempt(program, "questions")
    file = write_statement(program, "PAY-1,1500.50,KES,declined")
    assert len(program.json("resolve", "statement", batch, file, "--yes", "--matching-only")["differences"]) == 1
    resume_and_retry(program, batch)
    assert commit_count(program) == 1


@pytest.mark.share(3)
@pytest.mark.parametrize("option", [("--as-of", "2026-11-01T00:00:00Z"), ("--as-of", "2026-11-01"), ()])
def test_statement_line_older_than_attempt_settles_nothing(program: Program, option: tuple[str, ...]) -> None:
    batch = submit_one_row(program, TAKES_IT_AND_LOSES_THE_REPLY)
    line = "PAY-1,1500.50,KES,declined" + ("" if option else ",2026-11-01T10:00:00+03:00")
    file = write_statement(program, line, heading=HEADING if option else f"{HEADING},time")
    summary = program.json("resolve", "statement", batch, file, "--yes", *option)
    assert "is before the latest attempt (20" in summary["differences"][0]["message"]
    assert (summary["exit_code"], read_states(program, batch)) == (3, {"in_doubt": 1})


def wait_for_attempt_time(program: Program, batch: str) -> str:
    """Return the current time, which is later than the latest attempt."""
    attempt: str = read_csv(write_answers(program, batch, "paid"))[0]["sent_at"]
    return attempt


@pytest.mark.share(3)
@pytest.mark.parametrize("how", ["time", "as-of", "sent_at"])
def test_statement_line_as_recent_as_attempt_settles_row(program: Program, how: str) -> None:
    batch = release_with_same_id(program)
    at = wait_for_attempt_time(program, batch)
    line, option = "PAY-1,1500.50,KES,approved", ("--as-of", at) if how == "as-of" else ()
    file = write_statement(
        program, line if option else f"{line},{at}", heading=HEADING if option else f"{HEADING},{how}"
    )
    assert program.json("resolve", "statement", batch, file, "--yes", *option)["resolved"] == 1
    assert read_states(program, batch) == {"paid": 1}


def test_statement_date_without_time_settles_nothing(program: Program) -> None:
    batch = release_with_same_id(program)
    file = write_statement(
        program, f"PAY-1,1500.50,KES,declined,{wait_for_attempt_time(program, batch)[:10]}", heading=f"{HEADING},time"
    )
    (difference,) = program.json("resolve", "statement", batch, file, "--yes")["differences"]
    assert "does not say which attempt it is about" in difference["message"]
    assert read_states(program, batch) == {"in_doubt": 1}


@pytest.mark.share(4)
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
    batch = submit_one_row(program, TAKES_IT_AND_LOSES_THE_REPLY)
    file = write_statement(program, f"PAY-1,1500.50,KES,approved,{time}", heading=f"{HEADING},time")
    assert why in program.json("resolve", "statement", batch, file, "--yes")["differences"][0]["message"]
    refused = program.run(
        "resolve", "statement", batch, write_statement(program, "PAY-1,1500.50,KES,approved"), "--as-of", time
    )
    assert (refused.exit_code, why in refused.stderr) == (2, True)
    assert read_states(program, batch) == {"in_doubt": 1}


def test_statement_time_heading_can_be_configured(program: Program) -> None:
    batch = submit_one_row(program, TAKES_IT_AND_LOSES_THE_REPLY)
    program.config.write_text(f'{program.config.read_text()}\n[statement.columns]\n"Booked" = "time"\n')
    file = write_statement(program, "PAY-1,1500.50,KES,approved,2026-11-01T00:00:00Z", heading=f"{HEADING},Booked")
    assert len(program.json("resolve", "statement", batch, file, "--yes")["differences"]) == 1


@pytest.mark.parametrize("times", ["", ",2026-11-01T00:00:00Z"])
def test_paid_line_older_than_attempt_holds_row(program: Program, times: str) -> None:
    """It settles no later attempt, and it keeps the order from being sent when a person calls that one not received."""
    batch, _ = lose_second_attempt(program, "questions")
    file = write_statement(
        program, f"PAY-1,1500.50,KES,approved{times}", heading=f"{HEADING},time" if times else HEADING
    )
    summary = program.json("resolve", "statement", batch, file, "--yes")
    assert (summary["resolved"], summary["held"], summary["exit_code"]) == (0, 1, 3)
    program.json("resolve", "row", batch, "2", "--as", "not-received", "--evidence", "Ticket 1")
    resume_and_retry(program, batch)
    assert commit_count(program) == 1
    assert "Held: the statement" in read_csv(program.home / "payroll.reconciliation.csv")[0]["message"]
    (open_row,) = program.json("status", batch)["needs_person"]
    assert open_row["held"]
    assert program.run("verify").exit_code in {0, 5}


def test_double_payment_under_same_id_is_reported(program: Program) -> None:
    batch = release_with_same_id(program)
    program.json("resolve", "row", batch, "2", "--as", "paid", "--evidence", "Ticket 1")
    file = write_statement(program, "PAY-1,1500.50,KES,approved,2026-11-01T00:00:00Z", heading=f"{HEADING},time")
    (difference,) = program.json("resolve", "statement", batch, file)["differences"]
    assert "the payee may be paid twice" in difference["message"]


def test_statement_options_without_statement_are_refused(program: Program) -> None:
    batch = submit_one_row(program, TAKES_IT_AND_LOSES_THE_REPLY)
    for option in (("--again",), ("--as-of", "2026-11-01")):
        assert program.run("resolve", "row", batch, "2", *option).exit_code == 2
