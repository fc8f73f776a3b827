"""Signs with a key in a token, through the vendor's PKCS#11 module (extra `pkcs11`).

Because python-pkcs11 allows only one thread to call the module, a run uses one process for each session.
"""

import base64
import fcntl
import hashlib
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import pkcs11
from pkcs11 import Attribute, KeyType, Mechanism, MechanismFlag, ObjectClass, TokenFlag
from pkcs11 import exceptions as errors
from pkcs11.util.ec import encode_ec_public_key, encode_ecdsa_signature

from paygw_batch.gateway.signing.key import (
    MIN_KEY_BITS,
    NEW_KEY_BITS,
    Custody,
    KeyKind,
    KeyProblem,
    KeyUnusable,
    PublicHalf,
    SigningCapacity,
    SigningKey,
    TokenAddress,
    build_public_half,
    parse_token_address,
)

_TOKEN_ERRORS: dict[KeyProblem, tuple[type[pkcs11.PKCS11Error], ...]] = {
    KeyProblem.PIN_WRONG: (errors.PinIncorrect, errors.PinInvalid, errors.PinLenRange),
    KeyProblem.PIN_LOCKED: (errors.PinLocked, errors.PinExpired, errors.UserPinNotInitialized),
    KeyProblem.PIN_MISSING: (errors.UserNotLoggedIn,),
    KeyProblem.TOKEN_GONE: (
        errors.TokenNotPresent,
        errors.TokenNotRecognised,
        errors.DeviceRemoved,
        errors.SlotIDInvalid,
        errors.SessionHandleInvalid,
        errors.SessionClosed,
        errors.KeyHandleInvalid,
        errors.ObjectHandleInvalid,
    ),
    KeyProblem.WRONG_KIND: (errors.KeyTypeInconsistent, errors.MechanismInvalid, errors.KeySizeRange),
}
_SESSION_LOCK = threading.RLock()
_LOCK_TRIES, _LOCK_PAUSE_S = 250, 0.02
"""How many times to try to lock the module's file, and the pause between tries."""
_ED25519_PREFIX = bytes.fromhex("302a300506032b6570032100")
"""The bytes before an Ed25519 public key in its SubjectPublicKeyInfo (RFC 8410)."""
_ED25519_BYTES = 32


@dataclass(frozen=True, slots=True)
class TokenLocation:
    """Where to find a private key in a token. `pin` is None if the token needs no PIN."""

    address: TokenAddress
    module: Path
    pin: str | None = field(repr=False)
    sessions: int = 1
    """The number of concurrent sessions during a run."""


@dataclass(frozen=True, slots=True)
class TokenKey(SigningKey):
    """A key that never leaves its token. `sign` opens a session for each call. `open_signer` keeps one open."""

    location: TokenLocation
    public: PublicHalf
    custody: Custody

    @contextmanager
    def open_signer(self) -> Iterator[Callable[[str], str]]:
        """Yield a function that signs texts in one session. Raises `KeyUnusable`."""
        with _open_session(self.location) as session:
            key = _require_private_key(self.location.address, session)

            def sign(text: str) -> str:
                with _translate_errors(self.location.address):
                    signature: bytes = key.sign(text.encode(), mechanism=Mechanism.SHA256_RSA_PKCS)
                if not self.public.verifies(text, signature):
                    raise KeyUnusable(self.location.address.uri, KeyProblem.WRONG_SIGNATURE)
                return base64.b64encode(signature).decode("ascii")

            yield sign

    def serialise(self) -> bytes:
        """Return the key's address, the module's path and the PIN as JSON."""
        uri, module, pin = self.location.address.uri, str(self.location.module), self.location.pin
        return json.dumps({"kind": KeyKind.PKCS11, "uri": uri, "module": module, "pin": pin}).encode("ascii")

    def signing_capacity(self, cores: int) -> SigningCapacity:  # noqa: ARG002 (the token computes the signatures)
        return SigningCapacity(self.location.sessions, is_slow=True)


@dataclass(frozen=True, slots=True)
class PersonTokenKey:
    """A person's Ed25519 or P-256 key in a token. `public` is its public half (SubjectPublicKeyInfo, DER)."""

    location: TokenLocation
    public: bytes

    def sign(self, data: bytes) -> bytes:
        """Sign `data`, or its SHA-256 digest if the key is P-256. Raises `KeyUnusable`."""
        address = self.location.address
        with _open_session(self.location) as session:
            key = _require_private_key(address, session)
            with _translate_errors(address):
                if key.key_type is KeyType.EC_EDWARDS:
                    return bytes(key.sign(data, mechanism=Mechanism.EDDSA))
                signature = key.sign(hashlib.sha256(data).digest(), mechanism=Mechanism.ECDSA)
                return bytes(encode_ecdsa_signature(signature))


def load_person_token_key(location: TokenLocation) -> PersonTokenKey:
    """Load a person's key from a token. Raises `KeyUnusable` if it is missing or cannot be used to sign."""
    address = location.address
    with _open_session(location) as session, _translate_errors(address):
        key = _require_private_key(address, session)
        if key.key_type not in {KeyType.EC, KeyType.EC_EDWARDS} or not _read_attribute(
            key, Attribute.SIGN, default=True
        ):
            raise KeyUnusable(address.uri, KeyProblem.WRONG_KIND)
        criteria = {Attribute.CLASS: ObjectClass.PUBLIC_KEY, Attribute.ID: key.id}
        public_key = next(iter(session.get_objects(criteria)), None)
        if public_key is None:
            raise KeyUnusable(address.uri, KeyProblem.BROKEN, "no public half")
        if key.key_type is KeyType.EC:
            return PersonTokenKey(location, encode_ec_public_key(public_key))
        return PersonTokenKey(location, _ED25519_PREFIX + public_key[Attribute.EC_POINT][-_ED25519_BYTES:])


def deserialise_token_key(fields: dict[str, str]) -> TokenKey:
    """Load a key from the fields written by `TokenKey.serialise`. Raises `KeyUnusable`."""
    return load_token_key(TokenLocation(parse_token_address(fields["uri"]), Path(fields["module"]), fields["pin"]))


def load_token_key(location: TokenLocation) -> TokenKey:
    """Load an RSA key from a token. Raises `KeyUnusable` if it is missing or cannot be used to sign."""
    address = location.address
    with _open_session(location) as session, _translate_errors(address):
        key = _require_private_key(address, session)
        if key.key_type is not KeyType.RSA or not _read_attribute(key, Attribute.SIGN, default=True):
            raise KeyUnusable(address.uri, KeyProblem.WRONG_KIND)
        public_half = _read_public_half(address, session, key)
        was_stored_elsewhere = not _read_attribute(key, Attribute.NEVER_EXTRACTABLE, default=False)
        is_exportable = bool(_read_attribute(key, Attribute.EXTRACTABLE, default=False))
        end_date = _read_attribute(key, Attribute.END_DATE, default=None)
        label = session.token.label
    if public_half.bits < MIN_KEY_BITS:
        raise KeyUnusable(address.uri, KeyProblem.TOO_SHORT, str(public_half.bits))
    expires = end_date if isinstance(end_date, date) else None
    custody = Custody(KeyKind.PKCS11, f"{address.uri} ({label})", is_exportable, was_stored_elsewhere, expires)
    return TokenKey(location, public_half, custody)


def has_token_key(location: TokenLocation) -> bool:
    """Return whether there is a key at `location`. Raises `KeyUnusable` if the token cannot be read."""
    with _open_session(location) as session, _translate_errors(location.address):
        return bool(_find_private_keys(location.address, session))


def create_token_key(location: TokenLocation) -> None:
    """Create a non-exportable RSA key in the token. Raises `KeyUnusable`."""
    address = location.address
    with _open_session(location, write=True) as session, _translate_errors(address):
        session.generate_keypair(
            KeyType.RSA,
            NEW_KEY_BITS,
            store=True,
            label=address.label,
            id=address.key_id or secrets.token_bytes(8),
            capabilities=MechanismFlag.SIGN | MechanismFlag.VERIFY,
            private_template={Attribute.SENSITIVE: True, Attribute.EXTRACTABLE: False},
        )


@contextmanager
def _open_session(location: TokenLocation, *, write: bool = False) -> Iterator[Any]:
    """Yield a logged-in session. Finalises the module afterwards, so that it does not keep the PIN."""
    address = location.address
    with _SESSION_LOCK, ExitStack() as cleanup:
        with _lock_module(location.module):
            try:
                module = pkcs11.lib(str(location.module))
            except pkcs11.PKCS11Error:
                raise KeyUnusable(address.uri, KeyProblem.MODULE, str(location.module)) from None
            cleanup.callback(_close_quietly, module.finalize)
            with _translate_errors(address):
                token = _find_token(address, module)
                if TokenFlag.USER_PIN_LOCKED in token.flags:
                    raise KeyUnusable(address.uri, KeyProblem.PIN_LOCKED)
                if location.pin is None and TokenFlag.LOGIN_REQUIRED in token.flags:
                    raise KeyUnusable(address.uri, KeyProblem.PIN_MISSING)
                session = token.open(rw=write, user_pin=location.pin)
                cleanup.callback(_close_quietly, session.close)
        yield session


@contextmanager
def _lock_module(module: Path) -> Iterator[None]:
    """Lock the module's file, so that only one process on this machine opens a token at a time.

    SoftHSM rewrites its token at each login, so another process might not find it. If the lock stays taken for too
    long, the session is opened without it.
    """
    try:
        descriptor = os.open(module, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield  # the module itself reports the error
        return
    try:
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(_LOCK_PAUSE_S)
        yield
    finally:
        os.close(descriptor)


def _close_quietly(close: Callable[[], object]) -> None:
    with suppress(pkcs11.PKCS11Error):
        close()


def _find_token(address: TokenAddress, module: Any) -> Any:
    tokens = [slot.get_token() for slot in module.get_slots(token_present=True)]
    matches = [token for token in tokens if _matches_address(address, token)]
    if len(matches) != 1:
        raise KeyUnusable(address.uri, KeyProblem.SEVERAL_TOKENS if matches else KeyProblem.TOKEN_GONE)
    return matches[0]


def _matches_address(address: TokenAddress, token: Any) -> bool:
    serial = token.serial.decode("ascii", "replace").strip()
    actual_values = (token.label, serial, token.manufacturer_id, token.model, token.slot.slot_id)
    expected_values = (address.token, address.serial, address.manufacturer, address.model, address.slot)
    return TokenFlag.TOKEN_INITIALIZED in token.flags and all(
        expected is None or expected == value for expected, value in zip(expected_values, actual_values, strict=True)
    )


def _find_private_keys(address: TokenAddress, session: Any) -> list[Any]:
    criteria: dict[Attribute, object] = {Attribute.CLASS: ObjectClass.PRIVATE_KEY}
    if address.label is not None:
        criteria[Attribute.LABEL] = address.label
    if address.key_id is not None:
        criteria[Attribute.ID] = address.key_id
    return list(session.get_objects(criteria))


def _require_private_key(address: TokenAddress, session: Any) -> Any:
    with _translate_errors(address):
        keys = _find_private_keys(address, session)
    if len(keys) != 1:
        raise KeyUnusable(address.uri, KeyProblem.SEVERAL_KEYS if keys else KeyProblem.KEY_MISSING)
    return keys[0]


def _read_public_half(address: TokenAddress, session: Any, key: Any) -> PublicHalf:
    sources = [key, *session.get_objects({Attribute.CLASS: ObjectClass.PUBLIC_KEY, Attribute.ID: key.id})]
    for source in sources:
        modulus = _read_attribute(source, Attribute.MODULUS, default=None)
        exponent = _read_attribute(source, Attribute.PUBLIC_EXPONENT, default=None)
        if modulus and exponent:
            return build_public_half(modulus, exponent)
    raise KeyUnusable(address.uri, KeyProblem.BROKEN, "no public half")


def _read_attribute(source: Any, attribute: Attribute, *, default: Any) -> Any:
    try:
        return source[attribute]
    except (pkcs11.PKCS11Error, ValueError, NotImplementedError):
        return default


@contextmanager
def _translate_errors(address: TokenAddress) -> Iterator[None]:
    try:
        yield
    except pkcs11.PKCS11Error as error:
        problem = next((kind for kind, types in _TOKEN_ERRORS.items() if isinstance(error, types)), KeyProblem.BROKEN)
        raise KeyUnusable(address.uri, problem, type(error).__name__) from None
