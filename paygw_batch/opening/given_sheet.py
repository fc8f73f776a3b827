"""Loads the rules of an operation, and reads and validates sheets according to these rules."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path

import polars as pl

from paygw_batch.core.batch import PAYOUT
from paygw_batch.countries.load import load_operation, load_rules, minor_units_by_currency, operation_names
from paygw_batch.countries.rules import AmountUnit, CountryRule, Operation, Rules
from paygw_batch.errors import ConfigurationError
from paygw_batch.language import mark, say
from paygw_batch.settings.configuration import Settings
from paygw_batch.sheet.check.corrections import Corrections, apply_corrections
from paygw_batch.sheet.check.spelling import Answers, interpreted_cells, replace_cells, spelling_question
from paygw_batch.sheet.check.validate import validate
from paygw_batch.sheet.model import Sheet, Validated
from paygw_batch.sheet.read.headings import ReadOptions
from paygw_batch.sheet.read.profiles import load_profiles, merge_headings
from paygw_batch.sheet.read.sheet_file import check_operation, read_sheet, sheet_from_frame


def rules_for(settings: Settings, operation: str) -> Rules:
    """Load the rules of all countries for an operation, including the terms of the gateway's operator."""
    return load_rules(operation, settings.terms(operation))


def operation_of(rules: Rules) -> Operation:
    return load_operation(next(iter(rules.values())).operation)


def with_reply_names(settings: Settings, operation: Operation) -> Operation:
    """Return the operation with the reply field names from `[reply]`."""
    section = settings.reply
    names = {name: tuple(paths) for name, paths in section if isinstance(paths, list)}
    unit, minor_units = AmountUnit(section.amount_unit), minor_units_by_currency()
    return replace(operation, reply=replace(operation.reply, **names, amount_unit=unit, minor_units=minor_units))


def rule_minor_units(rules: Rules) -> Mapping[str, int]:
    """Map each currency to its number of decimals."""
    return {rule.currency: rule.minor_units for rule in rules.values()}


def require_sending_settings(settings: Settings) -> None:
    """Raise `ConfigurationError` if settings needed for sending are missing."""
    _reject_missing(settings.missing_for_sending())


def require_complete(settings: Settings, rules: Rules, countries: set[str]) -> None:
    """Raise `ConfigurationError` if settings needed for sending rows of `countries` are missing."""
    country_rules = [rules[code] for code in sorted(countries) if code in rules]
    missing_terms = [key for rule in country_rules if rule.form is not None for key in rule.missing_terms]
    _reject_missing([*settings.missing_for_sending(), *settings.missing_for(operation_of(rules).name), *missing_terms])


def require_endpoint(settings: Settings) -> None:
    """Raise `ConfigurationError` if settings that identify the endpoint are missing or unusable."""
    keys = {"gateway.base_url", "gateway.endpoint_id", "gateway.consumer_key"}
    _reject_missing([key for key in settings.missing_for_sending() if key in keys])
    if not settings.uses_sandbox:
        gateway = settings.gateway
        from paygw_batch.gateway.address import operation_url  # noqa: PLC0415 (a check of a sheet needs no gateway)

        operation_url(gateway.base_url or "", load_operation(PAYOUT), gateway.endpoint_id or "")


def _reject_missing(missing: Sequence[str]) -> None:
    if missing:
        raise ConfigurationError(
            say("The configuration does not set {missing}.", missing=", ".join(missing)),
            hint=say(
                "To be asked for these settings, run `paygw-batch init`. `paygw-batch init --sandbox` needs none. You "
                "can also set them in the --config file. To see everything that is missing, run `paygw-batch doctor`."
            ),
        )


def format_defaults(rule: CountryRule) -> str:
    """Format a country's default values as `name = "value"`, or as an empty string if there are none."""
    return ", ".join(f'{name} = "{value}"' for name, value in sorted(rule.defaults.items()))


def default_value_notes(rules: Rules, countries: Iterable[str], columns: Collection[str]) -> list[str]:
    """Describe the default values filled in for each country, separately for missing columns and empty cells."""
    notes = []
    for code in sorted(set(countries) & set(rules)):
        defaults = sorted(rules[code].defaults.items())
        for_missing_columns = ", ".join(f'{name} = "{value}"' for name, value in defaults if name not in columns)
        for_empty_cells = ", ".join(f'{name} = "{value}"' for name, value in defaults if name in columns)
        if for_missing_columns:
            template = mark("{code}: these values are missing from the sheet and are filled in: {absent}.")
            notes.append(say(template, code=code, absent=for_missing_columns))
        if for_empty_cells:
            notes.append(say("{code}: empty cells are filled in: {empty}.", code=code, empty=for_empty_cells))
    return notes


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A person's choices for reading a sheet. Choices that are None are left to the configuration.

    `reference`, `encoding`, `worksheet`, `numbers` and `names` answer the questions of `errors.QuestionKind`.
    `corrections` change the sheet in memory, not its file.
    """

    reference: str | None = None
    encoding: str | None = None
    worksheet: str | None = None
    numbers: str | None = None
    names: str | None = None
    column_profile: str | None = None
    corrections: Corrections | None = None

    @property
    def words(self) -> Sequence[str]:
        """The choices as command-line options, without corrections."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "corrections"}
        options = [(f"--{name.replace('_', '-')}", value) for name, value in values.items() if value is not None]
        return [word for option in options for word in option]


@dataclass(frozen=True, slots=True)
class SheetSource:
    """A sheet to read, and how to read it.

    If `frame` is given, it is read instead of the file at `path`, which need not exist. `file` is the sender's name for
    the file, if different. `final_path` is the sheet's path after submission, if different. If `asks` is true, a person
    can be asked how amounts and countries are written. Otherwise unclear values become defects, with a note.
    """

    settings: Settings
    rules: Rules
    path: Path
    reading: Reading = Reading()
    frame: pl.DataFrame | None = None
    file: str | None = None
    final_path: Path | None = None
    asks: bool = False

    @property
    def operation(self) -> str:
        return operation_of(self.rules).name

    @property
    def options(self) -> ReadOptions:
        """The options for reading the sheet. A person's choices override the configuration."""
        settings, reading = self.settings, self.reading
        profile = settings.sheet.column_profile if reading.column_profile is None else reading.column_profile
        columns = {} if reading.corrections is None else reading.corrections.columns
        return ReadOptions(
            max_rows=settings.limits.max_rows,
            max_sheet_bytes=settings.limits.max_sheet_mib * 1024 * 1024,
            encoding=reading.encoding or settings.sheet.encoding,
            sheet_name=reading.worksheet,
            aliases={**merge_headings(profile, settings.columns), **columns},
            operation=self.operation,
            profiles=load_profiles(settings.columns),
            file=self.file or "",
        )

    @property
    def spelling(self) -> Answers:
        """How amounts and countries are written in the sheet."""
        reading, configured = self.reading, self.settings.sheet
        is_text = self.frame is None and not (self.file or self.path.name).lower().endswith((".xlsx", ".parquet"))
        return Answers(reading.numbers or configured.numbers, reading.names or configured.names, is_text)

    def read(self) -> Sheet:
        """Read the sheet without applying corrections. Raises `SheetQuestion` if a person must answer a question."""
        if self.frame is not None:
            return sheet_from_frame(self.frame, self.options, name=self.path.name)
        return read_sheet(self.path, self.options)

    def validated(self, sheet: Sheet | None = None) -> Validated:
        """Validate the corrected sheet. Raises `SheetQuestion` if a person must answer a question."""
        corrections, original = self.reading.corrections, self.read() if sheet is None else sheet
        corrected = original if corrections is None else apply_corrections(original, corrections)
        check_operation(corrected, {name: load_operation(name).command for name in operation_names()})
        interpreted = interpreted_cells(corrected, self.rules, self.spelling)
        normalized = replace(corrected, frame=replace_cells(corrected.frame, interpreted, "correction"))
        validated = replace(validate(normalized, self.rules, reference=self.reading.reference), interpreted=interpreted)
        if (question := spelling_question(normalized, validated.defects_found, self.rules, self.spelling)) is None:
            return validated
        if self.asks:
            raise question
        notes = (*validated.sheet.notes, f"{question.message} {question.hint}")
        return replace(validated, sheet=replace(validated.sheet, notes=notes))


def suggest_reference(operation: str, now: datetime) -> str:
    """Suggest a name for this month's payment run, such as `payroll-2026-11`.

    Order ids are derived from the name. If the name was used before, identical rows are recognised and not paid again.
    """
    return f"{'payroll' if operation == PAYOUT else 'collection'}-{now:%Y-%m}"
