"""Writes the reconciliation as a single HTML page: sums, rows that need attention, and other rows, collapsed.

The page is built from the same frame as the CSV, and depends only on the sheet and the journal. It names payees, so it
is only for people who may see the reconciliation.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from paygw_batch.clock import format_minute
from paygw_batch.core.generator_marks import PageKind
from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import format_amount, parse_amount
from paygw_batch.core.shown_states import HELD, action_label, format_decider, render_record, state_label
from paygw_batch.countries.load import load_operation
from paygw_batch.journal import BatchRecord, HistoryEntry, JournalReader
from paygw_batch.language import mark, say, say_count
from paygw_batch.show.next_step import StateStep, next_steps, state_step
from paygw_batch.show.page import page
from paygw_batch.show.totals import STATE_COLOURS, BatchTotals, amount_text, group_by_currency

TIME_BARS = 38
LATENCY_STEPS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 60_000)
_TIME = "%Y-%m-%dT%H:%M:%S%.3fZ"
_TOP_MARGIN, _BOTTOM_MARGIN = 12, 34
_BAR_GAP = 0.15


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a chart. `parts` are (state, count) from the bottom up, and `label` is the text below, if any."""

    label: str
    parts: Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Box:
    """The rectangle for one part of a bar."""

    state: str
    count: int
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Chart:
    """A bar chart with a heading, a description (`about`) and a `title` for screen readers."""

    heading: str
    about: str
    title: str
    bars: Sequence[Bar]
    width = 760
    height = 220
    left = 56

    def scale(self) -> Iterator[tuple[int, float]]:
        """Return the counts to mark on the vertical axis, with their positions."""
        highest = self._max_count()
        return ((count, self._y_position(count)) for count in sorted({0, highest // 2, highest}))

    def boxes(self) -> Iterator[Box]:
        bar_width = self._bar_width()
        for index, bar in enumerate(self.bars):
            count_below = 0
            for state, count in bar.parts:
                if count:
                    top, bottom = self._y_position(count_below + count), self._y_position(count_below)
                    x = self.left + (index + _BAR_GAP / 2) * bar_width
                    yield Box(state, count, x, top, bar_width * (1 - _BAR_GAP), bottom - top)
                    count_below += count

    def labels(self) -> Iterator[tuple[str, float]]:
        """Return the labels below the bars, with the horizontal positions of their centres."""
        bar_width = self._bar_width()
        return ((bar.label, self.left + (index + 0.5) * bar_width) for index, bar in enumerate(self.bars) if bar.label)

    def _bar_width(self) -> float:
        return (self.width - self.left) / max(len(self.bars), 1)

    def _max_count(self) -> int:
        return max((sum(count for _, count in bar.parts) for bar in self.bars), default=0) or 1

    def _y_position(self, count: int) -> float:
        return self.height - _BOTTOM_MARGIN - (self.height - _BOTTOM_MARGIN - _TOP_MARGIN) * count / self._max_count()


def outcome_chart(frame: pl.DataFrame) -> Chart | None:
    """Return a chart of the times when rows reached their current state, or None if no row was sent."""
    sent_rows = frame.filter(pl.col("updated_at").is_not_null() & (pl.col("attempts") > 0)).select(
        "state", at=pl.col("updated_at").str.to_datetime(_TIME, time_zone="UTC")
    )
    if sent_rows.is_empty():
        return None
    begin, end = sent_rows.select(begin=pl.col("at").min(), end=pl.col("at").max()).row(0)
    width_ms = max(1, -(-int((end - begin).total_seconds() * 1000 + 1) // TIME_BARS))
    bar_counts = (
        sent_rows.with_columns(bar=(pl.col("at") - begin).dt.total_milliseconds() // width_ms)
        .group_by("bar", "state")
        .agg(pl.len())
    )
    counts: dict[int, dict[str, int]] = {}
    for bar, state, count in bar_counts.iter_rows():
        counts.setdefault(bar, {})[state] = count
    states = list(STATE_COLOURS)[::-1]
    bars = [Bar("", [(state, counts.get(bar, {}).get(state, 0)) for state in states]) for bar in range(max(counts) + 1)]
    pattern = "%H:%M:%S" if begin.date() == end.date() else "%d %b %H:%M"
    description = say(
        "From {begin} to {end} UTC. Each bar covers {width}.",
        begin=begin.strftime(pattern),
        end=end.strftime(pattern),
        width=_format_duration(width_ms),
    )
    title = say("Outcomes over time")
    return Chart(title, description, title, bars)


def latency_chart(frame: pl.DataFrame) -> Chart | None:
    """Return a chart of the response times of first attempts, or None if no first attempt was answered."""
    answered_rows = frame.filter((pl.col("attempts") == 1) & pl.col("gateway_status").is_not_null())
    start, end = (pl.col(name).str.to_datetime(_TIME, time_zone="UTC") for name in ("first_sent_at", "updated_at"))
    times = answered_rows.select(ms=(end - start).dt.total_milliseconds()).drop_nulls()["ms"]
    if times.is_empty():
        return None
    steps = pl.Series(LATENCY_STEPS_MS).search_sorted(times, side="right")
    counts: dict[int, int] = dict(steps.value_counts().iter_rows())
    bars = [Bar(_time_label(step), [("ready", counts.get(step, 0))]) for step in range(min(counts), max(counts) + 1)]
    percentiles = ", ".join(
        say("{share:.0%} within {time}", share=share, time=_format_duration(int(times.quantile(share, "higher") or 0)))
        for share in (0.5, 0.95, 0.99)
    )
    description = say("From the intent to the recorded answer: {marks}.", marks=percentiles)
    return Chart(say("Latency"), description, say("Latency of answers"), bars)


def _time_label(step: int) -> str:
    if step == len(LATENCY_STEPS_MS):
        return say("from {time}", time=_format_duration(LATENCY_STEPS_MS[-1]))
    return f"< {_format_duration(LATENCY_STEPS_MS[step])}"


def _format_duration(ms: int) -> str:
    if ms < 1000:  # noqa: PLR2004 (milliseconds in a second)
        return f"{ms} ms"
    seconds = ms / 1000
    return f"{seconds:g} s" if seconds < 120 else f"{seconds / 60:.0f} min"  # noqa: PLR2004 (two minutes)


MAX_SHOWN_ROWS = 500
"""Maximum number of rows listed for a state that needs attention. The reconciliation file lists all rows."""
MAX_COLLAPSED_ROWS = 1_000
"""Maximum number of rows listed for any other state."""
MAX_ACTIONS = 200
_ATTENTION_STATES = ("in_doubt", HELD, "rejected", "returned", "invalid")
"""The states of rows that need attention, in display order."""
_COLLAPSED_STATES = ("in_flight", "accepted", "paid")
_SHOWN_COLUMNS = (
    *("row", "state", "account_name", "account", "currency", "amount", "client_orderid", "sent_orderid"),
    *("gateway_reference", "updated_at", "error_code", "message"),
)
_APPROVED, _OPENED = "approved", "opened"
_TRUNCATED_CAPTION = mark("These are the first {shown:,} of {all:,} rows. The reconciliation file has all of them.")


@dataclass(frozen=True, slots=True)
class RowsInState:
    """The rows in one state.

    `count` is their number, and `rows` are the first ones. `caption` is the caption of the table of rows. `step` is the
    next step for all of them, and `row_steps` are the next steps for single rows, by row number.
    """

    state: str
    count: int
    rows: Sequence[Mapping[str, Any]]
    caption: str
    step: StateStep | None = None
    row_steps: Mapping[int, str] | None = None

    @property
    def row_count_text(self) -> str:
        return say_count(self.count, "{count:,} row", "{count:,} rows")


def _format_action(action: HistoryEntry) -> tuple[str, str, str, str]:
    return format_minute(action.at), action_label(action.kind), format_decider(action.by), render_record(action.said)


@dataclass(frozen=True, slots=True)
class Reader:
    """The reader of a report: an operator, or an officer, who sees no commands, paths, logins or codes.

    `format_time` formats a time. `format_action` returns a history entry as (time, action, person, reason).
    """

    format_time: Callable[[str], str] = format_minute
    format_action: Callable[[HistoryEntry], tuple[str, str, str, str]] = _format_action
    is_operator: bool = True


OPERATOR = Reader()


def render_report(
    journal: JournalReader,
    batch: BatchRecord,
    frame: pl.DataFrame,
    totals: BatchTotals,
    minor_units: Mapping[str, int],
    *,
    quarantine_h: float,
    reader: Reader = OPERATOR,
) -> str:
    """Render a batch's report from its reconciliation `frame` and its totals."""
    history = journal.history(batch.number)
    holds = list(journal.holds(batch.number))
    displayed = frame.with_columns(
        state=pl.when(pl.col("row").is_in(holds)).then(pl.lit(HELD)).otherwise(pl.col("state")),
        account=pl.coalesce("account_number", "phone"),
    ).select(_SHOWN_COLUMNS)
    intro_kinds = {_OPENED, _APPROVED} if reader.is_operator else frozenset[str]()
    actions = [action for action in history if action.kind not in intro_kinds]
    currency_totals = group_by_currency(totals)
    sums = [(line, {state: amount for state, _, amount in line.states}) for line in currency_totals if line.rows]
    return page(
        PageKind.REPORT,
        batch=batch,
        reader=reader,
        about=_intro_sentences(batch, history, reader),
        counts={state: totals.states[state] for state in STATE_COLOURS if totals.states.get(state)},
        sums=sums,
        waiting=list(_rows_needing_attention(journal, batch, displayed, minor_units, quarantine_h)),
        on_demand=[_select_rows(displayed, state, MAX_COLLAPSED_ROWS, minor_units) for state in _COLLAPSED_STATES],
        lines=totals.lines,
        deeds=[(action.row, *reader.format_action(action)) for action in actions[:MAX_ACTIONS]],
        deed_count=len(actions),
        charts=_build_charts(frame, history) if reader.is_operator else (),
    )


def _intro_sentences(batch: BatchRecord, history: Sequence[HistoryEntry], reader: Reader) -> Sequence[str]:
    rows = say_count(batch.rows, "{count:,} row", "{count:,} rows")
    if not reader.is_operator:
        return [say("{rows}, started {time}.", rows=rows, time=reader.format_time(batch.opened_at))]
    by = next((action.by for action in history if action.kind == _OPENED and action.by), "")
    values = {"batch": batch.batch, "rows": rows, "time": format_minute(batch.opened_at)}
    opening = (
        say("Batch {batch}, {rows}, opened {time} UTC by {by}.", by=by, **values)
        if by
        else say("Batch {batch}, {rows}, opened {time} UTC.", **values)
    )
    approvals = [render_record(action.said) for action in history if action.kind == _APPROVED]
    approval = "; ".join(f"{message[:1].upper()}{message[1:]}" for message in approvals)
    plan = say("Its plan: {approved}.", approved=approval) if approval else say("No plan was approved for this batch.")
    return [opening, plan]


def _select_rows(frame: pl.DataFrame, state: str, limit: int, minor_units: Mapping[str, int]) -> RowsInState:
    matches = frame.filter(pl.col("state") == state)
    rows = [
        {**row, "amount": _format_sheet_amount(row["amount"], minor_units.get(row["currency"] or ""))}
        for row in matches.head(limit).iter_rows(named=True)
    ]
    caption = (
        say("All rows in the state: {state}", state=state_label(state))
        if matches.height <= limit
        else say(_TRUNCATED_CAPTION, shown=limit, all=matches.height)
    )
    return RowsInState(state, matches.height, rows, caption)


def _format_sheet_amount(amount: str | None, units: int | None) -> str:
    value = None if units is None else parse_amount(amount or "", minor_units=units)
    return (amount or "") if value is None else format_amount(amount_text(value, units))


def _rows_needing_attention(
    journal: JournalReader, batch: BatchRecord, frame: pl.DataFrame, minor_units: Mapping[str, int], quarantine_h: float
) -> Iterator[RowsInState]:
    operation = load_operation(batch.operation)
    for state in (*_ATTENTION_STATES, State.READY.value):
        rows_in_state = _select_rows(frame, state, MAX_SHOWN_ROWS, minor_units)
        if rows_in_state.count:
            rows = [row["row"] for row in rows_in_state.rows]
            step = state_step(state, batch, operation, first_row=rows[0])
            is_ready = state == State.READY
            steps = {} if is_ready else next_steps(journal, batch, rows, verb=operation.verb, quarantine_h=quarantine_h)
            yield replace(rows_in_state, step=step, row_steps=steps)


def _build_charts(frame: pl.DataFrame, history: Sequence[HistoryEntry]) -> Sequence[Chart]:
    # If a person decided on a row, its last change is that decision and not a gateway response.
    decided_rows = [action.row for action in history if action.row is not None]
    charts = (outcome_chart(frame), latency_chart(frame.filter(~pl.col("row").is_in(decided_rows))))
    return [chart for chart in charts if chart is not None]
