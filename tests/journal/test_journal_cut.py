"""A journal that is cut at any byte has one of its earlier states, and no sent row is due in it."""

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalTooOld
from tests.support.journal_rows import adopt_journal_at, due_rows, intent, open_journal_at, open_sheet, outcome_of
from tests.support.long_part import long

FRAME_BYTES = 4096 + 24


@dataclass(frozen=True)
class Run:
    """The files of a run that stopped without closing them, and the states of its rows after every commit."""

    place: Path
    states: dict[int, list[State]]

    def put_back(self, log_bytes: int) -> None:
        """Restore the files of the run, with its log cut to `log_bytes`."""
        for part in ("state", "journals"):
            shutil.rmtree(self.place / part, ignore_errors=True)
            shutil.copytree(self.place / "stopped" / part, self.place / part)
        os.truncate(self.log, log_bytes)
        self.log.with_name("journal.sqlite3-shm").unlink()

    @property
    def log(self) -> Path:
        return self.place / "state" / "journal.sqlite3-wal"


@pytest.fixture
def run(place: Path) -> Run:
    states: dict[int, list[State]] = {0: []}
    with closing(open_journal_at(place)) as journal:
        open_sheet(journal, new=4)
        states[1] = [row.state for row in journal.rows(1)]
        for kind in (OutcomeKind.PAID, OutcomeKind.REJECTED, OutcomeKind.NOT_SENT, OutcomeKind.UNKNOWN):
            (due, *_) = due_rows(journal, 1)
            for entry in (intent(due), outcome_of(due.number, due.standing.attempt + 1, kind)):
                journal.append([entry])
                states[journal.head().seq] = [row.state for row in journal.rows(1)]
        for part in ("state", "journals"):
            shutil.copytree(place / part, place / "stopped" / part)
    return Run(place, states)


def cut_offsets(size: int, places: Collection[int]) -> Iterator[int]:
    """Return the offsets of `places` in every frame."""
    for start in range(32, size, FRAME_BYTES):
        yield from (start + place for place in places)
    yield size


@pytest.mark.parametrize("places", [(0, 24), long((-1, 1, 23, 2000))])
def test_log_cut_at_any_byte_restores_earlier_state(run: Run, place: Path, places: Collection[int]) -> None:
    seen_states = set()
    for size in cut_offsets((place / "stopped" / "state" / run.log.name).stat().st_size, places):
        run.put_back(size)
        shutil.rmtree(place / "journals")
        adopt_journal_at(place)
        with closing(open_journal_at(place)) as journal:
            journal.verify()
            seq = journal.head().seq - 1  # without an adoption
            now = [row.state for row in journal.rows(1)]
            assert now == run.states[seq]
            due = [due.row - 2 for due in due_rows(journal, 1)]
            assert due == [row for row, state in enumerate(now) if state is State.READY]
            seen_states.add(seq)
    assert seen_states == set(run.states)


def test_log_missing_committed_facts_is_refused(run: Run, place: Path) -> None:
    whole = (place / "stopped" / "state" / run.log.name).stat().st_size
    run.put_back(whole)
    open_journal_at(place).close()
    for size in (0, whole // 2, whole - 1):
        run.put_back(size)
        with pytest.raises(JournalTooOld, match=f"fact {max(run.states)} was already written"):
            open_journal_at(place)
