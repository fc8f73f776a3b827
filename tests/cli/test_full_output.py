"""Output to a full disk or a closed pipe never changes the run or its exit code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.program import Program, kenyan_rows, read_csv

FULL = Path("/dev/full")
REJECTED = "9001"

pytestmark = pytest.mark.skipif(not FULL.exists(), reason="the device that is always full is Linux's")


def run_with_output(program: Program, *arguments: str | Path, out: Path | None = None, err: Path | None = None) -> int:
    """Run a command as a process, with standard output or standard error redirected to a file."""
    command = [sys.executable, "-m", "paygw_batch", "--config", program.config, *arguments]
    with (out or Path(os.devnull)).open("w") as output, (err or program.home / "err").open("w") as errors:
        return subprocess.run(
            command, env={**os.environ, **program.environ}, cwd=program.home, stdout=output, stderr=errors, check=False
        ).returncode


@pytest.mark.share(2)
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_unwritable_output_does_not_stop_run(program: Program, options: tuple[str, ...]) -> None:
    sheet = program.sheet(kenyan_rows(20))
    assert run_with_output(program, *options, "submit", sheet, out=FULL) == 2
    text = (program.home / "err").read_text()
    assert "20 paid." in text
    assert "Error: standard output could not be written: no space left on device." in text
    assert "Trace" not in text
    assert [line["state"] for line in read_csv(program.home / "payroll.reconciliation.csv")] == ["paid"] * 20


def test_unwritable_output_keeps_other_exit_codes(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(2, amount=REJECTED))
    assert run_with_output(program, "submit", sheet, out=FULL) == 4
    assert "2 rejected." in (program.home / "err").read_text()


def test_query_with_unwritable_output_fails(program: Program) -> None:
    assert program.run("submit", program.sheet(kenyan_rows(1))).exit_code == 0
    assert run_with_output(program, "status", out=FULL) == 2
    assert run_with_output(program, "--json", "verify", out=FULL) == 2


@pytest.mark.long
def test_failed_command_keeps_code_without_streams(program: Program) -> None:
    sheet = program.sheet(["KE,PAY-1,many,KES,Jane,254712345678,+254712345678"])
    assert run_with_output(program, "--json", "submit", sheet, out=FULL, err=FULL) == 3
    assert run_with_output(program, "--json", "submit", "nowhere.csv", out=FULL, err=FULL) == 3


@pytest.mark.long
def test_full_standard_error_does_not_stop_run(program: Program) -> None:
    assert run_with_output(program, "submit", program.sheet(kenyan_rows(20)), err=FULL) == 0
    assert len(program.record()) == 20


def test_closed_output_pipe_does_not_stop_run(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(5))
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(
        [sys.executable, "-m", "paygw_batch", "--config", program.config, "submit", sheet],
        env={**os.environ, **program.environ},
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert result.returncode == 2
    assert "standard output could not be written: broken pipe." in result.stderr
    assert len(program.record()) == 5
