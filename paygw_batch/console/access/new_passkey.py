"""Reads a new passkey that a browser has made, for the administrator to put its line into the configuration.

Nothing proves to us that the key is in the authenticator, and nothing needs to: a wrong line signs nobody in. The
administrator compares the fingerprint with the person, by phone.
"""

import base64
from dataclasses import dataclass

from paygw_batch.run.approval_keys import PublicKey, read_public_key
from paygw_batch.run.passkey import (
    RelyingParty,
    challenge_of,
    from_base64url,
    is_client_data,
    is_of_verified_person,
)

_FLAGS = 32
_HAS_KEY = 0x40
ALGORITHMS = (-7, -8, -257)
"""ES256, EdDSA and RS256 (RFC 9053, RFC 8812), the wanted ones first."""


@dataclass(frozen=True, slots=True)
class NewPasskey:
    """The parts of a new passkey as a browser hands them in, each in base64url without padding."""

    client_data: str
    authenticator_data: str
    public_key: str
    """`getPublicKey()`: SubjectPublicKeyInfo."""


def invitation_challenge(token: str) -> str:
    """Return the challenge for the passkey that an invitation asks for."""
    return challenge_of(f"paygw-batch invitation 1\n{token}".encode())


def new_passkey(made: NewPasskey, token: str, party: RelyingParty) -> PublicKey | None:
    """Return the key of a passkey that was made for an invitation on a page of `party`, its owner verified; or None."""
    client_data, said = from_base64url(made.client_data), from_base64url(made.authenticator_data)
    plain = from_base64url(made.public_key)
    if client_data is None or said is None or plain is None:
        return None
    if not is_client_data(client_data, "webauthn.create", invitation_challenge(token), party):
        return None
    if not is_of_verified_person(said, party) or not said[_FLAGS] & _HAS_KEY:
        return None
    return read_public_key(base64.b64encode(plain).decode("ascii"))
