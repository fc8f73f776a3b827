"""Evidence in the journal's twin without a disk (see `memory.py`)."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from paygw_batch.core.evidence import (
    FOR_A_PERSON,
    HAS_IT,
    NOTES,
    Candidate,
    Evidence,
    Finding,
    Ruling,
    Source,
    Waits,
    rule,
)
from paygw_batch.core.lifecycle import Concluded, Intended, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import InternalError, JournalCorrupt
from paygw_batch.journal.chain import Line, Link
from paygw_batch.journal.evidence import (
    EvidenceLine,
    candidate_of,
    carried_out_evidence,
    carried_out_of,
    clock_evidence,
    clock_of,
    evidence_line,
    hash_after,
    lines_of,
    note_of,
    word_of,
)
from paygw_batch.journal.evidence_port import CarriedOut, ClockSeen, Hold, WaitingEvidence
from paygw_batch.journal.port import BatchRecord, Entry, NewInstruction, RowStanding
from paygw_batch.journal.progress import Progress


@dataclass(frozen=True, slots=True)
class Held:
    """An instruction as its batch brought it."""

    number: int
    batch: BatchRecord
    new: NewInstruction
    replaces: int | None


class MemoryEvidence:
    """Keeps evidence in a list, for the journal that holds the rest."""

    _evidence: list[EvidenceLine]
    _evidence_start: bytes
    _batches: list[BatchRecord]
    _instructions: dict[int, Held]
    _covered: dict[int, dict[int, int]]
    """Batch -> row -> instruction, rows in ascending order."""
    _order_ids: dict[tuple[str, str], int]
    _progress: dict[int, Progress]
    _end: Link

    def take_in(self, evidence: Sequence[Evidence], words: Mapping[str, OutcomeKind], *, at: str) -> Sequence[Finding]:
        """Keep evidence in order, and move what it proves (see the port)."""
        at, findings = self._not_before(at), []
        for one in evidence:
            number = len(self._evidence) + 1
            order_id = one.claim.order_id
            candidates = [] if order_id is None else self.candidates(order_id)
            ruling = rule(one.claim, candidates, words, note=note_of(one.source, number))
            if isinstance(ruling, Waits):
                break
            fact = None
            if ruling.outcome is not None and ruling.instruction is not None and ruling.attempt is not None:
                (line,) = self._record([Entry(ruling.instruction, ruling.attempt, Concluded(ruling.outcome), at)])
                if (line.contradicts is None) is not (ruling.finding is Finding.MOVED):
                    raise InternalError("evidence moved what it should not, or did not move what it should")
                fact = line.seq
            self._evidence += lines_of(number, self._evidence_end(), one, ruling, fact=fact, at=at)
            findings.append(ruling.finding)
        return findings

    def settle(self, entries: Sequence[Entry], *, carried_out: CarriedOut | None = None) -> None:
        """Record people's words about rows, all or none; on a held row they lift what held it (see the port)."""
        ready = {one.instruction for one in entries if self._progress[one.instruction].standing.state is State.READY}
        if not all(map(self._is_contested, ready)):
            raise InternalError("a row that is ready, and that nothing holds, was to be settled")
        for entry, fact in zip(entries, self._record(entries), strict=True):
            if fact.contradicts is not None:
                raise InternalError("a row moved between its check and its settlement")
            if entry.instruction in ready:
                number, end = len(self._evidence) + 1, self._evidence_end()
                self._evidence.append(evidence_line(number, end, *word_of(entry), fact=fact.seq, at=fact.at))
        if carried_out is not None:
            self._note(*carried_out_evidence(carried_out), at=carried_out.at)

    def note_clock(self, seen: ClockSeen, *, at: str) -> None:
        """Keep how far our clock is from the gateway's."""
        self._note(*clock_evidence(seen), at=at)

    def carried_out(self, batch: str) -> Sequence[CarriedOut]:
        """Return the statements that were carried out for a batch (its id), oldest first."""
        notes = (one for one in self._evidence if one.finding == Finding.CARRIED_OUT)
        done = (carried_out_of(one.content, one.taken_at) for one in notes)
        return [one for one in done if one.batch == batch]

    def clock_seen(self) -> ClockSeen | None:
        """Return how far our clock was from the gateway's when that was last noted (see the port)."""
        notes = [clock_of(one.content) for one in self._evidence if one.finding == Finding.CLOCK]
        return notes[-1] if notes else None

    def newest_time(self) -> str:
        """Return the newest time in the journal: no fact and no evidence is later."""
        return max(self._end.at, self._evidence[-1].taken_at if self._evidence else "")

    def _not_before(self, at: str) -> str:
        return max(at, self.newest_time())

    def _note(self, evidence: Evidence, ruling: Ruling, *, at: str) -> None:
        number, end = len(self._evidence) + 1, self._evidence_end()
        self._evidence.append(evidence_line(number, end, evidence, ruling, fact=None, at=self._not_before(at)))

    def holds(self, batch: int) -> Mapping[int, Hold]:
        """Return what holds rows of a batch that are ready, by row."""
        return {
            row: Hold(line.number, Source(line.source), line.said, line.taken_at)
            for row, number in self._covered.get(batch, {}).items()
            if self._progress[number].standing.state is State.READY
            for line in self._against(number)
        }

    def spool_end(self) -> tuple[int, str]:
        """Return number and hash of the last notification taken from the spool; 0 and nothing before the first."""
        spooled = [(line.spooled, line.spool_hash or "") for line in self._evidence if line.spooled is not None]
        return max(spooled, default=(0, ""))

    def evidence_waiting(self, batch: int | None = None) -> Sequence[WaitingEvidence]:
        """Return the evidence that waits for a person, of one batch or of all."""
        return [
            WaitingEvidence(
                line.number,
                batch_id,
                row.row,
                row.client_orderid,
                row.state,
                Finding(line.finding),
                line.said,
                Source(line.source),
                line.taken_at,
            )
            for line in self._evidence
            if line.finding in FOR_A_PERSON and line.instruction is not None
            for batch_id, row in self._rows_of(line.instruction, batch)
            if (row.updated_at or "") <= line.taken_at
        ]

    def evidence_counts(self, batch: int | None = None) -> Mapping[str, int]:
        """Return how much evidence there is of each finding, about the rows of one batch or in all."""
        return Counter(
            line.finding
            for line in self._evidence
            if line.finding not in NOTES
            if batch is None or (line.instruction is not None and list(self._rows_of(line.instruction, batch)))
        )

    def _is_refused(self, entry: Entry) -> bool:
        """Whether a fact is an intent for an instruction that evidence stands against."""
        return isinstance(entry.fact, Intended) and self._is_contested(entry.instruction)

    def _is_answered(self, line: Line) -> bool:
        """Whether a person spoke of a row that was held after this fact about it."""
        answers = (one for one in self._evidence if one.finding == Finding.RESOLVED)
        return any(one.instruction == line.instruction and (one.fact or 0) > line.seq for one in answers)

    def _is_contested(self, instruction: int) -> bool:
        """Whether evidence stands against sending an instruction."""
        return bool(self._evidence) and any(True for _ in self._against(instruction))

    def _against(self, instruction: int) -> Iterator[EvidenceLine]:
        """Yield the evidence that the gateway has an instruction, which no person has answered since."""
        lines = [line for line in self._evidence if line.instruction == instruction]
        answered = max((line.number for line in lines if line.finding == Finding.RESOLVED), default=0)
        for line in lines:
            has_it = line.finding == Finding.AMBIGUOUS and line.said in HAS_IT
            if line.number > answered and (line.finding == Finding.CONTRADICTING or has_it):
                yield line

    def _evidence_end(self) -> bytes:
        return self._evidence[-1].hash if self._evidence else self._evidence_start

    def _check_evidence(self) -> int:
        before = self._evidence_start
        for line in self._evidence:
            if hash_after(before, line) != line.hash:
                raise JournalCorrupt(f"Evidence {line.number} was changed, or the one before it.")
            before = line.hash
        return len(self._evidence)

    def candidates(self, order_id: str) -> Sequence[Candidate]:
        """Return the instructions of every operation that go, or went, by an order id."""
        numbers = sorted(number for (_, its_id), number in self._order_ids.items() if its_id == order_id)
        news = [(number, self._instructions[number].new) for number in numbers]
        return [
            candidate_of(number, new.client_orderid, new.amount, new.currency, self._progress[number])
            for number, new in news
        ]

    def _rows_of(self, instruction: int, batch: int | None) -> Iterator[tuple[str, RowStanding]]:
        """Yield batch id and row of an instruction, in `batch` or in its own."""
        record = self._instructions[instruction].batch if batch is None else self._batches[batch - 1]
        rows = [row for row, number in self._covered[record.number].items() if number == instruction]
        return ((record.batch, standing) for standing in self.standings(record.number) if standing.row in rows)

    def standings(self, batch: int) -> Iterator[RowStanding]:
        """Yield every instruction that a batch covers, in the sheet's order."""
        raise NotImplementedError

    def _record(self, entries: Sequence[Entry]) -> Sequence[Line]:
        raise NotImplementedError
