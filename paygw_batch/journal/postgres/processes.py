"""Registers the processes that write, says which of them have ended, and shows that this one lives.

Who has the desk, and which rows in flight nobody sends any more, is decided by the database's clock, never by ours.
"""

import os
import secrets
import socket
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psycopg
from psycopg import Connection

from paygw_batch.errors import HolderKind, JournalError, JournalHeld
from paygw_batch.journal.guards.lock import LockHolder
from paygw_batch.journal.port import RowBeingSent
from paygw_batch.journal.postgres.migrations import newest_version
from paygw_batch.journal.postgres.session import Row, Server, connect, fetch, limited
from paygw_batch.journal.values import Link
from paygw_batch.language import say

_SIGNS_A_LIFE = 6
_LIVING = "w.ended_at IS NULL AND is_alive(w.number) AND w.number <> ALL (%s)"


@dataclass(slots=True)
class OwnProcess:
    """This process as the database knows it, and the end of its chain of facts."""

    number: int
    end: Link


@cache
def machine() -> str:
    """Return the start of the machine and the container, in which process ids are unique."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # no Linux: the processes of another run are never known to be dead
        return os.urandom(16).hex()


def enrol(connection: Connection[Row], *, command: str, kind: HolderKind, intent_lives_s: float) -> OwnProcess:
    """Register this process. Its chain begins with bytes of its own: no other process can take it for its own."""
    about = (socket.gethostname(), machine(), os.getpid(), command, kind.value, intent_lives_s, newest_version())
    query = "SELECT number, head_hash, head_at FROM enrol(%s, %s, %s, %s, %s, %s, %s, %s)"
    ((number, start, newest),) = fetch(connection, query, (*about, secrets.token_bytes(16)))
    return OwnProcess(number, Link(0, start, newest))


def end_life(connection: Connection[Row], number: int) -> None:
    """Record that a process has ended: it sends nothing more."""
    fetch(connection, "SELECT end_life(%s)", (number,))


def dead_processes(connection: Connection[Row]) -> list[int]:
    """Return the processes of this machine that ended without signing off."""
    query = "SELECT number, pid FROM process WHERE ended_at IS NULL AND boot = %s AND host = %s"
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


def rows_being_sent(connection: Connection[Row], batch: int) -> list[RowBeingSent]:
    """Return the rows of a batch that living processes have in flight, in the sheet's order."""
    query = f"""SELECT i.number, v.row, i.country, i.currency, i.minor
        FROM covered v JOIN state s ON s.instruction = v.instruction AND s.state = 'in_flight'
            JOIN instruction i ON i.number = s.instruction JOIN fact f ON f.number = s.intent
            JOIN process w ON w.number = f.process
        WHERE v.batch = %s AND {_LIVING} ORDER BY 2"""  # noqa: S608 - a constant of ours
    return [RowBeingSent(*line) for line in fetch(connection, query, (batch, dead_processes(connection)))]


def holder_now(connection: Connection[Row]) -> LockHolder | None:
    """Return the living process that has the desk or, if none has, one that sends for a run."""
    query = f"""{_HOLDER} LEFT JOIN desk d ON d.process = w.number
        WHERE {_LIVING} AND (d.process IS NOT NULL OR w.run IS NOT NULL)
        ORDER BY d.process IS NULL, w.number LIMIT 1"""
    found = fetch(connection, query, (dead_processes(connection),))
    return _holder_of(found[0]) if found else None


def desk_taken(connection: Connection[Row]) -> JournalHeld:
    """Return the error that names the process which has the desk."""
    found = fetch(connection, f"{_HOLDER} JOIN desk d ON d.process = w.number")
    if not found:
        return JournalHeld()
    holder = _holder_of(found[0])
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


_HOLDER = """SELECT w.pid, w.host, to_char(w.since AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), w.command, w.kind
    FROM process w"""


def _holder_of(line: Row) -> LockHolder:
    pid, host, since, command, kind = line
    return LockHolder(pid, host, since, command, HolderKind(kind))


class SignsOfLife:
    """Reports regularly to the database that this process is alive, on a second connection and in a thread.

    Nothing that keeps a row from being sent twice relies on them: they spare the rows of a slow gateway, which would
    come into doubt by the age of their intents alone.
    """

    def __init__(self, server: Server, number: int, intent_lives_s: float) -> None:
        self._server, self._number = server, number
        self._every_s = intent_lives_s / _SIGNS_A_LIFE
        self._stop = threading.Event()
        self._connection: Connection[Row] | None = None
        self._thread = threading.Thread(target=self._show_on, name="signs of life", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and wait for a sign that is under way."""
        self._stop.set()
        self._thread.join()
        if self._connection is not None:
            self._connection.close()

    def _show_on(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                if self._connection is None or self._connection.closed:
                    self._connection = connect(self._server, write=True)
                    self._connection.execute("SET synchronous_commit = off")  # a lost sign is only late
                with limited(self._connection, self._server.commit_limit_s):
                    fetch(self._connection, "SELECT show_life(%s)", (self._number,))
            except (psycopg.Error, JournalError):
                continue  # the next one may get through
