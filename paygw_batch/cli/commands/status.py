"""`paygw-batch status`: shows one or all batches, with next steps and the gateway's messages."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.live import Live

from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, PathType, WholeNumber
from paygw_batch.cli.options import complete_batches, force_option, output_guard, settings_for
from paygw_batch.cli.screen.screen import MAX_SHOWN_LINES, Screen, plain_line
from paygw_batch.clock import format_local_minute
from paygw_batch.core.batch import PAYOUT
from paygw_batch.core.evidence import Finding
from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import format_amount, from_minor
from paygw_batch.core.shown_states import (
    DISPLAYED_IN_DOUBT,
    action_label,
    display_state,
    format_decider,
    format_finding_count,
    format_state_count,
    render_record,
    state_label,
)
from paygw_batch.countries.load import load_operation, minor_units_by_currency
from paygw_batch.errors import UsageError
from paygw_batch.journal import BatchRecord, FoundPayment, JournalReader, RowState, StateTally
from paygw_batch.language import mark, mark_all, say, say_count
from paygw_batch.opening.open_journal import find_batch, open_journal_to_read
from paygw_batch.settings.configuration import Settings
from paygw_batch.show.batch_status import (
    BatchStatus,
    BatchView,
    JournalStatus,
    ListedBatch,
    RowStatus,
    batch_status,
    batch_view,
    count_states,
    current_tallies,
    exclude_replaced,
    journal_status,
    sums_by_currency,
)
from paygw_batch.show.next_step import describe_step, state_step
from paygw_batch.show.outputs import OutputKind, RequestedOutput
from paygw_batch.show.remittance import build_payee
from paygw_batch.show.summary import Summary

POLL_INTERVAL_S = 1.0
QUIET_BEYOND_TIMEOUT_S = 30
"""A journal that does not change for a request's timeout plus this time is assumed to have no active run."""


def watch_batch(settings: Settings, batch: str, screen: Screen) -> None:
    """Show the states of a batch's rows until all are sent, changes stop, or Ctrl-C is pressed."""
    quiet_limit_s = settings.gateway.total_timeout_s + QUIET_BEYOND_TIMEOUT_S
    last_seq, last_message, changed_at_s = -1, "", time.monotonic()
    try:
        with Live(console=screen.err, refresh_per_second=4, transient=True) as live:
            while True:
                with open_journal_to_read(settings) as journal:
                    record = find_batch(journal, batch)
                    tallies = current_tallies(journal, record.number)
                    seq = journal.head().seq
                if seq != last_seq:
                    last_seq, changed_at_s = seq, time.monotonic()
                states = count_states(record, tallies)
                counts = ", ".join(format_state_count(count, state) for state, count in states.items())
                message = say("{sheet}: {states}", sheet=record.sheet_name, states=counts)
                if screen.err.is_terminal:
                    live.update(plain_line(message))
                elif message != last_message:
                    screen.err.print_line(message)
                last_message = message
                if not any(tally.state in {State.READY, State.IN_FLIGHT} for tally in tallies):
                    return
                if time.monotonic() - changed_at_s > quiet_limit_s:
                    template = mark("Nothing has changed for {seconds:.0f} seconds, so no run seems to be active.")
                    screen.err.print_line(say(template, seconds=quiet_limit_s))
                    return
                time.sleep(POLL_INTERVAL_S)
    except KeyboardInterrupt:
        screen.err.print_line(say("Stopped watching. The run continues."))


_ACCOUNT_DIGITS = 3
_SHORT_ID_DIGITS = 8
"""The number of digits of a batch id in the list. Every command accepts a prefix of an id."""
_SORT_KEYS: Mapping[str, Callable[[ListedBatch], Any]] = {
    "opened": lambda listed: listed.record.number,
    "age": lambda listed: -listed.record.number,
    "sheet": lambda listed: listed.record.sheet_name,
    "rows": lambda listed: -listed.record.rows,
    "person": lambda listed: (-listed.attention_row_count, listed.record.number),
    "ready": lambda listed: (-listed.states.get("ready", 0), listed.record.number),
}


@click.command("status", cls=HelpCommand)
@click.argument("batch", required=False, shell_complete=complete_batches)
@click.option("--in-doubt", is_flag=True, help="Show only the rows in doubt.")
@click.option(
    "--out", type=PathType(), help="With --in-doubt: write the questions for the gateway's support to this file."
)
@click.option("--history", is_flag=True, help="Also show who did what and when.")
@click.option("--row", type=WholeNumber(1), help="Also show the gateway's original replies about this row.")
@click.option("--sort", "order", type=click.Choice(list(_SORT_KEYS)), default="opened", help="Sort order of the list.")
@click.option("--watch", is_flag=True, help="Follow a running batch until it has nothing left to send.")
@force_option
@click.pass_obj
def status_command(
    invocation: Invocation,
    *,
    batch: str | None,
    in_doubt: bool,
    out: Path | None,
    history: bool,
    row: int | None,
    order: str,
    watch: bool,
    force: bool,
) -> None:
    """Show the rows of BATCH (its full or abbreviated id, or its sheet's path), or all batches."""
    screen, settings = Screen(invocation, is_read_only=True), settings_for(invocation)
    if out is not None and not in_doubt:
        message = say("--out needs --in-doubt. To write every row, run `paygw-batch reconcile BATCH --out FILE`.")
        raise UsageError(message)
    if batch is None and (in_doubt or watch or history or row is not None):
        raise UsageError(
            say("--in-doubt, --history, --row and --watch can be used only with a batch. Add the batch's id.")
        )
    output, guard = RequestedOutput("--out", out, OutputKind.QUESTIONS), output_guard(invocation, settings, force=force)
    guard.check(output, inputs={say("the sheet"): None if batch is None else Path(batch)})
    if batch is not None and watch:
        watch_batch(settings, batch, screen)
    with open_journal_to_read(settings, screen.say) as journal:
        if batch is None:
            summary = _show_all_batches(journal_status(journal), screen, order)
        else:
            record = find_batch(journal, batch)
            guard.check(output, inputs={say("the sheet"): Path(record.sheet_path)})
            limit = None if screen.as_json else MAX_SHOWN_LINES
            status = batch_status(settings, journal, record, only_in_doubt=in_doubt, limit=limit)
            visible_rows = status.rows if screen.as_json else status.rows[:MAX_SHOWN_LINES]
            payments = journal.payments(record.number, [entry.row.row for entry in visible_rows])
            _show_active_run(batch_view(settings, journal, record, lambda: status.tallies), screen)
            summary = _show_batch(status, payments, screen, only_in_doubt=in_doubt)
            if history:
                entries = _show_history(journal, record, screen)
                summary = replace(summary, extra={**summary.extra, "history": entries})
            if row is not None:
                replies = _show_replies(journal, record, row, screen)
                summary = replace(summary, extra={**summary.extra, "replies": replies})
            if out is not None:
                _write_questions(journal, record, out, screen)
    screen.finish(summary)


def _write_questions(journal: JournalReader, record: BatchRecord, out: Path, screen: Screen) -> None:
    from paygw_batch.sheet.write.table import write_frame  # noqa: PLC0415 (polars: only if a file is requested)
    from paygw_batch.show.reconcile import questions  # noqa: PLC0415 (as above)

    rows = questions(journal, record, minor_units_by_currency())
    write_frame(rows, out)
    message = say_count(
        rows.height,
        "{count:,} question for the gateway's support is in {out}.",
        "{count:,} questions for the gateway's support are in {out}.",
        out=out,
    )
    screen.say(message)


def _show_active_run(batch: BatchView, screen: Screen) -> None:
    run = batch.running
    if run is None or not batch.is_sending:
        return
    message = say_count(
        batch.payable,
        "`paygw-batch {command}` (process {pid}) has been sending it since {since}: {answered:,} of {count:,} row has "
        "an answer.",
        "`paygw-batch {command}` (process {pid}) has been sending it since {since}: {answered:,} of {count:,} rows "
        "have an answer.",
        command=run.command,
        pid=run.pid,
        since=format_local_minute(run.since),
        answered=batch.answered,
    )
    screen.say(message)


def _show_batch(
    status: BatchStatus, payments: Mapping[int, FoundPayment], screen: Screen, *, only_in_doubt: bool
) -> Summary:
    record = status.record
    message = say(
        "Batch {batch}: {sheet_name}, {operation}, {rows}, opened {opened_at}.",
        batch=record.batch,
        sheet_name=record.sheet_name,
        operation=say(record.operation),
        rows=say_count(record.rows, "{count:,} row", "{count:,} rows"),
        opened_at=format_local_minute(record.opened_at),
    )
    screen.say(message)
    if not only_in_doubt:
        _show_tallies(status.tallies, screen)
    _show_steps(status, payments, screen)
    if status.contradictions:
        headings = mark_all("row", "order id", "state", "details", "attempt", "time")
        lines = [
            (fact.row, fact.client_orderid, fact.state.value, fact.kind, fact.attempt, format_local_minute(fact.at))
            for fact in status.contradictions[:MAX_SHOWN_LINES]
        ]
        screen.table(
            say("Messages that contradict the journal (kept as evidence, without any effect)"), headings, lines
        )
    waiting = _show_evidence(status, screen)
    entries = sorted(status.rows, key=lambda entry: entry.row.row)
    rows = [_row_as_json(entry, payments.get(entry.row.row)) for entry in entries]
    return replace(
        status.summary,
        extra={
            "operation": record.operation,
            "in_doubt": [row for row in rows if row["state"] == State.IN_DOUBT],
            "needs_person": rows,
            "contradictions": len(status.contradictions),
            "evidence": status.evidence,
            "evidence_waiting": waiting,
        },
    )


def _show_tallies(tallies: Sequence[StateTally], screen: Screen) -> None:
    minor_units = minor_units_by_currency()
    payable, row_counts = list(exclude_replaced(tallies)), Counter[str]()
    for tally in payable:
        row_counts[tally.currency] += tally.count
    lines = [("", code, "to be paid", row_counts[code], amount) for code, amount in sums_by_currency(payable).items()]
    for tally in tallies:
        amount = from_minor(tally.minor, minor_units=minor_units[tally.currency])
        lines.append((tally.country, tally.currency, tally.state.value, tally.count, amount))
    screen.table("", mark_all("country", "currency", "state", "rows", "sum"), lines)


def _show_steps(status: BatchStatus, payments: Mapping[int, FoundPayment], screen: Screen) -> None:
    count = status.attention_count
    title = say_count(
        count, "What to do next ({count:,} row needs a decision):", "What to do next ({count:,} rows need a decision):"
    )
    if count:
        screen.say(title)
    visible_rows = status.rows[:MAX_SHOWN_LINES]
    for entry in visible_rows:
        row, reason = entry.row, f" ({entry.row.error_code})" if entry.row.error_code else ""
        state = state_label(display_state(row.state))
        step_text = _describe_doubt(row, payments[row.row]) if row.state in DISPLAYED_IN_DOUBT else _step_text(entry)
        screen.say(say("- Row {row}, {state}{why}: {step}", row=row.row, state=state, why=reason, step=step_text))
    screen.say_omitted(count)
    rows_in_doubt = [entry.row.row for entry in visible_rows if entry.row.state in DISPLAYED_IN_DOUBT]
    if rows_in_doubt:
        operation = load_operation(status.record.operation)
        step = state_step(State.IN_DOUBT, status.record, operation, first_row=rows_in_doubt[0])
        screen.say(step.sentence)
        settle_command = f"paygw-batch resolve row {status.record.batch} {rows_in_doubt[0]} --as paid --evidence TEXT"
        for line in (*step.commands, settle_command):
            screen.say(f"  {line}")


def _describe_doubt(row: RowState, payment: FoundPayment) -> str:
    """Describe a row in doubt by amount, payee, order and time. Shows only the last digits of the account."""
    payee = build_payee(payment.form, payment.fields)
    return say(
        "{currency} {amount} to {name} (...{end}), order {order}, since {since}",
        currency=payment.currency,
        amount=format_amount(payment.amount),
        name=payee.name,
        end=payee.number[-_ACCOUNT_DIGITS:],
        order=row.sent_orderid or row.client_orderid,
        since=format_local_minute(row.intended_at or row.updated_at),
    )


def _step_text(entry: RowStatus) -> str | None:
    return None if entry.step is None else describe_step(entry.step)


def _show_history(journal: JournalReader, record: BatchRecord, screen: Screen) -> Sequence[Mapping[str, object]]:
    """Show who did what in a batch, and return the entries for the JSON summary."""
    lines, entries = [], []
    for entry in journal.history(record.number):
        by, details = format_decider(entry.by), render_record(entry.said)
        row, attempt = ("" if number is None else str(number) for number in (entry.row, entry.attempt))
        lines.append((format_local_minute(entry.at), action_label(entry.kind), row, attempt, by, details))
        entries.append(
            {"at": entry.at, "what": entry.kind, "row": entry.row, "attempt": entry.attempt, "by": by, "said": details}
        )
    screen.table(say("Who did what"), mark_all("time", "action", "row", "attempt", "who", "details"), lines)
    return entries


def _show_all_batches(status: JournalStatus, screen: Screen, sort_key: str) -> Summary:
    batches = sorted(status.batches, key=_SORT_KEYS[sort_key])
    if batches:
        _show_batch_table(batches, screen)
        screen.table(
            say("All batches, each row counted once"),
            mark_all("currency", "state", "sum"),
            [(currency, state, amount) for currency, sums in status.totals.items() for state, amount in sums.items()],
        )
    message = say_count(len(batches), "{count:,} batch in the journal", "{count:,} batches in the journal")
    suffix = say_count(
        status.attention_count, ". {count:,} of them needs a decision.", ". {count:,} of them need a decision."
    )
    message += suffix if status.attention_count else "."
    _show_message_counts(say("Messages from the gateway"), status.evidence, screen)
    return Summary(
        status.exit_code,
        message,
        rows=sum(status.states.values()),
        states=status.states,
        totals=status.totals,
        extra={"batches": [_batch_as_json(batch) for batch in batches], "evidence": status.evidence},
    )


def _show_batch_table(batches: Sequence[ListedBatch], screen: Screen) -> None:
    headings = mark_all("batch", "sheet", "opened", "rows", "paid", "to send", "to decide", "operation")
    lines = [
        (
            batch.record.batch[:_SHORT_ID_DIGITS],
            batch.record.sheet_name,
            format_local_minute(batch.record.opened_at)[:10],
            batch.record.rows,
            batch.states.get("paid", 0),
            batch.states.get("ready", 0) + batch.states.get("in_flight", 0),
            batch.attention_row_count + batch.contradictions,
            say(batch.record.operation),
        )
        for batch in batches
    ]
    end = len(headings) if any(batch.record.operation != PAYOUT for batch in batches) else -1
    screen.table("", headings[:end], [line[:end] for line in lines])


def _batch_as_json(batch: ListedBatch) -> dict[str, object]:
    return {
        "batch": batch.record.batch,
        "sheet": batch.record.sheet_name,
        "operation": batch.record.operation,
        "opened_at": batch.record.opened_at,
        "age_s": int(batch.age.total_seconds()),
        "rows": batch.record.rows,
        "known": sum(tally.count for tally in batch.known),
        "states": dict(batch.states),
        "needs_person": batch.attention_row_count,
        "contradictions": batch.contradictions,
    }


def _row_as_json(entry: RowStatus, payment: FoundPayment | None) -> dict[str, object]:
    """Return a row that needs attention as JSON. Unlike the screen, it includes the full account number."""
    row, payee = entry.row, None if payment is None else build_payee(payment.form, payment.fields)
    return {
        "row": row.row,
        "client_orderid": row.client_orderid,
        "sent_orderid": row.sent_orderid,
        "endpoint_id": row.endpoint_id,
        "state": display_state(row.state),
        "attempts": row.attempts,
        "payee": None if payee is None else payee.name,
        "account": None if payee is None else payee.number,
        "amount": None if payment is None else payment.amount,
        "currency": row.currency,
        "since": (row.intended_at if row.state in DISPLAYED_IN_DOUBT else None) or row.updated_at,
        "first_sent_at": row.first_sent_at,
        "error_code": row.error_code,
        "held": entry.hold is not None,
        "held_orders": [] if entry.hold is None else list(entry.hold.order_ids),
        "next": _step_text(entry),
    }


_OMITTED_FIELDS = frozenset({"number", "batch"})
"""The fields of evidence that are omitted from the JSON."""


def _show_evidence(status: BatchStatus, screen: Screen) -> list[dict[str, object]]:
    """Show the gateway's messages about a batch, and return those that need a decision, for the JSON summary."""
    _show_message_counts(say("Messages from the gateway about these rows"), status.evidence, screen)
    held_rows = {entry.row.row for entry in status.rows if entry.hold is not None}
    messages = status.waiting
    if unshown := [entry for entry in messages if entry.row not in held_rows]:
        lines = []
        for entry in unshown[:MAX_SHOWN_LINES]:
            template = _WAITING_REASONS.get(entry.finding)
            reason = state_label(entry.finding.value) if template is None else say(template)
            taken_at, reported_status = format_local_minute(entry.taken_at), entry.said or "-"
            lines.append((entry.row, entry.client_orderid, entry.state.value, reported_status, reason, taken_at))
        screen.table(
            say("Messages from the gateway that need a decision (they had no effect)"),
            mark_all("row", "order id", "state", "details", "reason for waiting", "time"),
            lines,
        )
        screen.say_omitted(len(unshown))
        template = mark(
            "Ask the gateway whether these messages are true. Then record what happened to each row with "
            "`paygw-batch resolve row {batch} N --evidence TEXT --as paid` (or rejected, or not-received)."
        )
        screen.say(say(template, batch=status.record.batch))
    return [{name: value for name, value in asdict(entry).items() if name not in _OMITTED_FIELDS} for entry in messages]


def _show_replies(journal: JournalReader, record: BatchRecord, row: int, screen: Screen) -> list[dict[str, object]]:
    """Show the gateway's raw replies about a row, and return them for the JSON summary."""
    row_state = next(journal.rows(record.number, numbers={row}), None)
    if row_state is None:
        message = say("Batch {batch} has no row {row}.", batch=record.batch, row=row)
        raise UsageError(message, hint=say("The header is row 1, as in a spreadsheet."))
    replies = journal.replies(row_state.instruction)
    state_text = say_count(
        row_state.attempt,
        "Row {row} is {state}, after {count} attempt.",
        "Row {row} is {state}, after {count} attempts.",
        row=row,
        state=state_label(display_state(row_state.state)),
    )
    screen.say(state_text)
    if not replies:
        screen.say(say("No replies are stored: none arrived, or the row was paid immediately."))
    as_json: list[dict[str, object]] = []
    for attempt in replies:
        number, time, head = attempt.attempt, attempt.at, attempt.reply.head
        body = attempt.reply.body.decode("utf-8", "backslashreplace")
        screen.say(say("Attempt {attempt}, reply recorded at {at}:", attempt=number, at=format_local_minute(time)))
        for line in (*head.splitlines(), "", *body.splitlines()):
            screen.say(f"    {line}")
        as_json.append({"attempt": number, "at": time, "head": head, "body": body})
    return as_json


def _show_message_counts(title: str, counts: Mapping[str, int], screen: Screen) -> None:
    if counts:
        counts_text = ", ".join(format_finding_count(count, finding) for finding, count in counts.items())
        screen.say(say("{what}: {counts}.", what=title, counts=counts_text))


_WAITING_REASONS: Mapping[Finding, str] = {
    Finding.TO_CONFIRM: mark("there is no proof of who sent it"),
    Finding.AMBIGUOUS: mark("several attempts or rows have this order id"),
    Finding.UNMATCHED: mark("its amount or currency is different or missing"),
    Finding.NOT_FOUND: mark("the gateway does not know the order"),
}
