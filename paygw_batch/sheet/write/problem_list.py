"""The worksheet of problems in an annotated workbook: a line for each, with a link to the cell that shows it.

Needs the extra `excel`: imported only where it is there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from openpyxl.styles import Alignment, Font, PatternFill
from openpyxl.utils import get_column_letter
from openpyxl.workbook import Workbook
from openpyxl.worksheet.hyperlink import Hyperlink
from openpyxl.worksheet.properties import PageSetupProperties
from openpyxl.worksheet.worksheet import Worksheet

from paygw_batch.language import mark, say
from paygw_batch.sheet.columns import PROBLEMS_TITLE
from paygw_batch.sheet.write.table import row_points

PROBLEM, WARNING = mark("problem"), mark("warning")
COLOURS = {PROBLEM: "FFFF9B9B", WARNING: "FFFFE59A"}
"""Of the cells that are marked. By these very shades, marks are known again in a workbook that comes back."""
MOST_LISTED = 50_000
"""A worksheet can hold 65,530 links."""
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
    """A defect or a warning, and the cell that shows it. `heading` is the sender's.

    `sheet_row` is the row of the sender's sheet, where that is not the row of the cell.
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
    """Write a text as text: no value of a sheet becomes a formula here."""
    sheet.cell(row, column, text).data_type = "s"


def add_problems(book: Workbook, sheet: Worksheet, findings: Sequence[Problem]) -> None:
    """Add the worksheet of problems behind all others, and make it the one that a person sees first."""
    problems: Worksheet = book.create_sheet(_free_name(book.sheetnames))
    _show_first(book, problems)
    top = _write_head(problems, sheet.title, findings)
    link = Font(name="Calibri", underline="single", color="FF0563C1")
    wrapped = Alignment(wrap_text=True, horizontal="left", vertical="top")
    fills = {kind: PatternFill("solid", fgColor=colour) for kind, colour in COLOURS.items()}
    widths = [width for _, width in _HEADINGS[1:]]
    quoted = sheet.title.replace("'", "''")
    for row, finding in enumerate(findings[:MOST_LISTED], start=top + 1):
        place = f"{get_column_letter(finding.column)}{finding.row}"
        problems.cell(row, 1, finding.sheet_row or finding.row)
        texts = (place, finding.heading, finding.value, say(finding.kind), finding.message, finding.code)
        for column, text in enumerate(texts, start=2):
            write_text(problems, row, column, text)
        for column in range(1, len(_HEADINGS) + 1):
            problems.cell(row, column).alignment = wrapped
        problems.row_dimensions[row].height = row_points(texts, widths)
        problems.cell(row, 2).hyperlink = Hyperlink(ref="", location=f"'{quoted}'!{place}")
        problems.cell(row, 2).font = link
        problems.cell(row, 5).fill = fills[finding.kind]
    problems.auto_filter.ref = f"A{top}:{get_column_letter(len(_HEADINGS))}{problems.max_row}"


def _write_head(problems: Worksheet, title: str, findings: Sequence[Problem]) -> int:
    """Write how the worksheet is used, and its headings; return their row."""
    sentences = [
        say(PROBLEMS_TITLE),
        say(
            "Mend the red cells of {title!r} (the links in the column Cell lead there), save, and submit "
            "this workbook.",
            title=title,
        ),
        say("This list is never read."),
    ]
    if any(finding.kind == WARNING for finding in findings):
        sentences.append(say("Yellow cells are worth a look; they refuse nothing."))
    if len(findings) > MOST_LISTED:
        sentences.append(
            say(
                "The first {most:,} of {count:,} are listed; the others are coloured all the same.",
                most=MOST_LISTED,
                count=len(findings),
            )
        )
    for row, sentence in enumerate(sentences, start=1):
        write_text(problems, row, 1, sentence)
    problems["A1"].font = Font(name="Calibri", bold=True, size=14)
    top = len(sentences) + 2
    for column, (heading, width) in enumerate(_HEADINGS, start=1):
        problems.cell(top, column, say(heading)).font = Font(name="Calibri", bold=True)
        problems.column_dimensions[get_column_letter(column)].width = width
    problems.freeze_panes = f"A{top + 1}"
    problems.page_setup.orientation = "landscape"
    problems.page_setup.fitToHeight = 0
    problems.sheet_properties.pageSetUpPr = PageSetupProperties(fitToPage=True)
    return top


def _free_name(names: Sequence[str]) -> str:
    taken = {name.casefold() for name in names}
    name = say("Problems")
    candidates = (name, *(f"{name} {number}" for number in range(2, len(names) + 3)))
    return next(candidate for candidate in candidates if candidate.casefold() not in taken)


def _show_first(book: Workbook, problems: Worksheet) -> None:
    """Make `problems` the open worksheet, and the only selected one: typing changes all that are selected."""
    views = [view for other in book.worksheets for view in other.views.sheetView]
    views += [view for other in book.chartsheets for view in other.sheetViews.sheetView]
    for view in views:
        view.tabSelected = False
    book.active = book.index(problems)
    problems.sheet_view.tabSelected = True
