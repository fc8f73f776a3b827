"""Makes and checks release orders: one person names rejected rows to send again, another approves; it counts once.

An order names endpoint, journal and batch, and for each row its latest attempt. It holds as long as each of them is
rejected after that attempt, and carrying it out ends that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal

from paygw_batch.clock import timestamp
from paygw_batch.core.evidence import SignedOrder
from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import from_minor
from paygw_batch.errors import ApprovalError
from paygw_batch.journal import BatchRecord, JournalReader
from paygw_batch.language import mark, say
from paygw_batch.run.approval_keys import PublicKey
from paygw_batch.run.orders.ordered_batch import (
    OrderedBatch,
    batch_of_order,
    decided,
    kept_order,
    refuse_rows_twice,
)
from paygw_batch.run.resolve import standings_of
from paygw_batch.run.signed_document import ApprovalPolicy, SignedDocument, SignedPart, require_signatures


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


class ReleaseOrder(SignedDocument):
    """An order as it is in its file."""

    noun: ClassVar[str] = mark("release order")
    placeholder: ClassVar[str] = "ORDER"
    nothing_done: ClassVar[str] = mark("Nothing was released or sent.")
    make_another: ClassVar[str] = mark(
        "Make a new order: `paygw-batch retry BATCH --evidence TEXT --order-out ORDER --key KEY`."
    )

    document: Literal["paygw-batch release order 1"] = "paygw-batch release order 1"
    content: ReleaseContent


@dataclass(frozen=True, slots=True)
class OrderedRelease:
    """A release order that may be carried out now: the batch, its rows, who decided, and the order to keep."""

    batch: BatchRecord
    rows: Sequence[int]
    decided: str
    kept: SignedOrder


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
        endpoint=endpoint,
        journal=journal.head().journal_id,
        operation=batch.operation,
        batch=batch.batch,
        sheet=batch.sheet_name,
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


def release_in_force(
    order: ReleaseOrder,
    journal: JournalReader,
    policy: ApprovalPolicy,
    now: datetime,
    *,
    endpoint: str,
    minor_units: Mapping[str, int],
) -> OrderedRelease:
    """Return the release that an order asks for. Raises `ApprovalError` unless it is approved, and still true.

    Whether rows may be released at all is checked as for any release, by `check_releasable`.
    """
    batch = batch_of_order(order, journal, endpoint)
    found = require_signatures(order, policy, now)
    rows = [one.row for one in order.content.rows]
    refuse_rows_twice(order, rows)
    actual = release_content(
        journal, batch, rows, evidence=order.content.evidence, endpoint=endpoint, minor_units=minor_units
    )
    if actual != order.content:
        is_now = {one.row: one for one in actual.rows}
        changed = next((one.row for one in order.content.rows if is_now.get(one.row) != one), None)
        what = (
            say("the batch is not the one that it names")
            if changed is None
            else say("row {row} has changed since", row=changed)
        )
        raise ApprovalError(
            say("The release order no longer holds: {change}.", change=what),
            hint=f"{say(order.nothing_done)} {say(_STILL_REJECTED)}",
        )
    return OrderedRelease(batch, rows, decided(order, found), kept_order(order, found))
