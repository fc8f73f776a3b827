"""Reads a Parquet file as a frame of exact text."""

import io
from decimal import Decimal

import polars as pl

from paygw_batch.countries.form_columns import sheet_columns
from paygw_batch.countries.kinds import Cleaning
from paygw_batch.errors import SheetError
from paygw_batch.language import mark, say
from paygw_batch.sheet.amounts import SAFE_DIGITS, WHOLE_DIGITS_WITH_CENTS, round_to_safe_digits
from paygw_batch.sheet.clean import apply_where
from paygw_batch.sheet.findings import build_findings, build_message, empty_findings, findings_for_rows
from paygw_batch.sheet.read.frame import TYPED_MESSAGE, Table, filter_rows
from paygw_batch.sheet.read.headings import ReadOptions, is_header, match_headings, match_names, no_header_error
from paygw_batch.sheet.read.parquet_trial import MAX_DIGITS, TrialResult, text_columns, try_parquet

_FIRST_ROW = 2
_EXACT_BELOW = 2**53
"""Floats represent all whole numbers below this one exactly."""
_SHORT_NUMBER = rf"^-?(?:[0-9.]{{1,{SAFE_DIGITS + 1}}}|inf)$"


def read_parquet(data: bytes, options: ReadOptions) -> Table:
    """Read the rows of a Parquet file. The first one is row 2, as if it followed a header.

    Text, whole numbers and decimals are exact. 64-bit floats have 15 digits, as in a workbook. In a known column, a
    float with more digits is a defect (`COLUMN.digits`). So are infinities, 32-bit floats, which have only 7 digits,
    and fractions outside amounts, because 1001.1 can be the id 1001.10 (`COLUMN.float`). Unknown columns that cannot be
    written as text (nested, binary, or decimals of more than 38 digits) are omitted with a note. Raises `SheetError`
    for such a known column, a damaged file, and a file that exceeds the limits when decoded.
    """
    result = try_parquet(data, max_rows=options.max_rows, max_bytes=options.max_sheet_bytes)
    if result is not TrialResult.SOUND:
        template, hint = _TRIAL_MESSAGES[result]
        raise SheetError(say(template, file=options.file), hint=say(hint))
    return build_table(pl.scan_parquet(io.BytesIO(data)), options)


def build_table(lazy_frame: pl.LazyFrame, options: ReadOptions) -> Table:
    """Convert a typed frame to exact text, as `read_parquet` describes."""
    schema = lazy_frame.collect_schema()
    if not is_header([*schema], options):
        raise no_header_error([[*schema]], options)
    supported = text_columns(schema)
    unsupported = [name for name in schema if name not in supported]
    for name, column in zip(unsupported, match_names(unsupported, options), strict=True):
        if column is not None:
            raise SheetError(
                say(
                    "{file}, column {column!r}: the type {type} is not supported in a sheet.",
                    file=options.file,
                    column=name,
                    type=schema[name],
                ),
                hint=say("Store the column as text, or as a decimal of at most {digits} digits.", digits=MAX_DIGITS),
            )
    headings = match_headings(supported, options, row=1)
    frame = lazy_frame.select(supported).collect().rename(dict(zip(supported, headings.names, strict=True)))
    text = pl.DataFrame([_to_text(column) for column in frame.iter_columns()])
    floats = [name for name in options.columns if name in frame.columns and frame[name].dtype.is_float()]
    defects = [_inexact_defects(frame[name], text[name]) for name in floats]
    names = ", ".join(map(repr, unsupported))
    notes = (say("Columns of unsupported types are ignored: {names}.", names=names),) if unsupported else ()
    rows = text.with_row_index("row", offset=_FIRST_ROW)
    typed_columns = frame.select(pl.selectors.temporal() | pl.selectors.boolean()).columns
    warnings = build_findings(
        (0, name, None, f"{name}.shown_otherwise", say(TYPED_MESSAGE, value=text[name].drop_nulls().first()))
        for name in typed_columns
        if name in options.columns and name != "amount" and text[name].count()
    )
    return Table(rows, headings, notes, pl.concat([empty_findings(), *defects]), warnings)


_TRIAL_MESSAGES = {
    TrialResult.DAMAGED: (mark("{file} is a damaged Parquet file."), mark("Create the file again.")),
    TrialResult.TOO_MANY_ROWS: (
        mark("{file} has more rows than are allowed."),
        mark("Split the sheet, or have the limit raised in the configuration."),
    ),
    TrialResult.TOO_LARGE: (
        mark("{file} is too large when unpacked."),
        mark("Split the sheet, or have the limit raised in the configuration."),
    ),
}


def _to_text(column: pl.Series) -> pl.Series:
    dtype = column.dtype
    if dtype.is_float():
        whole = column.set(~_is_whole(column), None).cast(pl.Int64).cast(pl.String)
        text = whole.zip_with(whole.is_not_null(), column.fill_nan(None).cast(pl.String))
        return apply_where(text, ~text.str.contains(_SHORT_NUMBER), _expand_exponents)
    text = column.cast(pl.String)
    if dtype.is_decimal():
        # All rows of a decimal column have the same scale, so trailing zeros are padding.
        return text.str.replace(r"\.0+$", "").str.replace(r"(\.[0-9]{2}[0-9]*?)0+$", "${1}")
    return text


def _expand_exponents(text: pl.Series) -> pl.Series:
    numbers = [Decimal(value) for value in text]
    return pl.Series([round_to_safe_digits(number) or format(number, "f") for number in numbers], dtype=pl.String)


def _is_whole(column: pl.Series) -> pl.Series:
    return ((column == column.floor()) & (column.abs() < _EXACT_BELOW)).fill_null(value=False)


def _inexact_defects(column: pl.Series, text: pl.Series) -> pl.DataFrame:
    """Return a defect for each float that may not be the intended number. `text` holds the floats as read."""
    is_amount = sheet_columns().cleanings.get(column.name) is Cleaning.AMOUNT
    is_long = (text.str.count_matches("[0-9]") > SAFE_DIGITS) & (column.abs() >= 10.0**WHOLE_DIGITS_WITH_CENTS)
    is_binary = column.is_infinite() | (column.dtype != pl.Float64) | (~is_long & ~_is_whole(column) & (not is_amount))
    frame = pl.DataFrame({"number": text}).with_row_index("row", offset=_FIRST_ROW)
    value = pl.col("number")
    binary = build_message(
        "{value} is stored as a binary fraction, which is not exact. Store the column as text.", value=value
    )
    too_long = build_message(
        "{value}: a binary fraction can store only 15 digits, so this number may be wrong. Store the column as text.",
        value=value,
    )
    cases = ((f"{column.name}.float", binary, is_binary), (f"{column.name}.digits", too_long, is_long & ~is_binary))
    return pl.concat(
        findings_for_rows(filter_rows(frame, text.is_not_null() & mask), column.name, code, message, value)
        for code, message, mask in cases
    )
