"""After commits are lost, the sending host reports which rows were sent: these are in doubt, and no others."""

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from paygw_batch.cluster.database_location import AcceptedLoss
from paygw_batch.core.evidence import EvidenceSource
from paygw_batch.core.lifecycle import Intended, Resolution, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalError, JournalHeld, JournalTooOld, JournalUnwritable, OpenRollCall, UsageError
from paygw_batch.journal import sent_log
from paygw_batch.journal.postgres.fact_writer import FactWriter
from paygw_batch.journal.postgres.guarded_session import GuardedSession
from paygw_batch.journal.postgres.postgres_journal import PostgresJournal
from paygw_batch.journal.values import DueRow, Entry, MoveResult
from paygw_batch.settle.resolve import Settlement, check_settlements
from tests.promise.cluster.company import (
    NORTH,
    SOUTH,
    SplitCompany,
    either_server_url,
    host,
    standby_of,
    wait_until_caught_up,
)
from tests.support.journal_rows import at, due_rows, intent, new_instruction, open_sheet, outcome_of, resolved, row_of
from tests.support.postgres_rows import make_postgres, open_postgres, read_postgres
from tests.support.postgres_server import PostgresServer, new_server

LATER = at(30)


class Lossy(SplitCompany):
    """Two hosts whose database goes back to a backup, so that north's later commits are lost."""

    def begin(self) -> None:
        self.opens(SOUTH).close()
        with closing(self.opens(NORTH)) as journal:
            open_sheet(journal, new=9)

    def accepts(self, called: str = NORTH) -> AcceptedLoss:
        self.at(called)
        return replace(self.host(NORTH), now=lambda: LATER).accept_loss(by="amina")

    def backup_of(self, journal: PostgresJournal) -> str:
        """Return a copy of the database, while a process continues in the old one."""
        self.disconnect()
        backup = self.backup()
        self.server.execute(f"ALTER DATABASE {self.name} ALLOW_CONNECTIONS true")
        journal.writer._guarded.reconnect()
        return backup

    def restore(self, backup: str) -> None:
        """Replace the database with a backup. Its processes are gone, though this one lives."""
        super().restore(backup)
        self.query("UPDATE process SET ended_at = clock_timestamp() WHERE ended_at IS NULL")

    @contextmanager
    def losing(self) -> Iterator[PostgresJournal]:
        """Yield north's journal. What it commits in the block is lost."""
        with closing(self.opens(NORTH)) as journal:
            backup = self.backup_of(journal)
            yield journal
        self.restore(backup)

    def in_doubt(self) -> set[int]:
        with closing(read_postgres(self.host(SOUTH))) as journal:
            return {row.instruction for row in journal.rows(1) if row.state is State.IN_DOUBT}

    def due_after_roll_call(self) -> list[int]:
        """Let south answer the roll-call, and return the rows that may be sent."""
        with closing(self.opens(SOUTH)) as journal:
            journal.verify()
            return [due.number for due in due_rows(journal, 1)]


@pytest.fixture
def lossy(
    postgres_server: PostgresServer, postgres_template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Lossy:
    company = Lossy(postgres_server, postgres_template, tmp_path, monkeypatch)
    company.begin()
    return company


def send_rows(journal: PostgresJournal, due: Iterable[DueRow], kind: OutcomeKind | None = OutcomeKind.PAID) -> None:
    """Send rows in one commit each. Without a kind, no answers arrive."""
    for due_row in due:
        assert journal.append([intent(due_row, at(5))]) == [MoveResult.MOVED]
        if kind is not None:
            journal.append([outcome_of(due_row.number, due_row.standing.attempt + 1, kind, at(6))])


def test_only_lost_sent_rows_are_in_doubt(lossy: Lossy) -> None:
    with closing(lossy.opens(NORTH)) as journal:
        send_rows(journal, due_rows(journal, 1)[:2])
        send_rows(journal, due_rows(journal, 1)[:1], None)  # in flight before the loss, with a lost answer
        backup = lossy.backup_of(journal)
        journal.append([outcome_of(3, 1, OutcomeKind.PAID)])
        send_rows(journal, due_rows(journal, 1)[:3])
    lossy.restore(backup)
    with pytest.raises(OpenRollCall):
        lossy.opens(SOUTH)
    accepted = lossy.accepts()
    assert (accepted.rows.in_doubt, accepted.rows.not_sent, accepted.is_estimate) == (3, 0, False)
    assert accepted.rows.unknown_order_ids == accepted.rows.contradictions == []
    assert [one.name for one in accepted.missing] == []  # south has answered
    assert lossy.due_after_roll_call() == [7, 8, 9]
    assert lossy.states()[:6] == [State.PAID] * 2 + [State.IN_FLIGHT] + [State.IN_DOUBT] * 3
    assert lossy.accepts().rows.in_doubt == 0
    with closing(lossy.opens(SOUTH)) as journal:
        journal.mark_interrupted(LATER)
    assert lossy.in_doubt() == {3, 4, 5, 6}
    assert lossy.query("SELECT accepted_by FROM roll_answer WHERE accepted_by <> ''") == [("amina",)]


def test_lost_attempt_keeps_order_id_and_time(lossy: Lossy) -> None:
    with lossy.losing() as journal:
        send_rows(journal, due_rows(journal, 1)[:1])
    lossy.accepts()
    with closing(lossy.opens(SOUTH)) as journal:
        (row,) = journal.rows(1, numbers=[2])
        assert (row.state, row.attempt, row.sent_orderid, row.intended_at) == (State.IN_DOUBT, 1, "ORD-2", at(5))
        assert journal.verify()["in_doubt"] == 1
    facts = lossy.query("SELECT kind, at FROM fact WHERE instruction = 1 ORDER BY number")
    assert facts == [("intended", at(5)), ("interrupted", at(5))]


def test_rows_known_to_be_unsent_are_ready(lossy: Lossy) -> None:
    with closing(lossy.opens(NORTH)) as journal:
        first, second, third, *_ = due_rows(journal, 1)
        send_rows(journal, [first], None)
        backup = lossy.backup_of(journal)
        journal.append([outcome_of(first.number, 1, OutcomeKind.NOT_SENT)])
        send_rows(journal, [second, third], OutcomeKind.NOT_SENT)
        send_rows(journal, [next(due for due in due_rows(journal, 1) if due.number == third.number)])
    lossy.restore(backup)
    accepted = lossy.accepts()
    assert (accepted.rows.in_doubt, accepted.rows.not_sent) == (1, 1)
    assert lossy.in_doubt() == {third.number}
    with closing(lossy.opens(SOUTH)) as journal:
        (row,) = journal.rows(1, numbers=[4])
        assert (row.attempt, row.sent_orderid) == (1, "ORD-4")  # the next one in the copy
    assert lossy.due_after_roll_call() == [1, 2, 4, 5, 6, 7, 8, 9]


def _release(journal: PostgresJournal, suffix: bool) -> None:
    journal.release(1, [2], suffix=suffix, by="amina", at=at(7))


def _resend_by_lost_decisions(lossy: Lossy, known: OutcomeKind | None, *, suffix: bool) -> AcceptedLoss:
    """Reject, release and resend the row. The copy has at most the first attempt."""
    with closing(lossy.opens(NORTH)) as journal:
        (first, *_) = due_rows(journal, 1)
        send_rows(journal, [first], None)
        if known is not None:
            journal.append([outcome_of(1, 1, known)])
        backup = lossy.backup_of(journal)
        if known is not OutcomeKind.REJECTED:
            journal.append([outcome_of(1, 1, OutcomeKind.REJECTED)])
        _release(journal, suffix)
        again = next(due for due in due_rows(journal, 1) if due.number == 1)
        send_rows(journal, [again])
    lossy.restore(backup)
    return lossy.accepts()


def _due_after_each_decision(journal: PostgresJournal, *, suffix: bool) -> set[int]:
    """Settle the attempt in the copy and release its row. Return what is due after each step."""
    due = {due_row.number for due_row in due_rows(journal, 1)}
    journal.mark_interrupted(LATER)
    due |= {due_row.number for due_row in due_rows(journal, 1)}
    if row_of(journal, 1, 2).state is not State.REJECTED:
        journal.settle([resolved(1, 1, Resolution.REJECTED, LATER)])
        due |= {due_row.number for due_row in due_rows(journal, 1)}
    _release(journal, suffix)
    assert row_of(journal, 1, 2).state is State.READY
    return due | {due_row.number for due_row in due_rows(journal, 1)}


@pytest.mark.share(3)
@pytest.mark.parametrize("suffix", [True, False])
@pytest.mark.parametrize("known", [OutcomeKind.REJECTED, OutcomeKind.ACCEPTED, OutcomeKind.UNKNOWN, None])
def test_attempt_resent_after_lost_decision_holds_row(lossy: Lossy, suffix: bool, known: OutcomeKind | None) -> None:
    accepted = _resend_by_lost_decisions(lossy, known, suffix=suffix)
    assert (accepted.rows.in_doubt, len(accepted.rows.held_order_ids), accepted.is_estimate) == (0, 1, False)
    assert accepted.rows.unknown_order_ids == accepted.rows.contradictions == []
    repeated = lossy.accepts()
    assert (repeated.commits, repeated.rows.held_order_ids) == (0, [])
    with closing(lossy.opens(SOUTH)) as journal:
        assert _due_after_each_decision(journal, suffix=suffix) == {2, 3, 4, 5, 6, 7, 8, 9}
        again = Intended("ORD-2-r2" if suffix else "ORD-2", "n", 1, None)
        assert journal.writer.append([Entry(1, 2, again, LATER)]) == [MoveResult.HELD], "whoever read it as due"
        (hold,) = journal.holds(1).values()
        assert hold.source is EvidenceSource.WITNESS
        assert hold.last_sent_at >= LATER
        not_received = [Settlement(2, Resolution.NOT_RECEIVED, "a statement")]
        last_sent_at = datetime.fromisoformat(hold.last_sent_at)
        for hours, refused in ((23, pytest.raises(UsageError, match="could still be paid")), (24, nullcontext())):
            now = partial(last_sent_at.__add__, timedelta(hours=hours))
            with refused:
                check_settlements(journal, journal.batches()[0], not_received, quarantine_h=24, now=now)
        journal.settle([resolved(1, 1, Resolution.NOT_RECEIVED, LATER)])
        assert [due_row.number for due_row in due_rows(journal, 1)] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
        assert not journal.holds(1)
        journal.verify()


def test_sheet_of_lost_batch_does_not_resend_orders(lossy: Lossy) -> None:
    with lossy.losing() as journal:
        open_sheet(journal, "b2", new=[new_instruction(row, f"LATE-{row}") for row in (2, 3, 4, 5)])
        send_rows(journal, due_rows(journal, 2)[:2])
        send_rows(journal, [due_rows(journal, 2)[0]], OutcomeKind.REJECTED)
        journal.release(2, [4], suffix=True, by="amina", at=at(7))
        send_rows(journal, [due_rows(journal, 2)[0]])
    assert lossy.accepts().rows.unknown_order_ids == ["LATE-2", "LATE-3", "LATE-4", "LATE-4-r2"]
    assert lossy.accepts().rows.unknown_order_ids == []  # answered
    with closing(lossy.opens(SOUTH)) as journal:
        again = ("late-2", "LATE-3", "LATE-4", "LATE-5")
        open_sheet(journal, "b2", new=[new_instruction(row, order) for row, order in enumerate(again, start=2)])
        assert [due.row for due in due_rows(journal, 2)] == [5]
        held = {row: hold.source for row, hold in journal.holds(2).items()}
        assert held == dict.fromkeys((2, 3, 4), EvidenceSource.WITNESS)
        assert journal.writer.append([Entry(10, 1, Intended("late-2", "n", 1, None), LATER)]) == [MoveResult.HELD]
        journal.settle([resolved(10, 0, Resolution.PAID, LATER), resolved(11, 0, Resolution.NOT_RECEIVED, LATER)])
        assert [due.row for due in due_rows(journal, 2)] == [3, 5]
        open_sheet(journal, "b3", new=[new_instruction(2, "OTHER-2")])
        assert len(due_rows(journal, 3)) == 1
        journal.verify()


def test_sent_order_is_held_despite_partial_records(lossy: Lossy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent_log, "MAX_BYTES", 600)
    with lossy.losing() as journal:
        open_sheet(journal, "b2", new=[new_instruction(row, f"LATE-{row}") for row in range(2, 14)])
        send_rows(journal, due_rows(journal, 2))
    accepted = lossy.accepts()
    assert (accepted.is_estimate, accepted.rows.in_doubt) == (True, 9)
    assert accepted.rows.unknown_order_ids
    assert set(accepted.rows.unknown_order_ids) < {f"LATE-{row}" for row in range(2, 14)}
    with closing(lossy.opens(SOUTH)) as journal:
        open_sheet(journal, "b2", new=[new_instruction(row, f"LATE-{row}") for row in range(2, 14)])
        due = {f"LATE-{due_row.row}" for due_row in due_rows(journal, 2)}
        assert due == {f"LATE-{row}" for row in range(2, 14)} - set(accepted.rows.unknown_order_ids)


def test_repeating_interrupted_acceptance_completes_it(lossy: Lossy, monkeypatch: pytest.MonkeyPatch) -> None:
    with lossy.losing() as journal:
        send_rows(journal, due_rows(journal, 1)[:5])
    crash = Mock(side_effect=KeyboardInterrupt)
    for place in (
        "paygw_batch.journal.postgres.accepted_loss.LossWriter._append",
        "paygw_batch.journal.postgres.accepted_loss.LossWriter._record_holds",
        "paygw_batch.cluster.database_location.record_accepted_loss",
        "paygw_batch.cluster.database_location.log_accepted_loss",
    ):
        with monkeypatch.context() as broken:
            broken.setattr(place, crash)
            with pytest.raises(KeyboardInterrupt):
                lossy.accepts()
        with pytest.raises(JournalTooOld):
            lossy.opens(NORTH)
        with pytest.raises(OpenRollCall):
            lossy.opens(SOUTH)
    assert lossy.accepts().rows.in_doubt == 5
    assert lossy.in_doubt() == {1, 2, 3, 4, 5}
    assert lossy.query("SELECT count(*) FROM fact WHERE kind = 'intended'") == [(5,)]
    assert lossy.due_after_roll_call() == [6, 7, 8, 9]
    lossy.opens(NORTH).close()


def test_repeated_acceptance_counts_held_row(lossy: Lossy, monkeypatch: pytest.MonkeyPatch) -> None:
    crash = Mock(side_effect=KeyboardInterrupt)
    with monkeypatch.context() as broken:
        broken.setattr("paygw_batch.cluster.database_location.record_accepted_loss", crash)
        with pytest.raises(KeyboardInterrupt):
            _resend_by_lost_decisions(lossy, OutcomeKind.REJECTED, suffix=True)
    again = lossy.accepts().rows
    assert (again.in_doubt, len(again.held_order_ids)) == (0, 1)
    assert lossy.query("SELECT count(*) FROM fact WHERE source = 'witness'") == [(1,)]


def _damage(path: Path, _older: bytes) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


def _drop_line(path: Path, _older: bytes) -> None:
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:-3], *lines[-2:]]))


@pytest.mark.parametrize("spoil", [_damage, _drop_line, lambda path, _: path.unlink(), Path.write_bytes])
def test_incomplete_host_records_put_every_row_in_doubt(lossy: Lossy, spoil: Callable[[Path, bytes], object]) -> None:
    """The last one restores an older copy of the records."""
    (path,) = (lossy.home / NORTH / "journals").glob("*/left-1.1")
    older = path.read_bytes()
    with closing(lossy.opens(NORTH)) as journal:
        send_rows(journal, due_rows(journal, 1)[:2])
    with lossy.losing() as journal:  # the database has the end of the sent log
        send_rows(journal, due_rows(journal, 1)[:3])
    spoil(path, older)
    with pytest.raises(JournalError):
        lossy.opens(NORTH)
    accepted = lossy.accepts()
    assert (accepted.is_estimate, accepted.rows.in_doubt) == (True, 7)
    assert lossy.due_after_roll_call() == []
    lossy.opens(NORTH).close()


def test_estimated_loss_holds_rows_known_to_be_sent(lossy: Lossy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rejected row was released and sent again. Older lines of the host are overwritten."""
    monkeypatch.setattr(sent_log, "MAX_BYTES", 600)
    with closing(lossy.opens(NORTH)) as journal:
        first, *others = due_rows(journal, 1)
        send_rows(journal, [first], OutcomeKind.REJECTED)
        backup = lossy.backup_of(journal)
        send_rows(journal, others)
        _release(journal, suffix=True)
        send_rows(journal, due_rows(journal, 1))
    lossy.restore(backup)
    accepted = lossy.accepts()
    assert (accepted.is_estimate, accepted.rows.in_doubt, len(accepted.rows.held_order_ids)) == (True, 8, 1)
    assert accepted.rows.unknown_order_ids == accepted.rows.contradictions == []
    with closing(lossy.opens(SOUTH)) as journal:
        assert _due_after_each_decision(journal, suffix=True) == set()


def test_renamed_host_can_accept_loss(lossy: Lossy) -> None:
    with closing(lossy.opens(NORTH)) as journal, closing(lossy.host(NORTH).open_to_work("work")) as worker:
        backup = lossy.backup_of(journal)
        due = due_rows(journal, 1)
        send_rows(journal, due[:2])
        assert journal.start_shared_run(1, can_wait=True) is not None
        assert worker.join_run() is not None
        assert worker.writer.append([intent(due[6])]) == [MoveResult.MOVED]
    lossy.restore(backup)
    assert lossy.accepts("north-renamed").rows.in_doubt == 3
    assert lossy.in_doubt() == {1, 2, 7}
    assert lossy.due_after_roll_call() == [3, 4, 5, 6, 8, 9]


@pytest.mark.parametrize("retires", [False, True])
def test_breaker_stop_outlasts_loss_and_retirement(lossy: Lossy, retires: bool) -> None:
    with lossy.losing() as journal:
        send_rows(journal, due_rows(journal, 1)[:1])
    lossy.query("UPDATE gate SET stop_kind = 'rejected', stop_count = 5, stop_text = '51'")
    if retires:
        with pytest.raises(OpenRollCall):
            lossy.opens(SOUTH)
        assert replace(lossy.host(SOUTH), now=lambda: LATER).retire(NORTH, by="amina")[1] == 9
    else:
        assert lossy.accepts().rows.in_doubt == 1
    assert lossy.in_doubt() == (set(range(1, 10)) if retires else {1})
    assert lossy.query("SELECT stop_kind, stop_text FROM gate") == [("rejected", "51")], "a person lifts it by a run"


def test_acceptance_and_retirement_require_correct_host(lossy: Lossy) -> None:
    with lossy.losing() as journal:
        send_rows(journal, due_rows(journal, 1)[:1])
    with pytest.raises(JournalTooOld):
        lossy.opens(NORTH)  # it is alive, and reports its missing commits
    for name in (SOUTH, NORTH):
        with pytest.raises(UsageError, match="is still running"):
            replace(lossy.at(name), now=lambda: LATER).retire(NORTH, by="amina")
    assert lossy.in_doubt() == set()
    lossy.query("UPDATE host SET seen_at = seen_at - interval '11 minutes'")
    assert replace(lossy.host(SOUTH), now=lambda: LATER).retire(NORTH, by="amina")[1] == 9
    with pytest.raises(JournalError, match="was retired"):
        lossy.accepts()


def test_accepting_loss_is_refused_while_process_may_send(lossy: Lossy) -> None:
    frozen = lossy.opens(NORTH)
    backup = lossy.backup_of(frozen)
    send_rows(frozen, due_rows(frozen, 1)[:1])
    lossy.restore(backup)
    with pytest.raises(JournalHeld):
        lossy.accepts()
    frozen.close()
    assert lossy.accepts().rows.in_doubt == 1


def test_host_without_loss_only_answers_roll_call(lossy: Lossy) -> None:
    lossy.restore(lossy.backup())
    accepted = lossy.accepts()
    assert (accepted.commits, accepted.rows.in_doubt) == (0, 0)
    assert [one.name for one in accepted.missing] == [SOUTH]
    with pytest.raises(OpenRollCall, match="Hosts that have not checked: south"):
        lossy.opens(NORTH)
    assert len(lossy.due_after_roll_call()) == 9


def test_unsent_intent_is_not_in_doubt(lossy: Lossy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process froze before sending. The host records that nothing was sent, and the database does not."""
    with lossy.losing() as journal:
        (first, *_) = due_rows(journal, 1)
        assert journal.append([intent(first)]) == [MoveResult.MOVED]
        assert not journal.writer.may_send(15.0)
        with monkeypatch.context() as gone:
            gone.setattr(FactWriter, "_try_commit", fails)
            with pytest.raises(JournalUnwritable):
                journal.append([outcome_of(first.number, 1, OutcomeKind.NOT_SENT)])
    assert lossy.accepts().rows.in_doubt == 0
    assert len(lossy.due_after_roll_call()) == 9


def fails(writer: FactWriter, _entries: object) -> None:
    raise writer._guarded.disable_writes("a test")


def test_lagging_standby_loses_only_sent_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    with new_server() as primary, standby_of(primary) as standby:
        url = either_server_url(primary, standby)
        monkeypatch.setattr("socket.gethostname", lambda: SOUTH)
        make_postgres(host(tmp_path, SOUTH, url))
        open_postgres(host(tmp_path, SOUTH, url)).close()
        monkeypatch.setattr("socket.gethostname", lambda: NORTH)
        with closing(open_postgres(host(tmp_path, NORTH, url))) as journal:
            open_sheet(journal, new=12)
            due = due_rows(journal, 1)
            send_rows(journal, due[:2])
            wait_until_caught_up(primary)
            standby.stop("fast")  # it lags from here on
            send_rows(journal, due[2:6])
            send_rows(journal, due[6:7], None)
            open_sheet(journal, "b2", new=[new_instruction(row, f"LATE-{row}") for row in (2, 3)])
            send_rows(journal, due_rows(journal, 2)[:1])
            primary.stop("immediate")
            standby.start()
            standby.control("promote")
            with monkeypatch.context() as at_south:
                at_south.setattr("socket.gethostname", lambda: SOUTH)
                with pytest.raises(OpenRollCall, match="Hosts that have not checked: north"):
                    open_postgres(host(tmp_path, SOUTH, url))
            with pytest.raises(JournalTooOld):
                journal.append([outcome_of(7, 1, OutcomeKind.PAID), intent(due[7])])
        accepted = replace(host(tmp_path, NORTH, url), now=lambda: LATER).accept_loss(by="amina")
        assert (accepted.rows.in_doubt, accepted.is_estimate) == (5, False)
        monkeypatch.setattr("socket.gethostname", lambda: SOUTH)
        assert list(host(tmp_path, SOUTH, url).roll_call()) == []
        with closing(open_postgres(host(tmp_path, SOUTH, url))) as journal:
            assert [due_row.number for due_row in due_rows(journal, 1)] == [8, 9, 10, 11, 12]
            assert [row.state for row in journal.rows(1)][:7] == [State.PAID] * 2 + [State.IN_DOUBT] * 5
            open_sheet(journal, "b2", new=[new_instruction(row, f"LATE-{row}") for row in (2, 3)])
            assert [due_row.row for due_row in due_rows(journal, 2)] == [3]
            journal.verify()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the process is killed in a fork")
def test_kill_before_logging_leaves_row_in_doubt(lossy: Lossy, monkeypatch: pytest.MonkeyPatch) -> None:
    backup = lossy.backup()
    child = os.fork()
    if child == 0:  # pragma: no cover - another process

        def killed(*_: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        journal = lossy.opens(NORTH)
        send_rows(journal, due_rows(journal, 1)[:1], None)
        monkeypatch.setattr(GuardedSession, "log_commit", killed)
        journal.append([intent(due_rows(journal, 1)[0])])
        os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    lossy.restore(backup)
    assert lossy.accepts().rows.in_doubt == 1
    assert lossy.in_doubt() == {1}
    assert lossy.due_after_roll_call() == [2, 3, 4, 5, 6, 7, 8, 9]
