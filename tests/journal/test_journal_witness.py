"""A journal that went back in time is found before anything is sent from it."""

import re
import shutil
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalError, JournalMissing, JournalNotAdopted, JournalUnwritable, JournalWentBack
from paygw_batch.journal.guards.witness import Witness, WitnessedHead, read_witness, witness_path
from paygw_batch.journal.sqlite.writer import SqliteJournal
from tests.journal.journal_rows import (
    AT,
    adopt_at,
    all_due,
    file_place,
    intent,
    journal_path,
    open_at,
    open_sheet,
    outcome_of,
    read_at,
    send,
)


def witness_of(place: Path) -> Path:
    return witness_path(place / "witness", journal_path(place))


def fact_in(witness: Path) -> tuple[str, int, str]:
    """Return what a witness knows of the facts."""
    seen = read_witness(witness)
    assert seen is not None
    return seen.journal_id, seen.seq, seen.hash


def begun(place: Path, batch: str = "b1") -> Path:
    """A journal with one batch and nothing sent."""
    with closing(open_at(place)) as journal:
        open_sheet(journal, batch)
    return journal_path(place)


def open_moved(path: Path, place: Path) -> SqliteJournal:
    """Open the journal of a place where it is now."""
    return file_place(place, path).open_to_write("a test")


def remove(path: Path) -> None:
    for file in path.parent.iterdir():
        file.unlink()


@pytest.fixture
def relapsed(place: Path) -> Path:
    """A place where the journal of before a payment was put back after it."""
    path = begun(place)
    shutil.copytree(path.parent, place / "backup")
    with closing(open_at(place)) as journal:
        send(journal, 1, OutcomeKind.PAID)
    remove(path)
    path.parent.rmdir()
    shutil.copytree(place / "backup", path.parent)
    return path


def everything(place: Path) -> dict[str, bytes]:
    """Every byte that counts: not the lock's holder, nor SQLite's index of its log, which any reader may rebuild."""
    files = [path for path in place.rglob("*") if path.is_file() and not path.name.endswith((".lock", "-shm"))]
    return {str(path): path.read_bytes() for path in files}


def test_an_older_copy_put_back_is_found_and_nothing_is_written(relapsed: Path, place: Path) -> None:
    before = everything(place)
    for open_it in (open_at, read_at):
        with pytest.raises(JournalWentBack, match="ends at fact 1, but fact 7 was already written") as found:
            open_it(place)
        assert str(witness_of(place)) in found.value.hint
    assert everything(place) == before
    assert relapsed.exists()


def test_a_journal_that_is_gone_is_found(place: Path) -> None:
    remove(begun(place))
    for open_it in (partial(open_at, makes=False), read_at):
        with pytest.raises(JournalWentBack, match="is gone"):
            open_it(place)
    assert not journal_path(place).exists()


def test_a_journal_emptied_is_found(place: Path) -> None:
    path = begun(place)
    remove(path)
    path.touch(mode=0o600)
    for open_it in (open_at, read_at):
        with pytest.raises(JournalWentBack, match="is gone"):
            open_it(place)


def test_another_journal_in_its_place_is_found(place: Path) -> None:
    path = begun(place)
    other = place / "other"
    other.mkdir(mode=0o700)
    with closing(open_at(other)) as journal:
        open_sheet(journal)
        send(journal, 1, OutcomeKind.PAID)
    shutil.copy(journal_path(other), path)
    for open_it in (open_at, read_at):
        with pytest.raises(JournalWentBack, match="This is not the journal"):
            open_it(place)


def test_a_copy_that_went_its_own_way_is_found_though_it_is_longer(relapsed: Path, place: Path) -> None:
    witness = witness_of(place).read_bytes()
    witness_of(place).unlink()
    adopt_at(place)
    with closing(open_at(place)) as journal:
        for due in all_due(journal, 1):
            journal.append([intent(due, AT)])
        for number in (1, 2, 3):
            journal.append([outcome_of(number, 1, OutcomeKind.REJECTED)])
    witness_of(place).write_bytes(witness)
    with pytest.raises(JournalWentBack, match="has diverged"):
        open_at(place)
    assert relapsed.exists()


def test_a_copy_is_refused_for_a_run_while_the_original_stands_but_can_be_looked_into(place: Path) -> None:
    path = begun(place)
    copy = place / "copies" / "journal.sqlite3"
    copy.parent.mkdir(mode=0o700)
    shutil.copy(path, copy)
    with pytest.raises(JournalWentBack, match="copy of the journal"):
        file_place(place, copy).open_to_write("a test")
    with closing(file_place(place, copy).open_to_read()) as reader:
        assert reader.verify()["instructions"] == 3
    with closing(open_at(place)) as journal:
        send(journal, 1, OutcomeKind.PAID)
    remove(path)
    with pytest.raises(JournalWentBack, match="older copy"):
        file_place(place, copy).open_to_write("a test")


def test_a_journal_that_was_moved_goes_on_and_says_so(place: Path) -> None:
    path = begun(place)
    moved = place / "elsewhere" / "kept.sqlite3"
    moved.parent.mkdir(mode=0o700)
    path.rename(moved)
    for _ in range(2):
        with closing(open_moved(moved, place)) as journal:
            notes, journal_id = journal.notes, journal.head().journal_id
            journal.mark_interrupted(AT)
    assert notes == ()
    assert not witness_of(place).exists()
    with pytest.raises(
        JournalMissing, match=re.escape(f"remembers another journal of the same endpoint: {journal_id} at {moved}")
    ):
        open_at(place, makes=False)


def test_the_move_is_told_the_first_time(place: Path) -> None:
    path = begun(place)
    moved = path.with_name("kept.sqlite3")
    path.rename(moved)
    with closing(open_moved(moved, place)) as journal:
        assert journal.notes == (f"The journal was moved here from {path}.",)


def test_without_its_witness_a_journal_is_refused_until_a_person_adopts_it(place: Path) -> None:
    begun(place)
    witness_of(place).unlink()
    before = everything(place)
    with pytest.raises(JournalNotAdopted, match="has never seen the journal") as found:
        open_at(place)
    assert "paygw-batch journal adopt" in found.value.hint
    assert everything(place) == before
    adopt_at(place)
    with closing(open_at(place)) as journal:
        assert journal.notes == ()
        assert fact_in(witness_of(place)) == (journal.head().journal_id, 2, journal.head().hash)
        journal.verify()


def test_a_journal_without_a_fact_is_refused_without_its_witness_as_well(place: Path) -> None:
    """A copy made on the first day, before anything was sent, would pay everything again."""
    open_at(place).close()
    witness_of(place).unlink()
    with pytest.raises(JournalNotAdopted):
        open_at(place)


def test_a_journal_that_is_not_adopted_can_be_looked_into_with_a_note(place: Path) -> None:
    begun(place)
    witness_of(place).unlink()
    with closing(read_at(place)) as reader:
        (note,) = reader.notes
    assert "has never seen the journal" in note
    with pytest.raises(JournalNotAdopted):
        file_place(place).open_to_read(must_be_known=True)


def test_reading_does_not_make_a_missing_witness_again(place: Path) -> None:
    begun(place)
    witness_of(place).unlink()
    read_at(place).close()
    assert not witness_of(place).exists()


def test_a_witness_that_fell_behind_is_brought_up(place: Path) -> None:
    begun(place)
    behind = witness_of(place).read_bytes()
    with closing(open_at(place)) as journal:
        send(journal, 1, OutcomeKind.PAID)
    witness_of(place).write_bytes(behind)
    with closing(open_at(place)) as journal:
        assert journal.notes == ()
        assert [row.state for row in journal.rows(1)] == [State.PAID] * 3
        seen = read_witness(witness_of(place))
        assert seen is not None
        assert seen.seq == 7


def test_every_commit_is_in_the_witness_before_its_call_returns(place: Path) -> None:
    with closing(open_at(place)) as journal:
        open_sheet(journal)
        for due in all_due(journal, 1):
            journal.append([intent(due)])
            head = journal.head()
            assert fact_in(witness_of(place)) == (head.journal_id, head.seq, head.hash)


def test_a_witness_that_cannot_be_written_ends_all_writing(place: Path) -> None:
    with closing(open_at(place)) as journal:
        open_sheet(journal)
        first, second, _ = all_due(journal, 1)

        def fail(_: WitnessedHead) -> None:
            raise OSError(5, "Input/output error")

        journal._witness.note = fail  # type: ignore[method-assign,assignment]  # stands for a disk that fails
        with pytest.raises(JournalUnwritable, match="witness: Input/output error"):
            journal.append([intent(first)])
        with pytest.raises(JournalUnwritable):
            journal.append([intent(second)])
    with closing(open_at(place)) as journal:
        assert journal.mark_interrupted(AT) == 1


def torn(content: bytes, slot: int) -> bytes:
    start = slot * 4096
    return content[: start + 20] + b"\0" * 100 + content[start + 120 :]


def test_one_torn_slot_leaves_the_other(place: Path) -> None:
    with closing(open_at(place)) as journal:
        open_sheet(journal)
        send(journal, 1, OutcomeKind.PAID)
    content = witness_of(place).read_bytes()
    seen = []
    for slot in (0, 1):
        witness_of(place).write_bytes(torn(content, slot))
        found = read_witness(witness_of(place))
        assert found is not None
        seen.append(found.seq)
        open_at(place).close()
    assert sorted(seen) == [4, 7]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: torn(torn(content, 0), 1),
        lambda content: content[:0],
        lambda content: content.replace(b"paygw-witness-1", b"paygw-witness-2"),
        lambda content: bytes(len(content)),
        lambda content: content.replace(b" 1 ", b" 2 ").replace(b" 0 ", b" 9 "),
    ],
)
def test_a_damaged_witness_is_not_taken_for_a_missing_one(place: Path, spoil: Callable[[bytes], bytes]) -> None:
    begun(place)
    open_at(place).close()
    witness_of(place).write_bytes(spoil(witness_of(place).read_bytes()))
    for open_it in (open_at, read_at):
        with pytest.raises(JournalError, match=r"witness .* is damaged"):
            open_it(place)


def test_slots_are_written_in_turn(place: Path) -> None:
    path = place / "a.witness"
    digest = "ab" * 32
    witness = Witness(path, WitnessedHead("id", 1, digest))
    for seq in range(2, 7):
        before = path.read_bytes()
        witness.note(WitnessedHead("id", seq, digest))
        after = path.read_bytes()
        changed = [slot for slot in (0, 1) if before[slot * 4096 :][:512] != after[slot * 4096 :][:512]]
        assert changed == [seq % 2] or changed == [1 - seq % 2]
        assert read_witness(path) == WitnessedHead("id", seq, digest)
        if seq == 4:
            witness.close()
            witness = Witness(path, WitnessedHead("id", seq, digest))
    witness.close()
    assert len(path.read_bytes()) == 4096 + 512


def test_witness_closed_twice_closes_no_other_file(tmp_path: Path) -> None:
    witness = Witness(tmp_path / "witness", WitnessedHead("id", 0, "-"))
    witness.close()
    with (tmp_path / "other").open("wb") as other:  # it gets the number that the witness had
        witness.close()
        other.write(b"x")
        other.flush()
