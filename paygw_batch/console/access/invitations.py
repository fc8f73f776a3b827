"""Keeps invitations: a link by which one person makes a passkey, once, within a day.

Each is a file named after the digest of its token: who reads the folder cannot use what is in it. Removing the file is
using the invitation, so that of two browsers at the same moment one is refused.
"""

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from paygw_batch.clock import timestamp
from paygw_batch.files import write_whole

INVITATION_H = 24
_PLAIN_TOKEN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
_TOKEN_CHARACTERS = 43
"""32 bytes in base64url."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """Whose passkey an invitation asks for, and until when."""

    name: str
    expires_at: str


class Invitations:
    """The invitations in a folder, which is made when the first one is written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def invite(self, name: str, token: str, now: datetime) -> Invitation:
        """Write an invitation for a person. `token` is random, and is in the link alone."""
        invitation = Invitation(name, timestamp(now + timedelta(hours=INVITATION_H)))
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = {"expires_at": invitation.expires_at, "name": invitation.name}
        write_whole(self._path(token), json.dumps(content).encode())
        return invitation

    def invitation(self, token: str, now: datetime) -> Invitation | None:
        """Return the invitation with this token; None where there is none, or it was used, or has expired."""
        if len(token) != _TOKEN_CHARACTERS or not _PLAIN_TOKEN.issuperset(token):
            return None
        try:
            content = json.loads(self._path(token).read_bytes())
        except FileNotFoundError:
            return None
        found = Invitation(str(content["name"]), str(content["expires_at"]))
        return found if timestamp(now) < found.expires_at else None

    def use(self, token: str, now: datetime) -> Invitation | None:
        """Return the invitation with this token, which nobody can use any more; None as `invitation` does."""
        found = self.invitation(token, now)
        if found is None:
            return None
        try:
            self._path(token).unlink()
        except FileNotFoundError:  # another browser was quicker
            return None
        return found

    def _path(self, token: str) -> Path:
        return self._folder / f"{hashlib.sha256(token.encode()).hexdigest()}.json"
