"""Forgetting people leaves none of their data in the file, keeps the chain intact, and pays nobody twice."""

import json
from collections.abc import Iterator
from contextlib import closing
from operator import attrgetter
from pathlib import Path

import apsw
import pytest

from paygw_batch.core.evidence import Claim, Evidence, EvidenceSource, Finding, SignedOrder
from paygw_batch.core.lifecycle import Resolution, Resolved, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.evidence import Notification, encode_notification
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import Amendment, Arrival, Entry, KnownRow, PaymentSearch, RemainingData
from tests.journal.forgotten_rows import (
    BEFORE,
    FORGERIES_OF_BOTH,
    LATER,
    SECRETS,
    WHEN,
    fill_journal,
    forget_old_batches,
    secret_row,
    secrets_in,
)
from tests.support.journal_rows import (
    OPERATION,
    at,
    due_rows,
    file_location,
    intent,
    journal_path,
    new_instruction,
    open_journal_at,
    open_sheet,
    outcome_of,
    read_journal_at,
    send,
    tamper,
)
from tests.support.tested_journal import Journal


@pytest.fixture
def kept(folder: Path) -> Iterator[SqliteJournal]:
    with closing(open_journal_at(folder)) as journal:
        fill_journal(journal)
        yield journal


def test_forgetting_leaves_no_personal_bytes_in_files(folder: Path) -> None:
    with closing(open_journal_at(folder)) as journal:
        fill_journal(journal)
        assert secrets_in(folder.rglob("*")) == list(SECRETS)
        forget_old_batches(journal)
        assert secrets_in(folder.rglob("*")) == []
    assert secrets_in(folder.rglob("*")) == []
    with closing(open_journal_at(folder)) as journal:
        open_sheet(journal, "again", [new_instruction(2, "E-1")], opened_at=LATER)
        send(journal, 4, OutcomeKind.PAID, LATER)
        assert journal.verify()["instructions"] == 6


def test_forgetting_keeps_other_data_and_passes_verify(journal: Journal) -> None:
    fill_journal(journal)
    kept = attrgetter("state", "client_orderid", "minor", "sent_orderid", "updated_at")
    rows = [kept(row) for batch in (1, 2) for row in journal.rows(batch)]
    tallies = [journal.tallies(batch) for batch in (1, 2)]
    before = journal.head().seq
    assert journal.first_forgetting(1) is None
    forget_old_batches(journal)
    now = [row for batch in (1, 2) for row in journal.rows(batch)]
    assert [kept(row) for row in now] == rows
    assert "ephyrine" not in str(now)
    assert [journal.tallies(batch) for batch in (1, 2)] == tallies
    counts = journal.verify()
    assert (counts["instructions"], counts[State.PAID], counts[State.REJECTED]) == (5, 2, 2)
    assert not list(journal.pages(1))
    assert journal.find_payments(PaymentSearch((("zephyrine",),), "Zephyrine"), limit=9) == []
    (payment,) = journal.find_payments(PaymentSearch((), "A-1"), limit=9)
    assert (payment.payee, dict(payment.fields), payment.state) == ("", {}, State.REJECTED)
    entry = journal.first_forgetting(1)
    assert entry is not None
    said = '["forgotten_before", 2, "2027-01-01"]'
    assert (journal.head().seq, entry.at, entry.by, entry.said) == (before + 2, WHEN, "amina", said)
    assert journal.first_forgetting(3) is None


FORGERIES = [
    *FORGERIES_OF_BOTH,
    "UPDATE instruction SET salt = zeroblob(16) WHERE number = 1",
    "UPDATE instruction SET people_sha256 = zeroblob(32) WHERE number = 1",
    "UPDATE instruction SET salt = NULL WHERE number = 5",
    "UPDATE fact SET order_id = 'X-1' WHERE instruction = 3",
    "UPDATE fact SET by = 'nobody' WHERE instruction = 3",
    "INSERT INTO said SELECT min(number), zeroblob(16), 'x', NULL, NULL FROM fact WHERE instruction = 3",
    "UPDATE fact SET hash = zeroblob(32) WHERE instruction = 1 AND kind = 'rejected'",
    "UPDATE fact SET details = 'x' WHERE kind = 'heard'",
    "DELETE FROM said WHERE fact = (SELECT number FROM fact WHERE kind = 'order' ORDER BY number DESC)",
    "DELETE FROM said WHERE fact = (SELECT max(number) FROM fact WHERE instruction = 1)",
    "DELETE FROM said WHERE text = 'waits'",
    "UPDATE fact SET finding = 'moved' WHERE finding = 'unknown_order'",
    "UPDATE state SET state = 'paid' WHERE instruction = 1",
    "INSERT INTO page VALUES (1, 0, x'00')",
    "INSERT INTO payment_words (rowid, words) VALUES (1, 'zephyrine')",
]


@pytest.mark.share(4)
@pytest.mark.parametrize("forgery", FORGERIES)
def test_change_after_forgetting_is_found(kept: SqliteJournal, folder: Path, forgery: str) -> None:
    kept.settle([], order=SignedOrder("new", '{"content": {"rows": []}}', at(6)))
    forget_old_batches(kept)
    said_later = Evidence(EvidenceSource.NOTIFICATION, Claim("A-1", "1", "KES", "approved"), "later")
    kept.record_evidence([said_later], {}, at=LATER)
    with file_location(folder).open_note_recorder() as keep:
        keep([Arrival("waits", LATER)])
    kept.close()
    tamper(journal_path(folder), forgery).close()
    with pytest.raises(JournalCorrupt), closing(read_journal_at(folder)) as reader:
        reader.verify()


def test_forgotten_payee_conflicts_and_is_never_due(journal: Journal) -> None:
    fill_journal(journal)
    forget_old_batches(journal)
    paid, rejected = secret_row(2, "B-1"), secret_row(2, "A-1")
    new = ((2, "B-1", paid.content), (3, "B-2", new_instruction(3).content), (4, "B-3", "other"))
    known, clashes = journal.compare(OPERATION, [*new, (5, "A-1", rejected.content)])
    assert known == []
    assert [(clash.row, clash.instruction, clash.state, clash.is_amendable) for clash in clashes] == [
        *((2, 3, State.PAID, False), (3, 4, State.PAID, False), (5, 1, State.REJECTED, True))
    ]
    row = (2, "D-1", "254799887766", "KES", 150050)
    assert list(journal.look_alikes(OPERATION, [row], since="2026-01-01")) == []
    assert list(journal.repeated_batches(OPERATION, [row[1:]], since="2026-01-01")) == []
    open_sheet(journal, "again", [rejected], amendments=[Amendment(2, 1)], opened_at=LATER)
    (due,) = due_rows(journal, 4)
    assert (due.order_id, due.instruction.fields["account_name"]) == ("A-1-r2", "Zephyrine Quillfeather")
    send(journal, 4, OutcomeKind.PAID, LATER)
    assert journal.verify()[State.REPLACED] == 1
    journal.release(1, None, suffix=True, by="amina", at=WHEN)
    assert [row.state for row in journal.rows(1)] == [State.REPLACED, State.READY]
    assert not due_rows(journal, 1)


def test_recent_batch_is_not_forgotten(journal: Journal) -> None:
    fill_journal(journal)
    opened_at = journal.batches()[0].opened_at
    for recent, numbers in ((opened_at, None), (opened_at, [1]), (LATER, None)):
        chosen = journal.payments_to_forget(numbers, before=BEFORE, cutoff=WHEN, recent=recent)
        assert (1 in chosen.waiting) is (recent == opened_at)
        assert (1 in chosen.batches) is (recent != opened_at)


def test_batch_with_unfinished_row_is_not_forgotten(journal: Journal) -> None:
    kinds = (OutcomeKind.UNKNOWN, OutcomeKind.ACCEPTED, OutcomeKind.PAID, OutcomeKind.UNKNOWN, None)
    for number, kind in enumerate(kinds, start=1):
        open_sheet(journal, f"b{number}", [new_instruction(row, f"{number}-{row}") for row in (2, 3)])
        finished, last = due_rows(journal, number)
        journal.append([intent(finished, at(1)), outcome_of(finished.number, 1, OutcomeKind.PAID, at(2))])
        if kind is not None:
            journal.append([intent(last, at(1)), outcome_of(last.number, 1, kind, at(2))])
    journal.append([outcome_of(6, 1, OutcomeKind.REJECTED, at(2))])  # contrary evidence about a paid row
    journal.settle([Entry(8, 1, Resolved(Resolution.REJECTED, "ticket", "amina"), at(2))])
    chosen = journal.payments_to_forget(before=BEFORE, cutoff=at(1))
    assert (chosen.instructions, dict(chosen.batches), chosen.waiting) == (0, {}, [1, 2, 3, 4, 5])
    assert journal.payments_to_forget([1], cutoff=WHEN).waiting == [1]
    after_quarantine = journal.payments_to_forget(before=BEFORE, cutoff=at(2))
    assert (list(after_quarantine.batches), after_quarantine.waiting) == ([4], [1, 2, 3, 5])


def test_row_shared_with_newer_batch_is_not_forgotten(journal: Journal) -> None:
    open_sheet(journal, "b1", 2)
    send(journal, 1, OutcomeKind.PAID, at(1))
    open_sheet(journal, "b2", 0, known=[KnownRow(2, 1, State.PAID)], opened_at=LATER)
    chosen = journal.payments_to_forget(before=BEFORE, cutoff=WHEN)
    assert {batch: list(numbers) for batch, numbers in chosen.batches.items()} == {1: [2]}
    named = journal.payments_to_forget([1], cutoff=WHEN)
    assert {batch: list(numbers) for batch, numbers in named.batches.items()} == {1: [1], 2: []}
    assert journal.forget(named, by="amina", at=WHEN) is not RemainingData.IN_LOG
    assert (list(journal.pages(1)), list(journal.pages(2))) == ([], [])
    assert journal.verify()["instructions"] == 2
    journal.forget(journal.payments_to_forget(before="2028", cutoff=WHEN), by="amina", at=WHEN)
    assert journal.verify()["instructions"] == 2
    assert not journal.payments_to_forget(before="2028", cutoff=WHEN).batches


def test_orders_and_notifications_about_forgotten_rows_are_removed(kept: SqliteJournal, folder: Path) -> None:
    for batch, text in (("paid", "Zephyrine in an order"), ("new", "another order")):
        document = json.dumps({"content": {"rows": [{"row": 2, "evidence": text}]}})
        kept.settle([], order=SignedOrder(batch, document, at(6)))
    content = encode_notification(Notification(at(0), "POST", "", "", b"Zephyrine", 9, "", Claim("nobody-knows-this")))
    with file_location(folder).open_note_recorder() as keep:
        keep([Arrival(content, at(0))])
        assert kept.process_arrivals({}, at=at(6)) == {Finding.UNKNOWN_ORDER: 1}
        keep([Arrival("someone else", at(7))])
    forget_old_batches(kept)
    assert secrets_in(folder.rglob("*")) == []
    assert ([len(kept.signed_orders(batch.batch)) for batch in kept.batches()]) == [0, 0, 1]
    assert kept.verify()["notifications_waiting"] == 1


def test_busy_log_is_scrubbed_later(kept: SqliteJournal, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paygw_batch.journal.sqlite.connect._BUSY_TIMEOUT_MS", 100)
    kept._connection.set_busy_timeout(100)
    with closing(apsw.Connection(str(journal_path(folder)))) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM fact").fetchall()
        chosen = kept.payments_to_forget(before=BEFORE, cutoff=WHEN)
        assert kept.forget(chosen, by="amina", at=WHEN) is RemainingData.IN_LOG
        reader.execute("COMMIT")
    assert kept.scrub() is RemainingData.NOWHERE
    assert secrets_in(folder.rglob("*")) == []


def test_statement_is_recognised_after_rows_are_forgotten(journal: Journal) -> None:
    open_sheet(journal, "b1", 1)
    claim = Claim("nobody", "1", "KES", "approved")
    content = '{"amount":"1","by":"amina","line":2,"order_id":"x","sha256":"abc","statement":"s.csv"}'
    lasting = '{"attempts":[[1,1]],"sha256":"abc"}'
    journal.record_evidence([Evidence(EvidenceSource.STATEMENT, claim, content, lasting=lasting)], {}, at=at(1))
    send(journal, 1, OutcomeKind.PAID, at(2))
    before = journal.first_reading("abc")
    forget_old_batches(journal)
    assert journal.first_reading("abc") == before
    assert before.attempts == {1: 1}
