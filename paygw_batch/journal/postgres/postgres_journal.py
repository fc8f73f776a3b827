"""Writes the journal in PostgreSQL.

Every write is one transaction, made durable before its call returns, and the witness of this host is told of it before
anything may be sent on it. Facts go to the chain of a lease: those of a run to the lease of its chunk, everything else
to the desk. A commit that names a chain which another process has closed since does nothing.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial

import psycopg
from psycopg import Connection

from paygw_batch.core.evidence import Evidence, Finding, SignedOrder
from paygw_batch.core.lifecycle import Released, Replaced, State, is_in_quarantine
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.core.spelling import spelled_alike
from paygw_batch.errors import InternalError
from paygw_batch.journal.batch_part import BatchPart, record_of
from paygw_batch.journal.facts.chain import Identity, opening_line
from paygw_batch.journal.facts.digest import OpeningDigests
from paygw_batch.journal.facts.progress import amendable, next_order_id, storable, succeed
from paygw_batch.journal.kept_notification import evidence_of
from paygw_batch.journal.postgres import kept_evidence
from paygw_batch.journal.postgres.batch_copy import copy_batch
from paygw_batch.journal.postgres.leasing.chunk_journal import ChunkJournal
from paygw_batch.journal.postgres.leasing.desk_writer import DeskWriter
from paygw_batch.journal.postgres.leasing.lease_writer import LeaseWriter
from paygw_batch.journal.postgres.leasing.offered_chunks import OfferedRun, start_run, withdraw_run
from paygw_batch.journal.postgres.leasing.postgres_gate import PostgresGate
from paygw_batch.journal.postgres.postgres_reader import PostgresReader, WaitingInbox, newest_fact, newest_time
from paygw_batch.journal.postgres.session import Row, Session, conflicting_lines, fetch
from paygw_batch.journal.postgres.standing_lines import (
    CHUNK_OF_ROW,
    LOADED,
    Loaded,
    load_instructions,
    loaded_from,
)
from paygw_batch.journal.postgres.used_ids import is_used
from paygw_batch.journal.values import (
    Amendment,
    BatchRecord,
    CarriedOut,
    ClockSeen,
    Entry,
    Known,
    MoveResult,
    NewBatch,
)

_AT_ONCE = 10_000
_NOTIFICATIONS_AT_ONCE = 200


class PostgresJournal(PostgresReader):
    """A journal in PostgreSQL, held by a run. Called from one thread at a time."""

    def __init__(
        self,
        session: Session,
        identity: Identity,
        writer: LeaseWriter,
        desk: DeskWriter,
        inbox: WaitingInbox,
        *,
        chunk_rows: int,
        notes: tuple[str, ...] = (),
    ) -> None:
        super().__init__(session, identity, inbox, notes)
        self.writer = writer
        self._desk = desk
        self._chunk_rows = chunk_rows

    def open_batch(
        self,
        batch: NewBatch,
        *,
        parts: Iterable[BatchPart],
        known: Iterable[Known],
        amendments: Iterable[Amendment],
        at: str,
    ) -> BatchRecord:
        """Make a whole batch durable in one transaction, or nothing of it (see the port)."""
        batch = replace(batch, sheet_name=storable(batch.sheet_name), sheet_path=storable(batch.sheet_path))
        if batch.plan_sha256 and self.batches(plan_sha256=batch.plan_sha256):
            raise InternalError("a plan that has opened a batch was about to open another")
        amended = {amendment.row: amendment for amendment in amendments}
        replaced = {row: amendment.instruction for row, amendment in amended.items()}
        with self._writing() as connection:
            at = max(at, newest_fact(connection))
            number = _next_number(connection, "batch")
            digests = OpeningDigests(batch, _next_number(connection, "instruction"))
            record = record_of(batch, number, at)
            with conflicting_lines(f"batch {batch.batch} is already open, or a row or an order id of it is taken"):
                reference = copy_batch(
                    connection,
                    record,
                    batch.plan_sha256,
                    digests,
                    parts,
                    known,
                    replaced,
                    self._chunk_rows,
                )
            opened = digests.opened()
            self._desk.record_opening(lambda end: opening_line(end, at, number, opened))
            self._amend(connection, record, amended, at)
        with suppress(psycopg.Error):  # without figures about a new batch the server guesses its size, and reads it all
            fetch(self._session.connection, "ANALYZE instruction, known, order_id, chunk")
        return replace(record, reference=reference)

    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Make facts durable in one transaction, and move their instructions, as `EngineJournal.append` does.

        Raises `InternalError` for a release or a replacement: those claim order ids, and come through `release` and
        `open_batch`; and for an intent of a row whose chunk is not leased.
        """
        if any(isinstance(entry.fact, Released | Replaced) for entry in entries):
            raise InternalError("a release or a replacement cannot be appended by itself")
        return self.writer.append(entries)

    def settle(
        self,
        entries: Sequence[Entry],
        *,
        note: CarriedOut | ClockSeen | None = None,
        order: SignedOrder | None = None,
    ) -> None:
        """Make people's words about rows durable in one transaction, or none; they lift holds (see the port)."""
        with self._writing() as connection:
            kept_evidence.settle_rows(connection, self._identity, entries, self._desk.record)
            kept_evidence.keep_notes(connection, self._identity, note, order, newest=newest_time(connection))

    def conclude_dead(self, at: str) -> int:
        """Put the instructions in flight in doubt whose run is over, and return how many there were."""
        return self.writer.conclude(at)

    def release(
        self,
        batch: int,
        rows: Sequence[int] | None,
        *,
        suffix: bool,
        by: str,
        at: str,
        left_until: str = "",
        order: SignedOrder | None = None,
    ) -> int:
        """Release the rejected rows of a batch (all, or those named) for another attempt (see the port)."""
        released = 0
        named = "" if rows is None else "AND c0.row = ANY (%s)"
        query = f"""SELECT c0.row, b.operation, {LOADED} FROM covered c0 JOIN progress p ON p.number = c0.instruction
            JOIN batch b ON b.number = p.batch {CHUNK_OF_ROW}
            WHERE c0.batch = %s AND c0.row > %s AND p.state = 'rejected' {named}
            ORDER BY c0.row LIMIT {_AT_ONCE}"""  # noqa: S608 - constants of ours
        with self._writing() as connection:
            after = 0
            while found := fetch(connection, query, (batch, after, *(() if rows is None else (list(rows),)))):
                after = found[-1][0]
                entries = []
                for _, operation, *columns in found:
                    one = loaded_from(columns)
                    if not is_in_quarantine(one.progress.standing, one.progress.intended_at, left_until):
                        entries.append(_release_entry(connection, operation, one, suffix, by, at))
                self._desk.record(entries)
                released += len(entries)
            kept_evidence.keep_notes(connection, self._identity, order, newest=newest_time(connection))
        return released

    def take_in(self, evidence: Sequence[Evidence], words: Mapping[str, OutcomeKind], *, at: str) -> Sequence[Finding]:
        """Keep evidence in order and apply the facts it proves, all in one transaction (see the port)."""
        with self._writing() as connection:
            at = max(at, newest_time(connection))
            return kept_evidence.take_in_evidence(connection, self._identity, evidence, words, self._desk.record, at)

    def take_in_waiting(
        self, words: Mapping[str, OutcomeKind], *, at: str, at_most: int | None = None
    ) -> Counter[Finding]:
        """Take in the notifications that wait in the inbox of this host, each once (see the port)."""
        findings: Counter[Finding] = Counter()
        while at_most is None or findings.total() < at_most:
            with self._snapshot() as connection:
                taken = kept_evidence.taken_of_inbox(connection)
            waiting = self._inbox.after(taken, limit=_NOTIFICATIONS_AT_ONCE)
            if not waiting:
                break
            found = self.take_in([evidence_of(one) for one in waiting], words, at=at)
            findings.update(found)
            if len(found) < len(waiting):
                break
        return findings

    def hand_over(self, batch: int, *, waits: bool = False) -> OfferedRun | None:
        """Let workers send the due rows of a batch, and let go of the desk (see the port)."""
        if not waits and not any(one.is_alive for one in self.workers()):
            self.writer.ask(partial(withdraw_run, batch=batch))
            return None
        run = self.writer.ask_at_length(partial(start_run, batch=batch, worker=self.writer.worker))
        self._desk.leave()
        return OfferedRun(run.number, self.writer.ask)

    @contextmanager
    def for_engine(self) -> Iterator[ChunkJournal]:
        """Give the journal to an engine: until the block ends, only the engine uses it."""
        with closing(ChunkJournal(self, self.writer)) as given:
            yield given

    def gate(self) -> PostgresGate:
        """Return the limits of the endpoint, which this process shares with other workers."""
        return PostgresGate(self._session.server, self.writer.worker)

    def close(self) -> None:
        """Let go of the journal, and give its leases back. It can be opened again."""
        try:
            self.writer.close()
        finally:
            super().close()

    @contextmanager
    def _writing(self) -> Iterator[Connection[Row]]:
        """One transaction at the desk, in which no fact is earlier than those that are there."""
        with self._desk.writing() as connection:
            self._desk.not_before(newest_fact(connection))
            yield connection

    def _amend(
        self, connection: Connection[Row], record: BatchRecord, amended: Mapping[int, Amendment], at: str
    ) -> None:
        """Let new instructions take over from those they replace: order ids, numbering and, if rejected, a release."""
        if not amended:
            return
        query = "SELECT row, number FROM instruction WHERE batch = %s AND replaces IS NOT NULL"
        new_numbers: dict[int, int] = dict(fetch(connection, query, (record.number,)))
        if len(new_numbers) != len(amended):
            raise InternalError("an amendment is of no row of its batch")
        loaded = load_instructions(connection, (*(one.instruction for one in amended.values()), *new_numbers.values()))
        entries = []
        for row, amendment in amended.items():
            old, new = loaded[amendment.instruction], loaded[new_numbers[row]]
            standing, order_id = old.progress.standing, old.client_orderid
            if (
                not amendable(standing)
                or is_in_quarantine(standing, old.progress.intended_at, amendment.left_until)
                or kept_evidence.contested(connection, (old.number,))
                or new.client_orderid != order_id
            ):
                raise InternalError("an amendment replaces what may not be replaced")
            new = loaded[new.number] = replace(new, progress=succeed(old.progress))
            move = "UPDATE order_id SET instruction = %s WHERE operation = %s AND order_id = ANY (%s)"
            fetch(connection, move, (new.number, record.operation, [order_id, old.progress.order_id]))
            entries.append(Entry(old.number, standing.attempt, Replaced(record.batch, row), at))
            if standing.state is State.REJECTED:
                entries.append(_release_entry(connection, record.operation, new, True, "an amended sheet", at))
        self._desk.record(entries, loaded)


def _release_entry(connection: Connection[Row], operation: str, one: Loaded, suffix: bool, by: str, at: str) -> Entry:
    """Return the fact that releases a rejected instruction, its next order id claimed."""
    order_id = next_order_id(
        one.client_orderid, one.progress, suffix=suffix, is_used=lambda used: is_used(connection, operation, used)
    )
    if suffix:
        line = (operation, order_id, one.number, spelled_alike(order_id))
        fetch(connection, "INSERT INTO order_id VALUES (%s, %s, %s, %s)", line)
    return Entry(one.number, one.progress.standing.attempt, Released(order_id, by), at)


def _next_number(connection: Connection[Row], table: str) -> int:
    ((highest,),) = fetch(connection, f"SELECT max(number) FROM {table}")  # noqa: S608 - one of two names of ours
    return (highest or 0) + 1
