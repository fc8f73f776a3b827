"""The effect of evidence from outside a run, for every state and every status word."""

from dataclasses import replace
from typing import Any

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


def candidate(state: State = State.ACCEPTED, attempt: int = 1, **changes: object) -> Candidate:
    item = Candidate(7, "PAY-1", "1500.50", "KES", Standing(state, attempt), "PAY-1", was_sent_once=True)
    return replace(item, **changes)  # type: ignore[arg-type]  # a test's changes


def stood(*standing: Any, **changes: Any) -> Candidate:
    return candidate(standing=Standing(*standing), **changes)


def judge(*candidates: Candidate, **claim: object) -> Ruling:
    """Judge the proven claim that the order was paid, with changes."""
    result = assess_claim(replace(CLAIM, **claim), candidates, WORDS)  # type: ignore[arg-type]  # a test's changes
    assert isinstance(result, Ruling)
    return result


MOVED, REPEATED, LATE, CONTRADICTING = Finding.MOVED, Finding.REPEATED, Finding.LATE, Finding.CONTRADICTING
AMBIGUOUS, SUPERSEDED = Finding.AMBIGUOUS, Finding.SUPERSEDED
PROVEN_CLAIMS = {
    State.ACCEPTED: (MOVED, REPEATED, MOVED),
    State.IN_DOUBT: (MOVED, MOVED, MOVED),
    State.PAID: (REPEATED, LATE, CONTRADICTING),
    State.REJECTED: (CONTRADICTING, LATE, REPEATED),
    State.READY: (CONTRADICTING, CONTRADICTING, CONTRADICTING),
    State.RETURNED: (LATE, LATE, CONTRADICTING),
    State.REPLACED: (CONTRADICTING, LATE, LATE),
}
"""The findings for each word of `WORDS`."""


@pytest.mark.parametrize("word", WORDS)
def test_claim_about_row_in_flight_waits(word: str) -> None:
    assert isinstance(assess_claim(replace(CLAIM, status=word), [candidate(State.IN_FLIGHT)], WORDS), Deferral)


@pytest.mark.parametrize("state", PROVEN_CLAIMS)
def test_proven_claim_has_finding_for_each_state(state: State) -> None:
    for (word, kind), finding in zip(WORDS.items(), PROVEN_CLAIMS[state], strict=True):
        result = judge(candidate(state), status=word)
        assert (result.finding, result.meaning) == (finding, kind)
        outcome = Outcome(kind, gateway_status=word, gateway_reference="ref-1")
        assert result.outcome == (outcome if finding in {MOVED, CONTRADICTING} else None)


@pytest.mark.parametrize(
    ("claim", "ruling"),
    [
        ({"order_id": None}, Ruling(Finding.UNREADABLE)),
        *(({"amount": amount}, Ruling(Finding.UNMATCHED, 7)) for amount in ("1500.51", None, "much", "NaN")),
        *(({"currency": currency}, Ruling(Finding.UNMATCHED, 7)) for currency in ("UGX", None)),
        *(({"status": word}, Ruling(Finding.UNLISTED, 7, 3)) for word in ("sandbox-limbo", "Approved", None)),
        ({"proof": Proof.FORGED}, Ruling(Finding.FORGED, 7)),
        ({"proof": Proof.UNPROVEN}, Ruling(Finding.TO_CONFIRM, 7, 3, OutcomeKind.PAID)),
        ({"is_not_found": True, "status": "no-such-order"}, Ruling(Finding.NOT_FOUND, 7, 3)),
    ],
)
def test_unusable_claim_is_not_an_outcome(claim: dict[str, object], ruling: Ruling) -> None:
    """The whole ruling is compared, because a finding alone does not name its row and attempt."""
    assert judge(candidate(State.IN_DOUBT, 3), **claim) == ruling


def test_claim_without_status_is_never_listed() -> None:
    missing = assess_claim(replace(CLAIM, status=None), [candidate()], {"XXXX": OutcomeKind.PAID})
    assert missing == Ruling(Finding.UNLISTED, 7, 1)


def test_claim_about_missing_order_is_unknown_order() -> None:
    assert judge() == Ruling(Finding.UNKNOWN_ORDER)


@pytest.mark.parametrize("state", [State.READY, State.IN_DOUBT, State.ACCEPTED, State.REJECTED])
@pytest.mark.parametrize("word", ["approved", "processing"])
def test_claim_about_unknown_later_attempt_is_contradiction(state: State, word: str) -> None:
    (of_copy,) = candidates_with_unknown_attempt("PAY-1", [candidate(state), candidate(client_orderid="PAY-2")])
    for known in (of_copy, replace(of_copy, sent_order_id=None, standing=Standing())):
        assert judge(known, order_id="PAY-1-r2", status=word).finding is CONTRADICTING


def test_claim_about_next_attempt_id_is_contradiction() -> None:
    """After a restore from a copy without the attempt, answers to both attempts would look the same."""
    (of_copy,) = candidates_with_unknown_attempt("PAY-1", [candidate(State.REJECTED)])
    for known in (of_copy, stood(State.READY, 1, 2)):
        assert judge(known, order_id="PAY-1-r2", status="declined").finding is CONTRADICTING


def test_amount_distinguishes_payments_with_same_id() -> None:
    assert judge(candidate(amount="20", number=8), candidate()).instruction == 7
    both = candidate(State.IN_DOUBT, 3), candidate(State.READY, number=8)
    assert judge(*both) == Ruling(AMBIGUOUS, 7, 3, OutcomeKind.PAID, others=(8,))
    assert judge(*both, proof=Proof.UNPROVEN) == Ruling(AMBIGUOUS, 7, 3, None, others=(8,))


def test_paid_claim_about_superseded_attempt_is_illegal_move() -> None:
    later = stood(State.ACCEPTED, 2, 2, sent_order_id="PAY-1-r2")
    result = judge(later)
    assert result.finding is CONTRADICTING
    assert result.outcome is not None
    move = next_standing(later.standing, fact_kind(Concluded(result.outcome)), result.attempt or 0)
    assert isinstance(move, IllegalMove)


AGAIN = {"sent_order_id": "PAY-1-r2", "was_sent_once": False}
EARLIER_ATTEMPTS: list[tuple[dict[str, object], Candidate, Finding]] = [
    # A rejection of an attempt that was released under the same id, or that a person called not received.
    ({"status": "declined"}, stood(State.READY, 1, 2), LATE),
    ({"status": "declined"}, stood(State.READY, 1, 1, 1), LATE),
    ({"amount": "1500.5"}, candidate(), MOVED),
    # Only a claim that it was paid contradicts a later attempt.
    ({"status": "declined"}, stood(State.ACCEPTED, 2, 2, sent_order_id="PAY-1-r2"), SUPERSEDED),
    # An order id that was sent twice does not say which attempt was rejected.
    ({"status": "declined"}, stood(State.ACCEPTED, 2, 1, 1, was_sent_once=False), AMBIGUOUS),
    ({"status": "declined"}, stood(State.IN_DOUBT, 2, 2, was_sent_once=False), AMBIGUOUS),
    ({}, stood(State.ACCEPTED, 2, 1, 1, was_sent_once=False), MOVED),
    ({}, stood(State.IN_DOUBT, 2, 2, was_sent_once=False), MOVED),
    ({"status": "declined", "order_id": "PAY-1-r2"}, stood(State.ACCEPTED, 2, 2, **AGAIN), MOVED),
    # The gateway has an order that a person called rejected or not received.
    ({"status": "processing"}, stood(State.REJECTED, 1, 1, 1), CONTRADICTING),
    ({"status": "processing"}, stood(State.IN_DOUBT, 2, 2, None, sent_order_id="PAY-1-r2"), SUPERSEDED),
    ({"status": "processing"}, stood(State.IN_DOUBT, 2, 2, 1, sent_order_id="PAY-1-r2"), CONTRADICTING),
    # A current answer says more than a late one.
    ({"status": "processing", "is_current": True}, candidate(State.REJECTED, 3), CONTRADICTING),
    ({"status": "processing", "is_current": True}, candidate(State.PAID, 3), LATE),
]


@pytest.mark.parametrize(("claim", "row", "finding"), EARLIER_ATTEMPTS)
def test_claim_may_concern_earlier_attempt(claim: dict[str, object], row: Candidate, finding: Finding) -> None:
    assert judge(row, **claim).finding is finding


@pytest.mark.parametrize("word", WORDS)
def test_every_claim_about_unsent_row_is_reported(word: str) -> None:
    result = judge(candidate(State.READY, 0, sent_order_id=None), status=word)
    assert (result.finding, result.instruction, result.attempt) == (CONTRADICTING, 7, 0)


@pytest.mark.parametrize(
    ("word", "is_current", "finding"),
    [
        *(("approved", False, CONTRADICTING), ("processing", False, SUPERSEDED)),
        *(("processing", True, CONTRADICTING), ("declined", True, SUPERSEDED)),
    ],
)
@pytest.mark.parametrize(("attempt", "about"), [(3, 2), (1, 0), (0, 0)])
def test_claim_about_earlier_attempt_records_its_attempt(
    word: str, is_current: bool, finding: Finding, attempt: int, about: int
) -> None:
    later = candidate(State.IN_DOUBT, attempt, sent_order_id="PAY-1-r2")
    result = judge(later, status=word, is_current=is_current)
    assert (result.finding, result.instruction, result.attempt) == (finding, 7, about)


STANDINGS = st.builds(
    *(Standing, st.sampled_from(sorted(PROVEN_CLAIMS)), st.integers(0, 3), st.integers(1, 3)),
    st.sampled_from([None, 1]),
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # other work may slow the machine down
@given(
    STANDINGS,
    *(st.sampled_from([None, "PAY-1", "PAY-1-r2"]), st.booleans(), st.sampled_from(sorted(WORDS))),
    st.sampled_from(list(Proof)),
)
def test_findings_agree_with_state_machine(
    standing: Standing, sent: str | None, once: bool, word: str, proof: Proof
) -> None:
    if sent is not None:
        standing = standing._replace(attempt=max(standing.attempt, 1))
    elif standing.state not in {State.READY, State.REPLACED}:
        return
    result = judge(candidate(standing=standing, sent_order_id=sent, was_sent_once=once), status=word, proof=proof)
    if result.outcome is None:
        assert result.finding not in {MOVED, CONTRADICTING}
        return
    assert proof is Proof.PROVEN or (proof is Proof.VOUCHED and result.finding is CONTRADICTING)
    assert result.attempt is not None
    after = next_standing(standing, fact_kind(Concluded(result.outcome)), result.attempt)
    assert isinstance(after, IllegalMove) == (result.finding is CONTRADICTING)
    if isinstance(after, Standing):
        assert standing.state in {State.ACCEPTED, State.IN_DOUBT}


# Tests of the attempt that a stated time identifies.

LEFT = "2026-11-20T10:00:00.500Z"
SECOND = TimeInterval("2026-11-20T10:00:00.000Z", "2026-11-20T10:00:01.000Z")
"""The second in which the attempt left."""
BEFORE = TimeInterval("2026-11-20T09:59:59.000Z", "2026-11-20T10:00:00.000Z")
UP_TO_IT = TimeInterval("2026-11-20T10:00:00.400Z", LEFT)
AFTER = TimeInterval("2026-11-20T10:00:01.000Z", "2026-11-20T10:00:02.000Z")
EXACT = TimeInterval(LEFT, "2026-11-20T10:00:00.501Z")


@pytest.mark.parametrize(
    ("meant", "stated"),
    [
        (AttemptMatch.UNSTATED, [StatedTimes(), StatedTimes((SECOND,)), StatedTimes(sent_at=SECOND)]),
        (AttemptMatch.EARLIER, [StatedTimes((BEFORE,)), StatedTimes((UP_TO_IT,)), StatedTimes((AFTER, BEFORE))]),
        (AttemptMatch.EARLIER, [StatedTimes(sent_at=BEFORE), StatedTimes((BEFORE,), sent_at=EXACT)]),
        (AttemptMatch.EARLIER, [StatedTimes((AFTER,), sent_at=BEFORE)]),
        (AttemptMatch.LATEST, [StatedTimes((EXACT,)), StatedTimes((AFTER,)), StatedTimes((AFTER, SECOND))]),
        (AttemptMatch.LATEST, [StatedTimes(sent_at=EXACT)]),
        (AttemptMatch.NONE, [StatedTimes(sent_at=AFTER)]),
    ],
)
def test_stated_time_identifies_attempt(meant: AttemptMatch, stated: list[StatedTimes]) -> None:
    for times in stated:
        assert match_attempt(times, LEFT) is meant
        assert match_attempt(times, None) is AttemptMatch.UNSTATED


TWICE = stood(State.IN_DOUBT, 2, 1, 1, was_sent_once=False, intended_at=LEFT)
ONCE = candidate(State.IN_DOUBT, intended_at=LEFT)


@pytest.mark.parametrize(
    ("word", "times", "row", "finding"),
    [
        *(("declined", StatedTimes((AFTER,)), TWICE, MOVED), ("declined", StatedTimes(), TWICE, AMBIGUOUS)),
        *(("declined", StatedTimes((BEFORE,)), row, SUPERSEDED) for row in (TWICE, ONCE)),
        *(("declined", StatedTimes(), ONCE, MOVED), ("approved", StatedTimes((AFTER,)), TWICE, MOVED)),
        *(("approved", StatedTimes(), TWICE, AMBIGUOUS), ("approved", StatedTimes((BEFORE,)), ONCE, AMBIGUOUS)),
        *((word, StatedTimes((BEFORE,)), TWICE, CONTRADICTING) for word in ("approved", "processing")),
    ],
)
def test_statement_time_determines_finding(word: str, times: StatedTimes, row: Candidate, finding: Finding) -> None:
    assert judge(row, status=word, is_current=True, times=times).finding is finding


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
def test_attempt_is_recognised_without_alternatives(
    marked: int | None, attempt: int, left_once: bool, sole: bool
) -> None:
    assert is_only_attempt(stood(State.IN_DOUBT, attempt, 1, marked, was_sent_once=left_once)) is sole
