"""Writes frames to files that are safe to open in a spreadsheet, in the format that their ending names."""

from collections.abc import Iterable
from math import ceil
from pathlib import Path
from typing import IO

import polars as pl

from paygw_batch.errors import OutputError
from paygw_batch.files import appearing, cannot_write
from paygw_batch.language import say, spreadsheet_signs
from paygw_batch.sheet.clean import guarded_columns, guarded_names, kept_by_spreadsheets
from paygw_batch.sheet.columns import REJECTS_COLUMNS
from paygw_batch.sheet.formats import table_format
from paygw_batch.sheet.model import Validated

_AS_IT_IS = frozenset({"amount", "first_sent_at", "updated_at"})
"""Columns of a reconciliation whose text a spreadsheet converts to the right value, so they are not wrapped."""
_AMOUNT_OF_EXCEL = r"^([0-9]{1,15})\.([0-9]+)$"
_LINE_POINTS = 15
_LETTERS_A_DIGIT = 1.1
"""The number of letters in the width of a digit. Widths are in digits, and letters are narrower on average."""


def write_frame(frame: pl.DataFrame, path: Path) -> None:
    """Write `frame` to `path` in the format of its ending: .csv, .parquet or .xlsx (with the `excel` extra).

    The file is written whole, with mode 0600, or not at all, and is on stable storage on return. An older file of that
    name stays until then. CSV is UTF-8 with formulas guarded. In .xlsx, text is typed as text. Raises `OutputError`.
    """
    if (most := table_format(path).max_rows) is not None and frame.height > most:
        raise OutputError(
            say("{name}: a workbook holds at most {workbook_rows} rows.", name=path.name, workbook_rows=most),
            hint=say("Write .csv or .parquet."),
        )
    write_pieces([frame], path)


def write_pieces(pieces: Iterable[pl.DataFrame], path: Path, *, for_excel: bool = False) -> None:
    """Write a frame that comes in pieces, as `write_frame` does. A workbook needs all pieces at once.

    A CSV file `for_excel` can be opened with a double click: see `_write_csv_for_excel`. If producing a piece raises an
    error, the error is passed on and no file is written.
    """
    chosen = table_format(path)
    safe = map(_guarded, pieces) if chosen.is_guarded and not for_excel else pieces
    with appearing(path) as file:
        try:
            (_write_csv_for_excel if for_excel and chosen.is_guarded else chosen.write)(safe, file)
        except pl.exceptions.PolarsError as error:
            raise cannot_write(path, error) from error


def rejects(validated: Validated, *, with_valid: bool = False) -> pl.DataFrame:
    """Return the invalid rows, or all rows, so that they can be corrected and submitted again.

    `row` (UInt32) and `problems` (every sentence about the row) come first, then the sender's columns under the
    sender's headings, with the sender's texts. Reading such a file drops our two columns again.
    """
    sheet = validated.sheet
    chosen = validated.rows.filter(~pl.col("valid") | with_valid).select("row", problems="message")
    names = {
        name: heading if heading and heading not in REJECTS_COLUMNS else name for name, heading in sheet.headers.items()
    }
    return chosen.join(sheet.frame, on="row", how="left", maintain_order="left").rename(names)


def row_points(texts: Iterable[str], widths: Iterable[int]) -> int:
    """Return the height, in points, of a row with wrapped texts. Not every spreadsheet computes it."""
    lines = (ceil(len(text) / (width * _LETTERS_A_DIGIT)) for text, width in zip(texts, widths, strict=True))
    return _LINE_POINTS * max(1, *lines)


def _guarded(piece: pl.DataFrame) -> pl.DataFrame:
    safe = guarded_columns(piece)
    safe.columns = guarded_names(piece.columns)
    return safe


def _write_csv_for_excel(pieces: Iterable[pl.DataFrame], file: IO[bytes]) -> None:
    """Write CSV that Excel shows unchanged: with a byte order mark, and long numbers, zeros and days kept as text.

    Amounts are numbers, written with the signs of the chosen language, because Excel expects those of its own language.
    """
    decimal, delimiter = spreadsheet_signs()
    for place, piece in enumerate(pieces):
        safe = guarded_columns(piece)
        names = [name for name in safe.columns if safe.schema[name] == pl.String and name not in _AS_IT_IS]
        safe = safe.with_columns(
            *(kept_by_spreadsheets(safe[name]) for name in names),
            pl.col("amount").str.replace(_AMOUNT_OF_EXCEL, f"${{1}}{decimal}${{2}}"),
        )
        safe.columns = guarded_names(piece.columns)
        safe.write_csv(file, include_header=place == 0, include_bom=place == 0, separator=delimiter)
