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
from paygw_batch.engine.pacing import Pace, stop_sentence
from paygw_batch.engine.ports import Prepare, Progress
from paygw_batch.engine.quarantine import MAX_AHEAD_S, DateWatch, JournalClock
from paygw_batch.errors import InternalError, JournalError
from paygw_batch.extras import extra
from paygw_batch.gateway.classify import classify
from paygw_batch.gateway.message import Attempt, ExpectedReply, PreparedRequest, RawReply, TransportFault
from paygw_batch.gateway.signing.signers import running_signers, signing_lookahead
from paygw_batch.journal import EngineJournal, Gate, GateState, SharedRunHandle, TallyKind
from paygw_batch.language import say
from paygw_batch.opening.gateway_access import SendJob, system_runtime
from paygw_batch.opening.given_sheet import load_rules_operation, require_complete, with_reply_names
from paygw_batch.opening.open_journal import judge_arrivals
from paygw_batch.processes import gc_paused
from paygw_batch.settings.configuration import Settings
from paygw_batch.submit.notices import add_disk_notice, add_key_expiry_notice, add_run_end_notice

LOOK_EVERY_S = 0.5
"""The minimum interval in seconds between two checks of a run of workers."""
_LOOK_SHARE = 0.05
"""The maximum share of the time spent counting. A large batch is therefore counted less often."""
OUTCOME_OF_STATE = {
    State.PAID: OutcomeKind.PAID,
    State.ACCEPTED: OutcomeKind.ACCEPTED,
    State.REJECTED: OutcomeKind.REJECTED,
    State.IN_DOUBT: OutcomeKind.UNKNOWN,
}

CountsReceiver = Callable[[Mapping[OutcomeKind, int]], None]
"""A function that receives the number of a run's rows with each outcome so far."""


class Drainable(Protocol):
    """A run that can be asked to start no new rows.

    If `continues_after_drain`, other processes then send the remaining rows.
    """

    continues_after_drain: bool

    def drain(self) -> None:
        """Start no new row. The run then waits for the rows in flight."""
        ...


class _WorkerRun:
    """Follows a run of workers until it is over, or no worker is alive.

    Draining stops the run for all workers, or leaves it to them if `continues_after_drain`.
    """

    def __init__(self, task: SendJob, run: SharedRunHandle, on_counts: CountsReceiver) -> None:
        self._task, self._run, self._counted = task, run, on_counts
        self.continues_after_drain = task.choices.sent_by is BatchSender.WORKERS_UNATTENDED
        self._before = self._states()
        self._drained = asyncio.Event()

    def drain(self) -> None:
        """At the next check, stop the run for all workers, or leave it to them."""
        self._drained.set()

    async def follow(self, watch: Callable[[Drainable], None]) -> RunEnd:
        watch(self)
        is_stopped = False
        while True:
            if self._drained.is_set() and self.continues_after_drain:
                return RunEnd(self._count(), None, interrupted=True, is_under_way=True)
            if self._drained.is_set() and not is_stopped:
                self._run.stop(STOPPED_BY_PERSON)
                is_stopped = True
            run_state, started_s = self._run.read_state(), time.monotonic()
            sent_count = self._count()
            if run_state.is_over:
                reason = None if is_stopped or run_state.stop_reason is None else render_record(run_state.stop_reason)
                return RunEnd(sent_count, reason, interrupted=is_stopped)
            if not self._run.has_workers():
                return RunEnd(sent_count, say("No worker is running."), interrupted=is_stopped, is_under_way=True)
            await self._wait(max(LOOK_EVERY_S, (time.monotonic() - started_s) / _LOOK_SHARE), is_stopped=is_stopped)

    async def _wait(self, wait_s: float, *, is_stopped: bool) -> None:
        if is_stopped:
            await asyncio.sleep(LOOK_EVERY_S)
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), wait_s)

    def _count(self) -> int:
        """Report the number of rows with each outcome since the start, and return the number sent."""
        now = self._states()
        counts = {kind: max(0, now[state] - self._before[state]) for state, kind in OUTCOME_OF_STATE.items()}
        self._counted(counts)
        return max(0, self._before[State.READY] - now[State.READY])

    def _states(self) -> Counter[State]:
        counts: Counter[State] = Counter()
        for tally in self._task.journal.tallies(self._task.batch.number):
            counts[tally.state] += tally.count
        return counts


_JOURNAL_BYTES_PER_ROW = 1024
"""The bytes for a row in the journal. A paid row adds 690; a stored reply adds its own length."""
_LOG_BYTES_PER_ROW = 16 * 1024
_MAX_LOG_BYTES = 8 * 2**20
"""The room for the write-ahead log, which takes four pages a row in small commits, and reaches about 4 MiB."""
RECORD_ARRIVALS_EVERY_S = 2.0
"""The interval in seconds at which a run records the notifications that have arrived."""

Watch = Callable[[Drainable], None]
"""A function that receives a run in its event loop before the run starts, to drain it later."""


WaitForRoom = Callable[[], Awaitable[None]]
"""A function that waits until the receiver of outcomes has room for more."""


def send(
    task: SendJob,
    progress: Progress,
    watch: Watch,
    *,
    wait_for_room: WaitForRoom | None = None,
    on_counts: CountsReceiver = lambda _counts: None,
    begin: Callable[[], None] = lambda: None,
) -> RunEnd:
    """Send the due rows of a batch, or follow the workers that send them, and return how the run ended.

    The event loop starts and ends here. `wait_for_room` is awaited before requests are prepared, so that no further row
    is signed meanwhile; rows in flight are not delayed. `on_counts` is called with the outcomes of workers. `begin` is
    called before workers can take the batch.

    Raises the error that ended the run, after passing outcomes that the journal could not record to `progress`.
    """
    choices, due = task.choices, task.journal.tallies(task.batch.number, kind=TallyKind.DUE)
    if not due:
        return _follow_last_rows(task, watch, on_counts)
    require_sendable(task, {tally.country for tally in due})
    if clock_sentence := clock_problem(task):
        return RunEnd(0, clock_sentence, interrupted=False)
    due_rows = sum(tally.count for tally in due)
    row_count = due_rows if choices.first is None else min(choices.first, due_rows)
    if no_space := disk_space_problem(task.settings, row_count):
        add_disk_notice(task.settings, free_bytes(task.settings), progress.echo)
        return RunEnd(0, no_space, interrupted=False)
    add_run_end_notice(task.settings, task.journal, task.batch, progress.echo)
    add_key_expiry_notice(task.settings, task.connection.signing.signer.key, progress.echo)
    if (gate := task.journal.gate()) is not None:
        with closing(gate):  # the gate may have a connection even if it could not be opened
            gate.open()
    if choices.sent_by is not BatchSender.THIS_PROCESS and choices.first is None:
        waits = choices.sent_by is BatchSender.WORKERS_LATER
        # None means that no worker was offered the batch, and that this process still has the write lock. Only then may
        # it send the batch itself. Otherwise two processes would send the same rows.
        run = _start_workers(task, is_waiting=waits, begin=begin)
        if run is not None and waits:
            if not run.has_workers():
                progress.echo(say("No worker is running: start one with `paygw-batch work`."))
            return RunEnd(0, None, interrupted=False)
        if run is not None:

            def start_watching(drainable: Drainable) -> None:
                watch(drainable)
                progress.set_total(due_rows)

            return asyncio.run(_WorkerRun(task, run, on_counts).follow(start_watching))
    dates = DateWatch(utc_now)
    end = send_rows(task, due_rows, progress, watch, dates, wait_for_room=wait_for_room)
    dates.record_in(task.journal)
    judge_arrivals(task.settings, task.journal, progress.echo)
    return end


def _follow_last_rows(task: SendJob, watch: Watch, on_counts: CountsReceiver) -> RunEnd:
    """Follow the workers that have a batch's last rows in flight and return how the run ended."""
    is_sent = (
        task.choices.sent_by in {BatchSender.WORKERS_IF_ANY, BatchSender.WORKERS_UNATTENDED}
        and task.settings.journal.url is not None
    )
    is_under_way = is_sent and task.journal.rows_being_sent(task.batch.number)
    run = task.journal.start_shared_run(task.batch.number) if is_under_way else None
    if run is None:
        return RunEnd(0, None, interrupted=False)
    return asyncio.run(_WorkerRun(task, run, on_counts).follow(watch))


def _start_workers(task: SendJob, *, is_waiting: bool, begin: Callable[[], None]) -> SharedRunHandle | None:
    """Hand a batch over to the workers and call one. Returns None if none is alive and the batch does not wait."""
    if (url := task.settings.journal.url) is None:
        return None
    begin()
    run = task.journal.start_shared_run(task.batch.number, waits=is_waiting, is_urgent=task.choices.urgent)
    if run is not None:
        extra("cluster.calling").call_workers(url, run.read_state())
    return run


def require_sendable(task: SendJob, countries: set[str]) -> None:
    """Raise `ConfigurationError` if a key needed for rows of these countries is missing."""
    if load_rules_operation(task.rules).name != task.batch.operation:
        raise InternalError(f"batch {task.batch.batch} was about to be sent as another operation than its own")
    require_complete(task.settings, task.rules, countries)


def clock_problem(task: SendJob) -> str | None:
    """Return why nothing may be sent with this machine's clock, or None.

    An attempt dated too early would leave quarantine too early once the clock is right.
    """
    sentence = JournalClock.read(task.journal, utc_now()).behind_sentence(at_most_s=MAX_AHEAD_S)
    if sentence is None:
        return None
    return say("{wrong} Correct the clock. Nothing is sent while it is wrong.", wrong=sentence)


def disk_space_problem(settings: Settings, rows: int) -> str | None:
    """Return why the journal's disk has too little space to send this number of rows, or None."""
    if settings.journal.url is not None:
        return None
    needed_bytes = rows * _JOURNAL_BYTES_PER_ROW + min(rows * _LOG_BYTES_PER_ROW, _MAX_LOG_BYTES)
    free_space = free_bytes(settings)
    if free_space >= needed_bytes:
        return None
    return say(
        "The disk of the journal has {free:.1f} MiB free, and these rows need about {needed:.1f} MiB. Nothing was "
        "sent. Free some space, and run the command again.",
        free=free_space / 2**20,
        needed=needed_bytes / 2**20,
    )


def free_bytes(settings: Settings) -> int:
    """Return the free bytes on the disk of the journal's file, which need not exist yet."""
    folder = settings.journal_path().parent
    return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free


def send_rows(
    task: SendJob,
    due_rows: int,
    progress: Progress,
    watch: Watch,
    dates: DateWatch,
    *,
    wait_for_room: WaitForRoom | None = None,
) -> RunEnd:
    """Send the batch's due rows (`due_rows` of them) with an engine, and return how the run ended.

    `dates` observes every reply. Raises as `send` does.
    """
    sent_at_most = due_rows if task.choices.first is None else min(task.choices.first, due_rows)
    progress.set_total(sent_at_most)
    signing = task.connection.signing

    async def run(journal: EngineJournal) -> RunEnd:
        async with running_signers(signing.signer.key, sent_at_most, progress.echo) as signers:
            prepare = signing.preparer(signers)

            async def prepare_with_room(attempts: Sequence[Attempt]) -> Sequence[PreparedRequest]:
                if wait_for_room is not None:
                    await wait_for_room()
                return await prepare(attempts)

            return await _run_engine(task, prepare_with_room, journal, progress, watch, dates, gate)

    gate = task.journal.gate()
    with (
        gc_paused(),
        task.journal.open_engine_journal() as engine_journal,
        asyncio.Runner(loop_factory=_loop_factory()) as runner,
    ):
        end = runner.run(run(engine_journal))
    if end.failure is not None:
        # These answers came when the journal could no longer be written, so they are only in this note. The next run
        # finds the rows in doubt, and a person then needs the note, or a statement from the gateway.
        for order_id, kind in end.unrecorded:
            state = state_label(kind.value)
            progress.echo(say("Not in the journal: order {order_id} is {outcome}.", order_id=order_id, outcome=state))
        raise end.failure
    return end


async def _run_engine(
    task: SendJob,
    prepare: Prepare,
    journal: EngineJournal,
    progress: Progress,
    watch: Watch,
    dates: DateWatch,
    gate: Gate | None,
) -> RunEnd:
    gateway, submission, words = task.settings.gateway, task.settings.submission, task.settings.words()
    operation = with_reply_names(task.settings, load_rules_operation(task.rules))
    pace = Pace(
        submission.concurrency,
        submission.rate_per_s,
        submission.stop_after_in_doubt,
        submission.stop_after_rejected,
        task.choices.first,
    )

    def judge(reply: RawReply | TransportFault, expected: ExpectedReply) -> Verdict:
        dates.observe_reply(reply)
        return dates.stop_if_clock_is_slow(classify(reply, expected, words, operation, now=utc_now()))

    async with task.connection.transport as transport:
        engine = Engine(
            journal=journal,
            gateway=transport,
            prepare=prepare,
            judge=judge,
            pace=pace,
            runtime=system_runtime(),
            progress=progress,
            send_within_s=gateway.connect_timeout_s + gateway.total_timeout_s,
            pacing=None if gate is None else extra("cluster.shared_pacing").SharedPacing(gate, pace),
            signing_lookahead=signing_lookahead(task.connection.signing.signer.key),
        )
        watch(engine)
        recording = asyncio.create_task(_record_arrivals_at_intervals(journal, words))
        try:
            return await engine.run(task.batch.number)
        finally:
            recording.cancel()


async def _record_arrivals_at_intervals(journal: EngineJournal, words: Mapping[str, OutcomeKind]) -> None:
    """Record notifications during the run. Errors are ignored, because the engine would fail too."""
    with suppress(JournalError):
        while True:
            await asyncio.sleep(RECORD_ARRIVALS_EVERY_S)
            await journal.judge_arrivals(words, at=timestamp(utc_now()))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's faster event loop factory, or None if uvloop is not installed."""
    try:
        import uvloop  # noqa: PLC0415 (an extra)
    except ImportError:
        return None
    return uvloop.new_event_loop


def gate_stop_reason(gate: GateState) -> str:
    """Return why no worker on any host may send, or empty if they may."""
    return "" if gate.stop is None else stop_sentence(gate.stop)
