"""Amounts have thousands separators on the terminal, and none in output for programs."""

import json
import re
from pathlib import Path

import pytest

from tests.support.program import Program, kenyan_rows, read_csv

PLAIN = re.compile(r"(?<![\d.,])\d{4,}\.\d{2}\b")


@pytest.fixture
def paid_sheet(program: Program) -> Path:
    sheet = program.sheet(kenyan_rows(3, amount="123456.50"))
    assert program.run("submit", sheet).exit_code == 0
    return sheet


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("submit", "payroll.csv"), "370,369.50"),
        (("submit", "more.csv", "--dry-run"), "(KES 444,445.00)"),
        (("submit", "payroll.csv", "--expect-total", "KES=1000000"), "You expected KES 1,000,000"),
        (("validate", "payroll.csv"), "370,369.50"),
        (("status",), "370,369.50"),
        (("status", "payroll.csv"), "370,369.50"),
        (("reconcile", "payroll.csv", "--out", "again.csv"), "370,369.50"),
        (("find", "Jane Wanjiku"), "KES 123,456.50"),
        (("resolve", "statement", "payroll.csv", "statement.csv"), "KES 99,999.00; it was sent with KES 123,456.50"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_amounts_have_separators_on_terminal_only(
    program: Program, paid_sheet: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], shown: str
) -> None:
    program.sheet(kenyan_rows(2, amount="222222.50", prefix="MORE"), name="more.csv")
    (program.home / "statement.csv").write_text("order_id,amount,currency,status\nPAY-1,99999.00,KES,approved\n")
    monkeypatch.chdir(program.home)
    for_people = program.run(*words)
    output = " ".join((for_people.stdout + for_people.stderr).split())
    assert shown in output
    assert not PLAIN.search(output)
    for_programs = json.loads(program.run("--json", *words).stdout)
    for_programs.pop("message")
    assert not re.search(r'"\d{1,3},\d{3}', json.dumps(for_programs["totals"]))
    assert {line["amount"] for line in read_csv(paid_sheet.with_suffix(".reconciliation.csv"))} == {"123456.50"}
