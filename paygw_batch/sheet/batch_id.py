"""The id of a batch: a digest of what the sheet says, whatever file it came in."""

import hashlib
import io

import polars as pl

from paygw_batch.sheet.columns import COLUMNS_OF
from paygw_batch.sheet.result import Sheet

_ROWS_AT_ONCE = 100_000
_NOT_SAID = ("purpose", "error_code", "message")
_SHOWN_OTHERWISE = frozenset({"receiver_phone", "receiver_country_code", "cell_phone"})
"""Known columns that `rows` has under other names."""
_DIGITS = 16


def batch_id(rows: pl.DataFrame, sheet: Sheet) -> str:
    """Return 16 hex digits that stand for a sheet's content, and for what its rows are for.

    `rows` as in `Validated.rows`. Counted in: row numbers, validity, order ids, every text and the names of unknown
    columns, and the operation, so that a batch of collections never has the id of one of payouts. Not counted: purpose
    (the configuration's), our own sentences, the file's name and format, and the order of known columns.
    """
    names = [name for name in COLUMNS_OF[sheet.operation] if name not in rows.columns and name not in _SHOWN_OTHERWISE]
    given = [sheet.frame[name] for name in names if name in sheet.frame.columns]
    further = [column.alias(f"sheet:{column.name}") for column in given if column.null_count() < len(column)]
    content = rows.drop(_NOT_SAID).hstack(further)
    digest = hashlib.sha256(b"" if sheet.operation == "payout" else f"{sheet.operation}:".encode())
    digest.update(repr(content.columns).encode())
    for part in content.iter_slices(_ROWS_AT_ONCE):
        text = io.BytesIO()
        part.write_csv(text, include_header=False, separator="\x1f", quote_style="never")
        digest.update(text.getbuffer())
    return digest.hexdigest()[:_DIGITS]
