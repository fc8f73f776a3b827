"""Checks which batch of which journal an order is about, and the signatures of an order that was carried out."""

from collections.abc import Sequence

from paygw_batch.core.evidence import SignedOrder
from paygw_batch.errors import ApprovalError
from paygw_batch.journal import BatchRecord, JournalReader
from paygw_batch.language import say
from paygw_batch.run.signed_document import Signatures, SignedDocument, SignedPart


class OrderedBatch(SignedPart):
    """The journal and the batch that an order is about."""

    endpoint: str
    journal: str
    operation: str
    batch: str
    sheet: str


def batch_of_order(order: SignedDocument, journal: JournalReader, endpoint: str) -> BatchRecord:
    """Return the batch that an order is about. Raises `ApprovalError` where it is not in this journal."""
    content: OrderedBatch = order.content
    if content.endpoint != endpoint:
        raise ApprovalError(
            say(
                "The {noun} is for {endpoint}, and this is {actual}.",
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
                "The {noun} is for the journal {journal}, and this is the journal {journal_id}.",
                noun=say(order.noun),
                journal=content.journal[:8],
                journal_id=journal_id[:8],
            ),
            hint=say(order.nothing_done),
        )
    named = (content.operation, content.batch)
    batch = next((record for record in journal.batches() if (record.operation, record.batch) == named), None)
    if batch is None:
        raise ApprovalError(say("The journal has no batch {batch}.", batch=content.batch), hint=say(order.nothing_done))
    return batch


def decided(order: SignedDocument, found: Signatures) -> str:
    """Return who decided an order, as facts name it: with its digest."""
    approvers = " and ".join(person.name for person in found.valid)
    return f"order {order.digest()}, prepared by {found.maker.name}, approved by {approvers}"


def kept_order(order: SignedDocument, found: Signatures) -> SignedOrder:
    """Return an order as the journal keeps it: with the approvals that counted, and no others."""
    counted = order.model_copy(update={"approvals": list(found.valid.values())})
    return SignedOrder(order.content.batch, counted.model_dump_json())


def refuse_rows_twice(order: SignedDocument, rows: Sequence[int]) -> None:
    """Raise `ApprovalError` for an order that names a row twice."""
    if len(set(rows)) != len(rows):
        raise ApprovalError(say("The {noun} names a row twice.", noun=say(order.noun)), hint=say(order.nothing_done))
