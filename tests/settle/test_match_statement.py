"""Comparing lines of a statement with a batch: settlements, and why other lines do not match. The clock is fixed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from paygw_batch.core.evidence import Claim, EvidenceSource, Finding, Proof, StatedTimes, TimeInterval, assess_claim
from paygw_batch.core.lifecycle import Basis, Resolution, Resolved, Returned, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import StaleRows
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import Amendment, ClockComparison, Entry, KnownRow, StatementNote
from paygw_batch.settle.match_statement import StatementMatch, StatementMatcher
from paygw_batch.settle.resolve import Settlement, settle
from paygw_batch.settle.row_order import Decision, row_content, unsigned_order
from paygw_batch.settle.statement import Statement, StatementLine, StatementProof, TimeSpan, parse_time_span
from tests.support.journal_rows import (
    WORDS,
    at,
    due_rows,
    intent,
    journal_of,
    memory_journal,
    new_instruction,
    open_sheet,
    send,
)
from tests.support.signed_plans import ADA

NOW = datetime(2026, 11, 22, 9, tzinfo=UTC)
SHA = "0123456789abcdef" * 4
EVIDENCE = "Statement day.csv (SHA-256 0123456789abcdef), line 2: "
VAGUE = "ORD-2 was sent more than once, most recently at 2026-11-21"
ASK = "The payee may have been paid. Do not send the payment again. Ask the gateway."


def line(order_id: str = "ORD-2", status: str | None = "approved", number: int = 2, **changes: str) -> StatementLine:
    """Return a line with the gateway's status; with `answer`, a line with one of our answers."""
    amount, currency, answer = changes.get("amount", "1500.50"), changes.get("currency", "KES"), changes.get("answer")
    exact = Decimal(amount) if amount.replace(".", "").isdigit() else None
    said = (status if answer is None else None, answer, changes.get("time", ""), changes.get("sent_at", ""))
    return StatementLine(number, order_id, exact, amount, currency, *said)


def statement(*lines: StatementLine, proof: StatementProof = StatementProof.NOT_CONFIGURED) -> Statement:
    return Statement("day.csv", SHA, lines, proof)


def reader(journal: SqliteJournal, *, batch: int = 1, now: datetime = NOW, as_of: str = "") -> StatementMatcher:
    span, record = parse_time_span(as_of), journal.batches()[batch - 1]
    assert isinstance(span, TimeSpan) or not as_of
    return StatementMatcher(
        journal, record, words=WORDS, minor_units={"KES": 2}, quarantine_h=24, now=lambda: now, as_of=span
    )


def match(journal: SqliteJournal, *lines: StatementLine, batch: int = 1, as_of: str = "") -> StatementMatch:
    return reader(journal, batch=batch, as_of=as_of).match(statement(*lines))


def only_difference(journal: SqliteJournal, *lines: StatementLine, batch: int = 1, as_of: str = "") -> str:
    """Return the sentence of the only difference, after checking that nothing is settled."""
    matched = match(journal, *lines, batch=batch, as_of=as_of)
    assert not matched.settlements
    (difference,) = matched.differences
    assert (difference.line, difference.order_id) == (lines[0].line, lines[0].order_id)
    return difference.sentence


def sentences(matched: StatementMatch) -> list[str]:
    return [difference.sentence for difference in matched.differences]


def only_settlement(journal: SqliteJournal, *lines: StatementLine, as_of: str = "") -> Settlement:
    matched = match(journal, *lines, as_of=as_of)
    assert not matched.differences
    (settlement,) = matched.settlements
    return settlement


def sent_journal(kind: OutcomeKind, *, rows: int = 1, minute: int = 1) -> SqliteJournal:
    """Return a journal whose rows were sent at a minute, with outcome `kind`."""
    journal = journal_of(*[None] * rows)
    send(journal, 1, kind, at(minute))
    return journal


def release_rejected_rows(journal: SqliteJournal, *, suffix: bool, minute: int = 5) -> None:
    assert journal.release(1, None, suffix=suffix, by="amina", at=at(minute), cutoff=at(59)) == 1


def twice_sent_journal(*, suffix: bool = False) -> SqliteJournal:
    """Return a journal whose row 2 was rejected, sent again at minute 10, and is in doubt."""
    journal = sent_journal(OutcomeKind.REJECTED)
    release_rejected_rows(journal, suffix=suffix)
    send(journal, 1, OutcomeKind.UNKNOWN, at(10))
    return journal


def test_statement_does_not_settle_attempt_sent_after_comparison() -> None:
    journal = sent_journal(OutcomeKind.UNKNOWN)
    matched, (batch,) = match(journal, line(status="declined")), journal.batches()
    journal.settle([Entry(1, 1, Resolved(Resolution.REJECTED, "Ticket 1", "amina"), at(3))])
    release_rejected_rows(journal, suffix=False)
    send(journal, 1, OutcomeKind.UNKNOWN, at(10))
    with pytest.raises(StaleRows):
        settle(journal, batch, matched.settlements, by="ben", now=lambda: NOW, standings=matched.standings)
    assert [row.row for row in match(journal).unsettled_rows] == [2]


# Rows that wait for a decision
@pytest.mark.parametrize("kind", [OutcomeKind.UNKNOWN, OutcomeKind.ACCEPTED, None])
@pytest.mark.parametrize(("word", "said"), [("approved", Resolution.PAID), ("declined", Resolution.REJECTED)])
def test_statement_line_settles_row_without_answer(kind: OutcomeKind | None, word: str, said: Resolution) -> None:
    """None means a row that was left in flight."""
    journal = journal_of(kind)
    if kind is None:
        journal.append([intent(due_row, at(1)) for due_row in due_rows(journal, 1)])
        assert [row.row for row in match(journal).unsettled_rows] == [2]
    matched = match(journal, line(status=word))
    assert matched.settlements == [Settlement(2, said, f"{EVIDENCE}{word}", Basis.PERSON)]
    assert (matched.differences, matched.agreeing, matched.elsewhere, matched.waiting) == ([], 0, 0, 0)
    assert (matched.unsettled_rows, matched.blocking) == ([], [])


@pytest.mark.parametrize("said", Resolution)
def test_typed_answer_counts_as_evidence_from_person(said: Resolution) -> None:
    matched = only_settlement(sent_journal(OutcomeKind.UNKNOWN), line(answer=said.value, time="2026-11-21T08:30:00Z"))
    assert matched == Settlement(2, said, f"{EVIDENCE}{said.value} at 2026-11-21T08:30:00Z", Basis.PERSON)


@pytest.mark.parametrize(
    ("said", "as_of", "basis"),
    [
        ({"status": "declined", "time": "2026-11-21T08:02:00Z"}, "", Basis.GATEWAY),
        ({"status": "declined", "time": "2026-11-21T08:01:00Z"}, "", Basis.GATEWAY),
        ({"status": "declined", "time": "2026-11-21"}, "", Basis.PERSON),
        ({"status": "declined"}, "2026-11-21T08:30:00Z", Basis.PERSON),
        ({"answer": "rejected", "time": "2026-11-21T08:30:00Z"}, "", Basis.PERSON),
    ],
)
def test_proven_later_line_counts_as_gateway_evidence(said: Mapping[str, Any], as_of: str, basis: Basis) -> None:
    matcher = reader(sent_journal(OutcomeKind.UNKNOWN), as_of=as_of)
    for proof in StatementProof:
        (settlement,) = matcher.match(statement(line(**said), proof=proof)).settlements
        assert settlement.basis is (basis if proof.is_proven else Basis.PERSON)


def test_statement_line_recorded_as_evidence_changes_no_state() -> None:
    """A worker may send the row between comparison and recording. The line is then no answer of the gateway."""
    journal, declined = sent_journal(OutcomeKind.UNKNOWN), line(status="declined", time="2026-11-21T08:30:00Z")
    by = reader(journal)
    evidence = by.evidence(statement(declined), [declined], "amina")
    assert journal.record_evidence(evidence, WORDS, at=at(40)) == [Finding.TO_CONFIRM]
    assert next(iter(journal.rows(1))).state is State.IN_DOUBT


def test_rows_missing_from_statement_stay_unsettled() -> None:
    journal = sent_journal(OutcomeKind.UNKNOWN, rows=3)
    matched = match(journal, line(status="processing"), line("ORD-3", number=3, answer=""))
    assert (matched.waiting, matched.settlements, matched.differences) == (2, [], [])
    assert [row.row for row in matched.unsettled_rows] == [2, 3, 4]
    matched = match(journal, line("ORD-3", number=7), line("ORD-4", "unheard", 8))
    assert [row.row for row in matched.unsettled_rows] == [2, 4]
    assert match(sent_journal(OutcomeKind.ACCEPTED)).unsettled_rows == []


@pytest.mark.parametrize("proof", [StatementProof.NOT_CONFIGURED, StatementProof.SIGNED])
def test_resolving_as_not_received_waits_for_quarantine(proof: StatementProof) -> None:
    journal = sent_journal(OutcomeKind.UNKNOWN)
    answer = statement(line(answer="not-received", time="2026-11-21T08:30:00Z"), proof=proof)
    opens = datetime(2026, 11, 22, 8, 1, tzinfo=UTC)
    early = reader(journal, now=opens.replace(minute=0)).match(answer)
    assert "From 2026-11-22T08:01:00.000Z (" in early.differences[0].sentence
    assert not early.settlements
    assert len(reader(journal, now=opens).match(answer).settlements) == 1
    wrong = only_difference(sent_journal(OutcomeKind.ACCEPTED), line(answer="not-received"))
    assert wrong == "Row 2 is with the gateway in the journal, but not received in the statement."


def test_unlisted_status_settles_nothing() -> None:
    journal, unlisted = sent_journal(OutcomeKind.UNKNOWN), "The configuration does not say what the gateway's status"
    for status in ("limbo", ""):
        assert only_difference(journal, line(status=status)) == f"{unlisted} '{status}' means."
    lost = "The answer 'lost' is not one of paid, rejected, not-received."
    assert only_difference(journal, line(answer="lost")) == lost


@pytest.mark.parametrize(
    ("money", "expected"),
    [
        ({"currency": "UGX"}, ["The statement shows ORD-2 in UGX, but we sent it in KES."]),
        ({"currency": ""}, ["The statement shows ORD-2 in no currency, but we sent it in KES."]),
        ({"amount": "much"}, ["The amount 'much' of ORD-2 is not a plain number, such as 1500.50."]),
        ({"amount": "15000.50"}, ["The statement shows KES 15,000.50 for ORD-2, but we sent KES 1,500.50."]),
        ({"amount": "1500.5"}, []),
    ],
)
@pytest.mark.parametrize("kind", [OutcomeKind.UNKNOWN, OutcomeKind.PAID])
def test_different_amount_in_statement_is_reported(money: Any, expected: list[str], kind: OutcomeKind) -> None:
    matched = match(sent_journal(kind), line(**money))
    assert sentences(matched) == expected
    assert len(matched.settlements) == (not expected and kind is OutcomeKind.UNKNOWN)


def test_repeated_or_missing_order_id_is_reported() -> None:
    journal = sent_journal(OutcomeKind.UNKNOWN)
    repeated, missing = "The statement has 2 lines for ORD-2. Which one is right?", "The line has no order id."
    for order_id, sentence in (("ORD-2", repeated), ("", missing)):
        matched = match(journal, line(order_id), line(order_id, "declined", 3))
        differences = [(one.line, one.order_id, one.sentence) for one in matched.differences]
        assert (differences, matched.settlements) == ([(number, order_id, sentence) for number in (2, 3)], [])


# Which attempt
@pytest.mark.parametrize(
    ("when", "sentence"),
    [
        ({"time": "20/11/2026"}, "The time '20/11/2026' is unclear. Write it as "),
        ({"sent_at": "Friday"}, "The time 'Friday' is unclear. Write it as "),
        ({"time": "2026-11-22T09:11:00Z"}, "The time 2026-11-22T09:11:00Z is in the future. Our clock shows 2026-"),
        ({"time": "2026-11-21T08:00:59Z"}, "ORD-2: 2026-11-21T08:00:59Z is before the latest attempt (2026-11-21T08:"),
        ({"sent_at": "2026-11-21T08:02:00Z"}, "No attempt of ORD-2 was sent at 2026-11-21T08:02:00Z. The latest was"),
    ],
)
@pytest.mark.parametrize("word", ["approved", "declined"])
def test_line_older_than_latest_attempt_settles_nothing(when: Mapping[str, Any], sentence: str, word: str) -> None:
    assert only_difference(sent_journal(OutcomeKind.UNKNOWN), line(status=word, **when)).startswith(sentence)


@pytest.mark.parametrize(("word", "said"), [("approved", ["paid"]), ("declined", ["rejected"]), ("processing", [])])
def test_only_dated_line_settles_resent_row(word: str, said: list[str]) -> None:
    journal, instant = twice_sent_journal(), "2026-11-21T08:10:00.000Z"
    plain, dated = line(status=word), line(status=word, time=instant)
    for one, as_of in ((plain, ""), (line(status=word, time="2026-11-21"), ""), (plain, "2026-11-21")):
        assert only_difference(journal, one, as_of=as_of).startswith(VAGUE)
    for one, as_of in ((dated, ""), (line(status=word, sent_at=instant), ""), (plain, "2026-11-21T08:11:00Z")):
        assert [settled.resolution for settled in match(journal, one, as_of=as_of).settlements] == said


def test_line_is_dated_by_first_use_of_file() -> None:
    journal = sent_journal(OutcomeKind.REJECTED)
    release_rejected_rows(journal, suffix=False)
    journal.settle([], note=StatementNote("b1", "day.csv", SHA, "amina", at(7)))
    send(journal, 1, OutcomeKind.UNKNOWN, at(10))
    used = "2026-11-21T08:07:00.000Z at the latest (the file was applied then)"
    for one, time in ((line(status="declined"), used), (line(time="2026-11-21T08:30:00Z"), "2026-11-21T08:30:00Z")):
        assert only_difference(journal, one).startswith(f"ORD-2: {time} is before the latest")
    reapplied = twice_sent_journal()
    reapplied.settle([], note=StatementNote("b1", "day.csv", SHA, "amina", at(20)))
    assert only_difference(reapplied, line(status="declined")).startswith(VAGUE)
    journal = sent_journal(OutcomeKind.UNKNOWN, minute=20)
    journal.settle([], note=StatementNote("b1", "day.csv", "f" * 64, "amina", at(7)))
    assert only_settlement(journal, line()).resolution is Resolution.PAID
    journal.settle([], note=StatementNote("b2", "day.csv", SHA, "amina", at(7)))
    assert only_difference(journal, line())
    journal = sent_journal(OutcomeKind.UNKNOWN)
    journal.settle([], note=StatementNote("b1", "day.csv", SHA, "amina", at(7), ((1, 1),)))
    assert only_settlement(journal, line(time=LATER)).resolution is Resolution.PAID


LATER = "2026-11-21T08:59:00Z"
"""After every attempt by the gateway's clock, because our clock was slow."""


def apply_statement(journal: SqliteJournal, *lines: StatementLine) -> None:
    """Apply a statement to the first batch, as `resolve --from --matching-only --again` does."""
    matched, (batch, *_) = match(journal, *lines), journal.batches()
    note = StatementNote("b1", "day.csv", SHA, "amina", attempts=tuple(matched.attempts.items()))
    now = datetime.fromisoformat(at(2))
    settle(journal, batch, matched.settlements, by="amina", now=lambda: now, statement_note=note)


@pytest.mark.parametrize("is_carried_out", [True, False])
@pytest.mark.parametrize("word", ["approved", "declined"])
def test_file_read_before_attempt_never_settles_it(word: str, *, is_carried_out: bool) -> None:
    """Seed 7,032,239: an untrue "paid" about a row that was not sent; then it leaves, by a clock that is behind."""
    journal, one = journal_of(None), line(status=word, time=LATER)
    if is_carried_out:
        apply_statement(journal, one)
    assert record_line(journal, one) == [Finding.CONTRADICTING]
    journal.settle([Entry(1, 0, Resolved(Resolution.NOT_RECEIVED, "Ticket 1", "amina"), at(3))])
    send(journal, 1, OutcomeKind.UNKNOWN, at(10))
    for as_of in ("", LATER):
        assert "ORD-2 was sent again after this file was first read" in only_difference(journal, one, as_of=as_of)
    newer = reader(journal).match(replace(statement(one), sha256="e" * 64))
    assert [(matched.row, matched.basis) for matched in newer.settlements] == [(2, Basis.PERSON)]


def test_file_of_another_batch_never_settles_later_attempt() -> None:
    """The row is in both batches: the file was carried out for the one, and now for the other."""
    journal = journal_of(None)
    open_sheet(journal, "b2", [new_instruction(3)], known=[KnownRow(2, 1, State.READY)])
    apply_statement(journal, line(time=LATER))
    assert journal.first_reading(SHA).attempts == {1: 0}
    send(journal, 1, OutcomeKind.UNKNOWN, at(10))
    assert only_difference(journal, line(time=LATER), batch=2)
    apply_statement(journal, line("ORD-3", time=LATER))  # an order of the other batch alone
    send(journal, 2, OutcomeKind.UNKNOWN, at(11))
    assert only_difference(journal, line("ORD-3", time=LATER), batch=2)


@pytest.mark.parametrize(("attempts", "is_moved"), [({}, True), ({1: 1}, True), ({1: 0}, False)])
def test_claim_from_file_read_before_attempt_is_superseded(attempts: dict[int, int], *, is_moved: bool) -> None:
    finding = Finding.MOVED if is_moved else Finding.SUPERSEDED
    journal = sent_journal(OutcomeKind.UNKNOWN)
    claim = Claim("ORD-2", "1500.50", "KES", "declined", proof=Proof.PROVEN, is_current=True, attempts=attempts)
    assert getattr(assess_claim(claim, journal.candidates("ORD-2"), WORDS), "finding", None) is finding


def test_line_settles_despite_clock_difference() -> None:
    for time in ("2026-11-22T09:10:00Z", "2026-11-22T09:00:00Z"):  # at most ten minutes ahead of ours
        assert only_settlement(sent_journal(OutcomeKind.UNKNOWN), line(time=time)).resolution is Resolution.PAID
    journal = sent_journal(OutcomeKind.UNKNOWN, minute=30)
    journal.settle([], note=ClockComparison(at(30), "2026-11-21T09:30:00.000Z", -3600))
    wrong = only_difference(journal, line(time="2026-11-21T09:29:00Z"))
    assert "before the latest attempt (2026-11-21T09:30:00.000Z)" in wrong
    signed = statement(line(time="2026-11-21T09:30:00Z"), proof=StatementProof.SIGNED)
    assert [one.basis for one in reader(journal).match(signed).settlements] == [Basis.GATEWAY]


# Rows that are settled already
IN_JOURNAL = "Row 2 is {0} in the journal, but {1} in the statement.".format


@pytest.mark.parametrize(
    ("state", "said", "expected"),
    [
        *((State.PAID, {"status": word}, []) for word in ("approved", "processing")),
        (State.PAID, {"status": "declined"}, [IN_JOURNAL("paid", "rejected")]),
        (State.PAID, {"answer": "not-received"}, [IN_JOURNAL("paid", "not received")]),
        *((State.RETURNED, {"status": word}, []) for word in ("approved", "declined")),
        (State.RETURNED, {"status": "processing"}, [IN_JOURNAL("returned", "still being worked on")]),
        *((State.REJECTED, said, []) for said in ({"status": "declined"}, {"answer": "not-received"})),
        (State.REJECTED, {"status": "approved"}, [f"{IN_JOURNAL('rejected', 'paid')} {ASK}"]),
        (State.REJECTED, {"status": "processing"}, [f"{IN_JOURNAL('rejected', 'still being worked on')} {ASK}"]),
        (State.READY, {"status": "declined"}, []),
        (State.READY, {"status": "approved"}, [f"{IN_JOURNAL('not sent yet', 'paid')} {ASK}"]),
        *((State.REPLACED, said, []) for said in ({"status": "declined"}, {"answer": "not-received"})),
        (State.REPLACED, {"status": "approved"}, [f"{IN_JOURNAL('left out', 'paid')} {ASK}"]),
    ],
)
def test_line_about_settled_row_is_compared(state: State, said: Mapping[str, Any], expected: list[str]) -> None:
    journal = sent_journal(OutcomeKind.PAID if state in {State.PAID, State.RETURNED} else OutcomeKind.REJECTED)
    if state is State.RETURNED:
        journal.append([Entry(1, 1, Returned("Came back"), at(3))])
    elif state is State.READY:
        release_rejected_rows(journal, suffix=False)
    elif state is State.REPLACED:
        new = [new_instruction(2, amount="9.00")]
        open_sheet(journal, "b2", new, amendments=[Amendment(2, 1)], opened_at=at(4))
    matched = match(journal, line(**said))
    assert sentences(matched) == expected
    assert (matched.agreeing, matched.settlements, matched.waiting) == (int(not expected), [], 0)
    is_held = bool(expected) and state in {State.READY, State.REJECTED}
    assert [one.order_id for one in matched.blocking] == (["ORD-2"] if is_held else [])
    assert match(journal, line(answer="")).waiting == 1


def test_older_paid_line_with_reused_id_is_reported() -> None:
    journal = sent_journal(OutcomeKind.REJECTED)
    release_rejected_rows(journal, suffix=False)
    send(journal, 1, OutcomeKind.PAID, at(10))
    before, older = "2026-11-21T07:00:00Z", "2026-11-21T08:05:00Z"
    matched = match(journal, line(time=older))
    double = "This line is about an earlier attempt. The payee may be paid twice. Stop and ask the gateway."
    assert (sentences(matched), matched.agreeing) == ([f"{IN_JOURNAL('paid', 'paid')} {double}"], 0)
    paid = sent_journal(OutcomeKind.PAID)
    for other, one in ((journal, line(status="declined", time=older)), (paid, line(time=before))):
        matched = match(other, one)
        assert (matched.agreeing, matched.differences) == (1, [])
    assert only_difference(paid, line(status="declined", time=before)) == IN_JOURNAL("paid", "rejected")


# Orders other than latest attempts of the batch
def test_line_about_rejected_earlier_attempt_agrees_unless_paid() -> None:
    journal = twice_sent_journal(suffix=True)
    noes: Sequence[Mapping[str, Any]] = ({"status": "declined"}, {"answer": "not-received"}, {"answer": ""})
    for said in noes:
        matched = match(journal, line(**said))
        assert (matched.agreeing, matched.differences) == (1, []), said
    matched = match(journal, line())
    earlier = "ORD-2 is an earlier attempt. The journal shows it as rejected, but the statement does not. The payee may"
    assert sentences(matched) == [f"{earlier} be paid twice. Stop and ask the gateway."]
    assert [one.order_id for one in matched.blocking] == ["ORD-2"]
    unlisted = "The configuration does not say what the gateway's status 'limbo' means"
    assert only_difference(journal, line(status="limbo")).startswith(unlisted)
    assert only_settlement(journal, line("ORD-2-r2")).resolution is Resolution.PAID


@pytest.mark.parametrize("word", ["approved", "processing", "declined"])
def test_statement_line_about_unsent_row_holds_it(word: str) -> None:
    journal = journal_of(None)
    matched = match(journal, line(status=word))
    unsent = "According to the journal, row 2 was never sent, but the statement says otherwise."
    assert sentences(matched) == [f"{unsent} {ASK}"]
    assert [one.order_id for one in matched.blocking] == ["ORD-2"]
    assert match(journal, line(status=word, amount="7")).blocking == []


def two_batches(kind: OutcomeKind, operation: str = "payout", amount: str = "1500.50") -> SqliteJournal:
    """Return a journal with a second batch whose row 2 is ORD-9 or another operation's ORD-2, with outcome `kind`."""
    journal = sent_journal(OutcomeKind.UNKNOWN)
    order_id = "ORD-9" if operation == "payout" else "ORD-2"
    open_sheet(journal, "b2", [new_instruction(2, order_id, amount=amount)], operation=operation)
    send(journal, 2, kind, at(5))
    return journal


def test_line_of_other_or_unknown_order_holds_row() -> None:
    matched = match(two_batches(OutcomeKind.UNKNOWN), line("ORD-9"))
    assert (matched.elsewhere, matched.differences, matched.settlements, matched.blocking) == (1, [], [], [])
    journal = two_batches(OutcomeKind.REJECTED)
    matched = match(journal, line("ORD-9"))
    assert sentences(matched) == [f"Row 2 of batch b2 is rejected in the journal. {ASK}"]
    assert [one.order_id for one in matched.blocking] == ["ORD-9"]
    assert match(journal, line("ORD-9", "declined")).elsewhere == 1
    journal = sent_journal(OutcomeKind.UNKNOWN)
    unknown = "The journal has no order NOBODY. Was it sent from another system, or was its id changed?"
    later = "The journal has no order ORD-2-r2, which looks like a later attempt of ORD-2."
    later += f" The journal may be an old copy. {ASK}"
    for order_id, sentence, blocking in (("NOBODY", unknown, []), ("ORD-2-r2", later, ["ORD-2-r2"])):
        matched = match(journal, line(order_id))
        assert (sentences(matched), [one.order_id for one in matched.blocking]) == ([sentence], blocking)
    assert match(sent_journal(OutcomeKind.PAID), line("ORD-2-r2")).blocking == []


@pytest.mark.parametrize(
    ("ours", "theirs", "question"),
    [
        ("0001", "1", "did a spreadsheet drop the zeros?"),
        ("PAY-007", "PAY-7", "did a spreadsheet drop the zeros?"),
        ("1001", "1001.0", "did software change the id?"),
        ("PAY-1", "pay/1", "did software change the id?"),
        ("12000", "12,000", "did software change the id?"),
    ],
)
def test_altered_id_suggests_order_with_same_amount(ours: str, theirs: str, question: str) -> None:
    journal = memory_journal()
    amounts = {f"00{ours}": "9.00", ours: "1100.00", f"000{ours}": "7.00", "OTHER": "1100.00"}
    open_sheet(journal, new=[new_instruction(row, name, amount=amounts[name]) for row, name in enumerate(amounts, 2)])
    send(journal, 1, OutcomeKind.UNKNOWN, at(1))
    matched = match(journal, line(theirs, amount="1100.00"))
    closest = f"The closest match is {ours}, KES 1,100.00: {question}"
    assert sentences(matched) == [f"The journal has no order {theirs}. {closest}"]
    assert (matched.settlements, matched.blocking, len(matched.unsettled_rows)) == ([], [], 4)


@pytest.mark.parametrize(("amount", "is_open"), [("1500.50", True), ("77.00", False)])
def test_line_matching_payout_and_collection_settles_neither(amount: str, *, is_open: bool) -> None:
    matched = match(two_batches(OutcomeKind.UNKNOWN, "payin", amount), line())
    question = "ORD-2 is both a payout and a collection of the same amount"
    assert [one.sentence.startswith(question) for one in matched.differences] == ([True] if is_open else [])
    assert len(matched.settlements) == (not is_open)


def record_line(journal: SqliteJournal, one: StatementLine) -> Sequence[Finding]:
    """Record the evidence of a line, as `resolve --from` does."""
    statement_reader = reader(journal)
    matched = statement_reader.match(statement(one))
    evidence = statement_reader.evidence(statement(one), matched.blocking, "amina")
    return journal.record_evidence(evidence, statement_reader.meanings(statement(one)), at=at(50))


def test_contradicting_line_is_recorded_and_holds_row() -> None:
    journal = sent_journal(OutcomeKind.REJECTED)
    one, by = line(time="2026-11-21T08:30:00Z"), reader(journal)
    (evidence,) = by.evidence(statement(one), by.match(statement(one)).blocking, "amina")
    times = StatedTimes((TimeInterval("2026-11-21T08:30:00.000Z", "2026-11-21T08:30:01.000Z"),))
    claim = Claim("ORD-2", "1500.50", "KES", "approved", proof=Proof.VOUCHED, is_current=True, times=times)
    assert (evidence.source, evidence.claim) == (EvidenceSource.STATEMENT, claim)
    assert evidence.content == (
        '{"amount":"1500.50","by":"amina","currency":"KES","line":2,"order_id":"ORD-2","sent_at":"",'
        f'"sha256":"{SHA}","statement":"day.csv","time":"2026-11-21T08:30:00Z","word":"approved"}}'
    )
    assert evidence.lasting == f'{{"attempts":[[1,1]],"sha256":"{SHA}"}}'
    assert record_line(journal, one) == [Finding.CONTRADICTING]
    release_rejected_rows(journal, suffix=True)
    assert list(due_rows(journal, 1)) == []


def test_undated_answer_is_recorded_with_its_status() -> None:
    journal = sent_journal(OutcomeKind.REJECTED)
    one, by = line(answer="paid"), reader(journal)
    (evidence,) = by.evidence(statement(one), by.match(statement(one)).blocking, "amina")
    assert '"time"' not in evidence.content
    assert '"word":"paid"' in evidence.content
    assert evidence.claim.status == "paid"
    (unreadable,) = by.evidence(statement(), [line(amount="much")], "amina")
    assert unreadable.claim.amount is None
    lines = (line(), line("ORD-3", "limbo"), line("ORD-4", answer="not-received"), line("ORD-5", answer=""), one)
    meanings = {"approved": OutcomeKind.PAID, "paid": OutcomeKind.PAID, "rejected": OutcomeKind.REJECTED}
    assert by.meanings(statement(*lines, line("ORD-6", answer="rejected"))) == meanings


def test_statement_of_order_does_not_settle_later_attempt() -> None:
    """The order settles row 2 alone. The file also names row 3, which is sent afterwards."""
    journal = journal_of(OutcomeKind.UNKNOWN, None)
    lines = (line(time=LATER), line("ORD-3", time=LATER))
    matched = match(journal, *lines)
    assert [settlement.row for settlement in matched.settlements] == [2]
    decisions, of_file = [Decision.from_settlement(matched.settlements[0])], statement(*lines)
    more: Mapping[str, Any] = {"endpoint": "gateway.example/1", "statement": of_file, "attempts": matched.attempts}
    order = unsigned_order(row_content(journal, journal.batches()[0], decisions, **more), ADA.public, NOW)
    carried, now = order.statement_note("amina"), datetime.fromisoformat(at(3))
    settle(journal, journal.batches()[0], order.settlements, by="amina", now=lambda: now, statement_note=carried)
    assert journal.first_reading(SHA).attempts == {1: 1, 2: 0}
    send(journal, 1, OutcomeKind.UNKNOWN, at(10))
    assert not match(journal, *lines).settlements
    assert "ORD-3 was sent again after this file was first read" in only_difference(journal, lines[1])
