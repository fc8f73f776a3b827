"""Writes the journal.

Every write is one transaction, made durable before its call returns, and the witness is told of it before anything may
be sent on it. The chain is a second guard beside the lock: each number of a fact can be used by one writer.
"""

import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import apsw

from paygw_batch.core.evidence import Evidence, Finding, SignedOrder
from paygw_batch.core.lifecycle import Interrupted, Released, Replaced, State, is_in_quarantine
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import InternalError, JournalUnwritable
from paygw_batch.journal.batch_part import BatchPart, record_of
from paygw_batch.journal.facts.chain import Line, Link, fold, opening_line
from paygw_batch.journal.facts.digest import OpeningDigests
from paygw_batch.journal.facts.progress import RowProgress, amendable, next_order_id, storable, succeed
from paygw_batch.journal.guards.lock import WriteLock
from paygw_batch.journal.guards.witness import HeadWitness, Seen
from paygw_batch.journal.kept_notification import evidence_of
from paygw_batch.journal.sqlite import messages, replies, schema, spellings
from paygw_batch.journal.sqlite.connect import conflicting, fetch, leave_untouched, reason_of, unwritable
from paygw_batch.journal.sqlite.engine_journal import SqliteEngineJournal
from paygw_batch.journal.sqlite.inbox import InboxReader, inbox_path
from paygw_batch.journal.sqlite.reader import SqliteReader
from paygw_batch.journal.sqlite.rows import (
    PROGRESS,
    IntendedRows,
    Moving,
    load,
    progress_of,
    save_progress,
    store_batch,
    totals_written,
    write_lines,
)
from paygw_batch.journal.sqlite.states import in_states, numbered
from paygw_batch.journal.values import (
    Amendment,
    BatchRecord,
    CarriedOut,
    ClockSeen,
    Entry,
    Known,
    MoveResult,
    NewBatch,
)

_AT_ONCE = 10_000
"""How many instructions a long change (a release, an interruption) moves at a time."""
_NOTIFICATIONS_AT_ONCE = 200
"""How many notifications one transaction takes in."""
_INSERT_FACTS = "INSERT INTO fact {lines}"
_REJECTED = f"""SELECT p.number, p.client_orderid, b.operation, {PROGRESS}
    FROM carray(?) wanted CROSS JOIN progress p ON p.number = wanted.value CROSS JOIN batch b ON b.number = p.batch
    WHERE p.state = 'rejected'"""  # noqa: S608 - a constant of ours


def _result(line: Line) -> MoveResult:
    return MoveResult.MOVED if line.contradicts is None else MoveResult.NOT_MOVED


class SqliteJournal(SqliteReader):
    """A journal on disk, held by a run (see `open_journal`). After the first failed write it only reads.

    Called from one thread at a time, and only from the process that opened it.
    """

    def __init__(
        self,
        connection: apsw.Connection,
        path: Path,
        *,
        journal_id: str,
        end: Link,
        witness: HeadWitness,
        lock: WriteLock,
        notes: tuple[str, ...],
    ) -> None:
        super().__init__(connection, path, notes)
        self._journal_id = journal_id
        self._end = end
        self._witness = witness
        self._lock = lock
        self._process = os.getpid()
        self._failure: str | None = None
        self._seen = end.seq
        self._took_in = False
        self._in_flight = IntendedRows()
        self._inbox = InboxReader(inbox_path(path))

    def open_batch(
        self,
        batch: NewBatch,
        *,
        parts: Iterable[BatchPart],
        known: Iterable[Known],
        amendments: Iterable[Amendment],
        at: str,
    ) -> BatchRecord:
        """Make a whole batch durable in one transaction, or nothing of it (see the port)."""
        batch = replace(batch, sheet_name=storable(batch.sheet_name), sheet_path=storable(batch.sheet_path))
        if batch.plan_sha256 and self.batches(plan_sha256=batch.plan_sha256):
            raise InternalError("a plan that has opened a batch was about to open another")
        amended = {amendment.row: amendment for amendment in amendments}
        replaced = {row: amendment.instruction for row, amendment in amended.items()}
        with self._writing():
            at = max(at, self._end.at)
            number = self._next_number("batch")
            digests = OpeningDigests(batch, self._next_number("instruction"))
            record = record_of(batch, number, at)
            with conflicting(f"batch {batch.batch} is already open, or a row or an order id of it is taken"):
                are_ascii = store_batch(self._connection, record, digests, parts, known, replaced)
                first = digests.first_instruction
                spellings.add_batch(self._connection, record.operation, number, first, are_ascii)
            opened = digests.opened()
            with totals_written(self._connection, number, opened, digests):
                self._add([opening_line(self._end, at, number, opened)])
            self._amend(record, amended, at)
        return record

    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Make facts durable in one transaction, and move their instructions, as `EngineJournal.append` does.

        Raises `InternalError` for a release or a replacement: those claim order ids, and come through `release` and
        `open_batch`.
        """
        return self.stage(entries)()

    def stage(self, entries: Sequence[Entry]) -> Callable[[], Sequence[MoveResult]]:
        """Do all of `append` but the commit, and return the call that commits, maybe from another thread.

        Nothing of it holds before that call has returned; until then no other call may be made.
        """
        if any(isinstance(entry.fact, Released | Replaced) for entry in entries):
            raise InternalError("a release or a replacement cannot be appended by itself")
        if not entries:
            return list
        self._require_writable()
        before = self._end
        with self._whole(before):
            self._begin()
            # What was held before was never due, and has no intent: only what came in since is looked for.
            refused = messages.refused(self._connection, entries) if self._took_in else [False] * len(entries)
            lines = iter(self._record([entry for entry, is_held in zip(entries, refused, strict=True) if not is_held]))
            results = [MoveResult.HELD if is_held else _result(next(lines)) for is_held in refused]

        def commit() -> Sequence[MoveResult]:
            with self._whole(before):
                self._commit()
            return results

        return commit

    def settle(
        self,
        entries: Sequence[Entry],
        *,
        note: CarriedOut | ClockSeen | None = None,
        order: SignedOrder | None = None,
    ) -> None:
        """Make people's words about rows durable in one transaction, or none; they lift holds (see the port)."""
        with self._writing():
            messages.settle(self._connection, entries, self._record)
            messages.keep(self._connection, note, order, newest=self._newest_time())

    def conclude_dead(self, at: str) -> int:
        """Put every instruction that is in flight in doubt (its run is over), and return how many there were."""
        found = self._fetch("SELECT instruction, attempt FROM standing WHERE state = 'in_flight' ORDER BY instruction")
        self.append([Entry(number, attempt, Interrupted(), at) for number, attempt in found])
        return len(found)

    def release(
        self,
        batch: int,
        rows: Sequence[int] | None,
        *,
        suffix: bool,
        by: str,
        at: str,
        left_until: str = "",
        order: SignedOrder | None = None,
    ) -> int:
        """Release the rejected rows of a batch (all, or those named) for another attempt (see the port)."""
        released = 0
        with self._writing():
            if rows is None:
                found = in_states(self._connection, batch, {State.REJECTED})
            else:
                found = numbered(self._connection, batch, rows)
            while group := array("q", (number for _, number in islice(found, _AT_ONCE))):
                entries = [
                    self._release_entry(number, client_orderid, operation, progress, suffix, by, at)
                    for number, client_orderid, operation, *columns in self._run(_REJECTED, (apsw.carray(group),))
                    if not is_in_quarantine(
                        (progress := progress_of(columns)).standing, progress.intended_at, left_until
                    )
                ]
                self._record(entries)
                released += len(entries)
            messages.keep(self._connection, order, newest=self._newest_time())
        return released

    def take_in_waiting(
        self, words: Mapping[str, OutcomeKind], *, at: str, at_most: int | None = None
    ) -> Counter[Finding]:
        """Take in the notifications that wait in the inbox, each once (see the port)."""
        findings: Counter[Finding] = Counter()
        while at_most is None or findings.total() < at_most:
            waiting = self._inbox.after(messages.inbox_end(self._connection), limit=_NOTIFICATIONS_AT_ONCE)
            if not waiting:
                break
            taken = self.take_in([evidence_of(one) for one in waiting], words, at=at)
            findings.update(taken)
            if len(taken) < len(waiting):
                break
        return findings

    def hand_over(self, batch: int, *, waits: bool = False) -> None:
        """Do nothing: a journal in a file has no workers."""

    @contextmanager
    def for_engine(self) -> Iterator[SqliteEngineJournal]:
        """Give the journal to an engine: until the block ends, only the engine uses it."""
        with closing(SqliteEngineJournal(self)) as given:
            yield given

    def mark_moved(self, place: str) -> None:
        """End the use of this journal for good: it was moved to `place`."""
        schema.mark_moved(self._connection, place)

    def gate(self) -> None:
        """Return nothing: a journal in a file has one process that sends, and its limits are that process's own."""

    def take_in(self, evidence: Sequence[Evidence], words: Mapping[str, OutcomeKind], *, at: str) -> Sequence[Finding]:
        """Keep evidence in order and apply the facts it proves, all in one transaction (see the port)."""
        self._took_in = True
        with self._writing():
            return messages.take_in(self._connection, evidence, words, self._record, self._not_before(at))

    def close(self) -> None:
        """Let go of the journal. It can be opened again."""
        try:
            super().close()
            self._inbox.close()
            self._witness.close()
        finally:
            self._lock.close()

    def _amend(self, record: BatchRecord, amended: Mapping[int, Amendment], at: str) -> None:
        """Let new instructions take over from those they replace: order ids, numbering and, if rejected, a release."""
        new_numbers = dict(
            self._run("SELECT row, number FROM instruction WHERE batch = ? AND replaces IS NOT NULL", (record.number,))
        )
        if len(new_numbers) != len(amended):
            raise InternalError("an amendment is of no row of its batch")
        before = load(self._connection, [*(one.instruction for one in amended.values()), *new_numbers.values()])
        progress = dict(before.progress)
        entries = []
        for row, amendment in amended.items():
            old, new = amendment.instruction, new_numbers[row]
            standing, order_id = progress[old].standing, before.client_orderids[old]
            if (
                not amendable(standing)
                or is_in_quarantine(standing, progress[old].intended_at, amendment.left_until)
                or messages.held_among(self._connection, (old,))
                or before.client_orderids[new] != order_id
            ):
                raise InternalError("an amendment replaces what may not be replaced")
            progress[new] = succeed(progress[old])
            move = "UPDATE order_id SET instruction = ? WHERE operation = ? AND order_id IN (?, ?)"
            self._run(move, (new, record.operation, order_id, progress[old].order_id))
            entries.append(Entry(old, standing.attempt, Replaced(record.batch, row), at))
            if standing.state is State.REJECTED:
                entries.append(
                    self._release_entry(new, order_id, record.operation, progress[new], True, "an amended sheet", at)
                )
        self._record(entries, replace(before, progress=progress))

    def _release_entry(
        self, number: int, client_orderid: str, operation: str, progress: RowProgress, suffix: bool, by: str, at: str
    ) -> Entry:
        """Return the fact that releases a rejected instruction, its next order id claimed."""

        def is_used(order_id: str) -> bool:
            return spellings.is_used(self._connection, operation, order_id)

        order_id = next_order_id(client_orderid, progress, suffix=suffix, is_used=is_used)
        if suffix:
            self._run("INSERT INTO order_id VALUES (?, ?, ?)", (operation, order_id, number))
            spellings.add_order_id(self._connection, operation, order_id)
        return Entry(number, progress.standing.attempt, Released(order_id, by), at)

    def _record(self, entries: Sequence[Entry], loaded: Moving | None = None) -> Sequence[Line]:
        """Add facts to the chain and save the new progress of their instructions, inside the open transaction."""
        before = loaded or self._in_flight.load(self._connection, [entry.instruction for entry in entries])
        progress = dict(before.progress)
        lines = fold(entries, self._end, progress, before.batches)
        self._add(lines)
        replies.keep(self._connection, entries, lines)
        moved = {
            number: after
            for number, after in progress.items()
            if loaded is not None or after is not before.progress[number]
        }
        save_progress(self._connection, before, moved)
        self._in_flight.note(before, moved)
        return lines

    def _add(self, lines: Sequence[Line]) -> None:
        if lines:
            write_lines(self._connection, _INSERT_FACTS, lines)
            self._end = Link(lines[-1].seq, lines[-1].hash, lines[-1].at)

    def _not_before(self, at: str) -> str:
        """Return `at`, or the newest time of the journal where the clock was set back."""
        return max(at, self._newest_time())

    def _next_number(self, table: str) -> int:
        ((highest,),) = self._run(f"SELECT max(number) FROM {table}")  # noqa: S608 - one of two names of ours
        return (highest or 0) + 1

    def _run(self, statement: str, bindings: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return fetch(self._connection, statement, bindings)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction: durable, and known to the witness, when the block is left; or nothing of it."""
        self._require_writable()
        with self._whole(self._end):
            self._begin()
            yield
            self._commit()

    def _begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def _commit(self) -> None:
        self._connection.execute("COMMIT")
        self._tell_witness()

    @contextmanager
    def _whole(self, before: Link) -> Iterator[None]:
        """Roll back if any step raises, and restore the end of the chain to `before`."""
        try:
            yield
        except apsw.Error as error:
            self._roll_back()
            raise self._give_up(reason_of(error)) from None
        except BaseException:
            if self._connection.in_transaction:
                self._roll_back()
                self._end = before
            else:  # it is durable, but the witness was not told
                self._give_up("a write was broken off")
            raise

    def _tell_witness(self) -> None:
        if self._end.seq == self._seen:
            return
        try:
            self._witness.note(Seen(self._journal_id, self._end.seq, self._end.hash.hex()))
        except OSError as error:
            raise self._give_up(f"its witness: {error.strerror}") from None
        self._seen = self._end.seq

    def _roll_back(self) -> None:
        """Forget the open transaction, if SQLite has not done so itself; this writes nothing."""
        self._in_flight.forget()
        try:
            if self._connection.in_transaction:
                self._run("ROLLBACK")
        except apsw.Error as error:
            self._give_up(reason_of(error))

    def _give_up(self, reason: str) -> JournalUnwritable:
        """Stop this process from writing the journal ever again, and return the error that says so."""
        if self._failure is None:
            self._failure = unwritable(self.path, reason)
            leave_untouched(self._connection)
        return JournalUnwritable(self._failure)

    def _require_writable(self) -> None:
        if self._failure is not None:
            raise JournalUnwritable(self._failure)
        if os.getpid() != self._process:
            raise InternalError("a journal was written from a process that did not open it")
