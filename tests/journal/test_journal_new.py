"""Creating a journal, killed or failing at any step, never leaves two that do not know each other."""

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.errors import JournalError, JournalHeld, JournalMissing, JournalNotAdopted
from paygw_batch.journal.known_journals import KnownJournal, KnownJournals
from paygw_batch.journal.sent_log import RUN, SentLogLine, newest_line, read_lines
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import Identity
from tests.support.journal_disk import failing_disk
from tests.support.journal_rows import AT, ENDPOINT, file_location, journal_path, open_sheet
from tests.support.long_part import long, share

STEPS = ("open", "write", "pwrite", "fsync", "rename", "unlink", "mkdir")
"""Python's file operations. SQLite touches only the journal's temporary file, before its rename."""
KILLED = 9
each_step = pytest.mark.parametrize("step_size", [4, long(1)])
"""Each check tries the first step and every fourth after it."""


def make_journal(
    place: Path, name: str = "journal.sqlite3", *, beside: str | None = None, **changes: Any
) -> Identity | None:
    location = file_location(place, journal_path(place).with_name(name))
    return replace(location, **changes).create("journal new", beside=beside)


def clear(place: Path) -> None:
    for part in ("state", "journals"):
        shutil.rmtree(place / part, ignore_errors=True)


def open_journal(place: Path, name: str = "journal.sqlite3") -> SqliteJournal:
    return file_location(place, journal_path(place).with_name(name)).open_to_write("a test")


def entries(place: Path) -> list[KnownJournal]:
    return list(KnownJournals(place / "journals").entries())


def run_until_killed(number: int, work: Callable[[], object]) -> bool:
    """Run `work` in a process that is killed before step `number`; return whether it got that far."""
    child = os.fork()
    if child == 0:  # pytest must not continue in the child process
        code = 1
        steps = itertools.count(1)

        def count_call(call: Callable[..., Any], *arguments: Any, **words: Any) -> Any:
            if next(steps) == number:
                os._exit(KILLED)
            return call(*arguments, **words)

        try:
            for name in STEPS:
                setattr(os, name, partial(count_call, getattr(os, name)))
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in {0, KILLED}
    return code == KILLED


def kill_at_each_step(place: Path, work: Callable[[], object], step_size: int = 1) -> Iterator[int]:
    """Yield after `work` was killed at each step, each time with an empty directory."""
    for number in itertools.count(1, step_size):
        clear(place)
        if not run_until_killed(number, work):
            assert number > 15
            return
        yield number


@each_step
def test_killed_creation_can_be_repeated(place: Path, step_size: int) -> None:
    for number in kill_at_each_step(place, lambda: make_journal(place), step_size):
        made = make_journal(place)
        with closing(open_journal(place)) as journal:
            assert made is None or journal.head().journal_id == made.journal_id, number
            open_sheet(journal)
            (entry,) = entries(place)
            expected = (journal.head().journal_id, str(journal.path), False)
            assert (entry.journal_id, entry.path, entry.is_intended) == expected


@each_step
def test_killed_creation_leaves_single_usable_journal(place: Path, step_size: int) -> None:
    was_made = set()
    for number in kill_at_each_step(place, lambda: make_journal(place), step_size):
        if journal_path(place).exists():
            with closing(open_journal(place)) as journal, pytest.raises(JournalError, match=journal.head().journal_id):
                make_journal(place, "second.sqlite3")
            with pytest.raises(JournalMissing):
                open_journal(place, "second.sqlite3")
        else:
            made = make_journal(place, "second.sqlite3")
            assert made is not None
            was_made.add(number)
            with pytest.raises(JournalMissing, match=made.journal_id):
                open_journal(place)
            open_journal(place, "second.sqlite3").close()
        assert [entry.is_intended for entry in entries(place)] == [False]
    assert was_made


@pytest.mark.long
def test_abandoned_new_journal_needs_adoption(place: Path) -> None:
    """Its disk was missing when another journal was created at its path, and returns."""
    found = 0
    for _ in kill_at_each_step(place, lambda: make_journal(place)):
        path = journal_path(place)
        if not path.exists() or not entries(place)[0].is_intended:
            continue
        found += 1
        path.rename(place / "away.sqlite3")
        assert make_journal(place, "second.sqlite3") is not None
        (place / "away.sqlite3").rename(path)
        with pytest.raises(JournalNotAdopted):
            open_journal(place)
    assert found > 0


@each_step
def test_killed_replacement_of_lost_journal_can_be_repeated(place: Path, step_size: int) -> None:
    lost: list[str] = []

    def prepare() -> None:
        make_journal(place, beside=lost[-1])

    for number in itertools.count(1, step_size):
        clear(place)
        make_journal(place)
        with closing(open_journal(place)) as journal:
            open_sheet(journal)
            lost.append(journal.head().journal_id)
        for file in journal_path(place).parent.iterdir():
            file.unlink()
        if not run_until_killed(number, prepare):
            break
        with pytest.raises(JournalError, match=lost[-1]):
            make_journal(place, "second.sqlite3")
        if not journal_path(place).exists():
            assert make_journal(place, beside=lost[-1]) is not None
        open_journal(place).close()
        newest = newest_line(place / "journals" / lost[-1], RUN)
        assert newest is not None, f"the sent log of the lost journal is gone after step {number}"
        assert newest.number
    assert number > 15


@each_step
@pytest.mark.parametrize("stays", share([True, False], every=2))
def test_creation_succeeds_after_disk_failure(place: Path, step_size: int, *, stays: bool) -> None:
    has_failed, ordinal = True, 1 - step_size
    while has_failed:
        ordinal += step_size
        clear(place)
        with failing_disk() as disk:
            disk.fail_at, disk.stays = ordinal, stays
            try:
                make_journal(place)
            except JournalError:
                assert not journal_path(place).exists()
            has_failed = disk.operations >= ordinal
        make_journal(place)
        open_journal(place).close()
    assert ordinal > 3


# Known journals


def test_new_journal_is_registered_before_use(place: Path) -> None:
    made = make_journal(place)
    assert made is not None
    (entry,) = entries(place)
    assert entry == KnownJournal(made.journal_id, (ENDPOINT,), str(journal_path(place)), AT)
    start = SentLogLine(1, 0, made.start.hash.hex(), "")
    assert list(read_lines(place / "journals" / made.journal_id, RUN)) == [start]


def test_unregistered_journal_blocks_new_journal_under_any_name(place: Path) -> None:
    made, renamed = make_journal(place), EndpointIdentity.create("gateway.example", "9", "merchant")
    assert made is not None
    file_location(place, endpoint=renamed).open_to_write("a test").close()
    shutil.rmtree(place / "journals")
    for endpoint in (ENDPOINT, EndpointIdentity.create("gateway.example", "9", "another login")):
        with pytest.raises(JournalError, match=made.journal_id):
            make_journal(place, "second.sqlite3", endpoint=endpoint)


def test_each_merchant_has_own_journal(place: Path) -> None:
    make_journal(place)
    for number, other in enumerate(("gateway.example/9", "other.example/1234")):
        assert make_journal(place, f"{number}.sqlite3", endpoint=EndpointIdentity.from_name(other)) is not None


def test_journal_in_use_is_not_recreated(place: Path) -> None:
    make_journal(place)
    with closing(open_journal(place)), pytest.raises(JournalHeld):
        make_journal(place)


@pytest.mark.parametrize("damage", [lambda text: text[:-20], lambda _: "[]"])
def test_damaged_entry_blocks_new_journals(place: Path, damage: Callable[[str], str]) -> None:
    make_journal(place)
    (path,) = (place / "journals").glob("*/journal.json")
    path.write_text(damage(path.read_text()))
    sentence = r"is damaged\. It records which merchant each journal belongs to"
    for attempt in (partial(make_journal, place, "second.sqlite3"), partial(open_journal, place)):
        with pytest.raises(JournalError, match=sentence) as raised:
            attempt()
        assert "move the file to another folder" in raised.value.hint
    path.unlink()
    with pytest.raises(JournalNotAdopted):
        open_journal(place)
    with pytest.raises(JournalError, match="already has a journal"):
        make_journal(place, "second.sqlite3")
