"""Crashing servers, takeovers by standbys, cancelled waits: nothing is sent on commits that may be lost."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalTooOld, JournalUnwritable, OpenRollCall
from paygw_batch.journal.postgres.guarded_session import GuardedSession
from paygw_batch.journal.postgres.postgres_journal import PostgresJournal
from paygw_batch.journal.values import MoveResult, RowState
from tests.promise.cluster.company import (
    block_commits,
    either_server_url,
    host,
    standby_of,
    until,
    wait_for_standby,
    wait_until_caught_up,
)
from tests.support.journal_rows import AT, due_rows, intent, open_sheet, outcome_of, send
from tests.support.patience import PATIENCE_S
from tests.support.postgres_rows import make_postgres, open_postgres
from tests.support.postgres_server import PostgresServer, new_server

_WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
_CANCEL = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


class BackgroundCall:
    def __init__(self, call: Callable[[], object]) -> None:
        self.result: object = None
        self.error: BaseException | None = None
        self._call = call
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def join(self) -> "BackgroundCall":
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        return self


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PostgresServer, PostgresServer, Path]]:
    """Two hosts whose standby took over without north's last commits."""
    home = tmp_path_factory.mktemp("pair")
    home.chmod(0o700)
    with new_server() as primary, standby_of(primary) as standby:
        url = either_server_url(primary, standby)
        with pytest.MonkeyPatch.context() as patching:
            patching.setattr("socket.gethostname", lambda: "south")
            make_postgres(host(home, "south", url))
            open_postgres(host(home, "south", url)).close()
            patching.setattr("socket.gethostname", lambda: "north")
            with closing(open_postgres(host(home, "north", url))) as journal:
                open_sheet(journal, new=6)
                send_first(journal)
                wait_until_caught_up(primary)
                standby.stop("fast")  # it lags from here on
                assert len(send(journal, 1, OutcomeKind.PAID)) == 5
        primary.stop("immediate")
        standby.start()
        standby.control("promote")
        yield primary, standby, home


def send_first(journal: PostgresJournal) -> None:
    first = due_rows(journal, 1)[0]
    journal.append([intent(first)])
    journal.append([outcome_of(first.number, 1, OutcomeKind.PAID)])


def test_only_log_comparison_stops_sending_after_lagging_failover(
    pair: tuple[PostgresServer, PostgresServer, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    primary, standby, home = pair
    url = either_server_url(primary, standby)
    monkeypatch.setattr("socket.gethostname", lambda: "south")
    with pytest.raises(OpenRollCall, match="Missing: north"):
        open_postgres(host(home, "south", url))
    with pytest.raises(JournalTooOld):
        open_postgres(host(home, "north", url))
    with psycopg.connect(standby.url()) as connection:
        query_rows = connection.execute("SELECT count(*) FROM paygw.state WHERE state = 'ready'").fetchall()
    assert query_rows == [(5,)], "these were sent: whoever sends them again pays twice"
    # A planted bug: without the comparison, rows that north has sent are offered again.
    monkeypatch.setattr("paygw_batch.journal.postgres.hosts.check_sent_log", lambda *_: None)
    list(host(home, "south", url).roll_call())
    standby.execute("UPDATE paygw.process SET ended_at = clock_timestamp() WHERE ended_at IS NULL")
    with closing(open_postgres(host(home, "north", url))) as journal:
        assert len(due_rows(journal, 1)) == 5


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
            going_on = BackgroundCall(lambda: journal.append([outcome_of(1, 1, OutcomeKind.PAID), intent(second)]))
            standby.control("promote")
            with standby_of(standby):
                wait_for_standby(standby, "*")
                assert going_on.join().error is None
                assert going_on.result == [MoveResult.MOVED] * 2
                journal.append([outcome_of(2, 1, OutcomeKind.PAID), intent(third)])
                assert [row.state for row in journal.rows(1)] == [State.PAID, State.PAID, State.IN_FLIGHT]
                assert journal.verify()["facts"] == 6
                wait_for_standby(standby, "")  # the second standby stops now


@contextmanager
def waiting(tmp_path: Path, server: PostgresServer) -> Iterator[tuple[PostgresJournal, BackgroundCall]]:
    """An intent whose commit waits for a silent standby."""
    tmp_path.chmod(0o700)
    at = host(tmp_path, "north", server.url(), replication="provider")
    make_postgres(at)
    journal = open_postgres(at)
    try:
        open_sheet(journal, new=1)
        (due,) = due_rows(journal, 1)
        block_commits(server)
        intended = BackgroundCall(lambda: journal.writer.append([intent(due)]))
        until(server, f"SELECT EXISTS ({_WAITING})")
        yield journal, intended
    finally:
        wait_for_standby(server, "")
        journal.close()


@pytest.mark.parametrize("is_planted", [False, True], ids=["as it is", "with the planted bug"])
def test_cancelled_wait_for_standby_fails_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_planted: bool
) -> None:
    """The server answers with success and a notice. The planted bug ignores the notice."""
    if is_planted:
        monkeypatch.setattr(GuardedSession, "_watch_warnings", lambda _: None)
    with new_server() as server, waiting(tmp_path, server) as (_, intended):
        with psycopg.connect(server.url(), autocommit=True) as connection:
            while intended.thread.is_alive():
                connection.execute(_CANCEL.encode())
        if is_planted:
            assert intended.result == [MoveResult.MOVED], "it would be sent, although no standby has it"
        else:
            assert isinstance(intended.error, JournalUnwritable)
            assert "no standby confirms" in intended.error.message


@pytest.mark.parametrize("is_planted", [False, True], ids=["as it is", "with the planted bug"])
def test_state_after_crash_is_durable_before_sending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_planted: bool
) -> None:
    """A commit that waited for its standby counts as made after a crash, although no standby has it.

    The planted bug omits the durable write after the check.
    """
    if is_planted:
        monkeypatch.setattr(GuardedSession, "flush", lambda _: None)
    with new_server() as server, waiting(tmp_path, server) as (journal, intended):
        if is_planted:
            journal.writer._guarded._roll_call = None  # its answer is a durable write too
        server.stop("immediate")
        server.start()
        if not is_planted:
            until(server, f"SELECT EXISTS ({_WAITING})")
            assert intended.thread.is_alive(), "it waits for the standby"
            wait_for_standby(server, "")
        assert intended.join().error is None
        assert intended.result == [MoveResult.MOVED]
        if is_planted:
            with psycopg.connect(server.url()) as connection:
                shown = connection.execute("SHOW synchronous_standby_names").fetchall()
            assert shown == [("ghost",)], "it would be sent, although no standby has it"


def test_unreachable_server_after_lost_answer_ends_run(tmp_path: Path) -> None:
    """The client measures the time, so that a silent network does not block forever."""
    with new_server() as server:
        with waiting(tmp_path, server) as (journal, intended):
            journal.writer._guarded.session.server = replace(journal.writer._guarded.session.server, commit_limit_s=0.3)
            server.stop("immediate")
            server.start()
            assert isinstance(intended.join().error, JournalUnwritable)
        counted = Counter(row.state for row in journal_rows(tmp_path, server))
    assert counted == {State.IN_DOUBT: 1}


def journal_rows(tmp_path: Path, server: PostgresServer) -> list[RowState]:
    with closing(open_postgres(host(tmp_path, "north", server.url(), replication="provider"))) as journal:
        journal.mark_interrupted(AT)
        return list(journal.rows(1))
