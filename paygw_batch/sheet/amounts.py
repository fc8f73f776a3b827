"""Reads amounts as exact text, computes whole minor units, and suggests corrections of amounts."""

from decimal import Context, Decimal

import polars as pl

from paygw_batch.core.money import WHOLE_PATTERN
from paygw_batch.language import say
from paygw_batch.sheet.findings import worded

PLAIN = rf"^{WHOLE_PATTERN}(?:\.[0-9]+)?$"
"""The pattern of an amount with any number of decimals (`core.money`)."""
EXPONENT = r"^[+-]?[0-9]+(?:[.,][0-9]+)?[eE][+-]?[0-9]+$"

_WORDS = {
    "EGP": "EGP|LE|E£|£",
    "GHS": "GHS|GHC|GH₵|₵",
    "KES": "KES|KSHS?|SHS?",
    "NGN": "NGN|₦|N",
    "RWF": "RWF|FRW|RF|FRS?",
    "TZS": "TZS|TSHS?|SHS?",
    "UGX": "UGX|USHS?|SHS?",
    "XOF": r"XOF|F[\s\p{Z}]?CFA|CFA|FRS?|F",
    "ZAR": "ZAR|R",
    "ZMW": "ZMW|K",
}
"""How people write a currency beside an amount. Any other currency is recognised by its code."""
_IN_GROUPS = r"^[0-9]{1,3}(?:[\s'\x{2019}\p{Z}][0-9]{3})+(?:[.,][0-9]+)?$"
_DATE = r"^[0-9]{1,2}[-/][A-Za-z0-9]+(?:[-/][0-9]+)?$|^[0-9]{4}-[0-9]{2}-[0-9]{2}"
_NEGATIVE = r"^\(.*\)$|^-|^\x{2212}"
_TOO_LONG = r"^[0-9]{16,}"
_TWO_WAYS = r"^[1-9][0-9]{0,2}[.,][0-9]{3}$"

_READABLE = r"^[0-9]{1,15}(\.[0-9]{1,4})?$"

SAFE_DIGITS = 15
"""The digits of a number that spreadsheets and 64-bit floats keep. The digits after them are rounding noise."""
WHOLE_DIGITS_WITH_CENTS = 12
"""With more whole digits, too few safe digits are left for decimals, and noise could be money."""
_AT_SAFE_DIGITS = Context(prec=SAFE_DIGITS)


def at_safe_digits(number: Decimal) -> str | None:
    """Return a finite number as a spreadsheet shows it: 1234.5600000000002 is 1234.56. None if money could be lost."""
    rounded = number.normalize(_AT_SAFE_DIGITS)
    is_exact = rounded == number and rounded.adjusted() < SAFE_DIGITS
    return format(rounded, "f") if is_exact or rounded.adjusted() < WHOLE_DIGITS_WITH_CENTS else None


def without_noise(amounts: pl.Series) -> pl.Series:
    """Return plain amounts rounded to their safe digits. A value stays as it is if the result cannot be an amount."""
    rounded = pl.Series([at_safe_digits(Decimal(text)) for text in amounts], dtype=pl.String)
    return rounded.zip_with(rounded.str.contains(_READABLE).fill_null(value=False), amounts)


def rounded_amount(column: str, minor_units: int) -> pl.Expr:
    """Return an amount with too many decimals, rounded half up; null if nothing is left or it could mean thousands."""
    text = pl.col(column)
    parts = text.str.extract_groups(rf"^([0-9]+)\.([0-9]{{{minor_units}}})([0-9])[0-9]*$").struct
    minor = pl.concat_str(parts.field("1"), parts.field("2")).cast(pl.Int64, strict=False)
    minor += parts.field("3").cast(pl.Int64) // 5
    digits = minor.cast(pl.String).str.zfill(minor_units + 1)
    cut = pl.concat_str(digits.str.head(-minor_units), pl.lit("."), digits.str.tail(minor_units))
    return pl.when(~text.str.contains(_TWO_WAYS) & (minor > 0)).then(cut if minor_units else digits)


def with_decimals(minor_units: int) -> str:
    """Return the pattern of an amount with at most `minor_units` decimals."""
    return rf"^{WHOLE_PATTERN}(?:\.[0-9]{{1,{minor_units}}})?$" if minor_units else f"^{WHOLE_PATTERN}$"


def amount_value(column: str, minor_units: int) -> pl.Expr:
    """Return the exact value of a right amount, as Decimal. For any other text the result means nothing."""
    return pl.col(column).cast(pl.Decimal(38, minor_units), strict=False)


def minor_value(column: str, minor_units: int) -> pl.Expr:
    """Return a right amount in whole minor units, as an exact Int64."""
    factor: int = 10**minor_units
    return (amount_value(column, minor_units) * factor).cast(pl.Int64)


def readable_amount(column: str) -> pl.Expr:
    """Return the exact value (four decimals) of each text that reads as an amount, for totals; null for other texts."""
    text = pl.col(column)
    return pl.when(text.str.contains(_READABLE)).then(text).cast(pl.Decimal(38, 4))


def _bare_amount(text: pl.Expr, currency: str | None) -> pl.Expr:
    """Return an amount without the word of its currency, a trailing `/=`, and blanks between groups of digits.

    Any other letter or sign stays: `15x`, `O15` and `2x1500` are damaged, and no correction is suggested for them.
    """
    bare = text.str.replace(r"\s*/[=-]$", "")
    if currency is not None:
        words = _WORDS.get(currency, currency)
        bare = bare.str.replace(rf"(?i)^(?:{words})\.?[\s\p{{Z}}]*", "").str.replace(
            rf"(?i)[\s\p{{Z}}]*(?:{words})\.?$", ""
        )
    return pl.when(bare.str.contains(_IN_GROUPS)).then(bare.str.replace_all(r"[\s'\x{2019}\p{Z}]", "")).otherwise(bare)


def amount_correction(column: str, currency: str | None, decimals: int | None = None, sign: str = "") -> pl.Expr:
    """Return the amount that a text means if it is not plain digits, or null if it means none or several.

    `decimals` is the number of decimals that an amount may have. Further decimals are cut only if they are zeros:
    without decimals, 1,500.00 is 1500. `sign` (`comma` or `point`) is the decimal sign if a person has named it: then
    1.500 has one meaning.
    """
    text = pl.col(column)
    core = _bare_amount(text, currency)
    english = core.str.replace_all(",", "", literal=True)
    european = core.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
    is_damaged = (text.str.contains(pattern) for pattern in (_DATE, _NEGATIVE, _TOO_LONG))
    corrected = (
        pl.when(pl.any_horizontal(*is_damaged, core.str.contains(_TWO_WAYS) & (not sign)))
        .then(None)
        .when(core.str.contains(r"^[1-9][0-9]{0,2}(?:,[0-9]{3})*(?:\.[0-9]+)?$") & (sign != "comma"))
        .then(english)
        .when(core.str.contains(r"^[1-9][0-9]{0,2}(?:\.[0-9]{3})*(?:,[0-9]+)?$|^[0-9]+,[0-9]+$") & (sign != "point"))
        .then(european)
        .when(core.str.contains(r"^[0-9]+(?:\.[0-9]+)?$"))
        .then(core.str.replace(r"^0+([0-9])", "${1}"))
    )
    if decimals is None:
        return corrected
    exact = corrected if decimals else corrected.str.replace(r"\.00?$", "")
    return pl.when(exact.str.contains(with_decimals(decimals)) & exact.str.contains("[1-9]")).then(exact)


def is_own_currency(word: str, currency: str) -> bool:
    """Whether `word` is a way to write `currency` beside an amount."""
    return bool(pl.Series([word]).str.contains(rf"(?i)^(?:{_WORDS.get(currency, currency)})\.?$").any())


def amount_advice(column: str, currency: str | None, decimals: int | None = None) -> pl.Expr:
    """Return the end of the sentence about an amount that is not plain digits: the mistake, and the corrected text."""
    text = pl.col(column)
    core = _bare_amount(text, currency)
    correction = amount_correction(column, currency, decimals)
    whole = core.str.replace_all("[.,]", "")
    fraction = core.str.replace(",", ".", literal=True).str.replace(r"\.?0+$", "")
    return (
        pl.when(text.str.contains(_DATE))
        .then(
            pl.lit(
                say(
                    "is a date: the spreadsheet changed what was typed. Format the column as text and retype the amount"
                )
            )
        )
        .when(text.str.contains(_NEGATIVE))
        .then(pl.lit(say("is negative: write the amount to pay, without a sign or brackets")))
        .when(text.str.contains(_TOO_LONG))
        .then(pl.lit(say("has more than 15 digits: no amount is that large")))
        .when(core.str.contains(_TWO_WAYS) & (decimals != 0))
        .then(worded("can be read in two ways: write {whole} or {fraction}", whole=whole, fraction=fraction))
        .when(correction.is_not_null())
        .then(worded("is not a plain number: write {text}", text=correction))
        .otherwise(
            pl.lit(
                say("is not a plain number. Use digits alone, such as 1000")
                if decimals == 0
                else say("is not a plain number. Use digits and a decimal point, such as 1000.50")
            )
        )
    )
