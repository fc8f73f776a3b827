"""Defines instructions and their order ids, and the totals of a batch."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import NamedTuple

from paygw_batch.language import say, say_count

PAYOUT = "payout"
PAYIN = "payin"
"""The operations: `submit` opens batches of payouts, and `collect` batches of payins."""
REPEAT_DAYS = 5
"""By default, a new sheet is compared with batches up to this many days old, to detect repeated sheets."""
LOOK_ALIKE_DAYS = 7
"""By default, a new sheet is compared with payments up to this many days old, to detect repeated payments."""
BILLION = 1_000_000_000
"""A sum in minor units may exceed 64 bits, so it is stored as a multiple of this number and a remainder."""


class InstructionTotals(NamedTuple):
    """Totals of instructions in one country and currency.

    The sum in minor units is `billions` times `BILLION`, plus `rest`. `first` and `last` are the lowest and highest
    number (or index) of the instructions.
    """

    rows: int
    billions: int
    rest: int
    first: int
    last: int

    @property
    def minor(self) -> int:
        """The sum in minor units."""
        return self.billions * BILLION + self.rest

    def renumber_from(self, number: int) -> "InstructionTotals":
        """Return these totals with their indexes replaced by numbers starting at `number`."""
        return self._replace(first=number + self.first, last=number + self.last)

    def combine(self, later: "InstructionTotals") -> "InstructionTotals":
        """Return these totals combined with those of `later` instructions."""
        rows, billions, rest = self.rows + later.rows, self.billions + later.billions, self.rest + later.rest
        return InstructionTotals(rows, billions, rest, self.first, later.last)


@dataclass(frozen=True, slots=True)
class ControlTotals:
    """The number of rows and the sum in each currency, stated by a person or computed from a sheet."""

    rows: int | None = None
    sums: Mapping[str, Decimal] | None = None

    def __post_init__(self) -> None:
        if not all(isinstance(amount, Decimal | int) for amount in (self.sums or {}).values()):
            raise TypeError("each sum of ControlTotals must be a Decimal")


def find_differences(expected: ControlTotals, actual: ControlTotals) -> list[str]:
    """Return a message for each expected total that differs from the actual one."""
    messages = []
    if expected.rows is not None and expected.rows != actual.rows:
        message = say_count(
            expected.rows,
            "You expected {count:,} row, but the sheet has {actual:,}.",
            "You expected {count:,} rows, but the sheet has {actual:,}.",
            actual=actual.rows,
        )
        messages.append(message)
    sums = actual.sums or {}
    for currency, amount in (expected.sums or {}).items():
        actual_amount = sums.get(currency)
        if actual_amount is None:
            messages.append(
                say(
                    "You expected {currency} {amount:,f}, but the sheet has no rows in {currency}.",
                    currency=currency,
                    amount=amount,
                )
            )
        elif actual_amount != amount:
            messages.append(
                say(
                    "You expected {currency} {amount:,f}, but the sheet's total is {currency} {has:,f}.",
                    currency=currency,
                    amount=amount,
                    has=actual_amount,
                )
            )
    return messages


_LATER_ATTEMPT = re.compile(r"(.+)-r(?:[2-9]|[1-9][0-9]+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Instruction:
    """A complete order to pay one payee, independent of the sheet.

    `amount` has the digits from the sheet, which are sent. `fields` maps the form's other columns (`account_number`,
    `receiver_phone`, ...) to the values to send. Values from the operator's configuration (`purpose`,
    `server_callback_url`) are added only when a request is encoded, so that a corrected configuration applies to all
    rows not yet sent.
    """

    client_orderid: str
    country: str
    currency: str
    amount: str
    form: str
    fields: Mapping[str, str]

    def __post_init__(self) -> None:
        """Freeze `fields`, so that the value is deeply immutable."""
        object.__setattr__(self, "fields", MappingProxyType(dict(self.fields)))


PAYEE_FIELD_SUFFIXES = ("name", "_number", "phone", "email")
"""Suffixes of field names that identify a payee. The journal's view `payment_text` uses them too."""


def attempt_order_id(client_orderid: str, generation: int) -> str:
    """Return the order id for an attempt. `generation` is 1, plus 1 for each release."""
    return client_orderid if generation == 1 else f"{client_orderid}-r{generation}"


def first_order_id(order_id: str) -> str | None:
    """Return the order id without its retry suffix, or None if it has no suffix."""
    match = _LATER_ATTEMPT.fullmatch(order_id)
    return match[1] if match else None


_DIGEST_DIGITS, _CHECK_DIGITS = 16, 8
_DERIVED_ID = re.compile(rf"(.+)-([0-9a-f]{{{_DIGEST_DIGITS}}})([0-9a-f]{{{_CHECK_DIGITS}}})-[1-9][0-9]*", re.DOTALL)


def payee_tag(reference: str, payee: str) -> str:
    """Return a payee's part of a derived order id. Name and amount do not affect it, so they can be corrected."""
    digest = _hex_digest(payee, _DIGEST_DIGITS)
    return f"{digest}{_hex_digest(f'{reference}-{digest}', _CHECK_DIGITS)}"


def is_derived_from_account(stem: str, country: str, account: str) -> bool:
    """Return whether `stem`, a derived order id without its counter, was derived from this account."""
    return stem.endswith(f"-{payee_tag(stem[: -_DIGEST_DIGITS - _CHECK_DIGITS - 1], account_key(country, account))}")


def account_key(country: str, account: str) -> str:
    """Return the key of a payee in a sheet without order ids or staff numbers."""
    return f"{country} {account}"


def _hex_digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def derived_reference(order_id: str) -> str | None:
    """Return the reference in a derived order id, or None if the id has no valid checksum."""
    match = _DERIVED_ID.fullmatch(order_id)
    if match is None or _hex_digest(f"{match[1]}-{match[2]}", _CHECK_DIGITS) != match[3]:
        return None
    return match[1]
