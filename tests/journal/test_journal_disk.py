"""A disk that fails at any write: nothing acknowledged is lost, and the process never writes again."""

import asyncio
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import apsw
import pytest

from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalError, JournalTooOld, JournalUnwritable
from paygw_batch.journal.file_location import in_memory_journal
from paygw_batch.journal.sqlite.sqlite_journal import SqliteEngineJournal, SqliteJournal
from paygw_batch.journal.values import Entry, MoveResult, StatementNote
from tests.support.journal_disk import Disk, failing_disk
from tests.support.journal_rows import (
    AT,
    adopt_journal_at,
    due_rows,
    intent,
    journal_path,
    open_journal_at,
    open_sheet,
    outcome_of,
    read_journal_at,
    send,
)
from tests.support.journal_rows import states as row_states
from tests.support.long_part import long

ROWS = 12


@dataclass
class Promises:
    """The promises of the calls that have returned."""

    opened: bool = False
    intended: set[int] = field(default_factory=set)
    paid: set[int] = field(default_factory=set)


def play(journal: SqliteJournal, promised: Promises) -> None:
    open_sheet(journal, new=ROWS, pages=[b"x" * 9000] * 3)
    promised.opened = True
    due = due_rows(journal, 1)
    for start in range(0, ROWS, 4):
        group = due[start : start + 4]
        assert set(journal.append([intent(one) for one in group])) == {MoveResult.MOVED}
        promised.intended |= {one.number for one in group}
        outcomes = [outcome_of(one.number, 1, OutcomeKind.PAID) for one in group[:3]]
        assert set(journal.append(outcomes)) == {MoveResult.MOVED}
        promised.paid |= {one.number for one in group[:3]}


def play_until_failure(folder: Path, disk: Disk) -> Promises:
    """Play until the disk fails, and check that nothing is written after the failure was raised."""
    promised = Promises()
    try:
        journal = open_journal_at(folder)
    except JournalError:
        return promised
    with closing(journal):
        try:
            play(journal, promised)
        except JournalUnwritable:
            failed_at = disk.operations
            for write in (play, lambda journal, _: journal.release(1, None, suffix=True, by="a", at=AT)):
                with pytest.raises(JournalUnwritable):
                    write(journal, promised)
            list(journal.rows(1))
            journal.close()
            assert disk.operations == failed_at
    return promised


def check_promises(folder: Path, promised: Promises) -> None:
    """Reopen the journal on a working disk, and check that every promise was kept."""
    with closing(open_journal_at(folder)) as journal:
        journal.verify()
        journal.mark_interrupted(AT)
        states = dict(enumerate(row_states(journal), start=1))
    assert len(states) in ({ROWS} if promised.opened else {0, ROWS})
    assert all(states[number] is not State.READY for number in promised.intended)
    assert all(states[number] is State.PAID for number in promised.paid)


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("failure", "stays"), [(apsw.FullError, True), (apsw.IOError, False)], ids=["full for good", "input/output once"]
)
@pytest.mark.parametrize("every", [7, long(1)])  # a group makes 20 operations, and 7 hits each of them in turn
def test_failed_write_keeps_confirmed_facts(failure: type[apsw.Error], every: int, *, stays: bool) -> None:
    ordinal, broken = 1 - every, True
    while broken:
        ordinal += every
        with tempfile.TemporaryDirectory() as name:
            with failing_disk() as disk:
                disk.fail_at, disk.failure, disk.stays = ordinal, failure, stays
                promised = play_until_failure(Path(name), disk)
                broken = disk.operations >= ordinal
            check_promises(Path(name), promised)
    assert ordinal > 30


@pytest.mark.parametrize("is_staged", [True, False])
@pytest.mark.parametrize("facts", [1, 2])
def test_process_stops_writing_after_failed_commit(folder: Path, facts: int, *, is_staged: bool) -> None:
    """This includes an engine's commits, which are staged here and committed in a thread. The disk recovers at once."""
    with failing_disk() as disk, closing(open_journal_at(folder)) as journal:
        open_sheet(journal)
        due = due_rows(journal, 1)
        intents = [intent(row) for row in due[:facts]]
        commit = journal.stage(intents) if is_staged else partial(journal.append, intents)
        disk.fail_at, disk.stays = disk.operations + 1, False
        with pytest.raises(JournalUnwritable, match="can no longer be written") as raised:
            commit()
        assert "nothing more was sent" in str(raised.value)
        failed_at = disk.operations
        assert not journal.can_write()
        for write in (
            lambda: journal.append([intent(due[2])]),
            lambda: journal.stage([intent(due[2])]),
            lambda: journal.settle([], note=StatementNote("b1", "day.csv", "0" * 64, "amina", AT)),
            lambda: journal.release(1, None, suffix=True, by="amina", at=AT),
            lambda: journal.record_evidence([], {}, at=AT),
        ):
            with pytest.raises(JournalUnwritable):
                write()
        assert disk.operations == failed_at
        assert (row_states(journal), journal.head().seq) == ([State.READY] * 3, 1), "it can still be read"


def test_reader_sees_one_snapshot_and_cannot_write(folder: Path) -> None:
    with closing(open_journal_at(folder)) as journal:
        open_sheet(journal, new=50)
        with closing(read_journal_at(folder)) as reader:
            send(journal, 1, OutcomeKind.PAID)
            open_sheet(journal, "b2", new=0)
            assert set(row_states(reader)) == {State.READY}
            assert (len(reader.batches()), reader.head().seq) == (1, 1)
            reader.verify()
            with pytest.raises(apsw.ReadOnlyError):
                reader._connection.execute("DELETE FROM state")
        with closing(read_journal_at(folder)) as reader:
            assert set(row_states(reader)) == {State.PAID}
            assert reader.head() == journal.head()


def test_rolled_back_move_leaves_no_trace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(open_journal_at(folder)) as journal:
        open_sheet(journal)
        first, *_ = due_rows(journal, 1)
        with monkeypatch.context() as patch:
            patch.setattr(SqliteJournal, "_commit", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                journal.append([intent(first)])
        assert list(journal.append([intent(first)])) == [MoveResult.MOVED]
        journal.verify()


# A journal that is cut at any byte has one of its earlier states, and no sent row is due in it.
FRAME_BYTES = 4096 + 24


@dataclass(frozen=True)
class Run:
    """The files of a run that stopped without closing them, and the states of its rows after every commit."""

    folder: Path
    states: dict[int, list[State]]

    def put_back(self, log_bytes: int) -> None:
        """Restore the files of the run, with its log cut to `log_bytes`."""
        for part in ("state", "journals"):
            shutil.rmtree(self.folder / part, ignore_errors=True)
            shutil.copytree(self.folder / "stopped" / part, self.folder / part)
        log = journal_path(self.folder).with_name("journal.sqlite3-wal")
        os.truncate(log, log_bytes)
        log.with_name("journal.sqlite3-shm").unlink()

    def size(self) -> int:
        return (self.folder / "stopped" / "state" / "journal.sqlite3-wal").stat().st_size


@pytest.fixture
def run(folder: Path) -> Run:
    states: dict[int, list[State]] = {0: []}
    with closing(open_journal_at(folder)) as journal:
        open_sheet(journal, new=4)
        states[1] = row_states(journal)
        for kind in (OutcomeKind.PAID, OutcomeKind.REJECTED, OutcomeKind.NOT_SENT, OutcomeKind.UNKNOWN):
            (due, *_) = due_rows(journal, 1)
            for entry in (intent(due), outcome_of(due.number, due.standing.attempt + 1, kind)):
                journal.append([entry])
                states[journal.head().seq] = row_states(journal)
        for part in ("state", "journals"):
            shutil.copytree(folder / part, folder / "stopped" / part)
    return Run(folder, states)


@pytest.mark.parametrize("places", [(0, 24), long((-1, 1, 23, 2000))])
def test_log_truncated_anywhere_restores_earlier_state(run: Run, folder: Path, places: Collection[int]) -> None:
    whole = run.size()
    seen_states = set()
    for size in (*(start + at for start in range(32, whole, FRAME_BYTES) for at in places), whole):
        run.put_back(size)
        shutil.rmtree(folder / "journals")
        adopt_journal_at(folder)
        with closing(open_journal_at(folder)) as journal:
            journal.verify()
            seq = journal.head().seq - 1  # without an adoption
            now = row_states(journal)
            assert now == run.states[seq]
            due = [due.row - 2 for due in due_rows(journal, 1)]
            assert due == [row for row, state in enumerate(now) if state is State.READY]
            seen_states.add(seq)
    assert seen_states == set(run.states)


def test_log_missing_committed_facts_is_refused(run: Run, folder: Path) -> None:
    whole = run.size()
    run.put_back(whole)
    open_journal_at(folder).close()
    for size in (0, whole // 2, whole - 1):
        run.put_back(size)
        with pytest.raises(JournalTooOld, match=f"fact {max(run.states)} had been written"):
            open_journal_at(folder)


# An engine's journal waits for a fast disk in the event loop, and for a slow one in its thread.
QUICK_S, SLOW_S = 0.0002, 0.005


def test_commits_run_in_event_loop_on_fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    journal, stage = in_memory_journal(), SqliteJournal.stage
    now_s, commit_s, threads = 0.0, QUICK_S, list[threading.Thread]()

    def stage_timed(journal: SqliteJournal, entries: Sequence[Entry]) -> Callable[[], Sequence[MoveResult]]:
        commit = stage(journal, entries)

        def commit_timed() -> Sequence[MoveResult]:
            nonlocal now_s
            threads.append(threading.current_thread())
            now_s += commit_s
            return commit()

        return commit_timed

    monkeypatch.setattr(SqliteJournal, "stage", stage_timed)

    async def commit(engine_journal: SqliteEngineJournal, times: int, duration_s: float) -> list[bool]:
        nonlocal commit_s
        commit_s = duration_s
        threads.clear()
        for _ in range(times):
            await engine_journal.append([])
        return [thread is threading.current_thread() for thread in threads]

    async def run_commits() -> None:
        with closing(SqliteEngineJournal(journal, lambda: now_s)) as engine_journal:
            first = await commit(engine_journal, 100, QUICK_S)
            assert not any(first[:5])
            assert all(first[-10:])
            # After one slow commit, a disk that stays slow never blocks the event loop again.
            assert await commit(engine_journal, 20, SLOW_S * 10) == [True, *[False] * 19]
            assert not any(await commit(engine_journal, 50, SLOW_S))
            assert all((await commit(engine_journal, 200, QUICK_S))[-10:])

    asyncio.run(run_commits())


def test_concurrent_writer_does_not_block_event_loop(folder: Path) -> None:
    """The writer may be frozen in its transaction. The run continues with answers, and commits when it can."""
    with closing(open_journal_at(folder)) as journal, closing(apsw.Connection(str(journal_path(folder)))) as other:
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
