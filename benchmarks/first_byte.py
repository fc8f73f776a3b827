"""Measures how long a person waits between Enter and the first byte of the first payout."""

import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.commands import ROOT, CommandResult, Office, memory_mib
from paygw_batch.countries.data import config_dir

_LONGEST_S = 3_600.0


def measure_first_byte(machine: Office, sheet: Path) -> CommandResult:
    """Run `submit` against a listener that never answers, kill it at its first byte, and return its cost.

    Raises `RuntimeError` if the command ends before.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gateway = replace(machine.gateway, base_url=f"http://localhost:{listener.getsockname()[1]}")
        before = ["--config", str(config_dir() / "sandbox.toml"), "--journal", str(machine.journal), "--quiet"]
        command = [sys.executable, "-m", "paygw_batch", *before, "submit", str(sheet)]
        environ = replace(machine, gateway=gateway).environment()
        # The journal was created for another port of this machine, so a person confirms that it is the same gateway.
        adopt = [sys.executable, "-m", "paygw_batch", *before, "journal", "adopt", "--yes"]
        subprocess.run(adopt, cwd=ROOT, env=environ, stdout=subprocess.DEVNULL, check=True)
        started_s = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.DEVNULL)
        try:
            _wait_for_byte(listener, process)
            elapsed_s = time.perf_counter() - started_s
            memory = memory_mib(process.pid)
        finally:
            process.kill()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
    peak_mib = usage.ru_maxrss / 1024 if memory is None else memory[1]
    return CommandResult(elapsed_s, usage.ru_utime + usage.ru_stime, peak_mib)


def _wait_for_byte(listener: socket.socket, process: subprocess.Popen[bytes]) -> None:
    listener.settimeout(0.5)
    deadline_s = time.monotonic() + _LONGEST_S
    while process.poll() is None and time.monotonic() < deadline_s:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        with connection:
            connection.settimeout(_LONGEST_S)
            if connection.recv(1):
                return
    raise RuntimeError("submit ended before its first byte")
