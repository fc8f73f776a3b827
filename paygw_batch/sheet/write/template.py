"""Templates: an empty sheet with the columns that some countries ask for, ready to be filled in.

The worksheet of payees is empty, and the examples are on the help sheet, a line for each column: nothing has to be
deleted before the sheet is submitted, and no example can be paid by mistake. As it is, a template pays nobody.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paygw_batch.countries.form_columns import OF_EVERY_SHEET
from paygw_batch.countries.kinds import KINDS
from paygw_batch.countries.rules import CountryRule
from paygw_batch.errors import OutputError
from paygw_batch.files import check_writable, write_whole
from paygw_batch.language import mark, say
from paygw_batch.sheet.columns import HELP_TITLE
from paygw_batch.sheet.write.file_ending import table_ending
from paygw_batch.sheet.write.guide import GUIDE_HEADINGS, ColumnGuide, columns_of, guides
from paygw_batch.sheet.write.table import row_points, workbook_options

_LAST_ROW = 1_048_576
_STEPS = (
    mark("Write one payment a row on the sheet Payees, below its headings. Cells there are text: leading zeros stay."),
    mark("Columns of your own may be added: they come back in the reconciliation. The order of columns is free."),
    mark("Then check it: paygw-batch validate, and the name of this file. What is wrong is told row by row."),
    mark("This sheet is never read as payments, and its examples pay nobody."),
)
_LISTED = tuple(name for name, kind in OF_EVERY_SHEET.items() if KINDS[kind].is_filled)
"""Columns with few values: a cell offers them as a list."""
_HELP_WIDTHS = (22, 16, 9, 98, 34)


def write_template(rules: Sequence[CountryRule], path: Path) -> list[ColumnGuide]:
    """Write a template for these countries to `path` (.xlsx or .csv), and return the guides of its columns.

    An .xlsx has cells of text, drop-down lists and a help sheet; a .csv has the headings alone. An existing file is
    never touched: it may be a template that someone has filled in. Raises `OutputError`.
    """
    table_ending(path)
    check_writable(path)
    if path.suffix.lower() not in {".xlsx", ".csv"}:
        raise OutputError(
            say("{name}: a template is a .xlsx or a .csv file.", name=path.name),
            hint=say("Give it one of these endings."),
        )
    if path.exists():
        raise OutputError(
            say("{path} exists already.", path=path), hint=say("Name a new file: this one may have been filled in.")
        )
    every = guides(rules)
    if path.suffix.lower() == ".csv":
        write_whole(path, f"{','.join(columns_of(every))}\n".encode())
    else:
        write_whole(path, _workbook(rules, every))
    return every


def _workbook(rules: Sequence[CountryRule], every: Sequence[ColumnGuide]) -> bytes:
    from xlsxwriter import Workbook  # type: ignore[import-untyped]  # noqa: PLC0415 (an extra)

    file = io.BytesIO()
    with Workbook(file, workbook_options()) as workbook:
        payees, helping = workbook.add_worksheet(say("Payees")), workbook.add_worksheet(say("Help"))
        _add_payees(workbook, payees, every)
        _add_help(workbook, helping, rules, every)
        _add_lists(workbook, payees, every)
    return file.getvalue()


def _add_payees(workbook: Any, sheet: Any, every: Sequence[ColumnGuide]) -> None:
    """Add the headings, and below them nothing but cells of text. Columns that every country needs are bold."""
    text = workbook.add_format({"num_format": "@"})
    needed = workbook.add_format({"num_format": "@", "bold": True, "bg_color": "#DDEBF7", "bottom": 1})
    optional = workbook.add_format({"num_format": "@", "italic": True, "bg_color": "#F2F2F2", "bottom": 1})
    for at, column in enumerate(columns_of(every)):
        is_needed = any(guide.needed for guide in every if guide.column == column)
        sheet.set_column(at, at, max(guide.width for guide in every if guide.column == column), text)
        sheet.write_string(0, at, column, needed if is_needed else optional)
    sheet.freeze_panes(1, 0)
    sheet.ignore_errors({"number_stored_as_text": f"A1:XFD{_LAST_ROW}"})


def _add_help(workbook: Any, sheet: Any, rules: Sequence[CountryRule], every: Sequence[ColumnGuide]) -> None:
    bold = workbook.add_format({"bold": True, "font_size": 14})
    head = workbook.add_format({"bold": True, "bg_color": "#DDEBF7", "bottom": 1})
    wrapped = workbook.add_format({"text_wrap": True, "valign": "top", "num_format": "@"})
    sheet.write_string(0, 0, say(HELP_TITLE), bold)
    notes = [f"{rule.code}: {say(note)}" for rule in rules for note in (*rule.notes, *rule.confused_codes.values())]
    for row, sentence in enumerate((*map(say, _STEPS), *notes), start=1):
        sheet.write_string(row, 0, sentence)
    top = len(_STEPS) + len(notes) + 2
    for at, (heading, width) in enumerate(zip(GUIDE_HEADINGS, _HELP_WIDTHS, strict=True)):
        sheet.set_column(at, at, width)
        sheet.write_string(top, at, say(heading), head)
    for row, guide in enumerate(every, start=top + 1):
        sheet.set_row(row, row_points(guide.cells, _HELP_WIDTHS))
        for at, cell in enumerate(guide.cells):
            sheet.write_string(row, at, cell, wrapped)
    sheet.freeze_panes(top + 1, 0)
    sheet.set_landscape()
    sheet.fit_to_pages(1, 0)


def _add_lists(workbook: Any, payees: Any, every: Sequence[ColumnGuide]) -> None:
    """Add drop-down lists of the few values that a column can have, on a hidden worksheet."""
    lists = workbook.add_worksheet("Lists")
    lists.hide()
    for place, column in enumerate(_LISTED):
        values = list(dict.fromkeys(guide.example for guide in every if guide.column == column and guide.example))
        if not values:
            continue
        for row, value in enumerate(values):
            lists.write_string(row, place, value)
        letter = "ABC"[place]
        at = columns_of(every).index(column)
        rule = {
            "validate": "list",
            "source": f"=Lists!${letter}$1:${letter}${len(values)}",
            "error_title": column,
            "error_message": say("Choose one from the list; the sheet Help says more."),
        }
        payees.data_validation(1, at, _LAST_ROW - 1, at, rule)
