"""Calls workers to a run, by jobs of procrastinate.

A job only says where to look: what is sent, and by whom, is decided in the journal. If every job is lost, the workers
find the runs that wait in the journal (`tend`).
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
"""The job of a worker that sends a share of a run, and the queue of these jobs."""
_SESSION = (
    f"SET search_path = {JOBS_SCHEMA}, pg_temp".encode(),
    b"SET synchronous_commit = off",  # a job that a crash of the server loses is made again
    b"SET lock_timeout = '5s'",
)
_TIMEOUT_S = 5.0
ANSWER_LIMIT_S = 10.0
"""How long a statement may take. A network may swallow an answer and keep the connection: a worker that waited on for
the job which it had taken would keep its lock for ever, and be taken for alive by its signs of life on another one."""
_HEAR_S = 3600.0
T = TypeVar("T")


def call_workers(url: str, run: SharedRun) -> None:
    """Call a worker that waits to a run. If that fails, workers find the run by themselves a moment later."""
    pool = pool_of(url, _prepare, _Answered)
    app = App(connector=SyncPsycopgConnector(**pool, min_size=1, max_size=1, num_workers=1))
    with suppress(ConnectorException, psycopg.Error, AlreadyEnqueued), app.open():
        lock = share_lock(run)
        if not app.job_manager.list_jobs(queueing_lock=lock, status=Status.TODO.value):
            app.configure_task(SHARE, queue=SHARE, queueing_lock=lock, priority=priority(run)).defer(run=run.number)


def share_lock(run: SharedRun) -> str:
    """Return the name by which no two jobs wait for the same run: the worker that takes one calls the next."""
    return f"{SHARE} {run.number}"


def priority(run: SharedRun) -> int:
    """Return the priority of a run's jobs: workers take the highest first."""
    return 1 if run.is_urgent else 0


class _Answered(Connection[Any]):
    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Wait for the server, no longer than the limit. Raises `psycopg.OperationalError`."""
        try:
            return super().wait(gen, interval, ANSWER_LIMIT_S if timeout is None else timeout)
        except psycopg.OperationalError:
            self.pgconn.finish()
            raise


class AsyncAnswered(AsyncConnection[Any]):
    """A connection of a worker, on which no statement waits without an end."""

    async def wait(
        self,
        gen: PQGen[T],
        interval: float = 0.1,
        timeout: float | None = None,  # noqa: ASYNC109 (psycopg's)
    ) -> T:
        """Wait for the server, no longer than the limit. Raises `psycopg.OperationalError`."""
        try:
            return await super().wait(gen, interval, ANSWER_LIMIT_S if timeout is None else timeout)
        except psycopg.OperationalError:
            self.pgconn.finish()
            raise

    def notifies(self, *, timeout: float | None = None, stop_after: int | None = None) -> AsyncGenerator[Notify]:
        """Yield notifications. These are waited for: procrastinate looks at the connection in between."""
        return super().notifies(timeout=_HEAR_S if timeout is None else timeout, stop_after=stop_after)


def pool_of(url: str, prepare: Any, kind: type[Connection[Any] | AsyncConnection[Any]]) -> dict[str, Any]:
    about = {"application_name": "paygw-batch jobs", "connect_timeout": int(_TIMEOUT_S)}
    return {"conninfo": url, "connection_class": kind, "kwargs": about, "configure": prepare, "timeout": _TIMEOUT_S}


def _prepare(connection: Connection[Any]) -> None:
    # Each statement is a transaction: a process that is frozen between two of them must not hold up the others.
    connection.autocommit = True
    for statement in _SESSION:
        connection.execute(statement)


async def prepare_async(connection: AsyncConnection[Any]) -> None:
    await connection.set_autocommit(True)
    for statement in _SESSION:
        await connection.execute(statement)
