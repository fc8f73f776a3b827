"""Creates and migrates a journal's tables, and reads its identity and the end of its chain."""

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple
from functools import cache
from importlib import resources
from pathlib import Path

import apsw

from paygw_batch.errors import JournalCorrupt, JournalError
from paygw_batch.journal.sqlite.connect import fetch
from paygw_batch.journal.tables import MOVE_LINES, with_triggers
from paygw_batch.journal.values import Identity, Link
from paygw_batch.language import say

TABLES_OF_SQLITE = frozenset({"payment_words_data", "payment_words_idx", "payment_words_config"})
"""The tables in which SQLite keeps the full-text index; their layout is SQLite's business."""


APPLICATION_ID = 0x70617967
"""`payg`: marks the file as a journal (SQLite's application_id)."""
MOVED = 1_000_000
"""The version given to a journal that moved to a database; every version of this program refuses it."""


@cache
def migrations() -> tuple[str, ...]:
    """Return the scripts that migrate each version to the next; the first creates version 1 in an empty file."""
    return (with_triggers(resources.files(__package__).joinpath("schema.sql").read_text(encoding="utf-8")),)


def versions() -> list[int]:
    """Return the numbers of all versions up to the newest."""
    return list(range(1, len(migrations()) + 1))


def version_of(connection: apsw.Connection, path: Path) -> int:
    """Return the version of the tables; 0 for an empty file.

    Raises `JournalError` if the file is not a journal, is from a newer version of this program, or was moved to a
    database.
    """
    application_id, version = connection.pragma("application_id"), connection.pragma("user_version")
    if application_id == 0 and version == 0 and not _tables(connection):
        return 0
    if application_id != APPLICATION_ID:
        raise JournalError(say("{path} is not a journal: another program made it.", path=path))
    if version == MOVED:
        raise JournalError(
            say(
                "The journal {path} was moved to the database {place}. Nothing is paid from this file any longer.",
                path=path,
                place=identity_of(connection).home,
            ),
            hint=say("Name that database in [journal] url, and keep this file as an archive."),
        )
    if version > len(migrations()):
        raise JournalError(
            say("The journal {path} was written by a newer version of this program.", path=path),
            hint=say("Install that version, or a later one."),
        )
    return int(version)


def make_tables(connection: apsw.Connection, identity: Identity) -> None:
    """Make the tables of a journal without facts, in the caller's transaction."""
    migrate(connection, 0, now=identity.created_at)
    fetch(connection, "INSERT INTO identity VALUES (1, ?, ?, ?, ?, ?)", astuple(identity))


def migrate(connection: apsw.Connection, version: int, *, now: str) -> None:
    """Migrate the tables from `version` to the newest, in the caller's transaction."""
    if version == len(migrations()):
        return
    for number, script in enumerate(migrations()[version:], start=version + 1):
        connection.execute(script)
        connection.execute("INSERT INTO migration VALUES (?, ?)", (number, now))
    if version == 0:
        connection.executemany("INSERT INTO move VALUES (?, ?, ?, ?, ?, ?, ?)", MOVE_LINES)
    connection.pragma("application_id", APPLICATION_ID)
    connection.pragma("user_version", len(migrations()))


def moved_to(connection: apsw.Connection) -> str:
    """Return the location that the journal was moved to; empty if this is still the one to use."""
    return identity_of(connection).home if connection.pragma("user_version") == MOVED else ""


@contextmanager
def moving(connection: apsw.Connection, place: str) -> Iterator[None]:
    """Keep all others from writing while the block copies the journal; then record durably that it moved to `place`.

    No run can use it from then on, and nobody writes beside one.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("UPDATE identity SET home = ?", (place,))
        connection.pragma("user_version", MOVED)
        connection.execute("COMMIT")
    finally:
        _roll_back(connection)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@contextmanager
def written_beside(connection: apsw.Connection, path: Path) -> Iterator[None]:
    """Write in one durable transaction beside the process that holds the journal: SQLite orders the two.

    Raises `JournalError` if the journal was moved away since.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        version_of(connection, path)
        yield
        connection.execute("COMMIT")
    finally:
        _roll_back(connection)


def _roll_back(connection: apsw.Connection) -> None:
    """Discard the transaction if it is still open."""
    if connection.in_transaction:
        with suppress(apsw.Error):
            connection.execute("ROLLBACK")


def check_tables(connection: apsw.Connection, path: Path) -> None:
    """Raise `JournalCorrupt` unless the tables, indexes and triggers are exactly those of the newest version."""
    found, wanted = _tables(connection), _expected()
    if found != wanted:
        names = sorted({name for name, _ in found ^ wanted})
        raise JournalCorrupt(
            say("The schema of the journal {path} was altered: {names}.", path=path, names=", ".join(names)[:200])
        )


def identity_of(connection: apsw.Connection) -> Identity:
    """Return the journal's identity."""
    found = fetch(connection, "SELECT journal_id, endpoint, created_at, home, consumer_key_sha256 FROM identity")
    if not found:
        raise JournalCorrupt(say("The journal does not have an id."))
    return Identity(*found[0])


def end_of(connection: apsw.Connection) -> Link:
    """Return the end of the chain."""
    found = fetch(connection, "SELECT number, hash, at FROM fact ORDER BY number DESC LIMIT 1")
    return Link(*found[0]) if found else identity_of(connection).start


def hash_at(connection: apsw.Connection, seq: int) -> bytes:
    """Return the hash of fact `seq`; for fact 0, the hash that the first fact links to."""
    if seq == 0:
        return identity_of(connection).start.hash
    found = fetch(connection, "SELECT hash FROM fact WHERE number = ?", (seq,))
    if not found:
        raise JournalCorrupt(say("Fact {number} is missing from the journal.", number=seq))
    digest: bytes = found[0][0]
    return digest


def _tables(connection: apsw.Connection) -> frozenset[tuple[str, str]]:
    query = "SELECT name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite~_%' ESCAPE '~'"
    return frozenset((name, sql) for name, sql in fetch(connection, query) if name not in TABLES_OF_SQLITE)


@cache
def _expected() -> frozenset[tuple[str, str]]:
    with closing(apsw.Connection(":memory:")) as empty:
        for script in migrations():
            empty.execute(script)
        return _tables(empty)
