"""Finds the payee in the fields of a payment, and writes remittance advices: pages with the payments to a person."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from paygw_batch.core.batch import PAYOUT
from paygw_batch.core.generator_marks import PageKind
from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import with_separators
from paygw_batch.countries.data import config_dir, read_forms
from paygw_batch.errors import UsageError
from paygw_batch.journal import BatchRecord, FoundPayment, JournalReader
from paygw_batch.language import say, say_count
from paygw_batch.show.page import page


@dataclass(frozen=True, slots=True)
class Payee:
    """The recipient of a payment: a name, and an account or phone number, as the reconciliation shows them."""

    name: str
    number: str

    @property
    def person(self) -> tuple[str, str]:
        """The key by which payments to one person are grouped: the number, and the name regardless of case."""
        return self.number, " ".join(self.name.casefold().split())


_SHOWN_DIGITS = 3


def masked(number: str) -> str:
    """Return the last digits of an account or phone number: enough to compare numbers, too few to pay anybody."""
    return f"...{number[-_SHOWN_DIGITS:]}"


def payee_of(form: str, fields: Mapping[str, str]) -> Payee:
    """Return the payee in the fields of a payment with this form. Without an account, the number is the phone's."""
    forms = read_forms(config_dir())
    shown = forms[form].shown if form in forms else {}  # the fields whose texts a column shows instead of its own
    name, account, phone = (
        " ".join(fields[name] for name in shown.get(column, (column,)) if fields.get(name))
        for column in ("account_name", "account_number", "phone")
    )
    return Payee(name, account or phone)


def paid_out(payments: Sequence[FoundPayment]) -> Sequence[FoundPayment]:
    """Return the payments that a remittance advice may list: payouts that are paid."""
    return [payment for payment in payments if payment.state is State.PAID and payment.operation == PAYOUT]


def advices_of_batch(journal: JournalReader, batch: BatchRecord, day: Callable[[str], str] | None = None) -> str:
    """Return the advices to all payees of a batch, in the sheet's order. Raises `UsageError` if nobody was paid."""
    rows = [row.row for row in journal.rows(batch.number, states={State.PAID})]
    people: dict[tuple[str, str], list[FoundPayment]] = {}
    for payment in paid_out(list(journal.payments(batch.number, rows).values())):
        if payment.fields:  # otherwise this person was forgotten
            people.setdefault(payee_of(payment.form, payment.fields).person, []).append(payment)
    if not people:
        raise UsageError(say("Nothing is paid, or the people were forgotten, so no advice was written."), hint="")
    return remittance_page([*people.values()], day)


_NAME = "\0"
"""A placeholder for the payee's name, which the page prints in bold."""


def remittance_page(people: Sequence[Sequence[FoundPayment]], day: Callable[[str], str] | None = None) -> str:
    """Return a page with an advice for each person. Each advice prints on a sheet of its own.

    `people` has the payments to each person, all of them paid; an advice lists the newest last. `day` returns the day
    of a time in the reader's time zone. If it is None, days are in UTC, as in the journal.
    """
    return page(PageKind.REMITTANCE, advices=[_advice(paid) for paid in people], day=day)


def _advice(paid: Sequence[FoundPayment]) -> Mapping[str, object]:
    payee, sums = payee_of(paid[0].form, paid[0].fields), dict[str, Decimal]()
    for payment in paid:
        sums[payment.currency] = sums.get(payment.currency, Decimal(0)) + Decimal(payment.amount)
    totals = ", ".join(f"{currency} {with_separators(f'{amount:f}')}" for currency, amount in sorted(sums.items()))
    count = say_count(len(paid), "1 payment", "{count:,} payments")
    before, _, after = say("To {name}, account or phone number {number}.", name=_NAME, number=payee.number).partition(
        _NAME
    )
    return {
        "payee": payee,
        "to": (before, after),
        "total": say("{count}, {totals} in all. Each of them is recorded as paid.", count=count, totals=totals),
        "paid": sorted(paid, key=lambda payment: (payment.updated_at or "", payment.client_orderid)),
    }
