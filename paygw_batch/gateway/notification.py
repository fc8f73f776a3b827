"""Parses a notification from the gateway and checks its authenticity.

Section 6 of the gateway's interface mentions notifications, but documents neither their content nor how to
authenticate them. So the field names can be configured, and default to those of the request. The operator must also
configure the authenticity check (algorithm, header, encoding and fields), which has no default.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import parse_qsl

from paygw_batch.core.evidence import Claim, Proof
from paygw_batch.gateway.message import IncomingRequest
from paygw_batch.gateway.signing.key import GatewayKey
from paygw_batch.gateway.strict_json import parse_json_object, printable_text, scalar_text

SECRET = "{secret}"  # noqa: S105 (a placeholder)


class HashAlgorithm(StrEnum):
    """A hash algorithm that uses a shared secret."""

    SHA256 = "sha256"
    """SHA-256 over the joined values, one of which is the secret."""
    SHA1 = "sha1"
    """SHA-1 over the joined values, which some gateways use. It proves nothing, but can prompt an enquiry."""
    HMAC_SHA256 = "hmac-sha256"
    """HMAC-SHA-256 with the secret as its key."""
    HMAC_SHA512 = "hmac-sha512"
    """HMAC-SHA-512 with the secret as its key."""


class HeaderEncoding(StrEnum):
    """The encoding of a hash or signature in a header."""

    HEX = "hex"
    BASE64 = "base64"


@dataclass(frozen=True, slots=True)
class SharedSecretHash:
    """Checks a hash (hex) over fields of the notification and a secret shared with the gateway.

    `fields` lists the hashed fields in order, with `SECRET` as a placeholder. `hash_field` contains the hash.
    """

    algorithm: HashAlgorithm
    fields: tuple[str, ...]
    separator: str
    hash_field: str
    secret: bytes = field(repr=False)

    def proof(self, request: IncomingRequest, values: Mapping[str, str]) -> Proof:  # noqa: ARG002 (as in the other checks)
        """Return FORGED unless the notification contains the correct hash, compared in constant time.

        A value that contains the separator also counts as FORGED, because other values could produce the same text.
        """
        parts = []
        for name in self.fields:
            value = values.get(name)
            if name == SECRET:
                parts.append(self.secret)
            elif value is None or (self.separator and self.separator in value):
                return Proof.FORGED
            else:
                parts.append(value.encode("utf-8", "surrogatepass"))
        expected = _digest(self.algorithm, self.secret, self.separator.encode().join(parts)).hex()
        sent_hash = values.get(self.hash_field, "").lower()
        if not hmac.compare_digest(expected.encode(), sent_hash.encode("utf-8", "surrogatepass")):
            return Proof.FORGED
        return Proof.UNPROVEN if self.algorithm is HashAlgorithm.SHA1 else Proof.PROVEN


@dataclass(frozen=True, slots=True)
class SignedHeader:
    """A header that contains a hash or signature of the raw body, after a `prefix` such as `sha256=`."""

    name: str
    encoding: HeaderEncoding
    prefix: str = ""

    def decode_value(self, request: IncomingRequest) -> bytes | None:
        """Return the decoded header value, or None if the header is missing, repeated or undecodable.

        It also returns None for GET requests, whose content is in the URL and not in the hashed body.
        """
        values = [value for name, value in request.headers if name == self.name.lower()]
        if request.method == "GET" or len(values) != 1 or not values[0].startswith(self.prefix):
            return None
        text = values[0].removeprefix(self.prefix).strip()
        try:
            return bytes.fromhex(text) if self.encoding is HeaderEncoding.HEX else base64.b64decode(text, validate=True)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class HeaderHash:
    """Checks a header that contains a keyed hash of the raw body."""

    algorithm: HashAlgorithm
    header: SignedHeader
    secret: bytes = field(repr=False)

    def proof(self, request: IncomingRequest, values: Mapping[str, str]) -> Proof:  # noqa: ARG002 (as in the other checks)
        """Return PROVEN if the header contains the hash of the body, otherwise FORGED."""
        value = self.header.decode_value(request)
        expected = _digest(self.algorithm, self.secret, request.body)
        return Proof.PROVEN if value is not None and hmac.compare_digest(value, expected) else Proof.FORGED


@dataclass(frozen=True, slots=True)
class HeaderSignature:
    """Checks a header that contains an RSA signature of the raw body."""

    header: SignedHeader
    key: GatewayKey

    def proof(self, request: IncomingRequest, values: Mapping[str, str]) -> Proof:  # noqa: ARG002 (as in the other checks)
        """Return PROVEN if the header contains the gateway's signature of the body, otherwise FORGED."""
        signature = self.header.decode_value(request)
        is_proven = signature is not None and self.key.verifies(request.body, signature)
        return Proof.PROVEN if is_proven else Proof.FORGED


AuthenticityCheck = SharedSecretHash | HeaderHash | HeaderSignature
"""A check of the authenticity of notifications. `proof` never raises."""


def _digest(algorithm: HashAlgorithm, secret: bytes, content: bytes) -> bytes:
    if algorithm in {HashAlgorithm.HMAC_SHA256, HashAlgorithm.HMAC_SHA512}:
        return hmac.digest(secret, content, algorithm.removeprefix("hmac-"))
    return hashlib.new(algorithm, content, usedforsecurity=False).digest()


MAX_FIELDS = 200
MAX_VALUE_CHARACTERS = 256
"""A longer order id or status word cannot be ours."""
_JSON_TYPES = frozenset({"application/json", "text/json", ""})
"""The media types to parse as JSON. Some gateways do not send one."""
_JSON_SUFFIX_TYPE = re.compile(r"application/[a-z0-9!#$&^_.+-]*\+json")
_FORM_TYPE = "application/x-www-form-urlencoded"
_RELEVANT_HEADER = re.compile(
    r"sign|hmac|hash|digest|timestamp|nonce|event|webhook|delivery|request-id|correlation|trace|idempotency|forwarded"
    r"|real-ip|user-agent|^date$|^content-type$"
)
_SECRET_HEADER = re.compile(r"auth|cookie|token|secret|api-?key|password|session")
MAX_HEADERS = 30
MAX_HEADER_CHARACTERS = 1000


@dataclass(frozen=True, slots=True)
class NotificationFields:
    """The field names in a notification."""

    order_id: str
    amount: str
    currency: str
    status: str
    reference: tuple[str, ...]


def read_notification(
    request: IncomingRequest, names: NotificationFields, check: AuthenticityCheck | None
) -> Claim | str:
    """Return the claim in a notification, or the reason it cannot be read. Never raises."""
    members = _parse_members(request)
    if isinstance(members, str):
        return members
    values = {name: text for name, value in members.items() if (text := scalar_text(value)) is not None}
    short_values = {name: value for name, value in values.items() if len(value) <= MAX_VALUE_CHARACTERS}
    if not (order_id := short_values.get(names.order_id)):
        return "notification.no_order"
    amount, currency, status = map(short_values.get, (names.amount, names.currency, names.status))
    reference = next((text for name in names.reference if (text := printable_text(values.get(name)))), None)
    proof = Proof.UNPROVEN if check is None else check.proof(request, values)
    return Claim(order_id, amount, currency, status, reference, proof)


def relevant_headers(request: IncomingRequest, header: str | None) -> tuple[tuple[str, str], ...]:
    """Return the headers to store: `header`, and any about sender, time or authenticity. Others may be secret."""
    configured_name = (header or "").lower()
    headers = [
        (name, value[:MAX_HEADER_CHARACTERS])
        for name, value in request.headers
        if name == configured_name or (_RELEVANT_HEADER.search(name) and not _SECRET_HEADER.search(name))
    ]
    return tuple(sorted(headers, key=lambda pair: pair[0] != configured_name)[:MAX_HEADERS])


def _parse_members(request: IncomingRequest) -> Mapping[str, Any] | str:
    if request.method == "GET":
        return _parse_form(request.query.encode("latin-1", "replace"))
    media_type, *parameters = (part.strip().lower() for part in request.content_type.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name == "charset" and value.strip('"') not in {"utf-8", "utf8"}:
            return "notification.charset"
    if media_type in _JSON_TYPES or _JSON_SUFFIX_TYPE.fullmatch(media_type):
        return parse_json_object(request.body)
    return _parse_form(request.body) if media_type == _FORM_TYPE else "notification.content_type"


def _parse_form(content: bytes) -> Mapping[str, str] | str:
    """Parse a URL-encoded form (UTF-8, unique names). Returns the reason if it cannot be parsed."""
    try:
        pairs = parse_qsl(
            content.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=MAX_FIELDS,
        )
    except ValueError:
        return "notification.not_a_form"
    fields = dict(pairs)
    return fields if len(fields) == len(pairs) else "notification.name_twice"
