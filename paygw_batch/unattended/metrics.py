"""Writes gauges in the text format of Prometheus, for the textfile collector of its node exporter.

Source: the "Text-based format" of Prometheus' exposition formats. Every command writes the journal's gauges again. The
gauges of a command's last run remain until the command runs again. Labels contain only our own words and currencies,
never a payee, an order or a file name.
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
from paygw_batch.core.shown_states import INVALID, SHOWN_IN_DOUBT, STATES
from paygw_batch.errors import OutputError, PaygwError
from paygw_batch.files import write_whole
from paygw_batch.opening.open_journal import journal_to_read, require_workers
from paygw_batch.settings.configuration import Settings
from paygw_batch.show.batch_status import journal_status
from paygw_batch.show.summary import ExitCode, Summary

METRICS_MODE = 0o644
"""The exporter of metrics runs as another user, who must be able to read the file. The figures name nobody."""
WORKERS_EVERY_S = 15.0
LOCK_TRIES = 100
BETWEEN_TRIES_S = 0.05

_HELP: Mapping[str, str] = {
    "paygw_rows": "Rows of all batches by state, each row once.",
    "paygw_amount": "Sums of all batches by currency and state, each row once.",
    "paygw_oldest_in_doubt_timestamp_seconds": "When the oldest row that is in doubt was sent; 0 where none is.",
    "paygw_journal_timestamp_seconds": "When the journal was last read for these figures.",
    "paygw_workers": "Workers of all hosts: alive, or dead with rows in flight that are not in doubt yet.",
    "paygw_run_rows_left": "Rows that are still to be sent, of each batch that workers are sending.",
    "paygw_gate_stopped": "1 while no worker may send, because a limit or a person stopped them.",
    "paygw_workers_timestamp_seconds": "When the workers were last looked at.",
    "paygw_folder_files": "Files in the drop folder after the last run, and refused ones that nobody has taken away.",
    "paygw_run_exit_code": "Exit code of the last run of a command.",
    "paygw_run_end_timestamp_seconds": "When the last run of a command ended.",
    "paygw_run_last_success_timestamp_seconds": "When a run of a command last ended with exit code 0.",
    "paygw_run_duration_seconds": "How long the last run of a command took.",
    "paygw_run_sent_rows": "Rows that the last run of a command sent.",
}
"""Every gauge with its help text, in the order in which they are written."""
_SAMPLE = re.compile(r"(paygw_[a-z_]+)(\{[^{}\n]*\})? (\S+)")

Samples = dict[str, dict[str, str]]
"""The values by metric, and then by labels as they are written."""


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A command that has ended, and its result. `files` has the number of files in the drop folder by state."""

    command: str
    summary: Summary
    files: Mapping[str, int] = field(default_factory=dict)


def write_metrics(settings: Settings, ended: EndedRun | None) -> str | None:
    """Write the gauges to their file, and keep those of other commands. Return why they cannot be written, or None.

    `ended` is None if the journal has changed without the end of a command.
    """
    if (path := settings.reporting.metrics) is None:
        return None
    now = utc_now()
    of_run = {} if ended is None else _of_run(ended, now)
    return _written(path, _of_journal(settings, now) | _of_workers(settings, now), of_run)


@contextmanager
def workers_measured(settings: Settings) -> Iterator[None]:
    """Write the workers' gauges every few seconds, in a separate thread, and once more at the end.

    The journal's gauges are left out, because counting all rows every few seconds would cost too much.
    """
    path, is_over = settings.reporting.metrics, Event()
    if path is None:
        yield
        return

    def measure(metrics: Path) -> None:
        while True:
            _written(metrics, _of_workers(settings, utc_now()), {})
            if is_over.wait(WORKERS_EVERY_S):
                return

    thread = Thread(target=measure, args=(path,), name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(WORKERS_EVERY_S)  # the server may be gone, and nothing waits for a figure


def _written(path: Path, figures: Samples, of_run: Samples) -> str | None:
    """Write the gauges. Earlier samples of other commands remain, and so do figures that were not read now."""
    try:
        with _alone_in(path.parent):
            samples = _earlier(path) | figures
            for name, own in of_run.items():
                samples[name] = samples.get(name, {}) | own
            write_whole(path, ("\n".join(_lines(samples)) + "\n").encode(), mode=METRICS_MODE)
    except OutputError as error:
        return error.message
    return None


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Keep two commands from writing the file at once. After a time limit, continue without the lock."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield
        return
    try:
        for _ in range(LOCK_TRIES):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(BETWEEN_TRIES_S)
            else:
                break
        yield
    finally:
        os.close(descriptor)


def _of_run(ended: EndedRun, now: datetime) -> Samples:
    summary, labels = ended.summary, _labels(command=ended.command)
    samples = {
        "paygw_folder_files": {_labels(state=state): str(count) for state, count in ended.files.items()},
        "paygw_run_exit_code": {labels: str(int(summary.exit_code))},
        "paygw_run_end_timestamp_seconds": {labels: _seconds(now)},
        "paygw_run_duration_seconds": {labels: f"{summary.seconds:.3f}"},
        "paygw_run_sent_rows": {labels: str(summary.sent_this_run)},
    }
    if summary.exit_code is ExitCode.DONE:
        samples["paygw_run_last_success_timestamp_seconds"] = {labels: _seconds(now)}
    return samples


def _of_journal(settings: Settings, now: datetime) -> Samples:
    """Return the counts and sums over all batches, each row once. Return nothing if the journal cannot be read."""
    try:
        with journal_to_read(settings) as journal:
            status = journal_status(journal)
            in_doubt = (journal.rows(listed.record.number, states=SHOWN_IN_DOUBT) for listed in status.batches)
            sent_at = [row.intended_at for rows in in_doubt for row in rows if row.intended_at is not None]
    except PaygwError:
        return {}  # the exit code of the run reports this
    return {
        # Zeros are written too, because a missing gauge neither ends nor starts an alert.
        "paygw_rows": {_labels(state=state): str(status.states.get(state, 0)) for state in STATES},
        "paygw_amount": {
            _labels(currency=currency, state=state): sums.get(state, "0")
            for currency, sums in sorted(status.totals.items())
            for state in STATES
            if state != INVALID
        },
        "paygw_oldest_in_doubt_timestamp_seconds": {
            "": _seconds(datetime.fromisoformat(min(sent_at))) if sent_at else "0"
        },
        "paygw_journal_timestamp_seconds": {"": _seconds(now)},
    }


def _of_workers(settings: Settings, now: datetime) -> Samples:
    """Return the current work of all hosts. Return nothing for a journal in a file, or if it cannot be read."""
    if settings.journal.url is None:
        return {}
    try:
        work = require_workers(settings).shared_work()
    except PaygwError:
        return {}
    living = sum(worker.is_alive for worker in work.workers)
    return {
        "paygw_workers": {
            _labels(state="alive"): str(living),
            _labels(state="dead"): str(len(work.workers) - living),
        },
        "paygw_run_rows_left": {_labels(batch=run.batch): str(run.rows_left) for run in work.runs},
        "paygw_gate_stopped": {"": str(int(work.gate.stop is not None))},
        "paygw_workers_timestamp_seconds": {"": _seconds(now)},
    }


def _earlier(path: Path) -> Samples:
    """Return our own samples in the file. Every other line is ignored."""
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


def _labels(**labels: str) -> str:
    text_of_labels = ",".join(f'{name}="{text}"' for name, text in labels.items())
    return f"{{{text_of_labels}}}"


def _seconds(at: datetime) -> str:
    return str(int(at.timestamp()))


def _lines(samples: Samples) -> Iterator[str]:
    for name, help_text in _HELP.items():
        if own := samples.get(name):
            yield f"# HELP {name} {help_text}"
            yield f"# TYPE {name} gauge"
            yield from (f"{name}{labels} {value}" for labels, value in sorted(own.items()))
