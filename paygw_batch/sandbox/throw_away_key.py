"""Creates a throw-away merchant key for runs against the sandbox, on first use."""

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from paygw_batch.errors import ConfigurationError
from paygw_batch.files import create_once

KEY_NAME = "sandbox-merchant.pem"


def sandbox_key(directory: Path) -> Path:
    """Return the path of the sandbox's merchant key (RSA-2048, PKCS#8, mode 0600) in `directory`, made if missing.

    The key appears whole or not at all and is never replaced: of two processes that make one at the same moment, one
    is first and both use that one. It is good for nothing but the sandbox. Raises `ConfigurationError`.
    """
    path = directory / KEY_NAME
    try:
        if not path.exists():
            create_once(path, _new_key())
    except OSError as problem:
        raise ConfigurationError(
            f"The sandbox's key {path} cannot be made: {problem.strerror}.",
            hint="Name a private_key in the configuration, or a journal in a directory that can be written.",
        ) from None
    return path


def _new_key() -> bytes:
    key = generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
