"""Sends a batch from the command line, and writes its results: for submit, resume, retry and refresh."""

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import guard_of
from paygw_batch.cli.runs.run_report import Report, reported
from paygw_batch.cli.screen.progress_bar import progress_on
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.screen.sheet_tables import show_totals
from paygw_batch.cli.signals import AGAIN, interruption, leave
from paygw_batch.compose.actions.continue_batch import continued_batch, unfinished_batch
from paygw_batch.compose.actions.send import SentBy, Task, send, summary_after
from paygw_batch.compose.journal import find_batch
from paygw_batch.compose.operations import minor_units_of, require_gateway
from paygw_batch.compose.outputs import OutputGuard, OutputKind, Wanted
from paygw_batch.compose.shared.follow_run import Drained
from paygw_batch.countries.rules import Rules
from paygw_batch.engine.engine import RunEnd
from paygw_batch.engine.ports import Progress
from paygw_batch.files import write_whole
from paygw_batch.journal import BatchRecord, JournalReader
from paygw_batch.language import say, say_count
from paygw_batch.report.batch_states import batch_summary
from paygw_batch.report.html import report_html
from paygw_batch.report.reconcile import reconciled, reconciliation
from paygw_batch.report.summary import ExitCode, Summary, worst
from paygw_batch.report.totals import BatchTotals, RunningTotals, books
from paygw_batch.report.workbook import workbook_of
from paygw_batch.settings.configuration import Settings
from paygw_batch.sheet.write.file_ending import table_ending
from paygw_batch.sheet.write.table import write_frame, write_pieces

SHOW_CURSOR = "\x1b[?25h"


def default_out(sheet: Path, name: str) -> Path:
    """Return where the reconciliation of a sheet goes when --out does not say: beside it.

    `name` is `Sheet.name`: two worksheets of one workbook must not write over each other's.
    """
    worksheet = name.removeprefix(sheet.name) if name.startswith(sheet.name) else ""
    safe = "".join(c if c.isalnum() or c in " []-_." else "_" for c in worksheet)
    return sheet.with_name(f"{sheet.stem}{safe}.reconciliation.csv")


@dataclass(slots=True)
class Continued:
    """A batch that a command continues, where its reconciliation goes, and how that ended."""

    task: Task
    out: Path
    report: Report


@contextmanager
def continued(
    invocation: Invocation,
    settings: Settings,
    command: str,
    screen: Screen,
    batch: str | None,
    out: Path | None,
    *,
    wait: bool,
    force: bool,
) -> Iterator[Continued]:
    """Hold the journal and the gateway for a batch (None: the one that has rows to send), and report how that ended."""
    guard = guard_of(invocation, settings, force=force)
    guard.check(Wanted("--out", out, OutputKind.RECONCILIATION), reporting=True)
    require_gateway(settings)

    def find(journal: JournalReader) -> BatchRecord:
        return unfinished_batch(journal) if batch is None else find_batch(journal, batch)

    with (
        reported(settings, command, screen) as report,
        continued_batch(settings, command, find, os.environ, screen.say, wait=wait) as task,
    ):
        yield Continued(task, _checked_out(guard, out, task.batch), report)


def _checked_out(guard: OutputGuard, out: Path | None, record: BatchRecord) -> Path:
    """Return where the reconciliation of a batch goes: `out`, or beside its sheet. Raises `OutputError`."""
    sheet = Path(record.sheet_path)
    path = out or default_out(sheet, record.sheet_name)
    named = say("The reconciliation") if out is None else "--out"
    guard.check(Wanted(named, path, OutputKind.RECONCILIATION), inputs={say("the sheet"): sheet}, reporting=True)
    return path


def send_and_reconcile(task: Task, out: Path, screen: Screen, *, report: Path | None = None) -> Summary:
    """Send the due rows of the batch, write the reconciliation file, and return the summary.

    Raises what made the run impossible to go on.
    """
    with progress_on(screen.err) as progress:
        try:
            end = send(task, progress, lambda run: drain_on_signals(run, progress), counted=progress.counted)
        finally:
            interruption.heed_the_second()
    if task.sent_by is SentBy.WORKERS_LATER:
        return _handed_over(task)
    quarantine_h = task.settings.submission.quarantine_h
    summary = reconcile(
        *(task.journal, task.batch, task.rules, out, screen),
        end=end,
        known=task.known,
        report=report,
        quarantine_h=quarantine_h,
    )
    if interruption.came:  # kept while the results were written
        return replace(summary, exit_code=worst({summary.exit_code, ExitCode.INTERRUPTED}))
    return summary


def _handed_over(task: Task) -> Summary:
    """Return the summary of a batch that waits for workers, or is sent by them already."""
    found = replace(batch_summary(task.journal, task.batch, minor_units_of(task.rules)), known=task.known)
    ready = found.states.get("ready", 0)
    if not ready:
        return found
    told = say_count(
        ready,
        "{count:,} row is handed over to the workers: `paygw-batch status {batch}` shows what becomes of it.",
        "{count:,} rows are handed over to the workers: `paygw-batch status {batch}` shows what becomes of them.",
        batch=task.batch.batch,
    )
    return replace(found, exit_code=ExitCode.DONE, message=told)


def drain_on_signals(run: Drained, progress: Progress) -> None:
    """First signal: start no new row and wait for those in flight. Second: leave at once."""
    signals = 0
    interruption.has_sent = True

    def heed() -> None:
        nonlocal signals
        signals += 1
        if signals > 1:
            _leave()
        progress.note(say("Stopping: no new row is started; rows in flight are waited for. Again to leave at once."))
        run.drain()

    interruption.heed_within(asyncio.get_running_loop(), heed)
    if interruption.came:
        # It was lost on its way (in a callback of the interpreter): it counts, but not as the first of two.
        run.drain()


def _leave() -> NoReturn:
    """End the process now: a row in flight has its intent in the journal, and will be in doubt on the next run."""
    if sys.stderr.isatty():
        os.write(2, f"{SHOW_CURSOR}\n".encode())
    leave(say("Left at once: rows in flight will be in doubt."), say(AGAIN))


def write_results(
    journal: JournalReader,
    batch: BatchRecord,
    minor_units: Mapping[str, int],
    out: Path,
    report: Path | None,
    quarantine_h: float,
) -> BatchTotals:
    """Write the reconciliation file of a batch (a workbook for people where it ends in .xlsx), and the `report`.

    Returns the totals. A table alone is written piece by piece, and a large batch is never in memory as a whole.
    """
    is_workbook = table_ending(out) == ".xlsx"
    if not is_workbook and report is None:
        counter = RunningTotals(minor_units)
        write_pieces(counter.counting(reconciled(journal, batch, minor_units)), out)
        return counter.books()
    frame = reconciliation(journal, batch, minor_units)
    counted = books(frame, minor_units)
    if is_workbook:
        write_whole(out, workbook_of(frame, counted, batch, minor_units))
    else:
        write_frame(frame, out)
    if report is not None:
        text = report_html(journal, batch, frame, counted, minor_units, quarantine_h=quarantine_h)
        write_whole(report, text.encode())
    return counted


def reconcile(
    journal: JournalReader,
    batch: BatchRecord,
    rules: Rules,
    out: Path,
    screen: Screen,
    *,
    end: RunEnd,
    known: int = 0,
    report: Path | None = None,
    quarantine_h: float,
) -> Summary:
    """Write the reconciliation file of a batch, show its totals, and return its summary after a run's `end`."""
    counted = write_results(journal, batch, minor_units_of(rules), out, report, quarantine_h)
    show_totals(screen, counted)
    summary = summary_after(journal, batch, counted, end, known=known)
    told = f"{summary.message} {say('The reconciliation is in {out}.', out=out)}"
    return replace(summary, message=told, reconciliation=out)
