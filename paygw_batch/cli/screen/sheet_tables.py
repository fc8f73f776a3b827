"""Shows a sheet's findings and totals, without loading a journal: `validate` needs none."""

from collections.abc import Mapping

from paygw_batch.cli.screen.screen import Screen, plain
from paygw_batch.language import mark_all, say, say_count
from paygw_batch.report.totals import BatchTotals
from paygw_batch.sheet.findings import EXAMPLES, Findings


def show_findings(screen: Screen, title: str, found: Findings, headings: Mapping[str, str]) -> None:
    """Print defects or warnings by kind: their number, and the first few in full, with the sender's `headings`."""
    if found.is_empty:
        return
    console = screen.err if screen.as_json else screen.out
    console.print(plain(title, "bold"))
    for code, count, is_of_rows in found.kinds().iter_rows():
        rows = say_count(count, "{count:,} row", "{count:,} rows")
        console.print(plain(say("{code}: {rows}", code=code, rows=rows) if is_of_rows else code))
        for row, column, message in found.examples(code).select("row", "column", "message").iter_rows():
            where = (
                say("Row {row}, {column}", row=row, column=headings.get(column, column)) if row else say("The sheet")
            )
            console.tell("  " + say("{where}: {message}", where=where, message=message))
        if count > EXAMPLES:
            console.print(plain("  " + say("... and {count:,} more.", count=count - EXAMPLES)))


def show_totals(screen: Screen, totals: BatchTotals) -> None:
    """Print counts and sums by country and state."""
    screen.table("", mark_all("country", "currency", "state", "rows", "sum"), totals.lines)
