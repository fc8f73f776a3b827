"""`paygw-batch retry`: release rejected rows for another attempt, and send them."""

from dataclasses import replace
from pathlib import Path

import click

from paygw_batch.actions.continue_batch import ReleasedRows, release_rejected
from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, NamedFile, WholeNumber
from paygw_batch.cli.options import (
    by_option,
    complete_batches,
    excel_option,
    force_option,
    require_csv,
    settings_of,
    wait_option,
)
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.send_batch import Continued, continued, send_and_reconcile
from paygw_batch.language import say, say_count
from paygw_batch.report.summary import Summary
from paygw_batch.wiring.approvals import person

SHOWN_WAITING = 20
"""The maximum number of listed rows that cannot be released yet, each with the time when they can."""


@click.command("retry", cls=HelpCommand)
@click.argument("batch", shell_complete=complete_batches)
@click.option("--row", "rows", type=WholeNumber(1), multiple=True, help="Only this row of the sheet. Repeatable.")
@click.option("--out", type=NamedFile(), help="Reconciliation file (.csv, .parquet or .xlsx).")
@excel_option
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
    for_excel: bool,
    by: str | None,
    wait: bool,
    force: bool,
) -> None:
    """Send the rejected rows of BATCH (its id, a prefix of it, or its sheet's path) again.

    Other rows that are ready are also sent, as by `resume`. Rows in doubt are never included. `order release` has two
    people decide it instead.
    """
    screen = Screen(invocation)
    require_csv(out, for_excel=for_excel)
    settings = settings_of(invocation)
    who = person(by)
    with continued(
        invocation, settings, "retry", screen, batch, out, wait=wait, force=force, for_excel=for_excel
    ) as run:
        run.report.summary = send_released(run, screen, release_rejected(run.task, rows, who))
    screen.finish(run.report.summary)


def send_released(run: Continued, screen: Screen, released: ReleasedRows) -> Summary:
    """Send the released rows of a batch, with the others that are due, and return the summary."""
    said = (
        say_count(released.rows, "{count:,} rejected row is released.", "{count:,} rejected rows are released.")
        if released.rows
        else say("There is no rejected row to retry.")
    )
    screen.say(" ".join([said, *released.waiting[:SHOWN_WAITING]]))
    summary = send_and_reconcile(run.task, run.out, screen, for_excel=run.for_excel)
    waiting = len(released.waiting)
    why = (
        say_count(waiting, "{count:,} rejected row must wait", "{count:,} rejected rows must wait")
        if waiting
        else say("no row is rejected")
    )
    message = summary.message if released.rows else f"{say('Nothing to retry: {why}.', why=why)} {summary.message}"
    return replace(summary, message=message, further={"released": released.rows, "waiting": waiting})
