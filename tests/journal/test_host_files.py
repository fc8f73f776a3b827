"""The files of a host: its sent log, its id, and the checks that use them. Uses no server."""

import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest

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


def check(folder: Path, facts: Mapping[int, int]) -> None:
    """Compare the host's sent logs with a database that has facts with these numbers and digests."""
    hashes = {number: bytes.fromhex(digest(value)) for number, value in facts.items()}

    def execute(query: bytes, values: tuple[list[int]]) -> Mock:
        assert query == b"SELECT number, hash FROM fact WHERE number = ANY (%s)"
        found = [(number, hashes[number]) for number in values[0] if number in hashes]
        return Mock(description=("number", "hash"), fetchall=lambda: found)

    check_sent_log(Mock(execute=execute), SERVER, folder)


def open_process_log(folder: Path, life: IncarnationFile | None = None) -> ProcessSentLog:
    return ProcessSentLog(folder, life or IncarnationFile(folder), now=AT, command="work")


def file_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_each_process_has_its_own_sent_log(folder: Path) -> None:
    first, second = open_process_log(folder), open_process_log(folder)
    names = [name for name in file_names(folder) if name.startswith("left-")]
    assert names == ["left-1.1", "left-1.lock", "left-2.1", "left-2.lock"]
    first.log_commit(3, digest(3), AT)
    first.close()
    with closing(open_process_log(folder)) as reopened:
        reopened.log_commit(4, digest(4), AT)
    second.close()
    newest = [newest_line(folder, name) for name in ("left-1", "left-2")]
    assert [line and (line.count, line.number) for line in newest] == [(3, 4), (1, 0)]
    assert newest[0] is not None
    assert newest[0].hash == digest(4)
    assert {(folder / name).stat().st_mode & 0o777 for name in file_names(folder)} == {0o600}


def test_damaged_host_files_are_refused(folder: Path) -> None:
    path = folder / "left-1.1"
    open_process_log(folder).close()
    path.write_bytes(b"x" * 8192)
    for _ in range(2):  # the lock was released, so the second process gets the same file, not the next one
        with pytest.raises(SentLogDamaged):
            open_process_log(folder)
    assert not (folder / "left-2.1").exists()
    path.unlink()
    open_process_log(folder).close()


def test_database_without_last_commit_is_refused(folder: Path) -> None:
    check(folder, {})
    with closing(open_process_log(folder)) as first, closing(open_process_log(folder)) as second:
        check(folder, {})
        first.log_commit(3, digest(3), AT)
        second.log_commit(4, digest(4), AT)
        check(folder, {3: 3, 4: 4})
        for missing, facts in ((3, {4: 4}), (4, {3: 3})):
            with pytest.raises(JournalTooOld) as raised:
                check(folder, facts)
            assert f"does not have fact {missing}" in raised.value.message
            assert "journal roll-call --accept-loss" in raised.value.hint
        with pytest.raises(JournalTooOld):  # another fact has its number
            check(folder, {3: 9, 4: 4})


def test_host_keeps_same_id_for_journal(folder: Path) -> None:
    before = os.umask(0)
    try:
        ours = load_host_id(folder)
    finally:
        os.umask(before)
    path = folder / "host"
    assert load_host_id(folder) == path.read_text() == ours
    assert (file_names(folder), len(ours), path.stat().st_mode & 0o777) == (["host"], 32, 0o600)


@pytest.mark.parametrize("content", ["", "a" * 31, "a" * 33, "G" * 32, "ä" * 32])
def test_damaged_host_id_is_not_recreated(folder: Path, content: str) -> None:
    path = folder / "host"
    load_host_id(folder)
    path.write_text(content)
    with pytest.raises(JournalError) as raised:
        load_host_id(folder)
    assert raised.value.message == f"{path} is damaged: this host's id is missing from it."
    assert raised.value.hint == (
        "Nothing was sent. Remove the file. This host will then count as a new one, and the old one will be missing "
        "from the roll-call."
    )
    assert path.read_text() == content


def test_host_id_is_durable_before_use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real, synced = folder / "host", os.fsync, list[Path]()
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
        with pytest.raises(JournalError) as raised:
            load_host_id(folder)
    assert raised.value.message == f"{path} cannot be written: No space left on device."
    assert not path.exists()

    def record_fsync(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink())
        real(fd)

    monkeypatch.setattr(os, "fsync", record_fsync)
    load_host_id(folder)
    file, directory = synced
    assert (file.parent, directory) == (folder, folder)
    assert folder not in [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]


LIFE, AFTER = "7417 00000001 16384", "7417 0000000A 16384"
ELSEWHERE = ("7418 00000001 16384", "7417 00000001 16385")


def test_commit_of_earlier_incarnation_is_not_logged(folder: Path) -> None:
    ours, others = IncarnationFile(folder), IncarnationFile(folder)
    ours.switch_to(LIFE)
    with closing(open_process_log(folder, ours)) as frozen:
        frozen.log_commit(3, digest(3), AT)
        others.switch_to(AFTER)
        with pytest.raises(IncarnationChanged):
            frozen.log_commit(4, digest(4), AT)
        assert commit_counts(folder) == [1]
        ours.switch_to(AFTER)
        frozen.log_commit(4, digest(4), AT)
    assert commit_counts(folder) == [2]


def test_process_refuses_earlier_timeline(folder: Path) -> None:
    IncarnationFile(folder).switch_to(AFTER)
    late = IncarnationFile(folder)
    with pytest.raises(JournalTooOld, match="newer timeline"):
        late.switch_to(LIFE)
    for life in (AFTER, *ELSEWHERE):
        late.switch_to(life)


def test_incarnation_does_not_change_during_logging(folder: Path) -> None:
    ours, others = IncarnationFile(folder), IncarnationFile(folder)
    ours.switch_to(LIFE)
    with ours.lock_incarnation(), pytest.raises(OpenRollCall, match="still recording"):
        others.switch_to(AFTER)
    with ours.lock_incarnation():
        others.switch_to(LIFE)
    others.switch_to(AFTER)
