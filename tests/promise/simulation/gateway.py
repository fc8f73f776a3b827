"""The simulated gateway: slow, lying, dropping, refusing, or failing after it took an order. It keeps the record."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from typing import TYPE_CHECKING

from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.countries.load import load_operation
from paygw_batch.gateway.message import FaultKind, PreparedRequest, RawReply, SendGuard, TransportFault

if TYPE_CHECKING:
    from tests.promise.simulation.process import Process

OPERATIONS = {name: load_operation(name) for name in ("payout", "payin")}
OPERATION = OPERATIONS["payout"]  # both operations echo the same members
TOTAL_TIMEOUT_S = 120.0
CONNECT_TIMEOUT_S = 30.0
DEPARTS_WITHIN_S = CONNECT_TIMEOUT_S + TOTAL_TIMEOUT_S
QUARANTINE_H = 24.0

LONGEST_SLEEP_S = 900.0  # the maximum sleep of machine or process between an intent and its first byte


class AnswerMeaning(Enum):
    """The correct interpretation of an answer."""

    NOT_SENT = auto()
    NOTHING = auto()
    YES = auto()
    NO = auto()
    PENDING = auto()


@dataclass(frozen=True, slots=True)
class Behaviour:
    meaning: AnswerMeaning
    answer: Callable[[PreparedRequest], RawReply | TransportFault]
    executes: float = 0.0
    lies: bool = False
    after_s: float | None = None  # the delay of the answer. None means a short one.


def fault(kind: FaultKind, *, left: bool) -> Callable[[PreparedRequest], TransportFault]:
    return lambda _request: TransportFault(kind, left, bytes_written=7 if left else 0)


def text(body: bytes, http_status: int = 200, **headers: str) -> Callable[[PreparedRequest], RawReply]:
    fields = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return lambda _request: RawReply(http_status, fields, body)


def word(
    status: object, http_status: int = 200, *, echo: Mapping[str, object] | None = None, **headers: str
) -> Callable[[PreparedRequest], RawReply]:
    """Return an answer that echoes the order id with `status`. `echo` replaces or adds members."""
    fields = tuple((name.replace("_", "-"), value) for name, value in headers.items())

    def answer(request: PreparedRequest) -> RawReply:
        members = {OPERATION.reply.order_id[0]: request.expected.order_id, "status": status, **(echo or {})}
        return RawReply(http_status, fields, json.dumps(members).encode())

    return answer


BEHAVIOURS: Mapping[str, Behaviour] = {
    "approved": Behaviour(AnswerMeaning.YES, word("approved"), 1.0),
    "processing": Behaviour(AnswerMeaning.PENDING, word("processing"), 0.7),
    "declined": Behaviour(AnswerMeaning.NO, word("declined")),
    "refused": Behaviour(AnswerMeaning.NOT_SENT, fault(FaultKind.CONNECT_REFUSED, left=False)),
    "no name": Behaviour(AnswerMeaning.NOT_SENT, fault(FaultKind.NAME_NOT_RESOLVED, left=False)),
    "blackhole": Behaviour(
        AnswerMeaning.NOT_SENT, fault(FaultKind.CONNECT_TIMEOUT, left=False), after_s=CONNECT_TIMEOUT_S
    ),
    "stalled handshake": Behaviour(
        AnswerMeaning.NOT_SENT, fault(FaultKind.TLS_FAILED, left=False), after_s=CONNECT_TIMEOUT_S
    ),
    "wrong certificate": Behaviour(AnswerMeaning.NOT_SENT, fault(FaultKind.TLS_UNTRUSTED, left=False)),
    "silence": Behaviour(AnswerMeaning.NOTHING, fault(FaultKind.READ_TIMEOUT, left=True), 0.5, after_s=60.0),
    "drip": Behaviour(AnswerMeaning.NOTHING, fault(FaultKind.TOTAL_TIMEOUT, left=True), 0.5, after_s=TOTAL_TIMEOUT_S),
    "closed": Behaviour(AnswerMeaning.NOTHING, fault(FaultKind.CONNECTION_LOST, left=True), 0.5),
    "write failed": Behaviour(AnswerMeaning.NOTHING, fault(FaultKind.WRITE_FAILED, left=True), 0.3),
    "early reply": Behaviour(AnswerMeaning.NOTHING, fault(FaultKind.EARLY_REPLY, left=True), 0.5),
    "too large": Behaviour(AnswerMeaning.NOTHING, fault(FaultKind.REPLY_TOO_LARGE, left=True), 0.5),
    "500": Behaviour(AnswerMeaning.NOTHING, word("declined", 500), 0.5),
    "502 html": Behaviour(AnswerMeaning.NOTHING, text(b"<html>Bad Gateway</html>", 502), 0.5),
    "503 and rest": Behaviour(AnswerMeaning.NOTHING, word("error", 503, retry_after="30"), 0.5),
    "301": Behaviour(AnswerMeaning.NOTHING, word("declined", 301, location="/"), 0.5),
    "garbage": Behaviour(AnswerMeaning.NOTHING, text(b"\x00\xffnonsense"), 0.5),
    "cut": Behaviour(AnswerMeaning.NOTHING, text(b'{"status": "declin'), 0.5),
    "mark of order": Behaviour(AnswerMeaning.NOTHING, text(b'\xef\xbb\xbf{"status": "declined"}'), 0.5),
    "twice": Behaviour(AnswerMeaning.NOTHING, text(b'{"status": "approved", "status": "declined"}'), 0.5),
    "list": Behaviour(AnswerMeaning.NOTHING, text(b'["declined"]'), 0.5),
    "not a number": Behaviour(AnswerMeaning.NOTHING, text(b'{"status": "declined", "fee": NaN}'), 0.5),
    "number": Behaviour(AnswerMeaning.NOTHING, word(0), 0.5),
    "limbo": Behaviour(AnswerMeaning.NOTHING, word("Declined"), 0.5),
    "no status": Behaviour(AnswerMeaning.NOTHING, text(b"{}"), 0.5),
    "other order": Behaviour(AnswerMeaning.NOTHING, word("declined", echo={OPERATION.reply.order_id[0]: "PAY-0"}), 0.5),
    "other amount": Behaviour(AnswerMeaning.NOTHING, word("declined", echo={OPERATION.reply.amount[0]: 1}), 0.5),
    "other currency": Behaviour(
        AnswerMeaning.NOTHING, word("declined", echo={OPERATION.reply.currency[0]: "UGX"}), 0.5
    ),
    "401": Behaviour(AnswerMeaning.NO, word("error", 401)),
    "429": Behaviour(AnswerMeaning.NO, word("declined", 429, retry_after="5")),
    "denies": Behaviour(AnswerMeaning.NO, word("declined"), 1.0, lies=True),
    "boasts": Behaviour(AnswerMeaning.YES, word("approved"), lies=True),
}
TOO_LATE = Behaviour(AnswerMeaning.NOT_SENT, fault(FaultKind.INTENT_STALE, left=False))
HONEST = tuple(name for name, behaviour in BEHAVIOURS.items() if not behaviour.lies)
USUAL = ("approved", "approved", "approved", "approved", "processing", "declined")
DEAD = ("silence", "closed", "drip", "500", "refused", "blackhole")


class SimGateway:
    """The gateway as one process reaches it (the port `Gateway`). Its orders outlive the process."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self.in_flight = 0

    async def deliver(self, request: PreparedRequest, may_send: SendGuard) -> RawReply | TransportFault:
        process = self._process
        if process.dead:
            raise asyncio.CancelledError
        scenario, rng = process.scenario, process.scenario.rng
        behaviour = BEHAVIOURS[rng.choice(scenario.mood)]
        scenario.judge.check_request(process, request)
        self.in_flight += 1
        scenario.judge.check_flight(process, self.in_flight)
        try:
            if rng.random() < 0.5:
                await asyncio.sleep(rng.random() * 0.2)
            if scenario.sleeps.random() < 0.01:
                await asyncio.sleep(scenario.sleeps.choice((DEPARTS_WITHIN_S, LONGEST_SLEEP_S)))
            if behaviour.meaning is not AnswerMeaning.NOT_SENT and not may_send():
                behaviour = TOO_LATE
            if behaviour.meaning is not AnswerMeaning.NOT_SENT:
                scenario.clock_is_unknown = scenario.clock_is_unknown or scenario.skew < timedelta()
                scenario.judge.first_byte(process, request, behaviour)
                self._execute_order(request, behaviour)
            await asyncio.sleep(rng.random() * 0.2 if behaviour.after_s is None else behaviour.after_s)
            scenario.judge.answered(process, request)
            return scenario.add_date(behaviour.answer(request))
        finally:
            self.in_flight -= 1

    def _execute_order(self, request: PreparedRequest, behaviour: Behaviour) -> None:
        """Execute the order now, much later if the sender hears nothing, or never."""
        scenario = self._process.scenario
        if behaviour.meaning is AnswerMeaning.NO and not behaviour.lies:
            self._notify(request, "declined")
        if scenario.rng.random() >= behaviour.executes:
            return
        late = behaviour.meaning is AnswerMeaning.NOTHING and scenario.rng.random() < 0.5
        # The latest execution of an order without an answer: within the quarantine of a day.
        delay_s = scenario.rng.random() * 20 * 3600.0 if late else 0.0
        scenario.later(delay_s, lambda: scenario.judge.executed(request, scenario.clock.now_s))
        if not behaviour.lies:
            self._notify(request, "approved", delay_s)

    def _notify(self, request: PreparedRequest, word: str, after_s: float = 0.0) -> None:
        """Notify about an order after its decision, not at all, or twice."""
        scenario, expected = self._process.scenario, request.expected
        if scenario.rng.random() >= 0.15:
            return
        for _ in range(scenario.rng.choice((1, 1, 2))):
            scenario.later(
                # The maximum delays of a notification: during its run, or after another attempt.
                after_s + scenario.rng.random() * scenario.rng.choice((3600.0, 40 * 3600.0)),
                lambda: scenario.inbox.hear(expected.order_id, str(expected.amount), word),
            )


WORDS = {
    "approved": OutcomeKind.PAID,
    "processing": OutcomeKind.ACCEPTED,
    "declined": OutcomeKind.REJECTED,
    "error": OutcomeKind.REJECTED,
}
MEANS = {word: kind.value for word, kind in WORDS.items()}  # the shown state of a row for each believed status word
