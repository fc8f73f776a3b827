"""Declares the gate of an endpoint: the limits that all workers of a journal share."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol


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
    """A worker's report and request to the gate. The limits are those of its configuration.

    It requests `starts` and `wanted` slots; `in_use` of them are used now or may be before the answer. `rest_s`: the
    gateway asked this worker for a pause. `stop`: why this worker has stopped.
    """

    wanted: int
    in_use: int
    starts: int
    rate_per_s: float
    concurrency: int
    stop_after_in_doubt: int
    stop_after_rejected: int
    rest_s: float = 0.0
    stop: str = ""
    outcomes: Sequence[CountedOutcomes] = ()


@dataclass(frozen=True, slots=True)
class GateGrant:
    """The number of slots that a worker may use now, and the starts that it may use, each at its time.

    The first start is in `first_s` seconds, and each later one `every_s` after it; `every_s` is 0 if no rate is set,
    and starts are then free. `rest_s`: how long the gateway asked for a rest.
    """

    places: int
    is_growing: bool
    """Whether more answers lead to more slots, over all workers."""
    starts: int
    first_s: float
    every_s: float
    rest_s: float
    stop: GateStop | None


class Gate(Protocol):
    """The limits of an endpoint over all workers, as one worker uses them. Called from one thread at a time."""

    def open(self) -> None:
        """Begin a run that a person started, and lift the stop of the one before."""
        ...

    def ask(self, report: GateReport) -> GateGrant:
        """Report outcomes, and return the grant for this worker. Raises `JournalError`."""
        ...

    def close(self) -> None:
        """Return all slots."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerPlaces:
    """The slots that one living worker has, and the number in use."""

    worker: int
    host: str
    pid: int
    command: str
    places: int
    in_use: int


@dataclass(frozen=True, slots=True)
class GateState:
    """The gate as shown to people. A limit is None if no person set it: then the configuration applies.

    `places`: the number of rows that may be in flight now, over all workers. Times are UTC, ISO 8601; empty: never.
    """

    rate_per_s: float | None
    concurrency: int | None
    set_by: str
    set_at: str
    places: int
    workers: Sequence[WorkerPlaces]
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
