"""The outbox in both stores: no notice is lost, and none is sent twice unless a process dies."""

import os
import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from paygw_batch.clock import timestamp
from paygw_batch.cluster.database_location import DatabaseLocation
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalError, JournalMissing
from paygw_batch.journal import NewNotice, Occasion, Outbox, StoredNotice
from paygw_batch.journal.location import JournalLocation
from paygw_batch.journal.outbox import FIRST_PAUSE, GIVEN_UP_AFTER, LONGEST_PAUSE
from paygw_batch.journal.postgres.session import Server
from paygw_batch.journal.values import MoveResult
from tests.support.journal_rows import (
    create_journal_at,
    due_rows,
    file_location,
    intent,
    journal_path,
    open_journal_at,
    open_sheet,
    outcome_of,
)
from tests.support.postgres_rows import open_postgres
from tests.support.postgres_server import PostgresServer

NOW = datetime(2026, 11, 24, 8, tzinfo=UTC)
NOTICE = NewNotice(Occasion.PLAN_WAITS, "a plan", "b1", ["ada@example.com"], {"sheet": "payroll.csv"})
RUN = NewNotice(Occasion.RUN_ENDED, "a run", "b1", ["ada@example.com"])


@pytest.fixture
def outbox(store_location: JournalLocation) -> Iterator[Outbox]:
    with store_location.outbox(write=True) as opened:
        yield opened


def due(outbox: Outbox, now: datetime = NOW) -> Sequence[StoredNotice]:
    return outbox.due(now, limit=100)


def subjects(outbox: Outbox) -> list[str]:
    return [notice.subject for notice in due(outbox)]


def add_notice(outbox: Outbox, *notices: NewNotice) -> Sequence[StoredNotice]:
    outbox.add(notices or [NOTICE], timestamp(NOW))
    return due(outbox)


def test_each_recipient_gets_one_notice_per_subject(outbox: Outbox) -> None:
    first = add_notice(outbox, replace(NOTICE, recipients=["ada@example.com", "ben@example.com"]))
    second = add_notice(outbox, replace(NOTICE, recipients=["ben@example.com", "eve@example.com"]))
    assert [one.recipient for one in first] == ["ada@example.com", "ben@example.com"]
    assert [one.recipient for one in second] == ["ada@example.com", "ben@example.com", "eve@example.com"]
    assert len({one.id for one in second}) == 3
    assert len(add_notice(outbox, replace(NOTICE, occasion=Occasion.IN_DOUBT), replace(NOTICE, batch="b2"))) == 5


def test_notice_is_claimed_once_and_repeated_until_sent(outbox: Outbox) -> None:
    (notice,) = add_notice(outbox, replace(NOTICE, content=None))
    assert outbox.claim(notice, {"rows": 1}, NOW)
    assert not outbox.claim(notice, {}, NOW)
    assert list(due(outbox)) == list(due(outbox, NOW + FIRST_PAUSE - timedelta(seconds=1))) == []
    (second,) = due(outbox, NOW + FIRST_PAUSE)
    outbox.claim(second, {"rows": 2}, NOW + FIRST_PAUSE)
    (kept,) = outbox.list_notices(limit=9)
    assert (second.content, kept.content, kept.id, kept.tries) == ({"rows": 1}, {"rows": 1}, notice.id, 2)
    outbox.record_sent(second, timestamp(NOW))
    outbox.make_due(NOW + GIVEN_UP_AFTER)
    assert due(outbox, NOW + GIVEN_UP_AFTER) == []
    assert [one.sent_at for one in outbox.list_notices(limit=9)] == [timestamp(NOW)]


def test_notice_is_retried_at_growing_pauses_then_abandoned(outbox: Outbox) -> None:
    now, pauses = NOW, []
    (notice,) = add_notice(outbox)
    while True:
        assert outbox.claim(notice, {}, now)
        outbox.record_problem(notice, "no_answer")
        (kept,) = outbox.list_notices(limit=9)
        if kept.next_at is None:
            break
        pauses.append(datetime.fromisoformat(kept.next_at) - now)
        now = datetime.fromisoformat(kept.next_at)
        (notice,) = due(outbox, now)
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert max(pauses) == LONGEST_PAUSE
    assert GIVEN_UP_AFTER - LONGEST_PAUSE <= now - NOW <= GIVEN_UP_AFTER
    assert kept.is_given_up
    assert kept.problem == "no_answer"
    assert due(outbox, now + GIVEN_UP_AFTER) == []
    outbox.make_due(now)
    assert [due_notice.id for due_notice in due(outbox, now)] == [notice.id]


def test_marking_due_skips_notice_being_sent(outbox: Outbox) -> None:
    sending, failed = add_notice(outbox, NOTICE, replace(NOTICE, subject="another"))
    for notice in (sending, failed):
        outbox.claim(notice, {}, NOW)
    outbox.record_problem(failed, "refused 550")
    outbox.make_due(NOW)
    assert [due_notice.id for due_notice in due(outbox)] == [failed.id]
    outbox.make_due(NOW + FIRST_PAUSE)
    assert len(due(outbox, NOW + FIRST_PAUSE)) == 2


def test_outbox_returns_newest_subject_of_batch(outbox: Outbox) -> None:
    assert outbox.last_subject(Occasion.IN_DOUBT, "b1") == ""
    for subject in ("2026-11-02T00:00:00.000Z", "2026-11-01T00:00:00.000Z"):
        add_notice(outbox, replace(NOTICE, occasion=Occasion.IN_DOUBT, subject=subject))
    found = [outbox.last_subject(Occasion.IN_DOUBT, batch) for batch in ("b1", "b2")]
    assert found == ["2026-11-02T00:00:00.000Z", ""]


class _Killed(Exception):
    """Stands for the end of the sending process."""


@pytest.mark.share(4)
@pytest.mark.parametrize("seed", range(6))
def test_killed_process_loses_no_notices(store_location: JournalLocation, seed: int) -> None:
    play(store_location, seed)


def record_before_sending(
    outbox: Outbox, notice: StoredNotice, content: Mapping[str, Any], now: datetime, claim: Any = Outbox.claim
) -> bool:
    is_ours: bool = claim(outbox, notice, content, now)
    if is_ours:
        outbox.record_sent(notice, timestamp(now))
    return is_ours


@pytest.mark.parametrize(("planted", "found"), [(lambda *_: True, "sent twice"), (record_before_sending, "lost")])
def test_planted_bug_of_sending_is_detected(
    store_location: JournalLocation, monkeypatch: pytest.MonkeyPatch, planted: Any, found: str
) -> None:
    monkeypatch.setattr(Outbox, "claim", planted)
    with pytest.raises(AssertionError, match=f"a notice was {found}"):
        list(map(partial(play, store_location), range(20)))


def play(store_location: JournalLocation, seed: int) -> None:
    """Let processes send due notices for days, with occasional kills, and compare the received and written notices."""
    chance, now = random.Random(seed), NOW  # noqa: S311 - a test's
    received, killed_after = Counter[str](), set[str]()
    down_until = NOW + timedelta(hours=chance.choice((0, 1, 30)))

    def step(kill_share: float) -> None:
        if chance.random() < kill_share:
            raise _Killed

    def send(kill_share: float) -> None:
        with store_location.outbox(write=True) as one, store_location.outbox(write=True) as other:
            for notice in due(one, now):
                step(kill_share)
                for sender in [sender for sender in chance.sample((one, other), 2) if sender.claim(notice, {}, now)]:
                    step(kill_share)
                    if now < down_until:
                        sender.record_problem(notice, "not_reached")
                        continue
                    received[notice.id] += 1
                    if chance.random() < kill_share:
                        killed_after.add(notice.id)
                        raise _Killed
                    sender.record_sent(notice, timestamp(now))

    for number in range(8):
        with store_location.outbox(write=True) as outbox:
            outbox.add([replace(NOTICE, subject=f"{seed} {number}")], timestamp(now))
        with suppress(_Killed):
            send(0.15)
        now += timedelta(minutes=chance.randrange(1, 200))
    while now < NOW + GIVEN_UP_AFTER:
        send(0.0)
        now += timedelta(hours=3)
    with store_location.outbox(write=False) as outbox:
        kept = [one for one in outbox.list_notices(limit=999) if one.subject.startswith(f"{seed} ")]
    assert {one.id for one in kept} == set(received), "a notice was lost"
    assert all(one.sent_at is not None for one in kept)
    assert {notice for notice, count in received.items() if count > 1} <= killed_after, "a notice was sent twice"


def test_concurrent_senders_claim_each_notice_once(store_location: JournalLocation) -> None:
    with store_location.outbox(write=True) as outbox:
        outbox.add([replace(NOTICE, subject=f"{number}") for number in range(5)], timestamp(NOW))
    claimed: list[str] = []
    start = threading.Barrier(4)

    def send() -> None:
        with store_location.outbox(write=True) as outbox:
            due_notices = due(outbox)
            start.wait()
            claimed.extend(notice.id for notice in due_notices if outbox.claim(notice, {}, NOW))

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(claimed) == len(set(claimed)) == 5


def test_run_notice_is_due_when_journal_closes(store_location: JournalLocation) -> None:
    with closing(store_location.open_to_write("a test")) as journal:
        journal.schedule_end_notices([RUN], timestamp(NOW))
        with store_location.outbox(write=True) as outbox:
            assert due(outbox) == []
            assert [notice.subject for notice in outbox.list_notices(limit=9)] == ["a run"]
    with store_location.outbox(write=True) as outbox:
        assert subjects(outbox) == ["a run"]


def test_running_command_withholds_only_its_own_notice(folder: Path) -> None:
    create_journal_at(folder)
    if (child := os.fork()) == 0:
        journal = file_location(folder).open_to_write("a test")
        journal.schedule_end_notices([RUN], timestamp(NOW))
        os._exit(9)
    os.waitpid(child, 0)
    with closing(file_location(folder).open_to_write("a test")) as journal:
        journal.schedule_end_notices([replace(RUN, subject="living")], timestamp(NOW))
        with file_location(folder).outbox(write=True) as outbox:
            assert subjects(outbox) == ["a run"], "that of the killed run"


@pytest.mark.parametrize("write", [False, True])
def test_missing_journal_has_no_outbox(folder: Path, write: bool) -> None:
    with pytest.raises(JournalMissing), file_location(folder).outbox(write=write):
        pass
    assert not journal_path(folder).exists()


def test_collecting_notices_does_not_block_run(folder: Path) -> None:
    with closing(open_journal_at(folder)) as journal, file_location(folder).outbox(write=True) as outbox:

        def claimed() -> Iterator[NewNotice]:
            open_sheet(journal)
            yield NOTICE

        outbox.add(claimed(), timestamp(NOW))
        assert subjects(outbox) == ["a plan"]


def test_notice_is_never_removed_or_added_after_move(folder: Path) -> None:
    with closing(open_journal_at(folder)) as journal, file_location(folder).outbox(write=True) as outbox:
        add_notice(outbox)
        with pytest.raises(apsw.ConstraintError, match="never removed"):
            outbox._connection.execute("DELETE FROM notice")
        with journal.move_transaction("another place"):
            pass
        with pytest.raises(JournalError, match="was moved to the database"):
            add_notice(outbox)


def test_run_waits_for_notice_writer(folder: Path) -> None:
    with closing(open_journal_at(folder)) as journal, file_location(folder).outbox(write=True) as outbox:
        open_sheet(journal)
        (due_row, *_) = due_rows(journal, 1)
        with outbox._write_transaction():
            outbox._add([NOTICE], timestamp(NOW))
            appending = threading.Thread(target=lambda: journal.append([intent(due_row)]))
            appending.start()
            appending.join(0.3)
            assert appending.is_alive()
        appending.join()
        assert journal.append([outcome_of(due_row.number, 1, OutcomeKind.PAID)]) == [MoveResult.MOVED]
        assert subjects(outbox) == ["a plan"]


def test_shared_run_withholds_notice_until_end(database: str, at_database: DatabaseLocation) -> None:
    with closing(open_postgres(at_database)) as opener:
        batch = open_sheet(opener, "b1")
        opener.schedule_end_notices([RUN], timestamp(NOW))
        assert opener.start_shared_run(batch.number, can_wait=True) is not None
    with at_database.outbox(write=True) as outbox:
        assert due(outbox) == []
        with psycopg.connect(database, autocommit=True) as owner:
            owner.execute("UPDATE paygw.run SET ended_at = clock_timestamp()")
        assert subjects(outbox) == ["a run"]


def test_plan_and_its_notice_are_stored_together(at_database: DatabaseLocation) -> None:
    assert at_database.store_plan("code", "{}", notices=[NOTICE])
    kept = at_database.newest_plan("code")
    assert kept is not None
    assert at_database.store_plan("code", "{1}", kept)
    assert not at_database.store_plan("code", "{2}", kept, notices=[replace(NOTICE, subject="of nothing")])
    with at_database.outbox(write=False) as outbox:
        assert [notice.subject for notice in outbox.list_notices(limit=9)] == ["a plan"]


@pytest.mark.parametrize("role", ["worker", "reader"])
def test_only_desk_sends_notices(at_database: DatabaseLocation, postgres_server: PostgresServer, role: str) -> None:
    name = at_database.server.url.rpartition("/")[2]
    at_database.grant_rights()
    postgres_server.execute(f"CREATE ROLE {name}_{role}_of_notices LOGIN IN ROLE {name}_{role}")
    with at_database.outbox(write=True) as outbox:
        (notice,) = add_notice(outbox)
        assert outbox.may_send
    theirs = replace(at_database, server=Server(postgres_server.url(name, user=f"{name}_{role}_of_notices")))
    with theirs.outbox(write=role == "worker") as outbox:
        assert not outbox.may_send
        with pytest.raises((JournalError, psycopg.Error)):
            outbox.claim(notice, {}, NOW)
