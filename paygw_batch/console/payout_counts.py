"""Caches the number of a payout's rows in each state, so that many polling tabs need only one count.

A count reads an index of all rows in the rarer states, which takes a tenth of a second for a million rows.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock

from paygw_batch.journal import BatchRecord, JournalReader, StateTally

OLD_S = 1.0
"""The age that a count may have for a polling tab, which polls again in two seconds."""
WINDOW_S = 30.0
"""The time over which the rate is measured. It is short because the speed of the gateway changes."""
_LEAST_S = 4.0


@dataclass(frozen=True, slots=True)
class _Count:
    head: str
    at_s: float
    tallies: Sequence[StateTally]


class PayoutCounts:
    """The latest count of each payout. Safe to use from several threads. Only one thread counts a payout at a time."""

    def __init__(self, *, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._found: dict[str, _Count] = {}
        self._seen: dict[tuple[str, str], tuple[float, str]] = {}
        self._answered: defaultdict[str, deque[tuple[float, int]]] = defaultdict(deque)
        self._locks: defaultdict[str, Lock] = defaultdict(Lock)

    def seen(self, batch: str, words: str) -> str | None:
        """Return the value that `note_seen` noted for a payout in the last second; None if there is none.

        The value changes with the payout, and `words` is the language of the tabs. If one tab has read the journal,
        others need not.
        """
        look = self._seen.get((batch, words))
        return look[1] if look is not None and self._monotonic_s() - look[0] < OLD_S else None

    def note_seen(self, batch: str, words: str, seen: str) -> None:
        self._seen[batch, words] = (self._monotonic_s(), seen)

    def rate(self, batch: str, answered: int) -> float:
        """Return how many rows a second were answered lately; 0 if unknown. `answered` is their present number."""
        with self._locks[batch]:
            looks, now_s = self._answered[batch], self._monotonic_s()
            while looks and (now_s - looks[0][0] > WINDOW_S or looks[0][1] > answered):
                looks.popleft()
            if not looks or now_s - looks[-1][0] >= OLD_S:
                looks.append((now_s, answered))
            passed_s = now_s - looks[0][0]
            return (answered - looks[0][1]) / passed_s if passed_s >= _LEAST_S else 0.0

    def tallies(self, journal: JournalReader, record: BatchRecord, *, is_poll: bool) -> Sequence[StateTally]:
        """Return the present counts of a payout from the journal. For a poll they may be up to a second old."""
        with self._locks[record.batch]:
            count, now_s = self._found.get(record.batch), self._monotonic_s()
            if count is not None and is_poll and now_s - count.at_s < OLD_S:
                return count.tallies
            head = journal.head().hash  # read before the count, so that later writes cause a new count
            if count is None or count.head != head:
                count = _Count(head, self._monotonic_s(), journal.tallies(record.number))
                self._found[record.batch] = count
            return count.tallies
