"""Gives an engine the journal in PostgreSQL: rows of leased chunks, one call at a time, none in the event loop."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from paygw_batch.core.evidence import Finding
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.journal.journal_thread import JournalThread
from paygw_batch.journal.postgres.leasing.lease_writer import LeaseWriter
from paygw_batch.journal.values import Due, Entry, MoveResult


class LeasingJournal(Protocol):
    """The calls of a `PostgresJournal` that an engine's journal makes."""

    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Make facts durable in one transaction."""
        ...

    def take_in_waiting(self, words: Mapping[str, OutcomeKind], *, at: str) -> Counter[Finding]:
        """Take in the notifications that wait in the inbox."""
        ...


class ChunkJournal:
    """Implements `EngineJournal` on a journal in PostgreSQL, for one run."""

    def __init__(self, journal: LeasingJournal, writer: LeaseWriter) -> None:
        self._journal = journal
        self._writer = writer
        self._thread = JournalThread()
        self._turn = asyncio.Lock()
        self._last_row: dict[int, int] = {}

    async def due(self, batch: int, *, limit: int) -> Sequence[Due]:
        """Return the next rows of a batch that may be sent, `limit` at the most, of chunks that are leased for it."""
        async with self._turn:
            return await self._thread.call(partial(self._leased, batch, limit))

    async def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Make facts durable in one call of the database."""
        async with self._turn:
            return await self._thread.call(partial(self._journal.append, entries))

    async def take_in_waiting(self, words: Mapping[str, OutcomeKind], *, at: str) -> Counter[Finding]:
        """Take in the notifications that wait in the inbox; none once another process has taken over."""
        async with self._turn:
            if self._writer.has_lost:
                return Counter()
            return await self._thread.call(partial(self._journal.take_in_waiting, words, at=at))

    def close(self) -> None:
        """End the thread."""
        self._thread.close()

    def _leased(self, batch: int, limit: int) -> Sequence[Due]:
        """Return the next rows whose chunks this process has, or gets now; those of other processes are passed over.

        Rows are read again once their chunks are leased: before that, another process could still send them.
        """
        while not self._writer.has_lost:
            after = self._last_row.get(batch, 0)
            page = self._writer.due(batch, after_row=after, limit=limit)
            if not page:
                break
            chunks = self._writer.chunks_of([due.number for due in page])
            ours = self._writer.lease_chunks(chunks.values())
            self._last_row[batch] = page[-1].row
            again = self._writer.due(batch, after_row=after, limit=limit)
            leased = [due for due in again if due.row <= page[-1].row and chunks.get(due.number) in ours]
            if leased:
                self._writer.learn(due.number for due in leased)
                return leased
        return []
