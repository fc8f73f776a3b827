"""Examines a journal before anything is done with it: its identity, and whether it is the newest copy."""

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import apsw

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.errors import JournalCorrupt, JournalError, JournalWentBack
from paygw_batch.journal.guards.left import LeftLine, require_not_older
from paygw_batch.journal.guards.location import check_directory, check_endpoint, check_file
from paygw_batch.journal.opening.known_journals import KnownJournal
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
from paygw_batch.language import mark, say

_MEND = mark(
    "Put the newest journal file back: sending without it could pay rows twice. Only if it is lost for good, "
    "`paygw-batch journal adopt` goes on with this one: the rows that left since then come in doubt."
)


@dataclass(frozen=True, slots=True)
class Found:
    """A journal that was examined and passed a quick check."""

    version: int
    identity: Identity
    end: Link
    names: tuple[EndpointIdentity, ...]
    """The endpoints of its merchant by every name that it knows, oldest first."""

    @property
    def noted(self) -> tuple[int, str, str]:
        """The end of its chain, as a line about what left has it."""
        return self.end.seq, self.end.hash.hex(), self.end.at


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
    left: Callable[[Identity], Sequence[LeftLine]],
    is_any_name_fine: bool = False,
) -> Found | None:
    """Examine the database at `path` without changing it, and return its journal; None for an empty file.

    A journal of the same merchant at another host is refused unless `is_any_name_fine`: a person confirms that first.
    `left` returns the newest lines about what left of a journal; it is called before the end is read, so that a run's
    next commit cannot look like a relapse. Raises `JournalError` if it is not a journal, is another merchant's or from
    a newer version, `JournalCorrupt` if it is damaged, and `JournalWentBack` if more left than it holds.
    """
    try:
        version = version_of(connection, path)
        if version == 0:
            return None
        identity = identity_of(connection)
        seen = left(identity)
        names = evidence_in(connection).names(identity)
        found = Found(version, identity, end_of(connection), names)
        if not is_any_name_fine or not endpoint.is_of_merchant(names):
            check_endpoint(names, endpoint, str(path))
        if version == len(migrations()):
            check_tables(connection, path)
        require_not_older(seen, found.end, partial(hash_at, connection), say(_MEND))
        check_tail(connection)
    except apsw.NotADBError:
        raise JournalError(say("{path} is not a journal, or its first page is damaged.", path=path)) from None
    except apsw.CorruptError as error:
        raise JournalCorrupt(say("The journal {path} is damaged: {error}.", path=path, error=error)) from None
    except apsw.Error as error:
        raise JournalError(say("The journal {path} cannot be read: {error}.", path=path, error=error)) from None
    return found


def check_home(path: Path, identity: Identity, known: KnownJournal | None) -> None:
    """Raise `JournalWentBack` if the journal still is where it was last opened, or was moved to a database."""
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
    """Return whether the journal with this id is at `home`. An unreadable file counts as present."""
    if not os.path.lexists(home):
        return False
    try:
        with closing(connect(home, write=False)) as connection:
            return identity_of(connection).journal_id == journal_id
    except (apsw.Error, JournalError):
        return True
