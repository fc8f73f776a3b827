"""Writes the reconciliation as one HTML page: no script, no other file, nothing fetched.

Made from the same frame as the CSV, and like it a pure function of sheet and journal. It shows payees, so it is for the
same eyes as the reconciliation itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

import polars as pl

from paygw_batch.journal import BatchRecord
from paygw_batch.report.bar_chart import Bar, bar_chart
from paygw_batch.report.colours import STATE_COLOURS
from paygw_batch.report.totals import BatchTotals

SHOWN_ROWS = 500
"""How many rows that need a person are listed; the reconciliation file has all of them."""
TIME_BARS = 38
PERSON_STATES = ("in_doubt", "rejected", "returned", "invalid")
LATENCY_STEPS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 60_000)

_TIME = "%Y-%m-%dT%H:%M:%S%.3fZ"
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; margin: 2rem auto; max-width: 68rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p.about { color: #595959; margin-top: .2rem; }
.tiles { display: flex; flex-wrap: wrap; gap: .6rem; margin: 1rem 0; }
.tile { border-radius: .4rem; padding: .5rem .9rem; min-width: 7rem; }
.tile b { display: block; font-size: 1.5rem; } .tile small { display: block; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .6rem; vertical-align: top; }
th { border-bottom: 2px solid #999; } td { border-bottom: 1px solid #e4e4e4; overflow-wrap: break-word; }
td.number, th.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
span.state { border-radius: .25rem; padding: .05rem .4rem; white-space: nowrap; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: #595959; } svg .scale { stroke: #ddd; }
@media print { body { margin: 0; max-width: none; } .tile, span.state { print-color-adjust: exact; } }
"""


def report_html(frame: pl.DataFrame, books: BatchTotals, batch: BatchRecord) -> str:
    """Return the page for a reconciliation frame and its books."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        '<meta name="viewport" content="width=device-width">',
        f"<title>{escape(batch.sheet_name)}: reconciliation</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(batch.sheet_name)}</h1>",
        f'<p class="about">Batch {escape(batch.batch)}, {batch.rows:,} rows, opened {escape(batch.opened_at)}.</p>',
        _tiles(books),
        _needs_person(frame),
        _totals(books),
        _over_time(frame),
        _latency(frame),
        "</body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _tiles(books: BatchTotals) -> str:
    tiles = []
    for state in STATE_COLOURS:
        count = books.states.get(state, 0)
        if not count:
            continue
        fill, ink = STATE_COLOURS[state]
        sums = "".join(
            f"<small>{escape(currency)} {escape(by_state[state])}</small>"
            for currency, by_state in books.totals.items()
            if state in by_state
        )
        colours = f"background:{fill};color:{ink}"
        tiles.append(f'<div class="tile" style="{colours}"><b>{count:,}</b>{_words(state)}{sums}</div>')
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _needs_person(frame: pl.DataFrame) -> str:
    """Return the rows that need a person, those in doubt first, then in the sheet's order."""
    order = {state: place for place, state in enumerate(PERSON_STATES)}
    found = frame.filter(pl.col("state").is_in(PERSON_STATES)).sort(
        pl.col("state").replace_strict(order, return_dtype=pl.Int8), "row"
    )
    if found.is_empty():
        return "<h2>Rows that need a person</h2><p>None.</p>"
    columns = ("row", "client_orderid", "account_name", "currency", "amount", "state", "error_code", "message")
    lines = [
        (row, order_id, name, f"{currency or ''} {amount or ''}", _state(state), error_code, message)
        for row, order_id, name, currency, amount, state, error_code, message in found.head(SHOWN_ROWS)
        .select(columns)
        .iter_rows()
    ]
    more = found.height - SHOWN_ROWS
    told = f"<p>... and {more:,} more: the reconciliation file has all of them.</p>" if more > 0 else ""
    headings = ("row", "order id", "payee", "amount", "state", "code", "what is known")
    return f"<h2>Rows that need a person: {found.height:,}</h2>{_table(headings, lines, right={0, 3})}{told}"


def _totals(books: BatchTotals) -> str:
    lines = [
        (country, currency, _state(state), f"{count:,}", amount)
        for country, currency, state, count, amount in books.lines
    ]
    headings = ("country", "currency", "state", "rows", "sum")
    return f"<h2>Totals by country and state</h2>{_table(headings, lines, right={3, 4})}"


def _over_time(frame: pl.DataFrame) -> str:
    """Return a chart of the times at which rows reached their state, in bars of equal time."""
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
    bars = [Bar("", _parts(counts.get(number, {}))) for number in range(max(counts) + 1)]
    pattern = "%H:%M:%S" if begin.date() == end.date() else "%d %b %H:%M"
    told = f"From {begin.strftime(pattern)} to {end.strftime(pattern)} UTC; a bar is {_duration(width_ms)}."
    return f"<h2>Outcomes over time</h2><p>{told}</p>{bar_chart('Outcomes over time', bars)}"


def _latency(frame: pl.DataFrame) -> str:
    """Return how long the gateway's answers took, for rows it answered at the first attempt."""
    answered = frame.filter(
        (pl.col("attempts") == 1)
        & pl.col("gateway_status").is_not_null()
        & ~pl.col("message").fill_null("").str.contains(r"^(?:Resolved as|Released for) ")
    )
    sent, told = (pl.col(name).str.to_datetime(_TIME, time_zone="UTC") for name in ("first_sent_at", "updated_at"))
    taken = answered.select(ms=(told - sent).dt.total_milliseconds()).drop_nulls()["ms"]
    if taken.is_empty():
        return ""
    places = pl.Series(LATENCY_STEPS_MS).search_sorted(taken, side="right")
    counts: dict[int, int] = dict(places.value_counts().iter_rows())
    fill = STATE_COLOURS["ready"][0]
    bars = [
        Bar(_band(place), [(_band(place), counts.get(place, 0), fill)]) for place in range(min(counts), max(counts) + 1)
    ]
    marks = ", ".join(
        f"{share:.0%} within {_duration(int(taken.quantile(share, 'higher') or 0))}" for share in (0.5, 0.95, 0.99)
    )
    chart = bar_chart("Latency of answers", bars)
    return f"<h2>Latency</h2><p>From the intent to the recorded answer: {marks}.</p>{chart}"


def _band(place: int) -> str:
    """Return the name of the latencies between two steps."""
    if place == len(LATENCY_STEPS_MS):
        return f"from {_duration(LATENCY_STEPS_MS[-1])}"
    return f"< {_duration(LATENCY_STEPS_MS[place])}"


def _parts(counts: Mapping[str, int]) -> list[tuple[str, int, str]]:
    """Return the parts of a bar: paid at the bottom, what needs a person on top."""
    return [(_words(state), counts.get(state, 0), fill) for state, (fill, _) in reversed(list(STATE_COLOURS.items()))]


def _duration(ms: int) -> str:
    if ms < 1000:  # noqa: PLR2004 (milliseconds in a second)
        return f"{ms} ms"
    seconds = ms / 1000
    return f"{seconds:g} s" if seconds < 120 else f"{seconds / 60:.0f} min"  # noqa: PLR2004 (from two minutes on)


class _Markup(str):
    """Text that is HTML already; every other text is escaped."""

    __slots__ = ()


def _state(state: str) -> _Markup:
    fill, ink = STATE_COLOURS[state]
    return _Markup(f'<span class="state" style="background:{fill};color:{ink}">{_words(state)}</span>')


def _words(state: str) -> str:
    return escape(state.replace("_", " "))


def _table(headings: Sequence[str], lines: Iterable[Sequence[object]], *, right: set[int]) -> str:
    def cell(tag: str, place: int, content: object) -> str:
        kept = content if isinstance(content, _Markup) else escape("" if content is None else str(content))
        number = ' class="number"' if place in right else ""
        return f"<{tag}{number}>{kept}</{tag}>"

    head = "".join(cell("th", place, heading) for place, heading in enumerate(headings))
    body = "\n".join(
        f"<tr>{''.join(cell('td', place, content) for place, content in enumerate(line))}</tr>" for line in lines
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
