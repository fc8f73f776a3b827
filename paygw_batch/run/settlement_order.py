"""Makes settlement orders: one person writes each row's resolution, another approves, and the order counts once.

An order names each row's latest attempt and state, and is valid while these are unchanged. It is a person's word,
whatever it claims: if it cites the gateway, the statement that it names is read and verified again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import ClassVar, Literal

from paygw_batch.clock import timestamp
from paygw_batch.core.lifecycle import Basis, Resolution, State
from paygw_batch.core.money import from_minor
from paygw_batch.core.shown_states import state_words
from paygw_batch.errors import ApprovalError, InternalError
from paygw_batch.journal import BatchRecord, CarriedOut, JournalReader
from paygw_batch.language import mark, say
from paygw_batch.run.approval_keys import PublicKey
from paygw_batch.run.match_statement import Matched
from paygw_batch.run.ordered_batch import OrderedBatch, RowOrder, frame_of
from paygw_batch.run.quarantine_clock import Quarantine
from paygw_batch.run.resolve import Settlement, standings_of
from paygw_batch.run.signed_document import SignedPart
from paygw_batch.statement.read import Statement

_SHOWN_CHANGES = 5
"""The maximum number of rows that a refusal names."""


class OrderedRow(SignedPart):
    """One row to settle: its latest attempt, and its resolution.

    `order_id` and `sent_at`, the time of that attempt, are empty if nothing ever left. `hold` is the number of the
    evidence that holds a ready row, or 0. Lifting a hold changes no state, so only this number keeps an order from
    lifting the next hold too.
    """

    row: int
    client_orderid: str
    order_id: str
    attempt: int
    sent_at: str
    state: State
    hold: int
    currency: str
    amount: str
    resolution: Resolution
    evidence: str
    basis: Basis
    words: str = ""
    """The maker's words, shown before a statement's evidence."""

    @property
    def settlement(self) -> Settlement:
        """The settlement that this row asks for."""
        return Settlement(self.row, self.resolution, self.evidence, self.basis, self.words)


class OrderContent(OrderedBatch):
    """The rows that would be settled, and their journal and batch.

    `statement` and `statement_sha256` name the file that the order was read from, and are empty for a person's word.
    `attempts` pairs each instruction named in the file with its number of attempts then: the file covers no later one.
    """

    statement: str
    statement_sha256: str
    attempts: list[tuple[int, int]] = []  # noqa: RUF012 (pydantic copies it for each document)
    rows: list[OrderedRow]


class SettlementOrder(RowOrder):
    """An order as it is in its file."""

    noun: ClassVar[str] = mark("settlement order")
    placeholder: ClassVar[str] = "ORDER"
    nothing_done: ClassVar[str] = mark("Nothing was settled.")
    make_another: ClassVar[str] = mark(
        "Make a new order: `paygw-batch resolve row BATCH ROW --as WORD --evidence TEXT --out ORDER --key KEY`."
    )

    document: Literal["paygw-batch settlement order 3"] = "paygw-batch settlement order 3"
    content: OrderContent

    @property
    def settlements(self) -> Sequence[Settlement]:
        """The settlements that the order asks for."""
        return [one.settlement for one in self.content.rows]

    @property
    def claims_the_gateways_word(self) -> bool:
        """Whether any row would be settled on the gateway's word, which only its statement proves."""
        return any(one.basis is Basis.GATEWAY for one in self.content.rows)

    def require_said_by(self, statement: Statement | None, match: Callable[[Statement], Matched]) -> None:
        """Raise `ApprovalError` unless the statement, read now, confirms all that the order attributes to the gateway.

        `match` compares the statement with the batch. None: the statement is missing.
        """
        if statement is None or statement.sha256 != self.content.statement_sha256:
            raise ApprovalError(
                say(
                    "The settlement order gives the gateway's word, but its statement {statement} is not there "
                    "to prove it.",
                    statement=self.content.statement or say("(none is named)"),
                ),
                hint=say("Nothing was settled. `paygw-batch resolve order ORDER --statement FILE` names the file."),
            )
        said = {one.row: one for one in match(statement).settlements}
        for one in self.content.rows:
            if one.basis is Basis.GATEWAY and not _is_said(one, said.get(one.row)):
                raise ApprovalError(
                    say(
                        "The settlement order says that row {row} rests on the gateway's word, but the "
                        "statement does not prove it.",
                        row=one.row,
                    ),
                    hint=say("Nothing was settled. A new order gives it as a person's word, or as the statement does."),
                )

    def carried_out(self, by: str) -> CarriedOut | None:
        """Return the statement that the order carries out; None if it was not read from one."""
        content = self.content
        if not content.statement_sha256:
            return None
        attempts = tuple(content.attempts)
        return CarriedOut(content.batch, content.statement, content.statement_sha256, by, attempts=attempts)

    def content_now(
        self, journal: JournalReader, batch: BatchRecord, *, endpoint: str, minor_units: Mapping[str, int]
    ) -> OrderContent:
        """Return the content that an order with the same settlements would have now."""
        known = standings_of(journal, batch, set(self.numbers))
        found = [one for one in self.settlements if one.row in known]
        actual = order_content(journal, batch, found, endpoint=endpoint, minor_units=minor_units)
        of_statement = ("statement", "statement_sha256", "attempts")
        return actual.model_copy(update={name: getattr(self.content, name) for name in of_statement})

    def refusal(self, actual: OrderedBatch) -> ApprovalError:
        """Return the refusal of an order, naming the rows that have changed."""
        changes = _what_changed(self.content, OrderContent.model_validate(actual))
        return ApprovalError(
            say("The settlement order is no longer valid: {actual}.", actual=changes),
            hint=say(
                "Nothing was settled. `paygw-batch status BATCH` shows the rows. What is still in doubt needs a new "
                "order."
            ),
        )


def order_content(
    journal: JournalReader,
    batch: BatchRecord,
    settlements: Sequence[Settlement],
    *,
    endpoint: str,
    minor_units: Mapping[str, int],
    statement: Statement | None = None,
    attempts: Mapping[int, int] | None = None,
) -> OrderContent:
    """Return the content of an order to settle rows of a batch now, on a person's word or from a `statement`.

    `attempts` are those of the instructions that the statement names (`Matched.attempts`).
    """
    standings = standings_of(journal, batch, {settlement.row for settlement in settlements})
    holds = journal.holds(batch.number)
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
                sent_at=standing.intended_at or "",
                # A row in flight without a run is in doubt; the next command that opens the journal records that.
                state=State.IN_DOUBT if standing.state is State.IN_FLIGHT else standing.state,
                hold=holds[settlement.row].number if settlement.row in holds else 0,
                currency=standing.currency,
                amount=from_minor(standing.minor, minor_units=minor_units[standing.currency]),
                resolution=settlement.resolution,
                evidence=settlement.evidence,
                basis=settlement.basis,
                words=settlement.words,
            )
        )
    return OrderContent(
        **frame_of(journal, batch, endpoint),
        statement="" if statement is None else statement.name,
        statement_sha256="" if statement is None else statement.sha256,
        attempts=sorted((attempts or {}).items()),
        rows=rows,
    )


def whose_word(one: OrderedRow) -> str:
    """Return who vouches for a row's resolution."""
    return say("the gateway's, proven by its statement") if one.basis is Basis.GATEWAY else say("a person's")


def consequence(one: OrderedRow, quarantine: Quarantine, shown: Callable[[str], str] = str) -> str:
    """Return whether and when a row can be paid again after this settlement; `shown` formats a time."""
    if one.resolution is Resolution.PAID:
        return say("it is never sent again")
    if one.basis is Basis.GATEWAY or not one.sent_at:
        return say(
            "can be paid again at once; marked as a possible duplicate of attempt {attempt}", attempt=one.attempt
        )
    return say(
        "can be paid again, not before {opens}; marked as a possible duplicate of attempt {attempt}",
        opens=shown(timestamp(quarantine.opens(one.sent_at))),
        attempt=one.attempt,
    )


def _is_said(ordered: OrderedRow, said: Settlement | None) -> bool:
    """Whether a statement settles a row as ordered, on the gateway's word alone."""
    return said is not None and replace(said, words=ordered.words) == ordered.settlement


def unsigned_order(content: OrderContent, maker: PublicKey, now: datetime) -> SettlementOrder:
    """Return an order that its maker has yet to sign."""
    return SettlementOrder(content=content, made_at=timestamp(now), maker=maker.text, signature="", approvals=[])


def _what_changed(ordered: OrderContent, actual: OrderContent) -> str:
    now = {one.row: one for one in actual.rows}
    changes = []
    for one in ordered.rows:
        is_now = now.get(one.row)
        if is_now is None:
            changes.append(say("row {row} is not in the batch", row=one.row))
        elif (is_now.attempt, is_now.state) != (one.attempt, one.state):
            changes.append(
                say(
                    "row {row} was {state} after attempt {attempt}, and is {now} after attempt {now_attempt}",
                    row=one.row,
                    state=_words(one.state),
                    attempt=one.attempt,
                    now=_words(is_now.state),
                    now_attempt=is_now.attempt,
                )
            )
        elif is_now.hold != one.hold:
            changes.append(say("row {row} is held for a different reason than when the order was made", row=one.row))
        elif is_now != one:
            changes.append(say("row {row} is not the payment that the order names", row=one.row))
    more = (
        [say("and {changes:,} more rows", changes=len(changes) - _SHOWN_CHANGES)]
        if len(changes) > _SHOWN_CHANGES
        else []
    )
    return "; ".join([*changes[:_SHOWN_CHANGES], *more]) or say("the batch is not the one that the order names")


def _words(state: State) -> str:
    return state_words(state.value)
