"""Defines the program's command line. Nothing heavy is imported: a command's module is loaded when it is called."""

import importlib
import os
import shutil
import sys
import traceback
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, TextIO

import click

from paygw_batch.cli.help_texts import HelpGroup, section_title, speak_our_languages
from paygw_batch.cli.invocation import Invocation, also_after, program_options, with_language_first
from paygw_batch.cli.screen.streams import standard_error, standard_output
from paygw_batch.cli.signals import AGAIN, EXIT_CODE, interruption
from paygw_batch.core.text import fit_for_terminal
from paygw_batch.errors import ConfigurationError, PaygwError, UsageError
from paygw_batch.extras import COMMANDS as OF_EXTRAS
from paygw_batch.extras import is_there
from paygw_batch.language import mark, say
from paygw_batch.processes import forbid_core_dumps

POLARS_ALLOCATOR = "dirty_decay_ms:100,muzzy_decay_ms:0"
"""The milliseconds for which polars' allocator keeps freed memory (jemalloc's `MALLOC_CONF`)."""

_JSON_ASKED = "paygw_batch.json_asked"
"""The key under which click's context says whether the command line has --json, even if the rest cannot be parsed."""
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
    mark("More with sheets"): {
        "template": mark("Write an empty sheet to fill in."),
        "collect": mark("Collect from the customers on a sheet."),
        "resume": mark("Continue a batch from the journal alone."),
        "reconcile": mark("Write the reconciliation file again."),
    },
    mark("Two people"): {
        "plan": mark("Prepare a sheet for approval by others."),
        "order": mark("Prepare an order to settle rows, send them again, or forget people."),
        "approve": mark("Approve a plan or an order."),
        "withdraw": mark("Withdraw a plan or an order."),
        "carry-out": mark("Carry out an approved order."),
        "console": mark("Serve the pages for a browser."),
        "invite": mark("Invite a person to make a passkey for the console."),
    },
    mark("Unattended"): {
        "run-folder": mark("Submit the sheets of a drop folder."),
        "refresh": mark("Ask the gateway what happened to rows."),
        "listen": mark("Receive the gateway's notifications."),
        "notices": mark("List the notices to people, or send them."),
    },
    mark("Several hosts"): {
        "work": mark("Send rows together with other hosts."),
        "workers": mark("List the workers of all hosts."),
        "limits": mark("Show or set the limits that workers share."),
    },
    mark("Journal"): {
        "journal": mark("Create, move or adopt a journal; list its hosts."),
        "verify": mark("Replay and check the whole journal."),
        "backup": mark("Copy the journal, even during a run."),
        "forget": mark("Forget people, and keep the totals."),
    },
    mark("Setting up"): {
        "config": mark("Show every setting and where it comes from."),
        "sign": mark("Show how a row is signed, step by step."),
        "sandbox": mark("Run the built-in gateway on loopback."),
        "completion": mark("Complete commands, batches and countries in a shell."),
    },
}
COMMANDS = {
    name: purpose
    for group in COMMAND_GROUPS.values()
    for name, purpose in group.items()
    if is_there(OF_EXTRAS.get(name, "cli"))
}
_WIDTH = max(map(len, COMMANDS))
_MODULES = {
    "pay": ("submit", "collect", "resume", "retry", "reconcile"),
    "approve": ("plan", "approve", "withdraw", "carry-out"),
    "settle": ("refresh", "resolve", "order"),
    "sheets": ("validate", "template"),
    "setup": ("init", "config", "completion"),
    "journal": ("journal", "verify", "backup"),
}
_PLACES = {**{name: f"cli.commands.{module}" for module, names in _MODULES.items() for name in names}, **OF_EXTRAS}
"""The module of each command whose module does not have the command's name."""


speak_our_languages()


class _CommandGroup(HelpGroup):
    """Loads the module of a command when the command is called, and turns errors into a sentence and an exit code."""

    meant = MappingProxyType(
        {"pay": "submit", "send": "submit", "check": "validate", "list": "status", "search": "find"}
    )

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's signature)
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        module = importlib.import_module(f"paygw_batch.{_PLACES.get(cmd_name, f'cli.commands.{name}')}")
        command: click.Command = getattr(module, f"{name}_command")
        command.short_help = COMMANDS[cmd_name]
        return also_after(command)

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
            context = super().make_context(info_name, with_language_first(args), *rest, **extra)
        except click.UsageError as error:
            raise _fit(error, is_json=is_json) from None
        context.meta[_JSON_ASKED] = is_json
        return context

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise _fit(error, is_json=bool(ctx.params.get("as_json")) or ctx.meta.get(_JSON_ASKED, False)) from None
        except PaygwError as error:
            _fail(ctx, error.message, _hint_of(error, ctx), error.exit_code, code=error.code)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            _fail(ctx, interruption.sentence(), say(AGAIN), EXIT_CODE)
        except Exception as error:  # noqa: BLE001 (the last resort: exit 1 with a trace that holds no data)
            _fail(
                ctx,
                say("Unexpected error ({kind}).", kind=type(error).__name__),
                say("Nothing was lost: run the same command again, and report the lines above."),
                1,
                trace=error,
            )


def _hint_of(error: PaygwError, ctx: click.Context) -> str:
    """Return the hint of an error. The general hint for wrong usage names the command that was called."""
    if error.hint == say(UsageError.default_hint) and ctx.invoked_subcommand:
        return say("`paygw-batch {command} --help` shows its usage.", command=ctx.invoked_subcommand)
    if error.option and error.option not in f"{error.message} {error.hint}":  # pages show the sentence, too
        return f"{error.hint} {say('The option: {option}.', option=error.option)}".strip()
    return error.hint


def _fit(error: click.UsageError, *, is_json: bool) -> click.UsageError:
    """Return click's error with a printable text, because the text repeats words from the command line.

    With --json the summary is printed here. Click prints the error itself.
    """
    is_help = isinstance(error, click.exceptions.NoArgsIsHelpError)  # the text of this error is the help
    if is_json:
        _print_summary(say("No command was given.") if is_help else error.format_message(), error.exit_code)
    if is_help:
        return error
    first = say("Error: ")
    text = fitted(first + fit_for_terminal(error.format_message()), standard_error().file)
    return click.UsageError(text.removeprefix(first), error.ctx)


def fitted(text: str, stream: TextIO) -> str:
    """Return a line as it is printed to a stream. On a terminal, it is broken between words."""
    if not stream.isatty():
        return text
    from paygw_batch.cli.screen.screen import wrapped  # noqa: PLC0415 (rich: only for what is shown)

    return wrapped(text, shutil.get_terminal_size().columns)


def _print_summary(message: str, exit_code: int, code: str = "") -> None:
    """Print the JSON object of a command that could not continue."""
    from paygw_batch.cli.screen.screen import json_line  # noqa: PLC0415 (as heavy as a command)
    from paygw_batch.show.summary import ExitCode, Summary  # noqa: PLC0415 (as above)

    summary = Summary(ExitCode(exit_code), message, further={"code": code} if code else {})
    click.echo(json_line(summary), nl=False, file=standard_output().file)


def _fail(
    ctx: click.Context, message: str, hint: str, exit_code: int, *, code: str = "", trace: Exception | None = None
) -> NoReturn:
    """Print an error and its hint on standard error and, with --json, the summary. End with `exit_code`."""
    interruption.ignore()
    stream = standard_error().file
    if trace is not None:
        click.echo(_bare_trace(trace), file=stream)
    first = say("Error: ")
    text = fitted(first + fit_for_terminal(message), stream)
    click.echo(click.style(first, fg="red", bold=True) + text.removeprefix(first), file=stream)
    if hint:
        click.echo(fitted(fit_for_terminal(hint), stream), file=stream)
    # The options of the group are known before the module of a command is loaded.
    if ctx.params.get("as_json"):
        _print_summary(message, exit_code, code)
    ctx.exit(exit_code)


def _bare_trace(error: BaseException) -> str:
    """Return the places of an error, without its text and source lines, which could contain a payee's data."""
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
    from paygw_batch.settings.user_directories import own_configuration  # noqa: PLC0415 (not for `--help`)

    # Click treats an empty variable as unset, which would select another configuration than the person intended.
    if config is None and os.environ.get("PAYGW_CONFIG") is not None:
        raise ConfigurationError(say("PAYGW_CONFIG is empty."), hint=say("Set it to a path, or unset it."))
    ctx.obj = Invocation(config or own_configuration(), journal, as_json, quiet, verbose)


def run() -> None:
    """Run the command that was called, and end the process with its exit code."""
    forbid_core_dumps(for_good=True)
    # polars' allocator keeps freed memory for half a second, unless it is configured before it is loaded. A tenth saves
    # much of the peak of a large sheet. Returning memory at once would cost a third of the time in page faults.
    os.environ.setdefault("_RJEM_MALLOC_CONF", POLARS_ALLOCATOR)
    try:
        code = cli.main(prog_name="paygw-batch", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.Abort:
        # Click raises this for an interrupt outside a command.
        if interruption.came:
            raise KeyboardInterrupt from None
        click.echo("Aborted!", err=True)
        code = 1
    sys.exit(code)
