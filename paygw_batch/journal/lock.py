"""The lock that lets one run at a time write a journal: the operating system's, so that it ends when its holder does.

`flock` and not POSIX record locks: those are lost when any descriptor of the file is closed anywhere in the process,
and do not keep a second opening in the same process out. The lock is on a file of its own beside the journal, because
no one but SQLite may open and close the database file while it is in use.
"""

import fcntl
import json
import os
import socket
import weakref
from pathlib import Path
from typing import Protocol

from paygw_batch.errors import JournalError, JournalHeld
from paygw_batch.journal.place import open_private

_HOLDER_BYTES = 4096
_held: "weakref.WeakSet[RunLock]" = weakref.WeakSet()


class WriteLock(Protocol):
    """What a writer asks of its lock: held until `close`."""

    def close(self) -> None:
        """Let another run have the journal."""
        ...


class RunLock:
    """The right to write one journal, held from construction to `close` or the end of the process.

    Raises `JournalHeld`, naming the holder, when another run has it; nothing is waited for.
    """

    def __init__(self, path: Path, *, now: str, command: str) -> None:
        self._fd: int | None = None
        fd = _lock(path)
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": now, "command": command}
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(holder).encode(), 0)
        except OSError as error:
            os.close(fd)
            raise JournalError(
                f"The journal's lock {path} cannot be written: {error.strerror}.",
                hint="Free some room, run again.",
            ) from None
        self._fd = fd
        _held.add(self)

    def close(self) -> None:
        """Let another run have the journal."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def _lock(path: Path) -> int:
    """Return a descriptor that holds the lock on the file that stands at `path` now."""
    while True:
        fd = open_private(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held = _held_by(fd)
            os.close(fd)
            raise held from None
        if _is_same_file(fd, path):
            return fd
        os.close(fd)  # someone removed the file between opening and locking it: a lock on it would keep no one out


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def _held_by(fd: int) -> JournalHeld:
    try:
        holder = json.loads(os.pread(fd, _HOLDER_BYTES, 0))
        command = str(holder["command"])
        told = f"process {holder['pid']} on {holder['host']}, since {holder['since']}: {command}"
    except (ValueError, TypeError, KeyError):  # it has the lock, and has not written its name yet
        command, told = "", "it has just started"
    held = JournalHeld(f"Another run holds this journal: {told}.")
    held.command = command
    return held


def _let_go_in_child() -> None:
    """Close the descriptors a forked child inherits, which would keep the lock alive after its parent has ended."""
    for lock in list(_held):
        lock.close()


os.register_at_fork(after_in_child=_let_go_in_child)
