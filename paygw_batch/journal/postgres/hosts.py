"""Compares this host's sent logs with the database, and answers the roll-call.

A restored database, or a promoted standby that lagged, is consistent, but would pay rows again. Only hosts that sent
rows in the lost commits can detect this, by their sent logs. So no host sends until all hosts have compared their sent
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

_LOSS_HINT = mark(
    "Nothing was sent. Restore the database's newest data, because sending from this database could pay rows twice. "
    "Run `paygw-batch journal roll-call --accept-loss` on this host only if the data is permanently lost. Rows that "
    "were sent but are missing from the database are then put in doubt."
)


class IncarnationChanged(Exception):
    """Another process on this host has connected to a different incarnation of the database."""


_INCARNATION_BYTES = 128


class IncarnationFile:
    """Names the incarnation of the database (cluster, timeline, database) that sent logs were compared with.

    To log a commit, a process locks the file, which must name the incarnation that the process is connected to. Before
    a process compares the sent logs with another incarnation, it writes that one to the file. So each commit is either
    in the compared logs or never sent, even if its process was frozen before logging it.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "life"
        self._fd = open_private(self._path)
        weakref.finalize(self, os.close, self._fd)
        self._incarnation = ""

    @contextmanager
    def lock_incarnation(self) -> Iterator[None]:
        """Lock the file for the block. Raises `IncarnationChanged` if it no longer names our incarnation."""
        fcntl.flock(self._fd, fcntl.LOCK_SH)
        try:
            if self._read() != self._incarnation:
                raise IncarnationChanged
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def switch_to(self, incarnation: str) -> None:
        """Write an incarnation to the file. The caller must then compare the sent logs with the database.

        Raises `JournalTooOld` if its timeline is earlier than the one in the file, and `OpenRollCall` while another
        process on this host is logging a commit.
        """
        if self._read() != incarnation:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OpenRollCall(say("Another process on this host is still recording its payments.")) from None
            try:
                self._require_not_earlier(incarnation)
                os.pwrite(self._fd, incarnation.encode("ascii").ljust(_INCARNATION_BYTES), 0)
                os.fsync(self._fd)
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        self._incarnation = incarnation

    def _read(self) -> str:
        return os.pread(self._fd, _INCARNATION_BYTES, 0).decode("ascii", "replace").strip()

    def _require_not_earlier(self, incarnation: str) -> None:
        (cluster, timeline, database), seen = incarnation.split(), self._read().split()
        if seen[::2] == [cluster, database] and timeline < seen[1]:
            raise JournalTooOld(
                say("This host has seen a newer timeline of the database than this one: a standby took over."),
                hint=say(
                    "Nothing was sent. Set [journal] url to the newest database. Remove {path} only if that database "
                    "is permanently lost.",
                    path=self._path,
                ),
            )


class ProcessSentLog:
    """A process's sent log: the first one in `folder` that no other process has locked. Locked until `close`."""

    def __init__(self, folder: Path, incarnation_file: IncarnationFile, *, now: str, command: str) -> None:
        self._incarnation_file = incarnation_file
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
        """Durably add a line for a commit. Raises `OSError` and `IncarnationChanged`."""
        with self._incarnation_file.lock_incarnation():
            self._log.log_commit(number, digest, at, attempts)

    def close(self) -> None:
        self._log.close()
        self._lock.close()


def lock_log(folder: Path, name: str, *, now: str, command: str) -> RunLock:
    """Lock the sent log of a writer on this host. Raises `JournalHeld` if another process has already locked it."""
    return RunLock(folder / f"{name}.lock", now=now, command=command, wait=LockWait(limit_s=0.0))


def load_host_id(folder: Path) -> str:
    """Load this host's secret id from a journal's folder, or create it. Raises `JournalError`.

    A new id is durable before anything is sent, because a host that loses its id counts as another host.
    """
    path = folder / "host"
    # The lock keeps two processes from creating the file simultaneously.
    with translating_os_errors(mark("{path} cannot be written: {reason}."), path=path), lock_folder(folder):
        if not check_file(path):
            with replacement_file(path) as file:
                file.write(secrets.token_hex(16).encode())
    host_id = path.read_text(encoding="ascii", errors="replace")
    if re.fullmatch("[0-9a-f]{32}", host_id) is None:
        raise JournalError(
            say("{path} is damaged: this host's id is missing from it.", path=path),
            hint=say(
                "Nothing was sent. Remove the file. This host will then count as a new one, and the old one will be "
                "missing from the roll-call."
            ),
        )
    return host_id


def public_id(host_id: str) -> str:
    """Return a digest of a host's secret id. Unlike the secret, it does not allow anybody to impersonate the host."""
    return hashlib.sha256(f"paygw host {host_id}".encode()).hexdigest()[:32]


def commit_counts(folder: Path) -> list[int]:
    """Return the number of commits in each of this host's numbered sent logs, in order from number 1."""
    counts: dict[int, int] = {}
    for name in writer_names(folder):
        number = name.removeprefix("left-")
        if number.isdecimal() and (line := newest_line(folder, name)) is not None:
            counts[int(number)] = line.count - 1
    return [counts.get(number, 0) for number in range(1, max(counts, default=0) + 1)]


def check_sent_log(connection: Connection[Row], server: Server, folder: Path) -> None:
    """Raise `JournalTooOld` if the newest commit of any of this host's sent logs is missing from the database."""
    lines = newest_lines(folder)
    present_lines = find_present_lines(connection, lines)
    for line in lines:
        if line not in present_lines:
            raise JournalTooOld(
                say(
                    "The journal in {place} does not have fact {number}, which this host recorded: the database is an "
                    "older copy.",
                    place=server.location,
                    number=line.number,
                ),
                hint=say(_LOSS_HINT),
            )


def find_present_lines(connection: Connection[Row], lines: Sequence[SentLogLine]) -> Collection[SentLogLine]:
    query = "SELECT number, hash FROM fact WHERE number = ANY (%s)"
    hashes: dict[int, bytes] = dict(fetch(connection, query, ([line.number for line in lines],))) if lines else {}
    return {line for line in lines if not line.number or hashes.get(line.number) == bytes.fromhex(line.hash)}


def newest_fact(connection: Connection[Row]) -> tuple[int, str, str]:
    lines = fetch(connection, "SELECT number, hash, at FROM fact ORDER BY number DESC LIMIT 1")
    return (lines[0][0], lines[0][1].hex(), lines[0][2]) if lines else (0, "", "")


_RETIRED, _OLDER = "PW007", "PW012"


@dataclass(frozen=True, slots=True)
class MissingHost:
    """A host that has not answered the roll-call: its public id and name, and when it was last seen."""

    host_id: str
    name: str
    seen_at: str
    is_alive: bool = False
    """Whether the host was seen recently, after the roll-call began. If so, only that host can accept its loss."""


class RollCall:
    """Answers a journal's roll-call for this host. `folder` contains the host's sent logs."""

    def __init__(self, server: Server, folder: Path) -> None:
        self._server, self._folder = server, folder
        self._secret = load_host_id(folder)
        self.host_id = public_id(self._secret)
        self.incarnation_file = IncarnationFile(folder)

    def answer(self, connection: Connection[Row]) -> None:
        """Answer the roll-call for this host. Raises `JournalTooOld`, or `OpenRollCall` if other hosts are missing."""
        missing = self.register(connection)
        if missing:
            names = ", ".join(f"{host.name} (last seen {host.seen_at})" for host in missing)
            raise OpenRollCall(
                say(
                    "The database {place} was restored, or a standby took over. Nothing can be sent until every host "
                    "has checked that its rows are there. Hosts that have not checked: {names}.",
                    place=self._server.location,
                    names=names,
                )
            )

    def register(self, connection: Connection[Row]) -> Sequence[MissingHost]:
        """Answer the roll-call for this host. Returns the hosts that have not answered. Raises `JournalTooOld`."""
        ((incarnation,),) = fetch(connection, "SELECT database_life()")
        try:
            # The file is written before the sent logs are compared. From then on, processes cannot log commits of the
            # old incarnation, so none is added after the comparison.
            self.incarnation_file.switch_to(incarnation)
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
                    "This computer's record of the payments it sent ({folder}) has fewer entries than when this host "
                    "last answered the roll-call. It is an older copy, or part of it is missing.",
                    folder=self._folder,
                ),
                hint=say(
                    "Nothing was sent. Restore the newest files of that record. Run `paygw-batch journal roll-call "
                    "--accept-loss` on this host only if they are lost. Rows that this host could have sent are then "
                    "in doubt."
                ),
            ) from None

    def retired_error(self) -> JournalError:
        return JournalError(
            say(
                "This host was retired from the journal in {place}: the rows that it had not finished are in doubt.",
                place=self._server.location,
            ),
            hint=say(
                "Nothing was sent. To use this host again, remove its record of the payments it sent: the folder "
                "{folder}.",
                folder=self._folder,
            ),
        )

    def has_older_logs(self, connection: Connection[Row]) -> bool:
        """Return whether this host's sent logs contain fewer commits than when it last answered."""
        counts = commit_counts(self._folder)
        return fetch(connection, "SELECT left_is_older(%s, %s)", (self.host_id, counts)) == [(True,)]

    def is_retired(self, connection: Connection[Row]) -> bool:
        query = "SELECT FROM roll_answer WHERE host_id = %s AND retired_by <> ''"
        return bool(fetch(connection, query, (self.host_id,)))


def missing_hosts(connection: Connection[Row]) -> Sequence[MissingHost]:
    """Return the hosts that have not answered the roll-call, with human-readable times."""
    query = """SELECT host_id, name, to_char(seen_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI "UTC"'), lives(host_id)
        FROM missing_host ORDER BY 2, 1"""
    return [MissingHost(*line) for line in fetch(connection, query)]
