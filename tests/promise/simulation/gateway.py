"""The simulated gateway: slow, lying, dropping, refusing, taking an order and then failing. It keeps the record."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from typing import TYPE_CHECKING

from paygw_batch.countries.load import load_operation
from paygw_batch.gateway.message import FaultKind, MayLeave, PreparedRequest, RawReply, TransportFault

if TYPE_CHECKING:
    from tests.promise.simulation.process import Process

OPERATIONS = {name: load_operation(name) for name in ("payout", "payin")}
OPERATION = OPERATIONS["payout"]
"""The two name what an answer repeats alike."""
READ_TIMEOUT_S = 60.0
TOTAL_TIMEOUT_S = 120.0
CONNECT_TIMEOUT_S = 30.0
DEPARTS_WITHIN_S = CONNECT_TIMEOUT_S + TOTAL_TIMEOUT_S
QUARANTINE_H = 24.0
LATEST_COMMIT_S = 20 * 3600.0
"""The latest that an order which nobody heard of again is still executed: within the quarantine of a day."""

LATEST_NOTIFICATION_S = (3600.0, 40 * 3600.0)
"""A notification is late by up to one of these: while its run goes on, or when another attempt has been made."""
CHANCE_OF_SLEEP = 0.01
LONGEST_SLEEP_S = 900.0
"""The machine sleeps, or the process is frozen, for up to so long between an intent and its first byte."""
CHANCE_OF_A_NOTIFICATION = 0.15


class Said(Enum):
    """What an honest reader must take an answer for."""

    NOT_SENT = auto()
    NOTHING = auto()
    YES = auto()
    NO = auto()
    PENDING = auto()


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One way to treat an order. `executes`: the chances that the money moves; `lies`: the answer says otherwise."""

    said: Said
    answer: Callable[[PreparedRequest], RawReply | TransportFault]
    executes: float = 0.0
    lies: bool = False
    after_s: float | None = None
    """When the answer comes; None: soon."""


def fault(kind: FaultKind, *, left: bool) -> Callable[[PreparedRequest], TransportFault]:
    return lambda _request: TransportFault(kind, left, bytes_written=7 if left else 0)


def text(body: bytes, http_status: int = 200, **headers: str) -> Callable[[PreparedRequest], RawReply]:
    fields = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return lambda _request: RawReply(http_status, fields, body)


def word(
    status: object, http_status: int = 200, *, echo: Mapping[str, object] | None = None, **headers: str
) -> Callable[[PreparedRequest], RawReply]:
    """Return an answer that repeats the order id and says `status`; `echo` replaces or adds members."""
    fields = tuple((name.replace("_", "-"), value) for name, value in headers.items())

    def answer(request: PreparedRequest) -> RawReply:
        members = {OPERATION.reply.order_id[0]: request.expected.order_id, "status": status, **(echo or {})}
        return RawReply(http_status, fields, json.dumps(members).encode())

    return answer


BEHAVIOURS: Mapping[str, Behaviour] = {
    "approved": Behaviour(Said.YES, word("approved"), 1.0),
    "processing": Behaviour(Said.PENDING, word("processing"), 0.7),
    "declined": Behaviour(Said.NO, word("declined")),
    "refused": Behaviour(Said.NOT_SENT, fault(FaultKind.CONNECT_REFUSED, left=False)),
    "no name": Behaviour(Said.NOT_SENT, fault(FaultKind.NAME_NOT_RESOLVED, left=False)),
    "blackhole": Behaviour(Said.NOT_SENT, fault(FaultKind.CONNECT_TIMEOUT, left=False), after_s=CONNECT_TIMEOUT_S),
    "stalled handshake": Behaviour(Said.NOT_SENT, fault(FaultKind.TLS_FAILED, left=False), after_s=CONNECT_TIMEOUT_S),
    "wrong certificate": Behaviour(Said.NOT_SENT, fault(FaultKind.TLS_UNTRUSTED, left=False)),
    "silence": Behaviour(Said.NOTHING, fault(FaultKind.READ_TIMEOUT, left=True), 0.5, after_s=READ_TIMEOUT_S),
    "drip": Behaviour(Said.NOTHING, fault(FaultKind.TOTAL_TIMEOUT, left=True), 0.5, after_s=TOTAL_TIMEOUT_S),
    "closed": Behaviour(Said.NOTHING, fault(FaultKind.CONNECTION_LOST, left=True), 0.5),
    "write failed": Behaviour(Said.NOTHING, fault(FaultKind.WRITE_FAILED, left=True), 0.3),
    "early reply": Behaviour(Said.NOTHING, fault(FaultKind.EARLY_REPLY, left=True), 0.5),
    "too large": Behaviour(Said.NOTHING, fault(FaultKind.REPLY_TOO_LARGE, left=True), 0.5),
    "500": Behaviour(Said.NOTHING, word("declined", 500), 0.5),
    "502 html": Behaviour(Said.NOTHING, text(b"<html>Bad Gateway</html>", 502), 0.5),
    "503 and rest": Behaviour(Said.NOTHING, word("error", 503, retry_after="30"), 0.5),
    "301": Behaviour(Said.NOTHING, word("declined", 301, location="/"), 0.5),
    "garbage": Behaviour(Said.NOTHING, text(b"\x00\xffnonsense"), 0.5),
    "cut": Behaviour(Said.NOTHING, text(b'{"status": "declin'), 0.5),
    "mark of order": Behaviour(Said.NOTHING, text(b'\xef\xbb\xbf{"status": "declined"}'), 0.5),
    "twice": Behaviour(Said.NOTHING, text(b'{"status": "approved", "status": "declined"}'), 0.5),
    "list": Behaviour(Said.NOTHING, text(b'["declined"]'), 0.5),
    "not a number": Behaviour(Said.NOTHING, text(b'{"status": "declined", "fee": NaN}'), 0.5),
    "number": Behaviour(Said.NOTHING, word(0), 0.5),
    "limbo": Behaviour(Said.NOTHING, word("Declined"), 0.5),
    "no status": Behaviour(Said.NOTHING, text(b"{}"), 0.5),
    "other order": Behaviour(Said.NOTHING, word("declined", echo={OPERATION.reply.order_id[0]: "PAY-0"}), 0.5),
    "other amount": Behaviour(Said.NOTHING, word("declined", echo={OPERATION.reply.amount[0]: 1}), 0.5),
    "other currency": Behaviour(Said.NOTHING, word("declined", echo={OPERATION.reply.currency[0]: "UGX"}), 0.5),
    "401": Behaviour(Said.NO, word("error", 401)),
    "429": Behaviour(Said.NO, word("declined", 429, retry_after="5")),
    "denies": Behaviour(Said.NO, word("declined"), 1.0, lies=True),
    "boasts": Behaviour(Said.YES, word("approved"), lies=True),
}
TOO_LATE = Behaviour(Said.NOT_SENT, fault(FaultKind.INTENT_STALE, left=False))
HONEST = tuple(name for name, behaviour in BEHAVIOURS.items() if not behaviour.lies)
USUAL = ("approved", "approved", "approved", "approved", "processing", "declined")
DEAD = ("silence", "closed", "drip", "500", "refused", "blackhole")


class SimGateway:
    """The gateway as one process reaches it (the port `Gateway`). Orders it took outlive the process."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self.in_flight = 0

    async def deliver(self, request: PreparedRequest, may_leave: MayLeave) -> RawReply | TransportFault:
        process = self._process
        if process.dead:
            raise asyncio.CancelledError
        world, rng = process.world, process.world.rng
        behaviour = BEHAVIOURS[rng.choice(world.mood)]
        world.judge.look_at_request(process, request)
        self.in_flight += 1
        world.judge.look_at_flight(process, self.in_flight)
        try:
            if rng.random() < 0.5:
                await asyncio.sleep(rng.random() * 0.2)
            if world.sleeps.random() < CHANCE_OF_SLEEP:
                await asyncio.sleep(world.sleeps.choice((DEPARTS_WITHIN_S, LONGEST_SLEEP_S)))
            if behaviour.said is not Said.NOT_SENT and not may_leave():
                behaviour = TOO_LATE
            if behaviour.said is not Said.NOT_SENT:
                world.clock_is_unknown = world.clock_is_unknown or world.skew < timedelta()
                world.judge.first_byte(process, request, behaviour)
                self._take(request, behaviour)
            await asyncio.sleep(rng.random() * 0.2 if behaviour.after_s is None else behaviour.after_s)
            world.judge.answered(process, request)
            return world.dated(behaviour.answer(request))
        finally:
            self.in_flight -= 1

    def _take(self, request: PreparedRequest, behaviour: Behaviour) -> None:
        """Execute the order, now or (where the sender hears nothing of it) much later; or never."""
        world = self._process.world
        if behaviour.said is Said.NO and not behaviour.lies:
            self._notify(request, "declined")
        if world.rng.random() >= behaviour.executes:
            return
        late = behaviour.said is Said.NOTHING and world.rng.random() < 0.5
        delay_s = world.rng.random() * LATEST_COMMIT_S if late else 0.0
        world.later(delay_s, lambda: world.judge.executed(request, world.clock.now_s))
        if not behaviour.lies:
            self._notify(request, "approved", delay_s)

    def _notify(self, request: PreparedRequest, word: str, after_s: float = 0.0) -> None:
        """Tell of an order some time after it was decided, or not; sometimes twice."""
        world, expected = self._process.world, request.expected
        if world.rng.random() >= CHANCE_OF_A_NOTIFICATION:
            return
        for _ in range(world.rng.choice((1, 1, 2))):
            world.later(
                after_s + world.rng.random() * world.rng.choice(LATEST_NOTIFICATION_S),
                lambda: world.inbox.hear(expected.order_id, str(expected.amount), word),
            )
