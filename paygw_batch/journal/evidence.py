"""Stores evidence and notes as facts in the journal, and reads them back, for all stores.

Evidence that moves a row is stored with its move, in one fact. A notification waiting to be judged is stored as the
received bytes, with the claim parsed from them. So is the gateway's reply to an enquiry that a notification caused,
with another source.
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
    judge_claim,
    unknown_attempt_candidates,
)
from paygw_batch.core.lifecycle import Concluded, FactKind, Standing
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import DocumentWithdrawn, InternalError, JournalCorrupt, StaleRows
from paygw_batch.journal.facts import NoteKind, parse_note
from paygw_batch.journal.states import PROVEN_STATEMENT, STATES
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
    JudgedArrivals,
    Messages,
    Note,
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

    `problem` is the reason why the notification could not be read, or empty. The `body` of an unreadable notification
    may be truncated; it was `length` bytes long. It is never shown, because it may name a payee.
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
    """The relevant headers, with names in lower case."""
    source: EvidenceSource = EvidenceSource.NOTIFICATION


def encode_notification(notification: Notification) -> str:
    """Return `notification` as a line of text."""
    fields = asdict(notification)
    fields["said"], fields["body"] = fields.pop("claim"), base64.b64encode(notification.body).decode("ascii")
    return canonical(fields)


def decode_notification(text: str) -> Notification:
    """Return the notification encoded in `text`. Raises `JournalCorrupt` if it cannot be read."""
    try:
        fields = json.loads(text)
        values = fields.pop("said")
        claim = Claim(**{**values, "proof": Proof(values["proof"]), "times": _parse_times(values["times"])})
        decoded = {
            "body": base64.b64decode(fields["body"], validate=True),
            "claim": claim,
            "headers": tuple((name, value) for name, value in fields["headers"]),
            "source": EvidenceSource(fields["source"]),
        }
        return Notification(**{**fields, **decoded})
    except (ValueError, TypeError, KeyError, AttributeError):
        raise JournalCorrupt(say("A notification that was received cannot be read.")) from None


def arrival_evidence(arrival: int, content: str) -> Evidence:
    """Convert a stored notification to evidence. An unreadable line becomes evidence without a claim."""
    try:
        notification = decode_notification(content)
    except JournalCorrupt:
        return Evidence(EvidenceSource.NOTIFICATION, Claim(None), content, arrival)
    return Evidence(notification.source, notification.claim, content, arrival)


def _parse_times(claim_fields: Mapping[str, Any]) -> StatedTimes:
    sent_at = claim_fields["sent_at"]
    true_at = tuple(TimeInterval(**span) for span in claim_fields["true_at"])
    return StatedTimes(true_at, None if sent_at is None else TimeInterval(**sent_at))


PARTS: Mapping[str, str] = {
    "for_a_person": ", ".join(f"'{finding}'" for finding in PERSON_FINDINGS),
    "proven": PROVEN_STATEMENT,
    "resolutions": ", ".join(f"'{kind}'" for kind in FactKind if kind.startswith("resolved_")),
}
"""The constants of the program that SQL statements name in braces."""
_ANSWER = EvidenceRecord(EvidenceSource.PERSON, Finding.RESOLVED)


Record = Callable[[Sequence[Entry | Remark]], Sequence[tuple[int, str, bool]]]
"""Appends facts inside the open transaction. Returns for each its number, its time, and whether it moved its row."""


class EvidenceQueries(ABC):
    """Reads a journal's evidence and notes."""

    @abstractmethod
    def _run(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        """Run a statement and return all its rows."""

    def messages(self, batch: int | None = None) -> Messages:
        """Return the gateway's messages that a person must check, about one batch (None: all)."""
        contradictions = [
            Contradiction(number, batch_id, row, order_id, STATES[state], *attempt_and_time)
            for number, batch_id, row, order_id, state, *attempt_and_time in self._run("contradictions", batch=batch)
        ]
        waiting = [
            WaitingEvidence(
                number, batch_id, row, order_id, STATES[state], Finding(finding), means, EvidenceSource(source), at
            )
            for number, batch_id, row, order_id, state, finding, means, source, at in self._run("waiting", batch=batch)
        ]
        return Messages(contradictions, waiting)

    def message_counts(self, batch: int | None = None) -> Mapping[str, int]:
        """Count the messages about one batch (None: all) by finding."""
        return dict(self._run("counts") if batch is None else self._run("counts_of_batch", batch=batch))

    def carried_out_statements(self, batch: str) -> Sequence[StatementNote]:
        """Return the statements carried out for a batch, oldest first."""
        notes = self._notes(NoteKind.CARRIED_OUT)
        return [note for note in notes if isinstance(note, StatementNote) and note.batch == batch]

    def holds(self, batch: int) -> Mapping[int, Hold]:
        """Return the evidence that holds ready rows of a batch, keyed by row number."""
        by_row: dict[int, Hold] = {}
        for row, number, source, means, at in self._run("holds", batch=batch):
            last_sent_at = at if source == EvidenceSource.WITNESS.value else ""
            if row in by_row:
                last_sent_at = last_sent_at or by_row[row].last_sent_at
            by_row[row] = Hold(number, EvidenceSource(source), means, at, last_sent_at)
        return by_row

    def first_reading(self, sha256: str) -> FirstReading:
        """Return the first reading of the statement file with this digest, for any batch."""
        first_at, attempts = "", dict[int, int]()
        for details, at in self._run("readings", sha256=sha256):
            first_at = first_at or at
            for number, attempts_then in json.loads(details)["attempts"]:
                attempts.setdefault(number, attempts_then)
        return FirstReading(first_at, attempts)

    def withdrawals(self) -> Sequence[Withdrawal]:
        """Return the withdrawn plans and orders, oldest first."""
        return [note for note in self._notes(NoteKind.WITHDRAWN) if isinstance(note, Withdrawal)]

    def signed_orders(self, batch: str = "") -> Sequence[str]:
        """Return the signed orders carried out for a batch, oldest first. Orders to forget people have no batch."""
        orders = (order for order in self._notes(NoteKind.ORDER) if isinstance(order, SignedOrder))
        return [order.document for order in orders if order.batch == batch]

    def names(self, identity: Identity) -> tuple[EndpointIdentity, ...]:
        """Return all recorded names of the merchant's endpoints, oldest first."""
        notes = self._notes(NoteKind.NAMED)
        return (identity.name, *(note.endpoint for note in notes if isinstance(note, EndpointNote)))

    def clock(self) -> tuple[str, ClockComparison | None]:
        """Return the newest time in the journal, and the last comparison of our clock with the gateway's."""
        ((newest,),) = self._run("newest_time")
        lines = self._run("newest_notes", kind=NoteKind.CLOCK.value, limit=1)
        notes = (parse_note(NoteKind.CLOCK, *columns) for columns in lines)
        return newest or "", next((note for note in notes if isinstance(note, ClockComparison)), None)

    def last_judged_arrival(self) -> int:
        """Return the fact number of the last judged notification's arrival, or 0 if none was judged."""
        ((number,),) = self._run("taken_in")
        return int(number)

    def arrivals(self, limit: int) -> list[tuple[int, str]]:
        """Return up to `limit` notifications to judge, oldest first, each with its fact number."""
        return self._run("arrivals", limit=limit)

    def contested_instructions(self, numbers: Iterable[int]) -> frozenset[int]:
        """Return which of these instructions evidence holds."""
        wanted = sorted(set(numbers))
        return frozenset(number for (number,) in self._run("contested", numbers=wanted)) if wanted else frozenset()

    def orders(self, order_id: str) -> Sequence[Candidate]:
        """Return the instructions of all operations that use or used an order id.

        If the id is unknown and has the form of a later attempt's, this returns the instructions that use or used the
        first attempt's id, each with `is_attempt_unknown`.
        """
        candidates = self._candidates_by_id(order_id)
        if not candidates and (first := first_order_id(order_id)) is not None:
            return unknown_attempt_candidates(first, self._candidates_by_id(first))
        return candidates

    def _notes(self, kind: NoteKind) -> list[Note]:
        """Return the notes of one kind, oldest first."""
        return [parse_note(kind, *columns) for columns in self._run("notes", kind=kind.value)]

    def _candidates_by_id(self, order_id: str) -> list[Candidate]:
        if "\0" in order_id or order_id.encode(errors="replace").decode() != order_id:
            return []  # it has NUL or a lone surrogate, which none of our ids has and no database can look up
        lines = self._run("known_as", order_id=order_id)
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
    """Reads and writes a journal's evidence and notes inside the open transaction."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def _run(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        return self._tables.run(name, **values)

    def record_evidence(
        self, evidence: Sequence[Evidence], words: Mapping[str, OutcomeKind], record: Record, at: str
    ) -> list[Finding]:
        """Record evidence in order, up to the first about a row in flight, and return the findings."""
        findings: list[Finding] = []
        pending: list[Entry | Remark] = []
        before = arrival = self.last_judged_arrival() if any(piece.arrival is not None for piece in evidence) else 0
        for piece in evidence:
            if piece.arrival is not None and piece.arrival <= arrival:
                raise InternalError("a notification was about to be recorded twice")
            ruling = judge_claim(piece.claim, self._lock_candidates(piece.claim.order_id), words)
            if isinstance(ruling, Deferral):
                break
            findings.append(ruling.finding)
            if piece.arrival is not None:
                arrival = piece.arrival
            pending += _build_facts(piece, ruling, at)
            if ruling.outcome is not None:  # the next claim must be judged in the resulting state
                *_, (_, _, has_moved) = record(pending)
                if has_moved is not (ruling.finding is Finding.MOVED):
                    raise InternalError("evidence wrongly moved a row, or did not move its row")
                pending = []
        # This note shares the transaction of the facts, because after a crash in between they would be judged twice.
        if arrival != before:
            pending.append(Remark(JudgedArrivals(arrival), at))
        if pending:
            record(pending)
        return findings

    def settle(self, entries: Sequence[Entry], record: Record) -> None:
        """Record people's decisions, and lift the holds on their rows. Raises `StaleRows` (see `Journal.settle`)."""
        if not entries:
            return
        held_rows = dict(self._run("ready_and_held", numbers=[entry.instruction for entry in entries]))
        if not all(held_rows.values()):
            raise StaleRows
        updated = [replace(entry, heard=_ANSWER) if entry.instruction in held_rows else entry for entry in entries]
        if not all(has_moved for _, _, has_moved in record(updated)):
            raise StaleRows

    def record_notes(
        self, record: Record, *notes: StatementNote | ClockComparison | SignedOrder | ConcurrentNote | None
    ) -> None:
        """Record notes about the whole journal. Raises `DocumentWithdrawn` for an order that was withdrawn."""
        recorded = [note for note in notes if note is not None]
        for order in recorded:
            if isinstance(order, SignedOrder):
                self.require_in_force(order.sha256)
        if any(isinstance(note, Withdrawal) for note in recorded):
            self._tables.lock_withdrawals()
        if recorded:
            record([Remark(note, note.our_time if isinstance(note, ClockComparison) else note.at) for note in recorded])

    def require_in_force(self, sha256: str) -> None:
        """Raise `DocumentWithdrawn` for a withdrawn document. Others cannot be withdrawn until the transaction ends."""
        if sha256:
            self._tables.lock_withdrawals()
            if self._run("withdrawn", sha256=sha256):
                raise DocumentWithdrawn

    def _lock_candidates(self, order_id: str | None) -> Sequence[Candidate]:
        """Lock and return the instructions with an order id. None is sent before the evidence is recorded."""
        candidates = [] if order_id is None else self.orders(order_id)
        if order_id is None or not candidates or not self._tables.lock_rows([row.number for row in candidates]):
            return candidates
        return self.orders(order_id)


def _build_facts(evidence: Evidence, ruling: Ruling, at: str) -> list[Entry | Remark]:
    """Return the facts for evidence: the move that it proves, or a remark about each possible instruction."""
    record = EvidenceRecord(evidence.source, ruling.finding, ruling.meaning, evidence.content, evidence.lasting)
    if ruling.outcome is not None and ruling.instruction is not None and ruling.attempt is not None:
        return [Entry(ruling.instruction, ruling.attempt, Concluded(ruling.outcome), at, heard=record)]
    remarks = (Remark(record, at, other) for other in ruling.others)
    return [Remark(record, at, ruling.instruction, ruling.attempt), *remarks]
