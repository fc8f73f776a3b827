"""The help of every command has the exit codes and an example for each option, in the language of its reader."""

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from paygw_batch.cli.help_texts import EXAMPLES, EXIT_CODES, SHEET_OPTIONS
from paygw_batch.cli.main import cli
from paygw_batch.show.summary import ExitCode
from tests.support.catalogue import english_in
from tests.support.program import Program


def every_command(command: click.Command = cli, *words: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield the words of every command with the command, those below others too."""
    yield words, command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            below = command.get_command(click.Context(command), name)
            assert below is not None
            yield from every_command(below, *words, name)


EVERY = dict(every_command())


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_every_help_page_lists_exit_codes(program: Program, words: tuple[str, ...]) -> None:
    result = program.run(*words, "--help")
    assert result.exit_code == 0
    table = result.stdout.partition("Exit codes:")[2]
    assert [int(code) for code in re.findall(r"^ +(\d+)  \S", table, re.MULTILINE)] == list(EXIT_CODES)


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_every_help_page_is_translated(program: Program, words: tuple[str, ...]) -> None:
    usage, *shown = program.run(*words, "--help", PAYGW_LANG="fr").stdout.splitlines()
    assert usage.startswith("Utilisation\u00a0: ")
    typed = re.compile(r"paygw-batch .*|^  [\w-]+ {2,}|\[[\w|-]+\]")
    sentences = [typed.sub("", line) for line in shown]
    assert english_in("\n".join(sentences)) == []
    assert english_in(" ".join(" ".join(sentences).split())) == []


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_every_option_has_an_example(words: tuple[str, ...]) -> None:
    named = {word.partition("=")[0] for line in EXAMPLES.get(" ".join(words), {}).values() for word in line.split()}
    shared = set[str]() if words == () else {name for option in cli.params for name in option.opts}
    options = [one for one in EVERY[words].params if isinstance(one, click.Option) and not one.hidden]
    missing = [one.opts for one in options if not named & {*one.opts, *one.secondary_opts} and not shared & {*one.opts}]
    assert missing == []


@pytest.mark.parametrize(
    ("name", "line"), [(name, line) for name, examples in EXAMPLES.items() if name for line in examples.values()]
)
def test_every_help_example_parses(name: str, line: str) -> None:
    """The command reads its options and arguments; it is not carried out."""
    words = name.split()
    _, *typed = shlex.split(line)
    assert typed[: len(words)] == words
    EVERY[tuple(words)].make_context(name, typed[len(words) :])


def test_help_documents_every_exit_code() -> None:
    assert set(EXIT_CODES) == {int(code) for code in ExitCode}


@pytest.mark.parametrize("name", ["submit", "collect"])
def test_help_shows_each_sheet_option_once_in_groups(program: Program, name: str) -> None:
    shown = program.run(name, "--help").stdout.partition("Exit codes:")[0]
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    for option in options:
        assert len(re.findall(rf"^  {option.opts[0]}\b", shown, re.MULTILINE)) == 1
    titles = re.findall(r"^([A-Z][a-z ]+):$", shown, re.MULTILINE)
    assert titles == [*SHEET_OPTIONS, "Further options", "Examples"]
    assert {name for names in SHEET_OPTIONS.values() for name in names} == {str(option.name) for option in options}
