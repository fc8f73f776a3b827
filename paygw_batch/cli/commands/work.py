"""`paygw-batch work`: send rows that commands hand over, together with other hosts."""

import click

from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import guard_of, settings_of
from paygw_batch.cli.runs.run_report import reported
from paygw_batch.cli.runs.serve_batches import BatchServer
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.compose.journal import shared_database
from paygw_batch.compose.operations import require_gateway


@click.command("work", short_help="Send rows that are handed over.")
@click.option("--once", is_flag=True, help="End when nothing is left to send.")
@click.pass_obj
def command(invocation: Invocation, *, once: bool) -> None:
    """Send the rows that `submit`, `resume` and `retry` hand over, together with the workers of other hosts.

    It waits for more until it is interrupted; then it waits for its rows in flight, and ends with 0.
    """
    screen = Screen(invocation)
    settings = settings_of(invocation)
    shared_database(settings)
    require_gateway(settings)
    guard_of(invocation, settings).check(reporting=True)
    with reported(settings, "work", screen) as report:
        report.summary = BatchServer(settings, screen, once=once).serve()
    screen.finish(report.summary)
