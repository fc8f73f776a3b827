"""`paygw-batch retry`: release rejected rows for another attempt, and send them."""

from dataclasses import replace
from pathlib import Path

import click

from paygw_batch.cli.completions import complete_batches
from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import by_option, force_option, settings_of, wait_option
from paygw_batch.cli.runs.send_batch import continued, send_and_reconcile
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.compose.actions.continue_batch import release_rejected
from paygw_batch.compose.operator import person
from paygw_batch.language import say, say_count

SHOWN_WAITING = 20
"""How many rows that cannot be released yet are named, with the time from which they can."""


@click.command("retry", short_help="Send rejected rows again.")
@click.argument("batch", shell_complete=complete_batches)
@click.option("--row", "rows", type=click.IntRange(1), multiple=True, help="Only this row of the sheet. Repeatable.")
@click.option("--out", type=click.Path(path_type=Path), help="Reconciliation file (.csv, .parquet or .xlsx).")
@by_option
@wait_option
@force_option
@click.pass_obj
def command(
    invocation: Invocation,
    *,
    batch: str,
    rows: tuple[int, ...],
    out: Path | None,
    by: str | None,
    wait: bool,
    force: bool,
) -> None:
    """Release the rejected rows of BATCH (its id, a prefix of it, or its sheet's path) for another attempt, and send.

    Rows that are ready for another reason are sent along, as `resume` does. A row in doubt is never part of it.
    """
    screen = Screen(invocation)
    settings = settings_of(invocation)
    who = person(by)
    with continued(invocation, settings, "retry", screen, batch, out, wait=wait, force=force) as run:
        released = release_rejected(run.task, rows, who)
        said = (
            say_count(released.rows, "{count:,} rejected rows are released.")
            if released.rows
            else say("There is no rejected row to retry.")
        )
        screen.say(" ".join([said, *released.waiting[:SHOWN_WAITING]]))
        summary = send_and_reconcile(run.task, run.out, screen)
        waiting = len(released.waiting)
        why = say_count(waiting, "{count:,} rejected rows have to wait") if waiting else say("no row is rejected")
        message = summary.message if released.rows else f"{say('Nothing to retry: {why}.', why=why)} {summary.message}"
        further = {"released": released.rows, "waiting": waiting}
        run.report.summary = replace(summary, message=message, further=further)
    screen.finish(run.report.summary)
