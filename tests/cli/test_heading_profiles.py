"""The headings of a new sheet: known profiles are suggested, and people can map unknown headings."""

import tomllib
from pathlib import Path

import openpyxl
import pytest

from tests.support.program import Program, kenyan_rows

ENGLISH = "Country Code,Payment Ref,Net Pay,Currency,Employee Name,Account No,Mobile"
OWN = "Land,Zahlung,Betrag,Währung,Name,Konto,Telefon"


def test_matching_profile_is_suggested_and_used_on_request(program: Program) -> None:
    sheet = program.sheet(["Pay of November,,,,,,", ENGLISH, *kenyan_rows(2)], "pay.csv", "Muster GmbH,,,,,,")
    for command in ("validate", "submit"):
        refused = program.run(command, sheet)
        assert refused.exit_code == 3
        assert "row 3: these are headings of the profile payroll-english." in refused.stderr.replace("\n", " ")
        assert "--column-profile payroll-english" in refused.stderr
    assert program.record() == []
    assert program.json("submit", sheet, "--column-profile", "payroll-english")["states"] == {"paid": 2}


def test_option_overrides_configured_profile(program: Program) -> None:
    program.config.write_text(program.config.read_text() + '\n[sheet]\ncolumn_profile = "payroll-french"\n')
    sheet = program.sheet(kenyan_rows(1), "pay.csv", ENGLISH)
    assert "the profile payroll-english" in program.run("submit", sheet).stderr
    assert program.json("submit", sheet, "--column-profile", "payroll-english")["states"] == {"paid": 1}


def test_payroll_worksheet_is_found_among_others(program: Program) -> None:
    book = openpyxl.Workbook()
    assert book.active is not None
    book.active.title = "Cover"
    book.active.append(["Payroll of November, 14 people, 3 departments"])
    notes = book.create_sheet("Notes")
    notes.append(["Name", "Remark", "Amount"])
    pay = book.create_sheet("Staff pay")
    for row in (ENGLISH, *kenyan_rows(1)):
        pay.append(row.split(","))
    path = program.home / "pay.xlsx"
    book.save(path)
    refused = " ".join(program.run("validate", path).stderr.split())
    assert "pay.xlsx, worksheet 'Staff pay', row 1: these are headings of the profile payroll-english." in refused
    headings = program.home / "map.toml"
    program.run("validate", path, "--map", headings)
    assert '"Net Pay" = "amount"' in headings.read_text()
    assert program.json("validate", path, "--column-profile", "payroll-english")["exit_code"] == 0


def test_missing_column_suggests_matching_profile(program: Program) -> None:
    heading = "country,client_orderid,amount,currency,Employee Name,account_number,phone"
    result = program.run("validate", program.sheet(kenyan_rows(1), "pay.csv", heading))
    assert (result.exit_code, "does not have these columns: account_name" in result.stderr) == (3, True)
    error_output = result.stderr.replace("\n", " ")
    assert "'Employee Name' is a heading of the column profile payroll-english. Choose that profile." in error_output
    taken = program.json("validate", program.home / "pay.csv", "--column-profile", "payroll-english")
    assert taken["exit_code"] == 0


def test_edited_heading_map_is_used_as_profile(program: Program) -> None:
    sheet = program.sheet(["Pay of November,,,,,,", *kenyan_rows(2)], "pay.csv", "Muster GmbH,,,,,,")
    lines = sheet.read_text().splitlines()
    sheet.write_text("\n".join([*lines[:2], OWN, *lines[2:]]) + "\n")
    file = program.home / "own.toml"
    result = program.run("validate", sheet, "--map", file)
    assert result.exit_code == 3
    assert "--map FILE.toml" in result.stderr.replace("\n", " ")
    text = file.read_text()
    guessed = tomllib.loads(text)["columns"]  # inferred from the cells only, except for a name
    assert list(guessed.values()) == ["country", "", "", "currency", "account_name", "phone", ""]
    meant = ("country", "client_orderid", "amount", "currency", "account_name", "account_number", "phone")
    for (heading, guess), column in zip(guessed.items(), meant, strict=True):
        text = text.replace(f'"{heading}" = "{guess}"', f'"{heading}" = "{column}"')
    assert list(tomllib.loads(text)["columns"].values()) == list(meant)
    file.write_text(text)
    assert program.json("validate", sheet, "--column-profile", file)["exit_code"] == 0
    assert program.json("submit", sheet, "--column-profile", file)["states"] == {"paid": 2}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[columns]\n"Zahl" = "amout"\n', "'Zahl' is mapped to 'amout', which is not a column. Did you mean amount?"),
        ('[columns]\n"Zahl" = 7\n', "which is not a column"),
        ('[column]\n"Zahl" = "amount"\n', "must contain [columns] and nothing else"),
        ("nonsense", "is not TOML"),
    ],
)
def test_invalid_column_profile_is_refused_with_message(program: Program, text: str, said: str) -> None:
    (program.home / "own.toml").write_text(text)
    result = program.run("validate", program.sheet(kenyan_rows(1)), "--column-profile", program.home / "own.toml")
    assert result.exit_code == 2
    assert said in result.stderr.replace("\n", " ")


def test_heading_map_never_replaces_unrelated_file(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(1))
    other = program.home / "notes.toml"
    other.write_text("mine\n")
    assert program.run("validate", sheet, "--map", other).exit_code == 2
    assert other.read_text() == "mine\n"
    assert program.run("validate", sheet, "--map", program.config).exit_code == 2
    assert program.run("validate", sheet, "--map", "headings.txt").exit_code == 2
    fresh = Path(program.home / "own.toml")
    for _ in range(2):  # the program may replace its own file
        assert program.run("validate", sheet, "--map", fresh).exit_code == 0
