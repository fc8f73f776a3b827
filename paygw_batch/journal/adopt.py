"""Adopts a journal: a person confirms that a copy is the newest one.

This is needed if this machine does not know the journal, or knows that more left than the copy holds. The rows that
left since the copy was made come in doubt, or are held; no others do.
"""

from array import array
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial

import apsw

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.errors import JournalError, JournalMissing, LeftDamaged
from paygw_batch.journal.file_place import FilePlace, Found, check_home, check_place, is_known, look_at
from paygw_batch.journal.known_journals import KnownJournal, check_beside
from paygw_batch.journal.left import RUN, LeftLine, note_accepted, writers
from paygw_batch.journal.lock import RunLock, lock_path
from paygw_batch.journal.lost import Loss, LostRows, find_loss
from paygw_batch.journal.sqlite.connect import connect, end_of, fetch, leave_untouched, migrate
from paygw_batch.journal.sqlite.sqlite_tables import SqliteTables, evidence_in, record_last
from paygw_batch.journal.sqlite.verify import verify
from paygw_batch.journal.values import AcceptedRows, Adopted, Named, Remark
from paygw_batch.language import say

_COMMAND = "journal adopt"


class Adoption:
    """A journal that a person may confirm as the newest. It is locked and replayed; only `carry_out` writes to it.

    Raises `JournalWentBack` if the original still exists, `JournalCorrupt` if the copy is damaged, `LeftDamaged` if it
    is older and not all attempts that left since are known, and `JournalError` for any other reason against it.
    """

    loss: Loss
    """The attempts that left from here since the copy was made."""

    def __init__(self, place: FilePlace, *, beside: str | None) -> None:
        self.path, self._place, self._beside = place.path, place, beside
        if not self.path.parent.exists() or not check_place(self.path):
            raise JournalMissing(
                say("There is no journal at {path}.", path=self.path), hint=say("Name the file: --journal.")
            )
        with ExitStack() as undo:
            undo.callback(RunLock(lock_path(self.path), now=place.now(), command=_COMMAND).close)
            self._found, self.loss = self._survey()
            self.others = self._others()
            if self.is_needed:
                check_beside(self.others, beside, command=_COMMAND)
            self._connection = undo.enter_context(closing(connect(self.path, write=True)))
            self._begin()
            self._undo = undo.pop_all()

    @property
    def is_needed(self) -> bool:
        """Whether no run could use the journal without being adopted."""
        is_named = any(name.host == self._place.endpoint.host for name in self._found.names)
        return not is_known(self._place.known, self.journal_id) or bool(self.loss.commits) or not is_named

    @property
    def journal_id(self) -> str:
        return self._found.identity.journal_id

    @property
    def names(self) -> Sequence[str]:
        """The hosts of the merchant's gateway that the journal knows."""
        return sorted({name.host for name in self._found.names})

    def last_fact(self) -> tuple[int, str]:
        """Return the number and time of the last fact; 0 and the time of creation if the journal has no facts."""
        lines = fetch(self._connection, "SELECT number, at FROM fact ORDER BY number DESC LIMIT 1")
        return lines[0] if lines else (0, self._found.identity.created_at)

    def carry_out(self, by: str) -> AcceptedRows:
        """Record the loss, and that `by` confirms the copy as the newest; from then on this user knows the journal."""
        known, at, identity = self._place.known, self._place.now(), self._found.identity
        with known.held(at):
            check_beside(self._others(), self._beside, command=_COMMAND)  # another journal may have been created since
            try:
                # The journal is written first, then the entry and the lines. After a crash in between, the journal is
                # still unknown, and the command can be run again. In the other order, runs would use the journal
                # although its loss is not recorded.
                rows, names = self._recorded(by, at)
                before = known.entry(identity.journal_id)
                names = tuple(dict.fromkeys((*names, *(() if before is None else before.names))))
                known.take(KnownJournal(identity.journal_id, names, str(self.path), identity.created_at))
                folder = known.folder(identity.journal_id)
                note_accepted(folder, {RUN, *writers(folder)}, lambda: end_of(self._connection).noted)
            except (apsw.Error, OSError) as error:
                raise JournalError(
                    say("The journal {path} cannot be written: {error}.", path=self.path, error=error)
                ) from None
        return rows

    def _recorded(self, by: str, at: str) -> tuple[AcceptedRows, tuple[EndpointIdentity, ...]]:
        """Commit the facts of the adoption; return the fate of lost rows, and the names that the journal then has."""
        record, endpoint = partial(record_last, self._connection), self._place.endpoint
        lost = LostRows(SqliteTables(self._connection), self.loss, by=by, at=at)
        for facts in lost.judge(lost.numbers) if lost.numbers else ():
            record(facts)
        lost.keep_unknown(record)
        notes = [Remark(Adopted(by, str(self.path)), at)]
        if endpoint not in self._found.names:
            notes.append(Remark(Named(endpoint, by), at))
        record(notes)
        fetch(self._connection, "UPDATE identity SET home = ?", (str(self.path),))
        names = evidence_in(self._connection).names(self._found.identity)
        fetch(self._connection, "COMMIT")
        return lost.rows, names

    def close(self) -> None:
        """Close the journal, unchanged unless `carry_out` was called."""
        self._undo.close()

    def _survey(self) -> tuple[Found, Loss]:
        """Examine the journal without changing it, and compare it with the attempts that left from here."""
        known = self._place.known
        with closing(connect(self.path, write=False)) as connection:
            examined = look_at(
                connection, self.path, endpoint=self._place.endpoint, left=lambda _: (), is_any_name_fine=True
            )
            if examined is None:
                raise JournalMissing(
                    say("The journal {path} is empty.", path=self.path), hint=say("Name the file: --journal.")
                )
            journal_id = examined.identity.journal_id
            check_home(self.path, examined.identity, known.entry(journal_id))
            loss = find_loss(known.folder(journal_id), partial(present_in, connection))
        if not loss.is_whole:
            raise LeftDamaged(
                say(
                    "It is not known which payments this computer sent after this copy was made: {folder}.",
                    folder=known.folder(journal_id),
                )
            )
        return examined, loss

    def _others(self) -> Sequence[KnownJournal]:
        return self._place.known.paying((*self._found.names, self._place.endpoint), but=self.journal_id)

    def _begin(self) -> None:
        """Upgrade the tables and replay all facts, in a transaction that rolls back unless it is committed."""
        try:
            fetch(self._connection, "BEGIN IMMEDIATE")
            migrate(self._connection, self._found.version, now=self._place.now())
            self.counts: Mapping[str, int] = verify(self._connection, self.path)
        except apsw.Error as error:
            leave_untouched(self._connection)
            raise JournalError(
                say("The journal {path} cannot be read: {error}.", path=self.path, error=error)
            ) from None


def present_in(connection: apsw.Connection, lines: Sequence[LeftLine]) -> Collection[LeftLine]:
    """Return those of the lines whose facts the journal has."""
    if not lines:
        return ()  # SQLite cannot read an empty array, which may have no address
    numbers = apsw.carray(array("q", {line.number for line in lines}))
    hashes = dict(fetch(connection, "SELECT number, hash FROM fact WHERE number IN carray(?)", (numbers,)))
    return {line for line in lines if not line.number or hashes.get(line.number) == bytes.fromhex(line.hash)}
