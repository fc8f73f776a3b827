"""The public interface point by point: commands, exit codes, columns, summary and log (docs/interface.md)."""

import re
import stat

import pytest

from paygw_batch.journal import AuditNote, AuditResult
from paygw_batch.opening.open_journal import journal_location
from paygw_batch.processes import PythonBuild
from paygw_batch.settings.configuration import load_settings
from paygw_batch.unattended.run_report import mask_numbers
from tests.cli.paying import block_first_reply, run_gateway
from tests.support.people import newest_entries
from tests.support.program import Program, kenyan_rows, read_csv, sandbox_toml


@pytest.mark.parametrize("key", ["signature_profile", "outcomes", "endpoint_id"])
def test_setting_without_default_must_be_configured(program: Program, key: str) -> None:
    left_out = {"approved", "processing", "declined", "filtered", "error"} if key == "outcomes" else {key}
    lines = [line for line in sandbox_toml().splitlines() if line.split(" ")[0] not in left_out]
    program.config.write_text("\n".join(lines))
    result = program.run("submit", program.sheet(kenyan_rows(1)))
    assert (result.exit_code, key in result.stderr, program.journal.exists()) == (2, True, False)
    assert key in program.run("doctor").output


def test_submit_pays_and_reports_every_row_once(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(5))
    summary = program.json("submit", sheet)
    assert summary.keys() == {
        *("batch", "sheet", "rows", "states", "totals", "defects", "known", "sent_this_run", "seconds"),
        *("reconciliation", "exit_code", "message"),
    }
    assert (summary["exit_code"], summary["states"]) == (0, {"paid": 5})
    assert summary["totals"] == {"KES": {"paid": "7502.50"}}
    assert (summary["rows"], summary["known"], summary["sent_this_run"], summary["defects"]) == (5, 0, 5, 0)
    out = program.home / "payroll.reconciliation.csv"
    assert (summary["sheet"], summary["reconciliation"]) == ("payroll.csv", str(out))
    assert sorted(line["client_orderid"] for line in program.record()) == [f"PAY-{n}" for n in range(1, 6)]
    lines = read_csv(out)
    assert list(lines[0]) == [
        *("row", "client_orderid", "country", "currency", "amount", "account_name", "account_number", "phone"),
        *("purpose", "state", "attempts", "sent_orderid", "gateway_status", "gateway_reference", "http_status"),
        *("error_code", "message", "first_sent_at", "updated_at"),
    ]
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
    assert program.json("validate", sheet)["states"] == {"ready": 2}
    assert program.run("validate", sheet, config=False).exit_code == 0
    summary = program.json("submit", sheet, "--dry-run")
    assert (summary["exit_code"], summary["states"], summary["sent_this_run"]) == (0, {"ready": 2}, 0)
    assert (summary["reconciliation"], set(program.home.rglob("*"))) == (None, before)
    program.json("submit", sheet)
    known = program.json("submit", sheet, "--dry-run")
    assert (known["known"], known["states"]) == (2, {"paid": 2})


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
    for profiles, state in ((True, "ok"), (None, "ok"), (False, "warning")):
        build = PythonBuild(is_profile_guided=profiles, has_lto=None)
        monkeypatch.setattr("paygw_batch.cli.commands.doctor.python_build", lambda build=build: build)
        (speed,) = [check for check in program.json("doctor")["checks"] if check["check"] == "speed"]
        assert speed["state"] == state
    assert re.search(r"; a signature takes [\d.]+ ms\. Runs are slower because this Python was built", speed["found"])


def test_unwritable_out_path_stops_before_sending(program: Program) -> None:
    summary = program.json("submit", program.sheet(kenyan_rows(1)), "--out", program.home / "no" / "such" / "out.csv")
    assert (summary["exit_code"], program.record()) == (2, [])


BAD = "KE,BAD-1,1e3,KES,Jane Wanjiku,254712345678,+254712345678"


def test_refused_sheet_does_not_hide_row_in_doubt(program: Program) -> None:
    folder = program.home / "drop"
    folder.mkdir()
    for name, rows in (("bad", [BAD]), ("doubt", kenyan_rows(1, amount="9007")), ("good", kenyan_rows(3, prefix="OK"))):
        program.sheet(rows, f"drop/{name}.csv")
    summary = program.json("run-folder", folder, "--settle-s", "0")
    assert (summary["states"].get("in_doubt"), summary["sent_this_run"], summary["exit_code"]) == (1, 4, 5)
    assert sorted(sheet["exit_code"] for sheet in summary["sheets"]) == [0, 3, 5]


def test_quiet_run_prints_only_required_actions(program: Program) -> None:
    good, bad = program.sheet(kenyan_rows(2, amount="100")), program.sheet([BAD], "bad.csv")
    assert program.run("-q", "submit", good).output == ""
    result = program.run("-q", "submit", bad)
    assert "Nothing was sent, because 1 of 1 row has defects" in result.stdout
    mixed = program.sheet(kenyan_rows(1, amount="9001", prefix="NO"), "no.csv")
    assert "rejected" in program.run("-q", "submit", mixed).stdout
    (program.home / "drop").mkdir()
    program.sheet([BAD], "drop/bad.csv")
    program.sheet(kenyan_rows(3, amount="333", prefix="OK"), "drop/good.csv")
    folder = ("-q", "run-folder", program.home / "drop", "--settle-s", "0")
    output = program.run(*folder).stdout
    assert ("bad.csv: Nothing was sent, because 1 of 1 row has" in output, "good.csv" in output) == (True, False)
    assert program.run(*folder).output == ""


def test_log_keeps_dates_in_file_names() -> None:
    name = "done/20261122T031500123456Z-payroll-20261130.reconciliation.csv"
    assert name in mask_numbers(f"The reconciliation is in {name}.")
    assert mask_numbers("pay-20261130.xlsx: 254712345678") == "pay-20261130.xlsx: ***678"
    for sentence in ("20261130 was called", "254712345678.csv", "25420261130.csv", "pay-20269930.csv"):
        assert "***" in mask_numbers(sentence), sentence


def test_status_shows_sending_process(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(3))
    with run_gateway(program) as gateway, block_first_reply(program, gateway, "submit", sheet):
        summary = program.json("status", sheet)
        assert summary["states"].get("in_flight", 0) > 0
        assert (summary["states"].get("in_doubt", 0), summary["needs_person"]) == (0, [])
        output = program.run("status", sheet).stdout
        assert ("`paygw-batch submit` (process " in output, "0 of 3 rows have an answer" in output) == (True, True)


def test_status_shows_replaced_row_as_replaced(program: Program) -> None:
    first = program.json("submit", program.sheet(kenyan_rows(1, amount="9001")))["batch"]
    assert program.json("submit", program.sheet(kenyan_rows(1, amount="10")), "--amend")["states"] == {"paid": 1}
    (line,) = [line for line in program.run("status", first).stdout.splitlines() if "9,001.00" in line]
    assert line.split()[:4] == ["KE", "KES", "replaced", "1"]


def test_verify_reports_last_audit_trail_entry(program: Program) -> None:
    program.json("submit", program.sheet(kenyan_rows(1)))
    summary = program.json("verify")
    assert (summary["checked"]["audit_entries"], "trail" in summary["message"]) == (0, False)
    settings = load_settings(program.config, environ=program.environ)
    for act, result in (("sign in", AuditResult.DONE), ("approve", AuditResult.REFUSED)):
        note = AuditNote("Ada Wanjiru", act, "batch 0123456789abcdef", result)
        journal_location(settings).add_audit_entry(note, "2026-11-22T08:00:00.000Z")
    copy = program.home / "copy.sqlite3"
    assert program.json("backup", copy)["exit_code"] == 0
    newest = newest_entries(settings, limit=1)[0]
    for options in ((), ("--journal", copy)):
        summary = program.json(*options, "verify")
        assert (summary["exit_code"], summary["checked"]["audit_entries"]) == (0, 2)
        assert f"The audit trail is intact and ends with entry 2, {newest.hash[:16]}." in summary["message"]
