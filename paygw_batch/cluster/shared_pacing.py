"""Paces a run together with the endpoint's other processes, which have equal shares of the limits."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.engine.pacing import LocalPacing, Pace, stop_sentence
from paygw_batch.errors import JournalError, PaygwError
from paygw_batch.journal import CountedKind, CountedOutcomes, Gate, GateReport, GateShare
from paygw_batch.language import say

MAX_ASK_INTERVAL_S = 0.2
"""The maximum interval between two calls to the gate, by which a process learns about the others."""
MIN_ASK_INTERVAL_S = 0.005
SETTLING_S = 0.5
"""The wait of a joining process until the others know about it. Without it, all would exceed the limits."""
STALE_S = 10.0
"""The time without an answer from the gate after which no row starts."""
GIVE_UP_S = 60.0
"""The time without an answer from the gate after which the run stops."""


class SharedPacing(LocalPacing):
    """Paces a run within its share of the limits and stops it if the outcomes of all processes call for it.

    The gate is called from a thread, one call at a time, never from the event loop.
    """

    def __init__(self, gate: Gate, pace: Pace) -> None:
        super().__init__(pace)
        self._gate, self._pace = gate, pace
        self._window.limit = 0  # until the gate has answered
        self._outcomes: list[CountedOutcomes] = []
        self._unreported_rest_s = 0.0
        """The end of a pause that the gateway asked for and that the gate does not know about yet."""
        self._stop = ""
        self._answered_s = 0.0
        self._first_answer_s: float | None = None
        self._wake = asyncio.Event()
        self._ask_task: asyncio.Task[None] | None = None
        self._has_ended = False
        self._changed: Callable[[], None]
        self._stop_run: Callable[[str], None]

    def begin(self, on_change: Callable[[], None], stop: Callable[[str], None]) -> None:
        self._changed, self._stop_run = on_change, stop
        self._answered_s = asyncio.get_running_loop().time()
        self._ask_task = asyncio.create_task(self._ask_until_end())

    async def end(self) -> None:
        """Report the last outcomes and give up this run's share of the limits."""
        if self._ask_task is not None:
            self._wake.set()
            self._has_ended = True
            with suppress(asyncio.CancelledError):
                await self._ask_task

    def observe(self, outcome: Outcome) -> str | None:
        """Count the outcome for this run and for the gate."""
        gate_outcome = _to_gate_outcome(outcome)
        if gate_outcome is not None:
            last = self._outcomes[-1] if self._outcomes else None
            if last is not None and last[:2] == gate_outcome[:2]:
                self._outcomes[-1] = last._replace(times=last.times + 1)
            else:
                self._outcomes.append(gate_outcome)
            if gate_outcome.kind is not CountedKind.ANSWERED:
                self._wake.set()
        reason = super().observe(outcome)
        if reason is not None:
            self.stop_all_workers(reason)
        return reason

    def pause(self, now_s: float, pause_s: float) -> None:
        """Pause this run and report the pause to the gate, which pauses every process."""
        super().pause(now_s, pause_s)
        self._unreported_rest_s = max(self._unreported_rest_s, now_s + pause_s)
        self._wake.set()

    def stop_all_workers(self, reason: str) -> None:
        """Stop every process of the endpoint."""
        self._stop = self._stop or reason
        self._wake.set()

    async def _ask_until_end(self) -> None:
        """Call the gate until the run ends. The last call reports the remaining outcomes."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="gate")
        try:
            while True:
                self._wake.clear()
                has_ended = self._has_ended
                await self._ask(thread)
                if has_ended:
                    break
                await asyncio.sleep(MIN_ASK_INTERVAL_S)
                with suppress(TimeoutError):
                    async with asyncio.timeout(MAX_ASK_INTERVAL_S):
                        await self._wake.wait()
        except Exception as error:
            self._window.limit = 0
            self._stop_run(_unreadable_limits(type(error).__name__))
            raise
        finally:
            await asyncio.get_running_loop().run_in_executor(thread, self._gate.close)
            thread.shutdown()

    async def _ask(self, thread: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        # A pause is reported once. If every call repeated it, it would grow by the duration of each call.
        reported_rest_s, self._unreported_rest_s = self._unreported_rest_s, 0.0
        outcomes, self._outcomes = self._outcomes, []
        pace, rest_s = self._pace, max(0.0, reported_rest_s - loop.time())
        report = GateReport(pace.stop_after_in_doubt, pace.stop_after_rejected, rest_s, self._stop, tuple(outcomes))
        try:
            share = await loop.run_in_executor(thread, self._gate.ask, report)
        except JournalError as error:
            self._outcomes[:0] = outcomes
            self._unreported_rest_s = max(reported_rest_s, self._unreported_rest_s)
            self._handle_missing_answer(loop.time(), error)
            return
        self._answered_s = loop.time()
        self._apply(share, self._answered_s)
        if share.stop is not None:  # the gate may have refused intents before the first call
            self._stop_run(stop_sentence(share.stop))
        if not self._has_ended:
            self._changed()

    def _apply(self, share: GateShare, now_s: float) -> None:
        concurrency = self._pace.concurrency if share.concurrency is None else share.concurrency
        rate_per_s = self._pace.rate_per_s if share.rate_per_s is None else share.rate_per_s
        if self._first_answer_s is None:
            self._first_answer_s = now_s
        if share.senders > 1 and now_s - self._first_answer_s < SETTLING_S:
            return
        # The remainder of the division goes to the first processes.
        self._window.limit = concurrency // share.senders + (share.before < concurrency % share.senders)
        self._rate_limiter.rate_per_s = rate_per_s / share.senders
        super().pause(now_s, share.rest_s)

    def _handle_missing_answer(self, now_s: float, error: PaygwError) -> None:
        """Start no rows under outdated limits and stop the run if no new limits arrive."""
        if now_s - self._answered_s > STALE_S:
            self._window.limit = 0
        if now_s - self._answered_s > GIVE_UP_S and not self._has_ended:
            self._stop_run(_unreadable_limits(error.message.removesuffix(".")))


def _unreadable_limits(reason: str) -> str:
    return say("The limits shared by all workers cannot be read ({reason}).", reason=reason)


def _to_gate_outcome(outcome: Outcome) -> CountedOutcomes | None:
    """Convert an outcome for the gate. Returns None if nothing was sent."""
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
