"""Writes the rows in doubt as a list of questions for the gateway's support."""

from collections.abc import Mapping

import polars as pl

from paygw_batch.core.money import from_minor
from paygw_batch.core.shown_states import SHOWN_IN_DOUBT
from paygw_batch.journal import BatchRecord, JournalReader
from paygw_batch.sheet.columns import QUESTION_COLUMNS

_SCHEMA: Mapping[str, type[pl.DataType]] = {
    name: pl.Int64 if name == "http_status" else pl.String for name in QUESTION_COLUMNS
}


def questions(journal: JournalReader, batch: BatchRecord, minor_units: Mapping[str, int]) -> pl.DataFrame:
    """Return one line (`QUESTION_COLUMNS`) for every row of the batch that is in doubt, in the sheet's order.

    It names orders and no people: the gateway knows its payees. `answer` is empty, for support to fill in with paid,
    rejected or not-received; `resolve --from` reads the list back.
    """
    lines = [
        (
            row.sent_orderid,
            from_minor(row.minor, minor_units=minor_units[row.currency]),
            row.currency,
            row.country,
            row.intended_at,
            row.http_status,
            row.error_code,
            "",
        )
        for row in journal.rows(batch.number, states=SHOWN_IN_DOUBT)
    ]
    return pl.DataFrame(lines, schema=_SCHEMA, orient="row")
