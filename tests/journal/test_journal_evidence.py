"""Evidence in both stores: recorded once, in order, with the facts that it causes."""

import json
from dataclasses import astuple, replace
from pathlib import Path

import pytest

from paygw_batch.core.evidence import Claim, Evidence, EvidenceSource, Finding, Proof
from paygw_batch.core.lifecycle import Resolution, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import InternalError, StaleRows
from paygw_batch.journal.values import Amendment, MoveResult, StatementNote, TallyKind
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
    amended = [new_instruction(2, amount="9.00")]
    open_sheet(journal, "b2", new=amended, amendments=[Amendment(2, 1)], opened_at=at(3))
    send(journal, 2, OutcomeKind.ACCEPTED, at(4))
    assert list(journal.record_evidence([build_evidence(1, "declined", amount="9.00")], WORDS, at=at(5))) == [
        Finding.AMBIGUOUS
    ]
    assert row_of(journal, 2, 2).state is State.ACCEPTED


def test_proven_evidence_moves_row_only_once(journal: Journal) -> None:
    accept_rows(journal)
    evidence = [build_evidence(1), build_evidence(2), build_evidence(3, "processing")]
    found = list(journal.record_evidence(evidence, WORDS, at=at(5)))
    assert found == [Finding.MOVED, Finding.REPEATED, Finding.LATE]
    assert states(journal) == [State.PAID, State.ACCEPTED, State.ACCEPTED]
    row = next(iter(journal.rows(1)))
    assert (row.gateway_status, row.gateway_reference) == ("approved", "ref")
    assert json.loads(row.message or "") == ["notification", journal.head().seq - 3]
    assert journal.head().last_processed_arrival == 3
    assert journal.message_counts() == {"moved": 1, "repeated": 1, "late": 1}
    assert journal.message_counts(1) == journal.message_counts()
    assert list(journal.messages().contradictions) == []
    assert journal.verify()["evidence"] == 3


def test_contradiction_is_recorded_without_moving_row(journal: Journal) -> None:
    accept_rows(journal)
    journal.record_evidence([build_evidence(1), build_evidence(2, "declined")], WORDS, at=at(5))
    assert states(journal)[0] is State.PAID
    (contradiction,) = journal.messages(1).contradictions
    assert (contradiction.row, contradiction.state, contradiction.kind) == (2, State.PAID, "rejected")
    assert journal.verify()["contradictions"] == 1


def test_unusable_evidence_is_recorded_without_moving_row(journal: Journal) -> None:
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
    after = journal.head()
    assert after.seq == head.seq + 7, "what was heard, and how far was judged"
    assert states(journal) == [State.ACCEPTED] * 3
    assert journal.verify()["evidence"] == 6


def released_journal(journal: Journal) -> None:
    """Return a journal whose row 2 was rejected and released under the same order id."""
    open_sheet(journal)
    send(journal, 1, OutcomeKind.REJECTED)
    journal.release(1, [2, 3, 4], suffix=False, by="amina", at=at(3))


def test_unknown_later_attempt_holds_row(journal: Journal) -> None:
    open_sheet(journal)
    send(journal, 1, OutcomeKind.REJECTED)
    evidence = [build_evidence(n, order_id=order) for n, order in enumerate(("ORD-2-r3", "ORD-2-r1", "ORD-2-r"), 1)]
    findings = [Finding.CONTRADICTING, Finding.UNKNOWN_ORDER, Finding.UNKNOWN_ORDER]
    assert list(journal.record_evidence(evidence, WORDS, at=at(5))) == findings
    journal.release(1, None, suffix=True, by="amina", at=at(6))
    assert [row.row for row in journal.due(1, after_row=0, limit=9)] == [3, 4]
    assert list(journal.holds(1)) == [2]
    journal.verify()


def test_unproven_evidence_is_listed_until_row_moves(journal: Journal) -> None:
    accept_rows(journal)
    journal.record_evidence([build_evidence(1, proof=Proof.UNPROVEN)], WORDS, at=at(5))
    (waiting,) = journal.messages(1).waiting
    found = (waiting.row, waiting.state, waiting.said, waiting.finding)
    assert found == (2, State.ACCEPTED, "paid", Finding.TO_CONFIRM)
    assert list(journal.messages().waiting) == [waiting]
    row = row_of(journal, 1, 2)
    journal.append([outcome_of(row.instruction, row.attempt, OutcomeKind.PAID, at(6))])
    assert list(journal.messages(1).waiting) == []


def test_evidence_proven_in_same_call_is_not_listed(journal: Journal) -> None:
    accept_rows(journal)
    journal.record_evidence([build_evidence(1, proof=Proof.UNPROVEN), build_evidence(2)], WORDS, at=at(5))
    assert journal.message_counts(1) == {"to_confirm": 1, "moved": 1}
    assert list(journal.messages(1).waiting) == []


def test_recording_evidence_stops_at_row_in_flight(journal: Journal) -> None:
    open_sheet(journal)
    first, second, _ = due_rows(journal, 1)
    journal.append([intent(first), intent(second)])
    journal.append([outcome_of(second.number, 1, OutcomeKind.ACCEPTED)])
    evidence = [
        build_evidence(1, order_id="ORD-3"),
        build_evidence(2),
        build_evidence(3, "processing", order_id="ORD-3"),
    ]
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
    released_journal(journal)
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
    assert (2 in journal.holds(1)) == (state == "ready")


def test_settlement_including_unheld_ready_row_is_refused(journal: Journal) -> None:
    released_journal(journal)
    journal.record_evidence([build_evidence(1)], WORDS, at=at(5))
    rows = list(journal.rows(1, numbers=[2, 3]))
    with pytest.raises(StaleRows):
        journal.settle([resolved(one.instruction, one.attempt, Resolution.PAID) for one in rows])
    assert states(journal) == [State.READY] * 3
    assert list(journal.holds(1)) == [2]


def test_intent_for_held_row_is_not_recorded(journal: Journal) -> None:
    released_journal(journal)
    held, free, _ = due_rows(journal, 1)
    journal.record_evidence([build_evidence(1)], WORDS, at=at(5))
    facts = journal.head().seq
    assert list(journal.append([intent(free), intent(held)])) == [MoveResult.MOVED, MoveResult.HELD]
    assert journal.head().seq == facts + 1
    assert states(journal) == [State.READY, State.IN_FLIGHT, State.READY]
    journal.verify()


def test_contested_payment_cannot_be_amended(journal: Journal) -> None:
    released_journal(journal)
    amended = [(2, "ORD-2", "other content")]
    assert [clash.is_amendable for clash in journal.compare(OPERATION, amended)[1]] == [True]
    journal.record_evidence([build_evidence(1)], WORDS, at=at(5))
    assert [clash.is_amendable for clash in journal.compare(OPERATION, amended)[1]] == [False]
    with pytest.raises(InternalError):  # compared before the evidence was recorded
        open_sheet(journal, "b2", [new_instruction(2, amount="9.00")], amendments=[Amendment(2, 1)])


def test_evidence_and_notes_never_predate_newest_fact(journal: Journal) -> None:
    open_sheet(journal)
    send(journal, 1, OutcomeKind.UNKNOWN, at(9))
    journal.record_evidence([build_evidence(1, proof=Proof.UNPROVEN)], WORDS, at=at(1))
    journal.settle([], note=StatementNote("b1", "august.csv", "f" * 64, "amina", at=at(2)))
    assert [message.taken_at for message in journal.messages(1).waiting] == [at(9)]
    assert [one.at for one in journal.carried_out_statements("b1")] == [at(9)]
    assert journal.head().newest_time == at(9)


@pytest.mark.share(5)
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("proof", [Proof.PROVEN, Proof.UNPROVEN])
def test_ambiguous_evidence_holds_payout_and_collection(journal: Journal, word: str, proof: Proof) -> None:
    released_journal(journal)
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
def test_ambiguous_evidence_does_not_settle_accepted_payment(
    journal: Journal, word: str, source: EvidenceSource
) -> None:
    accept_rows(journal)
    open_sheet(journal, operation="payin", batch="other")
    send(journal, 2, OutcomeKind.ACCEPTED)
    journal.record_evidence([replace(build_evidence(1, word), source=source, arrival=None)], WORDS, at=at(5))
    for batch in (1, 2):
        assert [row.state for row in journal.rows(batch)] == [State.ACCEPTED] * 3
        assert [(message.row, message.finding) for message in journal.messages(batch).waiting] == [
            (2, Finding.AMBIGUOUS)
        ]


def test_repeated_evidence_is_recorded_once(place: Path) -> None:
    with_one = open_journal_at(place)
    accept_rows(with_one)
    with_one.record_evidence([build_evidence(1)], WORDS, at=at(5))
    with pytest.raises(InternalError, match="recorded twice"):
        with_one.record_evidence([build_evidence(1)], WORDS, at=at(6))
    with_one.close()
    reopened = open_journal_at(place)
    assert reopened.verify()["evidence"] == 1
    reopened.close()


def test_held_rows_are_not_counted_as_due(journal: Journal) -> None:
    open_sheet(journal, new=4)
    send(journal, 1, OutcomeKind.REJECTED)
    journal.release(1, [2, 3], suffix=False, by="amina", at=at(3))
    assert due_counts(journal) == [("KE", "KES", State.READY, 2, 300100)]
    evidence = [build_evidence(n, order_id=order) for n, order in enumerate(("ORD-2", "ORD-2", "ORD-4", "ORD-5"), 1)]
    assert set(journal.record_evidence(evidence, WORDS, at=at(5))) == {Finding.CONTRADICTING}
    assert [due.row for due in due_rows(journal, 1)] == [3]
    assert due_counts(journal) == [("KE", "KES", State.READY, 1, 150050)]


def due_counts(journal: Journal) -> list[tuple[object, ...]]:
    return [astuple(tally) for tally in journal.tallies(1, kind=TallyKind.DUE)]
