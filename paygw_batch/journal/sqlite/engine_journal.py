"""Gives an engine the journal without blocking its event loop.

Calls run one at a time, in order. Only the wait for a slow disk moves to a thread; the rest of an append stays in the
event loop, because two threads that both compute pass the interpreter back and forth at every statement, which costs
more than it saves (docs/decisions/0051). A fast disk is awaited in the event loop too: getting the interpreter back
would take the thread longer than the disk takes.
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
"""A disk is fast if its recent commits take less than this on average."""
_COMMITS_AVERAGED = 16
_FIRST_AVERAGE_S = 2 * QUICK_S
"""A run starts with commits in the thread; about twelve fast ones bring the average below `QUICK_S`."""


class CommittingJournal(Protocol):
    """The part of `SqliteJournal` that `SqliteEngineJournal` calls."""

    def due(self, batch: int, *, after_row: int, limit: int) -> Sequence[Due]:
        """Return up to `limit` rows above `after_row` that may be sent."""
        ...

    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Make facts durable in one transaction."""
        ...

    def can_write(self) -> bool:
        """Whether this process opened the journal and no write has failed."""
        ...

    def stage(self, entries: Sequence[Entry]) -> Callable[[], Sequence[MoveResult]]:
        """Do everything for an append except the commit; return the call that commits."""
        ...

    def drain_inbox(self, words: Mapping[str, OutcomeKind], *, at: str) -> Counter[Finding]:
        """Record the notifications that wait in the inbox."""
        ...


class SqliteEngineJournal:
    """Implements `EngineJournal` for one run, on a journal in a file."""

    def __init__(self, journal: CommittingJournal, clock: Callable[[], float] = time.perf_counter) -> None:
        self._journal = journal
        self._clock = clock
        self._commit_s = _FIRST_AVERAGE_S
        self._thread = JournalThread()
        self._turn = asyncio.Lock()
        self._last_row: dict[int, int] = {}

    async def due(self, batch: int, *, limit: int) -> Sequence[Due]:
        """Return the next rows of a batch that may be sent, at most `limit`."""
        after = self._last_row.get(batch, 0)
        async with self._turn:
            page = await self._thread.call(partial(self._journal.due, batch, after_row=after, limit=limit))
        self._last_row[batch] = page[-1].row if page else after
        return page

    async def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Stage facts now; commit them here if the disk is fast, otherwise in the thread."""
        async with self._turn:
            commit = partial(self._timed, self._journal.stage(entries))
            return commit() if self._commit_s < QUICK_S else await self._thread.call(commit)

    def may_leave(self, age_s: float) -> bool:  # noqa: ARG002 (the port's)
        """Whether no write has failed. This process keeps the lock as long as it lives, even while it is frozen."""
        return self._journal.can_write()

    async def drain_inbox(self, words: Mapping[str, OutcomeKind], *, at: str) -> Counter[Finding]:
        """Record the notifications that wait in the inbox."""
        async with self._turn:
            return await self._thread.call(partial(self._journal.drain_inbox, words, at=at))

    def close(self) -> None:
        """End the thread."""
        self._thread.close()

    def _timed(self, commit: Callable[[], T]) -> T:
        """Run a commit and note how long it took. Only one runs at a time."""
        began_s = self._clock()
        try:
            return commit()
        finally:
            self._commit_s += (self._clock() - began_s - self._commit_s) / _COMMITS_AVERAGED
