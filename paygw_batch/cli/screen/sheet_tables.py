"""Shows the defects, warnings and totals of a sheet. The first defects are data as well, for the JSON summary."""

from typing import Any

import polars as pl

from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.screen.terminal import plain
from paygw_batch.language import mark_all, say, say_count
from paygw_batch.report.totals import BatchTotals

EXAMPLES = 3
"""How many rows of each kind of defect are shown in full on a screen."""

LISTED = 1000
"""How many defects, or warnings, the JSON summary lists."""


def listed(found: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the first defects or warnings as the JSON summary has them."""
    return found.head(LISTED).select("row", "column", "value", "code", "message").to_dicts()


def warnings_told(warnings: pl.DataFrame) -> dict[str, Any]:
    """Return the members of the JSON summary about warnings: the number of rows, and the first warnings."""
    return {"warnings": warnings["row"].n_unique(), "warning_list": listed(warnings)}


def show_findings(screen: Screen, title: str, found: pl.DataFrame) -> None:
    """Print defects or warnings by kind: how many, and the first few in full."""
    if found.is_empty():
        return
    console = screen.err if screen.as_json else screen.out
    console.print(plain(title, "bold"))
    kinds = found.group_by("code", maintain_order=True).agg(pl.len()).sort("len", descending=True)
    for code, count in kinds.iter_rows():
        is_about_rows = (found.filter(pl.col("code") == code)["row"] > 0).any()
        rows = say_count(count, "{count:,} row", "{count:,} rows")
        console.print(plain(say("{code}: {rows}", code=code, rows=rows) if is_about_rows else code))
        for row, column, message in (
            found.filter(pl.col("code") == code).head(EXAMPLES).select("row", "column", "message").iter_rows()
        ):
            where = say("Row {row}, {column}", row=row, column=column) if row else say("The sheet")
            console.print(plain("  " + say("{where}: {message}", where=where, message=message)), soft_wrap=True)
        if count > EXAMPLES:
            console.print(plain("  " + say("... and {count:,} more.", count=count - EXAMPLES)))


def show_totals(screen: Screen, totals: BatchTotals) -> None:
    """Print counts and sums by country and state."""
    screen.table("", mark_all("country", "currency", "state", "rows", "sum"), totals.lines)
