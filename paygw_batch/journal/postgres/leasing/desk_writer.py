"""Writes people's deeds and evidence: whole transactions of several statements, on the chain of the desk."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import psycopg
from psycopg import Connection
from psycopg.pq import TransactionStatus

from paygw_batch.errors import InternalError, JournalError, RowsMoved
from paygw_batch.journal.facts.chain import Line, Link
from paygw_batch.journal.postgres.leasing import leases
from paygw_batch.journal.postgres.leasing.fact_commit import CALL, DEADLOCK, FENCED, MOVED, opening_values, stage_facts
from paygw_batch.journal.postgres.leasing.guarded_session import GuardedSession
from paygw_batch.journal.postgres.leasing.leases import DESK, HeldLeases, Lease
from paygw_batch.journal.postgres.session import Row, fetch, reason_of_failure
from paygw_batch.journal.postgres.standing_lines import Loaded, load_instructions
from paygw_batch.journal.values import Entry
from paygw_batch.language import say

_MINE = """SELECT number FROM segment
    WHERE number = %s AND sealed_at IS NULL AND head_seq = %s AND head_hash = %s FOR UPDATE"""


class DeskWriter:
    """The desk of a journal, as long as this process has it. Called from one thread at a time."""

    def __init__(self, guarded: GuardedSession, held: HeldLeases, on_write: Callable[[], None]) -> None:
        self._guarded, self._held = guarded, held
        self._on_write = on_write

    @contextmanager
    def writing(self) -> Iterator[Connection[Row]]:
        """One transaction at the desk: durable, and known to the witness, when the block is left; or nothing of it."""
        self._guarded.require_writable()
        desk, connection = self._desk(), self._guarded.connection
        before = desk.end
        try:
            fetch(connection, "BEGIN")
            if not fetch(connection, _MINE, (desk.segment, before.seq, before.hash)):
                raise _taken_over()  # noqa: TRY301 - the transaction is rolled back on the way out
            yield connection
            self._commit(desk, before)
        except BaseException as error:
            self._roll_back()
            desk.end = before
            if isinstance(error, psycopg.Error):
                raise self._failed(error) from None
            raise
        finally:
            self._on_write()
        if desk.end.seq != before.seq:
            self._guarded.tell_witness({desk.segment: desk.end})

    def record(
        self, entries: Sequence[Entry], loaded: Mapping[int, Loaded] | None = None
    ) -> Sequence[tuple[int, str, bool]]:
        """Add facts to the chain, inside `writing`; return of each number, time, and whether it moved its row.

        Where `loaded` is given, the progress of all that it has is saved.
        """
        if not entries and not loaded:
            return []
        desk, connection = self._desk(), self._guarded.connection
        before = loaded or load_instructions(connection, (entry.instruction for entry in entries))
        staged = stage_facts(entries, lambda _: desk, before, frozenset(loaded or ()))
        fetch(connection, CALL, (self._held.worker, *staged.values))
        desk.end = staged.ends.get(desk.segment, desk.end)
        query = "SELECT number FROM fact WHERE segment = %s AND seq > %s ORDER BY seq"
        found = fetch(connection, query, (desk.segment, desk.end.seq - len(staged.lines)))
        return [
            (number, line.at, line.contradicts is None) for (number,), line in zip(found, staged.lines, strict=True)
        ]

    def record_opening(self, make: Callable[[Link], Line]) -> None:
        """Add the fact that opens a batch, inside `writing`; `make` links it to the end of the chain."""
        desk = self._desk()
        line = make(desk.end)
        fetch(self._guarded.connection, CALL, (self._held.worker, *opening_values(desk.segment, desk.end, line)))
        desk.end = Link(line.seq, line.hash, line.at)

    def not_before(self, at: str) -> None:
        """Let no fact of the desk be earlier than `at`."""
        desk = self._desk()
        desk.end = desk.end._replace(at=max(desk.end.at, at))

    def take(self) -> None:
        """Take the desk. Raises `JournalHeld` where another process has it."""
        with self._guarded.failing():
            self._held.desk = self._guarded.again(self._taken)
        if self._held.desk is None:
            raise leases.held_by(self._guarded.connection, DESK)

    def leave(self) -> None:
        """Let another process have the desk; nothing can be written here until it is taken again."""
        if (desk := self._held.desk) is not None:
            self._held.desk = None
            with self._guarded.failing():
                self._guarded.again(lambda: leases.seal(self._guarded.connection, desk.segment))

    def _taken(self) -> Lease | None:
        with self._guarded.connection.transaction():
            return leases.take(self._guarded.connection, DESK, self._held.worker)

    def _desk(self) -> Lease:
        if self._held.desk is None:
            raise _taken_over()
        return self._held.desk

    def _commit(self, desk: Lease, before: Link) -> None:
        """Commit. Where no answer comes, the end of the chain shows whether it was made."""
        guarded = self._guarded
        with guarded.confirmed():
            try:
                fetch(guarded.connection, "COMMIT")
            except psycopg.Error as error:
                if not guarded.is_lost(error):
                    raise
                guarded.reconnect()
                query = "SELECT head_seq, head_hash FROM segment WHERE number = %s"
                found = fetch(guarded.connection, query, (desk.segment,))
                guarded.flush()
                if desk.end.seq == before.seq or found != [(desk.end.seq, desk.end.hash)]:
                    raise

    def _failed(self, error: psycopg.Error) -> JournalError | InternalError:
        if error.sqlstate in {MOVED, DEADLOCK}:
            return RowsMoved()
        if error.sqlstate == FENCED:
            return _taken_over()
        return self._guarded.give_up(reason_of_failure(error))

    def _roll_back(self) -> None:
        """Forget the open transaction. Where the connection is gone, the server does so."""
        connection = self._guarded.connection
        if connection.info.transaction_status not in {TransactionStatus.IDLE, TransactionStatus.UNKNOWN}:
            try:
                connection.rollback()
            except psycopg.Error as error:
                self._guarded.give_up(reason_of_failure(error))


def _taken_over() -> JournalError:
    return JournalError(
        say("Another process has taken over the journal: this one was silent for too long."),
        hint=say("Run the same command again: what was committed by then is kept."),
    )
