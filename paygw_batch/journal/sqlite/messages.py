"""Writes evidence together with the facts that it causes, in one transaction, and reads it back."""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence

import apsw

from paygw_batch.core.evidence import (
    FOR_A_PERSON,
    HAS_IT,
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
from paygw_batch.core.instruction import first_order_id
from paygw_batch.core.lifecycle import Concluded, FactKind, Intended
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import InternalError, JournalCorrupt, RowsMoved
from paygw_batch.journal.facts.chain import Line
from paygw_batch.journal.facts.evidence_chain import (
    EvidenceLine,
    candidate_of,
    carried_out_of,
    clock_of,
    evidence_line,
    hash_after,
    lines_of,
    note_lines,
    note_of,
    order_of,
    start_of,
    word_of,
)
from paygw_batch.journal.sqlite.connect import fetch
from paygw_batch.journal.sqlite.rows import PROGRESS, STATES, progress_of
from paygw_batch.journal.sqlite.schema import identity_of
from paygw_batch.journal.values import CarriedOut, ClockSeen, Contradiction, Entry, Hold, InboxEnd, WaitingEvidence

_COLUMNS = "number, taken_at, source, spooled, spool_hash, finding, said, instruction, attempt, fact, content, hash"
_PLACES = ", ".join("?" for _ in EvidenceLine._fields)
_FOR_A_PERSON = ", ".join(f"'{finding.value}'" for finding in FOR_A_PERSON)
_NOTES = ", ".join(f"'{finding.value}'" for finding in NOTES)
_HAS_IT = ", ".join(f"'{said.value}'" for said in HAS_IT)
UNANSWERED = f"""e.finding IN ('contradicting', 'ambiguous')
    AND (e.finding = 'contradicting' OR (e.finding = 'ambiguous' AND e.said IN ({_HAS_IT})))
    AND NOT EXISTS (
        SELECT 1 FROM evidence answer
        WHERE answer.instruction = e.instruction AND answer.finding = 'resolved' AND answer.number > e.number
    )"""  # noqa: S608 - constants of ours
"""Of a line `e` of evidence: it says that the gateway has its row, and no person has answered it since."""
_WORDS = (FactKind.RESOLVED_PAID.value, FactKind.RESOLVED_REJECTED.value, FactKind.RESOLVED_NOT_RECEIVED.value)
IS_CONTESTED = f"EXISTS (SELECT 1 FROM evidence e WHERE e.instruction = p.number AND {UNANSWERED})"  # noqa: S608 - ours
"""The condition that evidence speaks against sending an instruction `p`. One that is ready is held."""


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
        for line in lines_of(number, end, one, ruling, fact=_recorded(ruling, record, at), at=at):
            _insert(connection, line)
            number, end = line.number, line.hash
        findings.append(ruling.finding)
    return findings


def settle(
    connection: apsw.Connection,
    entries: Sequence[Entry],
    record: Callable[[Sequence[Entry]], Sequence[Line]],
) -> None:
    """Record people's words, inside the open transaction; on a row that is held, the word is kept as evidence too.

    Raises `RowsMoved` when one does not move its row, or settles a row that is ready and not held.
    """
    numbers = array("q", {entry.instruction for entry in entries})
    query = f"""SELECT p.number, {IS_CONTESTED} FROM carray(?) wanted JOIN progress p ON p.number = wanted.value
        WHERE p.state = 'ready'"""  # noqa: S608 - a constant of ours
    ready = dict(fetch(connection, query, (apsw.carray(numbers),))) if numbers else {}
    if not all(ready.values()):
        raise RowsMoved
    number, end = _end_of(connection)
    for entry, fact in zip(entries, record(entries), strict=True):
        if fact.contradicts is not None:
            raise RowsMoved
        if entry.instruction in ready:
            line = evidence_line(number + 1, end, *word_of(entry), fact=fact.seq, at=fact.at)
            _insert(connection, line)
            number, end = line.number, line.hash


def keep(connection: apsw.Connection, *notes: CarriedOut | ClockSeen | SignedOrder | None, newest: str) -> None:
    """Keep notes of the journal's own, inside the open transaction. No evidence is older than `newest`."""
    for line in note_lines(*_end_of(connection), notes, newest=newest):
        _insert(connection, line)


def carried_out(connection: apsw.Connection, batch: int) -> list[CarriedOut]:
    """Return the statements that were carried out for a batch, oldest first."""
    named = _name_of(connection, batch)
    done = (carried_out_of(content, at) for content, at in _notes(connection, Finding.CARRIED_OUT))
    return [one for one in done if one.batch == named]


def orders(connection: apsw.Connection, batch: int) -> list[str]:
    """Return the documents of the signed orders that were carried out for a batch, oldest first."""
    named = _name_of(connection, batch)
    kept = (order_of(content) for content, _ in _notes(connection, Finding.ORDER))
    return [one.document for one in kept if one.batch == named]


def _name_of(connection: apsw.Connection, batch: int) -> str | None:
    found = fetch(connection, "SELECT batch FROM batch WHERE number = ?", (batch,))
    return found[0][0] if found else None


def clock_seen(connection: apsw.Connection) -> ClockSeen | None:
    """Return how far our clock was from the gateway's when that was last noted."""
    notes = _notes(connection, Finding.CLOCK)
    return clock_of(notes[-1][0]) if notes else None


def newest_time(connection: apsw.Connection) -> str:
    """Return the time of the last evidence; nothing before the first."""
    found = fetch(connection, "SELECT taken_at FROM evidence ORDER BY number DESC LIMIT 1")
    return str(found[0][0]) if found else ""


def _notes(connection: apsw.Connection, finding: Finding) -> list[tuple[str, str]]:
    """Return contents and times of the notes of one kind, oldest first."""
    query = (
        """SELECT content, taken_at FROM evidence INDEXED BY evidence_by_finding WHERE finding = ? ORDER BY number"""
    )
    return fetch(connection, query, (finding.value,))


def held_among(connection: apsw.Connection, numbers: Iterable[int]) -> frozenset[int]:
    """Return which of these instructions evidence speaks against."""
    query = f"SELECT p.value FROM (SELECT value, value AS number FROM carray(?)) p WHERE {IS_CONTESTED}"  # noqa: S608 - ours
    wanted = array("q", set(numbers))
    return (
        frozenset(number for (number,) in fetch(connection, query, (apsw.carray(wanted),))) if wanted else frozenset()
    )


def refused(connection: apsw.Connection, entries: Sequence[Entry]) -> list[bool]:
    """Return for each entry whether it is an intent for an instruction that evidence speaks against."""
    held = held_among(connection, (entry.instruction for entry in entries if isinstance(entry.fact, Intended)))
    return [isinstance(entry.fact, Intended) and entry.instruction in held for entry in entries]


def holds(connection: apsw.Connection, batch: int) -> Mapping[int, Hold]:
    """Return the holds on ready rows of a batch, by row: the latest evidence against each."""
    found = fetch(
        connection,
        f"""SELECT c.row, max(e.number), e.source, e.said, e.taken_at FROM evidence e INDEXED BY evidence_by_finding
        JOIN progress p ON p.number = e.instruction
        JOIN covered c ON c.instruction = p.number AND c.batch = ?
        WHERE p.state = 'ready' AND {UNANSWERED} GROUP BY c.row ORDER BY c.row""",  # noqa: S608 - constants of ours
        (batch,),
    )
    return {row: Hold(number, EvidenceSource(source), said, at) for row, number, source, said, at in found}


def _insert(connection: apsw.Connection, line: EvidenceLine) -> None:
    connection.execute(f"INSERT INTO evidence VALUES ({_PLACES})", line)  # noqa: S608 - question marks of ours


def _recorded(ruling: Ruling, record: Callable[[Sequence[Entry]], Sequence[Line]], at: str) -> int | None:
    """Record the fact that a ruling asks for; return its number."""
    if ruling.outcome is None or ruling.instruction is None or ruling.attempt is None:
        return None
    (line,) = record([Entry(ruling.instruction, ruling.attempt, Concluded(ruling.outcome), at)])
    if (line.contradicts is None) is not (ruling.finding is Finding.MOVED):
        raise InternalError("evidence moved what it should not, or did not move what it should")
    return line.seq


def candidates_of(connection: apsw.Connection, order_id: str) -> list[Candidate]:
    """Return the instructions of every operation that go, or went, by an order id (see the port)."""
    found = _known_as(connection, order_id)
    if not found and (first := first_order_id(order_id)) is not None:
        return later_attempt_of(first, _known_as(connection, first))
    return found


def _known_as(connection: apsw.Connection, order_id: str) -> list[Candidate]:
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


def inbox_end(connection: apsw.Connection) -> InboxEnd:
    """Return how far the notifications of the inbox were taken in."""
    found = fetch(
        connection,
        "SELECT spooled, spool_hash FROM evidence WHERE spooled IS NOT NULL ORDER BY spooled DESC LIMIT 1",
    )
    return InboxEnd(*found[0]) if found else InboxEnd()


def contradictions(connection: apsw.Connection, batch: int | None) -> list[Contradiction]:
    """Return the facts that changed nothing, of one batch or of all, except those that a person has answered since."""
    found = fetch(
        connection,
        """SELECT f.seq, b.batch, c.row, i.client_orderid, f.contradicts, f.kind, f.attempt, f.at
        FROM fact f JOIN instruction i ON i.number = f.instruction
        JOIN covered c ON c.instruction = i.number AND c.batch = coalesce(?1, i.batch)
        JOIN batch b ON b.number = c.batch
        WHERE f.contradicts IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM evidence answer WHERE answer.instruction = f.instruction
                AND answer.finding = 'resolved' AND answer.fact > f.seq
        ) ORDER BY f.seq""",
        (batch,),
    )
    return [
        Contradiction(seq, batch_id, row, client_orderid, STATES[state], kind, attempt, at)
        for seq, batch_id, row, client_orderid, state, kind, attempt, at in found
    ]


def waiting(connection: apsw.Connection, batch: int | None) -> list[WaitingEvidence]:
    """Return the evidence that waits for a person, of one batch or of all: the row has not moved since it came."""
    found = fetch(
        connection,
        f"""SELECT e.number, b.batch, c.row, p.client_orderid, p.state, e.finding, e.said, e.source, e.taken_at
        FROM evidence e INDEXED BY evidence_by_finding JOIN progress p ON p.number = e.instruction
        JOIN covered c ON c.instruction = p.number AND c.batch = coalesce(?1, p.batch)
        JOIN batch b ON b.number = c.batch
        WHERE e.finding IN ({_FOR_A_PERSON}) AND coalesce(p.updated_at, '') <= e.taken_at AND NOT EXISTS (
            SELECT 1 FROM evidence later WHERE later.instruction = e.instruction
                AND later.finding = 'moved' AND later.number > e.number  -- in the same instant: times do not tell
        ) ORDER BY e.number""",  # noqa: S608 - constants of ours
        (batch,),
    )
    return [
        WaitingEvidence(
            number, batch_id, row, order_id, STATES[state], Finding(finding), said, EvidenceSource(source), at
        )
        for number, batch_id, row, order_id, state, finding, said, source, at in found
    ]


def counts(connection: apsw.Connection, batch: int | None) -> Mapping[str, int]:
    """Return how much evidence there is of each finding, about the rows of one batch or in all; no person's word."""
    query = f"SELECT finding, count(*) FROM evidence WHERE finding NOT IN ({_NOTES}) GROUP BY 1 ORDER BY 1"  # noqa: S608 - constants of ours
    if batch is None:
        return dict(fetch(connection, query))
    # From the evidence to its rows: where it is rare, no row of the batch has to be looked at.
    query = f"""SELECT finding, count(*) FROM (
            SELECT e.finding FROM evidence e INDEXED BY evidence_by_finding
            CROSS JOIN instruction i ON i.number = e.instruction WHERE i.batch = ?1
            UNION ALL
            SELECT e.finding FROM evidence e INDEXED BY evidence_by_finding
            CROSS JOIN known k ON k.batch = ?1 AND k.instruction = e.instruction
        ) WHERE finding NOT IN ({_NOTES}) GROUP BY 1 ORDER BY 1"""  # noqa: S608 - constants of ours
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
    """Raise `JournalCorrupt` unless evidence that moved or contradicted a row, or is a word, names its fact."""
    is_a_fact = line.finding in {Finding.MOVED, Finding.CONTRADICTING, Finding.RESOLVED}
    if not is_a_fact and line.fact is None:
        return
    query = "SELECT instruction, attempt, contradicts IS NULL, kind FROM fact WHERE seq = ?"
    kinds = _WORDS if line.finding == Finding.RESOLVED else {line.said}
    wanted = [(line.instruction, line.attempt, line.finding != Finding.CONTRADICTING, kind) for kind in kinds]
    if not is_a_fact or not set(fetch(connection, query, (line.fact,))) & set(wanted):
        raise JournalCorrupt(f"Evidence {line.number} is not what fact {line.fact} says.")


def _end_of(connection: apsw.Connection) -> tuple[int, bytes]:
    found = fetch(connection, "SELECT number, hash FROM evidence ORDER BY number DESC LIMIT 1")
    return found[0] if found else (0, start_of(identity_of(connection)))
