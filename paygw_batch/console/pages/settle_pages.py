"""The pages on which people settle a row, choose rejected rows to resend, and view an order.

One person can settle a row as paid, because a paid row is never sent again. For any other outcome, the row could be
sent again, so a second person must agree.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from starlette.responses import Response

from paygw_batch.approval.policy import identify_person, require_line
from paygw_batch.clock import utc_now
from paygw_batch.console.pages.agreement import (
    Stage,
    build_card,
    displayed_document,
    is_superseded,
    read_progress,
    signing_key,
)
from paygw_batch.console.pages.orders import (
    ASK_MAKER_MESSAGE,
    CHOICES,
    OrderAgreement,
    choice_name,
    open_orders,
    store_draft,
)
from paygw_batch.console.pages.payout_page import load_row
from paygw_batch.console.permissions import Action
from paygw_batch.console.rendering import format_time, next_page_links, state_title
from paygw_batch.console.visits import ActionRefused, PageOutdated, Visit, open_payout, parse_row_number, require_payout
from paygw_batch.core.lifecycle import Resolution, State
from paygw_batch.core.shown_states import render_record
from paygw_batch.engine.quarantine import JournalClock
from paygw_batch.errors import UsageError
from paygw_batch.journal import BatchRecord, JournalReader, RowState
from paygw_batch.language import say
from paygw_batch.opening.open_journal import journal_for_planning, open_journal_for_run
from paygw_batch.settle.resolve import Settlement, row_states
from paygw_batch.settle.row_order import Decision, OrderedRow, RowAct
from paygw_batch.settle.settle_rows import SettleChoice, draft_order, settle_by_decision
from paygw_batch.show.batch_status import add_payees, running_process, sums_by_currency
from paygw_batch.show.remittance import build_payee
from paygw_batch.submit.submit_sheet import RejectedRows, rejected_rows


def show_settle_form(visit: Visit) -> Response:
    record, row_history, choices = load_row(visit)
    number = row_history.view.standing.row
    return visit.page(
        "settle.html",
        record=record,
        view=row_history.view,
        step=row_history.step,
        choices=choices,
        consequence=_describe_consequence,
        disabled_reason=partial(_disabled_reason, visit),
        orders=[order for order in open_orders(visit, record.batch) if number in order.rows],
        is_running=running_process(visit.console.settings) is not None,
        choice_name=choice_name,
    )


def settle_row(visit: Visit) -> Response:
    """Settle a row as paid. For any other outcome, draft an order that two people must agree to."""
    batch, row, settings = visit.path_param("batch"), int(visit.path_param("row")), visit.console.settings
    resolution = next((resolution for resolution in Resolution if resolution.value == visit.form.get("said")), None)
    if resolution is None:
        raise UsageError(say("Choose what the gateway said."), hint="")
    settlement = Settlement(row, resolution, require_line(visit.form.get("evidence", ""), say("Your evidence")))
    if resolution is Resolution.PAID:
        with open_journal_for_run(settings, "console", lambda _sentence: None) as journal:
            if not _is_already_settled(visit, journal, settlement):
                record = _require_same_row(visit, journal, row)
                settle_by_decision(settings, journal, record, [settlement], identify_person(visit.member.name))
        return visit.redirect(f"/payouts/{batch}/rows/{row}")
    if not visit.may(Action.ORDER):
        raise ActionRefused(say(ASK_MAKER_MESSAGE))
    with journal_for_planning(settings) as reader:
        record = _require_same_row(visit, reader, row)
        draft = draft_order(settings, reader, record, [Decision.from_settlement(settlement)], signing_key(visit))
    return visit.redirect(f"/orders/{store_draft(visit, draft).number}")


def _describe_consequence(choice: SettleChoice) -> str:
    again = format_time(choice.retry_from) if choice.retry_from else say("now")
    consequence = say(CHOICES[choice.resolution][1], again=again)
    return f"{consequence} {say('A second person then approves it.')}" if choice.needs_two else consequence


def _disabled_reason(visit: Visit, choice: SettleChoice) -> str:
    if choice.open_from:
        return say(
            "Available after {at}. Until then, the gateway may still pay this row.", at=format_time(choice.open_from)
        )
    return say(ASK_MAKER_MESSAGE) if choice.needs_two and not visit.may(Action.ORDER) else ""


def _is_already_settled(visit: Visit, journal: JournalReader, settlement: Settlement) -> bool:
    """Return whether this person has already settled the row this way, for example with an earlier click."""
    record = require_payout(journal, visit.path_param("batch"))
    row = row_states(journal, record, [settlement.row]).get(settlement.row)
    actions = [entry for entry in journal.history(record.number) if entry.row == settlement.row]
    if row is None or row.state is not State.PAID or not actions:
        return False
    last_action, by = actions[-1], identify_person(visit.member.name)
    action = (last_action.kind, last_action.by, last_action.said, str(last_action.attempt))
    return action == ("resolved_paid", by, settlement.evidence_text, visit.form.get("attempt"))


def _require_same_row(visit: Visit, journal: JournalReader, row: int) -> BatchRecord:
    """Return the batch. Raises `PageOutdated` if the row's state or attempt has changed since the page was opened."""
    record = require_payout(journal, visit.path_param("batch"))
    row_state = row_states(journal, record, [row]).get(row)
    if row_state is None:
        return record
    if str(row_state.attempt) != visit.form.get("attempt"):
        raise PageOutdated(
            say(
                "Row {row} has been sent again since this page was opened: attempt {attempt}.",
                row=row,
                attempt=row_state.attempt,
            )
        )
    if row_state.state.value != visit.form.get("state"):
        state = state_title(row_state.state.value)
        raise PageOutdated(say("Row {row} has changed since this page was opened: {state}.", row=row, state=state))
    return record


ROWS_PER_PAGE = 25
MAX_ROWS_IN_ORDER = 2_000
"""Maximum number of rejected rows on the page and in an order. Further rows need another order."""
MAX_REASONS = 50
"""Maximum number of reasons on the page, most frequent first. Rows with other reasons are chosen individually."""
_REASON_PREFIX, _ROW_PREFIX = "reason-", "row-"
"""Prefixes of checkbox names. The rest of the name is the key of a reason or the number of a row."""


@dataclass(frozen=True, slots=True)
class RejectedReason:
    """A reason for rejection, with its rows. `key` identifies the reason in addresses and forms.

    `sums` covers only the rows that may be sent again now, by currency. `waiting` is the number of other rows.
    """

    key: str
    text: str
    rows: Sequence[int]
    sums: Mapping[str, str]
    waiting: int


def show_rejected_form(visit: Visit) -> Response:
    settings, key, after = visit.console.settings, visit.query("reason"), visit.query_number("after")
    with open_payout(visit) as (journal, record):
        rejected = rejected_rows(settings, journal, record, limit=MAX_ROWS_IN_ORDER)
        reasons = _group_by_reason(rejected)
        matches = [row for row in rejected.rows if row.row > after and key in {"", _reason_key(row)}]
        rows = add_payees(journal, record, matches[:ROWS_PER_PAGE], None)
    numbers = {row.row for row in rejected.rows}
    return visit.page(
        "retry.html",
        record=record,
        rejected=rejected,
        # A digest of the shown rows, which the form sends back.
        shown=_rows_digest(rejected),
        reasons=reasons[:MAX_REASONS],
        other_reasons=max(len(reasons) - MAX_REASONS, 0),
        rows=rows,
        reason=_rejection_reason,
        reason_key=key,
        pages=next_page_links(after, rows[-1].standing.row if len(matches) > ROWS_PER_PAGE else 0, "rows", reason=key),
        most=MAX_ROWS_IN_ORDER,
        orders=[order for order in open_orders(visit, record.batch) if not numbers.isdisjoint(order.rows)],
    )


def choose_rejected(visit: Visit) -> Response:
    """Draft an order to resend the individually chosen rows and all rows with a chosen reason."""
    settings, form = visit.console.settings, visit.form
    with open_payout(visit) as (journal, record):
        rejected = rejected_rows(settings, journal, record, limit=MAX_ROWS_IN_ORDER)
        if _rows_digest(rejected) != form.get("shown"):
            raise PageOutdated(say("The rejected rows of this payout have changed since this page was opened."))
        reasons = [reason for reason in _group_by_reason(rejected) if f"{_REASON_PREFIX}{reason.key}" in form]
        rows_with_reason = {row for reason in reasons for row in reason.rows}
        numbers = {parse_row_number(name.removeprefix(_ROW_PREFIX)) for name in form if name.startswith(_ROW_PREFIX)}
        single_rows = {number for number in numbers if number is not None}
        row_numbers = sorted(rows_with_reason.difference(rejected.open_from) | single_rows)
        if None in numbers or not {row.row for row in rejected.rows}.issuperset(row_numbers):
            raise UsageError(say("One of these rows is no longer rejected. Reload the page and check again."), hint="")
        if not row_numbers:
            raise UsageError(say("Choose the rows to retry."), hint="")
        evidence = require_line(form.get("evidence", ""), say("The reason"))
        decisions = [Decision(row, RowAct.RELEASE, evidence) for row in row_numbers]
        draft = draft_order(settings, journal, record, decisions, signing_key(visit))
    return visit.redirect(f"/orders/{store_draft(visit, draft).number}")


def _rows_digest(rejected: RejectedRows) -> str:
    rows = [(row.row, row.attempt, _reason_key(row), row.row in rejected.open_from) for row in rejected.rows]
    return hashlib.sha256(repr((rows, rejected.has_more)).encode()).hexdigest()[:32]


def _group_by_reason(rejected: RejectedRows) -> Sequence[RejectedReason]:
    rows_by_key: dict[str, list[RowState]] = {}
    for row in rejected.rows:
        rows_by_key.setdefault(_reason_key(row), []).append(row)
    reasons = [
        RejectedReason(
            key,
            _rejection_reason(rows[0]),
            [row.row for row in rows],
            sums_by_currency(row for row in rows if row.row not in rejected.open_from),
            sum(row.row in rejected.open_from for row in rows),
        )
        for key, rows in rows_by_key.items()
    ]
    return sorted(reasons, key=lambda reason: -len(reason.rows))


def _rejection_reason(row: RowState) -> str:
    reason = render_record(row.message or "", is_for_officers=True) or row.gateway_status
    return reason or say("The gateway gave no reason.")


def _reason_key(row: RowState) -> str:
    text = "\n".join((row.message or "", row.gateway_status or "", row.error_code or ""))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def show_order(visit: Visit) -> Response:
    agreement, settings, after = OrderAgreement.require(visit), visit.console.settings, visit.query_number("after")
    with journal_for_planning(settings) as journal:
        progress = read_progress(journal, agreement)
        if is_superseded(visit, progress):
            return visit.redirect(f"/payouts/{agreement.batch}")
        document = displayed_document(agreement, progress.stage) or agreement.shown
        record = require_payout(journal, agreement.batch)
        later_rows = [row for row in document.content.rows if row.row > after]
        rows = _order_rows(journal, record, later_rows[:ROWS_PER_PAGE], settings.submission.quarantine_h)
        ready_count = sum(tally.count for tally in journal.tallies(record.number) if tally.state is State.READY)
    return visit.page(
        "order.html",
        card=build_card(agreement, document, progress),
        order=document,
        record=record,
        # Unsent rows, which the run that carries out the order also sends.
        ready=0 if progress.stage is Stage.DONE else ready_count,
        rows=rows,
        pages=next_page_links(after, later_rows[ROWS_PER_PAGE - 1].row if len(later_rows) > ROWS_PER_PAGE else 0),
        choice_name=choice_name,
    )


def _order_rows(
    journal: JournalReader, record: BatchRecord, rows: Sequence[OrderedRow], quarantine_h: float
) -> Sequence[tuple[OrderedRow, str, str]]:
    quarantine = JournalClock.read(journal, utc_now()).quarantine(quarantine_h)
    payments = journal.payments(record.number, [row.row for row in rows])
    names = {row: build_payee(payment.form, payment.fields).name for row, payment in payments.items()}
    return [(row, names.get(row.row, ""), row.consequence(quarantine, format_time)) for row in rows]
