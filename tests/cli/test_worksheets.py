"""`--worksheet NAME` selects the worksheet of a workbook to pay."""

from pathlib import Path
from typing import Any

import openpyxl
import pytest

from tests.cli.sheets import write_workbook
from tests.support.program import Program, kenyan_rows, read_csv


@pytest.fixture
def two_month_workbook(program: Program) -> Path:
    """Write a workbook with two months of pay."""
    return write_workbook(
        program.home / "pay.xlsx",
        October=kenyan_rows(2, prefix="OCT"),
        November=kenyan_rows(3, amount="20", prefix="NOV"),
    )


def test_workbook_with_several_pay_sheets_needs_option(program: Program, two_month_workbook: Path) -> None:
    for command in ("validate", "submit"):
        result = program.run(command, two_month_workbook)
        assert result.exit_code == 3
        assert "'October' (2 rows), 'November' (3 rows)" in result.stderr
        assert "--worksheet October" in result.stderr
    assert not program.record()


def test_worksheet_option_ignores_case(program: Program, two_month_workbook: Path) -> None:
    assert program.json("validate", two_month_workbook, "--worksheet", "October")["rows"] == 2
    assert program.json("validate", two_month_workbook, "--worksheet", "november")["rows"] == 3
    result = program.run("validate", two_month_workbook, "--worksheet", "December")
    assert result.exit_code == 3
    assert "no worksheet called 'December'" in result.stderr
    assert "'October', 'November'" in result.stderr


def test_worksheet_option_distinguishes_names_by_case(program: Program) -> None:
    book = write_workbook(program.home / "pay.xlsx", Pay=kenyan_rows(1))
    changed = openpyxl.load_workbook(book)
    copied: Any = changed.copy_worksheet(changed["Pay"])
    copied._WorkbookChild__title = "PAY"  # a name that openpyxl refuses to write
    copied.append(kenyan_rows(2)[1].split(","))
    changed.save(book)
    assert program.json("validate", book, "--worksheet", "PAY")["rows"] == 2
    assert "several worksheets called 'pay'" in program.run("validate", book, "--worksheet", "pay").stderr


def test_worksheet_option_is_refused_for_text_file(program: Program) -> None:
    result = program.run("validate", program.sheet(kenyan_rows(1)), "--worksheet", "October")
    assert result.exit_code == 3
    assert "has no worksheets" in result.stderr


def test_batch_id_ignores_file_and_worksheet_names(program: Program, two_month_workbook: Path) -> None:
    alone = write_workbook(program.home / "alone.xlsx", Sheet1=kenyan_rows(2, prefix="OCT"))
    text = program.sheet(kenyan_rows(2, prefix="OCT"))
    named = program.json("validate", two_month_workbook, "--worksheet", "October")
    assert named["sheet"] == "pay.xlsx [October]"
    for other in (alone, text):
        summary = program.json("validate", other)
        assert (summary["batch"], summary["sheet"]) == (named["batch"], other.name)


def test_each_worksheet_gets_own_batch_and_reconciliation(program: Program, two_month_workbook: Path) -> None:
    october = program.json("submit", two_month_workbook, "--worksheet", "October")
    november = program.json("submit", two_month_workbook, "--worksheet", "November")
    assert october["batch"] != november["batch"]
    for summary, prefix in ((october, "OCT"), (november, "NOV")):
        assert summary["exit_code"] == 0
        rows = read_csv(summary["reconciliation"])
        assert {row["client_orderid"][:3] for row in rows} == {prefix}
    assert program.json("submit", two_month_workbook, "--worksheet", "October")["sent_this_run"] == 0
    assert len(program.record()) == 5
    resumed = program.json("resume", october["batch"])
    assert resumed["reconciliation"] == october["reconciliation"]


def test_workbook_with_two_paid_worksheets_is_ambiguous(program: Program, two_month_workbook: Path) -> None:
    batches = [
        program.json("submit", two_month_workbook, "--worksheet", name)["batch"] for name in ("October", "November")
    ]
    result = program.run("status", two_month_workbook)
    assert result.exit_code == 2
    for batch in batches:
        assert batch in result.stderr
    assert "pay.xlsx [November]" in result.stderr


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
        assert "did you mean payroll-english?" in " ".join(result.output.split())
