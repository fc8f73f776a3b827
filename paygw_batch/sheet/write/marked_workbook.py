"""Marks a sender's own workbook: red cells with comments, and a worksheet that lists every problem with a link.

Nothing else changes. No change of type or format may make an invalid cell payable, so the caller (`rejects`) rereads
the copy and compares it. This module needs the `excel` extra, and is imported only if that is installed.
"""

import re
import warnings
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import date, time, timedelta
from math import ceil

import polars as pl
from openpyxl.cell import Cell, MergedCell
from openpyxl.comments import Comment
from openpyxl.styles import Alignment, Font, PatternFill
from openpyxl.utils import get_column_letter
from openpyxl.workbook import Workbook
from openpyxl.worksheet.hyperlink import Hyperlink
from openpyxl.worksheet.properties import PageSetupProperties
from openpyxl.worksheet.worksheet import Worksheet

from paygw_batch.core import generator_marks
from paygw_batch.language import mark, say
from paygw_batch.sheet.check.corrections import CellEdit
from paygw_batch.sheet.columns import PROBLEMS_TITLE, REJECTS_COLUMNS, known_columns
from paygw_batch.sheet.model import Validated
from paygw_batch.sheet.read.xlsx import SheetLocation
from paygw_batch.sheet.write.table import row_height_points
from paygw_batch.sheet.write.workbook_copy import load_workbook_copy, save_workbook

PROBLEM, WARNING = mark("problem"), mark("warning")
COLOURS = {PROBLEM: "FFFF9B9B", WARNING: "FFFFE59A"}
"""The colours of marked cells, by which marks of an earlier copy are recognised."""
MAX_LISTED = 50_000
"""The maximum number of listed problems. A worksheet can hold 65,530 links."""
_HEADINGS = (
    (mark("Row"), 8),
    (mark("Cell"), 9),
    (mark("Column"), 22),
    (mark("Value"), 26),
    (mark("Kind"), 10),
    (mark("What is wrong"), 96),
    (mark("Code"), 26),
)


@dataclass(frozen=True, slots=True)
class Problem:
    """A defect or warning, and the cell that shows it. `heading` is the sender's.

    `sheet_row` is the row in the sender's sheet, or 0 if it equals `row`.
    """

    row: int
    column: int
    heading: str
    value: str
    kind: str
    message: str
    code: str
    sheet_row: int = 0


def write_text(sheet: Worksheet, row: int, column: int, text: str) -> None:
    """Write a text cell, which no spreadsheet runs as a formula."""
    sheet.cell(row, column, text).data_type = "s"


def _add_problem_list(book: Workbook, sheet: Worksheet, problems: Sequence[Problem]) -> None:
    problem_sheet: Worksheet = book.create_sheet(_unused_name(book.sheetnames))
    _activate_only(book, problem_sheet)
    header_row = _write_header(problem_sheet, sheet.title, problems)
    link_font = Font(name="Calibri", underline="single", color="FF0563C1")
    wrapped = Alignment(wrap_text=True, horizontal="left", vertical="top")
    fills = {kind: PatternFill("solid", fgColor=colour) for kind, colour in COLOURS.items()}
    widths = [width for _, width in _HEADINGS[1:]]
    quoted_title = sheet.title.replace("'", "''")
    for row, problem in enumerate(problems[:MAX_LISTED], start=header_row + 1):
        address = f"{get_column_letter(problem.column)}{problem.row}"
        problem_sheet.cell(row, 1, problem.sheet_row or problem.row)
        texts = (address, problem.heading, problem.value, say(problem.kind), problem.message, problem.code)
        for column, text in enumerate(texts, start=2):
            write_text(problem_sheet, row, column, text)
        for column in range(1, len(_HEADINGS) + 1):
            problem_sheet.cell(row, column).alignment = wrapped
        problem_sheet.row_dimensions[row].height = row_height_points(texts, widths)
        problem_sheet.cell(row, 2).hyperlink = Hyperlink(ref="", location=f"'{quoted_title}'!{address}")
        problem_sheet.cell(row, 2).font = link_font
        problem_sheet.cell(row, 5).fill = fills[problem.kind]
    problem_sheet.auto_filter.ref = f"A{header_row}:{get_column_letter(len(_HEADINGS))}{problem_sheet.max_row}"


def _write_header(problem_sheet: Worksheet, sheet_title: str, problems: Sequence[Problem]) -> int:
    """Write the instructions and headings. Returns the row number of the headings."""
    sentences = [
        say(PROBLEMS_TITLE),
        say(
            "Correct the red cells in {title!r}. The links in the column Cell lead to them. Then save this workbook "
            "and submit it.",
            title=sheet_title,
        ),
        say("This list is not read when you submit the workbook."),
    ]
    if any(problem.kind == WARNING for problem in problems):
        sentences.append(say("Check the yellow cells too. They do not prevent the payout."))
    if len(problems) > MAX_LISTED:
        sentences.append(
            say(
                "Only the first {most:,} of {count:,} problems are listed, but the cells of all of them are coloured.",
                most=MAX_LISTED,
                count=len(problems),
            )
        )
    for row, sentence in enumerate(sentences, start=1):
        write_text(problem_sheet, row, 1, sentence)
    problem_sheet["A1"].font = Font(name="Calibri", bold=True, size=14)
    write_text(problem_sheet, 1, len(_HEADINGS), generator_marks.PROBLEMS)
    problem_sheet.cell(1, len(_HEADINGS)).font = Font(name="Calibri", color="FF808080")
    header_row = len(sentences) + 2
    for column, (heading, width) in enumerate(_HEADINGS, start=1):
        problem_sheet.cell(header_row, column, say(heading)).font = Font(name="Calibri", bold=True)
        problem_sheet.column_dimensions[get_column_letter(column)].width = width
    problem_sheet.freeze_panes = f"A{header_row + 1}"
    problem_sheet.page_setup.orientation = "landscape"
    problem_sheet.page_setup.fitToHeight = 0
    problem_sheet.sheet_properties.pageSetUpPr = PageSetupProperties(fitToPage=True)
    return header_row


def _unused_name(names: Sequence[str]) -> str:
    used_names = {name.casefold() for name in names}
    name = say("Problems")
    candidates = (name, *(f"{name} {number}" for number in range(2, len(names) + 3)))
    return next(candidate for candidate in candidates if candidate.casefold() not in used_names)


def _activate_only(book: Workbook, sheet: Worksheet) -> None:
    """Make `sheet` the only selected worksheet. Otherwise typing would edit every selected one."""
    views = [view for other in book.worksheets for view in other.views.sheetView]
    views += [view for other in book.chartsheets for view in other.sheetViews.sheetView]
    for view in views:
        view.tabSelected = False
    book.active = book.index(sheet)
    sheet.sheet_view.tabSelected = True


MAX_COMMENTS = 5_000
"""The maximum number of comments, which slow spreadsheets down. The list of problems has all messages."""
_PROBLEMS_WIDTH = 60
_MAX_COMMENT_CHARACTERS = 1_000
_AUTHOR = "paygw-batch"
_DISPLAY_CODES = {"row.hidden", "row.struck"}
"""Codes of findings about how a row is displayed, which a marked copy does not change."""
_OUR_COMMENT = re.compile(rf"(?:\A|\n){_AUTHOR}:\r?\n")
"""The start of our part of a comment. The sender's part comes first and is kept."""


def build_marked_copy(
    data: bytes, location: SheetLocation, validated: Validated, edits: Sequence[CellEdit]
) -> tuple[bytes, Collection[tuple[int, int]]]:
    """Copy the workbook `data`, with every defect and warning in the worksheet at `location` marked.

    Corrected cells (`edits`) become text. Marks from an earlier copy are removed first. Also returns the (row, column)
    of each formula, because the copy has no values for them. Exceptions from the library are not caught.
    """
    with warnings.catch_warnings(action="ignore"):  # about lost parts, which `lost_part_kinds` reports
        book = load_workbook_copy(data)
        sheet = book[location.worksheet]
        _remove_marks(book, sheet)
        _write_edits(sheet, edits, location)
        problems = _list_problems(validated, location)
        formulas = [address for address, cell in _existing_cells(sheet).items() if cell.data_type == "f"]
        _replace_dates(sheet, problems, validated, location)
        _mark_cells(sheet, problems, location)
        _add_problem_list(book, sheet, problems)
        return save_workbook(book), formulas


def build_marked_table(table: pl.DataFrame, validated: Validated, *, title: str) -> bytes:
    """Build a workbook from a table (`rows_to_correct`), and mark it as `build_marked_copy` does.

    All cells except row numbers are text, so that spreadsheets don't convert values.
    """
    book = Workbook()
    sheet = book.worksheets[0]
    sheet.title = title
    blanks = [""] * len(REJECTS_COLUMNS)
    location = SheetLocation(sheet.title, (*blanks, *(name for name in validated.sheet.frame.columns if name != "row")))
    bold_font, wrapped = Font(name="Calibri", bold=True), Alignment(wrap_text=True, vertical="top")
    for column, heading in enumerate(table.columns, start=1):
        write_text(sheet, 1, column, heading)
        sheet.cell(1, column).font = bold_font
        sheet.column_dimensions[get_column_letter(column)].width = {1: 7, 2: _PROBLEMS_WIDTH}.get(column, 20)
    for table_row, line in enumerate(table.iter_rows(), start=2):
        sheet.cell(table_row, 1, line[0])
        for column, text in enumerate(line[1:], start=2):
            write_text(sheet, table_row, column, text or "")
            sheet.cell(table_row, column).number_format = "@"
        sheet.cell(table_row, 2).alignment = wrapped
        sheet.row_dimensions[table_row].height = 15 * max(1, ceil(len(line[1] or "") / _PROBLEMS_WIDTH))
    sheet.freeze_panes = "C2"
    sheet.auto_filter.ref = sheet.dimensions
    sheet.page_setup.orientation, sheet.page_setup.fitToHeight = "landscape", 0
    sheet.sheet_properties.pageSetUpPr = PageSetupProperties(fitToPage=True)
    sheet.print_title_rows = "1:1"
    table_rows = {row: table_row for table_row, row in enumerate(table["row"], start=2)}
    problems = [
        replace(problem, row=table_rows[problem.row], sheet_row=problem.row)
        for problem in _list_problems(validated, location)
        if problem.row in table_rows
    ]
    _mark_cells(sheet, problems, location)
    _add_problem_list(book, sheet, problems)
    return save_workbook(book)


def _existing_cells(sheet: Worksheet) -> dict[tuple[int, int], Cell | MergedCell]:
    """Return the existing cells by (row, column). Public methods would create missing ones."""
    return sheet._cells  # noqa: SLF001 (see above)


def _list_problems(validated: Validated, location: SheetLocation) -> list[Problem]:
    """List the problems of all rows, in order. The country cell shows problems with the whole row."""
    defects = validated.defects.with_columns(kind=pl.lit(PROBLEM))
    findings = pl.concat([defects, validated.warnings.with_columns(kind=pl.lit(WARNING))])
    column_numbers = {name: number for number, name in enumerate(location.names, start=1)}
    headings = validated.sheet.headers
    return [
        Problem(
            row,
            column_numbers.get(name, column_numbers["country"]),
            headings.get(name, name) if name in column_numbers else say("(whole row)"),
            value or "",
            kind,
            message,
            code,
        )
        for row, name, value, kind, message, code in findings.filter(pl.col("row") > 0)
        .sort("row", maintain_order=True)
        .select("row", "column", "value", "kind", "message", "code")
        .iter_rows()
    ]


def _remove_marks(book: Workbook, sheet: Worksheet) -> None:
    """Remove the marks from an earlier copy. A workbook without marks keeps its own colours."""
    cells = _existing_cells(sheet).values()
    problem_lists = [other for other in book.worksheets if other is not sheet and _is_problem_list(other)]
    comments = [cell.comment.text for cell in cells if cell.comment is not None]
    if not problem_lists and not any(map(_OUR_COMMENT.search, comments)):
        return
    for problem_list in problem_lists:
        book.remove(problem_list)
    for cell in cells:
        if cell.has_style and cell.fill.fill_type == "solid" and cell.fill.fgColor.rgb in set(COLOURS.values()):
            cell.fill = PatternFill()
        if cell.comment is not None and (our_comment := _OUR_COMMENT.search(cell.comment.text)):
            sender_text = cell.comment.text[: our_comment.start()].rstrip()
            cell.comment = _build_comment(sender_text, cell.comment.author or "") if sender_text else None


def _is_problem_list(sheet: Worksheet) -> bool:
    return any(row == 1 and cell.value == generator_marks.PROBLEMS for (row, _), cell in _existing_cells(sheet).items())


def _write_edits(sheet: Worksheet, edits: Sequence[CellEdit], location: SheetLocation) -> None:
    """Write corrected cells as text. The library raises its own exception for a merged cell."""
    for edit in edits:
        column = location.names.index(edit.column) + 1
        write_text(sheet, edit.row, column, edit.now or "")
        cell = sheet.cell(edit.row, column)
        cell.number_format = "@"
        if edit.now is None:
            cell.value = None


def _replace_dates(
    sheet: Worksheet, problems: Sequence[Problem], validated: Validated, location: SheetLocation
) -> None:
    """Replace dates in marked cells with their text. Otherwise, a number typed over a date would become a date."""
    values = {(problem.row, problem.column): _problem_cell(sheet, problem).value for problem in problems}
    dates = [address for address, value in values.items() if isinstance(value, date | time | timedelta)]
    if not dates:
        return
    date_rows = validated.sheet.frame.filter(pl.col("row").is_in([row for row, _ in dates]))
    lines = {line["row"]: line for line in date_rows.iter_rows(named=True)}
    for row, column in dates:
        sheet.cell(row, column).number_format = "General"
        write_text(sheet, row, column, lines[row][location.names[column - 1]])


def _mark_cells(sheet: Worksheet, problems: Sequence[Problem], location: SheetLocation) -> None:
    by_cell: dict[tuple[int, int], list[Problem]] = defaultdict(list)
    for problem in problems:
        by_cell[problem.row, problem.column].append(problem)
    fills = {kind: PatternFill("solid", fgColor=colour) for kind, colour in COLOURS.items()}
    for index, (address, cell_problems) in enumerate(by_cell.items()):
        cell = _problem_cell(sheet, cell_problems[0])
        name = location.names[address[1] - 1]
        cell.fill = fills[PROBLEM if any(problem.kind == PROBLEM for problem in cell_problems) else WARNING]
        if name in known_columns() and name != "amount" and cell.data_type not in {"f", "d"}:
            cell.number_format = "@"  # so that typed values keep leading zeros
        if index < MAX_COMMENTS:
            _add_comment(cell, [problem.message for problem in cell_problems])
    _unhide_problems(sheet, problems)


def _unhide_problems(sheet: Worksheet, problems: Sequence[Problem]) -> None:
    """Unhide rows and columns that contain a defect, unless being hidden is the defect."""
    defects = [problem for problem in problems if problem.kind == PROBLEM and problem.code not in _DISPLAY_CODES]
    columns = {problem.column for problem in defects}
    for row in {problem.row for problem in defects}:
        if row in sheet.row_dimensions:
            sheet.row_dimensions[row].hidden = False
    for dimension in sheet.column_dimensions.values():
        if dimension.hidden and any((dimension.min or 0) <= column <= (dimension.max or 0) for column in columns):
            dimension.hidden = False


def _problem_cell(sheet: Worksheet, problem: Problem) -> Cell:
    """Return the cell that shows a problem. For merged cells, this is the first one, which holds the value."""
    cell = sheet.cell(problem.row, problem.column)
    if isinstance(cell, MergedCell):
        merged = next(merged for merged in sheet.merged_cells.ranges if cell.coordinate in merged)
        cell = sheet.cell(merged.min_row, merged.min_col)
    return cell  # type: ignore[return-value]


def _add_comment(cell: Cell, messages: Sequence[str]) -> None:
    our_text = f"{_AUTHOR}:\n" + "\n".join(messages)[:_MAX_COMMENT_CHARACTERS]
    sender_text = cell.comment.text if cell.comment is not None else ""
    author = cell.comment.author or _AUTHOR if cell.comment is not None else _AUTHOR
    cell.comment = _build_comment(f"{sender_text}\n\n{our_text}" if sender_text else our_text, author)


def _build_comment(text: str, author: str) -> Comment:
    lines = sum(1 + len(line) // 45 for line in text.split("\n"))
    return Comment(text, author, height=20 + 18 * lines, width=330)
