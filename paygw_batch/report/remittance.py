"""Writes a remittance advice: the payments made to one person, as a page to hand over."""

from collections.abc import Sequence
from decimal import Decimal
from html import escape

from paygw_batch.core.money import with_separators
from paygw_batch.countries.payees import Payee
from paygw_batch.journal import FoundPayment
from paygw_batch.language import say, say_all, say_count
from paygw_batch.report.page import html_table, page, paragraph

_DAY = len("2026-11-22")
_NAME = "\0"
"""In place of the name, which is printed in bold."""


def remittance_page(payee: Payee, paid: Sequence[FoundPayment]) -> str:
    """Return the page for payments that were all paid to one person, the newest last."""
    lines = [
        (
            (payment.updated_at or "")[:_DAY],
            payment.currency,
            with_separators(payment.amount),
            payment.sent_orderid or payment.client_orderid,
            payment.gateway_reference,
        )
        for payment in sorted(paid, key=lambda payment: (payment.updated_at or "", payment.client_orderid))
    ]
    sums: dict[str, Decimal] = {}
    for payment in paid:
        sums[payment.currency] = sums.get(payment.currency, Decimal(0)) + Decimal(payment.amount)
    totals = ", ".join(f"{currency} {with_separators(f'{amount:f}')}" for currency, amount in sorted(sums.items()))
    count = say_count(len(paid), "1 payment", "{count:,} payments")
    to = say("To {name}, account or phone number {number}.", name=_NAME, number=payee.number)
    parts = [
        f"<h1>{say('Remittance advice')}</h1>",
        f"<p>{escape(to).replace(_NAME, f'<b><bdi>{escape(payee.name)}</bdi></b>')}</p>",
        paragraph(say("{count}, {totals} in all. Each of them is recorded as paid.", count=count, totals=totals)),
        html_table(
            say_all("paid on (UTC)", "currency", "amount", "order id", "reference"), lines, right={2}, whole={0}
        ),
    ]
    return page(say("{name}: remittance advice", name=payee.name), parts)
