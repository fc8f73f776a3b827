"""Writes the sandbox's replies as bytes, and answers enquiries from its own record."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path

from paygw_batch.countries.rules import AmountUnit, Operation
from paygw_batch.sandbox.behaviour import Answer, Enquiries, Fault
from paygw_batch.sandbox.record import RecordLine, read_record
from paygw_batch.sandbox.request import Order, Refusal, Request
from paygw_batch.sandbox.verifier import Verifier

Headers = tuple[tuple[str, str], ...]

_JSON: Headers = (("Content-Type", "application/json"),)
_AMOUNT = "(the amount)"
"""A placeholder for the amount until the JSON is written: a number with the very digits that were sent."""
CUSTOMER_PAGE = "https://sandbox.example/pay/"
"""The address at which a customer would pay, if the sandbox had any; the sandbox's own number of the order follows."""
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
    """Return the reply to a refused request: `status` says so, and the message names the field."""
    names = operation.reply
    said: dict[str, object] = {"status": status}
    _put(said, names.error_code, refusal.code)
    _put(said, names.message, refusal.message)
    if refusal.order_id is not None:
        _put(said, names.order_id, refusal.order_id)
    return Reply(refusal.http_status, _json(said), _JSON + _REFUSAL_HEADERS.get(refusal.http_status, ()))


def answer_reply(operation: Operation, order: Order, answer: Answer, *, order_id: str, reference: str) -> Reply:
    """Return the reply to an order: the status word, and echoes of the order under `order_id`.

    The amount is echoed as a number with the digits that were sent.
    """
    names = operation.reply
    said: dict[str, object] = {"status": answer.status}
    _put(said, names.order_id, order_id)
    _put(said, names.currency, order.currency)
    _put(said, names.reference, reference)
    if names.customer_url and answer.commits:
        _put(said, names.customer_url, CUSTOMER_PAGE + reference)
    if answer.error_code is not None:
        _put(said, names.error_code, answer.error_code)
    if answer.message is not None:
        _put(said, names.message, answer.message)
    amount = Decimal(order.amount)
    if names.amount_unit is AmountUnit.MINOR:
        amount = amount.scaleb(names.minor_units[order.currency])
    _put(said, names.amount, _AMOUNT)
    body = _json(said).replace(f'"{_AMOUNT}"'.encode("ascii"), f"{amount:f}".encode("ascii"), 1)
    return Reply(answer.http_status, body, (*_JSON, *answer.headers.items()))


def _put(said: dict[str, object], names: Sequence[str], value: str) -> None:
    """Say `value` under the first of `names`: a path with dots, to a member of objects within each other.

    It is left out if the path leads through a member that is not an object.
    """
    *outer, last = names[0].split(".")
    for name in outer:
        inner = said.setdefault(name, {})
        if not isinstance(inner, dict):
            return
        said = inner
    said[last] = value


def _json(said: Mapping[str, object]) -> bytes:
    return json.dumps(said, ensure_ascii=False).encode("utf-8")


_FAULTS = frozenset(Fault)


class EnquiryDesk:
    """Answers status enquiries, signed like every other request, from the records of the orders that were taken."""

    def __init__(
        self,
        operation: Operation,
        verifier: Verifier,
        records: Sequence[Path],
        enquiries: Enquiries,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._operation = operation
        self._verifier = verifier
        self._records = records
        self._enquiries = enquiries
        self._clock = clock
        self._lines: Mapping[str, RecordLine] = {}
        self._sizes: list[int] = []

    def is_asked(self, request: Request) -> bool:
        """Whether the request's path is that of enquiries."""
        return self._verifier.is_asked(request)

    def reply(self, request: Request) -> Reply:
        """Return the reply to an enquiry: the status of its order, or a refusal."""
        fields = self._verifier.authenticated(request)
        if isinstance(fields, Refusal):
            return refusal_reply(self._operation, fields)
        if set(fields) != {"client_orderid"}:
            return refusal_reply(self._operation, Refusal(422, "body", "The one field is client_orderid."))
        order_id = fields["client_orderid"]
        line = self._known().get(order_id)
        status = None if line is None else self._status(line)
        if line is None or status is None:
            refusal = Refusal(200, "unknown", "There is no such order here.", order_id)
            return refusal_reply(self._operation, refusal, status=self._enquiries.not_found)
        order = Order(order_id, line.country, line.currency, line.amount, line.account_number, line.purpose)
        return answer_reply(self._operation, order, Answer(status=status), order_id=order_id, reference=line.reference)

    def _known(self) -> Mapping[str, RecordLine]:
        """Return the latest line of every order, read again when a record has grown."""
        sizes = [path.stat().st_size for path in self._records]
        if sizes != self._sizes:
            self._lines = {line.client_orderid: line for path in self._records for line in read_record(path)}
            self._sizes = sizes
        return self._lines

    def _status(self, line: RecordLine) -> str | None:
        """Return the status word of an order now; None for one that was never taken."""
        word = line.answer
        if word in _FAULTS:
            return "approved" if line.committed == "yes" else None
        age_s = self._clock() - datetime.fromisoformat(line.received_at).timestamp()
        return self._enquiries.later.get(word, word) if age_s >= self._enquiries.after_s else word
