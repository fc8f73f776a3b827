"""The effect of evidence from outside a run, for every state and every status word."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paygw_batch.core.evidence import (
    AttemptMatch,
    Candidate,
    Claim,
    Deferral,
    Finding,
    Proof,
    Ruling,
    StatedTimes,
    TimeInterval,
    assess_claim,
    candidates_with_unknown_attempt,
    is_only_attempt,
    match_attempt,
)
from paygw_batch.core.lifecycle import Concluded, IllegalMove, Standing, State, fact_kind, next_standing
from paygw_batch.core.outcome import Outcome, OutcomeKind

WORDS = {"approved": OutcomeKind.PAID, "processing": OutcomeKind.ACCEPTED, "declined": OutcomeKind.REJECTED}
CLAIM = Claim("PAY-1", "1500.50", "KES", "approved", "ref-1", Proof.PROVEN)


def candidate(state: State = State.ACCEPTED, **changes: object) -> Candidate:
    item = Candidate(7, "PAY-1", "1500.50", "KES", Standing(state, attempt=1), "PAY-1", was_sent_once=True)
    return replace(item, **changes)  # type: ignore[arg-type]  # a test's changes


def judge(claim: Claim, *candidates: Candidate) -> Ruling:
    result = assess_claim(claim, candidates, WORDS)
    assert isinstance(result, Ruling)
    return result


@pytest.mark.parametrize(
    ("state", "word", "finding"),
    [
        (State.ACCEPTED, "approved", Finding.MOVED),
        (State.ACCEPTED, "declined", Finding.MOVED),
        (State.ACCEPTED, "processing", Finding.REPEATED),
        *((State.IN_DOUBT, "approved", Finding.MOVED), (State.IN_DOUBT, "declined", Finding.MOVED)),
        *((State.IN_DOUBT, "processing", Finding.MOVED), (State.PAID, "approved", Finding.REPEATED)),
        (State.PAID, "processing", Finding.LATE),
        (State.PAID, "declined", Finding.CONTRADICTING),
        (State.REJECTED, "declined", Finding.REPEATED),
        (State.REJECTED, "processing", Finding.LATE),
        (State.REJECTED, "approved", Finding.CONTRADICTING),
        (State.READY, "approved", Finding.CONTRADICTING),
        (State.READY, "processing", Finding.CONTRADICTING),
        (State.READY, "declined", Finding.CONTRADICTING),
        (State.RETURNED, "approved", Finding.LATE),
        (State.RETURNED, "declined", Finding.CONTRADICTING),
        (State.REPLACED, "approved", Finding.CONTRADICTING),
        (State.REPLACED, "declined", Finding.LATE),
    ],
)
def test_proven_claim_has_finding_for_each_state(state: State, word: str, finding: Finding) -> None:
    result = judge(replace(CLAIM, status=word), candidate(state))
    assert result.finding is finding
    assert result.meaning is WORDS[word]
    assert (result.outcome is not None) == (finding in {Finding.MOVED, Finding.CONTRADICTING})
    if result.outcome is not None:
        assert result.outcome == Outcome(WORDS[word], gateway_status=word, gateway_reference="ref-1")


@pytest.mark.parametrize("word", WORDS)
def test_claim_about_row_in_flight_waits(word: str) -> None:
    assert isinstance(assess_claim(replace(CLAIM, status=word), [candidate(State.IN_FLIGHT)], WORDS), Deferral)


@pytest.mark.parametrize(
    ("claim", "finding"),
    [
        (replace(CLAIM, order_id=None), Finding.UNREADABLE),
        (replace(CLAIM, amount="1500.51"), Finding.UNMATCHED),
        (replace(CLAIM, amount=None), Finding.UNMATCHED),
        (replace(CLAIM, amount="much"), Finding.UNMATCHED),
        (replace(CLAIM, amount="NaN"), Finding.UNMATCHED),
        (replace(CLAIM, currency="UGX"), Finding.UNMATCHED),
        (replace(CLAIM, currency=None), Finding.UNMATCHED),
        (replace(CLAIM, status="sandbox-limbo"), Finding.UNLISTED),
        (replace(CLAIM, status="Approved"), Finding.UNLISTED),
        (replace(CLAIM, status=None), Finding.UNLISTED),
        (replace(CLAIM, proof=Proof.FORGED), Finding.FORGED),
        (replace(CLAIM, proof=Proof.UNPROVEN), Finding.TO_CONFIRM),
        (replace(CLAIM, is_not_found=True, status="no-such-order"), Finding.NOT_FOUND),
    ],
)
def test_unusable_claim_is_not_an_outcome(claim: Claim, finding: Finding) -> None:
    result = judge(claim, candidate())
    assert result.finding is finding
    assert result.outcome is None


def test_claim_about_missing_order_has_unknown_order_finding() -> None:
    assert judge(CLAIM) == Ruling(Finding.UNKNOWN_ORDER)


@pytest.mark.parametrize("state", [State.READY, State.IN_DOUBT, State.ACCEPTED, State.REJECTED])
@pytest.mark.parametrize("word", ["approved", "processing"])
def test_claim_about_unknown_later_attempt_is_contradiction(state: State, word: str) -> None:
    (of_copy,) = candidates_with_unknown_attempt("PAY-1", [candidate(state), candidate(client_orderid="PAY-2")])
    assert judge(replace(CLAIM, order_id="PAY-1-r2", status=word), of_copy).finding is Finding.CONTRADICTING
    never_sent = replace(of_copy, sent_order_id=None, standing=Standing())
    assert judge(replace(CLAIM, order_id="PAY-1-r2", status=word), never_sent).finding is Finding.CONTRADICTING


def test_claim_about_next_attempt_id_is_contradiction() -> None:
    """After a restore from a copy without the attempt, answers to both attempts would look the same."""
    (of_copy,) = candidates_with_unknown_attempt("PAY-1", [candidate(State.REJECTED)])
    assert judge(replace(CLAIM, order_id="PAY-1-r2", status="declined"), of_copy).finding is Finding.CONTRADICTING
    released = candidate(State.READY, standing=Standing(State.READY, attempt=1, generation=2))
    assert judge(replace(CLAIM, order_id="PAY-1-r2", status="declined"), released).finding is Finding.CONTRADICTING
    never_sent = candidate(State.READY, standing=Standing(), sent_order_id=None)
    assert judge(replace(CLAIM, status="declined"), never_sent).finding is Finding.CONTRADICTING


@pytest.mark.parametrize(
    "standing",
    [
        Standing(State.READY, attempt=1, generation=2),  # released under the same id
        Standing(State.READY, attempt=1, possible_duplicate_of=1),  # a person called it not received
    ],
)
def test_claim_about_earlier_attempt_is_late(standing: Standing) -> None:
    assert judge(replace(CLAIM, status="declined"), candidate(standing=standing)).finding is Finding.LATE


def test_claim_amount_may_omit_trailing_zero() -> None:
    assert judge(replace(CLAIM, amount="1500.5"), candidate()).finding is Finding.MOVED


def test_amount_distinguishes_payments_with_same_id() -> None:
    other = candidate(amount="20", number=8)
    assert judge(CLAIM, other, candidate()).instruction == 7
    assert judge(CLAIM, candidate(number=8), candidate()).finding is Finding.AMBIGUOUS


def test_only_paid_claim_about_superseded_attempt_contradicts() -> None:
    later = candidate(sent_order_id="PAY-1-r2", standing=Standing(State.ACCEPTED, attempt=2, generation=2))
    assert judge(replace(CLAIM, status="declined"), later).finding is Finding.SUPERSEDED
    result = judge(CLAIM, later)
    assert result.finding is Finding.CONTRADICTING
    assert result.outcome is not None
    assert isinstance(
        next_standing(later.standing, fact_kind(Concluded(result.outcome)), result.attempt or 0), IllegalMove
    )


@pytest.mark.parametrize("standing", [Standing(State.ACCEPTED, 2, 1, 1), Standing(State.IN_DOUBT, 2, 2)])
def test_rejection_under_reused_order_id_is_ambiguous(standing: Standing) -> None:
    twice = candidate(standing=standing, was_sent_once=False)
    assert judge(replace(CLAIM, status="declined"), twice).finding is Finding.AMBIGUOUS
    assert judge(CLAIM, twice).finding is Finding.MOVED


def test_rejection_under_unique_attempt_id_is_applied() -> None:
    again = candidate(
        sent_order_id="PAY-1-r2", standing=Standing(State.ACCEPTED, attempt=2, generation=2), was_sent_once=False
    )
    assert judge(replace(CLAIM, order_id="PAY-1-r2", status="declined"), again).finding is Finding.MOVED


@settings(suppress_health_check=[HealthCheck.too_slow])  # other work may slow the machine down
@given(
    state=st.sampled_from([state for state in State if state is not State.IN_FLIGHT]),
    attempt=st.integers(0, 3),
    generation=st.integers(1, 3),
    duplicate=st.sampled_from([None, 1]),
    sent=st.sampled_from([None, "PAY-1", "PAY-1-r2"]),
    left_once=st.booleans(),
    word=st.sampled_from(sorted(WORDS)),
    proof=st.sampled_from(list(Proof)),
)
def test_findings_agree_with_state_machine(
    state: State,
    attempt: int,
    generation: int,
    duplicate: int | None,
    sent: str | None,
    left_once: bool,
    word: str,
    proof: Proof,
) -> None:
    if sent is not None:
        attempt = max(attempt, 1)
    elif state not in {State.READY, State.REPLACED}:
        return
    standing = Standing(state, attempt, generation, duplicate)
    result = judge(
        replace(CLAIM, status=word, proof=proof),
        candidate(standing=standing, sent_order_id=sent, was_sent_once=left_once),
    )
    if result.outcome is None:
        assert result.finding not in {Finding.MOVED, Finding.CONTRADICTING}
        return
    assert proof is Proof.PROVEN or (proof is Proof.VOUCHED and result.finding is Finding.CONTRADICTING)
    assert result.attempt is not None
    after = next_standing(standing, fact_kind(Concluded(result.outcome)), result.attempt)
    assert isinstance(after, IllegalMove) == (result.finding is Finding.CONTRADICTING)
    if isinstance(after, Standing):
        assert state in {State.ACCEPTED, State.IN_DOUBT}


# Tests of the attempt that a stated time identifies.

LEFT = "2026-11-20T10:00:00.500Z"
SECOND = TimeInterval("2026-11-20T10:00:00.000Z", "2026-11-20T10:00:01.000Z")
"""The second in which the attempt left."""
BEFORE = TimeInterval("2026-11-20T09:59:59.000Z", "2026-11-20T10:00:00.000Z")
UP_TO_IT = TimeInterval("2026-11-20T10:00:00.400Z", LEFT)
AFTER = TimeInterval("2026-11-20T10:00:01.000Z", "2026-11-20T10:00:02.000Z")
EXACT = TimeInterval(LEFT, "2026-11-20T10:00:00.501Z")


@pytest.mark.parametrize(
    ("times", "meant"),
    [
        (StatedTimes(), AttemptMatch.UNSTATED),
        (StatedTimes((BEFORE,)), AttemptMatch.EARLIER),
        (StatedTimes((UP_TO_IT,)), AttemptMatch.EARLIER),
        (StatedTimes((SECOND,)), AttemptMatch.UNSTATED),
        (StatedTimes((EXACT,)), AttemptMatch.LATEST),
        (StatedTimes((AFTER,)), AttemptMatch.LATEST),
        (StatedTimes((AFTER, BEFORE)), AttemptMatch.EARLIER),
        (StatedTimes((AFTER, SECOND)), AttemptMatch.LATEST),
        (StatedTimes(sent_at=EXACT), AttemptMatch.LATEST),
        (StatedTimes(sent_at=SECOND), AttemptMatch.UNSTATED),
        (StatedTimes(sent_at=BEFORE), AttemptMatch.EARLIER),
        (StatedTimes(sent_at=AFTER), AttemptMatch.NONE),
        (StatedTimes((BEFORE,), sent_at=EXACT), AttemptMatch.EARLIER),
        (StatedTimes((AFTER,), sent_at=BEFORE), AttemptMatch.EARLIER),
    ],
)
def test_stated_time_identifies_attempt(times: StatedTimes, meant: AttemptMatch) -> None:
    assert match_attempt(times, LEFT) is meant
    assert match_attempt(times, None) is AttemptMatch.UNSTATED


TWICE = candidate(State.IN_DOUBT, standing=Standing(State.IN_DOUBT, 2, 1, 1), was_sent_once=False, intended_at=LEFT)
ONCE = candidate(State.IN_DOUBT, intended_at=LEFT)


@pytest.mark.parametrize(
    ("word", "times", "of", "finding"),
    [
        ("declined", StatedTimes((AFTER,)), TWICE, Finding.MOVED),
        ("declined", StatedTimes(), TWICE, Finding.AMBIGUOUS),
        ("declined", StatedTimes((BEFORE,)), TWICE, Finding.SUPERSEDED),
        ("declined", StatedTimes((BEFORE,)), ONCE, Finding.SUPERSEDED),
        ("declined", StatedTimes(), ONCE, Finding.MOVED),
        ("approved", StatedTimes((AFTER,)), TWICE, Finding.MOVED),
        ("approved", StatedTimes(), TWICE, Finding.AMBIGUOUS),
        ("approved", StatedTimes((BEFORE,)), TWICE, Finding.CONTRADICTING),
        ("approved", StatedTimes((BEFORE,)), ONCE, Finding.AMBIGUOUS),
        ("processing", StatedTimes((BEFORE,)), TWICE, Finding.CONTRADICTING),
    ],
)
def test_statement_time_determines_finding(word: str, times: StatedTimes, of: Candidate, finding: Finding) -> None:
    assert judge(replace(CLAIM, status=word, is_current=True, times=times), of).finding is finding


@pytest.mark.parametrize(
    ("standing", "finding"),
    [(Standing(State.REJECTED, 1), Finding.LATE), (Standing(State.REJECTED, 1, 1, 1), Finding.CONTRADICTING)],
)
def test_accepted_claim_after_person_rejection_is_reported(standing: Standing, finding: Finding) -> None:
    assert judge(replace(CLAIM, status="processing"), candidate(standing=standing)).finding is finding


@pytest.mark.parametrize(("mark", "finding"), [(None, Finding.SUPERSEDED), (1, Finding.CONTRADICTING)])
def test_accepted_claim_after_release_is_reported(mark: int | None, finding: Finding) -> None:
    later = candidate(sent_order_id="PAY-1-r2", standing=Standing(State.IN_DOUBT, 2, 2, mark))
    assert judge(replace(CLAIM, status="processing"), later).finding is finding


# Whole rulings are compared, because a finding alone does not name its row, attempt and status word.


def third_attempt(number: int, state: State, *, attempt: int = 3, sent: str | None = "A") -> Candidate:
    return Candidate(number, "A", "10.00", "KES", Standing(state, attempt, 1, None), sent, was_sent_once=True)


def build_claim(word: str | None, *, order_id: str = "A", amount: str = "10.00", **further: object) -> Claim:
    proof = further.pop("proof", Proof.PROVEN)
    return Claim(order_id, amount, "KES", word, None, proof, **further)  # type: ignore[arg-type]


def test_ambiguous_claim_affects_every_matching_row() -> None:
    both = third_attempt(7, State.IN_DOUBT), third_attempt(8, State.READY, attempt=1)
    assert judge(build_claim("approved"), *both) == Ruling(Finding.AMBIGUOUS, 7, 3, OutcomeKind.PAID, others=(8,))
    unproven = build_claim("approved", proof=Proof.UNPROVEN)
    assert judge(unproven, *both) == Ruling(Finding.AMBIGUOUS, 7, 3, None, others=(8,))


def test_ineffective_claim_records_row_and_attempt() -> None:
    doubtful = third_attempt(7, State.IN_DOUBT)
    assert judge(build_claim(None, is_not_found=True), doubtful) == Ruling(Finding.NOT_FOUND, 7, 3)
    assert judge(build_claim("limbo"), doubtful) == Ruling(Finding.UNLISTED, 7, 3)
    assert assess_claim(build_claim(None), [doubtful], {"XXXX": OutcomeKind.PAID}) == Ruling(Finding.UNLISTED, 7, 3)
    assert judge(build_claim("approved", proof=Proof.UNPROVEN), doubtful) == Ruling(
        Finding.TO_CONFIRM, 7, 3, OutcomeKind.PAID
    )


def test_forged_or_mismatched_claim_records_row() -> None:
    doubtful = third_attempt(7, State.IN_DOUBT)
    assert judge(build_claim("approved", proof=Proof.FORGED), doubtful) == Ruling(Finding.FORGED, 7)
    assert judge(build_claim("approved", amount="10.01"), doubtful) == Ruling(Finding.UNMATCHED, 7)


@pytest.mark.parametrize("word", WORDS)
def test_every_claim_about_unsent_row_is_reported(word: str) -> None:
    result = judge(build_claim(word), third_attempt(7, State.READY, attempt=0, sent=None))
    assert (result.finding, result.instruction, result.attempt) == (Finding.CONTRADICTING, 7, 0)


@pytest.mark.parametrize(
    ("word", "is_current", "finding"),
    [
        ("approved", False, Finding.CONTRADICTING),
        ("processing", False, Finding.SUPERSEDED),
        ("processing", True, Finding.CONTRADICTING),
        ("declined", True, Finding.SUPERSEDED),
    ],
)
@pytest.mark.parametrize(("attempt", "about"), [(3, 2), (1, 0), (0, 0)])
def test_claim_about_earlier_attempt_records_its_attempt(
    word: str, is_current: bool, finding: Finding, attempt: int, about: int
) -> None:
    later = third_attempt(7, State.IN_DOUBT, attempt=attempt, sent="A-r2")
    result = judge(build_claim(word, is_current=is_current), later)
    assert (result.finding, result.instruction, result.attempt) == (finding, 7, about)


@pytest.mark.parametrize(
    ("state", "is_current", "finding"),
    [
        (State.REJECTED, True, Finding.CONTRADICTING),
        (State.REJECTED, False, Finding.LATE),
        (State.PAID, True, Finding.LATE),
        (State.PAID, False, Finding.LATE),
    ],
)
def test_current_accepted_claim_contradicts_rejection(state: State, is_current: bool, finding: Finding) -> None:
    assert judge(build_claim("processing", is_current=is_current), third_attempt(7, state)).finding is finding


@pytest.mark.parametrize(
    ("marked", "attempt", "left_once", "sole"),
    [
        (None, 1, True, True),
        (None, 2, True, True),  # the first attempt was proven unsent
        (0, 0, True, False),
        (0, 1, True, False),  # called not received before our first attempt: that answer may be repeated
        (1, 2, True, False),  # the same after an attempt that was proven unsent
        (1, 2, False, False),
        (2, 2, True, True),
        (2, 2, False, False),
    ],
)
def test_only_possible_attempt_is_recognised(marked: int | None, attempt: int, left_once: bool, sole: bool) -> None:
    standing = Standing(State.IN_DOUBT, attempt, 1, marked)
    assert is_only_attempt(Candidate(7, "A", "10.00", "KES", standing, "A", was_sent_once=left_once)) is sole
