"""Sends the due instructions of a batch to the gateway, as many at once as the window allows.

due rows -> signed ahead -> [intent durable] -> sent -> judged -> [outcome durable] -> next

The order is the promise: the intent of an attempt is on stable storage before the first byte of its request is sent.
Only rows that are about to be sent get an intent, so that a crash leaves no more rows in doubt than were in flight. A
row is sent again within a run only if the transport proved that nothing was sent.
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


MAX_REST_S = 0.002
"""The maximum pause after a commit without pressure. The pause is as long as the commit was."""


class GroupCommit:
    """Collects facts during one commit, and makes them durable in the next.

    Without pressure, a commit takes all facts that wait, because it costs nearly the same for one fact and for many. A
    pause after it lets more facts arrive. Under pressure, while requests wait for a place in flight, a commit takes at
    most `max_facts_under_pressure()` facts, and the next commit follows at once. Facts are committed in the order in
    which they were submitted. After the first failure every later fact fails with the same error, because a process
    whose journal failed once never writes to it again.
    """

    def __init__(
        self,
        append: Append,
        on_failure: Callable[[Exception], None],
        is_pressed: Callable[[], bool] = lambda: False,
        max_facts_under_pressure: Callable[[], int] = lambda: 16,
    ) -> None:
        self._append = append
        self._on_failure = on_failure
        self._is_pressed = is_pressed
        self._max_facts_under_pressure = max_facts_under_pressure
        self._waiting: list[tuple[Entry, asyncio.Future[MoveResult]]] = []
        self._commit: asyncio.Task[None] | None = None
        self._failure: Exception | None = None

    def submit(self, entry: Entry) -> asyncio.Future[MoveResult]:
        """Add a fact to the next commit. The returned future resolves to the fact's effect once it is durable."""
        loop = asyncio.get_running_loop()
        durable: asyncio.Future[MoveResult] = loop.create_future()
        if self._failure is not None:
            durable.set_exception(self._failure)
            return durable
        self._waiting.append((entry, durable))
        if self._commit is None:
            self._commit = loop.create_task(self._commit_all())
        return durable

    async def _commit_all(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                max_facts = self._max_facts_under_pressure() if self._is_pressed() else len(self._waiting)
                group, self._waiting = self._waiting[:max_facts], self._waiting[max_facts:]
                started_s = loop.time()
                await self._commit_group(group)
                # The rows whose intent is durable now run first, so that they are sent before the next commit begins.
                # Otherwise a commit that finished without waiting would start the next one before them.
                await asyncio.sleep(0 if self._is_pressed() else min(loop.time() - started_s, MAX_REST_S))
        finally:
            self._commit = None

    async def _commit_group(self, group: list[tuple[Entry, asyncio.Future[MoveResult]]]) -> None:
        if self._failure is None:
            try:
                results = await self._append([entry for entry, _ in group])
            except Exception as error:  # noqa: BLE001 (every future of the group gets any error)
                # The failure is permanent. A failed commit may still be on the disk, so the journal's content is
                # unknown until it is reopened. A later commit could build on facts that do not exist.
                self._failure = error
                self._on_failure(error)
        if self._failure is not None:
            for _, durable in group:
                if not durable.done():
                    durable.set_exception(self._failure)
            return
        for (_, durable), result in zip(group, results, strict=True):
            if not durable.done():
                durable.set_result(result)


STORED_HEADERS = frozenset(
    {
        *("content-type", "content-length", "date", "server", "via", "location", "retry-after", "www-authenticate"),
        *("x-request-id", "x-correlation-id", "request-id", "cf-ray", "x-amzn-requestid", "x-amzn-trace-id"),
    }
)
"""The reply headers that are kept. They identify the server, the time and the request, and exclude cookies."""
MAX_HEADER_CHARACTERS = 1000
MAX_BODY_BYTES = 65_536


def stored_reply(reply: RawReply | TransportFault, verdict: Verdict) -> tuple[StoredReply | None, Verdict]:
    """Return the part of a reply to store, and the verdict with its digest.

    The part is None for a fault, or if the row is paid.
    """
    if isinstance(reply, TransportFault) or verdict.outcome.kind is OutcomeKind.PAID:
        return None, verdict
    headers = [f"{name}: {value[:MAX_HEADER_CHARACTERS]}" for name, value in reply.headers if name in STORED_HEADERS]
    head = "\n".join([f"HTTP/1.1 {reply.http_status}", *headers])
    reply_record = StoredReply(head.encode("utf-8", "backslashreplace").decode(), reply.body[:MAX_BODY_BYTES])
    return reply_record, replace(verdict, outcome=verdict.outcome._replace(reply_sha256=reply_record.sha256))


PAGE_ROWS = 64
"""The number of due instructions read from the journal at a time. Commits wait for this read."""
SIGNING_BATCH = 32
"""The number of requests prepared at a time."""
SIGNED_AHEAD = 512
"""The maximum number of signed requests that wait to be sent."""
SIGNATURE_AGE_S = 30
"""The age in seconds above which a request is signed again before it is sent."""

_ZERO, _MILLISECOND = timedelta(), timedelta(milliseconds=1)
"""Two times within this range share a timestamp, because the times of facts have milliseconds."""

Judge = Callable[[RawReply | TransportFault, ExpectedReply], Verdict]
"""A function that decides the meaning of a reply or a fault."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of a run. `sent` is the number of rows for which a first byte may have been sent.

    `stop_reason` is why the run stopped early. `failure` is the error that ended it (an unwritable journal, or a bug).
    `unrecorded` has the outcomes that arrived after it, by order id.
    """

    sent: int
    stop_reason: str | None
    interrupted: bool
    failure: Exception | None = None
    unrecorded: tuple[tuple[str, OutcomeKind], ...] = ()
    is_under_way: bool = False
    """Whether the run continues without this process: workers send it, or it waits for a worker."""


@dataclass(slots=True)
class _Row:
    """A due instruction being sent: first signed, then in flight until its last attempt has ended."""

    due: DueRow
    request: PreparedRequest
    in_flight: bool = False
    tries: int = 0
    intent_result: asyncio.Future[MoveResult] = field(init=False)
    """Done once the intent of the latest try is durable."""
    intended_s: float = 0.0
    """The time when that intent was submitted, by a clock that also runs while the machine sleeps."""


@dataclass(slots=True)
class _RunTally:
    sent: int = 0
    in_flight: int = 0
    stop_reason: str | None = None
    stopping: bool = False
    interrupted: bool = False
    failure: Exception | None = None
    unrecorded: list[tuple[str, OutcomeKind]] = field(default_factory=list)


class Engine:
    """Sends one batch, once. `drain` may be called at any time, from the event loop."""

    continues_after_drain = False
    """Whether other processes send the remaining rows after a drain: never for an engine."""

    def __init__(
        self,
        *,
        journal: EngineJournal,
        gateway: Gateway,
        prepare: Prepare,
        judge: Judge,
        pace: Pace,
        runtime: Runtime,
        progress: Progress,
        send_within_s: float,
        pacing: LocalPacing | None = None,
        signing_lookahead: int | None = None,
    ) -> None:
        """Prepare a run. A request is sent within `send_within_s` after its intent was submitted, or not at all.

        `pacing` shares the limits among several workers; None means that this process is alone. `signing_lookahead` is
        for a slow key: the number of requests prepared ahead, one by one. None means in groups, up to `SIGNED_AHEAD`.
        """
        self._journal = journal
        self._gateway = gateway
        self._prepare = prepare
        self._judge = judge
        self._runtime = runtime
        self._progress = progress
        self._pacing = pacing or LocalPacing(pace)
        self._group_limit = GroupLimit(pace.concurrency)
        self._first = pace.first
        self._send_within_s = send_within_s
        self._signing_batch, self._signed_ahead = (
            (SIGNING_BATCH, SIGNED_AHEAD) if signing_lookahead is None else (1, signing_lookahead)
        )
        self._tally = _RunTally()
        self._signed: deque[_Row] = deque()
        self._all_signed = False
        self._room = asyncio.Event()
        self._all_launched = asyncio.Event()
        self._halted = asyncio.Event()
        self._next_launch: asyncio.TimerHandle | None = None
        self._last_timestamp = datetime.min.replace(tzinfo=UTC), ""
        self._senders: set[asyncio.Task[None]] = set()
        self._committer = GroupCommit(
            journal.append,
            on_failure=self._give_up,
            is_pressed=lambda: bool(self._signed),
            max_facts_under_pressure=lambda: self._group_limit.max_facts,
        )

    async def run(self, batch: int) -> RunEnd:
        """Send every due instruction of a batch and return when nothing is in flight."""
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
        """Start no new row. The run ends once no row is in flight."""
        self._tally.interrupted = True
        self._halt()

    # Feeding reads due rows from the journal in pages, and signs requests ahead, up to the limit.

    async def _read_and_sign(self, batch: int) -> None:
        signing: set[asyncio.Task[None]] = set()
        try:
            limit = self._first
            while limit != 0 and (page := await self._journal.due(batch, limit=min(limit or PAGE_ROWS, PAGE_ROWS))):
                limit = None if limit is None else limit - len(page)
                for start in range(0, len(page), self._signing_batch):
                    await self._wait_for_room(signing)
                    signing.add(asyncio.create_task(self._sign(page[start : start + self._signing_batch])))
            await asyncio.gather(*signing)
        except Exception as error:  # noqa: BLE001 (any error ends the run, in order)
            self._give_up(error)
        finally:
            for task in signing:
                task.cancel()
            self._all_signed = True
            self._launch()

    async def _wait_for_room(self, signing: set[asyncio.Task[None]]) -> None:
        while True:
            for task in [task for task in signing if task.done()]:
                signing.remove(task)
                task.result()
            if len(self._signed) + len(signing) * self._signing_batch < self._signed_ahead:
                return
            self._room.clear()
            await self._room.wait()

    async def _sign(self, page: Sequence[DueRow]) -> None:
        try:
            requests = await self._prepare(self._next_attempts(page))
            self._signed.extend(map(_Row, page, requests))
        finally:
            # This also runs after a failure, which the feeder finds when it next waits for room.
            self._room.set()
        self._launch()

    def _next_attempts(self, page: Sequence[DueRow]) -> list[Attempt]:
        timestamp_s = int(self._runtime.now().timestamp())
        return [Attempt(due.instruction, due.order_id, self._runtime.nonce(), timestamp_s) for due in page]

    # Launching starts as many rows as the window, the rate limit and the signed requests allow.

    def _launch(self) -> None:
        """Start every row that may be sent now. Called whenever more rows may be ready."""
        tally, loop = self._tally, asyncio.get_running_loop()
        while self._signed and not tally.stopping and self._pacing.has_slot(tally.in_flight):
            if (wait_s := self._pacing.wait_s(loop.time())) > 0:
                if self._next_launch is not None:
                    self._next_launch.cancel()
                self._next_launch = loop.call_later(wait_s, self._launch)
                break
            self._pacing.start(loop.time())
            row = self._signed.popleft()
            row.in_flight = True
            tally.in_flight += 1
            if not self._is_stale(row):
                # The intent is submitted now, not when the task first runs, so that it shares a commit with the outcome
                # of the row whose slot it takes.
                self._submit_intent(row)
            sender = loop.create_task(self._deliver(row))
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)
            self._room.set()
        if tally.stopping or (self._all_signed and not self._signed):
            self._all_launched.set()

    def _free_slot(self, row: _Row) -> None:
        """Give the slot of a row in flight to the next row."""
        if row.in_flight:
            row.in_flight = False
            self._tally.in_flight -= 1
            self._launch()

    # Delivering takes one row from its intent to its outcome.

    async def _deliver(self, row: _Row) -> None:
        try:
            await self._attempt_with_retries(row)
        except Exception as error:  # noqa: BLE001 (any error ends the run, in order)
            self._give_up(error)
        finally:
            self._free_slot(row)

    async def _attempt_with_retries(self, row: _Row) -> None:
        for number in range(1, TRIES + 1):
            if row.tries < number:
                # This is a retry, or the signature was too old, so this try has no intent yet.
                (row.request,) = await self._prepare(self._next_attempts([row.due]))
                self._submit_intent(row)
            verdict = await self._attempt(row)
            if not isinstance(verdict.advice, RetrySoon):
                return
            if number == TRIES:
                self._stop(say("The gateway cannot be reached ({cause}).", cause=verdict.outcome.cause))
            elif await self._wait_until_halted(retry_delay_s(number + 1, self._runtime.chance())):
                return

    def _is_stale(self, row: _Row) -> bool:
        return self._runtime.now().timestamp() - row.request.timestamp_s > SIGNATURE_AGE_S

    def _submit_intent(self, row: _Row) -> None:
        request = row.request
        intent = Intended(row.due.order_id, request.nonce, request.timestamp_s, request.purpose, request.endpoint_id)
        row.tries += 1
        row.intended_s = self._runtime.elapsed_s()
        row.intent_result = self._record(row, intent)

    async def _attempt(self, row: _Row) -> Verdict:
        due, elapsed_s = row.due, self._runtime.elapsed_s
        # Nothing of the request may be sent before this returns. After a crash, only the durable intent keeps the row
        # from being sent again.
        move = await row.intent_result
        if move is MoveResult.HELD:
            # Evidence arrived after the row was read as due. The row is not sent, and a person must decide.
            return Verdict(Outcome(OutcomeKind.NOT_SENT, "row.held"), ContinueRun())
        if move is not MoveResult.MOVED:
            raise InternalError(f"row {due.row} was moved by someone else while this run held the journal")
        if self._tally.stopping:
            # The intent is durable, but the run is stopping. No byte was sent, and this must be recorded: otherwise the
            # row would be in doubt.
            reply_record, verdict = None, Verdict(Outcome(OutcomeKind.NOT_SENT, "run.stopped"))
        else:
            delivered_s = elapsed_s()
            reply = await self._gateway.deliver(row.request, partial(self._may_send, row))
            self._group_limit.observe(delivered_s - row.intended_s, elapsed_s() - delivered_s)
            reply_record, verdict = stored_reply(reply, self._judge(reply, row.request.expected))
        self._apply_verdict(verdict)
        recorded_outcome = self._record(row, Concluded(verdict.outcome), reply_record)
        if not isinstance(verdict.advice, RetrySoon):
            # The outcome is submitted before the intent of the row that takes this slot. So they share a commit, and no
            # commit has more rows in flight than there are slots.
            self._free_slot(row)
        try:
            await recorded_outcome
        except Exception:
            # The gateway answered, but the journal could not record the outcome. The row stays in flight there, and the
            # next command puts it in doubt. Only the report of this run names the outcome.
            self._tally.unrecorded.append((due.order_id, verdict.outcome.kind))
            raise
        self._progress.record_outcome(due, verdict.outcome)
        return verdict

    def _may_send(self, row: _Row) -> bool:
        """Return whether a row may still be sent: its intent is recent, and no other process has the row."""
        # This is checked immediately before the first byte. A process that was suspended after its commit may wake up
        # after another worker has put the row in doubt, or a person has settled it.
        age_s = self._runtime.elapsed_s() - row.intended_s
        return age_s < self._send_within_s and self._journal.may_send(age_s)

    def _apply_verdict(self, verdict: Verdict) -> None:
        kind = verdict.outcome.kind
        if kind is not OutcomeKind.NOT_SENT:
            self._tally.sent += 1
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
        """Submit a fact about the row's latest attempt. The returned future is done once the fact is durable."""
        due = row.due
        return self._committer.submit(
            Entry(due.number, due.standing.attempt + row.tries, fact, self._fact_timestamp(), reply)
        )

    def _fact_timestamp(self) -> str:
        """Return the timestamp for a fact. Formatting is slow, so it is done at most once per millisecond."""
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
        self._tally.stopping = True
        self._halted.set()
        self._all_launched.set()

    async def _wait_until_halted(self, wait_s: float) -> bool:
        try:
            async with asyncio.timeout(wait_s):
                await self._halted.wait()
        except TimeoutError:
            return False
        return True
