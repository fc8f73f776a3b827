"""Reads Parquet as a frame of exact text, as a whole or part by part."""

import hashlib
import io
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

import polars as pl

from paygw_batch.errors import SheetError
from paygw_batch.language import mark, say
from paygw_batch.sheet.findings import defects_of, no_defects, worded
from paygw_batch.sheet.model import Sheet
from paygw_batch.sheet.pieces import NeedsWholeFile, Piece, frame_read_again, held_in
from paygw_batch.sheet.read.frame import (
    Table,
    found_in,
    has_other_digits,
    headers_of,
    on_one_line,
    rows_of,
    streamed_sheet,
    without_blank_rows,
)
from paygw_batch.sheet.read.headings import Vocabulary, is_header, known_names, match_headings, no_header
from paygw_batch.sheet.read.parquet_trial import MAX_DIGITS, TrialResult, texts_in, try_parquet

LARGE_BYTES = 2 * 1024 * 1024
"""A larger file is decoded part by part."""
ROWS_AT_ONCE = 100_000
_LOOKS = 8
LOOK_ROWS = 100
"""How many samples of a file are read before all of it, and how many rows each has."""

_FIRST_ROW = 2
_EXACT_BELOW = 2**53
"""Every whole number below it has an exact float."""


def read_parquet(data: bytes, vocabulary: Vocabulary, *, file: str, max_rows: int, max_bytes: int) -> Table:
    """Return the rows of a Parquet file; the first one is row 2, as if a header were above it.

    Text is used unchanged, whole numbers and decimals exactly. A float is used if it is a whole number below 2^53;
    otherwise it is a defect of a known column (`COLUMN.float`). A column that no text can hold (nested, binary, a
    decimal of more than 38 digits) is left out with a note if it has no meaning here. Raises `SheetError` if it has
    one, for a damaged file, and for one that is larger inside than the limits allow.
    """
    _try(data, file=file, max_rows=max_rows, max_bytes=max_bytes)
    return table_of(pl.scan_parquet(io.BytesIO(data)), vocabulary, file=file)


def _try(data: bytes, *, file: str, max_rows: int, max_bytes: int) -> None:
    """Raise `SheetError` for bytes that must not be decoded here."""
    verdict = try_parquet(data, max_rows=max_rows, max_bytes=max_bytes)
    if verdict is not TrialResult.SOUND:
        sentence, hint = _REFUSALS[verdict]
        raise SheetError(say(sentence, file=file), hint=say(hint))


def table_of(typed: pl.LazyFrame, vocabulary: Vocabulary, *, file: str, first_row: int = _FIRST_ROW) -> Table:
    """Return a typed frame as exact text, as `read_parquet` does; `file` is its name in errors."""
    schema = typed.collect_schema()
    if not is_header([*schema], vocabulary):
        raise no_header(file, [[*schema]], vocabulary)
    cells = texts_in(schema)
    left_out = [name for name in schema if name not in cells]
    for name, column in zip(left_out, known_names(left_out, vocabulary), strict=True):
        if column is not None:
            raise SheetError(
                say(
                    "{file}, column {column!r}: a column of type {type} cannot hold a sheet's values.",
                    file=file,
                    column=name,
                    type=schema[name],
                ),
                hint=say("Write the column as text, or as a decimal of at most {digits} digits.", digits=MAX_DIGITS),
            )
    headings = match_headings(cells, vocabulary, file=file, row=1)
    frame = typed.select(cells).collect().rename(dict(zip(cells, headings.names, strict=True)))
    defects = [
        _inexact(frame[name], first_row)
        for name in vocabulary.columns
        if name in frame.columns and frame[name].dtype.is_float()
    ]
    text = pl.DataFrame([_as_text(column) for column in frame.iter_columns()]).with_row_index("row", offset=first_row)
    names = ", ".join(map(repr, left_out))
    notes = (say("Columns of a kind that a sheet cannot have are left out: {names}.", names=names),) if left_out else ()
    return Table(text, headings, notes, pl.concat([no_defects(), *defects]))


class ParquetStream:
    """A `pieces.SheetSource`: a Parquet file, decoded part by part. Its bytes are kept: a fraction of its texts."""

    def __init__(
        self,
        data: bytes,
        vocabulary: Vocabulary,
        *,
        file: str,
        max_rows: int,
        max_bytes: int,
        whole: Callable[[], Sheet],
    ) -> None:
        """`whole` reads the file as a whole. Raises `SheetError` as `read_parquet`, and `NeedsWholeFile`."""
        _try(data, file=file, max_rows=max_rows, max_bytes=max_bytes)
        self._data = data
        self._vocabulary = vocabulary
        self._whole = whole
        self._sha256 = hashlib.sha256(data).hexdigest()
        self._defects: dict[int, pl.DataFrame] = {}
        self._rows = int(pl.scan_parquet(io.BytesIO(data)).select(pl.len()).collect().item())
        if not self._rows:
            raise NeedsWholeFile
        self.name = file
        self.operation = vocabulary.operation
        first = self._table(0, 1)
        self._headings, self._notes = first.headings, first.notes
        self.headers: Mapping[str, str] = headers_of(self._headings)
        self.unknown: Sequence[str] = self._headings.unknown
        self.nameless: Collection[str] = self._headings.nameless

    def pieces(self) -> Iterator[Callable[[], Piece]]:
        """As in `SheetSource`."""
        for at in range(0, self._rows, ROWS_AT_ONCE):
            yield partial(self._piece, at)

    def columns_likely_filled(self) -> Collection[str]:
        """As in `SheetSource`. The last rows of a sorted sheet may fill a column that is empty in all the others."""
        places = {*range(0, self._rows, max(LOOK_ROWS, self._rows // _LOOKS)), max(0, self._rows - LOOK_ROWS)}
        return set[str]().union(*(held_in(without_blank_rows(self._table(at, LOOK_ROWS))) for at in places))

    def sheet(self, held: Collection[str]) -> Sheet:
        """As in `SheetSource`."""
        return streamed_sheet(
            self._headings,
            held,
            self._defects,
            file=self.name,
            operation=self.operation,
            sha256=self._sha256,
            frame=partial(frame_read_again, self._whole, self.name, self._sha256),
            notes=self._notes,
        )

    def whole(self) -> Sheet:
        """As in `SheetSource`."""
        return self._whole()

    def _table(self, at: int, rows: int) -> Table:
        # A slice decodes little more than its own rows, however large the groups of rows in the file are.
        part = pl.scan_parquet(io.BytesIO(self._data)).slice(at, rows)
        return on_one_line(table_of(part, self._vocabulary, file=self.name, first_row=_FIRST_ROW + at))

    def _piece(self, at: int) -> Piece:
        try:
            table = self._table(at, ROWS_AT_ONCE)
        except SheetError as error:
            raise NeedsWholeFile from error
        frame = without_blank_rows(table).rechunk()
        if not frame.height or has_other_digits(frame):
            raise NeedsWholeFile
        self._defects[at] = found_in(table.defects, frame)
        return Piece(frame, self._defects[at])


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
        return whole.zip_with(whole.is_not_null(), column.fill_nan(None).cast(pl.String))
    text = column.cast(pl.String)
    if dtype.is_decimal():
        # A Decimal column has one scale for all rows; zeros that pad every row mean nothing.
        return text.str.replace(r"\.0+$", "").str.replace(r"(\.[0-9]{2}[0-9]*?)0+$", "${1}")
    return text


def _is_whole(column: pl.Series) -> pl.Series:
    return ((column == column.floor()) & (column.abs() < _EXACT_BELOW)).fill_null(value=False)


def _inexact(column: pl.Series, first_row: int) -> pl.DataFrame:
    """Return a defect for each float that is not a whole number, or too large to differ from its neighbours."""
    frame = pl.DataFrame({"number": column.fill_nan(None)}).with_row_index("row", offset=first_row)
    wrong = rows_of(frame, frame["number"].is_not_null() & ~_is_whole(column))
    value = pl.col("number").cast(pl.String)
    message = worded(
        "{value} is stored as a binary fraction, which is not exact: write the column as text.", value=value
    )
    return defects_of(wrong, column.name, f"{column.name}.float", message, value)
