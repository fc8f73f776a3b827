"""The disk of the simulated machine: the journal's database, what left, its lock, and what outlives a crash.

The journal is the one that ships: its tables, statements and transactions. Only the file is simulated: it is what the
last connection has committed. So what a process had not committed when it was killed is gone, and what it had committed
is there. The bytes of the file are made where somebody needs them, which is seldom.
"""

import asyncio
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.core.lifecycle import State
from paygw_batch.errors import JournalHeld, JournalNotAdopted
from paygw_batch.journal.adopt import present_in
from paygw_batch.journal.file_place import database_of, look_at
from paygw_batch.journal.left import RUN, Left, LeftLine, Noted
from paygw_batch.journal.lost import Loss, LostRows, find_loss
from paygw_batch.journal.sqlite.connect import STATEMENTS_KEPT, check_tables, configure, end_of
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal, SqliteReader
from paygw_batch.journal.sqlite.sqlite_tables import SqliteTables, record_last
from paygw_batch.journal.values import Adopted, BatchRecord, Identity, Link, NotedBeside, Remark
from tests.promise.simulation.judge import row_of

if TYPE_CHECKING:
    from tests.promise.simulation.process import Process

ENDPOINT = EndpointIdentity.from_name("gateway.example/1")
_PATH = Path("simulated.sqlite3")
_KEPT = "SELECT count(*) FROM fact WHERE source = 'notification' AND NOT (finding = 'ambiguous' AND attempt IS NULL)"
"""Of a notification that may be about several instructions, one fact names an attempt."""
_NEW = Identity("5" * 32, ENDPOINT.name, "2026-11-20T00:00:00.000Z", str(_PATH))


CHANCE_OF_A_COPY = 0.3
"""How often somebody copies the journal after a commit."""
CHANCE_OF_A_NEW_MACHINE = 0.3
"""How often a copy of a lost journal is adopted where nobody knows what left."""


class Copy(NamedTuple):
    """The bytes of a database, the number of the last fact in it, and of its last batch."""

    image: bytes
    last_fact: int = 0
    last_batch: int = 0


class Disk:
    """What all processes of the machine share.

    `copies` are the database as it was after some commits: one of them is the older copy that a person may restore.
    With `synchronous` off, a power cut takes back what was committed since the last sync; with it on, as the product
    has it, nothing.
    """

    def __init__(self, seed: int) -> None:
        self._dice = Random(~seed)  # noqa: S311 (dice of its own: copies change nothing else in a world)
        self._connection: SimConnection | None = None
        self._image: bytes | None = database_of(_NEW)
        """None: what the connection has committed."""
        self._is_replaced = True
        """Whether the connection knows nothing of what is on the disk."""
        self.commits = 0
        self.last_fact = self.last_batch = self.last_known = 0
        """`last_known`: the last fact of the newest database that any process went on from."""
        self.copies = [Copy(self.image)]
        self.durable = self.copies[0]
        """What a power cut leaves where nothing is synchronous; its number of the last fact is true in any case."""
        self.left: list[LeftLine] | None = [LeftLine(1, 0, _NEW.start.hash.hex(), "")]
        """What left; the journal was made on this machine, on purpose. None: the machine is new."""
        self.holders: set[Process] = set()
        self.synchronous = True
        self.heeds_what_left = self.asks_whether_known = True

    @property
    def image(self) -> bytes:
        """The bytes of the database."""
        if self._image is None:
            if self._connection is None:
                raise AssertionError("the disk has neither a file nor a connection to one")
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            self._image = self._connection.serialize("main")
        return self._image

    def copy(self) -> Copy:
        """Return a copy of the database as it is."""
        return Copy(self.image, self.last_fact, self.last_batch)

    def put(self, copy: Copy) -> None:
        """Put a copy in the place of the database."""
        self._image, self.last_fact, self.last_batch = self.durable = copy
        self._is_replaced = True

    def adopt(self, copy: Copy, at: str) -> bool:
        """Put a copy in the place of a database that is lost, and let a person adopt it.

        Return whether it is known what left since: at times it is adopted on a new machine.
        """
        if self._dice.random() < CHANCE_OF_A_NEW_MACHINE:
            self.left = None
        is_known = self.left is not None
        self.put(copy)
        connection = self._connected(None)
        record = partial(record_last, connection)
        lost = LostRows(SqliteTables(connection), self._loss(connection), by="amina", at=at)
        connection.execute("BEGIN")
        for facts in lost.judge(lost.numbers) if lost.numbers else ():
            record(facts)
        lost.keep_unknown(record)
        record([Remark(Adopted("amina", str(_PATH)), at)])
        end = end_of(connection)
        connection.execute("COMMIT")
        self.stored(connection)
        self.sync()
        self.left = [*(self.left or ()), LeftLine(len(self.left or ()) + 1, end.seq, end.hash.hex(), at)]
        self.last_known = self.last_fact
        return is_known

    def keep_beside(self, note: NotedBeside, at: str) -> Link | None:
        """Record a note as a process beside a run does; return the chain's end, or None while the run writes."""
        connection = self._connection
        if connection is None or self._is_replaced:
            connection = self._connected(None)
        if connection.in_transaction and connection.process in self.holders:
            return None
        connection.begin_beside()
        record_last(connection, [Remark(note, at)])
        end = end_of(connection)
        connection.execute("COMMIT")
        self.stored(connection)
        self.last_known = self.last_fact
        self.left = [*(self.left or ()), LeftLine(len(self.left or ()) + 1, end.seq, end.hash.hex(), at)]
        return end

    def states_by_row(self) -> dict[int, State]:
        """Return the states of rows, by the numbers by which the judge knows them."""
        return {
            row_of(one.client_orderid): one.state
            for batch in self.batches()
            for one in self.reader().rows(batch.number)
        }

    def _loss(self, connection: "SimConnection") -> Loss:
        """Return what left since the copy was made, as the shipped files say it."""
        first, *later = self.left or [LeftLine(1, 0, "", "")]
        with TemporaryDirectory() as folder:
            with closing(Left(Path(folder), RUN, (first.number, first.hash, first.at))) as left:
                for line in later:
                    left.note(line.number, line.hash, line.at, line.noted)
            return find_loss(Path(folder), partial(present_in, connection))

    async def take_lock(self, process: "Process") -> None:
        """Give the lock to one living process; raise `JournalHeld` when another has it. It ends with its holder."""
        if self.holders:
            raise JournalHeld
        self.holders.add(process)

    def open(self, process: "Process") -> SqliteJournal:
        """Open the journal for a process that has the lock. Raises as opening one does, `JournalWentBack` above all."""
        connection = self._connected(process)
        seen = (self.left or [])[-1:] if self.heeds_what_left else []
        found = look_at(connection, _PATH, endpoint=ENDPOINT, left=lambda _: seen)
        if found is None:
            raise AssertionError("the disk holds no journal")
        if self.left is None and self.asks_whether_known:
            raise JournalNotAdopted
        left = SimLeft(self, process)
        left.note(*found.end.noted)
        return process.world.journal_type(
            connection, _PATH, end=found.end, left=left, lock=SimLock(self, process), notes=()
        )

    def _connected(self, process: "Process | None") -> "SimConnection":
        """Return a connection to what is on the disk: a process that looks first sees nothing of one before it.

        The last one is given on where its database is what is on the disk, once what its process had not committed is
        rolled back. That is much cheaper than to read the tables and to prepare every statement anew.
        """
        connection = self._connection
        if connection is None or self._is_replaced or connection.process in self.holders - {process}:
            if connection is not None and connection.process not in self.holders:
                connection.close(True)
            self._connection = connection = SimConnection(self)
            self._is_replaced = False
        elif connection.in_transaction:
            connection.execute("ROLLBACK")
        connection.process = process
        return connection

    def check_tables(self, connection: apsw.Connection, path: Path) -> None:
        """Check the tables once for each connection: nobody changes them here."""
        if connection is not self._connection or not self._connection.is_checked:
            check_tables(connection, path)
        if self._connection is not None and connection is self._connection:
            self._connection.is_checked = True

    def stored(self, connection: "SimConnection") -> None:
        """Take what a COMMIT wrote, on stable storage unless told otherwise."""
        self._connection, self._image, self._is_replaced = connection, None, False
        self.commits += 1
        self.last_fact, self.last_batch = connection.last_numbers()
        if self._dice.random() < CHANCE_OF_A_COPY:
            self.copies.append(self.copy())
        if self.synchronous:
            self.durable = self.durable._replace(last_fact=self.last_fact)

    def sync(self) -> None:
        """Bring what was committed to stable storage, where nothing is synchronous."""
        self.durable = self.copy()

    def close(self) -> None:
        """Let go of what was opened; the bytes stay."""
        if self._connection is not None:
            self._image = self.image
            self._is_replaced = True
            self._connection.close(True)

    def has_intent(self, nonce: str) -> bool:
        """Whether stable storage holds an intent with this nonce: its facts are searched, the program is not asked."""
        return self._connection is not None and self._connection.has_intent(nonce, until=self.durable.last_fact)

    def lose_power(self) -> None:
        """Forget what was not on stable storage."""
        if not self.synchronous:
            self.put(self.durable)

    def reader(self) -> SqliteReader:
        """Look into the journal as it is on the disk, as `status` does between runs."""
        return SqliteReader(self._connected(None), _PATH)

    def batches(self) -> Sequence[BatchRecord]:
        """Return the batches of the journal on the disk."""
        return self.reader().batches()

    def kept_notifications(self) -> int:
        """Return how many notifications were judged in the journal on the disk."""
        ((count,),) = self._connected(None).execute(_KEPT)
        return int(count)

    def arrived(self) -> list[bytes]:
        """Return the notifications in the journal on the disk, by the hashes of their facts."""
        found = self._connected(None).execute("SELECT hash FROM fact WHERE kind = 'arrived' ORDER BY number")
        return [digest for (digest,) in found]

    def state_of(self, instruction: int) -> State:
        """Return the state of one instruction."""
        if self._connection is None:
            raise AssertionError("nobody has opened the journal")
        ((word,),) = self._connection.execute("SELECT state FROM state WHERE instruction = ?", (instruction,))
        return State(word)

    def states(self) -> set[State]:
        """Return which states rows are in."""
        return {one.state for batch in self.batches() for one in self.reader().rows(batch.number)}


def reader_of(image: bytes) -> SqliteReader:
    """Look into a copy of a journal."""
    connection = apsw.Connection(":memory:")
    connection.deserialize("main", image)
    configure(connection)
    return SqliteReader(connection, _PATH)


class SimConnection(apsw.Connection):
    """SQLite as one process has it: every statement is carried out, and a COMMIT is where things may befall it."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(":memory:", statementcachesize=STATEMENTS_KEPT)
        self.process: Process | None = None
        self._disk = disk
        self._is_writing = False
        self.deserialize("main", disk.image)
        configure(self)
        self.is_checked = False

    def begin_beside(self) -> None:
        """Begin a transaction of no process that is simulated, once what a dead one had not committed is undone."""
        if self.in_transaction:
            super().execute("ROLLBACK")
        self._is_writing = False
        super().execute("BEGIN")

    def last_numbers(self) -> tuple[int, int]:
        """Return the numbers of the last fact and of the last batch."""
        query = "SELECT coalesce((SELECT max(number) FROM fact), 0), coalesce((SELECT max(number) FROM batch), 0)"
        ((fact, batch),) = super().execute(query)
        return fact, batch

    def has_intent(self, nonce: str, *, until: int) -> bool:
        """Whether one of the facts up to number `until` names this nonce."""
        query = "SELECT 1 FROM fact WHERE number <= ? AND nonce = ?"
        return super().execute(query, (until, nonce)).fetchone() is not None

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
        if process.writes == process.dies_after_write:  # durable, and no one was told, and nothing is noted
            process.die()
            raise asyncio.CancelledError
        self._disk.last_known = self._disk.last_fact
        return result

    def _stored(self, process: "Process") -> apsw.Cursor:
        result, batches = super().execute("COMMIT"), self._disk.last_batch
        self._disk.stored(self)
        if self._disk.last_batch > batches:
            process.look_at_opened_batch()
        process.world.judge.look_at_write(process)
        return result


class SimLeft:
    """What left, as one process notes it."""

    def __init__(self, disk: Disk, process: "Process") -> None:
        self._disk = disk
        self._process = process

    def note(self, number: int, digest: str, at: str, noted: Sequence[Noted] = ()) -> None:
        """Remember how far the journal has come, and what may leave."""
        if self._process.dead:
            raise asyncio.CancelledError
        lines = self._disk.left = self._disk.left or []
        lines.append(LeftLine(len(lines) + 1, number, digest, at, tuple(noted)))

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
