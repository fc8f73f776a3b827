"""One process of the simulated machine: it opens the journal, ends rows in flight, opens a batch and sends it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from benchmarks.silent_progress import SilentProgress
from paygw_batch.approval.plan_document import NO_APPROVAL
from paygw_batch.core.choices import Choices
from paygw_batch.core.lifecycle import Intended, State
from paygw_batch.core.outcome import Verdict
from paygw_batch.engine.engine import Engine
from paygw_batch.engine.pacing import Pace
from paygw_batch.engine.ports import Runtime
from paygw_batch.engine.quarantine import CLOCK_TOLERANCE_S, ClockComparer, JournalClock
from paygw_batch.errors import (
    ApprovalError,
    JournalError,
    JournalHeld,
    JournalUnwritable,
    OpenSheetQuestion,
    StaleRows,
    UsageError,
)
from paygw_batch.gateway.message import Attempt, ExpectedReply, PreparedRequest, RawReply, TransportFault
from paygw_batch.journal.port import JournalThread
from paygw_batch.journal.sqlite.sqlite_journal import SqliteEngineJournal, SqliteJournal
from paygw_batch.journal.values import BatchRecord, Entry, MoveResult, TallyKind
from paygw_batch.submit.plan import open_planned_batch, plan_submission
from tests.promise.simulation.gateway import DEPARTS_WITHIN_S, QUARANTINE_H
from tests.promise.simulation.loop import ProcessLoop
from tests.promise.simulation.sheets import FIRST_ROW, RULES, rows_of

if TYPE_CHECKING:
    from tests.promise.simulation.scenario import Scenario


T = TypeVar("T")


class SlowAway(JournalThread):
    """Runs journal calls one at a time and signatures concurrently, each with a delay."""

    def __init__(self, process: "Process") -> None:
        super().__init__()
        self._process = process
        self._turn = asyncio.Lock()

    async def call(self, call: Callable[[], T]) -> T:
        async with self._turn:
            await self._a_while()
            try:
                result = call()
            except JournalUnwritable:
                self._process.heard_of_failure = self._process.had_mishap = True
                raise
            await self._a_while()
            return result

    async def prepare(self, attempts: Sequence[Attempt]) -> list[PreparedRequest]:
        await self._a_while()
        return [self._process.scenario.prepare(attempt) for attempt in attempts]

    async def _a_while(self) -> None:
        rng = self._process.scenario.rng
        if rng.random() < 0.3:
            await asyncio.sleep(rng.random() * 0.05)


class SlowEngineJournal(SqliteEngineJournal):
    def __init__(self, journal: SqliteJournal, process: "Process") -> None:
        super().__init__(journal)
        self._thread, self._process = process.away, process

    async def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        intents = [entry.fact.nonce for entry in entries if isinstance(entry.fact, Intended)]
        self._process.intended_at_s |= dict.fromkeys(intents, self._process.scenario.clock.now_s)
        return await self._thread.call(lambda: self._journal.append(entries))


class Process:
    """A process. `run` submits a sheet; `person` acts on the journal. Its mishaps are set before it starts."""

    def __init__(self, scenario: "Scenario", story: Callable[["Process"], Awaitable[int]]) -> None:
        self.scenario = scenario
        self.pace: Pace = scenario.pace
        self.loop = ProcessLoop(scenario.clock, scenario.unhandled.append)  # type: ignore[abstract]  # no ABC when it runs
        self.dead = False
        self.writes = 0
        self.dies_before_write = self.dies_after_write = self.fails_at_write = 0
        self.failed_write_is_there = False
        self.heard_of_failure = False
        self.intended_at_s: dict[str, float] = {}  # the times at which intents were passed to the journal, by nonce
        self.had_mishap = False
        self.engine: Engine | None = None
        self.paused_until_s = 0.0
        self.was_paused = False
        self.started_at_s = scenario.clock.now_s
        self.drained_at_s: float | None = None
        self.exit_code: int | None = None
        self.amends: Sequence[tuple[str, int, bool]] = ()
        """Sheet and row of the payments that its batch replaces, and whether they were rejected."""
        self.away = SlowAway(self)
        self._task = self.loop.create_task(self._main(story))

    @property
    def is_done(self) -> bool:
        return self.dead or self._task.done()

    def die(self) -> None:
        self.dead = self.had_mishap = True
        self.scenario.disk.holders.discard(self)

    def drain(self) -> None:
        if self.engine is not None and self.drained_at_s is None:
            self.drained_at_s = self.scenario.clock.now_s
            self.engine.drain()

    def end(self) -> None:
        """Clean up, and raise the error that ended the process, unless it was killed."""
        if not self.dead:
            self.scenario.disk.holders.discard(self)
            self.dead = True
            self.exit_code = self._task.result()
        self.loop.bury()

    async def _main(self, story: Callable[["Process"], Awaitable[int]]) -> int:
        try:
            return await story(self)
        except (JournalHeld, JournalUnwritable):
            return 7
        except StaleRows:
            raise  # only one process has the file's journal, so nobody else can have moved a row
        except JournalError as error:
            self.scenario.refused = error
            return 7
        except ApprovalError:
            return 8
        except UsageError:
            return 2
        except OpenSheetQuestion:
            return 3
        finally:
            self.scenario.disk.holders.discard(self)


async def open_for_run(process: Process) -> SqliteJournal:
    """Open the journal for a run: lock, sent log, end of rows in flight, and waiting notifications."""
    scenario = process.scenario
    await scenario.disk.take_lock(process)
    if len(scenario.disk.holders) > 1:
        raise scenario.judge.found("I6", "two processes hold the journal")
    scenario.refused = None
    journal = scenario.disk.open(process)
    if scenario.restored_older:
        raise scenario.judge.found("I10", "an older copy of the journal was taken for the journal")
    await process.away.call(partial(journal.mark_interrupted, scenario.at()))
    await process.away.call(lambda: scenario.inbox.record_arrivals(journal))
    return journal


async def submit(process: Process, sheet: str) -> int:
    """Play `paygw-batch submit` of a sheet, without rows whose ids were used for other content."""
    scenario = process.scenario
    validated = scenario.validated(sheet)
    journal = await open_for_run(process)
    choices = Choices(amend=scenario.amends)
    plan = await process.away.call(
        lambda: plan_submission(validated, journal, choices, now=scenario.now, quarantine_h=QUARANTINE_H)
    )
    scenario.check_comparison(sheet, journal, plan)
    numbers, state_of = rows_of(sheet, scenario.row_count), scenario.disk.state_of
    process.amends = [
        (sheet, numbers[amendment.row - FIRST_ROW], state_of(amendment.instruction) is State.REJECTED)
        for amendment in plan.amendments
    ]
    approved = NO_APPROVAL if scenario.approvals is None else scenario.approvals.required(sheet, plan, journal)
    opens = partial(open_planned_batch, plan, journal, RULES[scenario.operation], now=scenario.now, by="amina")
    record = await process.away.call(lambda: opens(sheet_path=Path(f"/{sheet}.csv"), approved=approved))
    scenario.sheet_of_batch[record.batch] = sheet
    return await send(process, journal, record)


async def resume(process: Process, batch: str) -> int:
    journal = await open_for_run(process)
    return await send(process, journal, next(record for record in journal.batches() if record.batch == batch))


async def send(process: Process, journal: SqliteJournal, record: BatchRecord) -> int:
    """Send the due rows of a batch, and show the result to a person."""
    scenario, away = process.scenario, process.away
    if journal.tallies(record.number, kind=TallyKind.DUE) and JournalClock.read(journal, scenario.now()).behind_message(
        tolerance_s=CLOCK_TOLERANCE_S
    ):
        return 6
    dates, heard_date = ClockComparer(scenario.now), False

    def judge(came_back: RawReply | TransportFault, expected: ExpectedReply) -> Verdict:
        nonlocal heard_date
        heard_date = heard_date or isinstance(came_back, RawReply)
        dates.observe_reply(came_back)
        return dates.with_clock_advice(scenario.classify(came_back, expected))

    process.engine = engine = scenario.engine_type(
        journal=SlowEngineJournal(journal, process),
        gateway=scenario.gateway_type(process),
        prepare=away.prepare,
        assess=judge,
        pace=process.pace,
        runtime=Runtime(scenario.now, scenario.elapsed_s, scenario.nonce, scenario.rng.random),
        progress=SilentProgress(),
        send_within_s=DEPARTS_WITHIN_S,
    )
    hearing = asyncio.ensure_future(_receive_notifications(process, journal))
    try:
        end = await engine.run(record.number)
    finally:
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)
    if end.failure is not None:
        raise end.failure
    await away.call(lambda: dates.record_in(journal))
    if heard_date:
        scenario.clock_is_unknown = False
    if scenario.rng.random() >= 0.15:  # the chance that somebody reads a run's output, which costs more than the run
        return 0
    shown = await away.call(lambda: scenario.shown(journal, record, end))
    scenario.judge.check_report(shown, process)
    return int(str(shown.summary["exit_code"]))


async def _receive_notifications(process: Process, journal: SqliteJournal) -> None:
    """Record notifications every two seconds during a run, as with a listener."""
    scenario = process.scenario

    def heard() -> None:
        with suppress(JournalUnwritable):  # the engine fails at its next write
            if scenario.rng.random() < 0.3:
                scenario.inbox.surprise(journal)
            scenario.inbox.record_arrivals(journal)

    while scenario.rng.random() < 0.3:
        await asyncio.sleep(scenario.rng.random())
        await process.away.call(heard)
