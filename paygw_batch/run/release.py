"""Checks which rejected rows a person may release for another attempt.

Also makes release orders: one person names rejected rows to send again, another approves, and the order counts once.

An order names each row's latest attempt. It is valid while each of them is rejected after that attempt.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import ClassVar, Literal

from paygw_batch.clock import Now, timestamp
from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import from_minor
from paygw_batch.core.shown_states import shown_state, state_words
from paygw_batch.errors import ApprovalError, UsageError
from paygw_batch.journal import BatchRecord, JournalReader, RowState, is_in_quarantine
from paygw_batch.language import mark, say
from paygw_batch.run.approval_keys import PublicKey
from paygw_batch.run.forget_order import require_remembered
from paygw_batch.run.ordered_batch import OrderedBatch, RowOrder, frame_of
from paygw_batch.run.quarantine_clock import JournalClock, Quarantine
from paygw_batch.run.resolve import open_from, standings_of
from paygw_batch.run.signed_document import SignedPart

_WHY_NOT = {
    State.READY: mark("it is already ready: the next run sends it, unless it is held"),
    State.IN_FLIGHT: mark("it is in doubt and may have been paid: settle it first"),
    State.IN_DOUBT: mark("it is in doubt and may have been paid: settle it first"),
    State.ACCEPTED: mark("the gateway has accepted it, and may still pay it"),
    State.PAID: mark("it is paid"),
    State.RETURNED: mark("it was paid and came back: pay it under a new order id, in a new sheet"),
    State.REPLACED: mark("an amended row of a later sheet has replaced it"),
}


def quarantined(
    journal: JournalReader, batch: BatchRecord, rows: Collection[int] | None = None, *, quarantine_h: float, now: Now
) -> Mapping[int, RowState]:
    """Return, by row, those of `rows` (None: all) rejected only on a person's word and not releasable yet."""
    clock = JournalClock.read(journal, now())
    until = clock.quarantine(quarantine_h).cutoff(clock.now)
    return {
        row.row: row
        for row in journal.rows(batch.number, states={State.REJECTED}, numbers=rows)
        if is_in_quarantine(row.quarantined_since, until)
    }


def waiting_sentence(row: RowState, quarantine: Quarantine) -> str:
    """Return why a row that a person called rejected cannot be released yet, and when it may be."""
    opens = open_from(row, quarantine)
    return say(
        "Row {row} is rejected on a person's word alone. Its attempt was sent at {intended_at} and could still "
        "be paid: it may be sent again from {opens} ({quarantine}).",
        row=row.row,
        intended_at=row.intended_at,
        opens=timestamp(opens) if opens else say("now"),
        quarantine=quarantine,
    )


def check_releasable(
    journal: JournalReader, batch: BatchRecord, rows: Sequence[int], *, quarantine_h: float, now: Now
) -> None:
    """Raise `UsageError`, with a sentence for each, if any of `rows` is not a releasable rejected row.

    Also raises if our clock is unreliable or people of the batch were forgotten, whichever rows are named.
    """
    require_remembered(journal, batch)
    clock = JournalClock.read(journal, now())
    clock.require_sound()
    waiting = quarantined(journal, batch, rows, quarantine_h=quarantine_h, now=now)
    found, wrong = standings_of(journal, batch, rows), []
    for row in sorted(set(rows)):
        standing = found.get(row)
        if standing is None:
            wrong.append(say("Row {row}: the batch has no such row.", row=row))
        elif (state := standing.state) is not State.REJECTED:
            wrong.append(
                say(
                    "Row {row} is {state}, not rejected: {why_not}.",
                    row=row,
                    state=state_words(shown_state(state)),
                    why_not=say(_WHY_NOT[state]),
                )
            )
        elif row in waiting:
            wrong.append(waiting_sentence(waiting[row], clock.quarantine(quarantine_h)))
    if wrong:
        raise UsageError(" ".join(wrong), hint=say("Nothing was released or sent. Only rejected rows can be retried."))


class RejectedRow(SignedPart):
    """One rejected row to send again: the attempt that was rejected, and its order id.

    `duplicate_of` is the attempt that it might duplicate, because that attempt's outcome did not arrive over the wire;
    0: none.
    """

    row: int
    client_orderid: str
    order_id: str
    attempt: int
    duplicate_of: int
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

    document: Literal["paygw-batch release order 2"] = "paygw-batch release order 2"
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
        """Return the refusal of an order, naming the first row that has changed."""
        is_now = {one.row: one for one in ReleaseContent.model_validate(actual).rows}
        changed = next((one.row for one in self.content.rows if is_now.get(one.row) != one), None)
        what = (
            say("the batch is not the one that it names")
            if changed is None
            else say("row {row} has changed since", row=changed)
        )
        return ApprovalError(
            say("The release order is no longer valid: {change}.", change=what),
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
    """Return the content of an order to release those of `rows` that are now rejected."""
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
                duplicate_of=one.possible_duplicate_of or 0,
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
