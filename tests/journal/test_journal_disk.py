"""A disk that fails, at every single write: nothing acknowledged is lost, and the process never writes again."""

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
from paygw_batch.journal.values import CarriedOut, MoveResult
from tests.support.journal_disk import Disk, failing_disk
from tests.support.journal_rows import AT, all_due, intent, open_at, open_sheet, outcome_of, read_at, send
from tests.support.long_part import long

ROWS = 12


@dataclass
class Acknowledged:
    """What calls that returned have promised."""

    opened: bool = False
    intended: set[int] = field(default_factory=set)
    paid: set[int] = field(default_factory=set)


def play(journal: SqliteJournal, promised: Acknowledged) -> None:
    open_sheet(journal, new=ROWS, pages=[b"x" * 9000] * 3)
    promised.opened = True
    due = all_due(journal, 1)
    for start in range(0, ROWS, 4):
        group = due[start : start + 4]
        assert set(journal.append([intent(one) for one in group])) <= {MoveResult.MOVED}
        promised.intended |= {one.number for one in group}
        assert set(journal.append([outcome_of(one.number, 1, OutcomeKind.PAID) for one in group[:3]])) <= {
            MoveResult.MOVED
        }
        promised.paid |= {one.number for one in group[:3]}


def broken_run(place: Path, disk: Disk) -> Acknowledged:
    """Play until the disk fails, and see to it that nothing is written after the failure was told."""
    promised = Acknowledged()
    try:
        journal = open_at(place)
    except JournalError:
        return promised
    try:
        play(journal, promised)
    except JournalUnwritable:
        told = disk.operations
        for write in (lambda: play(journal, promised), lambda: journal.release(1, None, suffix=True, by="a", at=AT)):
            with pytest.raises(JournalUnwritable):
                write()
        list(journal.rows(1))
        journal.close()
        assert disk.operations == told
    else:
        journal.close()
    return promised


def check_kept(place: Path, promised: Acknowledged) -> None:
    """Open the journal again on a disk that works, and find everything that was promised."""
    with closing(open_at(place)) as journal:
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
@pytest.mark.parametrize("every", [7, long(1)])  # a group makes 20 operations: 7 meets each of them in turn
def test_failed_write_loses_no_confirmed_facts(failure: type[apsw.Error], every: int, *, stays: bool) -> None:
    ordinal, broken = 1 - every, True
    while broken:
        ordinal += every
        with tempfile.TemporaryDirectory() as name:
            with failing_disk() as disk:
                disk.fail_at, disk.failure, disk.stays = ordinal, failure, stays
                promised = broken_run(Path(name), disk)
                broken = disk.operations >= ordinal
            check_kept(Path(name), promised)
    assert ordinal > 30


@pytest.mark.parametrize("is_staged", [True, False])
@pytest.mark.parametrize("facts", [1, 2])
def test_process_stops_writing_after_failed_commit(place: Path, facts: int, *, is_staged: bool) -> None:
    """Also as an engine commits: staged here, and committed in a thread. The disk works again right after."""
    with failing_disk() as disk, closing(open_at(place)) as journal:
        open_sheet(journal)
        due = all_due(journal, 1)
        intents = [intent(one) for one in due[:facts]]
        commit = journal.stage(intents) if is_staged else partial(journal.append, intents)
        disk.fail_at, disk.stays = disk.operations + 1, False
        with pytest.raises(JournalUnwritable):
            commit()
        told = disk.operations
        assert not journal.can_write()
        for write in (
            lambda: journal.append([intent(due[2])]),
            lambda: journal.stage([intent(due[2])]),
            lambda: journal.settle([], note=CarriedOut("b1", "day.csv", "0" * 64, "amina", AT)),
            lambda: journal.release(1, None, suffix=True, by="amina", at=AT),
            lambda: journal.record_evidence([], {}, at=AT),
        ):
            with pytest.raises(JournalUnwritable):
                write()
        assert disk.operations == told


def test_rows_stay_readable_after_failed_write(place: Path) -> None:
    with failing_disk() as disk, closing(open_at(place)) as journal:
        open_sheet(journal)
        first, second, _ = all_due(journal, 1)
        journal.append([intent(first)])
        disk.fail_at, disk.stays = disk.operations + 1, True
        with pytest.raises(JournalUnwritable, match="can no longer be written") as found:
            journal.append([outcome_of(first.number, 1, OutcomeKind.PAID), intent(second)])
        assert "nothing more was sent" in str(found.value)
        assert [row.state for row in journal.rows(1)] == [State.IN_FLIGHT, State.READY, State.READY]
        assert journal.head().seq == 2


def test_reader_sees_fixed_state_during_run(place: Path) -> None:
    with closing(open_at(place)) as journal:
        open_sheet(journal, new=50)
        with closing(read_at(place)) as reader:
            send(journal, 1, OutcomeKind.PAID)
            open_sheet(journal, "b2", new=0)
            assert {row.state for row in reader.rows(1)} == {State.READY}
            assert (len(reader.batches()), reader.head().seq) == (1, 1)
            reader.verify()
        with closing(read_at(place)) as reader:
            assert {row.state for row in reader.rows(1)} == {State.PAID}
            assert reader.head() == journal.head()


def test_intent_for_moved_row_is_not_recorded(place: Path) -> None:
    with closing(open_at(place)) as journal:
        open_sheet(journal)
        first, second, _ = all_due(journal, 1)
        assert list(journal.append([intent(first)])) == [MoveResult.MOVED]
        assert list(journal.append([intent(second), intent(first)])) == [MoveResult.MOVED, MoveResult.NOT_MOVED]
        assert journal.head().seq == 3
        journal.verify()


def test_rolled_back_move_is_not_remembered(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks_off(_: SqliteJournal) -> None:
        raise KeyboardInterrupt

    with closing(open_at(place)) as journal:
        open_sheet(journal)
        first, *_ = all_due(journal, 1)
        with monkeypatch.context() as patch:
            patch.setattr(SqliteJournal, "_commit", breaks_off)
            with pytest.raises(KeyboardInterrupt):
                journal.append([intent(first)])
        assert list(journal.append([intent(first)])) == [MoveResult.MOVED]
        journal.verify()


def test_a_reader_cannot_write(place: Path) -> None:
    with closing(open_at(place)) as journal:
        open_sheet(journal)
        with closing(read_at(place)) as reader, pytest.raises(apsw.ReadOnlyError):
            reader._connection.execute("DELETE FROM state")


def test_batch_with_unreadable_pages_is_not_opened(place: Path) -> None:
    def pages() -> list[bytes]:
        raise OSError(5, "Input/output error")

    with closing(open_at(place)) as journal:
        with pytest.raises(OSError, match="Input/output"):
            open_sheet(journal, pages=(page for page in [b"one"] if pages()))  # type: ignore[arg-type]  # any iterable
        assert list(journal.batches()) == []
        open_sheet(journal)
        journal.verify()
