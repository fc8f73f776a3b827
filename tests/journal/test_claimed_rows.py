"""The due rows that an engine gets from a PostgreSQL journal, and that a worker claims. Uses no server."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from typing import Any

from paygw_batch.core.batch import Instruction
from paygw_batch.core.evidence import Finding
from paygw_batch.core.lifecycle import Interrupted, Standing
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.journal.postgres.postgres_journal import ClaimedRows, SingleRun
from paygw_batch.journal.values import DueRow, Entry, MoveResult
from tests.support.journal_rows import AT, intent, outcome_of

BATCH = 1
WORDS = {"approved": OutcomeKind.PAID}


def due(number: int) -> DueRow:
    """Return instruction `number`, in row `number` + 1."""
    return DueRow(
        number, number + 1, Instruction(f"ORD-{number}", "KE", "KES", "1", "a", {}), Standing(), f"ORD-{number}"
    )


class FakeJournal:
    """A fake journal with due rows, which records appended entries and returns prepared results."""

    def __init__(self, *rows: int) -> None:
        self.rows = [due(number) for number in rows]
        self.entries: list[Entry] = []
        self.answers: dict[int, MoveResult] = {}
        self.judged_at: list[str] = []

    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        self.entries += entries
        return [self.answers.get(entry.instruction, MoveResult.MOVED) for entry in entries]

    def due(self, batch: int, *, after_row: int, limit: int) -> Sequence[DueRow]:
        assert batch == BATCH
        return [row for row in self.rows if row.row > after_row][:limit]

    def process_arrivals(
        self, words: Mapping[str, OutcomeKind], *, at: str, at_most: int | None = None
    ) -> Counter[Finding]:
        assert words == WORDS
        assert at_most is not None
        self.judged_at.append(at)
        return Counter({Finding.MOVED: 1})


class Worker:
    """A worker's engine journal. `of_others` are the rows that other workers have claimed."""

    def __init__(self, facts: FakeJournal, *, of_others: Collection[int] = (), rows: int = 0) -> None:
        self.facts, self._of_others = facts, of_others
        self.sent: list[int] = []
        self.claimed = ClaimedRows(facts, lambda age_s: age_s < 1, self._claim, rows)

    def _claim(self, rows: Sequence[DueRow], sent: int) -> Sequence[DueRow]:
        self.sent.append(sent)
        return [row for row in rows if row.number not in self._of_others]

    def next(self, limit: int = 100) -> list[int]:
        return next_numbers(self.claimed, limit)

    def append(self, *entries: Entry) -> list[MoveResult]:
        return list(asyncio.run(_call_in_loop(self.claimed, lambda engine_journal: engine_journal.append(entries))))


async def _call_in_loop(journal: SingleRun, call: Callable[[SingleRun], Any]) -> Any:
    journal._lock = asyncio.Lock()  # each call has its own event loop
    return await call(journal)


def next_numbers(journal: SingleRun, limit: int) -> list[int]:
    return [
        row.number
        for row in asyncio.run(_call_in_loop(journal, lambda engine_journal: engine_journal.due(BATCH, limit=limit)))
    ]


def test_worker_gets_each_row_once_in_order() -> None:
    with closing(SingleRun(FakeJournal(1, 2, 3, 4, 5), lambda _: True)) as journal:
        assert [next_numbers(journal, 2), next_numbers(journal, 2), next_numbers(journal, 2)] == [[1, 2], [3, 4], [5]]
        assert next_numbers(journal, 2) == []


def test_claimed_rows_of_other_workers_are_skipped() -> None:
    worker = Worker(FakeJournal(*range(1, 13)), of_others=range(2, 10))
    assert [worker.next(3), worker.next(3)] == [[1], [10, 11, 12]]
    assert worker.next(3) == []


def test_worker_reports_number_of_sent_rows() -> None:
    worker = Worker(FakeJournal(1, 2, 3, 4, 5, 6), rows=40)
    worker.next(3)
    kinds = (OutcomeKind.PAID, OutcomeKind.NOT_SENT, OutcomeKind.UNKNOWN)
    worker.append(*(intent(row) for row in worker.facts.rows[:3]))
    worker.append(*(outcome_of(number, 1, kind) for number, kind in enumerate(kinds, start=1)))
    worker.append(Entry(2, 1, Interrupted(), AT))
    worker.next(3)
    assert worker.sent == [40, 42]
    assert worker.claimed.rows == 42


def test_intent_for_row_moved_elsewhere_is_held() -> None:
    worker = Worker(FakeJournal(1, 2, 3))
    worker.facts.answers = {1: MoveResult.HELD, 2: MoveResult.NOT_MOVED}
    answers = worker.append(*(intent(row) for row in worker.facts.rows))
    assert answers == [MoveResult.HELD, MoveResult.HELD, MoveResult.MOVED]
    assert [row.instruction for row in worker.facts.entries] == [1, 2, 3]


def test_outcome_for_moved_row_has_no_effect() -> None:
    worker = Worker(FakeJournal(1))
    worker.facts.answers = {1: MoveResult.NOT_MOVED}
    assert worker.append(outcome_of(1, 1, OutcomeKind.PAID)) == [MoveResult.NOT_MOVED]


def test_journal_processes_pending_notifications() -> None:
    facts = FakeJournal(1)
    with closing(SingleRun(facts, lambda _: True)) as journal:
        assert asyncio.run(journal.process_arrivals(WORDS, at=AT)) == {Finding.MOVED: 1}
    assert facts.judged_at == [AT]
