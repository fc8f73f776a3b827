"""What is worth a look in a row that is valid: warnings, which refuse nothing."""

from collections.abc import Iterator

import polars as pl

from paygw_batch.countries.kinds import NUMBER_KINDS
from paygw_batch.countries.rules import CountryRule, FieldKind
from paygw_batch.sheet.check.checks import Check, ColumnChecks, shown
from paygw_batch.sheet.phones import PhoneColumn

PAYEE_NAME = "account_name"
"""The column of the reconciliation that says who is paid."""
_DIGITS_ALONE = r"^[0-9 +.-]*[0-9][0-9 +.-]*$"
_NO_NAME = (
    r"(?i)^(?:[^\pL]*|ok(?:ay)?|n/a|none|null|nil|tests?|unknown|tbd|tbc|xx+|same|same as above|ditto|idem|dito)[.?!]*$"
)
"""What people write where a name is due: nothing with a letter in it, or a word that is nobody's name. Words that are
somewhere a name (`Na`, `No`, `Yes`) are not among them."""


def warnings_of(rule: CountryRule) -> tuple[ColumnChecks, ...]:
    """Return what is worth a look in valid rows; it refuses nothing."""
    return tuple(_warnings_of(rule))


def _warnings_of(rule: CountryRule) -> Iterator[ColumnChecks]:
    fields = rule.form.fields if rule.form is not None else ()
    names = {PAYEE_NAME, *dict(rule.form.shown if rule.form is not None else ()).get(PAYEE_NAME, ())}
    numbers = [field for field in fields if field.kind in NUMBER_KINDS and field.name not in rule.omitted]
    # What is paid is the account, and the phone of a form that has no account.
    payee = next((field for field in numbers if field.kind is FieldKind.WALLET), numbers[0] if numbers else None)
    for field in fields:
        if field in numbers:
            column = PhoneColumn.of(rule, field.name, field.kind)
            checks, plainly = [_zero_restored(column)], column.is_long
            if field is payee and rule.operator is not None and rule.purpose is not None:
                other = _other_operator(column, rule, rule.operator)
                checks.append(other)
                plainly &= ~other.fails
            yield ColumnChecks(field.name, ~pl.any_horizontal(check.fails for check in checks), tuple(checks), plainly)
        elif field.name in names:
            yield _doubtful_names(field.name)


def _zero_restored(column: PhoneColumn) -> Check:
    lost = column.lost_its_zero.fill_null(value=False)
    read = pl.format(
        "{} was read as {}: the spreadsheet seems to have dropped a zero.", shown(column.name), column.wire
    )
    return Check(f"{column.name}.zero_restored", lost, read)


def _other_operator(column: PhoneColumn, rule: CountryRule, operator: str) -> Check:
    fails, owner = column.of_another_operator(operator)
    message = pl.format(
        "{} begins like a number of {}, and the purpose {} pays to {}: make sure that it was taken there.",
        shown(column.name),
        owner,
        pl.lit(rule.purpose),
        pl.lit(operator),
    )
    return Check(f"{column.name}.operator", fails, message)


def _doubtful_names(name: str) -> ColumnChecks:
    text = pl.col(name)
    nobody = text.str.contains(_NO_NAME).fill_null(value=False)
    digits = text.str.contains(_DIGITS_ALONE).fill_null(value=False)
    swapped = pl.format("{}: the name has digits only. Are two columns swapped?", shown(name))
    no_name = pl.format("{} is no name: make sure who is paid.", shown(name))
    checks = (Check(f"{name}.digits", digits, swapped), Check(f"{name}.placeholder", nobody & ~digits, no_name))
    return ColumnChecks(name, ~nobody, checks)  # digits alone hold no letter
