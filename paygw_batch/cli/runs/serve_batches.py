"""Works on batches that are handed over: joins one run after the other, sends a share of it, and waits for more."""

import os
import signal
from contextlib import closing, suppress
from types import FrameType
from typing import TYPE_CHECKING

from paygw_batch.cli.runs.send_batch import drain_on_signals
from paygw_batch.cli.screen.progress_bar import progress_on
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.signals import HEEDED, interruption
from paygw_batch.clock import utc_now
from paygw_batch.compose.actions.send import Task, require_sendable, send_rows, wrong_clock
from paygw_batch.compose.gateway import gateway_of
from paygw_batch.compose.journal import open_to_work
from paygw_batch.compose.operations import minor_units_of, rules_of
from paygw_batch.compose.shared.follow_run import Drained
from paygw_batch.engine.engine import RunEnd
from paygw_batch.errors import JournalError, JournalHeld
from paygw_batch.journal import BatchRecord, SharedRun, TallyKind
from paygw_batch.language import say, say_count
from paygw_batch.report.batch_states import batch_summary
from paygw_batch.report.summary import ExitCode, Summary, worst
from paygw_batch.run.quarantine_clock import DateWatch
from paygw_batch.settings.configuration import Settings

if TYPE_CHECKING:
    from paygw_batch.journal import WorkerJournal

LOOK_EVERY_S = 1.0
"""How long a worker that has nothing to do waits at the most, before it looks for itself."""


class BatchServer:
    """A worker. It ends when it is asked to, or, with `once`, when no run is on any more."""

    def __init__(self, settings: Settings, screen: Screen, *, once: bool) -> None:
        self._settings, self._screen, self._once = settings, screen, once
        self._is_asked_to_end = False
        self._is_done = False
        self._engine: Drained | None = None
        self._sent = 0
        self._batches: dict[int, ExitCode] = {}

    def serve(self) -> Summary:
        """Work until the end, and return the summary."""
        self._heed()
        while not (self._is_asked_to_end or self._is_done):
            with closing(open_to_work(self._settings, "work")) as journal:
                for note in journal.notes:
                    self._screen.notes([note])
                self._screen.say(say("This worker is ready."))
                self._serve(journal)
        sent = say_count(
            self._sent,
            "The worker has stopped: it sent {count:,} row.",
            "The worker has stopped: it sent {count:,} rows.",
        )
        codes = {ExitCode.DONE} if self._is_asked_to_end else set(self._batches.values())
        return Summary(worst(codes), sent, sent_this_run=self._sent)

    def drain(self) -> None:
        """End, once the rows in flight are known; start no new row."""
        self._is_asked_to_end = True
        if self._engine is not None:
            self._engine.drain()

    def _serve(self, journal: "WorkerJournal") -> None:
        while not (self._is_asked_to_end or journal.is_spent):
            for run in journal.runs():
                self._batches.setdefault(run.batch, ExitCode.DONE)
            if (joined := journal.join_run()) is not None:
                self._send(journal, joined)
            elif self._once and not journal.runs():
                self._judge(journal)
                self._is_done = True
                return
            else:
                journal.wait_for_offer(LOOK_EVERY_S)

    def _send(self, journal: "WorkerJournal", run: SharedRun) -> None:
        """Send a share of a run."""
        record = _record(journal, run.batch)
        rules = rules_of(self._settings, record.operation)
        with gateway_of(self._settings, rules, os.environ) as gateway:
            end, dates = self._sent_share(Task(self._settings, rules, gateway, journal, record), journal)
        if end.stop_reason is not None:
            journal.stop_run(run, end.stop_reason)
        journal.leave_run()
        if journal.may_decide():
            with suppress(JournalHeld):  # the next run notes it
                dates.note_in(journal)
        self._sent += end.sent
        self._is_asked_to_end |= end.interrupted
        self._screen.say(
            say_count(
                end.sent,
                "Batch {batch}: this worker sent {count:,} row.",
                "Batch {batch}: this worker sent {count:,} rows.",
                batch=record.batch,
            )
        )

    def _sent_share(self, task: Task, journal: "WorkerJournal") -> tuple[RunEnd, DateWatch]:
        due = journal.tallies(task.batch.number, kind=TallyKind.DUE)
        require_sendable(task, {tally.country for tally in due})
        if wrong := wrong_clock(task):
            raise JournalError(wrong, hint=say("Set the clock of this host right, and start the worker again."))
        dates = DateWatch(utc_now)
        due_rows = sum(tally.count for tally in due)
        try:
            with progress_on(self._screen.err) as progress:

                def watch(engine: Drained) -> None:
                    self._engine = engine
                    drain_on_signals(self, progress)
                    if self._is_asked_to_end:  # before the engine had its handlers
                        self.drain()

                end = send_rows(task, due_rows, progress, watch, dates)
        finally:
            self._heed()
        return end, dates

    def _judge(self, journal: "WorkerJournal") -> None:
        """Take the exit code of each batch that a run was on for."""
        for number in self._batches:
            record = _record(journal, number)
            units = minor_units_of(rules_of(self._settings, record.operation))
            self._batches[number] = batch_summary(journal, record, units).exit_code

    def _heed(self) -> None:
        """Take signals while nothing is sent: the event loop of a run has its handlers."""
        self._is_asked_to_end |= interruption.came
        for each in HEEDED:
            signal.signal(each, self._take_note)

    def _take_note(self, _signal: int, _frame: FrameType | None) -> None:
        self._is_asked_to_end = True


def _record(journal: "WorkerJournal", number: int) -> BatchRecord:
    return next(one for one in journal.batches() if one.number == number)
