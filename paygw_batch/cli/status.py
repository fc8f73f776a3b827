"""`paygw-batch status`: what the journal knows, of one batch or of all."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import click

from paygw_batch.cli.compose import find_batch, journal_to_read, minor_units_of, rules_of, settings_of
from paygw_batch.cli.render import Screen
from paygw_batch.cli.root import Invocation
from paygw_batch.cli.sending import end_sentence
from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import from_minor
from paygw_batch.journal.port import BatchRecord, JournalReader, RowStanding, Tally
from paygw_batch.run.engine import RunEnd
from paygw_batch.run.reconcile import INVALID, STATES, shown_state
from paygw_batch.run.summary import ExitCode, Summary, of_states, worst

SHOWN_ROWS = 20
"""How many rows in doubt are listed on a screen."""


@click.command("status", short_help="Show what the journal knows.")
@click.argument("batch", required=False)
@click.pass_obj
def command(invocation: Invocation, *, batch: str | None) -> None:
    """Show where BATCH (its id, a prefix of it, or its sheet's path) stands; without BATCH, all batches."""
    started_s = time.monotonic()
    screen = Screen(invocation)
    settings = settings_of(invocation)
    minor_units = minor_units_of(rules_of(settings))
    with journal_to_read(settings) as journal:
        record = find_batch(journal, batch) if batch else None
        summary = _one(journal, record, minor_units, screen) if record else _all(journal, screen)
    screen.finish(replace(summary, seconds=time.monotonic() - started_s))


def _one(journal: JournalReader, record: BatchRecord, minor_units: Mapping[str, int], screen: Screen) -> Summary:
    tallies = journal.tallies(record.number)
    states = _states(record, tallies)
    contradictions = journal.contradictions(record.number)
    in_doubt = [row for row in journal.standings(record.number) if shown_state(row.state) == State.IN_DOUBT]
    screen.say(f"Batch {record.batch}: {record.sheet_name}, {record.rows:,} rows, opened {record.opened_at}.")
    screen.table(
        "",
        ("country", "currency", "state", "rows", "sum"),
        [
            (tally.country, tally.currency, shown_state(tally.state), tally.count, _sum(tally, minor_units))
            for tally in tallies
        ],
    )
    if in_doubt:
        screen.table(
            "In doubt: ask the gateway after these order ids; they are never sent again by themselves",
            ("row", "order id", "attempts", "first sent", "why"),
            [
                (row.row, row.sent_orderid or "", row.attempts, row.first_sent_at or "", row.error_code or "")
                for row in in_doubt[:SHOWN_ROWS]
            ],
        )
        if len(in_doubt) > SHOWN_ROWS:
            screen.say(f"... and {len(in_doubt) - SHOWN_ROWS:,} more: `paygw-batch reconcile` writes all of them.")
    if contradictions:
        screen.table(
            "Contradicting messages: kept as evidence, they changed nothing",
            ("row", "order id", "state", "said", "attempt", "at"),
            [
                (found.row, found.client_orderid, found.state.value, found.kind, found.attempt, found.at)
                for found in contradictions[:SHOWN_ROWS]
            ],
        )
    return Summary(
        of_states(states, contradictions=len(contradictions)),
        end_sentence(states, RunEnd(0, None, interrupted=False), len(contradictions)),
        batch=record.batch,
        sheet=record.sheet_name,
        rows=record.rows,
        states=states,
        totals=_totals(tallies, minor_units),
        defects=record.defects,
        further={"in_doubt": [_row_in_doubt(row) for row in in_doubt], "contradictions": len(contradictions)},
    )


def _all(journal: JournalReader, screen: Screen) -> Summary:
    lines = []
    listed = []
    codes = {ExitCode.DONE}
    counts: Counter[str] = Counter()
    for record in journal.batches():
        states = _states(record, journal.tallies(record.number))
        counts.update(states)
        contradictions = len(journal.contradictions(record.number))
        codes.add(of_states(states, contradictions=contradictions))
        told = ", ".join(f"{count:,} {state.replace('_', ' ')}" for state, count in states.items())
        lines.append((record.batch, record.sheet_name, record.opened_at, record.rows, told))
        listed.append(
            {
                "batch": record.batch,
                "sheet": record.sheet_name,
                "opened_at": record.opened_at,
                "rows": record.rows,
                "states": dict(states),
                "contradictions": contradictions,
            }
        )
    if lines:
        screen.table("", ("batch", "sheet", "opened", "rows", "states"), lines)
    message = f"{len(lines):,} {'batch' if len(lines) == 1 else 'batches'} in the journal."
    return Summary(worst(codes), message, rows=sum(counts.values()), states=dict(counts), further={"batches": listed})


def _states(record: BatchRecord, tallies: Sequence[Tally]) -> Mapping[str, int]:
    """Return how many rows of a batch's sheet stand in each state: those without an instruction are invalid."""
    counts: Counter[str] = Counter()
    for tally in tallies:
        counts[shown_state(tally.state)] += tally.count
    if left_out := record.rows - counts.total():
        counts[INVALID] += left_out
    return {state: counts[state] for state in STATES if counts[state]}


def _totals(tallies: Sequence[Tally], minor_units: Mapping[str, int]) -> Mapping[str, Mapping[str, str]]:
    sums: dict[str, Counter[str]] = {}
    for tally in tallies:
        sums.setdefault(tally.currency, Counter())[shown_state(tally.state)] += tally.minor
    return {
        currency: {state: from_minor(minor, minor_units=minor_units[currency]) for state, minor in by_state.items()}
        for currency, by_state in sorted(sums.items())
    }


def _sum(tally: Tally, minor_units: Mapping[str, int]) -> str:
    return from_minor(tally.minor, minor_units=minor_units[tally.currency])


def _row_in_doubt(row: RowStanding) -> dict[str, object]:
    return {
        "row": row.row,
        "client_orderid": row.client_orderid,
        "sent_orderid": row.sent_orderid,
        "attempts": row.attempts,
        "first_sent_at": row.first_sent_at,
        "error_code": row.error_code,
    }
