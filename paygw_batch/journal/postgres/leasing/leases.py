"""Takes leases: the right of one process to write one chain of facts, until another process takes it over.

A lease ends by the database's clock, never by ours. The process that takes one closes the chain of the previous lease,
and no fact can follow there: the clock only decides how soon that may happen.
"""

import os
import socket
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import psycopg
from psycopg import Connection

from paygw_batch.clock import ElapsedS, elapsed_s
from paygw_batch.errors import HolderKind, JournalError, JournalHeld
from paygw_batch.journal.guards.lock import LockHolder
from paygw_batch.journal.port import RowBeingSent
from paygw_batch.journal.postgres.migrations import newest_version
from paygw_batch.journal.postgres.session import Row, Server, connect, fetch, limited
from paygw_batch.journal.values import Link
from paygw_batch.language import say

DESK = 0
"""The chain of people's decisions and of evidence."""
_BEATS_A_LEASE = 6


@dataclass(slots=True)
class Lease:
    """A chain that this process may write, and its end. `is_clear`: no row of an earlier lease is in flight there."""

    segment: int
    chain: int
    end: Link
    is_clear: bool


@dataclass(slots=True)
class HeldLeases:
    """The leases of a process: the desk, chunks by number, and, after it lost any, a chain for late answers."""

    worker: int
    desk: Lease | None
    chunks: dict[int, Lease] = field(default_factory=dict)
    own: Lease | None = None

    def all(self) -> list[Lease]:
        """Return every lease."""
        return [*self.chunks.values(), *(lease for lease in (self.desk, self.own) if lease is not None)]

    def lose(self, segments: Collection[int]) -> None:
        """Forget leases that another process has taken over."""
        self.chunks = {chunk: lease for chunk, lease in self.chunks.items() if lease.segment not in segments}
        self.desk = None if self.desk is not None and self.desk.segment in segments else self.desk


@cache
def machine() -> str:
    """Return the start of the machine and the container, in which process ids are unique."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # no Linux: the processes of another run are never known to be dead
        return os.urandom(16).hex()


def enrol(connection: Connection[Row], *, command: str, kind: HolderKind, lease_s: float) -> int:
    """Register this process as a worker, and return its number."""
    line = (socket.gethostname(), machine(), os.getpid(), command, kind.value, lease_s, newest_version())
    ((number,),) = fetch(connection, "SELECT enrol(%s, %s, %s, %s, %s, %s, %s)", line)
    return int(number)


def take(connection: Connection[Row], chain: int, worker: int) -> Lease | None:
    """Take the lease of a chain inside the open transaction; None while another process has it."""
    query = "SELECT number, head_hash, head_at, is_clear FROM take_lease(%s, %s, %s)"
    found = fetch(connection, query, (chain, worker, dead_workers(connection)))
    if not found:
        return None
    ((segment, start, newest, is_clear),) = found
    return Lease(segment, chain, Link(0, start, newest), is_clear)


def dead_workers(connection: Connection[Row]) -> list[int]:
    """Return the workers of this machine whose process ended without signing off."""
    query = "SELECT number, pid FROM worker WHERE ended_at IS NULL AND boot = %s AND host = %s"
    found = fetch(connection, query, (machine(), socket.gethostname()))
    return [number for number, pid in found if not _is_running(pid)]


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it lives, and belongs to someone else
        return True
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return True
    return stat.rpartition(b")")[2].split()[:1] not in ([b"Z"], [b"X"])


def holder_of(connection: Connection[Row], chain: int, *, living: bool = False) -> LockHolder | None:
    """Return the process that has the lease of a chain, or None; with `living`, also None for a dead process."""
    found = fetch(
        connection,
        """SELECT w.number, w.pid, w.host, to_char(w.since AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), w.command,
            w.kind, is_alive(w.number)
        FROM segment g JOIN worker w ON w.number = g.worker WHERE g.chain = %s AND g.sealed_at IS NULL""",
        (chain,),
    )
    if not found or (living and (not found[0][6] or found[0][0] in dead_workers(connection))):
        return None
    ((_, pid, host, since, command, kind, _),) = found
    return LockHolder(pid, host, since, command, HolderKind(kind))


def rows_being_sent(connection: Connection[Row], batch: int) -> list[RowBeingSent]:
    """Return the rows of a batch that living processes have in flight, in the sheet's order."""
    query = """SELECT i.number, v.row, i.country, i.currency, i.minor
        FROM segment g JOIN chunk c ON c.number = g.chain
            JOIN state s ON s.instruction BETWEEN c.first AND c.last AND s.state = 'in_flight'
            JOIN covered v ON v.instruction = s.instruction AND v.batch = %s
            JOIN instruction i ON i.number = s.instruction
        WHERE g.sealed_at IS NULL AND g.chain > 0 AND is_alive(g.worker) AND g.worker <> ALL (%s) ORDER BY 2"""
    return [RowBeingSent(*line) for line in fetch(connection, query, (batch, dead_workers(connection)))]


def sender_now(connection: Connection[Row]) -> LockHolder | None:
    """Return a living process that leases a chunk, or None."""
    found = fetch(connection, "SELECT chain FROM segment WHERE sealed_at IS NULL AND chain > 0 ORDER BY chain")
    holders = (holder_of(connection, chain, living=True) for (chain,) in found)
    return next((holder for holder in holders if holder is not None), None)


def held_by(connection: Connection[Row], chain: int) -> JournalHeld:
    """Return the error that names the process which has the lease of a chain."""
    holder = holder_of(connection, chain)
    if holder is None:
        return JournalHeld()
    refusal = JournalHeld(
        say(
            "Another run holds this journal: process {pid} on {host}, since {since}: {command}.",
            pid=holder.pid,
            host=holder.host,
            since=holder.since,
            command=holder.command,
        )
    )
    refusal.holder = holder.kind
    return refusal


def seal(connection: Connection[Row], segment: int) -> None:
    """Close one lease: no fact can follow in its chain."""
    fetch(connection, "SELECT seal_segment(%s)", (segment,))


def give_back(connection: Connection[Row], segments: Sequence[int], worker: int) -> None:
    """Close leases, and record that the process has ended, in one transaction."""
    with connection.transaction():
        for segment in sorted(segments):
            seal(connection, segment)
        fetch(connection, "SELECT end_life(%s)", (worker,))


class Heartbeat:
    """Reports regularly to the database that this process is alive, on a second connection and in a thread.

    `is_good` uses this machine's clock: a process that was frozen or cut off knows, without asking the database, that
    its leases may have been taken over.
    """

    def __init__(self, server: Server, worker: int, lease_s: float, now_s: ElapsedS = elapsed_s) -> None:
        self._server, self._worker, self._lease_s = server, worker, lease_s
        self.now_s = now_s
        """The clock by which this machine counts its leases: it also runs while the machine sleeps."""
        self.margin_s = lease_s / 2
        """For this long after a sign of life we count on our leases; the other half of a lease is a margin."""
        self._seen_s = now_s()
        self._stop = threading.Event()
        self._connection: Connection[Row] | None = None
        self._thread = threading.Thread(target=self._beat_on, name="journal heartbeat", daemon=True)
        self._thread.start()

    def is_good(self) -> bool:
        """Whether no other process can consider this one dead yet, with half of the lease as a margin."""
        # Our own clock, not the database's: a process that slept through its lease wakes up with an open connection and
        # signed requests. It must stop by itself, before it hears that another worker has its rows.
        return self.now_s() < self._seen_s + self.margin_s

    def seen(self, since_s: float) -> None:
        """Record a commit that began at `since_s`: it showed the database that this process is alive."""
        # Count from the start of the commit: the database may have noted it at any time from then on.
        self._seen_s = max(self._seen_s, since_s)

    def close(self) -> None:
        """Stop, and wait for a beat that is under way."""
        self._stop.set()
        self._thread.join()
        if self._connection is not None:
            self._connection.close()

    def _beat_on(self) -> None:
        while not self._stop.wait(self._lease_s / _BEATS_A_LEASE):
            since_s, is_good = self.now_s(), self.is_good()
            try:
                if self._connection is None or self._connection.closed:
                    self._connection = connect(self._server, write=True)
                    self._connection.execute("SET synchronous_commit = off")  # a lost beat is only late
                with limited(self._connection, self._server.commit_limit_s):
                    fetch(self._connection, "SELECT show_life(%s)", (self._worker,))
            except (psycopg.Error, JournalError):
                continue  # the next one may get through; until then `is_good` ends by itself
            if is_good:  # after too long a silence only a commit can prove that the leases are still ours
                self.seen(since_s)
