"""Lock and witness by themselves: what a run finds in them, and what it says of them."""

import errno
import fcntl
import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from paygw_batch.errors import JournalError, JournalHeld, JournalWentBack
from paygw_batch.journal.guards.lock import LockWait, RunLock
from paygw_batch.journal.guards.witness import (
    Witness,
    WitnessedHead,
    make_witness,
    missing_journal,
    read_witness,
    require_not_older,
    retire,
    seen_elsewhere,
    witness_path,
)
from tests.journal.journal_rows import AT

ID, OTHER = "a" * 32, "b" * 32


def seen(seq: int, journal_id: str = ID) -> WitnessedHead:
    return WitnessedHead(journal_id, seq, hashlib.sha256(b"%d" % seq).hexdigest())


@pytest.mark.parametrize("notes", [1, 2, 3])
def test_a_witness_that_knows_the_end_of_the_journal_is_opened_without_a_write(
    place: Path, notes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that is torn could lose the newest slot, and the other one is older."""
    path, writes = place / "a.witness", []
    with closing(Witness(path, seen(1))) as witness:
        for seq in range(2, 2 + notes):
            witness.note(seen(seq))
    monkeypatch.setattr("paygw_batch.journal.guards.witness.os.pwrite", lambda *given: writes.append(given))
    Witness(path, seen(1 + notes)).close()
    assert writes == []


@pytest.mark.parametrize("notes", [1, 2, 3])
def test_a_witness_that_is_opened_again_writes_over_the_older_of_its_slots(place: Path, notes: int) -> None:
    path = place / "a.witness"
    with closing(Witness(path, seen(1))) as witness:
        for seq in range(2, 2 + notes):
            witness.note(seen(seq))
    newest = 1 + notes
    with closing(Witness(path, seen(newest))) as witness:
        witness.note(seen(newest + 1))
    content = path.read_bytes()
    path.write_bytes(content.replace(b" %d " % (newest + 1), b" 9 "))  # that write was torn
    assert read_witness(path) == seen(newest)


def test_a_witness_is_found_by_its_journals_path_alone(tmp_path: Path) -> None:
    assert witness_path(tmp_path, Path("/var/pay/journal.sqlite3")).name == "82fd95b627fd70fba5eddeddd4f4380b.witness"


def test_the_witnesses_of_one_journal_are_found_among_others_and_are_kept_under_its_name(place: Path) -> None:
    for name, one in (("1", seen(3)), ("2", seen(5, OTHER)), ("3", seen(4))):
        make_witness(place / f"{name}.witness", one)
    assert list(seen_elsewhere(place, ID)) == [(place / "1.witness", seen(3)), (place / "3.witness", seen(4))]
    retire(place / "2.witness", seen(5, OTHER))
    assert sorted(path.name for path in place.iterdir()) == ["1.witness", "3.witness", f"{OTHER}.witness"]
    assert read_witness(place / f"{OTHER}.witness") == seen(5, OTHER)


def test_a_damaged_witness_says_how_to_go_on(place: Path) -> None:
    make_witness(path := place / "a.witness", seen(1))
    path.write_bytes(b"?" * 8192)
    with pytest.raises(JournalError) as found:
        read_witness(path)
    assert found.value.hint == (
        "If you know that the journal is the newest one, remove the witness file and confirm it with "
        "`paygw-batch journal adopt`."
    )


def hash_of(number: int) -> str:
    return f"another {number}"


@pytest.mark.parametrize(
    "hold",
    [
        lambda path: require_not_older(seen(3), path, found=seen(9, OTHER), hash_at=hash_of),
        lambda path: require_not_older(seen(3), path, found=seen(2), hash_at=hash_of),
        lambda path: require_not_older(seen(3), path, found=seen(9), hash_at=hash_of),
    ],
)
def test_a_journal_that_its_witness_does_not_know_names_the_witness(hold: Callable[[Path], None]) -> None:
    with pytest.raises(JournalWentBack) as found:
        hold(Path("/w/a.witness"))
    assert "remove /w/a.witness and confirm with `paygw-batch journal adopt`" in found.value.hint


def test_a_journal_that_is_gone_is_made_anew_by_someone_who_asked_the_gateway() -> None:
    hint = missing_journal(Path("/j"), seen(3)).hint
    assert "Only if it is lost for good and you have checked with the gateway what was paid, make another one" in hint


def test_a_lock_on_a_file_that_was_removed_meanwhile_keeps_nobody_out_and_is_taken_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flock, calls = place / "a.lock", fcntl.flock, []

    def removed_before(fd: int, operation: int) -> None:
        calls.append(fd)
        if len(calls) == 1:
            path.unlink()
        flock(fd, operation)

    monkeypatch.setattr("paygw_batch.journal.guards.lock.fcntl.flock", removed_before)
    with closing(RunLock(path, now=AT, command="a test")), pytest.raises(JournalHeld):
        RunLock(path, now=AT, command="another test")


def waits_for(place: Path, pid: int) -> int:
    """Try a lock that another process holds in the name of `pid`; return how often its end was waited for."""
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


def test_a_process_that_ended_and_was_not_asked_for_yet_is_dead(place: Path) -> None:
    with subprocess.Popen(["/bin/true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
        assert waits_for(place, child.pid) > 0


def test_a_process_of_somebody_else_lives(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_pid: int, _signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr("paygw_batch.journal.guards.lock.os.kill", refused)
    assert waits_for(place, 1) == 0


def test_a_lock_that_cannot_be_written_says_why(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_fd: int, _content: bytes, _at: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("paygw_batch.journal.guards.lock.os.pwrite", full)
    with pytest.raises(JournalError, match=r"a\.lock cannot be written: No space left on device\.") as found:
        RunLock(place / "a.lock", now=AT, command="a test")
    assert found.value.hint == "Free some disk space, then run again."
