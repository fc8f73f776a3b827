"""Reads and writes the journal in a file.

Every write is one transaction. It is durable and in the sent log before the call returns, and so before any request
that depends on it is sent. In addition to the lock, the chain rules out a second writer: each fact number is used once.

An engine makes one call at a time. It appends facts in the event loop, because two busy threads would exchange the GIL
at every statement, which costs more than it saves. If the disk is slow, only the commit runs in a thread. On a fast
disk, the commit ends before a thread could reacquire the GIL (docs/decisions/0051).
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apsw

from paygw_batch.core.evidence import Evidence, Finding
from paygw_batch.core.lifecycle import Intended, Interrupted, Released, Replaced, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import HolderKind, InternalError, JournalCorrupt, JournalError, JournalUnwritable, OutputError
from paygw_batch.files import create_temporary_file, sync_directory
from paygw_batch.journal.facts import CONCURRENT_KINDS
from paygw_batch.journal.journal import Journal, JournalReader
from paygw_batch.journal.lock import LockHolder, RunLock, journal_holder
from paygw_batch.journal.new_batch import BatchPart, OpeningDigests
from paygw_batch.journal.outbox import OUTBOX_PARTS, Outbox
from paygw_batch.journal.port import RowBeingSent, SerializedCalls, VerifyProgress
from paygw_batch.journal.sent_log import (
    LoggedAttempt,
    SentLogWriter,
    attempts_to_log,
    log_failure_reason,
    unwritable_message,
)
from paygw_batch.journal.sqlite import connect
from paygw_batch.journal.sqlite.connect import (
    chain_end,
    failure_reason,
    fetch,
    prevent_writes_on_close,
    transaction_without_lock,
    translating_conflicts,
)
from paygw_batch.journal.sqlite.sqlite_tables import (
    SqliteTables,
    disabling_guards,
    rebuild_payee_index,
    scrub,
    store_batch,
    write_facts,
)
from paygw_batch.journal.sqlite.verify import verify
from paygw_batch.journal.tables import ON_SQLITE, named_sql
from paygw_batch.journal.values import (
    BatchRecord,
    Entry,
    KnownRow,
    Link,
    MoveResult,
    NewNotice,
    PaymentSearch,
    PaymentsToForget,
    RemainingData,
    Remark,
    StoredNotice,
)
from paygw_batch.language import say

_QUERIES = named_sql(__package__, ("outbox.sql",), OUTBOX_PARTS, ON_SQLITE)
_HELD_BY_RUN = 1
"""The `process` of a notice whose run may still hold the file."""


class FileOutbox(Outbox):
    """The outbox on a connection to the journal at `path`, which the caller closes.

    If a run in this process holds the file, `begin` returns a transaction of that run.
    """

    def __init__(
        self, connection: apsw.Connection, path: Path, begin: Callable[[], AbstractContextManager[None]] | None = None
    ) -> None:
        self._connection, self._path = connection, path
        self._transaction = begin or partial(transaction_without_lock, connection, path)

    def add_for_run(self, notices: Iterable[NewNotice], at: str) -> None:
        """Store the notices of a run that is about to send. It holds the journal, so earlier runs have ended."""
        with self._write_transaction():
            self._query("end_runs")
            self._add(notices, at, _HELD_BY_RUN)

    def due(self, now: datetime, *, limit: int) -> list[StoredNotice]:
        """Return the notices that may be sent now. A run's notices are due when no run holds the journal."""
        ((newest,),) = self._query("newest_of_run")  # read before `_is_free`, because a starting run may add one
        return self._due(now, limit=limit, over=newest if newest is not None and _is_free(self._path) else 0)

    def _query(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        return fetch(self._connection, _QUERIES[name], values)

    def _write_transaction(self) -> AbstractContextManager[None]:
        return self._transaction()


def _is_free(journal: Path) -> bool:
    """Return whether no run holds the journal. A listener may hold it, because it sends nothing."""
    holder = journal_holder(journal)
    return holder is None or holder.kind is HolderKind.LISTENER


class SqliteReader(JournalReader):
    """A journal in a file, opened for reading."""

    def __init__(self, connection: apsw.Connection, path: Path, notes: tuple[str, ...] = ()) -> None:
        super().__init__(SqliteTables(connection), notes)
        self.path = path
        self._connection = connection

    def rows_being_sent(self, batch: int) -> Sequence[RowBeingSent]:
        """Return the batch's rows in flight if a live run holds the journal.

        All of them belong to this run, because it put earlier runs' rows in doubt. The holder is read before and after
        the rows. If it has changed, the run has ended, so its rows are not being sent.
        """
        run = self._current_run()
        if run is None:
            return ()
        rows = [
            RowBeingSent(row.instruction, row.row, row.country, row.currency, row.minor)
            for row in self.rows(batch, states={State.IN_FLIGHT})
        ]
        return rows if self._current_run() == run else ()

    def _current_run(self) -> LockHolder | None:
        holder = journal_holder(self.path)
        return holder if holder is not None and holder.kind is HolderKind.RUN else None

    def backup(self, path: Path) -> None:
        """Write a private copy of the journal to `path` atomically, even during a run.

        The copy is for safekeeping and for `verify`. No run can use it while the original exists, or if the original
        had newer facts. SQLite makes the copy, because the file without its log may lack data. Raises
        `OutputError` if the copy cannot be written or `path` exists.
        """
        if os.path.lexists(path):
            raise OutputError(
                say("{path} already exists.", path=path), hint=say("Choose a file that does not exist yet.")
            )
        try:
            temporary = create_temporary_file(path)
            try:
                _copy_database(self._connection, temporary)
                os.link(temporary, path)  # unlike a rename, never replaces a file
                sync_directory(path.parent)
            finally:
                temporary.unlink(missing_ok=True)
        except (OSError, apsw.FullError, apsw.CantOpenError, apsw.ReadOnlyError) as error:
            message = say("The copy {journal} cannot be written: {error}.", journal=path, error=error)
            raise OutputError(message) from None

    def close(self) -> None:
        # All commits are already durable. If the log cannot be emptied now, the next run empties it.
        with suppress(apsw.Error):
            self._connection.close()

    def _chain_end(self) -> tuple[int, str]:
        end = chain_end(self._connection)
        return end.seq, end.hash.hex()

    def _search_expression(self, search: PaymentSearch) -> str:
        """Convert a search to a full-text query. Words are quoted, so that none acts as an operator."""
        groups = (" OR ".join(_quote_word(word) for word in alternatives) for alternatives in search.words)
        return " AND ".join(f"({group})" for group in groups)

    def _verify(self, progress: VerifyProgress) -> Mapping[str, int]:
        return verify(self._connection, self.path, in_parallel=True, progress=progress)

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        with self._translating_errors():
            if self._connection.in_transaction:
                yield
                return
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._connection.execute("COMMIT")

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        try:
            yield
        except (apsw.CorruptError, apsw.NotADBError) as error:
            raise JournalCorrupt(say("The journal {path} is damaged: {error}.", path=self.path, error=error)) from None
        except apsw.Error as error:
            message = say("The journal {path} cannot be read: {error}.", path=self.path, error=error)
            raise JournalError(message) from None


def _quote_word(word: str) -> str:
    text = word.removesuffix("*").replace('"', '""')
    return f'"{text}"{"*" if word.endswith("*") else ""}'


def _copy_database(source: apsw.Connection, path: Path) -> None:
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW
    with closing(apsw.Connection(str(path), flags=flags)) as target, target.backup("main", source, "main") as backup:
        while not backup.done:
            backup.step()
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class SqliteJournal(SqliteReader, Journal):
    """A journal in a file, held by a run. Not thread-safe. Read-only after a failed write and in forked processes."""

    def __init__(
        self,
        connection: apsw.Connection,
        path: Path,
        *,
        end: Link,
        sent_log: SentLogWriter,
        lock: RunLock | ExitStack,
        notes: tuple[str, ...],
    ) -> None:
        super().__init__(connection, path, notes)
        self._end = self._logged_end = end
        self._attempts_to_log: list[LoggedAttempt] = []
        """The attempts that may be sent once the open transaction is committed."""
        self._sent_log = sent_log
        self._lock = lock
        self._process = os.getpid()
        self._failure: str | None = None
        self._has_new_evidence = False

    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Append facts as `EngineJournal` does. Raises `InternalError` for releases and replacements."""
        return self.stage(entries)()

    def stage(self, entries: Sequence[Entry]) -> Callable[[], Sequence[MoveResult]]:
        """Append facts without committing them. Returns a function that commits, which may run in another thread.

        Nothing is durable, and the journal must not be used, until that function returns.
        """
        if any(isinstance(entry.fact, Released | Replaced) for entry in entries):
            raise InternalError("a release or a replacement cannot be appended by itself")
        if not entries:
            return list
        self._require_writable()
        end = self._end
        with self._rolling_back(end):
            self._begin()
            results = [result for part in _split_entries(entries) for result in self._stage_part(part)]

        def commit() -> Sequence[MoveResult]:
            with self._rolling_back(end):
                self._commit()
            return results

        return commit

    def try_begin(self, *, wait: bool) -> bool:
        """Begin the transaction for the next `stage`. Without `wait`, returns False if another process is writing."""
        self._require_writable()
        self._connection.set_busy_timeout(WRITER_TIMEOUT_MS if wait else 0)
        try:
            with self._rolling_back(self._end) if wait else suppress(apsw.Error):
                self._connection.execute("BEGIN IMMEDIATE")
        finally:
            self._connection.set_busy_timeout(WRITER_TIMEOUT_MS)
        return self._connection.in_transaction

    def mark_interrupted(self, at: str) -> int:
        in_flight = self._query("in_flight")
        self.append([Entry(number, attempt, Interrupted(), at) for number, attempt in in_flight])
        return len(in_flight)

    @contextmanager
    def open_engine_journal(self) -> "Iterator[SqliteEngineJournal]":
        with closing(SqliteEngineJournal(self)) as engine_journal:
            yield engine_journal

    def schedule_end_notices(self, notices: Sequence[NewNotice], at: str) -> None:
        FileOutbox(self._connection, self.path, self._write_transaction).add_for_run(notices, at)

    def scrub(self) -> RemainingData:
        if not self.path.is_file():
            return RemainingData.NOWHERE
        with self._translating_errors():
            is_clean = scrub(self._connection, self.path)
        return RemainingData.NOWHERE if is_clean else RemainingData.IN_LOG

    def move_transaction(self, destination: str) -> AbstractContextManager[None]:
        return connect.move_transaction(self._connection, destination)

    def record_evidence(
        self, evidence: Sequence[Evidence], words: Mapping[str, OutcomeKind], *, at: str
    ) -> Sequence[Finding]:
        """Record evidence. From now on, intents are checked against evidence, because it may hold their rows."""
        self._has_new_evidence = True
        return super().record_evidence(evidence, words, at=at)

    def close(self) -> None:
        try:
            super().close()
            self._sent_log.close()
        finally:
            self._lock.close()

    def _stage_part(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        refusals = self._refused_intents(entries)
        accepted = [entry for index, entry in enumerate(entries) if index not in refusals]
        moves = (MoveResult.MOVED if has_moved else MoveResult.NOT_MOVED for *_, has_moved in self._record(accepted))
        return [refusals.get(index) or next(moves) for index in range(len(entries))]

    def _refused_intents(self, entries: Sequence[Entry]) -> Mapping[int, MoveResult]:
        """Return refused intents' results by index: the row is held, or the attempt is not its next one."""
        intents = [
            (index, entry.instruction, [entry.attempt, entry.fact.order_id])
            for index, entry in enumerate(entries)
            if isinstance(entry.fact, Intended)
        ]
        if not intents:
            return {}
        numbers = sorted({number for _, number, _ in intents})
        next_attempts = {number: next_attempt for number, *next_attempt in self._tables.run("ready", numbers=numbers)}
        # Rows already held when this process opened the journal are not due, so only newer evidence matters.
        contested = self._evidence.find_contested(numbers) if self._has_new_evidence else frozenset[int]()
        refusals = {}
        for index, number, attempt in intents:
            if number in contested:
                refusals[index] = MoveResult.HELD
            # An intent must have the row's next attempt number and order id. A second intent would send the row twice.
            elif next_attempts.pop(number, None) != attempt:
                refusals[index] = MoveResult.NOT_MOVED
        return refusals

    def _store_batch(
        self,
        record: BatchRecord,
        plan_sha256: str,  # noqa: ARG002 (in the fact that opens the batch)
        digests: OpeningDigests,
        parts: Iterable[BatchPart],
        known_rows: Iterable[KnownRow],
        replaced: Mapping[int, int],
    ) -> BatchRecord:
        with translating_conflicts(f"batch {record.batch} is already open, or a row or an order id of it is taken"):
            store_batch(self._connection, record, digests, parts, known_rows, replaced)
        return record

    @contextmanager
    def _forget_transaction(self, payments: PaymentsToForget) -> Iterator[None]:  # noqa: ARG002 (a file has one writer)
        self._connection.pragma("secure_delete", 1)
        with self._write_transaction(), disabling_guards(self._connection):
            yield
            rebuild_payee_index(self._connection)

    def _record(self, entries: Sequence[Entry | Remark]) -> list[tuple[int, str, bool]]:
        last_seq = self._end.seq
        message = "a fact names an instruction that the journal does not have"
        with translating_conflicts(message, apsw.SQLITE_CONSTRAINT_FOREIGNKEY):
            lines = write_facts(self._connection, entries, self._end)
        if lines:
            self._end = Link(lines[-1].seq, lines[-1].hash, lines[-1].at)
            self._attempts_to_log += attempts_to_log(entries)
        contradicted = {fact for (fact,) in self._tables.run("contradicted", before=last_seq)}
        return [(line.seq, line.at, line.seq not in contradicted) for line in lines]

    @contextmanager
    def _write_transaction(self) -> Iterator[None]:
        self._require_writable()
        with self._rolling_back(self._end):
            self._begin()
            yield
            self._commit()

    def _begin(self) -> None:
        """Begin a transaction. Raises `JournalUnwritable` if another process wrote anything but concurrent notes."""
        if not self._connection.in_transaction:  # `try_begin` may have begun it
            self._connection.execute("BEGIN IMMEDIATE")
        if fetch(self._connection, "SELECT max(number) FROM fact") == [(self._end.seq or None,)]:
            return
        end = chain_end(self._connection)
        foreign_facts = "SELECT 1 FROM fact WHERE number > ? AND kind NOT IN (?, ?) LIMIT 1"
        if end.seq < self._end.seq or fetch(self._connection, foreign_facts, (self._end.seq, *CONCURRENT_KINDS)):
            self._roll_back()
            raise self._disable_writes(say("another process has written to it"))
        self._end = end

    def _commit(self) -> None:
        # The commit comes first. After a crash in between, the sent log lacks facts of the journal. This is harmless,
        # because nothing was sent. A log line without its commit would make the journal look like an older copy.
        self._connection.execute("COMMIT")
        self._log_commit(self._end)

    @contextmanager
    def _rolling_back(self, end: Link) -> Iterator[None]:
        """If the block raises, roll back the transaction and reset the end of the chain to `end`."""
        try:
            yield
        except apsw.Error as error:
            self._roll_back()
            raise self._disable_writes(failure_reason(error)) from None
        except BaseException:
            if self._connection.in_transaction:
                self._roll_back()
                self._end, self._attempts_to_log = end, []
            else:  # the commit is durable but not in the sent log
                self._disable_writes(say("a write was interrupted"))
            raise

    def _log_commit(self, end: Link) -> None:
        if end == self._logged_end:
            return
        try:
            self._sent_log.log_commit(*end.log_fields, self._attempts_to_log)
        except OSError as error:
            raise self._disable_writes(log_failure_reason(error)) from None
        self._logged_end, self._attempts_to_log = end, []

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except apsw.Error as error:
            self._disable_writes(failure_reason(error))

    def _disable_writes(self, reason: str) -> JournalUnwritable:
        """Keep this process from writing again, and return the error to raise."""
        if self._failure is None:
            self._failure = unwritable_message(self.path, reason)
            prevent_writes_on_close(self._connection)
        return JournalUnwritable(self._failure)

    def can_write(self) -> bool:
        """Return whether no write has failed and this process opened the journal."""
        return self._failure is None and os.getpid() == self._process

    def _require_writable(self) -> None:
        if self._failure is not None:
            raise JournalUnwritable(self._failure)
        if os.getpid() != self._process:
            raise InternalError("a journal was written from a process that did not open it")


def _split_entries(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """Split entries so that no intent is in the same part as an earlier fact about its instruction."""
    start, seen = 0, set[int]()
    for index, entry in enumerate(entries):
        if entry.instruction in seen and isinstance(entry.fact, Intended):
            yield entries[start:index]
            start, seen = index, set()
        seen.add(entry.instruction)
    yield entries[start:]


T = TypeVar("T")

WRITER_TIMEOUT_MS = 60_000
"""How long a run waits for a process that records notes. Such a process does not wait as long."""
FAST_COMMIT_S = 0.001
"""A disk is fast if recent commits took less time than this on average."""
_COMMITS_AVERAGED = 16
_FIRST_AVERAGE_S = 2 * FAST_COMMIT_S
"""The initial average. A run commits in the thread until about twelve fast commits have lowered the average."""


class SqliteEngineJournal(SerializedCalls):
    """Implements `EngineJournal` for a run on a journal in a file, without blocking the event loop."""

    _journal: SqliteJournal

    def __init__(self, journal: SqliteJournal, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(journal)
        self._clock = clock
        self._commit_s = _FIRST_AVERAGE_S

    async def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Append facts in the event loop. If the disk is slow, commits them in the thread."""
        async with self._lock:
            # The event loop must not wait for a process that records notes, because it may be frozen while writing.
            if entries and not self._journal.try_begin(wait=False):
                await self._thread.call(partial(self._journal.try_begin, wait=True))
            commit = partial(self._time_commit, self._journal.stage(entries))
            return commit() if self._commit_s < FAST_COMMIT_S else await self._thread.call(commit)

    def may_send(self, age_s: float) -> bool:  # noqa: ARG002 (an argument of the interface)
        """Return whether no write has failed. Ignores the age, because this process keeps the lock until it ends."""
        return self._journal.can_write()

    def _time_commit(self, commit: Callable[[], T]) -> T:
        start_s = self._clock()
        try:
            return commit()
        finally:
            self._commit_s += (self._clock() - start_s - self._commit_s) / _COMMITS_AVERAGED
