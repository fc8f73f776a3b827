"""Says in the audit trail what an act was about, and reads it again for the page.

The trail is never changed, so it has ids alone: a folder, a batch, a row, one of our columns. What they are called is
looked up when somebody reads it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from paygw_batch.actions.payout_folder import is_folder_name
from paygw_batch.core.batch import PAYOUT
from paygw_batch.sheet.columns import columns_of_operation

_MAX_ROW_DIGITS = 10
_SECRETS = frozenset({"token"})


def thing_of(path: Mapping[str, Any], form: Mapping[str, str]) -> str:
    """Return the thing that a request is about, by its path and its form. The token of an invitation is a secret."""
    return ", ".join(f"{name} {value}" for name, value in _parts(path, form))


def _parts(path: Mapping[str, Any], form: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    yield from ((name, value) for name, value in path.items() if name not in _SECRETS)
    number, row, column = (form.get(name, "") for name in ("number", "row", "column"))
    if "sheet" not in path and is_folder_name(number):
        yield "sheet", number
    if "row" not in path and row.isascii() and row.isdigit() and len(row) <= _MAX_ROW_DIGITS:
        yield "row", row
    if column in columns_of_operation(PAYOUT):
        yield "column", column


def parts_of(thing: str) -> Mapping[str, str]:
    """Return what `thing_of` wrote: `sheet`, `batch`, `row`, `column`, by their names. Another text has none."""
    pairs = (part.partition(" ") for part in thing.split(", "))
    return {name: value for name, _, value in pairs if value}
