"""`paygw-batch config show`: every setting, and where its value comes from."""

import os

import click
from click.core import ParameterSource

from paygw_batch.cli.help_texts import HelpGroup
from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import settings_of
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.language import mark_all, say
from paygw_batch.report.summary import ExitCode, Summary
from paygw_batch.settings.configuration import setting_origins


@click.group("config", cls=HelpGroup)
def command() -> None:
    """Show the settings that a command would use."""


@command.command("show", short_help="Show every setting and its origin.")
@click.pass_obj
@click.pass_context
def show(ctx: click.Context, invocation: Invocation) -> None:
    """Show every setting, its value and its origin: command line, environment, file or default.

    No secret is shown: the configuration names only the files and variables that hold secrets, and these are not
    read.
    """
    screen = Screen(invocation, only_shows=True)
    settings = settings_of(invocation)
    journal_origin = None
    if invocation.journal is not None:
        is_variable = ctx.find_root().get_parameter_source("journal") is ParameterSource.ENVIRONMENT
        journal_origin = "environment: PAYGW_JOURNAL" if is_variable else "command line"
    found = list(setting_origins(settings, invocation.config, os.environ, journal_origin))
    lines = [(setting.key, setting.value or "-", setting.origin) for setting in found]
    screen.table("", mark_all("setting", "value", "from"), lines)
    where = (
        say("There is no configuration file.")
        if invocation.config is None
        else say("The file is {path}.", path=invocation.config)
    )
    told = [{"key": one.key, "value": one.value or None, "from": one.origin} for one in found]
    file = None if invocation.config is None else str(invocation.config)
    screen.finish(Summary(ExitCode.DONE, where, further={"configuration": file, "settings": told}))
