"""A fork of the program behaves like a new process: its output, signals and end."""

import os
import signal
import subprocess
import sys

import pytest

from tests.cli.stopped import stop_process, wait_for_first_payment
from tests.support.program import Program, kenyan_rows, kill


@pytest.mark.parametrize("words", [("status",), ("validate", "none.csv"), ("frobnicate",)])
def test_forked_command_matches_new_process(program: Program, words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "paygw_batch", "--config", str(program.config), *words]
    environ = {**os.environ, **program.environ}
    cold = subprocess.run(command, env=environ, cwd=program.home, capture_output=True, text=True, check=False)
    forked = program.start(*words)
    outputs = forked.communicate()
    assert (forked.returncode, *outputs) == (cold.returncode, cold.stdout, cold.stderr)


def test_forked_command_can_be_stopped_and_killed(program: Program) -> None:
    process = program.start("submit", program.sheet(kenyan_rows(200)), "--concurrency", "1")
    wait_for_first_payment(program, process)
    with stop_process(process):
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
        assert process.poll() is None
    kill(process)
    assert process.returncode == -signal.SIGKILL
    assert process.wait(0) == -signal.SIGKILL
