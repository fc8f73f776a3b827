"""Reads the data files under config/ strictly: a misspelt key or a value of the wrong type is an error.

The models define the format of the files. `load` converts them to the types in `rules`.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from datetime import date
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, RootModel, StringConstraints, ValidationError, model_validator
from pydantic_core import ErrorDetails

from paygw_batch.countries.kinds import KINDS, MAX_TEXT_CHARACTERS, Checking
from paygw_batch.countries.rules import AmountForm, FieldKind
from paygw_batch.errors import ConfigurationError
from paygw_batch.language import ENGLISH, language, mark, say

_PACKAGE = Path(__file__).resolve().parents[1]


def config_dir() -> Path:
    """Return the folder with the data files, in the installed package or at the top of a checkout."""
    installed = _PACKAGE / "config"
    return installed if installed.is_dir() else _PACKAGE.parent / "config"


SuppliedName = Literal["purpose", "ipaddress", "order_desc", "address1", "city", "zip_code", "merchant_data"]
"""A field whose value the operator's terms can supply."""
SUPPLIED_NAMES: tuple[SuppliedName, ...] = get_args(SuppliedName)

_NonEmptyText = Annotated[str, StringConstraints(min_length=1)]
_FieldName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
_Digits = Annotated[str, StringConstraints(pattern=r"^[0-9]+$")]

_COUNTRY_CODE = re.compile(r"[A-Z]{2}")
_DATA_HINT = mark("This file is part of the program. Reinstall the program, or undo your changes to the file.")
_UNSUPPORTED_SYNTAX = re.compile(r"\\[1-9dDsSwWZ]|\(\?(?:[=!>(]|<[=!]|P=)|[*+?}]\+")
"""Regular expression syntax that polars doesn't support, or that matches digits of other scripts."""


class _StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class FieldData(_StrictModel):
    """A `[[fields]]` entry in a form. `default` is sent if neither the sheet nor the operator provides a value.

    Unless `everywhere` is set, the field is sent only for countries whose files name it. `reconciled` fields have their
    own column in the reconciliation. `label` is the column's displayed name, if different.
    """

    name: _FieldName
    kind: Annotated[FieldKind, Field(strict=False)]  # strict mode would reject strings
    from_sheet: bool = True
    default: _NonEmptyText | None = None
    everywhere: bool = True
    reconciled: bool = True
    label: _NonEmptyText | None = None

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        kind, entry = self.kind, KINDS[self.kind]
        if self.from_sheet and entry.checking is Checking.NOT_IN_SHEET:
            raise ValueError(say("a sheet cannot have a field of the kind {kind}: write from_sheet = false", kind=kind))
        if self.from_sheet and entry.column not in {None, self.name}:
            raise ValueError(
                say(
                    "a field of the kind {kind} must be called {column}, like the column in a sheet: rename the "
                    "field, or write from_sheet = false",
                    kind=kind,
                    column=entry.column,
                )
            )
        if not self.from_sheet and not (entry.is_outside_fields or entry.is_filled):
            raise ValueError(say("a field of the kind {kind} must come from the sheet", kind=kind))
        return self


class FormData(_StrictModel):
    """A file in config/forms/. `shown` maps the reconciliation's columns to the fields that they show."""

    fields: Annotated[list[FieldData], Field(min_length=1)]
    shown: dict[
        Literal["account_name", "account_number", "phone"], Annotated[list[_FieldName], Field(min_length=1)]
    ] = {}

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = [field.name for field in self.fields]
        if len(set(names)) != len(names):
            raise ValueError(say("a field is listed twice"))
        if unknown := sorted({name for sources in self.shown.values() for name in sources} - set(names)):
            raise ValueError(say("`shown` lists {name}, which is not a field", name=unknown[0]))
        return self


class ReplyData(_StrictModel):
    """`[reply]` in an operation's file."""

    echo_order_id: _NonEmptyText
    echo_amount: _NonEmptyText
    echo_currency: _NonEmptyText
    reference_fields: list[_NonEmptyText]
    error_code_fields: list[_NonEmptyText]
    message_fields: list[_NonEmptyText]
    customer_url_fields: list[_NonEmptyText] = []


class OperationData(_StrictModel):
    """A file in config/operations/.

    The operator must configure the fields in `operator_supplies` for countries that use them. For each currency in
    `one_purpose`, all countries must have the same purpose.
    """

    command: Annotated[str, StringConstraints(pattern=r"^[a-z-]+$")]
    verb: Annotated[str, StringConstraints(pattern=r"^[a-z]+$")]
    columns: Annotated[list[_FieldName], Field(min_length=1)]
    amount_forms: Annotated[list[Annotated[AmountForm, Field(strict=False)]], Field(min_length=1)]
    one_purpose: list[_NonEmptyText] = []
    path: Annotated[str, StringConstraints(pattern=r"^(/[A-Za-z0-9._-]+)+/\{endpoint_id\}$")]
    default_form: _NonEmptyText
    operator_supplies: list[SuppliedName]
    reply: ReplyData


class EnquiryData(_StrictModel):
    """A file in config/enquiries/."""

    path: Annotated[str, StringConstraints(pattern=r"^(/[A-Za-z0-9._-]+)+/\{endpoint_id\}$")]


class CountryOperationData(_StrictModel):
    """`[operations.NAME]` in a country's file: differences from the default form, in which all fields are required.

    - `fields` maps a field to `never` (sent here), `sent` (here but not everywhere), `optional` or `required` (by the
      interface, regardless of the operator's terms).
    - `max_characters` maps a text field to its maximum length here.
    - `unusable` says why the operation cannot be used until the operator's terms name a form.
    """

    form: _NonEmptyText | None = None
    fields: dict[_FieldName, Literal["never", "sent", "optional", "required"]] = {}
    max_characters: dict[_FieldName, Annotated[int, Field(ge=1, le=MAX_TEXT_CHARACTERS)]] = {}
    unusable: str = ""
    notes: list[_NonEmptyText] = []

    @model_validator(mode="after")
    def _check_form(self) -> Self:
        if self.form is not None and self.unusable:
            raise ValueError(say("write either a form or `unusable`, but not both"))
        return self


class FormerNumbersData(_StrictModel):
    """`[former_numbers]` in a country's file: its mobile numbers before the numbering plan last changed.

    `changed` is the date of the change. `in_front` maps each new prefix to the pattern of the numbers it was added to.
    """

    changed: date
    example: _Digits
    in_front: Annotated[dict[_Digits, _NonEmptyText], Field(min_length=1)]

    @property
    def pattern(self) -> str:
        """A regular expression for any former number."""
        return f"(?:{'|'.join(self.in_front.values())})"

    @model_validator(mode="after")
    def _check_example(self) -> Self:
        if problem := pattern_problem(self.pattern):
            raise ValueError(problem)
        if re.fullmatch(self.pattern, self.example) is None:
            raise ValueError(say("the example does not match the pattern and lengths"))
        return self


class CountryData(_StrictModel):
    """A file in config/countries/, named after the gateway's code for the country.

    Two keys are for tooling/mobile_numbers.py: `metadata_region` is the country's code in the metadata of phone
    numbers, if different, and `narrowed_numbers` maps parts of the pattern there to replacements.
    """

    name: _NonEmptyText
    demonym: _NonEmptyText
    currency: Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")]
    minor_units: Annotated[int, Field(ge=0, le=4)]
    notes: list[_NonEmptyText] = []
    confused_codes: dict[str, _NonEmptyText] = {}
    metadata_region: str = ""
    narrowed_numbers: dict[_NonEmptyText, _NonEmptyText] = {}
    former_numbers: FormerNumbersData | None = None
    operations: Annotated[dict[str, CountryOperationData], Field(min_length=1)]


class NumbersData(_StrictModel):
    """A country's numbers in config/mobile-numbers.toml."""

    dialling_code: _Digits
    trunk_prefix: _Digits | Literal[""]
    keeps_zero: bool
    pattern: _NonEmptyText
    national_lengths: Annotated[list[int], Field(min_length=1)]
    example: _Digits

    @model_validator(mode="after")
    def _check_example(self) -> Self:
        if problem := pattern_problem(self.pattern):
            raise ValueError(problem)
        if re.fullmatch(self.pattern, self.example) is None or len(self.example) not in self.national_lengths:
            raise ValueError(say("the example does not match the pattern and lengths"))
        if self.keeps_zero and self.trunk_prefix:
            raise ValueError(say("a number that keeps its zero cannot have a trunk prefix"))
        return self


_NumbersFile = RootModel[dict[str, NumbersData]]
_OperatorsFile = RootModel[dict[str, dict[str, list[_Digits]]]]


def pattern_problem(pattern: str) -> str:
    """Return why a regular expression is invalid in Python or polars, or an empty string."""
    if unsupported := _UNSUPPORTED_SYNTAX.search(pattern):
        return say(
            "{part!r} cannot be used in this pattern (no look-around, no back-references, digits as [0-9])",
            part=unsupported[0],
        )
    try:
        re.compile(pattern)
    except re.error as error:
        return say("the pattern cannot be read: {error}", error=error)
    return ""


def read_operation(root: Path, name: str) -> OperationData:
    """Read config/operations/NAME.toml. Raises `ConfigurationError` for an unknown name."""
    names = list_operations(root)
    if name not in names:
        hint = nearest(name, names)
        raise ConfigurationError(say("There is no operation {name!r}. {nearest}", name=name, nearest=hint))
    return _read(root, f"operations/{name}.toml", OperationData)


def list_operations(root: Path) -> list[str]:
    """Return the names of all operations in alphabetical order."""
    return _file_stems(root, "operations")


def read_enquiry(root: Path, profile: str) -> EnquiryData:
    """Read config/enquiries/PROFILE.toml. Raises `ConfigurationError` for an unknown name."""
    names = _file_stems(root, "enquiries")
    if profile not in names:
        hint = nearest(profile, names)
        raise ConfigurationError(say("There is no status enquiry {name!r}. {nearest}", name=profile, nearest=hint))
    return _read(root, f"enquiries/{profile}.toml", EnquiryData)


def read_forms(root: Path) -> Mapping[str, FormData]:
    return {name: _read(root, f"forms/{name}.toml", FormData) for name in _file_stems(root, "forms")}


def read_countries(root: Path) -> Mapping[str, CountryData]:
    countries = {code: _read(root, f"countries/{code}.toml", CountryData) for code in _file_stems(root, "countries")}
    names = list_operations(root)
    for code, country in countries.items():
        if unknown := sorted(country.operations.keys() - {*names}):
            suggestion = nearest(unknown[0], names)
            message = say("There is no operation {name!r}. {nearest}", name=unknown[0], nearest=suggestion)
            raise ConfigurationError(f"config/countries/{code}.toml: {message}", hint=say(_DATA_HINT))
        if _COUNTRY_CODE.fullmatch(code) is None:
            raise ConfigurationError(
                say("config/countries/{code}.toml: a country code must be two capital letters.", code=code),
                hint=say(_DATA_HINT),
            )
        if conflicting := sorted(countries.keys() & country.confused_codes.keys()):
            raise ConfigurationError(
                say(
                    "config/countries/{code}.toml: confused_codes must not contain {other}, a country.",
                    code=code,
                    other=conflicting[0],
                ),
                hint=say(_DATA_HINT),
            )
    return countries


def read_numbers(root: Path) -> Mapping[str, NumbersData]:
    return _read(root, "mobile-numbers.toml", _NumbersFile).root


def read_operators(root: Path) -> Mapping[str, Mapping[str, list[str]]]:
    """Read each mobile operator's number prefixes, by country code, from config/mobile-operators.toml."""
    return _read(root, "mobile-operators.toml", _OperatorsFile).root


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return a hint about an unknown word, with the most similar of `choices` and a list of them all."""
    words = sorted(choices)
    matches = get_close_matches(word, words, n=1) or get_close_matches(word.upper(), words, n=1, cutoff=0.5)
    known_words = say("Choose from: {words}.", words=", ".join(words))
    return f"{say('Did you mean {near}?', near=matches[0])} {known_words}" if matches else known_words


def validation_message(problem: ErrorDetails) -> str:
    """Return a validation error's message in the current language, without pydantic's prefix."""
    context = problem.get("ctx", {})
    if isinstance(error := context.get("error"), ValueError):
        return str(error)
    template = _PYDANTIC_MESSAGES.get(problem["type"])
    if template is None or language() == ENGLISH:  # pydantic's own messages have plural forms
        return problem["msg"]
    return say(template, **context)


_PYDANTIC_MESSAGES = {
    "missing": mark("Field required"),
    "string_type": mark("Input should be a valid string"),
    "int_type": mark("Input should be a valid integer"),
    "int_parsing": mark("Input should be a valid integer, unable to parse string as an integer"),
    "float_type": mark("Input should be a valid number"),
    "float_parsing": mark("Input should be a valid number, unable to parse string as a number"),
    "bool_type": mark("Input should be a valid boolean"),
    "bool_parsing": mark("Input should be a valid boolean, unable to interpret input"),
    "greater_than": mark("Input should be greater than {gt}"),
    "greater_than_equal": mark("Input should be greater than or equal to {ge}"),
    "less_than": mark("Input should be less than {lt}"),
    "less_than_equal": mark("Input should be less than or equal to {le}"),
    "literal_error": mark("Input should be {expected}"),
    "enum": mark("Input should be {expected}"),
    "string_too_short": mark("String should have at least {min_length} characters"),
    "string_too_long": mark("String should have at most {max_length} characters"),
    "string_pattern_mismatch": mark("String should match pattern '{pattern}'"),
    "list_type": mark("Input should be a valid list"),
    "dict_type": mark("Input should be a valid dictionary"),
}
"""Pydantic's own messages by error type, marked for translation."""


def _file_stems(root: Path, folder: str) -> list[str]:
    return sorted(file.stem for file in (root / folder).glob("*.toml"))


_Model = TypeVar("_Model", bound=BaseModel)


def _read(root: Path, name: str, model: type[_Model]) -> _Model:
    """Read and validate a file, or return the cached data if the file has not changed."""
    return cast("_Model", _read_cached(root, name, model, _file_version(root, name)))


def _file_version(root: Path, name: str) -> tuple[int, int, int] | None:
    try:
        stat = (root / name).stat()
    except OSError:
        return None  # reading the file then raises the error
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


@cache
def _read_cached(root: Path, name: str, model: type[BaseModel], _: tuple[int, int, int] | None) -> BaseModel:
    try:
        return model.model_validate(tomllib.loads((root / name).read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(
            say("{path} cannot be read: {reason}.", path=f"config/{name}", reason=error), hint=say(_DATA_HINT)
        ) from error
    except ValidationError as error:
        messages = "; ".join(_add_path(problem["loc"], validation_message(problem)) for problem in error.errors())
        raise ConfigurationError(f"config/{name}: {messages}", hint=say(_DATA_HINT)) from error


def _add_path(location: tuple[int | str, ...], message: str) -> str:
    path = ".".join(str(part) for part in location)
    return f"{path}: {message}" if path else message
