"""A safe copy of a journal, also while a run writes it."""

import os
import secrets
from pathlib import Path

import apsw

from paygw_batch.errors import OutputError
from paygw_batch.journal.guards.location import sync_directory


def write_backup(source: apsw.Connection, path: Path) -> None:
    """Copy the database of `source` to `path`: one snapshot, whole or not at all, for its owner alone.

    SQLite's own backup is used: copying the file of a journal in use would miss what its log still holds.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise OutputError(f"The copy {path} cannot be written: {error.strerror}.") from None
    try:
        _copy(source, temporary)
        os.link(temporary, path)  # unlike a rename, this never replaces a file
        sync_directory(path.parent)
    except FileExistsError:
        raise OutputError(f"{path} already exists.", hint="Name a file that does not exist yet.") from None
    except (OSError, apsw.FullError, apsw.CantOpenError, apsw.ReadOnlyError) as error:
        raise OutputError(f"The copy {path} cannot be written: {error}.") from None
    finally:
        temporary.unlink(missing_ok=True)


def _copy(source: apsw.Connection, path: Path) -> None:
    target = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW)
    try:
        with target.backup("main", source, "main") as backup:
            while not backup.done:
                backup.step()
    finally:
        target.close()
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
