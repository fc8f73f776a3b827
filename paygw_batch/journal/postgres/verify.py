"""Verifies a journal in PostgreSQL by checking every chain and replaying every fact."""

import hashlib
from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import itemgetter

from psycopg import Connection

from paygw_batch.core.text import normalise_spelling
from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.facts import line_text_sql, verify_links
from paygw_batch.journal.port import VerifyProgress
from paygw_batch.journal.postgres.session import Row, fetch, payee_search_words, postgres_tables, stream_rows
from paygw_batch.journal.replay import RowReplay, check_batches, check_personal_data, check_state_machine, check_trail
from paygw_batch.journal.values import Identity, Link
from paygw_batch.language import say

MOVED_HERE = 1
"""The process number of the chain that was moved to this database from a file."""
_CHANGED, _EMPTIED = "never_changed", "never_emptied"
_GUARDED = (
    *("migration", "identity", "batch", "page", "instruction", "known", "payee_words", "fact", "process", "desk"),
    *("run", "limit_change", "moved_here", "plan_document", "reply", "order_id", "state"),
    *("said", "contradiction", "move", "host", "roll_call", "roll_answer", "notice", "audit", "forgetting"),
)
_GUARDS = {
    *((table, trigger) for table in _GUARDED for trigger in (_CHANGED, _EMPTIED)),
    *(("process", "end_is_final"), ("run", "stop_is_final"), ("forgetting", "forgetting_is_told")),
    *(("fact", "fact_hands_over"), ("fact", "fact_moves")),
}
_ENABLED_TRIGGERS = """SELECT c.relname, t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
    WHERE c.relnamespace = 'paygw'::regnamespace AND NOT t.tgisinternal AND t.tgenabled = 'A'"""
_ALL_FACTS = f"""SELECT f.process, f.seq, {line_text_sql("f", "f.seq", "chr(10)", "::text")}, f.said_sha256, f.hash,
        f.number, d.salt, d.text, d.customer_url, d.reply_sha256
    FROM fact f LEFT JOIN said d ON d.fact = f.number ORDER BY 1, 2"""  # noqa: S608 - only our own constants
_UNIQUE = """SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE c.relnamespace = 'paygw'::regnamespace AND i.indisunique AND i.indisvalid
        AND c.relname IN ('fact_one_intent', 'order_id_pkey', 'run_unfinished')
    ORDER BY 1"""
_EXPECTED_UNIQUE = [("fact_one_intent",), ("order_id_pkey",), ("run_unfinished",)]


def verify_journal(connection: Connection[Row], identity: Identity, progress: VerifyProgress) -> Mapping[str, int]:
    """Verify the journal in the open transaction and return counts. Raises `JournalCorrupt` at the first error."""
    for strategy in ("seqscan", "hashjoin", "mergejoin"):  # other statements do not read whole tables
        fetch(connection, f"SET LOCAL enable_{strategy} = on")
    if set(fetch(connection, _ENABLED_TRIGGERS)) != _GUARDS or fetch(connection, _UNIQUE) != _EXPECTED_UNIQUE:
        raise JournalCorrupt(say("The journal's schema was altered: the triggers of its tables differ."))
    _check_chains(connection, identity)
    tables = postgres_tables(connection, identity)
    check_state_machine(tables)
    batch_counts = check_batches(tables)
    _check_limits(connection)
    row_counts = RowReplay(tables, progress).run()
    _check_indexes(connection)
    ((facts,),), ((evidence_count,),) = fetch(connection, "SELECT count(*) FROM fact"), tables.run("count_evidence")
    if fetch(connection, "SELECT has_table_privilege('audit', 'SELECT')") == [(True,)]:  # workers may not read it
        batch_counts = {**batch_counts, "audit_entries": check_trail(tables)}
    return {**row_counts, **batch_counts, "facts": facts, "evidence": evidence_count}


def _check_chains(connection: Connection[Row], identity: Identity) -> None:
    moved_ends = fetch(connection, "SELECT facts, hash FROM moved_here")
    query = "SELECT number, nonce, head_seq, head_hash FROM process ORDER BY number"
    groups = groupby(stream_rows(connection, _ALL_FACTS), key=itemgetter(0))
    current = next(groups, None)
    for number, nonce, *expected_end in fetch(connection, query):
        is_moved = bool(moved_ends) and number == MOVED_HERE
        end = identity.start if is_moved else Link(0, _chain_start(identity, number, nonce))
        if current is not None and current[0] == number:
            end = _check_chain(end, current[1], number)
            current = next(groups, None)
        if [end.seq, end.hash] != expected_end:
            raise JournalCorrupt(
                say("The chain of process {number} does not end where the journal says that it should.", number=number)
            )
        if is_moved and set(moved_ends) != {(end.seq, end.hash)}:
            raise JournalCorrupt(say("The first chain does not belong to the file that was moved here."))
    if current is not None:
        raise JournalCorrupt(
            say("Some facts belong to process {number}, which the journal does not have.", number=current[0])
        )


def _chain_start(identity: Identity, number: int, nonce: bytes) -> bytes:
    fields = ("paygw chain", identity.journal_id, identity.endpoint, identity.created_at, str(number), nonce.hex())
    return hashlib.sha256("\n".join(fields).encode()).digest()


def _check_chain(link: Link, lines: Iterator[Row], process: int) -> Link:
    """Check a process's facts, starting after `link`, and their personal data. Returns the end of the chain."""
    newest = 0
    try:
        for seq, _, digest, link_hash, number, salt, *values in verify_links(link, (line[1:] for line in lines)):
            check_personal_data(number, digest, salt, *values)
            if number <= newest:  # numbers increase along a chain, but are not covered by a hash
                raise JournalCorrupt(say("Fact {number} is missing from the journal.", number=seq))  # noqa: TRY301
            link, newest = Link(seq, link_hash), number
    except JournalCorrupt as error:
        raise JournalCorrupt(say("Process {number}: {reason}", number=process, reason=error.message)) from None
    return link


def _check_limits(connection: Connection[Row]) -> None:
    query = """SELECT FROM gate g LEFT JOIN (SELECT * FROM limit_change ORDER BY number DESC LIMIT 1) c ON true
        WHERE (g.rate_per_s, g.concurrency) IS DISTINCT FROM (c.rate_per_s, c.concurrency)"""
    if fetch(connection, query):
        raise JournalCorrupt(say("The limits shared by all workers differ from those that a person last set."))


def _check_indexes(connection: Connection[Row]) -> None:
    query = "SELECT instruction, order_id, spelling FROM order_id"
    for instruction, order_id, spelling in stream_rows(connection, query):
        if normalise_spelling(order_id) != spelling:
            raise JournalCorrupt(
                say("The order ids of instruction {number} do not match its facts.", number=instruction)
            )
    query = """SELECT i.fields, tsvector_to_array(w.words) FROM instruction i
        LEFT JOIN payee_words w ON w.instruction = i.number"""
    for fields, words in stream_rows(connection, query):
        if sorted(words or ()) != payee_search_words(fields):
            raise JournalCorrupt(say("The index of payees does not match the instructions."))
