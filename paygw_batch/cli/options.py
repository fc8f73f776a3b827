"""Defines the options that commands share, and builds settings from them."""

import os
from collections.abc import Mapping
from pathlib import Path

import click

from paygw_batch.cli.invocation import Invocation
from paygw_batch.compose.outputs import OutputGuard
from paygw_batch.core.batch import PAYIN, PAYOUT, ControlTotals
from paygw_batch.core.money import parse_amount
from paygw_batch.errors import ConfigurationError, UsageError
from paygw_batch.language import say
from paygw_batch.settings.configuration import Settings, load_settings

wait_option = click.option("--wait", is_flag=True, help="Wait for a run that holds the journal, and do not refuse.")
worksheet_option = click.option("--sheet", "worksheet", metavar="NAME", help="The worksheet of a workbook to read.")
profile_option = click.option(
    "--column-profile",
    metavar="NAME",
    callback=lambda _context, _parameter, name: str(Path(name).absolute()) if (name or "").endswith(".toml") else name,
    help="The headings of the sheet: a column profile, or a file that `validate --map` wrote.",
)
strict_option = click.option("--strict", is_flag=True, help="Refuse what is only doubtful: warnings are defects.")
repeats_option = click.option(
    "--repeats-meant", is_flag=True, help="The sheet is meant to repeat a batch of the last days; do not ask."
)
collect_option = click.option(
    "--collect",
    "operation",
    is_flag=True,
    callback=lambda _context, _parameter, chosen: PAYIN if chosen else PAYOUT,
    help="The sheet is of customers to collect from, and not of people to pay.",
)
force_option = click.option(
    "--force", is_flag=True, help="Replace a file that is there, although this program did not write it."
)
plan_page_option = click.option(
    "--report", type=click.Path(path_type=Path), metavar="FILE.html", help="Also write the plan as a page to look at."
)
by_option = click.option("--by", metavar="NAME", help="Who decides this. Default: the login; it is noted in any case.")


def settings_of(
    invocation: Invocation,
    flags: Mapping[tuple[str, str], object | None] | None = None,
    *,
    distrusts: list[ConfigurationError] | None = None,
) -> Settings:
    """Return the settings of this invocation; flags that were not given (None) change nothing.

    A configuration file that others may write is refused, or noted in `distrusts`.
    """
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    if invocation.journal is not None:
        given["journal", "path"] = str(invocation.journal.absolute())
    return load_settings(invocation.config, environ=os.environ, flags=given, distrusts=distrusts)


def guard_of(invocation: Invocation, settings: Settings, *, force: bool = False) -> OutputGuard:
    """Return the guard that keeps the outputs of this invocation off files that they must not replace."""
    return OutputGuard(settings, invocation.config, force)


def stated_totals(rows: int | None, sums: tuple[str, ...]) -> ControlTotals:
    """Return the control totals that a person stated as `--expect-rows N` and `--expect-total CUR=AMOUNT`."""
    amounts = {}
    for text in sums:
        currency, equals, amount_text = text.partition("=")
        amount = parse_amount(amount_text, minor_units=4)
        if not equals or amount is None:
            raise UsageError(say("--expect-total {text}: write it as KES=125000.50.", text=text))
        amounts[currency.strip().upper()] = amount
    return ControlTotals(rows, amounts)
