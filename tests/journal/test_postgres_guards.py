"""Faults that only a journal in PostgreSQL meets: other processes, lost answers, older copies, changed tables."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from unittest.mock import Mock, patch

import psycopg
import pytest

from paygw_batch.clock import elapsed_s
from paygw_batch.cluster.database_location import DatabaseLocation
from paygw_batch.core.evidence import Finding
from paygw_batch.core.lifecycle import Replaced, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import (
    InternalError,
    JournalCorrupt,
    JournalError,
    JournalHeld,
    JournalTooOld,
    JournalUnwritable,
    OpenRollCall,
)
from paygw_batch.journal.postgres import fact_writer, hosts, session
from paygw_batch.journal.postgres.fact_writer import FactWriter, StagedFacts, stage_facts
from paygw_batch.journal.postgres.guarded_session import GuardedSession
from paygw_batch.journal.postgres.postgres_journal import PostgresJournal
from paygw_batch.journal.postgres.session import Row, Server
from paygw_batch.journal.values import Amendment, Entry, Link, MoveResult, Withdrawal
from paygw_batch.opening.gateway_access import system_runtime
from tests.support.journal_rows import (
    AT,
    WORDS,
    arrival,
    build_evidence,
    due_rows,
    intent,
    new_instruction,
    open_sheet,
    outcome_of,
    send,
    states,
    withdrawal,
)
from tests.support.patience import PATIENCE_S, wait_until
from tests.support.postgres_rows import (
    execute_as_owner,
    expire_processes,
    is_blocked,
    make_postgres,
    open_postgres,
    read_postgres,
    triggers_off,
)
from tests.support.postgres_server import PostgresServer
from tests.support.wire_proxy import ProxyFault, WireProxy


@pytest.fixture
def journal(at_database: DatabaseLocation) -> Iterator[PostgresJournal]:
    """Yield an open journal with a batch of two rows."""
    with closing(open_postgres(at_database)) as opened:
        open_sheet(opened, new=2)
        yield opened


def test_frozen_run_records_only_replies(at_database: DatabaseLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fact_writer, "_CHUNK_SIZE", 1)  # each row is put in doubt by a commit of its own
    frozen = open_postgres(at_database)
    open_sheet(frozen, new=3)
    first, second, third = due_rows(frozen, 1)
    frozen.append([intent(first), intent(second)])
    expire_processes(at_database.server.url)
    with closing(open_postgres(at_database)) as taker:
        assert taker.mark_interrupted(AT) == 2
        assert states(taker) == [State.IN_DOUBT, State.IN_DOUBT, State.READY]
        send(taker, 1, OutcomeKind.PAID)
        # It thaws. The row that it was about to send stays in its state, and the gateway's answer is not lost.
        results = frozen.append([outcome_of(first.number, 1, OutcomeKind.PAID), intent(third)])
        assert list(results) == [MoveResult.MOVED, MoveResult.HELD]
        assert states(taker) == [State.PAID, State.IN_DOUBT, State.PAID]
        with pytest.raises(JournalError, match="taken over"):
            open_sheet(frozen, "b2", [new_instruction(2, "X")])
        frozen.close()
        assert taker.verify()["facts"] == taker.head().seq == 8


def test_request_with_old_intent_is_not_sent(at_database: DatabaseLocation) -> None:
    frozen = open_postgres(replace(at_database, intent_lives_s=600.0))
    with closing(frozen), frozen.open_engine_journal() as engine:
        assert engine.may_send(0.0)
        assert engine.may_send(299.0)
        assert not engine.may_send(300.0), "from twice that age on its row may be in doubt"


def test_age_of_intent_includes_machine_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "clock_gettime", clock := Mock(return_value=7.0))
    assert (elapsed_s(), system_runtime().elapsed_s) == (7.0, elapsed_s)
    clock.assert_called_once_with(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@pytest.mark.parametrize("facts", [1, 2])
def test_postgres_process_stops_writing_after_failed_commit(journal: PostgresJournal, facts: int) -> None:
    due = due_rows(journal, 1)
    with journal.open_engine_journal() as engine:
        with patch.object(FactWriter, "_commit", side_effect=psycopg.errors.DiskFull), pytest.raises(JournalUnwritable):
            journal.append([intent(row) for row in due[:facts]])
        assert not engine.may_send(0.0)
        for write in (lambda: journal.append([intent(due[1])]), lambda: journal.mark_interrupted(AT)):
            with pytest.raises(JournalUnwritable):
                write()
    assert states(journal) == [State.READY] * 2


def test_live_process_keeps_its_rows(journal: PostgresJournal, at_database: DatabaseLocation) -> None:
    first, second = due_rows(journal, 1)
    journal.append([intent(first)])
    journal.writer.release_decision_lock()
    with closing(open_postgres(at_database)) as other:
        assert other.mark_interrupted(AT) == 0
        assert states(other) == [State.IN_FLIGHT, State.READY]
        assert [*other.append([intent(first), intent(second)])] == [MoveResult.NOT_MOVED, MoveResult.MOVED]
        with pytest.raises(InternalError, match="another process sent"):
            other.append([outcome_of(1, 1, OutcomeKind.NOT_SENT)])


@pytest.mark.parametrize("trouble", [ProxyFault.LOSE_ANSWER, ProxyFault.LOSE_REQUEST, ProxyFault.SILENCE])
def test_unanswered_commit_applies_once(at_database: DatabaseLocation, proxy: WireProxy, trouble: ProxyFault) -> None:
    server = Server(proxy.url(at_database.server.url), commit_limit_s=0.5)
    with closing(open_postgres(replace(at_database, server=server))) as journal:
        open_sheet(journal, new=2)
        first, second = due_rows(journal, 1)
        journal.append([intent(first)])
        proxy.trouble = trouble
        assert [*journal.append([outcome_of(1, 1, OutcomeKind.PAID)])] == [MoveResult.MOVED]
        assert [*journal.append([intent(second)])] == [MoveResult.MOVED]
        assert states(journal) == [State.PAID, State.IN_FLIGHT]
        assert journal.verify()["facts"] == 4


def test_late_answer_leaves_row_in_doubt(
    at_database: DatabaseLocation, proxy: WireProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit succeeded, but its answer is looked up so late that the row is in doubt, by the age of its intent."""
    through = replace(at_database, server=Server(proxy.url(at_database.server.url)))
    reconnect = GuardedSession.reconnect

    def reconnect_slowly(guarded: GuardedSession) -> None:
        expire_processes(at_database.server.url)
        with closing(open_postgres(at_database)) as taker:
            assert taker.mark_interrupted(AT) == 1
        reconnect(guarded)

    with closing(open_postgres(through)) as journal:
        open_sheet(journal, new=1)
        (due,) = due_rows(journal, 1)
        monkeypatch.setattr(GuardedSession, "reconnect", reconnect_slowly)
        proxy.trouble = ProxyFault.LOSE_ANSWER
        assert list(journal.writer.append([intent(due)])) == [MoveResult.MOVED]
        assert states(journal) == [State.IN_DOUBT]
        assert not journal.writer.may_send(at_database.intent_lives_s)
        late = outcome_of(due.number, 1, OutcomeKind.NOT_SENT, cause="intent.stale")
        assert list(journal.append([late])) == [MoveResult.NOT_MOVED]
        assert states(journal) == [State.IN_DOUBT]


def test_late_answered_commit_is_applied_once(at_database: DatabaseLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is lost, and the call still waits for a lock while it is looked up."""
    call = FactWriter._add_facts
    calls: list[Future[list[Row]]] = []

    def lose_answer(writer: FactWriter, staged: StagedFacts) -> list[Row]:
        if calls:
            return call(writer, staged)
        late.execute("SET search_path = paygw")
        calls.append(threads.submit(session.fetch, late, fact_writer.COMMIT_FACTS, (writer.process, *staged.values)))
        wait_until(lambda: is_blocked(at_database), "the call does not wait")
        writer._guarded.connection.close()
        threading.Timer(0.3, locking.rollback).start()
        raise psycopg.OperationalError("the answer is lost")

    with (
        closing(open_postgres(at_database)) as journal,
        psycopg.connect(at_database.server.url) as locking,
        psycopg.connect(at_database.server.url, autocommit=True) as late,
        ThreadPoolExecutor(1) as threads,
    ):
        open_sheet(journal, new=1)
        (due,) = due_rows(journal, 1)
        locking.execute("SELECT FROM paygw.state FOR UPDATE")
        monkeypatch.setattr(FactWriter, "_add_facts", lose_answer)
        assert [*journal.append([intent(due)])] == [MoveResult.MOVED]
        assert len(calls[0].result(PATIENCE_S)) == 1
        assert states(journal) == [State.IN_FLIGHT]
        assert journal.verify()["facts"] == 2


@pytest.mark.parametrize("is_copied", [False, True])
def test_commit_is_refused_by_promoted_standby(
    at_database: DatabaseLocation,
    proxy: WireProxy,
    postgres_server: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
    is_copied: bool,
) -> None:
    """A standby took over that does not have the process, or has another one with its number."""
    with closing(open_postgres(at_database)) as journal:
        open_sheet(journal, new=1)
    name, reconnect = at_database.server.url.rpartition("/")[2], GuardedSession.reconnect
    standby = postgres_server.new_database(name)
    journal = open_postgres(replace(at_database, server=Server(proxy.url(at_database.server.url))))

    def take_over(guarded: GuardedSession) -> None:
        postgres_server.drop_database(name)
        postgres_server.execute(f"ALTER DATABASE {standby} RENAME TO {name}")
        if is_copied:
            with closing(open_postgres(at_database)) as other:
                assert other.writer.process == journal.writer.process
        reconnect(guarded)

    with closing(journal), monkeypatch.context() as lose_answer:
        (due,) = due_rows(journal, 1)
        lose_answer.setattr(GuardedSession, "reconnect", take_over)
        proxy.trouble = ProxyFault.LOSE_ANSWER
        with pytest.raises(JournalTooOld, match="commits from this process are missing"):
            journal.append([intent(due)])
        assert not journal.writer.may_send(0.0)
        with pytest.raises(JournalUnwritable):
            journal.append([intent(due)])
    with closing(open_postgres(at_database)) as journal:
        assert states(journal) == [State.READY]


def test_unanswered_read_ends_after_limit(
    at_database: DatabaseLocation, proxy: WireProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that follows workers reads for hours. Without the limit it would hang for ever."""
    monkeypatch.setattr(session, "_SILENCE_LIMIT_S", 0.5)
    with closing(open_postgres(replace(at_database, server=Server(proxy.url(at_database.server.url))))) as journal:
        proxy.only, proxy.trouble = b"batch", ProxyFault.SILENCE
        with pytest.raises(JournalError, match="cannot be used"):
            journal.batches()
    assert proxy.trouble is ProxyFault.NONE


def test_global_lock_is_free_after_lost_response(at_database: DatabaseLocation, proxy: WireProxy) -> None:
    server = Server(proxy.url(at_database.server.url), commit_limit_s=0.5)
    proxy.only, proxy.trouble = b"pg_try_advisory_lock", ProxyFault.SILENCE
    with (
        pytest.raises(JournalError, match="cannot be used"),
        replace(at_database, server=server).run_exclusively("this"),
    ):
        pass
    assert proxy.trouble is ProxyFault.NONE

    def is_free() -> bool:
        with suppress(JournalHeld), at_database.run_exclusively("this"):
            return True
        return False

    wait_until(is_free)


def test_session_sets_keepalives_against_vanished_host(at_database: DatabaseLocation) -> None:
    """Without them, the server would keep the locks of that host for two hours."""
    with closing(session.connect(at_database.server, write=False)) as connection:
        names = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count")
        assert [session.fetch(connection, f"SHOW {name}") for name in names] == [[("10",)], [("5",)], [("3",)]]


def test_process_updates_heartbeat_until_end(at_database: DatabaseLocation) -> None:
    query = "SELECT extract(epoch FROM now() - seen_at) < 2 FROM process WHERE number = %s"
    with closing(open_postgres(replace(at_database, intent_lives_s=0.6))) as journal:
        number = journal.writer.process
        execute_as_owner(at_database, "UPDATE process SET seen_at = now() - interval '1 h'")
        wait_until(lambda: session.fetch(journal._session.connection, query, (number,)) == [(True,)])
    with closing(read_postgres(at_database)) as reader:
        ended = "SELECT ended_at IS NOT NULL FROM process WHERE number = %s"
        assert session.fetch(reader._session.connection, ended, (number,)) == [(True,)]


Write = Callable[[DatabaseLocation], object]


def by_run(write: Callable[[PostgresJournal], object]) -> Write:
    def open_and_write(location: DatabaseLocation) -> None:
        with closing(open_postgres(location)) as journal:
            write(journal)

    return open_and_write


HOLD = replace(build_evidence(1), arrival=None)
NOTES: list[Write] = [
    by_run(lambda journal: journal.record_evidence([HOLD], WORDS, at=AT)),
    by_run(lambda journal: journal.withdraw(withdrawal())),
    lambda location: location.withdraw(withdrawal()),
]


@pytest.mark.parametrize("write", [*NOTES, by_run(lambda journal: journal.append([intent(due_rows(journal, 1)[0])]))])
def test_restored_database_is_refused_until_loss_accepted(
    journal: PostgresJournal, at_database: DatabaseLocation, postgres_server: PostgresServer, write: Write
) -> None:
    journal.close()
    name = at_database.server.url.rpartition("/")[2]
    backup = postgres_server.new_database(name)
    write(at_database)
    postgres_server.drop_database(name)
    postgres_server.execute(f"ALTER DATABASE {backup} RENAME TO {name}")
    for opens in (open_postgres, read_postgres):
        with pytest.raises(JournalTooOld, match="older copy"):
            opens(at_database)
    assert at_database.accept_loss(by="amina").missing == []
    open_postgres(at_database).close()


@pytest.mark.parametrize("write", NOTES)
def test_failed_recording_keeps_journal(journal: PostgresJournal, at_database: DatabaseLocation, write: Write) -> None:
    journal.close()
    fail = Mock(side_effect=OSError(5, "Input/output error"))
    logs_notes = patch("paygw_batch.cluster.database_location.log_concurrent_fact", fail)
    with logs_notes, patch.object(hosts.ProcessSentLog, "log_commit", fail), pytest.raises(JournalUnwritable):
        write(at_database)
    open_postgres(at_database).close()
    write(at_database)
    with closing(read_postgres(at_database)) as reader:
        reader.verify()
        assert [*reader.holds(1)] == ([2] if write is NOTES[0] else [])


@pytest.mark.parametrize(("deadlocks", "calls"), [(2, 3), (1_000, 11)])
def test_commit_after_deadlocks_is_retried_within_limit(
    journal: PostgresJournal, monkeypatch: pytest.MonkeyPatch, deadlocks: int, calls: int
) -> None:
    called, call = [], FactWriter._add_facts

    def raise_deadlock(writer: FactWriter, staged: StagedFacts) -> list[Row]:
        called.append(staged)
        if len(called) <= deadlocks:
            raise psycopg.errors.DeadlockDetected
        return call(writer, staged)

    monkeypatch.setattr(fact_writer, "_DEADLOCK_PAUSE_S", 0)
    monkeypatch.setattr(FactWriter, "_add_facts", raise_deadlock)
    with nullcontext() if calls > deadlocks else pytest.raises(JournalUnwritable):
        journal.append([intent(due_rows(journal, 1)[0])])
    assert len(called) == calls


def test_servers_on_different_ports_are_different_places() -> None:
    one, other = (Server(f"postgresql://pay:secret@db.example:{port}/paygw").location for port in (5432, 5433))
    assert (one, other) == ("paygw on db.example", "paygw on db.example:5433")


def test_next_commit_detects_restored_database(journal: PostgresJournal, at_database: DatabaseLocation) -> None:
    first, second = due_rows(journal, 1)
    journal.append([intent(first)])
    with triggers_off(at_database, "process"):
        execute_as_owner(at_database, "UPDATE process SET head_seq = 0")
    for error in (JournalTooOld, JournalUnwritable):
        with pytest.raises(error):
            journal.append([intent(second)])


def test_replaced_postgres_journal_is_refused(at_database: DatabaseLocation, postgres_server: PostgresServer) -> None:
    open_postgres(at_database).close()
    name = at_database.server.url.rpartition("/")[2]
    postgres_server.drop_database(name)
    postgres_server.execute(f"CREATE DATABASE {name}")
    with pytest.raises(JournalError, match="already has a journal"):
        make_postgres(at_database)
    make_postgres(replace(at_database, known_dir=at_database.known_dir / "of another user"))
    with pytest.raises(JournalTooOld, match="This is not the journal"):
        open_postgres(at_database)


@pytest.mark.parametrize("role", ["origin", "replica"])
def test_facts_are_never_changed_or_removed(journal: PostgresJournal, at_database: DatabaseLocation, role: str) -> None:
    send(journal, 1, OutcomeKind.PAID)
    journal.append([outcome_of(1, 1, OutcomeKind.REJECTED, message="a late word")])
    deleted = ["fact", "instruction", "batch", "page", "process", "desk", "state", "said", "move", "contradiction"]
    tried = [f"TRUNCATE {table} CASCADE" for table in (*deleted, "known", "identity", "migration")]
    tried += [f"DELETE FROM {table}" for table in (*deleted, "order_id")]  # noqa: S608 - written above
    tried += ["UPDATE fact SET details = '{}'", "UPDATE said SET text = 'mine'", "UPDATE batch SET rows = 9"]
    tried += ["UPDATE contradiction SET state = 'ready'", "UPDATE move SET after = 'ready'"]
    tried += ["UPDATE instruction SET payee = 'me'", "UPDATE process SET head_seq = 0"]
    tried += ["UPDATE process SET nonce = '\\x00000000000000000000000000000000'"]
    for statement in tried:
        with pytest.raises(psycopg.errors.RaiseException, match="never changed"):
            execute_as_owner(at_database, f"SET session_replication_role = {role}", statement)


COPIED = """INSERT INTO process
        (number, host, boot, pid, command, kind, intent_lives_s, nonce, head_seq, head_hash, head_at)
    SELECT 99, host, boot, pid, command, kind, intent_lives_s, nonce, head_seq, head_hash, head_at FROM process"""


@pytest.mark.share(6)
@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("UPDATE fact SET cause = 'x' WHERE kind = 'paid'", "or the one before it was changed"),
        ("DELETE FROM fact WHERE kind = 'paid'", "Fact 4 is missing"),
        ("DELETE FROM fact WHERE kind = 'rejected'", "does not end where"),
        ("UPDATE state SET state = 'rejected'", "does not match its facts"),
        ("UPDATE state SET minor = minor + 1 WHERE instruction = 1", "does not match its facts"),
        ("UPDATE state SET first_sent = NULL", "does not match its facts"),
        ("DELETE FROM state WHERE instruction = 1", "does not match its facts"),
        ("UPDATE state SET currency = 'UGX' WHERE instruction = 2", r"Instruction 2 .* does not"),
        ("UPDATE state SET country = 'UG' WHERE instruction = 2", r"Instruction 2 .* does not"),
        ("UPDATE said SET text = 'mine'", "Personal data in fact .* was changed"),
        ("DELETE FROM said", "Personal data in fact .* was removed"),
        ("UPDATE move SET after = 'ready' WHERE kind = 'unknown'", "journal.s state machine was altered"),
        ("INSERT INTO contradiction VALUES (2, 'ready')", "does not fit the state of instruction"),
        ("DELETE FROM contradiction", "does not fit the state of instruction 1"),
        ("UPDATE contradiction SET state = 'rejected'", "does not fit the state of instruction 1"),
        ("INSERT INTO contradiction VALUES (999999, 'ready')", "of table contradiction"),
        ("INSERT INTO said VALUES (999999, decode(repeat('00', 16), 'hex'), 'x')", "of table said"),
        ("INSERT INTO reply VALUES (999999, 1, '', '')", "of table reply"),
        ("DELETE FROM process", "facts belong to process 1, which the journal does not have"),
        ("UPDATE instruction SET payee = 'me'", "An instruction of batch number 1 was changed"),
        ("UPDATE batch SET sheet_name = 'x'", "sheet_name differs"),
        ("UPDATE process SET head_seq = 1", "does not end where"),
        ("UPDATE process SET head_hash = sha256('x')", "does not end where"),
        ("UPDATE process SET nonce = substr(sha256('x'), 1, 16)", "or the one before it was changed"),
        ("UPDATE state SET batch = 2 WHERE instruction = 2", r"Instruction 2 .* does not"),
        ("UPDATE fact SET process = 99", "The chain of process 1 does not end where"),
        (COPIED, "The chain of process 99 does not end where"),
        ("UPDATE order_id SET order_id = 'x' WHERE instruction = 1", "order ids of instruction 1"),
        ("UPDATE payee_words SET words = ''", "index of payees"),
        ("INSERT INTO reply VALUES (2, 1, '', '')", "stored reply of fact 2 was changed"),
        ("INSERT INTO state (instruction, batch, country, currency, minor) VALUES (9, 1, 'KE', 'K', 5)", "table state"),
    ],
)
def test_verify_finds_edit(journal: PostgresJournal, at_database: DatabaseLocation, statement: str, found: str) -> None:
    send(journal, 1, OutcomeKind.PAID)
    journal.append([outcome_of(1, 1, OutcomeKind.REJECTED, message="a late word")])
    journal.close()
    elsewhere = replace(at_database, known_dir=at_database.known_dir / "of another host")
    with triggers_off(at_database, statement.split()[1 if statement.startswith("UPDATE") else 2]):
        execute_as_owner(at_database, statement)
        with closing(read_postgres(elsewhere)) as reader, pytest.raises(JournalCorrupt, match="triggers of its tables"):
            reader.verify()
    with closing(read_postgres(elsewhere)) as reader, pytest.raises(JournalCorrupt, match=found):
        reader.verify()


def test_chain_copied_to_another_process_is_detected(at_database: DatabaseLocation) -> None:
    at_database.withdraw(withdrawal())
    facts = "INSERT INTO fact (process, seq, at, kind, details, hash) SELECT 99, seq, at, kind, details, hash FROM fact"
    for copied in (COPIED, facts):
        execute_as_owner(at_database, copied)
    with closing(read_postgres(at_database)) as journal, pytest.raises(JournalCorrupt, match=r"Process 99: .* changed"):
        journal.verify()


def test_unwritable_sent_log_ends_postgres_run(journal: PostgresJournal, at_database: DatabaseLocation) -> None:
    first, second = due_rows(journal, 1)
    full_disk = patch("paygw_batch.journal.sent_log.os.pwrite", side_effect=OSError(28, "No space left on device"))
    with full_disk, pytest.raises(JournalUnwritable, match="No space left"):
        journal.append([intent(first)])
    with pytest.raises(JournalUnwritable):
        journal.append([intent(second)])
    journal.close()
    with closing(open_postgres(at_database)) as opened:
        assert opened.mark_interrupted(AT) == 1


def test_notifications_from_two_hosts_are_applied_once(journal: PostgresJournal, at_database: DatabaseLocation) -> None:
    send(journal, 1, OutcomeKind.ACCEPTED)
    with at_database.open_note_recorder() as record_here, at_database.open_note_recorder() as record_there:
        for record in (record_here, record_there, record_here):
            record([arrival()])
    words = {"approved": OutcomeKind.PAID}
    assert journal.process_arrivals(words, at=AT) == Counter({Finding.MOVED: 1, Finding.REPEATED: 2})
    assert journal.process_arrivals(words, at=AT) == Counter()
    assert states(journal) == [State.PAID, State.ACCEPTED]
    assert (journal.verify()["evidence"], journal.has_arrivals()) == (3, False)


def test_lost_connection_does_not_lose_notifications(at_database: DatabaseLocation) -> None:
    end_others = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE pid <> pg_backend_pid() AND datname = current_database()"""
    with at_database.open_note_recorder() as keep:
        keep([arrival()])
        execute_as_owner(at_database, end_others)
        keep([arrival()])
    with closing(open_postgres(at_database)) as journal:
        assert journal.verify()["notifications_waiting"] == 2


def test_notifications_are_numbered_as_they_commit(at_database: DatabaseLocation) -> None:
    """Otherwise, one that commits late would have a number that is already judged."""
    with (
        at_database.open_note_recorder() as keep,
        psycopg.connect(at_database.server.url) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        other.execute("SELECT pg_advisory_xact_lock(7025)")
        later = pool.submit(keep, [arrival()])
        with pytest.raises(TimeoutError):
            later.result(0.3)
        other.rollback()
        later.result(PATIENCE_S)


def test_reordered_facts_of_chain_are_detected(journal: PostgresJournal, at_database: DatabaseLocation) -> None:
    """Only their numbers show which of two facts moved a row. A paid row must not become a rejected one."""
    journal.append([intent(due_rows(journal, 1)[0])])
    journal.append([outcome_of(1, 1, kind) for kind in (OutcomeKind.PAID, OutcomeKind.REJECTED)])
    query = "SELECT number FROM fact WHERE kind IN ('paid', 'rejected') ORDER BY number"
    (paid,), (late,) = execute_as_owner(at_database, query)
    with triggers_off(at_database, "fact", "contradiction", "state"):
        execute_as_owner(at_database, "ALTER TABLE fact ALTER number DROP IDENTITY")
        for number, other in ((paid, 99), (late, paid), (99, late)):
            execute_as_owner(at_database, f"UPDATE fact SET number = {other} WHERE number = {number}")  # noqa: S608
        execute_as_owner(at_database, "UPDATE contradiction SET state = 'rejected'")
        execute_as_owner(at_database, "UPDATE state SET state = 'rejected' WHERE instruction = 1")
    elsewhere = replace(at_database, known_dir=at_database.known_dir / "of another host")
    with closing(read_postgres(elsewhere)) as reader, pytest.raises(JournalCorrupt, match="Fact 4 is missing"):
        reader.verify()


def test_facts_move_rows_in_order_of_chain(journal: PostgresJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    def stage_reversed(entries: Sequence[Entry], end: Link) -> StagedFacts:
        staged = stage_facts(entries, end)
        seq, digest, facts, texts, replies = staged.values
        return replace(staged, values=(seq, digest, json.dumps(json.loads(facts)[::-1]), texts, replies))

    journal.append([intent(due_rows(journal, 1)[0])])
    monkeypatch.setattr(fact_writer, "stage_facts", stage_reversed)
    answers = [outcome_of(1, 1, kind) for kind in (OutcomeKind.PAID, OutcomeKind.REJECTED)]
    assert [*journal.append(answers)] == [MoveResult.MOVED, MoveResult.NOT_MOVED]
    assert states(journal) == [State.PAID, State.READY]
    journal.verify()


@pytest.mark.parametrize("sent", [OutcomeKind.PAID, None])
def test_row_can_be_replaced_only_once(at_database: DatabaseLocation, sent: OutcomeKind | None) -> None:
    """A second such fact does not change the state of the replacing row."""
    with closing(open_postgres(at_database)) as journal:
        open_sheet(journal, new=1)
        open_sheet(journal, "b2", [new_instruction(2, "ORD-2", amount="1.00")], amendments=[Amendment(2, 1)])
        journal.append([intent(due_rows(journal, 2)[0])])
        if sent is not None:
            journal.append([outcome_of(2, 1, sent)])
        before = states(journal, 2)
        assert [*journal.writer.append([Entry(1, 0, Replaced("b2", 2), AT)])] == [MoveResult.NOT_MOVED]
        assert states(journal, 2) == before
        assert journal.verify()["contradictions"] == 1


# While a host is missing in the roll-call, the database accepts no intents and no decisions.
GHOST = "f" * 32


def call_roll_with_ghost(at: DatabaseLocation) -> None:
    """Call the roll with a host that does not answer."""
    host = f"INSERT INTO host (host_id, name) VALUES ('{GHOST}', 'ghost')"  # noqa: S608 - a constant
    execute_as_owner(at, host, "INSERT INTO roll_call SELECT number + 1, life, 'a test', false FROM newest_call")
    assert [one.name for one in at.roll_call()] == ["ghost"]


def test_missing_host_stops_intents_and_decisions(journal: PostgresJournal, at_database: DatabaseLocation) -> None:
    first, second = due_rows(journal, 1)
    journal.append([intent(first)])
    call_roll_with_ghost(at_database)
    paid = outcome_of(first.number, 1, OutcomeKind.PAID)
    assert [*journal.append([paid])] == [MoveResult.MOVED], "what was in flight is written down"
    with pytest.raises(JournalUnwritable, match="hosts are missing in the roll-call"):
        journal.append([intent(second)])
    assert not journal.writer.may_send(0.0)
    journal.close()
    with pytest.raises(OpenRollCall, match="ghost"):
        open_postgres(at_database)
    execute_as_owner(at_database, f"SELECT retire_host('{GHOST}', 'amina')")
    with closing(open_postgres(at_database)) as opened:
        assert states(opened) == [State.PAID, State.READY]
        assert [*opened.append([intent(second)])] == [MoveResult.MOVED]


@pytest.mark.parametrize("has_lock", [True, False])
def test_missing_host_blocks_opening_batch(at_database: DatabaseLocation, has_lock: bool) -> None:
    with closing(open_postgres(at_database)) as journal:
        if not has_lock:
            journal.writer.release_decision_lock()
        call_roll_with_ghost(at_database)
        with pytest.raises(JournalUnwritable, match="hosts are missing in the roll-call"):
            open_sheet(journal) if has_lock else journal.reacquire_lock()
        assert len(journal.batches()) == 0


def test_plan_is_withdrawn_despite_missing_host(at_database: DatabaseLocation) -> None:
    open_postgres(at_database).close()
    call_roll_with_ghost(at_database)
    at_database.withdraw(Withdrawal("1" * 64, "cleo", "{}", AT))
    with closing(read_postgres(at_database)) as reader:
        assert [withdrawal.sha256 for withdrawal in reader.withdrawals()] == ["1" * 64]


def test_program_older_than_tables_sends_nothing(journal: PostgresJournal, at_database: DatabaseLocation) -> None:
    first, second = due_rows(journal, 1)
    journal.append([intent(first)])
    execute_as_owner(at_database, "INSERT INTO migration VALUES (99, '2026-11-21T08:00:00.000Z')")
    assert [*journal.append([outcome_of(first.number, 1, OutcomeKind.PAID)])] == [MoveResult.MOVED]
    with pytest.raises(JournalUnwritable, match="install that version"):
        journal.append([intent(second)])
