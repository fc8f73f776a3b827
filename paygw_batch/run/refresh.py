"""Asks the gateway, at a polite rhythm, for the state of the rows that are accepted or in doubt.

An answer is evidence like a notification, and goes through the same ruling and the same table. What is no sound answer
changes nothing, and is asked again.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from paygw_batch.clock import Now, timestamp
from paygw_batch.core.evidence import Evidence, EvidenceSource, Finding
from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import from_minor
from paygw_batch.core.outcome import OutcomeKind, PauseRun, StopRun
from paygw_batch.engine.pacing import Rhythm
from paygw_batch.gateway.enquiry import EnquiryAnswer
from paygw_batch.gateway.message import Expected
from paygw_batch.journal import BatchRecord, Journal, RowStanding, canonical
from paygw_batch.language import say

OFTEN_EVERY_S = 5.0
OFTEN_FOR_S = 300.0
SELDOM_EVERY_S = 60.0
SILENT_ROUNDS = 3
"""After so many rounds in a row in which not one reply came, the gateway is not there."""
OPEN_STATES = frozenset({State.ACCEPTED, State.IN_DOUBT})

Ask = Callable[[Expected], Awaitable[EnquiryAnswer]]
"""Asks after one order. Never raises for a reason of the network."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Time as a refresh sees it: seconds that only go forward, a wait, and the wall clock."""

    monotonic_s: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]
    now: Now


@dataclass(frozen=True, slots=True)
class Politeness:
    """How often the gateway is asked at the most: so many at once, so many a second, and for so long."""

    concurrency: int
    rate_per_s: float
    limit_s: float


@dataclass(slots=True)
class Refreshed:
    """The result of a refresh. `findings` counts the effects of the answers that were kept."""

    asked: int = 0
    findings: Counter[Finding] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    """Why there was no usable answer, and how often."""
    stop_reason: str | None = None
    interrupted: bool = False


def pause_after(elapsed_s: float) -> float:
    """Return how long to wait between two rounds, so long after the first began."""
    return OFTEN_EVERY_S if elapsed_s < OFTEN_FOR_S else SELDOM_EVERY_S


class Refresh:
    """Asks after one batch, round by round. Made for one run; `drain` may be called at any time."""

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
        """`take_in` takes notifications in that wait; `words` is the operator's `[outcomes]`."""
        self.result = Refreshed()
        self._journal = journal
        self._batch = batch
        self._ask = ask
        self._words = words
        self._minor_units = minor_units
        self._politeness = politeness
        self._clock = clock
        self._take_in = take_in
        self._rhythm = Rhythm(politeness.rate_per_s)
        self._not_found: set[str] = set()
        self._silent_rounds = 0
        self._stopping = asyncio.Event()

    def drain(self) -> None:
        """Start no new enquiry; the run waits for the enquiries under way."""
        self.result.interrupted = True
        self._stopping.set()

    async def run(self) -> Refreshed:
        """Ask until every row has its final word, the limit has passed, or something stops it."""
        began_s = self._clock.monotonic_s()
        while rows := self._open_rows():
            await self._round(rows)
            self._take_in()
            elapsed_s = self._clock.monotonic_s() - began_s
            wait_s = pause_after(elapsed_s)
            if self._stopping.is_set() or not self._open_rows():
                break
            if elapsed_s + wait_s > self._politeness.limit_s:
                self.result.stop_reason = say("the time for asking is over; the same command goes on asking.")
                break
            await self._wait(wait_s)
        return self.result

    def _open_rows(self) -> list[RowStanding]:
        if self._stopping.is_set():
            return []
        return list(self._journal.rows(self._batch.number, states=OPEN_STATES))

    async def _round(self, rows: Sequence[RowStanding]) -> None:
        """Ask after every row once, and take in the new answers a few rows at a time."""
        replied = 0
        at_once = self._politeness.concurrency
        for start in range(0, len(rows), at_once):
            if self._stopping.is_set():
                return
            group = [(row, self._expected(row)) for row in rows[start : start + at_once]]
            answers = await asyncio.gather(*(self._asked(expected) for _, expected in group))
            heard = [(row, answer) for (row, _), answer in zip(group, answers, strict=True) if answer is not None]
            replied += sum(answer.has_replied for _, answer in heard)
            self._keep(heard)
            for _, answer in heard:
                self._heed(answer)
        self._silent_rounds = 0 if replied else self._silent_rounds + 1
        if self._silent_rounds >= SILENT_ROUNDS:
            self._stop(say("the gateway does not answer enquiries."))

    def _expected(self, row: RowStanding) -> Expected:
        amount = Decimal(from_minor(row.minor, minor_units=self._minor_units[row.currency]))
        return Expected(row.sent_orderid or row.client_orderid, amount, row.currency)

    async def _asked(self, expected: Expected) -> EnquiryAnswer | None:
        wait_s = self._rhythm.wait_s(self._clock.monotonic_s())
        self._rhythm.start(self._clock.monotonic_s())
        await self._wait(wait_s)
        if self._stopping.is_set():
            return None
        self.result.asked += 1
        return await self._ask(expected)

    def _keep(self, heard: Sequence[tuple[RowStanding, EnquiryAnswer]]) -> None:
        """Take in the answers that say something new."""
        at = timestamp(self._clock.now())
        evidence = []
        for row, answer in heard:
            claim = answer.claim
            if claim is None:
                self.result.causes[answer.cause] += 1
                continue
            order_id = claim.order_id or ""
            is_known = order_id in self._not_found if claim.is_not_found else self._says(claim.status) == row.state
            if is_known:
                continue
            if claim.is_not_found:
                self._not_found.add(order_id)
            content = {"asked_at": at, "order_id": order_id, "status": claim.status, "reference": claim.reference}
            evidence.append(Evidence(EvidenceSource.ENQUIRY, claim, canonical(content)))
        if evidence:
            self.result.findings.update(self._journal.take_in(evidence, self._words, at=at))

    def _says(self, status: str | None) -> str | None:
        said = self._words.get(status or "")
        return None if said is None else said.value

    def _heed(self, answer: EnquiryAnswer) -> None:
        match answer.advice:
            case StopRun(reason):
                self._stop(reason)
            case PauseRun(pause_s):
                self._rhythm.pause(self._clock.monotonic_s(), pause_s)
            case _:
                pass

    def _stop(self, reason: str) -> None:
        self.result.stop_reason = reason
        self._stopping.set()

    async def _wait(self, wait_s: float) -> None:
        """Wait so long, or until `drain`."""
        if wait_s <= 0:
            return
        waiting = asyncio.ensure_future(self._clock.sleep(wait_s))
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in (waiting, stopping):
            task.cancel()
