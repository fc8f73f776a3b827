"""The outcome of an attempt, and the advice to the run that comes with it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class OutcomeKind(StrEnum):
    """The five results that an attempt can have."""

    NOT_SENT = "not_sent"
    """It is proven that no byte of the request left. The row may be tried again."""
    ACCEPTED = "accepted"
    """The gateway has it; its final answer is awaited."""
    PAID = "paid"
    """The gateway confirmed the payment."""
    REJECTED = "rejected"
    """The gateway rejected it for good."""
    UNKNOWN = "unknown"
    """A byte may have left, and nobody knows whether the gateway paid."""

    __hash__ = str.__hash__  # what is equal hashes the same; Enum's own would not, and is slow


ANSWERS = frozenset({OutcomeKind.ACCEPTED, OutcomeKind.PAID, OutcomeKind.REJECTED})
"""The gateway's own answers."""


class Outcome(NamedTuple):
    """The result of an attempt, with the gateway's own words, if it gave any (a tuple: every payout makes one).

    `cause` is a stable code of ours for what is not an answer of the gateway's (`connect.refused`, `read.timeout`,
    `reply.status_missing`) and empty otherwise. `conflict` marks a reply that spoke of another payout.
    `reply_sha256` is the digest of the raw reply, in hex, if that is kept.
    `customer_url` is where the customer of a collection goes to pay, if the gateway named such a page.
    """

    kind: OutcomeKind
    cause: str = ""
    gateway_status: str | None = None
    gateway_reference: str | None = None
    http_status: int | None = None
    error_code: str | None = None
    message: str | None = None
    conflict: bool = False
    customer_url: str | None = None
    reply_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class GoOn:
    """Nothing about this outcome concerns the rest of the run."""


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Nothing left, and another try soon may succeed."""


@dataclass(frozen=True, slots=True)
class PauseRun:
    """The gateway asked for a rest: start nothing new for `pause_s` seconds."""

    pause_s: float


@dataclass(frozen=True, slots=True)
class StopRun:
    """Start nothing new in this run. `reason` is a sentence for a person."""

    reason: str


Advice = GoOn | TryAgain | PauseRun | StopRun


@dataclass(frozen=True, slots=True)
class Verdict:
    """An outcome, and the advice that comes with it."""

    outcome: Outcome
    advice: Advice = GoOn()
