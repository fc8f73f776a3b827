"""Knows who is signed in. A session ends after inactivity, after some hours, or with the person's passkey."""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, field
from enum import StrEnum
from pathlib import Path
from threading import Lock
from typing import Any

from paygw_batch.console.permissions import Member
from paygw_batch.errors import JournalError, SessionsBroken
from paygw_batch.journal.sqlite.connect import connect_beside, fetch, transaction
from paygw_batch.run.approval_keys import PublicKey

SECRET_BYTES = 32
_MAX_SESSIONS = 1_000
"""The maximum number of sessions; a new one ends the oldest."""
_TABLES = """
CREATE TABLE IF NOT EXISTS session (
    digest     BLOB PRIMARY KEY,
    person     TEXT NOT NULL,
    way        TEXT NOT NULL,
    key        TEXT NOT NULL,
    credential TEXT NOT NULL,
    started_s  REAL NOT NULL,
    seen_s     REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS used_sign_in (
    digest BLOB PRIMARY KEY,
    at_s   REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS secret (
    value BLOB NOT NULL
) STRICT;
"""
"""`secret` proves that a sign-in was begun here. It opens no session, and signs nothing for anyone."""
_OLDEST = "DELETE FROM session WHERE digest NOT IN (SELECT digest FROM session ORDER BY started_s DESC LIMIT ?)"


@dataclass(frozen=True, slots=True)
class KeptSession:
    """A stored session: its person, how and when they signed in, and its last use.

    `key` and `credential` are the passkey's; empty if the person signed in another way.
    """

    person: str
    way: str
    key: str
    credential: str
    started_s: float
    seen_s: float


class KeptSessions:
    """The sessions of the pages about one journal, until `close`. Safe to call from several threads.

    Raises `SessionsBroken`, and `JournalError` if the file is not private.
    """

    def __init__(self, journal: Path) -> None:
        self._path = journal.with_name(f"{journal.name}.sessions")
        self._lock = Lock()
        try:
            self._connection = connect_beside(self._path, _TABLES)
        except JournalError as error:
            raise SessionsBroken(error.message) from None
        with self._transaction():
            self._run(
                "INSERT INTO secret SELECT ? WHERE NOT EXISTS (SELECT 1 FROM secret)", secrets.token_bytes(SECRET_BYTES)
            )
            self.secret: bytes = self._run("SELECT value FROM secret")[0][0]

    def begin(self, digest: bytes, session: KeptSession, *, instead_of: bytes) -> None:
        """Store a new session, and end the session `instead_of`, which it replaces."""
        with self._transaction():
            self._run("DELETE FROM session WHERE digest = ?", instead_of)
            self._run("INSERT INTO session VALUES (?, ?, ?, ?, ?, ?, ?)", digest, *astuple(session))
            self._run(_OLDEST, _MAX_SESSIONS)

    def session(self, digest: bytes) -> KeptSession | None:
        """Return the session whose id has this digest; None if there is none."""
        query = "SELECT person, way, key, credential, started_s, seen_s FROM session WHERE digest = ?"
        with self._transaction():
            found = self._run(query, digest)
        return KeptSession(*found[0]) if found else None

    def use(self, digest: bytes, at_s: float) -> None:
        """Record that a session was used."""
        with self._transaction():
            self._run("UPDATE session SET seen_s = ? WHERE digest = ?", at_s, digest)

    def end(self, digest: bytes) -> None:
        """End a session."""
        with self._transaction():
            self._run("DELETE FROM session WHERE digest = ?", digest)

    def end_all(self, is_over: Callable[[KeptSession], bool]) -> None:
        """End every session for which `is_over` is true."""
        query = "SELECT digest, person, way, key, credential, started_s, seen_s FROM session"
        with self._transaction():
            for digest, *kept in self._run(query):
                if is_over(KeptSession(*kept)):
                    self._run("DELETE FROM session WHERE digest = ?", digest)

    def end_sign_in(self, digest: bytes, at_s: float, *, forget_before_s: float) -> bool:
        """Record that a sign-in was used; return whether this is the first time. Old ones are removed."""
        with self._transaction():
            self._run("DELETE FROM used_sign_in WHERE at_s < ?", forget_before_s)
            self._run("INSERT OR IGNORE INTO used_sign_in VALUES (?, ?)", digest, at_s)
            return self._connection.changes() == 1

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run the block in one durable transaction, alone."""
        try:
            with self._lock, transaction(self._connection):
                yield
        except JournalError as error:
            raise SessionsBroken(error.message) from None

    def _run(self, statement: str, *bindings: object) -> list[tuple[Any, ...]]:
        return fetch(self._connection, statement, bindings)


_BYTES = 32
_NOTED_EVERY_S = 15.0
"""A use is recorded at most this often, so that pages opened in quick succession do not wait for a disk."""
_CLOCK_STEP_S = 60.0
"""If the clock goes back by more than this, the sessions end, because their age is unknown."""


class SignInWay(StrEnum):
    """How a person signed in."""

    PASSKEY = "passkey"
    LIST = "list"
    """Chosen from the list of the sandbox."""


@dataclass(frozen=True, slots=True)
class SignedInKey:
    """The passkey of a sign-in: the person signs approvals with this one, and no other."""

    key: PublicKey
    credential: str
    """The browser's own name for it, by which a page asks for this one."""


@dataclass(frozen=True, slots=True)
class WebSession:
    """A signed-in person. `csrf_token` is in each of their forms, and in nobody else's.

    `passkey` is None if the person signed in another way.
    """

    member: Member
    csrf_token: str = field(repr=False)
    passkey: SignedInKey | None = None
    left_s: float = 0
    """The seconds of inactivity after which the session ends."""

    def has_token(self, given: str) -> bool:
        """Whether a form came from a page of this session. A missing or empty token never counts."""
        return bool(given) and hmac.compare_digest(given.encode(), self.csrf_token.encode())


class WebSessions:
    """All sessions, by the digest of their id: nobody can sign in with a digest.

    Each ends with its basis: the person among `members`, the passkey among `keys`, the way among `ways`.
    """

    def __init__(
        self,
        kept: KeptSessions,
        *,
        members: Iterable[Member],
        keys: Mapping[PublicKey, Member],
        ways: Collection[SignInWay],
        idle_s: float,
        at_most_s: float,
        now_s: Callable[[], float],
    ) -> None:
        self._kept = kept
        self._members = {member.name: member for member in members}
        self._keys = {key.text: (key, member) for key, member in keys.items()}
        self._ways = frozenset(ways)
        self._idle_s = idle_s
        self._at_most_s = at_most_s
        self._now_s = now_s
        kept.end_all(lambda one: self._is_over(one, now_s()))

    def sign_in(self, member: Member, before: str, way: SignInWay, passkey: SignedInKey | None = None) -> str:
        """Return the id of a new session. The session `before` it in the same browser ends."""
        session_id, now_s = secrets.token_urlsafe(_BYTES), self._now_s()
        key, credential = ("", "") if passkey is None else (passkey.key.text, passkey.credential)
        session = KeptSession(member.name, way, key, credential, now_s, now_s)
        self._kept.begin(_digest(session_id), session, instead_of=_digest(before))
        return session_id

    def session(self, session_id: str, *, is_poll: bool = False) -> WebSession | None:
        """Return the session with an id, None if it has ended. A polling page does not prolong it."""
        digest = _digest(session_id)
        found = self._kept.session(digest) if session_id else None
        if found is None:
            return None
        now_s = self._now_s()
        if self._is_over(found, now_s):
            self._kept.end(digest)
            return None
        if not is_poll and now_s - found.seen_s > _NOTED_EVERY_S:
            with suppress(SessionsBroken):  # on a full disk people keep reading until the session ends
                self._kept.use(digest, now_s)
        key = self._keys.get(found.key)
        passkey = None if key is None else SignedInKey(key[0], found.credential)
        idle_s = now_s - found.seen_s if is_poll else 0
        left_s = min(self._idle_s - idle_s, self._at_most_s - (now_s - found.started_s))
        return WebSession(self._members[found.person], _token_of(session_id), passkey, max(left_s, 0))

    def sign_out(self, session_id: str) -> None:
        """End a session."""
        self._kept.end(_digest(session_id))

    def close(self) -> None:
        """Close the store of sessions; they continue when the pages are served again."""
        self._kept.close()

    def _is_over(self, one: KeptSession, now_s: float) -> bool:
        idle_s, age_s = now_s - one.seen_s, now_s - one.started_s
        if idle_s > self._idle_s or age_s > self._at_most_s or min(idle_s, age_s) < -_CLOCK_STEP_S:
            return True
        if one.way not in self._ways or one.person not in self._members:
            return True
        owner = self._keys.get(one.key)
        return one.way == SignInWay.PASSKEY and (owner is None or owner[1].name != one.person)


def _digest(session_id: str) -> bytes:
    return hashlib.sha256(session_id.encode()).digest()


def _token_of(session_id: str) -> str:
    """Return the token for a session's forms. It reveals nothing about the id, and is not stored."""
    return hmac.new(session_id.encode(), b"forms", hashlib.sha256).hexdigest()
