"""Creating a journal, killed or failing at any step, never leaves two, and refuses places that are not safe."""

import itertools
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalError, JournalHeld, JournalMissing, JournalNotAdopted
from paygw_batch.journal import file_location as file_places
from paygw_batch.journal import lock as places
from paygw_batch.journal.known_journals import KnownJournal, KnownJournals
from paygw_batch.journal.sent_log import RUN, SentLogLine, newest_line, read_lines
from paygw_batch.journal.sqlite import connect, verify
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import Identity
from tests.support.journal_disk import failing_disk
from tests.support.journal_rows import (
    AT,
    ENDPOINT,
    create_journal_at,
    file_location,
    journal_path,
    open_journal_at,
    open_sheet,
    open_sheet_at,
    read_journal_at,
    send,
)
from tests.support.long_part import long, share

STEPS = ("open", "write", "pwrite", "fsync", "rename", "unlink", "mkdir")
"""Python's file operations. SQLite touches only the journal's temporary file, before its rename."""
KILLED = 9
each_step = pytest.mark.parametrize("step_size", [4, long(1)])
"""Each check tries the first step and every fourth after it."""


def make_at(
    folder: Path, name: str = "journal.sqlite3", *, beside: str | None = None, **changes: Any
) -> Identity | None:
    location = file_location(folder, journal_path(folder).with_name(name))
    return replace(location, **changes).create("journal new", beside=beside)


def clear(folder: Path) -> None:
    for part in ("state", "journals"):
        shutil.rmtree(folder / part, ignore_errors=True)


def open_journal(folder: Path, name: str = "journal.sqlite3") -> SqliteJournal:
    return file_location(folder, journal_path(folder).with_name(name)).open_to_write("a test")


def entries(folder: Path) -> list[KnownJournal]:
    return list(KnownJournals(folder / "journals").entries())


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


def kill_at_each_step(folder: Path, work: Callable[[], object], step_size: int = 1) -> Iterator[int]:
    """Yield after `work` was killed at each step, each time with an empty directory."""
    for number in itertools.count(1, step_size):
        clear(folder)
        if not run_until_killed(number, work):
            assert number > 15
            return
        yield number


@each_step
def test_killed_creation_can_be_repeated(folder: Path, step_size: int) -> None:
    for number in kill_at_each_step(folder, lambda: make_at(folder), step_size):
        made = make_at(folder)
        with closing(open_journal(folder)) as journal:
            assert made is None or journal.head().journal_id == made.journal_id, number
            open_sheet(journal)
            (entry,) = entries(folder)
            expected = (journal.head().journal_id, str(journal.path), False)
            assert (entry.journal_id, entry.path, entry.is_intended) == expected


@each_step
def test_killed_creation_leaves_single_usable_journal(folder: Path, step_size: int) -> None:
    was_made = set()
    for number in kill_at_each_step(folder, lambda: make_at(folder), step_size):
        if journal_path(folder).exists():
            with closing(open_journal(folder)) as journal, pytest.raises(JournalError, match=journal.head().journal_id):
                make_at(folder, "second.sqlite3")
            with pytest.raises(JournalMissing):
                open_journal(folder, "second.sqlite3")
        else:
            made = make_at(folder, "second.sqlite3")
            assert made is not None
            was_made.add(number)
            with pytest.raises(JournalMissing, match=made.journal_id):
                open_journal(folder)
            open_journal(folder, "second.sqlite3").close()
        assert [entry.is_intended for entry in entries(folder)] == [False]
    assert was_made


@pytest.mark.long
def test_abandoned_new_journal_needs_adoption(folder: Path) -> None:
    """Its disk was missing when another journal was created at its path, and returns."""
    found = 0
    for _ in kill_at_each_step(folder, lambda: make_at(folder)):
        path = journal_path(folder)
        if not path.exists() or not entries(folder)[0].is_intended:
            continue
        found += 1
        path.rename(folder / "away.sqlite3")
        assert make_at(folder, "second.sqlite3") is not None
        (folder / "away.sqlite3").rename(path)
        with pytest.raises(JournalNotAdopted):
            open_journal(folder)
    assert found > 0


@each_step
def test_killed_replacement_of_lost_journal_can_be_repeated(folder: Path, step_size: int) -> None:
    lost: list[str] = []

    def prepare() -> None:
        make_at(folder, beside=lost[-1])

    for number in itertools.count(1, step_size):
        clear(folder)
        make_at(folder)
        with closing(open_journal(folder)) as journal:
            open_sheet(journal)
            lost.append(journal.head().journal_id)
        for file in journal_path(folder).parent.iterdir():
            file.unlink()
        if not run_until_killed(number, prepare):
            break
        with pytest.raises(JournalError, match=lost[-1]):
            make_at(folder, "second.sqlite3")
        if not journal_path(folder).exists():
            assert make_at(folder, beside=lost[-1]) is not None
        open_journal(folder).close()
        newest = newest_line(folder / "journals" / lost[-1], RUN)
        assert newest is not None, f"the sent log of the lost journal is gone after step {number}"
        assert newest.number
    assert number > 15


@each_step
@pytest.mark.parametrize("stays", share([True, False], every=2))
def test_creation_succeeds_after_disk_failure(folder: Path, step_size: int, *, stays: bool) -> None:
    has_failed, ordinal = True, 1 - step_size
    while has_failed:
        ordinal += step_size
        clear(folder)
        with failing_disk() as disk:
            disk.fail_at, disk.stays = ordinal, stays
            try:
                make_at(folder)
            except JournalError:
                assert {path.suffix for path in journal_path(folder).parent.iterdir()} == {".lock"}
            has_failed = disk.operations >= ordinal
        make_at(folder)
        open_journal(folder).close()
    assert ordinal > 3


def test_new_journal_is_registered_before_use(folder: Path) -> None:
    made = make_at(folder)
    assert made is not None
    (entry,) = entries(folder)
    assert entry == KnownJournal(made.journal_id, (ENDPOINT,), str(journal_path(folder)), AT)
    assert list(read_lines(folder / "journals" / made.journal_id, RUN)) == [
        SentLogLine(1, 0, made.start.hash.hex(), "")
    ]


def test_unregistered_journal_blocks_new_journal_under_any_name(folder: Path) -> None:
    made, renamed = make_at(folder), EndpointIdentity.create("gateway.example", "9", "merchant")
    assert made is not None
    file_location(folder, endpoint=renamed).open_to_write("a test").close()
    shutil.rmtree(folder / "journals")
    for endpoint in (ENDPOINT, EndpointIdentity.create("gateway.example", "9", "another login")):
        with pytest.raises(JournalError, match=made.journal_id):
            make_at(folder, "second.sqlite3", endpoint=endpoint)


def test_each_merchant_has_own_journal(folder: Path) -> None:
    make_at(folder)
    for number, other in enumerate(("gateway.example/9", "other.example/1234")):
        assert make_at(folder, f"{number}.sqlite3", endpoint=EndpointIdentity.from_name(other)) is not None


def test_journal_in_use_is_not_recreated(folder: Path) -> None:
    make_at(folder)
    with closing(open_journal(folder)), pytest.raises(JournalHeld):
        make_at(folder)


@pytest.mark.parametrize("damage", [lambda text: text[:-20], lambda _: "[]"])
def test_damaged_entry_blocks_new_journals(folder: Path, damage: Callable[[str], str]) -> None:
    make_at(folder)
    (path,) = (folder / "journals").glob("*/journal.json")
    path.write_text(damage(path.read_text()))
    sentence = r"is damaged\. It records which merchant each journal belongs to"
    for attempt in (partial(make_at, folder, "second.sqlite3"), partial(open_journal, folder)):
        with pytest.raises(JournalError, match=sentence) as raised:
            attempt()
        assert "move the file to another folder" in raised.value.hint
    path.unlink()
    with pytest.raises(JournalNotAdopted):
        open_journal(folder)
    with pytest.raises(JournalError, match="already has a journal"):
        make_at(folder, "second.sqlite3")


def file_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_open_journal_is_private_and_durable(folder: Path) -> None:
    before = os.umask(0)
    try:
        with closing(open_journal_at(folder)) as journal:
            open_sheet(journal)
            files = [path for path in folder.rglob("*") if path.is_file()]
            endings = {".sqlite3", ".sqlite3-wal", ".sqlite3-shm", ".lock", ".1", ".json"}
            assert {path.suffix for path in files} == endings
            assert {file_mode(path) for path in files} == {0o600}
            settings = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
            assert {name: journal._connection.pragma(name) for name in settings} == settings
    finally:
        os.umask(before)
    assert {file_mode(path) for path in folder.rglob("*") if path.is_dir()} == {0o700}


def test_journal_is_created_in_missing_or_empty_file(folder: Path) -> None:
    with pytest.raises(JournalMissing, match="There is no journal at"):
        read_journal_at(folder)
    assert list(folder.iterdir()) == []
    path = journal_path(folder)
    path.parent.mkdir(mode=0o700)
    path.touch(mode=0o600)
    for open_it in (open_journal_at, read_journal_at):
        with pytest.raises(JournalMissing, match="There is no journal at"):
            open_it(folder)
    create_journal_at(folder)
    open_sheet_at(folder)
    with closing(read_journal_at(folder)) as reader:
        assert len(reader.batches()) == 1


def test_reading_journal_creates_and_changes_no_file(folder: Path) -> None:
    path = open_sheet_at(folder)
    before = {file.name: (file.stat().st_size, file.stat().st_mtime_ns) for file in path.parent.iterdir()}
    with closing(read_journal_at(folder)) as reader:
        assert len(reader.batches()) == 1
    after = {file.name: (file.stat().st_size, file.stat().st_mtime_ns) for file in path.parent.iterdir()}
    assert after.keys() == before.keys()
    assert after[path.name] == before[path.name]


def replace_by_link(path: Path) -> None:
    real = path.with_name("real.sqlite3")
    path.rename(real)
    path.symlink_to(real)


EXPOSED, OPEN_DIRECTORY = "Other users can read or change", "Other users can write to the directory"


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("spoil", "sentence", "hint"),
    [
        (replace_by_link, "is a symbolic link", "Specify the path of the file itself."),
        (lambda path: path.with_name("2").hardlink_to(path), "has a second name", "Remove the other name."),
        (lambda path: (path.unlink(), path.mkdir(mode=0o700)), "is not a file", ""),
        (lambda path: path.chmod(0o640), EXPOSED, "chmod 600 {path}"),
        (lambda path: path.chmod(0o602), EXPOSED, "chmod 600 {path}"),
        (lambda path: path.parent.chmod(0o770), OPEN_DIRECTORY, "chmod go-w {parent}"),
        (lambda path: path.parent.chmod(0o1777), OPEN_DIRECTORY, "chmod go-w {parent}"),
        (lambda path: path.with_name(path.name + "-wal").chmod(0o644), EXPOSED, "chmod 600 {path}-wal"),
        (lambda path: path.write_text("client_orderid;amount\n" * 500), "not the expected kind of file", ""),
        (lambda path: path.write_bytes(b"SQLite format 3\0" + b"\xff" * 8000), "not the expected kind of file", ""),
    ],
)
def test_unsafe_or_bad_journal_is_refused(
    folder: Path, spoil: Callable[[Path], None], sentence: str, hint: str
) -> None:
    path = open_sheet_at(folder)
    spoil(path)
    for open_it in (open_journal_at, read_journal_at):
        with pytest.raises(JournalError, match=sentence) as raised:
            open_it(folder)
        assert hint.format(path=path, parent=path.parent) in raised.value.hint


def test_linked_directory_resolves_to_real_journal_path(folder: Path) -> None:
    path = open_sheet_at(folder)
    (folder / "short").symlink_to(path.parent)
    with closing(file_location(folder, folder / "short" / path.name).open_to_write("a test")) as journal:
        assert (journal.path, journal.notes) == (path, ())
    with pytest.raises(JournalError, match="is not valid UTF-8"):
        file_location(folder, folder / "caf\udce9" / "journal.sqlite3")


def test_foreign_database_is_refused_unchanged(folder: Path) -> None:
    path = journal_path(folder)
    path.parent.mkdir(mode=0o700)
    with closing(apsw.Connection(str(path))) as other:
        other.execute("CREATE TABLE photos (name)")
    path.chmod(0o600)
    before = path.read_bytes()
    for open_it in (open_journal_at, read_journal_at):
        with pytest.raises(JournalError, match="is not a journal"):
            open_it(folder)
    assert path.read_bytes() == before


OTHER = EndpointIdentity.create("gateway.example", "9", "another login")


def test_journal_of_another_merchant_is_refused(folder: Path) -> None:
    open_sheet_at(folder)
    location = file_location(folder, endpoint=OTHER)
    for open_it in (partial(location.open_to_write, "a test"), location.open_to_read):
        with pytest.raises(JournalError, match="belongs to another merchant"):
            open_it()


def test_endpoint_may_change_one_part(folder: Path) -> None:
    open_sheet_at(folder)
    second = EndpointIdentity.create("gateway.example", "9", "merchant")
    for endpoint in (second, OTHER, ENDPOINT):
        open_journal_at(folder, endpoint=endpoint).close()
    (entry,) = file_location(folder).known_journals.entries()
    assert set(entry.names) == {ENDPOINT, second, OTHER}


def test_endpoint_matching_two_merchants_is_refused(folder: Path) -> None:
    """One merchant's journal does not know the payments of the other."""
    open_sheet_at(folder)
    second = file_location(folder, folder / "second.sqlite3", endpoint=OTHER)
    second.create("a test")
    between = EndpointIdentity.create("gateway.example", ENDPOINT.endpoint_id, "another login")
    for at_place in (second, file_location(folder)):
        with pytest.raises(JournalError, match="already has a journal"):
            replace(at_place, endpoint=between).open_to_write("a test")
    second.open_to_write("a test").close()


def test_lost_journal_log_blocks_new_journal(folder: Path) -> None:
    path = open_sheet_at(folder)
    path.unlink()
    path.with_name(f"{path.name}-wal").write_bytes(b"what was written last")
    shutil.rmtree(folder / "journals")
    with pytest.raises(JournalError, match=r"its log .* still exists"):
        open_journal_at(folder)
    assert not path.exists()


@pytest.fixture
def mount(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that mounts a file system at a path, and appends other lines to the table of mounts."""

    def mount_at(point: object, kind: str, more: str = "") -> None:
        table = (
            "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
            f"30 22 0:40 / {point} rw,relatime shared:7 - {kind} server:/export rw\n"
            "31 22 8:3 / /somewhere/else rw - xfs /dev/sdb1 rw\n"
        )
        monkeypatch.setattr(places, "_mount_table", lambda: table + more)

    return mount_at


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "fuse.anything"])
def test_network_file_system_is_refused(folder: Path, mount: Callable[..., None], kind: str) -> None:
    mount(folder, kind)
    with pytest.raises(JournalError, match="are not reliable") as raised:
        open_journal_at(folder)
    assert f"({kind})" in str(raised.value)
    assert "--journal" in raised.value.hint
    spaced = folder / "with blank"
    spaced.mkdir(mode=0o700)
    mount(str(spaced).replace(" ", "\\040"), kind)
    with pytest.raises(JournalError, match=kind):
        open_journal_at(spaced)


def test_local_file_system_is_accepted(folder: Path, mount: Callable[..., None]) -> None:
    for kind in ("ext4", "xfs", "btrfs", "overlay", "tmpfs", "fuseblk", "fuse.fuse-overlayfs"):
        mount(folder, kind)
        open_journal_at(folder).close()
    inner = "".join(f"32 30 8:4 / {folder}/{part} rw - ext4 /dev/sdc1 rw\n" for part in ("state", "journals"))
    mount(folder, "nfs4", inner)  # the innermost and latest mount counts
    open_journal_at(folder).close()
    mount(folder, "nfs4", f"{inner}34 32 0:50 / {folder}/state rw - cifs //server/x rw\n")
    with pytest.raises(JournalError, match="cifs"):
        open_journal_at(folder)


def test_corrupting_sqlite_version_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")
    with pytest.raises(JournalError, match=r"SQLite 3\.51\.2 can corrupt"):
        open_journal_at(folder)


# Versions of the tables: the next writer upgrades older ones, and newer ones are refused.
MADE_UP = "CREATE TABLE remark (number INTEGER PRIMARY KEY, said TEXT NOT NULL) STRICT;"
"""A change that a later version of the tables could make."""


@pytest.fixture
def newer_program(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Give the program a later version until the patch is undone."""
    scripts = (*connect.migrations(), MADE_UP)
    for module in (connect, file_places, verify):
        monkeypatch.setattr(module, "migrations", lambda: scripts)
    connect._expected_schema.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    connect._expected_schema.cache_clear()


def read_versions(folder: Path) -> list[int]:
    with closing(apsw.Connection(str(journal_path(folder)))) as connection:
        applied = [number for (number,) in connection.execute("SELECT version FROM migration ORDER BY version")]
        assert connection.pragma("user_version") == applied[-1]
    return applied


def test_older_journal_is_upgraded_by_next_writer(folder: Path, request: pytest.FixtureRequest) -> None:
    open_sheet_at(folder)
    request.getfixturevalue("newer_program")
    with pytest.raises(JournalError, match="was written by an older version"):
        read_journal_at(folder)
    assert read_versions(folder) == [1]
    with closing(open_journal_at(folder)) as journal:
        send(journal, 1, OutcomeKind.PAID)
        assert journal.verify()["paid"] == 3
    assert read_versions(folder) == [1, 2]
    with closing(read_journal_at(folder)) as reader:
        assert len(reader.batches()) == 1


def test_journal_of_newer_version_is_refused(folder: Path, newer_program: pytest.MonkeyPatch) -> None:
    open_sheet_at(folder)
    assert read_versions(folder) == [1, 2]
    newer_program.undo()
    connect._expected_schema.cache_clear()
    for open_it in (open_journal_at, read_journal_at):
        with pytest.raises(JournalError, match="newer version"):
            open_it(folder)
