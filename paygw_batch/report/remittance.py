"""Writes a remittance advice: what was paid to one person, as a page to hand over."""

from collections.abc import Sequence
from decimal import Decimal
from html import escape

from paygw_batch.journal import FoundPayment
from paygw_batch.report.html import PAGE_STYLE, html_table
from paygw_batch.run.find_payments import Payee

REMITTANCE_TITLE = "remittance advice"
_DAY = len("2026-11-22")


def remittance_page(payee: Payee, paid: Sequence[FoundPayment]) -> str:
    """Return the page for payments that were all paid to one person: no script, no other file, nothing fetched."""
    newest_last = sorted(paid, key=lambda payment: (payment.updated_at or "", payment.client_orderid))
    lines = [
        (
            (payment.updated_at or "")[:_DAY],
            f"{payment.currency} {Decimal(payment.amount):,}",
            payment.sent_orderid or payment.client_orderid,
            payment.gateway_reference,
        )
        for payment in newest_last
    ]
    sums: dict[str, Decimal] = {}
    for payment in paid:
        sums[payment.currency] = sums.get(payment.currency, Decimal(0)) + Decimal(payment.amount)
    totals = ", ".join(f"{currency} {amount:,}" for currency, amount in sorted(sums.items()))
    count = "1 payment" if len(paid) == 1 else f"{len(paid):,} payments"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        '<meta name="viewport" content="width=device-width">',
        f"<title>{escape(payee.name)}: {REMITTANCE_TITLE}</title><style>{PAGE_STYLE}</style></head><body>",
        "<h1>Remittance advice</h1>",
        f"<p>To <b><bdi>{escape(payee.name)}</bdi></b>, account or phone number {escape(payee.number)}.</p>",
        f"<p>{count}, {escape(totals)} in all. Each of them is recorded as paid.</p>",
        html_table(("paid on (UTC)", "amount", "order id", "reference"), lines, right={1}),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"
