"""A disk that fails at any write: nothing acknowledged is lost, and the process never writes again."""

import tempfile
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import apsw
import pytest

from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalError, JournalUnwritable
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import MoveResult, StatementNote
from tests.support.journal_disk import Disk, failing_disk
from tests.support.journal_rows import (
    AT,
    due_rows,
    intent,
    open_journal_at,
    open_sheet,
    outcome_of,
    read_journal_at,
    send,
)
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
        assert set(journal.append([intent(one) for one in group])) <= {MoveResult.MOVED}
        promised.intended |= {one.number for one in group}
        assert set(journal.append([outcome_of(one.number, 1, OutcomeKind.PAID) for one in group[:3]])) <= {
            MoveResult.MOVED
        }
        promised.paid |= {one.number for one in group[:3]}


def play_until_failure(place: Path, disk: Disk) -> Promises:
    """Play until the disk fails, and check that nothing is written after the failure was raised."""
    promised = Promises()
    try:
        journal = open_journal_at(place)
    except JournalError:
        return promised
    try:
        play(journal, promised)
    except JournalUnwritable:
        failed_at = disk.operations
        for write in (lambda: play(journal, promised), lambda: journal.release(1, None, suffix=True, by="a", at=AT)):
            with pytest.raises(JournalUnwritable):
                write()
        list(journal.rows(1))
        journal.close()
        assert disk.operations == failed_at
    else:
        journal.close()
    return promised


def check_promises(place: Path, promised: Promises) -> None:
    """Reopen the journal on a working disk, and check that every promise was kept."""
    with closing(open_journal_at(place)) as journal:
        journal.verify()
        journal.mark_interrupted(AT)
        states = {number: row.state for number, row in enumerate(journal.rows(1), start=1)}
    assert len(states) in ({ROWS} if promised.opened else {0, ROWS})
    assert all(states[number] is not State.READY for number in promised.intended)
    assert all(states[number] is State.PAID for number in promised.paid)


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("failure", "stays"), [(apsw.FullError, True), (apsw.IOError, False)], ids=["full for good", "input/output once"]
)
@pytest.mark.parametrize("every", [7, long(1)])  # a group makes 20 operations, and 7 hits each of them in turn
def test_failed_write_loses_no_confirmed_facts(failure: type[apsw.Error], every: int, *, stays: bool) -> None:
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
def test_process_stops_writing_after_failed_commit(place: Path, facts: int, *, is_staged: bool) -> None:
    """This includes an engine's commits, which are staged here and committed in a thread. The disk recovers at once."""
    with failing_disk() as disk, closing(open_journal_at(place)) as journal:
        open_sheet(journal)
        due = due_rows(journal, 1)
        intents = [intent(row) for row in due[:facts]]
        commit = journal.stage(intents) if is_staged else partial(journal.append, intents)
        disk.fail_at, disk.stays = disk.operations + 1, False
        with pytest.raises(JournalUnwritable):
            commit()
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


def test_rows_stay_readable_after_failed_write(place: Path) -> None:
    with failing_disk() as disk, closing(open_journal_at(place)) as journal:
        open_sheet(journal)
        first, second, _ = due_rows(journal, 1)
        journal.append([intent(first)])
        disk.fail_at, disk.stays = disk.operations + 1, True
        with pytest.raises(JournalUnwritable, match="can no longer be written") as raised:
            journal.append([outcome_of(first.number, 1, OutcomeKind.PAID), intent(second)])
        assert "nothing more was sent" in str(raised.value)
        assert [row.state for row in journal.rows(1)] == [State.IN_FLIGHT, State.READY, State.READY]
        assert journal.head().seq == 2


def test_reader_sees_fixed_state_during_run(place: Path) -> None:
    with closing(open_journal_at(place)) as journal:
        open_sheet(journal, new=50)
        with closing(read_journal_at(place)) as reader:
            send(journal, 1, OutcomeKind.PAID)
            open_sheet(journal, "b2", new=0)
            assert {row.state for row in reader.rows(1)} == {State.READY}
            assert (len(reader.batches()), reader.head().seq) == (1, 1)
            reader.verify()
        with closing(read_journal_at(place)) as reader:
            assert {row.state for row in reader.rows(1)} == {State.PAID}
            assert reader.head() == journal.head()


def test_intent_for_moved_row_is_not_recorded(place: Path) -> None:
    with closing(open_journal_at(place)) as journal:
        open_sheet(journal)
        first, second, _ = due_rows(journal, 1)
        assert list(journal.append([intent(first)])) == [MoveResult.MOVED]
        assert list(journal.append([intent(second), intent(first)])) == [MoveResult.MOVED, MoveResult.NOT_MOVED]
        assert journal.head().seq == 3
        journal.verify()


def test_rolled_back_move_is_not_remembered(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: SqliteJournal) -> None:
        raise KeyboardInterrupt

    with closing(open_journal_at(place)) as journal:
        open_sheet(journal)
        first, *_ = due_rows(journal, 1)
        with monkeypatch.context() as patch:
            patch.setattr(SqliteJournal, "_commit", interrupt)
            with pytest.raises(KeyboardInterrupt):
                journal.append([intent(first)])
        assert list(journal.append([intent(first)])) == [MoveResult.MOVED]
        journal.verify()


def test_reader_cannot_write(place: Path) -> None:
    with closing(open_journal_at(place)) as journal:
        open_sheet(journal)
        with closing(read_journal_at(place)) as reader, pytest.raises(apsw.ReadOnlyError):
            reader._connection.execute("DELETE FROM state")


def test_batch_with_unreadable_pages_is_not_opened(place: Path) -> None:
    def pages() -> list[bytes]:
        raise OSError(5, "Input/output error")

    with closing(open_journal_at(place)) as journal:
        with pytest.raises(OSError, match="Input/output"):
            open_sheet(journal, pages=(page for page in [b"one"] if pages()))  # type: ignore[arg-type]  # any iterable
        assert list(journal.batches()) == []
        open_sheet(journal)
        journal.verify()
