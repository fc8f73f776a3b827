"""Joins a sheet with its rows' states, and lists rows in doubt as questions. Depends only on sheet and journal."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal

import polars as pl

from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import from_minor
from paygw_batch.core.shown_states import CODE_START, DISPLAYED_IN_DOUBT, INVALID, display_state, render_record
from paygw_batch.errors import InternalError
from paygw_batch.journal import LINE_COLUMNS, BatchRecord, JournalReader
from paygw_batch.language import say
from paygw_batch.settle.resolve import require_people_not_forgotten
from paygw_batch.sheet.amounts import readable_amount
from paygw_batch.sheet.columns import CUSTOMER_URL, QUESTION_COLUMNS, RECONCILIATION_COLUMNS_OF
from paygw_batch.sheet.instructions import from_pages
from paygw_batch.show.next_step import HELD_FOR_OFFICERS, describe_hold


def _journal_column(name: str) -> str:
    """Return a journal column's name in a joined frame, which no sheet column can have."""
    return name if name == "row" else f"\0{name}"


_NUMBER_TYPES: Mapping[str, type[pl.DataType]] = {
    "row": pl.UInt32,
    "attempts": pl.Int64,
    "http_status": pl.Int64,
    "minor": pl.Int64,
}
_LINE_SCHEMA = {_journal_column(name): _NUMBER_TYPES.get(name, pl.String) for name in LINE_COLUMNS}
_OWN_COLUMNS = {name for name in _LINE_SCHEMA if name != "row"}
_STATES = pl.Series([state.value for state in State])
_SHOWN_STATES = pl.Series([str(display_state(state)) for state in State])
_URL_SCHEMA = {"row": pl.UInt32, CUSTOMER_URL: pl.String}


def reconciliation(
    journal: JournalReader, batch: BatchRecord, minor_units: Mapping[str, int], *, is_for_officers: bool = False
) -> pl.DataFrame:
    """Return a line for each row of the batch's sheet, with the columns of the reconciliation file.

    `minor_units` maps each currency to its number of decimals. Messages for officers contain no codes or logins. Raises
    `InternalError` if the sheet's rows or amounts differ from those in the journal.
    """
    return pl.concat(reconciliation_pieces(journal, batch, minor_units, is_for_officers=is_for_officers))


def reconciliation_pieces(
    journal: JournalReader, batch: BatchRecord, minor_units: Mapping[str, int], *, is_for_officers: bool = False
) -> Iterator[pl.DataFrame]:
    """Yield the frame that `reconciliation` returns, in pieces. May raise `InternalError` after some of them."""
    require_people_not_forgotten(journal, batch)
    holds = {
        row: say(HELD_FOR_OFFICERS) if is_for_officers else describe_hold(hold)
        for row, hold in journal.holds(batch.number).items()
    }
    columns = RECONCILIATION_COLUMNS_OF[batch.operation]
    urls = _customer_urls(journal, batch) if CUSTOMER_URL in columns else None
    rows_being_sent = [row.row for row in journal.rows_being_sent(batch.number)]
    row_count, last_row = 0, -1
    for joined in _joined_pages(journal, batch, minor_units):
        frame = _select_displayed_columns(_translate_messages(joined, is_for_officers=is_for_officers), rows_being_sent)
        frame = _add_hold_reasons(frame, holds)
        row_count, last_row = row_count + frame.height, _check_row_order(batch, last_row, frame["row"])
        if urls is not None:
            frame = frame.join(urls, on="row", how="left", maintain_order="left")
        other_columns = [name for name in frame.columns if name not in (*columns, "valid")]
        yield frame.select(*columns, *other_columns)
    if row_count != batch.rows:
        raise InternalError(f"the reconciliation of batch {batch.batch} has {row_count} rows, not {batch.rows}")


def add_typed_columns(pieces: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Append typed columns for amounts and times to a reconciliation's pieces. Unreadable amounts become null."""
    for piece in pieces:
        names = {name: _unused_name(name, piece.columns) for name in ("amount_decimal", *_TYPED_TIMES)}
        yield piece.with_columns(
            readable_amount("amount").alias(names["amount_decimal"]),
            *(
                pl.col(text).str.to_datetime(_TIME, time_unit="us", time_zone="UTC", strict=False).alias(names[name])
                for name, text in _TYPED_TIMES.items()
            ),
        )


_TIME = "%Y-%m-%dT%H:%M:%S%.fZ"
_TYPED_TIMES = {"first_sent_at_utc": "first_sent_at", "updated_at_utc": "updated_at"}
"""Maps each typed column to the text column that it is parsed from."""


def _unused_name(name: str, existing_names: Sequence[str]) -> str:
    while name in existing_names:
        name += "_"
    return name


def _joined_pages(journal: JournalReader, batch: BatchRecord, minor_units: Mapping[str, int]) -> Iterator[pl.DataFrame]:
    """Yield each page of the sheet joined with its rows' states. Keeps little more than one page in memory."""
    line_frames = _line_frames(journal.batch_lines(batch.number))
    unjoined = next(line_frames)
    for page in journal.pages(batch.number):
        rows = from_pages([page])
        while rows.height and (unjoined.is_empty() or unjoined["row"][-1] < rows["row"][-1]):
            if (next_frame := next(line_frames, None)) is None:
                break
            unjoined = next_frame if unjoined.is_empty() else pl.concat([unjoined, next_frame])
        joined = rows.join(unjoined, on="row", how="left", maintain_order="left")
        _check_states_and_amounts(batch, joined, minor_units)
        yield joined
        all_joined = joined[_journal_column("state")].count() == unjoined.height
        unjoined = unjoined.clear() if all_joined else unjoined.join(rows, on="row", how="anti")
    if unjoined.height or next(line_frames, None) is not None:
        raise InternalError(f"the journal of batch {batch.batch} has rows that its sheet does not have")


def _select_displayed_columns(joined: pl.DataFrame, rows_being_sent: Sequence[int]) -> pl.DataFrame:
    columns = {name: pl.col(_journal_column(name)) for name in LINE_COLUMNS if name not in {"row", "minor"}}
    is_being_sent = pl.col("row").is_in(rows_being_sent) & (columns["state"] == State.IN_FLIGHT)
    state = pl.when(is_being_sent).then(columns["state"]).otherwise(columns["state"].replace(_STATES, _SHOWN_STATES))
    return joined.select(
        *(name for name in joined.columns if name not in columns and name not in _OWN_COLUMNS),
        **{
            **columns,
            "state": pl.when("valid").then(state).otherwise(pl.lit(INVALID)),
            "attempts": columns["attempts"].fill_null(0),
            "purpose": pl.coalesce(columns["purpose"], "purpose"),
            "error_code": pl.coalesce("error_code", columns["error_code"]),
            "message": pl.coalesce("message", columns["message"]),
        },
    )


def _translate_messages(rows: pl.DataFrame, *, is_for_officers: bool) -> pl.DataFrame:
    messages = rows[_journal_column("message")].drop_nulls()
    coded = messages.filter(messages.str.starts_with(CODE_START)).unique()
    texts = pl.Series([render_record(message, is_for_officers=is_for_officers) for message in coded], dtype=pl.String)
    return rows.with_columns(pl.col(_journal_column("message")).replace(coded, texts)) if coded.len() else rows


def _customer_urls(journal: JournalReader, batch: BatchRecord) -> pl.DataFrame:
    urls = journal.customer_urls(batch.number)
    return pl.DataFrame({"row": list(urls), CUSTOMER_URL: list(urls.values())}, schema=_URL_SCHEMA)


def _line_frames(lines: Iterable[Sequence[tuple[int | str | None, ...]]]) -> Iterator[pl.DataFrame]:
    yield pl.DataFrame(schema=_LINE_SCHEMA)
    for chunk in lines:
        yield pl.DataFrame(chunk, schema=_LINE_SCHEMA, orient="row")


def _add_hold_reasons(frame: pl.DataFrame, holds: Mapping[int, str]) -> pl.DataFrame:
    if not holds:
        return frame
    reasons = pl.DataFrame(
        {"row": list(holds), "\0held": list(holds.values())}, schema={"row": pl.UInt32, "\0held": pl.String}
    )
    message = pl.concat_str("message", "\0held", separator=" ", ignore_nulls=True)
    joined = frame.join(reasons, on="row", how="left", maintain_order="left").with_columns(
        message=pl.when(pl.col("\0held").is_null()).then("message").otherwise(message)
    )
    return joined.drop("\0held")


def _check_row_order(batch: BatchRecord, last_row: int, rows: pl.Series) -> int:
    """Return the last of `rows`. Raises `InternalError` unless the row numbers increase and exceed `last_row`.

    Together with the number of rows, this proves that every row of the sheet appears exactly once.
    """
    differences = pl.Series([last_row]).cast(pl.Int64).append(rows.cast(pl.Int64)).diff(null_behavior="drop")
    if not (differences > 0).all():
        raise InternalError(f"the reconciliation of batch {batch.batch} has a row twice, or out of order")
    return int(rows[-1]) if rows.len() else last_row


def _check_states_and_amounts(batch: BatchRecord, joined: pl.DataFrame, minor_units: Mapping[str, int]) -> None:
    """Raise `InternalError` unless the journal has exactly the sheet's valid rows, with the same amounts."""
    factors = {currency: Decimal(10**units) for currency, units in minor_units.items()}
    factor = pl.col("currency").replace_strict(factors, default=None, return_dtype=pl.Decimal(10, 0))
    amount = pl.col(_journal_column("minor")).cast(pl.Decimal(38, 0))
    is_different = pl.col("valid") & (readable_amount("amount") * factor).ne_missing(amount)
    states_match, differing_row = joined.select(
        states_match=(pl.col("valid") == pl.col(_journal_column("state")).is_not_null()).all(),
        differing_row=pl.col("row").filter(is_different).first(),
    ).row(0)
    if not states_match:
        raise InternalError(f"the sheet and the journal of batch {batch.batch} disagree about which rows are valid")
    if differing_row is not None:
        raise InternalError(f"row {differing_row}: the amount shown is not the journal's")


_QUESTION_SCHEMA: Mapping[str, type[pl.DataType]] = {
    name: pl.Int64 if name == "http_status" else pl.String for name in QUESTION_COLUMNS
}


def questions(journal: JournalReader, batch: BatchRecord, minor_units: Mapping[str, int]) -> pl.DataFrame:
    """Return a line (`QUESTION_COLUMNS`) for each row in doubt, in sheet order.

    Lines omit the payee, which the gateway knows. The gateway's support writes paid, rejected or not-received in the
    column `answer`. `resolve statement` reads the completed list.
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
        for row in journal.rows(batch.number, states=DISPLAYED_IN_DOUBT)
    ]
    return pl.DataFrame(lines, schema=_QUESTION_SCHEMA, orient="row")
