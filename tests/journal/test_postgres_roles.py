"""Roles of a journal in PostgreSQL: each can do its own work and nothing else."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from paygw_batch.cluster.database_location import DatabaseLocation
from paygw_batch.core.lifecycle import Released, Resolution, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalError, PaygwError
from paygw_batch.journal.port import GateReport, LimitChange
from paygw_batch.journal.postgres.session import Server
from paygw_batch.journal.postgres.workers import PostgresGate
from paygw_batch.journal.values import Entry
from tests.support.journal_rows import AT, due_rows, intent, open_sheet, outcome_of, resolved, send
from tests.support.postgres_rows import open_postgres, postgres_place, read_postgres, work_on_run
from tests.support.postgres_server import PostgresServer

As = Callable[[str], DatabaseLocation]


@pytest.fixture
def as_role(database: str, place: Path, postgres_server: PostgresServer) -> As:
    """Return a function that gives the journal's location for a login with one role."""
    owner, name = postgres_place(database, place), database.rpartition("/")[2]
    owner.grant_rights()
    owner.grant_rights()  # repeating it changes nothing

    def place_for_role(role: str) -> DatabaseLocation:
        login = f"{name}_{role}_login"
        postgres_server.execute(f"CREATE ROLE {login} LOGIN IN ROLE {name}_{role}")
        return replace(owner, server=Server(postgres_server.url(name, user=login)))

    return place_for_role


def check_refused(place: DatabaseLocation, *statements: str) -> None:
    """Check that the server refuses each statement to a login."""
    with psycopg.connect(place.server.url, autocommit=True) as connection:
        connection.execute("SET search_path = paygw")
        for statement in statements:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())


OWNING = (
    "DROP TABLE fact",
    "ALTER TABLE fact DISABLE TRIGGER ALL",
    "CREATE FUNCTION is_alive(integer) RETURNS boolean LANGUAGE sql AS 'SELECT false'",
)
"""What no role may do. Their rights to each table and function are tested in `test_postgres_forgeries.py`."""


def test_desk_role_cannot_forge(as_role: As) -> None:
    desk = as_role("desk")
    assert desk.role() == "desk"
    with closing(open_postgres(desk)) as journal:
        open_sheet(journal, new=3)
        first, second, third = due_rows(journal, 1)
        journal.append([intent(first), intent(second), intent(third)])
        kinds = (OutcomeKind.PAID, OutcomeKind.REJECTED, OutcomeKind.UNKNOWN)
        journal.append(
            [outcome_of(due.number, 1, kind) for due, kind in zip((first, second, third), kinds, strict=True)]
        )
        journal.settle([resolved(third.number, 1, Resolution.PAID)])
        assert journal.release(1, None, suffix=True, by="amina", at=AT) == 1
        with closing(journal.gate()) as gate:
            gate.open()
        send(journal, 1, OutcomeKind.PAID)
        assert {row.state for row in journal.rows(1)} == {State.PAID}
        journal.verify()
    assert desk.change_limits(LimitChange("amina", 5)).rate_per_s == 5
    check_refused(desk, *OWNING)


def test_worker_role_cannot_decide(as_role: As) -> None:
    worker, desk = as_role("worker"), as_role("desk")
    with closing(open_postgres(desk)) as journal:
        open_sheet(journal, new=1)
        send(journal, 1, OutcomeKind.REJECTED)
    assert worker.role() == "worker"
    check_refused(worker, *OWNING)
    with pytest.raises(JournalError, match="does not have permission to do this"):
        open_postgres(worker)
    with pytest.raises(JournalError, match="does not have permission to do this"):
        worker.change_limits(LimitChange("w", 5))
    with closing(read_postgres(worker)) as journal:
        assert journal.verify()["rejected"] == 1


def test_worker_reports_but_cannot_record_decisions(as_role: As) -> None:
    worker, desk = as_role("worker"), as_role("desk")
    with closing(open_postgres(desk)) as journal:
        open_sheet(journal, new=1)
        send(journal, 1, OutcomeKind.REJECTED)
        gate = PostgresGate(worker.server, journal.writer.process)
        with closing(gate), pytest.raises(JournalError, match="another login enrolled"):
            gate.request_share(GateReport(5, 10))
        with psycopg.connect(worker.server.url, options="-c search_path=paygw", autocommit=True) as connection:
            query = "SELECT number FROM enrol('host', 'boot', 1, 'a test', 'worker', 30, 1, %s)"
            ((number,),) = connection.execute(query.encode(), (bytes(16),)).fetchall()
        with closing(PostgresGate(worker.server, number)) as gate:
            assert gate.request_share(GateReport(5, 10)).senders == 1
        # Only the login of this commit is wrong.
        release = Entry(1, 1, Released("ORD-2-r2", "nobody"), AT)
        journal._session.server = worker.server  # the next connection has the other login
        journal._session.reconnect()
        with pytest.raises(PaygwError, match="another login enrolled"):
            journal.writer.append([release])
    with closing(read_postgres(desk)) as reader:
        assert [row.state for row in reader.rows(1)] == [State.REJECTED]


def test_worker_sends_share_of_handed_over_batch(as_role: As) -> None:
    at, desk = as_role("worker"), as_role("desk")
    with closing(open_postgres(desk)) as journal:
        batch = open_sheet(journal, new=4).number
        assert journal.start_shared_run(batch, waits=True) is not None
    with closing(at.open_to_work("work")) as worker:
        assert not worker.may_decide()
        assert work_on_run(worker) == [2, 3, 4, 5]
        assert worker.join_run() is None
        assert worker.runs() == []
    start = "INSERT INTO run (batch, started_by) SELECT batch, started_by FROM run"
    check_refused(at, start, "UPDATE run SET started_by = 1", "SELECT lock_rows('{}')")
    with psycopg.connect(at.server.url, autocommit=True) as connection:
        for changed in ("UPDATE paygw.run SET stop_reason = 'x'", "UPDATE paygw.run SET ended_at = NULL"):
            with pytest.raises(psycopg.errors.RaiseException, match="never changed"):
                connection.execute(changed.encode())


def test_reader_role_cannot_write(as_role: As) -> None:
    reader, desk = as_role("reader"), as_role("desk")
    with closing(open_postgres(desk)) as journal:
        open_sheet(journal, new=1)
    assert reader.role() == "reader"
    with closing(read_postgres(reader)) as journal:
        assert journal.verify()["ready"] == 1
    assert reader.limits().stop is None
    check_refused(reader, *OWNING)
    check_refused(
        reader, "INSERT INTO paygw_jobs.procrastinate_workers DEFAULT VALUES", "TRUNCATE paygw_jobs.paygw_result"
    )
    assert reader.timetable_jobs() == []
    with pytest.raises(JournalError, match="does not have permission to do this"):
        open_postgres(reader)


def test_owner_needs_no_role_and_stranger_is_refused(
    as_role: As, database: str, place: Path, postgres_server: PostgresServer
) -> None:
    as_role("reader")
    assert postgres_place(database, place).role() == "owner"
    name = database.rpartition("/")[2]
    postgres_server.execute(f"CREATE ROLE {name}_stranger LOGIN")
    stranger = postgres_place(postgres_server.url(name, user=f"{name}_stranger"), place)
    assert stranger.role() is None
    with pytest.raises(JournalError, match="permission denied"):
        read_postgres(stranger)
