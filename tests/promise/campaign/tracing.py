"""A run of the program under strace: faults at chosen system calls, or a record of its file operations."""

import functools
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.promise.campaign.machine import Machine, Run
from tests.support.patience import PATIENCE_S


def run_under_strace(
    machine: Machine,
    log: Path,
    options: list[str],
    *arguments: str | Path,
    meanwhile: Callable[[Run], None] | None = None,
    **start: Any,
) -> int:
    """Run the program to its end under strace with `options`, writing to `log`. Return the exit code.

    `meanwhile` runs concurrently, and must end a program that does not end by itself.
    """
    run = machine.start(*arguments, stopped=True, **start)
    run.until_stopped()
    with subprocess.Popen(
        ["strace", "-f", "-qq", "-o", log, *options, "-p", str(run.pid)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as strace:
        give_up_at_s = time.monotonic() + PATIENCE_S
        while not _is_traced(run.pid):
            if strace.poll() is not None or time.monotonic() > give_up_at_s:
                run.send(signal.SIGKILL)
                run.done()
                raise AssertionError("strace did not attach")
            time.sleep(0.002)
        run.send(signal.SIGCONT)
        try:
            if meanwhile is not None:
                meanwhile(run)
        except BaseException:
            run.send(signal.SIGKILL)
            raise
        finally:
            code = run.done()
        strace.wait(PATIENCE_S)
    return code


def _is_traced(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return "TracerPid:\t0\n" not in status


@functools.cache
def why_not() -> str:
    """Return why nothing can be traced here, or an empty string."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    probe = subprocess.run(["strace", "-qq", "-e", "trace=none", "true"], capture_output=True, check=False)
    return "" if probe.returncode == 0 else "ptrace is forbidden here"


can_trace = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
