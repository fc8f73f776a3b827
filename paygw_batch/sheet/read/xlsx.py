"""Reads a workbook (.xlsx) as exact text: chooses the worksheet, finds its header, and records doubtful cells."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice

import polars as pl

from paygw_batch.core.generator_marks import OUR_WORKSHEETS
from paygw_batch.countries.data import config_dir, read_countries, read_numbers
from paygw_batch.errors import QuestionKind, SheetError, SheetQuestion
from paygw_batch.language import mark, say, say_count
from paygw_batch.sheet.amounts import is_currency_word
from paygw_batch.sheet.findings import MAX_SHOWN_CHARACTERS, build_findings
from paygw_batch.sheet.read.frame import TYPED_MESSAGE, Table
from paygw_batch.sheet.read.headings import (
    HEADER_ROWS,
    HeadingError,
    ReadOptions,
    header_similarity,
    is_header,
    match_headings,
    no_header_error,
)
from paygw_batch.sheet.read.workbook_styles import UNKNOWN_FORMAT, CellStyle, Overlays, words_in_format
from paygw_batch.sheet.read.xlsx_cells import Doubt, Row, Workbook, WorksheetPart

_ROWS_AT_ONCE = 20_000
_CELLS_AT_ONCE = 200_000
_CHARACTERS_AT_ONCE = 1 << 23
"""The number of characters in a worksheet to keep as objects before they move to a frame."""
_CENTS = re.compile(r"[0-9][^0-9]+[0-9]{1,2}(?![0-9])")
_IDS = frozenset({"client_orderid", "order_id"})
_DATE_COLUMNS = frozenset({"amount", "time", "sent_at"})
"""Columns in which dates are expected, or are always defects."""
_DOUBT_MESSAGES = {
    Doubt.FORMULA: mark(
        "{value} is a formula without a value. Paste it as a value, or save the workbook in a spreadsheet program."
    ),
    Doubt.DIGITS: mark(
        "{value}: a spreadsheet can store only 15 digits of a number, so this one is wrong. Format the column as "
        "text, then enter the number again."
    ),
}
_IsHeader = Callable[[Sequence[str]], bool]
_Finding = tuple[int, str, str | None, str, str]
"""A finding as a tuple in the order of `DEFECT_SCHEMA`."""


@dataclass(frozen=True, slots=True)
class SheetLocation:
    """The location of a sheet in a workbook. `names` are the column names in the sheet's frame."""

    worksheet: str
    names: tuple[str, ...]


@dataclass(slots=True)
class Content:
    """A worksheet's rows, and doubts about them. `frames` have `row`, and columns named by number."""

    rows_above: list[Row] = field(default_factory=list)
    header: Row | None = None
    columns: Mapping[int, str] = field(default_factory=dict)
    """The known columns, by number."""
    frames: list[pl.DataFrame] = field(default_factory=list)
    hidden_rows: list[int] = field(default_factory=list)
    hidden_columns: list[tuple[int, int]] = field(default_factory=list)
    doubts: list[tuple[int, int, Doubt, str]] = field(default_factory=list)
    struck_rows: list[int] = field(default_factory=list)
    displayed: list[tuple[int, int, str, str]] = field(default_factory=list)
    """The row, column, text and displayed text of each cell that is displayed differently."""
    formats: dict[tuple[tuple[str, ...], str, str], tuple[int, str, str]] = field(default_factory=dict)
    """Words next to an amount, currency, country -> row, text and displayed text of the first such amount."""
    overlays: Overlays | None = None

    def rows_below(self, names: Sequence[str]) -> pl.DataFrame:
        by_number = {str(number): name for number, name in enumerate(names, start=1)}
        empty = pl.DataFrame(schema={"row": pl.UInt32} | dict.fromkeys(by_number, pl.String))
        return pl.concat([empty, *self.frames], how="diagonal").select(empty.columns).rename(by_number)

    def heading(self, number: int) -> str:
        return " ".join(self.header.texts.get(number, "").split()) if self.header is not None else ""

    def add(self, row: Row) -> int:
        """Record the doubts about a row. Returns how many of them become warnings."""
        old_count = len(self.displayed) + len(self.formats)
        if row.is_hidden:
            self.hidden_rows.append(row.number)
        self.doubts += [(row.number, number, doubt, row.texts[number]) for number, doubt in row.doubts.items()]
        if not row.struck.isdisjoint(self.columns):
            self.struck_rows.append(row.number)
        for number, display in row.displayed.items():
            if (name := self.columns.get(number)) is None:
                continue
            text = row.texts[number]
            shown_text = display if isinstance(display, str) else display.displayed_number(text, is_exact=name in _IDS)
            if shown_text is not None and _shows_other_value(name, text, shown_text, partial(self._row_code, row)):
                self.displayed.append((row.number, number, text, shown_text))
            elif name == "amount" and isinstance(display, CellStyle) and (words := words_in_format(display.code)):
                key = (words, self._row_code(row, "currency"), self._row_code(row, "country"))
                if key not in self.formats:
                    self.formats[key] = (row.number, text, display.displayed_number(text, is_exact=True) or text)
        return row.is_hidden + bool(row.struck) + len(self.displayed) + len(self.formats) - old_count

    def _row_code(self, row: Row, name: str) -> str:
        return next((row.texts.get(n, "") for n, column in self.columns.items() if column == name), "").strip().upper()


def read_workbook(data: bytes, options: ReadOptions) -> Table:
    """Read the chosen worksheet, or the only one that looks like a sheet of payees.

    In known columns, formulas without a value and numbers with more digits than a spreadsheet can store are defects
    (`COLUMN.formula`, `COLUMN.digits`). Anything that a person might not see is a warning: hidden rows and columns
    (`row.hidden`, `column.hidden`), rows struck through (`row.struck`), and values that are displayed differently or
    not at all (`COLUMN.shown_otherwise`). Similar worksheets are reported as notes. Raises `SheetError`.
    """
    book = Workbook(data, file=options.file, max_bytes=options.max_sheet_bytes)
    part, matches = _choose_worksheet(book, options)
    notes = tuple(_worksheet_notes(book, part, matches))

    def find_columns(header: Row) -> Mapping[int, str]:
        names = match_headings(row_texts(header), options, row=header.number).names
        return {number: name for number, name in enumerate(names, start=1) if name in options.columns}

    content = read_content(book, part, partial(is_header, options=options), find_columns)
    if content.header is None:
        raise _missing_header_error(book, part, content, options)
    width = max(*content.header.texts, *(int(name) for frame in content.frames for name in frame.columns[1:]), 1)
    cells = [content.header.texts.get(column, "") for column in range(1, width + 1)]
    headings = match_headings(cells, options, row=content.header.number)
    defects, warnings = _doubt_defects(content), appearance_warnings(content)
    worksheet = part.name if len(book.worksheets()) > 1 else ""
    others = tuple(_unread_worksheets(book, part, matches))
    return Table(content.rows_below(headings.names), headings, notes, defects, warnings, worksheet, others)


def locate_sheet(data: bytes, options: ReadOptions) -> SheetLocation:
    """Locate the sheet that `read_workbook` reads."""
    book = Workbook(data, file=options.file, max_bytes=options.max_sheet_bytes)
    part, _ = _choose_worksheet(book, options)
    content, _ = read_to_header(book, part, partial(is_header, options=options))
    if content.header is None:
        raise _missing_header_error(book, part, content, options)
    headings = match_headings(row_texts(content.header), options, row=content.header.number)
    return SheetLocation(part.name, headings.names)


def _choose_worksheet(book: Workbook, options: ReadOptions) -> tuple[WorksheetPart, Mapping[WorksheetPart, Content]]:
    """Choose the worksheet to read. Also returns all that look like a sheet of payees, with their headers."""
    file = options.file
    parts = book.worksheets()
    if not parts:
        raise SheetError(say("{file} has no worksheet.", file=file))
    matches = {part: content for part in parts if (content := _read_header(book, part, options)).header is not None}
    if options.sheet_name is not None:
        return _find_worksheet(parts, options.sheet_name, file), matches
    visible = [part for part in matches if not part.is_hidden]
    if len(visible) > 1 or (matches and not visible):
        candidates = {part: matches[part] for part in visible or matches}
        choices, row_counts = [part.name for part in candidates], _describe_row_counts(book, candidates)
        names = ", ".join(f"{name!r} ({count})" for name, count in zip(choices, row_counts, strict=True))
        raise SheetQuestion(
            QuestionKind.WORKSHEET,
            say("{file}: several worksheets look like a sheet of payees: {names}.", file=file, names=names)
            if len(visible) > 1
            else say("{file}: only hidden worksheets look like a sheet of payees: {names}.", file=file, names=names),
            hint=say("Choose the right one with --worksheet {name}.", name=shlex.quote(choices[0])),
            question=say("Which worksheet do you want to use?"),
            choices=choices,
            samples=row_counts,
        )
    return visible[0] if visible else _most_likely_worksheet(book, parts, options), matches


def _worksheet_notes(book: Workbook, chosen: WorksheetPart, matches: Mapping[WorksheetPart, Content]) -> Iterator[str]:
    """Yield a note if the chosen worksheet is hidden, and one for each similar worksheet that is not read."""
    if chosen.is_hidden:
        yield say("The worksheet {name!r} is hidden in the spreadsheet, but was read as you asked.", name=chosen.name)
    others = {part: content for part, content in matches.items() if part != chosen}
    for part, row_count in zip(others, _describe_row_counts(book, others), strict=True):
        values = {"name": part.name, "rows": row_count, "chosen": chosen.name}
        yield (
            say("The worksheet {name!r} ({rows}) is hidden and is not read. {chosen!r} is read instead.", **values)
            if part.is_hidden
            else say("The worksheet {name!r} ({rows}) is not read or paid here. {chosen!r} is read instead.", **values)
        )


def _unread_worksheets(
    book: Workbook, chosen: WorksheetPart, matches: Mapping[WorksheetPart, Content]
) -> Iterator[tuple[str, int | None]]:
    """Yield `Sheet.other_worksheets`, omitting worksheets that this program wrote."""
    for part in book.worksheets():
        if part == chosen:
            continue
        if part in matches:
            yield part.name, _count_rows(book, part, matches[part])
        elif not part.is_hidden and not _is_written_by_us(read_to_header(book, part, lambda _cells: False)[0]):
            yield part.name, None


def _count_rows(book: Workbook, part: WorksheetPart, content: Content) -> int:
    return book.count_rows(part) - len(content.rows_above) - 1


def _describe_row_counts(book: Workbook, contents: Mapping[WorksheetPart, Content]) -> Sequence[str]:
    counts = [_count_rows(book, part, content) for part, content in contents.items()]
    return [say_count(count, "{count:,} row", "{count:,} rows") for count in counts]


def _most_likely_worksheet(book: Workbook, parts: Sequence[WorksheetPart], options: ReadOptions) -> WorksheetPart:
    candidates = [part for part in parts if not part.is_hidden] or parts

    def rate_worksheet(part: WorksheetPart) -> tuple[bool, int, int]:
        rows_above = _read_header(book, part, options).rows_above
        return max((header_similarity(row_texts(row), options) for row in rows_above), default=(False, 0, 0))

    return max(candidates, key=rate_worksheet)


def _missing_header_error(book: Workbook, part: WorksheetPart, content: Content, options: ReadOptions) -> HeadingError:
    worksheet = part.name if len(book.worksheets()) > 1 else None
    texts = {row.number: row_texts(row) for row in content.rows_above}
    rows = [texts.get(number, []) for number in range(1, max(texts, default=0) + 1)]  # the file omits blank rows
    return no_header_error(rows, options, worksheet=worksheet)


def _find_worksheet(parts: Sequence[WorksheetPart], name: str, file: str) -> WorksheetPart:
    """Find a worksheet by name. Case matters only if several names differ only in case."""
    same_ignoring_case = [part for part in parts if part.name.casefold() == name.casefold()]
    matches = [part for part in same_ignoring_case if part.name == name] or same_ignoring_case
    if len(matches) != 1:
        names = ", ".join(repr(part.name) for part in parts)
        raise SheetError(
            say("{file} has several worksheets called {name!r}.", file=file, name=name)
            if matches
            else say("{file} has no worksheet called {name!r}.", file=file, name=name),
            hint=say("Its worksheets are {names}.", names=names),
        )
    return matches[0]


def row_texts(row: Row) -> list[str]:
    """Return a row's texts, which are empty for missing cells."""
    return [row.texts.get(column, "") for column in range(1, max(row.texts, default=0) + 1)]


def _read_header(book: Workbook, part: WorksheetPart, options: ReadOptions) -> Content:
    content, _ = read_to_header(book, part, partial(is_header, options=options))
    if _is_written_by_us(content):
        content.header = None
    return content


def _is_written_by_us(content: Content) -> bool:
    return bool(content.rows_above) and not OUR_WORKSHEETS.isdisjoint(content.rows_above[0].texts.values())


def read_to_header(book: Workbook, part: WorksheetPart, is_header: _IsHeader) -> tuple[Content, Iterator[Row]]:
    """Read a worksheet down to its header, if it has one. Also returns an iterator over the other rows."""
    content = Content()
    rows = book.rows(part)
    for row in rows:
        if row.number > HEADER_ROWS:
            break
        if is_header(row_texts(row)):
            content.header = row
            break
        content.rows_above.append(row)
    return content, rows


def read_content(
    book: Workbook, part: WorksheetPart, is_header: _IsHeader, find_columns: Callable[[Row], Mapping[int, str]]
) -> Content:
    """Read a worksheet. `find_columns` returns a header's known columns, by number."""
    content, rows = read_to_header(book, part, is_header)
    used_columns: set[int] = set()
    row_count = 0
    if content.header is not None:
        content.columns = find_columns(content.header)
    while content.header is not None and (chunk := _read_chunk(rows)):
        columns = sorted({column for row in chunk for column in row.texts})
        used_columns.update(columns)
        row_count += len(chunk)
        book.budget.count_doubts(sum(len(row.doubts) for row in chunk), sum(map(content.add, chunk)))
        book.budget.check_memory_for_cells(row_count, len(used_columns))
        # The file omits blank rows and cells, so row and column numbers come from the cells' addresses.
        numbers = pl.Series("row", [row.number for row in chunk], pl.UInt32)
        texts = [pl.Series(str(column), [row.texts.get(column) for row in chunk], pl.String) for column in columns]
        content.frames.append(pl.DataFrame([numbers, *texts]))
        chunk.clear()  # frees the rows before the next ones are read
    content.hidden_columns = book.hidden_columns
    content.overlays = book.overlays
    return content


def _read_chunk(rows: Iterator[Row]) -> list[Row]:
    chunk: list[Row] = []
    cells = characters = 0
    for row in islice(rows, _ROWS_AT_ONCE):
        chunk.append(row)
        cells += len(row.texts)
        characters += sum(map(len, row.texts.values()))
        if cells >= _CELLS_AT_ONCE or characters >= _CHARACTERS_AT_ONCE:
            break
    return chunk


def appearance_warnings(content: Content) -> pl.DataFrame:
    """Return warnings about rows, columns and values that the workbook hides or displays differently."""
    names = content.columns
    hidden = say("The row is hidden in the spreadsheet, but will be paid like any other. Unhide it or delete it.")
    struck = say(
        "The row, or part of it, is struck through in the spreadsheet, but will be paid like any other. Delete "
        "the row if it should not be paid."
    )
    findings: list[_Finding] = [(row, "row", None, "row.hidden", hidden) for row in content.hidden_rows]
    findings += [(row, "row", None, "row.struck", struck) for row in content.struck_rows]
    findings += [
        (
            row,
            names[col],
            text[:MAX_SHOWN_CHARACTERS],
            f"{names[col]}.shown_otherwise",
            _value_message(text, shown_text),
        )
        for row, col, text, shown_text in [*content.displayed, *_covered_values(content)]
    ]
    findings += [*_rule_warnings(content), *_currency_warnings(content)]
    filled_names = {name for frame in content.frames for name in frame.columns if frame[name].count()}
    for col, name in names.items():
        if str(col) in filled_names and any(first <= col <= last for first, last in content.hidden_columns):
            message = say(
                "The column {heading!r} is hidden in the spreadsheet, but its values are used.",
                heading=content.heading(col),
            )
            findings.append((0, name, None, "column.hidden", message))
    return build_findings(findings)


def _covered_values(content: Content) -> Iterator[tuple[int, int, str, str]]:
    """Yield the values hidden by merged cells, as in `Content.displayed`."""
    if content.overlays is None or not content.overlays.merged:
        return
    listed_cells = {(row, col) for row, col, *_ in content.displayed}
    for col in content.columns:
        frames = [frame.select("row", str(col)).drop_nulls() for frame in content.frames if str(col) in frame.columns]
        texts: dict[int, str] = dict(pl.concat(frames).iter_rows()) if frames else {}
        covered_rows = content.overlays.covered_rows(col, [*texts])
        yield from ((row, col, texts[row], "") for row in covered_rows if (row, col) not in listed_cells)


def _currency_warnings(content: Content) -> Iterator[_Finding]:
    """Yield a warning for each format that displays amounts in a currency other than their own."""
    currencies = {code: country.currency for code, country in read_countries(config_dir()).items()}
    for (words, currency, country), (row, text, displayed_text) in content.formats.items():
        own_currency = currency or currencies.get(country, "")
        if own_currency in currencies.values() and not all(is_currency_word(word, own_currency) for word in words):
            message = say(
                "Row {row}: {value} is shown as {seen} in the spreadsheet, but its currency is {currency}. Check which "
                "currency is correct in this row and in all rows shown in the same way.",
                row=row,
                value=text[:MAX_SHOWN_CHARACTERS],
                seen=displayed_text,
                currency=own_currency,
            )
            yield 0, "amount", None, "amount.shown_otherwise", message


def _rule_warnings(content: Content) -> Iterator[_Finding]:
    """Yield warnings about conditional formatting that may strike rows through or hide values."""
    if content.overlays is None or content.header is None:
        return
    effects = content.overlays.rule_effects([*content.columns], below=content.header.number)
    if any(effect.strikes for _, effect in effects):
        message = say(
            "Conditional formatting in the spreadsheet strikes through some rows, but they will be paid like any "
            "other. Delete those that should not be paid."
        )
        yield 0, "row", None, "row.struck", message
    for column in sorted({column for column, effect in effects if effect.obscures}):
        message = say(
            "Conditional formatting in the spreadsheet can hide values in the column {heading!r}, or show different "
            "ones. The actual values are used.",
            heading=content.heading(column),
        )
        yield 0, content.columns[column], None, f"{content.columns[column]}.shown_otherwise", message


def _value_message(text: str, shown: str) -> str:
    value = text[:MAX_SHOWN_CHARACTERS]
    if shown == UNKNOWN_FORMAT:
        return say(TYPED_MESSAGE, value=value)
    if not shown:
        return say("{value} is hidden in the spreadsheet, but will still be used. Unhide it or delete it.", value=value)
    return say("{value} is shown as {seen} in the spreadsheet. Check which one is correct.", value=value, seen=shown)


def _shows_other_value(name: str, text: str, displayed_text: str, row_code: Callable[[str], str]) -> bool:
    """Return whether the displayed text looks like another value, rather than the same value in another format."""
    digits = "".join(letter for letter in displayed_text if letter.isdigit())
    match name:
        case _ if displayed_text in {"", UNKNOWN_FORMAT}:
            return displayed_text != UNKNOWN_FORMAT or name not in _DATE_COLUMNS
        case "amount":  # a separator before the last two digits turns a whole number into cents
            return digits.lstrip("0") != text or bool(_CENTS.search(displayed_text))
        case _ if name in _IDS:
            return displayed_text != text
        case _ if "phone" in name:  # a leading zero and the country's own code make no difference
            dialling_code = _dialling_code(row_code("country"))
            return digits.lstrip("0").removeprefix(dialling_code) != text.lstrip("0").removeprefix(dialling_code)
        case _:
            return digits != text


@cache
def _dialling_code(country: str) -> str:
    numbers = read_numbers(config_dir())
    return numbers[country].dialling_code if country in numbers else ""


def _doubt_defects(content: Content) -> pl.DataFrame:
    doubts = (
        (row, content.columns.get(col), doubt, text[:MAX_SHOWN_CHARACTERS]) for row, col, doubt, text in content.doubts
    )
    return build_findings(
        (row, name, text, f"{name}.{doubt}", say(_DOUBT_MESSAGES[doubt], value=text))
        for row, name, doubt, text in doubts
        if name is not None
    )
