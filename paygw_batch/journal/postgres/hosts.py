"""Compares this host's sent log with the database, and answers the roll-call.

A restored database, or a promoted standby that lagged, is consistent and would pay rows again. Only a host that sent
rows in the lost commits can detect this, by its sent log. So no host sends before all hosts have compared their sent
logs with the database.
"""

import fcntl
import hashlib
import os
import re
import secrets
import socket
import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psycopg
from psycopg import Connection

from paygw_batch.errors import JournalError, JournalHeld, JournalTooOld, OpenRollCall
from paygw_batch.files import replacement_file
from paygw_batch.journal.lock import LockWait, RunLock, check_file, open_private, translating_os_errors
from paygw_batch.journal.postgres.session import Row, Server, fetch
from paygw_batch.journal.sent_log import (
    LoggedAttempt,
    SentLog,
    SentLogLine,
    lock_folder,
    newest_line,
    newest_lines,
    writer_names,
)
from paygw_batch.language import mark, say

_LOST = mark(
    "Nothing was sent. Restore the newest data of the database: sending from this one could pay rows twice. "
    "Only if it is lost for good, run `paygw-batch journal roll-call --accept-loss` on this host: it puts in "
    "doubt the rows that were sent but that the database does not know."
)


class LifeOver(Exception):
    """Another process of this host compared the sent log with another life of the database."""


_LIFE_BYTES = 128


class HostLife:
    """The database life that this host's sent log was last compared with: cluster, timeline and database.

    A process that logs a commit locks the life's file, which must contain the life that the process is connected to. A
    process that compares the log with another life first writes that life to the file. So a commit is in the compared
    log or nothing of it is sent, even if its process was frozen before it logged the commit.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "life"
        self._fd = open_private(self._path)
        weakref.finalize(self, os.close, self._fd)
        self._entered = ""

    @contextmanager
    def lock_life(self) -> Iterator[None]:
        """Lock the file during the block. Raises `LifeOver` if it no longer contains this process's life."""
        fcntl.flock(self._fd, fcntl.LOCK_SH)
        try:
            if self._life_in_file() != self._entered:
                raise LifeOver
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def enter(self, life: str) -> None:
        """Enter a life of the database. The caller must then compare the sent log.

        Raises `JournalTooOld` for an earlier timeline of the life in the file, and `OpenRollCall` while another process
        of this host is logging a commit.
        """
        if self._life_in_file() != life:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OpenRollCall(say("Another process of this machine is still recording its payments.")) from None
            try:
                self._require_not_earlier(life)
                os.pwrite(self._fd, life.encode("ascii").ljust(_LIFE_BYTES), 0)
                os.fsync(self._fd)
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        self._entered = life

    def _life_in_file(self) -> str:
        return os.pread(self._fd, _LIFE_BYTES, 0).decode("ascii", "replace").strip()

    def _require_not_earlier(self, life: str) -> None:
        (cluster, timeline, database), written = life.split(), self._life_in_file().split()
        if written[::2] == [cluster, database] and timeline < written[1]:
            raise JournalTooOld(
                say("This machine has seen a newer timeline of the database than this one: a standby took over."),
                hint=say(
                    "Nothing was sent. Set [journal] url to the newest database. Only if it is lost for good, remove "
                    "{path}.",
                    path=self._path,
                ),
            )


class ProcessSentLog:
    """One process's sent log: the first free one in the journal's `folder`, locked until `close`."""

    def __init__(self, folder: Path, life: HostLife, *, now: str, command: str) -> None:
        self._life = life
        for number in count(1):
            name = f"left-{number}"
            with suppress(JournalHeld):
                self._lock = lock_log(folder, name, now=now, command=command)
                break
        try:
            line = newest_line(folder, name)
            self._log = SentLog(folder, name, (0, "", now) if line is None else (line.number, line.hash, line.at))
        except BaseException:
            self._lock.close()
            raise

    def log_commit(self, number: int, digest: str, at: str, attempts: Sequence[LoggedAttempt] = ()) -> None:
        """Add a line for a commit durably. Raises `OSError` and `LifeOver`."""
        with self._life.lock_life():
            self._log.log_commit(number, digest, at, attempts)

    def close(self) -> None:
        self._log.close()
        self._lock.close()


def lock_log(folder: Path, name: str, *, now: str, command: str) -> RunLock:
    """Lock the sent log of a writer of this host. Raises `JournalHeld` if another process has it."""
    return RunLock(folder / f"{name}.lock", now=now, command=command, wait=LockWait(limit_s=0.0))


def load_host_id(folder: Path) -> str:
    """Load this host's secret id for a journal from a file in its folder, or create it.

    The file is durable before anything is sent, because a host without its files counts as another host. Raises
    `JournalError`.
    """
    path = folder / "host"
    # The lock lets only one of two simultaneous processes create the file.
    with translating_os_errors(mark("{path} cannot be written: {reason}."), path=path), lock_folder(folder):
        if not check_file(path):
            with replacement_file(path) as file:
                file.write(secrets.token_hex(16).encode())
    host_id = path.read_text(encoding="ascii", errors="replace")
    if re.fullmatch("[0-9a-f]{32}", host_id) is None:
        raise JournalError(
            say("{path} is damaged: it does not contain this host's id.", path=path),
            hint=say(
                "Nothing was sent. Remove the file. This host then counts as a new one, and the roll-call "
                "asks for the old one."
            ),
        )
    return host_id


def public_id(host_id: str) -> str:
    """Return a host's public id: a digest, so that nobody who reads it can impersonate the host."""
    return hashlib.sha256(f"paygw host {host_id}".encode()).hexdigest()[:32]


def commit_counts(folder: Path) -> list[int]:
    """Return the number of logged commits of each process of this host, in the order of the processes' numbers."""
    counts: dict[int, int] = {}
    for name in writer_names(folder):
        number = name.removeprefix("left-")
        if number.isdecimal() and (line := newest_line(folder, name)) is not None:
            counts[int(number)] = line.count - 1
    return [counts.get(number, 0) for number in range(1, max(counts, default=0) + 1)]


def check_sent_log(connection: Connection[Row], server: Server, folder: Path) -> None:
    """Raise `JournalTooOld` if the database lacks the newest logged commit of a process of this host."""
    lines = newest_lines(folder)
    present_lines = find_present_lines(connection, lines)
    for line in lines:
        if line not in present_lines:
            raise JournalTooOld(
                say(
                    "The journal in {place} does not have fact {number}, which this machine recorded: the "
                    "database is an older copy.",
                    place=server.place,
                    number=line.number,
                ),
                hint=say(_LOST),
            )


def find_present_lines(connection: Connection[Row], lines: Sequence[SentLogLine]) -> Collection[SentLogLine]:
    """Return the log lines whose facts are in the database."""
    query = "SELECT number, hash FROM fact WHERE number = ANY (%s)"
    hashes: dict[int, bytes] = dict(fetch(connection, query, ([line.number for line in lines],))) if lines else {}
    return {line for line in lines if not line.number or hashes.get(line.number) == bytes.fromhex(line.hash)}


def newest_fact(connection: Connection[Row]) -> tuple[int, str, str]:
    """Return the number, hash (hex) and time of the newest fact in a database."""
    lines = fetch(connection, "SELECT number, hash, at FROM fact ORDER BY number DESC LIMIT 1")
    return (lines[0][0], lines[0][1].hex(), lines[0][2]) if lines else (0, "", "")


_RETIRED, _OLDER = "PW007", "PW012"


@dataclass(frozen=True, slots=True)
class MissingHost:
    """A host that has not answered the roll-call: its id, its name, and when it was last seen."""

    host_id: str
    name: str
    seen_at: str
    lives: bool = False
    """Whether the host was seen since the roll-call began. Such a host must accept its loss itself."""


class RollCall:
    """This host's part in the roll-call of one journal. `folder` has the sent log of this host."""

    def __init__(self, server: Server, folder: Path) -> None:
        self._server, self._folder = server, folder
        self._secret = load_host_id(folder)
        self.host_id = public_id(self._secret)
        self.life = HostLife(folder)

    def answer(self, connection: Connection[Row]) -> None:
        """Answer for this host. Raises `JournalTooOld`, and `OpenRollCall` while other hosts have not answered."""
        missing = self.register(connection)
        if missing:
            names = ", ".join(f"{host.name} (last seen {host.seen_at})" for host in missing)
            raise OpenRollCall(
                say(
                    "The database {place} was restored, or a standby took over. Nothing is sent until every host has "
                    "checked that its rows are there. Missing: {names}.",
                    place=self._server.place,
                    names=names,
                )
            )

    def register(self, connection: Connection[Row]) -> Sequence[MissingHost]:
        """Answer for this host and return the hosts that have not answered. Raises `JournalTooOld`."""
        ((life,),) = fetch(connection, "SELECT database_life()")
        try:
            # The life is entered before the sent log is compared. From here on, a process that still logs a commit of
            # the old life is refused, so no line is added after the comparison.
            self.life.enter(life)
            check_sent_log(connection, self._server, self._folder)
            return [MissingHost(*line) for line in self._send_answer(connection)]
        except JournalTooOld:
            fetch(connection, "SELECT call_roll(%s, %s)", (self._secret, socket.gethostname()))
            raise

    def _send_answer(self, connection: Connection[Row]) -> list[Row]:
        is_synchronous = self._server.replication == "synchronous"
        try:
            return fetch(
                connection,
                "SELECT host_id, name, seen_at FROM answer_roll(%s, %s, %s, %s)",
                (self._secret, socket.gethostname(), is_synchronous, commit_counts(self._folder)),
            )
        except psycopg.Error as error:
            if error.sqlstate == _RETIRED:
                raise self.retired_error() from None
            if error.sqlstate != _OLDER:
                raise
            raise JournalTooOld(
                say(
                    "This computer's record of the payments it sent ({folder}) has fewer entries than when it last "
                    "answered: it is an older copy, or a part of it is gone.",
                    folder=self._folder,
                ),
                hint=say(
                    "Nothing was sent. Put its newest files back. Only if they are lost, run `paygw-batch journal "
                    "roll-call --accept-loss` on this host: every row that it could have sent is then in doubt."
                ),
            ) from None

    def retired_error(self) -> JournalError:
        return JournalError(
            say(
                "This host was retired from the journal in {place}: the rows that it had not finished are in doubt.",
                place=self._server.place,
            ),
            hint=say(
                "Nothing was sent. To use this host again, remove its record of the payments it sent: the folder "
                "{folder}.",
                folder=self._folder,
            ),
        )

    def is_older(self, connection: Connection[Row]) -> bool:
        """Return whether this host has logged fewer commits than when it last answered."""
        counts = commit_counts(self._folder)
        return fetch(connection, "SELECT left_is_older(%s, %s)", (self.host_id, counts)) == [(True,)]

    def is_retired(self, connection: Connection[Row]) -> bool:
        query = "SELECT FROM roll_answer WHERE host_id = %s AND retired_by <> ''"
        return bool(fetch(connection, query, (self.host_id,)))


def missing_hosts(connection: Connection[Row]) -> Sequence[MissingHost]:
    """Return the hosts that have not answered, with human-readable times."""
    query = """SELECT host_id, name, to_char(seen_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI "UTC"'), lives(host_id)
        FROM missing_host ORDER BY 2, 1"""
    return [MissingHost(*line) for line in fetch(connection, query)]
