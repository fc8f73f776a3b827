"""Moves a journal with its chain from a file to a database, once, so that two journals can never both pay.

A move may be killed at any moment because of its order (docs/decisions/0091): the whole copy in one transaction, which
does not pay yet; the file's mark that it was moved; the database's record that the copy is in use; its entry among the
known journals. What is noted as left stays true: facts keep their numbers and hashes. The same command continues an
interrupted move.
"""

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from paygw_batch.cluster.database_place import DatabasePlace
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import InternalError, JournalError, JournalMissing
from paygw_batch.journal.audit import AuditEntry
from paygw_batch.journal.facts import BATCH_FORGOTTEN, Line
from paygw_batch.journal.file_place import FilePlace, check_place
from paygw_batch.journal.known_journals import KnownJournal
from paygw_batch.journal.lock import RunLock, lock_path
from paygw_batch.journal.postgres.copy import copy_journal, finish_move
from paygw_batch.journal.postgres.session import Session, text_of, translating_errors
from paygw_batch.journal.postgres.workers import machine
from paygw_batch.journal.sqlite.connect import connect, end_of, fetch, identity_of, moved_to
from paygw_batch.journal.sqlite.sqlite_tables import CONTENT
from paygw_batch.journal.values import Identity
from paygw_batch.language import say

_COMMAND = "journal move"
_FORGETS = f"kind = '{BATCH_FORGOTTEN}'"
_QUERIES = {
    "batch": """SELECT b.number, b.batch, operation, sheet_name, sheet_sha256, rows, defects, opened_at, sheet_path,
            coalesce(json_extract(f.details, '$.plan_sha256'), ''), coalesce(r.reference, '')
        FROM batch b JOIN fact f ON f.batch = b.number AND f.kind = 'batch_opened'
        LEFT JOIN batch_reference r ON r.batch = b.number ORDER BY 1""",
    "page": "SELECT batch, number, content FROM page ORDER BY 1, 2",
    "instruction": f"""SELECT number, batch, row, client_orderid, country, currency, minor, replaces, amount, form,
        fields, payee, {CONTENT}, salt, people_sha256 FROM instruction ORDER BY 1""",  # noqa: S608 - a constant of ours
    "known": "SELECT batch, row, instruction FROM known ORDER BY 1, 2",
    "order_id": "SELECT operation, order_id, instruction FROM order_id ORDER BY 1, 2",
    "payee_words": "SELECT number, fields FROM instruction ORDER BY 1",
    "state": "SELECT instruction, batch, country, currency, minor FROM state ORDER BY 1",
    "fact": f"SELECT number, {', '.join(Line._fields[1:])} FROM fact ORDER BY number",  # noqa: S608 - constants of ours
    "said": "SELECT fact, salt, text, customer_url, reply_sha256 FROM said ORDER BY 1",
    "reply": "SELECT fact, instruction, head, body FROM reply ORDER BY fact",
    "notice": """SELECT id, occasion, subject, batch, recipient, written_at, content, process, tries, tried_at, next_at,
        sent_at, problem FROM notice ORDER BY number""",
    "audit": f"SELECT {', '.join(AuditEntry._fields)} FROM audit ORDER BY number",  # noqa: S608 - constants of ours
    "forgetting": f"SELECT batch, number - 1 FROM fact WHERE {_FORGETS} ORDER BY number",  # noqa: S608 - a constant of ours
}
"""The lines of each table, as a journal in PostgreSQL has them."""


@dataclass(frozen=True, slots=True)
class Move:
    """A journal that was moved: its identity, and its size as counted in the file and in the copy."""

    identity: Identity
    facts: int
    counts: Mapping[str, int]


class _File:
    """The journal in a file, as it is copied."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self.identity, self.end = identity_of(connection), end_of(connection)

    def lines(self, table: str) -> Iterator[Sequence[Any]]:
        """Yield the lines of one table, in the form of the other store."""
        for line in self._connection.execute(_QUERIES[table]):
            yield [text_of(value) if isinstance(value, str) else value for value in line]


def move_journal(file_place: FilePlace, place: DatabasePlace, words: Mapping[str, OutcomeKind], by: str) -> Move:
    """Move the journal in a file to the database of `place`, or continue such a move.

    Waiting notifications are recorded first. Raises `JournalHeld` while a run has the file, and `JournalError` if
    either place refuses, which leaves the file as it was.
    """
    path, now = file_place.path, place.now()
    if not path.parent.exists() or not check_place(path):
        raise JournalMissing(
            say("There is no journal at {path}.", path=path),
            hint=say("Name the file: `paygw-batch journal move FILE`."),
        )
    counts: Mapping[str, int] = {}
    with closing(Session(place.server, write=True)) as session, translating_errors(place.server):
        if not _moved_place(path):
            counts = _copied(file_place, place, session, words, now=now, by=by)
        with (
            closing(RunLock(lock_path(path), now=now, command=_COMMAND)),
            closing(connect(path, write=False)) as file,
        ):
            identity, end, moved_place = identity_of(file), end_of(file), moved_to(file)
            if moved_place != place.server.place:
                raise JournalError(
                    say(
                        "The journal {path} was moved to {moved_place}, and not to {place}.",
                        path=path,
                        moved_place=moved_place,
                        place=place.server.place,
                    )
                )
            # The file has its mark by now, so no run can send from it. Only after that may the copy pay: otherwise a
            # row could leave from each of them.
            if not finish_move(session.connection, identity.journal_id, end, at=now, by=by):
                raise JournalError(
                    say(
                        "The database {place} does not hold the copy that was made of {path}.",
                        place=place.server.place,
                        path=path,
                    ),
                    hint=say(
                        "Nothing is paid from either. Name the database that it was moved to in "
                        "[journal] url; if that database is lost, restore it."
                    ),
                )
            _remember(place, identity, now)
    return Move(identity, end.seq, counts)


def _moved_place(path: Path) -> str:
    """Return the location that the file says it was moved to; empty if it does not, or is not a journal."""
    try:
        with closing(connect(path, write=False)) as file:
            return moved_to(file)
    except apsw.Error:
        return ""


def _copied(
    file_place: FilePlace,
    place: DatabasePlace,
    session: Session,
    words: Mapping[str, OutcomeKind],
    *,
    now: str,
    by: str,
) -> Mapping[str, int]:
    """Copy the journal while no run can hold it, and mark the file; return the counts of the copy."""
    with closing(file_place.open_to_write(_COMMAND)) as journal:
        journal.mark_interrupted(now)
        journal.judge_arrivals(words, at=now)
        with journal.moving(place.server.place), closing(connect(file_place.path, write=False)) as file:
            fetch(file, "BEGIN")
            counts = journal.verify()
            process = (socket.gethostname(), machine(), os.getpid(), _COMMAND, "run", place.intent_lives_s)
            whole = _File(file)
            copied = copy_journal(session.connection, whole, process, at=now, by=by)
            if {name: counts[name] for name in counts.keys() & copied.keys()} != {
                name: copied[name] for name in counts.keys() & copied.keys()
            }:
                raise InternalError("the copy of a journal counts otherwise than the file")
    return copied


def _remember(place: DatabasePlace, identity: Identity, now: str) -> None:
    """Note the journal's new place, so that no copy of the file is taken for it."""
    with place.known.held(now):
        before = place.known.entry(identity.journal_id)
        names = (place.endpoint,) if before is None else before.names
        place.known.write(KnownJournal(identity.journal_id, names, place.server.place, identity.created_at))
