"""Shows a sheet's findings and totals at a terminal, asks its open questions, and reads the sheet with the answers.

This module loads no journal, because `validate` needs none.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, get_args

import click

from paygw_batch.cli.options import made_into
from paygw_batch.cli.screen.screen import Screen, plain
from paygw_batch.clock import utc_now
from paygw_batch.core.text import is_encoding
from paygw_batch.errors import Asked, SheetQuestion
from paygw_batch.language import mark_all, say, say_count
from paygw_batch.opening.given_sheet import GivenSheet, Reading, suggested_reference
from paygw_batch.settings.sections import Names, Numbers
from paygw_batch.sheet.findings import EXAMPLES, Findings
from paygw_batch.sheet.read.headings import HeadingError

T = TypeVar("T")


def _known_encoding(_context: click.Context, _parameter: click.Parameter, name: str | None) -> str | None:
    if name is not None and not is_encoding(name):
        raise click.BadParameter(say("{name!r} is not a text encoding. Write, for example, cp1252.", name=name))
    return name


answers_options = made_into(
    "reading",
    Reading,
    click.option("--reference", metavar="TEXT", help="Names the payment run; order ids are derived from it."),
    click.option("--worksheet", metavar="NAME", help="The worksheet of a workbook to read."),
    click.option(
        "--encoding",
        metavar="NAME",
        callback=_known_encoding,
        help="Encoding of a text file that is not UTF-8; a French Excel writes cp1252.",
    ),
    click.option("--numbers", type=click.Choice(get_args(Numbers)), help="The sign before the decimals of amounts."),
    click.option("--names", type=click.Choice(get_args(Names)), help="How countries and currencies are written."),
)
"""Adds the options that answer a sheet's open questions to a command. The command gets them as one value, `reading`."""


def answered(screen: Screen, read: Callable[[GivenSheet], T], given: GivenSheet) -> tuple[T, GivenSheet]:
    """Read a sheet, and ask its open questions. Return the result of `read`, and the sheet with the answers.

    Raises `SheetQuestion` if nobody can be asked, or if the answer was no.
    """
    answers: dict[str, Any] = {}
    given = replace(given, asks=screen.asks())
    while True:
        try:
            result = read(given)
        except SheetQuestion as question:
            asks = question.asks.value
            answer = None if asks in answers else _answer(screen, question, given.operation)
            if not answer:
                raise
            answers[asks] = answer
            given = replace(given, reading=replace(given.reading, **answers))
        except HeadingError as error:
            error.hint = error.hint_about(shlex.quote(str(given.path)))
            raise
        else:
            if answers:
                words = " ".join(f"--{asks} {shlex.quote(answer)}" for asks, answer in answers.items())
                screen.say(say("The same answers as options: {said}", said=words))
            return result, given


def _answer(screen: Screen, question: SheetQuestion, operation: str) -> str | None:
    if question.asks is Asked.REFERENCE:
        return screen.ask(question.question, suggested_reference(operation, utc_now()))
    if question.asks is Asked.WORKSHEET:
        return screen.choose(question.question, question.choices, question.samples)
    yes, *no = question.choices
    return yes if screen.confirm(question.question) else next(iter(no), None)


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


def show_totals(screen: Screen, lines: Sequence[tuple[str, str, str, int, str]]) -> None:
    screen.table("", mark_all("country", "currency", "state", "rows", "sum"), lines)
