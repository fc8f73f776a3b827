"""A journal in PostgreSQL as the tests of all stores use it."""

import asyncio
from pathlib import Path
from typing import Any

import psycopg

from paygw_batch.cluster.database_place import DatabasePlace
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.journal.port import EngineJournal
from paygw_batch.journal.postgres.postgres_journal import PostgresJournal, PostgresReader, WorkerJournal
from paygw_batch.journal.postgres.session import Server
from paygw_batch.journal.values import MoveResult
from tests.support.journal_rows import AT, ENDPOINT, intent, outcome_of


def postgres_place(url: str, place: Path, **more: float) -> DatabasePlace:
    return DatabasePlace(Server(url), endpoint=ENDPOINT, known_dir=place / "journals", now=lambda: AT, **more)


def open_postgres(place: DatabasePlace) -> PostgresJournal:
    """Open the journal of a place for a run."""
    return place.open_to_write("a test")


def make_postgres(place: DatabasePlace) -> None:
    place.make("a test")


def read_postgres(place: DatabasePlace) -> PostgresReader:
    return place.open_to_read()


def by_hand(at: DatabasePlace, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements as the owner of the tables; return the lines that the last one finds."""
    with psycopg.connect(at.server.url, autocommit=True, options="-c search_path=paygw") as owner:
        *_, cursor = [owner.execute(statement.encode()) for statement in statements]
        return cursor.fetchall() if cursor.description else []


def fall_silent(url: str) -> None:
    """Let each process that lives count as dead, and its intents as old, as if it were frozen for long."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE paygw.process SET intent_lives_s = 0.000001 WHERE ended_at IS NULL")


async def paid_rows(engine: EngineJournal, batch: int, most: int = 1_000) -> list[int]:
    """Send the rows that an engine's journal gives, one at a time; return them."""
    sent: list[int] = []
    while len(sent) < most and (page := await engine.due(batch, limit=1)):
        (due,) = page
        (result,) = await engine.append([intent(due)])
        if result is MoveResult.MOVED:
            sent.append(due.row)
            await engine.append([outcome_of(due.number, due.standing.attempt + 1, OutcomeKind.PAID)])
    return sent


def work(journal: WorkerJournal, most: int = 1_000) -> list[int]:
    """Join a run and send its rows, up to `most`; return those that were sent."""
    run = journal.join_run()
    if run is None:
        return []
    with journal.for_engine() as engine:
        sent = asyncio.run(paid_rows(engine, run.batch, most))
    journal.leave_run()
    return sent
