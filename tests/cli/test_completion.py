"""A shell completes commands, options, batches and countries; a mistyped command is told the nearest."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from paygw_batch.cli.main import cli
from tests.support.program import Program, kenyan_rows

COMPLETED = {"bash": "COMPREPLY", "zsh": "#compdef paygw-batch", "fish": "complete --no-files --command paygw-batch"}


def completed(program: Program, *words: str) -> list[str]:
    """Ask as bash does, by the environment; the last word is the one that is begun."""
    asked = {"_PAYGW_BATCH_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(("paygw-batch", *words))}
    environ = {**os.environ, **program.environ, **asked, "COMP_CWORD": str(len(words))}
    code = "from paygw_batch.cli.start import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.splitlines()


def completed_here(*words: str) -> list[str]:
    """Ask in this process what comes next: each start costs a second."""
    return [item.value for item in BashComplete(cli, {}, "paygw-batch", "").get_completions([*words], "")]


@pytest.mark.parametrize("shell", COMPLETED)
def test_the_script_of_each_shell_is_printed(program: Program, shell: str) -> None:
    result = program.run("completion", shell)
    assert (result.exit_code, result.stderr) == (0, "")
    assert COMPLETED[shell] in result.stdout
    assert "_PAYGW_BATCH_COMPLETE" in result.stdout
    assert program.json("completion", shell)["script"].strip() == result.stdout.strip()


def test_an_unknown_shell_is_a_usage_error(program: Program) -> None:
    assert program.run("completion", "csh").exit_code == 2


def test_bash_accepts_completion_script(program: Program) -> None:
    script = program.run("completion", "bash").stdout
    done = subprocess.run(["/bin/bash", "--norc", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_commands_and_options_are_completed(program: Program) -> None:
    assert completed(program, "ver") == ["plain,verify"]
    assert "plain,--advice" in completed(program, "find", "--ad")
    assert completed(program, "completion", "f") == ["plain,fish"]


def test_batches_complete_newest_first_without_files(program: Program) -> None:
    config = ["--config", str(program.config)]
    assert completed(program, *config, "status", "") == ["file,"]
    sheets = [
        program.sheet(kenyan_rows(1, prefix=name, amount=f"{n}00"), name) for n, name in ((1, "a.csv"), (2, "b.csv"))
    ]
    batches = [program.json("submit", sheet)["batch"] for sheet in sheets]
    assert completed(program, *config, "status", "") == [f"plain,{batch}" for batch in reversed(batches)]
    for command in ("resume", "retry", "resolve row", "resolve statement", "reconcile", "refresh"):
        assert completed_here(*config, *command.split()) == [*reversed(batches)]
    assert completed(program, *config, "status", batches[0][:6]) == [f"plain,{batches[0]}"]
    assert completed(program, *config, "status", "payroll.c") == ["file,payroll.c"]


@pytest.mark.long
def test_countries_are_completed_in_any_case(program: Program) -> None:
    assert completed(program, "template", "k") == ["plain,KE"]
    assert completed(program, "init", "--country", "Z") == ["plain,ZA", "plain,ZM"]


def test_broken_configuration_completes_nothing_without_message(program: Program, tmp_path: Path) -> None:
    program.config.write_text("not toml at all")
    assert completed(program, "--config", str(tmp_path / "paygw.toml"), "status", "") == ["file,"]


@pytest.mark.parametrize(("typed", "meant"), [("sumbit", "submit"), ("verfy", "verify"), ("run_folder", "run-folder")])
def test_mistyped_command_suggests_nearest(program: Program, typed: str, meant: str) -> None:
    result = program.run(typed)
    assert result.exit_code == 2
    assert f"Did you mean '{meant}'?" in result.stderr


def test_mistyped_option_or_subcommand_suggests_nearest(program: Program) -> None:
    assert "--dry-run" in program.run("submit", "x.csv", "--drry-run").stderr
    assert "'new'" in program.run("journal", "nwe").stderr
