"""Checks the journal in PostgreSQL: follows every chain and replays every fact, a group of lines at a time."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from operator import itemgetter

from psycopg import Connection

from paygw_batch.core.text import spelled_alike
from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.facts.chain import followed, text_in_sql
from paygw_batch.journal.port import VerifyProgress
from paygw_batch.journal.postgres.batch_rows import payee_words_of
from paygw_batch.journal.postgres.leasing.leases import DESK
from paygw_batch.journal.postgres.session import Row, fetch, streamed
from paygw_batch.journal.postgres.tables import tables_on
from paygw_batch.journal.replay import RowReplay, check_batches, check_moves, check_said
from paygw_batch.journal.values import Identity, Link
from paygw_batch.language import say

_CHANGED, _EMPTIED = "never_changed", "never_emptied"
_GUARDED = (
    *("migration", "identity", "batch", "page", "instruction", "known", "payee_words", "seal", "fact"),
    *("limit_change", "moved_here", "plan_document", "reply", "order_id", "state", "chunk", "segment", "worker", "run"),
    *("said", "contradiction", "move", "host", "roll_call", "roll_answer", "notice", "forgetting"),
)
_GUARDS = {
    *((table, trigger) for table in _GUARDED for trigger in (_CHANGED, _EMPTIED)),
    *(("segment", "sealed_is_final"), ("segment", "roll_is_complete"), ("chunk", "range_is_final")),
    *(
        ("run", "stop_is_final"),
        ("forgetting", "forgetting_is_told"),
        ("fact", "fact_hands_over"),
        ("fact", "fact_moves"),
    ),
}
"""The triggers that refuse changes, by table."""
_SWITCHED_ON = """SELECT c.relname, t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
    WHERE c.relnamespace = 'paygw'::regnamespace AND NOT t.tgisinternal AND t.tgenabled = 'A'"""
_FACTS = f"""SELECT f.segment, f.seq, {text_in_sql("f", "f.seq", "chr(10)", "::text")}, f.said_sha256, f.hash, f.number,
        d.salt, d.text, d.customer_url, d.reply_sha256, f.batch
    FROM fact f LEFT JOIN said d ON d.fact = f.number ORDER BY 1, 2"""  # noqa: S608 - constants of ours
_UNIQUE = """SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE c.relnamespace = 'paygw'::regnamespace AND i.indisunique AND i.indisvalid
        AND c.relname IN ('fact_one_intent', 'segment_unsealed', 'order_id_pkey', 'run_unfinished')
    ORDER BY 1"""
_UNIQUE_WANTED = [("fact_one_intent",), ("order_id_pkey",), ("run_unfinished",), ("segment_unsealed",)]


def verify_journal(connection: Connection[Row], identity: Identity, progress: VerifyProgress) -> Mapping[str, int]:
    """Replay the whole journal, inside the open transaction, and return the counts.

    Raises `JournalCorrupt`, naming the first wrong place.
    """
    for way in ("seqscan", "hashjoin", "mergejoin"):  # it reads all there is
        fetch(connection, f"SET LOCAL enable_{way} = on")
    if set(fetch(connection, _SWITCHED_ON)) != _GUARDS or fetch(connection, _UNIQUE) != _UNIQUE_WANTED:
        raise JournalCorrupt(say("The schema of the journal was altered: the triggers of its tables differ."))
    _follow_chains(connection, identity)
    _check_seals(connection)
    tables = tables_on(connection, identity)
    check_moves(tables)
    totals = check_batches(tables)
    _check_chunks(connection)
    _check_limits(connection)
    counts = RowReplay(tables, progress).run()
    _check_indexes(connection)
    ((facts,),), ((heard,),) = fetch(connection, "SELECT count(*) FROM fact"), tables.run("count_heard")
    return {**counts, **totals, "facts": facts, "evidence": heard}


def _start_of(identity: Identity, chain: int) -> bytes:
    text = "\n".join(("paygw chain", identity.journal_id, identity.endpoint, identity.created_at, str(chain)))
    return hashlib.sha256(text.encode()).digest()


def _follow_chains(connection: Connection[Row], identity: Identity) -> None:
    """Follow the chain of every lease from its start to its end."""
    moved = fetch(connection, "SELECT facts, hash, consumer_key_sha256 FROM moved_here")
    segments = fetch(
        connection,
        """SELECT number, chain, epoch, before, start, head_seq, head_hash, sealed_at IS NOT NULL
        FROM segment ORDER BY number""",
    )
    ends: dict[int, tuple[int, int, bytes]] = {}
    newest: dict[int, int] = {}
    """The number of the newest fact of each chain."""
    groups = groupby(streamed(connection, _FACTS), key=itemgetter(0))
    current = next(groups, None)
    for number, chain, epoch, before, start, head_seq, head_hash, _ in segments:
        is_moved = bool(moved) and chain == DESK and before is None
        of_file = replace(identity, consumer_key_sha256=moved[0][2]) if is_moved else identity
        first = of_file.start.hash if is_moved else _start_of(identity, chain)
        wanted = first if before is None else ends.get(before, (0, 0, b""))[2]
        goes_on = (chain, epoch - 1) == (ends[before][:2] if before in ends else (chain, 0))
        if start != wanted or not goes_on:
            raise JournalCorrupt(say("Lease {lease} does not continue from the one before it.", lease=number))
        end = Link(0, start)
        if current is not None and current[0] == number:
            for seq, _, _, digest, place, *_, batch in _followed(end, current[1], number):
                _check_order(newest, chain, seq, place)
                end = Link(seq, digest)
                if batch is not None and chain != DESK:
                    raise JournalCorrupt(say("Lease {lease} of a chunk opens a batch.", lease=number))
            current = next(groups, None)
        if (end.seq, end.hash) != (head_seq, head_hash):
            raise JournalCorrupt(say("The chain of lease {lease} does not end where the lease says.", lease=number))
        if is_moved and set(moved) != {(end.seq, end.hash, of_file.consumer_key_sha256)}:
            raise JournalCorrupt(say("The first lease is not the chain of the file that was moved here."))
        ends[number] = (chain, epoch, end.hash)
    if current is not None:
        raise JournalCorrupt(
            say("There are facts of lease {lease}, which the journal does not have.", lease=current[0])
        )


def _followed(end: Link, lines: Iterator[Row], segment: int) -> Iterator[Row]:
    """Yield the lines of a lease, each checked with what it says of people."""
    try:
        for line in followed(end, (line[1:] for line in lines)):
            _, _, digest, _, number, salt, *said = line[:9]
            check_said(number, digest, salt, *said)
            yield line
    except JournalCorrupt as error:
        raise JournalCorrupt(say("Lease {lease}: {reason}", lease=segment, reason=error.message)) from None


def _check_order(newest: dict[int, int], chain: int, seq: int, number: int) -> None:
    """Raise `JournalCorrupt` unless a fact was added after the one before it: no hash holds what decides its effect."""
    if number <= newest.get(chain, 0):
        raise JournalCorrupt(say("Fact {number} is missing from the journal.", number=seq))
    newest[chain] = number


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
            raise JournalCorrupt(
                say(
                    "Seal {number}, of lease {lease}, was changed, or one before it is missing.",
                    number=number,
                    lease=segment,
                )
            )
    if fetch(connection, "SELECT count(*) FROM segment WHERE sealed_at IS NOT NULL") != [(sealed,)]:
        raise JournalCorrupt(say("A finished lease has no seal."))


def _check_chunks(connection: Connection[Row]) -> None:
    """Raise `JournalCorrupt` unless each instruction is in one chunk, which is of its batch."""
    wrong = """SELECT i.number FROM instruction i WHERE NOT EXISTS (
        SELECT FROM chunk c WHERE c.batch = i.batch AND i.number BETWEEN c.first AND c.last) LIMIT 1"""
    if found := fetch(connection, wrong):
        raise JournalCorrupt(say("Instruction {number} is in no chunk of its batch.", number=found[0][0]))
    query = "SELECT FROM (SELECT first, lag(last) OVER (ORDER BY first) AS before FROM chunk) c WHERE first <= before"
    if fetch(connection, query):
        raise JournalCorrupt(say("Two chunks overlap."))


def _check_limits(connection: Connection[Row]) -> None:
    """Raise `JournalCorrupt` unless the limits are those that a person set last."""
    query = """SELECT FROM gate g LEFT JOIN (SELECT * FROM limit_change ORDER BY number DESC LIMIT 1) c ON true
        WHERE (g.rate_per_s, g.concurrency) IS DISTINCT FROM (c.rate_per_s, c.concurrency)"""
    if fetch(connection, query):
        raise JournalCorrupt(say("The limits over all workers are not those that a person set last."))


def _check_indexes(connection: Connection[Row]) -> None:
    """Raise `JournalCorrupt` unless spellings and the words of payees are those of order ids and instructions."""
    for instruction, order_id, spelling in streamed(connection, "SELECT instruction, order_id, spelling FROM order_id"):
        if spelled_alike(order_id) != spelling:
            raise JournalCorrupt(
                say("The order ids of instruction {number} do not match its facts.", number=instruction)
            )
    query = """SELECT i.fields, tsvector_to_array(w.words) FROM instruction i
        LEFT JOIN payee_words w ON w.instruction = i.number"""
    for fields, words in streamed(connection, query):
        if sorted(words or ()) != payee_words_of(fields):
            raise JournalCorrupt(say("The index of payees does not match the instructions."))
