"""Reads Parquet as a frame of exact text."""

import io

import polars as pl

from paygw_batch.errors import SheetError
from paygw_batch.language import mark, say
from paygw_batch.sheet.findings import defects_of, no_defects, worded
from paygw_batch.sheet.read.frame import Table, rows_of
from paygw_batch.sheet.read.headings import Vocabulary, is_header, match_headings, no_header
from paygw_batch.sheet.read.parquet_trial import TrialResult, try_parquet

_FIRST_ROW = 2
_EXACT_BELOW = 2**53
"""Every whole number below it has an exact float."""


def read_parquet(data: bytes, vocabulary: Vocabulary, *, file: str, max_rows: int, max_bytes: int) -> Table:
    """Return the rows of a Parquet file; the first one is row 2, as if a header were above it.

    Text is used unchanged, whole numbers and decimals exactly. A float is used if it is a whole number below 2^53;
    otherwise it is a defect of a known column (`COLUMN.float`). Raises `SheetError` for a damaged file, for one
    that is larger inside than the limits allow, and for nested or binary columns.
    """
    verdict = try_parquet(data, max_rows=max_rows, max_bytes=max_bytes)
    if verdict is not TrialResult.SOUND:
        sentence, hint = _REFUSALS[verdict]
        raise SheetError(say(sentence, file=file), hint=say(hint))
    return table_of(pl.read_parquet(io.BytesIO(data)), vocabulary, file=file)


def table_of(frame: pl.DataFrame, vocabulary: Vocabulary, *, file: str) -> Table:
    """Return a typed frame as exact text, as `read_parquet` does; `file` is its name in errors."""
    cells = frame.columns
    if not is_header(cells, vocabulary):
        raise no_header(file, [cells], vocabulary)
    headings = match_headings(cells, vocabulary, file=file, row=1)
    frame = frame.rename(dict(zip(cells, headings.names, strict=True)))
    defects = [
        _inexact(frame[name]) for name in vocabulary.columns if name in frame.columns and frame[name].dtype.is_float()
    ]
    text = pl.DataFrame([_as_text(column, file) for column in frame.iter_columns()])
    return Table(text.with_row_index("row", offset=_FIRST_ROW), headings, defects=pl.concat([no_defects(), *defects]))


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


def _as_text(column: pl.Series, file: str) -> pl.Series:
    dtype = column.dtype
    if dtype.is_nested() or dtype in {pl.Binary, pl.Object, pl.Unknown}:
        raise SheetError(
            say(
                "{file}, column {column!r}: a column of type {type} cannot hold a sheet's values.",
                file=file,
                column=column.name,
                type=dtype,
            ),
            hint=say("Write the column as text."),
        )
    if dtype.is_float():
        whole = column.set(~_is_whole(column), None).cast(pl.Int64).cast(pl.String)
        return whole.zip_with(whole.is_not_null(), column.fill_nan(None).cast(pl.String))
    text = column.cast(pl.String)
    if dtype.is_decimal():
        # A Decimal column has one scale for all rows; zeros that pad every row mean nothing.
        return text.str.replace(r"\.0+$", "").str.replace(r"(\.[0-9]{2}[0-9]*?)0+$", "${1}")
    return text


def _is_whole(column: pl.Series) -> pl.Series:
    return ((column == column.floor()) & (column.abs() < _EXACT_BELOW)).fill_null(value=False)


def _inexact(column: pl.Series) -> pl.DataFrame:
    """Return a defect for each float that is not a whole number, or too large to differ from its neighbours."""
    frame = pl.DataFrame({"number": column.fill_nan(None)}).with_row_index("row", offset=_FIRST_ROW)
    wrong = rows_of(frame, frame["number"].is_not_null() & ~_is_whole(column))
    value = pl.col("number").cast(pl.String)
    message = worded(
        "{value} is stored as a binary fraction, which is not exact: write the column as text.", value=value
    )
    return defects_of(wrong, column.name, f"{column.name}.float", message, value)
