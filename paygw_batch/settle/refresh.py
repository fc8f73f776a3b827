"""Asks the gateway, at a limited rate, for the state of rows that are accepted or in doubt.

Answers are evidence like notifications, and the same rules apply to them. An invalid answer changes nothing, and the
gateway is asked again.

This module also asks about orders for which an unproven notification arrived. The answers are stored in the journal
like notifications, because a run may have locked the journal. That run then processes them.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from paygw_batch.clock import Now, timestamp
from paygw_batch.core.evidence import (
    Candidate,
    Claim,
    Deferral,
    Evidence,
    EvidenceSource,
    Finding,
    StatedTimes,
    TimeInterval,
    assess_claim,
)
from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import from_minor
from paygw_batch.core.outcome import OutcomeKind, PauseRun, StopRun
from paygw_batch.engine.pacing import RateLimiter
from paygw_batch.errors import PaygwError
from paygw_batch.gateway.enquiry import EnquiryAnswer
from paygw_batch.gateway.message import ExpectedReply
from paygw_batch.journal import BatchRecord, Journal, Notification, RowState, canonical, encode_notification
from paygw_batch.language import say

EARLY_INTERVAL_S = 5.0
EARLY_PERIOD_S = 300.0
LATE_INTERVAL_S = 60.0
SILENT_ROUNDS = 3
"""The number of consecutive rounds without a reply after which a refresh gives up."""
RETRY_AFTER_S = 5.0
"""The delay before asking again after a missing or inconclusive answer."""
MAX_ENQUIRIES = 6
"""The maximum number of enquiries for one notification."""
MAX_WAITING = 10_000
"""The maximum number of orders waiting for an enquiry. A person must handle any others."""
REFUSAL_PAUSE_S = 60.0
"""How long all enquiries pause after the gateway refuses one."""
_FINDINGS_TO_CHECK = frozenset({Finding.TO_CONFIRM, Finding.AMBIGUOUS, Finding.UNMATCHED})
_EARLIEST_TIME = "0001-01-01T00:00:00.000Z"
OPEN_STATES = frozenset({State.ACCEPTED, State.IN_DOUBT})

Enquire = Callable[[ExpectedReply, str | None], Awaitable[EnquiryAnswer]]
"""A function that asks about an order, at the endpoint with this id if known. It raises no network errors."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The clocks that a refresh uses: a monotonic one, a sleep function and the wall clock."""

    monotonic_s: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]
    now: Now


@dataclass(frozen=True, slots=True)
class EnquiryLimits:
    """The limits on enquiries. `limit_s` is the total time."""

    concurrency: int
    rate_per_s: float
    limit_s: float


@dataclass(slots=True)
class RefreshResult:
    """The result of a refresh. `asked` counts the enquiries, and `findings` the effects of their answers."""

    asked: int = 0
    findings: Counter[Finding] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    """Why answers could not be used, and how often."""
    stop_reason: str | None = None
    interrupted: bool = False


class _LimitedEnquirer(ABC):
    """Asks the gateway within limits. `words` maps status words to outcomes, as in `[outcomes]`."""

    def __init__(self, enquire: Enquire, words: Mapping[str, OutcomeKind], limits: EnquiryLimits, clock: Clock) -> None:
        self._enquire, self._words, self._limits, self._clock = enquire, words, limits, clock
        self._rate_limiter = RateLimiter(limits.rate_per_s)

    def _reserve_turn(self) -> float:
        """Reserve the next time for an enquiry, and return the seconds until then."""
        wait_s = self._rate_limiter.wait_s(self._clock.monotonic_s())
        self._rate_limiter.start(self._clock.monotonic_s())
        return wait_s

    def _apply_advice(self, answer: EnquiryAnswer) -> None:
        match answer.advice:
            case StopRun(reason):
                self._stop(reason)
            case PauseRun(pause_s):
                self._rate_limiter.pause(self._clock.monotonic_s(), pause_s)
            case _:
                pass

    @abstractmethod
    def _stop(self, reason: str) -> None:
        """Stop the enquiries, permanently or for a while."""


class Refresh(_LimitedEnquirer):
    """Asks about the rows of one batch, in rounds. Can be run only once."""

    def __init__(
        self,
        journal: Journal,
        batch: BatchRecord,
        enquire: Enquire,
        *,
        words: Mapping[str, OutcomeKind],
        minor_units: Mapping[str, int],
        limits: EnquiryLimits,
        clock: Clock,
        record_arrivals: Callable[[], None],
    ) -> None:
        super().__init__(enquire, words, limits, clock)
        self.result = RefreshResult()
        self._journal, self._batch, self._minor_units = journal, batch, minor_units
        self._record_arrivals = record_arrivals
        self._not_found: set[str] = set()
        self._silent_rounds = 0
        self._stopping = asyncio.Event()

    def drain(self) -> None:
        """Start no new enquiry, and let those in progress finish."""
        self.result.interrupted = True
        self._stopping.set()

    async def run(self) -> RefreshResult:
        """Ask until every row has a final state, the time is up or the refresh is stopped."""
        started_s = self._clock.monotonic_s()
        while rows := self._open_rows():
            await self._ask_about_all(rows)
            self._record_arrivals()
            elapsed_s = self._clock.monotonic_s() - started_s
            wait_s = EARLY_INTERVAL_S if elapsed_s < EARLY_PERIOD_S else LATE_INTERVAL_S
            if self._stopping.is_set() or not self._open_rows():
                break
            if elapsed_s + wait_s > self._limits.limit_s:
                self.result.stop_reason = say("the time limit was reached. Run the same command again to continue.")
                break
            await self._wait(wait_s)
        return self.result

    def _open_rows(self) -> list[RowState]:
        if self._stopping.is_set():
            return []
        return list(self._journal.rows(self._batch.number, states=OPEN_STATES))

    async def _ask_about_all(self, rows: Sequence[RowState]) -> None:
        """Ask about each row once, in concurrent groups, and record new answers."""
        reply_count = 0
        group_size = self._limits.concurrency
        for start in range(0, len(rows), group_size):
            if self._stopping.is_set():
                return
            group = rows[start : start + group_size]
            answers = await asyncio.gather(*map(self._ask_about_row, group))
            answers_by_row = [(row, answer) for row, answer in zip(group, answers, strict=True) if answer is not None]
            reply_count += sum(answer.has_replied for _, answer in answers_by_row)
            self._record_answers(answers_by_row)
            for _, answer in answers_by_row:
                self._apply_advice(answer)
        self._silent_rounds = 0 if reply_count else self._silent_rounds + 1
        if self._silent_rounds >= SILENT_ROUNDS:
            self._stop(say("the gateway does not answer enquiries."))

    async def _ask_about_row(self, row: RowState) -> EnquiryAnswer | None:
        await self._wait(self._reserve_turn())
        if self._stopping.is_set():
            return None
        self.result.asked += 1
        amount = Decimal(from_minor(row.minor, minor_units=self._minor_units[row.currency]))
        expected_reply = ExpectedReply(row.sent_orderid or row.client_orderid, amount, row.currency)
        return await self._enquire(expected_reply, row.endpoint_id)

    def _record_answers(self, answers: Sequence[tuple[RowState, EnquiryAnswer]]) -> None:
        now = timestamp(self._clock.now())
        evidence = []
        for row, answer in answers:
            if (claim := answer.claim) is None:
                self.result.causes[answer.cause] += 1
                continue
            order_id = claim.order_id or ""
            outcome = self._words.get(claim.status or "")
            is_unchanged = order_id in self._not_found if claim.is_not_found else outcome and outcome.value == row.state
            if is_unchanged:
                continue
            if claim.is_not_found:
                self._not_found.add(order_id)
            content = {"asked_at": now, "order_id": order_id, "status": claim.status, "reference": claim.reference}
            evidence.append(Evidence(EvidenceSource.ENQUIRY, claim, canonical(content)))
        if evidence:
            self.result.findings.update(self._journal.record_evidence(evidence, self._words, at=now))

    def _stop(self, reason: str) -> None:
        self.result.stop_reason = reason
        self._stopping.set()

    async def _wait(self, wait_s: float) -> None:
        if wait_s <= 0:
            return
        sleep = asyncio.ensure_future(self._clock.sleep(wait_s))
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({sleep, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in (sleep, stopping):
            task.cancel()


def instructions_to_ask_about(
    claim: Claim, candidates: Sequence[Candidate], words: Mapping[str, OutcomeKind]
) -> Sequence[Candidate] | Deferral:
    """Return the instructions to ask about after an unproven claim, or a `Deferral` if one of them is in flight.

    These are the instructions whose state is not final, or would change or be contradicted if the claim were true.
    """
    ruling = assess_claim(claim, candidates, words)
    if isinstance(ruling, Deferral):
        return ruling
    if ruling.finding in _FINDINGS_TO_CHECK:
        return candidates
    if ruling.finding in {Finding.FORGED, Finding.UNLISTED}:
        return [candidate for candidate in candidates if candidate.standing.state in OPEN_STATES]
    return []


@dataclass(frozen=True, slots=True)
class _QueuedClaim:
    claim: Claim
    enquiries: int = 0


class FollowUp(_LimitedEnquirer):
    """Asks about orders while the listener runs, and stores the answers durably."""

    def __init__(
        self,
        find_instructions: Callable[[str], Sequence[Candidate]],
        enquire: Enquire,
        store: Callable[[str], Awaitable[None]],
        *,
        words: Mapping[str, OutcomeKind],
        limits: EnquiryLimits,
        clock: Clock,
        echo: Callable[[str], None],
    ) -> None:
        super().__init__(enquire, words, limits, clock)
        self._find_instructions, self._store, self._echo, self._last_message = find_instructions, store, echo, ""
        self._queue: asyncio.Queue[_QueuedClaim] = asyncio.Queue()
        self._waiting: set[str] = set()

    def queue_claim(self, claim: Claim) -> None:
        """Queue an unproven claim, unless its order is already queued."""
        self._queue_if_new(_QueuedClaim(claim))

    async def run(self, claims: Iterable[Claim] = ()) -> None:
        """Ask about queued claims until cancelled, starting with `claims`."""
        for claim in claims:
            self.queue_claim(claim)
        async with asyncio.TaskGroup() as group:
            for _ in range(self._limits.concurrency):
                group.create_task(self._process_queue(group))

    def _queue_if_new(self, queued: _QueuedClaim) -> None:
        order_id = queued.claim.order_id
        if order_id is None or order_id in self._waiting:
            return
        if len(self._waiting) >= MAX_WAITING:
            message = say(
                "Too many unverified notifications are waiting, so not all of them will be checked with the gateway."
            )
            self._echo_if_new(message)
            return
        self._waiting.add(order_id)
        self._queue.put_nowait(queued)

    async def _process_queue(self, group: asyncio.TaskGroup) -> None:
        while True:
            queued = await self._queue.get()
            self._waiting.discard(queued.claim.order_id or "")
            next_claim: _QueuedClaim | None = replace(queued, enquiries=queued.enquiries + 1)
            try:
                next_claim = await self._follow_claim(queued)
            except Exception as error:  # noqa: BLE001 (one order must not stop enquiries about others)
                reason = (
                    error.message
                    if isinstance(error, PaygwError)
                    else say("unexpected error ({kind}).", kind=type(error).__name__)
                )
                self._echo_if_new(
                    say("The gateway cannot be asked about an unverified notification: {why}", why=reason)
                )
            if next_claim is not None and next_claim.enquiries < MAX_ENQUIRIES:
                group.create_task(self._queue_later(next_claim))

    async def _queue_later(self, queued: _QueuedClaim) -> None:
        await self._clock.sleep(RETRY_AFTER_S)
        self._queue_if_new(queued)

    async def _follow_claim(self, queued: _QueuedClaim) -> _QueuedClaim | None:
        """Ask about a claim's order. Returns the claim if it must be asked about again."""
        order_id = queued.claim.order_id or ""
        instructions = await asyncio.to_thread(self._find_instructions, order_id)
        candidates = instructions_to_ask_about(queued.claim, instructions, self._words)
        if isinstance(candidates, Deferral):
            return queued
        all_stored = True
        for candidate in candidates:
            all_stored &= await self._ask_and_store(candidate, order_id)
        return None if all_stored else replace(queued, enquiries=queued.enquiries + 1)

    async def _ask_and_store(self, candidate: Candidate, order_id: str) -> bool:
        """Ask about one instruction. Returns whether an answer that changes something was stored."""
        await self._clock.sleep(self._reserve_turn())
        now = timestamp(self._clock.now())
        expected = ExpectedReply(order_id, Decimal(candidate.amount), candidate.currency)
        answer = await self._enquire(expected, candidate.endpoint_id)
        self._apply_advice(answer)
        if (claim := answer.claim) is None:
            return False
        outcome = self._words.get(claim.status or "")
        if outcome is not None and outcome.value == candidate.standing.state.value:
            return False
        # The answer is dated before the enquiry, so it says nothing about an attempt that was sent later.
        dated = replace(claim, times=StatedTimes(true_at=(TimeInterval(_EARLIEST_TIME, now),)))
        # The answer is stored as a notification, although the gateway did not send one.
        entry = Notification(now, "", "", "", b"", length=0, problem="", claim=dated, source=EvidenceSource.ENQUIRY)
        await self._store(encode_notification(entry))
        return True

    def _stop(self, reason: str) -> None:
        self._echo_if_new(say("The gateway refuses enquiries: {reason}", reason=reason))
        self._rate_limiter.pause(self._clock.monotonic_s(), REFUSAL_PAUSE_S)

    def _echo_if_new(self, message: str) -> None:
        if message != self._last_message:
            self._last_message = message
            self._echo(message)
