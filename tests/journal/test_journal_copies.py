"""Copies of a journal: complete and private, and refused once facts were recorded that they do not have."""

import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import apsw
import pytest

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.core.evidence import Claim, Evidence, EvidenceSource, Proof, SignedOrder
from paygw_batch.core.lifecycle import Resolution, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import (
    JournalMissing,
    JournalNotAdopted,
    JournalTooOld,
    JournalUnwritable,
    OutputError,
    SentLogDamaged,
)
from paygw_batch.journal.adopt import Adoption
from paygw_batch.journal.file_location import FileLocation
from paygw_batch.journal.sent_log import NOTES, RUN, LoggedAttempt, SentLog, SentLogLine, newest_line
from paygw_batch.journal.sqlite import sqlite_journal
from paygw_batch.journal.sqlite.connect import connect
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal, SqliteReader
from paygw_batch.journal.sqlite.sqlite_tables import QUERIES, append_facts
from paygw_batch.journal.values import (
    AdoptionNote,
    ClockComparison,
    MoveResult,
    NewNotice,
    Occasion,
    Remark,
    StatementNote,
)
from tests.support.journal_disk import failing_disk
from tests.support.journal_rows import (
    AT,
    WORDS,
    adopt_journal_at,
    arrival,
    copy_journal,
    create_journal_at,
    due_rows,
    file_location,
    intent,
    journal_path,
    new_instruction,
    open_journal_at,
    open_sheet,
    open_sheet_at,
    outcome_of,
    put_back,
    read_journal_at,
    resolved,
    send,
    withdrawal,
)

OTHER_NAME = EndpointIdentity.create("gateway2.example", "1234", "merchant")
Write = Callable[[SqliteJournal], object]


def open_copy(folder: Path, path: Path) -> SqliteJournal:
    return file_location(folder, path).open_to_write("a test")


def test_copy_made_during_run_is_complete_and_private(folder: Path) -> None:
    copies = [folder / name for name in ("by a reader.sqlite3", "by the run.sqlite3")]
    with closing(open_journal_at(folder)) as journal:
        open_sheet(journal, new=50)
        send(journal, 1, OutcomeKind.PAID)
        open_sheet(journal, "b2", [new_instruction(2, "NEW")])
        with closing(read_journal_at(folder)) as reader:
            reader.backup(copies[0])
        journal.backup(copies[1])
        head = journal.head()
        assert list(journal.append([intent(due_rows(journal, 2)[0])])) == [MoveResult.MOVED]
    assert sorted(path.name for path in folder.iterdir()) == [*(copy.name for copy in copies), "journals", "state"]
    for copy in copies:
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
        with closing(file_location(folder, copy).open_to_read()) as reader:
            counts = reader.verify()
            assert (reader.head(), counts["paid"], counts["ready"]) == (head, 50, 1)


def test_failed_copy_leaves_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = folder / "copy.sqlite3"
    fail_midway = Mock(side_effect=apsw.FullError("database or disk is full"))
    with failing_disk() as disk, closing(open_journal_at(folder)) as journal:
        open_sheet(journal)
        with monkeypatch.context() as failing:
            failing.setattr(sqlite_journal, "_copy_database", fail_midway)
            with pytest.raises(OutputError, match="cannot be written"):
                journal.backup(copy)
        disk.fail_at, disk.stays = disk.operations + 1, True
        with pytest.raises(OutputError, match="cannot be written"):
            journal.backup(copy)
        disk.fail_at = 0
        with pytest.raises(OutputError, match="cannot be written"):
            journal.backup(folder / "nowhere" / "copy.sqlite3")
        assert sorted(path.name for path in folder.iterdir()) == ["journals", "state"]
        copy.write_text("precious")
        with pytest.raises(OutputError, match="already exists"):
            journal.backup(copy)
        send(journal, 1, OutcomeKind.PAID)
    assert sorted(path.name for path in folder.iterdir()) == ["copy.sqlite3", "journals", "state"]
    assert copy.read_text() == "precious"


def test_copied_outbox_neither_repeats_nor_loses_notices(folder: Path) -> None:
    copy, now = folder / "copy.sqlite3", datetime.fromisoformat(AT)
    notices = [NewNotice(Occasion.PLAN_WAITS, subject, "b1", ["ada@example.com"], {}) for subject in ("sent", "waits")]
    with closing(open_journal_at(folder)) as journal, file_location(folder).outbox(write=True) as outbox:
        open_sheet(journal)
        for notice in notices:
            outbox.add([notice], AT)
        sent, waits = outbox.due(now, limit=9)
        assert outbox.claim(sent, {}, now)
        outbox.record_sent(sent, AT)
        journal.backup(copy)
    with file_location(folder, copy).outbox(write=True) as restored:
        assert [notice.id for notice in restored.due(now, limit=9)] == [waits.id]
        restored.add(notices[:1], AT)
        assert [notice.id for notice in restored.due(now, limit=9)] == [waits.id], "it was told before"


def outcome_evidence(order_id: str) -> Evidence:
    claim = Claim(order_id, "1500.50", "KES", "approved", "ref", Proof.PROVEN)
    return Evidence(EvidenceSource.NOTIFICATION, claim, f"{order_id} is paid")


WRITES: dict[str, Write] = {
    "a batch": open_sheet,
    "a hold without a fact": lambda journal: journal.record_evidence([outcome_evidence("ORD-2")], WORDS, at=AT),
    "a withdrawal by the run": lambda journal: journal.withdraw(withdrawal("1" * 64)),
    "an unknown order": lambda journal: journal.record_evidence([outcome_evidence("nobody")], WORDS, at=AT),
    "an intent": lambda journal: journal.append([intent(due_rows(journal, 1)[0])]),
    "an answer": lambda journal: journal.append([outcome_of(2, 1, OutcomeKind.REJECTED)]),
    "a clock": lambda journal: journal.settle([], note=ClockComparison(AT, AT, 3)),
    "a statement": lambda journal: journal.settle([], note=StatementNote("b1", "s.csv", "2" * 64, "amina", AT)),
    "an order": lambda journal: journal.settle([], order=SignedOrder("b1", "{}", "", "3" * 64)),
    "a person's word": lambda journal: journal.settle([resolved(1, 0, Resolution.PAID)]),
}
"""The writes of a run, each in one transaction."""


def withdraw_during_run(folder: Path, sha256: str = "1" * 64) -> None:
    file_location(folder).withdraw(withdrawal(sha256))


def record_during_run(folder: Path) -> None:
    with file_location(folder).open_note_recorder() as keep:
        keep([arrival()])


def adopt_under_other_name(folder: Path) -> None:
    with closing(Adoption(file_location(folder, endpoint=OTHER_NAME), beside=None)) as adoption:
        adoption.carry_out("ada")


def write_everything(folder: Path) -> Iterator[Path]:
    """Make every kind of write, and yield a copy of the journal after each."""
    create_journal_at(folder)
    yield copy_journal(folder, "made")
    withdraw_during_run(folder, "4" * 64)
    yield copy_journal(folder, "withdrawn before any run")
    with closing(open_journal_at(folder)) as journal:
        for name, write in WRITES.items():
            write(journal)
            yield copy_journal(folder, name)
        withdraw_during_run(folder, "5" * 64)
        yield copy_journal(folder, "withdrawn beside the run")
        record_during_run(folder)
        yield copy_journal(folder, "a notification beside the run")
        journal.process_arrivals(WORDS, at=AT)
        yield copy_journal(folder, "a notification that was judged")
    adopt_under_other_name(folder)
    yield copy_journal(folder, "adopted under another name")


def test_copy_restored_between_writes_is_refused(folder: Path) -> None:
    copies, accepted = list(write_everything(folder)), []
    for copy in reversed(copies[:-1]):
        put_back(folder, copy)
        for open_it in (partial(open_journal_at, makes=False), read_journal_at):
            with suppress(JournalTooOld):
                open_it(folder).close()
                accepted.append(copy.name)
    assert accepted == []
    put_back(folder, copies[-1])
    with closing(open_journal_at(folder)) as journal:
        journal.verify()


def test_withdrawal_blocks_older_copy_of_moved_journal(folder: Path) -> None:
    open_journal_at(folder).close()
    before, path = copy_journal(folder), journal_path(folder)
    path = path.rename(path.with_name("kept.sqlite3"))  # no run has opened it there yet
    file_location(folder, path).withdraw(withdrawal("1" * 64))
    path.unlink()
    shutil.copy(before / journal_path(folder).name, path)
    with pytest.raises(JournalTooOld):
        open_copy(folder, path)


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(5, "Input/output error")])
def test_unlogged_withdrawal_can_be_repeated(
    folder: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    open_journal_at(folder).close()
    fail = Mock(side_effect=failure)
    with monkeypatch.context() as cut:
        cut.setattr(SentLog, "log_commit", fail)
        cut.setattr("paygw_batch.journal.sent_log.replacement_file", fail)
        with pytest.raises(KeyboardInterrupt if isinstance(failure, KeyboardInterrupt) else JournalUnwritable):
            withdraw_during_run(folder)
    with closing(read_journal_at(folder)) as journal:
        assert [withdrawal.sha256 for withdrawal in journal.withdrawals()] == ["1" * 64]
    copy = copy_journal(folder)
    withdraw_during_run(folder)  # repeat the command
    put_back(folder, copy)
    with pytest.raises(JournalTooOld):
        open_journal_at(folder)


def test_next_run_logs_unlogged_withdrawal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_journal_at(folder).close()
    before = copy_journal(folder)
    with monkeypatch.context() as cut:
        cut.setattr("paygw_batch.journal.file_location.log_concurrent_fact", lambda *_: None)
        withdraw_during_run(folder)
    open_journal_at(folder).close()
    put_back(folder, before)
    with pytest.raises(JournalTooOld):
        open_journal_at(folder)


def test_withdrawal_during_adoption_is_logged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_journal_at(folder).close()
    real = FileLocation.open_to_read

    def adopt_first(self: FileLocation, *, must_be_known: bool = False) -> SqliteReader:
        reader = real(self, must_be_known=must_be_known)
        adopt_under_other_name(folder)
        return reader

    before = copy_journal(folder)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(FileLocation, "open_to_read", adopt_first)
        withdraw_during_run(folder)
    put_back(folder, before)
    with pytest.raises(JournalTooOld):
        open_journal_at(folder)


def test_withdrawal_lookup_uses_index(folder: Path) -> None:
    with closing(open_journal_at(folder)) as journal:
        query = f"EXPLAIN QUERY PLAN {QUERIES['withdrawn']}"
        plan = [line[-1] for line in journal._connection.execute(query, {"sha256": ""})]
    assert plan == ["SEARCH f USING INDEX fact_of_journal (kind=?)"]


def test_run_continues_after_concurrent_withdrawal(folder: Path) -> None:
    with closing(open_journal_at(folder)) as journal:
        open_sheet(journal)
        withdraw_during_run(folder)
        first, second = due_rows(journal, 1)[:2]
        assert list(journal.append([intent(first)])) == [MoveResult.MOVED]
        with closing(connect(journal_path(folder), write=True)) as other:
            other.execute("BEGIN IMMEDIATE")
            append_facts(other, [Remark(AdoptionNote("amina", "/elsewhere"), AT)])
            other.execute("COMMIT")
        with pytest.raises(JournalUnwritable, match="another process has written to it"):
            journal.append([intent(second)])


def test_torn_line_does_not_hide_previous_withdrawal(folder: Path) -> None:
    open_journal_at(folder).close()
    for digit in "12":
        withdraw_during_run(folder, digit * 64)
    (path,) = (folder / "journals").glob(f"*/{NOTES}.1")
    content = path.read_bytes().rstrip(bytes(1))
    path.write_bytes(content[:-20] + b"\xfe" * 10 + content[-10:])
    newest = newest_line(path.parent, NOTES)
    assert newest is not None
    assert newest.number == 1
    open_journal_at(folder).close()


def test_notification_is_logged_before_acknowledgement(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_journal_at(folder).close()
    fail = Mock(side_effect=OSError(5, "Input/output error"))
    with monkeypatch.context() as cut:
        cut.setattr("paygw_batch.journal.file_location.log_concurrent_fact", fail)
        with pytest.raises(JournalUnwritable):
            record_during_run(folder)
    record_during_run(folder)
    with closing(open_journal_at(folder)) as journal:
        assert journal.verify()["notifications_waiting"] == 2


def test_listener_detects_replaced_file(folder: Path) -> None:
    open_journal_at(folder).close()
    copy = copy_journal(folder)
    with file_location(folder).open_note_recorder() as keep:
        keep([arrival()])
        put_back(folder, copy)
        with pytest.raises(JournalTooOld):
            keep([arrival()])


def log_path(directory: Path) -> Path:
    (folder,) = (path for path in (directory / "journals").iterdir() if path.is_dir())
    return folder / f"{RUN}.1"


def newest_logged(folder: Path) -> SentLogLine:
    newest = newest_line(log_path(folder).parent, RUN)
    assert newest is not None
    return newest


def test_every_commit_is_logged_before_its_call_returns(folder: Path) -> None:
    with closing(open_journal_at(folder)) as journal:
        open_sheet(journal)
        for due in due_rows(journal, 1):
            journal.append([intent(due)])
            head, newest = journal.head(), newest_logged(folder)
            assert log_path(folder).parent.name == head.journal_id
            assert (newest.number, newest.hash) == (head.seq, head.hash)
            assert newest.attempts == (LoggedAttempt(due.number, 1, due.order_id),)


def test_sent_log_behind_journal_is_updated(folder: Path) -> None:
    open_sheet_at(folder)
    behind = log_path(folder).read_bytes()
    with closing(open_journal_at(folder)) as journal:
        send(journal, 1, OutcomeKind.PAID)
    log_path(folder).write_bytes(behind)
    with closing(open_journal_at(folder)) as journal:
        assert journal.notes == ()
        assert [row.state for row in journal.rows(1)] == [State.PAID] * 3
        assert newest_logged(folder).number == 7


def remove_journal(path: Path) -> None:
    for file in path.parent.iterdir():
        file.unlink()


@pytest.fixture
def _restored_copy(folder: Path) -> None:
    """Replace a journal with its copy from before a payment."""
    open_sheet_at(folder)
    copy = copy_journal(folder)
    with closing(open_journal_at(folder)) as journal:
        send(journal, 1, OutcomeKind.PAID)
    put_back(folder, copy)


def all_files(folder: Path) -> dict[str, bytes]:
    """Return all files without the lock's holder and SQLite's index of its log, which any reader may rebuild."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith((".lock", "-shm"))]
    return {str(path): path.read_bytes() for path in files}


@pytest.mark.usefixtures("_restored_copy")
def test_older_copy_is_refused_without_writing(folder: Path) -> None:
    before = all_files(folder)
    for open_it in (open_journal_at, read_journal_at):
        with pytest.raises(JournalTooOld, match="ends at fact 1, but fact 7 had been written") as raised:
            open_it(folder)
        assert "`paygw-batch journal adopt`" in raised.value.hint
    assert all_files(folder) == before


@pytest.mark.parametrize("is_empty", [False, True])
@pytest.mark.parametrize("write", [open_sheet_at, withdraw_during_run])
def test_removed_or_emptied_journal_is_refused(folder: Path, is_empty: bool, write: Callable[[Path], object]) -> None:
    open_journal_at(folder).close()
    write(folder)
    path = journal_path(folder)
    remove_journal(path)
    if is_empty:
        path.touch(mode=0o600)
    for open_it in (partial(open_journal_at, makes=False), read_journal_at):
        with pytest.raises(JournalTooOld, match="is missing"):
            open_it(folder)
    assert path.exists() is is_empty


def test_replaced_journal_is_refused(folder: Path) -> None:
    path = open_sheet_at(folder)
    other = folder / "other"
    other.mkdir(mode=0o700)
    with closing(open_journal_at(other)) as journal:
        open_sheet(journal)
        send(journal, 1, OutcomeKind.PAID)
    shutil.copy(journal_path(other), path)
    for open_it in (open_journal_at, read_journal_at):
        with pytest.raises(JournalTooOld, match=r"This is not the journal|copy of the journal"):
            open_it(folder)


@pytest.mark.usefixtures("_restored_copy")
def test_longer_diverged_copy_is_refused(folder: Path) -> None:
    known = log_path(folder).read_bytes()
    log_path(folder).unlink()
    adopt_journal_at(folder)
    with closing(open_journal_at(folder)) as journal:
        send(journal, 1, OutcomeKind.REJECTED)
    log_path(folder).write_bytes(known)
    with pytest.raises(JournalTooOld, match="has diverged"):
        open_journal_at(folder)


def test_copy_next_to_original_can_only_be_read(folder: Path) -> None:
    path = open_sheet_at(folder)
    copy = copy_journal(folder) / path.name
    copy.parent.chmod(0o700)
    with pytest.raises(JournalTooOld, match="copy of the journal"):
        open_copy(folder, copy)
    with closing(file_location(folder, copy).open_to_read()) as reader:
        assert reader.verify()["instructions"] == 3
    with closing(open_journal_at(folder)) as journal:
        send(journal, 1, OutcomeKind.PAID)
    remove_journal(path)
    with pytest.raises(JournalTooOld, match="older copy"):
        open_copy(folder, copy)


def test_moved_journal_stays_usable_at_new_path(folder: Path) -> None:
    path = open_sheet_at(folder)
    moved = folder / "elsewhere" / "kept.sqlite3"
    moved.parent.mkdir(mode=0o700)
    path.rename(moved)
    for notes in ((f"The journal was moved here from {path}.",), ()):
        with closing(open_copy(folder, moved)) as journal:
            assert journal.notes == notes
            journal_id = journal.head().journal_id
            journal.mark_interrupted(AT)
    lists_it = re.escape(f"lists another journal of the same merchant: {journal_id} at {moved}")
    with pytest.raises(JournalMissing, match=lists_it):
        open_journal_at(folder, makes=False)


@pytest.mark.parametrize("facts", [0, 1])
def test_unknown_journal_is_refused_until_adopted(folder: Path, facts: int) -> None:
    """A copy from before the first payment would pay everything again."""
    with closing(open_journal_at(folder)) as journal:
        for _ in range(facts):
            open_sheet(journal)
    log_path(folder).unlink()
    before = all_files(folder)
    with closing(read_journal_at(folder)) as reader:
        (note,) = reader.notes
    assert "does not list the journal" in note
    with pytest.raises(JournalNotAdopted):
        file_location(folder).open_to_read(must_be_known=True)
    with pytest.raises(JournalNotAdopted, match="does not list the journal") as raised:
        open_journal_at(folder)
    assert "paygw-batch journal adopt" in raised.value.hint
    assert all_files(folder) == before
    adopt_journal_at(folder)
    with closing(open_journal_at(folder)) as journal:
        assert journal.notes == ()
        newest = newest_logged(folder)
        assert (newest.number, newest.hash) == (facts + 1, journal.head().hash)
        journal.verify()


def test_unwritable_sent_log_ends_all_writing(folder: Path) -> None:
    with closing(open_journal_at(folder)) as journal:
        open_sheet(journal)
        first, second, _ = due_rows(journal, 1)
        fail = Mock(side_effect=OSError(5, "Input/output error"))
        journal._sent_log.log_commit = fail  # type: ignore[method-assign]  # stands for a disk that fails
        with pytest.raises(JournalUnwritable, match="record of the payments it sent: Input/output error"):
            journal.append([intent(first)])
        with pytest.raises(JournalUnwritable):
            journal.append([intent(second)])
    with closing(open_journal_at(folder)) as journal:
        assert journal.mark_interrupted(AT) == 1


def test_damaged_sent_log_does_not_count_as_missing(folder: Path) -> None:
    open_sheet_at(folder)
    log_path(folder).write_bytes(b"")
    for open_it in (open_journal_at, read_journal_at):
        with pytest.raises(SentLogDamaged):
            open_it(folder)
