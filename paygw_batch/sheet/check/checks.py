"""Defines the checks of a row: for each column of a country one condition, and the reasons why a value fails it.

All conditions are expressions over a frame that `clean.cleaned` made. `contract.contract` puts these checks into the
country's pandera schema, and `judge` runs the checks of that schema. Nothing else decides whether a value is right
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
    PLAIN,
    amount_advice,
    amount_correction,
    amount_value,
    rounded_amount,
    with_decimals,
)
from paygw_batch.sheet.check.damage import DOUBTFUL, undamaged
from paygw_batch.sheet.check.spelling import country_code
from paygw_batch.sheet.clean import EXPONENT, FORMULA_SIGNS, PhoneColumn, bare, folded_purpose
from paygw_batch.sheet.findings import NO_CORRECTION, shown, worded

_ERROR_MARK = r"^#(?:N/A|REF!|VALUE!|DIV/0!|NAME\?|NULL!|NUM!|SPILL!|CALC!|GETTING_DATA|VALEUR!|NOM\?|NOMBRE!|NUL!)$"
_NOT_PRINTABLE = r"[\p{C}\p{Zl}\p{Zp}]|[\p{Zs}--[ ]]"
_CONTROL = r"[\p{Cc}\p{Zl}\p{Zp}]"
_TURNS_THE_TEXT = r"[\x{061C}\x{200E}\x{200F}\x{202A}-\x{202E}\x{2066}-\x{2069}]"
"""Invisible characters that change the direction of writing, so that a name looks like another name."""
_STARTS_A_FORMULA = rf"^(?:[=@⁼₌⩵⩶﹦﹫＝＠]|[{FORMULA_SIGNS}].*\pL)"  # noqa: RUF001 (spreadsheets fold them)
_LOST_CHARACTER = "\ufffd"
_CUT_ID = r"^[0-9][.,][0-9]+[eE]\+[0-9]+$"
_ALWAYS = pl.lit(value=True)
_EMPTY = pl.lit("")
PAYEE_NAME = "account_name"
"""The column of the reconciliation that has the payee's name."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Says why a value fails a check: the `code` of the defect, and its `message` as a whole sentence.

    `correction` is the only text that can be meant: "" empties the cell, and null says that there is no correction. It
    is offered only if it passes the check.
    """

    code: str
    applies: pl.Expr
    message: pl.Expr
    correction: pl.Expr = NO_CORRECTION


@dataclass(frozen=True, eq=False)
class ColumnCheck:
    """Decides about the values of one column: a value is right if `passes` (never null) is true.

    Any other value is explained by the first of `reasons` that applies; one of them always does. If they are about the
    whole column (`of_whole_column`), each is stated once, with the numbers of all its rows.
    """

    column: str
    passes: pl.Expr
    reasons: tuple[Reason, ...]
    of_whole_column: bool = False

    def __deepcopy__(self, _: object) -> "ColumnCheck":
        """Return the check itself, because it never changes. pandera would otherwise copy every expression in it."""
        return self

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """The columns that the check, its reasons and their sentences need, and the row's number."""
        expressions = [part for reason in self.reasons for part in (reason.applies, reason.message, reason.correction)]
        names = {name for expression in [self.passes, *expressions] for name in expression.meta.root_names()}
        return tuple(sorted(names | {"row", self.column}))


def _unless(
    wrong: pl.Expr, column: str, code: str, message: pl.Expr, correction: pl.Expr = NO_CORRECTION
) -> ColumnCheck:
    return ColumnCheck(column, ~wrong, (Reason(f"{column}.{code}", _ALWAYS, message, correction),))


def _missing(column: str, headings: Mapping[str, str]) -> Reason:
    message = worded("{column} is missing.", column=headings.get(column, column))
    return Reason(f"{column}.missing", pl.col(column).is_null(), message)


def _error_mark(column: str) -> Reason:
    message = worded("{value} is a spreadsheet error. Correct the formula, or paste the value.", value=shown(column))
    return Reason(f"{column}.error_mark", pl.col(column).str.contains(_ERROR_MARK), message)


def _lost_character(column: str) -> Reason:
    message = worded(
        "{value}: a program has lost a character. Write the text again from its source.", value=shown(column)
    )
    return Reason(f"{column}.lost_character", pl.col(column).str.contains(_LOST_CHARACTER, literal=True), message)


def _cut(column: str, cut: pl.Expr) -> Reason:
    message = worded(
        "{value}: the spreadsheet has cut this number. Format the column as text, and enter it again from its source.",
        value=shown(column),
    )
    return Reason(f"{column}.exponent", cut, message)


def checks_without_country(rules: Rules) -> tuple[ColumnCheck, ...]:
    """Return the checks of rows whose country is missing or unknown, to which no country's rule applies."""
    country = pl.col("country")
    confused = {code: say(sentence) for rule in rules.values() for code, sentence in rule.confused_codes.items()}
    codes = ", ".join(rules)
    is_confused = country.is_in(list(confused))
    code = pl.when(~is_confused).then(country_code(country, rules))
    unknown = (
        pl.when(is_confused)
        .then(country.replace_strict(confused, default=None, return_dtype=pl.String))
        .when(code.is_not_null())
        .then(worded("{value}: write {code}.", value=shown("country"), code=code))
        .otherwise(
            worded(
                "{value} is not a country that can be paid: write one of {known}.", value=shown("country"), known=codes
            )
        )
    )
    headings = next(iter(rules.values())).headings
    reasons = (_missing("country", headings), Reason("country.unknown", _ALWAYS, unknown, code))
    passes, amount = country.is_in(list(rules)).fill_null(value=False), _amount(None, headings, code.is_not_null())
    return ColumnCheck("country", passes, reasons), _order_id(headings), amount


def checks_of(rule: CountryRule, rules: Rules) -> tuple[ColumnCheck, ...]:
    common = (_order_id(rule.headings), _amount(rule, rule.headings), _currency(rule))
    if rule.form is None:
        return (_unless(_ALWAYS, "country", "unusable", pl.lit(say(rule.unusable))), *common)
    return (*common, *_contradictions(rule), *_form_checks(rule, rule.form.fields, rules))


def _form_checks(rule: CountryRule, fields: tuple[FormField, ...], rules: Rules) -> Iterator[ColumnCheck]:
    for field in fields:
        if not field.from_sheet or (rule.account_from and field.name in rule.accounts):
            continue  # an account taken from the phone is right if the phone is
        name, entry = field.name, KINDS[field.kind]
        if name in rule.omitted:  # a value that is silently left out would be lost
            message = worded(
                "{value}: {country} does not use {column}. Leave the cell empty.",
                value=shown(name),
                country=say(rule.name),
                column=rule.headings.get(name, name),
            )
            yield _unless(pl.col(name).is_not_null(), name, "not_used", message, _EMPTY)
            continue
        required = name == rule.account_from or (name in rule.required and name not in rule.defaults)
        match entry.checking:
            case Checking.NUMBER:
                yield _number(rule, field, rules, required=required)
            case Checking.TEXT:
                check = _name if name in name_columns(rule) else _text
                yield check(name, rule, required=required)
            case Checking.PATTERN:
                message = worded("{value} is not {what}.", value=shown(name), what=say(entry.what))
                right = pl.col(name).str.contains(entry.pattern)
                yield _given(name, right, message, required=required, headings=rule.headings)
            case Checking.OF_THE_ROW | Checking.NEVER_IN_A_SHEET:
                pass  # the row's own checks decide, or only the configuration has it
            case _:
                assert_never(entry.checking)


def _given(
    column: str,
    right: pl.Expr,
    message: pl.Expr,
    *others: Reason,
    required: bool,
    headings: Mapping[str, str],
    correction: pl.Expr = NO_CORRECTION,
) -> ColumnCheck:
    """Return the check of a column that may be empty unless `required`. The reasons `others` precede `message`."""
    is_filled = pl.col(column).is_not_null()
    last = Reason(f"{column}.format", _ALWAYS, message, correction)
    reasons = (_missing(column, headings), _error_mark(column), *others, last)
    if required:
        return ColumnCheck(column, is_filled & right, reasons)
    return ColumnCheck(column, ~is_filled | right, reasons[1:])


def _order_id(headings: Mapping[str, str]) -> ColumnCheck:
    name = "client_orderid"
    text = pl.col(name)
    right = ~text.str.contains(f"{_NOT_PRINTABLE}|{_CUT_ID}|{_ERROR_MARK}|{_LOST_CHARACTER}")
    message = worded(
        "{value} cannot be an order id: write at most {characters} printable characters, including plain spaces.",
        value=shown(name),
        characters=ORDER_ID_CHARACTERS,
    )
    short = text.str.len_chars() <= ORDER_ID_CHARACTERS
    cut = _cut(name, text.str.contains(_CUT_ID))
    return _given(name, right & short, message, cut, _lost_character(name), required=True, headings=headings)


def _amount(rule: CountryRule | None, headings: Mapping[str, str], offers: pl.Expr = _ALWAYS) -> ColumnCheck:
    """Return the check of amounts, of their form alone without a rule. A row of totals `offers` no correction."""
    text, text_shown = pl.col("amount"), shown("amount")
    terms = ("amount", None) if rule is None else ("amount", rule.currency, rule.decimals)
    advice = worded("{value} {advice}.", value=text_shown, advice=amount_advice(*terms))
    plain, positive = text.str.contains(PLAIN), text.str.contains("[1-9]")
    unread = (
        _missing("amount", headings),
        _error_mark("amount"),
        Reason(
            "amount.exponent",
            text.str.contains(AMOUNT_EXPONENT),
            worded("{value}: write the amount out in plain digits.", value=text_shown),
        ),
        Reason("amount.format", ~plain, advice, pl.when(offers).then(amount_correction(*terms))),
    )
    zero = Reason("amount.zero", ~positive, worded("{value}: an amount must be above zero.", value=text_shown))
    if rule is None:
        return ColumnCheck("amount", text.is_not_null() & plain & positive, (*unread, zero))
    exact = text.str.contains(with_decimals(rule.decimals))
    both = text.str.contains(rf"^[1-9][0-9]{{0,2}}\.[0-9]{{{rule.decimals}}}{'0' * (3 - rule.decimals)}$")
    two_ways = Reason("amount.decimals", both, advice)
    rounded = rounded_amount("amount", rule.decimals)
    decimals = Reason("amount.decimals", ~exact, _too_many_decimals(rule, rounded), rounded)
    limits = tuple(_limits(rule))
    passes = pl.all_horizontal(text.is_not_null(), exact, positive, *(~limit.applies for limit in limits))
    return ColumnCheck("amount", passes, (*unread, two_ways, decimals, zero, *limits))


def _limits(rule: CountryRule) -> Iterator[Reason]:
    value = amount_value("amount", rule.minor_units)
    parts: Mapping[str, pl.Expr | str] = {"value": shown("amount"), "country": say(rule.name)}
    smallest = mark("{value}: the smallest amount that may be sent to {country} is {limit}.")
    if (limit := rule.min_amount) is not None:
        yield Reason("amount.minimum", value < limit, worded(smallest, **parts, limit=f"{limit:f}"))
    largest = mark("{value}: the largest amount that may be sent to {country} is {limit}.")
    if (limit := rule.max_amount) is not None:
        yield Reason("amount.maximum", value > limit, worded(largest, **parts, limit=f"{limit:f}"))


def _too_many_decimals(rule: CountryRule, rounded: pl.Expr) -> pl.Expr:
    units = rule.decimals
    is_same = pl.col("amount").str.contains(rf"\.[0-9]{{{units}}}0+$")
    same, other = worded(", write {text}", text=rounded), worded(", write {text} if it may be rounded", text=rounded)
    mend = pl.when(is_same).then(same).otherwise(other).fill_null("")
    parts = {"value": shown("amount"), "currency": pl.lit(rule.currency), "mend": mend}
    if units < rule.minor_units:
        whole_only = mark("{value}: the gateway takes whole amounts in {currency} only{mend}.")
        fewer = mark("{value}: the gateway takes fewer decimals than {currency} has{mend}.")
        return worded(fewer if units else whole_only, **parts)
    if not units:
        return worded("{value}: {currency} has no decimals{mend}.", **parts)
    return worded("{value}: {currency} has {units} decimals{mend}.", units=units, **parts)


def _currency(rule: CountryRule) -> ColumnCheck:
    message = worded(
        "{value}: {country} is paid in {currency}. Write {currency}, or leave the currency empty.",
        value=shown("currency"),
        country=say(rule.name),
        currency=rule.currency,
    )
    return _other_than("currency", rule.currency, message, pl.lit(rule.currency))


def _contradictions(rule: CountryRule) -> Iterator[ColumnCheck]:
    """Yield the checks of columns that may be empty because the country decides their value."""
    if rule.purposes:
        yield _chosen_purpose(rule)
    elif rule.purpose is not None:
        message = worded(
            "{value}: only one payment channel is set up for {country}. Leave the cell empty to pay through it, or "
            "have another one set up.",
            value=shown("purpose"),
            country=say(rule.name),
        )
        yield _other_than("purpose", rule.purpose, message)
    for column in sorted(sheet_columns().codes):
        message = worded(
            "{value}: the country of this row is {code}. Write {code}, or leave it empty.",
            value=shown(column),
            code=rule.code,
        )
        yield _other_than(column, rule.code, message)


def _chosen_purpose(rule: CountryRule) -> ColumnCheck:
    column, word = "purpose", pl.col("purpose")
    message = worded(
        "{value} is not one of the words set up for {country}: {words}.",
        value=shown(column),
        country=say(rule.name),
        words=", ".join(sorted({terms.word for terms in rule.purposes.values() if terms.word})),
    )
    right = folded_purpose().is_in(list(rule.purposes))
    reasons = (_missing(column, rule.headings), Reason(f"{column}.mismatch", _ALWAYS, message))
    if rule.purpose is None:
        return ColumnCheck(column, word.is_not_null() & right.fill_null(value=False), reasons)
    return ColumnCheck(column, word.is_null() | right.fill_null(value=False), reasons[1:])


def _other_than(column: str, value: str, message: pl.Expr, correction: pl.Expr = NO_CORRECTION) -> ColumnCheck:
    wrong = pl.col(column).is_not_null() & (pl.col(column) != value)
    return _unless(wrong, column, "mismatch", message, correction)


def _text(column: str, rule: CountryRule, *others: Reason, never: str = "", required: bool) -> ColumnCheck:
    """Return the check of a text. A text that matches the pattern `never` is wrong, and `others` explain why."""
    text = pl.col(column)
    patterns = filter(None, (_CONTROL, _LOST_CHARACTER, _ERROR_MARK, never))  # one pattern for all is cheaper
    most = rule.max_characters.get(column, TEXT_CHARACTERS)
    right = ~text.str.contains("|".join(patterns)) & (text.str.len_chars() <= most)
    message = worded(
        "{value}: write at most {characters} characters, on one line, without tabs.",
        value=shown(column),
        characters=most,
    )
    on_one_line = undamaged(column).str.replace_all(rf"[\p{{Z}}]*{_CONTROL}+[\p{{Z}}]*", " ")
    return _given(
        column,
        right,
        message,
        _lost_character(column),
        *others,
        required=required,
        headings=rule.headings,
        correction=pl.when(text.str.contains(_CONTROL)).then(on_one_line),
    )


def name_columns(rule: CountryRule) -> frozenset[str]:
    """Return the columns that have the payee's name."""
    shown_columns = dict(rule.form.shown) if rule.form is not None else {}
    return frozenset({PAYEE_NAME, *shown_columns.get(PAYEE_NAME, ())})


def _name(column: str, rule: CountryRule, *, required: bool) -> ColumnCheck:
    """Return the check of a name, which people compare by eye, and open in a spreadsheet."""
    text = pl.col(column)
    others = (
        Reason(
            f"{column}.direction",
            text.str.contains(_TURNS_THE_TEXT),
            worded("{value}: an invisible character reverses text. Type the name again.", value=shown(column)),
        ),
        Reason(
            f"{column}.formula_sign",
            text.str.contains(_STARTS_A_FORMULA),
            worded("{value}: a name cannot begin with a formula sign. Write the name alone.", value=shown(column)),
        ),
    )
    return _text(column, rule, *others, never=f"{_TURNS_THE_TEXT}|{_STARTS_A_FORMULA}", required=required)


def _number(rule: CountryRule, field: FormField, rules: Rules, *, required: bool) -> ColumnCheck:
    name = field.name
    column = PhoneColumn.of(rule, name, field.kind)
    digits = pl.col(bare(name))
    foreign, owner = _foreign(rule, digits, rules)
    parts = {"value": shown(name), "what": pl.lit(_number_of(rule))}
    count = digits.str.count_matches("[0-9]")
    significant = digits.str.replace(r"^(?:\+|00)", "").str.len_chars()
    counted = {"count": count, "expected": _expected(column), **parts}
    one_digit = worded("{value} has one digit; {what} has {expected}.", **counted)
    several = worded("{value} has {count} digits; {what} has {expected}.", **counted)
    is_of_other_length = digits.str.contains(r"^\+?[0-9]+$") & ~significant.is_in(column.lengths)
    of_length = pl.when(count == 1).then(one_digit).otherwise(several)
    message = pl.when(is_of_other_length).then(of_length).otherwise(_example(column, parts))
    sentence = worded(
        "{value} is a number of {owner}, but the country of this row is {code}.",
        value=shown(name),
        owner=owner,
        code=rule.code,
    )
    other = Reason(f"{name}.country", foreign, sentence)
    cut = _cut(name, digits.str.contains(EXPONENT))
    others = (cut, *_renumbered(column, rule), other)
    return _given(name, column.is_valid, message, *others, required=required, headings=rule.headings)


def _renumbered(column: PhoneColumn, rule: CountryRule) -> Iterator[Reason]:
    """Yield the reason for a number of the country's other numbering plan: the former one, or the new one."""
    if (change := rule.numbers.renumbering) is None:
        return
    number = column.renumbered
    message = worded(
        mark("{value} is a number from after {changed}, and the gateway takes those from before. Write {number}.")
        if change.to_former
        else mark("{value} is a number from before {changed}, when {country} changed its numbers. Write {number}."),
        value=shown(column.name),
        changed=change.changed.isoformat(),
        country=say(rule.name),
        number=number,
    )
    yield Reason(f"{column.name}.renumbered", number.is_not_null(), message, number)


def _number_of(rule: CountryRule) -> str:
    is_an = rule.demonym[0] in "AEIOU"
    if rule.bank_account_pattern is None:
        template = mark("an {demonym} mobile number") if is_an else mark("a {demonym} mobile number")
    else:
        template = mark("an {demonym} number") if is_an else mark("a {demonym} number")
    return say(template, demonym=say(rule.demonym))


def _expected(column: PhoneColumn) -> pl.Expr:
    """Return the digits of a valid number, for a sentence: as it is written in its country, unless this one is not."""
    numbers = column.numbers
    local = [len(numbers.trunk_prefix) + length for length in numbers.national_lengths]
    abroad = [len(numbers.dialling_code) + length for length in numbers.national_lengths]
    written = f"{numbers.trunk_prefix}{numbers.example}"
    example = f"{written[:-6]} {written[-6:-3]} {written[-3:]}"
    one = {"lengths": say(" or ").join(map(str, local)), "example": example}
    other = {"lengths": say(" or ").join(map(str, abroad)), "start": numbers.dialling_code}
    is_abroad = pl.col(bare(column.name)).str.contains(rf"^(?:\+|00|{numbers.dialling_code})")
    return (
        pl.when(is_abroad)
        .then(pl.lit(say("{lengths} and starts with {start}", **other)))
        .otherwise(pl.lit(say("{lengths}, as in {example}", **one)))
    )


def _example(column: PhoneColumn, parts: Mapping[str, pl.Expr]) -> pl.Expr:
    if column.kind is FieldKind.MASKED_PHONE:
        template = mark(
            "{value} is not {what}; one is, for example, {example}, and a hidden digit is a *, an X or a #."
        )
    else:
        template = mark("{value} is not {what}; one is, for example, {example}.")
    return worded(template, example=column.example, **parts)


def _foreign(rule: CountryRule, digits: pl.Expr, rules: Rules) -> tuple[pl.Expr, pl.Expr]:
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
_DIGITS_ALONE = r"^[\p{Nd} +.-]*\p{Nd}[\p{Nd} +.-]*$"
_NO_NAME = (
    r"(?i)^(?:[^\pL]*|ok(?:ay)?|n/a|[(<\[]?(?:none|null|nil)[)>\]]?|tests?|unknown|tbd|tbc|xx+|same|same as above|ditto"
    r"|idem|dito|undefined|<na>|<nan>|#n/d|#nv|\\n|\[object object\]|(?-i:-?nan|-?NaN|NaT))(?:\s+(?:nan|null))*[.?!]*$"
)
"""Texts in place of a name: texts without a letter, and words that are not names.

Words that are somewhere a name (`Na`, `No`, `Yes`, `Nan`) are not among them.
"""


def warnings_of(rule: CountryRule) -> Iterator[ColumnCheck]:
    """Yield the checks that a valid row may fail. A failed one is a warning, which refuses nothing."""
    fields = rule.form.fields if rule.form is not None else ()
    names = name_columns(rule)
    not_read = rule.omitted | (rule.accounts if rule.account_from else frozenset())
    numbers = [field for field in fields if field.kind in NUMBER_KINDS and field.name not in not_read]
    # The account is paid, or the phone if the form has no account.
    payee = next((field for field in numbers if field.kind is FieldKind.WALLET), numbers[0] if numbers else None)
    for field in fields:
        if field in numbers:
            column = PhoneColumn.of(rule, field.name, field.kind)
            yield _zero_restored(column)
            if field is payee and (check := _other_operator(column, rule)) is not None:
                yield check
            if field.kind is FieldKind.WALLET:
                beside = (
                    PhoneColumn.of(rule, other.name, other.kind) for other in numbers if other.kind is not field.kind
                )
                yield _two_meanings(column, next(beside, None))
        elif field.name in names:
            yield _doubtful_names(field.name)
            yield _damaged_names(field.name)


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


def _two_meanings(account: PhoneColumn, phone: PhoneColumn | None) -> ColumnCheck:
    """Return the warning about accounts that would pay somebody else if they or the row's phone were read otherwise.

    It can't be a defect, because some banks number accounts by phone, and some people are paid to another phone's
    wallet.
    """
    national = pl.lit(None, pl.String) if phone is None else phone.national
    is_bank, is_both, is_own = account.is_bank_account, account.is_account_and_mobile, account.national == national
    doubts = {mark("{value} is paid. The phone of the row is another number, {own}."): ~(is_bank | is_both | is_own)}
    if account.bank_account_pattern is not None:  # last, so that a reason has the same place in all countries
        doubts |= {
            mark("{value} is paid as a bank account. The phone of the row is {number}."): is_both & is_bank & is_own,
            mark("{value} is paid as a bank account. It could also be the mobile number {number}."): is_both & is_bank,
            mark("{value} is paid as the mobile number {number}. It could also be a bank account."): is_both,
        }
    dialling_code = pl.lit(f"+{account.numbers.dialling_code}")
    numbers = {"number": pl.concat_str(dialling_code, account.national), "own": pl.concat_str(dialling_code, national)}
    reasons = [
        Reason(f"{account.name}.two_meanings", applies, worded(sentence, value=shown(account.name), **numbers))
        for sentence, applies in doubts.items()
    ]
    passes = ~pl.any_horizontal(reason.applies.fill_null(value=False) for reason in reasons)
    return ColumnCheck(account.name, passes, tuple(reasons), of_whole_column=True)


def _other_operator(column: PhoneColumn, rule: CountryRule) -> ColumnCheck | None:
    """Return the warning about a number that was first given to another operator than the one its purpose pays to."""
    by_word = {word: terms.operator for word, terms in rule.purposes.items() if terms.operator is not None}
    usual = rule.operator if rule.purpose is not None else None
    if usual is None and not by_word:
        return None
    operator = pl.lit(usual, pl.String)
    if rule.purposes:
        chosen = folded_purpose().replace_strict(by_word, default=None, return_dtype=pl.String)
        operator = pl.when(pl.col("purpose").is_null()).then(operator).otherwise(chosen)
    is_other, owner = column.of_another_operator(operator)
    message = worded(
        "{value} begins like a number of {owner}, but this row pays through {operator}: make sure that the "
        "number was moved there.",
        value=shown(column.name),
        owner=owner,
        operator=operator,
    )
    return _doubt(column, "operator", is_other, message)


def _doubtful_names(name: str) -> ColumnCheck:
    text = pl.col(name)
    swapped = worded("{value}: the name has only digits. Are two columns swapped?", value=shown(name))
    no_name = worded("{value} is not a name: check who is paid.", value=shown(name))
    digits = Reason(f"{name}.digits", text.str.contains(_DIGITS_ALONE), swapped)
    nobody = Reason(f"{name}.placeholder", text.str.contains(_NO_NAME), no_name)
    has_picture = worded(
        "{value} has a picture in it (an emoji): make sure that the gateway takes such a name.", value=shown(name)
    )
    picture = Reason(f"{name}.emoji", text.str.contains(_PICTURE), has_picture)
    # One pattern for all reasons is enough, because digits alone contain no letter and so match `_NO_NAME` as well.
    doubtful = text.str.contains(f"(?:{_NO_NAME})|{_PICTURE}").fill_null(value=False)
    return ColumnCheck(name, ~doubtful, (digits, nobody, picture))


def _damaged_names(name: str) -> ColumnCheck:
    text, right = pl.col(name), undamaged(name)
    message = worded("{value} seems to be damaged by a program: is the name {right}?", value=shown(name), right=right)
    lost = worded("{value} seems to be damaged by a program: check the name.", value=shown(name))
    reasons = Reason(f"{name}.damaged", text != right, message, right), Reason(f"{name}.damaged", _ALWAYS, lost)
    return ColumnCheck(name, ((text == right) & ~text.str.contains(DOUBTFUL)).fill_null(value=True), reasons)
