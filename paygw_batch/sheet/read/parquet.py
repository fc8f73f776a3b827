"""Reads a Parquet file as a frame of exact text."""

import io
from decimal import Decimal

import polars as pl

from paygw_batch.countries.form_columns import sheet_columns
from paygw_batch.countries.kinds import Cleaning
from paygw_batch.errors import SheetError
from paygw_batch.language import mark, say
from paygw_batch.sheet.amounts import SAFE_DIGITS, WHOLE_DIGITS_WITH_CENTS, at_safe_digits
from paygw_batch.sheet.clean import changed
from paygw_batch.sheet.findings import as_defects, defects_of, no_defects, worded
from paygw_batch.sheet.read.frame import TYPED_SENTENCE, Table, rows_of
from paygw_batch.sheet.read.headings import ReadOptions, is_header, known_names, match_headings, no_header
from paygw_batch.sheet.read.parquet_trial import MAX_DIGITS, TrialResult, texts_in, try_parquet

_FIRST_ROW = 2
_EXACT_BELOW = 2**53
"""Every whole number below this one is exact as a float."""
_SHORT = rf"^-?(?:[0-9.]{{1,{SAFE_DIGITS + 1}}}|inf)$"


def read_parquet(data: bytes, options: ReadOptions) -> Table:
    """Return the rows of a Parquet file. The first one is row 2, as if a header were above it.

    Text, whole numbers and decimals are used exactly. A float of 64 bits is used with 15 digits, as in a workbook. In a
    known column, a float with more digits is a defect (`COLUMN.digits`). Fractions are defects too (`COLUMN.float`),
    except in amounts, because 1001.1 can be the id 1001.10. So are infinities and all floats of fewer bits, which keep
    7 digits. An unknown column that cannot be written as text (nested, binary, a decimal of more than 38 digits) is
    left out with a note. Raises `SheetError` for a known column of that kind, for a damaged file, and for a file that
    is larger inside than the limits allow.
    """
    verdict = try_parquet(data, max_rows=options.max_rows, max_bytes=options.max_sheet_bytes)
    if verdict is not TrialResult.SOUND:
        sentence, hint = _REFUSALS[verdict]
        raise SheetError(say(sentence, file=options.file), hint=say(hint))
    return table_of(pl.scan_parquet(io.BytesIO(data)), options)


def table_of(typed: pl.LazyFrame, options: ReadOptions) -> Table:
    """Return a typed frame as exact text, by the rules of `read_parquet`."""
    schema = typed.collect_schema()
    if not is_header([*schema], options):
        raise no_header([[*schema]], options)
    cells = texts_in(schema)
    left_out = [name for name in schema if name not in cells]
    for name, column in zip(left_out, known_names(left_out, options), strict=True):
        if column is not None:
            raise SheetError(
                say(
                    "{file}, column {column!r}: a column of type {type} cannot hold a sheet's values.",
                    file=options.file,
                    column=name,
                    type=schema[name],
                ),
                hint=say("Write the column as text, or as a decimal of at most {digits} digits.", digits=MAX_DIGITS),
            )
    headings = match_headings(cells, options, row=1)
    frame = typed.select(cells).collect().rename(dict(zip(cells, headings.names, strict=True)))
    text = pl.DataFrame([_as_text(column) for column in frame.iter_columns()])
    defects = [
        _inexact(frame[name], text[name])
        for name in options.columns
        if name in frame.columns and frame[name].dtype.is_float()
    ]
    names = ", ".join(map(repr, left_out))
    notes = (say("Columns of a kind that a sheet cannot have are left out: {names}.", names=names),) if left_out else ()
    rows = text.with_row_index("row", offset=_FIRST_ROW)
    odd = frame.select(pl.selectors.temporal() | pl.selectors.boolean()).columns
    warnings = as_defects(
        (0, name, None, f"{name}.shown_otherwise", say(TYPED_SENTENCE, value=text[name].drop_nulls().first()))
        for name in odd
        if name in options.columns and name != "amount" and text[name].count()
    )
    return Table(rows, headings, notes, pl.concat([no_defects(), *defects]), warnings)


_REFUSALS = {
    TrialResult.DAMAGED: (mark("{file} is a damaged Parquet file."), mark("Write it again.")),
    TrialResult.TOO_MANY_ROWS: (
        mark("{file} has more rows than are allowed."),
        mark("Split the sheet, or have the limit raised in the configuration."),
    ),
    TrialResult.TOO_LARGE: (
        mark("{file} is too large once unpacked."),
        mark("Split the sheet, or have the limit raised in the configuration."),
    ),
}


def _as_text(column: pl.Series) -> pl.Series:
    dtype = column.dtype
    if dtype.is_float():
        whole = column.set(~_is_whole(column), None).cast(pl.Int64).cast(pl.String)
        text = whole.zip_with(whole.is_not_null(), column.fill_nan(None).cast(pl.String))
        return changed(text, ~text.str.contains(_SHORT), _written_out)
    text = column.cast(pl.String)
    if dtype.is_decimal():
        # A Decimal column has one scale for all rows, so zeros that pad its rows mean nothing.
        return text.str.replace(r"\.0+$", "").str.replace(r"(\.[0-9]{2}[0-9]*?)0+$", "${1}")
    return text


def _written_out(text: pl.Series) -> pl.Series:
    numbers = [Decimal(value) for value in text]
    return pl.Series([at_safe_digits(number) or format(number, "f") for number in numbers], dtype=pl.String)


def _is_whole(column: pl.Series) -> pl.Series:
    return ((column == column.floor()) & (column.abs() < _EXACT_BELOW)).fill_null(value=False)


def _inexact(column: pl.Series, text: pl.Series) -> pl.DataFrame:
    """Return a defect for each float that may differ from the number that was meant. `text` is how it was read."""
    is_amount = sheet_columns().cleanings.get(column.name) is Cleaning.AMOUNT
    is_long = (text.str.count_matches("[0-9]") > SAFE_DIGITS) & (column.abs() >= 10.0**WHOLE_DIGITS_WITH_CENTS)
    is_binary = column.is_infinite() | (column.dtype != pl.Float64) | (~is_long & ~_is_whole(column) & (not is_amount))
    frame = pl.DataFrame({"number": text}).with_row_index("row", offset=_FIRST_ROW)
    value = pl.col("number")
    binary = worded(
        "{value} is stored as a binary fraction, which is not exact: write the column as text.", value=value
    )
    long = worded(
        "{value}: a binary fraction keeps 15 digits, so this number may be wrong. Write the column as text.",
        value=value,
    )
    kinds = ((f"{column.name}.float", binary, is_binary), (f"{column.name}.digits", long, is_long & ~is_binary))
    return pl.concat(
        defects_of(rows_of(frame, text.is_not_null() & is_so), column.name, code, message, value)
        for code, message, is_so in kinds
    )
