"""Writes the reconciliation as one HTML page: sums, the rows that need a person, and other rows on demand.

The page is made from the same frame as the CSV, and depends only on the sheet and the journal. It names payees, so only
people who may see the reconciliation may read it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from paygw_batch.clock import minute
from paygw_batch.core.generator_marks import PageKind
from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import parse_amount, with_separators
from paygw_batch.core.shown_states import decided_by, deed_words, recorded, state_words
from paygw_batch.countries.load import load_operation
from paygw_batch.journal import BatchRecord, HistoryEntry, JournalReader
from paygw_batch.language import mark, say, say_count
from paygw_batch.show.next_step import StateStep, next_steps, step_of_state
from paygw_batch.show.page import page
from paygw_batch.show.totals import STATE_COLOURS, BatchTotals, by_currency, money_text

TIME_BARS = 38
LATENCY_STEPS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 60_000)
_TIME = "%Y-%m-%dT%H:%M:%S%.3fZ"
_TOP, _BOTTOM = 12, 34
_GAP = 0.15
"""The share of a bar's place that stays empty."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a chart. `parts` are (state, count) from the bottom up. `label` is the text below it, or empty."""

    label: str
    parts: Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Box:
    """The rectangle that is drawn for one part of a bar."""

    state: str
    count: int
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Chart:
    """A bar chart with a heading, a sentence `about` the chart, and a `title` for screen readers."""

    heading: str
    about: str
    title: str
    bars: Sequence[Bar]
    width = 760
    height = 220
    left = 56

    def scale(self) -> Iterator[tuple[int, float]]:
        """Return the counts on the chart's axis, each with its vertical position."""
        highest = self._highest()
        return ((count, self._y(count)) for count in sorted({0, highest // 2, highest}))

    def boxes(self) -> Iterator[Box]:
        place = self._place()
        for number, bar in enumerate(self.bars):
            below = 0
            for state, count in bar.parts:
                if count:
                    top, bottom = self._y(below + count), self._y(below)
                    x = self.left + (number + _GAP / 2) * place
                    yield Box(state, count, x, top, place * (1 - _GAP), bottom - top)
                    below += count

    def labels(self) -> Iterator[tuple[str, float]]:
        """Return the labels below the bars, each with the horizontal position of the centre of its bar."""
        place = self._place()
        return ((bar.label, self.left + (at + 0.5) * place) for at, bar in enumerate(self.bars) if bar.label)

    def _place(self) -> float:
        return (self.width - self.left) / max(len(self.bars), 1)

    def _highest(self) -> int:
        return max((sum(count for _, count in bar.parts) for bar in self.bars), default=0) or 1

    def _y(self, count: int) -> float:
        return self.height - _BOTTOM - (self.height - _BOTTOM - _TOP) * count / self._highest()


def outcomes_over_time(frame: pl.DataFrame) -> Chart | None:
    """Return a chart of when rows reached their present state; None if no row was sent.

    Each bar stands for the same duration. Rows that need a person are at the top of a bar.
    """
    moved = frame.filter(pl.col("updated_at").is_not_null() & (pl.col("attempts") > 0)).select(
        "state", at=pl.col("updated_at").str.to_datetime(_TIME, time_zone="UTC")
    )
    if moved.is_empty():
        return None
    begin, end = moved.select(begin=pl.col("at").min(), end=pl.col("at").max()).row(0)
    width_ms = max(1, -(-int((end - begin).total_seconds() * 1000 + 1) // TIME_BARS))
    counted = (
        moved.with_columns(bar=(pl.col("at") - begin).dt.total_milliseconds() // width_ms)
        .group_by("bar", "state")
        .agg(pl.len())
    )
    counts: dict[int, dict[str, int]] = {}
    for number, state, count in counted.iter_rows():
        counts.setdefault(number, {})[state] = count
    upwards = list(STATE_COLOURS)[::-1]
    bars = [
        Bar("", [(state, counts.get(number, {}).get(state, 0)) for state in upwards])
        for number in range(max(counts) + 1)
    ]
    pattern = "%H:%M:%S" if begin.date() == end.date() else "%d %b %H:%M"
    about = say(
        "From {begin} to {end} UTC; a bar is {width}.",
        begin=begin.strftime(pattern),
        end=end.strftime(pattern),
        width=_duration(width_ms),
    )
    title = say("Outcomes over time")
    return Chart(title, about, title, bars)


def latency(frame: pl.DataFrame) -> Chart | None:
    """Return a chart of the response times of rows answered at the first attempt; None if there are no such rows."""
    answered = frame.filter((pl.col("attempts") == 1) & pl.col("gateway_status").is_not_null())
    sent, ended = (pl.col(name).str.to_datetime(_TIME, time_zone="UTC") for name in ("first_sent_at", "updated_at"))
    durations = answered.select(ms=(ended - sent).dt.total_milliseconds()).drop_nulls()["ms"]
    if durations.is_empty():
        return None
    places = pl.Series(LATENCY_STEPS_MS).search_sorted(durations, side="right")
    counts: dict[int, int] = dict(places.value_counts().iter_rows())
    bars = [Bar(_band(place), [("ready", counts.get(place, 0))]) for place in range(min(counts), max(counts) + 1)]
    marks = ", ".join(
        say("{share:.0%} within {time}", share=share, time=_duration(int(durations.quantile(share, "higher") or 0)))
        for share in (0.5, 0.95, 0.99)
    )
    about = say("From the intent to the recorded answer: {marks}.", marks=marks)
    return Chart(say("Latency"), about, say("Latency of answers"), bars)


def _band(place: int) -> str:
    if place == len(LATENCY_STEPS_MS):
        return say("from {time}", time=_duration(LATENCY_STEPS_MS[-1]))
    return f"< {_duration(LATENCY_STEPS_MS[place])}"


def _duration(ms: int) -> str:
    if ms < 1000:  # noqa: PLR2004 (milliseconds in a second)
        return f"{ms} ms"
    seconds = ms / 1000
    return f"{seconds:g} s" if seconds < 120 else f"{seconds / 60:.0f} min"  # noqa: PLR2004 (from two minutes on)


SHOWN_ROWS = 500
"""The maximum number of rows listed for a state that needs a person. The reconciliation file has all rows."""
ROWS_ON_DEMAND = 1_000
"""The maximum number of rows listed for a state that needs nobody."""
SHOWN_DEEDS = 200
HELD = "held"
"""The page's own state for ready rows that evidence holds, so that no run sends them."""
PERSON_STATES = ("in_doubt", HELD, "rejected", "returned", "invalid")
"""The states of rows that wait for a person, in the page's order."""
_ON_DEMAND = ("in_flight", "accepted", "paid")
_SHOWN_COLUMNS = (
    *("row", "state", "account_name", "account", "currency", "amount", "client_orderid", "sent_orderid"),
    *("gateway_reference", "updated_at", "error_code", "message"),
)
_APPROVED, _OPENED = "approved", "opened"
_CUT = mark("These are the first {shown:,} of {all:,} rows: the reconciliation file has all of them.")


@dataclass(frozen=True, slots=True)
class RowsInState:
    """The rows in one state.

    `count` is the number of all of them, and `rows` are the first ones, by column, with a `caption` for their table.
    `step` is the next step for all of them. `own` has the steps of single rows, by row number.
    """

    state: str
    count: int
    rows: Sequence[Mapping[str, Any]]
    caption: str
    step: StateStep | None = None
    own: Mapping[int, str] | None = None

    @property
    def counted(self) -> str:
        return say_count(self.count, "{count:,} row", "{count:,} rows")


def _operators_deed(deed: HistoryEntry) -> tuple[str, str, str, str]:
    return minute(deed.at), deed_words(deed.kind), decided_by(deed.by), recorded(deed.said)


@dataclass(frozen=True, slots=True)
class Reader:
    """The kind of person who reads a report: an operator, or someone who knows no commands, paths, logins and codes.

    `when` returns a time as text. `deed` returns time, action, person and reason of an entry of the history.
    """

    when: Callable[[str], str] = minute
    deed: Callable[[HistoryEntry], tuple[str, str, str, str]] = _operators_deed
    is_operator: bool = True


OPERATOR = Reader()


def report_html(
    journal: JournalReader,
    batch: BatchRecord,
    frame: pl.DataFrame,
    books: BatchTotals,
    minor_units: Mapping[str, int],
    *,
    quarantine_h: float,
    reader: Reader = OPERATOR,
) -> str:
    """Return the HTML of the report of a batch, from its reconciliation `frame` and its totals (`books`)."""
    history = journal.history(batch.number)
    held = list(journal.holds(batch.number))
    shown = frame.with_columns(
        state=pl.when(pl.col("row").is_in(held) & (pl.col("state") == "ready"))
        .then(pl.lit(HELD))
        .otherwise(pl.col("state")),
        account=pl.coalesce("account_number", "phone"),
    ).select(_SHOWN_COLUMNS)
    kinds_above = {_OPENED, _APPROVED} if reader.is_operator else frozenset[str]()
    deeds = [deed for deed in history if deed.kind not in kinds_above]
    return page(
        PageKind.REPORT,
        batch=batch,
        reader=reader,
        about=_about(batch, history, reader),
        counts={state: books.states[state] for state in STATE_COLOURS if books.states.get(state)},
        sums=[(line, {state: amount for state, _, amount in line.states}) for line in by_currency(books) if line.rows],
        waiting=list(_waiting(journal, batch, shown, minor_units, quarantine_h)),
        on_demand=[_rows_in_state(shown, state, ROWS_ON_DEMAND, minor_units) for state in _ON_DEMAND],
        lines=books.lines,
        deeds=[(deed.row, *reader.deed(deed)) for deed in deeds[:SHOWN_DEEDS]],
        deed_count=len(deeds),
        charts=_charts(frame, history) if reader.is_operator else (),
    )


def _about(batch: BatchRecord, history: Sequence[HistoryEntry], reader: Reader) -> Sequence[str]:
    rows = say_count(batch.rows, "{count:,} row", "{count:,} rows")
    if not reader.is_operator:
        return [say("{rows}, started {time}.", rows=rows, time=reader.when(batch.opened_at))]
    by = next((deed.by for deed in history if deed.kind == _OPENED and deed.by), "")
    about = {"batch": batch.batch, "rows": rows, "time": minute(batch.opened_at)}
    opening = (
        say("Batch {batch}, {rows}, opened {time} UTC by {by}.", by=by, **about)
        if by
        else say("Batch {batch}, {rows}, opened {time} UTC.", **about)
    )
    approvals = [recorded(deed.said) for deed in history if deed.kind == _APPROVED]
    approved = "; ".join(f"{sentence[:1].upper()}{sentence[1:]}" for sentence in approvals)
    plan = say("Its plan: {approved}.", approved=approved) if approved else say("No plan was approved for it.")
    return [opening, plan]


def _rows_in_state(frame: pl.DataFrame, state: str, most: int, minor_units: Mapping[str, int]) -> RowsInState:
    """Return the first `most` rows in one state, in the sheet's order, with amounts formatted for people."""
    matching = frame.filter(pl.col("state") == state)
    rows = [
        {**row, "amount": _amount(row["amount"], minor_units.get(row["currency"] or ""))}
        for row in matching.head(most).iter_rows(named=True)
    ]
    caption = (
        say("All rows that are {state}", state=state_words(state))
        if matching.height <= most
        else say(_CUT, shown=most, all=matching.height)
    )
    return RowsInState(state, matching.height, rows, caption)


def _amount(amount: str | None, units: int | None) -> str:
    """Return an amount formatted for people, or the sheet's text if it is not an amount."""
    value = None if units is None else parse_amount(amount or "", minor_units=units)
    return (amount or "") if value is None else with_separators(money_text(value, units))


def _waiting(
    journal: JournalReader,
    batch: BatchRecord,
    frame: pl.DataFrame,
    minor_units: Mapping[str, int],
    quarantine_h: float,
) -> Iterator[RowsInState]:
    """Yield the rows that need a person, by state, with their next steps. Ready rows come last."""
    operation = load_operation(batch.operation)
    for state in (*PERSON_STATES, State.READY.value):
        listed = _rows_in_state(frame, state, SHOWN_ROWS, minor_units)
        if listed.count:
            numbers = [row["row"] for row in listed.rows]
            step = step_of_state(state, batch, operation, first_row=numbers[0])
            needs = state != State.READY
            own = next_steps(journal, batch, numbers, verb=operation.verb, quarantine_h=quarantine_h) if needs else {}
            yield replace(listed, step=step, own=own)


def _charts(frame: pl.DataFrame, history: Sequence[HistoryEntry]) -> Sequence[Chart]:
    # If a person decided about a row, its last change is the decision, so it says nothing about response times.
    decided = [deed.row for deed in history if deed.row is not None]
    charts = (outcomes_over_time(frame), latency(frame.filter(~pl.col("row").is_in(decided))))
    return [chart for chart in charts if chart is not None]
