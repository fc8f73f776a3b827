"""Writes the results of a batch to files, and summarises them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from paygw_batch.countries.rules import Rules
from paygw_batch.engine.engine import RunEnd
from paygw_batch.files import write_whole
from paygw_batch.journal import BatchRecord, JournalReader
from paygw_batch.language import say, say_count
from paygw_batch.opening.gateway_access import SendJob
from paygw_batch.opening.given_sheet import minor_units_of
from paygw_batch.sheet.formats import table_format
from paygw_batch.sheet.write.table import write_pieces
from paygw_batch.show.batch_status import batch_summary, summary_of
from paygw_batch.show.outputs import OutputGuard, OutputKind, RequestedOutput
from paygw_batch.show.reconcile import reconciled, reconciliation, with_typed_columns
from paygw_batch.show.report_page import OPERATOR, Reader, report_html
from paygw_batch.show.summary import ExitCode, Summary
from paygw_batch.show.totals import BatchTotals, RunningTotals, books
from paygw_batch.show.workbook import workbook_of
from paygw_batch.submit.submission import Submission


@dataclass(frozen=True, slots=True)
class Standings:
    """The state of a batch: the frame of the reconciliation, its totals, and the summary."""

    frame: pl.DataFrame
    books: BatchTotals
    summary: Summary


def standings(journal: JournalReader, batch: BatchRecord, rules: Rules, end: RunEnd, *, known: int = 0) -> Standings:
    """Return the state of a batch after the `end` of a run. This writes nothing."""
    minor_units = minor_units_of(rules)
    frame = reconciliation(journal, batch, minor_units)
    counted = books(frame, minor_units)
    return Standings(frame, counted, summary_after(journal, batch, counted, end, known=known))


def summary_after(
    journal: JournalReader, batch: BatchRecord, counted: BatchTotals, end: RunEnd, *, known: int = 0
) -> Summary:
    """Return the summary of a batch after the `end` of a run, from the totals of its reconciliation."""
    messages, stop_reason = journal.messages(batch.number), end.stop_reason
    summary = summary_of(
        batch, counted.states, counted.totals, messages, stop_reason=stop_reason, interrupted=end.interrupted
    )
    return replace(summary, known=known, sent_this_run=end.sent, is_under_way=end.is_under_way)


def default_out(sheet: Path, name: str) -> Path:
    """Return the path of a sheet's reconciliation if --out is not given: a file beside the sheet.

    `name` is `Sheet.name`. With it, two worksheets of a workbook do not overwrite each other's reconciliation.
    """
    worksheet = name.removeprefix(sheet.name) if name.startswith(sheet.name) else ""
    safe = "".join(c if c.isalnum() or c in " []-_." else "_" for c in worksheet)
    return sheet.with_name(f"{sheet.stem}{safe}.reconciliation.csv")


def handed_over(task: SendJob) -> Summary:
    """Return the summary of a batch that waits for workers, or that workers already send."""
    summary = replace(batch_summary(task.journal, task.batch), known=task.known)
    ready = summary.states.get("ready", 0)
    if not ready:
        return summary
    message = say_count(
        ready,
        "The workers will send {count:,} row: `paygw-batch status {batch}` shows its progress.",
        "The workers will send {count:,} rows: `paygw-batch status {batch}` shows their progress.",
        batch=task.batch.batch,
    )
    return replace(summary, exit_code=ExitCode.DONE, message=message)


def left_to_workers(task: SendJob) -> Summary:
    """Return the summary of a batch that workers continue. Its reconciliation is written once their run is over."""
    summary = batch_summary(task.journal, task.batch)
    return replace(summary, exit_code=ExitCode.INTERRUPTED, known=task.known, is_under_way=True)


def write_results(
    journal: JournalReader,
    batch: BatchRecord,
    minor_units: Mapping[str, int],
    *,
    out: Path | None = None,
    report: Path | None = None,
    quarantine_h: float,
    for_excel: bool = False,
    reader: Reader = OPERATOR,
) -> BatchTotals:
    """Write the reconciliation of a batch to `out`, and the page to `report`. Return the totals.

    If `out` ends in .xlsx, the reconciliation is a workbook for people. Any other table is written piece by piece if no
    report is asked for, so a large batch is never in memory as a whole.
    """
    is_workbook = out is not None and table_format(out).ending == ".xlsx"
    if out is not None and not is_workbook and report is None:
        counter = RunningTotals(minor_units)
        _write_table(counter.counting(reconciled(journal, batch, minor_units)), out, for_excel=for_excel)
        return counter.books()
    frame = reconciliation(journal, batch, minor_units, is_for_officers=not reader.is_operator)
    counted = books(frame, minor_units)
    if out is not None and is_workbook:
        write_whole(out, workbook_of(frame, counted, batch, minor_units))
    elif out is not None:
        _write_table([frame], out, for_excel=for_excel)
    if report is not None:
        text = report_html(journal, batch, frame, counted, minor_units, quarantine_h=quarantine_h, reader=reader)
        write_whole(report, text.encode())
    return counted


def _write_table(pieces: Iterable[pl.DataFrame], out: Path, *, for_excel: bool) -> None:
    is_typed = table_format(out).ending == ".parquet"
    write_pieces(with_typed_columns(pieces) if is_typed else pieces, out, for_excel=for_excel)


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """The files that a submission writes. None as a path: that file is not written.

    `out` is the reconciliation, and `is_out_named` says that a person named it. `for_excel` writes a CSV file that
    Excel opens correctly. `rejects` gets the rows of a refused sheet. `report` is the page about the batch.
    """

    out: Path
    is_out_named: bool = False
    for_excel: bool = False
    rejects: Path | None = None
    report: Path | None = None

    def check(self, guard: OutputGuard, submission: Submission) -> None:
        """Raise `OutputError` unless every result file may be written to its path."""
        guard.check(
            RequestedOutput(
                "--out" if self.is_out_named else say("The reconciliation"),
                self.out,
                OutputKind.RECONCILIATION,
                run_of=submission.sheet,
            ),
            RequestedOutput(say("The rejects"), self.rejects, OutputKind.REJECTS),
            RequestedOutput(say("The report"), self.report, OutputKind.REPORT),
            inputs={say("the sheet"): submission.sheet, say("the plan"): submission.plan},
            reporting=True,
        )
