"""One process of the simulated machine: it holds the journal, ends what was in flight, opens a batch, sends it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from benchmarks.silent_progress import Silent
from paygw_batch.approval.plan_document import NOT_ASKED_FOR
from paygw_batch.core.choices import Choices
from paygw_batch.core.lifecycle import Intended, State
from paygw_batch.core.outcome import Verdict
from paygw_batch.engine.engine import Engine
from paygw_batch.engine.pacing import Pace
from paygw_batch.engine.ports import World
from paygw_batch.engine.quarantine import MAX_AHEAD_S, DateWatch, JournalClock
from paygw_batch.errors import (
    ApprovalError,
    JournalError,
    JournalHeld,
    JournalUnwritable,
    OpenSheetQuestion,
    RowsMoved,
    UsageError,
)
from paygw_batch.gateway.message import Attempt, Expected, PreparedRequest, RawReply, TransportFault
from paygw_batch.journal.port import JournalThread
from paygw_batch.journal.sqlite.sqlite_journal import SqliteEngineJournal, SqliteJournal
from paygw_batch.journal.values import BatchRecord, Entry, MoveResult, TallyKind
from paygw_batch.submit.plan import open_planned_batch, plan_submission
from tests.promise.simulation.gateway import DEPARTS_WITHIN_S, QUARANTINE_H
from tests.promise.simulation.loop import ProcessLoop
from tests.promise.simulation.sheets import RULES

if TYPE_CHECKING:
    from tests.promise.simulation.world import SimWorld

CHANCE_OF_A_LOOK = 0.15
"""How often somebody reads what a run wrote at its end: it costs more than the run."""

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
                self._process.heard_of_failure = self._process.had_mishap = True
                raise
            await self._a_while()
            return result

    def note_intents(self, entries: Sequence[Entry]) -> None:
        """Take note for the judge of when intents were handed to the journal."""
        now_s = self._process.world.clock.now_s
        self._process.intended_at_s.update(
            (entry.fact.nonce, now_s) for entry in entries if isinstance(entry.fact, Intended)
        )

    async def prepare(self, attempts: Sequence[Attempt]) -> list[PreparedRequest]:
        """Prepare requests as this world does."""
        await self._a_while()
        return [self._process.world.prepare(attempt) for attempt in attempts]

    async def _a_while(self) -> None:
        rng = self._process.world.rng
        if rng.random() < 0.3:
            await asyncio.sleep(rng.random() * 0.05)


class SlowThread(JournalThread):
    """Makes calls to the journal as this world does."""

    def __init__(self, away: SlowAway) -> None:
        super().__init__()
        self._away = away

    async def call(self, call: Callable[[], T]) -> T:
        """Make a call."""
        return await self._away.journal(call)


class SlowEngineJournal(SqliteEngineJournal):
    """The journal as an engine of this world has it."""

    def __init__(self, journal: SqliteJournal, away: SlowAway) -> None:
        super().__init__(journal)
        self._thread = SlowThread(away)
        self._away = away

    async def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Make facts durable."""
        self._away.note_intents(entries)
        return await self._thread.call(lambda: self._journal.append(entries))


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
        endpoint_id="1",
        expected=Expected(attempt.order_id, Decimal(attempt.instruction.amount), attempt.instruction.currency),
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
        self.intended_at_s: dict[str, float] = {}
        """When the intent of a request, by its nonce, was handed to the journal."""
        self.had_mishap = False
        self.engine: Engine | None = None
        self.paused_until_s = 0.0
        self.was_paused = False
        self.started_at_s = world.clock.now_s
        self.drained_at_s: float | None = None
        self.exit_code: int | None = None
        self.amends: Sequence[tuple[str, int, bool]] = ()
        """Sheet and row of the payments that the batch it opens replaces, and whether they were rejected."""
        self._task = self.loop.create_task(self._main(story))

    @property
    def is_done(self) -> bool:
        """Whether it has ended, one way or another."""
        return self.dead or self._task.done()

    def die(self) -> None:
        """Be killed, here and now. Its lock goes with it."""
        self.dead = self.had_mishap = True
        self.world.disk.holders.discard(self)

    def drain(self) -> None:
        """Be sent a first SIGTERM."""
        if self.engine is not None and self.drained_at_s is None:
            self.drained_at_s = self.world.clock.now_s
            self.engine.drain()

    def look_at_opened_batch(self) -> None:
        """A batch that it opens is durable, whether it hears of it or not."""
        for sheet, number, was_rejected in self.amends:
            self.world.judge.amend(sheet, number, was_rejected=was_rejected)
        self.amends = ()

    def end(self) -> None:
        """Clear away; raise what it ended with, unless it was killed."""
        if not self.dead:
            self.world.disk.holders.discard(self)
            self.dead = True
            self.exit_code = self._task.result()
        self.loop.bury()

    async def _main(self, story: Callable[["Process"], Awaitable[int]]) -> int:
        try:
            return await story(self)
        except JournalHeld:
            return 7
        except JournalUnwritable:
            return 7
        except RowsMoved:
            raise  # one process at a time has a journal in a file: nobody else can have moved a row
        except JournalError as error:
            self.world.refused = error
            return 7
        except ApprovalError:
            return 8
        except UsageError:
            return 2
        except OpenSheetQuestion:
            return 3
        finally:
            self.world.disk.holders.discard(self)


async def hold(process: Process) -> SqliteJournal:
    """Open the journal for a run: the lock, the witness, an end to what was in flight, and notifications that wait."""
    world = process.world
    await world.disk.take_lock(process)
    world.look_at_opening()
    journal = world.disk.open(process)
    world.look_at_opened()
    away = world.away_of(process)
    await away.journal(partial(journal.mark_interrupted, world.at()))
    await away.journal(lambda: world.inbox.take_in(journal))
    return journal


async def submit(process: Process, sheet: str) -> int:
    """Play `paygw-batch submit` of a sheet, rows whose ids were used for other content left out."""
    world = process.world
    validated = world.validated(sheet)
    journal = await hold(process)
    away = world.away_of(process)
    plan = await away.journal(
        lambda: plan_submission(
            validated, journal, Choices(amend=world.amends), now=world.now, quarantine_h=QUARANTINE_H
        )
    )
    world.look_at_comparison(sheet, journal, plan)
    rejected = {one.row for one in plan.amendments if world.disk.state_of(one.instruction) is State.REJECTED}
    process.amends = [(sheet, one.row, one.row in rejected) for one in plan.amendments]
    approved = NOT_ASKED_FOR if world.approvals is None else world.approvals.required(sheet, plan, journal)
    record = await away.journal(
        lambda: open_planned_batch(
            plan,
            journal,
            RULES[world.operation],
            sheet_path=Path(f"/{sheet}.csv"),
            now=world.now,
            by="amina",
            approved=approved,
        )
    )
    world.sheet_of_batch[record.batch] = sheet
    return await send(process, journal, record)


async def resume(process: Process, batch: str) -> int:
    """Play `paygw-batch resume` of a batch: without its sheet."""
    journal = await hold(process)
    return await send(process, journal, next(record for record in journal.batches() if record.batch == batch))


async def send(process: Process, journal: SqliteJournal, record: BatchRecord) -> int:
    """Send what is due in a batch, and show a person how that ended."""
    world, away = process.world, process.world.away_of(process)
    if journal.tallies(record.number, kind=TallyKind.DUE) and JournalClock.read(journal, world.now()).behind_sentence(
        at_most_s=MAX_AHEAD_S
    ):
        return 6
    dates, heard_date = DateWatch(world.now), False

    def judge(came_back: RawReply | TransportFault, expected: Expected) -> Verdict:
        nonlocal heard_date
        heard_date = heard_date or isinstance(came_back, RawReply)
        dates.see(came_back)
        return dates.judged(world.classify(came_back, expected))

    process.engine = engine = world.engine_type(
        journal=SlowEngineJournal(journal, away),
        gateway=world.gateway_type(process),
        prepare=away.prepare,
        judge=judge,
        pace=process.pace,
        world=World(now=world.now, elapsed_s=world.elapsed_s, nonce=world.nonce, chance=world.rng.random),
        progress=Silent(),
        departs_within_s=DEPARTS_WITHIN_S,
    )
    hearing = asyncio.ensure_future(_hear(process, journal))
    try:
        end = await engine.run(record.number)
    finally:
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)
    if end.failure is not None:
        raise end.failure
    await away.journal(lambda: dates.note_in(journal))
    if heard_date:
        world.clock_is_unknown = False
    if world.rng.random() >= CHANCE_OF_A_LOOK:
        return 0
    shown = await away.journal(lambda: world.shown(journal, record, end))
    world.judge.look_at_shown(shown, process)
    return int(str(shown.summary["exit_code"]))


async def _hear(process: Process, journal: SqliteJournal) -> None:
    """Let notifications come in while the run goes on, as it does every two seconds where a listener is on."""
    world, away = process.world, process.world.away_of(process)

    def heard() -> None:
        with suppress(JournalUnwritable):  # the engine hears of it by its next write
            if world.rng.random() < 0.3:
                world.inbox.surprise(journal)
            world.inbox.take_in(journal)

    while world.rng.random() < 0.3:
        await asyncio.sleep(world.rng.random())
        await away.journal(heard)
