"""After a restore or a failover no lease is given before every host has shown what it sent on."""

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalError, JournalHeld, JournalUnwritable, JournalWentBack, RollCallOpen, UsageError
from paygw_batch.journal.opening.open_postgres import PostgresPlace, retire_host, roll_call_of
from paygw_batch.journal.values import MoveResult
from tests.journal.journal_rows import AT, all_due, intent, open_sheet, outcome_of, send
from tests.journal.postgres_rows import LeasingPostgres, open_postgres, postgres_place, read_postgres
from tests.journal.postgres_server import PostgresServer

NORTH, SOUTH = "north", "south"


class Company:
    """Two hosts that share a database, each with files of its own."""

    def __init__(self, server: PostgresServer, template: str, home: Path) -> None:
        self.server, self.home = server, home
        self.name = server.new_database(template)
        for host in (NORTH, SOUTH):
            (home / host).mkdir(mode=0o700)

    def host(self, name: str) -> PostgresPlace:
        return postgres_place(self.server.url(self.name), self.home / name)

    def opens(self, monkeypatch: pytest.MonkeyPatch, name: str) -> LeasingPostgres:
        monkeypatch.setattr("socket.gethostname", lambda: name)
        return open_postgres(self.host(name))

    def backup(self) -> str:
        return self.server.new_database(self.name)

    def restore(self, backup: str) -> None:
        self.server.drop_database(self.name)
        self.server.execute(f"ALTER DATABASE {backup} RENAME TO {self.name}")


@pytest.fixture
def company(postgres_server: PostgresServer, postgres_template: str, tmp_path: Path) -> Company:
    return Company(postgres_server, postgres_template, tmp_path)


@pytest.fixture
def restored(company: Company, monkeypatch: pytest.MonkeyPatch) -> Company:
    """A batch of 5 rows; north sent one of them, and then the database went back to before that."""
    company.opens(monkeypatch, SOUTH).close()
    with closing(company.opens(monkeypatch, NORTH)) as journal:
        open_sheet(journal, new=5)
    backup = company.backup()
    with closing(company.opens(monkeypatch, NORTH)) as journal:
        assert [*journal.append([intent(all_due(journal, 1)[0])])] == [MoveResult.MOVED]
    company.restore(backup)
    return company


def test_a_host_that_has_sent_nothing_waits_for_the_one_that_has(
    restored: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        with pytest.raises(RollCallOpen, match=r"restored, or a standby took over.*Missing: north \(last seen"):
            restored.opens(monkeypatch, SOUTH)
    with pytest.raises(JournalWentBack, match="older copy"):
        restored.opens(monkeypatch, NORTH)
    with pytest.raises(RollCallOpen, match="Missing: north"):
        restored.opens(monkeypatch, SOUTH)
    (restored.home / "new").mkdir(mode=0o700)
    with pytest.raises(RollCallOpen, match="Missing: north"):
        restored.opens(monkeypatch, "new")
    with closing(read_postgres(restored.host(SOUTH))) as journal:  # to look is always possible
        assert [row.state for row in journal.rows(1)] == [State.READY] * 5


def test_the_database_itself_gives_no_lease_while_a_host_is_missing(
    restored: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also to a program that does not ask."""
    with pytest.raises(RollCallOpen):
        restored.opens(monkeypatch, SOUTH)
    with psycopg.connect(restored.server.url(restored.name), autocommit=True) as connection:
        connection.execute("SET search_path = paygw")
        with pytest.raises(psycopg.Error, match="hosts are missing"):
            connection.execute("SELECT take_lease(0, (SELECT max(number) FROM worker), '{}')")


def test_once_every_host_has_shown_that_nothing_is_missing_all_go_on(
    company: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    company.opens(monkeypatch, SOUTH).close()
    with closing(company.opens(monkeypatch, NORTH)) as journal:
        open_sheet(journal, new=5)
    company.restore(company.backup())
    monkeypatch.setattr("socket.gethostname", lambda: SOUTH)
    assert [one.name for one in roll_call_of(company.host(SOUTH))] == [NORTH]
    monkeypatch.setattr("socket.gethostname", lambda: NORTH)
    assert list(roll_call_of(company.host(NORTH))) == []
    with closing(company.opens(monkeypatch, SOUTH)) as journal:
        assert len(send(journal, 1, OutcomeKind.PAID)) == 5
        assert journal.verify()["paid"] == 5


def test_a_host_that_is_retired_leaves_every_row_in_doubt_that_it_could_have_sent(
    restored: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RollCallOpen):
        restored.opens(monkeypatch, SOUTH)
    for wrong in ("east", SOUTH):
        with pytest.raises(UsageError, match=f"does not miss a host {wrong}"):
            retire_host(restored.host(SOUTH), wrong, by="amina", now=AT)
    host, rows = retire_host(restored.host(SOUTH), NORTH, by="amina", now=AT)
    assert (host.name, rows) == (NORTH, 5)
    with closing(restored.opens(monkeypatch, SOUTH)) as journal:
        assert list(all_due(journal, 1)) == []
        assert {row.state for row in journal.rows(1)} == {State.IN_DOUBT}
        assert {row.sent_orderid for row in journal.rows(1)} == {f"ORD-{row}" for row in range(2, 7)}
        assert journal.verify()["in_doubt"] == 5
    with pytest.raises(JournalWentBack):
        restored.opens(monkeypatch, NORTH)


def test_the_only_host_is_retired_by_itself_and_is_then_a_new_one(
    restored: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(JournalWentBack):
        restored.opens(monkeypatch, NORTH)
    assert retire_host(restored.host(NORTH), NORTH, by="amina", now=AT)[1] == 5
    with pytest.raises(RollCallOpen, match="Missing: south"):
        restored.opens(monkeypatch, NORTH)
    monkeypatch.setattr("socket.gethostname", lambda: SOUTH)
    assert list(roll_call_of(restored.host(SOUTH))) == []
    with closing(restored.opens(monkeypatch, NORTH)) as journal:
        assert list(all_due(journal, 1)) == []
        open_sheet(journal, "b2", new=[])


def test_a_crash_while_a_host_is_retired_leaves_the_roll_open_and_it_is_retired_again(
    restored: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(JournalWentBack):
        restored.opens(monkeypatch, NORTH)
    monkeypatch.setattr("paygw_batch.journal.opening.open_postgres.write_retired", crash)
    with pytest.raises(KeyboardInterrupt):
        retire_host(restored.host(NORTH), NORTH, by="amina", now=AT)
    monkeypatch.undo()
    with pytest.raises(JournalWentBack):  # its witness still knows what is not there
        restored.opens(monkeypatch, NORTH)
    assert retire_host(restored.host(NORTH), NORTH, by="amina", now=AT)[1] == 0
    with closing(restored.opens(monkeypatch, SOUTH)) as journal:
        assert {row.state for row in journal.rows(1)} == {State.IN_DOUBT}


def test_no_host_is_retired_while_a_process_still_sends(restored: Company, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy under the feet of a process: it has leases, and its host is asked for."""
    with pytest.raises(RollCallOpen):
        restored.opens(monkeypatch, SOUTH)
    with psycopg.connect(restored.server.url(restored.name), autocommit=True) as connection:
        connection.execute("SET search_path = paygw")
        connection.execute("SET paygw.retires = 'on'")
        connection.execute("UPDATE worker SET ended_at = NULL, boot = 'elsewhere', seen_at = clock_timestamp()")
        connection.execute("SELECT take_lease(1, (SELECT max(number) FROM worker), '{}')")
    with pytest.raises(JournalHeld):
        retire_host(restored.host(SOUTH), NORTH, by="amina", now=AT)
    with pytest.raises(RollCallOpen):
        restored.opens(monkeypatch, SOUTH)


def test_a_retired_host_that_comes_back_is_told_so(company: Company, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its witness may fit: it was only away for too long."""
    company.opens(monkeypatch, NORTH).close()
    company.opens(monkeypatch, SOUTH).close()
    company.restore(company.backup())
    retire_host(company.host(SOUTH), NORTH, by="amina", now=AT)
    with pytest.raises(JournalError, match="This host was retired"):
        company.opens(monkeypatch, NORTH)
    for path in (company.home / NORTH / "witness").iterdir():
        path.unlink()
    company.opens(monkeypatch, NORTH).close()


def test_a_host_of_more_than_30_days_ago_is_not_asked_for(restored: Company, monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(restored.server.url(restored.name), autocommit=True) as connection:
        connection.execute("SET search_path = paygw")
        connection.execute("UPDATE host SET seen_at = seen_at - interval '31 days'")
        connection.execute("UPDATE worker SET seen_at = seen_at - interval '31 days'")
    restored.opens(monkeypatch, SOUTH).close()


def test_a_run_whose_database_is_replaced_under_its_feet_waits_for_the_others_and_stops(
    company: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    company.opens(monkeypatch, SOUTH).close()
    with closing(company.opens(monkeypatch, NORTH)) as journal:
        open_sheet(journal, new=5)
        first, second, *_ = all_due(journal, 1)
        journal.append([intent(first)])
        monkeypatch.setattr("paygw_batch.journal.postgres.leasing.guarded_session._RECONNECT_LIMIT_S", 0.0)
        with psycopg.connect(company.server.url(), autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {company.name} ALLOW_CONNECTIONS false".encode())
            ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
            connection.execute(ended.encode(), (company.name,))
            copy = f"copy_{os.getpid()}"
            connection.execute(f"CREATE DATABASE {copy} TEMPLATE {company.name} STRATEGY file_copy".encode())
            connection.execute(f"DROP DATABASE {company.name} WITH (FORCE)".encode())
            connection.execute(f"ALTER DATABASE {copy} RENAME TO {company.name}".encode())
        with pytest.raises(JournalUnwritable, match="Missing: south"):
            journal.append([outcome_of(first.number, 1, OutcomeKind.PAID), intent(second)])
    with closing(read_postgres(company.host(SOUTH))) as journal:
        assert [row.state for row in journal.rows(1)][:2] == [State.IN_FLIGHT, State.READY]


def test_a_server_that_was_restarted_is_the_same_one(company: Company, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is called when nothing else is in the place of the database."""
    company.opens(monkeypatch, SOUTH).close()
    with closing(company.opens(monkeypatch, NORTH)) as journal:
        open_sheet(journal, new=1)
    with psycopg.connect(company.server.url(company.name)) as connection:
        calls = connection.execute("SELECT count(*) FROM paygw.roll_call").fetchall()
        connection.execute("SELECT pg_switch_wal()")
    company.opens(monkeypatch, NORTH).close()
    with psycopg.connect(company.server.url(company.name)) as connection:
        assert connection.execute("SELECT count(*) FROM paygw.roll_call").fetchall() == calls


def test_a_synchronous_copy_elsewhere_is_not_waived(restored: Company, monkeypatch: pytest.MonkeyPatch) -> None:
    """The word `synchronous` is about a standby of the same cluster, never about a copy that was restored."""
    server = replace(restored.host(SOUTH).server, replication="synchronous")
    monkeypatch.setattr("paygw_batch.journal.postgres.session._check_durable", lambda *_, **__: None)
    assert [one.name for one in roll_call_of(replace(restored.host(SOUTH), server=server))] == [NORTH]
