"""The checks of a row: one set of definitions per country, shared by the fast path and the pandera schema.

Everything is an expression over a frame that `clean.prepared` made. A column is *sound* when none of its checks fails:
`ColumnChecks.sound` says so in one expression, for the fast path; the property tests hold the two to each other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import assert_never

import polars as pl

from paygw_batch.countries.form_columns import sheet_columns
from paygw_batch.countries.kinds import KINDS, ORDER_ID_CHARACTERS, TEXT_CHARACTERS, Checking
from paygw_batch.countries.rules import CountryRule, FieldKind, FormField, Rules
from paygw_batch.sheet.amounts import EXPONENT as AMOUNT_EXPONENT
from paygw_batch.sheet.amounts import PLAIN, amount_advice, amount_value, sound_amount
from paygw_batch.sheet.clean import CLEAN_DECIMALS, EXPONENT, bare, is_clean
from paygw_batch.sheet.phones import PhoneColumn

SHOWN_CHARACTERS = 60
"""Values are cut to so many characters where they are shown."""

_ERROR_MARK = r"^#(?:N/A|REF!|VALUE!|DIV/0!|NAME\?|NULL!|NUM!|SPILL!|CALC!|GETTING_DATA)$"
_NOT_PRINTABLE = r"[\p{C}\p{Zl}\p{Zp}]|[\p{Zs}--[ ]]"
_CONTROL = r"[\p{Cc}\p{Zl}\p{Zp}]"
_CUT_ID = r"^[0-9][.,][0-9]+[eE]\+[0-9]+$"


@dataclass(frozen=True, slots=True)
class Check:
    """One way a value can be wrong. `fails` is never null; `message` is a whole sentence, for rows that fail."""

    code: str
    fails: pl.Expr
    message: pl.Expr


@dataclass(frozen=True)
class ColumnChecks:
    """All that is asked of one column. `sound` (never null) is true exactly where no check fails.

    `plainly_sound`, where there is one, is cheaper to ask: never null, and nowhere true where `sound` is not.
    """

    column: str
    sound: pl.Expr
    checks: tuple[Check, ...]
    plainly_sound: pl.Expr | None = None

    @property
    def asked_first(self) -> pl.Expr:
        """What is asked of every row: `sound` need not be asked again where this is true."""
        return self.sound if self.plainly_sound is None else self.plainly_sound

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """The columns that the checks and their sentences look at, and the row's number."""
        expressions = (
            self.sound,
            self.asked_first,
            *(part for check in self.checks for part in (check.fails, check.message)),
        )
        names = {name for expression in expressions for name in expression.meta.root_names()}
        return tuple(sorted(names | {"row", self.column}))


def shown(column: str) -> pl.Expr:
    """Return a column's values as a sentence may show them."""
    text = pl.col(column)
    return (
        pl.when(text.str.len_chars() > SHOWN_CHARACTERS)
        .then(pl.concat_str(text.str.slice(0, SHOWN_CHARACTERS), pl.lit("...")))
        .otherwise(text)
    )


def _missing(column: str) -> Check:
    return Check(f"{column}.missing", pl.col(column).is_null(), pl.lit(f"{column} is missing."))


def _error_mark(column: str) -> Check:
    return Check(
        f"{column}.error_mark",
        pl.col(column).str.contains(_ERROR_MARK) & pl.col(column).is_not_null(),
        pl.format("{} is a spreadsheet's error mark: mend the formula, or paste the value.", shown(column)),
    )


def checks_without_country(rules: Rules) -> tuple[ColumnChecks, ...]:
    """Return the checks of rows whose country is missing or unknown: what can be said without a rule."""
    country = pl.col("country")
    by_name = {rule.name.casefold(): code for code, rule in rules.items()}
    name = country.str.to_lowercase()
    confused = {code: sentence for rule in rules.values() for code, sentence in rule.confused_codes.items()}
    known = ", ".join(rules)
    unknown = (
        pl.when(country.is_in(list(confused)))
        .then(country.replace_strict(confused, default=None, return_dtype=pl.String))
        .when(name.is_in(list(by_name)))
        .then(
            pl.format(
                "{}: write {}.", shown("country"), name.replace_strict(by_name, default="", return_dtype=pl.String)
            )
        )
        .otherwise(pl.format("{} is no country that can be paid: write one of {}.", shown("country"), pl.lit(known)))
    )
    return (
        ColumnChecks(
            "country",
            pl.lit(value=False),
            (_missing("country"), Check("country.unknown", country.is_not_null(), unknown)),
        ),
        _order_id(),
        _amount(None),
    )


def checks_of(rule: CountryRule, rules: Rules) -> tuple[ColumnChecks, ...]:
    """Return the checks of one country's rows, in the order of `columns.known_columns` as far as it matters."""
    if rule.form is None:
        unusable = Check("country.unusable", pl.lit(value=True), pl.lit(rule.unusable))
        return (ColumnChecks("country", pl.lit(value=False), (unusable,)), _order_id(), _amount(rule), _currency(rule))
    return (
        _order_id(),
        _amount(rule),
        _currency(rule),
        *_contradictions(rule),
        *_not_used(rule, rule.form.fields),
        *_form_checks(rule, rule.form.fields, rules),
    )


def _not_used(rule: CountryRule, fields: tuple[FormField, ...]) -> Iterator[ColumnChecks]:
    """Yield the checks of what a form has and this country does not take: left out in silence, it would be lost."""
    for field in fields:
        if field.from_sheet and field.name in rule.omitted:
            name = field.name
            given = pl.col(name).is_not_null()
            message = pl.format(f"{{}}: {rule.name} takes no {name}. Leave it empty.", shown(name))
            yield ColumnChecks(name, ~given, (Check(f"{name}.not_used", given, message),))


def _form_checks(rule: CountryRule, fields: tuple[FormField, ...], rules: Rules) -> Iterator[ColumnChecks]:
    for field in fields:
        if not field.from_sheet or field.name in rule.omitted:
            continue
        required = field.name in rule.required and field.name not in rule.defaults
        entry = KINDS[field.kind]
        match entry.checking:
            case Checking.NUMBER:
                yield _number(rule, field, rules, required=required)
            case Checking.TEXT:
                yield _text(field.name, required=required)
            case Checking.PATTERN:
                yield _pattern(field.name, entry.pattern, entry.what, required=required)
            case Checking.OF_THE_ROW | Checking.NEVER_IN_A_SHEET:
                pass  # judged with the row, or not the sheet's to say
            case _:
                assert_never(entry.checking)


def _order_id() -> ColumnChecks:
    name = "client_orderid"
    text = pl.col(name)
    given = text.is_not_null()
    short = text.str.len_chars() <= ORDER_ID_CHARACTERS
    printable = ~text.str.contains(_NOT_PRINTABLE) & short
    cut = text.str.contains(_CUT_ID)
    unsound = f"{_NOT_PRINTABLE}|{_CUT_ID}|{_ERROR_MARK}"
    said = (
        f"{{}} cannot be an order id: write at most {ORDER_ID_CHARACTERS} printable characters, plain blanks included."
    )
    return ColumnChecks(
        name,
        given & ~text.str.contains(unsound) & short,
        (
            _missing(name),
            _error_mark(name),
            Check(f"{name}.exponent", given & cut, _cut_by_spreadsheet(name)),
            Check(f"{name}.format", given & ~printable, pl.format(said, shown(name))),
        ),
        plainly_sound=_clean_and_short(name, ORDER_ID_CHARACTERS),
    )


def _clean_and_short(name: str, characters: int) -> pl.Expr:
    return pl.col(is_clean(name)) & (pl.col(name).str.len_bytes() <= characters).fill_null(value=False)


def _cut_by_spreadsheet(name: str) -> pl.Expr:
    return pl.format(
        "{}: the spreadsheet has cut this number. Format the column as text, and enter it again from its source.",
        shown(name),
    )


def _amount(rule: CountryRule | None) -> ColumnChecks:
    """Without a rule, decimals and limits cannot be judged."""
    text, said = pl.col("amount"), shown("amount")
    given, plain, positive = text.is_not_null(), text.str.contains(PLAIN), text.str.contains("[1-9]")
    exponent, error_mark = text.str.contains(AMOUNT_EXPONENT), text.str.contains(_ERROR_MARK)
    sound = plain if rule is None else text.str.contains(sound_amount(rule.minor_units))
    unread = given & ~plain & ~exponent & ~error_mark
    checks = [
        _missing("amount"),
        _error_mark("amount"),
        Check("amount.exponent", given & exponent, pl.format("{}: write the amount out in plain digits.", said)),
        Check("amount.format", unread, pl.format("{} {}.", said, amount_advice("amount"))),
        Check("amount.zero", given & sound & ~positive, pl.format("{}: an amount must be above zero.", said)),
    ]
    if rule is None:
        return ColumnChecks("amount", given & plain & positive, tuple(checks))
    checks.append(Check("amount.decimals", given & plain & ~sound, _too_many_decimals(rule)))
    limits = [
        Check(f"amount.{kind}", given & sound & positive & outside, pl.format(f"{{}}: {words} {limit:f}.", said))
        for kind, limit, outside, words in _limits(rule)
    ]
    within = pl.all_horizontal(~limit.fails for limit in limits) if limits else pl.lit(value=True)
    above_zero = text.str.contains(sound_amount(rule.minor_units, above_zero=True))
    plainly = None if limits else _plainly_sound_amount(rule)
    return ColumnChecks("amount", given & above_zero & within, (*checks, *limits), plainly)


def _plainly_sound_amount(rule: CountryRule) -> pl.Expr | None:
    clean = pl.col(is_clean("amount"))
    if rule.minor_units >= CLEAN_DECIMALS:
        return clean
    return clean & ~pl.col("amount").str.contains(".", literal=True).fill_null(value=False)


def _limits(rule: CountryRule) -> Iterator[tuple[str, Decimal, pl.Expr, str]]:
    value = amount_value("amount", rule.minor_units)
    if rule.min_amount is not None:
        words = f"the smallest amount that may be sent to {rule.name} is"
        yield "minimum", rule.min_amount, value < rule.min_amount, words
    if rule.max_amount is not None:
        words = f"the largest amount that may be sent to {rule.name} is"
        yield "maximum", rule.max_amount, value > rule.max_amount, words


def _too_many_decimals(rule: CountryRule) -> pl.Expr:
    units = rule.minor_units
    kept = rf"^([0-9]+\.[0-9]{{1,{units}}}?)0*$" if units else r"^([0-9]+)\.0*$"
    whole = pl.col("amount").str.extract(r"^([0-9]+)\.0*$")
    mend = pl.format(", write {}", pl.coalesce(whole, pl.col("amount").str.extract(kept))).fill_null("")
    allowed = f"{rule.currency} has {units or 'no'} decimals"
    return pl.format("{}: {}{}.", shown("amount"), pl.lit(allowed), mend)


def _currency(rule: CountryRule) -> ColumnChecks:
    wrong = pl.col("currency").is_not_null() & (pl.col("currency") != rule.currency)
    message = pl.format(
        f"{{}}: {rule.name} is paid in {rule.currency}. Write {rule.currency}, or leave the currency empty.",
        shown("currency"),
    )
    return ColumnChecks("currency", ~wrong, (Check("currency.mismatch", wrong, message),))


def _contradictions(rule: CountryRule) -> Iterator[ColumnChecks]:
    """Yield the checks of what a sheet need not say, but must not say otherwise."""
    purpose = pl.col("purpose")
    if rule.purpose is not None:
        wrong = purpose.is_not_null() & (purpose != rule.purpose)
        message = pl.format(
            f"{{}} is not the purpose configured for {rule.name}. Write {{}}, or leave it empty.",
            shown("purpose"),
            pl.lit(rule.purpose),
        )
        yield ColumnChecks("purpose", ~wrong, (Check("purpose.mismatch", wrong, message),))
    for column in sorted(sheet_columns().codes):
        wrong = pl.col(column).is_not_null() & (pl.col(column) != rule.code)
        message = pl.format(
            f"{{}}: the country of this row is {rule.code}. Write {rule.code}, or leave it empty.", shown(column)
        )
        yield ColumnChecks(column, ~wrong, (Check(f"{column}.mismatch", wrong, message),))


def _optional(
    column: str,
    sound: pl.Expr,
    checks: tuple[Check, ...],
    *,
    required: bool,
    plainly_sound: pl.Expr | None = None,
) -> ColumnChecks:
    given = pl.col(column).is_not_null()
    if required:
        return ColumnChecks(column, given & sound, (_missing(column), *checks), plainly_sound)
    plainly = plainly_sound if plainly_sound is None else ~given | plainly_sound
    return ColumnChecks(column, ~given | sound, checks, plainly)


def _text(column: str, *, required: bool) -> ColumnChecks:
    text = pl.col(column)
    given = text.is_not_null()
    short = text.str.len_chars() <= TEXT_CHARACTERS
    clean = ~text.str.contains(_CONTROL) & short
    message = pl.format(f"{{}}: write at most {TEXT_CHARACTERS} characters, on one line, without tabs.", shown(column))
    checks = (_error_mark(column), Check(f"{column}.format", given & ~clean, message))
    sound = ~text.str.contains(f"{_CONTROL}|{_ERROR_MARK}") & short
    plainly = _clean_and_short(column, TEXT_CHARACTERS)
    return _optional(column, sound, checks, required=required, plainly_sound=plainly)


def _pattern(column: str, pattern: str, what: str, *, required: bool) -> ColumnChecks:
    text = pl.col(column)
    right = text.str.contains(pattern)
    wrong = text.is_not_null() & ~right & ~text.str.contains(_ERROR_MARK)
    checks = (_error_mark(column), Check(f"{column}.format", wrong, pl.format(f"{{}} is not {what}.", shown(column))))
    return _optional(column, right, checks, required=required)


def _number(rule: CountryRule, field: FormField, rules: Rules, *, required: bool) -> ColumnChecks:
    name = field.name
    column = PhoneColumn.of(rule, name, field.kind)
    text, digits = pl.col(name), pl.col(bare(name))
    wrong = text.is_not_null() & ~column.is_valid
    error_mark, cut = text.str.contains(_ERROR_MARK), digits.str.contains(EXPONENT)
    foreign, owner = _foreign(rule, digits, rules)
    article = "an" if rule.demonym[0] in "AEIOU" else "a"
    what = f"{article} {rule.demonym} {'mobile number' if rule.bank_account_pattern is None else 'number'}"
    hidden = ", and digits that are hidden are each a *" if field.kind is FieldKind.MASKED_PHONE else ""
    count = digits.str.count_matches("[0-9]")
    significant = digits.str.replace(r"^(?:\+|00)", "").str.len_chars()
    message = (
        pl.when(digits.str.contains(r"^\+?[0-9]+$") & ~significant.is_in(column.lengths))
        .then(pl.format(f"{{}} has {{}} digits; {what} has {column.expected}.", shown(name), count))
        .otherwise(pl.format(f"{{}} is not {what}; one is, for example, {column.example}{hidden}.", shown(name)))
    )
    checks = (
        _error_mark(name),
        Check(f"{name}.exponent", wrong & cut, _cut_by_spreadsheet(name)),
        Check(
            f"{name}.country",
            wrong & foreign,
            pl.format(f"{{}} is a number of {{}}, and the country of this row is {rule.code}.", shown(name), owner),
        ),
        Check(f"{name}.format", wrong & ~error_mark & ~cut & ~foreign, message),
    )
    return _optional(name, column.is_valid, checks, required=required, plainly_sound=column.is_plain)


def _foreign(rule: CountryRule, digits: pl.Expr, rules: Rules) -> tuple[pl.Expr, pl.Expr]:
    """Return whether a number is another country's, and which one's."""
    own = rule.numbers.dialling_code
    others = {
        other.name: f"{other.numbers.dialling_code}{other.numbers.pattern}"
        for other in rules.values()
        if other.numbers.dialling_code != own
    }
    marked = digits.str.contains(r"^(?:\+|00)[1-9]") & ~digits.str.contains(rf"^(?:\+|00){own}")
    names = (
        pl.when(digits.str.contains(rf"^(?:\+|00)?{number}$")).then(pl.lit(name)) for name, number in others.items()
    )
    foreign = digits.str.contains(rf"^(?:\+|00)?(?:{'|'.join(others.values())})$") if others else pl.lit(value=False)
    return marked | foreign, pl.coalesce(*names, pl.lit("another country"))
