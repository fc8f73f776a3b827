"""Remembers who is signed in: in memory alone, so that a restart signs everyone out."""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock

from paygw_batch.console.members import Member
from paygw_batch.run.approval_keys import PublicKey

_BYTES = 32
_MOST = 1_000
"""How many sessions there are at the most: the oldest ends for a new one."""


@dataclass(frozen=True, slots=True)
class SignedInKey:
    """The passkey by which a person signed in: with it, and no other, the person signs approvals."""

    key: PublicKey
    credential: str
    """The browser's own name for it, by which a page asks for this one."""


@dataclass(slots=True)
class WebSession:
    """A person who is signed in. `csrf_token` is in every form of theirs, and in nobody else's.

    `passkey` is None where a name was chosen from the list of the sandbox.
    """

    member: Member
    started_s: float
    seen_s: float
    csrf_token: str = field(repr=False)
    passkey: SignedInKey | None = None

    def has_token(self, given: str) -> bool:
        """Whether a form came from a page of this session. No token, or an empty one, never is its own."""
        return bool(given) and hmac.compare_digest(given.encode(), self.csrf_token.encode())


class WebSessions:
    """All sessions, by the digest of their id: nobody can sign in with a digest."""

    def __init__(self, *, idle_s: float, at_most_s: float, monotonic_s: Callable[[], float]) -> None:
        self._idle_s = idle_s
        self._at_most_s = at_most_s
        self._monotonic_s = monotonic_s
        self._found: dict[bytes, WebSession] = {}
        self._lock = Lock()

    def sign_in(self, member: Member, before: str, passkey: SignedInKey | None = None) -> str:
        """Return the id of a new session. The one `before` it, from the same browser, ends."""
        session_id, now = secrets.token_urlsafe(_BYTES), self._monotonic_s()
        with self._lock:
            self._found.pop(_digest(before), None)
            while len(self._found) >= _MOST:
                del self._found[next(iter(self._found))]
            self._found[_digest(session_id)] = WebSession(member, now, now, secrets.token_urlsafe(_BYTES), passkey)
        return session_id

    def session(self, session_id: str, *, is_poll: bool = False) -> WebSession | None:
        """Return the session with an id, None where it has ended. A page that asks by itself keeps none alive."""
        now = self._monotonic_s()
        with self._lock:
            found = self._found.get(_digest(session_id))
            if found is None:
                return None
            if now - found.seen_s > self._idle_s or now - found.started_s > self._at_most_s:
                del self._found[_digest(session_id)]
                return None
            if not is_poll:
                found.seen_s = now
            return found

    def sign_out(self, session_id: str) -> None:
        """End a session."""
        with self._lock:
            self._found.pop(_digest(session_id), None)


def _digest(session_id: str) -> bytes:
    return hashlib.sha256(session_id.encode()).digest()
