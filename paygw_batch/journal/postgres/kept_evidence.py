"""Writes evidence together with the facts that it causes, from the desk, and reads it back."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from psycopg import Connection

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
from paygw_batch.core.instruction import first_order_id
from paygw_batch.core.lifecycle import Concluded, FactKind
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import InternalError, JournalCorrupt, RowsMoved
from paygw_batch.journal.facts.chain import Identity
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
from paygw_batch.journal.postgres.session import Row, fetch
from paygw_batch.journal.postgres.standing_lines import PROGRESS, STATE_OF, progress_from
from paygw_batch.journal.values import CarriedOut, ClockSeen, Contradiction, Entry, Hold, InboxEnd, WaitingEvidence

Record = Callable[[Sequence[Entry]], Sequence[tuple[int, str, bool]]]
"""Appends facts inside the open transaction; returns of each its number, its time, and whether it moved its row."""
_COLUMNS = ", ".join(EvidenceLine._fields)
_INSERT = f"INSERT INTO evidence ({_COLUMNS}) VALUES ({', '.join(['%s'] * len(EvidenceLine._fields))})"  # noqa: S608 - ours
_FOR_A_PERSON = [finding.value for finding in FOR_A_PERSON]
_NOTES = [finding.value for finding in NOTES]
ABOUT_ROWS = """SELECT e.*, NULL::bigint AS row FROM {evidence} e
        WHERE e.instruction BETWEEN (SELECT min(first) FROM chunk WHERE batch = %s)
            AND (SELECT max(last) FROM chunk WHERE batch = %s)
    UNION ALL
    SELECT e.*, k.row FROM known k JOIN {evidence} e ON e.instruction = k.instruction WHERE k.batch = %s"""
"""The evidence about the rows of a batch: those that it brought are in its chunks, and looked up by their numbers."""
_EVERYTHING = "SELECT e.*, NULL::bigint AS row FROM {evidence} e"
_PROGRESS_OF = "CROSS JOIN LATERAL (SELECT * FROM progress WHERE number = e.instruction OFFSET 0) p"
"""OFFSET 0: its row is looked up for each, and never all rows of the journal for some of them."""
_CONTRADICTING = "SELECT f.*, NULL::bigint AS row FROM fact f WHERE f.contradicts IS NOT NULL"
_CONTRADICTING_ROWS = f"""{_CONTRADICTING} AND f.batch = %s
    UNION ALL
    SELECT f.*, k.row FROM known k JOIN fact f ON f.instruction = k.instruction
        WHERE k.batch = %s AND f.contradicts IS NOT NULL"""  # noqa: S608 - constants of ours
_WORDS = (FactKind.RESOLVED_PAID.value, FactKind.RESOLVED_REJECTED.value, FactKind.RESOLVED_NOT_RECEIVED.value)


def take_in_evidence(
    connection: Connection[Row],
    identity: Identity,
    evidence: Sequence[Evidence],
    words: Mapping[str, OutcomeKind],
    record: Record,
    at: str,
) -> list[Finding]:
    """Keep evidence in order, inside the open transaction, up to the first about a row in flight."""
    number, end = _end_of(connection, identity)
    findings = []
    for given in evidence:
        one = replace(given, content=given.content.replace("\0", "?"))
        number += 1
        candidates = _locked_candidates(connection, one.claim.order_id)
        ruling = rule(one.claim, candidates, words, note=note_of(one.source, number))
        if isinstance(ruling, Waits):
            break
        for line in lines_of(number, end, one, ruling, fact=_recorded(ruling, record, at), at=at):
            fetch(connection, _INSERT, line)
            number, end = line.number, line.hash
        findings.append(ruling.finding)
    return findings


def settle_rows(connection: Connection[Row], identity: Identity, entries: Sequence[Entry], record: Record) -> None:
    """Record people's words, inside the open transaction; on a row that is held, the word is kept as evidence too.

    Raises `RowsMoved` when one does not move its row, or settles a row that is ready and not held.
    """
    query = """SELECT p.number, EXISTS (SELECT FROM unanswered e WHERE e.instruction = p.number)
        FROM progress p WHERE p.number = ANY (%s) AND p.state = 'ready'"""
    ready: dict[int, bool] = dict(fetch(connection, query, ([entry.instruction for entry in entries],)))
    if not all(ready.values()):
        raise RowsMoved
    number, end = _end_of(connection, identity)
    for entry, (fact, at, has_moved) in zip(entries, record(entries), strict=True):
        if not has_moved:
            raise RowsMoved
        if entry.instruction in ready:
            line = evidence_line(number + 1, end, *word_of(entry), fact=fact, at=at)
            fetch(connection, _INSERT, line)
            number, end = line.number, line.hash


def keep_notes(
    connection: Connection[Row], identity: Identity, *notes: CarriedOut | ClockSeen | SignedOrder | None, newest: str
) -> None:
    """Keep notes of the journal's own, inside the open transaction. No evidence is older than `newest`."""
    for line in note_lines(*_end_of(connection, identity), notes, newest=newest):
        fetch(connection, _INSERT, line)


def carried_out_in(connection: Connection[Row], batch: int) -> list[CarriedOut]:
    """Return the statements that were carried out for a batch, oldest first."""
    named = _name_of(connection, batch)
    done = (carried_out_of(content, at) for content, at in _notes(connection, Finding.CARRIED_OUT))
    return [one for one in done if one.batch == named]


def orders_in(connection: Connection[Row], batch: int) -> list[str]:
    """Return the documents of the signed orders that were carried out for a batch, oldest first."""
    named = _name_of(connection, batch)
    kept = (order_of(content) for content, _ in _notes(connection, Finding.ORDER))
    return [one.document for one in kept if one.batch == named]


def _name_of(connection: Connection[Row], batch: int) -> str | None:
    found = fetch(connection, "SELECT batch FROM batch WHERE number = %s", (batch,))
    return found[0][0] if found else None


def clock_in(connection: Connection[Row]) -> ClockSeen | None:
    """Return how far our clock was from the gateway's when that was last noted."""
    notes = _notes(connection, Finding.CLOCK)
    return clock_of(notes[-1][0]) if notes else None


def newest_evidence(connection: Connection[Row]) -> str:
    """Return the time of the last evidence; nothing before the first."""
    found = fetch(connection, "SELECT taken_at FROM evidence ORDER BY number DESC LIMIT 1")
    return str(found[0][0]) if found else ""


def taken_of_inbox(connection: Connection[Row]) -> InboxEnd:
    """Return how far the notifications of the inbox were taken in."""
    query = "SELECT spooled, spool_hash FROM evidence WHERE spooled IS NOT NULL ORDER BY spooled DESC LIMIT 1"
    found = fetch(connection, query)
    return InboxEnd(*found[0]) if found else InboxEnd()


def _notes(connection: Connection[Row], finding: Finding) -> list[Row]:
    return fetch(
        connection, "SELECT content, taken_at FROM evidence WHERE finding = %s ORDER BY number", (finding.value,)
    )


def contested(connection: Connection[Row], numbers: Iterable[int]) -> frozenset[int]:
    """Return which of these instructions evidence speaks against."""
    query = "SELECT DISTINCT instruction FROM unanswered WHERE instruction = ANY (%s)"
    return frozenset(number for (number,) in fetch(connection, query, (sorted(set(numbers)),)))


def holds_in(connection: Connection[Row], batch: int) -> Mapping[int, Hold]:
    """Return the holds on ready rows of a batch, by row: the latest evidence against each."""
    found = fetch(
        connection,
        f"""SELECT DISTINCT ON (1) coalesce(e.row, p.row), e.number, e.source, e.said, e.taken_at
        FROM ({ABOUT_ROWS.format(evidence="unanswered")}) e {_PROGRESS_OF}
        WHERE p.state = 'ready' ORDER BY 1, e.number DESC""",  # noqa: S608 - constants of ours
        (batch,) * 3,
    )
    return {row: Hold(number, EvidenceSource(source), said, at) for row, number, source, said, at in found}


def _recorded(ruling: Ruling, record: Record, at: str) -> int | None:
    """Record the fact that a ruling asks for; return its number."""
    if ruling.outcome is None or ruling.instruction is None or ruling.attempt is None:
        return None
    ((number, _, has_moved),) = record([Entry(ruling.instruction, ruling.attempt, Concluded(ruling.outcome), at)])
    if has_moved is not (ruling.finding is Finding.MOVED):
        raise InternalError("evidence moved what it should not, or did not move what it should")
    return number


def _locked_candidates(connection: Connection[Row], order_id: str | None) -> list[Candidate]:
    """Return the instructions that go by an order id; until the evidence is kept, no worker sends one of them."""
    found = [] if order_id is None else candidates_in(connection, order_id)
    if order_id is None or not found:
        return found
    fetch(connection, "SELECT lock_standing(%s)", ([one.number for one in found],))
    return candidates_in(connection, order_id)


def candidates_in(connection: Connection[Row], order_id: str) -> list[Candidate]:
    """Return the instructions of every operation that go, or went, by an order id (see the port)."""
    found = _known_as(connection, order_id)
    if not found and (first := first_order_id(order_id)) is not None:
        return later_attempt_of(first, _known_as(connection, first))
    return found


def _known_as(connection: Connection[Row], order_id: str) -> list[Candidate]:
    if "\0" in order_id or order_id.encode(errors="replace").decode() != order_id:
        return []  # no order id of ours, and nothing that a database could look up
    found = fetch(
        connection,
        f"""SELECT p.number, p.client_orderid, p.amount, p.currency, {PROGRESS}
        FROM progress p WHERE p.number IN (
            SELECT instruction FROM order_id
            WHERE operation IN (SELECT DISTINCT operation FROM batch) AND order_id = %s
        ) ORDER BY p.number""",  # noqa: S608 - a constant of ours
        (order_id,),
    )
    return [
        candidate_of(number, client_orderid, amount, currency, progress_from(columns))
        for number, client_orderid, amount, currency, *columns in found
    ]


def contradictions_in(connection: Connection[Row], batch: int | None) -> list[Contradiction]:
    """Return the facts that changed nothing, of one batch or of all, except those that a person has answered since."""
    facts, about = (_CONTRADICTING, ()) if batch is None else (_CONTRADICTING_ROWS, (batch, batch))
    found = fetch(
        connection,
        f"""SELECT f.number, b.batch, coalesce(f.row, i.row), i.client_orderid, f.contradicts, f.kind, f.attempt, f.at
        FROM ({facts}) f CROSS JOIN LATERAL (SELECT * FROM instruction WHERE number = f.instruction OFFSET 0) i
        JOIN batch b ON b.number = coalesce(%s, i.batch)
        WHERE NOT EXISTS (
            SELECT FROM evidence answer JOIN fact word ON word.instruction = f.instruction AND word.number = answer.fact
            WHERE answer.instruction = f.instruction AND answer.finding = 'resolved' AND word.nth > f.nth
        ) ORDER BY f.number""",  # noqa: S608 - constants of ours
        (*about, batch),
    )
    return [
        Contradiction(number, batch_id, row, client_orderid, STATE_OF[state], kind, attempt, at)
        for number, batch_id, row, client_orderid, state, kind, attempt, at in found
    ]


def waiting_in(connection: Connection[Row], batch: int | None) -> list[WaitingEvidence]:
    """Return the evidence that waits for a person, of one batch or of all: the row has not moved since it came."""
    evidence, about = (_EVERYTHING, ()) if batch is None else (ABOUT_ROWS, (batch,) * 3)
    found = fetch(
        connection,
        f"""SELECT e.number, b.batch, coalesce(e.row, p.row), p.client_orderid, p.state, e.finding, e.said, e.source,
            e.taken_at
        FROM ({evidence.format(evidence="evidence")}) e {_PROGRESS_OF} JOIN batch b ON b.number = coalesce(%s, p.batch)
        WHERE e.finding = ANY (%s) AND coalesce(p.updated_at, '') <= e.taken_at AND NOT EXISTS (
            SELECT FROM evidence later WHERE later.instruction = e.instruction
                AND later.finding = 'moved' AND later.number > e.number  -- in the same instant: times do not tell
        ) ORDER BY e.number""",  # noqa: S608 - constants of ours
        (*about, batch, _FOR_A_PERSON),
    )
    return [
        WaitingEvidence(
            number, batch_id, row, order_id, STATE_OF[state], Finding(finding), said, EvidenceSource(source), at
        )
        for number, batch_id, row, order_id, state, finding, said, source, at in found
    ]


def findings_in(connection: Connection[Row], batch: int | None) -> Mapping[str, int]:
    """Return how much evidence there is of each finding, about the rows of one batch or in all; no person's word."""
    if batch is None:
        query = "SELECT finding, count(*) FROM evidence WHERE finding <> ALL (%s) GROUP BY 1 ORDER BY 1"
        return dict(fetch(connection, query, (_NOTES,)))
    query = f"""SELECT e.finding, count(*) FROM ({ABOUT_ROWS.format(evidence="evidence")}) e
        WHERE e.finding <> ALL (%s) GROUP BY 1 ORDER BY 1"""  # noqa: S608 - constants of ours
    return dict(fetch(connection, query, (batch, batch, batch, _NOTES)))


def check_evidence(connection: Connection[Row], identity: Identity) -> int:
    """Follow the chain of evidence from its start; return how much there is. Raises `JournalCorrupt`."""
    before, number = start_of(identity), 0
    for columns in fetch(connection, f"SELECT {_COLUMNS} FROM evidence ORDER BY number"):  # noqa: S608 - ours
        line = EvidenceLine(*columns)
        if line.number != number + 1:
            raise JournalCorrupt(f"Evidence {number + 1} is missing from the journal.")
        if hash_after(before, line) != line.hash:
            raise JournalCorrupt(f"Evidence {line.number} was changed, or the one before it: its hash does not follow.")
        _check_fact(connection, line)
        before, number = line.hash, line.number
    return number


def _check_fact(connection: Connection[Row], line: EvidenceLine) -> None:
    """Raise `JournalCorrupt` unless evidence that moved or contradicted a row, or is a word, names its fact."""
    is_a_fact = line.finding in {Finding.MOVED, Finding.CONTRADICTING, Finding.RESOLVED}
    if not is_a_fact and line.fact is None:
        return
    query = "SELECT attempt, contradicts IS NULL, kind FROM fact WHERE instruction = %s AND number = %s"
    kinds = _WORDS if line.finding == Finding.RESOLVED else {line.said}
    wanted = [(line.attempt, line.finding != Finding.CONTRADICTING, kind) for kind in kinds]
    if not is_a_fact or not set(fetch(connection, query, (line.instruction, line.fact))) & set(wanted):
        raise JournalCorrupt(f"Evidence {line.number} is not what fact {line.fact} says.")


def _end_of(connection: Connection[Row], identity: Identity) -> tuple[int, bytes]:
    found = fetch(connection, "SELECT number, hash FROM evidence ORDER BY number DESC LIMIT 1")
    return (found[0][0], found[0][1]) if found else (0, start_of(identity))
