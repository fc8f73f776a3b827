"""Reads amounts and numbers that are written in the digits of another script."""

import polars as pl

from paygw_batch.countries.form_columns import sheet_columns
from paygw_batch.countries.kinds import Cleaning
from paygw_batch.language import say
from paygw_batch.sheet.model import as_defects

_SCRIPTS = ("٠١٢٣٤٥٦٧٨٩", "۰۱۲۳۴۵۶۷۸۹")
"""The digits of Arabic, and of Persian and Urdu."""
_FIRST_BYTES = {digit.encode()[:1] for digits in _SCRIPTS for digit in digits}
_EVERY_DIGIT = r"\p{Nd}"
_DECIMAL_SIGN = "\N{ARABIC DECIMAL SEPARATOR}"


def has_other_digits(frame: pl.DataFrame, text: bytes | None = None) -> bool:
    """Return whether an amount or a number of rows of a sheet has digits of another script, that can be read or not.

    `text` is what the rows were read from, in UTF-8, where they are from a text: most have no such byte anywhere.
    """
    if text is not None and not any(first in text for first in _FIRST_BYTES):
        return False
    return any(_is_written_in(frame[name]).any() for name in _numbers_in(frame))


def with_our_digits(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the frame with such values in our digits, and a warning for each that shows both.

    A value whose digits are of several scripts is left as it is: nothing is guessed, and the checks refuse it.
    """
    warnings = [as_defects(())]
    for name in _numbers_in(frame):
        text = frame[name]
        at = _is_written_in(text).arg_true()
        if not at.len():
            continue
        read = text.gather(at)
        for digits in _SCRIPTS:
            is_alone = read.str.contains(f"[{digits}]") & ~read.str.contains(f"[{_EVERY_DIGIT}--[{digits}]]")
            ours = read.str.replace_many([*digits, _DECIMAL_SIGN], [*"0123456789", "."])
            read = read.zip_with(~is_alone, ours)
        lines = zip(frame["row"].gather(at), text.gather(at), read, strict=True)
        warnings.append(
            as_defects(
                (row, name, old, f"{name}.other_digits", say("{old} was read as {new}.", old=old, new=new))
                for row, old, new in lines
                if old != new
            )
        )
        frame = frame.with_columns(text.scatter(at, read))
    return frame, pl.concat(warnings)


def _numbers_in(frame: pl.DataFrame) -> list[str]:
    cleanings = sheet_columns().cleanings
    return [name for name in frame.columns if cleanings.get(name) in {Cleaning.AMOUNT, Cleaning.NUMBER}]


def _is_written_in(text: pl.Series) -> pl.Series:
    """Return which values have such digits. Most columns are of ASCII alone, which the lengths tell quickly."""
    if text.str.len_bytes().sum() == text.str.len_chars().sum():
        return pl.Series([False]).new_from_index(0, text.len())
    return text.str.contains(f"[{''.join(_SCRIPTS)}]").fill_null(value=False)
