"""The command group. It imports nothing heavy: a command's module is loaded when it is called."""

import difflib
import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import click

from paygw_batch.cli.help_texts import with_exit_codes
from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.screen.streams import standard_error, standard_output
from paygw_batch.cli.signals import AGAIN, EXIT_CODE, interruption
from paygw_batch.core.terminal_text import fit_for_terminal
from paygw_batch.errors import PaygwError
from paygw_batch.language import ENGLISH, languages, say, use
from paygw_batch.processes import forbid_core_dumps

POLARS_ALLOCATOR = "dirty_decay_ms:100,muzzy_decay_ms:0"
"""The times for which polars' allocator keeps freed memory, in milliseconds (jemalloc's `MALLOC_CONF`)."""

COMMANDS = {
    "init": "Set up a new endpoint, or the sandbox.",
    "template": "Write an empty sheet to fill in.",
    "validate": "Read and validate a sheet; send nothing.",
    "plan": "Prepare a sheet for approval by others.",
    "approve": "Look at a plan, and approve it.",
    "submit": "Pay a sheet: start its batch, or continue it.",
    "collect": "Collect from the customers on a sheet.",
    "resume": "Continue a batch from the journal alone.",
    "retry": "Release rejected rows for another attempt, and send them.",
    "run-folder": "Submit the settled sheets of a folder.",
    "resolve": "Settle rows in doubt, with evidence.",
    "status": "Show what the journal knows.",
    "find": "Find a person's payments over all batches.",
    "reconcile": "Write the reconciliation file again.",
    "refresh": "Ask the gateway what became of rows.",
    "listen": "Receive the gateway's notifications.",
    "limits": "Show or set the limits over all workers.",
    "verify": "Replay and check the whole journal.",
    "journal": "Make the journal of an endpoint, move it, or adopt a copy.",
    "backup": "Copy the journal, also while a run is on.",
    "console": "Serve the pages for a browser.",
    "invite": "Invite a person to make a passkey for the console.",
    "work": "Send rows that are handed over, together with other hosts.",
    "workers": "List the workers of all hosts.",
    "sandbox": "Run the built-in gateway on loopback.",
    "sign": "Show how a row is signed, step by step.",
    "config": "Show every setting and where it comes from.",
    "completion": "Complete commands, batches and countries in a shell.",
    "doctor": "Check configuration, key, clock, journal and reachability.",
}


class _CommandGroup(click.Group):
    """Loads a command's module when it is called, and turns errors into a sentence and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's signature)
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"paygw_batch.cli.commands.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return with_exit_codes(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 (as above)
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        if name not in COMMANDS and near and not ctx.resilient_parsing:
            ctx.fail(say("No such command {name!r}. Did you mean {near!r}?", name=name, near=near[0]))
        return super().resolve_command(ctx, args)

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> click.Context:
        is_json = "--json" in args
        try:
            return super().make_context(info_name, args, *rest, **extra)
        except click.UsageError as error:
            raise _fit(error, is_json=is_json) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise _fit(error, is_json=bool(ctx.params.get("as_json"))) from None
        except PaygwError as error:
            _fail(ctx, error.message, error.hint, error.exit_code, code=error.code)
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


def _fit(error: click.UsageError, *, is_json: bool) -> click.UsageError:
    """Return click's error with a text that can be printed: it repeats the words of the command line.

    With --json its summary is printed here: click prints the error itself.
    """
    is_help = isinstance(error, click.exceptions.NoArgsIsHelpError)  # its text is the help
    if is_json:
        _print_summary("No command was named." if is_help else error.format_message(), error.exit_code)
    return error if is_help else click.UsageError(fit_for_terminal(error.format_message()), error.ctx)


def _print_summary(message: str, exit_code: int, code: str = "") -> None:
    """Print the one JSON object of a command that could not go on."""
    from paygw_batch.cli.screen.screen import json_line  # noqa: PLC0415 (as heavy as a command)
    from paygw_batch.report.summary import ExitCode, Summary  # noqa: PLC0415 (as above)

    summary = Summary(ExitCode(exit_code), message, further={"code": code} if code else {})
    click.echo(json_line(summary), nl=False, file=standard_output().file)


def _fail(
    ctx: click.Context, message: str, hint: str, exit_code: int, *, code: str = "", trace: Exception | None = None
) -> NoReturn:
    """Print the error and its hint on standard error, with --json also the summary; end with `exit_code`."""
    interruption.ignore()
    told = standard_error().file
    if trace is not None:
        click.echo(_bare_trace(trace), file=told)
    click.echo(click.style(say("Error: "), fg="red", bold=True) + fit_for_terminal(message), file=told)
    if hint:
        click.echo(fit_for_terminal(hint), file=told)
    # Of the group's own options, which are known before a command's module is loaded.
    if ctx.params.get("as_json"):
        _print_summary(message, exit_code, code)
    ctx.exit(exit_code)


def _bare_trace(error: BaseException) -> str:
    """Return where an error happened, without its text and without source lines: both could hold a payee's data."""
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
@click.option("--config", type=click.Path(path_type=Path), envvar="PAYGW_CONFIG", help="Configuration file (TOML).")
@click.option("--journal", type=click.Path(path_type=Path), envvar="PAYGW_JOURNAL", help="Journal file.")
@click.option(
    "--lang",
    envvar="PAYGW_LANG",
    type=click.Choice(languages()),
    default=ENGLISH,
    callback=lambda _context, _parameter, name: use(name),
    expose_value=False,
    is_eager=True,
    help="The language of sentences for people.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, the summary, on standard output.")
@click.option("-q", "--quiet", is_flag=True, help="Say only what went wrong.")
@click.option("-v", "--verbose", is_flag=True, help="Say more.")
@click.version_option(package_name="paygw-batch")
@click.pass_context
def cli(
    ctx: click.Context, *, config: Path | None, journal: Path | None, as_json: bool, quiet: bool, verbose: bool
) -> None:
    """Pay a sheet of people through a payment gateway: no row twice, no row lost.

    Running the same command again is always safe.
    """
    os.umask(0o077)
    from paygw_batch.settings.user_directories import own_configuration  # noqa: PLC0415 (not for `--help`)

    ctx.obj = Invocation(config or own_configuration(), journal, as_json, quiet, verbose)


with_exit_codes(cli)


def run() -> None:
    """Run the command that was asked for, and end the process with its exit code."""
    forbid_core_dumps(for_good=True)
    # polars' allocator keeps what was freed for half a second unless it is told otherwise, before it is loaded. A tenth
    # is a good part of the peak of a large sheet; giving back at once costs a third of the time in page faults.
    os.environ.setdefault("_RJEM_MALLOC_CONF", POLARS_ALLOCATOR)
    try:
        code = cli.main(prog_name="paygw-batch", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.Abort:
        # What click makes of an interrupt that comes outside of a command.
        if interruption.came:
            raise KeyboardInterrupt from None
        click.echo("Aborted!", err=True)
        code = 1
    sys.exit(code)
