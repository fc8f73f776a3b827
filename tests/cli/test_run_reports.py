"""The reports of a run to its environment: a log, metrics and a hook."""

import json
import re
import stat
from collections import Counter
from typing import Any
from unittest.mock import Mock

import pytest

from paygw_batch.cli import send_batch
from paygw_batch.errors import JournalUnwritable, OutputError
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from tests.support.journal_disk import failing_stage
from tests.support.program import Program, kenyan_rows, sandbox_toml


def configure_reporting(program: Program) -> None:
    hook = program.home / "hook.sh"
    hook.write_text('#!/bin/sh\nenv > "$1/hook.env"\nexec cat > "$1/hook.json"\n')
    hook.chmod(0o700)
    program.config.write_text(
        sandbox_toml()
        + f'\n[reporting]\nlog = "run.log"\nmetrics = "paygw.prom"\nhook = ["{hook}", "{program.home}"]\n'
    )


def read_log_lines(program: Program) -> list[dict[str, Any]]:
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
    program.run("submit", program.home / "absent-254712345678.csv")
    assert json.loads((program.home / "hook.json").read_text())["exit_code"] == 3
    ended = read_log_lines(program)[-1]
    assert (ended["exit_code"], "absent-***678.csv" in str(ended["message"])) == (3, True)
    assert "712345" not in (program.home / "run.log").read_text()


def test_log_names_open_question_without_payees(program: Program) -> None:
    configure_reporting(program)
    row = "KE,1500.00,KES,Jane Wanjiku,254712345678,+254712345678"
    heading = "country,amount,currency,account_name,account_number,phone"
    program.run("submit", program.sheet([row, row], heading=heading), "--reference", "november")
    assert "payee.twice" in str(read_log_lines(program)[-1]["message"])
    assert not re.search("Wanjiku|712345", (program.home / "run.log").read_text())


@pytest.mark.parametrize(
    ("error", "code"),
    [(OutputError("Full."), 2), (JournalUnwritable(), 7), (ZeroDivisionError(), 1), (KeyboardInterrupt(), 130)],
)
def test_late_failure_reports_sent_rows(
    program: Program, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    configure_reporting(program)
    monkeypatch.setattr(send_batch, "write_results", Mock(side_effect=error))
    summary = program.json("submit", program.sheet(kenyan_rows(2)))
    for report in (summary, json.loads((program.home / "hook.json").read_text()), read_log_lines(program)[-1]):
        assert (report["exit_code"], report["sent_this_run"], report["states"]) == (code, 2, {"paid": 2})
        assert report["batch"] == program.json("status")["batches"][0]["batch"]
        assert "This run sent 2 rows before it ended. 2 paid. You can safely run" in report["message"]


def test_journal_failure_counts_rows_already_sent(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SqliteJournal, "stage", failing_stage(20))
    summary = program.json("submit", program.sheet(kenyan_rows(50)))
    states = Counter(summary["states"])
    assert (summary["exit_code"], summary["sent_this_run"]) == (7, len(program.record()))
    assert summary["sent_this_run"] == states["paid"] + states["in_doubt"] == 50 - states["ready"]


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
