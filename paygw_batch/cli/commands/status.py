"""`paygw-batch status`: what the journal knows, of one batch or of all, and what a person should do next."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any

import click

from paygw_batch.cli.completions import complete_batches
from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import force_option, guard_of, settings_of
from paygw_batch.cli.screen.batch_states import counted_once, states_of, summary_of, totals_of
from paygw_batch.cli.screen.gateway_messages import show_all_evidence, show_evidence, show_replies
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.screen.watch import follow
from paygw_batch.compose.outputs import OutputKind, Wanted
from paygw_batch.compose.parts import find_batch, journal_to_read, utc_now
from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import from_minor
from paygw_batch.core.shown_states import INVALID, SHOWN_IN_DOUBT, STATES, shown_state
from paygw_batch.countries.load import load_operation, minor_units_by_currency
from paygw_batch.errors import UsageError
from paygw_batch.journal import BatchRecord, JournalReader, RowStanding, StateTally
from paygw_batch.report.next_step import NEED_PERSON, long_accepted_until, next_step
from paygw_batch.report.questions import questions
from paygw_batch.report.summary import ExitCode, Summary, of_states, worst
from paygw_batch.settings.configuration import Settings
from paygw_batch.sheet.write.table import write_frame

SHOWN_ROWS = 20
"""How many rows of a kind are listed on a screen."""
PERSON_STATES = ("in_doubt", "rejected", "returned")
"""The states that wait for a person, whatever else holds."""


@dataclass(frozen=True, slots=True)
class _Listed:
    """A batch in the list of all batches. `age` is the time since it was opened."""

    record: BatchRecord
    tallies: tuple[StateTally, ...]
    known: tuple[StateTally, ...]
    """Those of its rows that an earlier batch brought: they are counted there."""
    states: Mapping[str, int]
    contradictions: int
    """Contradicting messages, and those that wait for a person."""
    age: timedelta

    @property
    def needs_person(self) -> int:
        """How many of its rows wait for a person."""
        return sum(self.states.get(state, 0) for state in PERSON_STATES)

    @property
    def known_rows(self) -> int:
        """How many of its rows an earlier batch brought."""
        return sum(tally.count for tally in self.known)


_ORDERS: Mapping[str, Callable[[_Listed], Any]] = {
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
    """Show where BATCH (its id, a prefix of it, or its sheet's path) stands; without BATCH, all batches."""
    started_s = time.monotonic()
    screen = Screen(invocation)
    settings = settings_of(invocation)
    minor_units = minor_units_by_currency()
    if out is not None and not in_doubt:
        raise UsageError("--out belongs to --in-doubt: `paygw-batch reconcile BATCH --out FILE` writes every row.")
    if batch is None and (in_doubt or watch or history or row is not None):
        raise UsageError("--in-doubt, --history, --row and --watch are about one batch: name it.")
    wanted, guard = Wanted("--out", out, OutputKind.QUESTIONS), guard_of(invocation, settings, force=force)
    guard.check(wanted, inputs={"the sheet": None if batch is None else Path(batch)})
    if batch is not None and watch:
        follow(settings, batch, screen)
    with journal_to_read(settings, screen.say) as journal:
        if batch is None:
            summary = _all(journal, minor_units, screen, order)
        else:
            record = find_batch(journal, batch)
            guard.check(wanted, inputs={"the sheet": Path(record.sheet_path)})
            summary = _one(settings, journal, record, minor_units, screen, only_doubt=in_doubt)
            if history:
                summary = replace(summary, further={**summary.further, "history": _history(journal, record, screen)})
            if row is not None:
                replies = show_replies(journal, record, row, screen)
                summary = replace(summary, further={**summary.further, "replies": replies})
            if out is not None:
                write_frame(asked := questions(journal, record, minor_units), out)
                screen.say(f"{asked.height:,} questions for the gateway's support are in {out}.")
    screen.finish(replace(summary, seconds=time.monotonic() - started_s))


def _one(
    settings: Settings,
    journal: JournalReader,
    record: BatchRecord,
    minor_units: Mapping[str, int],
    screen: Screen,
    *,
    only_doubt: bool,
) -> Summary:
    now = utc_now()
    tallies = journal.tallies(record.number)
    summary = summary_of(journal, record, tallies, minor_units)
    screen.say(
        f"Batch {record.batch}: {record.sheet_name}, {record.operation}, {record.rows:,} rows, opened "
        f"{record.opened_at}."
    )
    if not only_doubt:
        _show_tallies(tallies, minor_units, screen)

    verb, holds = load_operation(record.operation).verb, journal.holds(record.number)

    def step(row: RowStanding) -> str | None:
        quarantine_h, hold = settings.submission.quarantine_h, holds.get(row.row)
        return next_step(row, batch=record.batch, verb=verb, quarantine_h=quarantine_h, now=now, hold=hold)

    limit = None if screen.as_json else SHOWN_ROWS
    concerned = _concerned(journal, record, tallies, now, only_doubt=only_doubt, limit=limit)
    _show_steps(concerned.rows, concerned.count, step, screen)
    contradictions = _show_contradictions(journal, record, screen)
    waiting = show_evidence(journal, record, screen)
    told = [
        {**_row_told(row), "held": row.row in holds, "next": step(row)}
        for row in sorted(concerned.rows, key=attrgetter("row"))
    ]
    return replace(
        summary,
        further={
            "operation": record.operation,
            "in_doubt": [row for row in told if row["state"] == State.IN_DOUBT],
            "needs_person": told,
            "contradictions": contradictions,
            "evidence": dict(journal.evidence_counts(record.number)),
            "evidence_waiting": waiting,
        },
    )


@dataclass(frozen=True, slots=True)
class _Concerned:
    """The rows of a batch that a person should look at: how many, and the first of them."""

    count: int
    rows: Sequence[RowStanding]


def _concerned(
    journal: JournalReader,
    record: BatchRecord,
    tallies: Sequence[StateTally],
    now: datetime,
    *,
    only_doubt: bool,
    limit: int | None,
) -> _Concerned:
    """Return `limit` rows at the most (None: all). Those in doubt come first: money may be gone."""
    batch = record.number
    until = long_accepted_until(now)
    if any(tally.state is State.ACCEPTED for tally in tallies):
        tallies = journal.tallies(batch, accepted_until=until)
    rows = list(journal.rows(batch, states=SHOWN_IN_DOUBT, limit=limit))
    count = _how_many(tallies, SHOWN_IN_DOUBT)
    if not only_doubt:
        others = NEED_PERSON - SHOWN_IN_DOUBT
        left = None if limit is None else limit - len(rows)
        rows += journal.rows(batch, states=others, accepted_until=until, limit=left)
        count += _how_many(tallies, others)
        if holds := journal.holds(batch):
            held = list(journal.rows(batch, numbers=holds))
            rows, count = [*held, *rows][:limit], count + len(held)
    return _Concerned(count, rows)


def _how_many(tallies: Sequence[StateTally], states: Collection[State]) -> int:
    return sum(tally.count for tally in tallies if tally.state in states)


def _show_tallies(tallies: Sequence[StateTally], minor_units: Mapping[str, int], screen: Screen) -> None:
    screen.table(
        "",
        ("country", "currency", "state", "rows", "sum"),
        [
            (tally.country, tally.currency, shown_state(tally.state), tally.count, _sum(tally, minor_units))
            for tally in tallies
        ],
    )


def _show_steps(
    rows: Sequence[RowStanding], count: int, step: Callable[[RowStanding], str | None], screen: Screen
) -> None:
    """Show what to do about the first of `count` rows that need a person."""
    if count:
        screen.say(f"What to do next ({count:,} {'row needs' if count == 1 else 'rows need'} a person):")
    for row in rows[:SHOWN_ROWS]:
        why = f" ({row.error_code})" if row.error_code else ""
        screen.say(f"- Row {row.row}, {shown_state(row.state).replace('_', ' ')}{why}: {step(row)}")
    if count > SHOWN_ROWS:
        screen.say(f"... and {count - SHOWN_ROWS:,} more: --json lists all of them.")
    if any(row.state is State.IN_DOUBT for row in rows):
        screen.say(
            "`paygw-batch status BATCH --in-doubt --out FILE` writes them as questions to the gateway's support."
        )


def _show_contradictions(journal: JournalReader, record: BatchRecord, screen: Screen) -> int:
    contradictions = journal.contradictions(record.number)
    if contradictions:
        screen.table(
            "Contradicting messages: kept as evidence, they changed nothing",
            ("row", "order id", "state", "said", "attempt", "at"),
            [
                (found.row, found.client_orderid, found.state.value, found.kind, found.attempt, found.at)
                for found in contradictions[:SHOWN_ROWS]
            ],
        )
    return len(contradictions)


def _history(journal: JournalReader, record: BatchRecord, screen: Screen) -> list[dict[str, object]]:
    deeds = journal.history(record.number)
    screen.table(
        "Who did what",
        ("at", "what", "row", "attempt", "by", "said"),
        [
            (
                _minute(deed.at),
                deed.kind.replace("_", " "),
                "" if deed.row is None else str(deed.row),
                "" if deed.attempt is None else str(deed.attempt),
                deed.by,
                deed.said,
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
            "said": deed.said,
        }
        for deed in deeds
    ]


def _all(journal: JournalReader, minor_units: Mapping[str, int], screen: Screen, order: str) -> Summary:
    now = utc_now()
    listed = sorted((_listed(journal, record, now) for record in journal.batches()), key=_ORDERS[order])
    once = counted_once(
        (tally for one in listed for tally in one.tallies), (tally for one in listed for tally in one.known)
    )
    counts: Counter[str] = Counter({INVALID: sum(one.states.get(INVALID, 0) for one in listed)})
    for tally in once:
        counts[shown_state(tally.state)] += tally.count
    totals = totals_of(once, minor_units)
    if listed:
        screen.table(
            "",
            ("batch", "sheet\noperation", "opened", "age", "rows", "states", "person"),
            [
                (
                    one.record.batch,
                    (one.record.sheet_name, one.record.operation),
                    one.record.opened_at[:10],
                    age_text(one.age),
                    one.record.rows,
                    (
                        *(f"{count:,} {state.replace('_', ' ')}" for state, count in one.states.items()),
                        *([f"({one.known_rows:,} of an earlier batch)"] if one.known else []),
                    ),
                    one.needs_person + one.contradictions,
                )
                for one in listed
            ],
        )
        screen.table(
            "All batches, each row once",
            ("currency", "state", "sum"),
            [(currency, state, amount) for currency, sums in totals.items() for state, amount in sums.items()],
        )
    codes = {ExitCode.DONE} | {of_states(one.states, contradictions=one.contradictions) for one in listed}
    waiting = sum(one.needs_person > 0 or one.contradictions > 0 for one in listed)
    message = f"{len(listed):,} {'batch' if len(listed) == 1 else 'batches'} in the journal"
    message += f"; {waiting:,} of them {'needs' if waiting == 1 else 'need'} a person." if waiting else "."
    return Summary(
        worst(codes),
        message,
        rows=sum(counts.values()),
        states={state: counts[state] for state in STATES if counts[state]},
        totals=totals,
        further={"batches": [_batch_told(one) for one in listed], "evidence": show_all_evidence(journal, screen)},
    )


def _listed(journal: JournalReader, record: BatchRecord, now: datetime) -> _Listed:
    tallies = tuple(journal.tallies(record.number))
    return _Listed(
        record,
        tallies,
        tuple(journal.known_tallies(record.number)),
        states_of(record, tallies),
        len(journal.contradictions(record.number)) + len(journal.evidence_waiting(record.number)),
        now - datetime.fromisoformat(record.opened_at),
    )


def age_text(age: timedelta) -> str:
    """Return an age as people say it, in its two largest units."""
    minutes = max(0, int(age.total_seconds() // 60))
    days, hours, minutes = minutes // 1440, minutes // 60 % 24, minutes % 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _minute(at: str) -> str:
    """Return a time as a table shows it; --json has it in full."""
    return f"{at[:10]} {at[11:16]}"


def _sum(tally: StateTally, minor_units: Mapping[str, int]) -> str:
    return from_minor(tally.minor, minor_units=minor_units[tally.currency])


def _batch_told(one: _Listed) -> dict[str, object]:
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


def _row_told(row: RowStanding) -> dict[str, object]:
    return {
        "row": row.row,
        "client_orderid": row.client_orderid,
        "sent_orderid": row.sent_orderid,
        "state": shown_state(row.state),
        "attempts": row.attempts,
        "first_sent_at": row.first_sent_at,
        "error_code": row.error_code,
    }
