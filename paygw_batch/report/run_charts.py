"""Draws outcomes and latency of a run as bar charts, in SVG text: a report must need no script and no other file."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import polars as pl

from paygw_batch.core.recorded_words import RELEASED, RESOLVED
from paygw_batch.language import say
from paygw_batch.report.colours import STATE_COLOURS
from paygw_batch.report.page import paragraph, state_words

TIME_BARS = 38
LATENCY_STEPS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 60_000)
_TIME = "%Y-%m-%dT%H:%M:%S%.3fZ"
WIDTH, HEIGHT = 760, 220
_LEFT, _TOP, _BOTTOM = 56, 12, 34
_GAP = 0.15
"""How much of a bar's place is left empty."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: `label` below it (empty: none), and `parts` stacked from the bottom, each (state, count)."""

    label: str
    parts: Sequence[tuple[str, int]]

    @property
    def count(self) -> int:
        """How high the bar is."""
        return sum(count for _, count in self.parts)


def _bar_chart(title: str, bars: Sequence[Bar]) -> str:
    """Return a bar chart. Every part shows its name and count under the pointer; the title is read aloud."""
    highest = max((bar.count for bar in bars), default=0) or 1
    place = (WIDTH - _LEFT) / max(len(bars), 1)
    drawn = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        *_scale(highest),
        *(element for number, bar in enumerate(bars) for element in _bar(bar, _LEFT + number * place, place, highest)),
        "</svg>",
    ]
    return "\n".join(drawn)


def _scale(highest: int) -> list[str]:
    lines = []
    for count in sorted({0, highest // 2, highest}):
        y = _y(count, highest)
        lines.append(f'<line x1="{_LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}" class="scale"/>')
        lines.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{count:,}</text>')
    return lines


def _bar(bar: Bar, left: float, place: float, highest: int) -> list[str]:
    x, width = left + place * _GAP / 2, place * (1 - _GAP)
    drawn = []
    below = 0
    for state, count in bar.parts:
        if not count:
            continue
        top, bottom = _y(below + count, highest), _y(below, highest)
        below += count
        drawn.append(
            f'<rect x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{bottom - top:.1f}" class="{state}">'
            f"<title>{state_words(state)}: {count:,}</title></rect>"
        )
    if bar.label:
        middle = left + place / 2
        drawn.append(f'<text x="{middle:.1f}" y="{HEIGHT - 12}" text-anchor="middle">{escape(bar.label)}</text>')
    return drawn


def _y(count: int, highest: int) -> float:
    return HEIGHT - _BOTTOM - (HEIGHT - _BOTTOM - _TOP) * count / highest


def outcomes_over_time(frame: pl.DataFrame) -> str:
    """Return a chart of the times at which rows reached their state, in bars of equal time.

    What needs a person is on top of a bar.
    """
    moved = frame.filter(pl.col("updated_at").is_not_null() & (pl.col("attempts") > 0)).select(
        "state", at=pl.col("updated_at").str.to_datetime(_TIME, time_zone="UTC")
    )
    if moved.is_empty():
        return ""
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
    told = say(
        "From {begin} to {end} UTC; a bar is {width}.",
        begin=begin.strftime(pattern),
        end=end.strftime(pattern),
        width=_duration(width_ms),
    )
    title = say("Outcomes over time")
    return f"<h3>{title}</h3>{paragraph(told)}{_bar_chart(title, bars)}"


def latency(frame: pl.DataFrame) -> str:
    """Return how long the gateway's answers took, for rows it answered at the first attempt."""
    answered = frame.filter(
        (pl.col("attempts") == 1)
        & pl.col("gateway_status").is_not_null()
        & ~pl.col("message").fill_null("").str.contains(_by_a_person())
    )
    sent, told = (pl.col(name).str.to_datetime(_TIME, time_zone="UTC") for name in ("first_sent_at", "updated_at"))
    taken = answered.select(ms=(told - sent).dt.total_milliseconds()).drop_nulls()["ms"]
    if taken.is_empty():
        return ""
    places = pl.Series(LATENCY_STEPS_MS).search_sorted(taken, side="right")
    counts: dict[int, int] = dict(places.value_counts().iter_rows())
    bars = [Bar(_band(place), [("ready", counts.get(place, 0))]) for place in range(min(counts), max(counts) + 1)]
    marks = ", ".join(
        say("{share:.0%} within {time}", share=share, time=_duration(int(taken.quantile(share, "higher") or 0)))
        for share in (0.5, 0.95, 0.99)
    )
    chart = _bar_chart(say("Latency of answers"), bars)
    told_marks = say("From the intent to the recorded answer: {marks}.", marks=marks)
    return f"<h3>{say('Latency')}</h3>{paragraph(told_marks)}{chart}"


def _by_a_person() -> str:
    """Return the pattern of the messages about decisions of people."""
    starts = (say(template).partition("{")[0] for template in (*RESOLVED, *RELEASED))
    return f"^(?:{'|'.join(re.escape(start) for start in starts)})"


def _band(place: int) -> str:
    """Return the name of the latencies between two steps."""
    if place == len(LATENCY_STEPS_MS):
        return say("from {time}", time=_duration(LATENCY_STEPS_MS[-1]))
    return f"< {_duration(LATENCY_STEPS_MS[place])}"


def _duration(ms: int) -> str:
    if ms < 1000:  # noqa: PLR2004 (milliseconds in a second)
        return f"{ms} ms"
    seconds = ms / 1000
    return f"{seconds:g} s" if seconds < 120 else f"{seconds / 60:.0f} min"  # noqa: PLR2004 (from two minutes on)
