"""Makes and checks settlement orders: one person writes the resolution of each row, another approves; it counts once.

An order names endpoint, journal and batch, and for each row its latest attempt and its state. It holds as long as all
of that is so, and carrying it out ends that: it cannot be used again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal

from paygw_batch.clock import timestamp
from paygw_batch.core.lifecycle import Basis, Resolution, State
from paygw_batch.core.money import from_minor
from paygw_batch.errors import ApprovalError, InternalError
from paygw_batch.journal import BatchRecord, CarriedOut, JournalReader
from paygw_batch.run.approval_keys import PublicKey
from paygw_batch.run.resolve import Settlement, standings_of
from paygw_batch.run.signed_document import ApprovalPolicy, SignedDocument, SignedPart, require_signatures
from paygw_batch.statement.read import Statement

_SHOWN_CHANGES = 5
"""How many rows a refusal names."""


class OrderedRow(SignedPart):
    """One row to settle: its latest attempt, and its resolution.

    `order_id` is empty where nothing ever left. `hold` is the number of the evidence that holds a ready row, 0 where
    none does: lifting a hold changes no state, so that only this keeps an order from lifting the next one too.
    """

    row: int
    client_orderid: str
    order_id: str
    attempt: int
    state: State
    hold: int
    currency: str
    amount: str
    resolution: Resolution
    evidence: str
    basis: Basis


class OrderContent(SignedPart):
    """The rows that would be settled, and the journal and batch they are in.

    `statement` and `statement_sha256` name the file that it was read from and are empty where a person said it.
    """

    endpoint: str
    journal: str
    operation: str
    batch: str
    sheet: str
    statement: str
    statement_sha256: str
    rows: list[OrderedRow]


class SettlementOrder(SignedDocument):
    """An order as it is in its file."""

    noun: ClassVar[str] = "settlement order"
    placeholder: ClassVar[str] = "ORDER"
    nothing_done: ClassVar[str] = "Nothing was settled."
    make_another: ClassVar[str] = (
        "Make a new order: `paygw-batch resolve BATCH --row N --as WORD --evidence TEXT --out ORDER --key KEY`."
    )

    document: Literal["paygw-batch settlement order 1"] = "paygw-batch settlement order 1"
    content: OrderContent


@dataclass(frozen=True, slots=True)
class InForce:
    """An order that may be carried out now: the batch, the settlements, and who decided, for the journal."""

    batch: BatchRecord
    settlements: Sequence[Settlement]
    decided: str
    statement: str
    statement_sha256: str

    def carried_out(self, by: str) -> CarriedOut | None:
        """Return the statement that the order carries out, None where it was not read from one."""
        if not self.statement_sha256:
            return None
        return CarriedOut(self.batch.batch, self.statement, self.statement_sha256, by)


def order_content(
    journal: JournalReader,
    batch: BatchRecord,
    settlements: Sequence[Settlement],
    *,
    endpoint: str,
    minor_units: Mapping[str, int],
    statement: Statement | None = None,
) -> OrderContent:
    """Return the content of an order to settle rows of a batch now, by a person's word or by a `statement`."""
    standings = standings_of(journal, batch, {settlement.row for settlement in settlements})
    holds = journal.messages(batch.number).holds
    rows = []
    for settlement in settlements:
        if (standing := standings.get(settlement.row)) is None:
            raise InternalError(f"row {settlement.row} of batch {batch.batch} was checked, and is not there")
        rows.append(
            OrderedRow(
                row=settlement.row,
                client_orderid=standing.client_orderid,
                order_id=standing.sent_orderid or "",
                attempt=standing.attempt,
                # What is in flight when no run is on is in doubt: the next command that holds the journal says so.
                state=State.IN_DOUBT if standing.state is State.IN_FLIGHT else standing.state,
                hold=holds[settlement.row].number if settlement.row in holds else 0,
                currency=standing.currency,
                amount=from_minor(standing.minor, minor_units=minor_units[standing.currency]),
                resolution=settlement.resolution,
                evidence=settlement.evidence,
                basis=settlement.basis,
            )
        )
    return OrderContent(
        endpoint=endpoint,
        journal=journal.head().journal_id,
        operation=batch.operation,
        batch=batch.batch,
        sheet=batch.sheet_name,
        statement="" if statement is None else statement.name,
        statement_sha256="" if statement is None else statement.sha256,
        rows=rows,
    )


def unsigned_order(content: OrderContent, maker: PublicKey, now: datetime) -> SettlementOrder:
    """Return an order that its maker has yet to sign."""
    return SettlementOrder(content=content, made_at=timestamp(now), maker=maker.text, signature="", approvals=[])


def order_in_force(
    order: SettlementOrder,
    journal: JournalReader,
    policy: ApprovalPolicy,
    now: datetime,
    *,
    endpoint: str,
    minor_units: Mapping[str, int],
) -> InForce:
    """Return the settlements of an order. Raises `ApprovalError` unless it is approved, and still true of every row.

    Whether rows may be settled so at all is checked as for any settlement, by `check_settlements`.
    """
    content = order.content
    batch = _batch_of(content, journal, endpoint)
    found = require_signatures(order, policy, now)
    settlements = [Settlement(one.row, one.resolution, one.evidence, one.basis) for one in content.rows]
    if len({one.row for one in settlements}) != len(settlements):
        raise ApprovalError("The settlement order names a row twice.", hint="Nothing was settled.")
    known = standings_of(journal, batch, {one.row for one in settlements})
    actual = order_content(
        journal,
        batch,
        [one for one in settlements if one.row in known],
        endpoint=endpoint,
        minor_units=minor_units,
    )
    actual = actual.model_copy(update={"statement": content.statement, "statement_sha256": content.statement_sha256})
    if actual != content:
        raise ApprovalError(
            f"The settlement order no longer holds: {_what_changed(content, actual)}.",
            hint="Nothing was settled. `paygw-batch status BATCH` shows the rows. What is still in doubt needs a new "
            "order.",
        )
    approvers = " and ".join(person.name for person in found.valid)
    decided = f"order {order.digest()}, prepared by {found.maker.name}, approved by {approvers}"
    return InForce(batch, settlements, decided, content.statement, content.statement_sha256)


def _batch_of(content: OrderContent, journal: JournalReader, endpoint: str) -> BatchRecord:
    if content.endpoint != endpoint:
        raise ApprovalError(
            f"The settlement order is for {content.endpoint}, and this is {endpoint}.", hint="Nothing was settled."
        )
    if content.journal != journal.head().journal_id:
        raise ApprovalError(
            f"The settlement order is for the journal {content.journal[:8]}, and this is the journal "
            f"{journal.head().journal_id[:8]}.",
            hint="Nothing was settled.",
        )
    named = (content.operation, content.batch)
    batch = next((record for record in journal.batches() if (record.operation, record.batch) == named), None)
    if batch is None:
        raise ApprovalError(f"The journal has no batch {content.batch}.", hint="Nothing was settled.")
    return batch


def _what_changed(ordered: OrderContent, actual: OrderContent) -> str:
    now = {one.row: one for one in actual.rows}
    changes = []
    for one in ordered.rows:
        is_now = now.get(one.row)
        if is_now is None:
            changes.append(f"row {one.row} is not in the batch")
        elif (is_now.attempt, is_now.state) != (one.attempt, one.state):
            changes.append(
                f"row {one.row} was {_words(one.state)} after attempt {one.attempt}, and is {_words(is_now.state)} "
                f"after attempt {is_now.attempt}"
            )
        elif is_now.hold != one.hold:
            changes.append(f"what holds row {one.row} is not what held it when the order was made")
        elif is_now != one:
            changes.append(f"row {one.row} is not the payment that the order names")
    more = [f"and {len(changes) - _SHOWN_CHANGES:,} more rows"] if len(changes) > _SHOWN_CHANGES else []
    return "; ".join([*changes[:_SHOWN_CHANGES], *more]) or "the batch is not the one that the order names"


def _words(state: State) -> str:
    return state.value.replace("_", " ")
