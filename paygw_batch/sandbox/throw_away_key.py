"""Creates the throw-away keys of the sandbox on first use: the merchant's, and the gateway's own."""

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
"""The key by which the sandbox signs its notifications, if `authenticity = "header-rsa"` is configured."""
GATEWAY_PUBLIC_NAME = "sandbox-gateway-public.pem"
"""Its public half, for `[notifications] public_key_file`."""


def sandbox_key(directory: Path) -> Path:
    """Return the path of the sandbox's merchant key (RSA-2048, PKCS#8, mode 0600) in `directory`, made if missing.

    The key appears whole or not at all and is never replaced: two processes that make one at once use the same. Raises
    `ConfigurationError`.
    """
    path = directory / KEY_NAME
    _make(path, hint=say("Name a private_key in the configuration, or a journal in a folder that you can write to."))
    return path


def sandbox_gateway_key(directory: Path) -> RSAPrivateKey:
    """Return the sandbox's own key, made like the merchant's if missing, with its public half in a file beside it.

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
