"""Keeps the audit trail of the console, durable, in a separate database beside the journal.

The journal has one writer, and a run holds it for as long as it lasts. The console notes meanwhile who did what. The
trail is no part of the journal: nothing that pays reads it. Nothing in it is ever changed or removed.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Lock

import apsw

from paygw_batch.errors import AuditDamaged, AuditUnwritable
from paygw_batch.files import create_once
from paygw_batch.journal.facts.audit_chain import (
    AuditEnd,
    AuditEntry,
    AuditNote,
    follow_trail,
    next_audit_entry,
    start_of_trail,
)
from paygw_batch.journal.guards.location import audit_path, check_file
from paygw_batch.journal.sqlite.connect import connect, fetch, reason_of

_APPLICATION_ID = 0x70617961
"""`paya`: marks the file as an audit trail (SQLite's application_id)."""
_VERSION = 1
_TABLES = """
CREATE TABLE entry (
    number INTEGER PRIMARY KEY,
    at     TEXT NOT NULL,
    who    TEXT NOT NULL,
    act    TEXT NOT NULL,
    thing  TEXT NOT NULL,
    result TEXT NOT NULL,
    said   TEXT NOT NULL,
    hash   TEXT NOT NULL
) STRICT;

CREATE TRIGGER entry_is_never_changed BEFORE UPDATE ON entry
    BEGIN SELECT RAISE(ABORT, 'entries are never changed'); END;
CREATE TRIGGER entry_is_never_removed BEFORE DELETE ON entry
    BEGIN SELECT RAISE(ABORT, 'entries are never removed'); END;
"""
"""Each line of `entry` is an `AuditEntry`."""
_ADD = "INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_END = "SELECT number, hash FROM entry ORDER BY number DESC LIMIT 1"


class AuditTrail:
    """The trail of one journal, open for noting until `close`. It may be called from several threads.

    Several processes may note at a time. Raises `AuditDamaged`, and `JournalError` for a file that is not private.
    """

    def __init__(self, journal: Path, journal_id: str) -> None:
        self._path = audit_path(journal)
        self._start = start_of_trail(journal_id)
        self._lock = Lock()
        _create(self._path)
        self._connection = _opened(self._path, write=True)

    def note(self, note: AuditNote, at: str) -> AuditEnd:
        """Make a note durable. Raises `AuditUnwritable`: then the act that it is about must not be done."""
        with self._lock, self._writing():
            entry = next_audit_entry(_end_of(self._connection, self._start), note, at)
            fetch(self._connection, _ADD, entry)
        return AuditEnd(entry.number, entry.hash)

    def close(self) -> None:
        """Let go of the trail."""
        self._connection.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            fetch(self._connection, "BEGIN IMMEDIATE")
            yield
            fetch(self._connection, "COMMIT")
        except apsw.Error as error:
            raise AuditUnwritable(
                f"The audit trail {self._path} cannot be written: {reason_of(error)}. Nothing was done."
            ) from None
        finally:
            if self._connection.in_transaction:
                with suppress(apsw.Error):
                    fetch(self._connection, "ROLLBACK")


def audit_entries(journal: Path, *, before: int | None = None, limit: int) -> Sequence[AuditEntry]:
    """Return up to `limit` entries of the trail of a journal before entry `before` (None: the newest), newest first."""
    with _reading(audit_path(journal)) as connection:
        if connection is None:
            return []
        query = "SELECT * FROM entry WHERE ?1 IS NULL OR number < ?1 ORDER BY number DESC LIMIT ?2"
        return [AuditEntry(*columns) for columns in fetch(connection, query, (before, limit))]


def verify_audit_trail(journal: Path, journal_id: str) -> AuditEnd | None:
    """Check the whole trail of a journal; return its end, or None where there is none. Raises `AuditDamaged`."""
    path = audit_path(journal)
    with _reading(path) as connection:
        if connection is None:
            return None
        end = start_of_trail(journal_id)
        entries = (AuditEntry(*columns) for columns in connection.execute("SELECT * FROM entry ORDER BY number"))
        for end in follow_trail(entries, journal_id, str(path)):  # noqa: B007 (the last one is wanted)
            pass
        return end


@contextmanager
def _reading(path: Path) -> Iterator[apsw.Connection | None]:
    if not check_file(path):
        yield None
        return
    with closing(_opened(path, write=False)) as connection:
        try:
            yield connection
        except apsw.Error as error:
            raise AuditDamaged(f"The audit trail {path} cannot be read: {error}.") from None


def _opened(path: Path, *, write: bool) -> apsw.Connection:
    connection = connect(path, write=write, what="audit trail", damaged=AuditDamaged)
    if (connection.pragma("application_id"), connection.pragma("user_version")) != (_APPLICATION_ID, _VERSION):
        connection.close()
        raise AuditDamaged(f"{path} is no audit trail that this version of the program can read.")
    return connection


def _end_of(connection: apsw.Connection, start: AuditEnd) -> AuditEnd:
    found = fetch(connection, _END)
    return AuditEnd(*found[0]) if found else start


def _create(path: Path) -> None:
    """Make an empty trail at `path`, whole or not at all; one that is there stays."""
    if check_file(path):
        return
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size > 0:  # SQLite would play it into a new trail
        raise AuditDamaged(f"The audit trail {path} is gone, and its log {log} still holds what was written last.")
    with closing(apsw.Connection(":memory:")) as connection:
        connection.execute(_TABLES)
        connection.pragma("application_id", _APPLICATION_ID)
        connection.pragma("user_version", _VERSION)
        image = connection.serialize("main")
    try:
        create_once(path, image)
    except OSError as error:
        raise AuditUnwritable(f"The audit trail {path} cannot be made: {error.strerror}.") from None
