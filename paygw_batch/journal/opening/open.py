"""Opens the journal on disk: to write it, one run at a time, or to look into it."""

from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import apsw

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.errors import HolderKind, JournalError, JournalMissing, JournalNotAdopted
from paygw_batch.journal.guards.location import check_directory, settled
from paygw_batch.journal.guards.lock import LockWait, RunLock, lock_path
from paygw_batch.journal.guards.witness import Seen, Witness, missing_journal, read_witness, witness_path
from paygw_batch.journal.opening.examine import Found, check_home, check_place, look_at
from paygw_batch.journal.opening.registry import JournalRegistry, Registered, told
from paygw_batch.journal.sqlite.about import names_of, note_name
from paygw_batch.journal.sqlite.connect import connect, leave_untouched
from paygw_batch.journal.sqlite.reader import SqliteReader
from paygw_batch.journal.sqlite.schema import migrate, migrations
from paygw_batch.journal.sqlite.writer import SqliteJournal
from paygw_batch.language import say

__all__ = ["SqliteJournal", "SqliteReader", "open_journal", "read_journal"]


def open_journal(
    path: Path,
    *,
    witness_dir: Path,
    registry_dir: Path | None = None,
    endpoint: EndpointIdentity,
    now: str,
    holder: str,
    kind: HolderKind = HolderKind.RUN,
    wait: LockWait | None = None,
) -> SqliteJournal:
    """Open the journal at `path` for a run, and hold it until `close`. It must be there, and its witness must know it.

    `witness_dir` is where the witness stands, `registry_dir` where journals are remembered (None: not at all),
    `endpoint` what the journal is for, `now` the time (UTC, ISO 8601 with `Z`), `holder` the command that another run
    is told of, `kind` what it is for programs. `notes` of the result are sentences for a person.

    Raises `JournalMissing` when there is none, `JournalHeld` when another run has it, `JournalNotAdopted` when this
    machine knows nothing of it, `JournalWentBack` when it has seen a newer one, `JournalCorrupt` when it is damaged,
    and `JournalError` for everything else that speaks against using it. Nothing but the lock file is written before all
    that is known.
    """
    path, witness_dir = settled(path), settled(witness_dir)
    registry = None if registry_dir is None else JournalRegistry(settled(registry_dir))
    if not path.parent.exists() or not check_place(path):
        raise _missing(path, read_witness(witness_path(witness_dir, path)), registry, endpoint)
    with ExitStack() as undo:
        lock = RunLock(lock_path(path), now=now, command=holder, kind=kind, wait=wait)
        undo.callback(lock.close)
        journal = _open_locked(path, witness_dir, registry, lock, undo, endpoint=endpoint, now=now)
        undo.pop_all()
    return journal


def read_journal(
    path: Path,
    *,
    witness_dir: Path,
    registry_dir: Path | None = None,
    endpoint: EndpointIdentity,
    must_be_known: bool = False,
) -> SqliteReader:
    """Open the journal at `path` to look into it, also while a run holds it: one snapshot, no lock, nothing written.

    A journal whose witness this machine does not have can be looked into, and `notes` of the result say so, unless it
    `must_be_known`. Raises what `open_journal` raises.
    """
    path, witness_dir = settled(path), settled(witness_dir)
    registry = None if registry_dir is None else JournalRegistry(settled(registry_dir))
    witness = witness_path(witness_dir, path)
    seen = read_witness(witness)  # before the snapshot is taken, so that a run's next commit cannot look like a relapse
    if not path.parent.exists() or not check_place(path):
        raise _missing(path, seen, registry, endpoint)
    connection = connect(path, write=False)
    try:
        connection.execute("BEGIN")
        found = look_at(connection, path, endpoint=endpoint, seen=seen, witness=witness)
        if found is None:
            raise _missing(path, seen, registry, endpoint)  # noqa: TRY301 - the connection is closed on the way out
        notes = _notes_of_reader(path, found, seen, witness_dir, must_be_known=must_be_known)
    except BaseException:
        connection.close()
        raise
    return SqliteReader(connection, path, notes)


def _notes_of_reader(
    path: Path, found: Found, seen: Seen | None, witness_dir: Path, *, must_be_known: bool
) -> tuple[str, ...]:
    if found.version < len(migrations()):
        raise JournalError(
            say("The journal {path} was written by an older version: `submit` or `resume` brings it up.", path=path)
        )
    if _is_known(found, seen, witness_dir):
        return ()
    unknown = _not_adopted(path, found)
    if must_be_known:
        raise unknown
    return (f"{unknown.message} {unknown.hint}",)


def _missing(
    path: Path, seen: Seen | None, registry: JournalRegistry | None, endpoint: EndpointIdentity
) -> JournalError:
    """Return the error for a journal that is not there, with the other journals of its endpoint."""
    if seen is not None and seen.seq > 0:
        return missing_journal(path, seen)
    remembered = [] if registry is None else registry.paying((endpoint,))
    others = [entry for entry in remembered if not entry.is_intended or Path(entry.path).exists()]
    message = say("There is no journal at {path}.{others}", path=path, others=told(others))
    if not others:
        return JournalMissing(message)
    return JournalMissing(
        message,
        hint=say(
            "Use that one: --journal, or [journal] path. A journal is made by `paygw-batch journal new`, once for an "
            "endpoint: a second one does not know what the first one has sent."
        ),
    )


def _not_adopted(path: Path, found: Found) -> JournalNotAdopted:
    return JournalNotAdopted(
        say(
            "This user's state directory has never seen the journal {path} ({journal_id}): it could be an "
            "older copy, and rows that were paid since could be paid again.",
            path=path,
            journal_id=found.identity.journal_id,
        )
    )


def _is_known(found: Found, seen: Seen | None, witness_dir: Path) -> bool:
    """Whether this machine has a witness of the journal, for its place or for the one it was moved from."""
    if seen is not None and seen.journal_id == found.identity.journal_id:
        return True
    former = read_witness(witness_path(witness_dir, Path(found.identity.home)))
    return former is not None and former.journal_id == found.identity.journal_id


def _open_locked(
    path: Path,
    witness_dir: Path,
    registry: JournalRegistry | None,
    lock: RunLock,
    undo: ExitStack,
    *,
    endpoint: EndpointIdentity,
    now: str,
) -> SqliteJournal:
    place_of_witness = witness_path(witness_dir, path)
    seen = read_witness(place_of_witness)
    with closing(connect(path, write=False)) as connection:
        found = look_at(connection, path, endpoint=endpoint, seen=seen, witness=place_of_witness)
        if found is None:
            raise _missing(path, seen, registry, endpoint)
        former = check_home(connection, path, found, witness_dir)
        if not _is_known(found, seen, witness_dir):
            raise _not_adopted(path, found)
    check_directory(witness_dir)
    connection = connect(path, write=True)
    undo.callback(connection.close)
    notes = (
        [say("The journal was moved here from {home}.", home=found.identity.home)]
        if found.identity.home != str(path)
        else []
    )
    try:
        witness = Witness(place_of_witness, found.seen)
        undo.callback(witness.close)
        _bring_up(connection, path, found, endpoint, now=now)
        if registry is not None:
            notes += _remember(registry, path, replace(found, names=names_of(connection, len(migrations()))), now)
        if former is not None:
            former.unlink(missing_ok=True)
    except (apsw.Error, OSError) as error:
        leave_untouched(connection)
        raise JournalError(say("The journal {path} cannot be written: {error}.", path=path, error=error)) from None
    return SqliteJournal(
        connection,
        path,
        journal_id=found.identity.journal_id,
        end=found.end,
        witness=witness,
        lock=lock,
        notes=tuple(notes),
    )


def _bring_up(connection: apsw.Connection, path: Path, found: Found, endpoint: EndpointIdentity, *, now: str) -> None:
    """Give the journal the newest tables, its present place and the name it is opened under, in one transaction."""
    is_name_noted = endpoint in found.names or not endpoint.consumer_key_sha256
    if found.version == len(migrations()) and found.identity.home == str(path) and is_name_noted:
        return
    connection.execute("BEGIN IMMEDIATE")
    migrate(connection, found.version, now=now)
    connection.execute("UPDATE identity SET home = ?", (str(path),))
    if not is_name_noted:
        note_name(connection, endpoint, at=now, by="")
    connection.execute("COMMIT")


def _remember(registry: JournalRegistry, path: Path, found: Found, now: str) -> list[str]:
    """Register this journal as it is now; return the sentences that a person should read about it."""
    identity = found.identity
    before = registry.entry(identity.journal_id)
    # What an entry knew is kept: the journal may be an older copy that a person adopted.
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
            "This journal is not the only one of its endpoint: what one has sent, no other knows.{others}",
            others=told(others),
        )
    ]
