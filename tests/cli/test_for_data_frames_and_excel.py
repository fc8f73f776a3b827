"""Reconciliations for data frames have typed columns besides the text; those for Excel keep every digit."""

import csv
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest

from paygw_batch.sheet.clean import wrap_for_spreadsheets
from tests.support.program import HEADING, Program, kenyan_rows

BOM = b"\xef\xbb\xbf"
ODD = [
    "KE,0712,1500.50,KES,Jane Wanjiku,254712345001,0712345001,1/2",
    "KE,MAR-1,9001,KES,Ann,254712345002,+254712345002,x",
]


@pytest.fixture
def paid(program: Program) -> Path:
    """Pay a sheet whose ids a spreadsheet reads as a number and a date; its second row is rejected."""
    sheet = program.sheet(ODD, heading=f"{HEADING},amount_decimal")
    program.json("submit", sheet)
    return sheet


def rows_of(path: Path, delimiter: str) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8-sig") as stream:
        return list(csv.DictReader(stream, delimiter=delimiter))


def test_parquet_reconciliation_adds_typed_amounts_and_times(program: Program, paid: Path) -> None:
    out = program.home / "out.parquet"
    program.json("reconcile", paid, "--out", out)
    frame = pl.read_parquet(out)
    assert frame["amount_decimal"].to_list() == ["1/2", "x"]  # the sender's column keeps its name
    typed = frame.columns[-3:]
    assert typed == ["amount_decimal_", "first_sent_at_utc", "updated_at_utc"]
    assert [str(frame.schema[name]) for name in typed] == [
        "Decimal(precision=38, scale=4)",
        *2 * ["Datetime(time_unit='us', time_zone='UTC')"],
    ]
    assert frame["amount_decimal_"].to_list() == [Decimal("1500.50"), Decimal(9001)]
    for text, time in frame.select("first_sent_at", "first_sent_at_utc").iter_rows():
        assert datetime.fromisoformat(text) == time.astimezone(UTC)


def test_unreadable_amount_is_null_in_parquet(program: Program) -> None:
    sheet = program.sheet([*kenyan_rows(1), "KE,BAD-1,1e3,KES,Jane,254712345678,+254712345678"])
    out = program.home / "out.parquet"
    program.json("submit", sheet, "--skip-invalid", "--out", out)
    frame = pl.read_parquet(out)
    assert frame["amount"].to_list() == ["1500.50", "1e3"]
    assert frame["amount_decimal"].to_list() == [Decimal("1500.50"), None]
    assert frame["first_sent_at_utc"][1] is None


def test_csv_for_excel_keeps_every_digit(program: Program, paid: Path) -> None:
    out = program.home / "out.csv"
    program.json("reconcile", paid, "--out", out, "--for-excel")
    assert out.read_bytes().startswith(BOM)
    first, second = rows_of(out, ",")
    assert (first["row"], first["amount"]) == ("2", "1500.50")
    assert (first["client_orderid"], second["client_orderid"]) == ('="0712"', '="MAR-1"')
    assert (first["account_number"], first["phone"]) == ('="254712345001"', '="+254712345001"')
    assert (first["account_name"], first["amount_decimal"]) == ("Jane Wanjiku", '="1/2"')
    assert first["updated_at"].endswith("Z")
    program.json("reconcile", paid, "--out", out, "--for-excel")  # the program may replace its own file


def test_french_excel_csv_uses_semicolon_and_comma(program: Program, paid: Path) -> None:
    out = program.home / "out.csv"
    program.json("--lang", "fr", "reconcile", paid, "--out", out, "--for-excel")
    first, second = rows_of(out, ";")
    assert (first["amount"], second["amount"]) == ("1500,50", "9001")


@pytest.mark.parametrize("command", ["submit", "resume", "retry"])
def test_each_command_writes_csv_for_excel(program: Program, paid: Path, command: str) -> None:
    out = program.home / "out.csv"
    program.json(command, paid, "--out", out, "--for-excel")
    assert out.read_bytes().startswith(BOM)
    assert program.run(command, paid, "--out", program.home / "out.xlsx", "--for-excel").exit_code == 2


def test_resubmitted_excel_file_pays_nothing(program: Program, paid: Path) -> None:
    out = program.home / "out.csv"
    program.json("reconcile", paid, "--out", out, "--for-excel")
    again = program.json("submit", out, "--dry-run")
    assert (again["known"], again["states"]) == (2, {"paid": 1, "rejected": 1})


@pytest.mark.parametrize("text", ["0712", "1e5", "12.50", "1-2", "3/4", "2:30", "SEP2", "mars 2026", "TRUE", "+254"])
def test_spreadsheet_sensitive_text_is_quoted(text: str) -> None:
    assert wrap_for_spreadsheets(pl.Series([text])).to_list() == [f'="{text}"']


@pytest.mark.parametrize("text", ["A-1", "Jane Wanjiku", "", "'=1", "2026-11-24T10:40:13.402Z", "1" * 256, '1"2'])
def test_text_safe_in_spreadsheets_is_unchanged(text: str) -> None:
    assert wrap_for_spreadsheets(pl.Series([text])).to_list() == [text]
