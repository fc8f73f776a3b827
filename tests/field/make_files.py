"""`python -m tests.field.make_files`: write the workbooks and Parquet files of the corpus, one for each report.

For a new report, add a line here or a text to `files/`, and its expected result to `answers.toml`.
"""

import io
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Any

import polars as pl
import xlsxwriter  # type: ignore[import-untyped]
from openpyxl import Workbook
from openpyxl.styles import Font
from openpyxl.worksheet.worksheet import Worksheet

FILES = Path(__file__).parent / "files"
HEADINGS = ("country", "client_orderid", "amount", "currency", "account_name", "account_number", "phone")
WANJIRU = ("KE", "A-1", 1500.5, "KES", "Wanjiru Kamau", "254712345678", "+254712345678")
OTIENO = ("KE", "A-2", 2000, "KES", "Otieno Ouma", "254712345679", "+254712345679")
STYLES, WORKBOOK, TYPES = "xl/styles.xml", "xl/workbook.xml", "[Content_Types].xml"
RELATIONS, ROOT, SHEET = "xl/_rels/workbook.xml.rels", "_rels/.rels", "xl/worksheets/sheet1.xml"


_TIME = re.compile("20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z")
"""The library's timestamps, which would make files irreproducible."""
PAYEES = (HEADINGS, WANJIRU, OTIENO)
LINES = (
    ("order_id", "amount", "currency", "status", "time"),
    (1001, 1500.5, "KES", "approved", date(2026, 11, 28)),
    (1002, 2000, "KES", "declined", date(2026, 11, 28)),
)


def workbook(rows: Iterable[tuple[Any, ...]], change: Callable[[Worksheet], object] = lambda _: None) -> bytes:
    book = Workbook()
    for row in rows:
        book.worksheets[0].append(row)
    change(book.worksheets[0])
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


def _strike(sheet: Worksheet) -> None:
    for cell in sheet[2]:
        cell.font = Font(strike=True)


def _add_oddities(sheet: Worksheet) -> None:
    """Strike a row through, and display an amount in thousands."""
    _strike(sheet)
    sheet["C3"].number_format = "#,##0,"


def _changing(values: Mapping[str, Any], formats: Mapping[str, str]) -> Callable[[Worksheet], None]:
    def change(sheet: Worksheet) -> None:
        for place, value in values.items():
            sheet[place] = value
        for place, code in formats.items():
            sheet[place].number_format = code

    return change


def _cells(values: Mapping[str, Any], formats: Mapping[str, str] = MappingProxyType({})) -> Callable[[], bytes]:
    return lambda: repack_workbook(workbook(PAYEES, _changing(values, formats)))


def _statement(change: Callable[[Worksheet], object]) -> Callable[[], bytes]:
    return lambda: repack_workbook(workbook(LINES, change))


def _formats(**codes: str) -> Callable[[Worksheet], None]:
    return _changing({}, codes)


def _plain(**how: Any) -> Callable[[], bytes]:
    return lambda: repack_workbook(workbook(PAYEES), **how)


def _odd(**how: Any) -> Callable[[], bytes]:
    return lambda: repack_workbook(workbook(PAYEES, _add_oddities), **how)


def _parquet(*people: Sequence[object], **columns: Any) -> Callable[[], bytes]:
    """Make a Parquet file that pays these people, or two, with further or replaced columns."""
    rows = [map(str, person) for person in people or (WANJIRU, OTIENO)]
    all_columns = {name: list(values) for name, *values in zip(HEADINGS, *rows, strict=True)} | columns

    def make() -> bytes:
        file = io.BytesIO()
        pl.DataFrame(all_columns).write_parquet(file)
        return file.getvalue()

    return make


def workbook_with_runs() -> bytes:
    """Return a workbook with a partly struck-through name and a partly white amount."""
    file = io.BytesIO()
    with xlsxwriter.Workbook(file) as book:
        sheet = book.add_worksheet()
        for at, row in enumerate(PAYEES):
            sheet.write_row(at, 0, row)
        sheet.write_rich_string("E2", book.add_format({"font_strikeout": True}), "Achieng ", "Wanjiru Kamau")
        sheet.write_rich_string("C3", book.add_format({"font_color": "white"}), "1", "500")
    return repack_workbook(file.getvalue())


def repack_workbook(
    data: bytes,
    *,
    renamed: Mapping[str, str] | None = None,
    edits: Mapping[str, tuple[str, str]] | None = None,
    added: Mapping[str, str] | None = None,
    left_out: str = "",
) -> bytes:
    """Return a workbook with parts renamed (with all references), edited (old text, new text), or added."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as before, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as after:
        for name in before.namelist():
            text = _TIME.sub("2026-11-28T00:00:00Z", before.read(name).decode())
            for old, new in (renamed or {}).items():
                if name in {TYPES, RELATIONS, ROOT} and "/" in new:
                    text = text.replace(old.rpartition("/")[2], new.rpartition("/")[2])
            if name in (edits or {}):
                old, new = (edits or {})[name]
                assert old in text, (name, old, text[:2000])
                text = text.replace(old, new)
            if name != left_out:
                _write(after, (renamed or {}).get(name, name), text)
        for name, text in (added or {}).items():
            _write(after, name, text)
    return file.getvalue()


def _write(archive: zipfile.ZipFile, name: str, text: str) -> None:
    archive.writestr(zipfile.ZipInfo(name, (2026, 11, 28, 0, 0, 0)), text, zipfile.ZIP_DEFLATED)


_OTHER = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/worksheet"
_STYLES_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml.styles+xml"
MADE: Mapping[str, Callable[[], bytes]] = {
    "sheets/styles-of-another-name.xlsx": _odd(renamed={STYLES: "xl/styles1.xml"}),
    "sheets/styles-in-capitals.xlsx": _odd(renamed={STYLES: "xl/Styles.xml"}),
    "sheets/styles-decoy.xlsx": _odd(renamed={STYLES: "xl/styles1.xml"}, added={STYLES: "<styleSheet/>"}),
    "sheets/styles-missing.xlsx": _odd(left_out=STYLES),
    "sheets/styles-not-referred-to.xlsx": _odd(edits={RELATIONS: ("/relationships/styles", "/relationships/other")}),
    "sheets/styles-twice.xlsx": _odd(
        edits={TYPES: ("</Types>", f'<Override PartName="/xl/styles2.xml" ContentType="{_STYLES_TYPE}"/></Types>')},
        added={"xl/styles2.xml": "<styleSheet/>"},
    ),
    "sheets/part-twice.xlsx": _plain(added={"XL/Workbook.xml": "<workbook/>"}),
    "sheets/workbook-of-another-name.xlsx": _plain(
        renamed={WORKBOOK: "xl/workbook22.xml", RELATIONS: "xl/_rels/workbook22.xml.rels"}
    ),
    "sheets/backslashes.xlsx": _plain(
        renamed={name: name.replace("/", "\\") for name in (SHEET, RELATIONS, WORKBOOK, STYLES)}
    ),
    "sheets/worksheet-missing.xlsx": _plain(left_out=SHEET),
    "sheets/pronunciation.xlsx": _plain(
        edits={SHEET: ("<t>Wanjiru Kamau</t>", '<t>Wanjiru Kamau</t><rPh sb="0" eb="3"><t>WAN</t></rPh>')}
    ),
    "sheets/ids-shown-with-zeros.xlsx": _cells({"B2": 1, "B3": 2}, {"B2": "00000", "B3": "00000"}),
    "sheets/phone-with-its-code-in-the-format.xlsx": _cells({"G2": 712345678}, {"G2": '"+254"0'}),
    "sheets/id-grouped-by-its-format.xlsx": _cells({"B2": 20261128}, {"B2": "0000-00-00"}),
    "sheets/id-in-a-date-cell.xlsx": _cells({"B2": date(2026, 3, 1)}, {"B2": "d-mmm"}),
    "sheets/cents-by-a-sign-in-the-format.xlsx": _cells({"C2": 150050}, {"C2": '0"."00'}),
    "sheets/id-with-a-prefix-in-the-format.xlsx": _cells({"B2": "17"}, {"B2": '"PAY-"@'}),
    "sheets/phone-of-another-country-in-the-format.xlsx": _cells({"G2": 712345678}, {"G2": '"+256"0'}),
    "sheets/cell-with-two-values.xlsx": _plain(edits={SHEET: ("<v>2000</v>", "<v>2000</v><v>00</v>")}),
    "sheets/cell-of-another-row.xlsx": _plain(edits={SHEET: ('<c r="C3"', '<c r="C9"')}),
    "sheets/two-parts-of-one-number.xlsx": _plain(
        edits={
            RELATIONS: ("</Relationships>", f'<Relationship Id="rId1" Type="{_OTHER}" Target="x.xml"/></Relationships>')
        }
    ),
    "sheets/texts-struck-or-white-in-part.xlsx": workbook_with_runs,
    "statements/workbook.xlsx": _statement(_formats(B2="#,##0.00", B3="[$KSh-441] #,##0.00")),
    "statements/line-struck.xlsx": _statement(_strike),
    "statements/line-hidden.xlsx": _statement(lambda sheet: setattr(sheet.row_dimensions[3], "hidden", True)),
    "statements/column-hidden.xlsx": _statement(lambda sheet: setattr(sheet.column_dimensions["D"], "hidden", True)),
    "statements/status-under-another.xlsx": _statement(lambda sheet: sheet.merged_cells.add("D2:D3")),
    "statements/id-shown-with-zeros.xlsx": _statement(_formats(A3="000000")),
    "statements/amount-shown-in-thousands.xlsx": _statement(_formats(B3="#,##0,")),
    "statements/amount-in-another-currency.xlsx": _statement(_formats(B3="[$$-409]#,##0.00")),
    "sheets/font-missing.xlsx": _odd(edits={STYLES: ('fontId="1"', 'fontId="7"')}),
    "sheets/fill-missing.xlsx": _odd(edits={STYLES: ('fontId="1" fillId="0"', 'fontId="1" fillId="7"')}),
    "sheets/number-format-missing.xlsx": _odd(edits={STYLES: ('<numFmt numFmtId="164"', '<numFmt numFmtId="199"')}),
    "sheets/ids-shown-with-decimals.xlsx": _cells({"B2": 1001.1, "B3": 1001}, {"B2": "0.00", "B3": '"PAY-"0.0'}),
    "sheets/ids-shown-in-groups.xlsx": _cells({"B2": 1001, "B3": 100000}, {"B2": "#,##0", "B3": "0.0E+00"}),
    "sheets/ids-shown-as-they-are.xlsx": _cells({"B2": 1001, "B3": 1001.1}, {"B2": "0", "B3": "0.0"}),
    "sheets/ids-true-and-false.xlsx": _cells({"B2": True, "B3": False}),
    "sheets/ids-true-and-false.parquet": _parquet(client_orderid=[True, False]),
    "sheets/ids-of-dates.parquet": _parquet(client_orderid=[date(2026, 3, 1), date(2026, 3, 2)]),
    "sheets/amounts-in-another-currency.xlsx": _cells({}, {"C2": "[$$-409]#,##0.00", "C3": '"USD" #,##0'}),
    "sheets/amounts-in-their-currency.xlsx": _cells(
        {}, {"C2": '"KSh. "#,##0.00_);[Red]("KSh"#,##0.00)', "C3": '[$KES] #,##0"/="'}
    ),
    "sheets/amounts-grouped-by-signs.xlsx": _cells({"C2": 1500, "C3": 12345}, {"C2": "#'##0", "C3": r"#\.##0"}),
    "sheets/value-with-an-underscore.xlsx": _plain(edits={SHEET: ("<v>2000</v>", "<v>2_000</v>")}),
    "sheets/text-in-a-cell-of-numbers.xlsx": _odd(edits={SHEET: ('t="n"><v>2000</v>', "><is><t>2000 KES</t></is>")}),
    "sheets/cell-with-two-texts.xlsx": _plain(
        edits={SHEET: ("<is><t>A-2</t></is>", "<is><t>A-2</t></is><is><t>A-3</t></is>")}
    ),
    "sheets/value-in-other-digits.xlsx": _plain(edits={SHEET: ("<v>2000</v>", "<v>\u0662\u0660\u0660\u0660</v>")}),
    "sheets/part-with-an-escaped-name.xlsx": lambda: repack_workbook(
        repack_workbook(workbook(PAYEES), renamed={SHEET: "xl/worksheets/sheet 1.xml"}),
        edits={RELATIONS: ("sheet 1.xml", "sheet%201.xml")},
    ),
    "sheets/amount-grouped-by-its-format.xlsx": _cells({"C2": 250000}, {"C2": '#,##0.00 "KES"'}),
    "sheets/remark-of-two-lines.xlsx": _cells({"H1": "Notes", "H2": "late,\nsee mail\n"}),
    "sheets/remark-of-two-lines.parquet": _parquet(WANJIRU, Notes=["late\v\nsee mail\x07"]),
    "sheets/name-of-two-lines.xlsx": _cells({"E2": "Wanjiru\nKamau", "E3": "Otieno Ouma\n"}),
    "sheets/lists-and-groups.parquet": _parquet(WANJIRU, tags=[["a", "b"]], address=[{"town": "Kisumu"}], photo=[b"x"]),
    "sheets/ids-beside-an-empty-cell.parquet": _parquet(client_orderid=[1001.0, None]),
}


if __name__ == "__main__":
    for name, content in MADE.items():
        (FILES / name).write_bytes(content())
