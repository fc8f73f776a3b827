"""`--worksheet NAME` selects the worksheet of a workbook to pay."""

from pathlib import Path
from typing import Any

import openpyxl
import pytest

from tests.cli.sheets import write_workbook
from tests.support.program import Program, kenyan_rows, read_csv


@pytest.fixture
def workbook(program: Program) -> Path:
    """Write a workbook with two months of pay."""
    return write_workbook(
        program.home / "pay.xlsx",
        October=kenyan_rows(2, prefix="OCT"),
        November=kenyan_rows(3, amount="20", prefix="NOV"),
    )


def test_workbook_with_several_pay_sheets_needs_option(program: Program, workbook: Path) -> None:
    for command in ("validate", "submit"):
        result = program.run(command, workbook)
        assert result.exit_code == 3
        assert "'October' (2 rows), 'November' (3 rows)" in result.stderr
        assert "--worksheet October" in result.stderr
    assert not program.record()


def test_worksheet_option_ignores_case(program: Program, workbook: Path) -> None:
    assert program.json("validate", workbook, "--worksheet", "October")["rows"] == 2
    assert program.json("validate", workbook, "--worksheet", "november")["rows"] == 3
    for sheet, worksheet, why in (
        (workbook, "December", "no worksheet called 'December'"),
        (workbook, "December", "'October', 'November'"),
        (program.sheet(kenyan_rows(1)), "October", "has no worksheets"),
    ):
        result = program.run("validate", sheet, "--worksheet", worksheet)
        assert (result.exit_code, why in result.stderr) == (3, True)


def test_worksheet_option_distinguishes_names_by_case(program: Program) -> None:
    book = write_workbook(program.home / "pay.xlsx", Pay=kenyan_rows(1))
    changed = openpyxl.load_workbook(book)
    copied: Any = changed.copy_worksheet(changed["Pay"])
    copied._WorkbookChild__title = "PAY"  # a name that openpyxl refuses to write
    copied.append(kenyan_rows(2)[1].split(","))
    changed.save(book)
    assert program.json("validate", book, "--worksheet", "PAY")["rows"] == 2
    assert "several worksheets called 'pay'" in program.run("validate", book, "--worksheet", "pay").stderr


def test_batch_id_ignores_file_and_worksheet_names(program: Program, workbook: Path) -> None:
    alone = write_workbook(program.home / "alone.xlsx", Sheet1=kenyan_rows(2, prefix="OCT"))
    text = program.sheet(kenyan_rows(2, prefix="OCT"))
    named = program.json("validate", workbook, "--worksheet", "October")
    assert named["sheet"] == "pay.xlsx [October]"
    for other in (alone, text):
        summary = program.json("validate", other)
        assert (summary["batch"], summary["sheet"]) == (named["batch"], other.name)


def test_each_worksheet_gets_own_batch_and_reconciliation(program: Program, workbook: Path) -> None:
    paid = {name: program.json("submit", workbook, "--worksheet", name) for name in ("October", "November")}
    for name, summary in paid.items():
        assert summary["exit_code"] == 0
        rows = read_csv(summary["reconciliation"])
        assert {row["client_orderid"][:3] for row in rows} == {name[:3].upper()}
    assert program.json("submit", workbook, "--worksheet", "October")["sent_this_run"] == 0
    assert len(program.record()) == 5
    batch, reconciliation = paid["October"]["batch"], paid["October"]["reconciliation"]
    assert program.json("resume", batch)["reconciliation"] == reconciliation
    result = program.run("status", workbook)
    assert result.exit_code == 2, "which of both?"
    for named in (batch, paid["November"]["batch"], "pay.xlsx [November]"):
        assert named in result.stderr


def test_column_profile_is_configured_and_checked_by_doctor(program: Program) -> None:
    heading = "Country Code,Payment Reference,Net Pay,Currency,Employee Name,Account No,Mobile Number"
    sheet = program.sheet(kenyan_rows(2), heading=heading)
    assert program.run("validate", sheet).exit_code == 3
    assert program.json("validate", sheet, PAYGW_COLUMN_PROFILE="payroll-english")["exit_code"] == 0
    with program.config.open("a") as file:
        file.write('\n[sheet]\ncolumn_profile = "payrol-english"\n')
    for command in (["validate", str(sheet)], ["doctor"]):
        result = program.run(*command)
        assert result.exit_code == 2
        assert "Did you mean payroll-english?" in " ".join(result.output.split())
