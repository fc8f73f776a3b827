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

from paygw_batch.cli.invocation import Invocation, NamedFile
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
    """Return a decorator that adds a group of options to a command.

    The command receives the options that are fields of the dataclass `kind` as one argument, `name`.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run_with_value(*arguments: Any, **rest: Any) -> None:
            values = {field.name: rest.pop(field.name) for field in fields(kind) if field.name in rest}
            command(*arguments, **rest, **{name: kind(**values)})

        for option in reversed(options):
            run_with_value = option(run_with_value)
        return run_with_value

    return decorate


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultOptions:
    """The options of a command that continues a batch. If `out` is None, results are written next to the sheet."""

    out: Path | None
    for_excel: bool = False
    force: bool
    wait: bool


result_options = bundle_options("results", ResultOptions)
"""Passes these options to a command as one argument, `results`."""

profile_option = click.option(
    "--column-profile",
    metavar="NAME",
    callback=lambda _context, _parameter, name: str(Path(name).absolute()) if (name or "").endswith(".toml") else name,
    help="The headings of the sheet: a column profile, or a file that `validate --map` wrote.",
)
strict_option = click.option("--strict", is_flag=True, help="Treat warnings as defects.")
skip_invalid_option = click.option(
    "--skip-invalid", is_flag=True, help="Leave rows with defects out and send the others."
)
choices_options = bundle_options(
    "choices",
    Choices,
    click.option("--amend", is_flag=True, help="Let changed rows replace those that are rejected or were never sent."),
    strict_option,
    click.option(
        "--repeats-meant", is_flag=True, help="Confirm that this sheet intentionally repeats a recent batch or payees."
    ),
    click.option(
        "--new-payee",
        "new_payees",
        multiple=True,
        metavar="NAME",
        help="Confirm that NAME is new in a payment run that was already paid. Repeatable.",
    ),
)
"""Adds the options with decisions about a sheet, which the command receives as one argument, `choices`."""
collect_option = click.option(
    "--collect",
    "operation",
    is_flag=True,
    callback=lambda _context, _parameter, chosen: PAYIN if chosen else PAYOUT,
    help="The sheet lists customers to collect from, not people to pay.",
)
force_option = click.option("--force", is_flag=True, help="Overwrite an existing file that this program did not write.")
excel_option = click.option(
    "--for-excel", is_flag=True, help="Write the CSV file so that Excel opens it with every digit."
)
plan_page_option = click.option(
    "--report", type=NamedFile(), metavar="FILE.html", help="Also write the plan as an HTML page."
)
by_option = click.option("--by", metavar="NAME", help="Your name, for the record. Your login is always recorded.")


def settings_for(
    invocation: Invocation,
    flags: Mapping[tuple[str, str], object | None] | None = None,
    *,
    distrusts: list[ConfigurationError] | None = None,
) -> Settings:
    """Return the settings of this invocation. Flags with the value None are ignored.

    A configuration file that others can write is refused or, if `distrusts` is given, added to it.
    """
    overrides = {key: value for key, value in (flags or {}).items() if value is not None}
    if invocation.journal is not None:
        if invocation.journal.suffix.lower() in {sheet_format.extension for sheet_format in FORMATS}:
            raise UsageError(say("{path} is a sheet, not a journal.", path=invocation.journal))
        overrides["journal", "path"] = str(invocation.journal.absolute())
    return load_settings(invocation.config, environ=os.environ, flags=overrides, distrusts=distrusts)


def output_guard(invocation: Invocation, settings: Settings, *, force: bool = False) -> OutputGuard:
    """Return the guard against overwriting other files for this invocation."""
    return OutputGuard(settings, invocation.config, force)


def require_csv(out: Path | None, *, for_excel: bool) -> None:
    """Raise `UsageError` if --for-excel is used with a file that is not CSV."""
    if for_excel and out is not None and out.suffix.lower() != ".csv":
        raise UsageError(
            say("--for-excel is for CSV files, but {out} is not one.", out=out),
            hint=say("Leave it out: a workbook (.xlsx) keeps every digit anyway."),
        )


def program_command(invocation: Invocation) -> list[str]:
    """Return the command line that starts the program again with the same configuration."""
    config = [] if invocation.config is None else ["--config", str(invocation.config.absolute())]
    return [sys.executable, "-P", "-m", "paygw_batch", *config]


def parse_expected_totals(rows: int | None, sums: tuple[str, ...]) -> ControlTotals:
    """Return the control totals from `--expect-rows N` and `--expect-total CUR=AMOUNT`."""
    amounts: dict[str, Decimal] = {}
    for text in sums:
        currency, equals, amount_text = text.partition("=")
        amount = parse_amount(amount_text, minor_units=4)
        if "," in amount_text or "\N{NO-BREAK SPACE}" in amount_text or " " in amount_text.strip():
            raise UsageError(
                say("--expect-total {text}: write the amount without thousands separators.", text=text),
                hint=say("Use a decimal point: KES=125000.50."),
            )
        if equals and currency.strip() and amount_text.strip() and amount is None:
            raise UsageError(
                say("--expect-total {text}: {amount} is not an amount.", text=text, amount=amount_text.strip()),
                hint=say("Write it in plain digits, without a sign or an exponent: KES=125000.50."),
            )
        if not equals or amount is None or not currency.strip():
            raise UsageError(
                say("--expect-total {text} does not name a currency and an amount.", text=text),
                hint=say("Write it as KES=125000.50."),
            )
        name = currency.strip().upper()
        if amounts.setdefault(name, amount) != amount:
            raise UsageError(
                say("--expect-total gives two totals for {currency}.", currency=name),
                hint=say("A sheet has one total in each currency: give each currency once."),
            )
    return ControlTotals(rows, amounts)


def complete_batches(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Return the matching batch ids, newest first, or file completion if none match.

    A batch can also be named by the path of its sheet. Errors are ignored, because a shell could not show them.
    """
    from paygw_batch.opening.open_journal import open_journal_to_read  # noqa: PLC0415 (not before a shell asks)
    from paygw_batch.settings.user_directories import find_user_configuration  # noqa: PLC0415 (as above)

    parameters = ctx.find_root().params
    batches: list[CompletionItem[str]] = []
    with suppress(PaygwError):
        config: Path | None = parameters.get("config") or find_user_configuration()
        settings = settings_for(Invocation(config, parameters.get("journal"), as_json=False, quiet=True, verbose=False))
        with open_journal_to_read(settings) as journal:
            batches = [
                CompletionItem(record.batch, help=record.sheet_name)
                for record in reversed(journal.batches())
                if record.batch.startswith(incomplete)
            ]
    return batches or [CompletionItem(incomplete, type="file")]


def complete_countries(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    from paygw_batch.countries.data import config_dir  # noqa: PLC0415 (not before a shell asks)

    codes = sorted(file.stem for file in (config_dir() / "countries").glob("*.toml"))
    return [CompletionItem(code) for code in codes if code.startswith(incomplete.upper())]
