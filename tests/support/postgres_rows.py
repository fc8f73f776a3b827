"""A journal in PostgreSQL for the tests that run on all stores."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from paygw_batch.cluster.database_location import DatabaseLocation
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.journal.port import EngineJournal
from paygw_batch.journal.postgres.postgres_journal import PostgresJournal, PostgresReader, WorkerJournal
from paygw_batch.journal.postgres.session import Server
from paygw_batch.journal.values import MoveResult
from tests.support.journal_rows import AT, ENDPOINT, intent, outcome_of


def postgres_location(url: str, folder: Path, **more: float) -> DatabaseLocation:
    return DatabaseLocation(Server(url), endpoint=ENDPOINT, known_dir=folder / "journals", now=lambda: AT, **more)


def open_postgres(location: DatabaseLocation) -> PostgresJournal:
    return location.open_to_write("a test")


def make_postgres(location: DatabaseLocation) -> None:
    location.create("a test")


def read_postgres(location: DatabaseLocation) -> PostgresReader:
    return location.open_to_read()


def execute_as_owner(at: DatabaseLocation, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements as the login of a location, mostly the owner of the tables; return the rows of the last one."""
    with psycopg.connect(at.server.url, autocommit=True, options="-c search_path=paygw") as owner:
        *_, cursor = [owner.execute(statement.encode()) for statement in statements]
        return cursor.fetchall() if cursor.description else []


def is_blocked(at: DatabaseLocation) -> bool:
    """Whether a session of the database waits for another one."""
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return execute_as_owner(at, waits) != [(0,)]


def expire_processes(url: str) -> None:
    """Mark every live process as dead and its intents as old, as if it had been frozen for long."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE paygw.process SET intent_lives_s = 0.000001 WHERE ended_at IS NULL")


async def pay_rows(engine: EngineJournal, batch: int, most: int = 1_000) -> list[int]:
    """Send the rows that an engine's journal yields, one at a time, and return them."""
    sent: list[int] = []
    while len(sent) < most and (page := await engine.due(batch, limit=1)):
        (due,) = page
        (result,) = await engine.append([intent(due)])
        if result is MoveResult.MOVED:
            sent.append(due.row)
            await engine.append([outcome_of(due.number, due.standing.attempt + 1, OutcomeKind.PAID)])
    return sent


def work_on_run(journal: WorkerJournal, most: int = 1_000) -> list[int]:
    """Join a run and send at most `most` of its rows; return those that were sent."""
    run = journal.join_run()
    if run is None:
        return []
    with journal.open_engine_journal() as engine:
        sent = asyncio.run(pay_rows(engine, run.batch, most))
    journal.leave_run()
    return sent


@contextmanager
def triggers_off(at: DatabaseLocation, *tables: str) -> Iterator[None]:
    """Turn the triggers of tables off, as only their owner can, and on again afterwards."""
    query = f"""SELECT format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', tgrelid::regclass, tgname) FROM pg_trigger
        WHERE NOT tgisinternal AND tgrelid::regclass::text = ANY ('{{{",".join(tables)}}}')"""  # noqa: S608 - a test's
    enabled = [statement for (statement,) in execute_as_owner(at, query)]
    execute_as_owner(at, *(f"ALTER TABLE {table} DISABLE TRIGGER USER" for table in tables))
    yield
    execute_as_owner(at, *enabled)
