"""Declares the place of a journal: a file on one machine, or a database shared by several hosts."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.errors import AuditUnwritable, HolderKind, JournalError, PaygwError
from paygw_batch.journal.audit import AuditEntry, AuditNote, next_audit_entry, start_of_trail
from paygw_batch.journal.journal import NO_ENTRY, Journal, JournalReader
from paygw_batch.journal.known_journals import KnownJournals, check_beside
from paygw_batch.journal.lock import LockHolder, canonical_path
from paygw_batch.journal.outbox import Outbox
from paygw_batch.journal.tables import Tables
from paygw_batch.journal.values import Identity, NotedBeside, Withdrawal
from paygw_batch.language import say

KeepBeside = Callable[[Sequence[NotedBeside]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalPlace(ABC):
    """The place of an endpoint's journal. Each method opens the journal again: nothing is held between calls.

    `known_dir` has a folder for each journal that this user knows. `now` returns the time in UTC, ISO 8601 with `Z`.
    While a process holds the journal, other processes see the `command` that it passed.
    """

    endpoint: EndpointIdentity
    known_dir: Path
    now: Callable[[], str]

    def __post_init__(self) -> None:
        """Make the directory absolute and canonical. Raises `JournalError` for a name that is not text."""
        object.__setattr__(self, "known_dir", canonical_path(self.known_dir))

    @property
    def known(self) -> KnownJournals:
        """The journals that this user knows."""
        return KnownJournals(self.known_dir)

    @abstractmethod
    def may_exist(self) -> bool:
        """Whether a journal may exist here. Only files are checked; no database is asked."""

    @abstractmethod
    def make(self, command: str, *, beside: str | None = None) -> Identity | None:
        """Create the merchant's journal and return its identity; None if a journal exists already.

        `beside` is the id of the merchant's newest other journal, if there is one. Raises `JournalError` if another
        journal of the merchant is known and `beside` does not name it.
        """

    @abstractmethod
    def open_to_write(self, command: str, kind: HolderKind = HolderKind.RUN) -> Journal:
        """Open the journal for a run, and hold it until `close`. It must exist, and this host must know it.

        Raises `JournalMissing` if there is no journal, `JournalHeld` if another run holds it, `JournalWentBack` if this
        host has seen newer facts of it, and `JournalError` for any other reason against using it.
        """

    @abstractmethod
    def open_to_read(self, *, must_be_known: bool = False) -> JournalReader:
        """Open one snapshot of the journal to read it, even while a run holds it.

        A journal that this host does not know can be read, and `notes` then has a sentence about that. With
        `must_be_known` it is refused. Raises the errors of `open_to_write`, except `JournalHeld`.
        """

    @abstractmethod
    def holder(self) -> LockHolder | None:
        """Return the living process that holds the journal, or None. Takes no lock and touches nothing."""

    @abstractmethod
    def outbox(self, *, write: bool) -> AbstractContextManager[Outbox]:
        """Open the journal's outbox for the block, even while a run holds the journal."""

    def _require_own(self, journal_id: str, names: Collection[EndpointIdentity]) -> bool:
        """Return whether our endpoint is new to a journal that knows its merchant by `names`.

        Raises `JournalError` if another journal of this user pays for the endpoint: the new name would join two
        merchants.
        """
        if self.endpoint in names or not self.endpoint.consumer_key_sha256:
            return False
        check_beside(self.known.paying((self.endpoint,), but=journal_id), None, command="journal new")
        return True

    def note_act(self, note: AuditNote, at: str) -> None:
        """Add an act to the audit trail durably, even while a run holds the journal.

        Raises `AuditUnwritable`, and then the act must not be done.
        """
        try:
            with self._noting() as tables:
                lines = tables.run("trail", before=NO_ENTRY, limit=1)
                last = AuditEntry(*lines[0]) if lines else start_of_trail(tables.identity.journal_id)
                tables.run("add_entry", **next_audit_entry(last, note, at)._asdict())
        except PaygwError as error:
            sentence = f"{error.message} {say('Nothing was done.')}"
            raise AuditUnwritable(sentence, hint=error.hint, for_terminal=True) from None

    @abstractmethod
    def _noting(self) -> AbstractContextManager[Tables]:
        """Run the block in one durable transaction; meanwhile no other process adds to the audit trail."""

    @contextmanager
    def beside(self) -> Iterator[KeepBeside]:
        """Yield a function that records notes durably while a run may hold the journal. It records all notes or none.

        The function opens a broken connection again. If the answer to a write was lost, the notes are recorded a second
        time; this is harmless, because gateways repeat notifications too, and judging one twice changes nothing. The
        function raises `JournalHeld` if a write of the run takes too long, and `JournalError`.
        """
        with ExitStack() as opened:
            keepers: list[KeepBeside] = []

            def keep(notes: Sequence[NotedBeside]) -> None:
                if keepers:
                    with suppress(JournalError):
                        keepers[0](notes)
                        return
                    keepers.clear()
                    opened.close()
                keepers.append(opened.enter_context(self._beside_once()))
                keepers[0](notes)

            yield keep

    @abstractmethod
    def _beside_once(self) -> AbstractContextManager[KeepBeside]:
        """Yield such a function for one connection; it may fail at any call."""

    def withdraw(self, withdrawal: Withdrawal) -> None:
        """Record the withdrawal of a signed plan or order durably, even while a run holds the journal."""
        with self.beside() as keep:
            keep([withdrawal])
