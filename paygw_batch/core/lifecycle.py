"""Defines the state machine of an instruction: states, facts and the table of moves.

An instruction starts READY, and may be sent only while it is READY. INTENDED is made durable before a request may be
sent. The reply or fault is another fact. Only three facts make it READY again: proof that nothing was sent (NOT_SENT),
a person's decision based on evidence (RESOLVED_NOT_RECEIVED), and a release of a rejected row (RELEASED). A move that
is not in the table is illegal: it is a bug, or a late or contradicting message, which is stored as evidence without
effect.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, assert_never

from paygw_batch.core.outcome import Outcome, OutcomeKind


class State(StrEnum):
    """The state of an instruction."""

    READY = "ready"
    """The row has not been sent, or may be sent again. A crash in this state has no effect."""
    IN_FLIGHT = "in_flight"
    """The row's intent is durable, but its outcome is not. A crash in this state puts the row in doubt."""
    IN_DOUBT = "in_doubt"
    """A request may have been sent, with unknown outcome. Only the gateway's evidence or a person settles the row."""
    ACCEPTED = "accepted"
    """The gateway has the order, but has not given a final answer."""
    PAID = "paid"
    """The gateway confirmed the payment."""
    REJECTED = "rejected"
    """The gateway rejected the order for good. A person may release the row for another attempt."""
    RETURNED = "returned"
    """The row was paid, and the money was returned."""
    REPLACED = "replaced"
    """An amended row in a later sheet replaced this row, which was never sent or was rejected. This state is final."""

    __hash__ = str.__hash__  # a member equals its text, so the hashes must match; Enum's own hash is also slow


class FactKind(StrEnum):
    """The kinds of facts about an instruction."""

    INTENDED = "intended"
    NOT_SENT = "not_sent"
    ACCEPTED = "accepted"
    PAID = "paid"
    REJECTED = "rejected"
    UNKNOWN = "unknown"
    INTERRUPTED = "interrupted"
    RESOLVED_PAID = "resolved_paid"
    RESOLVED_REJECTED = "resolved_rejected"
    RESOLVED_NOT_RECEIVED = "resolved_not_received"
    RELEASED = "released"
    RETURNED = "returned"
    REPLACED = "replaced"

    __hash__ = str.__hash__  # a member equals its text, so the hashes must match; Enum's own hash is also slow


TRANSITIONS: Mapping[tuple[State, FactKind], State] = MappingProxyType(
    {
        (State.READY, FactKind.INTENDED): State.IN_FLIGHT,
        (State.READY, FactKind.REPLACED): State.REPLACED,
        (State.READY, FactKind.RESOLVED_PAID): State.PAID,
        (State.READY, FactKind.RESOLVED_REJECTED): State.REJECTED,
        (State.READY, FactKind.RESOLVED_NOT_RECEIVED): State.READY,
        (State.IN_FLIGHT, FactKind.NOT_SENT): State.READY,
        (State.IN_FLIGHT, FactKind.ACCEPTED): State.ACCEPTED,
        (State.IN_FLIGHT, FactKind.PAID): State.PAID,
        (State.IN_FLIGHT, FactKind.REJECTED): State.REJECTED,
        (State.IN_FLIGHT, FactKind.UNKNOWN): State.IN_DOUBT,
        (State.IN_FLIGHT, FactKind.INTERRUPTED): State.IN_DOUBT,
        (State.IN_DOUBT, FactKind.ACCEPTED): State.ACCEPTED,
        (State.IN_DOUBT, FactKind.PAID): State.PAID,
        (State.IN_DOUBT, FactKind.REJECTED): State.REJECTED,
        (State.IN_DOUBT, FactKind.RESOLVED_PAID): State.PAID,
        (State.IN_DOUBT, FactKind.RESOLVED_REJECTED): State.REJECTED,
        (State.IN_DOUBT, FactKind.RESOLVED_NOT_RECEIVED): State.READY,
        (State.ACCEPTED, FactKind.PAID): State.PAID,
        (State.ACCEPTED, FactKind.REJECTED): State.REJECTED,
        (State.ACCEPTED, FactKind.RESOLVED_PAID): State.PAID,
        (State.ACCEPTED, FactKind.RESOLVED_REJECTED): State.REJECTED,
        (State.PAID, FactKind.RETURNED): State.RETURNED,
        (State.REJECTED, FactKind.RELEASED): State.READY,
        (State.REJECTED, FactKind.REPLACED): State.REPLACED,
    }
)

STATE_AFTER: Mapping[FactKind, State] = MappingProxyType({kind: state for (_, kind), state in TRANSITIONS.items()})
"""Maps each kind of fact to the state after it, which does not depend on the state before it."""


# `Intended` and `Concluded` are created for every payout. They are tuples, because creating a frozen dataclass takes
# four times as long.


class Intended(NamedTuple):
    """An attempt is about to be sent with this order id, nonce and timestamp.

    `endpoint_id` is None if the attempt is known only from the sent log of a host.
    """

    order_id: str
    nonce: str
    timestamp_s: int
    purpose: str | None
    endpoint_id: str | None = None


class Concluded(NamedTuple):
    """The attempt ended with this outcome."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The attempt's run ended without recording its outcome."""


class Resolution(StrEnum):
    """A person's decision about a row in doubt, an accepted row, or a ready row held by evidence."""

    PAID = "paid"
    REJECTED = "rejected"
    NOT_RECEIVED = "not-received"


class Basis(StrEnum):
    """Whose authority a settlement is based on."""

    PERSON = "person"
    """The person's, possibly based on a file that is not proven to come from the gateway."""
    GATEWAY = "gateway"
    """The gateway's: a statement proven by `[evidence]` contains its status word, with a time after the attempt."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A person settled the row, with evidence."""

    resolution: Resolution
    evidence: str
    by: str
    basis: Basis = Basis.PERSON
    order: str = ""
    """The digest of the signed order for this settlement. Empty if one person decided."""


@dataclass(frozen=True, slots=True)
class Released:
    """A person allowed a rejected row to be sent again, under `order_id`."""

    order_id: str
    by: str
    order: str = ""
    """The digest of the signed order for this release. Empty if one person decided."""


@dataclass(frozen=True, slots=True)
class Returned:
    """The money was returned."""

    evidence: str


@dataclass(frozen=True, slots=True)
class Replaced:
    """An amended row in a later sheet took over this row's order id."""

    batch: str
    row: int


Fact = Intended | Concluded | Interrupted | Resolved | Released | Returned | Replaced


_KIND_BY_OUTCOME: Mapping[OutcomeKind, FactKind] = MappingProxyType({kind: FactKind(kind) for kind in OutcomeKind})
_KIND_BY_RESOLUTION: Mapping[Resolution, FactKind] = MappingProxyType(
    {
        Resolution.PAID: FactKind.RESOLVED_PAID,
        Resolution.REJECTED: FactKind.RESOLVED_REJECTED,
        Resolution.NOT_RECEIVED: FactKind.RESOLVED_NOT_RECEIVED,
    }
)


_INTENDED, _RELEASED = FactKind.INTENDED, FactKind.RELEASED
"""Every payout uses these two kinds. They are constants because Python 3.11 is slow to look up enum members."""


def fact_kind(fact: Fact) -> FactKind:
    """Return the kind of a fact, which is its key in the table of moves."""
    match fact:
        case Intended():
            return _INTENDED
        case Concluded():
            return _KIND_BY_OUTCOME[fact.outcome.kind]
        case Interrupted():
            return FactKind.INTERRUPTED
        case Resolved(resolution):
            return _KIND_BY_RESOLUTION[resolution]
        case Released():
            return _RELEASED
        case Returned():
            return FactKind.RETURNED
        case Replaced():
            return FactKind.REPLACED
        case _:
            assert_never(fact)


class Standing(NamedTuple):
    """The state of an instruction and its latest attempt, derived from its facts.

    `attempt` is the number of the latest attempt, or 0 before the first. `generation` starts at 1, and grows with each
    release. `possible_duplicate_of` is the latest attempt that a person settled as not received or rejected. It is
    never reset.
    """

    state: State = State.READY
    attempt: int = 0
    generation: int = 1
    possible_duplicate_of: int | None = None

    @property
    def is_rejected_by_person(self) -> bool:
        """Whether a person, not a message from the gateway, settled the row as rejected."""
        return self.state is State.REJECTED and self.possible_duplicate_of == self.attempt


@dataclass(frozen=True, slots=True)
class IllegalMove:
    """A fact that does not fit the instruction's state. It is stored as evidence, and has no effect."""

    state: State
    attempt: int
    kind: FactKind
    fact_attempt: int


_MARKING_KINDS = {FactKind.RESOLVED_REJECTED, FactKind.RESOLVED_NOT_RECEIVED}
"""Settlements after which a row could be sent again, even those based on a proven statement."""


class Move(NamedTuple):
    """An entry in the table of moves: the new state, and other effects.

    `attempts` and `generations` are added to the row's counts. `is_marking` makes later attempts possible duplicates of
    this one. `is_sending` means that the attempt may have been sent.
    """

    before: State
    kind: FactKind
    after: State
    attempts: int
    generations: int
    is_marking: int
    is_sending: int


MOVES: Mapping[tuple[State, FactKind], Move] = MappingProxyType(
    {
        (before, kind): Move(
            before,
            kind,
            after,
            int(kind is _INTENDED),
            int(kind is _RELEASED),
            int(kind in _MARKING_KINDS),
            int(before is State.IN_FLIGHT and kind is not FactKind.NOT_SENT),
        )
        for (before, kind), after in TRANSITIONS.items()
    }
)
"""Maps the state before a fact and its kind to the move. Contains all legal moves."""


def next_standing(standing: Standing, kind: FactKind, attempt: int) -> Standing | IllegalMove:
    """Return the standing after a fact of this kind about `attempt`."""
    move = MOVES.get((standing.state, kind))
    # A fact about another attempt is late or repeated. If it counted, an old rejection would reject the latest attempt,
    # and the row could be released while that attempt is being paid.
    if move is None or attempt != standing.attempt + move.attempts:
        return IllegalMove(standing.state, standing.attempt, kind, attempt)
    duplicate_of = attempt if move.is_marking else standing.possible_duplicate_of
    return Standing(move.after, attempt, standing.generation + move.generations, duplicate_of)
