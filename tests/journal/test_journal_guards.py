"""The lock file: its checks and its errors."""

import errno
import fcntl
import json
import os
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from paygw_batch.errors import JournalError, JournalHeld
from paygw_batch.journal.lock import LockWait, RunLock
from tests.support.journal_rows import AT


def test_removed_lock_file_is_recreated(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, flock, calls = place / "a.lock", fcntl.flock, []

    def remove_and_lock(fd: int, operation: int) -> None:
        calls.append(fd)
        if len(calls) == 1:
            path.unlink()
        flock(fd, operation)

    monkeypatch.setattr("paygw_batch.journal.lock.fcntl.flock", remove_and_lock)
    with closing(RunLock(path, now=AT, command="a test")), pytest.raises(JournalHeld):
        RunLock(path, now=AT, command="another test")


def count_waits(place: Path, pid: int) -> int:
    """Try a lock that another process holds under `pid`; return the number of waits."""
    waits = [0]

    def sleep(_: float) -> None:
        waits[0] += 1

    clock = iter(range(100))
    with (place / "a.lock").open("w") as other:
        (place / "a.lock").chmod(0o600)
        json.dump({"pid": pid, "host": os.uname().nodename, "since": AT, "command": "submit", "kind": "run"}, other)
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(JournalHeld):
            RunLock(
                place / "a.lock",
                now=AT,
                command="a test",
                wait=LockWait(monotonic_s=lambda: float(next(clock)), sleep=sleep, limit_s=5),
            )
    return waits[0]


def test_unreaped_process_counts_as_dead(place: Path) -> None:
    with subprocess.Popen(["/bin/true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended but remains a zombie
        assert count_waits(place, child.pid) > 0


def test_process_of_other_user_counts_as_living(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_signal(_pid: int, _signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr("paygw_batch.journal.lock.os.kill", refuse_signal)
    assert count_waits(place, 1) == 0


def test_unwritable_lock_error_names_reason(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_with_full_disk(_fd: int, _content: bytes, _at: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("paygw_batch.journal.lock.os.pwrite", fail_with_full_disk)
    with pytest.raises(JournalError, match=r"a\.lock cannot be written: No space left on device\.") as raised:
        RunLock(place / "a.lock", now=AT, command="a test")
    assert raised.value.hint == "Free some disk space, then run again."
