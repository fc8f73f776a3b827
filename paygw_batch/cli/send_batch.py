"""Submits and continues batches for the command line, writes their results and reports the run."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import ResultOptions, output_guard
from paygw_batch.cli.screen.progress_bar import RunProgress
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.sheet_questions import read_with_answers, show_findings, show_totals
from paygw_batch.cli.signals import RETRY_HINT, exit_interrupted, interruption
from paygw_batch.core.choices import BatchSender, Choices
from paygw_batch.countries.rules import Rules
from paygw_batch.engine.engine import RunEnd
from paygw_batch.engine.ports import Progress
from paygw_batch.journal import BatchRecord, Journal, JournalReader
from paygw_batch.language import say, say_count
from paygw_batch.opening.gateway_access import GatewayAccess, SendJob
from paygw_batch.opening.given_sheet import SheetSource, require_sending_settings, rule_minor_units
from paygw_batch.opening.open_journal import find_batch, open_journal_for_run
from paygw_batch.settings.configuration import Settings
from paygw_batch.sheet.write.rejects import write_rejects
from paygw_batch.show.batch_status import batch_summary
from paygw_batch.show.outputs import OutputKind, RequestedOutput
from paygw_batch.show.summary import ExitCode, RunFailed, Summary, worst_code
from paygw_batch.submit.plan import Plan
from paygw_batch.submit.results import (
    ResultFiles,
    default_output_path,
    handover_summary,
    ongoing_summary,
    summary_after_run,
    write_results,
)
from paygw_batch.submit.send import Drainable, send
from paygw_batch.submit.submission import Conversation, Submission
from paygw_batch.submit.submit_sheet import (
    add_warnings,
    find_unfinished_batch,
    open_batch_to_continue,
    refusal_summary,
    submit_sheet,
)
from paygw_batch.unattended.run_report import RunReport, report_run_end

SHOW_CURSOR = "\x1b[?25h"


@contextmanager
def report_run(settings: Settings, command: str, screen: Screen) -> Iterator[RunReport]:
    """Report a run to the log, the metrics and the hook. The log includes the messages that the run printed."""
    with report_run_end(settings, command, screen.note_on_stderr, interruption.message) as report:
        screen.listener = report.log_message
        try:
            yield report
        finally:
            screen.listener = None


@contextmanager
def lock_journal(
    settings: Settings, command: str, screen: Screen, *, wait: bool
) -> Iterator[tuple[Journal, RunReport]]:
    """Lock the journal for a command that sends nothing, and report the run."""
    with (
        report_run(settings, command, screen) as report,
        open_journal_for_run(settings, command, screen.say, wait=wait) as journal,
    ):
        yield journal, report


@dataclass(slots=True)
class ContinuedBatch:
    """A batch that a command continues, its output files, and the run's report."""

    job: SendJob
    files: ResultFiles
    report: RunReport


@contextmanager
def continue_batch(
    invocation: Invocation,
    settings: Settings,
    command: str,
    screen: Screen,
    batch: str | None,
    results: ResultOptions,
    find: Callable[[JournalReader], BatchRecord] | None = None,
) -> Iterator[ContinuedBatch]:
    """Open the journal and the gateway to continue a batch, and report the run.

    If `batch` is None, the only batch with rows to send is used. If `find` is given, it selects the batch instead.
    """
    guard = output_guard(invocation, settings, force=results.force)
    guard.check(RequestedOutput("--out", results.out, OutputKind.RECONCILIATION, sheet_or_batch=batch), reporting=True)
    require_sending_settings(settings)

    def choose(journal: JournalReader) -> BatchRecord:
        return find_unfinished_batch(journal) if batch is None else find_batch(journal, batch)

    with (
        report_run(settings, command, screen) as report,
        open_batch_to_continue(settings, command, find or choose, os.environ, screen.say, wait=results.wait) as job,
    ):
        sheet = Path(job.batch.sheet_path)
        out = results.out or default_output_path(sheet, job.batch.sheet_name)
        label = say("The reconciliation") if results.out is None else "--out"
        output = RequestedOutput(label, out, OutputKind.RECONCILIATION, sheet_or_batch=job.batch.batch)
        guard.check(output, inputs={say("the sheet"): sheet}, reporting=True)
        yield ContinuedBatch(job, ResultFiles(out, for_excel=results.for_excel), report)


def send_and_reconcile(job: SendJob, files: ResultFiles, screen: Screen) -> Summary:
    """Send a batch's due rows and write the reconciliation. Raises `RunFailed` if an error ends the run."""
    runs: list[Drainable] = []
    try:
        return _send_and_reconcile(job, files, screen, runs)
    except (Exception, KeyboardInterrupt) as error:
        summary = Summary(ExitCode.UNEXPECTED, "", job.batch.batch, job.batch.sheet_name, job.batch.rows)
        with suppress(Exception):  # the journal may be what failed
            summary = batch_summary(job.journal, job.batch, has_failed=job.settings.journal.url is None)
        summary = replace(summary, known=job.known, sent_this_run=sum(run.sent_count for run in runs))
        raise RunFailed(error, interruption.message(), summary) from error


def _send_and_reconcile(job: SendJob, files: ResultFiles, screen: Screen, runs: list[Drainable]) -> Summary:
    """Send due rows and write the reconciliation. Adds the run to `runs` when it starts."""

    def on_start(run: Drainable) -> None:
        runs.append(run)
        drain_on_signals(run, progress, job.batch.batch)

    with RunProgress(screen.err) as progress:
        try:
            end = send(job, progress, on_start, on_counts=progress.record_counts)
        finally:
            interruption.raise_on_second_signal()
    if job.choices.sent_by is BatchSender.WORKERS_LATER:
        return handover_summary(job)
    if end.is_under_way and end.interrupted:
        return ongoing_summary(job)
    summary = reconcile(job.settings, job.rules, job.journal, job.batch, files, screen, end, known_count=job.known)
    if interruption.is_signalled:  # the signal arrived while the results were being written
        return replace(summary, exit_code=worst_code({summary.exit_code, ExitCode.INTERRUPTED}))
    return summary


def drain_on_signals(run: Drainable, progress: Progress, batch: str | None = None) -> None:
    """At the first signal, start no new rows and wait for those in flight. At the second, exit."""
    signal_count = 0
    interruption.may_have_sent = True

    def drain_or_exit() -> None:
        nonlocal signal_count
        signal_count += 1
        if signal_count > 1:
            # The journal contains the intents of rows in flight, so the next run puts these rows in doubt.
            if sys.stderr.isatty():
                os.write(2, f"{SHOW_CURSOR}\n".encode())
            message = say("Stopped immediately. Rows in flight are now in doubt.")
            exit_interrupted(message, say(RETRY_HINT), batch=batch, sent_this_run=run.sent_count)
        progress.echo(
            say("The workers now send this batch.")
            if run.continues_after_drain
            else say("Stopping: no new rows are started. Waiting for rows in flight. To stop now, press Ctrl-C again.")
        )
        run.drain()

    interruption.handle_in_loop(asyncio.get_running_loop(), drain_or_exit)
    if interruption.is_signalled:
        # The signal's exception was lost in an interpreter callback. That signal does not count as the first.
        run.drain()


def reconcile(
    settings: Settings,
    rules: Rules,
    journal: JournalReader,
    batch: BatchRecord,
    files: ResultFiles,
    screen: Screen,
    end: RunEnd,
    *,
    known_count: int = 0,
) -> Summary:
    """Write a batch's reconciliation file, show the batch's totals, and return the summary."""
    totals = write_results(
        journal,
        batch,
        rule_minor_units(rules),
        out=files.out,
        report=files.report,
        quarantine_h=settings.submission.quarantine_h,
        for_excel=files.for_excel,
    )
    show_totals(screen, totals.lines)
    summary = summary_after_run(journal, batch, totals, end, known_count=known_count)
    message = f"{summary.message} {say('The reconciliation is in {out}.', out=files.out)}"
    return replace(summary, message=message, reconciliation=files.out)


def read_submission(screen: Screen, source: SheetSource, choices: Choices, plan: Path) -> Submission:
    """Read a sheet, ask a person any open questions, and return the submission."""
    return read_with_answers(screen, partial(Submission.read, choices=choices, plan=plan), source)[0]


def submit_and_report(
    submission: Submission,
    files: ResultFiles,
    gateway: GatewayAccess,
    journal: Journal,
    screen: Screen,
    *,
    may_ask: bool = True,
) -> Summary:
    """Submit a sheet, write its results, and return the summary. Ask open questions only if `may_ask`."""

    def send_job(job: SendJob, plan: Plan) -> Summary:
        for question in plan.questions:
            screen.say_if_quiet(question.message)
        summary = send_and_reconcile(job, files, screen)
        if plan.known_row_count and not (summary.sent_this_run or summary.is_under_way or summary.states.get("ready")):
            message = say_count(
                plan.known_row_count,
                "Nothing was sent: {count:,} row had already been sent.",
                "Nothing was sent: {count:,} rows had already been sent.",
            )
            screen.say_if_quiet(message)
            summary = replace(summary, message=f"{message} {summary.message}")
        return add_warnings(summary, plan)

    conversation = Conversation(
        partial(show_plan_findings, screen), screen.say, screen.confirm if may_ask else Conversation().confirm
    )
    result = submit_sheet(submission, gateway, journal, conversation, send_job)
    if isinstance(result, Summary):
        return result
    if files.rejects is not None and result.question is None:
        source = submission.source
        screen.notes(write_rejects(result.plan.validated, source.path, source.options, files.rejects).notes)
    return refusal_summary(result, submission)


def show_plan_findings(screen: Screen, plan: Plan) -> None:
    headings = plan.validated.sheet.headers
    show_findings(screen, say("Defects"), plan.validated.defects_found, headings)
    show_findings(screen, say("Warnings"), plan.warnings_found, headings)
    show_known_rows(screen, plan)


def show_known_rows(screen: Screen, plan: Plan) -> None:
    if plan.known_row_count:
        message = say_count(
            plan.known_row_count,
            "{count:,} row is already in the journal and keeps its state.",
            "{count:,} rows are already in the journal and keep their state.",
        )
        screen.say(message)
