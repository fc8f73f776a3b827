"""Reads amounts as exact text, computes whole minor units, and suggests corrections of amounts."""

from decimal import Context, Decimal

import polars as pl

from paygw_batch.core.money import WHOLE_PATTERN
from paygw_batch.language import say
from paygw_batch.sheet.findings import build_message

PLAIN_AMOUNT = rf"^{WHOLE_PATTERN}(?:\.[0-9]+)?$"
"""The pattern of an amount with any number of decimals (`core.money`)."""
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
"""Names that people write next to an amount. Other currencies are recognised by their codes."""
_GROUPED_DIGITS = r"^[0-9]{1,3}(?:[\s'\x{2019}\p{Z}][0-9]{3})+(?:[.,][0-9]+)?$"
_DATE = r"^[0-9]{1,2}[-/][A-Za-z0-9]+(?:[-/][0-9]+)?$|^[0-9]{4}-[0-9]{2}-[0-9]{2}"
_NEGATIVE = r"^\(.*\)$|^-|^\x{2212}"
_TOO_LONG = r"^[0-9]{16,}"
_AMBIGUOUS = r"^[1-9][0-9]{0,2}[.,][0-9]{3}$"

_READABLE_AMOUNT = r"^[0-9]{1,15}(\.[0-9]{1,4})?$"

SAFE_DIGITS = 15
"""Spreadsheets and 64-bit floats keep this many digits of a number. Later digits are rounding noise."""
WHOLE_DIGITS_WITH_CENTS = 12
"""With more whole digits, too few safe digits remain for decimals, and noise could be money."""
_SAFE_DIGITS_CONTEXT = Context(prec=SAFE_DIGITS)


def round_to_safe_digits(number: Decimal) -> str | None:
    """Round a finite number as a spreadsheet does: 1234.5600000000002 is 1234.56.

    Returns None if money could be lost.
    """
    rounded = number.normalize(_SAFE_DIGITS_CONTEXT)
    is_exact = rounded == number and rounded.adjusted() < SAFE_DIGITS
    return format(rounded, "f") if is_exact or rounded.adjusted() < WHOLE_DIGITS_WITH_CENTS else None


def remove_float_noise(amounts: pl.Series) -> pl.Series:
    """Round amounts to the digits that floats represent exactly. Values that would not become amounts are unchanged."""
    rounded = pl.Series([round_to_safe_digits(Decimal(text)) for text in amounts], dtype=pl.String)
    return rounded.zip_with(rounded.str.contains(_READABLE_AMOUNT).fill_null(value=False), amounts)


def rounded_amount(column: str, minor_units: int) -> pl.Expr:
    """Return an amount with too many decimals, rounded half up.

    It is null if the result is zero, or if the decimals could be thousands.
    """
    text = pl.col(column)
    parts = text.str.extract_groups(rf"^([0-9]+)\.([0-9]{{{minor_units}}})([0-9])[0-9]*$").struct
    minor = pl.concat_str(parts.field("1"), parts.field("2")).cast(pl.Int64, strict=False)
    minor += parts.field("3").cast(pl.Int64) // 5
    digits = minor.cast(pl.String).str.zfill(minor_units + 1)
    truncated = pl.concat_str(digits.str.head(-minor_units), pl.lit("."), digits.str.tail(minor_units))
    return pl.when(~text.str.contains(_AMBIGUOUS) & (minor > 0)).then(truncated if minor_units else digits)


def amount_pattern(minor_units: int) -> str:
    """Return the regular expression of an amount with at most `minor_units` decimals."""
    return rf"^{WHOLE_PATTERN}(?:\.[0-9]{{1,{minor_units}}})?$" if minor_units else f"^{WHOLE_PATTERN}$"


def amount_value(column: str, minor_units: int) -> pl.Expr:
    """Return the exact value of a valid amount as Decimal. The result is undefined for other strings."""
    return pl.col(column).cast(pl.Decimal(38, minor_units), strict=False)


def minor_value(column: str, minor_units: int) -> pl.Expr:
    """Return a valid amount in minor units, as an exact Int64."""
    factor: int = 10**minor_units
    return (amount_value(column, minor_units) * factor).cast(pl.Int64)


def readable_amount(column: str) -> pl.Expr:
    """Return the exact value (four decimals) of each readable amount, or null for other strings."""
    text = pl.col(column)
    return pl.when(text.str.contains(_READABLE_AMOUNT)).then(text).cast(pl.Decimal(38, 4))


def _bare_amount(text: pl.Expr, currency: str | None) -> pl.Expr:
    """Strip the currency, a trailing `/=`, and spaces between groups of digits from an amount.

    Other characters are kept: `15x`, `O15` and `2x1500` are damaged, and no correction is suggested for them.
    """
    bare = text.str.replace(r"\s*/[=-]$", "")
    if currency is not None:
        words = _CURRENCY_WORDS.get(currency, currency)
        bare = bare.str.replace(rf"(?i)^(?:{words})\.?[\s\p{{Z}}]*", "").str.replace(
            rf"(?i)[\s\p{{Z}}]*(?:{words})\.?$", ""
        )
    without_spaces = bare.str.replace_all(r"[\s'\x{2019}\p{Z}]", "")
    return pl.when(bare.str.contains(_GROUPED_DIGITS)).then(without_spaces).otherwise(bare)


def amount_correction(column: str, currency: str | None, decimals: int | None = None, separator: str = "") -> pl.Expr:
    """Return the plain amount that a string means, or null if it has no or several meanings.

    `decimals` is the maximum number of decimals. More are dropped only if they are zeros: without decimals, 1,500.00 is
    1500. `separator` is the decimal separator (`comma` or `point`) if a person has named it, so that 1.500 has one
    meaning.
    """
    text = pl.col(column)
    core = _bare_amount(text, currency)
    english = core.str.replace_all(",", "", literal=True)
    european = core.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
    is_damaged = (text.str.contains(pattern) for pattern in (_DATE, _NEGATIVE, _TOO_LONG))
    corrected = (
        pl.when(pl.any_horizontal(*is_damaged, core.str.contains(_AMBIGUOUS) & (not separator)))
        .then(None)
        .when(core.str.contains(r"^[1-9][0-9]{0,2}(?:,[0-9]{3})*(?:\.[0-9]+)?$") & (separator != "comma"))
        .then(english)
        .when(
            core.str.contains(r"^[1-9][0-9]{0,2}(?:\.[0-9]{3})*(?:,[0-9]+)?$|^[0-9]+,[0-9]+$") & (separator != "point")
        )
        .then(european)
        .when(core.str.contains(r"^[0-9]+(?:\.[0-9]+)?$"))
        .then(core.str.replace(r"^0+([0-9])", "${1}"))
    )
    if decimals is None:
        return corrected
    exact = corrected if decimals else corrected.str.replace(r"\.00?$", "")
    return pl.when(exact.str.contains(amount_pattern(decimals)) & exact.str.contains("[1-9]")).then(exact)


def is_currency_word(word: str, currency: str) -> bool:
    """Return whether `word` can mean `currency` next to an amount."""
    return bool(pl.Series([word]).str.contains(rf"(?i)^(?:{_CURRENCY_WORDS.get(currency, currency)})\.?$").any())


def amount_problem(column: str, currency: str | None, decimals: int | None = None) -> pl.Expr:
    """Return the end of the message about an amount that is not plain digits, with its correction."""
    text = pl.col(column)
    core = _bare_amount(text, currency)
    correction = amount_correction(column, currency, decimals)
    digits = core.str.replace_all("[.,]", "")
    fraction = core.str.replace(",", ".", literal=True).str.replace(r"\.?0+$", "")
    date = say("is a date, because the spreadsheet converted the amount. Format the column as text and retype it")
    message = build_message(
        "could mean {whole} or {fraction}. Write the one that you mean", whole=digits, fraction=fraction
    )
    return (
        pl.when(text.str.contains(_DATE))
        .then(pl.lit(date))
        .when(text.str.contains(_NEGATIVE))
        .then(pl.lit(say("is negative. Enter the amount to pay, without a minus sign or brackets")))
        .when(text.str.contains(_TOO_LONG))
        .then(pl.lit(say("has more than 15 digits, which is too large for an amount")))
        .when(core.str.contains(_AMBIGUOUS) & (decimals != 0))
        .then(message)
        .when(correction.is_not_null())
        .then(build_message("is not a plain number. Write {text}", text=correction))
        .otherwise(
            pl.lit(
                say("is not a plain number. Use digits alone, such as 1000")
                if decimals == 0
                else say("is not a plain number. Use digits and a decimal point, such as 1000.50")
            )
        )
    )
