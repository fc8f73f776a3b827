"""Reads the data files under config/ strictly: a misspelt key or a value of the wrong type is an error.

The models define the format of the files. They are used only in this package; `load` converts them to the types in
`rules`.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from datetime import date
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, RootModel, StringConstraints, ValidationError, model_validator
from pydantic_core import ErrorDetails

from paygw_batch.countries.kinds import KINDS, TEXT_CHARACTERS, Checking
from paygw_batch.countries.rules import AmountForm, FieldKind
from paygw_batch.errors import ConfigurationError
from paygw_batch.language import ENGLISH, language, mark, say

_PACKAGE = Path(__file__).resolve().parents[1]


def config_dir() -> Path:
    """Return the folder of the data files: in the installed package, or at the top of a checkout."""
    installed = _PACKAGE / "config"
    return installed if installed.is_dir() else _PACKAGE.parent / "config"


SuppliedName = Literal["purpose", "ipaddress", "order_desc", "address1", "city", "zip_code", "merchant_data"]
"""A field whose value can be in the operator's terms."""
SUPPLIED_NAMES: tuple[SuppliedName, ...] = get_args(SuppliedName)

_Text = Annotated[str, StringConstraints(min_length=1)]
_FieldName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
_Digits = Annotated[str, StringConstraints(pattern=r"^[0-9]+$")]

_COUNTRY_CODE = re.compile(r"[A-Z]{2}")
_DATA_HINT = mark("The file is part of the program. Reinstall the program, or undo the change to the file.")
_NOT_PORTABLE = re.compile(r"\\[1-9dDsSwWZ]|\(\?(?:[=!>(]|<[=!]|P=)|[*+?}]\+")
"""Syntax that polars doesn't support (look-around, back-references, atomic groups), or that matches other digits."""


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class FieldData(_Data):
    """A `[[fields]]` entry of a form. `default` is sent if neither the sheet nor the operator has a value.

    Fields that are not sent `everywhere` are sent only in countries whose files name them. `reconciled` fields have
    their own column in the reconciliation. `label` is the column's displayed name, if it differs.
    """

    name: _FieldName
    kind: Annotated[FieldKind, Field(strict=False)]  # strict mode would reject the strings in a file
    from_sheet: bool = True
    default: _Text | None = None
    everywhere: bool = True
    reconciled: bool = True
    label: _Text | None = None

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        entry = KINDS[self.kind]
        if self.from_sheet and entry.checking is Checking.NEVER_IN_A_SHEET:
            raise ValueError(
                say("a sheet never has a field of the kind {kind}: write from_sheet = false", kind=self.kind)
            )
        if self.from_sheet and entry.column not in {None, self.name}:
            raise ValueError(
                say(
                    "a field of the kind {kind} is the column {column} of a sheet: give the field that name, or write "
                    "from_sheet = false",
                    kind=self.kind,
                    column=entry.column,
                )
            )
        if not self.from_sheet and not (entry.is_outside_fields or entry.is_filled):
            raise ValueError(say("a field of the kind {kind} comes from the sheet", kind=self.kind))
        return self


class FormData(_Data):
    """A file of config/forms/. `shown` maps columns of the reconciliation to the form fields that they show."""

    fields: Annotated[list[FieldData], Field(min_length=1)]
    shown: dict[
        Literal["account_name", "account_number", "phone"], Annotated[list[_FieldName], Field(min_length=1)]
    ] = {}

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = [field.name for field in self.fields]
        if len(set(names)) != len(names):
            raise ValueError(say("a field is listed twice"))
        if strange := sorted({name for sources in self.shown.values() for name in sources} - set(names)):
            raise ValueError(say("`shown` names {name}, which is not a field", name=strange[0]))
        return self


class ReplyData(_Data):
    """The table `[reply]` of an operation."""

    echo_order_id: _Text
    echo_amount: _Text
    echo_currency: _Text
    reference_fields: list[_Text]
    error_code_fields: list[_Text]
    message_fields: list[_Text]
    customer_url_fields: list[_Text] = []


class OperationData(_Data):
    """A file of config/operations/. Countries need `operator_supplies` if their forms have these fields.

    The countries of each `one_purpose` currency must all have the same purpose.
    """

    command: Annotated[str, StringConstraints(pattern=r"^[a-z-]+$")]
    verb: Annotated[str, StringConstraints(pattern=r"^[a-z]+$")]
    columns: Annotated[list[_FieldName], Field(min_length=1)]
    amount_forms: Annotated[list[Annotated[AmountForm, Field(strict=False)]], Field(min_length=1)]
    one_purpose: list[_Text] = []
    path: Annotated[str, StringConstraints(pattern=r"^(/[A-Za-z0-9._-]+)+/\{endpoint_id\}$")]
    default_form: _Text
    operator_supplies: list[SuppliedName]
    reply: ReplyData


class EnquiryData(_Data):
    """A file of config/enquiries/."""

    path: Annotated[str, StringConstraints(pattern=r"^(/[A-Za-z0-9._-]+)+/\{endpoint_id\}$")]


class CountryOperationData(_Data):
    """- `[operations.NAME]` of a country: its differences from the operation's default form with all fields required.

    - `fields`: a field of the form -> `never` sent here, `sent` here but not everywhere, `optional`, or `required` by
      the interface, regardless of the operator's terms.
    - `max_characters`: a string field -> its maximum length here.
    - `unusable` is the reason why the operation cannot be used until the operator's terms name a form.
    """

    form: _Text | None = None
    fields: dict[_FieldName, Literal["never", "sent", "optional", "required"]] = {}
    max_characters: dict[_FieldName, Annotated[int, Field(ge=1, le=TEXT_CHARACTERS)]] = {}
    unusable: str = ""
    notes: list[_Text] = []

    @model_validator(mode="after")
    def _check_form(self) -> Self:
        if self.form is not None and self.unusable:
            raise ValueError(say("write either a form or `unusable`, not both"))
        return self


class FormerNumbersData(_Data):
    """`[former_numbers]` of a country: mobile numbers before the last change of the numbering plan.

    `changed` is the date of the change. `in_front`: a new prefix -> the pattern of the national numbers that got it.
    """

    changed: date
    example: _Digits
    in_front: Annotated[dict[_Digits, _Text], Field(min_length=1)]

    @property
    def pattern(self) -> str:
        """The pattern of all former numbers."""
        return f"(?:{'|'.join(self.in_front.values())})"

    @model_validator(mode="after")
    def _example_is_a_number(self) -> Self:
        if problem := pattern_problem(self.pattern):
            raise ValueError(problem)
        if re.fullmatch(self.pattern, self.example) is None:
            raise ValueError(say("the example does not match the pattern and lengths"))
        return self


class CountryData(_Data):
    """A file of config/countries/. Its name is the code that the gateway uses for the country.

    Two keys are for tooling/mobile_numbers.py. `metadata_region` is the country's code in the metadata of phone
    numbers, if it differs. `narrowed_numbers`: a part of the pattern in the metadata -> its replacement.
    """

    name: _Text
    demonym: _Text
    currency: Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")]
    minor_units: Annotated[int, Field(ge=0, le=4)]
    notes: list[_Text] = []
    confused_codes: dict[str, _Text] = {}
    metadata_region: str = ""
    narrowed_numbers: dict[_Text, _Text] = {}
    former_numbers: FormerNumbersData | None = None
    operations: Annotated[dict[str, CountryOperationData], Field(min_length=1)]


class NumbersData(_Data):
    """The numbers of one country in config/mobile-numbers.toml."""

    dialling_code: _Digits
    trunk_prefix: _Digits | Literal[""]
    keeps_zero: bool
    pattern: _Text
    national_lengths: Annotated[list[int], Field(min_length=1)]
    example: _Digits

    @model_validator(mode="after")
    def _example_is_a_number(self) -> Self:
        if problem := pattern_problem(self.pattern):
            raise ValueError(problem)
        if re.fullmatch(self.pattern, self.example) is None or len(self.example) not in self.national_lengths:
            raise ValueError(say("the example does not match the pattern and lengths"))
        if self.keeps_zero and self.trunk_prefix:
            raise ValueError(say("a number that keeps its zero has no trunk prefix"))
        return self


_NumbersFile = RootModel[dict[str, NumbersData]]
_OperatorsFile = RootModel[dict[str, dict[str, list[_Digits]]]]


def pattern_problem(pattern: str) -> str:
    """Return why a regular expression is invalid in Python or polars, or "" if it is valid."""
    if match := _NOT_PORTABLE.search(pattern):
        return say(
            "{part!r} cannot be used in a pattern here (no look-around, no back-reference, digits as [0-9])",
            part=match[0],
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
        raise ConfigurationError(
            say("There is no operation {name!r}; {nearest}", name=name, nearest=nearest(name, names))
        )
    return _read(root, f"operations/{name}.toml", OperationData)


def list_operations(root: Path) -> list[str]:
    """Return the names of the operations, in alphabetical order."""
    return _file_stems(root, "operations")


def read_enquiry(root: Path, profile: str) -> EnquiryData:
    """Read config/enquiries/PROFILE.toml. Raises `ConfigurationError` for an unknown name."""
    names = _file_stems(root, "enquiries")
    if profile not in names:
        hint = nearest(profile, names)
        raise ConfigurationError(say("no status enquiry is called {name!r}; {nearest}", name=profile, nearest=hint))
    return _read(root, f"enquiries/{profile}.toml", EnquiryData)


def read_forms(root: Path) -> Mapping[str, FormData]:
    return {name: _read(root, f"forms/{name}.toml", FormData) for name in _file_stems(root, "forms")}


def read_countries(root: Path) -> Mapping[str, CountryData]:
    countries = {code: _read(root, f"countries/{code}.toml", CountryData) for code in _file_stems(root, "countries")}
    names = list_operations(root)
    for code, country in countries.items():
        if unknown := sorted(country.operations.keys() - {*names}):
            hint = nearest(unknown[0], names)
            sentence = say("There is no operation {name!r}; {nearest}", name=unknown[0], nearest=hint)
            raise ConfigurationError(f"config/countries/{code}.toml: {sentence}", hint=say(_DATA_HINT))
        if _COUNTRY_CODE.fullmatch(code) is None:
            raise ConfigurationError(
                say("config/countries/{code}.toml: a country code is two capital letters.", code=code),
                hint=say(_DATA_HINT),
            )
        if conflicting := sorted(countries.keys() & country.confused_codes.keys()):
            raise ConfigurationError(
                say(
                    "config/countries/{code}.toml: confused_codes: {other} is itself a country.",
                    code=code,
                    other=conflicting[0],
                ),
                hint=say(_DATA_HINT),
            )
    return countries


def read_numbers(root: Path) -> Mapping[str, NumbersData]:
    return _read(root, "mobile-numbers.toml", _NumbersFile).root


def read_operators(root: Path) -> Mapping[str, Mapping[str, list[str]]]:
    """Read config/mobile-operators.toml: for each country code, the prefixes of each operator's numbers."""
    return _read(root, "mobile-operators.toml", _OperatorsFile).root


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return the suggestion for an unknown `word`: the nearest known word, and all known ones."""
    words = sorted(choices)
    close = difflib.get_close_matches(word, words, n=1) or difflib.get_close_matches(
        word.upper(), words, n=1, cutoff=0.5
    )
    known_words = say("Known: {words}.", words=", ".join(words))
    return f"{say('did you mean {near}?', near=close[0])} {known_words}" if close else known_words


def validation_message(problem: ErrorDetails) -> str:
    """Return the message of a validation error, in the chosen language and without pydantic's prefix."""
    context = problem.get("ctx", {})
    if isinstance(error := context.get("error"), ValueError):
        return str(error)
    template = _PYDANTIC_MESSAGES.get(problem["type"])
    if template is None or language() == ENGLISH:  # pydantic's English messages have plurals
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
"""Pydantic's own messages by type of error, so that the catalogue can translate them."""


def _file_stems(root: Path, folder: str) -> list[str]:
    return sorted(file.stem for file in (root / folder).glob("*.toml"))


_Model = TypeVar("_Model", bound=BaseModel)


def _read(root: Path, name: str, model: type[_Model]) -> _Model:
    """Read a file, or return the cached data if it has not changed."""
    return cast("_Model", _read_cached(root, name, model, _version(root, name)))


def _version(root: Path, name: str) -> tuple[int, int, int] | None:
    try:
        now = (root / name).stat()
    except OSError:
        return None  # reading the file raises the error
    return now.st_mtime_ns, now.st_size, now.st_ino


@cache
def _read_cached(root: Path, name: str, model: type[BaseModel], _: tuple[int, int, int] | None) -> BaseModel:
    try:
        return model.model_validate(tomllib.loads((root / name).read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(
            say("{path} cannot be read: {reason}.", path=f"config/{name}", reason=error), hint=say(_DATA_HINT)
        ) from error
    except ValidationError as error:
        problems = "; ".join(_locate_message(item["loc"], validation_message(item)) for item in error.errors())
        raise ConfigurationError(f"config/{name}: {problems}", hint=say(_DATA_HINT)) from error


def _locate_message(location: tuple[int | str, ...], message: str) -> str:
    path = ".".join(str(part) for part in location)
    return f"{path}: {message}" if path else message
