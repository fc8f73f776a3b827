"""Tests that all outputs of a batch agree on its counts and sums."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from io import BytesIO
from pathlib import Path

import openpyxl
import polars as pl
import pytest

from paygw_batch.api import Payouts
from paygw_batch.console.rendering import state_title
from paygw_batch.core.shown_states import STATES, state_label
from tests.console.preparing import waive_approval
from tests.support.people import APPROVER, House, Person, create_sandbox

SENT = [("KES", "100.00"), ("UGX", "5000"), *(("KES", text) for text in ("250.50", "9001.00", "9006.00", "9002.00"))]
NOT_SENT = [("KES", "33.33"), ("UGX", "700")]
LEFT_OUT = [("KES", "1,5"), ("KES", "1234.567"), ("USD", "5")]
Sums = Mapping[tuple[str, str], Decimal]
BOOKED = {
    "KES": {"paid": "350.50", "rejected": "9001.00", "in_doubt": "9006.00", "accepted": "9002.00", "ready": "33.33"},
    "UGX": {"paid": "5000", "ready": "700"},
}
BOOKS: Sums = {(code, state): Decimal(text) for code, sums in BOOKED.items() for state, text in sums.items()}
APPROVED = {"KES": Decimal("27392.83"), "UGX": Decimal(5700)}
ROWS = {"paid": 3, "rejected": 1, "in_doubt": 1, "accepted": 1, "ready": 2, "invalid": 3}
CODES = {word(state): state for state in STATES for word in (state_label, state_title)}
"""The code of each state that people read, in a table or in a sentence."""


def row(number: int, currency: str, amount: str) -> str:
    country, dialling = ("UG", "256") if currency == "UGX" else ("KE", "254")
    phone = f"{dialling}71234{number:04}"
    return f'{country},S-{number},"{amount}",{currency},Jane {number},{phone},+{phone}'


class Batch:
    def __init__(self, house: House) -> None:
        self.program = program = house.program
        waive_approval(program)
        program.config.write_text(
            program.config.read_text().replace("[approval.makers]", 'UGX = "9000"\n[approval.makers]')
        )
        self.sheet = program.sheet([row(n, *one) for n, one in enumerate([*SENT, *NOT_SENT, *LEFT_OUT], 1)])
        first = program.json("submit", self.sheet, "--skip-invalid", "--first", str(len(SENT)))
        self.batch, self.totals = str(first["batch"]), first["totals"]
        self.person: Person = house.person(APPROVER)
        self.api = Payouts(program.config, environ=program.environ)

    def read_reconciliation(self, ending: str) -> bytes:
        out = self.program.home / f"out.{ending}"
        summary = self.program.json("reconcile", self.sheet, "--out", out, "--report", self.program.home / "out.html")
        assert (sums_of_json(summary["totals"]), summary["states"]) == (BOOKS, ROWS)
        return out.read_bytes()


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Batch:
    return Batch(House(create_sandbox(tmp_path_factory.mktemp("home"))))


def plain_amount(amount: object) -> Decimal:
    return Decimal(re.sub(r"[,\u202f]", "", str(amount)))


def sums_of_json(totals: Mapping[str, Mapping[str, str]]) -> Sums:
    """Return the sums in JSON, where invalid rows have their own key."""
    return {
        (currency, str(state)): plain_amount(amount)
        for currency, sums in totals.items()
        for state, amount in sums.items()
        if state != "invalid"
    }


def sums_of_rows(rows: Iterable[Mapping[str, object]], amount: str = "amount") -> Sums:
    sums: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
    for one in rows:
        if one["state"] != "invalid":
            sums[str(one["currency"]), str(one["state"])] += plain_amount(one[amount])
    return sums


def table_cells(table: str) -> Sequence[Sequence[str]]:
    lines = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
    cells = (re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line, re.DOTALL) for line in lines)
    return [[re.sub(r"<[^>]+>", "", cell).strip() for cell in line] for line in cells]


def sums_of_table(page: str) -> Sums:
    """Return the sums of the table with a column per state, after checking its totals."""
    tables = map(table_cells, re.findall(r"<table>(.*?)</table>", page, re.DOTALL))
    heading, *lines = next(table for table in tables if "to be paid" in [text.lower() for text in table[0]])
    place = [text.lower() for text in heading].index("to be paid")
    assert {line[0]: plain_amount(line[place]) for line in lines} == APPROVED
    return {
        (line[0], CODES[name]): plain_amount(amount)
        for line in lines
        for name, amount in zip(heading[place + 1 :], line[place + 1 :], strict=True)
        if re.search("[1-9]", amount)
    }


def sums_of_worksheet(lines: Sequence[Sequence[object]], columns: tuple[int, int, int]) -> Sums:
    """Return the sums in a workbook's total lines, of which the first per currency has no state."""
    currency, state, amount = columns
    lines_by_state = {(str(one[currency]), str(one[state])): one for one in lines}
    approved = {code: one[amount] for (code, name), one in lines_by_state.items() if name == "to be paid"}
    assert {code: plain_amount(text) for code, text in approved.items() if text} == APPROVED
    assert not [one for (_, name), one in lines_by_state.items() if name == "left out" and one[amount]]
    return {
        (code, CODES[name]): plain_amount(one[amount])
        for (code, name), one in lines_by_state.items()
        if name in CODES and name != "left out"
    }


def sums_of_workbook(batch: Batch, worksheet: str) -> Sums:
    book = openpyxl.load_workbook(BytesIO(batch.read_reconciliation("xlsx")))
    lines = list(book[worksheet].iter_rows(values_only=True))
    if worksheet == "Payments":
        return sums_of_worksheet(lines[len([*SENT, *NOT_SENT, *LEFT_OUT]) + 1 :], (4, 5, 3))
    below = lines.index((None,) * 5)
    return sums_of_worksheet(lines[1:below], (0, 2, 4))


def sums_of_terminal(batch: Batch) -> Sums:
    pattern = r"^ ([A-Z]{2}|  )\s+([A-Z]{3})\s+(.*?)\s+[\d,]+\s+([\d,.]+)\s*$"
    lines = re.findall(pattern, batch.program.run("status", batch.sheet).stdout, re.MULTILINE)
    assert {currency: plain_amount(amount) for _, currency, state, amount in lines if state == "to be paid"} == APPROVED
    return {(currency, CODES[state]): plain_amount(amount) for _, currency, state, amount in lines if state in CODES}


def page(batch: Batch, path: str = "") -> str:
    return batch.person.get(f"/payouts/{batch.batch}{path}").text


def report(batch: Batch) -> str:
    batch.read_reconciliation("csv")
    return (batch.program.home / "out.html").read_text()


def read_frame(batch: Batch, ending: str) -> pl.DataFrame:
    content = batch.read_reconciliation(ending)
    return pl.read_csv(content, infer_schema=False) if ending == "csv" else pl.read_parquet(content)


OUTPUTS: Mapping[str, Callable[[Batch], Sums]] = {
    "submit --json": lambda batch: sums_of_json(batch.totals),
    "status --json": lambda batch: sums_of_json(batch.program.json("status", batch.batch)["totals"]),
    "terminal": sums_of_terminal,
    "CSV": lambda batch: sums_of_rows(read_frame(batch, "csv").iter_rows(named=True)),
    "Parquet": lambda batch: sums_of_rows(read_frame(batch, "parquet").iter_rows(named=True), "amount_decimal"),
    "workbook, payments": lambda batch: sums_of_workbook(batch, "Payments"),
    "workbook, totals": lambda batch: sums_of_workbook(batch, "Totals"),
    "report page": lambda batch: sums_of_table(report(batch)),
    "page to print": lambda batch: sums_of_table(page(batch, "/reconciliation.html")),
    "console": lambda batch: sums_of_table(page(batch)),
    "API, status": lambda batch: sums_of_json(batch.api.status(batch.batch).totals),
    "API, reconcile": lambda batch: sums_of_json(batch.api.reconcile(batch.batch).totals),
    "API, frame": lambda batch: sums_of_rows(batch.api.reconcile(batch.batch).reconciliation.iter_rows(named=True)),
}


@pytest.mark.parametrize("output", OUTPUTS)
def test_every_output_shows_same_totals(batch: Batch, output: str) -> None:
    assert OUTPUTS[output](batch) == BOOKS


def test_outputs_count_each_row_once(batch: Batch) -> None:
    assert batch.program.json("status", batch.batch)["states"] == ROWS
    assert batch.api.status(batch.batch).states == ROWS
    for state, count in ROWS.items():
        assert f"<strong>{count}</strong> {state_title(state)}" in page(batch)
        assert f'<li class="{state}"><b>{count}</b>{state_label(state)}</li>' in report(batch)
        assert f"{count} {state_label(state)}" in batch.program.run("status", batch.batch).stdout


def test_printed_page_hides_error_codes_and_logins(tmp_path: Path) -> None:
    batch = Batch(House(create_sandbox(tmp_path)))
    printed = page(batch, "/reconciliation.html")
    assert "No one knows what happened to the request. The row may have been paid." in printed
    assert ("reply.not_json" in printed, "reply.not_json" in report(batch)) == (False, True)
    words = ("--as", "paid", "--evidence", "ticket 1", "--by", "Grace Njeri")
    batch.program.json("resolve", "row", batch.batch, "6", *words)
    settled = page(batch, "/reconciliation.html")
    assert ("Grace Njeri" in settled, "(login" in settled) == (True, False)
