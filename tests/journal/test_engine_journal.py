"""Where an engine's journal waits for the disk: a quick one in the event loop, a slow one in the journal's thread."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import apsw

from paygw_batch.journal.file_place import in_memory_journal
from paygw_batch.journal.sqlite.sqlite_journal import SqliteEngineJournal, SqliteJournal
from paygw_batch.journal.values import Entry, MoveResult
from tests.support.journal_rows import all_due, intent, journal_path, open_at, open_sheet

QUICK_S, SLOW_S = 0.0002, 0.005


class Disk:
    """Wraps the commits of a journal: each takes `commit_s` of a clock of its own, and its thread is noted."""

    def __init__(self, journal: SqliteJournal) -> None:
        self.commit_s = QUICK_S
        self.threads: list[threading.Thread] = []
        self._now_s = 0.0
        self._stage = journal.stage
        journal.stage = self._watched  # type: ignore[method-assign]

    def clock(self) -> float:
        return self._now_s

    def _watched(self, entries: Sequence[Entry]) -> Callable[[], Sequence[MoveResult]]:
        commit = self._stage(entries)

        def watched() -> Sequence[MoveResult]:
            self.threads.append(threading.current_thread())
            self._now_s += self.commit_s
            return commit()

        return watched


def test_commits_run_in_event_loop_on_quick_disk() -> None:
    journal = in_memory_journal()
    disk = Disk(journal)
    given = SqliteEngineJournal(journal, disk.clock)

    async def commit(times: int, commit_s: float) -> list[bool]:
        disk.commit_s = commit_s
        disk.threads.clear()
        for _ in range(times):
            await given.append([])
        return [thread is threading.current_thread() for thread in disk.threads]

    async def story() -> None:
        first = await commit(100, QUICK_S)
        assert not any(first[:5])
        assert all(first[-10:])
        # One commit that took long is enough, and a disk that stays slow never holds the event loop up again.
        assert await commit(20, SLOW_S * 10) == [True, *[False] * 19]
        assert not any(await commit(50, SLOW_S))
        assert all((await commit(200, QUICK_S))[-10:])

    asyncio.run(story())
    given.close()


def test_concurrent_writer_does_not_block_event_loop(place: Path) -> None:
    """It may be frozen in its transaction: the run goes on with the answers that come, and commits once it may."""
    with closing(open_at(place)) as journal, closing(apsw.Connection(str(journal_path(place)))) as other:
        open_sheet(journal)
        due = all_due(journal, 1)[0]
        other.execute("BEGIN IMMEDIATE")

        async def story() -> Sequence[MoveResult]:
            with closing(SqliteEngineJournal(journal)) as given:
                append = asyncio.create_task(given.append([intent(due)]))
                done, _ = await asyncio.wait([append], timeout=0.3)
                assert not done
                other.execute("ROLLBACK")
                return await append

        assert list(asyncio.run(story())) == [MoveResult.MOVED]
        journal.verify()
