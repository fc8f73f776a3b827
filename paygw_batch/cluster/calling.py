"""Notifies workers of runs through procrastinate jobs.

A job only names a run. The journal determines which rows are sent, and by which worker. Even if every job is lost,
workers find the waiting runs in the journal.
"""

from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from procrastinate import App, SyncPsycopgConnector
from procrastinate.exceptions import AlreadyEnqueued, ConnectorException
from procrastinate.jobs import Status
from psycopg import AsyncConnection, Connection, Notify
from psycopg.abc import PQGen

from paygw_batch.journal import JOBS_SCHEMA, SharedRun

SHARE = "share"
"""The name of the jobs in which workers send a share of a run, and of their queue."""
_SESSION_SETTINGS = (
    f"SET search_path = {JOBS_SCHEMA}, pg_temp".encode(),
    b"SET synchronous_commit = off",  # a job lost in a server crash is created again
    b"SET lock_timeout = '5s'",
)
_TIMEOUT_S = 5.0
ANSWER_LIMIT_S = 10.0
"""The maximum duration of a statement. Otherwise a worker that lost an answer would hold its job's lock forever, while
another connection shows that the worker is alive."""
_NOTIFY_TIMEOUT_S = 3600.0
T = TypeVar("T")


def notify_workers(url: str, run: SharedRun) -> None:
    """Notify the workers of a waiting run. If this fails, they soon find the run themselves."""
    pool = pool_options(url, _configure_connection, _TimedConnection)
    app = App(connector=SyncPsycopgConnector(**pool, min_size=1, max_size=1, num_workers=1))
    with suppress(ConnectorException, psycopg.Error, AlreadyEnqueued), app.open():
        lock = share_lock_name(run)
        if not app.job_manager.list_jobs(queueing_lock=lock, status=Status.TODO.value):
            app.configure_task(SHARE, queue=SHARE, queueing_lock=lock, priority=priority(run)).defer(run=run.number)


def share_lock_name(run: SharedRun) -> str:
    """Return the name of the lock that allows each run only one queued job."""
    return f"{SHARE} {run.number}"


def priority(run: SharedRun) -> int:
    """Return the priority of a run's jobs. Workers take jobs with higher priority first."""
    return 1 if run.is_urgent else 0


class _TimedConnection(Connection[Any]):
    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Wait up to `ANSWER_LIMIT_S` seconds for the server, then raise `psycopg.OperationalError`."""
        try:
            return super().wait(gen, interval, ANSWER_LIMIT_S if timeout is None else timeout)
        except psycopg.OperationalError:
            self.pgconn.finish()
            raise


class TimedAsyncConnection(AsyncConnection[Any]):
    """A worker's connection on which no statement waits forever."""

    async def wait(
        self,
        gen: PQGen[T],
        interval: float = 0.1,
        timeout: float | None = None,  # noqa: ASYNC109 (required by psycopg)
    ) -> T:
        """Wait up to `ANSWER_LIMIT_S` seconds for the server, then raise `psycopg.OperationalError`."""
        try:
            return await super().wait(gen, interval, ANSWER_LIMIT_S if timeout is None else timeout)
        except psycopg.OperationalError:
            self.pgconn.finish()
            raise

    def notifies(self, *, timeout: float | None = None, stop_after: int | None = None) -> AsyncGenerator[Notify]:
        """Yield notifications, waiting up to an hour for each. Procrastinate itself checks the connection."""
        return super().notifies(timeout=_NOTIFY_TIMEOUT_S if timeout is None else timeout, stop_after=stop_after)


def pool_options(url: str, configure: Any, cls: type[Connection[Any] | AsyncConnection[Any]]) -> dict[str, Any]:
    kwargs = {"application_name": "paygw-batch jobs", "connect_timeout": int(_TIMEOUT_S)}
    return {"conninfo": url, "connection_class": cls, "kwargs": kwargs, "configure": configure, "timeout": _TIMEOUT_S}


def _configure_connection(connection: Connection[Any]) -> None:
    # Each statement is a transaction, so that a process suspended between statements holds no locks.
    connection.autocommit = True
    for statement in _SESSION_SETTINGS:
        connection.execute(statement)


async def configure_async_connection(connection: AsyncConnection[Any]) -> None:
    await connection.set_autocommit(True)
    for statement in _SESSION_SETTINGS:
        await connection.execute(statement)
