"""Derives a row's state from its facts in Python, as an oracle for the SQL tables that move and show rows.

`advance` is `core.lifecycle.next_standing` plus the columns that a person reads in the reconciliation. They are always
about the latest attempt: an intent removes those of the one before.
"""

from collections.abc import Callable
from typing import NamedTuple, assert_never

from paygw_batch.core.batch import attempt_order_id
from paygw_batch.core.evidence import Candidate
from paygw_batch.core.lifecycle import (
    Basis,
    Concluded,
    Fact,
    FactKind,
    IllegalMove,
    Intended,
    Interrupted,
    Released,
    Replaced,
    Resolution,
    Resolved,
    Returned,
    Standing,
    State,
    fact_kind,
    next_standing,
)
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.core.shown_states import encode_record, encode_text
from paygw_batch.journal.states import PROVEN_STATEMENT, storable_text
from paygw_batch.journal.values import NewInstruction, RowState

_NOT_SENT, _UNKNOWN = OutcomeKind.NOT_SENT, OutcomeKind.UNKNOWN


class RowProgress(NamedTuple):
    """Everything about an instruction that facts change; a tuple, because every payout makes two.

    `order_id` is what the next attempt is sent under, `sent_orderid` what the latest was; `inherited_attempts` counts
    the attempts of the instruction this one replaced, whose numbering it continues. Times are UTC, ISO 8601 with `Z`.
    `first_sent_at` is the time of the first intent that may have left, None while all of them are known not to have.
    """

    order_id: str
    standing: Standing = Standing()
    inherited_attempts: int = 0
    sent_orderid: str | None = None
    purpose: str | None = None
    endpoint_id: str | None = None
    gateway_status: str | None = None
    gateway_reference: str | None = None
    http_status: int | None = None
    error_code: str | None = None
    message: str | None = None
    intended_at: str | None = None
    first_sent_at: str | None = None
    updated_at: str | None = None

    @property
    def quarantined_since(self) -> str | None:
        """Return when the attempt of a row left that only a person calls rejected, or None for other rows."""
        is_held = self.standing.is_rejected_by_person and self.error_code != PROVEN_STATEMENT
        return self.intended_at if is_held else None


def advance(before: RowProgress, fact: Fact, attempt: int, at: str) -> RowProgress | IllegalMove:
    """Return the progress after `fact` at `at`. An intent is also illegal under any order id but the next one."""
    after = next_standing(before.standing, fact_kind(fact), attempt)
    if isinstance(after, IllegalMove):
        return after
    told = before._replace(standing=after, error_code=None, message=message_of(fact), updated_at=at)
    match fact:
        case Intended():
            if fact.order_id != before.order_id:
                return IllegalMove(before.standing.state, before.standing.attempt, FactKind.INTENDED, attempt)
            sent = (fact.order_id, fact.purpose, fact.endpoint_id)
            made = RowProgress(before.order_id, after, before.inherited_attempts, *sent)
            return made._replace(intended_at=at, first_sent_at=before.first_sent_at, updated_at=at)
        case Concluded():
            return _apply_outcome(told, before, fact.outcome)
        case Interrupted():
            return told._replace(error_code="interrupted", first_sent_at=before.first_sent_at or before.intended_at)
        case Resolved():
            is_proven = fact.resolution is Resolution.REJECTED and fact.basis is Basis.GATEWAY
            return told._replace(error_code=PROVEN_STATEMENT if is_proven else None)
        case Released():
            return told._replace(order_id=fact.order_id)
        case Returned():
            return told
        case Replaced():
            return told._replace(error_code=before.error_code)
        case _:
            assert_never(fact)


def message_of(fact: Fact) -> str | None:
    match fact:
        case Intended():
            return None
        case Concluded():
            return _outcome_message(fact.outcome)
        case Interrupted():
            return encode_record(fact_kind(fact))
        case Resolved():
            return storable_text(encode_record(fact_kind(fact), fact.by, fact.evidence))
        case Released():
            return storable_text(encode_record(fact_kind(fact), fact.by))
        case Returned():
            return storable_text(encode_record(fact_kind(fact), fact.evidence))
        case Replaced():
            return encode_record(fact_kind(fact), fact.row, fact.batch)
        case _:
            assert_never(fact)


def _apply_outcome(told: RowProgress, before: RowProgress, outcome: Outcome) -> RowProgress:
    first_sent_at = before.first_sent_at or (before.intended_at if outcome.kind is not _NOT_SENT else None)
    return told._replace(
        gateway_status=_storable(outcome.gateway_status) or before.gateway_status,
        gateway_reference=_storable(outcome.gateway_reference) or before.gateway_reference,
        http_status=before.http_status if outcome.http_status is None else outcome.http_status,
        error_code=_storable(outcome.cause or outcome.error_code),
        first_sent_at=first_sent_at,
    )


def _outcome_message(outcome: Outcome) -> str | None:
    """Return the gateway's message, or else ours, or None."""
    if outcome.message:
        return _storable(encode_text(outcome.message))
    if outcome.kind is _UNKNOWN or outcome.kind is _NOT_SENT:
        return storable_text(encode_record(outcome.kind, outcome.cause or None))
    return None


def _storable(text: str | None) -> str | None:
    """Return `text` as a database can store it. A gateway may send half a surrogate pair, which is not valid text."""
    return text if text is None or text.isascii() else storable_text(text)


def with_duplicate(message: str | None, possible_duplicate_of: int | None) -> str | None:
    """Return a stored message, marked if it is about a possible duplicate."""
    return message if possible_duplicate_of is None else encode_record("duplicate", message, possible_duplicate_of)


def is_amendable(standing: Standing) -> bool:
    """Return whether an amended row may replace the payment: it is rejected, or no attempt of it can have been paid.

    A row that a person called not received is neither: it may have been paid all the same. For a row that a person
    called rejected, the quarantine must be over as well: `is_in_quarantine`.
    """
    is_unsent = standing.state is State.READY and standing.possible_duplicate_of is None
    return standing.state is State.REJECTED or is_unsent


def replacement_progress(replaced: RowProgress) -> RowProgress:
    """Return the first progress of an amended row: the number and order id of the replaced payment, but no evidence."""
    return RowProgress(replaced.order_id, replaced.standing, replaced.standing.attempt)


def next_order_id(client_orderid: str, progress: RowProgress, *, suffix: bool, is_used: Callable[[str], bool]) -> str:
    """Return the order id of a released row's next attempt: the same again, or the next suffix that was never used."""
    if not suffix:
        return progress.order_id
    generation = progress.standing.generation + 1
    while is_used(attempt_order_id(client_orderid, generation)):
        generation += 1
    return attempt_order_id(client_orderid, generation)


def build_row_state(row: int, instruction: int, new: NewInstruction, progress: RowProgress) -> RowState:
    """Return the standing of a row as shown to people. The message of a possible duplicate is always marked."""
    standing = progress.standing
    in_flight = standing.state is State.IN_FLIGHT
    same = ("sent_orderid", "purpose", "gateway_status", "gateway_reference", "http_status", "error_code")
    more = ("updated_at", "intended_at", "quarantined_since", "endpoint_id")
    copied = ("client_orderid", "country", "currency", "minor")
    return RowState(
        row=row,
        instruction=instruction,
        attempt=standing.attempt,
        state=standing.state,
        attempts=standing.attempt - progress.inherited_attempts,
        message=with_duplicate(progress.message, standing.possible_duplicate_of),
        possible_duplicate_of=standing.possible_duplicate_of,
        first_sent_at=progress.first_sent_at or (progress.intended_at if in_flight else None),
        **{name: getattr(new, name) for name in copied},
        **{name: getattr(progress, name) for name in same + more},
    )


def candidate_of(number: int, client_orderid: str, amount: str, currency: str, progress: RowProgress) -> Candidate:
    sent_at, was_sent_once = progress.intended_at, progress.first_sent_at in {None, progress.intended_at}
    about = (number, client_orderid, amount, currency, progress.standing, progress.sent_orderid)
    return Candidate(*about, was_sent_once=was_sent_once, intended_at=sent_at, endpoint_id=progress.endpoint_id)
