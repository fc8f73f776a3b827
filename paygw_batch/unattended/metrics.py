"""Writes gauges for the textfile collector of Prometheus' node exporter.

The format is Prometheus' text-based exposition format. Every command rewrites the journal's gauges. The gauges about a
command's last run remain until the command runs again. Labels contain only our own words and currencies, and never a
payee, an order or a file name.
"""

import fcntl
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from threading import Event, Thread

from paygw_batch.clock import utc_now
from paygw_batch.core.shown_states import DISPLAYED_IN_DOUBT, INVALID, STATES
from paygw_batch.errors import OutputError, PaygwError
from paygw_batch.files import write_atomically
from paygw_batch.opening.open_journal import open_journal_to_read, require_workers
from paygw_batch.settings.configuration import Settings
from paygw_batch.show.batch_status import journal_status
from paygw_batch.show.summary import ExitCode, Summary

METRICS_MODE = 0o644
"""The mode of the file, which another user's exporter must be able to read."""
WORKERS_INTERVAL_S = 15.0
MAX_LOCK_TRIES = 100
LOCK_RETRY_S = 0.05

_HELP: Mapping[str, str] = {
    "paygw_rows": "Rows of all batches by state, each row once.",
    "paygw_amount": "Sums of all batches by currency and state, each row once.",
    "paygw_oldest_in_doubt_timestamp_seconds": "When the oldest row that is in doubt was sent; 0 if none is.",
    "paygw_journal_timestamp_seconds": "When the journal was last read for these figures.",
    "paygw_workers": "Workers of all hosts: alive, or dead with rows in flight that are not in doubt yet.",
    "paygw_run_rows_left": "Rows that are still to be sent, of each batch that workers are sending.",
    "paygw_gate_stopped": "1 while no worker may send, because a limit or a person stopped them.",
    "paygw_workers_timestamp_seconds": "When the workers were last checked.",
    "paygw_folder_files": "Files in the drop folder after the last run, and refused files that nobody has removed.",
    "paygw_run_exit_code": "Exit code of the last run of a command.",
    "paygw_run_end_timestamp_seconds": "When the last run of a command ended.",
    "paygw_run_last_success_timestamp_seconds": "When a run of a command last ended with exit code 0.",
    "paygw_run_duration_seconds": "How long the last run of a command took.",
    "paygw_run_sent_rows": "Rows that the last run of a command sent.",
}
"""The help text of each gauge, in the order in which they are written."""
_SAMPLE = re.compile(r"(paygw_[a-z_]+)(\{[^{}\n]*\})? (\S+)")

Samples = dict[str, dict[str, str]]
"""Values by metric name and formatted labels."""


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A command that has ended. `files` counts the files in its drop folder by state."""

    command: str
    summary: Summary
    files: Mapping[str, int] = field(default_factory=dict)


def write_metrics(settings: Settings, ended_run: EndedRun | None) -> str | None:
    """Write the gauges, keeping those of other commands. Returns an error message if this fails, or None.

    `ended_run` is None if the journal has changed but no command has ended.
    """
    if (path := settings.reporting.metrics) is None:
        return None
    now = utc_now()
    run_samples = {} if ended_run is None else _run_samples(ended_run, now)
    return _update_samples(path, _journal_samples(settings, now) | _worker_samples(settings, now), run_samples)


@contextmanager
def measure_workers(settings: Settings) -> Iterator[None]:
    """Write the workers' gauges at intervals in a thread, but not the journal's: counting all rows is expensive."""
    path, stop_event = settings.reporting.metrics, Event()
    if path is None:
        yield
        return

    def write_repeatedly(metrics: Path) -> None:
        while True:
            _update_samples(metrics, _worker_samples(settings, utc_now()), {})
            if stop_event.wait(WORKERS_INTERVAL_S):
                return

    thread = Thread(target=write_repeatedly, args=(path,), name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop_event.set()
        thread.join(WORKERS_INTERVAL_S)  # not forever, because the database may not respond


def _update_samples(path: Path, new_samples: Samples, run_samples: Samples) -> str | None:
    """Merge samples into the file. Returns an error message if this fails, or None."""
    try:
        with _lock_directory(path.parent):
            samples = _read_samples(path) | new_samples
            for name, values in run_samples.items():
                samples[name] = samples.get(name, {}) | values
            write_atomically(path, ("\n".join(_format_samples(samples)) + "\n").encode(), mode=METRICS_MODE)
    except OutputError as error:
        return error.message
    return None


@contextmanager
def _lock_directory(directory: Path) -> Iterator[None]:
    """Lock the directory so that only one command writes the file. Continues without the lock after some time."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield
        return
    try:
        for _ in range(MAX_LOCK_TRIES):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(LOCK_RETRY_S)
            else:
                break
        yield
    finally:
        os.close(descriptor)


def _run_samples(ended_run: EndedRun, now: datetime) -> Samples:
    summary, labels = ended_run.summary, _format_labels(command=ended_run.command)
    samples = {
        "paygw_folder_files": {_format_labels(state=state): str(count) for state, count in ended_run.files.items()},
        "paygw_run_exit_code": {labels: str(int(summary.exit_code))},
        "paygw_run_end_timestamp_seconds": {labels: _format_timestamp(now)},
        "paygw_run_duration_seconds": {labels: f"{summary.seconds:.3f}"},
        "paygw_run_sent_rows": {labels: str(summary.sent_this_run)},
    }
    if summary.exit_code is ExitCode.DONE:
        samples["paygw_run_last_success_timestamp_seconds"] = {labels: _format_timestamp(now)}
    return samples


def _journal_samples(settings: Settings, now: datetime) -> Samples:
    """Return metric samples for all batches, or none if the journal cannot be read."""
    try:
        with open_journal_to_read(settings) as journal:
            status = journal_status(journal)
            rows_in_doubt = (journal.rows(batch.record.number, states=DISPLAYED_IN_DOUBT) for batch in status.batches)
            sent_times = [row.intended_at for rows in rows_in_doubt for row in rows if row.intended_at is not None]
    except PaygwError:
        return {}  # the run's exit code reports this
    oldest = _format_timestamp(datetime.fromisoformat(min(sent_times))) if sent_times else "0"
    return {
        # Zeros are written too, because a missing gauge can neither start nor end an alert.
        "paygw_rows": {_format_labels(state=state): str(status.states.get(state, 0)) for state in STATES},
        "paygw_amount": {
            _format_labels(currency=currency, state=state): sums.get(state, "0")
            for currency, sums in sorted(status.totals.items())
            for state in STATES
            if state != INVALID
        },
        "paygw_oldest_in_doubt_timestamp_seconds": {"": oldest},
        "paygw_journal_timestamp_seconds": {"": _format_timestamp(now)},
    }


def _worker_samples(settings: Settings, now: datetime) -> Samples:
    """Return samples about the workers on all hosts, or none if there is no database or it cannot be read."""
    if settings.journal.url is None:
        return {}
    try:
        work = require_workers(settings).shared_work()
    except PaygwError:
        return {}
    alive_count = sum(worker.is_alive for worker in work.workers)
    return {
        "paygw_workers": {
            _format_labels(state="alive"): str(alive_count),
            _format_labels(state="dead"): str(len(work.workers) - alive_count),
        },
        "paygw_run_rows_left": {_format_labels(batch=run.batch): str(run.rows_left) for run in work.runs},
        "paygw_gate_stopped": {"": str(int(work.gate.stop is not None))},
        "paygw_workers_timestamp_seconds": {"": _format_timestamp(now)},
    }


def _read_samples(path: Path) -> Samples:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    samples: Samples = {}
    for line in text.splitlines():
        if sample := _SAMPLE.fullmatch(line):
            name, labels, value = sample.groups(default="")
            samples.setdefault(name, {})[labels] = value
    return samples


def _format_labels(**labels: str) -> str:
    text = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"{{{text}}}"


def _format_timestamp(moment: datetime) -> str:
    return str(int(moment.timestamp()))


def _format_samples(samples: Samples) -> Iterator[str]:
    for name, help_text in _HELP.items():
        if values := samples.get(name):
            yield f"# HELP {name} {help_text}"
            yield f"# TYPE {name} gauge"
            yield from (f"{name}{labels} {value}" for labels, value in sorted(values.items()))
