"""Checks the journal in PostgreSQL: follows every chain and replays every fact, a group of lines at a time."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter

from psycopg import Connection

from paygw_batch.core.lifecycle import State
from paygw_batch.core.spelling import spelled_alike
from paygw_batch.errors import InternalError, JournalCorrupt
from paygw_batch.journal.facts.chain import Identity, Line, Link, follow
from paygw_batch.journal.facts.codec import BATCH_OPENED, BatchOpened, decode_batch
from paygw_batch.journal.facts.digest import OpeningDigests
from paygw_batch.journal.facts.fact_replay import InstructionReplay, LinesByInstruction, StoredFact
from paygw_batch.journal.port import VerifyProgress
from paygw_batch.journal.postgres.batch_copy import payee_words_of
from paygw_batch.journal.postgres.kept_evidence import check_evidence
from paygw_batch.journal.postgres.leasing.leases import DESK
from paygw_batch.journal.postgres.session import Row, fetch, streamed
from paygw_batch.journal.postgres.standing_lines import CHUNK_OF_ROW, PROGRESS, columns_of, progress_from
from paygw_batch.journal.values import Known, NewBatch, reply_sha256

_SHOWN_EVERY = 10_000
_CHANGED, _EMPTIED = "never_changed", "never_emptied"
_GUARDED = (
    *("migration", "identity", "batch", "page", "instruction", "known", "payee_words", "seal", "fact", "evidence"),
    *("limit_change", "move", "plan_document", "reply", "order_id", "standing", "chunk", "segment", "worker", "run"),
    *("chunk_tally", "host", "roll_call", "roll_answer"),
)
_GUARDS = {
    *((table, trigger) for table in _GUARDED for trigger in (_CHANGED, _EMPTIED)),
    *(("segment", "sealed_is_final"), ("segment", "roll_is_complete"), ("chunk", "range_is_final")),
    ("run", "stop_is_final"),
}
"""The triggers that refuse changes, by table."""
_SWITCHED_ON = """SELECT c.relname, t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
    WHERE c.relnamespace = 'paygw'::regnamespace AND NOT t.tgisinternal AND t.tgenabled = 'A'"""
_UNIQUE = """SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE c.relnamespace = 'paygw'::regnamespace AND i.indisunique AND i.indisvalid
        AND c.relname IN ('fact_one_intent', 'fact_nth', 'segment_unsealed', 'order_id_pkey', 'run_unfinished')
    ORDER BY 1"""
_UNIQUE_WANTED = [("fact_nth",), ("fact_one_intent",), ("order_id_pkey",), ("run_unfinished",), ("segment_unsealed",)]
_FACTS = (
    "SELECT instruction, nth, number, at, kind, attempt, contradicts, details FROM fact WHERE instruction IS NOT NULL"
)


def verify_journal(connection: Connection[Row], identity: Identity, progress: VerifyProgress) -> Mapping[str, int]:
    """Replay the whole journal, inside the open transaction, and return the counts.

    Raises `JournalCorrupt`, naming the first wrong place.
    """
    if set(fetch(connection, _SWITCHED_ON)) != _GUARDS or fetch(connection, _UNIQUE) != _UNIQUE_WANTED:
        raise JournalCorrupt("The journal is not as it was made: the guards of its tables differ.")
    batches = _follow_chains(connection, identity)
    _check_seals(connection)
    for number, opened in batches.items():
        _check_batch(connection, number, opened)
    if fetch(connection, "SELECT number FROM batch ORDER BY 1") != [(number,) for number in sorted(batches)]:
        raise JournalCorrupt("The batches of the journal are not those that its facts opened.")
    _check_chunks(connection)
    _check_limits(connection)
    counts = Counter(dict.fromkeys((*map(str, State), "instructions", "order_ids", "contradictions"), 0))
    counts["batches"] = len(batches)
    counts["pages"] = sum(opened.pages for opened in batches.values())
    rows = sum(opened.instructions for opened in batches.values())
    _InstructionCheck(connection, batches, counts).run(progress, rows)
    _check_tallies(connection)
    counts["evidence"] = check_evidence(connection, identity)
    ((counts["facts"],),) = fetch(connection, "SELECT count(*) FROM fact")
    return dict(counts)


def _start_of(identity: Identity, chain: int) -> bytes:
    text = "\n".join(("paygw chain", identity.journal_id, identity.endpoint, identity.created_at, str(chain)))
    return hashlib.sha256(text.encode()).digest()


def _follow_chains(connection: Connection[Row], identity: Identity) -> dict[int, BatchOpened]:
    """Follow the chain of every lease from its start to its end; return the openings of batches by their numbers."""
    query = (
        "SELECT segment, seq, at, kind, batch, instruction, attempt, contradicts, details, hash FROM fact ORDER BY 1, 2"
    )
    moved = fetch(connection, "SELECT facts, hash FROM move")
    segments = fetch(
        connection,
        """SELECT number, chain, epoch, before, start, head_seq, head_hash, sealed_at IS NOT NULL
        FROM segment ORDER BY number""",
    )
    ends: dict[int, tuple[int, int, bytes]] = {}
    batches: dict[int, BatchOpened] = {}
    groups = groupby(streamed(connection, query), key=itemgetter(0))
    current = next(groups, None)
    for number, chain, epoch, before, start, head_seq, head_hash, _ in segments:
        is_moved = bool(moved) and chain == DESK and before is None
        first = identity.start.hash if is_moved else _start_of(identity, chain)
        wanted = first if before is None else ends.get(before, (0, 0, b""))[2]
        goes_on = (chain, epoch - 1) == (ends[before][:2] if before in ends else (chain, 0))
        if start != wanted or not goes_on:
            raise JournalCorrupt(f"Lease {number} does not go on from the one before it.")
        end = Link(0, start)
        if current is not None and current[0] == number:
            for _, *columns in current[1]:
                line = Line(*columns)
                end = _followed(end, line, number)
                if line.kind == BATCH_OPENED:
                    if chain != DESK:
                        raise JournalCorrupt(f"Lease {number} of a chunk opens a batch.")
                    batches[line.batch] = _opened_at(connection, line)
            current = next(groups, None)
        if (end.seq, end.hash) != (head_seq, head_hash):
            raise JournalCorrupt(f"The chain of lease {number} does not end where the lease says.")
        if is_moved and set(moved) != {(end.seq, end.hash)}:
            raise JournalCorrupt("The first lease is not the chain of the file that was moved here.")
        ends[number] = (chain, epoch, end.hash)
    if current is not None:
        raise JournalCorrupt(f"There are facts of lease {current[0]}, which the journal does not have.")
    return batches


def _followed(end: Link, line: Line, segment: int) -> Link:
    try:
        return follow(end, line)
    except JournalCorrupt as error:
        raise JournalCorrupt(f"Lease {segment}: {error.message}") from None


def _opened_at(connection: Connection[Row], line: Line) -> BatchOpened:
    opened = decode_batch(line.details)
    query = "SELECT opened_at, plan_sha256 FROM batch WHERE number = %s"
    if fetch(connection, query, (line.batch,)) != [(line.at, opened.plan_sha256)]:
        raise JournalCorrupt(f"Batch {opened.batch} was changed after it was opened: opened_at differs.")
    return opened


def _check_seals(connection: Connection[Row]) -> None:
    """Follow the chain over finished leases."""
    before, facts = hashlib.sha256(b"paygw seal").digest(), 0
    query = """SELECT s.number, s.segment, s.facts, s.hash, g.head_seq, g.head_hash, g.sealed_at IS NULL
        FROM seal s JOIN segment g ON g.number = s.segment ORDER BY s.number"""
    sealed = 0
    for number, segment, counted, digest, seq, head, is_open in fetch(connection, query):
        facts += seq
        before = hashlib.sha256(before + f"{segment}\n{seq}\n".encode() + head).digest()
        sealed += 1
        if (number, counted, digest, is_open) != (sealed, facts, before, False):
            raise JournalCorrupt(f"Seal {number}, of lease {segment}, was changed, or one before it is missing.")
    if fetch(connection, "SELECT count(*) FROM segment WHERE sealed_at IS NOT NULL") != [(sealed,)]:
        raise JournalCorrupt("A finished lease is not among the seals.")


def _check_chunks(connection: Connection[Row]) -> None:
    """Raise `JournalCorrupt` unless each instruction is in one chunk, which is of its batch."""
    wrong = """SELECT i.number FROM instruction i WHERE NOT EXISTS (
        SELECT FROM chunk c WHERE c.batch = i.batch AND i.number BETWEEN c.first AND c.last) LIMIT 1"""
    if found := fetch(connection, wrong):
        raise JournalCorrupt(f"Instruction {found[0][0]} is in no chunk of its batch.")
    query = "SELECT FROM (SELECT first, lag(last) OVER (ORDER BY first) AS before FROM chunk) c WHERE first <= before"
    if fetch(connection, query):
        raise JournalCorrupt("Two chunks overlap.")


def _check_tallies(connection: Connection[Row]) -> None:
    """Raise `JournalCorrupt` unless the tallies of each chunk are those of its rows."""
    query = f"""WITH counted AS (
            SELECT c.number, p.country, p.currency, p.state, count(*), sum(p.minor) FROM progress p {CHUNK_OF_ROW}
            GROUP BY 1, 2, 3, 4
        ), kept AS (
            SELECT chunk, country, currency, state, sum(rows), sum(minor) FROM chunk_tally GROUP BY 1, 2, 3, 4
            HAVING sum(rows) <> 0 OR sum(minor) <> 0
        ) (TABLE counted EXCEPT ALL TABLE kept) UNION ALL (TABLE kept EXCEPT ALL TABLE counted) LIMIT 1"""  # noqa: S608
    if found := fetch(connection, query):
        raise JournalCorrupt(f"Chunk {found[0][0]} is not counted as its rows are.")


def _check_limits(connection: Connection[Row]) -> None:
    """Raise `JournalCorrupt` unless the limits are those that a person set last."""
    query = """SELECT FROM gate g LEFT JOIN (SELECT * FROM limit_change ORDER BY number DESC LIMIT 1) c ON true
        WHERE (g.rate_per_s, g.concurrency) IS DISTINCT FROM (c.rate_per_s, c.concurrency)"""
    if fetch(connection, query):
        raise JournalCorrupt("The limits over all workers are not those that a person set last.")


def _check_batch(connection: Connection[Row], number: int, opened: BatchOpened) -> None:
    """Hold a batch, with its pages, instructions and known rows, against the fact that opened it."""
    columns = "batch, operation, sheet_name, sheet_sha256, rows, defects, sheet_path"
    (row,) = fetch(connection, f"SELECT {columns} FROM batch WHERE number = %s", (number,))  # noqa: S608 - ours
    batch = replace(NewBatch(*row), by=opened.by, approvals=opened.approvals, plan_sha256=opened.plan_sha256)
    digests = OpeningDigests(batch, opened.first_instruction)
    query = "SELECT number, content FROM page WHERE batch = %s ORDER BY number"
    for place, content in streamed(connection, query, (number,)):
        if place != digests.pages:
            raise JournalCorrupt(f"A page of batch number {number} is missing.")
        digests.page(content)
    for row_number, instruction in streamed(
        connection, "SELECT row, instruction FROM known WHERE batch = %s ORDER BY row", (number,)
    ):
        digests.known(Known(row_number, instruction, State.READY))
    query = """SELECT number, replaces, row, client_orderid, country, currency, amount, minor, form, fields, payee,
            content FROM instruction WHERE batch = %s ORDER BY number"""
    try:
        digests.stored(streamed(connection, query, (number,)))
        found = digests.opened()
    except InternalError:
        raise JournalCorrupt(f"An instruction of batch number {number} was changed.") from None
    for part in BatchOpened.__dataclass_fields__:
        if getattr(found, part) != getattr(opened, part):
            raise JournalCorrupt(f"Batch {opened.batch} was changed after it was opened: {part} differs.")


def _in_place(number: int, lines: Sequence[Row]) -> list[StoredFact]:
    """Return the facts of an instruction. Raises `JournalCorrupt` unless they are numbered from 1 without a gap."""
    facts = []
    for place, (nth, *fact) in enumerate(lines, start=1):
        if nth != place:
            raise JournalCorrupt(f"A fact of instruction {number} is missing before fact {fact[0]}.")
        facts.append(tuple(fact))
    return facts


@dataclass(slots=True)
class _InstructionCheck:
    """Replays every instruction's facts, in the order of their numbers, and compares the result with the stored one."""

    connection: Connection[Row]
    batches: Mapping[int, BatchOpened]
    counts: Counter[str]
    replies: int = 0

    def run(self, progress_of: VerifyProgress, rows: int) -> None:
        """Raise `JournalCorrupt` at the first instruction that is not in the state its facts lead to."""
        facts = LinesByInstruction(streamed(self.connection, f"{_FACTS} ORDER BY instruction, nth"), "A fact")
        query = "SELECT instruction, operation, order_id, spelling FROM order_id ORDER BY 1, 2, 3"
        order_ids = LinesByInstruction(streamed(self.connection, query), "An order id")
        replay = InstructionReplay(self.counts)
        query = f"""SELECT p.number, p.batch, p.row, p.client_orderid, p.replaces, p.fields, p.facts,
                tsvector_to_array(w.words), {PROGRESS}
            FROM progress p LEFT JOIN payee_words w ON w.instruction = p.number ORDER BY p.number"""  # noqa: S608 - ours
        for number, batch, row, client_orderid, replaces, fields, counted, words, *stored in streamed(
            self.connection, query
        ):
            opened = self.batches.get(batch)
            if opened is None:
                raise JournalCorrupt(f"Instruction {number} is of a batch that was never opened.")
            told = _in_place(number, facts.of(number))
            found = replay.replay(number, row, opened.batch, client_orderid, replaces, told)
            for reply in found.replies:
                self._check_reply(number, reply.place + 1, reply.seq, reply.sha256)
            if columns_of(found.progress) != columns_of(progress_from(stored)) or counted != len(told):
                raise JournalCorrupt(
                    f"Instruction {number} (row {row} of batch {opened.batch}) is not as its facts say."
                )
            owned = {(opened.operation, order_id, spelled_alike(order_id)) for order_id in found.order_ids}
            if set(order_ids.of(number)) != owned:
                raise JournalCorrupt(f"The order ids of instruction {number} are not those its facts used.")
            if sorted(words or ()) != payee_words_of(fields):
                raise JournalCorrupt("The index of payees is not that of the instructions.")
            self.counts["instructions"] += 1
            if not self.counts["instructions"] % _SHOWN_EVERY:
                progress_of(self.counts["instructions"], rows)
            self.counts["order_ids"] += len(owned)
            self.counts[found.progress.standing.state.value] += 1
        facts.end()
        order_ids.end()
        if fetch(self.connection, "SELECT count(*) FROM reply") != [(self.replies,)]:
            raise JournalCorrupt("A reply is kept that no fact names.")

    def _check_reply(self, number: int, nth: int, seq: int, wanted: str) -> None:
        """Raise `JournalCorrupt` unless the reply that a fact names is the one that is kept."""
        query = "SELECT head, body FROM reply WHERE instruction = %s AND nth = %s"
        kept = [reply_sha256(head.decode(), body) for head, body in fetch(self.connection, query, (number, nth))]
        if kept != [wanted]:
            raise JournalCorrupt(f"The reply that is kept for fact {seq} is not the one that came.")
        self.replies += 1
