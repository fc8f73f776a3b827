"""Computes the id of a batch: a digest of the sheet's content, the same for every file format."""

import hashlib
import io
from collections.abc import Collection
from typing import IO, TYPE_CHECKING, cast

import polars as pl

from paygw_batch.countries.form_columns import sheet_columns
from paygw_batch.sheet.columns import columns_of_operation
from paygw_batch.sheet.model import LINE_COLUMNS

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_NOT_SAID = "purpose"
_DIGITS = 16


class _HashedText(io.RawIOBase):
    """Hashes the bytes that are written to it, and keeps none of them."""

    def __init__(self, digest: "hashlib._Hash") -> None:
        self._digest = digest

    def writable(self) -> bool:
        """Return that it is."""
        return True

    def write(self, text: "ReadableBuffer", /) -> int:
        """Hash the next bytes."""
        self._digest.update(text)
        return memoryview(text).nbytes


class BatchDigest:
    """Computes 16 hex digits from a sheet's content and its operation.

    Counted in: row numbers, validity, order ids, every text and the names of `unknown` columns, and the operation, so
    that a batch of collections never has the id of one of payouts. Not counted: purpose (the configuration's), our own
    sentences, the file's name and format, the order of known columns, and those that hold nothing (`held`: the columns
    of which some row has a value).
    """

    def __init__(self, operation: str, unknown: Collection[str], held: Collection[str]) -> None:
        self._lines = [name for name in LINE_COLUMNS if name != _NOT_SAID]
        shown = sheet_columns().shown_otherwise.union(LINE_COLUMNS)
        further = [name for name in columns_of_operation(operation) if name not in shown and name in held]
        self._raw = [*map(pl.col, unknown), *(pl.col(name).alias(f"sheet:{name}") for name in further)]
        self._digest = hashlib.sha256(b"" if operation == "payout" else f"{operation}:".encode())
        columns = [*self._lines, *unknown, *(f"sheet:{name}" for name in further)]
        self._digest.update(repr(columns).encode())
        self._text = cast("IO[bytes]", _HashedText(self._digest))

    def add(self, lines: pl.DataFrame, raw: pl.DataFrame) -> None:
        """Count in the next rows: `lines` (`LINE_COLUMNS`), and the same rows as the sheet has them."""
        content = lines.select(self._lines).hstack(raw.select(self._raw).get_columns())
        content.write_csv(self._text, include_header=False, separator="\x1f", quote_style="never")

    @property
    def batch(self) -> str:
        """The id of the batch, when all rows are counted in."""
        return self._digest.hexdigest()[:_DIGITS]
