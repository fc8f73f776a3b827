"""Refreshing rows and following up unproven notifications: which orders are asked about, how often, and the results."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest

from paygw_batch.core.evidence import Candidate, Claim, EvidenceSource, Finding, Proof, Ruling, assess_claim
from paygw_batch.core.lifecycle import Standing, State
from paygw_batch.core.outcome import ContinueRun, OutcomeKind, StopRun
from paygw_batch.countries.load import load_enquiry, load_operation
from paygw_batch.errors import JournalError
from paygw_batch.gateway.enquiry import EnquiryAnswer, parse_answer
from paygw_batch.gateway.message import ExpectedReply, FaultKind, RawReply, TransportFault
from paygw_batch.journal import decode_notification
from paygw_batch.journal.file_location import in_memory_journal
from paygw_batch.settle import refresh
from paygw_batch.settle.refresh import Clock, EnquiryLimits, FollowUp, Refresh, instructions_to_ask_about
from tests.support.journal_rows import WORDS, new_instruction, open_sheet, send, states

START = datetime(2026, 11, 21, 8, tzinfo=UTC)
OPERATION = load_enquiry("paynet-v4", load_operation("payout"))
REFUSED = TransportFault(FaultKind.CONNECT_REFUSED, first_byte_sent=False)


def replied(status: str, order_id: str, http_status: int = 200, **further: str) -> RawReply:
    body = json.dumps({"status": status, "client_orderid": order_id, "currency": "KES", **further})
    return RawReply(http_status, (), body.encode())


class Scenario:
    """A gateway and a clock that a test scripts. `script` returns the answer to the n-th enquiry about an order."""

    def __init__(
        self,
        script: Callable[[str, int], RawReply | TransportFault],
        rows: int = 2,
        kind: OutcomeKind = OutcomeKind.ACCEPTED,
    ) -> None:
        self.now_s = 0.0
        self.asked: list[tuple[float, str]] = []
        self.endpoints = set[str | None]()
        self.journal = in_memory_journal()
        self.batch = open_sheet(self.journal, new=[new_instruction(n, f"PAY-{n}") for n in range(2, 2 + rows)])
        send(self.journal, 1, kind)
        self._script = script
        self.refresh: Refresh

    async def _sleep(self, wait_s: float) -> None:
        await asyncio.sleep(0)
        self.now_s += wait_s

    async def _ask(self, expected: ExpectedReply, endpoint_id: str | None) -> EnquiryAnswer:
        self.asked.append((self.now_s, expected.order_id))
        self.endpoints.add(endpoint_id)
        came_back = self._script(expected.order_id, [order_id for _, order_id in self.asked].count(expected.order_id))
        return parse_answer(came_back, expected, WORDS, OPERATION, not_found=["no-such-order"], now=START)

    def run(self, limit_s: float = 1800.0) -> refresh.RefreshResult:
        self.refresh = Refresh(
            self.journal,
            self.batch,
            self._ask,
            words=WORDS,
            minor_units={"KES": 2},
            limits=EnquiryLimits(2, 1000.0, limit_s),
            clock=Clock(lambda: self.now_s, self._sleep, lambda: START + timedelta(seconds=self.now_s)),
            record_arrivals=lambda: None,
        )
        return asyncio.run(self.refresh.run())

    def kept(self) -> Mapping[str, int]:
        self.journal.verify()
        return dict(self.journal.message_counts())


@pytest.mark.parametrize("kind", [OutcomeKind.ACCEPTED, OutcomeKind.UNKNOWN])
def test_refresh_stops_enquiring_after_final_answer(kind: OutcomeKind) -> None:
    words = {"PAY-2": ["processing", "approved"], "PAY-3": ["declined"]}
    scenario = Scenario(lambda order_id, n: replied(words[order_id][n - 1], order_id), kind=kind)
    done = scenario.run()
    assert states(scenario.journal) == [State.PAID, State.REJECTED]
    assert (done.asked, done.stop_reason, done.interrupted) == (3, None, False)
    assert scenario.endpoints == {"1234"}
    assert scenario.journal.messages().contradictions == []


def test_refresh_slows_after_five_minutes_then_ends() -> None:
    scenario = Scenario(lambda order_id, _: replied("processing", order_id), rows=1)
    assert scenario.run(limit_s=900.0).stop_reason is not None
    times = [at_s for at_s, _ in scenario.asked]
    assert [round(later - earlier) for earlier, later in pairwise(times)] == [5] * 60 + [60] * 10
    assert times[-1] <= 900
    assert scenario.kept() == {}


@pytest.mark.parametrize(
    "reply",
    [
        replied("sandbox-limbo", "PAY-2"),
        replied("approved", "PAY-2", http_status=500),
        replied("approved", "PAY-2", http_status=302),
        RawReply(200, (), b"approved"),
        RawReply(200, (), b'{"status": "approved", "status": "declined"}'),
        RawReply(200, (), b'{"client_orderid": "PAY-2"}'),
        TransportFault(FaultKind.READ_TIMEOUT, first_byte_sent=True),
        REFUSED,
    ],
)
def test_invalid_enquiry_answer_changes_nothing(reply: RawReply | TransportFault) -> None:
    scenario = Scenario(lambda *_: reply, rows=1, kind=OutcomeKind.UNKNOWN)
    head = scenario.journal.head()
    scenario.run(limit_s=60)
    assert states(scenario.journal) == [State.IN_DOUBT]
    assert scenario.journal.head() == head
    assert scenario.kept() == {}


@pytest.mark.parametrize("said", [{"order_id": "PAY-9"}, {"amount": "1.00"}, {"currency": "UGX"}])
def test_answer_about_another_payout_stops_refresh(said: dict[str, Any]) -> None:
    scenario = Scenario(lambda *_: replied("approved", **{"order_id": "PAY-2", **said}), rows=1)
    done = scenario.run()
    assert states(scenario.journal) == [State.ACCEPTED]
    assert "different payout" in (done.stop_reason or "")
    assert done.asked == 1


def test_not_found_answer_is_recorded_once_without_release() -> None:
    scenario = Scenario(lambda order_id, _: replied("no-such-order", order_id), rows=1, kind=OutcomeKind.UNKNOWN)
    scenario.run(limit_s=60)
    assert (states(scenario.journal), scenario.kept()) == ([State.IN_DOUBT], {"not_found": 1})
    (waiting,) = scenario.journal.messages(1).waiting
    assert (waiting.row, waiting.source.value) == (2, "enquiry")
    assert len(scenario.asked) > 3


@pytest.mark.parametrize(
    ("reply", "reason", "asked"),
    [(REFUSED, "does not answer", {6}), (RawReply(403, (), b'{"status": "error"}'), "credentials", {1, 2})],
)
def test_failing_gateway_stops_refresh(reply: RawReply | TransportFault, reason: str, asked: set[int]) -> None:
    scenario = Scenario(lambda *_: reply)
    assert reason in (scenario.run().stop_reason or "")
    assert len(scenario.asked) in asked


def test_refresh_observes_pause_requested_by_gateway() -> None:
    pause = RawReply(429, (("retry-after", "120"),), b'{"status": "error"}')
    scenario = Scenario(lambda order_id, n: pause if n == 1 else replied("approved", order_id), rows=1)
    scenario.run()
    assert states(scenario.journal) == [State.PAID]
    assert scenario.asked[1][0] - scenario.asked[0][0] >= 120


def test_draining_refresh_finishes_current_enquiries() -> None:
    def script(order_id: str, _: int) -> RawReply:
        scenario.refresh.drain()
        return replied("approved", order_id)

    scenario = Scenario(script, rows=6)
    assert scenario.run().interrupted
    assert states(scenario.journal).count(State.PAID) == len(scenario.asked) <= 2


def test_enquiry_expects_only_requested_order() -> None:
    assert OPERATION.path == "/paynet/api/v4/status/{endpoint_id}"
    expected = ExpectedReply("PAY-2", Decimal("1500.50"), "KES")
    answer = parse_answer(replied("approved", "PAY-2"), expected, WORDS, OPERATION, not_found=[], now=START)
    assert answer.claim is not None
    assert (answer.claim.order_id, answer.claim.amount, answer.claim.currency) == ("PAY-2", "1500.50", "KES")


# Enquiries about unproven notifications.
def candidate(state: State = State.ACCEPTED, *, intended_at: str = "2026-11-22T03:59:00.000Z") -> Candidate:
    standing = Standing(state, 1, 1, None)
    return Candidate(7, "PAY-1", "1500.50", "KES", standing, "PAY-1", was_sent_once=True, intended_at=intended_at)


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


class FollowUpScenario:
    """A journal, a gateway and a clock that a test scripts."""

    def __init__(self, *answers: EnquiryAnswer) -> None:
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
            limits=EnquiryLimits(1, 10.0, 60.0),
            clock=Clock(lambda: self.now_s, self._sleep, lambda: START + timedelta(hours=20, seconds=self.now_s)),
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


@pytest.mark.parametrize(
    ("status", "intended", "finding"), [("approved", "03:59", Finding.MOVED), ("declined", "05:00", Finding.SUPERSEDED)]
)
def test_enquiry_answer_changes_only_its_attempt(status: str, intended: str, finding: Finding) -> None:
    scenario = FollowUpScenario(answer(status))
    scenario.run(lambda: bool(scenario.kept), claim(status))
    assert [expected for _, expected in scenario.asked] == [ExpectedReply("PAY-1", Decimal("1500.50"), "KES")]
    kept = decode_notification(scenario.kept[0])
    assert (kept.source, kept.claim.proof) == (EvidenceSource.ENQUIRY, Proof.PROVEN)
    instruction = candidate(intended_at=f"2026-11-22T{intended}:00.000Z")
    ruling = assess_claim(kept.claim, [instruction], WORDS)
    assert isinstance(ruling, Ruling)
    assert ruling.finding is finding
    assert (ruling.outcome is None) == (finding is Finding.SUPERSEDED)


def test_enquiry_is_repeated_until_answer_or_limit() -> None:
    no_answer = EnquiryAnswer(None, "connect.refused", ContinueRun(), has_replied=False)
    scenario = FollowUpScenario(no_answer, answer("processing"), no_answer)
    scenario.run(lambda: len(scenario.asked) == refresh.MAX_ENQUIRIES, claim())
    assert scenario.kept == []
    scenario = FollowUpScenario(no_answer, answer("processing"), answer("not-found", is_not_found=True))
    scenario.run(lambda: bool(scenario.kept), claim(), claim("declined"), claim())  # the order is queued once
    assert len(scenario.asked) == 3
    assert decode_notification(scenario.kept[0]).claim.is_not_found


def test_refused_enquiry_is_reported_once_and_pauses_others() -> None:
    refused = EnquiryAnswer(None, "http.403", StopRun("it does not accept our signature."), has_replied=True)
    scenario = FollowUpScenario(refused, refused, answer("approved"))
    scenario.run(lambda: bool(scenario.kept), claim())
    assert scenario.told == ["The gateway refuses enquiries: it does not accept our signature."]
    assert scenario.asked[1][0] - scenario.asked[0][0] >= 60


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (JournalError("It is damaged."), "It is damaged."),
        (ValueError("Jane Wanjiku"), "about an unverified notification: unexpected error (ValueError)."),
    ],
)
def test_failed_lookup_is_reported_once_and_retried(error: Exception, sentence: str) -> None:
    scenario = FollowUpScenario(answer("approved"))
    scenario.errors = [error, error]
    scenario.run(lambda: bool(scenario.kept), claim())
    (told,) = scenario.told
    assert sentence in told
    assert "Jane" not in told


def test_orders_beyond_queue_limit_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresh, "MAX_WAITING", 1)
    scenario = FollowUpScenario(answer("approved"))
    scenario.run(lambda: bool(scenario.kept), claim(), replace(claim(), order_id="PAY-2"))
    assert len(scenario.asked) == 1
    assert "Too many" in scenario.told[0]


def test_enquiry_waits_for_outcome_of_row_in_flight() -> None:
    scenario = FollowUpScenario(answer("approved"))
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
