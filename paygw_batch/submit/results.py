"""Writes a batch's results to files and summarises them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from paygw_batch.countries.rules import Rules
from paygw_batch.engine.engine import RunEnd
from paygw_batch.files import write_atomically
from paygw_batch.journal import BatchRecord, JournalReader
from paygw_batch.language import say, say_count
from paygw_batch.opening.gateway_access import SendJob
from paygw_batch.opening.given_sheet import rule_minor_units
from paygw_batch.sheet.formats import table_format
from paygw_batch.sheet.write.table import write_pieces
from paygw_batch.show.batch_status import batch_summary, build_summary
from paygw_batch.show.outputs import OutputGuard, OutputKind, RequestedOutput
from paygw_batch.show.reconcile import add_typed_columns, reconciliation, reconciliation_pieces
from paygw_batch.show.report_page import OPERATOR, Reader, render_report
from paygw_batch.show.summary import ExitCode, Summary
from paygw_batch.show.totals import BatchTotals, RunningTotals, batch_totals
from paygw_batch.show.workbook import build_workbook
from paygw_batch.submit.submission import Submission


@dataclass(frozen=True, slots=True)
class BatchResult:
    """A batch's reconciliation (as a frame), totals and summary."""

    frame: pl.DataFrame
    totals: BatchTotals
    summary: Summary


def batch_result(
    journal: JournalReader, batch: BatchRecord, rules: Rules, end: RunEnd, *, known_count: int = 0
) -> BatchResult:
    """Return a batch's results after a run, without writing them."""
    minor_units = rule_minor_units(rules)
    frame = reconciliation(journal, batch, minor_units)
    totals = batch_totals(frame, minor_units)
    return BatchResult(frame, totals, summary_after_run(journal, batch, totals, end, known_count=known_count))


def summary_after_run(
    journal: JournalReader, batch: BatchRecord, totals: BatchTotals, end: RunEnd, *, known_count: int = 0
) -> Summary:
    """Return the summary of a batch after a run, from the totals of its reconciliation."""
    messages, holds = journal.messages(batch.number), journal.holds(batch.number)
    summary = build_summary(
        batch, totals.states, totals.totals, messages, holds, stop_reason=end.stop_reason, interrupted=end.interrupted
    )
    return replace(summary, known=known_count, sent_this_run=end.sent, is_under_way=end.is_under_way)


def default_output_path(sheet: Path, name: str) -> Path:
    """Return the default path of a sheet's reconciliation, next to the sheet.

    Including `name` (`Sheet.name`) keeps worksheets of one workbook from overwriting each other's reconciliation.
    """
    worksheet = name.removeprefix(sheet.name) if name.startswith(sheet.name) else ""
    safe_name = "".join(c if c.isalnum() or c in " []-_." else "_" for c in worksheet)
    return sheet.with_name(f"{sheet.stem}{safe_name}.reconciliation.csv")


def handover_summary(job: SendJob) -> Summary:
    """Return the summary of a batch that workers will send or are already sending."""
    summary = replace(batch_summary(job.journal, job.batch), known=job.known)
    if not (ready_count := summary.states.get("ready", 0)):
        return summary
    message = say_count(
        ready_count,
        "The workers will send {count:,} row. To follow it, run `paygw-batch status {batch}`.",
        "The workers will send {count:,} rows. To follow them, run `paygw-batch status {batch}`.",
        batch=job.batch.batch,
    )
    return replace(summary, exit_code=ExitCode.DONE, message=message)


def ongoing_summary(job: SendJob) -> Summary:
    """Return the summary of a batch that workers are still sending. Its reconciliation is written later."""
    summary = batch_summary(job.journal, job.batch)
    return replace(summary, exit_code=ExitCode.INTERRUPTED, known=job.known, is_under_way=True)


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
    """Write a batch's reconciliation to `out` and its HTML report to `report`, and return the totals.

    An .xlsx file is formatted for people. Any other table is written in pieces unless there is a report, so that even a
    large batch fits in memory.
    """
    is_workbook = out is not None and table_format(out).extension == ".xlsx"
    if out is not None and not is_workbook and report is None:
        counter = RunningTotals(minor_units)
        _write_table(counter.count_rows(reconciliation_pieces(journal, batch, minor_units)), out, for_excel=for_excel)
        return counter.batch_totals()
    frame = reconciliation(journal, batch, minor_units, is_for_officers=not reader.is_operator)
    totals = batch_totals(frame, minor_units)
    if out is not None and is_workbook:
        write_atomically(out, build_workbook(frame, totals, batch, minor_units))
    elif out is not None:
        _write_table([frame], out, for_excel=for_excel)
    if report is not None:
        text = render_report(journal, batch, frame, totals, minor_units, quarantine_h=quarantine_h, reader=reader)
        write_atomically(report, text.encode())
    return totals


def _write_table(pieces: Iterable[pl.DataFrame], out: Path, *, for_excel: bool) -> None:
    is_typed = table_format(out).extension == ".parquet"
    write_pieces(add_typed_columns(pieces) if is_typed else pieces, out, for_excel=for_excel)


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """The files that a submission writes. A file whose path is None is not written.

    `out` is the reconciliation, and `is_out_named` is set if the user chose its path. With `for_excel`, a CSV file is
    written for Excel. `rejects` is for the rows of a refused sheet, and `report` for the page about the batch.
    """

    out: Path
    is_out_named: bool = False
    for_excel: bool = False
    rejects: Path | None = None
    report: Path | None = None

    def check(self, guard: OutputGuard, submission: Submission) -> None:
        """Raise `OutputError` if a result file may not be written to its path."""
        guard.check(
            RequestedOutput(
                "--out" if self.is_out_named else say("The reconciliation"),
                self.out,
                OutputKind.RECONCILIATION,
                sheet_or_batch=submission.sheet,
            ),
            RequestedOutput(say("The rejects"), self.rejects, OutputKind.REJECTS),
            RequestedOutput(say("The report"), self.report, OutputKind.REPORT),
            inputs={say("the sheet"): submission.sheet, say("the plan"): submission.plan},
            reporting=True,
        )
