"""Checks orders (their journal, their approvals, whether they are still current) and makes orders to forget people.

An order describes the state of everything that it changes. Before it is carried out, that description is built again
and compared. Carrying it out changes the state, so it works only once. An order to forget people names exactly the
payments whose payees are forgotten, and no person.
"""

from abc import abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar, Literal

from paygw_batch.approval.approval_keys import PublicKey
from paygw_batch.approval.signed_document import (
    ApprovalPolicy,
    SignedDocument,
    SignedPart,
    require_journal,
    require_not_withdrawn,
    require_signatures,
)
from paygw_batch.clock import timestamp
from paygw_batch.core.evidence import SignedOrder
from paygw_batch.core.shown_states import encode_record
from paygw_batch.errors import ApprovalError
from paygw_batch.journal import ForgettablePayments, JournalReader
from paygw_batch.language import mark, say


class Order(SignedDocument):
    """A document by which two people agree on an action other than a payout."""

    placeholder: ClassVar[str] = "ORDER"
    renewal_hint: ClassVar[str] = mark("Make a new order with `paygw-batch order`, and have it approved.")

    @property
    def batch(self) -> str:
        """The batch with which the journal stores the order. Empty if the order is about several batches."""
        return ""

    @property
    @abstractmethod
    def rows(self) -> int:
        """The number of rows that the order changes."""

    @abstractmethod
    def changes(self, actual: Any) -> Sequence[str]:
        """Return how the order differs from `actual`, the content that it would have now."""


def require_same_journal(order: Order, journal: JournalReader, endpoint: str) -> None:
    """Raise `ApprovalError` if the order is for another endpoint or journal."""
    if order.content.endpoint != endpoint:
        raise ApprovalError(
            say(
                "The {noun} is for {endpoint}, but this is {actual}.",
                noun=say(order.noun),
                endpoint=order.content.endpoint,
                actual=endpoint,
            ),
            hint=say(order.nothing_done),
        )
    require_journal(order, journal.head().journal_id, say(order.nothing_done))


def require_agreement(
    order: Order, journal: JournalReader, policy: ApprovalPolicy, now: datetime, *, by: str
) -> tuple[str, SignedOrder]:
    """Return who decided, in the journal's form, and the signed order to store. `by` is the person carrying it out.

    Raises `ApprovalError` if the order was withdrawn, or if too few people approve it.
    """
    require_not_withdrawn(order, journal.withdrawals())
    signatures = require_signatures(order, policy, now)
    approvers, digest = ", ".join(person.name for person in signatures.valid), order.digest()
    valid_order = order.model_copy(update={"approvals": list(signatures.valid.values())})
    decider = encode_record("agreed", by, digest, signatures.maker.name, approvers)
    return decider, SignedOrder(order.batch, valid_order.model_dump_json(), sha256=digest)


def require_unchanged(order: Order, actual: Any) -> None:
    """Raise `ApprovalError` if an order made now would have other content."""
    if actual != order.content:
        changes = "; ".join(order.changes(actual))
        raise ApprovalError(
            say("The {noun} is no longer valid: {changes}.", noun=say(order.noun), changes=changes),
            hint=f"{say(order.nothing_done)} {say(order.renewal_hint)}",
        )


NOTHING_FORGOTTEN = mark("Nobody was forgotten.")


class ForgottenBatch(SignedPart):
    """A batch in which people are forgotten, with the number of their rows. The batch's whole sheet is removed."""

    batch: str
    operation: str
    sheet: str
    rows: int


class ForgetContent(SignedPart):
    """The journal, and its payments whose payees would be forgotten.

    People are forgotten if paid before the date `before`. For one person it is empty, and `instructions` are the
    numbers of that person's payments. `sha256` is the digest of exactly these payments (`ForgettablePayments.sha256`).
    """

    endpoint: str
    journal: str
    before: str
    instructions: list[int]
    sha256: str
    batches: list[ForgottenBatch]


class ForgetOrder(Order):
    """The file of an order to forget people."""

    noun: ClassVar[str] = mark("order to forget people")
    nothing_done: ClassVar[str] = NOTHING_FORGOTTEN

    document: Literal["paygw-batch forget order 1"] = "paygw-batch forget order 1"
    content: ForgetContent

    @property
    def rows(self) -> int:
        return sum(batch.rows for batch in self.content.batches)

    def changes(self, _actual: ForgetContent) -> Sequence[str]:
        return [say("it would now forget other payments")]


def build_forget_order(
    journal: JournalReader, payments: ForgettablePayments, *, endpoint: str, maker: PublicKey, now: datetime
) -> ForgetOrder:
    content = _build_forget_content(journal, payments, endpoint)
    return ForgetOrder(content=content, made_at=timestamp(now), maker=maker.text, signature="", approvals=[])


def _build_forget_content(journal: JournalReader, payments: ForgettablePayments, endpoint: str) -> ForgetContent:
    records = {record.number: record for record in journal.batches()}
    batches = [
        ForgottenBatch(
            batch=records[number].batch,
            operation=records[number].operation,
            sheet=records[number].sheet_name,
            rows=len(instructions),
        )
        for number, instructions in payments.batches.items()
    ]
    return ForgetContent(
        endpoint=endpoint,
        journal=journal.head().journal_id,
        before=payments.before,
        instructions=[] if payments.before else [number for numbers in payments.batches.values() for number in numbers],
        sha256=payments.sha256,
        batches=batches,
    )


def verify_forget_order(
    order: ForgetOrder,
    journal: JournalReader,
    policy: ApprovalPolicy,
    now: datetime,
    *,
    by: str,
    endpoint: str,
    cutoff: str,
    recent: str,
) -> tuple[ForgettablePayments, str, SignedOrder]:
    """Return the payments that an order forgets, the decider for the journal, and the signed order to store.

    Raises `ApprovalError` unless the order is approved, and would forget the same payments as when it was made.
    """
    require_same_journal(order, journal, endpoint)
    decider, signed_order = require_agreement(order, journal, policy, now, by=by)
    content = order.content
    numbers = content.instructions or None
    payments = journal.forgettable_payments(numbers, before=content.before, cutoff=cutoff, recent=recent)
    require_unchanged(order, _build_forget_content(journal, payments, endpoint))
    return payments, decider, signed_order
