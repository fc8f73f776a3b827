"""Reads files that affect payments or contain a secret, and checks who else can access them."""

import os
import shlex
import stat
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from paygw_batch.errors import ConfigurationError
from paygw_batch.files import open_nonblocking
from paygw_batch.language import say

_MAX_SECRET_BYTES = 64 * 1024


class OtherUsers(Enum):
    """What other users may do with a file. Each value has forbidden mode bits and the chmod mode that clears them."""

    MAY_READ = (stat.S_IWGRP | stat.S_IWOTH, "go-w")
    NO_ACCESS = (stat.S_IRWXG | stat.S_IRWXO, "600")


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A file's content, and an error if the file cannot be trusted."""

    content: bytes
    trust_error: ConfigurationError | None


def read_and_check_access(path: Path, name: str, users: OtherUsers, *, max_bytes: int) -> CheckedFile:
    """Return the first `max_bytes` of a file, and an error if other users can access it.

    The file must belong to this user or root, so other users who can write to its directory cannot replace it with
    their own. Raises `ConfigurationError`, which calls the file `name`, if it cannot be read or is not a regular file.
    """
    try:
        with open(path, "rb", opener=open_nonblocking) as stream:
            status = os.fstat(stream.fileno())
            content = stream.read(max_bytes) if stat.S_ISREG(status.st_mode) else None
    except IsADirectoryError:
        content = None
    except OSError as error:
        raise ConfigurationError(
            say("{name}: {reason}.", name=name, reason=say(error.strerror or "cannot be read").lower()),
            hint=say("Check the path."),
        ) from None
    if content is None:
        raise ConfigurationError(say("{name} is not a file.", name=name))
    is_secret = users is OtherUsers.NO_ACCESS
    risk = say("accessible to users other than its owner") if is_secret else say("writable by other users")
    trust_error = _access_error(path, name, status, users, say("{name} is {what}.", name=name, what=risk))
    return CheckedFile(content, trust_error)


def _access_error(
    path: Path, name: str, status: os.stat_result, users: OtherUsers, problem: str
) -> ConfigurationError | None:
    """Return an error if a file or directory belongs to another user, or if its mode is forbidden (`problem`)."""
    forbidden, mode = users.value
    if status.st_uid not in {os.geteuid(), 0}:
        return ConfigurationError(
            say("{name} belongs to another user.", name=name), hint=f"chown {os.geteuid()} {shlex.quote(str(path))}"
        )
    if status.st_mode & forbidden:
        return ConfigurationError(problem, hint=f"chmod {mode} {shlex.quote(str(path))}")
    return None


def read_trusted_file(path: Path, name: str, users: OtherUsers) -> bytes:
    """Read a file with a key or a secret. Raises `ConfigurationError` if it cannot be trusted."""
    file = read_and_check_access(path, name, users, max_bytes=_MAX_SECRET_BYTES + 1)
    if file.trust_error is not None:
        raise file.trust_error
    if len(file.content) > _MAX_SECRET_BYTES:
        raise ConfigurationError(say("{name} is too large to be a key.", name=name))
    return file.content


def check_directory(path: Path) -> None:
    """Raise `ConfigurationError` unless `path` is a directory, not a link, that only this user or root can change."""
    try:
        status = path.lstat()
    except OSError as error:
        raise ConfigurationError(
            say("{name}: {reason}.", name=path, reason=say(error.strerror or "cannot be read").lower())
        ) from None
    if stat.S_ISLNK(status.st_mode) or not stat.S_ISDIR(status.st_mode):
        raise ConfigurationError(
            say("{name} is a link or a file, not a folder.", name=path), hint=say("Remove it, or move it elsewhere.")
        )
    problem = say("Other users can change {name}.", name=path)
    if (trust_error := _access_error(path, str(path), status, OtherUsers.MAY_READ, problem)) is not None:
        raise trust_error
