"""Reads the cells of a workbook (.xlsx: ECMA-376) as a stream, each cell as exact text.

Why not a spreadsheet library: those we know round numbers to nine decimals, or make the same text of a number cell and
a text cell, or hide a formula that has no value. Here a cell's text comes with the reason to doubt it.
"""

import io
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from xml.parsers import expat

from paygw_batch.errors import SheetError
from paygw_batch.language import say
from paygw_batch.sheet.read.headings import MAX_COLUMNS
from paygw_batch.sheet.read.workbook_limits import (
    MAX_CELL_CHARACTERS,
    MAX_DEPTH,
    MAX_TAG_BYTES,
    MAX_WORKSHEETS,
    Budget,
)
from paygw_batch.sheet.read.workbook_styles import (
    FONT_TAGS,
    PLAIN,
    CellStyle,
    Font,
    Overlays,
    StyleReader,
    column_number,
    is_true,
)

_CHUNK_BYTES = 1 << 16
_MAX_ROWS = 1_048_576
_MIN_POINTS_HIGH, _MIN_CHARACTERS_WIDE = 3.0, 0.5
"""Below this height or width, a row or column is treated as hidden."""
_SAFE_DIGITS = 15
"""A spreadsheet keeps this many digits; it has replaced the others by zeros."""
_FIRST_DAY = datetime(1899, 12, 30)  # noqa: DTZ001 (a cell has no zone)
_FIRST_DAY_1904 = datetime(1904, 1, 1)  # noqa: DTZ001 (as above)
_ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")
_DAMAGED = (expat.ExpatError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError)


class Doubt(StrEnum):
    """A reason to doubt a cell's text. The value is the last part of a defect's code."""

    FORMULA = "formula"
    """A formula without a value: the workbook was never calculated after it was written."""
    DIGITS = "digits"
    """A whole number of more than 15 digits."""


@dataclass(frozen=True, slots=True)
class WorksheetPart:
    """A worksheet of a workbook: its name, whether it is hidden, and where its cells are."""

    name: str
    hidden: bool
    path: str


@dataclass(slots=True)
class Row:
    """One row: its number, whether it is hidden, and text and doubt for each column number (from 1)."""

    number: int
    hidden: bool
    texts: dict[int, str] = field(default_factory=dict)
    doubts: dict[int, Doubt] = field(default_factory=dict)
    struck: set[int] = field(default_factory=set)
    """The columns whose text is struck through."""
    shown: dict[int, str] = field(default_factory=dict)
    """The text that a person sees instead of the cell's, by column; empty: nothing."""


class Workbook:
    """A workbook in memory. Raises `SheetError` if it is damaged, protected, or above `max_bytes` unpacked."""

    def __init__(self, data: bytes, *, file: str, max_bytes: int) -> None:
        self._file = file
        self.budget = Budget(file, max_bytes)
        self._counted: set[str] = set()
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
        except _DAMAGED as error:
            raise self._damaged() from error
        self._parts = {info.filename: info for info in self._zip.infolist()}
        if len(self._parts) != len(self._zip.infolist()) or "xl/workbook.xml" not in self._parts:
            raise SheetError(
                say("{file} is not a workbook (.xlsx).", file=file),
                hint=say("Save it as .xlsx or .csv from the spreadsheet."),
            )
        self.budget.check_directory(self._zip, len(data))
        self._strings: list[str] | None = None
        self._struck_strings: set[int] = set()
        self._unseen_strings: set[int] = set()
        self._styles = StyleReader()
        self.overlays = Overlays((), self.budget)
        """The merged cells and rules of the worksheet that `rows` reads."""
        self.hidden_columns: list[tuple[int, int]] = []
        """The ranges of its hidden columns: first and last number."""
        self._first_day = _FIRST_DAY

    def worksheets(self) -> list[WorksheetPart]:
        """Return the worksheets in the workbook's order. Call it before `rows`: it reads the workbook's date system."""
        targets: dict[str, str] = {}
        found: list[WorksheetPart] = []

        def relationship(name: str, attributes: Mapping[str, str]) -> None:
            if name == "Relationship" and attributes.get("Type", "").endswith("/worksheet"):
                target = attributes.get("Target", "")
                targets[attributes.get("Id", "")] = target.lstrip("/") if target.startswith("/") else f"xl/{target}"

        def sheet(name: str, attributes: Mapping[str, str]) -> None:
            target = targets.get(next((value for key, value in attributes.items() if key.endswith(" id")), ""))
            if name == "workbookPr" and attributes.get("date1904") in {"1", "true"}:
                self._first_day = _FIRST_DAY_1904
            if name == "sheet" and target in self._parts:
                hidden = attributes.get("state", "visible") != "visible"
                found.append(WorksheetPart(attributes.get("name", ""), hidden, target))

        for _ in self._parse("xl/_rels/workbook.xml.rels", _Handlers(start=relationship)):
            pass
        for _ in self._parse("xl/workbook.xml", _Handlers(start=sheet)):
            if len(found) > MAX_WORKSHEETS:
                raise self.budget.too_large()
        return found

    def rows(self, part: WorksheetPart) -> Iterator[Row]:
        """Yield the rows of a worksheet that are not empty, in order."""
        if self._strings is None:
            self._strings = self._shared_strings()
            self._styles = self._cell_styles()
        self.overlays = Overlays(self._styles.effects, self.budget)
        reader = _CellReader(self._strings, self._styles.styles, self._first_day, self._damaged, self.overlays)
        reader.struck_strings, reader.unseen_strings = self._struck_strings, self._unseen_strings
        self.hidden_columns = reader.hidden_columns
        for _ in self._parse(part.path, _Handlers(reader.start, reader.end, reader.text)):
            yield from reader.finished
            reader.finished.clear()
        yield from reader.finished

    def _shared_strings(self) -> list[str]:
        reader = _StringReader(self.budget)
        if "xl/sharedStrings.xml" in self._parts:
            for _ in self._parse("xl/sharedStrings.xml", _Handlers(reader.start, reader.end, reader.text)):
                pass
        self._struck_strings, self._unseen_strings = reader.struck, reader.unseen
        return reader.strings

    def _cell_styles(self) -> StyleReader:
        reader = StyleReader()
        if "xl/styles.xml" in self._parts:
            for _ in self._parse("xl/styles.xml", _Handlers(reader.start, reader.end)):
                pass
        return reader

    def _parse(self, path: str, handlers: "_Handlers") -> Iterator[None]:
        """Parse a part of the workbook as XML, and yield after each piece."""
        info = self._parts.get(path)
        if info is None:
            raise self._damaged()
        self.budget.unpack(0 if path in self._counted else info.file_size)
        self._counted.add(path)
        parser = handlers.parser()
        fed = 0
        try:
            # zipfile reads at most the stated size, and raises unless size and checksum are as stated.
            with self._zip.open(info) as part:
                while chunk := part.read(_CHUNK_BYTES):
                    parser.Parse(chunk, False)
                    fed += len(chunk)
                    if fed - parser.CurrentByteIndex > MAX_TAG_BYTES:
                        raise self.budget.too_large()
                    yield
            parser.Parse(b"", True)
        except (*_DAMAGED, ValueError, IndexError) as error:
            raise self._damaged() from error

    def _damaged(self) -> SheetError:
        return SheetError(
            say("{file} is a damaged or protected workbook.", file=self._file),
            hint=say("Open it in the spreadsheet and save it again."),
        )


@dataclass(frozen=True, slots=True)
class _Handlers:
    """Handles a start tag (local name, attributes), an end tag, and text."""

    start: Callable[[str, Mapping[str, str]], object]
    end: Callable[[str], object] | None = None
    text: Callable[[str], object] | None = None

    def parser(self) -> expat.XMLParserType:
        """Return an XML parser that calls the handlers and refuses document types, which no workbook has."""
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = _refuse_doctype
        depth = 0

        def start(name: str, attributes: Mapping[str, str]) -> None:
            nonlocal depth
            depth += 1
            if depth > MAX_DEPTH:
                raise ValueError("tags are nested too deeply")
            self.start(name.rpartition(" ")[2], attributes)

        def end(name: str) -> None:
            nonlocal depth
            depth -= 1
            if self.end is not None:
                self.end(name.rpartition(" ")[2])

        parser.StartElementHandler = start
        parser.EndElementHandler = end
        if self.text is not None:
            parser.CharacterDataHandler = self.text
        return parser


def _refuse_doctype(*_: object) -> None:
    raise ValueError("a workbook has no document type")


@dataclass(slots=True)
class _Runs:
    """Finds whether all visible runs of a text, each in its font, are struck through or invisible."""

    _font: Font = field(default_factory=Font)
    _struck: set[bool] = field(default_factory=set)
    _unseen: set[bool] = field(default_factory=set)

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        """Handle a start tag."""
        if name == "r":
            self._font = Font()
        elif name in FONT_TAGS:
            self._font.describe(name, attributes)

    def text(self, data: str) -> None:
        """Add a part of the text."""
        if data.strip():
            self._struck.add(self._font.is_struck)
            self._unseen.add(self._font.is_unseen())

    def take(self) -> tuple[bool, bool]:
        """Return whether the finished text was struck through, and whether it is invisible on white; begin another."""
        found = self._struck == {True}, self._unseen == {True}
        self._font = Font()
        self._struck.clear()
        self._unseen.clear()
        return found


@dataclass(slots=True)
class _StringReader:
    """Collects the table of shared strings, and the numbers of those struck through, or invisible on white."""

    _budget: Budget
    strings: list[str] = field(default_factory=list)
    struck: set[int] = field(default_factory=set)
    unseen: set[int] = field(default_factory=set)
    _pieces: list[str] = field(default_factory=list)
    _inside: list[str] = field(default_factory=list)
    _runs: _Runs = field(default_factory=_Runs)

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        """Handle a start tag."""
        self._inside.append(name)
        self._runs.start(name, attributes)
        if name == "si":
            self._pieces.clear()

    def end(self, name: str) -> None:
        """Handle an end tag."""
        self._inside.pop()
        if name == "si":
            is_struck, is_unseen = self._runs.take()
            if is_struck:
                self.struck.add(len(self.strings))
            if is_unseen:
                self.unseen.add(len(self.strings))
            self.strings.append(_unescaped("".join(self._pieces)))
            self._budget.hold_string(self.strings[-1])

    def text(self, data: str) -> None:
        """Handle text between tags."""
        if self._inside[-1] == "t" and "rPh" not in self._inside:  # rPh: the pronunciation, not part of the text
            self._pieces.append(data)
            self._runs.text(data)
            if sum(map(len, self._pieces)) > MAX_CELL_CHARACTERS:
                raise self._budget.too_large()


class _CellReader:
    """Collects the rows of a worksheet from its tags; `finished` holds those that are complete."""

    def __init__(
        self,
        strings: list[str],
        styles: list[CellStyle],
        first_day: datetime,
        damaged: Callable[[], SheetError],
        overlays: Overlays,
    ) -> None:
        self.finished: list[Row] = []
        self._strings = strings
        self._styles = styles
        self.struck_strings: set[int] = set()
        self.unseen_strings: set[int] = set()
        self.hidden_columns: list[tuple[int, int]] = []
        self._runs = _Runs()
        self._first_day = first_day
        self._damaged = damaged
        self._overlays = overlays
        self._budget = overlays.budget
        self._characters = 0
        self._row = Row(0, hidden=False)
        self._column = 0
        self._cell: Mapping[str, str] = {}
        self._inside = ""
        self._value: list[str] = []
        self._formula: list[str] | None = None

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        """Handle a start tag."""
        self._inside = name
        if name == "c":
            reference = attributes.get("r")
            column = column_number(reference) if reference else self._column + 1
            if column <= self._column:
                raise self._damaged()
            self._column, self._cell, self._value, self._formula = column, attributes, [], None
            self._characters = 0
        elif name == "f":
            self._formula = []
        elif name == "row":
            number = int(attributes.get("r", self._row.number + 1))
            if not self._row.number < number <= _MAX_ROWS:
                raise self._damaged()
            hidden = is_true(attributes.get("hidden")) or float(attributes.get("ht", "15")) < _MIN_POINTS_HIGH
            self._row = Row(number, hidden=hidden)
            self._column = 0
        elif name == "col":
            if is_true(attributes.get("hidden")) or float(attributes.get("width", "9")) < _MIN_CHARACTERS_WIDE:
                self.hidden_columns.append((int(attributes["min"]), int(attributes["max"])))
        elif name == "is":
            self._runs = _Runs()
        elif name == "r" or name in FONT_TAGS:
            self._runs.start(name, attributes)
        else:
            self._overlays.start(name, attributes)

    def text(self, data: str) -> None:
        """Handle text between tags."""
        if self._inside in {"v", "t"}:
            self._value.append(data)
            if self._inside == "t":
                self._runs.text(data)
        elif self._inside == "f" and self._formula is not None:
            self._formula.append(data)
        self._characters += len(data)
        if self._characters > 2 * MAX_CELL_CHARACTERS:  # of the formula and of its value
            raise self._budget.too_large()

    def end(self, name: str) -> None:
        """Handle an end tag."""
        if name == "c":
            self._finish_cell()
        elif name == "row" and self._row.texts:
            self.finished.append(self._row)
        self._inside = ""

    def _finish_cell(self) -> None:
        value = "".join(self._value)
        column, row = self._column, self._row
        if not value:
            if self._formula is not None and self._cell.get("t") != "str":
                row.texts[column] = "=" + "".join(self._formula)
                row.doubts[column] = Doubt.FORMULA
            return
        at = int(self._cell.get("s", "0"))
        style = self._styles[at] if at < len(self._styles) else PLAIN
        value, is_struck, is_unseen = self._text_of(value, style)
        if not value:
            return
        if column > MAX_COLUMNS:
            raise self._damaged()
        row.texts[column] = value
        self._budget.hold_text(value)
        if is_struck:
            row.struck.add(column)
        if is_unseen and not style.is_dark:
            row.shown[column] = ""
        elif (shown := style.shows(value, is_number=self._cell.get("t", "n") == "n")) is not None:
            row.shown[column] = shown

    def _text_of(self, value: str, style: CellStyle) -> tuple[str, bool, bool]:
        """Return the text of a cell, whether it is struck through, and whether its own runs are invisible on white."""
        match self._cell.get("t", "n"):
            case "s" if value.isdigit():
                at = int(value)
                return self._strings[at], style.is_struck or at in self.struck_strings, at in self.unseen_strings
            case "n" if style.is_date:
                return _date_text(value, self._first_day), style.is_struck, False
            case "n":
                text, is_doubtful = _number_text(value)
                if is_doubtful:
                    self._row.doubts[self._column] = Doubt.DIGITS
                return text, style.is_struck, False
            case "b":
                return "TRUE" if value == "1" else "FALSE", style.is_struck, False
            case "s":
                return value, style.is_struck, False
            case _:
                is_struck, is_unseen = self._runs.take()
                return _unescaped(value), style.is_struck or is_struck, is_unseen


def _unescaped(text: str) -> str:
    """Return a text with its `_xHHHH_` escapes undone (ECMA-376 part 1, 22.9.2.19)."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text) if "_x" in text else text


@lru_cache(maxsize=1 << 16)
def _number_text(raw: str) -> tuple[str, bool]:
    """Return a number cell's value as plain digits, and whether it has more digits than a spreadsheet keeps.

    A cell is a binary float, written with up to 17 digits; the shortest digits of the same float are those that were
    typed. Raises `ValueError` for a number that is not finite.
    """
    if raw.isascii() and raw.isdigit() and len(raw) <= _SAFE_DIGITS and not raw.startswith("0"):
        return raw, False
    number = Decimal(repr(float(raw)))
    if not number.is_finite():
        raise ValueError("not a finite number")
    if number == number.to_integral_value():
        text = format(number.to_integral_value(), "f")
        return text, len(text.lstrip("-")) > _SAFE_DIGITS
    return format(number, "f"), False


def _date_text(raw: str, first_day: datetime) -> str:
    """Return a date cell's value as ISO 8601, so that a person recognises the date."""
    days = float(raw)
    if not 0 <= days <= (datetime.max - first_day).days:  # noqa: DTZ901 (a cell has no zone)
        return raw
    moment = first_day + timedelta(seconds=round(days * 86400))
    return moment.date().isoformat() if days == int(days) else moment.isoformat(sep=" ", timespec="seconds")
