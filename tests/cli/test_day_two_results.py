"""Results for people: the workbook and the HTML report of a reconciliation."""

import csv
import re
import stat
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
def mixed_batch(machine_cache: MachineCache) -> Program:
    return machine_cache(prepare_mixed_batch)


def reconcile_batch(program: Program, name: str = "out.xlsx") -> tuple[Path, Path]:
    out, page = program.home / name, program.home / "out.html"
    program.json("reconcile", program.home / "payroll.csv", "--out", out, "--report", page)
    return out, page


def test_full_worksheet_has_texts_of_csv(mixed_batch: Program) -> None:
    out, _ = reconcile_batch(mixed_batch)
    book = openpyxl.load_workbook(out)
    heading, *lines = book["All columns"].iter_rows(values_only=True)
    reconciliation = read_csv(mixed_batch.home / "payroll.reconciliation.csv")
    assert list(heading) == list(reconciliation[0])
    for line, expected in zip(lines, reconciliation, strict=True):
        cells = {name: "" if value is None else str(value) for name, value in zip(heading, line, strict=True)}
        assert cells == expected
        assert isinstance(line[heading.index("amount")], str)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_reconcile_writes_advice_for_each_paid_person(mixed_batch: Program) -> None:
    advices = mixed_batch.home / "advices.html"
    command = (
        "reconcile",
        mixed_batch.home / "payroll.csv",
        "--out",
        mixed_batch.home / "again.csv",
        "--advices",
        advices,
    )
    mixed_batch.json(*command)
    people = advices.read_text().split("<section")[1:]
    orders = [re.findall(r"<td class=\"mono\">((?:PAY|NO|LOST|LATER)-\d)</td>", text) for text in people]
    assert orders == [["PAY-1"], ["PAY-2"], ["PAY-3"], ["PAY-4"]]
    assert stat.S_IMODE(advices.stat().st_mode) == 0o600
    mixed_batch.json(*command)  # the program may replace its own files


def read_payments(path: Path) -> list[dict[str, Any]]:
    """Return the rows of the first worksheet by heading, with the totals below them."""
    heading, *lines = openpyxl.load_workbook(path).worksheets[0].iter_rows(values_only=True)
    return [dict(zip(map(str, heading), line, strict=True)) for line in lines]


def test_first_worksheet_shows_main_columns_and_numeric_amounts(mixed_batch: Program) -> None:
    out, _ = reconcile_batch(mixed_batch)
    reconciliation = read_csv(mixed_batch.home / "payroll.reconciliation.csv")
    lines = read_payments(out)
    assert [*lines[0]] == [
        *("Row", "Payee", "Account or phone", "Amount", "Currency", "State", "What is known", "Gateway reference"),
        *("Order id", "Sent (UTC)", "Last change (UTC)", "note"),
    ]
    for line, expected in zip(lines, reconciliation, strict=False):
        assert line["Amount"] == float(expected["amount"])
        cells = (str(line["Row"]), line["Payee"], line["Account or phone"], line["Currency"], line["Order id"])
        names = ("row", "account_name", "account_number", "currency", "sent_orderid")
        assert cells == tuple(expected[name] for name in names)
        assert line["State"] == state_label(expected["state"])
        assert (line["What is known"] or "") == expected["message"]
        assert line["note"] == expected["note"]
        sent = datetime.fromisoformat(expected["first_sent_at"]).replace(tzinfo=None)
        assert abs(line["Sent (UTC)"] - sent) < timedelta(milliseconds=2)


def test_worksheet_foot_shows_totals_by_currency(program: Program) -> None:
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


def test_first_worksheet_prints_landscape_with_heading_rows(mixed_batch: Program) -> None:
    out, _ = reconcile_batch(mixed_batch)
    sheet = openpyxl.load_workbook(out).worksheets[0]
    assert (sheet.page_setup.orientation, sheet.page_setup.paperSize) == ("landscape", 9)
    assert sheet.sheet_properties.pageSetUpPr is not None
    assert (sheet.sheet_properties.pageSetUpPr.fitToPage, sheet.page_setup.fitToHeight) == (True, 0)
    assert sheet.print_title_rows == "$1:$1"
    assert sheet.print_area.endswith(f"$K${sheet.max_row + 1}"), "without the sender's own columns"
    footer = sheet.oddFooter
    assert footer is not None
    assert footer.right is not None
    assert "Page" in str(footer.right.text)


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


def test_workbook_colours_states_and_freezes_header(mixed_batch: Program) -> None:
    out, _ = reconcile_batch(mixed_batch)
    sheet = openpyxl.load_workbook(out).worksheets[0]
    assert sheet.freeze_panes == "C2"
    coloured = {row[5].value: row[5].fill.fgColor.rgb for row in sheet.iter_rows(min_row=2, max_row=8)}
    assert set(coloured) == {"in doubt", "with the gateway", "paid", "rejected"}
    assert len(set(coloured.values())) == len(coloured)


def test_workbook_totals_match_payout_totals(mixed_batch: Program) -> None:
    out, _ = reconcile_batch(mixed_batch)
    lines = list(openpyxl.load_workbook(out)["Totals"].iter_rows(values_only=True))
    assert lines[1] == ("KES", "all", "to be paid", 7, 33012.0)
    assert set(lines[lines.index((None,) * 5) + 2 :]) == {
        ("KES", "KE", "with the gateway", 1, 9002),
        ("KES", "KE", "in doubt", 1, 9007),
        ("KES", "KE", "paid", 4, 6002),
        ("KES", "KE", "rejected", 1, 9001),
    }


@pytest.mark.parametrize(
    ("amount", "units", "exact"),
    [
        ("1500.50", 2, True),
        ("1500", 2, True),
        ("0", 0, True),
        ("9999999999999.99", 2, True),
        ("10000000000000.00", 2, False),
        ("999999999999999", 0, True),
        ("1000000000000000", 0, False),
        ("1500.505", 2, False),
        ("1500.5", 0, False),
        ("1,500.50", 2, False),
        ("-5", 2, False),
        ("1e3", 2, False),
        ("", 2, False),
    ],
)
def test_amount_is_number_only_if_exact(amount: str, units: int, exact: bool) -> None:
    assert is_exact(amount, units) is exact


def test_inexact_amount_is_text_and_noted_below(program: Program) -> None:
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


def test_large_workbook_written_earlier_is_replaced(mixed_batch: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program recognizes its own workbook by its first texts, before any rows."""
    reconcile_batch(mixed_batch)
    monkeypatch.setattr(formats, "_MAX_STRINGS_BYTES", 1_000)
    reconcile_batch(mixed_batch)


def test_workbook_and_page_are_rewritten_byte_identical(mixed_batch: Program) -> None:
    first = [path.read_bytes() for path in reconcile_batch(mixed_batch)]
    assert [path.read_bytes() for path in reconcile_batch(mixed_batch)] == first


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


def test_report_page_loads_no_other_file(mixed_batch: Program) -> None:
    _, path = reconcile_batch(mixed_batch)
    page = parse_page(path)
    assert page.loads == []
    assert not {"script", "link", "iframe", "img", "object"} & set(page.tags)
    assert "default-src 'none'" in path.read_text()
    assert "url(" not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_page_lists_in_doubt_then_rejected_rows(mixed_batch: Program) -> None:
    _, path = reconcile_batch(mixed_batch)
    text = parse_page(path).text
    assert "Rows that need a person: 2" in text
    assert text.index("LOST-1") < text.index("NO-1") < text.index("Totals by country and state")


def test_report_page_charts_outcomes_and_latency(mixed_batch: Program) -> None:
    _, path = reconcile_batch(mixed_batch)
    content = path.read_text()
    charts = re.findall(r"<svg.*?</svg>", content, flags=re.DOTALL)
    assert len(charts) == 2
    by_state: dict[str, int] = {}
    for state, count in re.findall(r"<title>([a-z ]+): (\d+)</title>", charts[0]):
        by_state[state] = by_state.get(state, 0) + int(count)
    assert by_state == {"paid": 4, "rejected": 1, "in doubt": 1, "with the gateway": 1}
    assert sum(int(count) for count in re.findall(r": (\d+)</title>", charts[1])) == 6
    assert "50% within" in content


def test_page_is_written_without_open_rows(program: Program) -> None:
    program.json("submit", program.sheet(kenyan_rows(1)))
    out, path = program.home / "o.csv", program.home / "o.html"
    program.json("reconcile", program.home / "payroll.csv", "--out", out, "--report", path)
    assert "Rows that need a person" in parse_page(path).text


def test_sheet_text_is_displayed_but_never_executed(program: Program) -> None:
    rows = []
    for number, name in enumerate([HOSTILE, SPAN, "=1+1"], start=1):
        rows.append(["KE", f"NO-{number}", "9001", "KES", name, f"25471234500{number}", f"+25471234500{number}"])
    sheet = program.home / "payroll.csv"
    with sheet.open("w", newline="") as stream:
        csv.writer(stream).writerows([HEADING.split(","), *rows])
    summary = program.json("submit", sheet, "--skip-invalid")
    assert summary["exit_code"] == 4
    out, path = reconcile_batch(program)
    page = parse_page(path)
    assert "script" not in page.tags
    assert HOSTILE in page.text
    assert SPAN in page.text
    cells = [cell for sheet in openpyxl.load_workbook(out) for row in sheet.iter_rows() for cell in row]
    assert all(cell.data_type != "f" for cell in cells)


def test_unwritable_report_is_refused(mixed_batch: Program) -> None:
    result = mixed_batch.run(
        "reconcile",
        mixed_batch.home / "payroll.csv",
        "--out",
        mixed_batch.home / "o.csv",
        "--report",
        mixed_batch.home / "no" / "o.html",
    )
    assert result.exit_code == 2
