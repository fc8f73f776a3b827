"""The keys people approve with: Ed25519 (RFC 8032), as PEM files and as one line of text.

Beside the gateway's signatures this is the only place of the program that does cryptography: approvals are between
people of one company and have nothing to do with how the gateway is spoken to.
"""

import base64
import binascii
import os
import shlex
import stat
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
    load_pem_private_key,
)

from paygw_batch.errors import ConfigurationError

MAX_KEY_FILE_BYTES = 16 * 1024
HOW_TO_MAKE_ONE = "openssl genpkey -algorithm ed25519 -out approval.pem"


@dataclass(frozen=True, slots=True)
class ApprovalKey:
    """A person's private key. `public` is its public half as one line of text: base64 of SubjectPublicKeyInfo."""

    public: str
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
            f"{path} holds no private key that can be opened.",
            hint="An encrypted key needs its passphrase in PAYGW_APPROVAL_PASSPHRASE.",
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigurationError(f"{path} is no Ed25519 key.", hint=f"{HOW_TO_MAKE_ONE} makes one.")
    der = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return ApprovalKey(base64.b64encode(der).decode("ascii"), key)


def is_public_key(public: str) -> bool:
    """Whether `public` is an Ed25519 public key as one line of text."""
    return _public_key(public) is not None


def is_signed_by(public: str, data: bytes, signature: str) -> bool:
    """Whether `signature` is that of the key `public` over exactly `data`."""
    key = _public_key(public)
    if key is None:
        return False
    try:
        key.verify(base64.b64decode(signature, validate=True), data)
    except (InvalidSignature, binascii.Error, ValueError):
        return False
    return True


def _public_key(public: str) -> Ed25519PublicKey | None:
    try:
        key = load_der_public_key(base64.b64decode(public, validate=True))
    except (binascii.Error, ValueError, UnsupportedAlgorithm):
        return None
    return key if isinstance(key, Ed25519PublicKey) else None


def _read_private(path: Path) -> bytes:
    """Return what the file holds, if only its owner may read and write it. Looked at and read through one handle."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigurationError(f"The key {path} cannot be read: {(error.strerror or 'unknown').lower()}.") from None
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise ConfigurationError(f"The key {path} is not a file.")
        if about.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigurationError(
                f"The key {path} is open to others than its owner.", hint=f"chmod 600 {shlex.quote(str(path))}"
            )
        return os.read(handle, MAX_KEY_FILE_BYTES)
    finally:
        os.close(handle)
