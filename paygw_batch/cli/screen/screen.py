"""What a person reads at the end of a command, and the JSON that a program reads instead."""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import click
import polars as pl
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.screen.streams import standard_error, standard_output
from paygw_batch.cli.screen.terminal import PlainConsole, plain
from paygw_batch.cli.signals import interruption
from paygw_batch.core.terminal_text import fit_in_json
from paygw_batch.report.summary import ExitCode, Summary
from paygw_batch.report.totals import BatchTotals

EXAMPLES = 3
"""How many rows of each kind of defect are shown in full on a screen."""

LISTED = 1000
"""How many defects, or warnings, the JSON summary lists."""

WHOLE = frozenset({"batch", "at", "opened", "currency", "sum"})
"""Columns of a table that are never broken."""

Cell = str | int | tuple[str, ...]
"""What stands in one place of a table: a text, a whole number, or several lines of text."""

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


def warnings_told(warnings: pl.DataFrame) -> dict[str, Any]:
    """Return what the JSON summary says of warnings: how many rows, and the first of them."""
    return {"warnings": warnings["row"].n_unique(), "warning_list": listed(warnings)}


def json_line(summary: Summary) -> str:
    """Return the summary as a line of JSON that can be printed on a terminal, too."""
    return fit_in_json(json.dumps(summary.as_json(), ensure_ascii=False)) + "\n"


def _shown(cell: Cell, style: str) -> Text:
    if isinstance(cell, tuple):
        return Text("\n").join(plain(line, style) for line in cell)
    return plain(f"{cell:,}" if isinstance(cell, int) else cell, style)


def _wait_for_key() -> None:
    """Wait until a person wants to read on.

    Raises `KeyboardInterrupt` for one who leaves instead: `click.pause` would go on, to what may be a signature.
    """
    click.echo("-- more: press any key --", nl=False)
    try:
        click.getchar()
    except EOFError:
        raise KeyboardInterrupt from None
    finally:
        click.echo()


class Screen:
    """Where a command writes: tables and sentences for a person, or one JSON object on standard output."""

    def __init__(self, invocation: Invocation) -> None:
        self.as_json = invocation.as_json
        self._quiet = invocation.quiet
        self.verbose = invocation.verbose
        self._output = standard_output()
        self.out = PlainConsole(self._output.file, quiet=invocation.as_json or invocation.quiet)
        self.err = PlainConsole(standard_error().file, quiet=invocation.quiet)
        self.listener: Callable[[str], None] | None = None
        """Who else hears each sentence: the log of a run."""

    def say(self, sentence: str) -> None:
        """Print one line for a person: beside the JSON on standard error, otherwise with the result."""
        (self.err if self.as_json else self.out).print(plain(sentence), soft_wrap=True)
        if self.listener is not None:
            self.listener(sentence)

    def pages(self, sentences: Sequence[str]) -> None:
        """Print lines for a person, all of them; at a terminal with a person, a screenful at a time."""
        height, width = self.out.size.height - 2, max(1, self.out.size.width)
        used, is_paged = 0, self.asks() and not self._quiet
        for sentence in sentences:
            needed = -(-max(1, plain(sentence).cell_len) // width)
            if is_paged and used and used + needed > height:
                _wait_for_key()
                used = 0
            self.say(sentence)
            used += needed

    def insist(self, sentence: str) -> None:
        """Print what a person must act on where nothing else is printed: with -q, on standard output."""
        if self._quiet and not self.as_json:
            PlainConsole(self._output.file, quiet=False).print(plain(sentence), soft_wrap=True)

    def asks(self) -> bool:
        """Whether a person sits there who can be asked: at a terminal, and not where a program reads the answer."""
        return not self.as_json and sys.stdin.isatty() and self._output.isatty()

    def confirm(self, question: str) -> bool:
        """Ask a person, and return whether the answer was yes. Whatever else ends the question is a no."""
        try:
            return click.confirm(question, default=False)
        except click.Abort:
            self.out.print()
            return False

    def notes(self, sentences: Sequence[str]) -> None:
        """Print what a person should know and that refuses nothing."""
        for sentence in sentences:
            self.say(f"Note: {sentence}")

    def table(self, title: str, headings: Sequence[str], lines: Sequence[Sequence[Cell]]) -> None:
        """Print a table; whole numbers stand to the right, and a column headed `state` has its colours.

        A heading may have several lines.
        """
        table = Table(title=title, title_justify="left", box=None if not self.out.is_terminal else Table().box)
        for place, heading in enumerate(headings):
            numbers = bool(lines) and all(isinstance(line[place], int) for line in lines)
            # An id that is cut cannot be copied: ids stay whole, and long texts go on in the next line.
            justify: JustifyMethod = "right" if numbers or heading == "sum" else "left"
            table.add_column(Text(heading), justify=justify, overflow="fold", no_wrap=heading in WHOLE)
        for line in lines:
            table.add_row(
                *(
                    _shown(cell, STATE_STYLES.get(str(cell), "") if heading == "state" else "")
                    for heading, cell in zip(headings, line, strict=True)
                )
            )
        self.out.print(table)

    def books(self, books: BatchTotals) -> None:
        """Print counts and sums by country and state."""
        self.table("", ("country", "currency", "state", "rows", "sum"), books.lines)

    def findings(self, title: str, found: pl.DataFrame) -> None:
        """Print defects or warnings by kind: how many, and the first few in full."""
        if found.is_empty():
            return
        console = self.err if self.as_json else self.out
        console.print(plain(title, "bold"))
        kinds = found.group_by("code", maintain_order=True).agg(pl.len()).sort("len", descending=True)
        for code, count in kinds.iter_rows():
            is_about_rows = (found.filter(pl.col("code") == code)["row"] > 0).any()
            console.print(plain(f"{code}: {count:,} {'row' if count == 1 else 'rows'}" if is_about_rows else code))
            for row, column, message in (
                found.filter(pl.col("code") == code).head(EXAMPLES).select("row", "column", "message").iter_rows()
            ):
                where = f"Row {row}, {column}" if row else "The sheet"
                console.print(plain(f"  {where}: {message}"), soft_wrap=True)
            if count > EXAMPLES:
                console.print(plain(f"  ... and {count - EXAMPLES:,} more."))

    def finish(self, summary: Summary) -> NoReturn:
        """Print the end of a command, and end it with the exit code that tells the truth.

        Where standard output could not be written, standard error says how it ended, and 0 becomes 2: what was asked
        for was not told. Every other code stands: it says what became of the money.
        """
        interruption.ignore()
        if self.as_json:
            self._output.write(json_line(summary))
        else:
            style = "" if summary.exit_code is ExitCode.DONE else "bold"
            self.out.print(plain(summary.message, style), soft_wrap=True)
            if summary.exit_code is not ExitCode.DONE:
                self.insist(summary.message)
        code = summary.exit_code
        if (failure := self._output.failure) is not None:
            self.err.print(plain(summary.message), soft_wrap=True)
            self.err.print(f"Error: standard output could not be written: {failure}.", soft_wrap=True)
            code = ExitCode.USAGE if code is ExitCode.DONE else code
        raise click.exceptions.Exit(int(code))
