"""Writes frames to files that are safe to open in a spreadsheet, in the format of their extension."""

from collections.abc import Iterable
from math import ceil
from pathlib import Path
from typing import IO

import polars as pl

from paygw_batch.errors import OutputError
from paygw_batch.files import atomic_file, build_output_error
from paygw_batch.language import say, spreadsheet_separators
from paygw_batch.sheet.clean import guard_columns, guard_names, wrap_for_spreadsheets
from paygw_batch.sheet.columns import REJECTS_COLUMNS
from paygw_batch.sheet.formats import table_format
from paygw_batch.sheet.model import Validated

_UNWRAPPED_COLUMNS = frozenset({"amount", "first_sent_at", "updated_at"})
"""Columns of the reconciliation that spreadsheets convert correctly, so they are not wrapped."""
_EXCEL_AMOUNT = r"^([0-9]{1,15})\.([0-9]+)$"
_POINTS_PER_LINE = 15
_LETTERS_PER_DIGIT = 1.1
"""Column widths are measured in digits, and the average letter is narrower than a digit."""


def write_frame(frame: pl.DataFrame, path: Path) -> None:
    """Write a frame to a .csv or .parquet file, or with the `excel` extra to an .xlsx file.

    The file is written atomically with mode 0600, and is durable on return. CSV is UTF-8, with formulas guarded. In
    .xlsx, strings are text cells. Raises `OutputError`.
    """
    if (max_rows := table_format(path).max_rows) is not None and frame.height > max_rows:
        raise OutputError(
            say("{name}: a workbook can hold at most {workbook_rows} rows.", name=path.name, workbook_rows=max_rows),
            hint=say("Write a .csv or .parquet file instead."),
        )
    write_pieces([frame], path)


def write_pieces(pieces: Iterable[pl.DataFrame], path: Path, *, for_excel: bool = False) -> None:
    """Write a frame in pieces, like `write_frame`. A workbook needs all pieces in memory.

    If `for_excel`, CSV is written so that Excel opens it correctly (`_write_csv_for_excel`). If `pieces` raises an
    error, no file is written.
    """
    output_format = table_format(path)
    output = map(_guard_piece, pieces) if output_format.is_guarded and not for_excel else pieces
    with atomic_file(path) as file:
        try:
            (_write_csv_for_excel if for_excel and output_format.is_guarded else output_format.write)(output, file)
        except pl.exceptions.PolarsError as error:
            raise build_output_error(path, error) from error


def rows_to_correct(validated: Validated, *, include_valid: bool = False) -> pl.DataFrame:
    """Return the invalid rows, or all rows (`include_valid`), for correction.

    `row` (UInt32) and `problems` (all messages about the row) come first, then the sender's columns under their own
    headings. Reading the file drops `row` and `problems`.
    """
    sheet = validated.sheet
    rows = validated.rows.filter(~pl.col("valid") | include_valid).select("row", problems="message")
    names = {name: name if heading in {"", *REJECTS_COLUMNS} else heading for name, heading in sheet.headers.items()}
    return rows.join(sheet.frame, on="row", how="left", maintain_order="left").rename(names)


def row_height_points(texts: Iterable[str], widths: Iterable[int]) -> int:
    """Return the height in points of a row of wrapped cells. Some spreadsheets do not compute it themselves."""
    lines = (ceil(len(text) / (width * _LETTERS_PER_DIGIT)) for text, width in zip(texts, widths, strict=True))
    return _POINTS_PER_LINE * max(1, *lines)


def _guard_piece(piece: pl.DataFrame) -> pl.DataFrame:
    guarded_piece = guard_columns(piece)
    guarded_piece.columns = guard_names(piece.columns)
    return guarded_piece


def _write_csv_for_excel(pieces: Iterable[pl.DataFrame], file: IO[bytes]) -> None:
    """Write CSV that Excel displays unchanged, with the separators that Excel probably expects in amounts."""
    decimal, delimiter = spreadsheet_separators()
    for index, piece in enumerate(pieces):
        frame = guard_columns(piece)
        names = [name for name in frame.columns if frame.schema[name] == pl.String and name not in _UNWRAPPED_COLUMNS]
        frame = frame.with_columns(
            *(wrap_for_spreadsheets(frame[name]) for name in names),
            pl.col("amount").str.replace(_EXCEL_AMOUNT, f"${{1}}{decimal}${{2}}"),
        )
        frame.columns = guard_names(piece.columns)
        frame.write_csv(file, include_header=index == 0, include_bom=index == 0, separator=delimiter)
