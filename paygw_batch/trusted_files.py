"""Reads files that decide about money or hold a secret, and checks who else may change them."""

import os
import shlex
import stat
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from paygw_batch.errors import ConfigurationError
from paygw_batch.language import say


class Others(Enum):
    """The rights that others may have on a file: the modes that forbid more, and the command that mends it."""

    MAY_READ = (stat.S_IWGRP | stat.S_IWOTH, "go-w")
    MAY_NOTHING = (stat.S_IRWXG | stat.S_IRWXO, "600")


@dataclass(frozen=True, slots=True)
class TrustedFile:
    """The content of a file, and the reason not to trust it, if any."""

    content: bytes
    distrust: ConfigurationError | None


def read_with_mode(path: Path, name: str, others: Others, *, most_bytes: int) -> TrustedFile:
    """Return the first `most_bytes` of a file, and whether someone else than its owner may touch it.

    Its owner must be this user or root: someone else who may write to its directory can replace it, but not with a file
    of these owners. Raises `ConfigurationError`, calling the file `name`, where it cannot be read or is no file.
    """
    try:
        with open(path, "rb", opener=_open_without_waiting) as stream:
            about = os.fstat(stream.fileno())
            content = stream.read(most_bytes) if stat.S_ISREG(about.st_mode) else None
    except OSError as error:
        raise ConfigurationError(
            say("{name}: {reason}.", name=name, reason=say(error.strerror or "cannot be read").lower())
        ) from None
    if content is None:
        raise ConfigurationError(say("{name} is not a file.", name=name))
    forbidden, mode = others.value
    distrust = None
    if about.st_uid not in {os.geteuid(), 0}:
        distrust = ConfigurationError(
            say("{name} belongs to another user.", name=name), hint=f"chown {os.geteuid()} {shlex.quote(str(path))}"
        )
    elif about.st_mode & forbidden:
        what = (
            say("open to others than its owner") if others is Others.MAY_NOTHING else say("open to changes by others")
        )
        distrust = ConfigurationError(
            say("{name} is {what}.", name=name, what=what), hint=f"chmod {mode} {shlex.quote(str(path))}"
        )
    return TrustedFile(content, distrust)


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
