"""A restored copy of a journal from between any two writes is detected, whatever was recorded since."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.core.evidence import Claim, Evidence, EvidenceSource, Proof, SignedOrder
from paygw_batch.core.lifecycle import Resolution
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import DocumentWithdrawn, JournalTooOld, JournalUnwritable
from paygw_batch.journal.adopt import Adoption
from paygw_batch.journal.file_location import FileLocation
from paygw_batch.journal.sent_log import NOTES, SentLog, newest_line
from paygw_batch.journal.sqlite.connect import connect
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal, SqliteReader
from paygw_batch.journal.sqlite.sqlite_tables import QUERIES, append_facts
from paygw_batch.journal.values import AdoptionNote, ClockComparison, MoveResult, Remark, StatementNote
from tests.support.journal_rows import (
    AT,
    arrival,
    create_journal_at,
    due_rows,
    file_location,
    intent,
    journal_path,
    open_journal_at,
    open_sheet,
    outcome_of,
    read_journal_at,
    resolved,
    withdrawal,
)

WORDS = {"approved": OutcomeKind.PAID}
OTHER_NAME = EndpointIdentity.create("gateway2.example", "1234", "merchant")
Write = Callable[[SqliteJournal], object]


def outcome_evidence(order_id: str) -> Evidence:
    claim = Claim(order_id, "1500.50", "KES", "approved", "ref", Proof.PROVEN)
    return Evidence(EvidenceSource.NOTIFICATION, claim, f"{order_id} is paid")


def send_first(journal: SqliteJournal) -> None:
    journal.append([intent(due_rows(journal, 1)[0])])


WRITES: dict[str, Write] = {
    "a batch": open_sheet,
    "a hold without a fact": lambda journal: journal.record_evidence([outcome_evidence("ORD-2")], WORDS, at=AT),
    "a withdrawal by the run": lambda journal: journal.withdraw(withdrawal("1" * 64)),
    "an unknown order": lambda journal: journal.record_evidence([outcome_evidence("nobody")], WORDS, at=AT),
    "an intent": send_first,
    "an answer": lambda journal: journal.append([outcome_of(2, 1, OutcomeKind.REJECTED)]),
    "a clock": lambda journal: journal.settle([], note=ClockComparison(AT, AT, 3)),
    "a statement": lambda journal: journal.settle([], note=StatementNote("b1", "s.csv", "2" * 64, "amina", AT)),
    "an order": lambda journal: journal.settle([], order=SignedOrder("b1", "{}", "", "3" * 64)),
    "a person's word": lambda journal: journal.settle([resolved(1, 0, Resolution.PAID)]),
}
"""The writes of a run, each in one transaction."""


def withdraw_during_run(place: Path, sha256: str) -> None:
    file_location(place).withdraw(withdrawal(sha256))


def record_during_run(place: Path) -> None:
    with file_location(place).open_note_recorder() as keep:
        keep([arrival()])


def copy_journal(place: Path, name: str) -> Path:
    """Copy the journal while its writer has it open."""
    path = journal_path(place)
    kept = place / "copies" / name
    kept.mkdir(parents=True)
    for file in path.parent.glob(f"{path.name}*"):
        if not file.name.endswith((".lock", "-shm")):
            shutil.copy(file, kept)
    return kept


def put_back(place: Path, copy: Path) -> None:
    path = journal_path(place)
    for ending in ("", "-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
    for file in copy.iterdir():
        shutil.copy(file, path.parent)
        (path.parent / file.name).chmod(0o600)


def write_everything(place: Path) -> Iterator[Path]:
    """Make every kind of write, and yield a copy of the journal after each."""
    create_journal_at(place)
    yield copy_journal(place, "made")
    withdraw_during_run(place, "4" * 64)
    yield copy_journal(place, "withdrawn before any run")
    with closing(open_journal_at(place)) as journal:
        for name, write in WRITES.items():
            write(journal)
            yield copy_journal(place, name)
        withdraw_during_run(place, "5" * 64)
        yield copy_journal(place, "withdrawn beside the run")
        record_during_run(place)
        yield copy_journal(place, "a notification beside the run")
        journal.process_arrivals(WORDS, at=AT)
        yield copy_journal(place, "a notification that was judged")
    with closing(Adoption(file_location(place, endpoint=OTHER_NAME), beside=None)) as adoption:
        adoption.carry_out("ada")
    yield copy_journal(place, "adopted under another name")


def is_refused(open_it: Callable[[Path], SqliteReader], place: Path) -> bool:
    try:
        open_it(place).close()
    except JournalTooOld:
        return True
    return False


def test_copy_restored_between_writes_is_refused(place: Path) -> None:
    copies, accepted = list(write_everything(place)), []
    for copy in reversed(copies[:-1]):
        put_back(place, copy)
        openings = (partial(open_journal_at, makes=False), read_journal_at)
        accepted += [copy.name for open_it in openings if not is_refused(open_it, place)]
    assert accepted == []
    put_back(place, copies[-1])
    with closing(open_journal_at(place)) as journal:
        journal.verify()


@pytest.mark.parametrize("is_moved", [False, True])
def test_withdrawal_blocks_older_copy_of_moved_journal(place: Path, is_moved: bool) -> None:
    open_journal_at(place).close()
    path = journal_path(place)
    before = copy_journal(place, "before")
    if is_moved:  # no run has opened it there yet
        path = path.rename(path.with_name("kept.sqlite3"))
    file_location(place, path).withdraw(withdrawal("1" * 64))
    path.unlink()
    shutil.copy(before / journal_path(place).name, path)
    with pytest.raises(JournalTooOld):
        file_location(place, path).open_to_write("a test")


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(5, "Input/output error")])
def test_withdrawal_missing_on_host_is_repeated(
    place: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    open_journal_at(place).close()
    fail = Mock(side_effect=failure)
    with monkeypatch.context() as cut:
        cut.setattr(SentLog, "log_commit", fail)
        cut.setattr("paygw_batch.journal.sent_log.replacement_file", fail)
        with pytest.raises(KeyboardInterrupt if isinstance(failure, KeyboardInterrupt) else JournalUnwritable):
            withdraw_during_run(place, "1" * 64)
    with closing(read_journal_at(place)) as journal:
        assert [withdrawal.sha256 for withdrawal in journal.withdrawals()] == ["1" * 64]
    copy = copy_journal(place, "withdrawn once")
    withdraw_during_run(place, "1" * 64)  # repeat the command
    put_back(place, copy)
    with pytest.raises(JournalTooOld):
        open_journal_at(place)


def test_run_logs_missed_withdrawal(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_journal_at(place).close()
    before = copy_journal(place, "before")
    with monkeypatch.context() as cut:
        cut.setattr("paygw_batch.journal.file_location.log_concurrent_fact", lambda *_: None)
        withdraw_during_run(place, "1" * 64)
    open_journal_at(place).close()
    put_back(place, before)
    with pytest.raises(JournalTooOld):
        open_journal_at(place)


def test_withdrawal_lookup_uses_index(place: Path) -> None:
    with closing(open_journal_at(place)) as journal:
        for digit in "123":
            journal.withdraw(withdrawal(digit * 64))
        journal.settle([], order=SignedOrder("b1", "{}", "", "4" * 64))
        with pytest.raises(DocumentWithdrawn):
            journal.settle([], order=SignedOrder("b1", "{}", "", "2" * 64))
        plan = [
            line[-1]
            for line in journal._connection.execute(f"EXPLAIN QUERY PLAN {QUERIES['withdrawn']}", {"sha256": ""})
        ]
    assert plan == ["SEARCH f USING INDEX fact_of_journal (kind=?)"]


def test_run_continues_after_concurrent_withdrawal(place: Path) -> None:
    with closing(open_journal_at(place)) as journal:
        open_sheet(journal)
        withdraw_during_run(place, "1" * 64)
        first, second = due_rows(journal, 1)[:2]
        assert list(journal.append([intent(first)])) == [MoveResult.MOVED]
        with closing(connect(journal_path(place), write=True)) as other:
            other.execute("BEGIN IMMEDIATE")
            append_facts(other, [Remark(AdoptionNote("amina", "/elsewhere"), AT)])
            other.execute("COMMIT")
        with pytest.raises(JournalUnwritable, match="another process has written to it"):
            journal.append([intent(second)])


def test_withdrawal_during_adoption_is_logged(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_journal_at(place).close()
    real = FileLocation.open_to_read

    def adopt_first(self: FileLocation, *, must_be_known: bool = False) -> SqliteReader:
        reader = real(self, must_be_known=must_be_known)
        with closing(Adoption(file_location(place, endpoint=OTHER_NAME), beside=None)) as adoption:
            adoption.carry_out("ada")
        return reader

    before = copy_journal(place, "before")
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(FileLocation, "open_to_read", adopt_first)
        withdraw_during_run(place, "1" * 64)
    put_back(place, before)
    with pytest.raises(JournalTooOld):
        open_journal_at(place)


def test_torn_line_does_not_hide_previous_withdrawal(place: Path) -> None:
    open_journal_at(place).close()
    for digit in "12":
        withdraw_during_run(place, digit * 64)
    (path,) = (place / "journals").glob(f"*/{NOTES}.1")
    content = path.read_bytes().rstrip(bytes(1))
    path.write_bytes(content[:-20] + b"\xfe" * 10 + content[-10:])
    newest = newest_line(path.parent, NOTES)
    assert newest is not None
    assert newest.number == 1
    open_journal_at(place).close()


def test_notification_is_logged_before_acknowledgement(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_journal_at(place).close()
    fail = Mock(side_effect=OSError(5, "Input/output error"))
    with monkeypatch.context() as cut:
        cut.setattr("paygw_batch.journal.file_location.log_concurrent_fact", fail)
        with pytest.raises(JournalUnwritable):
            record_during_run(place)
    record_during_run(place)
    with closing(open_journal_at(place)) as journal:
        assert journal.verify()["notifications_waiting"] == 2


def test_journal_with_only_withdrawal_is_not_recreated(place: Path) -> None:
    open_journal_at(place).close()
    withdraw_during_run(place, "1" * 64)
    for file in journal_path(place).parent.iterdir():
        file.unlink()
    with pytest.raises(JournalTooOld):
        open_journal_at(place, makes=False)


def test_listener_detects_replaced_file(place: Path) -> None:
    open_journal_at(place).close()
    copy = copy_journal(place, "copy")
    with file_location(place).open_note_recorder() as keep:
        keep([arrival()])
        put_back(place, copy)
        with pytest.raises(JournalTooOld):
            keep([arrival()])
