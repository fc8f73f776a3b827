"""Builds sheets for the command line: workbooks, cover notes and customers."""

import csv
import os
import re
from pathlib import Path

import openpyxl
from openpyxl.worksheet.worksheet import Worksheet

from tests.support.checkout import ROOT
from tests.support.program import HEADING, read_csv

COLLECTED = (
    "country,client_orderid,amount,first_name,last_name,phone,email,address1,city,zip_code,ipaddress,order_desc,"
    "merchant_data"
)


CUSTOMER = "KE,{id},{amount},Jane,Wanjiku,+25471234{n:04},jane@example.com,1 Moi Avenue,Nairobi,00100,192.0.2.1,Shoes,t"


BOTH_WAYS = (
    "country,client_orderid,amount,first_name,last_name,account_name,account_number,cell_phone,phone,email,address1,"
    "city,zip_code,ipaddress,order_desc"
)
READ_BOTH_WAYS = (
    "RW,ID-1,5000,Keza,Gasana,Keza Gasana,250788000103,250788000103,+250788000103,k@example.com,KN 4,Kigali,KG-11,"
    "192.0.2.1,Shoes"
)
"""A heading and a row that can be both paid and collected."""


def customers(count: int, *, amount: str = "1500.50", prefix: str = "COL") -> list[str]:
    return [CUSTOMER.format(id=f"{prefix}-{n}", amount=amount, n=n) for n in range(1, count + 1)]


OLD = (1_700_000_000, 1_700_000_000)


def write_note(sheet: Path, note: str | None) -> Path:
    """Write a cover note next to a sheet, and date both in the past."""
    if note is not None:
        beside = sheet.with_name(f"{sheet.name}.toml")
        beside.write_text(note)
        os.utime(beside, OLD)
    os.utime(sheet, OLD)
    return sheet


def answer_questions(path: Path, *answers: str) -> list[dict[str, str]]:
    """Write answers into a list of questions, and return the list as it was."""
    lines = read_csv(path)
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(lines[0]))
        writer.writeheader()
        writer.writerows({**line, "answer": answer} for line, answer in zip(lines, answers, strict=True))
    return lines


PAGE = (ROOT / "docs" / "mending.md").read_text()


CORRECTIONS = re.findall(r"^\| `([A-Z]+[0-9]+)` \|.*\| `([^`]+)` \|$", PAGE, flags=re.MULTILINE)


def help_examples(workbook: Path) -> list[dict[str, str]]:
    """Return the examples on the help worksheet by country and column."""
    found: dict[str, dict[str, str]] = {}
    lines = openpyxl.load_workbook(workbook)["Help"].iter_rows(values_only=True)
    for column, countries, needed, _, example in list(lines):
        if needed in {"yes", "no"}:
            for country in str(countries).split(", "):
                found.setdefault(country, {})[str(column)] = str(example or "")
    return list(found.values())


def fill_worksheet(workbook: Path, rows: list[dict[str, str]]) -> None:
    """Write rows below the headings into existing cells, as a person does in a spreadsheet."""
    book = openpyxl.load_workbook(workbook)
    sheet = book["Payees"]
    assert isinstance(sheet, Worksheet)
    headings = [str(cell.value) for cell in sheet[1]]
    for number, row in enumerate(rows, start=2):
        for at, heading in enumerate(headings, start=1):
            cell = sheet.cell(number, at)
            cell.number_format = "@"  # Unlike a spreadsheet, openpyxl does not format a new cell like its column.
            cell.value = f"PAY-{number}" if heading == "client_orderid" else row.get(heading)
    book.save(workbook)


def write_workbook(path: Path, heading: str = HEADING, /, **worksheets: list[str]) -> Path:
    """Write a workbook with these worksheets of CSV lines below the heading."""
    book = openpyxl.Workbook()
    assert book.active is not None
    book.remove(book.active)
    for name, rows in worksheets.items():
        worksheet = book.create_sheet(name)
        for row in (heading, *rows):
            worksheet.append(row.split(","))
    book.save(path)
    return path
