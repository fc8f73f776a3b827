"""The decision lock: one process has it, and another takes it over from a dead or silent one."""

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
from tests.support.patience import wait_until
from tests.support.postgres_rows import expire_processes, open_postgres, postgres_place, read_postgres
from tests.support.postgres_server import PostgresServer
from tests.support.wire_proxy import ProxyFault, wire_proxy

PLAN = "1" * 64
MISSING_PID = "pid = 999999999"
"""A process id that no process of this machine has."""


@pytest.fixture
def at_database(database: str, place: Path) -> DatabasePlace:
    """Return a database journal whose processes report no signs of life during a test."""
    return postgres_place(database, place, intent_lives_s=600.0)


def withdrawal(document: str = PLAN) -> Withdrawal:
    return Withdrawal(document, "cleo", "{}", AT)


def change_process(at: DatabasePlace, change: str) -> None:
    """Change the columns of all processes in the database."""
    with psycopg.connect(at.server.url, autocommit=True) as connection:
        connection.execute("ALTER TABLE paygw.process DISABLE TRIGGER end_is_final")
        connection.execute(f"UPDATE paygw.process SET {change}".encode())  # noqa: S608 - a test's
        connection.execute("ALTER TABLE paygw.process ENABLE ALWAYS TRIGGER end_is_final")


def test_second_run_error_names_lock_holder(at_database: DatabasePlace) -> None:
    with closing(open_postgres(at_database)), pytest.raises(JournalHeld, match=r"process \d+ on .*: a test"):
        open_postgres(at_database)
    open_postgres(at_database).close()


def test_process_with_lost_lock_writes_nothing(at_database: DatabasePlace) -> None:
    with closing(open_postgres(at_database)) as journal:
        expire_processes(at_database.server.url)
        with closing(open_postgres(at_database)) as taker:
            open_sheet(taker, new=1)
            with pytest.raises(JournalError, match="taken over"):
                journal.withdraw(withdrawal())
            with pytest.raises(psycopg.Error, match="another process has the desk"):
                journal.writer.record([Entry(1, 0, Replaced("b2", 2), AT)])
            with pytest.raises(JournalHeld):
                journal.writer.acquire_decision_lock()
        journal.writer.acquire_decision_lock()
        journal.withdraw(withdrawal())


def test_ended_process_releases_lock_at_once(at_database: DatabasePlace) -> None:
    with closing(open_postgres(at_database)) as journal:
        change_process(at_database, MISSING_PID)
        with closing(open_postgres(at_database)) as taker:
            open_sheet(taker, new=1)
            with pytest.raises(JournalError, match="taken over"):
                journal.withdraw(withdrawal())


@pytest.mark.parametrize("elsewhere", ["host = 'another'", "boot = 'another'"])
def test_process_on_other_machine_counts_as_alive(at_database: DatabasePlace, elsewhere: str) -> None:
    with closing(open_postgres(at_database)) as journal:
        change_process(at_database, f"{MISSING_PID}, {elsewhere}")
        with pytest.raises(JournalHeld, match="process 999999999"):
            open_postgres(at_database)
        journal.withdraw(withdrawal())


def test_only_first_of_two_processes_gets_lock(at_database: DatabasePlace) -> None:
    numbers = []
    for _ in range(3):
        with closing(open_postgres(at_database)) as journal:
            numbers.append(journal.writer.process)
    change_process(at_database, "ended_at = NULL, seen_at = now()")
    url = at_database.server.url

    def take_lock(connection: psycopg.Connection[Any], number: int) -> Any:
        return connection.execute("SELECT paygw.take_desk(%s, '{}')", (number,)).fetchall()

    with psycopg.connect(url) as first_connection, psycopg.connect(url, autocommit=True) as second_connection:
        second_connection.execute("SET search_path = paygw")
        first_connection.execute("SET search_path = paygw")
        holder, first, second = numbers
        assert take_lock(second_connection, holder) == [(True,)]
        second_connection.execute("UPDATE process SET seen_at = now() - interval '1 h' WHERE number = %s", (holder,))
        assert take_lock(first_connection, first) == [(True,)]
        assert take_lock(second_connection, second) == [(False,)], "the other one is about to have it"
        first_connection.commit()
        assert take_lock(second_connection, second) == [(False,)]
        assert second_connection.execute("SELECT process FROM desk").fetchall() == [(first,)]


def test_long_transaction_keeps_lock(at_database: DatabasePlace) -> None:
    """From its first fact on, signs of life are blocked, because they write the same line of the process."""
    is_alive = "SELECT paygw.is_alive(%s)"
    with closing(open_postgres(replace(at_database, intent_lives_s=0.5))) as journal:
        with (
            journal.writer.decision_transaction(),
            psycopg.connect(at_database.server.url, autocommit=True) as connection,
        ):
            journal._evidence.record_notes(journal._record, withdrawal())
            wait_until(lambda: connection.execute(is_alive, (journal.writer.process,)).fetchall() == [(False,)])
            with pytest.raises(JournalHeld, match=r"process \d+ on .*: a test"):
                open_postgres(at_database)
        journal.withdraw(withdrawal("2" * 64))
        assert len(journal.withdrawals()) == 2


def test_withdrawal_does_not_wait_for_lock(at_database: DatabasePlace) -> None:
    """A person withdraws a plan while its batch is being opened by a process that keeps the lock."""
    may_continue, has_begun = threading.Event(), threading.Event()

    def parts() -> Iterator[BatchPart]:
        yield BatchPart((b"sheet",), InstructionRows((new_instruction(2),)))
        has_begun.set()
        assert may_continue.wait(30)

    with closing(open_postgres(at_database)) as first, ThreadPoolExecutor(1) as threads:
        batch = NewBatch("b1", "payout", "s.csv", "0" * 64, 1, 0, plan_sha256=PLAN)
        opening = threads.submit(first.open_batch, batch, parts=parts(), known=[], amendments=[], at=AT)
        try:
            assert has_begun.wait(30)
            expire_processes(at_database.server.url)
            with pytest.raises(JournalHeld):
                open_postgres(at_database)
            at_database.withdraw(withdrawal())
        finally:
            may_continue.set()
        with pytest.raises(DocumentWithdrawn):
            opening.result(30)
        open_postgres(at_database).close()
    with closing(read_postgres(at_database)) as reader:
        assert (list(reader.batches()), reader.verify()["facts"]) == ([], 1)


@pytest.mark.parametrize("trouble", [ProxyFault.LOSE_ANSWER, ProxyFault.LOSE_REQUEST])
def test_unanswered_decision_commit_is_made_at_most_once(
    at_database: DatabasePlace, postgres_server: PostgresServer, trouble: ProxyFault
) -> None:
    with wire_proxy(postgres_server.port) as proxy:
        server = Server(proxy.url(at_database.server.url), commit_limit_s=0.5)
        with closing(open_postgres(replace(at_database, server=server))) as journal:
            proxy.only, proxy.trouble = b"COMMIT", trouble
            if trouble is ProxyFault.LOSE_ANSWER:
                open_sheet(journal, new=2)
                open_sheet(journal, "b2", [new_instruction(9)])
            else:
                for _ in range(2):
                    with pytest.raises(JournalUnwritable):
                        open_sheet(journal, new=2)
            assert proxy.trouble is ProxyFault.NONE
    with closing(open_postgres(at_database)) as journal:
        assert journal.verify()["batches"] == (2 if trouble is ProxyFault.LOSE_ANSWER else 0)
        open_sheet(journal, "b3", [new_instruction(10)])
