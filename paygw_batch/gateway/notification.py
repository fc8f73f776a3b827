"""Reads a notification, and decides whether it is proven.

Section 6 of the gateway's interface says that there are notifications, and shows neither their content nor how they
are made authentic. So the names of fields are configured, with the request's own names for a start, and the check is a
named profile without a default.
"""

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, assert_never
from urllib.parse import parse_qsl

from paygw_batch.core.evidence import Claim, Proof
from paygw_batch.gateway.strict_json import evidence_of, strict_object, text_of

MAX_FIELDS = 200
MAX_VALUE_CHARACTERS = 256
"""An order id or a status word that is longer is none of ours."""
SECRET = "{secret}"  # noqa: S105 (the place of the secret among the hashed fields, not one)


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it came. `query` is the text after the `?`, undecoded. Neither it nor the body is shown."""

    method: str
    content_type: str
    query: str = field(repr=False)
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class NotificationFields:
    """The names of the fields of a notification."""

    order_id: str
    amount: str
    currency: str
    status: str
    reference: tuple[str, ...]


class HashAlgorithm(StrEnum):
    """How the hash of a notification is made."""

    SHA256 = "sha256"
    """SHA-256 over the joined values, the secret among them."""
    HMAC_SHA256 = "hmac-sha256"
    """HMAC with SHA-256 over the joined values, the secret as its key."""


@dataclass(frozen=True, slots=True)
class SharedSecretHash:
    """The one authenticity check: a hash over named fields and a secret that gateway and merchant share.

    `fields` are names in order, `SECRET` standing for the secret; `hash_field` is where a notification carries its
    hash, in hex.
    """

    algorithm: HashAlgorithm
    fields: tuple[str, ...]
    separator: str
    hash_field: str
    secret: bytes = field(repr=False)

    def proves(self, values: Mapping[str, str]) -> bool:
        """Return whether the notification with these values carries the right hash; compared in constant time.

        A value that holds the separator proves nothing: the same text could be made of other values.
        """
        given = values.get(self.hash_field)
        if given is None:
            return False
        parts = []
        for name in self.fields:
            value = values.get(name)
            if name != SECRET and (value is None or self.separator in value):
                return False
            parts.append(self.secret if name == SECRET else (value or "").encode("utf-8", "surrogatepass"))
        made = self._hash(self.separator.encode().join(parts))
        return hmac.compare_digest(made.encode(), given.lower().encode("utf-8", "surrogatepass"))

    def _hash(self, text: bytes) -> str:
        match self.algorithm:
            case HashAlgorithm.SHA256:
                return hashlib.sha256(text).hexdigest()
            case HashAlgorithm.HMAC_SHA256:
                return hmac.digest(self.secret, text, hashlib.sha256).hex()
            case _:
                assert_never(self.algorithm)


def read_notification(received: Received, names: NotificationFields, check: SharedSecretHash | None) -> Claim | str:
    """Return what a notification says and whether it is proven, or the cause why it cannot be read. Never raises."""
    members = _members(received)
    if isinstance(members, str):
        return members
    values = {name: text for name, value in members.items() if (text := text_of(value)) is not None}
    order_id = values.get(names.order_id)
    if not order_id or len(order_id) > MAX_VALUE_CHARACTERS:
        return "notification.no_order"
    status, amount, currency = (values.get(name) for name in (names.status, names.amount, names.currency))
    proof = Proof.UNPROVEN
    if check is not None:
        proof = Proof.PROVEN if check.proves(values) else Proof.FORGED
    return Claim(
        order_id,
        _short(amount),
        _short(currency),
        _short(status),
        next((found for name in names.reference if (found := evidence_of(values.get(name)))), None),
        proof,
    )


def _short(value: str | None) -> str | None:
    return None if value is None or len(value) > MAX_VALUE_CHARACTERS else value


def _members(received: Received) -> Mapping[str, Any] | str:
    """Return names and values of a form or of a JSON object, or the cause why there are none."""
    if received.method == "GET":
        return _form(received.query.encode("latin-1", "replace"))
    media_type, _, parameters = received.content_type.partition(";")
    charset = parameters.strip().lower().removeprefix("charset=").strip('"')
    if charset not in {"", "utf-8", "utf8"}:
        return "notification.charset"
    reader = _READERS.get(media_type.strip().lower())
    return "notification.content_type" if reader is None else reader(received.body)


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


_READERS: Mapping[str, Callable[[bytes], Mapping[str, Any] | str]] = MappingProxyType(
    {"application/json": strict_object, "application/x-www-form-urlencoded": _form}
)
