"""Calls workers to a run, by jobs of procrastinate.

A job only names a run. The journal decides which rows are sent, and by which worker. If every job is lost, the workers
find the waiting runs in the journal (`tend`).
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
"""The name of the job by which a worker sends a share of a run, and of the queue of these jobs."""
_SESSION = (
    f"SET search_path = {JOBS_SCHEMA}, pg_temp".encode(),
    b"SET synchronous_commit = off",  # if a crash of the server loses a job, another one is made
    b"SET lock_timeout = '5s'",
)
_TIMEOUT_S = 5.0
ANSWER_LIMIT_S = 10.0
"""How long a statement may take. A network may lose an answer and keep the connection. A worker that waited without end
for a job that it had taken would keep the job's lock forever, while another connection shows that the worker lives."""
_HEAR_S = 3600.0
T = TypeVar("T")


def call_workers(url: str, run: SharedRun) -> None:
    """Call a waiting worker to a run. If that fails, workers find the run by themselves a moment later."""
    pool = pool_of(url, _prepare, _Answered)
    app = App(connector=SyncPsycopgConnector(**pool, min_size=1, max_size=1, num_workers=1))
    with suppress(ConnectorException, psycopg.Error, AlreadyEnqueued), app.open():
        lock = share_lock(run)
        if not app.job_manager.list_jobs(queueing_lock=lock, status=Status.TODO.value):
            app.configure_task(SHARE, queue=SHARE, queueing_lock=lock, priority=priority(run)).defer(run=run.number)


def share_lock(run: SharedRun) -> str:
    """Return the name by which no two jobs wait for the same run. The worker that takes a job calls the next worker."""
    return f"{SHARE} {run.number}"


def priority(run: SharedRun) -> int:
    """Return the priority of a run's jobs: workers take the highest first."""
    return 1 if run.is_urgent else 0


class _Answered(Connection[Any]):
    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Wait for the server, no longer than `ANSWER_LIMIT_S`. Raises `psycopg.OperationalError`."""
        try:
            return super().wait(gen, interval, ANSWER_LIMIT_S if timeout is None else timeout)
        except psycopg.OperationalError:
            self.pgconn.finish()
            raise


class AsyncAnswered(AsyncConnection[Any]):
    """A connection of a worker on which no statement waits without end."""

    async def wait(
        self,
        gen: PQGen[T],
        interval: float = 0.1,
        timeout: float | None = None,  # noqa: ASYNC109 (psycopg has this argument)
    ) -> T:
        """Wait for the server, no longer than `ANSWER_LIMIT_S`. Raises `psycopg.OperationalError`."""
        try:
            return await super().wait(gen, interval, ANSWER_LIMIT_S if timeout is None else timeout)
        except psycopg.OperationalError:
            self.pgconn.finish()
            raise

    def notifies(self, *, timeout: float | None = None, stop_after: int | None = None) -> AsyncGenerator[Notify]:
        """Yield notifications. The wait for one may be long: procrastinate checks the connection in between."""
        return super().notifies(timeout=_HEAR_S if timeout is None else timeout, stop_after=stop_after)


def pool_of(url: str, prepare: Any, kind: type[Connection[Any] | AsyncConnection[Any]]) -> dict[str, Any]:
    about = {"application_name": "paygw-batch jobs", "connect_timeout": int(_TIMEOUT_S)}
    return {"conninfo": url, "connection_class": kind, "kwargs": about, "configure": prepare, "timeout": _TIMEOUT_S}


def _prepare(connection: Connection[Any]) -> None:
    # Each statement is a transaction, so that a process that is frozen between two statements holds no lock.
    connection.autocommit = True
    for statement in _SESSION:
        connection.execute(statement)


async def prepare_async(connection: AsyncConnection[Any]) -> None:
    await connection.set_autocommit(True)
    for statement in _SESSION:
        await connection.execute(statement)
