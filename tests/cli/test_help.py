"""The help of every command has exit codes and an example for each option, in the reader's language."""

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from paygw_batch.cli.help_texts import EXAMPLES, EXIT_CODES, SHEET_OPTIONS
from paygw_batch.cli.main import cli
from paygw_batch.show.summary import ExitCode
from tests.support.catalogue import find_english
from tests.support.program import Program


def iterate_commands(command: click.Command = cli, *words: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield the name of every command and subcommand with the command itself."""
    yield words, command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            below = command.get_command(click.Context(command), name)
            assert below is not None
            yield from iterate_commands(below, *words, name)


EVERY = dict(iterate_commands())


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_every_help_page_lists_exit_codes(program: Program, words: tuple[str, ...]) -> None:
    result = program.run(*words, "--help")
    assert result.exit_code == 0
    table = result.stdout.partition("Exit codes:")[2]
    assert [int(code) for code in re.findall(r"^ +(\d+)  \S", table, re.MULTILINE)] == list(EXIT_CODES)


@pytest.mark.share(4)
@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_every_help_page_is_translated(program: Program, words: tuple[str, ...]) -> None:
    usage, *shown = program.run(*words, "--help", PAYGW_LANG="fr").stdout.splitlines()
    assert usage.startswith("Utilisation\u00a0: ")
    typed = re.compile(r"paygw-batch .*|^  [\w-]+ {2,}|\[[\w|-]+\]")
    sentences = [typed.sub("", line) for line in shown]
    assert find_english("\n".join(sentences)) == []
    assert find_english(" ".join(" ".join(sentences).split())) == []


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_every_option_has_example(words: tuple[str, ...]) -> None:
    named = {word.partition("=")[0] for line in EXAMPLES.get(" ".join(words), {}).values() for word in line.split()}
    shared = set[str]() if words == () else {name for option in cli.params for name in option.opts}
    options = [
        parameter for parameter in EVERY[words].params if isinstance(parameter, click.Option) and not parameter.hidden
    ]
    missing = [one.opts for one in options if not named & {*one.opts, *one.secondary_opts} and not shared & {*one.opts}]
    assert missing == []


@pytest.mark.parametrize(
    ("name", "line"), [(name, line) for name, examples in EXAMPLES.items() if name for line in examples.values()]
)
def test_every_help_example_parses(name: str, line: str) -> None:
    """The command parses its options and arguments, but is not run."""
    words = name.split()
    _, *typed = shlex.split(line)
    assert typed[: len(words)] == words
    EVERY[tuple(words)].make_context(name, typed[len(words) :])


def test_help_documents_every_exit_code() -> None:
    assert set(EXIT_CODES) == {int(code) for code in ExitCode}


@pytest.mark.parametrize("name", ["submit", "collect"])
def test_help_shows_each_sheet_option_once_in_groups(program: Program, name: str) -> None:
    output = program.run(name, "--help").stdout.partition("Exit codes:")[0]
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    options = [
        parameter for parameter in command.params if isinstance(parameter, click.Option) and not parameter.hidden
    ]
    for option in options:
        assert len(re.findall(rf"^  {option.opts[0]}\b", output, re.MULTILINE)) == 1
    titles = re.findall(r"^([A-Z][a-z ]+):$", output, re.MULTILINE)
    assert titles == [*SHEET_OPTIONS, "Other options", "Examples"]
    assert {name for names in SHEET_OPTIONS.values() for name in names} == {str(option.name) for option in options}
