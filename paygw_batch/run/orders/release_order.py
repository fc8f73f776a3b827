"""Makes release orders: one person names rejected rows to send again, another approves; it counts once.

An order names for each row its latest attempt. It holds as long as each of them is rejected after that attempt.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import ClassVar, Literal

from paygw_batch.clock import timestamp
from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import from_minor
from paygw_batch.errors import ApprovalError
from paygw_batch.journal import BatchRecord, JournalReader
from paygw_batch.language import mark, say
from paygw_batch.run.approval_keys import PublicKey
from paygw_batch.run.orders.ordered_batch import OrderedBatch, RowOrder, frame_of
from paygw_batch.run.resolve import standings_of
from paygw_batch.run.signed_document import SignedPart


class RejectedRow(SignedPart):
    """One rejected row to send again: the attempt that was rejected, under which order id."""

    row: int
    client_orderid: str
    order_id: str
    attempt: int
    currency: str
    amount: str


class ReleaseContent(OrderedBatch):
    """The rows that would be released, and why."""

    evidence: str
    rows: list[RejectedRow]


_STILL_REJECTED = mark("`paygw-batch status BATCH` shows the rows. Rejected ones need a new order.")


class ReleaseOrder(RowOrder):
    """An order as it is in its file."""

    noun: ClassVar[str] = mark("release order")
    placeholder: ClassVar[str] = "ORDER"
    nothing_done: ClassVar[str] = mark("Nothing was released or sent.")
    make_another: ClassVar[str] = mark(
        "Make a new order: `paygw-batch retry BATCH --evidence TEXT --order-out ORDER --key KEY`."
    )

    document: Literal["paygw-batch release order 1"] = "paygw-batch release order 1"
    content: ReleaseContent

    def content_now(
        self, journal: JournalReader, batch: BatchRecord, *, endpoint: str, minor_units: Mapping[str, int]
    ) -> ReleaseContent:
        """Return the content that an order to release the same rows would have now."""
        return release_content(
            journal,
            batch,
            self.numbers,
            evidence=self.content.evidence,
            endpoint=endpoint,
            minor_units=minor_units,
        )

    def refusal(self, actual: OrderedBatch) -> ApprovalError:
        """Return the refusal of an order that names the first row that has changed."""
        is_now = {one.row: one for one in ReleaseContent.model_validate(actual).rows}
        changed = next((one.row for one in self.content.rows if is_now.get(one.row) != one), None)
        what = (
            say("the batch is not the one that it names")
            if changed is None
            else say("row {row} has changed since", row=changed)
        )
        return ApprovalError(
            say("The release order no longer holds: {change}.", change=what),
            hint=f"{say(self.nothing_done)} {say(_STILL_REJECTED)}",
        )


def release_content(
    journal: JournalReader,
    batch: BatchRecord,
    rows: Sequence[int],
    *,
    evidence: str,
    endpoint: str,
    minor_units: Mapping[str, int],
) -> ReleaseContent:
    """Return the content of an order to release those of `rows` that are rejected now."""
    standings = standings_of(journal, batch, set(rows))
    found = (standings[row] for row in rows if row in standings)
    return ReleaseContent(
        **frame_of(journal, batch, endpoint),
        evidence=evidence,
        rows=[
            RejectedRow(
                row=one.row,
                client_orderid=one.client_orderid,
                order_id=one.sent_orderid or "",
                attempt=one.attempt,
                currency=one.currency,
                amount=from_minor(one.minor, minor_units=minor_units[one.currency]),
            )
            for one in found
            if one.state is State.REJECTED
        ],
    )


def unsigned_release(content: ReleaseContent, maker: PublicKey, now: datetime) -> ReleaseOrder:
    """Return an order that its maker has yet to sign."""
    return ReleaseOrder(content=content, made_at=timestamp(now), maker=maker.text, signature="", approvals=[])
