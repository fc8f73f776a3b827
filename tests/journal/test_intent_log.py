"""The intents that a host's witness keeps: none that was made durable is lost, and none is invented."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paygw_batch.errors import WitnessDamaged
from paygw_batch.journal.guards import witness
from paygw_batch.journal.guards.witness import read_witness
from paygw_batch.journal.postgres.leasing import intent_log
from paygw_batch.journal.postgres.leasing.host_witness import HostLife, HostWitness, host_id_in, newest_commit
from paygw_batch.journal.postgres.leasing.intent_log import LogBroken, Noted, NotedCommit, commits_noted, log_key
from paygw_batch.journal.values import Link
from tests.journal.journal_rows import AT
from tests.long_part import share_of

JOURNAL = "a" * 32
Commit = tuple[Noted, ...]

noted = st.builds(
    Noted,
    st.integers(1, 2**62),
    st.integers(1, 2**31),
    st.one_of(st.none(), st.text(max_size=40).filter(str.isprintable)),
)
commits = st.lists(st.lists(noted, max_size=5).map(tuple), min_size=1, max_size=8)


@pytest.fixture(autouse=True, scope="module")
def small_steps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(intent_log, "_STEP", 1_024)
        yield


def link(seq: int) -> Link:
    return Link(seq, bytes([seq % 256]) * 32, AT)


def file_in(place: Path) -> Path:
    return place / f"{JOURNAL}-1.pg-witness"


def note_all(place: Path, noted_by: list[Commit], first: int = 1) -> None:
    with closing(HostWitness(place, JOURNAL, HostLife(place, JOURNAL), now=AT, command="work")) as host:
        for seq, one in enumerate(noted_by, start=first):
            host.note(3, link(seq), one)


def read_all(place: Path) -> Iterator[NotedCommit]:
    path = file_in(place)
    seen = read_witness(path)
    newest = None if seen is None else newest_commit(seen)
    if newest is not None:
        yield from commits_noted(path, log_key(JOURNAL, host_id_in(place, JOURNAL)), newest.log)


def as_noted(found: list[NotedCommit]) -> list[tuple[int, Commit]]:
    return [(one.end.seq, one.noted) for one in found]


def wanted(noted_by: list[Commit]) -> list[tuple[int, Commit]]:
    return [(seq, one) for seq, one in enumerate(noted_by, start=1) if one][::-1]


@given(commits, st.integers(0, 8))
@settings(deadline=None, max_examples=share_of(60))
def test_what_was_noted_is_read_newest_first_over_several_processes(noted_by: list[Commit], at: int) -> None:
    with TemporaryDirectory() as home:
        place = Path(home)
        note_all(place, noted_by[:at])
        note_all(place, noted_by[at:], first=len(noted_by[:at]) + 1)
        assert as_noted(list(read_all(place))) == wanted(noted_by)
        assert all(one.segment == 3 and one.end == link(one.end.seq) for one in read_all(place))


class Stopped(Exception):
    """The machine stopped."""


@contextmanager
def stopped_after(count: int) -> Iterator[list[int]]:
    """Let the disk take so many bytes more of what is written, and then nothing."""
    left, real, synced = [count], os.pwrite, [0]

    def pwrite(fd: int, content: bytes, offset: int) -> int:
        if left[0] < len(content):
            real(fd, content[: left[0]], offset)
            raise Stopped
        left[0] -= len(content)
        return real(fd, content, offset)

    def sync(_: int) -> None:
        synced[0] += 1

    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(os, "pwrite", pwrite)
        patching.setattr(witness, "_sync_data", sync)
        yield synced


def test_wherever_the_machine_stops_the_durable_intents_are_there_and_no_others(tmp_path: Path) -> None:
    """Cut at every byte of the second commit, and of the third one, which a second process writes."""
    noted_by: list[Commit] = [
        (Noted(1, 1, "A-1"), Noted(2, 1, "B")),
        (Noted(3, 1, "C"), Noted(1, 1, None)),
        (Noted(9, 2, "D-r2"),),
    ]
    for begun in (1, 2):
        reference = tmp_path / f"{begun}"
        reference.mkdir(mode=0o700)
        note_all(reference, noted_by[: begun + 1])
        for count in range(2_000):
            place = tmp_path / f"{begun}-{count}"
            place.mkdir(mode=0o700)
            (place / f"{JOURNAL}.pg-host").write_text(host_id_in(reference, JOURNAL))
            (place / f"{JOURNAL}.pg-host").chmod(0o600)
            note_all(place, noted_by[:begun])
            host = HostWitness(place, JOURNAL, HostLife(place, JOURNAL), now=AT, command="work")
            with closing(host), stopped_after(count) as synced, suppress(Stopped):
                host.note(3, link(begun + 1), noted_by[begun])
            # The end of a slot is blank, as it was before: without it the commit is noted whole as well.
            is_whole = file_in(place).read_bytes() == file_in(reference).read_bytes()
            assert is_whole or not synced[0]
            assert as_noted(list(read_all(place))) == wanted(noted_by[: begun + is_whole])
            # A process that goes on in the same file does not find what was half written either.
            note_all(place, [(Noted(7, 1, "E"),)], first=begun + 5)
            assert as_noted(list(read_all(place))) == [
                (begun + 5, (Noted(7, 1, "E"),)),
                *wanted(noted_by[: begun + is_whole]),
            ]
            if synced[0]:
                break
        assert synced[0]


@given(st.data(), commits)
@settings(deadline=None, max_examples=share_of(150), suppress_health_check=[HealthCheck.too_slow])
def test_a_file_that_is_damaged_says_so_or_says_the_truth(data: st.DataObject, noted_by: list[Commit]) -> None:
    with TemporaryDirectory() as home:
        place = Path(home)
        note_all(place, noted_by)
        content = bytearray(file_in(place).read_bytes())
        used = min(len(content), 10_000)
        if data.draw(st.booleans()):
            del content[data.draw(st.integers(0, used)) :]
        else:
            at = data.draw(st.integers(0, used - 1))
            content[at] ^= data.draw(st.integers(1, 255))
        file_in(place).write_bytes(content)
        found: list[NotedCommit] = []
        try:
            found.extend(read_all(place))
        except (WitnessDamaged, LogBroken):
            assert as_noted(found) == wanted(noted_by)[: len(found)]
            return
        # One slot of two can be gone: then the commit before is the newest one, and nothing is invented.
        assert as_noted(found) in (wanted(noted_by), wanted(noted_by[:-1]))


def test_a_file_is_bounded_and_says_that_older_intents_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intent_log, "MAX_BYTES", 3_000)
    monkeypatch.setattr(intent_log, "_STEP", 1_000)
    noted_by: list[Commit] = [(Noted(number, 1, f"ORD-{number}"),) for number in range(1, 200)]
    for count in (1, 7, 20, 27, 28, 29, 50, 199):
        place = tmp_path / str(count)
        place.mkdir(mode=0o700)
        note_all(place, noted_by[:count])
        found: list[NotedCommit] = []
        try:
            found.extend(read_all(place))
            assert len(found) == count
        except LogBroken:
            assert len(found) >= 18
        assert as_noted(found) == wanted(noted_by[:count])[: len(found)]
        assert file_in(place).stat().st_size <= 8192 + 3_000
    assert len(found) < 30


def _other_host(place: Path) -> None:
    (place / f"{JOURNAL}.pg-host").write_text("b" * 32)


def _of_before(place: Path, content: bytes) -> None:
    changed = file_in(place).read_bytes()
    file_in(place).write_bytes(changed[:8192] + content[8192:])


def test_the_log_of_another_host_or_of_another_time_is_not_believed(tmp_path: Path) -> None:
    spoils: tuple[Callable[[Path], None], ...] = (_other_host, partial(_of_before, content=bytes(300_000)))
    for number, spoil in enumerate(spoils):
        place = tmp_path / str(number)
        place.mkdir(mode=0o700)
        note_all(place, [(Noted(1, 1, "A"),)])
        spoil(place)
        with pytest.raises(LogBroken):
            list(read_all(place))


def test_a_full_disk_is_told_before_the_commit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(HostWitness(tmp_path, JOURNAL, HostLife(tmp_path, JOURNAL), now=AT, command="work")) as host:
        host.note(3, link(1), (Noted(1, 1, "A"),))
        real = os.pwrite

        def full(fd: int, content: bytes, offset: int) -> int:
            if offset >= 8192:
                raise OSError(28, "No space left on device")
            return real(fd, content, offset)

        with monkeypatch.context() as broken:
            broken.setattr(os, "pwrite", full)
            with pytest.raises(OSError, match="No space"):
                host.note(3, link(2), (Noted(2, 1, "B"),))
        assert as_noted(list(read_all(tmp_path))) == [(1, (Noted(1, 1, "A"),))]
