"""Evidence in the journal: its chain, what it is held against, and what waits for a person.

Pure; both stores share it, and `evidence_disk.py` puts it on disk.
"""

import hashlib
from typing import NamedTuple

from paygw_batch.core.evidence import Candidate, Evidence, Ruling, Source
from paygw_batch.journal.chain import Identity
from paygw_batch.journal.progress import Progress, storable


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
    """Return what the first line of evidence is linked to: it binds the chain to one journal."""
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


def hash_after(before: bytes, line: EvidenceLine) -> bytes:
    """Return the hash of `line` after one whose hash is `before`. Content stands last: no other column has a break."""
    text = "\n".join(str(column) for column in line[:-1])
    return hashlib.sha256(before + text.encode()).digest()


def candidate_of(number: int, client_orderid: str, amount: str, currency: str, progress: Progress) -> Candidate:
    """Return an instruction as a claim is held against it."""
    return Candidate(
        number,
        client_orderid,
        amount,
        currency,
        progress.standing,
        progress.sent_orderid,
        has_left_once=progress.first_sent_at in {None, progress.intended_at},
    )


def note_of(source: Source, number: int) -> str:
    """Return the sentence that an outcome carries which evidence brought about."""
    return f"By {source.value} (evidence {number})."
