"""Crashing servers, takeovers by standbys, cancelled waits: nothing is sent on commits that may be lost."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalUnwritable
from paygw_batch.journal.postgres.postgres_journal import PostgresJournal
from paygw_batch.journal.values import MoveResult
from tests.promise.cluster.company import block_commits, either_server_url, host, standby_of, until, wait_for_standby
from tests.support.journal_rows import AT, due_rows, intent, open_sheet, outcome_of
from tests.support.patience import PATIENCE_S
from tests.support.postgres_rows import make_postgres, open_postgres
from tests.support.postgres_server import PostgresServer, new_server

_WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
_CANCEL = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


def begin(call: Callable[[], Any]) -> Future[Any]:
    return ThreadPoolExecutor(1).submit(call)


def test_synchronous_standby_takes_over_during_run(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with new_server() as primary, standby_of(primary) as standby:
        wait_for_standby(primary, "*")
        at = host(tmp_path, "north", either_server_url(primary, standby), replication="synchronous")
        make_postgres(at)
        open_postgres(replace(at, known_dir=tmp_path / "south")).close()
        with closing(open_postgres(at)) as journal:
            open_sheet(journal, new=3)
            first, second, third = due_rows(journal, 1)
            journal.append([intent(first)])
            primary.stop("immediate")
            going_on = begin(lambda: journal.append([outcome_of(1, 1, OutcomeKind.PAID), intent(second)]))
            standby.control("promote")
            with standby_of(standby):
                wait_for_standby(standby, "*")
                assert going_on.result(PATIENCE_S) == [MoveResult.MOVED] * 2
                journal.append([outcome_of(2, 1, OutcomeKind.PAID), intent(third)])
                assert [row.state for row in journal.rows(1)] == [State.PAID, State.PAID, State.IN_FLIGHT]
                assert journal.verify()["facts"] == 6
                wait_for_standby(standby, "")  # the second standby stops now


@contextmanager
def waiting(tmp_path: Path, server: PostgresServer) -> Iterator[tuple[PostgresJournal, Future[Any]]]:
    """An intent whose commit waits for a silent standby."""
    tmp_path.chmod(0o700)
    at = host(tmp_path, "north", server.url(), replication="provider")
    make_postgres(at)
    journal = open_postgres(at)
    try:
        open_sheet(journal, new=1)
        (due,) = due_rows(journal, 1)
        block_commits(server)
        intended = begin(lambda: journal.writer.append([intent(due)]))
        until(server, f"SELECT EXISTS ({_WAITING})")
        yield journal, intended
    finally:
        wait_for_standby(server, "")
        journal.close()


def test_cancelled_standby_wait_fails_commit(tmp_path: Path) -> None:
    """The server answers with success and a notice."""
    with new_server() as server, waiting(tmp_path, server) as (_, intended):
        with psycopg.connect(server.url(), autocommit=True) as connection:
            while not intended.done():
                connection.execute(_CANCEL.encode())
        with pytest.raises(JournalUnwritable, match="no standby confirms"):
            intended.result()


def test_rows_after_crash_are_sent_durably(tmp_path: Path) -> None:
    """A commit that waited for its standby counts as made after a crash, so a durable write follows the check."""
    with new_server() as server, waiting(tmp_path, server) as (journal, intended):
        journal.writer._guarded._roll_call = None  # its answer is a durable write too
        server.stop("immediate")
        server.start()
        until(server, f"SELECT EXISTS ({_WAITING})")
        assert not intended.done(), "it waits for the standby"
        wait_for_standby(server, "")
        assert intended.result(PATIENCE_S) == [MoveResult.MOVED]


def test_unreachable_server_after_lost_answer_ends_run(tmp_path: Path) -> None:
    """The client measures the time, so that a silent network does not block forever."""
    with new_server() as server:
        with waiting(tmp_path, server) as (journal, intended):
            journal.writer._guarded.session.server = replace(journal.writer._guarded.session.server, commit_limit_s=0.3)
            server.stop("immediate")
            server.start()
            assert isinstance(intended.exception(PATIENCE_S), JournalUnwritable)
        with closing(open_postgres(host(tmp_path, "north", server.url(), replication="provider"))) as journal:
            journal.mark_interrupted(AT)
            assert [row.state for row in journal.rows(1)] == [State.IN_DOUBT]
