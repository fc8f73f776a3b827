"""`paygw-batch console`: the pages for people who work in a browser."""

import importlib.util
import os
from functools import partial
from typing import Any

import click

from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, WholeNumber
from paygw_batch.cli.options import settings_for
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.signals import interruption
from paygw_batch.errors import ConfigurationError, UsageError
from paygw_batch.extras import install_command
from paygw_batch.language import say
from paygw_batch.show.summary import ExitCode, Summary

_REQUIRED_MODULE = "python_multipart"
_LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})


@click.command("console", cls=HelpCommand)
@click.option("--port", type=WholeNumber(0, 65535), help="Port on loopback, or 0 for any free port. Default: 8460.")
@click.option(
    "--host", default="127.0.0.1", help="Loopback address to listen on. A proxy in front of the console adds TLS."
)
@click.pass_obj
def console_command(invocation: Invocation, *, port: int | None, host: str) -> None:
    """Serve the console on loopback until interrupted: prepare, approve, start and follow payouts in a browser.

    The console itself sends nothing. Each payout is a separate process, and continues when the console stops.
    """
    if host not in _LOOPBACK_HOSTS:
        raise UsageError(
            say("The console can be served only on loopback or a Unix socket, not on {host}.", host=host),
            hint=say("Put a TLS proxy in front of the console, as docs/console.md explains."),
        )
    if importlib.util.find_spec(_REQUIRED_MODULE) is None:
        raise ConfigurationError(
            say("The console needs {missing}.", missing=_REQUIRED_MODULE),
            hint=say("Install it: {command}.", command=install_command("console")),
        )
    from paygw_batch.console.console_app import serve_console  # noqa: PLC0415 (needs the extra)

    screen = Screen(invocation)
    flags: Any = {("console", "port"): port}
    load_settings = partial(settings_for, invocation, flags)
    serve_console(load_settings(), invocation.config, os.environ, screen.say, reload_settings=load_settings)
    interruption.restore_handlers()
    screen.finish(Summary(ExitCode.DONE, say("The console has stopped. Running payouts continue.")))
