"""Opens the journal in a file, after examining it, or a journal in memory.

A journal in memory serves commands that read before any journal exists, tests and benchmarks. It has the same tables,
statements and chain. Nothing in it is durable or can go back in time, and no other run can reach it.
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
    JournalUnwritable,
    JournalWentBack,
)
from paygw_batch.files import read_regular, sync_directory, unfinished, write_whole
from paygw_batch.journal.known_journals import KnownJournal, KnownJournals, check_beside, journal_list_sentence
from paygw_batch.journal.left import (
    RUN,
    Left,
    LeftLine,
    NothingLeft,
    newest,
    note_beside,
    noting_failed,
    require_not_older,
    unwritable,
)
from paygw_batch.journal.lock import (
    LockHolder,
    RunLock,
    canonical_path,
    check_directory,
    check_endpoint,
    check_file,
    copied_path,
    journal_holder,
    lock_path,
    make_directory,
)
from paygw_batch.journal.place import JournalPlace, KeepBeside
from paygw_batch.journal.sqlite.connect import (
    check_tables,
    configure,
    connect,
    end_of,
    hash_at,
    identity_of,
    leave_untouched,
    make_tables,
    migrate,
    migrations,
    reason_of,
    version_of,
    written_beside,
)
from paygw_batch.journal.sqlite.sqlite_journal import WAITS_FOR_OTHERS_MS, FileOutbox, SqliteJournal, SqliteReader
from paygw_batch.journal.sqlite.sqlite_tables import SqliteTables, evidence_in, record_last
from paygw_batch.journal.sqlite.verify import check_tail
from paygw_batch.journal.values import Identity, Link, Named, NotedBeside, Remark
from paygw_batch.language import mark, say

_MEND = mark(
    "Put the newest journal file back: sending without it could pay rows twice. Only if it is lost for good, "
    "`paygw-batch journal adopt` goes on with this one: the rows that were sent since then are put in doubt."
)


@dataclass(frozen=True, slots=True)
class Found:
    """A journal that was examined and passed a quick check."""

    version: int
    identity: Identity
    end: Link
    names: tuple[EndpointIdentity, ...]
    """The endpoints of the journal's merchant, by every name that it knows, oldest first."""


def check_place(path: Path) -> bool:
    """Return whether a journal is at `path`.

    Raises `JournalError` unless the file, and SQLite's files beside it, are regular, private and on this machine.
    """
    check_directory(path.parent)
    for ending in ("-wal", "-shm"):
        check_file(path.with_name(path.name + ending))
    return check_file(path)


def look_at(
    connection: apsw.Connection,
    path: Path,
    *,
    endpoint: EndpointIdentity,
    left: Callable[[Identity], Sequence[LeftLine]],
    is_any_name_fine: bool = False,
) -> Found | None:
    """Examine the database at `path` without changing it, and return its journal; None for an empty file.

    A journal of the same merchant at another host is refused unless `is_any_name_fine`, because a person has to confirm
    the host. `left` returns the newest lines about what left of a journal. It is called before the end of the chain is
    read, so that a run's next commit is not mistaken for an older copy. Raises `JournalError` if the file is no
    journal, belongs to another merchant or is from a newer version, `JournalCorrupt` if it is damaged, and
    `JournalWentBack` if more left than it holds.
    """
    try:
        version = version_of(connection, path)
        if version == 0:
            return None
        identity = identity_of(connection)
        seen = left(identity)
        names = evidence_in(connection).names(identity)
        examined = Found(version, identity, end_of(connection), names)
        if not is_any_name_fine or not endpoint.is_of_merchant(names):
            check_endpoint(names, endpoint, str(path))
        if version == len(migrations()):
            check_tables(connection, path)
        require_not_older(seen, examined.end, partial(hash_at, connection), say(_MEND))
        check_tail(connection)
    except apsw.NotADBError:
        raise JournalError(say("{path} is not a journal, or its first page is damaged.", path=path)) from None
    except apsw.CorruptError as error:
        raise JournalCorrupt(say("The journal {path} is damaged: {error}.", path=path, error=error)) from None
    except apsw.Error as error:
        raise JournalError(say("The journal {path} cannot be read: {error}.", path=path, error=error)) from None
    return examined


def check_home(path: Path, identity: Identity, known: KnownJournal | None) -> None:
    """Raise `JournalWentBack` if the journal still exists where it was last opened, or was moved to a database."""
    places = {identity.home} if known is None else {identity.home, known.path}
    for place in places:
        home = Path(place)
        if not home.is_absolute():
            raise JournalWentBack(
                say("This is a copy of a journal that was moved to the database {place}.", place=place),
                hint=say("Name that database in [journal] url, and keep this file as an archive."),
            )
        if home != path and not _is_same_file(home, path) and journal_exists(home, identity.journal_id):
            raise JournalWentBack(
                say(
                    "This is a copy of the journal {home}, which still exists: sending from both could pay rows twice.",
                    home=home,
                ),
                hint=say("Use {home}. To move a journal, move the file and leave none behind.", home=home),
            )


def _is_same_file(home: Path, path: Path) -> bool:
    try:
        return os.path.samestat(home.lstat(), path.lstat())
    except OSError:
        return False


def journal_exists(home: Path, journal_id: str) -> bool:
    """Whether the journal with this id is at `home`. An unreadable file counts as this journal."""
    if not os.path.lexists(home):
        return False
    try:
        with closing(connect(home, write=False)) as connection:
            return identity_of(connection).journal_id == journal_id
    except (apsw.Error, JournalError):
        return True


_NAME = ":memory:"
_JOURNAL_ID = "0" * 32


def in_memory_journal(
    *, endpoint: str = "memory", created_at: str = "1970-01-01T00:00:00.000Z", notes: tuple[str, ...] = ()
) -> SqliteJournal:
    """Return an empty journal in memory, which ends with this process."""
    identity = Identity(_JOURNAL_ID, endpoint, created_at, _NAME)
    connection = apsw.Connection(_NAME)
    connection.deserialize("main", database_of(identity))
    configure(connection)
    no_lock = ExitStack()  # no other process can reach the journal
    return SqliteJournal(connection, Path(_NAME), end=identity.start, left=NothingLeft(), lock=no_lock, notes=notes)


@cache
def database_of(identity: Identity) -> bytes:
    """Return the database of a journal without facts. A copy of it is ten times faster than creating one."""
    connection = apsw.Connection(_NAME)
    try:
        connection.execute("BEGIN")
        make_tables(connection, identity)
        connection.execute("COMMIT")
        return connection.serialize("main")
    finally:
        connection.close()


_MAX_TIME_BYTES = 100


@dataclass(frozen=True, slots=True)
class FilePlace(JournalPlace):
    """The place of a journal in the file at `path`, on one machine."""

    path: Path

    def __post_init__(self) -> None:
        """Make each path absolute and canonical. Raises `JournalError` for a name that is not text."""
        JournalPlace.__post_init__(self)
        object.__setattr__(self, "path", canonical_path(self.path))

    def may_exist(self) -> bool:
        return self.path.exists()

    def holder(self) -> LockHolder | None:
        return journal_holder(self.path)

    def note_copy(self) -> None:
        """Record that the journal was copied now. Raises `OutputError`."""
        write_whole(copied_path(self.path), self.now().encode())

    def copied_at(self) -> str | None:
        """Return the time at which the journal was last copied; None if that is unknown."""
        try:
            return read_regular(copied_path(self.path), _MAX_TIME_BYTES).decode().strip()
        except (OSError, ValueError):
            return None

    def make(self, command: str, *, beside: str | None = None) -> Identity | None:
        """Create the journal (see `JournalPlace`). Also raises `JournalHeld` if another process holds its lock."""
        make_directory(self.path.parent)
        check_directory(self.path.parent)
        now = self.now()
        with ExitStack() as held:
            held.callback(RunLock(lock_path(self.path), now=now, command=command).close)
            held.enter_context(self.known.held(now))
            _settle_intentions(self.known)
            if check_place(self.path) and self.path.stat().st_size > 0:
                return None
            check_beside(self.known.paying((self.endpoint,)), beside, command="journal new")
            _check_no_log(self.path)
            key = self.endpoint.consumer_key_sha256
            identity = Identity(secrets.token_hex(16), self.endpoint.name, now, str(self.path), key)
            try:
                self._make(identity)
            except (apsw.Error, OSError) as error:
                raise JournalError(
                    say("The journal {path} cannot be created: {error}.", path=self.path, error=error)
                ) from None
        return identity

    def open_to_write(self, command: str, kind: HolderKind = HolderKind.RUN) -> SqliteJournal:
        """Open the journal and hold its lock (see `JournalPlace`).

        Raises `JournalNotAdopted` if this user does not know the journal, and `JournalCorrupt` if it is damaged. Until
        these checks have passed, only the lock file is written.
        """
        if not self._is_there():
            raise self._missing()
        now = self.now()
        with ExitStack() as undo:
            lock = RunLock(lock_path(self.path), now=now, command=command, kind=kind)
            undo.callback(lock.close)
            journal = self._open_locked(lock, undo, now)
            undo.pop_all()
        return journal

    def open_to_read(self, *, must_be_known: bool = False) -> SqliteReader:
        """Open the journal to read it (see `JournalPlace`), without a lock and without writing anything."""
        if not self._is_there():
            raise self._missing()
        connection = connect(self.path, write=False)

        def left(identity: Identity) -> Sequence[LeftLine]:
            seen = self._left(identity.journal_id)
            connection.execute("BEGIN")
            return seen

        try:
            examined = self._look_at(connection, left)
            notes = self._notes_of_reader(examined, must_be_known=must_be_known)
        except BaseException:
            connection.close()
            raise
        return SqliteReader(connection, self.path, notes)

    @contextmanager
    def outbox(self, *, write: bool) -> Iterator[FileOutbox]:
        with self._beside_run(write=write) as connection:
            yield FileOutbox(connection, self.path)

    @contextmanager
    def _beside_once(self) -> Iterator[KeepBeside]:
        """Yield a function that records notes while another process may hold the lock (see `JournalPlace`).

        The notes move no row, and SQLite orders them before or after each transaction of a run.
        """
        with self._beside_run(must_be_known=True) as connection:
            opened, folder = self.path.stat(), self.known.folder(identity_of(connection).journal_id)

            def keep(notes: Sequence[NotedBeside]) -> None:
                with self._translating_errors():
                    if not samestat(opened, self.path.stat()):
                        raise self._missing()  # another file has been put in its place
                    with written_beside(connection, self.path):
                        evidence_in(connection).keep(partial(record_last, connection), *notes)
                        end = end_of(connection)
                    note_beside(folder, *end.noted)

            yield keep

    @contextmanager
    def _noting(self) -> Iterator[SqliteTables]:
        with self._beside_run() as connection, written_beside(connection, self.path):
            yield SqliteTables(connection)

    @contextmanager
    def _beside_run(self, *, write: bool = True, must_be_known: bool = False) -> Iterator[apsw.Connection]:
        """Open the journal without its lock. Raises as `open_to_read`, and `JournalHeld` or `JournalUnwritable`."""
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
            raise JournalUnwritable(unwritable(self.path, reason_of(error))) from None
        except OSError as error:
            raise JournalUnwritable(unwritable(self.path, noting_failed(error))) from None

    def _is_there(self) -> bool:
        return self.path.parent.exists() and check_place(self.path)

    def _missing(self) -> JournalError:
        if used := self._used_here():
            lost = used[-1].journal_id
            return JournalWentBack(
                say(
                    "The journal {journal} ({journal_id}) is gone, and rows were already sent from it.",
                    journal=self.path,
                    journal_id=lost,
                ),
                hint=say(
                    "Put the newest journal file back: sending without it could pay rows twice. Only if it is lost "
                    "for good and you have checked with the gateway what was paid, make another one with "
                    "`paygw-batch journal new --beside {journal_id}`.",
                    journal_id=lost,
                ),
            )
        others = [
            entry for entry in self.known.paying((self.endpoint,)) if not entry.is_intended or Path(entry.path).exists()
        ]
        message = say("There is no journal at {path}.{others}", path=self.path, others=journal_list_sentence(others))
        if not others:
            return JournalMissing(message)
        return JournalMissing(
            message,
            hint=say(
                "Use that one: --journal, or [journal] path. `paygw-batch journal new` creates a journal once "
                "for each merchant: a second one does not know what the first one has sent."
            ),
        )

    def _left(self, journal_id: str) -> Sequence[LeftLine]:
        """Return the newest lines of a journal. For a copy of it return none, because people may read an older copy."""
        entry = self.known.entry(journal_id)
        if entry is not None and entry.path != str(self.path) and journal_exists(Path(entry.path), journal_id):
            return ()
        return self.known.left(journal_id)

    def _left_if_home(self, identity: Identity) -> Sequence[LeftLine]:
        """Return the newest lines of a journal. Raises `JournalWentBack` if this file is a copy of it."""
        check_home(self.path, identity, self.known.entry(identity.journal_id))
        return self.known.left(identity.journal_id)

    def _used_here(self) -> Sequence[KnownJournal]:
        """Return the journals that were at this path, and of which something left, oldest first."""
        here = (entry for entry in self.known.entries() if entry.path == str(self.path))
        return [entry for entry in here if any(line.number for line in self.known.left(entry.journal_id))]

    def _look_at(self, connection: apsw.Connection, left: Callable[[Identity], Sequence[LeftLine]]) -> Found:
        """Examine the journal without changing it. Raises `JournalMissing` for an empty file."""
        examined = look_at(connection, self.path, endpoint=self.endpoint, left=left)
        if examined is None:
            raise self._missing()
        return examined

    def _notes_of_reader(self, examined: Found, *, must_be_known: bool) -> tuple[str, ...]:
        if examined.version < len(migrations()):
            raise JournalError(
                say(
                    "The journal {path} was written by an older version. The next `submit` or `resume` upgrades it.",
                    path=self.path,
                )
            )
        try:
            self._require_known(examined)
        except JournalNotAdopted as unknown:
            if must_be_known:
                raise
            return (f"{unknown.message} {unknown.hint}",)
        return ()

    def _require_known(self, examined: Found) -> None:
        """Raise `JournalNotAdopted` unless this user knows the journal, `JournalWentBack` if another was used here."""
        if [used for used in self._used_here() if not used.is_lost and used.journal_id != examined.identity.journal_id]:
            raise JournalWentBack(say("This is not the journal that this machine last sent rows from."))
        if is_known(self.known, examined.identity.journal_id):
            return
        raise JournalNotAdopted(
            say(
                "This user's state directory has never seen the journal {path} ({journal_id}). It could be an older "
                "copy, and rows paid since then could be paid again.",
                path=self.path,
                journal_id=examined.identity.journal_id,
            )
        )

    def _open_locked(self, lock: RunLock, undo: ExitStack, now: str) -> SqliteJournal:
        path = self.path
        with closing(connect(path, write=False)) as connection:
            examined = self._look_at(connection, self._left_if_home)
            self._require_known(examined)
        folder = self.known.folder(examined.identity.journal_id)
        check_directory(folder)
        connection = connect(path, write=True)
        undo.callback(connection.close)
        connection.set_busy_timeout(WAITS_FOR_OTHERS_MS)
        home, notes = examined.identity.home, list[str]()
        if home != str(path):
            notes.append(say("The journal was moved here from {home}.", home=home))
        try:
            left = Left(folder, RUN, examined.end.noted)
            undo.callback(left.close)
            self._migrate(connection, examined, now)
            if (end := end_of(connection)) != examined.end:
                # The upgrade is a commit like any other. Without its line, a copy from before the upgrade would be
                # taken for the newest.
                examined = replace(examined, end=end, names=evidence_in(connection).names(examined.identity))
                left.note(*end.noted)
            _remember(self.known, path, examined, now)
        except (apsw.Error, OSError) as error:
            leave_untouched(connection)
            raise JournalError(say("The journal {path} cannot be written: {error}.", path=path, error=error)) from None
        return SqliteJournal(connection, path, end=examined.end, left=left, lock=lock, notes=tuple(notes))

    def _migrate(self, connection: apsw.Connection, examined: Found, now: str) -> None:
        """Upgrade the tables and record the journal's present place and name, in one transaction."""
        is_name_noted = not self._require_own(examined.identity.journal_id, examined.names)
        if examined.version == len(migrations()) and examined.identity.home == str(self.path) and is_name_noted:
            return
        connection.execute("BEGIN IMMEDIATE")
        migrate(connection, examined.version, now=now)
        connection.execute("UPDATE identity SET home = ?", (str(self.path),))
        if not is_name_noted:
            record_last(connection, [Remark(Named(self.endpoint, ""), now)])
        connection.execute("COMMIT")

    def _make(self, identity: Identity) -> None:
        """Create the journal's file, and the entry and the first line by which this user knows it."""
        journal_id = identity.journal_id
        entry = KnownJournal(journal_id, (self.endpoint,), str(self.path), identity.created_at, is_intended=True)
        # The entry and the first line come before the file. A crash in between leaves an intention, which the next
        # command settles. In the other order, a crash would leave a journal of which nobody knows what left.
        self.known.take(entry)
        Left(self.known.folder(journal_id), RUN, identity.start.noted).close()
        _make_file(self.path, identity)
        self.known.write(replace(entry, is_intended=False))


def is_known(known: KnownJournals, journal_id: str) -> bool:
    """Whether this user has lines about a journal's commits (see `left.py`), and no person has called it lost."""
    entry = known.entry(journal_id)
    return entry is not None and not entry.is_lost and newest(known.folder(journal_id), RUN) is not None


def _remember(known: KnownJournals, path: Path, examined: Found, now: str) -> None:
    """Record the present path of a journal, and the names by which it knows its merchant's endpoints."""
    identity = examined.identity
    before = known.entry(identity.journal_id)
    # Names that only the entry has are kept, because the journal may be an older copy that a person adopted.
    names = tuple(dict.fromkeys((*examined.names, *(() if before is None else before.names))))
    known.remember(KnownJournal(identity.journal_id, names, str(path), identity.created_at), now)


def _settle_intentions(known: KnownJournals) -> None:
    """Complete or remove the entries of journals whose creation was interrupted.

    The caller holds the folders, so no creation is under way. A journal whose file never got its final name was never
    open. If a file with its id is found later, a person has to adopt it first.
    """
    for entry in known.entries():
        if entry.is_intended and journal_exists(Path(entry.path), entry.journal_id):
            known.write(replace(entry, is_intended=False))
        elif entry.is_intended:
            known.forget(entry)


def _make_file(path: Path, identity: Identity) -> None:
    """Create a journal without facts, private to its owner, under another name first: no crash leaves half of it."""
    temporary = unfinished(path)
    try:
        with closing(connect(temporary, write=True)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            make_tables(connection, identity)
            connection.execute("COMMIT")
            busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
            if busy:
                raise JournalError(say("The journal {home} cannot be created: its log is in use.", home=identity.home))
        temporary.rename(path)
        sync_directory(path.parent)
    finally:
        for ending in ("", "-wal", "-shm", "-journal"):
            temporary.with_name(temporary.name + ending).unlink(missing_ok=True)


def _check_no_log(path: Path) -> None:
    """Refuse to put a new journal beside the log of a lost one, because SQLite would replay the log into it."""
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size > 0:
        raise JournalError(
            say(
                "The journal {path} is gone, but its log {log} still exists and holds what was written last.",
                path=path,
                log=log,
            ),
            hint=say("Put the journal file back beside its log."),
        )
