"""The SQL of the stores: its names and comments, and that counting and finding rows read no others."""

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from paygw_batch.cluster.database_location import DatabaseLocation
from paygw_batch.core.evidence import Proof
from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.journal.postgres.postgres_journal import PostgresJournal, PostgresReader
from paygw_batch.journal.postgres.workers import end_unless_work_remains, load_run, start_run
from paygw_batch.journal.sqlite import sqlite_tables
from paygw_batch.journal.values import KnownRow, TallyKind
from tests.support.checkout import ROOT
from tests.support.journal_rows import (
    WORDS,
    at,
    build_evidence,
    due_rows,
    intent,
    memory_journal,
    new_instruction,
    open_sheet,
    outcome_of,
)
from tests.support.postgres_rows import open_postgres


def tallied(journal: PostgresReader, batch: int = 1, kind: TallyKind = TallyKind.ALL) -> dict[State, tuple[int, int]]:
    return {tally.state: (tally.count, tally.minor) for tally in journal.tallies(batch, kind=kind)}


JOURNAL = ROOT / "paygw_batch" / "journal"
OF_ONE_STORE = {
    "evidence.sql": {"left_in_flight", "lock_rows", "lock_documents"},
    "replay.sql": {"all_facts", "ends", "last_facts"},
    "outbox.sql": {"newest_of_run", "end_runs", "may_decide"},
    "journal.sql": {
        *("add_spelling", "add_reference", "odd_ids", "odd_ids_from", "references", "spellings"),
        *("first_rows", "newest_fact_time", "chain_ends", "lock_audit_trail"),
    },
}
"""Statements that the other store does not need."""


def test_each_statement_has_comment_and_unique_name() -> None:
    texts = [path.read_text(encoding="utf-8") for path in JOURNAL.rglob("*.sql")]
    named = [text for text in texts if "-- name: " in text]
    assert len(named) > 10
    for text in named:
        names = re.findall(r"^-- (?:name|part): (\w+)$", text, re.MULTILINE)
        commented = re.findall(r"^-- (?:name|part): (\w+)\n-- [A-Z].*\.?\n", text, re.MULTILINE)
        assert commented == names == [*dict.fromkeys(names)]


@pytest.mark.parametrize("file", OF_ONE_STORE)
def test_both_databases_have_all_shared_statements(file: str) -> None:
    shared, *stores = (
        set(re.findall(r"^-- name: (\w+)$", (JOURNAL / place / file).read_text(encoding="utf-8"), re.MULTILINE))
        for place in (".", "sqlite", "postgres")
    )
    assert stores[0] ^ stores[1] == OF_ONE_STORE[file]
    assert shared.isdisjoint(stores[0] | stores[1])


@pytest.mark.parametrize("name", ["holds", "waiting", "contradictions", "counts_of_batch", "history", "payments"])
def test_rare_rows_are_found_without_full_scan(name: str) -> None:
    query = f"EXPLAIN QUERY PLAN {sqlite_tables.QUERIES[name]}"
    plan = [line[3] for line in memory_journal()._connection.execute(query, defaultdict(int))]
    assert not [step for step in plan if step.startswith(("MATERIALIZE covered", "SCAN instruction", "SCAN i"))]


@contextmanager
def reading_at_most(journal: PostgresReader, most: int, *tables: str) -> Iterator[None]:
    """Check how many lines the block reads from some tables, in one transaction."""
    read = """SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0) FROM pg_stat_xact_user_tables
        WHERE relname = ANY (%s)"""
    connection, named = journal._session.connection, list(tables or ("instruction", "state", "fact"))
    with connection.transaction():
        ((before,),) = connection.execute(read, (named,)).fetchall()
        yield
        ((after,),) = connection.execute(read, (named,)).fetchall()
    assert after - before <= most


def test_counting_reads_only_tallies(at_database: DatabaseLocation) -> None:
    ends = [OutcomeKind.REJECTED, OutcomeKind.UNKNOWN, OutcomeKind.ACCEPTED, OutcomeKind.PAID] * 2
    with closing(open_postgres(at_database)) as journal:
        open_sheet(journal, new=10)
        for due, kind in zip(due_rows(journal, 1)[:6], ends, strict=False):
            journal.append([intent(due, at(1)), outcome_of(due.number, 1, kind, at(1))])
        with reading_at_most(journal, 0, "instruction", "fact"):
            counts = {State.READY: 4, State.REJECTED: 2, State.IN_DOUBT: 2, State.ACCEPTED: 1, State.PAID: 1}
            assert tallied(journal) == {state: (count, count * 150_050) for state, count in counts.items()}
            assert tallied(journal, kind=TallyKind.DUE) == {State.READY: (4, 600_200)}
        with pytest.raises(AssertionError), reading_at_most(journal, 9):
            assert len(list(journal.rows(1))) == 10


LONG = 1_500  # so many rows that a server with statistics does not read all of them


@pytest.fixture
def finished_batches(at_database: DatabaseLocation) -> Iterator[PostgresJournal]:
    """Yield a batch that is paid except for its last row, with ten contradicting and ten ambiguous messages."""
    with closing(open_postgres(at_database)) as journal:
        open_sheet(journal, "b1", LONG)
        sent = due_rows(journal, 1)[:-1]
        journal.append([intent(due, at(1)) for due in sent])
        journal.append([outcome_of(due.number, 1, OutcomeKind.PAID, at(1)) for due in sent])
        evidence = [
            build_evidence(n, "declined", order_id=f"ORD-{n + 1}", proof=Proof.PROVEN if n < 11 else Proof.UNPROVEN)
            for n in range(1, 21)
        ]
        journal.record_evidence(evidence, WORDS, at=at(2))
        journal._session.connection.execute("ANALYZE")
        yield journal


def test_due_row_and_run_need_few_reads(finished_batches: PostgresJournal) -> None:
    for after, found in ((0, [LONG + 1]), (LONG + 1, [])):
        with reading_at_most(finished_batches, 40):
            assert [due.row for due in finished_batches.due(1, after_row=after, limit=1)] == found
    connection = finished_batches._session.connection
    run = start_run(connection, batch=1, process=finished_batches.writer.process)
    with reading_at_most(finished_batches, 40):
        assert end_unless_work_remains(connection, run)
    (due,) = due_rows(finished_batches, 1)
    for entry, is_finished in ((intent(due), False), (outcome_of(LONG, 1, OutcomeKind.PAID), True)):
        finished_batches.append([entry])
        with reading_at_most(finished_batches, 40):
            assert not end_unless_work_remains(connection, run)
            assert load_run(connection, run.number).is_finished is is_finished


def test_rows_of_other_batches_are_not_read(finished_batches: PostgresJournal) -> None:
    assert len(finished_batches.messages(1).contradictions) == 10
    assert len(finished_batches.messages(1).waiting) == 10
    known = [KnownRow(2, 1, State.PAID), KnownRow(3, 11, State.PAID)]
    open_sheet(finished_batches, "b2", [new_instruction(row, f"B-{row}") for row in range(4, 14)], known=known)
    finished_batches.record_evidence([build_evidence(61, order_id="B-5")], WORDS, at=at(3))
    finished_batches._session.connection.execute("ANALYZE")
    with reading_at_most(finished_batches, 300):
        found, counts = finished_batches.messages(2), finished_batches.message_counts(2)
    assert tallied(finished_batches, 2, TallyKind.DUE) == {State.READY: (9, 1_350_450)}
    assert [(one.row, one.state) for one in found.contradictions] == [(2, State.PAID), (5, State.READY)]
    assert [message.row for message in found.waiting] == [3]
    assert counts == {"contradicting": 2, "to_confirm": 1}
    with reading_at_most(finished_batches, 100):
        assert list(finished_batches.holds(2)) == [5]


def test_paged_due_rows_equal_all_due_rows(finished_batches: PostgresJournal) -> None:
    open_sheet(finished_batches, "b2", [new_instruction(row, f"B-{row}") for row in range(2, 32)])
    evidence = [build_evidence(56 + row, order_id=f"B-{row}") for row in range(5, 9)]
    finished_batches.record_evidence(evidence, WORDS, at=at(3))
    known = [KnownRow(row, LONG - 1 + row, State.READY) for row in range(4, 31, 2)]
    known += [KnownRow(row, row, State.PAID) for row in range(3, 31, 2)]
    open_sheet(finished_batches, "b3", [new_instruction(row, f"C-{row}") for row in (2, 31, 32)], known=known)
    finished_batches.append([intent(due, at(4)) for due in due_rows(finished_batches, 2)[10:20]])
    for batch in (2, 3):
        due, page = due_rows(finished_batches, batch), [*finished_batches.due(batch, after_row=0, limit=1)]
        while more := finished_batches.due(batch, after_row=page[-1].row, limit=1):
            page += more
        assert page == due
    assert [row.row for row in due_rows(finished_batches, 3)] == [2, 4, 10, 12, 14, 26, 28, 30, 31, 32]
