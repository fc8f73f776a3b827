"""Requests to the sandbox, and orders and refusals made of them: frozen values without behaviour."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Request:
    """A complete HTTP request. `path` and `query` are as sent; `headers` has lower-case names, in the order sent.

    Headers and body are left out of the representation: they hold a signature and a payee's data.
    """

    http_version: str
    method: str
    path: str
    query: str
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes = field(repr=False)

    def header(self, name: str) -> tuple[str, ...]:
        """Return every value of the header `name` (lower case)."""
        return tuple(value for its_name, value in self.headers if its_name == name)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not a payment. `message` names the field or header and the rule, never a payee's data.

    `order_id` is the order the request spoke of, if that much could be read, so that the refusal can echo it.
    """

    http_status: int
    code: str
    message: str
    order_id: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Order:
    """An order to pay that was properly signed and satisfies its country's form.

    `amount` keeps the digits that were sent; `payee` is the account number, or the receiver's phone in the receiver
    form. `purpose` is None if the country sends none, `callback_url` where its form has none. The latter may hold a
    merchant's secret token.
    """

    order_id: str
    country: str
    currency: str
    amount: str
    payee: str = field(repr=False)
    purpose: str | None
    callback_url: str | None = field(default=None, repr=False)
