"""The id of a batch: a digest of what the sheet says, whatever file it came in."""

import hashlib
import io

import polars as pl

_ROWS_AT_ONCE = 100_000
_NOT_SAID = ("purpose", "error_code", "message")
_NOT_SHOWN = ("receiver_first_name", "receiver_last_name", "receiver_email", "ipaddress", "order_desc")
"""Known columns that `rows` does not have as such."""
_DIGITS = 16


def batch_id(rows: pl.DataFrame, sheet: pl.DataFrame) -> str:
    """Return 16 hex digits that stand for a sheet's content.

    `rows` as in `Validated.rows`, `sheet` as in `Sheet.frame`. Counted in: row numbers, validity, order ids, every text
    and the names of unknown columns. Not counted: purpose (the configuration's), our own sentences, the file's name
    and format, and the order of known columns.
    """
    further = [sheet[name] for name in _NOT_SHOWN if name in sheet.columns and sheet[name].null_count() < sheet.height]
    content = rows.drop(_NOT_SAID).hstack([column.alias(f"sheet:{column.name}") for column in further])
    digest = hashlib.sha256(repr(content.columns).encode())
    for part in content.iter_slices(_ROWS_AT_ONCE):
        text = io.BytesIO()
        part.write_csv(text, include_header=False, separator="\x1f", quote_style="never")
        digest.update(text.getbuffer())
    return digest.hexdigest()[:_DIGITS]
