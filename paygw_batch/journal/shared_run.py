"""Declares the values about runs that workers on several hosts share, and the interface of such a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from paygw_batch.journal.gate_port import GateState

JOBS_SCHEMA = "paygw_jobs"
"""The schema of the database that holds the jobs of workers, and the last result of each; no journal reads it."""


@dataclass(frozen=True, slots=True)
class SharedRun:
    """A run of a batch (`batch` is its number in the journal) that workers send together, as it is now."""

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
    """A worker process that lives, or died and left a chunk that nobody has taken over yet.

    `batch` and `chunk` say where it is; None: it waits.

    `rows` counts the rows of the chunks that it has finished. Times are UTC, ISO 8601 with `Z`.
    """

    host: str
    pid: int
    since: str
    seen_at: str
    is_alive: bool
    batch: str | None
    chunk: int | None
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
    takeovers: int = 0
    """The number of leases, since the journal was made, that a process took over from another one."""


@dataclass(frozen=True, slots=True)
class TimetableJob:
    """A job of the timetable: whether it waits or is being done, and its last result, of any host.

    `attempts` counts the tries that failed; `due_at` says when the next one is. Times are UTC, ISO 8601 with `Z`.
    """

    name: str
    is_being_done: bool
    attempts: int
    due_at: str | None
    host: str | None
    began_at: str | None
    ended_at: str | None
    exit_code: int | None


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
