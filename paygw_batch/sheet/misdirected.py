"""Sheets that were given to the wrong command: people to pay and customers to collect from are told apart."""

from collections.abc import Mapping

from paygw_batch.errors import SheetError
from paygw_batch.sheet.columns import COLUMNS_OF
from paygw_batch.sheet.headers import fold
from paygw_batch.sheet.result import Sheet

_ENOUGH = 2
"""So many columns that only another operation's sheets have are no accident, where none of one's own is there."""


def refuse_misdirected(sheet: Sheet, commands: Mapping[str, str]) -> None:
    """Raise `SheetError` for a sheet whose columns are another operation's. `commands`: operation -> its command."""
    own = set(COLUMNS_OF[sheet.operation])
    headings = {fold(name) for name in sheet.unknown}
    for operation, columns in COLUMNS_OF.items():
        alien = [name for name in columns if name not in own and fold(name) in headings]
        has_own = any(name in sheet.frame.columns for name in own.difference(columns))
        if operation != sheet.operation and not has_own and len(alien) >= _ENOUGH:
            raise SheetError(
                f"{sheet.name} has columns of a sheet for `{commands[operation]}` ({', '.join(alien)}), and none that "
                f"only a sheet for `{commands[sheet.operation]}` has.",
                hint=f"Nothing was sent. `{commands[operation]}` runs such a sheet; `--collect` is for collections.",
            )
