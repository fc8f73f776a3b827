"""The desk: one process has it, and another one takes it over from a dead or silent one, which then writes nothing."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from paygw_batch.cluster.database_place import DatabasePlace
from paygw_batch.core.lifecycle import Replaced
from paygw_batch.errors import DocumentWithdrawn, JournalError, JournalHeld, JournalUnwritable
from paygw_batch.journal.new_batch import BatchPart, InstructionRows
from paygw_batch.journal.postgres.session import Server
from paygw_batch.journal.values import Entry, NewBatch, Withdrawal
from tests.support.journal_rows import AT, new_instruction, open_sheet
from tests.support.patience import until
from tests.support.postgres_rows import fall_silent, open_postgres, postgres_place, read_postgres
from tests.support.postgres_server import PostgresServer
from tests.support.wire_proxy import Trouble, wire_proxy

PLAN = "1" * 64
GONE = "pid = 999999999"
"""As no process of this machine is called."""


@pytest.fixture
def at_database(database: str, place: Path) -> DatabasePlace:
    """No sign of life is shown while a test lasts: what it says of them is what counts."""
    return postgres_place(database, place, intent_lives_s=600.0)


def withdrawal(document: str = PLAN) -> Withdrawal:
    return Withdrawal(document, "cleo", "{}", AT)


def change_process(at: DatabasePlace, change: str) -> None:
    """Change what the database knows of all processes."""
    with psycopg.connect(at.server.url, autocommit=True) as connection:
        connection.execute("ALTER TABLE paygw.process DISABLE TRIGGER end_is_final")
        connection.execute(f"UPDATE paygw.process SET {change}".encode())  # noqa: S608 - a test's
        connection.execute("ALTER TABLE paygw.process ENABLE ALWAYS TRIGGER end_is_final")


def test_second_run_error_names_desk_holder(at_database: DatabasePlace) -> None:
    with closing(open_postgres(at_database)), pytest.raises(JournalHeld, match=r"process \d+ on .*: a test"):
        open_postgres(at_database)
    open_postgres(at_database).close()


def test_process_with_lost_desk_writes_nothing(at_database: DatabasePlace) -> None:
    with closing(open_postgres(at_database)) as journal:
        fall_silent(at_database.server.url)
        with closing(open_postgres(at_database)) as taker:
            open_sheet(taker, new=1)
            with pytest.raises(JournalError, match="taken over"):
                journal.withdraw(withdrawal())
            with pytest.raises(psycopg.Error, match="another process has the desk"):
                journal.writer.record([Entry(1, 0, Replaced("b2", 2), AT)])
            with pytest.raises(JournalHeld):
                journal.writer.take_desk()
        journal.writer.take_desk()
        journal.withdraw(withdrawal())


def test_ended_process_releases_desk_at_once(at_database: DatabasePlace) -> None:
    with closing(open_postgres(at_database)) as journal:
        change_process(at_database, GONE)
        with closing(open_postgres(at_database)) as taker:
            open_sheet(taker, new=1)
            with pytest.raises(JournalError, match="taken over"):
                journal.withdraw(withdrawal())


@pytest.mark.parametrize("elsewhere", ["host = 'another'", "boot = 'another'"])
def test_process_on_other_machine_counts_as_alive(at_database: DatabasePlace, elsewhere: str) -> None:
    with closing(open_postgres(at_database)) as journal:
        change_process(at_database, f"{GONE}, {elsewhere}")
        with pytest.raises(JournalHeld, match="process 999999999"):
            open_postgres(at_database)
        journal.withdraw(withdrawal())


def test_only_first_of_two_processes_gets_desk(at_database: DatabasePlace) -> None:
    numbers = []
    for _ in range(3):
        with closing(open_postgres(at_database)) as journal:
            numbers.append(journal.writer.process)
    change_process(at_database, "ended_at = NULL, seen_at = now()")
    url = at_database.server.url

    def taken(connection: psycopg.Connection[Any], number: int) -> Any:
        return connection.execute("SELECT paygw.take_desk(%s, '{}')", (number,)).fetchall()

    with psycopg.connect(url) as one, psycopg.connect(url, autocommit=True) as other:
        other.execute("SET search_path = paygw")
        one.execute("SET search_path = paygw")
        holder, first, second = numbers
        assert taken(other, holder) == [(True,)]
        other.execute("UPDATE process SET seen_at = now() - interval '1 h' WHERE number = %s", (holder,))
        assert taken(one, first) == [(True,)]
        assert taken(other, second) == [(False,)], "the other one is about to have it"
        one.commit()
        assert taken(other, second) == [(False,)]
        assert other.execute("SELECT process FROM desk").fetchall() == [(first,)]


def test_a_long_transaction_keeps_the_desk(at_database: DatabasePlace) -> None:
    """From its first fact on no sign of life gets through: that is written into the same line of the process."""
    is_alive = "SELECT paygw.is_alive(%s)"
    with closing(open_postgres(replace(at_database, intent_lives_s=0.5))) as journal:
        with journal.writer.at_desk(), psycopg.connect(at_database.server.url, autocommit=True) as connection:
            journal._evidence.keep(journal._record, withdrawal())
            until(lambda: connection.execute(is_alive, (journal.writer.process,)).fetchall() == [(False,)])
            with pytest.raises(JournalHeld, match=r"process \d+ on .*: a test"):
                open_postgres(at_database)
        journal.withdraw(withdrawal("2" * 64))
        assert len(journal.withdrawals()) == 2


def test_withdrawal_does_not_wait_for_desk(at_database: DatabasePlace) -> None:
    """One opens the batch of a plan, nobody takes the desk over from it meanwhile, and a person withdraws the plan."""
    goes_on, has_begun = threading.Event(), threading.Event()

    def parts() -> Iterator[BatchPart]:
        yield BatchPart((b"sheet",), InstructionRows((new_instruction(2),)))
        has_begun.set()
        assert goes_on.wait(30)

    with closing(open_postgres(at_database)) as first, ThreadPoolExecutor(1) as threads:
        batch = NewBatch("b1", "payout", "s.csv", "0" * 64, 1, 0, plan_sha256=PLAN)
        opening = threads.submit(first.open_batch, batch, parts=parts(), known=[], amendments=[], at=AT)
        try:
            assert has_begun.wait(30)
            fall_silent(at_database.server.url)
            with pytest.raises(JournalHeld):
                open_postgres(at_database)
            at_database.withdraw(withdrawal())
        finally:
            goes_on.set()
        with pytest.raises(DocumentWithdrawn):
            opening.result(30)
        open_postgres(at_database).close()
    with closing(read_postgres(at_database)) as reader:
        assert (list(reader.batches()), reader.verify()["facts"]) == ([], 1)


@pytest.mark.parametrize("trouble", [Trouble.LOSE_ANSWER, Trouble.LOSE_REQUEST])
def test_unanswered_desk_commit_is_made_at_most_once(
    at_database: DatabasePlace, postgres_server: PostgresServer, trouble: Trouble
) -> None:
    with wire_proxy(postgres_server.port) as proxy:
        server = Server(proxy.url(at_database.server.url), commit_limit_s=0.5)
        with closing(open_postgres(replace(at_database, server=server))) as journal:
            proxy.only, proxy.trouble = b"COMMIT", trouble
            if trouble is Trouble.LOSE_ANSWER:
                open_sheet(journal, new=2)
                open_sheet(journal, "b2", [new_instruction(9)])
            else:
                for _ in range(2):
                    with pytest.raises(JournalUnwritable):
                        open_sheet(journal, new=2)
            assert proxy.trouble is Trouble.NONE
    with closing(open_postgres(at_database)) as journal:
        assert journal.verify()["batches"] == (2 if trouble is Trouble.LOSE_ANSWER else 0)
        open_sheet(journal, "b3", [new_instruction(10)])
