"""`paygw-batch find`: searches all batches for payments by name, number or order id."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, PathType
from paygw_batch.cli.options import force_option, output_guard, settings_for
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.clock import format_local_minute
from paygw_batch.core.batch import PAYIN, PAYOUT
from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import format_amount
from paygw_batch.core.shown_states import display_state, format_state_count, render_record, state_label
from paygw_batch.errors import UsageError
from paygw_batch.files import write_atomically
from paygw_batch.journal import FoundPayment
from paygw_batch.language import mark, mark_all, say, say_count
from paygw_batch.opening.given_sheet import rules_for
from paygw_batch.opening.open_journal import open_journal_to_read
from paygw_batch.show.batch_status import MAX_MATCHES, parse_payment_search
from paygw_batch.show.outputs import OutputKind, RequestedOutput
from paygw_batch.show.remittance import build_payee, mask_number, paid_payouts, render_advices
from paygw_batch.show.summary import ExitCode, Summary

_TIME_LABELS = mark_all("sent {time}", "last update {time}")


@click.command("find", cls=HelpCommand)
@click.argument("text", metavar="TEXT", nargs=-1, required=True)
@click.option(
    "--advice",
    type=PathType(),
    metavar="FILE.html",
    help="Also write a remittance advice, if TEXT matches only one person.",
)
@force_option
@click.pass_obj
def find_command(invocation: Invocation, *, text: tuple[str, ...], advice: Path | None, force: bool) -> None:
    """Find payments in all batches. TEXT is a payee's name, an account or phone number, or an order id.

    You can type a number with a plus sign, a leading zero or spaces. For a name, the first letters of one or more of
    its words are enough.
    """
    screen, settings = Screen(invocation, is_read_only=True), settings_for(invocation)
    output_guard(invocation, settings, force=force).check(RequestedOutput("--advice", advice, OutputKind.REMITTANCE))
    query = " ".join(text)
    if not query.strip():
        raise UsageError(say("The search text is empty."), hint=say("Type a name, a number or an order id."))
    search = parse_payment_search(query, [rule.numbers for rule in rules_for(settings, PAYOUT).values()])
    with open_journal_to_read(settings, screen.say) as journal:
        payments = journal.find_payments(search, limit=MAX_MATCHES + 1)
    matches, has_more = payments[:MAX_MATCHES], len(payments) > MAX_MATCHES
    if advice is not None:
        page = _render_advice(matches, query, settings.reporting.payer, has_more=has_more)
        write_atomically(advice, page.encode())
    if not screen.as_json:
        screen.print_pages([line for payment in matches for line in _payment_lines(payment)])
    states = Counter(display_state(payment.state) for payment in matches)
    message = _search_message(query, states, has_more=has_more, advice=advice)
    extra = {
        "payments": [_payment_as_json(payment) for payment in matches],
        "has_more": has_more,
        "advice": None if advice is None else str(advice),
    }
    screen.finish(Summary(ExitCode.DONE, message, rows=len(matches), states=states, extra=extra))


def _render_advice(payments: Sequence[FoundPayment], query: str, payer: str | None, *, has_more: bool) -> str:
    people = {build_payee(payment.form, payment.fields).person for payment in payments}
    if len(people) > 1 or has_more:
        message = say(
            "{typed!r} matches {count} people. No remittance advice was written, because it would show one person what "
            "another was paid.",
            typed=query,
            count=len(people),
        )
        raise UsageError(message, hint=say("Search for the number or the order id instead."))
    if payouts := paid_payouts(payments):
        return render_advices([payouts], payer)
    message = say(
        "No remittance advice was written: none of the payments that match {typed!r} has been paid.", typed=query
    )
    raise UsageError(message, hint="")


def _payment_lines(payment: FoundPayment) -> list[str]:
    payee = build_payee(payment.form, payment.fields)
    order = say("order {order_id}", order_id=payment.sent_orderid or payment.client_orderid)
    if payment.gateway_reference:
        order += say(", reference {reference}", reference=payment.gateway_reference)
    times = [
        say(label, time=format_local_minute(time))
        for label, time in zip(_TIME_LABELS, (payment.first_sent_at, payment.updated_at), strict=True)
        if time is not None
    ]
    values = {
        "state": state_label(display_state(payment.state)),
        "amount": f"{payment.currency} {format_amount(payment.amount)}",
        "name": payee.name,
        "number": mask_number(payee.number),
    }
    template = mark("{state}: {amount} to {name} ({number})")
    if payment.operation == PAYIN:
        template = mark("{state}: {amount} from {name} ({number})")
    location = say(
        "row {row} of {sheet}, batch {batch}, opened {time}",
        row=payment.row,
        sheet=payment.sheet_name,
        batch=payment.batch,
        time=format_local_minute(payment.opened_at),
    )
    lines = [say(template, **values), f"  {order}; {', '.join(times) or say('never sent')}", f"  {location}"]
    if payment.message and payment.state is not State.PAID:
        lines.append(f"  {render_record(payment.message)}")
    if payment.possible_duplicate_of is not None:
        lines.append("  " + say("possible duplicate of attempt {attempt}", attempt=payment.possible_duplicate_of))
    return lines


def _payment_as_json(payment: FoundPayment) -> dict[str, object]:
    payee = build_payee(payment.form, payment.fields)
    return {
        "state": display_state(payment.state),
        "operation": payment.operation,
        "name": payee.name,
        "number": mask_number(payee.number),
        **{name: getattr(payment, name) for name in _COPIED_FIELDS},
        "message": render_record(payment.message or "") or None,
        "sheet": payment.sheet_name,
    }


_COPIED_FIELDS = (
    *("country", "currency", "amount", "client_orderid", "sent_orderid", "attempts", "gateway_status"),
    *("gateway_reference", "error_code", "possible_duplicate_of", "first_sent_at", "updated_at", "batch", "row"),
    "opened_at",
)
"""The fields of a payment that are copied to its JSON."""


def _search_message(query: str, states: Counter[str], *, has_more: bool, advice: Path | None) -> str:
    if not states:
        return say("No payment in this journal matches {typed!r}. Rows with defects are not searched.", typed=query)
    if has_more:
        message = say_count(
            states.total(),
            "Showing the newest of more than {count:,} payments that match {typed!r}. To find others, type more of "
            "the name, or a number.",
            typed=query,
        )
    else:
        message = say_count(
            states.total(),
            "{count:,} payment matches {typed!r}: {states}.",
            "{count:,} payments match {typed!r}: {states}.",
            typed=query,
            states=", ".join(format_state_count(count, state) for state, count in states.most_common()),
        )
    return message if advice is None else f"{message} {say('The remittance advice is in {advice}.', advice=advice)}"
