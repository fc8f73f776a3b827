"""Reads and writes a journal in PostgreSQL, and provides it to engines without blocking the event loop.

A single run sends all due rows of its batch (`PostgresEngineJournal`). A worker sends only due rows that it has claimed
(`WorkerEngineJournal`). If two processes try to send the same row, the database accepts only one intent, and the other
process skips the row.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

import psycopg
from psycopg import Connection, IsolationLevel
from psycopg.pq import TransactionStatus

from paygw_batch.clock import timestamp, utc_now
from paygw_batch.core.batch import derived_reference
from paygw_batch.core.evidence import Finding
from paygw_batch.core.lifecycle import Concluded, Intended, Released, Replaced
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.core.text import normalise_spelling
from paygw_batch.errors import InternalError
from paygw_batch.journal.journal import Journal, JournalReader
from paygw_batch.journal.new_batch import BatchPart, OpeningDigests, new_salts, prefetch
from paygw_batch.journal.outbox import OUTBOX_PARTS, Outbox
from paygw_batch.journal.port import (
    RowBeingSent,
    SendingJournal,
    SerializedCalls,
    SharedRun,
    UnfinishedRun,
    VerifyProgress,
    WorkerStatus,
)
from paygw_batch.journal.postgres import workers
from paygw_batch.journal.postgres.fact_writer import FactWriter
from paygw_batch.journal.postgres.session import (
    PostgresTables,
    Row,
    Session,
    fetch,
    payee_search_words,
    search_words,
    translating_conflicts,
    translating_errors,
)
from paygw_batch.journal.postgres.verify import verify_journal
from paygw_batch.journal.states import due_rows
from paygw_batch.journal.tables import ON_POSTGRES, named_sql
from paygw_batch.journal.values import (
    Amendment,
    BatchRecord,
    DueRow,
    Entry,
    Identity,
    KnownRow,
    MoveResult,
    NewBatch,
    NewNotice,
    PaymentSearch,
    PaymentsToForget,
    RemainingData,
    Remark,
    TallyKind,
)

T = TypeVar("T")


class PostgresEngineJournal(SerializedCalls):
    """Implements `EngineJournal` for a single run on a journal in PostgreSQL."""

    def __init__(self, journal: SendingJournal, may_send: Callable[[float], bool]) -> None:
        super().__init__(journal)
        self.may_send = may_send

    async def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        return await self.call(partial(self._append, entries))

    def _append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Append facts. An intent's result is HELD if another process moved its row after the row was read as due."""
        return [
            MoveResult.HELD if isinstance(entry.fact, Intended) and result is MoveResult.NOT_MOVED else result
            for entry, result in zip(entries, self._journal.append(entries), strict=True)
        ]


class WorkerEngineJournal(PostgresEngineJournal):
    """Implements `EngineJournal` for a worker in a shared run."""

    def __init__(
        self,
        journal: SendingJournal,
        may_send: Callable[[float], bool],
        claim: Callable[[Sequence[DueRow], int], Sequence[DueRow]],
        rows: int,
    ) -> None:
        """Start with `rows` rows already sent. `claim` takes due rows and the number sent, and returns claimed rows."""
        super().__init__(journal, may_send)
        self._claim = claim
        self.rows = rows

    def _next_page(self, batch: int, limit: int) -> Sequence[DueRow]:
        while page := super()._next_page(batch, limit):
            if rows := self._claim(page, self.rows):
                return rows
        return ()

    def _append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        results = super()._append(entries)
        conclusions = (entry.fact for entry in entries if isinstance(entry.fact, Concluded))
        self.rows += sum(fact.outcome.kind is not OutcomeKind.NOT_SENT for fact in conclusions)
        return results


_QUERIES = named_sql(__package__, ("outbox.sql",), OUTBOX_PARTS, ON_POSTGRES, is_psycopg=True)


class PostgresOutbox(Outbox):
    """The outbox on a connection, which the caller closes. Writes join the open transaction, if any."""

    def __init__(self, connection: Connection[Row]) -> None:
        self._connection = connection

    def add_for_run(self, notices: Iterable[NewNotice], at: str, process: int) -> None:
        """Store the notices of a run that is about to send. They are due once the run and `process` have ended."""
        with self._write_transaction():
            self._add(notices, at, process)

    @property
    def may_send(self) -> bool:
        """Whether the database login may mark notices as sent. A worker's login may not."""
        return self._query("may_decide") == [(True,)]

    def _query(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        return fetch(self._connection, _QUERIES[name], values)

    def _write_transaction(self) -> AbstractContextManager[object]:
        return self._connection.transaction()


class PostgresReader(JournalReader):
    """A journal in PostgreSQL. A reader sees a single snapshot, and a writer a new one for each call."""

    def __init__(self, session: Session, identity: Identity, notes: tuple[str, ...] = ()) -> None:
        super().__init__(PostgresTables(lambda: session.connection, identity), notes)
        self._session = session
        self._identity = identity

    def workers(self) -> Sequence[WorkerStatus]:
        with self._snapshot() as connection:
            return workers.list_workers(connection)

    def current_runs(self) -> Sequence[UnfinishedRun]:
        with self._snapshot() as connection:
            runs = workers.unfinished_runs(connection)
        records = {record.number: record for record in self.batches()} if runs else {}
        unfinished = []
        for run in runs:
            record, due = records[run.batch], self.tallies(run.batch, kind=TallyKind.DUE)
            rows_left, is_stopped = sum(tally.count for tally in due), run.stop_reason is not None
            unfinished.append(UnfinishedRun(record.batch, record.sheet_name, rows_left, run.is_urgent, is_stopped))
        return unfinished

    def close(self) -> None:
        self._session.close()

    def _chain_end(self) -> tuple[int, str]:
        fact_count, combined_hash = 0, hashlib.sha256(self._identity.start.hash)
        for number, seq, digest in self._tables.run("chain_ends"):
            combined_hash.update(f"{number}\n{seq}\n".encode() + digest)
            fact_count += seq
        return fact_count, combined_hash.hexdigest()

    def rows_being_sent(self, batch: int) -> Sequence[RowBeingSent]:
        with self._snapshot() as connection:
            return workers.rows_being_sent(connection, batch)

    def _search_expression(self, search: PaymentSearch) -> str:
        """Convert a search to a text-search query. Words are quoted, so that none acts as an operator."""
        groups = []
        for alternatives in search.words:
            group = []
            for word in alternatives:
                parts = search_words([word.removesuffix("*")])
                suffix = ":*" if word.endswith("*") else ""
                group.append(" & ".join(f"'{part}'{suffix}" for part in parts))
            groups.append(" | ".join(f"({term})" for term in group if term))
        return " & ".join(f"({group})" for group in groups) if groups and all(groups) else ""

    def _verify(self, progress: VerifyProgress) -> Mapping[str, int]:
        return verify_journal(self._session.connection, self._identity, progress)

    def _translating_errors(self) -> AbstractContextManager[object]:
        return translating_errors(self._session.server)

    @contextmanager
    def _snapshot(self) -> Iterator[Connection[Row]]:
        connection = self._session.connection
        with translating_errors(self._session.server):
            if connection.info.transaction_status != TransactionStatus.IDLE:
                yield connection
                return
            connection.isolation_level, connection.read_only = IsolationLevel.REPEATABLE_READ, True
            try:
                with connection.transaction():
                    yield connection
            finally:
                if not connection.closed:
                    connection.isolation_level, connection.read_only = None, None


_COPY_INSTRUCTIONS = """COPY instruction (number, batch, row, client_orderid, country, currency, minor, replaces,
    amount, form, fields, payee, content, salt, people_sha256) FROM STDIN"""


def store_batch(
    connection: Connection[Row],
    record: BatchRecord,
    plan_sha256: str,
    digests: OpeningDigests,
    parts: Iterable[BatchPart],
    known_rows: Iterable[KnownRow],
    replaced: Mapping[int, int],
) -> str:
    """Store a batch except its opening fact. Returns the reference from which its order ids derive, or empty."""
    batch = record.number
    first = digests.first_instruction
    with closing(prefetch(parts)) as prefetched:
        for part in prefetched:
            for page in part.pages:
                fetch(connection, "INSERT INTO page VALUES (%s, %s, %s)", (batch, digests.pages, page))
                digests.add_page(page)
            first_of_part = digests.next_instruction
            salts = new_salts(len(part.instructions))
            payee_digests = digests.add_instructions(part.instructions, replaced, salts)
            new_lines = zip(part.instructions, salts, payee_digests, strict=True)
            with connection.cursor() as cursor, cursor.copy(_COPY_INSTRUCTIONS) as copy:
                for number, (instruction, *digest_columns) in enumerate(new_lines, start=first_of_part):
                    row, client_orderid, country, currency, amount, minor, *values = instruction
                    stored_columns = (row, client_orderid, country, currency, minor, replaced.get(row), amount, *values)
                    copy.write_row((number, batch, *stored_columns, *digest_columns))
    next_number = first
    reference = ""
    query = "SELECT number, client_orderid, fields, replaces FROM instruction WHERE number >= %s AND number < %s"
    while lines := fetch(connection, f"{query} ORDER BY number", (next_number, next_number + 10_000)):
        if next_number == first:
            reference = derived_reference(lines[0][1]) or ""
        _copy_ids_and_words(connection, record.operation, lines)
        next_number = lines[-1][0] + 1
    with connection.cursor() as cursor, cursor.copy("COPY known FROM STDIN") as copy:
        for known_row in sorted(known_rows, key=attrgetter("row")):
            digests.add_known(known_row)
            copy.write_row((batch, known_row.row, known_row.instruction))
    batch_columns = (batch, record.batch, record.operation, record.sheet_name, record.sheet_sha256, record.rows)
    opening_columns = (record.defects, record.opened_at, record.sheet_path, plan_sha256, reference)
    fetch(connection, f"INSERT INTO batch VALUES ({', '.join(['%s'] * 11)})", (*batch_columns, *opening_columns))  # noqa: S608 - only placeholders
    query = """INSERT INTO state (instruction, batch, country, currency, minor)
        SELECT number, batch, country, currency, minor FROM instruction WHERE number >= %s AND number < %s ORDER BY 1"""
    fetch(connection, query, (first, next_number))
    duplicate_query = "SELECT FROM instruction i JOIN known k USING (batch, row) WHERE i.batch = %s LIMIT 1"
    if fetch(connection, duplicate_query, (batch,)):
        raise InternalError("a row of a batch is both new and known")
    return reference


def _copy_ids_and_words(connection: Connection[Row], operation: str, lines: list[Row]) -> None:
    new_ids = sorted((client_orderid, number) for number, client_orderid, _, replaces in lines if replaces is None)
    with connection.cursor() as cursor, cursor.copy("COPY order_id FROM STDIN") as copy:
        for client_orderid, number in new_ids:
            copy.write_row((operation, client_orderid, number, normalise_spelling(client_orderid)))
    numbers = [line[0] for line in lines]
    words = [" ".join(payee_search_words(line[2])) for line in lines]
    query = """INSERT INTO payee_words
        SELECT number, array_to_tsvector(string_to_array(nullif(words, ''), ' ')) FROM unnest(%s::bigint[], %s::text[])
        u(number, words) WHERE words <> ''"""
    fetch(connection, query, (numbers, words))


@dataclass(frozen=True, slots=True)
class OfferedRun:
    """A shared run, as seen by the command that started it."""

    number: int
    writer: FactWriter

    def read_state(self) -> SharedRun:
        """Return the run's state. First ends the run if it was stopped and no worker is sending for it."""

        def end_or_load(connection: Connection[Row]) -> SharedRun:
            run = workers.load_run(connection, self.number)
            if run.stop_reason is None or run.is_finished:
                return run
            workers.end_finished_run(connection, self.number)
            return workers.load_run(connection, self.number)

        return self.writer.retry(end_or_load)

    def has_workers(self) -> bool:
        return self.writer.retry(lambda connection: any(worker.is_alive for worker in workers.list_workers(connection)))

    def stop(self, reason: str) -> None:
        self.writer.retry(lambda connection: workers.stop_run(connection, self.number, reason))


class PostgresJournal(PostgresReader, Journal):
    """A journal in PostgreSQL, held by a run. Not thread-safe."""

    def __init__(self, session: Session, identity: Identity, writer: FactWriter, notes: tuple[str, ...] = ()) -> None:
        super().__init__(session, identity, notes)
        self.writer = writer

    def open_batch(
        self,
        batch: NewBatch,
        *,
        parts: Iterable[BatchPart],
        known: Iterable[KnownRow],
        amendments: Iterable[Amendment],
        at: str,
    ) -> BatchRecord:
        """Store a batch and update the server's statistics."""
        record = super().open_batch(batch, parts=parts, known=known, amendments=amendments, at=at)
        with suppress(psycopg.Error):  # with outdated statistics, the server would scan whole batches
            fetch(self._session.connection, "ANALYZE instruction, known, order_id, state")
        return record

    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Append facts as `EngineJournal` does. Raises `InternalError` for releases and replacements."""
        if any(isinstance(entry.fact, Released | Replaced) for entry in entries):
            raise InternalError("a release or a replacement cannot be appended by itself")
        return self.writer.append(entries)

    def due(self, batch: int, *, after_row: int = 0, limit: int) -> Sequence[DueRow]:
        return self.writer.retry(lambda _: due_rows(self._tables, batch, after_row, limit))

    def mark_interrupted(self, at: str) -> int:
        return self.writer.mark_interrupted(at)

    def start_shared_run(self, batch: int, *, can_wait: bool = False, is_urgent: bool = False) -> OfferedRun | None:
        if not can_wait and not any(worker.is_alive for worker in self.workers()):
            self.writer.retry(partial(workers.end_current_run, batch=batch, process=self.writer.process))
            return None
        start = partial(workers.start_run, batch=batch, process=self.writer.process, is_urgent=is_urgent)
        run = self.writer.retry(start, is_long=True)
        self.writer.release_decision_lock()
        return OfferedRun(run.number, self.writer)

    def schedule_end_notices(self, notices: Sequence[NewNotice], at: str) -> None:
        self.writer.retry(lambda connection: PostgresOutbox(connection).add_for_run(notices, at, self.writer.process))

    def reacquire_lock(self) -> None:
        if not self.writer.has_decision_lock:
            self.writer.acquire_decision_lock()

    @contextmanager
    def open_engine_journal(self) -> Iterator[PostgresEngineJournal]:
        with closing(PostgresEngineJournal(self, self.writer.may_send)) as engine_journal:
            yield engine_journal

    def gate(self) -> workers.PostgresGate:
        return workers.PostgresGate(self._session.server, self.writer.process)

    def scrub(self) -> RemainingData:
        """Do nothing, because old lines remain until the tables' owner rewrites them."""
        return RemainingData.IN_DATABASE

    def close(self) -> None:
        try:
            self.writer.close()
        finally:
            super().close()

    @contextmanager
    def _write_transaction(self) -> Iterator[None]:
        """Run the block in a decision transaction. Its facts are not dated before any existing fact."""
        with self.writer.decision_transaction():
            ((newest,),) = self._tables.run("newest_fact_time")
            self.writer.advance_time(newest or "")
            yield

    def _store_batch(
        self,
        record: BatchRecord,
        plan_sha256: str,
        digests: OpeningDigests,
        parts: Iterable[BatchPart],
        known_rows: Iterable[KnownRow],
        replaced: Mapping[int, int],
    ) -> BatchRecord:
        connection = self._session.connection
        with translating_conflicts(f"batch {record.batch} is already open, or a row or an order id of it is taken"):
            reference = store_batch(connection, record, plan_sha256, digests, parts, known_rows, replaced)
        return replace(record, reference=reference)

    @contextmanager
    def _forget_transaction(self, payments: PaymentsToForget) -> Iterator[None]:
        with self._write_transaction():
            for batch in payments.batches:
                self._tables.run("begin_forgetting", batch=batch)
            yield
            self._tables.run("forget_plans", before=payments.before)

    def _record(self, entries: Sequence[Entry | Remark]) -> Sequence[tuple[int, str, bool]]:
        return self.writer.record(entries)


class WorkerJournal(PostgresJournal):
    """The journal for a worker. Not thread-safe."""

    run: SharedRun | None = None
    sent_rows = 0
    _engine_journal: WorkerEngineJournal | None = None

    def join_run(self, runs: Sequence[SharedRun] | None = None) -> SharedRun | None:
        """Join the first of `runs` (all runs if None) that needs a worker. Returns it, or None if no run needs one.

        Also marks rows left in flight by dead processes as in doubt, and ends runs with nothing to send.
        """
        for run in self.runs() if runs is None else runs:
            if self.writer.retry(partial(workers.end_unless_work_remains, run=run), is_long=True):
                self.writer.retry(partial(workers.join_run, process=self.writer.process, run=run.number))
                self.writer.mark_interrupted(timestamp(utc_now()))
                self.writer.is_stopped = False
                self.run = run
                return run
        return None

    def runs(self) -> Sequence[SharedRun]:
        return self.writer.retry(workers.unfinished_runs)

    def waiting_runs(self) -> Sequence[SharedRun]:
        return self.writer.retry(workers.waiting_runs, is_long=True)

    def due(self, batch: int, *, after_row: int = 0, limit: int) -> Sequence[DueRow]:
        """Return due rows, or none if the run has ended, so that they cannot be sent."""
        return () if self.writer.is_stopped else super().due(batch, after_row=after_row, limit=limit)

    def leave_run(self) -> None:
        """Leave the run and record the number of rows sent. Claimed but unsent rows can be claimed again."""
        self._claim((), self.sent_rows)
        self.writer.retry(partial(workers.join_run, process=self.writer.process, run=None))
        self.run = None

    @contextmanager
    def open_engine_journal(self) -> Iterator[WorkerEngineJournal]:
        if self.run is None:
            raise InternalError("a worker was about to send without a run")
        with closing(WorkerEngineJournal(self, self.writer.may_send, self._claim, self.sent_rows)) as engine_journal:
            self._engine_journal = engine_journal
            try:
                yield engine_journal
            finally:
                self._engine_journal, self.sent_rows = None, engine_journal.rows

    async def is_preempted(self) -> bool:
        if self._engine_journal is None or self.run is None:
            return False
        check = partial(workers.is_preempted, run=self.run)
        return await self._engine_journal.call(lambda: self.writer.retry(check))

    def stop_run(self, run: SharedRun, reason: str) -> None:
        self.writer.retry(partial(workers.stop_run, number=run.number, reason=reason))

    def process_arrivals(
        self,
        words: Mapping[str, OutcomeKind],  # noqa: ARG002 (see below)
        *,
        at: str,  # noqa: ARG002
        at_most: int | None = None,  # noqa: ARG002
    ) -> Counter[Finding]:
        """Do nothing, because this host's listener or next command processes the notifications."""
        return Counter()

    def shorten_waits(self) -> None:
        self.writer.shorten_waits()

    def may_decide(self) -> bool:
        return self.writer.retry(lambda connection: fetch(connection, "SELECT may_decide()")) == [(True,)]

    def wait_for_server(self) -> None:
        """Wait until the server responds. Raises `JournalUnwritable` if that takes too long."""
        self.writer.retry(lambda connection: fetch(connection, "SELECT"))

    def _claim(self, rows: Sequence[DueRow], sent_count: int) -> Sequence[DueRow]:
        numbers = [row.number for row in rows]
        claim = partial(workers.claim_rows, process=self.writer.process, instructions=numbers, count=sent_count)
        claimed = self.writer.retry(claim)
        return [row for row in rows if row.number in claimed]

    @contextmanager
    def _write_transaction(self) -> Iterator[None]:
        self.writer.acquire_decision_lock()
        try:
            with super()._write_transaction():
                yield
        finally:
            self.writer.release_decision_lock()
