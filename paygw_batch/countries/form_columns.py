"""Derives the columns of sheets from the forms and operations under config/."""

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
"""The sender's own number for a person. It is never sent, but identifies payees in sheets without order ids."""
COMMON_COLUMNS: Mapping[str, FieldKind] = MappingProxyType(
    {COUNTRY_COLUMN: FieldKind.COUNTRY, STAFF_NUMBER: FieldKind.TEXT}
    | {entry.column: kind for kind, entry in KINDS.items() if entry.column is not None}
)
"""Maps columns that any sheet may have to their kinds."""


@dataclass(frozen=True, slots=True)
class SheetColumns:
    """The columns that the data files define.

    - `by_operation` maps each operation to the columns that its sheets may have, in the order in which defects are
      reported: first those in the operation's file, then the other fields of its forms.
    - `cleanings` maps every column to its cleaning, in the merged order of all operations.
    - `country_codes` are the other columns of the kind `country`, whose values must match the row's country.
    - `renamed` are the columns that repeat the country, or that the reconciliation shows under another name.
    - `reconciled` maps each operation to the columns that the reconciliation shows under their own names.
    - `labels` maps columns to English labels. A column without a label is shown by name.
    """

    by_operation: Mapping[str, tuple[str, ...]]
    cleanings: Mapping[str, Cleaning]
    country_codes: frozenset[str]
    renamed: frozenset[str]
    reconciled: Mapping[str, tuple[str, ...]]
    labels: Mapping[str, str]


def sheet_columns(*, data: Path | None = None) -> SheetColumns:
    """Return the columns that the data files define. Raises `ConfigurationError`."""
    return _read_columns(data or files.config_dir())


@cache
def _read_columns(root: Path) -> SheetColumns:
    forms = files.read_forms(root)
    operations = {name: files.read_operation(root, name) for name in files.list_operations(root)}
    used_forms = {name: _used_forms(root, name, operation, forms) for name, operation in operations.items()}
    columns_by_operation = {
        name: _operation_columns(name, operation, used_forms[name]) for name, operation in operations.items()
    }
    fields = [field for form in forms.values() for field in form.fields if field.from_sheet]
    cleanings = _column_cleanings(fields)
    columns = _merge_columns(columns_by_operation.values())
    return SheetColumns(
        by_operation=MappingProxyType(columns_by_operation),
        cleanings=MappingProxyType({name: cleanings[name] for name in columns}),
        country_codes=frozenset(f.name for f in fields if f.kind is FieldKind.COUNTRY and f.name != COUNTRY_COLUMN),
        renamed=frozenset(_renamed_columns(forms)),
        reconciled=MappingProxyType(
            {name: tuple(dict.fromkeys(_reconciled_columns(forms))) for name, forms in used_forms.items()}
        ),
        labels=MappingProxyType(
            {STAFF_NUMBER: mark("Staff number")}
            | {field.name: field.label for field in fields if field.label is not None}
        ),
    )


def _used_forms(
    root: Path, name: str, operation: files.OperationData, forms: Mapping[str, files.FormData]
) -> list[files.FormData]:
    entries = (country.operations.get(name) for country in files.read_countries(root).values())
    form_names = [entry.form for entry in entries if entry is not None and entry.form is not None]
    return [forms[form] for form in dict.fromkeys([operation.default_form, *sorted(form_names)]) if form in forms]


def _operation_columns(name: str, operation: files.OperationData, forms: Sequence[files.FormData]) -> tuple[str, ...]:
    names = [field.name for form in forms for field in form.fields if field.from_sheet]
    if unknown := [column for column in operation.columns if column not in names and column not in COMMON_COLUMNS]:
        raise ConfigurationError(
            say("config/operations/{name}.toml: no form has a field {strange!r}.", name=name, strange=unknown[0])
        )
    return tuple(dict.fromkeys([*operation.columns, *COMMON_COLUMNS, *names]))


def _column_cleanings(fields: Iterable[files.FieldData]) -> dict[str, Cleaning]:
    """Return how to clean each column. This cannot depend on the form, which is not yet known."""
    cleanings = {name: KINDS[kind].cleaning for name, kind in COMMON_COLUMNS.items()}
    for field in fields:
        cleaning = KINDS[field.kind].cleaning
        if cleanings.setdefault(field.name, cleaning) is not cleaning:
            raise ConfigurationError(
                say(
                    "config/forms: {name} has the kind {kind} in one form, but is cleaned differently in another.",
                    name=field.name,
                    kind=field.kind,
                )
            )
    return cleanings


def _merge_columns(column_lists: Iterable[tuple[str, ...]]) -> list[str]:
    """Merge the columns of all operations, preserving each order as far as possible."""
    merged: list[str] = []
    for names in column_lists:
        position = 0
        for name in names:
            if name not in merged:
                merged.insert(position, name)
            position = merged.index(name) + 1
    return merged


def _renamed_columns(forms: Mapping[str, files.FormData]) -> Iterator[str]:
    for form in forms.values():
        yield from (field.name for field in form.fields if field.kind is FieldKind.COUNTRY and field.from_sheet)
        yield from (sources[0] for sources in form.shown.values() if len(sources) == 1)


def _reconciled_columns(forms: Iterable[files.FormData]) -> Iterator[str]:
    yield STAFF_NUMBER
    for form in forms:
        shown = {name for sources in form.shown.values() for name in sources}
        for field in form.fields:
            if field.from_sheet and field.reconciled and field.name not in {*shown, *COMMON_COLUMNS}:
                yield field.name
