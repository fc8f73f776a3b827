"""Servers that crash, standbys that take over, waits that are cancelled: nothing is sent on what may be lost."""

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
from paygw_batch.errors import JournalUnwritable, JournalWentBack, RollCallOpen
from paygw_batch.journal.postgres.guarded_session import GuardedSession
from paygw_batch.journal.postgres.postgres_journal import PostgresJournal
from paygw_batch.journal.values import MoveResult, RowState
from tests.promise.cluster.company import host
from tests.promise.cluster.standby import both, caught_up, no_standby_answers, standby_of, synchronous, until
from tests.support.journal_rows import AT, all_due, intent, open_sheet, outcome_of, send
from tests.support.patience import PATIENCE_S
from tests.support.postgres_rows import make_postgres, open_postgres
from tests.support.postgres_server import PostgresServer, own_server

_WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
_CANCEL = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


class Answered:
    """What a call in a thread of its own came to."""

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

    def join(self) -> "Answered":
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        return self


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PostgresServer, PostgresServer, Path]]:
    """Two hosts whose standby took over before it had what north sent last."""
    home = tmp_path_factory.mktemp("pair")
    home.chmod(0o700)
    with own_server() as primary, standby_of(primary) as standby:
        url = both(primary, standby)
        with pytest.MonkeyPatch.context() as patching:
            patching.setattr("socket.gethostname", lambda: "south")
            make_postgres(host(home, "south", url))
            open_postgres(host(home, "south", url)).close()
            patching.setattr("socket.gethostname", lambda: "north")
            with closing(open_postgres(host(home, "north", url))) as journal:
                open_sheet(journal, new=6)
                send_first(journal)
                caught_up(primary)
                standby.stop("fast")  # from here on it lags
                assert len(send(journal, 1, OutcomeKind.PAID)) == 5
        primary.stop("immediate")
        standby.start()
        standby.control("promote")
        yield primary, standby, home


def send_first(journal: PostgresJournal) -> None:
    first = all_due(journal, 1)[0]
    journal.append([intent(first)])
    journal.append([outcome_of(first.number, 1, OutcomeKind.PAID)])


def test_no_host_sends_after_failover_to_lagging_standby(
    pair: tuple[PostgresServer, PostgresServer, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    primary, standby, home = pair
    url = both(primary, standby)
    monkeypatch.setattr("socket.gethostname", lambda: "south")
    with pytest.raises(RollCallOpen, match="Missing: north"):
        open_postgres(host(home, "south", url))
    with pytest.raises(JournalWentBack):
        open_postgres(host(home, "north", url))
    with psycopg.connect(standby.url()) as connection:
        found = connection.execute("SELECT count(*) FROM paygw.state WHERE state = 'ready'").fetchall()
    assert found == [(5,)], "these were sent: whoever sends them again pays twice"


def test_missing_comparison_after_failover_is_detected(
    pair: tuple[PostgresServer, PostgresServer, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: then the rows that north has sent are given out again."""
    primary, standby, home = pair
    url = both(primary, standby)
    monkeypatch.setattr("paygw_batch.journal.postgres.hosts.check_left", lambda *_: None)
    list(host(home, "south", url).roll_call())
    standby.execute("UPDATE paygw.process SET ended_at = clock_timestamp() WHERE ended_at IS NULL")
    with closing(open_postgres(host(home, "north", url))) as journal:
        assert len(all_due(journal, 1)) == 5


def test_synchronous_standby_takes_over_during_run(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with own_server() as primary, standby_of(primary) as standby:
        synchronous(primary, "*")
        at = host(tmp_path, "north", both(primary, standby), replication="synchronous")
        make_postgres(at)
        open_postgres(replace(at, known_dir=tmp_path / "south")).close()
        with closing(open_postgres(at)) as journal:
            open_sheet(journal, new=3)
            first, second, third = all_due(journal, 1)
            journal.append([intent(first)])
            primary.stop("immediate")
            going_on = Answered(lambda: journal.append([outcome_of(1, 1, OutcomeKind.PAID), intent(second)]))
            standby.control("promote")
            with standby_of(standby):
                synchronous(standby, "*")
                assert going_on.join().error is None
                assert going_on.result == [MoveResult.MOVED] * 2
                journal.append([outcome_of(2, 1, OutcomeKind.PAID), intent(third)])
                assert [row.state for row in journal.rows(1)] == [State.PAID, State.PAID, State.IN_FLIGHT]
                assert journal.verify()["facts"] == 6
                synchronous(standby, "")  # the second standby goes now


@contextmanager
def waiting(tmp_path: Path, server: PostgresServer) -> Iterator[tuple[PostgresJournal, Answered]]:
    """An intent whose commit waits for a standby that does not answer."""
    tmp_path.chmod(0o700)
    at = host(tmp_path, "north", server.url(), replication="provider")
    make_postgres(at)
    journal = open_postgres(at)
    try:
        open_sheet(journal, new=1)
        (due,) = all_due(journal, 1)
        no_standby_answers(server)
        intended = Answered(lambda: journal.writer.append([intent(due)]))
        until(server, f"SELECT EXISTS ({_WAITING})")
        yield journal, intended
    finally:
        synchronous(server, "")
        journal.close()


@pytest.mark.parametrize("is_planted", [False, True], ids=["as it is", "with the planted bug"])
def test_cancelled_wait_for_standby_fails_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_planted: bool
) -> None:
    """The server then answers as if all were well, with a notice. The planted bug does not read it."""
    if is_planted:
        monkeypatch.setattr(GuardedSession, "_watch_warnings", lambda _: None)
    with own_server() as server, waiting(tmp_path, server) as (_, intended):
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
    """A commit that waited for its standby counts as made after a crash, and no standby has it.

    The planted bug leaves the durable write out that comes after the look.
    """
    if is_planted:
        monkeypatch.setattr(GuardedSession, "flush", lambda _: None)
    with own_server() as server, waiting(tmp_path, server) as (journal, intended):
        if is_planted:
            journal.writer._guarded._roll = None  # its answer is a durable write as well
        server.stop("immediate")
        server.start()
        if not is_planted:
            until(server, f"SELECT EXISTS ({_WAITING})")
            assert intended.thread.is_alive(), "it waits for the standby"
            synchronous(server, "")
        assert intended.join().error is None
        assert intended.result == [MoveResult.MOVED]
        if is_planted:
            with psycopg.connect(server.url()) as connection:
                shown = connection.execute("SHOW synchronous_standby_names").fetchall()
            assert shown == [("ghost",)], "it would be sent, although no standby has it"


def test_unreachable_server_after_lost_answer_ends_run(tmp_path: Path) -> None:
    """Counted by the client: a network that says nothing for ever keeps nobody waiting for ever."""
    with own_server() as server:
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
