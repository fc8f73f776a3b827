"""`paygw-batch status`: shows one batch, or all, with the next steps for a person and the gateway's messages."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.live import Live

from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, NamedFile, WholeNumber
from paygw_batch.cli.options import complete_batches, force_option, guard_of, settings_of
from paygw_batch.cli.screen.screen import SHOWN_LINES, Screen, plain
from paygw_batch.clock import local_minute
from paygw_batch.core.batch import PAYOUT
from paygw_batch.core.evidence import Finding
from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import from_minor, with_separators
from paygw_batch.core.shown_states import (
    SHOWN_IN_DOUBT,
    counted_finding,
    counted_state,
    decided_by,
    deed_words,
    recorded,
    shown_state,
    state_words,
)
from paygw_batch.countries.load import load_operation, minor_units_by_currency
from paygw_batch.errors import UsageError
from paygw_batch.journal import BatchRecord, FoundPayment, JournalReader, RowState, StateTally
from paygw_batch.language import mark, mark_all, say, say_count
from paygw_batch.opening.open_journal import find_batch, journal_to_read
from paygw_batch.settings.configuration import Settings
from paygw_batch.show.batch_status import (
    BatchStatus,
    FollowedBatch,
    JournalStatus,
    ListedBatch,
    RowStatus,
    batch_status,
    followed_batch,
    journal_status,
    states_of,
    sums_by_currency,
    tallies_now,
    to_be_paid,
)
from paygw_batch.show.next_step import in_command_words, step_of_state
from paygw_batch.show.outputs import OutputKind, RequestedOutput
from paygw_batch.show.remittance import payee_of
from paygw_batch.show.summary import Summary

LOOK_EVERY_S = 1.0
QUIET_BEYOND_TIMEOUT_S = 30
"""If nothing changes in a journal for the whole timeout of a request and this long, no run is writing to it."""


def follow(settings: Settings, batch: str, screen: Screen) -> None:
    """Show the states of a batch until nothing is left to send, nothing has changed for long, or Ctrl-C is pressed."""
    give_up_s = settings.gateway.total_timeout_s + QUIET_BEYOND_TIMEOUT_S
    head, moved_s = -1, time.monotonic()
    last = ""
    try:
        with Live(console=screen.err, refresh_per_second=4, transient=True) as live:
            while True:
                with journal_to_read(settings) as journal:
                    record = find_batch(journal, batch)
                    tallies = tallies_now(journal, record.number)
                    seq = journal.head().seq
                if seq != head:
                    head, moved_s = seq, time.monotonic()
                states = states_of(record, tallies)
                counts = ", ".join(counted_state(count, state) for state, count in states.items())
                now = say("{sheet}: {states}", sheet=record.sheet_name, states=counts)
                if screen.err.is_terminal:
                    live.update(plain(now))
                elif now != last:
                    screen.err.tell(now)
                last = now
                if not any(tally.state in {State.READY, State.IN_FLIGHT} for tally in tallies):
                    return
                if time.monotonic() - moved_s > give_up_s:
                    template = mark("Nothing has moved for {seconds:.0f} seconds: no run seems to be active.")
                    screen.err.tell(say(template, seconds=give_up_s))
                    return
                time.sleep(LOOK_EVERY_S)
    except KeyboardInterrupt:
        screen.err.tell(say("No longer watching. The run continues."))


_SHOWN_END = 3
_SHORT_ID = 8
"""The number of digits of a batch's id in the list. Every command accepts a prefix of an id."""
_ORDERS: Mapping[str, Callable[[ListedBatch], Any]] = {
    "opened": lambda listed: listed.record.number,
    "age": lambda listed: -listed.record.number,
    "sheet": lambda listed: listed.record.sheet_name,
    "rows": lambda listed: -listed.record.rows,
    "person": lambda listed: (-listed.needs_person, listed.record.number),
    "ready": lambda listed: (-listed.states.get("ready", 0), listed.record.number),
}


@click.command("status", cls=HelpCommand)
@click.argument("batch", required=False, shell_complete=complete_batches)
@click.option("--in-doubt", is_flag=True, help="Show only the rows in doubt.")
@click.option("--out", type=NamedFile(), help="With --in-doubt: write the question list for support.")
@click.option("--history", is_flag=True, help="Also show who did what, and when.")
@click.option("--row", type=WholeNumber(1), help="Also show the gateway's raw replies about this row.")
@click.option("--sort", "order", type=click.Choice(list(_ORDERS)), default="opened", help="Order of the list.")
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
    """Show the rows of BATCH (its id, a prefix of it, or its sheet's path); without BATCH, all batches."""
    screen, settings = Screen(invocation, only_shows=True), settings_of(invocation)
    if out is not None and not in_doubt:
        raise UsageError(say("--out belongs to --in-doubt: `paygw-batch reconcile BATCH --out FILE` writes every row."))
    if batch is None and (in_doubt or watch or history or row is not None):
        raise UsageError(say("--in-doubt, --history, --row and --watch need a batch: name it."))
    output, guard = RequestedOutput("--out", out, OutputKind.QUESTIONS), guard_of(invocation, settings, force=force)
    guard.check(output, inputs={say("the sheet"): None if batch is None else Path(batch)})
    if batch is not None and watch:
        follow(settings, batch, screen)
    with journal_to_read(settings, screen.say) as journal:
        if batch is None:
            summary = _all(journal_status(journal), screen, order)
        else:
            record = find_batch(journal, batch)
            guard.check(output, inputs={say("the sheet"): Path(record.sheet_path)})
            limit = None if screen.as_json else SHOWN_LINES
            status = batch_status(settings, journal, record, only_doubt=in_doubt, limit=limit)
            shown_rows = status.rows if screen.as_json else status.rows[:SHOWN_LINES]
            payments = journal.payments(record.number, [listed.row.row for listed in shown_rows])
            _show_run(followed_batch(settings, journal, record, lambda: status.tallies), screen)
            summary = _one(status, payments, screen, only_doubt=in_doubt)
            if history:
                summary = replace(summary, further={**summary.further, "history": _history(journal, record, screen)})
            if row is not None:
                replies = _show_replies(journal, record, row, screen)
                summary = replace(summary, further={**summary.further, "replies": replies})
            if out is not None:
                _write_questions(journal, record, out, screen)
    screen.finish(summary)


def _write_questions(journal: JournalReader, record: BatchRecord, out: Path, screen: Screen) -> None:
    from paygw_batch.sheet.write.table import write_frame  # noqa: PLC0415 (as above)
    from paygw_batch.show.reconcile import questions  # noqa: PLC0415 (polars: only if a file is asked for)

    rows = questions(journal, record, minor_units_by_currency())
    write_frame(rows, out)
    sentence = say_count(
        rows.height,
        "{count:,} question for the gateway's support is in {out}.",
        "{count:,} questions for the gateway's support are in {out}.",
        out=out,
    )
    screen.say(sentence)


def _show_run(followed: FollowedBatch, screen: Screen) -> None:
    running = followed.running
    if running is None or not followed.is_sending:
        return
    sending = mark(
        "`paygw-batch {command}` (process {pid}) is sending it since {since}: {answered:,} of {payable:,} rows have an "
        "answer."
    )
    about = {"command": running.command, "pid": running.pid, "since": local_minute(running.since)}
    screen.say(say(sending, **about, answered=followed.answered, payable=followed.payable))


def _one(status: BatchStatus, payments: Mapping[int, FoundPayment], screen: Screen, *, only_doubt: bool) -> Summary:
    record = status.record
    sentence = say(
        "Batch {batch}: {sheet_name}, {operation}, {rows}, opened {opened_at}.",
        batch=record.batch,
        sheet_name=record.sheet_name,
        operation=say(record.operation),
        rows=say_count(record.rows, "{count:,} row", "{count:,} rows"),
        opened_at=local_minute(record.opened_at),
    )
    screen.say(sentence)
    if not only_doubt:
        _show_tallies(status.tallies, screen)
    _show_steps(status, payments, screen)
    if status.contradictions:
        screen.table(
            say("Contradicting messages: kept as evidence, they changed nothing"),
            mark_all("row", "order id", "state", "said", "attempt", "at"),
            [
                (entry.row, entry.client_orderid, entry.state.value, entry.kind, entry.attempt, local_minute(entry.at))
                for entry in status.contradictions[:SHOWN_LINES]
            ],
        )
    waiting = _show_evidence(status, screen)
    in_sheet_order = sorted(status.rows, key=lambda entry: entry.row.row)
    rows = [_row_told(entry, payments.get(entry.row.row)) for entry in in_sheet_order]
    return replace(
        status.summary,
        further={
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
    payable, rows = list(to_be_paid(tallies)), Counter[str]()
    for tally in payable:
        rows[tally.currency] += tally.count
    lines = [("", code, "to be paid", rows[code], amount) for code, amount in sums_by_currency(payable).items()]
    for tally in tallies:
        amount = from_minor(tally.minor, minor_units=minor_units[tally.currency])
        lines.append((tally.country, tally.currency, tally.state.value, tally.count, amount))
    screen.table("", mark_all("country", "currency", "state", "rows", "sum"), lines)


def _show_steps(status: BatchStatus, payments: Mapping[int, FoundPayment], screen: Screen) -> None:
    """Show the first rows that need a person, each with its next step. Rows in doubt share one instruction."""
    count = status.needing
    next_for = say_count(
        count, "What to do next ({count:,} row needs a person):", "What to do next ({count:,} rows need a person):"
    )
    if count:
        screen.say(next_for)
    listed = status.rows[:SHOWN_LINES]
    for entry in listed:
        row, why = entry.row, f" ({entry.row.error_code})" if entry.row.error_code else ""
        state = state_words(shown_state(row.state))
        step_text = _doubt_told(row, payments[row.row]) if row.state in SHOWN_IN_DOUBT else _step_told(entry)
        screen.say(say("- Row {row}, {state}{why}: {step}", row=row.row, state=state, why=why, step=step_text))
    screen.say_more(count)
    doubtful = [entry.row.row for entry in listed if entry.row.state in SHOWN_IN_DOUBT]
    if doubtful:
        operation = load_operation(status.record.operation)
        step = step_of_state(State.IN_DOUBT, status.record, operation, first_row=doubtful[0])
        screen.say(step.sentence)
        settle = f"paygw-batch resolve row {status.record.batch} {doubtful[0]} --as paid --evidence TEXT"
        for line in (*step.commands, settle):
            screen.say(f"  {line}")


def _doubt_told(row: RowState, payment: FoundPayment) -> str:
    """Return words for a row in doubt: amount, person, order and since when, with only the end of the account."""
    payee = payee_of(payment.form, payment.fields)
    return say(
        "{currency} {amount} to {name} (...{end}), order {order}, since {since}",
        currency=payment.currency,
        amount=with_separators(payment.amount),
        name=payee.name,
        end=payee.number[-_SHOWN_END:],
        order=row.sent_orderid or row.client_orderid,
        since=local_minute(row.intended_at or row.updated_at),
    )


def _step_told(entry: RowStatus) -> str | None:
    return None if entry.step is None else in_command_words(entry.step)


def _history(journal: JournalReader, record: BatchRecord, screen: Screen) -> Sequence[Mapping[str, object]]:
    """Show the history of a batch, and return its entries for the JSON, with full times and our own words."""
    lines, entries = [], []
    for deed in journal.history(record.number):
        by, words = decided_by(deed.by), recorded(deed.said)
        row, attempt = ("" if number is None else str(number) for number in (deed.row, deed.attempt))
        lines.append((local_minute(deed.at), deed_words(deed.kind), row, attempt, by, words))
        entries.append(
            {"at": deed.at, "what": deed.kind, "row": deed.row, "attempt": deed.attempt, "by": by, "said": words}
        )
    screen.table(say("Who did what"), mark_all("at", "what", "row", "attempt", "by", "said"), lines)
    return entries


def _all(status: JournalStatus, screen: Screen, order: str) -> Summary:
    listed = sorted(status.batches, key=_ORDERS[order])
    if listed:
        _show_batches(listed, screen)
        screen.table(
            say("All batches, each row once"),
            mark_all("currency", "state", "sum"),
            [(currency, state, amount) for currency, sums in status.totals.items() for state, amount in sums.items()],
        )
    message = say_count(len(listed), "{count:,} batch in the journal", "{count:,} batches in the journal")
    needing = say_count(status.needing, "; {count:,} of them needs a person.", "; {count:,} of them need a person.")
    message += needing if status.needing else "."
    _show_counts(say("Messages of the gateway"), status.evidence, screen)
    return Summary(
        status.exit_code,
        message,
        rows=sum(status.states.values()),
        states=status.states,
        totals=status.totals,
        further={"batches": [_batch_told(batch) for batch in listed], "evidence": status.evidence},
    )


def _show_batches(listed: Sequence[ListedBatch], screen: Screen) -> None:
    """Show each batch on a line. The operation is shown only if some batches are collections."""
    headings = mark_all("batch", "sheet", "opened", "rows", "paid", "to send", "person", "operation")
    lines = [
        (
            one.record.batch[:_SHORT_ID],
            one.record.sheet_name,
            local_minute(one.record.opened_at)[:10],
            one.record.rows,
            one.states.get("paid", 0),
            one.states.get("ready", 0) + one.states.get("in_flight", 0),
            one.needs_person + one.contradictions,
            say(one.record.operation),
        )
        for one in listed
    ]
    shown = len(headings) if any(one.record.operation != PAYOUT for one in listed) else -1
    screen.table("", headings[:shown], [line[:shown] for line in lines])


def _batch_told(listed: ListedBatch) -> dict[str, object]:
    return {
        "batch": listed.record.batch,
        "sheet": listed.record.sheet_name,
        "operation": listed.record.operation,
        "opened_at": listed.record.opened_at,
        "age_s": int(listed.age.total_seconds()),
        "rows": listed.record.rows,
        "known": sum(tally.count for tally in listed.known),
        "states": dict(listed.states),
        "needs_person": listed.needs_person,
        "contradictions": listed.contradictions,
    }


def _row_told(entry: RowStatus, payment: FoundPayment | None) -> dict[str, object]:
    """Return a row that needs a person, for the JSON. On the screen people see only the end of its account."""
    row, payee = entry.row, None if payment is None else payee_of(payment.form, payment.fields)
    return {
        "row": row.row,
        "client_orderid": row.client_orderid,
        "sent_orderid": row.sent_orderid,
        "endpoint_id": row.endpoint_id,
        "state": shown_state(row.state),
        "attempts": row.attempts,
        "payee": None if payee is None else payee.name,
        "account": None if payee is None else payee.number,
        "amount": None if payment is None else payment.amount,
        "currency": row.currency,
        "since": (row.intended_at if row.state in SHOWN_IN_DOUBT else None) or row.updated_at,
        "first_sent_at": row.first_sent_at,
        "error_code": row.error_code,
        "held": entry.hold is not None,
        "next": _step_told(entry),
    }


_NOT_TOLD = frozenset({"number", "batch"})
"""The fields of waiting evidence that are not in the JSON."""


def _show_evidence(status: BatchStatus, screen: Screen) -> list[dict[str, object]]:
    """Show the evidence about a batch. Return the messages that wait for a person, for the JSON."""
    _show_counts(say("Messages of the gateway about its rows"), status.evidence, screen)
    waiting = status.waiting
    if waiting:
        lines = []
        for entry in waiting[:SHOWN_LINES]:
            why = say(_WHY[entry.finding]) if entry.finding in _WHY else state_words(entry.finding.value)
            at, said = local_minute(entry.taken_at), entry.said or "-"
            lines.append((entry.row, entry.client_orderid, entry.state.value, said, why, at))
        screen.table(
            say("Messages from the gateway that need a person (they changed nothing)"),
            mark_all("row", "order id", "state", "said", "why it waits", "at"),
            lines,
        )
        screen.say_more(len(waiting))
        ask = mark(
            "Ask the gateway whether they are true, then record what happened to each row: `paygw-batch resolve row "
            "{batch} N --evidence TEXT --as paid`, rejected or not-received."
        )
        screen.say(say(ask, batch=status.record.batch))
    return [{name: value for name, value in asdict(message).items() if name not in _NOT_TOLD} for message in waiting]


def _show_replies(journal: JournalReader, record: BatchRecord, row: int, screen: Screen) -> list[dict[str, object]]:
    """Show the stored raw replies about a row, and return them for the JSON.

    Raises `UsageError` if the batch has no such row.
    """
    state = next(journal.rows(record.number, numbers={row}), None)
    if state is None:
        raise UsageError(
            say("Batch {batch} has no row {row}.", batch=record.batch, row=row),
            hint=say("The header is row 1, as in a spreadsheet."),
        )
    replies = journal.replies(state.instruction)
    sentence = say_count(
        state.attempt,
        "Row {row} is {state}, after {count} attempt.",
        "Row {row} is {state}, after {count} attempts.",
        row=row,
        state=state_words(shown_state(state.state)),
    )
    screen.say(sentence)
    if not replies:
        screen.say(say("No reply is kept: none came, or the row was paid at once."))
    as_json: list[dict[str, object]] = []
    for attempt in replies:
        number, at, head = attempt.attempt, attempt.at, attempt.reply.head
        body = attempt.reply.body.decode("utf-8", "backslashreplace")
        screen.say(say("Attempt {attempt}, reply recorded at {at}:", attempt=number, at=local_minute(at)))
        for line in (*head.splitlines(), "", *body.splitlines()):
            screen.say(f"    {line}")
        as_json.append({"attempt": number, "at": at, "head": head, "body": body})
    return as_json


def _show_counts(title: str, counts: Mapping[str, int], screen: Screen) -> None:
    if counts:
        counts_text = ", ".join(counted_finding(count, finding) for finding, count in counts.items())
        screen.say(say("{what}: {counts}.", what=title, counts=counts_text))


_WHY: Mapping[Finding, str] = {
    Finding.TO_CONFIRM: mark("nothing proves who sent it"),
    Finding.AMBIGUOUS: mark("several attempts or rows have this order id"),
    Finding.UNMATCHED: mark("it names another amount or currency, or none"),
    Finding.NOT_FOUND: mark("the gateway does not know the order"),
}
