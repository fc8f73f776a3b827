"""The tallies of chunks in PostgreSQL: what is counted need not be read again, and verify holds it to the rows."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from paygw_batch.core.lifecycle import Resolution, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.opening.open_postgres import PostgresPlace
from paygw_batch.journal.postgres.postgres_reader import PostgresReader
from paygw_batch.journal.values import Amendment, Known, TallyKind
from tests.journal.journal_rows import all_due, at, intent, new_instruction, open_sheet, outcome_of, resolved, row_of
from tests.journal.postgres_rows import open_postgres, postgres_place, read_postgres

READ = """SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0) FROM pg_stat_xact_user_tables
    WHERE relname IN ('instruction', 'standing', 'fact')"""
"""How many rows and facts the open transaction has read."""


@pytest.fixture
def at_database(database: str, place: Path) -> PostgresPlace:
    """A batch of 10 rows in four chunks, of which six rows were sent."""
    found = postgres_place(database, place)
    with closing(open_postgres(found)) as journal:
        open_sheet(journal, "b1", [new_instruction(row) for row in range(2, 12)])
        ends = [OutcomeKind.REJECTED, OutcomeKind.UNKNOWN, OutcomeKind.ACCEPTED, OutcomeKind.PAID] * 2
        for due, kind in zip(all_due(journal, 1)[:6], ends, strict=False):
            journal.append([intent(due, at(1))])
            journal.append([outcome_of(due.number, 1, kind, at(1))])
    return found


@pytest.fixture
def reader(at_database: PostgresPlace) -> Iterator[PostgresReader]:
    with closing(read_postgres(at_database)) as journal:
        yield journal


def by_hand(at_place: PostgresPlace, statement: str) -> None:
    with psycopg.connect(at_place.server.url, autocommit=True) as connection:
        connection.execute("SET search_path = paygw")
        connection.execute(statement.encode())


def counted(journal: PostgresReader, batch: int = 1, kind: TallyKind = TallyKind.ALL) -> dict[State, tuple[int, int]]:
    return {one.state: (one.count, one.minor) for one in journal.tallies(batch, kind=kind)}


def test_counting_reads_no_row_and_no_fact(reader: PostgresReader) -> None:
    connection = reader._session.connection
    ((before,),) = connection.execute(READ).fetchall()
    assert counted(reader) == {
        State.READY: (4, 600_200),
        State.REJECTED: (2, 300_100),
        State.IN_DOUBT: (2, 300_100),
        State.ACCEPTED: (1, 150_050),
        State.PAID: (1, 150_050),
    }
    assert counted(reader, kind=TallyKind.DUE) == {State.READY: (4, 600_200)}
    assert connection.execute(READ).fetchall() == [(before,)]


def test_rows_in_a_state_are_found_chunk_by_chunk_in_the_order_of_the_sheet(reader: PostgresReader) -> None:
    open_ones = {State.REJECTED, State.IN_DOUBT}
    assert [one.row for one in reader.rows(1, states=open_ones)] == [2, 3, 6, 7]
    assert [one.row for one in reader.rows(1, states=open_ones, after=2, limit=2)] == [3, 6]
    assert [one.row for one in reader.rows(1, states=open_ones, limit=3)] == [2, 3, 6]
    assert [one.row for one in reader.rows(1, states={State.READY}, after=8)] == [9, 10, 11]
    assert [one.row for one in reader.rows(1, states={State.RETURNED})] == []
    assert [one.row for one in reader.rows(1, states=open_ones, after=11)] == []


def test_accepted_rows_count_up_to_a_time(reader: PostgresReader) -> None:
    assert State.ACCEPTED not in {one.state for one in reader.tallies(1, accepted_until=at(0))}
    assert [one.count for one in reader.tallies(1, accepted_until=at(1)) if one.state is State.ACCEPTED] == [1]


def test_what_people_do_and_what_a_later_batch_brings_is_counted(at_database: PostgresPlace) -> None:
    with closing(open_postgres(at_database)) as journal:
        doubtful = row_of(journal, 1, 3)
        journal.settle([resolved(doubtful.instruction, 1, Resolution.PAID, at(2))])
        journal.release(1, [2], suffix=True, by="amina", at=at(3))
        changed = new_instruction(6, "ORD-6", amount="1600.00")
        known = [Known(row, row - 1, State.READY) for row in (3, 9)]
        open_sheet(journal, "b2", [changed], known=known, amendments=[Amendment(6, 5)])
        assert counted(journal) == {
            State.READY: (5, 750_250),
            State.IN_DOUBT: (1, 150_050),
            State.ACCEPTED: (1, 150_050),
            State.PAID: (2, 300_100),
            State.REPLACED: (1, 150_050),
        }
        assert counted(journal, 2) == {State.READY: (2, 310_050), State.PAID: (1, 150_050)}
        assert counted(journal, 2, TallyKind.KNOWN) == {State.READY: (1, 150_050), State.PAID: (1, 150_050)}
        assert [one.row for one in journal.rows(2, states={State.PAID})] == [3]
        assert [one.row for one in journal.rows(2, states={State.READY})] == [6, 9]
        journal.verify()


def test_verify_finds_a_chunk_that_is_counted_wrong(at_database: PostgresPlace) -> None:
    by_hand(at_database, "UPDATE chunk_tally SET minor = minor + 1 WHERE state = 'paid'")
    with closing(read_postgres(at_database)) as journal, pytest.raises(JournalCorrupt, match="not counted as its rows"):
        journal.verify()
