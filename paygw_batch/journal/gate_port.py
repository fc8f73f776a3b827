"""Declares the gate of an endpoint: the limits that all workers share, where a journal has several."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol


class CountedKind(StrEnum):
    """The meaning of an outcome to the limits."""

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
    """This number of rows in a row came into doubt."""
    REJECTED = "rejected"
    """This number of rows in a row were rejected for one reason."""
    REQUESTED = "told"
    """One worker stopped, and says why."""


@dataclass(frozen=True, slots=True)
class GateStop:
    """The reason why no worker may send, and the number of rows in a row that had it."""

    kind: GateStopKind
    count: int
    text: str


@dataclass(frozen=True, slots=True)
class GateReport:
    """A worker's report to the gate, with its wishes. The limits are those of its configuration.

    `wanted` places, of which `in_use` are used now or may be until the answer comes, and `starts`. `rest_s`: the
    gateway asked this worker for a rest. `stop`: why this worker has stopped.
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
    """The places in flight that a worker may have now, and the starts that it may use, each with its time.

    The first start is in `first_s` seconds, and each later one `every_s` after it; `every_s` is 0 if no rate is set,
    and starts are then free. `rest_s`: how long the gateway asked for a rest.
    """

    places: int
    is_growing: bool
    """Whether more answers give more places, over all workers."""
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
        """Give all places back."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerPlaces:
    """The places in flight that one living worker has, and the number in use."""

    worker: int
    host: str
    pid: int
    command: str
    places: int
    in_use: int


@dataclass(frozen=True, slots=True)
class GateState:
    """The gate as people see it. A limit is None if no person set it: the configuration is then in force.

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
    """A person's word on the limits over all workers: figures to set; None leaves a limit as it is.

    `is_as_configured`: limits that are not named are taken away, and the configuration is in force again.
    """

    by: str
    rate_per_s: float | None = None
    concurrency: int | None = None
    is_as_configured: bool = False
