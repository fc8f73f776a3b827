"""What a person reads at the end of a command, and the JSON that a program reads instead."""

import json
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import click
import polars as pl
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from paygw_batch.cli.root import Invocation
from paygw_batch.cli.start import interruption
from paygw_batch.cli.streams import standard_error, standard_output
from paygw_batch.run.books import Books
from paygw_batch.run.summary import ExitCode, Summary
from paygw_batch.sheet.result import Validated

EXAMPLES = 3
"""How many rows of each kind of defect are shown in full on a screen."""

LISTED = 1000
"""How many defects, or warnings, the JSON summary lists."""

WHOLE = frozenset({"batch", "at", "opened", "currency", "sum"})
"""Columns of a table that are never broken."""

STATE_STYLES = {
    "paid": "green",
    "accepted": "green",
    "ready": "cyan",
    "in_doubt": "bold yellow",
    "rejected": "red",
    "returned": "red",
    "invalid": "magenta",
}


def listed(found: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the first defects or warnings as the JSON summary has them."""
    return found.head(LISTED).select("row", "column", "value", "code", "message").to_dicts()


def warnings_told(validated: Validated) -> dict[str, Any]:
    """Return what the JSON summary says of warnings: how many rows, and the first of them."""
    return {"warnings": validated.warnings["row"].n_unique(), "warning_list": listed(validated.warnings)}


class Screen:
    """Where a command writes: tables and sentences for a person, or one JSON object on standard output."""

    def __init__(self, invocation: Invocation) -> None:
        self.as_json = invocation.as_json
        self._quiet = invocation.quiet
        self.verbose = invocation.verbose
        self._output = standard_output()
        self.out = Console(file=self._output.file, quiet=invocation.as_json or invocation.quiet, highlight=False)
        self.err = Console(file=standard_error().file, quiet=invocation.quiet, highlight=False)
        self.listener: Callable[[str], None] | None = None
        """Who else hears each sentence: the log of a run."""

    def say(self, sentence: str) -> None:
        """Print a sentence for a person: beside the JSON on standard error, otherwise with the result."""
        (self.err if self.as_json else self.out).print(Text(sentence), soft_wrap=True)
        if self.listener is not None:
            self.listener(sentence)

    def notes(self, sentences: Sequence[str]) -> None:
        """Print what a person should know and that refuses nothing."""
        for sentence in sentences:
            self.say(f"Note: {sentence}")

    def table(self, title: str, headings: Sequence[str], lines: Sequence[Sequence[str | int]]) -> None:
        """Print a table; whole numbers stand to the right, and a column headed `state` has its colours."""
        table = Table(title=title, title_justify="left", box=None if not self.out.is_terminal else Table().box)
        for place, heading in enumerate(headings):
            numbers = bool(lines) and all(isinstance(line[place], int) for line in lines)
            # An id that is cut cannot be copied: ids stay whole, and long texts go on in the next line.
            justify: JustifyMethod = "right" if numbers or heading == "sum" else "left"
            table.add_column(heading, justify=justify, overflow="fold", no_wrap=heading in WHOLE)
        for line in lines:
            cells = [f"{cell:,}" if isinstance(cell, int) else cell for cell in line]
            table.add_row(
                *(
                    Text(cell, style=STATE_STYLES.get(cell, "") if heading == "state" else "")
                    for heading, cell in zip(headings, cells, strict=True)
                )
            )
        self.out.print(table)

    def books(self, books: Books) -> None:
        """Print counts and sums by country and state."""
        self.table("", ("country", "currency", "state", "rows", "sum"), books.lines)

    def findings(self, title: str, found: pl.DataFrame) -> None:
        """Print defects or warnings by kind: how many, and the first few in full."""
        if found.is_empty():
            return
        console = self.err if self.as_json else self.out
        console.print(Text(title, style="bold"))
        kinds = found.group_by("code", maintain_order=True).agg(pl.len()).sort("len", descending=True)
        for code, count in kinds.iter_rows():
            console.print(Text(f"{code}: {count:,} {'row' if count == 1 else 'rows'}"))
            for row, column, message in (
                found.filter(pl.col("code") == code).head(EXAMPLES).select("row", "column", "message").iter_rows()
            ):
                console.print(Text(f"  Row {row}, {column}: {message}"), soft_wrap=True)
            if count > EXAMPLES:
                console.print(Text(f"  ... and {count - EXAMPLES:,} more."))

    def finish(self, summary: Summary) -> NoReturn:
        """Print the end of a command, and end it with the exit code that tells the truth.

        Where standard output could not be written, standard error says how it ended, and 0 becomes 2: what was asked
        for was not told. Every other code stands: it says what became of the money.
        """
        interruption.ignore()
        if self.as_json:
            self._output.write(json.dumps(summary.as_json(), ensure_ascii=False) + "\n")
        else:
            style = "" if summary.exit_code is ExitCode.DONE else "bold"
            self.out.print(Text(summary.message, style=style), soft_wrap=True)
        code = summary.exit_code
        if (failure := self._output.failure) is not None:
            self.err.print(Text(summary.message), soft_wrap=True)
            self.err.print(f"Error: standard output could not be written: {failure}.", soft_wrap=True)
            code = ExitCode.USAGE if code is ExitCode.DONE else code
        raise click.exceptions.Exit(int(code))
