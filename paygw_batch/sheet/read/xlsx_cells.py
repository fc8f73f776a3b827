"""Reads the cells of a workbook (.xlsx, ECMA-376) as a stream of exact text, with reasons to doubt it.

Parts are found by their relationships, as in spreadsheet programs. Duplicate and missing parts are errors, because the
values read could differ from what a person saw. docs/decisions/0105 explains why no library is used.
"""

import io
import posixpath
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from string import ascii_letters
from urllib.parse import unquote
from xml.parsers import expat

from paygw_batch.errors import SheetError
from paygw_batch.language import say
from paygw_batch.sheet.amounts import SAFE_DIGITS, round_to_safe_digits
from paygw_batch.sheet.read.headings import MAX_COLUMNS
from paygw_batch.sheet.read.workbook_limits import MAX_CELL_CHARACTERS, MAX_DEPTH, MAX_TAG_BYTES, MAX_WORKSHEETS, Budget
from paygw_batch.sheet.read.workbook_styles import (
    FONT_TAGS,
    GENERAL,
    UNKNOWN_FORMAT,
    CellStyle,
    Colour,
    Font,
    Overlays,
    StyleReader,
    column_number,
    is_true,
    parse_index,
)

_CONTENT_TYPES = "[content_types].xml"
_SINGLE_PART_TYPES = ("sheet.main+xml", "styles+xml", "sharedStrings+xml")
"""Suffixes of the content types that only one part of a workbook may have."""
_CHUNK_BYTES = 1 << 16
_MAX_ROWS = 1_048_576
_MIN_ROW_POINTS, _MIN_COLUMN_CHARACTERS = 3.0, 0.5
"""Rows lower than this, and narrower columns, count as hidden."""
_FIRST_DAY = datetime(1899, 12, 30)  # noqa: DTZ001 (a cell has no zone)
_FIRST_DAY_1904 = datetime(1904, 1, 1)  # noqa: DTZ001 (as above)
_ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")
_DAMAGE = (expat.ExpatError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError)


class Doubt(StrEnum):
    """A reason to doubt the text of a cell. Its value is the last part of the defect's code."""

    FORMULA = "formula"
    """A formula without a value. The workbook was never calculated."""
    DIGITS = "digits"
    """A number with more than 15 digits."""


@dataclass(frozen=True, slots=True)
class WorksheetPart:
    """A worksheet, and the path of the part that holds its cells."""

    name: str
    is_hidden: bool
    path: str


@dataclass(slots=True)
class Row:
    """A row with its texts and doubts, by column number (from 1)."""

    number: int
    is_hidden: bool
    texts: dict[int, str] = field(default_factory=dict)
    doubts: dict[int, Doubt] = field(default_factory=dict)
    struck: set[int] = field(default_factory=set)
    """The columns whose text is at least partly struck through."""
    displayed: dict[int, str | CellStyle] = field(default_factory=dict)
    """Column -> the displayed text if different (empty if nothing is visible), or the style of a number."""


class Workbook:
    """A workbook in memory. Raises `SheetError` if parts are ambiguous or exceed `max_bytes` when unpacked."""

    def __init__(self, data: bytes, *, file: str, max_bytes: int) -> None:
        self._file = file
        self.budget = Budget(file, max_bytes)
        self._counted_paths: set[str] = set()
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
        except _DAMAGE as error:
            raise self._damage_error() from error
        self._parts: dict[str, zipfile.ZipInfo] = {}
        for info in self._zip.infolist():
            name = _normalise_path(info.filename)
            if self._parts.setdefault(name, info) is not info:
                raise self._duplicate_error(info.filename)
        self.budget.check_directory(self._zip, len(data))
        self._require_single_parts()
        self._main_path = self._find_part(self._read_relationships(""), "officeDocument")
        self._related_parts = self._read_relationships(self._main_path) if self._main_path else []
        self._strings: list[CellText] | None = None
        self._styles = StyleReader()
        self.overlays = Overlays((), self.budget)
        """The merged cells and rules of the worksheet that `rows` reads."""
        self.hidden_columns: list[tuple[int, int]] = []
        """The first and last numbers of each range of hidden columns in that worksheet."""
        self._first_day = _FIRST_DAY

    def worksheets(self) -> list[WorksheetPart]:
        """Return the worksheets in order. This also reads the date system, so it must be called before `rows`."""
        targets = {relationship_id: (kind, target) for relationship_id, kind, target in self._related_parts}
        parts: list[WorksheetPart] = []
        root = ""

        def start(name: str, attributes: Mapping[str, str]) -> None:
            nonlocal root
            root = root or name
            if name == "workbookPr" and is_true(attributes.get("date1904")):
                self._first_day = _FIRST_DAY_1904
            if name == "sheet":
                relationship_id = next((value for key, value in attributes.items() if key.endswith(" id")), "")
                kind, target = targets.get(relationship_id, ("worksheet", ""))
                if kind == "worksheet":
                    is_hidden = attributes.get("state", "visible") != "visible"
                    parts.append(WorksheetPart(attributes.get("name", ""), is_hidden, target))

        if self._main_path is not None and not self._main_path.endswith(".bin"):
            for _ in self._parse(self._main_path, Handlers(start=start)):
                if len(parts) > MAX_WORKSHEETS:
                    raise self.budget.too_large_error()
        if root != "workbook":
            raise SheetError(
                say("{file} is not a workbook (.xlsx).", file=self._file),
                hint=say("Save it as .xlsx or .csv in your spreadsheet program."),
            )
        if missing := next((part for part in parts if part.path not in self._parts), None):
            raise self._resave_error(
                say("{file} does not contain the cells of its worksheet {name!r}.", file=self._file, name=missing.name)
            )
        return parts

    def rows(self, part: WorksheetPart) -> Iterator[Row]:
        """Yield the non-empty rows of a worksheet."""
        if self._strings is None:
            strings = _TextReader(self.budget)
            handlers = Handlers(strings.start_element, strings.end_element, strings.add_text)
            self._parse_all(self._find_part(self._related_parts, "sharedStrings"), handlers)
            styles = Handlers(self._styles.start_element, self._styles.end_element)
            self._parse_all(self._find_part(self._related_parts, "styles"), styles)
            self._strings = strings.texts
        self.overlays = Overlays(self._styles.effects, self.budget)
        reader = _CellReader(self._strings, self._styles.styles, self._first_day, self.overlays)
        self.hidden_columns = reader.hidden_columns
        for _ in self._parse(part.path, Handlers(reader.start_element, reader.end_element, reader.add_text)):
            yield from reader.finished_rows
            reader.finished_rows.clear()
        yield from reader.finished_rows

    def count_rows(self, part: WorksheetPart) -> int:
        """Count the non-empty rows of a worksheet. Rows after damaged content are not counted."""
        is_filled = [False]

        def start(name: str, _attributes: Mapping[str, str]) -> None:
            if name == "row":
                is_filled.append(False)
            elif name in {"v", "t", "f"}:
                is_filled[-1] = True

        with suppress(SheetError):
            self._parse_all(part.path, Handlers(start))
        return sum(is_filled)

    def _require_single_parts(self) -> None:
        """Reject a workbook in which a unique part occurs twice, because another program might read the other one."""
        paths: dict[str, set[str]] = {}

        def start(name: str, attributes: Mapping[str, str]) -> None:
            if name == "Override":
                kind = attributes.get("ContentType", "")
                paths.setdefault(kind, set()).add(attributes.get("PartName", "").lower())

        self._parse_all(_CONTENT_TYPES if _CONTENT_TYPES in self._parts else None, Handlers(start=start))
        if duplicates := [kind for kind in paths if kind.endswith(_SINGLE_PART_TYPES) and len(paths[kind]) > 1]:
            raise self._duplicate_error(duplicates[0].rpartition(".")[2].removesuffix("+xml"))

    def _read_relationships(self, path: str) -> list[tuple[str, str, str]]:
        """Return (id, kind, path) for each part that `path` refers to (part 2, 9.3). "" stands for the whole file."""
        folder, name = posixpath.split(path)
        related: list[tuple[str, str, str]] = []

        def start(name: str, attributes: Mapping[str, str]) -> None:
            if name == "Relationship" and attributes.get("TargetMode") != "External":
                target = posixpath.normpath(posixpath.join("/", folder, _normalise_path(attributes.get("Target", ""))))
                kind = attributes.get("Type", "").rpartition("/")[2]
                if any(other_id == attributes.get("Id") for other_id, *_ in related):
                    raise self._duplicate_error(attributes["Id"])
                related.append((attributes.get("Id", ""), kind, target[1:]))

        relationships = posixpath.join(folder, "_rels", f"{name}.rels")
        self._parse_all(relationships if relationships in self._parts else None, Handlers(start=start))
        return related

    def _find_part(self, related: Sequence[tuple[str, str, str]], kind: str) -> str | None:
        """Return the path of the related part of this kind, or None."""
        targets = {target for _, relationship, target in related if relationship == kind}
        if len(targets) > 1:
            raise self._duplicate_error(kind)
        if missing := next((target for target in targets if target not in self._parts), None):
            raise self._resave_error(
                say("{file} refers to {part}, which is missing from it.", file=self._file, part=missing)
            )
        return next(iter(targets), None)

    def _parse_all(self, path: str | None, handlers: "Handlers") -> None:
        for _ in self._parse(path, handlers) if path is not None else ():
            pass

    def _parse(self, path: str, handlers: "Handlers") -> Iterator[None]:
        """Parse a part of the workbook as XML, and yield after each chunk."""
        info = self._parts.get(path)
        if info is None:
            raise self._damage_error()
        self.budget.count_unpacked(0 if path in self._counted_paths else info.file_size)
        self._counted_paths.add(path)
        parser = handlers.create_parser()
        parsed_bytes = 0
        try:
            # zipfile reads at most the stated size, and raises an error if the size or checksum is wrong.
            with self._zip.open(info) as part:
                while chunk := part.read(_CHUNK_BYTES):
                    parser.Parse(chunk, False)
                    parsed_bytes += len(chunk)
                    if parsed_bytes - parser.CurrentByteIndex > MAX_TAG_BYTES:
                        raise self.budget.too_large_error()
                    yield
            parser.Parse(b"", True)
        except IndexError as error:
            raise self._resave_error(
                say("{file} refers to styles or shared texts that are missing from it.", file=self._file)
            ) from error
        except (*_DAMAGE, ValueError, KeyError) as error:
            raise self._damage_error() from error

    def _damage_error(self) -> SheetError:
        return self._resave_error(say("{file} is a damaged or protected workbook.", file=self._file))

    def _duplicate_error(self, part: str) -> SheetError:
        return self._resave_error(
            say("{file} contains the part {part} twice, so it is not clear which to use.", file=self._file, part=part)
        )

    @staticmethod
    def _resave_error(message: str) -> SheetError:
        return SheetError(message, hint=say("Open it in your spreadsheet program and save it again."))


@dataclass(frozen=True, slots=True)
class Handlers:
    """The handlers for start tags (local name, attributes), end tags and text."""

    start: Callable[[str, Mapping[str, str]], object]
    end: Callable[[str], object] | None = None
    text: Callable[[str], object] | None = None

    def create_parser(self) -> expat.XMLParserType:
        """Create an XML parser that calls the handlers. It rejects document type declarations."""
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = _reject_doctype
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


def _reject_doctype(*_: object) -> None:
    raise ValueError("a workbook has no document type")


def _normalise_path(name: str) -> str:
    """Normalise a part's name: its case (ECMA-376 part 2, 6.2.2), escapes and slashes."""
    return unquote(name).replace("\\", "/").lower()


@dataclass(frozen=True, slots=True)
class CellText:
    """The text of a cell, and its runs (18.4.8), which may have fonts of their own."""

    text: str
    runs: Sequence[tuple[str, Font | None]] = ()

    @property
    def is_struck(self) -> bool:
        """Whether any visible part of the text is struck through."""
        return any(font is not None and font.is_struck and text.strip() for text, font in self.runs)

    def visible_text(self, background: Colour | None) -> str:
        """Return the text that is visible on the background."""
        if not self.runs:
            return self.text
        visible = (
            text for text, font in self.runs if font is None or not (text.strip() and font.is_unreadable(background))
        )
        return _unescape("".join(visible))


@dataclass(slots=True)
class _TextReader:
    """Reads texts that consist of runs. Pronunciation (rPh) is ignored."""

    _budget: Budget
    texts: list[CellText] = field(default_factory=list)
    _runs: list[tuple[str, Font | None]] = field(default_factory=list)
    _length: int = 0
    _tag: str = ""
    _is_pronunciation: bool = False
    _font: Font | None = None

    def start_element(self, name: str, attributes: Mapping[str, str]) -> None:
        self._tag = name
        if name == "rPh":
            self._is_pronunciation = True
        elif name in {"r", "rPr"}:
            self._font = Font() if name == "rPr" else None
        elif self._font is not None and name in FONT_TAGS:
            self._font.set_property(name, attributes)

    def end_element(self, name: str) -> None:
        self._tag = ""
        if name == "rPh":
            self._is_pronunciation = False
        elif name in {"si", "is"}:
            runs = self._runs if any(font for _, font in self._runs) else []
            self.texts.append(CellText(_unescape("".join(text for text, _ in self._runs)), runs))
            self._runs, self._length, self._font = [], 0, None
            if name == "si":  # inline text is freed with its cell
                self._budget.count_doubts(0, len(runs))
                self._budget.count_string(self.texts[-1].text)

    def add_text(self, data: str) -> None:
        if self._tag != "t" or self._is_pronunciation:
            return
        self._runs.append((data, self._font))
        self._length += len(data)
        if self._length > MAX_CELL_CHARACTERS:
            raise self._budget.too_large_error()


class _CellReader:
    """Reads a worksheet's rows from its tags. Complete rows are added to `finished_rows`."""

    def __init__(
        self, strings: list[CellText], styles: list[CellStyle], first_day: datetime, overlays: Overlays
    ) -> None:
        self.finished_rows: list[Row] = []
        self.hidden_columns: list[tuple[int, int]] = []
        self._strings = strings
        self._styles = styles or [CellStyle()]
        self._first_day = first_day
        self._overlays = overlays
        self._budget = overlays.budget
        self._characters = 0
        self._row = Row(0, is_hidden=False)
        self._column = 0
        self._cell: Mapping[str, str] = {}
        self._tag = ""
        self._value: list[str] = []
        self._inline: _TextReader | None = None
        self._formula: list[str] | None = None

    def start_element(self, name: str, attributes: Mapping[str, str]) -> None:
        """Handle a start tag. Raises `ValueError` if a cell or row is out of order."""
        self._tag = name
        if name == "c":
            reference = attributes.get("r")
            column = column_number(reference) if reference else self._column + 1
            if column <= self._column or (reference and reference.lstrip(ascii_letters) != str(self._row.number)):
                raise ValueError(reference)
            self._column, self._cell, self._value, self._formula, self._inline = column, attributes, [], None, None
            self._characters = 0
        elif name == "f":
            self._formula = []
        elif name == "row":
            number = int(attributes.get("r", self._row.number + 1))
            if not self._row.number < number <= _MAX_ROWS:
                raise ValueError(number)
            is_hidden = is_true(attributes.get("hidden")) or float(attributes.get("ht", "15")) < _MIN_ROW_POINTS
            self._row = Row(number, is_hidden=is_hidden)
            self._column = 0
        elif name == "col":
            if is_true(attributes.get("hidden")) or float(attributes.get("width", "9")) < _MIN_COLUMN_CHARACTERS:
                self.hidden_columns.append((int(attributes["min"]), int(attributes["max"])))
        elif name == "is":
            self._inline = self._inline or _TextReader(self._budget)
        elif self._inline is not None:
            self._inline.start_element(name, attributes)
        else:
            self._overlays.start_element(name, attributes)

    def add_text(self, data: str) -> None:
        if self._inline is not None:
            self._inline.add_text(data)
        elif self._tag == "v":
            self._value.append(data)
        elif self._tag == "f" and self._formula is not None:
            self._formula.append(data)
        self._characters += len(data)
        if self._characters > 2 * MAX_CELL_CHARACTERS:  # room for a formula and its value
            raise self._budget.too_large_error()

    def end_element(self, name: str) -> None:
        if name == "c":
            self._finish_cell()
            self._inline = None
        elif name == "row" and self._row.texts:
            self.finished_rows.append(self._row)
        elif name == "v":
            self._value.append("\0")
        elif self._inline is not None:
            self._inline.end_element(name)
        self._tag = ""

    def _finish_cell(self) -> None:
        value, *extra = "".join(self._value).split("\0")
        if any(extra) or (value and self._inline is not None):
            raise ValueError("a cell with two values")
        column, row = self._column, self._row
        if not value and self._formula is not None and self._cell.get("t") != "str":
            row.texts[column] = "=" + "".join(self._formula)
            row.doubts[column] = Doubt.FORMULA
            return
        style = self._styles[parse_index(self._cell.get("s", "0"))]
        cell = self._cell_text(value, style)
        if not cell.text:
            return
        if column > MAX_COLUMNS:
            raise ValueError(column)
        row.texts[column] = cell.text
        self._budget.count_text(cell.text)
        if cell.is_struck or style.is_struck:
            row.struck.add(column)
        if (displayed := self._displayed_value(cell, style)) is not None:
            row.displayed[column] = displayed

    def _displayed_value(self, cell: CellText, style: CellStyle) -> str | CellStyle | None:
        """Return the displayed text of a cell, the style of a number, or None if the text is displayed unchanged."""
        kind = self._cell.get("t", "n") if self._inline is None else ""
        if style.is_invisible:
            return ""
        if (visible := cell.visible_text(style.background)) != cell.text:
            return visible
        if kind in {"b", "d"} or (kind == "n" and style.is_date):
            return UNKNOWN_FORMAT
        if kind == "n":
            return None if style.code == GENERAL else style
        return style.displayed_text(cell.text)

    def _cell_text(self, value: str, style: CellStyle) -> CellText:
        """Return the text of a cell. Raises `ValueError` or `IndexError` for an invalid cell."""
        if self._inline is not None:
            (inline,) = self._inline.texts
            return inline
        match self._cell.get("t", "n"):
            case _ if not value:
                return CellText("")
            case "s":
                return self._strings[parse_index(value)]
            case "n" if style.is_date:
                return CellText(_format_date(value, self._first_day))
            case "n":
                text, is_doubtful = _format_number(value)
                if is_doubtful:
                    self._row.doubts[self._column] = Doubt.DIGITS
                return CellText(text)
            case "b":
                return CellText("TRUE" if value == "1" else "FALSE")
            case _:
                return CellText(_unescape(value))


def _unescape(text: str) -> str:
    """Replace `_xHHHH_` escapes (ECMA-376 part 1, 22.9.2.19)."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text) if "_x" in text else text


@lru_cache(maxsize=1 << 16)
def _format_number(raw: str) -> tuple[str, bool]:
    """Format a number as a spreadsheet does. Also returns whether it has too many digits. Raises `ValueError`."""
    if raw.isascii() and raw.isdigit() and len(raw) <= SAFE_DIGITS and not raw.startswith("0"):
        return raw, False
    number = Decimal(repr(_parse_float(raw)))
    if not number.is_finite():
        raise ValueError("not a finite number")
    text = round_to_safe_digits(number)
    return text or format(number.normalize(), "f"), text is None


def _parse_float(raw: str) -> float:
    """Parse a number strictly. `float` would accept `1_500` and digits of other scripts."""
    if "_" in raw or not raw.isascii():
        raise ValueError(raw)
    return float(raw)


def _format_date(raw: str, first_day: datetime) -> str:
    """Format the value of a date cell as an ISO 8601 date, with a time if it has one."""
    days = _parse_float(raw)
    if not 0 <= days <= (datetime.max - first_day).days:  # noqa: DTZ901 (a cell has no zone)
        return raw
    moment = first_day + timedelta(seconds=round(days * 86400))
    return moment.date().isoformat() if days == int(days) else moment.isoformat(sep=" ", timespec="seconds")
