"""The pages of a payout during and after its run: progress, totals, rows, row histories and downloads."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from starlette.responses import Response

from paygw_batch.console.pages.orders import open_orders, signed_order_paths
from paygw_batch.console.pages.plan_page import signed_plan_path
from paygw_batch.console.rendering import SHOWN_STATES, format_date_in_zone, format_time, next_page_links, state_title
from paygw_batch.console.start_run import last_run, pause_run, run_reference, start_run
from paygw_batch.console.visits import (
    FILE_TYPES,
    PageNotFound,
    PageOutdated,
    Visit,
    download_response,
    hold_lock,
    open_payout,
    require_extension,
)
from paygw_batch.core.lifecycle import State
from paygw_batch.core.shown_states import (
    INVALID,
    action_label,
    decider_name,
    decode_record,
    parse_agreement,
    render_record,
)
from paygw_batch.errors import UsageError
from paygw_batch.files import write_atomically
from paygw_batch.journal import BatchRecord, FoundPayment, HistoryEntry, JournalReader, make_directory
from paygw_batch.language import language, mark, mark_all, say, say_count
from paygw_batch.opening.given_sheet import rule_minor_units
from paygw_batch.settle.kept_documents import recorded_orders
from paygw_batch.settle.row_order import RowOrder
from paygw_batch.settle.settle_rows import SettleChoice, settle_choices
from paygw_batch.show.batch_status import BatchView, RowHistory, batch_view, load_row_history, payment_views
from paygw_batch.show.next_step import HELD_FOR_OFFICERS, NextStep, RowStep
from paygw_batch.show.remittance import paid_payouts, render_advices, render_batch_advices
from paygw_batch.show.report_page import Reader
from paygw_batch.submit.results import write_results

ROWS_PER_PAGE = 25
_SIGNATURE_LABELS: Mapping[str, str] = {"prepared": mark("Prepared"), "approved": mark("Approved")}
MAX_ACTIONS = 50
_MIN_MINUTES_S, _MIN_HOURS_S = 90, 5400
"""The shortest durations that are shown in minutes and in hours."""
_MIN_WHOLE_RATE = 10


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """An event in the history of a payout or row, worded for officers. `by` is empty if no person caused it.

    `reply` is the gateway's raw reply. `order` is the digest of the signed order that caused the event, and `page` is
    the order's path. If an order did the same to several rows, `rows` is their number and `row` is None.
    """

    at: str
    title: str
    details: str = ""
    by: str = ""
    row: int | None = None
    attempt: int | None = None
    reply: str = ""
    order: str = ""
    page: str = ""
    rows: int = 1


@dataclass(frozen=True, slots=True)
class StepView:
    """A person's next step for a row, worded for officers."""

    heading: str
    sentences: Sequence[str]
    is_urgent: bool


@dataclass(frozen=True, slots=True)
class RunView:
    """A payout's run and the actions possible now. Forms send back `name`, the reference of the run."""

    name: str
    is_running: bool
    wait_reason: str
    can_pause: bool
    can_continue: bool


def show_payout(visit: Visit) -> Response:
    with open_payout(visit) as (journal, record):
        view = _load_batch_view(visit, journal, record, is_poll=False)
        live_values, actions = _live_values(visit, journal, view), _people_actions(journal, record)
        plan_page = signed_plan_path(visit, journal, record.batch)
    orders, order_paths = open_orders(visit, record.batch), signed_order_paths(visit, record.batch)
    history = [replace(action, page=order_paths.get(action.order, "")) for action in actions[-MAX_ACTIONS:]]
    return visit.page("payout.html", **live_values, history=history, orders=orders, plan_page=plan_page)


def show_progress(visit: Visit) -> Response:
    """Return the changing part of a payout's page, or status 204 if nothing has changed."""
    if visit.query("seen") == visit.console.counts.version(visit.path_param("batch"), language()):
        return Response(status_code=204)
    with open_payout(visit) as (journal, record):
        view = _load_batch_view(visit, journal, record, is_poll=True)
        version = _live_version(visit, view)
        visit.console.counts.record_version(visit.path_param("batch"), language(), version)
        if visit.query("seen") == version:
            return Response(status_code=204)
        live_values = _live_values(visit, journal, view)
    response = visit.page("payout_live.html", **live_values)
    response.headers["x-seen"] = live_values["seen"]
    return response


def show_row(visit: Visit) -> Response:
    record, row_history, choices = load_row(visit)
    number = row_history.view.standing.row
    return visit.page(
        "row.html",
        record=record,
        view=row_history.view,
        next_step=None if row_history.step is None else _build_step(row_history.step),
        events=sorted(_row_events(visit, row_history), key=lambda event: event.at),
        orders=[order for order in open_orders(visit, record.batch) if number in order.rows],
        can_settle=bool(choices),
    )


def load_row(visit: Visit) -> tuple[BatchRecord, RowHistory, Sequence[SettleChoice]]:
    """Return the batch and row in the address, and how to settle it. Raises `PageNotFound` if either is missing."""
    settings = visit.console.settings
    with open_payout(visit) as (journal, record):
        try:
            row_history = load_row_history(settings, journal, record, int(visit.path_param("row")))
        except UsageError as error:
            raise PageNotFound(error.message) from None
        if row_history.view.state == State.IN_FLIGHT:
            return record, row_history, []
        return record, row_history, settle_choices(settings, journal, record, row_history.view.standing)


def _load_batch_view(visit: Visit, journal: JournalReader, record: BatchRecord, *, is_poll: bool) -> BatchView:
    count_tallies = partial(visit.console.counts.tallies, journal, record, is_poll=is_poll)
    return batch_view(visit.console.settings, journal, record, count_tallies)


def _live_version(visit: Visit, view: BatchView) -> str:
    """Return a digest of the values shown in the changing part of a payout's page."""
    text = repr((sorted(view.counts.items()), sorted(view.sums.items()), _build_run_view(visit, view)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _live_values(visit: Visit, journal: JournalReader, view: BatchView) -> Mapping[str, Any]:
    state, after = visit.query("state"), visit.query_number("after")
    try:
        rows = payment_views(
            visit.console.settings, journal, view.record, state=state, after=after, limit=ROWS_PER_PAGE + 1
        )
    except UsageError as error:
        raise PageNotFound(error.message) from None
    counts, run = view.counts, _build_run_view(visit, view)
    summed_states = {"paid", "ready"}.union(*view.sums.values())
    return {
        "view": view,
        "run": run,
        "is_finished": not (counts.get("ready") or counts.get(State.IN_FLIGHT) or run.wait_reason),
        "pace": _pace_sentence(visit, view),
        "bar": list(_bar_parts(view)),
        "summed_states": [name for name in SHOWN_STATES if name in summed_states],
        "shown_state": state,
        "after": after,
        "rows": rows[:ROWS_PER_PAGE],
        "pages": next_page_links(
            after, rows[ROWS_PER_PAGE - 1].standing.row if len(rows) > ROWS_PER_PAGE else 0, "rows", state=state
        ),
        "seen": _live_version(visit, view),
    }


def _build_run_view(visit: Visit, view: BatchView) -> RunView:
    run = last_run(visit.console.runs, view.record.batch)
    is_alive, has_unsent_rows = run is not None and run.is_alive, bool(view.counts.get("ready"))
    holder_pid = None if view.running is None else view.running.pid
    is_running = view.is_sending or (run is not None and is_alive and has_unsent_rows and holder_pid == run.pid)
    wait_reason = ""
    if is_alive and has_unsent_rows and not is_running:
        wait_reason = (
            say("The run is starting.")
            if view.running is None
            else say("Another payout is running. This one will continue when that one finishes.")
        )
    elif is_alive and not is_running:
        # Every row has an answer, but the run may still have to release rows for a retry.
        wait_reason = say("The run is starting or writing its files.")
    return RunView(
        name=run_reference(run),
        is_running=is_running,
        wait_reason=wait_reason,
        can_pause=is_alive and has_unsent_rows,
        can_continue=has_unsent_rows and not is_alive and not is_running,
    )


def pause_payout(visit: Visit) -> Response:
    """Pause the run shown on the page. Raises `PageOutdated` if another run has since been started."""
    batch, reference = _require_batch(visit), visit.form.get("run", "")
    run = pause_run(visit.console.runs, batch, reference)
    if run_reference(run) != reference:
        raise PageOutdated(say("{name} has continued this payout since this page was opened.", name=run.by))
    return visit.redirect(f"/payouts/{batch}")


def continue_payout(visit: Visit) -> Response:
    """Start a run for a payout's unsent rows. Raises `PageOutdated` if another person has since started one."""
    batch, console = _require_batch(visit), visit.console
    runs = console.runs
    with hold_lock(f"continue {batch}"):
        run = last_run(runs, batch)
        if run_reference(run) != visit.form.get("run"):
            if run is None:
                raise PageOutdated
            if run.by != visit.member.name:
                raise PageOutdated(say("{name} has continued this payout since this page was opened.", name=run.by))
            return visit.redirect(f"/payouts/{batch}")
        with open_payout(visit) as (journal, record):
            counts = batch_view(console.settings, journal, record).counts
        if not counts.get("ready"):
            raise PageOutdated(say("Every row of this payout has been sent since this page was opened."))
        make_directory(console.directory)
        command = [*console.program, "--json", "resume", batch, "--wait", "--force"]
        command += ["--out", str(runs / f"{batch}.reconciliation.csv")]
        start_run(runs, batch, command, by=visit.member.name, environ=visit.environ)
    return visit.redirect(f"/payouts/{batch}")


def _require_batch(visit: Visit) -> str:
    with open_payout(visit) as (_journal, record):
        return record.batch


def _pace_sentence(visit: Visit, view: BatchView) -> str:
    rate = visit.console.counts.rate(view.record.batch, view.answered)
    if rate <= 0 or not view.is_sending:
        return ""
    remaining_s = (view.payable - view.answered) / rate
    if remaining_s < _MIN_MINUTES_S:
        time_text = say_count(max(1, round(remaining_s)), "{count:,} second", "{count:,} seconds")
    elif remaining_s < _MIN_HOURS_S:
        time_text = say_count(round(remaining_s / 60), "{count:,} minute", "{count:,} minutes")
    else:
        time_text = say_count(round(remaining_s / 3600), "{count:,} hour", "{count:,} hours")
    rate_text = f"{rate:.0f}" if rate >= _MIN_WHOLE_RATE else f"{rate:.1f}"
    return say("About {rate} rows a second, with about {left} left.", rate=rate_text, left=time_text)


def _bar_parts(view: BatchView) -> Iterator[tuple[str, float, float]]:
    """Yield (state, start, width) for each part of the bar, in thousandths. Every part is wide enough to see."""
    start = 0.0
    for name in SHOWN_STATES:
        count = view.counts.get(name, 0)
        if count and name != INVALID:
            width = max(count * 1000 / max(view.payable, 1), 2.0)
            yield name, round(start, 2), round(width, 2)
            start += width


def _people_actions(journal: JournalReader, record: BatchRecord) -> Sequence[HistoryEvent]:
    """Return people's actions on a payout, oldest first. Identical actions by one order are merged."""
    reasons = dict[tuple[str, int | None], str]()
    for order in recorded_orders(journal, record.batch):
        digest, rows = order.digest(), order.content.rows if isinstance(order, RowOrder) else []
        reasons |= {(digest, row.row): row.evidence_text for row in rows}
    groups: dict[Any, list[HistoryEvent]] = {}
    for number, entry in enumerate(journal.history(record.number)):
        action = _action_event(entry, reasons.get((entry.order, entry.row)))
        groups.setdefault((entry.order, action.title, action.details) if entry.order else number, []).append(action)
    return [first if not rest else replace(first, row=None, rows=1 + len(rest)) for first, *rest in groups.values()]


def _action_event(entry: HistoryEntry, reason: str | None = None) -> HistoryEvent:
    """Describe a person's action for officers, without logins or internal terms."""
    title, at, by = action_label(entry.kind), entry.at, decider_name(entry.by)
    details = reason or render_record(entry.said, is_for_officers=True)
    if (people := parse_agreement(entry.by)) is not None:
        maker, approver = people
        details = say(
            "requested by {asked}, approved by {approved}: {words}", asked=maker, approved=approver, words=details
        )
    match decode_record(entry.said):
        case "prepared" | "approved" as code, [name, signed_at, *_]:
            title, at, by, details = say(_SIGNATURE_LABELS[code]), signed_at, name, ""
        case _:
            pass
    return HistoryEvent(at, title, details, by, entry.row, entry.attempt, order=entry.order)


def _format_action(entry: HistoryEntry) -> tuple[str, str, str, str]:
    action = _action_event(entry)
    return format_time(action.at), action.title, action.by, action.details


def _row_events(visit: Visit, row_history: RowHistory) -> Iterator[HistoryEvent]:
    row = row_history.view.standing
    if row.first_sent_at and row.first_sent_at != row.intended_at:
        yield HistoryEvent(row.first_sent_at, say("First sent"))
    if row.intended_at:
        details = say("order {order}", order=row.sent_orderid or "")
        yield HistoryEvent(row.intended_at, say("Sent"), details, attempt=row.attempt)
    for reply in row_history.replies:
        # An auditor sees only the last digits of accounts, but a raw reply may contain a whole account number.
        text = f"{reply.reply.head}\n\n{reply.reply.body.decode(errors='replace')}"
        text = "" if visit.member.sees_only_last_digits else text
        yield HistoryEvent(reply.at, say("The gateway answered"), attempt=reply.attempt, reply=text)
    yield from map(_action_event, row_history.history)
    if row.updated_at and not any(entry.at == row.updated_at for entry in row_history.history):
        details = render_record(row.message or "", is_for_officers=True) or row.gateway_status or ""
        yield HistoryEvent(row.updated_at, state_title(row_history.view.state), details, attempt=row.attempt)


_STEP_TEXTS: Mapping[RowStep, tuple[str, ...]] = {
    RowStep.RESOLVE_HELD: (
        mark("Do not pay this row in any other way"),
        HELD_FOR_OFFICERS,
        mark("Ask the gateway what happened to order {order}."),
    ),
    RowStep.RESOLVE_DOUBT: mark_all(
        "Do not pay this row in any other way",
        "A request was sent, but no clear answer came back. The row may have been paid.",
        "Ask the gateway what happened to order {order}.",
    ),
    RowStep.RESOLVE_ACCEPTED: mark_all("No final answer from the gateway yet", "Ask the gateway about order {order}."),
    RowStep.WAIT_FOR_RUN: mark_all("On its way", "A run is sending this row now, or has just ended."),
    RowStep.RETRY_AFTER_PERSON: mark_all(
        "Check before you retry",
        "A person, not the gateway, marked this row as rejected. It may have been paid anyway.",
    ),
    RowStep.RETRY: mark_all(
        "No payment was made",
        "The gateway's answer is final. If the payment can succeed now, retry it. If not, correct the sheet.",
    ),
    RowStep.SEND: mark_all("Not sent yet", "The next run will send it."),
    RowStep.PAY_AGAIN: mark_all(
        "The money came back", "Find out why. Then pay the row in a new sheet, under another order id."
    ),
}


def _build_step(step: NextStep) -> StepView:
    earlier_attempt = step.row.possible_duplicate_of
    heading, *sentences = (say(text, order=step.orders) for text in _STEP_TEXTS[step.kind])
    if step.hold is not None and step.row.state is State.REJECTED:
        sentences.append(
            say("Then retry this row. It will not be sent while it is held, but you can record what happened.")
        )
    is_urgent = step.kind not in {RowStep.WAIT_FOR_RUN, RowStep.SEND}
    if step.kind is RowStep.SEND and earlier_attempt is not None:
        sentences.append(
            say(
                "The row may repeat attempt {attempt}. First make sure that this attempt was not paid.",
                attempt=earlier_attempt,
            )
        )
        is_urgent = True
    return StepView(heading, sentences, is_urgent)


def download_reconciliation(visit: Visit) -> Response:
    extension = require_extension(visit.path_param("ending"), *FILE_TYPES)
    minor_units, quarantine_h = rule_minor_units(visit.console.rules), visit.console.settings.submission.quarantine_h
    reader = Reader(format_time, _format_action, is_operator=False)

    def write(path: Path) -> str:
        out, report = (None, path) if extension == "html" else (path, None)
        with open_payout(visit) as (journal, record):
            write_results(
                journal, record, minor_units, out=out, report=report, quarantine_h=quarantine_h, reader=reader
            )
        return f"{Path(record.sheet_name).stem}.reconciliation.{extension}"

    return download_response(visit, extension, write)


def download_row_advice(visit: Visit) -> Response:
    """Return the remittance advice for a row. Raises `PageNotFound` if the row was not paid."""
    with open_payout(visit) as (journal, record):
        payouts = paid_payouts(list(journal.payments(record.number, [int(visit.path_param("row"))]).values()))
    if not payouts or not payouts[0].fields:  # The fields of a forgotten person are empty.
        raise PageNotFound(say("This row has no remittance advice: it was not paid, or the person was forgotten."))
    return remittance_response(visit, [payouts])


def remittance_response(visit: Visit, groups: Sequence[Sequence[FoundPayment]]) -> Response:
    """Return remittance advices as a download. Each of `groups` holds the payments to one person."""
    headers = {"content-disposition": 'attachment; filename="remittance-advice.html"'}
    page = render_advices(groups, visit.console.settings.reporting.payer, format_date_in_zone)
    return Response(page, media_type=FILE_TYPES["html"], headers=headers)


def download_advices(visit: Visit) -> Response:
    """Return all of a payout's remittance advices as a download, with one page per person."""

    def write(path: Path) -> str:
        with open_payout(visit) as (journal, record):
            payer = visit.console.settings.reporting.payer
            write_atomically(path, render_batch_advices(journal, record, payer, format_date_in_zone).encode())
        return f"{Path(record.sheet_name).stem}.advices.html"

    return download_response(visit, "html", write)
