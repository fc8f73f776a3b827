"""Moves a journal with its hash chain from a file to a database, without rows ever being sent from both.

The order of steps makes it safe to kill a move at any time (docs/decisions/0091). First, everything is copied in one
transaction, and the copy cannot be used yet. Then the file is marked as moved. Then the database records that the copy
is in use. Finally, the known journal is updated. The sent log stays valid, because facts keep their numbers and hashes.
The same command continues an interrupted move.
"""

import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
from psycopg import Connection, sql

from paygw_batch.cluster.database_location import DatabaseLocation
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.core.text import normalise_spelling
from paygw_batch.errors import InternalError, JournalError, JournalMissing
from paygw_batch.journal.audit import AuditEntry
from paygw_batch.journal.facts import BATCH_FORGOTTEN, Line, PersonalDataLine
from paygw_batch.journal.file_location import FileLocation, check_journal_files
from paygw_batch.journal.known_journals import KnownJournal
from paygw_batch.journal.lock import RunLock, lock_path
from paygw_batch.journal.port import ignore_progress
from paygw_batch.journal.postgres.schema import COPIED, DONE, create_tables, move_step, tables_version
from paygw_batch.journal.postgres.session import (
    SCHEMA,
    Row,
    Session,
    fetch,
    payee_search_words,
    replace_nul,
    translating_errors,
)
from paygw_batch.journal.postgres.verify import MOVED_HERE, verify_journal
from paygw_batch.journal.postgres.workers import boot_id
from paygw_batch.journal.sqlite.connect import chain_end, connect, load_identity, move_destination
from paygw_batch.journal.sqlite.sqlite_tables import CONTENT
from paygw_batch.journal.values import Identity, Link
from paygw_batch.language import say

_COMMAND = "journal move"
_IS_FORGETTING = f"kind = '{BATCH_FORGOTTEN}'"


def _shared_columns(table: str, columns: str, order: str) -> tuple[str, str]:
    """Return the columns of a table that is the same in both journals, and the query that reads it from the file."""
    return columns, f"SELECT {columns} FROM {table} ORDER BY {order}"  # noqa: S608 - only our own constants


_COPIED_TABLES = {
    "batch": (
        """number, batch, operation, sheet_name, sheet_sha256, rows, defects, opened_at, sheet_path, plan_sha256,
        reference""",
        """SELECT b.number, b.batch, operation, sheet_name, sheet_sha256, rows, defects, opened_at, sheet_path,
            coalesce(json_extract(f.details, '$.plan_sha256'), ''), coalesce(r.reference, '')
        FROM batch b JOIN fact f ON f.batch = b.number AND f.kind = 'batch_opened'
        LEFT JOIN batch_reference r ON r.batch = b.number ORDER BY 1""",
    ),
    "page": _shared_columns("page", "batch, number, content", "1, 2"),
    "instruction": (
        """number, batch, row, client_orderid, country, currency, minor, replaces, amount, form, fields, payee, content,
        salt, people_sha256""",
        f"""SELECT number, batch, row, client_orderid, country, currency, minor, replaces, amount, form,
        fields, payee, {CONTENT}, salt, people_sha256 FROM instruction ORDER BY 1""",  # noqa: S608 - a constant of ours
    ),
    "known": _shared_columns("known", "batch, row, instruction", "1, 2"),
    "order_id": (
        "operation, order_id, instruction, spelling",
        "SELECT operation, order_id, instruction FROM order_id ORDER BY 1, 2",
    ),
    "payee_words": ("instruction, words", "SELECT number, fields FROM instruction ORDER BY 1"),
    "state": _shared_columns("state", "instruction, batch, country, currency, minor", "1"),
    "fact": (
        f"process, seq, number, {', '.join(Line._fields[1:])}",
        f"SELECT number, {', '.join(Line._fields[1:])} FROM fact ORDER BY number",  # noqa: S608 - only our own constants
    ),
    "said": _shared_columns("said", ", ".join(("fact", *PersonalDataLine._fields[1:])), "1"),
    "reply": _shared_columns("reply", "fact, instruction, head, body", "fact"),
    "notice": _shared_columns(
        "notice",
        "id, occasion, subject, batch, recipient, written_at, content, process, tries, tried_at, next_at, sent_at, "
        "problem",
        "number",
    ),
    "audit": _shared_columns("audit", ", ".join(AuditEntry._fields), "number"),
    "forgetting": (
        "batch, after",
        f"SELECT batch, number - 1 FROM fact WHERE {_IS_FORGETTING} ORDER BY number",  # noqa: S608 - a constant of ours
    ),
}
"""The tables in the order of copying, with the columns and the query for their lines in the file.
The facts set the states of rows in the database, as they did in the file. In the file's `notice`, process 1 stands for
all runs. In the database, process 1 has the file's chain, and has ended."""


@dataclass(frozen=True, slots=True)
class JournalMove:
    """A moved journal: its identity, its number of facts, and the counts in the copy."""

    identity: Identity
    facts: int
    counts: Mapping[str, int]


def move_journal(
    source: FileLocation, target: DatabaseLocation, status_words: Mapping[str, OutcomeKind], by: str
) -> JournalMove:
    """Move a journal from a file to the database of `target`, or continue an interrupted move.

    Waiting notifications are processed first. Raises `JournalHeld` while a run holds the file. Raises `JournalError`,
    leaving the file unchanged, if the file or the database cannot be used.
    """
    path, place, now = source.path, target.server.location, target.now()
    if not path.parent.exists() or not check_journal_files(path):
        raise JournalMissing(
            say("There is no journal at {path}.", path=path),
            hint=say("Specify the path of the journal: `paygw-batch journal move FILE`."),
        )
    counts: Mapping[str, int] = {}
    with closing(Session(target.server, write=True)) as session, translating_errors(target.server):
        if not _read_move_destination(path):
            counts = _copy_and_mark(source, target, session, status_words, now=now, by=by)
        with closing(RunLock(lock_path(path), now=now, command=_COMMAND)), closing(connect(path, write=False)) as file:
            identity, end, destination = load_identity(file), chain_end(file), move_destination(file)
            if destination != place:
                raise JournalError(
                    say(
                        "The journal {path} was moved to {moved_place}, not to {place}.",
                        path=path,
                        moved_place=destination,
                        place=place,
                    )
                )
            # No run can send from the file once it is marked. Only now may the copy be used. Otherwise both could pay.
            if not finish_move(session.connection, identity.journal_id, end, at=now, by=by):
                raise JournalError(
                    say("The database {place} does not contain the copy of {path}.", place=place, path=path),
                    hint=say(
                        "Nothing can be paid from the file or the database. Set [journal] url to the database that "
                        "the journal was moved to. If that database is lost, restore it."
                    ),
                )
            _record_new_location(target, identity, now)
    return JournalMove(identity, end.seq, counts)


def _read_move_destination(path: Path) -> str:
    try:
        with closing(connect(path, write=False)) as file:
            return move_destination(file)
    except apsw.Error:
        return ""


def _copy_and_mark(
    source: FileLocation,
    target: DatabaseLocation,
    session: Session,
    status_words: Mapping[str, OutcomeKind],
    *,
    now: str,
    by: str,
) -> Mapping[str, int]:
    """Copy the journal while no run can hold it, and mark the file as moved. Returns the counts in the copy."""
    with closing(source.open_to_write(_COMMAND)) as journal:
        journal.mark_interrupted(now)
        journal.process_arrivals(status_words, at=now)
        with journal.move_transaction(target.server.location), closing(connect(source.path, write=False)) as file:
            file.execute("BEGIN")
            counts = journal.verify()
            process = (socket.gethostname(), boot_id(), os.getpid(), _COMMAND, "run", target.intent_lives_s)
            copy_counts = copy_journal(session.connection, file, process, at=now, by=by)
            if any(counts[name] != copy_counts[name] for name in counts.keys() & copy_counts.keys()):
                raise InternalError("the copy of a journal counts otherwise than the file")
    return copy_counts


def copy_journal(
    connection: Connection[Row], file: apsw.Connection, process: Sequence[Any], *, at: str, by: str
) -> dict[str, int]:
    """Copy a journal in one transaction, and replay the copy. Returns its counts. The copy cannot be used yet.

    An earlier copy that was never used is replaced. Raises `JournalError` if the database has another journal.
    """
    identity, end = load_identity(file), chain_end(file)
    with connection.transaction():
        fetch(connection, "SELECT pg_advisory_xact_lock(7021)")  # the lock that `create_journal` takes
        if tables_version(connection):
            step = move_step(connection)
            ((existing_id,),) = fetch(connection, "SELECT journal_id FROM identity")
            if step is None or step.name != COPIED or existing_id != identity.journal_id:
                raise JournalError(
                    say("There is already a journal in the database: {ours}. Nothing was moved.", ours=existing_id),
                    hint=say("A database can hold only one journal. Set [journal] url to an empty database."),
                )
            connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(SCHEMA)))
        create_tables(connection, identity)
        query = """INSERT INTO process (host, boot, pid, command, kind, intent_lives_s, ended_at, nonce, head_seq,
            head_hash, head_at) VALUES (%s, %s, %s, %s, %s, %s, now(), %s, %s, %s, %s)"""
        fetch(connection, query, (*process, bytes(16), end.seq, end.hash, end.at))
        for table, (columns, file_query) in _COPIED_TABLES.items():
            with connection.cursor() as cursor, cursor.copy(f"COPY {table} ({columns}) FROM STDIN".encode()) as copy:
                for line in _database_lines(table, file.execute(file_query)):
                    copy.write_row(line)
        fetch(connection, "SELECT setval('fact_number_seq', greatest(1, (SELECT max(number) FROM fact)))")
        moved_here = (COPIED, at, by, identity.home, end.seq, end.hash)
        fetch(connection, "INSERT INTO moved_here VALUES (%s, %s, %s, %s, %s, %s)", moved_here)
        connection.execute("ANALYZE")
        return dict(verify_journal(connection, identity, ignore_progress))


def _database_lines(table: str, file_lines: Iterable[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    """Yield the lines of a table in the file, converted for the database."""
    for values in file_lines:
        line: list[Any] = [replace_nul(value) if isinstance(value, str) else value for value in values]
        match table:
            case "order_id":
                yield *line, normalise_spelling(line[1])
            case "payee_words":
                if words := payee_search_words(line[1]):
                    yield line[0], " ".join(f"'{word}'" for word in words)
            case "fact":
                yield MOVED_HERE, line[0], *line
            case _:
                yield line


def finish_move(connection: Connection[Row], journal_id: str, end: Link, *, at: str, by: str) -> bool:
    """Activate the copy once the file is marked as moved. Returns whether the copy is now active."""
    if not tables_version(connection):
        return False
    step = move_step(connection)
    if step is None or fetch(connection, "SELECT journal_id FROM identity") != [(journal_id,)]:
        return False
    if (step.facts, step.hash) != (end.seq, end.hash):
        return False
    if step.name == COPIED:
        query = """INSERT INTO moved_here SELECT %s, %s, %s, home, facts, hash FROM moved_here WHERE step = %s
            ON CONFLICT DO NOTHING"""
        fetch(connection, query, (DONE, at, by, COPIED))
    return True


def _record_new_location(target: DatabaseLocation, identity: Identity, now: str) -> None:
    """Record that the journal is now in the database, so that no copy of the file can be used."""
    with target.known_journals.hold_lock(now):
        entry = target.known_journals.entry(identity.journal_id)
        endpoints = (target.endpoint,) if entry is None else entry.names
        known = KnownJournal(identity.journal_id, endpoints, target.server.location, identity.created_at)
        target.known_journals.write(known)
