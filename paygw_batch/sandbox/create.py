"""Files that two processes may make at the same moment: whole or not at all, and never replaced."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def create_once(path: Path, content: bytes) -> None:
    """Make the file at `path` (mode 0600, its directory 0700 where missing), or leave the one that is there.

    Whoever comes second keeps the first one's file. Raises `OSError`.
    """
    if path.exists():
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, unfinished = tempfile.mkstemp(prefix=".sandbox-", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # Unlike a rename, a link never replaces what is there.
        with suppress(FileExistsError):
            os.link(unfinished, path)
    finally:
        Path(unfinished).unlink()
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
