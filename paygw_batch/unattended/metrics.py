"""Writes gauges in the text format of Prometheus, for the textfile collector of its node exporter.

Source: the "Text-based format" of Prometheus' exposition formats. Every command rewrites the journal's gauges; those of
a command's last run stay until it runs again. Labels contain only our own words and currencies, never a payee, an order
or a file name.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from paygw_batch.core.shown_states import INVALID, STATES
from paygw_batch.journal import SharedWork
from paygw_batch.show.summary import ExitCode, Summary

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
"""Every gauge, in the order in which they are written."""
_SAMPLE = re.compile(r"(paygw_[a-z_]+)(\{[^{}\n]*\})? (\S+)")

Samples = dict[str, dict[str, str]]
"""The values by metric, and by labels as they are written."""


@dataclass(frozen=True, slots=True)
class JournalTotals:
    """The counts and sums of all batches in a journal, each row once. `oldest_in_doubt` is when that row was sent."""

    states: Mapping[str, int]
    totals: Mapping[str, Mapping[str, str]]
    oldest_in_doubt: datetime | None


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A command that has ended, and its result. `files` counts the drop folder's files by state."""

    command: str
    summary: Summary
    files: Mapping[str, int] = field(default_factory=dict)


def metrics_text(
    ended: EndedRun | None,
    figures: JournalTotals | None,
    now: datetime,
    *,
    earlier: str,
    work: SharedWork | None = None,
) -> str:
    """Return all gauges as lines of text, each with its help and type.

    `ended` is None if the journal has changed without a command ending. `earlier` is the text to replace: its samples
    for other commands stay, and so do figures that were not read now (None).
    """
    samples = _samples_of(earlier)
    samples |= {} if figures is None else _of_journal(figures, now)
    samples |= {} if work is None else _of_workers(work, now)
    for name, own in ({} if ended is None else _of_run(ended, now)).items():
        samples[name] = samples.get(name, {}) | own
    return "\n".join(_lines(samples)) + "\n"


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


def _of_journal(figures: JournalTotals, now: datetime) -> Samples:
    oldest = figures.oldest_in_doubt
    return {
        # Include zeros: a missing gauge neither ends nor starts an alert.
        "paygw_rows": {_labels(state=state): str(figures.states.get(state, 0)) for state in STATES},
        "paygw_amount": {
            _labels(currency=currency, state=state): sums.get(state, "0")
            for currency, sums in sorted(figures.totals.items())
            for state in STATES
            if state != INVALID
        },
        "paygw_oldest_in_doubt_timestamp_seconds": {"": "0" if oldest is None else _seconds(oldest)},
        "paygw_journal_timestamp_seconds": {"": _seconds(now)},
    }


def _of_workers(work: SharedWork, now: datetime) -> Samples:
    living = sum(worker.is_alive for worker in work.workers)
    return {
        "paygw_workers": {_labels(state="alive"): str(living), _labels(state="dead"): str(len(work.workers) - living)},
        "paygw_run_rows_left": {_labels(batch=run.batch): str(run.rows_left) for run in work.runs},
        "paygw_gate_stopped": {"": str(int(work.gate.stop is not None))},
        "paygw_workers_timestamp_seconds": {"": _seconds(now)},
    }


def _samples_of(text: str) -> Samples:
    """Return our own samples from an earlier text, ignoring every other line."""
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
