"""Instructions as columns, as the journal takes them in: no Python object is made for a row before it is stored."""

import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import polars as pl

from paygw_batch.core.batch import BILLION, InstructionTotals
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

    def totals(self) -> Mapping[tuple[str, str], InstructionTotals]:
        """Return the totals of each country and currency, with places among these instructions."""
        place, minor = pl.col("place"), pl.col("minor")
        placed = self._frame.select("country", "currency", "minor").with_row_index("place")
        counted = placed.group_by("country", "currency").agg(
            rows=pl.len(),
            billions=(minor // BILLION).sum(),
            rest=(minor % BILLION).sum(),
            first=place.min(),
            last=place.max(),
        )
        return {(country, currency): InstructionTotals(*total) for country, currency, *total in counted.iter_rows()}

    def payee_words(self) -> Iterable[str]:
        """Return for each the texts that name its payee, with anything but letters and digits between them."""
        return self._frame["fields"].str.replace_all(_TO_A_PAYEE, " ").str.replace_all(_OTHER_FIELD, "")

    def have_ascii_ids(self) -> bool:
        """Whether no order id holds anything but ASCII."""
        ids = self._frame["client_orderid"]
        return bool((ids.str.len_bytes() == ids.str.len_chars()).all())

    def shortened(self, mark: str) -> Iterable[tuple[Any, ...]]:
        """Return the values of each; a content that ends with the fields is cut before them, and `mark` put before it.

        In place of a content that begins with the mark there is None.
        """
        content, fields = pl.col("content"), pl.col("fields")
        # A content that ends with no fields at all loses nothing: it gets the mark as well.
        cut = pl.concat_str(pl.lit(mark), content.str.strip_suffix(fields))
        stored = pl.when(content.str.ends_with(fields)).then(cut).otherwise(content)
        return self._frame.with_columns(content=pl.when(~content.str.starts_with(mark)).then(stored)).iter_rows()
