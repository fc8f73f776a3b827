"""A run that stands still while something else is tried: however slow the machine, it cannot have ended meanwhile."""

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cli.program import Program


def wait_for_first_payment(program: Program, process: "subprocess.Popen[str]", prefix: str = "") -> None:
    """Return when the sandbox has taken an order whose id starts with `prefix`, or fail when the run has ended."""
    while not any(line["client_orderid"].startswith(prefix) for line in program.record()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@contextmanager
def stopped(process: "subprocess.Popen[str] | subprocess.Popen[bytes]") -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)
