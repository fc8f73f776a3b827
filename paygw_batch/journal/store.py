"""Opening the journal on disk: to write it, one run at a time, or to look into it."""

from contextlib import ExitStack, closing
from pathlib import Path

import apsw

from paygw_batch.errors import HolderKind, JournalError
from paygw_batch.journal.connection import connect, leave_untouched
from paygw_batch.journal.lock import RunLock
from paygw_batch.journal.making import make_journal
from paygw_batch.journal.opening import Found, check_home, check_place, look_at
from paygw_batch.journal.place import check_directory, make_directory, settled
from paygw_batch.journal.reader import SqliteReader
from paygw_batch.journal.schema import migrate, migrations
from paygw_batch.journal.witness import Seen, Witness, missing_journal, read_witness, witness_path
from paygw_batch.journal.writer import SqliteJournal

__all__ = ["SqliteJournal", "SqliteReader", "open_journal", "read_journal"]


def open_journal(
    path: Path, *, witness_dir: Path, endpoint: str, now: str, holder: str, kind: HolderKind = HolderKind.RUN
) -> SqliteJournal:
    """Open the journal at `path` for a run, made if there is none, and hold it until `close`.

    `witness_dir` is where the witness stands, `endpoint` what the journal is for, `now` the time (UTC, ISO 8601 with
    `Z`), `holder` the command that another run is told of. `notes` of the result are sentences for a person.

    Raises `JournalHeld` when another run has it, `JournalWentBack` when this machine has seen a newer one,
    `JournalCorrupt` when it is damaged, and `JournalError` for everything else that speaks against using it. Nothing
    but the lock file is written before all that is known.
    """
    path, witness_dir = settled(path), settled(witness_dir)
    for directory in (path.parent, witness_dir):
        make_directory(directory)
        check_directory(directory)
    with ExitStack() as undo:
        lock = RunLock(path.with_name(f"{path.name}.lock"), now=now, command=holder, kind=kind)
        undo.callback(lock.close)
        journal = _open_locked(path, witness_dir, lock, undo, endpoint=endpoint, now=now)
        undo.pop_all()
    return journal


def read_journal(path: Path, *, witness_dir: Path, endpoint: str) -> SqliteReader:
    """Open the journal at `path` to look into it, also while a run holds it: one snapshot, no lock, nothing written.

    Raises `JournalError` when there is no journal, and otherwise as `open_journal`.
    """
    path, witness_dir = settled(path), settled(witness_dir)
    witness = witness_path(witness_dir, path)
    seen = read_witness(witness)  # before the snapshot is taken, so that a run's next commit cannot look like a relapse
    if not path.parent.exists() or not check_place(path):
        raise missing_journal(path, witness) if seen else JournalError(f"There is no journal at {path}.")
    connection = connect(path, write=False)
    try:
        connection.execute("BEGIN")
        found = look_at(connection, path, endpoint=endpoint, seen=seen, witness=witness)
        _check_readable(path, found, seen, witness)
    except BaseException:
        connection.close()
        raise
    return SqliteReader(connection, path)


def _check_readable(path: Path, found: Found | None, seen: Seen | None, witness: Path) -> None:
    if found is None:
        raise missing_journal(path, witness) if seen else JournalError(f"The journal {path} is empty.")
    if found.version < len(migrations()):
        raise JournalError(f"The journal {path} was written by an older version: `submit` or `resume` brings it up.")


def _open_locked(
    path: Path, witness_dir: Path, lock: RunLock, undo: ExitStack, *, endpoint: str, now: str
) -> SqliteJournal:
    place_of_witness = witness_path(witness_dir, path)
    seen = read_witness(place_of_witness)
    found, former = _survey(path, witness_dir, endpoint=endpoint, seen=seen) if check_place(path) else (None, None)
    if found is None:
        if seen is not None:
            raise missing_journal(path, place_of_witness)
        found = make_journal(path, endpoint=endpoint, now=now)
    notes = _notes(path, found, has_witness=seen is not None or former is not None)
    connection = connect(path, write=True)
    undo.callback(connection.close)
    try:
        witness = Witness(place_of_witness, Seen(found.identity.journal_id, found.end.seq, found.end.hash.hex()))
        undo.callback(witness.close)
        _bring_up(connection, path, found, now=now)
        if former is not None:
            former.unlink(missing_ok=True)
    except (apsw.Error, OSError) as error:
        leave_untouched(connection)
        raise JournalError(f"The journal {path} cannot be written: {error}.") from None
    return SqliteJournal(
        connection, path, journal_id=found.identity.journal_id, end=found.end, witness=witness, lock=lock, notes=notes
    )


def _survey(path: Path, witness_dir: Path, *, endpoint: str, seen: Seen | None) -> tuple[Found | None, Path | None]:
    """Look at what stands at `path` through a connection that cannot change it."""
    with closing(connect(path, write=False)) as connection:
        found = look_at(connection, path, endpoint=endpoint, seen=seen, witness=witness_path(witness_dir, path))
        return found, check_home(connection, path, found, witness_dir) if found else None


def _bring_up(connection: apsw.Connection, path: Path, found: Found, *, now: str) -> None:
    """Give the journal the newest tables and its present place, in one transaction."""
    if found.version == len(migrations()) and found.identity.home == str(path):
        return
    connection.execute("BEGIN IMMEDIATE")
    migrate(connection, found.version, now=now)
    connection.execute("UPDATE identity SET home = ?", (str(path),))
    connection.execute("COMMIT")


def _notes(path: Path, found: Found, *, has_witness: bool) -> tuple[str, ...]:
    notes = []
    if found.identity.home != str(path):
        notes.append(f"The journal was moved here from {found.identity.home}.")
    if not has_witness and found.end.seq > 0:
        notes.append(
            "The journal's witness was missing and has been made again: whether this is the newest copy of the journal "
            "could not be checked."
        )
    return tuple(notes)
