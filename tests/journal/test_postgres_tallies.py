"""Counts and finds rows in PostgreSQL without reading others, and verifies the stored counts."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from paygw_batch.cluster.database_location import DatabaseLocation
from paygw_batch.core.evidence import Proof
from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.journal.postgres.postgres_journal import PostgresJournal, PostgresReader
from paygw_batch.journal.postgres.workers import load_run, needs_worker, start_run
from paygw_batch.journal.values import KnownRow, TallyKind
from tests.support.journal_rows import (
    WORDS,
    at,
    build_evidence,
    due_rows,
    intent,
    new_instruction,
    open_sheet,
    outcome_of,
)
from tests.support.postgres_rows import open_postgres, postgres_place, read_postgres

READ = """SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0) FROM pg_stat_xact_user_tables
    WHERE relname = ANY (%s)"""
"""Queries the number of lines that the open transaction has read from some tables."""


@pytest.fixture
def at_database(database: str, place: Path) -> DatabaseLocation:
    """Return a database with a batch of 10 rows, of which six were sent."""
    found = postgres_place(database, place)
    with closing(open_postgres(found)) as journal:
        open_sheet(journal, "b1", [new_instruction(row) for row in range(2, 12)])
        ends = [OutcomeKind.REJECTED, OutcomeKind.UNKNOWN, OutcomeKind.ACCEPTED, OutcomeKind.PAID] * 2
        for due, kind in zip(due_rows(journal, 1)[:6], ends, strict=False):
            journal.append([intent(due, at(1))])
            journal.append([outcome_of(due.number, 1, kind, at(1))])
    return found


@pytest.fixture
def reader(at_database: DatabaseLocation) -> Iterator[PostgresReader]:
    with closing(read_postgres(at_database)) as journal:
        yield journal


def count_rows(
    journal: PostgresReader, batch: int = 1, kind: TallyKind = TallyKind.ALL
) -> dict[State, tuple[int, int]]:
    return {tally.state: (tally.count, tally.minor) for tally in journal.tallies(batch, kind=kind)}


@contextmanager
def reading_at_most(journal: PostgresReader, most: int, *tables: str) -> Iterator[None]:
    connection, named = journal._session.connection, list(tables or ("instruction", "state", "fact"))
    with connection.transaction():
        ((before,),) = connection.execute(READ, (named,)).fetchall()
        yield
        ((after,),) = connection.execute(READ, (named,)).fetchall()
    assert after - before <= most


def test_counting_reads_only_tallies(reader: PostgresReader) -> None:
    with reading_at_most(reader, 0, "instruction", "fact"):
        counts = {State.READY: 4, State.REJECTED: 2, State.IN_DOUBT: 2, State.ACCEPTED: 1, State.PAID: 1}
        assert count_rows(reader) == {state: (count, count * 150_050) for state, count in counts.items()}
        assert count_rows(reader, kind=TallyKind.DUE) == {State.READY: (4, 600_200)}
    with pytest.raises(AssertionError), reading_at_most(reader, 9):
        assert len(list(reader.rows(1))) == 10


LONG = 1_500
"""So many rows that a server with statistics does not read all of them."""


@pytest.fixture
def finished_batches(database: str, place: Path) -> Iterator[PostgresJournal]:
    """Yield a batch that is paid except for its last row, with ten contradicting and ten ambiguous messages."""
    with closing(open_postgres(postgres_place(database, place))) as journal:
        open_sheet(journal, "b1", LONG)
        sent = due_rows(journal, 1)[:-1]
        journal.append([intent(due, at(1)) for due in sent])
        journal.append([outcome_of(due.number, 1, OutcomeKind.PAID, at(1)) for due in sent])
        evidence = [build_evidence(number, "declined", order_id=f"ORD-{number + 1}") for number in range(1, 11)]
        evidence += [
            build_evidence(number, "declined", order_id=f"ORD-{number + 1}", proof=Proof.UNPROVEN)
            for number in range(11, 21)
        ]
        journal.record_evidence(evidence, WORDS, at=at(2))
        journal._session.connection.execute("ANALYZE")
        yield journal


def test_last_due_row_is_found_in_few_reads(finished_batches: PostgresJournal) -> None:
    with reading_at_most(finished_batches, 40):
        assert [due.row for due in finished_batches.due(1, after_row=0, limit=1)] == [LONG + 1]
    with reading_at_most(finished_batches, 40):
        assert [*finished_batches.due(1, after_row=LONG + 1, limit=1)] == []


def test_run_needing_worker_is_found_without_reading_rows(finished_batches: PostgresJournal) -> None:
    connection = finished_batches._session.connection
    run = start_run(connection, batch=1, process=finished_batches.writer.process)
    with reading_at_most(finished_batches, 40):
        assert needs_worker(connection, run)
    finished_batches.append([intent(due) for due in due_rows(finished_batches, 1)])
    with reading_at_most(finished_batches, 40):
        assert not needs_worker(connection, run)
        assert not load_run(connection, run.number).is_finished, "a row is in flight"
    finished_batches.append([outcome_of(LONG, 1, OutcomeKind.PAID)])
    with reading_at_most(finished_batches, 40):
        assert not needs_worker(connection, run)
        assert load_run(connection, run.number).is_finished


def test_rows_of_other_batches_are_not_read(finished_batches: PostgresJournal) -> None:
    assert len(finished_batches.messages(1).contradictions) == 10
    assert len(finished_batches.messages(1).waiting) == 10
    known = [KnownRow(2, 1, State.PAID), KnownRow(3, 11, State.PAID)]
    open_sheet(finished_batches, "b2", [new_instruction(row, f"B-{row}") for row in range(4, 14)], known=known)
    finished_batches.record_evidence([build_evidence(61, order_id="B-5")], WORDS, at=at(3))
    finished_batches._session.connection.execute("ANALYZE")
    with reading_at_most(finished_batches, 300):
        found, counts = finished_batches.messages(2), finished_batches.message_counts(2)
    assert count_rows(finished_batches, 2, TallyKind.DUE) == {State.READY: (9, 1_350_450)}
    assert [(one.row, one.state) for one in found.contradictions] == [(2, State.PAID), (5, State.READY)]
    assert [message.row for message in found.waiting] == [3]
    assert counts == {"contradicting": 2, "to_confirm": 1}
    with reading_at_most(finished_batches, 100):
        assert list(finished_batches.holds(2)) == [5]


def test_paged_due_rows_equal_all_due_rows(finished_batches: PostgresJournal) -> None:
    open_sheet(finished_batches, "b2", [new_instruction(row, f"B-{row}") for row in range(2, 32)])
    finished_batches.record_evidence(
        [build_evidence(56 + row, order_id=f"B-{row}") for row in range(5, 9)], WORDS, at=at(3)
    )
    known = [KnownRow(row, LONG - 1 + row, State.READY) for row in range(4, 31, 2)]
    known += [KnownRow(row, row, State.PAID) for row in range(3, 31, 2)]
    open_sheet(finished_batches, "b3", [new_instruction(row, f"C-{row}") for row in (2, 31, 32)], known=known)
    sent = due_rows(finished_batches, 2)[10:20]
    finished_batches.append([intent(due, at(4)) for due in sent])
    for batch in (2, 3):
        due, page = due_rows(finished_batches, batch), [*finished_batches.due(batch, after_row=0, limit=1)]
        while more := finished_batches.due(batch, after_row=page[-1].row, limit=1):
            page += more
        assert page == due
    assert [row.row for row in due_rows(finished_batches, 3)] == [2, 4, 10, 12, 14, 26, 28, 30, 31, 32]
