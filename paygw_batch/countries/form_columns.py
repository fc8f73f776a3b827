"""Derives the columns of sheets from the forms and operations under config/. A new field there is a new column."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from paygw_batch.countries import data as files
from paygw_batch.countries.kinds import KINDS, Cleaning
from paygw_batch.countries.rules import FieldKind
from paygw_batch.errors import ConfigurationError
from paygw_batch.language import mark, say

COUNTRY_COLUMN = "country"
STAFF_NUMBER = "staff_number"
"""The sender's own number of a person. It is never sent. In a sheet without order ids it identifies the payee."""
OF_EVERY_SHEET: Mapping[str, FieldKind] = MappingProxyType(
    {COUNTRY_COLUMN: FieldKind.COUNTRY, STAFF_NUMBER: FieldKind.TEXT}
    | {entry.column: kind for kind, entry in KINDS.items() if entry.column is not None}
)
"""The columns that the sheets of all operations may have, with their kinds."""


@dataclass(frozen=True, slots=True)
class SheetColumns:
    """The columns that the data files define.

    - `of_operation`: operation -> the columns that its sheets may have, in the order in which a row's defects are
      listed: first those that the operation's file lists, then the other fields of its forms.
    - `cleanings`: every known column -> how it is cleaned, in the order of all operations together.
    - `codes`: the columns of the kind `country` besides the row's country, which they must not contradict.
    - `shown_otherwise`: columns that repeat the country, or whose value the reconciliation shows under another name.
    - `reconciled`: operation -> the columns that the reconciliation shows under their own names, after its own columns.
    - `labels`: the English names of columns, for people. A column without a label is shown under its own name.
    """

    of_operation: Mapping[str, tuple[str, ...]]
    cleanings: Mapping[str, Cleaning]
    codes: frozenset[str]
    shown_otherwise: frozenset[str]
    reconciled: Mapping[str, tuple[str, ...]]
    labels: Mapping[str, str]


def sheet_columns(*, data: Path | None = None) -> SheetColumns:
    """Return the columns that data files in `data` define (None: the program's own). Raises `ConfigurationError`."""
    return _read(data or files.config_dir())


@cache
def _read(root: Path) -> SheetColumns:
    forms = files.read_forms(root)
    operations = {name: files.read_operation(root, name) for name in files.operations(root)}
    forms_of = {name: _forms_of(root, name, operation) for name, operation in operations.items()}
    of_operation = {
        name: _columns(name, operation, [forms[form] for form in forms_of[name] if form in forms])
        for name, operation in operations.items()
    }
    fields = [field for form in forms.values() for field in form.fields if field.from_sheet]
    kinds = _cleanings(fields)
    columns = _in_one_order(of_operation.values())
    return SheetColumns(
        of_operation=MappingProxyType(of_operation),
        cleanings=MappingProxyType({name: kinds[name] for name in columns}),
        codes=frozenset(f.name for f in fields if f.kind is FieldKind.COUNTRY and f.name not in OF_EVERY_SHEET),
        shown_otherwise=frozenset(_shown_otherwise(forms)),
        reconciled=MappingProxyType(
            {
                name: tuple(dict.fromkeys(_reconciled(forms[form] for form in forms_of[name] if form in forms)))
                for name in operations
            }
        ),
        labels=MappingProxyType(
            {STAFF_NUMBER: mark("Staff number")}
            | {field.name: field.label for field in fields if field.label is not None}
        ),
    )


def _forms_of(root: Path, name: str, operation: files.OperationData) -> list[str]:
    """Return the names of the forms of an operation: the default form, and the forms that its countries name."""
    entries = (country.operations.get(name) for country in files.read_countries(root).values())
    forms = [entry.form for entry in entries if entry is not None and entry.form is not None]
    return list(dict.fromkeys([operation.default_form, *sorted(forms)]))


def _columns(name: str, operation: files.OperationData, forms: Sequence[files.FormData]) -> tuple[str, ...]:
    names = [field.name for form in forms for field in form.fields if field.from_sheet]
    if strange := [column for column in operation.columns if column not in names and column not in OF_EVERY_SHEET]:
        raise ConfigurationError(
            say("config/operations/{name}.toml: no form of it has a field {strange!r}.", name=name, strange=strange[0])
        )
    return tuple(dict.fromkeys([*operation.columns, *OF_EVERY_SHEET, *names]))


def _cleanings(fields: Iterable[files.FieldData]) -> dict[str, Cleaning]:
    """Return how each column is cleaned: always in one way, because a sheet is cleaned before a form is chosen."""
    cleanings = {name: KINDS[kind].cleaning for name, kind in OF_EVERY_SHEET.items()}
    for field in fields:
        cleaning = KINDS[field.kind].cleaning
        if cleanings.setdefault(field.name, cleaning) is not cleaning:
            raise ConfigurationError(
                say(
                    "config/forms: {name} is a {kind} in one form, and of a kind that is cleaned otherwise in another.",
                    name=field.name,
                    kind=field.kind,
                )
            )
    return cleanings


def _in_one_order(columns: Iterable[tuple[str, ...]]) -> list[str]:
    """Return the columns of all operations in an order that keeps each operation's own as far as possible."""
    merged: list[str] = []
    for names in columns:
        at = 0
        for name in names:
            if name not in merged:
                merged.insert(at, name)
            at = merged.index(name) + 1
    return merged


def _shown_otherwise(forms: Mapping[str, files.FormData]) -> Iterator[str]:
    for form in forms.values():
        yield from (field.name for field in form.fields if field.kind is FieldKind.COUNTRY and field.from_sheet)
        yield from (sources[0] for sources in form.shown.values() if len(sources) == 1)


def _reconciled(forms: Iterable[files.FormData]) -> Iterator[str]:
    yield STAFF_NUMBER
    for form in forms:
        sources_shown = {name for sources in form.shown.values() for name in sources}
        for field in form.fields:
            if field.from_sheet and field.reconciled and field.name not in {*sources_shown, *OF_EVERY_SHEET}:
                yield field.name
