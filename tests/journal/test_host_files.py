"""The files of a host: its sent log, its id, and the checks that use them. Uses no server."""

import os
from contextlib import closing
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
from psycopg import Connection

from paygw_batch.errors import JournalError, JournalTooOld, OpenRollCall, SentLogDamaged
from paygw_batch.journal.postgres.hosts import (
    IncarnationChanged,
    IncarnationFile,
    ProcessSentLog,
    check_sent_log,
    commit_counts,
    load_host_id,
)
from paygw_batch.journal.postgres.session import Server
from paygw_batch.journal.sent_log import newest_line
from tests.support.journal_rows import AT

SERVER = Server("postgresql://db.example/paygw")


def digest(number: int) -> str:
    return f"{number:064x}"


class FactTable:
    """A fake database with these fact numbers and hashes."""

    def __init__(self) -> None:
        self.facts: dict[int, bytes] = {}
        self.description = ("number", "hash")
        self._found: list[tuple[int, bytes]] = []

    def execute(self, query: bytes, values: tuple[list[int]]) -> "FactTable":
        assert query == b"SELECT number, hash FROM fact WHERE number = ANY (%s)"
        self._found = [(number, self.facts[number]) for number in values[0] if number in self.facts]
        return self

    def fetchall(self) -> list[tuple[int, bytes]]:
        return self._found

    def check(self, place: Path) -> None:
        check_sent_log(cast("Connection[Any]", self), SERVER, place)


def open_process_log(place: Path, life: IncarnationFile | None = None) -> ProcessSentLog:
    return ProcessSentLog(place, life or IncarnationFile(place), now=AT, command="work")


def file_names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def test_each_process_has_its_own_sent_log(place: Path) -> None:
    first, second = open_process_log(place), open_process_log(place)
    assert [name for name in file_names(place) if name.startswith("left-")] == [
        *("left-1.1", "left-1.lock", "left-2.1", "left-2.lock")
    ]
    first.log_commit(3, digest(3), AT)
    first.close()
    with closing(open_process_log(place)) as reopened:
        reopened.log_commit(4, digest(4), AT)
    second.close()
    first_line, second_line = newest_line(place, "left-1"), newest_line(place, "left-2")
    assert first_line is not None
    assert second_line is not None
    assert (first_line.count, first_line.number, first_line.hash) == (3, 4, digest(4))
    assert (second_line.count, second_line.number) == (1, 0)
    assert {(place / name).stat().st_mode & 0o777 for name in file_names(place)} == {0o600}


def test_damaged_host_files_are_refused(place: Path) -> None:
    path = place / "left-1.1"
    open_process_log(place).close()
    path.write_bytes(b"x" * 8192)
    for _ in range(2):  # the lock was released, so the second process gets the same file, not the next one
        with pytest.raises(SentLogDamaged):
            open_process_log(place)
    assert not (place / "left-2.1").exists()
    path.unlink()
    open_process_log(place).close()


def test_database_without_last_commit_is_refused(place: Path) -> None:
    table = FactTable()
    table.check(place)
    first, second = open_process_log(place), open_process_log(place)
    table.check(place)
    first.log_commit(3, digest(3), AT)
    second.log_commit(4, digest(4), AT)
    table.facts = {number: bytes.fromhex(digest(number)) for number in (3, 4)}
    table.check(place)
    for missing in list(table.facts):
        lacking = FactTable()
        lacking.facts = {number: raised for number, raised in table.facts.items() if number != missing}
        with pytest.raises(JournalTooOld) as raised:
            lacking.check(place)
        assert f"does not have fact {missing}" in raised.value.message
        assert "journal roll-call --accept-loss" in raised.value.hint
    first.close()
    second.close()


def test_replaced_fact_is_detected(place: Path) -> None:
    with closing(open_process_log(place)) as found:
        found.log_commit(3, digest(3), AT)
    table = FactTable()
    table.facts = {3: bytes.fromhex(digest(9))}
    with pytest.raises(JournalTooOld):
        table.check(place)


def test_host_keeps_same_id_for_journal(place: Path) -> None:
    before = os.umask(0)
    try:
        ours = load_host_id(place)
    finally:
        os.umask(before)
    assert load_host_id(place) == ours
    assert file_names(place) == ["host"]
    assert (place / "host").read_text() == ours
    assert (len(ours), (place / "host").stat().st_mode & 0o777) == (32, 0o600)


@pytest.mark.parametrize("content", ["", "a" * 31, "a" * 33, "G" * 32, "ä" * 32])
def test_damaged_host_id_is_not_recreated(place: Path, content: str) -> None:
    path = place / "host"
    load_host_id(place)
    path.write_text(content)
    with pytest.raises(JournalError) as raised:
        load_host_id(place)
    assert raised.value.message == f"{path} is damaged: this host's id is missing from it."
    assert raised.value.hint == (
        "Nothing was sent. Remove the file. This host then counts as a new one, and the old one is missing from the "
        "roll-call."
    )
    assert path.read_text() == content


def test_host_id_is_durable_before_use(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with_full_disk = Mock(side_effect=OSError(28, "No space left on device"))
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fail_with_full_disk)
        with pytest.raises(JournalError) as raised:
            load_host_id(place)
    path = place / "host"
    assert raised.value.message == f"{path} cannot be written: No space left on device."
    assert not path.exists()
    synced: list[str] = []
    real = os.fsync

    def record_fsync(fd: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        real(fd)

    monkeypatch.setattr(os, "fsync", record_fsync)
    load_host_id(place)
    file, directory = synced
    assert Path(file).parent == place
    assert directory == str(place)
    held = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert place not in held


LIFE, AFTER = "7417 00000001 16384", "7417 0000000A 16384"
ELSEWHERE = ("7418 00000001 16384", "7417 00000001 16385")


def test_commit_of_earlier_incarnation_is_not_logged(place: Path) -> None:
    ours, others = IncarnationFile(place), IncarnationFile(place)
    ours.enter(LIFE)
    with closing(open_process_log(place, ours)) as frozen:
        frozen.log_commit(3, digest(3), AT)
        others.enter(AFTER)
        with pytest.raises(IncarnationChanged):
            frozen.log_commit(4, digest(4), AT)
        assert commit_counts(place) == [1]
        ours.enter(AFTER)
        frozen.log_commit(4, digest(4), AT)
    assert commit_counts(place) == [2]


def test_process_refuses_earlier_timeline(place: Path) -> None:
    IncarnationFile(place).enter(AFTER)
    late = IncarnationFile(place)
    with pytest.raises(JournalTooOld, match="newer timeline"):
        late.enter(LIFE)
    for life in (AFTER, *ELSEWHERE):
        late.enter(life)


def test_incarnation_does_not_change_during_logging(place: Path) -> None:
    ours, others = IncarnationFile(place), IncarnationFile(place)
    ours.enter(LIFE)
    with ours.lock_incarnation(), pytest.raises(OpenRollCall, match="still recording"):
        others.enter(AFTER)
    with ours.lock_incarnation():
        others.enter(LIFE)
    others.enter(AFTER)
