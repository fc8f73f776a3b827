"""The witness of a host beside a database: which files it keeps, and what it finds. No server is asked."""

import os
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from psycopg import Connection

from paygw_batch.errors import JournalError, JournalWentBack, RollCallOpen
from paygw_batch.journal.guards.witness import WitnessedHead, read_witness
from paygw_batch.journal.postgres.leasing.host_witness import (
    HostLife,
    HostWitness,
    LifeOver,
    check_witnesses,
    counts_in,
    host_id_in,
    set_aside,
)
from paygw_batch.journal.postgres.leasing.intent_log import LogEnd
from paygw_batch.journal.postgres.session import Server
from paygw_batch.journal.values import Link
from tests.journal.journal_rows import AT

JOURNAL, OTHER = "a" * 32, "b" * 32
SERVER = Server("postgresql://db.example/paygw")
END = Link(7, b"\x01" * 32, AT)


class FactTable:
    """A database that has the facts (segment, seq) with these hashes, as far as a witness asks."""

    def __init__(self, **_: object) -> None:
        self.facts: dict[tuple[int, int], bytes] = {}
        self.description = ("hash",)
        self._found: list[tuple[bytes]] = []

    def execute(self, query: bytes, values: tuple[int, int]) -> "FactTable":
        assert query == b"SELECT hash FROM fact WHERE segment = %s AND seq = %s"
        self._found = [(self.facts[values],)] if values in self.facts else []
        return self

    def fetchall(self) -> list[tuple[bytes]]:
        return self._found

    def check(self, place: Path, journal_id: str = JOURNAL) -> None:
        check_witnesses(cast("Connection[Any]", self), SERVER, place, journal_id)


def witness(place: Path, journal_id: str = JOURNAL) -> HostWitness:
    return HostWitness(place, journal_id, HostLife(place, journal_id), now=AT, command="work")


def files(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def test_each_process_has_a_file_of_its_own_and_a_free_one_is_used_again(place: Path) -> None:
    first, second = witness(place), witness(place)
    with closing(witness(place, OTHER)):
        names = [f"{JOURNAL}-{number}.pg-witness" for number in (1, 2)]
        assert [name for name in files(place) if name.endswith(".pg-witness")] == [*names, f"{OTHER}-1.pg-witness"]
    first.note(3, END)
    first.close()
    with closing(witness(place)) as again:
        again.note(4, END)
    second.close()
    assert read_witness(place / names[0]) == WitnessedHead(JOURNAL, 2, f"4.7.{'01' * 32}.{LogEnd().as_text()}")
    assert read_witness(place / names[1]) == WitnessedHead(JOURNAL, 0, "-")
    assert {(place / name).stat().st_mode & 0o777 for name in files(place)} == {0o600}


def test_every_commit_is_counted_and_the_newest_is_kept(place: Path) -> None:
    with closing(witness(place)) as found:
        for seq in range(1, 6):
            found.note(2, Link(seq, bytes([seq]) * 32, AT))
    assert read_witness(place / f"{JOURNAL}-1.pg-witness") == WitnessedHead(
        JOURNAL, 5, f"2.5.{'05' * 32}.{LogEnd().as_text()}"
    )
    assert counts_in(place, JOURNAL) == [5]


def test_a_damaged_witness_is_refused_and_holds_nothing(place: Path) -> None:
    path = place / f"{JOURNAL}-1.pg-witness"
    witness(place).close()
    path.write_bytes(b"x" * 8192)
    for _ in range(2):  # the lock was let go: the second one meets the same, and not the next file
        with pytest.raises(JournalError, match="is damaged"):
            witness(place)
    assert not (place / f"{JOURNAL}-2.pg-witness").exists()
    path.unlink()
    witness(place).close()


def test_a_database_that_has_the_last_commit_of_each_process_is_fine(place: Path) -> None:
    table = FactTable()
    table.check(place)
    first, second = witness(place), witness(place)
    table.check(place)
    first.note(3, END)
    second.note(4, Link(2, b"\x02" * 32, AT))
    table.facts = {(3, 7): b"\x01" * 32, (4, 2): b"\x02" * 32}
    table.check(place)
    table.check(place, OTHER)
    for gone in list(table.facts):
        lacking = FactTable()
        lacking.facts = {key: digest for key, digest in table.facts.items() if key != gone}
        with pytest.raises(JournalWentBack) as found:
            lacking.check(place)
        assert found.value.message == (
            f"The journal in paygw on db.example does not have fact {gone[1]} of lease {gone[0]}, on which this "
            "machine has sent: the database is an older copy."
        )
        assert "journal roll-call --accept-loss" in found.value.hint
        lacking.check(place, OTHER)
    first.close()
    second.close()


def test_a_fact_of_the_same_number_that_is_another_one_is_found(place: Path) -> None:
    with closing(witness(place)) as found:
        found.note(3, END)
    table = FactTable()
    table.facts = {(3, 7): b"\x03" * 32}
    with pytest.raises(JournalWentBack):
        table.check(place)


def test_a_host_has_one_id_for_a_journal(place: Path) -> None:
    before = os.umask(0)
    try:
        ours = host_id_in(place, JOURNAL)
    finally:
        os.umask(before)
    assert host_id_in(place, JOURNAL) == ours
    assert host_id_in(place, OTHER) != ours
    assert files(place) == [f"{JOURNAL}.pg-host", f"{OTHER}.pg-host"]
    path = place / f"{JOURNAL}.pg-host"
    assert path.read_text() == ours
    assert (len(ours), path.stat().st_mode & 0o777) == (32, 0o600)


@pytest.mark.parametrize("content", ["", "a" * 31, "a" * 33, "G" * 32, "ä" * 32])
def test_an_id_that_is_damaged_is_not_made_again(place: Path, content: str) -> None:
    path = place / f"{JOURNAL}.pg-host"
    host_id_in(place, JOURNAL)
    path.write_text(content)
    with pytest.raises(JournalError) as found:
        host_id_in(place, JOURNAL)
    assert found.value.message == f"{path} is damaged: it does not name this host."
    assert found.value.hint == (
        "Nothing was sent. Remove it: this host is then a new one, and the roll-call asks for the old one."
    )
    assert path.read_text() == content


def test_an_id_is_durable_before_it_is_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full)
        with pytest.raises(JournalError) as found:
            host_id_in(place, JOURNAL)
    path = place / f"{JOURNAL}.pg-host"
    assert found.value.message == f"{path} cannot be written: No space left on device."
    assert not path.exists()
    synced: list[str] = []
    real = os.fsync

    def noted(fd: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        real(fd)

    monkeypatch.setattr(os, "fsync", noted)
    host_id_in(place, JOURNAL)
    file, directory = synced
    assert Path(file).parent == place
    assert directory == str(place)
    held = [one.readlink() for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    assert place not in held


def test_after_an_accepted_loss_the_witness_begins_again_and_its_files_are_kept(place: Path) -> None:
    ours = host_id_in(place, JOURNAL)
    for journal_id in (JOURNAL, OTHER):
        with closing(witness(place, journal_id)) as found:
            found.note(3, END)
    set_aside(place, JOURNAL)
    kept = [name.partition(".accepted-")[0] for name in files(place) if ".accepted-" in name]
    assert kept == [f"{JOURNAL}-1.pg-witness"]
    FactTable().check(place)
    with pytest.raises(JournalWentBack):
        FactTable().check(place, OTHER)
    assert host_id_in(place, JOURNAL) == ours
    with closing(witness(place)) as again:
        again.note(4, END)
    set_aside(place, JOURNAL)
    assert len([name for name in files(place) if ".accepted-" in name]) == 2


LIFE, AFTER = "7417 00000001 16384", "7417 0000000A 16384"
ELSEWHERE = ("7418 00000001 16384", "7417 00000001 16385")


def test_a_commit_of_an_earlier_life_was_compared_or_is_never_noted(place: Path) -> None:
    ours, others = HostLife(place, JOURNAL), HostLife(place, JOURNAL)
    ours.enter(LIFE)
    with closing(HostWitness(place, JOURNAL, ours, now=AT, command="work")) as frozen:
        frozen.note(3, END)
        others.enter(AFTER)
        with pytest.raises(LifeOver):
            frozen.note(4, END)
        assert counts_in(place, JOURNAL) == [1]
        ours.enter(AFTER)
        frozen.note(4, END)
    assert counts_in(place, JOURNAL) == [2]


def test_no_process_of_a_host_goes_back_to_an_earlier_timeline(place: Path) -> None:
    HostLife(place, JOURNAL).enter(AFTER)
    late = HostLife(place, JOURNAL)
    with pytest.raises(JournalWentBack, match="newer timeline"):
        late.enter(LIFE)
    for life in (AFTER, *ELSEWHERE):
        late.enter(life)


def test_another_life_waits_for_a_process_that_notes_a_commit(place: Path) -> None:
    ours, others = HostLife(place, JOURNAL), HostLife(place, JOURNAL)
    ours.enter(LIFE)
    with ours.noting(), pytest.raises(RollCallOpen, match="still noting"):
        others.enter(AFTER)
    with ours.noting():
        others.enter(LIFE)
    others.enter(AFTER)
