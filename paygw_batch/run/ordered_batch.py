"""The common part of orders about rows: the batch and its journal, the signers, and whether the order is still valid.

An order names endpoint, journal and batch, and each row as it was. It is valid while all that is unchanged; carrying it
out changes the rows, so it cannot be used again.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from paygw_batch.core.evidence import SignedOrder
from paygw_batch.errors import ApprovalError
from paygw_batch.journal import BatchRecord, JournalReader
from paygw_batch.language import say
from paygw_batch.run.signed_document import (
    ApprovalPolicy,
    SignedDocument,
    SignedPart,
    require_not_withdrawn,
    require_signatures,
)


class OrderedBatch(SignedPart):
    """The journal and the batch that an order is about."""

    endpoint: str
    journal: str
    operation: str
    batch: str
    sheet: str


class RowOrder(SignedDocument):
    """An order about rows of a batch. Its content is an `OrderedBatch` with `rows`."""

    @property
    def numbers(self) -> Sequence[int]:
        """The sheet's rows that the order is about."""
        return [one.row for one in self.content.rows]

    @abstractmethod
    def content_now(
        self, journal: JournalReader, batch: BatchRecord, *, endpoint: str, minor_units: Mapping[str, int]
    ) -> OrderedBatch:
        """Return the content that an order about the same rows would have now."""

    @abstractmethod
    def refusal(self, actual: OrderedBatch) -> ApprovalError:
        """Return the refusal of an outdated order; `actual` is the content that it would have now."""


@dataclass(frozen=True, slots=True)
class OrderInForce:
    """An order that may be carried out now: its batch, who decided, and the order to keep."""

    batch: BatchRecord
    decided: str
    kept: SignedOrder


def order_in_force(
    order: RowOrder,
    journal: JournalReader,
    policy: ApprovalPolicy,
    now: datetime,
    *,
    endpoint: str,
    minor_units: Mapping[str, int],
) -> OrderInForce:
    """Return an order that may be carried out. Raises `ApprovalError` unless it is approved, and true of every row.

    Whether the rows may be settled or released at all is checked as for any settlement or release.
    """
    batch = batch_of_order(order, journal, endpoint)
    decided, kept = agreed(order, journal, policy, now, batch=batch.batch)
    require_true(order, journal, batch, endpoint=endpoint, minor_units=minor_units)
    return OrderInForce(batch, decided, kept)


def agreed(
    order: SignedDocument, journal: JournalReader, policy: ApprovalPolicy, now: datetime, *, batch: str
) -> tuple[str, SignedOrder]:
    """Return who prepared and approved an order, and the order as the journal keeps it.

    Raises `ApprovalError` if it was withdrawn, or too few people approve it.
    """
    require_not_withdrawn(order, journal.withdrawals())
    found = require_signatures(order, policy, now)
    approvers = " and ".join(person.name for person in found.valid)
    decided = f"order {order.digest()}, prepared by {found.maker.name}, approved by {approvers}"
    counted = order.model_copy(update={"approvals": list(found.valid.values())})
    return decided, SignedOrder(batch, counted.model_dump_json(), sha256=order.digest())


def require_true(
    order: RowOrder, journal: JournalReader, batch: BatchRecord, *, endpoint: str, minor_units: Mapping[str, int]
) -> None:
    """Raise `ApprovalError` unless an order is still true of every row that it names, and names none twice."""
    if len(set(order.numbers)) != len(order.numbers):
        raise ApprovalError(say("The {noun} names a row twice.", noun=say(order.noun)), hint=say(order.nothing_done))
    actual = order.content_now(journal, batch, endpoint=endpoint, minor_units=minor_units)
    if actual != order.content:
        raise order.refusal(actual)


def batch_of_order(order: SignedDocument, journal: JournalReader, endpoint: str) -> BatchRecord:
    """Return the batch that an order is about. Raises `ApprovalError` if it is not in this journal."""
    require_place(order, journal, endpoint)
    content: OrderedBatch = order.content
    batch = journal.batch(content.batch, operation=content.operation)
    if batch is None:
        raise ApprovalError(say("The journal has no batch {batch}.", batch=content.batch), hint=say(order.nothing_done))
    return batch


def require_place(order: SignedDocument, journal: JournalReader, endpoint: str) -> None:
    """Raise `ApprovalError` for an order of another endpoint or another journal."""
    content = order.content
    if content.endpoint != endpoint:
        raise ApprovalError(
            say(
                "The {noun} is for {endpoint}, but this is {actual}.",
                noun=say(order.noun),
                endpoint=content.endpoint,
                actual=endpoint,
            ),
            hint=say(order.nothing_done),
        )
    journal_id = journal.head().journal_id
    if content.journal != journal_id:
        raise ApprovalError(
            say(
                "The {noun} is for the journal {journal}, but this is the journal {journal_id}.",
                noun=say(order.noun),
                journal=content.journal[:8],
                journal_id=journal_id[:8],
            ),
            hint=say(order.nothing_done),
        )


def frame_of(journal: JournalReader, batch: BatchRecord, endpoint: str) -> Mapping[str, str]:
    """Return the fields of `OrderedBatch`, for the content of an order about a batch."""
    return {
        "endpoint": endpoint,
        "journal": journal.head().journal_id,
        "operation": batch.operation,
        "batch": batch.batch,
        "sheet": batch.sheet_name,
    }
