"""`paygw-batch resume`: continue a batch from the journal alone, without the sheet."""

from pathlib import Path

import click

from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, NamedFile
from paygw_batch.cli.options import complete_batches, excel_option, force_option, require_csv, settings_of, wait_option
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.send_batch import continued, send_and_reconcile


@click.command("resume", cls=HelpCommand)
@click.argument("batch", required=False, shell_complete=complete_batches)
@click.option("--out", type=NamedFile(), help="Reconciliation file (.csv, .parquet or .xlsx).")
@excel_option
@wait_option
@force_option
@click.pass_obj
def command(
    invocation: Invocation, *, batch: str | None, out: Path | None, for_excel: bool, wait: bool, force: bool
) -> None:
    """Continue BATCH (its id, a prefix of it, or its sheet's path) from the journal alone.

    Without BATCH: continue the only batch that has rows left to send.
    """
    screen = Screen(invocation)
    require_csv(out, for_excel=for_excel)
    settings = settings_of(invocation)
    with continued(
        invocation, settings, "resume", screen, batch, out, wait=wait, force=force, for_excel=for_excel
    ) as run:
        run.report.summary = send_and_reconcile(run.task, run.out, screen, for_excel=run.for_excel)
    screen.finish(run.report.summary)
