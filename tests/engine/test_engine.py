"""The engine: which rows it sends, when, and how a run handles errors."""

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import pytest

from paygw_batch.core.evidence import Claim, Evidence, EvidenceSource, Finding, Proof
from paygw_batch.core.lifecycle import Concluded, Intended, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.engine.engine import MAX_SIGNED_AHEAD
from paygw_batch.engine.pacing import MIN_GROUP_FACTS, TRIES, Pace
from paygw_batch.errors import InternalError, JournalUnwritable
from paygw_batch.gateway.message import Attempt, PreparedRequest, RawReply, SendGuard, TransportFault
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import BatchRecord, Entry, MoveResult
from paygw_batch.processes import gc_relaxed
from tests.support.inline_journal import InlineJournal
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
    reply,
    run,
)

T = TypeVar("T")


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


def test_each_due_row_is_sent_once_with_outcome() -> None:
    journal, batch = build_journal(rows=600)
    gateway = ScriptedGateway()
    end = run(build_engine(journal, gateway), batch)
    assert Counter(gateway.arrived) == Counter({f"PAY-{row}": 1 for row in range(2, 602)})
    assert states(journal, batch) == {State.PAID: 600}
    assert (end.sent, end.stop_reason, end.interrupted, end.failure) == (600, None, False, None)


@pytest.mark.parametrize("concurrency", [1, 3, 16])
def test_requests_in_flight_reach_but_never_exceed_concurrency(concurrency: int) -> None:
    journal, batch = build_journal(rows=100)
    gateway = ScriptedGateway(latency=0.01)
    run(build_engine(journal, gateway, Pace(concurrency)), batch)
    assert gateway.most_in_flight == concurrency


def test_first_row_is_sent_alone() -> None:
    journal, batch = build_journal(rows=50)
    seen: list[int] = []
    gateway = ScriptedGateway(latency=0.01)
    gateway.before_answer = lambda _order_id: seen.append(len(gateway.arrived))
    run(build_engine(journal, gateway, Pace(concurrency=16)), batch)
    assert seen[0] == 1


def test_intent_is_durable_before_request_is_sent() -> None:
    journal, batch = build_journal(rows=40)
    gateway = ScriptedGateway()
    intended: set[str] = set()
    watch(
        journal,
        lambda entries: intended.update(entry.fact.order_id for entry in entries if isinstance(entry.fact, Intended)),
    )
    gateway.script = lambda order_id, _times: APPROVED if order_id in intended else pytest.fail("sent before intent")
    run(build_engine(journal, gateway), batch)
    assert len(intended) == 40


def test_stale_request_is_sent_with_new_intent() -> None:
    """The process was frozen, the machine was asleep, or the connection opened slowly."""
    journal, batch = build_journal(rows=3)
    clock_s = [0.0]
    nonces: list[str] = []
    watch(
        journal,
        lambda entries: nonces.extend(entry.fact.nonce for entry in entries if isinstance(entry.fact, Intended)),
    )

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


def test_outcome_shares_commit_with_next_intent() -> None:
    journal, batch = build_journal(rows=10)
    commits: list[list[type]] = []
    watch(journal, lambda entries: commits.append([type(entry.fact) for entry in entries]))
    run(build_engine(journal, ScriptedGateway(latency=0.01), Pace(concurrency=1)), batch)
    assert commits == [[Intended], *[[Concluded, Intended]] * 9, [Concluded]]


class SimultaneousAnswerGateway(ScriptedGateway):
    """Answers all requests in flight at the same moment."""

    async def deliver(self, request: PreparedRequest, may_send: SendGuard) -> Answer:
        assert may_send()
        loop = asyncio.get_running_loop()
        answered = asyncio.Event()
        loop.call_at((loop.time() // 3600 + 1) * 3600, answered.set)
        await answered.wait()
        return await super().deliver(request, lambda: True)


def test_simultaneous_outcomes_share_commit_with_following_intents() -> None:
    journal, batch = build_journal(rows=27)
    commits: list[list[type]] = []
    watch(journal, lambda entries: commits.append([type(entry.fact) for entry in entries]))
    run(build_engine(journal, SimultaneousAnswerGateway(), Pace(concurrency=8)), batch)
    # First one row is in flight, then two. Their answers open the window to its limit, and all rows then move in step.
    assert commits == [
        [Intended],
        [Concluded, Intended, Intended],
        [Concluded, *[Intended] * 3, Concluded, *[Intended] * 5],
        [Concluded, Intended] * 8,
        [Concluded, Intended] * 8,
        [Concluded] * 8,
    ]


def test_row_with_unknown_outcome_is_not_resent() -> None:
    journal, batch = build_journal(rows=5)
    gateway = ScriptedGateway(lambda order_id, _times: LOST if order_id == "PAY-3" else APPROVED)
    run(build_engine(journal, gateway), batch)
    assert states(journal, batch) == {State.PAID: 4, State.IN_DOUBT: 1}
    again = ScriptedGateway()
    run(build_engine(journal, again), batch)
    assert again.arrived == []


def test_provably_unsent_row_is_retried() -> None:
    journal, batch = build_journal(rows=1)
    gateway = ScriptedGateway(lambda _order_id, times: APPROVED if times == TRIES else REFUSED)
    run(build_engine(journal, gateway), batch)
    assert len(gateway.arrived) == TRIES
    (standing,) = journal.rows(batch.number)
    assert (standing.state, standing.attempts) == (State.PAID, TRIES)


def test_unreachable_gateway_stops_run_and_leaves_rows_ready() -> None:
    journal, batch = build_journal(rows=100)
    gateway = ScriptedGateway(lambda _order_id, _times: REFUSED)
    end = run(build_engine(journal, gateway), batch)
    assert states(journal, batch) == {State.READY: 100}
    assert len(gateway.arrived) == TRIES
    assert end.sent == 0
    assert end.stop_reason == "The gateway cannot be reached (connect.refused)."


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(UNTRUSTED, "The certificate is wrong."), (reply("error", http_status=401), "Credentials were refused.")],
)
def test_answer_affecting_all_rows_stops_run(answer: RawReply | TransportFault, reason: str) -> None:
    journal, batch = build_journal(rows=100)
    gateway = ScriptedGateway(lambda _order_id, _times: answer)
    end = run(build_engine(journal, gateway, Pace(concurrency=16)), batch)
    assert (len(gateway.arrived), end.stop_reason) == (1, reason)


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


@pytest.mark.parametrize(("concurrency", "limit"), [(1, 3), (8, 10), (4, 1)])
def test_consecutive_identical_rejections_stop_run(concurrency: int, limit: int) -> None:
    journal, batch = build_journal(rows=200)
    gateway = ScriptedGateway(lambda _order_id, _times: reply("declined"), latency=0.01)
    end = run(build_engine(journal, gateway, Pace(concurrency, stop_after_rejected=limit)), batch)
    row_states = states(journal, batch)
    assert limit <= row_states[State.REJECTED] <= limit + concurrency
    assert row_states[State.READY] == 200 - row_states[State.REJECTED]
    one, many = "1 row was rejected", f"{limit} consecutive rows were rejected for the same reason"
    assert end.stop_reason == f"{one if limit == 1 else many}: declined."


@pytest.mark.parametrize("first", [1, 63, 64, 65, 200, 300])
def test_only_first_due_rows_are_sent(first: int) -> None:
    journal, batch = build_journal(rows=200)
    gateway = ScriptedGateway()
    end = run(build_engine(journal, gateway, Pace(concurrency=4, first=first)), batch)
    assert sorted(gateway.arrived, key=lambda order_id: int(order_id[4:])) == [
        f"PAY-{row}" for row in range(2, 2 + min(first, 200))
    ]
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


def test_drain_finishes_rows_in_flight_only() -> None:
    journal, batch = build_journal(rows=100)
    gateway = ScriptedGateway(latency=0.01)
    engine = build_engine(journal, gateway, Pace(concurrency=4))
    gateway.before_answer = lambda _order_id: engine.drain() if len(gateway.arrived) >= 20 else None
    end = run(engine, batch)
    row_states = states(journal, batch)
    assert end.interrupted
    assert row_states[State.PAID] == len(gateway.arrived) < 30
    assert row_states[State.READY] == 100 - row_states[State.PAID]
    assert State.IN_FLIGHT not in row_states


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
                assert journal.record_evidence([evidence], {"approved": OutcomeKind.PAID}, at=AT) == [
                    Finding.CONTRADICTING
                ]
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


def test_signing_error_ends_run_without_waiting() -> None:
    journal, batch = build_journal(MAX_SIGNED_AHEAD + 200)
    gateway = ScriptedGateway()
    engine = build_engine(journal, gateway)

    async def fail(attempts: Sequence[Attempt]) -> list[PreparedRequest]:
        await asyncio.sleep(0)
        raise InternalError(f"none of {len(attempts)} can be signed")

    engine._prepare = fail
    with asyncio.Runner() as runner:
        end = runner.run(asyncio.wait_for(engine.run(batch.number), timeout=PATIENCE_S))
    assert isinstance(end.failure, InternalError)
    assert (end.sent, gateway.arrived) == (0, [])
    assert {standing.state for standing in journal.rows(batch.number)} == {State.READY}


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
