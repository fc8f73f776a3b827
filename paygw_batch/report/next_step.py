"""Advises a person on the next step for a row, in plain words."""

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import assert_never

from paygw_batch.clock import timestamp
from paygw_batch.core.lifecycle import State
from paygw_batch.core.shown_states import INVALID, SHOWN_IN_DOUBT
from paygw_batch.countries.rules import Operation
from paygw_batch.journal import BatchRecord, Hold, JournalReader, RowStanding
from paygw_batch.report.reconcile import held_sentence
from paygw_batch.run.resolve import open_from

LONG_ACCEPTED_H = 24
"""How long after its attempt an accepted row without a final answer is worth a question."""
NEED_PERSON = frozenset({State.IN_FLIGHT, State.IN_DOUBT, State.REJECTED, State.RETURNED, State.ACCEPTED})
"""The states in which a row may wait for someone to find something out or to decide; accepted ones when it is long."""


def next_step(
    row: RowStanding, *, batch: str, verb: str, quarantine_h: float, now: datetime, hold: Hold | None = None
) -> str | None:
    """Return what a person should do about a row of `batch` (its id, shortened or not), or None: nothing.

    `verb` is that of the batch's operation; `hold` is what holds the row, where it is ready and something does.
    """
    if hold is not None:
        return _about_hold(row, hold, batch, verb, quarantine_h, now)
    match row.state:
        case State.IN_DOUBT:
            return _about_doubt(row, batch, verb, quarantine_h, now)
        case State.IN_FLIGHT:
            return f"A run is sending it. If none is on, it will be in doubt: `paygw-batch resume {batch}` says so."
        case State.ACCEPTED:
            return _about_accepted(row, batch, now)
        case State.REJECTED if row.is_rejected_by_person:
            return (
                "A person's word alone says that it is rejected: it may have been paid all the same. Make sure at the "
                f"gateway; then `paygw-batch retry {batch} --row {row.row}`, or correct the row and submit the sheet "
                f"with --amend{_later(row, quarantine_h, now)}."
            )
        case State.REJECTED:
            return (
                f"The gateway's answer is final: nothing was paid. If it can succeed now, `paygw-batch retry {batch} "
                f"--row {row.row}`; if the sheet was wrong, correct the row and submit the sheet with --amend."
            )
        case State.READY:
            marked = row.possible_duplicate_of
            again = f" It is a possible duplicate of attempt {marked}: be sure." if marked is not None else ""
            return f"`paygw-batch resume {batch}` sends it.{again}"
        case State.RETURNED:
            return f"The money was returned: find out why, and {verb} it under another order id in a new sheet."
        case State.PAID | State.REPLACED:
            return None
        case _:
            assert_never(row.state)


def is_long_accepted(row: RowStanding, now: datetime) -> bool:
    """Whether the gateway took a row long ago and has not said what became of it."""
    if row.state is not State.ACCEPTED or row.intended_at is None:
        return False
    return row.intended_at <= long_accepted_until(now)


def long_accepted_until(now: datetime) -> str:
    """Return the time of the last intents whose rows have waited so long by `now`."""
    return timestamp(now - timedelta(hours=LONG_ACCEPTED_H))


def _about_hold(row: RowStanding, hold: Hold, batch: str, verb: str, quarantine_h: float, now: datetime) -> str:
    return (
        f"{held_sentence(hold)} Do not {verb} it by other means. Ask the gateway what became of order "
        f"{row.sent_orderid or row.client_orderid}; then `paygw-batch resolve {batch} --row {row.row} --evidence TEXT "
        f"--as` paid, rejected (`retry` may then send it once more), or, if they never had it, "
        f"not-received{_later(row, quarantine_h, now)}."
    )


def _later(row: RowStanding, quarantine_h: float, now: datetime) -> str:
    opens = open_from(row, quarantine_h)
    return "" if opens is None or now >= opens else f" (not before {timestamp(opens)})"


def _about_doubt(row: RowStanding, batch: str, verb: str, quarantine_h: float, now: datetime) -> str:
    later = _later(row, quarantine_h, now)
    return (
        f"Do not {verb} it by other means. Ask the gateway what became of order {row.sent_orderid}, sent at "
        f"{row.intended_at}; then `paygw-batch resolve {batch} --row {row.row} --evidence TEXT --as` paid, rejected, "
        f"or, if they never had it, not-received{later}."
    )


def _about_accepted(row: RowStanding, batch: str, now: datetime) -> str | None:
    if not is_long_accepted(row, now):
        return None
    return (
        f"The gateway took it at {row.intended_at} and has not said since: ask after order {row.sent_orderid}; then "
        f"`paygw-batch resolve {batch} --row {row.row} --evidence TEXT --as` paid or rejected."
    )


@dataclass(frozen=True, slots=True)
class StateStep:
    """What a person should do about all rows of a batch that are in one state, and the commands for it."""

    sentence: str
    commands: Sequence[str] = ()


def step_of_state(state: str, batch: BatchRecord, operation: Operation, *, first_row: int) -> StateStep:
    """Return the next step for the rows of a batch in `state`, as people are shown it; `first_row` is one of them."""
    sheet = shlex.quote(batch.sheet_path or batch.sheet_name)
    match state:
        case State.IN_DOUBT:
            return StateStep(
                f"The gateway may have carried them out: do not {operation.verb} them by other means. The first "
                "command writes the questions for the gateway; the second takes in the file with their answers.",
                (
                    f"paygw-batch status {batch.batch} --in-doubt --out questions.csv",
                    f"paygw-batch resolve {batch.batch} --from answers.csv",
                ),
            )
        case State.REJECTED:
            return StateStep(
                "The final answer is no. If they can succeed now, the first command gives all of them another attempt, "
                "and the second one of them. If the sheet was wrong, correct their rows in it; then the third.",
                (
                    f"paygw-batch retry {batch.batch}",
                    f"paygw-batch retry {batch.batch} --row {first_row}",
                    f"paygw-batch {operation.command} {sheet} --amend",
                ),
            )
        case State.RETURNED:
            return StateStep(
                f"The money came back: find out why, and {operation.verb} it under another order id in a new sheet."
            )
        case State.READY:
            return StateStep("Nothing has left for them. This sends them.", (f"paygw-batch resume {batch.batch}",))
        case _ if state == INVALID:
            option = "" if operation.command == "submit" else f"--{operation.command} "
            return StateStep(
                "They have defects, and nothing was sent for them. This writes them out, to be mended and submitted.",
                (f"paygw-batch validate {option}{sheet} --rejects mended.xlsx",),
            )
        case _:
            return StateStep("What was said of them speaks against sending them: a person says what became of each.")


def next_steps(
    journal: JournalReader, batch: BatchRecord, rows: Collection[int], *, verb: str, quarantine_h: float
) -> Mapping[int, str]:
    """Return the next step of those of `rows` that need one of their own: in doubt, held, or rejected by a person.

    As of the time at which the batch was opened: a quarantine is named whether it is over or not, and what is written
    twice is the same twice.
    """
    holds, opened = journal.holds(batch.number), datetime.fromisoformat(batch.opened_at)
    steps = {}
    for row in journal.rows(batch.number, numbers=rows):
        hold = holds.get(row.row)
        if hold is None and row.state not in SHOWN_IN_DOUBT and not row.is_rejected_by_person:
            continue
        step = next_step(row, batch=batch.batch, verb=verb, quarantine_h=quarantine_h, now=opened, hold=hold)
        if step is not None:
            steps[row.row] = step
    return steps
