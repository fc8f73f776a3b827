"""Asks the gateway, at a limited rate, for the state of rows that are accepted or in doubt.

An answer is evidence like a notification, and is judged by the same rules. An unsound answer changes nothing, and the
gateway is asked again.

An unproven notification also makes this module ask about its order. The notification moves no row by itself; the answer
is evidence. The answer waits in the journal like a notification, because a run may hold the journal, and the holder
judges it.
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
    Evidence,
    EvidenceSource,
    Finding,
    Span,
    StatedTimes,
    Waits,
    rule,
)
from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import from_minor
from paygw_batch.core.outcome import OutcomeKind, PauseRun, StopRun
from paygw_batch.engine.pacing import Rhythm
from paygw_batch.errors import PaygwError
from paygw_batch.gateway.enquiry import EnquiryAnswer
from paygw_batch.gateway.message import Expected
from paygw_batch.journal import BatchRecord, Journal, Notification, RowState, canonical, encode_notification
from paygw_batch.language import say

OFTEN_EVERY_S = 5.0
OFTEN_FOR_S = 300.0
SELDOM_EVERY_S = 60.0
SILENT_ROUNDS = 3
"""The number of rounds in a row without any reply after which the gateway counts as unreachable."""
OPEN_STATES = frozenset({State.ACCEPTED, State.IN_DOUBT})

Ask = Callable[[Expected, str | None], Awaitable[EnquiryAnswer]]
"""A function that asks about one order at the endpoint with this id (None: unknown). No network error is raised."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The clocks of a refresh: a monotonic clock in seconds, a function that waits, and the wall clock."""

    monotonic_s: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]
    now: Now


@dataclass(frozen=True, slots=True)
class Politeness:
    """The limits on enquiries: how many at once, how many a second, and for how many seconds."""

    concurrency: int
    rate_per_s: float
    limit_s: float


@dataclass(slots=True)
class Refreshed:
    """The result of a refresh. `findings` counts the effects of the recorded answers."""

    asked: int = 0
    findings: Counter[Finding] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    """The reasons for answers that could not be used, and how often each occurred."""
    stop_reason: str | None = None
    interrupted: bool = False


class _Enquiries(ABC):
    """Asks the gateway within the limits. `words` has the meanings of status words, from `[outcomes]`."""

    def __init__(self, ask: Ask, words: Mapping[str, OutcomeKind], politeness: Politeness, clock: Clock) -> None:
        self._ask, self._words, self._politeness, self._clock = ask, words, politeness, clock
        self._rhythm = Rhythm(politeness.rate_per_s)

    def _take_turn(self) -> float:
        """Take the next turn to ask, and return the seconds until then."""
        wait_s = self._rhythm.wait_s(self._clock.monotonic_s())
        self._rhythm.start(self._clock.monotonic_s())
        return wait_s

    def _heed(self, answer: EnquiryAnswer) -> None:
        match answer.advice:
            case StopRun(reason):
                self._stop(reason)
            case PauseRun(pause_s):
                self._rhythm.pause(self._clock.monotonic_s(), pause_s)
            case _:
                pass

    @abstractmethod
    def _stop(self, reason: str) -> None:
        """Ask no more questions, or none for a while."""


class Refresh(_Enquiries):
    """Asks about one batch, round by round. An object serves one run; `drain` may be called at any time."""

    def __init__(
        self,
        journal: Journal,
        batch: BatchRecord,
        ask: Ask,
        *,
        words: Mapping[str, OutcomeKind],
        minor_units: Mapping[str, int],
        politeness: Politeness,
        clock: Clock,
        take_in: Callable[[], None],
    ) -> None:
        """Prepare to ask about `batch`. `take_in` records the notifications that wait."""
        super().__init__(ask, words, politeness, clock)
        self.result = Refreshed()
        self._journal, self._batch, self._minor_units, self._take_in = journal, batch, minor_units, take_in
        self._not_found: set[str] = set()
        self._silent_rounds = 0
        self._stopping = asyncio.Event()

    def drain(self) -> None:
        """Start no new enquiry. The run then waits for the enquiries under way."""
        self.result.interrupted = True
        self._stopping.set()

    async def run(self) -> Refreshed:
        """Ask until every row has its final state, the time limit passes, or something stops the refresh."""
        began_s = self._clock.monotonic_s()
        while rows := self._open_rows():
            await self._round(rows)
            self._take_in()
            elapsed_s = self._clock.monotonic_s() - began_s
            wait_s = OFTEN_EVERY_S if elapsed_s < OFTEN_FOR_S else SELDOM_EVERY_S
            if self._stopping.is_set() or not self._open_rows():
                break
            if elapsed_s + wait_s > self._politeness.limit_s:
                self.result.stop_reason = say("time ran out. The same command continues asking.")
                break
            await self._wait(wait_s)
        return self.result

    def _open_rows(self) -> list[RowState]:
        if self._stopping.is_set():
            return []
        return list(self._journal.rows(self._batch.number, states=OPEN_STATES))

    async def _round(self, rows: Sequence[RowState]) -> None:
        """Ask about every row once. Record new answers in groups of a few rows."""
        replied = 0
        at_once = self._politeness.concurrency
        for start in range(0, len(rows), at_once):
            if self._stopping.is_set():
                return
            group = rows[start : start + at_once]
            answers = await asyncio.gather(*map(self._asked, group))
            heard = [(row, answer) for row, answer in zip(group, answers, strict=True) if answer is not None]
            replied += sum(answer.has_replied for _, answer in heard)
            self._keep(heard)
            for _, answer in heard:
                self._heed(answer)
        self._silent_rounds = 0 if replied else self._silent_rounds + 1
        if self._silent_rounds >= SILENT_ROUNDS:
            self._stop(say("the gateway does not answer enquiries."))

    async def _asked(self, row: RowState) -> EnquiryAnswer | None:
        await self._wait(self._take_turn())
        if self._stopping.is_set():
            return None
        self.result.asked += 1
        amount = Decimal(from_minor(row.minor, minor_units=self._minor_units[row.currency]))
        return await self._ask(Expected(row.sent_orderid or row.client_orderid, amount, row.currency), row.endpoint_id)

    def _keep(self, heard: Sequence[tuple[RowState, EnquiryAnswer]]) -> None:
        """Record the answers that say something new."""
        at = timestamp(self._clock.now())
        evidence = []
        for row, answer in heard:
            claim = answer.claim
            if claim is None:
                self.result.causes[answer.cause] += 1
                continue
            order_id = claim.order_id or ""
            meaning = self._words.get(claim.status or "")
            is_known = order_id in self._not_found if claim.is_not_found else meaning and meaning.value == row.state
            if is_known:
                continue
            if claim.is_not_found:
                self._not_found.add(order_id)
            content = {"asked_at": at, "order_id": order_id, "status": claim.status, "reference": claim.reference}
            evidence.append(Evidence(EvidenceSource.ENQUIRY, claim, canonical(content)))
        if evidence:
            self.result.findings.update(self._journal.record_evidence(evidence, self._words, at=at))

    def _stop(self, reason: str) -> None:
        self.result.stop_reason = reason
        self._stopping.set()

    async def _wait(self, wait_s: float) -> None:
        """Wait for `wait_s` seconds, or until `drain` is called."""
        if wait_s <= 0:
            return
        waiting = asyncio.ensure_future(self._clock.sleep(wait_s))
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in (waiting, stopping):
            task.cancel()


AGAIN_AFTER_S = 5.0
"""The seconds before the gateway is asked again, after an answer was missing or inconclusive."""
MAX_ASKED = 6
"""The maximum number of enquiries for one notification."""
MAX_WAITING = 10_000
"""The maximum number of orders that wait for an enquiry. Further orders are left to a person."""
AFTER_REFUSAL_S = 60.0
"""The seconds for which all enquiries pause after the gateway has refused to answer any."""
_ASKED_ABOUT = frozenset({Finding.TO_CONFIRM, Finding.AMBIGUOUS, Finding.UNMATCHED})
_EVER = "0001-01-01T00:00:00.000Z"


def asked_about(
    claim: Claim, candidates: Sequence[Candidate], words: Mapping[str, OutcomeKind]
) -> Sequence[Candidate] | Waits:
    """Return the instructions to ask about because of an unproven claim, or `Waits` while one of them is in flight.

    These are the instructions that the claim, if true, would move or contradict, and those without a final state.
    """
    ruling = rule(claim, candidates, words)
    if isinstance(ruling, Waits):
        return ruling
    if ruling.finding in _ASKED_ABOUT:
        return candidates
    if ruling.finding in {Finding.FORGED, Finding.UNLISTED}:
        return [candidate for candidate in candidates if candidate.standing.state in OPEN_STATES]
    return []


@dataclass(frozen=True, slots=True)
class _Doubt:
    claim: Claim
    asked: int = 0


class FollowUp(_Enquiries):
    """Asks about orders in the background of the listener's event loop, within the limits, and keeps the answers.

    `look` returns the journal's instructions for an order id, and is called in a thread. `keep` makes an answer
    durable.
    """

    def __init__(
        self,
        look: Callable[[str], Sequence[Candidate]],
        ask: Ask,
        keep: Callable[[str], Awaitable[None]],
        *,
        words: Mapping[str, OutcomeKind],
        politeness: Politeness,
        clock: Clock,
        tell: Callable[[str], None],
    ) -> None:
        super().__init__(ask, words, politeness, clock)
        self._look, self._keep, self._tell, self._told = look, keep, tell, ""
        self._queue: asyncio.Queue[_Doubt] = asyncio.Queue()
        self._waiting: set[str] = set()

    def doubt(self, claim: Claim) -> None:
        """Queue an unproven claim, unless its order waits already."""
        self._put(_Doubt(claim))

    async def run(self, doubts: Iterable[Claim] = ()) -> None:
        """Ask until cancelled, first about the earlier `doubts`."""
        for claim in doubts:
            self.doubt(claim)
        async with asyncio.TaskGroup() as group:
            for _ in range(self._politeness.concurrency):
                group.create_task(self._work(group))

    def _put(self, doubt: _Doubt) -> None:
        order_id = doubt.claim.order_id
        if order_id is None or order_id in self._waiting:
            return
        if len(self._waiting) >= MAX_WAITING:
            self._tell_once(say("Too many unproven notifications wait: the gateway is not asked about all of them."))
            return
        self._waiting.add(order_id)
        self._queue.put_nowait(doubt)

    async def _work(self, group: asyncio.TaskGroup) -> None:
        while True:
            doubt = await self._queue.get()
            self._waiting.discard(doubt.claim.order_id or "")
            again: _Doubt | None = replace(doubt, asked=doubt.asked + 1)
            try:
                again = await self._follow(doubt)
            except Exception as error:  # noqa: BLE001 (one order must not end the asking about all others)
                why = (
                    error.message
                    if isinstance(error, PaygwError)
                    else say("unexpected error ({kind}).", kind=type(error).__name__)
                )
                self._tell_once(say("The gateway cannot be asked about an unproven notification: {why}", why=why))
            if again is not None and again.asked < MAX_ASKED:
                group.create_task(self._put_later(again))

    async def _put_later(self, doubt: _Doubt) -> None:
        await self._clock.sleep(AGAIN_AFTER_S)
        self._put(doubt)

    async def _follow(self, doubt: _Doubt) -> _Doubt | None:
        """Ask about the order of one claim. Return the doubt to ask about later, or None."""
        order_id = doubt.claim.order_id or ""
        instructions = await asyncio.to_thread(self._look, order_id)
        candidates = asked_about(doubt.claim, instructions, self._words)
        if isinstance(candidates, Waits):
            return doubt
        is_settled = True
        for candidate in candidates:
            is_settled &= await self._settled(candidate, order_id)
        return None if is_settled else replace(doubt, asked=doubt.asked + 1)

    async def _settled(self, candidate: Candidate, order_id: str) -> bool:
        """Ask about one instruction, and keep an answer that says something new. Return whether the answer did."""
        await self._clock.sleep(self._take_turn())
        at = timestamp(self._clock.now())
        expected = Expected(order_id, Decimal(candidate.amount), candidate.currency)
        answer = await self._ask(expected, candidate.endpoint_id)
        self._heed(answer)
        claim = answer.claim
        if claim is None:
            return False
        meaning = self._words.get(claim.status or "")
        if meaning is not None and meaning.value == candidate.standing.state.value:
            return False
        # The answer was true before the question was sent, so it says nothing about an attempt sent since.
        dated = replace(claim, times=StatedTimes(true_at=(Span(_EVER, at),)))
        # The answer is kept in the form of a notification, although nobody sent a request.
        kept = Notification(at, "", "", "", b"", length=0, problem="", claim=dated, source=EvidenceSource.ENQUIRY)
        await self._keep(encode_notification(kept))
        return True

    def _stop(self, reason: str) -> None:
        self._tell_once(say("The gateway refuses enquiries: {reason}", reason=reason))
        self._rhythm.pause(self._clock.monotonic_s(), AFTER_REFUSAL_S)

    def _tell_once(self, sentence: str) -> None:
        if sentence != self._told:
            self._told = sentence
            self._tell(sentence)
