"""The HTML report of a batch: next steps with working commands first, and details on demand."""

import re
import shlex
from html import unescape
from pathlib import Path

import pytest

from paygw_batch.show import report_page
from tests.cli.conftest import MachineCache
from tests.support.approving import policy, prepare_sheet
from tests.support.program import Program, kenyan_rows, read_csv, sandbox_toml

UGANDAN = "UG,UG-1,50000,UGX,Amina Okello,256712345678,+256712345678"


def prepare_mixed_batch(program: Program) -> None:
    odd = (("NO", "9001"), ("LOST", "9007"), ("LATER", "9002"))
    others = [row for prefix, amount in odd for row in kenyan_rows(1, amount=amount, prefix=prefix)]
    program.json("submit", program.sheet([*kenyan_rows(3, amount="1000000.5"), *others, UGANDAN]))


@pytest.fixture
def mixed_batch(machine_cache: MachineCache) -> Program:
    return machine_cache(prepare_mixed_batch)


def write_page(program: Program, sheet: Path | None = None) -> str:
    path, sheet = program.home / "page.html", sheet or program.home / "payroll.csv"
    program.json("reconcile", sheet, "--out", program.home / "page.csv", "--report", path)
    return path.read_text()


def page_commands(page: str) -> list[str]:
    return [unescape(command) for command in re.findall(r"<pre><code>(.*?)</code></pre>", page)]


def folded_sections(page: str) -> list[tuple[str, str]]:
    """Return the summary and content of every folded section outside tables."""
    return re.findall(r"^<details><summary>(.*?)</summary>(.*?)</details>$", page, flags=re.DOTALL | re.MULTILINE)


def line_texts(line: str) -> list[str]:
    return re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line)


def test_report_page_collapses_paid_rows(mixed_batch: Program) -> None:
    (paid,) = [content for summary, content in folded_sections(write_page(mixed_batch)) if summary == "Paid: 4 rows"]
    lines = [line_texts(line) for line in re.findall(r"<tr>.*?</tr>", paid)[1:]]
    payment_lines = [line for line in read_csv(mixed_batch.home / "page.csv") if line["state"] == "paid"]
    displayed = [(row, re.sub("</?bdi>", "", name), reference) for row, name, _, _, _, _, reference, _ in lines]
    assert displayed == [(line["row"], line["account_name"], line["gateway_reference"]) for line in payment_lines]
    assert lines[0][4] == "1,000,000.50"


def test_report_page_limits_rows_and_states_limit(mixed_batch: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_page, "COLLAPSED_ROWS", 2)
    monkeypatch.setattr(report_page, "SHOWN_ROWS", 2)
    others = mixed_batch.sheet(kenyan_rows(3, amount="9001", prefix="MORE"), "more.csv")
    mixed_batch.json("submit", others, "--repeats-meant")
    page = write_page(mixed_batch)
    (paid,) = [content for summary, content in folded_sections(page) if summary == "Paid: 4 rows"]
    assert paid.count("<tr>") == 1 + 2
    assert "These are the first 2 of 4 rows. The reconciliation file has all of them." in paid
    page = write_page(mixed_batch, others)
    assert ("Rows that need a decision: 3" in page, "the first 2 of 3 rows" in page) == (True, True)
    assert "MORE-3" not in page


def test_commands_on_report_page_run_unchanged(mixed_batch: Program) -> None:
    commands = page_commands(write_page(mixed_batch))
    batch = mixed_batch.json("status", mixed_batch.home / "payroll.csv")["batch"]
    sheet = mixed_batch.home / "payroll.csv"
    assert commands == [
        f"paygw-batch status {batch} --in-doubt --out questions.csv",
        f"paygw-batch resolve statement {batch} answers.csv",
        f"paygw-batch retry {batch}",
        f"paygw-batch retry {batch} --row 5",
        f"paygw-batch submit {sheet} --amend",
    ]
    for command in (commands[0], commands[3], commands[4]):
        words = [str(mixed_batch.home / word) if word == "questions.csv" else word for word in shlex.split(command)[1:]]
        result = mixed_batch.run(*words)
        assert result.exit_code in {0, 4, 5}, result.output
    assert [line["order_id"] for line in read_csv(mixed_batch.home / "questions.csv")] == ["LOST-1"]


def test_report_page_suggests_resume_for_ready_rows(program: Program) -> None:
    program.json("submit", program.sheet(kenyan_rows(3)), "--first", "1")
    page = write_page(program)
    batch = program.json("status", program.home / "payroll.csv")["batch"]
    assert f"paygw-batch resume {batch}" in page_commands(page)
    assert "Rows that need a decision: 0" in page


def test_report_page_suggests_validate_for_invalid_rows(program: Program) -> None:
    sheet = program.sheet([*kenyan_rows(1), *kenyan_rows(1, amount="-5", prefix="BAD")], "pay roll's.csv")
    program.json("submit", sheet, "--skip-invalid")
    path = program.home / "page.html"
    program.json("reconcile", sheet, "--out", program.home / "page.csv", "--report", path)
    (command,) = page_commands(path.read_text())
    words = shlex.split(command)[1:]
    assert words == ["validate", str(sheet), "--rejects", "mended.xlsx"]
    assert program.run(*words[:-1], program.home / "mended.xlsx").exit_code == 3


def test_report_page_lists_held_row(program: Program) -> None:
    quick = sandbox_toml().replace("[submission]", "[submission]\nquarantine_h = 0")
    program.config.write_text(quick)
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
    (deeds,) = [content for summary, content in folded_sections(page) if summary == "Actions by people: 1"]
    assert "Settled as never received" in deeds
    assert "Ticket 4711" in deeds


def test_report_page_shows_maker_and_approver(program: Program) -> None:
    program.config.write_text(sandbox_toml() + policy(program.home))
    assert program.json("submit", prepare_sheet(program, "cleo"))["exit_code"] == 0
    top = write_page(program).partition("<h2>")[0]
    assert re.search(r"Its plan: Prepared by ada at [^;]+; Approved by cleo at .* \(plan [0-9a-f]{16}\)\.", top)


def test_report_page_does_not_depend_on_time(mixed_batch: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write_page(mixed_batch)
    monkeypatch.setattr("paygw_batch.show.next_step.LONG_ACCEPTED_H", 0)
    assert write_page(mixed_batch) == first


def test_report_page_title_escapes_sheet_name(program: Program, tmp_path: Path) -> None:
    sheet = program.sheet(kenyan_rows(1), "<b>&.csv")
    program.json("submit", sheet, "--out", program.home / "o.csv")
    path = program.home / "page.html"
    program.json("reconcile", sheet, "--out", tmp_path / "o.csv", "--report", path)
    assert "<h1><bdi>&lt;b&gt;&amp;.csv</bdi></h1>" in path.read_text()
