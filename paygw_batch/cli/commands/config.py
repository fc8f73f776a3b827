"""`paygw-batch config show`: every setting, and where its value comes from."""

import os

import click
from click.core import ParameterSource

from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import settings_of
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.report.summary import ExitCode, Summary
from paygw_batch.settings.setting_origins import setting_origins


@click.group("config", short_help="Show the settings.")
def command() -> None:
    """Show the settings that a command would use."""


@command.command("show", short_help="Show every setting and its origin.")
@click.pass_obj
@click.pass_context
def show(ctx: click.Context, invocation: Invocation) -> None:
    """Show every setting with its value, and whether that is from the command line, environment, file or default.

    There is no secret among them: the configuration names files and variables that hold one, and these are not read.
    """
    screen = Screen(invocation)
    settings = settings_of(invocation)
    journal_origin = None
    if invocation.journal is not None:
        is_variable = ctx.find_root().get_parameter_source("journal") is ParameterSource.ENVIRONMENT
        journal_origin = "environment: PAYGW_JOURNAL" if is_variable else "command line"
    found = list(setting_origins(settings, invocation.config, os.environ, journal_origin))
    screen.table("", ("setting", "value", "from"), [(one.key, one.value or "-", one.origin) for one in found])
    where = "There is no configuration file." if invocation.config is None else f"The file is {invocation.config}."
    told = [{"key": one.key, "value": one.value or None, "from": one.origin} for one in found]
    file = None if invocation.config is None else str(invocation.config)
    screen.finish(Summary(ExitCode.DONE, where, further={"configuration": file, "settings": told}))
