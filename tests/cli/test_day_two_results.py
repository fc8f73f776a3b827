"""Results people look at: the workbook and the page, both from the frame of the reconciliation."""

import csv
import re
import stat
from html.parser import HTMLParser
from pathlib import Path

import openpyxl
import pytest

from tests.cli.program import HEADING, Program, kenyan_rows, read_csv

HOSTILE = '<script>alert(1)</script> & "x"'
SPAN = '<span class="state">x</span>'


@pytest.fixture
def mixed(program: Program) -> Program:
    rows = [
        *kenyan_rows(4),
        *kenyan_rows(1, amount="9001", prefix="NO"),
        *kenyan_rows(1, amount="9007", prefix="LOST"),
        *kenyan_rows(1, amount="9002", prefix="LATER"),
    ]
    sheet = program.sheet(
        [f"{row},{note}" for row, note in zip(rows, range(7), strict=True)], heading=f"{HEADING},note"
    )
    program.json("submit", sheet)
    return program


def reconciled(program: Program, name: str = "out.xlsx") -> tuple[Path, Path]:
    out, page = program.home / name, program.home / "out.html"
    program.json("reconcile", program.home / "payroll.csv", "--out", out, "--report", page)
    return out, page


def test_the_workbook_has_the_rows_of_the_csv_as_text(mixed: Program) -> None:
    out, _ = reconciled(mixed)
    book = openpyxl.load_workbook(out)
    heading, *lines = book["Rows"].iter_rows(values_only=True)
    told = read_csv(mixed.home / "payroll.reconciliation.csv")
    assert list(heading) == list(told[0])
    for line, expected in zip(lines, told, strict=True):
        shown = {name: "" if value is None else str(value) for name, value in zip(heading, line, strict=True)}
        assert shown == expected
        assert isinstance(line[heading.index("amount")], str)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_the_workbook_colours_states_filters_every_column_and_freezes_the_header(mixed: Program) -> None:
    out, _ = reconciled(mixed)
    rows = openpyxl.load_workbook(out)["Rows"]
    (table,) = rows.tables.values()
    assert table.autoFilter is not None
    assert rows.freeze_panes == "A2"
    rules = [rule for area in rows.conditional_formatting for rule in area.rules]
    coloured = {rule.formula[0].strip('"'): rule.dxf.fill.bgColor.rgb for rule in rules}
    assert set(coloured) == {"invalid", "ready", "in_doubt", "accepted", "paid", "rejected", "returned"}
    assert len(set(coloured.values())) == len(coloured)


def test_the_workbooks_totals_are_the_books(mixed: Program) -> None:
    out, _ = reconciled(mixed)
    _, *lines = openpyxl.load_workbook(out)["Totals"].iter_rows(values_only=True)
    assert set(lines) == {
        ("KE", "KES", "accepted", 1, "9002.00"),
        ("KE", "KES", "in_doubt", 1, "9007.00"),
        ("KE", "KES", "paid", 4, "6002.00"),
        ("KE", "KES", "rejected", 1, "9001.00"),
    }


def test_workbook_and_page_made_again_are_the_same_to_the_byte(mixed: Program) -> None:
    first = [path.read_bytes() for path in reconciled(mixed)]
    assert [path.read_bytes() for path in reconciled(mixed)] == first


class _Page(HTMLParser):
    """Collects what a browser would load or run, the texts, and the cells of tables."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [f"{name}={value}" for name, value in attrs if name in {"src", "href", "data"}]

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text())
    return page


def test_the_page_stands_alone(mixed: Program) -> None:
    _, path = reconciled(mixed)
    page = page_of(path)
    assert page.loads == []
    assert not {"script", "link", "iframe", "img", "object"} & set(page.tags)
    assert "default-src 'none'" in path.read_text()
    assert "url(" not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_page_lists_what_needs_a_person_first_and_in_doubt_before_rejected(mixed: Program) -> None:
    _, path = reconciled(mixed)
    text = page_of(path).text
    assert "Rows that need a person: 2" in text
    assert text.index("LOST-1") < text.index("NO-1") < text.index("Totals by country and state")


def test_the_page_draws_outcomes_over_time_and_latency(mixed: Program) -> None:
    _, path = reconciled(mixed)
    content = path.read_text()
    charts = re.findall(r"<svg.*?</svg>", content, flags=re.DOTALL)
    assert len(charts) == 2
    by_state: dict[str, int] = {}
    for state, count in re.findall(r"<title>([a-z ]+): (\d+)</title>", charts[0]):
        by_state[state] = by_state.get(state, 0) + int(count)
    assert by_state == {"paid": 4, "rejected": 1, "in doubt": 1, "accepted": 1}
    assert sum(int(count) for count in re.findall(r": (\d+)</title>", charts[1])) == 6
    assert "50% within" in content


def test_a_page_with_nothing_sent_and_nothing_wrong_is_a_page_too(program: Program) -> None:
    program.json("submit", program.sheet(kenyan_rows(1)))
    out, path = program.home / "o.csv", program.home / "o.html"
    program.json("reconcile", program.home / "payroll.csv", "--out", out, "--report", path)
    assert "Rows that need a person" in page_of(path).text


def test_what_a_sheet_says_is_shown_and_never_run(program: Program) -> None:
    rows = []
    for number, name in enumerate([HOSTILE, SPAN, "=1+1"], start=1):
        rows.append(["KE", f"NO-{number}", "9001", "KES", name, f"25471234500{number}", f"+25471234500{number}"])
    sheet = program.home / "payroll.csv"
    with sheet.open("w", newline="") as stream:
        csv.writer(stream).writerows([HEADING.split(","), *rows])
    summary = program.json("submit", sheet, "--skip-invalid")
    assert summary["exit_code"] == 4
    out, path = reconciled(program)
    page = page_of(path)
    assert "script" not in page.tags
    assert HOSTILE in page.text
    assert SPAN in page.text
    cells = [cell for row in openpyxl.load_workbook(out)["Rows"].iter_rows() for cell in row]
    assert all(cell.data_type != "f" for cell in cells)


def test_a_report_that_cannot_be_written_is_an_error(mixed: Program) -> None:
    result = mixed.run(
        "reconcile", mixed.home / "payroll.csv", "--out", mixed.home / "o.csv", "--report", mixed.home / "no" / "o.html"
    )
    assert result.exit_code == 2
