"""Reads delimited text (CSV) as a frame of exact text; header, delimiter and every line are accounted for.

Two readings must agree before a sheet is used. One is by polars; the other counts lines and delimiters in the bytes
and, if there are quotation marks, checks each line against RFC 4180. So a stray quotation mark that merges rows, a line
break inside a field, or a row with a missing field cannot slip through.
"""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import polars as pl

from paygw_batch.errors import SheetError
from paygw_batch.language import mark, say
from paygw_batch.sheet.clean import unguarded, unguarded_names
from paygw_batch.sheet.findings import SHOWN_CHARACTERS, defects_of, worded
from paygw_batch.sheet.read.frame import Table
from paygw_batch.sheet.read.headings import (
    HEADER_ROWS,
    Headings,
    Vocabulary,
    is_header,
    known_names,
    match_headings,
    no_header,
    require_columns,
)
from paygw_batch.sheet.read.text import Marks

DELIMITERS = (",", ";", "\t", "|")
_FEW_QUOTED = 8
"""If at most one line in this many has quotation marks, checking only those is cheaper than checking all."""
_SEP_LINE = re.compile(rb'"?sep=([!#-&(-/:-@\[-`{-~\t])"?[ \t]*', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Start:
    """Locates the header: its `line` (0-based, in the file), `row` (from 1) and the `offset` of the byte after it."""

    delimiter: str
    line: int
    row: int
    cells: list[str]
    offset: int
    headings: Headings


def read_delimited(data: bytes, vocabulary: Vocabulary, *, file: str) -> Table:
    """Return the rows of `data` (UTF-8 without NUL and lone carriage returns).

    Raises `SheetError` if the file as a whole cannot be trusted; a row with too many or too few fields is a defect
    of that row (`row.fields`).
    """
    start = find_header(data, vocabulary, file)
    return read_rows(data, start, Marks.of(data, start.delimiter.encode(), start.offset), file)


def read_rows(data: bytes, start: Start, marks: Marks, file: str) -> Table:
    """Return the rows of `data` below its header, from `start` on; `marks` are the marks of these lines.

    Raises `SheetError` as `read_delimited` does.
    """
    headings, lines = start.headings, marks.lines
    # polars silently joins lines if a quotation mark does not close, and pads short rows. So the
    # lines and delimiters are also counted in the bytes: if the counts differ, a payment could vanish, or an amount
    # could be read from the neighbouring column.
    ragged = None
    frame = _parse(data, start, headings) if _counts_agree(data, start, marks) else None
    if frame is None:
        ragged = _ragged_lines(data, start, file)
        frame = _parse(_without_lines(data, start, ragged), start, headings)
    if frame is None or frame.height != lines:
        raise SheetError(
            say("{file} cannot be read as rows: its {lines} lines below the header merge.", file=file, lines=lines),
            hint=say(_QUOTES),
        )
    if _begins_with_quote(data, start):
        frame = frame.with_columns(unguarded(column) for column in frame.iter_columns())
    frame = frame.with_row_index("row", offset=start.row + 1)
    if ragged is None:
        return Table(frame, headings, has_empty=b'""' in marks.found)
    frame, defects = _with_ragged(frame, ragged, start, headings)
    return Table(frame, headings, defects=defects)


_QUOTES = mark('A quotation mark must open and close a whole field, and one inside it is written twice: "a ""b"" c".')


@dataclass(frozen=True, slots=True)
class FirstLine:
    """One of a text's first lines: its `line` (0-based, in the file), `row` (from 1) and the `offset` behind it.

    `ways` has its cells by each delimiter that may be the file's.
    """

    line: int
    row: int
    offset: int
    ways: Sequence[tuple[str, list[str]]]


def first_lines(data: bytes) -> list[FirstLine]:
    """Return the lines that may hold the header."""
    found: list[FirstLine] = []
    delimiters: tuple[str, ...] = DELIMITERS
    above = offset = 0
    while offset < len(data) and len(found) < HEADER_ROWS:
        end = data.find(b"\n", offset)
        after = len(data) if end < 0 else end + 1
        text = data[offset:after].rstrip(b"\r\n")
        # A spreadsheet obeys a first line `sep=;` and numbers the rest of the file from row 1.
        if not offset and (sep := _SEP_LINE.fullmatch(text)):
            delimiters, above = (sep[1].decode("latin-1"), *DELIMITERS), 1
        else:
            ways = [(delimiter, _cells(text.decode(), delimiter)) for delimiter in delimiters]
            found.append(FirstLine(len(found) + above, len(found) + 1, after, ways))
        offset = after
    return found


def find_header(data: bytes, vocabulary: Vocabulary, file: str) -> Start:
    """Find the header. Raises `SheetError` if there is none."""
    lines = first_lines(data)
    for one in lines:
        for _, cells in one.ways:
            require_columns(cells, file)
        fitting = [(delimiter, cells) for delimiter, cells in one.ways if is_header(cells, vocabulary)]
        if fitting:
            delimiter, cells = max(fitting, key=lambda fit: sum(map(bool, known_names(fit[1], vocabulary))))
            headings = match_headings(unguarded_names(cells), vocabulary, file=file, row=one.row)
            return Start(delimiter, one.line, one.row, cells, one.offset, headings)
    by_delimiter = ([dict(one.ways)[delimiter] for one in lines] for delimiter in DELIMITERS)
    raise no_header(file, max(by_delimiter, key=partial(_likeness, vocabulary)), vocabulary)


def _likeness(vocabulary: Vocabulary, rows: Sequence[Sequence[str]]) -> tuple[int, int]:
    """Return how closely rows resemble a sheet's: by the columns that they name, then by their cells."""
    return sum(bool(name) for cells in rows for name in known_names(cells, vocabulary)), sum(map(len, rows))


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:  # a field above the csv module's limit is not a heading
        return []


def _begins_with_quote(data: bytes, start: Start) -> bool:
    """Return whether any field begins with an apostrophe. One inside a name does not count."""
    before = b'[\n"' + re.escape(start.delimiter.encode()) + b"]"
    # Search for the apostrophe first, then check the character before it: so most of the text is skipped.
    return re.search(rb"'(?<=" + before + rb"')", data) is not None


def _parse(data: bytes, start: Start, headings: Headings) -> pl.DataFrame | None:
    """Return each line below the header as a row (a blank line: nulls), or None if polars refuses the text."""
    try:
        return pl.read_csv(
            data,
            separator=start.delimiter,
            quote_char='"' if b'"' in data else None,
            skip_lines=start.line,
            infer_schema=False,
            with_column_names=lambda _: list(headings.names),
        )
    except pl.exceptions.PolarsError:
        return None


def _counts_agree(data: bytes, start: Start, marks: Marks) -> bool:
    """Return whether counting alone proves that no line lacks a field: then no line is read individually.

    Lines with quotation marks are few, and are checked one by one. polars refuses a line with an extra field. So if the
    other lines have the right number of delimiters in all, none of them lacks a field, and none is blank.
    """
    needed = len(start.cells) - 1
    if marks.are_alike(needed):
        return True
    quoted = _quoted_lines(data, start.offset, most=marks.lines // _FEW_QUOTED)
    if quoted is None:
        return False
    of_quoted = sum(line.count(marks.delimiter) for line in quoted)
    if marks.found.count(marks.delimiter) - of_quoted != needed * (marks.lines - len(quoted)):
        return False
    texts = pl.Series("line", [line.decode().removesuffix("\r") for line in quoted], pl.String).to_frame()
    sound = pl.col("line").str.contains(_line_pattern(start)) & (_delimiters_outside(start) == needed)
    return bool(texts.select(sound.all()).item())


def _quoted_lines(data: bytes, offset: int, *, most: int) -> list[bytes] | None:
    """Return the lines from `offset` on with a quotation mark, or None if there are more than `most`."""
    lines: list[bytes] = []
    at = data.find(b'"', offset)
    while at >= 0 and len(lines) <= most:
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        lines.append(data[data.rfind(b"\n", 0, at) + 1 : end])
        at = data.find(b'"', end)
    return lines if at < 0 else None


def _ragged_lines(data: bytes, start: Start, file: str) -> pl.DataFrame:
    """Return the lines below the header (`index` from 0, `line`, `fields`) whose number of fields is wrong.

    Raises `SheetError` for a line whose quotation marks do not pair up within it.
    """
    line, d = pl.col("line"), start.delimiter
    below = pl.scan_lines(data).with_row_index("index").filter(pl.col("index") > start.line)
    below = below.with_columns(index=pl.col("index") - (start.line + 1))
    is_quoted = line.str.contains('"', literal=True)
    quoted = below.filter(is_quoted).collect(engine="streaming")
    _check_quotes(quoted, start, file)
    fields = line.str.count_matches(d, literal=True) + 1
    bare = below.filter(~is_quoted, line.str.len_bytes() > 0).with_columns(fields=fields)
    ragged = [
        bare.filter(pl.col("fields") != len(start.cells)).collect(engine="streaming"),
        quoted.with_columns(fields=_delimiters_outside(start) + 1).filter(pl.col("fields") != len(start.cells)),
    ]
    return pl.concat(ragged).sort("index").rechunk()


def _delimiters_outside(start: Start) -> pl.Expr:
    """Return the number of delimiters in `line` outside quotation marks."""
    outside = pl.col("line").str.replace_all(r'"(?:[^"]|"")*"', "")
    return outside.str.count_matches(start.delimiter, literal=True)


def _line_pattern(start: Start) -> str:
    """Return the pattern of a line whose quotation marks enclose whole fields."""
    d = re.escape(start.delimiter)
    # RFC 4180's two kinds of fields, and ="0712", with which people make a spreadsheet keep a leading zero.
    one = rf'(?:[^"{d}]*|"(?:[^"]|"")*"|="[^"{d}]*")'
    return f"^{one}(?:{d}{one})*$"


def _check_quotes(quoted: pl.DataFrame, start: Start, file: str) -> None:
    wrong = quoted.filter(~pl.col("line").str.contains(_line_pattern(start)))["index"].sort()
    if wrong.len():
        raise SheetError(
            say(
                "{file}, row {row}: a quotation mark does not close the field it opens on the same line; the "
                "rows after it could be swallowed.",
                file=file,
                row=start.row + 1 + wrong[0],
            ),
            hint=say(_QUOTES),
        )


def _without_lines(data: bytes, start: Start, ragged: pl.DataFrame) -> bytes:
    """Return the file with ragged lines emptied, so that the other rows keep their positions."""
    if not ragged.height:
        return data
    lines = data[start.offset :].split(b"\n")
    for index in ragged["index"]:
        lines[index] = b""
    return data[: start.offset] + b"\n".join(lines)


def _with_ragged(
    frame: pl.DataFrame, ragged: pl.DataFrame, start: Start, headings: Headings
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Restore the fields of ragged lines, read from left to right, with a defect for each such row.

    Extra fields go into the last column, so that a person who corrects the line sees all of it. Even an empty extra
    field is a defect: an unquoted `1,000` before an empty last field would be paid as 1.
    """
    columns = len(headings.names)
    rows: list[list[str | None]] = []
    for line in ragged["line"]:
        cells = _cells(line, start.delimiter) or line.split(start.delimiter)
        fitted = [*cells[: columns - 1], start.delimiter.join(cells[columns - 1 :])]
        rows.append([cell or None for cell in fitted] + [None] * (columns - len(fitted)))
    put = pl.DataFrame(rows, schema=dict.fromkeys(headings.names, pl.String), orient="row")
    at = ragged["index"]
    frame = frame.with_columns(frame[name].scatter(at, put[name]) for name in headings.names)
    few = say("add the missing ones, empty where there is nothing to say")
    many = say(
        "put a field that holds {delimiter!r} in quotation marks, and write an amount without it",
        delimiter=start.delimiter,
    )
    mend = pl.when(pl.col("fields") < columns).then(pl.lit(few)).otherwise(pl.lit(many))
    message = worded(
        "The row has {fields} fields, but the header has {columns}: {mend}.",
        fields=pl.col("fields"),
        columns=columns,
        mend=mend,
    )
    numbered = ragged.with_columns(row=(pl.col("index") + start.row + 1).cast(pl.UInt32))
    return frame, defects_of(numbered, "row", "row.fields", message, pl.col("line").str.slice(0, SHOWN_CHARACTERS))
