"""Defines the options that commands share, and their shell completion."""

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from decimal import Decimal
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from paygw_batch.cli.invocation import Invocation, PathType
from paygw_batch.core.batch import PAYIN, PAYOUT, ControlTotals
from paygw_batch.core.choices import Choices
from paygw_batch.core.money import parse_amount
from paygw_batch.errors import ConfigurationError, PaygwError, UsageError
from paygw_batch.language import say
from paygw_batch.settings.configuration import Settings, load_settings
from paygw_batch.sheet.formats import FORMATS
from paygw_batch.show.outputs import OutputGuard

wait_option = click.option(
    "--wait", is_flag=True, help="If another run is using the journal, wait for it instead of failing."
)


def bundle_options(name: str, kind: type[Any], *options: Callable[..., Any]) -> Callable[..., Any]:
    """Return a decorator that adds options to a command.

    Options that are fields of the dataclass `kind` are passed to the command together, as the argument `name`.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run_command(*arguments: Any, **keywords: Any) -> None:
            values = {field.name: keywords.pop(field.name) for field in fields(kind) if field.name in keywords}
            command(*arguments, **keywords, **{name: kind(**values)})

        for option in reversed(options):
            run_command = option(run_command)
        return run_command

    return decorate


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultOptions:
    """The options of a command that continues a batch. If `out` is None, results are written next to the sheet."""

    out: Path | None
    for_excel: bool = False
    force: bool
    wait: bool


result_options = bundle_options("results", ResultOptions)
"""Passes the fields of `ResultOptions` to a command as the argument `results`."""

profile_option = click.option(
    "--column-profile",
    metavar="NAME",
    callback=lambda _context, _parameter, name: str(Path(name).absolute()) if (name or "").endswith(".toml") else name,
    help="The sheet's headings: a column profile, or a file written by `validate --map`.",
)
strict_option = click.option("--strict", is_flag=True, help="Treat warnings as defects.")
skip_invalid_option = click.option(
    "--skip-invalid", is_flag=True, help="Leave out rows with defects and send the others."
)
choices_options = bundle_options(
    "choices",
    Choices,
    click.option("--amend", is_flag=True, help="Let changed rows replace rows that were rejected or never sent."),
    strict_option,
    click.option(
        "--repeats-meant",
        is_flag=True,
        help="Confirm that this sheet intentionally repeats a recent batch or recent payees.",
    ),
    click.option(
        "--new-payee",
        "new_payees",
        multiple=True,
        metavar="NAME",
        help="Confirm that NAME is a new person in a payment run that was already paid. Repeatable.",
    ),
)
"""Adds the options for decisions about a sheet, which the command receives as the argument `choices`."""
collect_option = click.option(
    "--collect",
    "operation",
    is_flag=True,
    callback=lambda _context, _parameter, chosen: PAYIN if chosen else PAYOUT,
    help="The sheet lists customers to collect from, not people to pay.",
)
force_option = click.option("--force", is_flag=True, help="Overwrite an existing file that this program did not write.")
excel_option = click.option("--for-excel", is_flag=True, help="Write the CSV file so that Excel keeps every digit.")
plan_page_option = click.option(
    "--report", type=PathType(), metavar="FILE.html", help="Also write the plan as an HTML page."
)
by_option = click.option("--by", metavar="NAME", help="Your name, for the record. Your login is always recorded.")


def settings_for(
    invocation: Invocation,
    flags: Mapping[tuple[str, str], object | None] | None = None,
    *,
    trust_errors: list[ConfigurationError] | None = None,
) -> Settings:
    """Load the settings for this invocation. Flags that are None are ignored.

    Raises `ConfigurationError` if other users can write to the configuration file. If `trust_errors` is given, the
    error is added to it instead.
    """
    overrides = {key: value for key, value in (flags or {}).items() if value is not None}
    if invocation.journal is not None:
        if invocation.journal.suffix.lower() in {sheet_format.extension for sheet_format in FORMATS}:
            raise UsageError(say("{path} is a sheet, not a journal.", path=invocation.journal))
        overrides["journal", "path"] = str(invocation.journal.absolute())
    return load_settings(invocation.config, environ=os.environ, flags=overrides, trust_errors=trust_errors)


def output_guard(invocation: Invocation, settings: Settings, *, force: bool = False) -> OutputGuard:
    """Return a guard that keeps this invocation from overwriting other files."""
    return OutputGuard(settings, invocation.config, force)


def require_csv(out: Path | None, *, for_excel: bool) -> None:
    """Raise `UsageError` if --for-excel is used with a file that is not CSV."""
    if for_excel and out is not None and out.suffix.lower() != ".csv":
        message = say("--for-excel can be used only with CSV files, but {out} is not one.", out=out)
        raise UsageError(message, hint=say("Leave out --for-excel: a workbook (.xlsx) keeps every digit anyway."))


def restart_command(invocation: Invocation) -> list[str]:
    """Return the command line that starts the program again with the same configuration."""
    config = [] if invocation.config is None else ["--config", str(invocation.config.absolute())]
    return [sys.executable, "-P", "-m", "paygw_batch", *config]


def parse_expected_totals(rows: int | None, totals: tuple[str, ...]) -> ControlTotals:
    """Parse `--expect-rows N` and `--expect-total CUR=AMOUNT` into control totals."""
    amounts: dict[str, Decimal] = {}
    for text in totals:
        currency, equals, amount_text = text.partition("=")
        amount = parse_amount(amount_text, minor_units=4)
        if "," in amount_text or "\N{NO-BREAK SPACE}" in amount_text or " " in amount_text.strip():
            message = say("--expect-total {text}: write the amount without thousands separators.", text=text)
            raise UsageError(message, hint=say("Use a decimal point: KES=125000.50."))
        if equals and currency.strip() and amount_text.strip() and amount is None:
            message = say("--expect-total {text}: {amount} is not an amount.", text=text, amount=amount_text.strip())
            hint = say("Use only digits and a decimal point, without a sign or an exponent: KES=125000.50.")
            raise UsageError(message, hint=hint)
        if not equals or amount is None or not currency.strip():
            message = say("--expect-total {text} must be a currency and an amount.", text=text)
            raise UsageError(message, hint=say("Write it as KES=125000.50."))
        code = currency.strip().upper()
        if amounts.setdefault(code, amount) != amount:
            message = say("--expect-total has two totals for {currency}.", currency=code)
            hint = say("A sheet has one total for each currency. Specify each currency only once.")
            raise UsageError(message, hint=hint)
    return ControlTotals(rows, amounts)


def complete_batches(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Return the matching batch ids, newest first, or file completion if none match. Errors are ignored."""
    from paygw_batch.opening.open_journal import open_journal_to_read  # noqa: PLC0415 (only for shell completion)
    from paygw_batch.settings.user_directories import find_user_configuration  # noqa: PLC0415 (as above)

    parameters = ctx.find_root().params
    items: list[CompletionItem[str]] = []
    with suppress(PaygwError):
        config: Path | None = parameters.get("config") or find_user_configuration()
        settings = settings_for(Invocation(config, parameters.get("journal"), as_json=False, quiet=True, verbose=False))
        with open_journal_to_read(settings) as journal:
            items = [
                CompletionItem(record.batch, help=record.sheet_name)
                for record in reversed(journal.batches())
                if record.batch.startswith(incomplete)
            ]
    return items or [CompletionItem(incomplete, type="file")]


def complete_countries(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    from paygw_batch.countries.data import config_dir  # noqa: PLC0415 (only for shell completion)

    codes = sorted(file.stem for file in (config_dir() / "countries").glob("*.toml"))
    return [CompletionItem(code) for code in codes if code.startswith(incomplete.upper())]
