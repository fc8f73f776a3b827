"""What left from a host: no line that was durable is lost, and none is invented."""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalWentBack, LeftDamaged
from paygw_batch.journal import left
from paygw_batch.journal.left import (
    BESIDE,
    RUN,
    Left,
    LeftLine,
    Noted,
    lines,
    newest,
    note_accepted,
    note_beside,
    noted_of,
    require_not_older,
    writers,
)
from paygw_batch.journal.values import Link
from tests.support.journal_rows import AT, memory, open_sheet, outcome_of
from tests.support.journal_rows import all_due as due_in
from tests.support.journal_rows import intent as intent_of
from tests.support.long_part import share_of

Commit = Sequence[Noted]
Read = list[tuple[int, list[Noted]]]
START = (0, "0" * 64, "")

noted = st.builds(Noted, st.integers(1, 2**62), st.integers(1, 2**31), st.one_of(st.none(), st.text(max_size=40)))
commits = st.lists(st.lists(noted, max_size=5), min_size=1, max_size=8)


@pytest.fixture(autouse=True, scope="module")
def small_steps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(left, "_STEP", 1_024)
        yield


def digest(number: int) -> str:
    return f"{number:064x}"


def note_all(folder: Path, noted_by: Sequence[Commit], first: int = 1, name: str = RUN) -> None:
    known = newest(folder, name)
    with closing(Left(folder, name, START if known is None else (known.number, known.hash, known.at))) as writer:
        for number, one in enumerate(noted_by, start=first):
            writer.note(number, digest(number), AT, one)


def read_all(folder: Path) -> Read:
    return read_some(folder)[0]


def read_some(folder: Path) -> tuple[Read, bool]:
    """Return the lines up to where they are damaged, and whether these are all."""
    found: Read = []
    read = lines(folder, RUN)
    try:
        found.extend((line.number, list(line.noted)) for line in read)
    except LeftDamaged:
        return found, False
    return found, True


def expected(noted_by: Sequence[Commit]) -> Read:
    all_of: list[Commit] = [[], *noted_by]
    return [(number, list(one)) for number, one in enumerate(all_of)][::-1]


@given(commits, st.integers(0, 8))
@settings(deadline=None, max_examples=share_of(60))
def test_lines_are_read_newest_first_over_several_processes(noted_by: list[Commit], at: int) -> None:
    with TemporaryDirectory() as home:
        folder = Path(home)
        note_all(folder, noted_by[:at])
        note_all(folder, noted_by[at:], first=len(noted_by[:at]) + 1)
        assert read_all(folder) == expected(noted_by)
        found = list(lines(folder, RUN))
        assert [line.count for line in found] == list(range(len(noted_by) + 1, 0, -1))
        assert newest(folder, RUN) == found[0]


class Stopped(Exception):
    """The machine stopped."""


@contextmanager
def stopped_after(count: int) -> Iterator[list[int]]:
    """Let the disk take so many bytes more of what is written, and then nothing."""
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
        patching.setattr(left, "_sync_data", sync)
        yield synced


def test_durable_lines_survive_stop_at_any_byte(tmp_path: Path) -> None:
    """Cut at every byte of the second line, and of the third one, which a second process writes."""
    noted_by: list[Commit] = [
        [Noted(1, 1, "A-1"), Noted(2, 1, "B")],
        [Noted(3, 1, "C"), Noted(1, 1, None)],
        [Noted(9, 2, "D-r2")],
    ]
    for begun in (1, 2):
        for count in range(3_000):
            folder = tmp_path / f"{begun}-{count}"
            folder.mkdir(mode=0o700)
            note_all(folder, noted_by[:begun])
            with suppress(Stopped), stopped_after(count) as synced:
                note_all(folder, [noted_by[begun]], first=begun + 1)
            is_whole = bool(synced[0])
            assert read_all(folder) == expected(noted_by[: begun + is_whole])
            # A process that goes on in the same file does not find what was half written either.
            there = read_all(folder)
            note_all(folder, [[Noted(7, 1, "E")]], first=begun + 5)
            assert read_all(folder) == [(begun + 5, [Noted(7, 1, "E")]), *there]
            if is_whole:
                break
        assert is_whole


def test_line_torn_in_middle_is_ignored(tmp_path: Path) -> None:
    """Its end reached the disk, and its beginning did not."""
    note_all(tmp_path, [[Noted(1, 1, "A")], [Noted(2, 1, "B" * 600)]])
    path = tmp_path / f"{RUN}.1"
    content = path.read_bytes()
    at = content.index(b"B" * 100)
    path.write_bytes(content[:at] + bytes(200) + content[at + 200 :])
    assert read_all(tmp_path) == expected([[Noted(1, 1, "A")]])
    note_all(tmp_path, [[Noted(3, 1, "C")]], first=3)
    assert read_all(tmp_path) == [(3, [Noted(3, 1, "C")]), *expected([[Noted(1, 1, "A")]])]


def test_damaged_break_of_durable_line_is_refused(tmp_path: Path) -> None:
    """Two durable lines would otherwise look like one that is torn."""
    note_all(tmp_path, [[Noted(1, 1, "A")], [Noted(2, 1, "B")]])
    path = tmp_path / f"{RUN}.1"
    first, second, third, rest = path.read_bytes().split(b"\n", 3)
    path.write_bytes(first + b"\n" + second + b"\x0b" + third + b"\n" + rest)
    with pytest.raises(LeftDamaged):
        newest(tmp_path, RUN)


@given(st.data(), commits)
@settings(deadline=None, max_examples=share_of(150), suppress_health_check=[HealthCheck.too_slow])
def test_damaged_file_yields_no_false_line(data: st.DataObject, noted_by: list[Commit]) -> None:
    with TemporaryDirectory() as home:
        folder = Path(home)
        note_all(folder, noted_by)
        path = folder / f"{RUN}.1"
        content = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        found, are_all = read_some(folder)
        # The newest line can be gone, as a torn one is: nothing is invented.
        truths = (expected(noted_by), expected(noted_by[:-1]))
        assert found in (truths if are_all else [truth[: len(found)] for truth in truths])


@pytest.mark.parametrize("content", [b"", bytes(8192), b"x" * 8192, b"x\n" * 4096, b"[1,2] 00000000\n"])
def test_damaged_file_does_not_count_as_missing(tmp_path: Path, content: bytes) -> None:
    note_all(tmp_path, [[Noted(1, 1, "A")]])
    (tmp_path / f"{RUN}.1").write_bytes(content)
    for attempt in (lambda: newest(tmp_path, RUN), lambda: list(lines(tmp_path, RUN)), lambda: note_all(tmp_path, [])):
        with pytest.raises(LeftDamaged):
            attempt()


def test_line_files_are_bounded_by_dropping_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left, "MAX_BYTES", 3_000)
    noted_by: list[Commit] = [[Noted(number, 1, f"ORD-{number}")] for number in range(1, 200)]
    for count in (1, 7, 20, 21, 22, 40, 50, 199):
        folder = tmp_path / str(count)
        folder.mkdir(mode=0o700)
        note_all(folder, noted_by[: count // 2])
        note_all(folder, noted_by[count // 2 : count], first=count // 2 + 1)
        found, are_all = read_some(folder)
        assert len(found) == count + 1 if are_all else len(found) >= 18
        assert found == expected(noted_by[:count])[: len(found)]
        assert sum(path.stat().st_size for path in folder.iterdir()) <= 2 * (3_000 + 1_024)
    assert len(found) < 60


def test_missing_middle_line_is_detected(tmp_path: Path) -> None:
    note_all(tmp_path, [[Noted(number, 1, "A")] for number in range(1, 6)])
    path = tmp_path / f"{RUN}.1"
    kept = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*kept[:2], *kept[3:]]))
    with pytest.raises(LeftDamaged):
        list(lines(tmp_path, RUN))


def test_full_disk_is_reported_before_anything_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with closing(Left(tmp_path, RUN, START)) as writer:
        writer.note(1, digest(1), AT, [Noted(1, 1, "A")])
        with monkeypatch.context() as broken:
            broken.setattr(os, "pwrite", full)
            with pytest.raises(OSError, match="No space"):
                writer.note(2, digest(2), AT, [Noted(2, 1, "B")])
        assert read_all(tmp_path) == expected([[Noted(1, 1, "A")]])


def test_each_writer_has_own_private_files(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        for name in (RUN, "left-12", BESIDE):
            note_all(tmp_path, [[]], name=name)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    assert writers(tmp_path) == [BESIDE, RUN, "left-12"]


def test_late_note_does_not_replace_newer_note(tmp_path: Path) -> None:
    """Two withdrawals are recorded one after the other; the process of the first is the last to note its own."""
    for number in (2, 1, 3, 2):
        note_beside(tmp_path, number, digest(number), AT)
    assert [line.number for line in lines(tmp_path, BESIDE)] == [3, 2]


def test_lines_continue_after_accepted_loss(tmp_path: Path) -> None:
    note_all(tmp_path, [[Noted(1, 1, "A")]])
    note_all(tmp_path, [[Noted(2, 1, "B")]], name=BESIDE)
    (tmp_path / f"{BESIDE}.1").write_bytes(b"x\n" * 100)
    note_accepted(tmp_path, [RUN, BESIDE], lambda: (9, digest(9), AT))
    assert [line.number for line in lines(tmp_path, RUN)] == [9, 1, 0]
    (end,) = (line for line in lines(tmp_path, BESIDE))
    assert end.number == 9
    assert len(list(tmp_path.glob("damaged-*"))) == 1


def test_second_close_closes_no_other_file(tmp_path: Path) -> None:
    writer = Left(tmp_path, RUN, START)
    writer.close()
    with (tmp_path / "other").open("wb") as other:  # it gets the number that the first had
        writer.close()
        other.write(b"x")
        other.flush()


def test_sent_and_unsent_attempts_are_noted() -> None:
    with closing(memory()) as journal:
        open_sheet(journal)
        first, second, _ = due_in(journal, 1)
        not_sent = outcome_of(second.number, 1, OutcomeKind.NOT_SENT)
        assert noted_of([intent_of(first), not_sent, outcome_of(first.number, 1, OutcomeKind.PAID)]) == [
            Noted(first.number, 1, first.order_id),
            Noted(second.number, 1, None),
        ]


@pytest.mark.parametrize(
    ("seen", "is_refused"), [((2, digest(2)), False), ((3, digest(3)), True), ((2, digest(9)), True)]
)
def test_journal_without_noted_fact_is_refused(seen: tuple[int, str], is_refused: bool) -> None:
    line, end = LeftLine(1, *seen, AT), Link(2, bytes.fromhex(digest(2)))
    with pytest.raises(JournalWentBack, match=r"diverged|older copy") if is_refused else nullcontext():
        require_not_older([line], end, lambda number: bytes.fromhex(digest(number)), "how to go on")
