"""Reading the journal on disk: everything a command asks that writes nothing."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw

from paygw_batch.core.evidence import Candidate
from paygw_batch.core.instruction import Instruction
from paygw_batch.core.lifecycle import Standing, State
from paygw_batch.errors import JournalCorrupt, JournalError
from paygw_batch.journal.facts.codec import BATCH_OPENED
from paygw_batch.journal.facts.history import HISTORY_KINDS, history_of
from paygw_batch.journal.facts.progress import amendable
from paygw_batch.journal.payment_port import FoundPayment, PaymentSearch
from paygw_batch.journal.sqlite import messages, replies, spellings
from paygw_batch.journal.sqlite import states as states_disk
from paygw_batch.journal.sqlite.backup import write_backup
from paygw_batch.journal.sqlite.connect import fetch
from paygw_batch.journal.sqlite.inbox import InboxReader, inbox_path
from paygw_batch.journal.sqlite.rows import CONTENT, STATES
from paygw_batch.journal.sqlite.schema import end_of, identity_of
from paygw_batch.journal.sqlite.search import payments_in
from paygw_batch.journal.sqlite.verify import verify
from paygw_batch.journal.values import (
    AttemptReply,
    BatchRecord,
    CarriedOut,
    Clash,
    ClockSeen,
    Contradiction,
    Due,
    Head,
    HistoryEntry,
    Hold,
    InboxEnd,
    Known,
    LookAlike,
    RepeatedBatch,
    RowStanding,
    StateTally,
    UsedReference,
    UsedSpelling,
    WaitingEvidence,
)

_RECORD = "number, batch, operation, sheet_name, sheet_sha256, rows, defects, opened_at, sheet_path"
"""The columns of a batch that `BatchRecord` has."""
_KINDS = ", ".join(f"'{kind}'" for kind in (BATCH_OPENED, *HISTORY_KINDS))
_OF_PEOPLE = f"f.kind IN ({_KINDS})"
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

    @property
    def journal_id(self) -> str:
        """Which journal it is: 32 hex digits."""
        with self._plainly():
            return identity_of(self._connection).journal_id

    def head(self) -> Head:
        """Return the end of the chain."""
        with self._plainly():
            end = end_of(self._connection)
        return Head(end.seq, end.hash.hex())

    def batches(self) -> Sequence[BatchRecord]:
        """Return all batches, oldest first."""
        return [BatchRecord(*line) for line in self._fetch(f"SELECT {_RECORD} FROM batch ORDER BY number")]  # noqa: S608 - ours

    def opened_by_plan(self, plan_sha256: str) -> BatchRecord | None:
        """Return the batch that the plan with this digest opened, if it has opened one."""
        found = self._fetch(
            f"""SELECT {_RECORD} FROM batch WHERE number IN (SELECT batch FROM fact
            WHERE kind = 'batch_opened' AND json_extract(details, '$.plan_sha256') = ?)""",  # noqa: S608 - ours
            (plan_sha256,),
        )
        return next((BatchRecord(*line) for line in found), None)

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

    def references(self, operation: str) -> Sequence[UsedReference]:
        """Return every reference that a batch's order ids were derived from, with each batch, oldest first."""
        with self._plainly():
            return spellings.references(self._connection, operation)

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
        """Return where customers of a batch go to pay, by row: what the gateway named for the latest attempt."""
        # The few facts that name one are found first, in one look through all: no index is kept for them.
        found = self._fetch(
            """SELECT c.row, f.details FROM fact f CROSS JOIN standing s ON s.instruction = f.instruction
            JOIN covered c ON c.instruction = f.instruction AND c.batch = ?
            WHERE f.details LIKE '%"customer_url"%' AND f.attempt = s.attempt AND f.contradicts IS NULL
            ORDER BY f.seq""",
            (batch,),
        )
        return {row: json.loads(details)["customer_url"] for row, details in found}

    def tallies(self, batch: int, *, accepted_until: str | None = None) -> Sequence[StateTally]:
        """Return counts and sums of a batch, ordered by country, currency and state (see the port)."""
        with self._plainly(), self._snapshot():
            return states_disk.tallies(self._connection, batch, accepted_until)

    def known_tallies(self, batch: int) -> Sequence[StateTally]:
        """Return counts and sums of those rows of a batch that an earlier batch brought."""
        with self._plainly(), self._snapshot():
            return states_disk.known_tallies(self._connection, batch)

    def due_counts(self, batch: int) -> Mapping[str, int]:
        """Return how many rows of each country `due` has for a batch."""
        with self._plainly(), self._snapshot():
            return states_disk.due_counts(self._connection, batch)

    def contradictions(self, batch: int | None = None) -> Sequence[Contradiction]:
        """Return the facts that changed nothing, of one batch or of all, but those a person has answered since."""
        found = self._fetch(
            """SELECT f.seq, b.batch, c.row, i.client_orderid, f.contradicts, f.kind, f.attempt, f.at
            FROM fact f JOIN instruction i ON i.number = f.instruction
            JOIN covered c ON c.instruction = i.number AND c.batch = coalesce(?1, i.batch)
            JOIN batch b ON b.number = c.batch
            WHERE f.contradicts IS NOT NULL AND NOT EXISTS (
                SELECT 1 FROM evidence answer WHERE answer.instruction = f.instruction
                    AND answer.finding = 'resolved' AND answer.fact > f.seq
            ) ORDER BY f.seq""",
            (batch,),
        )
        return [
            Contradiction(seq, batch_id, row, client_orderid, STATES[state], kind, attempt, at)
            for seq, batch_id, row, client_orderid, state, kind, attempt, at in found
        ]

    def evidence_waiting(self, batch: int | None = None) -> Sequence[WaitingEvidence]:
        """Return the evidence that waits for a person, of one batch or of all."""
        with self._plainly():
            return messages.waiting(self._connection, batch)

    def evidence_counts(self, batch: int | None = None) -> Mapping[str, int]:
        """Return how much evidence there is of each finding, about the rows of one batch or in all."""
        with self._plainly():
            return messages.counts(self._connection, batch)

    def holds(self, batch: int) -> Mapping[int, Hold]:
        """Return what holds rows of a batch that are ready, by row: no run sends them."""
        with self._plainly():
            return messages.holds(self._connection, batch)

    def candidates(self, order_id: str) -> Sequence[Candidate]:
        """Return the instructions of every operation that go, or went, by an order id."""
        with self._plainly():
            return messages.candidates_of(self._connection, order_id)

    def carried_out(self, batch: str) -> Sequence[CarriedOut]:
        """Return the statements that were carried out for a batch (its id), oldest first."""
        with self._plainly():
            return messages.carried_out(self._connection, batch)

    def clock_seen(self) -> ClockSeen | None:
        """Return how far our clock was from the gateway's when that was last noted (see the port)."""
        with self._plainly():
            return messages.clock_seen(self._connection)

    def newest_time(self) -> str:
        """Return the newest time in the journal: no fact and no evidence is later."""
        with self._plainly():
            return max(end_of(self._connection).at, messages.newest_time(self._connection))

    def inbox_end(self) -> InboxEnd:
        """Return how far the notifications of the inbox were taken in."""
        with self._plainly():
            return messages.inbox_end(self._connection)

    def history(self, batch: int) -> Sequence[HistoryEntry]:
        """Return what people did to a batch and to the rows it covers, in the order they did it."""
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

    def replies(self, number: int) -> Sequence[AttemptReply]:
        """Return the raw replies that are kept about an instruction, oldest first."""
        with self._plainly():
            return replies.of_instruction(self._connection, number)

    def verify(self) -> Mapping[str, int]:
        """Replay the whole journal; return what was counted. Raises `JournalCorrupt`, naming the first wrong place."""
        with self._plainly(), self._snapshot():
            return verify(self._connection, self.path)

    def backup(self, path: Path) -> None:
        """Write a copy of the journal as it is now to `path`, and of its inbox beside it; also while a run is on.

        The copy is for safekeeping and for `verify`: a run refuses it while the journal it was made of still stands,
        or when that one went on after it. Raises `OutputError` when the copy cannot be written or `path` exists.
        """
        with self._plainly():
            sources = {path: self._connection}
            with closing(InboxReader(inbox_path(self.path))) as inbox:
                if (connection := inbox.connection()) is not None:
                    sources[inbox_path(path)] = connection
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
        """Find what `query` finds for each of many rows, all in one snapshot."""
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
            raise JournalCorrupt(f"The journal {self.path} is damaged: {error}.") from None
        except apsw.Error as error:
            raise JournalError(f"The journal {self.path} cannot be read: {error}.") from None
