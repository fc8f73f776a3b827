"""Delimited text (CSV) as a frame of exact text: the header, the delimiter and every line accounted for.

Two readings must agree before a sheet is used. One is polars'; the other counts physical lines and delimiters in the
bytes themselves and, where quotation marks occur, holds every line against RFC 4180 by itself. A stray quotation mark
that merges rows, a line break inside a field and a row with a field too few cannot slip through.
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from paygw_batch.errors import SheetError
from paygw_batch.sheet.formulas import unguarded, unguarded_names
from paygw_batch.sheet.headers import HEADER_ROWS, Headings, is_header, known_names, match_headings, no_header
from paygw_batch.sheet.result import DEFECT_SCHEMA
from paygw_batch.sheet.table import Table

DELIMITERS = (",", ";", "\t", "|")
_SEP_LINE = re.compile(rb'"?sep=(.)"?[ \t]*', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Start:
    """Where the header stands: `line` (0-based, in the file) and `offset` of the byte after it."""

    delimiter: str
    line: int
    row: int
    cells: list[str]
    offset: int


def read_delimited(data: bytes, aliases: Mapping[str, str], *, file: str) -> Table:
    """Return the rows of `data` (UTF-8 without NUL and lone carriage returns).

    Raises `SheetError` where the file as a whole cannot be trusted; a row with too many or too few fields is a defect
    of that row (`row.fields`).
    """
    start = _find_header(data, aliases, file)
    headings = match_headings(unguarded_names(start.cells), aliases, file=file, row=start.row)
    ragged = _ragged_lines(data, start, len(headings.names), file)
    if ragged is not None and ragged.height:
        data = _without_lines(data, start, ragged)
    frame = _parse(data, start, headings, file)
    lines = data.count(b"\n", start.offset) + (len(data) > start.offset and not data.endswith(b"\n"))
    frame = frame.with_columns(unguarded(column) for column in frame.iter_columns()) if b"'" in data else frame
    if frame.height != lines:
        raise SheetError(f"{file} has {lines} lines below its header, which read as {frame.height} rows.", hint=_QUOTES)
    if ragged is None or not ragged.height:
        return Table(frame, headings, start.row + 1)
    frame, defects = _with_ragged(frame, ragged, start, headings)
    return Table(frame, headings, start.row + 1, defects=defects)


_QUOTES = 'A quotation mark must open and close a whole field, and one inside it is written twice: "a ""b"" c".'


def _first_lines(data: bytes) -> list[tuple[bytes, int]]:
    """Return the first lines without their ends, each with the offset of the byte after it."""
    lines: list[tuple[bytes, int]] = []
    offset = 0
    while offset < len(data) and len(lines) <= HEADER_ROWS:
        end = data.find(b"\n", offset)
        after = len(data) if end < 0 else end + 1
        lines.append((data[offset:after].rstrip(b"\r\n"), after))
        offset = after
    return lines


def _find_header(data: bytes, aliases: Mapping[str, str], file: str) -> _Start:
    lines = _first_lines(data)
    # A spreadsheet obeys a first line `sep=;` and shows the rest of the file from row 1 on.
    sep = _SEP_LINE.fullmatch(lines[0][0]) if lines else None
    above = 1 if sep else 0
    delimiters = (sep[1].decode("latin-1"), *DELIMITERS) if sep else DELIMITERS
    texts = [line.decode() for line, _ in lines[above:]]
    for row, text in enumerate(texts, start=1):
        found = [(delimiter, _cells(text, delimiter)) for delimiter in delimiters]
        fitting = [(delimiter, cells) for delimiter, cells in found if is_header(cells, aliases)]
        if fitting:
            delimiter, cells = max(fitting, key=lambda fit: sum(map(bool, known_names(fit[1], aliases))))
            return _Start(delimiter, row - 1 + above, row, cells, lines[row - 1 + above][1])
    likely = max(
        DELIMITERS, key=lambda d: sum(bool(name) for t in texts for name in known_names(_cells(t, d), aliases))
    )
    raise no_header(file, [_cells(text, likely) for text in texts[:HEADER_ROWS]], aliases)


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:  # a field above csv's own limit is no heading
        return []


def _parse(data: bytes, start: _Start, headings: Headings, file: str) -> pl.DataFrame:
    try:
        return pl.read_csv(
            data,
            separator=start.delimiter,
            # Without any quotation mark in the file, none is looked for.
            quote_char='"' if data.find(b'"', start.offset) >= 0 else None,
            skip_lines=start.line,
            infer_schema=False,
            with_column_names=lambda _: list(headings.names),
        )
    except pl.exceptions.PolarsError as error:
        raise SheetError(f"{file} cannot be read as delimited text.", hint=_QUOTES) from error


def _ragged_lines(data: bytes, start: _Start, columns: int, file: str) -> pl.DataFrame | None:
    """Return the lines below the header (`index` from 0, `line`) that do not have a field for every column.

    None, and cheaply, when the counts alone prove that there is none. Raises `SheetError` for a line whose quotation
    marks do not pair up within it.
    """
    newlines = data.count(b"\n", start.offset)
    unended = not data.endswith(b"\n") and len(data) > start.offset
    quoted = data.find(b'"', start.offset) >= 0
    delimiters = data.count(start.delimiter.encode(), start.offset)
    if not quoted and delimiters == (columns - 1) * (newlines + unended) and not _has_blank_line(data, start.offset):
        # polars refuses a line with too many fields, so that equal sums leave no room for one with too few.
        return None
    lines = pl.read_lines(data[start.offset :]).to_series().rename("line")
    if quoted:
        _check_quotes(lines, start, file)
    bare = lines.str.replace_all(r'"(?:[^"]|"")*"', "") if quoted else lines
    fields = bare.str.count_matches(start.delimiter, literal=True) + 1
    frame = pl.DataFrame({"line": lines, "fields": fields}).with_row_index("index")
    return frame.filter((pl.col("fields") != columns) & (pl.col("line").str.len_bytes() > 0))


def _has_blank_line(data: bytes, offset: int) -> bool:
    return data.find(b"\n\n", offset - 1) >= 0 or data.find(b"\n\r\n", offset - 1) >= 0


def _check_quotes(lines: pl.Series, start: _Start, file: str) -> None:
    d = re.escape(start.delimiter)
    # Beside the two fields of RFC 4180, ="0712": how people make a spreadsheet keep a leading zero.
    one = rf'(?:[^"{d}]*|"(?:[^"]|"")*"|="[^"{d}]*")'
    quoted = lines.str.contains('"', literal=True)
    wrong = quoted & ~lines.str.contains(rf"^{one}(?:{d}{one})*$")
    if wrong.any():
        row = start.row + 1 + (wrong.arg_max() or 0)
        raise SheetError(
            f"{file}, row {row}: a quotation mark does not close the field it opens on the same line; the rows after "
            "it could be swallowed.",
            hint=_QUOTES,
        )


def _without_lines(data: bytes, start: _Start, ragged: pl.DataFrame) -> bytes:
    """Return the file with every ragged line emptied, so that the other rows keep their places."""
    lines = data[start.offset :].split(b"\n")
    for index in ragged["index"]:
        lines[index] = b""
    return data[: start.offset] + b"\n".join(lines)


def _with_ragged(
    frame: pl.DataFrame, ragged: pl.DataFrame, start: _Start, headings: Headings
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Put the fields of ragged lines back, read from left to right, with a defect for each such row.

    Empty fields too many are dropped without a word; what does not fit goes into the last column, so that nothing of
    the line is lost to a person who mends it.
    """
    columns = len(headings.names)
    rows: list[list[str | None]] = []
    for line in ragged["line"]:
        cells = _cells(line, start.delimiter) or line.split(start.delimiter)
        while len(cells) > columns and not cells[-1].strip():
            cells.pop()
        fitted = [*cells[: columns - 1], start.delimiter.join(cells[columns - 1 :])]
        rows.append([cell or None for cell in fitted] + [None] * (columns - len(fitted)))
    put = pl.DataFrame(rows, schema=dict.fromkeys(headings.names, pl.String), orient="row")
    index = ragged["index"]
    frame = frame.with_columns(frame[name].scatter(index, put[name]) for name in headings.names)
    return frame, _ragged_defects(ragged, start, columns)


def _ragged_defects(ragged: pl.DataFrame, start: _Start, columns: int) -> pl.DataFrame:
    d = re.escape(start.delimiter)
    empty_tail = pl.col("line").str.extract(rf"([{d}\s]*)$", 1).str.count_matches(start.delimiter, literal=True)
    wrong = ragged.with_columns(
        row=(pl.col("index") + start.row + 1).cast(pl.UInt32), missing=pl.lit(columns) - pl.col("fields").cast(pl.Int64)
    ).filter((pl.col("missing") > 0) | (pl.col("missing") + empty_tail < 0))
    many = (
        "an amount with a comma stands in quotation marks or is written without it"
        if start.delimiter == ","
        else (f"a field that holds {start.delimiter!r} stands in quotation marks")
    )
    few = "write the missing ones too, empty where there is nothing to say"
    mend = pl.when(pl.col("missing") > 0).then(pl.lit(few)).otherwise(pl.lit(many))
    return wrong.select(
        "row",
        column=pl.lit("row"),
        value=pl.col("line").str.slice(0, 60),
        code=pl.lit("row.fields"),
        message=pl.format("The row has {} fields, the header {}: {}.", "fields", pl.lit(columns), mend),
    ).match_to_schema(DEFECT_SCHEMA)
