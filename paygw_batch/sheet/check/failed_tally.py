"""Counts the values that failed checks piece by piece, and explains them."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import polars as pl

from paygw_batch.errors import InternalError
from paygw_batch.sheet.check.checks import ColumnCheck
from paygw_batch.sheet.findings import EXAMPLES, KIND_SCHEMA, LISTED, BuiltOnUse, Findings, few_of, in_order, summed
from paygw_batch.sheet.model import defects_of, no_defects
from paygw_batch.sheet.read.frame import copied, rows_of

MAX_KEPT = 250_000
"""The maximum number of failed values kept. Of more, only their counts and the first ones are."""

LITTLE = 10_000
"""The number of failed values explained at once: to explain the first ones alone would cost as much."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Rows of one country that fail a check: no more of them than its reasons look at.

    `place` is the check's among those of the country: defects of one value are in this order.
    """

    country: str
    place: int
    check: ColumnCheck
    rows: pl.DataFrame


@dataclass(slots=True)
class _Group:
    """Holds the rows that failed one check. By the place of the reason: `counts`, and `first` rows."""

    check: ColumnCheck
    waiting: list[pl.DataFrame] = field(default_factory=list)
    counts: Counter[int] = field(default_factory=Counter)
    first: dict[int, pl.DataFrame] = field(default_factory=dict)

    def count(self) -> None:
        """Count the rows that wait."""
        if not self.waiting:
            return
        rows = pl.concat(self.waiting).rechunk()
        if not rows["row"].is_sorted():
            rows = rows.sort("row")
        places = _places(rows, self.check)
        for at in places.unique().sort():
            these = (places == at).arg_true()
            self.counts[at] += these.len()
            kept = self.first.get(at, rows.clear())
            if kept.height < LISTED:
                self.first[at] = pl.concat([kept, copied(rows[these.head(LISTED - kept.height)])])


class FailedTally:
    """Counts values that failed checks. All of them are kept while they are few, then the first of each reason."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, int], _Group] = {}
        self._kept = 0
        self.is_whole = True
        """Whether all of them are kept."""

    def add(self, failed: Iterable[Failed]) -> None:
        """Count in the values that failed in the next piece."""
        for one in failed:
            self._groups.setdefault((one.country, one.place), _Group(one.check)).waiting.append(one.rows)
            self._kept += one.rows.height
        if self._kept > MAX_KEPT:
            self.is_whole, self._kept = False, 0
            self._count()

    def _count(self) -> None:
        for group in self._groups.values():
            group.count()
            if not self.is_whole:
                group.waiting = []

    def findings(self, rows: pl.Series, again: Callable[[], pl.DataFrame]) -> Findings:
        """Return the findings, when there are no further pieces: in these rows.

        `again` goes through the sheet once more and returns all of them, in no order.
        """
        self._count()
        every = BuiltOnUse(lambda: in_order(self._every() if self.is_whole else again()))
        is_little = self.is_whole and self._kept <= LITTLE
        few = BuiltOnUse(lambda: few_of(every.frame)) if is_little else BuiltOnUse(self._few)
        return Findings(self._counts, rows, few, every)

    @property
    def _counts(self) -> pl.DataFrame:
        lines = [
            (group.check.reasons[at].code, count, True)
            for group in self._groups.values()
            for at, count in group.counts.items()
        ]
        return summed([pl.DataFrame(lines, schema=KIND_SCHEMA, orient="row")])

    def _few(self) -> pl.DataFrame:
        """Explain the first ones of all, and the first ones of each code."""
        if not self._groups:
            return no_defects()
        numbers = pl.concat(part["row"] for group in self._groups.values() for part in group.first.values())
        last = numbers.sort().head(LISTED)[-1]
        is_early = (pl.col("row") <= last) | (pl.int_range(pl.len()) < EXAMPLES)
        found = [
            _defects(rows.filter(is_early).rechunk(), group.check, at)
            for _, group in sorted(self._groups.items(), key=lambda one: one[0])
            for at, rows in group.first.items()
        ]
        return few_of(in_order(pl.concat([no_defects(), *found])))

    def _every(self) -> pl.DataFrame:
        return explained(
            Failed(country, place, group.check, rows)
            for (country, place), group in self._groups.items()
            for rows in group.waiting
        )


def explained(failed: Iterable[Failed]) -> pl.DataFrame:
    """Return the defects of rows that failed a check, in no order. Raises `InternalError` for a row without a reason.

    Rows of all pieces together: the same few reasons asked of many small frames would cost more than all the rest.
    """
    groups: dict[tuple[str, int], list[Failed]] = defaultdict(list)
    for one in failed:
        groups[one.country, one.place].append(one)
    found = [
        _defects(rows, group[0].check, at)
        for _, group in sorted(groups.items(), key=lambda one: one[0])
        for at, rows in _by_reason(pl.concat(one.rows for one in group).rechunk(), group[0].check)
    ]
    return pl.concat([no_defects(), *found])


def rows_failed(failed: Sequence[Failed]) -> pl.Series:
    """Return the numbers of the rows that failed a check, each once and in order."""
    rows = [one.rows["row"] for one in failed]
    return pl.concat([pl.Series("row", [], pl.UInt32), *rows]).unique().sort()


def _by_reason(rows: pl.DataFrame, check: ColumnCheck) -> Iterator[tuple[int, pl.DataFrame]]:
    places = _places(rows, check)
    for at in places.unique().sort():
        yield at, rows_of(rows, places == at)


def _places(rows: pl.DataFrame, check: ColumnCheck) -> pl.Series:
    """Return the place of the first reason that applies to each row."""
    first = pl.coalesce(pl.when(reason.applies).then(pl.lit(at)) for at, reason in enumerate(check.reasons))
    places = rows.select("row", place=first)["place"]  # beside the row: a reason may be the same for all
    if places.null_count():
        raise InternalError(f"{places.null_count()} rows are wrong in {check.column}, and no reason for it applies")
    return places


def _defects(rows: pl.DataFrame, check: ColumnCheck, at: int) -> pl.DataFrame:
    reason = check.reasons[at]
    return defects_of(rows, check.column, reason.code, reason.message, correction=reason.correction)
