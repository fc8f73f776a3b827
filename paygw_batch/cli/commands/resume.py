"""`paygw-batch resume`: continue a batch from the journal alone, without the sheet."""

from pathlib import Path

import click

from paygw_batch.cli.completions import complete_batches
from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import force_option, settings_of, wait_option
from paygw_batch.cli.runs.send_batch import continued, send_and_reconcile
from paygw_batch.cli.screen.screen import Screen


@click.command("resume", short_help="Continue a batch.")
@click.argument("batch", required=False, shell_complete=complete_batches)
@click.option("--out", type=click.Path(path_type=Path), help="Reconciliation file (.csv, .parquet or .xlsx).")
@wait_option
@force_option
@click.pass_obj
def command(invocation: Invocation, *, batch: str | None, out: Path | None, wait: bool, force: bool) -> None:
    """Continue BATCH (its id, a prefix of it, or its sheet's path) from the journal alone.

    Without BATCH, the one batch that still has rows to send.
    """
    screen = Screen(invocation)
    settings = settings_of(invocation)
    with continued(invocation, settings, "resume", screen, batch, out, wait=wait, force=force) as run:
        run.report.summary = send_and_reconcile(run.task, run.out, screen)
    screen.finish(run.report.summary)
