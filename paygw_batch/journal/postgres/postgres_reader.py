"""Reads the journal in PostgreSQL."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from psycopg import Connection, IsolationLevel
from psycopg.pq import TransactionStatus

from paygw_batch.journal.journal import JournalReader
from paygw_batch.journal.port import RowBeingSent, RunNow, SharedRun, VerifyProgress, WorkerLife
from paygw_batch.journal.postgres.lines import words_of
from paygw_batch.journal.postgres.processes import rows_being_sent
from paygw_batch.journal.postgres.runs import unfinished_runs, workers_in
from paygw_batch.journal.postgres.session import Row, Session, translating_errors
from paygw_batch.journal.postgres.tables import PostgresTables
from paygw_batch.journal.postgres.verify import verify_journal
from paygw_batch.journal.values import BatchRecord, Identity, PaymentSearch, TallyKind


class PostgresReader(JournalReader):
    """The journal in PostgreSQL, opened for reading.

    A reader alone sees one snapshot of it; the writer sees each call's own.
    """

    def __init__(
        self,
        session: Session,
        identity: Identity,
        notes: tuple[str, ...] = (),
    ) -> None:
        super().__init__(PostgresTables(lambda: session.connection, identity), notes)
        self._session = session
        self._identity = identity

    def workers(self) -> Sequence[WorkerLife]:
        """Return the workers that have not said their end, the newest sign of life first."""
        with self._snapshot() as connection:
            return workers_in(connection)

    def runs_now(self) -> Sequence[RunNow]:
        """Return the runs that are not over, the urgent ones first."""
        with self._snapshot() as connection:
            runs = unfinished_runs(connection)
        records = {record.number: record for record in self.batches()} if runs else {}
        return [self._run_now(run, records[run.batch]) for run in runs]

    def _run_now(self, run: SharedRun, record: BatchRecord) -> RunNow:
        due = self.tallies(run.batch, kind=TallyKind.DUE)
        is_stopped = run.stop_reason is not None
        return RunNow(record.batch, record.sheet_name, sum(one.count for one in due), run.is_urgent, is_stopped)

    def close(self) -> None:
        """Close the journal. It can be reopened."""
        self._session.close()

    def _chain_end(self) -> tuple[int, str]:
        """Return the number of facts, and the hash over the ends of all chains."""
        facts, ends = 0, hashlib.sha256(self._identity.start.hash)
        for number, seq, digest in self._tables.run("chain_ends"):
            ends.update(f"{number}\n{seq}\n".encode() + digest)
            facts += seq
        return facts, ends.hexdigest()

    def being_sent(self, batch: int) -> Sequence[RowBeingSent]:
        """Return the rows of a batch that living processes have in flight."""
        with self._snapshot() as connection:
            return rows_being_sent(connection, batch)

    def _search_expression(self, search: PaymentSearch) -> str:
        """Return a search as PostgreSQL's text index is asked: lexemes in quotes, so that none is an operator."""
        groups = []
        for alternatives in search.words:
            group = []
            for word in alternatives:
                parts = words_of([word.removesuffix("*")])
                ending = ":*" if word.endswith("*") else ""
                group.append(" & ".join(f"'{part}'{ending}" for part in parts))
            groups.append(" | ".join(f"({one})" for one in group if one))
        return " & ".join(f"({group})" for group in groups) if groups and all(groups) else ""

    def _verify(self, progress: VerifyProgress) -> Mapping[str, int]:
        return verify_journal(self._session.connection, self._identity, progress)

    def _translating_errors(self) -> AbstractContextManager[object]:
        return translating_errors(self._session.server)

    @contextmanager
    def _snapshot(self) -> Iterator[Connection[Row]]:
        """Let many statements see one state of the journal."""
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
