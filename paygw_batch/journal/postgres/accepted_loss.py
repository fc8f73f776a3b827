"""Accepts the loss of a host's commits: marks rows sent in them as in doubt, or holds them (see `journal/lost.py`).

If the host knows that a row in flight was not sent, the row becomes ready again. All other rows keep their state and
can be sent.

A host that will never answer again is retired. It may have sent any row in lost commits. So an intent and an
interruption are recorded for each ready or in-flight row, as if it had been sent, and a person must settle it.
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
_FIRST_IN_FLIGHT = "SELECT FROM batch b JOIN state s ON s.batch = b.number AND s.state = 'in_flight' LIMIT 1"
_READY_ROWS = f"""SELECT s.instruction, s.attempt + 1, coalesce(s.order_id, i.client_orderid)
    FROM state s JOIN instruction i ON i.number = s.instruction
    WHERE s.instruction > %s AND s.state = 'ready'
        AND NOT EXISTS (SELECT FROM unanswered e WHERE e.instruction = s.instruction)
    ORDER BY 1 LIMIT {_CHUNK_SIZE}"""  # noqa: S608 - only our own constants
"""Selects ready rows except those held by evidence, which are not sent before a person settles them."""


class LossWriter:
    """Records this host's loss in the database. Can be repeated after an interruption."""

    def __init__(
        self, connection: Connection[Row], identity: Identity, writer: FactWriter, loss: Loss, *, by: str, at: str
    ) -> None:
        self._connection, self._writer, self._loss, self._at = connection, writer, loss, at
        self._tables = postgres_tables(connection, identity)
        self._lost_rows = LostRows(self._tables, loss, by=by, at=at)

    def write(self) -> AcceptedRows:
        """Hold rows that may have been sent, or put them in doubt. Raises `JournalHeld` while one is being sent."""
        _allow_intents(self._connection)
        unsent = sorted({number for number, _ in self._loss.unsent} - set(self._lost_rows.numbers))
        # Facts are written in the order they were sent, because times in a chain never decrease, and later replies are
        # compared with these times.
        for numbers in (unsent, self._lost_rows.numbers):
            for start in range(0, len(numbers), _CHUNK_SIZE):
                self._conclude_in_flight(numbers[start : start + _CHUNK_SIZE])
        self._record_holds(self._restore_attempts())
        return self._lost_rows.rows

    def write_worst_case(self) -> AcceptedRows:
        """Mark every row that this host could have sent as in doubt. Raises `JournalHeld` while others are sending."""
        in_doubt = put_unfinished_in_doubt(self._connection, self._writer, self._at)
        holds = self._restore_attempts()
        self._lost_rows.rows.in_doubt = in_doubt
        self._record_holds(holds)
        return self._lost_rows.rows

    def _restore_attempts(self) -> list[Remark]:
        """Restore ready rows' lost attempts. Returns remarks that hold the other rows."""
        holds: list[Remark] = []
        for start in range(0, len(self._lost_rows.numbers), _CHUNK_SIZE):
            restored, remarks = self._lost_rows.decide(self._lost_rows.numbers[start : start + _CHUNK_SIZE])
            holds += remarks
            self._append(restored)
        return holds

    def _record_holds(self, holds: Sequence[Entry | Remark]) -> None:
        """Record holds and the order ids of lost batches, so that no later sheet sends these orders again."""
        if holds or self._lost_rows.rows.unknown_order_ids:
            self._writer.acquire_decision_lock()
            with self._writer.decision_transaction():
                self._writer.record(holds)
                self._lost_rows.record_unknown_order_ids(self._writer.record)

    def _conclude_in_flight(self, numbers: Sequence[int]) -> None:
        """Mark rows in flight as in doubt, or as not sent if this host knows that."""
        entries = []
        dead = dead_processes(self._connection)
        for number, attempt, sent_at, is_abandoned in fetch(self._connection, _ROWS_IN_FLIGHT, (dead, list(numbers))):
            if not is_abandoned:
                raise JournalHeld(say("Another process is still sending rows from this journal."))
            is_unsent = (number, attempt) in self._loss.unsent
            fact = Concluded(Outcome(OutcomeKind.NOT_SENT, "run.stopped")) if is_unsent else Interrupted()
            entries.append(Entry(number, attempt, fact, max(self._at, sent_at)))
            self._lost_rows.rows.not_sent += is_unsent
        self._append(entries)

    def _append(self, entries: Sequence[Entry]) -> None:
        if MoveResult.NOT_MOVED in self._writer.append(entries):
            raise InternalError("a lost attempt does not fit the state of its row in the database")


def put_unfinished_in_doubt(connection: Connection[Row], writer: FactWriter, at: str) -> int:
    """Put every ready or in-flight row in doubt, and return their number. Can be repeated after a crash.

    Raises `JournalHeld` while another process has a row in flight, because that process could still record that the row
    was not sent, and so make it ready.
    """
    _allow_intents(connection)
    row_count, last_row = writer.mark_interrupted(at), 0
    if fetch(connection, _FIRST_IN_FLIGHT):
        raise JournalHeld(say("Another process is still sending rows from this journal."))
    while lines := fetch(connection, _READY_ROWS, (last_row,)):
        entries = []
        for number, attempt, order_id in lines:
            fact = Intended(order_id, ASSUMED_ATTEMPT, 0, None)
            entries += [Entry(number, attempt, fact, at), Entry(number, attempt, Interrupted(), at)]
        writer.append(entries)
        row_count, last_row = row_count + len(lines), lines[-1][0]
    return row_count


def _allow_intents(connection: Connection[Row]) -> None:
    """Let this session write intents during a roll-call or while a breaker stops the endpoint.

    Rows with these intents are never sent. Other processes still cannot send.
    """
    fetch(connection, "SET paygw.retires = 'on'")


def record_retirement(connection: Connection[Row], host_id: str, by: str) -> None:
    """Record who retired a host. The roll-call no longer waits for it."""
    fetch(connection, "SELECT retire_host(%s, %s)", (host_id, by))


def record_accepted_loss(connection: Connection[Row], host_id: str, by: str) -> None:
    """Record who accepted a host's loss. This counts as the host's answer to the roll-call."""
    fetch(connection, "SELECT accept_loss(%s, %s)", (host_id, by))
