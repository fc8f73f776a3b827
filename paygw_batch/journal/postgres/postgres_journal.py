"""Reads and writes a journal in PostgreSQL, and gives an engine its due rows, outside the event loop.

A single run reads the rows of its batch one after the other (`OwnRun`). A worker first claims the rows that it is going
to send (`ClaimedRows`). If two processes try to send the same row, the database accepts one intent, and the other
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
from paygw_batch.core.batch import reference_of
from paygw_batch.core.evidence import Finding
from paygw_batch.core.lifecycle import Concluded, Intended, Released, Replaced
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.core.text import spelled_alike
from paygw_batch.errors import InternalError
from paygw_batch.journal.journal import Journal, JournalReader
from paygw_batch.journal.new_batch import BatchPart, OpeningDigests, new_salts, one_ahead
from paygw_batch.journal.outbox import OUTBOX_PARTS, Outbox
from paygw_batch.journal.port import (
    CallsInTurn,
    RowBeingSent,
    RunNow,
    SendingJournal,
    SharedRun,
    VerifyProgress,
    WorkerLife,
)
from paygw_batch.journal.postgres import workers
from paygw_batch.journal.postgres.fact_writer import FactWriter
from paygw_batch.journal.postgres.session import (
    PostgresTables,
    Row,
    Session,
    conflicting_lines,
    fetch,
    payee_words_of,
    translating_errors,
    words_of,
)
from paygw_batch.journal.postgres.verify import verify_journal
from paygw_batch.journal.states import due_rows
from paygw_batch.journal.tables import ON_POSTGRES, named_sql
from paygw_batch.journal.values import (
    Amendment,
    BatchRecord,
    Due,
    Entry,
    Forgettable,
    Identity,
    Known,
    MoveResult,
    NewBatch,
    NewNotice,
    OldPages,
    PaymentSearch,
    Remark,
    TallyKind,
)

T = TypeVar("T")


class OwnRun(CallsInTurn):
    """Implements `EngineJournal` for one run, on a journal in PostgreSQL."""

    def __init__(self, journal: SendingJournal, may_leave: Callable[[float], bool]) -> None:
        super().__init__(journal)
        self.may_leave = may_leave

    async def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        return await self.call(partial(self._appended, entries))

    def _appended(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Append facts. An intent is held if another process or a person moved its row after it was read as due."""
        return [
            MoveResult.HELD if isinstance(entry.fact, Intended) and result is MoveResult.NOT_MOVED else result
            for entry, result in zip(entries, self._journal.append(entries), strict=True)
        ]


class ClaimedRows(OwnRun):
    """Implements `EngineJournal` for a worker in a run that workers share."""

    def __init__(
        self,
        journal: SendingJournal,
        may_leave: Callable[[float], bool],
        claim: Callable[[Sequence[Due], int], Sequence[Due]],
        rows: int,
    ) -> None:
        """Send the due rows that `claim` returns; `claim` also gets the number of rows sent, which begins at `rows`."""
        super().__init__(journal, may_leave)
        self._claim = claim
        self.rows = rows
        """The number of rows that this worker has sent."""

    def _next(self, batch: int, limit: int) -> Sequence[Due]:
        while page := super()._next(batch, limit):
            if claimed := self._claim(page, self.rows):
                return claimed
        return ()

    def _appended(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        results = super()._appended(entries)
        facts = (entry.fact for entry in entries)
        self.rows += sum(isinstance(f, Concluded) and f.outcome.kind is not OutcomeKind.NOT_SENT for f in facts)
        return results


_QUERIES = named_sql(__package__, ("outbox.sql",), OUTBOX_PARTS, ON_POSTGRES, is_psycopg=True)


class PostgresOutbox(Outbox):
    """The outbox on one connection, which the journal's place closes. It can take part in an open transaction."""

    def __init__(self, connection: Connection[Row]) -> None:
        self._connection = connection

    def add_for_run(self, notices: Iterable[NewNotice], at: str, process: int) -> None:
        """Make the notices of a run durable that begins. They are due when `process` and the run have ended."""
        with self._writing():
            self._add(notices, at, process)

    @property
    def may_send(self) -> bool:
        """Whether the login belongs to people: a worker may not mark a notice as sent."""
        return self._run("may_decide") == [(True,)]

    def _run(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        return fetch(self._connection, _QUERIES[name], values)

    def _writing(self) -> AbstractContextManager[object]:
        return self._connection.transaction()


class PostgresReader(JournalReader):
    """The journal in PostgreSQL, opened for reading.

    A reader sees one snapshot throughout. For the writer, each call has a new snapshot.
    """

    def __init__(self, session: Session, identity: Identity, notes: tuple[str, ...] = ()) -> None:
        super().__init__(PostgresTables(lambda: session.connection, identity), notes)
        self._session = session
        self._identity = identity

    def workers(self) -> Sequence[WorkerLife]:
        """Return living workers, and dead ones that left rows in flight, the newest sign of life first."""
        with self._snapshot() as connection:
            return workers.workers_in(connection)

    def runs_now(self) -> Sequence[RunNow]:
        """Return the runs that are not over, the urgent ones first."""
        with self._snapshot() as connection:
            runs = workers.unfinished_runs(connection)
        records = {record.number: record for record in self.batches()} if runs else {}
        found = []
        for run in runs:
            record, due = records[run.batch], self.tallies(run.batch, kind=TallyKind.DUE)
            left, is_stopped = sum(tally.count for tally in due), run.stop_reason is not None
            found.append(RunNow(record.batch, record.sheet_name, left, run.is_urgent, is_stopped))
        return found

    def close(self) -> None:
        self._session.close()

    def _chain_end(self) -> tuple[int, str]:
        facts, ends = 0, hashlib.sha256(self._identity.start.hash)
        for number, seq, digest in self._tables.run("chain_ends"):
            ends.update(f"{number}\n{seq}\n".encode() + digest)
            facts += seq
        return facts, ends.hexdigest()

    def being_sent(self, batch: int) -> Sequence[RowBeingSent]:
        with self._snapshot() as connection:
            return workers.rows_being_sent(connection, batch)

    def _search_expression(self, search: PaymentSearch) -> str:
        """Return a search for PostgreSQL's text index. The lexemes are quoted, so that none acts as an operator."""
        groups = []
        for alternatives in search.words:
            group = []
            for word in alternatives:
                parts = words_of([word.removesuffix("*")])
                ending = ":*" if word.endswith("*") else ""
                group.append(" & ".join(f"'{part}'{ending}" for part in parts))
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


_INSTRUCTIONS = """COPY instruction (number, batch, row, client_orderid, country, currency, minor, replaces, amount,
    form, fields, payee, content, salt, people_sha256) FROM STDIN"""


def copy_batch(
    connection: Connection[Row],
    record: BatchRecord,
    plan_sha256: str,
    digests: OpeningDigests,
    parts: Iterable[BatchPart],
    known: Iterable[Known],
    replaced: Mapping[int, int],
) -> str:
    """Write a whole batch; return the reference that its order ids were derived from (empty: they were not)."""
    number = record.number
    first = digests.first_instruction
    with closing(one_ahead(parts)) as coming:
        for part in coming:
            for page in part.pages:
                fetch(connection, "INSERT INTO page VALUES (%s, %s, %s)", (number, digests.pages, page))
                digests.page(page)
            start = digests.next_instruction
            salts = new_salts(len(part.instructions))
            people = digests.instructions(part.instructions, replaced, salts)
            with connection.cursor() as cursor, cursor.copy(_INSTRUCTIONS) as copy:
                for place, (new, *own) in enumerate(zip(part.instructions, salts, people, strict=True), start=start):
                    row, client_orderid, country, currency, amount, minor, *paid = new
                    kept = (row, client_orderid, country, currency, minor, replaced.get(row), amount, *paid)
                    copy.write_row((place, number, *kept, *own))
    last = first
    reference = ""
    query = (
        "SELECT number, client_orderid, fields, content, replaces FROM instruction WHERE number >= %s AND number < %s"
    )
    while lines := fetch(connection, f"{query} ORDER BY number", (last, last + 10_000)):
        if last == first:
            reference = reference_of(lines[0][1]) or ""
        _copy_ids(connection, record.operation, lines)
        last = lines[-1][0] + 1
    with connection.cursor() as cursor, cursor.copy("COPY known FROM STDIN") as copy:
        for known_row in sorted(known, key=attrgetter("row")):
            digests.known(known_row)
            copy.write_row((number, known_row.row, known_row.instruction))
    line = (number, record.batch, record.operation, record.sheet_name, record.sheet_sha256, record.rows, record.defects)
    more = (record.opened_at, record.sheet_path, plan_sha256, reference)
    fetch(connection, f"INSERT INTO batch VALUES ({', '.join(['%s'] * 11)})", (*line, *more))  # noqa: S608 - places alone
    query = """INSERT INTO state (instruction, batch, country, currency, minor)
        SELECT number, batch, country, currency, minor FROM instruction WHERE number >= %s AND number < %s ORDER BY 1"""
    fetch(connection, query, (first, last))
    twice = "SELECT FROM instruction i JOIN known k USING (batch, row) WHERE i.batch = %s LIMIT 1"
    if fetch(connection, twice, (number,)):
        raise InternalError("a row of a batch is both new and known")
    return reference


def _copy_ids(connection: Connection[Row], operation: str, lines: list[Row]) -> None:
    """Write the order ids of new instructions, and the words of their payees."""
    own = sorted((client_orderid, number) for number, client_orderid, _, _, replaces in lines if replaces is None)
    with connection.cursor() as cursor, cursor.copy("COPY order_id FROM STDIN") as copy:
        for client_orderid, number in own:
            copy.write_row((operation, client_orderid, number, spelled_alike(client_orderid)))
    numbers = [line[0] for line in lines]
    words = [" ".join(payee_words_of(line[2])) for line in lines]
    query = """INSERT INTO payee_words
        SELECT number, array_to_tsvector(string_to_array(nullif(words, ''), ' ')) FROM unnest(%s::bigint[], %s::text[])
        u(number, words) WHERE words <> ''"""
    fetch(connection, query, (numbers, words))


@dataclass(frozen=True, slots=True)
class OfferedRun:
    """A run that was handed over to workers, as the command that handed it over sees it (see `RunOfWorkers`)."""

    number: int
    writer: FactWriter

    def look(self) -> SharedRun:
        """Return the current state of the run. If it was stopped and no worker sends for it, end it first."""

        def looked(connection: Connection[Row]) -> SharedRun:
            run = workers.run_now(connection, self.number)
            if run.stop_reason is None or run.is_over:
                return run
            workers.tend_run(connection, self.number)
            return workers.run_now(connection, self.number)

        return self.writer.ask(looked)

    def has_workers(self) -> bool:
        return self.writer.ask(lambda connection: any(worker.is_alive for worker in workers.workers_in(connection)))

    def stop(self, reason: str) -> None:
        self.writer.ask(lambda connection: workers.stop_run(connection, self.number, reason))


class PostgresJournal(PostgresReader, Journal):
    """A journal in PostgreSQL, held by a run. Called from one thread at a time."""

    def __init__(self, session: Session, identity: Identity, writer: FactWriter, notes: tuple[str, ...] = ()) -> None:
        super().__init__(session, identity, notes)
        self.writer = writer

    def open_batch(
        self,
        batch: NewBatch,
        *,
        parts: Iterable[BatchPart],
        known: Iterable[Known],
        amendments: Iterable[Amendment],
        at: str,
    ) -> BatchRecord:
        """Make a whole batch durable, as every journal does, and let the server count its lines."""
        record = super().open_batch(batch, parts=parts, known=known, amendments=amendments, at=at)
        with suppress(psycopg.Error):  # without new statistics the server guesses the batch's size, and reads all of it
            fetch(self._session.connection, "ANALYZE instruction, known, order_id, state")
        return record

    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Append as `EngineJournal`. Raises `InternalError` for releases and replacements, which reserve order ids."""
        if any(isinstance(entry.fact, Released | Replaced) for entry in entries):
            raise InternalError("a release or a replacement cannot be appended by itself")
        return self.writer.append(entries)

    def due(self, batch: int, *, after_row: int = 0, limit: int) -> Sequence[Due]:
        """Return due rows as every journal does, on a new connection if the old one is lost."""
        return self.writer.ask(lambda _: due_rows(self._tables, batch, after_row, limit))

    def mark_interrupted(self, at: str) -> int:
        """Put the instructions in flight that nobody sends any more in doubt, and return their number."""
        return self.writer.conclude(at)

    def start_shared_run(self, batch: int, *, waits: bool = False, is_urgent: bool = False) -> OfferedRun | None:
        if not waits and not any(worker.is_alive for worker in self.workers()):
            self.writer.ask(partial(workers.withdraw_run, batch=batch, process=self.writer.process))
            return None
        start = partial(workers.start_run, batch=batch, process=self.writer.process, is_urgent=is_urgent)
        run = self.writer.ask(start, is_long=True)
        self.writer.leave_desk()
        return OfferedRun(run.number, self.writer)

    def expect_end(self, notices: Sequence[NewNotice], at: str) -> None:
        self.writer.ask(lambda connection: PostgresOutbox(connection).add_for_run(notices, at, self.writer.process))

    def hold_again(self) -> None:
        if not self.writer.has_desk:
            self.writer.take_desk()

    @contextmanager
    def for_engine(self) -> Iterator[OwnRun]:
        with closing(OwnRun(self, self.writer.may_leave)) as engine_journal:
            yield engine_journal

    def gate(self) -> workers.PostgresGate:
        return workers.PostgresGate(self._session.server, self.writer.process)

    def scrub(self) -> OldPages:
        """Do nothing, because old lines only disappear when the owner of the tables rewrites these."""
        return OldPages.IN_DATABASE

    def close(self) -> None:
        try:
            self.writer.close()
        finally:
            super().close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Run the block in one transaction at the desk. Its facts are no earlier than any fact of the journal."""
        with self.writer.at_desk():
            ((newest,),) = self._tables.run("newest_fact_time")
            self.writer.not_before(newest or "")
            yield

    def _store_batch(
        self,
        record: BatchRecord,
        plan_sha256: str,
        digests: OpeningDigests,
        parts: Iterable[BatchPart],
        known: Iterable[Known],
        replaced: Mapping[int, int],
    ) -> BatchRecord:
        connection = self._session.connection
        with conflicting_lines(f"batch {record.batch} is already open, or a row or an order id of it is taken"):
            reference = copy_batch(connection, record, plan_sha256, digests, parts, known, replaced)
        return replace(record, reference=reference)

    @contextmanager
    def _forgetting(self, chosen: Forgettable) -> Iterator[None]:
        with self._writing():
            for batch in chosen.batches:
                self._tables.run("begin_forgetting", batch=batch)
            yield
            self._tables.run("forget_plans", before=chosen.before)

    def _record(self, entries: Sequence[Entry | Remark]) -> Sequence[tuple[int, str, bool]]:
        return self.writer.record(entries)


class WorkerJournal(PostgresJournal):
    """The journal as one worker uses it. Called from one thread at a time."""

    run: SharedRun | None = None
    """The run that this worker has joined."""
    sent_rows = 0
    """The number of rows that this worker has sent."""
    _given: ClaimedRows | None = None

    def join_run(self, runs: Sequence[SharedRun] | None = None) -> SharedRun | None:
        """Join the first of these runs (None: of all) that waits for a worker, and return it; None if no run waits.

        Rows that dead processes left in flight are put in doubt first. Runs with nothing left to send are ended.
        """
        for run in self.runs() if runs is None else runs:
            if self.writer.ask(partial(workers.waits, run=run), is_long=True):
                self.writer.ask(partial(workers.join_run, process=self.writer.process, run=run.number))
                self.writer.conclude(timestamp(utc_now()))
                self.writer.is_stopped = False
                self.run = run
                return run
        return None

    def runs(self) -> Sequence[SharedRun]:
        """Return the runs that are not over: the urgent ones first, then the oldest."""
        return self.writer.ask(workers.unfinished_runs)

    def waiting_runs(self) -> Sequence[SharedRun]:
        """Return the runs that wait for a worker, urgent ones first. Runs with nothing left to send are ended."""
        return self.writer.ask(workers.waiting_runs, is_long=True)

    def due(self, batch: int, *, after_row: int = 0, limit: int) -> Sequence[Due]:
        """Return due rows as every journal does, but none once the run is over, because they would not be sent."""
        return () if self.writer.is_stopped else super().due(batch, after_row=after_row, limit=limit)

    def leave_run(self) -> None:
        """Leave the run, and record how many rows were sent. Rows that were claimed and not sent become free."""
        self._claimed((), self.sent_rows)
        self.writer.ask(partial(workers.join_run, process=self.writer.process, run=None))
        self.run = None

    @contextmanager
    def for_engine(self) -> Iterator[ClaimedRows]:
        if self.run is None:
            raise InternalError("a worker was about to send without a run")
        with closing(ClaimedRows(self, self.writer.may_leave, self._claimed, self.sent_rows)) as claimed_rows:
            self._given = claimed_rows
            try:
                yield claimed_rows
            finally:
                self._given, self.sent_rows = None, claimed_rows.rows

    async def is_overtaken(self) -> bool:
        """Whether an urgent run waits for a worker, while this worker's engine sends for another run."""
        if self._given is None or self.run is None:
            return False
        ask = partial(workers.is_overtaken, run=self.run)
        return await self._given.call(lambda: self.writer.ask(ask))

    def stop_run(self, run: SharedRun, reason: str) -> None:
        self.writer.ask(partial(workers.stop_run, number=run.number, reason=reason))

    def judge_arrivals(
        self,
        words: Mapping[str, OutcomeKind],  # noqa: ARG002 (see below)
        *,
        at: str,  # noqa: ARG002
        at_most: int | None = None,  # noqa: ARG002
    ) -> Counter[Finding]:
        """Judge nothing: the listener of this host, or the next command, does it."""
        return Counter()

    def hurry(self) -> None:
        """From now on, wait only briefly for a server that does not answer, because this process is to end."""
        self.writer.hurry()

    def may_decide(self) -> bool:
        """Whether the role of this worker may write at the desk."""
        return self.writer.ask(lambda connection: fetch(connection, "SELECT may_decide()")) == [(True,)]

    def wait_for_server(self) -> None:
        """Wait for a server that restarts. Raises `JournalUnwritable` if it does not come back."""
        self.writer.ask(lambda connection: fetch(connection, "SELECT"))

    def _claimed(self, rows: Sequence[Due], sent: int) -> Sequence[Due]:
        numbers = [due.number for due in rows]
        claim = partial(workers.claim_rows, process=self.writer.process, instructions=numbers, sent=sent)
        claimed = self.writer.ask(claim)
        return [due for due in rows if due.number in claimed]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self.writer.take_desk()
        try:
            with super()._writing():
                yield
        finally:
            self.writer.leave_desk()
