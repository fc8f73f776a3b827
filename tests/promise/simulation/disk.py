"""The disk of the simulated machine: the journal's database, the sent log, the lock, and what survives a crash.

The journal is the real one, with its tables, statements and transactions. Only the file is simulated: it has what the
last connection committed. Uncommitted data of a killed process is lost, and committed data remains. The bytes of the
file are produced only when somebody needs them.
"""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.core.lifecycle import State
from paygw_batch.errors import JournalHeld, JournalNotAdopted
from paygw_batch.journal.adopt import find_present_lines
from paygw_batch.journal.file_location import empty_database, examine
from paygw_batch.journal.lost import Loss, LostRows, find_loss
from paygw_batch.journal.sent_log import RUN, LoggedAttempt, SentLog, SentLogLine
from paygw_batch.journal.sqlite.connect import MAX_CACHED_STATEMENTS, chain_end, check_tables, configure
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal, SqliteReader
from paygw_batch.journal.sqlite.sqlite_tables import SqliteTables, append_facts
from paygw_batch.journal.values import AdoptionNote, BatchRecord, ConcurrentNote, Identity, Link, Remark
from tests.promise.simulation.judge import row_of

if TYPE_CHECKING:
    from tests.promise.simulation.process import Process

ENDPOINT = EndpointIdentity.from_name("gateway.example/1")
_PATH = Path("simulated.sqlite3")
_KEPT = "SELECT count(*) FROM fact WHERE source = 'notification' AND NOT (finding = 'ambiguous' AND attempt IS NULL)"
"""One fact names an attempt for a notification that may be about several instructions."""
_NEW = Identity("5" * 32, ENDPOINT.name, "2026-11-20T00:00:00.000Z", str(_PATH))


class Copy(NamedTuple):
    """The bytes of a database, with the numbers of its last fact and last batch."""

    image: bytes
    last_fact: int = 0
    last_batch: int = 0


class Disk:
    """The storage that all processes of the machine share.

    `copies` are the database after some commits; a person may restore an older one. If `synchronous` is off, a power
    cut undoes the commits since the last sync. If it is on, as in the product, it undoes nothing.
    """

    def __init__(self, seed: int) -> None:
        self._dice = Random(~seed)  # noqa: S311 (dice of its own: copies change nothing else in a scenario)
        self._connection: SimConnection | None = None
        self._image: bytes | None = empty_database(_NEW)  # None means the connection's committed content
        self._is_replaced = True  # whether the connection is unaware of the replaced content
        self.commits = 0
        self.last_fact = self.last_batch = self.last_known = 0
        """`last_known` is the last fact of the newest database that any process continued from."""
        self.copies = [Copy(self.image)]
        self.durable = self.copies[0]
        """The content after a power cut without synchronous commits; its last fact number is always true."""
        self.sent_log: list[SentLogLine] | None = [SentLogLine(1, 0, _NEW.start.hash.hex(), "")]
        """The sent log of a journal created on this machine, or None for a new machine."""
        self.holders: set[Process] = set()
        self.synchronous = True
        self.heeds_sent_log = self.asks_whether_known = True

    @property
    def image(self) -> bytes:
        if self._image is None:
            assert self._connection is not None, "the disk has neither a file nor a connection to one"
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            self._image = self._connection.serialize("main")
        return self._image

    def copy(self) -> Copy:
        return Copy(self.image, self.last_fact, self.last_batch)

    def put(self, copy: Copy) -> None:
        self._image, self.last_fact, self.last_batch = self.durable = copy
        self._is_replaced = True

    def adopt(self, copy: Copy, at: str) -> bool:
        """Let a person adopt a copy for a lost database. Return whether the sent log still exists."""
        if self._dice.random() < 0.3:
            self.sent_log = None
        is_known = self.sent_log is not None
        self.put(copy)
        connection = self._connected(None)
        record = partial(append_facts, connection)
        lost = LostRows(SqliteTables(connection), self._loss(connection), by="amina", at=at)
        connection.execute("BEGIN")
        for facts in lost.decide(lost.numbers) if lost.numbers else ():
            record(facts)
        lost.record_unknown_order_ids(record)
        record([Remark(AdoptionNote("amina", str(_PATH)), at)])
        end = chain_end(connection)
        connection.execute("COMMIT")
        self.stored(connection)
        self.sync()
        self.log(end.seq, end.hash.hex(), at)
        self.last_known = self.last_fact
        return is_known

    def record_in_side_file(self, note: ConcurrentNote, at: str) -> Link | None:
        """Record a note as a concurrent process does. Return the chain's end, or None while the run writes."""
        connection = self._connection
        if connection is None or self._is_replaced:
            connection = self._connected(None)
        if connection.in_transaction and connection.process in self.holders:
            return None
        connection.begin_beside()
        append_facts(connection, [Remark(note, at)])
        end = chain_end(connection)
        connection.execute("COMMIT")
        self.stored(connection)
        self.last_known = self.last_fact
        self.log(end.seq, end.hash.hex(), at)
        return end

    def log(self, number: int, digest: str, at: str, attempts: Sequence[LoggedAttempt] = ()) -> None:
        lines = self.sent_log or []
        self.sent_log = [*lines, SentLogLine(len(lines) + 1, number, digest, at, tuple(attempts))]

    def states_by_row(self) -> list[tuple[int, State]]:
        rows = (row for batch in self.batches() for row in self.reader().rows(batch.number))
        return [(row_of(row.client_orderid), row.state) for row in rows]

    def _loss(self, connection: "SimConnection") -> Loss:
        """Return what was sent after the copy was made, according to the program's files."""
        first, *later = self.sent_log or [SentLogLine(1, 0, "", "")]
        with TemporaryDirectory() as folder:
            with closing(SentLog(Path(folder), RUN, (first.number, first.hash, first.at))) as sent_log:
                for line in later:
                    sent_log.log_commit(line.number, line.hash, line.at, line.attempts)
            return find_loss(Path(folder), partial(find_present_lines, connection))

    async def take_lock(self, process: "Process") -> None:
        if self.holders:
            raise JournalHeld
        self.holders.add(process)

    def open(self, process: "Process") -> SqliteJournal:
        """Open the journal for the process that has the lock. Raises as the program does."""
        connection = self._connected(process)
        seen = (self.sent_log or [])[-1:] if self.heeds_sent_log else []
        query_rows = examine(connection, _PATH, endpoint=ENDPOINT, sent_log=lambda _: seen)
        assert query_rows is not None, "the disk holds no journal"
        if self.sent_log is None and self.asks_whether_known:
            raise JournalNotAdopted
        sent_log, lock = SimulatedSentLog(self, process), ExitStack()
        sent_log.log_commit(*query_rows.end.log_fields)
        lock.callback(self.holders.discard, process)
        return process.scenario.journal_type(
            connection, _PATH, end=query_rows.end, sent_log=sent_log, lock=lock, notes=()
        )

    def _connected(self, process: "Process | None") -> "SimConnection":
        """Return a connection to the stored database: the last one, rolled back, if it fits, as opening is slow."""
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
        if connection is not self._connection or not self._connection.is_checked:
            check_tables(connection, path)
        if connection is self._connection:
            self._connection.is_checked = True

    def stored(self, connection: "SimConnection") -> None:
        self._connection, self._image, self._is_replaced = connection, None, False
        self.commits += 1
        query = "SELECT coalesce((SELECT max(number) FROM fact), 0), coalesce((SELECT max(number) FROM batch), 0)"
        ((self.last_fact, self.last_batch),) = connection.execute(query)
        if self._dice.random() < 0.3:
            self.copies.append(self.copy())
        if self.synchronous:
            self.durable = self.durable._replace(last_fact=self.last_fact)

    def sync(self) -> None:
        self.durable = self.copy()

    def close(self) -> None:
        if self._connection is not None:
            self._image, self._is_replaced = self.image, True
            self._connection.close(True)

    def has_intent(self, nonce: str) -> bool:
        return self._connection is not None and self._connection.has_intent(nonce, until=self.durable.last_fact)

    def reader(self) -> SqliteReader:
        return SqliteReader(self._connected(None), _PATH)

    def batches(self) -> Sequence[BatchRecord]:
        return self.reader().batches()

    def kept_notifications(self) -> int:
        ((count,),) = self._connected(None).execute(_KEPT)
        return int(count)

    def arrived(self) -> list[bytes]:
        """Return the notifications in the journal on the disk, by the hashes of their facts."""
        query = "SELECT hash FROM fact WHERE kind = 'arrived' ORDER BY number"
        return [digest for (digest,) in self._connected(None).execute(query)]

    def state_of(self, instruction: int) -> State:
        assert self._connection is not None, "nobody has opened the journal"
        ((word,),) = self._connection.execute("SELECT state FROM state WHERE instruction = ?", (instruction,))
        return State(word)


def reader_of(image: bytes) -> SqliteReader:
    connection = apsw.Connection(":memory:")
    connection.deserialize("main", image)
    configure(connection)
    return SqliteReader(connection, _PATH)


class SimConnection(apsw.Connection):
    def __init__(self, disk: Disk) -> None:
        super().__init__(":memory:", statementcachesize=MAX_CACHED_STATEMENTS)
        self.process: Process | None = None
        self._disk = disk
        self._is_writing = False
        self.deserialize("main", disk.image)
        configure(self)
        self.is_checked = False

    def begin_beside(self) -> None:
        """Begin a transaction of no simulated process, after rolling back a dead one's."""
        if self.in_transaction:
            super().execute("ROLLBACK")
        self._is_writing = False
        super().execute("BEGIN")

    def has_intent(self, nonce: str, *, until: int) -> bool:
        query = "SELECT 1 FROM fact WHERE number <= ? AND nonce = ?"
        return super().execute(query, (until, nonce)).fetchone() is not None

    def execute(self, statements: str, *arguments: Any, **named: Any) -> apsw.Cursor:
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
        if process.writes == process.dies_after_write:  # durable, but neither reported nor recorded
            process.die()
            raise asyncio.CancelledError
        self._disk.last_known = self._disk.last_fact
        return result

    def _stored(self, process: "Process") -> apsw.Cursor:
        result, batches = super().execute("COMMIT"), self._disk.last_batch
        self._disk.stored(self)
        if self._disk.last_batch > batches:
            for sheet, number, was_rejected in process.amends:
                process.scenario.judge.amend(sheet, number, was_rejected=was_rejected)
            process.amends = ()
        process.scenario.judge.check_write(process)
        return result


class SimulatedSentLog:
    def __init__(self, disk: Disk, process: "Process") -> None:
        self._disk = disk
        self._process = process

    def log_commit(self, number: int, digest: str, at: str, attempts: Sequence[LoggedAttempt] = ()) -> None:
        if self._process.dead:
            raise asyncio.CancelledError
        self._disk.log(number, digest, at, attempts)

    def close(self) -> None:
        """Do nothing: no file is held."""
