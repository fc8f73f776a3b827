"""Writes the reconciliation as a workbook with three worksheets: payments to read and print, totals, all columns."""

import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from math import ceil
from typing import Any

import polars as pl

from paygw_batch.core.money import parse_amount
from paygw_batch.core.shown_states import INVALID, state_words
from paygw_batch.errors import OutputError
from paygw_batch.journal import BatchRecord
from paygw_batch.language import mark, mark_all, say, say_all, say_count
from paygw_batch.sheet.columns import RECONCILIATION_COLUMNS
from paygw_batch.sheet.formats import workbook_options
from paygw_batch.show.totals import STATE_COLOURS, BatchTotals, CurrencyTotals, by_currency

EXACT_DIGITS = 15
"""The number of digits that a spreadsheet keeps of a number. An amount that may need more is written as text."""
MAX_ROWS = 1_048_400
"""The number of rows that fit in a worksheet between its header and the totals at the bottom."""

_COLUMNS: Mapping[str, int] = {
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
"""The columns of the printed worksheet, in order, with their widths in characters."""
_AMOUNT, _STATE, _KNOWN, _SENT, _CHANGED = (
    [*_COLUMNS].index(name) for name in ("Amount", "State", "What is known", "Sent (UTC)", "Last change (UTC)")
)
_TOTALS = dict(zip(mark_all("Currency", "Country", "State", "Rows", "Sum"), (10, 14, 12, 10, 24), strict=True))
_WIDTHS = {"message": 44, "row": 7, "country": 9, "currency": 9, "state": 10, "attempts": 9, "http_status": 11}
"""The widths of columns in the worksheet of all columns, except those of `_USUAL_WIDTH`."""
_USUAL_WIDTH = 20
_LETTERS_A_LINE = int(1.1 * _COLUMNS["What is known"])
"""The letters that fit on one line of a sentence. A width counts digits, and letters are narrower on average."""
_LINE_POINTS, _MAX_LINES = 15, 20
_LINED = {"bottom": 1, "bottom_color": "#D9D9D9"}
_RIGHT = {"align": "right"}
_GAP = "_)"
"""The end of a number format, which leaves a small space on the right."""
_A4 = 9
_MAX_PRINTED = 80
"""The maximum length of a sheet's name in a page header. The whole header may have 255 characters."""
_TIME = "%Y-%m-%dT%H:%M:%S%.3fZ"
_DAY_MS = 86_400_000
_FIRST_DAY = 25_569
"""1970-01-01 as a spreadsheet's day number."""


def workbook_of(frame: pl.DataFrame, books: BatchTotals, batch: BatchRecord, minor_units: Mapping[str, int]) -> bytes:
    """Return a reconciliation frame as the bytes of an .xlsx file. The `excel` extra must be installed.

    An amount is a number if a spreadsheet keeps it exactly; otherwise it is text. The worksheet of all columns has
    exactly the texts of the CSV. The same arguments give the same bytes. Raises `OutputError` if there are more than
    `MAX_ROWS` rows.
    """
    from xlsxwriter import Workbook  # type: ignore[import-untyped]  # noqa: PLC0415 (an extra)

    if frame.height > MAX_ROWS:
        raise OutputError(
            say("A workbook holds at most {rows} rows.", rows=MAX_ROWS), hint=say("Write .csv or .parquet.")
        )
    file = io.BytesIO()
    with Workbook(file, workbook_options()) as workbook:
        workbook.set_properties({"title": batch.batch, "created": datetime.fromisoformat(batch.opened_at)})
        pen = _Pen(workbook, minor_units)
        payments, totals, all_columns = (
            workbook.add_worksheet(name) for name in say_all("Payments", "Totals", "All columns")
        )
        # These column names come first among the texts of the file, and show `outputs.py` that this program wrote it.
        pen.headings(all_columns, {name: _WIDTHS.get(name, _USUAL_WIDTH) for name in frame.columns})
        _add_payments(pen, payments, frame, books)
        _add_totals(pen, totals, books)
        for at, line in enumerate(frame.iter_rows(), start=1):
            pen.line(all_columns, at, line)
        all_columns.autofilter(0, 0, frame.height, frame.width - 1)
        for sheet in (payments, totals, all_columns):
            _set_up_pages(sheet, batch)
    return file.getvalue()


def _add_payments(pen: "_Pen", sheet: Any, frame: pl.DataFrame, books: BatchTotals) -> None:
    """Write a line for each row, with the sender's own columns after `_COLUMNS`. The totals are below the lines."""
    of_sender = [name for name in frame.columns if name not in RECONCILIATION_COLUMNS]
    pen.headings(sheet, {say(name): width for name, width in _COLUMNS.items()}, right=[say("Amount")])
    pen.headings(sheet, dict.fromkeys(of_sender, _USUAL_WIDTH), first=len(_COLUMNS))
    texts = 0
    for at, line in enumerate(_for_people(frame, of_sender).iter_rows(), start=1):
        apart = {place: line[place] for place in (_AMOUNT, _STATE, _KNOWN, _SENT, _CHANGED)}
        pen.line(sheet, at, [None if place in apart else cell or "" for place, cell in enumerate(line)])
        is_number = pen.money(sheet, at, _AMOUNT, line[_AMOUNT], line[_AMOUNT + 1])
        texts += not is_number and line[_STATE] != INVALID
        pen.state(sheet, at, _STATE, line[_STATE])
        pen.sentence(sheet, at, _KNOWN, line[_KNOWN] or "")
        for place in (_SENT, _CHANGED):
            if line[place] is not None:
                sheet.write_number(at, place, line[place], pen.time)
            else:
                sheet.write_blank(at, place, None, pen.time)
    sheet.autofilter(0, 0, frame.height, len(_COLUMNS) + len(of_sender) - 1)
    foot = _add_foot(pen, sheet, frame.height + 2, books)
    if texts:
        pen.line(sheet, foot, (None, _as_text(texts)))
    sheet.print_area(0, 0, foot, len(_COLUMNS) - 1)


def _as_text(count: int) -> str:
    return say_count(
        count,
        "{count:,} amount is written as text, because a spreadsheet's number would not be exact. The "
        "spreadsheet's sums leave it out.",
        "{count:,} amounts are written as text, because a spreadsheet's numbers would not be exact. The "
        "spreadsheet's sums leave them out.",
    )


def _for_people(frame: pl.DataFrame, of_sender: Sequence[str]) -> pl.DataFrame:
    """Return a frame of `_COLUMNS` and the sender's own columns. Times are a spreadsheet's day numbers."""
    sent, changed = (
        pl.col(name).str.to_datetime(_TIME, time_zone="UTC").dt.epoch("ms") / _DAY_MS + _FIRST_DAY
        for name in ("first_sent_at", "updated_at")
    )
    return frame.select(
        "row",
        "account_name",
        pl.coalesce("account_number", "phone").alias("\0account"),
        "amount",
        "currency",
        "state",
        pl.coalesce("message", "error_code").alias("\0known"),
        "gateway_reference",
        pl.coalesce("sent_orderid", "client_orderid").alias("\0order"),
        sent,
        changed,
        *of_sender,
    )


def _add_foot(pen: "_Pen", sheet: Any, at: int, books: BatchTotals) -> int:
    """Write the totals of each currency from line `at` on, and return the next free line."""
    for total in by_currency(books):
        name = say("Total {currency}", currency=total.currency) if total.currency else say("Total without a currency")
        for state, rows, amount in _lines_of(total):
            texts = ("" if state else name, say_count(rows, "{count:,} row", "{count:,} rows"), None, total.currency)
            pen.line(sheet, at, (None, *texts), is_total=not state)
            pen.money(sheet, at, _AMOUNT, amount, total.currency, is_total=not state)
            pen.state(sheet, at, _STATE, state)
            at += 1
    return at


def _lines_of(total: CurrencyTotals) -> Sequence[tuple[str, int, str]]:
    """Return the lines of a currency as (state, rows, sum). The first, without a state, is for all rows to be paid."""
    return [*([("", total.rows, total.sum)] if total.rows else []), *total.states]


def _add_totals(pen: "_Pen", sheet: Any, books: BatchTotals) -> None:
    lines = [
        (total.currency, "" if state else say("all"), state, rows, amount)
        for total in by_currency(books)
        for state, rows, amount in _lines_of(total)
    ]
    below = len(lines) + 3
    for at in (0, below - 1):
        widths = {say(name): width for name, width in _TOTALS.items()}
        pen.headings(sheet, widths, right=say_all("Rows", "Sum"), at=at)
    by_country = [(currency, country, state, rows, amount) for country, currency, state, rows, amount in books.lines]
    for at, (currency, country, state, rows, amount) in [*enumerate(lines, 1), *enumerate(by_country, below)]:
        pen.line(sheet, at, (currency, country), is_total=not state)
        pen.count(sheet, at, 3, rows, is_total=not state)
        pen.state(sheet, at, 2, state)
        pen.money(sheet, at, 4, amount, currency, is_total=not state)


def _set_up_pages(sheet: Any, batch: BatchRecord) -> None:
    """Keep the headings of a worksheet visible, and make it print on A4 landscape."""
    sheet.freeze_panes(1, 2 if sheet.get_name() != say("Totals") else 0)
    sheet.ignore_errors({"number_stored_as_text": "A1:XFD1048576"})
    sheet.set_landscape()
    sheet.set_paper(_A4)
    sheet.set_margins(left=0.4, right=0.4, top=0.7, bottom=0.6)
    sheet.fit_to_pages(1 if sheet.get_name() != say("All columns") else 2, 0)
    sheet.repeat_rows(0)
    name = batch.sheet_name[:_MAX_PRINTED].replace("&", "&&")
    sheet.set_header(f"&L&A&C{name}&R{say('Batch {batch}', batch=batch.batch)}")
    sheet.set_footer(f"&L{say('Opened {time}', time=batch.opened_at)}&R{say('Page &P of &N')}")


class _Pen:
    """Writes the cells of a workbook, each in the format for its kind of value."""

    def __init__(self, workbook: Any, minor_units: Mapping[str, int]) -> None:
        self._minor_units = minor_units

        def style(**more: object) -> Any:
            return workbook.add_format({"valign": "top", "align": "left", **_LINED, **more})

        self._wrapped = style(text_wrap=True)
        self.time = style(num_format="yyyy-mm-dd hh:mm")
        head = {"bold": True, "bg_color": "#DDEBF7", "bottom_color": "#000000"}
        self._head, self._head_right = style(**head), style(**head, **_RIGHT, indent=1)
        colours = {state: style(bg_color=fill, font_color=ink) for state, (fill, ink) in STATE_COLOURS.items()}
        weights: Mapping[bool, Mapping[str, object]] = {False: {}, True: {"bold": True, "top": 1}}
        self._states = {**colours, "": style(**weights[True])}
        self._texts = {is_total: style(**weight) for is_total, weight in weights.items()}
        self._number = style(num_format=f"0{_GAP}", **_RIGHT)
        self._money = {
            (units, is_total): style(num_format=_money_pattern(units), **_RIGHT, **weight)
            for units in dict.fromkeys((None, 0, *minor_units.values()))
            for is_total, weight in weights.items()
        }

    def headings(
        self, sheet: Any, widths: Mapping[str, int], *, first: int = 0, at: int = 0, right: Iterable[str] = ()
    ) -> None:
        """Write headings in line `at` from column `first` on, and set the widths of their columns."""
        for place, (name, width) in enumerate(widths.items(), start=first):
            sheet.set_column(place, place, width)
            sheet.write_string(at, place, name, self._head_right if name in right else self._head)

    def line(self, sheet: Any, at: int, cells: Sequence[str | int | None], *, is_total: bool = False) -> None:
        """Write a line of texts and counts. None leaves a cell as it is."""
        for place, cell in enumerate(cells):
            if isinstance(cell, str):
                _write_text(sheet, at, place, cell, self._texts[is_total])
            elif cell is not None:
                sheet.write_number(at, place, cell, self._number)

    def count(self, sheet: Any, at: int, place: int, count: int, *, is_total: bool) -> None:
        sheet.write_number(at, place, count, self._money[0, is_total])

    def sentence(self, sheet: Any, at: int, place: int, sentence: str) -> None:
        """Write a wrapped text and set the height of its row, because not every spreadsheet adjusts the height."""
        _write_text(sheet, at, place, sentence, self._wrapped)
        lines = ceil(len(sentence) / _LETTERS_A_LINE)
        if lines > 1:
            sheet.set_row(at, _LINE_POINTS * min(lines, _MAX_LINES))

    def state(self, sheet: Any, at: int, place: int, state: str) -> None:
        """Write the words of a state in its colours. The empty state means all rows that are to be paid."""
        sheet.write_string(at, place, state_words(state) if state else say("to be paid"), self._states[state])

    def money(
        self, sheet: Any, at: int, place: int, amount: str | None, currency: str | None, *, is_total: bool = False
    ) -> bool:
        """Write an amount or a sum. Return whether it was written as a number rather than as text."""
        units = self._minor_units.get(currency or "")
        if units is not None and amount and is_exact(amount, units):
            sheet.write_number(at, place, float(amount), self._money[units, is_total])
            return True
        _write_text(sheet, at, place, amount or "", self._money[None, is_total])
        return False


def _write_text(sheet: Any, at: int, place: int, text: str, style: Any) -> None:
    """Write a text so that it stays text, even if it looks like a number or a formula."""
    if text:
        sheet.write_string(at, place, text, style)
    else:
        sheet.write_blank(at, place, None, style)


def _money_pattern(units: int | None) -> str:
    """Return the number format for money with `units` decimals, or the format for text if `units` is None."""
    return "@" if units is None else f"#,##0{'.' if units else ''}{'0' * units}{_GAP}"


def is_exact(amount: str, minor_units: int) -> bool:
    """Return whether a number in a spreadsheet shows an amount exactly, with all decimals of its currency."""
    whole_digits = len(amount.partition(".")[0])
    return whole_digits + minor_units <= EXACT_DIGITS and parse_amount(amount, minor_units=minor_units) is not None
