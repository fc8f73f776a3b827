"""Reads the keys that people approve with: Ed25519 (RFC 8032) as PEM files, and public keys as one line of text.

A passkey has a key of its own kind: P-256, RSA or Ed25519. What a passkey signs is in `passkey.py`. Beside the
gateway's signatures this is the only place of the program that does cryptography: approvals are between people of one
company and have nothing to do with how the gateway is spoken to.
"""

import base64
import binascii
import hashlib
import os
import shlex
import stat
from dataclasses import dataclass, field
from pathlib import Path

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

from paygw_batch.errors import ConfigurationError
from paygw_batch.language import say

MAX_KEY_FILE_BYTES = 16 * 1024
HOW_TO_MAKE_ONE = "openssl genpkey -algorithm ed25519 -out approval.pem"


MIN_RSA_BITS = 2048
MAX_RSA_BITS = 8192
RSA_EXPONENT = 65537
"""The one that authenticators use. With a small one, signatures were forged elsewhere."""

KeyOfAPerson = Ed25519PublicKey | EllipticCurvePublicKey | RSAPublicKey


@dataclass(frozen=True, slots=True)
class PublicKey:
    """The public half of a person's key: its SubjectPublicKeyInfo in DER, as this program encodes it.

    A key has one such encoding, whichever text it was read from: two keys are the same if these bytes are.
    """

    material: bytes

    @property
    def text(self) -> str:
        """The key as one line of text, in its one spelling: base64 of SubjectPublicKeyInfo."""
        return base64.b64encode(self.material).decode("ascii")

    @property
    def fingerprint(self) -> str:
        """The first 16 hex digits of the SHA-256 of the key's DER encoding: short enough to read to each other."""
        return hashlib.sha256(self.material).hexdigest()[:16]

    @property
    def may_be_in_a_file(self) -> bool:
        """Whether a key file can hold its private half. Another one is a passkey's."""
        return isinstance(load_der_public_key(self.material), Ed25519PublicKey)

    def has_signed(self, data: bytes, signature: str) -> bool:
        """Whether `signature` is this key's over exactly `data`, in the one spelling that `ApprovalKey.sign` writes.

        Only an Ed25519 key signs text as it is: a passkey signs more than that (see `passkey.py`).
        """
        try:
            plain = base64.b64decode(signature, validate=True)
        except (binascii.Error, ValueError):
            return False
        return (
            self.may_be_in_a_file
            and base64.b64encode(plain).decode("ascii") == signature
            and self.verifies(plain, data)
        )

    def verifies(self, signature: bytes, data: bytes) -> bool:
        """Whether `signature` is this key's over exactly `data`: Ed25519, ECDSA, or RSA PKCS#1 v1.5 with SHA-256."""
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


def public_key_of(key: KeyOfAPerson) -> PublicKey:
    """Return a key in the one encoding that this program compares keys by."""
    return PublicKey(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


@dataclass(frozen=True, slots=True)
class ApprovalKey:
    """A person's private key, and its public half."""

    public: PublicKey
    _key: Ed25519PrivateKey = field(repr=False)

    def sign(self, data: bytes) -> str:
        """Return the signature of `data`, in base64."""
        return base64.b64encode(self._key.sign(data)).decode("ascii")


def load_approval_key(path: Path, passphrase: bytes | None) -> ApprovalKey:
    """Return the Ed25519 key in the PEM file `path`, encrypted or not.

    Raises `ConfigurationError` when it cannot be read, is open to others, is no such key, or stays closed.
    """
    pem = _read_private(path)
    try:
        key = load_pem_private_key(pem, passphrase if b"ENCRYPTED" in pem else None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigurationError(
            say("{path} holds no private key that can be opened.", path=path),
            hint=say("An encrypted key needs its passphrase in PAYGW_APPROVAL_PASSPHRASE."),
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigurationError(
            say("{path} is no Ed25519 key.", path=path),
            hint=say("{how_to_make_one} makes one.", how_to_make_one=HOW_TO_MAKE_ONE),
        )
    return ApprovalKey(public_key_of(key.public_key()), key)


def read_public_key(text: str) -> PublicKey | None:
    """Return the public key that a line of text is, or None when it is none that a person may have.

    That is Ed25519, P-256, or RSA of 2048 bits or more, as `openssl pkey -pubout` or a browser's `getPublicKey()` have
    it. One key has many spellings: with line breaks, with too little or too much padding, with other unused bits at
    its end. All of them are the same key.
    """
    bare = "".join(text.split()).rstrip("=")
    try:
        key = load_der_public_key(base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True))
    except (binascii.Error, ValueError, UnsupportedAlgorithm):
        return None
    match key:
        case Ed25519PublicKey():
            return public_key_of(key)
        case EllipticCurvePublicKey() if isinstance(key.curve, SECP256R1):
            return public_key_of(key)
        case RSAPublicKey() if MIN_RSA_BITS <= key.key_size <= MAX_RSA_BITS:
            return public_key_of(key) if key.public_numbers().e == RSA_EXPONENT else None
        case _:
            return None


def read_own_spelling(text: str) -> PublicKey | None:
    """Return the key that `PublicKey.text` writes as `text`, or None: a signed document has no other spelling."""
    key = read_public_key(text)
    return key if key is not None and key.text == text else None


def _read_private(path: Path) -> bytes:
    """Return the content of the file, if only its owner may read and write it. Checked and read through one handle."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigurationError(
            say("The key {path} cannot be read: {reason}.", path=path, reason=say(error.strerror or "unknown").lower())
        ) from None
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise ConfigurationError(say("The key {path} is not a file.", path=path))
        if about.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigurationError(
                say("The key {path} is open to others than its owner.", path=path),
                hint=f"chmod 600 {shlex.quote(str(path))}",
            )
        return os.read(handle, MAX_KEY_FILE_BYTES)
    finally:
        os.close(handle)
