"""Secrets that are neither keys nor passphrases: from where the configuration says they are, and never quoted."""

import os
import shlex
import stat
from collections.abc import Mapping
from pathlib import Path

from paygw_batch.errors import ConfigurationError

_MAX_BYTES = 4096
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def secret_of(key: str, variable: str | None, file: Path | None, environ: Mapping[str, str]) -> bytes:
    """Return the secret that the keys `KEY_env` (a variable's name) or `KEY_file` of the configuration name.

    Raises `ConfigurationError` where there is none, and for a file that others than its owner may read.
    """
    if variable is not None and (text := environ.get(variable)):
        return text.encode()
    if file is not None:
        return _private_file(f"{key}_file", file)
    named = "" if variable is None else f" ({variable})"
    raise ConfigurationError(
        f"The configuration does not say {key}_file, and no variable that {key}_env names{named} is set."
    )


def _private_file(key: str, file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            text = stream.read(_MAX_BYTES)
    except OSError as error:
        raise ConfigurationError(f"{key} {file}: {(error.strerror or 'cannot be read')}.") from None
    if mode & _OTHERS:
        raise ConfigurationError(
            f"{key} {file} is open to others than its owner.", hint=f"chmod 600 {shlex.quote(str(file))}"
        )
    return text.rstrip(b"\r\n")
