"""Stores evidence and notes as facts in the journal and reads them back, for all stores.

Evidence that moves a row is stored in the same fact as the move. An unprocessed notification is stored as the received
bytes and the claim parsed from them. If it causes an enquiry, the gateway's reply is stored in the same way, with
another source.
"""

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from paygw_batch.core.batch import first_order_id
from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.core.evidence import (
    HOLDABLE_STATES,
    PERSON_FINDINGS,
    Candidate,
    Claim,
    Deferral,
    Evidence,
    EvidenceRecord,
    EvidenceSource,
    Finding,
    Proof,
    Ruling,
    SignedOrder,
    StatedTimes,
    TimeInterval,
    assess_claim,
    candidates_with_unknown_attempt,
)
from paygw_batch.core.lifecycle import Concluded, FactKind, Standing
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import DocumentWithdrawn, InternalError, JournalCorrupt, StaleRows
from paygw_batch.journal.facts import NoteKind, parse_note
from paygw_batch.journal.states import PROVEN_STATEMENT, STATES, storable_text
from paygw_batch.journal.tables import Tables
from paygw_batch.journal.values import (
    ClockComparison,
    ConcurrentNote,
    Contradiction,
    EndpointNote,
    Entry,
    FirstReading,
    Hold,
    Identity,
    Messages,
    Note,
    ProcessedArrivals,
    Remark,
    StatementNote,
    WaitingEvidence,
    Withdrawal,
    canonical,
)
from paygw_batch.language import say


@dataclass(frozen=True, slots=True)
class Notification:
    """A stored notification. `received_at` is UTC, ISO 8601 with `Z`.

    `problem` says why the notification could not be read, or is empty. The `body` of an unreadable notification may be
    truncated from `length` bytes. The body is never shown, because it may name a payee.
    """

    received_at: str
    method: str
    content_type: str
    query: str = field(repr=False)
    body: bytes = field(repr=False)
    length: int
    problem: str
    claim: Claim = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """The relevant headers, with lower-case names."""
    source: EvidenceSource = EvidenceSource.NOTIFICATION


def encode_notification(notification: Notification) -> str:
    fields = asdict(notification)
    fields["said"], fields["body"] = fields.pop("claim"), base64.b64encode(notification.body).decode("ascii")
    return canonical(fields)


def decode_notification(text: str) -> Notification:
    """Decode the output of `encode_notification`. Raises `JournalCorrupt` if it cannot be read."""
    try:
        fields = json.loads(text)
        claim_fields = fields.pop("said")
        proof, times = Proof(claim_fields["proof"]), _parse_times(claim_fields["times"])
        decoded = {
            "body": base64.b64decode(fields["body"], validate=True),
            "claim": Claim(**{**claim_fields, "proof": proof, "times": times}),
            "headers": tuple((name, value) for name, value in fields["headers"]),
            "source": EvidenceSource(fields["source"]),
        }
        return Notification(**{**fields, **decoded})
    except (ValueError, TypeError, KeyError, AttributeError):
        raise JournalCorrupt(say("A received notification cannot be read.")) from None


def arrival_evidence(number: int, content: str) -> Evidence:
    """Convert the notification in fact `number` to evidence, with an empty claim if it is unreadable."""
    try:
        notification = decode_notification(content)
    except JournalCorrupt:
        return Evidence(EvidenceSource.NOTIFICATION, Claim(None), content, number)
    return Evidence(notification.source, notification.claim, content, number)


def _parse_times(fields: Mapping[str, Any]) -> StatedTimes:
    sent_at = fields["sent_at"]
    true_at = tuple(TimeInterval(**interval) for interval in fields["true_at"])
    return StatedTimes(true_at, None if sent_at is None else TimeInterval(**sent_at))


PARTS: Mapping[str, str] = {
    "for_a_person": ", ".join(f"'{finding}'" for finding in PERSON_FINDINGS),
    "holdable": ", ".join(f"'{state}'" for state in HOLDABLE_STATES),
    "proven": PROVEN_STATEMENT,
    "resolutions": ", ".join(f"'{kind}'" for kind in FactKind if kind.startswith("resolved_")),
}
"""Maps names in braces in the SQL statements to their text."""
_RESOLUTION = EvidenceRecord(EvidenceSource.PERSON, Finding.RESOLVED)
RecordFacts = Callable[[Sequence[Entry | Remark]], Sequence[tuple[int, str, bool]]]
"""Appends facts in the open transaction. Returns each fact's number and time, and whether it moved its row."""


class EvidenceQueries(ABC):
    """Reads a journal's evidence and notes."""

    @abstractmethod
    def _query(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        """Run a statement and return all its rows."""

    def messages(self, batch: int | None = None) -> Messages:
        """Return the gateway's messages that a person must check, for one batch or (if None) for all."""
        contradictions = [
            Contradiction(number, batch_id, row, order_id, STATES[state], *rest)
            for number, batch_id, row, order_id, state, *rest in self._query("contradictions", batch=batch)
        ]
        lines = self._query("waiting", batch=batch)
        waiting = [
            WaitingEvidence(
                number, batch_id, row, order_id, STATES[state], Finding(finding), means, EvidenceSource(source), at
            )
            for number, batch_id, row, order_id, state, finding, means, source, at in lines
        ]
        return Messages(contradictions, waiting)

    def message_counts(self, batch: int | None = None) -> Mapping[str, int]:
        """Count the gateway's messages by finding, for one batch or (if None) for all."""
        return dict(self._query("counts") if batch is None else self._query("counts_of_batch", batch=batch))

    def carried_out_statements(self, batch: str) -> Sequence[StatementNote]:
        """Return the statements applied to a batch, oldest first."""
        notes = self._notes(NoteKind.STATEMENT)
        return [note for note in notes if isinstance(note, StatementNote) and note.batch == batch]

    def holds(self, batch: int) -> Mapping[int, Hold]:
        """Return the evidence that holds ready rows of a batch, or rejected rows after a release, by row number."""
        holds: dict[int, Hold] = {}
        for row, state, number, source, means, at, content in self._query("holds", batch=batch):
            last_sent_at, order_ids = at if source == EvidenceSource.WITNESS.value else "", _named_order_ids(content)
            if row in holds:
                last_sent_at = last_sent_at or holds[row].last_sent_at
                order_ids = tuple(dict.fromkeys((*holds[row].order_ids, *order_ids)))
            holds[row] = Hold(number, EvidenceSource(source), means, at, STATES[state], last_sent_at, order_ids)
        return holds

    def first_reading(self, sha256: str) -> FirstReading:
        """Return the first reading of the statement file with this digest, for any batch."""
        first_at, attempts = "", dict[int, int]()
        for details, at in self._query("readings", sha256=sha256):
            first_at = first_at or at
            for number, attempt_count in json.loads(details)["attempts"]:
                attempts.setdefault(number, attempt_count)
        return FirstReading(first_at, attempts)

    def withdrawals(self) -> Sequence[Withdrawal]:
        return [note for note in self._notes(NoteKind.WITHDRAWN) if isinstance(note, Withdrawal)]

    def signed_orders(self, batch: str = "") -> Sequence[str]:
        """Return the signed orders carried out for a batch, oldest first. An order to forget people has no batch."""
        notes = self._notes(NoteKind.ORDER)
        return [note.document for note in notes if isinstance(note, SignedOrder) and note.batch == batch]

    def endpoints(self, identity: Identity) -> tuple[EndpointIdentity, ...]:
        """Return the merchant's recorded endpoints, oldest first."""
        notes = self._notes(NoteKind.ENDPOINT)
        return (identity.endpoint_identity, *(note.endpoint for note in notes if isinstance(note, EndpointNote)))

    def clock(self) -> tuple[str, ClockComparison | None]:
        """Return the journal's newest time, and the latest comparison of our clock with the gateway's, if any."""
        ((newest,),) = self._query("newest_time")
        lines = self._query("newest_notes", kind=NoteKind.CLOCK.value, limit=1)
        notes = (parse_note(NoteKind.CLOCK, *columns) for columns in lines)
        return newest or "", next((note for note in notes if isinstance(note, ClockComparison)), None)

    def last_processed_arrival(self) -> int:
        """Return the fact number of the last processed notification, or 0 if there is none."""
        ((number,),) = self._query("taken_in")
        return int(number)

    def arrivals(self, limit: int) -> list[tuple[int, str]]:
        """Return up to `limit` unprocessed notifications with their fact numbers, oldest first."""
        return self._query("arrivals", limit=limit)

    def find_contested(self, numbers: Iterable[int]) -> frozenset[int]:
        """Return the given instructions that evidence contradicts. Those that are ready or rejected are held."""
        wanted = sorted(set(numbers))
        return frozenset(number for (number,) in self._query("contested", numbers=wanted)) if wanted else frozenset()

    def candidates(self, order_id: str) -> Sequence[Candidate]:
        """Return instructions of any operation that use, or have used, an order id.

        If the id is unknown but looks like a later attempt's, returns the instructions that use the first attempt's id,
        each marked `is_attempt_unknown`.
        """
        candidates = self._candidates_by_id(order_id)
        if not candidates and (first_id := first_order_id(order_id)) is not None:
            return candidates_with_unknown_attempt(first_id, self._candidates_by_id(first_id))
        return candidates

    def _notes(self, kind: NoteKind) -> list[Note]:
        return [parse_note(kind, *columns) for columns in self._query("notes", kind=kind.value)]

    def _candidates_by_id(self, order_id: str) -> list[Candidate]:
        if "\0" in order_id or storable_text(order_id) != order_id:
            return []  # our ids never contain NUL or lone surrogates, and databases cannot look them up
        lines = self._query("instructions_with_order_id", order_id=order_id)
        return [
            Candidate(
                number,
                own_id,
                amount,
                currency,
                Standing(STATES[state], *standing),
                sent_id,
                bool(is_first),
                at,
                endpoint,
            )
            for number, own_id, amount, currency, state, *standing, sent_id, is_first, at, endpoint in lines
        ]


class EvidenceLog(EvidenceQueries):
    """Reads and writes a journal's evidence and notes in the open transaction."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def _query(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        return self._tables.run(name, **values)

    def record_evidence(
        self, evidence: Sequence[Evidence], words: Mapping[str, OutcomeKind], record: RecordFacts, at: str
    ) -> list[Finding]:
        """Record evidence in order and return the findings. Stops before the first piece about a row in flight."""
        findings: list[Finding] = []
        pending: list[Entry | Remark] = []
        has_arrivals = any(piece.arrival is not None for piece in evidence)
        previous_arrival = last_arrival = self.last_processed_arrival() if has_arrivals else 0
        for piece in evidence:
            if piece.arrival is not None and piece.arrival <= last_arrival:
                raise InternalError("a notification was about to be recorded twice")
            ruling = assess_claim(piece.claim, self._lock_candidates(piece.claim.order_id), words)
            if isinstance(ruling, Deferral):
                break
            findings.append(ruling.finding)
            if piece.arrival is not None:
                last_arrival = piece.arrival
            pending += _build_facts(piece, ruling, at)
            if ruling.outcome is not None:  # the next claim must be assessed against the row's new state
                *_, (_, _, has_moved) = record(pending)
                if has_moved is not (ruling.finding is Finding.MOVED):
                    raise InternalError("evidence wrongly moved a row, or did not move its row")
                pending = []
        # In the same transaction as the facts, so that a crash cannot cause notifications to be processed twice.
        if last_arrival != previous_arrival:
            pending.append(Remark(ProcessedArrivals(last_arrival), at))
        if pending:
            record(pending)
        return findings

    def settle(self, entries: Sequence[Entry], record: RecordFacts) -> None:
        """Record people's decisions and lift the holds on their rows. Raises `StaleRows` (see `Journal.settle`)."""
        if not entries:
            return
        is_held = dict(self._query("ready_and_held", numbers=[entry.instruction for entry in entries]))
        if not all(is_held.values()):
            raise StaleRows
        facts = [replace(entry, evidence=_RESOLUTION) if entry.instruction in is_held else entry for entry in entries]
        if not all(has_moved for _, _, has_moved in record(facts)):
            raise StaleRows

    def record_notes(
        self, record: RecordFacts, *notes: StatementNote | ClockComparison | SignedOrder | ConcurrentNote | None
    ) -> None:
        """Record the given notes about the whole journal. Raises `DocumentWithdrawn` if one is a withdrawn order."""
        present = [note for note in notes if note is not None]
        for note in present:
            if isinstance(note, SignedOrder):
                self.require_in_force(note.sha256)
        if any(isinstance(note, Withdrawal) for note in present):
            self._tables.lock_documents()
        if present:
            record([Remark(note, note.our_time if isinstance(note, ClockComparison) else note.at) for note in present])

    def require_in_force(self, sha256: str) -> None:
        """Raise `DocumentWithdrawn` if the document was withdrawn. Blocks withdrawals until the transaction ends."""
        if sha256:
            self._tables.lock_documents()
            if self._query("withdrawn", sha256=sha256):
                raise DocumentWithdrawn

    def _lock_candidates(self, order_id: str | None) -> Sequence[Candidate]:
        """Return the instructions with an order id, locked so that none is sent before evidence is recorded."""
        candidates = [] if order_id is None else self.candidates(order_id)
        if order_id is None or not candidates or not self._tables.lock_rows([row.number for row in candidates]):
            return candidates
        return self.candidates(order_id)  # read again, because another process may have moved one


def _named_order_ids(content: str | None) -> tuple[str, ...]:
    """Return the order ids named in the text of recorded evidence, or none if it was forgotten."""
    try:
        fields = json.loads(content or "{}")
        fields = fields.get("said", fields)  # a notification's claim
        return tuple(fields.get("lost_orders") or [fields["order_id"]])
    except (ValueError, AttributeError, KeyError):
        return ()


def _build_facts(evidence: Evidence, ruling: Ruling, at: str) -> list[Entry | Remark]:
    """Return the facts to record: a proven move, or a remark about each instruction that the evidence may concern."""
    record = EvidenceRecord(evidence.source, ruling.finding, ruling.meaning, evidence.content, evidence.lasting)
    if ruling.outcome is not None and ruling.instruction is not None and ruling.attempt is not None:
        return [Entry(ruling.instruction, ruling.attempt, Concluded(ruling.outcome), at, evidence=record)]
    remarks = (Remark(record, at, instruction) for instruction in ruling.others)
    return [Remark(record, at, ruling.instruction, ruling.attempt), *remarks]
