"""The witness of this host: the newest commit that its processes saw, in small files outside the database.

Behind it are the intents of earlier commits (`intent_log`): if commits are lost, they tell which rows left.

A database that was restored, or a lagging standby that was promoted, is consistent, and would pay rows again. A host
detects it, because it has seen newer commits. Each writing process has its own file; before anything is sent, they are
all compared with the database. Withdrawals have a file of their own, for all processes of the host: one is in it before
its command answers.
"""

import fcntl
import hashlib
import os
import re
import secrets
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Protocol

from psycopg import Connection

from paygw_batch.errors import JournalError, JournalHeld, JournalWentBack, RollCallOpen, WitnessDamaged
from paygw_batch.files import replacing, sync_directory
from paygw_batch.journal.guards.location import check_file, open_private
from paygw_batch.journal.guards.lock import LockWait, RunLock
from paygw_batch.journal.guards.witness import Witness, WitnessedHead, note_newest, read_witness
from paygw_batch.journal.postgres.leasing.intent_log import IntentLog, LogEnd, Noted, end_in, log_key
from paygw_batch.journal.postgres.session import Row, Server, fetch
from paygw_batch.journal.values import Link
from paygw_batch.language import mark, say

_LOST = mark(
    "Nothing was sent. Restore the newest data of the database: sending from this one could pay rows twice. "
    "Only if it is lost for good, run `paygw-batch journal roll-call --accept-loss` on this host: it puts in "
    "doubt the rows that were sent but that the database does not know."
)


class CommitWitness(Protocol):
    """The interface of a witness, which notes each commit."""

    def note(self, segment: int, end: Link, noted: Sequence[Noted] = ()) -> None:
        """Durably note the commit with this end, and its attempts. Raises `OSError` and `LifeOver`."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


@dataclass(frozen=True, slots=True)
class NewestCommit:
    """The content of a witness's slot: one end of the newest commit, and the position of the earlier intents."""

    segment: int
    seq: int
    hash: bytes
    log: LogEnd

    def as_text(self) -> str:
        """Return the text for a slot."""
        return f"{self.segment}.{self.seq}.{self.hash.hex()}.{self.log.as_text()}"


def newest_commit(seen: WitnessedHead) -> NewestCommit | None:
    """Return the newest commit that a witness saw; None if it saw none. Raises `WitnessDamaged`."""
    if seen.seq == 0:
        return None
    try:
        segment, seq, digest, log = seen.hash.split(".", 3)
        return NewestCommit(int(segment), int(seq), bytes.fromhex(digest), end_in(log))
    except ValueError:
        raise WitnessDamaged(
            say("The witness of the journal {journal_id} is damaged.", journal_id=seen.journal_id), hint=say(_LOST)
        ) from None


def witness_files(directory: Path, journal_id: str) -> list[Path]:
    """Return the witnesses of this host's processes."""
    return sorted(directory.glob(f"{journal_id}-*.pg-witness"))


class LifeOver(Exception):
    """Another process of this host has compared its witnesses with another life of the database."""


_LIFE_BYTES = 128


class HostLife:
    """The life of the database that the witnesses of this host were compared with last, in a file beside them.

    Whoever notes a commit holds the file, and must find the life there that it is connected to. Whoever compares the
    witnesses with another life writes it there first. So a commit is among what was compared, or nothing of it leaves,
    however long its process was frozen before it noted it.
    """

    def __init__(self, directory: Path, journal_id: str) -> None:
        self._path = directory / f"{journal_id}.pg-life"
        self._fd = open_private(self._path)
        weakref.finalize(self, os.close, self._fd)
        self._entered = ""

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Hold the life that this process entered. Raises `LifeOver`."""
        fcntl.flock(self._fd, fcntl.LOCK_SH)
        try:
            if self._written() != self._entered:
                raise LifeOver
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def enter(self, life: str) -> None:
        """Enter a life of the database; its witnesses are compared after that.

        Raises `JournalWentBack` for an earlier timeline of the life in the file, and `RollCallOpen` while another
        process of this host notes a commit.
        """
        if self._written() != life:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RollCallOpen(say("Another process of this machine is still noting what it sends.")) from None
            try:
                self._require_not_before(life)
                os.pwrite(self._fd, life.encode("ascii").ljust(_LIFE_BYTES), 0)
                os.fsync(self._fd)
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        self._entered = life

    def _written(self) -> str:
        return os.pread(self._fd, _LIFE_BYTES, 0).decode("ascii", "replace").strip()

    def _require_not_before(self, life: str) -> None:
        (cluster, timeline, database), written = life.split(), self._written().split()
        if written[::2] == [cluster, database] and timeline < written[1]:
            raise JournalWentBack(
                say("This machine has seen a newer timeline of the database than this one: a standby took over."),
                hint=say(
                    "Nothing was sent. Name the newest database in [journal] url. Only if it is lost for good, remove "
                    "{path}.",
                    path=self._path,
                ),
            )


class HostWitness:
    """The witness of one process: holds the first free file of its journal in `directory` until `close`."""

    def __init__(self, directory: Path, journal_id: str, life: HostLife, *, now: str, command: str) -> None:
        self._journal_id, self._life = journal_id, life
        for number in count(1):
            path = directory / f"{journal_id}-{number}.pg-witness"
            with suppress(JournalHeld):
                self._lock = hold_witness(path, now=now, command=command)
                break
        try:
            seen = read_witness(path) or WitnessedHead(journal_id, 0, "-")
            newest = newest_commit(seen)
            self._count = seen.seq
            self._file = Witness(path, seen)
            key = log_key(journal_id, host_id_in(directory, journal_id))
            self._log = IntentLog(self._file, key, LogEnd() if newest is None else newest.log)
        except BaseException:
            self._lock.close()
            raise

    def note(self, segment: int, end: Link, noted: Sequence[Noted] = ()) -> None:
        """Durably note the commit with this end, and its attempts, with one flush. Raises `OSError` and `LifeOver`."""
        # One flush makes the record and the slot durable, in either order. The slot names the record by digest, so a
        # slot without its record is detected as damage; nothing leaves before the flush returns.
        with self._life.noting():
            if noted:
                self._log.add(segment, end, noted)
            self._count += 1
            newest = NewestCommit(segment, end.seq, end.hash, self._log.end)
            self._file.note(WitnessedHead(self._journal_id, self._count, newest.as_text()))

    def close(self) -> None:
        """Release the file to other processes."""
        self._file.close()
        self._lock.close()


def _withdrawals_file(directory: Path, journal_id: str) -> Path:
    return directory / f"{journal_id}.pg-withdrawn"


def note_withdrawal(directory: Path, journal_id: str, number: int, digest: bytes) -> None:
    """Note durably that this host has recorded a withdrawal: number and hash of its fact. Raises `OSError`."""
    note_newest(_withdrawals_file(directory, journal_id), WitnessedHead(journal_id, number, digest.hex()))


def hold_witness(path: Path, *, now: str, command: str) -> RunLock:
    """Hold one witness of this host. Raises `JournalHeld` if another process has it."""
    return RunLock(path.with_name(f"{path.name}.lock"), now=now, command=command, wait=LockWait(limit_s=0.0))


def host_id_in(directory: Path, journal_id: str) -> str:
    """Return this host's secret id for a journal, from a file beside its witness; create it if there is none.

    Raises `JournalError`. It is durable before anything is sent: a host without its files is another host.
    """
    path = directory / f"{journal_id}.pg-host"
    held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)  # of two processes at the same moment, one creates it
        if not check_file(path):
            with replacing(path) as file:
                file.write(secrets.token_hex(16).encode())
    except OSError as error:
        raise JournalError(
            say("{path} cannot be written: {reason}.", path=path, reason=say(str(error.strerror)))
        ) from None
    finally:
        os.close(held)
    host_id = path.read_text(encoding="ascii", errors="replace")
    if re.fullmatch("[0-9a-f]{32}", host_id) is None:
        raise JournalError(
            say("{path} is damaged: it does not name this host.", path=path),
            hint=say(
                "Nothing was sent. Remove it: this host is then a new one, and the roll-call asks for the old one."
            ),
        )
    return host_id


def public_id(host_id: str) -> str:
    """Return the name of a host in the database: a digest, so that nobody can impersonate the host by it."""
    return hashlib.sha256(f"paygw host {host_id}".encode()).hexdigest()[:32]


def set_aside(directory: Path, journal_id: str) -> None:
    """Rename the witnesses of this host: the database has their rows now."""
    withdrawals = _withdrawals_file(directory, journal_id)
    for path in (*witness_files(directory, journal_id), *([withdrawals] if check_file(withdrawals) else [])):
        path.rename(path.with_name(f"{path.name}.accepted-{secrets.token_hex(4)}"))
    sync_directory(directory)


def counts_in(directory: Path, journal_id: str) -> list[int]:
    """Return the number of commits that each witness of this host has noted, by file."""
    counts: dict[int, int] = {}
    for path in witness_files(directory, journal_id):
        number = path.name.removeprefix(f"{journal_id}-").removesuffix(".pg-witness")
        seen = read_witness(path)
        if seen is not None and number.isdecimal():
            counts[int(number)] = seen.seq
    return [counts.get(number, 0) for number in range(1, max(counts, default=0) + 1)]


def check_witnesses(connection: Connection[Row], server: Server, directory: Path, journal_id: str) -> None:
    """Raise `JournalWentBack` unless the database has the commits, and the withdrawal, that this host saw last."""
    for path in witness_files(directory, journal_id):
        seen = read_witness(path, say(_LOST))
        newest = None if seen is None else newest_commit(seen)
        if newest is not None and not has_commit(connection, newest.segment, newest.seq, newest.hash):
            raise JournalWentBack(
                say(
                    "The journal in {place} does not have fact {seq} of lease {segment}, on which this machine "
                    "has sent: the database is an older copy.",
                    place=server.place,
                    seq=newest.seq,
                    segment=newest.segment,
                ),
                hint=say(_LOST),
            )

    seen = read_witness(_withdrawals_file(directory, journal_id), say(_LOST))
    if seen is None:
        return
    found = fetch(connection, "SELECT hash FROM fact WHERE number = %s", (seen.seq,))
    if found != [(bytes.fromhex(seen.hash),)]:
        raise JournalWentBack(
            say(
                "The journal in {place} does not have fact {number}, a withdrawal that this machine recorded: the "
                "database is an older copy.",
                place=server.place,
                number=seen.seq,
            ),
            hint=say(_LOST),
        )


def has_commit(connection: Connection[Row], segment: int, seq: int, digest: bytes) -> bool:
    """Whether the database has a commit, by one of its ends."""
    found = fetch(connection, "SELECT hash FROM fact WHERE segment = %s AND seq = %s", (segment, seq))
    return found == [(digest,)]
