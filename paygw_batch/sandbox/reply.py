"""Writes the sandbox's replies as bytes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from paygw_batch.countries.rules import Operation
from paygw_batch.sandbox.behaviour import Answer
from paygw_batch.sandbox.request import Order, Refusal

Headers = tuple[tuple[str, str], ...]

_JSON: Headers = (("Content-Type", "application/json"),)
CUSTOMER_PAGE = "https://sandbox.example/pay/"
"""Where a customer would pay, if the sandbox had any; the sandbox's own number of the order follows."""
_REFUSAL_HEADERS: Mapping[int, Headers] = {401: (("WWW-Authenticate", "OAuth"),), 405: (("Allow", "POST"),)}
"""The headers that RFC 9110 requires with these statuses."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP reply. `headers` does not hold the framing."""

    http_status: int
    body: bytes = field(repr=False)
    headers: Headers = _JSON


GARBAGE = Reply(200, b'{"status": "approv<html>')
BARE_500 = Reply(500, b"Internal Server Error", (("Content-Type", "text/plain"),))


def refusal_reply(operation: Operation, refusal: Refusal, *, status: str = "error") -> Reply:
    """Return the reply to what is no payment: `status` says so, and the message names the field."""
    said = {
        "status": status,
        operation.error_code_fields[0]: refusal.code,
        operation.message_fields[0]: refusal.message,
    }
    if refusal.order_id is not None:
        said[operation.echo_order_id] = refusal.order_id
    return Reply(refusal.http_status, _json(said), _JSON + _REFUSAL_HEADERS.get(refusal.http_status, ()))


def answer_reply(operation: Operation, order: Order, answer: Answer, *, order_id: str, reference: str) -> Reply:
    """Return the reply to an order: the status word, and echoes of the order under `order_id`.

    The amount is echoed as a number with the digits that were sent.
    """
    said = {
        "status": answer.status,
        operation.echo_order_id: order_id,
        operation.echo_currency: order.currency,
        operation.reference_fields[0]: reference,
    }
    if operation.customer_url_fields and answer.commits:
        said[operation.customer_url_fields[0]] = CUSTOMER_PAGE + reference
    if answer.error_code is not None:
        said[operation.error_code_fields[0]] = answer.error_code
    if answer.message is not None:
        said[operation.message_fields[0]] = answer.message
    amount = f', "{operation.echo_amount}": {order.amount}}}'.encode("ascii")
    return Reply(answer.http_status, _json(said).removesuffix(b"}") + amount, _JSON + answer.headers)


def _json(said: Mapping[str, str]) -> bytes:
    return json.dumps(said, ensure_ascii=False).encode("utf-8")
