"""The state that processes share in the database: which ones are alive, their runs, and their common limits.

Only the database's clock decides which process has the decision lock and which rows in flight are abandoned. A shared
run orders workers to send a batch's due rows. It is finished when none of the batch's rows is due or in flight and no
worker is sending for it.
"""

import os
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TypeVar

import psycopg
from psycopg import Connection

from paygw_batch.errors import HolderKind, JournalError, JournalHeld
from paygw_batch.journal.lock import LockHolder, has_ended
from paygw_batch.journal.port import (
    GateReport,
    GateShare,
    GateState,
    GateStop,
    GateStopKind,
    LimitChange,
    RowBeingSent,
    Sender,
    SharedRun,
    WorkerStatus,
)
from paygw_batch.journal.postgres.schema import newest_version
from paygw_batch.journal.postgres.session import TIME, Row, Server, connect, fetch, time_limit, translating_errors
from paygw_batch.journal.states import storable_text
from paygw_batch.journal.values import Link
from paygw_batch.language import say

_BEATS_PER_LIFETIME = 6
_IS_ALIVE = "w.ended_at IS NULL AND is_alive(w.number) AND w.number <> ALL (%s)"


@dataclass(slots=True)
class OwnProcess:
    """This process's number in the database and the end of its chain."""

    number: int
    end: Link


@cache
def boot_id() -> str:
    """Return an id of this boot and container. Process ids are unique only within them."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # without Linux, processes from other runs are never known to be dead
        return os.urandom(16).hex()


def enrol(connection: Connection[Row], *, command: str, kind: HolderKind, intent_lives_s: float) -> OwnProcess:
    """Register this process in the database. Its chain starts with random bytes, so that only it can continue it."""
    columns = (socket.gethostname(), boot_id(), os.getpid(), command, kind.value, intent_lives_s, newest_version())
    query = "SELECT number, head_hash, head_at FROM enrol(%s, %s, %s, %s, %s, %s, %s, %s)"
    ((number, start_hash, newest_time),) = fetch(connection, query, (*columns, secrets.token_bytes(16)))
    return OwnProcess(number, Link(0, start_hash, newest_time))


def deregister(connection: Connection[Row], number: int) -> None:
    fetch(connection, "SELECT end_life(%s)", (number,))


def dead_processes(connection: Connection[Row]) -> list[int]:
    """Return the numbers of processes on this machine that ended without deregistering."""
    query = "SELECT number, pid FROM process WHERE ended_at IS NULL AND boot = %s AND host = %s"
    processes = fetch(connection, query, (boot_id(), socket.gethostname()))
    return [number for number, pid in processes if has_ended(pid)]


def rows_being_sent(connection: Connection[Row], batch: int) -> list[RowBeingSent]:
    """Return the rows of a batch that live processes are sending, in the sheet's order."""
    query = f"""SELECT i.number, v.row, i.country, i.currency, i.minor
        FROM covered v JOIN state s ON s.instruction = v.instruction AND s.state = 'in_flight'
            JOIN instruction i ON i.number = s.instruction JOIN fact f ON f.number = s.intent
            JOIN process w ON w.number = f.process
        WHERE v.batch = %s AND {_IS_ALIVE} ORDER BY 2"""  # noqa: S608 - only our own constants
    return [RowBeingSent(*line) for line in fetch(connection, query, (batch, dead_processes(connection)))]


def current_holder(connection: Connection[Row]) -> LockHolder | None:
    """Return the live process that has the decision lock. If none has it, returns one that is sending, or None."""
    query = f"""{_HOLDER} LEFT JOIN desk d ON d.process = w.number
        WHERE {_IS_ALIVE} AND (d.process IS NOT NULL OR w.run IS NOT NULL)
        ORDER BY d.process IS NULL, w.number LIMIT 1"""
    lines = fetch(connection, query, (dead_processes(connection),))
    return _parse_holder(lines[0]) if lines else None


def decision_lock_error(connection: Connection[Row]) -> JournalHeld:
    lines = fetch(connection, f"{_HOLDER} JOIN desk d ON d.process = w.number")
    if not lines:
        return JournalHeld()
    holder = _parse_holder(lines[0])
    error = JournalHeld(
        say(
            "Another run is using this journal: process {pid} on {host}, since {since}: {command}.",
            pid=holder.pid,
            host=holder.host,
            since=holder.since,
            command=holder.command,
        )
    )
    error.holder = holder.kind
    return error


_HOLDER = f"SELECT w.pid, w.host, {TIME.format('w.since')}, w.command, w.kind FROM process w"  # noqa: S608 - our own


def _parse_holder(line: Row) -> LockHolder:
    pid, host, since, command, kind = line
    return LockHolder(pid, host, since, command, HolderKind(kind))


class Heartbeat:
    """Regularly reports to the database that this process is alive, in a thread with its own connection.

    Without these reports, rows sent to a slow gateway would be marked as in doubt merely because their intents are old.
    The guards against sending a row twice do not depend on them.
    """

    def __init__(self, server: Server, number: int, intent_lives_s: float) -> None:
        self._server, self._number = server, number
        self._interval_s = intent_lives_s / _BEATS_PER_LIFETIME
        self._stop = threading.Event()
        self._connection: Connection[Row] | None = None
        self._thread = threading.Thread(target=self._report_regularly, name="heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish any report in progress and stop."""
        self._stop.set()
        self._thread.join()
        if self._connection is not None:
            self._connection.close()

    def _report_regularly(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                if self._connection is None or self._connection.closed:
                    self._connection = connect(self._server, write=True)
                    # A lost report does not matter, because another one follows.
                    self._connection.execute("SET synchronous_commit = off")
                with time_limit(self._connection, self._server.commit_limit_s):
                    fetch(self._connection, "SELECT show_life(%s)", (self._number,))
            except (psycopg.Error, JournalError):
                continue  # the next report may reach the database


T = TypeVar("T")

_REQUEST_SHARE = "SELECT * FROM ask_gate(%s, %s, %s, %s, %s, %s::text[], %s::text[], %s::integer[])"
_GATE = f"""SELECT g.rate_per_s, g.concurrency, g.in_doubt, g.rejected, g.stop_kind, g.stop_count, g.stop_text,
        coalesce({TIME.format("g.stopped_at")}, ''),
        CASE WHEN g.rest_until > clock_timestamp() THEN {TIME.format("g.rest_until")} ELSE '' END
    FROM gate g"""  # noqa: S608 - only our own constants
_LATEST_CHANGE = f"SELECT by, {TIME.format('at')} FROM limit_change ORDER BY number DESC LIMIT 1"  # noqa: S608 - ours
_SENDERS = """SELECT w.number, w.host, w.pid, w.command, (
        SELECT count(*) FROM batch b JOIN state s ON s.batch = b.number AND s.state = 'in_flight'
        JOIN fact f ON f.number = s.intent WHERE f.process = w.number)
    FROM process w WHERE w.ended_at IS NULL AND w.is_sending AND is_alive(w.number) ORDER BY 1"""


class PostgresGate:
    """A process's access to the endpoint's gate. Uses its own connection, because its writes need not be durable."""

    def __init__(self, server: Server, process: int) -> None:
        self._server, self._process = server, process
        self._connection: Connection[Row] | None = None

    def open(self) -> None:
        self._call_gate(lambda connection: fetch(connection, "SELECT open_gate(%s)", (self._process,)))

    def request_share(self, report: GateReport) -> GateShare:
        limits = (report.stop_after_in_doubt, report.stop_after_rejected, report.rest_s)
        kinds = [outcome.kind.value for outcome in report.outcomes]
        reasons = [storable_text(outcome.reason).replace("\0", "?") for outcome in report.outcomes]
        times = [outcome.times for outcome in report.outcomes]
        values = (self._process, *limits, storable_text(report.stop).replace("\0", "?"), kinds, reasons, times)
        (share,) = self._call_gate(lambda connection: fetch(connection, _REQUEST_SHARE, values))
        senders, senders_before, rate_per_s, concurrency, rest_s, *stop = share
        return GateShare(senders, senders_before, rate_per_s, concurrency, rest_s, _parse_stop(*stop))

    def close(self) -> None:
        """Return this process's share. If the database does not respond, the share ends with the process."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            with time_limit(connection, self._server.commit_limit_s):
                fetch(connection, "SELECT leave_gate(%s)", (self._process,))
        except psycopg.Error:
            return
        finally:
            connection.close()

    def _call_gate(self, call: Callable[[Connection[Row]], T]) -> T:
        """Call the gate, on a new connection if the old one is lost."""
        with translating_errors(self._server):
            if self._connection is None or self._connection.closed:
                self._connection = connect(self._server, write=True)
                fetch(self._connection, "SET synchronous_commit = off")
            with time_limit(self._connection, self._server.commit_limit_s):
                return call(self._connection)


def read_gate(connection: Connection[Row]) -> GateState:
    ((rate, concurrency, in_doubt, rejected, kind, count, text, stopped_at, rest_until),) = fetch(connection, _GATE)
    set_by, set_at = next(iter(fetch(connection, _LATEST_CHANGE)), ("", ""))
    senders, stop = [Sender(*line) for line in fetch(connection, _SENDERS)], _parse_stop(kind, count, text)
    return GateState(rate, concurrency, set_by, set_at, senders, rest_until, in_doubt, rejected, stop, stopped_at)


def set_limits(connection: Connection[Row], change: LimitChange) -> None:
    values = (change.by, change.rate_per_s, change.concurrency, change.clears_others)
    fetch(connection, "SELECT set_limits(%s, %s, %s, %s)", values)


def _parse_stop(kind: str | None, count: int, text: str) -> GateStop | None:
    return None if kind is None else GateStop(GateStopKind(kind), count, text)


_NOT_HELD = """NOT EXISTS (SELECT FROM unanswered e WHERE e.instruction = s.instruction)"""
_UNCLAIMED = "is_free(s.claimed_by, s.claimed_at, r.number, %(dead)s)"
_ABANDONED = "(SELECT is_left(f.process, %(dead)s) FROM fact f WHERE f.number = s.intent)"
_HAS_ROW = """SELECT 1 FROM run r JOIN state s ON s.batch = r.batch AND s.state IN ('ready', 'in_flight')
    WHERE r.number = %(run)s AND CASE s.state WHEN 'ready' THEN {ready} ELSE {in_flight} END
    UNION ALL
    SELECT 1 FROM run r JOIN known k ON k.batch = r.batch JOIN state s ON s.instruction = k.instruction
    WHERE r.number = %(run)s AND s.state IN ('ready', 'in_flight')
        AND CASE s.state WHEN 'ready' THEN {ready} ELSE {in_flight} END LIMIT 1"""
"""Finds a row of a run. A single statement, because two could both miss a row that turns from in flight to ready."""
_LIVE_SENDER = "SELECT FROM process w WHERE w.run = %s AND is_alive(w.number) AND w.number <> ALL (%s) LIMIT 1"


def start_run(connection: Connection[Row], batch: int, process: int, *, is_urgent: bool = False) -> SharedRun:
    """Start a run of a batch, or return its current run. Requires the decision lock.

    Raises `JournalHeld` if the current run was stopped but a worker is still sending for it.
    """
    with connection.transaction():
        _hold_decision_lock(connection, process)
        query = "SELECT number FROM run WHERE batch = %s AND ended_at IS NULL FOR UPDATE"  # a worker may be ending it
        runs = fetch(connection, query, (batch,))
        number = runs[0][0] if runs else None
        if number is not None and load_run(connection, number).stop_reason is not None:
            if _has_sender(connection, number):
                raise JournalHeld(say("Workers have not finished stopping this batch yet."))
            _end_run(connection, number)
            number = None
        if number is None:
            query = "INSERT INTO run (batch, started_by) VALUES (%s, %s) RETURNING number"
            ((number,),) = fetch(connection, query, (batch, process))
        if is_urgent:
            fetch(connection, "UPDATE run SET is_urgent = true WHERE number = %s", (number,))
    return load_run(connection, number)


def end_current_run(connection: Connection[Row], batch: int, process: int) -> None:
    """End a batch's current run, if any, so that no worker sends another row. Requires the decision lock."""
    with connection.transaction():
        _hold_decision_lock(connection, process)
        fetch(connection, "UPDATE run SET ended_at = clock_timestamp() WHERE batch = %s AND ended_at IS NULL", (batch,))


def _hold_decision_lock(connection: Connection[Row], process: int) -> None:
    """Keep the decision lock until the transaction ends. Raises `JournalHeld` if the process has lost it."""
    if fetch(connection, "SELECT hold_desk(%s)", (process,)) != [(True,)]:
        raise decision_lock_error(connection)


def load_run(connection: Connection[Row], number: int) -> SharedRun:
    query = "SELECT number, batch, stop_reason, ended_at IS NOT NULL, is_urgent FROM run WHERE number = %s"
    (line,) = fetch(connection, query, (number,))
    return SharedRun(*line)


def stop_run(connection: Connection[Row], number: int, reason: str) -> None:
    """Stop a run, so that no worker sends another row. Keeps the reason for an earlier stop."""
    query = "UPDATE run SET stop_reason = %s WHERE number = %s AND stop_reason IS NULL AND ended_at IS NULL"
    fetch(connection, query, (reason, number))


def end_finished_run(connection: Connection[Row], number: int) -> None:
    """End a run if no worker is sending for it, and it was stopped or none of its rows is due or in flight."""
    # Workers call this often, so it must not lock a run in progress: a frozen worker would keep the lock.
    if _has_sender(connection, number):
        return
    with connection.transaction():
        fetch(connection, "SELECT FROM run WHERE number = %s FOR UPDATE", (number,))
        run = load_run(connection, number)
        if run.is_finished or _has_sender(connection, number):
            return
        if run.stop_reason is not None or not _has_row(connection, number, ready=_NOT_HELD, in_flight="true"):
            _end_run(connection, number)


def end_unless_work_remains(connection: Connection[Row], run: SharedRun) -> bool:
    """Return whether a run has an unclaimed or abandoned row and was not stopped. Ends a finished run."""
    if run.stop_reason is None and _has_work(connection, run.number):
        return True
    end_finished_run(connection, run.number)
    return False


def waiting_runs(connection: Connection[Row]) -> list[SharedRun]:
    """Return the `unfinished_runs` that need a worker. Ends runs with nothing to send."""
    return [run for run in unfinished_runs(connection) if end_unless_work_remains(connection, run)]


def unfinished_runs(connection: Connection[Row]) -> list[SharedRun]:
    """Return unfinished runs: urgent ones first, then the others, oldest first."""
    query = """SELECT number, batch, stop_reason, false, is_urgent FROM run WHERE ended_at IS NULL
        ORDER BY is_urgent DESC, number"""
    return [SharedRun(*line) for line in fetch(connection, query)]


def is_preempted(connection: Connection[Row], run: SharedRun) -> bool:
    """Return whether a run must yield to an urgent run that needs a worker."""
    runs = () if run.is_urgent else unfinished_runs(connection)
    return any(other.is_urgent and other.stop_reason is None and _has_work(connection, other.number) for other in runs)


def join_run(connection: Connection[Row], process: int, run: int | None) -> None:
    """Record that a worker joins `run`, or (if None) leaves its run. Workers can add intents only for their run."""
    fetch(connection, "SELECT join_run(%s, %s)", (process, run))


def claim_rows(connection: Connection[Row], process: int, instructions: Sequence[int], count: int) -> frozenset[int]:
    """Claim due rows for a worker that has sent `count` rows so far. Returns the claimed instructions."""
    values = (process, list(instructions), dead_processes(connection), count)
    return frozenset(number for (number,) in fetch(connection, "SELECT claim_rows(%s, %s, %s, %s)", values))


def list_workers(connection: Connection[Row]) -> list[WorkerStatus]:
    """Return workers that are alive or have rows in flight, the most recently seen first."""
    dead = set(dead_processes(connection))
    workers = _load_workers(connection, "true ORDER BY w.seen_at DESC")
    return [
        replace(worker, is_alive=worker.is_alive and number not in dead)
        for number, has_rows_in_flight, worker in workers
        if has_rows_in_flight or (worker.is_alive and number not in dead)
    ]


def find_dead_workers(connection: Connection[Row], since: str) -> list[WorkerStatus]:
    """Return workers that ended without deregistering and were last seen after `since`, oldest first."""
    condition = "w.seen_at > %s::timestamptz AND NOT is_alive(w.number) ORDER BY w.number"
    return [worker for _, _, worker in _load_workers(connection, condition, since)]


def _load_workers(connection: Connection[Row], condition: str, *values: str) -> list[tuple[int, bool, WorkerStatus]]:
    """Return (number, has rows in flight, worker) for each registered worker that meets the SQL `condition`."""
    query = f"""SELECT w.number, EXISTS (
            SELECT FROM batch o JOIN state s ON s.batch = o.number AND s.state = 'in_flight'
            JOIN fact f ON f.number = s.intent WHERE f.process = w.number),
            w.host, w.pid, {TIME.format("w.since")}, {TIME.format("w.seen_at")}, is_alive(w.number), b.batch, w.rows
        FROM process w LEFT JOIN run r ON r.number = w.run LEFT JOIN batch b ON b.number = r.batch
        WHERE w.kind = %s AND w.ended_at IS NULL AND {condition}"""  # noqa: S608 - only our own constants
    lines = fetch(connection, query, (HolderKind.WORKER.value, *values))
    return [(number, has_rows_in_flight, WorkerStatus(*columns)) for number, has_rows_in_flight, *columns in lines]


def _has_sender(connection: Connection[Row], run: int) -> bool:
    return bool(fetch(connection, _LIVE_SENDER, (run, dead_processes(connection))))


def _has_work(connection: Connection[Row], run: int) -> bool:
    """Return whether a run has an unclaimed due row or an abandoned row in flight."""
    return _has_row(connection, run, ready=f"{_NOT_HELD} AND {_UNCLAIMED}", in_flight=_ABANDONED)


def _has_row(connection: Connection[Row], run: int, *, ready: str, in_flight: str) -> bool:
    """Return whether a ready row of a run matches `ready`, or a row in flight matches `in_flight`."""
    query = _HAS_ROW.format(ready=ready, in_flight=in_flight)
    return bool(fetch(connection, query, {"run": run, "dead": dead_processes(connection)}))


def _end_run(connection: Connection[Row], run: int) -> None:
    fetch(connection, "UPDATE run SET ended_at = clock_timestamp() WHERE number = %s AND ended_at IS NULL", (run,))
