"""Evidence and settlements in both stores: recorded once, in order, with the facts that they cause."""

import json
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from paygw_batch.core.evidence import Claim, Evidence, EvidenceSource, Finding, Proof
from paygw_batch.core.lifecycle import Basis, Resolution, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.core.shown_states import render_record
from paygw_batch.errors import InternalError, StaleRows
from paygw_batch.journal.values import (
    Amendment,
    ClockComparison,
    Entry,
    Hold,
    MoveResult,
    StatementNote,
    StateTally,
    TallyKind,
)
from paygw_batch.settle.resolve import Settlement, settle
from tests.support.journal_rows import (
    OPERATION,
    WORDS,
    at,
    build_evidence,
    due_rows,
    intent,
    new_instruction,
    open_journal_at,
    open_sheet,
    outcome_of,
    resolved,
    row_of,
    send,
    states,
)
from tests.support.tested_journal import Journal


def accept_rows(journal: Journal) -> None:
    open_sheet(journal)
    send(journal, 1, OutcomeKind.ACCEPTED)


def test_evidence_about_amended_row_is_ambiguous(journal: Journal) -> None:
    """The amended row continues under the order id of the rejected and released attempt."""
    open_sheet(journal, new=1)
    send(journal, 1, OutcomeKind.REJECTED, at(1))
    journal.release(1, None, suffix=False, by="amina", at=at(2))
    open_sheet(journal, "b2", new=[new_instruction(2, amount="9.00")], amendments=[Amendment(2, 1)], opened_at=at(3))
    send(journal, 2, OutcomeKind.ACCEPTED, at(4))
    evidence = [build_evidence(1, "declined", amount="9.00")]
    assert list(journal.record_evidence(evidence, WORDS, at=at(5))) == [Finding.AMBIGUOUS]
    assert row_of(journal, 2, 2).state is State.ACCEPTED


def test_proven_evidence_moves_row_only_once(journal: Journal) -> None:
    accept_rows(journal)
    evidence = [build_evidence(1), build_evidence(2), build_evidence(3, "processing")]
    assert list(journal.record_evidence(evidence, WORDS, at=at(5))) == [Finding.MOVED, Finding.REPEATED, Finding.LATE]
    assert states(journal) == [State.PAID, State.ACCEPTED, State.ACCEPTED]
    row = next(iter(journal.rows(1)))
    assert (row.gateway_status, row.gateway_reference) == ("approved", "ref")
    assert json.loads(row.message or "") == ["notification", journal.head().seq - 3]
    assert journal.head().last_processed_arrival == 3
    assert journal.message_counts() == {"moved": 1, "repeated": 1, "late": 1}
    assert journal.message_counts(1) == journal.message_counts()
    assert list(journal.messages().contradictions) == []
    assert journal.verify()["evidence"] == 3


def test_unusable_or_contrary_evidence_moves_no_row(journal: Journal) -> None:
    accept_rows(journal)
    head = journal.head()
    evidence = [
        build_evidence(1, proof=Proof.FORGED),
        build_evidence(2, order_id="NOT-OURS"),
        build_evidence(3, "limbo"),
        build_evidence(4, amount="1"),
        Evidence(EvidenceSource.NOTIFICATION, Claim(None), "{", 5),
        build_evidence(6, order_id="half a pair \ud800"),
    ]
    assert list(journal.record_evidence(evidence, WORDS, at=at(5))) == [
        *(Finding.FORGED, Finding.UNKNOWN_ORDER, Finding.UNLISTED, Finding.UNMATCHED),
        *(Finding.UNREADABLE, Finding.UNKNOWN_ORDER),
    ]
    assert journal.head().seq == head.seq + 7, "what was heard, and how far was judged"
    assert states(journal) == [State.ACCEPTED] * 3
    assert journal.verify()["evidence"] == 6
    journal.record_evidence([build_evidence(7), build_evidence(8, "declined")], WORDS, at=at(5))
    assert states(journal)[0] is State.PAID
    (contradiction,) = journal.messages(1).contradictions
    assert (contradiction.row, contradiction.state, contradiction.kind) == (2, State.PAID, "rejected")
    assert journal.verify()["contradictions"] == 1


def release_rejected_rows(journal: Journal) -> None:
    open_sheet(journal)
    send(journal, 1, OutcomeKind.REJECTED)
    journal.release(1, [2, 3, 4], suffix=False, by="amina", at=at(3))


def test_unknown_later_attempt_holds_row(journal: Journal) -> None:
    open_sheet(journal)
    send(journal, 1, OutcomeKind.REJECTED)
    evidence = [build_evidence(n, order_id=order) for n, order in enumerate(("ORD-2-r3", "ORD-2-r1", "ORD-2-r"), 1)]
    findings = [Finding.CONTRADICTING, Finding.UNKNOWN_ORDER, Finding.UNKNOWN_ORDER]
    assert list(journal.record_evidence(evidence, WORDS, at=at(5))) == findings
    assert [(row, hold.state) for row, hold in journal.holds(1).items()] == [(2, State.REJECTED)]
    (clash,) = journal.compare(OPERATION, [(2, "ORD-2", "other content")])[1]
    assert not clash.is_amendable
    journal.release(1, None, suffix=True, by="amina", at=at(6))
    assert [row.row for row in journal.due(1, after_row=0, limit=9)] == [3, 4]
    assert [(row, hold.state) for row, hold in journal.holds(1).items()] == [(2, State.READY)]
    journal.verify()


def test_unproven_evidence_is_listed_until_row_moves(journal: Journal) -> None:
    accept_rows(journal)
    unproven = [build_evidence(n, order_id=order, proof=Proof.UNPROVEN) for n, order in ((1, "ORD-2"), (2, "ORD-3"))]
    journal.record_evidence([*unproven, build_evidence(3, order_id="ORD-3")], WORDS, at=at(5))
    assert journal.message_counts(1) == {"to_confirm": 2, "moved": 1}
    (waiting,) = journal.messages(1).waiting
    found = (waiting.row, waiting.state, waiting.said, waiting.finding)
    assert found == (2, State.ACCEPTED, "paid", Finding.TO_CONFIRM)
    assert list(journal.messages().waiting) == [waiting]
    row = row_of(journal, 1, 2)
    journal.append([outcome_of(row.instruction, row.attempt, OutcomeKind.PAID, at(6))])
    assert list(journal.messages(1).waiting) == []


def test_recording_evidence_stops_at_row_in_flight(journal: Journal) -> None:
    open_sheet(journal)
    first, second, _ = due_rows(journal, 1)
    journal.append([intent(first), intent(second), outcome_of(second.number, 1, OutcomeKind.ACCEPTED)])
    orders = (("approved", "ORD-3"), ("approved", "ORD-2"), ("processing", "ORD-3"))
    evidence = [build_evidence(number, word, order_id=order) for number, (word, order) in enumerate(orders, 1)]
    assert list(journal.record_evidence(evidence, WORDS, at=at(5))) == [Finding.MOVED]
    assert journal.head().last_processed_arrival == 1
    journal.append([outcome_of(first.number, 1, OutcomeKind.UNKNOWN, at(6))])
    assert list(journal.record_evidence(evidence[1:], WORDS, at=at(7))) == [Finding.MOVED, Finding.LATE]
    assert states(journal) == [State.PAID, State.PAID, State.READY]


@pytest.mark.share(4)
@pytest.mark.parametrize("word", ["approved", "processing"])
def test_released_row_claimed_by_gateway_is_held(journal: Journal, word: str) -> None:
    open_sheet(journal)
    send(journal, 1, OutcomeKind.UNKNOWN)
    for row in (2, 3):
        found = row_of(journal, 1, row)
        journal.append([resolved(found.instruction, found.attempt, Resolution.NOT_RECEIVED, at(3))])
    assert [due.row for due in due_rows(journal, 1)] == [2, 3]
    assert list(journal.record_evidence([build_evidence(1, word)], WORDS, at=at(5))) == [Finding.CONTRADICTING]
    assert [due.row for due in due_rows(journal, 1)] == [3]
    assert states(journal) == [State.READY, State.READY, State.IN_DOUBT]


@pytest.mark.share(4)
@pytest.mark.parametrize(
    ("resolution", "state"), [("paid", "paid"), ("rejected", "rejected"), ("not-received", "ready")]
)
def test_hold_is_lifted_by_recorded_person(journal: Journal, resolution: str, state: str) -> None:
    release_rejected_rows(journal)
    journal.record_evidence([build_evidence(1)], WORDS, at=at(5))
    (hold,) = journal.holds(1).values()
    assert (hold.source, hold.said, hold.taken_at) == (EvidenceSource.NOTIFICATION, "paid", at(5))
    row = row_of(journal, 1, 2)
    journal.settle([resolved(row.instruction, row.attempt, Resolution(resolution), at(6))])
    assert states(journal)[0] == state
    assert journal.holds(1) == {}
    assert [due.row for due in due_rows(journal, 1)] == ([2, 3, 4] if state == "ready" else [3, 4])
    assert list(journal.messages(1).contradictions) == []
    assert journal.message_counts() == {"contradicting": 1}
    assert journal.history(1)[-1].by == "amina"
    assert journal.verify()["evidence"] == 2
    journal.record_evidence([build_evidence(2)], WORDS, at=at(7))  # repeated evidence, which a person must check again
    assert (2 in journal.holds(1)) == (state != "paid")


def test_held_row_is_neither_sent_nor_settled(journal: Journal) -> None:
    release_rejected_rows(journal)
    held, free, _ = due_rows(journal, 1)
    amended = [(2, "ORD-2", "other content")]
    assert [clash.is_amendable for clash in journal.compare(OPERATION, amended)[1]] == [True]
    journal.record_evidence([build_evidence(1)], WORDS, at=at(5))
    facts = journal.head().seq
    with pytest.raises(StaleRows):  # row 3 is ready and not held
        journal.settle([resolved(one.number, 1, Resolution.PAID) for one in (held, free)])
    assert [clash.is_amendable for clash in journal.compare(OPERATION, amended)[1]] == [False]
    with pytest.raises(InternalError):  # compared before the evidence was recorded
        open_sheet(journal, "b2", [new_instruction(2, amount="9.00")], amendments=[Amendment(2, 1)])
    assert (states(journal), list(journal.holds(1)), journal.head().seq) == ([State.READY] * 3, [2], facts)
    assert list(journal.append([intent(free), intent(held)])) == [MoveResult.MOVED, MoveResult.HELD]
    assert journal.head().seq == facts + 1
    assert states(journal) == [State.READY, State.IN_FLIGHT, State.READY]
    journal.verify()


def test_journal_times_never_decrease(journal: Journal) -> None:
    open_sheet(journal, new=1, opened_at=at(5))
    assert journal.head().newest_time == at(5)
    (due,) = due_rows(journal, 1)
    journal.append([intent(due, at(2))])
    journal.append([outcome_of(due.number, 1, OutcomeKind.UNKNOWN, at(3))])
    (row,) = journal.rows(1)
    assert (row.intended_at, row.updated_at, journal.head().newest_time) == (at(5), at(5), at(5))
    journal.record_evidence([build_evidence(1, proof=Proof.UNPROVEN)], WORDS, at=at(1))
    journal.settle([], note=StatementNote("b1", "august.csv", "f" * 64, "amina", at=at(2)))
    assert [message.taken_at for message in journal.messages(1).waiting] == [at(5)]
    assert [one.at for one in journal.carried_out_statements("b1")] == [at(5)]
    journal.settle([], note=ClockComparison(at(7), at(7), 0))
    assert journal.head().newest_time == at(7)
    assert open_sheet(journal, "b2", [new_instruction(9)], opened_at=at(1)).opened_at == at(7)
    journal.verify()


@pytest.mark.share(5)
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("proof", [Proof.PROVEN, Proof.UNPROVEN])
def test_ambiguous_evidence_holds_payout_and_collection(journal: Journal, word: str, proof: Proof) -> None:
    release_rejected_rows(journal)
    open_sheet(journal, operation="payin", batch="other")
    journal.record_evidence([build_evidence(1, word, proof=proof)], WORDS, at=at(5))
    assert journal.message_counts() == {"ambiguous": 2}
    assert states(journal) == [State.READY] * 3
    assert [message.batch for message in journal.messages().waiting] == ["b1", "other"]
    is_held = proof is Proof.PROVEN and word != "declined"
    for batch in (1, 2):
        assert [due.row for due in due_rows(journal, batch)] == ([3, 4] if is_held else [2, 3, 4])
        assert list(journal.holds(batch)) == ([2] if is_held else [])
        if is_held:
            row = row_of(journal, batch, 2)
            journal.settle([resolved(row.instruction, row.attempt, Resolution.NOT_RECEIVED, at(6))])
        assert list(journal.holds(batch)) == []
    journal.verify()


@pytest.mark.share(5)
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("source", [EvidenceSource.NOTIFICATION, EvidenceSource.ENQUIRY, EvidenceSource.STATEMENT])
def test_ambiguous_evidence_settles_no_accepted_payment(journal: Journal, word: str, source: EvidenceSource) -> None:
    accept_rows(journal)
    open_sheet(journal, operation="payin", batch="other")
    send(journal, 2, OutcomeKind.ACCEPTED)
    journal.record_evidence([replace(build_evidence(1, word), source=source, arrival=None)], WORDS, at=at(5))
    for batch in (1, 2):
        assert [row.state for row in journal.rows(batch)] == [State.ACCEPTED] * 3
        assert [(one.row, one.finding) for one in journal.messages(batch).waiting] == [(2, Finding.AMBIGUOUS)]


def test_repeated_evidence_is_recorded_once(folder: Path) -> None:
    with closing(open_journal_at(folder)) as journal:
        accept_rows(journal)
        journal.record_evidence([build_evidence(1)], WORDS, at=at(5))
        with pytest.raises(InternalError, match="recorded twice"):
            journal.record_evidence([build_evidence(1)], WORDS, at=at(6))
    with closing(open_journal_at(folder)) as journal:
        assert journal.verify()["evidence"] == 1


def test_held_row_is_listed_but_not_due(journal: Journal) -> None:
    open_sheet(journal, new=4)
    send(journal, 1, OutcomeKind.REJECTED)
    journal.release(1, [2, 3], suffix=False, by="amina", at=at(3))
    assert list(journal.tallies(1, kind=TallyKind.DUE)) == [StateTally("KE", "KES", State.READY, 2, 300100)]
    evidence = [build_evidence(n, order_id=order) for n, order in enumerate(("ORD-4", "ORD-5", "ORD-2", "ORD-2"), 1)]
    assert set(journal.record_evidence(evidence[:-1], WORDS, at=at(5))) == {Finding.CONTRADICTING}
    latest = replace(evidence[-1], source=EvidenceSource.ENQUIRY, content='{"order_id": "ORD-2"}')
    assert list(journal.record_evidence([latest], WORDS, at=at(6))) == [Finding.CONTRADICTING]
    number = journal.head().seq - 1  # how far was judged comes last
    holds = journal.holds(1)
    assert holds[2] == Hold(number, EvidenceSource.ENQUIRY, "paid", at(6), State.READY, order_ids=("ORD-2",))
    assert {row: hold.state for row, hold in holds.items()} == {2: "ready", 4: "rejected", 5: "rejected"}
    assert [due.row for due in due_rows(journal, 1)] == [3]
    assert list(journal.tallies(1, kind=TallyKind.DUE)) == [StateTally("KE", "KES", State.READY, 1, 150050)]


def rejection(number: int, attempt: int, minute: int = 3, basis: Basis = Basis.PERSON) -> Entry:
    return resolved(number, attempt, Resolution.REJECTED, at(minute), basis)


def reject_row(journal: Journal, basis: Basis = Basis.PERSON) -> None:
    """Put row 2, whose attempt left at minute 1, in doubt, then settle it as rejected."""
    open_sheet(journal, new=1)
    send(journal, 1, OutcomeKind.UNKNOWN, at(1))
    journal.settle([rejection(1, 1, basis=basis)])


@pytest.mark.share(5)
@pytest.mark.parametrize(("cutoff", "released"), [("", 0), (at(0), 0), (at(1), 1), (at(2), 1)])
def test_person_rejected_row_is_released_after_quarantine(journal: Journal, cutoff: str, released: int) -> None:
    reject_row(journal)
    assert journal.release(1, None, suffix=True, by="amina", at=at(9), cutoff=cutoff) == released
    (row,) = journal.rows(1)
    assert (row.state, row.possible_duplicate_of) == (State.READY if released else State.REJECTED, 1)
    assert "possible duplicate of attempt 1" in render_record(row.message or "")
    assert (row.quarantined_since is None) == bool(released)


def test_quarantine_counts_only_latest_attempt(journal: Journal) -> None:
    reject_row(journal)
    journal.release(1, None, suffix=False, by="amina", at=at(9), cutoff=at(1))
    send(journal, 1, OutcomeKind.UNKNOWN, at(10))
    journal.settle([rejection(1, 2, 11)])
    assert journal.release(1, None, suffix=False, by="amina", at=at(12), cutoff=at(9)) == 0
    assert journal.release(1, None, suffix=False, by="amina", at=at(12), cutoff=at(10)) == 1
    send(journal, 1, OutcomeKind.REJECTED, at(13))  # by the gateway: no quarantine
    assert journal.release(1, None, suffix=True, by="amina", at=at(13)) == 1
    assert row_of(journal, 1, 2).possible_duplicate_of == 2


def test_gateway_rejection_skips_quarantine_but_stays_marked(journal: Journal) -> None:
    reject_row(journal, Basis.GATEWAY)
    (row,) = journal.rows(1)
    assert (row.quarantined_since, row.error_code) == (None, "proven_statement")
    assert journal.compare(OPERATION, [(2, "ORD-2", "other")])[1][0].quarantined_since is None
    journal.verify()
    assert journal.release(1, None, suffix=True, by="amina", at=at(9)) == 1
    assert next(iter(journal.rows(1))).possible_duplicate_of == 1
    journal.verify()


@pytest.mark.share(4)
@pytest.mark.parametrize("cutoff", ["", at(0)])
def test_amendment_waits_for_quarantine(journal: Journal, cutoff: str) -> None:
    reject_row(journal)
    (clash,) = journal.compare(OPERATION, [(2, "ORD-2", "other")])[1]
    assert (clash.is_amendable, clash.quarantined_since) == (True, at(1))
    changed = [new_instruction(2, amount="1600.00")]
    with pytest.raises(InternalError, match="must not be replaced"):
        open_sheet(journal, "b2", changed, amendments=[Amendment(2, 1, cutoff)])
    open_sheet(journal, "b2", changed, amendments=[Amendment(2, 1, at(1))])
    (due,) = due_rows(journal, 2)
    assert (due.order_id, due.standing.possible_duplicate_of) == ("ORD-2-r2", 1)
    journal.verify()


def test_journal_lists_carried_out_statements_of_batch(journal: Journal) -> None:
    open_sheet(journal)
    assert journal.carried_out_statements("b1") == []
    send(journal, 1, OutcomeKind.UNKNOWN, at(1))
    journal.settle([rejection(1, 1)], note=NOTE)
    open_sheet(journal, "b2", [new_instruction(2, "OTHER")])
    assert [journal.carried_out_statements(batch) for batch in ("b1", "b2")] == [[NOTE], []]
    assert journal.message_counts() == {}
    journal.verify()


def test_journal_keeps_newest_clock_difference(journal: Journal) -> None:
    assert journal.head().clock is None
    lags = (ClockComparison(at(9), at(8), 0, 86_400, at(2), at(8)), ClockComparison(at(9), at(8), 1, 900))
    for seen in (*(ClockComparison(at(2), at(1), ahead_s) for ahead_s in (0, 700, -700)), *lags):
        journal.settle([], note=seen)
        assert journal.head().clock == seen
    assert journal.message_counts() == {}
    assert journal.verify()["facts"] == 5


NOTE = StatementNote("b1", "answers.csv", "a" * 64, "amina", at(4))


def test_refused_settlement_names_moved_row_until_repeated(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway's answer arrives while a person settles its row."""
    open_sheet(journal)
    first, *_ = send(journal, 1, OutcomeKind.UNKNOWN, at(1))
    written = journal.settle

    def settle_after_answer(*given: Any, **named: Any) -> None:
        journal.append([outcome_of(first.number, 1, OutcomeKind.PAID, at(3))])
        written(*given, **named)

    def settle_as_paid(*rows: int) -> None:
        settlements = [Settlement(row, Resolution.PAID, "statement of 21 November") for row in rows]
        now = datetime.fromisoformat(at(5))
        settle(journal, journal.batches()[0], settlements, by="amina", now=lambda: now, statement_note=NOTE)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(journal, "settle", settle_after_answer)
        with pytest.raises(StaleRows) as refused:
            settle_as_paid(2, 3)
    assert refused.value.exit_code == 7
    moved = "Row 2 is now paid, because the gateway's answer arrived at the same time. Nothing was settled."
    assert refused.value.message == moved
    assert "status BATCH --row 2" in refused.value.hint
    assert states(journal) == [State.PAID, State.IN_DOUBT, State.IN_DOUBT]
    assert journal.carried_out_statements("b1") == []
    assert journal.verify()["facts"] == 8
    settle_as_paid(3)
    assert states(journal) == [State.PAID, State.PAID, State.IN_DOUBT]
    assert len(journal.carried_out_statements("b1")) == 1
