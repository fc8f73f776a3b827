"""The sandbox's record, and its comparison with a reconciliation."""

import csv
import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paygw_batch.errors import ConfigurationError, OutputError
from paygw_batch.sandbox.compare import compare, main
from paygw_batch.sandbox.record import Record, RecordLine, _csv_line, read_record, strip_formula_guard
from tests.support.patience import PATIENCE_S

PAYEE = {"client_orderid": "A-1", "country": "KE", "account_number": "254712345678"}
PAID = {**PAYEE, "currency": "KES", "amount": "1500.50"}
ROW = {**PAID, "sent_orderid": "A-1", "state": "paid", "phone": "+254712345678"}
MORE = {"purpose": "TEST-KE", "answer": "approved", "committed": "yes", "reference": "0011223344556677"}
LINE = RecordLine(received_at="2026-11-21T07:00:00.000Z", **PAID, **MORE)


def test_record_is_private_and_kept_across_runs(tmp_path: Path) -> None:
    path = tmp_path / "new" / "record.csv"
    lines = [replace(LINE, reference=str(number)) for number in range(3)]
    for number, line in enumerate(lines, 1):
        with Record(path) as record:
            record.append(line)
            assert read_record(path) == lines[:number]  # before the record is closed
    names = "received_at,client_orderid,country,currency,amount,account_number,purpose,answer,committed,reference"
    assert path.read_text().splitlines()[0] == names
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]
    assert LINE.account_number not in repr(LINE)


text_on_one_line = st.text(st.characters(exclude_categories=("C", "Zl", "Zp")), max_size=20)


@given(st.sampled_from(["", "=", "@", "+", "-", '"', "'", ",", ";"]), text_on_one_line)
def test_record_keeps_order_id_unchanged(start: str, text: str) -> None:
    order_id = start + text
    written = next(csv.reader([_csv_line((order_id,)).decode()], strict=True), [""])
    assert written[0][:1] not in {"=", "@"}
    if not order_id.startswith("'"):
        assert strip_formula_guard(written[0]) == order_id


def test_concurrent_processes_append_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "record.csv"
    program = (
        "import sys; from pathlib import Path; from paygw_batch.sandbox.record import Record, RecordLine\n"
        "with Record(Path(sys.argv[1])) as record:\n"
        "    for number in range(300):\n"
        "        record.append(RecordLine('t', f'{sys.argv[2]}-{number}', *['x' * 50] * 8))\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, str(path), name]) for name in "ABC"]
    assert [writer.wait(PATIENCE_S) for writer in writers] == [0, 0, 0]
    lines = read_record(path)
    assert len(lines) == len({line.client_orderid for line in lines}) == 900
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", [b"", b"name,amount\n", b"received_at,client_orderid\n", b"\xff\xfe\n"])
def test_unrelated_file_is_refused_as_record(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "payroll.csv"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError):
        Record(path)
    with pytest.raises(ConfigurationError):
        read_record(path)
    assert path.read_bytes() == content


def test_incomplete_linked_or_misplaced_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "record.csv"
    with Record(path) as record:
        record.append(LINE)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ConfigurationError, match="incomplete line"):
        Record(path)
    with Record(tmp_path / "elsewhere.csv"):
        pass
    (tmp_path / "link.csv").symlink_to(tmp_path / "elsewhere.csv")
    for folder in (tmp_path / "link.csv", tmp_path, tmp_path / "elsewhere.csv" / "record.csv"):
        with pytest.raises(ConfigurationError):
            Record(folder)


def test_full_disk_ends_sandbox_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, record = os.write, Record(tmp_path / "record.csv")
    record.append(LINE)
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda descriptor, content: write(descriptor, content[:20]))
        with pytest.raises(OutputError):
            record.append(LINE)
    size = (tmp_path / "record.csv").stat().st_size
    with pytest.raises(OutputError, match="An earlier write"):
        record.append(LINE)
    assert (tmp_path / "record.csv").stat().st_size == size


TAKEN, DECLINED = [LINE], [replace(LINE, committed="no", answer="declined")]
AGAIN, THIRD = (replace(LINE, client_orderid=order_id) for order_id in ("A-1-r2", "A-1-r3"))


@pytest.mark.parametrize(
    ("lines", "row", "difference"),
    [
        *((TAKEN, {"state": state}, None) for state in ("paid", "accepted", "in_doubt", "returned")),
        *((lines, {"state": state}, None) for lines in ([], DECLINED) for state in ("ready", "rejected", "invalid")),
        *((lines, {"state": "in_doubt"}, None) for lines in ([], DECLINED)),
        *((TAKEN * 2, {"state": state}, "paid 2 times at the gateway") for state in ("paid", "in_doubt")),
        ([*DECLINED, AGAIN], {"sent_orderid": "A-1-r2"}, None),
        ([LINE, AGAIN], {"sent_orderid": "A-1-r2"}, "paid 2 times at the gateway"),
        ([LINE, AGAIN, THIRD], {"sent_orderid": "A-1-r2"}, "paid 3 times at the gateway"),
        (TAKEN, {"state": "ready"}, "ready here, but taken at the gateway"),
        (TAKEN, {"state": "rejected"}, "rejected here, but taken at the gateway"),
        *(
            (lines, {"state": state}, f"{state} here, but never taken at the gateway")
            for lines in ([], DECLINED)
            for state in ("paid", "accepted", "returned")
        ),
        ([replace(LINE, amount="1500.51")], {}, "other amount at the gateway"),
        ([replace(LINE, amount="1500.5")], {}, None),
        ([replace(LINE, currency="UGX")], {}, "other currency at the gateway"),
        ([replace(LINE, country="UG")], {}, "other country at the gateway"),
        ([replace(LINE, account_number="254712345679")], {}, "other account at the gateway"),
        ([replace(LINE, account_number="0621")], {"account_number": "", "phone": "0621"}, None),
        ([replace(LINE, account_number="063")], {"account_number": "", "phone": "062"}, "other account at the gateway"),
        ([LINE, replace(LINE, client_orderid="B-1")], {}, None),  # an order of another batch
    ],
)
def test_comparison_finds_differences(lines: list[RecordLine], row: Mapping[str, str], difference: str | None) -> None:
    assert compare(lines, [{**ROW, **row}]) == ([] if difference is None else [f"A-1: {difference}"])


def test_comparison_finds_invalid_row_accepted_by_gateway() -> None:
    refused = ROW | {"state": "invalid", "amount": "KES 5"}
    difference = "A-1: invalid here, but taken at the gateway, perhaps from an earlier sheet"
    assert compare(TAKEN, [refused]) == [difference]
    assert compare(TAKEN, [refused, ROW]) == compare(TAKEN, [ROW, refused]) == []
    assert compare([LINE, AGAIN], [ROW, ROW | {"client_orderid": "A-1-r2", "sent_orderid": "A-1-r2"}]) == []


def test_compare_command_prints_differences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record_path, sheet = tmp_path / "record.csv", tmp_path / "payroll.reconciliation.csv"
    with Record(record_path) as record:
        record.append(replace(LINE, client_orderid="=A"))
    row, taken = ROW | {"client_orderid": "'=A", "sent_orderid": "'=A"}, "=A: ready here, but taken at the gateway\n"
    for state, code, output in (("paid", 0, "Differences: 0.\n"), ("ready", 1, f"{taken}Differences: 1.\n")):
        with sheet.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=[*ROW, "department"])
            writer.writeheader()
            writer.writerow(row | {"state": state})
        assert main([str(record_path), str(sheet)]) == code
        assert capsys.readouterr().out == output


def test_compare_command_reports_unreadable_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record, missing = str(tmp_path / "record.csv"), str(tmp_path / "missing.csv")
    with Record(Path(record)):
        pass
    for files in ([], [record, record], [missing, record], [record, missing]):
        assert main(files) == 2
    assert "Traceback" not in capsys.readouterr().err
