"""Shows an order about rows: its maker signs it, another person agrees or sends it back, and it is carried out."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

from starlette.responses import Response

from paygw_batch.clock import utc_now
from paygw_batch.console.pages.agreement import AgreementCard, Stage, agreement_card, progress_of, shown_document
from paygw_batch.console.pages.settling.orders import AnyOrder, OrderAgreement, choice_name
from paygw_batch.console.rendering import Page, PageLink, pages_after, when
from paygw_batch.console.visits import Visit, payout_record
from paygw_batch.core.lifecycle import State
from paygw_batch.journal import BatchRecord, JournalReader
from paygw_batch.language import say
from paygw_batch.report.remittance import payee_of
from paygw_batch.run.quarantine_clock import JournalClock, Quarantine
from paygw_batch.run.release import ReleaseOrder
from paygw_batch.run.settlement_order import OrderedRow, consequence, whose_word
from paygw_batch.wiring.journal import journal_for_planning

ROWS_A_PAGE = 25


@dataclass(frozen=True, slots=True)
class ShownOrderRow:
    """A row of an order, as its page shows it."""

    row: int
    name: str
    order_id: str
    currency: str
    amount: str
    attempt: int
    becomes: str
    evidence: str
    word: str
    then: str


@dataclass(frozen=True, slots=True)
class OrderPage(Page):
    """An order about rows."""

    template: ClassVar[str] = "order.html"

    card: AgreementCard
    record: BatchRecord
    drafted_at: str
    what: str
    """The action that it asks for."""
    is_release: bool
    """Whether it has rows sent again rather than settled."""
    sums: Sequence[tuple[str, str, int, str]]
    """For each new state and currency, the number of rows and their sum."""
    ready: int
    """The payout's unsent rows, which the same run sends."""
    rows: Sequence[ShownOrderRow]
    pages: Sequence[PageLink]


def show_order(visit: Visit) -> Response:
    """Show an order to its maker, and to the person who agrees to it."""
    it, settings, after = OrderAgreement.required(visit), visit.console.settings, visit.query_number("after")
    with journal_for_planning(settings) as journal:
        progress = progress_of(journal, it)
        if progress.stage is Stage.DONE:
            return visit.go_to(f"/payouts/{it.batch}")
        document = shown_document(it, progress.stage) or it.shown
        record = payout_record(journal, it.batch)
        later = [one for one in document.content.rows if one.row > after]
        shown = list(_rows(journal, record, document, later[:ROWS_A_PAGE], settings.submission.quarantine_h))
        ready = sum(one.count for one in journal.tallies(record.number) if one.state is State.READY)
    return visit.page(
        OrderPage(
            card=agreement_card(it, document, progress),
            record=record,
            drafted_at=it.drafted.at,
            what=it.what,
            is_release=isinstance(document, ReleaseOrder),
            sums=_sums(document),
            ready=ready,
            rows=shown,
            pages=pages_after(after, later[ROWS_A_PAGE - 1].row if len(later) > ROWS_A_PAGE else 0),
        )
    )


def _rows(
    journal: JournalReader, record: BatchRecord, document: AnyOrder, rows: Sequence[Any], quarantine_h: float
) -> "list[ShownOrderRow]":
    quarantine = JournalClock.read(journal, utc_now()).quarantine(quarantine_h)
    payments = journal.payments(record.number, [one.row for one in rows])
    shown = []
    for one in rows:
        payment = payments.get(one.row)
        name = "" if payment is None else payee_of(payment.form, payment.fields).name
        becomes, evidence = _becomes(document, one)
        word, then = _word_and_consequence(one, quarantine)
        shown.append(
            ShownOrderRow(
                one.row,
                name,
                one.order_id or one.client_orderid,
                one.currency,
                one.amount,
                one.attempt,
                becomes,
                evidence,
                word,
                then,
            )
        )
    return shown


def _word_and_consequence(row: Any, quarantine: Quarantine) -> tuple[str, str]:
    """Return who vouches for a row's settlement, and whether it can then be paid again; for a release, its mark."""
    if isinstance(row, OrderedRow):
        return whose_word(row), consequence(row, quarantine, when)
    marked = say("a possible duplicate of attempt {attempt}", attempt=row.duplicate_of) if row.duplicate_of else ""
    return "", marked


def _becomes(document: AnyOrder, row: Any) -> tuple[str, str]:
    """Return a row's new state under an order, in words, and the evidence for it."""
    if isinstance(document, ReleaseOrder):
        return say("Tried again"), document.content.evidence
    return choice_name(row.resolution), row.settlement.said


def _sums(document: AnyOrder) -> Sequence[tuple[str, str, int, str]]:
    """Return, for each outcome and currency, the number of rows and their sum."""
    found: dict[tuple[str, str], list[Decimal]] = {}
    for one in document.content.rows:
        becomes, _ = _becomes(document, one)
        found.setdefault((becomes, one.currency), []).append(Decimal(one.amount))
    return [(becomes, currency, len(amounts), f"{sum(amounts):f}") for (becomes, currency), amounts in found.items()]
