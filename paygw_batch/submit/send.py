"""Sends the due rows of a batch, or follows the workers that send them."""

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Protocol

from paygw_batch.clock import timestamp, utc_now
from paygw_batch.core.choices import BatchSender
from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import OutcomeKind, Verdict
from paygw_batch.core.shown_states import STOPPED_BY_PERSON, render_record, state_label
from paygw_batch.engine.engine import Engine, RunEnd
from paygw_batch.engine.pacing import Pace, stop_message
from paygw_batch.engine.ports import Prepare, Progress
from paygw_batch.engine.quarantine import CLOCK_TOLERANCE_S, ClockComparer, JournalClock
from paygw_batch.errors import InternalError, JournalError
from paygw_batch.extras import extra
from paygw_batch.gateway.classify import classify
from paygw_batch.gateway.message import Attempt, ExpectedReply, PreparedRequest, RawReply, TransportFault
from paygw_batch.gateway.signing.signers import signing_lookahead, start_signers
from paygw_batch.journal import EngineJournal, Gate, GateState, SharedRunHandle, TallyKind
from paygw_batch.language import say
from paygw_batch.opening.gateway_access import SendJob, system_runtime
from paygw_batch.opening.given_sheet import operation_of, require_complete, with_reply_names
from paygw_batch.opening.open_journal import process_arrivals
from paygw_batch.processes import gc_relaxed
from paygw_batch.settings.configuration import Settings
from paygw_batch.submit.notices import add_disk_notice, add_key_expiry_notice, add_run_end_notice

CHECK_INTERVAL_S = 0.5
"""The minimum number of seconds between two checks of the workers' progress."""
_COUNT_SHARE = 0.05
"""The maximum share of a run's time spent counting rows. Large batches are therefore counted less often."""
OUTCOME_BY_STATE = {
    State.PAID: OutcomeKind.PAID,
    State.ACCEPTED: OutcomeKind.ACCEPTED,
    State.REJECTED: OutcomeKind.REJECTED,
    State.IN_DOUBT: OutcomeKind.UNKNOWN,
}

CountsReceiver = Callable[[Mapping[OutcomeKind, int]], None]
"""A function that receives the number of rows with each outcome so far."""


class Drainable(Protocol):
    """A run that can be drained. If `continues_after_drain` is set, other processes send the remaining rows."""

    continues_after_drain: bool

    @property
    def sent_count(self) -> int:
        """The number of rows whose first byte may have been sent so far."""
        ...

    def drain(self) -> None:
        """Start no new row, and let the rows in flight finish."""
        ...


class _WorkerRun:
    """Follows a run by workers. Draining it stops all workers, unless `continues_after_drain` is set."""

    def __init__(self, job: SendJob, run: SharedRunHandle, on_counts: CountsReceiver) -> None:
        self._job, self._run, self._on_counts = job, run, on_counts
        self.continues_after_drain = job.choices.sent_by is BatchSender.WORKERS_UNATTENDED
        self._initial_counts = self._count_states()
        self._drained = asyncio.Event()
        self.sent_count = 0

    def drain(self) -> None:
        self._drained.set()

    async def follow(self, on_start: Callable[[Drainable], None]) -> RunEnd:
        on_start(self)
        is_stopped = False
        while True:
            if self._drained.is_set() and self.continues_after_drain:
                return RunEnd(self._report_counts(), None, interrupted=True, is_under_way=True)
            if self._drained.is_set() and not is_stopped:
                self._run.stop(STOPPED_BY_PERSON)
                is_stopped = True
            run_state, start_s = self._run.read_state(), time.monotonic()
            sent_count = self._report_counts()
            if run_state.is_finished:
                reason = None if is_stopped or run_state.stop_reason is None else render_record(run_state.stop_reason)
                return RunEnd(sent_count, reason, interrupted=is_stopped)
            if not self._run.has_workers():
                return RunEnd(sent_count, say("No worker is running."), interrupted=is_stopped, is_under_way=True)
            await self._wait(max(CHECK_INTERVAL_S, (time.monotonic() - start_s) / _COUNT_SHARE), is_stopped=is_stopped)

    async def _wait(self, wait_s: float, *, is_stopped: bool) -> None:
        if is_stopped:
            await asyncio.sleep(CHECK_INTERVAL_S)
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), wait_s)

    def _report_counts(self) -> int:
        """Report the number of rows with each outcome since the start, and return the number sent."""
        states = self._count_states()
        counts = {kind: max(0, states[state] - self._initial_counts[state]) for state, kind in OUTCOME_BY_STATE.items()}
        self._on_counts(counts)
        self.sent_count = max(0, self._initial_counts[State.READY] - states[State.READY])
        return self.sent_count

    def _count_states(self) -> Counter[State]:
        counts: Counter[State] = Counter()
        for tally in self._job.journal.tallies(self._job.batch.number):
            counts[tally.state] += tally.count
        return counts


_JOURNAL_BYTES_PER_ROW = 1024
"""The space reserved in the journal for each row. A paid row adds 690 bytes, and a stored reply its own length."""
_LOG_BYTES_PER_ROW = 16 * 1024
_MAX_LOG_BYTES = 8 * 2**20
"""The space reserved for the write-ahead log, which takes four pages per row in small commits, up to about 4 MiB."""
ARRIVALS_INTERVAL_S = 2.0
"""The interval in seconds at which a run records notifications."""

OnStart = Callable[[Drainable], None]
"""A function that is called with a run, in its event loop, before it starts. It may drain the run later."""
WaitForRoom = Callable[[], Awaitable[None]]
"""A function that waits until more outcomes can be received."""


def send(
    job: SendJob,
    progress: Progress,
    on_start: OnStart,
    *,
    wait_for_room: WaitForRoom | None = None,
    on_counts: CountsReceiver = lambda _counts: None,
    begin: Callable[[], None] = lambda: None,
) -> RunEnd:
    """Send the due rows of a batch, or follow the workers that send them, and return how the run ended.

    Runs its own event loop. `wait_for_room` is awaited before requests are signed, and does not delay rows in flight.
    `on_counts` receives the number of rows with each outcome if workers send them. `begin` is called before the batch
    is offered to workers.

    Raises the error that ended the run, after passing to `progress` any outcomes that the journal could not record.
    """
    choices, due = job.choices, job.journal.tallies(job.batch.number, kind=TallyKind.DUE)
    if not due:
        return _follow_last_rows(job, on_start, on_counts)
    require_sendable(job, {tally.country for tally in due})
    if problem := clock_problem(job):
        return RunEnd(0, problem, interrupted=False)
    due_count = sum(tally.count for tally in due)
    row_count = due_count if choices.first is None else min(choices.first, due_count)
    if problem := disk_space_problem(job.settings, row_count):
        add_disk_notice(job.settings, free_bytes(job.settings), progress.echo)
        return RunEnd(0, problem, interrupted=False)
    add_run_end_notice(job.settings, job.journal, job.batch, progress.echo)
    add_key_expiry_notice(job.settings, job.gateway.signing.signer.key, progress.echo)
    if (gate := job.journal.gate()) is not None:
        with closing(gate):  # it may be connected even if opening it fails
            gate.open()
    if choices.sent_by is not BatchSender.THIS_PROCESS and choices.first is None:
        can_wait = choices.sent_by is BatchSender.WORKERS_LATER
        # None means that the batch was not offered to workers and this process still has the write lock. Only then may
        # it send the batch itself, because otherwise two processes could send the same rows.
        run = _start_workers(job, can_wait=can_wait, begin=begin)
        if run is not None and can_wait:
            if not run.has_workers():
                progress.echo(say("No worker is running. Start one with `paygw-batch work`."))
            return RunEnd(0, None, interrupted=False)
        if run is not None:

            def start_following(drainable: Drainable) -> None:
                on_start(drainable)
                progress.set_total(due_count)

            return asyncio.run(_WorkerRun(job, run, on_counts).follow(start_following))
    clocks = ClockComparer(utc_now)
    end = send_rows(job, due_count, progress, on_start, clocks, wait_for_room=wait_for_room)
    clocks.record_in(job.journal)
    process_arrivals(job.settings, job.journal, progress.echo)
    return end


def _follow_last_rows(job: SendJob, on_start: OnStart, on_counts: CountsReceiver) -> RunEnd:
    uses_workers = (
        job.choices.sent_by in {BatchSender.WORKERS_IF_ANY, BatchSender.WORKERS_UNATTENDED}
        and job.settings.journal.url is not None
    )
    is_under_way = uses_workers and job.journal.rows_being_sent(job.batch.number)
    run = job.journal.start_shared_run(job.batch.number) if is_under_way else None
    if run is None:
        return RunEnd(0, None, interrupted=False)
    return asyncio.run(_WorkerRun(job, run, on_counts).follow(on_start))


def _start_workers(job: SendJob, *, can_wait: bool, begin: Callable[[], None]) -> SharedRunHandle | None:
    """Offer a batch to the workers. Returns None if this process must send it itself."""
    if (url := job.settings.journal.url) is None:
        return None
    begin()
    run = job.journal.start_shared_run(job.batch.number, can_wait=can_wait, is_urgent=job.choices.urgent)
    if run is not None:
        extra("cluster.calling").notify_workers(url, run.read_state())
    return run


def require_sendable(job: SendJob, countries: set[str]) -> None:
    """Raise `ConfigurationError` if a setting for one of these countries is missing."""
    if operation_of(job.rules).name != job.batch.operation:
        raise InternalError(f"batch {job.batch.batch} was about to be sent as another operation than its own")
    require_complete(job.settings, job.rules, countries)


def clock_problem(job: SendJob) -> str | None:
    """Return why this machine's clock prevents sending, or None. A wrong clock could end quarantines too early."""
    message = JournalClock.read(job.journal, utc_now()).behind_message(tolerance_s=CLOCK_TOLERANCE_S)
    if message is None:
        return None
    return say("{wrong} Correct the clock. Nothing will be sent while it is wrong.", wrong=message)


def disk_space_problem(settings: Settings, row_count: int) -> str | None:
    """Return a message if the journal's disk lacks the space to send this many rows, or None."""
    if settings.journal.url is not None:
        return None
    needed_bytes = row_count * _JOURNAL_BYTES_PER_ROW + min(row_count * _LOG_BYTES_PER_ROW, _MAX_LOG_BYTES)
    if (free := free_bytes(settings)) >= needed_bytes:
        return None
    return say(
        "The journal's disk has {free:.1f} MiB free, but these rows need about {needed:.1f} MiB. Nothing was sent. "
        "Free some space and run the command again.",
        free=free / 2**20,
        needed=needed_bytes / 2**20,
    )


def free_bytes(settings: Settings) -> int:
    """Return the free bytes on the journal's disk, even if there is no journal yet."""
    folder = settings.journal_path().parent
    return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free


def send_rows(
    job: SendJob,
    due_count: int,
    progress: Progress,
    on_start: OnStart,
    clocks: ClockComparer,
    *,
    wait_for_room: WaitForRoom | None = None,
) -> RunEnd:
    """Send a batch's due rows in this process, and return how the run ended. Raises the same errors as `send`."""
    max_rows = due_count if job.choices.first is None else min(job.choices.first, due_count)
    progress.set_total(max_rows)
    signing = job.gateway.signing

    async def run(journal: EngineJournal) -> RunEnd:
        async with start_signers(signing.signer.key, max_rows, progress.echo) as signers:
            prepare = signing.build_preparer(signers)

            async def prepare_with_room(attempts: Sequence[Attempt]) -> Sequence[PreparedRequest]:
                if wait_for_room is not None:
                    await wait_for_room()
                return await prepare(attempts)

            return await _run_engine(job, prepare_with_room, journal, progress, on_start, clocks, gate)

    gate = job.journal.gate()
    with (
        gc_relaxed(),
        job.journal.open_engine_journal() as engine_journal,
        asyncio.Runner(loop_factory=_loop_factory()) as runner,
    ):
        end = runner.run(run(engine_journal))
    if end.failure is not None:
        # These outcomes arrived when the journal could no longer be written. The next run finds the rows in doubt, and
        # a person needs this message, or a statement from the gateway, to settle them.
        for order_id, kind in end.unrecorded:
            state = state_label(kind.value)
            progress.echo(say("Not in the journal: order {order_id} is {outcome}.", order_id=order_id, outcome=state))
        raise end.failure
    return end


async def _run_engine(
    job: SendJob,
    prepare: Prepare,
    journal: EngineJournal,
    progress: Progress,
    on_start: OnStart,
    clocks: ClockComparer,
    gate: Gate | None,
) -> RunEnd:
    gateway, submission, words = job.settings.gateway, job.settings.submission, job.settings.words()
    operation = with_reply_names(job.settings, operation_of(job.rules))
    pace = Pace(
        submission.concurrency,
        submission.rate_per_s,
        submission.stop_after_in_doubt,
        submission.stop_after_rejected,
        job.choices.first,
    )

    def classify_reply(reply: RawReply | TransportFault, expected: ExpectedReply) -> Verdict:
        clocks.observe_reply(reply)
        return clocks.with_clock_advice(classify(reply, expected, words, operation, now=utc_now()))

    async with job.gateway.transport as transport:
        engine = Engine(
            journal=journal,
            gateway=transport,
            prepare=prepare,
            assess=classify_reply,
            pace=pace,
            runtime=system_runtime(),
            progress=progress,
            send_within_s=gateway.connect_timeout_s + gateway.total_timeout_s,
            pacing=None if gate is None else extra("cluster.shared_pacing").SharedPacing(gate, pace),
            signing_lookahead=signing_lookahead(job.gateway.signing.signer.key),
        )
        on_start(engine)
        recording = asyncio.create_task(_record_arrivals_at_intervals(journal, words))
        try:
            return await engine.run(job.batch.number)
        finally:
            recording.cancel()


async def _record_arrivals_at_intervals(journal: EngineJournal, words: Mapping[str, OutcomeKind]) -> None:
    """Record notifications during a run. Ignores journal errors, because they also stop the engine."""
    with suppress(JournalError):
        while True:
            await asyncio.sleep(ARRIVALS_INTERVAL_S)
            await journal.process_arrivals(words, at=timestamp(utc_now()))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's event loop factory, or None if uvloop is not installed."""
    try:
        import uvloop  # noqa: PLC0415 (an extra)
    except ImportError:
        return None
    return uvloop.new_event_loop


def gate_stop_reason(gate: GateState) -> str:
    """Return why no worker on any host may send, or an empty string."""
    return "" if gate.stop is None else stop_message(gate.stop)
