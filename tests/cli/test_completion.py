"""Shell completion of commands, options, batches and countries, and suggestions for mistyped commands."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from paygw_batch.cli.main import cli
from tests.support.program import Program, kenyan_rows

COMPLETED = {"bash": "COMPREPLY", "zsh": "#compdef paygw-batch", "fish": "complete --no-files --command paygw-batch"}


def complete_in_bash(program: Program, *words: str) -> list[str]:
    """Request completions as bash does, by environment variables. The last word is incomplete."""
    asked = {"_PAYGW_BATCH_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(("paygw-batch", *words))}
    environ = {**os.environ, **program.environ, **asked, "COMP_CWORD": str(len(words))}
    code = "from paygw_batch.cli.start import main; main()"
    result = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert result.stderr == ""
    return result.stdout.splitlines()


def complete_in_process(*words: str) -> list[str]:
    """Request completions in this process, because each start of the program takes a second."""
    return [item.value for item in BashComplete(cli, {}, "paygw-batch", "").get_completions([*words], "")]


@pytest.mark.parametrize("shell", COMPLETED)
def test_completion_prints_script_for_each_shell(program: Program, shell: str) -> None:
    result = program.run("completion", shell)
    assert (result.exit_code, result.stderr) == (0, "")
    assert COMPLETED[shell] in result.stdout
    assert "_PAYGW_BATCH_COMPLETE" in result.stdout
    assert program.json("completion", shell)["script"].strip() == result.stdout.strip()


def test_unknown_shell_is_usage_error(program: Program) -> None:
    assert program.run("completion", "csh").exit_code == 2


def test_bash_accepts_completion_script(program: Program) -> None:
    script = program.run("completion", "bash").stdout
    result = subprocess.run(["/bin/bash", "--norc", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_commands_and_options_are_completed(program: Program) -> None:
    assert complete_in_bash(program, "ver") == ["plain,verify"]
    assert "plain,--advice" in complete_in_bash(program, "find", "--ad")
    assert complete_in_bash(program, "completion", "f") == ["plain,fish"]


def test_batches_complete_newest_first_without_files(program: Program) -> None:
    config = ["--config", str(program.config)]
    assert complete_in_bash(program, *config, "status", "") == ["file,"]
    sheets = [
        program.sheet(kenyan_rows(1, prefix=name, amount=f"{n}00"), name) for n, name in ((1, "a.csv"), (2, "b.csv"))
    ]
    batches = [program.json("submit", sheet)["batch"] for sheet in sheets]
    assert complete_in_bash(program, *config, "status", "") == [f"plain,{batch}" for batch in reversed(batches)]
    for command in ("resume", "retry", "resolve row", "resolve statement", "reconcile", "refresh"):
        assert complete_in_process(*config, *command.split()) == [*reversed(batches)]
    assert complete_in_bash(program, *config, "status", batches[0][:6]) == [f"plain,{batches[0]}"]
    assert complete_in_bash(program, *config, "status", "payroll.c") == ["file,payroll.c"]


@pytest.mark.long
def test_countries_are_completed_in_any_case(program: Program) -> None:
    assert complete_in_bash(program, "template", "k") == ["plain,KE"]
    assert complete_in_bash(program, "init", "--country", "Z") == ["plain,ZA", "plain,ZM"]


def test_broken_configuration_silently_disables_completion(program: Program, tmp_path: Path) -> None:
    program.config.write_text("not toml at all")
    assert complete_in_bash(program, "--config", str(tmp_path / "paygw.toml"), "status", "") == ["file,"]


@pytest.mark.parametrize(("typed", "meant"), [("sumbit", "submit"), ("verfy", "verify"), ("run_folder", "run-folder")])
def test_mistyped_command_suggests_nearest(program: Program, typed: str, meant: str) -> None:
    result = program.run(typed)
    assert result.exit_code == 2
    assert f"Did you mean '{meant}'?" in result.stderr


def test_mistyped_option_or_subcommand_suggests_nearest(program: Program) -> None:
    assert "--dry-run" in program.run("submit", "x.csv", "--drry-run").stderr
    assert "'new'" in program.run("journal", "nwe").stderr
