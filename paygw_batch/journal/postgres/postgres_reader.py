"""Reads the journal in PostgreSQL: everything that a command asks and that writes nothing."""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, assert_never

from psycopg import Connection, IsolationLevel
from psycopg.pq import TransactionStatus

from paygw_batch.core.evidence import Candidate
from paygw_batch.core.lifecycle import State
from paygw_batch.journal.facts.chain import Identity
from paygw_batch.journal.facts.history import history_of
from paygw_batch.journal.facts.inbox_chain import InboxEntry
from paygw_batch.journal.payment_port import FoundPayment, PaymentSearch
from paygw_batch.journal.port import VerifyProgress, unwatched
from paygw_batch.journal.postgres import kept_evidence
from paygw_batch.journal.postgres.batch_rows import (
    count_due,
    count_known,
    count_states,
    due_rows,
    find_rows,
    lines_of_batch,
)
from paygw_batch.journal.postgres.leasing.offered_chunks import workers_in
from paygw_batch.journal.postgres.replay import verify_journal
from paygw_batch.journal.postgres.session import Row, Session, fetch, plainly
from paygw_batch.journal.postgres.used_ids import (
    compare_ids,
    find_look_alikes,
    find_payments,
    find_repeated,
    find_spellings,
    payments_of_rows,
)
from paygw_batch.journal.shared_run import WorkerLife
from paygw_batch.journal.values import (
    AttemptReply,
    BatchRecord,
    Clash,
    Due,
    Head,
    HistoryEntry,
    InboxEnd,
    KeptReply,
    Known,
    LookAlike,
    Messages,
    RepeatedBatch,
    RowStanding,
    StateTally,
    TallyKind,
    UsedSpelling,
)

_RECORD = "number, batch, operation, sheet_name, sheet_sha256, rows, defects, opened_at, sheet_path, reference"
_OF_PEOPLE = "(f.instruction IS NULL OR (f.kind >= 'rel' AND f.kind < 's'))"
_HISTORY = f"""SELECT f.number, f.at, f.kind, f.details, i.row, f.attempt
    FROM fact f LEFT JOIN instruction i ON i.number = f.instruction WHERE f.batch = %s AND {_OF_PEOPLE}
    UNION ALL
    SELECT f.number, f.at, f.kind, f.details, k.row, f.attempt
    FROM fact f JOIN known k ON k.instruction = f.instruction WHERE k.batch = %s AND {_OF_PEOPLE}
    ORDER BY 1"""  # noqa: S608 - constants of ours
"""A fact belongs to the batch that brought its instruction; a batch also covers rows that another one brought."""


class WaitingInbox(Protocol):
    """The inbox of this host: the notifications that the journal has not taken in."""

    def after(self, taken: InboxEnd, *, limit: int) -> Sequence[InboxEntry]:
        """Return up to `limit` notifications that follow `taken`."""
        ...

    def verify(self, taken: InboxEnd) -> int:
        """Check all of it; return how many notifications follow `taken`."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class PostgresReader:
    """The journal in PostgreSQL, opened for reading.

    A reader alone sees one snapshot of it; the writer sees each call's own. Every method raises `JournalError`.
    """

    def __init__(
        self,
        session: Session,
        identity: Identity,
        inbox: WaitingInbox,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.notes = notes
        """Sentences about the journal as a whole that a person should read and that stop nothing."""
        self._session = session
        self._identity = identity
        self._inbox = inbox

    def workers(self) -> Sequence[WorkerLife]:
        """Return the workers that have not said their end, the newest sign of life first."""
        with self._snapshot() as connection:
            return workers_in(connection)

    def head(self) -> Head:
        """Return which journal it is, and how far it has come. The hash is over the ends of all chains."""
        with self._snapshot() as connection:
            found = fetch(connection, "SELECT facts, hash FROM seal ORDER BY number DESC LIMIT 1")
            facts, sealed = found[0] if found else (0, b"")
            ends = hashlib.sha256(self._identity.start.hash + sealed)
            query = "SELECT number, head_seq, head_hash FROM segment WHERE sealed_at IS NULL ORDER BY number"
            for number, seq, digest in fetch(connection, query):
                if seq:
                    ends.update(f"{number}\n{seq}\n".encode() + digest)
                    facts += seq
            return Head(
                self._identity.journal_id,
                facts,
                ends.hexdigest(),
                newest_time(connection),
                kept_evidence.taken_of_inbox(connection),
                kept_evidence.clock_in(connection),
            )

    def batches(self, *, plan_sha256: str = "") -> Sequence[BatchRecord]:
        """Return all batches, or the one that a plan opened, oldest first."""
        opened = "WHERE plan_sha256 = %s" if plan_sha256 else ""
        query = f"SELECT {_RECORD} FROM batch {opened} ORDER BY number"  # noqa: S608 - constants of ours
        return [BatchRecord(*line) for line in self._fetch(query, (plan_sha256,) if plan_sha256 else ())]

    def compare(self, operation: str, rows: Iterable[tuple[int, str, str]]) -> tuple[Sequence[Known], Sequence[Clash]]:
        """Hold (row, client_orderid, content) of a sheet against every order id ever used."""
        with self._snapshot() as connection:
            return compare_ids(connection, operation, rows)

    def look_alikes(
        self, operation: str, rows: Iterable[tuple[int, str, str, str, int]], *, since: str
    ) -> Sequence[LookAlike]:
        """Find (row, client_orderid, payee, currency, minor) paid under another id in a batch opened after `since`."""
        with self._snapshot() as connection:
            return find_look_alikes(connection, operation, rows, since)

    def used_spellings(self, operation: str, rows: Iterable[tuple[int, str, str]]) -> Sequence[UsedSpelling]:
        """Find rows whose order id was used in another spelling, and never as it is (see the port)."""
        with self._snapshot() as connection:
            return find_spellings(connection, operation, rows)

    def repeated_batches(
        self, operation: str, rows: Iterable[tuple[str, str, str, int]], *, since: str
    ) -> Sequence[RepeatedBatch]:
        """Count rows paid under other ids, by batch opened after `since` (see the port)."""
        with self._snapshot() as connection:
            return find_repeated(connection, operation, rows, since)

    def due(self, batch: int, *, after_row: int, limit: int) -> Sequence[Due]:
        """Return up to `limit` READY instructions of a batch with a row above `after_row`, in the sheet's order.

        One that evidence speaks against, and no person has answered, is held: it is left out.
        """
        with plainly(self._session.server):
            return due_rows(self._session.connection, batch, after_row, limit)

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
        with plainly(self._session.server):
            yield from find_rows(
                self._session.connection,
                batch,
                states=states,
                numbers=numbers,
                accepted_until=accepted_until,
                after=after,
                limit=limit,
            )

    def standing_lines(self, batch: int) -> Iterator[Sequence[tuple[int | str | None, ...]]]:
        """Yield all rows of a batch as plain lines (see the port)."""
        with plainly(self._session.server):
            yield from lines_of_batch(self._session.connection, batch)

    def pages(self, batch: int) -> Iterator[bytes]:
        """Yield the sheet as it was received, piece by piece."""
        for (number,) in self._fetch("SELECT number FROM page WHERE batch = %s ORDER BY number", (batch,)):
            query = "SELECT content FROM page WHERE batch = %s AND number = %s"
            ((content,),) = self._fetch(query, (batch, number))
            yield bytes(content)

    def customer_urls(self, batch: int) -> Mapping[int, str]:
        """Return the URLs where customers of a batch pay, by row, as the gateway named them for the latest attempt."""
        found = self._fetch(
            """SELECT c.row, f.details FROM covered c JOIN fact f ON f.instruction = c.instruction
            JOIN standing s ON s.instruction = f.instruction AND s.attempt = f.attempt
            WHERE c.batch = %s AND strpos(f.details, '"customer_url"') > 0 AND f.contradicts IS NULL
            ORDER BY f.instruction, f.nth""",
            (batch,),
        )
        return {row: json.loads(details)["customer_url"] for row, details in found}

    def tallies(
        self, batch: int, *, kind: TallyKind = TallyKind.ALL, accepted_until: str | None = None
    ) -> Sequence[StateTally]:
        """Return counts and sums of a batch, ordered by country, currency and state (see the port)."""
        with plainly(self._session.server):
            match kind:
                case TallyKind.KNOWN:
                    return count_known(self._session.connection, batch)
                case TallyKind.DUE:
                    return count_due(self._session.connection, batch)
                case TallyKind.ALL:
                    return count_states(self._session.connection, batch, accepted_until=accepted_until)
                case _:
                    assert_never(kind)

    def messages(self, batch: int | None = None) -> Messages:
        """Return the messages of the gateway about the rows of one batch, or of all."""
        with self._snapshot() as connection:
            return Messages(
                kept_evidence.contradictions_in(connection, batch),
                kept_evidence.waiting_in(connection, batch),
                kept_evidence.findings_in(connection, batch),
                {} if batch is None else kept_evidence.holds_in(connection, batch),
                [] if batch is None else kept_evidence.carried_out_in(connection, batch),
                [] if batch is None else kept_evidence.orders_in(connection, batch),
            )

    def orders(self, order_id: str) -> Sequence[Candidate]:
        """Return the instructions of every operation that go, or went, by an order id."""
        with plainly(self._session.server):
            return kept_evidence.candidates_in(self._session.connection, order_id)

    def history(self, batch: int) -> Sequence[HistoryEntry]:
        """Return the acts of people on a batch and on the rows it covers, oldest first."""
        return [
            entry
            for seq, at, kind, details, row, attempt in self._fetch(_HISTORY, (batch, batch))
            for entry in history_of(seq, at, kind, details, row=row, attempt=attempt)
        ]

    def find_payments(self, search: PaymentSearch, *, limit: int) -> Sequence[FoundPayment]:
        """Return up to `limit` payments of all batches that a search fits, the newest first."""
        with self._snapshot() as connection:
            return find_payments(connection, search, limit)

    def payments(self, batch: int, rows: Collection[int]) -> Mapping[int, FoundPayment]:
        """Return the payments of some rows of a batch, by row (see the port)."""
        with self._snapshot() as connection:
            return payments_of_rows(connection, batch, rows)

    def replies(self, number: int) -> Sequence[AttemptReply]:
        """Return the raw replies that are kept about an instruction, oldest first."""
        found = self._fetch(
            """SELECT f.attempt, f.at, r.head, r.body FROM reply r
            JOIN fact f ON f.instruction = r.instruction AND f.nth = r.nth WHERE r.instruction = %s ORDER BY r.nth""",
            (number,),
        )
        return [AttemptReply(attempt, at, KeptReply(head.decode(), body)) for attempt, at, head, body in found]

    def verify(self, progress: VerifyProgress = unwatched) -> Mapping[str, int]:
        """Replay the whole journal, and check its inbox; return the counts by name (see the port)."""
        with self._snapshot() as connection:
            counted = verify_journal(connection, self._identity, progress)
            taken = kept_evidence.taken_of_inbox(connection)
        return {**counted, "notifications_waiting": self._inbox.verify(taken)}

    def close(self) -> None:
        """Let go of the journal. It can be opened again."""
        self._inbox.close()
        self._session.close()

    def _fetch(self, query: str, values: Sequence[object] = ()) -> list[Row]:
        with plainly(self._session.server):
            return fetch(self._session.connection, query, values)

    @contextmanager
    def _snapshot(self) -> Iterator[Connection[Row]]:
        """Let many statements see one state of the journal."""
        connection = self._session.connection
        with plainly(self._session.server):
            if connection.info.transaction_status != TransactionStatus.IDLE:
                yield connection
                return
            connection.isolation_level, connection.read_only = IsolationLevel.REPEATABLE_READ, True
            try:
                with connection.transaction():
                    yield connection
            finally:
                if not connection.closed:
                    connection.isolation_level, connection.read_only = None, None


def newest_fact(connection: Connection[Row]) -> str:
    """Return the newest time of the facts; nothing before the first."""
    ((newest,),) = fetch(connection, "SELECT coalesce(max(head_at), '') FROM segment")
    return str(newest)


def newest_time(connection: Connection[Row]) -> str:
    """Return the newest time of the journal: no fact and no evidence is later."""
    return max(newest_fact(connection), kept_evidence.newest_evidence(connection))
