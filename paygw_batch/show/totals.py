"""Counts and sums the rows of a sheet exactly, by country, currency and state."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType

import polars as pl

from paygw_batch.core.shown_states import INVALID, STATES
from paygw_batch.sheet.amounts import readable_amount

STATE_COLOURS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "in_doubt": ("#FFE699", "#6B5100"),
        "rejected": ("#F8CBAD", "#833C0B"),
        "returned": ("#F4B0B0", "#7B1F1F"),
        "invalid": ("#E4D0EE", "#5B2C6F"),
        "ready": ("#CFE2F3", "#1F4E78"),
        "in_flight": ("#9FC5E8", "#0B3954"),
        "accepted": ("#E2F0D9", "#385723"),
        "paid": ("#A9D18E", "#274E13"),
    }
)
"""The fill and ink colours of each state on white, readable in greyscale. States that need a person come first."""


_KEYS = ("country", "currency", "state")
_ROWS_AT_ONCE = 100_000
"""The number of rows that are counted at a time. It is limited because exact decimals take much memory."""


@dataclass(frozen=True, slots=True)
class BatchTotals:
    """Counts and sums of the rows of a sheet.

    `states` are the counts by state, and `totals` the sums as text by currency and state. Each of `lines` has country,
    currency, state, count, and the sum as text. The sum is empty for invalid rows, whose amounts may be unreadable.
    """

    states: Mapping[str, int]
    totals: Mapping[str, Mapping[str, str]]
    lines: tuple[tuple[str, str, str, int, str], ...]


@dataclass(frozen=True, slots=True)
class CurrencyTotals:
    """The number and the sum of the rows of one currency that are to be paid.

    Each of `states` has a state, its number of rows, and their sum as text. States that need a person come first.
    Invalid rows come last, and are in no sum.
    """

    currency: str
    rows: int
    sum: str
    states: Sequence[tuple[str, int, str]]


def by_currency(books: BatchTotals) -> Sequence[CurrencyTotals]:
    """Return the totals of each currency over all countries. Rows without a currency come last."""
    counts: dict[str, dict[str, int]] = {}
    sums: dict[str, dict[str, Decimal]] = {}
    for _, currency, state, count, amount in books.lines:
        of_state, money = counts.setdefault(currency, {}), sums.setdefault(currency, {})
        of_state[state] = of_state.get(state, 0) + count
        if state != INVALID:
            money[state] = money.get(state, Decimal(0)) + Decimal(amount)
    return [
        CurrencyTotals(
            currency,
            sum(counts[currency][state] for state in money),
            f"{sum(money.values(), Decimal(0)):f}",
            [
                (state, counts[currency][state], f"{money[state]:f}" if state in money else "")
                for state in sorted(STATE_COLOURS, key=INVALID.__eq__)
                if state in counts[currency]
            ],
        )
        for currency, money in sorted(sums.items(), key=lambda item: (not item[0], item[0]))
    ]


class RunningTotals:
    """Exact counts and sums of the rows of frames that pass through `counting`."""

    def __init__(self, minor_units: Mapping[str, int]) -> None:
        self._minor_units = minor_units
        self._parts: list[pl.DataFrame] = []

    def counting(self, pieces: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
        """Yield the frames unchanged, and count their rows.

        A frame needs the columns `country, currency, amount, state`. An unreadable amount adds nothing to a sum.
        """
        for piece in pieces:
            self._parts += (
                rows.group_by(_KEYS).agg(count=pl.len(), sum=readable_amount("amount").sum())
                for rows in piece.select(*_KEYS, "amount").iter_slices(_ROWS_AT_ONCE)
            )
            yield piece

    def books(self) -> BatchTotals:
        return _books(pl.concat(self._parts), self._minor_units)


def books(frame: pl.DataFrame, minor_units: Mapping[str, int]) -> BatchTotals:
    return books_of_pieces([frame], minor_units)


def books_of_pieces(pieces: Iterable[pl.DataFrame], minor_units: Mapping[str, int]) -> BatchTotals:
    """Return the totals of frames, as `RunningTotals` counts them, without keeping any frame."""
    counter = RunningTotals(minor_units)
    deque(counter.counting(pieces), maxlen=0)
    return counter.books()


def totals_of_sheet(counts: pl.DataFrame, minor_units: Mapping[str, int]) -> BatchTotals:
    """Return the totals of a sheet that was not submitted, from its `Validated.counts`."""
    state = pl.when("valid").then(pl.lit("ready")).otherwise(pl.lit(INVALID))
    return _books(counts.select("country", "currency", "count", "sum", state=state), minor_units)


def _books(parts: pl.DataFrame, minor_units: Mapping[str, int]) -> BatchTotals:
    groups = parts.group_by(_KEYS).sum().sort(_KEYS, nulls_last=True)
    states = dict.fromkeys(STATES, 0)
    sums: dict[str, dict[str, Decimal]] = {}
    lines = []
    for country, currency, state, count, amount in groups.iter_rows():
        states[state] += count
        if currency:
            of_currency = sums.setdefault(currency, {})
            of_currency[state] = of_currency.get(state, Decimal(0)) + amount
        sum_text = "" if state == INVALID else money_text(amount, minor_units.get(currency))
        lines.append((country or "", currency or "", state, count, sum_text))
    totals = {
        currency: {state: money_text(amount, minor_units.get(currency)) for state, amount in by_state.items()}
        for currency, by_state in sorted(sums.items())
    }
    return BatchTotals({state: count for state, count in states.items() if count}, totals, tuple(lines))


def money_text(amount: Decimal, minor_units: int | None) -> str:
    """Return an amount as text with the decimals of its currency, or with more if it needs them."""
    if minor_units is not None and amount == (rounded := round(amount, minor_units)):
        return format(rounded, "f")
    return format(amount.normalize(), "f")
