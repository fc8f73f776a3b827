"""Settles one row by the gateway's answer, with the evidence for it.

One person may say that it was paid, because then nothing more is sent. Every other outcome lets the row be sent again,
so it becomes an order that a second person agrees to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from starlette.responses import Response

from paygw_batch.actions.follow_payout import FollowedRow, followed_row, running_now
from paygw_batch.actions.settle_rows import SettleChoice, draft_order, settle_by_word, settle_choices
from paygw_batch.console.pages.agreement import ListedAgreement, signing_key
from paygw_batch.console.pages.settling.orders import CHOICES, FIRST_PERSON, choice_name, drafted_order, open_orders
from paygw_batch.console.permissions import Act
from paygw_batch.console.rendering import Page, state_word, when
from paygw_batch.console.visits import ActRefused, PageNotFound, PageOutdated, Visit, payout_record
from paygw_batch.core.lifecycle import Resolution, State
from paygw_batch.errors import UsageError
from paygw_batch.journal import BatchRecord, JournalReader, RowState
from paygw_batch.language import say
from paygw_batch.run.resolve import Settlement, standings_of
from paygw_batch.run.row_order import Decision
from paygw_batch.wiring.approvals import person, required_line
from paygw_batch.wiring.journal import journal_for_planning, run_journal


@dataclass(frozen=True, slots=True)
class ShownChoice:
    """An outcome to choose, its consequence, and why it is unavailable; empty if it is available."""

    value: str
    name: str
    meaning: str
    shut: str


@dataclass(frozen=True, slots=True)
class SettlePage(Page):
    """The outcomes that a row may be settled with."""

    template: ClassVar[str] = "settle.html"

    record: BatchRecord
    followed: FollowedRow
    standing: RowState
    choices: Sequence[ShownChoice]
    orders: Sequence[ListedAgreement]
    """The open orders about this row."""
    is_running: bool


def settle_form(visit: Visit) -> Response:
    """Show the outcomes that a row may be settled with."""
    settings, number = visit.console.settings, int(visit.path("row"))
    with journal_for_planning(settings) as journal:
        record = payout_record(journal, visit.path("batch"))
        try:
            followed = followed_row(settings, journal, record, number).followed
        except UsageError as error:
            raise PageNotFound(error.message) from None
        choices = (
            [] if followed.state == State.IN_FLIGHT else settle_choices(settings, journal, record, followed.standing)
        )
    return visit.page(
        SettlePage(
            record=record,
            followed=followed,
            standing=followed.standing,
            choices=[
                ShownChoice(
                    one.resolution.value,
                    choice_name(one.resolution),
                    _meaning(one),
                    _why_shut(visit, one.opens, needs_two=one.needs_two),
                )
                for one in choices
            ],
            orders=[one for one in open_orders(visit, record.batch) if number in one.rows],
            is_running=running_now(settings) is not None,
        )
    )


def settle_row(visit: Visit) -> Response:
    """Settle one row as paid, or draft two people's order for any other outcome."""
    batch, row, settings = visit.path("batch"), int(visit.path("row")), visit.console.settings
    said = next((one for one in Resolution if one.value == visit.form.get("said")), None)
    if said is None:
        raise UsageError(say("Choose what the gateway said."), hint="")
    settlement = Settlement(row, said, required_line(visit.form.get("evidence", ""), say("How you know it")))
    if said is Resolution.PAID:
        with run_journal(settings, "console", lambda _sentence: None) as journal:
            if not _is_settled_so(visit, journal, settlement):
                record = _same_row(visit, journal, row)
                settle_by_word(settings, journal, record, [settlement], person(visit.member.name))
        return visit.go_to(f"/payouts/{batch}/rows/{row}")
    if not visit.may(Act.ORDER):
        raise ActRefused(say(FIRST_PERSON))
    with journal_for_planning(settings) as reader:
        record = _same_row(visit, reader, row)
        draft = draft_order(settings, reader, record, [Decision.of(settlement)], signing_key(visit))
    return visit.go_to(f"/orders/{drafted_order(visit, draft).number}")


def _meaning(choice: SettleChoice) -> str:
    """Return the consequence of an outcome: when the row can be retried, and who must agree."""
    again = when(choice.again_from) if choice.again_from else say("now")
    told = say(CHOICES[choice.resolution][1], again=again)
    return f"{told} {say('A second person then approves it.')}" if choice.needs_two else told


def _why_shut(visit: Visit, opens: str, *, needs_two: bool) -> str:
    if opens:
        return say("Not before {at}: until then the gateway may still pay it.", at=when(opens))
    return say(FIRST_PERSON) if needs_two and not visit.may(Act.ORDER) else ""


def _is_settled_so(visit: Visit, journal: JournalReader, settlement: Settlement) -> bool:
    """Whether this person has just settled the row with these words, so that a second click finds it done."""
    record = payout_record(journal, visit.path("batch"))
    row = standings_of(journal, record, [settlement.row]).get(settlement.row)
    deeds = [one for one in journal.history(record.number) if one.row == settlement.row]
    if row is None or row.state is not State.PAID or not deeds:
        return False
    newest, by = deeds[-1], person(visit.member.name)
    said = (newest.kind, newest.by, newest.said, str(newest.attempt))
    return said == ("resolved_paid", by, settlement.said, visit.form.get("attempt"))


def _same_row(visit: Visit, journal: JournalReader, row: int) -> BatchRecord:
    """Return the payout. Raises `PageOutdated` if the row's state or attempt differs from the page's."""
    record = payout_record(journal, visit.path("batch"))
    standing = standings_of(journal, record, [row]).get(row)
    if standing is None:
        return record
    if str(standing.attempt) != visit.form.get("attempt"):
        raise PageOutdated(
            say(
                "Row {row} was sent again since this page was opened: attempt {attempt}.",
                row=row,
                attempt=standing.attempt,
            )
        )
    if standing.state.value != visit.form.get("state"):
        state = state_word(standing.state.value)
        raise PageOutdated(say("Row {row} has changed since this page was opened: {state}.", row=row, state=state))
    return record
