"""Writes a new batch by COPY, and a whole journal that was kept in a file: its facts as the first process's."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol

from psycopg import Connection, sql

from paygw_batch.core.batch import reference_of
from paygw_batch.core.text import spelled_alike
from paygw_batch.errors import InternalError, JournalError
from paygw_batch.journal.audit import AuditEntry
from paygw_batch.journal.facts import Line, SaidLine
from paygw_batch.journal.new_batch import BatchPart, OpeningDigests, new_salts, one_ahead
from paygw_batch.journal.postgres.schema import fill_tables, version_in
from paygw_batch.journal.postgres.session import SCHEMA, Row, fetch, payee_words_of
from paygw_batch.journal.postgres.verify import MOVED_HERE, verify_journal
from paygw_batch.journal.values import BatchRecord, Identity, Known, Link, NewInstruction
from paygw_batch.language import say

_INSTRUCTIONS = """COPY instruction (number, batch, row, client_orderid, country, currency, minor, replaces, amount,
    form, fields, payee, content, salt, people_sha256) FROM STDIN"""


def copy_batch(
    connection: Connection[Row],
    record: BatchRecord,
    plan_sha256: str,
    digests: OpeningDigests,
    parts: Iterable[BatchPart],
    known: Iterable[Known],
    replaced: Mapping[int, int],
) -> str:
    """Write a whole batch; return the reference that its order ids were derived from, or none."""
    number = record.number
    first = digests.first_instruction
    with closing(one_ahead(parts)) as coming:
        for part in coming:
            for page in part.pages:
                fetch(connection, "INSERT INTO page VALUES (%s, %s, %s)", (number, digests.pages, page))
                digests.page(page)
            start = digests.next_instruction
            salts = new_salts(len(part.instructions))
            people = digests.instructions(part.instructions, replaced, salts)
            with connection.cursor() as cursor, cursor.copy(_INSTRUCTIONS) as copy:
                for place, (new, *own) in enumerate(zip(part.instructions, salts, people, strict=True), start=start):
                    copy.write_row((*_line_of(place, number, new, replaced.get(new[0])), *own))
    last = first
    reference = ""
    query = (
        "SELECT number, client_orderid, fields, content, replaces FROM instruction WHERE number >= %s AND number < %s"
    )
    while lines := fetch(connection, f"{query} ORDER BY number", (last, last + 10_000)):
        if last == first:
            reference = reference_of(lines[0][1]) or ""
        _copy_ids(connection, record.operation, lines)
        last = lines[-1][0] + 1
    with connection.cursor() as cursor, cursor.copy("COPY known FROM STDIN") as copy:
        for row in sorted(known, key=attrgetter("row")):
            digests.known(row)
            copy.write_row((number, row.row, row.instruction))
    line = (number, record.batch, record.operation, record.sheet_name, record.sheet_sha256, record.rows, record.defects)
    more = (record.opened_at, record.sheet_path, plan_sha256, reference)
    fetch(connection, f"INSERT INTO batch VALUES ({', '.join(['%s'] * 11)})", (*line, *more))  # noqa: S608 - places alone
    query = """INSERT INTO state (instruction, batch, country, currency, minor)
        SELECT number, batch, country, currency, minor FROM instruction WHERE number >= %s AND number < %s ORDER BY 1"""
    fetch(connection, query, (first, last))
    twice = "SELECT FROM instruction i JOIN known k USING (batch, row) WHERE i.batch = %s LIMIT 1"
    if fetch(connection, twice, (number,)):
        raise InternalError("a row of a batch is both new and known")
    return reference


def _line_of(number: int, batch: int, new: NewInstruction, replaces: int | None) -> Row:
    row, client_orderid, country, currency, amount, minor, form, fields, payee, content = new
    own = (row, client_orderid, country, currency, minor, replaces, amount, form, fields, payee, content)
    return number, batch, *own


def _copy_ids(connection: Connection[Row], operation: str, lines: list[Row]) -> None:
    """Write the order ids of new instructions, and the words of their payees."""
    own = sorted((client_orderid, number) for number, client_orderid, _, _, replaces in lines if replaces is None)
    with connection.cursor() as cursor, cursor.copy("COPY order_id FROM STDIN") as copy:
        for client_orderid, number in own:
            copy.write_row((operation, client_orderid, number, spelled_alike(client_orderid)))
    numbers = [line[0] for line in lines]
    words = [" ".join(payee_words_of(line[2])) for line in lines]
    query = """INSERT INTO payee_words
        SELECT number, array_to_tsvector(string_to_array(nullif(words, ''), ' ')) FROM unnest(%s::bigint[], %s::text[])
        u(number, words) WHERE words <> ''"""
    fetch(connection, query, (numbers, words))


COPIED, DONE = "copied", "done"


class MovedJournal(Protocol):
    """The journal in a file: its lines, as the tables here have them, in order."""

    identity: Identity
    end: Link

    def lines(self, table: str) -> Iterable[Sequence[Any]]:
        """Yield the lines of one table."""
        ...


@dataclass(frozen=True, slots=True)
class MoveStep:
    """How far a move has come. `facts` and `hash` are the end of the chain that was copied."""

    step: str
    home: str
    facts: int
    hash: bytes


_TABLES = {
    "batch": "number, batch, operation, sheet_name, sheet_sha256, rows, defects, opened_at, sheet_path, plan_sha256, "
    "reference",
    "page": "batch, number, content",
    "instruction": "number, batch, row, client_orderid, country, currency, minor, replaces, amount, form, fields, "
    "payee, content, salt, people_sha256",
    "known": "batch, row, instruction",
    "order_id": "operation, order_id, instruction, spelling",
    "payee_words": "instruction, words",
    "state": "instruction, batch, country, currency, minor",
    "fact": f"process, seq, number, {', '.join(Line._fields[1:])}",
    "said": ", ".join(("fact", *SaidLine._fields[1:])),
    "reply": "fact, instruction, head, body",
    "notice": "id, occasion, subject, batch, recipient, written_at, content, process, tries, tried_at, next_at, "
    "sent_at, problem",
    "audit": ", ".join(AuditEntry._fields),
    "forgetting": "batch, after",
}
"""The tables that are copied, in this order, with their columns. Facts move the rows here as they did there.

`notice`: process 1, of those of runs, is here the one whose chain is that of the file, and it has ended."""


def move_step(connection: Connection[Row]) -> MoveStep | None:
    """Return how far the move of this journal has come; None if it was made here."""
    steps = fetch(connection, "SELECT step, home, facts, hash FROM moved_here ORDER BY step = %s DESC LIMIT 1", (DONE,))
    return MoveStep(*steps[0]) if steps else None


def copy_journal(
    connection: Connection[Row],
    moved: MovedJournal,
    process: Sequence[Any],
    *,
    at: str,
    by: str,
) -> dict[str, int]:
    """Copy a journal in one transaction, replay the copy, and return its counts. Nothing is paid from it yet.

    A copy that was made before and never came into use is replaced. Raises `JournalError` if another journal is in
    the database.
    """
    with connection.transaction():
        fetch(connection, "SELECT pg_advisory_xact_lock(7021)")  # as `make_tables` does
        if version_in(connection):
            step = move_step(connection)
            ((ours,),) = fetch(connection, "SELECT journal_id FROM identity")
            if step is None or step.step != COPIED or ours != moved.identity.journal_id:
                raise JournalError(
                    say("There is already a journal in the database: {ours}. Nothing was moved.", ours=ours),
                    hint=say("A database holds one journal. Name an empty one in [journal] url."),
                )
            connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(SCHEMA)))
        fill_tables(connection, moved.identity)
        query = """INSERT INTO process (host, boot, pid, command, kind, intent_lives_s, ended_at, nonce, head_seq,
            head_hash, head_at) VALUES (%s, %s, %s, %s, %s, %s, now(), %s, %s, %s, %s)"""
        end = moved.end
        fetch(connection, query, (*process, bytes(16), end.seq, end.hash, end.at))
        for table, columns in _TABLES.items():
            with connection.cursor() as cursor, cursor.copy(f"COPY {table} ({columns}) FROM STDIN".encode()) as copy:
                for line in _stored(table, moved.lines(table)):
                    copy.write_row(line)
        fetch(connection, "SELECT setval('fact_number_seq', greatest(1, (SELECT max(number) FROM fact)))")
        line = (COPIED, at, by, moved.identity.home, end.seq, end.hash)
        fetch(connection, "INSERT INTO moved_here VALUES (%s, %s, %s, %s, %s, %s)", line)
        connection.execute("ANALYZE")
        return dict(verify_journal(connection, moved.identity, lambda _done, _rows: None))


def finish_move(connection: Connection[Row], journal_id: str, end: Link, *, at: str, by: str) -> bool:
    """Let the copy come into use, once the file can pay nothing any more; return whether it is in use."""
    if not version_in(connection):
        return False
    step = move_step(connection)
    if step is None or fetch(connection, "SELECT journal_id FROM identity") != [(journal_id,)]:
        return False
    if (step.facts, step.hash) != (end.seq, end.hash):
        return False
    if step.step == COPIED:
        query = """INSERT INTO moved_here SELECT %s, %s, %s, home, facts, hash FROM moved_here WHERE step = %s
            ON CONFLICT DO NOTHING"""
        fetch(connection, query, (DONE, at, by, COPIED))
    return True


def check_moved(connection: Connection[Row]) -> None:
    """Raise `JournalError` for a copy of a file that is not in use yet."""
    step = move_step(connection)
    if step is not None and step.step == COPIED:
        raise JournalError(
            say(
                "The move of the journal {home} to this database was interrupted: nothing is paid from it yet.",
                home=step.home,
            ),
            hint=say("Run `paygw-batch journal move {home}` again, on the machine where that file is.", home=step.home),
        )


def _stored(table: str, lines: Iterable[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    match table:
        case "order_id":
            for operation, order_id, instruction in lines:
                yield operation, order_id, instruction, spelled_alike(order_id)
        case "payee_words":
            for number, fields in lines:
                if words := payee_words_of(fields):
                    yield number, " ".join(f"'{word}'" for word in words)
        case "fact":
            for seq, *rest in lines:
                yield MOVED_HERE, seq, seq, *rest
        case _:
            yield from lines
