"""Sends the due instructions of a batch to the gateway, never more at once than the window allows.

    due rows -> signed ahead -> [intent durable] -> sent -> judged -> [outcome durable] -> next

The order is the promise: the intent of an attempt is on stable storage before the first byte of its request is sent.
Only rows that are about to leave get an intent, so that a crash leaves no more rows in doubt than were in flight. A row
is sent again within a run only if the transport proved that nothing left.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from paygw_batch.clock import timestamp
from paygw_batch.core.lifecycle import Concluded, Fact, Intended
from paygw_batch.core.outcome import GoOn, Outcome, OutcomeKind, PauseRun, StopRun, TryAgain, Verdict
from paygw_batch.engine.pacing import TRIES, GroupLimit, LocalPacing, Pace, wait_before_try
from paygw_batch.engine.ports import Gateway, Prepare, Progress, World
from paygw_batch.errors import InternalError, SigningFailed
from paygw_batch.gateway.message import Attempt, Expected, PreparedRequest, RawReply, TransportFault
from paygw_batch.journal import Due, EngineJournal, Entry, KeptReply, MoveResult
from paygw_batch.language import say

Append = Callable[[Sequence[Entry]], Awaitable[Sequence[MoveResult]]]
"""The type of `EngineJournal.append`."""


LONGEST_REST_S = 0.002
"""Without pressure, each commit is followed by a pause of the same length, but at most this long."""


class GroupCommit:
    """Collects facts while a commit is under way, and makes them durable in the next one.

    Without pressure, a commit takes all facts that wait, because it costs nearly the same for one fact and for many. A
    pause after it lets more facts arrive. Under pressure, while requests wait for a place in flight, a commit takes at
    most `most_facts_under_pressure()` facts, and the next commit follows at once. Facts are committed in the order in
    which they were submitted. After the first failure every later fact fails with the same error, because a process
    whose journal failed once never writes to it again.
    """

    def __init__(
        self,
        append: Append,
        on_failure: Callable[[Exception], None],
        is_pressed: Callable[[], bool] = lambda: False,
        most_facts_under_pressure: Callable[[], int] = lambda: 16,
    ) -> None:
        self._append = append
        self._on_failure = on_failure
        self._is_pressed = is_pressed
        self._most_facts_under_pressure = most_facts_under_pressure
        self._waiting: list[tuple[Entry, asyncio.Future[MoveResult]]] = []
        self._commit: asyncio.Task[None] | None = None
        self._failure: Exception | None = None

    def submit(self, entry: Entry) -> asyncio.Future[MoveResult]:
        """Add a fact to the next commit; return a future that has its effect once the fact is durable."""
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
                most = self._most_facts_under_pressure() if self._is_pressed() else len(self._waiting)
                group, self._waiting = self._waiting[:most], self._waiting[most:]
                started_s = loop.time()
                await self._commit_group(group)
                # The rows whose intent is durable now run first, so that they leave before the next commit begins.
                # Otherwise a commit that finished without waiting would start the next one before them.
                await asyncio.sleep(0 if self._is_pressed() else min(loop.time() - started_s, LONGEST_REST_S))
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


HEADERS_KEPT = frozenset(
    {
        *("content-type", "content-length", "date", "server", "via", "location", "retry-after", "www-authenticate"),
        *("x-request-id", "x-correlation-id", "request-id", "cf-ray", "x-amzn-requestid", "x-amzn-trace-id"),
    }
)
"""The headers that identify the server, the time and the request. Cookies are not kept."""
MAX_HEADER_CHARACTERS = 1000
MAX_BODY_BYTES = 65_536


def kept_reply(came_back: RawReply | TransportFault, verdict: Verdict) -> tuple[KeptReply | None, Verdict]:
    """Return the part of a reply to keep (None for a fault, or if the row is paid), and the verdict with its digest."""
    if isinstance(came_back, TransportFault) or verdict.outcome.kind is OutcomeKind.PAID:
        return None, verdict
    headers = [f"{name}: {value[:MAX_HEADER_CHARACTERS]}" for name, value in came_back.headers if name in HEADERS_KEPT]
    head = "\n".join([f"HTTP/1.1 {came_back.http_status}", *headers])
    kept = KeptReply(head.encode("utf-8", "backslashreplace").decode(), came_back.body[:MAX_BODY_BYTES])
    return kept, replace(verdict, outcome=verdict.outcome._replace(reply_sha256=kept.sha256))


PAGE_ROWS = 64
"""The number of due instructions that are read from the journal at a time. Commits wait for this read."""
SIGN_AT_ONCE = 32
"""The number of requests that are prepared at a time."""
SIGNED_AHEAD = 512
"""The maximum number of signed requests that wait to be sent."""
SIGNATURE_AGE_S = 30
"""The age in seconds above which a signed request is signed again before it leaves."""

_NO_TIME, _SHOWN = timedelta(), timedelta(milliseconds=1)
"""Two times within this range share a text, because the times of facts have milliseconds."""

Judge = Callable[[RawReply | TransportFault, Expected], Verdict]
"""Decides the meaning of a reply or a fault."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of a run. `sent` counts the rows for which a first byte may have left.

    `stop_reason` is the reason why the run stopped early. `failure` is the error that ended it (a journal that cannot
    be written, or an error of ours). `unrecorded` has the outcomes that came after it, by order id.
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
    """A due instruction that is being sent: first signed, then in flight until its last attempt has ended."""

    due: Due
    request: PreparedRequest
    in_flight: bool = False
    tries: int = 0
    intended: asyncio.Future[MoveResult] = field(init=False)
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

    goes_on = False
    """Whether other processes send the remaining rows after a drain. Here none does."""

    def __init__(
        self,
        *,
        journal: EngineJournal,
        gateway: Gateway,
        prepare: Prepare,
        judge: Judge,
        pace: Pace,
        world: World,
        progress: Progress,
        departs_within_s: float,
        pacing: LocalPacing | None = None,
        signed_ahead: int | None = None,
    ) -> None:
        """Prepare a run. A request leaves at most `departs_within_s` after its intent was submitted, or not at all.

        `pacing` shares the limits among several workers; None: there is only this process. `signed_ahead` is for a slow
        key: the number of requests that are prepared ahead, one by one. None: in groups, up to `SIGNED_AHEAD`.
        """
        self._journal = journal
        self._gateway = gateway
        self._prepare = prepare
        self._judge = judge
        self._world = world
        self._progress = progress
        self._pacing = pacing or LocalPacing(pace)
        self._group_limit = GroupLimit(pace.concurrency)
        self._first = pace.first
        self._departs_within_s = departs_within_s
        self._sign_at_once, self._signed_ahead = (
            (SIGN_AT_ONCE, SIGNED_AHEAD) if signed_ahead is None else (1, signed_ahead)
        )
        self._tally = _RunTally()
        self._signed: deque[_Row] = deque()
        self._all_signed = False
        self._room = asyncio.Event()
        self._all_launched = asyncio.Event()
        self._halted = asyncio.Event()
        self._next_launch: asyncio.TimerHandle | None = None
        self._noted = datetime.min.replace(tzinfo=UTC), ""
        self._senders: set[asyncio.Task[None]] = set()
        self._committer = GroupCommit(
            journal.append,
            on_failure=self._give_up,
            is_pressed=lambda: bool(self._signed),
            most_facts_under_pressure=lambda: self._group_limit.most_facts,
        )

    async def run(self, batch: int) -> RunEnd:
        """Send every due instruction of the batch with this number, and return when nothing is in flight."""
        self._pacing.begin(self._launch, self._stop)
        feeding = asyncio.create_task(self._feed(batch))
        try:
            await self._all_launched.wait()
        finally:
            feeding.cancel()
            if self._next_launch is not None:
                self._next_launch.cancel()
            await asyncio.gather(feeding, *self._senders, return_exceptions=True)
            await self._pacing.end()
        tally = self._tally
        return RunEnd(tally.sent, tally.stop_reason, tally.interrupted, tally.failure, tuple(tally.unrecorded))

    def drain(self) -> None:
        """Start no new row; the run waits for the rows in flight."""
        self._tally.interrupted = True
        self._halt()

    # Feeding reads due rows from the journal in pages, and signs requests ahead, up to the limit.

    async def _feed(self, batch: int) -> None:
        signing: set[asyncio.Task[None]] = set()
        try:
            left = self._first
            while left != 0 and (page := await self._journal.due(batch, limit=min(left or PAGE_ROWS, PAGE_ROWS))):
                left = None if left is None else left - len(page)
                for start in range(0, len(page), self._sign_at_once):
                    await self._wait_for_room(signing)
                    signing.add(asyncio.create_task(self._sign(page[start : start + self._sign_at_once])))
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
            if len(self._signed) + len(signing) * self._sign_at_once < self._signed_ahead:
                return
            self._room.clear()
            await self._room.wait()

    async def _sign(self, page: Sequence[Due]) -> None:
        try:
            requests = await self._prepare(self._next_attempts(page))
            self._signed.extend(map(_Row, page, requests))
        finally:
            # This also happens after a failure, which the feeder finds when it next looks for room.
            self._room.set()
        self._launch()

    def _next_attempts(self, page: Sequence[Due]) -> list[Attempt]:
        timestamp_s = int(self._world.now().timestamp())
        return [Attempt(due.instruction, due.order_id, self._world.nonce(), timestamp_s) for due in page]

    # Launching starts as many rows as the window, the rhythm and the signed requests allow.

    def _launch(self) -> None:
        """Start every row that may leave now. It is called whenever another row may have become free to leave."""
        tally, loop = self._tally, asyncio.get_running_loop()
        while self._signed and not tally.stopping and self._pacing.has_place(tally.in_flight):
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
                # of the row whose place it takes.
                self._intend(row)
            sender = loop.create_task(self._deliver(row))
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)
            self._room.set()
        if tally.stopping or (self._all_signed and not self._signed):
            self._all_launched.set()

    def _land(self, row: _Row) -> None:
        """Give the place of a row in flight to the next row."""
        if row.in_flight:
            row.in_flight = False
            self._tally.in_flight -= 1
            self._launch()

    # Delivering takes one row from its intent to its outcome.

    async def _deliver(self, row: _Row) -> None:
        try:
            await self._try(row)
        except Exception as error:  # noqa: BLE001 (any error ends the run, in order)
            self._give_up(error)
        finally:
            self._land(row)

    async def _try(self, row: _Row) -> None:
        for number in range(1, TRIES + 1):
            if row.tries < number:
                # This is a retry, or the signature was too old, so this try has no intent yet.
                (row.request,) = await self._prepare(self._next_attempts([row.due]))
                self._intend(row)
            verdict = await self._attempt(row)
            if not isinstance(verdict.advice, TryAgain):
                return
            if number == TRIES:
                self._stop(say("The gateway cannot be reached ({cause}).", cause=verdict.outcome.cause))
            elif await self._halted_within(wait_before_try(number + 1, self._world.chance())):
                return

    def _is_stale(self, row: _Row) -> bool:
        return self._world.now().timestamp() - row.request.timestamp_s > SIGNATURE_AGE_S

    def _intend(self, row: _Row) -> None:
        request = row.request
        intent = Intended(row.due.order_id, request.nonce, request.timestamp_s, request.purpose, request.endpoint_id)
        row.tries += 1
        row.intended_s = self._world.elapsed_s()
        row.intended = self._record(row, intent)

    async def _attempt(self, row: _Row) -> Verdict:
        due, elapsed_s = row.due, self._world.elapsed_s
        # Nothing of the request may leave before this returns. After a crash, only the durable intent keeps the row
        # from being sent again.
        recorded = await row.intended
        if recorded is MoveResult.HELD:
            # Evidence arrived after the row was read as due. The row is not sent, and a person must decide.
            return Verdict(Outcome(OutcomeKind.NOT_SENT, "row.held"), GoOn())
        if recorded is not MoveResult.MOVED:
            raise InternalError(f"row {due.row} was moved by someone else while this run held the journal")
        if self._tally.stopping:
            # The intent is durable, but the run is stopping. No byte left, and this must be recorded: otherwise the row
            # would be in doubt.
            kept, verdict = None, Verdict(Outcome(OutcomeKind.NOT_SENT, "run.stopped"))
        else:
            asked_s = elapsed_s()
            came_back = await self._gateway.deliver(row.request, partial(self._may_leave, row))
            self._group_limit.learn(asked_s - row.intended_s, elapsed_s() - asked_s)
            kept, verdict = kept_reply(came_back, self._judge(came_back, row.request.expected))
        self._heed(verdict)
        concluded = self._record(row, Concluded(verdict.outcome), kept)
        if not isinstance(verdict.advice, TryAgain):
            # The outcome is submitted before the intent of the row that takes its place. So they share a commit, and no
            # commit has more rows in flight than there are places.
            self._land(row)
        try:
            await concluded
        except Exception:
            # The gateway answered, but the journal could not record the outcome. There the row stays in flight, and the
            # next command puts it in doubt. Only the report of this run names the outcome.
            self._tally.unrecorded.append((due.order_id, verdict.outcome.kind))
            raise
        self._progress.concluded(due, verdict.outcome)
        return verdict

    def _may_leave(self, row: _Row) -> bool:
        """Whether a row's request may leave now: its intent is recent, and no other process can have taken the row."""
        # This is checked immediately before the first byte. A process that was suspended after its commit may wake up
        # after another worker has put the row in doubt, or a person has settled it.
        age_s = self._world.elapsed_s() - row.intended_s
        return age_s < self._departs_within_s and self._journal.may_leave(age_s)

    def _heed(self, verdict: Verdict) -> None:
        kind = verdict.outcome.kind
        if kind is not OutcomeKind.NOT_SENT:
            self._tally.sent += 1
        if reason := self._pacing.learn(verdict.outcome):
            self._stop(reason)
        match verdict.advice:
            case StopRun(reason):
                self._stop(reason)
                self._pacing.stopped(reason)
            case PauseRun(pause_s):
                self._pacing.pause(asyncio.get_running_loop().time(), pause_s)
                self._progress.note(say("The gateway asked for a pause of {seconds:.0f} seconds.", seconds=pause_s))
            case GoOn() | TryAgain():
                pass

    def _record(self, row: _Row, fact: Fact, reply: KeptReply | None = None) -> asyncio.Future[MoveResult]:
        """Submit a fact about the row's latest try; return a future that is done once the fact is durable."""
        due = row.due
        return self._committer.submit(
            Entry(due.number, due.standing.attempt + row.tries, fact, self._noted_at(), reply)
        )

    def _noted_at(self) -> str:
        """Return the timestamp of a fact. Facts of one millisecond share its text, because formatting it is slow."""
        now = self._world.now()
        if not _NO_TIME <= now - self._noted[0] < _SHOWN:
            self._noted = now, timestamp(now)
        return self._noted[1]

    def _stop(self, reason: str) -> None:
        if self._tally.stop_reason is None:
            self._tally.stop_reason = reason
            self._progress.note(say("{reason} No new rows are started.", reason=reason))
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

    async def _halted_within(self, wait_s: float) -> bool:
        try:
            async with asyncio.timeout(wait_s):
                await self._halted.wait()
        except TimeoutError:
            return False
        return True
