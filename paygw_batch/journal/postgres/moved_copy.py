"""Copies a journal that was kept in a file into new tables: its facts as they are, as the first process's."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from psycopg import Connection, sql

from paygw_batch.core.text import spelled_alike
from paygw_batch.errors import JournalError
from paygw_batch.journal.facts.audit_chain import AuditEntry
from paygw_batch.journal.facts.chain import Line, SaidLine
from paygw_batch.journal.postgres.batch_rows import payee_words_of
from paygw_batch.journal.postgres.migrations import fill_tables, version_in
from paygw_batch.journal.postgres.session import SCHEMA, Row, fetch
from paygw_batch.journal.postgres.verify import MOVED_HERE, verify_journal
from paygw_batch.journal.values import Identity, Link
from paygw_batch.language import say

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
    found = fetch(connection, "SELECT step, home, facts, hash FROM moved_here ORDER BY step = %s DESC LIMIT 1", (DONE,))
    return MoveStep(*found[0]) if found else None


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
    """Yield lines of the file as they are stored here."""
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
