"""Two runs, and a run that is killed: with real processes."""

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import HolderKind, InternalError, JournalHeld, JournalUnwritable
from paygw_batch.journal.lock import LockWait, RunLock
from paygw_batch.journal.values import MoveResult
from tests.support.journal_rows import AT, all_due, intent, journal_path, open_at, open_sheet, outcome_of, read_at

SCRIPT = "tests.journal.journal_process"
ROOT = Path(__file__).parents[2]


@contextmanager
def started(what: str, place: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", SCRIPT, what, str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_second_run_is_refused_with_journal_holder(place: Path) -> None:
    with started("hold", place) as holder:
        assert line_of(holder) == "held 0"
        with pytest.raises(JournalHeld) as found:
            open_at(place)
        assert f"process {holder.pid} on {os.uname().nodename}, since {AT}: a test" in str(found.value)


def test_killing_holder_releases_lock(place: Path) -> None:
    with started("hold", place) as holder:
        line_of(holder)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        open_at(place).close()


def test_stopped_process_keeps_journal_lock(place: Path) -> None:
    with started("hold", place) as holder:
        line_of(holder)
        holder.send_signal(signal.SIGSTOP)
        with pytest.raises(JournalHeld):
            open_at(place)
        holder.send_signal(signal.SIGCONT)
        with pytest.raises(JournalHeld):
            open_at(place)


def test_the_same_process_cannot_open_a_journal_twice(place: Path) -> None:
    with closing(open_at(place)), pytest.raises(JournalHeld):
        open_at(place)
    open_at(place).close()


def test_lock_with_empty_file_excludes_others(place: Path) -> None:
    path = place / "a.lock"
    with path.open("w") as other:
        path.chmod(0o600)
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(JournalHeld, match="it has just started") as found:
            RunLock(path, now=AT, command="a test")
    assert found.value.holder is HolderKind.STARTING


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ({"command": "listen", "kind": "listener"}, HolderKind.LISTENER),
        ({"command": "listen", "kind": "run"}, HolderKind.RUN),
        ({"command": "", "kind": "run"}, HolderKind.RUN),
        ({"command": "", "kind": "a later version's"}, HolderKind.RUN),
    ],
)
def test_lock_holder_kind_ignores_command_name(place: Path, written: dict[str, str], kind: HolderKind) -> None:
    path = place / "a.lock"
    with path.open("w") as other:
        path.chmod(0o600)
        json.dump({"pid": 1, "host": "here", "since": AT, **written}, other)
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(JournalHeld) as found:
            RunLock(path, now=AT, command="a test")
    assert found.value.holder is kind


def test_lock_names_holder_kind(place: Path) -> None:
    path = place / "a.lock"
    with closing(RunLock(path, now=AT, command="listen", kind=HolderKind.LISTENER)):
        assert json.loads(path.read_text())["kind"] == "listener"
        with pytest.raises(JournalHeld, match=r"process \d+ on") as found:
            RunLock(path, now=AT, command="a test")
    assert found.value.holder is HolderKind.LISTENER


@pytest.fixture
def orphaned(place: Path) -> Iterator[int]:
    """A lock whose named holder was killed, while a process that it started still has it: that process's id."""
    with started("hand_down", place) as holder:
        child = int(line_of(holder))
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        try:
            yield child
        finally:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def test_lock_inherited_by_child_is_waited_for(place: Path, orphaned: int) -> None:
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            os.kill(orphaned, signal.SIGKILL)  # what comes after exec in a real child: it lets go
        elif len(waits) > 3:
            time.sleep(seconds)  # until the system has closed its files

    lock = RunLock(place / "a.lock", now=AT, command="a test", wait=LockWait(sleep=sleep, limit_s=60.0))
    lock.close()
    assert len(waits) >= 3


def test_wait_for_abandoned_lock_is_limited(place: Path, orphaned: int) -> None:
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    wait = LockWait(monotonic_s=lambda: clock[0], sleep=sleep)
    with pytest.raises(JournalHeld, match="That process has ended, and a process that it started still has the lock"):
        RunLock(place / "a.lock", now=AT, command="a test", wait=wait)
    assert wait.limit_s <= clock[0] < wait.limit_s + 1
    os.kill(orphaned, 0)


def test_a_living_holder_is_not_waited_for(place: Path) -> None:
    def sleep(_: float) -> None:
        raise AssertionError("it was waited for")

    lock = RunLock(place / "a.lock", now=AT, command="a test")
    with closing(lock), pytest.raises(JournalHeld) as found:
        RunLock(place / "a.lock", now=AT, command="another test", wait=LockWait(sleep=sleep))
    assert "has ended" not in found.value.message


def test_holder_on_other_machine_counts_as_living(place: Path, orphaned: int) -> None:
    path = place / "a.lock"
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "host": "another-machine"}))
    with pytest.raises(JournalHeld, match="on another-machine"):
        RunLock(path, now=AT, command="a test", wait=LockWait(sleep=lambda _: pytest.fail("it was waited for")))
    os.kill(orphaned, 0)


def test_started_program_does_not_inherit_lock(place: Path) -> None:
    journal = open_at(place)
    command = ["/bin/sh", "-c", "echo started; exec sleep 60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, close_fds=False, text=True) as child:
        assert line_of(child) == "started"
        journal.close()
        open_at(place).close()
        child.kill()


def test_forked_child_neither_locks_nor_writes_journal(place: Path) -> None:
    journal = open_at(place)
    open_sheet(journal)
    (due, *_) = all_due(journal, 1)
    ready_read, ready_write = os.pipe()
    child = os.fork()
    if child == 0:  # nothing but what is under test: pytest must not go on in two processes
        try:
            journal.append([intent(due)])
        except InternalError:
            os.write(ready_write, b"refused")
        except BaseException as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
            os.write(ready_write, type(error).__name__.encode())
        else:
            os.write(ready_write, b"written")
        signal.pause()
    assert os.read(ready_read, 100) == b"refused"
    journal.close()
    open_at(place).close()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(ready_read)
    os.close(ready_write)


def test_only_one_of_four_runs_gets_journal(place: Path) -> None:
    with closing(open_at(place)) as journal:
        open_sheet(journal, new=1)
    with ExitStack() as stack:
        runs = [stack.enter_context(started("claim", place)) for _ in range(4)]
        for run in runs:
            assert run.stdin is not None
            run.stdin.write("go\n")
            run.stdin.flush()
        words = sorted(line_of(run).split()[0] for run in runs)
        assert words[0] == "claimed"
        assert words[1:] == ["refused"] * 3
    with closing(open_at(place)) as journal:
        assert journal.mark_interrupted(AT) == 1


def test_foreign_fact_stops_run_without_lock_file(place: Path) -> None:
    """Someone deletes the lock while a run holds it: the chain itself lets only one of two go on."""
    with closing(open_at(place)) as first:
        open_sheet(first)
        one, two, three = all_due(first, 1)
        assert list(first.append([intent(one)])) == [MoveResult.MOVED]
        journal_path(place).with_name("journal.sqlite3.lock").unlink()
        with closing(open_at(place)) as second:
            assert second.mark_interrupted(AT) == 1
            assert list(second.append([intent(two)])) == [MoveResult.MOVED]
            for entry in (intent(two), intent(three), outcome_of(one.number, 1, OutcomeKind.PAID)):
                with pytest.raises(JournalUnwritable, match="another process has written to it"):
                    first.append([entry])
            assert [row.state for row in first.rows(1)] == [State.IN_DOUBT, State.IN_FLIGHT, State.READY]
            assert list(second.append([outcome_of(two.number, 1, OutcomeKind.PAID)])) == [MoveResult.MOVED]
            second.verify()


@pytest.mark.share(3)
@pytest.mark.parametrize("seed", range(6))
def test_killed_run_has_noted_everything_sent(place: Path, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - the same moments every time
    with started("send", place) as run:
        assert line_of(run) == "held"
        assert run.stdout is not None
        said = [line_of(run) for _ in range(chance.randrange(1, 400))]
        run.send_signal(signal.SIGKILL)
        said += run.stdout.read().splitlines()
    sent = {int(line.split()[1]) for line in said if line.startswith("sent")}
    intending = {int(line.split()[1]) for line in said if line.startswith("intending") and len(line.split()) == 2}
    with closing(open_at(place)) as journal:
        journal.verify()
        in_doubt = journal.mark_interrupted(AT)
        states = {number: row.state for number, row in enumerate(journal.rows(1), start=1)}
    assert sent <= {number for number, state in states.items() if state is not State.READY} <= intending
    assert in_doubt == 1 if sent else in_doubt <= 1
    assert all(states[number] is State.PAID for number in sorted(sent)[:-1])
    with closing(read_at(place)) as reader:
        assert not sent & {due.number for due in all_due(reader, 1)}
        reader.verify()
