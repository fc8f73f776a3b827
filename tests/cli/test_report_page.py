"""The page of a batch: what a person should do comes first, with commands that work; the rest is there on demand."""

import re
import shlex
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from paygw_batch.show import report_page
from tests.cli.conftest import Kept
from tests.support.approving import policy, prepared
from tests.support.program import Program, kenyan_rows, read_csv, sandbox_toml

UGANDAN = "UG,UG-1,50000,UGX,Amina Okello,256712345678,+256712345678"


def begin_mixed(program: Program) -> None:
    rows = [
        *kenyan_rows(3, amount="1000000.5"),
        *kenyan_rows(1, amount="9001", prefix="NO"),
        *kenyan_rows(1, amount="9007", prefix="LOST"),
        *kenyan_rows(1, amount="9002", prefix="LATER"),
        UGANDAN,
    ]
    program.json("submit", program.sheet(rows))


@pytest.fixture
def mixed(kept: Kept) -> Program:
    return kept(begin_mixed)


def page_of(program: Program) -> str:
    path = program.home / "page.html"
    program.json("reconcile", program.home / "payroll.csv", "--out", program.home / "page.csv", "--report", path)
    return path.read_text()


def commands_of(page: str) -> list[str]:
    return [unescape(command) for command in re.findall(r"<pre><code>(.*?)</code></pre>", page)]


def folded(page: str) -> list[tuple[str, str]]:
    """Return what is shown on demand: summary and content, of the details that are in no table."""
    return re.findall(r"^<details><summary>(.*?)</summary>(.*?)</details>$", page, flags=re.DOTALL | re.MULTILINE)


def texts_of(line: str) -> list[str]:
    return re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line)


def test_page_shows_currency_totals_above_rows(mixed: Program) -> None:
    page = page_of(mixed)
    sums = page[page.index("Totals by currency") : page.index("Rows that need a person")]
    heading, kenyan, ugandan = (texts_of(line) for line in re.findall(r"<tr>.*?</tr>", sums))
    assert heading == ["currency", "rows", "to be paid", "in doubt", "rejected", "with the gateway", "paid"]
    assert kenyan == ["KES", "6", "3,027,011.50", "9,007.00", "9,001.00", "9,002.00", "3,000,001.50"]
    assert ugandan == ["UGX", "1", "50,000", "", "", "", "50,000"]


def test_report_page_folds_paid_rows(mixed: Program) -> None:
    (paid,) = [content for summary, content in folded(page_of(mixed)) if summary == "Paid: 4 rows"]
    lines = [texts_of(line) for line in re.findall(r"<tr>.*?</tr>", paid)[1:]]
    told = [line for line in read_csv(mixed.home / "page.csv") if line["state"] == "paid"]
    shown = [(row, re.sub("</?bdi>", "", name), reference) for row, name, _, _, _, _, reference, _ in lines]
    assert shown == [(line["row"], line["account_name"], line["gateway_reference"]) for line in told]
    assert lines[0][4] == "1,000,000.50"


def test_report_page_limits_paid_rows_and_states_limit(mixed: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_page, "ROWS_ON_DEMAND", 2)
    (paid,) = [content for summary, content in folded(page_of(mixed)) if summary == "Paid: 4 rows"]
    assert paid.count("<tr>") == 1 + 2
    assert "These are the first 2 of 4 rows: the reconciliation file has all of them." in paid


def test_page_limits_rows_needing_person(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_page, "SHOWN_ROWS", 2)
    program.json("submit", program.sheet(kenyan_rows(3, amount="9001", prefix="NO")))
    page = page_of(program)
    assert "Rows that need a person: 3" in page
    assert "These are the first 2 of 3 rows" in page
    assert "NO-3" not in page


def test_report_page_folds_charts_at_end(mixed: Program) -> None:
    page = page_of(mixed)
    assert folded(page)[-1][0] == "For engineers: outcomes over time, and latency"
    assert folded(page)[-1][1].count("<svg") == page.count("<svg") == 2


def test_commands_on_report_page_run_unchanged(mixed: Program) -> None:
    commands = commands_of(page_of(mixed))
    batch = mixed.json("status", mixed.home / "payroll.csv")["batch"]
    sheet = mixed.home / "payroll.csv"
    assert commands == [
        f"paygw-batch status {batch} --in-doubt --out questions.csv",
        f"paygw-batch resolve statement {batch} answers.csv",
        f"paygw-batch retry {batch}",
        f"paygw-batch retry {batch} --row 5",
        f"paygw-batch submit {sheet} --amend",
    ]
    for command in (commands[0], commands[3], commands[4]):
        words = [str(mixed.home / word) if word == "questions.csv" else word for word in shlex.split(command)[1:]]
        result = mixed.run(*words)
        assert result.exit_code in {0, 4, 5}, result.output
    assert [line["order_id"] for line in read_csv(mixed.home / "questions.csv")] == ["LOST-1"]


def test_page_gives_next_step_of_doubtful_row(mixed: Program) -> None:
    page = page_of(mixed)
    batch = mixed.json("status", mixed.home / "payroll.csv")["batch"]
    assert f"<code>paygw-batch resolve row {batch} 6 --evidence TEXT --as</code> paid, rejected" in page
    assert "not-received (not before " in page


def test_page_gives_resume_command_for_ready_rows(program: Program) -> None:
    program.json("submit", program.sheet(kenyan_rows(3)), "--first", "1")
    page = page_of(program)
    batch = program.json("status", program.home / "payroll.csv")["batch"]
    assert f"paygw-batch resume {batch}" in commands_of(page)
    assert "Rows that need a person: 0" in page


def test_page_gives_validate_command_for_invalid_rows(program: Program) -> None:
    sheet = program.sheet([*kenyan_rows(1), *kenyan_rows(1, amount="-5", prefix="BAD")], "pay roll's.csv")
    program.json("submit", sheet, "--skip-invalid")
    path = program.home / "page.html"
    program.json("reconcile", sheet, "--out", program.home / "page.csv", "--report", path)
    (command,) = commands_of(path.read_text())
    words = shlex.split(command)[1:]
    assert words == ["validate", str(sheet), "--rejects", "mended.xlsx"]
    assert program.run(*words[:-1], program.home / "mended.xlsx").exit_code == 3


def test_page_lists_held_row_as_needing_person(program: Program) -> None:
    quick = sandbox_toml().replace("[submission]", "[submission]\nquarantine_h = 0")
    program.config.write_text(quick)
    sheet = program.sheet(kenyan_rows(1, amount="9008", prefix="LOST"))
    program.json("submit", sheet)
    program.json("resolve", "row", sheet, "2", "--as", "not-received", "--evidence", "Ticket 4711")
    (program.home / "statement.csv").write_text("Order ID;Amount;Currency;Status\nLOST-1;9008;KES;approved\n")
    assert program.json("resolve", "statement", sheet, program.home / "statement.csv", "--yes")["held"] == 1
    page = page_of(program)
    assert "Rows that need a person: 1" in page
    assert '<span class="state in_doubt">held</span> 1 row' in page
    assert "no run sends it" in page
    assert "paygw-batch resume" not in "".join(commands_of(page))
    (deeds,) = [content for summary, content in folded(page) if summary == "What people did: 1"]
    assert "Settled as never received" in deeds
    assert "Ticket 4711" in deeds


def test_page_names_maker_and_approver(program: Program) -> None:
    program.config.write_text(sandbox_toml() + policy(program.home))
    assert program.json("submit", prepared(program, "cleo"))["exit_code"] == 0
    top = page_of(program).partition("<h2>")[0]
    assert re.search(r"Its plan: Prepared by ada at [^;]+; Approved by cleo at .* \(plan [0-9a-f]{16}\)\.", top)


def test_report_page_states_missing_plan(mixed: Program) -> None:
    assert "No plan was approved for it." in page_of(mixed).partition("<h2>")[0]


class _Outline(HTMLParser):
    """Collects what a screen reader goes by."""

    def __init__(self) -> None:
        super().__init__()
        self.headings: list[int] = []
        self.scopes: dict[str, set[str | None]] = {"thead": set(), "tbody": set()}
        self._part = ""
        self.landmarks: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self.scopes:
            self._part = tag
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "th":
            self.scopes[self._part].add(dict(attrs).get("scope"))
        if tag in {"html", "main"}:
            self.landmarks.append((tag, dict(attrs).get("lang")))


def test_report_page_has_headings_for_screen_readers(mixed: Program) -> None:
    outline = _Outline()
    outline.feed(page_of(mixed))
    assert outline.landmarks == [("html", "en"), ("main", None)]
    assert outline.headings[0] == 1
    assert outline.headings.count(1) == 1
    steps = [later - earlier for earlier, later in zip(outline.headings, outline.headings[1:], strict=False)]
    assert max(steps) == 1, "no level is left out"
    assert outline.scopes == {"thead": {"col"}, "tbody": {"row"}}


def test_report_page_does_not_depend_on_time(mixed: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    first = page_of(mixed)
    monkeypatch.setattr("paygw_batch.show.next_step.LONG_ACCEPTED_H", 0)
    assert page_of(mixed) == first


def test_report_page_title_escapes_sheet_name(program: Program, tmp_path: Path) -> None:
    sheet = program.sheet(kenyan_rows(1), "<b>&.csv")
    program.json("submit", sheet, "--out", program.home / "o.csv")
    path = program.home / "page.html"
    program.json("reconcile", sheet, "--out", tmp_path / "o.csv", "--report", path)
    assert "<h1><bdi>&lt;b&gt;&amp;.csv</bdi></h1>" in path.read_text()
