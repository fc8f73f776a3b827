"""Checks the points that the country's form leaves open: how the amount is written, and the control hash.

Computed in its own way and not by the code that makes requests, so that the one tests the other.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from paygw_batch.errors import ConfigurationError

_TWO_DECIMALS = re.compile(r"[0-9]+\.[0-9]{2}")


@dataclass(frozen=True, slots=True)
class ControlRule:
    """How the merchant and the sandbox agreed to compute the control: the configuration's words, and the secret."""

    order: tuple[str, ...]
    separator: str
    amount: str
    secret: str = field(default="", repr=False)
    is_keyed: bool = False
    """Whether the secret is the key of an HMAC."""


@dataclass(frozen=True, slots=True)
class Expects:
    """The expectations for every body of an operation."""

    amount_is_text: bool = False
    control: ControlRule | None = None


def amount_form_problem(expects: Expects, value: str, *, is_number: bool) -> str:
    """Return how the amount is written in another way than agreed, as the words after its name, or an empty text."""
    if not expects.amount_is_text:
        return "" if is_number else "must be a number, not text"
    return "must be text with two decimals" if is_number or not _TWO_DECIMALS.fullmatch(value) else ""


def is_control(rule: ControlRule, fields: Mapping[str, str], *, minor_units: int) -> bool:
    """Whether `fields` carry the control that `rule` leads to."""
    amount = Decimal(fields["amount"])
    written = {
        "as-sent": fields["amount"],
        "two-decimals": f"{amount:.2f}",
        "minor-units": f"{amount * 10**minor_units:.0f}",
    }
    if rule.amount not in written:
        raise ConfigurationError(f"The sandbox knows no control amount {rule.amount}: {', '.join(written)}.")
    values = {**fields, "amount": written[rule.amount], "secret": rule.secret}
    digest = hmac.new(rule.secret.encode(), digestmod=hashlib.sha256) if rule.is_keyed else hashlib.sha256()
    for position, part in enumerate(rule.order):
        digest.update(((rule.separator if position else "") + values[part]).encode())
    return hmac.compare_digest(digest.hexdigest().encode(), fields["control"].encode())
