"""Refreshing rows: intervals, time limit, and that only a sound answer changes anything. The clock is simulated."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest

from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.countries.load import load_enquiry, load_operation
from paygw_batch.gateway.enquiry import EnquiryAnswer, parse_answer
from paygw_batch.gateway.message import ExpectedReply, FaultKind, RawReply, TransportFault
from paygw_batch.journal.file_location import in_memory_journal
from paygw_batch.journal.values import BatchRecord
from paygw_batch.settle.refresh import Clock, EnquiryLimits, Refresh, RefreshResult
from tests.support.journal_rows import new_instruction, open_sheet, send

START = datetime(2026, 11, 21, 8, tzinfo=UTC)
WORDS = {"approved": OutcomeKind.PAID, "processing": OutcomeKind.ACCEPTED, "declined": OutcomeKind.REJECTED}
OPERATION = load_enquiry("paynet-v4", load_operation("payout"))
REFUSED = TransportFault(FaultKind.CONNECT_REFUSED, first_byte_sent=False)

Script = Callable[[str, int], RawReply | TransportFault]
"""The answer to the n-th enquiry about order `id`."""


def replied(status: str, order_id: str, http_status: int = 200, **further: str) -> RawReply:
    body = json.dumps({"status": status, "client_orderid": order_id, "currency": "KES", **further})
    return RawReply(http_status, (), body.encode())


class Scenario:
    """A gateway and a clock that a test scripts."""

    def __init__(self, script: Script, rows: int = 2, kind: OutcomeKind = OutcomeKind.ACCEPTED) -> None:
        self.now_s = 0.0
        self.asked: list[tuple[float, str]] = []
        self.endpoints = set[str | None]()
        self.journal = in_memory_journal()
        self.batch = self._sent(rows, kind)
        self._script = script
        self._times: dict[str, int] = {}
        self.refresh: Refresh

    def _sent(self, rows: int, kind: OutcomeKind) -> BatchRecord:
        batch = open_sheet(self.journal, new=[new_instruction(n, f"PAY-{n}") for n in range(2, 2 + rows)])
        send(self.journal, 1, kind)
        return batch

    async def _sleep(self, wait_s: float) -> None:
        await asyncio.sleep(0)
        self.now_s += wait_s

    async def _ask(self, expected: ExpectedReply, endpoint_id: str | None) -> EnquiryAnswer:
        self.asked.append((self.now_s, expected.order_id))
        self.endpoints.add(endpoint_id)
        self._times[expected.order_id] = self._times.get(expected.order_id, 0) + 1
        came_back = self._script(expected.order_id, self._times[expected.order_id])
        return parse_answer(came_back, expected, WORDS, OPERATION, not_found=["no-such-order"], now=START)

    def run(self, limit_s: float = 1800.0, watch: Callable[[Refresh], None] | None = None) -> RefreshResult:
        async def go() -> RefreshResult:
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
            if watch is not None:
                watch(self.refresh)
            return await self.refresh.run()

        return asyncio.run(go())

    def states(self) -> Sequence[State]:
        return [row.state for row in self.journal.rows(1)]

    def kept(self) -> Mapping[str, int]:
        self.journal.verify()
        return dict(self.journal.message_counts())


@pytest.mark.parametrize("kind", [OutcomeKind.ACCEPTED, OutcomeKind.UNKNOWN])
def test_refresh_stops_enquiring_after_final_answer(kind: OutcomeKind) -> None:
    words = {"PAY-2": ["processing", "approved"], "PAY-3": ["declined"]}
    scenario = Scenario(lambda order_id, n: replied(words[order_id][n - 1], order_id), kind=kind)
    done = scenario.run()
    assert scenario.states() == [State.PAID, State.REJECTED]
    assert (done.asked, done.stop_reason, done.interrupted) == (3, None, False)
    assert scenario.endpoints == {"1234"}
    assert scenario.journal.messages().contradictions == []


def test_refresh_slows_after_five_minutes_then_ends() -> None:
    scenario = Scenario(lambda order_id, _: replied("processing", order_id), rows=1)
    done = scenario.run(limit_s=900.0)
    times = [at_s for at_s, _ in scenario.asked]
    waits = [round(later - earlier) for earlier, later in pairwise(times)]
    assert waits == [5] * 60 + [60] * 10
    assert times[-1] <= 900
    assert done.stop_reason is not None
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
    assert scenario.states() == [State.IN_DOUBT]
    assert scenario.journal.head() == head
    assert scenario.kept() == {}


@pytest.mark.parametrize(
    ("order_id", "further"), [("PAY-9", {}), ("PAY-2", {"amount": "1.00"}), ("PAY-2", {"currency": "UGX"})]
)
def test_answer_about_another_payout_stops_refresh(order_id: str, further: dict[str, Any]) -> None:
    scenario = Scenario(lambda *_: replied("approved", order_id, **further), rows=1)
    done = scenario.run()
    assert scenario.states() == [State.ACCEPTED]
    assert "different payout" in (done.stop_reason or "")
    assert done.asked == 1


def test_not_found_answer_is_recorded_once_without_release() -> None:
    scenario = Scenario(lambda order_id, _: replied("no-such-order", order_id), rows=1, kind=OutcomeKind.UNKNOWN)
    scenario.run(limit_s=60)
    assert scenario.states() == [State.IN_DOUBT]
    assert scenario.kept() == {"not_found": 1}
    (waiting,) = scenario.journal.messages(1).waiting
    assert (waiting.row, waiting.source.value) == (2, "enquiry")
    assert len(scenario.asked) > 3


@pytest.mark.parametrize(
    ("reply", "reason", "asked"),
    [(REFUSED, "does not answer", {6}), (RawReply(403, (), b'{"status": "error"}'), "credentials", {1, 2})],
)
def test_failing_gateway_stops_refresh(reply: RawReply | TransportFault, reason: str, asked: set[int]) -> None:
    scenario = Scenario(lambda *_: reply)
    done = scenario.run()
    assert reason in (done.stop_reason or "")
    assert len(scenario.asked) in asked


def test_refresh_observes_pause_requested_by_gateway() -> None:
    def script(order_id: str, n: int) -> RawReply:
        if n == 1:
            return RawReply(429, (("retry-after", "120"),), b'{"status": "error"}')
        return replied("approved", order_id)

    scenario = Scenario(script, rows=1)
    scenario.run()
    assert scenario.states() == [State.PAID]
    assert scenario.asked[1][0] - scenario.asked[0][0] >= 120


def test_drained_refresh_finishes_current_enquiries() -> None:
    def script(order_id: str, _: int) -> RawReply:
        scenario.refresh.drain()
        return replied("approved", order_id)

    scenario = Scenario(script, rows=6)
    done = scenario.run()
    assert done.interrupted
    assert scenario.states().count(State.PAID) == len(scenario.asked) <= 2


def test_enquiry_expects_only_requested_order() -> None:
    assert OPERATION.path == "/paynet/api/v4/status/{endpoint_id}"
    expected = ExpectedReply("PAY-2", Decimal("1500.50"), "KES")
    answer = parse_answer(replied("approved", "PAY-2"), expected, WORDS, OPERATION, not_found=[], now=START)
    assert answer.claim is not None
    assert (answer.claim.order_id, answer.claim.amount, answer.claim.currency) == ("PAY-2", "1500.50", "KES")
