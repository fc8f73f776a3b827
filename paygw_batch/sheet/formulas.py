"""The guard against formulas in CSV (section 5 of the interface): put on in writing, taken off in reading.

A cell that starts with `=`, `@`, a tab, a carriage return, or with `+` or `-` without being a plain number is run as a
formula by a spreadsheet that opens the file; with a leading `'` it is text.
"""

import polars as pl

from paygw_batch.sheet.clean import changed

_RISKY = r"^[=@\t\r+\-]"
_PLAIN_NUMBER = r"^[+-][0-9]+(?:\.[0-9]+)?$"
_GUARDED = r"^'[=@\t\r+\-]"


def guarded(text: pl.Series) -> pl.Series:
    """Return the values with the guard where they need it."""
    risky = text.str.contains(_RISKY) & ~text.str.contains(_PLAIN_NUMBER)
    return changed(text, risky, lambda part: "'" + part)


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
