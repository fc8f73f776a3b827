"""The control hash of a collection: SHA-256 over order id, amount and currency.

Source: section 5 of the gateway's interface. What it does not show (the order, what stands between the parts, how the
amount is written, whether a secret is mixed in) is the operator's word, without a default.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum

from paygw_batch.core.money import to_minor, with_two_decimals


class ControlPart(StrEnum):
    """What the hash is taken over."""

    ORDER_ID = "client_orderid"
    AMOUNT = "amount"
    CURRENCY = "currency"
    SECRET = "secret"  # noqa: S105 (the name of a part, not a secret)
    """What only the merchant and the gateway know. Whether there is one shows by its standing in the order."""


class ControlAmount(StrEnum):
    """How the amount is written where the hash is taken over it."""

    AS_SENT = "as-sent"
    """As it stands in the body."""
    TWO_DECIMALS = "two-decimals"
    """With two decimals, whatever the currency has."""
    MINOR_UNITS = "minor-units"
    """In whole minor units: 1500.50 KES is 150050, and 1500 UGX, which has none, is 1500."""


@dataclass(frozen=True, slots=True)
class ControlProfile:
    """How the hash is computed. `secret` is not shown, and is empty where `order` does not name it."""

    order: tuple[ControlPart, ...]
    separator: str
    amount: ControlAmount
    secret: str = field(default="", repr=False)

    def text(self, *, order_id: str, amount: str, amount_sent: str, currency: str, minor_units: int) -> str:
        """Return what the hash is taken over. `amount` has the sheet's digits, `amount_sent` is as in the body.

        It holds the secret: not to be shown.
        """
        written: Mapping[ControlAmount, str] = {
            ControlAmount.AS_SENT: amount_sent,
            ControlAmount.TWO_DECIMALS: with_two_decimals(amount),
            ControlAmount.MINOR_UNITS: str(to_minor(Decimal(amount), minor_units=minor_units)),
        }
        parts: Mapping[ControlPart, str] = {
            ControlPart.ORDER_ID: order_id,
            ControlPart.AMOUNT: written[self.amount],
            ControlPart.CURRENCY: currency,
            ControlPart.SECRET: self.secret,
        }
        return self.separator.join(parts[part] for part in self.order)

    def control(self, *, order_id: str, amount: str, amount_sent: str, currency: str, minor_units: int) -> str:
        """Return the hash in lower-case hex; parameters as for `text`."""
        text = self.text(
            order_id=order_id, amount=amount, amount_sent=amount_sent, currency=currency, minor_units=minor_units
        )
        return hashlib.sha256(text.encode()).hexdigest()
