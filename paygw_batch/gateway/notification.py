"""Reads a notification, and decides whether it is proven.

Section 6 of the gateway's interface says that there are notifications, and shows neither their content nor how they
are made authentic. So the names of fields are configured, with the request's own names for a start, and the check is a
named profile without a default.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from paygw_batch.core.evidence import Claim, Proof
from paygw_batch.gateway.authenticity import AuthenticityCheck
from paygw_batch.gateway.message import Received
from paygw_batch.gateway.strict_json import evidence_of, strict_object, text_of

MAX_FIELDS = 200
MAX_VALUE_CHARACTERS = 256
"""An order id or a status word that is longer is none of ours."""
_JSON = frozenset({"application/json", "text/json", ""})
"""The media types that are read as JSON; some gateways name none."""
_JSON_FAMILY = re.compile(r"application/[a-z0-9!#$&^_.+-]*\+json")
_FORM = "application/x-www-form-urlencoded"
_MATTERS = re.compile(
    r"sign|hmac|hash|digest|timestamp|nonce|event|webhook|delivery|request-id|correlation|trace|idempotency|forwarded"
    r"|real-ip|user-agent|^date$|^content-type$"
)
_MAY_BE_SECRET = re.compile(r"auth|cookie|token|secret|api-?key|password|session")
MAX_HEADERS = 30
MAX_HEADER_CHARACTERS = 1000


@dataclass(frozen=True, slots=True)
class NotificationFields:
    """The names of the fields of a notification."""

    order_id: str
    amount: str
    currency: str
    status: str
    reference: tuple[str, ...]


def read_notification(received: Received, names: NotificationFields, check: AuthenticityCheck | None) -> Claim | str:
    """Return the claim of a notification with its proof, or the cause why it cannot be read. Never raises."""
    members = _members(received)
    if isinstance(members, str):
        return members
    values = {name: text for name, value in members.items() if (text := text_of(value)) is not None}
    order_id = values.get(names.order_id)
    if not order_id or len(order_id) > MAX_VALUE_CHARACTERS:
        return "notification.no_order"
    status, amount, currency = (values.get(name) for name in (names.status, names.amount, names.currency))
    proof = Proof.UNPROVEN if check is None else check.proof(received, values)
    return Claim(
        order_id,
        _short(amount),
        _short(currency),
        _short(status),
        next((found for name in names.reference if (found := evidence_of(values.get(name)))), None),
        proof,
    )


def headers_that_matter(received: Received, header: str | None) -> tuple[tuple[str, str], ...]:
    """Return the headers to keep: those about sender, time and authenticity. `header` is the configured one.

    Of the others none that may hold a secret.
    """
    own = (header or "").lower()
    kept = [
        (name, value[:MAX_HEADER_CHARACTERS])
        for name, value in received.headers
        if name == own or (_MATTERS.search(name) and not _MAY_BE_SECRET.search(name))
    ]
    return tuple(sorted(kept, key=lambda one: one[0] != own)[:MAX_HEADERS])


def _short(value: str | None) -> str | None:
    return None if value is None or len(value) > MAX_VALUE_CHARACTERS else value


def _members(received: Received) -> Mapping[str, Any] | str:
    """Return names and values of a form or of a JSON object, or the cause why there are none."""
    if received.method == "GET":
        return _form(received.query.encode("latin-1", "replace"))
    media_type, *parameters = (part.strip().lower() for part in received.content_type.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name == "charset" and value.strip('"') not in {"utf-8", "utf8"}:
            return "notification.charset"
    if media_type in _JSON or _JSON_FAMILY.fullmatch(media_type):
        return strict_object(received.body)
    return _form(received.body) if media_type == _FORM else "notification.content_type"


def _form(text: bytes) -> Mapping[str, str] | str:
    """Return the fields of a form (URL standard): UTF-8, no name twice."""
    try:
        pairs = parse_qsl(
            text.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=MAX_FIELDS,
        )
    except ValueError:
        return "notification.not_a_form"
    fields = dict(pairs)
    return fields if len(fields) == len(pairs) else "notification.name_twice"
