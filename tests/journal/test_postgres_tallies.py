"""Counting and finding rows in PostgreSQL: what is not asked for is not read, and verify checks what is counted."""

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
from paygw_batch.journal.postgres.workers import run_now, start_run, waits
from paygw_batch.journal.values import Amendment, Known, TallyKind
from tests.support.journal_rows import (
    WORDS,
    all_due,
    at,
    intent,
    new_instruction,
    open_sheet,
    outcome_of,
    resolved,
    row_of,
    says,
)
from tests.support.postgres_rows import by_hand, open_postgres, postgres_place, read_postgres

READ = """SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0) FROM pg_stat_xact_user_tables
    WHERE relname = ANY (%s)"""
"""How many lines of some tables the open transaction has read."""


@pytest.fixture
def at_database(database: str, place: Path) -> DatabasePlace:
    """A batch of 10 rows, of which six rows were sent."""
    found = postgres_place(database, place)
    with closing(open_postgres(found)) as journal:
        open_sheet(journal, "b1", [new_instruction(row) for row in range(2, 12)])
        ends = [OutcomeKind.REJECTED, OutcomeKind.UNKNOWN, OutcomeKind.ACCEPTED, OutcomeKind.PAID] * 2
        for due, kind in zip(all_due(journal, 1)[:6], ends, strict=False):
            journal.append([intent(due, at(1))])
            journal.append([outcome_of(due.number, 1, kind, at(1))])
    return found


@pytest.fixture
def reader(at_database: DatabasePlace) -> Iterator[PostgresReader]:
    with closing(read_postgres(at_database)) as journal:
        yield journal


def counted(journal: PostgresReader, batch: int = 1, kind: TallyKind = TallyKind.ALL) -> dict[State, tuple[int, int]]:
    return {one.state: (one.count, one.minor) for one in journal.tallies(batch, kind=kind)}


@contextmanager
def at_most_read(journal: PostgresReader, most: int, *tables: str) -> Iterator[None]:
    connection, named = journal._session.connection, list(tables or ("instruction", "state", "fact"))
    with connection.transaction():
        ((before,),) = connection.execute(READ, (named,)).fetchall()
        yield
        ((after,),) = connection.execute(READ, (named,)).fetchall()
    assert after - before <= most


def test_counting_reads_no_instruction_and_no_fact(reader: PostgresReader) -> None:
    with at_most_read(reader, 0, "instruction", "fact"):
        assert counted(reader) == {
            State.READY: (4, 600_200),
            State.REJECTED: (2, 300_100),
            State.IN_DOUBT: (2, 300_100),
            State.ACCEPTED: (1, 150_050),
            State.PAID: (1, 150_050),
        }
        assert counted(reader, kind=TallyKind.DUE) == {State.READY: (4, 600_200)}
    with pytest.raises(AssertionError), at_most_read(reader, 9):
        assert len(list(reader.rows(1))) == 10


def test_rows_are_filtered_by_state_in_order(reader: PostgresReader) -> None:
    open_ones = {State.REJECTED, State.IN_DOUBT}
    assert [one.row for one in reader.rows(1, states=open_ones)] == [2, 3, 6, 7]
    assert [one.row for one in reader.rows(1, states=open_ones, after=2, limit=2)] == [3, 6]
    assert [one.row for one in reader.rows(1, states=open_ones, limit=3)] == [2, 3, 6]
    assert [one.row for one in reader.rows(1, states={State.READY}, after=8)] == [9, 10, 11]
    assert [one.row for one in reader.rows(1, states={State.RETURNED})] == []
    assert [one.row for one in reader.rows(1, states=open_ones, after=11)] == []


def test_tally_counts_accepted_rows_until_time(reader: PostgresReader) -> None:
    assert State.ACCEPTED not in {one.state for one in reader.tallies(1, accepted_until=at(0))}
    assert [one.count for one in reader.tallies(1, accepted_until=at(1)) if one.state is State.ACCEPTED] == [1]


def test_decisions_and_later_batches_are_counted(at_database: DatabasePlace) -> None:
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


LONG = 4_000
"""So many rows that a server which knows its tables does not read them all."""


@pytest.fixture
def long_done(database: str, place: Path) -> Iterator[PostgresJournal]:
    """A batch, all paid but the last row; the gateway says the contrary of ten, and of ten perhaps."""
    with closing(open_postgres(postgres_place(database, place))) as journal:
        open_sheet(journal, "b1", LONG)
        sent = all_due(journal, 1)[:-1]
        journal.append([intent(due, at(1)) for due in sent])
        journal.append([outcome_of(due.number, 1, OutcomeKind.PAID, at(1)) for due in sent])
        told = [says(number, "declined", order_id=f"ORD-{number + 1}") for number in range(1, 11)]
        told += [
            says(number, "declined", order_id=f"ORD-{number + 1}", proof=Proof.UNPROVEN) for number in range(11, 21)
        ]
        journal.record_evidence(told, WORDS, at=at(2))
        journal._session.connection.execute("ANALYZE")
        yield journal


def test_last_due_row_is_found_in_few_reads(long_done: PostgresJournal) -> None:
    with at_most_read(long_done, 40):
        assert [due.row for due in long_done.due(1, after_row=0, limit=1)] == [LONG + 1]
    with at_most_read(long_done, 40):
        assert [*long_done.due(1, after_row=LONG + 1, limit=1)] == []


def test_waiting_run_is_found_without_reading_rows(long_done: PostgresJournal) -> None:
    connection = long_done._session.connection
    run = start_run(connection, batch=1, process=long_done.writer.process)
    with at_most_read(long_done, 40):
        assert waits(connection, run)
    long_done.append([intent(due) for due in all_due(long_done, 1)])
    with at_most_read(long_done, 40):
        assert not waits(connection, run)
        assert not run_now(connection, run.number).is_over, "a row is in flight"
    long_done.append([outcome_of(LONG, 1, OutcomeKind.PAID)])
    with at_most_read(long_done, 40):
        assert not waits(connection, run)
        assert run_now(connection, run.number).is_over


def test_rows_of_other_batches_are_not_read(long_done: PostgresJournal) -> None:
    assert len(long_done.messages(1).contradictions) == 10
    assert len(long_done.messages(1).waiting) == 10
    known = [Known(2, 1, State.PAID), Known(3, 11, State.PAID)]
    open_sheet(long_done, "b2", [new_instruction(row, f"B-{row}") for row in range(4, 14)], known=known)
    long_done.record_evidence([says(61, order_id="B-5")], WORDS, at=at(3))
    long_done._session.connection.execute("ANALYZE")
    with at_most_read(long_done, 300):
        found, counts = long_done.messages(2), long_done.message_counts(2)
    assert counted(long_done, 2, TallyKind.DUE) == {State.READY: (9, 1_350_450)}
    assert [(one.row, one.state) for one in found.contradictions] == [(2, State.PAID), (5, State.READY)]
    assert [one.row for one in found.waiting] == [3]
    assert counts == {"contradicting": 2, "to_confirm": 1}
    with at_most_read(long_done, 100):
        assert list(long_done.holds(2)) == [5]


def test_paged_due_rows_equal_all_due_rows(long_done: PostgresJournal) -> None:
    open_sheet(long_done, "b2", [new_instruction(row, f"B-{row}") for row in range(2, 32)])
    long_done.record_evidence([says(56 + row, order_id=f"B-{row}") for row in range(5, 9)], WORDS, at=at(3))
    known = [Known(row, LONG - 1 + row, State.READY) for row in range(4, 31, 2)]
    known += [Known(row, row, State.PAID) for row in range(3, 31, 2)]
    open_sheet(long_done, "b3", [new_instruction(row, f"C-{row}") for row in (2, 31, 32)], known=known)
    sent = all_due(long_done, 2)[10:20]
    long_done.append([intent(due, at(4)) for due in sent])
    for batch in (2, 3):
        due, page = all_due(long_done, batch), [*long_done.due(batch, after_row=0, limit=1)]
        while more := long_done.due(batch, after_row=page[-1].row, limit=1):
            page += more
        assert page == due
    assert [one.row for one in all_due(long_done, 3)] == [2, 4, 10, 12, 14, 26, 28, 30, 31, 32]


@pytest.mark.parametrize("wrong", ["minor = minor + 1", "currency = 'UGX'", "country = 'UG'", "batch = 2"])
def test_verify_finds_wrongly_counted_row(at_database: DatabasePlace, wrong: str) -> None:
    by_hand(at_database, f"UPDATE state SET {wrong} WHERE instruction = 4")  # noqa: S608 - written above
    with (
        closing(read_postgres(at_database)) as journal,
        pytest.raises(JournalCorrupt, match=r"Instruction 4 .* does not"),
    ):
        journal.verify()


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
    by_hand(at_database, f"INSERT INTO {line}")
    table = line.partition(" ")[0]
    with closing(read_postgres(at_database)) as journal, pytest.raises(JournalCorrupt, match=f"of table {table}"):
        journal.verify()
