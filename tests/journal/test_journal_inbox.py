"""The inbox: nothing that was acknowledged is lost, nothing is taken in twice, and any change of it is found."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from paygw_batch.errors import InboxDamaged, InboxUnwritable, JournalError, JournalHeld
from paygw_batch.journal.sqlite import connect as connections
from paygw_batch.journal.sqlite.inbox import Inbox, InboxReader
from paygw_batch.journal.values import InboxEnd
from tests.journal.journal_disk import failing_disk

NOW = "2026-11-21T08:00:00.000Z"
NAME = "journal.sqlite3.inbox"


def opened(place: Path, taken: InboxEnd | None = None) -> Inbox:
    return Inbox(place / NAME, taken=taken or InboxEnd(), now=NOW)


@pytest.fixture
def inbox(place: Path) -> Iterator[Inbox]:
    with closing(opened(place)) as one:
        yield one


def all_of(place: Path, taken: InboxEnd | None = None, limit: int = 100) -> list[str]:
    with closing(InboxReader(place / NAME)) as reader:
        return [one.content for one in reader.after(taken or InboxEnd(), limit=limit)]


def verified(place: Path, taken: InboxEnd | None = None) -> int:
    with closing(InboxReader(place / NAME)) as reader:
        return reader.verify(taken or InboxEnd())


def tampered(place: Path, statement: str, *bindings: object) -> None:
    """Change the inbox as another program could, its triggers put aside."""
    with closing(sqlite3.connect(place / NAME)) as database:
        for trigger in ("arrival_is_never_changed", "arrival_is_never_removed"):
            database.execute(f"DROP TRIGGER IF EXISTS {trigger}")
        database.execute(statement, bindings)
        database.commit()


def test_what_is_appended_is_read_in_order_with_numbers_from_one(place: Path, inbox: Inbox) -> None:
    assert inbox.append(["a", "b"]) == 2
    assert inbox.append(["c\n\ud800"]) == 3
    with closing(InboxReader(place / NAME)) as reader:
        found = reader.after(InboxEnd(), limit=10)
    assert [(one.number, one.content) for one in found] == [(1, "a"), (2, "b"), (3, "c\n\ud800")]
    assert found[0].hash == found[1].hash != found[2].hash
    assert {path.stat().st_mode & 0o777 for path in place.iterdir()} == {0o600}


def test_it_is_opened_so_that_a_commit_outlives_a_power_cut(inbox: Inbox) -> None:
    found = {name: inbox._connection.pragma(name) for name in ("journal_mode", "synchronous", "fullfsync")}
    assert found == {"journal_mode": "wal", "synchronous": connections._SYNCHRONOUS_FULL, "fullfsync": 1}
    assert connections._SYNCHRONOUS_FULL == 2


def test_a_reader_goes_on_from_where_the_journal_stopped_also_in_the_middle_of_a_group(
    place: Path, inbox: Inbox
) -> None:
    inbox.append(["a", "b", "c"])
    reader = InboxReader(place / NAME)
    (first,) = reader.after(InboxEnd(), limit=1)
    taken = InboxEnd(first.number, first.hash)
    assert [one.content for one in reader.after(taken, limit=1)] == ["b"]
    inbox.append(["d"])
    assert [one.content for one in reader.after(taken, limit=10)] == ["b", "c", "d"]
    assert all_of(place, taken) == ["b", "c", "d"]
    last = reader.after(taken, limit=10)[-1]
    end = InboxEnd(last.number, last.hash)
    assert reader.after(end, limit=10) == []
    inbox.append(["e"])
    assert [one.content for one in reader.after(end, limit=10)] == ["e"]
    assert [one.content for one in reader.after(taken, limit=10)] == ["b", "c", "d", "e"]
    assert (reader.verify(taken), reader.verify(end), verified(place)) == (4, 1, 5)
    reader.close()


def test_every_limit_gives_a_beginning_of_what_waits(place: Path, inbox: Inbox) -> None:
    for group in (["a"], ["b", "c"], ["d"], ["e", "f"]):
        inbox.append(group)
    with closing(InboxReader(place / NAME)) as reader:
        everything = reader.after(InboxEnd(), limit=100)
        for taken in range(6):
            hash_there = everything[taken - 1].hash if taken else ""
            for limit in range(1, 7):
                found = reader.after(InboxEnd(taken, hash_there), limit=limit)
                assert [one.content for one in found] == list("abcdef")[taken:][:limit]


def test_an_inbox_is_closed_and_opened_again_and_goes_on(place: Path) -> None:
    with closing(opened(place)) as first:
        first.append(["a"])
    with closing(opened(place)) as second:
        assert second.end.number == 1
        assert second.append(["b"]) == 2
    assert all_of(place) == ["a", "b"]


def test_any_change_of_what_was_kept_is_found(place: Path) -> None:
    with closing(opened(place)) as inbox:
        for content in ("a", "b", "c", "d"):
            inbox.append([content])
    whole = (place / NAME).read_bytes()
    for statement in (
        """UPDATE arrival SET contents = '["x"]' WHERE last = 3""",
        "UPDATE arrival SET hash = replace(hash, substr(hash, 1, 1), 'x') WHERE last = 3",
        "UPDATE arrival SET last = 9 WHERE last = 4",
        "UPDATE arrival SET last = -1 WHERE last = 4",
        "DELETE FROM arrival WHERE last = 0",
        "DELETE FROM arrival WHERE last = 2",
        "DELETE FROM arrival WHERE last = 3",
    ):
        tampered(place, statement)
        with pytest.raises(InboxDamaged, match=r"damaged after|does not continue"):
            verified(place)
        with pytest.raises(InboxDamaged, match=r"damaged after|does not continue"):
            all_of(place)
        (place / NAME).write_bytes(whole)
        (place / f"{NAME}-wal").unlink(missing_ok=True)
    assert verified(place) == 4


def test_sqlite_refuses_to_change_or_remove_a_notification(inbox: Inbox) -> None:
    inbox.append(["a"])
    for statement in ("UPDATE arrival SET contents = ''", "DELETE FROM arrival"):
        with pytest.raises(apsw.ConstraintError, match="never"):
            inbox._connection.execute(statement)


def test_a_file_of_another_kind_is_refused(place: Path) -> None:
    (place / NAME).write_bytes(b"SQLite format 3\0" + b"\xff" * 8000)
    (place / NAME).chmod(0o600)
    with pytest.raises(InboxDamaged, match="kind of file"):
        all_of(place)
    with pytest.raises(InboxDamaged, match="kind of file"):
        opened(place)
    (place / NAME).unlink()
    with closing(sqlite3.connect(place / NAME)) as database:
        database.execute("CREATE TABLE arrival (last, contents, hash)")
    (place / NAME).chmod(0o600)
    with pytest.raises(InboxDamaged, match="This version of the program"):
        opened(place)


def test_an_inbox_that_does_not_go_on_from_what_the_journal_took_is_refused(place: Path, inbox: Inbox) -> None:
    inbox.append(["a"])
    for taken in (InboxEnd(1, "0" * 64), InboxEnd(5, "0" * 64)):
        with pytest.raises(InboxDamaged, match="does not continue"):
            all_of(place, taken)
        with pytest.raises(InboxDamaged, match="does not continue"):
            verified(place, taken)


def test_a_new_inbox_goes_on_from_what_the_journal_took(place: Path) -> None:
    taken = InboxEnd(7, "7" * 64)
    with closing(opened(place, taken)) as inbox:
        assert inbox.append(["h"]) == 8
    assert all_of(place, taken) == ["h"]
    with pytest.raises(InboxDamaged, match="does not continue"):
        all_of(place)


def test_an_inbox_that_is_gone_is_not_made_anew_beside_its_log(place: Path) -> None:
    with closing(opened(place)) as inbox:
        inbox.append(["a"])
        (place / NAME).rename(place / "moved")
        (place / f"{NAME}.kept").write_bytes((place / f"{NAME}-wal").read_bytes())
    (place / f"{NAME}.kept").rename(place / f"{NAME}-wal")
    with pytest.raises(InboxDamaged, match="its log"):
        opened(place)


def test_a_reader_follows_when_the_file_is_replaced(place: Path) -> None:
    reader = InboxReader(place / NAME)
    assert reader.after(InboxEnd(), limit=5) == []
    with closing(opened(place)) as first:
        first.append(["a"])
    assert len(reader.after(InboxEnd(), limit=5)) == 1
    for ending in ("", "-wal", "-shm"):
        (place / f"{NAME}{ending}").unlink(missing_ok=True)
    with closing(opened(place)) as second:
        second.append(["b"])
    assert [one.content for one in reader.after(InboxEnd(), limit=5)] == ["b"]
    reader.close()


def test_a_second_listener_is_refused(place: Path, inbox: Inbox) -> None:
    with pytest.raises(JournalHeld):
        opened(place)
    assert inbox.append(["a"]) == 1


def test_no_inbox_is_nothing_to_take_in_and_a_link_is_refused(place: Path) -> None:
    assert all_of(place) == []
    (place / "elsewhere").write_text("")
    (place / NAME).symlink_to(place / "elsewhere")
    with pytest.raises(JournalError, match="symbolic link"):
        all_of(place)


def test_a_disk_that_fails_at_any_write_keeps_nothing_of_the_group_and_the_next_one_goes_on(place: Path) -> None:
    failed = 0
    with failing_disk() as disk, closing(opened(place)) as inbox:
        inbox.append(["a"])
        kept = ["a"]
        for disk.failure in (apsw.FullError, apsw.IOError):
            for ahead in range(1, 9):
                disk.fail_at = disk.operations + ahead
                try:
                    inbox.append(["b" * 5000, "c"])
                    kept += ["b" * 5000, "c"]
                except InboxUnwritable:
                    failed += 1
                disk.fail_at = 0
                assert all_of(place) == kept
                assert inbox.append(["d"]) == len(kept) + 1
                kept.append("d")
    assert failed > 4
    assert all_of(place) == kept
    assert verified(place) == len(kept)


def test_a_disk_that_stays_full_is_said_and_ends_nothing(place: Path) -> None:
    with failing_disk() as disk, closing(opened(place)) as inbox:
        inbox.append(["a"])
        disk.fail_at, disk.stays = disk.operations + 1, True
        for _ in range(3):
            with pytest.raises(InboxUnwritable, match="told to fail"):
                inbox.append(["b"])
        disk.fail_at = 0
        assert inbox.append(["c"]) == 2
    assert all_of(place) == ["a", "c"]
