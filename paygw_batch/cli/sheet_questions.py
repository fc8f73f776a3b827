"""Shows a sheet's findings and totals, and asks its open questions, without importing the journal (for `validate`)."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, get_args

import click

from paygw_batch.cli.options import bundle_options
from paygw_batch.cli.screen.screen import Screen, plain_line
from paygw_batch.clock import utc_now
from paygw_batch.core.text import is_encoding
from paygw_batch.errors import QuestionKind, SheetQuestion
from paygw_batch.language import mark_all, say, say_count
from paygw_batch.opening.given_sheet import Reading, SheetSource, suggest_reference
from paygw_batch.settings.sections import Names, Numbers
from paygw_batch.sheet.findings import EXAMPLES_PER_CODE, Findings
from paygw_batch.sheet.read.headings import HeadingError

T = TypeVar("T")


def _validate_encoding(_context: click.Context, _parameter: click.Parameter, encoding: str | None) -> str | None:
    if encoding is not None and not is_encoding(encoding):
        raise click.BadParameter(say("{name!r} is not a text encoding. Use, for example, cp1252.", name=encoding))
    return encoding


answers_options = bundle_options(
    "reading",
    Reading,
    click.option("--reference", metavar="TEXT", help="Name of the payment run. Order ids are derived from it."),
    click.option("--worksheet", metavar="NAME", help="The worksheet to read, if the sheet is a workbook."),
    click.option(
        "--encoding",
        metavar="NAME",
        callback=_validate_encoding,
        help="Encoding of a text file that is not UTF-8, such as cp1252 for a French version of Excel.",
    ),
    click.option("--numbers", type=click.Choice(get_args(Numbers)), help="The decimal separator in amounts."),
    click.option("--names", type=click.Choice(get_args(Names)), help="How countries and currencies are written."),
)
"""Adds the options that answer a sheet's open questions. The command receives them as the argument `reading`."""


def read_with_answers(screen: Screen, read: Callable[[SheetSource], T], source: SheetSource) -> tuple[T, SheetSource]:
    """Read a sheet, asking a person any open questions. Return the result of `read`, and the source with answers."""
    answers: dict[str, Any] = {}
    source = replace(source, asks=screen.can_ask())
    while True:
        try:
            result = read(source)
        except SheetQuestion as question:
            option = question.asks.value
            answer = None if option in answers else _ask_question(screen, question, source.operation)
            if not answer:
                raise
            answers[option] = answer
            source = replace(source, reading=replace(source.reading, **answers))
        except HeadingError as error:
            error.hint = error.hint_for(shlex.quote(str(source.path)))
            raise
        else:
            if answers:
                options = " ".join(f"--{option} {shlex.quote(answer)}" for option, answer in answers.items())
                screen.say(say("To skip these questions next time, add: {said}", said=options))
            return result, source


def _ask_question(screen: Screen, question: SheetQuestion, operation: str) -> str | None:
    if question.asks is QuestionKind.REFERENCE:
        return screen.ask(question.question, suggest_reference(operation, utc_now()))
    if question.asks is QuestionKind.WORKSHEET:
        return screen.choose(question.question, question.choices, question.samples)
    yes, *no = question.choices
    return yes if screen.confirm(question.question) else next(iter(no), None)


def show_findings(screen: Screen, title: str, findings: Findings, headings: Mapping[str, str]) -> None:
    """Print the number of findings of each kind, and the first few. `headings` maps columns to the sheet's headings."""
    if findings.is_empty:
        return
    console = screen.err if screen.as_json else screen.out
    console.print(plain_line(title, "bold"))
    for code, count, concerns_rows in findings.sorted_counts().iter_rows():
        rows = say_count(count, "{count:,} row", "{count:,} rows")
        console.print(plain_line(say("{code}: {rows}", code=code, rows=rows) if concerns_rows else code))
        for row, column, message in findings.examples(code).select("row", "column", "message").iter_rows():
            heading = headings.get(column, column)
            location = say("Row {row}, {column}", row=row, column=heading) if row else say("The sheet")
            console.print_line("  " + say("{where}: {message}", where=location, message=message))
        if count > EXAMPLES_PER_CODE:
            console.print(plain_line("  " + say("... and {count:,} more.", count=count - EXAMPLES_PER_CODE)))


def show_totals(screen: Screen, lines: Sequence[tuple[str, str, str, int, str]]) -> None:
    screen.table("", mark_all("country", "currency", "state", "rows", "sum"), lines)
