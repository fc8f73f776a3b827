"""Evidence on disk: written with the facts it brings about in one transaction, and read back."""

from collections.abc import Callable, Mapping, Sequence

import apsw

from paygw_batch.core.evidence import (
    FOR_A_PERSON,
    Candidate,
    Evidence,
    Finding,
    Ruling,
    Source,
    Waits,
    rule,
)
from paygw_batch.core.lifecycle import Concluded
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import InternalError, JournalCorrupt
from paygw_batch.journal.chain import Line
from paygw_batch.journal.connection import fetch
from paygw_batch.journal.evidence import EvidenceLine, candidate_of, evidence_line, hash_after, note_of, start_of
from paygw_batch.journal.port import Entry, WaitingEvidence
from paygw_batch.journal.rows import PROGRESS, STATES, progress_of
from paygw_batch.journal.schema import identity_of

_COLUMNS = "number, taken_at, source, spooled, spool_hash, finding, said, instruction, attempt, fact, content, hash"
_PLACES = ", ".join("?" for _ in EvidenceLine._fields)


def take_in(
    connection: apsw.Connection,
    evidence: Sequence[Evidence],
    words: Mapping[str, OutcomeKind],
    record: Callable[[Sequence[Entry]], Sequence[Line]],
    at: str,
) -> list[Finding]:
    """Keep evidence in order, inside the open transaction, up to the first about a row in flight; return the findings.

    `record` appends facts to the chain and moves their instructions.
    """
    number, end = _end_of(connection)
    findings = []
    for one in evidence:
        number += 1
        candidates = candidates_of(connection, one.claim.order_id) if one.claim.order_id is not None else []
        ruling = rule(one.claim, candidates, words, note=note_of(one.source, number))
        if isinstance(ruling, Waits):
            break
        line = evidence_line(number, end, one, ruling, fact=_recorded(ruling, record, at), at=at)
        connection.execute(f"INSERT INTO evidence VALUES ({_PLACES})", line)  # noqa: S608 - question marks of ours
        end = line.hash
        findings.append(ruling.finding)
    return findings


def _recorded(ruling: Ruling, record: Callable[[Sequence[Entry]], Sequence[Line]], at: str) -> int | None:
    """Record the fact that a ruling asks for; return its number."""
    if ruling.outcome is None or ruling.instruction is None or ruling.attempt is None:
        return None
    (line,) = record([Entry(ruling.instruction, ruling.attempt, Concluded(ruling.outcome), at)])
    if (line.contradicts is None) is not (ruling.finding is Finding.MOVED):
        raise InternalError("evidence moved what it should not, or did not move what it should")
    return line.seq


def candidates_of(connection: apsw.Connection, order_id: str) -> list[Candidate]:
    """Return the instructions of every operation that go, or went, by an order id."""
    if not order_id.isascii() and order_id.encode(errors="replace").decode() != order_id:
        return []  # half a surrogate pair: no order id of ours, and nothing that SQLite could look up
    found = fetch(
        connection,
        f"""SELECT p.number, p.client_orderid, p.amount, p.currency, {PROGRESS}
        FROM progress p WHERE p.number IN (
            SELECT instruction FROM order_id WHERE operation IN (SELECT operation FROM batch) AND order_id = ?
        ) ORDER BY p.number""",  # noqa: S608 - a constant of ours
        (order_id,),
    )
    return [
        candidate_of(number, client_orderid, amount, currency, progress_of(columns))
        for number, client_orderid, amount, currency, *columns in found
    ]


def spool_end(connection: apsw.Connection) -> tuple[int, str]:
    """Return number and hash of the last notification taken from the spool; 0 and nothing before the first."""
    found = fetch(
        connection,
        "SELECT spooled, spool_hash FROM evidence WHERE spooled IS NOT NULL ORDER BY spooled DESC LIMIT 1",
    )
    return found[0] if found else (0, "")


def waiting(connection: apsw.Connection, batch: int | None) -> list[WaitingEvidence]:
    """Return the evidence that waits for a person, of one batch or of all: the row has not moved since it came."""
    findings = ", ".join(f"'{finding.value}'" for finding in FOR_A_PERSON)
    found = fetch(
        connection,
        f"""SELECT e.number, b.batch, c.row, p.client_orderid, p.state, e.finding, e.said, e.source, e.taken_at
        FROM evidence e INDEXED BY evidence_by_finding JOIN progress p ON p.number = e.instruction
        JOIN covered c ON c.instruction = p.number AND c.batch = coalesce(?1, p.batch)
        JOIN batch b ON b.number = c.batch
        WHERE e.finding IN ({findings}) AND coalesce(p.updated_at, '') <= e.taken_at ORDER BY e.number""",  # noqa: S608 - ours
        (batch,),
    )
    return [
        WaitingEvidence(number, batch_id, row, order_id, STATES[state], Finding(finding), said, Source(source), at)
        for number, batch_id, row, order_id, state, finding, said, source, at in found
    ]


def counts(connection: apsw.Connection, batch: int | None) -> Mapping[str, int]:
    """Return how much evidence there is of each finding, about the rows of one batch or in all."""
    query = "SELECT finding, count(*) FROM evidence GROUP BY 1 ORDER BY 1"
    if batch is None:
        return dict(fetch(connection, query))
    # From the evidence to its rows: where it is rare, no row of the batch has to be looked at.
    query = """SELECT finding, count(*) FROM (
            SELECT e.finding FROM evidence e INDEXED BY evidence_by_finding
            CROSS JOIN instruction i ON i.number = e.instruction WHERE i.batch = ?1
            UNION ALL
            SELECT e.finding FROM evidence e INDEXED BY evidence_by_finding
            CROSS JOIN known k ON k.batch = ?1 AND k.instruction = e.instruction
        ) GROUP BY 1 ORDER BY 1"""
    return dict(fetch(connection, query, (batch,)))


def check(connection: apsw.Connection) -> int:
    """Follow the chain of evidence from its start; return how much there is. Raises `JournalCorrupt`."""
    before, number = start_of(identity_of(connection)), 0
    query = f"SELECT {_COLUMNS} FROM evidence ORDER BY number"  # noqa: S608 - a constant of ours
    for columns in connection.execute(query):
        line = EvidenceLine(*columns)
        if line.number != number + 1:
            raise JournalCorrupt(f"Evidence {number + 1} is missing from the journal.")
        if hash_after(before, line) != line.hash:
            raise JournalCorrupt(f"Evidence {line.number} was changed, or the one before it: its hash does not follow.")
        _check_fact(connection, line)
        before, number = line.hash, line.number
    return number


def _check_fact(connection: apsw.Connection, line: EvidenceLine) -> None:
    """Raise `JournalCorrupt` unless evidence that moved or contradicted a row names the fact that says so."""
    is_a_fact = line.finding in {Finding.MOVED, Finding.CONTRADICTING}
    if not is_a_fact and line.fact is None:
        return
    query = "SELECT instruction, attempt, kind, contradicts IS NULL FROM fact WHERE seq = ?"
    wanted = [(line.instruction, line.attempt, line.said, line.finding == Finding.MOVED)]
    if not is_a_fact or fetch(connection, query, (line.fact,)) != wanted:
        raise JournalCorrupt(f"Evidence {line.number} is not what fact {line.fact} says.")


def _end_of(connection: apsw.Connection) -> tuple[int, bytes]:
    found = fetch(connection, "SELECT number, hash FROM evidence ORDER BY number DESC LIMIT 1")
    return found[0] if found else (0, start_of(identity_of(connection)))
