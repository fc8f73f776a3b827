"""The due rows that an engine gets from a PostgreSQL journal, and that a worker claims. Uses no server."""

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from unittest.mock import Mock

from paygw_batch.core.batch import Instruction
from paygw_batch.core.evidence import Finding
from paygw_batch.core.lifecycle import Interrupted, Standing
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.journal.postgres.postgres_journal import PostgresEngineJournal, WorkerEngineJournal
from paygw_batch.journal.values import DueRow, Entry, MoveResult
from tests.support.journal_rows import AT, WORDS, intent, outcome_of


def build_rows(count: int) -> list[DueRow]:
    """Return instructions from 1 on, each in the row after its number."""
    fresh, payment = Standing(), Instruction("ORD", "KE", "KES", "1", "a", {})
    return [DueRow(number, number + 1, payment, fresh, f"ORD-{number}") for number in range(1, count + 1)]


def fake_journal(rows: Sequence[DueRow], answers: Mapping[int, MoveResult] | None = None) -> Mock:
    """Return a journal with due rows, which moves each row unless it has another answer."""
    journal = Mock()
    journal.due.side_effect = lambda _, *, after_row, limit: [row for row in rows if row.row > after_row][:limit]
    results = answers or {}
    journal.append.side_effect = lambda entries: [results.get(one.instruction, MoveResult.MOVED) for one in entries]
    return journal


class Worker:
    """A worker's engine journal. `of_others` are the rows that other workers have claimed."""

    def __init__(self, journal: Mock, *, of_others: Collection[int] = (), rows: int = 0) -> None:
        self.sent: list[int] = []
        self._of_others = of_others
        self.claimed = WorkerEngineJournal(journal, lambda age_s: age_s < 1, self._claim, rows)

    def _claim(self, rows: Sequence[DueRow], sent: int) -> Sequence[DueRow]:
        self.sent.append(sent)
        return [row for row in rows if row.number not in self._of_others]

    async def next(self, limit: int) -> list[int]:
        return [row.number for row in await self.claimed.due(1, limit=limit)]


def test_claimed_rows_of_other_workers_are_skipped() -> None:
    async def send_rows() -> None:
        worker = Worker(fake_journal(build_rows(12)), of_others=range(2, 10))
        assert [await worker.next(3) for _ in range(3)] == [[1], [10, 11, 12], []]

    asyncio.run(send_rows())


def test_worker_reports_number_of_sent_rows() -> None:
    async def send_rows() -> None:
        rows = build_rows(6)
        worker = Worker(fake_journal(rows), rows=40)
        await worker.next(3)
        await worker.claimed.append([intent(row) for row in rows[:3]])
        kinds = (OutcomeKind.PAID, OutcomeKind.NOT_SENT, OutcomeKind.UNKNOWN)
        await worker.claimed.append([outcome_of(number, 1, kind) for number, kind in enumerate(kinds, start=1)])
        await worker.claimed.append([Entry(2, 1, Interrupted(), AT)])
        await worker.next(3)
        assert (worker.sent, worker.claimed.rows) == ([40, 42], 42)

    asyncio.run(send_rows())


def test_intent_for_row_moved_elsewhere_is_held() -> None:
    async def send_rows() -> None:
        rows = build_rows(3)
        journal = fake_journal(rows, {1: MoveResult.HELD, 2: MoveResult.NOT_MOVED})
        worker, intents = Worker(journal), [intent(row) for row in rows]
        assert list(await worker.claimed.append(intents)) == [MoveResult.HELD, MoveResult.HELD, MoveResult.MOVED]
        journal.append.assert_called_once_with(intents)
        assert list(await worker.claimed.append([outcome_of(2, 1, OutcomeKind.PAID)])) == [MoveResult.NOT_MOVED]

    asyncio.run(send_rows())


def test_journal_processes_pending_notifications() -> None:
    journal = fake_journal([])
    journal.process_arrivals.return_value = Counter({Finding.MOVED: 1})
    assert asyncio.run(PostgresEngineJournal(journal, lambda _: True).process_arrivals(WORDS, at=AT)) == {
        Finding.MOVED: 1
    }
    (words,), options = journal.process_arrivals.call_args
    assert (words, options["at"], options["at_most"] is not None) == (WORDS, AT, True)
