"""Writes the reconciliation as a workbook with three worksheets: payments, totals and all columns."""

import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from math import ceil
from typing import Any

import polars as pl

from paygw_batch.core.money import parse_amount
from paygw_batch.core.shown_states import INVALID, state_label
from paygw_batch.errors import OutputError
from paygw_batch.journal import BatchRecord
from paygw_batch.language import mark, mark_all, say, say_all, say_count
from paygw_batch.sheet.columns import RECONCILIATION_COLUMNS
from paygw_batch.sheet.formats import workbook_options
from paygw_batch.show.totals import STATE_COLOURS, BatchTotals, CurrencyTotals, group_by_currency

EXACT_DIGITS = 15
"""Number of digits that a spreadsheet can store. An amount that may need more is written as text."""
MAX_ROWS = 1_048_400
"""Number of rows that fit between a worksheet's headings and the totals at the bottom."""
_COLUMN_WIDTHS: Mapping[str, int] = {
    mark("Row"): 7,
    mark("Payee"): 24,
    mark("Account or phone"): 19,
    mark("Amount"): 17,
    mark("Currency"): 9,
    mark("State"): 10,
    mark("What is known"): 44,
    mark("Gateway reference"): 19,
    mark("Order id"): 19,
    mark("Sent (UTC)"): 17,
    mark("Last change (UTC)"): 18,
}
"""The columns of the worksheet for printing, with their widths in characters."""
_AMOUNT, _STATE, _MESSAGE, _SENT, _UPDATED = (
    [*_COLUMN_WIDTHS].index(name) for name in ("Amount", "State", "What is known", "Sent (UTC)", "Last change (UTC)")
)
_TOTALS_WIDTHS = dict(zip(mark_all("Currency", "Country", "State", "Rows", "Sum"), (10, 14, 12, 10, 24), strict=True))
_WIDTHS = {"message": 44, "row": 7, "country": 9, "currency": 9, "state": 10, "attempts": 9, "http_status": 11}
"""Widths in the worksheet with all columns. Columns not listed have the `_DEFAULT_WIDTH`."""
_DEFAULT_WIDTH = 20
_LETTERS_PER_LINE = int(1.1 * _COLUMN_WIDTHS["What is known"])
"""Number of letters per line. Column widths count digits, and letters are narrower on average."""
_LINE_POINTS, _MAX_LINES = 15, 20
_CELL_BORDER = {"bottom": 1, "bottom_color": "#D9D9D9"}
_RIGHT = {"align": "right"}
_GAP = "_)"
"""Ends number formats with a small space on the right."""
_A4 = 9
_MAX_PRINTED_NAME = 80
"""Maximum length of a sheet's name in the page header, which can have at most 255 characters."""
_TIME = "%Y-%m-%dT%H:%M:%S%.3fZ"
_DAY_MS = 86_400_000
_EPOCH_DAY = 25_569
"""1970-01-01 as a spreadsheet serial date."""


def build_workbook(
    frame: pl.DataFrame, batch_totals: BatchTotals, batch: BatchRecord, minor_units: Mapping[str, int]
) -> bytes:
    """Build an .xlsx file from a reconciliation frame. Needs the `excel` extra.

    An amount is a number if a spreadsheet can store it exactly, and otherwise text. The worksheet with all columns has
    the same texts as the CSV file. Identical arguments give identical bytes. Raises `OutputError` for more than
    `MAX_ROWS` rows.
    """
    from xlsxwriter import Workbook  # type: ignore[import-untyped]  # noqa: PLC0415 (an extra)

    if frame.height > MAX_ROWS:
        message = say("A workbook can hold at most {rows} rows.", rows=MAX_ROWS)
        raise OutputError(message, hint=say("Write a .csv or .parquet file instead."))
    file = io.BytesIO()
    with Workbook(file, workbook_options()) as workbook:
        workbook.set_properties({"title": batch.batch, "created": datetime.fromisoformat(batch.opened_at)})
        writer = _CellWriter(workbook, minor_units)
        payments, totals, all_columns = (
            workbook.add_worksheet(name) for name in say_all("Payments", "Totals", "All columns")
        )
        # `outputs.py` recognises the file by these headings, so they must be its first strings.
        writer.write_headings(all_columns, {name: _WIDTHS.get(name, _DEFAULT_WIDTH) for name in frame.columns})
        _write_payments(writer, payments, frame, batch_totals)
        _write_totals(writer, totals, batch_totals)
        for line_number, line in enumerate(frame.iter_rows(), start=1):
            writer.write_line(all_columns, line_number, line)
        all_columns.autofilter(0, 0, frame.height, frame.width - 1)
        for sheet in (payments, totals, all_columns):
            _set_page_layout(sheet, batch)
    return file.getvalue()


def _write_payments(writer: "_CellWriter", sheet: Any, frame: pl.DataFrame, batch_totals: BatchTotals) -> None:
    sender_columns = [name for name in frame.columns if name not in RECONCILIATION_COLUMNS]
    writer.write_headings(sheet, {say(name): width for name, width in _COLUMN_WIDTHS.items()}, right=[say("Amount")])
    writer.write_headings(sheet, dict.fromkeys(sender_columns, _DEFAULT_WIDTH), first_column=len(_COLUMN_WIDTHS))
    text_amount_count = 0
    for line_number, line in enumerate(_printable_frame(frame, sender_columns).iter_rows(), start=1):
        special_cells = {column: line[column] for column in (_AMOUNT, _STATE, _MESSAGE, _SENT, _UPDATED)}
        cells = [None if column in special_cells else cell or "" for column, cell in enumerate(line)]
        writer.write_line(sheet, line_number, cells)
        is_number = writer.write_money(sheet, line_number, _AMOUNT, line[_AMOUNT], line[_AMOUNT + 1])
        text_amount_count += not is_number and line[_STATE] != INVALID
        writer.write_state(sheet, line_number, _STATE, line[_STATE])
        writer.write_wrapped_text(sheet, line_number, _MESSAGE, line[_MESSAGE] or "")
        for column in (_SENT, _UPDATED):
            if line[column] is not None:
                sheet.write_number(line_number, column, line[column], writer.time)
            else:
                sheet.write_blank(line_number, column, None, writer.time)
    sheet.autofilter(0, 0, frame.height, len(_COLUMN_WIDTHS) + len(sender_columns) - 1)
    next_line = _write_currency_totals(writer, sheet, frame.height + 2, batch_totals)
    if text_amount_count:
        note = say_count(
            text_amount_count,
            "{count:,} amount is written as text, because a spreadsheet cannot store it exactly as a number. "
            "Spreadsheet sums do not include it.",
            "{count:,} amounts are written as text, because a spreadsheet cannot store them exactly as numbers. "
            "Spreadsheet sums do not include them.",
        )
        writer.write_line(sheet, next_line, (None, note))
    sheet.print_area(0, 0, next_line, len(_COLUMN_WIDTHS) - 1)


def _printable_frame(frame: pl.DataFrame, sender_columns: Sequence[str]) -> pl.DataFrame:
    """Return the printed columns and the sender's own columns. Times become spreadsheet serial dates."""
    sent, updated = (
        pl.col(name).str.to_datetime(_TIME, time_zone="UTC").dt.epoch("ms") / _DAY_MS + _EPOCH_DAY
        for name in ("first_sent_at", "updated_at")
    )
    return frame.select(
        "row",
        "account_name",
        pl.coalesce("account_number", "phone").alias("\0account"),
        "amount",
        "currency",
        "state",
        pl.coalesce("message", "error_code").alias("\0message"),
        "gateway_reference",
        pl.coalesce("sent_orderid", "client_orderid").alias("\0order"),
        sent,
        updated,
        *sender_columns,
    )


def _write_currency_totals(writer: "_CellWriter", sheet: Any, line_number: int, batch_totals: BatchTotals) -> int:
    """Write each currency's totals, starting at line `line_number`. Return the next free line."""
    for total in group_by_currency(batch_totals):
        name = say("Total {currency}", currency=total.currency) if total.currency else say("Total without a currency")
        for state, rows, amount in _total_lines(total):
            texts = ("" if state else name, say_count(rows, "{count:,} row", "{count:,} rows"), None, total.currency)
            writer.write_line(sheet, line_number, (None, *texts), is_total=not state)
            writer.write_money(sheet, line_number, _AMOUNT, amount, total.currency, is_total=not state)
            writer.write_state(sheet, line_number, _STATE, state)
            line_number += 1
    return line_number


def _total_lines(total: CurrencyTotals) -> Sequence[tuple[str, int, str]]:
    """Return a currency's lines as (state, rows, sum). The first one, without a state, covers all rows to be paid."""
    return [*([("", total.rows, total.sum)] if total.rows else []), *total.states]


def _write_totals(writer: "_CellWriter", sheet: Any, totals: BatchTotals) -> None:
    lines = [
        (total.currency, "" if state else say("all"), state, rows, amount)
        for total in group_by_currency(totals)
        for state, rows, amount in _total_lines(total)
    ]
    start = len(lines) + 3
    for line_number in (0, start - 1):
        widths = {say(name): width for name, width in _TOTALS_WIDTHS.items()}
        writer.write_headings(sheet, widths, right=say_all("Rows", "Sum"), line=line_number)
    by_country = [(currency, country, state, rows, amount) for country, currency, state, rows, amount in totals.lines]
    for line_number, (currency, country, state, rows, amount) in [*enumerate(lines, 1), *enumerate(by_country, start)]:
        writer.write_line(sheet, line_number, (currency, country), is_total=not state)
        writer.write_count(sheet, line_number, 3, rows, is_total=not state)
        writer.write_state(sheet, line_number, 2, state)
        writer.write_money(sheet, line_number, 4, amount, currency, is_total=not state)


def _set_page_layout(sheet: Any, batch: BatchRecord) -> None:
    sheet.freeze_panes(1, 2 if sheet.get_name() != say("Totals") else 0)
    sheet.ignore_errors({"number_stored_as_text": "A1:XFD1048576"})
    sheet.set_landscape()
    sheet.set_paper(_A4)
    sheet.set_margins(left=0.4, right=0.4, top=0.7, bottom=0.6)
    sheet.fit_to_pages(1 if sheet.get_name() != say("All columns") else 2, 0)
    sheet.repeat_rows(0)
    name = batch.sheet_name[:_MAX_PRINTED_NAME].replace("&", "&&")
    sheet.set_header(f"&L&A&C{name}&R{say('Batch {batch}', batch=batch.batch)}")
    sheet.set_footer(f"&L{say('Opened {time}', time=batch.opened_at)}&R{say('Page &P of &N')}")


class _CellWriter:
    """Writes cells in the format for their type of value."""

    def __init__(self, workbook: Any, minor_units: Mapping[str, int]) -> None:
        self._minor_units = minor_units

        def add_style(**properties: object) -> Any:
            return workbook.add_format({"valign": "top", "align": "left", **_CELL_BORDER, **properties})

        self._wrapped = add_style(text_wrap=True)
        self.time = add_style(num_format="yyyy-mm-dd hh:mm")
        head = {"bold": True, "bg_color": "#DDEBF7", "bottom_color": "#000000"}
        self._head, self._head_right = add_style(**head), add_style(**head, **_RIGHT, indent=1)
        colours = {state: add_style(bg_color=fill, font_color=ink) for state, (fill, ink) in STATE_COLOURS.items()}
        weights: Mapping[bool, Mapping[str, object]] = {False: {}, True: {"bold": True, "top": 1}}
        self._states = {**colours, "": add_style(**weights[True])}
        self._texts = {is_total: add_style(**weight) for is_total, weight in weights.items()}
        self._number = add_style(num_format=f"0{_GAP}", **_RIGHT)
        self._money = {
            (units, is_total): add_style(num_format=_money_pattern(units), **_RIGHT, **weight)
            for units in dict.fromkeys((None, 0, *minor_units.values()))
            for is_total, weight in weights.items()
        }

    def write_headings(
        self, sheet: Any, widths: Mapping[str, int], *, first_column: int = 0, line: int = 0, right: Iterable[str] = ()
    ) -> None:
        """Write headings in a line, from `first_column` on, and set the column widths."""
        for column, (name, width) in enumerate(widths.items(), start=first_column):
            sheet.set_column(column, column, width)
            sheet.write_string(line, column, name, self._head_right if name in right else self._head)

    def write_line(self, sheet: Any, line: int, cells: Sequence[str | int | None], *, is_total: bool = False) -> None:
        """Write a line of texts and counts. None leaves a cell unchanged."""
        for column, cell in enumerate(cells):
            if isinstance(cell, str):
                _write_text(sheet, line, column, cell, self._texts[is_total])
            elif cell is not None:
                sheet.write_number(line, column, cell, self._number)

    def write_count(self, sheet: Any, line: int, column: int, count: int, *, is_total: bool) -> None:
        sheet.write_number(line, column, count, self._money[0, is_total])

    def write_wrapped_text(self, sheet: Any, line: int, column: int, text: str) -> None:
        """Write wrapped text and set its row's height, because some programs do not adjust it."""
        _write_text(sheet, line, column, text, self._wrapped)
        lines = ceil(len(text) / _LETTERS_PER_LINE)
        if lines > 1:
            sheet.set_row(line, _LINE_POINTS * min(lines, _MAX_LINES))

    def write_state(self, sheet: Any, line: int, column: int, state: str) -> None:
        """Write a state in its colours. An empty state stands for all rows that are to be paid."""
        sheet.write_string(line, column, state_label(state) if state else say("to be paid"), self._states[state])

    def write_money(
        self, sheet: Any, line: int, column: int, amount: str | None, currency: str | None, *, is_total: bool = False
    ) -> bool:
        """Write an amount. Return whether it was written as a number rather than as text."""
        units = self._minor_units.get(currency or "")
        if units is not None and amount and is_exact(amount, units):
            sheet.write_number(line, column, float(amount), self._money[units, is_total])
            return True
        _write_text(sheet, line, column, amount or "", self._money[None, is_total])
        return False


def _write_text(sheet: Any, line: int, column: int, text: str, style: Any) -> None:
    """Write a string as text, even if it looks like a number or a formula."""
    if text:
        sheet.write_string(line, column, text, style)
    else:
        sheet.write_blank(line, column, None, style)


def _money_pattern(units: int | None) -> str:
    return "@" if units is None else f"#,##0{'.' if units else ''}{'0' * units}{_GAP}"


def is_exact(amount: str, minor_units: int) -> bool:
    """Return whether a spreadsheet can store an amount as an exact number, with its currency's decimals."""
    whole_digits = len(amount.partition(".")[0])
    return whole_digits + minor_units <= EXACT_DIGITS and parse_amount(amount, minor_units=minor_units) is not None
