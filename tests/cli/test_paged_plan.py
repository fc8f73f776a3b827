"""An approver at a real terminal sees every difference, one screenful at a time."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from rich.console import ConsoleDimensions

from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.screen.screen import Screen
from tests.support.approving import plan_file, policy
from tests.support.patience import PATIENCE_S
from tests.support.program import Program, kenyan_rows, sandbox_toml

LINES, COLUMNS = 24, 80
MORE = b"-- more: press any key --"
GHOSTS = range(100, 160)


@dataclass
class Terminal:
    """A terminal with a person who presses a key whenever the program asks for one."""

    process: "subprocess.Popen[bytes]"
    keyboard: int

    def shown(self, key: bytes) -> str:
        shown, pressed, waits = b"", 0, 0
        while waits < PATIENCE_S:
            ready, _, _ = select.select([self.keyboard], [], [], 1)
            waits = 0 if ready else waits + 1
            try:
                part = os.read(self.keyboard, 65_536) if ready else b""
            except OSError:  # Linux reports EIO when the program has closed the terminal.
                return shown.decode().replace("\r\n", "\n")
            if ready and not part:
                return shown.decode().replace("\r\n", "\n")
            shown += part
            asked = shown.count(MORE)
            # Repeated after a while, because the program discards a key that is pressed too early.
            if asked > pressed or (asked and not ready and b"\n" not in shown.rpartition(MORE)[2]):
                os.write(self.keyboard, key)
                pressed = asked
        raise AssertionError(f"nothing more is shown: {shown!r}")


@contextmanager
def start_in_terminal(program: Program, *arguments: str | Path) -> Iterator[Terminal]:
    keyboard, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in {"LINES", "COLUMNS"}}
    process = subprocess.Popen(
        [sys.executable, "-m", "paygw_batch", "--config", program.config, *arguments],
        env={**inherited, **program.environ, "TERM": "xterm"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        cwd=program.home,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 (its keyboard can interrupt it then)
    )
    os.close(terminal)
    try:
        yield Terminal(process, keyboard)
    finally:
        process.kill()
        process.wait()
        os.close(keyboard)


def read_screens(program: Program, *arguments: str | Path) -> list[str]:
    with start_in_terminal(program, *arguments) as terminal:
        screens = terminal.shown(b" ").split(MORE.decode())
        assert terminal.process.wait(PATIENCE_S) == 0, screens
    return screens


def line_count(screen: str) -> int:
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen).strip("\n").split("\n")
    return sum(-(-max(1, len(line)) // COLUMNS) for line in lines)


@pytest.fixture
def planned(program: Program) -> Program:
    """Plan 60 people who were never paid before."""
    program.config.write_text(sandbox_toml() + policy(program.home).replace('KES = "1000"', 'KES = "100000000"'))
    assert program.json("submit", program.sheet(kenyan_rows(2), "october.csv"))["exit_code"] == 0
    ghosts = [f"KE,NEW-{n},{2000 + n},KES,Ghost Number{n} Wanjiku Mwangi,0712345{n:03},0712345{n:03}" for n in GHOSTS]
    sheet = program.sheet(ghosts)
    assert program.json("plan", sheet, "--out", plan_file(program), "--key", program.home / "ada.pem")["exit_code"] == 0
    return program


def test_approver_sees_every_difference_page_by_page(planned: Program) -> None:
    screens = read_screens(planned, "approve", plan_file(planned), "--key", planned.home / "cleo.pem")
    assert len(screens) > len(GHOSTS) // LINES
    assert all(line_count(screen) <= LINES for screen in screens[:-1]), [line_count(screen) for screen in screens]
    ghosts = re.findall(r"Ghost Number(\d+) ", "".join(screens))
    assert ghosts[: len(GHOSTS)] == [str(n) for n in reversed(GHOSTS)]  # new people, the greatest amount first
    assert sorted(ghosts[len(GHOSTS) :]) == sorted(str(n) for n in GHOSTS)  # everyone
    assert "Check this first" in screens[0]
    assert "Approved by cleo" in screens[-1]


@pytest.mark.parametrize(
    "key", [pytest.param(b"\x03", id="Ctrl-C"), pytest.param(b"\x04", id="Ctrl-D", marks=pytest.mark.long)]
)
def test_quitting_pager_approves_nothing(planned: Program, key: bytes) -> None:
    before = plan_file(planned).read_bytes()
    with start_in_terminal(planned, "approve", plan_file(planned), "--key", planned.home / "cleo.pem") as terminal:
        assert terminal.shown(key).count(MORE.decode()) == 1
        assert terminal.process.wait(PATIENCE_S) in {128 + signal.SIGINT, -signal.SIGINT}
    assert plan_file(planned).read_bytes() == before


def test_paging_counts_width_of_escaped_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name full of escape sequences must not push earlier lines off the screen."""
    screen = Screen(Invocation(config=None, journal=None, as_json=False, quiet=False, verbose=False))
    pauses: list[str] = []
    monkeypatch.setattr(screen, "can_ask", lambda: True)
    monkeypatch.setattr(click, "getchar", lambda: pauses.append(capsys.readouterr().out))
    screen.out.size = ConsoleDimensions(COLUMNS, LINES)
    screen.print_pages([f"{n} " + "\x1b" * 38 for n in range(30)])
    assert all(line_count(pause.removesuffix(MORE.decode())) < LINES for pause in pauses)
    assert len(pauses) == 2
