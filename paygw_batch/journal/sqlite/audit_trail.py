"""Keeps the console's audit trail durable, in a separate database beside the journal.

The journal has one writer, and a run holds it from start to finish. Meanwhile the console records who did what. The
trail is not part of the journal, and nothing that pays reads it. Entries are never changed or removed.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Lock

import apsw

from paygw_batch.errors import AuditDamaged, AuditUnwritable
from paygw_batch.journal.facts.audit_chain import (
    AuditEnd,
    AuditEntry,
    AuditNote,
    follow_trail,
    next_audit_entry,
    start_of_trail,
)
from paygw_batch.journal.guards.location import audit_path, check_file
from paygw_batch.journal.sqlite.connect import SideDatabase, fetch
from paygw_batch.language import mark

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
_PAYA = 0x70617961
_TRAIL = SideDatabase(
    mark("audit trail"), _PAYA, _TABLES, AuditDamaged, AuditUnwritable, then=mark("Nothing was done.")
)
_ADD = "INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_END = "SELECT number, hash FROM entry ORDER BY number DESC LIMIT 1"


class AuditTrail:
    """The trail of one journal, open for writing until `close`. Safe to call from several threads.

    Several processes may write at a time. Raises `AuditDamaged`, and `JournalError` if the file is not private.
    """

    def __init__(self, journal: Path, journal_id: str) -> None:
        self._path = audit_path(journal)
        self._start = start_of_trail(journal_id)
        self._lock = Lock()
        _TRAIL.make(self._path)
        self._connection = _TRAIL.open(self._path, write=True)

    def note(self, note: AuditNote, at: str) -> AuditEnd:
        """Record a note durably. Raises `AuditUnwritable`, and then the action it is about must not be done."""
        with self._lock, _TRAIL.writing(self._connection, self._path):
            entry = next_audit_entry(_end_of(self._connection, self._start), note, at)
            fetch(self._connection, _ADD, entry)
        return AuditEnd(entry.number, entry.hash)

    def close(self) -> None:
        """Close the trail."""
        self._connection.close()


def audit_entries(journal: Path, *, before: int | None = None, limit: int) -> Sequence[AuditEntry]:
    """Return up to `limit` entries of the trail of a journal before entry `before` (None: the newest), newest first."""
    with _reading(audit_path(journal)) as connection:
        if connection is None:
            return []
        query = "SELECT * FROM entry WHERE ?1 IS NULL OR number < ?1 ORDER BY number DESC LIMIT ?2"
        return [AuditEntry(*columns) for columns in fetch(connection, query, (before, limit))]


def verify_audit_trail(journal: Path, journal_id: str) -> AuditEnd | None:
    """Check the whole trail of a journal; return its end, or None if there is none. Raises `AuditDamaged`."""
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
    with closing(_TRAIL.open(path, write=False)) as connection, _TRAIL.reading(path):
        yield connection


def _end_of(connection: apsw.Connection, start: AuditEnd) -> AuditEnd:
    found = fetch(connection, _END)
    return AuditEnd(*found[0]) if found else start
