"""Caches the number of a payout's rows in each state, so that many polling tabs cost one count.

A count reads an index over all rows in the rarer states: a tenth of a second for a million rows.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock

from paygw_batch.journal import BatchRecord, JournalReader, StateTally

OLD_S = 1.0
"""A polling tab may be shown a count of this age, because it polls again in two seconds."""
WINDOW_S = 30.0
"""The rate covers the last seconds, because a run's speed follows the gateway's."""
_LEAST_S = 4.0


@dataclass(frozen=True, slots=True)
class _Count:
    head: str
    at_s: float
    tallies: Sequence[StateTally]


class PayoutCounts:
    """The latest count of each payout. Safe from several threads; only one counts a payout at a time."""

    def __init__(self, *, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._found: dict[str, _Count] = {}
        self._seen: dict[tuple[str, str], tuple[float, str]] = {}
        self._answered: defaultdict[str, deque[tuple[float, int]]] = defaultdict(deque)
        self._locks: defaultdict[str, Lock] = defaultdict(Lock)

    def seen(self, batch: str, words: str) -> str | None:
        """Return the value by which tabs know a payout as of at most a second ago; None if it was not looked at.

        `words` is the tabs' language. While one tab reads the journal, the others read nothing.
        """
        look = self._seen.get((batch, words))
        return look[1] if look is not None and self._monotonic_s() - look[0] < OLD_S else None

    def note_seen(self, batch: str, words: str, seen: str) -> None:
        self._seen[batch, words] = (self._monotonic_s(), seen)

    def rate(self, batch: str, answered: int) -> float:
        """Return the recent number of answered rows a second; 0 while unknown. `answered` is their present number."""
        with self._locks[batch]:
            looks, now_s = self._answered[batch], self._monotonic_s()
            while looks and (now_s - looks[0][0] > WINDOW_S or looks[0][1] > answered):
                looks.popleft()
            if not looks or now_s - looks[-1][0] >= OLD_S:
                looks.append((now_s, answered))
            passed_s = now_s - looks[0][0]
            return (answered - looks[0][1]) / passed_s if passed_s >= _LEAST_S else 0.0

    def tallies(self, journal: JournalReader, record: BatchRecord, *, is_poll: bool) -> Sequence[StateTally]:
        """Return a payout's counts from the journal, as of now; for a poll, at most a second old."""
        with self._locks[record.batch]:
            count, now_s = self._found.get(record.batch), self._monotonic_s()
            if count is not None and is_poll and now_s - count.at_s < OLD_S:
                return count.tallies
            head = journal.head().hash  # before the count, so that later writes cause a new one
            if count is None or count.head != head:
                count = _Count(head, self._monotonic_s(), journal.tallies(record.number))
                self._found[record.batch] = count
            return count.tallies
