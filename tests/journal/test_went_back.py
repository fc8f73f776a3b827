"""A journal that went back in time is detected before anything is sent from it."""

import re
import shutil
from contextlib import closing
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalMissing, JournalNotAdopted, JournalTooOld, JournalUnwritable, SentLogDamaged
from paygw_batch.journal.sent_log import RUN, LoggedAttempt, newest_line
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from tests.support.journal_rows import (
    AT,
    adopt_journal_at,
    due_rows,
    file_location,
    intent,
    journal_path,
    open_journal_at,
    open_sheet,
    outcome_of,
    read_journal_at,
    send,
)


def folder_of(place: Path) -> Path:
    """Return the folder of the only known journal."""
    (folder,) = (path for path in (place / "journals").iterdir() if path.is_dir())
    return folder


def log_path(place: Path) -> Path:
    return folder_of(place) / f"{RUN}.1"


def newest_logged_fact(place: Path) -> tuple[str, int, str]:
    """Return the newest fact in the sent log."""
    newest = newest_line(folder_of(place), RUN)
    assert newest is not None
    return folder_of(place).name, newest.number, newest.hash


def make_journal(place: Path, batch: str = "b1") -> Path:
    """Create a journal with a batch of which nothing was sent."""
    with closing(open_journal_at(place)) as journal:
        open_sheet(journal, batch)
    return journal_path(place)


def open_moved(path: Path, place: Path) -> SqliteJournal:
    """Open the journal of `place` at its new path."""
    return file_location(place, path).open_to_write("a test")


def remove_journal(path: Path) -> None:
    for file in path.parent.iterdir():
        file.unlink()


@pytest.fixture
def restored_copy(place: Path) -> Path:
    """Return a directory with a journal that was replaced by its copy from before a payment."""
    path = make_journal(place)
    shutil.copytree(path.parent, place / "backup")
    with closing(open_journal_at(place)) as journal:
        send(journal, 1, OutcomeKind.PAID)
    remove_journal(path)
    path.parent.rmdir()
    shutil.copytree(place / "backup", path.parent)
    return path


def all_files(place: Path) -> dict[str, bytes]:
    """Return all files without the lock's holder and SQLite's index of its log, which any reader may rebuild."""
    files = [path for path in place.rglob("*") if path.is_file() and not path.name.endswith((".lock", "-shm"))]
    return {str(path): path.read_bytes() for path in files}


def test_older_copy_is_refused_without_writing(restored_copy: Path, place: Path) -> None:
    before = all_files(place)
    for open_it in (open_journal_at, read_journal_at):
        with pytest.raises(JournalTooOld, match="ends at fact 1, but fact 7 had been written") as raised:
            open_it(place)
        assert "`paygw-batch journal adopt`" in raised.value.hint
    assert all_files(place) == before
    assert restored_copy.exists()


@pytest.mark.parametrize("is_empty", [False, True])
def test_removed_or_emptied_journal_is_refused(place: Path, is_empty: bool) -> None:
    path = make_journal(place)
    remove_journal(path)
    if is_empty:
        path.touch(mode=0o600)
    for open_it in (partial(open_journal_at, makes=False), read_journal_at):
        with pytest.raises(JournalTooOld, match="is missing"):
            open_it(place)
    assert path.exists() is is_empty


def test_replaced_journal_is_refused(place: Path) -> None:
    path = make_journal(place)
    other = place / "other"
    other.mkdir(mode=0o700)
    with closing(open_journal_at(other)) as journal:
        open_sheet(journal)
        send(journal, 1, OutcomeKind.PAID)
    shutil.copy(journal_path(other), path)
    for open_it in (open_journal_at, read_journal_at):
        with pytest.raises(JournalTooOld, match=r"This is not the journal|copy of the journal"):
            open_it(place)


def test_longer_diverged_copy_is_refused(restored_copy: Path, place: Path) -> None:
    known = log_path(place).read_bytes()
    log_path(place).unlink()
    adopt_journal_at(place)
    with closing(open_journal_at(place)) as journal:
        for due in due_rows(journal, 1):
            journal.append([intent(due, AT)])
        for number in (1, 2, 3):
            journal.append([outcome_of(number, 1, OutcomeKind.REJECTED)])
    log_path(place).write_bytes(known)
    with pytest.raises(JournalTooOld, match="has diverged"):
        open_journal_at(place)
    assert restored_copy.exists()


def test_copy_next_to_original_can_only_be_read(place: Path) -> None:
    path = make_journal(place)
    copy = place / "copies" / "journal.sqlite3"
    copy.parent.mkdir(mode=0o700)
    shutil.copy(path, copy)
    with pytest.raises(JournalTooOld, match="copy of the journal"):
        file_location(place, copy).open_to_write("a test")
    with closing(file_location(place, copy).open_to_read()) as reader:
        assert reader.verify()["instructions"] == 3
    with closing(open_journal_at(place)) as journal:
        send(journal, 1, OutcomeKind.PAID)
    remove_journal(path)
    with pytest.raises(JournalTooOld, match="older copy"):
        file_location(place, copy).open_to_write("a test")


def test_moved_journal_stays_usable_at_new_path(place: Path) -> None:
    path = make_journal(place)
    moved = place / "elsewhere" / "kept.sqlite3"
    moved.parent.mkdir(mode=0o700)
    path.rename(moved)
    for notes in ((f"The journal was moved here from {path}.",), ()):
        with closing(open_moved(moved, place)) as journal:
            assert journal.notes == notes
            journal_id = journal.head().journal_id
            journal.mark_interrupted(AT)
    with pytest.raises(
        JournalMissing, match=re.escape(f"lists another journal of the same merchant: {journal_id} at {moved}")
    ):
        open_journal_at(place, makes=False)


@pytest.mark.parametrize("facts", [0, 1])
def test_unknown_journal_is_refused_until_adopted(place: Path, facts: int) -> None:
    """A copy from before the first payment would pay everything again."""
    with closing(open_journal_at(place)) as journal:
        for _ in range(facts):
            open_sheet(journal)
    log_path(place).unlink()
    before = all_files(place)
    with pytest.raises(JournalNotAdopted, match="has never seen the journal") as raised:
        open_journal_at(place)
    assert "paygw-batch journal adopt" in raised.value.hint
    assert all_files(place) == before
    adopt_journal_at(place)
    with closing(open_journal_at(place)) as journal:
        assert journal.notes == ()
        assert newest_logged_fact(place) == (journal.head().journal_id, facts + 1, journal.head().hash)
        journal.verify()


def test_unadopted_journal_can_be_read_with_note(place: Path) -> None:
    make_journal(place)
    sent_log = log_path(place)
    sent_log.unlink()
    with closing(read_journal_at(place)) as reader:
        (note,) = reader.notes
    assert "has never seen the journal" in note
    assert not sent_log.exists(), "reading makes no journal known"
    with pytest.raises(JournalNotAdopted):
        file_location(place).open_to_read(must_be_known=True)


def test_sent_log_behind_journal_is_updated(place: Path) -> None:
    make_journal(place)
    behind = log_path(place).read_bytes()
    with closing(open_journal_at(place)) as journal:
        send(journal, 1, OutcomeKind.PAID)
    log_path(place).write_bytes(behind)
    with closing(open_journal_at(place)) as journal:
        assert journal.notes == ()
        assert [row.state for row in journal.rows(1)] == [State.PAID] * 3
        assert newest_logged_fact(place)[1] == 7


def test_every_commit_is_logged_before_its_call_returns(place: Path) -> None:
    with closing(open_journal_at(place)) as journal:
        open_sheet(journal)
        for due in due_rows(journal, 1):
            journal.append([intent(due)])
            head, newest = journal.head(), newest_line(folder_of(place), RUN)
            assert newest_logged_fact(place) == (head.journal_id, head.seq, head.hash)
            assert newest is not None
            assert newest.attempts == (LoggedAttempt(due.number, 1, due.order_id),)


def test_unwritable_sent_log_ends_all_writing(place: Path) -> None:
    with closing(open_journal_at(place)) as journal:
        open_sheet(journal)
        first, second, _ = due_rows(journal, 1)
        fail = Mock(side_effect=OSError(5, "Input/output error"))
        journal._sent_log.log_commit = fail  # type: ignore[method-assign]  # stands for a disk that fails
        with pytest.raises(JournalUnwritable, match="record of the payments it sent: Input/output error"):
            journal.append([intent(first)])
        with pytest.raises(JournalUnwritable):
            journal.append([intent(second)])
    with closing(open_journal_at(place)) as journal:
        assert journal.mark_interrupted(AT) == 1


@pytest.mark.parametrize("content", [b"", bytes(4096), b"x" * 100, b"x\n" * 100])
def test_damaged_sent_log_does_not_count_as_missing(place: Path, content: bytes) -> None:
    make_journal(place)
    open_journal_at(place).close()
    log_path(place).write_bytes(content)
    for open_it in (open_journal_at, read_journal_at):
        with pytest.raises(SentLogDamaged):
            open_it(place)
