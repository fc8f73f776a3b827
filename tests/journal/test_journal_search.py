"""Payments of all batches are found by the payee's words and by order id."""

import json
from typing import Any

import apsw
import pytest

from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import Amendment, FoundPayment, KnownRow, NewInstruction, PaymentSearch
from tests.support.journal_rows import AT, due_rows, intent, new_instruction, open_sheet, outcome_of, send
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
    send(journal, 1, OutcomeKind.PAID, gateway_reference="REF-1")
    (paid,) = find(journal, "jane")
    assert (paid.state, paid.attempts, paid.gateway_reference) == (State.PAID, 1, "REF-1")
    assert (paid.batch, paid.row, paid.sheet_name) == ("b1", 2, "october.csv")
    assert (paid.first_sent_at, paid.updated_at, paid.amount, paid.currency) == (AT, AT, "1500.50", "KES")
    assert paid.fields["account_name"] == "Jane Wanjiku"


def test_found_row_in_flight_shows_sending_time(journal: Journal) -> None:
    open_sheet(journal, "b1", 1)
    journal.append([intent(due) for due in due_rows(journal, 1)])
    (payment,) = find(journal, "wanjiku")
    assert (payment.state, payment.first_sent_at) == (State.IN_FLIGHT, AT)


def test_search_finds_order_id_by_spelling_or_attempt(journal: Journal) -> None:
    open_sheet(journal, "b1", [new_instruction(2, "PAY-Ä-1"), new_instruction(3)])
    journal.append([intent(due) for due in due_rows(journal, 1)])
    journal.append([outcome_of(1, 1, OutcomeKind.REJECTED), outcome_of(2, 1, OutcomeKind.PAID)])
    journal.release(1, None, suffix=True, by="amina", at=AT)
    for typed in ("PAY-Ä-1", "pay-ä-1", "PAY-Ä-1-R2"):
        assert order_ids(find(journal, order_id=typed)) == ["PAY-Ä-1"]
    assert order_ids(find(journal, order_id="ord-3")) == ["ORD-3"]
    assert find(journal, order_id="PAY-Ä") == []


def test_shared_row_is_found_once_beside_replaced_row(journal: Journal) -> None:
    open_sheet(journal, "b1", [named_row(2, "Jane Wanjiku"), named_row(3, "Jane Wairimu")])
    corrected = named_row(3, "Jane Wairimu")._replace(amount="7.00", minor=700)
    open_sheet(journal, "b2", [corrected], known=[KnownRow(2, 1, State.READY)], amendments=[Amendment(3, 2)])
    states = [(payment.batch, payment.row, payment.state) for payment in find(journal, "jane")]
    assert states == [("b2", 3, State.READY), ("b1", 3, State.REPLACED), ("b1", 2, State.READY)]


def test_people_are_found_in_both_operations(journal: Journal) -> None:
    open_sheet(journal, "b1", [named_row(2, "Jane Wanjiku")])
    open_sheet(journal, "b2", [named_row(2, "Jane Wanjiku", "ORD-2")], operation="payin")
    assert [payment.operation for payment in find(journal, "jane")] == ["payin", "payout"]
    assert [payment.operation for payment in find(journal, order_id="ORD-2")] == ["payin", "payout"]


def test_verify_accepts_search_index(people: Journal) -> None:
    people.verify()


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
