"""The kinds of sheets for measuring validation, because their costs differ.

Each is the sheet of `samples/make_sheet.py` with one change; `everything` has all changes at once. Only the sheets with
bad rows have defects.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import polars as pl

from samples.make_sheet import MIXED, make_sheet, write

_RECEIVER_FORM = "TZ"
_NAMES = ("account_name", "receiver_first_name", "receiver_last_name")
_ACCENTED = {"a": "á", "e": "é", "i": "ï", "o": "ô", "u": "ü"}
_EMPTY = ("purpose", "ipaddress", "order_desc", "receiver_country_code", "Branch", "Grade", "Comment", "Approved by")
_PAYMENTS_A_PAYEE = 3


def _plain(rows: int) -> pl.DataFrame:
    return make_sheet(rows, countries=[code for code in MIXED if code != _RECEIVER_FORM])


def _with_accents(sheet: pl.DataFrame) -> pl.DataFrame:
    return sheet.with_columns(pl.col(_NAMES).str.replace_many(_ACCENTED))


def _sorted_by_country(sheet: pl.DataFrame) -> pl.DataFrame:
    return sheet.sort("country", maintain_order=True)


def _with_empty_columns(sheet: pl.DataFrame) -> pl.DataFrame:
    return sheet.with_columns(pl.lit(None, pl.String).alias(name) for name in _EMPTY)


def _with_repeated_payees(sheet: pl.DataFrame) -> pl.DataFrame:
    """Return the sheet with three payments to each payee, far apart, with different amounts."""
    payees = -(-sheet.height // _PAYMENTS_A_PAYEE)
    nth = pl.int_range(pl.len())
    paid = sheet.head(payees).select(pl.all().gather(pl.int_range(sheet.height, eager=True) % payees))
    return paid.with_columns(sheet["client_orderid"], amount=(nth // payees + 1).cast(pl.String) + pl.col("amount"))


def _with_all_changes(rows: int) -> pl.DataFrame:
    sheet = _with_repeated_payees(make_sheet(rows, bad_share=0.01))
    return _with_empty_columns(_with_accents(_sorted_by_country(sheet)))


_KINDS: Mapping[str, Callable[[int], pl.DataFrame]] = {
    "plain, many countries": _plain,
    "Tanzania's form among the rows": make_sheet,
    "names with accents": lambda rows: _with_accents(_plain(rows)),
    "sorted by country": lambda rows: _sorted_by_country(_plain(rows)),
    "empty columns": lambda rows: _with_empty_columns(_plain(rows)),
    "each payee three times": lambda rows: _with_repeated_payees(_plain(rows)),
    "1 % bad": lambda rows: make_sheet(rows, bad_share=0.01),
    "half bad": lambda rows: make_sheet(rows, bad_share=0.5),
    "everything at once": _with_all_changes,
}
PARQUET = "plain, Parquet"
KINDS = (*_KINDS, PARQUET)


def sheet_of_kind(directory: Path, kind: str, rows: int) -> Path:
    """Write a sheet of a kind unless it exists, and return its path."""
    ending = "parquet" if kind == PARQUET else "csv"
    path = directory / f"{rows}-{KINDS.index(kind)}.{ending}"
    if not path.exists():
        write(_KINDS.get(kind, _plain)(rows), path)
    return path
