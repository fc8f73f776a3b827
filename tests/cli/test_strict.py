"""Warnings and `--strict`, for people and cron jobs."""

import openpyxl

from tests.cli.sheets import write_workbook
from tests.support.program import ROOT, Program, kenyan_rows

DOUBTFUL = "KE,PAY-9,10,KES,OK,254712000009,+254712000009"


def test_text_output_groups_warnings(program: Program) -> None:
    sheet = program.sheet([*kenyan_rows(2), *(DOUBTFUL.replace("9", str(n)) for n in range(3, 8))])
    result = program.run("validate", sheet)
    assert (result.exit_code, "account_name.placeholder: 5 rows" in result.stdout) == (0, True)
    assert "Row 4, account_name: OK does not look like a name" in result.stdout
    assert "... and 2 more." in result.stdout
    summary = program.json("validate", sheet)
    assert (summary["exit_code"], summary["warnings"], summary["defects"]) == (0, 5, 0)
    assert {warning["code"] for warning in summary["warning_list"]} == {"account_name.placeholder"}
    assert set(summary["warning_list"][0]) == {"row", "column", "heading", "value", "code", "message"}


def test_submit_strict_refuses_sheet_with_warnings(program: Program) -> None:
    sheet = program.sheet([*kenyan_rows(2), DOUBTFUL])
    for options in (["--strict"], ["--strict", "--dry-run"]):
        summary = program.json("submit", sheet, *options)
        assert (summary["exit_code"], "--strict --rejects " in summary["message"]) == (3, True)
    assert not program.record()
    paid = program.json("submit", sheet)
    assert (paid["exit_code"], paid["states"], paid["warnings"]) == (0, {"paid": 3}, 1)


def test_strict_refuses_rows_resembling_earlier_payments(program: Program) -> None:
    program.json("submit", program.sheet(kenyan_rows(2)))
    rows = [*kenyan_rows(1, prefix="NEW"), "KE,NEW-7,77,KES,Jane Wanjiku,254712345777,+254712345777"]
    sheet = program.sheet(rows, "second.csv")
    lax = program.json("submit", sheet, "--dry-run")
    assert [warning["code"] for warning in lax["warning_list"]] == ["row.look_alike"]
    assert program.json("submit", sheet, "--strict")["exit_code"] == 3
    first = program.json("submit", sheet, "--strict", "--skip-invalid")
    again = program.json("submit", sheet, "--strict", "--skip-invalid")
    assert first["states"] == again["states"] == {"paid": 1, "invalid": 1}
    assert (first["batch"], first["exit_code"], again["exit_code"]) == (again["batch"], 4, 4)
    assert (again["sent_this_run"], len(program.record())) == (0, 3)


def test_strict_refuses_hidden_column_even_with_skip_invalid(program: Program) -> None:
    sheet = write_workbook(program.home / "pay.xlsx", Pay=kenyan_rows(2))
    book = openpyxl.load_workbook(sheet)
    book["Pay"].column_dimensions["C"].hidden = True
    book.save(sheet)
    refused = program.json("submit", sheet, "--strict", "--skip-invalid")
    assert (refused["exit_code"], refused["defects"], refused["sent_this_run"]) == (3, 1, 0)
    paid = program.json("submit", sheet)
    assert (paid["exit_code"], paid["warning_list"][0]["code"]) == (0, "column.hidden")


def test_strict_refuses_sheet_with_warning_about_whole_sheet(program: Program) -> None:
    sheet = ROOT / "tests/field/files/sheets/decimal-commas-in-a-column-of-notes.csv"
    for command in (["validate"], ["submit"], ["submit", "--skip-invalid"]):
        refused = program.json(*command, sheet, "--strict")
        assert (refused["exit_code"], refused["defects"]) == (3, 1), command
        assert refused["message"].startswith("Nothing was sent. The check is strict")
    assert program.json("validate", sheet)["exit_code"] == 0
    assert program.record() == []
