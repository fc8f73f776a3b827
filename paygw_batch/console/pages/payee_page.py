"""Was this person paid? A search over all payouts, and a remittance advice to hand over."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from starlette.responses import Response

from paygw_batch.actions.find_payments import payment_search
from paygw_batch.console.rendering import Page
from paygw_batch.console.visits import Visit, account_filter
from paygw_batch.core.batch import PAYOUT
from paygw_batch.core.lifecycle import State
from paygw_batch.core.shown_states import shown_state
from paygw_batch.errors import UsageError
from paygw_batch.journal import FoundPayment
from paygw_batch.language import say
from paygw_batch.report.remittance import Payee, payee_of, remittance_page
from paygw_batch.wiring.journal import journal_for_planning

_SHORTEST = 2
SHOWN_PAYMENTS = 100
"""The maximum number of payments on a page; for a person with more of them, type more of the name."""


@dataclass(frozen=True, slots=True)
class PayeePage(Page):
    """The payments that match a name, a number or an order id."""

    template: ClassVar[str] = "payee.html"

    typed: str
    is_asked: bool
    has_more: bool
    found: Sequence[tuple[Payee, str, FoundPayment]]
    """Each payment with its payee and its state."""
    has_advice: bool
    """Whether exactly one person was paid, who can be given a remittance advice."""
    account: Callable[[str], str]


def find_payee(visit: Visit) -> Response:
    """Show the payments that match a name, a number or an order id."""
    typed = visit.query("text").strip()
    found = _found(visit, typed)
    people = {payee_of(one.form, one.fields).person for one in found}
    return visit.page(
        PayeePage(
            typed=typed,
            is_asked=len(typed) >= _SHORTEST,
            has_more=len(found) > SHOWN_PAYMENTS,
            found=[(payee_of(one.form, one.fields), shown_state(one.state), one) for one in found[:SHOWN_PAYMENTS]],
            has_advice=len(people) == 1 and bool(_paid(found)),
            account=account_filter(visit),
        )
    )


def remittance_advice(visit: Visit) -> Response:
    """Return the remittance advice for the only person that a text matches. It never has other people's payments."""
    typed = visit.query("text").strip()
    found = _found(visit, typed)
    paid = _paid(found)
    if len({payee_of(one.form, one.fields).person for one in found}) != 1 or not paid:
        raise UsageError(
            say("The text matches no one who was paid, or several people."),
            hint=say("Write the number or the order id."),
        )
    page = remittance_page(payee_of(paid[0].form, paid[0].fields), paid)
    headers = {"content-disposition": 'attachment; filename="remittance-advice.html"'}
    return Response(page, media_type="text/html; charset=utf-8", headers=headers)


def _found(visit: Visit, typed: str) -> Sequence[FoundPayment]:
    if len(typed) < _SHORTEST:
        return []
    search = payment_search(typed, [rule.numbers for rule in visit.console.rules.values()])
    with journal_for_planning(visit.console.settings) as journal:
        return journal.find_payments(search, limit=SHOWN_PAYMENTS + 1)


def _paid(found: Sequence[FoundPayment]) -> Sequence[FoundPayment]:
    return [one for one in found if one.state is State.PAID and one.operation == PAYOUT]
