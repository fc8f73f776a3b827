"""A journal that went back in time is found before anything is sent from it."""

import re
import shutil
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalMissing, JournalNotAdopted, JournalUnwritable, JournalWentBack, LeftDamaged
from paygw_batch.journal.left import RUN, Noted, newest
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from tests.support.journal_rows import (
    AT,
    adopt_at,
    all_due,
    file_place,
    intent,
    journal_path,
    open_at,
    open_sheet,
    outcome_of,
    read_at,
    send,
)


def folder_of(place: Path) -> Path:
    """Return the folder of the one journal that is known."""
    (folder,) = (path for path in (place / "journals").iterdir() if path.is_dir())
    return folder


def left_of(place: Path) -> Path:
    return folder_of(place) / f"{RUN}.1"


def fact_in(place: Path) -> tuple[str, int, str]:
    """Return what is known of the facts."""
    seen = newest(folder_of(place), RUN)
    assert seen is not None
    return folder_of(place).name, seen.number, seen.hash


def begun(place: Path, batch: str = "b1") -> Path:
    """A journal with one batch and nothing sent."""
    with closing(open_at(place)) as journal:
        open_sheet(journal, batch)
    return journal_path(place)


def open_moved(path: Path, place: Path) -> SqliteJournal:
    """Open the journal of a place where it is now."""
    return file_place(place, path).open_to_write("a test")


def remove(path: Path) -> None:
    for file in path.parent.iterdir():
        file.unlink()


@pytest.fixture
def relapsed(place: Path) -> Path:
    """A place where the journal of before a payment was put back after it."""
    path = begun(place)
    shutil.copytree(path.parent, place / "backup")
    with closing(open_at(place)) as journal:
        send(journal, 1, OutcomeKind.PAID)
    remove(path)
    path.parent.rmdir()
    shutil.copytree(place / "backup", path.parent)
    return path


def everything(place: Path) -> dict[str, bytes]:
    """Every byte that counts: not the lock's holder, nor SQLite's index of its log, which any reader may rebuild."""
    files = [path for path in place.rglob("*") if path.is_file() and not path.name.endswith((".lock", "-shm"))]
    return {str(path): path.read_bytes() for path in files}


def test_older_copy_is_refused_without_writing(relapsed: Path, place: Path) -> None:
    before = everything(place)
    for open_it in (open_at, read_at):
        with pytest.raises(JournalWentBack, match="ends at fact 1, but fact 7 was already written") as found:
            open_it(place)
        assert "`paygw-batch journal adopt`" in found.value.hint
    assert everything(place) == before
    assert relapsed.exists()


def test_removed_journal_is_refused(place: Path) -> None:
    remove(begun(place))
    for open_it in (partial(open_at, makes=False), read_at):
        with pytest.raises(JournalWentBack, match="is gone"):
            open_it(place)
    assert not journal_path(place).exists()


def test_emptied_journal_is_refused(place: Path) -> None:
    path = begun(place)
    remove(path)
    path.touch(mode=0o600)
    for open_it in (open_at, read_at):
        with pytest.raises(JournalWentBack, match="is gone"):
            open_it(place)


def test_replaced_journal_is_refused(place: Path) -> None:
    path = begun(place)
    other = place / "other"
    other.mkdir(mode=0o700)
    with closing(open_at(other)) as journal:
        open_sheet(journal)
        send(journal, 1, OutcomeKind.PAID)
    shutil.copy(journal_path(other), path)
    for open_it in (open_at, read_at):
        with pytest.raises(JournalWentBack, match=r"This is not the journal|copy of the journal"):
            open_it(place)


def test_longer_diverged_copy_is_refused(relapsed: Path, place: Path) -> None:
    known = left_of(place).read_bytes()
    left_of(place).unlink()
    adopt_at(place)
    with closing(open_at(place)) as journal:
        for due in all_due(journal, 1):
            journal.append([intent(due, AT)])
        for number in (1, 2, 3):
            journal.append([outcome_of(number, 1, OutcomeKind.REJECTED)])
    left_of(place).write_bytes(known)
    with pytest.raises(JournalWentBack, match="has diverged"):
        open_at(place)
    assert relapsed.exists()


def test_copy_beside_original_can_only_be_read(place: Path) -> None:
    path = begun(place)
    copy = place / "copies" / "journal.sqlite3"
    copy.parent.mkdir(mode=0o700)
    shutil.copy(path, copy)
    with pytest.raises(JournalWentBack, match="copy of the journal"):
        file_place(place, copy).open_to_write("a test")
    with closing(file_place(place, copy).open_to_read()) as reader:
        assert reader.verify()["instructions"] == 3
    with closing(open_at(place)) as journal:
        send(journal, 1, OutcomeKind.PAID)
    remove(path)
    with pytest.raises(JournalWentBack, match="older copy"):
        file_place(place, copy).open_to_write("a test")


def test_moved_journal_stays_usable_at_new_path(place: Path) -> None:
    path = begun(place)
    moved = place / "elsewhere" / "kept.sqlite3"
    moved.parent.mkdir(mode=0o700)
    path.rename(moved)
    for _ in range(2):
        with closing(open_moved(moved, place)) as journal:
            notes, journal_id = journal.notes, journal.head().journal_id
            journal.mark_interrupted(AT)
    assert notes == ()
    with pytest.raises(
        JournalMissing, match=re.escape(f"remembers another journal of the same merchant: {journal_id} at {moved}")
    ):
        open_at(place, makes=False)


def test_first_opening_reports_moved_journal(place: Path) -> None:
    path = begun(place)
    moved = path.with_name("kept.sqlite3")
    path.rename(moved)
    with closing(open_moved(moved, place)) as journal:
        assert journal.notes == (f"The journal was moved here from {path}.",)


def test_an_unknown_journal_is_refused_until_adopted(place: Path) -> None:
    begun(place)
    left_of(place).unlink()
    before = everything(place)
    with pytest.raises(JournalNotAdopted, match="has never seen the journal") as found:
        open_at(place)
    assert "paygw-batch journal adopt" in found.value.hint
    assert everything(place) == before
    adopt_at(place)
    with closing(open_at(place)) as journal:
        assert journal.notes == ()
        assert fact_in(place) == (journal.head().journal_id, 2, journal.head().hash)
        journal.verify()


def test_an_unknown_journal_without_a_fact_is_refused(place: Path) -> None:
    """A copy made on the first day, before anything was sent, would pay everything again."""
    open_at(place).close()
    left_of(place).unlink()
    with pytest.raises(JournalNotAdopted):
        open_at(place)


def test_unadopted_journal_can_be_read_with_note(place: Path) -> None:
    begun(place)
    left = left_of(place)
    left.unlink()
    with closing(read_at(place)) as reader:
        (note,) = reader.notes
    assert "has never seen the journal" in note
    assert not left.exists(), "reading makes no journal known"
    with pytest.raises(JournalNotAdopted):
        file_place(place).open_to_read(must_be_known=True)


def test_host_records_behind_journal_are_updated(place: Path) -> None:
    begun(place)
    behind = left_of(place).read_bytes()
    with closing(open_at(place)) as journal:
        send(journal, 1, OutcomeKind.PAID)
    left_of(place).write_bytes(behind)
    with closing(open_at(place)) as journal:
        assert journal.notes == ()
        assert [row.state for row in journal.rows(1)] == [State.PAID] * 3
        assert fact_in(place)[1] == 7


def test_every_commit_is_noted_before_its_call_returns(place: Path) -> None:
    with closing(open_at(place)) as journal:
        open_sheet(journal)
        for due in all_due(journal, 1):
            journal.append([intent(due)])
            head, seen = journal.head(), newest(folder_of(place), RUN)
            assert fact_in(place) == (head.journal_id, head.seq, head.hash)
            assert seen is not None
            assert seen.noted == (Noted(due.number, 1, due.order_id),)


def test_unwritable_note_ends_all_writing(place: Path) -> None:
    with closing(open_at(place)) as journal:
        open_sheet(journal)
        first, second, _ = all_due(journal, 1)

        def fail(*_: object) -> None:
            raise OSError(5, "Input/output error")

        journal._left.note = fail  # type: ignore[method-assign,assignment]  # stands for a disk that fails
        with pytest.raises(JournalUnwritable, match="record of the payments it sent: Input/output error"):
            journal.append([intent(first)])
        with pytest.raises(JournalUnwritable):
            journal.append([intent(second)])
    with closing(open_at(place)) as journal:
        assert journal.mark_interrupted(AT) == 1


@pytest.mark.parametrize("content", [b"", bytes(4096), b"x" * 100, b"x\n" * 100])
def test_damaged_record_does_not_count_as_missing(place: Path, content: bytes) -> None:
    begun(place)
    open_at(place).close()
    left_of(place).write_bytes(content)
    for open_it in (open_at, read_at):
        with pytest.raises(LeftDamaged):
            open_it(place)
