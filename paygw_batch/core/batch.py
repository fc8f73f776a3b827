"""A batch and its instructions. Each instruction is an order to pay one payee, under the merchant's own order id."""

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
"""The operations. Each batch has one of them: `submit` opens batches of payouts, `collect` batches of payins."""
REPEAT_DAYS = 5
"""The default number of days for which a sheet is compared with earlier batches that it may repeat."""
LOOK_ALIKE_DAYS = 7
"""The default number of days for which the same payee and amount under another order id causes a warning."""
BILLION = 1_000_000_000
"""A sum in minor units may exceed 64 bits, so it is stored as a multiple of this number, and a remainder."""


class InstructionTotals(NamedTuple):
    """The totals of some instructions of one country and currency.

    Each amount is divided by `BILLION`: `billions` is the sum of the quotients, and `rest` that of the remainders.
    `first` and `last` are the lowest and the highest of the instructions' numbers (or indexes).
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
        """Return the same totals for numbers that start at `number` instead of 0."""
        return self._replace(first=number + self.first, last=number + self.last)

    def combine(self, later: "InstructionTotals") -> "InstructionTotals":
        """Return these totals combined with those of later instructions."""
        rows, billions, rest = self.rows + later.rows, self.billions + later.billions, self.rest + later.rest
        return InstructionTotals(rows, billions, rest, self.first, later.last)


@dataclass(frozen=True, slots=True)
class ControlTotals:
    """The number of rows and the sum for each currency, as stated by a person or computed from a sheet."""

    rows: int | None = None
    sums: Mapping[str, Decimal] | None = None


def find_differences(expected: ControlTotals, actual: ControlTotals) -> list[str]:
    """Return a sentence for each stated figure that differs from the sheet's."""
    lines = []
    if expected.rows is not None and expected.rows != actual.rows:
        sentence = say_count(
            expected.rows,
            "You expected {count:,} row; the sheet has {actual:,}.",
            "You expected {count:,} rows; the sheet has {actual:,}.",
            actual=actual.rows,
        )
        lines.append(sentence)
    sums = actual.sums or {}
    for currency, amount in (expected.sums or {}).items():
        has = sums.get(currency)
        if has is None:
            lines.append(
                say(
                    "{currency} {amount:,f} was stated; the sheet has no {currency} row.",
                    currency=currency,
                    amount=amount,
                )
            )
        elif has != amount:
            lines.append(
                say(
                    "You expected {currency} {amount:,f}; the sheet's total is {currency} {has:,f}.",
                    currency=currency,
                    amount=amount,
                    has=has,
                )
            )
    return lines


_LATER_ATTEMPT = re.compile(r"(.+)-r(?:[2-9]|[1-9][0-9]+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Instruction:
    """A complete order to pay one row, independent of the sheet.

    `amount` has the sheet's own digits, which are sent. `fields` has the form's other columns as they are sent
    (`account_number`, `receiver_phone`, ...). Values from the operator's configuration (`purpose`,
    `server_callback_url`) are added only when a request is encoded, so that a corrected configuration applies to every
    row that was not sent yet.
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
"""Suffixes of the names of fields that identify a payee. A journal's view `payment_text` uses the same suffixes."""


def attempt_order_id(client_orderid: str, generation: int) -> str:
    """Return the order id of an instruction in its `generation`, which starts at 1 and grows with each release."""
    return client_orderid if generation == 1 else f"{client_orderid}-r{generation}"


def first_order_id(order_id: str) -> str | None:
    """Return the first attempt's order id, or None if `order_id` is not that of a later attempt."""
    match = _LATER_ATTEMPT.fullmatch(order_id)
    return match[1] if match else None


_DIGEST_DIGITS, _CHECK_DIGITS = 16, 8
_DERIVED = re.compile(rf"(.+)-([0-9a-f]{{{_DIGEST_DIGITS}}})([0-9a-f]{{{_CHECK_DIGITS}}})-[1-9][0-9]*", re.DOTALL)


def payee_mark(reference: str, payee: str) -> str:
    """Return the part of a derived order id for its payee: a digest, and a checksum over it and the reference.

    A payee is an account or a staff number, without name or amount: correcting these makes no other order id.
    """
    digest = _hex_digest(payee, _DIGEST_DIGITS)
    return f"{digest}{_hex_digest(f'{reference}-{digest}', _CHECK_DIGITS)}"


def is_derived_from_account(stem: str, country: str, account: str) -> bool:
    """Return whether a derived order id identifies its payee by this account. `stem` is the id without its counter."""
    return stem.endswith(f"-{payee_mark(stem[: -_DIGEST_DIGITS - _CHECK_DIGITS - 1], account_key(country, account))}")


def account_key(country: str, account: str) -> str:
    """Return the payee's key in a sheet without order ids and staff numbers: an account in a country."""
    return f"{country} {account}"


def _hex_digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def derived_reference(order_id: str) -> str | None:
    """Return the reference from which an order id was derived, or None if it was not derived.

    An id that only looks derived has no valid checksum.
    """
    match = _DERIVED.fullmatch(order_id)
    if match is None or _hex_digest(f"{match[1]}-{match[2]}", _CHECK_DIGITS) != match[3]:
        return None
    return match[1]
