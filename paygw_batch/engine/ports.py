"""The ports of the engine: transport, clock, progress, pacing. Tests and the simulation replace each of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from paygw_batch.clock import ElapsedS, Now
from paygw_batch.core.outcome import Outcome
from paygw_batch.gateway.message import Attempt, MayLeave, PreparedRequest, RawReply, TransportFault
from paygw_batch.journal import Due


class Gateway(Protocol):
    """The way to the payment gateway."""

    async def deliver(self, request: PreparedRequest, may_leave: MayLeave) -> RawReply | TransportFault:
        """Send one request and wait for its reply. Never raises for a reason of the network.

        `may_leave` is called immediately before the first byte; if it returns False, nothing leaves.
        """
        ...


class Prepare(Protocol):
    """Turns attempts into signed requests, off the event loop if possible."""

    async def __call__(self, attempts: Sequence[Attempt]) -> Sequence[PreparedRequest]:
        """Return the request of each attempt. May be called again while an earlier call is under way."""
        ...


class Progress(Protocol):
    """Receives the progress of a run."""

    def started(self, due: int) -> None:
        """`due` rows may be sent in this run."""
        ...

    def concluded(self, due: Due, outcome: Outcome) -> None:
        """The attempt of `due` ended with `outcome`, and the outcome is durable."""
        ...

    def note(self, sentence: str) -> None:
        """Tell a person something at once."""
        ...


class Pacing(Protocol):
    """Decides the number of rows in flight, the time of the next start, and when a run must stop.

    Times are those of the event loop. No call waits.
    """

    def begin(self, changed: Callable[[], None], stop: Callable[[str], None]) -> None:
        """Begin a run, inside its event loop. `changed` is called when another row may start.

        `stop` takes a reason to stop the run that does not follow from its own outcomes.
        """
        ...

    async def end(self) -> None:
        """End the run; nothing is in flight now."""
        ...

    def has_place(self, in_flight: int) -> bool:
        """Whether one more row may be in flight beside `in_flight`."""
        ...

    def wait_s(self, now_s: float) -> float:
        """Return how long to wait before the next start."""
        ...

    def start(self, now_s: float) -> None:
        """Record that a row starts now."""
        ...

    def learn(self, outcome: Outcome) -> str | None:
        """Note the outcome of an attempt; return why the run must stop, or None."""
        ...

    def pause(self, now_s: float, pause_s: float) -> None:
        """Record that the gateway asked for a pause."""
        ...

    def stopped(self, reason: str) -> None:
        """Record that the gateway's answer stopped the run: no worker can go on."""
        ...


@dataclass(frozen=True, slots=True)
class World:
    """The sources of time, nonces and chance that a run uses."""

    now: Now
    elapsed_s: ElapsedS
    nonce: Callable[[], str]
    """Unique per attempt, at least 128 random bits."""
    chance: Callable[[], float] = field(default=lambda: 0.5)
    """A number from 0 up to 1, for the jitter of waits."""
