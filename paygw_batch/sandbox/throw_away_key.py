"""Creates the sandbox's throw-away keys, the merchant's and the gateway's, on first use."""

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
from paygw_batch.files import create_if_missing
from paygw_batch.language import say

KEY_NAME = "sandbox-merchant.pem"
GATEWAY_KEY_NAME = "sandbox-gateway.pem"
"""The file with the private key that signs notifications if `authenticity = "header-rsa"` is configured."""
GATEWAY_PUBLIC_NAME = "sandbox-gateway-public.pem"
"""The file with the public key that verifies these notifications, for `[notifications] public_key_file`."""


def ensure_sandbox_key(directory: Path) -> Path:
    """Return the path of the sandbox merchant's private key (RSA-2048, PKCS#8, mode 0600), creating it if missing.

    The file is written atomically and never replaced, so concurrent processes use the same key.
    """
    path = directory / KEY_NAME
    hint = say("Set private_key in the configuration, or choose a journal in a folder that you can write to.")
    _create_key(path, hint=hint)
    return path


def ensure_gateway_key(directory: Path) -> RSAPrivateKey:
    """Return the sandbox gateway's private key, creating the key pair if missing. Raises `ConfigurationError`."""
    path, public_path = directory / GATEWAY_KEY_NAME, directory / GATEWAY_PUBLIC_NAME
    hint = say("Delete it. The sandbox then creates a new one.")
    _create_key(path, hint=say("Choose a journal in a folder that you can write to."))
    try:
        key = load_pem_private_key(path.read_bytes(), None)
        if not isinstance(key, RSAPrivateKey):
            raise ConfigurationError(say("The sandbox's key {path} is not an RSA key.", path=path), hint=hint)
        create_if_missing(public_path, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    except (OSError, ValueError):
        raise ConfigurationError(say("The sandbox's key {path} cannot be used.", path=path), hint=hint) from None
    return key


def _create_key(path: Path, *, hint: str) -> None:
    try:
        if not path.exists():
            key = generate_private_key(public_exponent=65537, key_size=2048)
            create_if_missing(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    except OSError as error:
        raise ConfigurationError(
            say("The sandbox's key {path} cannot be created: {reason}.", path=path, reason=say(str(error.strerror))),
            hint=hint,
        ) from None
