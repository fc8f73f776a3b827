"""Makes orders to forget people: one person chooses, another approves, and the order counts once.

An order names exactly the payments whose payees are forgotten, and no person. It is valid as long as it would still
forget the same payments.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar, Literal

from paygw_batch.clock import timestamp
from paygw_batch.core.evidence import SignedOrder
from paygw_batch.errors import ApprovalError, JournalCorrupt, PeopleForgotten
from paygw_batch.journal import BatchRecord, Forgettable, JournalReader
from paygw_batch.language import mark, say
from paygw_batch.run.approval_keys import PublicKey
from paygw_batch.run.ordered_batch import agreed, require_place
from paygw_batch.run.signed_document import ApprovalPolicy, SignedDocument, SignedPart

NOTHING_FORGOTTEN = mark("Nobody was forgotten.")


class ForgottenBatch(SignedPart):
    """A batch in which people are forgotten, and the number of their rows. Its whole sheet is removed."""

    batch: str
    operation: str
    sheet: str
    rows: int


class ForgetContent(SignedPart):
    """The payments whose payees would be forgotten, and their journal.

    `before` is the date before which people are forgotten; empty for one person, and then `instructions` are the
    numbers of that person's payments. `sha256` is the digest of exactly these payments (`Forgettable.sha256`).
    """

    endpoint: str
    journal: str
    before: str
    instructions: list[int]
    sha256: str
    batches: list[ForgottenBatch]


class ForgetOrder(SignedDocument):
    """An order as it is in its file."""

    noun: ClassVar[str] = mark("order to forget people")
    placeholder: ClassVar[str] = "ORDER"
    nothing_done: ClassVar[str] = NOTHING_FORGOTTEN
    make_another: ClassVar[str] = mark(
        "Make a new order: `paygw-batch forget --before DATE --out ORDER --key KEY`, or with --person TEXT."
    )

    document: Literal["paygw-batch forget order 1"] = "paygw-batch forget order 1"
    content: ForgetContent

    @property
    def rows(self) -> int:
        """The number of rows in which people would be forgotten."""
        return sum(one.rows for one in self.content.batches)


def require_remembered(journal: JournalReader, batch: BatchRecord) -> None:
    """Raise `PeopleForgotten` if people in a batch were forgotten: it is over, and its sheet is gone."""
    if (forgotten := journal.forgotten(batch.number)) is not None:
        raise PeopleForgotten(
            say(
                "People of batch {batch} were forgotten at {at} by {by}: its sheet, and their names and numbers, "
                "are gone.",
                batch=batch.batch,
                at=forgotten.at,
                by=forgotten.by,
            )
        )


def unsigned_forget_order(
    journal: JournalReader, chosen: Forgettable, *, endpoint: str, maker: PublicKey, now: datetime
) -> ForgetOrder:
    """Return an order that its maker has yet to sign."""
    content = _content_of(journal, chosen, endpoint)
    return ForgetOrder(content=content, made_at=timestamp(now), maker=maker.text, signature="", approvals=[])


def _content_of(journal: JournalReader, chosen: Forgettable, endpoint: str) -> ForgetContent:
    records = {one.number: one for one in journal.batches()}
    batches = [
        ForgottenBatch(
            batch=records[number].batch,
            operation=records[number].operation,
            sheet=records[number].sheet_name,
            rows=len(instructions),
        )
        for number, instructions in chosen.batches.items()
    ]
    return ForgetContent(
        endpoint=endpoint,
        journal=journal.head().journal_id,
        before=chosen.before,
        instructions=[] if chosen.before else [one for some in chosen.batches.values() for one in some],
        sha256=chosen.sha256,
        batches=batches,
    )


def forget_order_in_force(
    order: ForgetOrder,
    journal: JournalReader,
    policy: ApprovalPolicy,
    now: datetime,
    *,
    endpoint: str,
    cutoff: str,
    recent: str,
) -> tuple[Forgettable, str, SignedOrder]:
    """Return the payments whose payees an order forgets now, who decided it, and the order to keep.

    Raises `ApprovalError` unless it is approved, and would forget the same payments as when it was made.
    """
    require_place(order, journal, endpoint)
    decided, kept = agreed(order, journal, policy, now, batch="")
    content = order.content
    chosen = journal.forgettable(content.instructions or None, before=content.before, cutoff=cutoff, recent=recent)
    if _content_of(journal, chosen, endpoint) != content:
        raise ApprovalError(
            say("The order to forget people is no longer valid: other payments would be forgotten now."),
            hint=f"{say(order.nothing_done)} {say(order.make_another)}",
        )
    return chosen, decided, kept


def was_carried_out(order: SignedDocument, journal: JournalReader) -> bool:
    """Whether an order, in any copy, has forgotten people."""
    return any(read_forget_order(text).digest() == order.digest() for text in journal.signed_orders())


def read_forget_order(text: str) -> ForgetOrder:
    """Return an order as the journal keeps it. Raises `JournalCorrupt` if the text is not an order."""
    try:
        return ForgetOrder.model_validate_json(text)
    except ValueError:
        raise JournalCorrupt(say("A signed order to forget people cannot be read.")) from None


def check_kept_forget_order(order: ForgetOrder, journal: JournalReader) -> None:
    """Raise `JournalCorrupt` unless a carried-out order is about this journal and matches its facts."""
    digest, content = order.digest(), order.content
    done: list[tuple[str, str]] = []
    for record in journal.batches():
        forgotten: Sequence[str] = [one.order for one in journal.history(record.number) if one.kind == "forgotten"]
        if digest in forgotten:
            done.append((record.operation, record.batch))
    asked = {(one.operation, one.batch) for one in content.batches}
    if content.journal != journal.head().journal_id or set(done) != asked:
        raise JournalCorrupt(
            say("The signed order {order} to forget people does not match its facts.", order=digest[:16])
        )
