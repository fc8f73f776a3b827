"""Signals that arrive before a run has its own handlers, in real processes at chosen moments.

The moment is an import, or the start or end of a function call, at which the process signals itself.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from paygw_batch.journal.lock import RunLock, lock_path
from tests.cli.stopped import IMPORTS, START
from tests.support.long_part import share
from tests.support.patience import PATIENCE_S
from tests.support.program import ROOT, Program, kenyan_rows

CALLS = [
    "call:cli",
    "call:load_settings",
    "call:SheetSource.validated",
    "call:open_gateway",
    "call:open_journal_for_run",
]
CALLS += ["call:open_planned_batch", "call:send", "call:running_signers"]


def run_with_signal(program: Program, moment: str, number: int, *arguments: str) -> "subprocess.CompletedProcess[str]":
    start = START.format(root=str(ROOT), moment=moment, number=int(number), arguments=arguments)
    return subprocess.run(
        [sys.executable, "-c", start],
        env={**os.environ, **program.environ},
        cwd=program.home,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


@pytest.mark.share(14)
@pytest.mark.parametrize("strike", share([*product([*IMPORTS, *CALLS], [signal.SIGTERM, signal.SIGINT])], every=3))
def test_signal_before_first_row_exits_130_sending_nothing(
    program: Program, strike: tuple[str, signal.Signals]
) -> None:
    moment, number = strike
    sheet = program.sheet(kenyan_rows(3))
    process = run_with_signal(program, moment, number, "--config", str(program.config), "--json", "submit", str(sheet))
    assert process.returncode == 130, process.stderr
    summary = json.loads(process.stdout)
    assert summary["exit_code"] == 130
    assert "nothing was sent" in summary["message"].lower()
    assert "Traceback" not in process.stderr
    assert program.record() == []
    again = program.json("submit", sheet)
    assert (again["exit_code"], again["states"]) == (0, {"paid": 3})


@pytest.mark.share(2)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_interrupted_run_without_json_prints_nothing(program: Program, number: signal.Signals) -> None:
    sheet = program.sheet(kenyan_rows(3))
    process = run_with_signal(program, "polars", number, "--config", str(program.config), "submit", str(sheet))
    assert (process.returncode, process.stdout) == (130, "")
    assert "Interrupted" in process.stderr


@pytest.mark.share(4)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("moment", ["call:Interruption.raise_on_second_signal", "call:write_results"])
def test_signal_before_summary_exits_130(program: Program, moment: str, number: signal.Signals) -> None:
    sheet = program.sheet(kenyan_rows(3))
    process = run_with_signal(program, moment, number, "--config", str(program.config), "--json", "submit", str(sheet))
    assert process.returncode == 130, process.stderr
    assert "nothing was sent" not in json.loads(process.stdout)["message"].lower()
    assert len(program.record()) == 3


@pytest.mark.share(2)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_after_summary_changes_nothing(program: Program, number: signal.Signals) -> None:
    sheet = program.sheet(kenyan_rows(3))
    process = run_with_signal(
        program, "call:Summary.as_json", number, "--config", str(program.config), "--json", "submit", str(sheet)
    )
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout)["states"] == {"paid": 3}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_waiting_run_ends_after_swallowed_signal(program: Program, number: signal.Signals) -> None:
    sheet = program.sheet(kenyan_rows(3))
    program.json("submit", sheet)
    now = "2026-11-22T00:00:00.000Z"
    with closing(RunLock(lock_path(program.journal), now=now, command="submit")):
        process = run_with_signal(
            program, "lost:polars", number, "--config", str(program.config), "--json", "submit", str(sheet), "--wait"
        )
    assert (process.returncode, json.loads(process.stdout)["exit_code"]) == (130, 130), process.stderr


def test_console_script_calls_start_main() -> None:
    assert 'paygw-batch = "paygw_batch.cli.start:main"' in Path(ROOT / "pyproject.toml").read_text()
