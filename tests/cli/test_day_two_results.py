"""Results of batches for people and data frames: lists, workbooks, typed columns, CSV for Excel, and the report."""

import csv
import json
import re
import stat
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from html import unescape
from pathlib import Path
from typing import Any

import openpyxl
import polars as pl
import pytest

from paygw_batch.core.shown_states import state_label
from paygw_batch.sheet import formats
from paygw_batch.sheet.clean import wrap_for_spreadsheets
from paygw_batch.show.workbook import is_exact
from tests.cli.conftest import MachineCache
from tests.cli.paying import block_first_reply, run_gateway
from tests.support.program import HEADING, Program, kenyan_rows, read_csv

HOSTILE = ('<script>alert(1)</script> & "x"', '<span class="state">x</span>', "=1+1")

# Lists of batches and rows


def prepare_three_batches(program: Program) -> None:
    program.json("submit", program.sheet(kenyan_rows(2, prefix="A"), name="small.csv"))
    program.json("submit", program.sheet(kenyan_rows(2, amount="9001", prefix="B"), name="declined.csv"))
    program.json("submit", program.sheet(kenyan_rows(5, prefix="C"), name="large.csv"))


def test_status_lists_batches_in_requested_order(machine_cache: MachineCache) -> None:
    batches = machine_cache(prepare_three_batches)
    for order, sheets in {
        "opened": ["small.csv", "declined.csv", "large.csv"],
        "age": ["large.csv", "declined.csv", "small.csv"],
        "rows": ["large.csv", "small.csv", "declined.csv"],
        "sheet": ["declined.csv", "large.csv", "small.csv"],
        "person": ["declined.csv", "small.csv", "large.csv"],
    }.items():
        summary = batches.json("status", "--sort", order)
        assert [batch["sheet"] for batch in summary["batches"]] == sheets, order
    assert (summary["states"], summary["totals"]) == (
        {"paid": 7, "rejected": 2},
        {"KES": {"paid": "10503.50", "rejected": "18002.00"}},
    )
    assert [batch["needs_person"] for batch in summary["batches"]] == [2, 0, 0]
    assert all(0 <= batch["age_s"] < 600 for batch in summary["batches"])
    assert "1 of them needs a decision" in summary["message"]
    listed = [line.split() for line in batches.run("status").stdout.splitlines() if ".csv" in line]
    assert [line[1:2] + line[3:] for line in listed] == [
        ["small.csv", "2", "2", "0", "0"],
        ["declined.csv", "2", "0", "0", "2"],
        ["large.csv", "5", "5", "0", "0"],
    ]
    for arguments in (["--watch"], ["--in-doubt"], ["small.csv", "--out", "x.csv"]):
        assert batches.run("status", *arguments).exit_code == 2


def test_status_lists_rows_in_doubt_up_to_limit(program: Program) -> None:
    text = program.config.read_text().replace("[submission]", "[submission]\nstop_after_rejected = 0")
    program.config.write_text(text)
    sheet = program.sheet([*kenyan_rows(30, amount="9001", prefix="NO"), *kenyan_rows(2, amount="9010", prefix="WHAT")])
    program.json("submit", sheet)
    lines = program.run("status", sheet).stdout.splitlines()
    assert "What to do next (32 rows need a decision):" in lines
    shown = [int(line.split()[2].rstrip(",")) for line in lines if line.startswith("- Row ")]
    assert shown == [32, 33, *range(2, 20)]
    assert "... and 12 more. To list all of them, use --json." in lines
    summary = program.json("status", sheet)
    assert [row["row"] for row in summary["needs_person"]] == list(range(2, 34))
    assert [row["row"] for row in summary["in_doubt"]] == [32, 33]
    doubtful = program.run("status", sheet, "--in-doubt").stdout.splitlines()
    assert "What to do next (2 rows need a decision):" in doubtful


def test_watch_follows_batch_until_it_ends(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(5))
    with run_gateway(program) as gateway:
        with block_first_reply(program, gateway, "submit", sheet):
            watch = program.start("--json", "status", sheet, "--watch")
            assert watch.stderr is not None
            assert any("not sent yet" in line for line in watch.stderr), watch.communicate()  # the answers arrive now
        shown, _ = watch.communicate()
    assert json.loads(shown)["states"] == {"paid": 5}


# Workbooks and pages


def prepare_mixed_batch(program: Program) -> None:
    others = [kenyan_rows(1, amount=amount, prefix=name)[0] for name, amount in (("NO", "9001"), ("LOST", "9007"))]
    rows = [*kenyan_rows(4), *others, *kenyan_rows(1, amount="9002", prefix="LATER")]
    program.json("submit", program.sheet([f"{row},{n}" for n, row in enumerate(rows)], heading=f"{HEADING},note"))


@pytest.fixture
def mixed(machine_cache: MachineCache) -> Program:
    return machine_cache(prepare_mixed_batch)


def reconcile_batch(program: Program) -> tuple[Path, Path]:
    out, page = program.home / "out.xlsx", program.home / "out.html"
    program.json("reconcile", program.home / "payroll.csv", "--out", out, "--report", page)
    return out, page


def read_payments(path: Path) -> list[dict[str, Any]]:
    """Return the rows of the first worksheet by heading, with the totals below them."""
    heading, *lines = openpyxl.load_workbook(path).worksheets[0].iter_rows(values_only=True)
    return [dict(zip(map(str, heading), line, strict=True)) for line in lines]


def test_reconcile_writes_advice_for_every_paid_person(mixed: Program) -> None:
    advices = mixed.home / "advices.html"
    command = ("reconcile", mixed.home / "payroll.csv", "--out", mixed.home / "again.csv", "--advices", advices)
    mixed.json(*command)
    people = advices.read_text().split("<section")[1:]
    orders = [re.findall(r"<td class=\"mono\">((?:PAY|NO|LOST|LATER)-\d)</td>", text) for text in people]
    assert orders == [["PAY-1"], ["PAY-2"], ["PAY-3"], ["PAY-4"]]
    assert stat.S_IMODE(advices.stat().st_mode) == 0o600
    mixed.json(*command)  # the program may replace its own files


def test_workbook_shows_reconciliation_for_people(mixed: Program) -> None:
    out, page = reconcile_batch(mixed)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (out, page)] == [0o600] * 2
    book, reconciliation = openpyxl.load_workbook(out), read_csv(mixed.home / "payroll.reconciliation.csv")
    heading, *whole = book["All columns"].iter_rows(values_only=True)
    assert list(heading) == list(reconciliation[0])
    assert isinstance(whole[0][heading.index("amount")], str)
    for cells, expected in zip(whole, reconciliation, strict=True):
        assert ["" if cell is None else str(cell) for cell in cells] == list(expected.values())
    names = {"row": "Row", "account_name": "Payee", "account_number": "Account or phone", "currency": "Currency"}
    names |= {"sent_orderid": "Order id", "message": "What is known", "note": "note"}
    for line, expected in zip(read_payments(out), reconciliation, strict=False):
        assert {name: str(line[column] or "") for name, column in names.items()} == {
            name: expected[name] for name in names
        }
        assert (line["Amount"], line["State"]) == (float(expected["amount"]), state_label(expected["state"]))
        sent = datetime.fromisoformat(expected["first_sent_at"]).replace(tzinfo=None)
        assert abs(line["Sent (UTC)"] - sent) < timedelta(milliseconds=2)


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


def test_inexact_or_invalid_amount_is_text(program: Program) -> None:
    others = (("BIG", "123456789012345.67"), ("BAD", '"1,500.50"'))
    rows = [kenyan_rows(1, amount=amount, prefix=name)[0] for name, amount in (("PAY", "1500.50"), *others)]
    assert program.json("submit", program.sheet(rows), "--skip-invalid")["exit_code"] == 4
    lines = read_payments(reconcile_batch(program)[0])
    assert [line["Amount"] for line in lines[:3]] == [1500.5, "123456789012345.67", "1,500.50"]
    assert lines[4]["Amount"] == "123456789013846.17"
    assert "1 amount is written as text" in str(lines[-1]["Payee"])


def test_rewriting_workbook_and_page_changes_nothing(mixed: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program recognizes its own workbook, also a large one by its first texts, before any rows."""
    first = [path.read_bytes() for path in reconcile_batch(mixed)]
    monkeypatch.setattr(formats, "_MAX_SEARCHED_BYTES", 1_000)
    assert [path.read_bytes() for path in reconcile_batch(mixed)] == first


def test_sheet_text_is_never_executed(program: Program) -> None:
    sheet = program.home / "payroll.csv"
    with sheet.open("w", newline="") as stream:
        rows = [["KE", f"NO-{n}", "9001", "KES", name, *[f"25471234500{n}"] * 2] for n, name in enumerate(HOSTILE)]
        csv.writer(stream).writerows([HEADING.split(","), *rows])
    assert program.json("submit", sheet, "--skip-invalid")["exit_code"] == 4
    out, path = reconcile_batch(program)
    page = path.read_text()
    text = unescape(re.sub("<[^>]+>", "", page))
    assert ("<script" in page, [name for name in HOSTILE if name not in text]) == (False, [])
    cells = [cell for sheet in openpyxl.load_workbook(out) for row in sheet.iter_rows() for cell in row]
    assert all(cell.data_type != "f" for cell in cells)
    refused = program.run(
        "reconcile", sheet, "--out", program.home / "o.csv", "--report", program.home / "no" / "o.html"
    )
    assert refused.exit_code == 2


# Data frames and Excel

BOM = b"\xef\xbb\xbf"
ODD = [
    "KE,0712,1500.50,KES,Jane Wanjiku,254712345001,0712345001,1/2",
    "KE,MAR-1,9001,KES,Ann,254712345002,+254712345002,x",
    "KE,BAD-1,1e3,KES,Jane,254712345678,+254712345678,y",
]


def prepare_odd_batch(program: Program) -> None:
    """Submit ids that a spreadsheet reads as a number and a date; the second row is rejected, the third invalid."""
    program.json("submit", program.sheet(ODD, heading=f"{HEADING},amount_decimal"), "--skip-invalid")


@pytest.fixture
def odd(machine_cache: MachineCache) -> Program:
    return machine_cache(prepare_odd_batch)


def write_for_excel(program: Program, delimiter: str, *options: str) -> list[dict[str, str]]:
    out = program.home / "out.csv"
    program.json(*options, "reconcile", program.home / "payroll.csv", "--out", out, "--for-excel")
    assert out.read_bytes().startswith(BOM)
    with out.open(newline="", encoding="utf-8-sig") as stream:
        return list(csv.DictReader(stream, delimiter=delimiter))


def test_parquet_reconciliation_adds_typed_amounts_and_times(odd: Program) -> None:
    out = odd.home / "out.parquet"
    odd.json("reconcile", odd.home / "payroll.csv", "--out", out)
    frame = pl.read_parquet(out)
    assert frame["amount_decimal"].to_list() == ["1/2", "x", "y"]  # the sender's column keeps its name
    assert {name: str(kind) for name, kind in [*frame.schema.items()][-3:]} == {
        "amount_decimal_": "Decimal(precision=38, scale=4)",
        **dict.fromkeys(("first_sent_at_utc", "updated_at_utc"), "Datetime(time_unit='us', time_zone='UTC')"),
    }
    assert frame["amount"].to_list() == ["1500.50", "9001", "1e3"]
    assert frame["amount_decimal_"].to_list() == [Decimal("1500.50"), Decimal(9001), None]
    *sent, unsent = frame.select("first_sent_at", "first_sent_at_utc").iter_rows()
    assert [datetime.fromisoformat(text) for text, _ in sent] == [time.astimezone(UTC) for _, time in sent]
    assert unsent[1] is None


def test_csv_for_excel_keeps_every_digit(odd: Program) -> None:
    first, second, _ = write_for_excel(odd, ",")
    assert (first["row"], first["amount"]) == ("2", "1500.50")
    assert (first["client_orderid"], second["client_orderid"]) == ('="0712"', '="MAR-1"')
    assert (first["account_number"], first["phone"]) == ('="254712345001"', '="+254712345001"')
    assert (first["account_name"], first["amount_decimal"]) == ("Jane Wanjiku", '="1/2"')
    assert first["updated_at"].endswith("Z")
    again = odd.json("submit", odd.home / "out.csv", "--dry-run", "--skip-invalid")
    assert (again["known"], again["sent_this_run"]) == (2, 0)
    first, second, _ = write_for_excel(odd, ";", "--lang", "fr")  # the program may replace its own file
    assert (first["amount"], second["amount"]) == ("1500,50", "9001")


def test_each_command_writes_csv_for_excel(odd: Program) -> None:
    sheet, out = odd.home / "payroll.csv", odd.home / "out.csv"
    for command, *options in (("submit", "--skip-invalid"), ("resume",), ("retry",)):
        out.unlink(missing_ok=True)
        odd.json(command, sheet, *options, "--out", out, "--for-excel")
        assert out.read_bytes().startswith(BOM), command
        refused = odd.run(command, sheet, *options, "--out", odd.home / "out.xlsx", "--for-excel")
        assert refused.exit_code == 2, command


SENSITIVE = ["0712", "1e5", "12.50", "1-2", "3/4", "2:30", "SEP2", "mars 2026", "TRUE", "+254"]
SAFE = ["A-1", "Jane Wanjiku", "", "'=1", "2026-11-24T10:40:13.402Z", "1" * 256, '1"2']


def test_only_dangerous_texts_are_quoted_for_spreadsheets() -> None:
    assert wrap_for_spreadsheets(pl.Series(SENSITIVE + SAFE)).to_list() == [f'="{text}"' for text in SENSITIVE] + SAFE
