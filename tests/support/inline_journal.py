"""A journal without threads, for tests of the engine."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from paygw_batch.core.lifecycle import Interrupted
from paygw_batch.errors import JournalUnwritable
from paygw_batch.journal.port import JournalThread
from paygw_batch.journal.sqlite.sqlite_journal import SqliteEngineJournal, SqliteJournal
from paygw_batch.journal.values import Entry, MoveResult

T = TypeVar("T")


class _Inline(JournalThread):
    async def call(self, call: Callable[[], T]) -> T:
        return call()


class InlineJournal(SqliteEngineJournal):
    def __init__(self, journal: SqliteJournal) -> None:
        super().__init__(journal)
        self._thread = _Inline()

    async def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        return self._journal.append(entries)


RESULTS = (MoveResult.MOVED, MoveResult.NOT_MOVED)


def entry(number: int) -> Entry:
    return Entry(number, 1, Interrupted(), "2026-11-20T10:00:00.000Z")


class SlowJournal:
    """Holds each commit until the test releases it."""

    def __init__(self) -> None:
        self.commits: list[list[int]] = []
        self.gate = asyncio.Event()
        self.fails = False

    async def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        self.commits.append([item.instruction for item in entries])
        await self.gate.wait()
        if self.fails:
            raise JournalUnwritable
        return [RESULTS[item.instruction % 2] for item in entries]
