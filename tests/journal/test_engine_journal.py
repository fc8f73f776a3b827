"""An engine's journal waits for a fast disk in the event loop, and for a slow one in its thread."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import apsw

from paygw_batch.journal.file_place import in_memory_journal
from paygw_batch.journal.sqlite.sqlite_journal import SqliteEngineJournal, SqliteJournal
from paygw_batch.journal.values import Entry, MoveResult
from tests.support.journal_rows import due_rows, intent, journal_path, open_journal_at, open_sheet

QUICK_S, SLOW_S = 0.0002, 0.005


class TimedDisk:
    """Wraps the commits of a journal, with a fake clock. Each takes `commit_s`, and its thread is recorded."""

    def __init__(self, journal: SqliteJournal) -> None:
        self.commit_s = QUICK_S
        self.threads: list[threading.Thread] = []
        self._now_s = 0.0
        self._stage = journal.stage
        journal.stage = self._stage_and_record  # type: ignore[method-assign]

    def clock(self) -> float:
        return self._now_s

    def _stage_and_record(self, entries: Sequence[Entry]) -> Callable[[], Sequence[MoveResult]]:
        commit = self._stage(entries)

        def commit_and_record() -> Sequence[MoveResult]:
            self.threads.append(threading.current_thread())
            self._now_s += self.commit_s
            return commit()

        return commit_and_record


def test_commits_run_in_event_loop_on_quick_disk() -> None:
    journal = in_memory_journal()
    disk = TimedDisk(journal)
    engine_journal = SqliteEngineJournal(journal, disk.clock)

    async def commit(times: int, commit_s: float) -> list[bool]:
        disk.commit_s = commit_s
        disk.threads.clear()
        for _ in range(times):
            await engine_journal.append([])
        return [thread is threading.current_thread() for thread in disk.threads]

    async def run_commits() -> None:
        first = await commit(100, QUICK_S)
        assert not any(first[:5])
        assert all(first[-10:])
        # After one slow commit, a disk that stays slow never blocks the event loop again.
        assert await commit(20, SLOW_S * 10) == [True, *[False] * 19]
        assert not any(await commit(50, SLOW_S))
        assert all((await commit(200, QUICK_S))[-10:])

    asyncio.run(run_commits())
    engine_journal.close()


def test_concurrent_writer_does_not_block_event_loop(place: Path) -> None:
    """The writer may be frozen in its transaction. The run continues with answers, and commits when it can."""
    with closing(open_journal_at(place)) as journal, closing(apsw.Connection(str(journal_path(place)))) as other:
        open_sheet(journal)
        due = due_rows(journal, 1)[0]
        other.execute("BEGIN IMMEDIATE")

        async def run_commits() -> Sequence[MoveResult]:
            with closing(SqliteEngineJournal(journal)) as engine_journal:
                append = asyncio.create_task(engine_journal.append([intent(due)]))
                done, _ = await asyncio.wait([append], timeout=0.3)
                assert not done
                other.execute("ROLLBACK")
                return await append

        assert list(asyncio.run(run_commits())) == [MoveResult.MOVED]
        journal.verify()
