"""Reads the acts of people from facts."""

from collections.abc import Iterator
from typing import assert_never

from paygw_batch.core.lifecycle import Concluded, Intended, Interrupted, Released, Replaced, Resolved, Returned
from paygw_batch.core.recorded_words import kept, kept_text
from paygw_batch.journal.facts.codec import BATCH_FORGOTTEN, BATCH_OPENED, decode, decode_batch, decode_forgotten
from paygw_batch.journal.values import HistoryEntry


def history_of(
    seq: int, at: str, kind: str, details: str, *, row: int | None, attempt: int | None
) -> Iterator[HistoryEntry]:
    """Yield the acts of people that one fact records; nothing for the facts of a run."""
    if kind == BATCH_OPENED:
        opened = decode_batch(details)
        name = opened.sheet_name
        said = kept("one_row", name) if opened.rows == 1 else kept("rows", opened.rows, name)
        yield HistoryEntry(seq, at, "opened", None, None, opened.by, said)
        for approval in opened.approvals:
            yield HistoryEntry(seq, at, "approved", None, None, "", approval)
        return
    if kind == BATCH_FORGOTTEN:
        forgotten = decode_forgotten(details)
        rows, before = forgotten.instructions, forgotten.before
        said = kept("forgotten_before", rows, before) if before else kept("forgotten_person", rows)
        yield HistoryEntry(seq, at, "forgotten", None, None, forgotten.by, said, forgotten.order)
        return
    fact = decode(kind, details)
    match fact:
        case Resolved():
            yield HistoryEntry(seq, at, kind, row, attempt, fact.by, kept_text(fact.evidence), fact.order)
        case Released():
            said = kept("next_attempt", fact.order_id)
            yield HistoryEntry(seq, at, kind, row, attempt, fact.by, said, fact.order)
        case Returned():
            yield HistoryEntry(seq, at, kind, row, attempt, "", kept_text(fact.evidence))
        case Replaced():
            yield HistoryEntry(seq, at, kind, row, attempt, "", kept("by_row", fact.row, fact.batch))
        case Intended() | Concluded() | Interrupted():
            return
        case _:
            assert_never(fact)
