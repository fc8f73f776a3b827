"""Shows a person at a terminal a sheet's findings and totals, asks what it leaves open, and reads it with the answers.

It loads no journal: `validate` needs none.
"""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from paygw_batch.cli.screen.screen import Screen, plain
from paygw_batch.clock import utc_now
from paygw_batch.core.sheet_answers import SheetAnswers
from paygw_batch.errors import Asked, SheetQuestion
from paygw_batch.language import mark_all, say, say_count
from paygw_batch.report.totals import BatchTotals
from paygw_batch.sheet.findings import EXAMPLES, Findings
from paygw_batch.sheet.read.headings import HeadingError
from paygw_batch.wiring.sheet import suggested_reference

T = TypeVar("T")


def answered(
    screen: Screen, read: Callable[[SheetAnswers], T], answers: SheetAnswers, operation: str, sheet: Path
) -> tuple[T, SheetAnswers]:
    """Read a sheet, asking its open questions; return the result of `read`, and the answers.

    Commands in hints name `sheet`. Raises `SheetQuestion` if nobody can be asked, or the answer was no.
    """
    asked: dict[Asked, str] = {}
    while True:
        try:
            found = read(answers)
        except SheetQuestion as question:
            answer = None if question.asks in asked else _ASKING[question.asks](screen, question, operation)
            if not answer:
                raise
            asked[question.asks] = answer
            answers = answers.to(question.asks, answer)
        except HeadingError as error:
            error.hint = error.hint_about(shlex.quote(str(sheet)))
            raise
        else:
            if asked:
                said = " ".join(f"--{asks} {shlex.quote(answer)}" for asks, answer in asked.items())
                screen.say(say("The same answers as options: {said}", said=said))
            return found, answers


def as_typed(sheet: Path, answers: SheetAnswers, column_profile: str | None) -> str:
    """Return a sheet as typed in another command, with the options that say how to read it."""
    options = [(asks.value, getattr(answers, asks.value)) for asks in Asked] + [("column-profile", column_profile)]
    words = [word for name, answer in options if answer is not None for word in (f"--{name}", answer)]
    return shlex.join([str(sheet), *words])


def _reference(screen: Screen, question: SheetQuestion, operation: str) -> str | None:
    return screen.ask(question.question, suggested_reference(operation, utc_now()))


def _worksheet(screen: Screen, question: SheetQuestion, _operation: str) -> str | None:
    return screen.choose(question.question, question.choices)


def _encoding(screen: Screen, question: SheetQuestion, _operation: str) -> str | None:
    return question.choices[0] if screen.confirm(question.question) else None


_ASKING: Mapping[Asked, Callable[[Screen, SheetQuestion, str], str | None]] = MappingProxyType(
    {Asked.REFERENCE: _reference, Asked.WORKSHEET: _worksheet, Asked.ENCODING: _encoding}
)


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
