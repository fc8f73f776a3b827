"""Reads and validates a sheet by the settings."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import polars as pl

from paygw_batch.core.batch import PAYOUT, ControlTotals, differences
from paygw_batch.core.sheet_answers import NO_ANSWERS, SheetAnswers
from paygw_batch.countries.load import load_operation, operation_names
from paygw_batch.countries.rules import Rules
from paygw_batch.errors import SheetError
from paygw_batch.language import say
from paygw_batch.settings.configuration import Settings
from paygw_batch.sheet.check.mending import Mending, mended_sheet
from paygw_batch.sheet.check.validate import validate
from paygw_batch.sheet.model import Sheet, Validated
from paygw_batch.sheet.read.profiles import every_profile, known_headings
from paygw_batch.sheet.read.sheet_file import ReadOptions, read_sheet, refuse_misdirected, sheet_of
from paygw_batch.wiring.operations import operation_of, require_complete


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
