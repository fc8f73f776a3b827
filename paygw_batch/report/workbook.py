"""Writes the reconciliation as a workbook: rows with coloured states and filters, and a sheet of totals."""

import io
from datetime import datetime
from typing import Any

import polars as pl

from paygw_batch.errors import OutputError
from paygw_batch.journal import BatchRecord
from paygw_batch.report.colours import STATE_COLOURS
from paygw_batch.report.totals import BatchTotals
from paygw_batch.sheet.write.table import workbook_options

MAX_ROWS = 1_048_575
"""The number of rows that a worksheet holds below its header."""

_WIDTHS = {
    "client_orderid": 150,
    "sent_orderid": 150,
    "account_name": 180,
    "account_number": 120,
    "phone": 120,
    "purpose": 170,
    "gateway_status": 105,
    "gateway_reference": 140,
    "error_code": 100,
    "message": 380,
    "first_sent_at": 175,
    "updated_at": 175,
    "state": 80,
    "amount": 95,
    "sum": 140,
}
"""In pixels, where the usual width is too narrow."""
_TOTALS_SCHEMA = {
    "country": pl.String(),
    "currency": pl.String(),
    "state": pl.String(),
    "rows": pl.Int64(),
    "sum": pl.String(),
}


def workbook_of(frame: pl.DataFrame, books: BatchTotals, batch: BatchRecord) -> bytes:
    """Return a reconciliation frame as an .xlsx file. The `excel` extra must be installed.

    Every text is typed as text, amounts and sums too: a spreadsheet's numbers are binary floats, and money is not.
    Made again, it is the same to the byte. Raises `OutputError` when there are more rows than a workbook can hold.
    """
    from xlsxwriter import Workbook  # type: ignore[import-untyped]  # noqa: PLC0415 (an extra)

    if frame.height > MAX_ROWS:
        raise OutputError(f"A workbook holds at most {MAX_ROWS} rows.", hint="Write .csv or .parquet.")
    file = io.BytesIO()
    with Workbook(file, workbook_options()) as workbook:
        workbook.set_properties({"title": batch.batch, "created": datetime.fromisoformat(batch.opened_at)})
        _add(workbook, "Rows", frame)
        _add(workbook, "Totals", pl.DataFrame(books.lines, schema=_TOTALS_SCHEMA, orient="row"))
    return file.getvalue()


def _add(workbook: Any, name: str, frame: pl.DataFrame) -> None:
    """Add a sheet with a frozen header, a filter on every column, and states in their colours."""
    money = [column for column in ("amount", "sum") if column in frame.columns]
    frame.write_excel(
        workbook,
        name,
        table_style={"style": "Table Style Light 1", "banded_rows": False},
        header_format={"bold": True},
        autofilter=True,
        freeze_panes=(1, 0),
        column_formats={column: {"align": "right"} for column in money},
        column_widths={column: width for column, width in _WIDTHS.items() if column in frame.columns},
        conditional_formats={"state": [_colour(state) for state in STATE_COLOURS]},
    )
    sheet = workbook.get_worksheet_by_name(name)
    sheet.set_landscape()
    sheet.fit_to_pages(1, 0)
    sheet.repeat_rows(0)


def _colour(state: str) -> dict[str, Any]:
    fill, ink = STATE_COLOURS[state]
    return {
        "type": "cell",
        "criteria": "==",
        "value": f'"{state}"',
        "format": {"bg_color": fill, "font_color": ink},
    }
