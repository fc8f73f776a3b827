"""The formats of the tables that are written, by the ending of the file."""

import importlib.util
from pathlib import Path

from paygw_batch.errors import OutputError
from paygw_batch.language import say

_ENDINGS = (".csv", ".parquet", ".xlsx")


def table_ending(path: Path) -> str:
    """Return the ending. Raises `OutputError` for one that names no format that can be written here."""
    ending = path.suffix.lower()
    if ending not in _ENDINGS:
        raise OutputError(
            say("{name} ends in none of {endings}.", name=path.name, endings=", ".join(_ENDINGS)),
            hint=say("The ending decides the format."),
        )
    if ending == ".xlsx" and importlib.util.find_spec("xlsxwriter") is None:
        raise OutputError(
            say("{name}: writing .xlsx needs the extra `excel`.", name=path.name),
            hint=say("pip install 'paygw-batch[excel]', or write .csv or .parquet."),
        )
    return ending
