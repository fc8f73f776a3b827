"""Creates the throw-away keys of the sandbox on first use: the merchant's key, and the gateway's own."""

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from paygw_batch.errors import ConfigurationError
from paygw_batch.files import create_once
from paygw_batch.language import say

KEY_NAME = "sandbox-merchant.pem"
GATEWAY_KEY_NAME = "sandbox-gateway.pem"
"""The file of the key that signs the sandbox's notifications, if `authenticity = "header-rsa"` is configured."""
GATEWAY_PUBLIC_NAME = "sandbox-gateway-public.pem"
"""The file of the public half of that key, for `[notifications] public_key_file`."""


def sandbox_key(directory: Path) -> Path:
    """Return the path of the sandbox's merchant key (RSA-2048, PKCS#8, mode 0600) in `directory`, created if missing.

    The file is written whole or not at all and is never replaced, so two processes that create a key at once use the
    same key. Raises `ConfigurationError`.
    """
    path = directory / KEY_NAME
    _make(path, hint=say("Name a private_key in the configuration, or a journal in a folder that you can write to."))
    return path


def sandbox_gateway_key(directory: Path) -> RSAPrivateKey:
    """Return the sandbox's own key, created like the merchant's if missing, with a file of its public half beside it.

    Raises `ConfigurationError`.
    """
    path, public = directory / GATEWAY_KEY_NAME, directory / GATEWAY_PUBLIC_NAME
    hint = say("Delete it, and the sandbox makes another.")
    _make(path, hint=say("Name a journal in a folder that you can write to."))
    try:
        key = load_pem_private_key(path.read_bytes(), None)
        if not isinstance(key, RSAPrivateKey):
            raise ConfigurationError(say("The sandbox's key {path} is not an RSA key.", path=path), hint=hint)
        create_once(public, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    except (OSError, ValueError):
        raise ConfigurationError(say("The sandbox's key {path} cannot be used.", path=path), hint=hint) from None
    return key


def _make(path: Path, *, hint: str) -> None:
    try:
        if not path.exists():
            key = generate_private_key(public_exponent=65537, key_size=2048)
            create_once(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    except OSError as problem:
        raise ConfigurationError(
            say("The sandbox's key {path} cannot be created: {reason}.", path=path, reason=say(str(problem.strerror))),
            hint=hint,
        ) from None
