"""Finds the payee of a payment, and writes remittance advices, which list payments to one person."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from paygw_batch.core.batch import PAYOUT, derived_reference
from paygw_batch.core.generator_marks import PageKind
from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import format_amount
from paygw_batch.countries.data import config_dir, read_forms
from paygw_batch.errors import UsageError
from paygw_batch.journal import BatchRecord, FoundPayment, JournalReader
from paygw_batch.language import say, say_count
from paygw_batch.show.page import page


@dataclass(frozen=True, slots=True)
class Payee:
    """The recipient of a payment: a name and an account or phone number, as in the reconciliation."""

    name: str
    number: str

    @property
    def person(self) -> tuple[str, str]:
        """The key that groups payments to the same person: the number, and the name in lower case."""
        return self.number, " ".join(self.name.casefold().split())


_SHOWN_DIGITS = 3


def mask_number(number: str) -> str:
    """Hide all but the last digits of an account or phone number."""
    return f"...{number[-_SHOWN_DIGITS:]}"


def build_payee(form_name: str, fields: Mapping[str, str]) -> Payee:
    """Return the payee in a payment's `fields`. The number is the phone number if there is no account."""
    forms = read_forms(config_dir())
    shown_fields = forms[form_name].shown if form_name in forms else {}  # The fields shown in each column.
    name, account, phone = (
        " ".join(fields[name] for name in shown_fields.get(column, (column,)) if fields.get(name))
        for column in ("account_name", "account_number", "phone")
    )
    return Payee(name, account or phone)


def paid_payouts(payments: Sequence[FoundPayment]) -> Sequence[FoundPayment]:
    """Return only the paid payouts. A remittance advice lists no other payments."""
    return [payment for payment in payments if payment.state is State.PAID and payment.operation == PAYOUT]


def render_batch_advices(
    journal: JournalReader, batch: BatchRecord, payer: str | None, format_day: Callable[[str], str] | None = None
) -> str:
    """Render a remittance advice for each payee of a batch. Raises `UsageError` if there is none."""
    rows = [row.row for row in journal.rows(batch.number, states={State.PAID})]
    groups: dict[tuple[str, str], list[FoundPayment]] = {}
    for payment in paid_payouts(list(journal.payments(batch.number, rows).values())):
        if payment.fields:  # The fields of a forgotten person are empty.
            groups.setdefault(build_payee(payment.form, payment.fields).person, []).append(payment)
    if not groups:
        message = say("No remittance advice was written, because no one was paid or the people have been forgotten.")
        raise UsageError(message, hint="")
    return render_advices([*groups.values()], payer, format_day)


_NAME_PLACEHOLDER = "\0"
"""A placeholder for the payee's name, which the page shows in bold."""


def render_advices(
    groups: Sequence[Sequence[FoundPayment]], payer: str | None, format_day: Callable[[str], str] | None = None
) -> str:
    """Render a remittance advice for each person, each on its own printed page.

    Each of `groups` holds the payments to one person, which the advice lists oldest first. `payer` is the payer's name,
    if known. `format_day` formats a time as a date in the reader's time zone. If None, dates are in UTC.
    """
    return page(PageKind.REMITTANCE, advices=[_build_advice(payments, payer) for payments in groups], day=format_day)


def _describe_payer(payments: Sequence[FoundPayment], payer: str) -> str:
    runs = sorted({name for payment in payments if (name := derived_reference(payment.client_orderid)) is not None})
    if not runs:
        return say("Paid by {payer}.", payer=payer)
    return say_count(
        len(runs),
        "Paid by {payer}, payment run {runs}.",
        "Paid by {payer}, payment runs {runs}.",
        payer=payer,
        runs=", ".join(runs),
    )


def _build_advice(payments: Sequence[FoundPayment], payer: str | None) -> Mapping[str, object]:
    payee, sums = build_payee(payments[0].form, payments[0].fields), dict[str, Decimal]()
    for payment in payments:
        sums[payment.currency] = sums.get(payment.currency, Decimal(0)) + Decimal(payment.amount)
    totals = ", ".join(f"{currency} {format_amount(f'{amount:f}')}" for currency, amount in sorted(sums.items()))
    count_text = say_count(len(payments), "1 payment", "{count:,} payments")
    prefix, _, suffix = say(
        "To {name}, account or phone number {number}.", name=_NAME_PLACEHOLDER, number=payee.number
    ).partition(_NAME_PLACEHOLDER)
    return {
        "payee": payee,
        "to": (prefix, suffix),
        "by": "" if payer is None else _describe_payer(payments, payer),
        "total": say("{count}, {totals} in total, all recorded as paid.", count=count_text, totals=totals),
        "paid": sorted(payments, key=lambda payment: (payment.updated_at or "", payment.client_orderid)),
    }
