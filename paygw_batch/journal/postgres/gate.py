"""Keeps the endpoint's limits over all workers, in one line of the database, by the database's clock."""

from collections.abc import Callable
from typing import TypeVar

import psycopg
from psycopg import Connection

from paygw_batch.journal.port import (
    GateReport,
    GateShare,
    GateState,
    GateStop,
    GateStopKind,
    LimitChange,
    Sender,
)
from paygw_batch.journal.postgres.session import Row, Server, connect, fetch, limited, translating_errors

T = TypeVar("T")

_ASK = "SELECT * FROM ask_gate(%s, %s, %s, %s, %s, %s::text[], %s::text[], %s::integer[])"
_UTC = """'YYYY-MM-DD"T"HH24:MI:SS"Z"'"""
_STATE = f"""SELECT g.rate_per_s, g.concurrency, g.in_doubt, g.rejected, g.stop_kind, g.stop_count, g.stop_text,
        coalesce(to_char(g.stopped_at AT TIME ZONE 'UTC', {_UTC}), ''),
        CASE WHEN g.rest_until > clock_timestamp() THEN to_char(g.rest_until AT TIME ZONE 'UTC', {_UTC}) ELSE '' END
    FROM gate g"""  # noqa: S608 - constants of ours
_LATEST = f"""SELECT by, to_char(at AT TIME ZONE 'UTC', {_UTC}) FROM limit_change
    ORDER BY number DESC LIMIT 1"""  # noqa: S608 - constants of ours
_SENDERS = """SELECT w.number, w.host, w.pid, w.command, (
        SELECT count(*) FROM batch b JOIN state s ON s.batch = b.number AND s.state = 'in_flight'
        JOIN fact f ON f.number = s.intent WHERE f.process = w.number)
    FROM process w WHERE w.ended_at IS NULL AND w.is_sending AND is_alive(w.number) ORDER BY 1"""


class PostgresGate:
    """The gate of the endpoint for one process, on a second connection.

    Its writes need not be durable: after a crash of the server, workers call again.
    """

    def __init__(self, server: Server, process: int) -> None:
        self._server, self._process = server, process
        self._connection: Connection[Row] | None = None

    def open(self) -> None:
        """Begin a run that a person started; this lifts the previous run's stop."""
        self._called(lambda connection: fetch(connection, "SELECT open_gate(%s)", (self._process,)))

    def ask(self, report: GateReport) -> GateShare:
        """Report outcomes, and return the share of this process. Raises `JournalError`."""
        values = (
            *(self._process, report.stop_after_in_doubt, report.stop_after_rejected, report.rest_s),
            *(_storable(report.stop), [one.kind.value for one in report.outcomes]),
            [_storable(one.reason) for one in report.outcomes],
            [one.times for one in report.outcomes],
        )
        (line,) = self._called(lambda connection: fetch(connection, _ASK, values))
        senders, before, rate_per_s, concurrency, rest_s, *stop = line
        return GateShare(senders, before, rate_per_s, concurrency, rest_s, _stop_of(*stop))

    def close(self) -> None:
        """Leave the share to others. If the database does not answer, it ends with this process."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            with limited(connection, self._server.commit_limit_s):
                fetch(connection, "SELECT leave_gate(%s)", (self._process,))
        except psycopg.Error:
            return
        finally:
            connection.close()

    def _called(self, call: Callable[[Connection[Row]], T]) -> T:
        """Make a call, on a new connection if the old one is gone."""
        with translating_errors(self._server):
            if self._connection is None or self._connection.closed:
                self._connection = connect(self._server, write=True)
                fetch(self._connection, "SET synchronous_commit = off")
            with limited(self._connection, self._server.commit_limit_s):
                return call(self._connection)


def read_gate(connection: Connection[Row]) -> GateState:
    """Return the current state of the gate."""
    ((rate, concurrency, in_doubt, rejected, kind, count, text, stopped_at, rest_until),) = fetch(connection, _STATE)
    set_by, set_at = next(iter(fetch(connection, _LATEST)), ("", ""))
    return GateState(
        rate,
        concurrency,
        set_by,
        set_at,
        [Sender(*line) for line in fetch(connection, _SENDERS)],
        rest_until,
        in_doubt,
        rejected,
        _stop_of(kind, count, text),
        stopped_at,
    )


def set_limits(connection: Connection[Row], change: LimitChange) -> None:
    """Set limits over all workers, and record who set them and when."""
    values = (change.by, change.rate_per_s, change.concurrency, change.is_as_configured)
    fetch(connection, "SELECT set_limits(%s, %s, %s, %s)", values)


def _storable(text: str) -> str:
    """Return a text of the gateway in a form that the database can store."""
    return text.encode("utf-8", "replace").decode().replace("\0", "?")


def _stop_of(kind: str | None, count: int, text: str) -> GateStop | None:
    return None if kind is None else GateStop(GateStopKind(kind), count, text)
