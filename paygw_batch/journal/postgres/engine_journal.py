"""Gives an engine the due rows of a journal in PostgreSQL, one call at a time, outside the event loop.

A run by itself reads the rows of its batch one after the other (`OwnRun`). A worker first claims those that it wants to
send (`ClaimedRows`). Either may meet another process at a row: the database lets one intent through, and the row of the
other is skipped.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

from paygw_batch.core.evidence import Finding
from paygw_batch.core.lifecycle import Concluded, Intended
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.journal.port import JUDGED_AT_ONCE, JournalThread
from paygw_batch.journal.values import Due, Entry, MoveResult

T = TypeVar("T")


class SendingJournal(Protocol):
    """The calls of a `PostgresJournal` that an engine's journal makes."""

    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Make facts durable in one transaction."""
        ...

    def due(self, batch: int, *, after_row: int, limit: int) -> Sequence[Due]:
        """Return the next rows of a batch that may be sent."""
        ...

    def judge_arrivals(
        self, words: Mapping[str, OutcomeKind], *, at: str, at_most: int | None = None
    ) -> Counter[Finding]:
        """Judge the notifications that wait."""
        ...


class OwnRun:
    """Implements `EngineJournal` on a journal in PostgreSQL, for one run."""

    def __init__(self, journal: SendingJournal, may_leave: Callable[[float], bool]) -> None:
        self._journal = journal
        self.may_leave = may_leave
        self._thread = JournalThread()
        self._turn = asyncio.Lock()
        self._last_row: dict[int, int] = {}

    async def due(self, batch: int, *, limit: int) -> Sequence[Due]:
        """Return at most `limit` next rows of a batch that may be sent."""
        async with self._turn:
            return await self._thread.call(partial(self._next, batch, limit))

    async def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Make facts durable in one call of the database."""
        async with self._turn:
            return await self._thread.call(partial(self._appended, entries))

    async def judge_arrivals(self, words: Mapping[str, OutcomeKind], *, at: str) -> Counter[Finding]:
        """Judge the notifications that wait."""
        async with self._turn:
            return await self._thread.call(partial(self._journal.judge_arrivals, words, at=at, at_most=JUDGED_AT_ONCE))

    def close(self) -> None:
        """End the thread."""
        self._thread.close()

    def _next(self, batch: int, limit: int) -> Sequence[Due]:
        page = self._journal.due(batch, after_row=self._last_row.get(batch, 0), limit=limit)
        if page:
            self._last_row[batch] = page[-1].row
        return page

    def _appended(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Append facts; what another process or a person moved after it was read as due is held: it is not sent."""
        return [
            MoveResult.HELD if isinstance(entry.fact, Intended) and result is MoveResult.NOT_MOVED else result
            for entry, result in zip(entries, self._journal.append(entries), strict=True)
        ]


class ClaimedRows(OwnRun):
    """Implements `EngineJournal` for one run that workers share."""

    def __init__(
        self,
        journal: SendingJournal,
        may_leave: Callable[[float], bool],
        claim: Callable[[Sequence[Due], int], Sequence[Due]],
        rows: int,
    ) -> None:
        """Send rows that `claim` returns of due ones; it is also told how many were sent, `rows` of them before."""
        super().__init__(journal, may_leave)
        self._claim = claim
        self.rows = rows
        """The number of rows that this worker has sent."""

    async def ask(self, call: Callable[[], T]) -> T:
        """Make another call to the journal in its turn."""
        async with self._turn:
            return await self._thread.call(call)

    def _next(self, batch: int, limit: int) -> Sequence[Due]:
        while page := super()._next(batch, limit):
            if claimed := self._claim(page, self.rows):
                return claimed
        return ()

    def _appended(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        results = super()._appended(entries)
        facts = (entry.fact for entry in entries)
        self.rows += sum(isinstance(f, Concluded) and f.outcome.kind is not OutcomeKind.NOT_SENT for f in facts)
        return results
