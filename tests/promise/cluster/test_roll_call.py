"""After a restore or a failover, nothing is sent until every host has compared what it sent."""

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest

from paygw_batch.cluster.database_location import DatabaseLocation
from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import (
    HolderKind,
    JournalError,
    JournalHeld,
    JournalTooOld,
    JournalUnwritable,
    OpenRollCall,
    UsageError,
)
from paygw_batch.journal.postgres.fact_writer import COMMIT_FACTS, stage_facts
from paygw_batch.journal.postgres.hosts import ProcessSentLog
from paygw_batch.journal.postgres.session import Server, connect, fetch
from paygw_batch.journal.postgres.workers import enrol
from paygw_batch.journal.values import MoveResult
from tests.promise.cluster.company import NORTH, SOUTH, SplitCompany
from tests.support.journal_rows import due_rows, intent, open_sheet, outcome_of, send
from tests.support.postgres_rows import read_postgres
from tests.support.postgres_server import PostgresServer


@pytest.fixture
def company(
    postgres_server: PostgresServer, postgres_template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> SplitCompany:
    return SplitCompany(postgres_server, postgres_template, tmp_path, monkeypatch)


@pytest.fixture
def restored(company: SplitCompany) -> SplitCompany:
    """A batch of 5 rows. North sent one, and then the database went back to before that."""
    company.opens(SOUTH).close()
    with closing(company.opens(NORTH)) as journal:
        open_sheet(journal, new=5)
    backup = company.backup()
    with closing(company.opens(NORTH)) as journal:
        assert [*journal.append([intent(due_rows(journal, 1)[0])])] == [MoveResult.MOVED]
    company.restore(backup)
    return company


def test_idle_host_waits_for_sending_host(restored: SplitCompany) -> None:
    for _ in range(2):
        with pytest.raises(
            OpenRollCall, match=r"restored, or a standby took over.*Hosts that have not checked: north \(last seen"
        ):
            restored.opens(SOUTH)
    with pytest.raises(JournalTooOld, match="older copy"):
        restored.opens(NORTH)
    with pytest.raises(OpenRollCall, match="Hosts that have not checked: north"):
        restored.opens(SOUTH)
    (restored.home / "new").mkdir(mode=0o700)
    with pytest.raises(OpenRollCall, match="Hosts that have not checked: north"):
        restored.opens("new")
    assert restored.states() == [State.READY] * 5


def test_database_refuses_writes_while_hosts_are_missing(restored: SplitCompany) -> None:
    """This also holds for a program that does not check."""
    with pytest.raises(OpenRollCall):
        restored.opens(SOUTH)
    with closing(read_postgres(restored.host(SOUTH))) as journal:
        first, *_ = journal.due(1, after_row=0, limit=1)
    with connect(Server(restored.server.url(restored.name)), write=True) as connection:
        own = enrol(connection, command="a test", kind=HolderKind.RUN, intent_lives_s=30.0)
        committed = (COMMIT_FACTS, (own.number, *stage_facts([intent(first)], own.end).values))
        tried: list[tuple[str, Any]] = [committed]
        tried += [(f"SELECT {call}", (own.number,)) for call in ("take_desk(%s, '{}')", "hold_desk(%s)")]
        for query, values in tried:
            with pytest.raises(psycopg.Error) as refusal:
                fetch(connection, query, values)
            assert refusal.value.sqlstate == "PW008"
        fetch(connection, "SET paygw.retires = 'on'")  # a host that accepts a loss or retires another
        ((*_, has_moved),) = fetch(connection, *committed)
        assert has_moved


def test_all_hosts_continue_after_complete_roll_call(company: SplitCompany) -> None:
    company.opens(SOUTH).close()
    with closing(company.opens(NORTH)) as journal:
        open_sheet(journal, new=5)
    company.restore(company.backup())
    assert [host.name for host in company.at(SOUTH).roll_call()] == [NORTH]
    assert list(company.at(NORTH).roll_call()) == []
    with closing(company.opens(SOUTH)) as journal:
        assert len(send(journal, 1, OutcomeKind.PAID)) == 5
        assert journal.verify()["paid"] == 5


def test_retired_host_leaves_sendable_rows_in_doubt(restored: SplitCompany) -> None:
    with pytest.raises(OpenRollCall):
        restored.opens(SOUTH)
    for wrong in ("east", SOUTH):
        with pytest.raises(UsageError, match=f"No missing host is called {wrong}"):
            restored.host(SOUTH).retire(wrong, by="amina")
    host, rows = restored.host(SOUTH).retire(NORTH, by="amina")
    assert (host.name, rows) == (NORTH, 5)
    with closing(restored.opens(SOUTH)) as journal:
        assert list(due_rows(journal, 1)) == []
        assert {row.state for row in journal.rows(1)} == {State.IN_DOUBT}
        assert {row.sent_orderid for row in journal.rows(1)} == {f"ORD-{row}" for row in range(2, 7)}
        assert journal.verify()["in_doubt"] == 5
    with pytest.raises(JournalTooOld):
        restored.opens(NORTH)


def test_crash_during_retirement_keeps_roll_call_open(restored: SplitCompany, monkeypatch: pytest.MonkeyPatch) -> None:
    crash = Mock(side_effect=KeyboardInterrupt)
    with monkeypatch.context() as broken:
        broken.setattr("paygw_batch.cluster.database_location.record_retirement", crash)
        with pytest.raises(KeyboardInterrupt):
            restored.host(SOUTH).retire(NORTH, by="amina")
    with pytest.raises(OpenRollCall, match="Hosts that have not checked: north"):
        restored.opens(SOUTH)
    assert restored.host(SOUTH).retire(NORTH, by="amina")[1] == 0
    with closing(restored.opens(SOUTH)) as journal:
        assert {row.state for row in journal.rows(1)} == {State.IN_DOUBT}


def test_row_in_flight_blocks_retirement(company: SplitCompany) -> None:
    """Another host could record that nothing was sent, which would hide a later attempt of the retired host."""
    company.opens(NORTH).close()
    with closing(company.opens(SOUTH)) as journal:
        open_sheet(journal, new=5)
        assert journal.start_shared_run(1, can_wait=True) is not None
    (company.home / "third").mkdir(mode=0o700)
    with closing(company.at("third").open_to_work("work")) as sending:
        assert sending.join_run() is not None
        assert sending.append([intent(due_rows(sending, 1)[0])]) == [MoveResult.MOVED]
        company.replace()
        with pytest.raises(OpenRollCall):
            company.opens(SOUTH)
        with pytest.raises(JournalHeld, match="is still sending"):
            company.host(SOUTH).retire(NORTH, by="amina")
        with pytest.raises(OpenRollCall, match="Hosts that have not checked: north"):
            company.opens(SOUTH)
    company.query("UPDATE process SET ended_at = clock_timestamp() WHERE ended_at IS NULL")
    assert company.host(SOUTH).retire(NORTH, by="amina")[1] == 5
    assert {*company.states()} == {State.IN_DOUBT}


def test_returning_retired_host_is_refused(company: SplitCompany) -> None:
    """The host was only away too long, and its sent log may exist."""
    company.opens(NORTH).close()
    company.opens(SOUTH).close()
    company.restore(company.backup())
    company.host(SOUTH).retire(NORTH, by="amina")
    with pytest.raises(JournalError, match="This host was retired"):
        company.opens(NORTH)
    shutil.rmtree(company.home / NORTH / "journals")
    company.opens(NORTH).close()


def test_roll_call_omits_host_absent_for_30_days(restored: SplitCompany) -> None:
    restored.query("ALTER TABLE process DISABLE TRIGGER end_is_final")
    restored.query("UPDATE host SET seen_at = seen_at - interval '31 days'")
    restored.query("UPDATE process SET seen_at = seen_at - interval '31 days'")
    restored.opens(SOUTH).close()


def test_run_with_replaced_database_waits_and_stops(company: SplitCompany, monkeypatch: pytest.MonkeyPatch) -> None:
    company.opens(SOUTH).close()
    with closing(company.opens(NORTH)) as journal:
        open_sheet(journal, new=5)
        first, second, *_ = due_rows(journal, 1)
        journal.append([intent(first)])
        monkeypatch.setattr("paygw_batch.journal.postgres.guarded_session._RECONNECT_LIMIT_S", 0.0)
        company.replace()
        with pytest.raises(JournalUnwritable, match="Hosts that have not checked: south"):
            journal.append([outcome_of(first.number, 1, OutcomeKind.PAID), intent(second)])
    assert company.states()[:2] == [State.IN_FLIGHT, State.READY]


@pytest.mark.parametrize("is_there", [False, True])
def test_unrecorded_intent_is_not_sent(
    company: SplitCompany, monkeypatch: pytest.MonkeyPatch, *, is_there: bool
) -> None:
    """A process freezes between commit and record. Another process of its host answers the roll-call."""
    note = ProcessSentLog.log_commit
    with closing(company.opens(NORTH)) as journal:
        open_sheet(journal, new=5)
    backup = company.backup()

    def frozen(self: ProcessSentLog, *words: Any) -> None:
        monkeypatch.setattr(ProcessSentLog, "log_commit", note)
        company.replace() if is_there else company.restore(backup)
        assert company.host(NORTH).roll_call() == []
        note(self, *words)

    with closing(company.opens(NORTH)) as journal:
        first, *_ = due_rows(journal, 1)
        monkeypatch.setattr(ProcessSentLog, "log_commit", frozen)
        if is_there:
            assert [*journal.append([intent(first)])] == [MoveResult.MOVED]
            return
        with pytest.raises(JournalUnwritable, match="older copy"):
            journal.append([intent(first)])
    assert company.states(NORTH)[0] is State.READY


def test_restarted_server_does_not_start_roll_call(company: SplitCompany) -> None:
    """The database is still the same one."""
    company.opens(SOUTH).close()
    with closing(company.opens(NORTH)) as journal:
        open_sheet(journal, new=1)
    calls = company.query("SELECT count(*) FROM roll_call")
    company.query("SELECT pg_switch_wal()")
    company.opens(NORTH).close()
    assert company.query("SELECT count(*) FROM roll_call") == calls


def as_worker(company: SplitCompany, name: str) -> DatabaseLocation:
    login = f"{company.name}_{name}"
    company.host(name).grant_rights()
    company.server.execute(f"CREATE ROLE {login} LOGIN IN ROLE {company.name}_worker")
    return replace(company.host(name), server=Server(company.server.url(company.name, user=login)))


def test_roll_call_awaits_host_with_lost_write(company: SplitCompany) -> None:
    """Its login is a worker's, and nobody has seen it. Any run would lift a stop."""
    with closing(company.opens(SOUTH)) as journal:
        open_sheet(journal, new=5)
        assert journal.start_shared_run(1, can_wait=True) is not None
    backup = company.backup()
    north = as_worker(company, NORTH)
    company.at(NORTH)
    with closing(north.open_to_work("work")) as worker:
        assert worker.join_run() is not None
        (first, *_) = due_rows(worker, 1)
        assert worker.append([intent(first)]) == [MoveResult.MOVED]
    company.restore(backup)
    company.host(SOUTH).grant_rights()
    with pytest.raises(JournalTooOld):
        north.open_to_work("work")
    with pytest.raises(OpenRollCall, match="Hosts that have not checked: north"):
        company.opens(SOUTH)
    assert company.host(NORTH).accept_loss(by="amina").rows.in_doubt == 1
    with closing(company.opens(SOUTH)) as journal:
        assert [due.row for due in due_rows(journal, 1)] == [3, 4, 5, 6]


def follows(company: SplitCompany) -> None:
    """Let the database be a standby that took over in its cluster."""
    company.query(
        """INSERT INTO roll_call SELECT number + 1,
        split_part(life, ' ', 1) || ' 0000000F ' || split_part(life, ' ', 3), 'a test', true FROM newest_call"""
    )


def synchronously(location: DatabaseLocation, monkeypatch: pytest.MonkeyPatch) -> DatabaseLocation:
    monkeypatch.setattr("paygw_batch.journal.postgres.session._check_durable", lambda *_, **__: None)
    return replace(location, server=replace(location.server, replication="synchronous"))


@pytest.fixture
def taken_over(company: SplitCompany, monkeypatch: pytest.MonkeyPatch) -> DatabaseLocation:
    """A synchronous standby took over, and south's worker saw it first."""
    with closing(company.opens(NORTH)) as journal:
        open_sheet(journal, new=5)
        assert [*journal.append([intent(due_rows(journal, 1)[0])])] == [MoveResult.MOVED]
    company.opens(SOUTH).close()
    south = as_worker(company, SOUTH)
    follows(company)
    with pytest.raises(OpenRollCall, match="Hosts that have not checked: north"):
        synchronously(south, monkeypatch).open_to_work("work")
    return south


def test_roll_call_is_waived_after_synchronous_takeover(
    company: SplitCompany, taken_over: DatabaseLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OpenRollCall, match="Hosts that have not checked: north"):
        synchronously(taken_over, monkeypatch).open_to_work("work")
    assert [host.name for host in company.host(SOUTH).roll_call()] == [NORTH], "it waits where a standby may lag"
    assert list(synchronously(company.host(SOUTH), monkeypatch).roll_call()) == []
    synchronously(taken_over, monkeypatch).open_to_work("work").close()


@pytest.mark.usefixtures("taken_over")
def test_roll_call_is_not_waived_for_incomplete_host(company: SplitCompany, monkeypatch: pytest.MonkeyPatch) -> None:
    (host_id,) = (company.home / NORTH / "journals").glob("*/host")
    company.query(f"SELECT call_roll('{host_id.read_text().strip()}', 'north')")
    assert [host.name for host in synchronously(company.at(SOUTH), monkeypatch).roll_call()] == [NORTH]


def test_restored_copy_still_requires_roll_call(company: SplitCompany, monkeypatch: pytest.MonkeyPatch) -> None:
    company.opens(NORTH).close()
    company.opens(SOUTH).close()
    south = as_worker(company, SOUTH)
    company.restore(company.backup())
    with pytest.raises(OpenRollCall):
        synchronously(south, monkeypatch).open_to_work("work")
    assert [host.name for host in synchronously(company.host(SOUTH), monkeypatch).roll_call()] == [NORTH]
    follows(company)
    company.query("INSERT INTO roll_call SELECT number + 1, life, 'a test', false FROM newest_call")
    with pytest.raises(OpenRollCall):
        synchronously(south, monkeypatch).open_to_work("work")
    assert [host.name for host in synchronously(company.host(SOUTH), monkeypatch).roll_call()] == [NORTH]
