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
from tests.cli.program import ROOT, Program, kenyan_rows
from tests.long_part import share
from tests.patience import PATIENCE_S

START = """
import importlib.abc, os, signal, sys
sys.path.insert(0, {root!r})
moment, number = {moment!r}, {number}

def strike():
    os.kill(os.getpid(), number)

class Dying:
    def __del__(self):
        strike()

class AtImport(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == moment:
            strike()
        elif "lost:" + name == moment:
            Dying()

def at_call(frame, event, argument):
    if event == "call" and frame.f_code.co_qualname == moment:
        sys.setprofile(None)
        strike()

sys.meta_path.insert(0, AtImport())
if moment.startswith("call:"):
    moment = moment.removeprefix("call:")
    sys.setprofile(at_call)
sys.argv = ["paygw-batch", *{arguments!r}]
from paygw_batch.cli.start import main
main()
"""

IMPORTS = ["paygw_batch.cli.main", "click", "paygw_batch.cli.commands.pay", "polars", "httptools", "apsw"]
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
def test_a_signal_before_the_first_row_ends_with_130_and_one_object(
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
def test_without_json_standard_output_stays_empty(program: Program, number: signal.Signals) -> None:
    sheet = program.sheet(kenyan_rows(3))
    done = struck(program, "polars", number, "--config", str(program.config), "submit", str(sheet))
    assert (done.returncode, done.stdout) == (130, "")
    assert "Interrupted" in done.stderr


@pytest.mark.share(4)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("moment", ["call:Interruption.raise_on_second_signal", "call:write_results"])
def test_a_signal_between_the_last_row_and_the_summary_ends_with_130_and_does_not_say_that_nothing_was_sent(
    program: Program, moment: str, number: signal.Signals
) -> None:
    sheet = program.sheet(kenyan_rows(3))
    done = struck(program, moment, number, "--config", str(program.config), "--json", "submit", str(sheet))
    assert done.returncode == 130, done.stderr
    assert "nothing was sent" not in json.loads(done.stdout)["message"].lower()
    assert len(program.record()) == 3


@pytest.mark.share(2)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_after_the_summary_changes_nothing_any_more(program: Program, number: signal.Signals) -> None:
    sheet = program.sheet(kenyan_rows(3))
    done = struck(
        program, "call:Summary.as_json", number, "--config", str(program.config), "--json", "submit", str(sheet)
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["states"] == {"paid": 3}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_lost_signal_still_ends_a_waiting_run(program: Program, number: signal.Signals) -> None:
    sheet = program.sheet(kenyan_rows(3))
    program.json("submit", sheet)
    now = "2026-11-22T00:00:00.000Z"
    with closing(RunLock(lock_path(program.journal), now=now, command="submit")):
        done = struck(
            program, "lost:polars", number, "--config", str(program.config), "--json", "submit", str(sheet), "--wait"
        )
    assert (done.returncode, json.loads(done.stdout)["exit_code"]) == (130, 130), done.stderr


def test_the_installed_program_starts_where_signals_are_heard_first() -> None:
    assert 'paygw-batch = "paygw_batch.cli.start:main"' in Path(ROOT / "pyproject.toml").read_text()
