"""Releasing: which rows a person may send once more."""

from collections.abc import Sequence

from paygw_batch.core.lifecycle import State
from paygw_batch.errors import UsageError
from paygw_batch.journal.port import BatchRecord, JournalReader
from paygw_batch.run.reconcile import shown_state

_WHY_NOT = {
    State.READY: "it is ready already: `paygw-batch resume` sends it, unless `status` says that it is held",
    State.IN_FLIGHT: "it is in doubt and may have been paid: settle it with `paygw-batch resolve` first",
    State.IN_DOUBT: "it is in doubt and may have been paid: settle it with `paygw-batch resolve` first",
    State.ACCEPTED: "the gateway has accepted it, and may still pay it",
    State.PAID: "it is paid",
    State.RETURNED: "it was paid and came back: pay it under an order id of its own, in a new sheet",
    State.REPLACED: "an amended row of a later sheet has taken its place",
}


def check_releasable(journal: JournalReader, batch: BatchRecord, rows: Sequence[int]) -> None:
    """Raise `UsageError`, with a sentence for each, when one of `rows` is not a rejected row of the batch."""
    wrong = []
    for row in sorted(set(rows)):
        found = journal.row(batch.number, row)
        if found is None:
            wrong.append(f"Row {row}: the batch has no such row.")
        elif (state := found[1].state) is not State.REJECTED:
            wrong.append(f"Row {row} is {shown_state(state).replace('_', ' ')}, not rejected: {_WHY_NOT[state]}.")
    if wrong:
        raise UsageError(" ".join(wrong), hint="Nothing was released or sent. Only rejected rows can be retried.")
