"""`paygw-batch find`: shows whether a person was paid. It searches all batches by name, number or order id."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, NamedFile
from paygw_batch.cli.options import force_option, guard_of, settings_of
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.clock import local_minute
from paygw_batch.core.batch import PAYIN, PAYOUT
from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import with_separators
from paygw_batch.core.shown_states import counted_state, recorded, shown_state, state_words
from paygw_batch.errors import UsageError
from paygw_batch.files import write_whole
from paygw_batch.journal import FoundPayment
from paygw_batch.language import mark, mark_all, say, say_count
from paygw_batch.opening.given_sheet import rules_of
from paygw_batch.opening.open_journal import journal_to_read
from paygw_batch.show.batch_status import MAX_FOUND, payment_search
from paygw_batch.show.outputs import OutputKind, RequestedOutput
from paygw_batch.show.remittance import masked, paid_out, payee_of, remittance_page
from paygw_batch.show.summary import ExitCode, Summary

_TIMES = mark_all("sent {time}", "last update {time}")


@click.command("find", cls=HelpCommand)
@click.argument("text", metavar="TEXT", nargs=-1, required=True)
@click.option(
    "--advice",
    type=NamedFile(),
    metavar="FILE.html",
    help="Also write a remittance advice for the one person that TEXT matches.",
)
@force_option
@click.pass_obj
def find_command(invocation: Invocation, *, text: tuple[str, ...], advice: Path | None, force: bool) -> None:
    """Find payments in all batches by TEXT: a payee's name, an account or phone number, or an order id.

    A number can have a plus, a leading zero or spaces. For a name, the first letters of its words are enough.
    """
    screen, settings = Screen(invocation, only_shows=True), settings_of(invocation)
    guard_of(invocation, settings, force=force).check(RequestedOutput("--advice", advice, OutputKind.REMITTANCE))
    typed = " ".join(text)
    if not typed.strip():
        raise UsageError(say("The text to find is empty."), hint=say("Type a name, a number or an order id."))
    search = payment_search(typed, [rule.numbers for rule in rules_of(settings, PAYOUT).values()])
    with journal_to_read(settings, screen.say) as journal:
        payments = journal.find_payments(search, limit=MAX_FOUND + 1)
    shown, has_more = payments[:MAX_FOUND], len(payments) > MAX_FOUND
    if advice is not None:
        write_whole(advice, _advice(shown, typed, has_more=has_more).encode())
    if not screen.as_json:
        screen.pages([line for payment in shown for line in _lines(payment)])
    states = Counter(shown_state(payment.state) for payment in shown)
    message = _message(typed, states, has_more=has_more, advice=advice)
    further = {
        "payments": [_payment_as_json(payment) for payment in shown],
        "has_more": has_more,
        "advice": None if advice is None else str(advice),
    }
    screen.finish(Summary(ExitCode.DONE, message, rows=len(shown), states=states, further=further))


def _advice(payments: Sequence[FoundPayment], typed: str, *, has_more: bool) -> str:
    """Return the remittance advice for the one person found. Raises `UsageError` for several people or none."""
    people = {payee_of(payment.form, payment.fields).person for payment in payments}
    if len(people) > 1 or has_more:
        raise UsageError(
            say(
                "{typed!r} matches {count} people. No advice was written, because it would show one person "
                "another's pay.",
                typed=typed,
                count=len(people),
            ),
            hint=say("Write the number or the order id."),
        )
    if paid := paid_out(payments):
        return remittance_page([paid])
    raise UsageError(say("No payment that matches {typed!r} is paid, so no advice was written.", typed=typed), hint="")


def _lines(payment: FoundPayment) -> list[str]:
    payee = payee_of(payment.form, payment.fields)
    order = say("order {order_id}", order_id=payment.sent_orderid or payment.client_orderid)
    if payment.gateway_reference:
        order += say(", reference {reference}", reference=payment.gateway_reference)
    times = [
        say(template, time=local_minute(at))
        for template, at in zip(_TIMES, (payment.first_sent_at, payment.updated_at), strict=True)
        if at is not None
    ]
    paid = {
        "state": state_words(shown_state(payment.state)),
        "amount": f"{payment.currency} {with_separators(payment.amount)}",
        "name": payee.name,
        "number": masked(payee.number),
    }
    is_from = payment.operation == PAYIN
    words = (
        mark("{state}: {amount} from {name} ({number})") if is_from else mark("{state}: {amount} to {name} ({number})")
    )
    where = say(
        "row {row} of {sheet}, batch {batch}, opened {time}",
        row=payment.row,
        sheet=payment.sheet_name,
        batch=payment.batch,
        time=local_minute(payment.opened_at),
    )
    lines = [say(words, **paid), f"  {order}; {', '.join(times) or say('never sent')}", f"  {where}"]
    if payment.message and payment.state is not State.PAID:
        lines.append(f"  {recorded(payment.message)}")
    if payment.possible_duplicate_of is not None:
        lines.append("  " + say("possible duplicate of attempt {attempt}", attempt=payment.possible_duplicate_of))
    return lines


def _payment_as_json(payment: FoundPayment) -> dict[str, object]:
    payee = payee_of(payment.form, payment.fields)
    return {
        "state": shown_state(payment.state),
        "operation": payment.operation,
        "name": payee.name,
        "number": masked(payee.number),
        **{name: getattr(payment, name) for name in _AS_KEPT},
        "message": recorded(payment.message or "") or None,
        "sheet": payment.sheet_name,
    }


_AS_KEPT = (
    *("country", "currency", "amount", "client_orderid", "sent_orderid", "attempts", "gateway_status"),
    *("gateway_reference", "error_code", "possible_duplicate_of", "first_sent_at", "updated_at", "batch", "row"),
    "opened_at",
)
"""The members of a payment in the JSON that have the journal's values unchanged."""


def _message(typed: str, states: Counter[str], *, has_more: bool, advice: Path | None) -> str:
    if not states:
        return say("No payment in this journal matches {typed!r}. Rows with defects are not searched.", typed=typed)
    if has_more:
        sentence = say_count(
            states.total(),
            "More than {count:,} payments match {typed!r}; the newest are shown. Type more of the name, or a number.",
            typed=typed,
        )
    else:
        sentence = say_count(
            states.total(),
            "{count:,} payment matches {typed!r}: {states}.",
            "{count:,} payments match {typed!r}: {states}.",
            typed=typed,
            states=", ".join(counted_state(count, state) for state, count in states.most_common()),
        )
    return sentence if advice is None else f"{sentence} {say('The remittance advice is in {advice}.', advice=advice)}"
