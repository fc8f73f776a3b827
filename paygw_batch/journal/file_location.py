"""Examines, creates and opens a journal in a file, or creates one in memory.

A journal in memory is for tests, benchmarks, and commands that read before a journal exists. It has the same tables,
statements and chain as a file, but is not durable, and other runs cannot use it.
"""

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from os.path import samestat
from pathlib import Path

import apsw

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.errors import (
    HolderKind,
    JournalCorrupt,
    JournalError,
    JournalHeld,
    JournalMissing,
    JournalNotAdopted,
    JournalTooOld,
    JournalUnwritable,
)
from paygw_batch.files import create_temporary_file, read_regular, sync_directory, write_atomically
from paygw_batch.journal.known_journals import KnownJournal, KnownJournals, check_other_journals, journal_list_sentence
from paygw_batch.journal.location import JournalLocation, RecordNotes
from paygw_batch.journal.lock import (
    LockHolder,
    RunLock,
    backup_time_path,
    canonical_path,
    check_directory,
    check_endpoint,
    check_file,
    journal_holder,
    lock_path,
    make_directory,
)
from paygw_batch.journal.sent_log import (
    RUN,
    NoSentLog,
    SentLog,
    SentLogLine,
    log_concurrent_fact,
    log_failure_reason,
    newest_line,
    require_not_older,
    unwritable_message,
)
from paygw_batch.journal.sqlite.connect import (
    chain_end,
    check_tables,
    configure,
    connect,
    create_tables,
    fact_hash,
    failure_reason,
    load_identity,
    migrate,
    migrations,
    prevent_writes_on_close,
    tables_version,
    transaction_without_lock,
)
from paygw_batch.journal.sqlite.sqlite_journal import WRITER_TIMEOUT_MS, FileOutbox, SqliteJournal, SqliteReader
from paygw_batch.journal.sqlite.sqlite_tables import SqliteTables, append_facts, evidence_log
from paygw_batch.journal.sqlite.verify import check_tail
from paygw_batch.journal.values import ConcurrentNote, EndpointNote, Identity, Link, Remark
from paygw_batch.language import mark, say

_RESTORE_HINT = mark(
    "Restore the newest journal file, because sending without it could pay rows twice. Run `paygw-batch journal adopt` "
    "to continue with this one only if the newest is permanently lost. The rows that have been sent since then are "
    "put in doubt."
)


@dataclass(frozen=True, slots=True)
class ExaminedJournal:
    """A usable journal, as returned by `examine`."""

    version: int
    identity: Identity
    end: Link
    endpoints: tuple[EndpointIdentity, ...]
    """The merchant's endpoints recorded in the journal, oldest first."""


def check_journal_files(path: Path) -> bool:
    """Return whether `path` exists.

    Raises `JournalError` unless it and SQLite's files next to it are private regular files on a local disk.
    """
    check_directory(path.parent)
    for suffix in ("-wal", "-shm"):
        check_file(path.with_name(path.name + suffix))
    return check_file(path)


def examine(
    connection: apsw.Connection,
    path: Path,
    *,
    endpoint: EndpointIdentity,
    sent_log: Callable[[Identity], Sequence[SentLogLine]],
    allow_other_host: bool = False,
) -> ExaminedJournal | None:
    """Examine the database at `path` without changing it. Returns its journal, or None for an empty file.

    A journal of the same merchant at another gateway host is refused unless `allow_other_host`. `sent_log` returns the
    newest lines of the journal's sent log. It is called before the end of the chain is read, because a run may commit
    in between. Raises `JournalError` if the file is not a journal, belongs to another merchant or has a newer version,
    `JournalCorrupt` if it is damaged, and `JournalTooOld` if a fact in the sent log is missing from it.
    """
    try:
        version = tables_version(connection, path)
        if version == 0:
            return None
        identity = load_identity(connection)
        log_lines = sent_log(identity)
        known_endpoints = evidence_log(connection).endpoints(identity)
        examined = ExaminedJournal(version, identity, chain_end(connection), known_endpoints)
        if not allow_other_host or not endpoint.matches_merchant(known_endpoints):
            check_endpoint(known_endpoints, endpoint, str(path))
        if version == len(migrations()):
            check_tables(connection, path)
        require_not_older(log_lines, examined.end, partial(fact_hash, connection), say(_RESTORE_HINT))
        check_tail(connection)
    except apsw.NotADBError:
        raise JournalError(say("{path} is not a journal, or its first page is damaged.", path=path)) from None
    except apsw.CorruptError as error:
        raise JournalCorrupt(say("The journal {path} is damaged: {error}.", path=path, error=error)) from None
    except apsw.Error as error:
        raise JournalError(say("The journal {path} cannot be read: {error}.", path=path, error=error)) from None
    return examined


def require_original(path: Path, identity: Identity, known_journal: KnownJournal | None) -> None:
    """Raise `JournalTooOld` if the file at `path` is a copy whose original exists or was moved to a database."""
    locations = {identity.home} if known_journal is None else {identity.home, known_journal.path}
    for location in locations:
        home = Path(location)
        if not home.is_absolute():
            raise JournalTooOld(
                say("This is a copy of a journal that was moved to the database {place}.", place=location),
                hint=say("Set [journal] url to that database, and keep this file as an archive."),
            )
        if home != path and not _is_same_file(home, path) and journal_exists(home, identity.journal_id):
            raise JournalTooOld(
                say(
                    "This is a copy of the journal {home}, which still exists. Sending from both could pay rows twice.",
                    home=home,
                ),
                hint=say("Use {home}. To move a journal, move its file instead of copying it.", home=home),
            )


def _is_same_file(path: Path, other: Path) -> bool:
    try:
        return os.path.samestat(path.lstat(), other.lstat())
    except OSError:
        return False


def journal_exists(path: Path, journal_id: str) -> bool:
    """Return whether the file at `path` is the journal with this id. An unreadable file counts as that journal."""
    if not os.path.lexists(path):
        return False
    try:
        with closing(connect(path, write=False)) as connection:
            return load_identity(connection).journal_id == journal_id
    except (apsw.Error, JournalError):
        return True


_MEMORY_NAME = ":memory:"
_JOURNAL_ID = "0" * 32


def in_memory_journal(
    *, endpoint: str = "memory", created_at: str = "1970-01-01T00:00:00.000Z", notes: tuple[str, ...] = ()
) -> SqliteJournal:
    identity = Identity(_JOURNAL_ID, endpoint, created_at, _MEMORY_NAME)
    connection = apsw.Connection(_MEMORY_NAME)
    connection.deserialize("main", empty_database(identity))
    configure(connection)
    lock = ExitStack()  # locks nothing, because no other process can reach the journal
    path = Path(_MEMORY_NAME)
    return SqliteJournal(connection, path, end=identity.start, sent_log=NoSentLog(), lock=lock, notes=notes)


@cache
def empty_database(identity: Identity) -> bytes:
    """Return an empty journal's database as bytes. Loading them is ten times faster than creating the tables."""
    connection = apsw.Connection(_MEMORY_NAME)
    try:
        connection.execute("BEGIN")
        create_tables(connection, identity)
        connection.execute("COMMIT")
        return connection.serialize("main")
    finally:
        connection.close()


_MAX_TIME_BYTES = 100


@dataclass(frozen=True, slots=True)
class FileLocation(JournalLocation):
    """The location of a journal in the file at `path`, on one machine."""

    path: Path

    def __post_init__(self) -> None:
        """Make all paths canonical. Raises `JournalError` for a path that is not UTF-8."""
        JournalLocation.__post_init__(self)
        object.__setattr__(self, "path", canonical_path(self.path))

    def may_exist(self) -> bool:
        return self.path.exists()

    def holder(self) -> LockHolder | None:
        return journal_holder(self.path)

    def record_backup(self) -> None:
        """Record the current time as the time of the last backup. Raises `OutputError`."""
        write_atomically(backup_time_path(self.path), self.now().encode())

    def last_backup_at(self) -> str | None:
        """Return the time of the last backup, or None if it is unknown."""
        try:
            return read_regular(backup_time_path(self.path), _MAX_TIME_BYTES).decode().strip()
        except (OSError, ValueError):
            return None

    def create(self, command: str, *, beside: str | None = None) -> Identity | None:
        """Create the journal (see `JournalLocation`). Raises `JournalHeld` if another process holds its lock."""
        make_directory(self.path.parent)
        check_directory(self.path.parent)
        now = self.now()
        with ExitStack() as stack:
            stack.callback(RunLock(lock_path(self.path), now=now, command=command).close)
            stack.enter_context(self.known_journals.hold_lock(now))
            _resolve_interrupted_creations(self.known_journals)
            if check_journal_files(self.path) and self.path.stat().st_size > 0:
                return None
            check_other_journals(self.known_journals.merchant_journals((self.endpoint,)), beside, command="journal new")
            _check_no_wal(self.path)
            key_digest = self.endpoint.consumer_key_sha256
            identity = Identity(secrets.token_hex(16), self.endpoint.name, now, str(self.path), key_digest)
            try:
                self._create(identity)
            except (apsw.Error, OSError) as error:
                message = say("The journal {path} cannot be created: {error}.", path=self.path, error=error)
                raise JournalError(message) from None
        return identity

    def open_to_write(self, command: str, kind: HolderKind = HolderKind.RUN) -> SqliteJournal:
        """Open the journal and hold its lock (see `JournalLocation`). Until all checks pass, writes only the lock file.

        Also raises `JournalNotAdopted` if the journal is unknown to this user, and `JournalCorrupt` if it is damaged.
        """
        if not self._exists():
            raise self._missing_error()
        now = self.now()
        with ExitStack() as stack:
            lock = RunLock(lock_path(self.path), now=now, command=command, kind=kind)
            stack.callback(lock.close)
            journal = self._open_under_lock(lock, stack, now)
            stack.pop_all()
        return journal

    def open_to_read(self, *, must_be_known: bool = False) -> SqliteReader:
        """Open the journal for reading (see `JournalLocation`), without a lock and without writing anything."""
        if not self._exists():
            raise self._missing_error()
        connection = connect(self.path, write=False)

        def read_log_and_begin(identity: Identity) -> Sequence[SentLogLine]:
            log_lines = self._log_lines_for_reading(identity.journal_id)
            connection.execute("BEGIN")
            return log_lines

        try:
            examined = self._examine(connection, read_log_and_begin)
            notes = self._reader_notes(examined, must_be_known=must_be_known)
        except BaseException:
            connection.close()
            raise
        return SqliteReader(connection, self.path, notes)

    @contextmanager
    def outbox(self, *, write: bool) -> Iterator[FileOutbox]:
        with self._connect_without_lock(write=write) as connection:
            yield FileOutbox(connection, self.path)

    @contextmanager
    def _connect_note_recorder(self) -> Iterator[RecordNotes]:
        """Yield a function that records notes without the lock (see `JournalLocation`).

        This is safe, because notes move no row, and SQLite serializes all transactions.
        """
        with self._connect_without_lock(must_be_known=True) as connection:
            original, folder = self.path.stat(), self.known_journals.folder(load_identity(connection).journal_id)

            def record_notes(notes: Sequence[ConcurrentNote]) -> None:
                with self._translating_errors():
                    if not samestat(original, self.path.stat()):
                        raise self._missing_error()  # another file has replaced the journal
                    with transaction_without_lock(connection, self.path):
                        evidence_log(connection).record_notes(partial(append_facts, connection), *notes)
                        end = chain_end(connection)
                    log_concurrent_fact(folder, *end.log_fields)

            yield record_notes

    @contextmanager
    def _audit_transaction(self) -> Iterator[SqliteTables]:
        with self._connect_without_lock() as connection, transaction_without_lock(connection, self.path):
            yield SqliteTables(connection)

    @contextmanager
    def _connect_without_lock(self, *, write: bool = True, must_be_known: bool = False) -> Iterator[apsw.Connection]:
        """Check the journal (see `open_to_read`), then connect without its lock. Translates errors in the block."""
        self.open_to_read(must_be_known=must_be_known).close()
        with closing(connect(self.path, write=write)) as connection, self._translating_errors():
            yield connection

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        try:
            yield
        except apsw.BusyError:
            raise JournalHeld(
                say("A run is writing to the journal {path}.", path=self.path), hint=say("Run the same command again.")
            ) from None
        except apsw.Error as error:
            raise JournalUnwritable(unwritable_message(self.path, failure_reason(error))) from None
        except OSError as error:
            raise JournalUnwritable(unwritable_message(self.path, log_failure_reason(error))) from None

    def _exists(self) -> bool:
        return self.path.parent.exists() and check_journal_files(self.path)

    def _missing_error(self) -> JournalError:
        if used_journals := self._used_journals():
            lost_id = used_journals[-1].journal_id
            return JournalTooOld(
                say(
                    "The journal {journal} ({journal_id}) is missing, but rows have already been sent from it.",
                    journal=self.path,
                    journal_id=lost_id,
                ),
                hint=say(
                    "Restore the newest journal file, because sending without it could pay rows twice. Create another "
                    "one with `paygw-batch journal new --beside {journal_id}` only if it is permanently lost and you "
                    "have checked all payments with the gateway.",
                    journal_id=lost_id,
                ),
            )
        entries = self.known_journals.merchant_journals((self.endpoint,))
        journals = [entry for entry in entries if not entry.is_intended or Path(entry.path).exists()]
        message = say("There is no journal at {path}.{others}", path=self.path, others=journal_list_sentence(journals))
        if not journals:
            return JournalMissing(message)
        return JournalMissing(
            message,
            hint=say(
                "Use that journal, with --journal or [journal] path. `paygw-batch journal new` creates only one "
                "journal for each merchant, because a second one would not contain the payments sent from the first."
            ),
        )

    def _log_lines_for_reading(self, journal_id: str) -> Sequence[SentLogLine]:
        """Return the newest lines of the journal's sent log, or none for a copy, because old copies may be read."""
        entry = self.known_journals.entry(journal_id)
        if entry is not None and entry.path != str(self.path) and journal_exists(Path(entry.path), journal_id):
            return ()
        return self.known_journals.newest_log_lines(journal_id)

    def _log_lines_for_writing(self, identity: Identity) -> Sequence[SentLogLine]:
        """Return the newest lines of the journal's sent log. Raises `JournalTooOld` if this is a copy."""
        require_original(self.path, identity, self.known_journals.entry(identity.journal_id))
        return self.known_journals.newest_log_lines(identity.journal_id)

    def _used_journals(self) -> Sequence[KnownJournal]:
        """Return the known journals at this path from which rows were sent, oldest first."""
        journals = self.known_journals
        entries = [entry for entry in journals.entries() if entry.path == str(self.path)]
        return [entry for entry in entries if any(line.number for line in journals.newest_log_lines(entry.journal_id))]

    def _examine(
        self, connection: apsw.Connection, sent_log: Callable[[Identity], Sequence[SentLogLine]]
    ) -> ExaminedJournal:
        """Examine the journal without changing it. Raises `JournalMissing` for an empty file."""
        examined = examine(connection, self.path, endpoint=self.endpoint, sent_log=sent_log)
        if examined is None:
            raise self._missing_error()
        return examined

    def _reader_notes(self, examined: ExaminedJournal, *, must_be_known: bool) -> tuple[str, ...]:
        if examined.version < len(migrations()):
            message = say(
                "The journal {path} was written by an older version. The next `submit` or `resume` upgrades it.",
                path=self.path,
            )
            raise JournalError(message)
        try:
            self._require_known(examined)
        except JournalNotAdopted as error:
            if must_be_known:
                raise
            return (f"{error.message} {error.hint}",)
        return ()

    def _require_known(self, examined: ExaminedJournal) -> None:
        """Raise `JournalNotAdopted` if the journal is unknown, or `JournalTooOld` if another was used at its path."""
        journal_id = examined.identity.journal_id
        if [entry for entry in self._used_journals() if not entry.is_lost and entry.journal_id != journal_id]:
            raise JournalTooOld(say("This is not the journal that this machine last sent rows from."))
        if is_known(self.known_journals, journal_id):
            return
        raise JournalNotAdopted(
            say(
                "This user's state directory does not list the journal {path} ({journal_id}). It could be an older "
                "copy, so rows that have been paid since could be paid again.",
                path=self.path,
                journal_id=journal_id,
            )
        )

    def _open_under_lock(self, lock: RunLock, stack: ExitStack, now: str) -> SqliteJournal:
        path = self.path
        with closing(connect(path, write=False)) as connection:
            examined = self._examine(connection, self._log_lines_for_writing)
            self._require_known(examined)
        folder = self.known_journals.folder(examined.identity.journal_id)
        check_directory(folder)
        connection = connect(path, write=True)
        stack.callback(connection.close)
        connection.set_busy_timeout(WRITER_TIMEOUT_MS)
        home = examined.identity.home
        notes = () if home == str(path) else (say("The journal was moved here from {home}.", home=home),)
        try:
            sent_log = SentLog(folder, RUN, examined.end.log_fields)
            stack.callback(sent_log.close)
            self._bring_up_to_date(connection, examined, now)
            if (end := chain_end(connection)) != examined.end:
                # The upgrade committed facts. Without a line for them in the sent log, a copy made before the upgrade
                # would look like the newest one.
                endpoints = evidence_log(connection).endpoints(examined.identity)
                examined = replace(examined, end=end, endpoints=endpoints)
                sent_log.log_commit(*end.log_fields)
            entry = self.known_journals.updated_entry(examined.identity, examined.endpoints, path)
            self.known_journals.write_if_changed(entry, now)
        except (apsw.Error, OSError) as error:
            prevent_writes_on_close(connection)
            raise JournalError(say("The journal {path} cannot be written: {error}.", path=path, error=error)) from None
        return SqliteJournal(connection, path, end=examined.end, sent_log=sent_log, lock=lock, notes=notes)

    def _bring_up_to_date(self, connection: apsw.Connection, examined: ExaminedJournal, now: str) -> None:
        """Upgrade the tables and record the journal's current path and endpoint, in one transaction."""
        is_new_endpoint = self._is_new_endpoint(examined.identity.journal_id, examined.endpoints)
        if examined.version == len(migrations()) and examined.identity.home == str(self.path) and not is_new_endpoint:
            return
        connection.execute("BEGIN IMMEDIATE")
        migrate(connection, examined.version, now=now)
        connection.execute("UPDATE identity SET home = ?", (str(self.path),))
        if is_new_endpoint:
            append_facts(connection, [Remark(EndpointNote(self.endpoint, ""), now)])
        connection.execute("COMMIT")

    def _create(self, identity: Identity) -> None:
        journal_id = identity.journal_id
        entry = KnownJournal(journal_id, (self.endpoint,), str(self.path), identity.created_at, is_intended=True)
        # The entry and the sent log are written before the file. A crash in between leaves an `is_intended` entry,
        # which the next command resolves. In the opposite order, a crash would leave a journal without a sent log.
        self.known_journals.register(entry)
        SentLog(self.known_journals.folder(journal_id), RUN, identity.start.log_fields).close()
        _create_file(self.path, identity)
        self.known_journals.write(replace(entry, is_intended=False))


def is_known(known_journals: KnownJournals, journal_id: str) -> bool:
    """Return whether this user has the journal's sent log, and has not replaced the journal with another one."""
    entry = known_journals.entry(journal_id)
    return entry is not None and not entry.is_lost and newest_line(known_journals.folder(journal_id), RUN) is not None


def _resolve_interrupted_creations(known_journals: KnownJournals) -> None:
    """Complete or remove the entries of journals whose creation was interrupted.

    The caller holds the lock of all folders, so no creation is in progress. A file without its final name was never
    used as a journal. If a journal appears at its path later, a person must adopt it.
    """
    for entry in known_journals.entries():
        if entry.is_intended and journal_exists(Path(entry.path), entry.journal_id):
            known_journals.write(replace(entry, is_intended=False))
        elif entry.is_intended:
            known_journals.remove(entry)


def _create_file(path: Path, identity: Identity) -> None:
    """Create an empty, private journal. The file gets its name last, so that a crash leaves no partial journal."""
    temporary = create_temporary_file(path)
    try:
        with closing(connect(temporary, write=True)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            create_tables(connection, identity)
            connection.execute("COMMIT")
            busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
            if busy:
                raise JournalError(say("The journal {home} cannot be created: its log is in use.", home=identity.home))
        temporary.rename(path)
        sync_directory(path.parent)
    finally:
        for suffix in ("", "-wal", "-shm", "-journal"):
            temporary.with_name(temporary.name + suffix).unlink(missing_ok=True)


def _check_no_wal(path: Path) -> None:
    """Raise `JournalError` if a lost journal's write-ahead log exists, because SQLite would apply it to the new one."""
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size > 0:
        raise JournalError(
            say(
                "The journal {path} is missing, but its log {log} still exists and contains the last changes.",
                path=path,
                log=log,
            ),
            hint=say("Put the journal file back next to its log."),
        )
