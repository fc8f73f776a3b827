"""Marks a sender's own workbook: red cells with comments, and a worksheet that lists every problem with a link.

Nothing else changes. An invalid cell must not become payable because its type or format changed, so the caller
(`rejects`) rereads the copy and compares it. This module needs the `excel` extra, and is imported only if that is
installed.
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
"""The colours of marked cells. Marks of an earlier copy are recognised by exactly these colours."""
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

    `sheet_row` is the row in the sender's sheet if it differs from the row of the cell.
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
    """Write a text cell, so that no value becomes a formula."""
    sheet.cell(row, column, text).data_type = "s"


def add_problems(book: Workbook, sheet: Worksheet, findings: Sequence[Problem]) -> None:
    """Add a worksheet of problems after all others and show it first."""
    problems: Worksheet = book.create_sheet(_unused_name(book.sheetnames))
    _show_first(book, problems)
    header_row = _write_head(problems, sheet.title, findings)
    link = Font(name="Calibri", underline="single", color="FF0563C1")
    wrapped = Alignment(wrap_text=True, horizontal="left", vertical="top")
    fills = {kind: PatternFill("solid", fgColor=colour) for kind, colour in COLOURS.items()}
    widths = [width for _, width in _HEADINGS[1:]]
    quoted = sheet.title.replace("'", "''")
    for row, finding in enumerate(findings[:MAX_LISTED], start=header_row + 1):
        location = f"{get_column_letter(finding.column)}{finding.row}"
        problems.cell(row, 1, finding.sheet_row or finding.row)
        texts = (location, finding.heading, finding.value, say(finding.kind), finding.message, finding.code)
        for column, text in enumerate(texts, start=2):
            write_text(problems, row, column, text)
        for column in range(1, len(_HEADINGS) + 1):
            problems.cell(row, column).alignment = wrapped
        problems.row_dimensions[row].height = row_height_points(texts, widths)
        problems.cell(row, 2).hyperlink = Hyperlink(ref="", location=f"'{quoted}'!{location}")
        problems.cell(row, 2).font = link
        problems.cell(row, 5).fill = fills[finding.kind]
    problems.auto_filter.ref = f"A{header_row}:{get_column_letter(len(_HEADINGS))}{problems.max_row}"


def _write_head(problems: Worksheet, title: str, findings: Sequence[Problem]) -> int:
    """Write the worksheet's instructions and headings. Returns the row of the headings."""
    sentences = [
        say(PROBLEMS_TITLE),
        say(
            "Correct the red cells of {title!r} (the links in the column Cell lead there), save, and submit this "
            "workbook.",
            title=title,
        ),
        say("This list is not read when you submit."),
    ]
    if any(finding.kind == WARNING for finding in findings):
        sentences.append(say("Yellow cells are worth checking, but don't stop the payout."))
    if len(findings) > MAX_LISTED:
        sentences.append(
            say(
                "The first {most:,} of {count:,} are listed; the others are coloured too.",
                most=MAX_LISTED,
                count=len(findings),
            )
        )
    for row, sentence in enumerate(sentences, start=1):
        write_text(problems, row, 1, sentence)
    problems["A1"].font = Font(name="Calibri", bold=True, size=14)
    write_text(problems, 1, len(_HEADINGS), generator_marks.PROBLEMS)
    problems.cell(1, len(_HEADINGS)).font = Font(name="Calibri", color="FF808080")
    header_row = len(sentences) + 2
    for column, (heading, width) in enumerate(_HEADINGS, start=1):
        problems.cell(header_row, column, say(heading)).font = Font(name="Calibri", bold=True)
        problems.column_dimensions[get_column_letter(column)].width = width
    problems.freeze_panes = f"A{header_row + 1}"
    problems.page_setup.orientation = "landscape"
    problems.page_setup.fitToHeight = 0
    problems.sheet_properties.pageSetUpPr = PageSetupProperties(fitToPage=True)
    return header_row


def _unused_name(names: Sequence[str]) -> str:
    used_names = {name.casefold() for name in names}
    name = say("Problems")
    candidates = (name, *(f"{name} {number}" for number in range(2, len(names) + 3)))
    return next(candidate for candidate in candidates if candidate.casefold() not in used_names)


def _show_first(book: Workbook, problems: Worksheet) -> None:
    """Make `problems` the active and only selected worksheet, because typing changes all selected ones."""
    views = [view for other in book.worksheets for view in other.views.sheetView]
    views += [view for other in book.chartsheets for view in other.sheetViews.sheetView]
    for view in views:
        view.tabSelected = False
    book.active = book.index(problems)
    problems.sheet_view.tabSelected = True


MAX_COMMENTS = 5_000
"""The maximum number of comments, which slow a spreadsheet down. The list has all messages."""
_PROBLEMS_WIDTH = 60
_COMMENT_CHARACTERS = 1_000
_AUTHOR = "paygw-batch"
_SHOWN_IN_SPREADSHEET = {"row.hidden", "row.struck"}
"""Codes of findings about the display of a row. A marked copy keeps their causes for a person to resolve."""
_OUR_COMMENT = re.compile(rf"(?:\A|\n){_AUTHOR}:\r?\n")
"""The start of our part of a comment. The sender's part precedes it, and is kept."""


def annotate_workbook(
    data: bytes, location: SheetLocation, validated: Validated, edits: Sequence[CellEdit] = ()
) -> tuple[bytes, Collection[tuple[int, int]]]:
    """Mark every defect and warning in the worksheet at `location` of the workbook `data`.

    Corrected cells (`edits`) become text. Marks of an earlier copy are removed first. Returns the new workbook, and the
    (row, column) of each formula, because formulas have no value in the copy. Raises the library's own exceptions for
    some workbooks.
    """
    with warnings.catch_warnings(action="ignore"):  # they are about lost parts, which `lost_parts` finds
        book = load_workbook_copy(data)
        sheet = book[location.worksheet]
        _remove_marks(book, sheet)
        _write_edits(sheet, edits, location)
        findings = _list_problems(validated, location)
        formulas = [address for address, cell in _existing_cells(sheet).items() if cell.data_type == "f"]
        _replace_dates(sheet, findings, validated, location)
        _mark_cells(sheet, findings, location)
        add_problems(book, sheet, findings)
        return save_workbook(book), formulas


def build_marked_table(table: pl.DataFrame, validated: Validated, *, title: str) -> bytes:
    """Build a new workbook of rows (`table.rejects`), marked like a sender's by `annotate_workbook`.

    All cells except row numbers are text, so typed values are kept as typed.
    """
    book = Workbook()
    sheet = book.worksheets[0]
    sheet.title = title
    blanks = [""] * len(REJECTS_COLUMNS)
    location = SheetLocation(sheet.title, (*blanks, *(name for name in validated.sheet.frame.columns if name != "row")))
    bold, wrapped = Font(name="Calibri", bold=True), Alignment(wrap_text=True, vertical="top")
    for column, heading in enumerate(table.columns, start=1):
        write_text(sheet, 1, column, heading)
        sheet.cell(1, column).font = bold
        sheet.column_dimensions[get_column_letter(column)].width = {1: 7, 2: _PROBLEMS_WIDTH}.get(column, 20)
    for row_number, line in enumerate(table.iter_rows(), start=2):
        sheet.cell(row_number, 1, line[0])
        for column, text in enumerate(line[1:], start=2):
            write_text(sheet, row_number, column, text or "")
            sheet.cell(row_number, column).number_format = "@"
        sheet.cell(row_number, 2).alignment = wrapped
        sheet.row_dimensions[row_number].height = 15 * max(1, ceil(len(line[1] or "") / _PROBLEMS_WIDTH))
    sheet.freeze_panes = "C2"
    sheet.auto_filter.ref = sheet.dimensions
    sheet.page_setup.orientation, sheet.page_setup.fitToHeight = "landscape", 0
    sheet.sheet_properties.pageSetUpPr = PageSetupProperties(fitToPage=True)
    sheet.print_title_rows = "1:1"
    rows = {row: row_number for row_number, row in enumerate(table["row"], start=2)}
    findings = [
        replace(finding, row=rows[finding.row], sheet_row=finding.row)
        for finding in _list_problems(validated, location)
        if finding.row in rows
    ]
    _mark_cells(sheet, findings, location)
    add_problems(book, sheet, findings)
    return save_workbook(book)


def _existing_cells(sheet: Worksheet) -> dict[tuple[int, int], Cell | MergedCell]:
    """Return the existing cells by (row, column). Public methods would create the cells between them."""
    return sheet._cells  # noqa: SLF001 (see above)


def _list_problems(validated: Validated, location: SheetLocation) -> list[Problem]:
    """List all findings about rows, by row. A finding about a whole row is shown in its country's cell."""
    frames = [
        validated.defects.with_columns(kind=pl.lit(PROBLEM)),
        validated.warnings.with_columns(kind=pl.lit(WARNING)),
    ]
    columns = {name: number for number, name in enumerate(location.names, start=1)}
    headings = validated.sheet.headers
    return [
        Problem(
            row,
            columns.get(name, columns["country"]),
            headings.get(name, name) if name in columns else say("(whole row)"),
            value or "",
            kind,
            message,
            code,
        )
        for row, name, value, kind, message, code in pl.concat(frames)
        .filter(pl.col("row") > 0)
        .sort("row", maintain_order=True)
        .select("row", "column", "value", "kind", "message", "code")
        .iter_rows()
    ]


def _remove_marks(book: Workbook, sheet: Worksheet) -> None:
    """Remove the marks of an earlier copy. A workbook without them keeps its own colours."""
    cells = _existing_cells(sheet).values()
    lists = [other for other in book.worksheets if other is not sheet and _is_problem_list(other)]
    if not lists and not any(cell.comment is not None and _OUR_COMMENT.search(cell.comment.text) for cell in cells):
        return
    for other in lists:
        book.remove(other)
    for cell in cells:
        if cell.has_style and cell.fill.fill_type == "solid" and cell.fill.fgColor.rgb in set(COLOURS.values()):
            cell.fill = PatternFill()
        if cell.comment is not None and (our_text := _OUR_COMMENT.search(cell.comment.text)):
            sender_text = cell.comment.text[: our_text.start()].rstrip()
            cell.comment = _build_comment(sender_text, cell.comment.author or "") if sender_text else None


def _is_problem_list(sheet: Worksheet) -> bool:
    return any(row == 1 and cell.value == generator_marks.PROBLEMS for (row, _), cell in _existing_cells(sheet).items())


def _write_edits(sheet: Worksheet, edits: Sequence[CellEdit], location: SheetLocation) -> None:
    """Write corrected cells as text. Raises the library's own exception for a merged cell."""
    for edit in edits:
        column = location.names.index(edit.column) + 1
        write_text(sheet, edit.row, column, edit.now or "")
        cell = sheet.cell(edit.row, column)
        cell.number_format = "@"
        if edit.now is None:
            cell.value = None


def _replace_dates(
    sheet: Worksheet, findings: Sequence[Problem], validated: Validated, location: SheetLocation
) -> None:
    """Replace dates in marked cells with the text as read, because a number typed over a date would become a date."""
    dates = {
        (finding.row, finding.column)
        for finding in findings
        if isinstance(_problem_cell(sheet, finding).value, date | time | timedelta)
    }
    if not dates:
        return
    date_rows = validated.sheet.frame.filter(pl.col("row").is_in([row for row, _ in dates]))
    texts = {line["row"]: line for line in date_rows.iter_rows(named=True)}
    for row, column in dates:
        sheet.cell(row, column).number_format = "General"
        write_text(sheet, row, column, texts[row][location.names[column - 1]])


def _mark_cells(sheet: Worksheet, findings: Sequence[Problem], location: SheetLocation) -> None:
    by_cell: dict[tuple[int, int], list[Problem]] = defaultdict(list)
    for finding in findings:
        by_cell[finding.row, finding.column].append(finding)
    fills = {kind: PatternFill("solid", fgColor=colour) for kind, colour in COLOURS.items()}
    for count, (address, cell_findings) in enumerate(by_cell.items()):
        cell = _problem_cell(sheet, cell_findings[0])
        name = location.names[address[1] - 1]
        cell.fill = fills[PROBLEM if any(finding.kind == PROBLEM for finding in cell_findings) else WARNING]
        if name in known_columns() and name != "amount" and cell.data_type not in {"f", "d"}:
            cell.number_format = "@"  # typed values keep their zeros
        if count < MAX_COMMENTS:
            _add_comment(cell, [finding.message for finding in cell_findings])
    _unhide_problems(sheet, findings)


def _unhide_problems(sheet: Worksheet, findings: Sequence[Problem]) -> None:
    """Show hidden rows and columns that contain a problem, unless being hidden is the problem."""
    defects = [finding for finding in findings if finding.kind == PROBLEM and finding.code not in _SHOWN_IN_SPREADSHEET]
    columns = {finding.column for finding in defects}
    for row in {finding.row for finding in defects}:
        if row in sheet.row_dimensions:
            sheet.row_dimensions[row].hidden = False
    for dimension in sheet.column_dimensions.values():
        if dimension.hidden and any((dimension.min or 0) <= column <= (dimension.max or 0) for column in columns):
            dimension.hidden = False


def _problem_cell(sheet: Worksheet, finding: Problem) -> Cell:
    """Return the cell that shows a finding: in merged cells, the first one, which has the value."""
    cell = sheet.cell(finding.row, finding.column)
    if isinstance(cell, MergedCell):
        merged = next(merged for merged in sheet.merged_cells.ranges if cell.coordinate in merged)
        cell = sheet.cell(merged.min_row, merged.min_col)
    return cell  # type: ignore[return-value]


def _add_comment(cell: Cell, messages: Sequence[str]) -> None:
    our_text = f"{_AUTHOR}:\n" + "\n".join(messages)[:_COMMENT_CHARACTERS]
    sender_text = cell.comment.text if cell.comment is not None else ""
    author = cell.comment.author or _AUTHOR if cell.comment is not None else _AUTHOR
    cell.comment = _build_comment(f"{sender_text}\n\n{our_text}" if sender_text else our_text, author)


def _build_comment(text: str, author: str) -> Comment:
    lines = sum(1 + len(line) // 45 for line in text.split("\n"))
    return Comment(text, author, height=20 + 18 * lines, width=330)
