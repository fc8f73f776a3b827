"""Chains evidence, and turns notes of the journal into evidence and back, for all stores."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import NamedTuple, assert_never

from paygw_batch.core.evidence import Claim, Evidence, EvidenceSource, Finding, Ruling, SignedOrder
from paygw_batch.core.lifecycle import Resolved
from paygw_batch.errors import DocumentWithdrawn, InternalError
from paygw_batch.journal.facts.codec import NewSalt
from paygw_batch.journal.facts.standing import storable
from paygw_batch.journal.values import CarriedOut, ClockSeen, Entry, FirstReading, Identity, Withdrawal, canonical


class EvidenceLine(NamedTuple):
    """One line of evidence, as stored. `fact` is the number of the fact that it caused, if any.

    The salt (random bytes in hex) protects a forgotten content, whose hash remains.
    """

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
    salt: str
    content: str
    hash: bytes


class EvidenceEnd(NamedTuple):
    """The end of the chain of evidence: the number of the last line, and its hash."""

    number: int
    hash: bytes


def start_of(identity: Identity) -> bytes:
    """Return the hash before the first line of evidence: it binds the chain to one journal."""
    return hashlib.sha256(identity.start.hash + b"evidence").digest()


def _line_after(
    end: EvidenceEnd, evidence: Evidence, ruling: Ruling, *, fact: int | None, at: str, salt: str
) -> EvidenceLine:
    line = EvidenceLine(
        end.number + 1,
        at,
        evidence.source.value,
        evidence.spooled,
        evidence.spool_hash,
        ruling.finding.value,
        None if ruling.said is None else ruling.said.value,
        ruling.instruction,
        ruling.attempt,
        fact,
        salt,
        storable(evidence.content).replace("\0", "?"),  # not every store can keep NUL in a text
        b"",
    )
    return line._replace(hash=hash_after(end.hash, line))


def lines_of(
    end: EvidenceEnd, evidence: Evidence, ruling: Ruling, new_salt: NewSalt, *, fact: int | None, at: str
) -> Iterator[EvidenceLine]:
    """Yield the lines of one piece of evidence: one for each instruction that it may be about, and at least one."""
    line = _line_after(end, evidence, ruling, fact=fact, at=at, salt=new_salt().hex())
    yield line
    for other in ruling.others:
        again = replace(evidence, spooled=None, spool_hash=None)
        about = replace(ruling, instruction=other, attempt=None, others=())
        line = _line_after(EvidenceEnd(line.number, line.hash), again, about, fact=None, at=at, salt=new_salt().hex())
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
    """Return the evidence that a statement was carried out."""
    said: dict[str, object] = {"batch": done.batch, "by": done.by, "sha256": done.sha256, "statement": done.name}
    said |= {"attempts": done.attempts} if done.attempts else {}
    return Evidence(EvidenceSource.STATEMENT, Claim(None), canonical(said)), Ruling(Finding.CARRIED_OUT)


def carried_out_of(content: str, at: str) -> CarriedOut:
    """Return the `CarriedOut` that `carried_out_evidence` encoded as `content`, with time `at`."""
    said = json.loads(content)
    attempts = tuple((number, attempts) for number, attempts in said.get("attempts", ()))
    return CarriedOut(said["batch"], said["statement"], said["sha256"], said["by"], at, attempts)


def first_reading_of(sha256: str, lines: Iterable[tuple[str, str]]) -> FirstReading:
    """Return the time when a file was first read, from the evidence of statements, oldest first."""
    first_at, attempts = "", dict[int, int]()
    for content, at in lines:
        said = json.loads(content)
        if said.get("sha256") == sha256:
            first_at = first_at or at
            for number, attempts_then in said.get("attempts", ()):
                attempts.setdefault(number, attempts_then)
    return FirstReading(first_at, attempts)


def lost_orders_evidence(orders: Sequence[str], by: str) -> tuple[Evidence, Ruling]:
    """Return evidence of orders that left in commits lost by the database, and of who accepted the loss."""
    content = canonical({"by": by, "orders": list(orders)})
    return Evidence(EvidenceSource.WITNESS, Claim(None), content), Ruling(Finding.UNKNOWN_ORDER)


def lost_orders_of(content: str) -> Sequence[str]:
    """Return the orders that `lost_orders_evidence` encoded as `content`."""
    return [str(order) for order in json.loads(content)["orders"]]


def order_evidence(order: SignedOrder) -> tuple[Evidence, Ruling]:
    """Return the evidence that a signed order was carried out."""
    content = canonical({"batch": order.batch, "document": order.document})
    return Evidence(EvidenceSource.PERSON, Claim(None), content), Ruling(Finding.ORDER)


def order_of(content: str) -> SignedOrder:
    """Return the order that `order_evidence` encoded as `content`."""
    said = json.loads(content)
    return SignedOrder(said["batch"], said["document"])


def order_rows(content: str) -> tuple[str, frozenset[int]]:
    """Return the batch of an order that `order_evidence` encoded as `content`, and the rows that it names."""
    order = order_of(content)
    try:
        rows = json.loads(order.document)["content"]["rows"]
        return order.batch, frozenset(one["row"] for one in rows)
    except (ValueError, TypeError, KeyError):
        return order.batch, frozenset()


def withdrawal_evidence(withdrawal: Withdrawal) -> tuple[Evidence, Ruling]:
    """Return the evidence that a signed document was withdrawn."""
    said = {"by": withdrawal.by, "document": withdrawal.document, "sha256": withdrawal.sha256}
    return Evidence(EvidenceSource.PERSON, Claim(None), canonical(said)), Ruling(Finding.WITHDRAWN)


def withdrawal_of(content: str, at: str) -> Withdrawal:
    """Return the `Withdrawal` that `withdrawal_evidence` encoded as `content`, with time `at`."""
    said = json.loads(content)
    return Withdrawal(said["sha256"], said["by"], said["document"], at)


def require_in_force(sha256: str, withdrawals: Iterable[Withdrawal]) -> None:
    """Raise `DocumentWithdrawn` if the signed document with this digest was withdrawn."""
    if sha256 and any(one.sha256 == sha256 for one in withdrawals):
        raise DocumentWithdrawn


def clock_evidence(seen: ClockSeen) -> tuple[Evidence, Ruling]:
    """Return the evidence of the difference between our clock and the gateway's."""
    said = {name: value for name, value in asdict(seen).items() if value or name == "ahead_s"}
    return Evidence(EvidenceSource.REPLY, Claim(None), canonical(said)), Ruling(Finding.CLOCK)


def clock_of(content: str) -> ClockSeen:
    """Return the `ClockSeen` that `clock_evidence` encoded as `content`."""
    return ClockSeen(**json.loads(content))


Note = CarriedOut | ClockSeen | SignedOrder | Withdrawal
"""A note of the journal's own."""


def note_evidence(note: Note) -> tuple[Evidence, Ruling, str]:
    """Return a note of the journal's own as evidence, and its time."""
    match note:
        case CarriedOut():
            return *carried_out_evidence(note), note.at
        case ClockSeen():
            return *clock_evidence(note), note.our_time
        case SignedOrder():
            return *order_evidence(note), note.at
        case Withdrawal():
            return *withdrawal_evidence(note), note.at
        case _:
            assert_never(note)


def hash_after(before: bytes, line: EvidenceLine) -> bytes:
    """Return the hash of `line` after the hash `before`. Content is last: no other column can contain a line break."""
    text = "\n".join(str(column) for column in line[:-1])
    return hashlib.sha256(before + text.encode()).digest()


def note_of(source: EvidenceSource, number: int) -> str:
    """Return the sentence for an outcome that evidence caused."""
    return f"By {source.value} (evidence {number})."
