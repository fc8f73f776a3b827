"""Defines the command line. The module of a command is imported only when the command is called."""

import importlib
import os
import shutil
import sys
import traceback
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, TextIO

import click

from paygw_batch.cli.help_texts import HelpGroup, section_title, translate_click
from paygw_batch.cli.invocation import Invocation, accept_program_options, program_options, put_language_first
from paygw_batch.cli.screen.streams import standard_error, standard_output
from paygw_batch.cli.signals import EXIT_CODE, RETRY_HINT, interruption
from paygw_batch.core.text import escape_for_terminal
from paygw_batch.errors import ConfigurationError, PaygwError, UsageError
from paygw_batch.extras import COMMANDS as EXTRA_COMMANDS
from paygw_batch.extras import has_extra
from paygw_batch.language import mark, say
from paygw_batch.processes import forbid_core_dumps

POLARS_ALLOCATOR = "dirty_decay_ms:100,muzzy_decay_ms:0"
"""How many milliseconds polars' allocator keeps freed memory (jemalloc's `MALLOC_CONF`)."""

_JSON_REQUESTED = "paygw_batch.json_asked"
"""The key in click's context that records whether --json was given, even if the rest cannot be parsed."""
COMMAND_GROUPS = {
    mark("Every day"): {
        "init": mark("Set up an endpoint, or the sandbox."),
        "doctor": mark("Check configuration, key, clock, journal and connection."),
        "validate": mark("Check a sheet; send nothing."),
        "submit": mark("Pay a sheet: start its batch, or continue it."),
        "status": mark("Show batches and the states of their rows."),
        "find": mark("Find a person's payments in all batches."),
        "retry": mark("Send rejected rows again."),
        "resolve": mark("Settle rows in doubt, with evidence."),
    },
    mark("More about sheets"): {
        "template": mark("Write an empty sheet to fill in."),
        "collect": mark("Collect from the customers in a sheet."),
        "resume": mark("Continue a batch from the journal alone."),
        "reconcile": mark("Rewrite the reconciliation file."),
    },
    mark("Two-person approval"): {
        "plan": mark("Prepare a sheet for approval by others."),
        "order": mark("Prepare an order to settle rows, send them again, or forget people."),
        "approve": mark("Approve a plan or an order."),
        "withdraw": mark("Withdraw a plan or an order."),
        "carry-out": mark("Carry out an approved order."),
        "console": mark("Serve the pages for a browser."),
        "invite": mark("Invite a person to create a passkey for the console."),
    },
    mark("Unattended"): {
        "run-folder": mark("Submit the sheets of a drop folder."),
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
        "journal": mark("Create, move or adopt a journal; list its hosts."),
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
"""The modules of commands that are not named like their module."""


translate_click()


class _CommandGroup(HelpGroup):
    """Loads commands when they are called, and turns errors into messages and exit codes."""

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
        return accept_program_options(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 (as above)
        for title, commands in COMMAND_GROUPS.items():
            with formatter.section(section_title(title)):
                formatter.write_dl([(name.ljust(_WIDTH), say(commands[name])) for name in commands if name in COMMANDS])

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        option = super().get_help_option(ctx)
        if option is not None:
            option.is_eager = False  # `--lang` and PAYGW_LANG are read first, so that help uses them
        return option

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> click.Context:
        is_json = "--json" in args
        try:
            context = super().make_context(info_name, put_language_first(args), *rest, **extra)
        except click.UsageError as error:
            raise _make_printable(error, is_json=is_json) from None
        context.meta[_JSON_REQUESTED] = is_json
        return context

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            is_json = bool(ctx.params.get("as_json")) or ctx.meta.get(_JSON_REQUESTED, False)
            raise _make_printable(error, is_json=is_json) from None
        except PaygwError as error:
            _fail(ctx, error.message, _error_hint(error, ctx), error.exit_code, code=error.code)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            _fail(ctx, interruption.sentence(), say(RETRY_HINT), EXIT_CODE)
        except Exception as error:  # noqa: BLE001 (the last resort: exit 1 with a trace that holds no data)
            _fail(
                ctx,
                say("Unexpected error ({kind}).", kind=type(error).__name__),
                say("Nothing was lost. Run the same command again, and report the lines above."),
                1,
                trace=error,
            )


def _error_hint(error: PaygwError, ctx: click.Context) -> str:
    """Return the hint of an error. The default hint for wrong usage is replaced by one about the command."""
    if error.hint == say(UsageError.default_hint) and ctx.invoked_subcommand:
        return say("`paygw-batch {command} --help` shows its usage.", command=ctx.invoked_subcommand)
    # The option is added only here, because the console's pages show the message too.
    if error.option and error.option not in f"{error.message} {error.hint}":
        return f"{error.hint} {say('The option: {option}.', option=error.option)}".strip()
    return error.hint


def _make_printable(error: click.UsageError, *, is_json: bool) -> click.UsageError:
    """Make the text of click's error printable, because it quotes the command line.

    With --json this also prints the summary. Click prints the error itself.
    """
    is_help = isinstance(error, click.exceptions.NoArgsIsHelpError)  # its text is the help
    if is_json:
        _print_summary(say("No command was given.") if is_help else error.format_message(), error.exit_code)
    if is_help:
        return error
    prefix = say("Error: ")
    text = wrap_for_stream(prefix + escape_for_terminal(error.format_message()), standard_error().file)
    return click.UsageError(text.removeprefix(prefix), error.ctx)


def wrap_for_stream(text: str, stream: TextIO) -> str:
    """Wrap a line between words if the stream is a terminal."""
    if not stream.isatty():
        return text
    from paygw_batch.cli.screen.screen import wrap_line  # noqa: PLC0415 (rich: only for what is shown)

    return wrap_line(text, shutil.get_terminal_size().columns)


def _print_summary(message: str, exit_code: int, code: str = "") -> None:
    from paygw_batch.cli.screen.screen import json_line  # noqa: PLC0415 (as heavy as a command)
    from paygw_batch.show.summary import ExitCode, Summary  # noqa: PLC0415 (as above)

    summary = Summary(ExitCode(exit_code), message, extra={"code": code} if code else {})
    click.echo(json_line(summary), nl=False, file=standard_output().file)


def _fail(
    ctx: click.Context, message: str, hint: str, exit_code: int, *, code: str = "", trace: Exception | None = None
) -> NoReturn:
    """Print an error, its hint and, with --json, the summary. Exit with `exit_code`."""
    interruption.ignore()
    stream = standard_error().file
    if trace is not None:
        click.echo(_trace_without_data(trace), file=stream)
    prefix = say("Error: ")
    text = wrap_for_stream(prefix + escape_for_terminal(message), stream)
    click.echo(click.style(prefix, fg="red", bold=True) + text.removeprefix(prefix), file=stream)
    if hint:
        click.echo(wrap_for_stream(escape_for_terminal(hint), stream), file=stream)
    if ctx.params.get("as_json"):
        _print_summary(message, exit_code, code)
    ctx.exit(exit_code)


def _trace_without_data(error: BaseException) -> str:
    """Return a traceback without messages and source lines, which could contain a payee's data."""
    lines = [say("Trace, innermost last:")]
    while error.__cause__ is not None:
        error = error.__cause__
    lines += [
        f"  {Path(frame.filename).name}:{frame.lineno} in {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    lines.append(f"  {type(error).__module__}.{type(error).__qualname__}")
    return "\n".join(lines)


@click.group(cls=_CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@program_options
@click.version_option(package_name="paygw-batch")
@click.pass_context
def cli(
    ctx: click.Context, *, config: Path | None, journal: Path | None, as_json: bool, quiet: bool, verbose: bool
) -> None:
    """Pay a sheet of people through a payment gateway: no row twice, no row lost.

    Running the same command again is always safe. These options can also be written after the command.
    """
    os.umask(0o077)
    from paygw_batch.settings.user_directories import find_user_configuration  # noqa: PLC0415 (not for `--help`)

    # Click treats an empty variable as unset, which would select another configuration than the person intended.
    if config is None and os.environ.get("PAYGW_CONFIG") is not None:
        raise ConfigurationError(say("PAYGW_CONFIG is empty."), hint=say("Set it to a path, or unset it."))
    ctx.obj = Invocation(config or find_user_configuration(), journal, as_json, quiet, verbose)


def run() -> None:
    """Run the command and exit with its exit code."""
    forbid_core_dumps(for_good=True)
    # polars' allocator, unless configured before it is loaded, keeps freed memory for half a second. Keeping it for a
    # tenth lowers the peak of a large sheet; returning it at once would spend a third of the time on page faults.
    os.environ.setdefault("_RJEM_MALLOC_CONF", POLARS_ALLOCATOR)
    try:
        code = cli.main(prog_name="paygw-batch", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.Abort:
        # Click raises this for an interrupt outside a command.
        if interruption.is_signalled:
            raise KeyboardInterrupt from None
        click.echo("Aborted!", err=True)
        code = 1
    sys.exit(code)
