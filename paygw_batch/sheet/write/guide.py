"""Explains each column of a sheet in plain words and by an example, from the rules' data alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as attribute
from decimal import Decimal

from paygw_batch.countries.form_columns import COUNTRY_COLUMN
from paygw_batch.countries.kinds import CHARACTERS, KINDS, NUMBER_KINDS
from paygw_batch.countries.rules import CountryRule, FieldKind, FormField
from paygw_batch.language import mark, say
from paygw_batch.sheet.columns import known_columns
from paygw_batch.sheet.phones import PhoneColumn

_EXAMPLE_AMOUNT = Decimal("1500.50")
_FILLED_BY_RULES = frozenset({FieldKind.COUNTRY, FieldKind.OPERATOR_URL})
"""Fields that the rules and the configuration fill: a person is not asked for them."""


GUIDE_HEADINGS = (mark("Column"), mark("Country"), mark("Needed"), mark("What to write"), mark("Example"))


@dataclass(frozen=True, slots=True)
class ColumnGuide:
    """Explains one column for some countries. `example` is valid, and empty where the cell is best left empty.

    `width` is the column's in a template, in characters; 0 where another country's guide says it.
    """

    column: str
    countries: tuple[str, ...]
    needed: bool
    words: str
    example: str
    width: int = attribute(default=0, compare=False)

    @property
    def cells(self) -> tuple[str, ...]:
        """The guide as a line of a table under `GUIDE_HEADINGS`."""
        return (
            self.column,
            ", ".join(self.countries),
            say("yes") if self.needed else say("no"),
            self.words,
            self.example,
        )


def guides(rules: Sequence[CountryRule]) -> list[ColumnGuide]:
    """Return the guides of all useful columns for these countries, in the order of columns.

    Each rule must have a form. Columns that the rules fill (`ipaddress`, `receiver_country_code`) are left out, and
    countries of which the same can be said share a guide.
    """
    found = [guide for rule in rules for guide in _of_country(rule)]
    used = {guide.column for guide in found}
    found += [_not_taken(rule, name) for rule in rules for name in rule.omitted if name in used]
    ordered = [guide for column in known_columns() if column in used for guide in found if guide.column == column]
    together: dict[ColumnGuide, list[str]] = {}
    for guide in ordered:
        together.setdefault(replace(guide, countries=()), []).extend(guide.countries)
    return [replace(guide, countries=tuple(countries)) for guide, countries in together.items()]


def columns_of(every: Sequence[ColumnGuide]) -> list[str]:
    """Return the columns that the guides speak of, in their order."""
    return list(dict.fromkeys(guide.column for guide in every))


def _of_country(rule: CountryRule) -> Iterator[ColumnGuide]:
    yield ColumnGuide(
        COUNTRY_COLUMN,
        (rule.code,),
        needed=True,
        words=say("{code}, for {name}.", code=rule.code, name=say(rule.name)),
        example=rule.code,
        width=KINDS[FieldKind.COUNTRY].width,
    )
    for field in rule.form.fields if rule.form is not None else ():
        if not field.from_sheet or field.name in rule.omitted or field.kind in _FILLED_BY_RULES:
            continue
        if field.name in rule.defaults or (field.kind is FieldKind.PURPOSE and rule.purpose is None):
            continue
        entry = KINDS[field.kind]
        words, example = _told(rule, field)
        yield ColumnGuide(
            field.name, (rule.code,), field.name in rule.required and not entry.is_filled, words, example, entry.width
        )


def _not_taken(rule: CountryRule, column: str) -> ColumnGuide:
    return ColumnGuide(column, (rule.code,), needed=False, words=say("Leave it empty."), example="")


def _told(rule: CountryRule, field: FormField) -> tuple[str, str]:
    """Return words about a field's value, and an example."""
    if field.kind in NUMBER_KINDS:
        return _number(rule, field)
    match field.kind:
        case FieldKind.AMOUNT:
            return _amount(rule)
        case FieldKind.CURRENCY:
            return say("{currency}, or empty.", currency=rule.currency), rule.currency
        case FieldKind.PURPOSE:
            return say("{purpose}, or empty.", purpose=rule.purpose), rule.purpose or ""
        case _:
            entry = KINDS[field.kind]
            return say(entry.words, **CHARACTERS), entry.example


def _amount(rule: CountryRule) -> tuple[str, str]:
    units = rule.minor_units
    words = (
        say(
            "{currency} above zero, in plain digits with a point before at most {units} decimals, nothing between "
            "thousands.",
            currency=rule.currency,
            units=units,
        )
        if units
        else say(
            "{currency} above zero, in plain digits without decimals, nothing between thousands.",
            currency=rule.currency,
        )
    )
    example = _EXAMPLE_AMOUNT if units > 1 else _EXAMPLE_AMOUNT.to_integral_value()
    if rule.min_amount is not None:
        words += " " + say("At least {amount:f}.", amount=rule.min_amount)
        example = max(example, rule.min_amount)
    if rule.max_amount is not None:
        words += " " + say("At most {amount:f}.", amount=rule.max_amount)
        example = min(example, rule.max_amount)
    return words, f"{example:f}"


def _number(rule: CountryRule, field: FormField) -> tuple[str, str]:
    numbers = rule.numbers
    demonym = say(rule.demonym)
    number = (
        say("An {demonym} mobile number", demonym=demonym)
        if rule.demonym[0] in "AEIOU"
        else say("A {demonym} mobile number", demonym=demonym)
    )
    abroad, inside = f"+{numbers.dialling_code}{numbers.example}", f"{numbers.trunk_prefix}{numbers.example}"
    is_account = field.kind is FieldKind.WALLET and rule.bank_account_pattern is not None
    template = (
        mark("{number}, as written abroad ({abroad}) or inside the country ({inside}), or a bank account.")
        if is_account
        else mark("{number}, as written abroad ({abroad}) or inside the country ({inside}).")
    )
    words = say(template, number=number, abroad=abroad, inside=inside)
    return words, PhoneColumn.of(rule, field.name, field.kind).example
