"""Lists rejected rows with their reasons, and drafts the order by which two people have some of them retried."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

from starlette.responses import Response

from paygw_batch.actions.continue_batch import RejectedRows, rejected_rows
from paygw_batch.actions.settle_rows import draft_order
from paygw_batch.console.pages.agreement import ListedAgreement, signing_key
from paygw_batch.console.pages.settling.orders import drafted_order, open_orders
from paygw_batch.console.rendering import Page, PageLink, pages_after
from paygw_batch.console.visits import PageOutdated, Visit, payout_record
from paygw_batch.core.money import from_minor
from paygw_batch.core.recorded_words import recorded
from paygw_batch.countries.load import minor_units_by_currency
from paygw_batch.errors import UsageError
from paygw_batch.journal import BatchRecord, JournalReader, RowState
from paygw_batch.language import mark, say
from paygw_batch.report.remittance import payee_of
from paygw_batch.run.row_order import Decision, RowAct
from paygw_batch.wiring.approvals import required_line
from paygw_batch.wiring.journal import journal_for_planning

ROWS_A_PAGE = 25
MAX_AT_ONCE = 2_000
"""The maximum number of rejected rows on a page and in one order. The rest follow after these."""
MAX_REASONS = 50
"""The maximum number of reasons on a page, most frequent first. Rows with other reasons are listed one by one."""
_NO_REASON = mark("The gateway gave no reason.")
_REASON, _ROW = "reason-", "row-"
"""The prefixes of the form's checkboxes: a reason's key, or a row's number, follows."""


@dataclass(frozen=True, slots=True)
class RejectedReason:
    """A reason given by the gateway, and its rows. `key` names it in addresses and forms.

    `sums` are by currency, over the rows that may be retried now.
    """

    key: str
    text: str
    rows: Sequence[int]
    sums: Mapping[str, str]
    waiting: int


@dataclass(frozen=True, slots=True)
class ShownRejectedRow:
    """A rejected row. `opens` is when it may be retried; empty: now."""

    row: int
    name: str
    currency: str
    amount: str
    reason: str
    opens: str


@dataclass(frozen=True, slots=True)
class RetryPage(Page):
    """The rejected rows of a payout, by reason and by page."""

    template: ClassVar[str] = "retry.html"

    record: BatchRecord
    shown: str
    """A digest of the rows shown by the page, sent with its form."""
    reasons: Sequence[RejectedReason]
    other_reasons: int
    rows: Sequence[ShownRejectedRow]
    wanted: str
    """The reason whose rows are shown; empty: all."""
    pages: Sequence[PageLink]
    may_choose: bool
    has_more: bool
    most: int
    orders: Sequence[ListedAgreement]
    """The open orders about some of these rows."""


def rejected_form(visit: Visit) -> Response:
    """Show the rejected rows of a payout, by reason and by page."""
    settings, wanted, after = visit.console.settings, visit.query("reason"), visit.query_number("after")
    with journal_for_planning(settings) as journal:
        record = payout_record(journal, visit.path("batch"))
        found = rejected_rows(settings, journal, record, limit=MAX_AT_ONCE)
        reasons = _reasons(found)
        listed = [one for one in found.rows if one.row > after and wanted in {"", _key(one)}]
        rows = _shown(journal, record, listed[:ROWS_A_PAGE], found.opens)
    return visit.page(
        RetryPage(
            record=record,
            shown=_digest(found),
            reasons=reasons[:MAX_REASONS],
            other_reasons=max(len(reasons) - MAX_REASONS, 0),
            rows=rows,
            wanted=wanted,
            pages=pages_after(after, rows[-1].row if len(listed) > ROWS_A_PAGE else 0, "rows", reason=wanted),
            may_choose=len(found.rows) > len(found.opens),
            has_more=found.has_more,
            most=MAX_AT_ONCE,
            orders=[one for one in open_orders(visit, record.batch) if set(one.rows) & {row.row for row in found.rows}],
        )
    )


def choose_rejected(visit: Visit) -> Response:
    """Draft the order to retry the chosen rows: single ones, and all with a chosen reason."""
    settings, form = visit.console.settings, visit.form
    with journal_for_planning(settings) as journal:
        record = payout_record(journal, visit.path("batch"))
        found = rejected_rows(settings, journal, record, limit=MAX_AT_ONCE)
        if _digest(found) != form.get("shown"):
            raise PageOutdated(say("The rejected rows of this payout have changed since this page was opened."))
        of_reasons = {row for one in _reasons(found) if f"{_REASON}{one.key}" in form for row in one.rows}
        chosen = sorted(of_reasons.difference(found.opens) | _single_rows(form))
        if not {row.row for row in found.rows}.issuperset(chosen):
            raise UsageError(say("One of these rows is no longer rejected. Reload the page and check again."), hint="")
        if not chosen:
            raise UsageError(say("Choose the rows that are to be tried again."), hint="")
        evidence = required_line(form.get("evidence", ""), say("Why they can be tried again"))
        decisions = [Decision(row, RowAct.RELEASE, evidence) for row in chosen]
        draft = draft_order(settings, journal, record, decisions, signing_key(visit))
    return visit.go_to(f"/orders/{drafted_order(visit, draft).number}")


def _digest(found: RejectedRows) -> str:
    """Return a value that stays the same while the page would show the same rows with the same choices."""
    rows = [(one.row, one.attempt, _key(one), one.row in found.opens) for one in found.rows]
    return hashlib.sha256(repr((rows, found.has_more)).encode()).hexdigest()[:32]


def _single_rows(form: Mapping[str, str]) -> set[int]:
    texts = (name.removeprefix(_ROW) for name in form if name.startswith(_ROW))
    return {int(text) for text in texts if text.isascii() and text.isdigit() and len(text) < 12}  # noqa: PLR2004 (no row number is that long)


def _reasons(found: RejectedRows) -> Sequence[RejectedReason]:
    """Return the rows' reasons, most frequent first."""
    by_key: dict[str, list[RowState]] = {}
    for one in found.rows:
        by_key.setdefault(_key(one), []).append(one)
    reasons = [
        RejectedReason(
            key,
            _reason(rows[0]),
            [one.row for one in rows],
            _sums([one for one in rows if one.row not in found.opens]),
            sum(one.row in found.opens for one in rows),
        )
        for key, rows in by_key.items()
    ]
    return sorted(reasons, key=lambda one: -len(one.rows))


def _reason(row: RowState) -> str:
    """Return why a row was rejected, in the gateway's words or a person's."""
    return recorded(row.message or "", is_for_officers=True) or row.gateway_status or say(_NO_REASON)


def _key(row: RowState) -> str:
    text = "\n".join((row.message or "", row.gateway_status or "", row.error_code or ""))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _sums(rows: Sequence[RowState]) -> Mapping[str, str]:
    units, found = minor_units_by_currency(), dict[str, Decimal]()
    for one in rows:
        amount = Decimal(from_minor(one.minor, minor_units=units[one.currency]))
        found[one.currency] = found.get(one.currency, Decimal(0)) + amount
    return {currency: f"{amount:f}" for currency, amount in sorted(found.items())}


def _shown(
    journal: JournalReader, record: BatchRecord, rows: Sequence[RowState], opens: Mapping[int, str]
) -> Sequence[ShownRejectedRow]:
    payments = journal.payments(record.number, [one.row for one in rows])
    return [
        ShownRejectedRow(
            one.row,
            payee_of(payments[one.row].form, payments[one.row].fields).name,
            one.currency,
            payments[one.row].amount,
            _reason(one),
            opens.get(one.row, ""),
        )
        for one in rows
    ]
