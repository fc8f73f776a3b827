"""Copies of a journal for safekeeping."""

import stat
from contextlib import closing
from datetime import datetime
from pathlib import Path
from unittest.mock import Mock

import apsw
import pytest

from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import OutputError
from paygw_batch.journal.sqlite import sqlite_journal
from paygw_batch.journal.values import MoveResult, NewNotice, Occasion
from tests.support.journal_disk import failing_disk
from tests.support.journal_rows import (
    AT,
    due_rows,
    file_location,
    intent,
    open_journal_at,
    open_sheet,
    read_journal_at,
    send,
)


def test_copy_made_during_run_is_complete_and_private(place: Path) -> None:
    copy = place / "copy.sqlite3"
    with closing(open_journal_at(place)) as journal:
        open_sheet(journal, new=50)
        send(journal, 1, OutcomeKind.PAID)
        with closing(read_journal_at(place)) as reader:
            reader.backup(copy)
        head = journal.head()
        journal.append([])
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert sorted(path.name for path in place.iterdir()) == ["copy.sqlite3", "journals", "state"]
    with closing(file_location(place, copy).open_to_read()) as reader:
        assert reader.head() == head
        assert reader.verify()["paid"] == 50


def test_run_continues_after_copy(place: Path) -> None:
    copy = place / "copy.sqlite3"
    with closing(open_journal_at(place)) as journal:
        open_sheet(journal)
        journal.backup(copy)
        (due, *_) = due_rows(journal, 1)
        assert list(journal.append([intent(due)])) == [MoveResult.MOVED]
    with closing(file_location(place, copy).open_to_read()) as reader:
        assert {row.state for row in reader.rows(1)} == {State.READY}


def test_failed_copy_leaves_no_file(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_midway = Mock(side_effect=apsw.FullError("database or disk is full"))
    monkeypatch.setattr(sqlite_journal, "_copy_database", fail_midway)
    with closing(open_journal_at(place)) as journal, pytest.raises(OutputError, match="cannot be written"):
        journal.backup(place / "copy.sqlite3")
    assert sorted(path.name for path in place.iterdir()) == ["journals", "state"]


def test_copy_never_replaces_file(place: Path) -> None:
    copy = place / "copy.sqlite3"
    copy.write_text("precious")
    with closing(open_journal_at(place)) as journal:
        open_sheet(journal)
        with pytest.raises(OutputError, match="already exists"):
            journal.backup(copy)
    assert copy.read_text() == "precious"
    assert not [path for path in place.iterdir() if path.name.startswith(".")]


def test_unwritable_copy_leaves_no_file(place: Path) -> None:
    with failing_disk() as disk, closing(open_journal_at(place)) as journal:
        open_sheet(journal)
        disk.fail_at, disk.stays = disk.operations + 1, True
        with pytest.raises(OutputError, match="cannot be written"):
            journal.backup(place / "copy.sqlite3")
        disk.fail_at = 0
        send(journal, 1, OutcomeKind.PAID)
    assert sorted(path.name for path in place.iterdir()) == ["journals", "state"]
    with closing(read_journal_at(place)) as reader, pytest.raises(OutputError, match="cannot be written"):
        reader.backup(place / "nowhere" / "copy.sqlite3")


def test_copied_outbox_repeats_and_loses_nothing(place: Path) -> None:
    copy, now = place / "copy.sqlite3", datetime.fromisoformat(AT)
    with closing(open_journal_at(place)) as journal, file_location(place).outbox(write=True) as outbox:
        open_sheet(journal)
        for subject in ("sent", "waits"):
            outbox.add([NewNotice(Occasion.PLAN_WAITS, subject, "b1", ["ada@example.com"], {})], AT)
        sent, waits = outbox.due(now, limit=9)
        assert outbox.claim(sent, {}, now)
        outbox.record_sent(sent, AT)
        journal.backup(copy)
    with file_location(place, copy).outbox(write=True) as restored:
        assert [due_notice.id for due_notice in restored.due(now, limit=9)] == [waits.id]
        restored.add([NewNotice(Occasion.PLAN_WAITS, "sent", "b1", ["ada@example.com"], {})], AT)
        assert [due_notice.id for due_notice in restored.due(now, limit=9)] == [waits.id], "it was told before"
