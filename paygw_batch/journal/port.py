"""Declares the interfaces that a run sends with: the journal, the shared run, and the limits of all workers."""

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
from paygw_batch.journal.values import Due, Entry, MoveResult

VerifyProgress = Callable[[int, int], None]
"""Receives the number of rows replayed so far, and the total."""


def unwatched(done: int, rows: int) -> None:
    """Show no progress."""


class EngineJournal(Protocol):
    """The journal as an engine uses it to send batches. No call blocks the event loop; calls are made one at a time."""

    async def due(self, batch: int, *, limit: int) -> Sequence[Due]:
        """Return the next READY instructions of a batch, at most `limit`, in the sheet's order; none at its end.

        Each is given once. One that evidence contradicts is held, and left out, until a person settles it: a row that
        was released, and that the gateway or a statement then says is paid.
        """
        ...

    async def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Make facts durable in one transaction, and move their instructions; return the effect of each.

        On return, everything is on stable storage. Raises `JournalUnwritable`, and from then on for every further call.
        """
        ...

    def may_leave(self, age_s: float) -> bool:
        """Whether a request may leave now whose intent was handed in `age_s` seconds ago, sleep included.

        False once the journal could not be written, or another process can have taken the row over. Asked immediately
        before the first byte: it never waits, and asks no other machine.
        """
        ...

    async def judge_arrivals(self, words: Mapping[str, OutcomeKind], *, at: str) -> Counter[Finding]:
        """Judge the notifications that wait, as `Journal.judge_arrivals` does."""
        ...


class CountedKind(StrEnum):
    """The meaning of an outcome for the limits."""

    ANSWERED = "answered"
    """The gateway took the order."""
    REJECTED = "rejected"
    UNKNOWN = "unknown"


class CountedOutcomes(NamedTuple):
    """A run of equal outcomes; `reason` is set for rejections."""

    kind: CountedKind
    reason: str
    times: int


class GateStopKind(StrEnum):
    """Why no worker may send."""

    IN_DOUBT = "in_doubt"
    """Successive rows were in doubt."""
    REJECTED = "rejected"
    """Successive rows were rejected for one reason."""
    REQUESTED = "told"
    """One worker stopped, for the reason it gives."""


@dataclass(frozen=True, slots=True)
class GateStop:
    """The reason why no worker may send, and the number of successive rows with it."""

    kind: GateStopKind
    count: int
    text: str


@dataclass(frozen=True, slots=True)
class GateReport:
    """The report of a process that sends to the gate. The limits are those of its configuration.

    `rest_s`: the gateway asked it for a pause. `stop`: why it has stopped.
    """

    stop_after_in_doubt: int
    stop_after_rejected: int
    rest_s: float = 0.0
    stop: str = ""
    outcomes: Sequence[CountedOutcomes] = ()


@dataclass(frozen=True, slots=True)
class GateShare:
    """The share of one of `senders` processes: `before` of them come before it. A limit is None if no person set it.

    `rest_s`: how long the gateway asked for a rest.
    """

    senders: int
    before: int
    rate_per_s: float | None
    concurrency: int | None
    rest_s: float
    stop: GateStop | None


class Gate(Protocol):
    """The limits of an endpoint over all processes, as one of them uses them. Called from one thread at a time."""

    def open(self) -> None:
        """Begin a run that a person started, and lift the stop of the one before."""
        ...

    def ask(self, report: GateReport) -> GateShare:
        """Report outcomes, and return the share of this process. Raises `JournalError`."""
        ...

    def close(self) -> None:
        """Leave the share to others."""
        ...


@dataclass(frozen=True, slots=True)
class Sender:
    """A living process that sends, and the number of its rows in flight."""

    worker: int
    host: str
    pid: int
    command: str
    in_flight: int


@dataclass(frozen=True, slots=True)
class GateState:
    """The gate as shown to people. A limit is None if no person set it: then the configuration applies.

    Times are UTC, ISO 8601; empty: never.
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
    """A person's decision about the limits over all workers; None leaves a limit unchanged.

    `is_as_configured`: limits that are not named are removed, and the configuration applies again.
    """

    by: str
    rate_per_s: float | None = None
    concurrency: int | None = None
    is_as_configured: bool = False


JOBS_SCHEMA = "paygw_jobs"
"""The schema of the database that holds the jobs of workers, and the last result of each; no journal reads it."""


@dataclass(frozen=True, slots=True)
class SharedRun:
    """A run of a batch (`batch` is its number in the journal) that workers send together, in its present state."""

    number: int
    batch: int
    stop_reason: str | None
    is_over: bool
    is_urgent: bool = False


@dataclass(frozen=True, slots=True)
class RowBeingSent:
    """A row of a batch (`row` counts in its sheet) that a living process has in flight."""

    instruction: int
    row: int
    country: str
    currency: str
    minor: int


@dataclass(frozen=True, slots=True)
class WorkerLife:
    """A worker process that lives, or died and left rows in flight.

    `batch` says where it is; None: it waits. `rows` counts the rows that it has sent. Times are UTC, ISO 8601 with `Z`.
    """

    host: str
    pid: int
    since: str
    seen_at: str
    is_alive: bool
    batch: str | None
    rows: int


@dataclass(frozen=True, slots=True)
class RunNow:
    """A run that is not over. `batch` is the batch's id; `rows_left` counts the rows that are still to be sent."""

    batch: str
    sheet_name: str
    rows_left: int
    is_urgent: bool
    is_stopped: bool


@dataclass(frozen=True, slots=True)
class SharedWork:
    """The work of all hosts at one moment: their workers, the runs that they send, and their limits."""

    workers: Sequence[WorkerLife]
    runs: Sequence[RunNow]
    gate: GateState


@dataclass(frozen=True, slots=True)
class TimetableJob:
    """A job of the timetable: whether it waits or is being done, and its last result, of any host.

    `attempts` counts the tries that failed; `due_at` says when the next one is. `missed_at` is the last time at which
    it was due and no worker ran it. Times are UTC, ISO 8601 with `Z`.
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


class RunOfWorkers(Protocol):
    """A run that was handed over to workers."""

    def look(self) -> SharedRun:
        """Return the run as it is now."""
        ...

    def has_workers(self) -> bool:
        """Whether a worker lives."""
        ...

    def stop(self, reason: str) -> None:
        """Let no worker start another row of it. The first reason counts."""
        ...


T = TypeVar("T")

JUDGED_AT_ONCE = 1_000
"""About how many notifications a run judges before it goes on."""


class JournalThread:
    """Makes an engine's calls to a journal, one after the other, in the same thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")

    async def call(self, call: Callable[[], T]) -> T:
        """Make a call. Its turn ends with the call, even if nobody waits for it any more."""
        calling = asyncio.get_running_loop().run_in_executor(self._thread, call)
        try:
            return await asyncio.shield(calling)
        except asyncio.CancelledError:
            await asyncio.wait([calling])
            calling.exception()  # the next call to the journal raises it
            raise

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()


class SendingJournal(Protocol):
    """The calls of a journal that an engine's journal makes."""

    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Make facts durable in one transaction."""
        ...

    def due(self, batch: int, *, after_row: int, limit: int) -> Sequence[Due]:
        """Return the next rows of a batch that may be sent."""
        ...

    def judge_arrivals(
        self, words: Mapping[str, OutcomeKind], *, at: str, at_most: int | None = None
    ) -> Counter[Finding]:
        """Judge the notifications that wait."""
        ...


class CallsInTurn:
    """Makes the calls that an engine's journal has in common, each in its turn."""

    def __init__(self, journal: SendingJournal) -> None:
        self._journal = journal
        self._thread = JournalThread()
        self._turn = asyncio.Lock()
        self._last_row: dict[int, int] = {}

    async def call(self, call: Callable[[], T]) -> T:
        """Make a call to the journal in its turn."""
        async with self._turn:
            return await self._thread.call(call)

    async def due(self, batch: int, *, limit: int) -> Sequence[Due]:
        """Return the next rows, as `EngineJournal` does."""
        return await self.call(partial(self._next, batch, limit))

    async def judge_arrivals(self, words: Mapping[str, OutcomeKind], *, at: str) -> Counter[Finding]:
        """Judge some notifications, as `EngineJournal` does."""
        return await self.call(partial(self._journal.judge_arrivals, words, at=at, at_most=JUDGED_AT_ONCE))

    def close(self) -> None:
        """End the thread."""
        self._thread.close()

    def _next(self, batch: int, limit: int) -> Sequence[Due]:
        page = self._journal.due(batch, after_row=self._last_row.get(batch, 0), limit=limit)
        if page:
            self._last_row[batch] = page[-1].row
        return page
