"""The journal's twin without a disk, for tests and simulation: the same promise, the same chain, plain dicts and lists.

One set of conformance tests holds it and the journal on disk to the same behaviour. Nothing of it outlives the process.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter

from paygw_batch.core.instruction import Instruction
from paygw_batch.core.lifecycle import Interrupted, Released, Replaced, Standing, State, is_in_quarantine
from paygw_batch.errors import InternalError, JournalCorrupt
from paygw_batch.journal.chain import Identity, Line, Link, fold, follow, opening_line
from paygw_batch.journal.codec import decode
from paygw_batch.journal.deeds import deeds_of
from paygw_batch.journal.digest import Intake
from paygw_batch.journal.evidence import start_of
from paygw_batch.journal.evidence_memory import Held, MemoryEvidence
from paygw_batch.journal.evidence_port import Contradiction
from paygw_batch.journal.port import (
    Amendment,
    BatchRecord,
    Clash,
    Deed,
    Due,
    Entry,
    Head,
    Known,
    NewBatch,
    NewInstruction,
    RowStanding,
)
from paygw_batch.journal.progress import Progress, amendable, next_order_id, row_standing, succeed
from paygw_batch.journal.spellings_memory import MemorySpellings
from paygw_batch.journal.states_memory import MemoryStates


class MemoryJournal(MemoryEvidence, MemorySpellings, MemoryStates):
    """A journal in memory. Keeps the promise of `port.Journal`, durability aside."""

    def __init__(self, *, endpoint: str = "memory", created_at: str = "1970-01-01T00:00:00.000Z") -> None:
        self.notes: tuple[str, ...] = ()
        identity = Identity(self.journal_id, endpoint, created_at, "")
        self._start, self._evidence_start = identity.start, start_of(identity)
        self._evidence = []
        self._end = self._start
        self._lines: list[Line] = []
        self._batches = []
        self._pages: dict[int, list[bytes]] = {}
        self._instructions = {}
        self._covered = {}
        self._order_ids = {}
        self._progress = {}
        self._batch_of: dict[int, int] = {}

    def head(self) -> Head:
        """Return the end of the chain."""
        return Head(self._end.seq, self._end.hash.hex())

    def open_batch(
        self,
        batch: NewBatch,
        *,
        pages: Iterable[bytes],
        instructions: Iterable[NewInstruction],
        known: Iterable[Known],
        amendments: Iterable[Amendment],
        at: str,
    ) -> BatchRecord:
        """Make a whole batch part of the journal, or nothing of it (see the port)."""
        batch = self.storable_once(batch)
        record = BatchRecord(
            len(self._batches) + 1,
            batch.batch,
            batch.operation,
            batch.sheet_name,
            batch.sheet_sha256,
            batch.rows,
            batch.defects,
            at := max(at, self._end.at),
            batch.sheet_path,
        )
        amended = {amendment.row: amendment for amendment in amendments}
        replaced = {row: amendment.instruction for row, amendment in amended.items()}
        intake = Intake(batch, len(self._instructions) + 1)
        kept_pages = list(pages)
        for page in kept_pages:
            intake.page(page)
        held = [
            Held(number, record, new, replaced.get(new.row))
            for number, new in enumerate(instructions, start=intake.first_instruction)
        ]
        for one in held:
            intake.instruction(one.number, one.new, one.replaces)
        covered = sorted(known, key=attrgetter("row"))
        for row in covered:
            intake.known(row)
        self._check_batch(record, held, covered, amended)
        self._batches.append(record)
        self._pages[record.number] = kept_pages
        rows = [(one.new.row, one.number) for one in held] + [(row.row, row.instruction) for row in covered]
        self._covered[record.number] = dict(sorted(rows))
        for one in held:
            self._instructions[one.number] = one
            self._batch_of[one.number] = record.number
            self._progress[one.number] = Progress(one.new.client_orderid)
            self._order_ids.setdefault((record.operation, one.new.client_orderid), one.number)
        opening = opening_line(self._end, at, record.number, intake.opened())
        self._add([opening])
        self._amend(record, [one for one in held if one.replaces is not None], at)
        return record

    def append(self, entries: Sequence[Entry]) -> Sequence[bool]:
        """Add facts, and move their instructions (see the port)."""
        if any(isinstance(entry.fact, Released | Replaced) for entry in entries):
            raise InternalError("a release or a replacement cannot be appended by itself")
        refused = [self._is_refused(entry) for entry in entries]
        lines = iter(self._record([entry for entry, is_held in zip(entries, refused, strict=True) if not is_held]))
        return [not is_held and next(lines).contradicts is None for is_held in refused]

    def stage(self, entries: Sequence[Entry]) -> Callable[[], Sequence[bool]]:
        """Return the call that appends (see the port): memory waits for no disk."""
        return partial(self.append, entries)

    def interrupt(self, at: str) -> int:
        """Put every instruction that is in flight in doubt (its run is over), and return how many there were."""
        in_flight = [
            Entry(number, progress.standing.attempt, Interrupted(), at)
            for number, progress in self._progress.items()
            if progress.standing.state is State.IN_FLIGHT
        ]
        self._record(in_flight)
        return len(in_flight)

    def release(
        self, batch: int, rows: Sequence[int] | None, *, suffix: bool, by: str, at: str, left_until: str = ""
    ) -> int:
        """Release the rejected rows of a batch (all, or those named) for another attempt (see the port)."""
        wanted = None if rows is None else set(rows)
        entries = [
            self._release_entry(number, suffix=suffix, by=by, at=at)
            for row, number in self._covered.get(batch, {}).items()
            if self._progress[number].standing.state is State.REJECTED
            and (wanted is None or row in wanted)
            and not self._is_in_quarantine(number, left_until)
        ]
        self._record(entries)
        return len(entries)

    def batches(self) -> Sequence[BatchRecord]:
        """Return all batches, oldest first."""
        return list(self._batches)

    def compare(self, operation: str, rows: Iterable[tuple[int, str, str]]) -> tuple[Sequence[Known], Sequence[Clash]]:
        """Hold (row, client_orderid, content) of a sheet against every order id ever used."""
        known, clashes = [], []
        for row, order_id, content in rows:
            number = self._order_ids.get((operation, order_id))
            if number is None:
                continue
            held, standing = self._instructions[number], self._progress[number].standing
            is_its_own = held.new.client_orderid == order_id
            if is_its_own and held.new.content == content:
                known.append(Known(row, number, standing.state))
                continue
            clashes.append(
                Clash(
                    row,
                    order_id,
                    number,
                    held.batch.batch,
                    held.new.row,
                    held.batch.opened_at,
                    standing.state,
                    is_its_own and amendable(standing) and not self._is_contested(number),
                    self._progress[number].intended_at if standing.is_rejected_by_person else None,
                )
            )
        return known, clashes

    def due(self, batch: int, *, after_row: int, limit: int) -> Sequence[Due]:
        """Return up to `limit` READY instructions of a batch with a row above `after_row`, in the sheet's order."""
        covered = self._covered.get(batch, {})
        rows = list(covered)
        found: list[Due] = []
        for row in rows[bisect_right(rows, after_row) :]:
            number = covered[row]
            progress = self._progress[number]
            if progress.standing.state is not State.READY or self._is_contested(number):
                continue
            if len(found) == limit:
                break
            new = self._instructions[number].new
            instruction = Instruction(
                new.client_orderid, new.country, new.currency, new.amount, new.form, json.loads(new.fields)
            )
            found.append(Due(number, row, instruction, progress.standing, progress.order_id))
        return found

    def standings(self, batch: int) -> Iterator[RowStanding]:
        """Yield every instruction that a batch covers, in the sheet's order."""
        for row, number in self._covered.get(batch, {}).items():
            new = self._instructions[number].new
            yield row_standing(row, new.client_orderid, new.country, new.currency, new.minor, self._progress[number])

    def pages(self, batch: int) -> Iterator[bytes]:
        """Yield the sheet as it was received, piece by piece."""
        yield from self._pages.get(batch, [])

    def customer_urls(self, batch: int) -> Mapping[int, str]:
        """Return where customers of a batch go to pay, by row: what the gateway named for the latest attempt."""
        rows = {number: row for row, number in self._covered.get(batch, {}).items()}
        found = {}
        for line in self._lines:
            if line.instruction not in rows or line.contradicts is not None:
                continue
            url = json.loads(line.details).get("customer_url")
            if url is not None and line.attempt == self._progress[line.instruction].standing.attempt:
                found[rows[line.instruction]] = url
        return found

    def contradictions(self, batch: int | None = None) -> Sequence[Contradiction]:
        """Return the facts that changed nothing, of one batch or of all, but those a person has answered since."""
        found = []
        for line in self._lines:
            if line.contradicts is None or line.instruction is None or line.attempt is None or self._is_answered(line):
                continue
            held = self._instructions[line.instruction]
            record = held.batch if batch is None else self._batches[batch - 1]
            rows = [row for row, number in self._covered[record.number].items() if number == line.instruction]
            found += [
                Contradiction(
                    line.seq,
                    record.batch,
                    row,
                    held.new.client_orderid,
                    State(line.contradicts),
                    line.kind,
                    line.attempt,
                    line.at,
                )
                for row in rows
            ]
        return found

    def deeds(self, batch: int) -> Sequence[Deed]:
        """Return what people did to a batch and to the rows it covers, in the order they did it."""
        rows = {number: row for row, number in self._covered.get(batch, {}).items()}
        return [
            deed
            for line in self._lines
            if (line.instruction in rows if line.instruction is not None else line.batch == batch)
            for deed in deeds_of(
                line.seq,
                line.at,
                line.kind,
                line.details,
                row=None if line.instruction is None else rows[line.instruction],
                attempt=line.attempt,
            )
        ]

    def row(self, batch: int, row: int) -> tuple[int, Standing] | None:
        """Return number and standing of the instruction behind a row of a batch."""
        number = self._covered.get(batch, {}).get(row)
        return None if number is None else (number, self._progress[number].standing)

    def verify(self) -> Mapping[str, int]:
        """Replay the chain and every instruction; return what was counted."""
        end = self._start
        progress: dict[int, Progress] = {}
        for line in self._lines:
            end = follow(end, line)
            if line.instruction is None or line.attempt is None:
                self._begin(line.batch, progress)
                continue
            entry = Entry(line.instruction, line.attempt, decode(line.kind, line.details), line.at)
            (again,) = fold([entry], Link(line.seq - 1, b""), progress, self._batch_of)
            if again.contradicts != line.contradicts:
                raise JournalCorrupt(f"Fact {line.seq} does not fit where instruction {line.instruction} stood.")
        if progress != self._progress:
            raise JournalCorrupt("An instruction is not as its facts say.")
        counts: dict[str, int] = dict.fromkeys(map(str, State), 0)
        for one in progress.values():
            counts[one.standing.state] += 1
        return counts | {
            "batches": len(self._batches),
            "contradictions": sum(line.contradicts is not None for line in self._lines),
            "evidence": self._check_evidence(),
            "facts": len(self._lines),
            "instructions": len(self._instructions),
            "order_ids": len(self._order_ids),
            "pages": sum(map(len, self._pages.values())),
        }

    def close(self) -> None:
        """Nothing to let go of: the journal lives on in memory."""

    def _check_batch(
        self, record: BatchRecord, held: Sequence[Held], known: Sequence[Known], amended: Mapping[int, Amendment]
    ) -> None:
        """Raise `InternalError` for what the tables of the journal on disk would refuse."""
        rows = [one.new.row for one in held] + [one.row for one in known]
        covered = [one.instruction for one in known]
        ids = [one.new.client_orderid for one in held]
        taken = {one.new.client_orderid for one in held if one.replaces is None}
        if (
            any((record.operation, record.batch) == (other.operation, other.batch) for other in self._batches)
            or len(rows) != len(set(rows))
            or len(ids) != len(set(ids))
            or len(covered) != len(set(covered))
            or any((record.operation, order_id) in self._order_ids for order_id in taken)
            or any(number not in self._instructions for number in covered)
        ):
            raise InternalError(f"batch {record.batch} is already open, or a row or an order id of it is taken")
        if sum(one.replaces is not None for one in held) != len(amended):
            raise InternalError("an amendment is of no row of its batch")
        for one in held:
            if one.replaces is not None and not self._may_replace(one, amended[one.new.row].left_until):
                raise InternalError("an amendment replaces what may not be replaced")

    def _is_in_quarantine(self, number: int, left_until: str) -> bool:
        progress = self._progress[number]
        return is_in_quarantine(progress.standing, progress.intended_at, left_until)

    def _may_replace(self, held: Held, left_until: str) -> bool:
        old = self._instructions.get(held.replaces or 0)
        return (
            old is not None
            and old.new.client_orderid == held.new.client_orderid
            and amendable(self._progress[old.number].standing)
            and not self._is_contested(old.number)
            and not self._is_in_quarantine(old.number, left_until)
        )

    def _begin(self, batch: int, progress: dict[int, Progress]) -> None:
        """Put the instructions of a batch where they start: anew, or after the one they replace."""
        for held in self._instructions.values():
            if held.batch.number == batch:
                old = held.replaces
                progress[held.number] = Progress(held.new.client_orderid) if old is None else succeed(progress[old])

    def _amend(self, record: BatchRecord, amended: Iterable[Held], at: str) -> None:
        """Let new instructions take over from those they replace: order ids, numbering and, if rejected, a release."""
        entries = []
        for held in amended:
            old = held.replaces or 0
            before = self._progress[old]
            self._progress[held.number] = succeed(before)
            for order_id in (held.new.client_orderid, before.order_id):
                self._order_ids[record.operation, order_id] = held.number
            entries.append(Entry(old, before.standing.attempt, Replaced(record.batch, held.new.row), at))
            if before.standing.state is State.REJECTED:
                entries.append(self._release_entry(held.number, suffix=True, by="an amended sheet", at=at))
        self._record(entries)

    def _release_entry(self, number: int, *, suffix: bool, by: str, at: str) -> Entry:
        """Return the fact that releases a rejected instruction, its next order id claimed."""
        held, progress = self._instructions[number], self._progress[number]
        operation = held.batch.operation
        order_id = next_order_id(
            held.new.client_orderid,
            progress,
            suffix=suffix,
            is_used=lambda order_id: self.is_used(operation, order_id),
        )
        self._order_ids.setdefault((operation, order_id), number)
        return Entry(number, progress.standing.attempt, Released(order_id, by), at)

    def _record(self, entries: Sequence[Entry]) -> Sequence[Line]:
        if any(entry.instruction not in self._instructions for entry in entries):
            raise InternalError("a fact speaks of an instruction that the journal does not have")
        lines = fold(entries, self._end, self._progress, self._batch_of)
        self._add(lines)
        return lines

    def _add(self, lines: Sequence[Line]) -> None:
        if lines:
            self._lines += lines
            self._end = Link(lines[-1].seq, lines[-1].hash, lines[-1].at)
