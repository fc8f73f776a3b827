"""The interfaces that a run sends through: the journal, the shared run, and the limits of all workers."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from paygw_batch.core.evidence import Finding
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.journal.values import DueRow, Entry, MoveResult

VerifyProgress = Callable[[int, int], None]
"""Receives the number of rows replayed so far, and the total."""


def ignore_progress(done: int, rows: int) -> None:
    """Ignore the progress of a verification."""


class EngineJournal(Protocol):
    """The journal's interface for engines. No call blocks the event loop. Calls are made one at a time."""

    async def due(self, batch: int, *, limit: int) -> Sequence[DueRow]:
        """Return up to `limit` further READY instructions of a batch in the sheet's order, or none at its end.

        Each instruction is returned once. A row with contradicting evidence, such as a released row that a statement
        calls paid, is left out until a person settles it.
        """
        ...

    async def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Store facts durably in one transaction and move their instructions. Returns each fact's effect.

        Raises `JournalUnwritable`, and then raises it at every later call too.
        """
        ...

    def may_send(self, age_s: float) -> bool:
        """Return whether a request may leave whose intent was passed to `append` `age_s` seconds ago, including sleep.

        Returns False once the journal could not be written, or another process can have taken over the row. It is
        called immediately before the first byte, so it never waits and asks no other machine.
        """
        ...

    async def judge_arrivals(self, words: Mapping[str, OutcomeKind], *, at: str) -> Counter[Finding]:
        """Judge the waiting notifications, as `Journal.judge_arrivals` does."""
        ...


class CountedKind(StrEnum):
    """The classes of outcomes that the limits count."""

    ANSWERED = "answered"
    """The gateway accepted the order."""
    REJECTED = "rejected"
    UNKNOWN = "unknown"


class CountedOutcomes(NamedTuple):
    """A run of `times` outcomes of the same kind. `reason` is set for rejections."""

    kind: CountedKind
    reason: str
    times: int


class GateStopKind(StrEnum):
    """The reasons why no worker may send."""

    IN_DOUBT = "in_doubt"
    """Successive rows were in doubt."""
    REJECTED = "rejected"
    """Successive rows were rejected for one reason."""
    REQUESTED = "told"
    """A worker stopped, for the reason that it gives."""


@dataclass(frozen=True, slots=True)
class GateStop:
    """The reason why no worker may send, and the number of rows in succession with this reason."""

    kind: GateStopKind
    count: int
    text: str


@dataclass(frozen=True, slots=True)
class GateReport:
    """A sending process's report to the gate, with the limits in its configuration.

    `rest_s` is the pause that the gateway asked it for. `stop` is the reason why the process stopped, or None.
    """

    stop_after_in_doubt: int
    stop_after_rejected: int
    rest_s: float = 0.0
    stop: str = ""
    outcomes: Sequence[CountedOutcomes] = ()


@dataclass(frozen=True, slots=True)
class GateShare:
    """A process's share of the limits. `senders` counts the sending processes, and `before` those before this one.

    A limit is None if no person set it. `rest_s` is the pause that the gateway asked for.
    """

    senders: int
    before: int
    rate_per_s: float | None
    concurrency: int | None
    rest_s: float
    stop: GateStop | None


class Gate(Protocol):
    """One process's access to the limits that all processes of an endpoint share. Called from one thread at a time."""

    def open(self) -> None:
        """Begin a run that a person started, and clear the previous run's stop."""
        ...

    def ask(self, report: GateReport) -> GateShare:
        """Report outcomes and return this process's share. Raises `JournalError`."""
        ...

    def close(self) -> None:
        """Return this process's share to the other processes."""
        ...


@dataclass(frozen=True, slots=True)
class Sender:
    """A live sending process, and the number of its rows in flight."""

    worker: int
    host: str
    pid: int
    command: str
    in_flight: int


@dataclass(frozen=True, slots=True)
class GateState:
    """The gate's state as shown to people. A limit that no person set is None, and the configuration applies.

    Times are UTC, ISO 8601; an empty one means never.
    """

    rate_per_s: float | None
    concurrency: int | None
    set_by: str
    set_at: str
    workers: Sequence[Sender]
    rest_until: str
    in_doubt_in_a_row: int
    rejected_in_a_row: int
    stop: GateStop | None
    stopped_at: str


@dataclass(frozen=True, slots=True)
class LimitChange:
    """A person's change of the limits shared by all workers. None leaves a limit unchanged.

    With `is_as_configured`, limits that are not named are removed, and the configuration applies again.
    """

    by: str
    rate_per_s: float | None = None
    concurrency: int | None = None
    is_as_configured: bool = False


JOBS_SCHEMA = "paygw_jobs"
"""The schema of the database with the jobs of workers and the last result of each job; no journal reads it."""


@dataclass(frozen=True, slots=True)
class SharedRun:
    """The current state of a run that workers share. `batch` is the batch's number in the journal."""

    number: int
    batch: int
    stop_reason: str | None
    is_over: bool
    is_urgent: bool = False


@dataclass(frozen=True, slots=True)
class RowBeingSent:
    """A row of a batch that a live process has in flight. `row` is its number in the sheet."""

    instruction: int
    row: int
    country: str
    currency: str
    minor: int


@dataclass(frozen=True, slots=True)
class WorkerLife:
    """A worker that is alive, or that died and left rows in flight.

    `batch` is the batch that it is sending, or None if it waits. `rows` counts the rows that it has sent. Times are
    UTC, ISO 8601 with `Z`.
    """

    host: str
    pid: int
    since: str
    seen_at: str
    is_alive: bool
    batch: str | None
    rows: int


@dataclass(frozen=True, slots=True)
class UnfinishedRun:
    """An unfinished run. `batch` is the batch's id, and `rows_left` the number of rows still to be sent."""

    batch: str
    sheet_name: str
    rows_left: int
    is_urgent: bool
    is_stopped: bool


@dataclass(frozen=True, slots=True)
class SharedWork:
    """The current work of all hosts: their workers, the runs being sent, and the limits."""

    workers: Sequence[WorkerLife]
    runs: Sequence[UnfinishedRun]
    gate: GateState


@dataclass(frozen=True, slots=True)
class TimetableJob:
    """A timetable job: whether it is waiting or running, and its last result on any host.

    `attempts` counts the tries that failed, and `due_at` is the time of the next try. `missed_at` is the last time at
    which the job was due and no worker ran it. Times are UTC, ISO 8601 with `Z`.
    """

    name: str
    is_being_done: bool
    attempts: int
    due_at: str | None
    host: str | None
    began_at: str | None
    ended_at: str | None
    exit_code: int | None
    missed_at: str | None = None


class SharedRunHandle(Protocol):
    """A handle on a run that was handed over to workers."""

    def read_state(self) -> SharedRun:
        """Return the current state of the run."""
        ...

    def has_workers(self) -> bool:
        """Return whether a worker is alive."""
        ...

    def stop(self, reason: str) -> None:
        """Stop the run: no worker starts another row. Later calls do not change the reason."""
        ...


T = TypeVar("T")

MAX_JUDGED_PER_CALL = 1_000
"""The approximate number of notifications that a run judges before it goes back to sending."""


class JournalThread:
    """Runs an engine's calls to a journal one after another in one thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")

    async def call(self, function: Callable[[], T]) -> T:
        """Call `function` in the thread and wait for it even if the caller is cancelled."""
        future = asyncio.get_running_loop().run_in_executor(self._thread, function)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            future.exception()  # the next call to the journal raises it
            raise

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()


class SendingJournal(Protocol):
    """The methods of a journal that `SerializedCalls` and its subclasses need."""

    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Make facts durable in one transaction."""
        ...

    def due(self, batch: int, *, after_row: int, limit: int) -> Sequence[DueRow]:
        """Return the next rows of a batch that may be sent."""
        ...

    def judge_arrivals(
        self, words: Mapping[str, OutcomeKind], *, at: str, at_most: int | None = None
    ) -> Counter[Finding]:
        """Judge the waiting notifications."""
        ...


class SerializedCalls:
    """Makes an engine's calls to a journal one at a time, for every store."""

    def __init__(self, journal: SendingJournal) -> None:
        self._journal = journal
        self._thread = JournalThread()
        self._lock = asyncio.Lock()
        self._last_row: dict[int, int] = {}

    async def call(self, function: Callable[[], T]) -> T:
        """Call `function` after all earlier calls have ended."""
        async with self._lock:
            return await self._thread.call(function)

    async def due(self, batch: int, *, limit: int) -> Sequence[DueRow]:
        """Return the next rows that are due, as `EngineJournal` does."""
        return await self.call(partial(self._next_page, batch, limit))

    async def judge_arrivals(self, words: Mapping[str, OutcomeKind], *, at: str) -> Counter[Finding]:
        """Judge some of the waiting notifications, as `EngineJournal` does."""
        return await self.call(partial(self._journal.judge_arrivals, words, at=at, at_most=MAX_JUDGED_PER_CALL))

    def close(self) -> None:
        """End the thread."""
        self._thread.close()

    def _next_page(self, batch: int, limit: int) -> Sequence[DueRow]:
        page = self._journal.due(batch, after_row=self._last_row.get(batch, 0), limit=limit)
        if page:
            self._last_row[batch] = page[-1].row
        return page
