"""The formats of the tables that are written, by the ending of the file."""

import importlib.util
from pathlib import Path

from paygw_batch.errors import OutputError

_ENDINGS = (".csv", ".parquet", ".xlsx")


def table_ending(path: Path) -> str:
    """Return the ending. Raises `OutputError` for one that names no format that can be written here."""
    ending = path.suffix.lower()
    if ending not in _ENDINGS:
        raise OutputError(f"{path.name} ends in none of {', '.join(_ENDINGS)}.", hint="The ending says the format.")
    if ending == ".xlsx" and importlib.util.find_spec("xlsxwriter") is None:
        raise OutputError(
            f"{path.name}: writing .xlsx needs the extra `excel`.",
            hint="pip install 'paygw-batch[excel]', or write .csv or .parquet.",
        )
    return ending
