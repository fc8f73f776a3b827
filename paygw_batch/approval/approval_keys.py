"""People who prepare and approve, and their keys: private ones in PEM files (Ed25519), public ones in one line.

A person is a name with all its keys. Names that look alike count as one name, and two people cannot share a key.
A key in a token (RFC 7512) is Ed25519 or P-256; a passkey's key is P-256, RSA or Ed25519.

A passkey's signature, a WebAuthn assertion, is verified offline with just the public key. Its challenge is the SHA-256
of the signed text. The values added by the browser (the page's origin, whether the person was present) are compared
with the configuration. Source: W3C Web Authentication, Level 3, section 7.2. The signature counter is not checked: that
would need a record for each key, and the order of signatures does not matter.

Apart from the gateway's signatures, this is the only cryptography in the program. Approvals are internal to a company
and have nothing to do with the gateway's protocol.
"""

import base64
import binascii
import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
    load_pem_private_key,
)
from pydantic import BaseModel, ConfigDict

from paygw_batch.errors import ConfigurationError
from paygw_batch.extras import extra, install_command
from paygw_batch.gateway.signing.key import PKCS11, KeyProblem, KeyUnusable, parse_token_address
from paygw_batch.gateway.strict_json import parse_json_object
from paygw_batch.language import mark, say
from paygw_batch.trusted_files import OtherUsers, read_trusted_file

MAKE_KEY_COMMAND = "openssl genpkey -algorithm ed25519 -out approval.pem"
MIN_RSA_BITS = 2048
MAX_RSA_BITS = 8192
RSA_EXPONENT = 65537
"""The exponent of keys made by authenticators. Small exponents have enabled forged signatures elsewhere."""

_PEM = re.compile(rb"\s*-----BEGIN PUBLIC KEY-----(.*)-----END PUBLIC KEY-----\s*", re.DOTALL)
PersonKey = Ed25519PublicKey | EllipticCurvePublicKey | RSAPublicKey


@dataclass(frozen=True, slots=True)
class PublicKey:
    """The public half of a person's key, as canonical DER (SubjectPublicKeyInfo), so that keys can be compared."""

    material: bytes

    @property
    def text(self) -> str:
        """The key as one line of base64."""
        return base64.b64encode(self.material).decode("ascii")

    @property
    def fingerprint(self) -> str:
        """The first 16 hex digits of the key's SHA-256, short enough to read aloud."""
        return hashlib.sha256(self.material).hexdigest()[:16]

    @property
    def is_file_key(self) -> bool:
        """Whether the private half may be in a file, not in a passkey or token."""
        return isinstance(load_der_public_key(self.material), Ed25519PublicKey)

    @property
    def can_sign_text(self) -> bool:
        """Whether keys of this type may sign plain text. A passkey puts a digest of the console before its text."""
        return isinstance(load_der_public_key(self.material), Ed25519PublicKey | EllipticCurvePublicKey)

    def verifies(self, data: bytes, signature: str) -> bool:
        """Return whether `signature` is the result of `ApprovalKey.sign` with this key and exactly `data`."""
        try:
            raw = base64.b64decode(signature, validate=True)
        except (binascii.Error, ValueError):
            return False
        return self.can_sign_text and base64.b64encode(raw).decode("ascii") == signature and self.verify(raw, data)

    def verify(self, signature: bytes, data: bytes) -> bool:
        """Return whether this key signed `data` with Ed25519, ECDSA, or RSA PKCS#1 v1.5 with SHA-256."""
        key = load_der_public_key(self.material)
        try:
            match key:
                case Ed25519PublicKey():
                    key.verify(signature, data)
                case EllipticCurvePublicKey():
                    key.verify(signature, data, ECDSA(SHA256()))
                case RSAPublicKey():
                    key.verify(signature, data, PKCS1v15(), SHA256())
                case _:
                    return False
        except InvalidSignature:
            return False
        return True


def encode_public_key(key: PersonKey) -> PublicKey:
    return PublicKey(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


@dataclass(frozen=True, slots=True)
class ApprovalKey:
    """A person's key pair. `_sign` uses the private key or the token that contains it."""

    public: PublicKey
    _sign: Callable[[bytes], bytes] = field(repr=False)

    def sign(self, data: bytes) -> str:
        """Sign `data`. Returns base64. Raises `ConfigurationError` if a token returns an invalid signature."""
        signature = self._sign(data)
        if not self.public.verify(signature, data):
            raise ConfigurationError(say("The signature from the key does not match its public key."))
        return base64.b64encode(signature).decode("ascii")


def load_approval_key(path: Path, passphrase: bytes | None) -> ApprovalKey:
    """Load an Ed25519 key from a PEM file. Raises `ConfigurationError` if it is unusable or accessible to others."""
    pem = read_trusted_file(path, say("The key {path}", path=path), OtherUsers.NO_ACCESS)
    try:
        key = load_pem_private_key(pem, passphrase if b"ENCRYPTED" in pem else None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigurationError(
            say("{path} does not contain a readable private key.", path=path),
            hint=say("If the key is encrypted, set PAYGW_APPROVAL_PASSPHRASE to its passphrase."),
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigurationError(
            say("{path} is not an Ed25519 key.", path=path),
            hint=say("{how_to_make_one} creates one.", how_to_make_one=MAKE_KEY_COMMAND),
        )
    return ApprovalKey(encode_public_key(key.public_key()), key.sign)


def parse_public_key(text: str) -> PublicKey | None:
    """Parse a public key from base64. Returns None if people may not use this kind of key.

    Accepts Ed25519, P-256, and RSA of at least 2048 bits, as output by `openssl pkey -pubout` or a browser's
    `getPublicKey()`. Ignores line breaks, padding and unused bits at the end.
    """
    compact = "".join(text.split()).rstrip("=")
    try:
        return parse_der_public_key(base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True))
    except (binascii.Error, ValueError):
        return None


def parse_der_public_key(der: bytes) -> PublicKey | None:
    """Parse a public key in DER (SubjectPublicKeyInfo). Returns None if people may not use this kind of key."""
    try:
        key = load_der_public_key(der)
    except (ValueError, UnsupportedAlgorithm):
        return None
    match key:
        case Ed25519PublicKey():
            return encode_public_key(key)
        case EllipticCurvePublicKey() if isinstance(key.curve, SECP256R1):
            return encode_public_key(key)
        case RSAPublicKey() if MIN_RSA_BITS <= key.key_size <= MAX_RSA_BITS:
            return encode_public_key(key) if key.public_numbers().e == RSA_EXPONENT else None
        case _:
            return None


def parse_pem_public_key(pem: bytes) -> PublicKey | None:
    """Parse a public key in PEM. Returns None if people may not use this kind of key."""
    match = _PEM.fullmatch(pem)
    return None if match is None else parse_public_key(match[1].decode("ascii", "replace"))


def parse_canonical_key(text: str) -> PublicKey | None:
    """Parse `PublicKey.text`, the only form allowed in signed documents. Returns None for other text."""
    key = parse_public_key(text)
    return key if key is not None and key.text == text else None


KeysByName = Mapping[str, str | Sequence[str]]
"""The configured public keys: one or several for each name."""
_PUBLIC_KEY_HINT = (
    "It is the line between BEGIN and END of `openssl pkey -in approval.pem -pubout`, or the line that the console "
    "shows when a passkey is made."
)
_BLANKS = str.maketrans(dict.fromkeys("\u115f\u1160\u2800", " "))
"""Characters that look like spaces but are letters or symbols in Unicode."""
_INVISIBLE = frozenset(
    "\u034f\u17b4\u17b5\u180b\u180c\u180d\u180f" + "".join(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
)
"""Combining marks and variation selectors that are never displayed."""


@dataclass(frozen=True, slots=True)
class Person:
    """A person and their keys for preparing and approving. Someone listed without a key can do nothing yet."""

    name: str
    maker_keys: tuple[PublicKey, ...]
    approver_keys: tuple[PublicKey, ...]
    is_maker: bool = False
    is_approver: bool = False

    @property
    def keys(self) -> frozenset[PublicKey]:
        return frozenset((*self.maker_keys, *self.approver_keys))


@dataclass(frozen=True, slots=True)
class People:
    """The configured people."""

    listed: tuple[Person, ...]

    def find_owner(self, key: PublicKey) -> Person | None:
        return next((person for person in self.listed if key in person.keys), None)

    def find_maker(self, key: PublicKey) -> Person | None:
        return next((person for person in self.listed if key in person.maker_keys), None)

    def find_approver(self, key: PublicKey) -> Person | None:
        return next((person for person in self.listed if key in person.approver_keys), None)

    @property
    def makers(self) -> Sequence[Person]:
        return [person for person in self.listed if person.maker_keys]

    def approvers_for(self, maker: Person) -> Sequence[Person]:
        """Return everyone who may approve a document by `maker`: all approvers except the maker."""
        return [person for person in self.listed if person.approver_keys and person != maker]


def normalise_name(name: str) -> str:
    """Normalise case, Unicode form, spaces and invisible characters, so that names that look alike become equal."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).translate(_BLANKS)
    visible = [c for c in folded if c.isspace() or (unicodedata.category(c)[0] != "C" and c not in _INVISIBLE)]
    return " ".join(unicodedata.normalize("NFC", "".join(visible)).split())


def build_people(makers: KeysByName, approvers: KeysByName) -> People:
    """Return the configured people. Raises `ConfigurationError` for an invalid name or key, or a shared key."""
    names: dict[str, str] = {}
    keys_by_name: dict[str, dict[str, tuple[PublicKey, ...]]] = {}
    for section, members in (("makers", makers), ("approvers", approvers)):
        for name, key_texts in members.items():
            if not (normal_name := normalise_name(name)):
                raise ConfigurationError(
                    say("A name in [approval.{section}] is empty.", section=section),
                    hint=say("Enter the name of the person who holds the key."),
                )
            visible = "".join(c for c in name if c.isspace() or c.isprintable())
            names.setdefault(normal_name, " ".join(visible.split()))
            person_keys = keys_by_name.setdefault(normal_name, {})
            person_keys[section] = (*person_keys.get(section, ()), *_parse_keys(section, name, key_texts))
    people = tuple(
        Person(names[name], keys.get("makers", ()), keys.get("approvers", ()), "makers" in keys, "approvers" in keys)
        for name, keys in keys_by_name.items()
    )
    _reject_shared_keys(people)
    return People(people)


def _parse_keys(section: str, name: str, texts: str | Sequence[str]) -> Iterator[PublicKey]:
    for text in [texts] if isinstance(texts, str) else texts:
        if (key := parse_public_key(text)) is None:
            raise ConfigurationError(
                say(
                    "approval.{section}.{name} is not a person's public key (Ed25519, P-256, or RSA of at least 2048 "
                    "bits).",
                    section=section,
                    name=name,
                ),
                hint=_PUBLIC_KEY_HINT,
            )
        yield key


def _reject_shared_keys(people: Sequence[Person]) -> None:
    owners: dict[PublicKey, Person] = {}
    for person in people:
        for key in person.keys:
            other = owners.setdefault(key, person)
            if other is not person:
                raise ConfigurationError(
                    say(
                        "[approval] lists the same key (fingerprint {fingerprint}) under two names, {name} and "
                        "{other}.",
                        name=other.name,
                        other=person.name,
                        fingerprint=key.fingerprint,
                    ),
                    hint=say("List each key under the name of the one person who holds it."),
                )


MODULE_VARIABLE = "PAYGW_APPROVAL_MODULE"
"""The environment variable for the path of the token vendor's PKCS#11 module."""
PASSPHRASE_VARIABLE = "PAYGW_APPROVAL_PASSPHRASE"  # noqa: S105 (the name of a variable, not a secret)
"""The environment variable for the PIN of a token or the passphrase of a key file."""
_HINTS = {
    KeyProblem.MODULE: mark("Set PAYGW_APPROVAL_MODULE to the path of the token vendor's module (PKCS#11, .so)."),
    KeyProblem.TOKEN_GONE: mark("Plug it in, or correct the token's name in --key."),
    KeyProblem.SEVERAL_TOKENS: mark("Add the serial number of the right token to --key: `serial=...`."),
    KeyProblem.PIN_MISSING: mark("Set PAYGW_APPROVAL_PASSPHRASE to the PIN."),
    KeyProblem.KEY_MISSING: mark("Correct --key. To create a key in the token, use the vendor's tool."),
    KeyProblem.SEVERAL_KEYS: mark("Add the id of the right key to --key, for example `id=%01`."),
}
"""Hints that replace those for the gateway's key, which has different settings."""


def load_person_key(key: Path, passphrase: bytes | None, module: str | None) -> ApprovalKey:
    """Load a person's key from a file or a PKCS#11 token. Raises `ConfigurationError` if it cannot be used."""
    if not str(key).startswith(PKCS11):
        return load_approval_key(key, passphrase)
    return _load_token_key(str(key), module, None if not passphrase else passphrase.decode(errors="replace"))


def _load_token_key(uri: str, module: str | None, pin: str | None) -> ApprovalKey:
    address = parse_token_address(uri)
    if not module:
        raise ConfigurationError(say("No module is set for the token."), hint=say(_HINTS[KeyProblem.MODULE]))
    try:
        token_key = extra("custody.token_key")
    except ModuleNotFoundError:
        raise ConfigurationError(
            say("The key is in a token, but the part of this program that reads tokens is not installed."),
            hint=say("Install it: {command}.", command=install_command("pkcs11")),
        ) from None
    try:
        key = token_key.load_person_token_key(token_key.TokenLocation(address, Path(module), pin))
    except KeyUnusable as error:
        raise _person_key_error(error) from None
    if (public_key := parse_der_public_key(key.public)) is None:
        raise _person_key_error(KeyUnusable(uri, KeyProblem.WRONG_KIND))

    def sign(data: bytes) -> bytes:
        try:
            return bytes(key.sign(data))
        except KeyUnusable as error:
            raise _person_key_error(error) from None

    return ApprovalKey(public_key, sign)


def _person_key_error(error: KeyUnusable) -> ConfigurationError:
    if error.problem is KeyProblem.WRONG_KIND:
        return ConfigurationError(
            say("{key} is not a key that a person can sign with.", key=error.key),
            hint=say("Choose an Ed25519 or P-256 key that is allowed to sign."),
        )
    hint = _HINTS.get(error.problem)
    return error if hint is None else ConfigurationError(error.message, hint=say(hint))


MAX_CLIENT_DATA_BYTES = 4096
_HASH_BYTES = 32
_AUTHENTICATOR_DATA_BYTES = _HASH_BYTES + 1 + 4
"""The size of the relying party's hash, the flags and the counter. Authenticators send more only if asked."""
_USER_PRESENT, _USER_VERIFIED, _BACKUP_ELIGIBLE, _BACKED_UP = 0x01, 0x04, 0x08, 0x10
_HAS_MORE_DATA = 0x40 | 0x80
"""The flags for a new key and for extensions, which we do not request."""


class PasskeySignature(BaseModel):
    """A passkey's signature: the three parts of an assertion, each in base64url without padding."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    client_data: str
    """`clientDataJSON`: the type, the challenge and the origin, as the browser recorded them."""
    authenticator_data: str
    signature: str


@dataclass(frozen=True, slots=True)
class RelyingParty:
    """The console as WebAuthn's relying party, identified by the origin of its pages."""

    origin: str

    @property
    def rp_id(self) -> str:
        """The WebAuthn relying party id: the host of the origin."""
        return urlsplit(self.origin).hostname or ""


def passkey_challenge(data: bytes) -> str:
    """Return the challenge for signing `data` with a passkey: its SHA-256 in base64url."""
    return to_base64url(hashlib.sha256(data).digest())


def to_base64url(data: bytes) -> str:
    """Encode bytes in base64url without padding, as WebAuthn does."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def from_base64url(text: str) -> bytes | None:
    """Decode text produced by `to_base64url`. Returns None for other text."""
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return None
    return data if to_base64url(data) == text else None


def is_valid_assertion(key: PublicKey, signature: PasskeySignature, data: bytes, party: RelyingParty) -> bool:
    """Return whether the verified owner of `key` signed exactly `data` on a page of `party`."""
    client_data = from_base64url(signature.client_data)
    authenticator_data = from_base64url(signature.authenticator_data)
    decoded = from_base64url(signature.signature)
    if client_data is None or authenticator_data is None or decoded is None:
        return False
    return (
        is_valid_client_data(client_data, "webauthn.get", passkey_challenge(data), party)
        and len(authenticator_data) == _AUTHENTICATOR_DATA_BYTES
        and not authenticator_data[_HASH_BYTES] & _HAS_MORE_DATA
        and is_user_verified(authenticator_data, party)
        and key.verify(decoded, authenticator_data + hashlib.sha256(client_data).digest())
    )


def parse_claimed_party(signature: PasskeySignature) -> RelyingParty | None:
    """Return the console that an assertion claims to come from, without verifying it, or None."""
    members = parse_json_object(from_base64url(signature.client_data) or b"")
    origin = None if isinstance(members, str) else members.get("origin")
    return RelyingParty(origin) if isinstance(origin, str) else None


def is_valid_client_data(client_data: bytes, kind: str, challenge: str, party: RelyingParty) -> bool:
    """Return whether the client data has this type and challenge, and comes from an unframed page of `party`."""
    members = parse_json_object(client_data) if len(client_data) <= MAX_CLIENT_DATA_BYTES else "too long"
    if isinstance(members, str):
        return False
    return (
        members.get("type") == kind
        and members.get("challenge") == challenge
        and members.get("origin") == party.origin
        and members.get("crossOrigin", False) is False
        and "topOrigin" not in members
    )


def is_user_verified(authenticator_data: bytes, party: RelyingParty) -> bool:
    """Return whether the authenticator confirms to `party` that the key's owner was present and verified."""
    if len(authenticator_data) < _AUTHENTICATOR_DATA_BYTES:
        return False
    flags = authenticator_data[_HASH_BYTES]
    return (
        authenticator_data[:_HASH_BYTES] == hashlib.sha256(party.rp_id.encode()).digest()
        and bool(flags & _USER_PRESENT)
        and bool(flags & _USER_VERIFIED)
        and bool(flags & _BACKUP_ELIGIBLE or not flags & _BACKED_UP)
    )
