"""Creates and migrates a journal's tables, and keeps its identity, names and adoptions.

The names, and people's statements that this copy is the newest, are two separate chains like the facts: the hash of a
line is SHA-256 over the hash before it and all its columns.
"""

import hashlib
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import apsw

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.errors import JournalCorrupt, JournalError
from paygw_batch.journal.guards.witness import CHAINS_BESIDE
from paygw_batch.journal.sqlite.connect import fetch
from paygw_batch.journal.tables import MOVE_LINES, with_triggers
from paygw_batch.journal.values import Identity, Link, canonical
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


def mark_moved(connection: apsw.Connection, place: str) -> None:
    """Record durably that the journal was moved to `place`: no run can use it from now on."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE identity SET home = ?", (place,))
    connection.pragma("user_version", MOVED)
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


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
    found = fetch(connection, "SELECT journal_id, endpoint, created_at, home FROM identity")
    if not found:
        raise JournalCorrupt(say("The journal does not have an id."))
    return Identity(*found[0])


def end_of(connection: apsw.Connection) -> Link:
    """Return the end of the chain."""
    found = fetch(connection, "SELECT number, hash, at FROM fact ORDER BY number DESC LIMIT 1")
    return Link(*found[0]) if found else identity_of(connection).start


def hash_at(connection: apsw.Connection, seq: int, chain: str = "fact") -> bytes:
    """Return the hash of line `seq` of a chain; for fact 0, the hash that the first fact links to."""
    if seq == 0:
        return identity_of(connection).start.hash
    found = fetch(connection, f"SELECT hash FROM {chain} WHERE rowid = ?", (seq,))  # noqa: S608 - a table of ours
    if not found:
        raise JournalCorrupt(_altered(seq, chain))
    digest: bytes = found[0][0]
    return digest


def ends_beside(connection: apsw.Connection, chains: Sequence[str] = CHAINS_BESIDE) -> tuple[tuple[int, str], ...]:
    """Return the ends of the chains beside the facts: the number of the last line (0: none), and its hash in hex."""
    lines = (
        fetch(connection, f"SELECT number, hash FROM {chain} ORDER BY number DESC LIMIT 1")  # noqa: S608 - as above
        for chain in chains
    )
    return tuple((found[0][0], found[0][1].hex()) if found else (0, "-") for found in lines)


def _tables(connection: apsw.Connection) -> frozenset[tuple[str, str]]:
    query = "SELECT name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite~_%' ESCAPE '~'"
    return frozenset((name, sql) for name, sql in fetch(connection, query) if name not in TABLES_OF_SQLITE)


@cache
def _expected() -> frozenset[tuple[str, str]]:
    with closing(apsw.Connection(":memory:")) as empty:
        for script in migrations():
            empty.execute(script)
        return _tables(empty)


_NAMES = "endpoint_name"
_ADOPTIONS = "adoption"


def names_of(connection: apsw.Connection, identity: Identity) -> tuple[EndpointIdentity, ...]:
    """Return every name by which a journal knows its endpoint, oldest first."""
    first = EndpointIdentity.from_name(identity.endpoint)
    noted = fetch(connection, "SELECT host, consumer_key_sha256 FROM endpoint_name ORDER BY number")
    return (first, *(EndpointIdentity(host, first.endpoint_id, key) for host, key in noted))


def note_name(connection: apsw.Connection, endpoint: EndpointIdentity, *, at: str, by: str) -> None:
    """Record a name of the endpoint in the caller's transaction, unless it is already there."""
    name = (endpoint.host, endpoint.consumer_key_sha256)
    kept = fetch(connection, "SELECT 1 FROM endpoint_name WHERE (host, consumer_key_sha256) = (?, ?)", name)
    if not kept:
        _add(connection, _NAMES, (*name, at, by))


def note_adoption(connection: apsw.Connection, end: Link, *, at: str, by: str, path: str) -> None:
    """Record an adoption in the caller's transaction; `end` is the end of the chain that the person calls newest."""
    _add(connection, _ADOPTIONS, (at, by, path, end.seq, end.hash.hex()))


def check_about(connection: apsw.Connection) -> None:
    """Raise `JournalCorrupt` if a name or an adoption was altered."""
    for table in (_NAMES, _ADOPTIONS):
        before = identity_of(connection).start.hash
        lines = fetch(connection, f"SELECT * FROM {table} ORDER BY number")  # noqa: S608 - one of two names of ours
        for number, (found, *columns, digest) in enumerate(lines, start=1):
            before = _linked(before, number, columns)
            if found != number or digest != before:
                raise JournalCorrupt(_altered(number, table))


def _altered(number: int, table: str) -> str:
    return say("Line {number} of table {table} was changed, or one before it is missing.", number=number, table=table)


def _add(connection: apsw.Connection, table: str, columns: Sequence[Any]) -> None:
    found = fetch(connection, f"SELECT number, hash FROM {table} ORDER BY number DESC LIMIT 1")  # noqa: S608 - as above
    number, before = found[0] if found else (0, identity_of(connection).start.hash)
    line = (number + 1, *columns, _linked(before, number + 1, columns))
    fetch(connection, f"INSERT INTO {table} VALUES ({', '.join('?' * len(line))})", line)  # noqa: S608 - as above


def _linked(before: bytes, number: int, columns: Sequence[Any]) -> bytes:
    return hashlib.sha256(before + canonical([number, *columns]).encode()).digest()
