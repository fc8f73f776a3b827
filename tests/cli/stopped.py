"""Stops a run at a known point, so that it cannot end while a test tries something else."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.patience import PATIENCE_S, wait_until
from tests.support.program import ROOT, Program


def wait_for_first_payment(program: Program, process: "subprocess.Popen[str]", prefix: str = "") -> None:
    """Wait until the sandbox has accepted an order whose id starts with `prefix`. Fail if the run has ended."""
    while not any(line["client_orderid"].startswith(prefix) for line in program.record()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@contextmanager
def stop_process(process: "subprocess.Popen[str] | subprocess.Popen[bytes]") -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def wait_for_record(program: Program, lines: int, process: "subprocess.Popen[str]") -> None:
    wait_until(lambda: len(program.record()) >= lines or process.poll() is not None, look_every_s=0.005)


def paid_orders(program: Program) -> Counter[str]:
    return Counter(line["client_orderid"] for line in program.record() if line["committed"] == "yes")


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


def run_with_signal(
    program: Program, moment: str, number: int, *arguments: str | Path
) -> "subprocess.CompletedProcess[str]":
    """Run the program, which sends itself a signal at a moment."""
    words = ("--config", str(program.config), *map(str, arguments))
    start = START.format(root=str(ROOT), moment=moment, number=int(number), arguments=words)
    command, environ = [sys.executable, "-c", start], {**os.environ, **program.environ}
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": PATIENCE_S}
    return subprocess.run(command, env=environ, cwd=program.home, check=False, **options)
