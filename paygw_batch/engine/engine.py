"""Sends the due instructions of a batch to the gateway, as many at a time as the window allows.

due rows -> signed ahead -> [intent durable] -> sent -> classified -> [outcome durable] -> next

The order matters: the intent of an attempt is on stable storage before the first byte of its request is sent. Only rows
that are about to be sent get an intent, so that a crash leaves no more rows in doubt than were in flight. A run sends a
row again only if the transport proved that nothing was sent.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from paygw_batch.clock import timestamp
from paygw_batch.core.lifecycle import Concluded, Fact, Intended
from paygw_batch.core.outcome import ContinueRun, Outcome, OutcomeKind, PauseRun, RetrySoon, StopRun, Verdict
from paygw_batch.engine.pacing import TRIES, GroupLimit, LocalPacing, Pace, retry_delay_s
from paygw_batch.engine.ports import Gateway, Prepare, Progress, Runtime
from paygw_batch.errors import InternalError, SigningFailed
from paygw_batch.gateway.message import Attempt, ExpectedReply, PreparedRequest, RawReply, TransportFault
from paygw_batch.journal import DueRow, EngineJournal, Entry, MoveResult, StoredReply
from paygw_batch.language import say

Append = Callable[[Sequence[Entry]], Awaitable[Sequence[MoveResult]]]
"""The type of `EngineJournal.append`."""


MAX_GAP_S = 0.002
"""The maximum pause after a commit without pressure. After a faster commit, the pause is as long as the commit."""


class GroupCommit:
    """Collects facts during one commit and makes them durable in the next.

    Without pressure, a commit takes every queued fact, because one fact costs nearly as much as many. A pause after it
    lets more facts arrive. Under pressure, while requests wait for a slot, a commit takes at most
    `max_facts_under_pressure()` facts, and the next commit follows immediately. Facts are committed in the order of
    submission. After the first failure, every later fact fails with the same error, because a process never writes to
    a journal again after a write has failed.
    """

    def __init__(
        self,
        append: Append,
        on_failure: Callable[[Exception], None],
        is_under_pressure: Callable[[], bool] = lambda: False,
        max_facts_under_pressure: Callable[[], int] = lambda: 16,
    ) -> None:
        self._append = append
        self._on_failure = on_failure
        self._is_under_pressure = is_under_pressure
        self._max_facts_under_pressure = max_facts_under_pressure
        self._queue: list[tuple[Entry, asyncio.Future[MoveResult]]] = []
        self._commit_task: asyncio.Task[None] | None = None
        self._failure: Exception | None = None

    def submit(self, entry: Entry) -> asyncio.Future[MoveResult]:
        """Queue a fact for the next commit. The future completes with the fact's effect once it is durable."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[MoveResult] = loop.create_future()
        if self._failure is not None:
            future.set_exception(self._failure)
            return future
        self._queue.append((entry, future))
        if self._commit_task is None:
            self._commit_task = loop.create_task(self._commit_queue())
        return future

    async def _commit_queue(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._queue:
                max_facts = self._max_facts_under_pressure() if self._is_under_pressure() else len(self._queue)
                group, self._queue = self._queue[:max_facts], self._queue[max_facts:]
                started_s = loop.time()
                await self._commit_group(group)
                # Let the rows whose intents are now durable be sent before the next commit begins.
                await asyncio.sleep(0 if self._is_under_pressure() else min(loop.time() - started_s, MAX_GAP_S))
        finally:
            self._commit_task = None

    async def _commit_group(self, group: list[tuple[Entry, asyncio.Future[MoveResult]]]) -> None:
        if self._failure is None:
            try:
                results = await self._append([entry for entry, _ in group])
            except Exception as error:  # noqa: BLE001 (every future in the group raises the error)
                # The failure is permanent. A failed commit may still be on the disk, so the journal's content is
                # unknown until it is reopened. A later commit could build on facts that do not exist.
                self._failure = error
                self._on_failure(error)
        if self._failure is not None:
            for _, future in group:
                if not future.done():
                    future.set_exception(self._failure)
            return
        for (_, future), result in zip(group, results, strict=True):
            if not future.done():
                future.set_result(result)


STORED_HEADERS = frozenset(
    {
        *("content-type", "content-length", "date", "server", "via", "location", "retry-after", "www-authenticate"),
        *("x-request-id", "x-correlation-id", "request-id", "cf-ray", "x-amzn-requestid", "x-amzn-trace-id"),
    }
)
"""The reply headers to store. They identify the server, the time and the request, without cookies."""
MAX_HEADER_CHARACTERS = 1000
MAX_BODY_BYTES = 65_536


def extract_stored_reply(reply: RawReply | TransportFault, verdict: Verdict) -> tuple[StoredReply | None, Verdict]:
    """Return the part of a reply to store, if any, and the verdict with that part's digest.

    Nothing is stored for a fault or a paid row.
    """
    if isinstance(reply, TransportFault) or verdict.outcome.kind is OutcomeKind.PAID:
        return None, verdict
    headers = [f"{name}: {value[:MAX_HEADER_CHARACTERS]}" for name, value in reply.headers if name in STORED_HEADERS]
    head = "\n".join([f"HTTP/1.1 {reply.http_status}", *headers])
    stored_reply = StoredReply(head.encode("utf-8", "backslashreplace").decode(), reply.body[:MAX_BODY_BYTES])
    return stored_reply, replace(verdict, outcome=verdict.outcome._replace(reply_sha256=stored_reply.sha256))


PAGE_ROWS = 64
"""The number of due instructions to read from the journal at a time. Commits wait for each read."""
SIGNING_GROUP_SIZE = 32
"""The number of requests to sign at a time."""
MAX_SIGNED_AHEAD = 512
"""The maximum number of signed requests waiting to be sent."""
MAX_SIGNATURE_AGE_S = 30
"""The age in seconds above which a request is signed again before it is sent."""

_ZERO, _MILLISECOND = timedelta(), timedelta(milliseconds=1)
"""Times within this range can share a timestamp, because timestamps are in milliseconds."""

Assess = Callable[[RawReply | TransportFault, ExpectedReply], Verdict]
"""Returns the verdict on a reply or a fault."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended. `sent` counts the rows whose first byte may have been sent.

    `stop_reason` is why the run stopped early. `failure` is the error that ended it: an unwritable journal, or a bug.
    `unrecorded` lists the outcomes that the journal could not record, with their order ids.
    """

    sent: int
    stop_reason: str | None
    interrupted: bool
    failure: Exception | None = None
    unrecorded: tuple[tuple[str, OutcomeKind], ...] = ()
    is_under_way: bool = False
    """Whether workers are continuing the run, or will continue it later."""


@dataclass(slots=True)
class _Row:
    """A signed due instruction. It is in flight from the start of its first attempt to the end of its last."""

    due: DueRow
    request: PreparedRequest
    in_flight: bool = False
    tries: int = 0
    intent_result: asyncio.Future[MoveResult] = field(init=False)
    """Completes once the intent of the latest try is durable."""
    submitted_s: float = 0.0
    """When the intent of the latest try was submitted, by a clock that keeps running while the machine sleeps."""


@dataclass(slots=True)
class _RunTally:
    sent: int = 0
    in_flight: int = 0
    stop_reason: str | None = None
    is_stopping: bool = False
    interrupted: bool = False
    failure: Exception | None = None
    unrecorded: list[tuple[str, OutcomeKind]] = field(default_factory=list)


class Engine:
    """Sends the due rows of one batch. Use each instance only once. Call `drain` only from the event loop."""

    continues_after_drain = False
    """Whether other processes send the remaining rows after a drain. Always False for an engine."""

    @property
    def sent_count(self) -> int:
        return self._tally.sent

    def __init__(
        self,
        *,
        journal: EngineJournal,
        gateway: Gateway,
        prepare: Prepare,
        assess: Assess,
        pace: Pace,
        runtime: Runtime,
        progress: Progress,
        send_within_s: float,
        pacing: LocalPacing | None = None,
        signing_lookahead: int | None = None,
    ) -> None:
        """Prepare a run. A request is sent within `send_within_s` of submitting its intent, or not at all.

        `pacing` shares the limits among several workers. It is None if only this process sends. `signing_lookahead` is
        the number of requests to sign ahead, one by one, with a slow key. It is None if requests are signed in groups.
        """
        self._journal = journal
        self._gateway = gateway
        self._prepare = prepare
        self._assess = assess
        self._runtime = runtime
        self._progress = progress
        self._pacing = pacing or LocalPacing(pace)
        self._group_limit = GroupLimit(pace.concurrency)
        self._max_rows = pace.first
        self._send_within_s = send_within_s
        self._signing_group_size, self._max_signed_ahead = (
            (SIGNING_GROUP_SIZE, MAX_SIGNED_AHEAD) if signing_lookahead is None else (1, signing_lookahead)
        )
        self._tally = _RunTally()
        self._signed: deque[_Row] = deque()
        self._all_signed = False
        self._room_freed = asyncio.Event()
        self._all_launched = asyncio.Event()
        self._halted = asyncio.Event()
        self._next_launch: asyncio.TimerHandle | None = None
        self._last_timestamp = datetime.min.replace(tzinfo=UTC), ""
        self._senders: set[asyncio.Task[None]] = set()
        self._committer = GroupCommit(
            journal.append,
            on_failure=self._give_up,
            is_under_pressure=lambda: bool(self._signed),
            max_facts_under_pressure=lambda: self._group_limit.max_facts,
        )

    async def run(self, batch: int) -> RunEnd:
        """Send every due instruction in a batch. Returns when none is in flight."""
        self._pacing.begin(self._launch, self._stop)
        feeder = asyncio.create_task(self._read_and_sign(batch))
        try:
            await self._all_launched.wait()
        finally:
            feeder.cancel()
            if self._next_launch is not None:
                self._next_launch.cancel()
            await asyncio.gather(feeder, *self._senders, return_exceptions=True)
            await self._pacing.end()
        tally = self._tally
        return RunEnd(tally.sent, tally.stop_reason, tally.interrupted, tally.failure, tuple(tally.unrecorded))

    def drain(self) -> None:
        """Start no more rows, and end the run when none is in flight."""
        self._tally.interrupted = True
        self._halt()

    # The feeder reads due rows from the journal in pages, and signs requests ahead, up to the limit.

    async def _read_and_sign(self, batch: int) -> None:
        tasks: set[asyncio.Task[None]] = set()
        try:
            limit = self._max_rows
            while limit != 0 and (page := await self._journal.due(batch, limit=min(limit or PAGE_ROWS, PAGE_ROWS))):
                limit = None if limit is None else limit - len(page)
                for start in range(0, len(page), self._signing_group_size):
                    await self._wait_for_room(tasks)
                    tasks.add(asyncio.create_task(self._sign(page[start : start + self._signing_group_size])))
            await asyncio.gather(*tasks)
        except Exception as error:  # noqa: BLE001 (any error ends the run cleanly)
            self._give_up(error)
        finally:
            for task in tasks:
                task.cancel()
            self._all_signed = True
            self._launch()

    async def _wait_for_room(self, tasks: set[asyncio.Task[None]]) -> None:
        while True:
            for task in [task for task in tasks if task.done()]:
                tasks.remove(task)
                task.result()
            if len(self._signed) + len(tasks) * self._signing_group_size < self._max_signed_ahead:
                return
            self._room_freed.clear()
            await self._room_freed.wait()

    async def _sign(self, rows: Sequence[DueRow]) -> None:
        try:
            requests = await self._prepare(self._next_attempts(rows))
            self._signed.extend(map(_Row, rows, requests))
        finally:
            # This also runs after a failure, so that the feeder wakes up and raises it.
            self._room_freed.set()
        self._launch()

    def _next_attempts(self, rows: Sequence[DueRow]) -> list[Attempt]:
        timestamp_s = int(self._runtime.now().timestamp())
        return [Attempt(row.instruction, row.order_id, self._runtime.nonce(), timestamp_s) for row in rows]

    # Launching starts as many rows as the window, the rate limit and the signed requests allow.

    def _launch(self) -> None:
        """Start every row that may be sent now. Call this after any change that may let more rows start."""
        tally, loop = self._tally, asyncio.get_running_loop()
        while self._signed and not tally.is_stopping and self._pacing.has_slot(tally.in_flight):
            if (wait_s := self._pacing.wait_s(loop.time())) > 0:
                if self._next_launch is not None:
                    self._next_launch.cancel()
                self._next_launch = loop.call_later(wait_s, self._launch)
                break
            self._pacing.start(loop.time())
            row = self._signed.popleft()
            row.in_flight = True
            tally.in_flight += 1
            if not self._has_old_signature(row):
                # Submit the intent now, so that it shares a commit with the outcome of the row whose slot it takes.
                self._submit_intent(row)
            sender = loop.create_task(self._deliver(row))
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)
            self._room_freed.set()
        if tally.is_stopping or (self._all_signed and not self._signed):
            self._all_launched.set()

    def _free_slot(self, row: _Row) -> None:
        if row.in_flight:
            row.in_flight = False
            self._tally.in_flight -= 1
            self._launch()

    # Delivering a row, from its first intent to its last outcome.

    async def _deliver(self, row: _Row) -> None:
        try:
            await self._attempt_with_retries(row)
        except Exception as error:  # noqa: BLE001 (any error ends the run cleanly)
            self._give_up(error)
        finally:
            self._free_slot(row)

    async def _attempt_with_retries(self, row: _Row) -> None:
        for try_number in range(1, TRIES + 1):
            if row.tries < try_number:
                # This is a retry, or the signature was too old, so this try has no intent yet.
                (row.request,) = await self._prepare(self._next_attempts([row.due]))
                self._submit_intent(row)
            verdict = await self._attempt(row)
            if not isinstance(verdict.advice, RetrySoon):
                return
            if try_number == TRIES:
                self._stop(say("The gateway cannot be reached ({cause}).", cause=verdict.outcome.cause))
            elif await self._halted_within(retry_delay_s(try_number + 1, self._runtime.random())):
                return

    def _has_old_signature(self, row: _Row) -> bool:
        return self._runtime.now().timestamp() - row.request.timestamp_s > MAX_SIGNATURE_AGE_S

    def _submit_intent(self, row: _Row) -> None:
        request = row.request
        intent = Intended(row.due.order_id, request.nonce, request.timestamp_s, request.purpose, request.endpoint_id)
        row.tries += 1
        row.submitted_s = self._runtime.elapsed_s()
        row.intent_result = self._record(row, intent)

    async def _attempt(self, row: _Row) -> Verdict:
        due_row, elapsed_s = row.due, self._runtime.elapsed_s
        # No byte of the request may be sent before the intent is durable. After a crash, only the intent prevents the
        # row from being sent again.
        result = await row.intent_result
        if result is MoveResult.HELD:
            # Evidence arrived after the row was read as due. The row is not sent, and a person must decide.
            return Verdict(Outcome(OutcomeKind.NOT_SENT, "row.held"), ContinueRun())
        if result is not MoveResult.MOVED:
            raise InternalError(f"row {due_row.row} was moved by someone else while this run held the journal")
        if self._tally.is_stopping:
            # The intent is durable, so record that no byte was sent. Otherwise the row would be in doubt.
            stored_reply, verdict = None, Verdict(Outcome(OutcomeKind.NOT_SENT, "run.stopped"))
        else:
            started_s = elapsed_s()
            self._tally.sent += 1  # also counted if an error prevents a verdict
            reply = await self._gateway.deliver(row.request, partial(self._may_send, row))
            self._group_limit.observe(started_s - row.submitted_s, elapsed_s() - started_s)
            stored_reply, verdict = extract_stored_reply(reply, self._assess(reply, row.request.expected))
            self._tally.sent -= verdict.outcome.kind is OutcomeKind.NOT_SENT
        self._apply_verdict(verdict)
        recording = self._record(row, Concluded(verdict.outcome), stored_reply)
        if not isinstance(verdict.advice, RetrySoon):
            # The outcome is submitted before the intent of the next row in this slot. They share a commit, so no commit
            # leaves more rows in flight than there are slots.
            self._free_slot(row)
        try:
            await recording
        except Exception:
            # The gateway answered, but the journal could not record the outcome. It shows the row as in flight until
            # the next command puts it in doubt. Only this run's report mentions the outcome.
            self._tally.unrecorded.append((due_row.order_id, verdict.outcome.kind))
            raise
        self._progress.record_outcome(due_row, verdict.outcome)
        return verdict

    def _may_send(self, row: _Row) -> bool:
        """Return whether a row may still be sent: its intent is recent, and the journal still allows it."""
        # If this process was suspended after its commit, another worker may have put the row in doubt, or a person may
        # have settled it.
        age_s = self._runtime.elapsed_s() - row.submitted_s
        return age_s < self._send_within_s and self._journal.may_send(age_s)

    def _apply_verdict(self, verdict: Verdict) -> None:
        if reason := self._pacing.observe(verdict.outcome):
            self._stop(reason)
        match verdict.advice:
            case StopRun(reason):
                self._stop(reason)
                self._pacing.stop_all_workers(reason)
            case PauseRun(pause_s):
                self._pacing.pause(asyncio.get_running_loop().time(), pause_s)
                self._progress.echo(say("The gateway asked for a pause of {seconds:.0f} seconds.", seconds=pause_s))
            case ContinueRun() | RetrySoon():
                pass

    def _record(self, row: _Row, fact: Fact, reply: StoredReply | None = None) -> asyncio.Future[MoveResult]:
        """Submit a fact about a row's latest attempt. The future completes once the fact is durable."""
        due_row = row.due
        entry = Entry(due_row.number, due_row.standing.attempt + row.tries, fact, self._fact_timestamp(), reply)
        return self._committer.submit(entry)

    def _fact_timestamp(self) -> str:
        """Return the current time as text. Formatting is slow, so it is done only once per millisecond."""
        now = self._runtime.now()
        if not _ZERO <= now - self._last_timestamp[0] < _MILLISECOND:
            self._last_timestamp = now, timestamp(now)
        return self._last_timestamp[1]

    def _stop(self, reason: str) -> None:
        if self._tally.stop_reason is None:
            self._tally.stop_reason = reason
            self._progress.echo(say("{reason} No new rows are started.", reason=reason))
        self._halt()

    def _give_up(self, error: Exception) -> None:
        if isinstance(error, SigningFailed):
            self._stop(" ".join(filter(None, (error.message, error.hint))))
        elif self._tally.failure is None:
            self._tally.failure = error
        self._halt()

    def _halt(self) -> None:
        self._tally.is_stopping = True
        self._halted.set()
        self._all_launched.set()

    async def _halted_within(self, wait_s: float) -> bool:
        try:
            async with asyncio.timeout(wait_s):
                await self._halted.wait()
        except TimeoutError:
            return False
        return True
