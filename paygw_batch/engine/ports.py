"""The ports of the engine: transport, clock, progress. Tests and the simulation replace each of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from paygw_batch.clock import Now
from paygw_batch.core.outcome import Outcome
from paygw_batch.gateway.message import Attempt, PreparedRequest, RawReply, TransportFault
from paygw_batch.journal import Due


class Gateway(Protocol):
    """The way to the payment gateway."""

    async def deliver(self, request: PreparedRequest) -> RawReply | TransportFault:
        """Send one request and wait for its reply. Never raises for a reason of the network."""
        ...


class Prepare(Protocol):
    """Turns attempts into signed requests, off the event loop where it can."""

    async def __call__(self, attempts: Sequence[Attempt]) -> Sequence[PreparedRequest]:
        """Return the request of each attempt. May be called again while an earlier call is under way."""
        ...


class Progress(Protocol):
    """Receives the progress of a run."""

    def started(self, due: int) -> None:
        """`due` rows may be sent in this run."""
        ...

    def concluded(self, due: Due, outcome: Outcome) -> None:
        """The attempt that was `due` ended with `outcome`, and that is durable."""
        ...

    def note(self, sentence: str) -> None:
        """Something a person should know now."""
        ...


@dataclass(frozen=True, slots=True)
class World:
    """The sources of time, nonces and chance that a run uses."""

    now: Now
    nonce: Callable[[], str]
    """Unique per attempt, at least 128 random bits."""
    chance: Callable[[], float] = field(default=lambda: 0.5)
    """A number from 0 up to 1, for the jitter of waits."""
