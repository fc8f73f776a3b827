"""While a host is missing in the roll-call, the database accepts no intents and no decisions."""

from contextlib import closing

import pytest

from paygw_batch.cluster.database_place import DatabasePlace
from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalUnwritable, OpenRollCall
from paygw_batch.journal.postgres.accepted_loss import put_unfinished_in_doubt
from paygw_batch.journal.values import MoveResult, Withdrawal
from tests.support.journal_rows import AT, due_rows, intent, new_instruction, open_sheet, outcome_of
from tests.support.postgres_rows import execute_as_owner, open_postgres, read_postgres

GHOST = "f" * 32


def call_roll_with_ghost(at: DatabasePlace) -> None:
    """Call the roll with a host that does not answer."""
    execute_as_owner(
        at,
        f"INSERT INTO host (host_id, name) VALUES ('{GHOST}', 'ghost')",  # noqa: S608 - a constant
        "INSERT INTO roll_call SELECT number + 1, life, 'a test', false FROM newest_call",
    )
    assert [one.name for one in at.roll_call()] == ["ghost"]


def test_missing_host_stops_new_intents(at_database: DatabasePlace) -> None:
    with closing(open_postgres(at_database)) as journal:
        open_sheet(journal, new=2)
        first, second = due_rows(journal, 1)
        journal.append([intent(first)])
        call_roll_with_ghost(at_database)
        paid = outcome_of(first.number, 1, OutcomeKind.PAID)
        assert [*journal.append([paid])] == [MoveResult.MOVED], "what was in flight is written down"
        with pytest.raises(JournalUnwritable, match="hosts are missing in the roll-call"):
            journal.append([intent(second)])
        assert not journal.writer.may_leave(0.0)
    with pytest.raises(OpenRollCall, match="ghost"):
        open_postgres(at_database)
    execute_as_owner(at_database, f"SELECT retire_host('{GHOST}', 'amina')")
    with closing(open_postgres(at_database)) as journal:
        assert [row.state for row in journal.rows(1)] == [State.PAID, State.READY]
        assert [*journal.append([intent(second)])] == [MoveResult.MOVED]


def test_missing_host_blocks_opening_batch(at_database: DatabasePlace) -> None:
    with closing(open_postgres(at_database)) as journal:
        open_sheet(journal, new=1)
        call_roll_with_ghost(at_database)
        with pytest.raises(JournalUnwritable, match="hosts are missing in the roll-call"):
            open_sheet(journal, "b2", [new_instruction(9)])
    with closing(at_database.open_to_read()) as reader:
        assert len(reader.batches()) == 1


def test_missing_host_blocks_decision_lock(at_database: DatabasePlace) -> None:
    with closing(open_postgres(at_database)) as journal:
        journal.writer.release_decision_lock()
        call_roll_with_ghost(at_database)
        with pytest.raises(JournalUnwritable, match="hosts are missing in the roll-call"):
            journal.reacquire_lock()


def test_plan_is_withdrawn_despite_missing_host(at_database: DatabasePlace) -> None:
    open_postgres(at_database).close()
    call_roll_with_ghost(at_database)
    at_database.withdraw(Withdrawal("1" * 64, "cleo", "{}", AT))
    with closing(read_postgres(at_database)) as reader:
        assert [withdrawal.sha256 for withdrawal in reader.withdrawals()] == ["1" * 64]


def test_retiring_host_puts_sendable_rows_in_doubt(at_database: DatabasePlace) -> None:
    """Nothing is sent for the intents that it writes. Each row that the host could have sent is in doubt."""
    with closing(open_postgres(at_database)) as journal:
        open_sheet(journal, new=2)
        call_roll_with_ghost(at_database)
        assert put_unfinished_in_doubt(journal._session.connection, journal.writer, AT) == 2
        assert [row.state for row in journal.rows(1)] == [State.IN_DOUBT] * 2
        assert journal.verify()["facts"] == 5


def test_program_older_than_tables_sends_nothing(at_database: DatabasePlace) -> None:
    with closing(open_postgres(at_database)) as journal:
        open_sheet(journal, new=2)
        first, second = due_rows(journal, 1)
        journal.append([intent(first)])
        execute_as_owner(at_database, "INSERT INTO migration VALUES (99, '2026-11-21T08:00:00.000Z')")
        paid = outcome_of(first.number, 1, OutcomeKind.PAID)
        assert [*journal.append([paid])] == [MoveResult.MOVED]
        with pytest.raises(JournalUnwritable, match="install that version"):
            journal.append([intent(second)])
