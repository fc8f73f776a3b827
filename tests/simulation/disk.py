"""The disk of the simulated machine: a journal, its witness and its lock, and what of them outlives a crash."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from paygw_batch.journal.memory import MemoryJournal

from paygw_batch.core.evidence import Evidence, Finding
from paygw_batch.core.lifecycle import Intended
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalHeld, JournalUnwritable
from paygw_batch.journal.port import BatchRecord, Entry, Known, NewBatch, NewInstruction
from paygw_batch.journal.witness import Seen, hold_against

if TYPE_CHECKING:
    from .process import Process

T = TypeVar("T")
Write = Callable[[MemoryJournal], T]

_ID = "simulated"
_PLACE = Path("simulated.witness")


class Disk:
    """What all processes of the machine share.

    `writes` is everything that was ever committed, in order: played again from the start it makes the same journal,
    and a beginning of it makes the older copy that a person may restore. With `synchronous` off, a power cut takes
    back what was committed since the last sync; with it on, as the product has it, nothing.
    """

    def __init__(self) -> None:
        self.journal = MemoryJournal()
        self.writes: list[Write[Any]] = []
        self.witness: Seen | None = None
        self.holders: set[Process] = set()
        self.synchronous = True
        self.heeds_witness = True
        self.durable = 0
        """How many of `writes` a power cut leaves."""
        self.durable_nonces: set[str] = set()
        self._unsynced_nonces: set[str] = set()

    # The lock: the operating system's, so it ends with its holder.

    async def take_lock(self, process: "Process") -> None:
        """Give the lock to one living process; raise `JournalHeld` when another has it."""
        if self.holders:
            raise JournalHeld
        self.holders.add(process)

    def check_newest(self) -> None:
        """Hold the journal against its witness, as opening it does. Raises `JournalWentBack`."""
        if self.heeds_witness and self.witness is not None:
            hold_against(
                self.witness,
                _PLACE,
                journal_id=_ID,
                seq=self.journal.head().seq,
                hash_at=lambda seq: self.journal._lines[seq - 1].hash.hex(),
            )

    # Writing.

    def commit(self, write: Write[T], nonces: Iterable[str]) -> T:
        """Make one transaction part of the journal: whole, and before this returns on stable storage."""
        result = write(self.journal)
        self.writes.append(write)
        self._unsynced_nonces.update(nonces)
        if self.synchronous:
            self.sync()
        return result

    def sync(self) -> None:
        """Make everything durable."""
        self.durable = len(self.writes)
        self.durable_nonces |= self._unsynced_nonces
        self._unsynced_nonces.clear()

    def tell_witness(self) -> None:
        """Let the witness know the end of the chain."""
        end = self.journal._end
        if end.seq > 0:
            self.witness = Seen(_ID, end.seq, end.hash.hex())

    # What befalls a disk.

    def lose_power(self) -> None:
        """Forget what was not on stable storage."""
        if self.durable < len(self.writes):
            self.restore(self.durable)

    def restore(self, writes: int) -> None:
        """Put the journal back to what its first `writes` transactions made of it."""
        self.writes = self.writes[:writes]
        self.journal = self.as_it_was(writes)

    def as_it_was(self, writes: int) -> MemoryJournal:
        """Return the journal that the first `writes` transactions make."""
        journal = MemoryJournal()
        for write in self.writes[:writes]:
            write(journal)
        return journal


class HeldJournal:
    """The journal as one process holds it. What it only reads goes straight to the journal on disk.

    A process that is dead writes nothing, and one whose journal failed once never writes again.
    """

    def __init__(self, disk: Disk, process: "Process") -> None:
        self._disk = disk
        self._process = process
        self._end = disk.journal._end.seq
        self._failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk.journal, name)

    def open_batch(
        self, batch: NewBatch, new: Sequence[NewInstruction], known: Sequence[Known], at: str
    ) -> BatchRecord:
        return self._write(
            lambda journal: journal.open_batch(
                batch, pages=[b"page"], instructions=new, known=known, amendments=[], at=at
            )
        )

    def append(self, entries: Sequence[Entry]) -> Sequence[bool]:
        journal = self._disk.journal
        kept = [
            entry
            for entry in entries
            if not (isinstance(entry.fact, Intended) and journal._is_contested(entry.instruction))
        ]
        return self._write(lambda journal: journal.append(entries), kept)

    def take_in(self, evidence: Sequence[Evidence], words: Mapping[str, OutcomeKind], *, at: str) -> Sequence[Finding]:
        return self._write(lambda journal: journal.take_in(evidence, words, at=at))

    def settle(self, entries: Sequence[Entry]) -> None:
        self._write(lambda journal: journal.settle(entries), entries)

    def interrupt(self, at: str) -> int:
        return self._write(lambda journal: journal.interrupt(at))

    def release(self, batch: int, rows: Sequence[int] | None, *, suffix: bool, by: str, at: str) -> int:
        return self._write(lambda journal: journal.release(batch, rows, suffix=suffix, by=by, at=at))

    def _write(self, write: Write[T], entries: Sequence[Entry] = ()) -> T:
        process, disk = self._process, self._disk
        if process.dead:
            raise asyncio.CancelledError
        if self._failed or disk.journal._end.seq != self._end:
            raise JournalUnwritable
        process.writes += 1
        if process.writes == process.dies_before_write:
            process.die()
            raise asyncio.CancelledError
        if process.writes == process.fails_at_write:
            self._failed = True
            if process.failed_write_is_there:
                self._commit(write, entries)
            raise JournalUnwritable
        result = self._commit(write, entries)
        if process.writes == process.dies_after_write:  # durable, and no one was told, not even the witness
            process.die()
            raise asyncio.CancelledError
        disk.tell_witness()
        return result

    def _commit(self, write: Write[T], entries: Sequence[Entry]) -> T:
        nonces = [entry.fact.nonce for entry in entries if isinstance(entry.fact, Intended)]
        result = self._disk.commit(write, nonces)
        self._end = self._disk.journal._end.seq
        self._process.world.judge.look_at_write(self._process, entries)
        return result
