"""Reconciliation: the sheet as received, joined with where every row stands. A pure function of sheet and journal."""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from itertools import islice

import polars as pl

from paygw_batch.core.lifecycle import State
from paygw_batch.errors import InternalError
from paygw_batch.journal.port import BatchRecord, JournalReader, RowStanding
from paygw_batch.sheet.amounts import readable_amount
from paygw_batch.sheet.columns import CUSTOMER_URL, RECONCILED_OF
from paygw_batch.sheet.pages import from_pages

INVALID = "invalid"
"""The state of a row with defects: it is no instruction, and the state machine does not know it."""

STATES = (INVALID, "ready", "in_doubt", "accepted", "paid", "rejected", "returned")
"""The states a row can be shown in, as the interface lists them."""

SHOWN_IN_DOUBT = frozenset({State.IN_DOUBT, State.IN_FLIGHT})
"""The states that a person is shown as in doubt (see `shown_state`)."""

_STANDING_SCHEMA: Mapping[str, pl.DataType | type[pl.DataType]] = {
    "row": pl.UInt32,
    "state": pl.String,
    "attempts": pl.Int64,
    "sent_orderid": pl.String,
    "sent_purpose": pl.String,
    "gateway_status": pl.String,
    "gateway_reference": pl.String,
    "http_status": pl.Int64,
    "gateway_error_code": pl.String,
    "gateway_message": pl.String,
    "first_sent_at": pl.String,
    "updated_at": pl.String,
    "minor": pl.Int64,
}
_URL_SCHEMA = {"row": pl.UInt32, CUSTOMER_URL: pl.String}
_ROWS_AT_ONCE = 50_000


def shown_state(state: State) -> str:
    """Return the state a person is shown for an instruction.

    A row in flight is in doubt to whoever looks from outside its run; a replaced row is no longer part of its batch.
    """
    match state:
        case State.IN_FLIGHT:
            return State.IN_DOUBT
        case State.REPLACED:
            return INVALID
        case _:
            return state


def reconciliation(journal: JournalReader, batch: BatchRecord, minor_units: Mapping[str, int]) -> pl.DataFrame:
    """Return one line for every row of the batch's sheet, with the columns of the reconciliation file.

    `minor_units` says how many decimals each currency has. Raises `InternalError` when rows or amounts do not tie with
    the journal's own: such a file is not written.
    """
    rows = from_pages(journal.pages(batch.number))
    standings = _standings(journal.standings(batch.number))
    joined = rows.join(standings, on="row", how="left", maintain_order="left")
    _check_rows(batch, joined)
    _check_amounts(joined.filter("valid"), minor_units)
    frame = joined.with_columns(
        state=pl.when("valid").then("state").otherwise(pl.lit(INVALID)),
        attempts=pl.col("attempts").fill_null(0),
        purpose=pl.coalesce("sent_purpose", "purpose"),
        error_code=pl.coalesce("error_code", "gateway_error_code"),
        message=pl.coalesce("message", "gateway_message"),
    )
    columns = RECONCILED_OF[batch.operation]
    if CUSTOMER_URL in columns:
        frame = frame.join(_customer_urls(journal, batch), on="row", how="left", maintain_order="left")
    unknown = [name for name in rows.columns if name not in (*columns, "valid")]
    return frame.select(*columns, *unknown)


def _customer_urls(journal: JournalReader, batch: BatchRecord) -> pl.DataFrame:
    found = journal.customer_urls(batch.number)
    return pl.DataFrame({"row": list(found), CUSTOMER_URL: list(found.values())}, schema=_URL_SCHEMA)


def _standings(standings: Iterable[RowStanding]) -> pl.DataFrame:
    lines = (
        (
            standing.row,
            shown_state(standing.state),
            standing.attempts,
            standing.sent_orderid,
            standing.purpose,
            standing.gateway_status,
            standing.gateway_reference,
            standing.http_status,
            standing.error_code,
            standing.message,
            standing.first_sent_at,
            standing.updated_at,
            standing.minor,
        )
        for standing in standings
    )
    pieces = [pl.DataFrame(schema=_STANDING_SCHEMA)]
    while chunk := list(islice(lines, _ROWS_AT_ONCE)):
        pieces.append(pl.DataFrame(chunk, schema=_STANDING_SCHEMA, orient="row"))
    return pl.concat(pieces)


def _check_rows(batch: BatchRecord, joined: pl.DataFrame) -> None:
    """Hold the invariant that every row of the sheet stands exactly once."""
    if joined.height != batch.rows or joined["row"].n_unique() != batch.rows:
        raise InternalError(f"the reconciliation of batch {batch.batch} has {joined.height} rows, not {batch.rows}")
    if not joined.select((pl.col("valid") == pl.col("state").is_not_null()).all()).item():
        raise InternalError(f"the sheet and the journal of batch {batch.batch} disagree about which rows it pays")


def _check_amounts(paid_for: pl.DataFrame, minor_units: Mapping[str, int]) -> None:
    """Hold the invariant that every amount shown is the amount the journal pays, and with that every sum."""
    factors = {currency: Decimal(10**units) for currency, units in minor_units.items()}
    shown = readable_amount("amount") * pl.col("currency").replace_strict(factors, return_dtype=pl.Decimal(10, 0))
    off = paid_for.filter(shown.ne_missing(pl.col("minor").cast(pl.Decimal(38, 0))))
    if off.height:
        raise InternalError(f"row {off['row'][0]}: the amount shown is not the amount the journal pays")
