"""Verifies a passkey signature: a WebAuthn assertion, offline, with the public key alone.

The challenge of an assertion is the SHA-256 of the signed text. What a browser adds (the page's origin, whether the
person was there) is checked against the configuration. Source: W3C Web Authentication, Level 3, section 7.2. The
signature counter is not checked: that needs a record for each key, and nothing depends on the order of two signatures.
"""

import base64
import hashlib
from dataclasses import dataclass
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

from paygw_batch.gateway.strict_json import strict_object
from paygw_batch.run.approval_keys import PublicKey

MAX_CLIENT_DATA_BYTES = 4096
_HASH_BYTES = 32
_AUTHENTICATOR_DATA_BYTES = _HASH_BYTES + 1 + 4
"""The hash of the relying party, flags, and a counter. There is more only if more was requested."""
_PRESENT, _VERIFIED, _MAY_BE_COPIED, _IS_COPIED = 0x01, 0x04, 0x08, 0x10
_CARRIES_MORE = 0x40 | 0x80
"""Flags for a new key and for extensions: an assertion that we request has neither."""


class PasskeySignature(BaseModel):
    """A passkey signature as it is in a file: the three parts of an assertion, each in base64url without padding."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    client_data: str
    """`clientDataJSON`: the act, the challenge and the origin, as the browser noted them."""
    authenticator_data: str
    signature: str


@dataclass(frozen=True, slots=True)
class RelyingParty:
    """The console as browsers know it: the origin of its pages."""

    origin: str

    @property
    def rp_id(self) -> str:
        """The name that a passkey is created for: the host of the origin."""
        return urlsplit(self.origin).hostname or ""


def challenge_of(data: bytes) -> str:
    """Return the challenge with which a passkey signs `data`: its SHA-256, in base64url."""
    return to_base64url(hashlib.sha256(data).digest())


def to_base64url(data: bytes) -> str:
    """Return bytes as WebAuthn writes them: base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def from_base64url(text: str) -> bytes | None:
    """Return the bytes that `to_base64url` writes as `text`, or None: no other spelling is valid."""
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return None
    return data if to_base64url(data) == text else None


def has_asserted(key: PublicKey, signature: PasskeySignature, data: bytes, party: RelyingParty) -> bool:
    """Whether the owner of `key`, present and verified at a page of `party`, signed exactly `data`."""
    client_data = from_base64url(signature.client_data)
    authenticator_data = from_base64url(signature.authenticator_data)
    plain = from_base64url(signature.signature)
    if client_data is None or authenticator_data is None or plain is None:
        return False
    return (
        is_client_data(client_data, "webauthn.get", challenge_of(data), party)
        and _is_of_verified_person(authenticator_data, party)
        and key.verifies(plain, authenticator_data + hashlib.sha256(client_data).digest())
    )


def party_named_by(signature: PasskeySignature) -> RelyingParty | None:
    """Return the console named by a browser in an assertion; None if it named none.

    This shows whether an assertion is consistent, not whether it is valid: only the configured console decides that.
    """
    members = strict_object(from_base64url(signature.client_data) or b"")
    origin = None if isinstance(members, str) else members.get("origin")
    return RelyingParty(origin) if isinstance(origin, str) else None


def is_client_data(client_data: bytes, kind: str, challenge: str, party: RelyingParty) -> bool:
    """Whether a browser collected this for this kind of act and this challenge, on a page of `party` itself.

    Browsers may add unknown members; a page inside another page's frame says so.
    """
    members = strict_object(client_data) if len(client_data) <= MAX_CLIENT_DATA_BYTES else "too long"
    if isinstance(members, str):
        return False
    return (
        members.get("type") == kind
        and members.get("challenge") == challenge
        and members.get("origin") == party.origin
        and members.get("crossOrigin", False) is False
        and "topOrigin" not in members
    )


def _is_of_verified_person(authenticator_data: bytes, party: RelyingParty) -> bool:
    if len(authenticator_data) != _AUTHENTICATOR_DATA_BYTES:
        return False
    flags = authenticator_data[_HASH_BYTES]
    return is_of_verified_person(authenticator_data, party) and not flags & _CARRIES_MORE


def is_of_verified_person(authenticator_data: bytes, party: RelyingParty) -> bool:
    """Whether an authenticator confirms that its owner was present and verified, for a passkey created for `party`."""
    if len(authenticator_data) < _AUTHENTICATOR_DATA_BYTES:
        return False
    flags = authenticator_data[_HASH_BYTES]
    return (
        authenticator_data[:_HASH_BYTES] == hashlib.sha256(party.rp_id.encode()).digest()
        and bool(flags & _PRESENT)
        and bool(flags & _VERIFIED)
        and bool(flags & _MAY_BE_COPIED or not flags & _IS_COPIED)
    )
