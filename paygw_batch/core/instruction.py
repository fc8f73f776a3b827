"""An instruction: one validated, immutable order to pay one payee."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_LATER_ATTEMPT = re.compile(r"(.+)-r(?:[2-9]|[1-9][0-9]+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Instruction:
    """A complete order to pay one row: the sheet is not needed again.

    `amount` keeps the sheet's own digits, because those digits go onto the wire. `fields` holds the further columns of
    the form in the form the wire wants (`account_number`, `receiver_phone`, ...). What the operator's configuration
    supplies (`purpose`, `server_callback_url`) is not part of it: it joins when a request is encoded, so that a mended
    configuration reaches every row that has not left.
    """

    client_orderid: str
    country: str
    currency: str
    amount: str
    form: str
    fields: Mapping[str, str]

    def __post_init__(self) -> None:
        """Freeze `fields`, so that the value is immutable all the way down."""
        object.__setattr__(self, "fields", MappingProxyType(dict(self.fields)))


NAMES_A_PAYEE = ("name", "_number", "phone", "email")
"""The endings of the fields that name a payee. In a journal the view `payment_text` says the same."""


def attempt_order_id(client_orderid: str, generation: int) -> str:
    """Return the order id an instruction is sent under in its `generation` (1, and one more with every release)."""
    return client_orderid if generation == 1 else f"{client_orderid}-r{generation}"


def first_order_id(order_id: str) -> str | None:
    """Return the order id of a row's first attempt, where `order_id` is written as that of a later one; else None."""
    found = _LATER_ATTEMPT.fullmatch(order_id)
    return found[1] if found else None
