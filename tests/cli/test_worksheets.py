"""`--worksheet NAME`: which worksheet of a workbook is paid."""

from pathlib import Path
from typing import Any

import openpyxl
import pytest

from tests.cli.program import HEADING, Program, kenyan_rows, read_csv


def workbook(path: Path, **worksheets: list[str]) -> Path:
    """Write a workbook with these worksheets of CSV lines, each below the heading."""
    book = openpyxl.Workbook()
    assert book.active is not None
    book.remove(book.active)
    for name, rows in worksheets.items():
        worksheet = book.create_sheet(name)
        for row in (HEADING, *rows):
            worksheet.append(row.split(","))
    book.save(path)
    return path


@pytest.fixture
def months(program: Program) -> Path:
    """A workbook with two months of pay."""
    return workbook(
        program.home / "pay.xlsx",
        October=kenyan_rows(2, prefix="OCT"),
        November=kenyan_rows(3, amount="20", prefix="NOV"),
    )


def test_a_workbook_with_several_pay_sheets_is_refused_with_the_option_that_mends_it(
    program: Program, months: Path
) -> None:
    for command in ("validate", "submit"):
        result = program.run(command, months)
        assert result.exit_code == 3
        assert "'October', 'November'" in result.stderr
        assert "--worksheet October" in result.stderr
    assert not program.record()


def test_the_named_worksheet_is_read_whatever_the_case_of_its_name(program: Program, months: Path) -> None:
    assert program.json("validate", months, "--worksheet", "October")["rows"] == 2
    assert program.json("validate", months, "--worksheet", "november")["rows"] == 3
    result = program.run("validate", months, "--worksheet", "December")
    assert result.exit_code == 3
    assert "no worksheet called 'December'" in result.stderr
    assert "'October', 'November'" in result.stderr


def test_two_names_that_differ_in_case_alone_are_told_apart(program: Program) -> None:
    book = workbook(program.home / "pay.xlsx", Pay=kenyan_rows(1))
    changed = openpyxl.load_workbook(book)
    copied: Any = changed.copy_worksheet(changed["Pay"])
    copied._WorkbookChild__title = "PAY"  # what openpyxl itself refuses to write
    copied.append(kenyan_rows(2)[1].split(","))
    changed.save(book)
    assert program.json("validate", book, "--worksheet", "PAY")["rows"] == 2
    assert "several worksheets called 'pay'" in program.run("validate", book, "--worksheet", "pay").stderr


def test_a_worksheet_of_a_text_file_is_refused(program: Program) -> None:
    result = program.run("validate", program.sheet(kenyan_rows(1)), "--worksheet", "October")
    assert result.exit_code == 3
    assert "has no worksheets" in result.stderr


def test_the_batch_is_that_of_the_content_whatever_file_and_worksheet_it_came_in(
    program: Program, months: Path
) -> None:
    alone = workbook(program.home / "alone.xlsx", Sheet1=kenyan_rows(2, prefix="OCT"))
    text = program.sheet(kenyan_rows(2, prefix="OCT"))
    named = program.json("validate", months, "--worksheet", "October")
    assert named["sheet"] == "pay.xlsx [October]"
    for other in (alone, text):
        found = program.json("validate", other)
        assert (found["batch"], found["sheet"]) == (named["batch"], other.name)


def test_each_worksheet_is_a_batch_with_a_reconciliation_of_its_own(program: Program, months: Path) -> None:
    october = program.json("submit", months, "--worksheet", "October")
    november = program.json("submit", months, "--worksheet", "November")
    assert october["batch"] != november["batch"]
    for summary, prefix in ((october, "OCT"), (november, "NOV")):
        assert summary["exit_code"] == 0
        rows = read_csv(summary["reconciliation"])
        assert {row["client_orderid"][:3] for row in rows} == {prefix}
    assert program.json("submit", months, "--worksheet", "October")["sent_this_run"] == 0
    assert len(program.record()) == 5
    resumed = program.json("resume", october["batch"])
    assert resumed["reconciliation"] == october["reconciliation"]


def test_the_path_of_a_workbook_is_no_batch_when_two_of_its_worksheets_were_paid(
    program: Program, months: Path
) -> None:
    batches = [program.json("submit", months, "--worksheet", name)["batch"] for name in ("October", "November")]
    result = program.run("status", months)
    assert result.exit_code == 2
    for batch in batches:
        assert batch in result.stderr
    assert "pay.xlsx [November]" in result.stderr


def test_a_column_profile_is_named_in_the_configuration_and_doctor_knows_it(program: Program) -> None:
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
