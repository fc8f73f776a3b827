"""Writing tables completely or not at all, safe for spreadsheets, and readable again."""

import os
import stat
import sys
from pathlib import Path
from unicodedata import normalize
from unittest.mock import Mock

import openpyxl
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paygw_batch.countries.rules import Rules
from paygw_batch.errors import OutputError
from paygw_batch.files import check_writable
from paygw_batch.sheet.check.validate import validate
from paygw_batch.sheet.clean import guard_formulas, unguard_formulas
from paygw_batch.sheet.formats import table_format
from paygw_batch.sheet.read.headings import ReadOptions
from paygw_batch.sheet.read.sheet_file import read_sheet
from paygw_batch.sheet.write.table import rows_to_correct, write_frame
from tests.support.long_part import example_count
from tests.support.sheet_values import GOOD, HEADER, MakeSheet, codes, lines

FRAME = pl.DataFrame(
    {"row": pl.Series([2, 3], dtype=pl.UInt32), "name": ["Aïssatou", None], "=note": ["=1+1", "007"], "n": [1.5, 2]}
)


def test_table_is_written_privately_in_every_format(tmp_path: Path) -> None:
    for extension in ("csv", "parquet", "xlsx"):
        path = tmp_path / f"out.{extension}"
        write_frame(FRAME, path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        recognise = table_format(path).recognise
        assert recognise(path, ["row", "name", "'=note" if extension == "csv" else "=note", "n"])
        assert not recognise(path, ["row", "amount"])
    assert sorted(os.listdir(tmp_path)) == ["out.csv", "out.parquet", "out.xlsx"]  # noqa: PTH208 (hidden files too)
    assert pl.read_parquet(tmp_path / "out.parquet").equals(FRAME)
    assert (tmp_path / "out.csv").read_text() == "row,name,'=note,n\n2,Aïssatou,'=1+1,1.5\n3,,007,2.0\n"
    sheet = openpyxl.load_workbook(tmp_path / "out.xlsx").worksheets[0]
    assert [(cell.value, cell.data_type) for cell in sheet["C"]][1:] == [("=1+1", "s"), ("007", "s")]
    assert sheet["A2"].number_format == "0"


SIGNS = [sign for sign in map(chr, range(sys.maxunicode + 1)) if normalize("NFKC", sign)[:1] in tuple("=@+-\t\r")]
"""Every character that a spreadsheet may convert to the start of a formula, such as full-width ones."""


@pytest.mark.parametrize(
    ("text", "written"),
    [
        *((f"{sign}1x", f"'{sign}1x") for sign in SIGNS),
        *((text, f"'{text}") for text in ("=A1", "@cmd", "\tx", "\rx", "+254 712", "-x", "--1")),
        *((text, text) for text in ("+254712345678", "-1.50", "1500", "'quoted", "", None)),
    ],
)
def test_formula_guard_can_be_removed(text: str | None, written: str | None) -> None:
    column = pl.Series([text], dtype=pl.String)
    assert guard_formulas(column).to_list() == [written]
    assert unguard_formulas(guard_formulas(column)).to_list() == [text]


@settings(deadline=None, max_examples=example_count(200))
@given(st.text())
def test_guarded_text_is_never_a_formula(text: str) -> None:
    written = guard_formulas(pl.Series([text])).item()
    assert written[:1] not in {"=", "@", "\t", "\r"}
    assert written == text or (written[0], written[1:]) == ("'", text)


def test_file_is_synced_before_it_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Mock()
    steps.fsync.side_effect, steps.replace.side_effect = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", steps.fsync)
    monkeypatch.setattr(Path, "replace", lambda path, to: steps.replace(path, to))  # noqa: PLW0108 (a method)
    write_frame(FRAME, tmp_path / "out.csv")
    assert [name for name, _, _ in steps.mock_calls] == ["fsync", "replace", "fsync"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("out.txt", "must have one of these extensions"),
        ("missing/out.csv", "cannot be written: No such file"),
        ("folder.csv", "not a regular file"),
        ("null.csv", "not a regular file"),
    ],
)
def test_unwritable_path_is_reported_before_and_during_writing(tmp_path: Path, name: str, sentence: str) -> None:
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "null.csv").symlink_to("/dev/null")

    refuse = table_format if name == "out.txt" else check_writable
    with pytest.raises(OutputError, match=sentence):
        refuse(tmp_path / name)
    with pytest.raises(OutputError, match=sentence):
        write_frame(FRAME, tmp_path / name)


def test_writability_check_creates_no_file(tmp_path: Path) -> None:
    check_writable(tmp_path / "out.csv")
    assert not list(tmp_path.iterdir())
    with pytest.raises(OutputError, match="at most 1048575 rows"):
        write_frame(pl.DataFrame({"a": pl.repeat("x", 1_048_576, eager=True)}), tmp_path / "out.xlsx")


MIXED = lines(
    GOOD + ',"=1+1, x"',
    'KE,A-2,0,KES,Jane Doe,0712345678,\'+254 712 345 678,"=HYPERLINK(1)"'.replace('"=H', "'=H").replace('1)"', "1)"),
    "KE,A-3,5,KES,,254712345678,0712345678,plain",
    header=HEADER.replace("amount", "Net Amount").replace("phone", "Mobile Phone") + ",Note",
)
ALIASES = {"net amount": "amount", "mobile phone": "phone"}


@pytest.mark.parametrize("extension", ["csv", "parquet", "xlsx"])
def test_corrected_rejects_can_be_submitted(sheet: MakeSheet, rules: Rules, tmp_path: Path, extension: str) -> None:
    first = validate(sheet(MIXED, aliases=ALIASES), rules)
    path = tmp_path / f"pay.rejects.{extension}"
    write_frame(rows_to_correct(first), path)
    again = read_sheet(path, ReadOptions(aliases=ALIASES))
    assert again.frame.columns == first.sheet.frame.columns
    bad = first.sheet.frame.filter(~first.rows["valid"])
    assert again.frame.drop("row").equals(bad.drop("row"))
    assert validate(again, rules).defects["code"].to_list() == first.defects["code"].to_list()


def test_rejects_keep_sender_columns_and_problems(sheet: MakeSheet, rules: Rules, tmp_path: Path) -> None:
    frame = rows_to_correct(validate(sheet(MIXED, aliases=ALIASES), rules))
    assert frame.columns == ["row", "problems", *MIXED.splitlines()[0].split(",")]
    assert frame["row"].to_list() == [3, 4]
    assert frame["problems"].to_list() == [
        "0: the amount must be greater than zero.",
        "5: the minimum amount for Kenya is 10. account_name is missing.",
    ]
    assert frame["Note"].to_list() == ["=HYPERLINK(1)", "plain"]
    validated = validate(sheet(lines(GOOD + ",x")), rules)
    write_frame(rows_to_correct(validated), tmp_path / "r.csv")
    assert codes(validate(read_sheet(tmp_path / "r.csv", ReadOptions()), rules).defects) == [(2, "phone.format")]
    assert rows_to_correct(validated)["phone"].to_list() == ["+254712345678,x"]
    read = sheet(lines(GOOD + ",2,none", header=HEADER + ",row,problems"))
    assert read.unknown == ()
    assert read.notes == ("The columns row and problems come from a rejects file, and are ignored.",)
    validated = validate(sheet(lines(GOOD.replace("1500.50", "0") + ",77", header=HEADER + ",row")), rules)
    write_frame(rows_to_correct(validated), tmp_path / "r.csv")
    again = read_sheet(tmp_path / "r.csv", ReadOptions())
    assert again.frame["row (sheet)"].to_list() == ["77"]
    assert again.frame["row"].to_list() == [2]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=example_count(40))
@given(note=st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=20))
def test_rejects_file_preserves_printable_notes(sheet: MakeSheet, rules: Rules, tmp_path: Path, note: str) -> None:
    quoted = '"' + note.replace('"', '""') + '"'
    validated = validate(sheet(lines(f"{GOOD},{quoted}".replace("1500.50", "0"), header=HEADER + ",note")), rules)
    write_frame(rows_to_correct(validated), tmp_path / "r.csv")
    again = read_sheet(tmp_path / "r.csv", ReadOptions())
    assert again.frame["note"].to_list() == validated.sheet.frame["note"].to_list()
