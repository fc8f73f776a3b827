"""The witness of this host: the newest commit that its processes saw, in small files outside of the database.

A database that was restored, or that a lagging standby took over from, is sound in itself, and would have rows paid
again. It is found because a host has seen more. Each process that writes has a file of its own; what any of them saw
is held against the database before anything is sent.
"""

import fcntl
import os
import re
import secrets
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Protocol

from psycopg import Connection

from paygw_batch.errors import JournalError, JournalHeld, JournalWentBack
from paygw_batch.journal.facts.chain import Link
from paygw_batch.journal.guards.location import check_file, sync_directory
from paygw_batch.journal.guards.lock import LockWait, RunLock
from paygw_batch.journal.guards.witness import Seen, Witness, read_witness
from paygw_batch.journal.postgres.session import Row, Server, fetch
from paygw_batch.language import say


class CommitWitness(Protocol):
    """The interface of a witness that each commit is noted by."""

    def note(self, segment: int, end: Link) -> None:
        """Make durable that the commit with this end was seen. Raises `OSError`."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class HostWitness:
    """The witness of one process: the first free file of its journal in `directory`, held until `close`."""

    def __init__(self, directory: Path, journal_id: str, *, now: str, command: str) -> None:
        self._journal_id = journal_id
        for number in count(1):
            path = directory / f"{journal_id}-{number}.pg-witness"
            with suppress(JournalHeld):
                self._lock = RunLock(
                    path.with_name(f"{path.name}.lock"), now=now, command=command, wait=LockWait(limit_s=0.0)
                )
                break
        try:
            seen = read_witness(path) or Seen(journal_id, 0, "-")
            self._count = seen.seq
            self._file = Witness(path, seen)
        except BaseException:
            self._lock.close()
            raise

    def note(self, segment: int, end: Link) -> None:
        """Make durable that the commit with this end was seen. Raises `OSError`."""
        self._count += 1
        self._file.note(Seen(self._journal_id, self._count, f"{segment}.{end.seq}.{end.hash.hex()}"))

    def close(self) -> None:
        """Let another process have the file."""
        self._file.close()
        self._lock.close()


def host_id_in(directory: Path, journal_id: str) -> str:
    """Return the id of this host for a journal, kept beside its witness; made where there is none.

    Raises `JournalError`. It is durable before anything is sent: a host without its files is another host.
    """
    path = directory / f"{journal_id}.pg-host"
    held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)  # two processes at the same moment: one makes it
        if not check_file(path):
            temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, secrets.token_hex(16).encode())
                os.fsync(fd)
            finally:
                os.close(fd)
            temporary.rename(path)
            os.fsync(held)
    except OSError as error:
        raise JournalError(f"{path} cannot be written: {error.strerror}.") from None
    finally:
        os.close(held)
    host_id = path.read_text(encoding="ascii", errors="replace")
    if re.fullmatch("[0-9a-f]{32}", host_id) is None:
        raise JournalError(
            f"{path} is damaged: it does not name this host.",
            hint="Nothing was sent. Remove it: this host is then a new one, and the roll-call asks for the old one.",
        )
    return host_id


def set_aside(directory: Path, journal_id: str) -> None:
    """Keep the witness of a host that was retired under other names: from here on it is a new host."""
    for path in sorted(directory.glob(f"{journal_id}*.pg-*")):
        if path.suffix in {".pg-witness", ".pg-host"}:
            path.rename(path.with_name(f"{path.name}.retired-{secrets.token_hex(4)}"))
    sync_directory(directory)


def check_witnesses(connection: Connection[Row], server: Server, directory: Path, journal_id: str) -> None:
    """Raise `JournalWentBack` unless the database has every commit that a process of this host saw last."""
    for path in sorted(directory.glob(f"{journal_id}-*.pg-witness")):
        seen = read_witness(path)
        if seen is None or seen.seq == 0:
            continue
        segment, seq, digest = seen.hash.split(".")
        found = fetch(connection, "SELECT hash FROM fact WHERE segment = %s AND seq = %s", (int(segment), int(seq)))
        if found != [(bytes.fromhex(digest),)]:
            raise JournalWentBack(
                say(
                    "The journal in {place} does not have fact {seq} of lease {segment}, which this machine has sent "
                    "on: the database is an older copy.",
                    place=server.place,
                    seq=seq,
                    segment=segment,
                ),
                hint=say(
                    "Nothing was sent. Bring the newest data of the database back: sending from this one could pay "
                    "rows twice. Only if it is lost for good: `paygw-batch journal retire` puts every row that this "
                    "host could have sent in doubt."
                ),
            )
