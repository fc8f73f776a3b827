"""Gives an engine the rows of leased chunks of a journal in PostgreSQL, one call at a time, outside the event loop.

A run by itself leases the chunks of its batch (`ChunkJournal`). A worker takes the chunks that a shared run offers, one
after the other, and finishes each when its rows have ended (`TakenChunks`).
"""

import asyncio
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from paygw_batch.core.evidence import Finding
from paygw_batch.core.lifecycle import Concluded, Intended
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.journal.port import JournalThread, SharedRun
from paygw_batch.journal.postgres.leasing.chain_writer import ChainWriter
from paygw_batch.journal.postgres.leasing.offered_chunks import finish_chunk, free_chunks, is_overtaken, note_place
from paygw_batch.journal.values import Due, Entry, MoveResult


class LeasingJournal(Protocol):
    """The calls of a `PostgresJournal` that an engine's journal makes."""

    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Make facts durable in one transaction."""
        ...

    def due_leased(self, batch: int, *, after_row: int, limit: int) -> Sequence[Due]:
        """Return the next rows of a batch that the process leasing them may send."""
        ...

    def due_of_chunk(self, batch: int, chunk: int) -> Sequence[Due]:
        """Return the rows of a batch in one chunk that may be sent."""
        ...

    def drain_inbox(self, words: Mapping[str, OutcomeKind], *, at: str) -> Counter[Finding]:
        """Record the notifications that wait in the inbox."""
        ...


class ChunkJournal:
    """Implements `EngineJournal` on a journal in PostgreSQL, for one run."""

    def __init__(self, journal: LeasingJournal, writer: ChainWriter) -> None:
        self._journal = journal
        self._writer = writer
        self._thread = JournalThread()
        self._turn = asyncio.Lock()
        self._last_row: dict[int, int] = {}

    async def due(self, batch: int, *, limit: int) -> Sequence[Due]:
        """Return at most `limit` next rows of a batch that may be sent, from chunks that it leases."""
        async with self._turn:
            return await self._thread.call(partial(self._leased, batch, limit))

    async def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Make facts durable in one call of the database."""
        async with self._turn:
            return await self._thread.call(partial(self._journal.append, entries))

    async def drain_inbox(self, words: Mapping[str, OutcomeKind], *, at: str) -> Counter[Finding]:
        """Record the notifications that wait in the inbox; none once another process has taken over."""
        async with self._turn:
            if self._writer.has_lost:
                return Counter()
            return await self._thread.call(partial(self._journal.drain_inbox, words, at=at))

    def may_leave(self, age_s: float) -> bool:
        """Whether no other process can have taken the row of an intent of this age."""
        return self._writer.may_leave(age_s)

    def close(self) -> None:
        """End the thread."""
        self._thread.close()

    def _leased(self, batch: int, limit: int) -> Sequence[Due]:
        """Return the next rows whose chunks this process leases now; skip those of other processes.

        Rows are read again once their chunks are leased: before that, another process could still send them.
        """
        while not self._writer.has_lost:
            after = self._last_row.get(batch, 0)
            page = self._journal.due_leased(batch, after_row=after, limit=limit)
            if not page:
                break
            chunks = self._writer.chunks_of([due.number for due in page])
            ours = self._writer.lease_chunks(chunks.values())
            self._last_row[batch] = page[-1].row
            again = self._journal.due_leased(batch, after_row=after, limit=limit)
            leased = [due for due in again if due.row <= page[-1].row and chunks.get(due.number) in ours]
            if leased:
                self._writer.learn(due.number for due in leased)
                return leased
        return []


class TakenChunks(ChunkJournal):
    """Implements `EngineJournal` for one run that workers share.

    A chunk is finished, and its offer withdrawn, when each of its rows is answered, in doubt, or held. A row that did
    not leave can be tried again, so its chunk stays open; it is returned with the last ones.
    """

    def __init__(self, journal: LeasingJournal, writer: ChainWriter, run: SharedRun, rows: int) -> None:
        super().__init__(journal, writer)
        self._run = run
        self.rows = rows
        """The number of rows that this worker has sent, in finished chunks."""
        self._waiting: deque[Due] = deque()
        self._chunk_of: dict[int, int] = {}
        self._open: dict[int, set[int]] = {}
        self._sizes: dict[int, int] = {}

    async def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Make facts durable in one call of the database, and finish the chunks whose rows have all ended."""
        async with self._turn:
            return await self._thread.call(partial(self._appended, entries))

    async def is_overtaken(self) -> bool:
        """Whether an urgent run waits for a worker, and this run is not urgent."""
        async with self._turn:
            run = partial(is_overtaken, run=self._run)
            return await self._thread.call(lambda: self._writer.ask(run))

    def _leased(self, batch: int, limit: int) -> Sequence[Due]:
        """Return the next rows of the chunks that this process has taken; it takes another when none is left."""
        while not self._waiting and not self._writer.has_lost and not self._writer.is_stopped:
            if not self._take_next(batch):
                return []
        return [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]

    def _take_next(self, batch: int) -> bool:
        """Take the first offered chunk that is free, and read its rows; return whether there was one."""
        after = 0
        while chunks := self._writer.ask(partial(free_chunks, run=self._run.number, after=after)):
            for chunk in chunks:
                # One of ours is listed too, after a freeze and before our next sign of life: its rows are under way.
                if chunk not in self._open and chunk in self._writer.lease_chunks([chunk]):
                    self._read(batch, chunk)
                    return True
            after = chunks[-1]
        return False

    def _read(self, batch: int, chunk: int) -> None:
        """Read the due rows of a chunk, now that no other process can send them."""
        found = self._journal.due_of_chunk(batch, chunk)
        self._writer.ask(partial(note_place, worker=self._writer.worker, run=self._run.number, chunk=chunk))
        self._writer.learn(due.number for due in found)
        self._waiting.extend(found)
        self._chunk_of.update((due.number, chunk) for due in found)
        self._open[chunk] = {due.number for due in found}
        self._sizes[chunk] = len(found)
        self._finish_if_done(chunk)

    def _appended(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        results = [
            # A person settled the row after it was read as due: it is not sent.
            MoveResult.HELD if isinstance(entry.fact, Intended) and result is MoveResult.NOT_MOVED else result
            for entry, result in zip(entries, self._journal.append(entries), strict=True)
        ]
        ended = [entry.instruction for entry, result in zip(entries, results, strict=True) if _has_ended(entry, result)]
        for chunk in {self._chunk_of[number] for number in ended if number in self._chunk_of}:
            self._open[chunk].difference_update(ended)
            self._finish_if_done(chunk)
        return results

    def _finish_if_done(self, chunk: int) -> None:
        if self._open[chunk] or self._writer.has_lost:
            return
        del self._open[chunk]
        numbers = [number for number, of in self._chunk_of.items() if of == chunk]
        for number in numbers:
            del self._chunk_of[number]
        self.rows += self._sizes.pop(chunk)
        self._writer.finish(chunk, numbers, partial(finish_chunk, run=self._run.number, rows=self.rows))


def _has_ended(entry: Entry, result: MoveResult) -> bool:
    """Whether this run is done with a row."""
    match entry.fact:
        case Concluded(outcome):
            return outcome.kind is not OutcomeKind.NOT_SENT
        case _:
            return result is MoveResult.HELD
