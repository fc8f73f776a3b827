"""Makes orders about rows in a batch. One person writes an order, others approve it, and it is carried out once.

An order contains each row's latest attempt and state, and is valid until these change. If it cites the gateway, the
gateway's statement is read and verified again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, ClassVar, Literal, NamedTuple, Self

from paygw_batch.approval.approval_keys import PublicKey
from paygw_batch.approval.order import Order, require_approved, require_same_journal, require_unchanged
from paygw_batch.approval.signed_document import ApprovalPolicy, SignedPart
from paygw_batch.clock import timestamp
from paygw_batch.core.evidence import SignedOrder
from paygw_batch.core.lifecycle import Basis, Resolution, State
from paygw_batch.core.money import from_minor
from paygw_batch.core.shown_states import state_label
from paygw_batch.countries.load import minor_units_by_currency
from paygw_batch.engine.quarantine import Quarantine
from paygw_batch.errors import ApprovalError
from paygw_batch.journal import BatchRecord, JournalReader, StatementNote
from paygw_batch.language import mark, say, say_count
from paygw_batch.settle.match_statement import StatementMatch
from paygw_batch.settle.resolve import Settlement, evidence_text, row_states
from paygw_batch.settle.statement import Statement

_MAX_LISTED_CHANGES = 5
"""The maximum number of rows named in a refusal."""


class RowAct(StrEnum):
    """What an order does to a row: settle it with a resolution, or release it for another attempt."""

    PAID = "paid"
    REJECTED = "rejected"
    NOT_RECEIVED = "not-received"
    RELEASE = "release"


class Decision(NamedTuple):
    """A decision about a row, with its evidence and who vouches for it. `words` are shown before the evidence."""

    row: int
    act: RowAct
    evidence: str
    basis: Basis = Basis.PERSON
    words: str = ""

    @classmethod
    def from_settlement(cls, other: Settlement) -> Self:
        return cls(other.row, RowAct(other.resolution.value), other.evidence, other.basis, other.words)

    @property
    def settlement(self) -> Settlement:
        """The decision as a settlement. Raises `ValueError` for a release."""
        return Settlement(self.row, Resolution(self.act.value), self.evidence, self.basis, self.words)


class OrderedRow(SignedPart):
    """A row in an order: the payment, its latest attempt, and the act.

    `order_id` and `sent_at`, the time of that attempt, are empty if nothing was sent. `hold` is the number of the
    evidence that holds the row, or 0. Lifting a hold does not change the row's state, so this number keeps the order
    from lifting a later hold. `duplicate_of` is the earlier attempt that the row may duplicate, or 0.
    """

    row: int
    client_orderid: str
    order_id: str
    attempt: int
    sent_at: str
    state: State
    hold: int
    duplicate_of: int
    currency: str
    amount: str
    act: RowAct
    evidence: str
    basis: Basis
    words: str = ""
    """The maker's comment, shown before the evidence from a statement."""

    @property
    def decision(self) -> Decision:
        return Decision(self.row, self.act, self.evidence, self.basis, self.words)

    @property
    def evidence_text(self) -> str:
        return evidence_text(self.evidence, self.words)

    @property
    def basis_text(self) -> str:
        """Who vouches for the resolution, in words."""
        return say("the gateway's, proven by its statement") if self.basis is Basis.GATEWAY else say("a person's")

    def consequence(self, quarantine: Quarantine, format_time: Callable[[str], str] = str) -> str:
        """Describe whether and when the row can be paid again once the order has been carried out."""
        if self.act is RowAct.RELEASE:
            if not self.duplicate_of:
                return say("it will be sent again")
            return say("it will be sent again, as a possible duplicate of attempt {attempt}", attempt=self.duplicate_of)
        if self.act is RowAct.PAID:
            return say("it will not be sent again")
        if self.basis is Basis.GATEWAY or not self.sent_at:
            return say(
                "can be paid again immediately, marked as a possible duplicate of attempt {attempt}",
                attempt=self.attempt,
            )
        return say(
            "can be paid again from {opens}, marked as a possible duplicate of attempt {attempt}",
            opens=format_time(timestamp(quarantine.ends_at(self.sent_at))),
            attempt=self.attempt,
        )


class RowContent(SignedPart):
    """The rows in an order, with their journal and batch.

    `statement` and `statement_sha256` identify the file that the order is based on, and are empty for a person's
    decision. `attempts` lists the attempt number of each instruction in the file, which covers no later attempts.
    """

    endpoint: str
    journal: str
    operation: str
    batch: str
    sheet: str
    statement: str
    statement_sha256: str
    attempts: list[tuple[int, int]] = []  # noqa: RUF012 (pydantic copies it for each document)
    rows: list[OrderedRow]

    def model_post_init(self, _: object, /) -> None:
        """Raise `ValueError` unless the order lists rows, each once, and either settles or releases all of them.

        Only rejected rows can be released, and only by a person.
        """
        if len({row.row for row in self.rows}) != len(self.rows) or not self.rows:
            raise ValueError("an order names at least one row, and each row once")
        released = [row for row in self.rows if row.act is RowAct.RELEASE]
        is_by_person = not self.statement_sha256 and all(row.basis is Basis.PERSON for row in released)
        are_rejected = all(row.state is State.REJECTED for row in released)
        if released and not (len(released) == len(self.rows) and is_by_person and are_rejected):
            raise ValueError("an order either settles rows or releases rejected ones, on a person's word")


class RowOrder(Order):
    """An order about rows, as stored in a file."""

    noun: ClassVar[str] = mark("order")
    nothing_done: ClassVar[str] = mark("Nothing was settled, released or sent.")

    document: Literal["paygw-batch order 1"] = "paygw-batch order 1"
    content: RowContent

    @property
    def batch(self) -> str:
        return self.content.batch

    @property
    def row_count(self) -> int:
        return len(self.content.rows)

    @property
    def numbers(self) -> Sequence[int]:
        return [row.row for row in self.content.rows]

    @property
    def sums(self) -> Sequence[tuple[RowAct, str, int, str]]:
        """The number of rows and their sum for each act and currency."""
        groups: dict[tuple[RowAct, str], list[Decimal]] = {}
        for row in self.content.rows:
            groups.setdefault((row.act, row.currency), []).append(Decimal(row.amount))
        return [(act, currency, len(amounts), f"{sum(amounts):f}") for (act, currency), amounts in groups.items()]

    @property
    def is_release(self) -> bool:
        return self.content.rows[0].act is RowAct.RELEASE

    @property
    def settlements(self) -> Sequence[Settlement]:
        return [row.decision.settlement for row in self.content.rows]

    @property
    def cites_gateway(self) -> bool:
        """Whether the order settles a row by the gateway's decision, which its statement must prove."""
        return any(row.basis is Basis.GATEWAY for row in self.content.rows)

    def require_confirmed_by(self, statement: Statement | None, match: Callable[[Statement], StatementMatch]) -> None:
        """Raise `ApprovalError` unless the statement confirms the results that the order attributes to the gateway."""
        if statement is None or statement.sha256 != self.content.statement_sha256:
            raise ApprovalError(
                say(
                    "The order relies on the statement {statement}, which is missing or has been changed.",
                    statement=self.content.statement or say("(no name given)"),
                ),
                hint=say("Nothing was settled. Name the file with `paygw-batch carry-out ORDER --statement FILE`."),
            )
        confirmed = {settlement.row: settlement for settlement in match(statement).settlements}
        for row in self.content.rows:
            if row.basis is not Basis.GATEWAY:
                continue
            proven = confirmed.get(row.row)
            if proven is None or replace(proven, words=row.words) != row.decision.settlement:
                raise ApprovalError(
                    say(
                        "The order says that the gateway's statement settles row {row}, but the statement does not "
                        "prove this.",
                        row=row.row,
                    ),
                    hint=say("Nothing was settled. Make a new order, based on a person's word or on the statement."),
                )

    def statement_note(self, by: str) -> StatementNote | None:
        """Return a note about the statement that the order is based on, if any."""
        content = self.content
        if not content.statement_sha256:
            return None
        attempts = tuple(content.attempts)
        return StatementNote(content.batch, content.statement, content.statement_sha256, by, attempts=attempts)

    def changes(self, actual: RowContent) -> Sequence[str]:
        current_rows = {row.row: row for row in actual.rows}
        changed_rows = [row for row in self.content.rows if current_rows.get(row.row) != row]
        lines = [_describe_change(row, current_rows.get(row.row)) for row in changed_rows[:_MAX_LISTED_CHANGES]]
        if (more_count := len(changed_rows) - _MAX_LISTED_CHANGES) > 0:
            lines.append(say_count(more_count, "and {count:,} more row", "and {count:,} more rows"))
        return lines or [say("the order is for another batch")]


@dataclass(frozen=True, slots=True)
class OrderInForce:
    """An order that may be carried out, its batch, and who decided it."""

    batch: BatchRecord
    by: str
    signed_order: SignedOrder


def order_in_force(
    order: RowOrder, journal: JournalReader, policy: ApprovalPolicy, now: datetime, *, by: str, endpoint: str
) -> OrderInForce:
    """Return an approved, up-to-date order, or raise `ApprovalError`. Quarantine and clock are checked later."""
    batch = find_order_batch(order, journal, endpoint)
    decided_by, signed_order = require_approved(order, journal, policy, now, by=by)
    require_unchanged(order, current_content(order, journal, batch, endpoint))
    return OrderInForce(batch, decided_by, signed_order)


def find_order_batch(order: RowOrder, journal: JournalReader, endpoint: str) -> BatchRecord:
    """Return an order's batch. Raises `ApprovalError` if the journal does not contain it."""
    require_same_journal(order, journal, endpoint)
    content = order.content
    if (batch := journal.batch(content.batch, operation=content.operation)) is None:
        raise ApprovalError(say("The journal has no batch {batch}.", batch=content.batch), hint=say(order.nothing_done))
    return batch


def current_content(order: RowOrder, journal: JournalReader, batch: BatchRecord, endpoint: str) -> RowContent:
    """Return the content of a new order with the same decisions."""
    decisions = [row.decision for row in order.content.rows]
    return order.content.model_copy(update=_current_fields(journal, batch, decisions, endpoint))


def row_content(
    journal: JournalReader,
    batch: BatchRecord,
    decisions: Sequence[Decision],
    *,
    endpoint: str,
    statement: Statement | None = None,
    attempts: Mapping[int, int] | None = None,
) -> RowContent:
    """Return the content of a new order, based on a person's decision or on a `statement` and its `attempts`."""
    return RowContent(
        **_current_fields(journal, batch, decisions, endpoint),
        statement="" if statement is None else statement.name,
        statement_sha256="" if statement is None else statement.sha256,
        attempts=sorted((attempts or {}).items()),
    )


def _current_fields(
    journal: JournalReader, batch: BatchRecord, decisions: Sequence[Decision], endpoint: str
) -> dict[str, Any]:
    """Return the fields of an order that come from the journal. Rows missing from the batch are omitted."""
    states = row_states(journal, batch, {decision.row for decision in decisions})
    holds, minor_units = journal.holds(batch.number), minor_units_by_currency()
    rows = [
        OrderedRow(
            client_orderid=row_state.client_orderid,
            order_id=row_state.sent_orderid or "",
            attempt=row_state.attempt,
            sent_at=row_state.intended_at or "",
            # A row in flight without a run counts as in doubt. The next command that opens the journal records this.
            state=State.IN_DOUBT if row_state.state is State.IN_FLIGHT else row_state.state,
            hold=holds[decision.row].number if decision.row in holds else 0,
            duplicate_of=row_state.possible_duplicate_of or 0,
            currency=row_state.currency,
            amount=from_minor(row_state.minor, minor_units=minor_units[row_state.currency]),
            **decision._asdict(),
        )
        for decision in decisions
        if (row_state := states.get(decision.row)) is not None
    ]
    return {
        "endpoint": endpoint,
        "journal": journal.head().journal_id,
        "operation": batch.operation,
        "batch": batch.batch,
        "sheet": batch.sheet_name,
        "rows": rows,
    }


def unsigned_order(content: RowContent, maker: PublicKey, now: datetime) -> RowOrder:
    return RowOrder(content=content, made_at=timestamp(now), maker=maker.text, signature="", approvals=[])


def _describe_change(ordered: OrderedRow, current: OrderedRow | None) -> str:
    if current is None:
        return say("row {row} is not in the batch", row=ordered.row)
    if (current.attempt, current.state) != (ordered.attempt, ordered.state):
        return say(
            "row {row} was {state} after attempt {attempt} and is now {now} after attempt {now_attempt}",
            row=ordered.row,
            state=state_label(ordered.state.value),
            attempt=ordered.attempt,
            now=state_label(current.state.value),
            now_attempt=current.attempt,
        )
    if current.hold != ordered.hold:
        return say("row {row} is now held for a different reason than when the order was made", row=ordered.row)
    return say("row {row} does not match the payment in the order", row=ordered.row)
