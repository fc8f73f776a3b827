"""Output on a terminal: lines of 80 columns, separators in amounts, a progress bar, and a full disk behind it."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from paygw_batch.cli.main import cli
from paygw_batch.cli.screen.progress_bar import show_bar
from paygw_batch.cli.screen.screen import column_widths, wrap_line
from tests.cli.conversing import converse
from tests.support.program import Program, kenyan_rows, read_csv

LONG = "payroll-november-2026-of-the-northern-branch.csv"
LAYOUT = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
PLAIN = re.compile(r"(?<![\d.,])\d{4,}\.\d{2}\b")
FULL = Path("/dev/full")


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("one two three", 80, ["one two three"]),
        ("one two three", 8, ["one two", "three"]),
        ("- one two three", 9, ["- one two", "  three"]),
        ("  one two three", 9, ["  one two", "  three"]),
        ("run `paygw-batch status 1` now", 20, ["run", "`paygw-batch status 1`", "now"]),
        ("Pay: paygw-batch submit payroll.csv", 20, ["Pay:", "paygw-batch submit payroll.csv"]),
        ("a-word-that-is-far-too-long is", 10, ["a-word-that-is-far-too-long", "is"]),
        ("给 付款 付款", 6, ["给", "付款", "付款"]),
    ],
)
def test_wrapping_keeps_words_and_commands_whole(text: str, width: int, lines: list[str]) -> None:
    assert wrap_line(text, width).split("\n") == lines


def test_wide_columns_share_spare_width() -> None:
    columns = [["id", "aaaa"], ["one two three", "four"]]
    assert column_widths(columns, [True, False], 40) == [4, 13]
    assert column_widths(columns, [True, False], 11) == [4, 7]
    assert column_widths(columns, [True, False], 8) is None


@pytest.mark.share(2)
@pytest.mark.parametrize("language", ["en", "fr"])
def test_terminal_output_never_breaks_words(program: Program, monkeypatch: pytest.MonkeyPatch, language: str) -> None:
    monkeypatch.setattr("tests.cli.conversing.COLUMNS", 80)
    sheet = program.sheet([*kenyan_rows(1), *kenyan_rows(1, amount="9007", prefix="LOST")], LONG)
    program.run("submit", sheet)
    for command in (("status",), ("status", sheet, "--history"), ("config", "show"), ("verify",), ("find", "Jane")):
        shown, _ = converse(program, "--lang", language, *command, answers=[])
        lines = LAYOUT.sub("", shown).splitlines()
        # A line may be longer only if it consists of one unbreakable piece: a command, a path or a name.
        assert [line for line in lines if len(line) > 80 and " " in line.strip() and "paygw-batch" not in line] == []
        assert command != ("status",) or LONG in shown
        assert command != ("config", "show") or "gateway.private_key_passphrase_file" in shown


def test_amounts_have_separators_on_terminal_only(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(program.home)
    assert program.run("submit", program.sheet(kenyan_rows(3, amount="123456.50"))).exit_code == 0
    program.sheet(kenyan_rows(2, amount="222222.50", prefix="MORE"), name="more.csv")
    Path("statement.csv").write_text("order_id,amount,currency,status\nPAY-1,99999.00,KES,approved\n")
    for words, shown in (
        ("submit payroll.csv", "370,369.50"),
        ("submit more.csv --dry-run", "(KES 444,445.00)"),
        ("submit payroll.csv --expect-total KES=1000000", "You expected KES 1,000,000"),
        ("validate payroll.csv", "370,369.50"),
        ("status", "370,369.50"),
        ("status payroll.csv", "370,369.50"),
        ("reconcile payroll.csv --out again.csv", "370,369.50"),
        ("find Wanjiku", "KES 123,456.50"),
        ("resolve statement payroll.csv statement.csv", "but we sent KES 123,456.50"),
    ):
        output = " ".join(program.run(*words.split()).output.split())
        assert (shown in output, PLAIN.search(output)) == (True, None), output
        assert not re.search(r'"\d{1,3},\d{3}', json.dumps(program.json(*words.split())["totals"]))
    assert {line["amount"] for line in read_csv("payroll.reconciliation.csv")} == {"123456.50"}


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_bar_appears_only_on_terminal(is_terminal: bool) -> None:
    written = io.StringIO()
    with show_bar(Console(file=written, force_terminal=is_terminal, width=100), "Checking") as progress:
        progress(500, 2_000)
    text = written.getvalue()
    assert ("Checking" in text and "500/2000" in text) is is_terminal
    assert bool(text) is is_terminal


pytestmark = pytest.mark.skipif(not FULL.exists(), reason="the device that is always full is Linux's")


def run_with_output(program: Program, *arguments: str | Path, out: Path | None = None, err: Path | None = None) -> int:
    """Run a command as a process, with standard output or standard error redirected to a file."""
    command = [sys.executable, "-m", "paygw_batch", "--config", program.config, *arguments]
    environ = {**os.environ, **program.environ}
    with (out or Path(os.devnull)).open("w") as output, (err or program.home / "err").open("w") as errors:
        return subprocess.call(command, env=environ, cwd=program.home, stdout=output, stderr=errors)


@pytest.mark.share(2)
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_run_with_unwritable_output_finishes_with_warning(program: Program, options: tuple[str, ...]) -> None:
    sheet = program.sheet(kenyan_rows(20))
    assert run_with_output(program, *options, "submit", sheet, out=FULL) == 2
    text = (program.home / "err").read_text()
    said = ("20 paid.", "Error: cannot write to standard output: no space left on device.", "Trace")
    assert [part in text for part in said] == [True, True, False]
    assert [line["state"] for line in read_csv(program.home / "payroll.reconciliation.csv")] == ["paid"] * 20


def test_unwritable_output_fails_query_and_keeps_rejections(program: Program) -> None:
    assert program.run("submit", program.sheet(kenyan_rows(1))).exit_code == 0
    assert run_with_output(program, "status", out=FULL) == 2
    assert run_with_output(program, "--json", "verify", out=FULL) == 2
    sheet = program.sheet(kenyan_rows(2, amount="9001", prefix="NO"), "no.csv")
    assert run_with_output(program, "submit", sheet, out=FULL) == 4
    assert "2 rejected." in (program.home / "err").read_text()


@pytest.mark.parametrize("words", ["submit --help", "--help", "--version", "completion bash"])
def test_unwritable_help_is_error_without_trace(program: Program, words: str) -> None:
    assert run_with_output(program, *words.split(), out=FULL) == 2
    said = "Error: cannot write to standard output: no space left on device.\n"
    assert (program.home / "err").read_text() == said
    assert program.json(*words.split())["exit_code"] == 0


@pytest.mark.parametrize("no_color", ["", "1"])
def test_no_color_variable_leaves_errors_plain(program: Program, no_color: str) -> None:
    environ = {**program.environ, "NO_COLOR": no_color}
    result = CliRunner().invoke(cli, ["--config", str(program.config), "status", "none"], env=environ, color=True)
    assert ("\x1b" in result.stderr, "Error: " in result.stderr) == (not no_color, True)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_stop_run(program: Program, closed: str) -> None:
    words = (sys.executable, "-m", "paygw_batch", "--config", program.config, "submit", program.sheet(kenyan_rows(1)))
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *map(str, words)]
    environ = {**os.environ, **program.environ}
    result = subprocess.run(shell, env=environ, cwd=program.home, capture_output=True, text=True, check=False)
    assert (result.returncode, len(program.record()), "Trace" in result.stderr) == (0, 1, False)


@pytest.mark.long
def test_full_output_streams_keep_exit_code_of_error(program: Program) -> None:
    sheet = program.sheet(["KE,PAY-1,many,KES,Jane,254712345678,+254712345678"])
    for path in (sheet, "nowhere.csv"):
        assert run_with_output(program, "--json", "submit", path, out=FULL, err=FULL) == 3


@pytest.mark.long
def test_unwritable_stderr_does_not_stop_run(program: Program) -> None:
    assert run_with_output(program, "submit", program.sheet(kenyan_rows(20)), err=FULL) == 0
    assert len(program.record()) == 20


def test_closed_output_pipe_does_not_stop_run(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(5))
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "paygw_batch", "--config", str(program.config), "submit", str(sheet)]
    environ, pipe = {**os.environ, **program.environ}, subprocess.PIPE
    result = subprocess.run(command, env=environ, stdout=writer, stderr=pipe, text=True, check=False)
    os.close(writer)
    assert (result.returncode, len(program.record())) == (2, 5)
    assert "cannot write to standard output: broken pipe." in result.stderr
