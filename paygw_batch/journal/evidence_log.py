"""Writes evidence and the facts that it causes in one transaction, and reads evidence back, for all stores.

The SQL is each store's own: `evidence.sql` in its folder has the same names in both.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from paygw_batch.core.batch import first_order_id
from paygw_batch.core.evidence import (
    FOR_A_PERSON,
    NOTES,
    Candidate,
    Evidence,
    EvidenceSource,
    Finding,
    Ruling,
    SignedOrder,
    Waits,
    later_attempt_of,
    rule,
)
from paygw_batch.core.lifecycle import Concluded, FactKind, Standing
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import InternalError, JournalCorrupt, RowsMoved
from paygw_batch.journal.facts.evidence_chain import (
    EvidenceEnd,
    EvidenceLine,
    Note,
    carried_out_of,
    clock_of,
    first_reading_of,
    hash_after,
    lines_of,
    note_evidence,
    note_of,
    order_of,
    require_in_force,
    start_of,
    withdrawal_of,
    word_of,
)
from paygw_batch.journal.facts.standing import PROVEN_STATEMENT, STATES
from paygw_batch.journal.salts import new_salt
from paygw_batch.journal.tables import Tables
from paygw_batch.journal.values import (
    CarriedOut,
    ClockSeen,
    Contradiction,
    Entry,
    FirstReading,
    Hold,
    InboxEnd,
    Messages,
    WaitingEvidence,
    Withdrawal,
)
from paygw_batch.language import say


def _listed(words: Iterable[str]) -> str:
    return ", ".join(f"'{word}'" for word in words)


PARTS: Mapping[str, str] = {
    "columns": ", ".join(EvidenceLine._fields),
    "values": ", ".join(f":{name}" for name in EvidenceLine._fields),
    "for_a_person": _listed(FOR_A_PERSON),
    "notes": _listed(NOTES),
    "proven": PROVEN_STATEMENT,
}
"""The parts of statements that are constants of the program."""
_WORDS = (FactKind.RESOLVED_PAID.value, FactKind.RESOLVED_REJECTED.value, FactKind.RESOLVED_NOT_RECEIVED.value)
_FACTS = (Finding.MOVED, Finding.CONTRADICTING, Finding.RESOLVED)


Record = Callable[[Sequence[Entry]], Sequence[tuple[int, str, bool]]]
"""Appends facts inside the open transaction; for each, returns its number, its time, and whether it moved its row."""


class EvidenceLog:
    """The evidence of one journal. Its writing methods are called inside the open transaction."""

    def __init__(self, tables: Tables) -> None:
        self._tables, self._run = tables, tables.run

    def record_evidence(
        self, evidence: Sequence[Evidence], words: Mapping[str, OutcomeKind], record: Record, at: str
    ) -> list[Finding]:
        """Record evidence in order, up to the first about a row in flight; return the findings."""
        end, at = self._end(), max(at, self.newest_time())
        findings = []
        for one in evidence:
            candidates = self._locked_candidates(one.claim.order_id)
            ruling = rule(one.claim, candidates, words, note=note_of(one.source, end.number + 1))
            if isinstance(ruling, Waits):
                break
            end = self._add(end, one, ruling, fact=_recorded(ruling, record, at), at=at)
            findings.append(ruling.finding)
        return findings

    def settle(self, entries: Sequence[Entry], record: Record) -> None:
        """Record people's decisions; for a held row, the decision is also kept as evidence.

        Raises `RowsMoved` if one does not move its row, or settles a row that is ready and not held.
        """
        if not entries:
            return
        ready = dict(self._run("ready_and_held", numbers=[entry.instruction for entry in entries]))
        if not all(ready.values()):
            raise RowsMoved
        recorded = record(entries)
        if not all(has_moved for _, _, has_moved in recorded):
            raise RowsMoved
        end = self._end() if ready else None
        for entry, (fact, at, _) in zip(entries, recorded, strict=True):
            if end is not None and entry.instruction in ready:
                end = self._add(end, *word_of(entry), fact=fact, at=at)

    def keep(self, *notes: Note | None) -> None:
        """Keep notes of the journal's own. Raises `DocumentWithdrawn` for an order that was withdrawn."""
        for note in (one for one in notes if one is not None):
            end = self._end()
            if isinstance(note, SignedOrder):
                self._require_in_force(note.sha256)
            evidence, ruling, at = note_evidence(note)
            self._add(end, evidence, ruling, at=max(at, self.newest_time()))

    def add_all(self, evidence: Iterable[tuple[Evidence, Ruling]], at: str) -> None:
        """Record evidence that is already judged and causes no fact."""
        end, at = self._end(), max(at, self.newest_time())
        for one, ruling in evidence:
            end = self._add(end, one, ruling, at=at)

    def require_plan_in_force(self, sha256: str) -> None:
        """Raise `DocumentWithdrawn` for a withdrawn plan; until the transaction ends, no plan can be withdrawn."""
        if sha256:
            self._tables.write_evidence_in_turn()
            self._require_in_force(sha256)

    def _require_in_force(self, sha256: str) -> None:
        naming = self._run("notes_naming", finding=Finding.WITHDRAWN.value, text=sha256) if sha256 else ()
        require_in_force(sha256, (withdrawal_of(content, at) for content, at in naming))

    def messages(self, batch: int | None) -> Messages:
        """Return the messages of the gateway about the rows of one batch, or of all, that a person must look at."""
        return Messages(
            [
                Contradiction(number, batch_id, row, order_id, STATES[state], kind, attempt, at)
                for number, batch_id, row, order_id, state, kind, attempt, at in self._run(
                    "contradictions", batch=batch
                )
            ],
            [
                WaitingEvidence(
                    number, batch_id, row, order_id, STATES[state], Finding(finding), said, EvidenceSource(source), at
                )
                for number, batch_id, row, order_id, state, finding, said, source, at in self._run(
                    "waiting", batch=batch
                )
            ],
        )

    def message_counts(self, batch: int | None) -> Mapping[str, int]:
        """Return the number of messages of each finding, about one batch or all."""
        return dict(self._run("counts") if batch is None else self._run("counts_of_batch", batch=batch))

    def carried_out(self, batch: str) -> list[CarriedOut]:
        """Return the statements that were carried out for a batch, oldest first."""
        found = (carried_out_of(content, at) for content, at in self._notes(Finding.CARRIED_OUT))
        return [one for one in found if one.batch == batch]

    def holds(self, batch: int) -> Mapping[int, Hold]:
        """Return the holds on ready rows of a batch, by row: the latest evidence against each."""
        found = self._run("holds", batch=batch)
        return {row: Hold(number, EvidenceSource(source), said, at) for row, number, source, said, at in found}

    def first_reading(self, sha256: str) -> FirstReading:
        """Return when a statement's file was first read, for any batch."""
        lines = self._run("evidence_naming", source=EvidenceSource.STATEMENT.value, text=sha256)
        return first_reading_of(sha256, lines)

    def withdrawals(self) -> list[Withdrawal]:
        """Return the signed documents that were withdrawn, oldest first."""
        return [withdrawal_of(content, at) for content, at in self._notes(Finding.WITHDRAWN)]

    def marks(self) -> tuple[str, InboxEnd, ClockSeen | None]:
        """Return the journal's newest time, the last recorded place of the inbox, and the last note of the clock."""
        ((of_facts, of_evidence, number, digest, clock),) = self._run("marks", clock=Finding.CLOCK.value)
        end = InboxEnd() if number is None else InboxEnd(number, digest)
        return max(of_facts or "", of_evidence or ""), end, clock and clock_of(clock)

    def newest_time(self) -> str:
        """Return the newest time of the journal: no fact and no evidence is later."""
        ((of_facts, of_evidence),) = self._run("newest_times")
        return max(of_facts or "", of_evidence or "")

    def inbox_end(self) -> InboxEnd:
        """Return the last place of the inbox whose notifications were recorded."""
        return next((InboxEnd(*line) for line in self._run("inbox_end")), InboxEnd())

    def newest_forgotten_notification(self) -> int | None:
        """Return the inbox number of the newest forgotten notification, or None."""
        ((found,),) = self._run("newest_forgotten_notification")
        return None if found is None else int(found)

    def contested(self, numbers: Iterable[int]) -> frozenset[int]:
        """Return those of these instructions that evidence holds."""
        wanted = sorted(set(numbers))
        return frozenset(number for (number,) in self._run("contested", numbers=wanted)) if wanted else frozenset()

    def candidates(self, order_id: str) -> list[Candidate]:
        """Return the instructions of every operation that use, or used, an order id.

        For an id that no attempt has: those of the first attempt in whose pattern it is written.
        """
        found = self._known_as(order_id)
        if not found and (first := first_order_id(order_id)) is not None:
            return later_attempt_of(first, self._known_as(first))
        return found

    def check(self) -> int:
        """Follow the chain of evidence from its start; return its length. Raises `JournalCorrupt`."""
        before, number = start_of(self._tables.identity), 0
        for *columns, forgotten in self._tables.stream("all_evidence"):
            line = EvidenceLine(*columns)
            if line.number != number + 1:
                raise JournalCorrupt(say("Evidence {number} is missing from the journal.", number=number + 1))
            if forgotten is None and hash_after(before, line) != line.hash:
                raise JournalCorrupt(
                    say("Evidence {number} or the one before it was changed: its hash is wrong.", number=line.number)
                )
            self._check_fact(line)
            before, number = line.hash, line.number
        return number

    def _check_fact(self, line: EvidenceLine) -> None:
        """Raise `JournalCorrupt` unless evidence that moved or contradicted a row, or is a decision, names its fact."""
        is_a_fact = line.finding in _FACTS
        if not is_a_fact and line.fact is None:
            return
        kinds = _WORDS if line.finding == Finding.RESOLVED else {line.said}
        has_moved = line.finding != Finding.CONTRADICTING
        wanted = {(line.instruction, line.attempt, has_moved, kind) for kind in kinds}
        found = set(self._run("fact_of_evidence", fact=line.fact))
        if not is_a_fact or not found & wanted:
            raise JournalCorrupt(
                say("Evidence {number} does not match fact {fact}.", number=line.number, fact=line.fact)
            )

    def signed_orders(self, batch: str) -> list[str]:
        """Return the documents of the signed orders about a batch; empty: those about the whole journal."""
        orders = (order_of(content) for content, _ in self._notes(Finding.ORDER))
        return [one.document for one in orders if one.batch == batch]

    def _notes(self, finding: Finding) -> list[tuple[str, str]]:
        """Return contents and times of the notes of one kind, oldest first."""
        return self._run("notes", finding=finding.value)

    def _locked_candidates(self, order_id: str | None) -> list[Candidate]:
        """Return the instructions with an order id, and lock them against sending until the evidence is kept."""
        found = [] if order_id is None else self.candidates(order_id)
        if order_id is None or not found or not self._tables.lock_rows([one.number for one in found]):
            return found
        return self.candidates(order_id)

    def _known_as(self, order_id: str) -> list[Candidate]:
        if "\0" in order_id or order_id.encode(errors="replace").decode() != order_id:
            return []  # half a surrogate pair, or NUL: not an order id of ours, and the database cannot look it up
        return [
            Candidate(
                number,
                client_orderid,
                amount,
                currency,
                Standing(STATES[state], *standing),
                sent_order_id,
                has_left_once=bool(is_first),
                intended_at=intended_at,
            )
            for number, client_orderid, amount, currency, state, *standing, sent_order_id, is_first, intended_at in (
                self._run("known_as", order_id=order_id)
            )
        ]

    def _add(
        self, end: EvidenceEnd, evidence: Evidence, ruling: Ruling, *, fact: int | None = None, at: str
    ) -> EvidenceEnd:
        """Write the lines of one piece of evidence after `end`; return the new end of the chain."""
        for line in lines_of(end, evidence, ruling, new_salt, fact=fact, at=at):
            self._run("add_evidence", **line._asdict())
            end = EvidenceEnd(line.number, line.hash)
        return end

    def _end(self) -> EvidenceEnd:
        """Return the end of the chain; until the open transaction ends, no other transaction continues from it."""
        self._tables.write_evidence_in_turn()
        found = self._run("evidence_end")
        return EvidenceEnd(*found[0]) if found else EvidenceEnd(0, start_of(self._tables.identity))


def _recorded(ruling: Ruling, record: Record, at: str) -> int | None:
    """Record the fact that a ruling asks for; return its number."""
    if ruling.outcome is None or ruling.instruction is None or ruling.attempt is None:
        return None
    ((number, _, has_moved),) = record([Entry(ruling.instruction, ruling.attempt, Concluded(ruling.outcome), at)])
    if has_moved is not (ruling.finding is Finding.MOVED):
        raise InternalError("evidence moved what it should not, or did not move what it should")
    return number
