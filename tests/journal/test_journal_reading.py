"""Queries return only matching rows, once each, up to the limit; payments are found by words and order ids."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest

from paygw_batch.core.batch import payee_tag
from paygw_batch.core.evidence import Finding, SignedOrder
from paygw_batch.core.lifecycle import FactKind, Resolution, Resolved, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.core.shown_states import render_record
from paygw_batch.core.text import normalise_spelling
from paygw_batch.journal import states
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import (
    Amendment,
    AttemptReply,
    Entry,
    FoundPayment,
    KnownRow,
    NewInstruction,
    PaymentSearch,
    RepeatedBatch,
    StateTally,
    StoredReply,
    TallyKind,
    UsedSpelling,
)
from tests.support.journal_rows import (
    AT,
    OPERATION,
    WORDS,
    arrival,
    at,
    due_rows,
    file_location,
    intent,
    memory_journal,
    new_instruction,
    open_journal_at,
    open_sheet,
    outcome_of,
    resolved,
    row_of,
    send,
)
from tests.support.tested_journal import Journal


def send_outcomes(journal: Journal, *kinds: tuple[OutcomeKind, int], **words: object) -> None:
    """Open a batch, and send a row for each (outcome, minute)."""
    open_sheet(journal, new=len(kinds))
    for due, (kind, minute) in zip(due_rows(journal, 1), kinds, strict=True):
        journal.append([intent(due, at(minute)), outcome_of(due.number, 1, kind, at(minute), **words)])


def row_numbers(journal: Journal, **wanted: Any) -> list[int]:
    return [one.row for one in journal.rows(1, **wanted)]


PAID, ACCEPTED = OutcomeKind.PAID, OutcomeKind.ACCEPTED
ACCEPTED_LATER = [(ACCEPTED, 1), (ACCEPTED, 5), (PAID, 6), (PAID, 7), (PAID, 8), (ACCEPTED, 9)]


def test_accepted_rows_are_filtered_by_sending_time(journal: Journal) -> None:
    send_outcomes(journal, *ACCEPTED_LATER)
    wanted = {State.ACCEPTED, State.IN_DOUBT}
    for until, found in ((at(0), []), (at(1), [2]), (at(4), [2]), (at(5), [2, 3]), (at(9), [2, 3, 7])):
        assert row_numbers(journal, states=wanted, accepted_until=until) == found
        assert row_numbers(journal, states=wanted, numbers=[2, 3, 5, 7], accepted_until=until) == found
        tallies = {tally.state: (tally.count, tally.minor) for tally in journal.tallies(1, accepted_until=until)}
        accepted = {State.ACCEPTED: (len(found), 150050 * len(found))} if found else {}
        assert tallies == {State.PAID: (3, 3 * 150050), **accepted}
    paid = {State.ACCEPTED, State.PAID}
    assert row_numbers(journal, states=paid, numbers=[7, 4], accepted_until=at(1)) == [4]


@pytest.mark.share(4)
@pytest.mark.parametrize("common", [1, 20_000])
def test_rows_respect_limit_without_repeats(journal: Journal, monkeypatch: pytest.MonkeyPatch, common: int) -> None:
    monkeypatch.setattr(states, "_SCAN_FROM_ROWS", common)
    send_outcomes(journal, *ACCEPTED_LATER)
    assert row_numbers(journal, limit=2) == [2, 3]
    assert row_numbers(journal, after=3, limit=2) == [4, 5]
    assert row_numbers(journal, after=5) == [6, 7]
    paid = {State.PAID}
    assert row_numbers(journal, states=paid, limit=2) == [4, 5]
    assert row_numbers(journal, states=paid, after=4, limit=2) == [5, 6]
    assert row_numbers(journal, states={State.ACCEPTED, *paid}, after=2, limit=2) == [3, 4]
    assert row_numbers(journal, numbers=[7, 4, 4, 2, 99], limit=2) == [2, 4]
    assert row_numbers(journal, states=paid, numbers=[7, 6, 4], after=4) == [6]
    assert row_numbers(journal, states={State.READY}, limit=2) == []
    unknown = [[*journal.rows(2)], [*journal.rows(2, states=paid)], [*journal.tallies(2)], [*journal.pages(2)]]
    assert unknown == [[]] * 4


def test_known_rows_are_tallied_separately(journal: Journal) -> None:
    send_outcomes(journal, (OutcomeKind.PAID, 1), (OutcomeKind.UNKNOWN, 2))
    known = [KnownRow(2, 1, State.PAID), KnownRow(3, 2, State.IN_DOUBT)]
    open_sheet(journal, "b2", [new_instruction(4, "NEW", amount="10.00")], known=known, opened_at=at(3))
    tallies = [StateTally("KE", "KES", state, 1, 150050) for state in (State.IN_DOUBT, State.PAID)]
    assert [list(journal.tallies(batch, kind=TallyKind.KNOWN)) for batch in (1, 2)] == [[], tallies]
    assert list(journal.tallies(2)) == [*tallies, StateTally("KE", "KES", State.READY, 1, 1000)]


def test_journal_returns_signed_orders_of_batch_in_order(journal: Journal) -> None:
    open_sheet(journal, new=1)
    open_sheet(journal, "b2", [new_instruction(2, "OTHER")])
    for batch, text in (("b1", "one"), ("b2", "two"), ("b1", "three")):
        journal.settle([], order=SignedOrder(batch, text, at(1)))
    assert list(journal.signed_orders("b1")) == ["one", "three"]
    assert list(journal.signed_orders("b2")) == ["two"]
    assert list(journal.signed_orders()) == []


def test_journal_returns_payment_page_of_latest_attempt(journal: Journal) -> None:
    send_outcomes(journal, (OutcomeKind.REJECTED, 1), (OutcomeKind.ACCEPTED, 2), customer_url="https://pay.example/1")
    assert dict(journal.customer_urls(1)) == {2: "https://pay.example/1", 3: "https://pay.example/1"}
    journal.release(1, None, suffix=True, by="amina", at=at(3))
    (due,) = due_rows(journal, 1)
    journal.append([intent(due, at(4))])
    assert dict(journal.customer_urls(1)) == {3: "https://pay.example/1"}
    journal.append([outcome_of(due.number, 2, OutcomeKind.ACCEPTED, at(5), customer_url="https://pay.example/2")])
    assert dict(journal.customer_urls(1)) == {2: "https://pay.example/2", 3: "https://pay.example/1"}
    assert journal.customer_urls(7) == {}


def test_raw_replies_are_stored_by_attempt(journal: Journal) -> None:
    open_sheet(journal, new=2)
    replies = [StoredReply("HTTP/1.1 200 OK", b"{}"), StoredReply("HTTP/1.1 500 Error", b"<html>")]
    for attempt, kind, reply in zip((1, 2), (OutcomeKind.REJECTED, OutcomeKind.UNKNOWN), replies, strict=True):
        (due, *_) = due_rows(journal, 1)
        outcome = outcome_of(due.number, attempt, kind, at(attempt), reply_sha256=reply.sha256)
        journal.append([intent(due, at(attempt)), replace(outcome, reply=reply)])
        journal.release(1, None, suffix=True, by="amina", at=at(1))
    assert list(journal.replies(1)) == [AttemptReply(n, at(n), replies[n - 1]) for n in (1, 2)]
    assert list(journal.replies(2)) == []
    assert journal.verify()["in_doubt"] == 1


def test_processing_notifications_stops_at_row_in_flight(folder: Path) -> None:
    with closing(open_journal_at(folder)) as journal:
        send_outcomes(journal, *[(OutcomeKind.ACCEPTED, 1)] * 3)
        open_sheet(journal, "b2", [new_instruction(2, "FLYING")], opened_at=at(2))
        (flying,) = due_rows(journal, 2)
        journal.append([intent(flying, at(3))])
        with file_location(folder).open_note_recorder() as keep:
            keep([arrival(order_id) for order_id in ("ORD-2", "ORD-3", "FLYING", "ORD-4")])
        assert journal.process_arrivals(WORDS, at=at(4), at_most=1) == {Finding.MOVED: 2}
        assert journal.process_arrivals(WORDS, at=at(4)) == {}
        assert [row.state for row in journal.rows(1)] == [State.PAID, State.PAID, State.ACCEPTED]
        assert row_of(journal, 1, 2).updated_at == at(4)
        journal.append([outcome_of(flying.number, 1, OutcomeKind.UNKNOWN, at(5))])
        assert journal.process_arrivals(WORDS, at=at(6)) == {Finding.MOVED: 2}
        assert {row.state for batch in (1, 2) for row in journal.rows(batch)} == {State.PAID}
        assert journal.verify()["notifications_waiting"] == 0


# The history of people's acts.
def test_history_lists_actions_in_order(journal: Journal) -> None:
    open_sheet(journal, by="ada", approvals=("prepared by ada", "approved by ben"))
    for due, kind in zip(due_rows(journal, 1), (OutcomeKind.UNKNOWN, OutcomeKind.REJECTED, PAID), strict=True):
        journal.append([intent(due, at(1)), outcome_of(due.number, 1, kind, at(2))])
    journal.append([Entry(1, 1, Resolved(Resolution.PAID, "ticket 1", "cleo"), at(4))])
    journal.release(1, [3], suffix=True, by="dan", at=at(5))
    histories = [
        (entry.at, entry.kind, entry.row, entry.attempt, entry.by, render_record(entry.said))
        for entry in journal.history(1)
    ]
    assert histories == [
        (AT, "opened", None, None, "ada", "3 rows of payroll.csv"),
        (AT, "approved", None, None, "", "prepared by ada"),
        (AT, "approved", None, None, "", "approved by ben"),
        (at(4), "resolved_paid", 2, 1, "cleo", "ticket 1"),
        (at(5), "released", 3, 1, "dan", "next attempt as ORD-3-r2"),
    ]
    journal.verify()


def test_action_on_shared_row_appears_in_both_histories(journal: Journal) -> None:
    open_sheet(journal, new=2)
    send(journal, 1, OutcomeKind.REJECTED)
    open_sheet(journal, "b2", [new_instruction(2, "NEW")], known=[KnownRow(7, 2, State.REJECTED)])
    journal.release(2, [7], suffix=False, by="dan", at=at(5))
    for batch, row in ((1, 3), (2, 7)):
        assert [(entry.kind, entry.row) for entry in journal.history(batch)] == [("opened", None), ("released", row)]


def test_history_index_excludes_only_run_facts() -> None:
    indexed = {kind for kind in FactKind if "rel" <= kind < "s"}
    of_a_run = {FactKind.INTENDED, FactKind.INTERRUPTED, *(FactKind(kind.value) for kind in OutcomeKind)}
    assert indexed == set(FactKind) - of_a_run


def count_steps(ask: Callable[[Journal], object], rows: int) -> int:
    """Return the number of steps, in hundreds, of a query on a batch of `rows` rows with two in doubt."""
    step_count = 0

    def count_step() -> bool:
        nonlocal step_count
        step_count += 1
        return False

    with closing(memory_journal()) as journal:
        open_sheet(journal, new=[new_instruction(row) for row in range(2, rows)])
        send(journal, 1, OutcomeKind.PAID)
        open_sheet(journal, "b2", new=[new_instruction(row, f"NEW-{row}") for row in (2, 3)])
        send(journal, 2, OutcomeKind.UNKNOWN)
        journal.settle([resolved(row_of(journal, 2, 2).instruction, 1, Resolution.PAID, at(4))])
        journal._connection.set_progress_handler(count_step, 100)
        ask(journal)
        journal._connection.set_progress_handler(None)
    return step_count


@pytest.mark.share(3)
@pytest.mark.parametrize(
    "ask",
    [
        lambda journal: row_of(journal, 1, 3),
        lambda journal: list(journal.rows(1, after=2, limit=5)),
        lambda journal: list(journal.rows(1, numbers=[3, 4], states={State.PAID})),
        lambda journal: list(journal.rows(1, states={State.IN_DOUBT})),
        lambda journal: journal.history(1),
        lambda journal: journal.history(2),
        lambda journal: journal.customer_urls(2),
    ],
    ids=["row", "page", "rows in a state", "in doubt", "deeds", "deeds of a small batch", "pages to pay"],
)
def test_query_cost_does_not_depend_on_batch_size(ask: Callable[[Journal], object]) -> None:
    assert count_steps(ask, 4000) <= count_steps(ask, 40) + 2


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
    open_sheet(journal, "b1", [named_row(2, "Jane Wanjiku"), named_row(3, "José Ñandú"), named_row(4, "O'Brien, Jane")])
    open_sheet(journal, "b2", [named_row(2, "Wanjiku JANE", "ORD-9"), named_row(3, "عمر الشريف", "ORD-10")])
    return journal


FOUND_BY = {
    ("jane", "wanjiku"): ["ORD-9", "ORD-2"],
    ("WANJIKU",): ["ORD-9", "ORD-2"],
    ("wanj*",): ["ORD-9", "ORD-2"],
    ("jose", "nandu"): ["ORD-3"],
    ("o'brien",): ["ORD-4"],
    ("عمر",): ["ORD-10"],
    ("254700000003",): ["ORD-10", "ORD-3"],
    **{words: [] for words in (("wanj",), ("wallet",), ("jane", "nandu"), ('"',), ("NEAR(jane wanjiku)",))},
}


def test_payments_are_found_by_words_newest_first(people: Journal) -> None:
    assert {words: order_ids(find(people, *words)) for words in FOUND_BY} == FOUND_BY
    assert order_ids(find(people, "jane", limit=2)) == ["ORD-9", "ORD-4"]
    any_spelling = PaymentSearch((("0700000003", "254700000003"), ("عمر",)), "")
    assert order_ids(list(people.find_payments(any_spelling, limit=10))) == ["ORD-10"]


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


def test_search_finds_respelled_and_retried_order_ids(journal: Journal) -> None:
    open_sheet(journal, "b1", [new_instruction(2, "PAY-Ä-1"), new_instruction(3)])
    journal.append([intent(due) for due in due_rows(journal, 1)])
    journal.append([outcome_of(1, 1, OutcomeKind.REJECTED), outcome_of(2, 1, OutcomeKind.PAID)])
    journal.release(1, None, suffix=True, by="amina", at=AT)
    for typed in ("PAY-Ä-1", "pay-ä-1", "PAY-Ä-1-R2"):
        assert order_ids(find(journal, order_id=typed)) == ["PAY-Ä-1"]
    assert order_ids(find(journal, order_id="ord-3")) == ["ORD-3"]
    assert find(journal, order_id="PAY-Ä") == []


def test_search_finds_shared_row_once_in_both_operations(journal: Journal) -> None:
    open_sheet(journal, "b1", [named_row(2, "Jane Wanjiku"), named_row(3, "Jane Wairimu")])
    corrected = named_row(3, "Jane Wairimu")._replace(amount="7.00", minor=700)
    open_sheet(journal, "b2", [corrected], known=[KnownRow(2, 1, State.READY)], amendments=[Amendment(3, 2)])
    open_sheet(journal, "b3", [named_row(2, "Jane Wanjiku", "ORD-2")], operation="payin")
    assert [(one.operation, one.batch, one.row, one.state) for one in find(journal, "jane")] == [
        ("payin", "b3", 2, State.READY),
        ("payout", "b2", 3, State.READY),
        *(("payout", "b1", 3, State.REPLACED), ("payout", "b1", 2, State.READY)),
    ]
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
SPELLINGS = ["Jose\u0301-1", "JOSÉ-1", "josé-1", "José\u20101", "\uff2aosé-1"]  # the spelling of José-1


def used_ids(journal: Journal, *order_ids: str, operation: str = OPERATION) -> list[tuple[str, str]]:
    """Return (id, used spelling) for each id that was used in another spelling."""
    rows = [(row, order_id, normalise_spelling(order_id)) for row, order_id in enumerate(order_ids)]
    found = journal.used_spellings(operation, rows)
    assert all((one.batch, one.opened_at) == ("b1", AT) for one in found)
    return [(order_ids[one.row], one.order_id) for one in found]


def derived_row(row: int, reference: str) -> NewInstruction:
    new = new_instruction(row)
    return new._replace(client_orderid=f"{reference}-{payee_tag(reference, new.payee)}-1")


def test_used_order_id_is_found_in_every_spelling(journal: Journal) -> None:
    open_sheet(journal, new=[new_instruction(2, "José-1"), new_instruction(3, "PAY-7")])
    assert used_ids(journal, *SPELLINGS) == [(one, "José-1") for one in SPELLINGS]
    others = ("pay-7", "Pay\u20127", "\uff30AY-7")
    assert used_ids(journal, *others) == [(one, "PAY-7") for one in others]
    assert used_ids(journal, "José-2", "Jose-1", "PAY-70", "PAY 7") == []
    assert used_ids(journal, "pay-7", "josé-1", operation="payin") == []
    open_sheet(journal, "b1", [new_instruction(2, "COL-1")], operation="payin")
    assert used_ids(journal, "pay-7", "josé-1", "col-1", operation="payin") == [("col-1", "COL-1")]


@pytest.mark.parametrize("base", ["PAY", "PAYÉ"])
def test_ids_of_later_attempts_count_as_used(journal: Journal, base: str) -> None:
    open_sheet(journal, new=[new_instruction(2, base)])
    send(journal, 1, OutcomeKind.REJECTED)
    journal.release(1, None, suffix=True, by="amina", at=at(3))
    assert used_ids(journal, f"{base}-R2".lower()) == [(f"{base}-R2".lower(), f"{base}-r2")]
    assert journal.verify()["order_ids"] == 2


def test_later_attempt_avoids_used_ids_in_any_spelling(journal: Journal) -> None:
    ids = ["PAY", "pay-R2", "PAY\u2010r3"]
    open_sheet(journal, new=[new_instruction(row, order_id) for row, order_id in enumerate(ids, 2)])
    send(journal, 1, OutcomeKind.REJECTED)
    journal.release(1, [2], suffix=True, by="amina", at=at(3))
    assert [due.order_id for due in due_rows(journal, 1)] == ["PAY-r4"]


def test_amended_row_id_is_found_in_new_batch(journal: Journal) -> None:
    open_sheet(journal, "b0", [new_instruction(2, "PAYÉ")])
    open_sheet(journal, "b1", [new_instruction(2, "PAYÉ", amount="7.00")], amendments=[Amendment(2, 1)])
    assert used_ids(journal, "payé") == [("payé", "PAYÉ")]


def test_references_are_read_from_derived_ids(journal: Journal) -> None:
    open_sheet(journal, "b1", [derived_row(2, "Payroll-2026-11"), derived_row(3, "Payroll-2026-11")])
    open_sheet(journal, "b2", 3)
    open_sheet(journal, "b3", [derived_row(4, "bonus")], opened_at=at(9))
    open_sheet(journal, "b4", [derived_row(5, "fees")], operation="payin")
    references = [(batch.batch, batch.reference) for batch in journal.batches()]
    assert references == [("b1", "Payroll-2026-11"), ("b2", ""), ("b3", "bonus"), ("b4", "fees")]


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


def test_empty_journal_reads_no_order_ids_of_sheet(folder: Path) -> None:
    with closing(open_journal_at(folder)) as journal:
        assert list(journal.used_spellings(OPERATION, (1 / 0 for _ in [0]))) == []  # type: ignore[misc]  # never asked


def test_reused_spelling_reports_newest_order_id(journal: Journal) -> None:
    open_sheet(journal, "b1", [new_instruction(2, "PAY-7")], opened_at=at(1))
    open_sheet(journal, "b2", [new_instruction(2, "pay-7")], opened_at=at(2))
    rows = [(row, order_id, "pay-7") for row, order_id in ((7, "PAY-7"), (8, "pay-7"), (9, "Pay-7"))]
    assert list(journal.used_spellings(OPERATION, rows)) == [UsedSpelling(9, "pay-7", "b2", at(2))]
