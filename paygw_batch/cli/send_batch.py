"""Submits and continues batches from the command line: shows, asks, sends, writes the results, reports the run."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import ResultOptions, guard_of
from paygw_batch.cli.screen.progress_bar import RunProgress
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.sheet_questions import answered, show_findings, show_totals
from paygw_batch.cli.signals import AGAIN, interruption, leave
from paygw_batch.core.choices import Choices, SentBy
from paygw_batch.countries.rules import Rules
from paygw_batch.engine.engine import RunEnd
from paygw_batch.engine.ports import Progress
from paygw_batch.journal import BatchRecord, Journal, JournalReader
from paygw_batch.language import say, say_count
from paygw_batch.opening.gateway_access import GatewayAccess, SendJob
from paygw_batch.opening.given_sheet import GivenSheet, minor_units_of, require_gateway
from paygw_batch.opening.open_journal import find_batch, run_journal
from paygw_batch.settings.configuration import Settings
from paygw_batch.sheet.write.rejects import write_mendable
from paygw_batch.show.outputs import OutputKind, RequestedOutput
from paygw_batch.show.summary import ExitCode, Summary, worst
from paygw_batch.submit.plan import Plan
from paygw_batch.submit.results import (
    ResultFiles,
    default_out,
    handed_over,
    left_to_workers,
    summary_after,
    write_results,
)
from paygw_batch.submit.send import Drained, send
from paygw_batch.submit.submission import Conversation, Submission
from paygw_batch.submit.submit_sheet import (
    continued_batch,
    refused_summary,
    submit_sheet,
    unfinished_batch,
    with_warnings_told,
)
from paygw_batch.unattended.run_report import RunReport, run_reported

SHOW_CURSOR = "\x1b[?25h"


@contextmanager
def reported(settings: Settings, command: str, screen: Screen) -> Iterator[RunReport]:
    """Report a run to log, metrics and hook, with the sentences on the screen. Show reports that fail."""
    with run_reported(settings, command, screen.note_aside, interruption.sentence) as report:
        screen.listener = report.said
        try:
            yield report
        finally:
            screen.listener = None


@contextmanager
def held(settings: Settings, command: str, screen: Screen, *, wait: bool) -> Iterator[tuple[Journal, RunReport]]:
    """Hold the journal for a command that sends nothing, and report its result."""
    with (
        reported(settings, command, screen) as report,
        run_journal(settings, command, screen.say, wait=wait) as journal,
    ):
        yield journal, report


@dataclass(slots=True)
class Continued:
    """A batch that a command continues, the files that the command writes, and the report of its run."""

    task: SendJob
    files: ResultFiles
    report: RunReport


@contextmanager
def continued(
    invocation: Invocation,
    settings: Settings,
    command: str,
    screen: Screen,
    batch: str | None,
    results: ResultOptions,
    find: Callable[[JournalReader], BatchRecord] | None = None,
) -> Iterator[Continued]:
    """Hold the journal and the gateway for a batch (None: the only one with rows to send), and report the result.

    `find` returns the batch if a person did not name it.
    """
    guard = guard_of(invocation, settings, force=results.force)
    guard.check(RequestedOutput("--out", results.out, OutputKind.RECONCILIATION, run_of=batch), reporting=True)
    require_gateway(settings)

    def named(journal: JournalReader) -> BatchRecord:
        return unfinished_batch(journal) if batch is None else find_batch(journal, batch)

    with (
        reported(settings, command, screen) as report,
        continued_batch(settings, command, find or named, os.environ, screen.say, wait=results.wait) as task,
    ):
        sheet = Path(task.batch.sheet_path)
        out = results.out or default_out(sheet, task.batch.sheet_name)
        label = say("The reconciliation") if results.out is None else "--out"
        output = RequestedOutput(label, out, OutputKind.RECONCILIATION, run_of=task.batch.batch)
        guard.check(output, inputs={say("the sheet"): sheet}, reporting=True)
        yield Continued(task, ResultFiles(out, for_excel=results.for_excel), report)


def send_and_reconcile(task: SendJob, files: ResultFiles, screen: Screen) -> Summary:
    """Send the due rows of a batch, write its reconciliation file, and return the summary.

    Raises the error that stopped the run.
    """
    with RunProgress(screen.err) as progress:
        try:
            end = send(task, progress, lambda run: drain_on_signals(run, progress), counted=progress.counted)
        finally:
            interruption.raise_on_second_signal()
    if task.choices.sent_by is SentBy.WORKERS_LATER:
        return handed_over(task)
    if end.is_under_way and end.interrupted:
        return left_to_workers(task)
    summary = reconcile(task.settings, task.rules, task.journal, task.batch, files, screen, end, known=task.known)
    if interruption.came:  # the signal arrived while the results were written
        return replace(summary, exit_code=worst({summary.exit_code, ExitCode.INTERRUPTED}))
    return summary


def drain_on_signals(run: Drained, progress: Progress) -> None:
    """At the first signal, start no new row, and wait for rows in flight. At the second signal, exit at once."""
    signals = 0
    interruption.has_sent = True

    def heed() -> None:
        nonlocal signals
        signals += 1
        if signals > 1:
            # A row in flight has its intent in the journal, so it will be in doubt in the next run.
            if sys.stderr.isatty():
                os.write(2, f"{SHOW_CURSOR}\n".encode())
            leave(say("Stopped at once. Rows in flight are now in doubt."), say(AGAIN))
        progress.note(
            say("Detached: the workers continue this batch.")
            if run.goes_on
            else say(
                "Stopping: no new rows are started. Waiting for rows in flight. Press Ctrl-C again to stop at once."
            )
        )
        run.drain()

    interruption.heed_within(asyncio.get_running_loop(), heed)
    if interruption.came:
        # The exception was lost in a callback of the interpreter. The signal counts, but not as the first of two.
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
    known: int = 0,
) -> Summary:
    """Write the reconciliation file of a batch, show its totals, and return its summary after the `end` of a run."""
    counted = write_results(
        *(journal, batch, minor_units_of(rules)),
        out=files.out,
        report=files.report,
        quarantine_h=settings.submission.quarantine_h,
        for_excel=files.for_excel,
    )
    show_totals(screen, counted.lines)
    summary = summary_after(journal, batch, counted, end, known=known)
    message = f"{summary.message} {say('The reconciliation is in {out}.', out=files.out)}"
    return replace(summary, message=message, reconciliation=files.out)


def submission(screen: Screen, given: GivenSheet, choices: Choices, plan: Path) -> Submission:
    """Read a sheet, ask its open questions, and return its submission."""
    return answered(screen, partial(Submission.read, choices=choices, plan=plan), given)[0]


def submit_and_report(
    asked: Submission,
    files: ResultFiles,
    gateway: GatewayAccess,
    journal: Journal,
    screen: Screen,
    *,
    may_ask: bool = True,
) -> Summary:
    """Submit a sheet, write its results, and return the summary. Raises `ApprovalError` if the sheet is not approved.

    A person is asked the sheet's open questions only if `may_ask`.
    """

    def send(task: SendJob, plan: Plan) -> Summary:
        for question in plan.questions:
            screen.insist(question.message)
        sent = send_and_reconcile(task, files, screen)
        if plan.known_rows and not (sent.sent_this_run or sent.is_under_way or sent.states.get("ready")):
            nothing = say_count(
                plan.known_rows,
                "Nothing was sent: {count:,} row was sent before.",
                "Nothing was sent: {count:,} rows were sent before.",
            )
            screen.insist(nothing)
            sent = replace(sent, message=f"{nothing} {sent.message}")
        return with_warnings_told(sent, plan)

    conversation = Conversation(
        partial(show_planned, screen), screen.say, screen.confirm if may_ask else Conversation().confirm
    )
    result = submit_sheet(asked, gateway, journal, conversation, send)
    if isinstance(result, Summary):
        return result
    if files.rejects is not None and result.question is None:
        given_sheet = asked.given
        screen.notes(write_mendable(result.plan.validated, given_sheet.path, given_sheet.options, files.rejects).notes)
    return refused_summary(result, asked)


def show_planned(screen: Screen, plan: Plan) -> None:
    headings = plan.validated.sheet.headers
    show_findings(screen, say("Defects"), plan.validated.defects_found, headings)
    show_findings(screen, say("Warnings"), plan.warnings_found, headings)
    show_known(screen, plan)


def show_known(screen: Screen, plan: Plan) -> None:
    if plan.known_rows:
        sentence = say_count(
            plan.known_rows,
            "{count:,} row is already in the journal and keeps its state.",
            "{count:,} rows are already in the journal and keep their state.",
        )
        screen.say(sentence)
