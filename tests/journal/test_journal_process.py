"""Concurrent and killed runs, with real processes."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import HolderKind, JournalError, JournalHeld, JournalUnwritable
from paygw_batch.journal.lock import LockWait, RunLock
from paygw_batch.journal.values import MoveResult
from tests.support.journal_rows import (
    AT,
    due_rows,
    intent,
    journal_path,
    open_journal_at,
    open_sheet,
    outcome_of,
    states,
)


@contextmanager
def start_process(action: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.journal.journal_process", action, str(folder)]
    root, pipe = Path(__file__).parents[2], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=root) as process:
        try:
            yield process
        finally:
            process.kill()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_running_or_stopped_holder_keeps_lock_until_killed(folder: Path) -> None:
    with start_process("hold", folder) as holder:
        assert read_line(holder) == "held 0"
        for number in (signal.SIGCONT, signal.SIGSTOP, signal.SIGCONT):
            holder.send_signal(number)
            with pytest.raises(JournalHeld) as raised:
                open_journal_at(folder)
            assert f"process {holder.pid} on {os.uname().nodename}, since {AT}: a test" in str(raised.value)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        open_journal_at(folder).close()


def test_same_process_cannot_open_journal_twice(folder: Path) -> None:
    with closing(open_journal_at(folder)), pytest.raises(JournalHeld):
        open_journal_at(folder)
    open_journal_at(folder).close()


def test_lock_held_by_listener_names_it(folder: Path) -> None:
    """Commands wait for it, and rows in flight are not shown as being sent by it."""
    path = folder / "a.lock"
    listening = closing(RunLock(path, now=AT, command="listen", kind=HolderKind.LISTENER))
    with listening, pytest.raises(JournalHeld) as raised:
        RunLock(path, now=AT, command="a test")
    assert raised.value.holder is HolderKind.LISTENER


@contextmanager
def hold_lock(path: Path, written: Mapping[str, object] | None) -> Iterator[None]:
    """Hold a lock in a file that names its holder."""
    with path.open("w") as other:
        path.chmod(0o600)
        if written is not None:
            json.dump({"pid": 1, "host": "here", "since": AT, **written}, other)
            other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        yield


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        (None, HolderKind.STARTING),
        ({"command": "listen", "kind": "listener"}, HolderKind.LISTENER),
        ({"command": "listen", "kind": "run"}, HolderKind.RUN),
        *(({"command": "", "kind": kind}, HolderKind.RUN) for kind in ("run", "a later version's")),
    ],
)
def test_lock_holder_kind_ignores_command_name(folder: Path, written: dict[str, str] | None, kind: HolderKind) -> None:
    sentence = "process 1 on here" if written else "it has just started"
    with hold_lock(folder / "a.lock", written), pytest.raises(JournalHeld, match=sentence) as raised:
        RunLock(folder / "a.lock", now=AT, command="a test")
    assert raised.value.holder is kind


@pytest.fixture
def orphan_pid(folder: Path) -> Iterator[int]:
    with start_process("hand_down", folder) as holder:
        child = int(read_line(holder))
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        try:
            yield child
        finally:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def test_process_waits_for_lock_inherited_by_child(folder: Path, orphan_pid: int) -> None:
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            os.kill(orphan_pid, signal.SIGKILL)  # as after exec in a real child, the lock is released
        elif len(waits) > 3:
            time.sleep(seconds)  # waits until the system has closed its files

    RunLock(folder / "a.lock", now=AT, command="a test", wait=LockWait(sleep=sleep, limit_s=60.0)).close()
    assert len(waits) >= 3


def test_wait_for_abandoned_lock_is_limited(folder: Path, orphan_pid: int) -> None:
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    wait = LockWait(monotonic_s=lambda: clock[0], sleep=sleep)
    with pytest.raises(JournalHeld, match="That process has ended, but a process that it started still holds the lock"):
        RunLock(folder / "a.lock", now=AT, command="a test", wait=wait)
    assert wait.limit_s <= clock[0] < wait.limit_s + 1
    os.kill(orphan_pid, 0)


def test_process_does_not_wait_for_live_holder(folder: Path) -> None:
    sleep = Mock(side_effect=AssertionError("it was waited for"))
    with closing(RunLock(folder / "a.lock", now=AT, command="a test")), pytest.raises(JournalHeld) as raised:
        RunLock(folder / "a.lock", now=AT, command="another test", wait=LockWait(sleep=sleep))
    assert "has ended" not in raised.value.message


def test_holder_on_another_machine_counts_as_alive(folder: Path, orphan_pid: int) -> None:
    path = folder / "a.lock"
    holder = json.loads(path.read_text())
    path.write_text(json.dumps({**holder, "host": "another-machine"}))
    with pytest.raises(JournalHeld, match="on another-machine"):
        RunLock(path, now=AT, command="a test", wait=LockWait(sleep=lambda _: pytest.fail("it was waited for")))
    os.kill(orphan_pid, 0)


def test_started_program_does_not_inherit_lock(folder: Path) -> None:
    journal = open_journal_at(folder)
    command = ["/bin/sh", "-c", "echo started; exec sleep 60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, close_fds=False, text=True) as child:
        assert read_line(child) == "started"
        journal.close()
        open_journal_at(folder).close()
        child.kill()


def test_forked_child_neither_locks_nor_writes_journal(folder: Path) -> None:
    journal = open_journal_at(folder)
    open_sheet(journal)
    (due, *_) = due_rows(journal, 1)
    ready_read, ready_write = os.pipe()
    child = os.fork()
    if child == 0:  # pytest must not continue in the child process
        said = "written"
        try:
            journal.append([intent(due)])
        except BaseException as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
            said = type(error).__name__
        os.write(ready_write, said.encode())
        signal.pause()
    assert os.read(ready_read, 100) == b"InternalError"
    journal.close()
    open_journal_at(folder).close()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(ready_read)
    os.close(ready_write)


def test_only_one_of_four_runs_gets_journal(folder: Path) -> None:
    with closing(open_journal_at(folder)) as journal:
        open_sheet(journal, new=1)
    with ExitStack() as stack:
        runs = [stack.enter_context(start_process("claim", folder)) for _ in range(4)]
        for run in runs:
            assert run.stdin is not None
            run.stdin.write("go\n")
            run.stdin.flush()
        words = sorted(read_line(run).split()[0] for run in runs)
        assert words[0] == "claimed"
        assert words[1:] == ["refused"] * 3
    with closing(open_journal_at(folder)) as journal:
        assert journal.mark_interrupted(AT) == 1


def test_fact_by_another_process_stops_run(folder: Path) -> None:
    """If the lock file is deleted during a run, the chain still lets only one of two runs continue."""
    with closing(open_journal_at(folder)) as first:
        open_sheet(first)
        one, two, three = due_rows(first, 1)
        assert list(first.append([intent(one)])) == [MoveResult.MOVED]
        journal_path(folder).with_name("journal.sqlite3.lock").unlink()
        with closing(open_journal_at(folder)) as second:
            assert second.mark_interrupted(AT) == 1
            assert list(second.append([intent(two)])) == [MoveResult.MOVED]
            for entry in (intent(two), intent(three), outcome_of(one.number, 1, OutcomeKind.PAID)):
                with pytest.raises(JournalUnwritable, match="another process has written to it"):
                    first.append([entry])
            assert states(first) == [State.IN_DOUBT, State.IN_FLIGHT, State.READY]
            assert list(second.append([outcome_of(two.number, 1, OutcomeKind.PAID)])) == [MoveResult.MOVED]
            second.verify()


# The checks of the lock file, and its errors.
def test_removed_lock_file_is_recreated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, flock, calls = folder / "a.lock", fcntl.flock, []

    def remove_and_lock(fd: int, operation: int) -> None:
        calls.append(fd)
        if len(calls) == 1:
            path.unlink()
        flock(fd, operation)

    monkeypatch.setattr("paygw_batch.journal.lock.fcntl.flock", remove_and_lock)
    with closing(RunLock(path, now=AT, command="a test")), pytest.raises(JournalHeld):
        RunLock(path, now=AT, command="another test")


def count_waits(folder: Path, pid: int) -> int:
    """Try a lock that another process holds under `pid`; return the number of waits."""
    clock, sleep = iter(range(100)), Mock()
    wait = LockWait(monotonic_s=lambda: float(next(clock)), sleep=sleep, limit_s=5)
    holder = {"pid": pid, "host": os.uname().nodename, "command": "submit", "kind": "run"}
    with hold_lock(folder / "a.lock", holder), pytest.raises(JournalHeld):
        RunLock(folder / "a.lock", now=AT, command="a test", wait=wait)
    return sleep.call_count


def test_zombie_counts_as_dead_but_foreign_process_alive(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["/bin/true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended but remains a zombie
        assert count_waits(folder, child.pid) > 0
    monkeypatch.setattr("paygw_batch.journal.lock.os.kill", Mock(side_effect=PermissionError))
    assert count_waits(folder, 1) == 0


def test_error_about_unwritable_lock_names_reason(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with_full_disk = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    monkeypatch.setattr("paygw_batch.journal.lock.os.pwrite", fail_with_full_disk)
    with pytest.raises(JournalError, match=r"a\.lock cannot be written: No space left on device\.") as raised:
        RunLock(folder / "a.lock", now=AT, command="a test")
    assert raised.value.hint == "Free some disk space, then try again."
