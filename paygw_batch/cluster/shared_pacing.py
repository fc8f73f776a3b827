"""Paces a run when several processes send to the same endpoint, each with an equal share of the limits."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.engine.pacing import LocalPacing, Pace, stop_message
from paygw_batch.errors import JournalError, PaygwError
from paygw_batch.journal import CountedKind, CountedOutcomes, Gate, GateReport, GateShare
from paygw_batch.language import say

MAX_CALL_INTERVAL_S = 0.2
"""The maximum interval between calls to the gate, which shares limits and outcomes among processes."""
MIN_CALL_INTERVAL_S = 0.005
JOIN_DELAY_S = 0.5
"""How long a new process waits for others to notice it. Otherwise they would together exceed the limits."""
STALE_AFTER_S = 10.0
"""After this time without an answer from the gate, no more rows start."""
STOP_AFTER_S = 60.0
"""After this time without an answer from the gate, the run stops."""


class SharedPacing(LocalPacing):
    """Paces a run within its share of the limits. Outcomes in any process may stop it.

    The gate is called in a separate thread, one call at a time, so that it does not block the event loop.
    """

    def __init__(self, gate: Gate, pace: Pace) -> None:
        super().__init__(pace)
        self._gate, self._pace = gate, pace
        self._window.limit = 0  # until the gate has answered
        self._outcomes: list[CountedOutcomes] = []
        self._unreported_pause_s = 0.0
        """When a pause requested by the gateway ends, until that is reported to the gate."""
        self._reason = ""
        self._last_answer_s = 0.0
        self._first_answer_s: float | None = None
        self._woken = asyncio.Event()
        self._gate_task: asyncio.Task[None] | None = None
        self._has_ended = False
        self._on_change: Callable[[], None]
        self._stop_run: Callable[[str], None]

    def begin(self, on_change: Callable[[], None], stop: Callable[[str], None]) -> None:
        self._on_change, self._stop_run = on_change, stop
        self._last_answer_s = asyncio.get_running_loop().time()
        self._gate_task = asyncio.create_task(self._call_gate_until_end())

    async def end(self) -> None:
        """Report the last outcomes to the gate, which releases this run's share of the limits."""
        if self._gate_task is not None:
            self._woken.set()
            self._has_ended = True
            with suppress(asyncio.CancelledError):
                await self._gate_task

    def observe(self, outcome: Outcome) -> str | None:
        """Count the outcome of an attempt, and queue it for the next report to the gate."""
        counted = _counted_outcome(outcome)
        if counted is not None:
            last = self._outcomes[-1] if self._outcomes else None
            if last is not None and last[:2] == counted[:2]:
                self._outcomes[-1] = last._replace(times=last.times + 1)
            else:
                self._outcomes.append(counted)
            if counted.kind is not CountedKind.ANSWERED:
                self._woken.set()
        reason = super().observe(outcome)
        if reason is not None:
            self.stop_all_workers(reason)
        return reason

    def pause(self, now_s: float, pause_s: float) -> None:
        """Pause this run and report the pause to the gate, which pauses every process."""
        super().pause(now_s, pause_s)
        self._unreported_pause_s = max(self._unreported_pause_s, now_s + pause_s)
        self._woken.set()

    def stop_all_workers(self, reason: str) -> None:
        """Stop every process that sends to the endpoint."""
        self._reason = self._reason or reason
        self._woken.set()

    async def _call_gate_until_end(self) -> None:
        thread = ThreadPoolExecutor(1, thread_name_prefix="gate")
        try:
            while True:
                self._woken.clear()
                has_ended = self._has_ended
                await self._call_gate(thread)
                if has_ended:
                    break
                await asyncio.sleep(MIN_CALL_INTERVAL_S)
                with suppress(TimeoutError):
                    async with asyncio.timeout(MAX_CALL_INTERVAL_S):
                        await self._woken.wait()
        except Exception as error:
            self._window.limit = 0
            self._stop_run(_unreadable_limits_message(type(error).__name__))
            raise
        finally:
            await asyncio.get_running_loop().run_in_executor(thread, self._gate.close)
            thread.shutdown()

    async def _call_gate(self, thread: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        # A pause is reported only once. Otherwise each report would extend it by the duration of the call.
        pause_end_s, self._unreported_pause_s = self._unreported_pause_s, 0.0
        outcomes, self._outcomes = self._outcomes, []
        pace, pause_s = self._pace, max(0.0, pause_end_s - loop.time())
        report = GateReport(pace.stop_after_in_doubt, pace.stop_after_rejected, pause_s, self._reason, tuple(outcomes))
        try:
            share = await loop.run_in_executor(thread, self._gate.request_share, report)
        except JournalError as error:
            self._outcomes[:0] = outcomes
            self._unreported_pause_s = max(pause_end_s, self._unreported_pause_s)
            self._handle_missing_answer(loop.time(), error)
            return
        self._last_answer_s = loop.time()
        self._apply_share(share, self._last_answer_s)
        if share.stop is not None:  # intents may be refused even before the first call
            self._stop_run(stop_message(share.stop))
        if not self._has_ended:
            self._on_change()

    def _apply_share(self, share: GateShare, now_s: float) -> None:
        concurrency = self._pace.concurrency if share.concurrency is None else share.concurrency
        rate_per_s = self._pace.rate_per_s if share.rate_per_s is None else share.rate_per_s
        if self._first_answer_s is None:
            self._first_answer_s = now_s
        if share.senders > 1 and now_s - self._first_answer_s < JOIN_DELAY_S:
            return
        # The first processes share the remainder.
        self._window.limit = concurrency // share.senders + (share.before < concurrency % share.senders)
        self._rate_limiter.rate_per_s = rate_per_s / share.senders
        super().pause(now_s, share.rest_s)

    def _handle_missing_answer(self, now_s: float, error: PaygwError) -> None:
        if now_s - self._last_answer_s > STALE_AFTER_S:
            self._window.limit = 0
        if now_s - self._last_answer_s > STOP_AFTER_S and not self._has_ended:
            self._stop_run(_unreadable_limits_message(error.message.removesuffix(".")))


def _unreadable_limits_message(reason: str) -> str:
    return say("The limits shared by all workers cannot be read ({reason}).", reason=reason)


def _counted_outcome(outcome: Outcome) -> CountedOutcomes | None:
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
