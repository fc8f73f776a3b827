"""The sent log: no durable line is lost, and none is invented."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paygw_batch.errors import JournalTooOld, SentLogDamaged
from paygw_batch.journal import sent_log
from paygw_batch.journal.sent_log import (
    NOTES,
    RUN,
    LoggedAttempt,
    SentLog,
    SentLogLine,
    log_accepted_loss,
    log_concurrent_fact,
    newest_line,
    read_lines,
    require_not_older,
    writer_names,
)
from paygw_batch.journal.values import Link
from tests.support.journal_rows import AT
from tests.support.long_part import example_count

Commit = Sequence[LoggedAttempt]
Read = list[tuple[int, list[LoggedAttempt]]]
START = (0, "0" * 64, "")
A = LoggedAttempt(1, 1, "A")

attempts = st.builds(
    LoggedAttempt, st.integers(1, 2**62), st.integers(1, 2**31), st.one_of(st.none(), st.text(max_size=40))
)
commits = st.lists(st.lists(attempts, max_size=5), min_size=1, max_size=8)


@pytest.fixture(autouse=True, scope="module")
def allocate_small_steps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(sent_log, "_ALLOCATION_BYTES", 1_024)
        yield


def digest(number: int) -> str:
    return f"{number:064x}"


def log_attempts(folder: Path, noted_by: Sequence[Commit], first: int = 1, name: str = RUN) -> None:
    known = newest_line(folder, name)
    with closing(SentLog(folder, name, START if known is None else (known.number, known.hash, known.at))) as writer:
        for number, one in enumerate(noted_by, start=first):
            writer.log_commit(number, digest(number), AT, one)


def read_undamaged(folder: Path) -> tuple[Read, bool]:
    """Return the lines before the first damage, and whether there is no damage."""
    lines_read: Read = []
    try:
        lines_read.extend((line.number, list(line.attempts)) for line in read_lines(folder, RUN))
    except SentLogDamaged:
        return lines_read, False
    return lines_read, True


def read_all(folder: Path) -> Read:
    return read_undamaged(folder)[0]


def expected_lines(noted_by: Sequence[Commit]) -> Read:
    return [(number, list(one)) for number, one in enumerate([[], *noted_by])][::-1]


@given(commits, st.integers(0, 8))
@settings(deadline=None, max_examples=example_count(60))
def test_lines_of_several_processes_are_read_newest_first(noted_by: list[Commit], at: int) -> None:
    with TemporaryDirectory() as home:
        folder = Path(home)
        log_attempts(folder, noted_by[:at])
        log_attempts(folder, noted_by[at:], first=len(noted_by[:at]) + 1)
        assert read_all(folder) == expected_lines(noted_by)
        lines_read = list(read_lines(folder, RUN))
        assert [line.count for line in lines_read] == list(range(len(noted_by) + 1, 0, -1))
        assert newest_line(folder, RUN) == lines_read[0]


class Stopped(Exception):
    """Stands for a stop of the machine."""


@contextmanager
def stopping_after(count: int) -> Iterator[list[int]]:
    """Let the disk accept `count` more bytes, and then none."""
    remaining, real, synced = [count], os.pwrite, [0]

    def pwrite(fd: int, content: bytes, offset: int) -> int:
        if remaining[0] < len(content):
            real(fd, content[: remaining[0]], offset)
            raise Stopped
        remaining[0] -= len(content)
        return real(fd, content, offset)

    def sync(_: int) -> None:
        synced[0] += 1

    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(os, "pwrite", pwrite)
        patching.setattr(sent_log, "_sync_data", sync)
        yield synced


def test_durable_lines_survive_stop_at_any_byte(tmp_path: Path) -> None:
    """The log is cut at every byte of the second line, and of the third one, which a second process writes."""
    noted_by: list[Commit] = [
        [LoggedAttempt(1, 1, "A-1"), LoggedAttempt(2, 1, "B")],
        [LoggedAttempt(3, 1, "C"), LoggedAttempt(1, 1, None)],
        [LoggedAttempt(9, 2, "D-r2")],
    ]
    for line_number in (1, 2):
        for count in range(3_000):
            folder = tmp_path / f"{line_number}-{count}"
            folder.mkdir(mode=0o700)
            log_attempts(folder, noted_by[:line_number])
            with suppress(Stopped), stopping_after(count) as synced:
                log_attempts(folder, [noted_by[line_number]], first=line_number + 1)
            is_whole = bool(synced[0])
            assert read_all(folder) == expected_lines(noted_by[: line_number + is_whole])
            # A process that continues in the same file does not find the torn line either.
            durable_lines = read_all(folder)
            log_attempts(folder, [[LoggedAttempt(7, 1, "E")]], first=line_number + 5)
            assert read_all(folder) == [(line_number + 5, [LoggedAttempt(7, 1, "E")]), *durable_lines]
            if is_whole:
                break
        assert is_whole


def test_line_torn_in_middle_is_ignored(tmp_path: Path) -> None:
    """The end of the line reached the disk, but its beginning did not."""
    log_attempts(tmp_path, [[A], [LoggedAttempt(2, 1, "B" * 600)]])
    path = tmp_path / f"{RUN}.1"
    content = path.read_bytes()
    at = content.index(b"B" * 100)
    path.write_bytes(content[:at] + bytes(200) + content[at + 200 :])
    assert read_all(tmp_path) == expected_lines([[A]])
    log_attempts(tmp_path, [[LoggedAttempt(3, 1, "C")]], first=3)
    assert read_all(tmp_path) == [(3, [LoggedAttempt(3, 1, "C")]), *expected_lines([[A]])]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda lines: b"\n".join([*lines[:2], *lines[3:]]),
        lambda lines: b"\n".join([*lines[:4], lines[4] + b"\x0b" + lines[5], *lines[6:]]),
    ],
    ids=["missing", "break"],
)
def test_missing_or_merged_durable_line_is_refused(tmp_path: Path, spoil: Callable[[list[bytes]], bytes]) -> None:
    """Without the break between them, the last two durable lines would look like a single torn one."""
    log_attempts(tmp_path, [[LoggedAttempt(number, 1, "A")] for number in range(1, 6)])
    path = tmp_path / f"{RUN}.1"
    path.write_bytes(spoil(path.read_bytes().split(b"\n")))
    with pytest.raises(SentLogDamaged):
        list(read_lines(tmp_path, RUN))


@given(st.data(), commits)
@settings(deadline=None, max_examples=example_count(150), suppress_health_check=[HealthCheck.too_slow])
def test_damaged_file_never_yields_wrong_line(data: st.DataObject, noted_by: list[Commit]) -> None:
    with TemporaryDirectory() as home:
        folder = Path(home)
        log_attempts(folder, noted_by)
        path = folder / f"{RUN}.1"
        content = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        lines_read, are_all = read_undamaged(folder)
        # The newest line may be missing, like a torn one, but none is invented.
        truths = (expected_lines(noted_by), expected_lines(noted_by[:-1]))
        assert lines_read in (truths if are_all else [truth[: len(lines_read)] for truth in truths])


@pytest.mark.parametrize("content", [b"", bytes(8192), b"x" * 8192, b"x\n" * 4096, b"[1,2] 00000000\n"])
def test_damaged_file_does_not_count_as_missing(tmp_path: Path, content: bytes) -> None:
    log_attempts(tmp_path, [[A]])
    (tmp_path / f"{RUN}.1").write_bytes(content)
    for attempt in (
        newest_line,
        lambda folder, name: list(read_lines(folder, name)),
        lambda *_: log_attempts(tmp_path, []),
    ):
        with pytest.raises(SentLogDamaged):
            attempt(tmp_path, RUN)


def test_files_stay_bounded_by_dropping_oldest_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent_log, "MAX_BYTES", 3_000)
    noted_by: list[Commit] = [[LoggedAttempt(number, 1, f"ORD-{number}")] for number in range(1, 200)]
    for count in (1, 7, 20, 21, 22, 40, 50, 199):
        folder = tmp_path / str(count)
        folder.mkdir(mode=0o700)
        log_attempts(folder, noted_by[: count // 2])
        log_attempts(folder, noted_by[count // 2 : count], first=count // 2 + 1)
        lines_read, are_all = read_undamaged(folder)
        assert len(lines_read) == count + 1 if are_all else len(lines_read) >= 18
        assert lines_read == expected_lines(noted_by[:count])[: len(lines_read)]
        assert sum(path.stat().st_size for path in folder.iterdir()) <= 2 * (3_000 + 1_024)
    assert len(lines_read) < 60


def test_closing_sent_log_twice_does_nothing(tmp_path: Path) -> None:
    writer = SentLog(tmp_path, RUN, START)
    writer.close()
    with (tmp_path / "other").open("wb") as other:  # it gets the descriptor that the first had
        writer.close()
        other.write(b"x")
        other.flush()


def test_each_writer_has_own_private_files(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        for name in (RUN, "left-12", NOTES):
            log_attempts(tmp_path, [[]], name=name)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    assert writer_names(tmp_path) == [NOTES, RUN, "left-12"]


def test_late_note_does_not_replace_newer_note(tmp_path: Path) -> None:
    """Of two withdrawals, the first is logged last."""
    for number in (2, 1, 3, 2):
        log_concurrent_fact(tmp_path, number, digest(number), AT)
    assert [line.number for line in read_lines(tmp_path, NOTES)] == [3, 2]


def test_lines_continue_after_accepted_loss(tmp_path: Path) -> None:
    for name in (RUN, NOTES):
        log_attempts(tmp_path, [[A]], name=name)
    (tmp_path / f"{NOTES}.1").write_bytes(b"x\n" * 100)
    log_accepted_loss(tmp_path, [RUN, NOTES], lambda: (9, digest(9), AT))
    assert [[line.number for line in read_lines(tmp_path, name)] for name in (RUN, NOTES)] == [[9, 1, 0], [9]]
    assert len(list(tmp_path.glob("damaged-*"))) == 1


@pytest.mark.parametrize(
    ("seen", "is_refused"), [((2, digest(2)), False), ((3, digest(3)), True), ((2, digest(9)), True)]
)
def test_journal_without_logged_fact_is_refused(seen: tuple[int, str], is_refused: bool) -> None:
    line, end = SentLogLine(1, *seen, AT), Link(2, bytes.fromhex(digest(2)))
    with pytest.raises(JournalTooOld, match=r"diverged|older copy") if is_refused else nullcontext():
        require_not_older([line], end, lambda number: bytes.fromhex(digest(number)), "how to go on")
