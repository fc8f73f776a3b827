"""`paygw-batch status`: show one batch, or all, as the journal records them, and the next step for a person."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from paygw_batch.cli.completions import complete_batches
from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import force_option, guard_of, settings_of
from paygw_batch.cli.screen.gateway_messages import show_counts, show_evidence, show_replies
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.screen.watch import follow
from paygw_batch.compose.actions.batch_status import (
    BatchStatus,
    JournalStatus,
    ListedBatch,
    RowStatus,
    batch_status,
    journal_status,
)
from paygw_batch.compose.journal import find_batch, journal_to_read
from paygw_batch.compose.outputs import OutputKind, Wanted
from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import from_minor
from paygw_batch.core.recorded_words import deed_words, recorded
from paygw_batch.core.shown_states import counted_state, shown_state, state_words
from paygw_batch.countries.load import minor_units_by_currency
from paygw_batch.errors import UsageError
from paygw_batch.journal import BatchRecord, Contradiction, JournalReader, StateTally
from paygw_batch.language import mark_all, say, say_count
from paygw_batch.report.next_step import in_command_words
from paygw_batch.report.summary import Summary

SHOWN_ROWS = 20
"""How many rows of a kind are listed on a screen."""
_ORDERS: Mapping[str, Callable[[ListedBatch], Any]] = {
    "opened": lambda listed: listed.record.number,
    "age": lambda listed: -listed.record.number,
    "sheet": lambda listed: listed.record.sheet_name,
    "rows": lambda listed: -listed.record.rows,
    "person": lambda listed: (-listed.needs_person, listed.record.number),
    "ready": lambda listed: (-listed.states.get("ready", 0), listed.record.number),
}


@click.command("status", short_help="Show what the journal knows.")
@click.argument("batch", required=False, shell_complete=complete_batches)
@click.option("--in-doubt", is_flag=True, help="Only the rows in doubt.")
@click.option("--out", type=click.Path(path_type=Path), help="With --in-doubt: write the question list for support.")
@click.option("--history", is_flag=True, help="Also who did what to it and when.")
@click.option("--row", type=click.IntRange(1), help="Also the gateway's raw replies about this row.")
@click.option("--sort", "order", type=click.Choice(list(_ORDERS)), default="opened", help="The order of all batches.")
@click.option("--watch", is_flag=True, help="Follow a running batch until it has nothing left to send.")
@force_option
@click.pass_obj
def command(
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
    """Show the states of rows of BATCH (its id, a prefix of it, or its sheet's path); without BATCH, of all batches."""
    screen = Screen(invocation)
    settings = settings_of(invocation)
    if out is not None and not in_doubt:
        raise UsageError(say("--out belongs to --in-doubt: `paygw-batch reconcile BATCH --out FILE` writes every row."))
    if batch is None and (in_doubt or watch or history or row is not None):
        raise UsageError(say("--in-doubt, --history, --row and --watch are about one batch: name it."))
    wanted, guard = Wanted("--out", out, OutputKind.QUESTIONS), guard_of(invocation, settings, force=force)
    guard.check(wanted, inputs={say("the sheet"): None if batch is None else Path(batch)})
    if batch is not None and watch:
        follow(settings, batch, screen)
    with journal_to_read(settings, screen.say) as journal:
        if batch is None:
            summary = _all(journal_status(journal), screen, order)
        else:
            record = find_batch(journal, batch)
            guard.check(wanted, inputs={say("the sheet"): Path(record.sheet_path)})
            limit = None if screen.as_json else SHOWN_ROWS
            found = batch_status(settings, journal, record, only_doubt=in_doubt, limit=limit)
            summary = _one(found, screen, only_doubt=in_doubt)
            if history:
                summary = replace(summary, further={**summary.further, "history": _history(journal, record, screen)})
            if row is not None:
                replies = show_replies(journal, record, row, screen)
                summary = replace(summary, further={**summary.further, "replies": replies})
            if out is not None:
                _write_questions(journal, record, out, screen)
    screen.finish(summary)


def _write_questions(journal: JournalReader, record: BatchRecord, out: Path, screen: Screen) -> None:
    from paygw_batch.report.questions import questions  # noqa: PLC0415 (polars: only where a file is asked for)
    from paygw_batch.sheet.write.table import write_frame  # noqa: PLC0415 (as above)

    asked = questions(journal, record, minor_units_by_currency())
    write_frame(asked, out)
    screen.say(
        say_count(
            asked.height,
            "{count:,} question for the gateway's support is in {out}.",
            "{count:,} questions for the gateway's support are in {out}.",
            out=out,
        )
    )


def _one(found: BatchStatus, screen: Screen, *, only_doubt: bool) -> Summary:
    record = found.record
    screen.say(
        say(
            "Batch {batch}: {sheet_name}, {operation}, {rows}, opened {opened_at}.",
            batch=record.batch,
            sheet_name=record.sheet_name,
            operation=say(record.operation),
            rows=say_count(record.rows, "{count:,} row", "{count:,} rows"),
            opened_at=record.opened_at,
        )
    )
    if not only_doubt:
        _show_tallies(found.tallies, screen)
    _show_steps(found, screen)
    _show_contradictions(found.contradictions, screen)
    waiting = show_evidence(found, screen)
    rows = [_row_told(one) for one in sorted(found.rows, key=lambda one: one.row.row)]
    return replace(
        found.summary,
        further={
            "operation": record.operation,
            "in_doubt": [row for row in rows if row["state"] == State.IN_DOUBT],
            "needs_person": rows,
            "contradictions": len(found.contradictions),
            "evidence": found.evidence,
            "evidence_waiting": waiting,
        },
    )


def _show_tallies(tallies: Sequence[StateTally], screen: Screen) -> None:
    minor_units = minor_units_by_currency()
    screen.table(
        "",
        mark_all("country", "currency", "state", "rows", "sum"),
        [
            (
                tally.country,
                tally.currency,
                shown_state(tally.state),
                tally.count,
                from_minor(tally.minor, minor_units=minor_units[tally.currency]),
            )
            for tally in tallies
        ],
    )


def _show_steps(found: BatchStatus, screen: Screen) -> None:
    """Show the next step for the first rows that need a person."""
    count = found.needing
    if count:
        screen.say(
            say_count(
                count,
                "What to do next ({count:,} row needs a person):",
                "What to do next ({count:,} rows need a person):",
            )
        )
    for one in found.rows[:SHOWN_ROWS]:
        row, why = one.row, f" ({one.row.error_code})" if one.row.error_code else ""
        state = state_words(shown_state(row.state))
        screen.say(say("- Row {row}, {state}{why}: {step}", row=row.row, state=state, why=why, step=_step_told(one)))
    if count > SHOWN_ROWS:
        screen.say(say("... and {count:,} more: --json lists all of them.", count=count - SHOWN_ROWS))
    if any(one.row.state is State.IN_DOUBT for one in found.rows):
        screen.say(
            say("`paygw-batch status BATCH --in-doubt --out FILE` writes them as questions to the gateway's support.")
        )


def _step_told(one: RowStatus) -> str | None:
    return None if one.step is None else in_command_words(one.step)


def _show_contradictions(contradictions: Sequence[Contradiction], screen: Screen) -> None:
    if contradictions:
        screen.table(
            say("Contradicting messages: kept as evidence, they changed nothing"),
            mark_all("row", "order id", "state", "said", "attempt", "at"),
            [
                (found.row, found.client_orderid, found.state.value, found.kind, found.attempt, found.at)
                for found in contradictions[:SHOWN_ROWS]
            ],
        )


def _history(journal: JournalReader, record: BatchRecord, screen: Screen) -> list[dict[str, object]]:
    deeds = journal.history(record.number)
    screen.table(
        say("Who did what"),
        mark_all("at", "what", "row", "attempt", "by", "said"),
        [
            (
                _minute(deed.at),
                deed_words(deed.kind),
                "" if deed.row is None else str(deed.row),
                "" if deed.attempt is None else str(deed.attempt),
                deed.by,
                recorded(deed.said),
            )
            for deed in deeds
        ],
    )
    return [
        {
            "at": deed.at,
            "what": deed.kind,
            "row": deed.row,
            "attempt": deed.attempt,
            "by": deed.by,
            "said": recorded(deed.said),
        }
        for deed in deeds
    ]


def _all(found: JournalStatus, screen: Screen, order: str) -> Summary:
    listed = sorted(found.batches, key=_ORDERS[order])
    if listed:
        screen.table(
            "",
            mark_all("batch", "sheet\noperation", "opened", "age", "rows", "states", "person"),
            [
                (
                    one.record.batch,
                    (one.record.sheet_name, say(one.record.operation)),
                    one.record.opened_at[:10],
                    age_text(one.age),
                    one.record.rows,
                    (
                        *(counted_state(count, state) for state, count in one.states.items()),
                        *([say("({count:,} of an earlier batch)", count=one.known_rows)] if one.known else []),
                    ),
                    one.needs_person + one.contradictions,
                )
                for one in listed
            ],
        )
        screen.table(
            say("All batches, each row once"),
            mark_all("currency", "state", "sum"),
            [(currency, state, amount) for currency, sums in found.totals.items() for state, amount in sums.items()],
        )
    message = say_count(len(listed), "{count:,} batch in the journal", "{count:,} batches in the journal")
    message += (
        say_count(found.needing, "; {count:,} of them needs a person.", "; {count:,} of them need a person.")
        if found.needing
        else "."
    )
    show_counts(say("Messages of the gateway"), found.evidence, screen)
    return Summary(
        found.exit_code,
        message,
        rows=sum(found.states.values()),
        states=found.states,
        totals=found.totals,
        further={"batches": [_batch_told(one) for one in listed], "evidence": found.evidence},
    )


def age_text(age: timedelta) -> str:
    """Return an age in words, in its two largest units."""
    minutes = max(0, int(age.total_seconds() // 60))
    days, hours, minutes = minutes // 1440, minutes // 60 % 24, minutes % 60
    if days:
        return say("{days} d {hours} h", days=days, hours=hours)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _minute(at: str) -> str:
    """Return a time as a table shows it; --json has it in full."""
    return f"{at[:10]} {at[11:16]}"


def _batch_told(one: ListedBatch) -> dict[str, object]:
    return {
        "batch": one.record.batch,
        "sheet": one.record.sheet_name,
        "operation": one.record.operation,
        "opened_at": one.record.opened_at,
        "age_s": int(one.age.total_seconds()),
        "rows": one.record.rows,
        "known": one.known_rows,
        "states": dict(one.states),
        "needs_person": one.needs_person,
        "contradictions": one.contradictions,
    }


def _row_told(one: RowStatus) -> dict[str, object]:
    row = one.row
    return {
        "row": row.row,
        "client_orderid": row.client_orderid,
        "sent_orderid": row.sent_orderid,
        "state": shown_state(row.state),
        "attempts": row.attempts,
        "first_sent_at": row.first_sent_at,
        "error_code": row.error_code,
        "held": one.hold is not None,
        "next": _step_told(one),
    }
