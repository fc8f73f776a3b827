"""Starts, stops and ends shared runs, and says which wait for a worker.

A run defines the rows to send. It is over when nothing of it is due, nothing is in flight, and no worker is at it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from psycopg import Connection

from paygw_batch.errors import HolderKind, JournalHeld
from paygw_batch.journal.port import SharedRun, WorkerLife
from paygw_batch.journal.postgres.processes import dead_processes, desk_taken
from paygw_batch.journal.postgres.session import Row, fetch
from paygw_batch.language import say

T = TypeVar("T")

_DUE = """NOT EXISTS (SELECT FROM unanswered e WHERE e.instruction = s.instruction)"""
_FREE = "is_free(s.claimed_by, s.claimed_at, r.number, %(dead)s)"
_LEFT = "(SELECT is_left(f.process, %(dead)s) FROM fact f WHERE f.number = s.intent)"
_HAS = """SELECT 1 FROM run r JOIN state s ON s.batch = r.batch AND s.state IN ('ready', 'in_flight')
    WHERE r.number = %(run)s AND CASE s.state WHEN 'ready' THEN {ready} ELSE {in_flight} END
    UNION ALL
    SELECT 1 FROM run r JOIN known k ON k.batch = r.batch JOIN state s ON s.instruction = k.instruction
    WHERE r.number = %(run)s AND s.state IN ('ready', 'in_flight')
        AND CASE s.state WHEN 'ready' THEN {ready} ELSE {in_flight} END LIMIT 1"""
"""One statement: of two, a row that comes back from in flight to ready meanwhile would be in neither."""
_TIME = """to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')"""
_AT_WORK = "SELECT FROM process w WHERE w.run = %s AND is_alive(w.number) AND w.number <> ALL (%s) LIMIT 1"


def start_run(connection: Connection[Row], batch: int, process: int, *, is_urgent: bool = False) -> SharedRun:
    """Start a run of a batch, or join the current one. Raises `JournalHeld` if that is stopping.

    A stopped run is over when no worker is at it. Requires the desk.
    """
    with connection.transaction():
        _hold_desk(connection, process)
        query = "SELECT number FROM run WHERE batch = %s AND ended_at IS NULL FOR UPDATE"  # it may be about to end
        found = fetch(connection, query, (batch,))
        number = found[0][0] if found else None
        if number is not None and run_now(connection, number).stop_reason is not None:
            if _is_at_work(connection, number):
                raise JournalHeld(say("Workers are still ending the run of this batch that was stopped."))
            _end(connection, number)
            number = None
        if number is None:
            query = "INSERT INTO run (batch, started_by) VALUES (%s, %s) RETURNING number"
            ((number,),) = fetch(connection, query, (batch, process))
        if is_urgent:
            fetch(connection, "UPDATE run SET is_urgent = true WHERE number = %s", (number,))
    return run_now(connection, number)


def withdraw_run(connection: Connection[Row], batch: int, process: int) -> None:
    """End the current run of a batch, if any: no worker starts another row of it. Requires the desk."""
    with connection.transaction():
        _hold_desk(connection, process)
        fetch(connection, "UPDATE run SET ended_at = clock_timestamp() WHERE batch = %s AND ended_at IS NULL", (batch,))


def _hold_desk(connection: Connection[Row], process: int) -> None:
    """Hold the desk until the transaction ends. A process that was frozen may have lost it."""
    if fetch(connection, "SELECT hold_desk(%s)", (process,)) != [(True,)]:
        raise desk_taken(connection)


def run_now(connection: Connection[Row], number: int) -> SharedRun:
    """Return the current state of a run."""
    query = "SELECT number, batch, stop_reason, ended_at IS NOT NULL, is_urgent FROM run WHERE number = %s"
    (line,) = fetch(connection, query, (number,))
    return SharedRun(*line)


def stop_run(connection: Connection[Row], number: int, reason: str) -> None:
    """Stop a run: no worker starts another row of it. The first reason is kept."""
    query = "UPDATE run SET stop_reason = %s WHERE number = %s AND stop_reason IS NULL AND ended_at IS NULL"
    fetch(connection, query, (reason, number))


def tend_run(connection: Connection[Row], number: int) -> None:
    """End a run if nothing of it is due or in flight, and no worker is at it."""
    # Workers look often: none may lock a run in progress, because it could then freeze.
    if _is_at_work(connection, number):
        return
    with connection.transaction():
        fetch(connection, "SELECT FROM run WHERE number = %s FOR UPDATE", (number,))
        run = run_now(connection, number)
        if run.is_over or _is_at_work(connection, number):
            return
        if run.stop_reason is not None or not _has(connection, number, ready=_DUE, in_flight="true"):
            _end(connection, number)


def waits(connection: Connection[Row], run: SharedRun) -> bool:
    """Whether a run has work for one more worker, unless it was stopped: a free row, or one that was left in flight.

    A run with nothing left is ended.
    """
    if run.stop_reason is None and _has_work(connection, run.number):
        return True
    tend_run(connection, run.number)
    return False


def waiting_runs(connection: Connection[Row]) -> list[SharedRun]:
    """Return the runs that wait for a worker, in the order of `unfinished_runs`; those with nothing left are ended."""
    return [run for run in unfinished_runs(connection) if waits(connection, run)]


def unfinished_runs(connection: Connection[Row]) -> list[SharedRun]:
    """Return the runs that are not over: the urgent ones first, then the oldest."""
    query = """SELECT number, batch, stop_reason, false, is_urgent FROM run WHERE ended_at IS NULL
        ORDER BY is_urgent DESC, number"""
    return [SharedRun(*line) for line in fetch(connection, query)]


def is_overtaken(connection: Connection[Row], run: SharedRun) -> bool:
    """Whether this run is not urgent while another one is and has work."""
    others = () if run.is_urgent else unfinished_runs(connection)
    return any(
        other.is_urgent and other.stop_reason is None and _has_work(connection, other.number) for other in others
    )


def join_run(connection: Connection[Row], process: int, run: int | None) -> None:
    """Record that a worker joins a run, or leaves its own. Its intents are accepted only for its run."""
    fetch(connection, "SELECT join_run(%s, %s)", (process, run))


def claim_rows(connection: Connection[Row], process: int, instructions: Sequence[int], sent: int) -> frozenset[int]:
    """Claim due rows for a worker, which has sent `sent` rows so far; return the claimed instructions."""
    values = (process, list(instructions), dead_processes(connection), sent)
    return frozenset(number for (number,) in fetch(connection, "SELECT claim_rows(%s, %s, %s, %s)", values))


def workers_in(connection: Connection[Row]) -> list[WorkerLife]:
    """Return living workers, and dead ones that left rows in flight, newest first."""
    dead = set(dead_processes(connection))
    found = _workers(connection, "true ORDER BY w.seen_at DESC")
    return [
        replace(life, is_alive=life.is_alive and number not in dead)
        for number, has_left, life in found
        if has_left or (life.is_alive and number not in dead)
    ]


def died_since(connection: Connection[Row], since: str) -> list[WorkerLife]:
    """Return the workers last seen after `since` that died without signing off, oldest first."""
    wanted = "w.seen_at > %s::timestamptz AND NOT is_alive(w.number) ORDER BY w.number"
    return [life for _, _, life in _workers(connection, wanted, since)]


def _workers(connection: Connection[Row], wanted: str, *values: str) -> list[tuple[int, bool, WorkerLife]]:
    """Return the wanted workers that have not signed off, with their numbers, and whether they left rows in flight."""
    query = f"""SELECT w.number, EXISTS (
            SELECT FROM batch o JOIN state s ON s.batch = o.number AND s.state = 'in_flight'
            JOIN fact f ON f.number = s.intent WHERE f.process = w.number),
            w.host, w.pid, {_TIME.format("w.since")}, {_TIME.format("w.seen_at")}, is_alive(w.number), b.batch, w.rows
        FROM process w LEFT JOIN run r ON r.number = w.run LEFT JOIN batch b ON b.number = r.batch
        WHERE w.kind = %s AND w.ended_at IS NULL AND {wanted}"""  # noqa: S608 - constants of ours
    found = fetch(connection, query, (HolderKind.WORKER.value, *values))
    return [(number, has_left, WorkerLife(*life)) for number, has_left, *life in found]


class _Ask(Protocol):
    def __call__(self, call: Callable[[Connection[Row]], T]) -> T: ...


@dataclass(frozen=True, slots=True)
class OfferedRun:
    """A run that was handed over to workers, as the command that did so sees it (see `RunOfWorkers`)."""

    number: int
    ask: _Ask

    def look(self) -> SharedRun:
        """Return the current state of the run. If it was stopped and no worker is at it, end it here."""

        def looked(connection: Connection[Row]) -> SharedRun:
            run = run_now(connection, self.number)
            if run.stop_reason is None or run.is_over:
                return run
            tend_run(connection, self.number)
            return run_now(connection, self.number)

        return self.ask(looked)

    def has_workers(self) -> bool:
        """Whether a worker lives."""
        return self.ask(lambda connection: any(one.is_alive for one in workers_in(connection)))

    def stop(self, reason: str) -> None:
        """Stop the run: no worker starts another row of it. The first reason is kept."""
        self.ask(lambda connection: stop_run(connection, self.number, reason))


def _is_at_work(connection: Connection[Row], run: int) -> bool:
    """Whether a living worker is at this run."""
    return bool(fetch(connection, _AT_WORK, (run, dead_processes(connection))))


def _has_work(connection: Connection[Row], run: int) -> bool:
    """Whether a run has a due row that no worker has claimed, or a row in flight that nobody sends any more."""
    return _has(connection, run, ready=f"{_DUE} AND {_FREE}", in_flight=_LEFT)


def _has(connection: Connection[Row], run: int, *, ready: str, in_flight: str) -> bool:
    """Whether a run has a row that is ready, or in flight, of which a condition is true."""
    query = _HAS.format(ready=ready, in_flight=in_flight)
    return bool(fetch(connection, query, {"run": run, "dead": dead_processes(connection)}))


def _end(connection: Connection[Row], run: int) -> None:
    fetch(connection, "UPDATE run SET ended_at = clock_timestamp() WHERE number = %s AND ended_at IS NULL", (run,))
