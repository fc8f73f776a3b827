"""Reads a workbook (.xlsx) as a frame of exact text: chooses the worksheet, finds its header, notes doubtful cells."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice

import polars as pl

from paygw_batch.core.generator_marks import OUR_WORKSHEETS
from paygw_batch.countries.data import config_dir, read_countries, read_numbers
from paygw_batch.errors import Asked, SheetError, SheetQuestion
from paygw_batch.language import mark, say, say_count
from paygw_batch.sheet.amounts import is_own_currency
from paygw_batch.sheet.findings import SHOWN_CHARACTERS, as_defects
from paygw_batch.sheet.read.frame import TYPED_SENTENCE, Table
from paygw_batch.sheet.read.headings import (
    HEADER_ROWS,
    HeadingError,
    ReadOptions,
    header_likeness,
    is_header,
    match_headings,
    no_header,
)
from paygw_batch.sheet.read.workbook_styles import TYPED, CellStyle, Overlays, words_beside
from paygw_batch.sheet.read.xlsx_cells import Doubt, Row, Workbook, WorksheetPart

_ROWS_AT_ONCE = 20_000
_CELLS_AT_ONCE = 200_000
_CHARACTERS_AT_ONCE = 1 << 23
"""The number of characters of a worksheet that are kept as objects before they go into a frame."""
_CENTS = re.compile(r"[0-9][^0-9]+[0-9]{1,2}(?![0-9])")
_IDS = frozenset({"client_orderid", "order_id"})
_MAY_BE_TYPED = frozenset({"amount", "time", "sent_at"})
"""Columns in which a date is meant, or is a defect anyway."""
_SENTENCES = {
    Doubt.FORMULA: mark(
        "{value} is a formula without a value: paste it as a value, or save the workbook in a spreadsheet."
    ),
    Doubt.DIGITS: mark(
        "{value}: a spreadsheet keeps 15 digits of a number, so this one is wrong. Format the column as text "
        "and enter it again."
    ),
}


_IsHeader = Callable[[Sequence[str]], bool]
_Line = tuple[int, str, str | None, str, str]
"""A finding as a tuple in the order of `DEFECT_SCHEMA`."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a sheet of payees in a workbook. `names` has the name of each column in the sheet's frame."""

    worksheet: str
    names: tuple[str, ...]


@dataclass(slots=True)
class Content:
    """A worksheet: the rows above its header, the header, and the rows below as frames of `row` and column numbers."""

    above: list[Row] = field(default_factory=list)
    header: Row | None = None
    used: Mapping[int, str] = field(default_factory=dict)
    """The known columns, by their numbers."""
    frames: list[pl.DataFrame] = field(default_factory=list)
    hidden_rows: list[int] = field(default_factory=list)
    hidden_columns: list[tuple[int, int]] = field(default_factory=list)
    doubts: list[tuple[int, int, Doubt, str]] = field(default_factory=list)
    struck: list[int] = field(default_factory=list)
    shown: list[tuple[int, int, str, str]] = field(default_factory=list)
    """Row and column of a cell, its text, and the text that a person sees instead."""
    money: dict[tuple[tuple[str, ...], str, str], tuple[int, str, str]] = field(default_factory=dict)
    """Words beside amounts, currency and country of the row -> row, text and shown text of the first such amount."""
    overlays: Overlays | None = None

    def below(self, names: Sequence[str]) -> pl.DataFrame:
        by_number = {str(at): name for at, name in enumerate(names, start=1)}
        empty = pl.DataFrame(schema={"row": pl.UInt32} | dict.fromkeys(by_number, pl.String))
        return pl.concat([empty, *self.frames], how="diagonal").select(empty.columns).rename(by_number)

    def heading(self, at: int) -> str:
        return " ".join(self.header.texts.get(at, "").split()) if self.header is not None else ""

    def add(self, row: Row) -> int:
        """Record the doubts about a row, and return the number of those that become warnings."""
        before = len(self.shown) + len(self.money)
        if row.hidden:
            self.hidden_rows.append(row.number)
        self.doubts += [(row.number, at, doubt, row.texts[at]) for at, doubt in row.doubts.items()]
        if not row.struck.isdisjoint(self.used):
            self.struck.append(row.number)
        for at, how in row.shown.items():
            if (name := self.used.get(at)) is None:
                continue
            text = row.texts[at]
            seen = how if isinstance(how, str) else how.shown_number(text, is_exact=name in _IDS)
            if seen is not None and _is_other(name, text, seen, partial(self._code_in, row)):
                self.shown.append((row.number, at, text, seen))
            elif name == "amount" and isinstance(how, CellStyle) and (words := words_beside(how.code)):
                key = (words, self._code_in(row, "currency"), self._code_in(row, "country"))
                if key not in self.money:
                    self.money[key] = (row.number, text, how.shown_number(text, is_exact=True) or text)
        return row.hidden + bool(row.struck) + len(self.shown) + len(self.money) - before

    def _code_in(self, row: Row, name: str) -> str:
        return next((row.texts.get(at, "") for at, column in self.used.items() if column == name), "").strip().upper()


def read_workbook(data: bytes, options: ReadOptions) -> Table:
    """Return the rows of the named worksheet, or of the only one that looks like a sheet of payees.

    A formula without a value, and a number with more digits than a spreadsheet keeps, are defects of known columns
    (`COLUMN.formula`, `COLUMN.digits`). Anything that a person could not see is a warning: a hidden row or column
    (`row.hidden`, `column.hidden`), a row that is struck through (`row.struck`), a value that the spreadsheet shows
    differently or not at all (`COLUMN.shown_otherwise`). Other worksheets that look like it become notes. Raises
    `SheetError`.
    """
    workbook = Workbook(data, file=options.file, max_bytes=options.max_sheet_bytes)
    part, fitting = _chosen(workbook, options)
    notes = tuple(_notes(workbook, part, fitting))

    def used(header: Row) -> Mapping[int, str]:
        names = match_headings(cells_of(header), options, row=header.number).names
        return {at: name for at, name in enumerate(names, start=1) if name in options.columns}

    content = content_of(workbook, part, partial(is_header, options=options), used)
    if content.header is None:
        raise _no_header(workbook, part, content, options)
    width = max(*content.header.texts, *(int(name) for frame in content.frames for name in frame.columns[1:]), 1)
    cells = [content.header.texts.get(column, "") for column in range(1, width + 1)]
    headings = match_headings(cells, options, row=content.header.number)
    return Table(
        content.below(headings.names),
        headings,
        notes,
        _defects(content),
        warnings_in(content),
        part.name if len(fitting) > 1 else None,
    )


def place_of(data: bytes, options: ReadOptions) -> Place:
    """Return the place of the sheet that `read_workbook` reads, and the names of its columns with headings."""
    workbook = Workbook(data, file=options.file, max_bytes=options.max_sheet_bytes)
    part, _ = _chosen(workbook, options)
    content, _ = header_of(workbook, part, partial(is_header, options=options))
    if content.header is None:
        raise _no_header(workbook, part, content, options)
    headings = match_headings(cells_of(content.header), options, row=content.header.number)
    return Place(part.name, headings.names)


def _chosen(workbook: Workbook, options: ReadOptions) -> tuple[WorksheetPart, Mapping[WorksheetPart, Content]]:
    """Return the worksheet to read, and all that look like a sheet of payees, down to their headers."""
    file = options.file
    parts = workbook.worksheets()
    if not parts:
        raise SheetError(say("{file} has no worksheet.", file=file))
    fitting = {part: content for part in parts if (content := _read_header(workbook, part, options)).header is not None}
    if options.sheet_name is not None:
        return _named(parts, options.sheet_name, file), fitting
    visible = [part for part in fitting if not part.hidden]
    if len(visible) > 1 or (fitting and not visible):
        asked = {part: fitting[part] for part in visible or fitting}
        choices, rows = [part.name for part in asked], _rows_of(workbook, asked)
        names = ", ".join(f"{name!r} ({count})" for name, count in zip(choices, rows, strict=True))
        raise SheetQuestion(
            Asked.WORKSHEET,
            say("{file}: Several worksheets look like a sheet of payees: {names}.", file=file, names=names)
            if len(visible) > 1
            else say("{file}: Only hidden worksheets look like a sheet of payees: {names}.", file=file, names=names),
            hint=say("Name the right one: --worksheet {name}.", name=shlex.quote(choices[0])),
            question=say("Which worksheet is meant?"),
            choices=choices,
            samples=rows,
        )
    return visible[0] if visible else _nearest(workbook, parts, options), fitting


def _notes(workbook: Workbook, chosen: WorksheetPart, fitting: Mapping[WorksheetPart, Content]) -> Iterator[str]:
    """Yield notes about a worksheet that was hidden, and about those that look like it and are not read."""
    if chosen.hidden:
        yield say("The worksheet {name!r} is hidden in the spreadsheet; it is read, as asked.", name=chosen.name)
    others = {part: content for part, content in fitting.items() if part != chosen}
    for part, rows in zip(others, _rows_of(workbook, others), strict=True):
        names = {"name": part.name, "rows": rows, "chosen": chosen.name}
        yield (
            say("The worksheet {name!r} is hidden, and is not read: {rows}. {chosen!r} is read.", **names)
            if part.hidden
            else say("The worksheet {name!r} is not read, and not paid here: {rows}. {chosen!r} is read.", **names)
        )


def _rows_of(workbook: Workbook, fitting: Mapping[WorksheetPart, Content]) -> Sequence[str]:
    """Return how many rows each worksheet has below its header, in words."""
    counts = [workbook.height(part) - len(content.above) - 1 for part, content in fitting.items()]
    return [say_count(count, "{count:,} row", "{count:,} rows") for count in counts]


def _nearest(workbook: Workbook, parts: Sequence[WorksheetPart], options: ReadOptions) -> WorksheetPart:
    candidates = [part for part in parts if not part.hidden] or parts

    def likeness(part: WorksheetPart) -> tuple[bool, int, int]:
        above = _read_header(workbook, part, options).above
        return header_likeness([cells_of(row) for row in above], options)

    return max(candidates, key=likeness)


def _no_header(workbook: Workbook, part: WorksheetPart, content: Content, options: ReadOptions) -> HeadingError:
    worksheet = part.name if len(workbook.worksheets()) > 1 else None
    above = {row.number: cells_of(row) for row in content.above}
    rows = [above.get(number, []) for number in range(1, max(above, default=0) + 1)]  # blank rows are not in the file
    return no_header(rows, options, worksheet=worksheet)


def _named(parts: Sequence[WorksheetPart], name: str, file: str) -> WorksheetPart:
    """Return the worksheet with that name, ignoring case as a spreadsheet does, unless names differ only in case."""
    alike = [part for part in parts if part.name.casefold() == name.casefold()]
    exact = [part for part in alike if part.name == name]
    matching = exact or alike
    if len(matching) != 1:
        names = ", ".join(repr(part.name) for part in parts)
        raise SheetError(
            say("{file} has several worksheets called {name!r}.", file=file, name=name)
            if matching
            else say("{file} has no worksheet called {name!r}.", file=file, name=name),
            hint=say("It has {names}.", names=names),
        )
    return matching[0]


def cells_of(row: Row) -> list[str]:
    """Return the texts of a row up to its last text, with empty texts between them."""
    return [row.texts.get(column, "") for column in range(1, max(row.texts, default=0) + 1)]


def _read_header(workbook: Workbook, part: WorksheetPart, options: ReadOptions) -> Content:
    content, _ = header_of(workbook, part, partial(is_header, options=options))
    if content.above and not OUR_WORKSHEETS.isdisjoint(content.above[0].texts.values()):
        content.header = None
    return content


def header_of(workbook: Workbook, part: WorksheetPart, is_header: _IsHeader) -> tuple[Content, Iterator[Row]]:
    """Return a worksheet down to its header, if it has one, and an iterator over the rows after that."""
    content = Content()
    rows = workbook.rows(part)
    for row in rows:
        if row.number > HEADER_ROWS:
            break
        if is_header(cells_of(row)):
            content.header = row
            break
        content.above.append(row)
    return content, rows


def content_of(
    workbook: Workbook, part: WorksheetPart, is_header: _IsHeader, used: Callable[[Row], Mapping[int, str]]
) -> Content:
    """Return the content of a worksheet. `used` returns the known columns below a header, by their numbers."""
    content, rows = header_of(workbook, part, is_header)
    used_columns: set[int] = set()
    height = 0
    if content.header is not None:
        content.used = used(content.header)
    while content.header is not None and (chunk := _next_rows(rows)):
        columns = sorted({column for row in chunk for column in row.texts})
        used_columns.update(columns)
        height += len(chunk)
        workbook.budget.hold_doubts(sum(len(row.doubts) for row in chunk), sum(map(content.add, chunk)))
        workbook.budget.hold_cells(height, len(used_columns))
        # A row keeps the number that the spreadsheet shows, and a column its place. Blank rows and cells are not in the
        # file, so counting the others would give wrong numbers.
        numbers = pl.Series("row", [row.number for row in chunk], pl.UInt32)
        texts = [pl.Series(str(column), [row.texts.get(column) for row in chunk], pl.String) for column in columns]
        content.frames.append(pl.DataFrame([numbers, *texts]))
        chunk.clear()  # frees the rows before the next ones are read
    content.hidden_columns = workbook.hidden_columns
    content.overlays = workbook.overlays
    return content


def _next_rows(rows: Iterator[Row]) -> list[Row]:
    chunk: list[Row] = []
    cells = characters = 0
    for row in islice(rows, _ROWS_AT_ONCE):
        chunk.append(row)
        cells += len(row.texts)
        characters += sum(map(len, row.texts.values()))
        if cells >= _CELLS_AT_ONCE or characters >= _CHARACTERS_AT_ONCE:
            break
    return chunk


def warnings_in(content: Content) -> pl.DataFrame:
    """Return a warning for each value, row or column that the workbook shows differently from the payment."""
    used = content.used
    hidden = say("The row is hidden in the spreadsheet, and is paid like all others: show it, or delete it.")
    struck = say(
        "The row, or a part of it, is struck through in the spreadsheet. It is paid like any other: delete it if it "
        "should not be."
    )
    lines: list[_Line] = [(row, "row", None, "row.hidden", hidden) for row in content.hidden_rows]
    lines += [(row, "row", None, "row.struck", struck) for row in content.struck]
    lines += [
        (row, used[at], text[:SHOWN_CHARACTERS], f"{used[at]}.shown_otherwise", _shown_sentence(text, seen))
        for row, at, text, seen in [*content.shown, *_covered(content)]
    ]
    lines += [*_ruled(content), *_other_money(content)]
    filled = {name for frame in content.frames for name in frame.columns if frame[name].count()}
    for at, name in used.items():
        if str(at) in filled and any(first <= at <= last for first, last in content.hidden_columns):
            sentence = say(
                "The column {heading!r} is hidden in the spreadsheet, and its values are used.",
                heading=content.heading(at),
            )
            lines.append((0, name, None, "column.hidden", sentence))
    return as_defects(lines)


def _covered(content: Content) -> Iterator[tuple[int, int, str, str]]:
    """Yield the values that merged cells hide, in the form of `Content.shown`. A person sees nothing at that place."""
    if content.overlays is None or not content.overlays.merged:
        return
    noted = {(row, at) for row, at, *_ in content.shown}
    for at in content.used:
        parts = [frame.select("row", str(at)).drop_nulls() for frame in content.frames if str(at) in frame.columns]
        texts: dict[int, str] = dict(pl.concat(parts).iter_rows()) if parts else {}
        under = content.overlays.covered(at, [*texts])
        yield from ((row, at, texts[row], "") for row in under if (row, at) not in noted)


def _other_money(content: Content) -> Iterator[_Line]:
    """Yield a warning for each format that shows amounts with a word of another currency."""
    currencies = {code: country.currency for code, country in read_countries(config_dir()).items()}
    for (words, currency, country), (row, text, seen) in content.money.items():
        own_currency = currency or currencies.get(country, "")
        if own_currency in currencies.values() and not all(is_own_currency(word, own_currency) for word in words):
            sentence = say(
                "Row {row}: {value} is shown as {seen} in the spreadsheet, and its currency is {currency}. Check which "
                "one is meant, there and in all rows that are shown so.",
                row=row,
                value=text[:SHOWN_CHARACTERS],
                seen=seen,
                currency=own_currency,
            )
            yield 0, "amount", None, "amount.shown_otherwise", sentence


def _ruled(content: Content) -> Iterator[_Line]:
    """Yield a warning if rules of the spreadsheet can strike cells through, and for each column that they can hide."""
    if content.overlays is None or content.header is None:
        return
    effects = content.overlays.ruled([*content.used], below=content.header.number)
    if any(effect.strikes for _, effect in effects):
        sentence = say(
            "A rule of the spreadsheet (conditional formatting) strikes rows through. They are paid like any other: "
            "delete those that should not be."
        )
        yield 0, "row", None, "row.struck", sentence
    for at in sorted({at for at, effect in effects if effect.hides}):
        sentence = say(
            "A rule of the spreadsheet (conditional formatting) can hide values in the column {heading!r}, or show "
            "others. The values themselves are used.",
            heading=content.heading(at),
        )
        yield 0, content.used[at], None, f"{content.used[at]}.shown_otherwise", sentence


def _shown_sentence(text: str, seen: str) -> str:
    value = text[:SHOWN_CHARACTERS]
    if seen == TYPED:
        return say(TYPED_SENTENCE, value=value)
    if not seen:
        return say(
            "{value} cannot be seen in the spreadsheet, and is used: make it visible, or delete it.", value=value
        )
    return say("{value} is shown as {seen} in the spreadsheet. Check which one is meant.", value=value, seen=seen)


def _is_other(name: str, text: str, seen: str, code_in: Callable[[str], str]) -> bool:
    """Whether a person sees another value, and not just another layout of the same value."""
    digits = "".join(letter for letter in seen if letter.isdigit())
    match name:
        case _ if seen in {"", TYPED}:
            return seen != TYPED or name not in _MAY_BE_TYPED
        case "amount":  # a sign before its last two digits turns a whole number into cents
            return digits.lstrip("0") != text or bool(_CENTS.search(seen))
        case _ if name in _IDS:
            return seen != text
        case _ if "phone" in name:  # a zero in front and the country's own code change nothing
            code = _dialling_code(code_in("country"))
            return digits.lstrip("0").removeprefix(code) != text.lstrip("0").removeprefix(code)
        case _:
            return digits != text


@cache
def _dialling_code(country: str) -> str:
    numbers = read_numbers(config_dir())
    return numbers[country].dialling_code if country in numbers else ""


def _defects(content: Content) -> pl.DataFrame:
    doubts = ((row, content.used.get(at), doubt, text[:SHOWN_CHARACTERS]) for row, at, doubt, text in content.doubts)
    return as_defects(
        (row, name, text, f"{name}.{doubt}", say(_SENTENCES[doubt], value=text))
        for row, name, doubt, text in doubts
        if name is not None
    )
