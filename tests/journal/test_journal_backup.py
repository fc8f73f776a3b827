"""Copies of a journal for safekeeping."""

import stat
from contextlib import closing
from pathlib import Path

import pytest

from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalWentBack, OutputError
from paygw_batch.journal.opening.open import open_journal, read_journal
from tests.journal.journal_disk import failing_disk
from tests.journal.journal_rows import AT, ENDPOINT, all_due, intent, journal_path, open_at, open_sheet, read_at, send


def test_a_copy_made_while_a_run_is_on_is_whole_private_and_verifies(place: Path) -> None:
    copy = place / "copy.sqlite3"
    with closing(open_at(place)) as journal:
        open_sheet(journal, new=50)
        send(journal, 1, OutcomeKind.PAID)
        with closing(read_at(place)) as reader:
            reader.backup(copy)
        head = journal.head()
        journal.append([])
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert sorted(path.name for path in place.iterdir()) == ["copy.sqlite3", "journals", "state", "witness"]
    with closing(read_journal(copy, witness_dir=place / "witness", endpoint=ENDPOINT)) as reader:
        assert reader.head() == head
        assert reader.verify()["paid"] == 50


def test_the_run_itself_can_make_a_copy_and_goes_on(place: Path) -> None:
    copy = place / "copy.sqlite3"
    with closing(open_at(place)) as journal:
        open_sheet(journal)
        journal.backup(copy)
        (due, *_) = all_due(journal, 1)
        assert list(journal.append([intent(due)])) == [True]
    with closing(read_journal(copy, witness_dir=place / "witness", endpoint=ENDPOINT)) as reader:
        assert {row.state for row in reader.rows(1)} == {State.READY}


def test_a_copy_never_replaces_a_file(place: Path) -> None:
    copy = place / "copy.sqlite3"
    copy.write_text("precious")
    with closing(open_at(place)) as journal:
        open_sheet(journal)
        with pytest.raises(OutputError, match="already exists"):
            journal.backup(copy)
    assert copy.read_text() == "precious"
    assert not [path for path in place.iterdir() if path.name.startswith(".")]


def test_a_copy_that_cannot_be_written_leaves_nothing_behind(place: Path) -> None:
    with failing_disk() as disk, closing(open_at(place)) as journal:
        open_sheet(journal)
        disk.fail_at, disk.stays = disk.operations + 1, True
        with pytest.raises(OutputError, match="cannot be written"):
            journal.backup(place / "copy.sqlite3")
        disk.fail_at = 0
        send(journal, 1, OutcomeKind.PAID)
    assert sorted(path.name for path in place.iterdir()) == ["journals", "state", "witness"]
    with closing(read_at(place)) as reader, pytest.raises(OutputError, match="cannot be written"):
        reader.backup(place / "nowhere" / "copy.sqlite3")


def test_sending_from_a_copy_is_refused(place: Path) -> None:
    copy = place / "copy.sqlite3"
    with closing(open_at(place)) as journal:
        open_sheet(journal)
        journal.backup(copy)
    with pytest.raises(JournalWentBack, match="copy of the journal"):
        open_journal(copy, witness_dir=place / "witness", endpoint=ENDPOINT, now=AT, holder="a test")
    assert journal_path(place).exists()
