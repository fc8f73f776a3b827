"""Payments of all batches are found by the payee's words and by order id."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from paygw_batch.core.batch import payee_tag
from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.core.text import normalise_spelling
from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import (
    Amendment,
    FoundPayment,
    KnownRow,
    NewInstruction,
    PaymentSearch,
    RepeatedBatch,
    UsedSpelling,
)
from tests.support.journal_rows import (
    AT,
    OPERATION,
    at,
    due_rows,
    intent,
    journal_path,
    new_instruction,
    open_journal_at,
    open_sheet,
    outcome_of,
    send,
    tamper,
)
from tests.support.tested_journal import Journal


def named_row(row: int, name: str, order_id: str | None = None, **more: str) -> NewInstruction:
    new = new_instruction(row, order_id)
    fields = {"account_name": name, "account_number": new.payee, "phone": f"+{new.payee}", "purpose": "WALLET", **more}
    return new._replace(fields=json.dumps(fields, ensure_ascii=False))


def find(journal: Journal, *words: str, order_id: str = "", limit: int = 100) -> list[FoundPayment]:
    return list(journal.find_payments(PaymentSearch(tuple((word,) for word in words), order_id), limit=limit))


def order_ids(payments: list[FoundPayment]) -> list[str]:
    return [payment.client_orderid for payment in payments]


@pytest.fixture
def people(journal: Journal) -> Journal:
    """Return a journal with two batches that pay four people."""
    open_sheet(journal, "b1", [named_row(2, "Jane Wanjiku"), named_row(3, "José Ñandú"), named_row(4, "O'Brien, Jane")])
    open_sheet(journal, "b2", [named_row(2, "Wanjiku JANE", "ORD-9"), named_row(3, "عمر الشريف", "ORD-10")])
    return journal


@pytest.mark.share(5)
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("jane", "wanjiku"), ["ORD-9", "ORD-2"]),
        (("WANJIKU",), ["ORD-9", "ORD-2"]),
        (("wanj*",), ["ORD-9", "ORD-2"]),
        (("wanj",), []),
        (("jose", "nandu"), ["ORD-3"]),
        (("o'brien",), ["ORD-4"]),
        (("عمر",), ["ORD-10"]),
        (("254700000003",), ["ORD-10", "ORD-3"]),
        (("wallet",), []),
        (("jane", "nandu"), []),
        (('"',), []),
        (("NEAR(jane wanjiku)",), []),
    ],
)
def test_payments_are_found_by_words_newest_first(people: Journal, words: tuple[str, ...], wanted: list[str]) -> None:
    assert order_ids(find(people, *words)) == wanted


def test_any_of_several_spellings_finds_payment(people: Journal) -> None:
    search = PaymentSearch((("0700000003", "254700000003"), ("عمر",)), "")
    assert order_ids(list(people.find_payments(search, limit=10))) == ["ORD-10"]


def test_search_limit_keeps_newest_payments(people: Journal) -> None:
    assert order_ids(find(people, "jane", limit=2)) == ["ORD-9", "ORD-4"]


def test_found_payment_has_state_times_and_reference(journal: Journal) -> None:
    open_sheet(journal, "b1", [named_row(2, "Jane Wanjiku")], sheet_name="october.csv")
    (before,) = find(journal, "jane")
    assert (before.state, before.attempts, before.first_sent_at) == (State.READY, 0, None)
    journal.append([intent(due) for due in due_rows(journal, 1)])
    (flying,) = find(journal, "jane")
    assert (flying.state, flying.first_sent_at) == (State.IN_FLIGHT, AT)
    journal.append([outcome_of(1, 1, OutcomeKind.PAID, gateway_reference="REF-1")])
    (paid,) = find(journal, "jane")
    assert (paid.state, paid.attempts, paid.gateway_reference) == (State.PAID, 1, "REF-1")
    assert (paid.batch, paid.row, paid.sheet_name) == ("b1", 2, "october.csv")
    assert (paid.first_sent_at, paid.updated_at, paid.amount, paid.currency) == (AT, AT, "1500.50", "KES")
    assert paid.fields["account_name"] == "Jane Wanjiku"


def test_search_finds_order_id_by_spelling_or_attempt(journal: Journal) -> None:
    open_sheet(journal, "b1", [new_instruction(2, "PAY-Ä-1"), new_instruction(3)])
    journal.append([intent(due) for due in due_rows(journal, 1)])
    journal.append([outcome_of(1, 1, OutcomeKind.REJECTED), outcome_of(2, 1, OutcomeKind.PAID)])
    journal.release(1, None, suffix=True, by="amina", at=AT)
    for typed in ("PAY-Ä-1", "pay-ä-1", "PAY-Ä-1-R2"):
        assert order_ids(find(journal, order_id=typed)) == ["PAY-Ä-1"]
    assert order_ids(find(journal, order_id="ord-3")) == ["ORD-3"]
    assert find(journal, order_id="PAY-Ä") == []


def test_search_finds_shared_row_once(journal: Journal) -> None:
    open_sheet(journal, "b1", [named_row(2, "Jane Wanjiku"), named_row(3, "Jane Wairimu")])
    corrected = named_row(3, "Jane Wairimu")._replace(amount="7.00", minor=700)
    open_sheet(journal, "b2", [corrected], known=[KnownRow(2, 1, State.READY)], amendments=[Amendment(3, 2)])
    states = [(payment.batch, payment.row, payment.state) for payment in find(journal, "jane")]
    assert states == [("b2", 3, State.READY), ("b1", 3, State.REPLACED), ("b1", 2, State.READY)]


def test_search_covers_both_operations(journal: Journal) -> None:
    open_sheet(journal, "b1", [named_row(2, "Jane Wanjiku")])
    open_sheet(journal, "b2", [named_row(2, "Jane Wanjiku", "ORD-2")], operation="payin")
    assert [payment.operation for payment in find(journal, "jane")] == ["payin", "payout"]
    assert [payment.operation for payment in find(journal, order_id="ORD-2")] == ["payin", "payout"]


@pytest.mark.parametrize("journal", ["disk", "memory"], indirect=True)
def test_search_uses_index_without_scanning_instructions(people: Journal) -> None:
    assert isinstance(people, SqliteJournal)
    connection = people._connection
    plans: list[str] = []

    def record_plan(_cursor: apsw.Cursor, statement: str, bindings: Any) -> bool:
        if statement.lstrip().startswith("SELECT"):
            cursor_of_its_own = connection.cursor()
            cursor_of_its_own.exec_trace = None
            plans.extend(line[3] for line in cursor_of_its_own.execute(f"EXPLAIN QUERY PLAN {statement}", bindings))
        return True

    connection.exec_trace = record_plan
    try:
        people.find_payments(PaymentSearch((("jane*",),), "ORD-2"), limit=10)
    finally:
        connection.exec_trace = None
    assert any("payment_words VIRTUAL TABLE INDEX" in plan for plan in plans)
    scanned = [plan for plan in plans if plan.startswith("SCAN") and not plan.startswith("SCAN batch")]
    assert all("VIRTUAL TABLE" in plan for plan in scanned), scanned


# Other spellings, references of batches, and payments under other ids.
SPELLINGS = ["Jose\u0301-1", "JOSÉ-1", "josé-1", "José\u20101", "\uff2aosé-1"]
"""The spelling of José-1."""


def used_ids(journal: Journal, *order_ids: str, operation: str = OPERATION) -> list[tuple[str, str]]:
    """Return (id, used spelling) for each id that was used in another spelling."""
    rows = [(row, order_id, normalise_spelling(order_id)) for row, order_id in enumerate(order_ids)]
    found = journal.used_spellings(operation, rows)
    assert all((one.batch, one.opened_at) == ("b1", AT) for one in found)
    return [(order_ids[one.row], one.order_id) for one in found]


def derived_row(row: int, reference: str) -> NewInstruction:
    """Return a row whose order id was derived from a reference."""
    new = new_instruction(row)
    return new._replace(client_orderid=f"{reference}-{payee_tag(reference, new.payee)}-1")


def test_used_order_id_is_found_in_every_spelling(journal: Journal) -> None:
    open_sheet(journal, new=[new_instruction(2, "José-1"), new_instruction(3, "PAY-7")])
    assert used_ids(journal, *SPELLINGS) == [(one, "José-1") for one in SPELLINGS]
    assert used_ids(journal, "pay-7", "Pay\u20127", "\uff30AY-7") == [
        (one, "PAY-7") for one in ("pay-7", "Pay\u20127", "\uff30AY-7")
    ]
    assert used_ids(journal, "José-2", "Jose-1", "PAY-70", "PAY 7") == []


def test_same_spelling_is_not_reported_as_different(journal: Journal) -> None:
    open_sheet(journal, new=[new_instruction(2, "PAY-7"), new_instruction(3, "pay-7")])
    assert used_ids(journal, "PAY-7", "pay-7") == []
    assert used_ids(journal, "Pay-7") == [("Pay-7", "pay-7")]


def test_payouts_and_collections_have_separate_order_ids(journal: Journal) -> None:
    open_sheet(journal, new=[new_instruction(2, "PAY-7"), new_instruction(3, "É")])
    assert used_ids(journal, "pay-7", "é", operation="payin") == []
    open_sheet(journal, "b1", [new_instruction(2, "COL-1")], operation="payin")
    assert used_ids(journal, "pay-7", "é", operation="payin") == []
    assert used_ids(journal, "col-1", operation="payin") == [("col-1", "COL-1")]


@pytest.mark.parametrize("base", ["PAY", "PAYÉ"])
def test_ids_of_later_attempts_count_as_used(journal: Journal, base: str) -> None:
    open_sheet(journal, new=[new_instruction(2, base)])
    send(journal, 1, OutcomeKind.REJECTED)
    journal.release(1, None, suffix=True, by="amina", at=at(3))
    assert used_ids(journal, f"{base}-R2".lower()) == [(f"{base}-R2".lower(), f"{base}-r2")]
    assert journal.verify()["order_ids"] == 2


def test_later_attempt_avoids_used_ids_in_any_spelling(journal: Journal) -> None:
    open_sheet(
        journal, new=[new_instruction(2, "PAY"), new_instruction(3, "pay-R2"), new_instruction(4, "PAY\u2010r3")]
    )
    send(journal, 1, OutcomeKind.REJECTED)
    journal.release(1, [2], suffix=True, by="amina", at=at(3))
    assert [due.order_id for due in due_rows(journal, 1)] == ["PAY-r4"]


def test_amended_row_id_is_found_in_new_batch(journal: Journal) -> None:
    open_sheet(journal, "b0", [new_instruction(2, "PAYÉ")])
    open_sheet(journal, "b1", [new_instruction(2, "PAYÉ", amount="7.00")], amendments=[Amendment(2, 1)])
    assert used_ids(journal, "payé") == [("payé", "PAYÉ")]


def references(journal: Journal) -> list[tuple[str, str]]:
    return [(batch.batch, batch.reference) for batch in journal.batches()]


def test_references_are_read_from_derived_ids(journal: Journal) -> None:
    open_sheet(journal, "b1", [derived_row(2, "Payroll-2026-11"), derived_row(3, "Payroll-2026-11")])
    open_sheet(journal, "b2", 3)
    open_sheet(journal, "b3", [derived_row(4, "bonus")], opened_at=at(9))
    open_sheet(journal, "b4", [derived_row(5, "fees")], operation="payin")
    assert references(journal) == [("b1", "Payroll-2026-11"), ("b2", ""), ("b3", "bonus"), ("b4", "fees")]


def test_repeated_rows_are_counted_once_per_batch(journal: Journal) -> None:
    open_sheet(journal, "b1", 4, opened_at=at(1))
    twice = [new_instruction(2, "X-1"), new_instruction(12, "X-2", phone="254700000002")]
    open_sheet(journal, "b2", [*twice, new_instruction(3, "X-3")], opened_at=at(2), sheet_name="again.csv")
    rows = [
        ("Y-1", "254700000002", "KES", 150050),
        ("Y-2", "254700000003", "KES", 150050),
        ("Y-3", "254700000005", "KES", 150050),
        ("Y-4", "254700000005", "KES", 150051),
        ("Y-5", "254700000005", "UGX", 150050),
        ("ORD-4", "254700000004", "KES", 150050),
    ]
    newest, oldest = RepeatedBatch("b2", "again.csv", at(2), 2), RepeatedBatch("b1", "payroll.csv", at(1), 3)
    assert list(journal.repeated_batches(OPERATION, rows, since=at(0))) == [newest, oldest]
    assert list(journal.repeated_batches(OPERATION, rows, since=at(1))) == [newest]
    assert list(journal.repeated_batches("payin", rows, since=at(0))) == []


@pytest.mark.share(3)
@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM order_id_spelling",
        "UPDATE order_id_spelling SET spelling = 'jose-1'",
        "INSERT INTO order_id_spelling VALUES ('payout', 'x', 'X')",
        "DELETE FROM batch_reference",
        "UPDATE batch_reference SET reference = 'payroll-2026-11'",
    ],
)
def test_verify_finds_changed_spellings_and_references(place: Path, change: str) -> None:
    with closing(open_journal_at(place)) as journal:
        open_sheet(journal, "b1", [new_instruction(2, "José-1")])
        open_sheet(journal, "b2", [derived_row(3, "Payroll-2026-11")])
        assert used_ids(journal, "JOSÉ-1") == [("JOSÉ-1", "José-1")]
    tamper(journal_path(place), change).close()
    with closing(open_journal_at(place)) as journal, pytest.raises(JournalCorrupt, match=r"do(es)? not match"):
        journal.verify()


def test_journal_without_order_ids_queries_no_rows(place: Path) -> None:
    with closing(open_journal_at(place)) as journal:
        assert list(journal.used_spellings(OPERATION, (1 / 0 for _ in [0]))) == []  # type: ignore[misc]  # never asked


def test_reused_spelling_reports_newest_order_id(journal: Journal) -> None:
    open_sheet(journal, "b1", [new_instruction(2, "PAY-7")], opened_at=at(1))
    open_sheet(journal, "b2", [new_instruction(2, "pay-7")], opened_at=at(2))
    assert list(journal.used_spellings(OPERATION, [(9, "Pay-7", "pay-7")])) == [UsedSpelling(9, "pay-7", "b2", at(2))]
