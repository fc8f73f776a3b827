"""Reads the journal: everything that a command asks and that writes nothing."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, assert_never

import apsw

from paygw_batch.core.evidence import Candidate
from paygw_batch.core.instruction import Instruction
from paygw_batch.core.lifecycle import Standing, State
from paygw_batch.errors import JournalCorrupt, JournalError
from paygw_batch.journal.facts.history import history_of
from paygw_batch.journal.facts.progress import amendable
from paygw_batch.journal.guards.location import audit_path, check_file
from paygw_batch.journal.payment_port import FoundPayment, PaymentSearch
from paygw_batch.journal.port import VerifyProgress, unwatched
from paygw_batch.journal.sqlite import messages, replies, spellings
from paygw_batch.journal.sqlite import states as states_disk
from paygw_batch.journal.sqlite.backup import write_backup
from paygw_batch.journal.sqlite.connect import connect, fetch
from paygw_batch.journal.sqlite.inbox import InboxReader, inbox_path
from paygw_batch.journal.sqlite.rows import CONTENT, STATES
from paygw_batch.journal.sqlite.schema import end_of, identity_of
from paygw_batch.journal.sqlite.search import payments_in, payments_of
from paygw_batch.journal.sqlite.verify import verify
from paygw_batch.journal.values import (
    AttemptReply,
    BatchRecord,
    Clash,
    Due,
    Head,
    HistoryEntry,
    Known,
    LookAlike,
    Messages,
    RepeatedBatch,
    RowStanding,
    StateTally,
    TallyKind,
    UsedSpelling,
)
from paygw_batch.language import say

_RECORD = """b.number, b.batch, b.operation, b.sheet_name, b.sheet_sha256, b.rows, b.defects, b.opened_at, b.sheet_path,
    coalesce(r.reference, '')"""
"""The columns of a batch that `BatchRecord` has."""
_OPENED_BY_PLAN = "SELECT batch FROM fact WHERE kind = 'batch_opened' AND json_extract(details, '$.plan_sha256') = ?"
_OF_PEOPLE = "(f.instruction IS NULL OR (f.kind >= 'rel' AND f.kind < 's'))"
"""The condition of the index in `schema-4.sql`, word for word: for no other condition SQLite uses a partial index."""
_HISTORY = f"""SELECT f.seq, f.at, f.kind, f.details, i.row, f.attempt
    FROM fact f INDEXED BY fact_of_people LEFT JOIN instruction i ON i.number = f.instruction
    WHERE f.batch = ?1 AND {_OF_PEOPLE}
    UNION ALL
    SELECT f.seq, f.at, f.kind, f.details, k.row, f.attempt
    FROM fact f INDEXED BY fact_of_people CROSS JOIN known k ON k.batch = ?1 AND k.instruction = f.instruction
    WHERE {_OF_PEOPLE}
    ORDER BY 1"""  # noqa: S608 - constants of ours
"""A fact belongs to the batch that brought its instruction; a batch also covers rows that another one brought."""


class SqliteReader:
    """A journal on disk, opened for reading: one snapshot of it, also while a run writes it.

    Every method raises `JournalCorrupt` for what SQLite finds damaged, and `JournalError` for what it cannot read.
    """

    def __init__(self, connection: apsw.Connection, path: Path, notes: tuple[str, ...] = ()) -> None:
        self.path = path
        self.notes = notes
        """Sentences about the journal as a whole that a person should read and that stop nothing."""
        self._connection = connection

    def head(self) -> Head:
        """Return which journal it is, and how far it has come."""
        with self._plainly(), self._snapshot():
            connection = self._connection
            end = end_of(connection)
            return Head(
                identity_of(connection).journal_id,
                end.seq,
                end.hash.hex(),
                self._newest_time(),
                messages.inbox_end(connection),
                messages.clock_seen(connection),
            )

    def batches(self, *, plan_sha256: str = "") -> Sequence[BatchRecord]:
        """Return all batches, or the one that a plan opened, oldest first."""
        opened = f"WHERE b.number IN ({_OPENED_BY_PLAN})" if plan_sha256 else ""
        query = f"SELECT {_RECORD} FROM batch b LEFT JOIN batch_reference r ON r.batch = b.number {opened} ORDER BY 1"  # noqa: S608 - ours
        return [BatchRecord(*line) for line in self._fetch(query, (plan_sha256,) if plan_sha256 else ())]

    def compare(self, operation: str, rows: Iterable[tuple[int, str, str]]) -> tuple[Sequence[Known], Sequence[Clash]]:
        """Hold (row, client_orderid, content) of a sheet against every order id ever used."""
        known, clashes = [], []
        query = f"""SELECT ?1, ?2, p.number, p.client_orderid = ?2, {CONTENT} = ?3, p.state, p.attempt,
                p.possible_duplicate_of, p.intended_at, b.batch, p.row, b.opened_at
            FROM order_id o JOIN progress p ON p.number = o.instruction JOIN batch b ON b.number = p.batch
            WHERE o.operation = ?4 AND o.order_id = ?2"""  # noqa: S608 - a constant of ours
        with self._each(query, ((*row, operation) for row in rows)) as found:
            for row, order_id, number, is_its_own, is_same, word, attempt, mark, intended_at, *where in found:
                state, (batch, sheet_row, opened_at) = STATES[word], where
                if is_its_own and is_same:
                    known.append(Known(row, number, state))
                    continue
                standing = Standing(state, attempt, possible_duplicate_of=mark)
                # An id that an instruction was sent under after a release is no one else's to amend.
                may_amend = bool(is_its_own) and amendable(standing)
                may_amend = may_amend and not messages.held_among(self._connection, (number,))
                since = intended_at if standing.is_rejected_by_person else None
                clashes.append(Clash(row, order_id, number, batch, sheet_row, opened_at, state, may_amend, since))
        return known, clashes

    def look_alikes(
        self, operation: str, rows: Iterable[tuple[int, str, str, str, int]], *, since: str
    ) -> Sequence[LookAlike]:
        """Find (row, client_orderid, payee, currency, minor) paid under another id in a batch opened after `since`.

        For each row the newest such instruction is named, by its own order id, batch and opening time.
        """
        query = """SELECT ?1, i.client_orderid, b.batch, b.opened_at
            FROM instruction i JOIN batch b ON b.number = i.batch
            WHERE i.payee = ?3 AND i.minor = ?5 AND i.currency = ?4 AND i.client_orderid <> ?2
                AND b.operation = ?6 AND b.opened_at > ?7
            ORDER BY i.number DESC LIMIT 1"""
        lately = "SELECT 1 FROM batch WHERE operation = ? AND opened_at > ? LIMIT 1"
        if not self._fetch(lately, (operation, since)):
            return []
        with self._each(query, ((*row, operation, since) for row in rows)) as found:
            return [LookAlike(*line) for line in found]

    def used_spellings(self, operation: str, rows: Iterable[tuple[int, str, str]]) -> Sequence[UsedSpelling]:
        """Find rows whose order id was used in another spelling, and never as it is (see the port)."""
        with self._plainly():
            if not spellings.has_order_ids(self._connection, operation):
                return []
        with self._each(spellings.HAS_SPELLING, ((*row, operation) for row in rows)) as candidates:
            used = list(candidates)
        with self._each(spellings.USED_SPELLINGS, ((*row, operation) for row in used)) as found:
            return [UsedSpelling(*line) for line in found]

    def repeated_batches(
        self, operation: str, rows: Iterable[tuple[str, str, str, int]], *, since: str
    ) -> Sequence[RepeatedBatch]:
        """Count rows paid under other ids, by batch opened after `since` (see the port)."""
        with self._each(spellings.REPEATED_BATCHES, ((*row, operation, since) for row in rows)) as found:
            batches = Counter(number for (number,) in found)
        with self._plainly():
            return spellings.counted(self._connection, batches)

    def due(self, batch: int, *, after_row: int, limit: int) -> Sequence[Due]:
        """Return up to `limit` READY instructions of a batch with a row above `after_row`, in the sheet's order.

        One that evidence speaks against, and no person has answered, is held: it is left out.
        """
        found = self._fetch(
            f"""SELECT p.number, c.row, p.client_orderid, p.country, p.currency, p.amount, p.form, p.fields, p.order_id,
                p.attempt, p.generation, p.possible_duplicate_of
            FROM covered c JOIN progress p ON p.number = c.instruction
            WHERE c.batch = ? AND c.row > ? AND p.state = 'ready' AND NOT {messages.IS_CONTESTED}
            ORDER BY c.row LIMIT ?""",  # noqa: S608 - a constant of ours
            (batch, after_row, limit),
        )
        return [
            Due(
                number,
                row,
                Instruction(client_orderid, country, currency, amount, form, json.loads(fields)),
                Standing(State.READY, *standing),
                order_id,
            )
            for number, row, client_orderid, country, currency, amount, form, fields, order_id, *standing in found
        ]

    def rows(
        self,
        batch: int,
        *,
        states: Collection[State] | None = None,
        numbers: Collection[int] | None = None,
        accepted_until: str | None = None,
        after: int = 0,
        limit: int | None = None,
    ) -> Iterator[RowStanding]:
        """Yield the wanted rows of a batch, in the sheet's order (see the port)."""
        with self._plainly():
            yield from states_disk.rows(
                self._connection,
                batch,
                states=states,
                numbers=numbers,
                accepted_until=accepted_until,
                after=after,
                limit=limit,
            )

    def standing_lines(self, batch: int) -> Iterator[Sequence[tuple[int | str | None, ...]]]:
        """Yield all rows of a batch as plain lines (see the port)."""
        with self._plainly():
            yield from states_disk.standing_lines(self._connection, batch)

    def pages(self, batch: int) -> Iterator[bytes]:
        """Yield the sheet as it was received, piece by piece."""
        for (number,) in self._fetch("SELECT number FROM page WHERE batch = ? ORDER BY number", (batch,)):
            ((content,),) = self._fetch("SELECT content FROM page WHERE batch = ? AND number = ?", (batch, number))
            yield content

    def customer_urls(self, batch: int) -> Mapping[int, str]:
        """Return the URLs where customers of a batch pay, by row, as the gateway named them for the latest attempt."""
        found = self._fetch(
            """SELECT c.row, f.details FROM covered c
            CROSS JOIN fact f INDEXED BY fact_of_customer_page ON f.instruction = c.instruction
            JOIN standing s ON s.instruction = f.instruction AND s.attempt = f.attempt
            WHERE c.batch = ? AND instr(f.details, '"customer_url"') > 0 AND f.contradicts IS NULL
            ORDER BY f.seq""",
            (batch,),
        )
        return {row: json.loads(details)["customer_url"] for row, details in found}

    def tallies(
        self, batch: int, *, kind: TallyKind = TallyKind.ALL, accepted_until: str | None = None
    ) -> Sequence[StateTally]:
        """Return counts and sums of a batch, ordered by country, currency and state (see the port)."""
        with self._plainly(), self._snapshot():
            match kind:
                case TallyKind.KNOWN:
                    return states_disk.known_tallies(self._connection, batch)
                case TallyKind.DUE:
                    return states_disk.due_tallies(self._connection, batch)
                case TallyKind.ALL:
                    return states_disk.tallies(self._connection, batch, accepted_until)
                case _:
                    assert_never(kind)

    def messages(self, batch: int | None = None) -> Messages:
        """Return the messages of the gateway about the rows of one batch, or of all."""
        connection = self._connection
        with self._plainly(), self._snapshot():
            return Messages(
                messages.contradictions(connection, batch),
                messages.waiting(connection, batch),
                messages.counts(connection, batch),
                {} if batch is None else messages.holds(connection, batch),
                [] if batch is None else messages.carried_out(connection, batch),
                [] if batch is None else messages.orders(connection, batch),
            )

    def orders(self, order_id: str) -> Sequence[Candidate]:
        """Return the instructions of every operation that go, or went, by an order id."""
        with self._plainly():
            return messages.candidates_of(self._connection, order_id)

    def _newest_time(self) -> str:
        return max(end_of(self._connection).at, messages.newest_time(self._connection))

    def history(self, batch: int) -> Sequence[HistoryEntry]:
        """Return the acts of people on a batch and on the rows it covers, oldest first."""
        with self._plainly(), self._snapshot():
            found = fetch(self._connection, _HISTORY, (batch,))
        return [
            entry
            for seq, at, kind, details, row, attempt in found
            for entry in history_of(seq, at, kind, details, row=row, attempt=attempt)
        ]

    def find_payments(self, search: PaymentSearch, *, limit: int) -> Sequence[FoundPayment]:
        """Return up to `limit` payments of all batches that a search fits, the newest first."""
        with self._plainly(), self._snapshot():
            return payments_in(self._connection, search, limit)

    def payments(self, batch: int, rows: Collection[int]) -> Mapping[int, FoundPayment]:
        """Return the payments of some rows of a batch, by row (see the port)."""
        with self._plainly():
            return payments_of(self._connection, states_disk.numbered(self._connection, batch, rows))

    def replies(self, number: int) -> Sequence[AttemptReply]:
        """Return the raw replies that are kept about an instruction, oldest first."""
        with self._plainly():
            return replies.of_instruction(self._connection, number)

    def verify(self, progress: VerifyProgress = unwatched) -> Mapping[str, int]:
        """Replay the whole journal, and check its inbox; return the counts by name (see the port)."""
        with self._plainly(), self._snapshot(), closing(InboxReader(inbox_path(self.path))) as inbox:
            counted = verify(self._connection, self.path, in_parallel=True, progress=progress)
            return {**counted, "notifications_waiting": inbox.verify(messages.inbox_end(self._connection))}

    def backup(self, path: Path) -> None:
        """Write a copy of the journal as it is now to `path`, of its inbox and its audit trail beside it.

        It may be called while a run is on.

        The copy is for safekeeping and for `verify`: a run refuses it while the journal it was made of still stands,
        or when that one went on after it. Raises `OutputError` when the copy cannot be written or `path` exists.
        """
        with self._plainly(), ExitStack() as undo:
            sources = {path: self._connection}
            inbox = undo.enter_context(closing(InboxReader(inbox_path(self.path))))
            if (connection := inbox.connection()) is not None:
                sources[inbox_path(path)] = connection
            if check_file(trail := audit_path(self.path)):
                connected = connect(trail, write=False, what="audit trail")
                sources[audit_path(path)] = undo.enter_context(closing(connected))
            write_backup(sources)

    def close(self) -> None:
        """Let go of the journal. It can be opened again."""
        # All that was committed is durable already; if the log cannot be emptied now, the next run does it.
        with suppress(apsw.Error):
            self._connection.close()

    def _fetch(self, query: str, bindings: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._plainly():
            return fetch(self._connection, query, bindings)

    @contextmanager
    def _each(self, query: str, rows: Iterable[Sequence[Any]]) -> Iterator[Iterator[tuple[Any, ...]]]:
        """Run `query` for each of many rows, all in one snapshot, and yield its results."""
        cursor = self._connection.cursor()
        with self._plainly(), self._snapshot():
            try:
                yield cursor.executemany(query, rows)
            finally:
                cursor.close(force=True)

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Let many statements see one state of the journal; it is also cheaper than a snapshot for each."""
        if self._connection.in_transaction:
            yield
            return
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("COMMIT")

    @contextmanager
    def _plainly(self) -> Iterator[None]:
        try:
            yield
        except (apsw.CorruptError, apsw.NotADBError) as error:
            raise JournalCorrupt(say("The journal {path} is damaged: {error}.", path=self.path, error=error)) from None
        except apsw.Error as error:
            raise JournalError(
                say("The journal {path} cannot be read: {error}.", path=self.path, error=error)
            ) from None
