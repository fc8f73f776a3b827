"""Prints the result of a command: sentences and tables for a person, one JSON object for a program."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn, TextIO

import click
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.screen.streams import standard_error, standard_output
from paygw_batch.cli.signals import interruption
from paygw_batch.core.money import with_separators
from paygw_batch.core.text import fit_for_terminal, fit_in_json
from paygw_batch.language import say
from paygw_batch.report.summary import ExitCode, Summary


def plain(text: str, style: str = "") -> Text:
    """Return one line of text to print as it is: no markup, and nothing that a terminal would obey."""
    return Text(fit_for_terminal(text), style=style)


class PlainConsole(Console):
    """A console that prints a string as plain text. A caller that prints a `Text` makes it by `plain`."""

    def __init__(self, file: TextIO, *, quiet: bool) -> None:
        super().__init__(file=file, quiet=quiet, highlight=False, markup=False, emoji=False)

    def render_str(self, text: str, *, style: Any = "", **_: Any) -> Text:
        """Return a string that is printed as `plain` does."""
        return plain(text, style)


WHOLE = frozenset({"batch", "at", "opened", "currency", "sum"})
"""Columns of a table that are never broken."""

Cell = str | int | tuple[str, ...]
"""The content of one cell of a table: a text, a whole number, or several lines of text."""

STATE_STYLES = {
    "paid": "green",
    "accepted": "green",
    "ready": "cyan",
    "in_doubt": "bold yellow",
    "rejected": "red",
    "returned": "red",
    "invalid": "magenta",
}


def json_line(summary: Summary) -> str:
    """Return the summary as a line of JSON that can be printed on a terminal, too."""
    return fit_in_json(json.dumps(summary.as_json(), ensure_ascii=False)) + "\n"


def _shown(cell: Cell, style: str) -> Text:
    """Return a cell as a person reads it."""
    if isinstance(cell, tuple):
        return Text("\n").join(plain(line, style) for line in cell)
    return plain(f"{cell:,}" if isinstance(cell, int) else cell, style)


def _cell(heading: str, cell: Cell) -> Text:
    """Return a cell as its column shows it: states in their colours and as people say them, sums with separators."""
    if heading == "state":
        return _shown(say(str(cell)), STATE_STYLES.get(str(cell), ""))
    return _shown(with_separators(cell) if heading == "sum" and isinstance(cell, str) else cell, "")


def _wait_for_key() -> None:
    """Wait until a person wants to read on.

    Raises `KeyboardInterrupt` for one who leaves instead: `click.pause` would go on, to what may be a signature.
    """
    click.echo(say("-- more: press any key --"), nl=False)
    try:
        click.getchar()
    except EOFError:
        raise KeyboardInterrupt from None
    finally:
        click.echo()


class Screen:
    """Prints tables and sentences for a person, or one JSON object on standard output.

    `only_shows`: the command changes nothing, and a reader who leaves early has seen enough.
    """

    def __init__(self, invocation: Invocation, *, only_shows: bool = False) -> None:
        self._only_shows = only_shows
        self._started_s = time.monotonic()
        self.as_json = invocation.as_json
        self._quiet = invocation.quiet
        self.verbose = invocation.verbose
        self._output = standard_output()
        self.out = PlainConsole(self._output.file, quiet=invocation.as_json or invocation.quiet)
        self.err = PlainConsole(standard_error().file, quiet=invocation.quiet)
        self.listener: Callable[[str], None] | None = None
        """Takes each sentence too: the log of a run."""

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
        """With -q and without --json, print on standard output a sentence that a person must act on."""
        if self._quiet and not self.as_json:
            PlainConsole(self._output.file, quiet=False).print(plain(sentence), soft_wrap=True)

    def asks(self) -> bool:
        """Whether a person can be asked: at a terminal, unless a program reads the answer."""
        return not self.as_json and sys.stdin.isatty() and self._output.isatty()

    def confirm(self, question: str) -> bool:
        """Ask a person, and return whether the answer was yes. Where nobody can be asked, the answer is no."""
        try:
            return self.asks() and click.confirm(question, default=False)
        except click.Abort:
            self.out.print()
            return False

    def ask(self, question: str, suggested: str) -> str | None:
        """Ask a person for a text. None if nobody can be asked, or the person leaves."""
        return self._prompted(question, default=suggested)

    def choose(self, question: str, choices: Sequence[str]) -> str | None:
        """Ask a person to choose one of several by its name or its number, as `ask` does."""
        for number, choice in enumerate(choices, start=1):
            self.say(f"  {number}  {choice}")
        numbers = {str(number): choice for number, choice in enumerate(choices, start=1) if str(number) not in choices}
        kind = click.Choice([*numbers, *choices], case_sensitive=True)
        answer = self._prompted(question, type=kind, show_choices=False)
        return None if answer is None else numbers.get(answer, answer)

    def _prompted(self, question: str, **how: Any) -> str | None:
        try:
            return str(click.prompt(fit_for_terminal(question), **how)).strip() if self.asks() else None
        except click.Abort:
            self.out.print()
            return None

    def notes(self, sentences: Sequence[str]) -> None:
        """Print notes for a person. They refuse nothing."""
        for sentence in sentences:
            self.say(say("Note: {sentence}", sentence=sentence))

    def note_aside(self, sentence: str) -> None:
        """Print a note on standard error: it is about the program, and not about what was asked for."""
        self.err.print(say("Note: {sentence}", sentence=sentence), soft_wrap=True)

    def table(self, title: str, headings: Sequence[str], lines: Sequence[Sequence[Cell]]) -> None:
        """Print a table; whole numbers are aligned to the right, and a column headed `state` has its colours.

        Headings are the marked ones, which are translated here. Amounts, in a column headed `sum`, get their separators
        here. A heading may have several lines.
        """
        table = Table(title=title, title_justify="left", box=None if not self.out.is_terminal else Table().box)
        for place, heading in enumerate(headings):
            numbers = bool(lines) and all(isinstance(line[place], int) for line in lines)
            # An id that is cut cannot be copied: ids stay whole, and long texts go on in the next line.
            justify: JustifyMethod = "right" if numbers or heading == "sum" else "left"
            table.add_column(Text(say(heading)), justify=justify, overflow="fold", no_wrap=heading in WHOLE)
        for line in lines:
            table.add_row(*(_cell(heading, cell) for heading, cell in zip(headings, line, strict=True)))
        self.out.print(table)

    def finish(self, summary: Summary) -> NoReturn:
        """Print the end of a command, and end it with the true exit code.

        Where standard output could not be written, standard error says how it ended, and 0 becomes 2: what was asked
        for was not told. Every other code stands: it says what became of the money.
        """
        interruption.ignore()
        if not summary.seconds:  # a run has its own time, as its metrics tell it
            summary = replace(summary, seconds=time.monotonic() - self._started_s)
        if self.as_json:
            self._output.write(json_line(summary))
        else:
            style = "" if summary.exit_code is ExitCode.DONE else "bold"
            self.out.print(plain(summary.message, style), soft_wrap=True)
            if summary.exit_code is not ExitCode.DONE:
                self.insist(summary.message)
        code = summary.exit_code
        if (failure := self._output.failure) is not None and not (self._only_shows and self._output.is_unread):
            self.err.print(plain(summary.message), soft_wrap=True)
            self.err.print(
                say("Error: standard output could not be written: {failure}.", failure=failure), soft_wrap=True
            )
            code = ExitCode.USAGE if code is ExitCode.DONE else code
        raise click.exceptions.Exit(int(code))
