"""Evidence in the journal's twin without a disk (see `memory.py`)."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from paygw_batch.core.evidence import FOR_A_PERSON, Candidate, Evidence, Finding, Source, Waits, rule
from paygw_batch.core.lifecycle import Concluded
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import InternalError, JournalCorrupt
from paygw_batch.journal.chain import Line
from paygw_batch.journal.evidence import EvidenceLine, candidate_of, evidence_line, hash_after, note_of
from paygw_batch.journal.port import BatchRecord, Entry, NewInstruction, RowStanding, WaitingEvidence
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

    def take_in(self, evidence: Sequence[Evidence], words: Mapping[str, OutcomeKind], *, at: str) -> Sequence[Finding]:
        """Keep evidence in order, and move what it proves (see the port)."""
        findings = []
        for one in evidence:
            number = len(self._evidence) + 1
            order_id = one.claim.order_id
            candidates = [] if order_id is None else list(self._candidates(order_id))
            ruling = rule(one.claim, candidates, words, note=note_of(one.source, number))
            if isinstance(ruling, Waits):
                break
            fact = None
            if ruling.outcome is not None and ruling.instruction is not None and ruling.attempt is not None:
                (line,) = self._record([Entry(ruling.instruction, ruling.attempt, Concluded(ruling.outcome), at)])
                if (line.contradicts is None) is not (ruling.finding is Finding.MOVED):
                    raise InternalError("evidence moved what it should not, or did not move what it should")
                fact = line.seq
            before = self._evidence[-1].hash if self._evidence else self._evidence_start
            self._evidence.append(evidence_line(number, before, one, ruling, fact=fact, at=at))
            findings.append(ruling.finding)
        return findings

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
            if batch is None or (line.instruction is not None and list(self._rows_of(line.instruction, batch)))
        )

    def _is_held(self, instruction: int) -> bool:
        """Whether proven evidence contradicts where an instruction stood."""
        return any(line.instruction == instruction and line.finding == Finding.CONTRADICTING for line in self._evidence)

    def _check_evidence(self) -> int:
        before = self._evidence_start
        for line in self._evidence:
            if hash_after(before, line) != line.hash:
                raise JournalCorrupt(f"Evidence {line.number} was changed, or the one before it.")
            before = line.hash
        return len(self._evidence)

    def _candidates(self, order_id: str) -> Iterator[Candidate]:
        """Yield the instructions of every operation that go, or went, by an order id."""
        for number in sorted(number for (_, its_id), number in self._order_ids.items() if its_id == order_id):
            new = self._instructions[number].new
            yield candidate_of(number, new.client_orderid, new.amount, new.currency, self._progress[number])

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
