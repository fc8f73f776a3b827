"""Rows that a person calls rejected wait for the quarantine, and a wrong clock settles nothing."""

from datetime import timedelta
from pathlib import Path

import pytest

from paygw_batch.sandbox import verifier
from tests.support.clocks import SetClock
from tests.support.program import Program, kenyan_rows, read_csv, sandbox_toml

TAKES_IT_AND_LOSES_THE_REPLY = '[default]\nfault = "drop_after"\n'
LOSES_THE_ORDER = '[default]\nfault = "drop_before"\n'
ACCEPTS = '[default]\nstatus = "processing"\n'
PAYS = '[default]\nstatus = "approved"\n'
TICKET = ("--evidence", "Ticket 4711")
MARK = "possible duplicate of attempt 1"
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
"""The sandbox refuses signatures that are more than 5 minutes from its clock."""


def configure(program: Program, *, quarantine: timedelta = 24 * HOUR) -> None:
    text = sandbox_toml().replace("[submission]", f"[submission]\nquarantine_h = {quarantine / HOUR}")
    program.config.write_text(f'{text}\n[sandbox]\nbehaviour = "gateway.toml"\n')


def set_behaviour(program: Program, behaviour: str) -> None:
    (program.home / "gateway.toml").write_text(behaviour)


def submit_one_row(program: Program, behaviour: str) -> str:
    configure(program)
    set_behaviour(program, behaviour)
    return str(program.json("submit", program.sheet(kenyan_rows(1)))["batch"])


STATEMENTS = {
    "answer": ("answer", "rejected"),
    "status": ("status", "declined"),
    "answer and time": ("answer,time", "rejected,{at}"),
    "status and time": ("status,time", "declined,{at}"),
    "status and --as-of": ("status", "declined"),
}


def reject_by_person(program: Program, how: str = "row", behaviour: str = TAKES_IT_AND_LOSES_THE_REPLY) -> str:
    """Submit a row, and have a person reject it in a command or an unproven statement. Return the batch."""
    batch = submit_one_row(program, behaviour)
    if how == "row":
        program.json("resolve", "row", batch, "2", "--as", "rejected", *TICKET)
    else:
        questions, file = program.home / "questions.csv", program.home / "answers.csv"
        program.json("status", batch, "--in-doubt", "--out", questions)
        at, (columns, values) = read_csv(questions)[0]["sent_at"], STATEMENTS[how]
        file.write_text(f"order_id,amount,currency,{columns}\nPAY-1,1500.50,KES,{values.format(at=at)}\n")
        program.json("resolve", "statement", batch, file, "--yes", *(("--as-of", at) if "as-of" in how else ()))
    assert read_states(program, batch) == {"rejected": 1}
    return batch


def read_states(program: Program, batch: str) -> dict[str, int]:
    return dict(program.json("status", batch)["states"])


def reconciliation_line(program: Program, batch: str) -> dict[str, str]:
    out = program.home / "again.csv"
    program.json("reconcile", batch, "--out", out)
    return read_csv(out)[0]


def write_amended_sheet(program: Program) -> Path:
    return program.sheet(kenyan_rows(1, amount="1600"), name="amended.csv")


@pytest.mark.parametrize("how", ["row", *STATEMENTS])
def test_rejection_by_person_waits_for_quarantine(program: Program, how: str) -> None:
    batch = reject_by_person(program, how)
    set_behaviour(program, PAYS)
    summary = program.json("retry", batch)
    assert (summary["released"], summary["waiting"]) == (0, 1)
    named = program.run("retry", batch, "--row", "2")
    assert (named.exit_code, "You can send it again from 20" in named.stderr) == (2, True)
    assert "a quarantine of 24 h" in named.stderr
    assert program.json("submit", write_amended_sheet(program), "--amend")["exit_code"] == 3
    assert program.run("plan", write_amended_sheet(program), "--amend", "--out", program.home / "p.json").exit_code != 0
    assert [line["committed"] for line in program.record()] == ["yes"]
    assert MARK in reconciliation_line(program, batch)["message"]
    assert "A person, not the gateway, reported this row as rejected" in program.run("status", batch).stdout


@pytest.mark.parametrize("way", ["retry", "amend"])
def test_row_is_released_after_quarantine_and_marked(program: Program, set_clock: SetClock, way: str) -> None:
    batch = reject_by_person(program, behaviour=LOSES_THE_ORDER)
    configure(program, quarantine=3 * MINUTE)
    set_behaviour(program, PAYS)
    assert program.json("retry", batch)["released"] == 0
    set_clock(4 * MINUTE)
    if way == "retry":
        assert program.json("retry", batch, "--row", "2")["released"] == 1
    else:
        batch = str(program.json("submit", write_amended_sheet(program), "--amend")["batch"])
    line = reconciliation_line(program, batch)
    assert (line["state"], line["sent_orderid"]) == ("paid", "PAY-1-r2")
    assert MARK in line["message"]
    assert program.json("verify")["exit_code"] == 0


def test_accepted_row_settled_as_rejected_waits_for_quarantine(program: Program) -> None:
    assert program.json("retry", reject_by_person(program, behaviour=ACCEPTS))["released"] == 0


def test_quarantine_cannot_be_set_by_environment(program: Program) -> None:
    batch = submit_one_row(program, TAKES_IT_AND_LOSES_THE_REPLY)
    result = program.run("resolve", "row", batch, "2", "--as", "not-received", *TICKET, PAYGW_QUARANTINE_H="0")
    assert (result.exit_code, "quarantine_h cannot be set by an environment variable" in result.stderr) == (2, True)
    assert read_states(program, batch) == {"in_doubt": 1}


def assert_refused_by_clock(program: Program, batch: str, why: str) -> None:
    """Assert that the clock is reported, and that nothing guarded by the quarantine is done."""
    file = program.home / "statement.csv"
    file.write_text("order_id,amount,currency,status\nPAY-1,1500.50,KES,declined\n")
    for arguments in (
        ("resolve", "row", batch, "2", "--as", "rejected", *TICKET),
        ("resolve", "row", batch, "2", "--as", "not-received", *TICKET),
        ("resolve", "statement", batch, str(file), "--yes"),
        ("retry", batch),
    ):
        result = program.run(*arguments)
        assert result.exit_code == 2, arguments
        assert (why in result.stderr, "Correct the clock" in result.stderr) == (True, True)
    (clock_check,) = [check for check in program.json("doctor")["checks"] if check["check"] == "clock"]
    assert (clock_check["state"], why in clock_check["found"]) == ("wrong", True)


def test_settling_is_refused_after_clock_moved_back(program: Program, set_clock: SetClock) -> None:
    batch = submit_one_row(program, TAKES_IT_AND_LOSES_THE_REPLY)
    set_clock(-HOUR)
    assert_refused_by_clock(program, batch, "The clock was set back")
    assert "The clock was set back" in program.run("resume", batch).stdout
    set_clock(timedelta())
    assert read_states(program, batch) == {"in_doubt": 1}
    program.json("resolve", "row", batch, "2", "--as", "rejected", *TICKET)
    assert read_states(program, batch) == {"rejected": 1}


def test_sending_is_refused_after_clock_moved_back(program: Program, set_clock: SetClock) -> None:
    submit_one_row(program, PAYS)
    set_clock(-HOUR)
    summary = program.json("submit", program.sheet(kenyan_rows(1, prefix="NEXT", amount="77"), name="next.csv"))
    assert (summary["exit_code"], summary["states"], summary["sent_this_run"]) == (6, {"ready": 1}, 0)
    assert "The clock was set back" in summary["message"]
    set_clock(timedelta())
    assert program.json("resume", summary["batch"])["states"] == {"paid": 1}


@pytest.mark.parametrize("minutes", [9, 11])
def test_settling_is_refused_while_clock_is_ahead(program: Program, set_clock: SetClock, minutes: int) -> None:
    batch = submit_one_row(program, TAKES_IT_AND_LOSES_THE_REPLY)
    set_behaviour(program, PAYS)
    set_clock(minutes * MINUTE)
    program.json("submit", program.sheet(kenyan_rows(1, prefix="NEXT", amount="77"), name="next.csv"))
    if minutes > 10:
        assert_refused_by_clock(program, batch, "11 minutes ahead of the gateway's")
        assert read_states(program, batch) == {"in_doubt": 1}
        assert program.run("verify").exit_code in {0, 5}
        set_clock(2 * MINUTE)
        more = program.sheet(kenyan_rows(1, prefix="MORE", amount="78"), name="more.csv")
        assert program.json("submit", more)["states"] == {"paid": 1}
        set_clock(12 * MINUTE)  # as late as the latest time in the journal
    assert program.json("resolve", "row", batch, "2", "--as", "rejected", *TICKET)["resolved"] == 1


def test_rows_sent_with_slow_clock_wait_longer(
    program: Program, set_clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifier, "CLOCK_TOLERANCE_S", 99_999)
    set_clock(-2 * HOUR - MINUTE / 2)
    batch = submit_one_row(program, LOSES_THE_ORDER)
    set_behaviour(program, ACCEPTS)
    more = program.json("submit", program.sheet(kenyan_rows(9, prefix="NEXT", amount="77"), name="next.csv"))
    assert (more["exit_code"], more["sent_this_run"]) == (6, 1)
    assert "The clock is 120 minutes behind the gateway's" in more["message"]
    set_clock(timedelta())
    configure(program, quarantine=HOUR)
    refused = program.run("resolve", "row", batch, "2", "--as", "not-received", *TICKET)
    reason = "(a quarantine of 1 h, and the clock was up to 120 minutes behind the gateway's clock)"
    assert (refused.exit_code, reason in refused.stderr) == (2, True)
    program.json("resolve", "row", batch, "2", "--as", "rejected", *TICKET)
    assert program.json("retry", batch)["released"] == 0
    assert program.json("resume", more["batch"])["sent_this_run"] == 8  # the correct clock is recorded as well
    assert program.json("retry", batch)["released"] == 0
    set_clock(61 * MINUTE)
    assert program.json("retry", batch)["released"] == 1


def test_amending_is_refused_after_clock_moved_back(program: Program, set_clock: SetClock) -> None:
    submit_one_row(program, '[default]\nstatus = "declined"\ncommits = false\n')
    set_clock(-HOUR)
    result = program.run("submit", write_amended_sheet(program), "--amend")
    assert (result.exit_code, "The clock was set back" in result.stderr) == (2, True)
