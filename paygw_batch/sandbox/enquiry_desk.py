"""Answers enquiries about an order from the sandbox's own record."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from paygw_batch.countries.rules import Operation
from paygw_batch.sandbox.behaviour import Answer, Enquiries, Fault
from paygw_batch.sandbox.record import RecordLine, read_record
from paygw_batch.sandbox.reply import Reply, answer_reply, refusal_reply
from paygw_batch.sandbox.request import Order, Refusal, Request
from paygw_batch.sandbox.verifier import Verifier

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
