"""Standard output or standard error on a full disk, or with a reader that has gone: the run and its exit code stand."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.program import Program, kenyan_rows, read_csv

FULL = Path("/dev/full")
REJECTED = "9001"

pytestmark = pytest.mark.skipif(not FULL.exists(), reason="the device that is always full is Linux's")


def run(program: Program, *arguments: str | Path, out: Path | None = None, err: Path | None = None) -> int:
    """Run as a process of its own, with standard output or standard error going to a file."""
    command = [sys.executable, "-m", "paygw_batch", "--config", program.config, *arguments]
    with (out or Path(os.devnull)).open("w") as output, (err or program.home / "err").open("w") as errors:
        return subprocess.run(
            command, env={**os.environ, **program.environ}, cwd=program.home, stdout=output, stderr=errors, check=False
        ).returncode


@pytest.mark.share(2)
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_run_with_unwritable_output_finishes_with_warning(program: Program, options: tuple[str, ...]) -> None:
    sheet = program.sheet(kenyan_rows(20))
    assert run(program, *options, "submit", sheet, out=FULL) == 2
    told = (program.home / "err").read_text()
    assert "20 paid." in told
    assert "Error: standard output could not be written: no space left on device." in told
    assert "Trace" not in told
    assert [line["state"] for line in read_csv(program.home / "payroll.reconciliation.csv")] == ["paid"] * 20


def test_unwritable_output_keeps_exit_code_of_rejections(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(2, amount=REJECTED))
    assert run(program, "submit", sheet, out=FULL) == 4
    assert "2 rejected." in (program.home / "err").read_text()


def test_query_with_unwritable_output_fails(program: Program) -> None:
    assert run(program, "submit", program.sheet(kenyan_rows(1))) == 0
    assert run(program, "status", out=FULL) == 2
    assert run(program, "--json", "verify", out=FULL) == 2


@pytest.mark.long
def test_error_keeps_code_with_both_streams_full(program: Program) -> None:
    sheet = program.sheet(["KE,PAY-1,many,KES,Jane,254712345678,+254712345678"])
    assert run(program, "--json", "submit", sheet, out=FULL, err=FULL) == 3
    assert run(program, "--json", "submit", "nowhere.csv", out=FULL, err=FULL) == 3


@pytest.mark.long
def test_full_standard_error_does_not_stop_run(program: Program) -> None:
    assert run(program, "submit", program.sheet(kenyan_rows(20)), err=FULL) == 0
    assert len(program.record()) == 20


def test_closed_output_pipe_does_not_stop_run(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(5))
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "paygw_batch", "--config", program.config, "submit", sheet],
        env={**os.environ, **program.environ},
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert done.returncode == 2
    assert "standard output could not be written: broken pipe." in done.stderr
    assert len(program.record()) == 5
