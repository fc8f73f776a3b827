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

LINE = RecordLine(
    received_at="2026-11-21T07:00:00.000Z",
    client_orderid="A-1",
    country="KE",
    currency="KES",
    amount="1500.50",
    account_number="254712345678",
    purpose="TEST-KE",
    answer="approved",
    committed="yes",
    reference="0011223344556677",
)
ROW = {
    "client_orderid": "A-1",
    "sent_orderid": "A-1",
    "state": "paid",
    "country": "KE",
    "currency": "KES",
    "amount": "1500.50",
    "account_number": "254712345678",
    "phone": "+254712345678",
}


def test_record_begins_with_columns_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "new" / "record.csv"
    with Record(path):
        pass

    assert path.read_text() == (
        "received_at,client_orderid,country,currency,amount,account_number,purpose,answer,committed,reference\n"
    )
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_record_appends_lines_across_runs(tmp_path: Path) -> None:
    path = tmp_path / "record.csv"
    lines = [replace(LINE, reference=str(number)) for number in range(3)]
    for line in lines:
        with Record(path) as record:
            record.append(line)

    assert read_record(path) == lines


def test_record_contains_line_before_append_returns(tmp_path: Path) -> None:
    with Record(tmp_path / "record.csv") as record:
        record.append(LINE)
        assert read_record(tmp_path / "record.csv") == [LINE]


text_on_one_line = st.text(st.characters(exclude_categories=("C", "Zl", "Zp")), max_size=20)


@given(st.sampled_from(["", "=", "@", "+", "-", '"', "'", ",", ";"]), text_on_one_line)
def test_record_keeps_order_id_unchanged(start: str, text: str) -> None:
    order_id = start + text
    written = next(csv.reader([_csv_line((order_id,)).decode()], strict=True), [""])

    assert written[0][:1] not in {"=", "@"}
    if not order_id.startswith("'"):
        assert strip_formula_guard(written[0]) == order_id


def test_processes_append_whole_lines_to_shared_record(tmp_path: Path) -> None:
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
def test_foreign_file_is_refused_as_record_unchanged(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "payroll.csv"
    path.write_bytes(content)

    with pytest.raises(ConfigurationError):
        Record(path)
    with pytest.raises(ConfigurationError):
        read_record(path)
    assert path.read_bytes() == content


def test_record_with_incomplete_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "record.csv"
    with Record(path) as record:
        record.append(LINE)
    path.write_bytes(path.read_bytes()[:-5])

    with pytest.raises(ConfigurationError, match="incomplete line"):
        Record(path)


def test_link_or_directory_as_record_is_refused(tmp_path: Path) -> None:
    with Record(tmp_path / "elsewhere.csv"):
        pass
    (tmp_path / "link.csv").symlink_to(tmp_path / "elsewhere.csv")

    for place in (tmp_path / "link.csv", tmp_path, tmp_path / "elsewhere.csv" / "record.csv"):
        with pytest.raises(ConfigurationError):
            Record(place)


def test_record_writes_nothing_after_failed_write(tmp_path: Path) -> None:
    record = Record(tmp_path / "record.csv")
    unwritable = os.open(os.devnull, os.O_RDONLY)
    writable, record._descriptor = record._descriptor, unwritable
    with pytest.raises(OutputError) as first:
        record.append(LINE)
    record._descriptor = writable
    with pytest.raises(OutputError):
        record.append(LINE)
    record.close()
    os.close(unwritable)

    assert "254712345678" not in str(first.value)
    assert read_record(tmp_path / "record.csv") == []


def test_full_disk_stops_sandbox_record(tmp_path: Path) -> None:
    program = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from paygw_batch.sandbox.record import Record, RecordLine\n"
        "from paygw_batch.errors import OutputError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "record = Record(Path(sys.argv[1]))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))\n"
        "results = []\n"
        "for number in range(4):\n"
        "    try:\n"
        "        record.append(RecordLine('t', str(number), *['x' * 8] * 8)); results.append('written')\n"
        "    except OutputError:\n"
        "        results.append('refused')\n"
        "print(*results)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "record.csv")], capture_output=True, text=True, check=True
    )

    assert result.stdout == "written refused refused refused\n"
    assert (tmp_path / "record.csv").stat().st_size <= 200


def build_row(**changes: str) -> Mapping[str, str]:
    return ROW | changes


def build_line(**changes: str) -> RecordLine:
    return replace(LINE, **changes)


@pytest.mark.parametrize("state", ["paid", "accepted", "in_doubt", "returned"])
def test_comparison_accepts_order_taken_once(state: str) -> None:
    assert compare([build_line()], [build_row(state=state)]) == []


@pytest.mark.parametrize("state", ["ready", "rejected", "invalid", "in_doubt"])
def test_comparison_accepts_unsent_row(state: str) -> None:
    assert compare([], [build_row(state=state)]) == []
    assert compare([build_line(committed="no", answer="declined")], [build_row(state=state)]) == []


@pytest.mark.parametrize("state", ["paid", "in_doubt"])
def test_comparison_finds_order_taken_twice(state: str) -> None:
    assert compare([build_line(), build_line(reference="2")], [build_row(state=state)]) == [
        "A-1: paid 2 times at the gateway"
    ]


def test_comparison_joins_attempts_under_different_order_ids() -> None:
    declined, released = build_line(committed="no", answer="declined"), build_line(client_orderid="A-1-r2")
    both = [build_line(), released]
    rows = [build_row(sent_orderid="A-1-r2")]

    assert compare([declined, released], rows) == []
    assert compare(both, rows) == ["A-1: paid 2 times at the gateway"]
    assert compare([*both, build_line(client_orderid="A-1-r3")], rows) == ["A-1: paid 3 times at the gateway"]


def test_comparison_distinguishes_order_id_from_retry() -> None:
    rows = [build_row(), build_row(client_orderid="A-1-r2", sent_orderid="A-1-r2")]

    assert compare([build_line(), build_line(client_orderid="A-1-r2")], rows) == []


@pytest.mark.parametrize("state", ["ready", "rejected"])
def test_comparison_finds_taken_row_shown_unpaid(state: str) -> None:
    assert compare([build_line()], [build_row(state=state)]) == [f"A-1: {state} here, but taken at the gateway"]


def test_comparison_finds_taken_invalid_row() -> None:
    refused = build_row(state="invalid", amount="KES 5")

    assert compare([build_line()], [refused]) == [
        "A-1: invalid here, but taken at the gateway, perhaps from an earlier sheet"
    ]
    assert compare([build_line()], [refused, build_row()]) == []
    assert compare([build_line()], [build_row(), refused]) == []


@pytest.mark.parametrize("state", ["paid", "accepted", "returned"])
def test_comparison_finds_untaken_row_shown_taken(state: str) -> None:
    sentence = f"A-1: {state} here, but never taken at the gateway"

    assert compare([], [build_row(state=state)]) == [sentence]
    assert compare([build_line(committed="no", answer="drop_before")], [build_row(state=state)]) == [sentence]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"amount": "1500.51"}, "amount"),
        ({"currency": "UGX"}, "currency"),
        ({"country": "UG"}, "country"),
        ({"account_number": "254712345679"}, "account"),
    ],
)
def test_comparison_reports_changed_content_without_values(change: dict[str, str], name: str) -> None:
    assert compare([build_line(**change)], [build_row()]) == [f"A-1: other {name} at the gateway"]


def test_comparison_ignores_trailing_zero_of_amount() -> None:
    assert compare([build_line(amount="1500.5")], [build_row()]) == []


def test_comparison_matches_receiver_rows_by_phone() -> None:
    rows = [build_row(account_number="", phone="0621234567")]

    assert compare([build_line(account_number="0621234567")], rows) == []
    assert compare([build_line(account_number="0621234568")], rows) == ["A-1: other account at the gateway"]


def test_comparison_ignores_orders_of_other_batches() -> None:
    assert compare([build_line(), build_line(client_orderid="B-1")], [build_row()]) == []


def write_reconciliation(path: Path, rows: list[Mapping[str, str]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=[*ROW, "department"])
        writer.writeheader()
        writer.writerows(rows)


def test_compare_command_prints_differences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record_path, sheet = tmp_path / "record.csv", tmp_path / "payroll.reconciliation.csv"
    with Record(record_path) as record:
        record.append(build_line(client_orderid="=A"))
    files = [str(record_path), str(sheet)]

    write_reconciliation(sheet, [build_row(client_orderid="'=A", sent_orderid="'=A")])
    assert main(files) == 0
    assert capsys.readouterr().out == "Differences: 0.\n"

    write_reconciliation(sheet, [build_row(client_orderid="'=A", sent_orderid="'=A", state="ready")])
    assert main(files) == 1
    assert capsys.readouterr().out == "=A: ready here, but taken at the gateway\nDifferences: 1.\n"


def test_compare_command_refuses_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Record(tmp_path / "record.csv"):
        pass

    assert main([]) == 2
    assert main([str(tmp_path / "record.csv"), str(tmp_path / "record.csv")]) == 2
    assert main([str(tmp_path / "missing.csv"), str(tmp_path / "record.csv")]) == 2
    assert main([str(tmp_path / "record.csv"), str(tmp_path / "missing.csv")]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_record_line_repr_hides_account() -> None:
    assert LINE.account_number not in repr(LINE)
