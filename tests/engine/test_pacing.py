"""Pacing: the speed of a run, and the conditions that stop it."""

import asyncio
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from time import monotonic
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paygw_batch.cluster.shared_pacing import JOIN_DELAY_S, SharedPacing
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.engine.engine import RunEnd
from paygw_batch.engine.pacing import (
    MAX_GROUP_FACTS,
    MIN_GROUP_FACTS,
    TRIES,
    Breaker,
    GroupLimit,
    Pace,
    RateLimiter,
    RejectionBreaker,
    Window,
    retry_delay_s,
)
from paygw_batch.errors import JournalError
from paygw_batch.journal.port import GateReport, GateShare, GateStop, GateStopKind
from tests.support.long_part import example_count
from tests.support.scripted_scenario import (
    APPROVED,
    LOST,
    REFUSED,
    Answer,
    ScriptedGateway,
    build_engine,
    build_journal,
    reply,
    run,
)

ANSWERS = (OutcomeKind.ACCEPTED, OutcomeKind.PAID, OutcomeKind.REJECTED)


@pytest.mark.parametrize(
    ("kinds", "sizes"),
    [
        ([OutcomeKind.PAID] * 5, [2, 4, 8, 10, 10]),
        ([OutcomeKind.PAID] * 2 + [OutcomeKind.UNKNOWN], [2, 4, 1]),
        ([OutcomeKind.PAID] * 2 + [OutcomeKind.NOT_SENT], [2, 4, 4]),
    ],
)
def test_window_doubles_and_resets_after_unknown_outcome(kinds: list[OutcomeKind], sizes: list[int]) -> None:
    window = Window(limit=10)
    seen = [window.size]
    for kind in kinds:
        window.observe(kind)
        seen.append(window.size)
    assert seen == [1, *sizes]


@given(limit=st.integers(1, 1024), outcomes=st.lists(st.sampled_from(OutcomeKind)))
def test_window_stays_within_limits(limit: int, outcomes: list[OutcomeKind]) -> None:
    window = Window(limit)
    for outcome in outcomes:
        window.observe(outcome)
        assert 1 <= window.size <= limit


UNKNOWN, NOT_SENT = OutcomeKind.UNKNOWN, OutcomeKind.NOT_SENT


@pytest.mark.parametrize(
    ("limit", "kinds", "trips"),
    [
        (3, [UNKNOWN] * 3, True),
        (2, [UNKNOWN, NOT_SENT, UNKNOWN], True),
        *((2, [UNKNOWN, answer, UNKNOWN], False) for answer in ANSWERS),
        (0, [UNKNOWN] * 1000, False),
    ],
)
def test_breaker_trips_at_in_doubt_limit(limit: int, kinds: list[OutcomeKind], trips: bool) -> None:
    breaker = Breaker(limit)
    *before, last = [breaker.observe(kind) for kind in kinds]
    assert (any(before), last) == (False, trips)


def rejected(code: str | None = None, message: str | None = None) -> Outcome:
    return Outcome(OutcomeKind.REJECTED, gateway_status="declined", error_code=code, message=message)


def test_rejection_breaker_compares_code_message_and_status() -> None:
    for first, second in [
        (rejected("51", "No funds for Jane"), rejected("51", "No funds for Ann")),
        (rejected(None, "No funds"), rejected(None, "No funds")),
        (rejected(), rejected()),
        (Outcome(OutcomeKind.REJECTED), Outcome(OutcomeKind.REJECTED)),
    ]:
        breaker = RejectionBreaker(2)
        assert [breaker.observe(outcome) for outcome in (first, second)] == [False, True]
    unlimited = RejectionBreaker(0)
    assert not any(unlimited.observe(rejected("51")) for _ in range(1000))


@pytest.mark.parametrize(
    ("between", "trips"),
    [
        *((other, False) for other in (rejected("14"), rejected("14", "No funds"))),
        *((Outcome(kind), False) for kind in (OutcomeKind.PAID, OutcomeKind.ACCEPTED)),
        *((Outcome(kind), True) for kind in (UNKNOWN, NOT_SENT)),
    ],
)
def test_other_outcome_restarts_rejection_count(between: Outcome, trips: bool) -> None:
    breaker = RejectionBreaker(2)
    assert [breaker.observe(outcome) for outcome in (rejected("51"), between, rejected("51"))] == [False, False, trips]


def test_rate_limit_and_pauses_delay_starts() -> None:
    rhythm = RateLimiter(rate_per_s=4)
    waits = []
    for _ in range(3):
        waits.append(rhythm.wait_s(10.0))
        rhythm.start(10.0)
    assert waits == [0.0, 0.25, 0.5]
    rhythm.start(100.0)  # idle time does not allow a burst
    assert rhythm.wait_s(100.0) == 0.25
    rhythm = RateLimiter(rate_per_s=0)
    rhythm.start(5.0)
    assert rhythm.wait_s(5.0) == 0.0
    rhythm.pause(5.0, 60.0)
    rhythm.pause(6.0, 10.0)
    assert rhythm.wait_s(6.0) == 59.0


@given(chance=st.floats(0, 1, exclude_max=True))
def test_retry_waits_always_grow(chance: float) -> None:
    waits = [retry_delay_s(number, chance) for number in range(2, TRIES + 1)]
    assert all(wait > 0 for wait in waits)
    assert waits == sorted(waits)


SLOW_GATEWAY, SLOW_PROCESSOR, SLOW_DISK = ([waits] * 500 for waits in ((0.003, 0.05), (0.008, 0.004), (0.03, 0.05)))
"""For each row the wait for the journal and the wait for the gateway."""


@pytest.mark.parametrize(
    ("places", "waits", "size"),
    [
        *((64, waits, MAX_GROUP_FACTS) for waits in (SLOW_PROCESSOR, SLOW_DISK, SLOW_GATEWAY + SLOW_PROCESSOR)),
        *((64, waits, MIN_GROUP_FACTS) for waits in ([], SLOW_GATEWAY, [*SLOW_GATEWAY, (0.5, 0.05)])),
        (64, SLOW_GATEWAY + SLOW_PROCESSOR + SLOW_GATEWAY, MIN_GROUP_FACTS),
        *((1000, waits, 250) for waits in (SLOW_GATEWAY, SLOW_PROCESSOR)),
    ],
)
def test_group_size_depends_on_bottleneck(places: int, waits: list[tuple[float, float]], size: int) -> None:
    """Groups are small while the gateway is slow, large while the journal is, and at least a quarter of the slots."""
    limit = GroupLimit(places)
    for journal_s, gateway_s in waits:
        limit.observe(journal_s, gateway_s)
    assert limit.max_facts == size


# A run whose limits come from a scripted gate, on a simulated clock.
ALONE = GateShare(1, 0, rate_per_s=None, concurrency=None, rest_s=0, stop=None)


@dataclass
class ScriptedGate:
    """Answers each call from a script, and records the reports."""

    script: Callable[[GateReport], GateShare] = lambda _report: ALONE
    reports: list[GateReport] = field(default_factory=list)
    is_closed: bool = False

    def open(self) -> None:
        """Do nothing: there is no stop to lift."""

    def request_share(self, report: GateReport) -> GateShare:
        self.reports.append(report)
        return self.script(report)

    def close(self) -> None:
        self.is_closed = True


def send_through(gate: ScriptedGate, gateway: ScriptedGateway, pace: Pace | None = None, rows: int = 40) -> RunEnd:
    journal, batch = build_journal(rows)
    pace = pace or Pace(concurrency=16)
    return run(build_engine(journal, gateway, pace, pacing=SharedPacing(gate, pace)), batch)


@pytest.mark.parametrize(
    ("share", "max_in_flight"),
    [
        *((ALONE, 8), (replace(ALONE, concurrency=5), 5)),
        *((replace(ALONE, senders=3, before=0), 3), (replace(ALONE, senders=3, before=2), 2)),
        (replace(ALONE, concurrency=64, senders=4, before=3), 16),
    ],
)
def test_worker_sends_all_rows_within_its_share(share: GateShare, max_in_flight: int) -> None:
    gate, gateway = ScriptedGate(lambda _: share), ScriptedGateway(latency=0.01)
    assert send_through(gate, gateway, Pace(concurrency=8), rows=120).sent == 120
    assert gateway.most_in_flight == max_in_flight
    assert gate.is_closed


@settings(max_examples=example_count(50))
@given(concurrency=st.integers(1, 70), senders=st.integers(1, 9), rate=st.floats(0, 500))
def test_worker_shares_add_up_to_limits(concurrency: int, senders: int, rate: float) -> None:
    places, rates = [], []
    for before in range(senders):
        pacing = SharedPacing(ScriptedGate(), Pace(concurrency, rate_per_s=rate))
        for now_s in (0.0, JOIN_DELAY_S):
            pacing._apply_share(replace(ALONE, senders=senders, before=before), now_s)
        places.append(next(count for count in range(99) if count >= pacing._window.limit))
        rates.append(pacing._rate_limiter.rate_per_s)
    assert sum(places) == concurrency
    assert max(places) - min(places) <= 1
    assert sum(rates) == pytest.approx(rate)


def test_worker_waits_until_it_has_share() -> None:
    shares = iter([replace(ALONE, senders=20, before=19)] * 3)
    gate, gateway = ScriptedGate(lambda _: next(shares, ALONE)), ScriptedGateway()
    assert send_through(gate, gateway, rows=3).sent == 3
    assert len(gate.reports) >= 4


def test_workers_divide_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[float] = []
    start = RateLimiter.start

    def noted(rhythm: RateLimiter, now_s: float) -> None:
        started.append(now_s)
        start(rhythm, now_s)

    monkeypatch.setattr(RateLimiter, "start", noted)
    gate = ScriptedGate(lambda _: replace(ALONE, senders=2, before=1, rate_per_s=10.0))
    assert send_through(gate, ScriptedGateway(), Pace(concurrency=4), rows=6).sent == 6
    assert [after - before for before, after in itertools.pairwise(started)] == [pytest.approx(0.2, abs=0.01)] * 5


@pytest.mark.parametrize(
    ("first", "kinds"),
    [
        ({"PAY-3": reply("declined"), "PAY-4": reply("declined")}, "answered rejected rejected answered"),
        ({"PAY-2": REFUSED, "PAY-3": LOST}, "answered unknown answered answered"),  # PAY-2 is sent again
    ],
)
def test_every_outcome_is_reported_once_and_in_order(first: dict[str, Answer], kinds: str) -> None:
    gate = ScriptedGate()
    gateway = ScriptedGateway(lambda order_id, times: first.get(order_id, APPROVED) if times == 1 else APPROVED)
    send_through(gate, gateway, Pace(concurrency=1), rows=4)
    reported = [outcome for report in gate.reports for outcome in report.outcomes]
    assert [outcome.kind.value for outcome in reported for _ in range(outcome.times)] == kinds.split()
    assert {outcome.reason for outcome in reported} == ({"", "declined"} if "rejected" in kinds else {""})


async def test_outcomes_are_reported_again_after_lost_answer() -> None:
    def fails_at_first(_: GateReport) -> GateShare:
        if len(gate.reports) == 1:
            raise JournalError("The database is gone.")
        return ALONE

    gate = ScriptedGate(fails_at_first)
    pacing = SharedPacing(gate, Pace(concurrency=1))
    pacing._has_ended = True
    with ThreadPoolExecutor(1) as thread:
        for _ in range(2):
            pacing.observe(Outcome(OutcomeKind.REJECTED, error_code="51"))
            await pacing._call_gate(thread)
    assert [[outcome.times for outcome in report.outcomes] for report in gate.reports] == [[1], [2]]


def test_silent_gate_stops_run_before_sending() -> None:
    gateway = ScriptedGateway()
    end = send_through(ScriptedGate(Mock(side_effect=JournalError("The database is gone."))), gateway)
    assert (end.sent, gateway.arrived) == (0, [])
    assert end.stop_reason == "The limits shared by all workers cannot be read (The database is gone)."
    with pytest.raises(ZeroDivisionError):
        send_through(ScriptedGate(Mock(side_effect=ZeroDivisionError)), gateway)
    assert gateway.arrived == []


@pytest.mark.parametrize(
    ("stop", "sentence"),
    [
        (GateStop(GateStopKind.IN_DOUBT, 5, ""), "5 consecutive rows ended in doubt."),
        (GateStop(GateStopKind.REJECTED, 10, "51"), "10 consecutive rows were rejected for the same reason: 51."),
        (GateStop(GateStopKind.REQUESTED, 0, "Credentials were refused."), "Credentials were refused."),
    ],
)
def test_stop_by_other_worker_ends_run(stop: GateStop, sentence: str) -> None:
    gateway = ScriptedGateway(latency=0.01)

    def stops_later(report: GateReport) -> GateShare:
        return replace(ALONE, concurrency=2, stop=stop if report.outcomes else None)

    end = send_through(ScriptedGate(stops_later), gateway, rows=400)
    assert end.stop_reason == sentence
    assert 0 < len(gateway.arrived) < 400


def test_worker_reports_own_stop_with_reason() -> None:
    gate = ScriptedGate()
    end = send_through(gate, ScriptedGateway(lambda *_: LOST), Pace(concurrency=1, stop_after_in_doubt=2))
    assert end.sent == 2
    assert gate.reports[-1].stop == end.stop_reason == "2 consecutive rows ended in doubt."


def test_pause_of_one_worker_is_reported_to_gate() -> None:
    gate = ScriptedGate()
    answers = {"PAY-2": reply("", 429)}
    gateway = ScriptedGateway(lambda order_id, _: answers.get(order_id, reply("approved")))
    assert send_through(gate, gateway, rows=3).sent == 3
    assert [report.rest_s for report in gate.reports if report.rest_s] == [pytest.approx(60, abs=1)], "told once"


def test_worker_observes_pause_of_other_worker() -> None:
    rests = iter([30.0])
    begun_s: list[float] = []
    gateway = ScriptedGateway(before_answer=lambda _: begun_s.append(asyncio.get_running_loop().time()))

    def grants(_: GateReport) -> GateShare:
        if rest_s := next(rests, 0.0):
            begun_s.append(monotonic())
        return replace(ALONE, rest_s=rest_s)

    gate = ScriptedGate(grants)
    assert send_through(gate, gateway, rows=3).sent == 3
    assert begun_s[1] - begun_s[0] >= 29
    assert not any(report.rest_s for report in gate.reports), "the gate knows it"
