"""Asks the gateway at once about an order that a notification names and that nothing proves.

The notification moves nothing by itself. The answer to the enquiry is evidence as `refresh` brings it. It waits in the
inbox like a notification, because a run may hold the journal: whoever has the journal takes it in.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from paygw_batch.clock import timestamp
from paygw_batch.core.evidence import (
    Candidate,
    Claim,
    EvidenceSource,
    Finding,
    Span,
    StatedTimes,
    Waits,
    rule,
)
from paygw_batch.core.outcome import OutcomeKind, PauseRun, StopRun
from paygw_batch.engine.pacing import Rhythm
from paygw_batch.errors import PaygwError
from paygw_batch.gateway.enquiry import EnquiryAnswer
from paygw_batch.gateway.message import Expected
from paygw_batch.journal import Notification, encode_notification
from paygw_batch.language import say
from paygw_batch.run.refresh import OPEN_STATES, Ask, Clock, Politeness

AGAIN_AFTER_S = 5.0
"""So long after an answer that settles nothing, or none, the gateway is asked again."""
MAX_ASKED = 6
"""How often it is asked because of one notification."""
MAX_WAITING = 10_000
"""How many orders wait to be asked about. Orders beyond this number are left to a person."""
AFTER_REFUSAL_S = 60.0
"""So long nothing is asked after the gateway has refused an enquiry altogether."""
_ASKED_ABOUT = frozenset({Finding.TO_CONFIRM, Finding.AMBIGUOUS, Finding.UNMATCHED})
_EVER = "0001-01-01T00:00:00.000Z"


def asked_about(
    claim: Claim, candidates: Sequence[Candidate], words: Mapping[str, OutcomeKind]
) -> Sequence[Candidate] | Waits:
    """Return the instructions to ask about because of a claim that nothing proves; `Waits` while one is in flight.

    Those are the ones that the claim, if it were true, would move or contradict, and those that have no final word yet.
    """
    ruling = rule(claim, candidates, words, note="")
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


class FollowUp:
    """Asks about orders in the background of the listener's event loop, politely, and keeps the answers.

    `look` returns the instructions that go by an order id, from the journal; it is called in a thread. `keep` makes a
    line of the inbox durable. `words` is the operator's `[outcomes]`.
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
        self._look = look
        self._ask = ask
        self._keep = keep
        self._words = words
        self._politeness = politeness
        self._clock = clock
        self._tell = tell
        self._told = ""
        self._rhythm = Rhythm(politeness.rate_per_s)
        self._queue: asyncio.Queue[_Doubt] = asyncio.Queue()
        self._waiting: set[str] = set()

    def doubt(self, claim: Claim) -> None:
        """Take note of a claim that nothing proves. Each order waits once."""
        self._put(_Doubt(claim))

    async def run(self, doubts: Iterable[Claim] = ()) -> None:
        """Ask until cancelled, first about `doubts` of earlier."""
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

    async def _put_later(self, doubt: _Doubt) -> None:
        await self._clock.sleep(AGAIN_AFTER_S)
        self._put(doubt)

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

    async def _follow(self, doubt: _Doubt) -> _Doubt | None:
        """Ask about the order of one claim; return the doubt that is left for later, or None."""
        order_id = doubt.claim.order_id or ""
        found = await asyncio.to_thread(self._look, order_id)
        candidates = asked_about(doubt.claim, found, self._words)
        if isinstance(candidates, Waits):
            return doubt
        is_settled = True
        for candidate in candidates:
            is_settled &= await self._settled(candidate, order_id)
        return None if is_settled else replace(doubt, asked=doubt.asked + 1)

    async def _settled(self, candidate: Candidate, order_id: str) -> bool:
        """Ask about one instruction; return whether the answer says something new, which is then kept."""
        wait_s = self._rhythm.wait_s(self._clock.monotonic_s())
        self._rhythm.start(self._clock.monotonic_s())
        await self._clock.sleep(wait_s)
        at = timestamp(self._clock.now())
        answer = await self._ask(Expected(order_id, Decimal(candidate.amount), candidate.currency))
        self._heed(answer)
        claim = answer.claim
        if claim is None:
            return False
        said = self._words.get(claim.status or "")
        if said is not None and said.value == candidate.standing.state.value:
            return False
        # It was true at some time before it was asked for: it says nothing of an attempt that left since.
        dated = replace(claim, times=StatedTimes(true_at=(Span(_EVER, at),)))
        await self._keep(encode_notification(_kept(dated, at)))
        return True

    def _heed(self, answer: EnquiryAnswer) -> None:
        match answer.advice:
            case StopRun(reason):
                self._tell_once(say("The gateway refuses enquiries: {reason}", reason=reason))
                self._rhythm.pause(self._clock.monotonic_s(), AFTER_REFUSAL_S)
            case PauseRun(pause_s):
                self._rhythm.pause(self._clock.monotonic_s(), pause_s)
            case _:
                pass

    def _tell_once(self, sentence: str) -> None:
        if sentence != self._told:
            self._told = sentence
            self._tell(sentence)


def _kept(claim: Claim, at: str) -> Notification:
    """Return the answer to an enquiry as it is kept in the inbox."""
    return Notification(
        received_at=at,
        method="",
        content_type="",
        query="",
        body=b"",
        length=0,
        problem="",
        claim=claim,
        source=EvidenceSource.ENQUIRY,
    )
