"""Holds the defects or the warnings of a sheet: their counts, the first findings, and all findings on demand."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from string import Formatter
from typing import Any

import polars as pl

from paygw_batch.language import say, say_count
from paygw_batch.sheet.columns import known_columns

DEFECT_SCHEMA: Mapping[str, pl.DataType] = {
    "row": pl.UInt32(),
    "column": pl.String(),
    "value": pl.String(),
    "code": pl.String(),
    "message": pl.String(),
    "correction": pl.String(),
}
"""The columns of every frame of defects or warnings.

`message` is for people, and no program reads it. `correction` is the only text that would be right. An empty correction
empties the cell, and null says that there is no correction.
"""

_SHARED = pl.QueryOptFlags.none().update(comm_subexpr_elim=True)

NO_CORRECTION = pl.lit(None, dtype=pl.String)

SHOWN_CHARACTERS = 60
"""Values that are shown are cut at this length."""


def no_defects() -> pl.DataFrame:
    return pl.DataFrame(schema=DEFECT_SCHEMA)


def as_defects(lines: Iterable[tuple[int, str, str | None, str, str]]) -> pl.DataFrame:
    """Return a frame of defects or warnings without corrections, from lines in the order of `DEFECT_SCHEMA`."""
    schema = {name: dtype for name, dtype in DEFECT_SCHEMA.items() if name != "correction"}
    return pl.DataFrame(list(lines), schema=schema, orient="row").with_columns(correction=NO_CORRECTION)


def defects_of(
    rows: pl.DataFrame,
    column: str,
    code: str,
    message: pl.Expr,
    value: pl.Expr | None = None,
    correction: pl.Expr = NO_CORRECTION,
) -> pl.DataFrame:
    """Return one defect or warning for each of `rows`. Its value is the column's value, unless `value` is given."""
    if not rows.height:
        return no_defects()
    text = shown(column) if value is None else value
    # Some sentences use an expression many times. A lazy frame computes it once.
    findings = rows.lazy().select(
        "row", column=pl.lit(column), value=text, code=pl.lit(code), message=message, correction=correction
    )
    return findings.collect(optimizations=_SHARED).match_to_schema(DEFECT_SCHEMA)


def worded(template: str, /, **parts: pl.Expr | str | int) -> pl.Expr:
    """Return a sentence in the chosen language.

    Each `{name}` in it is filled row by row; texts and numbers are constants. The template is translated here, once for
    all rows.
    """
    pieces: list[pl.Expr] = []
    for text, name, _, _ in Formatter().parse(say(template)):
        if text:
            pieces.append(pl.lit(text))
        if name is not None:
            part = parts[name]
            pieces.append(part if isinstance(part, pl.Expr) else pl.lit(str(part)))
    return pl.concat_str(pieces)


def shown(column: str) -> pl.Expr:
    """Return a column's values, cut to the length in which a sentence shows them."""
    text = pl.col(column)
    return (
        pl.when(text.str.len_chars() > SHOWN_CHARACTERS)
        .then(pl.concat_str(text.str.slice(0, SHOWN_CHARACTERS), pl.lit("...")))
        .otherwise(text)
    )


class BuiltOnUse:
    """Builds a frame on first use, because `validate` never needs most frames."""

    def __init__(self, make: Callable[[], pl.DataFrame]) -> None:
        self._make = make

    @cached_property
    def frame(self) -> pl.DataFrame:
        return self._make()


LISTED = 1000
"""The number of findings, from the first on, that `Findings.few` has."""
EXAMPLES = 3
"""The number of findings of each code that `Findings.few` has."""

KIND_SCHEMA = {"code": pl.String(), "count": pl.UInt32(), "is_of_rows": pl.Boolean()}


@dataclass(frozen=True, slots=True)
class Findings:
    """The defects or the warnings of a sheet (`DEFECT_SCHEMA`), ordered by row.

    - `counts`: the number of findings of each code (`KIND_SCHEMA`), and whether any is about a row, not the whole
      sheet.
    - `rows`: the numbers of the rows with a finding.
    - `few`: the first `LISTED` findings, and the first `EXAMPLES` of each code, computed on first use.
    - `every`: all findings. For a large sheet, this judges the sheet once more.
    """

    counts: pl.DataFrame
    rows: pl.Series
    few: BuiltOnUse
    every: BuiltOnUse

    @classmethod
    def of(cls, frame: pl.DataFrame) -> "Findings":
        """Return the findings of a frame that has all of them, in their order."""
        rows = frame["row"].unique(maintain_order=True)
        return cls(_counts(frame), rows, BuiltOnUse(lambda: few_of(frame)), BuiltOnUse(lambda: frame))

    @property
    def is_empty(self) -> bool:
        return self.counts.is_empty()

    @property
    def first(self) -> pl.DataFrame:
        """The first `LISTED` findings."""
        return self.few.frame.head(LISTED)

    def kinds(self) -> pl.DataFrame:
        """Return `counts` with frequent codes first. Equally frequent codes are in the order in which they occur."""
        occurring = self.few.frame.select(pl.col("code").unique(maintain_order=True))
        ordered = occurring.join(self.counts, on="code", how="left", maintain_order="left")
        return ordered.sort("count", descending=True, maintain_order=True)

    def examples(self, code: str) -> pl.DataFrame:
        return self.few.frame.filter(pl.col("code") == code).head(EXAMPLES)

    def joined(self, further: pl.DataFrame, *, first: bool = False) -> "Findings":
        """Return these and `further` findings. Within one value, the further ones come last, or `first`."""
        return self._with(further, lambda own: in_order(pl.concat([further, own] if first else [own, further])))

    def after(self, of_sheet: pl.DataFrame) -> "Findings":
        """Return these findings after those of the whole sheet."""
        return self._with(of_sheet, lambda own: pl.concat([of_sheet, own]))

    def _with(self, further: pl.DataFrame, put: Callable[[pl.DataFrame], pl.DataFrame]) -> "Findings":
        if further.is_empty():
            return self
        few, every = self.few, self.every
        return Findings(
            summed([self.counts, _counts(further)]),
            pl.concat([self.rows, further["row"]]).unique(),
            BuiltOnUse(lambda: few_of(put(few.frame))),
            BuiltOnUse(lambda: put(every.frame)),
        )


def few_of(findings: pl.DataFrame) -> pl.DataFrame:
    """Return the first `LISTED` of ordered findings, and the first `EXAMPLES` of each code."""
    if findings.height <= LISTED:
        return findings
    is_example = pl.int_range(pl.len()).over("code") < EXAMPLES
    return findings.filter((pl.int_range(pl.len()) < LISTED) | is_example)


def summed(counts: list[pl.DataFrame]) -> pl.DataFrame:
    return (
        pl.concat([pl.DataFrame(schema=KIND_SCHEMA), *counts])
        .group_by("code", maintain_order=True)
        .agg(pl.col("count").sum(), pl.col("is_of_rows").any())
    )


def _counts(findings: pl.DataFrame) -> pl.DataFrame:
    return findings.group_by("code", maintain_order=True).agg(count=pl.len(), is_of_rows=(pl.col("row") > 0).any())


def in_order(findings: pl.DataFrame) -> pl.DataFrame:
    """Return defects by row, then in the order of columns; a defect of the whole row is first."""
    ranks = {name: rank for rank, name in enumerate(known_columns())}
    rank = pl.col("column").replace_strict(ranks, default=-1, return_dtype=pl.Int32)
    return findings.with_columns(rank=rank).sort("row", "rank", maintain_order=True).drop("rank")


def ranges_of(rows: Iterable[int]) -> str:
    """Return the numbers of rows, which are in order, as ranges: `2-31 40`."""
    ranges: list[list[int]] = []
    for row in rows:
        if ranges and ranges[-1][1] == row - 1:
            ranges[-1][1] = row
        else:
            ranges.append([row, row])
    return " ".join(f"{first}-{last}" if last > first else str(first) for first, last in ranges)


def told_once(message: str, rows: pl.Series) -> str:
    """Return the sentence of a finding at row 0, with the numbers of all its rows."""
    return say_count(
        rows.len(),
        "{message} ({count:,} row: {rows})",
        "{message} ({count:,} rows: {rows})",
        message=message,
        rows=ranges_of(rows).replace(" ", ", "),
    )


def listed(findings: Findings, headings: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the first defects or warnings as they are in the JSON summary.

    `headings` maps each column of the sheet to the sender's own heading.
    """
    lines = findings.first.select("row", "column", "value", "code", "message").to_dicts()
    return [{**line, "heading": headings.get(line["column"], line["column"])} for line in lines]


def warnings_told(warnings: Findings, headings: Mapping[str, str]) -> dict[str, Any]:
    """Return the members of the JSON summary that are about warnings: the number of rows, and the first warnings."""
    return {"warnings": warnings.rows.len(), "warning_list": listed(warnings, headings)}
