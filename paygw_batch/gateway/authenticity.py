"""Checks whether a notification comes from the gateway, by the profile that the configuration names.

Section 6 of the gateway's interface shows no such check. What a profile needs (algorithm, header, encoding, fields) is
the operator's to say.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, assert_never

from paygw_batch.core.evidence import Proof
from paygw_batch.gateway.message import Received
from paygw_batch.gateway.signing.key import GatewayKey

SECRET = "{secret}"  # noqa: S105 (the place of the secret among the hashed fields, not one)


class AuthenticityCheck(Protocol):
    """A check of the profile that `[notifications] authenticity` names."""

    def proof(self, received: Received, values: Mapping[str, str]) -> Proof:
        """Return whether a notification with these values is proven. Never raises."""
        ...


class HashAlgorithm(StrEnum):
    """How a hash with a shared secret is made."""

    SHA256 = "sha256"
    """SHA-256 over the joined values, the secret among them."""
    SHA1 = "sha1"
    """The same with SHA-1, as some gateways have it. It is a reason to ask the gateway, and no proof."""
    HMAC_SHA256 = "hmac-sha256"
    """HMAC with SHA-256, the secret as its key."""
    HMAC_SHA512 = "hmac-sha512"
    """HMAC with SHA-512, the secret as its key."""


class HeaderEncoding(StrEnum):
    """How the bytes of a hash or a signature are written in a header."""

    HEX = "hex"
    BASE64 = "base64"


@dataclass(frozen=True, slots=True)
class SharedSecretHash:
    """A hash over named fields and a secret that gateway and merchant share, in hex, in a separate field.

    `fields` are names in order, `SECRET` is the place of the secret; `hash_field` carries the hash.
    """

    algorithm: HashAlgorithm
    fields: tuple[str, ...]
    separator: str
    hash_field: str
    secret: bytes = field(repr=False)

    def proof(self, received: Received, values: Mapping[str, str]) -> Proof:  # noqa: ARG002 (the protocol's)
        """Return FORGED unless the notification carries the right hash; compared in constant time.

        A value that holds the separator proves nothing: the same text could be made of other values.
        """
        given, parts = values.get(self.hash_field), []
        for name in self.fields:
            value = values.get(name)
            if name == SECRET:
                parts.append(self.secret)
            elif value is None or (self.separator and self.separator in value):
                return Proof.FORGED
            else:
                parts.append(value.encode("utf-8", "surrogatepass"))
        made = _digest(self.algorithm, self.secret, self.separator.encode().join(parts)).hex()
        if given is None or not hmac.compare_digest(made.encode(), given.lower().encode("utf-8", "surrogatepass")):
            return Proof.FORGED
        return Proof.UNPROVEN if self.algorithm is HashAlgorithm.SHA1 else Proof.PROVEN


@dataclass(frozen=True, slots=True)
class SignedHeader:
    """The header that carries a hash or a signature over the raw body. `prefix` comes before it (`sha256=`)."""

    name: str
    encoding: HeaderEncoding
    prefix: str = ""

    def value_of(self, received: Received) -> bytes | None:
        """Return the decoded bytes; None where the header is absent, is there twice, or cannot be decoded.

        Also None for a GET: what it says is in its address, which no hash over the body covers.
        """
        found = [value for name, value in received.headers if name == self.name.lower()]
        if received.method == "GET" or len(found) != 1 or not found[0].startswith(self.prefix):
            return None
        text = found[0].removeprefix(self.prefix).strip()
        try:
            return bytes.fromhex(text) if self.encoding is HeaderEncoding.HEX else base64.b64decode(text, validate=True)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class HeaderHash:
    """A keyed hash over the raw body, in a header."""

    algorithm: HashAlgorithm
    header: SignedHeader
    secret: bytes = field(repr=False)

    def proof(self, received: Received, values: Mapping[str, str]) -> Proof:  # noqa: ARG002 (the protocol's)
        """Return PROVEN if the header carries the hash of the very bytes that came, FORGED otherwise."""
        given = self.header.value_of(received)
        made = _digest(self.algorithm, self.secret, received.body)
        return Proof.PROVEN if given is not None and hmac.compare_digest(given, made) else Proof.FORGED


@dataclass(frozen=True, slots=True)
class HeaderSignature:
    """An RSA signature over the raw body, in a header."""

    header: SignedHeader
    key: GatewayKey

    def proof(self, received: Received, values: Mapping[str, str]) -> Proof:  # noqa: ARG002 (the protocol's)
        """Return PROVEN if the header carries the gateway's signature of the very bytes that came, else FORGED."""
        given = self.header.value_of(received)
        is_proven = given is not None and self.key.has_signed(received.body, given)
        return Proof.PROVEN if is_proven else Proof.FORGED


def _digest(algorithm: HashAlgorithm, secret: bytes, text: bytes) -> bytes:
    match algorithm:
        case HashAlgorithm.SHA256:
            return hashlib.sha256(text).digest()
        case HashAlgorithm.SHA1:
            return hashlib.sha1(text, usedforsecurity=False).digest()
        case HashAlgorithm.HMAC_SHA256:
            return hmac.digest(secret, text, hashlib.sha256)
        case HashAlgorithm.HMAC_SHA512:
            return hmac.digest(secret, text, hashlib.sha512)
        case _:
            assert_never(algorithm)
