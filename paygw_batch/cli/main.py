"""Defines the command line. A command's module is imported only when the command is called."""

import importlib
import os
import shutil
import sys
import traceback
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, TextIO

import click

from paygw_batch.cli.help_texts import JSON_REQUESTED, HelpGroup, print_and_exit, section_title, translate_click
from paygw_batch.cli.invocation import Invocation, add_program_options, program_options, put_language_first
from paygw_batch.cli.screen.streams import standard_error, standard_output
from paygw_batch.cli.signals import RETRY_HINT, interruption
from paygw_batch.core.text import escape_for_terminal
from paygw_batch.errors import ConfigurationError, PaygwError, UsageError
from paygw_batch.extras import COMMANDS as EXTRA_COMMANDS
from paygw_batch.extras import has_extra
from paygw_batch.language import mark, say
from paygw_batch.processes import forbid_core_dumps
from paygw_batch.show.summary import ExitCode, RunFailed, Summary, error_summary

POLARS_ALLOCATOR = "dirty_decay_ms:100,muzzy_decay_ms:0"
"""How long polars' allocator keeps freed memory, in milliseconds (jemalloc's `MALLOC_CONF`)."""

COMMAND_GROUPS = {
    mark("Every day"): {
        "init": mark("Set up an endpoint, or the sandbox."),
        "doctor": mark("Check the configuration, key, clock, journal and connection."),
        "validate": mark("Check a sheet without sending anything."),
        "submit": mark("Pay a sheet: start its batch, or continue it."),
        "status": mark("Show batches and the states of their rows."),
        "find": mark("Find a person's payments in all batches."),
        "retry": mark("Send rejected rows again."),
        "resolve": mark("Settle rows in doubt, with evidence."),
    },
    mark("More about sheets"): {
        "template": mark("Write an empty sheet to fill in."),
        "collect": mark("Collect from the customers in a sheet."),
        "resume": mark("Continue a batch using only the journal."),
        "reconcile": mark("Rewrite the reconciliation file."),
    },
    mark("Two-person approval"): {
        "plan": mark("Prepare a sheet for others to approve."),
        "order": mark("Prepare an order to settle rows, send them again, or forget people."),
        "approve": mark("Approve a plan or an order."),
        "withdraw": mark("Withdraw a plan or an order."),
        "carry-out": mark("Carry out an approved order."),
        "console": mark("Serve the console for a browser."),
        "invite": mark("Invite a person to create a passkey for the console."),
    },
    mark("Unattended"): {
        "run-folder": mark("Submit the sheets in a drop folder."),
        "refresh": mark("Ask the gateway for the outcomes of rows."),
        "listen": mark("Receive the gateway's notifications."),
        "notices": mark("List the notices to your people, or send them."),
    },
    mark("Several hosts"): {
        "work": mark("Send rows, sharing the work with other hosts."),
        "workers": mark("List the workers of all hosts."),
        "limits": mark("Show or set the limits that workers share."),
    },
    mark("Journal"): {
        "journal": mark("Create, move or adopt a journal, or list its hosts."),
        "verify": mark("Replay and check the whole journal."),
        "backup": mark("Copy the journal, even during a run."),
        "forget": mark("Forget people, and keep the totals."),
    },
    mark("Setup"): {
        "config": mark("Show every setting and where it comes from."),
        "sign": mark("Show how a row is signed, step by step."),
        "sandbox": mark("Run the built-in gateway on loopback."),
        "completion": mark("Print the script for shell completion."),
    },
}
COMMANDS = {
    name: purpose
    for group in COMMAND_GROUPS.values()
    for name, purpose in group.items()
    if has_extra(EXTRA_COMMANDS.get(name, "cli"))
}
_WIDTH = max(map(len, COMMANDS))
_SHARED_MODULES = {
    "pay": ("submit", "collect", "resume", "retry", "reconcile"),
    "approve": ("plan", "approve", "withdraw", "carry-out"),
    "settle": ("refresh", "resolve", "order"),
    "sheets": ("validate", "template"),
    "setup": ("init", "config", "completion"),
    "journal": ("journal", "verify", "backup"),
}
_COMMAND_MODULES = {
    **{name: f"cli.commands.{module}" for module, names in _SHARED_MODULES.items() for name in names},
    **EXTRA_COMMANDS,
}
"""The modules that do not have their command's name."""

translate_click()


class _CommandGroup(HelpGroup):
    """Loads each command when it is called, and turns errors into messages and exit codes."""

    aliases = MappingProxyType(
        {"pay": "submit", "send": "submit", "check": "validate", "list": "status", "search": "find"}
    )

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's signature)
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        module = importlib.import_module(f"paygw_batch.{_COMMAND_MODULES.get(cmd_name, f'cli.commands.{name}')}")
        command: click.Command = getattr(module, f"{name}_command")
        command.short_help = COMMANDS[cmd_name]
        return add_program_options(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 (as above)
        for title, commands in COMMAND_GROUPS.items():
            with formatter.section(section_title(title)):
                formatter.write_dl([(name.ljust(_WIDTH), say(commands[name])) for name in commands if name in COMMANDS])

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        option = super().get_help_option(ctx)
        if option is not None:
            option.is_eager = False  # `--lang` and PAYGW_LANG are processed before help is shown
        return option

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[JSON_REQUESTED] = "--json" in args
        return super().parse_args(ctx, args)

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> click.Context:
        try:
            return super().make_context(info_name, put_language_first(args), *rest, **extra)
        except click.UsageError as error:
            raise _prepare_usage_error(error, as_json="--json" in args) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            as_json = bool(ctx.params.get("as_json")) or ctx.meta.get(JSON_REQUESTED, False)
            raise _prepare_usage_error(error, as_json=as_json) from None
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 (the last resort: exit 1 with a trace without data)
            _exit_with_error(ctx, error)


def _error_hint(error: BaseException, ctx: click.Context) -> str:
    """Return an error's hint. For a usage error, the default hint is replaced by one that names the command."""
    if isinstance(error, KeyboardInterrupt):
        return say(RETRY_HINT)
    if not isinstance(error, PaygwError):
        return say("Nothing was lost. Run the same command again, and report the lines above.")
    if error.hint == say(UsageError.default_hint) and ctx.invoked_subcommand:
        return say("For help, run `paygw-batch {command} --help`.", command=ctx.invoked_subcommand)
    # The option is added only here, because the console shows the same error but has no options.
    if error.option and error.option not in f"{error.message} {error.hint}":
        return f"{error.hint} {say('Use this option: {option}.', option=error.option)}".strip()
    return error.hint


def _prepare_usage_error(error: click.UsageError, *, as_json: bool) -> click.UsageError:
    """Escape the error's text, because it quotes the command line. With --json, also print the summary."""
    is_help = isinstance(error, click.exceptions.NoArgsIsHelpError)  # its text is the help
    message = error.format_message().replace("\n\t", " ")  # click lists choices on separate lines
    if as_json:
        message = say("No command was given.") if is_help else message
        _print_json_summary(Summary(ExitCode(error.exit_code), message))
    if is_help:
        return error
    prefix = say("Error: ")
    text = wrap_for_stream(prefix + escape_for_terminal(message), standard_error().file)
    return click.UsageError(text.removeprefix(prefix), error.ctx)


def wrap_for_stream(text: str, stream: TextIO) -> str:
    """Wrap text between words if `stream` is a terminal."""
    if not stream.isatty():
        return text
    from paygw_batch.cli.screen.screen import wrap_line  # noqa: PLC0415 (slow: imports rich)

    return wrap_line(text, shutil.get_terminal_size().columns)


def _print_json_summary(summary: Summary) -> None:
    from paygw_batch.cli.screen.screen import json_line  # noqa: PLC0415 (slow: imports rich)

    click.echo(json_line(summary), nl=False, file=standard_output().file)


def _exit_with_error(ctx: click.Context, error: BaseException) -> NoReturn:
    interruption.ignore_signals()
    stream, summary = standard_error().file, error_summary(error, interruption.message())
    cause = error.error if isinstance(error, RunFailed) else error
    if summary.exit_code is ExitCode.UNEXPECTED and not isinstance(cause, PaygwError):
        click.echo(_format_safe_trace(cause), file=stream)
    prefix = say("Error: ")
    text = wrap_for_stream(prefix + escape_for_terminal(summary.message), stream)
    shown_prefix = prefix if os.environ.get("NO_COLOR") else click.style(prefix, fg="red", bold=True)
    click.echo(shown_prefix + text.removeprefix(prefix), file=stream)
    if hint := _error_hint(cause, ctx):
        click.echo(wrap_for_stream(escape_for_terminal(hint), stream), file=stream)
    if ctx.params.get("as_json"):
        _print_json_summary(summary)
    ctx.exit(summary.exit_code)


def _format_safe_trace(error: BaseException) -> str:
    """Format a traceback without messages or source lines, which could contain payee data."""
    lines = [say("Traceback (innermost call last):")]
    while error.__cause__ is not None:
        error = error.__cause__
    lines += [
        f"  {Path(frame.filename).name}:{frame.lineno} in {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    lines.append(f"  {type(error).__module__}.{type(error).__qualname__}")
    return "\n".join(lines)


def _show_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        print_and_exit(ctx, f"paygw-batch, version {version('paygw-batch')}")


@click.group(cls=_CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@program_options
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
@click.pass_context
def cli(
    ctx: click.Context, *, config: Path | None, journal: Path | None, as_json: bool, quiet: bool, verbose: bool
) -> None:
    """Pay the people in a sheet through a payment gateway. No row is paid twice, and none is lost.

    Running the same command again is always safe. These options can also follow the command.
    """
    os.umask(0o077)
    from paygw_batch.settings.user_directories import find_user_configuration  # noqa: PLC0415 (not for `--help`)

    # Click treats an empty environment variable as unset, and would silently use a different configuration.
    if config is None and os.environ.get("PAYGW_CONFIG") is not None:
        raise ConfigurationError(say("PAYGW_CONFIG is empty."), hint=say("Set it to a path, or unset it."))
    ctx.obj = Invocation(config or find_user_configuration(), journal, as_json, quiet, verbose)


def run() -> None:
    """Run the command and exit with its exit code."""
    forbid_core_dumps(permanent=True)
    # Must be set before polars is loaded. Its allocator keeps freed memory for half a second by default. A tenth of a
    # second lowers peak memory use for a large sheet, but zero would cost a third of the run time in page faults.
    os.environ.setdefault("_RJEM_MALLOC_CONF", POLARS_ALLOCATOR)
    try:
        code = cli.main(prog_name="paygw-batch", standalone_mode=False)
    except click.ClickException as error:
        error.show(standard_error().file)
        code = error.exit_code
    except click.Abort:
        # Click raises this for an interrupt outside a command.
        if interruption.is_signalled:
            raise KeyboardInterrupt from None
        click.echo("Aborted!", file=standard_error().file)
        code = 1
    sys.exit(code)
