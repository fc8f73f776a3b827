"""The help of every command tells the exit codes, and that of `submit` has its options in groups, each once."""

import re

import click
import pytest

from paygw_batch.cli.help_texts import EXIT_CODES, SHEET_OPTIONS
from paygw_batch.cli.main import COMMANDS, cli
from paygw_batch.report.summary import ExitCode
from tests.cli.program import Program

BELOW = [("journal", "new"), ("journal", "adopt")]


@pytest.mark.parametrize("words", [(), *((name,) for name in COMMANDS), *BELOW], ids=" ".join)
def test_every_help_tells_the_exit_codes(program: Program, words: tuple[str, ...]) -> None:
    result = program.run(*words, "--help")
    assert result.exit_code == 0
    table = result.stdout.partition("Exit codes:")[2]
    assert [int(code) for code in re.findall(r"^ +(\d+)  \S", table, re.MULTILINE)] == list(EXIT_CODES)


def test_every_exit_code_is_told() -> None:
    assert set(EXIT_CODES) == {int(code) for code in ExitCode}


@pytest.mark.parametrize("name", ["submit", "collect"])
def test_the_options_of_a_sheet_are_in_groups_and_each_is_there_once(program: Program, name: str) -> None:
    shown = program.run(name, "--help").stdout.partition("Exit codes:")[0]
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    options = [one for one in command.params if isinstance(one, click.Option)]
    for option in options:
        assert len(re.findall(rf"^  {option.opts[0]}\b", shown, re.MULTILINE)) == 1
    titles = re.findall(r"^([A-Z][a-z ]+):$", shown, re.MULTILINE)
    assert titles == [*SHEET_OPTIONS, "Further options"]
    assert {name for names in SHEET_OPTIONS.values() for name in names} == {str(option.name) for option in options}
