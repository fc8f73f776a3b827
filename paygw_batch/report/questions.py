"""Writes the rows in doubt as a list of questions for the gateway's support."""

from collections.abc import Mapping

import polars as pl

from paygw_batch.core.money import from_minor
from paygw_batch.core.shown_states import SHOWN_IN_DOUBT
from paygw_batch.journal import BatchRecord, JournalReader

QUESTION_SCHEMA: Mapping[str, pl.DataType] = {
    "order_id": pl.String(),
    "amount": pl.String(),
    "currency": pl.String(),
    "country": pl.String(),
    "sent_at": pl.String(),
    "http_status": pl.Int64(),
    "what_we_saw": pl.String(),
    "answer": pl.String(),
}


def questions(journal: JournalReader, batch: BatchRecord, minor_units: Mapping[str, int]) -> pl.DataFrame:
    """Return one line (`QUESTION_SCHEMA`) for every row of the batch that is in doubt, in the sheet's order.

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
    return pl.DataFrame(lines, schema=QUESTION_SCHEMA, orient="row")
