"""Shows an order about rows: its maker signs it, another person agrees or sends it back, and it is carried out."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

from starlette.responses import Response

from paygw_batch.clock import utc_now
from paygw_batch.console.pages.agreement import AgreementCard, Stage, agreement_card, progress_of, shown_document
from paygw_batch.console.pages.settling.orders import OrderAgreement, choice_name
from paygw_batch.console.rendering import Page, PageLink, pages_after, when
from paygw_batch.console.visits import Visit, payout_record
from paygw_batch.core.lifecycle import State
from paygw_batch.journal import BatchRecord, JournalReader
from paygw_batch.language import say
from paygw_batch.report.remittance import payee_of
from paygw_batch.run.quarantine_clock import JournalClock
from paygw_batch.run.resolve import said_by
from paygw_batch.run.row_order import OrderedRow, RowAct, RowOrder, consequence, whose_word
from paygw_batch.wiring.journal import journal_for_planning

ROWS_A_PAGE = 25


@dataclass(frozen=True, slots=True)
class ShownOrderRow:
    """A row of an order, as its page shows it."""

    ordered: OrderedRow
    name: str
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
        shown = _rows(journal, record, later[:ROWS_A_PAGE], settings.submission.quarantine_h)
        ready = sum(one.count for one in journal.tallies(record.number) if one.state is State.READY)
    return visit.page(
        OrderPage(
            card=agreement_card(it, document, progress),
            record=record,
            drafted_at=it.drafted.at,
            what=it.what,
            is_release=document.is_release,
            sums=_sums(document),
            ready=ready,
            rows=shown,
            pages=pages_after(after, later[ROWS_A_PAGE - 1].row if len(later) > ROWS_A_PAGE else 0),
        )
    )


def _rows(
    journal: JournalReader, record: BatchRecord, rows: Sequence[OrderedRow], quarantine_h: float
) -> Sequence[ShownOrderRow]:
    quarantine = JournalClock.read(journal, utc_now()).quarantine(quarantine_h)
    payments = journal.payments(record.number, [one.row for one in rows])
    shown = []
    for one in rows:
        payment = payments.get(one.row)
        shown.append(
            ShownOrderRow(
                one,
                "" if payment is None else payee_of(payment.form, payment.fields).name,
                _becomes(one),
                said_by(one.evidence, one.words),
                "" if one.act is RowAct.RELEASE else whose_word(one),
                consequence(one, quarantine, when),
            )
        )
    return shown


def _becomes(row: OrderedRow) -> str:
    """Return what an order does to a row, in words."""
    return say("Tried again") if row.act is RowAct.RELEASE else choice_name(row.decision.settlement.resolution)


def _sums(document: RowOrder) -> Sequence[tuple[str, str, int, str]]:
    """Return, for each outcome and currency, the number of rows and their sum."""
    found: dict[tuple[str, str], list[Decimal]] = {}
    for one in document.content.rows:
        found.setdefault((_becomes(one), one.currency), []).append(Decimal(one.amount))
    return [(becomes, currency, len(amounts), f"{sum(amounts):f}") for (becomes, currency), amounts in found.items()]
