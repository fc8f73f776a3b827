"""Loads the rules of an operation from the settings, and reads and validates a sheet by them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import polars as pl

from paygw_batch.core.batch import PAYOUT, ControlTotals, differences
from paygw_batch.core.sheet_answers import NO_ANSWERS, SheetAnswers
from paygw_batch.countries.load import load_operation, load_rules, minor_units_by_currency, operation_names
from paygw_batch.countries.rules import AmountUnit, CountryRule, Operation, Rules
from paygw_batch.errors import ConfigurationError, SheetError
from paygw_batch.language import say
from paygw_batch.settings.configuration import Settings
from paygw_batch.sheet.check.mending import Mending, mended_sheet
from paygw_batch.sheet.check.validate import validate
from paygw_batch.sheet.model import Sheet, Validated
from paygw_batch.sheet.read.profiles import every_profile, known_headings
from paygw_batch.sheet.read.sheet_file import ReadOptions, read_sheet, refuse_misdirected, sheet_of


def rules_of(settings: Settings, operation: str) -> Rules:
    """Return the rules of every country for an operation, with the operator's terms."""
    return load_rules(operation, settings.terms(operation))


def operation_of(rules: Rules) -> Operation:
    """Return the operation that rules are for."""
    return load_operation(next(iter(rules.values())).operation)


def as_answered(settings: Settings, operation: Operation) -> Operation:
    """Return the operation with the names that `[reply]` gives to the fields of a reply."""
    section = settings.reply
    named = {name: tuple(paths) for name, paths in section if isinstance(paths, list)}
    unit, minor_units = AmountUnit(section.amount_unit), minor_units_by_currency()
    return replace(operation, reply=replace(operation.reply, **named, amount_unit=unit, minor_units=minor_units))


def minor_units_of(rules: Rules) -> Mapping[str, int]:
    """Return how many decimals each currency has."""
    return {rule.currency: rule.minor_units for rule in rules.values()}


def require_gateway(settings: Settings) -> None:
    """Raise `ConfigurationError` naming every key that sending anything at all still needs."""
    _require(settings.missing_to_send())


def require_complete(settings: Settings, rules: Rules, countries: set[str]) -> None:
    """Raise `ConfigurationError` naming every key that sending to `countries` still needs."""
    used = [rules[code] for code in sorted(countries) if code in rules]
    of_countries = [key for rule in used if rule.form is not None for key in rule.missing_terms]
    _require([*settings.missing_to_send(), *settings.missing_for(operation_of(rules).name), *of_countries])


def require_endpoint(settings: Settings) -> None:
    """Raise `ConfigurationError` naming every key that still needs saying which endpoint a journal is for.

    So it does for an address at which no payout could ever be made.
    """
    keys = {"gateway.base_url", "gateway.endpoint_id", "gateway.consumer_key"}
    _require([key for key in settings.missing_to_send() if key in keys])
    if not settings.uses_sandbox:
        gateway = settings.gateway
        from paygw_batch.gateway.address import operation_url  # noqa: PLC0415 (a check of a sheet needs no gateway)

        operation_url(gateway.base_url or "", load_operation(PAYOUT), gateway.endpoint_id or "")


def _require(missing: Sequence[str]) -> None:
    if missing:
        raise ConfigurationError(
            say("The configuration does not set {missing}.", missing=", ".join(missing)),
            hint=say(
                "`paygw-batch init` asks for them; `paygw-batch init --sandbox` needs none. They can also be set in "
                "the file that --config names; `paygw-batch doctor` lists everything that is missing."
            ),
        )


def filled_in(rule: CountryRule) -> str:
    """Return the values for a country's rows where the sheet says nothing, as `name = "value"`; empty for none."""
    return ", ".join(f'{name} = "{value}"' for name, value in sorted(rule.defaults.items()))


def filled_in_notes(rules: Rules, countries: Iterable[str], columns: Collection[str]) -> list[str]:
    """Return a sentence for each country of a sheet about the filled-in values, if the sheet lacks a whole column.

    A column that the sheet has can have empty cells: what fills those is said as well.
    """
    notes = []
    for code in sorted(set(countries) & set(rules)):
        filled = sorted(rules[code].defaults.items())
        absent = [f'{name} = "{value}"' for name, value in filled if name not in columns]
        empty = [f'{name} = "{value}"' for name, value in filled if name in columns]
        if absent:
            notes.append(
                say(
                    "{code}: the sheet does not say these, so they are filled in: {absent}.",
                    code=code,
                    absent=", ".join(absent),
                )
            )
        if empty:
            notes.append(say("{code}: empty cells are filled in: {empty}.", code=code, empty=", ".join(empty)))
    return notes


def validated_sheet(
    settings: Settings,
    rules: Rules,
    path: Path,
    answers: SheetAnswers = NO_ANSWERS,
    *,
    mending: Mending | None = None,
    file: str | None = None,
) -> Validated:
    """Read and validate a sheet by the rules of its operation, as a person answered.

    `mending` are the corrections that a person made to it: the file itself stays as it is. `file` is the name that the
    sender gave it, if it is kept under another one. Raises `SheetQuestion` for what is left open.
    """
    options = replace(read_options(settings, operation_of(rules).name, answers, mending), file=file)
    sheet = read_sheet(path, options)
    if mending is None:
        return _validated(sheet, rules, answers.reference)
    return validated_mended(sheet, rules, mending, answers.reference)


def validated_mended(sheet: Sheet, rules: Rules, mending: Mending, reference: str | None) -> Validated:
    """Validate a sheet as it was read, with the corrections of a person."""
    return _validated(mended_sheet(sheet, mending), rules, reference)


def validated_frame(
    settings: Settings, rules: Rules, frame: pl.DataFrame, *, name: str, reference: str | None
) -> Validated:
    """Validate a frame as a sheet called `name`, by the rules of its operation."""
    sheet = sheet_of(frame, read_options(settings, operation_of(rules).name), name=name)
    return _validated(sheet, rules, reference)


def _validated(sheet: Sheet, rules: Rules, reference: str | None) -> Validated:
    refuse_misdirected(sheet, {name: load_operation(name).command for name in operation_names()})
    return validate(sheet, rules, reference=reference)


def read_options(
    settings: Settings, operation: str, answers: SheetAnswers = NO_ANSWERS, mending: Mending | None = None
) -> ReadOptions:
    """Return how sheets of an operation are read: as a person answered, and else as the configuration says.

    The meaning that a person gave a heading (in `mending`) is before every profile.
    """
    meant = {} if mending is None else mending.columns
    return ReadOptions(
        max_rows=settings.limits.max_rows,
        max_sheet_bytes=settings.limits.max_sheet_mib * 1024 * 1024,
        encoding=answers.encoding or settings.sheet.encoding,
        sheet_name=answers.worksheet,
        aliases={**known_headings(settings.sheet.column_profile, settings.columns), **meant},
        operation=operation,
        profiles=every_profile(settings.columns),
    )


def require_as_stated(settings: Settings, rules: Rules, validated: Validated, stated: ControlTotals | None) -> None:
    """Raise `SheetError` unless a sheet has the stated totals, and `ConfigurationError` for a key that it needs."""
    if stated is not None and (wrong := differences(stated, validated.totals)):
        raise SheetError(" ".join(wrong), hint=say("Nothing was sent. Make sure that this is the right sheet."))
    require_complete(settings, rules, set(validated.counts.filter("valid")["country"]))


def suggested_reference(operation: str, now: datetime) -> str:
    """Return a name for a payment run of this month: `payroll-2026-11`. A person decides whether it is the right one.

    The name makes order ids: under a name that was used before, rows that are equal count as known, and are not paid.
    """
    return f"{'payroll' if operation == PAYOUT else 'collection'}-{now:%Y-%m}"
