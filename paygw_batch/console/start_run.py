"""Starts runs as separate processes, which outlive the console, and checks whether they are alive.

The journal records what a run did. The files here only identify its process, so that it can be paused, and store its
summary, in case it ended before it wrote to the journal.
"""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from paygw_batch.clock import timestamp, utc_now
from paygw_batch.errors import UsageError
from paygw_batch.files import write_atomically
from paygw_batch.journal import make_directory
from paygw_batch.language import say

_MAX_SUMMARY_BYTES = 1024 * 1024
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class StartedRun:
    """A run started for a batch. A later process may have the same `pid`, but not the same `started_ticks`."""

    batch: str
    pid: int
    started_ticks: str
    by: str
    at: str
    is_pausing: bool = False
    """Whether somebody paused the run, which then stops after the rows in flight."""

    @property
    def is_alive(self) -> bool:
        return _start_ticks(self.pid) == self.started_ticks


def start_run(
    directory: Path,
    batch: str,
    command: Sequence[str],
    *,
    by: str,
    environ: Mapping[str, str],
    on_end: Callable[[int], None] = lambda _exit_code: None,
) -> StartedRun:
    """Start a command as the run for a batch, in a new session. If a run is already alive, return that run.

    `on_end` is called with the exit code, unless this process ends before the run.
    """
    with _lock:
        # A second click returns the run of the first. Otherwise a second process would wait for the journal, and send
        # the remaining rows after somebody paused the first run.
        run = last_run(directory, batch)
        if run is not None and run.is_alive:
            return run
        make_directory(directory)
        summary = _summary_path(directory, batch)
        with summary.open("wb") as out, summary.with_suffix(".log").open("wb") as log:
            summary.chmod(0o600)
            summary.with_suffix(".log").chmod(0o600)
            process = subprocess.Popen(  # noqa: S603 (our own program)
                command,
                env=dict(environ),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                start_new_session=True,
            )
        run = StartedRun(batch, process.pid, _start_ticks(process.pid) or "", by, timestamp(utc_now()))
        write_atomically(directory / f"{batch}.json", json.dumps(asdict(run)).encode())
        # A thread collects the exit status, because the system keeps the pid of an ended process until then.
        threading.Thread(target=lambda: on_end(process.wait()), daemon=True).start()
        return run


def last_run(directory: Path, batch: str) -> StartedRun | None:
    """Return the last run started for a batch, or None if there was none."""
    try:
        return StartedRun(**json.loads((directory / f"{batch}.json").read_bytes()))
    except FileNotFoundError:
        return None


def run_reference(run: StartedRun | None) -> str:
    """Return the reference with which a form names the run on its page. Empty if there is no run."""
    return "" if run is None else f"{run.pid}-{run.started_ticks}-{run.at}"


def pause_run(directory: Path, batch: str, shown_run: str) -> StartedRun:
    """Ask the run that a page showed to stop once its rows in flight have ended.

    Does nothing if the run has ended, or if it is already pausing, because a second signal would stop it at once.
    Returns the newest run, which is another one if the page is out of date. Raises `UsageError` if there is no run.
    """
    with _lock:
        run = last_run(directory, batch)
        if run is None:
            raise UsageError(say("No run of this payout was started from these pages."), hint="")
        if run_reference(run) == shown_run and run.is_alive and not run.is_pausing:
            with suppress(ProcessLookupError):
                # A run that a shell started in the background ignores SIGINT until it sends, so SIGTERM is used.
                os.kill(run.pid, signal.SIGTERM)
            write_atomically(directory / f"{batch}.json", json.dumps(asdict(replace(run, is_pausing=True))).encode())
        return run


def last_summary(directory: Path, batch: str) -> Mapping[str, object] | None:
    """Return the final summary of a batch's last run, or None if there is none."""
    try:
        with _summary_path(directory, batch).open("rb") as file:
            summary = json.loads(file.read(_MAX_SUMMARY_BYTES))
    except (OSError, ValueError):
        return None
    return summary if isinstance(summary, dict) else None


def _summary_path(directory: Path, batch: str) -> Path:
    return directory / f"{batch}.out"


def _start_ticks(pid: int) -> str | None:
    """Return the start time of a process in system ticks, or None if it is not running."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None if Path("/proc/self").exists() else _probe_without_proc(pid)
    return None if fields[0] in {b"Z", b"X"} else fields[19].decode()


def _probe_without_proc(pid: int) -> str | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "alive"
