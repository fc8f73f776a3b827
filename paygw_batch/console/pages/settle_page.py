"""Settles a row in doubt by one person's word, where one is enough: it was paid, and nothing is sent any more."""

from starlette.responses import Response

from paygw_batch.compose.actions.settle_rows import settle_by_word
from paygw_batch.compose.operator import in_words, person
from paygw_batch.compose.run_journal import run_journal
from paygw_batch.console.pages.payout_page import payout_record
from paygw_batch.console.visits import Visit
from paygw_batch.core.lifecycle import Resolution
from paygw_batch.errors import UsageError
from paygw_batch.language import say
from paygw_batch.run.resolve import Settlement

_WORDS = {"paid": Resolution.PAID}
"""The words that one person may say alone. Every other one lets a row be sent again, and takes two people."""


def settle_row(visit: Visit) -> Response:
    """Settle one row with evidence. A run that holds the journal has to end first."""
    batch, row = visit.path("batch"), int(visit.path("row"))
    said = _WORDS.get(visit.form.get("said", ""))
    if said is None:
        raise UsageError(say("Choose what the gateway said."), hint="")
    evidence = in_words(visit.form.get("evidence", ""), say("How you know it"))
    with run_journal(visit.console.settings, "console", lambda _sentence: None) as journal:
        record = payout_record(journal, batch)
        settlement = Settlement(row, said, evidence)
        settle_by_word(visit.console.settings, journal, record, [settlement], person(visit.member.name))
    return visit.go_to(f"/payouts/{batch}/rows/{row}")
