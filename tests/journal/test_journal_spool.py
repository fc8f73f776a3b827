"""The spool: nothing that was acknowledged is lost, nothing is taken in twice, wherever it is cut."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from paygw_batch.errors import InboxDamaged, InboxUnwritable, JournalError, JournalHeld
from paygw_batch.journal import inbox as spool_module
from paygw_batch.journal.inbox import Inbox, InboxEnd, InboxReader

NOW = "2026-11-21T08:00:00.000Z"


def opened(place: Path, taken: InboxEnd | None = None) -> Inbox:
    return Inbox(place / "spool", taken=taken or InboxEnd(), now=NOW)


@pytest.fixture
def spool(place: Path) -> Iterator[Inbox]:
    one = opened(place)
    yield one
    one.close()


def all_of(place: Path, taken: InboxEnd | None = None, limit: int = 100) -> list[str]:
    found = InboxReader(place / "spool").after(taken or InboxEnd(), limit=limit)
    return [one.content for one in found]


def test_what_is_appended_is_read_in_order_with_numbers_from_one(place: Path, spool: Inbox) -> None:
    assert spool.append(["a", "b"]) == 2
    assert spool.append(["c\n\ud800"]) == 3
    found = InboxReader(place / "spool").after(InboxEnd(), limit=10)
    assert [(one.number, one.content) for one in found] == [(1, "a"), (2, "b"), (3, "c\n\ud800")]
    assert found[0].hash == found[1].hash != found[2].hash
    assert (place / "spool").stat().st_mode & 0o777 == 0o600


def test_a_reader_goes_on_from_where_the_journal_stopped_also_in_the_middle_of_a_write(
    place: Path, spool: Inbox
) -> None:
    spool.append(["a", "b", "c"])
    reader = InboxReader(place / "spool")
    (first,) = reader.after(InboxEnd(), limit=1)
    taken = InboxEnd(first.number, first.hash)
    assert [one.content for one in reader.after(taken, limit=1)] == ["b"]
    spool.append(["d"])
    assert [one.content for one in reader.after(taken, limit=10)] == ["b", "c", "d"]
    assert all_of(place, taken) == ["b", "c", "d"]
    last = reader.after(taken, limit=10)[-1]
    end = InboxEnd(last.number, last.hash)
    assert reader.after(end, limit=10) == []
    spool.append(["e"])
    assert [one.content for one in reader.after(end, limit=10)] == ["e"]
    assert [one.content for one in reader.after(taken, limit=10)] == ["b", "c", "d", "e"]


def test_cut_at_any_byte_only_the_torn_write_is_gone_and_appending_goes_on(place: Path) -> None:
    with_all = opened(place)
    with_all.append(["a", "b"])
    before = (place / "spool").stat().st_size
    with_all.append(["c" * 30])
    with_all.close()
    whole = (place / "spool").read_bytes()
    for cut in range(before, len(whole)):
        (place / "spool").write_bytes(whole[:cut])
        assert all_of(place) == ["a", "b"]
        again = opened(place)
        assert again.append(["d"]) == 3
        again.close()
        assert all_of(place) == ["a", "b", "d"]
        (place / "spool").write_bytes(whole)
    assert all_of(place) == ["a", "b", "c" * 30]


def test_any_changed_byte_is_found_or_is_only_the_end_that_was_never_answered(place: Path) -> None:
    with_all = opened(place)
    for content in ("a", "b", "c"):
        with_all.append([content])
    with_all.close()
    whole = (place / "spool").read_bytes()
    header = whole.index(b"\n") + 1
    last = whole.rindex(b"\n", 0, -1) + 1
    for place_of_change in range(header, last):
        changed = bytearray(whole)
        changed[place_of_change] ^= 0x01
        (place / "spool").write_bytes(changed)
        try:
            read = all_of(place)
        except InboxDamaged:
            continue
        # A line break in the middle, or in a hash, can make the rest look torn: what is read is a true beginning.
        assert read == ["a", "b", "c"][: len(read)]


def test_a_changed_line_in_the_middle_stops_reader_and_writer(place: Path) -> None:
    with_all = opened(place)
    for content in ("first", "second", "third"):
        with_all.append([content])
    with_all.close()
    (place / "spool").write_bytes((place / "spool").read_bytes().replace(b"second", b"secund"))
    with pytest.raises(InboxDamaged, match="middle"):
        all_of(place)
    with pytest.raises(InboxDamaged, match="middle"):
        opened(place)


def test_a_spool_that_does_not_go_on_from_what_the_journal_took_is_refused(place: Path, spool: Inbox) -> None:
    spool.append(["a"])
    for taken in (InboxEnd(1, "0" * 64), InboxEnd(5, "0" * 64)):
        with pytest.raises(InboxDamaged, match="does not go on"):
            all_of(place, taken)


def test_a_spool_that_was_taken_in_whole_is_begun_anew_and_goes_on(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "ROTATE_BYTES", 100)
    first = opened(place)
    first.append(["a" * 200])
    reader = InboxReader(place / "spool")
    (taken,) = reader.after(InboxEnd(), limit=1)
    first.close()
    end = InboxEnd(taken.number, taken.hash)
    not_taken = opened(place)
    assert all_of(place) == ["a" * 200]
    not_taken.close()
    anew = opened(place, end)
    assert (place / "spool").stat().st_size < 200
    assert anew.append(["b"]) == 2
    anew.close()
    assert [one.content for one in reader.after(end, limit=5)] == ["b"]
    with pytest.raises(InboxDamaged):
        all_of(place, InboxEnd())


def test_a_second_listener_is_refused(place: Path, spool: Inbox) -> None:
    with pytest.raises(JournalHeld):
        opened(place)
    assert spool.append(["a"]) == 1


def test_no_spool_is_nothing_to_take_in_and_a_link_is_refused(place: Path) -> None:
    assert all_of(place) == []
    (place / "elsewhere").write_text("")
    (place / "spool").symlink_to(place / "elsewhere")
    with pytest.raises(JournalError, match="symbolic link"):
        all_of(place)


def test_a_full_disk_keeps_nothing_of_the_write_and_the_next_one_goes_on(
    place: Path, spool: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool.append(["a"])
    real = os.pwrite

    def half(fd: int, data: bytes, position: int) -> int:
        real(fd, data[: len(data) // 2], position)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(InboxUnwritable, match="No space left"):
        spool.append(["b"])
    monkeypatch.undo()
    assert all_of(place) == ["a"]
    assert spool.append(["c"]) == 2
    assert all_of(place) == ["a", "c"]
