"""Paces a run together with all other workers of its endpoint: a gate divides the limits among them."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from math import ceil

from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.engine.pacing import (
    GrantedStarts,
    LocalPacing,
    Pace,
    doubt_sentence,
    rejection_sentence,
)
from paygw_batch.engine.ports import Demand
from paygw_batch.errors import JournalError, PaygwError
from paygw_batch.journal import CountedKind, CountedOutcomes, Gate, GateGrant, GateReport, GateStop, GateStopKind
from paygw_batch.language import say

MAX_ASK_INTERVAL_S = 0.2
"""The longest time between two calls to the gate: a worker learns about the others within it."""
MIN_ASK_INTERVAL_S = 0.005
AHEAD_S = 0.1
"""How far ahead starts are requested: a worker asks at least twenty times a second."""
STALE_S = 10.0
"""Without an answer from the gate for this long, no row starts."""
GIVE_UP_S = 60.0
"""Without an answer from the gate for this long, the run stops."""


@dataclass(frozen=True, slots=True)
class _EngineCalls:
    """The callbacks that an engine gives its pacing at the start of a run."""

    demand: Callable[[], Demand]
    changed: Callable[[], None]
    stop: Callable[[str], None]


class SharedPacing:
    """Implements `Pacing` by the grants of a gate.

    A worker also observes its own limits, as if it were alone: it begins with one row in flight, and its own outcomes
    stop it. The gate is asked in a thread, one call at a time, and never in the event loop.
    """

    def __init__(self, gate: Gate, pace: Pace) -> None:
        self._gate, self._pace = gate, pace
        # The gate alone applies the rate: with a rate of its own, each worker would start as many rows as all may.
        self._own = LocalPacing(
            Pace(
                pace.concurrency,
                stop_after_in_doubt=pace.stop_after_in_doubt,
                stop_after_rejected=pace.stop_after_rejected,
            )
        )
        self._places = 0
        self._is_growing = True
        self._starts = GrantedStarts()
        self._every_s: float | None = None
        """None until the gate has said whether there is a rate."""
        self._outcomes: list[CountedOutcomes] = []
        self._rest_until_s = 0.0
        self._rest_to_tell_s = 0.0
        """The end of a pause that the gateway asked of this worker, until the gate knows about it."""
        self._stop = ""
        self._answered_s = 0.0
        self._wake = asyncio.Event()
        self._asking: asyncio.Task[None] | None = None
        self._told: _EngineCalls | None = None

    def begin(self, demand: Callable[[], Demand], changed: Callable[[], None], stop: Callable[[str], None]) -> None:
        """Begin to ask the gate, until the run ends."""
        self._told = _EngineCalls(demand, changed, stop)
        self._answered_s = asyncio.get_running_loop().time()
        self._asking = asyncio.create_task(self._ask_on(self._told))

    async def end(self) -> None:
        """Report the last outcomes, and return all slots."""
        if self._asking is not None:
            self._wake.set()
            self._told = None
            with suppress(asyncio.CancelledError):
                await self._asking

    def has_place(self, in_flight: int) -> bool:
        """Whether one more row may be in flight beside `in_flight`."""
        has_place = in_flight < self._places and self._own.has_place(in_flight)
        if not has_place and self._is_growing:
            self._wake.set()  # otherwise others have the slots, and the next regular answer shows when they are free
        return has_place

    def wait_s(self, now_s: float) -> float:
        """Return how long to wait before the next start; infinity: until the gate has answered."""
        wait_s = max(self._own.wait_s(now_s), self._rest_until_s - now_s)
        if self._every_s == 0:
            return wait_s
        granted_s = self._starts.wait_s(now_s)
        if self._starts.unused(now_s) * 2 <= self._starts_ahead():
            self._wake.set()
        return max(wait_s, granted_s)

    def start(self, now_s: float) -> None:
        """Use a start."""
        self._own.start(now_s)
        if self._every_s != 0:
            self._starts.start()

    def learn(self, outcome: Outcome) -> str | None:
        """Note the outcome of an attempt, for the gate too; return why the run must stop, or None."""
        counted = _counted(outcome)
        if counted is not None:
            last = self._outcomes[-1] if self._outcomes else None
            if last is not None and last[:2] == counted[:2]:
                self._outcomes[-1] = last._replace(times=last.times + 1)
            else:
                self._outcomes.append(counted)
            if counted.kind is not CountedKind.ANSWERED:
                self._wake.set()
        reason = self._own.learn(outcome)
        if reason is not None:
            self.stopped(reason)
        return reason

    def pause(self, now_s: float, pause_s: float) -> None:
        """Record that the gateway asked for a pause; the gate passes it on to every worker."""
        self._own.pause(now_s, pause_s)
        self._rest_until_s = self._rest_to_tell_s = max(self._rest_until_s, now_s + pause_s)
        self._wake.set()

    def stopped(self, reason: str) -> None:
        """Stop every worker."""
        self._stop = self._stop or reason
        self._wake.set()

    async def _ask_on(self, told: _EngineCalls) -> None:
        """Call the gate until the run ends; the last call requests nothing."""
        loop = asyncio.get_running_loop()
        thread = ThreadPoolExecutor(1, thread_name_prefix="gate")
        try:
            while True:
                self._wake.clear()
                has_ended = self._told is None
                await self._ask(told, loop, thread)
                if has_ended:
                    break
                await asyncio.sleep(MIN_ASK_INTERVAL_S)
                with suppress(TimeoutError):
                    async with asyncio.timeout(MAX_ASK_INTERVAL_S):
                        await self._wake.wait()
        except Exception as error:
            self._places = 0
            told.stop(_unreadable(type(error).__name__))
            raise
        finally:
            await loop.run_in_executor(thread, self._gate.close)
            thread.shutdown()

    async def _ask(self, told: _EngineCalls, loop: asyncio.AbstractEventLoop, thread: ThreadPoolExecutor) -> None:
        asked_s = loop.time()
        report = self._report(told.demand(), asked_s)
        sent, self._outcomes = self._outcomes, []
        # Report a pause once: repeated with every call, it would grow by the duration of the call.
        rest_told_s, self._rest_to_tell_s = self._rest_to_tell_s, 0.0
        try:
            grant = await loop.run_in_executor(thread, self._gate.ask, report)
        except JournalError as error:
            self._outcomes[:0] = sent
            self._rest_to_tell_s = max(rest_told_s, self._rest_to_tell_s)
            self._not_answered(told, loop.time(), error)
            return
        now_s = loop.time()
        self._answered_s = now_s
        self._apply(grant, asked_s, now_s)
        if grant.stop is not None:  # also at the end: intents may have been refused before the first call
            told.stop(stop_sentence(grant.stop))
        if self._told is not None:
            told.changed()

    def _report(self, demand: Demand, now_s: float) -> GateReport:
        pace = self._pace
        most = pace.concurrency if demand.has_more else min(pace.concurrency, demand.in_flight + demand.ready)
        has_ended = self._told is None
        starts = min(demand.ready, self._starts_ahead()) - self._starts.unused(now_s)
        return GateReport(
            0 if has_ended else most,
            # Until the answer arrives, rows may use slots that were granted earlier.
            0 if has_ended else max(demand.in_flight, self._places),
            max(0, starts),
            pace.rate_per_s,
            pace.concurrency,
            pace.stop_after_in_doubt,
            pace.stop_after_rejected,
            max(0.0, self._rest_to_tell_s - now_s),
            self._stop,
            tuple(self._outcomes),
        )

    def _apply(self, grant: GateGrant, asked_s: float, now_s: float) -> None:
        self._places, self._is_growing = grant.places, grant.is_growing
        self._every_s = grant.every_s
        self._rest_until_s = max(self._rest_until_s, now_s + grant.rest_s if grant.rest_s > 0 else 0.0)
        self._starts.add(asked_s, now_s, first_s=grant.first_s, every_s=grant.every_s, starts=grant.starts)

    def _starts_ahead(self) -> int:
        """Return the maximum number of starts to have in hand."""
        every_s = (
            self._every_s if self._every_s is not None else 1 / self._pace.rate_per_s if self._pace.rate_per_s else 0
        )
        return ceil(AHEAD_S / every_s) if every_s else 1

    def _not_answered(self, told: _EngineCalls, now_s: float, error: PaygwError) -> None:
        """Start no row under outdated limits, and stop the run if no new ones arrive."""
        if now_s - self._answered_s > STALE_S:
            self._places = 0
        if now_s - self._answered_s > GIVE_UP_S and self._told is not None:
            told.stop(_unreadable(error.message.removesuffix(".")))


def _unreadable(reason: str) -> str:
    return say("The limits over all workers cannot be read ({reason}).", reason=reason)


def stop_sentence(stop: GateStop) -> str:
    """Return a sentence that says why no worker may send."""
    match stop.kind:
        case GateStopKind.IN_DOUBT:
            return doubt_sentence(stop.count)
        case GateStopKind.REJECTED:
            return rejection_sentence(stop.count, stop.text)
        case GateStopKind.REQUESTED:
            return stop.text


def _counted(outcome: Outcome) -> CountedOutcomes | None:
    """Return the outcome in the gate's terms; None if nothing left."""
    match outcome.kind:
        case OutcomeKind.ACCEPTED | OutcomeKind.PAID:
            return CountedOutcomes(CountedKind.ANSWERED, "", 1)
        case OutcomeKind.REJECTED:
            reason = outcome.error_code or outcome.message or outcome.gateway_status
            return CountedOutcomes(CountedKind.REJECTED, reason or "", 1)
        case OutcomeKind.UNKNOWN:
            return CountedOutcomes(CountedKind.UNKNOWN, "", 1)
        case OutcomeKind.NOT_SENT:
            return None
