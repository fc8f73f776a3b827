"""Evidence counts once, and only for its attempt: reapplied files, and evidence about earlier attempts.

The judge is the sandbox's own record.
"""

from pathlib import Path

import pytest

from tests.cli.sheets import answer_questions
from tests.support.program import Program, kenyan_rows, read_csv, sandbox_toml

LOSES_THE_ORDER = '[default]\nfault = "drop_before"\n'
TAKES_IT_AND_LOSES_THE_REPLY = '[default]\nfault = "drop_after"\n'
DECLINES = '[default]\nstatus = "declined"\ncommits = false\n'
PAYS = '[default]\nstatus = "approved"\n'
HEADING = "order_id,amount,currency,status"


def set_behaviour(program: Program, behaviour: str) -> None:
    (program.home / "gateway.toml").write_text(behaviour)


def submit_one_row(program: Program, behaviour: str, order_id: str = "suffix") -> str:
    program.config.write_text(
        sandbox_toml().replace("[submission]", "[submission]\nquarantine_h = 0")
        + f'\n[sandbox]\nbehaviour = "gateway.toml"\n[retry]\norder_id = "{order_id}"\n'
    )
    set_behaviour(program, behaviour)
    return str(program.json("submit", program.sheet(kenyan_rows(1)))["batch"])


def commit_count(program: Program) -> int:
    return sum(line["committed"] == "yes" for line in program.record())


def write_statement(program: Program, *lines: str, heading: str = HEADING) -> Path:
    return program.sheet([*lines], "statement.csv", heading)


def lose_second_attempt(program: Program, answers: str) -> tuple[str, Path]:
    """Lose an order, settle it as not received by a file, and send it again, this time accepted without a reply."""
    batch = submit_one_row(program, LOSES_THE_ORDER)
    if answers == "questions":
        file = program.home / "questions.csv"
        program.json("status", batch, "--in-doubt", "--out", file)
        answer_questions(file, "not-received")
    else:
        file = write_statement(program, "PAY-1,1500.50,KES,not-received", heading="order_id,amount,currency,answer")
    assert program.json("resolve", "statement", batch, file, "--yes")["resolved"] == 1
    set_behaviour(program, TAKES_IT_AND_LOSES_THE_REPLY)
    program.json("resume", batch)
    assert (program.states(), commit_count(program)) == ({"in_doubt": 1}, 1)
    return batch, file


@pytest.mark.share(3)
@pytest.mark.parametrize("answers", ["questions", "by hand"])
@pytest.mark.parametrize("option", [(), ("--again",), ("--again", "--matching-only")])
def test_reapplying_statement_after_resume_pays_nothing_twice(
    program: Program, answers: str, option: tuple[str, ...]
) -> None:
    batch, file = lose_second_attempt(program, answers)
    again = program.json("resolve", "statement", batch, file, "--yes", *option)
    assert again["exit_code"] in ({2} if not option else {3, 5})
    assert program.states() == {"in_doubt": 1}
    program.json("resume", batch)
    assert commit_count(program) == 1


def test_reapplied_statement_is_refused_with_time_and_person(program: Program) -> None:
    batch = submit_one_row(program, TAKES_IT_AND_LOSES_THE_REPLY)
    file = write_statement(program, "PAY-1,1500.50,KES,approved")
    program.json("resolve", "statement", batch, file, "--yes", "--by", "Amina")
    refused = program.run("resolve", "statement", batch, file, "--yes")
    assert (refused.exit_code, "already applied statement.csv to this batch at 20" in refused.stderr) == (2, True)
    assert "Amina (login " in refused.stderr
    assert "--again" in refused.stderr
    previewed = program.run("resolve", "statement", batch, file)
    assert (previewed.exit_code, "statement.csv to this batch at" in previewed.stdout) == (0, True)
    again = program.json("resolve", "statement", batch, file, "--yes", "--again")
    assert (again["resolved"], again["agreeing"]) == (0, 1)
    assert program.json("verify")["exit_code"] == 0


def resume_and_retry(program: Program, batch: str) -> None:
    set_behaviour(program, PAYS)
    program.run("retry", batch)
    program.run("resume", batch)


def test_declined_line_does_not_settle_later_attempt(program: Program) -> None:
    """An order is declined and sent again under the same id, this time accepted without a reply."""
    batch = submit_one_row(program, DECLINES, order_id="same")
    set_behaviour(program, TAKES_IT_AND_LOSES_THE_REPLY)
    program.json("retry", batch)
    assert (program.states(), commit_count(program)) == ({"in_doubt": 1}, 1)
    file = write_statement(program, "PAY-1,1500.50,KES,declined")
    (difference,) = program.json("resolve", "statement", batch, file, "--yes", "--matching-only")["differences"]
    for part in ("The line does not say which attempt it is about", "for the whole file"):
        assert part in difference["message"]
    resume_and_retry(program, batch)
    assert commit_count(program) == 1


def test_statement_line_older_than_attempt_settles_nothing(program: Program) -> None:
    batch = submit_one_row(program, TAKES_IT_AND_LOSES_THE_REPLY)
    for option in (("--as-of", "2026-11-01T00:00:00Z"), ("--as-of", "2026-11-01"), ()):
        line = "PAY-1,1500.50,KES,declined" + ("" if option else ",2026-11-01T10:00:00+03:00")
        file = write_statement(program, line, heading=HEADING if option else f"{HEADING},time")
        summary = program.json("resolve", "statement", batch, file, "--yes", *option)
        assert "is before the latest attempt (20" in summary["differences"][0]["message"]
        assert (summary["exit_code"], program.states()) == (3, {"in_doubt": 1})


@pytest.mark.parametrize("times", ["", ",2026-11-01T00:00:00Z"])
def test_paid_line_older_than_attempt_holds_row(program: Program, times: str) -> None:
    """It settles no later attempt, and it keeps the order from being sent when a person calls that one not received."""
    batch, _ = lose_second_attempt(program, "questions")
    heading = f"{HEADING},time" if times else HEADING
    file = write_statement(program, f"PAY-1,1500.50,KES,approved{times}", heading=heading)
    summary = program.json("resolve", "statement", batch, file, "--yes")
    assert (summary["resolved"], summary["held"], summary["exit_code"]) == (0, 1, 3)
    program.json("resolve", "row", batch, "2", "--as", "not-received", "--evidence", "Ticket 1")
    resume_and_retry(program, batch)
    assert commit_count(program) == 1
    assert "Held: the statement" in read_csv(program.home / "payroll.reconciliation.csv")[0]["message"]
    (open_row,) = program.json("status", batch)["needs_person"]
    assert open_row["held"]
    assert program.run("verify").exit_code in {0, 5}


def test_statement_may_be_applied_after_wrong_uses(program: Program) -> None:
    batch = submit_one_row(program, TAKES_IT_AND_LOSES_THE_REPLY)
    for option in (("--again",), ("--as-of", "2026-11-01")):
        assert program.run("resolve", "row", batch, "2", *option).exit_code == 2
    file = write_statement(program, "PAY-1,1500.50,KES,approved")
    for time, why in (("20/11/2026 10:00", "is unclear"), ("2099-01-01", "is in the future")):
        refused = program.run("resolve", "statement", batch, file, "--as-of", time)
        assert (refused.exit_code, why in refused.stderr) == (2, True)
    for lines in (["NOBODY,1,KES,approved"], ["PAY-1,1500.50,KES,approved", "NOBODY,1,KES,approved"]):
        file = write_statement(program, *lines)
        summary = program.json("resolve", "statement", batch, file, "--yes")
        assert (summary["exit_code"], "--matching-only" in summary["message"]) == (3, len(lines) > 1)
    assert program.json("resolve", "statement", batch, file, "--yes", "--matching-only")["resolved"] == 1
