"""Journals that earlier versions recorded open, replay and mean what they meant.

`recorded/version-3.sql` was written by the last program whose settlements did not say on whose word they were: rows 2,
3 and 6 were called rejected by a person (3 was released since), 4 and 5 not received, and 5, held by a statement,
rejected after that. To look at it as a database: `sqlite3 journal.sqlite3 < version-3.sql`.
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from paygw_batch.core.lifecycle import Basis, Resolution, Resolved, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.journal.facts.codec import decode
from paygw_batch.journal.opening.open import SqliteJournal
from paygw_batch.journal.values import Entry
from tests.journal.journal_rows import OPERATION, adopt_at, all_due, at, journal_path, open_at, send

RECORDED = Path(__file__).parent / "recorded" / "version-3.sql"
STANDS = [
    (2, State.REJECTED, None),
    (3, State.READY, None),
    (4, State.READY, 1),
    (5, State.REJECTED, 1),
    (6, State.REJECTED, None),
    (7, State.PAID, None),
]


def put_recorded(place: Path) -> Path:
    """Put the journal of the older version where that of the place is, and return its path."""
    path = journal_path(place)
    path.parent.mkdir(mode=0o700)
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    with closing(sqlite3.connect(path)) as database:
        database.executescript(RECORDED.read_text(encoding="utf-8"))
    return path


@pytest.fixture
def recorded(place: Path) -> SqliteJournal:
    put_recorded(place)
    adopt_at(place)
    return open_at(place)


def test_a_journal_without_a_basis_replays_to_the_same_states(recorded: SqliteJournal) -> None:
    assert [(row.row, row.state, row.possible_duplicate_of) for row in recorded.rows(1)] == STANDS
    counted = recorded.verify()
    assert (counted["facts"], counted["evidence"], counted["contradictions"]) == (21, 2, 1)


def test_what_a_person_called_rejected_then_is_released_as_it_was_then(recorded: SqliteJournal) -> None:
    assert recorded.release(1, [2, 6], suffix=True, by="amina", at=at(10)) == 2
    assert [due.order_id for due in all_due(recorded, 1)] == ["ORD-2-r2", "ORD-3-r2", "ORD-4", "ORD-6-r2"]
    recorded.verify()


def test_the_mark_of_not_received_waits_for_the_quarantine_of_its_attempt(recorded: SqliteJournal) -> None:
    """Row 5 was called not received and then rejected: its attempt's quarantine was over before, and is asked again."""
    assert recorded.release(1, [5], suffix=True, by="amina", at=at(10), left_until=at(0)) == 0
    assert recorded.release(1, [5], suffix=True, by="amina", at=at(10), left_until=at(1)) == 1


def test_facts_of_old_and_new_stand_in_one_chain(recorded: SqliteJournal) -> None:
    (due, *_) = all_due(recorded, 1)
    send(recorded, 1, OutcomeKind.UNKNOWN, at(20))
    recorded.settle([_word(due.number, 2)])
    assert next(row for row in recorded.rows(1) if row.row == due.row).possible_duplicate_of == 2
    recorded.verify()
    assert recorded.compare(OPERATION, [(9, "ORD-3", "other")])[1][0].quarantined_since == at(20)


def test_an_old_fact_reads_without_a_basis() -> None:
    old = decode("resolved_rejected", '{"by":"amina","evidence":"statement"}')
    assert old == Resolved(Resolution.REJECTED, "statement", "amina", None)
    new = decode("resolved_rejected", '{"basis":"person","by":"amina","evidence":"statement"}')
    assert new == Resolved(Resolution.REJECTED, "statement", "amina", Basis.PERSON)


def _word(number: int, attempt: int) -> Entry:
    fact = Resolved(Resolution.REJECTED, "Ticket 4711", "amina", Basis.PERSON)
    return Entry(number, attempt, fact, at(21))
