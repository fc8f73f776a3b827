"""The public interface point by point: commands, exit codes, columns and summary (docs/interface.md)."""

import json
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from paygw_batch.processes import PythonBuild
from tests.support.program import SAMPLES, Program, kenyan_rows, read_csv, sandbox_toml

COLUMNS = [
    *("row", "client_orderid", "country", "currency", "amount", "account_name", "account_number", "phone"),
    *("purpose", "state", "attempts", "sent_orderid", "gateway_status", "gateway_reference", "http_status"),
    *("error_code", "message", "first_sent_at", "updated_at"),
]

SUMMARY = {
    *("batch", "sheet", "rows", "states", "totals", "defects", "known", "sent_this_run", "seconds"),
    *("reconciliation", "exit_code", "message"),
}


def test_module_and_console_script_run_same_program(program: Program) -> None:
    script = Path(sys.executable).with_name("paygw-batch")
    commands = ([sys.executable, "-m", "paygw_batch"], [script])
    for words in (["--help"], ["--version"], ["submit", "--help"]):
        by_module, by_script = (
            subprocess.run([*command, *words], capture_output=True, text=True, check=True, cwd=program.home).stdout
            for command in commands
        )
        assert by_module == by_script
        assert "paygw-batch" in by_module


def test_help_imports_nothing_heavy() -> None:
    code = """
import sys
from paygw_batch.cli.main import cli
try:
    cli(["--help"])
except SystemExit:
    heavy = {"polars", "pandera", "httpx", "pydantic", "rich", "cryptography", "apsw", "uvicorn"}
    print(sorted(heavy & set(sys.modules)))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("key", ["signature_profile", "outcomes", "endpoint_id"])
def test_setting_without_default_must_be_configured(program: Program, key: str) -> None:
    left_out = {"approved", "processing", "declined", "filtered", "error"} if key == "outcomes" else {key}
    lines = [line for line in sandbox_toml().splitlines() if line.split(" ")[0] not in left_out]
    program.config.write_text("\n".join(lines))
    result = program.run("submit", program.sheet(kenyan_rows(1)))
    assert (result.exit_code, key in result.stderr, program.journal.exists()) == (2, True, False)
    assert key in program.run("doctor").output


def test_validate_sends_nothing_and_writes_no_journal(program: Program) -> None:
    summary = program.json("validate", program.sheet(kenyan_rows(3)))
    assert (summary["exit_code"], summary["states"], summary["defect_list"]) == (0, {"ready": 3}, [])
    assert (program.journal.exists(), program.record()) == (False, [])
    assert program.run("validate", program.home / "payroll.csv", config=False).exit_code == 0


def test_validate_lists_defects_with_code_and_message(program: Program) -> None:
    rows = [*kenyan_rows(2), "KE,PAY-8,1e3,UGX,,0712,+254712345678"]
    summary = program.json("validate", program.sheet(rows))
    assert (summary["exit_code"], summary["defects"]) == (3, 1)
    cells = {(defect["row"], defect["column"]) for defect in summary["defect_list"]}
    assert {(4, "amount"), (4, "currency"), (4, "account_name"), (4, "account_number")} <= cells
    for defect in summary["defect_list"]:
        assert set(defect) == {"row", "column", "heading", "value", "code", "message"}
        assert defect["code"].startswith(defect["column"] + ".")
        assert len(defect["message"]) > 10


def test_submit_pays_and_reports_every_row_once(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(5))
    summary = program.json("submit", sheet)
    assert set(summary) == SUMMARY
    assert (summary["exit_code"], summary["states"]) == (0, {"paid": 5})
    assert summary["totals"] == {"KES": {"paid": "7502.50"}}
    assert (summary["rows"], summary["known"], summary["sent_this_run"], summary["defects"]) == (5, 0, 5, 0)
    out = program.home / "payroll.reconciliation.csv"
    assert (summary["sheet"], summary["reconciliation"]) == ("payroll.csv", str(out))
    assert sorted(line["client_orderid"] for line in program.record()) == [f"PAY-{n}" for n in range(1, 6)]
    lines = read_csv(out)
    assert list(lines[0]) == COLUMNS
    assert [line["row"] for line in lines] == [str(n) for n in range(2, 7)]
    same = {"state": "paid", "attempts": "1", "gateway_status": "approved", "http_status": "200", "amount": "1500.50"}
    for line in lines:
        assert line.items() >= {**same, "purpose": "SANDBOX-WALLET-KE", "sent_orderid": line["client_orderid"]}.items()
        for moment in (line["first_sent_at"], line["updated_at"]):
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", moment)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    before = out.read_bytes()
    again = program.json("submit", sheet)
    assert (again["batch"], again["sent_this_run"], again["known"]) == (summary["batch"], 0, 5)
    assert (out.read_bytes(), len(program.record())) == (before, 5)


def test_amend_replaces_only_rejected_rows(program: Program) -> None:
    rows = [*kenyan_rows(2, amount="9001"), *kenyan_rows(1, prefix="OK")]
    assert program.json("submit", program.sheet(rows))["exit_code"] == 4
    better = [*kenyan_rows(2, amount="20"), *kenyan_rows(1, prefix="OK")]
    refused = program.json("submit", program.sheet(better, name="better.csv"))
    assert refused["exit_code"] == 3
    amended = program.json("submit", program.home / "better.csv", "--amend")
    assert (amended["exit_code"], amended["states"], amended["sent_this_run"]) == (0, {"paid": 3}, 2)
    lines = {line["client_orderid"]: line for line in read_csv(amended["reconciliation"])}
    assert lines["PAY-1"]["sent_orderid"] == "PAY-1-r2"
    worse = [*kenyan_rows(2, amount="30"), *kenyan_rows(1, prefix="OK")]
    assert program.json("submit", program.sheet(worse, name="worse.csv"), "--amend")["exit_code"] == 3


def test_sheet_with_defects_needs_option_to_pay(program: Program) -> None:
    rows = [*kenyan_rows(2), "KE,PAY-9,x,KES,Jane,254712345678,+254712345678", *kenyan_rows(1, prefix="LAST")]
    sheet = program.sheet(rows)
    refused = program.json("submit", sheet)
    assert (refused["exit_code"], refused["sent_this_run"], program.record()) == (3, 0, [])
    assert not (program.home / "payroll.reconciliation.csv").exists()
    summary = program.json("submit", sheet, "--skip-invalid")
    assert (summary["exit_code"], summary["states"]) == (4, {"invalid": 1, "paid": 3})
    lines = read_csv(summary["reconciliation"])
    assert [line["row"] for line in lines] == ["2", "3", "4", "5"]
    assert (lines[2]["state"], lines[2]["amount"], lines[2]["error_code"]) == ("invalid", "x", "amount.format")


def test_wrong_control_totals_send_nothing(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(2))
    for wrong in (["--expect-rows", "3"], ["--expect-total", "KES=3000"], ["--expect-total", "UGX=1"]):
        assert program.json("submit", sheet, *wrong)["exit_code"] == 3
    assert program.record() == []
    good = program.json("submit", sheet, "--expect-rows", "2", "--expect-total", "KES=3001")
    assert good["exit_code"] == 0


def test_dry_run_sends_and_writes_nothing(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(2))
    before = set(program.home.rglob("*"))
    summary = program.json("submit", sheet, "--dry-run")
    assert (summary["exit_code"], summary["states"], summary["sent_this_run"]) == (0, {"ready": 2}, 0)
    assert summary["reconciliation"] is None
    assert set(program.home.rglob("*")) == before
    program.json("submit", sheet)
    known = program.json("submit", sheet, "--dry-run")
    assert (known["known"], known["states"]) == (2, {"paid": 2})


def test_order_ids_are_derived_from_reference_and_payee(program: Program) -> None:
    heading = "country,amount,currency,account_name,account_number,phone"
    rows = [row.replace(row.split(",")[1] + ",", "", 1) for row in kenyan_rows(3)]
    rows.append(rows[0])
    sheet = program.sheet(rows, heading=heading)
    assert program.json("validate", sheet)["exit_code"] == 3
    assert program.json("submit", sheet, "--reference", "payroll-2026-11")["code"] == "payee.twice"
    first = program.json("submit", sheet, "--reference", "payroll-2026-11", "--repeats-meant")
    ids = {line["row"]: line["client_orderid"] for line in read_csv(first["reconciliation"])}
    assert len(set(ids.values())) == 4
    assert all(order_id.startswith("payroll-2026-11") for order_id in ids.values())
    shuffled = program.sheet([rows[2], rows[0], rows[3], rows[1]], name="shuffled.csv", heading=heading)
    again = program.json("submit", shuffled, "--reference", "payroll-2026-11")
    assert again["sent_this_run"] == 0
    assert len(program.record()) == 4


def test_resume_needs_only_journal_and_batch(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(3))
    first = program.json("submit", sheet)
    batch = first["batch"]
    for name in (batch, batch[:5], sheet):
        assert program.json("status", name)["batch"] == batch
    assert program.json("status", "ffff" if not batch.startswith("ffff") else "0000")["exit_code"] == 2
    sheet.unlink()
    resumed = program.json("resume", batch[:6])
    assert (resumed["batch"], resumed["sent_this_run"], resumed["exit_code"]) == (batch, 0, 0)
    assert resumed["reconciliation"] == first["reconciliation"]


def test_backup_is_complete_but_cannot_send(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(3))
    program.json("submit", sheet)
    copy = program.home / "copy.sqlite3"
    assert program.json("backup", copy)["exit_code"] == 0
    assert program.json("--journal", copy, "verify")["exit_code"] == 0
    assert program.json("--journal", copy, "submit", sheet)["exit_code"] == 7
    assert program.json("backup", copy)["exit_code"] == 2
    assert len(program.record()) == 3


def test_doctor_reports_limits_on_speed(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> tuple[str, str]:
        (speed,) = [check for check in program.json("doctor")["checks"] if check["check"] == "speed"]
        return speed["state"], speed["found"]

    for profiles, state in ((True, "ok"), (None, "ok"), (False, "warning")):
        build = PythonBuild(is_profile_guided=profiles, has_lto=None)
        monkeypatch.setattr("paygw_batch.cli.commands.doctor.python_build", lambda build=build: build)
        assert found()[0] == state
    assert re.search(
        r"^Python 3\.\S+, .+; a signature takes [\d.]+ ms\. Runs are slower because this Python was built", found()[1]
    )


def test_json_option_prints_only_json(program: Program) -> None:
    sheet = program.sheet([*kenyan_rows(1), "KE,PAY-9,x,KES,Jane,254712345678,+254712345678"])
    good, absent = program.sheet(kenyan_rows(2), name="good.csv"), program.home / "absent.csv"
    submissions = [("submit", path) for path in (sheet, good, absent)]
    for arguments in (("validate", sheet), *submissions, ("status",), ("verify",), ("doctor",)):
        result = program.run("--json", *arguments)
        assert set(json.loads(result.stdout)) >= SUMMARY


@pytest.mark.parametrize(
    ("amount", "state", "code"),
    [
        ("9001", "rejected", 4),
        ("9002", "accepted", 0),
        ("9003", "rejected", 4),
        *((amount, "in_doubt", 5) for amount in ("9006", "9007", "9008", "9009", "9010", "9011")),
    ],
)
def test_gateway_reply_sets_state_and_exit_code(program: Program, amount: str, state: str, code: int) -> None:
    summary = program.json("submit", program.sheet(kenyan_rows(1, amount=amount)))
    assert (summary["states"], summary["exit_code"]) == ({state: 1}, code)
    assert [line["state"] for line in read_csv(summary["reconciliation"])] == [state]
    assert program.json("submit", program.home / "payroll.csv")["sent_this_run"] == 0


def test_sheet_can_mix_all_countries(program: Program) -> None:
    summary = program.json("submit", SAMPLES / "payroll-mixed.csv", "--out", program.home / "out.csv")
    assert (summary["exit_code"], summary["states"]) == (0, {"paid": 200})
    record = {line["client_orderid"]: line for line in program.record()}
    for line in read_csv(summary["reconciliation"]):
        paid = record.pop(line["client_orderid"])
        assert paid["amount"] == line["amount"]
        assert paid["currency"] == line["currency"]
    assert record == {}
    again = program.json("submit", SAMPLES / "payroll-mixed.parquet", "--out", program.home / "b.csv")
    assert (again["batch"], again["sent_this_run"], len(program.record())) == (summary["batch"], 0, 200)


def test_unwritable_out_path_stops_before_sending(program: Program) -> None:
    summary = program.json("submit", program.sheet(kenyan_rows(1)), "--out", program.home / "no" / "such" / "out.csv")
    assert summary["exit_code"] == 2
    assert program.record() == []
