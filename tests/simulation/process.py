"""One process of the simulated machine: it holds the journal, ends what was in flight, opens a batch, sends it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from paygw_batch.core.evidence import Claim, Evidence, Proof, Source
from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalError, JournalHeld, JournalUnwritable
from paygw_batch.gateway.message import Attempt, Expected, PreparedRequest
from paygw_batch.journal.port import BatchRecord, Entry, Journal, NewBatch, NewInstruction
from paygw_batch.run.engine import Engine, Pace
from paygw_batch.run.ports import Silent, World, timestamp

from .disk import HeldJournal
from .judge import amount_of, row_of, shown
from .loop import ProcessLoop

if TYPE_CHECKING:
    from .world import SimWorld

T = TypeVar("T")


class SlowAway:
    """Journal calls one at a time and in order, signatures side by side; all of them take a while."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self._turn = asyncio.Lock()

    async def journal(self, call: Callable[[], T]) -> T:
        """Make one journal call."""
        async with self._turn:
            await self._a_while()
            try:
                result = call()
            except JournalUnwritable:
                self._process.heard_of_failure = True
                raise
            await self._a_while()
            return result

    async def append(self, journal: Journal, entries: Sequence[Entry]) -> Sequence[bool]:
        """Make facts durable."""
        return await self.journal(lambda: journal.append(entries))

    async def prepare(self, attempts: Sequence[Attempt]) -> list[PreparedRequest]:
        """Prepare requests as this world does."""
        await self._a_while()
        return [self._process.world.prepare(attempt) for attempt in attempts]

    async def _a_while(self) -> None:
        rng = self._process.world.rng
        if rng.random() < 0.3:
            await asyncio.sleep(rng.random() * 0.05)


def prepare(attempt: Attempt) -> PreparedRequest:
    """Return a request that costs no signature: what a signature is worth is tested elsewhere."""
    return PreparedRequest(
        url="https://gateway.example/",
        authorization="",
        body=b"",
        body_sha256="",
        nonce=attempt.nonce,
        timestamp_s=attempt.timestamp_s,
        purpose=None,
        expected=Expected(attempt.order_id, Decimal(attempt.instruction.amount), attempt.instruction.currency),
    )


def new_instruction(row: int, amount: str) -> NewInstruction:
    """Return row `row` of a simulated sheet."""
    return NewInstruction(
        row=row,
        client_orderid=f"PAY-{row}",
        country="KE",
        currency="KES",
        amount=amount,
        minor=int(Decimal(amount) * 100),
        form="account",
        fields="{}",
        payee=f"2547{row:08}",
        content=f"KE|{row}|{amount}",
    )


class Process:
    """A process. `run` submits a sheet; `person` does something to the journal and ends.

    What shall befall it (`dies_before_write` and so on) is set from outside before it starts.
    """

    def __init__(self, world: "SimWorld", story: Callable[["Process"], Awaitable[int]], *, is_run: bool) -> None:
        self.world = world
        self.is_run = is_run
        self.pace: Pace = world.pace
        self.loop = ProcessLoop(world.clock, world.unhandled.append)  # type: ignore[abstract]  # no ABC when it runs
        self.dead = False
        self.writes = 0
        self.dies_before_write = self.dies_after_write = self.fails_at_write = 0
        self.failed_write_is_there = False
        self.heard_of_failure = False
        self.engine: Engine | None = None
        self.batch = 0
        self.paused_until_s = 0.0
        self.was_paused = False
        self.started_at_s = world.clock.now_s
        self.drained_at_s: float | None = None
        self.exit_code: int | None = None
        self._task = self.loop.create_task(self._main(story))

    @property
    def is_done(self) -> bool:
        """Whether it has ended, one way or another."""
        return self.dead or self._task.done()

    def die(self) -> None:
        """Be killed, here and now. Its lock goes with it."""
        self.dead = True
        self.world.disk.holders.discard(self)

    def drain(self) -> None:
        """Be sent a first SIGTERM."""
        if self.engine is not None and self.drained_at_s is None:
            self.drained_at_s = self.world.clock.now_s
            self.engine.drain()

    def end(self) -> None:
        """Clear away; raise what it ended with, unless it was killed."""
        if not self.dead:
            self.die()
            self.exit_code = self._task.result()
        self.loop.bury()

    async def _main(self, story: Callable[["Process"], Awaitable[int]]) -> int:
        try:
            return await story(self)
        except JournalHeld:
            return 7
        except JournalUnwritable:
            return 7
        except JournalError as error:
            self.world.refused = error
            return 7
        finally:
            self.world.disk.holders.discard(self)


async def hold(process: Process) -> HeldJournal:
    """Open the journal for a run: the lock, the witness, and an end to what was in flight."""
    disk = process.world.disk
    await disk.take_lock(process)
    process.world.look_at_opening()
    disk.check_newest()
    process.world.look_at_opened()
    journal = disk_journal(process)
    await process.world.away_of(process).journal(partial(journal.interrupt, process.world.at()))
    return journal


def disk_journal(process: Process) -> HeldJournal:
    """Return the journal as this process will see it."""
    return process.world.journal_type(process.world.disk, process)


async def submit(process: Process, rows: Sequence[int], name: str) -> int:
    """Play `paygw-batch submit` of a sheet with `rows`."""
    world = process.world
    journal = await hold(process)
    away = world.away_of(process)
    record = await away.journal(lambda: _opened(journal, world, rows, name))
    process.batch = record.number
    process.engine = engine = world.engine_type(
        journal=cast("Journal", journal),
        gateway=world.gateway_type(process),
        prepare=away.prepare,
        judge=world.classify,
        pace=process.pace,
        world=World(now=world.now, nonce=world.nonce, chance=world.rng.random),
        away=away,
        progress=Silent(),
    )
    hearing = asyncio.ensure_future(_hear(process, journal))
    try:
        end = await engine.run(record.number)
    finally:
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)
    if end.failure is not None:
        raise end.failure
    states: dict[str, int] = {}
    for tally in journal.tallies(record.number):
        states[shown(tally.state)] = states.get(shown(tally.state), 0) + tally.count
    contradictions = len(journal.contradictions(record.number))
    exit_code = int(world.exit_code(states, interrupted=end.interrupted, contradictions=contradictions))
    world.judge.look_at_exit(process, exit_code)
    return exit_code


async def _hear(process: Process, journal: HeldJournal) -> None:
    """Let evidence come in while the run goes on, as it does every two seconds where a listener is on."""
    away, rng = process.world.away_of(process), process.world.rng

    def heard() -> None:
        with suppress(JournalUnwritable):  # the engine hears of it by its next write
            hear(process.world, journal)

    while rng.random() < 0.3:
        await asyncio.sleep(rng.random())
        await away.journal(heard)


def hear(world: "SimWorld", journal: HeldJournal) -> None:
    """Take in a notification or a line of a statement by which the gateway has a row that is ready."""
    progress_of, rng = world.disk.journal._progress, world.rng
    ready = [number for number, progress in progress_of.items() if progress.standing.state is State.READY]
    if not ready:
        return
    number = rng.choice(ready)
    new, progress = world.disk.journal._instructions[number].new, progress_of[number]
    order_id = rng.choice((new.client_orderid, progress.order_id, progress.sent_orderid or progress.order_id))
    claim = Claim(order_id, new.amount, new.currency, "approved", proof=Proof.PROVEN)
    source = rng.choice((Source.NOTIFICATION, Source.STATEMENT))
    journal.take_in([Evidence(source, claim, "")], {"approved": OutcomeKind.PAID}, at=world.at())
    world.judge.held.add(row_of(order_id))


def _opened(journal: HeldJournal, world: "SimWorld", rows: Sequence[int], name: str) -> BatchRecord:
    """Return the batch of a sheet, opened if it is new: known rows keep their state, changed ones are left out."""
    if found := [record for record in journal.batches() if record.batch == name]:
        return cast("BatchRecord", found[0])
    lines = [new_instruction(row, amount_of(name, row)) for row in rows]
    known, clashes = world.compare(journal, [(line.row, line.client_orderid, line.content) for line in lines])
    world.look_at_comparison(name, {clash.row for clash in clashes})
    taken = {one.row for one in known} | {clash.row for clash in clashes}
    new = [line for line in lines if line.row not in taken]
    opening = NewBatch(name, world.operation, f"{name}.csv", name, len(new) + len(known), 0)
    return journal.open_batch(opening, new, known, timestamp(world.now()))
