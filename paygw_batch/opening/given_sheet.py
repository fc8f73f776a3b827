"""Loads an operation's rules from the settings and reads and validates sheets by these rules."""

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
from paygw_batch.sheet.check.spelling import Spelling, readings, replace_cells, spelling_question
from paygw_batch.sheet.check.validate import validate
from paygw_batch.sheet.model import Sheet, Validated
from paygw_batch.sheet.read.headings import ReadOptions
from paygw_batch.sheet.read.profiles import load_profiles, merge_headings
from paygw_batch.sheet.read.sheet_file import read_sheet, require_own_columns, sheet_from_frame


def rules_for(settings: Settings, operation: str) -> Rules:
    """Load the rules of all countries for an operation, with the operator's terms."""
    return load_rules(operation, settings.terms(operation))


def load_rules_operation(rules: Rules) -> Operation:
    return load_operation(next(iter(rules.values())).operation)


def with_reply_names(settings: Settings, operation: Operation) -> Operation:
    """Return the operation with the names of reply fields configured in `[reply]`."""
    section = settings.reply
    names = {name: tuple(paths) for name, paths in section if isinstance(paths, list)}
    unit, minor_units = AmountUnit(section.amount_unit), minor_units_by_currency()
    return replace(operation, reply=replace(operation.reply, **names, amount_unit=unit, minor_units=minor_units))


def rule_minor_units(rules: Rules) -> Mapping[str, int]:
    """Return the number of decimals of each currency."""
    return {rule.currency: rule.minor_units for rule in rules.values()}


def require_gateway(settings: Settings) -> None:
    """Raise `ConfigurationError` with all missing keys if any is needed to send anything."""
    _require_keys(settings.missing_for_sending())


def require_complete(settings: Settings, rules: Rules, countries: set[str]) -> None:
    """Raise `ConfigurationError` with all missing keys if any is needed to send rows of `countries`."""
    used_rules = [rules[code] for code in sorted(countries) if code in rules]
    terms = [key for rule in used_rules if rule.form is not None for key in rule.missing_terms]
    _require_keys([*settings.missing_for_sending(), *settings.missing_for(load_rules_operation(rules).name), *terms])


def require_endpoint(settings: Settings) -> None:
    """Raise `ConfigurationError` with all missing keys if any is needed to identify a journal's endpoint.

    Also raises if no payout could be made at the configured address.
    """
    keys = {"gateway.base_url", "gateway.endpoint_id", "gateway.consumer_key"}
    _require_keys([key for key in settings.missing_for_sending() if key in keys])
    if not settings.uses_sandbox:
        gateway = settings.gateway
        from paygw_batch.gateway.address import operation_url  # noqa: PLC0415 (a check of a sheet needs no gateway)

        operation_url(gateway.base_url or "", load_operation(PAYOUT), gateway.endpoint_id or "")


def _require_keys(missing: Sequence[str]) -> None:
    if missing:
        raise ConfigurationError(
            say("The configuration does not set {missing}.", missing=", ".join(missing)),
            hint=say(
                "`paygw-batch init` asks for them; `paygw-batch init --sandbox` needs none. They can also be set in "
                "the file that --config names; `paygw-batch doctor` lists everything that is missing."
            ),
        )


def format_defaults(rule: CountryRule) -> str:
    """Format the default values for rows without a value as `name = "value"`. Empty if there are none."""
    return ", ".join(f'{name} = "{value}"' for name, value in sorted(rule.defaults.items()))


def default_value_notes(rules: Rules, countries: Iterable[str], columns: Collection[str]) -> list[str]:
    """Return sentences about the default values filled in, for each country of a sheet.

    Missing columns and empty cells have separate sentences.
    """
    notes = []
    for code in sorted(set(countries) & set(rules)):
        defaults = sorted(rules[code].defaults.items())
        missing = ", ".join(f'{name} = "{value}"' for name, value in defaults if name not in columns)
        empty = ", ".join(f'{name} = "{value}"' for name, value in defaults if name in columns)
        if missing:
            sentence = mark("{code}: the sheet lacks these values, so they are filled in: {absent}.")
            notes.append(say(sentence, code=code, absent=missing))
        if empty:
            notes.append(say("{code}: empty cells are filled in: {empty}.", code=code, empty=empty))
    return notes


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A person's choices for reading a sheet. If a value is None, the configuration decides.

    `reference`, `encoding`, `worksheet`, `numbers` and `names` answer the questions of `errors.QuestionKind`.
    `corrections` are a person's corrections to the sheet, whose file is not changed.
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
        """These choices as command-line options, without the corrections."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "corrections"}
        options = [(f"--{name.replace('_', '-')}", value) for name, value in values.items() if value is not None]
        return [word for option in options for word in option]


@dataclass(frozen=True, slots=True)
class SheetSource:
    """The source of a sheet, a file or a `frame`, and how to read it.

    A frame counts as the file `path`, which need not exist. `file` is the sender's name for the file, if it is stored
    under another name. `final_path` is the path of the sheet after submission, if it differs. If `asks` is true, a
    person can be asked how amounts and countries are written. Otherwise unclear values are defects, with a note.
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
        return load_rules_operation(self.rules).name

    @property
    def options(self) -> ReadOptions:
        """The options for reading the sheet: the person's choices, or otherwise the configuration's.

        A meaning that a person gave a heading (in the corrections) takes precedence over all profiles.
        """
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
    def spelling(self) -> Spelling:
        """How the sheet writes amounts and countries."""
        choices, usual = self.reading, self.settings.sheet
        is_text = self.frame is None and not (self.file or self.path.name).lower().endswith((".xlsx", ".parquet"))
        return Spelling(choices.numbers or usual.numbers, choices.names or usual.names, is_text)

    def read(self) -> Sheet:
        """Read the sheet without its corrections. Raises `SheetQuestion` if a question is open."""
        if self.frame is not None:
            return sheet_from_frame(self.frame, self.options, name=self.path.name)
        return read_sheet(self.path, self.options)

    def validated(self, sheet: Sheet | None = None) -> Validated:
        """Validate the sheet, with its corrections, by the rules of its operation. Pass `sheet` if it was already read.

        Raises `SheetQuestion` if a question is open.
        """
        corrections, original = self.reading.corrections, self.read() if sheet is None else sheet
        corrected = original if corrections is None else apply_corrections(original, corrections)
        require_own_columns(corrected, {name: load_operation(name).command for name in operation_names()})
        interpreted = readings(corrected, self.rules, self.spelling)
        spelled = replace(corrected, frame=replace_cells(corrected.frame, interpreted, "correction"))
        validated = replace(validate(spelled, self.rules, reference=self.reading.reference), read=interpreted)
        if (question := spelling_question(spelled, validated.defects_found, self.rules, self.spelling)) is None:
            return validated
        if self.asks:
            raise question
        notes = (*validated.sheet.notes, f"{question.message} {question.hint}")
        return replace(validated, sheet=replace(validated.sheet, notes=notes))


def suggest_reference(operation: str, now: datetime) -> str:
    """Suggest a name for a payment run of this month: `payroll-2026-11`. A person decides whether it is right.

    Order ids are derived from the name. Under a name that was used before, equal rows are known and not paid again.
    """
    return f"{'payroll' if operation == PAYOUT else 'collection'}-{now:%Y-%m}"
