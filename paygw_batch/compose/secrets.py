"""Reads secrets from the places that the configuration names. It never quotes them."""

from collections.abc import Mapping
from pathlib import Path

from paygw_batch.errors import ConfigurationError
from paygw_batch.settings.configuration import Settings
from paygw_batch.trusted_files import Others, read_with_mode

_MAX_BYTES = 4096


def secret_of(key: str, variable: str | None, file: Path | None, environ: Mapping[str, str]) -> bytes:
    """Return the secret that the keys `KEY_env` (a variable's name) or `KEY_file` of the configuration name.

    Raises `ConfigurationError` where there is none, and for a file that others than its owner may read or write.
    """
    if variable is not None and (text := environ.get(variable)):
        return text.encode()
    if file is not None:
        return _private_file(f"{key}_file", file)
    named = "" if variable is None else f" ({variable})"
    raise ConfigurationError(
        f"The configuration does not say {key}_file, and no variable that {key}_env names{named} is set."
    )


def passphrase(settings: Settings, environ: Mapping[str, str]) -> bytes | None:
    """Return the passphrase of the private key from where the settings say it is, or None where they name no place.

    Raises `ConfigurationError` for a file that cannot be read and, unless the gateway is the built-in one, for a file
    that others than its owner may read or write.
    """
    gateway = settings.gateway
    if (variable := gateway.private_key_passphrase_env) is not None and (text := environ.get(variable)) is not None:
        return text.encode()
    if (file := gateway.private_key_passphrase_file) is not None:
        return _private_file("gateway.private_key_passphrase_file", file, is_checked=not settings.uses_sandbox)
    return None


def _private_file(key: str, file: Path, *, is_checked: bool = True) -> bytes:
    found = read_with_mode(file, f"{key} {file}", Others.MAY_NOTHING, most_bytes=_MAX_BYTES)
    if found.distrust is not None and is_checked:
        raise found.distrust
    return found.content.rstrip(b"\r\n")
