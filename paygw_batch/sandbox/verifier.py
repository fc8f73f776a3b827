"""Verifies that a request is a payment or a collection. Every request passes here.

What is asked, and where it is written: sections 4 and 5 of the gateway's interface (POST, the path, the three headers),
RFC 5849 (the signature), sections 2.1 to 2.4 (the form), section 5 (the control).
"""

from collections.abc import Callable, Mapping

from paygw_batch.countries.rules import Operation, Rules
from paygw_batch.sandbox.authorization import Authenticator
from paygw_batch.sandbox.body import order_id_of, parse_body
from paygw_batch.sandbox.expects import Expects
from paygw_batch.sandbox.form import FormCheck
from paygw_batch.sandbox.request import Order, Refusal, Request

MAX_BODY_BYTES = 65536
"""A longer body is refused unread; the largest form fills a fraction of it."""

_JSON_HEADERS = (("content-type", 415), ("accept", 406))


class Verifier:
    """Separates the requests of one operation from all others. Its authenticator keeps the nonces; one thread only."""

    def __init__(
        self,
        *,
        endpoint_id: str,
        operation: Operation,
        rules: Rules,
        authenticator: Authenticator,
        clock: Callable[[], float],
        expects: Expects = Expects(),  # noqa: B008 (frozen)
    ) -> None:
        """`clock` returns the seconds since 1970 that timestamps are held against."""
        self._path_stem = operation.path.format(endpoint_id="")
        self._path = operation.path.format(endpoint_id=endpoint_id)
        self._form_check = FormCheck(rules, expects)
        self._authenticator = authenticator
        self._clock = clock

    def is_asked(self, request: Request) -> bool:
        """Whether the request's path is this operation's, with any endpoint in it."""
        return request.path.startswith(self._path_stem)

    def verify(self, request: Request) -> Order | Refusal:
        """Return the order to pay, or a refusal (an HTTP status from 400 to 422): then nothing may be paid."""
        fields = self.authenticated(request)
        return fields if isinstance(fields, Refusal) else self._form_check.check(fields)

    def authenticated(self, request: Request) -> Mapping[str, str] | Refusal:
        """Return the fields of a request that is properly addressed and signed, with any values, or a refusal."""
        refusal = self._check_head(request)
        if refusal is not None:
            return refusal
        fields = parse_body(request.body)
        if isinstance(fields, Refusal):
            return fields
        refusal = self._authenticator.check(request, fields, self._clock())
        if refusal is not None:
            return Refusal(refusal.http_status, refusal.code, refusal.message, order_id_of(fields))
        return fields

    def _check_head(self, request: Request) -> Refusal | None:
        if request.http_version != "1.1":
            return Refusal(400, "http", "Only HTTP/1.1 is spoken here.")
        if request.path != self._path or request.query:
            if request.path.startswith(self._path_stem) and not request.query:
                return Refusal(403, "endpoint", "The endpoint id in the path is not the merchant's.")
            return Refusal(404, "path", "There is nothing under this path.")
        if request.method != "POST":
            return Refusal(405, "method", "The one method is POST.")
        if len(request.header("host")) != 1:
            return Refusal(400, "host", "There must be exactly one Host header.")
        if request.header("content-encoding"):
            return Refusal(415, "content-encoding", "Content-Encoding is not known here.")
        for name, http_status in _JSON_HEADERS:
            if request.header(name) != ("application/json",):
                return Refusal(http_status, name, f"There must be exactly one {name} header: application/json.")
        return None
