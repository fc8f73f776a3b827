"""Chains evidence, and turns notes of the journal into evidence and back.

Pure: every store shares it.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from typing import NamedTuple, assert_never

from paygw_batch.core.evidence import Candidate, Claim, Evidence, EvidenceSource, Finding, Ruling, SignedOrder
from paygw_batch.core.lifecycle import Resolved
from paygw_batch.errors import InternalError
from paygw_batch.journal.facts.chain import Identity
from paygw_batch.journal.facts.codec import canonical
from paygw_batch.journal.facts.progress import RowProgress, storable
from paygw_batch.journal.values import CarriedOut, ClockSeen, Entry


class EvidenceLine(NamedTuple):
    """One line of evidence, as it is stored. `fact` is the number of the fact it brought about, if it did."""

    number: int
    taken_at: str
    source: str
    spooled: int | None
    spool_hash: str | None
    finding: str
    said: str | None
    instruction: int | None
    attempt: int | None
    fact: int | None
    content: str
    hash: bytes


def start_of(identity: Identity) -> bytes:
    """Return the hash before the first line of evidence: it binds the chain to one journal."""
    return hashlib.sha256(identity.start.hash + b"evidence").digest()


def evidence_line(
    number: int, before: bytes, evidence: Evidence, ruling: Ruling, *, fact: int | None, at: str
) -> EvidenceLine:
    """Return the line that follows the one numbered `number - 1`, whose hash is `before`."""
    line = EvidenceLine(
        number,
        at,
        evidence.source.value,
        evidence.spooled,
        evidence.spool_hash,
        ruling.finding.value,
        None if ruling.said is None else ruling.said.value,
        ruling.instruction,
        ruling.attempt,
        fact,
        storable(evidence.content),
        b"",
    )
    return line._replace(hash=hash_after(before, line))


def lines_of(
    number: int, before: bytes, evidence: Evidence, ruling: Ruling, *, fact: int | None, at: str
) -> Iterator[EvidenceLine]:
    """Yield the lines of one piece of evidence: one, and one more for each further instruction it may be about."""
    line = evidence_line(number, before, evidence, ruling, fact=fact, at=at)
    yield line
    for number_after, other in enumerate(ruling.others, start=number + 1):
        again = replace(evidence, spooled=None, spool_hash=None)
        about = replace(ruling, instruction=other, attempt=None, others=())
        line = evidence_line(number_after, line.hash, again, about, fact=None, at=at)
        yield line


def word_of(entry: Entry) -> tuple[Evidence, Ruling]:
    """Return a person's word about a held row as evidence, and the ruling that it answers the hold."""
    fact = entry.fact
    if not isinstance(fact, Resolved):
        raise InternalError("a row that is held was to be settled by something else than a person's word")
    content = canonical({"as": fact.resolution.value, "by": fact.by, "evidence": storable(fact.evidence)})
    return (
        Evidence(EvidenceSource.PERSON, Claim(None), content),
        Ruling(Finding.RESOLVED, entry.instruction, entry.attempt),
    )


def carried_out_evidence(done: CarriedOut) -> tuple[Evidence, Ruling]:
    """Return as evidence that a statement was carried out."""
    said = {"batch": done.batch, "by": done.by, "sha256": done.sha256, "statement": done.name}
    return Evidence(EvidenceSource.STATEMENT, Claim(None), canonical(said)), Ruling(Finding.CARRIED_OUT)


def carried_out_of(content: str, at: str) -> CarriedOut:
    """Return the `CarriedOut` that `carried_out_evidence` encoded as `content`, with time `at`."""
    said = json.loads(content)
    return CarriedOut(said["batch"], said["statement"], said["sha256"], said["by"], at)


def order_evidence(order: SignedOrder) -> tuple[Evidence, Ruling]:
    """Return as evidence that a signed order was carried out."""
    content = canonical({"batch": order.batch, "document": order.document})
    return Evidence(EvidenceSource.PERSON, Claim(None), content), Ruling(Finding.ORDER)


def order_of(content: str) -> SignedOrder:
    """Return the order that `order_evidence` encoded as `content`."""
    said = json.loads(content)
    return SignedOrder(said["batch"], said["document"])


def clock_evidence(seen: ClockSeen) -> tuple[Evidence, Ruling]:
    """Return as evidence how far our clock was from the gateway's."""
    said = {name: value for name, value in asdict(seen).items() if value or name == "ahead_s"}
    return Evidence(EvidenceSource.REPLY, Claim(None), canonical(said)), Ruling(Finding.CLOCK)


def clock_of(content: str) -> ClockSeen:
    """Return the `ClockSeen` that `clock_evidence` encoded as `content`."""
    return ClockSeen(**json.loads(content))


def note_lines(
    number: int, end: bytes, notes: Iterable[CarriedOut | ClockSeen | SignedOrder | None], *, newest: str
) -> Iterator[EvidenceLine]:
    """Yield the lines of the journal's own notes, after line `number` with hash `end`; none is older than `newest`."""
    for note in notes:
        match note:
            case CarriedOut():
                (evidence, ruling), at = carried_out_evidence(note), note.at
            case ClockSeen():
                (evidence, ruling), at = clock_evidence(note), note.our_time
            case SignedOrder():
                (evidence, ruling), at = order_evidence(note), note.at
            case None:
                continue
            case _:
                assert_never(note)
        line = evidence_line(number + 1, end, evidence, ruling, fact=None, at=max(at, newest))
        yield line
        number, end = line.number, line.hash


def hash_after(before: bytes, line: EvidenceLine) -> bytes:
    """Return the hash of `line` after one whose hash is `before`. Content is last: no other column has a line break."""
    text = "\n".join(str(column) for column in line[:-1])
    return hashlib.sha256(before + text.encode()).digest()


def candidate_of(number: int, client_orderid: str, amount: str, currency: str, progress: RowProgress) -> Candidate:
    """Return an instruction as a claim is held against it."""
    return Candidate(
        number,
        client_orderid,
        amount,
        currency,
        progress.standing,
        progress.sent_orderid,
        has_left_once=progress.first_sent_at in {None, progress.intended_at},
        intended_at=progress.intended_at,
    )


def note_of(source: EvidenceSource, number: int) -> str:
    """Return the sentence that an outcome carries which evidence brought about."""
    return f"By {source.value} (evidence {number})."
