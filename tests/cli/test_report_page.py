"""The HTML report of a batch: next steps with working commands first, and details on demand."""

import re
import shlex
from html import unescape
from pathlib import Path

import pytest

from paygw_batch.show import report_page
from tests.cli.conftest import MachineCache
from tests.support.program import Program, kenyan_rows, read_csv, sandbox_toml


def prepare_mixed_batch(program: Program) -> None:
    odd = (("NO", "9001"), ("LOST", "9007"), ("LATER", "9002"))
    others = [row for prefix, amount in odd for row in kenyan_rows(1, amount=amount, prefix=prefix)]
    program.json("submit", program.sheet([*kenyan_rows(4, amount="1000000.5"), *others]))


@pytest.fixture
def mixed_batch(machine_cache: MachineCache) -> Program:
    return machine_cache(prepare_mixed_batch)


def write_page(program: Program, sheet: Path | None = None) -> str:
    path, sheet = program.home / "page.html", sheet or program.home / "payroll.csv"
    program.json("reconcile", sheet, "--out", program.home / "page.csv", "--report", path)
    return path.read_text()


def page_commands(page: str) -> list[str]:
    return [unescape(command) for command in re.findall(r"<pre><code>(.*?)</code></pre>", page)]


def folded_sections(page: str) -> dict[str, str]:
    """Return the content of every folded section outside tables by its summary."""
    sections = r"^<details><summary>(.*?)</summary>(.*?)</details>$"
    return dict(re.findall(sections, page, flags=re.DOTALL | re.MULTILINE))


def test_report_page_limits_rows_and_states_limit(mixed_batch: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_page, "MAX_COLLAPSED_ROWS", 2)
    monkeypatch.setattr(report_page, "MAX_SHOWN_ROWS", 2)
    others = mixed_batch.sheet(kenyan_rows(3, amount="9001", prefix="MORE"), "more.csv")
    mixed_batch.json("submit", others, "--repeats-meant")
    page = write_page(mixed_batch)
    paid = folded_sections(page)["Paid: 4 rows"]
    assert paid.count("<tr>") == 1 + 2
    assert "These are the first 2 of 4 rows. The reconciliation file has all of them." in paid
    page = write_page(mixed_batch, others)
    assert ("Rows that need a decision: 3" in page, "the first 2 of 3 rows" in page) == (True, True)
    assert "MORE-3" not in page


def test_commands_on_report_page_run_unchanged(mixed_batch: Program) -> None:
    commands, sheet = page_commands(write_page(mixed_batch)), mixed_batch.home / "payroll.csv"
    batch = mixed_batch.json("status", sheet)["batch"]
    assert commands == [
        f"paygw-batch status {batch} --in-doubt --out questions.csv",
        f"paygw-batch resolve statement {batch} answers.csv",
        f"paygw-batch retry {batch}",
        f"paygw-batch retry {batch} --row 6",
        f"paygw-batch submit {sheet} --amend",
    ]
    for command in (commands[0], commands[3], commands[4]):
        words = [str(mixed_batch.home / word) if word == "questions.csv" else word for word in shlex.split(command)[1:]]
        result = mixed_batch.run(*words)
        assert result.exit_code in {0, 4, 5}, result.output
    assert [line["order_id"] for line in read_csv(mixed_batch.home / "questions.csv")] == ["LOST-1"]


def test_report_page_suggests_resume_for_ready_rows(program: Program) -> None:
    batch = program.json("submit", program.sheet(kenyan_rows(3)), "--first", "1")["batch"]
    page = write_page(program)
    assert f"paygw-batch resume {batch}" in page_commands(page)
    assert "Rows that need a decision: 0" in page


def test_report_page_suggests_validate_for_invalid_rows(program: Program) -> None:
    sheet = program.sheet([*kenyan_rows(1), *kenyan_rows(1, amount="-5", prefix="BAD")], "pay roll's.csv")
    program.json("submit", sheet, "--skip-invalid")
    (command,) = page_commands(write_page(program, sheet))
    words = shlex.split(command)[1:]
    assert words == ["validate", str(sheet), "--rejects", "mended.xlsx"]
    assert program.run(*words[:-1], program.home / "mended.xlsx").exit_code == 3


def test_report_page_lists_held_row(program: Program) -> None:
    program.config.write_text(sandbox_toml().replace("[submission]", "[submission]\nquarantine_h = 0"))
    sheet = program.sheet(kenyan_rows(1, amount="9008", prefix="LOST"))
    program.json("submit", sheet)
    program.json("resolve", "row", sheet, "2", "--as", "not-received", "--evidence", "Ticket 4711")
    (program.home / "statement.csv").write_text("Order ID;Amount;Currency;Status\nLOST-1;9008;KES;approved\n")
    assert program.json("resolve", "statement", sheet, program.home / "statement.csv", "--yes")["held"] == 1
    page = write_page(program)
    assert "Rows that need a decision: 1" in page
    assert '<span class="state in_doubt">held</span> 1 row' in page
    assert "No run will send it" in page
    assert "paygw-batch resume" not in "".join(page_commands(page))
    deeds = folded_sections(page)["Actions by people: 1"]
    assert ("Settled as never received" in deeds, "Ticket 4711" in deeds) == (True, True)


def test_report_page_does_not_depend_on_time(mixed_batch: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write_page(mixed_batch)
    monkeypatch.setattr("paygw_batch.show.next_step.LONG_ACCEPTED_H", 0)
    assert write_page(mixed_batch) == first
