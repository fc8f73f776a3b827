"""Prints the result of a command: sentences and tables for a person, one JSON object for a program."""

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NoReturn, TextIO

import click
from rich.box import HEAVY_HEAD
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.screen.streams import standard_error, standard_output
from paygw_batch.cli.signals import interruption
from paygw_batch.core.money import with_separators
from paygw_batch.core.text import fit_for_terminal, fit_in_json
from paygw_batch.language import number, say
from paygw_batch.report.summary import ExitCode, Summary

_PIECE = re.compile(r"`[^`]*`\S*|\S*paygw-batch .*$|\S+")
"""A command in quotation marks, or at the end of a sentence; else a word."""
_LIST_MARK = "- "


def wrapped(text: str, width: int) -> str:
    """Return one line of text as several of at most `width` cells, indented like the first."""
    if cell_len(text) <= width:
        return text
    body = text.lstrip(" ")
    first = text[: len(text) - len(body)]
    further = first + "  " if body.startswith(_LIST_MARK) else first
    return "\n".join(_lines(first, further, _PIECE.findall(body), width))


def _lines(first: str, further: str, pieces: Sequence[str], width: int) -> Iterator[str]:
    line, is_empty = first, True
    for piece in pieces:
        if not is_empty and cell_len(line) + 1 + cell_len(piece) > width:
            yield line
            line, is_empty = further, True
        line += piece if is_empty else f" {piece}"
        is_empty = False
    yield line


def column_widths(columns: Sequence[Sequence[str]], whole: Sequence[bool], room: int) -> list[int] | None:
    """Return the width of each column of a table, of its lines of text, that fits into `room`; None if none does.

    A column is never narrower than its longest word; one that is `whole` is never narrower than its longest line.
    """
    natural = [max(map(cell_len, texts), default=0) for texts in columns]
    least = [
        wanted if is_whole else max((cell_len(word) for text in texts for word in text.split()), default=0)
        for texts, wanted, is_whole in zip(columns, natural, whole, strict=True)
    ]
    spare, wanting = room - sum(least), sum(natural) - sum(least)
    if spare < 0:
        return None
    if spare >= wanting:
        return natural
    return [low + spare * (high - low) // wanting for low, high in zip(least, natural, strict=True)]


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

    def tell(self, sentence: str, style: str = "") -> None:
        """Print a line for a person: at a terminal broken between words, elsewhere as it is."""
        self.print(self.fitted(sentence, style), soft_wrap=True)

    def fitted(self, sentence: str, style: str = "") -> Text:
        """Return a line as `tell` prints it."""
        fit = fit_for_terminal(sentence)
        return Text(wrapped(fit, max(1, self.size.width)) if self.is_terminal else fit, style=style)


PROMPT_WIDTH = 76
"""The width of a question: the answer is typed behind it."""

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
    return plain(number(cell) if isinstance(cell, int) else cell, style)


def _cell(heading: str, cell: Cell) -> Text:
    """Return a cell as its column shows it: states in their colours and as people say them, sums with separators."""
    if heading == "state":
        return _shown(say(str(cell)), STATE_STYLES.get(str(cell), ""))
    return _shown(with_separators(cell) if heading == "sum" and isinstance(cell, str) else cell, "")


def _on_one_line(cell: Text) -> str:
    return ", ".join(cell.plain.split("\n"))


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


def prompted(question: str, **how: Any) -> str:
    """Ask a person at a terminal, as `click.prompt` does. Raises `click.Abort` for one who leaves instead."""
    return str(click.prompt(wrapped(fit_for_terminal(question), PROMPT_WIDTH), **how))


def confirmed(question: str, *, err: bool = False) -> bool:
    """Ask a person, and return whether the answer was yes. Raises `click.Abort` for one who leaves instead."""
    yes, no = say("y"), say("n")
    answers = {
        "y": True,
        "yes": True,
        yes: True,
        say("yes"): True,
        "n": False,
        "no": False,
        no: False,
        say("no"): False,
    }

    def read(answer: str) -> bool:
        if answer.strip().casefold() not in answers:
            raise click.UsageError(say("Answer {yes} or {no}.", yes=yes, no=no))
        return answers[answer.strip().casefold()]

    shown = f"{fit_for_terminal(question)} [{yes}/{no.upper()}]"
    asked = wrapped(shown, PROMPT_WIDTH)
    return bool(click.prompt(asked, default=no, show_default=False, value_proc=read, err=err))


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
        (self.err if self.as_json else self.out).tell(sentence)
        if self.listener is not None:
            self.listener(sentence)

    def verbatim(self, text: str) -> None:
        """Print lines that are read by a machine, or copied: they stay as they are."""
        for line in text.split("\n"):
            (self.err if self.as_json else self.out).print(plain(line), soft_wrap=True)

    def pages(self, sentences: Sequence[str]) -> None:
        """Print lines for a person, all of them; at a terminal with a person, a screenful at a time."""
        height, width = self.out.size.height - 2, max(1, self.out.size.width)
        used, is_paged = 0, self.asks() and not self._quiet
        for sentence in sentences:
            lines = self.out.fitted(sentence).split(allow_blank=True)
            needed = sum(-(-max(1, line.cell_len) // width) for line in lines)
            if is_paged and used and used + needed > height:
                _wait_for_key()
                used = 0
            self.say(sentence)
            used += needed

    def insist(self, sentence: str) -> None:
        """With -q and without --json, print on standard output a sentence that a person must act on."""
        if self._quiet and not self.as_json:
            PlainConsole(self._output.file, quiet=False).tell(sentence)

    def asks(self) -> bool:
        """Whether a person can be asked: at a terminal, unless a program reads the answer."""
        return not self.as_json and sys.stdin.isatty() and self._output.isatty()

    def confirm(self, question: str) -> bool:
        """Ask a person, and return whether the answer was yes. If nobody can be asked, the answer is no."""
        try:
            return self.asks() and confirmed(question)
        except click.Abort:
            self.out.print()
            return False

    def ask(self, question: str, suggested: str) -> str | None:
        """Ask a person for a text. None if nobody can be asked, or the person leaves."""
        return self._prompted(question, default=suggested)

    def choose(self, question: str, choices: Sequence[str]) -> str | None:
        """Ask a person to choose one of several by its name or its number, as `ask` does."""
        if not self.asks():
            return None
        for place, choice in enumerate(choices, start=1):
            self.say(f"  {place}  {choice}")
        numbers = {str(number): choice for number, choice in enumerate(choices, start=1) if str(number) not in choices}
        kind = click.Choice([*numbers, *choices], case_sensitive=True)
        answer = self._prompted(question, type=kind, show_choices=False)
        return None if answer is None else numbers.get(answer, answer)

    def _prompted(self, question: str, **how: Any) -> str | None:
        try:
            return prompted(question, **how).strip() if self.asks() else None
        except click.Abort:
            self.out.print()
            return None

    def notes(self, sentences: Sequence[str]) -> None:
        """Print notes for a person. They refuse nothing."""
        for sentence in sentences:
            self.say(say("Note: {sentence}", sentence=sentence))

    def note_aside(self, sentence: str) -> None:
        """Print a note on standard error: it is about the program, and not about what was asked for."""
        self.err.tell(say("Note: {sentence}", sentence=sentence))

    def table(self, title: str, headings: Sequence[str], lines: Sequence[Sequence[Cell]]) -> None:
        """Print a table; whole numbers are aligned to the right, and a column headed `state` has its colours.

        Headings are the marked ones, which are translated here. Amounts, in a column headed `sum`, get their separators
        here. A heading may have several lines. A table that would break words is printed as a list.
        """
        cells = [[_cell(heading, cell) for heading, cell in zip(headings, line, strict=True)] for line in lines]
        named = [say(heading) for heading in headings]
        texts = [[name, *(line[place].plain for line in cells)] for place, name in enumerate(named)]
        columns = [[part for text in of_column for part in text.split("\n")] for of_column in texts]
        is_boxed, count = self.out.is_terminal, len(headings)
        room = self.out.size.width - (3 * count + 1 if is_boxed else 2 * count)
        widths = column_widths(columns, [heading in WHOLE for heading in headings], room)
        if widths is None:
            self._listed(title, named, cells)
            return
        table = Table(title=title, title_justify="left", box=HEAVY_HEAD if is_boxed else None)
        for place, (heading, name, width) in enumerate(zip(headings, named, widths, strict=True)):
            numbers = bool(lines) and all(isinstance(line[place], int) for line in lines)
            justify: JustifyMethod = "right" if numbers or heading == "sum" else "left"
            table.add_column(Text(name), justify=justify, width=width, no_wrap=heading in WHOLE)
        for line in cells:
            table.add_row(*line)
        self.out.print(table)

    def _listed(self, title: str, named: Sequence[str], cells: Sequence[Sequence[Text]]) -> None:
        """Print a table that is too wide as a list: a word that is cut cannot be copied."""
        if title:
            self.out.tell(title, "italic")
        names = [name.replace("\n", ", ") for name in named[1:]]
        for head, *others in cells:
            self.out.tell(_on_one_line(head), "bold")
            told = (f"{name}: {_on_one_line(cell)}" for name, cell in zip(names, others, strict=True) if cell.plain)
            self.out.tell("  " + "; ".join(told))

    def finish(self, summary: Summary) -> NoReturn:
        """Print the end of a command, and end it with the true exit code.

        If standard output could not be written, standard error says how it ended, and 0 becomes 2: what was asked
        for was not delivered. Every other code stays: it says what happened to the money.
        """
        interruption.ignore()
        if not summary.seconds:  # a run has its own time, the one in its metrics
            summary = replace(summary, seconds=time.monotonic() - self._started_s)
        if self.as_json:
            self._output.write(json_line(summary))
        else:
            style = "" if summary.exit_code is ExitCode.DONE else "bold"
            self.out.tell(summary.message, style)
            if summary.exit_code is not ExitCode.DONE:
                self.insist(summary.message)
        code = summary.exit_code
        if (failure := self._output.failure) is not None and not (self._only_shows and self._output.is_unread):
            self.err.tell(summary.message)
            self.err.tell(say("Error: standard output could not be written: {failure}.", failure=failure))
            code = ExitCode.USAGE if code is ExitCode.DONE else code
        raise click.exceptions.Exit(int(code))
