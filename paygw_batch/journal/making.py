"""Making a new journal: whole or not at all."""

import os
import secrets
from contextlib import closing
from pathlib import Path

import apsw

from paygw_batch.errors import JournalError
from paygw_batch.journal.chain import Identity
from paygw_batch.journal.connection import connect
from paygw_batch.journal.opening import Found
from paygw_batch.journal.place import sync_directory
from paygw_batch.journal.schema import migrate, migrations


def make_journal(path: Path, *, endpoint: str, now: str) -> Found:
    """Make a journal without a fact at `path`, where none stands, for its owner alone.

    It is made under another name and then given its own, so that no crash leaves half of one.
    """
    _check_no_log(path)
    identity = Identity(secrets.token_hex(16), endpoint, now, str(path))
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        _fill(temporary, identity, now)
        temporary.rename(path)
        sync_directory(path.parent)
    except (apsw.Error, OSError) as error:
        raise JournalError(f"The journal {path} cannot be made: {error}.") from None
    finally:
        for ending in ("", "-wal", "-shm", "-journal"):
            temporary.with_name(temporary.name + ending).unlink(missing_ok=True)
    return Found(len(migrations()), identity, identity.start)


def _fill(path: Path, identity: Identity, now: str) -> None:
    with closing(connect(path, write=True)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        migrate(connection, 0, now=now)
        columns = (identity.journal_id, identity.endpoint, identity.created_at, identity.home)
        connection.execute("INSERT INTO identity VALUES (1, ?, ?, ?, ?)", columns)
        connection.execute("COMMIT")
        busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
        if busy:
            raise JournalError(f"The journal {identity.home} cannot be made: its log is in use.")


def _check_no_log(path: Path) -> None:
    """Refuse to put a new journal beside the log of a lost one, which SQLite would play into it."""
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size > 0:
        raise JournalError(
            f"The journal {path} is gone, but its log {log} still stands and holds what was written last.",
            hint="Put the journal file back beside its log.",
        )
