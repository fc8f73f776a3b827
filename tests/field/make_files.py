"""`python -m tests.field.make_files`: write the corpus, a file for each report of a failure.

For a new report, add a line here or a file to `files/`, and its expected result to `answers.toml`.
"""

import io
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
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
_NIGERIAN = ("NG", "A-1", 1500.5, "NGN", "Amina Bello", "0123456789", "+2348031234567")
_UGANDAN = ("UG", "A-1", 1500, "UGX", "Akello Okot", "256772345678", "+256772345678")
STYLES, WORKBOOK, TYPES = "xl/styles.xml", "xl/workbook.xml", "[Content_Types].xml"
RELATIONS, ROOT, SHEET = "xl/_rels/workbook.xml.rels", "_rels/.rels", "xl/worksheets/sheet1.xml"


def workbook(change: Callable[[Worksheet], object] = lambda _: None) -> bytes:
    """Return a workbook that pays two people, after `change`."""
    book = Workbook()
    sheet = book.worksheets[0]
    for row in (HEADINGS, WANJIRU, OTIENO):
        sheet.append(row)
    change(sheet)
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


def add_oddities(sheet: Worksheet) -> None:
    """Strike a row through, and display an amount in thousands and an id with leading zeros."""
    for cell in sheet[2]:
        cell.font = Font(strike=True)
    sheet["C3"].number_format = "#,##0,"


def workbook_with_runs() -> bytes:
    """Return a workbook with a partly struck-through name and a partly white amount."""
    file = io.BytesIO()
    with xlsxwriter.Workbook(file) as book:
        sheet = book.add_worksheet()
        for at, row in enumerate((HEADINGS, WANJIRU, OTIENO)):
            sheet.write_row(at, 0, row)
        sheet.write_rich_string("E2", book.add_format({"font_strikeout": True}), "Achieng ", "Wanjiru Kamau")
        sheet.write_rich_string("C3", book.add_format({"font_color": "white"}), "1", "500")
    return repack_workbook(file.getvalue())


def statement_workbook(change: Callable[[Worksheet], object]) -> bytes:
    """Return a statement about two orders as a workbook, after `change`."""
    book = Workbook()
    sheet = book.worksheets[0]
    for row in (
        ("order_id", "amount", "currency", "status", "time"),
        (1001, 1500.5, "KES", "approved", date(2026, 11, 28)),
        (1002, 2000, "KES", "declined", date(2026, 11, 28)),
    ):
        sheet.append(row)
    change(sheet)
    file = io.BytesIO()
    book.save(file)
    return repack_workbook(file.getvalue())


def _strike_a_line(sheet: Worksheet) -> None:
    for cell in sheet[2]:
        cell.font = Font(strike=True)


def _formats(**codes: str) -> Callable[[Worksheet], None]:
    def change(sheet: Worksheet) -> None:
        for place, code in codes.items():
            sheet[place].number_format = code

    return change


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
            csv_text = _TIME.sub("2026-11-28T00:00:00Z", before.read(name).decode())
            for old, new in (renamed or {}).items():
                if name in {TYPES, RELATIONS, ROOT} and "/" in new:
                    csv_text = csv_text.replace(old.rpartition("/")[2], new.rpartition("/")[2])
            if name in (edits or {}):
                old, new = (edits or {})[name]
                assert old in csv_text, (name, old, csv_text[:2000])
                csv_text = csv_text.replace(old, new)
            if name != left_out:
                _write(after, (renamed or {}).get(name, name), csv_text)
        for name, csv_text in (added or {}).items():
            _write(after, name, csv_text)
    return file.getvalue()


def _write(archive: zipfile.ZipFile, name: str, csv_text: str) -> None:
    archive.writestr(zipfile.ZipInfo(name, (2026, 11, 28, 0, 0, 0)), csv_text, zipfile.ZIP_DEFLATED)


def _workbook_with_cells(values: Mapping[str, Any], formats: Mapping[str, str] | None = None) -> bytes:
    """Return the workbook with these cell values and formats."""

    def change(sheet: Worksheet) -> None:
        for place, value in values.items():
            sheet[place] = value
        for place, code in (formats or {}).items():
            sheet[place].number_format = code

    return repack_workbook(workbook(change))


def csv_text(*rows: str, further: str = "", end: str = "\n") -> bytes:
    """Return a CSV text, with `further` headings."""
    return "".join(row + end for row in (",".join(HEADINGS) + further, *rows)).encode()


def csv_row(order_id: str = "A-1", name: str = "Wanjiru Kamau", phone: str = "+254712345678", more: str = "") -> str:
    """Return a CSV row that pays one person."""
    return f"KE,{order_id},1500.50,KES,{name},254712345678,{phone}{more}"


def parquet_file(**further: Any) -> bytes:
    """Return a Parquet file that pays one person, with further or replaced columns."""
    columns = {name: [str(value)] for name, value in zip(HEADINGS, WANJIRU, strict=True)}
    file = io.BytesIO()
    pl.DataFrame(columns | further).write_parquet(file)
    return file.getvalue()


def csv_of_names(*names: str) -> bytes:
    """Return a CSV text that pays people with these names, each to their own account."""
    rows = (csv_row(f"A-{n}", name).replace("254712345678", f"25471234567{n}") for n, name in enumerate(names))
    return csv_text(*rows)


_TIME = re.compile("20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z")
"""The library's timestamps, which would make files irreproducible."""


def _amounts_last(*amounts: str, heading: str) -> bytes:
    """Return a CSV text that ends with the amount and `heading`. Amounts include the rest of their rows."""
    headings = ",".join(name for name in HEADINGS if name != "amount")
    rows = (f"KE,A-{n},KES,Wanjiru Kamau,25471234567{n},+25471234567{n},{one}\n" for n, one in enumerate(amounts))
    return f"{headings},amount{heading}\n{''.join(rows)}".encode()


def replace_in(row: Sequence[Any], **values: Any) -> tuple[Any, ...]:
    """Return a row with replaced values."""
    return tuple(values.get(name, value) for name, value in zip(HEADINGS, row, strict=True))


def _csv(*rows: Sequence[Any]) -> bytes:
    return "".join(",".join(map(str, row)) + "\n" for row in (HEADINGS, *rows)).encode()


def _parquet(**columns: pl.Series | list[Any]) -> bytes:
    """Return a Parquet file that pays two people, with replaced columns."""
    two = {name: [str(one), str(other)] for name, one, other in zip(HEADINGS, WANJIRU, OTIENO, strict=True)}
    file = io.BytesIO()
    pl.DataFrame({**two, **columns}).write_parquet(file)
    return file.getvalue()


_OTHER = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/worksheet"
_STYLES_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml.styles+xml"
MADE: Mapping[str, Callable[[], bytes]] = {
    "sheets/styles-of-another-name.xlsx": lambda: repack_workbook(
        workbook(add_oddities), renamed={STYLES: "xl/styles1.xml"}
    ),
    "sheets/styles-in-capitals.xlsx": lambda: repack_workbook(
        workbook(add_oddities), renamed={STYLES: "xl/Styles.xml"}
    ),
    "sheets/styles-decoy.xlsx": lambda: repack_workbook(
        workbook(add_oddities), renamed={STYLES: "xl/styles1.xml"}, added={STYLES: "<styleSheet/>"}
    ),
    "sheets/styles-missing.xlsx": lambda: repack_workbook(workbook(add_oddities), left_out=STYLES),
    "sheets/styles-not-referred-to.xlsx": lambda: repack_workbook(
        workbook(add_oddities), edits={RELATIONS: ("/relationships/styles", "/relationships/other")}
    ),
    "sheets/styles-twice.xlsx": lambda: repack_workbook(
        workbook(add_oddities),
        edits={TYPES: ("</Types>", f'<Override PartName="/xl/styles2.xml" ContentType="{_STYLES_TYPE}"/></Types>')},
        added={"xl/styles2.xml": "<styleSheet/>"},
    ),
    "sheets/part-twice.xlsx": lambda: repack_workbook(workbook(), added={"XL/Workbook.xml": "<workbook/>"}),
    "sheets/workbook-of-another-name.xlsx": lambda: repack_workbook(
        workbook(), renamed={WORKBOOK: "xl/workbook22.xml", RELATIONS: "xl/_rels/workbook22.xml.rels"}
    ),
    "sheets/backslashes.xlsx": lambda: repack_workbook(
        workbook(), renamed={name: name.replace("/", "\\") for name in (SHEET, RELATIONS, WORKBOOK, STYLES)}
    ),
    "sheets/worksheet-missing.xlsx": lambda: repack_workbook(workbook(), left_out=SHEET),
    "sheets/pronunciation.xlsx": lambda: repack_workbook(
        workbook(), edits={SHEET: ("<t>Wanjiru Kamau</t>", '<t>Wanjiru Kamau</t><rPh sb="0" eb="3"><t>WAN</t></rPh>')}
    ),
    "sheets/ids-shown-with-zeros.xlsx": lambda: _workbook_with_cells(
        {"B2": 1, "B3": 2}, {"B2": "00000", "B3": "00000"}
    ),
    "sheets/phone-with-its-code-in-the-format.xlsx": lambda: _workbook_with_cells({"G2": 712345678}, {"G2": '"+254"0'}),
    "sheets/id-grouped-by-its-format.xlsx": lambda: _workbook_with_cells({"B2": 20261128}, {"B2": "0000-00-00"}),
    "sheets/id-in-a-date-cell.xlsx": lambda: _workbook_with_cells({"B2": date(2026, 3, 1)}, {"B2": "d-mmm"}),
    "sheets/cents-by-a-sign-in-the-format.xlsx": lambda: _workbook_with_cells({"C2": 150050}, {"C2": '0"."00'}),
    "sheets/id-with-a-prefix-in-the-format.xlsx": lambda: _workbook_with_cells({"B2": "17"}, {"B2": '"PAY-"@'}),
    "sheets/phone-of-another-country-in-the-format.xlsx": lambda: _workbook_with_cells(
        {"G2": 712345678}, {"G2": '"+256"0'}
    ),
    "sheets/cell-with-two-values.xlsx": lambda: repack_workbook(
        workbook(), edits={SHEET: ("<v>2000</v>", "<v>2000</v><v>00</v>")}
    ),
    "sheets/cell-of-another-row.xlsx": lambda: repack_workbook(workbook(), edits={SHEET: ('<c r="C3"', '<c r="C9"')}),
    "sheets/two-parts-of-one-number.xlsx": lambda: repack_workbook(
        workbook(),
        edits={
            RELATIONS: ("</Relationships>", f'<Relationship Id="rId1" Type="{_OTHER}" Target="x.xml"/></Relationships>')
        },
    ),
    "sheets/texts-struck-or-white-in-part.xlsx": workbook_with_runs,
    "statements/workbook.xlsx": lambda: statement_workbook(_formats(B2="#,##0.00", B3="[$KSh-441] #,##0.00")),
    "statements/line-struck.xlsx": lambda: statement_workbook(_strike_a_line),
    "statements/line-hidden.xlsx": lambda: statement_workbook(
        lambda sheet: setattr(sheet.row_dimensions[3], "hidden", True)
    ),
    "statements/column-hidden.xlsx": lambda: statement_workbook(
        lambda sheet: setattr(sheet.column_dimensions["D"], "hidden", True)
    ),
    "statements/status-under-another.xlsx": lambda: statement_workbook(lambda sheet: sheet.merged_cells.add("D2:D3")),
    "statements/id-shown-with-zeros.xlsx": lambda: statement_workbook(_formats(A3="000000")),
    "statements/amount-shown-in-thousands.xlsx": lambda: statement_workbook(_formats(B3="#,##0,")),
    "statements/amount-in-another-currency.xlsx": lambda: statement_workbook(_formats(B3="[$$-409]#,##0.00")),
    "sheets/font-missing.xlsx": lambda: repack_workbook(
        workbook(add_oddities), edits={STYLES: ('fontId="1"', 'fontId="7"')}
    ),
    "sheets/fill-missing.xlsx": lambda: repack_workbook(
        workbook(add_oddities), edits={STYLES: ('fontId="1" fillId="0"', 'fontId="1" fillId="7"')}
    ),
    "sheets/number-format-missing.xlsx": lambda: repack_workbook(
        workbook(add_oddities), edits={STYLES: ('<numFmt numFmtId="164"', '<numFmt numFmtId="199"')}
    ),
    "sheets/ids-shown-with-decimals.xlsx": lambda: _workbook_with_cells(
        {"B2": 1001.1, "B3": 1001}, {"B2": "0.00", "B3": '"PAY-"0.0'}
    ),
    "sheets/ids-shown-in-groups.xlsx": lambda: _workbook_with_cells(
        {"B2": 1001, "B3": 100000}, {"B2": "#,##0", "B3": "0.0E+00"}
    ),
    "sheets/ids-shown-as-they-are.xlsx": lambda: _workbook_with_cells(
        {"B2": 1001, "B3": 1001.1}, {"B2": "0", "B3": "0.0"}
    ),
    "sheets/ids-true-and-false.xlsx": lambda: _workbook_with_cells({"B2": True, "B3": False}),
    "sheets/ids-true-and-false.parquet": lambda: _parquet(client_orderid=[True, False]),
    "sheets/ids-of-dates.parquet": lambda: _parquet(client_orderid=[date(2026, 3, 1), date(2026, 3, 2)]),
    "sheets/amounts-in-another-currency.xlsx": lambda: _workbook_with_cells(
        {}, {"C2": "[$$-409]#,##0.00", "C3": '"USD" #,##0'}
    ),
    "sheets/amounts-in-their-currency.xlsx": lambda: _workbook_with_cells(
        {}, {"C2": '"KSh. "#,##0.00_);[Red]("KSh"#,##0.00)', "C3": '[$KES] #,##0"/="'}
    ),
    "sheets/amounts-grouped-by-signs.xlsx": lambda: _workbook_with_cells(
        {"C2": 1500, "C3": 12345}, {"C2": "#'##0", "C3": r"#\.##0"}
    ),
    "sheets/value-with-an-underscore.xlsx": lambda: repack_workbook(
        workbook(), edits={SHEET: ("<v>2000</v>", "<v>2_000</v>")}
    ),
    "sheets/text-in-a-cell-of-numbers.xlsx": lambda: repack_workbook(
        workbook(add_oddities), edits={SHEET: ('t="n"><v>2000</v>', "><is><t>2000 KES</t></is>")}
    ),
    "sheets/cell-with-two-texts.xlsx": lambda: repack_workbook(
        workbook(), edits={SHEET: ("<is><t>A-2</t></is>", "<is><t>A-2</t></is><is><t>A-3</t></is>")}
    ),
    "sheets/value-in-other-digits.xlsx": lambda: repack_workbook(
        workbook(), edits={SHEET: ("<v>2000</v>", "<v>\u0662\u0660\u0660\u0660</v>")}
    ),
    "sheets/part-with-an-escaped-name.xlsx": lambda: repack_workbook(
        repack_workbook(workbook(), renamed={SHEET: "xl/worksheets/sheet 1.xml"}),
        edits={RELATIONS: ("sheet 1.xml", "sheet%201.xml")},
    ),
    "statements/line-inside-quotation-marks.csv": (
        'order_id,amount,currency,status,remark\nS-3,9007.00,KES,declined,"see below\nS-3,9007.00,KES,approved,final"\n'
    ).encode,
    "sheets/row-of-semicolons-inside-quotation-marks.csv": (
        ",".join([*HEADINGS, "Notes"]) + "\n"
        'KE,A-1,1500.50,KES,Wanjiru Kamau,254712345678,+254712345678,"late\n'
        "KE;A-2;2000;KES;Otieno Ouma;254712345679;+254712345679\n"
        'x"\nKE,A-3,3000,KES,Achieng Odhiambo,254712345670,+254712345670,ok\n'
    ).encode,
    "sheets/row-inside-quotation-marks.csv": (
        ",".join([*HEADINGS, "Notes", "X", "Y"]) + "\n"
        "KE,A-1,1500.50,KES,Wanjiru Kamau,254712345678,+254712345678,ok,,\n"
        'KE,A-2,2000,KES,Otieno Ouma,254712345679,+254712345679,"late\n'
        'KE,A-3,3000,KES,Achieng Odhiambo,254712345670,+254712345670"\n'
    ).encode,
    "sheets/amount-grouped-by-its-format.xlsx": lambda: _workbook_with_cells({"C2": 250000}, {"C2": '#,##0.00 "KES"'}),
    "sheets/remark-of-two-lines.csv": lambda: csv_text(
        csv_row(more=',"late, see mail\r\n\r\nof May"'), csv_row("A-2", more=",x"), further=",Notes", end="\r\n"
    ),
    "sheets/remark-of-two-lines.xlsx": lambda: _workbook_with_cells({"H1": "Notes", "H2": "late,\nsee mail\n"}),
    "sheets/remark-of-two-lines.parquet": lambda: parquet_file(Notes=["late\v\nsee mail\x07"]),
    "sheets/remark-that-swallows-a-row.csv": lambda: csv_text(
        csv_row(more=',"x'), csv_row("A-2", more=',y"'), further=",Notes"
    ),
    "sheets/name-of-two-lines.csv": lambda: csv_text(
        csv_row(name='"Wanjiru\nKamau"'), csv_row("A-2", '"Wanjiru Kamau\n"')
    ),
    "sheets/name-of-two-lines.xlsx": lambda: _workbook_with_cells({"E2": "Wanjiru\nKamau", "E3": "Otieno Ouma\n"}),
    "sheets/phone-of-two-lines.csv": lambda: csv_text(csv_row(phone='"+254712\n345678"')),
    "sheets/lists-and-groups.parquet": lambda: parquet_file(
        tags=[["a", "b"]], address=[{"town": "Kisumu"}], photo=[b"x"]
    ),
    "sheets/amounts-in-lists.parquet": lambda: parquet_file(amount=[[1500]]),
    "sheets/lost-characters.csv": lambda: csv_text(csv_row("A-\ufffd"), csv_row("A-2", "A\ufffdcha")),
    "sheets/damaged-names.csv": lambda: csv_of_names(
        "A\u00c3\u00afcha", "N&#39;Diaye", "<b>Awa</b>", "Amina nan", "Jos\u221a\u00a9", "N%27Diaye", "Awa_x000D_ Diop"
    ),
    "sheets/words-for-no-name.csv": lambda: csv_of_names("nan", "NaN", "undefined", "null", "None", "<NA>", "NaT"),
    "sheets/odd-names.csv": lambda: csv_of_names(
        "M\u00aa Jos\u00e9", "\u00bd Ltd", "Acme\u00ae \u2122", "Nan Li", "ANDR\u00c9\u2019S", "J\u00e9r\u00f4me & Fils"
    ),
    "sheets/comma-at-each-end.csv": lambda: csv_text(csv_row(more=","), csv_row("A-2", more=",")),
    "sheets/field-too-many-in-each-row.csv": lambda: csv_text(csv_row(more=",x"), csv_row("A-2", more=",y")),
    "sheets/tab-too-many-in-each-row.tsv": lambda: csv_text(csv_row(more=",x"), csv_row("A-2", more=",y")).replace(
        b",", b"\t"
    ),
    "sheets/comma-that-may-be-in-a-name.csv": lambda: csv_text(
        *(f"KE,{phone},{phone},A-{phone[-1]},10.00,Kamau, W," for phone in ("254712345678", "254712345679"))
    ).replace(",".join(HEADINGS).encode(), b"country,phone,account_number,client_orderid,amount,account_name,Notes"),
    "sheets/headings-without-a-name.csv": lambda: csv_text(csv_row(), csv_row("A-2"), further=",,"),
    "sheets/end-of-a-dos-file.csv": lambda: csv_text(csv_row(), end="\r\n") + b"\x1a",
    "sheets/phone-for-a-bank-account.csv": lambda: _csv(
        replace_in(_NIGERIAN, account_number="8031234567"),
        replace_in(_NIGERIAN, client_orderid="A-2", account_number="0123456789"),
        replace_in(_NIGERIAN, client_orderid="A-3", account_number="803 123 4567", amount=2000),
    ),
    "sheets/wallet-of-another-phone.csv": lambda: _csv(WANJIRU, replace_in(OTIENO, account_number="0733123456")),
    "sheets/amount-of-a-formula.xlsx": lambda: _workbook_with_cells(
        {"C2": 1234.5600000000002, "C3": 45833.333333333336}
    ),
    "sheets/amount-of-a-formula.csv": lambda: _csv(
        replace_in(WANJIRU, amount=1234.5600000000002), replace_in(OTIENO, amount=45833.333333333336)
    ),
    "sheets/amount-of-a-formula.parquet": lambda: _parquet(amount=[1234.5600000000002, 45833.333333333336]),
    "sheets/amount-without-decimals.csv": lambda: _csv(
        replace_in(_UGANDAN, amount="45833.5"), replace_in(_UGANDAN, client_orderid="A-2", amount="1.500")
    ),
    "sheets/ids-beside-an-empty-cell.parquet": lambda: _parquet(client_orderid=[1001.0, None]),
    "sheets/ids-of-fractions.parquet": lambda: _parquet(client_orderid=[1001.1, 1002.0]),
    "sheets/thousands-behind-no-heading.csv": lambda: _amounts_last("11,500", "12,000", "900,", heading=","),
    "sheets/thousands-behind-no-heading-after-a-town.csv": lambda: _amounts_last("11,500,Nakuru", heading=",Town,"),
    "sheets/thousands-in-a-column-of-notes.csv": lambda: _amounts_last(
        "11,500.00", "20,late", "KES 12,000", "2500,ok", heading=",Notes"
    ),
    "sheets/decimal-commas-in-a-column-of-notes.csv": lambda: _amounts_last("1500,50", "12000,00", heading=",Notes"),
    "sheets/days-behind-small-amounts.csv": lambda: _amounts_last("500,22", "650,30", heading=",Days"),
    "sheets/days-behind-amounts.csv": lambda: _amounts_last("45000,22", "500,30", "61000,31", heading=",Days"),
    "sheets/remark-behind-no-heading.csv": lambda: _amounts_last("1500,late", "2500.50,22", "3000,", heading=","),
    "sheets/thousands-with-a-currency-in-a-column-of-notes.csv": lambda: _amounts_last(
        "15,000 shillings", "900,", heading=",Notes"
    ),
    "sheets/thousands-before-empty-columns.csv": lambda: _amounts_last("11,500,,", "12,000,,", heading=",Notes,Town,"),
    "sheets/codes-behind-small-amounts.csv": lambda: _amounts_last(
        "150,001,Thika", "160,002,Kisumu", heading=",Branch,Town"
    ),
    "sheets/days-before-a-remark-behind-no-heading.csv": lambda: _amounts_last("16000,21,late", heading=",Days,"),
    "sheets/ids-behind-an-apostrophe.csv": lambda: csv_text(csv_row("'0001")),
    "sheets/heading-of-two-lines.csv": lambda: csv_text(csv_row(more=",x"), further=',"Notes\n(ours)"'),
    "sheets/first-heading-of-two-lines.csv": lambda: b'"Notes\n(ours)",' + csv_text("x," + csv_row()),
    "sheets/headings-again-behind-one-of-two-lines.csv": lambda: (
        csv_text(csv_row(more=",x"), further=',"Notes\n(ours)"') + csv_text(csv_row("A-2", more=",y"), further=",Notes")
    ),
    "sheets/heading-that-is-needed-of-two-lines.csv": lambda: csv_text(csv_row()).replace(b"amount", b'"net\namount"'),
    "sheets/amounts-that-no-proposal-fits.csv": lambda: _csv(
        replace_in(WANJIRU, amount='"1,5000"'),
        replace_in(OTIENO, amount='"0,00"'),
        replace_in(_UGANDAN, client_orderid="A-3", amount='"1,500.00"'),
        replace_in(_UGANDAN, client_orderid="A-4", amount='"1,500.50"'),
    ),
    "sheets/names-with-lost-letters.csv": lambda: csv_of_names(
        "Jos? Ndiaye",
        "Amina NULL",
        "Myint None",
        "Wan\u00adjiru Kamau",
        "Wan\u200bjiru",
        "\u0645\u06cc\u200c\u062e\u0648",
    ),
    "statements/comma-at-each-end.csv": b"order_id,amount,currency,status\nS-1,1500,KES,ok,\nS-2,20,KES,ok,,\n".strip,
    "statements/comma-in-an-amount.csv": b"order_id,amount,currency,status\nS-1,1,500,KES,approved\n".strip,
    "sheets/floats-of-32-bits.parquet": lambda: _parquet(amount=pl.Series([1234.56, 1500], dtype=pl.Float32)),
}


def write_files() -> None:
    """Write all files."""
    for name, content in MADE.items():
        path = FILES / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content())


if __name__ == "__main__":
    write_files()
