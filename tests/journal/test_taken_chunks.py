"""The rows that an engine gets of leased chunks, and when a chunk is finished. No server is asked."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, cast

import pytest

from paygw_batch.core.batch import Instruction
from paygw_batch.core.evidence import Finding
from paygw_batch.core.lifecycle import Interrupted, Standing
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.journal.port import SharedRun
from paygw_batch.journal.postgres.leasing.chain_writer import ChainWriter
from paygw_batch.journal.postgres.leasing.chunk_journal import ChunkJournal, TakenChunks
from paygw_batch.journal.postgres.leasing.offered_chunks import finish_chunk, free_chunks, note_place
from paygw_batch.journal.values import Due, Entry, MoveResult
from tests.journal.journal_rows import AT, intent, outcome_of

RUN, WORKER, BATCH = 6, 5, 1
A_CHUNK = 3


def due(number: int) -> Due:
    """Instruction `number` of row `number` + 1; three of them are a chunk."""
    return Due(number, number + 1, Instruction(f"ORD-{number}", "KE", "KES", "1", "a", {}), Standing(), f"ORD-{number}")


def chunk_of(number: int) -> int:
    return (number - 1) // A_CHUNK + 1


class LeasesOfTests:
    """The leases of a process on chunks that a test fills, and the database that it asks."""

    worker = WORKER

    def __init__(self, *rows: int, of_others: Collection[int] = ()) -> None:
        self.rows, self._of_others = [due(number) for number in rows], of_others
        self.offered = list(dict.fromkeys(chunk_of(number) for number in rows))
        self.has_lost = self.is_stopped = False
        self.held: set[int] = set()
        self.places: list[tuple[int, int, int | None]] = []
        self.learned: list[int] = []
        self.finished: dict[int, tuple[list[int], int, int]] = {}

    def ask(self, call: "partial[Any]") -> Any:
        asked = call.keywords
        if call.func is free_chunks:
            assert asked["run"] == RUN
            free = [chunk for chunk in self.offered if chunk > asked["after"] and chunk not in self.held]
            return free[:2]  # those of others are among them: they were taken since
        assert call.func is note_place
        self.places.append((asked["worker"], asked["run"], asked["chunk"]))
        return None

    def lease_chunks(self, chunks: Iterable[int]) -> frozenset[int]:
        self.held |= set(chunks) - set(self._of_others)
        return frozenset(self.held)

    def learn(self, numbers: Iterable[int]) -> None:
        self.learned += numbers

    def finish(self, chunk: int, numbers: Iterable[int], close: "partial[Any]") -> None:
        assert close.func is finish_chunk
        self.finished[chunk] = (sorted(numbers), close.keywords["run"], close.keywords["rows"])
        self.offered.remove(chunk)
        self.held.remove(chunk)

    def chunks_of(self, numbers: Sequence[int]) -> Mapping[int, int]:
        return {number: chunk_of(number) for number in numbers}


class WrittenFacts:
    """The journal that an engine's calls go to: what it is given, and what it answers."""

    def __init__(self, leases: LeasesOfTests) -> None:
        self._leases = leases
        self.entries: list[Entry] = []
        self.answers: dict[int, MoveResult] = {}
        self.taken_in: list[str] = []

    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        self.entries += entries
        return [self.answers.get(entry.instruction, MoveResult.MOVED) for entry in entries]

    def due_leased(self, batch: int, *, after_row: int, limit: int) -> Sequence[Due]:
        assert batch == BATCH
        return [one for one in self._leases.rows if one.row > after_row][:limit]

    def due_of_chunk(self, batch: int, chunk: int) -> Sequence[Due]:
        assert batch == BATCH
        return [one for one in self._leases.rows if chunk_of(one.number) == chunk]

    def drain_inbox(self, words: Mapping[str, OutcomeKind], *, at: str) -> Counter[Finding]:
        assert words == {"approved": OutcomeKind.PAID}
        self.taken_in.append(at)
        return Counter({Finding.MOVED: 1})


class Worker:
    """The journal of a worker's engine, its calls made one at a time."""

    def __init__(self, leases: LeasesOfTests, *, rows: int = 0) -> None:
        self.facts = WrittenFacts(leases)
        self.chunks = TakenChunks(
            self.facts, cast("ChainWriter", leases), SharedRun(RUN, BATCH, None, is_over=False), rows
        )

    def next(self, limit: int = 100) -> list[int]:
        return [one.number for one in asyncio.run(_called(self.chunks, lambda it: it.due(BATCH, limit=limit)))]

    def append(self, *entries: Entry) -> list[MoveResult]:
        return list(asyncio.run(_called(self.chunks, lambda it: it.append(entries))))

    def end(self, number: int, kind: OutcomeKind = OutcomeKind.PAID) -> None:
        self.append(outcome_of(number, 1, kind))


async def _called(journal: ChunkJournal, call: Callable[[ChunkJournal], Any]) -> Any:
    journal._turn = asyncio.Lock()  # one event loop a call
    return await call(journal)


def test_rows_are_given_chunk_by_chunk_each_once() -> None:
    leases = LeasesOfTests(1, 2, 3, 4, 5)
    worker = Worker(leases)
    assert [worker.next(2), worker.next(2), worker.next(2)] == [[1, 2], [3], [4, 5]]
    assert worker.next() == []
    assert leases.held == {1, 2}
    assert leases.places == [(WORKER, RUN, 1), (WORKER, RUN, 2)]
    assert leases.learned == [1, 2, 3, 4, 5]
    assert leases.finished == {}


def test_a_chunk_of_another_process_is_passed_over() -> None:
    leases = LeasesOfTests(*range(1, 13), of_others={1, 2, 3})
    assert Worker(leases).next() == [10, 11, 12]
    assert leases.held == {4}


def test_a_chunk_is_finished_when_each_of_its_rows_has_ended() -> None:
    leases = LeasesOfTests(1, 2, 3, 4, 5, 6)
    worker = Worker(leases, rows=40)
    worker.next(3), worker.next(3)
    assert set(worker.append(*(intent(one) for one in leases.rows))) == {MoveResult.MOVED}
    for number in (4, 1, 2):
        worker.end(number)
    assert leases.finished == {}
    worker.end(3, OutcomeKind.UNKNOWN)
    assert leases.finished == {1: ([1, 2, 3], RUN, 43)}
    worker.append(outcome_of(5, 1, OutcomeKind.REJECTED), outcome_of(6, 1, OutcomeKind.ACCEPTED))
    assert leases.finished[2] == ([4, 5, 6], RUN, 46)
    assert worker.chunks.rows == 46


def test_a_row_that_did_not_leave_keeps_its_chunk_open() -> None:
    leases = LeasesOfTests(1, 2)
    worker = Worker(leases)
    worker.next()
    worker.end(1)
    worker.end(2, OutcomeKind.NOT_SENT)
    assert leases.finished == {}
    worker.append(Entry(2, 1, Interrupted(), AT))
    assert leases.finished == {}
    worker.end(2)
    assert list(leases.finished) == [1]


def test_a_row_that_may_not_be_sent_has_ended() -> None:
    leases = LeasesOfTests(1, 2, 3)
    worker = Worker(leases)
    worker.next()
    worker.facts.answers = {1: MoveResult.HELD, 2: MoveResult.NOT_MOVED}
    answers = worker.append(*(intent(one) for one in leases.rows))
    assert answers == [MoveResult.HELD, MoveResult.HELD, MoveResult.MOVED], "a person settled row 2 meanwhile"
    assert [one.instruction for one in worker.facts.entries] == [1, 2, 3]
    worker.end(3)
    assert list(leases.finished) == [1]


def test_an_answer_that_moves_nothing_is_told_as_it_is() -> None:
    leases = LeasesOfTests(1)
    worker = Worker(leases)
    worker.next()
    worker.facts.answers = {1: MoveResult.NOT_MOVED}
    assert worker.append(outcome_of(1, 1, OutcomeKind.PAID)) == [MoveResult.NOT_MOVED]
    assert list(leases.finished) == [1]
    assert worker.append(outcome_of(99, 1, OutcomeKind.PAID)) == [MoveResult.MOVED], "of no chunk that is open"


def test_a_chunk_without_due_rows_is_finished_at_once_and_the_next_is_taken() -> None:
    leases = LeasesOfTests(4)
    leases.offered = [1, 2]
    worker = Worker(leases)
    assert worker.next() == [4]
    assert leases.finished == {1: ([], RUN, 0)}


@pytest.mark.parametrize("sign", ["has_lost", "is_stopped"])
def test_a_process_that_may_not_send_takes_no_further_chunk(sign: str) -> None:
    leases = LeasesOfTests(1, 2, 3, 4)
    worker = Worker(leases)
    assert worker.next(1) == [1]
    setattr(leases, sign, True)
    assert worker.next(2) == [2, 3], "what was read already is refused when it is committed"
    assert worker.next() == []
    for number in (1, 2, 3):
        worker.end(number)
    assert list(leases.finished) == ([] if sign == "has_lost" else [1])


def test_notifications_are_taken_in_while_the_leases_are_ours() -> None:
    leases = LeasesOfTests(1)
    facts = WrittenFacts(leases)
    with closing(ChunkJournal(facts, cast("ChainWriter", leases))) as journal:
        words = {"approved": OutcomeKind.PAID}
        assert asyncio.run(journal.drain_inbox(words, at=AT)) == {Finding.MOVED: 1}
        leases.has_lost = True
        assert asyncio.run(_called(journal, lambda it: it.drain_inbox(words, at=AT))) == {}
    assert facts.taken_in == [AT]


def test_a_run_by_itself_leases_the_chunks_of_the_next_rows() -> None:
    leases = LeasesOfTests(*range(1, 11), of_others={2})

    def next_rows(limit: int) -> list[int]:
        return [one.number for one in asyncio.run(_called(journal, lambda it: it.due(BATCH, limit=limit)))]

    with closing(ChunkJournal(WrittenFacts(leases), cast("ChainWriter", leases))) as journal:
        assert next_rows(2) == [1, 2]
        assert next_rows(3) == [3]
        assert next_rows(1) == [7], "those between are another's"
        assert leases.held == {1, 3}
        assert leases.learned == [1, 2, 3, 7]
        leases.has_lost = True
        assert next_rows(5) == []
        leases.has_lost = False
        assert next_rows(5) == [8, 9, 10]
        assert next_rows(5) == []


def test_rows_that_moved_before_their_chunk_was_leased_are_not_given() -> None:
    class Moving(LeasesOfTests):
        def lease_chunks(self, chunks: Iterable[int]) -> frozenset[int]:
            self.rows = [one for one in self.rows if one.number != 2]  # another process sent it
            return super().lease_chunks(chunks)

    leases = Moving(1, 2, 3, 4)
    with closing(ChunkJournal(WrittenFacts(leases), cast("ChainWriter", leases))) as journal:
        given = asyncio.run(_called(journal, lambda it: it.due(BATCH, limit=3)))
        assert [one.number for one in given] == [1, 3], "4 is of the next page"
        given = asyncio.run(_called(journal, lambda it: it.due(BATCH, limit=3)))
        assert [one.number for one in given] == [4]
