"""The pages that settle one row, that choose rejected rows to be sent again, and that show an order.

One person alone may say that a row was paid, because after that nothing is sent. Every other outcome lets the row be
sent again, so it becomes an order that a second person must agree to.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from starlette.responses import Response

from paygw_batch.approval.policy import person, required_line
from paygw_batch.clock import utc_now
from paygw_batch.console.pages.agreement import (
    Stage,
    agreement_card,
    is_left,
    progress_of,
    shown_document,
    signing_key,
)
from paygw_batch.console.pages.orders import (
    CHOICES,
    FIRST_PERSON,
    OrderAgreement,
    choice_name,
    drafted_order,
    open_orders,
)
from paygw_batch.console.pages.payout_page import row_at
from paygw_batch.console.permissions import Act
from paygw_batch.console.rendering import pages_after, state_word, when
from paygw_batch.console.visits import ActRefused, PageOutdated, Visit, payout_at, payout_record, row_number
from paygw_batch.core.lifecycle import Resolution, State
from paygw_batch.core.shown_states import recorded
from paygw_batch.engine.quarantine import JournalClock
from paygw_batch.errors import UsageError
from paygw_batch.journal import BatchRecord, JournalReader, RowState
from paygw_batch.language import mark, say
from paygw_batch.opening.open_journal import journal_for_planning, run_journal
from paygw_batch.settle.resolve import Settlement, standings_of
from paygw_batch.settle.row_order import Decision, OrderedRow, RowAct
from paygw_batch.settle.settle_rows import SettleChoice, draft_order, settle_by_word
from paygw_batch.show.batch_status import running_now, sums_by_currency, with_payees
from paygw_batch.show.remittance import payee_of
from paygw_batch.submit.submit_sheet import RejectedRows, rejected_rows


def settle_form(visit: Visit) -> Response:
    record, story, choices = row_at(visit)
    number = story.followed.standing.row
    return visit.page(
        "settle.html",
        record=record,
        followed=story.followed,
        choices=choices,
        meaning=_meaning,
        why_shut=partial(_why_shut, visit),
        orders=[order for order in open_orders(visit, record.batch) if number in order.rows],
        is_running=running_now(visit.console.settings) is not None,
        act_name=choice_name,
    )


def settle_row(visit: Visit) -> Response:
    """Settle one row as paid, or draft an order of two people for any other outcome."""
    batch, row, settings = visit.path("batch"), int(visit.path("row")), visit.console.settings
    resolution = next((resolution for resolution in Resolution if resolution.value == visit.form.get("said")), None)
    if resolution is None:
        raise UsageError(say("Choose what the gateway said."), hint="")
    settlement = Settlement(row, resolution, required_line(visit.form.get("evidence", ""), say("How you know it")))
    # One person may settle a row as paid, because nothing is sent after that. Any other outcome lets it be sent again.
    if resolution is Resolution.PAID:
        with run_journal(settings, "console", lambda _sentence: None) as journal:
            if not _is_settled_so(visit, journal, settlement):
                record = _same_row(visit, journal, row)
                settle_by_word(settings, journal, record, [settlement], person(visit.member.name))
        return visit.go_to(f"/payouts/{batch}/rows/{row}")
    if not visit.may(Act.ORDER):
        raise ActRefused(say(FIRST_PERSON))
    with journal_for_planning(settings) as reader:
        record = _same_row(visit, reader, row)
        draft = draft_order(settings, reader, record, [Decision.of(settlement)], signing_key(visit))
    return visit.go_to(f"/orders/{drafted_order(visit, draft).number}")


def _meaning(choice: SettleChoice) -> str:
    """Return sentences about an outcome: when the row can be sent again, and whether a second person must agree."""
    again = when(choice.again_from) if choice.again_from else say("now")
    consequence = say(CHOICES[choice.resolution][1], again=again)
    return f"{consequence} {say('A second person then approves it.')}" if choice.needs_two else consequence


def _why_shut(visit: Visit, choice: SettleChoice) -> str:
    if choice.opens:
        return say("Not before {at}: until then the gateway may still pay it.", at=when(choice.opens))
    return say(FIRST_PERSON) if choice.needs_two and not visit.may(Act.ORDER) else ""


def _is_settled_so(visit: Visit, journal: JournalReader, settlement: Settlement) -> bool:
    """Return whether the newest action on the row is the same settlement by this person, as after a second click."""
    record = payout_record(journal, visit.path("batch"))
    row = standings_of(journal, record, [settlement.row]).get(settlement.row)
    deeds = [entry for entry in journal.history(record.number) if entry.row == settlement.row]
    if row is None or row.state is not State.PAID or not deeds:
        return False
    newest, by = deeds[-1], person(visit.member.name)
    deed = (newest.kind, newest.by, newest.said, str(newest.attempt))
    return deed == ("resolved_paid", by, settlement.said, visit.form.get("attempt"))


def _same_row(visit: Visit, journal: JournalReader, row: int) -> BatchRecord:
    """Return the payout. Raises `PageOutdated` if the page showed another state or attempt of the row."""
    record = payout_record(journal, visit.path("batch"))
    standing = standings_of(journal, record, [row]).get(row)
    if standing is None:
        return record
    if str(standing.attempt) != visit.form.get("attempt"):
        raise PageOutdated(
            say(
                "Row {row} was sent again since this page was opened: attempt {attempt}.",
                row=row,
                attempt=standing.attempt,
            )
        )
    if standing.state.value != visit.form.get("state"):
        state = state_word(standing.state.value)
        raise PageOutdated(say("Row {row} has changed since this page was opened: {state}.", row=row, state=state))
    return record


ROWS_A_PAGE = 25
MAX_AT_ONCE = 2_000
"""The maximum number of rejected rows on the page and in one order. Further rows follow in another order."""
MAX_REASONS = 50
"""The maximum number of reasons on the page, the most frequent first. Rows with other reasons can be chosen singly."""
_NO_REASON = mark("The gateway gave no reason.")
_REASON, _ROW = "reason-", "row-"
"""The prefixes of the names of checkboxes, followed by the key of a reason, or by the number of a row."""


@dataclass(frozen=True, slots=True)
class RejectedReason:
    """A reason why rows were rejected, with these rows. `key` names the reason in addresses and forms.

    `sums` by currency are of the rows that may be sent again now; `waiting` is the number of the others.
    """

    key: str
    text: str
    rows: Sequence[int]
    sums: Mapping[str, str]
    waiting: int


def rejected_form(visit: Visit) -> Response:
    settings, wanted, after = visit.console.settings, visit.query("reason"), visit.query_number("after")
    with payout_at(visit) as (journal, record):
        rejected = rejected_rows(settings, journal, record, limit=MAX_AT_ONCE)
        reasons = _reasons(rejected)
        listed = [row for row in rejected.rows if row.row > after and wanted in {"", _key(row)}]
        rows = with_payees(journal, record, listed[:ROWS_A_PAGE], None)
    numbers = {row.row for row in rejected.rows}
    return visit.page(
        "retry.html",
        record=record,
        found=rejected,
        # The form sends a digest of the rows that its page showed.
        shown=_digest(rejected),
        reasons=reasons[:MAX_REASONS],
        other_reasons=max(len(reasons) - MAX_REASONS, 0),
        rows=rows,
        reason=_reason,
        wanted=wanted,
        pages=pages_after(after, rows[-1].standing.row if len(listed) > ROWS_A_PAGE else 0, "rows", reason=wanted),
        most=MAX_AT_ONCE,
        orders=[order for order in open_orders(visit, record.batch) if not numbers.isdisjoint(order.rows)],
    )


def choose_rejected(visit: Visit) -> Response:
    """Draft the order to send the chosen rows again: single rows, and all rows with a chosen reason."""
    settings, form = visit.console.settings, visit.form
    with payout_at(visit) as (journal, record):
        rejected = rejected_rows(settings, journal, record, limit=MAX_AT_ONCE)
        if _digest(rejected) != form.get("shown"):
            raise PageOutdated(say("The rejected rows of this payout have changed since this page was opened."))
        of_reasons = {row for reason in _reasons(rejected) if f"{_REASON}{reason.key}" in form for row in reason.rows}
        numbers = {row_number(name.removeprefix(_ROW)) for name in form if name.startswith(_ROW)}
        rows = {number for number in numbers if number is not None}
        chosen = sorted(of_reasons.difference(rejected.opens) | rows)
        if None in numbers or not {row.row for row in rejected.rows}.issuperset(chosen):
            raise UsageError(say("One of these rows is no longer rejected. Reload the page and check again."), hint="")
        if not chosen:
            raise UsageError(say("Choose the rows that are to be tried again."), hint="")
        evidence = required_line(form.get("evidence", ""), say("Why they can be tried again"))
        decisions = [Decision(row, RowAct.RELEASE, evidence) for row in chosen]
        draft = draft_order(settings, journal, record, decisions, signing_key(visit))
    return visit.go_to(f"/orders/{drafted_order(visit, draft).number}")


def _digest(rejected: RejectedRows) -> str:
    """Return a value that changes whenever the page would show other rows or other choices."""
    rows = [(row.row, row.attempt, _key(row), row.row in rejected.opens) for row in rejected.rows]
    return hashlib.sha256(repr((rows, rejected.has_more)).encode()).hexdigest()[:32]


def _reasons(rejected: RejectedRows) -> Sequence[RejectedReason]:
    """Return the reasons of rejected rows, the most frequent first."""
    by_key: dict[str, list[RowState]] = {}
    for row in rejected.rows:
        by_key.setdefault(_key(row), []).append(row)
    reasons = [
        RejectedReason(
            key,
            _reason(rows[0]),
            [row.row for row in rows],
            sums_by_currency(row for row in rows if row.row not in rejected.opens),
            sum(row.row in rejected.opens for row in rows),
        )
        for key, rows in by_key.items()
    ]
    return sorted(reasons, key=lambda reason: -len(reason.rows))


def _reason(row: RowState) -> str:
    """Return why a row was rejected, in the gateway's words or a person's."""
    return recorded(row.message or "", is_for_officers=True) or row.gateway_status or say(_NO_REASON)


def _key(row: RowState) -> str:
    text = "\n".join((row.message or "", row.gateway_status or "", row.error_code or ""))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def show_order(visit: Visit) -> Response:
    agreement, settings, after = OrderAgreement.required(visit), visit.console.settings, visit.query_number("after")
    with journal_for_planning(settings) as journal:
        progress = progress_of(journal, agreement)
        if is_left(visit, progress):
            return visit.go_to(f"/payouts/{agreement.batch}")
        document = shown_document(agreement, progress.stage) or agreement.shown
        record = payout_record(journal, agreement.batch)
        later = [row for row in document.content.rows if row.row > after]
        shown = _rows(journal, record, later[:ROWS_A_PAGE], settings.submission.quarantine_h)
        ready = sum(tally.count for tally in journal.tallies(record.number) if tally.state is State.READY)
    return visit.page(
        "order.html",
        card=agreement_card(agreement, document, progress),
        order=document,
        record=record,
        # The run that carries out the order also sends the unsent rows of the payout.
        ready=0 if progress.stage is Stage.DONE else ready,
        rows=shown,
        pages=pages_after(after, later[ROWS_A_PAGE - 1].row if len(later) > ROWS_A_PAGE else 0),
        act_name=choice_name,
    )


def _rows(
    journal: JournalReader, record: BatchRecord, rows: Sequence[OrderedRow], quarantine_h: float
) -> Sequence[tuple[OrderedRow, str, str]]:
    quarantine = JournalClock.read(journal, utc_now()).quarantine(quarantine_h)
    payments = journal.payments(record.number, [row.row for row in rows])
    names = {row: payee_of(payment.form, payment.fields).name for row, payment in payments.items()}
    return [(row, names.get(row.row, ""), row.consequence(quarantine, when)) for row in rows]
