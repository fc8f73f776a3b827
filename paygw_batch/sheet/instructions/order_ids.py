"""Order ids for sheets that have none: from the payment run's reference and the row's own content."""

import polars as pl

from paygw_batch.core.reference import content_digest
from paygw_batch.errors import UsageError
from paygw_batch.language import say

_REFERENCE = r"^[\x21-\x7e](?:[\x20-\x7e]{0,88}[\x21-\x7e])?$"


def content_digests(content: pl.Series) -> pl.Series:
    """Return the `digest` of each row's content.

    SHA-256, because polars' own hashes are not the same in every version.
    """
    return pl.Series("digest", [content_digest(text) for text in content], pl.String)


def derived_ids(digests: pl.Series, reference: str) -> pl.Series:
    """Return an order id for every valid row, by the digest of its content: `REFERENCE-HASH-N`.

    HASH digests the row's own content, N counts equal rows from 1 in the sheet's order: editing, adding or moving
    other rows changes no id. Raises `UsageError` for a reference that is not 1 to 90 printable ASCII characters.
    """
    if not pl.Series([reference]).str.contains(_REFERENCE).item():
        raise UsageError(
            say("The reference of a payment run has 1 to 90 printable ASCII characters."),
            hint=say("Such as payroll-2026-11."),
        )
    occurrence = pl.int_range(1, pl.len() + 1).over("digest")
    return digests.to_frame("digest").select(pl.format("{}-{}-{}", pl.lit(reference), "digest", occurrence)).to_series()
