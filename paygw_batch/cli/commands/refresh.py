"""`paygw-batch refresh`: ask the gateway for the outcome of the rows that are accepted or in doubt."""

import asyncio
from dataclasses import replace
from pathlib import Path

import click

from paygw_batch.actions.refresh_run import refresh, require_enquiry
from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, NamedFile
from paygw_batch.cli.options import complete_batches, force_option, settings_of, wait_option
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.send_batch import continued, reconcile
from paygw_batch.cli.signals import interruption
from paygw_batch.core.shown_states import counted_finding
from paygw_batch.engine.engine import RunEnd
from paygw_batch.language import say, say_count
from paygw_batch.report.summary import Summary
from paygw_batch.run.refresh import Refresh, Refreshed


@click.command("refresh", cls=HelpCommand)
@click.argument("batch", shell_complete=complete_batches)
@click.option("--out", type=NamedFile(), help="Reconciliation file (.csv, .parquet or .xlsx).")
@wait_option
@force_option
@click.pass_obj
def command(invocation: Invocation, *, batch: str, out: Path | None, wait: bool, force: bool) -> None:
    """Ask the gateway about the rows of BATCH that are accepted or in doubt, until each has a final answer.

    Off unless the configuration names a [status_enquiry] profile. It never sends or releases a row.
    """
    screen = Screen(invocation)
    settings = settings_of(invocation)
    require_enquiry(settings)
    with continued(invocation, settings, "refresh", screen, batch, out, wait=wait, force=force) as run:
        try:
            done = refresh(run.task, screen.say, lambda one: _drain_on_signals(one, screen))
        finally:
            interruption.heed_again()
        end = RunEnd(0, None, interrupted=done.interrupted)
        quarantine_h = settings.submission.quarantine_h
        task = run.task
        summary = reconcile(task.journal, task.batch, task.rules, run.out, screen, end=end, quarantine_h=quarantine_h)
        run.report.summary = _told(summary, done)
    screen.finish(run.report.summary)


def _told(summary: Summary, done: Refreshed) -> Summary:
    findings = {finding.value: count for finding, count in sorted(done.findings.items())}
    heard = ", ".join(counted_finding(count, finding) for finding, count in findings.items())
    message = say_count(done.asked, "{count:,} enquiries: {findings}.", findings=heard or say("nothing new"))
    if done.stop_reason:
        message += " " + say("It ended early: {reason}", reason=done.stop_reason)
    return replace(
        summary,
        message=f"{message} {summary.message}",
        further={"asked": done.asked, "findings": findings, "no_answer": dict(sorted(done.causes.items()))},
    )


def _drain_on_signals(one: Refresh, screen: Screen) -> None:
    """At a signal, send no new enquiry; wait for those under way."""

    def heed() -> None:
        screen.say(say("Stopping: nothing new is asked; enquiries under way are waited for."))
        one.drain()

    interruption.heed_within(asyncio.get_running_loop(), heed)
    if interruption.came:
        heed()
