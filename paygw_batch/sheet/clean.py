"""Makes texts comparable: trims and unwraps them, and removes separators from numbers. Nothing is guessed.

Every function works on whole columns and changes only values that need it. A clean column, as in most sheets, is
returned as the same series.

The module also guards CSV files against formulas (section 5 of the interface): the guard is added when a file is
written, and removed when it is read. Spreadsheets run a cell as a formula if it starts with `=`, `@`, a tab or a
carriage return, or starts with `+` or `-` and is not a plain number. Some take a full-width sign for such a sign. With
a `'` in front, the cell is text.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add, or_

import polars as pl

from paygw_batch.countries.form_columns import sheet_columns
from paygw_batch.countries.kinds import Cleaning
from paygw_batch.countries.rules import WORD_SEPARATORS, CountryRule, FieldKind, MobileNumbers
from paygw_batch.sheet.amounts import PLAIN, SAFE_DIGITS, without_noise
from paygw_batch.sheet.columns import CONTROL

_CODE_IN_LOWER_CASE = "^(?:[A-Za-z]{2}|[A-Za-z]{3})$"
_CLEAN_NUMBER = r"^\+?[0-9]+$"
_LATIN = r"\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{131}\x{134}-\x{13E}\x{141}-\x{148}\x{14A}-\x{17E}"
"""Letters of European languages, and their neighbours in Unicode, each one character that the form NFC keeps."""
_CLEAN_TEXT = f"^[!-<>-~{_LATIN}](?:[ -~{_LATIN}]*[!-~{_LATIN}])?$"
_CLEAN = {Cleaning.CODE: "^[A-Z]+$", Cleaning.AMOUNT: f"^[0-9.]{{1,{SAFE_DIGITS + 1}}}$"}
"""The patterns of clean codes and amounts. `_CLEAN_TEXT` is for all other values except numbers."""
_AROUND = r"[[\p{C}\p{Z}]--[\x{80}-\x{84}\x{86}-\x{9F}]]"
"""Blanks, invisible characters and line ends. Other controls above ASCII are remains of damaged letters, and stay."""
_TRIM_START, _TRIM_END = f"^{_AROUND}+", f"{_AROUND}+$"
_TRIM = f"{_TRIM_START}|{_TRIM_END}"
_WRAPPED = r'^="([^"]*)"$'
_TAKEN = (
    r"[+-]?[.,]?[0-9][0-9.,:/ +-]*(?:[eE][+-]?[0-9]+)?%?"  # a number, a date, a time
    r"|[0-9]{1,2}[ /.-]?\p{L}{3,9}\.?(?:[ /.-]?[0-9]{1,4})?|\p{L}{3,9}[ /.-]?[0-9]{1,4}"  # a date with a month's name
    r"|(?i:true|false|vrai|faux)"
)
"""Texts that a spreadsheet changes when it opens a CSV file: `0712` becomes 712, and `MAR-1` becomes a day."""
_KEPT = f'^="({_TAKEN})"$'
_MAX_FORMULA_CHARS = 255
"""The longest text that a formula of Excel may hold."""
_IN_GROUPS = r"^\+?[0-9]+(?:[ -][0-9]+)*$"
"""The pattern of most numbers with separators: only blanks and hyphens between the digits."""
_FLOAT_OF_A_WHOLE = r"^\+?[0-9]{7,15}\.0$"
_NOT_SEPARATED = r"^[\p{Pd}\x{2212}]|\.[0-9]?(?:[^0-9]|$)"
"""A sign, or a dot before a possible decimal fraction. Neither of them separates groups of digits."""
_SEPARATORS = rf"[[\p{{C}}\p{{Z}}\p{{Pd}}\x{{2212}}().\[\]]--{CONTROL}]"
_TRUNK_ZERO_IN_BRACKETS = r"^((?:\+|00)[0-9][0-9 ]{0,5})\(0\)"

EXPONENT = r"^[0-9](?:[.,][0-9]+)?[eE]\+?[0-9]{1,2}$"
"""A number in a spreadsheet's scientific notation."""


def bare(column: str) -> str:
    """Return the name of the column that holds a number column's values without separators."""
    return f"{column}:bare"


def cleaned(frame: pl.DataFrame, columns: Collection[str] | None = None) -> pl.DataFrame:
    """Return `row` and every known column as String, cleaned as its kind requires.

    A column is null if the sheet does not have it, or if it is not one of `columns` (None: all known columns). Each
    number column also has `bare(column)`, which has no separators.
    """
    nothing = pl.Series([None], dtype=pl.String).new_from_index(0, frame.height)
    by_name: dict[str, pl.Series] = {}
    for name, cleaning in sheet_columns().cleanings.items():
        is_given = name in frame.columns and (columns is None or name in columns)
        text = frame[name] if is_given else nothing.alias(name)
        unclean = text.is_not_null() & ~is_clean(text, cleaning) if is_given else None
        by_name[name] = text if unclean is None else changed(text, unclean, CLEANERS[cleaning])
        if cleaning is Cleaning.NUMBER:  # a clean number has no separators
            digits = text if unclean is None else changed(text, unclean, _bare_of_unclean)
            by_name[bare(name)] = digits.alias(bare(name))
    return pl.DataFrame([frame["row"], *by_name.values()])


def cleaned_codes(text: pl.Series) -> pl.Series:
    """Return a column of codes (countries, currencies), cleaned as by `cleaned`."""
    return changed(text, text.is_not_null() & ~is_clean(text, Cleaning.CODE), _cleaned_code)


def is_clean(text: pl.Series, cleaning: Cleaning) -> pl.Series:
    """Return a mask, never null, of values that need no cleaning. It misses some, such as numbers of 20 digits."""
    if cleaning is Cleaning.NUMBER:
        # A text that can be cast to a whole number is digits with at most a plus in front. Casting is faster than
        # matching.
        return text.cast(pl.UInt64, strict=False).is_not_null()
    pattern = _CLEAN.get(cleaning, _CLEAN_TEXT)
    if cleaning is Cleaning.CODE and text.unique().str.contains(pattern).all():
        return text.is_not_null()
    return text.str.contains(pattern).fill_null(value=False)


def _cleaned_number(text: pl.Series) -> pl.Series:
    return changed(text, ~text.str.contains(_IN_GROUPS), lambda part: trimmed(_unwrapped(trimmed(part))))


def _cleaned_text(text: pl.Series) -> pl.Series:
    # Letters are sent as they were typed, because a bank compares them. Blanks of other widths are no part of a name.
    return trimmed(_cleaned_line(text).str.normalize("NFC").str.replace_all(r"\p{Zs}", " "))


def _cleaned_line(text: pl.Series) -> pl.Series:
    """Return texts without the wrapping of `kept_by_spreadsheets`, because `="A-1"` would be another order id."""
    return trimmed(trimmed(text).str.replace(_KEPT, "${1}"))


def _cleaned_code(text: pl.Series) -> pl.Series:
    text = trimmed(text)
    return changed(text, text.str.contains(_CODE_IN_LOWER_CASE), lambda part: part.str.to_uppercase())


def _cleaned_amount(text: pl.Series) -> pl.Series:
    text = trimmed(_unwrapped(trimmed(text)))
    return changed(text, text.str.contains(PLAIN) & (text.str.len_chars() > SAFE_DIGITS + 1), without_noise)


def _unwrapped(text: pl.Series) -> pl.Series:
    return text.str.replace(_WRAPPED, "${1}").str.strip_prefix("'")


def changed(text: pl.Series, mask: pl.Series, change: Callable[[pl.Series], pl.Series]) -> pl.Series:
    """Return `text` with `change` applied to the values that `mask` marks. Null marks nothing."""
    at = mask.fill_null(value=False).arg_true()
    return text.clone().scatter(at, change(text.gather(at))) if at.len() else text


def trimmed(text: pl.Series) -> pl.Series:
    """Return the values without blanks, control and invisible characters at either end; null if nothing is left."""
    # Two patterns, one for each end of the text, are much cheaper than one pattern for both.
    untidy = text.str.contains(_TRIM_START) | text.str.contains(_TRIM_END) | (text == "")
    return changed(text, untidy, lambda part: part.str.replace_all(_TRIM, "").replace({"": None}))


def bare_number(text: pl.Series) -> pl.Series:
    """Return phone and account numbers without separators: `+254 (712) 345-678` becomes `+254712345678`.

    Scientific notation is written out if it has every digit (`2.54712345678E+11`). A number that the spreadsheet has
    cut stays as it is, and so does a text that could have a sign or a decimal fraction.
    """
    return changed(text, ~text.str.contains(_CLEAN_NUMBER), _bare)


def _bare_of_unclean(text: pl.Series) -> pl.Series:
    """Return unclean numbers of a sheet, cleaned and without separators."""
    at = (~text.str.contains(_IN_GROUPS)).arg_true()
    digits = text.str.replace_all("[ -]", "")
    return digits.scatter(at, _bare(_cleaned_number(text.gather(at)))) if at.len() else digits


def _bare(text: pl.Series) -> pl.Series:
    value = pl.col("value")
    parts = value.str.extract_groups(r"^([0-9])(?:[.,]([0-9]+))?[eE]\+?([0-9]{1,2})$")
    first, decimals, exponent = (parts.struct.field(str(n)) for n in (1, 2, 3))
    whole = decimals.str.len_chars() == exponent.cast(pl.UInt32)
    return (
        text.to_frame("value")
        .select(
            pl.when(value.str.contains(EXPONENT))
            .then(pl.when(whole).then(pl.concat_str(first, decimals)).otherwise(value))
            .when(value.str.contains(_FLOAT_OF_A_WHOLE))
            .then(value.str.strip_suffix(".0"))
            .when(value.str.contains(_NOT_SEPARATED))
            .then(value)
            .otherwise(value.str.replace(_TRUNK_ZERO_IN_BRACKETS, "${1}").str.replace_all(_SEPARATORS, ""))
        )
        .to_series()
    )


CLEANERS: Mapping[Cleaning, Callable[[pl.Series], pl.Series]] = {
    Cleaning.TRIMMED: _cleaned_line,
    Cleaning.TEXT: _cleaned_text,
    Cleaning.NUMBER: _cleaned_number,
    Cleaning.CODE: _cleaned_code,
    Cleaning.AMOUNT: _cleaned_amount,
}


FORMULA_SIGNS = r"\t\r+\-=@⁺⁼₊₌⩵⩶﬩﹢﹣﹦﹫＋－＝＠"  # noqa: RUF001 (what looks alike is what is meant)
"""The first characters of formulas, for the brackets of a pattern, with all characters that NFKC turns into them."""
_RISKY = f"^[{FORMULA_SIGNS}]"
_PLAIN_NUMBER = r"^[+-][0-9]+(?:\.[0-9]+)?$"
_GUARDED = f"^'[{FORMULA_SIGNS}0-9]"
"""Includes the `'` that people write in front of digits, so that a spreadsheet keeps leading zeros."""


def guarded(text: pl.Series) -> pl.Series:
    risky = text.str.contains(_RISKY) & ~text.str.contains(_PLAIN_NUMBER)
    return changed(text, risky, lambda part: "'" + part)


def kept_by_spreadsheets(text: pl.Series) -> pl.Series:
    """Return the texts, with `="..."` around each that a spreadsheet would turn into a number or a day."""
    is_taken = text.str.contains(f"^(?:{_TAKEN})$") & (text.str.len_chars() <= _MAX_FORMULA_CHARS)
    return changed(text, is_taken, lambda part: '="' + part + '"')


def guarded_columns(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with guarded texts. All columns are checked in one pass, and most stay unchanged."""
    texts = pl.selectors.string()
    at_risk = frame.select(texts.str.contains(_RISKY).any()).row(0, named=True)
    return frame.with_columns(guarded(frame[name]) for name, is_at_risk in at_risk.items() if is_at_risk)


def unguarded(text: pl.Series) -> pl.Series:
    quoted = text.str.starts_with("'")
    if not quoted.any():
        return text
    return changed(text, quoted & text.str.contains(_GUARDED), lambda part: part.str.strip_prefix("'"))


def guarded_names(names: list[str]) -> list[str]:
    """Return guarded column names, because a file contains them as text like any other."""
    return guarded(pl.Series(names, dtype=pl.String)).to_list()


def unguarded_names(names: list[str]) -> list[str]:
    return unguarded(pl.Series(names, dtype=pl.String)).to_list()


def chosen_purpose(rule: CountryRule) -> pl.Expr:
    """Return the purpose that a row's word means, or null if the word is unknown."""
    codes = {word: terms.purpose for word, terms in rule.purposes.items()}
    return folded_purpose().replace_strict(codes, default=None, return_dtype=pl.String)


def folded_purpose() -> pl.Expr:
    """Return a row's word for a purpose, folded like the keys of `CountryRule.purposes`."""
    return pl.col("purpose").str.replace_all(WORD_SEPARATORS, "").str.to_lowercase()


_ACCOUNT_LETTERS = "^[A-Za-z0-9 ./-]+$"
"""The characters of a bank account. An operator's pattern allows no others."""
_HIDDEN = "[Xx\u00d7#\u2022\u25cf\u2219\u00b7?_\uff0a\uff38\uff58\uff03]"
"""Characters that other programs write for a hidden digit. The gateway gets a `*` for each."""


@dataclass(frozen=True, slots=True)
class PhoneColumn:
    """The numbers of one column for one country, as expressions over a `cleaned` frame.

    They are null where the column is. `source` is the column that contains the values.
    """

    name: str
    source: str
    kind: FieldKind
    numbers: MobileNumbers
    bank_account_pattern: str | None

    @classmethod
    def of(cls, rule: CountryRule, name: str, kind: FieldKind) -> "PhoneColumn":
        is_account = kind is FieldKind.WALLET
        source = (rule.account_from if is_account else "") or name
        # A phone that serves as the account is a wallet, never a bank account with the same digits.
        pattern = rule.bank_account_pattern if is_account and source == name else None
        return cls(name, source, kind, rule.numbers, pattern)

    @property
    def _digits(self) -> pl.Expr:
        digits = pl.col(bare(self.source))
        return digits.str.replace_all(_HIDDEN, "*") if self.kind is FieldKind.MASKED_PHONE else digits

    @property
    def _prefix(self) -> str:
        """The pattern of a prefix to a national number: the dialling code, or the trunk zero."""
        trunk = f"|{self.numbers.trunk_prefix}" if self.numbers.trunk_prefix else ""
        return rf"(?:(?:\+|00)?{self.numbers.dialling_code}{trunk})"

    @property
    def _ways(self) -> tuple[pl.Expr, ...]:
        """The ways to write a number: with dialling code, with trunk zero, without a prefix, or with a zero lost."""
        n = self.numbers
        international = self._digits.str.contains(rf"^(?:\+|00)?{n.dialling_code}{n.pattern}$")
        trunk = [self._digits.str.contains(f"^{n.trunk_prefix}{n.pattern}$")] if n.trunk_prefix else []
        plain = self._digits.str.contains(f"^{n.pattern}$")
        return (international, *trunk, plain, *([self._zero_lost_inside] if n.keeps_zero else []))

    @property
    def _zero_lost_inside(self) -> pl.Expr:
        return pl.concat_str(pl.lit("0"), self._digits).str.contains(f"^{self.numbers.pattern}$")

    @property
    def is_bank_account(self) -> pl.Expr:
        """Whether the whole value is a bank account by the operator's pattern. Such a value is sent unchanged."""
        return self._fits_bank_account(pl.col(self.source))

    def _fits_bank_account(self, text: pl.Expr) -> pl.Expr:
        if self.bank_account_pattern is None:
            return pl.lit(value=False)
        return text.str.contains(_ACCOUNT_LETTERS) & text.str.contains(f"^(?:{self.bank_account_pattern})$")

    @property
    def is_account_and_mobile(self) -> pl.Expr:
        """Whether the value, with or without separators, is a bank account as well as a mobile number."""
        return (self.is_bank_account | self._fits_bank_account(self._digits)) & self._is_mobile

    @property
    def is_valid(self) -> pl.Expr:
        """Whether the value can mean exactly one valid number, or a bank account."""
        mobile = self._is_mobile
        if len(self.numbers.national_lengths) > 1:  # else its length shows how a number is written
            mobile &= reduce(add, (way.cast(pl.UInt8) for way in self._ways)) == 1
        return mobile | self.is_bank_account | self._is_masked

    @property
    def _is_mobile(self) -> pl.Expr:
        n = self.numbers
        mobile = self._digits.str.contains(rf"^{self._prefix}?{n.pattern}$")  # one pattern for all ways is cheaper
        return mobile | self._zero_lost_inside if n.keeps_zero else mobile

    @property
    def _is_masked(self) -> pl.Expr:
        """Whether some digits of the number are hidden, and it has as many characters as a whole number."""
        if self.kind is not FieldKind.MASKED_PHONE:
            return pl.lit(value=False)
        nothing_seen = self._masked.str.contains(r"^\*+$")
        return self._masked.str.contains(r"\*").fill_null(value=False) & ~nothing_seen.fill_null(value=False)

    @property
    def _masked(self) -> pl.Expr:
        """The national significant number, with any digit hidden, or null if the value does not look like one."""
        n = self.numbers
        lengths = "|".join(f"[0-9*]{{{length}}}" for length in n.national_lengths)
        return self._digits.str.extract(rf"^{self._prefix}({lengths})$")

    @property
    def lost_its_zero(self) -> pl.Expr:
        """Whether a valid number lacks the zero with which it starts inside the country: a spreadsheet removed it."""
        n = self.numbers
        ways = ([self._digits.str.contains(f"^{n.pattern}$")] if n.trunk_prefix else []) + (
            [self._zero_lost_inside] if n.keeps_zero else []
        )
        return reduce(or_, ways) & ~self.is_bank_account if ways else pl.lit(value=False)

    def of_another_operator(self, operator: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
        """Return whether a valid mobile number was first given to another operator, and to which one."""
        operators = self.numbers.operators
        # The longest beginnings come first, because Rust takes the first alternative that matches.
        starts = "|".join(sorted(operators, key=lambda start: (-len(start), start)))
        start = self.national.str.extract(f"^({starts})")
        owner = start.replace_strict(dict(operators), default=None, return_dtype=pl.String)
        return (owner != operator).fill_null(value=False) & ~self.is_bank_account, owner

    @property
    def national(self) -> pl.Expr:
        """The national significant number of a valid mobile number."""
        n = self.numbers
        if len(n.national_lengths) == 1:
            national = self._digits.str.tail(n.national_lengths[0])
        else:
            national = self._digits.str.replace(rf"^{self._prefix}?({n.pattern})$", "${1}")
        if n.keeps_zero:
            zero = pl.when(self._zero_lost_inside).then(pl.lit("0")).otherwise(pl.lit(""))
            national = pl.concat_str(zero, national)
        return national

    @property
    def renumbered(self) -> pl.Expr:
        """A number of the country's other numbering plan, as its field needs it in the plan in use; otherwise null."""
        ways = () if self.numbers.renumbering is None else self.numbers.renumbering.ways
        nationals = ((self._digits.str.extract(rf"^{self._prefix}?{way}$"), front) for way, front in ways)
        texts = [pl.concat_str(pl.lit(self._sent_prefix + front), national) for national, front in nationals]
        return pl.coalesce(*texts, pl.lit(None, pl.String))

    @property
    def _sent_prefix(self) -> str:
        """The text before the national number in a request (section 2.2 of the gateway's interface)."""
        match self.kind:
            case FieldKind.LOCAL_PHONE:
                return self.numbers.trunk_prefix
            case FieldKind.WALLET:
                return self.numbers.dialling_code
            case _:
                return f"+{self.numbers.dialling_code}"

    @property
    def wire(self) -> pl.Expr:
        """The valid number in the form of its field, as it is sent."""
        national = self.national
        if self.kind is FieldKind.MASKED_PHONE:
            national = pl.when(self._is_masked).then(self._masked).otherwise(national)
        number = pl.concat_str(pl.lit(self._sent_prefix), national)
        if self.bank_account_pattern is None:
            return number
        return pl.when(self.is_bank_account).then(pl.col(self.source)).otherwise(number)

    @property
    def is_as_sent(self) -> pl.Expr:
        """Whether a valid number certainly has the form in which it is sent. A cheap check; never null."""
        n, digits = self.numbers, self._digits
        if self.kind is FieldKind.INTERNATIONAL_PHONE:
            return digits.str.starts_with("+").fill_null(value=False)
        # If all numbers have one length, the length of a text shows how its number is written.
        differs = len(n.national_lengths) == 1 and len(n.trunk_prefix) != len(n.dialling_code)
        sent = self._sent_prefix
        if not sent or not differs or self.kind is FieldKind.MASKED_PHONE or self.bank_account_pattern is not None:
            return pl.lit(value=False)
        return (digits.str.len_bytes() == len(sent) + n.national_lengths[0]).fill_null(value=False)

    @property
    def lengths(self) -> list[int]:
        """The possible lengths of a valid number, in digits, for all ways to write it, without `+` and `00`."""
        n = self.numbers
        prefixes = {len(n.dialling_code), len(n.trunk_prefix), 0}
        return sorted(prefix + length for prefix in prefixes for length in n.national_lengths)

    @property
    def example(self) -> str:
        """A valid number in the form in which it is sent."""
        return f"{self._sent_prefix}{self.numbers.example}"
