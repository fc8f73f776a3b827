"""Shared runs: claims, stops and ends, and the rights of a process while another one sends."""

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import psycopg
import pytest

from paygw_batch.clock import timestamp, utc_now
from paygw_batch.cluster.database_location import DatabaseLocation
from paygw_batch.core.evidence import Finding
from paygw_batch.core.lifecycle import Replaced, Resolution, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import DocumentWithdrawn, JournalError, JournalHeld, JournalUnwritable, StaleRows
from paygw_batch.journal.new_batch import BatchPart, InstructionRows
from paygw_batch.journal.port import EngineJournal
from paygw_batch.journal.postgres.postgres_journal import OfferedRun, WorkerJournal
from paygw_batch.journal.postgres.session import Server, fetch
from paygw_batch.journal.values import DueRow, Entry, KnownRow, Link, MoveResult, NewBatch
from tests.support.journal_rows import (
    AT,
    WORDS,
    build_evidence,
    intent,
    new_instruction,
    open_sheet,
    outcome_of,
    resolved,
    withdrawal,
)
from tests.support.patience import PATIENCE_S, wait_until
from tests.support.postgres_rows import (
    execute_as_owner,
    expire_processes,
    is_blocked,
    open_postgres,
    pay_rows,
    postgres_location,
    read_postgres,
    triggers_off,
    work_on_run,
)
from tests.support.wire_proxy import ProxyFault, WireProxy


@pytest.fixture
def at_database(database: str, folder: Path) -> DatabaseLocation:
    """Return a database journal whose processes report no signs of life during a test."""
    return postgres_location(database, folder, intent_lives_s=600.0)


MISSING_PID = "pid = 999999999"  # a process id that no process of this machine has


@contextmanager
def open_worker(at: DatabaseLocation) -> Iterator[WorkerJournal]:
    with closing(at.open_to_work("a worker")) as journal:
        yield journal


@contextmanager
def joined_run(at: DatabaseLocation) -> Iterator[tuple[WorkerJournal, EngineJournal]]:
    """Let a worker join a run; yield its journal and its engine's journal."""
    with open_worker(at) as journal:
        assert journal.join_run() is not None
        with journal.open_engine_journal() as engine:
            yield journal, engine


def claim(engine: EngineJournal, limit: int) -> list[DueRow]:
    return [*asyncio.run(engine.due(1, limit=limit))]


def append(engine: EngineJournal, *entries: Entry) -> list[MoveResult]:
    return [*asyncio.run(engine.append(entries))]


def put_in_flight(engine: EngineJournal, limit: int = 1) -> list[MoveResult]:
    return append(engine, *map(intent, claim(engine, limit)))


def start_run(at: DatabaseLocation, rows: int = 7, *, batch: str = "b1", after: int = 1) -> int:
    """Open a batch and start a shared run; return the batch's number."""
    with closing(open_postgres(at)) as opener:
        record = open_sheet(opener, batch, [new_instruction(row) for row in range(after + 1, after + 1 + rows)])
        assert opener.start_shared_run(record.number, can_wait=True) is not None
    return record.number


def change_process(at: DatabaseLocation, change: str, journal: WorkerJournal | None = None) -> None:
    """Change columns of a worker's process in the database, or of all processes."""
    of_worker = "" if journal is None else f" WHERE number = {journal.writer.process}"
    with triggers_off(at, "process"):
        execute_as_owner(at, f"UPDATE process SET {change}{of_worker}")  # noqa: S608 - a test's


def states(at: DatabaseLocation) -> list[State]:
    with closing(read_postgres(at)) as journal:
        return [row.state for row in journal.rows(1)]


def test_worker_sends_shared_batch_and_ends_run(at_database: DatabaseLocation) -> None:
    start_run(at_database)
    with open_worker(at_database) as journal:
        assert work_on_run(journal) == [2, 3, 4, 5, 6, 7, 8]
        assert len(journal.runs()) == 1
        assert journal.join_run() is None
        assert journal.runs() == []
        (listed,) = journal.workers()
        assert (listed.rows, listed.batch, listed.is_alive) == (7, None, True)
        assert journal.verify()["facts"] == 15
        assert at_database.dead_workers("2000-01-01T00:00:00Z") == []
        execute_as_owner(at_database, "UPDATE process SET seen_at = seen_at - interval '1 hour' WHERE kind = 'worker'")
        (died,) = at_database.dead_workers("2000-01-01T00:00:00Z")
        assert (died.pid, died.is_alive) == (os.getpid(), False)
        assert at_database.dead_workers(timestamp(utc_now())) == []
    assert at_database.dead_workers("2000-01-01T00:00:00Z") == [], "it said its end after all"


def test_two_workers_claim_different_rows_of_batch(at_database: DatabaseLocation) -> None:
    batch = start_run(at_database)
    with joined_run(at_database) as (first_worker, first), joined_run(at_database) as (second_worker, second):
        sent = list[int]()
        while found := [row for engine in (first, second) for row in asyncio.run(pay_rows(engine, batch, 1))]:
            sent += found
        assert sorted(sent) == [2, 3, 4, 5, 6, 7, 8]
    assert first_worker.sent_rows + second_worker.sent_rows == 7
    assert 0 < first_worker.sent_rows < 7


def test_worker_claims_rows_once_and_reclaims_later(at_database: DatabaseLocation) -> None:
    start_run(at_database)
    with joined_run(at_database) as (journal, engine):
        assert [due.row for due in claim(engine, 3)] == [2, 3, 4]
        change_process(at_database, "seen_at = seen_at - interval '1 hour'", journal)
        assert [due.row for due in claim(engine, 3)] == [5, 6, 7]
        journal.leave_run()
        assert work_on_run(journal) == [2, 3, 4, 5, 6, 7, 8]


def test_second_start_joins_current_run(at_database: DatabaseLocation) -> None:
    with closing(open_postgres(at_database)) as first:
        batch = open_sheet(first, new=7).number
        first.start_shared_run(batch, can_wait=True)
        with closing(open_postgres(at_database)) as second:  # the first process has let go of the lock
            second_run = second.start_shared_run(batch, can_wait=True)
            assert isinstance(second_run, OfferedRun)
    assert execute_as_owner(at_database, "SELECT number, ended_at IS NULL FROM run") == [(second_run.number, True)]
    with open_worker(at_database) as journal:
        assert len(work_on_run(journal)) == 7


def test_new_run_starts_while_previous_run_ends(at_database: DatabaseLocation) -> None:
    """A worker finds nothing due and is about to end the run when rows are released and a run is started."""
    batch = start_run(at_database)
    with closing(open_postgres(at_database)) as opener, ThreadPoolExecutor(1) as threads:
        with psycopg.connect(at_database.server.url) as ending:
            ending.execute("SELECT FROM paygw.run FOR UPDATE")
            ending.execute("UPDATE paygw.run SET ended_at = now()")
            starting = threads.submit(opener.start_shared_run, batch, can_wait=True)
            wait_until(lambda: starting.done() or is_blocked(at_database))
        run = starting.result(PATIENCE_S)
        assert run is not None
        assert not run.read_state().is_finished
    with open_worker(at_database) as journal:
        assert len(work_on_run(journal)) == 7


@pytest.mark.parametrize("end", ["leaves", "signs off", "seen_at = now() - interval '1 h'", MISSING_PID])
def test_claims_of_ended_worker_are_released(at_database: DatabaseLocation, end: str) -> None:
    start_run(at_database)
    with joined_run(at_database) as (first_worker, engine), open_worker(at_database) as second_worker:
        assert [due.row for due in claim(engine, 5)] == [2, 3, 4, 5, 6]
        assert work_on_run(second_worker) == [7, 8]
        assert second_worker.join_run() is None, "the rest is another's"
        assert len(second_worker.runs()) == 1
        if end == "leaves":
            first_worker.leave_run()
        elif end == "signs off":
            first_worker.close()
        else:
            change_process(at_database, end, first_worker)
        assert work_on_run(second_worker) == [2, 3, 4, 5, 6]


def test_rows_with_lost_claim_response_are_sent_later(at_database: DatabaseLocation, proxy: WireProxy) -> None:
    start_run(at_database)
    with open_worker(replace(at_database, server=Server(proxy.url(at_database.server.url)))) as journal:
        proxy.only, proxy.trouble = b"claim_rows", ProxyFault.LOSE_ANSWER
        assert sorted([*work_on_run(journal), *work_on_run(journal)]) == [2, 3, 4, 5, 6, 7, 8]
        assert proxy.trouble is ProxyFault.NONE
        assert journal.join_run() is None
        assert journal.runs() == []


def test_claimed_row_can_be_sent_by_another_worker(at_database: DatabaseLocation) -> None:
    start_run(at_database, 1)
    with joined_run(at_database) as (_, first), joined_run(at_database) as (second_worker, _):
        (due,) = claim(first, 1)
        assert [*second_worker.append([intent(due)])] == [MoveResult.MOVED]
        assert append(first, intent(due)) == [MoveResult.HELD]


def test_batch_is_not_offered_without_live_worker(at_database: DatabaseLocation) -> None:
    batch = start_run(at_database)
    with closing(open_postgres(at_database)) as opener:
        assert opener.start_shared_run(batch) is None
        with open_worker(at_database) as journal:
            assert journal.join_run() is None, "the batch was taken back"
            run = opener.start_shared_run(batch)
            assert run is not None
            assert run.has_workers()
            assert len(work_on_run(journal)) == 7
            assert journal.join_run() is None
            assert run.read_state().is_finished
        assert not run.has_workers()


def test_leaving_run_releases_gate_share(at_database: DatabaseLocation) -> None:
    """A lost message to the gate would otherwise leave it a share that it does not use."""
    start_run(at_database, 1)
    with joined_run(at_database) as (journal, _):
        change_process(at_database, "is_sending = true", journal)
        journal.leave_run()
        assert at_database.limits().workers == []


def test_process_without_lock_cannot_change_run(at_database: DatabaseLocation) -> None:
    with closing(open_postgres(at_database)) as frozen:
        batch = open_sheet(frozen, new=1).number
        expire_processes(at_database.server.url)
        with closing(open_postgres(at_database)) as taker:
            assert taker.start_shared_run(batch, can_wait=True) is not None
            for can_wait in (True, False):
                with pytest.raises(JournalHeld):
                    frozen.start_shared_run(batch, can_wait=can_wait)
        assert execute_as_owner(at_database, "SELECT ended_at IS NULL FROM run") == [(True,)]


def test_rows_of_dead_worker_are_in_doubt(at_database: DatabaseLocation) -> None:
    start_run(at_database)
    with joined_run(at_database) as (dying, engine):
        put_in_flight(engine, 2)
        with open_worker(at_database) as second_worker:
            assert work_on_run(second_worker) == [4, 5, 6, 7, 8], "what a living worker has is left alone"
            assert second_worker.join_run() is None
            assert len(second_worker.runs()) == 1, "somebody is still at it"
            with closing(open_postgres(at_database)) as opener:
                assert opener.mark_interrupted(AT) == 0
                with pytest.raises(StaleRows):
                    opener.settle([resolved(1, 1, Resolution.PAID)])
            assert states(at_database)[:3] == [State.IN_FLIGHT, State.IN_FLIGHT, State.PAID]
            change_process(at_database, "ended_at = now()", dying)
            assert work_on_run(second_worker) == []
            assert states(at_database) == [State.IN_DOUBT, State.IN_DOUBT, *[State.PAID] * 5]
            assert second_worker.join_run() is None
            assert second_worker.runs() == []


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ("seen_at = now() - interval '1 h'", State.IN_DOUBT),
        ("seen_at = now() - interval '20 s'", State.IN_FLIGHT),
        ("ended_at = now()", State.IN_DOUBT),
        (MISSING_PID, State.IN_DOUBT),
        ("run = run", State.IN_FLIGHT),
    ],
)
def test_only_stopped_workers_rows_are_in_doubt(at_database: DatabaseLocation, change: str, state: State) -> None:
    start_run(at_database, 1)
    with joined_run(at_database) as (journal, engine):
        put_in_flight(engine)
        change_process(at_database, change, journal)
        with closing(open_postgres(at_database)) as opener:
            assert opener.mark_interrupted(AT) == (state is State.IN_DOUBT)
        assert states(at_database) == [state]


def test_each_commit_updates_heartbeat(at_database: DatabaseLocation) -> None:
    """A failover may lose signs of life, which must not make a young intent look old."""
    start_run(at_database, 2)
    with joined_run(at_database) as (journal, engine):
        for due in claim(engine, 2):
            change_process(at_database, "seen_at = now() - interval '1 h'", journal)
            append(engine, intent(due))
            age = "SELECT now() - seen_at < interval '10 s' FROM process WHERE kind = 'worker'"
            assert execute_as_owner(at_database, age) == [(True,)]


def test_row_settled_after_claim_is_skipped(at_database: DatabaseLocation) -> None:
    start_run(at_database, 2)
    with joined_run(at_database) as (journal, engine):
        found = claim(engine, 2)
        execute_as_owner(at_database, "UPDATE state SET state = 'paid' WHERE instruction = 1")
        assert append(engine, *map(intent, found)) == [MoveResult.HELD, MoveResult.MOVED]
        append(engine, outcome_of(2, 1, OutcomeKind.NOT_SENT))
    assert journal.sent_rows == 0


def test_stop_reaches_every_worker_before_next_row(at_database: DatabaseLocation) -> None:
    batch = start_run(at_database)
    with joined_run(at_database) as (first_worker, first), joined_run(at_database) as (second_worker, second):
        (first_row,), (second_row,) = claim(first, 1), claim(second, 1)
        assert append(second, intent(second_row)) == [MoveResult.MOVED]
        (run,) = second_worker.runs()
        second_worker.stop_run(run, "the breaker")
        assert append(first, intent(first_row)) == [MoveResult.HELD]
        with (
            closing(open_postgres(at_database)) as opener,
            pytest.raises(JournalHeld, match="have not finished stopping"),
        ):
            opener.start_shared_run(batch, can_wait=True)
        paid = outcome_of(second_row.number, 1, OutcomeKind.PAID)
        assert append(second, paid) == [MoveResult.MOVED], "what is in flight is written down"
        (next_there,) = claim(second, 1)
        assert not claim(first, 1), "what is left would be signed for nothing"
        assert append(second, intent(next_there)) == [MoveResult.HELD]
        assert asyncio.run(pay_rows(second, batch)) == []
        for journal in (first_worker, second_worker):
            journal.leave_run()
        assert first_worker.join_run() is None
        assert first_worker.runs() == []
        assert execute_as_owner(at_database, "SELECT stop_reason FROM run") == [("the breaker",)]
        with closing(open_postgres(at_database)) as opener:
            assert opener.start_shared_run(batch) is not None
        assert len(work_on_run(first_worker)) == 6


def test_follower_sees_end_of_run_without_workers(at_database: DatabaseLocation) -> None:
    with closing(open_postgres(at_database)) as opener:
        run = opener.start_shared_run(open_sheet(opener).number, can_wait=True)
        assert run is not None
        run.stop("an operator")
        run.stop("another reason")
        assert (run.read_state().is_finished, run.read_state().stop_reason) == (True, "an operator")


def test_worker_sends_nothing_for_ended_run(at_database: DatabaseLocation) -> None:
    batch = start_run(at_database)
    with joined_run(at_database) as (_, engine):
        execute_as_owner(at_database, "UPDATE run SET ended_at = now()")
        assert asyncio.run(pay_rows(engine, batch)) == []
    for change in ("ended_at = NULL", "stop_reason = 'x'"):
        with pytest.raises(psycopg.errors.RaiseException, match="never changed"):
            execute_as_owner(at_database, f"UPDATE run SET {change}")  # noqa: S608 - a test's
    assert set(states(at_database)) == {State.READY}


def test_shared_rows_of_two_runs_are_sent_once(at_database: DatabaseLocation) -> None:
    start_run(at_database, 4)
    with closing(open_postgres(at_database)) as opener:
        known = [KnownRow(row, row - 1, State.READY) for row in (2, 3, 4, 5)]
        opener.start_shared_run(open_sheet(opener, "b2", [new_instruction(9)], known=known).number, can_wait=True)
    with open_worker(at_database) as journal:
        assert [work_on_run(journal), work_on_run(journal)] == [[2, 3, 4, 5], [9]]
        assert journal.join_run() is None
        assert journal.runs() == []


def test_worker_records_clock_only_with_free_lock(at_database: DatabaseLocation) -> None:
    with open_worker(at_database) as journal:
        with closing(open_postgres(at_database)), pytest.raises(JournalHeld):
            journal.settle([])
        journal.settle([])
        with closing(open_postgres(at_database)) as opener:
            open_sheet(opener)


def test_evidence_arriving_during_claim_holds_row(at_database: DatabaseLocation) -> None:
    """The evidence fits a row of either operation. While it is recorded, a worker commits an intent for one row."""
    batch = start_run(at_database, 1)
    with joined_run(at_database) as (journal, engine):
        put_in_flight(engine)
        append(engine, outcome_of(1, 1, OutcomeKind.REJECTED, http_status=200))
        journal.leave_run()
    has_begun, go_on, evidence = threading.Event(), threading.Event(), replace(build_evidence(1), arrival=None)
    with closing(open_postgres(at_database)) as opener:
        assert opener.release(batch, None, suffix=False, by="amina", at=AT) == 1
        open_sheet(opener, "p1", 1, operation="payin")
        assert opener.start_shared_run(batch, can_wait=True) is not None
        commit = opener.writer._commit_decisions

        def commit_late(before: Link) -> None:
            has_begun.set()
            assert go_on.wait(PATIENCE_S)
            commit(before)

        late = patch.object(opener.writer, "_commit_decisions", commit_late)  # between the evidence and its commit
        with joined_run(at_database) as (_, engine), late, ThreadPoolExecutor(2) as threads:
            (due,) = claim(engine, 1)
            opener.writer.acquire_decision_lock()
            taking = threads.submit(opener.record_evidence, [evidence], WORDS, at=AT)
            assert has_begun.wait(PATIENCE_S)
            sending = threads.submit(append, engine, intent(due))
            wait_until(lambda: sending.done() or is_blocked(at_database))
            go_on.set()
            assert list(taking.result(PATIENCE_S)) == [Finding.AMBIGUOUS]
            assert sending.result(PATIENCE_S) == [MoveResult.HELD]
    assert states(at_database) == [State.READY]


def test_frozen_worker_transaction_has_no_lock(at_database: DatabaseLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{DatabaseLocation.__module__}.WORKER_IDLE_LIMIT", "300ms")
    start_run(at_database)
    with open_worker(at_database) as frozen:
        fetch(frozen._session.connection, "BEGIN")
        fetch(frozen._session.connection, "SELECT FROM paygw.desk FOR UPDATE")
        wait_until(lambda: execute_as_owner(at_database, "SELECT 1 FROM desk FOR UPDATE SKIP LOCKED"))
        open_postgres(at_database).close()
        assert frozen.join_run(frozen.runs()) is not None, "it goes on by a new connection"


@pytest.mark.parametrize("end", ["intent_lives_s = 0.000001", MISSING_PID])
def test_process_with_lost_lock_writes_nothing(at_database: DatabaseLocation, end: str) -> None:
    with closing(open_postgres(at_database)) as journal:
        change_process(at_database, end)
        with closing(open_postgres(at_database)) as taker:
            open_sheet(taker, new=1)
            with pytest.raises(JournalError, match="taken over"):
                journal.withdraw(withdrawal())
            with pytest.raises(psycopg.Error, match="another process has the desk"):
                journal.writer.record([Entry(1, 0, Replaced("b2", 2), AT)])
            with pytest.raises(JournalHeld):
                journal.writer.acquire_decision_lock()
        journal.writer.acquire_decision_lock()
        journal.withdraw(withdrawal())


@pytest.mark.parametrize("elsewhere", ["host = 'another'", "boot = 'another'"])
def test_process_on_another_machine_counts_as_alive(at_database: DatabaseLocation, elsewhere: str) -> None:
    with closing(open_postgres(at_database)) as journal:
        change_process(at_database, f"{MISSING_PID}, {elsewhere}")
        with pytest.raises(JournalHeld, match="process 999999999"):
            open_postgres(at_database)
        journal.withdraw(withdrawal())


def test_only_first_of_two_processes_gets_lock(at_database: DatabaseLocation) -> None:
    numbers = []
    for _ in range(3):
        with closing(open_postgres(at_database)) as journal:
            numbers.append(journal.writer.process)
    change_process(at_database, "ended_at = NULL, seen_at = now()")
    holder, first, second = numbers
    take = "SELECT paygw.take_desk(%s, '{}')"
    with psycopg.connect(at_database.server.url, options="-c search_path=paygw") as connection:
        assert execute_as_owner(at_database, take % holder) == [(True,)]
        execute_as_owner(at_database, f"UPDATE process SET seen_at = now() - interval '1 h' WHERE number = {holder}")  # noqa: S608
        assert connection.execute((take % first).encode()).fetchall() == [(True,)]
        assert execute_as_owner(at_database, take % second) == [(False,)], "the other one is about to have it"
        connection.commit()
        assert execute_as_owner(at_database, take % second, "SELECT process FROM desk") == [(first,)]
        assert execute_as_owner(at_database, take % second) == [(False,)]


def test_long_transaction_keeps_lock(at_database: DatabaseLocation) -> None:
    """From its first fact on, signs of life are blocked, because they write the same line of the process."""
    with closing(open_postgres(replace(at_database, intent_lives_s=0.5))) as journal:
        is_alive = f"SELECT is_alive({journal.writer.process})"
        with journal.writer.decision_transaction():
            journal._evidence.record_notes(journal._record, withdrawal())
            wait_until(lambda: execute_as_owner(at_database, is_alive) == [(False,)])
            with pytest.raises(JournalHeld, match=r"process \d+ on .*: a test"):
                open_postgres(at_database)
        journal.withdraw(withdrawal("2" * 64))
        assert len(journal.withdrawals()) == 2


def test_withdrawal_does_not_wait_for_lock(at_database: DatabaseLocation) -> None:
    """A person withdraws a plan while its batch is being opened by a process that keeps the lock."""
    may_continue, has_begun = threading.Event(), threading.Event()

    def parts() -> Iterator[BatchPart]:
        yield BatchPart((b"sheet",), InstructionRows((new_instruction(2),)))
        has_begun.set()
        assert may_continue.wait(30)

    with closing(open_postgres(at_database)) as first, ThreadPoolExecutor(1) as threads:
        batch = NewBatch("b1", "payout", "s.csv", "0" * 64, 1, 0, plan_sha256=withdrawal().sha256)
        opening = threads.submit(first.open_batch, batch, parts=parts(), known=[], amendments=[], at=AT)
        try:
            assert has_begun.wait(30)
            expire_processes(at_database.server.url)
            with pytest.raises(JournalHeld):
                open_postgres(at_database)
            at_database.withdraw(withdrawal())
        finally:
            may_continue.set()
        with pytest.raises(DocumentWithdrawn):
            opening.result(30)
        open_postgres(at_database).close()
    with closing(read_postgres(at_database)) as reader:
        assert (list(reader.batches()), reader.verify()["facts"]) == ([], 1)


@pytest.mark.parametrize("trouble", [ProxyFault.LOSE_ANSWER, ProxyFault.LOSE_REQUEST])
def test_unanswered_decision_commits_once(at_database: DatabaseLocation, proxy: WireProxy, trouble: ProxyFault) -> None:
    server = Server(proxy.url(at_database.server.url), commit_limit_s=0.5)
    is_committed = trouble is ProxyFault.LOSE_ANSWER
    with closing(open_postgres(replace(at_database, server=server))) as journal:
        proxy.only, proxy.trouble = b"COMMIT", trouble
        for number in (1, 2):
            with nullcontext() if is_committed else pytest.raises(JournalUnwritable):
                open_sheet(journal, f"b{number}", [new_instruction(number)])
        assert proxy.trouble is ProxyFault.NONE
    with closing(open_postgres(at_database)) as journal:
        assert journal.verify()["batches"] == (2 if is_committed else 0)
        open_sheet(journal, "b3", [new_instruction(10)])
