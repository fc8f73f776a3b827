"""The state machine of an instruction: its states, its facts, and the table of moves.

An instruction starts READY. Before a request may leave, INTENDED is made durable. The reply or fault is another fact. A
row may be sent if and only if it is READY. There are only three ways back to READY: proof that nothing left (NOT_SENT),
a person with evidence (RESOLVED_NOT_RECEIVED), and a person who releases a rejected row (RELEASED). A move that is
missing from the table is illegal: either a late or contradicting message, which is kept as evidence and changes
nothing, or a bug.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, assert_never

from paygw_batch.core.outcome import Outcome, OutcomeKind


class State(StrEnum):
    """The state of an instruction. Each member's docstring says how the state is reached."""

    READY = "ready"
    """Nothing was sent for the row, or a person has cleared it to be sent. A crash in this state has no effect."""
    IN_FLIGHT = "in_flight"
    """The row's intent is durable, and its outcome is not. A crash in this state puts it in doubt."""
    IN_DOUBT = "in_doubt"
    """A request may have been sent, and its fate is unknown. Only evidence from the gateway or a person ends it."""
    ACCEPTED = "accepted"
    """The gateway has the order; its final answer is awaited."""
    PAID = "paid"
    """The gateway confirmed the payment."""
    REJECTED = "rejected"
    """The gateway rejected the order for good. A person may release the row for another attempt."""
    RETURNED = "returned"
    """The row was paid, and the money came back."""
    REPLACED = "replaced"
    """The row was never sent, or rejected, and an amended row of a later sheet has replaced it. This state is final."""

    __hash__ = str.__hash__  # a member equals its text, so it hashes alike; Enum's hash differs, and is slow


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

    __hash__ = str.__hash__  # a member equals its text, so it hashes alike; Enum's hash differs, and is slow


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
"""The state that each kind of fact leads to, from every state in which it is legal."""


# Every payout makes facts of these two classes. They are tuples because a frozen dataclass takes four times as long.


class Intended(NamedTuple):
    """An attempt is about to be sent with this order id, nonce and timestamp.

    `endpoint_id` is the endpoint's id, or None if the attempt is known only from a host's sent log.
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
    """A person's decision about a row that is in doubt or accepted, or that is ready and held by evidence."""

    PAID = "paid"
    REJECTED = "rejected"
    NOT_RECEIVED = "not-received"


class Basis(StrEnum):
    """The authority on which a person settled a row."""

    PERSON = "person"
    """A person's, also with a file that nothing proves to be the gateway's."""
    GATEWAY = "gateway"
    """The gateway's: its status word, with a time after the attempt, in a statement that `[evidence]` proves."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A person settled the row, with evidence."""

    resolution: Resolution
    evidence: str
    by: str
    basis: Basis = Basis.PERSON
    order: str = ""
    """The digest of the signed order that asked for the settlement. Empty if one person was enough."""


@dataclass(frozen=True, slots=True)
class Released:
    """A person allowed another attempt for a rejected row, under `order_id`."""

    order_id: str
    by: str
    order: str = ""
    """The digest of the signed order that asked for the release. Empty if one person was enough."""


@dataclass(frozen=True, slots=True)
class Returned:
    """The money came back."""

    evidence: str


@dataclass(frozen=True, slots=True)
class Replaced:
    """An amended row of a later sheet took over this row's order id."""

    batch: str
    row: int


Fact = Intended | Concluded | Interrupted | Resolved | Released | Returned | Replaced


_KIND_BY_OUTCOME: Mapping[OutcomeKind, FactKind] = MappingProxyType(
    {
        OutcomeKind.NOT_SENT: FactKind.NOT_SENT,
        OutcomeKind.ACCEPTED: FactKind.ACCEPTED,
        OutcomeKind.PAID: FactKind.PAID,
        OutcomeKind.REJECTED: FactKind.REJECTED,
        OutcomeKind.UNKNOWN: FactKind.UNKNOWN,
    }
)
_KIND_BY_RESOLUTION: Mapping[Resolution, FactKind] = MappingProxyType(
    {
        Resolution.PAID: FactKind.RESOLVED_PAID,
        Resolution.REJECTED: FactKind.RESOLVED_REJECTED,
        Resolution.NOT_RECEIVED: FactKind.RESOLVED_NOT_RECEIVED,
    }
)


_INTENDED, _RELEASED = FactKind.INTENDED, FactKind.RELEASED
"""The two kinds of every payout, as constants: naming a member of an enum costs a function call in Python 3.11."""


def fact_kind(fact: Fact) -> FactKind:
    """Return the kind of a fact, its key in the table of moves."""
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
    """The state of one instruction and its latest attempt: the result of replaying its facts.

    `attempt` is the number of the latest attempt, or 0 before the first. `generation` starts at 1 and grows with every
    release. `possible_duplicate_of` is the attempt that a person called not received or rejected. It is never reset.
    """

    state: State = State.READY
    attempt: int = 0
    generation: int = 1
    possible_duplicate_of: int | None = None

    @property
    def is_rejected_by_word(self) -> bool:
        """Whether a person, rather than a message from the gateway, reported the row as rejected."""
        return self.state is State.REJECTED and self.possible_duplicate_of == self.attempt


@dataclass(frozen=True, slots=True)
class IllegalMove:
    """A fact that does not fit the state of the instruction. It is kept as evidence and changes nothing."""

    state: State
    attempt: int
    kind: FactKind
    fact_attempt: int


_MARKING = {FactKind.RESOLVED_REJECTED, FactKind.RESOLVED_NOT_RECEIVED}
"""Decisions after which a row could be sent again: a person's, or a proven statement's, which only end a quarantine."""


class Move(NamedTuple):
    """An entry in the table of moves: the new state, and the other effects of the move.

    `attempts` and `generations` are added to those of the row. If `is_marking`, the attempt becomes a possible
    duplicate. If `is_sending`, the attempt may have left from now on.
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
            int(kind in _MARKING),
            int(before is State.IN_FLIGHT and kind is not FactKind.NOT_SENT),
        )
        for (before, kind), after in TRANSITIONS.items()
    }
)
"""All moves, by the state before and the kind of the fact."""


def next_standing(standing: Standing, kind: FactKind, attempt: int) -> Standing | IllegalMove:
    """Return the standing after a fact of this kind about attempt number `attempt`."""
    move = MOVES.get((standing.state, kind))
    # A fact about any other attempt is late or repeated. Otherwise an old rejection would count for the latest attempt,
    # and the row could be released while that payment is on its way.
    if move is None or attempt != standing.attempt + move.attempts:
        return IllegalMove(standing.state, standing.attempt, kind, attempt)
    mark = attempt if move.is_marking else standing.possible_duplicate_of
    return Standing(move.after, attempt, standing.generation + move.generations, mark)
