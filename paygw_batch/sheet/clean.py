"""Normalises the values of a sheet: trims and unwraps them, and removes separators from numbers. Nothing is guessed.

Functions take whole columns and change only the values that need it. A clean column is returned as is.

The module also guards CSV files against formulas (section 5 of the interface). The guard is added when a file is
written, and removed when it is read. Spreadsheets run a cell as a formula if it starts with `=`, `@`, a tab or a
carriage return, or starts with `+` or `-` and is not a plain number. Some treat full-width characters in the same way.
With a `'` in front, the cell is text.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add, or_

import polars as pl

from paygw_batch.countries.form_columns import sheet_columns
from paygw_batch.countries.kinds import Cleaning
from paygw_batch.countries.rules import WORD_SEPARATORS, CountryRule, FieldKind, MobileNumbers
from paygw_batch.sheet.amounts import PLAIN_AMOUNT, SAFE_DIGITS, remove_float_noise
from paygw_batch.sheet.columns import CONTROL

_CODE_IN_LOWER_CASE = "^(?:[A-Za-z]{2}|[A-Za-z]{3})$"
_CLEAN_NUMBER = r"^\+?[0-9]+$"
_LATIN = r"\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{131}\x{134}-\x{13E}\x{141}-\x{148}\x{14A}-\x{17E}"
"""Letters of European languages, and their neighbours in Unicode, that NFC does not change."""
_CLEAN_TEXT = f"^[!-<>-~{_LATIN}](?:[ -~{_LATIN}]*[!-~{_LATIN}])?$"
_CLEAN = {Cleaning.CODE: "^[A-Z]+$", Cleaning.AMOUNT: f"^[0-9.]{{1,{SAFE_DIGITS + 1}}}$"}
"""The patterns of clean codes and amounts. `_CLEAN_TEXT` is for all other values except numbers."""
_TRIMMED_CHARACTERS = r"[[\p{C}\p{Z}]--[\x{80}-\x{84}\x{86}-\x{9F}]]"
"""Spaces, invisible characters and line ends. Other control characters above ASCII belong to damaged letters."""
_TRIM_START, _TRIM_END = f"^{_TRIMMED_CHARACTERS}+", f"{_TRIMMED_CHARACTERS}+$"
_TRIM = f"{_TRIM_START}|{_TRIM_END}"
_WRAPPED_TEXT = r'^="([^"]*)"$'
_CONVERTED_BY_SPREADSHEETS = (
    r"[+-]?[.,]?[0-9][0-9.,:/ +-]*(?:[eE][+-]?[0-9]+)?%?"  # a number, a date, a time
    r"|[0-9]{1,2}[ /.-]?\p{L}{3,9}\.?(?:[ /.-]?[0-9]{1,4})?|\p{L}{3,9}[ /.-]?[0-9]{1,4}"  # a date with a month's name
    r"|(?i:true|false|vrai|faux)"
)
"""Strings that a spreadsheet converts when it opens a CSV file: `0712` becomes 712, and `MAR-1` becomes a date."""
_WRAPPED_FOR_SPREADSHEETS = f'^="({_CONVERTED_BY_SPREADSHEETS})"$'
_MAX_FORMULA_CHARS = 255
"""The maximum length of a string in an Excel formula."""
_GROUPED_DIGITS = r"^\+?[0-9]+(?:[ -][0-9]+)*$"
"""The pattern of most numbers with separators: only spaces and hyphens between the digits."""
_WHOLE_AS_FLOAT = r"^\+?[0-9]{7,15}\.0$"
_SIGN_OR_FRACTION = r"^[\p{Pd}\x{2212}]|\.[0-9]?(?:[^0-9]|$)"
"""A minus sign, or a dot before possible decimals. Neither separates groups of digits."""
_SEPARATORS = rf"[[\p{{C}}\p{{Z}}\p{{Pd}}\x{{2212}}().\[\]]--{CONTROL}]"
_TRUNK_ZERO_IN_BRACKETS = r"^((?:\+|00)[0-9][0-9 ]{0,5})\(0\)"
EXPONENT = r"^[0-9](?:[.,][0-9]+)?[eE]\+?[0-9]{1,2}$"
"""A number in a spreadsheet's scientific notation."""


def bare_column(column: str) -> str:
    """Return the name of the column that holds the values of `column` without separators."""
    return f"{column}:bare"


def clean_columns(frame: pl.DataFrame, columns: Collection[str] | None = None) -> pl.DataFrame:
    """Clean every known column as its kind requires. Returns `row`, then these columns as String.

    Columns that are not in the frame, or not in `columns` if given, are null. Each column of numbers is followed by its
    `bare_column`.
    """
    empty = pl.Series([None], dtype=pl.String).new_from_index(0, frame.height)
    cleaned: dict[str, pl.Series] = {}
    for name, cleaning in sheet_columns().cleanings.items():
        is_used = name in frame.columns and (columns is None or name in columns)
        text = frame[name] if is_used else empty.alias(name)
        needs_cleaning = text.is_not_null() & ~is_clean(text, cleaning) if is_used else None
        cleaned[name] = text if needs_cleaning is None else apply_where(text, needs_cleaning, CLEANERS[cleaning])
        if cleaning is Cleaning.NUMBER:  # a clean number has no separators
            bare = text if needs_cleaning is None else apply_where(text, needs_cleaning, _clean_and_strip)
            cleaned[bare_column(name)] = bare.alias(bare_column(name))
    return pl.DataFrame([frame["row"], *cleaned.values()])


def clean_codes(text: pl.Series) -> pl.Series:
    """Clean a column of codes (countries or currencies) as `clean_columns` does."""
    return apply_where(text, text.is_not_null() & ~is_clean(text, Cleaning.CODE), _clean_code)


def is_clean(text: pl.Series, cleaning: Cleaning) -> pl.Series:
    """Return a mask (never null) of clean values. It is false for some of them, such as 20-digit numbers."""
    if cleaning is Cleaning.NUMBER:
        # A string that casts to an integer has only digits, perhaps after a plus sign. Casting is faster than matching.
        return text.cast(pl.UInt64, strict=False).is_not_null()
    pattern = _CLEAN.get(cleaning, _CLEAN_TEXT)
    if cleaning is Cleaning.CODE and text.unique().str.contains(pattern).all():
        return text.is_not_null()
    return text.str.contains(pattern).fill_null(value=False)


def _clean_number(text: pl.Series) -> pl.Series:
    return apply_where(text, ~text.str.contains(_GROUPED_DIGITS), lambda part: trim(_unwrap(trim(part))))


def _clean_text(text: pl.Series) -> pl.Series:
    # Banks compare names, so apart from NFC and unusual spaces, they are sent as typed.
    return trim(_clean_trimmed(text).str.normalize("NFC").str.replace_all(r"\p{Zs}", " "))


def _clean_trimmed(text: pl.Series) -> pl.Series:
    """Trim, and undo `wrap_for_spreadsheets`. Otherwise `="A-1"` would differ from the order id `A-1`."""
    return trim(trim(text).str.replace(_WRAPPED_FOR_SPREADSHEETS, "${1}"))


def _clean_code(text: pl.Series) -> pl.Series:
    text = trim(text)
    return apply_where(text, text.str.contains(_CODE_IN_LOWER_CASE), lambda part: part.str.to_uppercase())


def _clean_amount(text: pl.Series) -> pl.Series:
    text = trim(_unwrap(trim(text)))
    is_long = text.str.contains(PLAIN_AMOUNT) & (text.str.len_chars() > SAFE_DIGITS + 1)
    return apply_where(text, is_long, remove_float_noise)


def _unwrap(text: pl.Series) -> pl.Series:
    return text.str.replace(_WRAPPED_TEXT, "${1}").str.strip_prefix("'")


def apply_where(text: pl.Series, mask: pl.Series, transform: Callable[[pl.Series], pl.Series]) -> pl.Series:
    """Apply `transform` to the values for which `mask` is true. Null counts as false."""
    indices = mask.fill_null(value=False).arg_true()
    return text.clone().scatter(indices, transform(text.gather(indices))) if indices.len() else text


def trim(text: pl.Series) -> pl.Series:
    """Strip spaces, control and invisible characters from both ends. Empty results are null."""
    # Two searches, one for each end, are much cheaper than a search for either end.
    needs_trim = text.str.contains(_TRIM_START) | text.str.contains(_TRIM_END) | (text == "")
    return apply_where(text, needs_trim, lambda part: part.str.replace_all(_TRIM, "").replace({"": None}))


def strip_separators(text: pl.Series) -> pl.Series:
    """Strip separators from phone and account numbers: `+254 (712) 345-678` becomes `+254712345678`.

    Scientific notation is expanded if no digit is missing (`2.54712345678E+11`). Numbers that a spreadsheet truncated,
    and values that may have a minus sign or decimals, are left unchanged.
    """
    return apply_where(text, ~text.str.contains(_CLEAN_NUMBER), _strip_number)


def _clean_and_strip(text: pl.Series) -> pl.Series:
    indices = (~text.str.contains(_GROUPED_DIGITS)).arg_true()
    digits = text.str.replace_all("[ -]", "")
    return digits.scatter(indices, _strip_number(_clean_number(text.gather(indices)))) if indices.len() else digits


def _strip_number(text: pl.Series) -> pl.Series:
    value = pl.col("value")
    groups = value.str.extract_groups(r"^([0-9])(?:[.,]([0-9]+))?[eE]\+?([0-9]{1,2})$")
    first_digit, decimals, exponent = (groups.struct.field(str(group)) for group in (1, 2, 3))
    is_whole = decimals.str.len_chars() == exponent.cast(pl.UInt32)
    return (
        text.to_frame("value")
        .select(
            pl.when(value.str.contains(EXPONENT))
            .then(pl.when(is_whole).then(pl.concat_str(first_digit, decimals)).otherwise(value))
            .when(value.str.contains(_WHOLE_AS_FLOAT))
            .then(value.str.strip_suffix(".0"))
            .when(value.str.contains(_SIGN_OR_FRACTION))
            .then(value)
            .otherwise(value.str.replace(_TRUNK_ZERO_IN_BRACKETS, "${1}").str.replace_all(_SEPARATORS, ""))
        )
        .to_series()
    )


CLEANERS: Mapping[Cleaning, Callable[[pl.Series], pl.Series]] = {
    Cleaning.TRIMMED: _clean_trimmed,
    Cleaning.TEXT: _clean_text,
    Cleaning.NUMBER: _clean_number,
    Cleaning.CODE: _clean_code,
    Cleaning.AMOUNT: _clean_amount,
}
FORMULA_SIGNS = r"\t\r+\-=@⁺⁼₊₌⩵⩶﬩﹢﹣﹦﹫＋－＝＠"  # noqa: RUF001 (the look-alikes are intended)
"""The first characters of formulas, with all characters that NFKC turns into them, as a character class."""
_FORMULA_START = f"^[{FORMULA_SIGNS}]"
_PLAIN_NUMBER = r"^[+-][0-9]+(?:\.[0-9]+)?$"
_GUARDED_TEXT = f"^'[{FORMULA_SIGNS}0-9]"
"""Also matches the `'` that people type before digits to keep leading zeros."""


def guard_formulas(text: pl.Series) -> pl.Series:
    """Put `'` before strings that a spreadsheet would run as formulas."""
    is_risky = text.str.contains(_FORMULA_START) & ~text.str.contains(_PLAIN_NUMBER)
    return apply_where(text, is_risky, lambda part: "'" + part)


def wrap_for_spreadsheets(text: pl.Series) -> pl.Series:
    """Wrap strings in `="..."` if a spreadsheet would convert them to a number or a date."""
    is_risky = text.str.contains(f"^(?:{_CONVERTED_BY_SPREADSHEETS})$") & (text.str.len_chars() <= _MAX_FORMULA_CHARS)
    return apply_where(text, is_risky, lambda part: '="' + part + '"')


def guard_columns(frame: pl.DataFrame) -> pl.DataFrame:
    """Guard the strings in all columns against formulas. One pass finds the few columns that need it."""
    texts = pl.selectors.string()
    has_formula = frame.select(texts.str.contains(_FORMULA_START).any()).row(0, named=True)
    return frame.with_columns(guard_formulas(frame[name]) for name, needs_guard in has_formula.items() if needs_guard)


def unguard_formulas(text: pl.Series) -> pl.Series:
    has_apostrophe = text.str.starts_with("'")
    if not has_apostrophe.any():
        return text
    return apply_where(text, has_apostrophe & text.str.contains(_GUARDED_TEXT), lambda part: part.str.strip_prefix("'"))


def guard_names(names: list[str]) -> list[str]:
    return guard_formulas(pl.Series(names, dtype=pl.String)).to_list()


def unguard_names(names: list[str]) -> list[str]:
    return unguard_formulas(pl.Series(names, dtype=pl.String)).to_list()


def purpose_code(rule: CountryRule) -> pl.Expr:
    """Return the code for the purpose that a row names, or null if the word is unknown."""
    codes = {word: terms.purpose for word, terms in rule.purposes.items()}
    return folded_purpose().replace_strict(codes, default=None, return_dtype=pl.String)


def folded_purpose() -> pl.Expr:
    """Return the row's word for its purpose, folded like the keys of `CountryRule.purposes`."""
    return pl.col("purpose").str.replace_all(WORD_SEPARATORS, "").str.to_lowercase()


_ACCOUNT_CHARACTERS = "^[A-Za-z0-9 ./-]+$"
"""The characters of bank accounts. An operator's pattern cannot allow others."""
_MASK_CHARACTERS = "[Xx\u00d7#\u2022\u25cf\u2219\u00b7?_\uff0a\uff38\uff58\uff03]"
"""Characters that other programs use for a hidden digit. They are sent as `*`."""


@dataclass(frozen=True, slots=True)
class NumberColumn:
    """Expressions for the numbers in a column of a `clean_columns` frame, for one country.

    Null values give null results. `source` is the column with the values.
    """

    name: str
    source: str
    kind: FieldKind
    numbers: MobileNumbers
    bank_account_pattern: str | None

    @classmethod
    def for_field(cls, rule: CountryRule, name: str, kind: FieldKind) -> "NumberColumn":
        is_wallet = kind is FieldKind.WALLET
        source = (rule.account_from if is_wallet else "") or name
        # A phone that serves as the account is a wallet, never a bank account with the same digits.
        pattern = rule.bank_account_pattern if is_wallet and source == name else None
        return cls(name, source, kind, rule.numbers, pattern)

    @property
    def _digits(self) -> pl.Expr:
        digits = pl.col(bare_column(self.source))
        return digits.str.replace_all(_MASK_CHARACTERS, "*") if self.kind is FieldKind.MASKED_PHONE else digits

    @property
    def _prefix_pattern(self) -> str:
        """A pattern for the prefix of a national number: the dialling code or the trunk prefix."""
        trunk = f"|{self.numbers.trunk_prefix}" if self.numbers.trunk_prefix else ""
        return rf"(?:(?:\+|00)?{self.numbers.dialling_code}{trunk})"

    @property
    def _forms(self) -> tuple[pl.Expr, ...]:
        """Whether the number is in each form: with a dialling code, a trunk prefix, neither, or a lost zero."""
        numbers, digits = self.numbers, self._digits
        has_code = digits.str.contains(rf"^(?:\+|00)?{numbers.dialling_code}{numbers.pattern}$")
        has_trunk = [digits.str.contains(f"^{numbers.trunk_prefix}{numbers.pattern}$")] if numbers.trunk_prefix else []
        has_no_prefix = digits.str.contains(f"^{numbers.pattern}$")
        return (has_code, *has_trunk, has_no_prefix, *([self._lacks_zero] if numbers.keeps_zero else []))

    @property
    def _lacks_zero(self) -> pl.Expr:
        return pl.concat_str(pl.lit("0"), self._digits).str.contains(f"^{self.numbers.pattern}$")

    @property
    def is_bank_account(self) -> pl.Expr:
        """Whether the whole value matches the operator's pattern for bank accounts. It is then sent unchanged."""
        return self._matches_bank_account(pl.col(self.source))

    def _matches_bank_account(self, text: pl.Expr) -> pl.Expr:
        if self.bank_account_pattern is None:
            return pl.lit(value=False)
        return text.str.contains(_ACCOUNT_CHARACTERS) & text.str.contains(f"^(?:{self.bank_account_pattern})$")

    @property
    def is_bank_and_mobile(self) -> pl.Expr:
        """Whether the value, with or without separators, is both a bank account and a mobile number."""
        return (self.is_bank_account | self._matches_bank_account(self._digits)) & self._is_mobile

    @property
    def is_valid(self) -> pl.Expr:
        """Whether the value is a bank account, a partly masked number, or an unambiguous mobile number."""
        is_valid = self._is_mobile
        if len(self.numbers.national_lengths) > 1:  # otherwise the length determines the form
            is_valid &= reduce(add, (form.cast(pl.UInt8) for form in self._forms)) == 1
        return is_valid | self.is_bank_account | self._is_partly_masked

    @property
    def _is_mobile(self) -> pl.Expr:
        # One pattern for all forms is cheaper than `_forms`.
        has_form = self._digits.str.contains(rf"^{self._prefix_pattern}?{self.numbers.pattern}$")
        return has_form | self._lacks_zero if self.numbers.keeps_zero else has_form

    @property
    def _is_partly_masked(self) -> pl.Expr:
        if self.kind is not FieldKind.MASKED_PHONE:
            return pl.lit(value=False)
        is_fully_masked = self._masked_number.str.contains(r"^\*+$")
        return self._masked_number.str.contains(r"\*").fill_null(value=False) & ~is_fully_masked.fill_null(value=False)

    @property
    def _masked_number(self) -> pl.Expr:
        """The national significant number, possibly with masked digits. Null if the value is not a number."""
        numbers = self.numbers
        lengths = "|".join(f"[0-9*]{{{length}}}" for length in numbers.national_lengths)
        return self._digits.str.extract(rf"^{self._prefix_pattern}({lengths})$")

    @property
    def has_lost_zero(self) -> pl.Expr:
        """Whether a valid number lacks its leading zero, probably because of a spreadsheet."""
        numbers = self.numbers
        forms = [self._digits.str.contains(f"^{numbers.pattern}$")] if numbers.trunk_prefix else []
        forms += [self._lacks_zero] if numbers.keeps_zero else []
        return reduce(or_, forms) & ~self.is_bank_account if forms else pl.lit(value=False)

    def other_operator(self, operator: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
        """Return whether a valid number was first assigned to an operator other than `operator`, and to which."""
        operators = self.numbers.operators
        # Longer prefixes come first, because the first alternative that matches is used.
        prefixes = "|".join(sorted(operators, key=lambda start: (-len(start), start)))
        prefix = self.national.str.extract(f"^({prefixes})")
        first_operator = prefix.replace_strict(dict(operators), default=None, return_dtype=pl.String)
        return (first_operator != operator).fill_null(value=False) & ~self.is_bank_account, first_operator

    @property
    def national(self) -> pl.Expr:
        """The national significant number of a valid mobile number."""
        numbers = self.numbers
        if len(numbers.national_lengths) == 1:
            national = self._digits.str.tail(numbers.national_lengths[0])
        else:
            national = self._digits.str.replace(rf"^{self._prefix_pattern}?({numbers.pattern})$", "${1}")
        if numbers.keeps_zero:
            zero = pl.when(self._lacks_zero).then(pl.lit("0")).otherwise(pl.lit(""))
            national = pl.concat_str(zero, national)
        return national

    @property
    def converted_number(self) -> pl.Expr:
        """A number from the other numbering plan, converted to the plan in use. Null for other numbers."""
        conversions = () if self.numbers.renumbering is None else self.numbers.renumbering.conversions
        nationals = (
            (self._digits.str.extract(rf"^{self._prefix_pattern}?{form}$"), prefix) for form, prefix in conversions
        )
        converted = [pl.concat_str(pl.lit(self._sent_prefix + prefix), national) for national, prefix in nationals]
        return pl.coalesce(*converted, pl.lit(None, pl.String))

    @property
    def _sent_prefix(self) -> str:
        """The prefix of the national number in a request (section 2.2 of the gateway's interface)."""
        match self.kind:
            case FieldKind.LOCAL_PHONE:
                return self.numbers.trunk_prefix
            case FieldKind.WALLET:
                return self.numbers.dialling_code
            case _:
                return f"+{self.numbers.dialling_code}"

    @property
    def as_sent(self) -> pl.Expr:
        """A valid number as it is sent."""
        national = self.national
        if self.kind is FieldKind.MASKED_PHONE:
            national = pl.when(self._is_partly_masked).then(self._masked_number).otherwise(national)
        number = pl.concat_str(pl.lit(self._sent_prefix), national)
        if self.bank_account_pattern is None:
            return number
        return pl.when(self.is_bank_account).then(pl.col(self.source)).otherwise(number)

    @property
    def is_in_sent_form(self) -> pl.Expr:
        """Whether a valid number certainly has the form that is sent. Cheap to compute, and never null."""
        numbers, digits = self.numbers, self._digits
        if self.kind is FieldKind.INTERNATIONAL_PHONE:
            return digits.str.starts_with("+").fill_null(value=False)
        # If all national numbers have the same length, the length of a value shows its form.
        shows_form = len(numbers.national_lengths) == 1 and len(numbers.trunk_prefix) != len(numbers.dialling_code)
        prefix = self._sent_prefix
        if not prefix or not shows_form or self.kind is FieldKind.MASKED_PHONE or self.bank_account_pattern is not None:
            return pl.lit(value=False)
        return (digits.str.len_bytes() == len(prefix) + numbers.national_lengths[0]).fill_null(value=False)

    @property
    def lengths(self) -> list[int]:
        """The possible digit counts of a valid number in any form, without `+` or `00`."""
        numbers = self.numbers
        prefixes = {len(numbers.dialling_code), len(numbers.trunk_prefix), 0}
        return sorted(prefix + length for prefix in prefixes for length in numbers.national_lengths)

    @property
    def example(self) -> str:
        """An example number as it is sent."""
        return f"{self._sent_prefix}{self.numbers.example}"
