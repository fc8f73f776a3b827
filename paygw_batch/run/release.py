"""Checks which rejected rows a person may release for another attempt."""

from collections.abc import Collection, Mapping, Sequence

from paygw_batch.clock import Now, timestamp
from paygw_batch.core.lifecycle import State
from paygw_batch.errors import UsageError
from paygw_batch.journal import BatchRecord, JournalReader, RowState, is_in_quarantine
from paygw_batch.language import mark, say
from paygw_batch.run.order import require_remembered
from paygw_batch.run.quarantine_clock import JournalClock, Quarantine
from paygw_batch.run.resolve import open_from, standings_of

_WHY_NOT = {
    State.READY: mark("Row {row} is ready already: the next run sends it, unless it is held."),
    State.IN_FLIGHT: (_IN_DOUBT := mark("Row {row} is in doubt and may have been paid: settle it first.")),
    State.IN_DOUBT: _IN_DOUBT,
    State.ACCEPTED: mark("Row {row} is accepted by the gateway, which may still pay it."),
    State.PAID: mark("Row {row} is paid."),
    State.RETURNED: mark("Row {row} was paid and came back: pay it under a new order id, in a new sheet."),
    State.REPLACED: mark("Row {row} was replaced by an amended row of a later sheet."),
}


def quarantined(
    journal: JournalReader, batch: BatchRecord, rows: Collection[int] | None = None, *, quarantine_h: float, now: Now
) -> Mapping[int, RowState]:
    """Return, by row, those of `rows` (None: all) rejected only on a person's word and not releasable yet."""
    clock = JournalClock.read(journal, now())
    until = clock.quarantine(quarantine_h).cutoff(clock.now)
    return {
        row.row: row
        for row in journal.rows(batch.number, states={State.REJECTED}, numbers=rows)
        if is_in_quarantine(row.quarantined_since, until)
    }


def waiting_sentence(row: RowState, quarantine: Quarantine) -> str:
    """Return why a row that a person called rejected cannot be released yet, and when it may be."""
    opens = open_from(row, quarantine)
    return say(
        "Row {row} is rejected on a person's word alone. Its attempt was sent at {intended_at} and could still "
        "be paid: it may be sent again from {opens} ({quarantine}).",
        row=row.row,
        intended_at=row.intended_at,
        opens=timestamp(opens) if opens else say("now"),
        quarantine=quarantine,
    )


def check_releasable(
    journal: JournalReader, batch: BatchRecord, rows: Sequence[int], *, quarantine_h: float, now: Now
) -> None:
    """Raise `UsageError`, with a sentence for each, if any of `rows` is not a releasable rejected row.

    Also raises if our clock is unreliable or people of the batch were forgotten, whichever rows are named.
    """
    require_remembered(journal, batch)
    clock = JournalClock.read(journal, now())
    clock.require_sound()
    waiting = quarantined(journal, batch, rows, quarantine_h=quarantine_h, now=now)
    found, wrong = standings_of(journal, batch, rows), []
    for row in sorted(set(rows)):
        standing = found.get(row)
        if standing is None:
            wrong.append(say("Row {row}: the batch has no such row.", row=row))
        elif (state := standing.state) is not State.REJECTED:
            wrong.append(say(_WHY_NOT[state], row=row))
        elif row in waiting:
            wrong.append(waiting_sentence(waiting[row], clock.quarantine(quarantine_h)))
    if wrong:
        raise UsageError(" ".join(wrong), hint=say("Nothing was released or sent. Only rejected rows can be retried."))
