"""`paygw-batch resume`: continue a batch from the journal alone, without the sheet."""

from pathlib import Path

import click

from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, NamedFile
from paygw_batch.cli.options import complete_batches, force_option, settings_of, wait_option
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.send_batch import continued, send_and_reconcile


@click.command("resume", cls=HelpCommand)
@click.argument("batch", required=False, shell_complete=complete_batches)
@click.option("--out", type=NamedFile(), help="Reconciliation file (.csv, .parquet or .xlsx).")
@wait_option
@force_option
@click.pass_obj
def command(invocation: Invocation, *, batch: str | None, out: Path | None, wait: bool, force: bool) -> None:
    """Continue BATCH (its id, a prefix of it, or its sheet's path) from the journal alone.

    Without BATCH: continue the only batch that has rows left to send.
    """
    screen = Screen(invocation)
    settings = settings_of(invocation)
    with continued(invocation, settings, "resume", screen, batch, out, wait=wait, force=force) as run:
        run.report.summary = send_and_reconcile(run.task, run.out, screen)
    screen.finish(run.report.summary)
