"""Reading files: unusable files, Parquet and workbooks, and equal rows from every format."""

import datetime as dt
import gzip
import io
import os
import zipfile
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import openpyxl
import polars as pl
import pytest
from openpyxl.cell.rich_text import CellRichText, TextBlock
from openpyxl.cell.text import InlineFont
from openpyxl.formatting.rule import DataBarRule, Rule
from openpyxl.styles import Color, Font, PatternFill
from openpyxl.styles.differential import DifferentialStyle
from openpyxl.styles.numbers import NumberFormat
from openpyxl.worksheet.worksheet import Worksheet

from paygw_batch.countries.rules import Rules
from paygw_batch.errors import SheetError
from paygw_batch.sheet.check.validate import validate
from paygw_batch.sheet.read.headings import ReadOptions
from paygw_batch.sheet.read.sheet_file import read_sheet
from tests.support.sheet_values import GOOD, HEADER, KENYAN, MakeSheet, codes, lines


def parquet(**columns: pl.Series | Sequence[object]) -> bytes:
    file = io.BytesIO()
    pl.DataFrame(columns).write_parquet(file)
    return file.getvalue()


GOOD_COLUMNS: dict[str, list[object]] = {name: [KENYAN.get(name, "KES")] for name in HEADER.split(",")}


def save_book(book: openpyxl.Workbook) -> bytes:
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


Style = Callable[[Worksheet], object]


def workbook(*rows: list[Any], more: dict[str, list[list[object]]] | None = None, style: Style = lambda _: 0) -> bytes:
    """Return a workbook, after `style` has changed how its cells are displayed."""
    book = openpyxl.Workbook()
    for row in rows:
        book.worksheets[0].append(row)
    for name, others in (more or {}).items():
        other = book.create_sheet(name)
        for row in others:
            other.append(row)
    style(book.worksheets[0])
    return save_book(book)


HEADINGS: list[object] = [*HEADER.split(",")]
CELLS: list[object] = [*GOOD.split(",")]


@pytest.mark.parametrize("after", [GOOD + GOOD, GOOD.replace("1500.50", "9500.50"), GOOD[:-9]])
def test_file_changing_during_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str) -> None:
    path = tmp_path / "pay.csv"
    path.write_text(lines(GOOD))
    os.utime(path, ns=(0, 0))
    looked, looks = os.fstat, iter(range(9))

    def fstat(descriptor: int) -> os.stat_result:
        status = looked(descriptor)
        if next(looks) == 0:
            path.write_text(lines(after))
        return status

    monkeypatch.setattr(os, "fstat", fstat)
    with pytest.raises(SheetError, match="changed while it was being read"):
        read_sheet(path, ReadOptions())


def test_oversized_or_irregular_file_is_refused(sheet: MakeSheet, tmp_path: Path) -> None:
    with pytest.raises(SheetError, match="at most"):
        sheet(lines(GOOD), max_sheet_bytes=len(lines(GOOD)) - 1)
    assert sheet(lines(GOOD), max_sheet_bytes=len(lines(GOOD))).frame.height == 1
    assert sheet(lines(GOOD, GOOD), max_rows=2).frame.height == 2
    with pytest.raises(SheetError, match="3 rows, but at most 2"):
        sheet(lines(GOOD, GOOD, GOOD), max_rows=2)
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    (tmp_path / "folder.csv").mkdir()
    for name, sentence in (
        ("nothing.csv", "cannot be read: No such file"),
        *((name, "is a folder") for name in ("folder.csv", "")),
        *((name, "not a regular file") for name in ("pipe.csv", "zero.csv")),
        (f"{'x' * 300}.csv", "name is too long"),
    ):
        with pytest.raises(SheetError, match=sentence):
            read_sheet(tmp_path / name, ReadOptions())


COMPOUND = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504)


@pytest.mark.parametrize(
    ("content", "name", "sentence", "advice"),
    [
        (lines(GOOD).encode(), "pay.xlsx", "named like a workbook .*, but is actually delimited text", ""),
        (b"<html><table>", "pay.xlsx", "is actually HTML or XML", ""),
        (b"\xef\xbb\xbf \n<?xml version='1.0'?>", "pay.csv", "is actually HTML or XML", ""),
        (COMPOUND, "pay.xlsx", r"an old workbook \(\.xls\)", "Save it as"),
        (COMPOUND + "EncryptedPackage".encode("utf-16-le"), "pay.xlsx", "by a password", "without a password"),
        (COMPOUND + "Workbook".encode("utf-16-le"), "pay.xlsx", "is actually an old workbook", "Save it as"),
        (gzip.compress(lines(GOOD).encode()), "pay.csv", "compressed", ""),
        (parquet(**GOOD_COLUMNS), "pay.csv", "is actually Parquet", ""),
        (workbook(HEADINGS, CELLS), "pay.csv", r"is actually a workbook \(\.xlsx\)", ""),
        (workbook(HEADINGS, CELLS), "pay.parquet", "is actually a workbook", ""),
        (b"%PDF-1.7", "pay.csv", "a PDF", ""),
        (b"\x89PNG\r\n\x1a\n" + bytes(99), "pay.xlsx", "is actually a picture", "the sheet itself"),
        (b"\xff\xd8\xff\xe0" + bytes(99), "pay.csv", "is actually a picture", "the sheet itself"),
        *((content, "pay.xls", r"format \(\.xls\)", "as .xlsx") for content in (lines(GOOD).encode(), COMPOUND)),
        (b"PK\x03\x04", "pay.ods", r"an unsupported spreadsheet format \(\.ods\)", 'as .xlsx or "CSV UTF-8".'),
        (b"PK\x03\x04", "pay.numbers", r"spreadsheet format \(\.numbers\)", "save it as .xlsx"),
        (lines(GOOD).encode(), "pay", "must have one of these extensions", ""),
    ],
)
def test_file_of_other_kind_is_refused(sheet: MakeSheet, content: bytes, name: str, sentence: str, advice: str) -> None:
    with pytest.raises(SheetError, match=sentence) as refused:
        sheet(content, name)
    assert advice in refused.value.hint


def test_same_rows_give_same_batch_in_every_format(sheet: MakeSheet, rules: Rules) -> None:
    header, row = HEADER + ",Department", GOOD + ",Café"
    columns = {name: [value] for name, value in zip(header.split(","), row.split(","), strict=True)}
    read = [
        sheet(lines(row, header=header)),
        sheet(lines(row, header=header).replace(",", ";"), "other name.txt"),
        sheet(parquet(**columns), "pay.parquet"),
        sheet(workbook([*header.split(",")], [*row.split(",")]), "pay.xlsx"),
    ]
    assert len({validate(one, rules).batch for one in read}) == 1
    assert len({one.sha256 for one in read}) == 4


# Parquet
def test_parquet_values_are_read_exactly(sheet: MakeSheet) -> None:
    read = sheet(
        parquet(
            country=pl.Series(["KE"] * 4, dtype=pl.Categorical),
            client_orderid=pl.Series([1, 2, 3, 4], dtype=pl.UInt64),
            amount=pl.Series([Decimal("1500.5000"), Decimal("0.0001"), Decimal(1500), None], dtype=pl.Decimal(20, 4)),
            account_number=pl.Series([254712345678, 712345678, 0, -1], dtype=pl.Int64),
            phone=pl.Series([254712345678.0, 900719925474099.0, float("nan"), None]),
            paid=pl.Series([True, False, None, True]),
            on=pl.Series([dt.date(2026, 1, 12)] * 4),
        ),
        "pay.parquet",
    )
    assert read.frame["row"].to_list() == [2, 3, 4, 5]
    assert read.frame["client_orderid"].to_list() == ["1", "2", "3", "4"]
    assert read.frame["amount"].to_list() == ["1500.50", "0.0001", "1500", None]
    assert read.frame["account_number"].to_list() == ["254712345678", "712345678", "0", "-1"]
    assert read.frame["phone"].to_list() == ["254712345678", "900719925474099", None, None]
    assert read.frame["on"].to_list() == ["2026-01-12"] * 4
    assert not read.defects.height


@pytest.mark.parametrize(
    ("name", "value", "dtype", "code"),
    [
        ("account_number", 254712345678.5, pl.Float64, "account_number.float"),
        ("client_orderid", 1001.1, pl.Float64, "client_orderid.float"),  # the id may be 1001.10
        ("client_orderid", 2.0**53, pl.Float64, "client_orderid.digits"),
        ("amount", 12345678901234.56, pl.Float64, "amount.digits"),
        ("amount", float("inf"), pl.Float64, "amount.float"),
        ("amount", 100.5, pl.Float32, "amount.float"),
        ("amount", 100.0, pl.Float32, "amount.float"),  # 16777217 would be 16777216
    ],
)
def test_inexact_float_is_refused(
    sheet: MakeSheet, rules: Rules, name: str, value: float, dtype: Any, code: str
) -> None:
    columns = GOOD_COLUMNS | {name: pl.Series([value], dtype=dtype), "share": pl.Series([0.5])}
    validated = validate(sheet(parquet(**columns), "pay.parquet"), rules)
    assert code in validated.defects["code"]
    assert not validated.payable_count
    assert validated.rows["share"].to_list() == ["0.5"]


# Computed amounts
@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("amount", "minor", "proposals"),
    [
        *((amount, [123456], []) for amount in (1234.5600000000002, 1234.5599999999999)),
        *((0.1 + 20.2, [2030], []), (100.1, [10010], []), (45833.0, [4583300], [])),
        *((99.999999999999986, [10000], []), (249999.99000000002, [24999999], [])),
        (45833.333333333336, [], [("amount.decimals", "45833.33")]),
        (45833.335, [], [("amount.decimals", "45833.34")]),
        (99.999999, [], [("amount.decimals", "100.00")]),
    ],
)
def test_computed_amount_reads_identically_in_every_format(
    sheet: MakeSheet, rules: Rules, amount: float, minor: list[int], proposals: list[tuple[str, str]]
) -> None:
    for content, name in (
        (parquet(**GOOD_COLUMNS | {"amount": pl.Series([amount])}), "pay.parquet"),
        (workbook(HEADINGS, [*CELLS[:2], amount, *CELLS[3:]]), "pay.xlsx"),
        (lines(GOOD.replace("1500.50", repr(amount))), "pay.csv"),
    ):
        validated = validate(sheet(content, name), rules)
        assert validated.instructions["minor"].to_list() == minor
        assert validated.defects.select("code", "correction").rows() == proposals


@pytest.mark.parametrize("amount", ["12345678901234.567", "123456789012345.67", "1234.56123456789012", "1234.5600001"])
def test_significant_digits_are_never_dropped(sheet: MakeSheet, rules: Rules, amount: str) -> None:
    validated = validate(sheet(lines(GOOD.replace("1500.50", amount))), rules)
    assert validated.rows["amount"].to_list() == [amount]
    assert not validated.payable_count


@pytest.mark.share(3)
@pytest.mark.parametrize("value", [[[1]], [{"a": 1}], [b"x"], [dt.timedelta(hours=1)]])
def test_unsupported_parquet_columns_are_omitted_unless_needed(sheet: MakeSheet, value: list[object]) -> None:
    read = sheet(parquet(**GOOD_COLUMNS, extra=value), "pay.parquet")
    assert read.notes == ("Columns of unsupported types are ignored: 'extra'.",)
    assert read.frame.equals(sheet(parquet(**GOOD_COLUMNS), "pay.parquet").frame)
    with pytest.raises(SheetError, match="column 'phone'"):
        sheet(parquet(**GOOD_COLUMNS | {"phone": value}), "pay.parquet")


def test_oversized_or_damaged_parquet_file_is_refused(sheet: MakeSheet) -> None:
    many = {name: values * 1000 for name, values in GOOD_COLUMNS.items()}
    with pytest.raises(SheetError, match="more rows than are allowed"):
        sheet(parquet(**many), "pay.parquet", max_rows=999)
    bomb = parquet(**many, note=["x" * 10_000] * 1000)
    assert len(bomb) < 100_000
    with pytest.raises(SheetError, match="too large when unpacked"):
        sheet(bomb, "pay.parquet", max_sheet_bytes=1_000_000)
    good = parquet(**GOOD_COLUMNS)
    for damaged in (good[:-20], good[:40] + good[60:], b"PAR1" + bytes(200) + b"PAR1", b"PAR1"):
        with pytest.raises(SheetError, match="damaged Parquet"):
            sheet(damaged, "pay.parquet")


# Workbooks
def test_workbook_cells_keep_digits_and_rows(sheet: MakeSheet) -> None:
    content = workbook(
        ["Payroll November"],
        [],
        [None, "country", "client order id", "Amount", "Account\nNumber", "phone", "day", "paid"],
        [None, "KE", 17, 1500.5, 254712345678, "0712345678", dt.date(2026, 1, 12), True],
        [],
        [None, "KE", "018", 0.25, 1e-7, 1 / 3, dt.datetime(2026, 1, 12, 3, 4, 5), None],  # noqa: DTZ001
    )
    read = sheet(content, "pay.xlsx")
    assert read.frame.drop("day", "paid").rows() == [
        (4, "KE", "17", "1500.5", "254712345678", "0712345678"),
        (6, "KE", "018", "0.25", "0.0000001", "0.333333333333333"),
    ]
    assert read.frame.select("day", "paid").rows() == [("2026-01-12", "TRUE"), ("2026-01-12 03:04:05", None)]
    assert read.headers["account_number"] == "Account Number"


@pytest.mark.parametrize(
    ("stored", "text"),
    [
        *((b"1500.5", "1500.5"), (b"1E-3", "0.001"), (b"007", "7"), (b"-5", "-5")),
        (b"2.54712345678E+11", "254712345678"),
        *((b"0.10000000000000001", "0.1"), (b"1234.0999999999999", "1234.1"), (b"0.30000000000000004", "0.3")),
        *((b"99.999999999999986", "100"), (b"45833.333333333336", "45833.3333333333")),
    ],
)
def test_cell_with_number_reads_as_displayed(sheet: MakeSheet, stored: bytes, text: str) -> None:
    content = replace_in_part(workbook(HEADINGS, [*CELLS[:2], 77.5, *CELLS[3:]]), {b">77.5<": b">" + stored + b"<"})
    assert sheet(content, "pay.xlsx").frame["amount"].to_list() == [text]


def test_ambiguous_workbook_cells_are_defects(sheet: MakeSheet, rules: Rules) -> None:
    cells: list[list[Any]] = [
        [*CELLS[:2], "=B2*2", *CELLS[3:]],
        [*CELLS[:5], 1234567890123456789, CELLS[6]],
        [*CELLS[:4], "#N/A", *CELLS[5:]],
        [*CELLS[:2], dt.date(2026, 1, 12), *CELLS[3:]],
        ["=A2", "=B2", "=C2"],
    ]
    rows = [[row[0], f"A-{at}", *row[2:]] for at, row in enumerate(cells)]
    validated = validate(sheet(workbook(HEADINGS, *rows), "pay.xlsx"), rules)
    expected = ["amount.formula", "account_number.digits", "account_name.error_mark", "amount.format", "amount.formula"]
    assert {*enumerate(expected, start=2)} <= {*codes(validated.defects)}
    assert not validated.rows["valid"].any()


def test_person_must_choose_among_payee_worksheets(sheet: MakeSheet) -> None:
    content = workbook(HEADINGS, CELLS, more={"Second": [HEADINGS, CELLS, CELLS], "Notes": [["hello"]]})
    with pytest.raises(SheetError, match=r"look like a sheet of payees: 'Sheet' \(1 row\), 'Second' \(2 rows\)"):
        sheet(content, "pay.xlsx")
    read = sheet(content, "pay.xlsx", sheet_name="Second")
    assert read.frame.height == 2
    assert read.notes == ("The worksheet 'Sheet' (1 row) is not read or paid here. 'Second' is read instead.",)
    with pytest.raises(SheetError, match="no worksheet called 'Third'"):
        sheet(content, "pay.xlsx", sheet_name="Third")
    with pytest.raises(SheetError, match="no recognisable header"):
        sheet(content, "pay.xlsx", sheet_name="Notes")


def test_hidden_rows_and_worksheets_are_reported(sheet: MakeSheet) -> None:
    book = openpyxl.load_workbook(io.BytesIO(workbook(HEADINGS, CELLS, CELLS, more={"Old": [HEADINGS, CELLS]})))
    book["Old"].sheet_state = "hidden"
    book["Sheet"].row_dimensions[3].hidden = True
    read = sheet(save_book(book), "pay.xlsx")
    assert read.notes == ("The worksheet 'Old' (1 row) is hidden and is not read. 'Sheet' is read instead.",)
    assert codes(read.warnings) == [(3, "row.hidden")]
    book["Sheet"].delete_rows(1, 5)
    with pytest.raises(SheetError, match="only hidden worksheets look"):
        sheet(save_book(book), "pay.xlsx")


def replace_in_part(content: bytes, change: dict[bytes, bytes]) -> bytes:
    part = "xl/worksheets/sheet1.xml"
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
        parts = {name: old.read(name) for name in old.namelist()}
        for before, after in change.items():
            assert before in parts[part]
            parts[part] = parts[part].replace(before, after)
        for name, data in parts.items():
            new.writestr(name, data)
    return file.getvalue()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        *((b"<sheetData>", b"<sheetData><row"), (b'r="A2"', b'r="ZZZ2"'), (b'r="B2"', b'r="A2"')),
        *((b'<row r="2"', b'<row r="1"'), (b'<row r="2"', b'<row r="9999999999"'), (b"<v>5.5</v>", b"<v>5.5.5</v>")),
        (b"<worksheet ", b'<!DOCTYPE x [<!ENTITY a "b">]><worksheet '),
    ],
)
def test_damaged_or_hostile_worksheet_is_refused(sheet: MakeSheet, before: bytes, after: bytes) -> None:
    damaged = replace_in_part(workbook(HEADINGS, [*CELLS, 5.5]), {before: after})
    with pytest.raises(SheetError, match="damaged or protected workbook"):
        sheet(damaged, "pay.xlsx")


def test_zip_archive_without_workbook_is_refused(sheet: MakeSheet) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("pay.csv", lines(GOOD))
    with pytest.raises(SheetError, match="is not a workbook"):
        sheet(file.getvalue(), "pay.xlsx")


def test_cell_escapes_are_decoded_and_phonetics_ignored(sheet: MakeSheet) -> None:
    content = workbook(HEADINGS, [*CELLS[:4], "Wanjiru Kamau", *CELLS[5:]])
    phonetic = b"<t>Wanjiru_x0020_Kamau</t><rPh sb='0' eb='1'><t>never</t></rPh>"
    changed = replace_in_part(content, {b"<t>Wanjiru Kamau</t>": phonetic})
    assert sheet(changed, "pay.xlsx").frame["account_name"].to_list() == ["Wanjiru Kamau"]


PAID_BY = ["country", "client_orderid", "amount"]
PAID: list[Any] = ["KE", "P-1", 250000]


def warning_codes(sheet: MakeSheet, style: Style, row: list[Any] = PAID) -> list[tuple[int, str]]:
    return codes(sheet(workbook(PAID_BY, row, PAID, style=style), "pay.xlsx").warnings)


@pytest.mark.parametrize(
    ("is_warned", "amount", "formats"),
    [
        (True, 250000, ("#,##0,", "0.0,", ";;;", '"250"', "0%", '#,##0,"k"', "[>1000]0,;0", "[White]0")),
        (True, 250000, ("[Color 2]#,##0;0", "#,##0,.00", '"1"0', '[=250000]"0";0')),
        (True, 1500.5, ("0", "#,##0", "0.00E+00", "# ?/?", "#,##0;(#,##0)", "[$KES-409]0")),
        (True, "250", (";;;",)),
        (False, "250", ("0;0;0;@",)),
        (False, 250000, ("General", "0", "0.00", "#,##0", '#,##0.00 "KES"', "@", r"\K\E\S 0", "[$KES-409] #,##0.00")),
        (False, 250000, ("0.0E+00", "# ?/?", "[Red]0", "0;[White]0", "0;;;", '[<5]"few";0')),
        (False, 250000, ('_-* #,##0_-;-* #,##0_-;_-* "-"_-',)),
        (False, 1500.5, ("0.0", "#,##0.00", "General", "0.00;(0.00)")),
    ],
)
def test_differently_shown_amount_gets_warning(sheet: MakeSheet, is_warned: bool, amount: Any, formats: Any) -> None:
    expected = [(2, "amount.shown_otherwise")] if is_warned else []
    for code in formats:
        style: Style = lambda page: setattr(page["C2"], "number_format", code)  # noqa: B023, E731 (called at once)
        assert warning_codes(sheet, style, ["KE", "P-1", amount]) == expected, code


@pytest.mark.parametrize(
    ("font", "fill", "is_seen"),
    [
        *(({"color": color}, None, False) for color in ("FFFFFF", "FDFDFD", Color(theme=0), Color(indexed=9))),
        *(({"color": color}, None, True) for color in ("FF0000", Color(theme=1), Color(theme=0, tint=-0.5))),
        *(({"color": color}, "1F3864", color == "FFFFFF") for color in ("FFFFFF", "1F3864")),
        *(({"sz": 1}, None, False), ({}, "FFFF00", True)),
    ],
)
def test_invisible_value_gets_warning(
    sheet: MakeSheet, font: dict[str, Any], fill: str | None, *, is_seen: bool
) -> None:
    def style(worksheet: Worksheet) -> None:
        for cell in (worksheet["B2"], worksheet["C2"]):
            cell.font = Font(**font)
            if fill is not None:
                cell.fill = PatternFill("solid", fgColor=fill)

    unseen = [(2, "client_orderid.shown_otherwise"), (2, "amount.shown_otherwise")]
    assert warning_codes(sheet, style) == ([] if is_seen else unseen)


def test_white_number_format_is_visible_on_dark_background(sheet: MakeSheet) -> None:
    def style(worksheet: Worksheet) -> None:
        worksheet["C2"].number_format = "[White]0"
        worksheet["C2"].fill = PatternFill("solid", fgColor="1F3864")
        worksheet["C2"].font = Font(color="FFFFFF")
        worksheet["B2"].number_format = "[White]@"
        worksheet["D3"], worksheet["D3"].font = "x", Font(strike=True)  # this column is not used

    assert warning_codes(sheet, style) == [(2, "client_orderid.shown_otherwise")]


@pytest.mark.parametrize(
    ("colours", "ground", "is_seen"),
    [
        *(("FF", None, False), ("F0", None, False), ("0F", None, False), ("00", None, True)),
        *(("FF", "1F3864", True), ("F0", "010101", False)),
    ],
)
def test_invisible_text_run_gets_warning(sheet: MakeSheet, colours: str, ground: str | None, *, is_seen: bool) -> None:
    def style(worksheet: Worksheet) -> None:
        fonts = [InlineFont(color=Color({"0": "010101", "F": "FFFFFF"}[sign])) for sign in colours]
        worksheet["B2"] = CellRichText(TextBlock(fonts[0], "P-"), TextBlock(fonts[1], "1"))
        worksheet["B2"].font = Font(color="FFFFFF" if ground else "000000")
        if ground is not None:
            worksheet["B2"].fill = PatternFill("solid", fgColor=ground)

    assert warning_codes(sheet, style) == ([] if is_seen else [(2, "client_orderid.shown_otherwise")])


@pytest.mark.parametrize("how", [b'hidden="1"', b'width="0"', b'width="0.1"'])
def test_hidden_column_in_use_gets_one_warning(sheet: MakeSheet, how: bytes) -> None:
    def style(worksheet: Worksheet) -> None:
        for column in "CDE":  # D has an unknown heading, and E is empty
            worksheet.column_dimensions[column].hidden = True
        worksheet["D1"], worksheet["D2"] = "Notes", "n"

    content = workbook(PAID_BY, PAID, PAID, style=style)
    change = {b'hidden="1"': how, b'width="13"': b""}
    read = sheet(replace_in_part(content, change), "pay.xlsx")
    assert read.warnings.select("row", "column", "code").rows() == [(0, "amount", "column.hidden")]


@pytest.mark.parametrize("height", [b'ht="0"', b'ht="1"'])
def test_row_of_tiny_height_counts_as_hidden(sheet: MakeSheet, height: bytes) -> None:
    def style(worksheet: Worksheet) -> None:
        worksheet.row_dimensions[3].height = 7

    content = workbook(PAID_BY, PAID, PAID, style=style)
    read = sheet(replace_in_part(content, {b'ht="7"': height}), "pay.xlsx")
    assert codes(read.warnings) == [(3, "row.hidden")]


@pytest.mark.parametrize("column", [1_024, 16_384])
def test_distant_coloured_cell_is_ignored(sheet: MakeSheet, column: int) -> None:
    def style(worksheet: Worksheet) -> None:
        worksheet.cell(2, column).fill = PatternFill("solid", fgColor="FFFF00")

    read = sheet(workbook(PAID_BY, PAID, style=style), "pay.xlsx")
    assert read.frame.columns == ["row", "country", "client_orderid", "amount"]


@pytest.mark.parametrize(
    ("areas", "unseen"),
    [
        *(("B2:C2", [(2, "amount")]), ("C2:C3", [(3, "amount")]), ("B2:C2 C2:C3", [(2, "amount"), (3, "amount")])),
        *(("A2:B3", [(3, "country"), (2, "client_orderid"), (3, "client_orderid")]), ("A1:C1 C9:D9 D2:E3", [])),
    ],
)
def test_value_hidden_by_merging_gets_one_warning(sheet: MakeSheet, areas: str, unseen: list[tuple[int, str]]) -> None:
    def style(worksheet: Worksheet) -> None:
        for area in areas.split():  # the values stay, as after pasting only the format
            worksheet.merged_cells.add(area)

    assert warning_codes(sheet, style) == [(row, f"{name}.shown_otherwise") for row, name in unseen]


def expression(**style: Any) -> Rule:
    return Rule("expression", dxf=DifferentialStyle(**style), formula=["$A2"])


def data_bar(**options: bool) -> Rule:
    result: Rule = DataBarRule("min", None, "max", None, color="FF0000", **options)  # type: ignore[no-untyped-call]
    return result


RULES: dict[str, tuple[Rule, str]] = {
    "struck": (expression(font=Font(strike=True)), "row.struck"),
    "white": (expression(font=Font(color="FFFFFF")), "amount.shown_otherwise"),
    "thousands": (expression(numFmt=NumberFormat(164, "#,##0,")), "amount.shown_otherwise"),
    "a bar alone": (data_bar(showValue=False), "amount.shown_otherwise"),
    "red": (expression(font=Font(color="9C0006"), fill=PatternFill(bgColor="FFC7CE")), ""),
    "a bar": (data_bar(), ""),
    "two decimals": (expression(numFmt=NumberFormat(164, "#,##0.00")), ""),
}


@pytest.mark.parametrize("name", RULES)
def test_conditional_formatting_gets_one_warning(sheet: MakeSheet, name: str) -> None:
    rule, code = RULES[name]
    for area, warnings in (("C2:C9 C12", [(0, code)] if code else []), ("C1", []), ("D1:F9", []), ("E2:E3", [])):
        style: Style = lambda page: page.conditional_formatting.add(area, rule)  # noqa: B023, E731 (called at once)
        assert warning_codes(sheet, style) == warnings, area
