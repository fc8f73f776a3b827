"""`paygw-batch verify`: replay the whole journal."""

import click

from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import settings_of
from paygw_batch.cli.screen.progress_bar import bar_on
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.processes import gc_paused
from paygw_batch.report.summary import ExitCode, Summary
from paygw_batch.run.kept_documents import check_kept_orders, check_kept_withdrawals
from paygw_batch.wiring.journal import journal_to_read, verify_trail


@click.command("verify", cls=HelpCommand)
@click.pass_obj
def command(invocation: Invocation) -> None:
    """Replay the whole journal: hash chains, states, totals, signed orders, the inbox and the audit trail.

    If something is damaged, the command says where and ends with exit code 7.
    """
    screen = Screen(invocation, only_shows=True)
    settings = settings_of(invocation)
    with journal_to_read(settings, screen.say) as journal:
        with bar_on(screen.err, "Checking") as progress, gc_paused():
            counted = dict(journal.verify(progress))
        signed_orders = check_kept_orders(journal)
        withdrawals = check_kept_withdrawals(journal)
        trail = verify_trail(settings, journal)
        contradictions = len(journal.messages().contradictions)
    message = "The journal is sound: its chain of facts is whole, and states and totals follow from it."
    if signed_orders:
        counted["signed_orders"] = signed_orders
    if withdrawals:
        counted["withdrawals"] = withdrawals
    if trail is not None:
        message += f" The audit trail is whole; it ends with entry {trail.number}, {trail.hash[:16]}."
        counted["audit_entries"] = trail.number
    if contradictions:
        message += f" It holds {contradictions} contradicting messages: `paygw-batch status` shows them."
    screen.table("", ("checked", "count"), [(what.replace("_", " "), count) for what, count in counted.items()])
    summary = Summary(
        ExitCode.PERSON_NEEDED if contradictions else ExitCode.DONE,
        message,
        further={"checked": counted},
    )
    screen.finish(summary)
