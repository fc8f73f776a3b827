"""Accepts the loss of a host's commits: puts the rows sent in them in doubt, or holds them (`journal/lost.py`).

If the host knows that nothing of an attempt left, its row in flight becomes not sent. All other rows stay as the
database has them, and can be sent.

A host that will never answer again is retired. It could have sent any row in commits that are lost. So each row that is
ready or in flight gets an intent and an interruption, as if it had been sent, and a person settles it.
"""

from collections.abc import Sequence

from psycopg import Connection

from paygw_batch.core.lifecycle import Concluded, Intended, Interrupted
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.errors import InternalError, JournalHeld
from paygw_batch.journal.lost import GUESSED, Loss, LostRows
from paygw_batch.journal.postgres.fact_writer import FactWriter
from paygw_batch.journal.postgres.session import Row, fetch, tables_on
from paygw_batch.journal.postgres.workers import dead_processes
from paygw_batch.journal.values import AcceptedRows, Entry, Identity, MoveResult, Remark
from paygw_batch.language import say

_AT_ONCE = 1_000
_IN_FLIGHT = """SELECT s.instruction, s.attempt, f.at, is_left(f.process, %s)
    FROM state s JOIN fact f ON f.number = s.intent
    WHERE s.instruction = ANY (%s) AND s.state = 'in_flight' ORDER BY 1"""
_ANY_IN_FLIGHT = "SELECT FROM batch b JOIN state s ON s.batch = b.number AND s.state = 'in_flight' LIMIT 1"
_READY = f"""SELECT s.instruction, s.attempt + 1, coalesce(s.order_id, i.client_orderid)
    FROM state s JOIN instruction i ON i.number = s.instruction
    WHERE s.instruction > %s AND s.state = 'ready'
        AND NOT EXISTS (SELECT FROM unanswered e WHERE e.instruction = s.instruction)
    ORDER BY 1 LIMIT {_AT_ONCE}"""  # noqa: S608 - constants of ours
"""Rows that evidence holds are left out, because no process sends them before a person has settled them."""


class LossWriter:
    """Writes the loss of this host to the database. Its calls can be interrupted and repeated."""

    def __init__(
        self, connection: Connection[Row], identity: Identity, writer: FactWriter, loss: Loss, *, by: str, at: str
    ) -> None:
        self._connection, self._writer, self._loss, self._at = connection, writer, loss, at
        self._tables = tables_on(connection, identity)
        self._lost = LostRows(self._tables, loss, by=by, at=at)

    def write(self) -> AcceptedRows:
        """Put the rows in doubt that may have left. Raises `JournalHeld` while another process sends one of them."""
        prepare_to_accept(self._connection)
        unsent = sorted({number for number, _ in self._loss.unsent} - set(self._lost.numbers))
        # Rows are written in the order in which they left: times in a chain never decrease, and the times of later
        # answers are compared with them.
        for numbers in (unsent, self._lost.numbers):
            for start in range(0, len(numbers), _AT_ONCE):
                self._end_in_flight(numbers[start : start + _AT_ONCE])
        self._at_desk(self._write_again())
        return self._lost.rows

    def write_guess(self) -> AcceptedRows:
        """Put every row in doubt that this host could have sent. Raises `JournalHeld` while another process sends."""
        undone = put_undone_in_doubt(self._connection, self._writer, self._at)
        held = self._write_again()
        self._lost.rows.in_doubt = undone
        self._at_desk(held)
        return self._lost.rows

    def _write_again(self) -> list[Remark]:
        """Write the lost attempts of rows that are ready again; return the remarks that hold the others."""
        held: list[Remark] = []
        for start in range(0, len(self._lost.numbers), _AT_ONCE):
            sent, others = self._lost.judge(self._lost.numbers[start : start + _AT_ONCE])
            held += others
            self._append(sent)
        return held

    def _at_desk(self, held: Sequence[Entry | Remark]) -> None:
        """Hold rows, and record the orders that the database does not know, so that no later sheet sends them."""
        if held or self._lost.rows.unknown_orders:
            self._writer.take_desk()
            with self._writer.at_desk():
                self._writer.record(held)
                self._lost.keep_unknown(self._writer.record)

    def _end_in_flight(self, numbers: Sequence[int]) -> None:
        """Put those of some rows that are in flight in doubt, or mark them as not sent if this host knows that."""
        entries = []
        dead = dead_processes(self._connection)
        for number, attempt, sent_at, is_left in fetch(self._connection, _IN_FLIGHT, (dead, list(numbers))):
            if not is_left:
                raise JournalHeld(say("Another process still sends rows of this journal."))
            is_unsent = (number, attempt) in self._loss.unsent
            fact = Concluded(Outcome(OutcomeKind.NOT_SENT, "run.stopped")) if is_unsent else Interrupted()
            entries.append(Entry(number, attempt, fact, max(self._at, sent_at)))
            self._lost.rows.not_sent += is_unsent
        self._append(entries)

    def _append(self, entries: Sequence[Entry]) -> None:
        if MoveResult.NOT_MOVED in self._writer.append(entries):
            raise InternalError("a lost attempt does not follow from what the database says of its row")


def put_undone_in_doubt(connection: Connection[Row], writer: FactWriter, at: str) -> int:
    """Put every row that is ready or in flight in doubt, and return their number. It can be repeated after a crash.

    Raises `JournalHeld` while another process has a row in flight, because that process could still record that nothing
    of the row left, and the row would be ready again.
    """
    prepare_to_accept(connection)
    rows, after = writer.conclude(at), 0
    if fetch(connection, _ANY_IN_FLIGHT):
        raise JournalHeld(say("Another process still sends rows of this journal."))
    while lines := fetch(connection, _READY, (after,)):
        entries = []
        for number, attempt, order_id in lines:
            fact = Intended(order_id, GUESSED, 0, None)
            entries += [Entry(number, attempt, fact, at), Entry(number, attempt, Interrupted(), at)]
        writer.append(entries)
        rows, after = rows + len(lines), lines[-1][0]
    return rows


def prepare_to_accept(connection: Connection[Row]) -> None:
    """Let this session write intents although the roll-call is open or a breaker has stopped every worker.

    These intents are not sent, and no other process sends before the roll-call is complete. The stop stays in force.
    """
    fetch(connection, "SET paygw.retires = 'on'")


def write_retired(connection: Connection[Row], host_id: str, by: str) -> None:
    """Record who retired a host. The roll-call no longer waits for that host."""
    fetch(connection, "SELECT retire_host(%s, %s)", (host_id, by))


def write_accepted(connection: Connection[Row], host_id: str, by: str) -> None:
    """Record who accepted the loss of a host. This counts as the host's answer to the roll-call."""
    fetch(connection, "SELECT accept_loss(%s, %s)", (host_id, by))
