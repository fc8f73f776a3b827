"""Checks which rejected rows a person may release for another attempt."""

from collections.abc import Collection, Mapping, Sequence

from paygw_batch.clock import Now, timestamp
from paygw_batch.core.lifecycle import State
from paygw_batch.core.shown_states import shown_state, state_words
from paygw_batch.errors import UsageError
from paygw_batch.journal import BatchRecord, JournalReader, RowStanding
from paygw_batch.language import mark, say
from paygw_batch.run.quarantine_clock import Quarantine, quarantine_in_force, require_sound_clock
from paygw_batch.run.resolve import open_from, standings_of

_WHY_NOT = {
    State.READY: mark("it is ready already: `paygw-batch resume` sends it, unless `status` says that it is held"),
    State.IN_FLIGHT: mark("it is in doubt and may have been paid: settle it with `paygw-batch resolve` first"),
    State.IN_DOUBT: mark("it is in doubt and may have been paid: settle it with `paygw-batch resolve` first"),
    State.ACCEPTED: mark("the gateway has accepted it, and may still pay it"),
    State.PAID: mark("it is paid"),
    State.RETURNED: mark("it was paid and came back: pay it under an order id of its own, in a new sheet"),
    State.REPLACED: mark("an amended row of a later sheet has taken its place"),
}


def is_quarantined(row: RowStanding, until: str) -> bool:
    """Whether a person alone called a row rejected, and its attempt left after `until`: it waits for release."""
    return row.is_rejected_by_person and row.intended_at is not None and row.intended_at > until


def quarantined(
    journal: JournalReader, batch: BatchRecord, rows: Collection[int] | None = None, *, quarantine_h: float, now: Now
) -> Mapping[int, RowStanding]:
    """Return those of `rows` (None: all) that a person alone called rejected and that wait for release, by row."""
    until = quarantine_in_force(journal, quarantine_h, now()).left_until(now())
    return {
        row.row: row
        for row in journal.rows(batch.number, states={State.REJECTED}, numbers=rows)
        if is_quarantined(row, until)
    }


def waiting_sentence(row: RowStanding, quarantine: Quarantine) -> str:
    """Return why a row that a person called rejected is not released yet, and from when on it may be."""
    opens = open_from(row, quarantine)
    return say(
        "Row {row} is rejected on a person's word alone; its attempt left at {intended_at} and could "
        "still be paid: it may be sent again from {opens} on ({quarantine}).",
        row=row.row,
        intended_at=row.intended_at,
        opens=timestamp(opens) if opens else say("now"),
        quarantine=quarantine,
    )


def check_releasable(
    journal: JournalReader, batch: BatchRecord, rows: Sequence[int], *, quarantine_h: float, now: Now
) -> None:
    """Raise `UsageError`, with a sentence for each, when one of `rows` is not a rejected row that may be released.

    So it does, whatever the rows, where our clock is not to be believed.
    """
    require_sound_clock(journal, now())
    waiting = quarantined(journal, batch, rows, quarantine_h=quarantine_h, now=now)
    found, wrong = standings_of(journal, batch, rows), []
    for row in sorted(set(rows)):
        standing = found.get(row)
        if standing is None:
            wrong.append(say("Row {row}: the batch has no such row.", row=row))
        elif (state := standing.state) is not State.REJECTED:
            wrong.append(
                say(
                    "Row {row} is {state}, not rejected: {why_not}.",
                    row=row,
                    state=state_words(shown_state(state)),
                    why_not=say(_WHY_NOT[state]),
                )
            )
        elif row in waiting:
            wrong.append(waiting_sentence(waiting[row], quarantine_in_force(journal, quarantine_h, now())))
    if wrong:
        raise UsageError(" ".join(wrong), hint=say("Nothing was released or sent. Only rejected rows can be retried."))
