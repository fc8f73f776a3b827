"""Declares the place of a journal: a file of one machine, or a database that several hosts share."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.errors import HolderKind
from paygw_batch.journal.guards.location import canonical_path
from paygw_batch.journal.guards.lock import LockHolder
from paygw_batch.journal.journal import Journal, JournalReader
from paygw_batch.journal.opening.registry import JournalRegistry
from paygw_batch.journal.outbox import Outbox
from paygw_batch.journal.values import Identity, Withdrawal


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalPlace(ABC):
    """The place of an endpoint's journal. Each method opens it again: nothing is held between two calls.

    `witness_dir` is where the witnesses of this host are, `registry_dir` where journals are remembered (None: not at
    all), and `now` the clock, in UTC, ISO 8601 with `Z`. Other processes see the holder's `command`.
    """

    endpoint: EndpointIdentity
    witness_dir: Path
    registry_dir: Path | None = None
    now: Callable[[], str]

    def __post_init__(self) -> None:
        """Give each directory its one absolute name. Raises `JournalError` for a name that is not text."""
        object.__setattr__(self, "witness_dir", canonical_path(self.witness_dir))
        if self.registry_dir is not None:
            object.__setattr__(self, "registry_dir", canonical_path(self.registry_dir))

    @property
    def registry(self) -> JournalRegistry | None:
        """The registry of journals, if there is one."""
        return None if self.registry_dir is None else JournalRegistry(self.registry_dir)

    @abstractmethod
    def may_exist(self) -> bool:
        """Whether there can be a journal to look into. Only a file is looked for; no database is asked."""

    @abstractmethod
    def make(self, command: str, *, beside: str | None = None) -> Identity | None:
        """Make the journal of the endpoint, and return which one it is; None if a journal is there already.

        `beside` is the id of the newest journal of the same endpoint, if there is one. Raises `JournalError` when
        another journal of the endpoint is remembered and not named.
        """

    @abstractmethod
    def open_to_write(self, command: str, kind: HolderKind = HolderKind.RUN) -> Journal:
        """Open the journal for a run, and hold it until `close`. It must be there, and this host must know it.

        Raises `JournalMissing` when there is none, `JournalHeld` when another run has it, `JournalWentBack` when this
        host has seen more of it, and `JournalError` for everything else that speaks against using it.
        """

    @abstractmethod
    def open_to_read(self, *, must_be_known: bool = False) -> JournalReader:
        """Open the journal to look into it, also while a run holds it: one snapshot.

        One that this host does not know can be looked into, and `notes` of the result say so, unless it
        `must_be_known`. Raises what `open_to_write` raises, but for `JournalHeld`.
        """

    @abstractmethod
    def holder(self) -> LockHolder | None:
        """Return the living process that holds the journal; None: nobody does. Nothing is taken or touched."""

    @abstractmethod
    def outbox(self, *, write: bool) -> AbstractContextManager[Outbox]:
        """Open the outbox of the journal as long as the block lasts, also while a run holds the journal."""

    @abstractmethod
    def withdraw(self, withdrawal: Withdrawal) -> None:
        """Make the withdrawal of a signed plan or order durable, also while a run holds the journal."""
