"""Remembers how many rows of a payout are in each state, so that many tabs that ask cost one count.

A count reads an index over all rows in the rarer states. Of a million rows it takes a tenth of a second.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock

from paygw_batch.journal import BatchRecord, JournalReader, StateTally

OLD_S = 1.0
"""A tab that asks by itself may be shown a count of so long ago: it asks again in two seconds."""


@dataclass(frozen=True, slots=True)
class _Count:
    head: str
    at_s: float
    tallies: Sequence[StateTally]


class PayoutCounts:
    """The latest count of each payout. It may be called from several threads: of one payout, one counts."""

    def __init__(self, *, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._found: dict[str, _Count] = {}
        self._locks: defaultdict[str, Lock] = defaultdict(Lock)

    def tallies(self, journal: JournalReader, record: BatchRecord, *, is_poll: bool) -> Sequence[StateTally]:
        """Return the counts of a payout as the journal has them now; for a poll, now or a second ago."""
        with self._locks[record.batch]:
            found, now_s = self._found.get(record.batch), self._monotonic_s()
            if found is not None and is_poll and now_s - found.at_s < OLD_S:
                return found.tallies
            head = journal.head().hash  # before the count: what is written meanwhile is counted again
            if found is None or found.head != head:
                found = _Count(head, self._monotonic_s(), journal.tallies(record.number))
                self._found[record.batch] = found
            return found.tallies
