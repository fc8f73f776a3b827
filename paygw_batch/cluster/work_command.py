"""`paygw-batch work`: sends the rows that commands hand over to workers, together with other hosts."""

import asyncio
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

import click

from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, Number
from paygw_batch.cli.options import complete_batches, output_guard, restart_command, settings_for
from paygw_batch.cli.screen.progress_bar import RunProgress
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.send_batch import drain_on_signals, report_run
from paygw_batch.cli.signals import HANDLED_SIGNALS, interruption
from paygw_batch.clock import utc_now
from paygw_batch.cluster.asked import JobsFailure, ShareRequest
from paygw_batch.engine.engine import RunEnd
from paygw_batch.engine.quarantine import ClockComparer
from paygw_batch.errors import JournalError, JournalHeld, UsageError
from paygw_batch.journal import BatchRecord, SharedRun, TallyKind
from paygw_batch.language import say, say_count
from paygw_batch.opening.gateway_access import SendJob, open_gateway
from paygw_batch.opening.given_sheet import require_sending_settings, rules_for
from paygw_batch.opening.open_journal import find_batch, require_workers
from paygw_batch.settings.configuration import Settings
from paygw_batch.show.batch_status import batch_summary
from paygw_batch.show.summary import ExitCode, RunFailed, Summary, worst_code
from paygw_batch.submit.send import Drainable, clock_problem, require_sendable, send_rows
from paygw_batch.unattended.metrics import measure_workers

if TYPE_CHECKING:
    from paygw_batch.cluster.database_location import WorkerJournal
    from paygw_batch.cluster.job_worker import JobWorker
CHECK_INTERVAL_S = 1.0
"""How often to check for an urgent run, and with `--once` for remaining rows."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a worker sends with `--once`: the rows of one batch or of all batches, with an optional time limit."""

    batch: str | None = None
    seconds: float | None = None


class Worker:
    """Sends rows for other commands. With a `share`, it ends when none are left. Otherwise it takes jobs until stopped.

    `program` is the command line that starts this program with the same configuration.
    """

    continues_after_drain = False

    def __init__(self, settings: Settings, screen: Screen, share: Share | None, program: Sequence[str]) -> None:
        self._settings, self._screen, self._share, self._program = settings, screen, share, program
        seconds = None if share is None else share.seconds
        self._deadline_s = None if seconds is None else time.monotonic() + seconds
        self._is_ending = False
        self._is_done = False
        self._engine: Drainable | None = None
        self._urgent_run_watch: asyncio.Task[None] | None = None
        self._journal: WorkerJournal | None = None
        self._job_worker: JobWorker | None = None
        self._sent = 0
        self._batch_name = None if share is None else share.batch
        self._batch_number: int | None = None
        self._exit_codes: dict[int, ExitCode] = {}

    def serve(self) -> Summary:
        """Send rows until done or interrupted, and return the summary."""
        previous_handlers = [(number, signal.getsignal(number)) for number in HANDLED_SIGNALS]
        try:
            self._handle_signals(self._end_now)
            if self._share is not None:
                self._serve_with_journal(self._serve_share)
            else:
                with closing(self._start_job_worker()) as job_worker:
                    self._job_worker = job_worker
                    self._serve_with_journal(lambda journal: self._serve_jobs(journal, job_worker))
        except KeyboardInterrupt:
            self._is_ending = True
        except Exception as error:
            raise RunFailed(error, "", self._summary()) from error
        finally:
            for number, handler in previous_handlers:
                signal.signal(number, handler)
            interruption.raise_on_second_signal()
        return self._summary()

    def _serve_with_journal(self, serve: "Callable[[WorkerJournal], None]") -> None:
        with closing(require_workers(self._settings).open_to_work("work")) as journal:
            self._journal = journal
            self._screen.notes(journal.notes)
            self._screen.say(say("This worker is ready."))
            serve(journal)

    def _start_job_worker(self) -> "JobWorker":
        """Start a thread that takes jobs. Raises `JournalError` if the job tables do not exist."""
        from paygw_batch.cluster.job_worker import (  # noqa: PLC0415 (a share does not need procrastinate)
            JobWorker,
            scheduled_commands,
        )

        database = require_workers(self._settings)
        database.check_jobs()
        commands = list(scheduled_commands(self._settings.timetable))
        find_runs = database.waiting_runs()
        job_worker = JobWorker(database.server.url, database.intent_lives_s, commands, self._program, find_runs)
        job_worker.start()
        return job_worker

    def drain(self) -> None:
        """Start no more rows, and end once the rows in flight have outcomes."""
        self._is_ending = True
        self._wake()
        if self._journal is not None:
            self._journal.shorten_waits()
        if self._engine is not None:
            self._engine.drain()

    @property
    def sent_count(self) -> int:
        return self._sent + (0 if self._engine is None else self._engine.sent_count)

    def _summary(self) -> Summary:
        message = say_count(
            self._sent,
            "The worker has stopped: it sent {count:,} row.",
            "The worker has stopped: it sent {count:,} rows.",
        )
        codes = set(self._exit_codes.values())
        if not self._is_done:
            # Do not report success for part of a batch. Otherwise the program that started this worker would not start
            # another.
            codes = {ExitCode.DONE if self._batch_name is None else ExitCode.STOPPED_EARLY}
        return Summary(worst_code(codes), message, sent_this_run=self._sent)

    def _serve_jobs(self, journal: "WorkerJournal", job_worker: "JobWorker") -> None:
        while not self._is_ending:
            match job_worker.next():
                case None:
                    continue
                case ShareRequest() as share:
                    try:
                        self._send_requested_share(journal, job_worker, share.run)
                    finally:
                        share.finish()
                case JobsFailure() as failure:
                    journal.wait_for_server()
                    if failure.is_lasting:
                        raise JournalError(
                            say("The workers' jobs cannot be read: {reason}.", reason=failure.reason),
                            hint=say("Nothing was lost. To see the role's permissions, run `paygw-batch doctor`."),
                        )

    def _send_requested_share(self, journal: "WorkerJournal", job_worker: "JobWorker", number: int) -> None:
        """Send a share of an urgent run or of run `number`, and request workers for the remaining rows."""
        joined_run = journal.join_run([run for run in journal.runs() if run.is_urgent or run.number == number])
        if joined_run is None:
            return
        job_worker.request_worker(joined_run)
        self._send(journal, joined_run)
        for run in journal.waiting_runs():
            job_worker.request_worker(run)

    def _serve_share(self, journal: "WorkerJournal") -> None:
        if self._batch_name is not None and self._batch_number is None:
            self._batch_number = find_batch(journal, self._batch_name).number
            self._exit_codes[self._batch_number] = ExitCode.DONE
        while not self._is_ending:
            runs = [run for run in journal.runs() if self._batch_number in {None, run.batch}]
            for run in runs:
                self._exit_codes.setdefault(run.batch, ExitCode.DONE)
            if not runs or self._remaining_s() <= 0:
                self._read_exit_codes(journal)
                self._is_done = True
                return
            if (joined_run := journal.join_run(runs)) is not None:
                self._send(journal, joined_run)
            else:
                time.sleep(max(0.0, min(CHECK_INTERVAL_S, self._remaining_s())))
        if self._batch_number is not None:
            self._read_exit_codes(journal)
            self._is_done = True

    def _remaining_s(self) -> float:
        return math.inf if self._deadline_s is None else self._deadline_s - time.monotonic()

    def _send(self, journal: "WorkerJournal", run: SharedRun) -> None:
        record = _find_record(journal, run.batch)
        rules = rules_for(self._settings, record.operation)
        with open_gateway(self._settings, rules, os.environ) as gateway:
            end, comparer = self._send_share(SendJob(self._settings, rules, gateway, journal, record), journal)
        if end.stop_reason is not None:
            journal.stop_run(run, end.stop_reason)
        journal.leave_run()
        if journal.may_decide():
            with suppress(JournalHeld):  # the next run records the clock difference
                comparer.record_in(journal)
        self._screen.say(
            say_count(
                end.sent,
                "Batch {batch}: this worker sent {count:,} row.",
                "Batch {batch}: this worker sent {count:,} rows.",
                batch=record.batch,
            )
        )
        self._handle_signals(self._end_now)

    def _send_share(self, job: SendJob, journal: "WorkerJournal") -> tuple[RunEnd, ClockComparer]:
        due_tallies = journal.tallies(job.batch.number, kind=TallyKind.DUE)
        require_sendable(job, {tally.country for tally in due_tallies})
        if problem := clock_problem(job):
            raise JournalError(problem, hint=say("Correct this host's clock, then start the worker again."))
        comparer = ClockComparer(utc_now)
        due_rows = sum(tally.count for tally in due_tallies)
        try:
            with RunProgress(self._screen.err) as progress:

                def on_start(engine: Drainable) -> None:
                    self._engine = engine
                    drain_on_signals(self, progress)
                    self._urgent_run_watch = asyncio.create_task(self._drain_for_urgent_run(journal, engine))
                    if self._deadline_s is not None:
                        asyncio.get_running_loop().call_later(max(0.0, self._remaining_s()), engine.drain)

                end = send_rows(job, due_rows, progress, on_start, comparer)
        finally:
            self._sent, self._engine = self.sent_count, None
            # A signal must not interrupt the recording of the engine's results.
            self._handle_signals(lambda *_: self.drain())
        return end, comparer

    async def _drain_for_urgent_run(self, journal: "WorkerJournal", engine: Drainable) -> None:
        """Drain the engine when an urgent run is waiting. Ignore journal errors, which the engine also raises."""
        with suppress(JournalError):
            while self._batch_number is None:  # a worker for one batch stays with it
                await asyncio.sleep(CHECK_INTERVAL_S)
                if await journal.is_preempted():
                    engine.drain()
                    return

    def _read_exit_codes(self, journal: "WorkerJournal") -> None:
        for number in self._exit_codes:
            record = _find_record(journal, number)
            self._exit_codes[number] = batch_summary(journal, record).exit_code

    def _handle_signals(self, handler: Callable[[int, FrameType | None], None]) -> None:
        """Set the signal handler to use while no engine is running. An engine sets its own."""
        for number in HANDLED_SIGNALS:
            signal.signal(number, handler)
        self._is_ending |= interruption.is_signalled

    def _end_now(self, _signal: int, _frame: FrameType | None) -> None:
        """End the worker immediately, even if the server does not answer. Call only while no rows are being sent."""
        # Record the signal too, because an import or an interpreter callback may swallow the exception.
        interruption.is_signalled = self._is_ending = True
        self._wake()
        raise KeyboardInterrupt

    def _wake(self) -> None:
        if self._job_worker is not None:
            self._job_worker.wake()


def _find_record(journal: "WorkerJournal", number: int) -> BatchRecord:
    return next(record for record in journal.batches() if record.number == number)


@click.command("work", cls=HelpCommand)
@click.argument("batch", required=False, shell_complete=complete_batches)
@click.option("--once", is_flag=True, help="Stop when nothing is left to send.")
@click.option(
    "--for", "seconds", type=Number(0, min_open=True), metavar="SECONDS", help="With --once, stop after this time."
)
@click.pass_obj
def work_command(invocation: Invocation, *, batch: str | None, once: bool, seconds: float | None) -> None:
    """Work with other hosts to send the rows that `submit`, `resume` and `retry` hand over to workers.

    It waits for more rows until interrupted. It then finishes its rows in flight and ends with exit code 0.

    With --once, the command sends its share of BATCH, or of all batches, and ends with their exit code. You can start
    it any number of times, and kill it at any time.
    """
    if not once and (batch is not None or seconds is not None):
        raise UsageError(
            say("BATCH and --for can be used only with --once."),
            hint=say("Without --once, a worker sends until it is interrupted."),
        )
    screen = Screen(invocation)
    settings = settings_for(invocation)
    require_workers(settings)
    require_sending_settings(settings)
    output_guard(invocation, settings).check(reporting=True)
    with report_run(settings, "work", screen) as report, measure_workers(settings):
        share = Share(batch, seconds) if once else None
        report.summary = Worker(settings, screen, share, restart_command(invocation)).serve()
    screen.finish(report.summary)
