"""The disk of the simulated machine: the journal's database, its witness and its lock, and what outlives a crash.

The journal is the one that ships: its tables, statements and transactions. Only the file is simulated: a process works
on a copy of the bytes on the disk, and puts them back with each COMMIT. So what a process had not committed when it was
killed is gone, and what it had committed is there.
"""

import asyncio
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.core.lifecycle import State
from paygw_batch.errors import JournalHeld
from paygw_batch.journal.facts.chain import Identity
from paygw_batch.journal.guards.witness import Seen
from paygw_batch.journal.opening import open as opened
from paygw_batch.journal.opening.examine import look_at
from paygw_batch.journal.opening.in_memory import database_of
from paygw_batch.journal.sqlite.connect import STATEMENTS_KEPT, configure
from paygw_batch.journal.sqlite.reader import SqliteReader
from paygw_batch.journal.sqlite.writer import SqliteJournal
from paygw_batch.journal.values import BatchRecord

if TYPE_CHECKING:
    from tests.simulation.process import Process

ENDPOINT = EndpointIdentity.from_name("gateway.example/1")
_PATH, _WITNESS, _OTHER_WITNESSES = Path("simulated.sqlite3"), Path("simulated.witness"), Path("/nonexistent")
_NEW = Identity("5" * 32, ENDPOINT.name, "2026-11-20T00:00:00.000Z", str(_PATH))


class Disk:
    """What all processes of the machine share.

    `copies` are the database as it was after each commit: one of them is the older copy that a person may restore.
    With `synchronous` off, a power cut takes back what was committed since the last sync; with it on, as the product
    has it, nothing.
    """

    def __init__(self) -> None:
        self.image = self.durable = database_of(_NEW)
        self.copies = [self.image]
        self.last_known = self.image
        """The newest that any process went on from: a run must refuse what is older."""
        self.witness: Seen | None = Seen(_NEW.journal_id, _NEW.start.seq, _NEW.start.hash.hex())
        """The journal was made on this machine, on purpose."""
        self.holders: set[Process] = set()
        self.synchronous = True
        self.heeds_witness = True
        self._connection: SimConnection | None = None
        self._holds: bytes | None = None

    async def take_lock(self, process: "Process") -> None:
        """Give the lock to one living process; raise `JournalHeld` when another has it. It ends with its holder."""
        if self.holders:
            raise JournalHeld
        self.holders.add(process)

    def open(self, process: "Process") -> SqliteJournal:
        """Open the journal for a process that has the lock. Raises as opening one does, `JournalWentBack` above all."""
        connection = self._connected(process)
        seen = self.witness if self.heeds_witness else None
        found = look_at(connection, _PATH, endpoint=ENDPOINT, seen=seen, witness=_WITNESS)
        if found is None:
            raise AssertionError("the disk holds no journal")
        if not opened._is_known(found, self.witness, _OTHER_WITNESSES):
            raise opened._not_adopted(_PATH, found)
        witness = SimWitness(self, process)
        witness.note(Seen(found.identity.journal_id, found.end.seq, found.end.hash.hex()))
        return process.world.journal_type(
            connection,
            _PATH,
            journal_id=found.identity.journal_id,
            end=found.end,
            witness=witness,
            lock=SimLock(self, process),
            notes=(),
        )

    def _connected(self, process: "Process | None") -> "SimConnection":
        """Return a connection to what is on the disk: a process that looks first sees nothing of one before it.

        The last one is given on where its database is what is on the disk, once what its process had not committed is
        rolled back. That is much cheaper than to read the tables and to prepare every statement anew.
        """
        connection = self._connection
        if connection is None or self._holds is not self.image or connection.process in self.holders - {process}:
            if connection is not None and connection.process not in self.holders:
                connection.close(True)
            self._connection = connection = SimConnection(self)
            self._holds = self.image
        elif connection.in_transaction:
            connection.execute("ROLLBACK")
        connection.process = process
        return connection

    def stored(self, connection: "SimConnection") -> None:
        """Take what a COMMIT wrote, on stable storage unless told otherwise."""
        self.image = connection.serialize("main")
        self._connection, self._holds = connection, self.image
        self.copies.append(self.image)
        if self.synchronous:
            self.durable = self.image

    def close(self) -> None:
        """Let go of what was opened."""
        if self._connection is not None:
            self._connection.close(True)

    def has_intent(self, nonce: str) -> bool:
        """Whether stable storage holds an intent with this nonce: its bytes are searched, nobody is asked."""
        return f'"nonce":"{nonce}"'.encode() in self.durable

    def lose_power(self) -> None:
        """Forget what was not on stable storage."""
        self.image = self.durable

    def reader(self) -> SqliteReader:
        """Look into the journal as it is on the disk, as `status` does between runs."""
        return SqliteReader(self._connected(None), _PATH)

    def batches(self) -> Sequence[BatchRecord]:
        """Return the batches of the journal on the disk."""
        return self.reader().batches()

    def kept_notifications(self) -> int:
        """Return how many notifications are in the journal on the disk."""
        ((count,),) = self._connected(None).execute("SELECT count(*) FROM evidence WHERE spooled IS NOT NULL")
        return int(count)

    def states(self) -> set[State]:
        """Return which states rows are in."""
        return {one.state for batch in self.batches() for one in self.reader().rows(batch.number)}


def reader_of(image: bytes) -> SqliteReader:
    """Look into a copy of a journal."""
    connection = apsw.Connection(":memory:")
    connection.deserialize("main", image)
    configure(connection)
    return SqliteReader(connection, _PATH)


def last_fact(image: bytes) -> int:
    """Return the number of the last fact in a copy of a journal."""
    with closing(reader_of(image)) as reader:
        return reader.head().seq


class SimConnection(apsw.Connection):
    """SQLite as one process has it: every statement is carried out, and a COMMIT is where things may befall it."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(":memory:", statementcachesize=STATEMENTS_KEPT)
        self.process: Process | None = None
        self._disk = disk
        self._is_writing = False
        self.deserialize("main", disk.image)
        configure(self)

    def execute(self, statements: str, *arguments: Any, **named: Any) -> apsw.Cursor:
        """Carry out a statement."""
        if statements == "BEGIN IMMEDIATE":
            if self.process is None or self.process.dead:
                raise asyncio.CancelledError
            self._is_writing = True
        elif statements == "COMMIT" and self._is_writing:
            self._is_writing = False
            return self._commit(self.process)
        return super().execute(statements, *arguments, **named)

    def _commit(self, process: "Process | None") -> apsw.Cursor:
        if process is None or process.dead:
            raise asyncio.CancelledError
        process.writes += 1
        if process.writes == process.dies_before_write:
            process.die()
            raise asyncio.CancelledError
        if process.writes == process.fails_at_write:
            process.had_mishap = True
            if process.failed_write_is_there:
                self._stored(process)
            raise apsw.IOError("disk I/O error")
        result = self._stored(process)
        if process.writes == process.dies_after_write:  # durable, and no one was told, not even the witness
            process.die()
            raise asyncio.CancelledError
        self._disk.last_known = self._disk.image
        return result

    def _stored(self, process: "Process") -> apsw.Cursor:
        result = super().execute("COMMIT")
        self._disk.stored(self)
        process.world.judge.look_at_write(process)
        return result


class SimWitness:
    """The witness, as one process has it."""

    def __init__(self, disk: Disk, process: "Process") -> None:
        self._disk = disk
        self._process = process

    def note(self, seen: Seen) -> None:
        """Remember how far the journal has come."""
        if self._process.dead:
            raise asyncio.CancelledError
        self._disk.witness = seen

    def close(self) -> None:
        """Nothing is held."""


class SimLock:
    """The lock, as its holder has it."""

    def __init__(self, disk: Disk, process: "Process") -> None:
        self._disk = disk
        self._process = process

    def close(self) -> None:
        """Let another process in."""
        self._disk.holders.discard(self._process)
