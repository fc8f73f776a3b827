"""Refuses sheets that were given to the wrong command: payees for `collect`, customers for `submit`."""

from collections.abc import Mapping

from paygw_batch.errors import SheetError
from paygw_batch.language import say
from paygw_batch.sheet.columns import columns_by_operation, columns_of_operation
from paygw_batch.sheet.model import Headed
from paygw_batch.sheet.read.headings import fold


def refuse_misdirected(sheet: Headed, commands: Mapping[str, str]) -> None:
    """Raise `SheetError` for a sheet whose columns are another operation's. `commands`: operation -> its command."""
    own = set(columns_of_operation(sheet.operation))
    headings = {fold(heading) for heading in sheet.headers.values()}
    for operation, columns in columns_by_operation().items():
        alien = [name for name in columns if name not in own and fold(name) in headings]
        has_own = any(name in sheet.headers for name in own.difference(columns))
        if operation != sheet.operation and not has_own and alien:
            raise SheetError(
                say(
                    "{name} has columns of a sheet for `{command}` ({alien}), and none that only a sheet for "
                    "`{own}` has.",
                    name=sheet.name,
                    command=commands[operation],
                    alien=", ".join(alien),
                    own=commands[sheet.operation],
                ),
                hint=say(
                    "Nothing was sent. `{command}` runs such a sheet; `--collect` is for collections.",
                    command=commands[operation],
                ),
            )
