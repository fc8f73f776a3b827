"""A journal for an engine without a thread."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from paygw_batch.journal.sqlite.engine_journal import SqliteEngineJournal
from paygw_batch.journal.values import Entry, MoveResult

T = TypeVar("T")


class InlineJournal(SqliteEngineJournal):
    """Makes every call here and now."""

    async def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Append in one step."""
        return self._journal.append(entries)

    async def _called(self, call: Callable[[], T]) -> T:
        return call()
