"""The checks of rows: one condition for each column of a country, and the reasons for failing it.

All conditions are expressions over a frame of `clean.clean_columns`. `contract.contract` puts these checks into the
country's pandera schema, and `row_checker` runs them. Nothing else decides whether a value is valid
(docs/decisions/0124-one-definition-of-right.md).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import assert_never

import polars as pl

from paygw_batch.countries.form_columns import sheet_columns
from paygw_batch.countries.kinds import KINDS, NUMBER_KINDS, ORDER_ID_CHARACTERS, TEXT_CHARACTERS, Checking
from paygw_batch.countries.rules import CountryRule, FieldKind, FormField, Rules
from paygw_batch.language import mark, say
from paygw_batch.sheet.amounts import EXPONENT as AMOUNT_EXPONENT
from paygw_batch.sheet.amounts import (
    PLAIN_AMOUNT,
    amount_correction,
    amount_pattern,
    amount_problem,
    amount_value,
    rounded_amount,
)
from paygw_batch.sheet.check.damage import DOUBTFUL, repair_column
from paygw_batch.sheet.check.spelling import country_code, nearest_country
from paygw_batch.sheet.clean import EXPONENT, FORMULA_SIGNS, PhoneColumn, bare_column, folded_purpose
from paygw_batch.sheet.findings import NO_CORRECTION, build_message, shortened_value

_ERROR_MARK = r"^#(?:N/A|REF!|VALUE!|DIV/0!|NAME\?|NULL!|NUM!|SPILL!|CALC!|GETTING_DATA|VALEUR!|NOM\?|NOMBRE!|NUL!)$"
_NOT_PRINTABLE = r"[\p{C}\p{Zl}\p{Zp}]|[\p{Zs}--[ ]]"
_CONTROL = r"[\p{Cc}\p{Zl}\p{Zp}]"
_REVERSES_TEXT = r"[\x{061C}\x{200E}\x{200F}\x{202A}-\x{202E}\x{2066}-\x{2069}]"
"""Invisible characters that change the direction of text, so that a name looks like another."""
_STARTS_A_FORMULA = rf"^(?:[=@⁼₌⩵⩶﹦﹫＝＠]|[{FORMULA_SIGNS}].*\pL)"  # noqa: RUF001 (spreadsheets fold them)
_LOST_CHARACTER = "\ufffd"
_ROUNDED_ID = r"^[0-9][.,][0-9]+[eE]\+[0-9]+$"
_AMOUNT_IN_SOME_WAY = r"^(?:\pL+\.?\s*)?[0-9][0-9.,'\x{2019}\s\p{Z}]*(?:\pL+\.?|/[=-])?$"
"""Digits in groups, perhaps with the word of a currency."""
_ALWAYS = pl.lit(value=True)
_EMPTY = pl.lit("")
PAYEE_NAME = "account_name"
"""The reconciliation's column with the payee's name."""


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason why a value fails a check: the `code` of the defect, and its `message`.

    `correction` is the only possible replacement: "" empties the cell, and null means none. A correction is offered
    only if it passes the check.
    """

    code: str
    applies: pl.Expr
    message: pl.Expr
    correction: pl.Expr = NO_CORRECTION


@dataclass(frozen=True, eq=False)
class ColumnCheck:
    """A check of one column. A value is valid if `passes` (never null) is true.

    Other values are explained by the first of `reasons` that applies. One of them always does. Reasons
    `of_whole_column` are given once, with the numbers of all their rows.
    """

    column: str
    passes: pl.Expr
    reasons: tuple[Reason, ...]
    of_whole_column: bool = False

    def __deepcopy__(self, _: object) -> "ColumnCheck":
        """Return the check itself, which is immutable. pandera would copy every expression in it."""
        return self

    @cached_property
    def needed_columns(self) -> tuple[str, ...]:
        """The row number, and the columns that the check and its reasons need."""
        expressions = [part for reason in self.reasons for part in (reason.applies, reason.message, reason.correction)]
        names = {name for expression in [self.passes, *expressions] for name in expression.meta.root_names()}
        return tuple(sorted(names | {"row", self.column}))


def _failing_check(
    is_defect: pl.Expr, column: str, code: str, message: pl.Expr, correction: pl.Expr = NO_CORRECTION
) -> ColumnCheck:
    return ColumnCheck(column, ~is_defect, (Reason(f"{column}.{code}", _ALWAYS, message, correction),))


def _missing_reason(column: str, headings: Mapping[str, str]) -> Reason:
    message = build_message("{column} is missing.", column=headings.get(column, column))
    return Reason(f"{column}.missing", pl.col(column).is_null(), message)


def _error_mark_reason(column: str) -> Reason:
    value = shortened_value(column)
    message = build_message("{value} is a spreadsheet error. Correct the formula, or paste the value.", value=value)
    return Reason(f"{column}.error_mark", pl.col(column).str.contains(_ERROR_MARK), message)


def _lost_character_reason(column: str) -> Reason:
    value = shortened_value(column)
    message = build_message("{value}: a program has lost a character. Retype the text from its source.", value=value)
    return Reason(f"{column}.lost_character", pl.col(column).str.contains(_LOST_CHARACTER, literal=True), message)


def _cut_number_reason(column: str, is_cut: pl.Expr) -> Reason:
    message = build_message(
        "{value}: the spreadsheet has dropped digits of this number. Format the column as text, and re-enter it from "
        "its source.",
        value=shortened_value(column),
    )
    return Reason(f"{column}.exponent", is_cut, message)


def checks_without_country(rules: Rules) -> tuple[ColumnCheck, ...]:
    """Return the checks of rows whose country is missing or unknown."""
    country = pl.col("country")
    confused = {code: say(sentence) for rule in rules.values() for code, sentence in rule.confused_codes.items()}
    codes, names = ", ".join(rules), {code: say(rule.name) for code, rule in rules.items()}
    is_confused = country.is_in(list(confused))
    code, nearest = pl.when(~is_confused).then(country_code(country, rules)), nearest_country(country, rules)
    value, name = shortened_value("country"), nearest.replace_strict(names, default=None, return_dtype=pl.String)
    similar = build_message(
        "{value} is not a country that can be paid: if {name} is meant, write {code}.",
        value=value,
        name=name,
        code=nearest,
    )
    other = build_message("{value} is not a country that can be paid. Use one of {known}.", value=value, known=codes)
    unknown = (
        pl.when(is_confused)
        .then(country.replace_strict(confused, default=None, return_dtype=pl.String))
        .when(code.is_not_null())
        .then(build_message("{value}: write {code}.", value=value, code=code))
        .when(nearest.is_not_null())
        .then(similar)
        .otherwise(other)
    )
    headings = next(iter(rules.values())).headings
    reasons = (_missing_reason("country", headings), Reason("country.unknown", _ALWAYS, unknown, code))
    passes = country.is_in(list(rules)).fill_null(value=False)
    amount = _amount_check(None, headings, code.is_not_null())
    return ColumnCheck("country", passes, reasons), _order_id_check(headings), amount


def country_checks(rule: CountryRule, rules: Rules) -> tuple[ColumnCheck, ...]:
    common = (_order_id_check(rule.headings), _amount_check(rule, rule.headings), _currency_check(rule))
    if rule.form is None:
        return (_failing_check(_ALWAYS, "country", "unusable", pl.lit(say(rule.unusable))), *common)
    return (*common, *_contradiction_checks(rule), *_form_checks(rule, rule.form.fields, rules))


def _form_checks(rule: CountryRule, fields: tuple[FormField, ...], rules: Rules) -> Iterator[ColumnCheck]:
    for field in fields:
        if not field.from_sheet or (rule.account_from and field.name in rule.accounts):
            continue  # an account taken from the phone is valid if the phone is
        name, entry = field.name, KINDS[field.kind]
        if name in rule.omitted:  # the value would be lost without notice
            message = build_message(
                "{value}: {column} is not used for {country}. Leave the cell empty.",
                value=shortened_value(name),
                country=say(rule.name),
                column=rule.headings.get(name, name),
            )
            yield _failing_check(pl.col(name).is_not_null(), name, "not_used", message, _EMPTY)
            continue
        required = name == rule.account_from or (name in rule.required and name not in rule.defaults)
        match entry.checking:
            case Checking.NUMBER:
                yield _number_check(rule, field, rules, required=required)
            case Checking.TEXT:
                check = _name_check if name in name_columns(rule) else _text_check
                yield check(name, rule, required=required)
            case Checking.PATTERN:
                message = build_message("{value} is not {what}.", value=shortened_value(name), what=say(entry.what))
                is_valid = pl.col(name).str.contains(entry.pattern)
                yield _value_check(name, is_valid, message, required=required, headings=rule.headings)
            case Checking.OF_THE_ROW | Checking.NEVER_IN_A_SHEET:
                pass  # checked with the row, or only in the configuration
            case _:
                assert_never(entry.checking)


def _value_check(
    column: str,
    is_valid: pl.Expr,
    message: pl.Expr,
    *others: Reason,
    required: bool,
    headings: Mapping[str, str],
    correction: pl.Expr = NO_CORRECTION,
) -> ColumnCheck:
    """Return the check of a column, which may be empty unless `required`.

    The reasons `others` take precedence over `message`.
    """
    is_filled = pl.col(column).is_not_null()
    last = Reason(f"{column}.format", _ALWAYS, message, correction)
    reasons = (_missing_reason(column, headings), _error_mark_reason(column), *others, last)
    if required:
        return ColumnCheck(column, is_filled & is_valid, reasons)
    return ColumnCheck(column, ~is_filled | is_valid, reasons[1:])


def _order_id_check(headings: Mapping[str, str]) -> ColumnCheck:
    name = "client_orderid"
    text = pl.col(name)
    valid = ~text.str.contains(f"{_NOT_PRINTABLE}|{_ROUNDED_ID}|{_ERROR_MARK}|{_LOST_CHARACTER}")
    advice = build_message(
        "{value} is not a valid order id. Use at most {characters} printable characters, including ordinary spaces.",
        value=shortened_value(name),
        characters=ORDER_ID_CHARACTERS,
    )
    fits = text.str.len_chars() <= ORDER_ID_CHARACTERS
    cut = _cut_number_reason(name, text.str.contains(_ROUNDED_ID))
    return _value_check(name, valid & fits, advice, cut, _lost_character_reason(name), required=True, headings=headings)


def _amount_check(rule: CountryRule | None, headings: Mapping[str, str], is_named: pl.Expr = _ALWAYS) -> ColumnCheck:
    """Return the check of amounts. Without a rule, it checks only their format.

    If a row has no country at all (`is_named`), as in a row of totals, an amount fails only if no country would accept
    it in any spelling, and no correction is offered.
    """
    text, value = pl.col("amount"), shortened_value("amount")
    terms = ("amount", None) if rule is None else ("amount", rule.currency, rule.decimals)
    advice = build_message("{value} {advice}.", value=value, advice=amount_problem(*terms))
    plain, nonzero = text.str.contains(PLAIN_AMOUNT), text.str.contains("[1-9]")
    format_reasons = (
        _missing_reason("amount", headings),
        _error_mark_reason("amount"),
        Reason(
            "amount.exponent",
            text.str.contains(AMOUNT_EXPONENT),
            build_message("{value}: write the amount in plain digits.", value=value),
        ),
        Reason("amount.format", ~plain, advice, pl.when(is_named).then(amount_correction(*terms))),
    )
    zero = Reason("amount.zero", ~nonzero, build_message("{value}: the amount must be greater than zero.", value=value))
    if rule is None:
        passes = text.is_not_null() & (plain | (~is_named & text.str.contains(_AMOUNT_IN_SOME_WAY))) & nonzero
        return ColumnCheck("amount", passes, (*format_reasons, zero))
    exact = text.str.contains(amount_pattern(rule.decimals))
    both = text.str.contains(rf"^[1-9][0-9]{{0,2}}\.[0-9]{{{rule.decimals}}}{'0' * (3 - rule.decimals)}$")
    two_ways = Reason("amount.decimals", both, advice)
    rounded = rounded_amount("amount", rule.decimals)
    decimals = Reason("amount.decimals", ~exact, _decimals_message(rule, rounded), rounded)
    limits = tuple(_limit_reasons(rule))
    passes = pl.all_horizontal(text.is_not_null(), exact, nonzero, *(~limit.applies for limit in limits))
    return ColumnCheck("amount", passes, (*format_reasons, two_ways, decimals, zero, *limits))


def _limit_reasons(rule: CountryRule) -> Iterator[Reason]:
    value = amount_value("amount", rule.minor_units)
    parts: Mapping[str, pl.Expr | str] = {"value": shortened_value("amount"), "country": say(rule.name)}
    smallest = mark("{value}: the minimum amount for {country} is {limit}.")
    if (limit := rule.min_amount) is not None:
        yield Reason("amount.minimum", value < limit, build_message(smallest, **parts, limit=f"{limit:f}"))
    largest = mark("{value}: the maximum amount for {country} is {limit}.")
    if (limit := rule.max_amount) is not None:
        yield Reason("amount.maximum", value > limit, build_message(largest, **parts, limit=f"{limit:f}"))


def _decimals_message(rule: CountryRule, rounded: pl.Expr) -> pl.Expr:
    units = rule.decimals
    is_same = pl.col("amount").str.contains(rf"\.[0-9]{{{units}}}0+$")
    same = build_message(", write {text}", text=rounded)
    other = build_message(", write {text} if it may be rounded", text=rounded)
    suggestion = pl.when(is_same).then(same).otherwise(other).fill_null("")
    parts = {"value": shortened_value("amount"), "currency": pl.lit(rule.currency), "suggestion": suggestion}
    if units < rule.minor_units:
        whole_only = mark("{value}: the gateway accepts only whole amounts in {currency}{suggestion}.")
        fewer = mark("{value}: the gateway accepts fewer decimals than {currency} has{suggestion}.")
        return build_message(fewer if units else whole_only, **parts)
    if not units:
        return build_message("{value}: {currency} has no decimals{suggestion}.", **parts)
    return build_message("{value}: {currency} has {units} decimals{suggestion}.", units=units, **parts)


def _currency_check(rule: CountryRule) -> ColumnCheck:
    message = build_message(
        "{value}: payments to {country} are in {currency}. Write {currency}, or leave the currency empty.",
        value=shortened_value("currency"),
        country=say(rule.name),
        currency=rule.currency,
    )
    return _mismatch_check("currency", rule.currency, message, pl.lit(rule.currency))


def _contradiction_checks(rule: CountryRule) -> Iterator[ColumnCheck]:
    """Yield the checks of columns whose value follows from the country."""
    if rule.purposes:
        yield _purpose_check(rule)
    elif rule.purpose is not None:
        message = build_message(
            "{value}: only one payment channel is set up for {country}. Leave the cell empty to pay through it, or "
            "have another one set up.",
            value=shortened_value("purpose"),
            country=say(rule.name),
        )
        yield _mismatch_check("purpose", rule.purpose, message)
    for column in sorted(sheet_columns().codes):
        message = build_message(
            "{value}: the country of this row is {code}. Write {code}, or leave it empty.",
            value=shortened_value(column),
            code=rule.code,
        )
        yield _mismatch_check(column, rule.code, message)


def _purpose_check(rule: CountryRule) -> ColumnCheck:
    column, word = "purpose", pl.col("purpose")
    message = build_message(
        "{value} is not one of the words set up for {country}: {words}.",
        value=shortened_value(column),
        country=say(rule.name),
        words=", ".join(sorted({terms.word for terms in rule.purposes.values() if terms.word})),
    )
    is_valid = folded_purpose().is_in(list(rule.purposes))
    reasons = (_missing_reason(column, rule.headings), Reason(f"{column}.mismatch", _ALWAYS, message))
    if rule.purpose is None:
        return ColumnCheck(column, word.is_not_null() & is_valid.fill_null(value=False), reasons)
    return ColumnCheck(column, word.is_null() | is_valid.fill_null(value=False), reasons[1:])


def _mismatch_check(column: str, value: str, message: pl.Expr, correction: pl.Expr = NO_CORRECTION) -> ColumnCheck:
    is_mismatch = pl.col(column).is_not_null() & (pl.col(column) != value)
    return _failing_check(is_mismatch, column, "mismatch", message, correction)


def _text_check(column: str, rule: CountryRule, *reasons: Reason, forbidden: str = "", required: bool) -> ColumnCheck:
    """Return the check of a text column. Values that match `forbidden` are invalid, as `reasons` explain."""
    text = pl.col(column)
    patterns = filter(None, (_CONTROL, _LOST_CHARACTER, _ERROR_MARK, forbidden))  # a single pattern is cheaper
    max_characters = rule.max_characters.get(column, TEXT_CHARACTERS)
    is_valid = ~text.str.contains("|".join(patterns)) & (text.str.len_chars() <= max_characters)
    message = build_message(
        "{value}: write at most {characters} characters, on one line, without tabs.",
        value=shortened_value(column),
        characters=max_characters,
    )
    on_one_line = repair_column(column).str.replace_all(rf"[\p{{Z}}]*{_CONTROL}+[\p{{Z}}]*", " ")
    return _value_check(
        column,
        is_valid,
        message,
        _lost_character_reason(column),
        *reasons,
        required=required,
        headings=rule.headings,
        correction=pl.when(text.str.contains(_CONTROL)).then(on_one_line),
    )


def name_columns(rule: CountryRule) -> frozenset[str]:
    """Return the columns with the payee's name."""
    shown_columns = dict(rule.form.shown) if rule.form is not None else {}
    return frozenset({PAYEE_NAME, *shown_columns.get(PAYEE_NAME, ())})


def _name_check(column: str, rule: CountryRule, *, required: bool) -> ColumnCheck:
    """Return the check of a name, which people compare by eye and open in spreadsheets."""
    text, value = pl.col(column), shortened_value(column)
    hidden = build_message("{value} contains an invisible character that reverses text. Retype the name.", value=value)
    formula = build_message("{value} begins like a formula. Write only the name.", value=value)
    reasons = (
        Reason(f"{column}.direction", text.str.contains(_REVERSES_TEXT), hidden),
        Reason(f"{column}.formula_sign", text.str.contains(_STARTS_A_FORMULA), formula),
    )
    return _text_check(column, rule, *reasons, forbidden=f"{_REVERSES_TEXT}|{_STARTS_A_FORMULA}", required=required)


def _number_check(rule: CountryRule, field: FormField, rules: Rules, *, required: bool) -> ColumnCheck:
    name = field.name
    column = PhoneColumn.for_field(rule, name, field.kind)
    digits = pl.col(bare_column(name))
    foreign, owner = _foreign_number(rule, digits, rules)
    parts = {"value": shortened_value(name), "what": pl.lit(_describe_number(rule))}
    count = digits.str.count_matches("[0-9]")
    significant = digits.str.replace(r"^(?:\+|00)", "").str.len_chars()
    count_values = {"count": count, "expected": _expected_digits(column), **parts}
    one_digit = build_message("{value} has one digit; {what} has {expected}.", **count_values)
    several = build_message("{value} has {count} digits; {what} has {expected}.", **count_values)
    is_of_other_length = digits.str.contains(r"^\+?[0-9]+$") & ~significant.is_in(column.lengths)
    length_message = pl.when(count == 1).then(one_digit).otherwise(several)
    message = pl.when(is_of_other_length).then(length_message).otherwise(_example_message(column, parts))
    sentence = build_message(
        "{value} is a number from {owner}, but the country of this row is {code}.",
        value=shortened_value(name),
        owner=owner,
        code=rule.code,
    )
    other = Reason(f"{name}.country", foreign, sentence)
    cut_reason = _cut_number_reason(name, digits.str.contains(EXPONENT))
    reasons = (cut_reason, *_renumbering_reasons(column, rule), other)
    return _value_check(name, column.is_valid, message, *reasons, required=required, headings=rule.headings)


def _renumbering_reasons(column: PhoneColumn, rule: CountryRule) -> Iterator[Reason]:
    """Yield a reason for numbers of the numbering plan that is not in use, former or new."""
    if (change := rule.numbers.renumbering) is None:
        return
    number = column.converted_number
    message = build_message(
        mark(
            "{value} follows the numbering plan of {changed}, but the gateway still uses the former one. Write "
            "{number}."
        )
        if change.to_former
        else mark(
            "{value} is a number from before {changed}, when {country} changed its numbering plan. Write {number}."
        ),
        value=shortened_value(column.name),
        changed=change.changed.isoformat(),
        country=say(rule.name),
        number=number,
    )
    yield Reason(f"{column.name}.renumbered", number.is_not_null(), message, number)


def _describe_number(rule: CountryRule) -> str:
    starts_with_vowel = rule.demonym[0] in "AEIOU"
    if rule.bank_account_pattern is None:
        template = mark("an {demonym} mobile number") if starts_with_vowel else mark("a {demonym} mobile number")
    else:
        template = mark("an {demonym} number") if starts_with_vowel else mark("a {demonym} number")
    return say(template, demonym=say(rule.demonym))


def _expected_digits(column: PhoneColumn) -> pl.Expr:
    """Describe the digits of a valid number, in the national or international format of this one."""
    numbers = column.numbers
    local_lengths = [len(numbers.trunk_prefix) + length for length in numbers.national_lengths]
    foreign_lengths = [len(numbers.dialling_code) + length for length in numbers.national_lengths]
    written = f"{numbers.trunk_prefix}{numbers.example}"
    example = f"{written[:-6]} {written[-6:-3]} {written[-3:]}"
    local_parts = {"lengths": say(" or ").join(map(str, local_lengths)), "example": example}
    foreign_parts = {"lengths": say(" or ").join(map(str, foreign_lengths)), "start": numbers.dialling_code}
    is_international = pl.col(bare_column(column.name)).str.contains(rf"^(?:\+|00|{numbers.dialling_code})")
    return (
        pl.when(is_international)
        .then(pl.lit(say("{lengths} and starts with {start}", **foreign_parts)))
        .otherwise(pl.lit(say("{lengths}, as in {example}", **local_parts)))
    )


def _example_message(column: PhoneColumn, parts: Mapping[str, pl.Expr]) -> pl.Expr:
    if column.kind is FieldKind.MASKED_PHONE:
        template = mark("{value} is not {what}. An example is {example}. Use *, X or # for a hidden digit.")
    else:
        template = mark("{value} is not {what}. An example is {example}.")
    return build_message(template, example=column.example, **parts)


def _foreign_number(rule: CountryRule, digits: pl.Expr, rules: Rules) -> tuple[pl.Expr, pl.Expr]:
    code = rule.numbers.dialling_code
    others = {
        say(other.name): f"{other.numbers.dialling_code}{other.numbers.pattern}"
        for other in rules.values()
        if other.numbers.dialling_code != code
    }
    marked = digits.str.contains(r"^(?:\+|00)[1-9]") & ~digits.str.contains(rf"^(?:\+|00){code}")
    names = (
        pl.when(digits.str.contains(rf"^(?:\+|00)?{number}$")).then(pl.lit(name)) for name, number in others.items()
    )
    foreign = digits.str.contains(rf"^(?:\+|00)?(?:{'|'.join(others.values())})$") if others else ~_ALWAYS
    return marked | foreign, pl.coalesce(*names, pl.lit(say("another country")))


_PICTURE = r"[\p{Extended_Pictographic}--[\p{L}\p{P}©®™]]"
_ONLY_DIGITS = r"^[\p{Nd} +.-]*\p{Nd}[\p{Nd} +.-]*$"
_PLACEHOLDER = (
    r"(?i)^(?:[^\pL]*|ok(?:ay)?|n/a|[(<\[]?(?:none|null|nil)[)>\]]?|tests?|unknown|tbd|tbc|xx+|same|same as above|ditto"
    r"|idem|dito|undefined|<na>|<nan>|#n/d|#nv|\\n|\[object object\]|(?-i:-?nan|-?NaN|NaT))(?:\s+(?:nan|null))*[.?!]*$"
)
"""Strings without letters, and words that are not names.

Words that are a name somewhere (`Na`, `No`, `Yes`, `Nan`) are not matched.
"""


def warning_checks(rule: CountryRule) -> Iterator[ColumnCheck]:
    """Yield the checks that a valid row may fail. A failure is a warning, and the row stays valid."""
    fields = rule.form.fields if rule.form is not None else ()
    names = name_columns(rule)
    not_read = rule.omitted | (rule.accounts if rule.account_from else frozenset())
    numbers = [field for field in fields if field.kind in NUMBER_KINDS and field.name not in not_read]
    # The payee is the account, or the phone if the form has no account.
    payee = next((field for field in numbers if field.kind is FieldKind.WALLET), numbers[0] if numbers else None)
    for field in fields:
        if field in numbers:
            column = PhoneColumn.for_field(rule, field.name, field.kind)
            yield _zero_warning(column)
            if field is payee and (check := _operator_warning(column, rule)) is not None:
                yield check
            if field.kind is FieldKind.WALLET:
                other_numbers = (number for number in numbers if number.kind is not field.kind)
                phones = (PhoneColumn.for_field(rule, other.name, other.kind) for other in other_numbers)
                yield _two_meanings_warning(column, next(phones, None))
        elif field.name in names:
            yield _name_warning(field.name)
            yield _damage_warning(field.name)


def _number_warning(column: PhoneColumn, code: str, is_doubtful: pl.Expr, message: pl.Expr) -> ColumnCheck:
    reason = Reason(f"{column.name}.{code}", is_doubtful, message)
    return ColumnCheck(column.name, ~is_doubtful.fill_null(value=False), (reason,))


def _zero_warning(column: PhoneColumn) -> ColumnCheck:
    message = build_message(
        "{value} was read as {number}: the spreadsheet seems to have dropped a zero.",
        value=shortened_value(column.name),
        number=column.wire,
    )
    return _number_warning(column, "zero_restored", column.has_lost_zero, message)


def _two_meanings_warning(account: PhoneColumn, phone: PhoneColumn | None) -> ColumnCheck:
    """Return the check for accounts with a second meaning, or that differ from the row's phone.

    It can't be a defect, because some banks number accounts by phone, and some people are paid to another phone's
    wallet.
    """
    national = pl.lit(None, pl.String) if phone is None else phone.national
    is_bank, is_both, is_own = account.is_bank_account, account.is_account_and_mobile, account.national == national
    is_other = ~(is_bank | is_both | is_own)
    doubts = {mark("{value} will be paid, but the phone of the row is a different number, {own}."): is_other}
    if account.bank_account_pattern is not None:  # last, so that a reason has the same position in all countries
        as_bank = is_both & is_bank
        doubts |= {
            mark("{value} will be paid as a bank account. The phone of the row is {number}."): as_bank & is_own,
            mark("{value} will be paid as a bank account. It could also be the mobile number {number}."): as_bank,
            mark("{value} will be paid as the mobile number {number}. It could also be a bank account."): is_both,
        }
    dialling_code = pl.lit(f"+{account.numbers.dialling_code}")
    numbers = {"number": pl.concat_str(dialling_code, account.national), "own": pl.concat_str(dialling_code, national)}
    value = shortened_value(account.name)
    reasons = [
        Reason(f"{account.name}.two_meanings", applies, build_message(sentence, value=value, **numbers))
        for sentence, applies in doubts.items()
    ]
    passes = ~pl.any_horizontal(reason.applies.fill_null(value=False) for reason in reasons)
    return ColumnCheck(account.name, passes, tuple(reasons), of_whole_column=True)


def _operator_warning(column: PhoneColumn, rule: CountryRule) -> ColumnCheck | None:
    """Return the check for numbers first assigned to another operator than that of the purpose."""
    by_word = {word: terms.operator for word, terms in rule.purposes.items() if terms.operator is not None}
    usual = rule.operator if rule.purpose is not None else None
    if usual is None and not by_word:
        return None
    operator = pl.lit(usual, pl.String)
    if rule.purposes:
        operator_code = folded_purpose().replace_strict(by_word, default=None, return_dtype=pl.String)
        operator = pl.when(pl.col("purpose").is_null()).then(operator).otherwise(operator_code)
    is_other, owner = column.other_operator(operator)
    message = build_message(
        "{value} looks like a number of {owner}, but this row pays through {operator}. Check that the number was "
        "ported.",
        value=shortened_value(column.name),
        owner=owner,
        operator=operator,
    )
    return _number_warning(column, "operator", is_other, message)


def _name_warning(name: str) -> ColumnCheck:
    text, value = pl.col(name), shortened_value(name)
    swapped = build_message("{value}: the name has only digits. Are two columns swapped?", value=value)
    no_name = build_message("{value} doesn't look like a name. Check who will be paid.", value=value)
    digits = Reason(f"{name}.digits", text.str.contains(_ONLY_DIGITS), swapped)
    placeholder = Reason(f"{name}.placeholder", text.str.contains(_PLACEHOLDER), no_name)
    emoji = build_message("{value} contains an emoji. Check that the gateway accepts such a name.", value=value)
    picture = Reason(f"{name}.emoji", text.str.contains(_PICTURE), emoji)
    # One pattern covers all reasons, because values of only digits also match `_PLACEHOLDER`.
    is_doubtful = text.str.contains(f"(?:{_PLACEHOLDER})|{_PICTURE}").fill_null(value=False)
    return ColumnCheck(name, ~is_doubtful, (digits, placeholder, picture))


def _damage_warning(name: str) -> ColumnCheck:
    text, fixed, value = pl.col(name), repair_column(name), shortened_value(name)
    advice = build_message("{value} may have been damaged by a program. Is the name {right}?", value=value, right=fixed)
    lost = build_message("{value} may have been damaged by a program. Check the name.", value=value)
    reasons = Reason(f"{name}.damaged", text != fixed, advice, fixed), Reason(f"{name}.damaged", _ALWAYS, lost)
    return ColumnCheck(name, ((text == fixed) & ~text.str.contains(DOUBTFUL)).fill_null(value=True), reasons)
