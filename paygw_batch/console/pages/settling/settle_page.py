"""Settles one row by the answer of the gateway, with the evidence for it.

That it was paid is one person's word: nothing is sent any more. Every other word lets the row be sent again: it becomes
an order, which a second person agrees to.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.responses import Response

from paygw_batch.compose.actions.follow_payout import BEING_SENT, followed_row, running_now
from paygw_batch.compose.actions.settle_rows import draft_order, settle_by_word, settle_choices
from paygw_batch.compose.journal import journal_to_plan_with
from paygw_batch.compose.operator import in_words, person
from paygw_batch.compose.run_journal import run_journal
from paygw_batch.console.pages.document_signing import signing_key
from paygw_batch.console.pages.payout_page import payout_record
from paygw_batch.console.pages.settling.open_orders import drafted_order, open_orders
from paygw_batch.console.permissions import Act
from paygw_batch.console.rendering import when
from paygw_batch.console.visits import ActRefused, PageNotFound, Visit
from paygw_batch.core.lifecycle import Resolution
from paygw_batch.errors import UsageError
from paygw_batch.journal import BatchRecord, JournalReader
from paygw_batch.language import mark, mark_all, say
from paygw_batch.run.resolve import Settlement, standings_of

FIRST_PERSON = mark("Somebody who prepares payouts has to begin this; another person agrees.")
_CHOICES: Mapping[Resolution, tuple[str, ...]] = {
    Resolution.PAID: mark_all("It was paid", "Nothing is sent any more."),
    Resolution.REJECTED: mark_all(
        "It was rejected", "No money left. The row can be tried again, later. A second person agrees."
    ),
    Resolution.NOT_RECEIVED: mark_all(
        "They never had it", "The row can be sent again at once. A second person agrees."
    ),
}
"""Word -> its name on the pages, and the consequence."""


@dataclass(frozen=True, slots=True)
class ShownChoice:
    """A word that a person may choose, the consequence, and why it is shut; empty: it is not."""

    value: str
    name: str
    meaning: str
    shut: str


def choice_name(resolution: Resolution) -> str:
    """Return the name of a word on the pages."""
    return say(_CHOICES[resolution][0])


def settle_form(visit: Visit) -> Response:
    """Show the words by which a row may be settled."""
    settings, number = visit.console.settings, int(visit.path("row"))
    with journal_to_plan_with(settings) as journal:
        record = payout_record(journal, visit.path("batch"))
        try:
            followed = followed_row(settings, journal, record, number).followed
        except UsageError as error:
            raise PageNotFound(error.message) from None
        choices = [] if followed.state == BEING_SENT else settle_choices(settings, journal, record, followed.standing)
    return visit.page(
        "settle.html",
        record=record,
        followed=followed,
        standing=followed.standing,
        choices=[
            ShownChoice(
                one.resolution.value,
                choice_name(one.resolution),
                say(_CHOICES[one.resolution][1]),
                _why_shut(visit, one.opens, needs_two=one.needs_two),
            )
            for one in choices
        ],
        orders=[one for one in open_orders(visit, record.batch) if number in one.rows],
        is_running=running_now(settings) is not None,
    )


def settle_row(visit: Visit) -> Response:
    """Settle one row as paid, or draft the order of two people that settles it in another way."""
    batch, row, settings = visit.path("batch"), int(visit.path("row")), visit.console.settings
    said = next((one for one in Resolution if one.value == visit.form.get("said")), None)
    if said is None:
        raise UsageError(say("Choose what the gateway said."), hint="")
    settlement = Settlement(row, said, in_words(visit.form.get("evidence", ""), say("How you know it")))
    if said is Resolution.PAID:
        with run_journal(settings, "console", lambda _sentence: None) as journal:
            record = _same_attempt(visit, journal, row)
            settle_by_word(settings, journal, record, [settlement], person(visit.member.name))
        return visit.go_to(f"/payouts/{batch}/rows/{row}")
    if not visit.may(Act.ORDER):
        raise ActRefused(say(FIRST_PERSON))
    with journal_to_plan_with(settings) as reader:
        record = _same_attempt(visit, reader, row)
        draft = draft_order(settings, reader, record, [settlement], signing_key(visit))
    return visit.go_to(f"/orders/{drafted_order(visit, draft).number}")


def _why_shut(visit: Visit, opens: str, *, needs_two: bool) -> str:
    if opens:
        return say("Shut until {at}: until then the gateway can still pay it.", at=when(opens))
    return say(FIRST_PERSON) if needs_two and not visit.may(Act.ORDER) else ""


def _same_attempt(visit: Visit, journal: JournalReader, row: int) -> BatchRecord:
    """Return the payout. Raises `UsageError` for a form about another attempt than the latest one."""
    record = payout_record(journal, visit.path("batch"))
    standing = standings_of(journal, record, [row]).get(row)
    if standing is not None and str(standing.attempt) != visit.form.get("attempt"):
        raise UsageError(
            say("The row was sent again since this page was opened. Open it again, and look once more."), hint=""
        )
    return record
