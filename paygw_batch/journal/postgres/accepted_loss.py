"""Accepts the loss of a host's commits: puts the rows sent in them in doubt, or holds them (see `journal/lost.py`).

If the host knows that an attempt was not sent, its in-flight row becomes not sent. All other rows keep their state,
and can be sent.

A host that will never answer again is retired. It may have sent any row in lost commits. So each row that is ready or
in flight gets an intent and an interruption, as if it had been sent, for a person to settle.
"""

from collections.abc import Sequence

from psycopg import Connection

from paygw_batch.core.lifecycle import Concluded, Intended, Interrupted
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.errors import InternalError, JournalHeld
from paygw_batch.journal.lost import ASSUMED_ATTEMPT, Loss, LostRows
from paygw_batch.journal.postgres.fact_writer import FactWriter
from paygw_batch.journal.postgres.session import Row, fetch, postgres_tables
from paygw_batch.journal.postgres.workers import dead_processes
from paygw_batch.journal.values import AcceptedRows, Entry, Identity, MoveResult, Remark
from paygw_batch.language import say

_CHUNK_SIZE = 1_000
_ROWS_IN_FLIGHT = """SELECT s.instruction, s.attempt, f.at, is_left(f.process, %s)
    FROM state s JOIN fact f ON f.number = s.intent
    WHERE s.instruction = ANY (%s) AND s.state = 'in_flight' ORDER BY 1"""
_ANY_IN_FLIGHT = "SELECT FROM batch b JOIN state s ON s.batch = b.number AND s.state = 'in_flight' LIMIT 1"
_READY_ROWS = f"""SELECT s.instruction, s.attempt + 1, coalesce(s.order_id, i.client_orderid)
    FROM state s JOIN instruction i ON i.number = s.instruction
    WHERE s.instruction > %s AND s.state = 'ready'
        AND NOT EXISTS (SELECT FROM unanswered e WHERE e.instruction = s.instruction)
    ORDER BY 1 LIMIT {_CHUNK_SIZE}"""  # noqa: S608 - constants of ours
"""Rows that evidence holds are left out, because no process sends them before a person has settled them."""


class LossWriter:
    """Records this host's loss in the database. An interrupted call can be repeated."""

    def __init__(
        self, connection: Connection[Row], identity: Identity, writer: FactWriter, loss: Loss, *, by: str, at: str
    ) -> None:
        self._connection, self._writer, self._loss, self._at = connection, writer, loss, at
        self._tables = postgres_tables(connection, identity)
        self._lost_rows = LostRows(self._tables, loss, by=by, at=at)

    def write(self) -> AcceptedRows:
        """Put the rows that may have been sent in doubt. Raises `JournalHeld` while another process is sending one."""
        prepare_to_accept(self._connection)
        unsent = sorted({number for number, _ in self._loss.unsent} - set(self._lost_rows.numbers))
        # Rows are written in the order of sending, because times in a chain never decrease, and the times of later
        # answers are compared with them.
        for numbers in (unsent, self._lost_rows.numbers):
            for start in range(0, len(numbers), _CHUNK_SIZE):
                self._end_in_flight(numbers[start : start + _CHUNK_SIZE])
        self._record_holds(self._restore_attempts())
        return self._lost_rows.rows

    def write_estimate(self) -> AcceptedRows:
        """Put every row that this host could have sent in doubt. Raises `JournalHeld` while another process sends."""
        unfinished_count = put_unfinished_in_doubt(self._connection, self._writer, self._at)
        holds = self._restore_attempts()
        self._lost_rows.rows.in_doubt = unfinished_count
        self._record_holds(holds)
        return self._lost_rows.rows

    def _restore_attempts(self) -> list[Remark]:
        """Restore the lost attempts of ready rows and return remarks that hold the other rows."""
        holds: list[Remark] = []
        for start in range(0, len(self._lost_rows.numbers), _CHUNK_SIZE):
            restored, remarks = self._lost_rows.judge(self._lost_rows.numbers[start : start + _CHUNK_SIZE])
            holds += remarks
            self._append(restored)
        return holds

    def _record_holds(self, holds: Sequence[Entry | Remark]) -> None:
        """Record holds and the orders unknown to the database, so that no later sheet sends them."""
        if holds or self._lost_rows.rows.unknown_orders:
            self._writer.acquire_decision_lock()
            with self._writer.decision_transaction():
                self._writer.record(holds)
                self._lost_rows.record_unknown_orders(self._writer.record)

    def _end_in_flight(self, numbers: Sequence[int]) -> None:
        """Put the in-flight rows among `numbers` in doubt, or mark them as not sent if this host knows it."""
        entries = []
        dead = dead_processes(self._connection)
        for number, attempt, sent_at, is_left in fetch(self._connection, _ROWS_IN_FLIGHT, (dead, list(numbers))):
            if not is_left:
                raise JournalHeld(say("Another process still sends rows of this journal."))
            is_unsent = (number, attempt) in self._loss.unsent
            fact = Concluded(Outcome(OutcomeKind.NOT_SENT, "run.stopped")) if is_unsent else Interrupted()
            entries.append(Entry(number, attempt, fact, max(self._at, sent_at)))
            self._lost_rows.rows.not_sent += is_unsent
        self._append(entries)

    def _append(self, entries: Sequence[Entry]) -> None:
        if MoveResult.NOT_MOVED in self._writer.append(entries):
            raise InternalError("a lost attempt does not fit the state of its row in the database")


def put_unfinished_in_doubt(connection: Connection[Row], writer: FactWriter, at: str) -> int:
    """Put every ready or in-flight row in doubt, and return their number. Safe to repeat after a crash.

    Raises `JournalHeld` while another process has a row in flight, because that process could still record that nothing
    of the row was sent, which would make the row ready.
    """
    prepare_to_accept(connection)
    rows, last_row = writer.mark_interrupted(at), 0
    if fetch(connection, _ANY_IN_FLIGHT):
        raise JournalHeld(say("Another process still sends rows of this journal."))
    while lines := fetch(connection, _READY_ROWS, (last_row,)):
        entries = []
        for number, attempt, order_id in lines:
            fact = Intended(order_id, ASSUMED_ATTEMPT, 0, None)
            entries += [Entry(number, attempt, fact, at), Entry(number, attempt, Interrupted(), at)]
        writer.append(entries)
        rows, last_row = rows + len(lines), lines[-1][0]
    return rows


def prepare_to_accept(connection: Connection[Row]) -> None:
    """Allow this session to write intents while the roll-call is open or a breaker has stopped every worker.

    These intents are not sent, and no other process sends before the roll-call is complete. The stop stays in force.
    """
    fetch(connection, "SET paygw.retires = 'on'")


def record_retirement(connection: Connection[Row], host_id: str, by: str) -> None:
    """Record who retired a host. The roll-call no longer waits for that host."""
    fetch(connection, "SELECT retire_host(%s, %s)", (host_id, by))


def record_accepted_loss(connection: Connection[Row], host_id: str, by: str) -> None:
    """Record who accepted the loss of a host. This counts as the host's answer to the roll-call."""
    fetch(connection, "SELECT accept_loss(%s, %s)", (host_id, by))
