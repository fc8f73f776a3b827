"""`paygw-batch refresh`: ask the gateway for the outcome of rows that are accepted or in doubt."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import click

from paygw_batch.actions.batch_status import batch_summary
from paygw_batch.actions.refresh_run import refresh, refresh_all, require_enquiry
from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, NamedFile
from paygw_batch.cli.options import complete_batches, force_option, guard_of, settings_of, wait_option
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.send_batch import continued, held, reconcile
from paygw_batch.cli.signals import interruption
from paygw_batch.core.shown_states import counted_finding
from paygw_batch.countries.load import minor_units_by_currency
from paygw_batch.engine.engine import RunEnd
from paygw_batch.errors import UsageError
from paygw_batch.language import say, say_count
from paygw_batch.report.summary import ExitCode, Summary, worst
from paygw_batch.run.refresh import Refresh, Refreshed
from paygw_batch.settings.configuration import Settings
from paygw_batch.wiring.operations import require_gateway
from paygw_batch.wiring.signing import signer_key


@click.command("refresh", cls=HelpCommand)
@click.argument("batch", required=False, shell_complete=complete_batches)
@click.option("--out", type=NamedFile(), help="Reconciliation file (.csv, .parquet or .xlsx).")
@wait_option
@force_option
@click.pass_obj
def command(invocation: Invocation, *, batch: str | None, out: Path | None, wait: bool, force: bool) -> None:
    """Ask the gateway about the rows of BATCH that are accepted or in doubt, until each has a final answer.

    Without BATCH it asks once about such rows of every batch, and writes no reconciliation.

    Off unless the configuration names a [status_enquiry] profile. It never sends or releases a row.
    """
    screen = Screen(invocation)
    settings = settings_of(invocation)
    require_enquiry(settings)
    if batch is None:
        if out is not None:
            raise UsageError(say("--out needs BATCH: without it, no reconciliation is written."))
        screen.finish(_all_batches(invocation, settings, screen, wait=wait))
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


def _all_batches(invocation: Invocation, settings: Settings, screen: Screen, *, wait: bool) -> Summary:
    """Ask once about the open rows of every batch, and return the summary."""
    guard_of(invocation, settings).check(reporting=True)
    require_gateway(settings)
    signer_key(settings, os.environ)
    every, codes, units = Refreshed(), set[ExitCode](), minor_units_by_currency()
    with held(settings, "refresh", screen, wait=wait) as (journal, report):
        try:
            for record, done in refresh_all(
                settings, journal, os.environ, screen.say, lambda one: _drain_on_signals(one, screen)
            ):
                every.asked += done.asked
                every.findings.update(done.findings)
                every.causes.update(done.causes)
                codes.add(batch_summary(journal, record, units).exit_code)
                codes |= {ExitCode.INTERRUPTED} if done.interrupted else set()
        finally:
            interruption.heed_again()
        report.summary = _told(Summary(worst(codes & _OF_ASKING), ""), every)
    return report.summary


_OF_ASKING = frozenset({ExitCode.PERSON_NEEDED, ExitCode.INTERRUPTED})
"""The possible exit codes of asking about all batches: a row is still in doubt, or an interruption."""


def _told(summary: Summary, done: Refreshed) -> Summary:
    findings = {finding.value: count for finding, count in sorted(done.findings.items())}
    heard = ", ".join(counted_finding(count, finding) for finding, count in findings.items())
    message = say_count(done.asked, "{count:,} enquiries: {findings}.", findings=heard or say("nothing new"))
    if done.stop_reason:
        message += " " + say("It ended early: {reason}", reason=done.stop_reason)
    return replace(
        summary,
        message=f"{message} {summary.message}".strip(),
        further={"asked": done.asked, "findings": findings, "no_answer": dict(sorted(done.causes.items()))},
    )


def _drain_on_signals(one: Refresh, screen: Screen) -> None:
    """At a signal, send no new enquiry and wait for those under way."""

    def heed() -> None:
        screen.say(say("Stopping: no new enquiries are started. Waiting for those under way."))
        one.drain()

    interruption.heed_within(asyncio.get_running_loop(), heed)
    if interruption.came:
        heed()
