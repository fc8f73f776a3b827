"""Texts made comparable: trimmed, unwrapped, numbers without what people write between digits. Nothing is guessed.

Every function works on whole columns and touches only the values that need it: most sheets are clean, and a clean
column comes back as the very same series.
"""

from collections.abc import Callable, Sequence

import polars as pl

from paygw_batch.sheet.columns import KNOWN_COLUMNS

NAME_COLUMNS = (
    "account_name",
    "first_name",
    "last_name",
    "address1",
    "city",
    "receiver_first_name",
    "receiver_last_name",
    "order_desc",
    "merchant_data",
)
NUMBER_COLUMNS = ("account_number", "cell_phone", "phone", "receiver_phone")
CODE_COLUMNS = ("country", "currency", "receiver_country_code")

_CODE_IN_LOWER_CASE = "^(?:[A-Za-z]{2}|[A-Za-z]{3})$"
_CLEAN_NUMBER = r"^\+?[0-9]+$"
_CLEAN_TEXT = '^[!"$-~](?:[ -~]*[!-~])?$'
CLEAN_DECIMALS = 2
"""The most decimals that a clean amount has."""
_CLEAN = {
    **dict.fromkeys(CODE_COLUMNS, "^[A-Z]+$"),
    **dict.fromkeys(NUMBER_COLUMNS, _CLEAN_NUMBER),
    "amount": rf"^[1-9][0-9]{{0,14}}(?:\.[0-9]{{1,{CLEAN_DECIMALS}}})?$",
    "client_orderid": "^[A-Za-z0-9](?:[A-Za-z0-9_/: -]*[A-Za-z0-9_/:-])?$",
}
"""Patterns of values that need nothing done to them; `_CLEAN_TEXT` for all other columns. They leave out some more, so
that the checks need not ask further: no text is a spreadsheet's error mark, no order id a number that was cut, and an
amount is above zero."""
_TRIM = r"^[\p{C}\p{Z}]+|[\p{C}\p{Z}]+$"
_WRAPPED = r'^="([^"]*)"$'
_FLOAT_OF_A_WHOLE = r"^\+?[0-9]{7,15}\.0$"
_NOT_SEPARATED = r"^[\p{Pd}\x{2212}]|\.[0-9]?(?:[^0-9]|$)"
"""A sign, or a dot that a decimal fraction could follow: what stands there is no separator between groups of digits."""
_SEPARATORS = r"[\p{C}\p{Z}\p{Pd}\x{2212}().\[\]]"
_TRUNK_ZERO_IN_BRACKETS = r"^((?:\+|00)[0-9][0-9 ]{0,5})\(0\)"

EXPONENT = r"^[0-9](?:[.,][0-9]+)?[eE]\+?[0-9]{1,2}$"
"""A number in a spreadsheet's scientific notation."""


def bare(column: str) -> str:
    """Return the name of the column that holds a number column's values without separators."""
    return f"{column}:bare"


def is_clean(column: str) -> str:
    """Return the name of the column that says which values of a column matched its clean pattern."""
    return f"{column}:clean"


def prepared(frame: pl.DataFrame, columns: Sequence[str] = KNOWN_COLUMNS) -> pl.DataFrame:
    """Return `row` and every known column, cleaned; String throughout.

    Null where the sheet has none, and where the column is not one of `columns`, those of its operation.
    All are trimmed of blanks and invisible characters; names are in Unicode's form NFKC; codes of two or three letters
    are in upper case; amounts and numbers are freed of `'` and `="..."`. `bare(column)` of a number column has no
    separators left. `is_clean(column)` (Boolean) is true where a value was clean from the start.
    """
    nothing = pl.Series([None], dtype=pl.String).new_from_index(0, frame.height)
    given = [name for name in columns if name in frame.columns]
    texts = {name: frame[name] if name in given else nothing.alias(name) for name in KNOWN_COLUMNS}
    clean = frame.select(pl.col(name).str.contains(_CLEAN.get(name, _CLEAN_TEXT)) for name in given)
    texts |= {name: changed(texts[name], ~clean[name], _cleaned) for name in given}
    # What is clean of a number has no separators either.
    numbers = [name for name in NUMBER_COLUMNS if name in given]
    texts |= {bare(name): changed(texts[name], ~clean[name], _bare).alias(bare(name)) for name in numbers}
    texts |= {bare(name): nothing.alias(bare(name)) for name in NUMBER_COLUMNS if name not in given}
    never = pl.Series([False]).new_from_index(0, frame.height)
    marks = (
        (clean[name].fill_null(value=False) if name in given else never).alias(is_clean(name)) for name in KNOWN_COLUMNS
    )
    return pl.DataFrame([frame["row"], *texts.values(), *marks])


def cleaned_codes(text: pl.Series) -> pl.Series:
    """Return a column of codes (countries, currencies) as `prepared` does."""
    return changed(text, ~text.str.contains(_CLEAN[text.name]), _cleaned)


def _cleaned(text: pl.Series) -> pl.Series:
    text = trimmed(text)
    if text.name in NAME_COLUMNS:
        return trimmed(text.str.normalize("NFKC"))
    if text.name in CODE_COLUMNS:
        return changed(text, text.str.contains(_CODE_IN_LOWER_CASE), lambda part: part.str.to_uppercase())
    if text.name == "amount" or text.name in NUMBER_COLUMNS:
        return trimmed(text.str.replace(_WRAPPED, "${1}").str.strip_prefix("'"))
    return text


def changed(text: pl.Series, mask: pl.Series, change: Callable[[pl.Series], pl.Series]) -> pl.Series:
    """Return `text` with `change` applied to the values that `mask` marks (null: not)."""
    at = mask.fill_null(value=False).arg_true()
    return text.clone().scatter(at, change(text.gather(at))) if at.len() else text


def trimmed(text: pl.Series) -> pl.Series:
    """Return the values without blanks, control and invisible characters at either end; null where nothing is left."""
    untidy = text.str.contains(_TRIM) | (text == "")
    return changed(text, untidy, lambda part: _empty_as_null(part.str.replace_all(_TRIM, "")))


def _empty_as_null(text: pl.Series) -> pl.Series:
    return text.set(text == "", None)


def bare_number(text: pl.Series) -> pl.Series:
    """Return phone and account numbers without separators: `+254 (712) 345-678` becomes `+254712345678`.

    Scientific notation is written out where every digit is there (`2.54712345678E+11`); where the spreadsheet has cut
    the number it stays as it is. So does whatever could be a sign or a decimal fraction.
    """
    return changed(text, ~text.str.contains(_CLEAN_NUMBER), _bare)


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
