"""Keeps sessions and used sign-ins in a small database beside the journal, so that a restart signs nobody out.

It has the digest of a session's id, and neither the id nor the token of its forms: nobody gets in with it.
"""

import secrets
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from paygw_batch.errors import SessionsBroken
from paygw_batch.journal.sqlite.connect import SideDatabase

SECRET_BYTES = 32
_MAX_SESSIONS = 1_000
"""The maximum number of sessions: the oldest ends for a new one."""
_TABLES = """
CREATE TABLE session (
    digest     BLOB PRIMARY KEY,
    person     TEXT NOT NULL,
    way        TEXT NOT NULL,
    key        TEXT NOT NULL,
    credential TEXT NOT NULL,
    started_s  REAL NOT NULL,
    seen_s     REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE used_sign_in (
    digest BLOB PRIMARY KEY,
    at_s   REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE secret (
    value BLOB NOT NULL
) STRICT;
"""
"""`secret` proves that a sign-in was begun here. It opens no session, and signs nothing for anybody."""
_PAYS = 0x70617973
_SESSIONS = SideDatabase("file of sessions", _PAYS, _TABLES, SessionsBroken, SessionsBroken)
_OLDEST = "DELETE FROM session WHERE digest NOT IN (SELECT digest FROM session ORDER BY started_s DESC LIMIT ?)"


@dataclass(frozen=True, slots=True)
class KeptSession:
    """A session as it is kept: whose it is, how the person signed in, since when, and when it was used last.

    `key` and `credential` are those of the passkey; empty if the person signed in another way.
    """

    person: str
    way: str
    key: str
    credential: str
    started_s: float
    seen_s: float


class KeptSessions:
    """The sessions of the pages about one journal, until `close`. It may be called from several threads.

    Raises `SessionsBroken`, and `JournalError` for a file that is not private.
    """

    def __init__(self, journal: Path) -> None:
        self._path = journal.with_name(f"{journal.name}.sessions")
        self._lock = Lock()
        _SESSIONS.make(
            self._path,
            lambda new: new.execute("INSERT INTO secret VALUES (?)", (secrets.token_bytes(SECRET_BYTES),)),
        )
        self._connection = _SESSIONS.open(self._path, write=True)
        with _SESSIONS.reading(self._path):
            self.secret: bytes = self._run("SELECT value FROM secret")[0][0]

    def begin(self, digest: bytes, session: KeptSession, *, instead_of: bytes) -> None:
        """Keep a new session; the one `instead_of` which it begins ends."""
        with self._lock, _SESSIONS.writing(self._connection, self._path):
            self._run("DELETE FROM session WHERE digest = ?", instead_of)
            self._run("INSERT INTO session VALUES (?, ?, ?, ?, ?, ?, ?)", digest, *astuple(session))
            self._run(_OLDEST, _MAX_SESSIONS)

    def session(self, digest: bytes) -> KeptSession | None:
        """Return the session with an id of this digest; None if there is none."""
        query = "SELECT person, way, key, credential, started_s, seen_s FROM session WHERE digest = ?"
        with self._lock, _SESSIONS.reading(self._path):
            found = self._run(query, digest)
        return KeptSession(*found[0]) if found else None

    def use(self, digest: bytes, at_s: float) -> None:
        """Note that a session was used."""
        with self._lock, _SESSIONS.writing(self._connection, self._path):
            self._run("UPDATE session SET seen_s = ? WHERE digest = ?", at_s, digest)

    def end(self, digest: bytes) -> None:
        """End a session."""
        with self._lock, _SESSIONS.writing(self._connection, self._path):
            self._run("DELETE FROM session WHERE digest = ?", digest)

    def end_all(self, is_over: Callable[[KeptSession], bool]) -> None:
        """End every session that `is_over`."""
        query = "SELECT digest, person, way, key, credential, started_s, seen_s FROM session"
        with self._lock, _SESSIONS.writing(self._connection, self._path):
            for digest, *kept in self._run(query):
                if is_over(KeptSession(*kept)):
                    self._run("DELETE FROM session WHERE digest = ?", digest)

    def end_sign_in(self, digest: bytes, at_s: float, *, forget_before_s: float) -> bool:
        """Note that a sign-in was used; return whether this is the first time. Old ones are forgotten."""
        with self._lock, _SESSIONS.writing(self._connection, self._path):
            self._run("DELETE FROM used_sign_in WHERE at_s < ?", forget_before_s)
            self._run("INSERT OR IGNORE INTO used_sign_in VALUES (?, ?)", digest, at_s)
            return self._connection.changes() == 1

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _run(self, statement: str, *bindings: object) -> list[tuple[Any, ...]]:
        return _SESSIONS.run(self._connection, statement, *bindings)
