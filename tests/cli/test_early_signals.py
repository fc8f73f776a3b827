"""A signal that comes before a run has handlers of its own: real processes, and a signal at a chosen instant.

The instant is an import, a call of a function or the end of one: the process sends itself the signal there. At a `lost`
import the signal comes in a callback of the interpreter, which drops the exception.
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

CALLS = ["call:cli", "call:load_settings", "call:GivenSheet.validated", "call:gateway_of", "call:run_journal"]
CALLS += ["call:open_planned_batch", "call:send", "call:signers_at_work"]


def struck(program: Program, moment: str, number: int, *arguments: str) -> "subprocess.CompletedProcess[str]":
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
    done = struck(program, moment, number, "--config", str(program.config), "--json", "submit", str(sheet))
    assert done.returncode == 130, done.stderr
    said = json.loads(done.stdout)
    assert said["exit_code"] == 130
    assert "nothing was sent" in said["message"].lower()
    assert "Traceback" not in done.stderr
    assert program.record() == []
    again = program.json("submit", sheet)
    assert (again["exit_code"], again["states"]) == (0, {"paid": 3})


@pytest.mark.share(2)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_interrupted_run_without_json_prints_nothing(program: Program, number: signal.Signals) -> None:
    sheet = program.sheet(kenyan_rows(3))
    done = struck(program, "polars", number, "--config", str(program.config), "submit", str(sheet))
    assert (done.returncode, done.stdout) == (130, "")
    assert "Interrupted" in done.stderr


@pytest.mark.share(4)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("moment", ["call:Interruption.raise_on_second_signal", "call:write_results"])
def test_signal_between_last_row_and_summary_exits_130(program: Program, moment: str, number: signal.Signals) -> None:
    sheet = program.sheet(kenyan_rows(3))
    done = struck(program, moment, number, "--config", str(program.config), "--json", "submit", str(sheet))
    assert done.returncode == 130, done.stderr
    assert "nothing was sent" not in json.loads(done.stdout)["message"].lower()
    assert len(program.record()) == 3


@pytest.mark.share(2)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_after_summary_changes_nothing(program: Program, number: signal.Signals) -> None:
    sheet = program.sheet(kenyan_rows(3))
    done = struck(
        program, "call:Summary.as_json", number, "--config", str(program.config), "--json", "submit", str(sheet)
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["states"] == {"paid": 3}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_waiting_run_ends_despite_swallowed_signal(program: Program, number: signal.Signals) -> None:
    sheet = program.sheet(kenyan_rows(3))
    program.json("submit", sheet)
    now = "2026-11-22T00:00:00.000Z"
    with closing(RunLock(lock_path(program.journal), now=now, command="submit")):
        done = struck(
            program, "lost:polars", number, "--config", str(program.config), "--json", "submit", str(sheet), "--wait"
        )
    assert (done.returncode, json.loads(done.stdout)["exit_code"]) == (130, 130), done.stderr


def test_console_script_calls_start_main() -> None:
    assert 'paygw-batch = "paygw_batch.cli.start:main"' in Path(ROOT / "pyproject.toml").read_text()
