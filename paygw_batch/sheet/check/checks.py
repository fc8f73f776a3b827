"""Defines the checks of rows: one condition for each column of a country, and the reasons for failing it.

All conditions are expressions over a `clean_columns` frame. `contract.country_schema` puts these checks into the
country's pandera schema, and `row_checker` runs them. Nothing else decides whether a value is valid
(docs/decisions/0124-one-definition-of-right.md).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import assert_never

import polars as pl

from paygw_batch.countries.form_columns import sheet_columns
from paygw_batch.countries.kinds import KINDS, MAX_ORDER_ID_CHARACTERS, MAX_TEXT_CHARACTERS, NUMBER_KINDS, Checking
from paygw_batch.countries.rules import CountryRule, FieldKind, FormField, Rules
from paygw_batch.language import mark, say
from paygw_batch.sheet.amounts import EXPONENT as AMOUNT_EXPONENT
from paygw_batch.sheet.amounts import (
    PLAIN_AMOUNT,
    amount_advice,
    amount_correction,
    amount_pattern,
    amount_value,
    rounded_amount,
)
from paygw_batch.sheet.check.damage import DOUBTFUL, repair_column
from paygw_batch.sheet.check.spelling import country_code, nearest_country
from paygw_batch.sheet.clean import EXPONENT, FORMULA_SIGNS, NumberColumn, bare_column, folded_purpose
from paygw_batch.sheet.findings import NO_CORRECTION, build_message, shortened_value

_ERROR_MARK = r"^#(?:N/A|REF!|VALUE!|DIV/0!|NAME\?|NULL!|NUM!|SPILL!|CALC!|GETTING_DATA|VALEUR!|NOM\?|NOMBRE!|NUL!)$"
_NOT_PRINTABLE = r"[\p{C}\p{Zl}\p{Zp}]|[\p{Zs}--[ ]]"
_CONTROL = r"[\p{Cc}\p{Zl}\p{Zp}]"
_REVERSES_TEXT = r"[\x{061C}\x{200E}\x{200F}\x{202A}-\x{202E}\x{2066}-\x{2069}]"
"""Invisible characters that reverse text, so that one name looks like another."""
_STARTS_A_FORMULA = rf"^(?:[=@⁼₌⩵⩶﹦﹫＝＠]|[{FORMULA_SIGNS}].*\pL)"  # noqa: RUF001 (spreadsheets fold them)
_LOST_CHARACTER = "\ufffd"
_ROUNDED_ID = r"^[0-9][.,][0-9]+[eE]\+[0-9]+$"
_POSSIBLE_AMOUNT = r"^(?:\pL+\.?\s*)?[0-9][0-9.,'\x{2019}\s\p{Z}]*(?:\pL+\.?|/[=-])?$"
"""Groups of digits, perhaps with a word for the currency."""
_ALWAYS = pl.lit(value=True)
_EMPTY = pl.lit("")
PAYEE_NAME = "account_name"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a value fails a check: the `code` and `message` of the defect.

    `correction` is the only possible replacement: "" clears the cell, and null means that there is none. It is offered
    only if it passes the check.
    """

    code: str
    applies: pl.Expr
    message: pl.Expr
    correction: pl.Expr = NO_CORRECTION


@dataclass(frozen=True, eq=False)
class ColumnCheck:
    """A check of one column. A value is valid if `passes` (never null) is true.

    Invalid values are explained by the first of `reasons` that applies, and one always does. If `once_per_column`, each
    reason is given only once, with the numbers of all its rows.
    """

    column: str
    passes: pl.Expr
    reasons: tuple[Reason, ...]
    once_per_column: bool = False

    def __deepcopy__(self, _: object) -> "ColumnCheck":
        """Return the check itself, which is immutable. Otherwise pandera would copy all its expressions."""
        return self

    @cached_property
    def needed_columns(self) -> tuple[str, ...]:
        """The columns that the check and its reasons need, including `row`."""
        reason_parts = [part for reason in self.reasons for part in (reason.applies, reason.message, reason.correction)]
        names = {name for expression in [self.passes, *reason_parts] for name in expression.meta.root_names()}
        return tuple(sorted(names | {"row", self.column}))


def _defect_check(
    is_defective: pl.Expr, column: str, code: str, message: pl.Expr, correction: pl.Expr = NO_CORRECTION
) -> ColumnCheck:
    return ColumnCheck(column, ~is_defective, (Reason(f"{column}.{code}", _ALWAYS, message, correction),))


def _missing_reason(column: str, headings: Mapping[str, str]) -> Reason:
    message = build_message("{column} is missing.", column=headings.get(column, column))
    return Reason(f"{column}.missing", pl.col(column).is_null(), message)


def _error_mark_reason(column: str) -> Reason:
    value = shortened_value(column)
    message = build_message("{value} is a spreadsheet error. Correct the formula, or paste the value.", value=value)
    return Reason(f"{column}.error_mark", pl.col(column).str.contains(_ERROR_MARK), message)


def _lost_character_reason(column: str) -> Reason:
    value = shortened_value(column)
    message = build_message("{value}: a character was lost. Copy the text again from the original.", value=value)
    return Reason(f"{column}.lost_character", pl.col(column).str.contains(_LOST_CHARACTER, literal=True), message)


def _truncated_number_reason(column: str, is_truncated: pl.Expr) -> Reason:
    message = build_message(
        "{value}: the spreadsheet dropped digits of this number. Format the column as text, then enter the number "
        "again from the original.",
        value=shortened_value(column),
    )
    return Reason(f"{column}.exponent", is_truncated, message)


def checks_without_country(rules: Rules) -> tuple[ColumnCheck, ...]:
    """Return the checks for rows with a missing or unknown country."""
    country = pl.col("country")
    confused = {code: say(message) for rule in rules.values() for code, message in rule.confused_codes.items()}
    codes, names = ", ".join(rules), {code: say(rule.name) for code, rule in rules.items()}
    is_confused = country.is_in(list(confused))
    code, nearest = pl.when(~is_confused).then(country_code(country, rules)), nearest_country(country, rules)
    value, name = shortened_value("country"), nearest.replace_strict(names, default=None, return_dtype=pl.String)
    similar = build_message(
        "{value} is not a supported country. If you mean {name}, enter {code}.", value=value, name=name, code=nearest
    )
    other = build_message("{value} is not a supported country. Use one of {known}.", value=value, known=codes)
    message = (
        pl.when(is_confused)
        .then(country.replace_strict(confused, default=None, return_dtype=pl.String))
        .when(code.is_not_null())
        .then(build_message("{value}: enter {code}.", value=value, code=code))
        .when(nearest.is_not_null())
        .then(similar)
        .otherwise(other)
    )
    headings = next(iter(rules.values())).headings
    reasons = (_missing_reason("country", headings), Reason("country.unknown", _ALWAYS, message, code))
    passes = country.is_in(list(rules)).fill_null(value=False)
    amount = _amount_check(None, headings, code.is_not_null())
    return ColumnCheck("country", passes, reasons), _order_id_check(headings), amount


def country_checks(rule: CountryRule, rules: Rules) -> tuple[ColumnCheck, ...]:
    common_checks = (_order_id_check(rule.headings), _amount_check(rule, rule.headings), _currency_check(rule))
    if rule.form is None:
        return (_defect_check(_ALWAYS, "country", "unusable", pl.lit(say(rule.unusable))), *common_checks)
    return (*common_checks, *_mismatch_checks(rule), *_form_checks(rule, rule.form.fields, rules))


def _form_checks(rule: CountryRule, fields: tuple[FormField, ...], rules: Rules) -> Iterator[ColumnCheck]:
    for field in fields:
        if not field.from_sheet or (rule.account_from and field.name in rule.accounts):
            continue  # the account is the phone, which has its own check
        name, kind = field.name, KINDS[field.kind]
        if name in rule.omitted:  # the value would be silently ignored
            message = build_message(
                "{value}: {column} is not used for {country}. Leave the cell empty.",
                value=shortened_value(name),
                country=say(rule.name),
                column=rule.headings.get(name, name),
            )
            yield _defect_check(pl.col(name).is_not_null(), name, "not_used", message, _EMPTY)
            continue
        required = name == rule.account_from or (name in rule.required and name not in rule.defaults)
        match kind.checking:
            case Checking.NUMBER:
                yield _number_check(rule, field, rules, required=required)
            case Checking.TEXT:
                build_check = _name_check if name in _payee_name_columns(rule) else _text_check
                yield build_check(name, rule, required=required)
            case Checking.PATTERN:
                message = build_message("{value} is not {what}.", value=shortened_value(name), what=say(kind.what))
                is_valid = pl.col(name).str.contains(kind.pattern)
                yield _value_check(name, is_valid, message, required=required, headings=rule.headings)
            case Checking.BY_ROW | Checking.NOT_IN_SHEET:
                pass  # checked with the row, or only in the configuration
            case _:
                assert_never(kind.checking)


def _value_check(
    column: str,
    is_valid: pl.Expr,
    message: pl.Expr,
    *other_reasons: Reason,
    required: bool,
    headings: Mapping[str, str],
    correction: pl.Expr = NO_CORRECTION,
) -> ColumnCheck:
    """Return a check for one column. Cells may be empty unless `required`. `other_reasons` precede `message`."""
    is_filled = pl.col(column).is_not_null()
    format_reason = Reason(f"{column}.format", _ALWAYS, message, correction)
    reasons = (_missing_reason(column, headings), _error_mark_reason(column), *other_reasons, format_reason)
    if required:
        return ColumnCheck(column, is_filled & is_valid, reasons)
    return ColumnCheck(column, ~is_filled | is_valid, reasons[1:])


def _order_id_check(headings: Mapping[str, str]) -> ColumnCheck:
    name = "client_orderid"
    text = pl.col(name)
    is_valid = ~text.str.contains(f"{_NOT_PRINTABLE}|{_ROUNDED_ID}|{_ERROR_MARK}|{_LOST_CHARACTER}")
    message = build_message(
        "{value} is not a valid order id. Use at most {characters} printable characters. Ordinary spaces are allowed.",
        value=shortened_value(name),
        characters=MAX_ORDER_ID_CHARACTERS,
    )
    is_valid &= text.str.len_chars() <= MAX_ORDER_ID_CHARACTERS
    truncated, lost = _truncated_number_reason(name, text.str.contains(_ROUNDED_ID)), _lost_character_reason(name)
    return _value_check(name, is_valid, message, truncated, lost, required=True, headings=headings)


def _amount_check(rule: CountryRule | None, headings: Mapping[str, str], has_country: pl.Expr = _ALWAYS) -> ColumnCheck:
    """Return the check for amounts. Without a rule, only the format is checked.

    Rows without a country (not `has_country`) may be totals. Their amounts fail only if no country would accept the
    format, and no correction is offered.
    """
    text, value = pl.col("amount"), shortened_value("amount")
    arguments = ("amount", None) if rule is None else ("amount", rule.currency, rule.decimals)
    advice = build_message("{value} {advice}.", value=value, advice=amount_advice(*arguments))
    is_plain, is_nonzero = text.str.contains(PLAIN_AMOUNT), text.str.contains("[1-9]")
    format_reasons = (
        _missing_reason("amount", headings),
        _error_mark_reason("amount"),
        Reason(
            "amount.exponent",
            text.str.contains(AMOUNT_EXPONENT),
            build_message("{value}: enter the amount in digits only, without an exponent.", value=value),
        ),
        Reason("amount.format", ~is_plain, advice, pl.when(has_country).then(amount_correction(*arguments))),
    )
    zero_message = build_message("{value}: the amount must be greater than zero.", value=value)
    zero = Reason("amount.zero", ~is_nonzero, zero_message)
    if rule is None:
        has_format = is_plain | (~has_country & text.str.contains(_POSSIBLE_AMOUNT))
        passes = text.is_not_null() & has_format & is_nonzero
        return ColumnCheck("amount", passes, (*format_reasons, zero))
    is_exact = text.str.contains(amount_pattern(rule.decimals))
    is_ambiguous = text.str.contains(rf"^[1-9][0-9]{{0,2}}\.[0-9]{{{rule.decimals}}}{'0' * (3 - rule.decimals)}$")
    ambiguous = Reason("amount.decimals", is_ambiguous, advice)
    rounded = rounded_amount("amount", rule.decimals)
    too_precise = Reason("amount.decimals", ~is_exact, _decimals_message(rule, rounded), rounded)
    limits = tuple(_limit_reasons(rule))
    passes = pl.all_horizontal(text.is_not_null(), is_exact, is_nonzero, *(~limit.applies for limit in limits))
    return ColumnCheck("amount", passes, (*format_reasons, ambiguous, too_precise, zero, *limits))


def _limit_reasons(rule: CountryRule) -> Iterator[Reason]:
    value = amount_value("amount", rule.minor_units)
    parts: Mapping[str, pl.Expr | str] = {"value": shortened_value("amount"), "country": say(rule.name)}
    minimum = mark("{value}: the minimum amount for {country} is {limit}.")
    if (limit := rule.min_amount) is not None:
        yield Reason("amount.minimum", value < limit, build_message(minimum, **parts, limit=f"{limit:f}"))
    maximum = mark("{value}: the maximum amount for {country} is {limit}.")
    if (limit := rule.max_amount) is not None:
        yield Reason("amount.maximum", value > limit, build_message(maximum, **parts, limit=f"{limit:f}"))


def _decimals_message(rule: CountryRule, rounded: pl.Expr) -> pl.Expr:
    decimals = rule.decimals
    is_exact = pl.col("amount").str.contains(rf"\.[0-9]{{{decimals}}}0+$")
    exact_suggestion = build_message(". Enter {text}", text=rounded)
    rounded_suggestion = build_message(". If the amount can be rounded, enter {text}", text=rounded)
    suggestion = pl.when(is_exact).then(exact_suggestion).otherwise(rounded_suggestion).fill_null("")
    parts = {"value": shortened_value("amount"), "currency": pl.lit(rule.currency), "suggestion": suggestion}
    if decimals < rule.minor_units:
        whole_only = mark("{value}: the gateway accepts only whole amounts in {currency}{suggestion}.")
        fewer = mark("{value}: the gateway accepts fewer decimal places than {currency} uses{suggestion}.")
        return build_message(fewer if decimals else whole_only, **parts)
    if not decimals:
        return build_message("{value}: {currency} has no decimal places{suggestion}.", **parts)
    return build_message("{value}: {currency} has {units} decimal places{suggestion}.", units=decimals, **parts)


def _currency_check(rule: CountryRule) -> ColumnCheck:
    message = build_message(
        "{value}: payments to {country} are in {currency}. Enter {currency} or leave the cell empty.",
        value=shortened_value("currency"),
        country=say(rule.name),
        currency=rule.currency,
    )
    return _mismatch_check("currency", rule.currency, message, pl.lit(rule.currency))


def _mismatch_checks(rule: CountryRule) -> Iterator[ColumnCheck]:
    """Yield the checks for columns whose values must match the row's country."""
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
    for column in sorted(sheet_columns().country_codes):
        message = build_message(
            "{value}: the country of this row is {code}. Enter {code} or leave the cell empty.",
            value=shortened_value(column),
            code=rule.code,
        )
        yield _mismatch_check(column, rule.code, message)


def _purpose_check(rule: CountryRule) -> ColumnCheck:
    column, word = "purpose", pl.col("purpose")
    message = build_message(
        "{value} is not set up for {country}. Use one of these words: {words}.",
        value=shortened_value(column),
        country=say(rule.name),
        words=", ".join(sorted({terms.word for terms in rule.purposes.values() if terms.word})),
    )
    is_valid = folded_purpose().is_in(list(rule.purposes))
    reasons = (_missing_reason(column, rule.headings), Reason(f"{column}.mismatch", _ALWAYS, message))
    if rule.purpose is None:
        return ColumnCheck(column, word.is_not_null() & is_valid.fill_null(value=False), reasons)
    return ColumnCheck(column, word.is_null() | is_valid.fill_null(value=False), reasons[1:])


def _mismatch_check(column: str, expected: str, message: pl.Expr, correction: pl.Expr = NO_CORRECTION) -> ColumnCheck:
    is_mismatch = pl.col(column).is_not_null() & (pl.col(column) != expected)
    return _defect_check(is_mismatch, column, "mismatch", message, correction)


def _text_check(column: str, rule: CountryRule, *reasons: Reason, forbidden: str = "", required: bool) -> ColumnCheck:
    """Return a check for a text column. `reasons` explain values that match the pattern `forbidden`."""
    text = pl.col(column)
    patterns = filter(None, (_CONTROL, _LOST_CHARACTER, _ERROR_MARK, forbidden))  # one pattern is cheaper
    max_characters = rule.max_characters.get(column, MAX_TEXT_CHARACTERS)
    is_valid = ~text.str.contains("|".join(patterns)) & (text.str.len_chars() <= max_characters)
    message = build_message(
        "{value}: enter at most {characters} characters, on one line, without tabs.",
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


def _payee_name_columns(rule: CountryRule) -> frozenset[str]:
    shown_columns = dict(rule.form.shown) if rule.form is not None else {}
    return frozenset({PAYEE_NAME, *shown_columns.get(PAYEE_NAME, ())})


def _name_check(column: str, rule: CountryRule, *, required: bool) -> ColumnCheck:
    """Return a check for names, which must not look like other names or start like formulas."""
    text, value = pl.col(column), shortened_value(column)
    bidi = build_message("{value} contains an invisible character that reverses text. Retype the name.", value=value)
    formula = build_message("{value} begins like a formula. Enter only the name.", value=value)
    reasons = (
        Reason(f"{column}.direction", text.str.contains(_REVERSES_TEXT), bidi),
        Reason(f"{column}.formula_sign", text.str.contains(_STARTS_A_FORMULA), formula),
    )
    return _text_check(column, rule, *reasons, forbidden=f"{_REVERSES_TEXT}|{_STARTS_A_FORMULA}", required=required)


def _number_check(rule: CountryRule, field: FormField, rules: Rules, *, required: bool) -> ColumnCheck:
    name = field.name
    column = NumberColumn.for_field(rule, name, field.kind)
    digits = pl.col(bare_column(name))
    is_foreign, other_country = _foreign_number(rule, digits, rules)
    parts = {"value": shortened_value(name), "what": pl.lit(_describe_number(rule))}
    count = digits.str.count_matches("[0-9]")
    length = digits.str.replace(r"^(?:\+|00)", "").str.len_chars()
    count_parts = {"count": count, "expected": _expected_digits(column), **parts}
    one_digit = build_message("{value} has one digit, but {what} has {expected}.", **count_parts)
    many_digits = build_message("{value} has {count} digits, but {what} has {expected}.", **count_parts)
    has_wrong_length = digits.str.contains(r"^\+?[0-9]+$") & ~length.is_in(column.lengths)
    length_message = pl.when(count == 1).then(one_digit).otherwise(many_digits)
    message = pl.when(has_wrong_length).then(length_message).otherwise(_example_message(column, parts))
    foreign_message = build_message(
        "{value} is a number from {owner}, but the country of this row is {code}.",
        value=shortened_value(name),
        owner=other_country,
        code=rule.code,
    )
    foreign_reason = Reason(f"{name}.country", is_foreign, foreign_message)
    truncated_reason = _truncated_number_reason(name, digits.str.contains(EXPONENT))
    reasons = (truncated_reason, *_renumbering_reasons(column, rule), foreign_reason)
    return _value_check(name, column.is_valid, message, *reasons, required=required, headings=rule.headings)


def _renumbering_reasons(column: NumberColumn, rule: CountryRule) -> Iterator[Reason]:
    """Yield a reason for numbers in the numbering plan, former or new, that the gateway does not use."""
    if (change := rule.numbers.renumbering) is None:
        return
    number = column.converted_number
    message = build_message(
        mark(
            "{value} follows the numbering plan introduced on {changed}, but the gateway still uses the previous "
            "one. Enter {number}."
        )
        if change.to_former
        else mark(
            "{value} is a number from before {changed}, when {country} changed its numbering plan. Enter {number}."
        ),
        value=shortened_value(column.name),
        changed=change.changed.isoformat(),
        country=say(rule.name),
        number=number,
    )
    yield Reason(f"{column.name}.renumbered", number.is_not_null(), message, number)


def _describe_number(rule: CountryRule) -> str:
    starts_with_vowel = rule.demonym[0] in "AEIO"  # but "a Ugandan"
    if rule.bank_account_pattern is None:
        template = mark("an {demonym} mobile number") if starts_with_vowel else mark("a {demonym} mobile number")
    else:
        template = mark("an {demonym} number") if starts_with_vowel else mark("a {demonym} number")
    return say(template, demonym=say(rule.demonym))


def _expected_digits(column: NumberColumn) -> pl.Expr:
    """Describe how many digits a valid number has, in the value's own format (national or international)."""
    numbers = column.numbers
    national_lengths = [len(numbers.trunk_prefix) + length for length in numbers.national_lengths]
    international_lengths = [len(numbers.dialling_code) + length for length in numbers.national_lengths]
    number = f"{numbers.trunk_prefix}{numbers.example}"
    example = f"{number[:-6]} {number[-6:-3]} {number[-3:]}"
    national = {"lengths": say(" or ").join(map(str, national_lengths)), "example": example}
    international = {"lengths": say(" or ").join(map(str, international_lengths)), "start": numbers.dialling_code}
    is_international = pl.col(bare_column(column.name)).str.contains(rf"^(?:\+|00|{numbers.dialling_code})")
    return (
        pl.when(is_international)
        .then(pl.lit(say("{lengths} and starts with {start}", **international)))
        .otherwise(pl.lit(say("{lengths}, as in {example}", **national)))
    )


def _example_message(column: NumberColumn, parts: Mapping[str, pl.Expr]) -> pl.Expr:
    if column.kind is FieldKind.MASKED_PHONE:
        template = mark("{value} is not {what}, such as {example}. Use *, X or # for a hidden digit.")
    else:
        template = mark("{value} is not {what}, such as {example}.")
    return build_message(template, example=column.example, **parts)


def _foreign_number(rule: CountryRule, digits: pl.Expr, rules: Rules) -> tuple[pl.Expr, pl.Expr]:
    """Return whether a number belongs to another country, and the name of that country."""
    own_code = rule.numbers.dialling_code
    others = [other for other in rules.values() if other.numbers.dialling_code != own_code]
    patterns = {say(other.name): f"{other.numbers.dialling_code}{other.numbers.pattern}" for other in others}
    has_other_code = digits.str.contains(r"^(?:\+|00)[1-9]") & ~digits.str.contains(rf"^(?:\+|00){own_code}")
    names = (
        pl.when(digits.str.contains(rf"^(?:\+|00)?{number}$")).then(pl.lit(name)) for name, number in patterns.items()
    )
    is_foreign = digits.str.contains(rf"^(?:\+|00)?(?:{'|'.join(patterns.values())})$") if patterns else ~_ALWAYS
    return has_other_code | is_foreign, pl.coalesce(*names, pl.lit(say("another country")))


_EMOJI = r"[\p{Extended_Pictographic}--[\p{L}\p{P}©®™]]"
_ONLY_DIGITS = r"^[\p{Nd} +.-]*\p{Nd}[\p{Nd} +.-]*$"
_PLACEHOLDER = (
    r"(?i)^(?:[^\pL]*|ok(?:ay)?|n/a|[(<\[]?(?:none|null|nil)[)>\]]?|tests?|unknown|tbd|tbc|xx+|same|same as above|ditto"
    r"|idem|dito|undefined|<na>|<nan>|#n/d|#nv|\\n|\[object object\]|(?-i:-?nan|-?NaN|NaT))(?:\s+(?:nan|null))*[.?!]*$"
)
"""Strings without letters, and words that are not names. Some people are called `Na`, `No`, `Yes` or `Nan`."""


def warning_checks(rule: CountryRule) -> Iterator[ColumnCheck]:
    """Yield the checks whose failures are warnings. Rows that fail one remain valid."""
    fields = rule.form.fields if rule.form is not None else ()
    name_columns = _payee_name_columns(rule)
    unused = rule.omitted | (rule.accounts if rule.account_from else frozenset())
    numbers = [field for field in fields if field.kind in NUMBER_KINDS and field.name not in unused]
    # The payee is the account, or the phone if the form has no account.
    payee = next((field for field in numbers if field.kind is FieldKind.WALLET), numbers[0] if numbers else None)
    for field in fields:
        if field in numbers:
            column = NumberColumn.for_field(rule, field.name, field.kind)
            yield _lost_zero_warning(column)
            if field is payee and (check := _operator_warning(column, rule)) is not None:
                yield check
            if field.kind is FieldKind.WALLET:
                other_numbers = (number for number in numbers if number.kind is not field.kind)
                phones = (NumberColumn.for_field(rule, other.name, other.kind) for other in other_numbers)
                yield _two_meanings_warning(column, next(phones, None))
        elif field.name in name_columns:
            yield _name_warning(field.name)
            yield _damage_warning(field.name)


def _number_warning(column: NumberColumn, code: str, is_doubtful: pl.Expr, message: pl.Expr) -> ColumnCheck:
    reason = Reason(f"{column.name}.{code}", is_doubtful, message)
    return ColumnCheck(column.name, ~is_doubtful.fill_null(value=False), (reason,))


def _lost_zero_warning(column: NumberColumn) -> ColumnCheck:
    message = build_message(
        "{value} was read as {number}: the spreadsheet seems to have dropped a leading zero.",
        value=shortened_value(column.name),
        number=column.as_sent,
    )
    return _number_warning(column, "zero_restored", column.has_lost_zero, message)


def _two_meanings_warning(account: NumberColumn, phone: NumberColumn | None) -> ColumnCheck:
    """Return a check for accounts that have two meanings or differ from the row's phone. They may be correct."""
    national = pl.lit(None, pl.String) if phone is None else phone.national
    is_bank, is_both, is_phone = account.is_bank_account, account.is_bank_and_mobile, account.national == national
    is_other = ~(is_bank | is_both | is_phone)
    templates = {mark("{value} will be paid, but the row's phone number is different: {own}."): is_other}
    if account.bank_account_pattern is not None:  # last, so reasons have the same position in all countries
        as_bank = is_both & is_bank
        templates |= {
            mark("{value} will be paid as a bank account. The row's phone number is {number}."): as_bank & is_phone,
            mark("{value} will be paid as a bank account. It could also be the mobile number {number}."): as_bank,
            mark("{value} will be paid as the mobile number {number}. It could also be a bank account."): is_both,
        }
    dialling_code = pl.lit(f"+{account.numbers.dialling_code}")
    numbers = {"number": pl.concat_str(dialling_code, account.national), "own": pl.concat_str(dialling_code, national)}
    value = shortened_value(account.name)
    reasons = [
        Reason(f"{account.name}.two_meanings", applies, build_message(template, value=value, **numbers))
        for template, applies in templates.items()
    ]
    passes = ~pl.any_horizontal(reason.applies.fill_null(value=False) for reason in reasons)
    return ColumnCheck(account.name, passes, tuple(reasons), once_per_column=True)


def _operator_warning(column: NumberColumn, rule: CountryRule) -> ColumnCheck | None:
    """Return a check for numbers that were first assigned to an operator other than the purpose's."""
    operators = {word: terms.operator for word, terms in rule.purposes.items() if terms.operator is not None}
    default_operator = rule.operator if rule.purpose is not None else None
    if default_operator is None and not operators:
        return None
    operator = pl.lit(default_operator, pl.String)
    if rule.purposes:
        chosen_operator = folded_purpose().replace_strict(operators, default=None, return_dtype=pl.String)
        operator = pl.when(pl.col("purpose").is_null()).then(operator).otherwise(chosen_operator)
    is_other, first_operator = column.other_operator(operator)
    message = build_message(
        "{value} looks like a number from {owner}, but this row pays through {operator}. Check that the number was "
        "ported.",
        value=shortened_value(column.name),
        owner=first_operator,
        operator=operator,
    )
    return _number_warning(column, "operator", is_other, message)


def _name_warning(name: str) -> ColumnCheck:
    text, value = pl.col(name), shortened_value(name)
    digits_message = build_message("{value}: the name has only digits. Are two columns swapped?", value=value)
    placeholder_message = build_message("{value} does not look like a name. Check who will be paid.", value=value)
    digits = Reason(f"{name}.digits", text.str.contains(_ONLY_DIGITS), digits_message)
    placeholder = Reason(f"{name}.placeholder", text.str.contains(_PLACEHOLDER), placeholder_message)
    emoji_message = build_message("{value} contains an emoji. Check that the gateway accepts such a name.", value=value)
    emoji = Reason(f"{name}.emoji", text.str.contains(_EMOJI), emoji_message)
    # `_PLACEHOLDER` also matches names of only digits.
    is_doubtful = text.str.contains(f"(?:{_PLACEHOLDER})|{_EMOJI}").fill_null(value=False)
    return ColumnCheck(name, ~is_doubtful, (digits, placeholder, emoji))


def _damage_warning(name: str) -> ColumnCheck:
    text, fixed, value = pl.col(name), repair_column(name), shortened_value(name)
    advice = build_message("{value} may have been damaged by software. Is the name {right}?", value=value, right=fixed)
    warning = build_message("{value} may have been damaged by software. Check the name.", value=value)
    reasons = Reason(f"{name}.damaged", text != fixed, advice, fixed), Reason(f"{name}.damaged", _ALWAYS, warning)
    return ColumnCheck(name, ((text == fixed) & ~text.str.contains(DOUBTFUL)).fill_null(value=True), reasons)
