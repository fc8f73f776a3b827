"""Starts runs as separate processes, which continue when the console stops, and checks whether they are alive.

The journal records what a run did. The files here only identify the run's process, so that it can be paused, and store
its summary, in case it ended before it wrote to the journal.
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
        return _read_start_ticks(self.pid) == self.started_ticks


def start_run(
    directory: Path,
    batch: str,
    command: Sequence[str],
    *,
    by: str,
    environ: Mapping[str, str],
    on_end: Callable[[int], None] = lambda _exit_code: None,
) -> StartedRun:
    """Start `command` in a new session as the batch's run. If one is already alive, return it instead.

    `on_end` is called with the exit code, unless this process ends before the run.
    """
    with _lock:
        # A second click returns the first click's run. A second process would wait for the journal, and then send the
        # remaining rows even if somebody had paused the first run.
        run = last_run(directory, batch)
        if run is not None and run.is_alive:
            return run
        make_directory(directory)
        summary_path, log_path = _summary_path(directory, batch), directory / f"{batch}.log"
        with summary_path.open("wb") as stdout, log_path.open("wb") as stderr:
            summary_path.chmod(0o600)
            log_path.chmod(0o600)
            process = subprocess.Popen(  # noqa: S603 (our own program)
                command,
                env=dict(environ),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        run = StartedRun(batch, process.pid, _read_start_ticks(process.pid) or "", by, timestamp(utc_now()))
        write_atomically(directory / f"{batch}.json", json.dumps(asdict(run)).encode())
        # A thread collects the exit status, because until then the system keeps an ended process's pid.
        threading.Thread(target=lambda: on_end(process.wait()), daemon=True).start()
        return run


def last_run(directory: Path, batch: str) -> StartedRun | None:
    try:
        return StartedRun(**json.loads((directory / f"{batch}.json").read_bytes()))
    except FileNotFoundError:
        return None


def run_reference(run: StartedRun | None) -> str:
    """Return a reference that identifies a run in forms. Empty if there is no run."""
    return "" if run is None else f"{run.pid}-{run.started_ticks}-{run.at}"


def pause_run(directory: Path, batch: str, reference: str) -> StartedRun:
    """Ask the run with this `reference` to stop after its rows in flight.

    Does nothing if the run has ended or is already pausing, because a second signal would stop it immediately. Returns
    the last run, which may be a newer one. Raises `UsageError` if no run was started.
    """
    with _lock:
        run = last_run(directory, batch)
        if run is None:
            raise UsageError(say("No run of this payout was started from the console."), hint="")
        if run_reference(run) == reference and run.is_alive and not run.is_pausing:
            with suppress(ProcessLookupError):
                # SIGTERM is used, because a run that a shell started in the background ignores SIGINT at first.
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


def _read_start_ticks(pid: int) -> str | None:
    """Return the start time of a process in clock ticks, or None if the process is not running."""
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
