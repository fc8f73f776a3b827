"""`paygw-batch retry`: release rejected rows for another attempt, and send them."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from paygw_batch.actions.continue_batch import prepare_release, release_by_order, release_rejected
from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, NamedFile, WholeNumber
from paygw_batch.cli.options import (
    by_option,
    complete_batches,
    excel_option,
    force_option,
    guard_of,
    require_csv,
    settings_of,
    wait_option,
)
from paygw_batch.cli.screen.approval_plan import document_told, own_key, show_content, show_signatures
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.send_batch import continued, send_and_reconcile
from paygw_batch.errors import UsageError
from paygw_batch.language import say, say_count
from paygw_batch.report.summary import ExitCode, Summary
from paygw_batch.run.release import ReleaseOrder
from paygw_batch.run.signed_document import read_document, write_document
from paygw_batch.settings.configuration import Settings
from paygw_batch.wiring.approvals import person, required_line, required_policy
from paygw_batch.wiring.journal import find_batch, journal_to_read
from paygw_batch.wiring.outputs import OutputKind, RequestedOutput

SHOWN_WAITING = 20
"""The maximum number of listed rows that cannot be released yet, each with the time when they can."""


@click.command("retry", cls=HelpCommand)
@click.argument("batch", shell_complete=complete_batches)
@click.option("--row", "rows", type=WholeNumber(1), multiple=True, help="Only this row of the sheet. Repeatable.")
@click.option("--out", type=NamedFile(), help="Reconciliation file (.csv, .parquet or .xlsx).")
@excel_option
@click.option("--evidence", metavar="TEXT", help="With --order-out: why they may be sent again.")
@click.option("--order-out", type=NamedFile(), help="Write an order for a second person, and send nothing.")
@click.option("--key", type=NamedFile(), help="With --order-out: your private key (Ed25519, PEM).")
@click.option("--order", type=NamedFile(), help="Carry out an order that another person approved.")
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
    evidence: str | None,
    order_out: Path | None,
    key: Path | None,
    order: Path | None,
    by: str | None,
    wait: bool,
    force: bool,
) -> None:
    """Send the rejected rows of BATCH (its id, a prefix of it, or its sheet's path) again.

    Other rows that are ready are also sent, as by `resume`. Rows in doubt are never included. With --order-out the
    release is written as an order: another person approves it, and --order carries it out.
    """
    screen = Screen(invocation)
    require_csv(out, for_excel=for_excel)
    settings = settings_of(invocation)
    who = person(by)
    if order_out is not None or key is not None or evidence is not None:
        if order_out is None or key is None or evidence is None or order is not None:
            raise UsageError(
                say("--order-out ORDER.json, --key KEY and --evidence TEXT belong together, without --order.")
            )
        guard = guard_of(invocation, settings, force=force)
        guard.check(RequestedOutput("--order-out", order_out, OutputKind.ORDER), inputs={say("a key"): key})
        screen.finish(
            _write_order(settings, screen, batch, rows, required_line(evidence, "--evidence"), order_out, key)
        )
    if order is not None and rows:
        raise UsageError(say("--order already names its rows: leave --row out."))
    document = None if order is None else read_document(order, ReleaseOrder)
    with continued(
        invocation, settings, "retry", screen, batch, out, wait=wait, force=force, for_excel=for_excel
    ) as run:
        released = (
            release_rejected(run.task, rows, who) if document is None else release_by_order(run.task, document, who)
        )
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
        further = {"released": released.rows, "waiting": waiting}
        run.report.summary = replace(summary, message=message, further=further)
    screen.finish(run.report.summary)


def _write_order(
    settings: Settings, screen: Screen, batch: str, rows: Sequence[int], evidence: str, out: Path, key: Path
) -> Summary:
    """Write the order to release rows, signed by its maker. Nothing else changes."""
    if out.suffix.lower() != ".json":
        raise UsageError(
            say("{out} does not end in .json.", out=out), hint=say("An order must not overwrite another file.")
        )
    policy = required_policy(settings)
    with journal_to_read(settings) as journal:
        record = find_batch(journal, batch)
        document = prepare_release(settings, journal, record, rows, evidence, own_key(key))
    write_document(document, out)
    show_content(screen, document, policy, settings.submission.quarantine_h)
    show_signatures(screen, document, policy)
    return Summary(
        ExitCode.DONE,
        say(
            "Nothing was released or sent. The order is in {out}: `paygw-batch approve {out} --key KEY` "
            "approves it, and `paygw-batch retry {batch} --order {out}` carries it out.",
            out=shlex.quote(str(out)),
            batch=record.batch,
        ),
        batch=record.batch,
        sheet=record.sheet_name,
        rows=len(document.content.rows),
        further=document_told(document, policy),
    )
