"""Makes texts comparable: trims and unwraps them, and removes separators from numbers. Nothing is guessed.

Every function works on whole columns and touches only the values that need it: most sheets are clean, and a clean
column comes back as the very same series.

The guard against formulas in CSV (section 5 of the interface): put on in writing, taken off in reading.

A cell that starts with `=`, `@`, a tab, a carriage return, or with `+` or `-` without being a plain number is run as a
formula by a spreadsheet that opens the file; with a leading `'` it is text.
"""

from collections.abc import Callable, Collection, Mapping

import polars as pl

from paygw_batch.countries.form_columns import sheet_columns
from paygw_batch.countries.kinds import Cleaning
from paygw_batch.countries.rules import WORD_SEPARATORS, CountryRule

_CODE_IN_LOWER_CASE = "^(?:[A-Za-z]{2}|[A-Za-z]{3})$"
_CLEAN_NUMBER = r"^\+?[0-9]+$"
_LATIN = r"\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{131}\x{134}-\x{13E}\x{141}-\x{148}\x{14A}-\x{17E}"
"""Letters of European languages and their neighbours, each of them one character that Unicode's form NFKC keeps."""
_CLEAN_TEXT = f"^[!-<>-~{_LATIN}](?:[ -~{_LATIN}]*[!-~{_LATIN}])?$"
_CLEAN = {Cleaning.CODE: "^[A-Z]+$", Cleaning.AMOUNT: "^[0-9.]+$"}
"""Patterns of values that cleaning leaves as they are; `_CLEAN_TEXT` for all others but numbers."""
_TRIM_START, _TRIM_END = r"^[\p{C}\p{Z}]+", r"[\p{C}\p{Z}]+$"
_TRIM = f"{_TRIM_START}|{_TRIM_END}"
_WRAPPED = r'^="([^"]*)"$'
_TAKEN = (
    r"[+-]?[.,]?[0-9][0-9.,:/ +-]*(?:[eE][+-]?[0-9]+)?%?"  # a number, a date, a time
    r"|[0-9]{1,2}[ /.-]?\p{L}{3,9}\.?(?:[ /.-]?[0-9]{1,4})?|\p{L}{3,9}[ /.-]?[0-9]{1,4}"  # a date with a month's name
    r"|(?i:true|false|vrai|faux)"
)
"""Texts of which a spreadsheet makes something else when it opens a CSV: `0712` becomes 712, `MAR-1` a day."""
_KEPT = f'^="({_TAKEN})"$'
_MAX_FORMULA_CHARS = 255
"""The longest text that a formula of Excel may hold."""
_IN_GROUPS = r"^\+?[0-9]+(?:[ -][0-9]+)*$"
"""How most numbers with separators look: nothing but blanks and hyphens between digits."""
_FLOAT_OF_A_WHOLE = r"^\+?[0-9]{7,15}\.0$"
_NOT_SEPARATED = r"^[\p{Pd}\x{2212}]|\.[0-9]?(?:[^0-9]|$)"
"""A sign, or a dot before a possible decimal fraction: neither separates groups of digits."""
_SEPARATORS = r"[\p{C}\p{Z}\p{Pd}\x{2212}().\[\]]"
_TRUNK_ZERO_IN_BRACKETS = r"^((?:\+|00)[0-9][0-9 ]{0,5})\(0\)"

EXPONENT = r"^[0-9](?:[.,][0-9]+)?[eE]\+?[0-9]{1,2}$"
"""A number in a spreadsheet's scientific notation."""


def bare(column: str) -> str:
    """Return the name of the column that holds a number column's values without separators."""
    return f"{column}:bare"


def cleaned(frame: pl.DataFrame, columns: Collection[str] | None = None) -> pl.DataFrame:
    """Return `row` and every known column, cleaned as its kind says; String throughout.

    Null where the sheet has none, and where the column is not one of `columns` (None: all), those of its operation.
    `bare(column)` of a number column has no separators left.
    """
    nothing = pl.Series([None], dtype=pl.String).new_from_index(0, frame.height)
    made: dict[str, pl.Series] = {}
    for name, cleaning in sheet_columns().cleanings.items():
        is_given = name in frame.columns and (columns is None or name in columns)
        text = frame[name] if is_given else nothing.alias(name)
        unclean = text.is_not_null() & ~is_clean(text, cleaning) if is_given else None
        made[name] = text if unclean is None else changed(text, unclean, CLEANERS[cleaning])
        if cleaning is Cleaning.NUMBER:  # a clean number has no separators
            digits = text if unclean is None else changed(text, unclean, _bare_of_unclean)
            made[bare(name)] = digits.alias(bare(name))
    return pl.DataFrame([frame["row"], *made.values()])


def cleaned_codes(text: pl.Series) -> pl.Series:
    """Return a column of codes (countries, currencies) as `prepared` does."""
    return changed(text, text.is_not_null() & ~is_clean(text, Cleaning.CODE), _cleaned_code)


def is_clean(text: pl.Series, cleaning: Cleaning) -> pl.Series:
    """Return which values need no cleaning; never null, and not all of them: a number of 20 digits is missing."""
    if cleaning is Cleaning.NUMBER:
        # What can be read as a whole number is digits with at most a plus before them, and read faster than matched.
        return text.cast(pl.UInt64, strict=False).is_not_null()
    pattern = _CLEAN.get(cleaning, _CLEAN_TEXT)
    if cleaning is Cleaning.CODE and text.unique().str.contains(pattern).all():
        return text.is_not_null()
    return text.str.contains(pattern).fill_null(value=False)


def _cleaned_number(text: pl.Series) -> pl.Series:
    return changed(text, ~text.str.contains(_IN_GROUPS), lambda part: trimmed(_unwrapped(trimmed(part))))


def _cleaned_text(text: pl.Series) -> pl.Series:
    return trimmed(_cleaned_line(text).str.normalize("NFKC"))


def _cleaned_line(text: pl.Series) -> pl.Series:
    """Return texts without what `kept_by_spreadsheets` put around them: `="A-1"` would be another order id."""
    return trimmed(trimmed(text).str.replace(_KEPT, "${1}"))


def _cleaned_code(text: pl.Series) -> pl.Series:
    text = trimmed(text)
    return changed(text, text.str.contains(_CODE_IN_LOWER_CASE), lambda part: part.str.to_uppercase())


def _cleaned_amount(text: pl.Series) -> pl.Series:
    return trimmed(_unwrapped(trimmed(text)))


def _unwrapped(text: pl.Series) -> pl.Series:
    return text.str.replace(_WRAPPED, "${1}").str.strip_prefix("'")


def changed(text: pl.Series, mask: pl.Series, change: Callable[[pl.Series], pl.Series]) -> pl.Series:
    """Return `text` with `change` applied to the values that `mask` marks (null: not)."""
    at = mask.fill_null(value=False).arg_true()
    return text.clone().scatter(at, change(text.gather(at))) if at.len() else text


def trimmed(text: pl.Series) -> pl.Series:
    """Return the values without blanks, control and invisible characters at either end; null if nothing is left."""
    # Two questions, each at one end of the text, are far cheaper than one about both.
    untidy = text.str.contains(_TRIM_START) | text.str.contains(_TRIM_END) | (text == "")
    return changed(text, untidy, lambda part: _empty_as_null(part.str.replace_all(_TRIM, "")))


def _empty_as_null(text: pl.Series) -> pl.Series:
    return text.set(text == "", None)


def bare_number(text: pl.Series) -> pl.Series:
    """Return phone and account numbers without separators: `+254 (712) 345-678` becomes `+254712345678`.

    Scientific notation is written out where every digit is there (`2.54712345678E+11`); where the spreadsheet has cut
    the number it stays as it is. So does a text that could be signed or a decimal fraction.
    """
    return changed(text, ~text.str.contains(_CLEAN_NUMBER), _bare)


def _bare_of_unclean(text: pl.Series) -> pl.Series:
    """Return numbers of a sheet without separators: cleaned, then as `bare_number`."""
    others = (~text.str.contains(_IN_GROUPS)).arg_true()
    digits = text.str.replace_all("[ -]", "")
    return digits.scatter(others, _bare(_cleaned_number(text.gather(others)))) if others.len() else digits


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


_RISKY = r"^[=@\t\r+\-]"
_PLAIN_NUMBER = r"^[+-][0-9]+(?:\.[0-9]+)?$"
_GUARDED = r"^'[=@\t\r+\-]"


def guarded(text: pl.Series) -> pl.Series:
    """Return the values with the guard where they need it."""
    risky = text.str.contains(_RISKY) & ~text.str.contains(_PLAIN_NUMBER)
    return changed(text, risky, lambda part: "'" + part)


def kept_by_spreadsheets(text: pl.Series) -> pl.Series:
    """Return the values with `="..."` around each of which a spreadsheet would make a number or a day."""
    is_taken = text.str.contains(f"^(?:{_TAKEN})$") & (text.str.len_chars() <= _MAX_FORMULA_CHARS)
    return changed(text, is_taken, lambda part: '="' + part + '"')


def guarded_columns(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with `guarded` texts. All columns are looked at together, and most of them are as they are."""
    texts = pl.selectors.string()
    at_risk = frame.select(texts.str.contains(_RISKY).any()).row(0, named=True)
    return frame.with_columns(guarded(frame[name]) for name, is_at_risk in at_risk.items() if is_at_risk)


def unguarded(text: pl.Series) -> pl.Series:
    """Return the values as they were before `guarded`."""
    quoted = text.str.starts_with("'")
    if not quoted.any():
        return text
    return changed(text, quoted & text.str.contains(_GUARDED), lambda part: part.str.strip_prefix("'"))


def guarded_names(names: list[str]) -> list[str]:
    """Return column names with the guard: they are text in a file like any other."""
    return guarded(pl.Series(names, dtype=pl.String)).to_list()


def unguarded_names(names: list[str]) -> list[str]:
    """Return column names as they were before `guarded_names`."""
    return unguarded(pl.Series(names, dtype=pl.String)).to_list()


def chosen_purpose(rule: CountryRule) -> pl.Expr:
    """Return the purpose that a row's own word means; null if it has no known word."""
    codes = {word: one.purpose for word, one in rule.purposes.items()}
    return folded_purpose().replace_strict(codes, default=None, return_dtype=pl.String)


def folded_purpose() -> pl.Expr:
    """Return a row's word for a purpose as `CountryRule.purposes` has it."""
    return pl.col("purpose").str.replace_all(WORD_SEPARATORS, "").str.to_lowercase()
