"""Sends the due rows of a batch, and returns the state of the batch afterwards."""

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial

import polars as pl

from paygw_batch.clock import timestamp, utc_now
from paygw_batch.compose.gateway import GatewayAccess
from paygw_batch.compose.operations import as_answered, minor_units_of, operation_of, require_complete
from paygw_batch.compose.run_journal import take_in_waiting
from paygw_batch.compose.shared.follow_run import Counted, Drained, follow_run
from paygw_batch.core.outcome import OutcomeKind, Verdict
from paygw_batch.core.shown_states import state_words
from paygw_batch.countries.rules import Operation, Rules
from paygw_batch.engine.engine import Engine, Judge, RunEnd
from paygw_batch.engine.gc_pause import gc_paused
from paygw_batch.engine.pacing import Pace
from paygw_batch.engine.ports import Prepare, Progress, World
from paygw_batch.engine.shared_pacing import SharedPacing
from paygw_batch.errors import InboxDamaged, InternalError, JournalError
from paygw_batch.gateway.classify import classify
from paygw_batch.gateway.message import Attempt, Expected, PreparedRequest, RawReply, TransportFault
from paygw_batch.gateway.signing.signers import signers_at_work
from paygw_batch.journal import BatchRecord, EngineJournal, Gate, Journal, JournalReader, TallyKind
from paygw_batch.language import say
from paygw_batch.report.batch_states import end_sentence
from paygw_batch.report.reconcile import reconciliation
from paygw_batch.report.summary import Summary, of_states
from paygw_batch.report.totals import BatchTotals, books
from paygw_batch.run.quarantine_clock import AHEAD_AT_MOST_S, DateWatch, behind_sentence
from paygw_batch.settings.configuration import Settings


def real_world() -> World:
    """Return the real clock, nonces of 128 random bits, and chance."""
    return World(now=utc_now, nonce=partial(secrets.token_hex, 16), chance=random.random)


TAKE_IN_EVERY_S = 2.0
"""How often a run takes in the notifications that came meanwhile."""

Watch = Callable[[Drained], None]
"""Takes the engine (or the run of workers) inside its event loop, before it starts, so that the caller can drain it."""


WaitForRoom = Callable[[], Awaitable[None]]
"""Waits until the receiver of outcomes can take more of them."""


class SentBy(Enum):
    """The processes that send a batch."""

    THIS_PROCESS = "this_process"
    WORKERS_IF_ANY = "workers_if_any"
    """The workers, where one lives, while this process follows them; otherwise this process."""
    WORKERS_LATER = "workers_later"
    """The workers, also where none lives yet; this process ends."""


@dataclass(frozen=True, slots=True)
class Task:
    """A batch to send, and all that sending takes. `known` rows were in the journal before.

    `first`: only so many of the due rows are sent, in the sheet's order (None: all), and by this process alone.
    """

    settings: Settings
    rules: Rules
    connection: GatewayAccess
    journal: Journal
    batch: BatchRecord
    known: int = 0
    first: int | None = None
    sent_by: SentBy = SentBy.THIS_PROCESS


@dataclass(frozen=True, slots=True)
class Standings:
    """The state of a batch: the reconciliation's frame, its totals, and the summary."""

    frame: pl.DataFrame
    books: BatchTotals
    summary: Summary


def send(
    task: Task,
    progress: Progress,
    watch: Watch,
    *,
    wait_for_room: WaitForRoom | None = None,
    counted: Counted | None = None,
) -> RunEnd:
    """Send the due rows of the batch, or follow the workers that do, and return how that ended.

    The event loop starts and ends here. `wait_for_room` is awaited before requests are prepared: while it waits, no
    further row is signed, and nothing that is in flight is held up. `counted` takes the outcomes that workers had.

    Raises what made going on impossible, after telling `progress` of every outcome that the journal could not take.
    """
    due = task.journal.tallies(task.batch.number, kind=TallyKind.DUE)
    if not due:
        return RunEnd(0, None, interrupted=False)
    require_sendable(task, {tally.country for tally in due})
    if wrong := wrong_clock(task):
        return RunEnd(0, wrong, interrupted=False)
    due_rows = sum(tally.count for tally in due)
    if (gate := task.journal.gate()) is not None:
        gate.open()
        gate.close()
    if task.sent_by is not SentBy.THIS_PROCESS and task.first is None:
        waits = task.sent_by is SentBy.WORKERS_LATER
        run = task.journal.hand_over(task.batch.number, waits=waits)
        if run is not None and waits:
            if not run.has_workers():
                progress.note(say("No worker is alive: the rows wait for one (`paygw-batch work`)."))
            return RunEnd(0, None, interrupted=False)
        if run is not None:

            def begun(followed: Drained) -> None:
                watch(followed)
                progress.started(due_rows)

            return follow_run(run, task.journal, task.batch, begun, counted or _uncounted)
    dates = DateWatch(utc_now)
    end = send_rows(task, due_rows, progress, watch, dates, wait_for_room=wait_for_room)
    dates.note_in(task.journal)
    take_in_waiting(task.settings, task.journal, progress.note)
    return end


def require_sendable(task: Task, countries: set[str]) -> None:
    """Raise `ConfigurationError` unless the configuration says all that rows of these countries need."""
    if operation_of(task.rules).name != task.batch.operation:
        raise InternalError(f"batch {task.batch.batch} was about to be sent as another operation than its own")
    require_complete(task.settings, task.rules, countries)


def wrong_clock(task: Task) -> str | None:
    """Return why nothing may be sent by the clock of this machine, or None.

    An attempt that is noted too early leaves its quarantine too early, once the clock is right again.
    """
    wrong = behind_sentence(task.journal, utc_now(), at_most_s=AHEAD_AT_MOST_S)
    return None if wrong is None else say("{wrong} Set the clock right; nothing is sent by such a clock.", wrong=wrong)


def _uncounted(counts: Mapping[OutcomeKind, int]) -> None:
    """Show no counts."""


def send_rows(
    task: Task,
    due_rows: int,
    progress: Progress,
    watch: Watch,
    dates: DateWatch,
    *,
    wait_for_room: WaitForRoom | None = None,
) -> RunEnd:
    """Send the due rows of the batch (there are `due_rows`) by an engine, and return how that ended; raises as `send`.

    `dates` sees every reply.
    """
    sent_at_most = due_rows if task.first is None else min(task.first, due_rows)
    progress.started(sent_at_most)
    signing = task.connection.signing

    async def run(journal: EngineJournal) -> RunEnd:
        async with signers_at_work(signing.signer.key, sent_at_most, progress.note) as signers:
            prepare = signing.preparer(signers)
            paced = prepare if wait_for_room is None else _paced(prepare, wait_for_room)
            return await _run(task, paced, journal, progress, watch, dates, gate)

    gate = task.journal.gate()
    with (
        gc_paused(),
        task.journal.for_engine() as given,
        asyncio.Runner(loop_factory=_loop_factory()) as runner,
    ):
        end = runner.run(run(given))
    if end.failure is not None:
        for order_id, kind in end.unrecorded:
            progress.note(
                say(
                    "Not in the journal: {order_id} came to {outcome}.",
                    order_id=order_id,
                    outcome=state_words(kind.value),
                )
            )
        raise end.failure
    return end


def _paced(prepare: Prepare, wait_for_room: WaitForRoom) -> Prepare:
    async def paced(attempts: Sequence[Attempt]) -> Sequence[PreparedRequest]:
        await wait_for_room()
        return await prepare(attempts)

    return paced


async def _run(
    task: Task,
    prepare: Prepare,
    journal: EngineJournal,
    progress: Progress,
    watch: Watch,
    dates: DateWatch,
    gate: Gate | None,
) -> RunEnd:
    submission = task.settings.submission
    pace = Pace(
        submission.concurrency,
        submission.rate_per_s,
        submission.stop_after_in_doubt,
        submission.stop_after_rejected,
        task.first,
    )
    async with task.connection.transport as transport:
        engine = Engine(
            journal=journal,
            gateway=transport,
            prepare=prepare,
            judge=_judge(task.settings, as_answered(task.settings, operation_of(task.rules)), dates),
            pace=pace,
            world=real_world(),
            progress=progress,
            pacing=None if gate is None else SharedPacing(gate, pace),
        )
        watch(engine)
        taking = asyncio.create_task(_take_in_at_intervals(journal, task.settings.words(), progress.note))
        try:
            return await engine.run(task.batch.number)
        finally:
            taking.cancel()


async def _take_in_at_intervals(
    journal: EngineJournal, words: Mapping[str, OutcomeKind], tell: Callable[[str], None]
) -> None:
    """Take notifications in as long as the run lasts. Where the journal cannot write, the engine fails as well."""
    with suppress(JournalError):
        while True:
            await asyncio.sleep(TAKE_IN_EVERY_S)
            try:
                await journal.take_in_waiting(words, at=timestamp(utc_now()))
            except InboxDamaged as error:
                tell(say("Note: {sentence}", sentence=f"{error.message} {error.hint}"))


def _judge(settings: Settings, operation: Operation, dates: DateWatch) -> Judge:
    words = settings.words()

    def judge(came_back: RawReply | TransportFault, expected: Expected) -> Verdict:
        dates.see(came_back)
        return dates.judged(classify(came_back, expected, words, operation, now=utc_now()))

    return judge


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the faster event loop where it is installed."""
    try:
        import uvloop  # noqa: PLC0415 (an extra)
    except ImportError:
        return None
    return uvloop.new_event_loop


def standings(journal: JournalReader, batch: BatchRecord, rules: Rules, end: RunEnd, *, known: int = 0) -> Standings:
    """Return the state of a batch after a run's `end`. Nothing is written."""
    minor_units = minor_units_of(rules)
    frame = reconciliation(journal, batch, minor_units)
    counted = books(frame, minor_units)
    return Standings(frame, counted, summary_after(journal, batch, counted, end, known=known))


def summary_after(
    journal: JournalReader, batch: BatchRecord, counted: BatchTotals, end: RunEnd, *, known: int = 0
) -> Summary:
    """Return the summary of a batch after a run's `end`, by the totals of its reconciliation."""
    messages = journal.messages(batch.number)
    contradictions, waiting = len(messages.contradictions), len(messages.waiting)
    return Summary(
        of_states(counted.states, interrupted=end.interrupted, contradictions=contradictions + waiting),
        end_sentence(
            batch, counted.states, contradictions, waiting, stop_reason=end.stop_reason, interrupted=end.interrupted
        ),
        batch=batch.batch,
        sheet=batch.sheet_name,
        rows=batch.rows,
        states=counted.states,
        totals=counted.totals,
        defects=batch.defects,
        known=known,
        sent_this_run=end.sent,
    )
