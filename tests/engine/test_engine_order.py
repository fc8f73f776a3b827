"""The engine besides sending: signing, waiting, recording and reporting."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.core.shown_states import render_record
from paygw_batch.engine import engine as engines
from paygw_batch.engine.engine import MAX_SIGNED_AHEAD, GroupCommit
from paygw_batch.engine.pacing import FIRST_WAIT_S, TRIES, Pace, retry_delay_s
from paygw_batch.errors import InternalError, JournalUnwritable, SigningFailed
from paygw_batch.gateway.message import Attempt, PreparedRequest, RawReply, TransportFault
from paygw_batch.journal.values import DueRow, Entry, MoveResult
from tests.support.inline_journal import RESULTS, InlineJournal, SlowJournal, entry
from tests.support.scripted_scenario import (
    APPROVED,
    REFUSED,
    ScriptedGateway,
    build_engine,
    build_journal,
    prepare,
    reply,
    run,
)


class RecordedProgress:
    """Records the notes and outcomes of a run."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.outcomes: dict[str, OutcomeKind] = {}

    def set_total(self, due: int) -> None:
        del due

    def record_outcome(self, due: DueRow, outcome: Outcome) -> None:
        self.outcomes[due.order_id] = outcome.kind

    def echo(self, sentence: str) -> None:
        self.notes.append(sentence)


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
    states = Counter(standing.state for standing in journal.rows(batch.number))
    assert set(states) <= {State.PAID, State.READY}
    assert states[State.PAID] == end.sent == len(gateway.arrived)
    assert states[State.READY] >= 80 - signed


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
    states = [standing.state for standing in journal.rows(batch.number)]
    assert states == [State.PAID, State.READY, State.READY]


def test_drain_during_signing_ends_run_cleanly() -> None:
    journal, batch = build_journal(rows=2 * MAX_SIGNED_AHEAD)
    gateway = ScriptedGateway()
    engine = build_engine(journal, gateway, Pace(concurrency=1))
    gateway.before_answer = lambda _: engine.drain()
    end = run(engine, batch)
    assert (end.sent, end.interrupted, end.failure) == (1, True, None)


def test_retry_delay_grows_with_each_try(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []

    def wait(number: int, chance: float) -> float:
        waited.append(number)
        return retry_delay_s(number, chance)

    monkeypatch.setattr(engines, "retry_delay_s", wait)
    journal, batch = build_journal(rows=1)
    run(build_engine(journal, ScriptedGateway(lambda _, times: REFUSED if times < TRIES else APPROVED)), batch)
    assert waited == list(range(2, TRIES + 1))
    assert [retry_delay_s(number, 0.5) for number in (2, 3)] == [FIRST_WAIT_S, 4 * FIRST_WAIT_S]


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
    progress = RecordedProgress()
    bare = RawReply(401, (), b"{}")

    def script(order_id: str, _: int) -> RawReply | TransportFault:
        return APPROVED if order_id == "PAY-2" else bare

    engine = build_engine(journal, ScriptedGateway(script), Pace(concurrency=1))
    engine._progress = progress
    end = run(engine, batch)
    assert progress.outcomes == {"PAY-2": OutcomeKind.PAID, "PAY-3": OutcomeKind.REJECTED}
    assert progress.notes == ["Credentials were refused. No new rows are started."]
    assert end.stop_reason == "Credentials were refused."


def test_replies_to_paid_rows_are_not_stored() -> None:
    journal, batch = build_journal(rows=2)
    run(
        build_engine(journal, ScriptedGateway(lambda order_id, _: APPROVED if order_id == "PAY-2" else reply("no"))),
        batch,
    )
    assert list(journal._connection.execute("SELECT instruction, body FROM reply")) == [(2, b'{"status": "no"}')]


def test_simultaneous_entries_share_one_commit() -> None:
    async def story() -> None:
        journal = SlowJournal()
        journal.gate.set()
        committer = GroupCommit(journal.append, on_failure=lambda _: None)
        await asyncio.gather(*(committer.submit(entry(number)) for number in range(100)))
        assert journal.commits == [list(range(100))]

    asyncio.run(story())


def test_rejections_without_reason_stop_run_with_message() -> None:
    journal, batch = build_journal(rows=5)
    gateway = ScriptedGateway(lambda *_: RawReply(429, (), b"{}"))
    end = run(build_engine(journal, gateway, Pace(concurrency=1, stop_after_rejected=2)), batch)
    assert end.stop_reason == "2 consecutive rows were rejected for the same reason: the gateway did not give a reason."


# Group commit: the next commit has all waiting facts, and a failure reaches all of them.
def test_entries_during_commit_share_next_commit() -> None:
    async def story() -> None:
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

    asyncio.run(story())


@pytest.mark.parametrize("facts", [1, 3])
def test_failed_commit_confirms_and_writes_nothing_more(facts: int) -> None:
    async def story() -> None:
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

    asyncio.run(story())


def test_under_pressure_commits_are_small_and_in_order() -> None:
    async def story() -> None:
        journal = SlowJournal()
        journal.gate.set()
        committer = GroupCommit(
            journal.append, lambda _: None, is_under_pressure=lambda: True, max_facts_under_pressure=lambda: 3
        )
        await asyncio.gather(*(committer.submit(entry(number)) for number in range(1, 9)))
        assert journal.commits == [[1, 2, 3], [4, 5, 6], [7, 8]]

    asyncio.run(story())


def test_commit_without_pressure_waits_for_more_entries() -> None:
    async def story() -> None:
        journal = SlowJournal()
        committer = GroupCommit(journal.append, lambda _: None)
        first = committer.submit(entry(1))
        asyncio.get_running_loop().call_later(0.05, journal.gate.set)
        await first
        second = committer.submit(entry(2))
        await asyncio.sleep(0)
        third = committer.submit(entry(3))
        await asyncio.gather(second, third)
        assert journal.commits == [[1], [2, 3]]

    asyncio.run(story())
