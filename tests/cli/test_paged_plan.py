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


def page_through(program: Program, key: bytes) -> tuple[str, int]:
    """Approve the plan at a terminal, pressing the key whenever one is asked for. Return the output and exit code."""
    keyboard, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in {"LINES", "COLUMNS"}}
    approve = ("approve", plan_file(program), "--key", program.home / "cleo.pem")
    process = subprocess.Popen(
        [sys.executable, "-m", "paygw_batch", "--config", program.config, *approve],
        env={**inherited, **program.environ, "TERM": "xterm"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        cwd=program.home,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 (its keyboard can interrupt it then)
    )
    os.close(terminal)
    shown, pressed, waits = b"", 0, 0
    try:
        while waits < PATIENCE_S:
            ready, _, _ = select.select([keyboard], [], [], 1)
            waits = 0 if ready else waits + 1
            try:
                part = os.read(keyboard, 65_536) if ready else b""
            except OSError:  # Linux reports EIO when the program has closed the terminal.
                break
            shown += part
            asked = shown.count(MORE)
            # Repeated after a while, because the program discards a key that is pressed too early.
            if asked > pressed or (asked and not ready and b"\n" not in shown.rpartition(MORE)[2]):
                os.write(keyboard, key)
                pressed = asked
        code = process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.wait()
        os.close(keyboard)
    return shown.decode().replace("\r\n", "\n"), code


def line_count(screen: str) -> int:
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen).strip("\n").split("\n")
    return sum(-(-max(1, len(line)) // COLUMNS) for line in lines)


@pytest.fixture
def planned(program: Program) -> Program:
    program.config.write_text(sandbox_toml() + policy(program.home).replace('KES = "1000"', 'KES = "100000000"'))
    assert program.json("submit", program.sheet(kenyan_rows(2), "october.csv"))["exit_code"] == 0
    ghosts = [f"KE,NEW-{n},{2000 + n},KES,Ghost Number{n} Wanjiku Mwangi,0712345{n:03},0712345{n:03}" for n in GHOSTS]
    sheet = program.sheet(ghosts)
    assert program.json("plan", sheet, "--out", plan_file(program), "--key", program.home / "ada.pem")["exit_code"] == 0
    return program


def test_approver_sees_every_difference_page_by_page(planned: Program) -> None:
    shown, code = page_through(planned, b" ")
    screens = shown.split(MORE.decode())
    assert code == 0, shown
    assert len(screens) > len(GHOSTS) // LINES
    assert all(line_count(screen) <= LINES for screen in screens[:-1]), [line_count(screen) for screen in screens]
    ghosts = re.findall(r"Ghost Number(\d+) ", "".join(screens))
    assert ghosts[: len(GHOSTS)] == [str(n) for n in reversed(GHOSTS)]  # new people, the greatest amount first
    assert sorted(ghosts[len(GHOSTS) :]) == sorted(str(n) for n in GHOSTS)  # everyone
    assert ("Check this first" in screens[0], "Approved by cleo" in screens[-1]) == (True, True)


@pytest.mark.parametrize(
    "key", [pytest.param(b"\x03", id="Ctrl-C"), pytest.param(b"\x04", id="Ctrl-D", marks=pytest.mark.long)]
)
def test_quitting_pager_approves_nothing(planned: Program, key: bytes) -> None:
    before = plan_file(planned).read_bytes()
    shown, code = page_through(planned, key)
    assert shown.count(MORE.decode()) == 1
    assert code in {128 + signal.SIGINT, -signal.SIGINT}
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
