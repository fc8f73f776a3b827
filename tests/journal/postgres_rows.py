"""A journal in PostgreSQL as the tests of all stores use it."""

from pathlib import Path

import psycopg

from paygw_batch.cluster.database_place import DatabasePlace
from paygw_batch.journal.postgres.postgres_journal import PostgresJournal, PostgresReader
from paygw_batch.journal.postgres.session import Server
from tests.journal.journal_rows import AT, ENDPOINT


def postgres_place(url: str, place: Path, **more: float) -> DatabasePlace:
    return DatabasePlace(
        Server(url),
        endpoint=ENDPOINT,
        known_dir=place / "journals",
        now=lambda: AT,
        **more,
    )


def open_postgres(place: DatabasePlace) -> PostgresJournal:
    """Open the journal of a place for a run."""
    return place.open_to_write("a test")


def make_postgres(place: DatabasePlace) -> None:
    place.make("a test")


def read_postgres(place: DatabasePlace) -> PostgresReader:
    return place.open_to_read()


def fall_silent(url: str) -> None:
    """Let each process that lives count as dead, and its intents as old, as if it were frozen for long."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE paygw.process SET intent_lives_s = 0.000001 WHERE ended_at IS NULL")
