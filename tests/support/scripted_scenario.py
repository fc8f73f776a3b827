"""A scripted scenario for the engine: a gateway with scripted answers, a fixed clock, and a journal in memory."""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count
from typing import Any

from benchmarks.silent_progress import SilentProgress
from paygw_batch.core.outcome import Outcome, OutcomeKind, PauseRun, RetrySoon, StopRun, Verdict
from paygw_batch.engine.engine import Engine, RunEnd
from paygw_batch.engine.pacing import Pace
from paygw_batch.engine.ports import Gateway, Runtime
from paygw_batch.gateway.message import (
    Attempt,
    ExpectedReply,
    FaultKind,
    PreparedRequest,
    RawReply,
    SendGuard,
    TransportFault,
)
from paygw_batch.journal.file_location import in_memory_journal
from paygw_batch.journal.port import EngineJournal
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import BatchRecord
from tests.support.inline_journal import InlineJournal
from tests.support.journal_rows import new_instruction, open_sheet

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
DEPARTS_WITHIN_S = 150.0
AT = "2026-11-20T10:00:00.000Z"

Answer = RawReply | TransportFault
Script = Callable[[str, int], Answer]  # the gateway's answer to the n-th request with an order id


def reply(status: str, http_status: int = 200) -> RawReply:
    return RawReply(http_status, (), f'{{"status": "{status}"}}'.encode())


APPROVED = reply("approved")
LOST = TransportFault(FaultKind.READ_TIMEOUT, first_byte_sent=True)
REFUSED = TransportFault(FaultKind.CONNECT_REFUSED, first_byte_sent=False)
STALE = TransportFault(FaultKind.INTENT_STALE, first_byte_sent=False)
UNTRUSTED = TransportFault(FaultKind.TLS_UNTRUSTED, first_byte_sent=False)


def assess(answer: Answer, expected: ExpectedReply) -> Verdict:  # noqa: ARG001 (the engine's signature)
    """Classify an answer in a simple way. Engine tests are about the handling of verdicts."""
    match answer:
        case TransportFault(first_byte_sent=True):
            return Verdict(Outcome(OutcomeKind.UNKNOWN, answer.kind.value))
        case TransportFault(kind=FaultKind.TLS_UNTRUSTED):
            return Verdict(Outcome(OutcomeKind.NOT_SENT, answer.kind.value), StopRun("The certificate is wrong."))
        case TransportFault():
            return Verdict(Outcome(OutcomeKind.NOT_SENT, answer.kind.value), RetrySoon())
        case RawReply(http_status=401):
            return Verdict(Outcome(OutcomeKind.REJECTED), StopRun("Credentials were refused."))
        case RawReply(http_status=429):
            return Verdict(Outcome(OutcomeKind.REJECTED), PauseRun(60))
        case RawReply(body=b'{"status": "approved"}'):
            return Verdict(Outcome(OutcomeKind.PAID, gateway_status="approved"))
        case RawReply(body=b'{"status": "declined"}'):
            return Verdict(Outcome(OutcomeKind.REJECTED, gateway_status="declined"))
        case _:
            return Verdict(Outcome(OutcomeKind.UNKNOWN, "reply.word"))


@dataclass
class ScriptedGateway:
    """Records requests, and answers from a script. `latency` is the number of loop iterations before each answer."""

    script: Script = lambda _order_id, _times: APPROVED
    latency: float = 0
    arrived: list[str] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    before_departure: Callable[[str], None] = lambda _order_id: None
    before_answer: Callable[[str], None] = lambda _order_id: None

    async def deliver(self, request: PreparedRequest, may_send: SendGuard) -> Answer:
        order_id = request.expected.order_id
        self.before_departure(order_id)
        if not may_send():
            return STALE
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            self.arrived.append(order_id)
            await asyncio.sleep(self.latency)
            self.before_answer(order_id)
            return self.script(order_id, self.arrived.count(order_id))
        finally:
            self.in_flight -= 1


async def prepare(attempts: Sequence[Attempt]) -> list[PreparedRequest]:
    return [unsigned(attempt) for attempt in attempts]


def unsigned(attempt: Attempt) -> PreparedRequest:
    body = f"{attempt.order_id} {attempt.instruction.amount}".encode()
    return PreparedRequest(
        url="https://gateway.example",
        authorization="OAuth",
        body=body,
        body_sha256=hashlib.sha256(body).hexdigest(),
        nonce=attempt.nonce,
        timestamp_s=attempt.timestamp_s,
        purpose="WALLET",
        endpoint_id="1234",
        expected=ExpectedReply(attempt.order_id, Decimal(attempt.instruction.amount), attempt.instruction.currency),
    )


def build_journal(rows: int) -> tuple[SqliteJournal, BatchRecord]:
    journal = in_memory_journal()
    new = [new_instruction(row, f"PAY-{row}", amount="100.00") for row in range(2, rows + 2)]
    return journal, open_sheet(journal, "0123456789abcdef", new, opened_at=AT)


def build_engine(
    journal: SqliteJournal, gateway: Gateway, pace: Pace | None = None, given: EngineJournal | None = None, **more: Any
) -> Engine:
    nonces, elapsed_s = count(1), more.pop("elapsed_s", lambda: asyncio.get_running_loop().time())
    more["runtime"] = Runtime(now=lambda: NOW, elapsed_s=elapsed_s, nonce=lambda: f"{next(nonces):032x}")
    more |= {"prepare": prepare, "assess": assess, "progress": SilentProgress(), "send_within_s": DEPARTS_WITHIN_S}
    return Engine(journal=given or InlineJournal(journal), gateway=gateway, pace=pace or Pace(concurrency=4), **more)


def run(engine: Engine, batch: BatchRecord) -> RunEnd:
    """Run the engine on an event loop whose clock jumps, so that waits take no time."""
    with asyncio.Runner(loop_factory=JumpingClockLoop) as runner:
        return runner.run(engine.run(batch.number))


class JumpingClockLoop(asyncio.SelectorEventLoop):
    """An event loop that jumps to the next timer when nothing is ready."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self._ahead_s

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        if not ready and scheduled:
            self._ahead_s += max(0.0, scheduled[0].when() - self.time())
        super()._run_once()  # type: ignore[misc]
