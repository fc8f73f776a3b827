"""The sender's own workbook, annotated: marked where it is wrong, mended in place, read as if nothing were marked."""

import datetime as dt
import io
import os
import re
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openpyxl.cell.rich_text import CellRichText, TextBlock
from openpyxl.cell.text import InlineFont
from openpyxl.comments import Comment
from openpyxl.styles import PatternFill
from openpyxl.worksheet import _writer
from openpyxl.worksheet.table import Table
from openpyxl.worksheet.worksheet import Worksheet

from paygw_batch.countries.rules import Rules
from paygw_batch.errors import OutputError, SheetError
from paygw_batch.sheet.check.mending import CellEdit, Mending, RowLeftOut, mended_sheet
from paygw_batch.sheet.check.validate import validate, warnings_as_defects
from paygw_batch.sheet.read.headings import ReadOptions
from paygw_batch.sheet.read.sheet_file import read_sheet
from paygw_batch.sheet.write import marked_workbook, rejects, workbook_copy
from paygw_batch.sheet.write.rejects import Written, write_marked, write_mendable
from tests.support.long_part import share_of
from tests.support.sheet_values import GOOD, HEADER, codes

RED, YELLOW = "FFFF9B9B", "FFFFE59A"
HEADINGS = [*HEADER.split(","), "Note"]
BAD: list[list[Any]] = [
    [*GOOD.split(","), "fine"],
    ["KE", "A-2", "1,000.00", "KES", "Otieno", "0712345", "0712345678", "=HYPERLINK(1)"],
    ["KE", "A-3", dt.datetime(2026, 1, 12), "KES", None, 254712345678, "+254 712 345 678", None],  # noqa: DTZ001
    ["BJ", "A-4", 900, "XOF", "Afi", "2290197000108", "+2290197000108", None],
]
MENDED = {"C3": "1000.00", "F3": "0712345678", "C4": 1500, "E4": "Jane Doe", "A5": "BN"}

Change = Callable[[openpyxl.Workbook, Worksheet], object]


def workbook(path: Path, rows: list[list[Any]], change: Change | None = None) -> Path:
    """Write a workbook whose texts are texts, whatever they look like."""
    book = openpyxl.Workbook()
    sheet = book.active
    assert isinstance(sheet, Worksheet)
    for number, row in enumerate([HEADINGS, *rows], start=1):
        for at, value in enumerate(row, start=1):
            cell = sheet.cell(number, at, value)
            if isinstance(value, str):
                cell.data_type = "s"
    if change is not None:
        change(book, sheet)
    book.save(path)
    return path


class Desk:
    """Where a sender's workbook is validated, handed back, mended and validated again."""

    def __init__(self, folder: Path, rules: Rules) -> None:
        self.folder = folder
        self.rules = rules

    def annotate(self, source: Path, **options: Any) -> tuple[Written, Path]:
        asked = ReadOptions(**options)
        target = self.folder / "rejects.xlsx"
        return write_mendable(validate(read_sheet(source, asked), self.rules), source, asked, target), target

    def mended(self, source: Path, *edits: CellEdit, left_out: int = 0) -> Path:
        """Write the workbook with the corrections of a person in it, and every defect that is left."""
        sheet = read_sheet(source, ReadOptions())
        out = (RowLeftOut(left_out, "Ada", "2026-11-22"),) if left_out else ()
        validated = validate(mended_sheet(sheet, Mending(sheet.sha256, edits, out)), self.rules)
        target = self.folder / "marked.xlsx"
        write_marked(validated, source, ReadOptions(), target, edits)
        return target

    def codes(self, path: Path, **options: Any) -> list[tuple[int, str]]:
        return codes(validate(read_sheet(path, ReadOptions(**options)), self.rules).defects)


@pytest.fixture
def desk(tmp_path: Path, rules: Rules) -> Desk:
    return Desk(tmp_path, rules)


def mend(path: Path, cells: dict[str, Any]) -> None:
    book = openpyxl.load_workbook(path)
    for at, value in cells.items():
        book.worksheets[0][at].value = value
    book.save(path)


def coloured(path: Path, colour: str) -> set[str]:
    sheet = openpyxl.load_workbook(path).worksheets[0]
    return {cell.coordinate for row in sheet.iter_rows() for cell in row if cell.fill.fgColor.rgb == colour}


def test_marked_workbook_is_clean_once_red_cells_mended(desk: Desk) -> None:
    source = workbook(desk.folder / "bad.xlsx", BAD)
    written, path = desk.annotate(source)
    assert written == Written(is_workbook=True)
    assert coloured(path, RED) == set(MENDED)
    assert desk.codes(path) == desk.codes(source)
    mend(path, MENDED)
    assert desk.codes(path) == []
    assert read_sheet(path, ReadOptions()).frame.drop("row").height == len(BAD)


def test_comments_and_problem_list_explain_and_link_cells(desk: Desk) -> None:
    _, path = desk.annotate(
        workbook(desk.folder / "bad.xlsx", BAD, lambda _, sheet: setattr(sheet, "title", "Jo's pay"))
    )
    book = openpyxl.load_workbook(path)
    assert book["Jo's pay"]["A5"].comment.text == "paygw-batch:\nBenin is written BN at this gateway, not BJ."
    lines = [row for row in book["Problems"].iter_rows() if isinstance(row[0].value, int)]
    assert [(row[0].value, row[1].value, row[6].value) for row in lines] == [
        (3, "C3", "amount.format"),
        (3, "F3", "account_number.format"),
        (4, "C4", "amount.format"),
        (4, "E4", "account_name.missing"),
        (5, "A5", "country.unknown"),
    ]
    link = lines[0][1].hyperlink
    assert link is not None
    assert link.location == "'Jo''s pay'!C3"
    assert lines[0][2].value == "amount"
    assert lines[0][3].value == "1,000.00"
    assert book.active is book["Problems"]
    assert [sheet.sheet_view.tabSelected for sheet in book.worksheets] == [False, True]


def test_new_copy_removes_only_colours_it_added(desk: Desk) -> None:
    def red(_: openpyxl.Workbook, sheet: Worksheet) -> None:
        sheet["H2"].fill = PatternFill("solid", fgColor=RED)

    _, path = desk.annotate(workbook(desk.folder / "bad.xlsx", BAD, red))
    assert coloured(path, RED) == {*MENDED, "H2"}
    path = path.rename(desk.folder / "mended.xlsx")
    mend(path, MENDED | {"A5": "XX"})
    _, again = desk.annotate(path)
    assert coloured(again, RED) == {"A5"}


def test_typed_cells_become_text_and_dates_as_read(desk: Desk) -> None:
    _, path = desk.annotate(workbook(desk.folder / "bad.xlsx", BAD))
    sheet = openpyxl.load_workbook(path).worksheets[0]
    assert sheet["F3"].number_format == "@"
    assert sheet["E4"].number_format == "@"
    assert (sheet["C4"].value, sheet["C4"].data_type, sheet["C4"].number_format) == ("2026-01-12", "s", "General")


def test_marked_copy_adds_no_formula_or_other_change(desk: Desk) -> None:
    bad = [*BAD, ["=1+1", "A-5", "=cmd|' /C calc'!A0", None, None, None, None, "@x"]]
    source = workbook(desk.folder / "bad.xlsx", bad)
    _, path = desk.annotate(source)
    book, before = openpyxl.load_workbook(path), openpyxl.load_workbook(source)
    assert {cell.data_type for sheet in book for row in sheet.iter_rows() for cell in row} <= {"s", "inlineStr", "n"}
    for row, old in zip(book.worksheets[0].iter_rows(), before.worksheets[0].iter_rows(), strict=True):
        for cell, was in zip(row, old, strict=True):
            assert cell.value == was.value or cell.coordinate == "C4"


def test_warning_is_coloured_differently_and_refuses_nothing(desk: Desk) -> None:
    rows = [*BAD, ["KE", "A-9", 50, "KES", "12345", "254712345679", "+254712345679", None]]
    _, path = desk.annotate(workbook(desk.folder / "bad.xlsx", rows))
    assert "E6" in coloured(path, YELLOW)
    mend(path, MENDED)
    assert desk.codes(path) == []


def test_new_copy_replaces_marks_and_keeps_sender_comments(desk: Desk) -> None:
    def decorate(_: openpyxl.Workbook, sheet: Worksheet) -> None:
        sheet["E4"].comment = Comment("ask Joyce", "Peter")
        sheet["C3"].comment = Comment("paygw-batch: refuses this", "Peter")
        sheet["A2"].fill = PatternFill("solid", fgColor="FF00FF00")

    _, first = desk.annotate(workbook(desk.folder / "bad.xlsx", BAD, decorate))
    assert openpyxl.load_workbook(first).worksheets[0]["E4"].comment.text.startswith("ask Joyce\n\npaygw-batch:\n")
    mend(first, {"C3": "1000.00", "E4": "Jane Doe"})
    again = first.rename(desk.folder / "again.xlsx")
    _, second = desk.annotate(again)
    sheet = openpyxl.load_workbook(second).worksheets[0]
    assert coloured(second, RED) == {"F3", "C4", "A5"}
    assert sheet["F3"].comment.text.count("paygw-batch:") == 1
    assert sheet["C3"].comment.text == "paygw-batch: refuses this"
    assert sheet["E4"].comment.text == "ask Joyce"
    assert sheet["A2"].fill.fgColor.rgb == "FF00FF00"
    assert openpyxl.load_workbook(second).sheetnames == ["Sheet", "Problems"]


def test_problem_list_is_never_read_as_payee_sheet(desk: Desk) -> None:
    rows = [["country", "A-5", "amount", None, "x", "y", "z", None], *BAD]
    aliases = {"What is wrong": "amount", "Code": "country", "Value": "amount"}
    written, path = desk.annotate(workbook(desk.folder / "bad.xlsx", rows), aliases=aliases)
    assert written.is_workbook
    mend(path, {"A2": "amount", "C2": "country"})
    assert len(read_sheet(path, ReadOptions(aliases=aliases)).frame) == len(rows)


def test_sender_worksheet_named_problems_is_kept(desk: Desk) -> None:
    source = workbook(desk.folder / "bad.xlsx", BAD, lambda book, _: book.create_sheet("problems").append(["mine"]))
    _, path = desk.annotate(source)
    assert openpyxl.load_workbook(path).sheetnames == ["Sheet", "problems", "Problems 2"]


def test_named_worksheet_is_marked(desk: Desk) -> None:
    def twice(book: openpyxl.Workbook, sheet: Worksheet) -> None:
        book.copy_worksheet(sheet).title = "October"

    source = workbook(desk.folder / "bad.xlsx", BAD, twice)
    _, path = desk.annotate(source, sheet_name="October")
    book = openpyxl.load_workbook(path)
    assert book["October"]["A5"].comment is not None
    assert book["Sheet"]["A5"].comment is None
    assert desk.codes(path, sheet_name="October") == desk.codes(source, sheet_name="October")


def test_hidden_cells_are_shown_only_with_problems(desk: Desk) -> None:
    def hide(_: openpyxl.Workbook, sheet: Worksheet) -> None:
        sheet.row_dimensions[2].hidden = sheet.row_dimensions[3].hidden = True
        sheet.column_dimensions["F"].hidden = sheet.column_dimensions["G"].hidden = True

    _, path = desk.annotate(workbook(desk.folder / "bad.xlsx", BAD, hide))
    sheet = openpyxl.load_workbook(path).worksheets[0]
    assert [sheet.row_dimensions[row].hidden for row in (2, 3)] == [True, False]
    assert [sheet.column_dimensions[column].hidden for column in "FG"] == [False, True]
    assert coloured(path, YELLOW) == {"A2"}


def test_marked_copy_keeps_hidden_row_refused(desk: Desk) -> None:
    def hide(_: openpyxl.Workbook, sheet: Worksheet) -> None:
        sheet.row_dimensions[2].hidden = True

    source = workbook(desk.folder / "bad.xlsx", BAD[:1], hide)
    strict = warnings_as_defects(validate(read_sheet(source, ReadOptions()), desk.rules))
    path = desk.folder / "rejects.xlsx"
    assert write_mendable(strict, source, ReadOptions(), path).is_workbook
    again = warnings_as_defects(validate(read_sheet(path, ReadOptions()), desk.rules))
    assert codes(again.defects) == codes(strict.defects) == [(2, "row.hidden")]


def test_merged_cells_show_problem_in_their_first_cell(desk: Desk) -> None:
    source = workbook(desk.folder / "bad.xlsx", BAD, lambda _, sheet: sheet.merge_cells("D4:E4"))
    _, path = desk.annotate(source)
    sheet = openpyxl.load_workbook(path).worksheets[0]
    assert "account_name is missing" in sheet["D4"].comment.text


def with_values(path: Path, values: dict[str, str]) -> None:
    """Give formulas of the first worksheet their values, as a spreadsheet does when it saves."""
    data = path.read_bytes()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            part = old.read(name)
            for at, value in values.items() if name.endswith("sheet1.xml") else ():
                cell, filled = f'r="{at}"'.encode(), f"<v>{value}</v>".encode()
                head, _, tail = part.partition(cell)
                part = head + cell + tail.replace(b"<v />", filled, 1).replace(b"<v/>", filled, 1)
            new.writestr(name, part)


def test_marked_formulas_need_recalculation_before_payment(desk: Desk) -> None:
    def calculate(_: openpyxl.Workbook, sheet: Worksheet) -> None:
        sheet["C2"] = "=750*2"
        sheet["H2"] = "=C2*2"

    source = workbook(desk.folder / "bad.xlsx", BAD, calculate)
    with_values(source, {"C2": "1500", "H2": "3000"})
    assert (2, "amount.formula") not in desk.codes(source)
    written, path = desk.annotate(source)
    assert written.is_workbook
    assert written.notes[0].startswith("Cells with formulas: 2.")
    assert openpyxl.load_workbook(path).worksheets[0]["C2"].value == "=750*2"
    assert (2, "amount.formula") in desk.codes(path)
    mend(path, MENDED)
    with_values(path, {"C2": "1500", "H2": "3000"})
    assert desk.codes(path) == []


def test_marked_copy_keeps_truncated_number_refused(desk: Desk) -> None:
    rows: list[list[Any]] = [["KE", "A-1", 50, "KES", "Jane", 12345678901234567890, "+254712345678", None]]
    source = workbook(desk.folder / "bad.xlsx", rows)
    assert (2, "account_number.digits") in desk.codes(source)
    written, path = desk.annotate(source)
    assert written.is_workbook
    assert desk.codes(path) == desk.codes(source)


def test_problems_beyond_comment_and_list_limits_are_coloured(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marked_workbook, "MAX_COMMENTS", 2)
    monkeypatch.setattr(marked_workbook, "MAX_LISTED", 3)
    _, path = desk.annotate(workbook(desk.folder / "bad.xlsx", BAD))
    assert coloured(path, RED) == set(MENDED)
    book = openpyxl.load_workbook(path)
    assert sum(cell.comment is not None for row in book.worksheets[0].iter_rows() for cell in row) == 2
    said = [row[0].value for row in book["Problems"].iter_rows()]
    assert "The first 3 of 5 are listed; the others are coloured too." in said
    assert sum(isinstance(value, int) for value in said) == 3


def test_marked_copy_keeps_rich_text_and_tables(desk: Desk) -> None:
    def decorate(_: openpyxl.Workbook, sheet: Worksheet) -> None:
        sheet["H2"].value = CellRichText("see ", TextBlock(InlineFont(b=True), "HR"), " first")
        sheet.add_table(Table(displayName="Pay", ref="A1:H90000"))

    source = workbook(desk.folder / "bad.xlsx", BAD, decorate)
    written, path = desk.annotate(source)
    assert written == Written(is_workbook=True)
    sheet = openpyxl.load_workbook(path, rich_text=True).worksheets[0]
    assert sheet["H2"].value == CellRichText("see ", TextBlock(InlineFont(b=True), "HR"), " first")
    assert list(sheet.tables) == ["Pay"]


# What cannot be annotated comes back as a table


def huge_merge(_: openpyxl.Workbook, sheet: Worksheet) -> None:
    sheet.merged_cells.add("J1:XFD1048576")


def with_part(path: Path, name: str, text: str) -> None:
    with zipfile.ZipFile(path, "a") as parts:
        parts.writestr(name, text)


def test_workbook_above_size_bound_returns_as_table(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workbook_copy, "MAX_UNPACKED_BYTES", 1000)
    source = workbook(desk.folder / "bad.xlsx", BAD)
    written, path = desk.annotate(source)
    assert not written.is_workbook
    assert "unpacked" in written.notes[0]
    assert openpyxl.load_workbook(path).sheetnames == ["Sheet1"]
    assert [code for _, code in desk.codes(path)] == [code for _, code in desk.codes(source)]


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("xl/theme/more.xml", '<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>', "document type"),
        ("xl/more.xml", "<x><y></x>", "damaged"),
        ("xl/worksheets/sheet9.xml", '<x><hyperlink ref="A1:XFD1048576"/></x>', "span too many cells"),
        ("xl/worksheets/sheet9.xml", '<x><mergeCell ref="A:C"/></x>', "span too many cells"),
        ("xl/worksheets/sheet9.xml", '<x><mergeCell ref="nonsense"/></x>', "damaged"),
    ],
)
def test_workbook_with_hostile_parts_is_not_annotated(desk: Desk, name: str, text: str, why: str) -> None:
    source = workbook(desk.folder / "bad.xlsx", BAD)
    with_part(source, name, text)
    written, _ = desk.annotate(source)
    assert not written.is_workbook
    assert why in written.notes[0]


def test_workbook_with_huge_merged_cells_is_not_annotated(desk: Desk) -> None:
    written, _ = desk.annotate(workbook(desk.folder / "bad.xlsx", BAD, huge_merge))
    assert "span too many cells" in written.notes[0]


def without(path: Path, pattern: str, *, part: str) -> None:
    """Take out of one part of a workbook what a pattern matches."""
    data = path.read_bytes()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            text = old.read(name)
            new.writestr(name, re.sub(pattern.encode(), b"", text) if name == part else text)


def test_a_table_without_columns_is_not_written_again(desk: Desk) -> None:
    def add(_: openpyxl.Workbook, sheet: Worksheet) -> None:
        sheet.add_table(Table(displayName="Pay", ref="A1:H5"))

    source = workbook(desk.folder / "bad.xlsx", BAD, add)
    without(source, "<tableColumns.*</tableColumns>", part="xl/tables/table1.xml")
    written, _ = desk.annotate(source)
    assert "cannot be copied (ValueError)" in written.notes[0]


def test_workbook_unreadable_by_library_returns_as_table(desk: Desk) -> None:
    source = workbook(desk.folder / "bad.xlsx", BAD)
    without(source, "<cellStyleXfs.*</cellStyleXfs>", part="xl/styles.xml")
    written, path = desk.annotate(source)
    assert not written.is_workbook
    assert len(desk.codes(path)) == len(desk.codes(source))


def test_marked_copy_is_withheld_when_reading_differently(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt(book: openpyxl.Workbook) -> bytes:
        book.worksheets[0]["C2"].value = 9999
        return workbook_copy.saved(book)

    monkeypatch.setattr(marked_workbook, "saved", spoilt)
    written, _ = desk.annotate(workbook(desk.folder / "bad.xlsx", BAD))
    assert not written.is_workbook
    assert "would read differently" in written.notes[0]


def test_parts_missing_from_copy_are_named(desk: Desk) -> None:
    source = workbook(desk.folder / "bad.xlsx", BAD)
    with_part(source, "xl/media/image1.png", "picture")
    written, _ = desk.annotate(source)
    assert written == Written(is_workbook=True, notes=("The copy does not have the workbook's pictures.",))


# Files


def test_marked_copy_is_private_without_temporary_file(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    source = workbook(desk.folder / "bad.xlsx", BAD)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a payee's data would be in a temporary file")

    monkeypatch.setattr(_writer, "create_temporary_file", refuse)
    written, path = desk.annotate(source)
    assert written.is_workbook
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(os.listdir(desk.folder)) == ["bad.xlsx", "rejects.xlsx"]  # noqa: PTH208 (hidden ones too)


def test_the_sheet_itself_is_never_overwritten(desk: Desk) -> None:
    source = workbook(desk.folder / "rejects.xlsx", BAD)
    before = source.read_bytes()
    with pytest.raises(OutputError, match="is the sheet itself"):
        desk.annotate(source)
    assert source.read_bytes() == before


def test_changed_sheet_is_not_annotated(desk: Desk) -> None:
    source = workbook(desk.folder / "bad.xlsx", BAD)
    validated = validate(read_sheet(source, ReadOptions()), desk.rules)
    workbook(source, BAD[1:])
    with pytest.raises(SheetError, match="changed since it was read"):
        write_mendable(validated, source, ReadOptions(), desk.folder / "rejects.xlsx")
    assert not (desk.folder / "rejects.xlsx").exists()


@pytest.mark.parametrize(
    ("source", "target"), [("bad.xlsx", "r.csv"), ("bad.csv", "r.xlsx"), ("bad.xlsx", "r.parquet")]
)
def test_refused_rows_become_table_between_other_formats(desk: Desk, source: str, target: str) -> None:
    path = desk.folder / source
    if source.endswith(".csv"):
        path.write_text(f"{HEADER}\n{GOOD.replace('1500.50', '0')}\n")
    else:
        workbook(path, BAD)
    validated = validate(read_sheet(path, ReadOptions()), desk.rules)
    assert write_mendable(validated, path, ReadOptions(), desk.folder / target) == Written(is_workbook=False)
    again = read_sheet(desk.folder / target, ReadOptions())
    assert again.frame.height == (~validated.rows["valid"]).sum()


BAD_CSV = f"""{HEADER},Note
{GOOD},fine
{GOOD.replace("A-1", "A-2").replace("1500.50", '"1,000.00"').replace("254712345678", "0722345")},=1+1
{GOOD.replace("A-1", "A-3").replace("KES", "USD")},plain
"""


def rejected(desk: Desk, content: str = BAD_CSV) -> Path:
    source, path = desk.folder / "bad.csv", desk.folder / "r.xlsx"
    source.write_text(content)
    validated = validate(read_sheet(source, ReadOptions()), desk.rules)
    assert write_mendable(validated, source, ReadOptions(), path) == Written(is_workbook=False)
    return path


def test_refused_csv_rows_are_mended_in_marked_workbook(desk: Desk) -> None:
    path = rejected(desk)
    sheet, problems = openpyxl.load_workbook(path).worksheets
    headings = [str(cell.value) for cell in sheet[1]]
    red = {cell.coordinate: cell for row in sheet.iter_rows() for cell in row if cell.fill.fgColor.rgb == RED}
    heading_of = {place: headings[(cell.column or 0) - 1] for place, cell in red.items()}
    marked = {(heading_of[place], cell.row) for place, cell in red.items()}
    assert marked >= {("amount", 2), ("account_number", 2), ("currency", 3)}
    assert all(cell.comment is not None for cell in red.values())
    assert {sheet.cell(3, column).number_format for column in range(2, len(headings) + 1)} == {"@"}
    assert all(cell.data_type != "f" for row in sheet.iter_rows() for cell in row)
    listed = [
        (line[0].value, line[1].hyperlink.location, line[2].value)
        for line in problems.iter_rows()
        if line[1].hyperlink is not None
    ]
    at = f"'Refused rows'!{next(place for place in red if red[place].row == 3)}"
    assert (4, at, "currency") in listed, "the row of the sender's sheet, and the cell of this workbook"
    mend(
        path,
        {
            place: {"amount": "1000", "currency": "KES", "phone": "+254722345678"}.get(heading, "254722345678")
            for place, heading in heading_of.items()
        },
    )
    assert desk.codes(path) == []
    assert read_sheet(path, ReadOptions()).frame["Note"].to_list() == ["=1+1", "plain"]


def test_whole_row_defect_marks_no_added_columns(desk: Desk) -> None:
    path = rejected(desk, f"{HEADER}\n{GOOD.replace('1500.50', '0')}\n{GOOD},one,field,too,many\n")
    sheet = openpyxl.load_workbook(path).worksheets[0]
    red = {cell.column for row in sheet.iter_rows() for cell in row if cell.fill.fgColor.rgb == RED}
    assert not red & {1, 2}


def test_many_refused_rows_become_table_without_marks(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejects, "MAX_MARKED_CELLS", 10)
    source, path = desk.folder / "bad.csv", desk.folder / "r.xlsx"
    source.write_text(BAD_CSV)
    written = write_mendable(validate(read_sheet(source, ReadOptions()), desk.rules), source, ReadOptions(), path)
    assert written.notes == ("r.xlsx has no marks: it has more than 10 cells.",)
    assert read_sheet(path, ReadOptions()).frame.height == 2


# No T: a row for TZ needs columns that this sheet has not.
_CELL = st.one_of(
    st.none(),
    st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], exclude_characters="Tt"), max_size=12),
    st.sampled_from(["KE", "GH", "=A1", "#N/A", "_x0041_", "'07", "1e3", " x ", "TOTAL"]),
    st.integers(-10, 10**20),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.booleans(),
    st.dates(dt.date(1900, 3, 1), dt.date(2100, 1, 1)),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=share_of(60))
@given(rows=st.lists(st.lists(_CELL, min_size=8, max_size=8), min_size=1, max_size=4))
def test_unmended_copy_reads_like_sheet(desk: Desk, rows: list[list[Any]]) -> None:
    source = workbook(desk.folder / "bad.xlsx", [*rows, BAD[3]])
    before = read_sheet(source, ReadOptions())
    written, path = desk.annotate(source)
    again = read_sheet(path, ReadOptions())
    if written.is_workbook:
        assert again.frame.equals(before.frame)
        assert desk.codes(path) == desk.codes(source)
    else:
        assert "would read differently" in written.notes[0]
        assert again.frame.height == len({row for row, _ in desk.codes(source)})


# With the corrections of a person in it


def edit(row: int, column: str, was: str | None, now: str | None) -> CellEdit:
    return CellEdit(row, column, was, now, "Ada", "2026-11-22")


def test_mended_cells_become_text_and_others_stay_red(desk: Desk) -> None:
    source = workbook(desk.folder / "bad.xlsx", BAD)
    edits = (
        edit(3, "amount", "1,000.00", "1000.00"),
        edit(4, "amount", "2026-01-12", "=1+1"),
        edit(4, "account_name", None, "Jane"),
        edit(5, "phone", "+2290197000108", None),
    )
    path = desk.mended(source, *edits)
    sheet = openpyxl.load_workbook(path).worksheets[0]
    assert (sheet["C3"].value, sheet["C3"].data_type) == ("1000.00", "s")
    assert (sheet["C4"].value, sheet["C4"].data_type) == ("=1+1", "s")  # what was typed runs nowhere
    assert (sheet["E4"].value, sheet["G5"].value) == ("Jane", None)
    assert "C3" not in coloured(path, RED)
    assert "C4" in coloured(path, RED)
    assert sheet["H2"].value == "fine"
    first, again = read_sheet(source, ReadOptions()), read_sheet(path, ReadOptions())
    assert again.frame.equals(mended_sheet(first, Mending(first.sha256, edits)).frame)


def test_left_out_row_is_marked_in_copy(desk: Desk) -> None:
    path = desk.mended(workbook(desk.folder / "bad.xlsx", BAD), left_out=3)
    sheet = openpyxl.load_workbook(path).worksheets[0]
    assert "Left out by Ada" in sheet["A3"].comment.text
    assert sheet["B3"].value == "A-2"
    assert sheet.title == "Sheet"  # the sender's own workbook, and no table of rows


def test_unwritable_mended_cell_gives_table_of_all_rows(desk: Desk) -> None:
    def merge(_: openpyxl.Workbook, sheet: Worksheet) -> None:
        sheet.merge_cells("H2:H3")

    source = workbook(desk.folder / "bad.xlsx", BAD, merge)
    path = desk.mended(source, edit(3, "Note", None, "mine"))
    book = openpyxl.load_workbook(path)
    assert book.sheetnames == ["Payees", "Problems"]
    assert [cell.value for cell in book["Payees"]["A"]] == ["row", 2, 3, 4, 5]
    assert book["Payees"]["J3"].value == "mine"


def test_sheet_of_many_cells_has_no_marked_workbook(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejects, "MAX_MARKED_CELLS", 5)
    source = desk.folder / "good.csv"
    source.write_text(f"{HEADER}\n{GOOD}\n")
    with pytest.raises(OutputError, match="There is no marked workbook"):
        desk.mended(source)
    assert not (desk.folder / "marked.xlsx").exists()
