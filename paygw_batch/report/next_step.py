"""Advises a person on the next step for a row, in plain words."""

from datetime import datetime, timedelta
from typing import assert_never

from paygw_batch.clock import timestamp
from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.journal import Hold, RowStanding
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


def held_sentence(hold: Hold) -> str:
    """Return why a row is held, in plain words."""
    said = "is paid" if hold.said == OutcomeKind.PAID else "is with the gateway"
    return f"Held: by {hold.source.value} of {hold.taken_at} it {said} (evidence {hold.number}), and no run sends it."


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
