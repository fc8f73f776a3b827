"""Runs the program at a real terminal, with a person who answers its questions."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterable
from pathlib import Path

from tests.support.program import Program

COLUMNS = 100
PATIENCE_S = 60


def converse(program: Program, *arguments: str | Path, answers: Iterable[tuple[str, str]]) -> tuple[str, int]:
    """Run a command at a terminal, type each answer when its question appears, and return the output and exit code.

    An answer is typed only when its question is at the end of the output, because earlier input is discarded.
    """
    keyboard, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    words = [sys.executable, "-m", "paygw_batch", "--config", str(program.config), *map(str, arguments)]
    environ = {**os.environ, **program.environ, "TERM": "dumb"}
    process = subprocess.Popen(words, stdin=terminal, stdout=terminal, stderr=terminal, env=environ, cwd=program.home)
    os.close(terminal)
    shown, waiting = "", list(answers)
    try:
        while select.select([keyboard], [], [], PATIENCE_S)[0]:
            try:
                part = os.read(keyboard, 65_536).decode()
            except OSError:  # Linux reports EIO when the program has closed the terminal.
                break
            if not part:
                break
            shown += part.replace("\r\n", "\n")
            if waiting and waiting[0][0] in shown.rpartition("\n")[2]:
                os.write(keyboard, waiting.pop(0)[1].encode() + b"\n")
                shown += "\n"
        code = process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.wait()
        os.close(keyboard)
    assert not waiting, f"never asked: {waiting[0][0]!r} in {shown!r}"
    return shown, code
