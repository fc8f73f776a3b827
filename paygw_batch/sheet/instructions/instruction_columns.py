"""Instructions as columns, as the journal takes them in: no Python object is made for a row before it is stored."""

import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import polars as pl

from paygw_batch.core.instruction import NAMES_A_PAYEE

_CANONICAL = (
    *("number", "row", "client_orderid", "country", "currency", "minor", "replaces", "amount", "form", "fields"),
    *("payee", "content"),
)
"""The values of an instruction's canonical text, in its order (`journal/batch_part.py`)."""

_FIELD = "[a-z0-9_]"
_TO_A_PAYEE = rf'"{_FIELD}*(?:{"|".join(NAMES_A_PAYEE)})":"'
_OTHER_FIELD = rf'"{_FIELD}+":"(?:[^"\\]|\\.)*"'
"""In the JSON of fields: the name of one that names a payee, and then one of the others, whole. No quotation mark in a
value is followed by a colon and another one: each of them has a backslash before it."""
_ROWS_AT_ONCE = 10_000
"""How many texts are in memory at a time."""


class InstructionColumns:
    """Some rows of `Validated.instructions`, as the journal's `NewInstructions`."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self._frame = frame

    def __len__(self) -> int:
        """Return how many they are."""
        return self._frame.height

    def __iter__(self) -> Iterator[Any]:
        """Yield each as a tuple of the values of a `NewInstruction`."""
        return self._frame.iter_rows()

    def canonical(self, first: int, replaced: Mapping[int, int]) -> Iterator[bytes]:
        """Yield their canonical texts, some at a time, each value closed by NUL; they are numbered from `first`."""
        replaces = pl.col("row").replace_strict(replaced, default=None, return_dtype=pl.Int64).cast(pl.String)
        for some in self._frame.iter_slices(_ROWS_AT_ONCE):
            texts = some.with_columns(
                number=pl.int_range(first, first + pl.len(), dtype=pl.Int64),
                replaces=(replaces if replaced else pl.lit(None, pl.String)).fill_null("None"),
            )
            written = io.BytesIO()
            # Quotation marks are never written: what a value holds is told apart by the NUL that no value holds.
            texts.select(_CANONICAL).write_csv(
                written, include_header=False, separator="\0", line_terminator="\0", quote_style="never"
            )
            yield written.getvalue()
            first += some.height

    def totals(self) -> Mapping[str, tuple[int, int]]:
        """Return count and sum in minor units of each currency."""
        exact = pl.col("minor").cast(pl.Decimal(38, 0)).sum()
        counted = self._frame.group_by("currency").agg(pl.len(), exact)
        return {currency: (count, int(total)) for currency, count, total in counted.iter_rows()}

    def payee_words(self) -> Iterable[str]:
        """Return for each the texts that name its payee, with anything but letters and digits between them."""
        return self._frame["fields"].str.replace_all(_TO_A_PAYEE, " ").str.replace_all(_OTHER_FIELD, "")
