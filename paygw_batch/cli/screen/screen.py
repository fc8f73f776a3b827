"""Prints the results of a command: sentences and tables for a person, one JSON object for a program."""

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
from paygw_batch.core.shown_states import state_words
from paygw_batch.core.text import fit_for_terminal, fit_in_json
from paygw_batch.language import number, say
from paygw_batch.show.summary import ExitCode, Summary

_PIECE = re.compile(r"`[^`]*`\S*|\S*paygw-batch .*$|\S+")
"""A command in quotation marks or at the end of a sentence, or else a word."""
_LIST_MARK = "- "


def wrapped(text: str, width: int) -> str:
    """Return one line of text as several lines of at most `width` cells, indented like the first."""
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
    """Return widths for the columns of a table that fit into `room`, or None if that is impossible.

    Each of `columns` has the lines of its texts. It gets at least the width of its longest word or, if it is `whole`,
    of its longest line.
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
    """Return one line of text that is printed unchanged: no markup, and nothing that a terminal would obey."""
    return Text(fit_for_terminal(text), style=style)


class PlainConsole(Console):
    """A console that prints strings as plain text. Callers make a `Text` with `plain`."""

    def __init__(self, file: TextIO, *, quiet: bool) -> None:
        super().__init__(file=file, quiet=quiet, highlight=False, markup=False, emoji=False)

    def render_str(self, text: str, *, style: Any = "", **_: Any) -> Text:
        return plain(text, style)

    def tell(self, sentence: str, style: str = "") -> None:
        """Print a line for a person. On a terminal the line is broken between words, elsewhere it is unchanged."""
        self.print(self.fitted(sentence, style), soft_wrap=True)

    def fitted(self, sentence: str, style: str = "") -> Text:
        fit = fit_for_terminal(sentence)
        return Text(wrapped(fit, max(1, self.size.width)) if self.is_terminal else fit, style=style)


PROMPT_WIDTH = 76
"""The width of a question. The answer is typed after it."""

SHOWN_LINES = 20
"""The maximum number of lines of one kind on a screen."""

WHOLE = frozenset({"batch", "at", "opened", "currency", "sum"})
"""The columns of a table that are never broken."""

Cell = str | int | tuple[str, ...]
"""The content of a cell in a table: a text, an integer, or several lines of text."""

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
    """Return a summary as a line of JSON that is safe to print on a terminal."""
    return fit_in_json(json.dumps(summary.as_json(), ensure_ascii=False)) + "\n"


def _cell(heading: str, cell: Cell) -> Text:
    """Return a cell in the format of its column. States get colours and words for people, and sums get separators."""
    if heading == "state":
        return plain(state_words(str(cell)), STATE_STYLES.get(str(cell), ""))
    if isinstance(cell, tuple):
        return Text("\n").join(map(plain, cell))
    if isinstance(cell, int):
        return plain(number(cell))
    return plain(with_separators(cell) if heading == "sum" else cell)


def _on_one_line(cell: Text) -> str:
    return ", ".join(cell.plain.split("\n"))


def _wait_for_key() -> None:
    """Wait until a person wants to read on.

    Raises `KeyboardInterrupt` if the person leaves, because `click.pause` would continue, perhaps to a signature.
    """
    click.echo(say("-- more: press any key --"), nl=False)
    try:
        click.getchar()
    except EOFError:
        raise KeyboardInterrupt from None
    finally:
        click.echo()


def prompted(question: str, **how: Any) -> str:
    """Ask a person at a terminal, as `click.prompt` does. Raises `click.Abort` if the person leaves."""
    return str(click.prompt(wrapped(fit_for_terminal(question), PROMPT_WIDTH), **how))


def confirmed(question: str, *, err: bool = False) -> bool:
    """Ask a person, and return whether the answer was yes. Raises `click.Abort` if the person leaves."""
    yes, no = say("y"), say("n")
    answers = dict.fromkeys(("y", "yes", yes, say("yes")), True) | dict.fromkeys(("n", "no", no, say("no")), False)

    def read(answer: str) -> bool:
        if answer.strip().casefold() not in answers:
            raise click.UsageError(say("Answer {yes} or {no}.", yes=yes, no=no))
        return answers[answer.strip().casefold()]

    line = f"{fit_for_terminal(question)} [{yes}/{no.upper()}]"
    prompt = wrapped(line, PROMPT_WIDTH)
    return bool(click.prompt(prompt, default=no, show_default=False, value_proc=read, err=err))


class Screen:
    """Prints tables and sentences for a person, or one JSON object on standard output.

    `only_shows` says that the command changes nothing. It is no error then if a reader leaves early.
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
        """A function that receives each sentence too, for the log of a run."""

    def say(self, sentence: str) -> None:
        """Print one line for a person. With --json it goes to standard error, otherwise to standard output."""
        (self.err if self.as_json else self.out).tell(sentence)
        if self.listener is not None:
            self.listener(sentence)

    def say_more(self, count: int) -> None:
        """Print how many of `count` lines of a kind are not on the screen, if any."""
        if count > SHOWN_LINES:
            self.say(say("... and {count:,} more: --json lists all of them.", count=count - SHOWN_LINES))

    def verbatim(self, text: str) -> None:
        """Print lines unchanged, for machines or for copying."""
        for line in text.split("\n"):
            (self.err if self.as_json else self.out).print(plain(line), soft_wrap=True)

    def pages(self, sentences: Sequence[str]) -> None:
        """Print all lines for a person, on a terminal one screenful at a time."""
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
        """With -q and without --json, print a sentence that a person must act on, on standard output."""
        if self._quiet and not self.as_json:
            PlainConsole(self._output.file, quiet=False).tell(sentence)

    def asks(self) -> bool:
        """Return whether a person can be asked: at a terminal, and if no program reads the answer."""
        return not self.as_json and sys.stdin.isatty() and self._output.isatty()

    def confirm(self, question: str) -> bool:
        """Ask a person, and return whether the answer was yes. The answer is no if nobody can be asked."""
        try:
            return self.asks() and confirmed(question)
        except click.Abort:
            self.out.print()
            return False

    def ask(self, question: str, suggested: str) -> str | None:
        """Ask a person for a text. Return None if nobody can be asked, or if the person leaves."""
        return self._prompted(question, default=suggested)

    def choose(self, question: str, choices: Sequence[str], words: Sequence[str]) -> str | None:
        """Ask a person to choose by name or number. Return None as `ask` does. The `words` are about each choice."""
        if not self.asks():
            return None
        for place, (choice, about) in enumerate(zip(choices, words, strict=True), start=1):
            self.say(f"  {place}  {choice} ({about})")
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
        """Print notes. A note refuses nothing."""
        for sentence in sentences:
            self.say(say("Note: {sentence}", sentence=sentence))

    def note_aside(self, sentence: str) -> None:
        """Print a note about the program itself, and not about the result, on standard error."""
        self.err.tell(say("Note: {sentence}", sentence=sentence))

    def table(self, title: str, headings: Sequence[str], lines: Sequence[Sequence[Cell]]) -> None:
        """Print a table. Numbers are right-aligned, and the column headed `state` has colours.

        Marked headings are translated here, and may have several lines. Amounts in the column headed `sum` get
        separators. A table whose words would be broken is printed as a list.
        """
        cells = [[_cell(heading, cell) for heading, cell in zip(headings, line, strict=True)] for line in lines]
        titles = [say(heading) for heading in headings]
        texts = [[name, *(line[place].plain for line in cells)] for place, name in enumerate(titles)]
        columns = [[part for text in of_column for part in text.split("\n")] for of_column in texts]
        is_boxed, count = self.out.is_terminal, len(headings)
        room = self.out.size.width - (3 * count + 1 if is_boxed else 2 * count)
        widths = column_widths(columns, [heading in WHOLE for heading in headings], room)
        if widths is None:
            self._listed(title, titles, cells)
            return
        table = Table(title=title, title_justify="left", box=HEAVY_HEAD if is_boxed else None)
        for place, (heading, name, width) in enumerate(zip(headings, titles, widths, strict=True)):
            numbers = bool(lines) and all(isinstance(line[place], int) for line in lines)
            justify: JustifyMethod = "right" if numbers or heading == "sum" else "left"
            table.add_column(Text(name), justify=justify, width=width, no_wrap=heading in WHOLE)
        for line in cells:
            table.add_row(*line)
        self.out.print(table)

    def _listed(self, title: str, titles: Sequence[str], cells: Sequence[Sequence[Text]]) -> None:
        """Print a table that is too wide as a list, because nobody can copy a word that is cut."""
        if title:
            self.out.tell(title, "italic")
        names = [name.replace("\n", ", ") for name in titles[1:]]
        for head, *others in cells:
            self.out.tell(_on_one_line(head), "bold")
            members = (f"{name}: {_on_one_line(cell)}" for name, cell in zip(names, others, strict=True) if cell.plain)
            self.out.tell("  " + "; ".join(members))

    def finish(self, summary: Summary) -> NoReturn:
        """Print the end of a command, and exit with its exit code.

        If standard output could not be written, standard error reports that, and exit code 0 becomes 2. Every other
        code remains, because it says what happened to the money.
        """
        interruption.ignore()
        if not summary.seconds:  # a run has its own duration, which its metrics have too
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
