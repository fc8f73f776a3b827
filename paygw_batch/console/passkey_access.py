"""Stores the sessions, sign-ins and invitations of people who use the console with a passkey.

The first line of the signed text says that it is a sign-in, so its signature never counts as an approval. Credentials
are not stored, because the configuration lists each person's keys. A session ends after inactivity, after some hours,
or when the person or the passkey is removed from the configuration.
"""

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from threading import Lock
from typing import Any

from paygw_batch.approval.approval_keys import (
    PasskeySignature,
    PublicKey,
    RelyingParty,
    from_base64url,
    is_user_verified,
    is_valid_assertion,
    is_valid_client_data,
    normalise_name,
    parse_public_key,
    passkey_challenge,
)
from paygw_batch.approval.policy import configured_people, relying_party
from paygw_batch.clock import timestamp
from paygw_batch.console.permissions import Member, role_lists
from paygw_batch.errors import ConfigurationError, JournalError, SessionsBroken
from paygw_batch.files import write_atomically
from paygw_batch.journal.sqlite.connect import connect_side_database, fetch, transaction
from paygw_batch.language import say
from paygw_batch.settings.configuration import Settings

RANDOM_BYTES = 32
"""Length in bytes of secrets, session ids, nonces and invitation tokens."""
_MAX_SESSIONS = 1_000
"""Maximum number of sessions. Any further session ends the oldest one."""
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
"""The tables of the sessions file. `secret` proves that this console began a sign-in, but cannot open a session."""
_DELETE_EXCESS = "DELETE FROM session WHERE digest NOT IN (SELECT digest FROM session ORDER BY started_s DESC LIMIT ?)"


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A stored session: who signed in, how and when, and when it was last used.

    `key` and `credential` identify the passkey, and are empty if the person signed in without one.
    """

    person: str
    method: str
    key: str
    credential: str
    started_s: float
    seen_s: float


class StoredSessions:
    """The stored sessions of a console. Thread-safe. Every method raises `SessionsBroken` if the file is unusable."""

    def __init__(self, journal_path: Path) -> None:
        self._path = journal_path.with_name(f"{journal_path.name}.sessions")
        self._lock = Lock()
        try:
            self._connection = connect_side_database(self._path, _TABLES)
        except JournalError as error:
            raise SessionsBroken(error.message) from None
        with self._transaction():
            self._execute(
                "INSERT INTO secret SELECT ? WHERE NOT EXISTS (SELECT 1 FROM secret)", secrets.token_bytes(RANDOM_BYTES)
            )
            self.secret: bytes = self._execute("SELECT value FROM secret")[0][0]

    def add(self, digest: bytes, session: StoredSession, *, old_digest: bytes) -> None:
        """Store a session under the digest of its id. Deletes the session stored under `old_digest`."""
        with self._transaction():
            self._execute("DELETE FROM session WHERE digest = ?", old_digest)
            self._execute("INSERT INTO session VALUES (?, ?, ?, ?, ?, ?, ?)", digest, *astuple(session))
            self._execute(_DELETE_EXCESS, _MAX_SESSIONS)

    def session(self, digest: bytes) -> StoredSession | None:
        """Return the session stored under `digest`, or None if it does not exist."""
        query = "SELECT person, way, key, credential, started_s, seen_s FROM session WHERE digest = ?"
        with self._transaction():
            rows = self._execute(query, digest)
        return StoredSession(*rows[0]) if rows else None

    def record_use(self, digest: bytes, at_s: float) -> None:
        with self._transaction():
            self._execute("UPDATE session SET seen_s = ? WHERE digest = ?", at_s, digest)

    def delete(self, digest: bytes) -> None:
        with self._transaction():
            self._execute("DELETE FROM session WHERE digest = ?", digest)

    def delete_sessions(self, should_delete: Callable[[StoredSession], bool]) -> None:
        """Delete every session for which `should_delete` returns true."""
        query = "SELECT digest, person, way, key, credential, started_s, seen_s FROM session"
        with self._transaction():
            for digest, *columns in self._execute(query):
                if should_delete(StoredSession(*columns)):
                    self._execute("DELETE FROM session WHERE digest = ?", digest)

    def record_sign_in(self, digest: bytes, at_s: float, *, forget_before_s: float) -> bool:
        """Record a sign-in and return whether it was unused. Deletes records older than `forget_before_s`."""
        with self._transaction():
            self._execute("DELETE FROM used_sign_in WHERE at_s < ?", forget_before_s)
            self._execute("INSERT OR IGNORE INTO used_sign_in VALUES (?, ?)", digest, at_s)
            return self._connection.changes() == 1

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run the block in one durable transaction, with exclusive use of the file."""
        try:
            with self._lock, transaction(self._connection):
                yield
        except JournalError as error:
            raise SessionsBroken(error.message) from None

    def _execute(self, statement: str, *bindings: object) -> list[tuple[Any, ...]]:
        return fetch(self._connection, statement, bindings)


_MIN_USE_INTERVAL_S = 15.0
"""Minimum interval between recorded uses of a session, so that pages rarely wait for the disk."""
_MAX_CLOCK_STEP_S = 60.0
"""Sessions end if the clock is set back further than this, because their age is then unknown."""


class SignInMethod(StrEnum):
    """How a person signed in."""

    PASSKEY = "passkey"
    LIST = "list"
    """The person chose a name from a list, which only the sandbox shows."""


@dataclass(frozen=True, slots=True)
class SignInKey:
    """The passkey that a person signed in with. No other passkey can sign during the session."""

    key: PublicKey
    credential: str
    """The browser's id for the passkey. Pages use it to request the passkey."""


@dataclass(frozen=True, slots=True)
class WebSession:
    """The session of a signed-in person. Every form on its pages contains its `csrf_token`.

    `passkey` is None if the person signed in without a passkey.
    """

    member: Member
    csrf_token: str = field(repr=False)
    passkey: SignInKey | None = None
    remaining_s: float = 0
    """Seconds until the session ends if the person stays inactive."""

    def has_token(self, token: str) -> bool:
        """Return whether `token` is this session's CSRF token. An empty token never matches."""
        return bool(token) and hmac.compare_digest(token.encode(), self.csrf_token.encode())


class WebSessions:
    """Everyone's sessions. Stores only digests of session ids, because a digest cannot be used as an id.

    A session ends when its person is no longer in `members`, its passkey no longer in `keys`, or its method no longer
    in `methods`. It also ends after `idle_s` seconds without use, and after `max_age_s` seconds.
    """

    def __init__(
        self,
        sessions: StoredSessions,
        *,
        members: Iterable[Member],
        keys: Mapping[PublicKey, Member],
        methods: Collection[SignInMethod],
        idle_s: float,
        max_age_s: float,
        now_s: Callable[[], float],
    ) -> None:
        self._store = sessions
        self._members = {member.name: member for member in members}
        self._keys = {key.text: (key, member) for key, member in keys.items()}
        self._methods = frozenset(methods)
        self._idle_s = idle_s
        self._max_age_s = max_age_s
        self._now_s = now_s
        sessions.delete_sessions(lambda session: self._has_ended(session, now_s()))

    def sign_in(self, member: Member, old_id: str, method: SignInMethod, passkey: SignInKey | None = None) -> str:
        """Begin a session and return its id. Deletes the browser's previous session, `old_id`."""
        session_id, now_s = secrets.token_urlsafe(RANDOM_BYTES), self._now_s()
        key, credential = ("", "") if passkey is None else (passkey.key.text, passkey.credential)
        session = StoredSession(member.name, method, key, credential, now_s, now_s)
        self._store.add(_digest(session_id), session, old_digest=_digest(old_id))
        return session_id

    def session(self, session_id: str, *, is_poll: bool = False) -> WebSession | None:
        """Return a session by its id, or None if it has ended. A poll does not extend the session."""
        digest = _digest(session_id)
        session = self._store.session(digest) if session_id else None
        if session is None:
            return None
        now_s = self._now_s()
        if self._has_ended(session, now_s):
            self._store.delete(digest)
            return None
        if not is_poll and now_s - session.seen_s > _MIN_USE_INTERVAL_S:
            with suppress(SessionsBroken):  # If the disk is full, people can still view pages.
                self._store.record_use(digest, now_s)
        key = self._keys.get(session.key)
        passkey = None if key is None else SignInKey(key[0], session.credential)
        idle_s = now_s - session.seen_s if is_poll else 0
        remaining_s = min(self._idle_s - idle_s, self._max_age_s - (now_s - session.started_s))
        # The token is derived from the session's id, so it need not be stored. It reveals nothing about the id.
        csrf_token = hmac.new(session_id.encode(), b"forms", hashlib.sha256).hexdigest()
        return WebSession(self._members[session.person], csrf_token, passkey, max(remaining_s, 0))

    def sign_out(self, session_id: str) -> None:
        self._store.delete(_digest(session_id))

    def close(self) -> None:
        """Close the sessions file. Sessions continue after a restart."""
        self._store.close()

    def _has_ended(self, session: StoredSession, now_s: float) -> bool:
        idle_s, age_s = now_s - session.seen_s, now_s - session.started_s
        if idle_s > self._idle_s or age_s > self._max_age_s or min(idle_s, age_s) < -_MAX_CLOCK_STEP_S:
            return True
        if session.method not in self._methods or session.person not in self._members:
            return True
        entry = self._keys.get(session.key)
        return session.method == SignInMethod.PASSKEY and (entry is None or entry[1].name != session.person)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


INVITATION_H = 24
_TOKEN_ALPHABET = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
_TOKEN_LENGTH = 43
"""Length of `RANDOM_BYTES` bytes in unpadded base64url."""


class Invitations:
    """The invitations stored in a folder, which is created with the first invitation."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()

    def invite(self, name: str, token: str, now: datetime) -> str:
        """Store an invitation under a digest of its `token`, and return its expiry time."""
        expires_at = timestamp(now + timedelta(hours=INVITATION_H))
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._write(self._path(token), {"name": name, "expires_at": expires_at})
        return expires_at

    def invitation(self, token: str, now: datetime) -> Mapping[str, str] | None:
        """Return the `name` and `expires_at` of an open invitation, or None if it is missing, used or expired."""
        is_well_formed = len(token) == _TOKEN_LENGTH and _TOKEN_ALPHABET.issuperset(token)
        return self._read_unexpired(self._path(token), now) if is_well_formed else None

    def use(self, token: str, fingerprint: str, now: datetime) -> tuple[str, bool] | None:
        """Use an invitation to register the passkey with this fingerprint.

        Returns the person's name and whether this is the first use, because a second click sends the same passkey
        again. Returns None if the invitation is missing, has expired, or was used for another passkey.
        """
        used_path = self._path(token, "used")
        with self._lock:
            invitation = self.invitation(token, now)
            if invitation is None:
                used = self._read_unexpired(used_path, now)
                return (used["name"], False) if used is not None and used["fingerprint"] == fingerprint else None
            self._write(used_path, {**invitation, "fingerprint": fingerprint})
            try:
                self._path(token).unlink()
            except FileNotFoundError:  # Another browser used it first.
                return None
            return invitation["name"], True

    def _read_unexpired(self, path: Path, now: datetime) -> Mapping[str, str] | None:
        try:
            content: Mapping[str, str] = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        return content if timestamp(now) < content["expires_at"] else None

    def _write(self, path: Path, content: Mapping[str, str]) -> None:
        write_atomically(path, json.dumps(content, sort_keys=True).encode())

    def _path(self, token: str, extension: str = "json") -> Path:
        return self._folder / f"{hashlib.sha256(token.encode()).hexdigest()}.{extension}"


_FLAGS_OFFSET = 32
_NEW_KEY_FLAG = 0x40
"""Offset of the flags in the authenticator data, and the flag for a new key (WebAuthn, 6.1)."""
ALGORITHMS = (-7, -8, -257)
"""ES256, EdDSA and RS256 (RFC 9053, RFC 8812), in order of preference."""


def invitation_challenge(token: str) -> str:
    return passkey_challenge(f"paygw-batch invitation 1\n{token}".encode())


def parse_new_passkey(form: Mapping[str, str], token: str, party: RelyingParty) -> PublicKey | None:
    """Return the key of a newly created passkey, or None if the form is invalid.

    The form is valid if a verified user created the passkey for the invitation `token` on a page of `party`. Its fields
    are in base64url without padding, and `public_key` is the SubjectPublicKeyInfo from `getPublicKey()`.
    """
    client_data, authenticator_data, public_key = (
        from_base64url(form.get(name, "")) for name in ("client_data", "authenticator_data", "public_key")
    )
    if client_data is None or authenticator_data is None or public_key is None:
        return None
    if not is_valid_client_data(client_data, "webauthn.create", invitation_challenge(token), party):
        return None
    if not is_user_verified(authenticator_data, party) or not authenticator_data[_FLAGS_OFFSET] & _NEW_KEY_FLAG:
        return None
    return parse_public_key(base64.b64encode(public_key).decode("ascii"))


SIGN_IN_LIMIT_S = 300.0
"""Maximum time between opening the sign-in page and using the passkey."""
_SIGN_IN_RETENTION_S = 24 * 3600.0
"""How long used sign-ins are stored. If the clock is set back further, they can be used again."""


def sign_in_text(nonce: str) -> bytes:
    return f"paygw-batch sign-in 1\n{nonce}".encode()


class SignIns:
    """Begins sign-ins. Each can be completed only once, within `SIGN_IN_LIMIT_S` seconds.

    A nonce contains the time and an authentication code that only this console can compute. Only completed sign-ins are
    stored, so opening the page many times cannot fill the disk or displace other people's sign-ins.
    """

    def __init__(self, sessions: StoredSessions, *, now_s: Callable[[], float], new_nonce: Callable[[], str]) -> None:
        self._store = sessions
        self._now_s = now_s
        self._new_nonce = new_nonce

    def begin(self) -> str:
        payload = f"{self._new_nonce()}.{int(self._now_s())}"
        return f"{payload}.{self._mac(payload)}"

    def complete(self, nonce: str) -> bool:
        """Complete a sign-in. Returns False if this console did not begin it, or it is too old or already used."""
        payload, _, mac = nonce.rpartition(".")
        if not hmac.compare_digest(mac.encode(), self._mac(payload).encode()):
            return False
        now_s = self._now_s()
        if abs(now_s - int(payload.rpartition(".")[2])) > SIGN_IN_LIMIT_S:
            return False
        return self._store.record_sign_in(_digest(nonce), now_s, forget_before_s=now_s - _SIGN_IN_RETENTION_S)

    def _mac(self, payload: str) -> str:
        return hmac.new(self._store.secret, payload.encode(), hashlib.sha256).hexdigest()


def find_signing_key(
    nonce: str, signature: PasskeySignature, keys: Iterable[PublicKey], party: RelyingParty
) -> PublicKey | None:
    """Return the key in `keys` that signed the sign-in with this nonce, or None."""
    return next((key for key in keys if is_valid_assertion(key, signature, sign_in_text(nonce), party)), None)


@dataclass(frozen=True, slots=True)
class PasskeyAccess:
    """Everything needed to sign in with a passkey. `party` is None if no address is configured."""

    party: RelyingParty | None
    keys: Mapping[PublicKey, Member]
    sign_ins: SignIns
    invitations: Invitations


def build_passkey_access(settings: Settings, members: tuple[Member, ...], sessions: StoredSessions) -> PasskeyAccess:
    """Build the keys, sign-ins and invitations. Raises `ConfigurationError` if two people have the same key."""
    return PasskeyAccess(
        party=relying_party(settings),
        keys=_members_by_key(settings, members),
        sign_ins=SignIns(sessions, now_s=time.time, new_nonce=lambda: secrets.token_urlsafe(RANDOM_BYTES)),
        invitations=Invitations(invitation_folder(settings)),
    )


def invitation_folder(settings: Settings) -> Path:
    return settings.console_directory() / "invitations"


def parse_signature(form: Mapping[str, str]) -> PasskeySignature:
    """Return the signature in a form sent by `static/passkey.js`. Missing parts are empty."""
    return PasskeySignature(
        client_data=form.get("client_data", ""),
        authenticator_data=form.get("authenticator_data", ""),
        signature=form.get("signature", ""),
    )


def _members_by_key(settings: Settings, members: tuple[Member, ...]) -> Mapping[PublicKey, Member]:
    members_by_name = {normalise_name(member.name): member for member in members}
    members_by_key: dict[PublicKey, Member] = {}
    for name, key in _listed_keys(settings):
        member = members_by_name[normalise_name(name)]
        if members_by_key.setdefault(key, member) != member:
            raise ConfigurationError(
                say(
                    "The same key (fingerprint {fingerprint}) is listed under two names, {name} and {other}.",
                    name=members_by_key[key].name,
                    other=member.name,
                    fingerprint=key.fingerprint,
                ),
                hint=say("List each key under the name of the one person who holds it."),
            )
    return members_by_key


def _listed_keys(settings: Settings) -> Iterator[tuple[str, PublicKey]]:
    for person in configured_people(settings).listed:
        yield from ((person.name, key) for key in person.keys)
    for role, keys_by_name in role_lists(settings):
        for name, key_texts in keys_by_name.items():
            for key_text in [key_texts] if isinstance(key_texts, str) else key_texts:
                key = parse_public_key(key_text)
                if key is None:
                    raise ConfigurationError(
                        say("console.{section}.{name} is not a person's public key.", section=f"{role}s", name=name)
                    )
                yield name, key
