"""A run whose limits are kept elsewhere: by a gate that a test scripts, on a clock that jumps."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import monotonic

import pytest

from paygw_batch.engine.engine import RunEnd
from paygw_batch.engine.pacing import MAX_LATE_S, GrantedStarts, Pace
from paygw_batch.engine.shared_pacing import SharedPacing
from paygw_batch.errors import JournalError
from paygw_batch.journal.port import CountedKind, CountedOutcomes, GateGrant, GateReport, GateStop, GateStopKind
from tests.engine.scripted_world import LOST, REFUSED, ScriptedGateway, a_journal, an_engine, reply, run

FREE = GateGrant(16, is_growing=False, starts=0, first_s=0, every_s=0, rest_s=0, stop=None)


@dataclass
class ScriptedGate:
    """Answers each call by script, and records what was reported."""

    script: Callable[[GateReport], GateGrant] = lambda _report: FREE
    reports: list[GateReport] = field(default_factory=list)
    is_closed: bool = False

    def open(self) -> None:
        """Nothing to lift."""

    def ask(self, report: GateReport) -> GateGrant:
        self.reports.append(report)
        return self.script(report)

    def close(self) -> None:
        self.is_closed = True


def sent_through(gate: ScriptedGate, gateway: ScriptedGateway, pace: Pace | None = None, rows: int = 40) -> RunEnd:
    journal, batch = a_journal(rows)
    pace = pace or Pace(concurrency=16)
    return run(an_engine(journal, gateway, pace, pacing=SharedPacing(gate, pace)), batch)


def test_all_rows_leave_within_the_places_that_are_granted() -> None:
    gate, gateway = ScriptedGate(lambda _: replace(FREE, places=3)), ScriptedGateway(latency=0.01)
    assert sent_through(gate, gateway).sent == 40
    assert gateway.most_in_flight == 3
    assert gate.is_closed
    assert (gate.reports[-1].wanted, gate.reports[-1].in_use) == (0, 0)


def test_a_worker_begins_with_one_row_whatever_is_granted() -> None:
    gateway = ScriptedGateway(latency=0.01)
    seen: list[int] = []
    gateway.before_answer = lambda _: seen.append(len(gateway.arrived))
    sent_through(ScriptedGate(), gateway)
    assert seen[0] == 1


def test_every_outcome_is_reported_once_and_in_order() -> None:
    gate = ScriptedGate()
    rejected = {"PAY-5", "PAY-6"}
    gateway = ScriptedGateway(lambda order_id, _: reply("declined" if order_id in rejected else "approved"))
    sent_through(gate, gateway, Pace(concurrency=1), rows=8)
    reported = [one for report in gate.reports for one in report.outcomes]
    kinds = [one.kind for one in reported for _ in range(one.times)]
    assert kinds == [CountedKind.ANSWERED] * 3 + [CountedKind.REJECTED] * 2 + [CountedKind.ANSWERED] * 3
    assert {one.reason for one in reported} == {"", "declined"}


def test_outcomes_of_a_call_without_an_answer_are_reported_again() -> None:
    unanswered: list[GateReport] = []

    def fails_at_first(report: GateReport) -> GateGrant:
        is_last = report.wanted == report.in_use == 0
        if report.outcomes and len(unanswered) < 2 and not is_last:
            unanswered.append(report)
            raise JournalError("The database is gone.")
        return FREE

    gate = ScriptedGate(fails_at_first)
    declines = ScriptedGateway(lambda _order_id, _: reply("declined"), latency=0.3)  # each is reported at once
    assert sent_through(gate, declines, Pace(concurrency=1), rows=6).sent == 6
    answered = [report for report in gate.reports if not any(report is one for one in unanswered)]
    assert sum(one.times for report in answered for one in report.outcomes) == 6


def test_where_the_gate_does_not_answer_nothing_leaves_and_the_run_stops() -> None:
    def never(_: GateReport) -> GateGrant:
        raise JournalError("The database is gone.")

    gateway = ScriptedGateway()
    end = sent_through(ScriptedGate(never), gateway)
    assert (end.sent, gateway.arrived) == (0, [])
    assert end.stop_reason == "The limits over all workers cannot be read (The database is gone)."


def test_an_error_of_our_own_ends_the_run_and_is_not_hidden() -> None:
    def broken(_: GateReport) -> GateGrant:
        raise ZeroDivisionError

    gateway = ScriptedGateway()
    with pytest.raises(ZeroDivisionError):
        sent_through(ScriptedGate(broken), gateway)
    assert gateway.arrived == []


@pytest.mark.parametrize(
    ("stop", "sentence"),
    [
        (GateStop(GateStopKind.IN_DOUBT, 5, ""), "5 rows in a row ended in doubt."),
        (
            GateStop(GateStopKind.REJECTED, 10, "51"),
            "10 rows in a row were rejected for the same reason: 51.",
        ),
        (GateStop(GateStopKind.REQUESTED, 0, "Credentials were refused."), "Credentials were refused."),
    ],
)
def test_what_stops_another_worker_stops_this_one(stop: GateStop, sentence: str) -> None:
    gateway = ScriptedGateway(latency=0.01)

    def stops_later(report: GateReport) -> GateGrant:
        has_sent = any(report.outcomes) or report.in_use
        return replace(FREE, places=2, stop=stop) if has_sent else replace(FREE, places=2)

    end = sent_through(ScriptedGate(stops_later), gateway, rows=400)
    assert end.stop_reason == sentence
    assert 0 < len(gateway.arrived) < 400


def test_its_own_stop_is_reported_with_its_reason() -> None:
    gate = ScriptedGate()
    end = sent_through(gate, ScriptedGateway(lambda *_: LOST), Pace(concurrency=1, stop_after_in_doubt=2))
    assert end.sent == 2
    assert gate.reports[-1].stop == end.stop_reason == "2 rows in a row ended in doubt."


def test_a_rest_that_the_gateway_asked_of_one_is_reported_for_all() -> None:
    gate = ScriptedGate()
    answers = {"PAY-2": reply("", 429)}
    gateway = ScriptedGateway(lambda order_id, _: answers.get(order_id, reply("approved")))
    assert sent_through(gate, gateway, rows=3).sent == 3
    assert [report.rest_s for report in gate.reports if report.rest_s] == [pytest.approx(60, abs=1)], "told once"


def test_a_rest_that_another_worker_was_asked_for_is_kept() -> None:
    rests = iter([30.0])
    begun_s: list[float] = []
    gateway = ScriptedGateway()
    gateway.before_answer = lambda _: begun_s.append(asyncio.get_running_loop().time())

    def grants(_: GateReport) -> GateGrant:
        rest_s = next(rests, 0.0)
        if rest_s:
            begun_s.append(monotonic())
        return replace(FREE, rest_s=rest_s)

    gate = ScriptedGate(grants)
    assert sent_through(gate, gateway, rows=3).sent == 3
    assert begun_s[1] - begun_s[0] >= 29
    assert not any(report.rest_s for report in gate.reports), "the gate knows it"


def test_places_that_may_be_used_until_the_answer_comes_are_reported() -> None:
    granted = iter([8, 8, 2])
    gate = ScriptedGate(lambda _: replace(FREE, places=next(granted, 2)))
    sent_through(gate, ScriptedGateway(latency=0.15), rows=60)
    assert [report.in_use for report in gate.reports[:2]] == [0, 8]
    assert all(report.in_use <= 8 for report in gate.reports)


def test_starts_are_asked_for_ahead_and_used_at_their_times() -> None:
    used: list[GateReport] = []

    def grants(report: GateReport) -> GateGrant:
        used.append(report)
        return replace(FREE, every_s=0.1, starts=min(report.starts, 1), first_s=0.1)

    end = sent_through(ScriptedGate(grants), ScriptedGateway(), Pace(concurrency=4, rate_per_s=10), rows=5)
    assert end.sent == 5
    assert sum(report.starts for report in used) >= 5
    assert max(report.starts for report in used) == 1, "a tenth of a second ahead, at ten a second"


# Granted starts.


def test_no_start_is_used_before_its_time_nor_long_after_it() -> None:
    starts = GrantedStarts()
    assert starts.wait_s(0) == float("inf")
    starts.add(0.0, 0.01, first_s=0.5, every_s=0.1, starts=3)
    assert starts.wait_s(0.2) == pytest.approx(0.31)
    assert starts.wait_s(0.51) == 0
    starts.start()
    assert starts.wait_s(0.51) == pytest.approx(0.1)
    assert starts.unused(0.6 + MAX_LATE_S + 0.001) == 1, "the second one was missed"
    assert starts.unused(9.0) == 0


def test_starts_whose_answer_took_long_are_used_as_they_come() -> None:
    starts = GrantedStarts()
    starts.add(0.0, 3.0, first_s=0.0, every_s=0.1, starts=2)
    assert starts.wait_s(3.0) == 0


def test_what_never_left_is_no_outcome_to_report() -> None:
    gate = ScriptedGate()
    refused = {"PAY-2": REFUSED}
    gateway = ScriptedGateway(lambda order_id, times: refused.get(order_id, LOST) if times == 1 else reply("approved"))
    sent_through(gate, gateway, Pace(concurrency=1), rows=2)
    reported = [one for report in gate.reports for one in report.outcomes]
    assert reported == [CountedOutcomes(CountedKind.ANSWERED, "", 1), CountedOutcomes(CountedKind.UNKNOWN, "", 1)]
