"""`paygw-batch verify`: replay the whole journal."""

import click

from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import settings_of
from paygw_batch.cli.screen.progress_bar import bar_on
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.core.shown_states import state_words
from paygw_batch.language import mark, mark_all, say, say_count
from paygw_batch.processes import gc_paused
from paygw_batch.report.summary import ExitCode, Summary
from paygw_batch.run.kept_documents import check_kept_orders, check_kept_withdrawals
from paygw_batch.wiring.journal import journal_to_read

_COUNTED = {
    "instructions": mark("instructions"),
    "order_ids": mark("order ids"),
    "contradictions": mark("contradictions"),
    "batches": mark("batches"),
    "pages": mark("pages"),
    "facts": mark("facts"),
    "evidence": mark("evidence"),
    "notifications_waiting": mark("notifications waiting"),
    "signed_orders": mark("signed orders"),
    "withdrawals": mark("withdrawals"),
    "audit_entries": mark("entries of the audit trail"),
}
"""The counts shown in addition to the rows in each state."""


def _counted_words(what: str) -> str:
    known = _COUNTED.get(what)
    return state_words(what) if known is None else say(known)


@click.command("verify", cls=HelpCommand)
@click.pass_obj
def command(invocation: Invocation) -> None:
    """Replay the whole journal: hash chains, states, totals, signed orders, and the audit trail.

    If something is damaged, the command says where and ends with exit code 7.
    """
    screen = Screen(invocation, only_shows=True)
    settings = settings_of(invocation)
    with journal_to_read(settings, screen.say) as journal:
        with bar_on(screen.err, say("Checking")) as progress, gc_paused():
            counted = dict(journal.verify(progress))
        signed_orders = check_kept_orders(journal)
        withdrawals = check_kept_withdrawals(journal)
        entries = journal.acts(limit=1) if counted.get("audit_entries") else ()
        contradictions = len(journal.messages().contradictions)
    message = say("The journal is sound: its chain of facts is intact, and states and totals follow from it.")
    if signed_orders:
        counted["signed_orders"] = signed_orders
    if withdrawals:
        counted["withdrawals"] = withdrawals
    for newest in entries:
        message += say(
            " The audit trail is intact; it ends with entry {number}, {hash}.",
            number=newest.number,
            hash=newest.hash[:16],
        )
    if contradictions:
        message += say_count(
            contradictions,
            " It holds {count:,} contradicting message: `paygw-batch status` shows it.",
            " It holds {count:,} contradicting messages: `paygw-batch status` shows them.",
        )
    lines = [(_counted_words(what), count) for what, count in counted.items()]
    screen.table("", mark_all("checked", "count"), lines)
    summary = Summary(
        ExitCode.PERSON_NEEDED if contradictions else ExitCode.DONE,
        message,
        further={"checked": counted},
    )
    screen.finish(summary)
