"""Collects the defects or warnings of a sheet: counts, the first findings, and all findings on demand."""

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

`message` is for people; no program reads it. `correction` is the only valid replacement. An empty correction clears
the cell, and null means that there is no correction.
"""
_WITH_SHARED_EXPRESSIONS = pl.QueryOptFlags.none().update(comm_subexpr_elim=True)
NO_CORRECTION = pl.lit(None, dtype=pl.String)
MAX_SHOWN_CHARACTERS = 60
"""The maximum length of a value in a message. Longer values are shortened."""


def empty_findings() -> pl.DataFrame:
    return pl.DataFrame(schema=DEFECT_SCHEMA)


def build_findings(rows: Iterable[tuple[int, str, str | None, str, str]]) -> pl.DataFrame:
    """Build findings without corrections from tuples in the order of `DEFECT_SCHEMA`."""
    schema = {name: dtype for name, dtype in DEFECT_SCHEMA.items() if name != "correction"}
    return pl.DataFrame(list(rows), schema=schema, orient="row").with_columns(correction=NO_CORRECTION)


def findings_for_rows(
    rows: pl.DataFrame,
    column: str,
    code: str,
    message: pl.Expr,
    value: pl.Expr | None = None,
    correction: pl.Expr = NO_CORRECTION,
) -> pl.DataFrame:
    """Return one finding for each row, with the value in `column` unless `value` is given."""
    if not rows.height:
        return empty_findings()
    shown_value = shortened_value(column) if value is None else value
    # A message may use one expression many times. A lazy frame computes it once.
    findings = rows.lazy().select(
        "row", column=pl.lit(column), value=shown_value, code=pl.lit(code), message=message, correction=correction
    )
    return findings.collect(optimizations=_WITH_SHARED_EXPRESSIONS).match_to_schema(DEFECT_SCHEMA)


def build_message(template: str, /, **parts: pl.Expr | str | int) -> pl.Expr:
    """Build a translated message as an expression. Each of `parts` is a constant, or an expression over rows."""
    pieces: list[pl.Expr] = []
    for literal, name, _, _ in Formatter().parse(say(template)):
        if literal:
            pieces.append(pl.lit(literal))
        if name is not None:
            part = parts[name]
            pieces.append(part if isinstance(part, pl.Expr) else pl.lit(str(part)))
    return pl.concat_str(pieces)


def shortened_value(column: str) -> pl.Expr:
    """Return the values in a column, shortened to `MAX_SHOWN_CHARACTERS`."""
    text = pl.col(column)
    shortened = pl.concat_str(text.str.slice(0, MAX_SHOWN_CHARACTERS), pl.lit("..."))
    return pl.when(text.str.len_chars() > MAX_SHOWN_CHARACTERS).then(shortened).otherwise(text)


class DeferredFrame:
    """A frame that is built on first use. Most callers of `validate` need only some of its frames."""

    def __init__(self, build: Callable[[], pl.DataFrame]) -> None:
        self._build = build

    @cached_property
    def frame(self) -> pl.DataFrame:
        return self._build()


MAX_LISTED = 1000
"""`Findings.sample` includes this many of the first findings."""
EXAMPLES_PER_CODE = 3
"""`Findings.sample` includes this many of the first findings with each code."""
COUNT_SCHEMA = {"code": pl.String(), "count": pl.UInt32(), "concerns_rows": pl.Boolean()}


@dataclass(frozen=True, slots=True)
class Findings:
    """All defects or all warnings of a sheet (`DEFECT_SCHEMA`), ordered by row.

    - `counts`: the number of findings with each code (`COUNT_SCHEMA`), and whether any of them concerns a single row.
    - `rows`: the numbers of the rows with a finding.
    - `sample`: the first `MAX_LISTED` findings and the first `EXAMPLES_PER_CODE` with each code, computed on first use.
    - `all_findings`: all findings. For a large sheet, this checks the sheet again.
    """

    counts: pl.DataFrame
    rows: pl.Series
    sample: DeferredFrame
    all_findings: DeferredFrame

    @classmethod
    def from_frame(cls, frame: pl.DataFrame) -> "Findings":
        """Create findings from a complete frame, ordered by row."""
        rows = frame["row"].unique(maintain_order=True)
        return cls(_tally(frame), rows, DeferredFrame(lambda: sample_findings(frame)), DeferredFrame(lambda: frame))

    @property
    def is_empty(self) -> bool:
        return self.counts.is_empty()

    @property
    def first(self) -> pl.DataFrame:
        """The first `MAX_LISTED` findings."""
        return self.sample.frame.head(MAX_LISTED)

    def sorted_counts(self) -> pl.DataFrame:
        """Return `counts` with the most frequent codes first. Ties are ordered by their first rows."""
        codes = self.sample.frame.select(pl.col("code").unique(maintain_order=True))
        ordered = codes.join(self.counts, on="code", how="left", maintain_order="left")
        return ordered.sort("count", descending=True, maintain_order=True)

    def examples(self, code: str) -> pl.DataFrame:
        return self.sample.frame.filter(pl.col("code") == code).head(EXAMPLES_PER_CODE)

    def with_findings(self, added: pl.DataFrame, *, added_first: bool = False) -> "Findings":
        """Return these findings and `added`, by row. For the same value, `added` comes last unless `added_first`."""
        return self._combine(added, lambda old: sort_findings(pl.concat([added, old] if added_first else [old, added])))

    def with_sheet_findings(self, sheet_findings: pl.DataFrame) -> "Findings":
        """Return these findings, with findings about the whole sheet before them."""
        return self._combine(sheet_findings, lambda old: pl.concat([sheet_findings, old]))

    def _combine(self, added: pl.DataFrame, merge: Callable[[pl.DataFrame], pl.DataFrame]) -> "Findings":
        if added.is_empty():
            return self
        sample, all_findings = self.sample, self.all_findings
        return Findings(
            sum_counts([self.counts, _tally(added)]),
            pl.concat([self.rows, added["row"]]).unique(),
            DeferredFrame(lambda: sample_findings(merge(sample.frame))),
            DeferredFrame(lambda: merge(all_findings.frame)),
        )


def sample_findings(findings: pl.DataFrame) -> pl.DataFrame:
    """Return the first `MAX_LISTED` of sorted findings, and the first `EXAMPLES_PER_CODE` with each code."""
    if findings.height <= MAX_LISTED:
        return findings
    is_example = pl.int_range(pl.len()).over("code") < EXAMPLES_PER_CODE
    return findings.filter((pl.int_range(pl.len()) < MAX_LISTED) | is_example)


def sum_counts(counts: list[pl.DataFrame]) -> pl.DataFrame:
    by_code = pl.concat([pl.DataFrame(schema=COUNT_SCHEMA), *counts]).group_by("code", maintain_order=True)
    return by_code.agg(pl.col("count").sum(), pl.col("concerns_rows").any())


def _tally(findings: pl.DataFrame) -> pl.DataFrame:
    return findings.group_by("code", maintain_order=True).agg(count=pl.len(), concerns_rows=(pl.col("row") > 0).any())


def sort_findings(findings: pl.DataFrame) -> pl.DataFrame:
    """Sort findings by row, then by column. Findings about the whole row come first."""
    ranks = {name: rank for rank, name in enumerate(known_columns())}
    rank = pl.col("column").replace_strict(ranks, default=-1, return_dtype=pl.Int32)
    return findings.with_columns(rank=rank).sort("row", "rank", maintain_order=True).drop("rank")


def format_row_ranges(row_numbers: Iterable[int]) -> str:
    """Format sorted row numbers as ranges, such as `2-31 40`."""
    ranges: list[list[int]] = []
    for row in row_numbers:
        if ranges and ranges[-1][1] == row - 1:
            ranges[-1][1] = row
        else:
            ranges.append([row, row])
    return " ".join(f"{first}-{last}" if last > first else str(first) for first, last in ranges)


def append_row_numbers(message: str, rows: pl.Series) -> str:
    """Append row numbers to the message of a finding about the whole sheet."""
    return say_count(
        rows.len(),
        "{message} ({count:,} row: {rows})",
        "{message} ({count:,} rows: {rows})",
        message=message,
        rows=format_row_ranges(rows).replace(" ", ", "),
    )


def summary_findings(findings: Findings, headings: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the first findings for a JSON summary. `headings` maps columns to the sender's headings."""
    lines = findings.first.select("row", "column", "value", "code", "message").to_dicts()
    return [{**line, "heading": headings.get(line["column"], line["column"])} for line in lines]


def warning_summary(warnings: Findings, headings: Mapping[str, str]) -> dict[str, Any]:
    """Return the number of rows with a warning and the first warnings, for a JSON summary."""
    return {"warnings": warnings.rows.len(), "warning_list": summary_findings(warnings, headings)}
