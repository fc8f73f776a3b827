"""The annotated copy of a sender's workbook: errors are marked, corrected in place, and read like the original."""

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
from paygw_batch.sheet.check.corrections import CellEdit, Corrections, RowLeftOut, apply_corrections
from paygw_batch.sheet.check.validate import validate, warnings_as_defects
from paygw_batch.sheet.read.headings import ReadOptions
from paygw_batch.sheet.read.sheet_file import read_sheet
from paygw_batch.sheet.write import marked_workbook, rejects, workbook_copy
from paygw_batch.sheet.write.rejects import RejectsFile, write_marked_workbook, write_rejects
from tests.support.long_part import example_count
from tests.support.sheet_values import GOOD, HEADER, codes

RED, YELLOW = "FFFF9B9B", "FFFFE59A"
HEADINGS = [*HEADER.split(","), "Note"]
BAD: list[list[Any]] = [
    [*GOOD.split(","), "fine"],
    ["KE", "A-2", "1,000.00", "KES", "Otieno", "0712345", "0712345678", "=HYPERLINK(1)"],
    ["KE", "A-3", dt.datetime(2026, 1, 12), "KES", None, 254712345678, "+254 712 345 678", None],  # noqa: DTZ001
    ["BJ", "A-4", 900, "XOF", "Afi", "2290197000108", "+2290197000108", None],
]
CORRECTED_CELLS = {"C3": "1000.00", "F3": "0712345678", "C4": 1500, "E4": "Jane Doe", "A5": "BN"}

Change = Callable[[openpyxl.Workbook, Worksheet], object]


class Annotator:
    """Annotates the workbook `bad.xlsx` of a folder."""

    def __init__(self, folder: Path, rules: Rules) -> None:
        self.folder = folder
        self.rules = rules
        self.source = folder / "bad.xlsx"

    def write(self, rows: list[list[Any]] = BAD, change: Change | None = None) -> Path:
        """Write the sender's workbook. Its strings are text cells, even if they look like formulas."""
        book = openpyxl.Workbook()
        sheet = book.worksheets[0]
        for number, row in enumerate([HEADINGS, *rows], start=1):
            for at, value in enumerate(row, start=1):
                cell = sheet.cell(number, at, value)
                if isinstance(value, str):
                    cell.data_type = "s"
        if change is not None:
            change(book, sheet)
        book.save(self.source)
        return self.source

    def annotate(self, **options: Any) -> tuple[RejectsFile, Path]:
        target, read_options = self.folder / "rejects.xlsx", ReadOptions(**options)
        validated = validate(read_sheet(self.source, read_options), self.rules)
        return write_rejects(validated, self.source, read_options, target), target

    def annotate_rows(self, rows: list[list[Any]] = BAD, change: Change | None = None) -> Path:
        """Return the annotated copy of a workbook with these rows."""
        self.write(rows, change)
        written, path = self.annotate()
        assert written.is_workbook, written.notes
        return path

    def write_corrected(self, *edits: CellEdit, left_out: int = 0, name: str = "bad.xlsx") -> Path:
        """Write the sheet with a person's corrections, and the remaining defects marked."""
        source, target = self.folder / name, self.folder / "marked.xlsx"
        sheet = read_sheet(source, ReadOptions())
        out = (RowLeftOut(left_out, "Ada", "2026-11-22"),) if left_out else ()
        validated = validate(apply_corrections(sheet, Corrections(sheet.sha256, edits, out)), self.rules)
        write_marked_workbook(validated, source, ReadOptions(), target, edits)
        return target

    def codes(self, path: Path | None = None, **options: Any) -> list[tuple[int, str]]:
        """Return the defects of a sheet, or of the sender's workbook."""
        return codes(validate(read_sheet(path or self.source, ReadOptions(**options)), self.rules).defects)


@pytest.fixture
def annotator(tmp_path: Path, rules: Rules) -> Annotator:
    return Annotator(tmp_path, rules)


def set_cells(path: Path, cells: dict[str, Any]) -> None:
    book = openpyxl.load_workbook(path)
    for at, value in cells.items():
        book.worksheets[0][at].value = value
    book.save(path)


def coloured_cells(path: Path, colour: str) -> set[str]:
    sheet = openpyxl.load_workbook(path).worksheets[0]
    return {cell.coordinate for row in sheet.iter_rows() for cell in row if cell.fill.fgColor.rgb == colour}


def test_marked_workbook_is_clean_after_correcting_red_cells(annotator: Annotator) -> None:
    annotator.write()
    written, path = annotator.annotate()
    assert written == RejectsFile(is_workbook=True)
    assert coloured_cells(path, RED) == set(CORRECTED_CELLS)
    assert annotator.codes(path) == annotator.codes()
    sheet = openpyxl.load_workbook(path).worksheets[0]
    assert [sheet[place].number_format for place in ("F3", "E4", "C4")] == ["@", "@", "General"]
    assert (sheet["C4"].value, sheet["C4"].data_type) == ("2026-01-12", "s")
    set_cells(path, CORRECTED_CELLS)
    assert annotator.codes(path) == []
    assert read_sheet(path, ReadOptions()).frame.drop("row").height == len(BAD)


def test_comments_and_problem_list_explain_and_link_cells(annotator: Annotator) -> None:
    path = annotator.annotate_rows(change=lambda _, sheet: setattr(sheet, "title", "Jo's pay"))
    book = openpyxl.load_workbook(path)
    assert book["Jo's pay"]["A5"].comment.text == "paygw-batch:\nThe gateway's code for Benin is BN, not BJ."
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
    assert (link.location, lines[0][2].value, lines[0][3].value) == ("'Jo''s pay'!C3", "amount", "1,000.00")
    assert book.active is book["Problems"]
    assert [sheet.sheet_view.tabSelected for sheet in book.worksheets] == [False, True]


def test_marked_copy_preserves_cell_values(annotator: Annotator) -> None:
    bad = [*BAD, ["=1+1", "A-5", "=cmd|' /C calc'!A0", None, None, None, None, "@x"]]
    book, before = (openpyxl.load_workbook(path) for path in (annotator.annotate_rows(bad), annotator.source))
    assert {cell.data_type for sheet in book for row in sheet.iter_rows() for cell in row} <= {"s", "inlineStr", "n"}
    for row, old in zip(book.worksheets[0].iter_rows(), before.worksheets[0].iter_rows(), strict=True):
        for cell, was in zip(row, old, strict=True):
            assert cell.value == was.value or cell.coordinate == "C4"


def test_warning_has_own_colour_and_refuses_no_row(annotator: Annotator) -> None:
    path = annotator.annotate_rows([*BAD, ["KE", "A-9", 50, "KES", "12345", "254712345679", "+254712345679", None]])
    assert "E6" in coloured_cells(path, YELLOW)
    set_cells(path, CORRECTED_CELLS)
    assert annotator.codes(path) == []


def test_new_marked_copy_keeps_sender_comments(annotator: Annotator) -> None:
    def decorate(_: openpyxl.Workbook, sheet: Worksheet) -> None:
        sheet["E4"].comment = Comment("ask Joyce", "Peter")
        sheet["C3"].comment = Comment("paygw-batch: refuses this", "Peter")
        sheet["A2"].fill = PatternFill("solid", fgColor="FF00FF00")

    first = annotator.annotate_rows(change=decorate)
    assert openpyxl.load_workbook(first).worksheets[0]["E4"].comment.text.startswith("ask Joyce\n\npaygw-batch:\n")
    set_cells(first, {"C3": "1000.00", "E4": "Jane Doe"})
    first.rename(annotator.source)
    _, second = annotator.annotate()
    sheet = openpyxl.load_workbook(second).worksheets[0]
    assert coloured_cells(second, RED) == {"F3", "C4", "A5"}
    assert sheet["F3"].comment.text.count("paygw-batch:") == 1
    assert sheet["C3"].comment.text == "paygw-batch: refuses this"
    assert sheet["E4"].comment.text == "ask Joyce"
    assert sheet["A2"].fill.fgColor.rgb == "FF00FF00"
    assert openpyxl.load_workbook(second).sheetnames == ["Sheet", "Problems"]


def test_problem_list_is_never_read_as_payee_sheet(annotator: Annotator) -> None:
    rows = [["country", "A-5", "amount", None, "x", "y", "z", None], *BAD]
    aliases = {"What is wrong": "amount", "Code": "country", "Value": "amount"}
    annotator.write(rows)
    written, path = annotator.annotate(aliases=aliases)
    assert written.is_workbook
    set_cells(path, {"A2": "amount", "C2": "country"})
    assert len(read_sheet(path, ReadOptions(aliases=aliases)).frame) == len(rows)


def test_copy_marks_only_named_worksheet(annotator: Annotator) -> None:
    path = annotator.annotate_rows(change=lambda book, _: book.create_sheet("problems").append(["mine"]))
    assert openpyxl.load_workbook(path).sheetnames == ["Sheet", "problems", "Problems 2"]
    annotator.write(change=lambda book, sheet: setattr(book.copy_worksheet(sheet), "title", "October"))
    _, path = annotator.annotate(sheet_name="October")
    book = openpyxl.load_workbook(path)
    assert book["October"]["A5"].comment is not None
    assert book["Sheet"]["A5"].comment is None
    assert annotator.codes(path, sheet_name="October") == annotator.codes(sheet_name="October")


def test_hidden_or_merged_cells_show_problems(annotator: Annotator) -> None:
    def hide(_: openpyxl.Workbook, sheet: Worksheet) -> None:
        sheet.row_dimensions[2].hidden = sheet.row_dimensions[3].hidden = True
        sheet.column_dimensions["F"].hidden = sheet.column_dimensions["G"].hidden = True

    path = annotator.annotate_rows(change=hide)
    sheet = openpyxl.load_workbook(path).worksheets[0]
    assert [sheet.row_dimensions[row].hidden for row in (2, 3)] == [True, False]
    assert [sheet.column_dimensions[column].hidden for column in "FG"] == [False, True]
    assert coloured_cells(path, YELLOW) == {"A2"}
    path = annotator.annotate_rows(change=lambda _, sheet: sheet.merge_cells("D4:E4"))
    sheet = openpyxl.load_workbook(path).worksheets[0]
    assert "account_name is missing" in sheet["D4"].comment.text


def test_marked_copy_keeps_doubtful_row_refused(annotator: Annotator) -> None:
    path = annotator.annotate_rows([["KE", "A-1", 50, "KES", "Jane", 12345678901234567890, "+254712345678", None]])
    assert (2, "account_number.digits") in annotator.codes(path) == annotator.codes()
    source = annotator.write(BAD[:1], lambda _, sheet: setattr(sheet.row_dimensions[2], "hidden", True))
    strict = warnings_as_defects(validate(read_sheet(source, ReadOptions()), annotator.rules))
    path = annotator.folder / "rejects.xlsx"
    assert write_rejects(strict, source, ReadOptions(), path).is_workbook
    again = warnings_as_defects(validate(read_sheet(path, ReadOptions()), annotator.rules))
    assert codes(again.defects) == codes(strict.defects) == [(2, "row.hidden")]


def replace_in_part(path: Path, part: str, replace: Callable[[bytes], bytes]) -> None:
    data = path.read_bytes()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            new.writestr(name, replace(old.read(name)) if name == part else old.read(name))


def set_formula_values(path: Path, values: dict[str, str]) -> None:
    """Set the values of formulas, as a spreadsheet does when it saves a workbook."""

    def fill(content: bytes) -> bytes:
        for at, value in values.items():
            head, cell, tail = content.partition(f'r="{at}"'.encode())
            content = head + cell + re.sub(rb"<v ?/>", f"<v>{value}</v>".encode(), tail, count=1)
        return content

    replace_in_part(path, "xl/worksheets/sheet1.xml", fill)


def test_marked_formulas_need_recalculation_before_payment(annotator: Annotator) -> None:
    def calculate(_: openpyxl.Workbook, sheet: Worksheet) -> None:
        sheet["C2"] = "=750*2"
        sheet["H2"] = "=C2*2"

    set_formula_values(annotator.write(change=calculate), {"C2": "1500", "H2": "3000"})
    assert (2, "amount.formula") not in annotator.codes()
    written, path = annotator.annotate()
    assert written.is_workbook
    assert written.notes[0].startswith("Cells with formulas: 2.")
    assert openpyxl.load_workbook(path).worksheets[0]["C2"].value == "=750*2"
    assert (2, "amount.formula") in annotator.codes(path)
    set_cells(path, CORRECTED_CELLS)
    set_formula_values(path, {"C2": "1500", "H2": "3000"})
    assert annotator.codes(path) == []


def test_unlisted_problems_are_coloured(annotator: Annotator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marked_workbook, "MAX_COMMENTS", 2)
    monkeypatch.setattr(marked_workbook, "MAX_LISTED", 3)
    path = annotator.annotate_rows()
    assert coloured_cells(path, RED) == set(CORRECTED_CELLS)
    book = openpyxl.load_workbook(path)
    assert sum(cell.comment is not None for row in book.worksheets[0].iter_rows() for cell in row) == 2
    first_column = [row[0].value for row in book["Problems"].iter_rows()]
    assert "Only the first 3 of 5 problems are listed, but the cells of all of them are coloured." in first_column
    assert sum(isinstance(value, int) for value in first_column) == 3


def test_copy_keeps_rich_text_and_lists_losses(annotator: Annotator) -> None:
    text = CellRichText("see ", TextBlock(InlineFont(b=True), "HR"), " first")

    def decorate(_: openpyxl.Workbook, sheet: Worksheet) -> None:
        sheet["H2"].value = text
        sheet.add_table(Table(displayName="Pay", ref="A1:H90000"))

    add_part(annotator.write(change=decorate), "xl/media/image1.png", "picture")
    written, path = annotator.annotate()
    assert written == RejectsFile(is_workbook=True, notes=("The copy does not have the workbook's pictures.",))
    sheet = openpyxl.load_workbook(path, rich_text=True).worksheets[0]
    assert sheet["H2"].value == text
    assert list(sheet.tables) == ["Pay"]


# Workbooks that cannot be annotated become tables
def add_part(path: Path, name: str, text: str) -> None:
    with zipfile.ZipFile(path, "a") as parts:
        parts.writestr(name, text)


def test_oversized_workbook_is_returned_as_table(annotator: Annotator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workbook_copy, "MAX_UNPACKED_BYTES", 1000)
    annotator.write()
    written, path = annotator.annotate()
    assert not written.is_workbook
    assert "unpacked" in written.notes[0]
    assert openpyxl.load_workbook(path).sheetnames == ["Sheet1"]
    assert [code for _, code in annotator.codes(path)] == [code for _, code in annotator.codes()]


MORE = "xl/worksheets/sheet9.xml"


def remove_elements(part: str, name: str) -> Callable[[Path], None]:
    pattern = f"<{name}.*</{name}>".encode()
    return lambda path: replace_in_part(path, part, lambda xml: re.sub(pattern, b"", xml))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda it: add_part(it, "xl/theme/more.xml", '<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>'), "document type"),
        (lambda it: add_part(it, "xl/more.xml", "<x><y></x>"), "damaged"),
        (lambda it: add_part(it, MORE, '<x><hyperlink ref="A1:XFD1048576"/></x>'), "span too many cells"),
        (lambda it: add_part(it, MORE, '<x><mergeCell ref="A:C"/></x>'), "span too many cells"),
        (lambda it: add_part(it, MORE, '<x><mergeCell ref="nonsense"/></x>'), "damaged"),
        (remove_elements("xl/tables/table1.xml", "tableColumns"), "cannot be copied (ValueError)"),
        (remove_elements("xl/styles.xml", "cellStyleXfs"), "cannot be copied"),
    ],
)
def test_workbook_of_hostile_parts_becomes_table(annotator: Annotator, spoil: Callable[[Path], None], why: str) -> None:
    spoil(annotator.write(change=lambda _, sheet: sheet.add_table(Table(displayName="Pay", ref="A1:H5"))))
    written, path = annotator.annotate()
    assert not written.is_workbook
    assert why in written.notes[0]
    assert len(annotator.codes(path)) == len(annotator.codes())


def test_unfaithful_copy_is_discarded(annotator: Annotator, monkeypatch: pytest.MonkeyPatch) -> None:
    def save_changed(book: openpyxl.Workbook) -> bytes:
        book.worksheets[0]["C2"].value = 9999
        return workbook_copy.save_workbook(book)

    monkeypatch.setattr(marked_workbook, "save_workbook", save_changed)
    annotator.write()
    written, _ = annotator.annotate()
    assert not written.is_workbook
    assert "would be read differently" in written.notes[0]


def test_marked_copy_uses_no_temporary_file(annotator: Annotator, monkeypatch: pytest.MonkeyPatch) -> None:
    annotator.write()  # a payee's data must not be in a temporary file
    monkeypatch.setattr(_writer, "create_temporary_file", lambda *_, **__: pytest.fail("a temporary file"))
    written, path = annotator.annotate()
    assert written.is_workbook
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(os.listdir(annotator.folder)) == ["bad.xlsx", "rejects.xlsx"]  # noqa: PTH208 (hidden ones too)


def test_own_path_or_changed_sheet_is_refused(annotator: Annotator) -> None:
    source = annotator.write()
    before = source.read_bytes()
    validated = validate(read_sheet(source, ReadOptions()), annotator.rules)
    with pytest.raises(OutputError, match="is the sheet itself"):
        write_rejects(validated, source, ReadOptions(), source)
    assert source.read_bytes() == before
    annotator.write(BAD[1:])
    with pytest.raises(SheetError, match="changed since it was read"):
        write_rejects(validated, source, ReadOptions(), annotator.folder / "changed.xlsx")
    assert not (annotator.folder / "changed.xlsx").exists()


@pytest.mark.parametrize(("source", "copy"), [("bad.xlsx", "r.csv"), ("bad.csv", "r.xlsx"), ("bad.xlsx", "r.parquet")])
def test_refused_rows_of_other_formats_become_table(annotator: Annotator, source: str, copy: str) -> None:
    path = annotator.folder / source
    if source.endswith(".csv"):
        path.write_text(f"{HEADER}\n{GOOD.replace('1500.50', '0')}\n")
    else:
        annotator.write()
    validated = validate(read_sheet(path, ReadOptions()), annotator.rules)
    assert write_rejects(validated, path, ReadOptions(), annotator.folder / copy) == RejectsFile(is_workbook=False)
    again = read_sheet(annotator.folder / copy, ReadOptions())
    assert again.frame.height == (~validated.rows["valid"]).sum()


BAD_CSV = f"""{HEADER},Note
{GOOD},fine
{GOOD.replace("A-1", "A-2").replace("1500.50", '"1,000.00"').replace("254712345678", "0722345")},=1+1
{GOOD.replace("A-1", "A-3").replace("KES", "USD")},plain
"""


def write_bad_rejects(annotator: Annotator, content: str = BAD_CSV) -> Path:
    source, path = annotator.folder / "bad.csv", annotator.folder / "r.xlsx"
    source.write_text(content)
    validated = validate(read_sheet(source, ReadOptions()), annotator.rules)
    assert write_rejects(validated, source, ReadOptions(), path) == RejectsFile(is_workbook=False)
    return path


def test_refused_csv_rows_are_corrected_in_marked_workbook(annotator: Annotator) -> None:
    path = write_bad_rejects(annotator)
    sheet, problems = openpyxl.load_workbook(path).worksheets
    headings = [str(cell.value) for cell in sheet[1]]
    colour_red = {cell.coordinate: cell for row in sheet.iter_rows() for cell in row if cell.fill.fgColor.rgb == RED}
    heading_of = {place: headings[(cell.column or 0) - 1] for place, cell in colour_red.items()}
    marked = {(heading_of[place], cell.row) for place, cell in colour_red.items()}
    assert marked >= {("amount", 2), ("account_number", 2), ("currency", 3)}
    assert all(cell.comment is not None for cell in colour_red.values())
    assert {sheet.cell(3, column).number_format for column in range(2, len(headings) + 1)} == {"@"}
    assert all(cell.data_type != "f" for row in sheet.iter_rows() for cell in row)
    listed = [(at.value, to.hyperlink.location, key.value) for at, to, key, *_ in problems.iter_rows() if to.hyperlink]
    at = f"'Refused rows'!{next(place for place in colour_red if colour_red[place].row == 3)}"
    assert (4, at, "currency") in listed, "the row of the sender's sheet, and the cell of this workbook"
    typed = {"amount": "1000", "currency": "KES", "phone": "+254722345678"}
    set_cells(path, {place: typed.get(heading, "254722345678") for place, heading in heading_of.items()})
    assert annotator.codes(path) == []
    assert read_sheet(path, ReadOptions()).frame["Note"].to_list() == ["=1+1", "plain"]
    path = write_bad_rejects(annotator, f"{HEADER}\n{GOOD.replace('1500.50', '0')}\n{GOOD},one,field,too,many\n")
    sheet = openpyxl.load_workbook(path).worksheets[0]
    assert not {cell.column for row in sheet.iter_rows() for cell in row if cell.fill.fgColor.rgb == RED} & {1, 2}


def test_sheet_of_many_cells_gets_no_marks(annotator: Annotator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejects, "MAX_MARKED_CELLS", 10)
    source, path = annotator.folder / "bad.csv", annotator.folder / "r.xlsx"
    source.write_text(BAD_CSV)
    written = write_rejects(validate(read_sheet(source, ReadOptions()), annotator.rules), source, ReadOptions(), path)
    assert written.notes == ("r.xlsx was not marked, because it has more than 10 cells.",)
    assert read_sheet(path, ReadOptions()).frame.height == 2
    monkeypatch.setattr(rejects, "MAX_MARKED_CELLS", 5)
    (annotator.folder / "good.csv").write_text(f"{HEADER}\n{GOOD}\n")
    with pytest.raises(OutputError, match="has no marked workbook"):
        annotator.write_corrected(name="good.csv")
    assert not (annotator.folder / "marked.xlsx").exists()


# There is no T, because a row for TZ needs columns that this sheet lacks.
_CELL = st.one_of(
    st.none(),
    st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], exclude_characters="Tt"), max_size=12),
    st.sampled_from(["KE", "GH", "=A1", "#N/A", "_x0041_", "'07", "1e3", " x ", "TOTAL"]),
    st.integers(-10, 10**20),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.booleans(),
    st.dates(dt.date(1900, 3, 1), dt.date(2100, 1, 1)),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=example_count(60))
@given(rows=st.lists(st.lists(_CELL, min_size=8, max_size=8), min_size=1, max_size=4))
def test_uncorrected_copy_reads_like_original(annotator: Annotator, rows: list[list[Any]]) -> None:
    before = read_sheet(annotator.write([*rows, BAD[3]]), ReadOptions())
    written, path = annotator.annotate()
    again = read_sheet(path, ReadOptions())
    if written.is_workbook:
        assert again.frame.equals(before.frame)
        assert annotator.codes(path) == annotator.codes()
    else:
        assert "would be read differently" in written.notes[0]
        assert again.frame.height == len({row for row, _ in annotator.codes()})


# With a person's corrections
def new_edit(row: int, column: str, was: str | None, now: str | None) -> CellEdit:
    return CellEdit(row, column, was, now, "Ada", "2026-11-22")


def test_copy_marks_corrected_and_left_out_cells(annotator: Annotator) -> None:
    source = annotator.write()
    edits = (
        new_edit(3, "amount", "1,000.00", "1000.00"),
        new_edit(4, "amount", "2026-01-12", "=1+1"),
        new_edit(4, "account_name", None, "Jane"),
        new_edit(5, "phone", "+2290197000108", None),
    )
    path = annotator.write_corrected(*edits)
    sheet = openpyxl.load_workbook(path).worksheets[0]
    assert (sheet["C3"].value, sheet["C3"].data_type) == ("1000.00", "s")
    assert (sheet["C4"].value, sheet["C4"].data_type) == ("=1+1", "s")  # typed text is never run as a formula
    assert (sheet["E4"].value, sheet["G5"].value) == ("Jane", None)
    assert "C3" not in coloured_cells(path, RED)
    assert "C4" in coloured_cells(path, RED)
    assert sheet["H2"].value == "fine"
    first, again = read_sheet(source, ReadOptions()), read_sheet(path, ReadOptions())
    assert again.frame.equals(apply_corrections(first, Corrections(first.sha256, edits)).frame)
    annotator.write()
    path = annotator.write_corrected(left_out=3)
    sheet = openpyxl.load_workbook(path).worksheets[0]
    assert "Left out by Ada" in sheet["A3"].comment.text
    assert sheet["B3"].value == "A-2"
    assert sheet.title == "Sheet"  # the sender's own workbook, not a table of rows


def test_unwritable_correction_returns_table_of_all_rows(annotator: Annotator) -> None:
    annotator.write(change=lambda _, sheet: sheet.merge_cells("H2:H3"))
    book = openpyxl.load_workbook(annotator.write_corrected(new_edit(3, "Note", None, "mine")))
    assert book.sheetnames == ["Payees", "Problems"]
    assert [cell.value for cell in book["Payees"]["A"]] == ["row", 2, 3, 4, 5]
    assert book["Payees"]["J3"].value == "mine"
