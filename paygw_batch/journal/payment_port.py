"""Declares the search for payments over all batches: its criteria, its results, and its protocol.

A part of `port.JournalReader`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from paygw_batch.core.lifecycle import State


@dataclass(frozen=True, slots=True)
class PaymentSearch:
    """The criteria of a search for payments: words of the payee, or the order id.

    A payment fits if each of `words` has an alternative among the payee's words: one that ends with `*` is a beginning.
    """

    words: tuple[tuple[str, ...], ...]
    order_id: str


@dataclass(frozen=True, slots=True)
class FoundPayment:
    """One payment (or collection) of any batch, once: by the batch that brought it, with its state and latest attempt.

    `fields` are those of its form. `payee` is the account or phone number.
    """

    batch: str
    sheet_name: str
    operation: str
    opened_at: str
    row: int
    client_orderid: str
    country: str
    currency: str
    amount: str
    form: str
    fields: Mapping[str, str] = field(repr=False)
    payee: str = field(repr=False)
    state: State
    attempts: int
    sent_orderid: str | None
    gateway_status: str | None
    gateway_reference: str | None
    error_code: str | None
    message: str | None
    possible_duplicate_of: int | None
    first_sent_at: str | None
    updated_at: str | None


class PaymentReader(Protocol):
    """A journal that payments are looked for in."""

    def find_payments(self, search: PaymentSearch, *, limit: int) -> Sequence[FoundPayment]:
        """Return up to `limit` payments of all batches that a search fits, the newest first."""
        ...

    def payments(self, batch: int, rows: Collection[int]) -> Mapping[int, FoundPayment]:
        """Return the payments of those of `rows` that a batch has, by row: a page of a batch with its payees."""
        ...
