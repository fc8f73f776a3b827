"""Examines a journal before anything is done with it: its identity, and whether it is the newest copy."""

import os
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import apsw

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.errors import JournalCorrupt, JournalError, JournalWentBack
from paygw_batch.journal.guards.location import check_directory, check_endpoint, check_file
from paygw_batch.journal.guards.witness import WitnessedHead, read_witness, require_not_older, witness_path
from paygw_batch.journal.sqlite.connect import connect
from paygw_batch.journal.sqlite.schema import (
    check_tables,
    end_of,
    hash_at,
    identity_of,
    migrations,
    version_of,
)
from paygw_batch.journal.sqlite.tables import evidence_in
from paygw_batch.journal.sqlite.verify import check_tail
from paygw_batch.journal.values import Identity, Link
from paygw_batch.language import say


@dataclass(frozen=True, slots=True)
class Found:
    """A journal that was examined and passed a quick check."""

    version: int
    identity: Identity
    end: Link
    names: tuple[EndpointIdentity, ...]
    """Every name by which it knows its endpoint, oldest first."""

    @property
    def seen(self) -> WitnessedHead:
        """The end of its chain, as a witness that has seen the whole journal records it."""
        return WitnessedHead(self.identity.journal_id, self.end.seq, self.end.hash.hex())


def check_place(path: Path) -> bool:
    """Return whether a journal is at `path`.

    Raises `JournalError` unless the file is regular, private and on this machine, and so are SQLite's files beside it.
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
    seen: WitnessedHead | None,
    witness: Path,
    is_any_name_fine: bool = False,
) -> Found | None:
    """Examine the database at `path` without changing it, and return its journal; None for an empty file.

    A journal of the same endpoint under another host name is refused unless `is_any_name_fine`: a person confirms that
    first. Raises `JournalError` if it is not a journal, pays another endpoint or is from a newer version,
    `JournalCorrupt` if it is damaged, and `JournalWentBack` if the witness has `seen` more than it holds.
    """
    try:
        version = version_of(connection, path)
        if version == 0:
            return None
        identity = identity_of(connection)
        names = evidence_in(connection).names(identity)
        found = Found(version, identity, end_of(connection), names)
        if not is_any_name_fine or not endpoint.is_one_of(names):
            check_endpoint(names, endpoint, str(path))
        if version == len(migrations()):
            check_tables(connection, path)
        if seen is not None:
            hold(connection, found, seen, witness)
        check_tail(connection)
    except apsw.NotADBError:
        raise JournalError(say("{path} is not a journal, or its first page is damaged.", path=path)) from None
    except apsw.CorruptError as error:
        raise JournalCorrupt(say("The journal {path} is damaged: {error}.", path=path, error=error)) from None
    except apsw.Error as error:
        raise JournalError(say("The journal {path} cannot be read: {error}.", path=path, error=error)) from None
    return found


def check_home(connection: apsw.Connection, path: Path, found: Found, witness_dir: Path) -> Path | None:
    """Return the witness of the place this journal was moved from; None if it was not moved.

    Raises `JournalWentBack` if the original is still there, or went on after the copy was made.
    """
    home = Path(found.identity.home)
    if home == path or _is_same_file(home, path):
        return None
    if journal_exists(home, found.identity.journal_id):
        raise JournalWentBack(
            say(
                "This is a copy of the journal {home}, which still exists: sending from both could pay rows twice.",
                home=home,
            ),
            hint=say("Use {home}. To move a journal, move the file and leave none behind.", home=home),
        )
    former = witness_path(witness_dir, home)
    seen = read_witness(former)
    if seen is None or seen.journal_id != found.identity.journal_id:
        return None
    hold(connection, found, seen, former)
    return former


def hold(connection: apsw.Connection, found: Found, seen: WitnessedHead, witness: Path) -> None:
    """Raise `JournalWentBack` unless the journal continues from `seen`, which the witness at `witness` noted."""
    require_not_older(seen, witness, found=found.seen, hash_at=lambda number: hash_at(connection, number).hex())


def _is_same_file(home: Path, path: Path) -> bool:
    try:
        return os.path.samestat(home.lstat(), path.lstat())
    except OSError:
        return False


def journal_exists(home: Path, journal_id: str) -> bool:
    """Return whether the journal with this id is at `home`. An unreadable file counts as present."""
    if not os.path.lexists(home):
        return False
    try:
        with closing(connect(home, write=False)) as connection:
            return identity_of(connection).journal_id == journal_id
    except (apsw.Error, JournalError):
        return True
