"""Conformance tests that run on a journal on disk, in memory and in PostgreSQL."""

import asyncio
from contextlib import closing
from itertools import chain
from pathlib import Path

import apsw
import pytest

from paygw_batch.core.evidence import SignedOrder
from paygw_batch.core.lifecycle import Basis, Intended, Released, Replaced, Resolution, Standing, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.core.shown_states import render_record
from paygw_batch.errors import DocumentWithdrawn, InternalError
from paygw_batch.journal.values import (
    Amendment,
    BatchRecord,
    Clash,
    Entry,
    KnownRow,
    LookAlike,
    MoveResult,
    StateTally,
    Withdrawal,
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
    resolved,
    send,
    states,
)
from tests.support.long_part import long
from tests.support.tested_journal import Journal


def test_opened_batch_has_its_pages_and_due_rows(journal: Journal) -> None:
    record = open_sheet(journal, new=[new_instruction(row) for row in (5, 2, 9, 7)], pages=[b"one", b"", b"three"])
    assert list(journal.batches()) == [record]
    assert journal.batch("b1") == journal.batch("b1", operation=OPERATION) == record
    assert journal.batch("b1", operation="another") is journal.batch("b") is None
    assert (record.number, record.batch, record.rows, record.opened_at) == (1, "b1", 4, AT)
    assert list(journal.pages(1)) == [b"one", b"", b"three"]
    assert states(journal, 1) == [State.READY] * 4
    assert list(journal.tallies(1)) == [StateTally("KE", "KES", State.READY, 4, 600200)]
    assert journal.head().seq == 1
    first, *others = journal.due(1, after_row=0, limit=3)
    assert [due.row for due in (first, *others)] == [2, 5, 7]
    assert [due.row for due in journal.due(1, after_row=7, limit=3)] == [9]
    assert journal.due(1, after_row=9, limit=3) == []
    assert (first.order_id, first.standing, first.instruction.amount) == ("ORD-2", Standing(), "1500.50")
    assert first.instruction.fields["phone"] == "+254700000002"


def test_intent_or_outcome_out_of_order_changes_nothing(journal: Journal) -> None:
    open_sheet(journal)
    first, second, _ = due_rows(journal, 1)
    wrong = Entry(first.number, 1, Intended("ORD-OTHER", "nonce", 1, None), AT)
    assert list(journal.append([wrong])) == [MoveResult.NOT_MOVED]
    results = list(journal.append([intent(first), intent(second), intent(first)]))
    assert results == [MoveResult.MOVED, MoveResult.MOVED, MoveResult.NOT_MOVED]
    assert [due.row for due in due_rows(journal, 1)] == [4]
    assert (journal.messages().contradictions, journal.verify()["facts"]) == ([], 3)
    for attempt in (0, 2, 99):
        assert list(journal.append([outcome_of(first.number, attempt, OutcomeKind.PAID)])) == [MoveResult.NOT_MOVED]
    assert states(journal, 1) == [State.IN_FLIGHT, State.IN_FLIGHT, State.READY]


def test_late_contradicting_outcome_changes_nothing(journal: Journal) -> None:
    open_sheet(journal, new=2)
    due, _ = send(journal, 1, OutcomeKind.PAID, gateway_reference="REF")
    before = list(journal.rows(1))
    assert list(journal.append([outcome_of(due.number, 1, OutcomeKind.REJECTED, at(9))])) == [MoveResult.NOT_MOVED]
    assert list(journal.rows(1)) == before
    (contradiction,) = journal.messages(1).contradictions
    row = (contradiction.batch, contradiction.row, contradiction.client_orderid, contradiction.state)
    late = (contradiction.kind, contradiction.attempt, contradiction.at, contradiction.seq)
    assert (row, late) == (("b1", 2, "ORD-2", State.PAID), ("rejected", 1, at(9), journal.head().seq))
    assert list(journal.messages().contradictions) == [contradiction]


@pytest.mark.parametrize(
    "refused",
    [
        outcome_of(77, 1, OutcomeKind.PAID),
        *(Entry(1, 0, fact, AT) for fact in (Released("ORD-2-r2", "amina"), Replaced("b2", 2))),
    ],
    ids=["unknown instruction", "release", "replacement"],
)
def test_refused_entry_discards_whole_group(journal: Journal, refused: Entry) -> None:
    open_sheet(journal, new=2)
    _, due = due_rows(journal, 1)
    head = journal.head()
    with pytest.raises(InternalError):
        journal.append([intent(due), refused])
    assert (journal.head(), states(journal, 1)) == (head, [State.READY] * 2)
    assert list(journal.append([intent(due)])) == [MoveResult.MOVED]


def test_row_shows_latest_attempt_and_first_sending(journal: Journal) -> None:
    open_sheet(journal, new=1)
    send(journal, 1, OutcomeKind.NOT_SENT, at(1), cause="connect.refused")
    (row,) = journal.rows(1)
    assert (row.state, row.attempts, row.sent_orderid, row.first_sent_at) == (State.READY, 1, "ORD-2", None)
    assert row.error_code == "connect.refused"
    assert render_record(row.message or "") == "Nothing was sent (connect.refused)."
    (due,) = due_rows(journal, 1)
    journal.append([intent(due, at(2))])
    (row,) = journal.rows(1)
    assert (row.state, row.first_sent_at, row.error_code) == (State.IN_FLIGHT, at(2), None)
    words = {"gateway_status": "declined", "gateway_reference": "R-1", "error_code": "51", "message": "no funds"}
    more = {"http_status": 200, "conflict": True, "customer_url": "https://pay.example/1"}
    journal.append([outcome_of(due.number, 2, OutcomeKind.REJECTED, at(3), **words, **more)])
    (row,) = journal.rows(1)
    assert (row.state, row.attempts, row.sent_orderid, row.purpose) == (State.REJECTED, 2, "ORD-2", "WALLET-KE")
    assert ({name: getattr(row, name) for name in words}, row.http_status) == (words, 200)
    assert (row.first_sent_at, row.updated_at, row.intended_at) == (at(2), at(3), at(2))
    journal.release(1, None, suffix=True, by="amina", at=at(4))
    send(journal, 1, OutcomeKind.PAID, at(5))
    (row,) = journal.rows(1)
    assert (row.attempts, row.first_sent_at, row.updated_at, row.intended_at) == (3, at(2), at(5), at(5))
    journal.verify()


@pytest.mark.parametrize("rows", [65, 129, long(1_000)])
def test_interruption_puts_rows_in_flight_in_doubt(journal: Journal, rows: int) -> None:
    open_sheet(journal, new=rows + 2)
    journal.append([intent(row, at(1)) for row in due_rows(journal, 1)[:-1]])
    journal.append([outcome_of(rows + 1, 1, OutcomeKind.PAID)])
    assert [journal.mark_interrupted(at(minute)) for minute in (2, 3)] == [rows, 0]
    *doubtful, paid, ready = journal.rows(1)
    assert len(doubtful) == rows
    found = {(row.state, row.error_code, row.first_sent_at, row.updated_at) for row in doubtful}
    assert found == {(State.IN_DOUBT, "interrupted", at(1), at(2))}
    assert (paid.state, ready.state) == (State.PAID, State.READY)
    assert [row.row for row in due_rows(journal, 1)] == [rows + 3]


def test_not_received_row_keeps_order_id(journal: Journal) -> None:
    open_sheet(journal, new=1)
    send(journal, 1, OutcomeKind.UNKNOWN, cause="read.timeout")
    assert list(journal.append([resolved(1, 1, Resolution.NOT_RECEIVED, at(2))])) == [MoveResult.MOVED]
    (due,) = due_rows(journal, 1)
    assert (due.order_id, due.standing) == ("ORD-2", Standing(State.READY, 1, 1, 1))
    send(journal, 1, OutcomeKind.REJECTED, message="no such wallet")
    journal.release(1, None, suffix=True, by="amina", at=AT)
    send(journal, 1, OutcomeKind.PAID)
    (row,) = journal.rows(1)
    assert (row.state, row.sent_orderid, row.possible_duplicate_of) == (State.PAID, "ORD-2-r2", 1)
    assert render_record(row.message or "") == "possible duplicate of attempt 1"


def test_settlement_by_person_moves_row_in_doubt(journal: Journal) -> None:
    open_sheet(journal, new=2)
    send(journal, 1, OutcomeKind.UNKNOWN, gateway_status="odd", http_status=200, cause="reply.status_unlisted")
    marks = {Resolution.PAID: "", Resolution.REJECTED: " [possible duplicate of attempt 1]"}
    for number, resolution in enumerate(marks, start=1):
        journal.append([resolved(number, 1, resolution, basis=Basis.PERSON)])
    for row, (resolution, mark) in zip(journal.rows(1), marks.items(), strict=True):
        assert (row.state.value, row.gateway_status, row.error_code) == (resolution.value, "odd", None)
        settled = f"Settled by amina as {resolution.value}: statement of 21 November{mark}"
        assert render_record(row.message or "") == settled


def test_release_gives_next_suffix_to_rejected_rows_only(journal: Journal) -> None:
    open_sheet(journal, new=4)
    kinds = (OutcomeKind.PAID, OutcomeKind.REJECTED, OutcomeKind.REJECTED, OutcomeKind.UNKNOWN)
    journal.append([intent(due) for due in due_rows(journal, 1)])
    journal.append([outcome_of(number, 1, kind) for number, kind in enumerate(kinds, start=1)])
    assert journal.release(1, [2, 3, 5], suffix=True, by="amina", at=AT) == 1
    (due,) = due_rows(journal, 1)
    assert (due.row, due.order_id, due.standing) == (3, "ORD-3-r2", Standing(State.READY, 1, 2))
    known, (clash,) = journal.compare(OPERATION, [(2, "ORD-3-r2", new_instruction(3).content)])
    assert (list(known), clash.instruction, clash.is_amendable) == ([], 2, False)
    assert journal.release(1, None, suffix=False, by="amina", at=AT) == 1
    assert [due.order_id for due in due_rows(journal, 1)] == ["ORD-3-r2", "ORD-4"]
    assert journal.release(1, None, suffix=True, by="amina", at=AT) == 0


def test_compare_separates_known_clashing_and_new_rows(journal: Journal) -> None:
    open_sheet(journal, new=3)
    send(journal, 1, OutcomeKind.PAID)
    same, other = new_instruction(2), new_instruction(3, amount="9.00")
    rows = [(12, "ORD-2", same.content), (13, "ORD-3", other.content), (14, "ORD-99", "new")]
    known, clashes = journal.compare(OPERATION, rows)
    assert list(known) == [KnownRow(12, 1, State.PAID)]
    assert [(known_row.batch, known_row.opened_at) for known_row in known] == [("b1", AT)]
    assert list(clashes) == [Clash(13, "ORD-3", 2, "b1", 3, AT, State.PAID, is_amendable=False)]
    assert journal.compare("payin", rows) == ([], [])


@pytest.mark.share(5)
@pytest.mark.parametrize(
    ("kind", "resolution", "is_amendable"),
    [
        *((None, None, True), (OutcomeKind.NOT_SENT, None, True), (OutcomeKind.REJECTED, None, True)),
        *((OutcomeKind.PAID, None, False), (OutcomeKind.ACCEPTED, None, False)),
        (OutcomeKind.UNKNOWN, None, False),
        (OutcomeKind.UNKNOWN, Resolution.NOT_RECEIVED, False),
        (OutcomeKind.UNKNOWN, Resolution.REJECTED, True),
    ],
)
def test_only_rejected_or_unsent_rows_are_amendable(
    journal: Journal, kind: OutcomeKind | None, resolution: Resolution | None, *, is_amendable: bool
) -> None:
    open_sheet(journal, new=1)
    if kind is not None:
        send(journal, 1, kind)
    if resolution is not None:
        journal.append([resolved(1, 1, resolution)])
    corrected = new_instruction(2, amount="7.00")
    _, (clash,) = journal.compare(OPERATION, [(2, "ORD-2", corrected.content)])
    assert clash.is_amendable is is_amendable
    if not is_amendable:
        head = journal.head()
        with pytest.raises(InternalError):
            open_sheet(journal, "b2", [corrected], amendments=[Amendment(2, 1)])
        assert journal.head() == head
        assert len(journal.batches()) == 1


def test_amended_row_replaces_rejected_or_unsent_row(journal: Journal) -> None:
    open_sheet(journal)
    kinds = (OutcomeKind.REJECTED, OutcomeKind.NOT_SENT, OutcomeKind.REJECTED)
    journal.append([intent(due) for due in due_rows(journal, 1)])
    journal.append([outcome_of(n, 1, kind, gateway_status="declined") for n, kind in enumerate(kinds, 1)])
    corrected = new_instruction(2, amount="7.00")
    amended = [corrected, new_instruction(3, amount="8.00")]
    open_sheet(journal, "b2", amended, amendments=[Amendment(2, 1), Amendment(3, 2)])
    assert states(journal, 1) == [State.REPLACED, State.REPLACED, State.REJECTED]
    assert due_rows(journal, 1) == []
    assert [(due.order_id, due.standing, due.instruction.amount) for due in due_rows(journal, 2)] == [
        ("ORD-2-r2", Standing(State.READY, 1, 2), "7.00"),
        ("ORD-3", Standing(State.READY, 1, 1), "8.00"),
    ]
    row = next(journal.rows(2))
    assert (row.attempts, row.sent_orderid, row.gateway_status, row.first_sent_at) == (0, None, None, None)
    old = next(journal.rows(1))
    assert (old.attempts, old.gateway_status) == (1, "declined")
    assert render_record(old.message or "") == "Replaced by row 2 of batch b2."
    send(journal, 2, OutcomeKind.PAID)
    row = next(journal.rows(2))
    assert (row.attempts, row.sent_orderid) == (1, "ORD-2-r2")
    rows = [(2, "ORD-2", corrected.content), (3, "ORD-2", new_instruction(2).content)]
    known, clashes = journal.compare(OPERATION, rows)
    assert [known_row.instruction for known_row in known] == [4]
    assert [(clash.batch, clash.is_amendable) for clash in clashes] == [("b2", False)]


def test_repeated_amendment_continues_attempt_count(journal: Journal) -> None:
    open_sheet(journal, new=1)
    for n in (2, 3, 4):
        send(journal, n - 1, OutcomeKind.REJECTED)
        open_sheet(journal, f"b{n}", [new_instruction(2, amount=f"{n}.00")], amendments=[Amendment(2, n - 1)])
    (due,) = due_rows(journal, 4)
    assert (due.order_id, due.standing) == ("ORD-2-r4", Standing(State.READY, 3, 4))
    assert journal.verify()["replaced"] == 3


def test_batch_includes_known_rows_of_another_batch(journal: Journal) -> None:
    open_sheet(journal, new=3)
    first = due_rows(journal, 1)[0]
    journal.append([intent(first), outcome_of(first.number, 1, OutcomeKind.PAID)])
    known = [KnownRow(4, 1, State.PAID), KnownRow(3, 3, State.READY)]
    open_sheet(journal, "b2", [new_instruction(2, "NEW-1"), new_instruction(5, "NEW-2")], known=known)
    rows = [(row.row, row.client_orderid, row.state) for row in journal.rows(2)]
    ready, paid = State.READY, State.PAID
    assert rows == [(2, "NEW-1", ready), (3, "ORD-4", ready), (4, "ORD-2", paid), (5, "NEW-2", ready)]
    assert [due.row for due in due_rows(journal, 2)] == [2, 3, 5]
    assert [(tally.state, tally.count) for tally in journal.tallies(2)] == [(paid, 1), (ready, 3)]
    (message,) = journal.rows(2, numbers=[6, 4])
    assert (message.row, message.instruction, message.state, message.attempt) == (4, 1, State.PAID, 1)
    payments = {row: (payment.row, payment.state) for row, payment in journal.payments(2, [3, 4, 99]).items()}
    assert payments == {3: (4, ready), 4: (2, paid)}, "the rows in the batch that pays them"
    assert journal.payments(2, []) == {}
    assert list(journal.rows(2, numbers=[6])) == list(journal.rows(2, numbers=[])) == []
    send(journal, 2, OutcomeKind.REJECTED)
    assert states(journal, 1) == [State.PAID, State.READY, State.REJECTED]
    assert journal.release(2, [3], suffix=True, by="amina", at=AT) == 1
    assert [due.order_id for due in due_rows(journal, 1)] == ["ORD-3", "ORD-4-r2"]
    journal.append([outcome_of(1, 1, OutcomeKind.REJECTED)])
    assert [(message.batch, message.row) for message in journal.messages(2).contradictions] == [("b2", 4)]
    assert [(message.batch, message.row) for message in journal.messages().contradictions] == [("b1", 2)]


def test_batch_with_used_order_id_is_not_opened(journal: Journal) -> None:
    open_sheet(journal, new=2)
    head = journal.head()
    for rows in ([new_instruction(2, "ORD-3")], [new_instruction(2, "X"), new_instruction(3, "X")]):
        with pytest.raises(InternalError):
            open_sheet(journal, "b2", rows)
    for amendment in (Amendment(9, 1), Amendment(2, 2), Amendment(2, 55)):  # no such row, another id, no instruction
        with pytest.raises(InternalError):
            open_sheet(journal, "b2", [new_instruction(2, amount="7.00")], amendments=[amendment])
    with pytest.raises(InternalError):
        open_sheet(journal, "b2", [new_instruction(2, "X")], known=[KnownRow(2, 1, State.READY)])
    with pytest.raises(InternalError):
        open_sheet(journal, "b1", [new_instruction(2, "X")])
    assert (journal.head(), len(journal.batches()), states(journal, 1)) == (head, 1, [State.READY] * 2)
    open_sheet(journal, "b2", [new_instruction(2, "X")])
    assert journal.verify()["batches"] == 2


def test_look_alike_is_newest_payment_or_rewritten_id(journal: Journal) -> None:
    times = {"00001": "2025-01-01T08:00:00.000Z", "A": "2026-11-01T08:00:00.000Z", "B": "2026-11-20T08:00:00.000Z"}
    for order_id, opened_at in times.items():
        open_sheet(journal, f"b-{order_id}", [new_instruction(2, order_id, phone="254711")], opened_at=opened_at)
    send(journal, 3, OutcomeKind.UNKNOWN)
    rows = [
        *((2, "C", "254711", "KES", 150050), (3, "B", "254711", "KES", 150050), (4, "C", "254711", "KES", 150051)),
        *((5, "C", "254711", "TZS", 150050), (6, "C", "254712", "KES", 150050), (7, "1", "254711", "KES", 150050)),
        *((8, "1.0", "254711", "KES", 150051), (9, "1", "254712", "KES", 150050)),
    ]
    newest, older, rewritten = (
        LookAlike(row, order_id, number, state, f"b-{order_id}", times[order_id], is_rewritten=row == 7)
        for row, order_id, number, state in (
            *((2, "B", 3, State.IN_DOUBT), (3, "A", 2, State.READY), (7, "00001", 1, State.READY)),
        )
    )
    for since, found in (("10-14", [newest, older, rewritten]), ("11-14", [newest, rewritten]), ("11-24", [rewritten])):
        assert list(journal.look_alikes(OPERATION, rows, since=f"2026-{since}T08:00:00.000Z")) == found
    assert list(journal.look_alikes("payin", rows, since="2024-10-14T08:00:00.000Z")) == []
    for number, order_id, amount in ((1, "00001", "7.00"), (2, "A", "1500.50")):
        amended = [new_instruction(2, order_id, amount=amount, phone="254711")]
        open_sheet(journal, f"b{number}", amended, amendments=[Amendment(2, number)], opened_at="2026-11-21")
    shown = [(row.batch, row.state) for row in journal.look_alikes(OPERATION, rows[1:], since="2026-10-14")]
    assert shown == [("b2", State.READY), ("b-00001", State.REPLACED)], "a successor counts before what it replaced"


def test_sums_beyond_64_bits_are_exact(journal: Journal) -> None:
    open_sheet(journal, new=[new_instruction(row, amount="999999999999999.99") for row in range(2, 202)])
    (tally,) = journal.tallies(1)
    assert tally.minor == 200 * 99999999999999999


def test_malformed_text_is_stored_with_question_marks(journal: Journal) -> None:
    record = open_sheet(journal, new=1, sheet_name="caf\udce9.csv")
    assert (record.sheet_name, list(journal.batches())) == ("caf?.csv", [record])
    send(journal, 1, OutcomeKind.REJECTED, message="half a \ud83d pair", gateway_status="d\udc00")
    (row,) = journal.rows(1)
    assert (row.message, row.gateway_status) == ("half a ? pair", "d?")
    assert journal.verify()["rejected"] == 1


def test_verify_counts_every_kind_of_content(journal: Journal) -> None:
    open_sheet(journal, new=3)
    first, second, _ = due_rows(journal, 1)
    journal.append([intent(first), intent(second), outcome_of(first.number, 1, OutcomeKind.REJECTED)])
    journal.append([outcome_of(first.number, 1, OutcomeKind.PAID)])
    journal.release(1, None, suffix=True, by="amina", at=AT)
    counts = journal.verify()
    expected = {"facts": 6, "batches": 1, "pages": 2, "instructions": 3, "order_ids": 4, "contradictions": 1}
    assert {name: count for name, count in counts.items() if count} == {**expected, "ready": 2, "in_flight": 1}


def test_rows_do_not_depend_on_page_size(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    open_sheet(journal, new=7)
    send(journal, 1, OutcomeKind.REJECTED)
    whole, rejected_rows = list(chain(*journal.batch_lines(1))), list(journal.rows(1, states={State.REJECTED}))
    for module in ("journal", "states"):
        monkeypatch.setattr(f"paygw_batch.journal.{module}._CHUNK_SIZE", 3)
    assert list(chain(*journal.batch_lines(1))) == whole
    assert list(journal.rows(1, states={State.REJECTED})) == rejected_rows == list(journal.rows(1))


@pytest.mark.share(4)
@pytest.mark.parametrize("fields", ["", "{}", '{"phone":"+254712345678"}'])
def test_content_ending_with_fields_is_recognised(journal: Journal, fields: str) -> None:
    ends = new_instruction(2)._replace(fields=fields, content=f"KE KES 150050 {fields}")
    other = new_instruction(3)._replace(fields=fields, content=f"{fields} KE KES 150050 of its own")
    open_sheet(journal, new=[ends, other])
    known, clashes = journal.compare(OPERATION, [(one.row, one.client_orderid, one.content) for one in (ends, other)])
    assert ([known_row.row for known_row in known], list(clashes)) == ([2, 3], [])
    for content in (ends.content[:-1], f"{ends.content}x", "KE KES 150050", fields, f"\x1f{ends.content}"):
        known, clashes = journal.compare(OPERATION, [(2, ends.client_orderid, content)])
        assert (list(known), [clash.row for clash in clashes]) == ([], [2] if content != ends.content else [])
    assert journal.verify()["instructions"] == 2


def test_engine_gets_each_due_row_once_in_order(journal: Journal) -> None:
    open_sheet(journal, new=5)
    (first, *_) = due_rows(journal, 1)

    async def send_rows() -> list[int]:
        rows = []
        with journal.open_engine_journal() as engine_journal:
            while page := await engine_journal.due(1, limit=2):
                rows += [due.row for due in page]
                assert list(await engine_journal.append([intent(page[0])])) == [MoveResult.MOVED]
            assert MoveResult.MOVED not in await engine_journal.append([intent(first)])
            assert list(await engine_journal.due(1, limit=2)) == []
        return rows

    assert asyncio.run(send_rows()) == [2, 3, 4, 5, 6]
    assert [due.row for due in due_rows(journal, 1)] == [3, 5]
    journal.verify()


def test_engine_calls_run_in_sequence(journal: Journal) -> None:
    """A call that is abandoned finishes before the next one."""
    open_sheet(journal, new=64)

    async def send_rows() -> None:
        with journal.open_engine_journal() as engine_journal:
            first, second, *due = await engine_journal.due(1, limit=63)
            abandoned = asyncio.create_task(engine_journal.append([intent(first)]))
            await asyncio.sleep(0)
            abandoned.cancel()
            assert list(await engine_journal.append([intent(second)])) == [MoveResult.MOVED]
            assert abandoned.cancelled()
            results = await asyncio.gather(*(engine_journal.append([intent(row)]) for row in due))
            assert {one for result in results for one in result} == {MoveResult.MOVED}

    asyncio.run(send_rows())
    assert [due.row for due in due_rows(journal, 1)] == [65]
    journal.verify()


PLAN, ORDER = "c" * 64, "d" * 64


def open_planned(journal: Journal, batch: str = "b9", plan: str = PLAN) -> BatchRecord:
    return open_sheet(journal, batch, [new_instruction(2, f"{batch}-1")], plan_sha256=plan)


def test_withdrawn_plan_opens_no_batch(journal: Journal) -> None:
    assert list(journal.withdrawals()) == []
    withdrawal = Withdrawal(PLAN, "cleo", "signed", at(1))
    journal.withdraw(withdrawal)
    before = journal.head()
    with pytest.raises(DocumentWithdrawn):
        open_planned(journal)
    assert (journal.head(), journal.batches(), list(journal.withdrawals())) == (before, [], [withdrawal])
    open_planned(journal, "b8", "e" * 64)
    open_planned(journal, "b7", "")
    assert len(journal.batches()) == 2
    assert journal.verify()["evidence"] == 0
    assert dict(journal.message_counts()) == {}, "it is no message from outside"


def test_withdrawn_order_settles_and_releases_nothing(journal: Journal) -> None:
    open_sheet(journal)
    for due, kind in zip(due_rows(journal, 1)[:2], (OutcomeKind.UNKNOWN, OutcomeKind.REJECTED), strict=True):
        journal.append([intent(due), outcome_of(due.number, 1, kind)])
    journal.withdraw(Withdrawal(ORDER, "cleo", "signed", at(1)))
    order = SignedOrder("b1", "document", at(2), sha256=ORDER)
    with pytest.raises(DocumentWithdrawn):
        journal.settle([resolved(1, 1, Resolution.PAID)], order=order)
    with pytest.raises(DocumentWithdrawn):
        journal.release(1, None, suffix=True, by="ada", at=at(2), order=order)
    assert states(journal, 1) == [State.IN_DOUBT, State.REJECTED, State.READY]
    assert list(journal.signed_orders("b1")) == []
    journal.settle([resolved(1, 1, Resolution.PAID)], order=SignedOrder("b1", "other", at(2), sha256="f" * 64))
    assert states(journal, 1) == [State.PAID, State.REJECTED, State.READY]
    journal.verify()


def test_plan_opens_one_batch(journal: Journal) -> None:
    first = open_planned(journal, "b1", PLAN)
    head = journal.head()
    with pytest.raises(InternalError, match="was about to open another"):
        open_planned(journal, "b2", PLAN)
    assert (journal.head(), journal.batches()) == (head, [first])
    second = open_planned(journal, "b2", "e" * 64)
    assert open_planned(journal, "b3", "").batch == "b3"
    assert [journal.batches(plan_sha256=digit * 64) for digit in "cef"] == [[first], [second], []]
    assert journal.verify()["batches"] == 3


def test_plan_lookup_uses_unique_index(folder: Path) -> None:
    journal = open_journal_at(folder)
    open_planned(journal, "b1", PLAN)
    journal.close()
    with closing(apsw.Connection(str(journal_path(folder)))) as connection:
        query = """EXPLAIN QUERY PLAN SELECT batch FROM fact
            WHERE kind = 'batch_opened' AND json_extract(details, '$.plan_sha256') = ?"""
        plan = connection.execute(query, (PLAN,))
        assert "fact_opening_by_plan" in " ".join(str(line[-1]) for line in plan)
        with pytest.raises(apsw.ConstraintError, match="fact_opening_by_plan"):
            connection.execute(
                "INSERT INTO fact (number, at, kind, batch, details, hash) "
                "SELECT number + 1, at, kind, batch, details, hash FROM fact"
            )
