"""The job tables: created with the journal's, upgraded, and identified by their version."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import psycopg
import pytest
from procrastinate import App, PsycopgConnector
from procrastinate.schema import SchemaManager

from paygw_batch.cluster import calling, job_worker
from paygw_batch.cluster.calling import TimedAsyncConnection, configure_async_connection, notify_workers, pool_options
from paygw_batch.cluster.job_worker import JobWorker, ScheduledCommand, _RepeatingJobManager
from paygw_batch.errors import JournalError, JournalOutdated
from paygw_batch.journal import SharedRun
from paygw_batch.journal.postgres import schema
from paygw_batch.journal.postgres.schema import check_jobs, jobs_version, newest_jobs_version, upgrade_job_tables
from paygw_batch.journal.postgres.session import Server, Session
from tests.support.patience import wait_until
from tests.support.wire_proxy import ProxyFault, WireProxy

JOBS = "SELECT task_name, priority, queueing_lock, args, status::text FROM procrastinate_jobs ORDER BY id"


@pytest.fixture
def session(database: str) -> Iterator[Session]:
    found = Session(Server(database), write=True)
    yield found
    found.close()


def query(url: str, *statements: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True, options="-c search_path=paygw_jobs") as connection:
        *_, cursor = [connection.execute(statement.encode()) for statement in statements]
        return cursor.fetchall() if cursor.description else []


def test_only_newer_job_tables_are_refused(database: str, session: Session) -> None:
    assert check_jobs(session.connection, session.server) == newest_jobs_version()
    tables = query(database, "SELECT format('%I', tablename) FROM pg_tables WHERE schemaname = 'paygw_jobs'")
    query(database, f"TRUNCATE {', '.join(str(name) for (name,) in tables)}")
    assert check_jobs(session.connection, session.server) == newest_jobs_version()
    query(database, "COMMENT ON SCHEMA paygw_jobs IS '99.00.00_01_of_later_days'")
    with pytest.raises(JournalError, match="newer"):
        check_jobs(session.connection, session.server)


def test_old_job_tables_are_refused_until_upgraded(database: str, session: Session) -> None:
    functions = """SELECT proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
        WHERE nspname = 'paygw_jobs' ORDER BY 1"""
    fresh, older = query(database, functions), "02.14.01_01_add_indexes_for_fetch_job"
    query(database, "DROP SCHEMA paygw_jobs CASCADE")
    with pytest.raises(JournalOutdated):
        check_jobs(session.connection, session.server)
    scripts = sorted(Path(SchemaManager.get_migrations_path()).glob("*.sql"))
    made = [script.read_text() for script in scripts if script.stem <= older]
    query(database, "CREATE SCHEMA paygw_jobs", *made, schema._RESULT_TABLE)
    query(database, f"COMMENT ON SCHEMA paygw_jobs IS '{older}'")
    with pytest.raises(JournalOutdated):
        check_jobs(session.connection, session.server)
    newest = newest_jobs_version()
    for before in (older, newest):
        with session.connection.transaction():
            assert upgrade_job_tables(session.connection) == (before, newest)
        assert (query(database, functions), jobs_version(session.connection)) == (fresh, newest)


def test_each_run_is_queued_once_with_priority(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for run in (SharedRun(7, 1, None, is_finished=False), SharedRun(8, 2, None, is_finished=False, is_urgent=True)):
        for _ in range(2):
            notify_workers(database, run)
        with monkeypatch.context() as earlier:  # as if it had looked a moment earlier
            earlier.setattr("procrastinate.manager.JobManager.list_jobs", lambda *_, **__: [])
            notify_workers(database, run)
    expected = [("share", urgency, f"share {run}", {"run": run}, "todo") for urgency, run in enumerate((7, 8))]
    assert query(database, JOBS) == expected
    query(database, "DROP SCHEMA paygw_jobs CASCADE")
    notify_workers(database, run)  # a call that fails is ignored


def test_waiting_job_replaces_retry_of_failed_job(database: str) -> None:
    added = """INSERT INTO procrastinate_jobs (queue_name, task_name, lock, queueing_lock, status)
        VALUES ('verify', 'verify', 'verify', 'verify', '{}')"""
    query(database, added.format("doing"), added.format("todo"))

    async def fail_next_to_queued_job() -> None:
        options = pool_options(database, configure_async_connection, TimedAsyncConnection)
        connector = PsycopgConnector(**options, min_size=1, max_size=1)
        async with App(connector=connector).open_async():
            jobs = _RepeatingJobManager(connector)
            (doing,) = await jobs.list_jobs_async(status="doing")
            await jobs.retry_job(doing)

    asyncio.run(fail_next_to_queued_job())
    assert [(line[0], line[4]) for line in query(database, JOBS)] == [("verify", "todo")]


# Jobs whose answers are lost do not keep their lock while their worker lives.
DEFER = """INSERT INTO procrastinate_jobs (queue_name, task_name, lock, queueing_lock, args)
    SELECT 'verify', 'verify', 'verify', 'verify', jsonb_build_object('timestamp', extract(epoch FROM now())::bigint)"""


@pytest.mark.parametrize(
    ("request_of", "trouble"),
    [
        (b"{verify}", ProxyFault.SILENCE),  # the job is taken, but the answer to its worker is lost
        (b"{verify}", ProxyFault.LOSE_ANSWER),
        (b"procrastinate_finish_job", ProxyFault.LOSE_REQUEST),
        (b"procrastinate_finish_job", ProxyFault.LOSE_ANSWER),
        (b"procrastinate_finish_job", ProxyFault.SILENCE),
    ],
)
def test_next_job_runs_after_connection_failure(
    database: str,
    proxy: WireProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request_of: bytes,
    trouble: ProxyFault,
) -> None:
    monkeypatch.setattr(calling, "ANSWER_LIMIT_S", 1.0)
    monkeypatch.setattr(job_worker, "POLL_INTERVAL_S", 0.1)
    proxy.only, proxy.trouble = request_of, trouble
    (done := tmp_path / "done").touch()

    def done_jobs() -> int:
        return len(done.read_text().splitlines())

    query(database, DEFER)
    program = [sys.executable, "-c", f"print('done', file=open({str(done)!r}, 'a'))"]
    never = ScheduledCommand("verify", "0 0 29 2 1", "UTC", ("verify",))
    with closing(JobWorker(proxy.url(database), 1.0, [never], program, Mock(return_value=[]))) as jobs:
        jobs.start()
        wait_until(lambda: done_jobs() >= 1)
        wait_until(lambda: proxy.trouble is ProxyFault.NONE)
        before = done_jobs()
        query(database, DEFER)
        wait_until(lambda: done_jobs() > before)
