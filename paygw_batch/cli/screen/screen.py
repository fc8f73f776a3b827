"""Prints the results of a command as messages and tables, or as one JSON object."""

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
from paygw_batch.core.money import format_amount
from paygw_batch.core.shown_states import state_label
from paygw_batch.core.text import escape_for_terminal, escape_json
from paygw_batch.language import format_number, say
from paygw_batch.show.summary import ExitCode, Summary

_PIECE = re.compile(r"`[^`]*`\S*|\S*paygw-batch .*$|\S+")
"""Text that is never split between lines: a word, or a command in backticks or at the end of a sentence."""
_BULLET = "- "


def wrap_line(text: str, width: int) -> str:
    """Wrap a line to at most `width` cells. All lines have the same indentation, except in a list."""
    if cell_len(text) <= width:
        return text
    body = text.lstrip(" ")
    indent = text[: len(text) - len(body)]
    next_indent = indent + "  " if body.startswith(_BULLET) else indent
    return "\n".join(_break_lines(indent, next_indent, _PIECE.findall(body), width))


def _break_lines(indent: str, next_indent: str, pieces: Sequence[str], width: int) -> Iterator[str]:
    line, is_empty = indent, True
    for piece in pieces:
        if not is_empty and cell_len(line) + 1 + cell_len(piece) > width:
            yield line
            line, is_empty = next_indent, True
        line += piece if is_empty else f" {piece}"
        is_empty = False
    yield line


def column_widths(columns: Sequence[Sequence[str]], unbroken: Sequence[bool], available_width: int) -> list[int] | None:
    """Return column widths that fit into `available_width` cells, or None if the columns cannot fit.

    Each column is a list of lines. It is at least as wide as its longest word or, if `unbroken`, its longest line.
    """
    full_widths = [max(map(cell_len, texts), default=0) for texts in columns]
    min_widths = [
        full_width if is_unbroken else max((cell_len(word) for text in texts for word in text.split()), default=0)
        for texts, full_width, is_unbroken in zip(columns, full_widths, unbroken, strict=True)
    ]
    spare, wanted = available_width - sum(min_widths), sum(full_widths) - sum(min_widths)
    if spare < 0:
        return None
    if spare >= wanted:
        return full_widths
    return [low + spare * (high - low) // wanted for low, high in zip(min_widths, full_widths, strict=True)]


def plain_line(text: str, style: str = "") -> Text:
    """Return styled text without markup, with control characters escaped."""
    return Text(escape_for_terminal(text), style=style)


class PlainConsole(Console):
    """A console that prints strings as plain text. Use `plain_line` for styled text."""

    def __init__(self, file: TextIO, *, quiet: bool) -> None:
        super().__init__(file=file, quiet=quiet, highlight=False, markup=False, emoji=False)

    def render_str(self, text: str, *, style: Any = "", **_: Any) -> Text:
        return plain_line(text, style)

    def print_line(self, message: str, style: str = "") -> None:
        """Print a line. On a terminal, it is wrapped between words."""
        self.print(self.fit_message(message, style), soft_wrap=True)

    def fit_message(self, message: str, style: str = "") -> Text:
        text = escape_for_terminal(message)
        return Text(wrap_line(text, max(1, self.size.width)) if self.is_terminal else text, style=style)


PROMPT_WIDTH = 76
"""The maximum width of a question, which leaves room to type the answer."""

MAX_SHOWN_LINES = 20
"""The maximum number of lines shown in one list."""

UNBROKEN_HEADINGS = frozenset({"batch", "time", "opened", "currency", "sum"})
"""The headings of columns whose text is never wrapped."""

Cell = str | int | tuple[str, ...]
"""The content of a table cell: text, an integer, or several lines of text."""

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
    """Format a summary as a line of JSON that is safe to print on a terminal."""
    return escape_json(json.dumps(summary.as_json(), ensure_ascii=False)) + "\n"


def _format_cell(heading: str, cell: Cell) -> Text:
    if heading == "state":
        return plain_line(state_label(str(cell)), STATE_STYLES.get(str(cell), ""))
    if isinstance(cell, tuple):
        return Text("\n").join(map(plain_line, cell))
    if isinstance(cell, int):
        return plain_line(format_number(cell))
    return plain_line(format_amount(cell) if heading == "sum" else cell)


def _wait_for_key() -> None:
    """Wait for a key press. Raises `KeyboardInterrupt` at the end of input, so that nobody signs unread pages."""
    click.echo(say("-- more: press any key --"), nl=False)
    try:
        click.getchar()
    except EOFError:
        raise KeyboardInterrupt from None
    finally:
        click.echo()


def ask_for_text(question: str, **prompt_options: Any) -> str:
    """Ask a question, wrapped to the width of a prompt. Raises `click.Abort` if interrupted."""
    return str(click.prompt(wrap_line(escape_for_terminal(question), PROMPT_WIDTH), **prompt_options))


def ask_to_confirm(question: str, *, err: bool = False) -> bool:
    """Ask a yes-or-no question and return whether the answer is yes. Raises `click.Abort` if interrupted."""
    yes, no = say("y"), say("n")
    answers = dict.fromkeys(("y", "yes", yes, say("yes")), True) | dict.fromkeys(("n", "no", no, say("no")), False)

    def parse_answer(answer: str) -> bool:
        if answer.strip().casefold() not in answers:
            raise click.UsageError(say("Answer {yes} or {no}.", yes=yes, no=no))
        return answers[answer.strip().casefold()]

    line = f"{escape_for_terminal(question)} [{yes}/{no.upper()}]"
    prompt = wrap_line(line, PROMPT_WIDTH)
    return bool(click.prompt(prompt, default=no, show_default=False, value_proc=parse_answer, err=err))


class Screen:
    """Prints messages and tables for a person, or one JSON object on standard output.

    For a command that `is_read_only`, an output pipe that is closed early (`| head`) is not an error.
    """

    def __init__(self, invocation: Invocation, *, is_read_only: bool = False) -> None:
        self._is_read_only = is_read_only
        self._started_s = time.monotonic()
        self.as_json = invocation.as_json
        self._quiet = invocation.quiet
        self.verbose = invocation.verbose
        self._output = standard_output()
        self.out = PlainConsole(self._output.file, quiet=invocation.as_json or invocation.quiet)
        self.err = PlainConsole(standard_error().file, quiet=invocation.quiet)
        self.listener: Callable[[str], None] | None = None
        """A function that receives each printed message, for the log of a run."""

    def say(self, message: str) -> None:
        """Print one line on standard output or, with --json, on standard error."""
        (self.err if self.as_json else self.out).print_line(message)
        if self.listener is not None:
            self.listener(message)

    def say_omitted(self, count: int) -> None:
        """Print how many of `count` lines were omitted, if any."""
        if count > MAX_SHOWN_LINES:
            self.say(say("... and {count:,} more. To list all of them, use --json.", count=count - MAX_SHOWN_LINES))

    def print_verbatim(self, text: str) -> None:
        """Print lines without wrapping, so that they can be copied."""
        for line in text.split("\n"):
            (self.err if self.as_json else self.out).print(plain_line(line), soft_wrap=True)

    def print_pages(self, messages: Sequence[str]) -> None:
        """Print messages, one screenful at a time on a terminal."""
        height, width = self.out.size.height - 2, max(1, self.out.size.width)
        lines_used, is_paged = 0, self.can_ask() and not self._quiet
        for message in messages:
            lines = self.out.fit_message(message).split(allow_blank=True)
            lines_needed = sum(-(-max(1, line.cell_len) // width) for line in lines)
            if is_paged and lines_used and lines_used + lines_needed > height:
                _wait_for_key()
                lines_used = 0
            self.say(message)
            lines_used += lines_needed

    def say_if_quiet(self, message: str) -> None:
        """With -q, print a message that a person must act on. Does nothing without -q or with --json."""
        if self._quiet and not self.as_json:
            PlainConsole(self._output.file, quiet=False).print_line(message)

    def can_ask(self) -> bool:
        """Return whether a person can be asked: input and output are terminals, and --json is not used."""
        return not self.as_json and sys.stdin.isatty() and self._output.isatty()

    def confirm(self, question: str) -> bool:
        """Ask a yes-or-no question. Returns False if no one can be asked."""
        try:
            return self.can_ask() and ask_to_confirm(question)
        except click.Abort:
            self.out.print()
            return False

    def ask(self, question: str, default: str) -> str | None:
        """Ask for text. Returns None if no one can be asked, or if interrupted."""
        return self._prompt(question, default=default)

    def choose(self, question: str, choices: Sequence[str], descriptions: Sequence[str]) -> str | None:
        """Ask for one of the choices, by name or number. Returns None if no one can be asked, or if interrupted."""
        if not self.can_ask():
            return None
        for position, (choice, description) in enumerate(zip(choices, descriptions, strict=True), start=1):
            self.say(f"  {position}  {choice} ({description})")
        by_number = {str(index): choice for index, choice in enumerate(choices, start=1) if str(index) not in choices}
        choice_type = click.Choice([*by_number, *choices], case_sensitive=True)
        answer = self._prompt(question, type=choice_type, show_choices=False)
        return None if answer is None else by_number.get(answer, answer)

    def _prompt(self, question: str, **options: Any) -> str | None:
        try:
            return ask_for_text(question, **options).strip() if self.can_ask() else None
        except click.Abort:
            self.out.print()
            return None

    def notes(self, messages: Sequence[str]) -> None:
        """Print notes, which are less serious than warnings."""
        for message in messages:
            self.say(say("Note: {sentence}", sentence=message))

    def note_on_stderr(self, message: str) -> None:
        """Print a note that is not part of the result, on standard error."""
        self.err.print_line(say("Note: {sentence}", sentence=message))

    def table(self, title: str, headings: Sequence[str], lines: Sequence[Sequence[Cell]]) -> None:
        """Print a table, or a list if it is too wide. Translates headings, colours states and formats sums."""
        cells = [[_format_cell(heading, cell) for heading, cell in zip(headings, line, strict=True)] for line in lines]
        names = [say(heading) for heading in headings]
        texts = [[name, *(line[index].plain for line in cells)] for index, name in enumerate(names)]
        columns = [[part for text in column_texts for part in text.split("\n")] for column_texts in texts]
        is_boxed, column_count = self.out.is_terminal, len(headings)
        available_width = self.out.size.width - (3 * column_count + 1 if is_boxed else 2 * column_count)
        widths = column_widths(columns, [heading in UNBROKEN_HEADINGS for heading in headings], available_width)
        if widths is None:
            self._print_as_list(title, names, cells)
            return
        table = Table(title=title, title_justify="left", box=HEAVY_HEAD if is_boxed else None)
        for index, (heading, name, width) in enumerate(zip(headings, names, widths, strict=True)):
            is_numeric = bool(lines) and all(isinstance(line[index], int) for line in lines)
            justify: JustifyMethod = "right" if is_numeric or heading == "sum" else "left"
            table.add_column(Text(name), justify=justify, width=width, no_wrap=heading in UNBROKEN_HEADINGS)
        for line in cells:
            table.add_row(*line)
        self.out.print(table)

    def _print_as_list(self, title: str, names: Sequence[str], cells: Sequence[Sequence[Text]]) -> None:
        """Print a table that is too wide as a list, because truncated words cannot be copied."""
        if title:
            self.out.print_line(title, "italic")
        labels = [name.replace("\n", ", ") for name in names[1:]]
        for first_cell, *values in cells:
            self.out.print_line(first_cell.plain.replace("\n", ", "), "bold")
            texts = [value.plain.replace("\n", ", ") for value in values]
            entries = (f"{label}: {text}" for label, text in zip(labels, texts, strict=True) if text)
            self.out.print_line("  " + "; ".join(entries))

    def finish(self, summary: Summary) -> NoReturn:
        """Print a command's summary and exit with its exit code.

        If standard output cannot be written, exit code 0 becomes 2. Other codes are kept, because they report the
        results of payments.
        """
        interruption.ignore_signals()
        if not summary.seconds:  # a run measures its own duration, for its metrics
            summary = replace(summary, seconds=time.monotonic() - self._started_s)
        if self.as_json:
            self._output.write(json_line(summary))
        else:
            style = "" if summary.exit_code is ExitCode.DONE else "bold"
            self.out.print_line(summary.message, style)
            if summary.exit_code is not ExitCode.DONE:
                self.say_if_quiet(summary.message)
        code = summary.exit_code
        if self._output.failure is not None and not (self._is_read_only and self._output.is_pipe_closed):
            self.err.print_line(summary.message)
            self.err.print_line(self._output.failure_message())
            code = ExitCode.USAGE if code is ExitCode.DONE else code
        raise click.exceptions.Exit(int(code))
