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
class JournalLocation(ABC):
    """The location of an endpoint's journal. Each method that needs the journal opens it.

    `known_dir` contains a folder for each journal known to this user. `now` returns the UTC time, ISO 8601 with `Z`.
    Methods that hold the journal take a `command`, which other processes show in their errors while it is held.
    """

    endpoint: EndpointIdentity
    known_dir: Path
    now: Callable[[], str]

    def __post_init__(self) -> None:
        """Make `known_dir` canonical. Raises `JournalError` if it is not UTF-8."""
        object.__setattr__(self, "known_dir", canonical_path(self.known_dir))

    @property
    def known_journals(self) -> KnownJournals:
        """The journals known to this user."""
        return KnownJournals(self.known_dir)

    @abstractmethod
    def may_exist(self) -> bool:
        """Return False if there is certainly no journal here. Never connects to a database."""

    @abstractmethod
    def create(self, command: str, *, beside: str | None = None) -> Identity | None:
        """Create the merchant's journal. Returns its identity, or None if a journal already exists here.

        If the merchant has other known journals, `beside` must name the newest. Raises `JournalError` if it does not.
        """

    @abstractmethod
    def open_to_write(self, command: str, kind: HolderKind = HolderKind.RUN) -> Journal:
        """Open the journal for a run and hold it until it is closed. It must exist and be known to this user.

        Raises `JournalMissing` if there is no journal, `JournalHeld` if another run holds it, `JournalTooOld` if this
        host has seen newer facts, and `JournalError` if the journal is unusable for another reason.
        """

    @abstractmethod
    def open_to_read(self, *, must_be_known: bool = False) -> JournalReader:
        """Open a snapshot of the journal for reading, even while a run holds the journal.

        Unless it `must_be_known`, a journal unknown to this user can be read, and its `notes` say so. Raises the same
        errors as `open_to_write`, except `JournalHeld`.
        """

    @abstractmethod
    def holder(self) -> LockHolder | None:
        """Return the live process that holds the journal, or None, without taking a lock."""

    @abstractmethod
    def outbox(self, *, write: bool) -> AbstractContextManager[Outbox]:
        """Open the journal's outbox for the block, even while a run holds the journal."""

    def _is_new_endpoint(self, journal_id: str, known_endpoints: Collection[EndpointIdentity]) -> bool:
        """Return whether our endpoint must be added to the `known_endpoints` recorded in the journal.

        Raises `JournalError` if another journal of this user pays for the endpoint, because adding it here would mix
        two merchants' payments.
        """
        if self.endpoint in known_endpoints or not self.endpoint.consumer_key_sha256:
            return False
        journals = self.known_journals.merchant_journals((self.endpoint,), except_id=journal_id)
        check_other_journals(journals, None, command="journal new")
        return True

    def add_audit_entry(self, note: AuditNote, at: str) -> None:
        """Add an entry to the audit trail durably, even while a run holds the journal.

        Raises `AuditUnwritable` if that fails. The action must then not be performed.
        """
        try:
            with self._audit_transaction() as tables:
                lines = tables.run("trail", before=NO_ENTRY, limit=1)
                previous = AuditEntry(*lines[0]) if lines else trail_start(tables.identity.journal_id)
                tables.run("add_entry", **next_audit_entry(previous, note, at)._asdict())
        except PaygwError as error:
            message = f"{error.message} {say('Nothing was done.')}"
            raise AuditUnwritable(message, hint=error.hint, for_terminal=True) from None

    @abstractmethod
    def _audit_transaction(self) -> AbstractContextManager[Tables]:
        """Run the block in a durable transaction that blocks other writes to the audit trail."""

    @contextmanager
    def open_note_recorder(self) -> Iterator[RecordNotes]:
        """Yield a function that records notes atomically and durably, even while a run holds the journal.

        If the function loses its connection, it reconnects and records the notes again. That is harmless, because a
        notification that is processed twice changes nothing. It raises `JournalHeld` if a run blocks the write for too
        long, and `JournalError` if it fails for another reason.
        """
        with ExitStack() as stack:
            recorders: list[RecordNotes] = []

            def record_notes(notes: Sequence[ConcurrentNote]) -> None:
                if recorders:
                    with suppress(JournalError):
                        recorders[0](notes)
                        return
                    recorders.clear()
                    stack.close()
                recorders.append(stack.enter_context(self._connect_note_recorder()))
                recorders[0](notes)

            yield record_notes

    @abstractmethod
    def _connect_note_recorder(self) -> AbstractContextManager[RecordNotes]:
        """Yield a function that records notes on a single connection, and fails if the connection is lost."""

    def withdraw(self, withdrawal: Withdrawal) -> None:
        """Record the withdrawal of a signed plan or order durably, even while a run holds the journal."""
        with self.open_note_recorder() as record_notes:
            record_notes([withdrawal])
