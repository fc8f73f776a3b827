"""Computes the progress of an instruction from facts: its standing in the state machine, and its latest evidence.

Pure, and shared by every store: `advance` is `core.lifecycle.step` plus the columns a person reads in the
reconciliation. The evidence always speaks of the latest attempt, and an intent wipes that of the attempt before.
"""

from collections.abc import Callable
from typing import NamedTuple, assert_never

from paygw_batch.core.instruction import attempt_order_id
from paygw_batch.core.lifecycle import (
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
    step,
)
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.journal.values import RowStanding

_FRESH = Standing()
_NOT_SENT, _UNKNOWN = OutcomeKind.NOT_SENT, OutcomeKind.UNKNOWN


class RowProgress(NamedTuple):
    """All that facts change of an instruction; a tuple, because every payout makes two.

    `order_id` is what the next attempt is sent under, `sent_orderid` what the latest was; `inherited_attempts` counts
    the attempts of the instruction this one replaced, whose numbering it continues. Times are UTC, ISO 8601 with `Z`.
    `first_sent_at` is the time of the first intent that may have left, None while all of them are known not to have.
    """

    order_id: str
    standing: Standing = _FRESH
    inherited_attempts: int = 0
    sent_orderid: str | None = None
    purpose: str | None = None
    gateway_status: str | None = None
    gateway_reference: str | None = None
    http_status: int | None = None
    error_code: str | None = None
    message: str | None = None
    intended_at: str | None = None
    first_sent_at: str | None = None
    updated_at: str | None = None


def advance(before: RowProgress, fact: Fact, attempt: int, at: str) -> RowProgress | IllegalMove:
    """Return the progress after `fact`, which is about attempt number `attempt` and is known since `at`.

    Beyond the table of the state machine, an intent under any order id but the one that is due is illegal.
    """
    after = step(before.standing, fact, attempt)
    if isinstance(after, IllegalMove):
        return after
    match fact:
        case Intended():
            if fact.order_id != before.order_id:
                return IllegalMove(before.standing.state, before.standing.attempt, FactKind.INTENDED, attempt)
            return RowProgress(
                order_id=before.order_id,
                standing=after,
                inherited_attempts=before.inherited_attempts,
                sent_orderid=fact.order_id,
                purpose=fact.purpose,
                intended_at=at,
                first_sent_at=before.first_sent_at,
                updated_at=at,
            )
        case Concluded():
            return _concluded(before, after, fact.outcome, at)
        case Interrupted():
            return before._replace(
                standing=after,
                error_code="interrupted",
                message="The run ended before it recorded an answer; a request may have left.",
                first_sent_at=before.first_sent_at or before.intended_at,
                updated_at=at,
            )
        case Resolved():
            return before._replace(standing=after, error_code=None, message=storable(_resolution(fact)), updated_at=at)
        case Released():
            message = storable(f"Released for another attempt by {fact.by}.")
            return before._replace(
                standing=after, order_id=fact.order_id, error_code=None, message=message, updated_at=at
            )
        case Returned():
            message = storable(f"The money came back: {fact.evidence}")
            return before._replace(standing=after, error_code=None, message=message, updated_at=at)
        case Replaced():
            message = f"Replaced by row {fact.row} of batch {fact.batch}."
            return before._replace(standing=after, message=message, updated_at=at)
        case _:
            assert_never(fact)


def _concluded(before: RowProgress, after: Standing, outcome: Outcome, at: str) -> RowProgress:
    left = outcome.kind is not _NOT_SENT
    return RowProgress(
        order_id=before.order_id,
        standing=after,
        inherited_attempts=before.inherited_attempts,
        sent_orderid=before.sent_orderid,
        purpose=before.purpose,
        gateway_status=_storable(outcome.gateway_status) or before.gateway_status,
        gateway_reference=_storable(outcome.gateway_reference) or before.gateway_reference,
        http_status=before.http_status if outcome.http_status is None else outcome.http_status,
        error_code=_storable(outcome.cause or outcome.error_code),
        message=_storable(outcome.message) or _plain_sentence(outcome),
        intended_at=before.intended_at,
        first_sent_at=before.first_sent_at or before.intended_at if left else before.first_sent_at,
        updated_at=at,
    )


def _plain_sentence(outcome: Outcome) -> str | None:
    """Return our sentence about an outcome that has no message of the gateway; None where we have none."""
    cause = f" ({outcome.cause})" if outcome.cause else ""
    if outcome.kind is _UNKNOWN:
        return f"No one knows what became of the request{cause}: it may have been paid."
    if outcome.kind is _NOT_SENT:
        return f"Nothing left{cause}."
    return None


def _resolution(fact: Resolved) -> str:
    word = {Resolution.PAID: "paid", Resolution.REJECTED: "rejected", Resolution.NOT_RECEIVED: "not received"}
    return f"Resolved as {word[fact.resolution]} by {fact.by}: {fact.evidence}"


def _storable(text: str | None) -> str | None:
    """Return `text` as a database can hold it: a gateway may send half a surrogate pair, which is no text."""
    return text if text is None or text.isascii() else storable(text)


def storable(text: str) -> str:
    """Return `text` with `?` for each character that UTF-8 cannot encode (half a surrogate pair, odd file names)."""
    return text.encode("utf-8", "replace").decode()


def amendable(standing: Standing) -> bool:
    """Whether an amended row may replace the payment: it is rejected, or nothing left that was not answered.

    A row that a person called not received is neither: it may have been paid all the same. Of one that a person called
    rejected the quarantine has to be over as well: `lifecycle.is_in_quarantine`.
    """
    return standing.state is State.REJECTED or (
        standing.state is State.READY and standing.possible_duplicate_of is None
    )


def succeed(replaced: RowProgress) -> RowProgress:
    """Return the first progress of an amended row: numbering and order id of the payment it replaces, no evidence."""
    return RowProgress(
        order_id=replaced.order_id, standing=replaced.standing, inherited_attempts=replaced.standing.attempt
    )


def next_order_id(client_orderid: str, progress: RowProgress, *, suffix: bool, is_used: Callable[[str], bool]) -> str:
    """Return the order id of a released row's next attempt: the same again, or the next suffix that was never used."""
    if not suffix:
        return progress.order_id
    generation = progress.standing.generation + 1
    while is_used(attempt_order_id(client_orderid, generation)):
        generation += 1
    return attempt_order_id(client_orderid, generation)


def row_standing(
    row: int, instruction: int, client_orderid: str, country: str, currency: str, minor: int, progress: RowProgress
) -> RowStanding:
    """Return the standing of a row as people read it; the message of a possible duplicate is always marked."""
    standing = progress.standing
    in_flight = standing.state is State.IN_FLIGHT
    return RowStanding(
        row=row,
        instruction=instruction,
        attempt=standing.attempt,
        client_orderid=client_orderid,
        country=country,
        currency=currency,
        minor=minor,
        state=standing.state,
        attempts=standing.attempt - progress.inherited_attempts,
        sent_orderid=progress.sent_orderid,
        purpose=progress.purpose,
        gateway_status=progress.gateway_status,
        gateway_reference=progress.gateway_reference,
        http_status=progress.http_status,
        error_code=progress.error_code,
        message=_with_mark(progress.message, standing.possible_duplicate_of),
        possible_duplicate_of=standing.possible_duplicate_of,
        first_sent_at=progress.first_sent_at or (progress.intended_at if in_flight else None),
        updated_at=progress.updated_at,
        intended_at=progress.intended_at,
        is_rejected_by_person=standing.is_rejected_by_person,
    )


def _with_mark(message: str | None, possible_duplicate_of: int | None) -> str | None:
    if possible_duplicate_of is None:
        return message
    mark = f"possible duplicate of attempt {possible_duplicate_of}"
    return mark if message is None else f"{message} [{mark}]"
