"""Adopts a journal that was restored or is a copy, and moves one from a file to a database.

To adopt is a person's word that a copy is the newest one, which this machine does not know or knows more of. If rows
left from here since the copy was made, exactly those come in doubt, or are held.

A move is made once, so that two journals can never both pay. It may be killed at any moment because of its order
(docs/decisions/0091): the whole copy in one transaction, which does not pay yet; the file's mark that it was moved; the
database's record that the copy is in use; its entry among the known journals. What is noted as left stays true: facts
keep their numbers and hashes. The same command continues an interrupted move.
"""

import os
import socket
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import apsw

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import InternalError, JournalError, JournalMissing, LeftDamaged
from paygw_batch.journal.audit import AuditEntry
from paygw_batch.journal.database_place import DatabasePlace
from paygw_batch.journal.facts import BATCH_FORGOTTEN, Line
from paygw_batch.journal.file_place import FilePlace, Found, check_home, check_place, is_known, look_at
from paygw_batch.journal.known_journals import KnownJournal, check_beside
from paygw_batch.journal.left import RUN, LeftLine, note_accepted, writers
from paygw_batch.journal.lock import RunLock, lock_path
from paygw_batch.journal.lost import Loss, LostRows, find_loss
from paygw_batch.journal.postgres.copy import copy_journal, finish_move
from paygw_batch.journal.postgres.session import Session, text_of, translating_errors
from paygw_batch.journal.postgres.workers import machine
from paygw_batch.journal.sqlite.connect import connect, end_of, fetch, identity_of, leave_untouched, migrate, moved_to
from paygw_batch.journal.sqlite.sqlite_tables import CONTENT, SqliteTables, evidence_in, record_last
from paygw_batch.journal.sqlite.verify import verify
from paygw_batch.journal.values import AcceptedRows, Adopted, Identity, Named, Remark
from paygw_batch.language import say

_COMMAND = "journal adopt"


class Adoption:
    """A journal that a person may call the newest, held and replayed; nothing is written before `carry_out`.

    Raises `JournalWentBack` if the original is still there, `JournalCorrupt` if it is damaged, `LeftDamaged` if it is
    an older copy and not all that left since is known, and `JournalError` for any other reason against it.
    """

    loss: Loss
    """What left from here since the copy was made."""

    def __init__(self, place: FilePlace, *, beside: str | None) -> None:
        self.path, self._place, self._beside = place.path, place, beside
        if not self.path.parent.exists() or not check_place(self.path):
            raise JournalMissing(
                say("There is no journal at {path}.", path=self.path), hint=say("Name the file: --journal.")
            )
        with ExitStack() as undo:
            undo.callback(RunLock(lock_path(self.path), now=place.now(), command=_COMMAND).close)
            self._found, self.loss = self._survey()
            self.others = self._others()
            if self.is_needed:
                check_beside(self.others, beside, command=_COMMAND)
            self._connection = undo.enter_context(closing(connect(self.path, write=True)))
            self._begin()
            self._undo = undo.pop_all()

    @property
    def is_needed(self) -> bool:
        """Whether no run could use the journal without it."""
        is_named = any(name.host == self._place.endpoint.host for name in self._found.names)
        return not is_known(self._place.known, self.journal_id) or bool(self.loss.commits) or not is_named

    @property
    def journal_id(self) -> str:
        """The journal's id."""
        return self._found.identity.journal_id

    @property
    def names(self) -> Sequence[str]:
        """The hosts at which the journal knows its merchant."""
        return sorted({name.host for name in self._found.names})

    def last_fact(self) -> tuple[int, str]:
        """Return the number and time of the last fact; 0 and the time of creation if there is none."""
        found = fetch(self._connection, "SELECT number, at FROM fact ORDER BY number DESC LIMIT 1")
        return found[0] if found else (0, self._found.identity.created_at)

    def carry_out(self, by: str) -> AcceptedRows:
        """Record what left since the copy was made, and that `by` calls it the newest; then this user knows it."""
        known, at, identity = self._place.known, self._place.now(), self._found.identity
        with known.held(at):
            check_beside(self._others(), self._beside, command=_COMMAND)  # another may have been created since
            try:
                rows, names = self._recorded(by, at)
                before = known.entry(identity.journal_id)
                names = tuple(dict.fromkeys((*names, *(() if before is None else before.names))))
                known.take(KnownJournal(identity.journal_id, names, str(self.path), identity.created_at))
                folder = known.folder(identity.journal_id)
                note_accepted(folder, {RUN, *writers(folder)}, self._end)
            except (apsw.Error, OSError) as error:
                raise JournalError(
                    say("The journal {path} cannot be written: {error}.", path=self.path, error=error)
                ) from None
        return rows

    def _end(self) -> tuple[int, str, str]:
        end = end_of(self._connection)
        return end.seq, end.hash.hex(), end.at

    def _recorded(self, by: str, at: str) -> tuple[AcceptedRows, tuple[EndpointIdentity, ...]]:
        """Commit the facts; return what became of rows, and the names that the journal then has."""
        record, endpoint = partial(record_last, self._connection), self._place.endpoint
        lost = LostRows(SqliteTables(self._connection), self.loss, by=by, at=at)
        for facts in lost.judge(lost.numbers) if lost.numbers else ():
            record(facts)
        lost.keep_unknown(record)
        notes = [Remark(Adopted(by, str(self.path)), at)]
        if endpoint not in self._found.names:
            notes.append(Remark(Named(endpoint, by), at))
        record(notes)
        fetch(self._connection, "UPDATE identity SET home = ?", (str(self.path),))
        names = evidence_in(self._connection).names(self._found.identity)
        fetch(self._connection, "COMMIT")
        return lost.rows, names

    def close(self) -> None:
        """Close the journal; nothing changes unless `carry_out` was called."""
        self._undo.close()

    def _survey(self) -> tuple[Found, Loss]:
        """Examine the journal through a connection that cannot change it, and compare it with what left from here."""
        known = self._place.known
        with closing(connect(self.path, write=False)) as connection:
            found = look_at(
                connection, self.path, endpoint=self._place.endpoint, left=lambda _: (), is_any_name_fine=True
            )
            if found is None:
                raise JournalMissing(
                    say("The journal {path} is empty.", path=self.path), hint=say("Name the file: --journal.")
                )
            journal_id = found.identity.journal_id
            check_home(self.path, found.identity, known.entry(journal_id))
            loss = find_loss(known.folder(journal_id), partial(present_in, connection))
        if not loss.is_whole:
            raise LeftDamaged(
                say(
                    "Not all that left from this machine since this copy was made is known: {folder}.",
                    folder=known.folder(journal_id),
                )
            )
        return found, loss

    def _others(self) -> Sequence[KnownJournal]:
        return self._place.known.paying((*self._found.names, self._place.endpoint), but=self.journal_id)

    def _begin(self) -> None:
        """Upgrade the tables and replay everything, in a transaction that rolls back unless it is committed."""
        try:
            fetch(self._connection, "BEGIN IMMEDIATE")
            migrate(self._connection, self._found.version, now=self._place.now())
            self.counts: Mapping[str, int] = verify(self._connection, self.path)
        except apsw.Error as error:
            leave_untouched(self._connection)
            raise JournalError(
                say("The journal {path} cannot be read: {error}.", path=self.path, error=error)
            ) from None


def present_in(connection: apsw.Connection, lines: Sequence[LeftLine]) -> Collection[LeftLine]:
    """Return those of some lines that are about facts which the journal has."""
    if not lines:
        return ()  # an empty array need not lie where SQLite can read it
    numbers = apsw.carray(array("q", {line.number for line in lines}))
    found = dict(fetch(connection, "SELECT number, hash FROM fact WHERE number IN carray(?)", (numbers,)))
    return {line for line in lines if not line.number or found.get(line.number) == bytes.fromhex(line.hash)}


_MOVE_COMMAND = "journal move"
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
            yield [text_of(one) if isinstance(one, str) else one for one in line]


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
            closing(RunLock(lock_path(path), now=now, command=_MOVE_COMMAND)),
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
    with closing(file_place.open_to_write(_MOVE_COMMAND)) as journal:
        journal.mark_interrupted(now)
        journal.judge_arrivals(words, at=now)
        with journal.moving(place.server.place), closing(connect(file_place.path, write=False)) as file:
            fetch(file, "BEGIN")
            counts = journal.verify()
            process = (socket.gethostname(), machine(), os.getpid(), _MOVE_COMMAND, "run", place.intent_lives_s)
            whole = _File(file)
            copied = copy_journal(session.connection, whole, process, at=now, by=by)
            if {name: counts[name] for name in counts.keys() & copied.keys()} != {
                name: copied[name] for name in counts.keys() & copied.keys()
            }:
                raise InternalError("the copy of a journal counts otherwise than the file")
    return copied


def _remember(place: DatabasePlace, identity: Identity, now: str) -> None:
    """Note where the journal is now, so that no copy of the file is taken for it."""
    with place.known.held(now):
        before = place.known.entry(identity.journal_id)
        names = (place.endpoint,) if before is None else before.names
        place.known.write(KnownJournal(identity.journal_id, names, place.server.place, identity.created_at))
