"""The location of a journal: a file on one machine, or a database shared by several hosts."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.errors import AuditUnwritable, HolderKind, JournalError, PaygwError
from paygw_batch.journal.audit import AuditEntry, AuditNote, next_audit_entry, trail_start
from paygw_batch.journal.journal import NO_ENTRY, Journal, JournalReader
from paygw_batch.journal.known_journals import KnownJournals, check_other_journals
from paygw_batch.journal.lock import LockHolder, canonical_path
from paygw_batch.journal.outbox import Outbox
from paygw_batch.journal.tables import Tables
from paygw_batch.journal.values import ConcurrentNote, Identity, Withdrawal
from paygw_batch.language import say

RecordNotes = Callable[[Sequence[ConcurrentNote]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalPlace(ABC):
    """The location of an endpoint's journal. Each method opens the journal itself. Nothing stays open between calls.

    `known_dir` has a folder for each journal that this user knows. `now` returns the time in UTC, ISO 8601 with `Z`.
    While a process holds the journal, other processes see the `command` that it passed.
    """

    endpoint: EndpointIdentity
    known_dir: Path
    now: Callable[[], str]

    def __post_init__(self) -> None:
        """Make the directory absolute and canonical. Raises `JournalError` for a path that is not text."""
        object.__setattr__(self, "known_dir", canonical_path(self.known_dir))

    @property
    def known_journals(self) -> KnownJournals:
        """The journals that this user knows."""
        return KnownJournals(self.known_dir)

    @abstractmethod
    def may_exist(self) -> bool:
        """Return whether a journal may exist here. Checks only files, not databases."""

    @abstractmethod
    def make(self, command: str, *, beside: str | None = None) -> Identity | None:
        """Create the merchant's journal. Returns its identity, or None if a journal already exists.

        `beside` is the id of the merchant's newest other journal, if there is one. Raises `JournalError` if another
        journal of the merchant is known and `beside` does not name it.
        """

    @abstractmethod
    def open_to_write(self, command: str, kind: HolderKind = HolderKind.RUN) -> Journal:
        """Open the journal for a run and hold it until `close`. It must exist, and this host must know it.

        Raises `JournalMissing` if there is no journal, `JournalHeld` if another run holds it, `JournalTooOld` if this
        host has seen newer facts of it, and `JournalError` if it cannot be used for another reason.
        """

    @abstractmethod
    def open_to_read(self, *, must_be_known: bool = False) -> JournalReader:
        """Open one snapshot of the journal for reading, even while a run holds it.

        A journal that this host does not know can be read, which is mentioned in `notes`, unless `must_be_known`.
        Raises the errors of `open_to_write`, except `JournalHeld`.
        """

    @abstractmethod
    def holder(self) -> LockHolder | None:
        """Return the live process that holds the journal, or None. Takes no lock and changes nothing."""

    @abstractmethod
    def outbox(self, *, write: bool) -> AbstractContextManager[Outbox]:
        """Open the journal's outbox for the block, even while a run holds the journal."""

    def _require_own(self, journal_id: str, names: Collection[EndpointIdentity]) -> bool:
        """Return whether our endpoint is new to the journal, which has `names` for its merchant.

        Raises `JournalError` if another journal of this user pays for the endpoint, because the new name would join two
        merchants.
        """
        if self.endpoint in names or not self.endpoint.consumer_key_sha256:
            return False
        journals = self.known_journals.merchant_journals((self.endpoint,), except_id=journal_id)
        check_other_journals(journals, None, command="journal new")
        return True

    def add_audit_entry(self, note: AuditNote, at: str) -> None:
        """Add an action to the audit trail durably, even while a run holds the journal.

        Raises `AuditUnwritable`. The action must then not be done.
        """
        try:
            with self._audit_transaction() as tables:
                lines = tables.run("trail", before=NO_ENTRY, limit=1)
                last = AuditEntry(*lines[0]) if lines else trail_start(tables.identity.journal_id)
                tables.run("add_entry", **next_audit_entry(last, note, at)._asdict())
        except PaygwError as error:
            sentence = f"{error.message} {say('Nothing was done.')}"
            raise AuditUnwritable(sentence, hint=error.hint, for_terminal=True) from None

    @abstractmethod
    def _audit_transaction(self) -> AbstractContextManager[Tables]:
        """Run the block in a durable transaction that excludes other writers of the audit trail."""

    @contextmanager
    def open_note_recorder(self) -> Iterator[RecordNotes]:
        """Yield a function that records notes atomically and durably, even while a run holds the journal.

        The function reopens a broken connection. If the answer to a write was lost, it records the notes again, which
        is harmless, because judging a notification twice changes nothing. It raises `JournalHeld` if a write by the run
        takes too long, and `JournalError`.
        """
        with ExitStack() as connections:
            recorders: list[RecordNotes] = []

            def record_notes(notes: Sequence[ConcurrentNote]) -> None:
                if recorders:
                    with suppress(JournalError):
                        recorders[0](notes)
                        return
                    recorders.clear()
                    connections.close()
                recorders.append(connections.enter_context(self._connect_note_recorder()))
                recorders[0](notes)

            yield record_notes

    @abstractmethod
    def _connect_note_recorder(self) -> AbstractContextManager[RecordNotes]:
        """Yield a function that records notes on one connection. It may fail at any call."""

    def withdraw(self, withdrawal: Withdrawal) -> None:
        """Record the withdrawal of a signed plan or order durably, even while a run holds the journal."""
        with self.open_note_recorder() as record_notes:
            record_notes([withdrawal])
