"""A journal in PostgreSQL as the tests of all stores use it."""

from collections.abc import Sequence
from pathlib import Path

from paygw_batch.core.lifecycle import Intended
from paygw_batch.journal.opening.database_place import DatabasePlace
from paygw_batch.journal.postgres.postgres_journal import PostgresJournal
from paygw_batch.journal.postgres.postgres_reader import PostgresReader
from paygw_batch.journal.postgres.session import Server
from paygw_batch.journal.values import Entry, MoveResult
from tests.journal.journal_rows import AT, ENDPOINT


class LeasingPostgres(PostgresJournal):
    """The journal of a run, which leases the chunk of every row that a test sends, as an engine's `due` does."""

    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        sent = sorted({entry.instruction for entry in entries if isinstance(entry.fact, Intended)})
        self.writer.lease_chunks(self.writer.chunks_of(sent).values())
        return super().append(entries)


def postgres_place(url: str, place: Path, **more: float) -> DatabasePlace:
    return DatabasePlace(
        Server(url),
        place / "state" / "journal.inbox",
        endpoint=ENDPOINT,
        known_dir=place / "journals",
        now=lambda: AT,
        **{"chunk_rows": 3, **more},  # type: ignore[arg-type]  # figures of a test
    )


def open_postgres(place: DatabasePlace) -> LeasingPostgres:
    """Open the journal of a place for a run."""
    with_it = place.open_to_write("a test")
    with_it.__class__ = LeasingPostgres
    assert isinstance(with_it, LeasingPostgres)
    return with_it


def make_postgres(place: DatabasePlace) -> None:
    place.make("a test")


def read_postgres(place: DatabasePlace) -> PostgresReader:
    return place.open_to_read()
