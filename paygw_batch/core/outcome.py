"""Defines the outcome of an attempt and the advice for the run."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class OutcomeKind(StrEnum):
    """The five possible results of an attempt."""

    NOT_SENT = "not_sent"
    """Certainly no byte of the request was sent. The row may be sent again."""
    ACCEPTED = "accepted"
    """The gateway has the order, but has not given a final answer."""
    PAID = "paid"
    """The gateway confirmed the payment."""
    REJECTED = "rejected"
    """The gateway rejected the order for good."""
    UNKNOWN = "unknown"
    """A byte may have been sent, and it is not known whether the gateway paid."""

    __hash__ = str.__hash__  # a member equals its text, so the hashes must match; Enum's own hash is also slow


ANSWERS = frozenset({OutcomeKind.ACCEPTED, OutcomeKind.PAID, OutcomeKind.REJECTED})
"""The outcomes that are answers from the gateway."""


class Outcome(NamedTuple):
    """The result of an attempt, with the gateway's own values, if any. It is a tuple because creating one is fast.

    `cause` is our stable code if there is no usable answer (`connect.refused`, `read.timeout`,
    `reply.status_missing`), otherwise empty. `conflict` marks a reply about another payout. `reply_sha256` is the
    digest (hex) of the stored reply, if any. `customer_url` is the page on which the customer of a collection pays.
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
class ContinueRun:
    """The outcome does not affect the rest of the run."""


@dataclass(frozen=True, slots=True)
class RetrySoon:
    """Nothing was sent, and a retry after a short delay may succeed."""


@dataclass(frozen=True, slots=True)
class PauseRun:
    """The gateway asked for a pause: start no row for `pause_s` seconds."""

    pause_s: float


@dataclass(frozen=True, slots=True)
class StopRun:
    """The run should start no more rows. `reason` is a message for a person."""

    reason: str


Advice = ContinueRun | RetrySoon | PauseRun | StopRun


@dataclass(frozen=True, slots=True)
class Verdict:
    """An outcome, and what the run should do next."""

    outcome: Outcome
    advice: Advice = ContinueRun()
