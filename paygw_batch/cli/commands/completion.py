"""`paygw-batch completion`: print the shell script that completes commands, options, batches and countries."""

import click
from click.shell_completion import get_completion_class

from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.screen.streams import standard_output
from paygw_batch.errors import InternalError
from paygw_batch.language import say
from paygw_batch.report.summary import ExitCode, Summary

PROGRAM = "paygw-batch"
VARIABLE = "_PAYGW_BATCH_COMPLETE"
"""The variable with which the shell queries the program; click derives it from the program's name."""


@click.command("completion", cls=HelpCommand)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_obj
@click.pass_context
def command(ctx: click.Context, invocation: Invocation, *, shell: str) -> None:
    """Print the script that completes commands, options, batch ids and countries in SHELL.

    For bash, write `eval "$(paygw-batch completion bash)"` into ~/.bashrc; for zsh, the same with zsh into ~/.zshrc,
    after compinit. For fish, write the script to ~/.config/fish/completions/paygw-batch.fish.
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise InternalError(f"click completes nothing in {shell}")
    script = kind(ctx.find_root().command, {}, PROGRAM, VARIABLE).source()
    screen = Screen(invocation, only_shows=True)
    if screen.as_json:
        screen.finish(Summary(ExitCode.DONE, say("The script for {shell}.", shell=shell), further={"script": script}))
    standard_output().write(f"{script.strip()}\n")
