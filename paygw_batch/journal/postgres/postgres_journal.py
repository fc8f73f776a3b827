"""Writes the journal in PostgreSQL.

Every write is one transaction, made durable before its call returns, and noted on this host as left before
anything may be sent on it. Facts go to the chain of this process; what people decide, and evidence, needs the desk.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial

import psycopg

from paygw_batch.clock import timestamp, utc_now
from paygw_batch.core.evidence import Finding
from paygw_batch.core.lifecycle import Released, Replaced
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import InternalError
from paygw_batch.journal.batch_part import BatchPart
from paygw_batch.journal.facts.digest import OpeningDigests
from paygw_batch.journal.journal import Journal
from paygw_batch.journal.port import SharedRun
from paygw_batch.journal.postgres.batch_rows import copy_batch
from paygw_batch.journal.postgres.engine_journal import ClaimedRows, OwnRun
from paygw_batch.journal.postgres.fact_writer import FactWriter
from paygw_batch.journal.postgres.gate import PostgresGate
from paygw_batch.journal.postgres.outbox import PostgresOutbox
from paygw_batch.journal.postgres.postgres_reader import PostgresReader
from paygw_batch.journal.postgres.runs import (
    OfferedRun,
    claim_rows,
    is_overtaken,
    join_run,
    start_run,
    stop_run,
    unfinished_runs,
    waiting_runs,
    waits,
    withdraw_run,
)
from paygw_batch.journal.postgres.session import Session, conflicting_lines, fetch
from paygw_batch.journal.states import due_rows
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
    Remark,
)

_AT_ONCE = 10_000
_NOTIFICATIONS_AT_ONCE = 200


class PostgresJournal(PostgresReader, Journal):
    """A journal in PostgreSQL, held by a run. Called from one thread at a time."""

    def __init__(
        self,
        session: Session,
        identity: Identity,
        writer: FactWriter,
        notes: tuple[str, ...] = (),
    ) -> None:
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
        with suppress(psycopg.Error):  # without figures about a new batch the server guesses its size, and reads it all
            fetch(self._session.connection, "ANALYZE instruction, known, order_id, state")
        return record

    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Make facts durable in one transaction, and move their instructions, as `EngineJournal.append` does.

        Raises `InternalError` for a release or a replacement: those claim order ids, and come through `release` and
        `open_batch`.
        """
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
        """Offer the batch to workers, and release the desk."""
        if not waits and not any(one.is_alive for one in self.workers()):
            self.writer.ask(partial(withdraw_run, batch=batch, process=self.writer.process))
            return None
        start = partial(start_run, batch=batch, process=self.writer.process, is_urgent=is_urgent)
        run = self.writer.ask_at_length(start)
        self.writer.leave_desk()
        return OfferedRun(run.number, self.writer.ask)

    def expect_end(self, notices: Sequence[NewNotice], at: str) -> None:
        """Make the notices of this run durable, with the desk."""
        self.writer.ask(lambda connection: PostgresOutbox(connection).add_for_run(notices, at, self.writer.process))

    def hold_again(self) -> None:
        """Take the desk again after a batch was handed over. Raises `JournalHeld` if another process has it."""
        if not self.writer.has_desk:
            self.writer.take_desk()

    @contextmanager
    def for_engine(self) -> Iterator[OwnRun]:
        """Give the journal to an engine: until the block ends, only the engine uses it."""
        with closing(OwnRun(self, self.writer.may_leave)) as given:
            yield given

    def gate(self) -> PostgresGate:
        """Return the limits of the endpoint, which this process shares with other workers."""
        return PostgresGate(self._session.server, self.writer.process)

    def scrub(self) -> OldPages:
        """Do nothing: old lines of tables go when their owner writes these again."""
        return OldPages.IN_DATABASE

    def close(self) -> None:
        """Close the journal, and sign off. It can be reopened."""
        try:
            self.writer.close()
        finally:
            super().close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction at the desk, in which no fact is earlier than those that are there."""
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
    """The journal as one worker has it. Called from one thread at a time."""

    run: SharedRun | None = None
    """The run that this worker is at."""
    sent_rows = 0
    """How many rows it has sent."""
    _given: ClaimedRows | None = None

    def join_run(self, runs: Sequence[SharedRun] | None = None) -> SharedRun | None:
        """Join the first of these runs (None: of all) that waits for a worker; None if none does.

        What was left in flight comes into doubt first. Runs with nothing left are ended here.
        """
        for run in self.runs() if runs is None else runs:
            if self.writer.ask_at_length(partial(waits, run=run)):
                self.writer.ask(partial(join_run, process=self.writer.process, run=run.number))
                self.writer.conclude(timestamp(utc_now()))
                self.writer.is_stopped = False
                self.run = run
                return run
        return None

    def runs(self) -> Sequence[SharedRun]:
        """Return the runs that are not over, oldest first."""
        return self.writer.ask(unfinished_runs)

    def waiting_runs(self) -> Sequence[SharedRun]:
        """Return the runs that wait for a worker, urgent ones first. Runs with nothing left are ended here."""
        return self.writer.ask_at_length(waiting_runs)

    def due(self, batch: int, *, after_row: int = 0, limit: int) -> Sequence[Due]:
        """Return due rows as every journal does, but none once the run is over: they would not be sent."""
        return () if self.writer.is_stopped else super().due(batch, after_row=after_row, limit=limit)

    def leave_run(self) -> None:
        """Leave the run, and tell the others how many rows were sent: those claimed and not sent are free."""
        self._claimed((), self.sent_rows)
        self.writer.ask(partial(join_run, process=self.writer.process, run=None))
        self.run = None

    @contextmanager
    def for_engine(self) -> Iterator[ClaimedRows]:
        """Give the run that was joined to an engine: until the block ends, only the engine uses the journal."""
        if self.run is None:
            raise InternalError("a worker was about to send without a run")
        with closing(ClaimedRows(self, self.writer.may_leave, self._claimed, self.sent_rows)) as given:
            self._given = given
            try:
                yield given
            finally:
                self._given, self.sent_rows = None, given.rows

    async def is_overtaken(self) -> bool:
        """Whether an urgent run waits for a worker, while the engine of this one sends for another."""
        if self._given is None or self.run is None:
            return False
        ask = partial(is_overtaken, run=self.run)
        return await self._given.ask(lambda: self.writer.ask(ask))

    def stop_run(self, run: SharedRun, reason: str) -> None:
        """Let no worker start another row of a run. The first reason counts."""
        self.writer.ask(partial(stop_run, number=run.number, reason=reason))

    def judge_arrivals(
        self,
        words: Mapping[str, OutcomeKind],  # noqa: ARG002 (see below)
        *,
        at: str,  # noqa: ARG002
        at_most: int | None = None,  # noqa: ARG002
    ) -> Counter[Finding]:
        """Take in nothing: the listener of this host, or the next command, does."""
        return Counter()

    def hurry(self) -> None:
        """Stop waiting for an unresponsive server after a moment, because this process was asked to end."""
        self.writer.hurry()

    def may_decide(self) -> bool:
        """Whether the role of this worker may write from the desk."""
        return self.writer.ask(lambda connection: fetch(connection, "SELECT may_decide()")) == [(True,)]

    def wait_for_server(self) -> None:
        """Wait for a server that restarts. Raises `JournalUnwritable` if it does not come back."""
        self.writer.ask(lambda connection: fetch(connection, "SELECT"))

    def _claimed(self, rows: Sequence[Due], sent: int) -> Sequence[Due]:
        numbers = [due.number for due in rows]
        claim = partial(claim_rows, process=self.writer.process, instructions=numbers, sent=sent)
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
