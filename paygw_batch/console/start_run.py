"""Starts runs as separate processes, and checks whether they are alive. A run outlives the process that started it.

The journal records the effects of a run. The files here only identify its process, so that the run can be paused, and
have its summary, for a run that ended before it wrote to the journal.
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
from paygw_batch.files import write_whole
from paygw_batch.journal import make_directory
from paygw_batch.language import say

_MAX_SUMMARY_BYTES = 1024 * 1024
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class StartedRun:
    """A run started for a batch. A later process may reuse the `pid`, but not with the same `started_ticks`."""

    batch: str
    pid: int
    started_ticks: str
    by: str
    at: str
    is_pausing: bool = False
    """Whether somebody has paused the run, which then stops after the rows in flight."""

    @property
    def is_alive(self) -> bool:
        return _ticks(self.pid) == self.started_ticks


def start_run(
    directory: Path,
    batch: str,
    command: Sequence[str],
    *,
    by: str,
    environ: Mapping[str, str],
    ended: Callable[[int], None] = lambda _exit_code: None,
) -> StartedRun:
    """Start a command as the run for a batch, in a new session. If a run is already alive, return that run.

    `ended` is called with the exit code, unless this process ends before the run.
    """
    with _lock:
        # A second click finds the run of the first. Otherwise a second process would wait for the journal, and send the
        # rows that are left after somebody has paused the first one.
        before = started_run(directory, batch)
        if before is not None and before.is_alive:
            return before
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
        started = StartedRun(batch, process.pid, _ticks(process.pid) or "", by, timestamp(utc_now()))
        write_whole(directory / f"{batch}.json", json.dumps(asdict(started)).encode())
        # A thread collects the exit status, because until then the system keeps the number of the ended process.
        threading.Thread(target=lambda: ended(process.wait()), daemon=True).start()
        return started


def started_run(directory: Path, batch: str) -> StartedRun | None:
    """Return the last run that was started for a batch; None if there was none."""
    try:
        return StartedRun(**json.loads((directory / f"{batch}.json").read_bytes()))
    except FileNotFoundError:
        return None


def run_shown(run: StartedRun | None) -> str:
    """Return the name by which a form refers to the run that its page showed; empty without a run."""
    return "" if run is None else f"{run.pid}-{run.started_ticks}-{run.at}"


def pause_run(directory: Path, batch: str, shown: str) -> StartedRun:
    """Ask the run that a page showed for a batch to stop. The run finishes the rows in flight, and sends no others.

    Repeating this, or calling it after the run's end, does nothing, because a second signal would stop the run at once.
    Returns the newest run, which is another run if the page is out of date. Raises `UsageError` without any run.
    """
    with _lock:
        run = started_run(directory, batch)
        if run is None:
            raise UsageError(say("No run of this payout was started from these pages."), hint="")
        if run_shown(run) == shown and run.is_alive and not run.is_pausing:
            with suppress(ProcessLookupError):
                # Not SIGINT: if a shell started the console in the background, a run ignores that until it sends.
                os.kill(run.pid, signal.SIGTERM)
            write_whole(directory / f"{batch}.json", json.dumps(asdict(replace(run, is_pausing=True))).encode())
        return run


def last_summary(directory: Path, batch: str) -> Mapping[str, object] | None:
    """Return the summary that the last run of a batch wrote at its end; None if there is none."""
    try:
        with _summary_path(directory, batch).open("rb") as file:
            summary = json.loads(file.read(_MAX_SUMMARY_BYTES))
    except (OSError, ValueError):
        return None
    return summary if isinstance(summary, dict) else None


def _summary_path(directory: Path, batch: str) -> Path:
    return directory / f"{batch}.out"


def _ticks(pid: int) -> str | None:
    """Return the start time of a process in ticks of the system; None if the process is not running."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None if Path("/proc/self").exists() else _alive_without_proc(pid)
    return None if fields[0] in {b"Z", b"X"} else fields[19].decode()


def _alive_without_proc(pid: int) -> str | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "alive"
