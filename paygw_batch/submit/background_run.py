"""Runs a batch in a separate thread, for a program that follows the run.

The thread has its own event loop, so the program needs none. Outcomes wait in memory until the program takes them.
While too many are waiting, no more rows are signed, but rows in flight finish as usual.
"""

import asyncio
import signal
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from types import FrameType, TracebackType
from typing import Generic, Self, TypeVar

from paygw_batch.core.batch import Instruction
from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.errors import InternalError, UsageError
from paygw_batch.journal import BatchRecord, DueRow, FoundPayment, JournalReader, RowState
from paygw_batch.language import say
from paygw_batch.show.remittance import build_payee
from paygw_batch.submit.send import OUTCOME_BY_STATE, Drainable

T = TypeVar("T")

MAX_WAITING_OUTCOMES = 1_000
"""Signing pauses when this many outcomes are waiting."""
_ROWS_PER_PAGE = 500


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """The recorded outcome of one row, which was sent as `order_id`.

    The repr omits personal data: the payee, the account, and the gateway's own text in `outcome`.
    """

    row: int
    client_orderid: str
    order_id: str
    kind: OutcomeKind
    """`paid`, `accepted`, `rejected`, or `unknown`, which leaves the row in doubt."""
    outcome: Outcome = field(repr=False)
    instruction: Instruction = field(repr=False)

    @property
    def payee(self) -> str:
        """The payee's name."""
        return build_payee(self.instruction.form, self.instruction.fields).name

    @property
    def account(self) -> str:
        """The payee's account or phone number."""
        return build_payee(self.instruction.form, self.instruction.fields).number

    @property
    def amount(self) -> str:
        """The amount, with the sheet's digits."""
        return self.instruction.amount

    @property
    def currency(self) -> str:
        return self.instruction.currency

    def to_dict(self) -> dict[str, object]:
        """Return a dictionary for JSON, including the payee and the account."""
        payment_fields = ("row", "client_orderid", "order_id", "payee", "account", "amount", "currency")
        gateway_fields = ("gateway_status", "gateway_reference", "error_code", "message")
        return {name: getattr(self, name) for name in payment_fields} | {
            "kind": self.kind.value,
            **{name: getattr(self.outcome, name) for name in gateway_fields},
        }


class RunHandle:
    """Hands a run's outcomes to the calling program, and lets it stop the run. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[RowOutcome] = deque()
        self._notes: list[str] = []
        self._wakers: list[Callable[[], None]] = []
        self._drain: Callable[[], None] | None = None
        self._is_sending = self._has_ended = self._is_stopped = self._is_discarding = False
        self._batch = ""
        self._total = 0
        self._counts: Counter[OutcomeKind] = Counter()

    # Methods for the run

    def set_batch(self, batch: str) -> None:
        with self._changed:
            self._batch = batch

    def set_total(self, total: int) -> None:
        with self._changed:
            self._total = total

    def record_outcome(self, row: DueRow, outcome: Outcome) -> None:
        """Queue and count an outcome, unless nothing was sent."""
        if outcome.kind is OutcomeKind.NOT_SENT:
            return
        original_id = row.instruction.client_orderid
        with self._changed:
            self._counts[outcome.kind] += 1
            self.queue_outcome(RowOutcome(row.row, original_id, row.order_id, outcome.kind, outcome, row.instruction))

    def queue_outcome(self, outcome: RowOutcome) -> None:
        with self._changed:
            if not self._is_discarding:
                self._queue.append(outcome)
            self._changed.notify_all()

    def record_counts(self, counts: Mapping[OutcomeKind, int]) -> None:
        """Replace the counts by outcome, if workers send the rows."""
        with self._changed:
            self._counts = +Counter(counts)

    def has_room(self) -> bool:
        with self._changed:
            return len(self._queue) < MAX_WAITING_OUTCOMES or self._is_discarding

    def block_until_room(self) -> None:
        """Wait until the queue has room or is discarded."""
        with self._changed:
            self._changed.wait_for(self.has_room)

    def echo(self, message: str) -> None:
        """Add a message to the run's notes."""
        with self._changed:
            self._notes.append(message)

    def start(self, run: Drainable) -> None:
        """Record that `run` starts sending, so that `stop` can drain it. Must be called in its event loop."""
        loop = asyncio.get_running_loop()
        with self._changed:
            self._drain = lambda: _call_soon(loop, run.drain)
            self._is_sending = True
            if self._is_stopped:
                run.drain()
            self._changed.notify_all()

    async def wait_for_room(self) -> None:
        """Wait asynchronously until the queue has room or the run is stopped."""
        loop = asyncio.get_running_loop()
        while True:
            with self._changed:
                if self.has_room() or self._is_stopped:
                    return
                room_made = asyncio.Event()
                self._wakers.append(partial(_call_soon, loop, room_made.set))
            await room_made.wait()

    def notes(self) -> tuple[str, ...]:
        with self._changed:
            return tuple(self._notes)

    # Methods for the calling program

    def snapshot(self) -> tuple[str, int, Mapping[OutcomeKind, int]]:
        """Return the batch, the number of rows due at the start, and the current counts by outcome."""
        with self._changed:
            return self._batch, self._total, dict(self._counts)

    def stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            drain = self._drain
            self._wake()
        if drain is not None:
            drain()

    def discard(self) -> None:
        with self._changed:
            self._is_discarding = True
            self._wake()

    def take_outcomes(self) -> list[RowOutcome]:
        """Wait for outcomes and return them. Returns an empty list if the run has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._has_ended)
            outcomes = list(self._queue)
            self._queue.clear()
            self._wake()
        return outcomes

    def wait_until_sending(self) -> None:
        """Wait until sending begins or the run has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_sending or self._has_ended)

    def end(self) -> None:
        """Record the end of the run and wake every waiting thread."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _wake(self) -> None:
        """Wake everything that waits for room. Must be called with the lock held."""
        self._changed.notify_all()
        for wake in self._wakers:
            wake()
        self._wakers.clear()


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop and the run have ended
        loop.call_soon_threadsafe(callback)


class BackgroundRun(Generic[T]):
    """A run in progress, to be used in one `with` or `async with` statement.

    Entering the block waits until rows are about to be sent, and raises an error if none can be sent. Iterate over the
    run for its outcomes. Leaving the block early stops the run: no new row starts, rows in flight finish, and every
    outcome is recorded in the journal.
    """

    def __init__(self, work: Callable[[RunHandle], T], *, stop_on: Iterable[signal.Signals] = ()) -> None:
        self._work = work
        self._stop_on = tuple(stop_on)
        self._previous_handlers: dict[signal.Signals, object] = {}
        self._handle = RunHandle()
        self._result: T | None = None
        self._failure: BaseException | None = None
        # This is not a daemon thread, so the interpreter waits for the run to finish.
        self._thread = threading.Thread(target=copy_context().run, args=(self._run,), name="paygw-run")

    def stop(self) -> None:
        """Start no new row, and let rows in flight finish. Can be called from any thread and from signal handlers."""
        self._handle.stop()

    def wait(self) -> T:
        """Wait for the run to end, and return its result. Discards all outcomes not taken yet."""
        self._require_entered()
        self._handle.discard()
        self._thread.join()
        return self.result

    async def wait_async(self) -> T:
        """Like `wait`, but asynchronous. Cancelling it does not stop the run."""
        self._require_entered()
        self._handle.discard()
        await asyncio.to_thread(self._thread.join)
        return self.result

    @property
    def batch(self) -> str:
        """The id of the batch, available after entering the run. Empty if no batch was opened."""
        return self._handle.snapshot()[0]

    @property
    def total(self) -> int:
        """The number of rows that were due when sending began."""
        return self._handle.snapshot()[1]

    @property
    def counts(self) -> Mapping[OutcomeKind, int]:
        """The number of rows with each outcome so far, excluding rows that were not sent."""
        return self._handle.snapshot()[2]

    @property
    def result(self) -> T:
        """The result of the run. Raises `UsageError` before the run ends, or the error that ended it."""
        if self._thread.ident is None or self._thread.is_alive():
            raise UsageError(
                say("The run has not ended yet."), hint=say("Its result is available after the with block.")
            )
        self._raise_failure()
        if self._result is None:
            raise InternalError("a run ended without a result")
        return self._result

    def __enter__(self) -> Self:
        self._start()
        try:
            self._handle.wait_until_sending()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self._exit_if_failed()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stop_on_exit(error):
            self._thread.join()

    def __iter__(self) -> Iterator[RowOutcome]:
        self._require_entered()
        while outcomes := self._handle.take_outcomes():
            yield from outcomes
        self._thread.join()
        self._raise_failure()

    async def __aenter__(self) -> Self:
        self._start()
        try:
            await asyncio.to_thread(self._handle.wait_until_sending)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self._exit_if_failed()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stop_on_exit(error):
            await asyncio.to_thread(self._thread.join)

    async def __aiter__(self) -> AsyncIterator[RowOutcome]:
        self._require_entered()
        while outcomes := await asyncio.to_thread(self._handle.take_outcomes):
            for outcome in outcomes:
                yield outcome
        await asyncio.to_thread(self._thread.join)
        self._raise_failure()

    def _run(self) -> None:
        try:
            self._result = self._work(self._handle)
        except BaseException as error:  # noqa: BLE001 (raised again in the calling thread)
            for note in self._handle.notes():
                error.add_note(note)
            self._failure = error
        finally:
            self._handle.end()

    def _start(self) -> None:
        if self._stop_on and threading.current_thread() is not threading.main_thread():
            raise UsageError(say("Signals can be handled only in the main thread."), hint=say("Leave out stop_on."))
        self._thread.start()

        def stop_run(_signal: int, _frame: FrameType | None) -> None:
            self.stop()

        self._previous_handlers = {number: signal.signal(number, stop_run) for number in self._stop_on}

    def _require_entered(self) -> None:
        """Raise `UsageError` if the run was never entered, because waiting for it would never end."""
        if self._thread.ident is None:
            raise UsageError(say("The run has not started."), hint=say("Use it in a with block first."))

    def _exit_if_failed(self) -> Self:
        if self._failure is not None:
            self.__exit__(None, None, None)
        return self

    @contextmanager
    def _stop_on_exit(self, error: BaseException | None) -> Iterator[None]:
        """Stop the run, then restore the signal handlers. Raises the run's failure unless `error` is set."""
        try:
            self.stop()
            self._handle.discard()
            yield
        finally:
            for number, handler in self._previous_handlers.items():
                signal.signal(number, handler)  # type: ignore[arg-type]  # returned by signal.signal itself
            self._previous_handlers = {}
        if error is None:
            self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


class WorkerOutcomes:
    """Passes the outcomes of rows sent by workers to a `RunHandle`, in the sheet's order."""

    def __init__(self, journal: JournalReader, batch: BatchRecord, handle: RunHandle) -> None:
        self._journal, self._batch, self._handle = journal, batch, handle
        self._remaining_rows: list[int] = []

    def begin(self) -> None:
        """Remember which rows are ready. Must be called before the workers send them."""
        self._remaining_rows = [row.row for row in self._journal.rows(self._batch.number, states={State.READY})]

    def record_counts(self, counts: Mapping[OutcomeKind, int]) -> None:
        """Replace the run's counts, and pass on new outcomes while the queue has room."""
        self._handle.record_counts(counts)
        self._pass_on_outcomes(must_wait=False)

    def end(self) -> None:
        """Pass on all remaining outcomes, waiting for room in the queue."""
        self._pass_on_outcomes(must_wait=True)

    def _pass_on_outcomes(self, *, must_wait: bool) -> None:
        remaining_rows: list[int] = []
        for start in range(0, len(self._remaining_rows), _ROWS_PER_PAGE):
            page = self._remaining_rows[start : start + _ROWS_PER_PAGE]
            if must_wait:
                self._handle.block_until_room()
            elif not self._handle.has_room():
                remaining_rows += self._remaining_rows[start:]
                break
            passed_on = set[int]()
            for outcome in self._read_outcomes(page):
                self._handle.queue_outcome(outcome)
                passed_on.add(outcome.row)
            remaining_rows += [row for row in page if row not in passed_on]
        self._remaining_rows = remaining_rows

    def _read_outcomes(self, rows: Sequence[int]) -> Iterator[RowOutcome]:
        row_states = self._journal.rows(self._batch.number, numbers=set(rows))
        answered_rows = [row for row in row_states if row.state in OUTCOME_BY_STATE]
        payments = self._journal.payments(self._batch.number, [row.row for row in answered_rows])
        for row in answered_rows:
            yield _build_row_outcome(row, payments[row.row])


def _build_row_outcome(row: RowState, payment: FoundPayment) -> RowOutcome:
    kind = OUTCOME_BY_STATE[row.state]
    instruction = Instruction(
        row.client_orderid, row.country, row.currency, payment.amount, payment.form, payment.fields
    )
    order_id = row.sent_orderid or row.client_orderid
    outcome = Outcome(
        kind,
        gateway_status=row.gateway_status,
        gateway_reference=row.gateway_reference,
        http_status=row.http_status,
        error_code=row.error_code,
        message=row.message,
    )
    return RowOutcome(row.row, row.client_orderid, order_id, kind, outcome, instruction)
