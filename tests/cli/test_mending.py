"""docs/mending.md: its commands work, their output is as shown, and its table of corrections is complete."""

import re
import shlex
from pathlib import Path

import openpyxl
import pytest

from tests.cli.sheets import CORRECTIONS, PAGE
from tests.support.checkout import copy_versioned
from tests.support.program import Program


def test_documented_commands_correct_and_pay_refused_workbook(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_versioned(program.home, "samples")
    monkeypatch.chdir(program.home)
    blocks = "".join(re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL))
    lines = [shlex.split(line, comments=True) for line in blocks.splitlines() if line.startswith("paygw-batch")]
    refuse, validate, submit, template = (words[1:] for words in lines)
    refused = program.run(*refuse)
    assert refused.exit_code == 3
    documented = re.search(r"```text\n(Defects.*?)```", PAGE, flags=re.DOTALL)
    assert documented
    assert [line.rstrip() for line in refused.stdout.splitlines()] == documented[1].splitlines()
    book = openpyxl.load_workbook("mended.xlsx")
    cells = [cell for row in book["October"].iter_rows() for cell in row]
    red = {cell.coordinate for cell in cells if cell.fill.fgColor.rgb == "FFFF9B9B"}
    assert red == {cell for cell, _ in CORRECTIONS}
    assert program.run(*validate).exit_code == 3
    for cell, value in CORRECTIONS:
        book["October"][cell].value = value
    book.save("mended.xlsx")
    corrected = program.run(*validate)
    assert corrected.exit_code == 0, corrected.stdout
    assert "254712345111" in corrected.stdout
    assert program.json(*submit)["states"] == {"paid": 6}
    assert program.run(*template).exit_code == 0
    assert Path("new-payroll.xlsx").exists()
