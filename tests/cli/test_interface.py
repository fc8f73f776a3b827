"""The public interface point by point: commands, exit codes, columns and summary (docs/interface.md)."""

import json
import re
import stat
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from paygw_batch.processes import PythonBuild
from tests.support.program import HEADING, SAMPLES, Program, kenyan_rows, read_csv, sandbox_toml

COLUMNS = [
    *("row", "client_orderid", "country", "currency", "amount", "account_name", "account_number", "phone"),
    *("purpose", "state", "attempts", "sent_orderid", "gateway_status", "gateway_reference", "http_status"),
    *("error_code", "message", "first_sent_at", "updated_at"),
]

SUMMARY = {
    *("batch", "sheet", "rows", "states", "totals", "defects", "known", "sent_this_run", "seconds"),
    *("reconciliation", "exit_code", "message"),
}


# Program and configuration


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


def test_option_overrides_environment_and_environment_overrides_file(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(3))
    other, third = program.home / "other.sqlite3", program.home / "third.sqlite3"
    of_all = (program.journal, other, third)
    cases: tuple[tuple[list[str | Path], dict[str, str], Path], ...] = (
        (["--journal", third], {"PAYGW_JOURNAL": str(other)}, third),
        ([], {"PAYGW_JOURNAL": str(other)}, other),
        ([], {}, program.journal),
    )
    for options, environ, used in cases:
        before = {path for path in of_all if path.exists()}
        assert program.json(*options, "submit", sheet, **environ)["exit_code"] == 0
        assert {path for path in of_all if path.exists()} - before == {used}


def test_configuration_can_come_from_environment(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(1))
    result = program.run("--json", "submit", sheet, config=False, PAYGW_CONFIG=str(program.config))
    assert result.exit_code == 0, result.stderr


def test_unknown_setting_error_suggests_nearest(program: Program) -> None:
    program.config.write_text(sandbox_toml().replace("concurrency =", "concurency ="))
    result = program.run("doctor")
    assert result.exit_code == 2
    assert "submission.concurency" in result.stderr
    assert "concurrency" in result.stderr


@pytest.mark.parametrize("key", ["signature_profile", "approved", "endpoint_id"])
def test_setting_without_default_must_be_configured(program: Program, key: str) -> None:
    lines = [line for line in sandbox_toml().splitlines() if not line.startswith(f"{key} ")]
    if key == "approved":
        lines = [line for line in lines if line.split(" ")[0] not in {"processing", "declined", "filtered", "error"}]
    program.config.write_text("\n".join(lines))
    result = program.run("submit", program.sheet(kenyan_rows(1)))
    assert result.exit_code == 2
    assert ("outcomes" if key == "approved" else key) in result.stderr
    assert not program.journal.exists()
    assert (key if key != "approved" else "outcomes") in program.run("doctor").output


def test_only_used_country_needs_purpose(program: Program) -> None:
    text = re.sub(r"\[countries\.KE\.payout\]\npurpose = .*\n", "", sandbox_toml())
    program.config.write_text(text)
    result = program.run("submit", program.sheet(kenyan_rows(1)))
    assert result.exit_code == 2
    assert "countries.KE.payout.purpose" in result.stderr
    ghana = SAMPLES / "countries" / "GH.csv"
    assert program.json("submit", ghana, "--out", program.home / "out.csv")["exit_code"] == 0


def test_plain_http_is_refused_beyond_loopback(program: Program) -> None:
    program.config.write_text(sandbox_toml(base_url='"http://gateway.example"'))
    key = program.home / "key.pem"
    key.write_text("")
    result = program.run("submit", program.sheet(kenyan_rows(1)), PAYGW_PRIVATE_KEY=str(key))
    assert result.exit_code == 2


# Commands


def test_validate_sends_nothing_and_writes_no_journal(program: Program) -> None:
    summary = program.json("validate", program.sheet(kenyan_rows(3)))
    assert summary["exit_code"] == 0
    assert summary["states"] == {"ready": 3}
    assert summary["defect_list"] == []
    assert not program.journal.exists()
    assert program.record() == []


def test_validate_needs_no_configuration(program: Program) -> None:
    result = program.run("--json", "validate", program.sheet(kenyan_rows(2)), config=False)
    assert result.exit_code == 0, result.stderr


def test_validate_lists_defects_with_code_and_sentence(program: Program) -> None:
    rows = [*kenyan_rows(2), "KE,PAY-8,1e3,UGX,,0712,+254712345678"]
    summary = program.json("validate", program.sheet(rows))
    assert summary["exit_code"] == 3
    assert summary["defects"] == 1
    cells = {(defect["row"], defect["column"]) for defect in summary["defect_list"]}
    assert {(4, "amount"), (4, "currency"), (4, "account_name"), (4, "account_number")} <= cells
    for defect in summary["defect_list"]:
        assert set(defect) == {"row", "column", "heading", "value", "code", "message"}
        assert defect["code"].startswith(defect["column"] + ".")
        assert len(defect["message"]) > 10


def test_validate_writes_rejects(program: Program) -> None:
    rows = [*kenyan_rows(2), "KE,PAY-8,1e3,KES,Jane,254712345678,+254712345678"]
    rejects = program.home / "rejects.csv"
    program.json("validate", program.sheet(rows), "--rejects", rejects)
    (line,) = read_csv(rejects)
    assert line["client_orderid"] == "PAY-8"
    assert stat.S_IMODE(rejects.stat().st_mode) == 0o600


def test_submit_pays_and_reports_every_row_once(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(5))
    summary = program.json("submit", sheet)
    assert set(summary) == SUMMARY
    assert summary["exit_code"] == 0
    assert summary["states"] == {"paid": 5}
    assert summary["totals"] == {"KES": {"paid": "7502.50"}}
    assert (summary["rows"], summary["known"], summary["sent_this_run"], summary["defects"]) == (5, 0, 5, 0)
    assert summary["sheet"] == "payroll.csv"
    assert summary["reconciliation"] == str(program.home / "payroll.reconciliation.csv")
    assert sorted(line["client_orderid"] for line in program.record()) == [f"PAY-{n}" for n in range(1, 6)]


def test_resubmitted_sheet_pays_nothing_twice(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(5))
    first = program.json("submit", sheet)
    before = (program.home / "payroll.reconciliation.csv").read_bytes()
    again = program.json("submit", sheet)
    assert (again["batch"], again["sent_this_run"], again["known"]) == (first["batch"], 0, 5)
    assert (program.home / "payroll.reconciliation.csv").read_bytes() == before
    assert len(program.record()) == 5


def test_renamed_or_converted_sheet_has_same_batch(program: Program) -> None:
    first = program.json("submit", SAMPLES / "payroll-mixed.csv", "--out", program.home / "a.csv")
    again = program.json("submit", SAMPLES / "payroll-mixed.parquet", "--out", program.home / "b.csv")
    assert (again["batch"], again["sent_this_run"]) == (first["batch"], 0)
    assert len(program.record()) == 200


def test_corrected_sheet_pays_only_new_rows(program: Program) -> None:
    rows = kenyan_rows(4)
    program.json("submit", program.sheet(rows))
    summary = program.json("submit", program.sheet([*kenyan_rows(1, prefix="NEW"), *rows], name="corrected.csv"))
    assert (summary["known"], summary["sent_this_run"], summary["states"]) == (4, 1, {"paid": 5})
    assert len(program.record()) == 5


def test_order_id_reused_for_other_content_is_defect(program: Program) -> None:
    program.json("submit", program.sheet(kenyan_rows(2)))
    summary = program.json("submit", program.sheet(kenyan_rows(2, amount="99"), name="other.csv"))
    assert summary["exit_code"] == 3
    result = program.run("submit", program.home / "other.csv")
    assert "client_orderid.conflict" in result.stdout
    assert re.search(r"was used on \d{4}-\d\d-\d\d for another payment", result.stdout)
    assert len(program.record()) == 2


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


def test_sheet_with_one_defect_sends_nothing(program: Program) -> None:
    summary = program.json("submit", program.sheet([*kenyan_rows(3), "KE,PAY-9,x,KES,Jane,254712345678,+254712345678"]))
    assert summary["exit_code"] == 3
    assert summary["sent_this_run"] == 0
    assert program.record() == []
    assert not (program.home / "payroll.reconciliation.csv").exists()


def test_skip_invalid_pays_valid_and_lists_invalid_rows(program: Program) -> None:
    rows = [*kenyan_rows(2), "KE,PAY-9,x,KES,Jane,254712345678,+254712345678", *kenyan_rows(1, prefix="LAST")]
    summary = program.json("submit", program.sheet(rows), "--skip-invalid")
    assert (summary["exit_code"], summary["states"]) == (4, {"invalid": 1, "paid": 3})
    lines = read_csv(summary["reconciliation"])
    assert [line["row"] for line in lines] == ["2", "3", "4", "5"]
    assert lines[2]["state"] == "invalid"
    assert lines[2]["amount"] == "x"
    assert lines[2]["error_code"] == "amount.format"


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


def test_resume_needs_only_journal(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(3))
    first = program.json("submit", sheet)
    sheet.unlink()
    resumed = program.json("resume", first["batch"][:6])
    assert (resumed["batch"], resumed["sent_this_run"], resumed["exit_code"]) == (first["batch"], 0, 0)
    assert resumed["reconciliation"] == first["reconciliation"]


def test_batch_is_found_by_id_prefix_or_sheet(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(1))
    batch = program.json("submit", sheet)["batch"]
    for name in (batch, batch[:5], sheet):
        assert program.json("status", name)["batch"] == batch
    assert program.json("status", "ffff" if not batch.startswith("ffff") else "0000")["exit_code"] == 2


def test_repeated_reconcile_writes_identical_file(program: Program) -> None:
    summary = program.json("submit", program.sheet(kenyan_rows(3)))
    out = program.home / "again.csv"
    again = program.json("reconcile", summary["batch"], "--out", out)
    assert again["exit_code"] == 0
    assert out.read_bytes() == Path(summary["reconciliation"]).read_bytes()


def test_reconcile_writes_parquet_by_extension(program: Program) -> None:
    summary = program.json("submit", program.sheet(kenyan_rows(3)), "--out", program.home / "out.parquet")
    assert pl.read_parquet(summary["reconciliation"]).columns[:19] == COLUMNS


def test_backup_is_complete_and_cannot_send(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(3))
    program.json("submit", sheet)
    copy = program.home / "copy.sqlite3"
    assert program.json("backup", copy)["exit_code"] == 0
    assert program.json("--journal", copy, "verify")["exit_code"] == 0
    assert program.json("--journal", copy, "submit", sheet)["exit_code"] == 7
    assert program.json("backup", copy)["exit_code"] == 2
    assert len(program.record()) == 3


def test_doctor_shows_base_string_and_signature(program: Program) -> None:
    result = program.run("doctor")
    assert result.exit_code == 0, result.output
    assert "POST&http" in result.stdout
    assert program.record() == []


def test_doctor_reports_conditions_affecting_speed(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> tuple[str, str]:
        (speed,) = [check for check in program.json("doctor")["checks"] if check["check"] == "speed"]
        return speed["state"], speed["found"]

    for profiles, state in ((True, "ok"), (None, "ok"), (False, "look")):
        build = PythonBuild(has_profiles=profiles, has_lto=None)
        monkeypatch.setattr("paygw_batch.cli.commands.doctor.python_build", lambda build=build: build)
        assert found()[0] == state
    assert re.search(r"^Python 3\.\S+, .+; a signature takes [\d.]+ ms\. This Python was built", found()[1])


def test_json_option_prints_only_json(program: Program) -> None:
    sheet = program.sheet([*kenyan_rows(1), "KE,PAY-9,x,KES,Jane,254712345678,+254712345678"])
    for arguments in (
        ["validate", sheet],
        ["submit", sheet],
        ["submit", program.sheet(kenyan_rows(2), name="good.csv")],
        ["status"],
        ["verify"],
        ["doctor"],
        ["submit", program.home / "absent.csv"],
    ):
        result = program.run("--json", *arguments)
        assert isinstance(json.loads(result.stdout), dict)
        assert set(json.loads(result.stdout)) >= SUMMARY


def test_quiet_successful_run_prints_nothing(program: Program) -> None:
    result = program.run("-q", "submit", program.sheet(kenyan_rows(1)))
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


# Exit codes


def test_usage_errors_exit_2(program: Program) -> None:
    for arguments in (["nonsense"], ["submit"], ["submit", "--no-such-option"], ["reconcile", "abc"]):
        assert program.run(*arguments).exit_code == 2


@pytest.mark.parametrize(
    ("amount", "state", "code"),
    [
        ("9001", "rejected", 4),
        ("9002", "accepted", 0),
        ("9003", "rejected", 4),
        ("9006", "in_doubt", 5),
        ("9007", "in_doubt", 5),
        ("9008", "in_doubt", 5),
        ("9009", "in_doubt", 5),
        ("9010", "in_doubt", 5),
        ("9011", "in_doubt", 5),
    ],
)
def test_gateway_answer_sets_state_and_exit_code(program: Program, amount: str, state: str, code: int) -> None:
    summary = program.json("submit", program.sheet(kenyan_rows(1, amount=amount)))
    assert (summary["states"], summary["exit_code"]) == ({state: 1}, code)
    (line,) = read_csv(summary["reconciliation"])
    assert line["state"] == state
    again = program.json("submit", program.home / "payroll.csv")
    assert again["sent_this_run"] == 0


def test_unreachable_gateway_leaves_rows_ready(program: Program) -> None:
    key = program.home / "merchant.pem"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    key.chmod(0o600)
    program.config.write_text(sandbox_toml(base_url='"http://127.0.0.1:1"'))
    program.make_journal()
    summary = program.json("submit", program.sheet(kenyan_rows(3)), PAYGW_PRIVATE_KEY=str(key))
    assert (summary["exit_code"], summary["states"], summary["sent_this_run"]) == (6, {"ready": 3}, 0)
    lines = read_csv(summary["reconciliation"])
    assert {line["state"] for line in lines} == {"ready"}


# Sheets


def test_headings_ignore_case_spaces_hyphens_and_underscores(program: Program) -> None:
    heading = "Country, Client Order ID ,AMOUNT,currency,Account-Name,account number,Phone,Cost Centre"
    sheet = program.sheet([f"{row},C{n}" for n, row in enumerate(kenyan_rows(2))], heading=heading)
    summary = program.json("submit", sheet)
    assert summary["exit_code"] == 0
    lines = read_csv(summary["reconciliation"])
    assert list(lines[0]) == [*COLUMNS, "Cost Centre"]
    assert [line["Cost Centre"] for line in lines] == ["C0", "C1"]


def test_common_spellings_of_phone_number_are_accepted(program: Program) -> None:
    rows = ['KE,A,100,KES,Jane,0712 345 678,"(0712) 345-678"', "KE,B,100,KES,Jane,+254712345679,00254712345679"]
    summary = program.json("submit", program.sheet(rows))
    assert summary["exit_code"] == 0
    lines = read_csv(summary["reconciliation"])
    assert [line["account_number"] for line in lines] == ["254712345678", "254712345679"]
    assert [line["phone"] for line in lines] == ["+254712345678", "+254712345679"]


def test_sheet_may_mix_all_countries(program: Program) -> None:
    summary = program.json("submit", SAMPLES / "payroll-mixed.csv", "--out", program.home / "out.csv")
    assert (summary["exit_code"], summary["states"]) == (0, {"paid": 200})
    record = {line["client_orderid"]: line for line in program.record()}
    for line in read_csv(summary["reconciliation"]):
        paid = record.pop(line["client_orderid"])
        assert paid["amount"] == line["amount"]
        assert paid["currency"] == line["currency"]
    assert record == {}


def test_duplicate_payment_warning_shows_both_ids(program: Program) -> None:
    row = "KE,{id},100,KES,Jane,254712345678,+254712345678"
    twice = program.run("validate", program.sheet([row.format(id="A-1"), row.format(id="A-2")]))
    assert twice.exit_code == 0
    assert "A-1" in twice.stdout
    assert "A-2" in twice.stdout
    program.json("submit", program.sheet([row.format(id="B-1")], name="b.csv"))
    later = program.run("submit", program.sheet([row.format(id="C-1"), *kenyan_rows(1)], name="c.csv"))
    assert later.exit_code == 0
    assert "B-1" in later.stdout
    assert "C-1" in later.stdout


# Results


def test_reconciliation_has_rows_once_in_sheet_order(program: Program) -> None:
    summary = program.json("submit", program.sheet(kenyan_rows(10)))
    lines = read_csv(summary["reconciliation"])
    assert list(lines[0]) == COLUMNS
    assert [line["row"] for line in lines] == [str(n) for n in range(2, 12)]
    for line in lines:
        assert line["state"] == "paid"
        assert line["attempts"] == "1"
        assert line["sent_orderid"] == line["client_orderid"]
        assert line["gateway_status"] == "approved"
        assert line["http_status"] == "200"
        assert line["amount"] == "1500.50"
        assert line["purpose"] == "SANDBOX-WALLET-KE"
        for moment in (line["first_sent_at"], line["updated_at"]):
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", moment)
    assert stat.S_IMODE(Path(summary["reconciliation"]).stat().st_mode) == 0o600


def test_receiver_form_rows_show_receiver_name_and_phone(program: Program) -> None:
    summary = program.json("submit", SAMPLES / "countries" / "TZ.csv", "--out", program.home / "tz.csv")
    lines = read_csv(summary["reconciliation"])
    sheet = read_csv(SAMPLES / "countries" / "TZ.csv")
    assert [line["account_name"] for line in lines] == [
        f"{row['receiver_first_name']} {row['receiver_last_name']}" for row in sheet
    ]
    assert all(re.fullmatch(r"0[0-9]{9}", line["phone"]) for line in lines)


def test_spreadsheet_formulas_are_guarded(program: Program) -> None:
    heading = f"{HEADING},note"
    notes = ["=1+1", "@SUM(A1)", "+cmd", "-x", "-5", "+5.5", "plain"]
    rows = [f"{row},{note}" for row, note in zip(kenyan_rows(len(notes)), notes, strict=True)]
    summary = program.json("submit", program.sheet(rows, heading=heading))
    shown = [line["note"] for line in read_csv(summary["reconciliation"])]
    assert shown == ["'=1+1", "'@SUM(A1)", "'+cmd", "'-x", "-5", "+5.5", "plain"]


def test_unwritable_out_path_stops_before_sending(program: Program) -> None:
    summary = program.json("submit", program.sheet(kenyan_rows(1)), "--out", program.home / "no" / "such" / "out.csv")
    assert summary["exit_code"] == 2
    assert program.record() == []
