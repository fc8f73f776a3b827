"""`paygw-batch collect`: like submit, for a sheet of customers to collect from."""

from typing import Any

import click

from paygw_batch.cli.commands.submit import run_sheet, sheet_options
from paygw_batch.cli.help_texts import SheetCommand
from paygw_batch.cli.invocation import Invocation
from paygw_batch.core.batch import PAYIN


@click.command("collect", cls=SheetCommand)
@sheet_options
@click.pass_obj
def command(invocation: Invocation, /, **asked: Any) -> None:
    """Collect from the customers on SHEET: start its batch, or continue it. Running the same command again is safe.

    The batch is then resumed, retried, resolved and reconciled like any other, by its id.
    """
    run_sheet(invocation, PAYIN, "collect", **asked)
