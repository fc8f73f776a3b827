"""Reads delimited text (CSV) as a frame of exact text. Finds the header and the delimiter, and loses no line.

A sheet is used only if two readings agree. The first is by polars. The second counts lines and delimiters in the bytes,
and checks lines with quotation marks against RFC 4180. Together they detect stray quotation marks that merge rows, and
rows with missing fields. A field may span several lines if none of them could be a row.
"""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import polars as pl

from paygw_batch.countries.form_columns import sheet_columns
from paygw_batch.countries.kinds import Cleaning
from paygw_batch.errors import SheetError
from paygw_batch.language import mark, say, say_count
from paygw_batch.sheet.clean import unguard_formulas, unguard_names
from paygw_batch.sheet.columns import REQUIRED_COLUMNS
from paygw_batch.sheet.findings import (
    MAX_SHOWN_CHARACTERS,
    append_row_numbers,
    build_findings,
    build_message,
    findings_for_rows,
)
from paygw_batch.sheet.read.frame import LINE_BREAK, VISIBLE, Table
from paygw_batch.sheet.read.headings import (
    HEADER_ROWS,
    Headings,
    ReadOptions,
    check_column_count,
    is_header,
    match_headings,
    match_names,
    no_header_error,
)
from paygw_batch.sheet.read.text import LineMarks

DELIMITERS = (",", ";", "\t", "|")
_LINES_PER_QUOTED = 8
"""If at most one line in this many has quotation marks, it is cheaper to check only those lines."""
_DELIMITER_NAMES = {",": mark("a comma"), ";": mark("a semicolon"), "\t": mark("a tab"), "|": mark("a vertical bar")}
_BLANK_LINE = re.compile(rb"(?<=\n)\r?(?:\n|\Z)")
_SPLIT_THOUSANDS = r"(?:^|[^0-9.,])[0-9]{1,3},[0-9]{3}(?:\.[0-9]+)?[^0-9]{0,12}$"
"""An amount and the next field, if they may be one amount, as in `1,500`. The next two match `1,50` and `1500,00`."""
_SPLIT_CENTS = r"(?:^|[^0-9.,])[0-9]{1,3},[0-9]{2}[^0-9]{0,4}$"
_SPLIT_CENTS_OF_MORE = r"^[^.,]*[0-9],[0-9]{2}$"
_STRICT = frozenset({Cleaning.NUMBER, Cleaning.CODE})
"""The cleanings of columns whose checks detect values that belong to another column."""
_SEP_LINE = re.compile(rb'"?sep=([!#-&(-/:-@\[-`{-~\t])"?[ \t]*', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HeaderPosition:
    """The position of the header: its `line` in the file (from 0) and `row` (from 1), and the next line's `offset`."""

    delimiter: str
    line: int
    row: int
    cells: list[str]
    offset: int
    headings: Headings


def read_delimited(data: bytes, options: ReadOptions) -> Table:
    """Read the rows of `data` (UTF-8 without NUL and without lone carriage returns).

    Rows with too many or too few fields have a defect (`row.fields`). Raises `SheetError` if the file as a whole cannot
    be trusted, for example if most rows have the same wrong number of fields.
    """
    header = find_header(data, options)
    try:
        return _flag_split_amounts(_read_table(data, header, options), header.delimiter)
    except _UnclosedQuote:
        joined_data = _join_quoted_lines(data, header)
        if joined_data is None:
            raise
    return _flag_split_amounts(_read_table(joined_data, header, options), header.delimiter)


class _UnclosedQuote(SheetError):
    """A quotation mark is not closed on the same line."""


class _WidthMismatch(SheetError):
    """Most rows have a different number of fields from the header. `fields` is that number if all rows share it."""

    def __init__(self, message: str, *, hint: str, fields: int | None) -> None:
        super().__init__(message, hint=hint)
        self.fields = fields


def _read_table(data: bytes, header: HeaderPosition, options: ReadOptions) -> Table:
    """Read the rows, dropping fields or headings that are empty at the end of every line."""
    delimiter = header.delimiter.encode()
    marks = LineMarks.scan(data, delimiter, header.offset)
    try:
        return _read_rows(data, header, marks, options.file)
    except _WidthMismatch as error:
        if error.fields is None or "".join(header.cells[error.fields :]).strip():
            raise
        cells = [*header.cells, *[""] * error.fields][: error.fields]
        headings = match_headings(unguard_names(cells), options, row=header.row)
        head = data[: data.rfind(b"\n", 0, header.offset - 1) + 1] + delimiter.join([b"x"] * error.fields) + b"\n"
        fitted_header = replace(header, cells=cells, headings=headings, offset=len(head))
        table = _read_rows(head + data[header.offset :], fitted_header, marks, options.file)
        if not _has_only_empty_tail(table, header):
            raise
        note = say("Every row ends with an empty field that has no heading. These fields are ignored.")
        return replace(table, notes=(note,) if error.fields > len(header.cells) else ())


def _join_quoted_lines(data: bytes, header: HeaderPosition) -> bytes | None:
    """Replace line breaks inside quotation marks with `LINE_BREAK`. Returns None if that could hide a row.

    Stray quotation marks merge rows. The lines of a record could be separate rows if two of them have enough
    delimiters, or a known country and an amount in the right columns.
    """
    min_delimiters = max(1, len(header.cells) - 2)
    country, amount = (header.headings.names.index(name) for name in REQUIRED_COLUMNS)
    lines = data[header.offset :].decode().split("\n")
    rows = [line.split(header.delimiter) for line in lines if line.count(header.delimiter) > min_delimiters]
    countries = {cells[country].strip(' "') for cells in rows}

    def can_be_row(line: str) -> bool:
        splits = [line.split(delimiter) for delimiter in (header.delimiter, *DELIMITERS)]
        long_rows = [row for row in splits if len(row) > max(country, amount) and row[country].strip(' "') in countries]
        return len(splits[0]) > min_delimiters or any(letter.isdigit() for row in long_rows for letter in row[amount])

    record: list[str] = []
    joined_lines: list[str] = []
    has_open_quote = False
    for line in lines:
        record.append(line.removesuffix("\r"))
        has_open_quote ^= line.count('"') % 2 == 1
        if not has_open_quote:
            if len(record) > 1 and sum(map(can_be_row, record)) > 1:
                return None
            joined_lines.append(LINE_BREAK.join(record))
            record = []
    return None if record else data[: header.offset] + "\n".join(joined_lines).encode()


def _has_only_empty_tail(table: Table, header: HeaderPosition) -> bool:
    """Return whether all fields after the last heading are empty, and no value can belong there.

    A comma inside a value (`1,000`) shifts all later values, and an empty last column would hide the shift. So if the
    delimiter is a comma, the last known column must have strict checks and a value in each row.
    """
    frame, extra_names = table.frame, table.headings.names[len(header.cells) :]
    last_known = [name for name in header.headings.names if name not in header.headings.unknown][-1]
    if not extra_names:
        return True
    if frame.select(pl.concat_str(extra_names, ignore_nulls=True).str.contains(VISIBLE).any()).item():
        return False
    is_strict = sheet_columns().cleanings.get(last_known) in _STRICT
    return header.delimiter != "," or (is_strict and not frame.drop_nulls("country")[last_known].null_count())


def _flag_split_amounts(table: Table, delimiter: str) -> Table:
    """Add findings about amounts split by a comma: `1,500` is read as 1, with 500 in the next field.

    The amount is a defect if a value without a heading follows. If the rest of the amount may be in a column without
    strict checks, the whole sheet gets a warning, because 22 after an amount of 500 could be days. Values in later
    columns show that nothing was shifted.
    """
    names, cleanings = table.headings.names, sheet_columns().cleanings
    next_columns = list(takewhile(lambda name: cleanings.get(name) not in _STRICT, names[names.index("amount") + 1 :]))
    if delimiter != "," or not next_columns:
        return table
    has_no_defect = ~pl.col("row").is_in(table.defects["row"].implode())
    value_and_next = (pl.col(name).str.strip_chars() for name in ("amount", next_columns[0]))
    joined_value = pl.concat_str(value_and_next, separator=",").str.slice(0, MAX_SHOWN_CHARACTERS)
    nameless = [name for name in next_columns if name in table.headings.nameless]
    later_columns = names[names.index(next_columns[0]) + 1 :]
    has_nameless_value, has_later_value = (
        pl.any_horizontal(pl.lit(value=False), *(pl.col(name).str.contains(VISIBLE) for name in columns)).fill_null(
            value=False
        )
        for columns in (nameless, later_columns)
    )
    has_cents = joined_value.str.contains(_SPLIT_CENTS)
    has_cents = (has_cents & (has_cents.mean() > 1 / 2)) | (
        joined_value.str.contains(_SPLIT_CENTS_OF_MORE) & joined_value.str.contains(",0[0-9]$").any()
    )
    looks_split = joined_value.str.contains(_SPLIT_THOUSANDS) | has_cents
    may_be_amount = joined_value.str.contains(r"^[^.,]*[0-9],[0-9]") if next_columns[0] in nameless else looks_split
    rows = table.frame.filter(has_no_defect, pl.col(next_columns[0]).str.contains(VISIBLE)).select(
        "row",
        whole=joined_value,
        is_certain=may_be_amount & has_nameless_value,
        is_unsure=looks_split & ~has_later_value,
    )
    certain, unsure = rows.filter("is_certain"), rows.filter("is_unsure", ~pl.col("is_certain"))
    message = build_message(
        "{value} seems to be one amount, split at its comma. Put it in quotation marks, or give each column a heading.",
        value=pl.col("whole"),
    )
    defects = findings_for_rows(certain, "amount", "amount.cut_by_comma", message, pl.col("whole"))
    table = replace(table, defects=pl.concat([table.defects, defects]))
    if unsure.is_empty():
        return table
    value = unsure["whole"][0]
    amount, _, remainder = value.partition(",")
    sentence = say(
        "{value} may be one amount, split at its comma. {amount} would be paid, and {rest} read as {heading}.",
        value=value,
        amount=amount,
        rest=remainder,
        heading=repr(table.headings.sender_headings[next_columns[0]]),
    )
    warning = build_findings([(0, "amount", value, "amount.cut_by_comma", append_row_numbers(sentence, unsure["row"]))])
    return replace(table, warnings=pl.concat([table.warnings, warning]))


def _read_rows(data: bytes, header: HeaderPosition, marks: LineMarks, file: str) -> Table:
    """Read the rows of `data` below `header`. `marks` are the marks of these rows. Raises `SheetError`."""
    headings, height = header.headings, marks.line_count
    # polars silently joins lines at an unclosed quotation mark, and pads short rows. A payment could vanish, or an
    # amount could be read from a neighbouring column. So lines and delimiters are also counted in the bytes.
    ragged = None
    frame = _parse_rows(data, header) if _counts_agree(data, header, marks) else None
    if frame is None:
        ragged = _find_ragged_lines(data, header, file)
        _check_width(data, ragged, header, file)
        frame = _parse_rows(_blank_ragged_lines(data, header, ragged), header)
    if frame is None or frame.height != height:
        raise SheetError(
            say("{file} cannot be split into rows, because its {lines} lines run together.", file=file, lines=height),
            hint=say(_QUOTE_HINT),
        )
    # An apostrophe is rare, so searching for one and then checking what precedes it is fast.
    if re.search(rb"'(?<=[\n\"" + re.escape(header.delimiter.encode()) + rb"]')", data):
        frame = frame.with_columns(unguard_formulas(column) for column in frame.iter_columns())
    frame = frame.with_row_index("row", offset=header.row + 1)
    if ragged is None:
        return Table(frame, headings, may_have_empty_cells=b'""' in marks.marks)
    frame, defects = _fill_ragged_rows(frame, ragged, header)
    return Table(frame, headings, defects=defects)


_QUOTE_HINT = mark('Quotation marks must enclose a whole field. Write a quotation mark inside it twice: "a ""b"" c".')


@dataclass(frozen=True, slots=True)
class FirstLine:
    """One of a text's first lines: `line` in the file (from 0), `row` (from 1), and the next line's `offset`.

    `cells_by_delimiter` holds its cells for each delimiter. `has_open_quote` says whether a quotation mark is unpaired.
    """

    line: int
    row: int
    offset: int
    cells_by_delimiter: Sequence[tuple[str, list[str]]]
    has_open_quote: bool


def first_lines(data: bytes) -> list[FirstLine]:
    """Return the first lines, any of which may be the header."""
    lines: list[FirstLine] = []
    delimiters: tuple[str, ...] = DELIMITERS
    skipped = offset = 0
    while offset < len(data) and len(lines) < HEADER_ROWS:
        end = data.find(b"\n", offset)
        next_offset = len(data) if end < 0 else end + 1
        text = data[offset:next_offset].rstrip(b"\r\n")
        # If the first line is `sep=;`, a spreadsheet uses that delimiter and counts the next line as row 1.
        if not offset and (sep := _SEP_LINE.fullmatch(text)):
            delimiters, skipped = (sep[1].decode("latin-1"), *DELIMITERS), 1
        else:
            cells = [(delimiter, _split_cells(text.decode(), delimiter)) for delimiter in delimiters]
            lines.append(FirstLine(len(lines) + skipped, len(lines) + 1, next_offset, cells, text.count(b'"') % 2 == 1))
        offset = next_offset
    return lines


def find_header(data: bytes, options: ReadOptions) -> HeaderPosition:
    """Find the header. Raises `SheetError` if there is none."""
    lines = first_lines(data)
    for line in lines:
        for _, cells in line.cells_by_delimiter:
            check_column_count(cells, options)
        matches = [(delimiter, cells) for delimiter, cells in line.cells_by_delimiter if is_header(cells, options)]
        if matches and line.has_open_quote:
            break
        if matches:
            delimiter, cells = max(matches, key=lambda match: sum(map(bool, match_names(match[1], options))))
            headings = match_headings(unguard_names(cells), options, row=line.row)
            return HeaderPosition(delimiter, line.line, line.row, cells, line.offset, headings)
    for line in lines:
        if line.has_open_quote and any(any(match_names(cells, options)) for _, cells in line.cells_by_delimiter):
            template = mark("{file}, row {row}: a heading has several lines, or a quotation mark is missing.")
            raise SheetError(
                say(template, file=options.file, row=line.row), hint=say("Write each heading on one line.")
            )
    by_delimiter = ([dict(line.cells_by_delimiter)[delimiter] for line in lines] for delimiter in DELIMITERS)

    def count_names_and_cells(rows: Sequence[Sequence[str]]) -> tuple[int, int]:
        return sum(bool(name) for cells in rows for name in match_names(cells, options)), sum(map(len, rows))

    raise no_header_error(max(by_delimiter, key=count_names_and_cells), options)


def _split_cells(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:  # a field too long for the csv module is not a heading
        return []


def _parse_rows(data: bytes, header: HeaderPosition) -> pl.DataFrame | None:
    """Parse each line below the header as a row, and blank lines as nulls. Returns None if polars fails."""
    try:
        return pl.read_csv(
            data,
            separator=header.delimiter,
            quote_char='"' if b'"' in data else None,
            skip_lines=header.line,
            infer_schema=False,
            with_column_names=lambda _: list(header.headings.names),
        )
    except pl.exceptions.PolarsError:
        return None


def _counts_agree(data: bytes, header: HeaderPosition, marks: LineMarks) -> bool:
    """Return whether the line and delimiter counts prove that each line has all its fields.

    The few lines with quotation marks are checked one by one. polars rejects extra fields, so if the other lines have
    the right total of delimiters, none of them lacks a field or is blank.
    """
    delimiter_count = len(header.cells) - 1
    if marks.are_uniform(delimiter_count):
        return True
    quoted = _quoted_lines(data, header.offset, max_lines=marks.line_count // _LINES_PER_QUOTED)
    if quoted is None:
        return False
    quoted_delimiters = sum(line.count(marks.delimiter) for line in quoted)
    unquoted_count = marks.line_count - len(quoted)
    if marks.marks.count(marks.delimiter) - quoted_delimiters != delimiter_count * unquoted_count:
        return False
    quoted_lines = pl.Series("line", [line.decode().removesuffix("\r") for line in quoted], pl.String).to_frame()
    has_fields = pl.col("line").str.contains(_line_pattern(header))
    has_fields &= _delimiters_outside_quotes(header) == delimiter_count
    return bool(quoted_lines.select(has_fields.all()).item())


def _quoted_lines(data: bytes, offset: int, *, max_lines: int) -> list[bytes] | None:
    """Return the lines after `offset` that have a quotation mark, or None if more than `max_lines` do."""
    lines: list[bytes] = []
    position = data.find(b'"', offset)
    while position >= 0 and len(lines) <= max_lines:
        end = data.find(b"\n", position)
        end = len(data) if end < 0 else end
        lines.append(data[data.rfind(b"\n", 0, position) + 1 : end])
        position = data.find(b'"', end)
    return lines if position < 0 else None


def _find_ragged_lines(data: bytes, header: HeaderPosition, file: str) -> pl.DataFrame:
    """Return the `index`, `line` and `fields` of lines with a wrong number of fields. Raises `SheetError`."""
    line, delimiter = pl.col("line"), header.delimiter
    lines_below = pl.scan_lines(data).with_row_index("index").filter(pl.col("index") > header.line)
    lines_below = lines_below.with_columns(index=pl.col("index") - (header.line + 1))
    is_quoted = line.str.contains('"', literal=True)
    quoted = lines_below.filter(is_quoted).collect(engine="streaming")
    _check_quotes(quoted, header, file)
    fields = line.str.count_matches(delimiter, literal=True) + 1
    unquoted = lines_below.filter(~is_quoted, line.str.len_bytes() > 0).with_columns(fields=fields)
    is_ragged = pl.col("fields") != len(header.cells)
    ragged = [
        unquoted.filter(is_ragged).collect(engine="streaming"),
        quoted.with_columns(fields=_delimiters_outside_quotes(header) + 1).filter(is_ragged),
    ]
    return pl.concat(ragged).sort("index").rechunk()


def _delimiters_outside_quotes(header: HeaderPosition) -> pl.Expr:
    outside = pl.col("line").str.replace_all(r'"(?:[^"]|"")*"', "")
    return outside.str.count_matches(header.delimiter, literal=True)


def _line_pattern(header: HeaderPosition) -> str:
    delimiter = re.escape(header.delimiter)
    # A field is one of RFC 4180's two kinds, or ="0712", which keeps a leading zero in a spreadsheet.
    field = rf'(?:[^"{delimiter}]*|"(?:[^"]|"")*"|="[^"{delimiter}]*")'
    return f"^{field}(?:{delimiter}{field})*$"


def _check_quotes(quoted: pl.DataFrame, header: HeaderPosition, file: str) -> None:
    unclosed = quoted.filter(~pl.col("line").str.contains(_line_pattern(header)))["index"].sort()
    if unclosed.len():
        raise _UnclosedQuote(
            say(
                "{file}, row {row}: a quotation mark is not closed on the same line, so later rows could be lost.",
                file=file,
                row=header.row + 1 + unclosed[0],
            ),
            hint=say(_QUOTE_HINT),
        )


def _check_width(data: bytes, ragged: pl.DataFrame, header: HeaderPosition, file: str) -> None:
    """Raise `_WidthMismatch` if most rows share the same wrong number of fields."""
    columns = len(header.cells)
    fields, count = ragged["fields"].value_counts(sort=True).row(0) if ragged.height > 1 else (0, 0)
    row_count = data.count(b"\n", header.offset) + 1 - len(_BLANK_LINE.findall(data, header.offset))
    if count < 2 or count * 2 <= row_count:  # noqa: PLR2004 (a single row shows no pattern)
        return
    sign = say(_DELIMITER_NAMES.get(header.delimiter, header.delimiter))
    if fields > columns and count == row_count:
        message = say(
            "{file}: every row has {more} more than the header. Is a heading missing, or does each line end with "
            "{sign}?",
            more=say("one field") if fields == columns + 1 else say("{count} fields", count=fields - columns),
            file=file,
            sign=sign,
        )
    else:
        message = say_count(
            fields,
            "{file}: most rows have {count} field, but the header has {columns}. Are headings or fields missing?",
            "{file}: most rows have {count} fields, but the header has {columns}. Are headings or fields missing?",
            file=file,
            columns=columns,
        )
    hint = say("Correct the headings or the lines. A value that contains {sign} must be in quotation marks.", sign=sign)
    raise _WidthMismatch(message, hint=hint, fields=fields if count == row_count else None)


def _blank_ragged_lines(data: bytes, header: HeaderPosition, ragged: pl.DataFrame) -> bytes:
    """Replace ragged lines with blank ones, so that other rows keep their numbers."""
    if not ragged.height:
        return data
    lines = data[header.offset :].split(b"\n")
    for index in ragged["index"]:
        lines[index] = b""
    return data[: header.offset] + b"\n".join(lines)


def _fill_ragged_rows(
    frame: pl.DataFrame, ragged: pl.DataFrame, header: HeaderPosition
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Fill in the fields of ragged lines from left to right. Also returns a defect for each of these lines.

    Extra fields go into the last column, where a person can see and correct them. Even an empty extra field is a
    defect, because an unquoted `1,000` before an empty last field would be paid as 1.
    """
    names = header.headings.names
    columns = len(names)
    fitted_rows: list[list[str | None]] = []
    for line in ragged["line"]:
        cells = _split_cells(line, header.delimiter) or line.split(header.delimiter)
        fitted = [*cells[: columns - 1], header.delimiter.join(cells[columns - 1 :])]
        fitted_rows.append([cell or None for cell in fitted] + [None] * (columns - len(fitted)))
    fields_frame = pl.DataFrame(fitted_rows, schema=dict.fromkeys(names, pl.String), orient="row")
    indices = ragged["index"]
    frame = frame.with_columns(frame[name].scatter(indices, fields_frame[name]) for name in names)
    add_fields = say("add the missing fields, empty if they have no value")
    quote_fields = say(
        "put fields that contain {delimiter!r} in quotation marks, and write amounts without it",
        delimiter=header.delimiter,
    )
    suggestion = pl.when(pl.col("fields") < columns).then(pl.lit(add_fields)).otherwise(pl.lit(quote_fields))
    parts: dict[str, pl.Expr | int] = {"fields": pl.col("fields"), "columns": columns, "suggestion": suggestion}
    one_field = build_message("The row has one field, but the header has {columns}: {suggestion}.", **parts)
    several_fields = build_message("The row has {fields} fields, but the header has {columns}: {suggestion}.", **parts)
    message = pl.when(pl.col("fields") == 1).then(one_field).otherwise(several_fields)
    lines = ragged.with_columns(row=(pl.col("index") + header.row + 1).cast(pl.UInt32))
    return frame, findings_for_rows(
        lines, "row", "row.fields", message, pl.col("line").str.slice(0, MAX_SHOWN_CHARACTERS)
    )
