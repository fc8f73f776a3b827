"""A run whose limits come from a scripted gate, on a simulated clock."""

import asyncio
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from time import monotonic

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paygw_batch.cluster.shared_pacing import SETTLING_S, SharedPacing
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.engine.engine import RunEnd
from paygw_batch.engine.pacing import Pace, RateLimiter
from paygw_batch.errors import JournalError
from paygw_batch.journal.port import CountedKind, CountedOutcomes, GateReport, GateShare, GateStop, GateStopKind
from tests.support.long_part import example_count
from tests.support.scripted_scenario import LOST, REFUSED, ScriptedGateway, build_engine, build_journal, reply, run

ALONE = GateShare(1, 0, rate_per_s=None, concurrency=None, rest_s=0, stop=None)


@dataclass
class ScriptedGate:
    """Answers each call from a script, and records the reports."""

    script: Callable[[GateReport], GateShare] = lambda _report: ALONE
    reports: list[GateReport] = field(default_factory=list)
    is_closed: bool = False

    def open(self) -> None:
        """Do nothing: there is no stop to lift."""

    def ask(self, report: GateReport) -> GateShare:
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
        (ALONE, 8),
        (replace(ALONE, senders=3, before=0), 3),
        (replace(ALONE, senders=3, before=2), 2),
        (replace(ALONE, concurrency=5), 5),
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
        for now_s in (0.0, SETTLING_S):
            pacing._apply(replace(ALONE, senders=senders, before=before), now_s)
        places.append(next(count for count in range(99) if count >= pacing._window.limit))
        rates.append(pacing._rate_limiter.rate_per_s)
    assert sum(places) == concurrency
    assert max(places) - min(places) <= 1
    assert sum(rates) == pytest.approx(rate)


def test_worker_without_share_waits() -> None:
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


def test_worker_begins_with_single_row() -> None:
    gateway = ScriptedGateway(latency=0.01)
    seen: list[int] = []
    gateway.before_answer = lambda _: seen.append(len(gateway.arrived))
    send_through(ScriptedGate(), gateway)
    assert seen[0] == 1


def test_every_outcome_is_reported_once_and_in_order() -> None:
    gate = ScriptedGate()
    rejected = {"PAY-5", "PAY-6"}
    gateway = ScriptedGateway(lambda order_id, _: reply("declined" if order_id in rejected else "approved"))
    send_through(gate, gateway, Pace(concurrency=1), rows=8)
    reported = [outcome for report in gate.reports for outcome in report.outcomes]
    kinds = [outcome.kind for outcome in reported for _ in range(outcome.times)]
    assert kinds == [CountedKind.ANSWERED] * 3 + [CountedKind.REJECTED] * 2 + [CountedKind.ANSWERED] * 3
    assert {outcome.reason for outcome in reported} == {"", "declined"}


def test_unanswered_outcomes_are_reported_again() -> None:
    def fails_at_first(_: GateReport) -> GateShare:
        if len(gate.reports) == 1:
            raise JournalError("The database is gone.")
        return ALONE

    gate = ScriptedGate(fails_at_first)
    pacing = SharedPacing(gate, Pace(concurrency=1))
    pacing._has_ended = True

    async def ask_twice() -> None:
        with ThreadPoolExecutor(1) as thread:
            for _ in range(2):
                pacing.learn(Outcome(OutcomeKind.REJECTED, error_code="51"))
                await pacing._ask(thread)

    asyncio.run(ask_twice())
    assert [[outcome.times for outcome in report.outcomes] for report in gate.reports] == [[1], [2]]


def test_unanswering_gate_stops_run_before_sending() -> None:
    def never(_: GateReport) -> GateShare:
        raise JournalError("The database is gone.")

    gateway = ScriptedGateway()
    end = send_through(ScriptedGate(never), gateway)
    assert (end.sent, gateway.arrived) == (0, [])
    assert end.stop_reason == "The limits shared by all workers cannot be read (The database is gone)."


def test_internal_error_ends_run_and_is_raised() -> None:
    def broken(_: GateReport) -> GateShare:
        raise ZeroDivisionError

    gateway = ScriptedGateway()
    with pytest.raises(ZeroDivisionError):
        send_through(ScriptedGate(broken), gateway)
    assert gateway.arrived == []


@pytest.mark.parametrize(
    ("stop", "sentence"),
    [
        (GateStop(GateStopKind.IN_DOUBT, 5, ""), "5 rows in a row ended in doubt."),
        (GateStop(GateStopKind.REJECTED, 10, "51"), "10 rows in a row were rejected for the same reason: 51."),
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
    assert gate.reports[-1].stop == end.stop_reason == "2 rows in a row ended in doubt."


def test_pause_of_one_worker_is_reported_to_gate() -> None:
    gate = ScriptedGate()
    answers = {"PAY-2": reply("", 429)}
    gateway = ScriptedGateway(lambda order_id, _: answers.get(order_id, reply("approved")))
    assert send_through(gate, gateway, rows=3).sent == 3
    assert [report.rest_s for report in gate.reports if report.rest_s] == [pytest.approx(60, abs=1)], "told once"


def test_worker_observes_pause_of_other_worker() -> None:
    rests = iter([30.0])
    begun_s: list[float] = []
    gateway = ScriptedGateway()
    gateway.before_answer = lambda _: begun_s.append(asyncio.get_running_loop().time())

    def grants(_: GateReport) -> GateShare:
        rest_s = next(rests, 0.0)
        if rest_s:
            begun_s.append(monotonic())
        return replace(ALONE, rest_s=rest_s)

    gate = ScriptedGate(grants)
    assert send_through(gate, gateway, rows=3).sent == 3
    assert begun_s[1] - begun_s[0] >= 29
    assert not any(report.rest_s for report in gate.reports), "the gate knows it"


def test_unsent_row_is_not_reported() -> None:
    gate = ScriptedGate()
    refused = {"PAY-2": REFUSED}
    gateway = ScriptedGateway(lambda order_id, times: refused.get(order_id, LOST) if times == 1 else reply("approved"))
    send_through(gate, gateway, Pace(concurrency=1), rows=2)
    reported = [outcome for report in gate.reports for outcome in report.outcomes]
    assert reported == [CountedOutcomes(CountedKind.ANSWERED, "", 1), CountedOutcomes(CountedKind.UNKNOWN, "", 1)]
