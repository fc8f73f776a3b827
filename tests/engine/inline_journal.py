"""A journal for an engine without a thread."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from paygw_batch.journal.port import JournalThread
from paygw_batch.journal.sqlite.sqlite_journal import SqliteEngineJournal, SqliteJournal
from paygw_batch.journal.values import Entry, MoveResult

T = TypeVar("T")


class _Inline(JournalThread):
    async def call(self, call: Callable[[], T]) -> T:
        return call()


class InlineJournal(SqliteEngineJournal):
    """Makes every call here and now."""

    def __init__(self, journal: SqliteJournal) -> None:
        super().__init__(journal)
        self._thread = _Inline()

    async def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Append in one step."""
        return self._journal.append(entries)
