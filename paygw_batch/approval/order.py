"""Checks orders (their journal, approvals and validity) and makes orders to forget people.

An order describes the state of everything that it changes. Before it is carried out, the description is built again and
compared. Carrying it out changes the state, so this works only once. An order to forget people lists the payments whose
payees are forgotten, but no names.
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
    require_journal_id,
    require_not_withdrawn,
    require_signatures,
)
from paygw_batch.clock import timestamp
from paygw_batch.core.evidence import SignedOrder
from paygw_batch.core.shown_states import encode_record
from paygw_batch.errors import ApprovalError
from paygw_batch.journal import JournalReader, PaymentsToForget
from paygw_batch.language import mark, say


class Order(SignedDocument):
    """A document by which two people agree on an action other than a payout."""

    placeholder: ClassVar[str] = "ORDER"
    renewal_hint: ClassVar[str] = mark("Make a new order with `paygw-batch order` and have it approved.")

    @property
    def batch(self) -> str:
        """The batch under which the journal stores the order. Empty if it covers several batches."""
        return ""

    @property
    @abstractmethod
    def row_count(self) -> int:
        """The number of rows that the order changes."""

    @abstractmethod
    def changes(self, actual: Any) -> Sequence[str]:
        """Describe how the order differs from `actual`, the content that it would have if made now."""


def require_same_journal(order: Order, journal: JournalReader, endpoint: str) -> None:
    """Raise `ApprovalError` if the order is for another endpoint or journal."""
    if order.content.endpoint != endpoint:
        raise ApprovalError(
            say(
                "The {noun} is for {endpoint}, not for {actual}.",
                noun=say(order.noun),
                endpoint=order.content.endpoint,
                actual=endpoint,
            ),
            hint=say(order.nothing_done),
        )
    require_journal_id(order, journal.head().journal_id, say(order.nothing_done))


def require_approved(
    order: Order, journal: JournalReader, policy: ApprovalPolicy, now: datetime, *, by: str
) -> tuple[str, SignedOrder]:
    """Return who decided, and the order to store. Raises `ApprovalError` if it was withdrawn or lacks approvals."""
    require_not_withdrawn(order, journal.withdrawals())
    signatures = require_signatures(order, policy, now)
    approvers, digest = ", ".join(person.name for person in signatures.valid), order.digest()
    valid_order = order.model_copy(update={"approvals": list(signatures.valid.values())})
    decided_by = encode_record("agreed", by, digest, signatures.maker.name, approvers)
    return decided_by, SignedOrder(order.batch, valid_order.model_dump_json(), sha256=digest)


def require_unchanged(order: Order, actual: Any) -> None:
    """Raise `ApprovalError` if the same order would now have different content."""
    if actual != order.content:
        changes = "; ".join(order.changes(actual))
        raise ApprovalError(
            say("The {noun} is no longer valid: {changes}.", noun=say(order.noun), changes=changes),
            hint=f"{say(order.nothing_done)} {say(order.renewal_hint)}",
        )


NOTHING_FORGOTTEN = mark("No one was forgotten.")


class ForgottenBatch(SignedPart):
    """A batch in which people are forgotten, and the number of their rows. Its sheet is removed."""

    batch: str
    operation: str
    sheet: str
    rows: int


class ForgetContent(SignedPart):
    """The journal's payments whose payees would be forgotten.

    The payees are either everyone paid before the date `before`, or one person, in which case `before` is empty and
    `instructions` lists that person's payments. `sha256` is `PaymentsToForget.sha256`.
    """

    endpoint: str
    journal: str
    before: str
    instructions: list[int]
    sha256: str
    batches: list[ForgottenBatch]


class ForgetOrder(Order):
    """An order to forget people, as stored in a file."""

    noun: ClassVar[str] = mark("order to forget people")
    nothing_done: ClassVar[str] = NOTHING_FORGOTTEN

    document: Literal["paygw-batch forget order 1"] = "paygw-batch forget order 1"
    content: ForgetContent

    @property
    def row_count(self) -> int:
        return sum(batch.rows for batch in self.content.batches)

    def changes(self, _actual: ForgetContent) -> Sequence[str]:
        return [say("it would now forget different payments")]


def build_forget_order(
    journal: JournalReader, payments: PaymentsToForget, *, endpoint: str, maker: PublicKey, now: datetime
) -> ForgetOrder:
    content = _build_forget_content(journal, payments, endpoint)
    return ForgetOrder(content=content, made_at=timestamp(now), maker=maker.text, signature="", approvals=[])


def _build_forget_content(journal: JournalReader, payments: PaymentsToForget, endpoint: str) -> ForgetContent:
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
) -> tuple[PaymentsToForget, str, SignedOrder]:
    """Return the payments to forget, who decided, and the order to store. Raises `ApprovalError` if it is not valid.

    `cutoff` and `recent` are as in `JournalReader.payments_to_forget`.
    """
    require_same_journal(order, journal, endpoint)
    decided_by, signed_order = require_approved(order, journal, policy, now, by=by)
    content = order.content
    numbers = content.instructions or None
    payments = journal.payments_to_forget(numbers, before=content.before, cutoff=cutoff, recent=recent)
    require_unchanged(order, _build_forget_content(journal, payments, endpoint))
    return payments, decided_by, signed_order
