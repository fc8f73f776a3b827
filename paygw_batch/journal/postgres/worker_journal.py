"""Gives a worker the journal in PostgreSQL: it takes chunks that runs offer, and holds the desk only briefly."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial

from paygw_batch.core.evidence import Finding
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import InternalError
from paygw_batch.journal.postgres.leasing.chunk_journal import TakenChunks
from paygw_batch.journal.postgres.leasing.offered_chunks import (
    note_place,
    offers,
    stop_run,
    unfinished_runs,
    waiting_runs,
)
from paygw_batch.journal.postgres.postgres_journal import PostgresJournal
from paygw_batch.journal.postgres.session import fetch
from paygw_batch.journal.shared_run import SharedRun


class WorkerJournal(PostgresJournal):
    """The journal as one worker has it. Called from one thread at a time."""

    run: SharedRun | None = None
    """The run that this worker is at."""
    is_spent = False
    """Whether another worker may take over chunks of this one: it has to be closed, and opened again."""
    sent_rows = 0
    """How many rows it has sent, of chunks that are finished."""
    _taken: TakenChunks | None = None

    def join_run(self, runs: Sequence[SharedRun] | None = None) -> SharedRun | None:
        """Join the first of these runs (None: of all) that offers a chunk; None if none does.

        Runs with nothing left are ended here.
        """
        for run in self.runs() if runs is None else runs:
            if self.writer.ask_at_length(partial(offers, run=run)):
                self.writer.ask(partial(note_place, worker=self.writer.worker, run=run.number, chunk=None))
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

    def leave_run(self) -> None:
        """Give back the chunks that were taken, and leave the run."""
        self.is_spent = not self.writer.give_back() or self.writer.has_lost
        self.writer.ask(partial(note_place, worker=self.writer.worker, run=None, chunk=None))
        self.run = None

    @contextmanager
    def for_engine(self) -> Iterator[TakenChunks]:
        """Give the run that was joined to an engine: until the block ends, only the engine uses the journal."""
        if self.run is None:
            raise InternalError("a worker was about to send without a run")
        with closing(TakenChunks(self, self.writer, self.run, self.sent_rows)) as given:
            self._taken = given
            try:
                yield given
            finally:
                self._taken, self.sent_rows = None, given.rows

    async def is_overtaken(self) -> bool:
        """Whether an urgent run waits for a worker, while the engine of this one sends for another."""
        return self._taken is not None and await self._taken.is_overtaken()

    def stop_run(self, run: SharedRun, reason: str) -> None:
        """Let no worker start another row of a run. The first reason counts."""
        self.writer.ask(partial(stop_run, number=run.number, reason=reason))

    def drain_inbox(
        self,
        words: Mapping[str, OutcomeKind],  # noqa: ARG002 (see below)
        *,
        at: str,  # noqa: ARG002
        at_most: int | None = None,  # noqa: ARG002
    ) -> Counter[Finding]:
        """Take in nothing: the listener of this host, or the next command, does."""
        return Counter()

    def hurry(self) -> None:
        """Wait no longer than a moment for a server that does not answer: this process was asked to end."""
        self.writer.hurry()

    def may_decide(self) -> bool:
        """Whether the role of this worker may write from the desk."""
        return self.writer.ask(lambda connection: fetch(connection, "SELECT may_decide()")) == [(True,)]

    def wait_for_server(self) -> None:
        """Wait for a server that restarts. Raises `JournalUnwritable` if it does not come back."""
        self.writer.ask(lambda connection: fetch(connection, "SELECT"))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self.writer.take_desk()
        try:
            with super()._writing():
                yield
        finally:
            self.writer.leave_desk()
