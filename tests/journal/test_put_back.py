"""A copy of a journal from between any two writes is found when it is put back, whatever was recorded since."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.core.evidence import Claim, Evidence, EvidenceSource, Proof, SignedOrder
from paygw_batch.core.lifecycle import Resolution
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import DocumentWithdrawn, JournalUnwritable, JournalWentBack
from paygw_batch.journal.adopt import Adoption
from paygw_batch.journal.evidence import Notification, encode_notification
from paygw_batch.journal.file_place import FilePlace
from paygw_batch.journal.left import BESIDE, Left, newest
from paygw_batch.journal.sqlite.connect import connect
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal, SqliteReader
from paygw_batch.journal.sqlite.sqlite_tables import QUERIES, record_last
from paygw_batch.journal.values import Adopted, Arrived, CarriedOut, ClockSeen, MoveResult, Remark, Withdrawal
from tests.support.journal_rows import (
    AT,
    all_due,
    file_place,
    intent,
    journal_path,
    make_at,
    open_at,
    open_sheet,
    outcome_of,
    read_at,
    resolved,
)

WORDS = {"approved": OutcomeKind.PAID}
OTHER_NAME = EndpointIdentity.of("gateway2.example", "1234", "merchant")
Write = Callable[[SqliteJournal], object]


def withdrawal(sha256: str) -> Withdrawal:
    return Withdrawal(sha256, "cleo", "{}", AT)


def said(order_id: str) -> Evidence:
    claim = Claim(order_id, "1500.50", "KES", "approved", "ref", Proof.PROVEN)
    return Evidence(EvidenceSource.NOTIFICATION, claim, f"{order_id} is paid")


def send_first(journal: SqliteJournal) -> None:
    journal.append([intent(all_due(journal, 1)[0])])


WRITES: dict[str, Write] = {
    "a batch": open_sheet,
    "a hold without a fact": lambda journal: journal.record_evidence([said("ORD-2")], WORDS, at=AT),
    "a withdrawal by the run": lambda journal: journal.withdraw(withdrawal("1" * 64)),
    "an unknown order": lambda journal: journal.record_evidence([said("nobody")], WORDS, at=AT),
    "an intent": send_first,
    "an answer": lambda journal: journal.append([outcome_of(2, 1, OutcomeKind.REJECTED)]),
    "a clock": lambda journal: journal.settle([], note=ClockSeen(AT, AT, 3)),
    "a statement": lambda journal: journal.settle([], note=CarriedOut("b1", "s.csv", "2" * 64, "amina", AT)),
    "an order": lambda journal: journal.settle([], order=SignedOrder("b1", "{}", "", "3" * 64)),
    "a person's word": lambda journal: journal.settle([resolved(1, 0, Resolution.PAID)]),
}
"""What a run writes, one transaction each."""


def withdraw_beside(place: Path, sha256: str) -> None:
    file_place(place).withdraw(withdrawal(sha256))


def notification() -> str:
    claim = Claim("ORD-2", "1500.50", "KES", "approved", "ref", Proof.PROVEN)
    return encode_notification(Notification(AT, "POST", "", "", b"", 0, "", claim))


def keep_beside(place: Path) -> None:
    with file_place(place).beside() as keep:
        keep([Arrived(notification(), AT)])


def copied(place: Path, name: str) -> Path:
    """Copy the journal as it is, while whoever writes has it open."""
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


def written(place: Path) -> Iterator[Path]:
    """Make every write there is, and yield a copy of the journal after each."""
    make_at(place)
    yield copied(place, "made")
    withdraw_beside(place, "4" * 64)
    yield copied(place, "withdrawn before any run")
    with closing(open_at(place)) as journal:
        for name, write in WRITES.items():
            write(journal)
            yield copied(place, name)
        withdraw_beside(place, "5" * 64)
        yield copied(place, "withdrawn beside the run")
        keep_beside(place)
        yield copied(place, "a notification beside the run")
        journal.judge_arrivals(WORDS, at=AT)
        yield copied(place, "a notification that was judged")
    with closing(Adoption(file_place(place, endpoint=OTHER_NAME), beside=None)) as adoption:
        adoption.carry_out("ada")
    yield copied(place, "adopted under another name")


def is_refused(open_it: Callable[[Path], SqliteReader], place: Path) -> bool:
    try:
        open_it(place).close()
    except JournalWentBack:
        return True
    return False


def test_restored_copy_between_any_writes_is_refused(place: Path) -> None:
    copies, taken = list(written(place)), []
    for copy in reversed(copies[:-1]):
        put_back(place, copy)
        openings = (partial(open_at, makes=False), read_at)
        taken += [copy.name for open_it in openings if not is_refused(open_it, place)]
    assert taken == []
    put_back(place, copies[-1])
    with closing(open_at(place)) as journal:
        journal.verify()


@pytest.mark.parametrize("is_moved", [False, True])
def test_withdrawal_blocks_older_copy_of_moved_journal(place: Path, is_moved: bool) -> None:
    open_at(place).close()
    path = journal_path(place)
    before = copied(place, "before")
    if is_moved:  # no run has opened it there
        path = path.rename(path.with_name("kept.sqlite3"))
    file_place(place, path).withdraw(withdrawal("1" * 64))
    path.unlink()
    shutil.copy(before / journal_path(place).name, path)
    with pytest.raises(JournalWentBack):
        file_place(place, path).open_to_write("a test")


class Killed(BaseException):
    """The process is no more."""


@pytest.mark.parametrize("failure", [Killed(), OSError(5, "Input/output error")])
def test_withdrawal_missing_on_host_is_repeated(
    place: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    open_at(place).close()

    def fail(*_: object) -> None:
        raise failure

    with monkeypatch.context() as cut:
        cut.setattr(Left, "note", fail)
        cut.setattr("paygw_batch.journal.left.replacing", fail)
        with pytest.raises(Killed if isinstance(failure, Killed) else JournalUnwritable):
            withdraw_beside(place, "1" * 64)
    with closing(read_at(place)) as journal:
        assert [one.sha256 for one in journal.withdrawals()] == ["1" * 64]
    copy = copied(place, "withdrawn once")
    withdraw_beside(place, "1" * 64)  # the command is repeated
    put_back(place, copy)
    with pytest.raises(JournalWentBack):
        open_at(place)


def test_run_notes_missed_withdrawal(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_at(place).close()
    before = copied(place, "before")
    with monkeypatch.context() as cut:
        cut.setattr("paygw_batch.journal.file_place.note_beside", lambda *_: None)
        withdraw_beside(place, "1" * 64)
    open_at(place).close()
    put_back(place, before)
    with pytest.raises(JournalWentBack):
        open_at(place)


def test_withdrawal_lookup_uses_index(place: Path) -> None:
    with closing(open_at(place)) as journal:
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
    with closing(open_at(place)) as journal:
        open_sheet(journal)
        withdraw_beside(place, "1" * 64)
        first, second = all_due(journal, 1)[:2]
        assert list(journal.append([intent(first)])) == [MoveResult.MOVED]
        with closing(connect(journal_path(place), write=True)) as other:
            other.execute("BEGIN IMMEDIATE")
            record_last(other, [Remark(Adopted("amina", "/elsewhere"), AT)])
            other.execute("COMMIT")
        with pytest.raises(JournalUnwritable, match="another process has written to it"):
            journal.append([intent(second)])


def test_a_withdrawal_beside_an_adoption_is_noted(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_at(place).close()
    real = FilePlace.open_to_read

    def adopted_meanwhile(self: FilePlace, *, must_be_known: bool = False) -> SqliteReader:
        reader = real(self, must_be_known=must_be_known)
        with closing(Adoption(file_place(place, endpoint=OTHER_NAME), beside=None)) as adoption:
            adoption.carry_out("ada")
        return reader

    before = copied(place, "before")
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(FilePlace, "open_to_read", adopted_meanwhile)
        withdraw_beside(place, "1" * 64)
    put_back(place, before)
    with pytest.raises(JournalWentBack):
        open_at(place)


def test_torn_withdrawal_note_keeps_previous_note(place: Path) -> None:
    open_at(place).close()
    for digit in "12":
        withdraw_beside(place, digit * 64)
    (path,) = (place / "journals").glob(f"*/{BESIDE}.1")
    content = path.read_bytes().rstrip(bytes(1))
    path.write_bytes(content[:-20] + b"\xfe" * 10 + content[-10:])
    seen = newest(path.parent, BESIDE)
    assert seen is not None
    assert seen.number == 1
    open_at(place).close()


def test_notification_is_noted_before_acknowledgement(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_at(place).close()

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as cut:
        cut.setattr("paygw_batch.journal.file_place.note_beside", fail)
        with pytest.raises(JournalUnwritable):
            keep_beside(place)
    keep_beside(place)
    with closing(open_at(place)) as journal:
        assert journal.verify()["notifications_waiting"] == 2


def test_lost_journal_with_only_withdrawal_is_missed(place: Path) -> None:
    open_at(place).close()
    withdraw_beside(place, "1" * 64)
    for file in journal_path(place).parent.iterdir():
        file.unlink()
    with pytest.raises(JournalWentBack):
        open_at(place, makes=False)


def test_a_listener_writes_into_no_replaced_file(place: Path) -> None:
    open_at(place).close()
    copy = copied(place, "copy")
    with file_place(place).beside() as keep:
        keep([Arrived(notification(), AT)])
        put_back(place, copy)
        with pytest.raises(JournalWentBack):
            keep([Arrived(notification(), AT)])
