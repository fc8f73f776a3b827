"""Reading a statement's file as lines, to the last digit, and the errors of unusable files."""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paygw_batch.errors import SheetError
from paygw_batch.settle import statement
from paygw_batch.settle.statement import (
    Statement,
    StatementLine,
    TimeSpan,
    parse_time_span,
    read_statement,
    statement_from_json,
    statement_to_json,
)
from paygw_batch.sheet.read.headings import HEADER_ROWS

COLUMNS_HINT = "Map the gateway's headings to columns under `[statement.columns]` in the configuration."
HINT = "Nothing was settled. Ask for the statement again, or choose the right one, then run the command again."
HEADINGS = "order_id,amount,currency,status"
TWICE = "day.csv: the headings 'order_id' and 'Client OrderID' both mean the column order_id."
NEITHER = (
    "day.csv must have either a column called status (the gateway's own words) or a column called answer (paid, "
    "rejected or not-received)."
)


def write_file(folder: Path, text: str | bytes, name: str = "day.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def write_workbook(folder: Path, *rows: tuple[object, ...], further: Mapping[str, str] | None = None) -> Path:
    book = openpyxl.Workbook()
    first = book.worksheets[0]
    first.title = "Orders"
    for row in rows:
        first.append(list(row))
    for name, state in (further or {}).items():
        more = book.create_sheet(name)
        more.append(("order_id", "amount", "currency", "status"))
        more.sheet_state = state
    book.save(folder / "day.xlsx")
    return folder / "day.xlsx"


def read_file(path: Path, aliases: Mapping[str, str] | None = None) -> Statement:
    return read_statement(path, aliases or {}, encoding=None)


def refusal(path: Path, aliases: Mapping[str, str] | None = None) -> tuple[str, str | None]:
    with pytest.raises(SheetError) as result:
        read_file(path, aliases)
    return result.value.message, result.value.hint


def test_statement_lines_are_read_as_written(tmp_path: Path) -> None:
    text = (
        "Order ID,amount,currency,status,time,sent_at,other\n"
        " A-1 , 1500.50 , kes , approved , 2026-11-21 , 08:01 , x\n"
        ",,,,,,\n"
        "A-2,7,UGX,,,,\n"
    )
    result = read_file(write_file(tmp_path, text))
    assert result == Statement(
        "day.csv",
        hashlib.sha256(text.encode()).hexdigest(),
        [
            StatementLine(2, "A-1", Decimal("1500.50"), "1500.50", "KES", "approved", None, "2026-11-21", "08:01"),
            StatementLine(4, "A-2", Decimal(7), "7", "UGX", "", None, "", ""),
        ],
    )
    assert statement_from_json(statement_to_json(result)) == result
    (line,) = read_file(write_file(tmp_path, "client_orderid;amount;currency;answer\nA-1;1,500;KES;paid\n")).lines
    assert (line.status, line.answer, line.amount, line.amount_text) == (None, "paid", None, "1,500")
    again = statement_from_json(statement_to_json(Statement("Zo\u00eb.csv", "0", [line])))
    assert (again.name, again.lines) == ("Zo\u00eb.csv", [line])


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_statement_delimiter_is_taken_from_header(tmp_path: Path, delimiter: str) -> None:
    text = delimiter.join(["sent_orderid", "amount", "currency", "gateway_status"])
    row = delimiter.join(["A-1", "1.2345", "KES", '"a,b;c"'])
    (line,) = read_file(write_file(tmp_path, f"{text}\n{row}\n")).lines
    assert (line.order_id, line.amount, line.status) == ("A-1", Decimal("1.2345"), "a,b;c")


@pytest.mark.parametrize(
    "above", ["sep=;\n", "Statement; November 2026\n\n", "amount in KES\nPage 1, of 1\n\n\n", "x\n" * (HEADER_ROWS - 1)]
)
def test_titles_above_text_header_are_skipped(tmp_path: Path, above: str) -> None:
    text = "order_id;amount;currency;status\nA-1;7;KES;ok\n"
    (line,) = read_file(write_file(tmp_path, above + text)).lines
    rows_above = 0 if above.startswith("sep=") else above.count("\n")
    assert (line.line, line.order_id, line.amount, line.status) == (rows_above + 2, "A-1", Decimal(7), "ok")
    sentence, _ = refusal(write_file(tmp_path, "x\n" * HEADER_ROWS + text))
    assert sentence == "day.csv has no column order_id, amount, currency."


@pytest.mark.parametrize(
    ("column", "written", "read_as"),
    [
        *(("order_id", written, "0001") for written in ('="0001"', '"=""0001"""', "\u200b0001\u00a0")),
        ("order_id", '="MAR-1"', "MAR-1"),
        *(("order_id", f"'{value}", value) for value in ("=1", "+1", "@x")),
        *(("order_id", value, value) for value in ("'A", "-'=")),
        *(("amount", written, Decimal(1100)) for written in ('="1100.00"', "'1100", "1\u202f100", "KES 1,100.00")),
        *(("amount", "\u0661\u0661\u0660\u0660", Decimal(1100)), ("amount", "1100,50", Decimal("1100.50"))),
        *(("amount", "1,100", None), ("amount", "1.1E3", None)),
        *(("currency", " kes ", "KES"), ("status", '="00"', "00"), ("time", '="2026-11-21"', "2026-11-21")),
    ],
)
def test_statement_value_is_cleaned(tmp_path: Path, column: str, written: str, read_as: object) -> None:
    values = {"order_id": "A-1", "amount": "7", "currency": "KES", "status": "ok", "time": ""} | {column: written}
    text = f"\ufeff{';'.join(values)}\r\n{';'.join(values.values())}\r\n"
    (line,) = read_file(write_file(tmp_path, text)).lines
    assert getattr(line, column) == read_as


def test_gateway_headings_come_from_configuration(tmp_path: Path) -> None:
    path = write_file(tmp_path, "Merchant Order,Sum,Cur,State\nA-1,1,KES,ok\n")
    aliases = {"Merchant Order": "order_id", "sum": "amount", "CUR": "currency", "state": "status"}
    (line,) = read_file(path, aliases).lines
    assert (line.order_id, line.amount_text, line.currency, line.status) == ("A-1", "1", "KES", "ok")
    assert refusal(path) == ("day.csv has no column order_id, amount, currency.", COLUMNS_HINT)


@pytest.mark.parametrize(
    ("text", "sentence", "hint"),
    [
        *((text, "day.csv is empty.", HINT) for text in ("", "\ufeff", "sep=;\n")),
        (f"{HEADINGS}\n\n", "day.csv has a header but no lines below it.", HINT),
        ("order_id,amount,status\nA,1,ok\n", "day.csv has no column currency.", COLUMNS_HINT),
        ("order_id,amount,currency\nA,1,KES\n", NEITHER, COLUMNS_HINT),
        ("order_id,amount,currency,status,answer\nA,1,KES,ok,paid\n", NEITHER, COLUMNS_HINT),
        (f"{HEADINGS},Client OrderID\nA,1,KES,ok,B\n", TWICE, HINT),
        (f"{HEADINGS}\nA,1,KES,ok\nA,1,KES\n", "day.csv, line 3 has 3 fields, but the header has 4.", HINT),
        (f"{HEADINGS}\nA,1,KES,ok,more\n", "day.csv, line 2 has 5 fields, but the header has 4.", HINT),
    ],
)
def test_file_without_statement_is_refused(tmp_path: Path, text: str, sentence: str, hint: str) -> None:
    assert refusal(write_file(tmp_path, text)) == (sentence, hint)


def test_unreadable_statement_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sentence, _ = refusal(write_file(tmp_path, 'order_id,amount,currency,status\n"A"x,1,KES,ok\n'))
    assert sentence.startswith("day.csv, line 2: this is not CSV (")
    path = tmp_path / "none.csv"
    assert refusal(path)[0] == f"{path} cannot be read: no such file or directory."
    text = "order_id,amount,currency,status\nA,1,KES,ok\n"
    monkeypatch.setattr(statement, "MAX_STATEMENT_BYTES", len(text))
    assert len(read_file(write_file(tmp_path, text)).lines) == 1
    assert refusal(write_file(tmp_path, f"{text}\n")) == ("day.csv is larger than 0 MiB.", "Split it by day.")


HEADER = ("order_id", "amount", "currency", "status")


def test_workbook_header_must_be_among_first_rows(tmp_path: Path) -> None:
    rows = (("November",), (), (*HEADER, None, "time"), ("A-1", "1500.50", "kes"), (None,), ("A-2", 7, "KES", "ok"))
    path = write_workbook(tmp_path, *rows)
    result = [(one.line, one.order_id, one.amount_text, one.currency, one.status) for one in read_file(path).lines]
    assert result == [(4, "A-1", "1500.50", "KES", ""), (6, "A-2", "7", "KES", "ok")]
    titles = [("x",)] * (HEADER_ROWS - 1)
    assert len(read_file(write_workbook(tmp_path, *titles, HEADER, ("A", "1", "KES", "ok"))).lines) == 1
    sentence, hint = refusal(write_workbook(tmp_path, *titles, ("x",), HEADER, ("A", "1", "KES", "ok")))
    assert sentence == "day.xlsx has no worksheet with the columns order_id, amount and currency."
    assert hint == COLUMNS_HINT


def test_doubtful_statement_workbook_is_refused(tmp_path: Path) -> None:
    line = ("A", "1", "KES", "ok")
    assert len(read_file(write_workbook(tmp_path, HEADER, line, further={"Old": "hidden"})).lines) == 1
    assert refusal(write_workbook(tmp_path, HEADER, line, further={"More": "visible"})) == (
        "day.xlsx: several worksheets look like a statement: 'Orders', 'More'.",
        "Save the right worksheet as CSV.",
    )
    formula = "=1+1"
    beside = write_workbook(tmp_path, HEADER, ("A", "1", "KES", "ok", formula))
    assert len(read_file(beside).lines) == 1
    sentence, hint = refusal(write_workbook(tmp_path, HEADER, ("A", "1", "KES", "ok"), ("B", "1", "KES", formula)))
    assert sentence.startswith("day.xlsx, row 3: ")
    assert sentence.endswith(" is a formula without a value, or a number that lost digits.")
    assert hint == "Ask for the statement as CSV, or with these cells as text."


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("2026-11-20T14:05Z", "2026-11-20T14:05:00", "2026-11-20T14:06:00"),
        ("2026-11-20T14:05:07Z", "2026-11-20T14:05:07", "2026-11-20T14:05:08"),
        ("2026-11-20 14:05:07Z", "2026-11-20T14:05:07", "2026-11-20T14:05:08"),
        ("2026-11-20T14:05:07+03:00", "2026-11-20T11:05:07", "2026-11-20T11:05:08"),
        ("2026-11-20T14:05:07.5Z", "2026-11-20T14:05:07.500", "2026-11-20T14:05:07.600"),
        ("2026-11-20T14:05:07.123999Z", "2026-11-20T14:05:07.123", "2026-11-20T14:05:07.124"),
        ("2026-11-20", "2026-11-19T10:00:00", "2026-11-21T12:00:00"),
    ],
)
def test_stated_time_spans_its_smallest_unit(text: str, start: str, end: str) -> None:
    span = (datetime.fromisoformat(moment).replace(tzinfo=UTC) for moment in (start, end))
    assert parse_time_span(text) == TimeSpan(*span)


@pytest.mark.parametrize(
    "text",
    [
        *("", "2026-11-20T14:05:07", "20/11/2026", "11/20/2026 14:05", "2026-11-20T14Z", "2026-11-20T14:05:07z"),
        *("2026-11-20T14:05:07 +03:00", "2026-11-20T14:05:07+0300", "2026-13-20", "2026-02-30T00:00:00Z"),
        *("2026-11-20T25:00:00Z", "2026-11-20T14:05:07+99:00", "0001-01-01", "9999-12-31", "\u0662026-11-20"),
        *("20261120", "1795000000", "2026-W47-5"),
    ],
)
def test_ambiguous_time_is_not_read(text: str) -> None:
    assert parse_time_span(text) is None


@given(st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)), st.text(max_size=40))  # noqa: DTZ001 - UTC is added
def test_journal_time_is_read_exactly(moment: datetime, other: str) -> None:
    parse_time_span(other)  # it never raises
    in_utc = moment.replace(tzinfo=UTC)
    written = in_utc.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    start = in_utc.replace(microsecond=in_utc.microsecond // 1000 * 1000)
    assert parse_time_span(written) == TimeSpan(start, start + timedelta(milliseconds=1))
