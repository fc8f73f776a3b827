"""What a host keeps beside a database: its lines, its id, and what it finds by them. No server is asked."""

import os
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from psycopg import Connection

from paygw_batch.errors import JournalError, JournalWentBack, LeftDamaged, RollCallOpen
from paygw_batch.journal.left import newest
from paygw_batch.journal.postgres.hosts import HostLife, LeftOfProcess, LifeOver, check_left, counts_in, host_id_in
from paygw_batch.journal.postgres.session import Server
from tests.support.journal_rows import AT

SERVER = Server("postgresql://db.example/paygw")


def digest(number: int) -> str:
    return f"{number:064x}"


class FactTable:
    """A database that has facts with these numbers and hashes, as far as a host asks."""

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
        check_left(cast("Connection[Any]", self), SERVER, place)


def process(place: Path, life: HostLife | None = None) -> LeftOfProcess:
    return LeftOfProcess(place, life or HostLife(place), now=AT, command="work")


def files(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def test_each_process_writes_own_host_file(place: Path) -> None:
    first, second = process(place), process(place)
    assert [name for name in files(place) if name.startswith("left-")] == [
        *("left-1.1", "left-1.lock", "left-2.1", "left-2.lock")
    ]
    first.note(3, digest(3), AT)
    first.close()
    with closing(process(place)) as again:
        again.note(4, digest(4), AT)
    second.close()
    seen, other = newest(place, "left-1"), newest(place, "left-2")
    assert seen is not None
    assert other is not None
    assert (seen.count, seen.number, seen.hash) == (3, 4, digest(4))
    assert (other.count, other.number) == (1, 0)
    assert {(place / name).stat().st_mode & 0o777 for name in files(place)} == {0o600}


def test_host_file_counts_every_commit(place: Path) -> None:
    with closing(process(place)) as found:
        for number in range(1, 6):
            found.note(number, digest(number), AT)
    assert counts_in(place) == [5]


def test_damaged_host_files_are_refused(place: Path) -> None:
    path = place / "left-1.1"
    process(place).close()
    path.write_bytes(b"x" * 8192)
    for _ in range(2):  # the lock was let go: the second one meets the same, and not the next file
        with pytest.raises(LeftDamaged):
            process(place)
    assert not (place / "left-2.1").exists()
    path.unlink()
    process(place).close()


def test_a_database_without_a_last_commit_is_refused(place: Path) -> None:
    table = FactTable()
    table.check(place)
    first, second = process(place), process(place)
    table.check(place)
    first.note(3, digest(3), AT)
    second.note(4, digest(4), AT)
    table.facts = {number: bytes.fromhex(digest(number)) for number in (3, 4)}
    table.check(place)
    for gone in list(table.facts):
        lacking = FactTable()
        lacking.facts = {number: found for number, found in table.facts.items() if number != gone}
        with pytest.raises(JournalWentBack) as found:
            lacking.check(place)
        assert f"does not have fact {gone}" in found.value.message
        assert "journal roll-call --accept-loss" in found.value.hint
    first.close()
    second.close()


def test_host_file_detects_replaced_fact(place: Path) -> None:
    with closing(process(place)) as found:
        found.note(3, digest(3), AT)
    table = FactTable()
    table.facts = {3: bytes.fromhex(digest(9))}
    with pytest.raises(JournalWentBack):
        table.check(place)


def test_host_keeps_same_id_for_journal(place: Path) -> None:
    before = os.umask(0)
    try:
        ours = host_id_in(place)
    finally:
        os.umask(before)
    assert host_id_in(place) == ours
    assert files(place) == ["host"]
    assert (place / "host").read_text() == ours
    assert (len(ours), (place / "host").stat().st_mode & 0o777) == (32, 0o600)


@pytest.mark.parametrize("content", ["", "a" * 31, "a" * 33, "G" * 32, "ä" * 32])
def test_damaged_host_id_is_not_recreated(place: Path, content: str) -> None:
    path = place / "host"
    host_id_in(place)
    path.write_text(content)
    with pytest.raises(JournalError) as found:
        host_id_in(place)
    assert found.value.message == f"{path} is damaged: it does not name this host."
    assert found.value.hint == (
        "Nothing was sent. Remove it: this host is then a new one, and the roll-call asks for the old one."
    )
    assert path.read_text() == content


def test_host_id_is_durable_before_use(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full)
        with pytest.raises(JournalError) as found:
            host_id_in(place)
    path = place / "host"
    assert found.value.message == f"{path} cannot be written: No space left on device."
    assert not path.exists()
    synced: list[str] = []
    real = os.fsync

    def noted(fd: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        real(fd)

    monkeypatch.setattr(os, "fsync", noted)
    host_id_in(place)
    file, directory = synced
    assert Path(file).parent == place
    assert directory == str(place)
    held = [one.readlink() for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    assert place not in held


LIFE, AFTER = "7417 00000001 16384", "7417 0000000A 16384"
ELSEWHERE = ("7418 00000001 16384", "7417 00000001 16385")


def test_commit_of_earlier_server_life_is_not_noted(place: Path) -> None:
    ours, others = HostLife(place), HostLife(place)
    ours.enter(LIFE)
    with closing(process(place, ours)) as frozen:
        frozen.note(3, digest(3), AT)
        others.enter(AFTER)
        with pytest.raises(LifeOver):
            frozen.note(4, digest(4), AT)
        assert counts_in(place) == [1]
        ours.enter(AFTER)
        frozen.note(4, digest(4), AT)
    assert counts_in(place) == [2]


def test_process_refuses_earlier_server_timeline(place: Path) -> None:
    HostLife(place).enter(AFTER)
    late = HostLife(place)
    with pytest.raises(JournalWentBack, match="newer timeline"):
        late.enter(LIFE)
    for life in (AFTER, *ELSEWHERE):
        late.enter(life)


def test_server_life_change_waits_for_noting_process(place: Path) -> None:
    ours, others = HostLife(place), HostLife(place)
    ours.enter(LIFE)
    with ours.noting(), pytest.raises(RollCallOpen, match="still noting"):
        others.enter(AFTER)
    with ours.noting():
        others.enter(LIFE)
    others.enter(AFTER)
