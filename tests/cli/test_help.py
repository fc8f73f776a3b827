"""The help of every command is translated and has an example for each option, and shells complete commands."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.shell_completion import BashComplete

from paygw_batch.cli.help_texts import EXAMPLES, EXIT_CODES, SHEET_OPTIONS
from paygw_batch.cli.main import cli
from paygw_batch.show.summary import ExitCode
from tests.support.catalogue import find_english
from tests.support.program import Program, kenyan_rows


def iterate_commands(command: click.Command = cli, *words: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield words, command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            below = command.get_command(click.Context(command), name)
            assert below is not None
            yield from iterate_commands(below, *words, name)


EVERY = dict(iterate_commands())


def shown_options(command: click.Command) -> list[click.Option]:
    return [option for option in command.params if isinstance(option, click.Option) and not option.hidden]


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
    options = shown_options(EVERY[words])
    missing = [one.opts for one in options if not named & {*one.opts, *one.secondary_opts} and not shared & {*one.opts}]
    assert missing == []


@pytest.mark.parametrize(
    ("name", "line"), [(name, line) for name, examples in EXAMPLES.items() if name for line in examples.values()]
)
def test_every_help_example_parses(name: str, line: str) -> None:
    """The command parses its options and arguments, but is not run."""
    words, (_, *typed) = name.split(), shlex.split(line)
    assert typed[: len(words)] == words
    # The group's context names -h, and click keeps the first help option that it makes for a command.
    EVERY[tuple(words)].make_context(name, typed[len(words) :], parent=click.Context(cli, **cli.context_settings))


def test_help_documents_every_exit_code() -> None:
    assert set(EXIT_CODES) == {int(code) for code in ExitCode}


@pytest.mark.parametrize("name", ["submit", "collect"])
def test_help_shows_each_sheet_option_once_in_groups(program: Program, name: str) -> None:
    output = program.run(name, "--help").stdout.partition("Exit codes:")[0]
    options = shown_options(EVERY[name,])
    for option in options:
        assert len(re.findall(rf"^  {option.opts[0]}\b", output, re.MULTILINE)) == 1
    titles = re.findall(r"^([A-Z][a-z ]+):$", output, re.MULTILINE)
    assert titles == [*SHEET_OPTIONS, "Other options", "Examples"]
    assert {name for names in SHEET_OPTIONS.values() for name in names} == {str(option.name) for option in options}


COMPLETED = {"bash": "COMPREPLY", "zsh": "#compdef paygw-batch", "fish": "complete --no-files --command paygw-batch"}


def complete_in_bash(program: Program, *words: str) -> list[str]:
    """Request completions as bash does, by environment variables. The last word is incomplete."""
    asked = {"_PAYGW_BATCH_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(("paygw-batch", *words))}
    environ = {**os.environ, **program.environ, **asked, "COMP_CWORD": str(len(words))}
    code = "from paygw_batch.cli.start import main; main()"
    result = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert result.stderr == ""
    return result.stdout.splitlines()


@pytest.mark.parametrize("shell", COMPLETED)
def test_completion_prints_script_for_each_shell(program: Program, shell: str) -> None:
    result = program.run("completion", shell)
    assert (result.exit_code, result.stderr) == (0, "")
    assert all(part in result.stdout for part in (COMPLETED[shell], "_PAYGW_BATCH_COMPLETE"))
    script = program.json("completion", shell)["script"]
    assert script.strip() == result.stdout.strip()
    if shell == "bash":
        parsed = subprocess.run(
            ["/bin/bash", "--norc", "-n"], input=script, capture_output=True, text=True, check=False
        )
        assert (parsed.returncode, parsed.stderr) == (0, "")


def test_commands_and_options_are_completed(program: Program) -> None:
    assert complete_in_bash(program, "ver") == ["plain,verify"]
    assert "plain,--advice" in complete_in_bash(program, "find", "--ad")
    assert complete_in_bash(program, "completion", "f") == ["plain,fish"]
    assert complete_in_bash(program, "template", "k") == ["plain,KE"]


def test_completion_lists_newest_batches_first(program: Program) -> None:
    config = ["--config", str(program.config)]
    assert complete_in_bash(program, *config, "status", "") == ["file,"]
    sheets = [program.sheet(kenyan_rows(1, prefix=name, amount=name), f"{name}.csv") for name in ("1", "2")]
    batches = [program.json("submit", sheet)["batch"] for sheet in sheets]
    assert complete_in_bash(program, *config, "status", "") == [f"plain,{batch}" for batch in reversed(batches)]
    shell = BashComplete(cli, {}, "paygw-batch", "")  # in this process, because each start takes a second
    for command in ("resume", "retry", "resolve row", "resolve statement", "reconcile", "refresh"):
        completed = shell.get_completions([*config, *command.split()], "")
        assert [item.value for item in completed] == [*reversed(batches)]
    assert complete_in_bash(program, *config, "status", batches[0][:6]) == [f"plain,{batches[0]}"]
    assert complete_in_bash(program, *config, "status", "payroll.c") == ["file,payroll.c"]


def test_broken_configuration_silently_disables_completion(program: Program) -> None:
    program.config.write_text("not toml at all")
    assert complete_in_bash(program, "--config", str(program.config), "status", "") == ["file,"]
