"""The place of a journal in a file: creates, opens and inspects it, one run at a time.

Creation may be killed at any moment because of its order (docs/decisions/0091): an intention in the registry, the
witness, the journal under a temporary name, its final name, and the registry's entry that it exists.
"""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import apsw

from paygw_batch.errors import (
    HolderKind,
    JournalError,
    JournalHeld,
    JournalMissing,
    JournalNotAdopted,
    JournalUnwritable,
)
from paygw_batch.files import read_regular, sync_directory, unfinished, write_whole
from paygw_batch.journal.guards.location import (
    canonical_path,
    check_directory,
    check_file,
    copied_path,
    make_directory,
)
from paygw_batch.journal.guards.lock import LockHolder, RunLock, journal_holder, lock_path
from paygw_batch.journal.guards.witness import (
    Witness,
    WitnessedHead,
    make_witness,
    missing_journal,
    note_beside,
    read_witness,
    retire,
    witness_failed,
    witness_path,
)
from paygw_batch.journal.opening.examine import Found, check_home, check_place, journal_exists, look_at
from paygw_batch.journal.opening.place import JournalPlace
from paygw_batch.journal.opening.registry import JournalRegistry, Registered, check_beside, journal_list_sentence
from paygw_batch.journal.sqlite.connect import connect, leave_untouched, reason_of, unwritable
from paygw_batch.journal.sqlite.inbox import check_inbox, inbox_path, inbox_witness
from paygw_batch.journal.sqlite.outbox import FileOutbox
from paygw_batch.journal.sqlite.reader import SqliteReader
from paygw_batch.journal.sqlite.rows import record_last
from paygw_batch.journal.sqlite.schema import end_of, identity_of, make_tables, migrate, migrations, version_of
from paygw_batch.journal.sqlite.tables import evidence_in
from paygw_batch.journal.sqlite.writer import SqliteJournal
from paygw_batch.journal.values import Identity, Named, Remark, Withdrawal
from paygw_batch.language import say

_MAX_TIME_BYTES = 100


@dataclass(frozen=True, slots=True)
class FilePlace(JournalPlace):
    """The place of a journal in the file at `path`, which belongs to one machine."""

    path: Path

    def __post_init__(self) -> None:
        """Make each path absolute and canonical. Raises `JournalError` for a name that is not text."""
        JournalPlace.__post_init__(self)
        object.__setattr__(self, "path", canonical_path(self.path))

    @property
    def witness(self) -> Path:
        """The path of this journal's witness."""
        return witness_path(self.witness_dir, self.path)

    def may_exist(self) -> bool:
        """Whether a file is there."""
        return self.path.exists()

    def holder(self) -> LockHolder | None:
        """Return the process that holds the lock."""
        return journal_holder(self.path)

    def note_copy(self) -> None:
        """Record that the journal was copied now. Raises `OutputError`."""
        write_whole(copied_path(self.path), self.now().encode())

    def copied_at(self) -> str | None:
        """Return when the journal was last copied; None if that is unknown."""
        try:
            return read_regular(copied_path(self.path), _MAX_TIME_BYTES).decode().strip()
        except (OSError, ValueError):
            return None

    def make(self, command: str, *, beside: str | None = None) -> Identity | None:
        """Create the journal (see `JournalPlace`). Also raises `JournalHeld` for the new journal."""
        for directory in (self.path.parent, self.witness_dir):
            make_directory(directory)
            check_directory(directory)
        now = self.now()
        with ExitStack() as held:
            held.callback(RunLock(lock_path(self.path), now=now, command=command).close)
            if self.registry is not None:
                held.enter_context(self.registry.held(now))
                _settle_intentions(self.registry, self.witness_dir)
            if check_place(self.path) and self.path.stat().st_size > 0:
                return None
            seen = read_witness(self.witness)
            self._check_alone(seen, beside)
            _check_no_log(self.path)
            key = self.endpoint.consumer_key_sha256
            identity = Identity(secrets.token_hex(16), self.endpoint.name, now, str(self.path), key)
            try:
                self._make(identity, seen)
            except (apsw.Error, OSError) as error:
                raise JournalError(
                    say("The journal {path} cannot be created: {error}.", path=self.path, error=error)
                ) from None
        return identity

    def open_to_write(self, command: str, kind: HolderKind = HolderKind.RUN) -> SqliteJournal:
        """Open the journal and hold its lock (see `JournalPlace`). Its witness must know it.

        Raises `JournalNotAdopted` if this machine does not know it, and `JournalCorrupt` if it is damaged. Until all
        that is checked, only the lock file is written.
        """
        if not self._is_there():
            raise self._missing(read_witness(self.witness))
        now = self.now()
        with ExitStack() as undo:
            lock = RunLock(lock_path(self.path), now=now, command=command, kind=kind)
            undo.callback(lock.close)
            journal = self._open_locked(lock, undo, now)
            undo.pop_all()
        return journal

    def open_to_read(self, *, must_be_known: bool = False) -> SqliteReader:
        """Open the journal to read it (see `JournalPlace`), without a lock and without writing anything."""
        seen = read_witness(self.witness)  # before the snapshot, so that a run's next commit cannot look like a relapse
        if not self._is_there():
            raise self._missing(seen)
        connection = connect(self.path, write=False)
        try:
            connection.execute("BEGIN")
            found = self._look_at(connection, seen)
            notes = self._notes_of_reader(found, seen, must_be_known=must_be_known)
        except BaseException:
            connection.close()
            raise
        return SqliteReader(connection, self.path, notes)

    @contextmanager
    def outbox(self, *, write: bool) -> Iterator[FileOutbox]:
        """Open the outbox (see `JournalPlace`). Notices of finished runs become due."""
        with closing(FileOutbox(self.path, write=write)) as outbox:
            if write:
                outbox.close_over()
            yield outbox

    def withdraw(self, withdrawal: Withdrawal) -> None:
        """Record a withdrawal durably (see `JournalPlace`).

        This is the only write made beside the process that holds the lock. It adds a fact that moves no row; SQLite
        orders it before or after the run's transaction that opens a batch. The witness knows it before this returns.
        Raises `JournalHeld` if that transaction takes too long, and `JournalUnwritable`.
        """
        self.open_to_read(must_be_known=True).close()
        with closing(connect(self.path, write=True)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                version_of(connection, self.path)  # it raises if the journal was moved away since
                evidence_in(connection).keep(partial(record_last, connection), withdrawal)
                identity, end = identity_of(connection), end_of(connection)
                connection.execute("COMMIT")
            except apsw.BusyError:
                raise JournalHeld(
                    say("A run is writing to the journal {path}.", path=self.path),
                    hint=say("Run the same command again."),
                ) from None
            except apsw.Error as error:
                raise JournalUnwritable(unwritable(self.path, reason_of(error))) from None
        try:
            # A run that moved here after that transaction notes what it finds, in a witness for this place.
            places = {self.witness, witness_path(self.witness_dir, Path(identity.home))}
            witnesses = [witness for witness in places if check_file(witness)]
            for witness in witnesses:
                note_beside(witness, WitnessedHead(identity.journal_id, end.seq, end.hash.hex()))
        except OSError as error:
            raise JournalUnwritable(unwritable(self.path, witness_failed(error))) from None
        if not witnesses:
            raise JournalHeld(
                say("Somebody adopted the journal {path} at the same moment.", path=self.path),
                hint=say("Run the same command again."),
            )

    def _is_there(self) -> bool:
        return self.path.parent.exists() and check_place(self.path)

    def _missing(self, seen: WitnessedHead | None) -> JournalError:
        """Return the error for a missing journal, naming the other journals of its endpoint."""
        if seen is not None and seen.has_history:
            return missing_journal(self.path, seen)
        remembered = [] if self.registry is None else self.registry.paying((self.endpoint,))
        others = [entry for entry in remembered if not entry.is_intended or Path(entry.path).exists()]
        message = say("There is no journal at {path}.{others}", path=self.path, others=journal_list_sentence(others))
        if not others:
            return JournalMissing(message)
        return JournalMissing(
            message,
            hint=say(
                "Use that one: --journal, or [journal] path. `paygw-batch journal new` creates a journal once "
                "for each endpoint: a second one does not know what the first one has sent."
            ),
        )

    def _look_at(self, connection: apsw.Connection, seen: WitnessedHead | None) -> Found:
        """Examine the journal without changing it. Raises `JournalMissing` for an empty file."""
        found = look_at(connection, self.path, endpoint=self.endpoint, seen=seen, witness=self.witness)
        if found is None:
            raise self._missing(seen)
        return found

    def _notes_of_reader(self, found: Found, seen: WitnessedHead | None, *, must_be_known: bool) -> tuple[str, ...]:
        if found.version < len(migrations()):
            raise JournalError(
                say(
                    "The journal {path} was written by an older version. The next `submit` or `resume` upgrades it.",
                    path=self.path,
                )
            )
        if _is_known(found, seen, self.witness_dir):
            return ()
        unknown = _not_adopted(self.path, found)
        if must_be_known:
            raise unknown
        return (f"{unknown.message} {unknown.hint}",)

    def _open_locked(self, lock: RunLock, undo: ExitStack, now: str) -> SqliteJournal:
        path, seen = self.path, read_witness(self.witness)
        with closing(connect(path, write=False)) as connection:
            found = self._look_at(connection, seen)
            former = check_home(connection, path, found, self.witness_dir)
            if not _is_known(found, seen, self.witness_dir):
                raise _not_adopted(path, found)
            taken = evidence_in(connection).inbox_end()
            check_inbox(inbox_path(path), inbox_witness(self.witness_dir, found.identity.journal_id), taken)
        check_directory(self.witness_dir)
        connection = connect(path, write=True)
        undo.callback(connection.close)
        home, notes = found.identity.home, list[str]()
        if home != str(path):
            notes.append(say("The journal was moved here from {home}.", home=home))
        try:
            witness = Witness(self.witness, found.seen)
            undo.callback(witness.close)
            self._migrate(connection, found, now)
            if (end := end_of(connection)) != found.end:
                found = replace(found, end=end, names=evidence_in(connection).names(found.identity))
                witness.note(found.seen)
            if self.registry is not None:
                notes += _remember(self.registry, path, found, now)
            if former is not None:
                former.unlink(missing_ok=True)
        except (apsw.Error, OSError) as error:
            leave_untouched(connection)
            raise JournalError(say("The journal {path} cannot be written: {error}.", path=path, error=error)) from None
        return SqliteJournal(
            connection, path, seen=found.seen, end=found.end, witness=witness, lock=lock, notes=tuple(notes)
        )

    def _migrate(self, connection: apsw.Connection, found: Found, now: str) -> None:
        """Upgrade the tables and record the journal's present place and name, in one transaction."""
        is_name_noted = self.endpoint in found.names or not self.endpoint.consumer_key_sha256
        if found.version == len(migrations()) and found.identity.home == str(self.path) and is_name_noted:
            return
        connection.execute("BEGIN IMMEDIATE")
        migrate(connection, found.version, now=now)
        connection.execute("UPDATE identity SET home = ?", (str(self.path),))
        if not is_name_noted:
            name = Named(self.endpoint.host, self.endpoint.consumer_key_sha256, "")
            record_last(connection, [Remark(name, now)])
        connection.execute("COMMIT")

    def _make(self, identity: Identity, seen: WitnessedHead | None) -> None:
        """Create the file, its witness and its entry; `seen` is the witness of the journal that was here before."""
        registry = self.registry
        entry = Registered(identity.journal_id, (self.endpoint,), str(self.path), identity.created_at, is_intended=True)
        if registry is not None:
            registry.write(entry)
        if seen is not None and seen.has_history:
            if registry is not None and registry.entry(seen.journal_id) is None:
                registry.write(self._lost(seen))
            retire(self.witness, seen)
        make_witness(self.witness, WitnessedHead(identity.journal_id, 0, identity.start.hash.hex()))
        _make_file(self.path, identity)
        if registry is not None:
            registry.write(replace(entry, is_intended=False))

    def _check_alone(self, seen: WitnessedHead | None, beside: str | None) -> None:
        """Raise `JournalError` unless no other journal is known, or `beside` is the newest of them."""
        others = list(self.registry.paying((self.endpoint,))) if self.registry is not None else []
        if seen is not None and seen.has_history and seen.journal_id not in {entry.journal_id for entry in others}:
            if not others and beside is None:
                raise missing_journal(self.path, seen)
            others.insert(0, self._lost(seen))
        check_beside(others, beside, command="journal new")

    def _lost(self, seen: WitnessedHead) -> Registered:
        """Return an entry for a journal that is not registered, but whose witness still exists."""
        return Registered(seen.journal_id, (self.endpoint,), str(self.path), "")


def _not_adopted(path: Path, found: Found) -> JournalNotAdopted:
    return JournalNotAdopted(
        say(
            "This user's state directory has never seen the journal {path} ({journal_id}). It could be an older "
            "copy, and rows paid since then could be paid again.",
            path=path,
            journal_id=found.identity.journal_id,
        )
    )


def _is_known(found: Found, seen: WitnessedHead | None, witness_dir: Path) -> bool:
    """Whether this machine has a witness of the journal, for its place or the one it was moved from."""
    if seen is not None and seen.journal_id == found.identity.journal_id:
        return True
    former = read_witness(witness_path(witness_dir, Path(found.identity.home)))
    return former is not None and former.journal_id == found.identity.journal_id


def _remember(registry: JournalRegistry, path: Path, found: Found, now: str) -> list[str]:
    """Register this journal as it is now; return sentences about it for a person to read."""
    identity = found.identity
    before = registry.entry(identity.journal_id)
    # Keep what the entry knew: the journal may be an older copy that a person adopted.
    names = tuple(dict.fromkeys((*found.names, *(() if before is None else before.names))))
    wanted = Registered(identity.journal_id, names, str(path), identity.created_at)
    if before == wanted:
        return []
    with registry.held(now):
        registry.write(wanted)
    others = registry.paying(found.names, but=identity.journal_id) if before is None else []
    if not others:
        return []
    return [
        say(
            "This endpoint has more than one journal, and each knows only what it sent itself.{others}",
            others=journal_list_sentence(others),
        )
    ]


def _settle_intentions(registry: JournalRegistry, witness_dir: Path) -> None:
    """Complete or remove the entries of journals whose creation was interrupted.

    The caller holds the registry, so no creation is under way.
    """
    for entry in registry.entries():
        if not entry.is_intended:
            continue
        path = Path(entry.path)
        if journal_exists(path, entry.journal_id):
            registry.write(replace(entry, is_intended=False))
            continue
        # It never got its name, so no run had it open. Its witness goes too: should a file with that id turn up after
        # all, a person has to adopt it first.
        witness = witness_path(witness_dir, path)
        seen = read_witness(witness)
        if seen is not None and seen.journal_id == entry.journal_id and not seen.has_history:
            witness.unlink()
            sync_directory(witness_dir)
        registry.forget(entry)


def _make_file(path: Path, identity: Identity) -> None:
    """Create a journal without facts at `path`, for its owner alone.

    It is created under another name and then renamed, so that no crash leaves half of one.
    """
    temporary = unfinished(path)
    try:
        _fill(temporary, identity)
        temporary.rename(path)
        sync_directory(path.parent)
    finally:
        for ending in ("", "-wal", "-shm", "-journal"):
            temporary.with_name(temporary.name + ending).unlink(missing_ok=True)


def _fill(path: Path, identity: Identity) -> None:
    with closing(connect(path, write=True)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        make_tables(connection, identity)
        connection.execute("COMMIT")
        busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
        if busy:
            raise JournalError(say("The journal {home} cannot be created: its log is in use.", home=identity.home))


def _check_no_log(path: Path) -> None:
    """Refuse to put a new journal beside the log of a lost one, which SQLite would replay into it."""
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
