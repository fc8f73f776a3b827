"""Enquiries about unproven notifications: which orders, how often, and what is recorded. The clock is simulated."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from paygw_batch.core.evidence import Candidate, Claim, Deferral, EvidenceSource, Finding, Proof, assess_claim
from paygw_batch.core.lifecycle import Standing, State
from paygw_batch.core.outcome import ContinueRun, OutcomeKind, StopRun
from paygw_batch.errors import JournalError
from paygw_batch.gateway.enquiry import EnquiryAnswer
from paygw_batch.gateway.message import ExpectedReply
from paygw_batch.journal import decode_notification
from paygw_batch.settle import refresh
from paygw_batch.settle.refresh import MAX_ENQUIRIES, Clock, EnquiryLimits, FollowUp, instructions_to_ask_about

WORDS = {"approved": OutcomeKind.PAID, "processing": OutcomeKind.ACCEPTED, "declined": OutcomeKind.REJECTED}
NOW = datetime(2026, 11, 22, 4, tzinfo=UTC)
SENT_AT = "2026-11-22T03:59:00.000Z"


def candidate(state: State = State.ACCEPTED, *, sent: str | None = "PAY-1", intended_at: str = SENT_AT) -> Candidate:
    return Candidate(
        7, "PAY-1", "1500.50", "KES", Standing(state, 1, 1, None), sent, was_sent_once=True, intended_at=intended_at
    )


def claim(status: str | None = "approved", *, amount: str = "1500.50", proof: Proof = Proof.UNPROVEN) -> Claim:
    return Claim("PAY-1", amount, "KES", status, None, proof)


@pytest.mark.parametrize(
    ("said", "state", "is_asked"),
    [
        (claim(), State.ACCEPTED, True),
        (claim("declined"), State.IN_DOUBT, True),
        (claim("processing"), State.IN_DOUBT, True),
        (claim(), State.READY, True),  # it was released, and the gateway may have it
        (claim("declined"), State.PAID, True),  # it contradicts
        (claim(amount="1.00"), State.ACCEPTED, True),
        (claim(proof=Proof.FORGED), State.ACCEPTED, True),
        (claim("limbo"), State.ACCEPTED, True),
        (claim(), State.PAID, False),
        (claim("processing"), State.ACCEPTED, False),
        (claim("processing"), State.PAID, False),
        (claim(proof=Proof.FORGED), State.PAID, False),
        (claim("limbo"), State.REJECTED, False),
    ],
)
def test_only_relevant_notifications_prompt_enquiry(said: Claim, state: State, *, is_asked: bool) -> None:
    instruction = candidate(state)
    assert instructions_to_ask_about(said, [instruction], WORDS) == ([instruction] if is_asked else [])
    assert instructions_to_ask_about(said, [], WORDS) == []


class Scenario:
    """A journal, a gateway and a clock that a test scripts."""

    def __init__(self, *answers: EnquiryAnswer, concurrency: int = 1) -> None:
        self.now_s = 0.0
        self.candidates: Sequence[Candidate] = [candidate()]
        self.errors: list[Exception] = []
        self.asked: list[tuple[float, ExpectedReply]] = []
        self.kept: list[str] = []
        self.told: list[str] = []
        self._answers = list(answers)
        self.follow_up = FollowUp(
            self._look,
            self._ask,
            self._keep,
            words=WORDS,
            limits=EnquiryLimits(concurrency, 10.0, 60.0),
            clock=Clock(lambda: self.now_s, self._sleep, lambda: NOW + timedelta(seconds=self.now_s)),
            echo=self.told.append,
        )

    def _look(self, _order_id: str) -> Sequence[Candidate]:
        if self.errors:
            raise self.errors.pop()
        return self.candidates

    async def _ask(self, expected: ExpectedReply, _endpoint_id: str | None) -> EnquiryAnswer:
        self.asked.append((self.now_s, expected))
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    async def _keep(self, content: str) -> None:
        self.kept.append(content)

    async def _sleep(self, wait_s: float) -> None:
        self.now_s += wait_s
        await asyncio.sleep(0)

    def run(self, until: Callable[[], bool], *doubts: Claim) -> None:
        async def go() -> None:
            under_way = asyncio.create_task(self.follow_up.run(doubts))
            try:
                async with asyncio.timeout(30):
                    while not until():
                        assert not under_way.done(), under_way
                        await asyncio.sleep(0.001)
            finally:
                under_way.cancel()

        asyncio.run(go())


def answer(status: str, *, is_not_found: bool = False) -> EnquiryAnswer:
    said = Claim("PAY-1", "1500.50", "KES", status, "r-1", Proof.PROVEN, is_not_found=is_not_found)
    return EnquiryAnswer(said, "", ContinueRun(), has_replied=True)


NO_ANSWER = EnquiryAnswer(None, "connect.refused", ContinueRun(), has_replied=False)


def test_enquiry_answer_changes_only_its_attempt() -> None:
    scenario = Scenario(answer("approved"))
    scenario.run(lambda: bool(scenario.kept), claim())
    ((_, expected),) = scenario.asked
    assert expected == ExpectedReply("PAY-1", Decimal("1500.50"), "KES")
    kept = decode_notification(scenario.kept[0])
    assert kept.source is EvidenceSource.ENQUIRY
    assert kept.claim.proof is Proof.PROVEN
    ruling = assess_claim(kept.claim, [candidate()], WORDS)
    assert not isinstance(ruling, Deferral)
    assert ruling.finding is Finding.MOVED
    scenario = Scenario(answer("declined"))
    scenario.run(lambda: bool(scenario.kept), claim("declined"))
    later = candidate(intended_at="2026-11-22T05:00:00.000Z")
    ruling = assess_claim(decode_notification(scenario.kept[0]).claim, [later], WORDS)
    assert not isinstance(ruling, Deferral)
    assert ruling.finding is Finding.SUPERSEDED
    assert ruling.outcome is None


def test_enquiry_is_repeated_until_answer_or_limit() -> None:
    scenario = Scenario(NO_ANSWER, answer("processing"), NO_ANSWER)
    scenario.run(lambda: len(scenario.asked) == MAX_ENQUIRIES, claim())
    assert scenario.kept == []
    scenario = Scenario(NO_ANSWER, answer("processing"), answer("not-found", is_not_found=True))
    scenario.run(lambda: bool(scenario.kept), claim(), claim("declined"), claim())  # the order is queued once
    assert len(scenario.asked) == 3
    assert decode_notification(scenario.kept[0]).claim.is_not_found


def test_refused_enquiry_is_reported_once_and_pauses_others() -> None:
    refused = EnquiryAnswer(None, "http.403", StopRun("it does not accept our signature."), has_replied=True)
    scenario = Scenario(refused, refused, answer("approved"))
    scenario.run(lambda: bool(scenario.kept), claim())
    assert scenario.told == ["The gateway refuses enquiries: it does not accept our signature."]
    times = [at for at, _ in scenario.asked]
    assert times[1] - times[0] >= 60


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (JournalError("It is damaged."), "It is damaged."),
        (ValueError("Jane Wanjiku"), "about an unproven notification: unexpected error (ValueError)."),
    ],
)
def test_failed_lookup_is_reported_once_and_retried(error: Exception, sentence: str) -> None:
    scenario = Scenario(answer("approved"))
    scenario.errors = [error, error]
    scenario.run(lambda: bool(scenario.kept), claim())
    (told,) = scenario.told
    assert sentence in told
    assert "Jane" not in told


def test_orders_beyond_queue_limit_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresh, "MAX_WAITING", 1)
    scenario = Scenario(answer("approved"))
    scenario.run(lambda: bool(scenario.kept), claim(), replace(claim(), order_id="PAY-2"))
    assert len(scenario.asked) == 1
    assert "Too many" in scenario.told[0]


def test_enquiry_waits_for_outcome_of_row_in_flight() -> None:
    scenario = Scenario(answer("approved"))
    scenario.candidates = [candidate(State.IN_FLIGHT)]
    looks = 0

    def landed() -> bool:
        nonlocal looks
        looks += 1
        if looks == 20:
            assert scenario.asked == []
            scenario.candidates = [candidate(State.IN_DOUBT)]
        return bool(scenario.kept)

    scenario.run(landed, claim())
    assert len(scenario.asked) == 1
