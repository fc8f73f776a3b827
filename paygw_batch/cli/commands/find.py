"""`paygw-batch find`: was this person paid? By name, number or order id, over all batches of the journal."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import force_option, guard_of, settings_of
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.compose.find_payments import MOST_FOUND, payment_search
from paygw_batch.compose.journal import journal_to_read
from paygw_batch.compose.operations import rules_of
from paygw_batch.compose.outputs import OutputKind, Wanted
from paygw_batch.core.batch import PAYIN, PAYOUT
from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import with_separators
from paygw_batch.core.shown_states import shown_state
from paygw_batch.countries.payees import payee_of
from paygw_batch.errors import UsageError
from paygw_batch.files import write_whole
from paygw_batch.journal import FoundPayment
from paygw_batch.report.changes import SHOWN_DIGITS
from paygw_batch.report.remittance import remittance_page
from paygw_batch.report.summary import ExitCode, Summary


@click.command("find", short_help="Was this person paid?")
@click.argument("text", metavar="TEXT", nargs=-1, required=True)
@click.option(
    "--advice",
    type=click.Path(path_type=Path),
    metavar="FILE.html",
    help="Also write a remittance advice to hand over: what was paid to the one person that TEXT fits.",
)
@force_option
@click.pass_obj
def command(invocation: Invocation, *, text: tuple[str, ...], advice: Path | None, force: bool) -> None:
    """Find payments of all batches by TEXT: a payee's name, an account or phone number, or an order id.

    A number may be written in any way: with a plus, a leading zero, blanks. Of a name, the beginnings of its words are
    enough.
    """
    screen = Screen(invocation)
    settings = settings_of(invocation)
    guard_of(invocation, settings, force=force).check(Wanted("--advice", advice, OutputKind.REMITTANCE))
    typed = " ".join(text)
    search = payment_search(typed, [rule.numbers for rule in rules_of(settings, PAYOUT).values()])
    with journal_to_read(settings, screen.say) as journal:
        found = journal.find_payments(search, limit=MOST_FOUND + 1)
    shown, has_more = found[:MOST_FOUND], len(found) > MOST_FOUND
    if advice is not None:
        write_whole(advice, _advice(shown, typed, has_more=has_more).encode())
    if not screen.as_json:
        screen.pages([line for payment in shown for line in _lines(payment)])
    states = Counter(shown_state(payment.state) for payment in shown)
    screen.finish(
        Summary(
            ExitCode.DONE,
            _message(typed, states, has_more=has_more, advice=advice),
            rows=len(shown),
            states=states,
            further={
                "payments": [_told(payment) for payment in shown],
                "has_more": has_more,
                "advice": None if advice is None else str(advice),
            },
        )
    )


def _advice(found: Sequence[FoundPayment], typed: str, *, has_more: bool) -> str:
    """Return the remittance advice for the one person that was found. Others' payments are in none."""
    people = {payee_of(payment.form, payment.fields).person for payment in found}
    if len(people) > 1 or has_more:
        raise UsageError(
            f"{typed!r} fits {len(people)} people: no advice was written, because it would show one what another got.",
            hint="Write the number or the order id.",
        )
    paid = [one for one in found if one.state is State.PAID and one.operation == PAYOUT]
    if not paid:
        raise UsageError(f"No payment that fits {typed!r} is paid: no advice was written.", hint="")
    return remittance_page(payee_of(paid[0].form, paid[0].fields), paid)


def _lines(payment: FoundPayment) -> list[str]:
    """Return a payment as a person reads it."""
    payee = payee_of(payment.form, payment.fields)
    direction = "from" if payment.operation == PAYIN else "to"
    where = f"row {payment.row} of {payment.sheet_name}, batch {payment.batch}"
    order = f"order {payment.sent_orderid or payment.client_orderid}"
    reference = f", reference {payment.gateway_reference}" if payment.gateway_reference else ""
    times = [
        f"{what} {at}"
        for what, at in (("sent", payment.first_sent_at), ("last news", payment.updated_at))
        if at is not None
    ]
    word = shown_state(payment.state).replace("_", " ")
    amount = f"{payment.currency} {with_separators(payment.amount)}"
    lines = [
        f"{word}: {amount} {direction} {payee.name} ({_masked(payee.number)})",
        f"  {order}{reference}; {', '.join(times) or 'never sent'}",
        f"  {where}, opened {payment.opened_at}",
    ]
    if payment.message and payment.state is not State.PAID:
        lines.append(f"  {payment.message}")
    if payment.possible_duplicate_of is not None:
        lines.append(f"  possible duplicate of attempt {payment.possible_duplicate_of}")
    return lines


def _told(payment: FoundPayment) -> dict[str, object]:
    """Return a payment as the JSON has it."""
    payee = payee_of(payment.form, payment.fields)
    return {
        "state": shown_state(payment.state),
        "operation": payment.operation,
        "name": payee.name,
        "number": _masked(payee.number),
        "country": payment.country,
        "currency": payment.currency,
        "amount": payment.amount,
        "client_orderid": payment.client_orderid,
        "sent_orderid": payment.sent_orderid,
        "attempts": payment.attempts,
        "gateway_status": payment.gateway_status,
        "gateway_reference": payment.gateway_reference,
        "error_code": payment.error_code,
        "message": payment.message,
        "possible_duplicate_of": payment.possible_duplicate_of,
        "first_sent_at": payment.first_sent_at,
        "updated_at": payment.updated_at,
        "batch": payment.batch,
        "row": payment.row,
        "sheet": payment.sheet_name,
        "opened_at": payment.opened_at,
    }


def _masked(number: str) -> str:
    """Return a number as screens show it: enough to compare, too little to pay to."""
    return f"...{number[-SHOWN_DIGITS:]}"


def _message(typed: str, states: Counter[str], *, has_more: bool, advice: Path | None) -> str:
    if not states:
        return f"No payment of this journal fits {typed!r}. A row that had defects was never a payment."
    counted = ", ".join(f"{count:,} {state.replace('_', ' ')}" for state, count in states.most_common())
    total = states.total()
    fitting = "1 payment fits" if total == 1 else f"{total:,} payments fit"
    said = f"{fitting} {typed!r}: {counted}."
    if has_more:
        said = f"More than {total:,} payments fit {typed!r}; the newest are shown. Write more of the name, or a number."
    return said if advice is None else f"{said} The remittance advice is in {advice}."
