"""docs/mending.md: its commands work, their output is as shown, and its table of corrections is complete."""

import re
import shlex
from pathlib import Path

import openpyxl
import pytest

from tests.cli.sheets import CORRECTIONS, PAGE
from tests.support.checkout import copy_versioned
from tests.support.program import Program

COMMANDS = [
    shlex.split(line, comments=True)
    for block in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
    for line in block.splitlines()
    if line.startswith("paygw-batch")
]


@pytest.fixture
def program_here(program: Program, monkeypatch: pytest.MonkeyPatch) -> Program:
    copy_versioned(program.home, "samples")
    monkeypatch.chdir(program.home)
    return program


def test_documented_commands_correct_and_pay_refused_workbook(program_here: Program) -> None:
    refuse, validate, submit, template = (command[1:] for command in COMMANDS)
    refused = program_here.run(*refuse)
    assert refused.exit_code == 3
    documented = re.search(r"```text\n(Defects.*?)```", PAGE, flags=re.DOTALL)
    assert documented
    assert [line.rstrip() for line in refused.stdout.splitlines()] == documented[1].splitlines()
    assert program_here.run(*validate).exit_code == 3
    book = openpyxl.load_workbook("mended.xlsx")
    for cell, value in CORRECTIONS:
        book["October"][cell].value = value
    book.save("mended.xlsx")
    corrected = program_here.run(*validate)
    assert corrected.exit_code == 0, corrected.stdout
    assert "254712345111" in corrected.stdout
    assert program_here.json(*submit)["states"] == {"paid": 6}
    assert program_here.run(*template).exit_code == 0
    assert Path("new-payroll.xlsx").exists()


def test_documented_correction_lists_every_red_cell(program_here: Program) -> None:
    program_here.run(*COMMANDS[0][1:])
    sheet = openpyxl.load_workbook("mended.xlsx")["October"]
    red = {cell.coordinate for row in sheet.iter_rows() for cell in row if cell.fill.fgColor.rgb == "FFFF9B9B"}
    assert red == {cell for cell, _ in CORRECTIONS}
