"""Opens journal files with durable commits, and creates, upgrades and checks their tables."""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import apsw

from paygw_batch.errors import InternalError, JournalCorrupt, JournalError
from paygw_batch.files import create_if_missing
from paygw_batch.journal.lock import check_file, translating_os_errors
from paygw_batch.journal.tables import MOVE_LINES, insert_triggers
from paygw_batch.journal.values import Identity, Link
from paygw_batch.language import mark, say

OLDEST_SQLITE = (3, 51, 3)
"""In older versions, two writers can corrupt the write-ahead log (the "WAL-reset" bug)."""

_BUSY_TIMEOUT_MS = 10_000
_CACHE_KIB = 32 * 1024
MAX_CACHED_STATEMENTS = 256
"""The number of statements a connection caches. Compiling a statement takes longer than running it."""
_WAL_LIMIT_BYTES = 64 * 1024 * 1024
_SYNCHRONOUS_FULL = 2


def connect(path: Path, *, write: bool) -> apsw.Connection:
    """Open the database in the existing file at `path`. Raises `JournalError`."""
    _check_sqlite_version()
    flags = apsw.SQLITE_OPEN_NOFOLLOW | apsw.SQLITE_OPEN_EXRESCODE
    flags |= apsw.SQLITE_OPEN_READWRITE if write else apsw.SQLITE_OPEN_READONLY
    try:
        connection = apsw.Connection(str(path), flags=flags, statementcachesize=MAX_CACHED_STATEMENTS)
    except apsw.Error as error:
        raise JournalError(say("{path} cannot be opened: {reason}.", path=path, reason=error)) from None
    try:
        configure(connection)
        _configure_file(connection, write=write)
    except (apsw.NotADBError, apsw.CorruptError):
        connection.close()
        raise JournalError(say("{path} is damaged, or is not the expected kind of file.", path=path)) from None
    except apsw.Error as error:
        connection.close()
        raise JournalError(say("{path} cannot be used: {reason}.", path=path, reason=error)) from None
    except BaseException:
        connection.close()
        raise
    return connection


def connect_side_database(path: Path, tables: str) -> apsw.Connection:
    """Open or create a private database next to a journal, and run the script `tables`. Raises `JournalError`."""
    with translating_os_errors(mark("{path} cannot be used: {reason}."), path=path):
        if not check_file(path):
            create_if_missing(path, b"")
    connection = connect(path, write=True)
    with transaction(connection):
        connection.execute(tables)
    return connection


@contextmanager
def transaction(connection: apsw.Connection) -> Iterator[None]:
    """Run the block in a durable transaction, which is rolled back on an error. Raises `JournalError`."""
    try:
        with _transaction(connection):
            yield
    except apsw.Error as error:
        path = connection.filename
        raise JournalError(say("{path} cannot be used: {reason}.", path=path, reason=failure_reason(error))) from None


@contextmanager
def _transaction(connection: apsw.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            with suppress(apsw.Error):
                connection.execute("ROLLBACK")


def configure(connection: apsw.Connection) -> None:
    """Set the options shared by databases in files and in memory. Raises `apsw.Error`."""
    connection.set_busy_timeout(_BUSY_TIMEOUT_MS)
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    # Otherwise, SQLite would plan each statement again for every row of values, which takes ten times as long.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    # Payees' data must not reach a temporary file, and a damaged page must cause an error instead of a signal.
    _set_pragmas(
        connection,
        {"temp_store": 2, "cell_size_check": 1, "foreign_keys": 1, "recursive_triggers": 1, "cache_size": -_CACHE_KIB},
    )


def _configure_file(connection: apsw.Connection, *, write: bool) -> None:
    settings: dict[str, int | str] = {"mmap_size": 0}
    if write:
        # Keeps the write-ahead log when the last connection closes, so that readers need not create one.
        persist = ctypes.c_int(1)
        connection.file_control("main", apsw.SQLITE_FCNTL_PERSIST_WAL, ctypes.addressof(persist))
        settings |= {"journal_mode": "wal", "synchronous": _SYNCHRONOUS_FULL, "fullfsync": 1, "checkpoint_fullfsync": 1}
        settings["journal_size_limit"] = _WAL_LIMIT_BYTES
    else:
        settings["query_only"] = 1
        prevent_writes_on_close(connection)  # readers cannot checkpoint the log when they close
    _set_pragmas(connection, settings)


def _set_pragmas(connection: apsw.Connection, settings: Mapping[str, int | str]) -> None:
    """Set pragmas and read them back, because SQLite silently ignores invalid values."""
    for name, expected in settings.items():
        connection.pragma(name, expected)
        if (actual := connection.pragma(name)) != expected:
            raise InternalError(f"SQLite keeps {name} at {actual!r} instead of {expected!r}")


def _check_sqlite_version() -> None:
    version = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
    if version < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        raise JournalError(
            say(
                "SQLite {version} can corrupt a journal. Version {oldest} or later is needed.",
                version=apsw.sqlite_lib_version(),
                oldest=oldest,
            ),
            hint=say("Install the apsw wheel from the package index, which contains its own SQLite."),
        )


def prevent_writes_on_close(connection: apsw.Connection) -> None:
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)


def fetch(
    connection: apsw.Connection, query: str, bindings: Sequence[Any] | Mapping[str, Any] = ()
) -> list[tuple[Any, ...]]:
    """Run a statement and return all its rows. Raises `apsw.Error`."""
    return connection.execute(query, bindings).fetchall()


def failure_reason(error: apsw.Error) -> str:
    # Only the journal's holder assigns fact numbers, so a duplicate reveals a second writer.
    code = getattr(error, "extendedresult", 0)  # all errors have this attribute, but the stubs lack it
    if code == apsw.SQLITE_CONSTRAINT_PRIMARYKEY:
        return say("another process has written to it")
    if code & 0xFF == apsw.SQLITE_BUSY:
        return say("another process has not finished writing to it")
    return str(error)


@contextmanager
def translating_conflicts(message: str, kind: int | None = None) -> Iterator[None]:
    """Convert a constraint violation (of this `kind`, or any if None) to an `InternalError` with this message."""
    try:
        yield
    except apsw.ConstraintError as error:
        if kind not in {None, getattr(error, "extendedresult", None)}:
            raise
        raise InternalError(message) from None


SQLITE_TABLES = frozenset({"payment_words_data", "payment_words_idx", "payment_words_config"})
"""The tables of SQLite's full-text index. Only SQLite knows their layout."""
APPLICATION_ID = 0x70617967
MOVED_VERSION = 1_000_000
"""The version given to a journal that was moved to a database, so that every version of this program refuses it."""


@cache
def migrations() -> tuple[str, ...]:
    """Return the scripts that upgrade the tables, one per version. The first one creates them."""
    return (insert_triggers(resources.files(__package__).joinpath("schema.sql").read_text(encoding="utf-8")),)


def tables_version(connection: apsw.Connection, path: Path) -> int:
    """Return the version of the tables, or 0 for an empty file.

    Raises `JournalError` if the file is not a journal, was moved to a database, or has a newer version.
    """
    application_id, version = connection.pragma("application_id"), connection.pragma("user_version")
    if application_id == 0 and version == 0 and not _read_schema(connection):
        return 0
    if application_id != APPLICATION_ID:
        raise JournalError(say("{path} is not a journal: another program created it.", path=path))
    if version == MOVED_VERSION:
        raise JournalError(
            say(
                "The journal {path} was moved to the database {place}. Nothing is paid from this file any more.",
                path=path,
                place=load_identity(connection).home,
            ),
            hint=say("Set [journal] url to that database, and keep this file as an archive."),
        )
    if version > len(migrations()):
        message = say("The journal {path} was written by a newer version of this program.", path=path)
        raise JournalError(message, hint=say("Install that version, or a later one."))
    return int(version)


def create_tables(connection: apsw.Connection, identity: Identity) -> None:
    migrate(connection, 0, now=identity.created_at)
    fetch(connection, "INSERT INTO identity VALUES (1, ?, ?, ?, ?, ?)", astuple(identity))


def migrate(connection: apsw.Connection, version: int, *, now: str) -> None:
    """Upgrade the tables from `version` to the newest version in the open transaction."""
    if version == len(migrations()):
        return
    for number, script in enumerate(migrations()[version:], start=version + 1):
        connection.execute(script)
        connection.execute("INSERT INTO migration VALUES (?, ?)", (number, now))
    if version == 0:
        connection.executemany("INSERT INTO move VALUES (?, ?, ?, ?, ?, ?, ?)", MOVE_LINES)
    connection.pragma("application_id", APPLICATION_ID)
    connection.pragma("user_version", len(migrations()))


def move_destination(connection: apsw.Connection) -> str:
    """Return the address of the database that the journal was moved to, or empty if it was not moved."""
    return load_identity(connection).home if connection.pragma("user_version") == MOVED_VERSION else ""


@contextmanager
def move_transaction(connection: apsw.Connection, destination: str) -> Iterator[None]:
    """Lock the file while the block copies the journal to `destination`, then mark the file as permanently moved."""
    with _transaction(connection):
        yield
        # The file is marked in one commit after its copy is complete. Before that, only the file can be used to pay.
        # Afterwards, neither can until the copy is activated. So rows are never paid from both.
        connection.execute("UPDATE identity SET home = ?", (destination,))
        connection.pragma("user_version", MOVED_VERSION)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@contextmanager
def transaction_without_lock(connection: apsw.Connection, path: Path) -> Iterator[None]:
    """Run the block in a durable transaction without the lock. Raises `JournalError` if the journal was moved."""
    with _transaction(connection):
        # Checked in the transaction, so that the journal cannot be moved before the commit.
        tables_version(connection, path)
        yield


def check_tables(connection: apsw.Connection, path: Path) -> None:
    """Raise `JournalCorrupt` unless the tables, indexes and triggers match the newest version."""
    actual, expected = _read_schema(connection), _expected_schema()
    if actual != expected:
        names = sorted({name for name, _ in actual ^ expected})
        message = say("The schema of the journal {path} was altered: {names}.", path=path, names=", ".join(names)[:200])
        raise JournalCorrupt(message)


def load_identity(connection: apsw.Connection) -> Identity:
    lines = fetch(connection, "SELECT journal_id, endpoint, created_at, home, consumer_key_sha256 FROM identity")
    if not lines:
        raise JournalCorrupt(say("The journal does not have an id."))
    return Identity(*lines[0])


def chain_end(connection: apsw.Connection) -> Link:
    lines = fetch(connection, "SELECT number, hash, at FROM fact ORDER BY number DESC LIMIT 1")
    return Link(*lines[0]) if lines else load_identity(connection).start


def fact_hash(connection: apsw.Connection, seq: int) -> bytes:
    """Return the hash of fact `seq`, or (if 0) the hash that precedes the first fact."""
    if seq == 0:
        return load_identity(connection).start.hash
    lines = fetch(connection, "SELECT hash FROM fact WHERE number = ?", (seq,))
    if not lines:
        raise JournalCorrupt(say("Fact {number} is missing from the journal.", number=seq))
    return bytes(lines[0][0])


def _read_schema(connection: apsw.Connection) -> frozenset[tuple[str, str]]:
    query = "SELECT name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite~_%' ESCAPE '~'"
    return frozenset((name, sql) for name, sql in fetch(connection, query) if name not in SQLITE_TABLES)


@cache
def _expected_schema() -> frozenset[tuple[str, str]]:
    with closing(apsw.Connection(":memory:")) as empty:
        for script in migrations():
            empty.execute(script)
        return _read_schema(empty)
