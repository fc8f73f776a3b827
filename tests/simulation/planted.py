"""Planted bugs: mistakes that someone could make, switched on in a simulated world only. Each must be found."""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from paygw_batch.journal.memory import MemoryJournal

from paygw_batch.core.lifecycle import Concluded, Intended, State
from paygw_batch.core.outcome import GoOn, Outcome, OutcomeKind, TryAgain, Verdict
from paygw_batch.errors import JournalHeld, JournalUnwritable
from paygw_batch.gateway.message import Attempt, Expected, FaultKind, PreparedRequest, RawReply, TransportFault
from paygw_batch.journal.port import BatchRecord, Due, Entry, Known, NewBatch, NewInstruction
from paygw_batch.run.engine import Engine

from .disk import HeldJournal
from .gateway import SimGateway
from .process import Process, prepare
from .world import SimWorld

Answer = RawReply | TransportFault


@dataclass(frozen=True, slots=True)
class Bug:
    """A planted bug: how it is switched on, and the invariants any of which finds it."""

    plant: Callable[[SimWorld], None]
    found_by: frozenset[str]


# The journal.


class IntentsLate(HeldJournal):
    """Keeps intents back until their outcome is there."""

    def append(self, entries: Sequence[Entry]) -> Sequence[bool]:
        back = self.__dict__.setdefault("_back", {})
        for entry in entries:
            if isinstance(entry.fact, Intended):
                back[entry.instruction] = entry
        now = [entry for entry in entries if not isinstance(entry.fact, Intended)]
        intents = [back.pop(entry.instruction) for entry in now if entry.instruction in back]
        if now:
            super().append([*intents, *now])
        return [True] * len(entries)


class SendsWhatIsHeld(HeldJournal):
    """Looks at evidence when rows are read as due, and never again."""

    def append(self, entries: Sequence[Entry]) -> Sequence[bool]:
        return self._write(lambda journal: [line.contradicts is None for line in journal._record(entries)], entries)


class SendsInFlightAgain(HeldJournal):
    """Takes what was in flight at a crash for unsent."""

    def interrupt(self, at: str) -> int:
        entries = [
            Entry(number, progress.standing.attempt, Concluded(Outcome(OutcomeKind.NOT_SENT)), at)
            for number, progress in self._disk.journal._progress.items()
            if progress.standing.state is State.IN_FLIGHT
        ]
        self.append(entries)
        return len(entries)


class Overwrites(HeldJournal):
    """Writes an outcome wherever the instruction stands."""

    def append(self, entries: Sequence[Entry]) -> Sequence[bool]:
        moved = super().append(entries)
        states = {OutcomeKind.PAID: State.PAID, OutcomeKind.REJECTED: State.REJECTED}
        late = [
            (entry.instruction, states[entry.fact.outcome.kind])
            for entry, did in zip(entries, moved, strict=True)
            if not did and isinstance(entry.fact, Concluded) and entry.fact.outcome.kind in states
        ]

        def overwrite(journal: MemoryJournal) -> None:
            for number, state in late:
                before = journal._progress[number]
                journal._progress[number] = before._replace(standing=replace(before.standing, state=state))

        self._write(overwrite)
        return moved


class WritesOn(HeldJournal):
    """Swallows the failure of a write and goes on."""

    def append(self, entries: Sequence[Entry]) -> Sequence[bool]:
        try:
            return super().append(entries)
        except JournalUnwritable:
            return [True] * len(entries)


class SkipsARow(HeldJournal):
    """Never comes to the last row of a sheet."""

    def due(self, batch: int, *, after_row: int, limit: int) -> Sequence[Due]:
        last = max(self._disk.journal._covered[batch], default=0)
        due = self._disk.journal.due(batch, after_row=after_row, limit=limit)
        return [one for one in due if one.row < last]


class FloatAmounts(HeldJournal):
    """Counts money in floats."""

    def open_batch(
        self, batch: NewBatch, new: Sequence[NewInstruction], known: Sequence[Known], at: str
    ) -> BatchRecord:
        return super().open_batch(batch, [one._replace(minor=int(float(one.amount) * 100)) for one in new], known, at)


def journal(kind: type[HeldJournal]) -> Callable[[SimWorld], None]:
    def plant(world: SimWorld) -> None:
        world.journal_type = kind

    return plant


# The disk and the lock.


def synchronous_off(world: SimWorld) -> None:
    world.disk.synchronous = False


def synchronous_normal(world: SimWorld) -> None:
    disk, commit = world.disk, world.disk.commit
    disk.synchronous = False

    def now_and_then(write: Callable[[MemoryJournal], Any], nonces: Iterable[str]) -> Any:
        result = commit(write, nonces)
        if len(disk.writes) % 20 == 0:
            disk.sync()
        return result

    disk.commit = now_and_then  # type: ignore[method-assign]


def witness_not_read(world: SimWorld) -> None:
    world.disk.heeds_witness = False


def select_then_update(world: SimWorld) -> None:
    async def take(process: Process) -> None:
        if world.disk.holders:
            raise JournalHeld
        await asyncio.sleep(0.001)
        world.disk.holders.add(process)

    world.disk.take_lock = take  # type: ignore[method-assign]


def claim_lapses(world: SimWorld) -> None:
    taken_at_s: dict[Process, float] = {}

    async def take(process: Process) -> None:
        now_s = world.clock.now_s
        if any(now_s - taken_at_s[holder] < 300 for holder in world.disk.holders):
            raise JournalHeld
        taken_at_s[process] = now_s
        world.disk.holders.add(process)

    world.disk.take_lock = take  # type: ignore[method-assign]


def released_while_alive(world: SimWorld) -> None:
    take_lock = world.disk.take_lock

    async def take(process: Process) -> None:
        await take_lock(process)
        process.loop.call_later(0.3, world.disk.holders.discard, process)

    world.disk.take_lock = take  # type: ignore[method-assign]


def change_not_seen(world: SimWorld) -> None:
    def compare(journal: HeldJournal, lines: Sequence[tuple[int, str, str]]) -> tuple[Sequence[Known], Sequence[Any]]:
        known, clashes = journal.compare(world.operation, lines)
        return [*known, *(Known(clash.row, clash.instruction, clash.state) for clash in clashes)], []

    world.compare = compare  # type: ignore[method-assign]


# What a reply means.


def judged(look: Callable[[Answer, Verdict], Verdict]) -> Callable[[SimWorld], None]:
    """Return the plant that changes the verdict on what came back."""

    def plant(world: SimWorld) -> None:
        classify = world.classify
        world.classify = lambda answer, expected: look(answer, classify(answer, expected))

    return plant


def again_on(kind: FaultKind) -> Callable[[Answer, Verdict], Verdict]:
    def look(answer: Answer, verdict: Verdict) -> Verdict:
        if isinstance(answer, TransportFault) and answer.kind is kind:
            return Verdict(Outcome(OutcomeKind.NOT_SENT, kind.value), TryAgain())
        return verdict

    return look


def rejected_by_500(answer: Answer, verdict: Verdict) -> Verdict:
    if isinstance(answer, RawReply) and answer.http_status >= 500:
        return Verdict(Outcome(OutcomeKind.REJECTED))
    return verdict


def redirect_followed(answer: Answer, verdict: Verdict) -> Verdict:
    if isinstance(answer, RawReply) and 300 <= answer.http_status < 400:
        return Verdict(Outcome(OutcomeKind.NOT_SENT), TryAgain())
    return verdict


def echo_not_compared(answer: Answer, verdict: Verdict) -> Verdict:
    if isinstance(answer, RawReply) and verdict.outcome.conflict:
        return Verdict(Outcome(OutcomeKind.REJECTED), GoOn())
    return verdict


def last_of_two_keys(world: SimWorld) -> None:
    classify = world.classify

    def look(answer: Answer, expected: Expected) -> Verdict:
        if isinstance(answer, RawReply) and answer.body.startswith(b"{") and answer.body.endswith(b"}"):
            answer = replace(answer, body=json.dumps(json.loads(answer.body)).encode())
        return classify(answer, expected)

    world.classify = look


# The engine, and what it tells.


class DeafBreaker(Engine):
    """Never stops by itself."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self._breaker.limit = 0


class WideOpen(Engine):
    """Knows no limit of requests in flight."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self._window.limit = self._window.size = 1000


def engine(kind: type[Engine]) -> Callable[[SimWorld], None]:
    def plant(world: SimWorld) -> None:
        world.engine_type = kind

    return plant


class NoTimeout(SimGateway):
    """Waits for ever where the gateway is silent."""

    async def deliver(self, request: PreparedRequest) -> RawReply | TransportFault:
        answer = await super().deliver(request)
        if isinstance(answer, TransportFault) and answer.kind is FaultKind.READ_TIMEOUT:
            await asyncio.Event().wait()
        return answer


def no_timeout(world: SimWorld) -> None:
    world.gateway_type = NoTimeout


def rounded_on_the_wire(world: SimWorld) -> None:
    def rounded(attempt: Attempt) -> PreparedRequest:
        request = prepare(attempt)
        return replace(request, expected=replace(request.expected, amount=Decimal(round(request.expected.amount))))

    world.prepare = rounded


def always_zero(world: SimWorld) -> None:
    world.exit_code = lambda _states, **_: 0


def bug(plant: Callable[[SimWorld], None], *found_by: str) -> Bug:
    return Bug(plant, frozenset(found_by))


BUGS: Mapping[str, Bug] = {
    "intent after send": bug(journal(IntentsLate), "I1", "I2"),
    "synchronous NORMAL": bug(synchronous_normal, "I1", "I2"),
    "synchronous OFF": bug(synchronous_off, "I1", "I2"),
    "resume sends in-flight rows again": bug(journal(SendsInFlightAgain), "I1", "I5"),
    "evidence that comes late holds nothing": bug(journal(SendsWhatIsHeld), "I1"),
    "retry on read time-out": bug(judged(again_on(FaultKind.READ_TIMEOUT)), "I1", "I5"),
    "retry on server disconnected": bug(judged(again_on(FaultKind.CONNECTION_LOST)), "I1", "I5"),
    "5xx taken for rejected": bug(judged(rejected_by_500), "I5"),
    "redirects followed": bug(judged(redirect_followed), "I1", "I5"),
    "echo of another order taken for ours": bug(judged(echo_not_compared), "I5"),
    "the last of two equal JSON keys": bug(last_of_two_keys, "I5"),
    "claim by select, then update": bug(select_then_update, "I6"),
    "a claim that lapses": bug(claim_lapses, "I6"),
    "release while the owner lives": bug(released_while_alive, "I6"),
    "outcome without compare-and-set": bug(journal(Overwrites), "I11"),
    "float amounts": bug(journal(FloatAmounts), "I4"),
    "the last row never comes up": bug(journal(SkipsARow), "I3"),
    "a changed row taken for known": bug(change_not_seen, "I7"),
    "a journal that goes on after a failed write": bug(journal(WritesOn), "I2"),
    "a breaker that never trips": bug(engine(DeafBreaker), "I9"),
    "a window without a limit": bug(engine(WideOpen), "I9"),
    "the witness is not read": bug(witness_not_read, "I10"),
    "an amount rounded on the wire": bug(rounded_on_the_wire, "I12"),
    "no read time-out": bug(no_timeout, "I14"),
    "exit code always 0": bug(always_zero, "I16"),
}
