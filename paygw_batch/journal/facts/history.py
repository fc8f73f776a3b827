"""Reads the acts of people from facts."""

from collections.abc import Iterator
from typing import assert_never

from paygw_batch.core.lifecycle import (
    Concluded,
    Intended,
    Interrupted,
    Released,
    Replaced,
    Resolved,
    Returned,
)
from paygw_batch.journal.facts.codec import BATCH_OPENED, decode, decode_batch
from paygw_batch.journal.values import HistoryEntry


def history_of(
    seq: int, at: str, kind: str, details: str, *, row: int | None, attempt: int | None
) -> Iterator[HistoryEntry]:
    """Yield the acts of people that one fact records; nothing for the facts of a run."""
    if kind == BATCH_OPENED:
        opened = decode_batch(details)
        rows = f"{opened.rows} row{'' if opened.rows == 1 else 's'}"
        yield HistoryEntry(seq, at, "opened", None, None, opened.by, f"{rows} of {opened.sheet_name}")
        for sentence in opened.approvals:
            yield HistoryEntry(seq, at, "approved", None, None, "", sentence)
        return
    fact = decode(kind, details)
    match fact:
        case Resolved():
            yield HistoryEntry(seq, at, kind, row, attempt, fact.by, fact.evidence)
        case Released():
            yield HistoryEntry(seq, at, kind, row, attempt, fact.by, f"next attempt as {fact.order_id}")
        case Returned():
            yield HistoryEntry(seq, at, kind, row, attempt, "", fact.evidence)
        case Replaced():
            yield HistoryEntry(seq, at, kind, row, attempt, "", f"by row {fact.row} of batch {fact.batch}")
        case Intended() | Concluded() | Interrupted():
            return
        case _:
            assert_never(fact)
