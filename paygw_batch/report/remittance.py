"""Writes a remittance advice: the payments made to one person, as a page to hand over."""

from collections.abc import Sequence
from decimal import Decimal
from html import escape

from paygw_batch.core.money import with_separators
from paygw_batch.countries.payees import Payee
from paygw_batch.journal import FoundPayment
from paygw_batch.report.page import html_table, page, paragraph

_DAY = len("2026-11-22")


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
    count = "1 payment" if len(paid) == 1 else f"{len(paid):,} payments"
    parts = [
        "<h1>Remittance advice</h1>",
        f"<p>To <b><bdi>{escape(payee.name)}</bdi></b>, account or phone number {escape(payee.number)}.</p>",
        paragraph(f"{count}, {totals} in all. Each of them is recorded as paid."),
        html_table(("paid on (UTC)", "currency", "amount", "order id", "reference"), lines, right={2}, whole={0}),
    ]
    return page(f"{payee.name}: remittance advice", parts)
