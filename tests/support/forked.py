"""Starts the program as forks of a process that has imported it, because a cold start takes a second.

Tests of the start itself still start cold: the README's commands, early signals, terminals, full outputs, and the
modules that a command loads.
"""

import atexit
import os
import select
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

from paygw_batch.extras import COMMANDS
from tests.promise.campaign.machine import ROOT, Spawner

_asking = threading.Lock()


def start(
    arguments: list[str | Path], environ: dict[str, str], directory: Path, stdout: Any, stderr: Any
) -> "subprocess.Popen[str]":
    """Start the program as a fork, or cold if the system cannot watch another process's child."""
    kind = Forked if hasattr(os, "pidfd_open") and Path("/proc/self/fd").exists() else subprocess.Popen
    command = [sys.executable, "-m", "paygw_batch", *arguments]
    return kind(command, env=environ, cwd=directory, stdout=stdout, stderr=stderr, text=True)


@cache
def _spawner() -> Spawner:
    commands = sorted((ROOT / "paygw_batch/cli/commands").glob("*.py"))
    own = (f"cli.commands.{path.stem}" for path in commands if path.stem != "__init__")
    program = (f"paygw_batch.{module}" for module in (*own, *COMMANDS.values()))
    result = Spawner(*program, "tests.support.short_waits")
    atexit.register(result.close)
    return result


class Forked(subprocess.Popen[str]):
    """A child of the spawner of this test process: it creates the process, and tells when it has ended."""

    def _execute_child(self, args: list[str | Path], *rest: Any) -> None:
        _, _, _, _, directory, environ, _, _, _, *files = rest
        pipes = files[:6]
        _, _, _, out, _, err = pipes
        ours = f"/proc/{os.getpid()}/fd"
        with _asking:
            self.pid = _spawner().start(
                arguments=[str(word) for word in args[3:]],
                environ=environ,
                directory=str(directory),
                out=f"{ours}/{out}",
                err=f"{ours}/{err}",
            )
            self._child_created = True
            self._watch = os.pidfd_open(self.pid)
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]  # of the library's own class

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        return self._code_within(0)

    def _wait(self, timeout: float | None) -> int:
        if (code := self._code_within(timeout)) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _code_within(self, seconds: float | None) -> int | None:
        if self.returncode is None:
            waiting = select.poll()
            waiting.register(self._watch, select.POLLIN)
            if not waiting.poll(None if seconds is None else max(seconds, 0) * 1000):
                return None
            with _asking:
                if self.returncode is None:
                    self.returncode = _spawner().reap(self.pid)
                    os.close(self._watch)
        return self.returncode
