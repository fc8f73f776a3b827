"""docs/mending.md is true: its commands, what they show, and that its table of mends is all that it takes."""

import re
import shlex
from pathlib import Path

import openpyxl
import pytest

from tests.cli.sheets import MENDS, PAGE
from tests.support.checkout import copy_versioned
from tests.support.program import Program

COMMANDS = [
    shlex.split(line, comments=True)
    for block in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
    for line in block.splitlines()
    if line.startswith("paygw-batch")
]


@pytest.fixture
def at_home(program: Program, monkeypatch: pytest.MonkeyPatch) -> Program:
    copy_versioned(program.home, "samples")
    monkeypatch.chdir(program.home)
    return program


def test_commands_on_mending_page_pay_refused_workbook(at_home: Program) -> None:
    refuse, validate, submit, template = (command[1:] for command in COMMANDS)
    refused = at_home.run(*refuse)
    assert refused.exit_code == 3
    shown = re.search(r"```text\n(Defects.*?)```", PAGE, flags=re.DOTALL)
    assert shown
    assert [line.rstrip() for line in refused.stdout.splitlines()] == shown[1].splitlines()
    assert at_home.run(*validate).exit_code == 3
    book = openpyxl.load_workbook("mended.xlsx")
    for cell, value in MENDS:
        book["October"][cell].value = value
    book.save("mended.xlsx")
    mended = at_home.run(*validate)
    assert mended.exit_code == 0, mended.stdout
    assert "254712345111" in mended.stdout
    assert at_home.json(*submit)["states"] == {"paid": 6}
    assert at_home.run(*template).exit_code == 0
    assert Path("new-payroll.xlsx").exists()


def test_mending_page_lists_every_red_cell(at_home: Program) -> None:
    at_home.run(*COMMANDS[0][1:])
    sheet = openpyxl.load_workbook("mended.xlsx")["October"]
    red = {cell.coordinate for row in sheet.iter_rows() for cell in row if cell.fill.fgColor.rgb == "FFFF9B9B"}
    assert red == {cell for cell, _ in MENDS}
