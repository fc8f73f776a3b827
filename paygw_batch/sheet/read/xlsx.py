"""Reads a workbook (.xlsx) as a frame of exact text: chooses the worksheet, finds its header, notes doubtful cells."""

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import polars as pl

from paygw_batch.core.generator_marks import OUR_WORKSHEETS
from paygw_batch.errors import Asked, SheetError, SheetQuestion
from paygw_batch.language import mark, say
from paygw_batch.sheet.findings import SHOWN_CHARACTERS, as_defects
from paygw_batch.sheet.read.frame import Table
from paygw_batch.sheet.read.headings import (
    HEADER_ROWS,
    HeadingError,
    Headings,
    Vocabulary,
    header_likeness,
    is_header,
    match_headings,
    no_header,
)
from paygw_batch.sheet.read.workbook_styles import DATE, Overlays
from paygw_batch.sheet.read.xlsx_cells import Doubt, Row, Workbook, WorksheetPart

_ROWS_AT_ONCE = 20_000
_CELLS_AT_ONCE = 200_000
_CHARACTERS_AT_ONCE = 1 << 23
"""The part of a worksheet that is kept as objects before it goes into a frame."""
_SIGN_BETWEEN = re.compile(r"[0-9][^0-9\s]+[0-9]")
_SENTENCES = {
    Doubt.FORMULA: mark(
        "{value} is a formula without a value: paste it as a value, or save the workbook in a spreadsheet."
    ),
    Doubt.DIGITS: mark(
        "{value}: a spreadsheet keeps 15 digits of a number, so this one is wrong. Format the column as text "
        "and enter it again."
    ),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Locates a sheet of payees in a workbook. `names`: the name of each column in the sheet's frame."""

    worksheet: str
    names: tuple[str, ...]


@dataclass(slots=True)
class _Content:
    """Holds a worksheet: rows above its header, the header, and below it frames of `row` and column numbers."""

    above: list[Row] = field(default_factory=list)
    header: Row | None = None
    frames: list[pl.DataFrame] = field(default_factory=list)
    hidden_rows: list[int] = field(default_factory=list)
    hidden_columns: list[tuple[int, int]] = field(default_factory=list)
    doubts: list[tuple[int, int, Doubt, str]] = field(default_factory=list)
    struck: list[tuple[int, int]] = field(default_factory=list)
    shown: list[tuple[int, int, str, str]] = field(default_factory=list)
    """Row and column of a cell, its text, and the text that a person sees instead."""
    overlays: Overlays | None = None


def read_workbook(data: bytes, vocabulary: Vocabulary, *, file: str, max_bytes: int, sheet_name: str | None) -> Table:
    """Return the rows of the only worksheet that looks like a sheet of payees, or of the named one.

    A formula without a value and a number with more digits than a spreadsheet keeps are defects of known columns
    (`COLUMN.formula`, `COLUMN.digits`). Anything that a person could not see is a warning: a hidden row or column
    (`row.hidden`, `column.hidden`), a row struck through (`row.struck`), a value that the spreadsheet shows differently
    or not at all (`COLUMN.shown_otherwise`). Hidden worksheets become notes. Raises `SheetError`.
    """
    workbook = Workbook(data, file=file, max_bytes=max_bytes)
    part, notes, is_one_of_several = _chosen(workbook, vocabulary, file=file, sheet_name=sheet_name)
    content = _content(workbook, part, vocabulary)
    if content.header is None:
        raise _no_header(workbook, part, content, vocabulary, file)
    below = pl.concat([pl.DataFrame(schema={"row": pl.UInt32}), *content.frames], how="diagonal")
    width = max(*content.header.texts, *(int(name) for name in below.columns[1:]), 1)
    cells = [content.header.texts.get(column, "") for column in range(1, width + 1)]
    headings = match_headings(cells, vocabulary, file=file, row=content.header.number)
    columns = [
        below[str(at)].alias(name) if str(at) in below.columns else pl.lit(None, pl.String).alias(name)
        for at, name in enumerate(headings.names, start=1)
    ]
    return Table(
        below.select("row", *columns),
        headings,
        tuple(notes),
        _defects(content, headings, vocabulary),
        _warnings(content, headings, vocabulary),
        part.name if is_one_of_several else None,
    )


def place_of(data: bytes, vocabulary: Vocabulary, *, file: str, max_bytes: int, sheet_name: str | None) -> Place:
    """Return the position of the sheet that `read_workbook` reads, and the names of its columns with headings."""
    workbook = Workbook(data, file=file, max_bytes=max_bytes)
    part, _, _ = _chosen(workbook, vocabulary, file=file, sheet_name=sheet_name)
    content = _Content()
    _advance_to_header(workbook.rows(part), content, vocabulary)
    if content.header is None:
        raise _no_header(workbook, part, content, vocabulary, file)
    headings = match_headings(_cells(content.header), vocabulary, file=file, row=content.header.number)
    return Place(part.name, headings.names)


def _chosen(
    workbook: Workbook, vocabulary: Vocabulary, *, file: str, sheet_name: str | None
) -> tuple[WorksheetPart, list[str], bool]:
    """Return the worksheet to read, notes about the others, and whether another could have been meant."""
    parts = workbook.worksheets()
    if not parts:
        raise SheetError(say("{file} has no worksheet.", file=file))
    fitting = [part for part in parts if _read_header(workbook, part, vocabulary).header is not None]
    if sheet_name is not None:
        named = _named(parts, sheet_name, file)
        notes = [say("The worksheet {name!r} is hidden in the spreadsheet; it is read, as asked.", name=named.name)]
        return named, notes if named.hidden else [], len(fitting) > 1
    visible = [part for part in fitting if not part.hidden]
    if len(visible) > 1 or (fitting and not visible):
        choices = [part.name for part in visible or fitting]
        names = ", ".join(map(repr, choices))
        raise SheetQuestion(
            Asked.WORKSHEET,
            say("{file}: Several worksheets look like a sheet of payees: {names}.", file=file, names=names)
            if len(visible) > 1
            else say("{file}: Only hidden worksheets look like a sheet of payees: {names}.", file=file, names=names),
            hint=say("Name the right one: --worksheet {name}.", name=shlex.quote(choices[0])),
            question=say("Which worksheet is meant?"),
            choices=choices,
        )
    notes = [
        say("The worksheet {name!r} is hidden, and is not read.", name=part.name) for part in fitting if part.hidden
    ]
    return visible[0] if visible else _nearest(workbook, parts, vocabulary), notes, len(fitting) > 1


def _nearest(workbook: Workbook, parts: Sequence[WorksheetPart], vocabulary: Vocabulary) -> WorksheetPart:
    """Return the worksheet closest to a sheet of payees, if none is one."""
    candidates = [part for part in parts if not part.hidden] or parts

    def likeness(part: WorksheetPart) -> tuple[bool, int, int]:
        above = _read_header(workbook, part, vocabulary).above
        return header_likeness([_cells(row) for row in above], vocabulary)

    return max(candidates, key=likeness)


def _no_header(
    workbook: Workbook, part: WorksheetPart, content: _Content, vocabulary: Vocabulary, file: str
) -> HeadingError:
    worksheet = part.name if len(workbook.worksheets()) > 1 else None
    above = {row.number: _cells(row) for row in content.above}
    rows = [above.get(number, []) for number in range(1, max(above, default=0) + 1)]  # blank rows are not in the file
    return no_header(file, rows, vocabulary, worksheet=worksheet)


def _named(parts: Sequence[WorksheetPart], name: str, file: str) -> WorksheetPart:
    """Return the worksheet with that name, ignoring case as a spreadsheet does, unless names differ only in case."""
    alike = [part for part in parts if part.name.casefold() == name.casefold()]
    exact = [part for part in alike if part.name == name]
    found = exact or alike
    if len(found) != 1:
        names = ", ".join(repr(part.name) for part in parts)
        raise SheetError(
            say("{file} has several worksheets called {name!r}.", file=file, name=name)
            if found
            else say("{file} has no worksheet called {name!r}.", file=file, name=name),
            hint=say("It has {names}.", names=names),
        )
    return found[0]


def _cells(row: Row) -> list[str]:
    return [row.texts.get(column, "") for column in range(1, max(row.texts, default=0) + 1)]


def _read_header(workbook: Workbook, part: WorksheetPart, vocabulary: Vocabulary) -> _Content:
    content = _Content()
    _advance_to_header(workbook.rows(part), content, vocabulary)
    if content.above and not OUR_WORKSHEETS.isdisjoint(content.above[0].texts.values()):
        content.header = None
    return content


def _advance_to_header(rows: Iterator[Row], content: _Content, vocabulary: Vocabulary) -> None:
    for row in rows:
        if row.number > HEADER_ROWS:
            return
        if is_header(_cells(row), vocabulary):
            content.header = row
            return
        content.above.append(row)


def _content(workbook: Workbook, part: WorksheetPart, vocabulary: Vocabulary) -> _Content:
    content = _Content()
    rows = workbook.rows(part)
    _advance_to_header(rows, content, vocabulary)
    seen: set[int] = set()
    height = 0
    while content.header is not None and (some := _some(rows)):
        columns = sorted({column for row in some for column in row.texts})
        seen.update(columns)
        height += len(some)
        workbook.budget.hold_doubts(
            sum(len(row.doubts) for row in some),
            sum(row.hidden + len(row.struck) + len(row.shown) for row in some),
        )
        workbook.budget.hold_cells(height, len(seen))
        # A row keeps the number that the spreadsheet shows, and a column its place. Blank rows and cells are not in the
        # file, so counting the others would give every later row a wrong number.
        numbers = pl.Series("row", [row.number for row in some], pl.UInt32)
        texts = [pl.Series(str(column), [row.texts.get(column) for row in some], pl.String) for column in columns]
        content.frames.append(pl.DataFrame([numbers, *texts]))
        content.hidden_rows.extend(row.number for row in some if row.hidden)
        content.doubts.extend(
            (row.number, column, doubt, row.texts[column]) for row in some for column, doubt in row.doubts.items()
        )
        content.struck.extend((row.number, column) for row in some for column in sorted(row.struck))
        content.shown.extend(
            (row.number, column, row.texts[column], seen) for row in some for column, seen in row.shown.items()
        )
    content.hidden_columns = workbook.hidden_columns
    content.overlays = workbook.overlays
    return content


def _some(rows: Iterator[Row]) -> list[Row]:
    """Return the next rows, up to a number of rows, cells or characters."""
    some: list[Row] = []
    cells = characters = 0
    for row in islice(rows, _ROWS_AT_ONCE):
        some.append(row)
        cells += len(row.texts)
        characters += sum(map(len, row.texts.values()))
        if cells >= _CELLS_AT_ONCE or characters >= _CHARACTERS_AT_ONCE:
            break
    return some


def _warnings(content: _Content, headings: Headings, vocabulary: Vocabulary) -> pl.DataFrame:
    """Return a warning for everything that the workbook shows differently from the payment that is made."""
    used = {at: name for at, name in enumerate(headings.names, start=1) if name in vocabulary.columns}
    hidden = say("The row is hidden in the spreadsheet, and is paid like all others: show it, or delete it.")
    struck = say(
        "The row is struck through in the spreadsheet. It is paid like any other: delete it if it should not be."
    )
    lines: list[tuple[int, str, str | None, str, str]] = [
        (row, "row", None, "row.hidden", hidden) for row in content.hidden_rows
    ]
    lines += [
        (row, "row", None, "row.struck", struck) for row in sorted({row for row, at in content.struck if at in used})
    ]
    shown = [one for one in content.shown if one[1] in used and _is_other(used[one[1]], *one[2:])]
    lines += [
        (row, used[at], text[:SHOWN_CHARACTERS], f"{used[at]}.shown_otherwise", _shown_sentence(text, seen))
        for row, at, text, seen in [*shown, *_covered(content, used, {(row, at) for row, at, *_ in shown})]
    ]
    lines += _ruled(content, used, headings)
    for at, name in used.items():
        if any(first <= at <= last for first, last in content.hidden_columns) and _is_held(content.frames, at):
            sentence = say(
                "The column {heading!r} is hidden in the spreadsheet, and its values are used.",
                heading=headings.sender[name],
            )
            lines.append((0, name, None, "column.hidden", sentence))
    return as_defects(lines)


def _covered(
    content: _Content, used: Mapping[int, str], seen: Collection[tuple[int, int]]
) -> Iterator[tuple[int, int, str, str]]:
    """Yield the values hidden by merged cells, in the form of `_Content.shown`: a person sees nothing there."""
    if content.overlays is None or not content.overlays.merged:
        return
    for at in used:
        held = [frame.select("row", str(at)).drop_nulls() for frame in content.frames if str(at) in frame.columns]
        texts: dict[int, str] = dict(pl.concat(held).iter_rows()) if held else {}
        under = content.overlays.covered(at, [*texts])
        yield from ((row, at, texts[row], "") for row in under if (row, at) not in seen)


def _ruled(
    content: _Content, used: Mapping[int, str], headings: Headings
) -> Iterator[tuple[int, str, str | None, str, str]]:
    """Yield a warning if rules of the spreadsheet can strike cells through, and for each column that they can hide."""
    if content.overlays is None or content.header is None:
        return
    found = content.overlays.ruled([*used], below=content.header.number)
    if any(effect.strikes for _, effect in found):
        sentence = say(
            "A rule of the spreadsheet (conditional formatting) strikes rows through. They are paid like any other: "
            "delete those that should not be."
        )
        yield 0, "row", None, "row.struck", sentence
    for at in sorted({at for at, effect in found if effect.hides}):
        sentence = say(
            "A rule of the spreadsheet (conditional formatting) can hide values in the column {heading!r}, or show "
            "others. The values themselves are used.",
            heading=headings.sender[used[at]],
        )
        yield 0, used[at], None, f"{used[at]}.shown_otherwise", sentence


def _shown_sentence(text: str, seen: str) -> str:
    value = text[:SHOWN_CHARACTERS]
    if seen == DATE:
        return say(
            "{value} is a date in the spreadsheet, which shows it in another way. If it is not meant to be a date, "
            "format the column as text and enter it again.",
            value=value,
        )
    if not seen:
        return say(
            "{value} cannot be seen in the spreadsheet, and is used: make it visible, or delete it.", value=value
        )
    return say("{value} is shown as {seen} in the spreadsheet. Check which one is meant.", value=value, seen=seen)


def _is_other(name: str, text: str, seen: str) -> bool:
    """Whether a person sees a different value, not just a different layout of the same one."""
    digits = "".join(letter for letter in seen if letter.isdigit())
    match name:
        case _ if seen in {"", DATE}:
            return seen != DATE or name != "amount"
        case "amount":  # a sign between digits makes cents of a whole number
            return digits.lstrip("0") != text or bool(_SIGN_BETWEEN.search(seen))
        case "client_orderid":
            return seen != text
        case _ if "phone" in name:  # a zero in front is understood
            return digits.lstrip("0") != text.lstrip("0")
        case _:
            return digits != text


def _is_held(frames: Sequence[pl.DataFrame], at: int) -> bool:
    return any(str(at) in frame.columns and frame[str(at)].is_not_null().any() for frame in frames)


def _defects(content: _Content, headings: Headings, vocabulary: Vocabulary) -> pl.DataFrame:
    named = ((row, headings.names[at - 1], doubt, text[:SHOWN_CHARACTERS]) for row, at, doubt, text in content.doubts)
    return as_defects(
        (row, name, text, f"{name}.{doubt}", say(_SENTENCES[doubt], value=text))
        for row, name, doubt, text in named
        if name in vocabulary.columns
    )
