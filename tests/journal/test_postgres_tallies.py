"""Counts and finds rows in PostgreSQL without reading others, and verifies the stored counts."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from paygw_batch.cluster.database_place import DatabasePlace
from paygw_batch.core.evidence import Proof
from paygw_batch.core.lifecycle import Resolution, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.postgres.postgres_journal import PostgresJournal, PostgresReader
from paygw_batch.journal.postgres.workers import is_waiting, load_run, start_run
from paygw_batch.journal.values import Amendment, KnownRow, TallyKind
from tests.support.journal_rows import (
    WORDS,
    at,
    build_evidence,
    due_rows,
    intent,
    new_instruction,
    open_sheet,
    outcome_of,
    resolved,
    row_of,
)
from tests.support.postgres_rows import execute_as_owner, open_postgres, postgres_place, read_postgres

READ = """SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0) FROM pg_stat_xact_user_tables
    WHERE relname = ANY (%s)"""
"""Queries the number of lines that the open transaction has read from some tables."""


@pytest.fixture
def at_database(database: str, place: Path) -> DatabasePlace:
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
def reader(at_database: DatabasePlace) -> Iterator[PostgresReader]:
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


def test_counting_reads_no_instruction_and_no_fact(reader: PostgresReader) -> None:
    with reading_at_most(reader, 0, "instruction", "fact"):
        assert count_rows(reader) == {
            State.READY: (4, 600_200),
            State.REJECTED: (2, 300_100),
            State.IN_DOUBT: (2, 300_100),
            State.ACCEPTED: (1, 150_050),
            State.PAID: (1, 150_050),
        }
        assert count_rows(reader, kind=TallyKind.DUE) == {State.READY: (4, 600_200)}
    with pytest.raises(AssertionError), reading_at_most(reader, 9):
        assert len(list(reader.rows(1))) == 10


def test_rows_are_filtered_by_state_in_order(reader: PostgresReader) -> None:
    open_ones = {State.REJECTED, State.IN_DOUBT}
    assert [row.row for row in reader.rows(1, states=open_ones)] == [2, 3, 6, 7]
    assert [row.row for row in reader.rows(1, states=open_ones, after=2, limit=2)] == [3, 6]
    assert [row.row for row in reader.rows(1, states=open_ones, limit=3)] == [2, 3, 6]
    assert [row.row for row in reader.rows(1, states={State.READY}, after=8)] == [9, 10, 11]
    assert [row.row for row in reader.rows(1, states={State.RETURNED})] == []
    assert [row.row for row in reader.rows(1, states=open_ones, after=11)] == []


def test_tally_counts_accepted_rows_until_time(reader: PostgresReader) -> None:
    assert State.ACCEPTED not in {tally.state for tally in reader.tallies(1, accepted_until=at(0))}
    assert [tally.count for tally in reader.tallies(1, accepted_until=at(1)) if tally.state is State.ACCEPTED] == [1]


def test_decisions_and_later_batches_are_counted(at_database: DatabasePlace) -> None:
    with closing(open_postgres(at_database)) as journal:
        doubtful = row_of(journal, 1, 3)
        journal.settle([resolved(doubtful.instruction, 1, Resolution.PAID, at(2))])
        journal.release(1, [2], suffix=True, by="amina", at=at(3))
        changed = new_instruction(6, "ORD-6", amount="1600.00")
        known = [KnownRow(row, row - 1, State.READY) for row in (3, 9)]
        open_sheet(journal, "b2", [changed], known=known, amendments=[Amendment(6, 5)])
        assert count_rows(journal) == {
            State.READY: (5, 750_250),
            State.IN_DOUBT: (1, 150_050),
            State.ACCEPTED: (1, 150_050),
            State.PAID: (2, 300_100),
            State.REPLACED: (1, 150_050),
        }
        assert count_rows(journal, 2) == {State.READY: (2, 310_050), State.PAID: (1, 150_050)}
        assert count_rows(journal, 2, TallyKind.KNOWN) == {State.READY: (1, 150_050), State.PAID: (1, 150_050)}
        assert [row.row for row in journal.rows(2, states={State.PAID})] == [3]
        assert [row.row for row in journal.rows(2, states={State.READY})] == [6, 9]
        journal.verify()


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


def test_waiting_run_is_found_without_reading_rows(finished_batches: PostgresJournal) -> None:
    connection = finished_batches._session.connection
    run = start_run(connection, batch=1, process=finished_batches.writer.process)
    with reading_at_most(finished_batches, 40):
        assert is_waiting(connection, run)
    finished_batches.append([intent(due) for due in due_rows(finished_batches, 1)])
    with reading_at_most(finished_batches, 40):
        assert not is_waiting(connection, run)
        assert not load_run(connection, run.number).is_over, "a row is in flight"
    finished_batches.append([outcome_of(LONG, 1, OutcomeKind.PAID)])
    with reading_at_most(finished_batches, 40):
        assert not is_waiting(connection, run)
        assert load_run(connection, run.number).is_over


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
    assert [(contradiction.row, contradiction.state) for contradiction in found.contradictions] == [
        (2, State.PAID),
        (5, State.READY),
    ]
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


@pytest.mark.share(3)
@pytest.mark.parametrize("wrong", ["minor = minor + 1", "currency = 'UGX'", "country = 'UG'", "batch = 2"])
def test_verify_finds_wrongly_counted_row(at_database: DatabasePlace, wrong: str) -> None:
    execute_as_owner(at_database, f"UPDATE state SET {wrong} WHERE instruction = 4")  # noqa: S608 - written above
    with (
        closing(read_postgres(at_database)) as journal,
        pytest.raises(JournalCorrupt, match=r"Instruction 4 .* does not"),
    ):
        journal.verify()


@pytest.mark.share(3)
@pytest.mark.parametrize(
    "line",
    [
        "state (instruction, batch, country, currency, minor) VALUES (999, 1, 'KE', 'KES', 5)",
        "contradiction VALUES (999999, 'ready')",
        "said VALUES (999999, decode(repeat('00', 16), 'hex'), 'x')",
        "reply VALUES (999999, 1, '', '')",
    ],
)
def test_verify_finds_orphaned_tally_line(at_database: DatabasePlace, line: str) -> None:
    execute_as_owner(at_database, f"INSERT INTO {line}")
    table = line.partition(" ")[0]
    with closing(read_postgres(at_database)) as journal, pytest.raises(JournalCorrupt, match=f"of table {table}"):
        journal.verify()
