"""Reads amounts as exact text, converts them to minor units, and suggests corrections."""

from decimal import Context, Decimal

import polars as pl

from paygw_batch.core.money import WHOLE_PATTERN
from paygw_batch.language import say
from paygw_batch.sheet.findings import build_message

PLAIN_AMOUNT = rf"^{WHOLE_PATTERN}(?:\.[0-9]+)?$"
"""A pattern for an amount with any number of decimals."""
EXPONENT = r"^[+-]?[0-9]+(?:[.,][0-9]+)?[eE][+-]?[0-9]+$"
_CURRENCY_WORDS = {
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
"""Words that people write next to an amount. Currencies that are not listed are recognised by their codes."""
_GROUPED_DIGITS = r"^[0-9]{1,3}(?:[\s'\x{2019}\p{Z}][0-9]{3})+(?:[.,][0-9]+)?$"
_DATE = r"^[0-9]{1,2}[-/][A-Za-z0-9]+(?:[-/][0-9]+)?$|^[0-9]{4}-[0-9]{2}-[0-9]{2}"
_NEGATIVE = r"^\(.*\)$|^-|^\x{2212}"
_TOO_LONG = r"^[0-9]{16,}"
_AMBIGUOUS = r"^[1-9][0-9]{0,2}[.,][0-9]{3}$"
_READABLE_AMOUNT = r"^[0-9]{1,15}(\.[0-9]{1,4})?$"
SAFE_DIGITS = 15
"""Spreadsheets and 64-bit floats keep this many digits of a number. Further digits are rounding noise."""
WHOLE_DIGITS_WITH_CENTS = 12
"""With more whole digits, too few safe digits remain for decimals, and noise could change the amount."""
_SAFE_DIGITS_CONTEXT = Context(prec=SAFE_DIGITS)


def round_to_safe_digits(number: Decimal) -> str | None:
    """Round a finite number as a spreadsheet does. Returns None if that could change an amount."""
    rounded = number.normalize(_SAFE_DIGITS_CONTEXT)
    is_exact = rounded == number and rounded.adjusted() < SAFE_DIGITS
    return format(rounded, "f") if is_exact or rounded.adjusted() < WHOLE_DIGITS_WITH_CENTS else None


def remove_float_noise(amounts: pl.Series) -> pl.Series:
    """Round amounts to the digits that a float keeps, unless the result is not a readable amount."""
    rounded = pl.Series([round_to_safe_digits(Decimal(text)) for text in amounts], dtype=pl.String)
    return rounded.zip_with(rounded.str.contains(_READABLE_AMOUNT).fill_null(value=False), amounts)


def rounded_amount(column: str, minor_units: int) -> pl.Expr:
    """Round amounts half up. Returns null if the result is zero, or if the decimals could be thousands."""
    text = pl.col(column)
    groups = text.str.extract_groups(rf"^([0-9]+)\.([0-9]{{{minor_units}}})([0-9])[0-9]*$").struct
    minor = pl.concat_str(groups.field("1"), groups.field("2")).cast(pl.Int64, strict=False)
    minor += groups.field("3").cast(pl.Int64) // 5
    digits = minor.cast(pl.String).str.zfill(minor_units + 1)
    decimal_amount = pl.concat_str(digits.str.head(-minor_units), pl.lit("."), digits.str.tail(minor_units))
    return pl.when(~text.str.contains(_AMBIGUOUS) & (minor > 0)).then(decimal_amount if minor_units else digits)


def amount_pattern(minor_units: int) -> str:
    """Return a regular expression for an amount with at most `minor_units` decimals."""
    return rf"^{WHOLE_PATTERN}(?:\.[0-9]{{1,{minor_units}}})?$" if minor_units else f"^{WHOLE_PATTERN}$"


def amount_value(column: str, minor_units: int) -> pl.Expr:
    """Return the exact value of a valid amount as Decimal. Other strings give undefined results."""
    return pl.col(column).cast(pl.Decimal(38, minor_units), strict=False)


def minor_value(column: str, minor_units: int) -> pl.Expr:
    """Return a valid amount in minor units as Int64."""
    factor: int = 10**minor_units
    return (amount_value(column, minor_units) * factor).cast(pl.Int64)


def readable_amount(column: str) -> pl.Expr:
    """Return the exact value (four decimals) of a readable amount, or null for other strings."""
    text = pl.col(column)
    return pl.when(text.str.contains(_READABLE_AMOUNT)).then(text).cast(pl.Decimal(38, 4))


def _bare_amount(text: pl.Expr, currency: str | None) -> pl.Expr:
    """Strip the currency, a final `/=` and group spaces. Values such as `15x` stay damaged, so checks reject them."""
    bare = text.str.replace(r"\s*/[=-]$", "")
    if currency is not None:
        words = _CURRENCY_WORDS.get(currency, currency)
        bare = bare.str.replace(rf"(?i)^(?:{words})\.?[\s\p{{Z}}]*", "")
        bare = bare.str.replace(rf"(?i)[\s\p{{Z}}]*(?:{words})\.?$", "")
    without_spaces = bare.str.replace_all(r"[\s'\x{2019}\p{Z}]", "")
    return pl.when(bare.str.contains(_GROUPED_DIGITS)).then(without_spaces).otherwise(bare)


def amount_correction(column: str, currency: str | None, decimals: int | None = None, separator: str = "") -> pl.Expr:
    """Return the plain amount that a string means, or null if that is unclear.

    `decimals` is the maximum number of decimals. If it is 0, zero decimals are dropped: 1,500.00 becomes 1500.
    `separator` is the decimal separator (`comma` or `point`), if a person specified it. It makes 1.500 unambiguous.
    """
    text = pl.col(column)
    bare = _bare_amount(text, currency)
    without_commas = bare.str.replace_all(",", "", literal=True)
    without_points = bare.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
    exclusions = (text.str.contains(pattern) for pattern in (_DATE, _NEGATIVE, _TOO_LONG))
    corrected = (
        pl.when(pl.any_horizontal(*exclusions, bare.str.contains(_AMBIGUOUS) & (not separator)))
        .then(None)
        .when(bare.str.contains(r"^[1-9][0-9]{0,2}(?:,[0-9]{3})*(?:\.[0-9]+)?$") & (separator != "comma"))
        .then(without_commas)
        .when(
            bare.str.contains(r"^[1-9][0-9]{0,2}(?:\.[0-9]{3})*(?:,[0-9]+)?$|^[0-9]+,[0-9]+$") & (separator != "point")
        )
        .then(without_points)
        .when(bare.str.contains(r"^[0-9]+(?:\.[0-9]+)?$"))
        .then(bare.str.replace(r"^0+([0-9])", "${1}"))
    )
    if decimals is None:
        return corrected
    trimmed = corrected if decimals else corrected.str.replace(r"\.00?$", "")
    return pl.when(trimmed.str.contains(amount_pattern(decimals)) & trimmed.str.contains("[1-9]")).then(trimmed)


def is_currency_word(word: str, currency: str) -> bool:
    """Return whether `word` can mean `currency` next to an amount."""
    return bool(pl.Series([word]).str.contains(rf"(?i)^(?:{_CURRENCY_WORDS.get(currency, currency)})\.?$").any())


def amount_advice(column: str, currency: str | None, decimals: int | None = None) -> pl.Expr:
    """Return advice about an amount that is not a plain number, for use in a message."""
    text = pl.col(column)
    bare = _bare_amount(text, currency)
    correction = amount_correction(column, currency, decimals)
    digits = bare.str.replace_all("[.,]", "")
    fraction = bare.str.replace(",", ".", literal=True).str.replace(r"\.?0+$", "")
    date_advice = say(
        "is a date, because the spreadsheet converted the amount. Format the column as text, then enter the amount "
        "again"
    )
    ambiguous_advice = build_message(
        "could mean {whole} or {fraction}. Enter the one you mean", whole=digits, fraction=fraction
    )
    return (
        pl.when(text.str.contains(_DATE))
        .then(pl.lit(date_advice))
        .when(text.str.contains(_NEGATIVE))
        .then(pl.lit(say("is negative. Enter the amount to pay, without a minus sign or brackets")))
        .when(text.str.contains(_TOO_LONG))
        .then(pl.lit(say("has more than 15 digits, which is too many for an amount")))
        .when(bare.str.contains(_AMBIGUOUS) & (decimals != 0))
        .then(ambiguous_advice)
        .when(correction.is_not_null())
        .then(build_message("is not a plain number. Enter {text}", text=correction))
        .otherwise(
            pl.lit(
                say("is not a plain number. Use digits only, such as 1000")
                if decimals == 0
                else say("is not a plain number. Use digits and a decimal point, such as 1000.50")
            )
        )
    )
