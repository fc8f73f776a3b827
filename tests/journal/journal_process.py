"""Runs a journal as a process for tests to kill: `python -m tests.journal.journal_process ACTION DIRECTORY`."""

import subprocess
import sys
import time
from pathlib import Path

from paygw_batch.errors import JournalError
from paygw_batch.journal.lock import RunLock
from tests.support.journal_rows import AT, due_rows, intent, open_journal_at


def hold(folder: Path) -> None:
    journal = open_journal_at(folder)
    sys.stdout.write(f"held {journal.head().seq}\n")
    sys.stdout.flush()
    time.sleep(600)


def hand_down(folder: Path) -> None:
    """Hold a lock, and start a process that inherits its descriptor, as between fork and exec."""
    lock = RunLock(folder / "a.lock", now=AT, command="submit")
    assert lock._fd is not None
    child = subprocess.Popen(["/bin/sleep", "600"], pass_fds=[lock._fd])
    sys.stdout.write(f"{child.pid}\n")
    sys.stdout.flush()
    time.sleep(600)


def claim(folder: Path) -> None:
    """Try to open the journal and claim its only due row."""
    sys.stdin.readline()
    try:
        journal = open_journal_at(folder)
    except JournalError as error:
        sys.stdout.write(f"refused {type(error).__name__}: {error}\n")
        return
    moved = [journal.append([intent(due)]) for due in due_rows(journal, 1)]
    sys.stdout.write(f"claimed {len(moved)}\n")
    sys.stdout.flush()
    sys.stdin.readline()
    journal.close()


if __name__ == "__main__":
    {"hold": hold, "hand_down": hand_down, "claim": claim}[sys.argv[1]](Path(sys.argv[2]))
