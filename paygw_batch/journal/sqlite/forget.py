"""Removes forgotten people from a journal file: from its pages, its log and its search index."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from paygw_batch.journal.sqlite.connect import fetch

_GUARDED = ("said", "instruction", "page", "reply")
_INDEX_AGAIN = """
    INSERT INTO payment_words (payment_words) VALUES ('delete-all');
    INSERT INTO payment_words (rowid, words) SELECT number, words FROM payment_text ORDER BY number"""


@contextmanager
def unguarded(connection: apsw.Connection) -> Iterator[None]:
    """Allow the block to change otherwise immutable rows, inside the open transaction.

    SQLite overwrites the removed bytes with zeros. No other connection sees the tables without their triggers.
    """
    marks = ", ".join("?" * len(_GUARDED))
    query = f"SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name IN ({marks})"  # noqa: S608 - places
    guards = [(name, sql) for name, sql in fetch(connection, query, _GUARDED) if "_is_never_" in name]
    for name, _ in guards:
        connection.execute(f"DROP TRIGGER {name}")
    yield
    for _, sql in guards:
        connection.execute(sql)


def index_again(connection: apsw.Connection) -> None:
    """Rebuild the payee index from the payees who are left."""
    connection.execute(_INDEX_AGAIN)


def scrub(connection: apsw.Connection, path: Path) -> bool:
    """Rewrite the file without the removed rows, and empty its log.

    Removed bytes may survive in any page that SQLite split earlier. Return False if another program is reading the
    file: its log then still holds old pages.
    """
    connection.pragma("temp_store_directory", str(path.parent))  # keeps the temporary file as private as the journal
    connection.pragma("temp_store", 1)
    try:
        connection.execute("VACUUM")
    finally:
        connection.pragma("temp_store", 2)
    return is_log_empty(connection)


def is_log_empty(connection: apsw.Connection) -> bool:
    """Empty the log of a file. Return False if another program is reading the file."""
    ((busy, *_),) = fetch(connection, "PRAGMA wal_checkpoint(TRUNCATE)")
    return not busy
