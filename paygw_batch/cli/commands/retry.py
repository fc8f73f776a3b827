"""`paygw-batch retry`: release rejected rows for another attempt, and send them."""

import os
from dataclasses import replace
from pathlib import Path

import click

from paygw_batch.cli.completions import complete_batches
from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import by_option, force_option, guard_of, settings_of, wait_option
from paygw_batch.cli.runs.run_report import reported
from paygw_batch.cli.runs.send_batch import checked_out, send_and_reconcile
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.clock import timestamp
from paygw_batch.compose.gateway import gateway_of, signer_key
from paygw_batch.compose.operator import person
from paygw_batch.compose.outputs import OutputKind, Wanted
from paygw_batch.compose.parts import find_batch, require_complete, require_gateway, rules_of, run_journal, utc_now
from paygw_batch.compose.send import Task
from paygw_batch.core.lifecycle import State
from paygw_batch.journal import BatchRecord, Journal, JournalReader
from paygw_batch.run.release import check_releasable, quarantined, waiting_sentence
from paygw_batch.run.resolve import left_until
from paygw_batch.settings.configuration import Settings

SHOWN_WAITING = 20
"""Of so many rows that cannot be released yet it is said from when on they can be."""


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
    guard = guard_of(invocation, settings, force=force)
    guard.check(Wanted("--out", out, OutputKind.RECONCILIATION), reporting=True)
    require_gateway(settings)
    with reported(settings, "retry", screen) as report:
        signer_key(settings, os.environ)
        with run_journal(settings, "retry", screen.say, wait=wait) as journal:
            record = find_batch(journal, batch)
            rules = rules_of(settings, record.operation)
            quarantine_h = settings.submission.quarantine_h
            check_releasable(journal, record, rows, quarantine_h=quarantine_h, now=utc_now)
            out = checked_out(guard, out, record)
            require_complete(settings, rules, _countries(journal, record))
            with gateway_of(settings, rules, os.environ) as connection:
                released = _release(settings, journal, record, rows, who)
                said = f"{released:,} rejected rows are released." if released else "There is no rejected row to retry."
                waiting = [
                    waiting_sentence(row, quarantine_h)
                    for row in quarantined(journal, record, quarantine_h=quarantine_h, now=utc_now).values()
                ]
                screen.say(" ".join([said, *waiting[:SHOWN_WAITING]]))
                summary = send_and_reconcile(Task(settings, rules, connection, journal, record), out, screen)
            why = f"{len(waiting):,} rejected rows have to wait" if waiting else "no row is rejected"
            told = summary.message if released else f"Nothing to retry: {why}. {summary.message}"
            report.summary = replace(summary, message=told, further={"released": released, "waiting": len(waiting)})
    screen.finish(report.summary)


def _countries(journal: JournalReader, record: BatchRecord) -> set[str]:
    """Return the countries of the rows that could be sent."""
    to_send = {State.READY, State.REJECTED}
    return {tally.country for tally in journal.tallies(record.number) if tally.state in to_send}


def _release(settings: Settings, journal: Journal, record: BatchRecord, rows: tuple[int, ...], who: str) -> int:
    """Release the rejected rows of a batch (all, or those named), and return how many there were."""
    suffix = settings.retry.order_id == "suffix"
    now = utc_now()
    until = left_until(settings.submission.quarantine_h, now)
    return journal.release(record.number, rows or None, suffix=suffix, by=who, at=timestamp(now), left_until=until)
