"""Orders of two people about rows: valid only while every row is unchanged, and only for the facts that they caused."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from paygw_batch.approval.signed_document import approve, sign_document
from paygw_batch.core.evidence import Claim, Evidence, EvidenceSource, Proof, SignedOrder
from paygw_batch.core.lifecycle import Basis, Resolution, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.core.shown_states import decider_name, encode_record, format_decider, render_record
from paygw_batch.errors import ApprovalError, JournalCorrupt
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import StatementNote
from paygw_batch.settle.kept_documents import check_recorded_orders, is_recorded
from paygw_batch.settle.resolve import Settlement, settle
from paygw_batch.settle.row_order import (
    Decision,
    OrderedRow,
    OrderInForce,
    RowAct,
    RowOrder,
    order_in_force,
    row_content,
    unsigned_order,
)
from paygw_batch.settle.statement import Statement
from tests.support.journal_rows import (
    at,
    due_rows,
    intent,
    memory_journal,
    new_instruction,
    open_sheet,
    outcome_of,
    send,
)
from tests.support.signed_plans import ADA, BEN, CLEO, forge_approval, policy

NOW = datetime(2026, 11, 21, 9, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
PLACE = "gateway.example/1"
HERE: Mapping[str, Any] = {"endpoint": PLACE}
JOURNAL = "0" * 32


def journal_of(*kinds: OutcomeKind) -> SqliteJournal:
    """Return a journal whose rows, from 2 on, were sent and had these outcomes."""
    journal = memory_journal()
    open_sheet(journal, new=len(kinds))
    for due, kind in zip(due_rows(journal, 1), kinds, strict=True):
        journal.append([intent(due, at(1)), outcome_of(due.number, 1, kind, at(1))])
    return journal


def doubtful() -> SqliteJournal:
    return journal_of(OutcomeKind.UNKNOWN, OutcomeKind.UNKNOWN, OutcomeKind.ACCEPTED)


def rejected() -> SqliteJournal:
    return journal_of(OutcomeKind.REJECTED, OutcomeKind.REJECTED, OutcomeKind.UNKNOWN)


def word(row: int, resolution: Resolution = Resolution.NOT_RECEIVED, basis: Basis = Basis.PERSON) -> Settlement:
    return Settlement(row, resolution, f"Ticket {row}", basis)


def settlement_order(journal: SqliteJournal, *rows: int, statement: Statement | None = None) -> RowOrder:
    words = [Decision.from_settlement(word(row)) for row in rows or (2,)]
    content = row_content(journal, journal.batches()[0], words, statement=statement, **HERE)
    return sign_document(unsigned_order(content, ADA.public, NOW), ADA)


def release_order(journal: SqliteJournal, *rows: int) -> RowOrder:
    asked = [Decision(row, RowAct.RELEASE, "Ticket 9") for row in rows or (2,)]
    return sign_document(
        unsigned_order(row_content(journal, journal.batches()[0], asked, **HERE), ADA.public, NOW), ADA
    )


def accepted_order(order: RowOrder, journal: SqliteJournal, *, needed: int = 1, endpoint: str = PLACE) -> OrderInForce:
    return order_in_force(order, journal, policy(needed), LATER, by="amina", endpoint=endpoint)


def refusal_of(order: RowOrder, journal: SqliteJournal, *, endpoint: str = PLACE) -> str:
    with pytest.raises(ApprovalError) as valid_order:
        accepted_order(order, journal, endpoint=endpoint)
    assert (valid_order.value.hint or "").startswith("Nothing was settled, released or sent.")
    return valid_order.value.message


def approved(order: Any) -> Any:
    return approve(order, CLEO, policy(), NOW)


BOTH = pytest.mark.parametrize(("make", "ordered"), [(doubtful, settlement_order), (rejected, release_order)])
Make = Callable[[], SqliteJournal]
Ordered = Callable[..., RowOrder]


# The content
def test_settlement_order_contains_current_row_states() -> None:
    journal = doubtful()
    words = [word(3), word(2, Resolution.REJECTED, Basis.GATEWAY), word(4, Resolution.PAID)]
    statement = Statement("day.csv", "a" * 64, [])
    decisions = [Decision.from_settlement(one) for one in words]
    content = row_content(journal, journal.batches()[0], decisions, statement=statement, **HERE)
    assert (content.endpoint, content.journal, content.operation) == (PLACE, JOURNAL, "payout")
    assert (content.batch, content.sheet) == ("b1", "payroll.csv")
    assert (content.statement, content.statement_sha256) == ("day.csv", "a" * 64)
    first, second, third = content.rows
    named = {"row": 3, "client_orderid": "ORD-3", "order_id": "ORD-3", "attempt": 1, "hold": 0, "duplicate_of": 0}
    named |= {"sent_at": "2026-11-21T08:01:00.000Z", "state": State.IN_DOUBT, "currency": "KES", "amount": "1500.50"}
    named |= {"act": RowAct.NOT_RECEIVED, "evidence": "Ticket 3", "basis": Basis.PERSON}
    assert first == OrderedRow.model_validate(named)
    assert (second.row, second.act, second.basis) == (2, RowAct.REJECTED, Basis.GATEWAY)
    assert (third.row, third.state, third.act) == (4, State.ACCEPTED, RowAct.PAID)
    assert list(settlement_order(journal, 3, 2).settlements) == [word(3), word(2)]
    in_flight = memory_journal()
    open_sheet(in_flight, new=1)
    in_flight.append([intent(due_row, at(1)) for due_row in due_rows(in_flight, 1)])
    assert settlement_order(in_flight).content.rows[0].state is State.IN_DOUBT


def test_order_about_held_row_contains_hold() -> None:
    journal = memory_journal()
    open_sheet(journal, new=1)
    claim = Claim("ORD-2", "1500.50", "KES", "approved", proof=Proof.PROVEN)
    evidence = Evidence(EvidenceSource.NOTIFICATION, claim, "{}", 1)
    journal.record_evidence([evidence], {"approved": OutcomeKind.PAID}, at=at(3))
    (row,) = settlement_order(journal).content.rows
    assert (row.hold, row.order_id, row.attempt, row.state) == (journal.head().seq - 1, "", 0, State.READY)


def test_order_lists_its_rows_and_statement() -> None:
    assert settlement_order(doubtful(), 9, 2).numbers == [2]
    with pytest.raises(ValueError, match="at least one row"):
        settlement_order(doubtful(), 9)
    journal = doubtful()
    assert settlement_order(journal).statement_note("amina") is None
    of_file = settlement_order(journal, statement=Statement("day.csv", "a" * 64, []))
    assert of_file.statement_note("amina") == StatementNote("b1", "day.csv", "a" * 64, "amina")
    accepted_order(approved(of_file), journal)


def test_release_order_covers_only_rejected_rows() -> None:
    journal = rejected()
    with pytest.raises(ValueError, match="releases rejected ones"):
        release_order(journal, 4, 3)
    order = release_order(journal, 3, 9, 2)
    assert (order.numbers, order.is_release, settlement_order(journal).is_release) == ([3, 2], True, False)
    (row, _), content = order.content.rows, order.content
    assert (row.act, row.evidence, row.attempt, row.duplicate_of) == (RowAct.RELEASE, "Ticket 9", 1, 0)
    assert (row.client_orderid, row.order_id, row.amount) == ("ORD-3", "ORD-3", "1500.50")
    assert (content.endpoint, content.journal, content.batch) == (PLACE, JOURNAL, "b1")


def test_malformed_order_content_is_refused() -> None:
    settling, releasing = settlement_order(doubtful(), 3, 4), release_order(rejected(), 2)
    (row,), (first, _) = releasing.content.rows, settling.content.rows
    wrong: tuple[dict[str, Any], ...] = (
        {"rows": []},
        {"rows": [first, first]},
        {"rows": [row, first]},
        {"rows": [row], "statement_sha256": "a" * 64},
        {"rows": [row.model_copy(update={"basis": Basis.GATEWAY})]},
        {"rows": [row.model_copy(update={"state": State.PAID})]},
    )
    for change in wrong:
        content = releasing.content.model_copy(update=change)
        text = sign_document(releasing.model_copy(update={"content": content}), ADA).model_dump_json()
        with pytest.raises(ValueError, match="an order"):
            RowOrder.model_validate_json(text)
    assert RowOrder.model_validate_json(settling.model_dump_json()) == settling


@BOTH
def test_order_needs_configured_number_of_approvers(make: Make, ordered: Ordered) -> None:
    order = ordered(make())
    assert (order.made_at, order.maker, order.approvals) == ("2026-11-21T09:00:00.000Z", ADA.public.text, [])
    assert unsigned_order(order.content, ADA.public, NOW).signature == ""
    journal = make()
    assert "needs 1 valid approval but has 0" in refusal_of(ordered(journal), journal)
    with pytest.raises(ApprovalError, match="needs 2 valid approvals but has 1"):
        accepted_order(approved(ordered(journal)), journal, needed=2)


# Conditions for carrying out an order
@BOTH
def test_valid_order_is_attributed_to_its_signers(make: Make, ordered: Ordered) -> None:
    journal = make()
    order = approve(approved(ordered(journal)), BEN, policy(), NOW)
    stale = order.model_copy(update={"approvals": [forge_approval(ADA, order), *order.approvals]})
    valid_order = accepted_order(stale, journal, needed=2)
    assert valid_order.batch == journal.batches()[0]
    assert valid_order.by == encode_record("agreed", "amina", order.digest(), "ada", "cleo, ben")
    assert (
        render_record(encode_record("released", valid_order.by))
        == f"Released by {format_decider(valid_order.by)}, to be sent again."
    )
    assert format_decider(valid_order.by) == f"amina, by order {order.digest()}, prepared by ada, approved by cleo, ben"
    assert (decider_name(valid_order.by), decider_name("amina"), format_decider("amina")) == ("amina", "amina", "amina")
    typed = f"{valid_order.by} (login root)"
    assert (decider_name(typed), format_decider(typed)) == (valid_order.by, typed), "no name passes for an order"
    assert valid_order.signed_order == SignedOrder("b1", order.model_dump_json(), sha256=order.digest())


@BOTH
def test_order_is_valid_only_for_its_batch(make: Make, ordered: Ordered) -> None:
    journal = make()
    order = approved(ordered(journal))
    noun = order.noun
    assert refusal_of(order, journal, endpoint="other/1") == f"The {noun} is for {PLACE}, not for other/1."
    changes = {
        "journal": ("a" * 32, f"The {noun} is for the journal aaaaaaaa, not for the journal 00000000."),
        "batch": ("b7", "The journal has no batch b7."),
        "operation": ("payin", "The journal has no batch b1."),
        "sheet": ("other.csv", f"The {noun} is no longer valid: the order is for another batch"),
    }
    for name, (value, sentence) in changes.items():
        content = order.content.model_copy(update={name: value})
        changed = sign_document(order.model_copy(update={"content": content, "approvals": []}), ADA)
        assert refusal_of(approved(changed), journal).startswith(sentence)


def order_with_changed_rows(order: Any, **changes: object) -> Any:
    """Return a signed and approved order whose rows have other values."""
    rows = [row.model_copy(update=changes) for row in order.content.rows]
    content = order.content.model_copy(update={"rows": rows})
    return approved(sign_document(order.model_copy(update={"content": content}), ADA))


def test_settlement_order_is_refused_after_row_changes() -> None:
    journal = doubtful()
    order = approved(settlement_order(journal, 2, 3))
    journal.append([outcome_of(1, 1, OutcomeKind.ACCEPTED, at(5))])
    was = "The order is no longer valid: row 2"
    moved = "was in doubt after attempt 1 and is now with the gateway after attempt 1"
    assert refusal_of(order, journal) == f"{was} {moved}."
    changes: dict[str, tuple[object, str]] = {
        "amount": ("1.00", f"{was} does not match the payment in the order."),
        "attempt": (2, f"{was} was with the gateway after attempt 2 and is now with the gateway after attempt 1."),
        "row": (9, "The order is no longer valid: row 9 is not in the batch."),
        "hold": (4, f"{was} is now held for a different reason than when the order was made."),
    }
    for name, (value, sentence) in changes.items():
        changed = order_with_changed_rows(settlement_order(journal), **{name: value})
        assert refusal_of(changed, journal) == sentence
    with pytest.raises(ApprovalError) as valid_order:
        accepted_order(order, journal)
    assert valid_order.value.hint == (
        "Nothing was settled, released or sent. Make a new order with `paygw-batch order` and have it approved."
    )


def test_order_error_lists_first_changed_rows() -> None:
    journal = journal_of(*[OutcomeKind.UNKNOWN] * 8)
    order = settlement_order(journal, *range(2, 10))
    sentence = refusal_of(order_with_changed_rows(order, amount="1.00"), journal)
    names = [f"row {row} does not match the payment in the order" for row in range(2, 7)]
    assert sentence == f"The order is no longer valid: {'; '.join(names)}; and 3 more rows."
    five = refusal_of(order_with_changed_rows(settlement_order(journal, *range(2, 7)), amount="1.00"), journal)
    assert five == f"The order is no longer valid: {'; '.join(names)}."


def test_release_order_is_refused_after_row_changes() -> None:
    journal = rejected()
    order = approved(release_order(journal, 2, 3))
    accepted_order(order, journal)
    journal.release(1, [3], suffix=True, by="amina", at=at(5))
    was = "The order is no longer valid: row 3 was rejected after attempt 1 and is now"
    assert refusal_of(order, journal) == f"{was} not sent yet after attempt 1."
    send(journal, 1, OutcomeKind.REJECTED, at(6))
    assert refusal_of(order, journal) == f"{was} rejected after attempt 2."


# What the journal keeps
def carry_out_settlement(
    journal: SqliteJournal, order: RowOrder, *, is_named: bool = True, rows: Sequence[int] = ()
) -> None:
    """Carry out an order as `carry-out` does, on `rows` instead of its own if given.

    If `is_named` is false, the facts do not name the order.
    """
    valid_order = accepted_order(order, journal)
    words = [word(row) for row in rows] or list(order.settlements)
    settle(
        journal,
        valid_order.batch,
        words,
        by=valid_order.by,
        now=lambda: LATER,
        order=valid_order.signed_order if is_named else replace(valid_order.signed_order, sha256=""),
    )


def carry_out_release(journal: SqliteJournal, order: RowOrder, *, rows: Sequence[int] = ()) -> None:
    valid_order = accepted_order(order, journal)
    order_kept = replace(valid_order.signed_order, at=at(30))
    journal.release(1, rows or order.numbers, suffix=True, by=valid_order.by, at=at(30), order=order_kept)


def test_carried_out_orders_are_counted_and_recognised() -> None:
    journal = journal_of(OutcomeKind.UNKNOWN, OutcomeKind.UNKNOWN, OutcomeKind.REJECTED, OutcomeKind.REJECTED)
    assert check_recorded_orders(journal) == 0
    settling, releasing = approved(settlement_order(journal, 2, 3)), approved(release_order(journal, 4, 5))
    assert not is_recorded(journal, settling)
    carry_out_release(journal, releasing)
    assert (check_recorded_orders(journal), is_recorded(journal, settling), is_recorded(journal, releasing)) == (
        1,
        False,
        True,
    )
    carry_out_settlement(journal, settling)
    assert check_recorded_orders(journal) == 2
    with_another_approval = approve(settlement_order(doubtful(), 2, 3), BEN, policy(), NOW)
    assert is_recorded(journal, settling)
    assert is_recorded(journal, with_another_approval)
    assert not is_recorded(journal, settlement_order(doubtful(), 2))
    assert not is_recorded(memory_journal(), settling)


def test_order_for_second_batch_is_carried_out() -> None:
    journal = memory_journal()
    open_sheet(journal, "b0", [new_instruction(2, "FIRST")])
    open_sheet(journal, new=1)
    send(journal, 2, OutcomeKind.UNKNOWN)
    batch = journal.batches()[1]
    content = row_content(journal, batch, [Decision.from_settlement(word(2))], **HERE)
    order = approved(sign_document(unsigned_order(content, ADA.public, NOW), ADA))
    valid_order = accepted_order(order, journal)
    settle(
        journal,
        valid_order.batch,
        order.settlements,
        by=valid_order.by,
        now=lambda: LATER,
        order=valid_order.signed_order,
    )
    assert (valid_order.batch, check_recorded_orders(journal), is_recorded(journal, order)) == (batch, 1, True)


def store_order(journal: SqliteJournal, document: str) -> None:
    journal.settle([], order=SignedOrder("b1", document, at(31)))


def corruption_of(journal: SqliteJournal) -> str:
    with pytest.raises(JournalCorrupt) as valid_order:
        check_recorded_orders(journal)
    return valid_order.value.message


def test_stored_order_needs_two_signatures() -> None:
    order = approved(settlement_order(doubtful()))
    other = sign_document(order.model_copy(update={"made_at": "2026-11-21T09:00:01.000Z"}), ADA)
    unreadable = json.loads(order.model_dump_json())
    unreadable["approvals"][0]["key"] = "no key"
    documents = [
        order.model_copy(update={"approvals": approvals}).model_dump_json()
        for approvals in ([], [forge_approval(ADA, order)], order.approvals * 2)
    ]
    documents.append(order.model_copy(update={"signature": other.signature}).model_dump_json())
    for document in (*documents, other.model_dump_json(), json.dumps(unreadable)):
        journal = doubtful()
        store_order(journal, document)
        assert corruption_of(journal) == (
            f"The signed order {type(order).model_validate_json(document).digest()[:16]} for batch b1 is not signed "
            "with the keys that it lists."
        )
    journal = doubtful()
    store_order(journal, "{}")
    assert corruption_of(journal) == "A signed order for batch b1 cannot be read."


@pytest.mark.parametrize(("name", "value"), [("journal", "a" * 32), ("batch", "b7"), ("operation", "payin")])
def test_stored_order_must_match_journal_and_batch(name: str, value: str) -> None:
    journal = doubtful()
    order = settlement_order(journal)
    changed = sign_document(order.model_copy(update={"content": order.content.model_copy(update={name: value})}), ADA)
    store_order(journal, approved(changed).model_dump_json())
    assert corruption_of(journal).startswith(f"The signed order {changed.digest()[:16]} for batch b1 ")


def test_stored_order_must_match_recorded_facts() -> None:
    order = approved(settlement_order(doubtful(), 2, 3))
    one = approved(settlement_order(doubtful(), 2))
    cases: list[tuple[RowOrder, dict[str, Any], str]] = [
        (order, {"rows": [2]}, "1 of 2"),
        (one, {"rows": [2, 3]}, "1 of 1"),
        (order, {"is_named": False}, "0 of 2"),
        (one, {"rows": [3]}, "0 of 1"),
    ]
    for kept, changes, fitting in cases:
        journal = doubtful()
        carry_out_settlement(journal, kept, **changes)
        named = f"The signed order {kept.digest()[:16]} for batch b1 does not match the journal: "
        assert corruption_of(journal) == f"{named}{fitting} decisions agree."
    journal = rejected()
    carry_out_release(journal, approved(release_order(journal, 2)), rows=[3])
    assert corruption_of(journal).endswith("0 of 1 decisions agree.")
