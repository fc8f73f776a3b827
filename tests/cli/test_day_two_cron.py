"""Unattended runs: a drop folder, two starts at once, and the reports of a run to its environment."""

import json
import os
import re
import signal
import stat
import time
from pathlib import Path

import pytest

from paygw_batch.unattended.run_report import mask_numbers
from tests.cli.paying import block_first_reply, run_gateway
from tests.cli.stopped import stop_process, wait_for_first_payment
from tests.support.program import Program, kenyan_rows, kill, read_csv, sandbox_toml


def drop_sheet(program: Program, rows: list[str], name: str = "payroll.csv", *, age_s: float = 3600) -> Path:
    path = program.sheet(rows, name=f"drop/{name}")
    then = time.time() - age_s
    os.utime(path, (then, then))
    return path


def file_names(folder: Path, place: str) -> list[str]:
    """Return the file names in a subfolder, without their time prefixes."""
    return sorted(path.name.partition("-")[2] for path in (folder / place).iterdir())


def configure_slow_gateway(program: Program, delay_s: float) -> None:
    (program.home / "slow.toml").write_text(f"[default]\ndelay_s = {delay_s}\n")
    program.config.write_text(f'{program.config.read_text()}\n[sandbox]\nbehaviour = "slow.toml"\n')


# The drop folder


def test_unchanged_sheet_is_paid_and_moved_with_reports(program: Program, folder: Path) -> None:
    sheet = drop_sheet(program, kenyan_rows(3))
    summary = program.json("run-folder", folder)
    assert (summary["exit_code"], summary["sent_this_run"]) == (0, 3)
    assert summary["totals"] == {"KES": {"paid": "4501.50"}}
    assert not sheet.exists()
    assert file_names(folder, "done") == [
        "payroll.csv",
        "payroll.reconciliation.csv",
        "payroll.report.html",
        "payroll.summary.json",
    ]
    (report,) = (folder / "done").glob("*.summary.json")
    assert json.loads(report.read_text())["states"] == {"paid": 3}
    (reconciliation,) = (folder / "done").glob("*.reconciliation.csv")
    assert [line["state"] for line in read_csv(reconciliation)] == ["paid"] * 3


def test_empty_folder_exits_successfully(program: Program, folder: Path) -> None:
    summary = program.json("run-folder", folder)
    assert (summary["exit_code"], summary["sheets"]) == (0, [])
    assert program.run("run-folder", program.home / "nowhere").exit_code == 2


def test_unrelated_files_in_folder_are_ignored(program: Program, folder: Path) -> None:
    ends = (".part", ".tmp", ".filepart", ".PARTIAL", ".crdownload", "~")
    names = [".payroll.csv", ".~lock.payroll.xlsx#", "~$payroll.xlsx", ".DS_Store", "Thumbs.db", ".payroll.csv.Xa3bC9"]
    names += [f"payroll.csv{end}" for end in ends]
    for name in names:
        drop_sheet(program, kenyan_rows(1), name)
    summary = program.json("run-folder", folder)
    assert (summary["sheets"], summary["exit_code"]) == ([], 0)
    for name in ("payroll.reconciliation.csv", "payroll.refused.txt"):
        drop_sheet(program, kenyan_rows(1), name)
    summary = program.json("run-folder", folder)
    assert (summary["sheets"], summary["exit_code"]) == ([], 4)
    assert {*names, name} <= {path.name for path in folder.iterdir()}


def test_recently_changed_sheet_is_not_processed(program: Program, folder: Path) -> None:
    young = drop_sheet(program, kenyan_rows(1), age_s=5)
    assert program.json("run-folder", folder)["sheets"] == []
    assert young.exists()
    assert program.json("run-folder", folder, "--settle-s", "1")["exit_code"] == 0


def test_link_in_folder_is_not_followed(program: Program, folder: Path) -> None:
    outside = program.sheet(kenyan_rows(1))
    (folder / "payroll.csv").symlink_to(outside)
    summary = program.json("run-folder", folder, "--settle-s", "0")
    assert (summary["exit_code"], summary["sheets"], program.record()) == (4, [], [])
    assert outside.exists()


def test_refused_sheet_does_not_block_good_sheet(program: Program, folder: Path) -> None:
    drop_sheet(program, [*kenyan_rows(2), "KE,BAD,1e3,KES,Jane,254712345678,+254712345678"], "bad.csv", age_s=9000)
    drop_sheet(program, kenyan_rows(2, prefix="GOOD"), "good.csv")
    (folder / "torn.csv").write_text('country,amount\n"KE,1\n')
    os.utime(folder / "torn.csv", (1, 1))
    summary = program.json("run-folder", folder)
    assert summary["exit_code"] == 3
    assert [(sheet["sheet"], sheet["exit_code"]) for sheet in summary["sheets"]] == [
        ("torn.csv", 3),
        ("bad.csv", 3),
        ("good.csv", 0),
    ]
    assert file_names(folder, "refused") == [
        *("bad.csv", "bad.rejects.csv", "bad.summary.json"),
        *("torn.csv", "torn.refused.txt", "torn.summary.json"),
    ]
    (rejects,) = (folder / "refused").glob("*.rejects.csv")
    assert [line["client_orderid"] for line in read_csv(rejects)] == ["BAD"]
    assert {line["client_orderid"] for line in program.record()} == {"GOOD-1", "GOOD-2"}


def test_sheet_dropped_twice_is_paid_once(program: Program, folder: Path) -> None:
    for _ in range(2):
        drop_sheet(program, kenyan_rows(3))
        assert program.json("run-folder", folder)["exit_code"] == 0
    assert len(program.record()) == 3


def test_second_run_waits_or_is_refused(program: Program, folder: Path) -> None:
    configure_slow_gateway(program, 0.2)
    drop_sheet(program, kenyan_rows(40), "first.csv")
    process = program.start("run-folder", folder)
    wait_for_first_payment(program, process)
    second = drop_sheet(program, kenyan_rows(1, amount="20", prefix="SECOND"), "second.csv")
    with stop_process(process):
        result = program.run("run-folder", folder)
        waiting = program.start("run-folder", folder, "--wait")
        assert waiting.stdout is not None
        line = waiting.stdout.readline()
    assert (result.exit_code, second.exists()) == (7, True)
    assert f"nother run is using this journal: process {process.pid}" in result.stderr
    assert line.startswith("Waiting: ")
    assert f"nother run is using this journal: process {process.pid}" in line
    process.communicate()
    waiting.communicate()
    assert (process.returncode, waiting.returncode, len(program.record())) == (0, 0, 41)


def test_interrupted_sheet_continues_before_other_sheets(program: Program, folder: Path) -> None:
    drop_sheet(program, kenyan_rows(40), "first.csv")
    with run_gateway(program) as gateway:
        with block_first_reply(program, gateway, "run-folder", folder) as process:
            process.send_signal(signal.SIGTERM)
        assert process.returncode == 130
        assert len(gateway.orders()) < 40
        drop_sheet(program, kenyan_rows(1, amount="20", prefix="OLD"), "a-older-sheet.csv", age_s=99999)
        summary = program.json("run-folder", folder)
        assert [sheet["sheet"] for sheet in summary["sheets"]] == ["first.csv", "a-older-sheet.csv"]
        assert summary["states"] == {"paid": 41}
        assert len(gateway.orders()) == 41


def test_claimed_sheet_continues_only_with_its_journal(program: Program, folder: Path) -> None:
    configure_slow_gateway(program, 0.05)
    drop_sheet(program, kenyan_rows(60))
    process = program.start("run-folder", folder)
    wait_for_first_payment(program, process)
    kill(process)
    text = program.config.read_text()
    program.config.write_text(text.replace('"journal.sqlite3"', '"other.sqlite3"'))
    assert program.json("run-folder", folder)["sheets"] == []
    for ending in ("", "-wal"):
        program.journal.with_name(f"journal.sqlite3{ending}").rename(program.home / f"moved.sqlite3{ending}")
    (program.home / "known.journal.sqlite3").rename(program.home / "known.moved.sqlite3")
    program.config.write_text(text.replace('"journal.sqlite3"', '"moved.sqlite3"'))
    (sheet,) = program.json("run-folder", folder)["sheets"]
    assert sum(sheet["states"].values()) == 60
    orders = [line["client_orderid"] for line in program.record()]
    assert len(orders) == len(set(orders)) == 60


# The reports of a run


def configure_reporting(program: Program) -> None:
    hook = program.home / "hook.sh"
    hook.write_text('#!/bin/sh\nenv > "$1/hook.env"\nexec cat > "$1/hook.json"\n')
    hook.chmod(0o700)
    program.config.write_text(
        sandbox_toml()
        + f'\n[reporting]\nlog = "run.log"\nmetrics = "paygw.prom"\nhook = ["{hook}", "{program.home}"]\n'
    )


def read_log_lines(program: Program) -> list[dict[str, object]]:
    return [json.loads(line) for line in (program.home / "run.log").read_text().splitlines()]


def test_run_writes_log_and_metrics_and_calls_hook(program: Program) -> None:
    configure_reporting(program)
    rows = [*kenyan_rows(2), *kenyan_rows(1, amount="9001", prefix="NO"), *kenyan_rows(1, amount="9007", prefix="LOST")]
    summary = program.json("submit", program.sheet(rows), PAYGW_KEY_PASSPHRASE="a secret")
    lines = read_log_lines(program)
    assert [line["event"] for line in lines if line["event"] != "said"] == ["run_started", "run_ended"]
    assert len({line["run"] for line in lines}) == 1
    assert lines[-1]["states"] == {"paid": 2, "rejected": 1, "in_doubt": 1}
    assert stat.S_IMODE((program.home / "run.log").stat().st_mode) == 0o600
    metrics = (program.home / "paygw.prom").read_text()
    assert 'paygw_run_exit_code{command="submit"} 5\n' in metrics
    assert 'paygw_rows{state="paid"} 2\n' in metrics
    assert 'paygw_amount{currency="KES",state="rejected"} 9001.00\n' in metrics
    assert stat.S_IMODE((program.home / "paygw.prom").stat().st_mode) == 0o644
    report = json.loads((program.home / "hook.json").read_text())
    assert (report["batch"], report["exit_code"], report["run"]) == (summary["batch"], 5, lines[0]["run"])
    assert "a secret" not in (program.home / "hook.env").read_text()
    for name in ("run.log", "paygw.prom", "hook.json"):
        assert not re.search("Wanjiku|712345", (program.home / name).read_text()), name


def test_failed_run_is_logged_and_calls_hook(program: Program) -> None:
    configure_reporting(program)
    program.run("submit", program.home / "absent.csv")
    assert json.loads((program.home / "hook.json").read_text())["exit_code"] == 3
    assert read_log_lines(program)[-1]["exit_code"] == 3


@pytest.mark.parametrize(
    ("command", "why"),
    [(["/bin/false"], "exit code 1"), (["/no/such/hook"], "cannot be run"), (["/bin/sleep", "60"], "took longer")],
)
def test_failing_hook_warns_without_changing_exit_code(program: Program, command: list[str], why: str) -> None:
    program.config.write_text(f"{sandbox_toml()}\n[reporting]\nhook = {json.dumps(command)}\nhook_timeout_s = 0.2\n")
    result = program.run("submit", program.sheet(kenyan_rows(1)))
    assert result.exit_code == 0
    assert why in result.stderr


def test_unwritable_log_warns_without_failing_run(program: Program) -> None:
    program.config.write_text(
        f'{sandbox_toml()}\n[reporting]\nlog = "no/such/run.log"\nmetrics = "no/such/paygw.prom"\n'
    )
    result = program.run("submit", program.sheet(kenyan_rows(1)))
    assert result.exit_code == 0
    assert result.stderr.count("cannot be written") == 2


def test_long_numbers_are_masked() -> None:
    assert mask_numbers("Paid 254712345678.") == "Paid ***678."
    assert mask_numbers("+254712345678 and 0712345678") == "+***678 and ***678"
    unchanged = "1,234 rows, row 123456 of 2026-11-21"
    assert mask_numbers(unchanged) == unchanged
