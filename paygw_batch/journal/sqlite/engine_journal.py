"""Gives an engine the journal without holding up its event loop.

One call at a time, in the order asked. Only the wait for a slow disk happens in a thread: the rest of an append is made
in the event loop, because two threads that both compute hand the interpreter to and fro at every statement, and that
costs more than it spares (docs/decisions/0051). A quick disk is waited for in the event loop as well: the thread would
take longer to get the interpreter than the disk takes (the same decision).
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

from paygw_batch.core.evidence import Finding
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.journal.journal_thread import JournalThread
from paygw_batch.journal.values import Due, Entry, MoveResult

T = TypeVar("T")

QUICK_S = 0.001
"""A disk is quick where a commit takes less than this, on an average over the last ones."""
_COMMITS_AVERAGED = 16
_FIRST_AVERAGE_S = 2 * QUICK_S
"""A run begins with commits in the thread; some twelve quick ones take the average below `QUICK_S`."""


class CommittingJournal(Protocol):
    """The calls of a `SqliteJournal` that an engine's journal makes."""

    def due(self, batch: int, *, after_row: int, limit: int) -> Sequence[Due]:
        """Return up to `limit` rows above `after_row` that may be sent."""
        ...

    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Make facts durable in one transaction."""
        ...

    def can_write(self) -> bool:
        """Whether no write has failed, and the journal is this process's."""
        ...

    def stage(self, entries: Sequence[Entry]) -> Callable[[], Sequence[MoveResult]]:
        """Make an append but for its commit, and return the call that commits."""
        ...

    def drain_inbox(self, words: Mapping[str, OutcomeKind], *, at: str) -> Counter[Finding]:
        """Take in the notifications that wait in the inbox."""
        ...


class SqliteEngineJournal:
    """Implements `EngineJournal` on a journal in a file, for one run."""

    def __init__(self, journal: CommittingJournal, clock: Callable[[], float] = time.perf_counter) -> None:
        self._journal = journal
        self._clock = clock
        self._commit_s = _FIRST_AVERAGE_S
        self._thread = JournalThread()
        self._turn = asyncio.Lock()
        self._last_row: dict[int, int] = {}

    async def due(self, batch: int, *, limit: int) -> Sequence[Due]:
        """Return the next rows of a batch that may be sent, `limit` at most."""
        after = self._last_row.get(batch, 0)
        async with self._turn:
            page = await self._thread.call(partial(self._journal.due, batch, after_row=after, limit=limit))
        self._last_row[batch] = page[-1].row if page else after
        return page

    async def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Stage facts here and now, and commit them: here where the disk is quick, and otherwise in the thread."""
        async with self._turn:
            commit = partial(self._timed, self._journal.stage(entries))
            return commit() if self._commit_s < QUICK_S else await self._thread.call(commit)

    def may_leave(self, age_s: float) -> bool:  # noqa: ARG002 (the port's)
        """Whether no write has failed. The lock is this process's for as long as it lives, frozen or not."""
        return self._journal.can_write()

    async def drain_inbox(self, words: Mapping[str, OutcomeKind], *, at: str) -> Counter[Finding]:
        """Take in the notifications that wait in the inbox."""
        async with self._turn:
            return await self._thread.call(partial(self._journal.drain_inbox, words, at=at))

    def close(self) -> None:
        """End the thread."""
        self._thread.close()

    def _timed(self, commit: Callable[[], T]) -> T:
        """Make a commit, and note how long it took. One is made at a time."""
        began_s = self._clock()
        try:
            return commit()
        finally:
            self._commit_s += (self._clock() - began_s - self._commit_s) / _COMMITS_AVERAGED
