"""Finds warnings in valid rows: a person should look at them, and nothing is refused."""

from collections.abc import Iterator

import polars as pl

from paygw_batch.countries.kinds import NUMBER_KINDS
from paygw_batch.countries.rules import CountryRule, FieldKind
from paygw_batch.sheet.check.checks import ColumnCheck, Reason, name_columns
from paygw_batch.sheet.model import shown, worded
from paygw_batch.sheet.phones import PhoneColumn

_PICTURE = r"\p{Extended_Pictographic}"
_DIGITS_ALONE = r"^[0-9 +.-]*[0-9][0-9 +.-]*$"
_NO_NAME = (
    r"(?i)^(?:[^\pL]*|ok(?:ay)?|n/a|none|null|nil|tests?|unknown|tbd|tbc|xx+|same|same as above|ditto|idem|dito)[.?!]*$"
)
"""Texts in place of a name: nothing with a letter in it, or a word that is nobody's name. Words that are
somewhere a name (`Na`, `No`, `Yes`) are not among them."""


def warnings_of(rule: CountryRule) -> tuple[ColumnCheck, ...]:
    """Return the checks that a valid row may fail: a warning refuses nothing."""
    return tuple(_warnings_of(rule))


def _warnings_of(rule: CountryRule) -> Iterator[ColumnCheck]:
    fields = rule.form.fields if rule.form is not None else ()
    names = name_columns(rule)
    numbers = [field for field in fields if field.kind in NUMBER_KINDS and field.name not in rule.omitted]
    # What is paid is the account, and the phone of a form that has no account.
    payee = next((field for field in numbers if field.kind is FieldKind.WALLET), numbers[0] if numbers else None)
    for field in fields:
        if field in numbers:
            column = PhoneColumn.of(rule, field.name, field.kind)
            yield _zero_restored(column)
            if field is payee and rule.operator is not None and rule.purpose is not None:
                yield _other_operator(column, rule, rule.operator)
        elif field.name in names:
            yield _doubtful_names(field.name)


def _doubt(column: PhoneColumn, code: str, doubtful: pl.Expr, message: pl.Expr) -> ColumnCheck:
    reason = Reason(f"{column.name}.{code}", doubtful, message)
    return ColumnCheck(column.name, ~doubtful.fill_null(value=False), (reason,))


def _zero_restored(column: PhoneColumn) -> ColumnCheck:
    read = worded(
        "{value} was read as {number}: the spreadsheet seems to have dropped a zero.",
        value=shown(column.name),
        number=column.wire,
    )
    return _doubt(column, "zero_restored", column.lost_its_zero, read)


def _other_operator(column: PhoneColumn, rule: CountryRule, operator: str) -> ColumnCheck:
    is_other, owner = column.of_another_operator(operator)
    message = worded(
        "{value} begins like a number of {owner}, and the purpose {purpose} pays to {operator}: make sure that it was "
        "taken there.",
        value=shown(column.name),
        owner=owner,
        purpose=rule.purpose or "",
        operator=operator,
    )
    return _doubt(column, "operator", is_other, message)


def _doubtful_names(name: str) -> ColumnCheck:
    text = pl.col(name)
    swapped = worded("{value}: the name has digits only. Are two columns swapped?", value=shown(name))
    no_name = worded("{value} is no name: make sure who is paid.", value=shown(name))
    digits = Reason(f"{name}.digits", text.str.contains(_DIGITS_ALONE), swapped)
    nobody = Reason(f"{name}.placeholder", text.str.contains(_NO_NAME), no_name)
    said = worded(
        "{value} has a picture in it (an emoji): make sure that the gateway takes such a name.", value=shown(name)
    )
    picture = Reason(f"{name}.emoji", text.str.contains(_PICTURE), said)
    # One question about all: digits alone hold no letter, and are a text in place of a name as well.
    doubtful = text.str.contains(f"(?:{_NO_NAME})|{_PICTURE}").fill_null(value=False)
    return ColumnCheck(name, ~doubtful, (digits, nobody, picture))
