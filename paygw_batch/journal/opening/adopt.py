"""Adopts a journal: a person confirms that a copy this machine does not know is the newest one."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import apsw

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.errors import JournalError, JournalMissing
from paygw_batch.journal.guards.location import check_directory, make_directory
from paygw_batch.journal.guards.lock import RunLock, lock_path
from paygw_batch.journal.guards.witness import Witness, make_witness, read_witness, seen_elsewhere
from paygw_batch.journal.opening.examine import Found, check_home, check_place, hold, look_at
from paygw_batch.journal.opening.file_place import FilePlace
from paygw_batch.journal.opening.registry import Registered, check_beside
from paygw_batch.journal.sqlite.connect import connect, fetch, leave_untouched
from paygw_batch.journal.sqlite.rows import record_last
from paygw_batch.journal.sqlite.schema import end_of, migrate
from paygw_batch.journal.sqlite.tables import evidence_in
from paygw_batch.journal.sqlite.verify import verify
from paygw_batch.journal.values import Adopted, Named, Remark
from paygw_batch.language import say

_COMMAND = "journal adopt"


class Adoption:
    """A journal that a person may call the newest, held and replayed; nothing is written before `carry_out`.

    Raises `JournalWentBack` if this machine has seen more of it or the original is still there, `JournalCorrupt` if it
    is damaged, and `JournalError` for any other reason against it.
    """

    def __init__(self, place: FilePlace, *, beside: str | None) -> None:
        self.path, self._place, self._beside = place.path, place, beside
        if not self.path.parent.exists() or not check_place(self.path):
            raise JournalMissing(
                say("There is no journal at {path}.", path=self.path), hint=say("Name the file: --journal.")
            )
        with ExitStack() as undo:
            undo.callback(RunLock(lock_path(self.path), now=place.now(), command=_COMMAND).close)
            self._found, self._former = self._survey()
            self.others = self._others()
            if self.is_needed:
                check_beside(self.others, beside, command=_COMMAND)
            self._connection = undo.enter_context(closing(connect(self.path, write=True)))
            self._begin()
            self._undo = undo.pop_all()

    @property
    def is_needed(self) -> bool:
        """Whether no run could use the journal without it."""
        is_named = any(name.is_reached_like(self._place.endpoint) for name in self._found.names)
        return not self._is_witnessed() or not is_named

    @property
    def journal_id(self) -> str:
        """The journal's id."""
        return self._found.identity.journal_id

    @property
    def names(self) -> Sequence[str]:
        """The hosts under which the journal knows its endpoint."""
        return sorted({name.host for name in self._found.names})

    def last_fact(self) -> tuple[int, str]:
        """Return the number and time of the last fact; 0 and the time of creation if there is none."""
        found = fetch(self._connection, "SELECT number, at FROM fact ORDER BY number DESC LIMIT 1")
        return found[0] if found else (0, self._found.identity.created_at)

    def carry_out(self, by: str) -> None:
        """Record in the journal that `by` calls it the newest; then create its witness and register it."""
        registry, at = self._place.registry, self._place.now()
        if registry is None:
            self._note(by, at)
            return
        identity = self._found.identity
        with registry.held(at):
            check_beside(self._others(), self._beside, command=_COMMAND)  # another may have been created since
            names = self._note(by, at)
            before = registry.entry(identity.journal_id)
            names = tuple(dict.fromkeys((*names, *(() if before is None else before.names))))
            registry.write(Registered(identity.journal_id, names, str(self.path), identity.created_at))

    def _is_witnessed(self) -> bool:
        seen = read_witness(self._place.witness)
        return seen is not None and seen.journal_id == self.journal_id

    def _note(self, by: str, at: str) -> tuple[EndpointIdentity, ...]:
        """Commit the statement and create the witness; return the names that the journal then has."""
        try:
            endpoint, notes = self._place.endpoint, [Remark(Adopted(by, str(self.path)), at)]
            if endpoint not in self._found.names:
                notes.append(Remark(Named(endpoint.host, endpoint.consumer_key_sha256, by), at))
            record_last(self._connection, notes)
            fetch(self._connection, "UPDATE identity SET home = ?", (str(self.path),))
            names = evidence_in(self._connection).names(self._found.identity)
            fetch(self._connection, "COMMIT")
            make_directory(self._place.witness_dir)
            check_directory(self._place.witness_dir)
            self._found = replace(self._found, end=end_of(self._connection))
            if self._is_witnessed():  # a withdrawal may be noted in it just now
                Witness(self._place.witness, self._found.seen).close()
            else:
                make_witness(self._place.witness, self._found.seen)
            if self._former is not None:
                self._former.unlink(missing_ok=True)
        except (apsw.Error, OSError) as error:
            raise JournalError(
                say("The journal {path} cannot be written: {error}.", path=self.path, error=error)
            ) from None
        return names

    def close(self) -> None:
        """Close the journal; nothing changes unless `carry_out` was called."""
        self._undo.close()

    def _survey(self) -> tuple[Found, Path | None]:
        """Examine the journal through a connection that cannot change it, and compare it with all its witnesses."""
        with closing(connect(self.path, write=False)) as connection:
            found = look_at(
                connection,
                self.path,
                endpoint=self._place.endpoint,
                seen=read_witness(self._place.witness),
                witness=self._place.witness,
                is_any_name_fine=True,
            )
            if found is None:
                raise JournalMissing(
                    say("The journal {path} is empty.", path=self.path), hint=say("Name the file: --journal.")
                )
            former = check_home(connection, self.path, found, self._place.witness_dir)
            for witness, seen in seen_elsewhere(self._place.witness_dir, found.identity.journal_id):
                hold(connection, found, seen, witness)
        return found, former

    def _others(self) -> Sequence[Registered]:
        registry = self._place.registry
        if registry is None:
            return []
        return registry.paying((*self._found.names, self._place.endpoint), but=self.journal_id)

    def _begin(self) -> None:
        """Upgrade the tables and replay everything, in a transaction that rolls back unless it is committed."""
        try:
            fetch(self._connection, "BEGIN IMMEDIATE")
            migrate(self._connection, self._found.version, now=self._place.now())
            self.counts: Mapping[str, int] = verify(self._connection, self.path)
        except apsw.Error as error:
            leave_untouched(self._connection)
            raise JournalError(
                say("The journal {path} cannot be read: {error}.", path=self.path, error=error)
            ) from None
