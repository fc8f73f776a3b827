"""The engine: which rows it sends and when, signing, recording, and how a run handles errors."""

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from unittest.mock import Mock

import pytest

from paygw_batch.core.evidence import Claim, Evidence, EvidenceSource, Finding, Proof
from paygw_batch.core.lifecycle import Concluded, Intended, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.core.shown_states import render_record
from paygw_batch.engine.engine import MAX_SIGNED_AHEAD, GroupCommit
from paygw_batch.engine.pacing import FIRST_WAIT_S, MIN_GROUP_FACTS, TRIES, Pace
from paygw_batch.errors import InternalError, JournalUnwritable, SigningFailed
from paygw_batch.gateway.message import Attempt, PreparedRequest, RawReply, SendGuard, TransportFault
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import BatchRecord, Entry, MoveResult
from paygw_batch.processes import gc_relaxed
from tests.support.inline_journal import RESULTS, InlineJournal, SlowJournal, entry
from tests.support.patience import PATIENCE_S
from tests.support.scripted_scenario import (
    APPROVED,
    AT,
    DEPARTS_WITHIN_S,
    LOST,
    REFUSED,
    UNTRUSTED,
    Answer,
    ScriptedGateway,
    build_engine,
    build_journal,
    prepare,
    reply,
    run,
)


def states(journal: SqliteJournal, batch: BatchRecord) -> Counter[State]:
    return Counter({tally.state: tally.count for tally in journal.tallies(batch.number)})


def watch(journal: SqliteJournal, seen: Callable[[Sequence[Entry]], object]) -> None:
    """Call `seen` with the facts of each commit after the commit."""
    append = journal.append

    def watched(entries: Sequence[Entry]) -> Sequence[MoveResult]:
        moved = append(entries)
        seen(entries)
        return moved

    journal.append = watched  # type: ignore[method-assign]


@pytest.mark.parametrize("concurrency", [1, 3, 16])
def test_due_rows_are_sent_once_within_concurrency(concurrency: int) -> None:
    journal, batch = build_journal(rows=600)
    arrived: list[int] = []
    gateway = ScriptedGateway(latency=0.01)
    gateway.before_answer = lambda _order_id: arrived.append(len(gateway.arrived))
    end = run(build_engine(journal, gateway, Pace(concurrency)), batch)
    assert Counter(gateway.arrived) == Counter({f"PAY-{row}": 1 for row in range(2, 602)})
    assert states(journal, batch) == {State.PAID: 600}
    assert (end.sent, end.stop_reason, end.interrupted, end.failure) == (600, None, False, None)
    assert gateway.most_in_flight == concurrency
    assert arrived[0] == 1, "the first row is sent alone"


def test_intent_is_durable_before_request_is_sent() -> None:
    journal, batch = build_journal(rows=40)
    gateway = ScriptedGateway()
    intended: set[str] = set()
    watch(journal, lambda entries: intended.update(e.fact.order_id for e in entries if isinstance(e.fact, Intended)))
    gateway.script = lambda order_id, _times: APPROVED if order_id in intended else pytest.fail("sent before intent")
    run(build_engine(journal, gateway), batch)
    assert len(intended) == 40


def test_stale_request_is_sent_with_new_intent() -> None:
    """The process was frozen, the machine was asleep, or the connection opened slowly."""
    journal, batch = build_journal(rows=3)
    clock_s = [0.0]
    nonces: list[str] = []
    watch(journal, lambda entries: nonces.extend(e.fact.nonce for e in entries if isinstance(e.fact, Intended)))

    def frozen(order_id: str) -> None:
        clock_s[0] += DEPARTS_WITHIN_S if (order_id, len(nonces)) == ("PAY-3", 2) else 1.0

    gateway = ScriptedGateway(before_departure=frozen)
    end = run(build_engine(journal, gateway, Pace(1), elapsed_s=lambda: clock_s[0]), batch)
    assert gateway.arrived == ["PAY-2", "PAY-3", "PAY-4"]
    assert (len(nonces), len(set(nonces))) == (4, 4), "PAY-3 got another intent"
    assert states(journal, batch) == {State.PAID: 3}
    assert (end.sent, end.stop_reason) == (3, None)


def test_repeatedly_stale_requests_stop_run() -> None:
    journal, batch = build_journal(rows=3)
    clock_s = [0.0]

    def slow(_order_id: str) -> None:
        clock_s[0] += DEPARTS_WITHIN_S

    gateway = ScriptedGateway(before_departure=slow)
    end = run(build_engine(journal, gateway, Pace(1), elapsed_s=lambda: clock_s[0]), batch)
    assert (gateway.arrived, end.sent, end.failure) == ([], 0, None)
    assert end.stop_reason is not None
    assert states(journal, batch) == {State.READY: 3}


def test_failed_write_while_connecting_sends_nothing() -> None:
    journal, batch = build_journal(rows=3)

    def failing(order_id: str) -> None:
        if order_id == "PAY-3":
            journal._disable_writes("disk full")

    gateway = ScriptedGateway(before_departure=failing)
    end = run(build_engine(journal, gateway, Pace(1)), batch)
    assert gateway.arrived == ["PAY-2"]
    assert isinstance(end.failure, JournalUnwritable)
    assert end.unrecorded == (("PAY-3", OutcomeKind.NOT_SENT),)


class SlowDiskJournal(InlineJournal):
    """Takes a fixed time of the loop's clock for each commit, and records the size of each commit."""

    def __init__(self, journal: SqliteJournal, commit_s: float) -> None:
        super().__init__(journal)
        self._commit_s = commit_s
        self.groups: list[int] = []

    async def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        async with self._lock:
            self.groups.append(len(entries))
            await asyncio.sleep(self._commit_s)
            return await super().append(entries)


@pytest.mark.parametrize(("commit_s", "answer_s", "is_large"), [(60.0, 1.0, True), (1.0, 3600.0, False)])
def test_commits_grow_when_rows_wait_for_journal(commit_s: float, answer_s: float, is_large: bool) -> None:
    journal, batch = build_journal(rows=1500)
    in_flight: list[int] = []
    watch(journal, lambda _: in_flight.append(states(journal, batch)[State.IN_FLIGHT]))
    given = SlowDiskJournal(journal, commit_s)
    end = run(build_engine(journal, ScriptedGateway(latency=answer_s), Pace(concurrency=64), given), batch)
    assert end.sent == 1500
    # Towards the end no signed request waits, and a commit takes all waiting facts.
    under_pressure = given.groups[: len(given.groups) // 2]
    assert (max(under_pressure) > MIN_GROUP_FACTS) is is_large
    assert max(in_flight) <= 64


class SimultaneousAnswerGateway(ScriptedGateway):
    """Answers all requests in flight at the same moment."""

    async def deliver(self, request: PreparedRequest, may_send: SendGuard) -> Answer:
        assert may_send()
        loop = asyncio.get_running_loop()
        answered = asyncio.Event()
        loop.call_at((loop.time() // 3600 + 1) * 3600, answered.set)
        await answered.wait()
        return await super().deliver(request, lambda: True)


@pytest.mark.parametrize(
    ("gateway", "rows", "concurrency", "commits"),
    [
        (ScriptedGateway(latency=0.01), 10, 1, [[Intended], *[[Concluded, Intended]] * 9, [Concluded]]),
        # First one row is in flight, then two. Their answers open the window to its limit, and rows then move in step.
        (
            *(SimultaneousAnswerGateway(), 27, 8),
            [
                *([Intended], [Concluded, Intended, Intended]),
                [Concluded, *[Intended] * 3, Concluded, *[Intended] * 5],
                *([Concluded, Intended] * 8, [Concluded, Intended] * 8, [Concluded] * 8),
            ],
        ),
    ],
)
def test_outcomes_share_commit_with_next_intents(
    gateway: ScriptedGateway, rows: int, concurrency: int, commits: list[list[type]]
) -> None:
    journal, batch = build_journal(rows)
    seen: list[list[type]] = []
    watch(journal, lambda entries: seen.append([type(entry.fact) for entry in entries]))
    run(build_engine(journal, gateway, Pace(concurrency)), batch)
    assert seen == commits


def test_row_with_unknown_outcome_is_not_resent() -> None:
    journal, batch = build_journal(rows=5)
    gateway = ScriptedGateway(lambda order_id, _times: LOST if order_id == "PAY-3" else APPROVED)
    run(build_engine(journal, gateway), batch)
    assert states(journal, batch) == {State.PAID: 4, State.IN_DOUBT: 1}
    again = ScriptedGateway()
    run(build_engine(journal, again), batch)
    assert again.arrived == []


def test_provably_unsent_row_is_retried_after_growing_waits() -> None:
    journal, batch = build_journal(rows=1)
    sent_s: list[float] = []
    gateway = ScriptedGateway(lambda _order_id, times: APPROVED if times == TRIES else REFUSED)
    gateway.before_answer = lambda _order_id: sent_s.append(asyncio.get_running_loop().time())
    run(build_engine(journal, gateway), batch)
    (standing,) = journal.rows(batch.number)
    assert (standing.state, standing.attempts, len(sent_s)) == (State.PAID, TRIES, TRIES)
    waits_s = [FIRST_WAIT_S * 4**number for number in range(TRIES - 1)]
    assert [after - before for before, after in pairwise(sent_s)] == [
        pytest.approx(wait_s, abs=0.2) for wait_s in waits_s
    ]


@pytest.mark.parametrize(
    ("answer", "tries", "state", "reason"),
    [
        (REFUSED, TRIES, State.READY, "The gateway cannot be reached (connect.refused)."),
        (UNTRUSTED, 1, State.READY, "The certificate is wrong."),
        (reply("error", http_status=401), 1, State.REJECTED, "Credentials were refused."),
    ],
)
def test_answer_affecting_all_rows_stops_run(answer: Answer, tries: int, state: State, reason: str) -> None:
    journal, batch = build_journal(rows=100)
    gateway = ScriptedGateway(lambda _order_id, _times: answer)
    end = run(build_engine(journal, gateway, Pace(concurrency=16)), batch)
    assert (len(gateway.arrived), end.sent, end.stop_reason) == (tries, state is State.REJECTED, reason)
    assert states(journal, batch) == Counter({State.READY: 99}) + Counter([state])


@pytest.mark.parametrize(("concurrency", "breaker"), [(1, 3), (8, 5), (16, 1)])
def test_dead_gateway_puts_limited_rows_in_doubt(concurrency: int, breaker: int) -> None:
    journal, batch = build_journal(rows=500)
    alive = 100
    gateway = ScriptedGateway(latency=0.01)
    gateway.script = lambda order_id, _times: APPROVED if gateway.arrived.index(order_id) < alive else LOST
    end = run(build_engine(journal, gateway, Pace(concurrency, stop_after_in_doubt=breaker)), batch)
    row_states = states(journal, batch)
    assert row_states[State.IN_DOUBT] <= concurrency + breaker
    assert row_states[State.READY] == 500 - alive - row_states[State.IN_DOUBT]
    assert "ended in doubt." in (end.stop_reason or "")


@pytest.mark.parametrize(
    ("concurrency", "limit", "answer", "reason"),
    [
        *((concurrency, limit, reply("declined"), "declined") for concurrency, limit in ((1, 3), (8, 10), (4, 1))),
        (1, 2, RawReply(429, (), b"{}"), "the gateway did not give a reason"),
    ],
)
def test_consecutive_identical_rejections_stop_run(concurrency: int, limit: int, answer: Answer, reason: str) -> None:
    journal, batch = build_journal(rows=200)
    gateway = ScriptedGateway(lambda _order_id, _times: answer, latency=0.01)
    end = run(build_engine(journal, gateway, Pace(concurrency, stop_after_rejected=limit)), batch)
    row_states = states(journal, batch)
    assert limit <= row_states[State.REJECTED] <= limit + concurrency
    assert row_states[State.READY] == 200 - row_states[State.REJECTED]
    one, many = "1 row was rejected", f"{limit} consecutive rows were rejected for the same reason"
    assert end.stop_reason == f"{one if limit == 1 else many}: {reason}."


@pytest.mark.parametrize("first", [1, 63, 64, 65, 200, 300])
def test_only_first_due_rows_are_sent(first: int) -> None:
    journal, batch = build_journal(rows=200)
    gateway = ScriptedGateway()
    end = run(build_engine(journal, gateway, Pace(concurrency=4, first=first)), batch)
    assert sorted(int(order_id[4:]) for order_id in gateway.arrived) == list(range(2, 2 + min(first, 200)))
    assert end.sent == min(first, 200)
    again = ScriptedGateway()
    run(build_engine(journal, again, Pace(concurrency=1, first=1)), batch)
    assert again.arrived == ([f"PAY-{2 + first}"] if first < 200 else [])


def test_run_observes_pause_requested_by_gateway() -> None:
    journal, batch = build_journal(rows=3)
    starts: list[float] = []
    gateway = ScriptedGateway()

    def answer(order_id: str, _times: int) -> RawReply | TransportFault:
        starts.append(asyncio.get_running_loop().time())
        return reply("declined", http_status=429) if order_id == "PAY-2" else APPROVED

    gateway.script = answer
    run(build_engine(journal, gateway, Pace(concurrency=1)), batch)
    assert starts[1] - starts[0] >= 60


@pytest.mark.parametrize(("rows", "concurrency", "after"), [(100, 4, 20), (2 * MAX_SIGNED_AHEAD, 1, 1)])
def test_drain_finishes_rows_in_flight_only(rows: int, concurrency: int, after: int) -> None:
    journal, batch = build_journal(rows)
    gateway = ScriptedGateway(latency=0.01)
    engine = build_engine(journal, gateway, Pace(concurrency))
    gateway.before_answer = lambda _order_id: engine.drain() if len(gateway.arrived) >= after else None
    end = run(engine, batch)
    assert (end.sent, end.interrupted, end.failure) == (len(gateway.arrived), True, None)
    assert after <= end.sent < after + concurrency
    assert states(journal, batch) == {State.PAID: end.sent, State.READY: rows - end.sent}


def test_unwritable_journal_stops_sending_and_reports_outcomes() -> None:
    journal, batch = build_journal(rows=100)
    gateway = ScriptedGateway(latency=0.01)
    append = journal.append

    def failing(entries: Sequence[Entry]) -> Sequence[MoveResult]:
        if len(gateway.arrived) >= 10:
            raise JournalUnwritable
        return append(entries)

    journal.append = failing  # type: ignore[method-assign]
    end = run(build_engine(journal, gateway, Pace(concurrency=4)), batch)
    assert isinstance(end.failure, JournalUnwritable)
    assert len(gateway.arrived) <= 14
    recorded = states(journal, batch)
    assert recorded[State.IN_FLIGHT] == len(end.unrecorded)
    assert {kind for _, kind in end.unrecorded} == {OutcomeKind.PAID}


def test_signed_row_held_by_evidence_is_not_sent() -> None:
    journal, batch = build_journal(rows=40)

    class Witness(ScriptedGateway):
        async def deliver(self, request: PreparedRequest, may_send: SendGuard) -> RawReply | TransportFault:
            if not self.arrived:  # all are signed by now, and the gateway reports that it has the last one
                claim = Claim("PAY-41", "100.00", "KES", "approved", proof=Proof.PROVEN)
                evidence = Evidence(EvidenceSource.NOTIFICATION, claim, "{}", 1)
                findings = journal.record_evidence([evidence], {"approved": OutcomeKind.PAID}, at=AT)
                assert findings == [Finding.CONTRADICTING]
            return await super().deliver(request, may_send)

    gateway = Witness()
    end = run(build_engine(journal, gateway), batch)
    assert gateway.arrived == [f"PAY-{row}" for row in range(2, 41)]
    assert (end.sent, end.failure, end.stop_reason) == (39, None, None)
    assert states(journal, batch) == {State.PAID: 39, State.READY: 1}
    assert list(journal.holds(batch.number)) == [41]
    journal.verify()


def test_internal_error_ends_run_after_recording_outcomes() -> None:
    journal, batch = build_journal(rows=50)
    gateway = ScriptedGateway(latency=0.01)

    def broken(order_id: str) -> None:
        if order_id == "PAY-9":
            raise ZeroDivisionError

    gateway.before_answer = broken
    end = run(build_engine(journal, gateway), batch)
    assert isinstance(end.failure, ZeroDivisionError)
    row_states = states(journal, batch)
    assert row_states[State.IN_FLIGHT] == 1
    assert row_states[State.PAID] == len(gateway.arrived) - 1


async def test_signing_error_ends_run_without_waiting() -> None:
    journal, batch = build_journal(MAX_SIGNED_AHEAD + 200)
    gateway = ScriptedGateway()
    engine = build_engine(journal, gateway)

    async def fail(attempts: Sequence[Attempt]) -> list[PreparedRequest]:
        await asyncio.sleep(0)
        raise InternalError(f"none of {len(attempts)} can be signed")

    engine._prepare = fail
    end = await asyncio.wait_for(engine.run(batch.number), timeout=PATIENCE_S)
    assert isinstance(end.failure, InternalError)
    assert (end.sent, gateway.arrived) == (0, [])
    assert set(states(journal, batch)) == {State.READY}


def test_reference_cycles_do_not_grow_with_rows() -> None:
    collected = []
    for rows in (60, 600):
        journal, batch = build_journal(rows=rows)
        with gc_relaxed():
            gc.collect()
            run(build_engine(journal, ScriptedGateway(latency=0.01)), batch)
            collected.append(gc.collect())
        assert states(journal, batch) == {State.PAID: rows}
    assert collected[1] <= collected[0] + 30  # those of the run itself


def test_garbage_collector_settings_are_restored() -> None:
    before = gc.get_threshold()
    with suppress(ZeroDivisionError), gc_relaxed():
        assert gc.get_threshold()[0] > before[0]
        raise ZeroDivisionError
    assert gc.get_threshold() == before


def test_rows_are_sent_during_signing() -> None:
    journal, batch = build_journal(rows=70)
    gateway = ScriptedGateway()
    engine = build_engine(journal, gateway)

    async def one_group_at_a_time(attempts: Sequence[Attempt]) -> list[PreparedRequest]:
        before = int(attempts[0].order_id.removeprefix("PAY-")) - 2
        while len(gateway.arrived) < before:  # noqa: ASYNC110 (until all that were signed have left; the clock jumps)
            await asyncio.sleep(0.01)
        await asyncio.sleep(1)
        return await prepare(attempts)

    engine._prepare = one_group_at_a_time
    assert run(engine, batch).sent == 70


def test_number_of_rows_awaiting_signature_is_limited() -> None:
    journal, batch = build_journal(rows=3 * MAX_SIGNED_AHEAD)
    engine = build_engine(journal, ScriptedGateway())
    asked: list[int] = []

    async def never(attempts: Sequence[Attempt]) -> list[PreparedRequest]:
        asked.append(len(attempts))
        await asyncio.sleep(3600)
        engine.drain()
        return await prepare(attempts)

    engine._prepare = never
    run(engine, batch)
    assert sum(asked) == MAX_SIGNED_AHEAD


def test_slow_key_signs_few_requests_ahead() -> None:
    journal, batch = build_journal(rows=30)
    engine = build_engine(journal, ScriptedGateway(), signing_lookahead=5)
    under_way = most = 0

    async def slowly(attempts: Sequence[Attempt]) -> list[PreparedRequest]:
        nonlocal under_way, most
        assert len(attempts) == 1
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(1)
        under_way -= 1
        return await prepare(attempts)

    engine._prepare = slowly
    assert (run(engine, batch).sent, most) == (30, 5)


@pytest.mark.parametrize("signing_lookahead", [None, 5])
def test_failing_key_stops_run_without_lost_rows(signing_lookahead: int | None) -> None:
    journal, batch = build_journal(rows=80)
    gateway = ScriptedGateway()
    engine = build_engine(journal, gateway, signing_lookahead=signing_lookahead)
    signed = 0

    async def fails_later(attempts: Sequence[Attempt]) -> list[PreparedRequest]:
        nonlocal signed
        await asyncio.sleep(0.1)
        if signed >= 32:
            raise SigningFailed("The token is gone.", hint="Plug it in.")
        signed += len(attempts)
        return await prepare(attempts)

    engine._prepare = fails_later
    end = run(engine, batch)
    assert (end.failure, end.stop_reason) == (None, "The token is gone. Plug it in.")
    assert states(journal, batch) == {State.PAID: end.sent, State.READY: 80 - end.sent}
    assert len(gateway.arrived) == end.sent <= signed


def test_key_failure_leaves_stale_row_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    journal, batch = build_journal(rows=3)
    engine = build_engine(journal, ScriptedGateway(), Pace(concurrency=1), signing_lookahead=5)
    asked = 0

    async def fails_afresh(attempts: Sequence[Attempt]) -> list[PreparedRequest]:
        nonlocal asked
        asked += 1
        if asked > 3:
            raise SigningFailed
        return await prepare(attempts)

    engine._prepare = fails_afresh
    monkeypatch.setattr(engine, "_has_old_signature", lambda row: row.due.row == 3)
    end = run(engine, batch)
    assert (end.sent, end.failure) == (1, None)
    assert [row.state for row in journal.rows(batch.number)] == [State.PAID, State.READY, State.READY]


def test_row_moved_by_other_process_ends_run() -> None:
    journal, batch = build_journal(rows=1)

    class ImmovableJournal(InlineJournal):
        async def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
            return [MoveResult.NOT_MOVED for _ in entries]

    end = run(build_engine(journal, ScriptedGateway(), given=ImmovableJournal(journal)), batch)
    assert isinstance(end.failure, InternalError)
    assert "row 2 was moved by someone else" in str(end.failure)


def test_intent_committed_during_drain_is_recorded_unsent() -> None:
    journal, batch = build_journal(rows=1)

    class DrainingJournal(InlineJournal):
        async def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
            engine.drain()
            return await super().append(entries)

    gateway = ScriptedGateway()
    engine = build_engine(journal, gateway, given=DrainingJournal(journal))
    run(engine, batch)
    (row,) = journal.rows(batch.number)
    assert (gateway.arrived, row.error_code) == ([], "run.stopped")
    assert render_record(row.message or "") == "Nothing was sent (run.stopped)."


def test_progress_reports_outcomes_and_stop_reason() -> None:
    journal, batch = build_journal(rows=4)
    gateway = ScriptedGateway(lambda order_id, _: APPROVED if order_id == "PAY-2" else RawReply(401, (), b"{}"))
    engine = build_engine(journal, gateway, Pace(concurrency=1))
    engine._progress = progress = Mock()
    assert run(engine, batch).stop_reason == "Credentials were refused."
    outcomes = [(due.order_id, outcome.kind) for (due, outcome), _ in progress.record_outcome.call_args_list]
    assert outcomes == [("PAY-2", OutcomeKind.PAID), ("PAY-3", OutcomeKind.REJECTED)]
    progress.echo.assert_called_once_with("Credentials were refused. No new rows are started.")


def test_replies_to_paid_rows_are_not_stored() -> None:
    journal, batch = build_journal(rows=2)
    gateway = ScriptedGateway(lambda order_id, _: APPROVED if order_id == "PAY-2" else reply("no"))
    run(build_engine(journal, gateway), batch)
    assert list(journal._connection.execute("SELECT instruction, body FROM reply")) == [(2, b'{"status": "no"}')]


# Group commit: the next commit has all waiting facts, and a failure reaches all of them.
async def test_entries_during_commit_share_next_commit() -> None:
    journal = SlowJournal()
    committer = GroupCommit(journal.append, on_failure=lambda _: None)
    first = committer.submit(entry(1))
    await asyncio.sleep(0)
    later = [committer.submit(entry(number)) for number in (2, 3, 4)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in (first, *later))
    journal.gate.set()
    assert await asyncio.gather(first, *later) == [RESULTS[1], RESULTS[0], RESULTS[1], RESULTS[0]]
    assert journal.commits == [[1], [2, 3, 4]]


@pytest.mark.parametrize("facts", [1, 3])
async def test_failed_commit_confirms_and_writes_nothing_more(facts: int) -> None:
    journal = SlowJournal()
    journal.fails = True
    told: list[Exception] = []
    committer = GroupCommit(journal.append, on_failure=told.append)
    waiting = [committer.submit(entry(number)) for number in range(1, facts + 1)]
    await asyncio.sleep(0)
    journal.gate.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, JournalUnwritable) for result in results)
    journal.fails = False
    with pytest.raises(JournalUnwritable):
        await committer.submit(entry(4))
    assert 4 not in {number for commit in journal.commits for number in commit}
    assert len(told) == 1


@pytest.mark.parametrize(("pressed", "commits"), [(True, [[1, 2, 3], [4, 5]]), (False, [[1, 2, 3, 4, 5]])])
async def test_commits_are_small_only_under_pressure(pressed: bool, commits: list[list[int]]) -> None:
    journal = SlowJournal()
    journal.gate.set()
    committer = GroupCommit(journal.append, lambda _: None, lambda: pressed, lambda: 3)
    await asyncio.gather(*(committer.submit(entry(number)) for number in range(1, 6)))
    assert journal.commits == commits


async def test_commit_without_pressure_waits_for_more_entries() -> None:
    journal = SlowJournal()
    committer = GroupCommit(journal.append, lambda _: None)
    first = committer.submit(entry(1))
    asyncio.get_running_loop().call_later(0.05, journal.gate.set)
    await first
    second = committer.submit(entry(2))
    await asyncio.sleep(0)
    await asyncio.gather(second, committer.submit(entry(3)))
    assert journal.commits == [[1], [2, 3]]
