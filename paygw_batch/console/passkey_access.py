"""Keeps sessions, sign-ins and invitations: the parts of access to the console by passkey.

A sign-in signs a text whose first line says that it is a sign-in, so the signature never counts as an approval. No list
of credentials is kept: the configuration says whose key made the signature. A session ends after inactivity, after some
hours, or when the configuration no longer has the person or the passkey.
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
    challenge_of,
    from_base64url,
    has_asserted,
    is_client_data,
    is_of_verified_person,
    plain_name,
    read_public_key,
)
from paygw_batch.approval.policy import listed_people, party_of
from paygw_batch.clock import timestamp
from paygw_batch.console.permissions import Member, console_lists
from paygw_batch.errors import ConfigurationError, JournalError, SessionsBroken
from paygw_batch.files import write_whole
from paygw_batch.journal.sqlite.connect import connect_beside, fetch, transaction
from paygw_batch.language import say
from paygw_batch.settings.configuration import Settings

RANDOM_BYTES = 32
"""The length in bytes of secrets, session ids, nonces, and tokens of invitations."""
_MAX_SESSIONS = 1_000
"""The maximum number of sessions. A further session ends the oldest."""
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
"""The tables of the sessions file. `secret` only proves that a sign-in was begun here; it opens no session."""
_OLDEST = "DELETE FROM session WHERE digest NOT IN (SELECT digest FROM session ORDER BY started_s DESC LIMIT ?)"


@dataclass(frozen=True, slots=True)
class KeptSession:
    """A stored session: its person, how and when the person signed in, and its last use.

    `key` and `credential` identify the passkey. They are empty if the person signed in without a passkey.
    """

    person: str
    way: str
    key: str
    credential: str
    started_s: float
    seen_s: float


class KeptSessions:
    """The stored sessions of the pages for one journal, in a file beside it. Safe to use from several threads.

    Raises `SessionsBroken` if the file cannot be used.
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
                "INSERT INTO secret SELECT ? WHERE NOT EXISTS (SELECT 1 FROM secret)", secrets.token_bytes(RANDOM_BYTES)
            )
            self.secret: bytes = self._run("SELECT value FROM secret")[0][0]

    def begin(self, digest: bytes, session: KeptSession, *, instead_of: bytes) -> None:
        """Store a new session, and end the session `instead_of`, which the new session replaces."""
        with self._transaction():
            self._run("DELETE FROM session WHERE digest = ?", instead_of)
            self._run("INSERT INTO session VALUES (?, ?, ?, ?, ?, ?, ?)", digest, *astuple(session))
            self._run(_OLDEST, _MAX_SESSIONS)

    def session(self, digest: bytes) -> KeptSession | None:
        """Return the session whose id has this digest; None if there is no such session."""
        query = "SELECT person, way, key, credential, started_s, seen_s FROM session WHERE digest = ?"
        with self._transaction():
            rows = self._run(query, digest)
        return KeptSession(*rows[0]) if rows else None

    def use(self, digest: bytes, at_s: float) -> None:
        with self._transaction():
            self._run("UPDATE session SET seen_s = ? WHERE digest = ?", at_s, digest)

    def end(self, digest: bytes) -> None:
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
        """Record that a sign-in was used, and return whether it was the first use. Old records are removed."""
        with self._transaction():
            self._run("DELETE FROM used_sign_in WHERE at_s < ?", forget_before_s)
            self._run("INSERT OR IGNORE INTO used_sign_in VALUES (?, ?)", digest, at_s)
            return self._connection.changes() == 1

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run the block in one durable transaction, while no other thread uses the file."""
        try:
            with self._lock, transaction(self._connection):
                yield
        except JournalError as error:
            raise SessionsBroken(error.message) from None

    def _run(self, statement: str, *bindings: object) -> list[tuple[Any, ...]]:
        return fetch(self._connection, statement, bindings)


_NOTED_EVERY_S = 15.0
"""The interval within which further uses are not recorded, so that pages rarely wait for a disk."""
_CLOCK_STEP_S = 60.0
"""If the clock goes back by more than this time, sessions end, because their age is unknown."""


class SignInWay(StrEnum):
    """How a person signed in."""

    PASSKEY = "passkey"
    LIST = "list"
    """The person chose a name from the list, which only the sandbox shows."""


@dataclass(frozen=True, slots=True)
class SignedInKey:
    """The passkey of a sign-in. The person signs approvals with this passkey and no other."""

    key: PublicKey
    credential: str
    """The browser's id of the passkey, with which a page asks for it."""


@dataclass(frozen=True, slots=True)
class WebSession:
    """The session of a signed-in person. `csrf_token` is in every form of this session, and in no other form.

    `passkey` is None if the person signed in without a passkey.
    """

    member: Member
    csrf_token: str = field(repr=False)
    passkey: SignedInKey | None = None
    left_s: float = 0
    """The seconds of inactivity after which the session ends."""

    def has_token(self, token: str) -> bool:
        """Return whether a form with this token came from a page of this session. An empty token never does."""
        return bool(token) and hmac.compare_digest(token.encode(), self.csrf_token.encode())


class WebSessions:
    """The sessions of all people. Only digests of their ids are stored, and nobody can sign in with a digest.

    A session ends when its person is not among `members`, its passkey not among `keys`, or its way not among `ways`. It
    also ends after `idle_s` seconds without use, and after `at_most_s` seconds.
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
        kept.end_all(lambda session: self._is_over(session, now_s()))

    def sign_in(self, member: Member, before: str, way: SignInWay, passkey: SignedInKey | None = None) -> str:
        """Begin a session, and return its id. The session with the id `before`, in the same browser, ends."""
        session_id, now_s = secrets.token_urlsafe(RANDOM_BYTES), self._now_s()
        key, credential = ("", "") if passkey is None else (passkey.key.text, passkey.credential)
        session = KeptSession(member.name, way, key, credential, now_s, now_s)
        self._kept.begin(_digest(session_id), session, instead_of=_digest(before))
        return session_id

    def session(self, session_id: str, *, is_poll: bool = False) -> WebSession | None:
        """Return the session with an id; None if it has ended. A polling page does not prolong the session."""
        digest = _digest(session_id)
        session = self._kept.session(digest) if session_id else None
        if session is None:
            return None
        now_s = self._now_s()
        if self._is_over(session, now_s):
            self._kept.end(digest)
            return None
        if not is_poll and now_s - session.seen_s > _NOTED_EVERY_S:
            with suppress(SessionsBroken):  # on a full disk people keep reading until the session ends
                self._kept.use(digest, now_s)
        key = self._keys.get(session.key)
        passkey = None if key is None else SignedInKey(key[0], session.credential)
        idle_s = now_s - session.seen_s if is_poll else 0
        left_s = min(self._idle_s - idle_s, self._at_most_s - (now_s - session.started_s))
        # The token is derived from the session's id, so it need not be stored. It reveals nothing about the id.
        csrf_token = hmac.new(session_id.encode(), b"forms", hashlib.sha256).hexdigest()
        return WebSession(self._members[session.person], csrf_token, passkey, max(left_s, 0))

    def sign_out(self, session_id: str) -> None:
        self._kept.end(_digest(session_id))

    def close(self) -> None:
        """Close the file of sessions. The sessions continue when the pages are served again."""
        self._kept.close()

    def _is_over(self, session: KeptSession, now_s: float) -> bool:
        idle_s, age_s = now_s - session.seen_s, now_s - session.started_s
        if idle_s > self._idle_s or age_s > self._at_most_s or min(idle_s, age_s) < -_CLOCK_STEP_S:
            return True
        if session.way not in self._ways or session.person not in self._members:
            return True
        owner = self._keys.get(session.key)
        return session.way == SignInWay.PASSKEY and (owner is None or owner[1].name != session.person)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


INVITATION_H = 24
_PLAIN_TOKEN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
_TOKEN_CHARACTERS = 43
"""The length of `RANDOM_BYTES` bytes in base64url."""


class Invitations:
    """The invitations in a folder, which is created for the first invitation."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()

    def invite(self, name: str, token: str, now: datetime) -> str:
        """Write an invitation for a person, and return when it expires. Only the link contains the random `token`."""
        expires_at = timestamp(now + timedelta(hours=INVITATION_H))
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._write(self._path(token), {"name": name, "expires_at": expires_at})
        return expires_at

    def invitation(self, token: str, now: datetime) -> Mapping[str, str] | None:
        """Return the open invitation with this token (`name`, `expires_at`); None if it is missing, used or expired."""
        is_token = len(token) == _TOKEN_CHARACTERS and _PLAIN_TOKEN.issuperset(token)
        return self._read(self._path(token), now) if is_token else None

    def use(self, token: str, fingerprint: str, now: datetime) -> tuple[str, bool] | None:
        """Use an invitation for the passkey with this fingerprint, and for no other passkey.

        Returns the invited person, and whether this is the first use: the same passkey again is a second click on one
        form. Returns None if the invitation is missing, expired, or used for another passkey.
        """
        used_path = self._path(token, "used")
        with self._lock:
            invitation = self.invitation(token, now)
            if invitation is None:
                used = self._read(used_path, now)
                return (used["name"], False) if used is not None and used["fingerprint"] == fingerprint else None
            self._write(used_path, {**invitation, "fingerprint": fingerprint})
            try:
                self._path(token).unlink()
            except FileNotFoundError:  # another browser was faster
                return None
            return invitation["name"], True

    def _read(self, path: Path, now: datetime) -> Mapping[str, str] | None:
        try:
            content: Mapping[str, str] = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        return content if timestamp(now) < content["expires_at"] else None

    def _write(self, path: Path, content: Mapping[str, str]) -> None:
        write_whole(path, json.dumps(content, sort_keys=True).encode())

    def _path(self, token: str, ending: str = "json") -> Path:
        return self._folder / f"{hashlib.sha256(token.encode()).hexdigest()}.{ending}"


_FLAGS = 32
_HAS_KEY = 0x40
"""The position of the flags in the authenticator's data, and the flag for a new key (WebAuthn, 6.1)."""
ALGORITHMS = (-7, -8, -257)
"""ES256, EdDSA and RS256 (RFC 9053, RFC 8812), in order of preference."""


def invitation_challenge(token: str) -> str:
    return challenge_of(f"paygw-batch invitation 1\n{token}".encode())


def new_passkey(form: Mapping[str, str], token: str, party: RelyingParty) -> PublicKey | None:
    """Return the key of a passkey that a verified person created for an invitation, on a page of `party`; or None.

    `form` has the parts of the passkey as a browser sends them, each in base64url without padding. `public_key` is the
    result of `getPublicKey()`: a SubjectPublicKeyInfo.
    """
    client_data, authenticator_data, plain = (
        from_base64url(form.get(name, "")) for name in ("client_data", "authenticator_data", "public_key")
    )
    if client_data is None or authenticator_data is None or plain is None:
        return None
    if not is_client_data(client_data, "webauthn.create", invitation_challenge(token), party):
        return None
    if not is_of_verified_person(authenticator_data, party) or not authenticator_data[_FLAGS] & _HAS_KEY:
        return None
    return read_public_key(base64.b64encode(plain).decode("ascii"))


SIGN_IN_S = 300.0
"""The time for which a sign-in page may be open before the passkey is used."""
_KEPT_S = 24 * 3600.0
"""The time for which a used sign-in is remembered. A clock is not expected to be set back further."""


def sign_in_text(nonce: str) -> bytes:
    """Return the text that a passkey signs in a sign-in."""
    return f"paygw-batch sign-in 1\n{nonce}".encode()


class OpenSignIns:
    """Begins sign-ins, and ends each of them at most once, within `SIGN_IN_S` seconds.

    A nonce contains the time and a code that only this console can compute. Only used sign-ins are stored, so nobody
    can fill a disk or displace the sign-ins of other people by opening the page many times.
    """

    def __init__(self, kept: KeptSessions, *, now_s: Callable[[], float], new_nonce: Callable[[], str]) -> None:
        self._kept = kept
        self._now_s = now_s
        self._new_nonce = new_nonce

    def begin(self) -> str:
        """Begin a sign-in, and return its nonce."""
        begun = f"{self._new_nonce()}.{int(self._now_s())}"
        return f"{begun}.{self._code(begun)}"

    def end(self, nonce: str) -> bool:
        """End a sign-in. Return whether it was open: begun here, within `SIGN_IN_S`, and not used yet."""
        begun, _, code = nonce.rpartition(".")
        if not hmac.compare_digest(code.encode(), self._code(begun).encode()):
            return False
        now_s = self._now_s()
        if abs(now_s - int(begun.rpartition(".")[2])) > SIGN_IN_S:
            return False
        return self._kept.end_sign_in(_digest(nonce), now_s, forget_before_s=now_s - _KEPT_S)

    def _code(self, begun: str) -> str:
        return hmac.new(self._kept.secret, begun.encode(), hashlib.sha256).hexdigest()


def key_that_signed(
    nonce: str, signature: PasskeySignature, keys: Iterable[PublicKey], party: RelyingParty
) -> PublicKey | None:
    """Return the key among `keys` that signed the sign-in with this nonce; None if no key did."""
    return next((key for key in keys if has_asserted(key, signature, sign_in_text(nonce), party)), None)


@dataclass(frozen=True, slots=True)
class PasskeyAccess:
    """The parts of access by passkey. `party` is None if the console's address is not configured."""

    party: RelyingParty | None
    keys: Mapping[PublicKey, Member]
    sign_ins: OpenSignIns
    invitations: Invitations


def passkey_access(settings: Settings, members: tuple[Member, ...], kept: KeptSessions) -> PasskeyAccess:
    """Return the parts of access by passkey. Raises `ConfigurationError` if two people have the same key."""
    return PasskeyAccess(
        party=party_of(settings),
        keys=_keys_of(settings, members),
        sign_ins=OpenSignIns(kept, now_s=time.time, new_nonce=lambda: secrets.token_urlsafe(RANDOM_BYTES)),
        invitations=Invitations(invitation_folder(settings)),
    )


def invitation_folder(settings: Settings) -> Path:
    return settings.console_directory() / "invitations"


def signature_in(form: Mapping[str, str]) -> PasskeySignature:
    """Return the signature that `static/passkey.js` wrote into a form. Its parts are empty if there is none."""
    return PasskeySignature(
        client_data=form.get("client_data", ""),
        authenticator_data=form.get("authenticator_data", ""),
        signature=form.get("signature", ""),
    )


def _keys_of(settings: Settings, members: tuple[Member, ...]) -> Mapping[PublicKey, Member]:
    by_name = {plain_name(member.name): member for member in members}
    owners: dict[PublicKey, Member] = {}
    for name, key in _listed_keys(settings):
        member = by_name[plain_name(name)]
        if owners.setdefault(key, member) != member:
            raise ConfigurationError(
                say(
                    "The same key (fingerprint {fingerprint}) is listed under two names, {name} and {other}.",
                    name=owners[key].name,
                    other=member.name,
                    fingerprint=key.fingerprint,
                ),
                hint=say("List each key under the name of the one person who holds it."),
            )
    return owners


def _listed_keys(settings: Settings) -> Iterator[tuple[str, PublicKey]]:
    for person in listed_people(settings).listed:
        yield from ((person.name, key) for key in person.keys)
    for role, names in console_lists(settings):
        for name, texts in names.items():
            for text in [texts] if isinstance(texts, str) else texts:
                key = read_public_key(text)
                if key is None:
                    raise ConfigurationError(
                        say("console.{section}.{name} is not a person's public key.", section=f"{role}s", name=name)
                    )
                yield name, key
