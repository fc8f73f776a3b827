"""A run's interfaces to the journal, to a shared run, and to the limits shared by all processes."""

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
"""Receives the number of rows replayed so far and the total."""


def ignore_progress(done: int, rows: int) -> None:
    """Ignore the progress of a verification."""


class EngineJournal(Protocol):
    """The interface through which an engine uses the journal, one call at a time. No call blocks the event loop."""

    async def due(self, batch: int, *, limit: int) -> Sequence[DueRow]:
        """Return up to `limit` further READY instructions of a batch, in the sheet's order, or none at the end.

        Each instruction is returned only once. Leaves out rows held by evidence, such as a released row that a
        statement reports as paid, until a person settles them.
        """

    async def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Store facts durably in one transaction and move their instructions. Returns each fact's effect.

        Raises `JournalUnwritable` if the write fails, and in every later call.
        """

    def may_send(self, age_s: float) -> bool:
        """Return whether a request may be sent, given that its intent was passed to `append` `age_s` seconds ago.

        `age_s` includes the time that the machine was asleep. Returns False after a failed write, or if another process
        may have taken over the row. Never waits or calls another machine, because the first byte is sent next.
        """

    async def process_arrivals(self, words: Mapping[str, OutcomeKind], *, at: str) -> Counter[Finding]:
        """Process pending notifications (see `Journal.process_arrivals`)."""


class CountedKind(StrEnum):
    """The kinds of outcomes that the gate counts."""

    ANSWERED = "answered"
    """The gateway accepted the order."""
    REJECTED = "rejected"
    UNKNOWN = "unknown"


class CountedOutcomes(NamedTuple):
    """A series of `times` successive outcomes of the same kind. Rejections also have the same `reason`."""

    kind: CountedKind
    reason: str
    times: int


class GateStopKind(StrEnum):
    """The reasons why no worker may send."""

    IN_DOUBT = "in_doubt"
    """Too many successive rows were in doubt."""
    REJECTED = "rejected"
    """Too many successive rows were rejected for the same reason."""
    REQUESTED = "told"
    """A worker stopped and gave its own reason."""


@dataclass(frozen=True, slots=True)
class GateStop:
    """The reason why no worker may send, and the number of successive rows that caused it."""

    kind: GateStopKind
    count: int
    text: str


@dataclass(frozen=True, slots=True)
class GateReport:
    """A sending process's report to the gate, with the limits from its configuration.

    `rest_s` is the pause requested by the gateway. `stop` is the reason why the process stopped, or empty.
    """

    stop_after_in_doubt: int
    stop_after_rejected: int
    rest_s: float = 0.0
    stop: str = ""
    outcomes: Sequence[CountedOutcomes] = ()


@dataclass(frozen=True, slots=True)
class GateShare:
    """One process's share of the limits. `senders` is the number of sending processes, this one included.

    `before` is how many of them precede this one, which determines who gets the remainder of a division. A limit is
    None if nobody set it. `rest_s` is the pause requested by the gateway.
    """

    senders: int
    before: int
    rate_per_s: float | None
    concurrency: int | None
    rest_s: float
    stop: GateStop | None


class Gate(Protocol):
    """One process's access to the limits shared by all processes of an endpoint. Not thread-safe."""

    def open(self) -> None:
        """Let processes send again after a stop. Called when a person starts a run."""

    def request_share(self, report: GateReport) -> GateShare:
        """Report this process's outcomes and return its share of the limits. Raises `JournalError`."""

    def close(self) -> None:
        """Return this process's share of the limits to the other processes."""


@dataclass(frozen=True, slots=True)
class Sender:
    """A live sending process and its number of rows in flight."""

    worker: int
    host: str
    pid: int
    command: str
    in_flight: int


@dataclass(frozen=True, slots=True)
class GateState:
    """The gate's state as shown to people. Limits that nobody has set are None, and the configuration applies.

    Times are UTC, ISO 8601. The time of an event that has not happened is empty.
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
    """A person's change to the limits shared by all workers. None leaves a limit unchanged.

    With `clears_others`, the limits that are None are removed instead, so that the configuration applies again.
    """

    by: str
    rate_per_s: float | None = None
    concurrency: int | None = None
    clears_others: bool = False


JOBS_SCHEMA = "paygw_jobs"
"""The database schema for the workers' jobs and their latest results. The journal never reads it."""


@dataclass(frozen=True, slots=True)
class SharedRun:
    """The state of a shared run. `batch` is the batch's number in the journal."""

    number: int
    batch: int
    stop_reason: str | None
    is_finished: bool
    is_urgent: bool = False


@dataclass(frozen=True, slots=True)
class RowBeingSent:
    """A row that a live process is sending. `row` is its number in the sheet."""

    instruction: int
    row: int
    country: str
    currency: str
    minor: int


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker that is alive, or that died with rows in flight.

    `batch` is the id of the batch being sent, or None if the worker is idle. `rows` is the number of rows sent so far.
    Times are UTC, ISO 8601 with `Z`.
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
    """An unfinished run. `batch` is the batch's id, and `rows_left` the number of rows still to send."""

    batch: str
    sheet_name: str
    rows_left: int
    is_urgent: bool
    is_stopped: bool


@dataclass(frozen=True, slots=True)
class SharedWork:
    """The activity of all hosts: their workers, the unfinished runs, and the gate."""

    workers: Sequence[WorkerStatus]
    runs: Sequence[UnfinishedRun]
    gate: GateState


@dataclass(frozen=True, slots=True)
class TimetableJob:
    """A job in the timetable: whether it is running, and its latest result on any host.

    `attempts` is the number of failed tries, and `due_at` the time of the next one. `missed_at` is when the job was
    last due without a worker to run it. Times are UTC, ISO 8601 with `Z`.
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
    """A handle to a shared run."""

    def read_state(self) -> SharedRun:
        """Return the current state of the run."""

    def has_workers(self) -> bool:
        """Return whether a worker is alive."""

    def stop(self, reason: str) -> None:
        """Stop the run, so that no worker sends another row. The reason from the first call is kept."""


T = TypeVar("T")

MAX_ARRIVALS_PER_CALL = 1_000
"""The approximate number of notifications that a run processes before it resumes sending."""


class JournalThread:
    """Runs an engine's calls to a journal in a single thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")

    async def call(self, function: Callable[[], T]) -> T:
        """Call `function` in the thread and wait until it returns, even if the caller is cancelled."""
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
    """The journal methods needed by `SerializedCalls` and its subclasses."""

    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Store facts durably in one transaction."""

    def due(self, batch: int, *, after_row: int, limit: int) -> Sequence[DueRow]:
        """Return the next rows of a batch that may be sent, after row `after_row`."""

    def process_arrivals(
        self, words: Mapping[str, OutcomeKind], *, at: str, at_most: int | None = None
    ) -> Counter[Finding]:
        """Process pending notifications."""


class SerializedCalls:
    """Makes an engine's calls to a journal one at a time, whichever store is used."""

    def __init__(self, journal: SendingJournal) -> None:
        self._journal = journal
        self._thread = JournalThread()
        self._lock = asyncio.Lock()
        self._last_row: dict[int, int] = {}

    async def call(self, function: Callable[[], T]) -> T:
        """Call `function` in the thread after all earlier calls have ended."""
        async with self._lock:
            return await self._thread.call(function)

    async def due(self, batch: int, *, limit: int) -> Sequence[DueRow]:
        """Return the next due rows (see `EngineJournal`)."""
        return await self.call(partial(self._next_page, batch, limit))

    async def process_arrivals(self, words: Mapping[str, OutcomeKind], *, at: str) -> Counter[Finding]:
        """Process some pending notifications (see `EngineJournal`)."""
        return await self.call(partial(self._journal.process_arrivals, words, at=at, at_most=MAX_ARRIVALS_PER_CALL))

    def close(self) -> None:
        """End the thread."""
        self._thread.close()

    def _next_page(self, batch: int, limit: int) -> Sequence[DueRow]:
        page = self._journal.due(batch, after_row=self._last_row.get(batch, 0), limit=limit)
        if page:
            self._last_row[batch] = page[-1].row
        return page
