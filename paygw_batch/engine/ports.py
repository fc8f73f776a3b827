"""Defines the engine's ports: transport, signing, progress and clock. Tests and the simulation replace them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from paygw_batch.clock import ElapsedS, Now
from paygw_batch.core.outcome import Outcome
from paygw_batch.gateway.message import Attempt, PreparedRequest, RawReply, SendGuard, TransportFault
from paygw_batch.journal import DueRow


class Gateway(Protocol):
    """Sends requests to the payment gateway."""

    async def deliver(self, request: PreparedRequest, may_send: SendGuard) -> RawReply | TransportFault:
        """Send a request and return the reply or the fault. Network errors are never raised.

        `may_send` is called immediately before the first byte. If it returns False, nothing is sent.
        """
        ...


class Prepare(Protocol):
    """Turns attempts into signed requests, outside the event loop if possible."""

    async def __call__(self, attempts: Sequence[Attempt]) -> Sequence[PreparedRequest]:
        """Return the signed request for each attempt. Calls may overlap."""
        ...


class Progress(Protocol):
    """Receives the progress of a run."""

    def set_total(self, total: int) -> None:
        """Set the number of rows that this run may send."""
        ...

    def record_outcome(self, row: DueRow, outcome: Outcome) -> None:
        """Record an attempt's outcome, which is already durable."""
        ...

    def echo(self, message: str) -> None:
        """Show a message immediately."""
        ...


@dataclass(frozen=True, slots=True)
class Runtime:
    """The sources of time, nonces and randomness for a run."""

    now: Now
    elapsed_s: ElapsedS
    nonce: Callable[[], str]
    """Returns a new nonce with at least 128 random bits."""
    random: Callable[[], float] = field(default=lambda: 0.5)
    """Returns a random number from 0 to 1, for jitter."""
