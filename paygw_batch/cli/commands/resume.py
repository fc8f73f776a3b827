"""`paygw-batch resume`: continue a batch from the journal alone, without the sheet."""

import os
from pathlib import Path

import click

from paygw_batch.cli.completions import complete_batches
from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import force_option, guard_of, settings_of, wait_option
from paygw_batch.cli.runs.run_report import reported
from paygw_batch.cli.runs.send_batch import checked_out, send_and_reconcile
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.compose.gateway import gateway_of, signer_key
from paygw_batch.compose.outputs import OutputKind, Wanted
from paygw_batch.compose.parts import find_batch, require_gateway, rules_of, run_journal
from paygw_batch.compose.send import Task
from paygw_batch.errors import UsageError
from paygw_batch.journal import BatchRecord, JournalReader


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
    guard = guard_of(invocation, settings, force=force)
    guard.check(Wanted("--out", out, OutputKind.RECONCILIATION), reporting=True)
    require_gateway(settings)
    with reported(settings, "resume", screen) as report:
        signer_key(settings, os.environ)
        with run_journal(settings, "resume", screen.say, wait=wait) as journal:
            record = find_batch(journal, batch) if batch else _unfinished(journal)
            rules = rules_of(settings, record.operation)
            out = checked_out(guard, out, record)
            with gateway_of(settings, rules, os.environ) as connection:
                report.summary = send_and_reconcile(Task(settings, rules, connection, journal, record), out, screen)
    screen.finish(report.summary)


def _unfinished(journal: JournalReader) -> BatchRecord:
    records = journal.batches()
    found = [record for record in records if journal.due_counts(record.number)]
    if len(found) == 1:
        return found[0]
    if not found and records:
        return records[-1]
    if not found:
        raise UsageError("The journal has no batch yet.", hint="`paygw-batch submit SHEET` starts one.")
    names = ", ".join(f"{record.batch} ({record.sheet_name})" for record in found)
    raise UsageError(f"Several batches have rows to send: {names}.", hint="Name one: `paygw-batch resume BATCH`.")
