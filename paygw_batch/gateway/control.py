"""Computes the control hash of a collection: SHA-256 over order id, amount and currency.

Source: section 5 of the gateway's interface. What it does not show (the order, the text between the parts, how the
amount is written, whether a secret is mixed in or is the key of the hash) is the operator's word, without a default.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum

from paygw_batch.core.money import to_minor, with_two_decimals


class ControlPart(StrEnum):
    """A part of the text that is hashed."""

    ORDER_ID = "client_orderid"
    AMOUNT = "amount"
    CURRENCY = "currency"
    SECRET = "secret"  # noqa: S105 (the name of a part, not a secret)
    """A secret of merchant and gateway. It is used where the order names it."""


class ControlAmount(StrEnum):
    """How the amount is written in the text that is hashed."""

    AS_SENT = "as-sent"
    """As it is written in the body."""
    TWO_DECIMALS = "two-decimals"
    """With two decimals, for every currency."""
    MINOR_UNITS = "minor-units"
    """In whole minor units: 1500.50 KES is 150050, and 1500 UGX, which has none, is 1500."""


class ControlAlgorithm(StrEnum):
    """How the hash is made."""

    SHA256 = "sha256"
    """As the examples of the interface name it."""
    HMAC_SHA256 = "hmac-sha256"
    """HMAC with SHA-256, the secret as its key."""


@dataclass(frozen=True, slots=True)
class ControlProfile:
    """How the hash is computed. `secret` is not shown; it is empty where neither `order` nor `algorithm` needs it."""

    order: tuple[ControlPart, ...]
    separator: str
    amount: ControlAmount
    secret: str = field(default="", repr=False)
    algorithm: ControlAlgorithm = ControlAlgorithm.SHA256

    def text(self, *, order_id: str, amount: str, amount_sent: str, currency: str, minor_units: int) -> str:
        """Return the text that is hashed. `amount` has the sheet's digits, `amount_sent` is as in the body.

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
        if self.algorithm is ControlAlgorithm.HMAC_SHA256:
            return hmac.digest(self.secret.encode(), text.encode(), hashlib.sha256).hex()
        return hashlib.sha256(text.encode()).hexdigest()
