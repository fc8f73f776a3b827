"""Copies a journal and its inbox, also while a run and a listener write them."""

import os
from collections.abc import Mapping
from pathlib import Path

import apsw

from paygw_batch.errors import OutputError
from paygw_batch.files import sync_directory, unfinished
from paygw_batch.language import say


def write_backup(sources: Mapping[Path, apsw.Connection]) -> None:
    """Copy databases to new files: each in one snapshot, for its owner alone, all of them or none.

    They are copied in order, and get their names in the opposite order: where the first is, the others are. SQLite's
    own backup is used: copying the file of a database in use would miss the rows in its log.
    """
    (journal, *_) = sources
    for path in sources:
        if os.path.lexists(path):
            raise OutputError(
                say("{path} already exists.", path=path), hint=say("Name a file that does not exist yet.")
            )
    made: dict[Path, Path] = {}
    try:
        for path, source in sources.items():
            temporary = unfinished(path)
            made[temporary] = path
            _copy(source, temporary)
        for temporary, path in reversed(made.items()):
            os.link(temporary, path)  # unlike a rename, this never replaces a file
            sync_directory(path.parent)
    except (OSError, apsw.FullError, apsw.CantOpenError, apsw.ReadOnlyError) as error:
        raise OutputError(say("The copy {journal} cannot be written: {error}.", journal=journal, error=error)) from None
    finally:
        for temporary in made:
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
