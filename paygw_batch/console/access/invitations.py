"""Keeps invitations, a link by which one person makes a passkey once within a day, and reads the passkey made by one.

Each is a file named after the digest of its token: a person who reads the folder cannot use it. Removing the file is
using the invitation, so that of two browsers at the same moment one is refused.

Nothing proves to us that the key is in the authenticator, and nothing needs to: a wrong line signs nobody in. The
administrator compares the fingerprint with the person by phone, and puts the line into the configuration.
"""

import base64
import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from threading import Lock

from paygw_batch.clock import timestamp
from paygw_batch.files import write_whole
from paygw_batch.run.approval_keys import PublicKey, read_public_key
from paygw_batch.run.passkey import (
    RelyingParty,
    challenge_of,
    from_base64url,
    is_client_data,
    is_of_verified_person,
)

INVITATION_H = 24
_PLAIN_TOKEN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
_TOKEN_CHARACTERS = 43
"""32 bytes in base64url."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """Whose passkey an invitation asks for, and until when."""

    name: str
    expires_at: str


@dataclass(frozen=True, slots=True)
class UsedInvitation:
    """Whose passkey was made by an invitation, and whether this was the first click."""

    name: str
    is_first: bool


class Invitations:
    """The invitations in a folder, which is made when the first one is written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()

    def invite(self, name: str, token: str, now: datetime) -> Invitation:
        """Write an invitation for a person. `token` is random, and is in the link alone."""
        invitation = Invitation(name, timestamp(now + timedelta(hours=INVITATION_H)))
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = {"expires_at": invitation.expires_at, "name": invitation.name}
        write_whole(self._path(token), json.dumps(content).encode())
        return invitation

    def invitation(self, token: str, now: datetime) -> Invitation | None:
        """Return the invitation with this token; None if there is none, or it was used, or has expired."""
        if len(token) != _TOKEN_CHARACTERS or not _PLAIN_TOKEN.issuperset(token):
            return None
        try:
            content = json.loads(self._path(token).read_bytes())
        except FileNotFoundError:
            return None
        found = Invitation(str(content["name"]), str(content["expires_at"]))
        return found if timestamp(now) < found.expires_at else None

    def use(self, token: str, fingerprint: str, now: datetime) -> UsedInvitation | None:
        """Return the invitation with this token, used for the passkey with this fingerprint and for none other.

        The same passkey again is the second click of one form. None as `invitation` does.
        """
        with self._lock:
            found = self.invitation(token, now)
            if found is None:
                return self._used_before(token, fingerprint, now)
            content = {"expires_at": found.expires_at, "fingerprint": fingerprint, "name": found.name}
            write_whole(self._path(token, "used"), json.dumps(content).encode())
            try:
                self._path(token).unlink()
            except FileNotFoundError:  # another browser was quicker
                return None
            return UsedInvitation(found.name, is_first=True)

    def _used_before(self, token: str, fingerprint: str, now: datetime) -> UsedInvitation | None:
        try:
            content = json.loads(self._path(token, "used").read_bytes())
        except FileNotFoundError:
            return None
        is_same = content["fingerprint"] == fingerprint and timestamp(now) < content["expires_at"]
        return UsedInvitation(str(content["name"]), is_first=False) if is_same else None

    def _path(self, token: str, ending: str = "json") -> Path:
        return self._folder / f"{hashlib.sha256(token.encode()).hexdigest()}.{ending}"


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
