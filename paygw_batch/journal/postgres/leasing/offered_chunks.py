"""Starts, stops and ends shared runs, and offers workers the chunks in which rows are due.

A run defines the rows to send. An offer is only a hint where to look: a worker that finds none makes the offers again
from the journal's tables, and if there is nothing to offer, the run is over.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from psycopg import Connection

from paygw_batch.errors import HolderKind, JournalHeld
from paygw_batch.journal.port import SharedRun, WorkerLife
from paygw_batch.journal.postgres.leasing.leases import dead_workers
from paygw_batch.journal.postgres.session import Row, fetch
from paygw_batch.language import say

T = TypeVar("T")

_AT_ONCE = 8
_DUE = "s.state = 'ready' AND NOT EXISTS (SELECT FROM unanswered e WHERE e.instruction = s.instruction)"
_OFFER = f"""INSERT INTO offer
    SELECT r.number, c.number FROM run r JOIN chunk c ON c.batch = r.batch
    WHERE r.number = %s AND (
        EXISTS (SELECT FROM segment g WHERE g.number = c.segment AND g.sealed_at IS NULL)
        OR EXISTS (SELECT FROM state s WHERE s.instruction BETWEEN c.first AND c.last AND {_DUE}))
    UNION
    SELECT r.number, c.number FROM run r JOIN known k ON k.batch = r.batch
        JOIN state s ON s.instruction = k.instruction
        JOIN chunk c ON c.first = (SELECT max(first) FROM chunk WHERE first <= s.instruction)
    WHERE r.number = %s AND {_DUE}
    ON CONFLICT DO NOTHING"""  # noqa: S608 - constants of ours
_TIME = """to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')"""
_AT_WORK = """SELECT FROM worker w JOIN segment g ON g.worker = w.number AND g.sealed_at IS NULL AND g.chain > 0
    WHERE w.run = %s AND is_alive(w.number) AND w.number <> ALL (%s) LIMIT 1"""


def start_run(connection: Connection[Row], batch: int, worker: int, *, is_urgent: bool = False) -> SharedRun:
    """Start a run of a batch and offer its chunks, or join the current one. Raises `JournalHeld` if that is stopping.

    A stopped run is over when its workers have no row in flight. Requires the desk.
    """
    with connection.transaction():
        found = fetch(connection, "SELECT number FROM run WHERE batch = %s AND ended_at IS NULL", (batch,))
        number = found[0][0] if found else None
        if number is not None and run_now(connection, number).stop_reason is not None:
            if _is_at_work(connection, number):
                raise JournalHeld(say("Workers are still ending the run of this batch that was stopped."))
            _end(connection, number)
            number = None
        if number is None:
            query = "INSERT INTO run (batch, started_by) VALUES (%s, %s) RETURNING number"
            ((number,),) = fetch(connection, query, (batch, worker))
        if is_urgent:
            fetch(connection, "UPDATE run SET is_urgent = true WHERE number = %s", (number,))
        _offer(connection, number)
    return run_now(connection, number)


def withdraw_run(connection: Connection[Row], batch: int) -> None:
    """End the current run of a batch, if any: no worker starts another row of it."""
    found = fetch(connection, "SELECT number FROM run WHERE batch = %s AND ended_at IS NULL", (batch,))
    for (number,) in found:
        with connection.transaction():
            _end(connection, number)


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
    """Make a run's offers again, or end it if nothing is due and no worker is at it. Call it if no offer is left."""
    # Workers look often: none may lock a run in progress, because it could then freeze.
    if _is_at_work(connection, number):
        return
    with connection.transaction():
        fetch(connection, "SELECT FROM run WHERE number = %s FOR UPDATE", (number,))
        run = run_now(connection, number)
        if run.is_over or _is_at_work(connection, number):
            return
        if run.stop_reason is not None or not _offer(connection, number):
            _end(connection, number)


def offers(connection: Connection[Row], run: SharedRun) -> bool:
    """Whether a run, unless stopped, offers a free chunk; if not, its offers are made again first.

    A run with nothing left is ended.
    """
    if run.stop_reason is None and free_chunks(connection, run.number):
        return True
    tend_run(connection, run.number)
    return run.stop_reason is None and bool(free_chunks(connection, run.number))


def waiting_runs(connection: Connection[Row]) -> list[SharedRun]:
    """Return the runs that wait for a worker, in the order of `unfinished_runs`; those with nothing left are ended."""
    return [run for run in unfinished_runs(connection) if offers(connection, run)]


def unfinished_runs(connection: Connection[Row]) -> list[SharedRun]:
    """Return the runs that are not over: the urgent ones first, then the oldest."""
    query = """SELECT number, batch, stop_reason, false, is_urgent FROM run WHERE ended_at IS NULL
        ORDER BY is_urgent DESC, number"""
    return [SharedRun(*line) for line in fetch(connection, query)]


def is_overtaken(connection: Connection[Row], run: SharedRun) -> bool:
    """Whether this run is not urgent while another one is and has a free chunk."""
    others = () if run.is_urgent else unfinished_runs(connection)
    return any(
        other.is_urgent and other.stop_reason is None and free_chunks(connection, other.number) for other in others
    )


def free_chunks(connection: Connection[Row], run: int, after: int = 0) -> Sequence[int]:
    """Return the next chunks that a run offers after chunk `after` and no living process has."""
    query = f"""SELECT o.chunk FROM offer o JOIN chunk c ON c.number = o.chunk
        LEFT JOIN segment g ON g.number = c.segment AND g.sealed_at IS NULL
        WHERE o.run = %s AND o.chunk > %s
            AND (g.number IS NULL OR g.worker = ANY (%s) OR NOT is_alive(g.worker))
        ORDER BY o.chunk LIMIT {_AT_ONCE}"""  # noqa: S608 - a constant of ours
    return [chunk for (chunk,) in fetch(connection, query, (run, after, dead_workers(connection)))]


def finish_chunk(connection: Connection[Row], run: int, chunk: int, segment: int, worker: int, rows: int) -> None:
    """Close the lease of a finished chunk, and withdraw its offer; its worker has sent `rows` so far."""
    with connection.transaction():
        fetch(connection, "SELECT seal_segment(%s)", (segment,))
        fetch(connection, "DELETE FROM offer WHERE run = %s AND chunk = %s", (run, chunk))
        fetch(connection, "SELECT note_place(%s, false, NULL, NULL, %s)", (worker, rows))


def note_place(connection: Connection[Row], worker: int, run: int | None, chunk: int | None) -> None:
    """Record a worker's run and chunk. Its intents are accepted only during that run."""
    fetch(connection, "SELECT note_place(%s, true, %s, %s, NULL)", (worker, run, chunk))


def workers_in(connection: Connection[Row]) -> list[WorkerLife]:
    """Return living workers, and dead ones whose chunk nobody has taken over yet, newest first."""
    query = f"""SELECT w.number, w.host, w.pid, {_TIME.format("w.since")}, {_TIME.format("w.seen_at")},
            is_alive(w.number), b.batch, w.chunk, w.rows,
            EXISTS (SELECT FROM segment g WHERE g.worker = w.number AND g.chain > 0 AND g.sealed_at IS NULL)
        FROM worker w LEFT JOIN run r ON r.number = w.run LEFT JOIN batch b ON b.number = r.batch
        WHERE w.kind = %s AND w.ended_at IS NULL ORDER BY w.seen_at DESC"""  # noqa: S608 - a constant of ours
    dead = set(dead_workers(connection))
    return [
        WorkerLife(host, pid, since, seen_at, is_alive and number not in dead, batch, chunk, rows)
        for number, host, pid, since, seen_at, is_alive, batch, chunk, rows, has_lease in fetch(
            connection, query, (HolderKind.WORKER.value,)
        )
        if has_lease or (is_alive and number not in dead)
    ]


def died_since(connection: Connection[Row], since: str) -> list[WorkerLife]:
    """Return the workers last seen after `since` that died without signing off, oldest first."""
    query = f"""SELECT w.host, w.pid, {_TIME.format("w.since")}, {_TIME.format("w.seen_at")},
            false, b.batch, w.chunk, w.rows
        FROM worker w LEFT JOIN run r ON r.number = w.run LEFT JOIN batch b ON b.number = r.batch
        WHERE w.kind = %s AND w.ended_at IS NULL AND w.seen_at > %s::timestamptz AND NOT is_alive(w.number)
        ORDER BY w.number"""  # noqa: S608 - a constant of ours
    return [WorkerLife(*line) for line in fetch(connection, query, (HolderKind.WORKER.value, since))]


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
    """Whether a living worker has a chunk and is at this run."""
    return bool(fetch(connection, _AT_WORK, (run, dead_workers(connection))))


def _offer(connection: Connection[Row], run: int) -> bool:
    """Offer the chunks of a run with rows that are due or were left in flight; return whether any is offered."""
    fetch(connection, _OFFER, (run, run))
    return bool(fetch(connection, "SELECT FROM offer WHERE run = %s LIMIT 1", (run,)))


def _end(connection: Connection[Row], run: int) -> None:
    fetch(connection, "UPDATE run SET ended_at = clock_timestamp() WHERE number = %s AND ended_at IS NULL", (run,))
    fetch(connection, "DELETE FROM offer WHERE run = %s", (run,))
