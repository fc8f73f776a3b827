"""Reads delimited text (CSV) as a frame of exact text, and accounts for header, delimiter and every line.

Two readings must agree before a sheet is used. One is by polars. The other counts lines and delimiters in the bytes,
and checks lines with quotation marks against RFC 4180. So a stray quotation mark that merges rows, or a row with a
missing field, is noticed. A field of several lines is read if none of its lines can be a row.
"""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile

import polars as pl

from paygw_batch.countries.form_columns import sheet_columns
from paygw_batch.countries.kinds import Cleaning
from paygw_batch.errors import SheetError
from paygw_batch.language import mark, say, say_count
from paygw_batch.sheet.clean import unguarded, unguarded_names
from paygw_batch.sheet.columns import ALWAYS_NEEDED
from paygw_batch.sheet.findings import SHOWN_CHARACTERS, as_defects, defects_of, told_once, worded
from paygw_batch.sheet.read.frame import LINE_BREAK, SEEN, Table
from paygw_batch.sheet.read.headings import (
    HEADER_ROWS,
    Headings,
    ReadOptions,
    is_header,
    known_names,
    match_headings,
    no_header,
    require_columns,
)
from paygw_batch.sheet.read.text import Marks

DELIMITERS = (",", ";", "\t", "|")
_FEW_QUOTED = 8
"""If at most one line in this many has quotation marks, checking only those lines is cheaper than checking all."""
_SIGNS = {",": mark("a comma"), ";": mark("a semicolon"), "\t": mark("a tab"), "|": mark("a vertical bar")}
_BLANK_LINE = re.compile(rb"(?<=\n)\r?(?:\n|\Z)")
_CUT_THOUSANDS = r"(?:^|[^0-9.,])[0-9]{1,3},[0-9]{3}(?:\.[0-9]+)?[^0-9]{0,12}$"
"""An amount and the field after it, if they can be one: `1,500`, `KES 1,500.00`. The next two: `1,50`, `1500,00`."""
_CUT_CENTS = r"(?:^|[^0-9.,])[0-9]{1,3},[0-9]{2}[^0-9]{0,4}$"
_CUT_CENTS_OF_MORE = r"^[^.,]*[0-9],[0-9]{2}$"
_CHECKED = frozenset({Cleaning.NUMBER, Cleaning.CODE})
"""The kinds of columns whose checks notice a value that was moved there from another column."""
_SEP_LINE = re.compile(rb'"?sep=([!#-&(-/:-@\[-`{-~\t])"?[ \t]*', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Start:
    """The place of the header: its `line` (from 0, in the file), `row` (from 1) and the `offset` of the next byte."""

    delimiter: str
    line: int
    row: int
    cells: list[str]
    offset: int
    headings: Headings


def read_delimited(data: bytes, options: ReadOptions) -> Table:
    """Return the rows of `data` (UTF-8 without NUL and without lone carriage returns).

    Raises `SheetError` if the file as a whole cannot be trusted. A row with too many or too few fields is a defect of
    that row (`row.fields`), unless most rows have the same wrong number.
    """
    start = find_header(data, options)
    try:
        return _with_cut_amounts(_read(data, start, options), start.delimiter)
    except _OpenQuote:
        joined = _joined(data, start)
        if joined is None:
            raise
    return _with_cut_amounts(_read(joined, start, options), start.delimiter)


class _OpenQuote(SheetError):
    """A quotation mark opens a field and does not close it on the same line."""


class _OtherWidth(SheetError):
    """Most rows have one number of fields, and the header has another. `fields` is that number, if all rows have it."""

    def __init__(self, message: str, *, hint: str, fields: int | None) -> None:
        super().__init__(message, hint=hint)
        self.fields = fields


def _read(data: bytes, start: Start, options: ReadOptions) -> Table:
    """Return the rows. Empty fields at the end of every row, and headings without a name, do not count."""
    delimiter = start.delimiter.encode()
    marks = Marks.of(data, delimiter, start.offset)
    try:
        return read_rows(data, start, marks, options.file)
    except _OtherWidth as error:
        if error.fields is None or "".join(start.cells[error.fields :]).strip():
            raise
        cells = [*start.cells, *[""] * error.fields][: error.fields]
        headings = match_headings(unguarded_names(cells), options, row=start.row)
        before = data[: data.rfind(b"\n", 0, start.offset - 1) + 1] + delimiter.join([b"x"] * error.fields) + b"\n"
        fitted = replace(start, cells=cells, headings=headings, offset=len(before))
        table = read_rows(before + data[start.offset :], fitted, marks, options.file)
        if not _is_sure(table, start):
            raise
        note = say("Every row ends with an empty field that has no heading. It is left out.")
        return replace(table, notes=(note,) if error.fields > len(start.cells) else ())


def _joined(data: bytes, start: Start) -> bytes | None:
    """Return the text with `LINE_BREAK` for each line break inside quotation marks, or None if that could hide a row.

    Stray quotation marks merge rows. Then two lines of a record can be rows: they have a row's delimiters, or an amount
    and the country of another row at the right places.
    """
    of_a_row = max(1, len(start.cells) - 2)
    country, amount = (start.headings.names.index(name) for name in ALWAYS_NEEDED)
    texts = data[start.offset :].decode().split("\n")
    rows = [line.split(start.delimiter) for line in texts if line.count(start.delimiter) > of_a_row]
    countries = {cells[country].strip(' "') for cells in rows}

    def can_be_row(line: str) -> bool:
        ways = [line.split(delimiter) for delimiter in (start.delimiter, *DELIMITERS)]
        longer = [
            cells for cells in ways if len(cells) > max(country, amount) and cells[country].strip(' "') in countries
        ]
        return len(ways[0]) > of_a_row or any(letter.isdigit() for cells in longer for letter in cells[amount])

    record: list[str] = []
    lines: list[str] = []
    is_open = False
    for line in texts:
        record.append(line.removesuffix("\r"))
        is_open ^= line.count('"') % 2 == 1
        if not is_open:
            if len(record) > 1 and sum(map(can_be_row, record)) > 1:
                return None
            lines.append(LINE_BREAK.join(record))
            record = []
    return None if record else data[: start.offset] + "\n".join(lines).encode()


def _is_sure(table: Table, start: Start) -> bool:
    """Whether the fields after the last heading are empty, and certainly contain nothing of other columns.

    A comma inside a value (`1,000`) moves all values after it, which an empty last column would hide. So with commas,
    the last known column must be one whose values are checked, and each row must have a value in it.
    """
    frame, further = table.frame, table.headings.names[len(start.cells) :]
    last = [name for name in start.headings.names if name not in start.headings.unknown][-1]
    if not further:
        return True
    if frame.select(pl.concat_str(further, ignore_nulls=True).str.contains(SEEN).any()).item():
        return False
    is_checked = sheet_columns().cleanings.get(last) in _CHECKED
    return start.delimiter != "," or (is_checked and not frame.drop_nulls("country")[last].null_count())


def _with_cut_amounts(table: Table, delimiter: str) -> Table:
    """Return the table with findings about amounts that a comma cut: `1,500` is read as 1, with 500 in the next field.

    If a value without a heading follows, the amount is a defect. If a column without checks contains the rest, the
    whole sheet gets a warning, because 22 after an amount of 500 can be days. If the columns after that one have
    values, nothing has moved.
    """
    names, cleanings = table.headings.names, sheet_columns().cleanings
    behind = list(takewhile(lambda name: cleanings.get(name) not in _CHECKED, names[names.index("amount") + 1 :]))
    if delimiter != "," or not behind:
        return table
    is_other = ~pl.col("row").is_in(table.defects["row"].implode())
    pieces = (pl.col(name).str.strip_chars() for name in ("amount", behind[0]))
    whole = pl.concat_str(pieces, separator=",").str.slice(0, SHOWN_CHARACTERS)
    nameless = [name for name in behind if name in table.headings.nameless]
    later = names[names.index(behind[0]) + 1 :]
    has_nameless, has_later = (
        pl.any_horizontal(pl.lit(value=False), *(pl.col(name).str.contains(SEEN) for name in columns)).fill_null(
            value=False
        )
        for columns in (nameless, later)
    )
    cents = whole.str.contains(_CUT_CENTS)
    cents = (cents & (cents.mean() > 1 / 2)) | (
        whole.str.contains(_CUT_CENTS_OF_MORE) & whole.str.contains(",0[0-9]$").any()
    )
    rows = table.frame.filter(is_other, pl.col(behind[0]).str.contains(SEEN)).select(
        "row",
        whole=whole,
        is_sure=(
            whole.str.contains(r"^[^.,]*[0-9],[0-9]")
            if behind[0] in nameless
            else whole.str.contains(_CUT_THOUSANDS) | cents
        )
        & has_nameless,
        is_cut=(whole.str.contains(_CUT_THOUSANDS) | cents) & ~has_later,
    )
    sure, cut = rows.filter("is_sure"), rows.filter("is_cut", ~pl.col("is_sure"))
    message = worded(
        "{value} seems to be one amount, cut at its comma. Put it in quotation marks, or give each column a heading.",
        value=pl.col("whole"),
    )
    defects = defects_of(sure, "amount", "amount.cut_by_comma", message, pl.col("whole"))
    table = replace(table, defects=pl.concat([table.defects, defects]))
    if cut.is_empty():
        return table
    amount, _, rest = cut["whole"][0].partition(",")
    sentence = say(
        "{value} may be one amount, cut at its comma: {amount} is paid, and {rest} is read as {heading}.",
        value=cut["whole"][0],
        amount=amount,
        rest=rest,
        heading=repr(table.headings.sender[behind[0]]),
    )
    warning = as_defects([(0, "amount", cut["whole"][0], "amount.cut_by_comma", told_once(sentence, cut["row"]))])
    return replace(table, warnings=pl.concat([table.warnings, warning]))


def read_rows(data: bytes, start: Start, marks: Marks, file: str) -> Table:
    """Return the rows of `data` from `start` on, which is its header. `marks` are the marks of the lines below.

    Raises `SheetError` as `read_delimited` does.
    """
    headings, lines = start.headings, marks.lines
    # polars silently joins lines if a quotation mark does not close, and pads short rows. So lines and delimiters are
    # also counted in the bytes. If the counts differ, a payment could vanish, or an amount could be read from the
    # neighbouring column.
    ragged = None
    frame = _parse(data, start, headings) if _counts_agree(data, start, marks) else None
    if frame is None:
        ragged = _ragged_lines(data, start, file)
        _check_width(data, ragged, start, file)
        frame = _parse(_without_lines(data, start, ragged), start, headings)
    if frame is None or frame.height != lines:
        raise SheetError(
            say("{file} cannot be read as rows: its {lines} lines below the header merge.", file=file, lines=lines),
            hint=say(_QUOTES),
        )
    # The pattern searches for an apostrophe first, and then checks that a field begins with it, which skips most of the
    # text.
    if re.search(rb"'(?<=[\n\"" + re.escape(start.delimiter.encode()) + rb"]')", data):
        frame = frame.with_columns(unguarded(column) for column in frame.iter_columns())
    frame = frame.with_row_index("row", offset=start.row + 1)
    if ragged is None:
        return Table(frame, headings, has_empty=b'""' in marks.found)
    frame, defects = _with_ragged(frame, ragged, start, headings)
    return Table(frame, headings, defects=defects)


_QUOTES = mark('A quotation mark must open and close a whole field, and one inside it is written twice: "a ""b"" c".')


@dataclass(frozen=True, slots=True)
class FirstLine:
    """One of a text's first lines: its `line` (from 0, in the file), `row` (from 1) and the `offset` of the next byte.

    `ways` has its cells for each delimiter that the file may use. `is_open`: a quotation mark in it has no pair.
    """

    line: int
    row: int
    offset: int
    ways: Sequence[tuple[str, list[str]]]
    is_open: bool


def first_lines(data: bytes) -> list[FirstLine]:
    """Return the lines that may hold the header."""
    lines: list[FirstLine] = []
    delimiters: tuple[str, ...] = DELIMITERS
    above = offset = 0
    while offset < len(data) and len(lines) < HEADER_ROWS:
        end = data.find(b"\n", offset)
        after = len(data) if end < 0 else end + 1
        text = data[offset:after].rstrip(b"\r\n")
        # A spreadsheet obeys a first line `sep=;`, and gives the next line the number 1.
        if not offset and (sep := _SEP_LINE.fullmatch(text)):
            delimiters, above = (sep[1].decode("latin-1"), *DELIMITERS), 1
        else:
            ways = [(delimiter, _cells(text.decode(), delimiter)) for delimiter in delimiters]
            lines.append(FirstLine(len(lines) + above, len(lines) + 1, after, ways, text.count(b'"') % 2 == 1))
        offset = after
    return lines


def find_header(data: bytes, options: ReadOptions) -> Start:
    """Return the place of the header. Raises `SheetError` if there is no header."""
    lines = first_lines(data)
    for line in lines:
        for _, cells in line.ways:
            require_columns(cells, options)
        fitting = [(delimiter, cells) for delimiter, cells in line.ways if is_header(cells, options)]
        if fitting and line.is_open:
            break
        if fitting:
            delimiter, cells = max(fitting, key=lambda fit: sum(map(bool, known_names(fit[1], options))))
            headings = match_headings(unguarded_names(cells), options, row=line.row)
            return Start(delimiter, line.line, line.row, cells, line.offset, headings)
    for line in lines:
        if line.is_open and any(name for _, cells in line.ways for name in known_names(cells, options)):
            sentence = mark("{file}, row {row}: a heading has several lines, or lacks a quotation mark.")
            raise SheetError(
                say(sentence, file=options.file, row=line.row), hint=say("Write each heading on one line.")
            )
    by_delimiter = ([dict(line.ways)[delimiter] for line in lines] for delimiter in DELIMITERS)
    raise no_header(max(by_delimiter, key=partial(_likeness, options)), options)


def _likeness(options: ReadOptions, rows: Sequence[Sequence[str]]) -> tuple[int, int]:
    """Return how much rows resemble a sheet: the number of known columns that they name, then of their cells."""
    return sum(bool(name) for cells in rows for name in known_names(cells, options)), sum(map(len, rows))


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:  # a field that is longer than the csv module allows is no heading
        return []


def _parse(data: bytes, start: Start, headings: Headings) -> pl.DataFrame | None:
    """Return each line below the header as a row (nulls for a blank line), or None if polars refuses the text."""
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
    """Whether counting alone proves that no line lacks a field, so that no line has to be read on its own.

    Lines with quotation marks are few, and are checked one by one. polars refuses a line with an extra field. So if the
    other lines have the right total of delimiters, none of them lacks a field, and none is blank.
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
    """Return the lines from `offset` on that have a quotation mark, or None if there are more than `most`."""
    lines: list[bytes] = []
    at = data.find(b'"', offset)
    while at >= 0 and len(lines) <= most:
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        lines.append(data[data.rfind(b"\n", 0, at) + 1 : end])
        at = data.find(b'"', end)
    return lines if at < 0 else None


def _ragged_lines(data: bytes, start: Start, file: str) -> pl.DataFrame:
    """Return the lines below the header whose number of fields is wrong, as `index` (from 0), `line` and `fields`.

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
    outside = pl.col("line").str.replace_all(r'"(?:[^"]|"")*"', "")
    return outside.str.count_matches(start.delimiter, literal=True)


def _line_pattern(start: Start) -> str:
    d = re.escape(start.delimiter)
    # A field is one of RFC 4180's two kinds, or ="0712", which people write to keep a leading zero in a spreadsheet.
    field = rf'(?:[^"{d}]*|"(?:[^"]|"")*"|="[^"{d}]*")'
    return f"^{field}(?:{d}{field})*$"


def _check_quotes(quoted: pl.DataFrame, start: Start, file: str) -> None:
    wrong = quoted.filter(~pl.col("line").str.contains(_line_pattern(start)))["index"].sort()
    if wrong.len():
        raise _OpenQuote(
            say(
                "{file}, row {row}: a quotation mark does not close the field it opens on the same line; the "
                "rows after it could be swallowed.",
                file=file,
                row=start.row + 1 + wrong[0],
            ),
            hint=say(_QUOTES),
        )


def _check_width(data: bytes, ragged: pl.DataFrame, start: Start, file: str) -> None:
    """Raise `_OtherWidth` if most rows have the same wrong number of fields, which is one mistake of the file."""
    columns = len(start.cells)
    fields, count = ragged["fields"].value_counts(sort=True).row(0) if ragged.height > 1 else (0, 0)
    rows = data.count(b"\n", start.offset) + 1 - len(_BLANK_LINE.findall(data, start.offset))
    if count < 2 or count * 2 <= rows:  # noqa: PLR2004 (one row alone shows no pattern)
        return
    sign = say(_SIGNS.get(start.delimiter, start.delimiter))
    if fields > columns and count == rows:
        sentence = say(
            "{file}: Every row has {more} more than the headings. Is a heading missing, or is there {sign} at the end "
            "of each line?",
            more=say("one field") if fields == columns + 1 else say("{count} fields", count=fields - columns),
            file=file,
            sign=sign,
        )
    else:
        sentence = say_count(
            fields,
            "{file}: Most rows have {count} field, but the header has {columns}. Are headings missing, or fields?",
            "{file}: Most rows have {count} fields, but the header has {columns}. Are headings missing, or fields?",
            file=file,
            columns=columns,
        )
    hint = say("Correct the headings or the lines. A value with {sign} in it must be in quotation marks.", sign=sign)
    raise _OtherWidth(sentence, hint=hint, fields=fields if count == rows else None)


def _without_lines(data: bytes, start: Start, ragged: pl.DataFrame) -> bytes:
    """Return the file with ragged lines emptied, so that the other rows keep their numbers."""
    if not ragged.height:
        return data
    lines = data[start.offset :].split(b"\n")
    for index in ragged["index"]:
        lines[index] = b""
    return data[: start.offset] + b"\n".join(lines)


def _with_ragged(
    frame: pl.DataFrame, ragged: pl.DataFrame, start: Start, headings: Headings
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the frame with the fields of ragged lines, read from left to right, and a defect for each of these rows.

    Extra fields go into the last column, so that a person who corrects the line sees all of them. Even an empty extra
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
    parts: dict[str, pl.Expr | int] = {"fields": pl.col("fields"), "columns": columns, "mend": mend}
    one_field = worded("The row has one field, but the header has {columns}: {mend}.", **parts)
    several = worded("The row has {fields} fields, but the header has {columns}: {mend}.", **parts)
    message = pl.when(pl.col("fields") == 1).then(one_field).otherwise(several)
    numbered = ragged.with_columns(row=(pl.col("index") + start.row + 1).cast(pl.UInt32))
    return frame, defects_of(numbered, "row", "row.fields", message, pl.col("line").str.slice(0, SHOWN_CHARACTERS))
