"""Adopts a journal: a person confirms that a copy of the journal is the newest.

This is necessary if this machine does not know the journal, or if the copy lacks facts that are in the machine's sent
log. Only rows that were sent after the copy was made are put in doubt or held.
"""

from array import array
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial

import apsw

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.errors import JournalError, JournalMissing, SentLogDamaged
from paygw_batch.journal.file_location import (
    ExaminedJournal,
    FileLocation,
    check_journal_files,
    examine,
    is_known,
    require_original,
)
from paygw_batch.journal.known_journals import KnownJournal, check_other_journals
from paygw_batch.journal.lock import RunLock, lock_path
from paygw_batch.journal.lost import Loss, LostRows, find_loss
from paygw_batch.journal.sent_log import RUN, SentLogLine, log_accepted_loss, writer_names
from paygw_batch.journal.sqlite.connect import chain_end, connect, fetch, migrate, prevent_writes_on_close
from paygw_batch.journal.sqlite.sqlite_tables import SqliteTables, append_facts, evidence_log
from paygw_batch.journal.sqlite.verify import verify
from paygw_batch.journal.values import AcceptedRows, AdoptionNote, EndpointNote, Remark
from paygw_batch.language import say

_COMMAND = "journal adopt"


class Adoption:
    """A locked and verified copy of a journal that a person may confirm as the newest. Only `carry_out` writes to it.

    Raises `JournalTooOld` if the original still exists, `JournalCorrupt` if the copy is damaged, `SentLogDamaged` if
    not all later attempts are known, and `JournalError` if the copy cannot be adopted for another reason.
    """

    loss: Loss
    """The attempts that this host sent after the copy was made."""

    def __init__(self, location: FileLocation, *, beside: str | None) -> None:
        self.path, self._location, self._beside = location.path, location, beside
        if not self.path.parent.exists() or not check_journal_files(self.path):
            raise JournalMissing(
                say("There is no journal at {path}.", path=self.path), hint=say("Specify its path with --journal.")
            )
        with ExitStack() as stack:
            stack.callback(RunLock(lock_path(self.path), now=location.now(), command=_COMMAND).close)
            self._examined, self.loss = self._examine_copy()
            self.other_journals = self._find_other_journals()
            if self.is_needed:
                check_other_journals(self.other_journals, beside, command=_COMMAND)
            self._connection = stack.enter_context(closing(connect(self.path, write=True)))
            self._begin_and_verify()
            self._stack = stack.pop_all()

    @property
    def is_needed(self) -> bool:
        """Whether the journal must be adopted before a run can use it."""
        has_unknown_host = self._location.endpoint.host not in self.hosts
        return not is_known(self._location.known_journals, self.journal_id) or self.loss.commits > 0 or has_unknown_host

    @property
    def journal_id(self) -> str:
        return self._examined.identity.journal_id

    @property
    def hosts(self) -> Sequence[str]:
        """The gateway hosts recorded in the journal."""
        return sorted({endpoint.host for endpoint in self._examined.endpoints})

    def last_fact(self) -> tuple[int, str]:
        """Return the last fact's number and time, or 0 and the time of creation if the journal has no facts."""
        lines = fetch(self._connection, "SELECT number, at FROM fact ORDER BY number DESC LIMIT 1")
        return lines[0] if lines else (0, self._examined.identity.created_at)

    def carry_out(self, by: str) -> AcceptedRows:
        """Record that the person `by` confirmed the copy and accepted the loss, and make the journal known."""
        known_journals, now, identity = self._location.known_journals, self._location.now(), self._examined.identity
        with known_journals.hold_lock(now):
            # Another journal may have been created in the meantime.
            check_other_journals(self._find_other_journals(), self._beside, command=_COMMAND)
            try:
                # The journal is written before the entry and the sent log. After a crash in between, the journal is
                # still unknown, so the command can be repeated. In the opposite order, runs could use the journal
                # before its loss had been recorded.
                rows, endpoints = self._commit_adoption(by, now)
                known_journals.register(known_journals.updated_entry(identity, endpoints, self.path))
                folder = known_journals.folder(identity.journal_id)
                log_accepted_loss(folder, {RUN, *writer_names(folder)}, lambda: chain_end(self._connection).log_fields)
            except (apsw.Error, OSError) as error:
                message = say("The journal {path} cannot be written: {error}.", path=self.path, error=error)
                raise JournalError(message) from None
        return rows

    def _commit_adoption(self, by: str, at: str) -> tuple[AcceptedRows, tuple[EndpointIdentity, ...]]:
        """Commit the adoption. Returns the affected rows and the endpoints recorded in the journal."""
        append, endpoint = partial(append_facts, self._connection), self._location.endpoint
        lost_rows = LostRows(SqliteTables(self._connection), self.loss, by=by, at=at)
        for facts in lost_rows.decide(lost_rows.numbers) if lost_rows.numbers else ():
            append(facts)
        lost_rows.record_unknown_order_ids(append)
        notes = [Remark(AdoptionNote(by, str(self.path)), at)]
        if endpoint not in self._examined.endpoints:
            notes.append(Remark(EndpointNote(endpoint, by), at))
        append(notes)
        fetch(self._connection, "UPDATE identity SET home = ?", (str(self.path),))
        endpoints = evidence_log(self._connection).endpoints(self._examined.identity)
        fetch(self._connection, "COMMIT")
        return lost_rows.rows, endpoints

    def close(self) -> None:
        """Close the journal, unchanged unless `carry_out` was called."""
        self._stack.close()

    def _examine_copy(self) -> tuple[ExaminedJournal, Loss]:
        known_journals = self._location.known_journals
        with closing(connect(self.path, write=False)) as connection:
            endpoint = self._location.endpoint
            examined = examine(connection, self.path, endpoint=endpoint, sent_log=lambda _: (), allow_other_host=True)
            if examined is None:
                raise JournalMissing(
                    say("The journal {path} is empty.", path=self.path), hint=say("Specify its path with --journal.")
                )
            journal_id = examined.identity.journal_id
            require_original(self.path, examined.identity, known_journals.entry(journal_id))
            loss = find_loss(known_journals.folder(journal_id), partial(find_present_lines, connection))
        if not loss.is_complete:
            raise SentLogDamaged(
                say(
                    "This computer's record of the payments it sent after this copy was made is incomplete: {folder}.",
                    folder=known_journals.folder(journal_id),
                )
            )
        return examined, loss

    def _find_other_journals(self) -> Sequence[KnownJournal]:
        endpoints = (*self._examined.endpoints, self._location.endpoint)
        return self._location.known_journals.merchant_journals(endpoints, except_id=self.journal_id)

    def _begin_and_verify(self) -> None:
        """Upgrade the tables and replay all facts, in a transaction that only `carry_out` commits."""
        try:
            fetch(self._connection, "BEGIN IMMEDIATE")
            migrate(self._connection, self._examined.version, now=self._location.now())
            self.counts: Mapping[str, int] = verify(self._connection, self.path)
        except apsw.Error as error:
            prevent_writes_on_close(self._connection)
            message = say("The journal {path} cannot be read: {error}.", path=self.path, error=error)
            raise JournalError(message) from None


def find_present_lines(connection: apsw.Connection, lines: Sequence[SentLogLine]) -> Collection[SentLogLine]:
    if not lines:
        return ()  # an empty array may not have an address for SQLite to read
    numbers = apsw.carray(array("q", {line.number for line in lines}))
    hashes = dict(fetch(connection, "SELECT number, hash FROM fact WHERE number IN carray(?)", (numbers,)))
    return {line for line in lines if not line.number or hashes.get(line.number) == bytes.fromhex(line.hash)}
