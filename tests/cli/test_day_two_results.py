"""Results for people: the workbook and the HTML report of a reconciliation."""

import csv
import re
import stat
from collections import Counter
from datetime import datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from paygw_batch.core.shown_states import state_label
from paygw_batch.sheet import formats
from paygw_batch.show.workbook import is_exact
from tests.cli.conftest import MachineCache
from tests.support.program import HEADING, Program, kenyan_rows, read_csv

HOSTILE = '<script>alert(1)</script> & "x"'
SPAN = '<span class="state">x</span>'


def prepare_mixed_batch(program: Program) -> None:
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


@pytest.fixture
def mixed(machine_cache: MachineCache) -> Program:
    return machine_cache(prepare_mixed_batch)


def reconcile_batch(program: Program, name: str = "out.xlsx") -> tuple[Path, Path]:
    out, page = program.home / name, program.home / "out.html"
    program.json("reconcile", program.home / "payroll.csv", "--out", out, "--report", page)
    return out, page


def test_reconcile_writes_advice_for_every_paid_person(mixed: Program) -> None:
    advices = mixed.home / "advices.html"
    command = ("reconcile", mixed.home / "payroll.csv", "--out", mixed.home / "again.csv", "--advices", advices)
    mixed.json(*command)
    people = advices.read_text().split("<section")[1:]
    orders = [re.findall(r"<td class=\"mono\">((?:PAY|NO|LOST|LATER)-\d)</td>", text) for text in people]
    assert orders == [["PAY-1"], ["PAY-2"], ["PAY-3"], ["PAY-4"]]
    assert stat.S_IMODE(advices.stat().st_mode) == 0o600
    mixed.json(*command)  # the program may replace its own files


def read_payments(path: Path) -> list[dict[str, Any]]:
    """Return the rows of the first worksheet by heading, with the totals below them."""
    heading, *lines = openpyxl.load_workbook(path).worksheets[0].iter_rows(values_only=True)
    return [dict(zip(map(str, heading), line, strict=True)) for line in lines]


def test_workbook_shows_reconciliation_for_people(mixed: Program) -> None:
    out, _ = reconcile_batch(mixed)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    book, reconciliation = openpyxl.load_workbook(out), read_csv(mixed.home / "payroll.reconciliation.csv")
    heading, *whole = book["All columns"].iter_rows(values_only=True)
    assert list(heading) == list(reconciliation[0])
    assert isinstance(whole[0][heading.index("amount")], str)
    for cells, expected in zip(whole, reconciliation, strict=True):
        assert ["" if cell is None else str(cell) for cell in cells] == list(expected.values())
    lines = read_payments(out)
    assert [*lines[0]] == [
        *("Row", "Payee", "Account or phone", "Amount", "Currency", "State", "What is known", "Gateway reference"),
        *("Order id", "Sent (UTC)", "Last change (UTC)", "note"),
    ]
    names = ("row", "account_name", "account_number", "currency", "sent_orderid", "message", "note")
    columns = ("Row", "Payee", "Account or phone", "Currency", "Order id", "What is known", "note")
    for line, expected in zip(lines, reconciliation, strict=False):
        assert [str(line[column] or "") for column in columns] == [expected[name] for name in names]
        assert (line["Amount"], line["State"]) == (float(expected["amount"]), state_label(expected["state"]))
        sent = datetime.fromisoformat(expected["first_sent_at"]).replace(tzinfo=None)
        assert abs(line["Sent (UTC)"] - sent) < timedelta(milliseconds=2)
    totals = list(book["Totals"].iter_rows(values_only=True))
    assert totals[1] == ("KES", "all", "to be paid", 7, 33012.0)
    assert set(totals[totals.index((None,) * 5) + 2 :]) == {
        ("KES", "KE", "with the gateway", 1, 9002),
        ("KES", "KE", "in doubt", 1, 9007),
        ("KES", "KE", "paid", 4, 6002),
        ("KES", "KE", "rejected", 1, 9001),
    }


def test_worksheet_footer_shows_totals_by_currency(program: Program) -> None:
    ugandan = "UG,UG-1,{amount},UGX,Amina Okello,256712345678,+256712345678"
    rows = [*kenyan_rows(2, amount="1000000.5"), *kenyan_rows(1, amount="9001", prefix="NO")]
    program.json("submit", program.sheet([*rows, ugandan.format(amount="50000")]))
    out, _ = reconcile_batch(program)
    lines = [(line["Payee"], line["Account or phone"], line["Amount"], line["Currency"]) for line in read_payments(out)]
    assert lines[len(rows) + 1 :] == [
        (None, None, None, None),
        ("Total KES", "3 rows", 2009002.0, "KES"),
        (None, "1 row", 9001, "KES"),
        (None, "2 rows", 2000001.0, "KES"),
        ("Total UGX", "1 row", 50000, "UGX"),
        (None, "1 row", 50000, "UGX"),
    ]
    sheet = openpyxl.load_workbook(out).worksheets[0]
    formats = {row[3].number_format for row in sheet.iter_rows(min_row=2) if row[3].value is not None}
    assert formats == {"#,##0.00_)", "#,##0_)"}
    assert sheet.auto_filter.ref == "A1:K5", "the foot is no row to be sorted among the others"


def test_first_worksheet_is_coloured_and_prints_landscape(mixed: Program) -> None:
    out, _ = reconcile_batch(mixed)
    sheet = openpyxl.load_workbook(out).worksheets[0]
    coloured = {row[5].value: row[5].fill.fgColor.rgb for row in sheet.iter_rows(min_row=2, max_row=8)}
    assert set(coloured) == {"in doubt", "with the gateway", "paid", "rejected"}
    assert len(set(coloured.values())) == len(coloured)
    assert (sheet.page_setup.orientation, sheet.page_setup.paperSize) == ("landscape", 9)
    assert sheet.sheet_properties.pageSetUpPr is not None
    assert (sheet.sheet_properties.pageSetUpPr.fitToPage, sheet.page_setup.fitToHeight) == (True, 0)
    assert (sheet.print_title_rows, sheet.freeze_panes) == ("$1:$1", "C2")
    assert sheet.print_area.endswith(f"$K${sheet.max_row + 1}"), "without the sender's own columns"
    assert sheet.oddFooter is not None
    assert "Page" in str(sheet.oddFooter.right)


@pytest.mark.parametrize("name", ["pay & roll &P.csv", f"{'x' * 240}.csv"])
def test_print_header_accepts_any_sheet_name(program: Program, name: str) -> None:
    sheet = program.sheet(kenyan_rows(1), name)
    program.json("submit", sheet, "--out", program.home / "first.csv")
    out = program.home / "out.xlsx"
    assert program.json("reconcile", sheet, "--out", out)["exit_code"] == 0
    header = openpyxl.load_workbook(out).worksheets[0].oddHeader
    assert header is not None
    assert header.center is not None
    assert str(header.center.text)[:4] == name[:4]


def test_only_exact_amounts_are_written_as_numbers() -> None:
    exact = [("1500.50", 2), ("1500", 2), ("0", 0), ("9999999999999.99", 2), ("999999999999999", 0)]
    inexact = [("10000000000000.00", 2), ("1000000000000000", 0), ("1500.505", 2), ("1500.5", 0)]
    unreadable = [(text, 2) for text in ("1,500.50", "-5", "1e3", "")]
    assert [is_exact(*case) for case in exact] == [True] * len(exact)
    assert not any(is_exact(*case) for case in [*inexact, *unreadable])


def test_inexact_amount_is_text_with_note_below(program: Program) -> None:
    rows = [*kenyan_rows(1), *kenyan_rows(1, amount="123456789012345.67", prefix="BIG")]
    assert program.json("submit", program.sheet(rows))["exit_code"] == 0
    out, _ = reconcile_batch(program)
    lines = read_payments(out)
    assert [line["Amount"] for line in lines[:2]] == [1500.5, "123456789012345.67"]
    assert lines[3]["Amount"] == "123456789013846.17"
    assert "1 amount is written as text" in str(lines[-1]["Payee"])


def test_invalid_row_keeps_its_amount_text(program: Program) -> None:
    rows = [*kenyan_rows(1), *kenyan_rows(1, amount='"1,500.50"', prefix="BAD")]
    program.json("submit", program.sheet(rows), "--skip-invalid")
    out, _ = reconcile_batch(program)
    lines = read_payments(out)
    assert [line["Amount"] for line in lines[:2]] == [1500.5, "1,500.50"]
    assert not any("as text" in str(line["Payee"]) for line in lines)


def test_rewriting_workbook_and_page_changes_nothing(mixed: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program recognizes its own workbook, also a large one by its first texts, before any rows."""
    first = [path.read_bytes() for path in reconcile_batch(mixed)]
    monkeypatch.setattr(formats, "_MAX_SEARCHED_BYTES", 1_000)
    assert [path.read_bytes() for path in reconcile_batch(mixed)] == first


class _Page(HTMLParser):
    """Collects the resources, scripts, texts and table cells of a page."""

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


def parse_page(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text())
    return page


def test_report_page_charts_rows_and_loads_nothing(mixed: Program) -> None:
    _, path = reconcile_batch(mixed)
    page, content = parse_page(path), path.read_text()
    assert page.loads == []
    assert not {"script", "link", "iframe", "img", "object"} & set(page.tags)
    assert ("default-src 'none'" in content, "url(" in content) == (True, False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "Rows that need a decision: 2" in page.text
    assert page.text.index("LOST-1") < page.text.index("NO-1") < page.text.index("Totals by country and state")
    charts = re.findall(r"<svg.*?</svg>", content, flags=re.DOTALL)
    assert len(charts) == 2
    by_state = Counter[str]()
    for state, count in re.findall(r"<title>([a-z ]+): (\d+)</title>", charts[0]):
        by_state[state] += int(count)
    assert by_state == {"paid": 4, "rejected": 1, "in doubt": 1, "with the gateway": 1}
    assert sum(int(count) for count in re.findall(r": (\d+)</title>", charts[1])) == 6
    assert "50% within" in content


def test_sheet_text_is_never_executed_as_html(program: Program) -> None:
    rows = [
        ["KE", f"NO-{n}", "9001", "KES", name, f"25471234500{n}", f"+25471234500{n}"]
        for n, name in enumerate([HOSTILE, SPAN, "=1+1"], 1)
    ]
    sheet = program.home / "payroll.csv"
    with sheet.open("w", newline="") as stream:
        csv.writer(stream).writerows([HEADING.split(","), *rows])
    assert program.json("submit", sheet, "--skip-invalid")["exit_code"] == 4
    out, path = reconcile_batch(program)
    page = parse_page(path)
    assert ("script" in page.tags, HOSTILE in page.text, SPAN in page.text) == (False, True, True)
    cells = [cell for sheet in openpyxl.load_workbook(out) for row in sheet.iter_rows() for cell in row]
    assert all(cell.data_type != "f" for cell in cells)


def test_unwritable_report_is_refused(mixed: Program) -> None:
    out, page = mixed.home / "o.csv", mixed.home / "no" / "o.html"
    assert mixed.run("reconcile", mixed.home / "payroll.csv", "--out", out, "--report", page).exit_code == 2
