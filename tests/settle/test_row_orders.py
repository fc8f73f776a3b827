"""Orders of two people about rows: valid only while every row is unchanged, and only for the facts that they caused."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from paygw_batch.approval.signed_document import approve, sign_document
from paygw_batch.core.evidence import SignedOrder
from paygw_batch.core.lifecycle import Basis, Resolution, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.core.shown_states import decider_name, encode_record, format_decider, render_record
from paygw_batch.errors import ApprovalError, JournalCorrupt
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import StatementNote
from paygw_batch.settle.kept_documents import check_recorded_orders, is_recorded
from paygw_batch.settle.resolve import Settlement, settle
from paygw_batch.settle.row_order import Decision, RowAct, RowOrder, order_in_force, row_content, unsigned_order
from paygw_batch.settle.statement import Statement
from tests.support.journal_rows import (
    WORDS,
    at,
    build_evidence,
    due_rows,
    intent,
    journal_of,
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


def doubtful() -> SqliteJournal:
    return journal_of(OutcomeKind.UNKNOWN, OutcomeKind.UNKNOWN, OutcomeKind.ACCEPTED)


def rejected() -> SqliteJournal:
    return journal_of(OutcomeKind.REJECTED, OutcomeKind.REJECTED, OutcomeKind.UNKNOWN)


def word(row: int, resolution: Resolution = Resolution.NOT_RECEIVED, basis: Basis = Basis.PERSON) -> Settlement:
    return Settlement(row, resolution, f"Ticket {row}", basis)


def signed_order(journal: SqliteJournal, decisions: Sequence[Decision], **more: Any) -> RowOrder:
    """Return an order of ada about rows of the newest batch."""
    content = row_content(journal, journal.batches()[-1], decisions, endpoint=PLACE, **more)
    return sign_document(unsigned_order(content, ADA.public, NOW), ADA)


def settlement_order(journal: SqliteJournal, *rows: int, statement: Statement | None = None) -> RowOrder:
    return signed_order(journal, [Decision.from_settlement(word(row)) for row in rows or (2,)], statement=statement)


def release_order(journal: SqliteJournal, *rows: int) -> RowOrder:
    return signed_order(journal, [Decision(row, RowAct.RELEASE, "Ticket 9") for row in rows or (2,)])


def accepted_order(order: RowOrder, journal: SqliteJournal, *, needed: int = 1, endpoint: str = PLACE) -> Any:
    return order_in_force(order, journal, policy(needed), LATER, by="amina", endpoint=endpoint)


def refusal_of(order: RowOrder, journal: SqliteJournal, *, endpoint: str = PLACE, hint: str = "") -> str:
    with pytest.raises(ApprovalError) as refused:
        accepted_order(order, journal, endpoint=endpoint)
    assert (refused.value.hint or "").startswith(f"Nothing was settled, released or sent.{hint}")
    return refused.value.message


def approved(order: Any) -> Any:
    return approve(order, CLEO, policy(), NOW)


def changed_order(order: RowOrder, **changes: object) -> Any:
    """Return an order whose content has other values, signed by its maker and approved again."""
    content = order.content.model_copy(update=changes)
    return approved(sign_document(order.model_copy(update={"content": content, "approvals": []}), ADA))


BOTH = pytest.mark.parametrize(("make", "ordered"), [(doubtful, settlement_order), (rejected, release_order)])
Make = Callable[[], SqliteJournal]
Ordered = Callable[..., RowOrder]


# The content
def test_settlement_order_contains_row_states_and_holds() -> None:
    journal = doubtful()
    words = [word(3), word(2, Resolution.REJECTED, Basis.GATEWAY), word(4, Resolution.PAID)]
    decisions, statement = [Decision.from_settlement(one) for one in words], Statement("day.csv", "a" * 64, [])
    content = signed_order(journal, decisions, statement=statement).content
    assert (content.endpoint, content.journal, content.operation) == (PLACE, "0" * 32, "payout")
    assert (content.batch, content.sheet) == ("b1", "payroll.csv")
    assert (content.statement, content.statement_sha256) == ("day.csv", "a" * 64)
    first, second, third = content.rows
    named = {"row": 3, "client_orderid": "ORD-3", "order_id": "ORD-3", "attempt": 1, "hold": 0, "duplicate_of": 0}
    named |= {"sent_at": "2026-11-21T08:01:00.000Z", "state": State.IN_DOUBT, "currency": "KES", "amount": "1500.50"}
    named |= {"act": RowAct.NOT_RECEIVED, "evidence": "Ticket 3", "basis": Basis.PERSON}
    assert first == type(first).model_validate(named)
    assert (second.row, second.act, second.basis) == (2, RowAct.REJECTED, Basis.GATEWAY)
    assert (third.row, third.state, third.act) == (4, State.ACCEPTED, RowAct.PAID)
    assert list(settlement_order(journal, 3, 2).settlements) == [word(3), word(2)]
    in_flight = journal_of(None)
    in_flight.append([intent(due_row, at(1)) for due_row in due_rows(in_flight, 1)])
    assert settlement_order(in_flight).content.rows[0].state is State.IN_DOUBT
    journal = journal_of(None)
    journal.record_evidence([build_evidence(1)], WORDS, at=at(3))
    (row,) = settlement_order(journal).content.rows
    assert (row.hold, row.order_id, row.attempt, row.state) == (journal.head().seq - 1, "", 0, State.READY)


def test_order_lists_its_rows_and_statement() -> None:
    journal = doubtful()
    assert settlement_order(journal, 9, 2).numbers == [2]
    with pytest.raises(ValueError, match="at least one row"):
        settlement_order(journal, 9)
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
    assert (content.endpoint, content.journal, content.batch) == (PLACE, "0" * 32, "b1")


def test_malformed_order_content_is_refused() -> None:
    settling, releasing = settlement_order(doubtful(), 3, 4), release_order(rejected(), 2)
    (row,), (first, _) = releasing.content.rows, settling.content.rows
    wrong: tuple[dict[str, Any], ...] = (
        *({"rows": rows} for rows in ([], [first, first], [row, first])),
        {"rows": [row], "statement_sha256": "a" * 64},
        *({"rows": [row.model_copy(update=change)]} for change in ({"basis": Basis.GATEWAY}, {"state": State.PAID})),
    )
    for change in wrong:
        text = changed_order(releasing, **change).model_dump_json()
        with pytest.raises(ValueError, match="an order"):
            RowOrder.model_validate_json(text)
    assert RowOrder.model_validate_json(settling.model_dump_json()) == settling


@BOTH
def test_order_needs_configured_number_of_approvers(make: Make, ordered: Ordered) -> None:
    journal = make()
    order = ordered(journal)
    assert (order.made_at, order.maker, order.approvals) == ("2026-11-21T09:00:00.000Z", ADA.public.text, [])
    assert unsigned_order(order.content, ADA.public, NOW).signature == ""
    assert "needs 1 valid approval but has 0" in refusal_of(order, journal)
    with pytest.raises(ApprovalError, match="needs 2 valid approvals but has 1"):
        accepted_order(approved(order), journal, needed=2)


# Conditions for carrying out an order
@BOTH
def test_valid_order_is_attributed_to_its_signers(make: Make, ordered: Ordered) -> None:
    journal = make()
    order = approve(approved(ordered(journal)), BEN, policy(), NOW)
    stale = order.model_copy(update={"approvals": [forge_approval(ADA, order), *order.approvals]})
    valid_order = accepted_order(stale, journal, needed=2)
    by = valid_order.by
    assert valid_order.batch == journal.batches()[0]
    assert by == encode_record("agreed", "amina", order.digest(), "ada", "cleo, ben")
    assert render_record(encode_record("released", by)) == f"Released by {format_decider(by)}, to be sent again."
    assert format_decider(by) == f"amina, by order {order.digest()}, prepared by ada, approved by cleo, ben"
    assert (decider_name(by), decider_name("amina"), format_decider("amina")) == ("amina", "amina", "amina")
    typed = f"{by} (login root)"
    assert (decider_name(typed), format_decider(typed)) == (by, typed), "no name passes for an order"
    assert valid_order.signed_order == SignedOrder("b1", order.model_dump_json(), sha256=order.digest())


@BOTH
def test_order_is_valid_only_for_its_batch(make: Make, ordered: Ordered) -> None:
    journal = make()
    order = approved(ordered(journal))
    noun = order.noun
    assert refusal_of(order, journal, endpoint="other/1") == f"The {noun} is for {PLACE}, not for other/1."
    for name, value, sentence in (
        ("journal", "a" * 32, f"The {noun} is for the journal aaaaaaaa, not for the journal 00000000."),
        ("batch", "b7", "The journal has no batch b7."),
        ("operation", "payin", "The journal has no batch b1."),
        ("sheet", "other.csv", f"The {noun} is no longer valid: the order is for another batch"),
    ):
        assert refusal_of(changed_order(order, **{name: value}), journal).startswith(sentence)


def order_with_changed_rows(order: RowOrder, **changes: object) -> Any:
    return changed_order(order, rows=[row.model_copy(update=changes) for row in order.content.rows])


def test_settlement_order_is_refused_after_row_changes() -> None:
    journal = doubtful()
    order = approved(settlement_order(journal, 2, 3))
    journal.append([outcome_of(1, 1, OutcomeKind.ACCEPTED, at(5))])
    was = "The order is no longer valid: row 2"
    moved = "was in doubt after attempt 1 and is now with the gateway after attempt 1"
    again = " Make a new order with `paygw-batch order` and have it approved."
    assert refusal_of(order, journal, hint=again) == f"{was} {moved}."
    for change, sentence in (
        ({"amount": "1.00"}, f"{was} does not match the payment in the order."),
        ({"attempt": 2}, f"{was} was with the gateway after attempt 2 and is now with the gateway after attempt 1."),
        ({"row": 9}, "The order is no longer valid: row 9 is not in the batch."),
        ({"hold": 4}, f"{was} is now held for a different reason than when the order was made."),
    ):
        assert refusal_of(order_with_changed_rows(settlement_order(journal), **change), journal) == sentence
    journal = journal_of(*[OutcomeKind.UNKNOWN] * 8)
    names = "; ".join(f"row {row} does not match the payment in the order" for row in range(2, 7))
    for end, more in ((10, "; and 3 more rows"), (7, "")):
        order = order_with_changed_rows(settlement_order(journal, *range(2, end)), amount="1.00")
        assert refusal_of(order, journal) == f"The order is no longer valid: {names}{more}."


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
def settle_by_order(journal: SqliteJournal, order: RowOrder, *, named: bool = True, rows: Sequence[int] = ()) -> None:
    """Carry out an order as `carry-out` does, but on other `rows`, or with facts that do not name it (`named`)."""
    valid_order = accepted_order(order, journal)
    words = [word(row) for row in rows] or list(order.settlements)
    kept = valid_order.signed_order if named else replace(valid_order.signed_order, sha256="")
    settle(journal, valid_order.batch, words, by=valid_order.by, now=lambda: LATER, order=kept)


def release_by_order(journal: SqliteJournal, order: RowOrder, *, rows: Sequence[int] = ()) -> None:
    valid_order = accepted_order(order, journal)
    order_kept = replace(valid_order.signed_order, at=at(30))
    journal.release(1, rows or order.numbers, suffix=True, by=valid_order.by, at=at(30), order=order_kept)


def test_carried_out_orders_are_counted_and_recognised() -> None:
    journal = journal_of(OutcomeKind.UNKNOWN, OutcomeKind.UNKNOWN, OutcomeKind.REJECTED, OutcomeKind.REJECTED)
    assert check_recorded_orders(journal) == 0
    settling, releasing = approved(settlement_order(journal, 2, 3)), approved(release_order(journal, 4, 5))
    assert not is_recorded(journal, settling)
    release_by_order(journal, releasing)
    assert check_recorded_orders(journal) == 1
    assert (is_recorded(journal, settling), is_recorded(journal, releasing)) == (False, True)
    settle_by_order(journal, settling)
    assert check_recorded_orders(journal) == 2
    assert is_recorded(journal, settling)
    assert is_recorded(journal, approve(settlement_order(doubtful(), 2, 3), BEN, policy(), NOW))
    assert not is_recorded(journal, settlement_order(doubtful(), 2))
    assert not is_recorded(memory_journal(), settling)
    journal = journal_of(None)
    open_sheet(journal, "b2", [new_instruction(2, "SECOND")])
    send(journal, 2, OutcomeKind.UNKNOWN)
    order = approved(settlement_order(journal))
    settle_by_order(journal, order)
    assert (order.content.batch, check_recorded_orders(journal), is_recorded(journal, order)) == ("b2", 1, True)


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
    changes: list[Any] = [{"approvals": one} for one in ([], [forge_approval(ADA, order)], order.approvals * 2)]
    documents = [order.model_copy(update=change) for change in (*changes, {"signature": other.signature})]
    for document in (*(one.model_dump_json() for one in (*documents, other)), json.dumps(unreadable)):
        journal = doubtful()
        store_order(journal, document)
        named = f"The signed order {RowOrder.model_validate_json(document).digest()[:16]} for batch b1"
        assert corruption_of(journal) == f"{named} is not signed with the keys that it lists."
    journal = doubtful()
    store_order(journal, "{}")
    assert corruption_of(journal) == "A signed order for batch b1 cannot be read."


@pytest.mark.parametrize(("name", "value"), [("journal", "a" * 32), ("batch", "b7"), ("operation", "payin")])
def test_stored_order_must_match_journal_and_batch(name: str, value: str) -> None:
    journal = doubtful()
    changed = changed_order(settlement_order(journal), **{name: value})
    store_order(journal, changed.model_dump_json())
    assert corruption_of(journal).startswith(f"The signed order {changed.digest()[:16]} for batch b1 ")


def test_stored_order_must_match_recorded_facts() -> None:
    order, one = approved(settlement_order(doubtful(), 2, 3)), approved(settlement_order(doubtful(), 2))
    cases: list[tuple[RowOrder, dict[str, Any], str]] = [
        (order, {"rows": [2]}, "1 of 2"),
        (one, {"rows": [2, 3]}, "1 of 1"),
        (order, {"named": False}, "0 of 2"),
        (one, {"rows": [3]}, "0 of 1"),
    ]
    for kept, changes, fitting in cases:
        journal = doubtful()
        settle_by_order(journal, kept, **changes)
        named = f"The signed order {kept.digest()[:16]} for batch b1 does not match the journal: "
        assert corruption_of(journal) == f"{named}{fitting} decisions agree."
    journal = rejected()
    release_by_order(journal, approved(release_order(journal, 2)), rows=[3])
    assert corruption_of(journal).endswith("0 of 1 decisions agree.")
