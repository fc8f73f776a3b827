"""Counts and sums the rows of a sheet exactly, by country, currency and state."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType

import polars as pl

from paygw_batch.core.shown_states import HELD, INVALID, STATES
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
"""Fill and text colours of each state, distinct in greyscale. States that need attention come first."""
_GROUP_COLUMNS = ("country", "currency", "state")
_CHUNK_ROWS = 100_000
"""Number of rows counted at a time. It is limited because exact decimals use a lot of memory."""


@dataclass(frozen=True, slots=True)
class BatchTotals:
    """Counts and sums of a sheet's rows.

    `states` holds counts by state, and `totals` sums by currency and state, as text. Each of `lines` is (country,
    currency, state, count, sum as text). Invalid rows have no sum, because their amounts may be unreadable.
    """

    states: Mapping[str, int]
    totals: Mapping[str, Mapping[str, str]]
    lines: tuple[tuple[str, str, str, int, str], ...]


@dataclass(frozen=True, slots=True)
class CurrencyTotals:
    """The number of rows to be paid in a currency, and their sum.

    Each of `states` is (state, number of rows, sum as text). States that need attention come first. Invalid rows come
    last, and are not part of any sum.
    """

    currency: str
    rows: int
    sum: str
    states: Sequence[tuple[str, int, str]]


def group_by_currency(batch_totals: BatchTotals) -> Sequence[CurrencyTotals]:
    """Add up each currency's totals across all countries. Rows without a currency come last."""
    counts: dict[str, dict[str, int]] = {}
    sums: dict[str, dict[str, Decimal]] = {}
    for _, currency, state, count, amount in batch_totals.lines:
        state_counts, state_sums = counts.setdefault(currency, {}), sums.setdefault(currency, {})
        state_counts[state] = state_counts.get(state, 0) + count
        if state != INVALID:
            state_sums[state] = state_sums.get(state, Decimal(0)) + Decimal(amount)
    return [
        CurrencyTotals(
            currency,
            sum(counts[currency][state] for state in state_sums),
            f"{sum(state_sums.values(), Decimal(0)):f}",
            [
                (state, counts[currency][state], f"{state_sums[state]:f}" if state in state_sums else "")
                for state in sorted(STATE_COLOURS, key=INVALID.__eq__)
                if state in counts[currency]
            ],
        )
        for currency, state_sums in sorted(sums.items(), key=lambda item: (not item[0], item[0]))
    ]


class RunningTotals:
    """Counts and adds up the rows that pass through `count_rows`."""

    def __init__(self, minor_units: Mapping[str, int]) -> None:
        self._minor_units = minor_units
        self._parts: list[pl.DataFrame] = []

    def count_rows(self, pieces: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
        """Yield `pieces` unchanged while counting their rows. Unreadable amounts are left out of the sums."""
        for piece in pieces:
            self._parts += (
                rows.group_by(_GROUP_COLUMNS).agg(count=pl.len(), sum=readable_amount("amount").sum())
                for rows in piece.select(*_GROUP_COLUMNS, "amount").iter_slices(_CHUNK_ROWS)
            )
            yield piece

    def batch_totals(self) -> BatchTotals:
        return _build_totals(pl.concat(self._parts), self._minor_units)


def batch_totals(frame: pl.DataFrame, minor_units: Mapping[str, int]) -> BatchTotals:
    return sum_pieces([frame], minor_units)


def sum_pieces(pieces: Iterable[pl.DataFrame], minor_units: Mapping[str, int]) -> BatchTotals:
    """Return the totals of all `pieces`, without keeping them in memory."""
    running_totals = RunningTotals(minor_units)
    deque(running_totals.count_rows(pieces), maxlen=0)
    return running_totals.batch_totals()


def sheet_totals(counts: pl.DataFrame, minor_units: Mapping[str, int]) -> BatchTotals:
    """Return the totals of an unsubmitted sheet, from its `Validated.counts`."""
    state = pl.when("valid").then(pl.lit("ready")).otherwise(pl.lit(INVALID))
    return _build_totals(counts.select("country", "currency", "count", "sum", state=state), minor_units)


def _build_totals(parts: pl.DataFrame, minor_units: Mapping[str, int]) -> BatchTotals:
    groups = parts.group_by(_GROUP_COLUMNS).sum().sort(_GROUP_COLUMNS, nulls_last=True)
    states = dict.fromkeys((*STATES, HELD), 0)
    sums: dict[str, dict[str, Decimal]] = {}
    lines = []
    for country, currency, state, count, amount in groups.iter_rows():
        states[state] += count
        if currency:
            currency_sums = sums.setdefault(currency, {})
            currency_sums[state] = currency_sums.get(state, Decimal(0)) + amount
        sum_text = "" if state == INVALID else amount_text(amount, minor_units.get(currency))
        lines.append((country or "", currency or "", state, count, sum_text))
    totals = {
        currency: {state: amount_text(amount, minor_units.get(currency)) for state, amount in state_sums.items()}
        for currency, state_sums in sorted(sums.items())
    }
    return BatchTotals({state: count for state, count in states.items() if count}, totals, tuple(lines))


def amount_text(amount: Decimal, minor_units: int | None) -> str:
    """Format an amount with its currency's decimals, or with more if needed."""
    if minor_units is not None and amount == (rounded := round(amount, minor_units)):
        return format(rounded, "f")
    return format(amount.normalize(), "f")
