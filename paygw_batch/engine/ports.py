"""The ports of the engine: transport, clock, progress. Tests and the simulation replace each of them."""

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


@dataclass(frozen=True, slots=True)
class World:
    """The sources of time, nonces and chance that a run uses."""

    now: Now
    elapsed_s: ElapsedS
    nonce: Callable[[], str]
    """Unique per attempt, at least 128 random bits."""
    chance: Callable[[], float] = field(default=lambda: 0.5)
    """A number from 0 up to 1, for the jitter of waits."""
