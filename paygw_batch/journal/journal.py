"""One endpoint's journal: its queries, and the writes that commands make, for all stores.

Two stores implement the abstract methods: `sqlite` (in a file or in memory) and `postgres`. Both pass the same
conformance tests. A journal has one writer and must be called from one thread at a time.
"""

import json
from abc import abstractmethod
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import islice
from typing import Any

from paygw_batch.core.evidence import HOLDABLE_STATES, Evidence, Finding, SignedOrder
from paygw_batch.core.lifecycle import Released, Replaced, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.core.text import are_damaged_variants, normalise_spelling
from paygw_batch.errors import InternalError, StaleRows
from paygw_batch.journal.audit import AuditEntry
from paygw_batch.journal.evidence import EvidenceLog, EvidenceQueries, arrival_evidence
from paygw_batch.journal.facts import HistoryFact, history_entries
from paygw_batch.journal.forget import forget_evidence, forget_payees, payments_to_forget
from paygw_batch.journal.lost import hold_lost_orders
from paygw_batch.journal.new_batch import BatchPart, OpeningDigests
from paygw_batch.journal.port import EngineJournal, Gate, RowBeingSent, SharedRunHandle, VerifyProgress, ignore_progress
from paygw_batch.journal.states import (
    NO_LIMIT,
    STATES,
    RowStanding,
    due_rows,
    find_rows,
    is_amendable,
    next_order_id,
    parse_row_standing,
    storable_text,
    tallies,
)
from paygw_batch.journal.tables import Tables
from paygw_batch.journal.values import (
    Amendment,
    AttemptReply,
    BatchForgotten,
    BatchRecord,
    Clash,
    ClockComparison,
    DueRow,
    Entry,
    FoundPayment,
    Head,
    HistoryEntry,
    KnownRow,
    LookAlike,
    Messages,
    NewBatch,
    NewNotice,
    PaymentSearch,
    PaymentsToForget,
    RemainingData,
    Remark,
    RepeatedBatch,
    RowState,
    StatementNote,
    StateTally,
    StoredReply,
    TallyKind,
    UsedSpelling,
    Withdrawal,
    is_in_quarantine,
)

_CHUNK_SIZE = 10_000
_NOTIFICATIONS_PER_TRANSACTION = 200
NO_ENTRY = 2**63 - 1
"""A number higher than any audit entry's."""
_FINAL_STATES = frozenset({State.PAID, State.RETURNED, State.REPLACED, State.REJECTED})


class JournalReader(EvidenceQueries):
    """One endpoint's journal, opened for reading. Shows one snapshot, even while a run writes to the journal.

    Every method raises `JournalCorrupt` if the journal is damaged, and `JournalError` if reading fails.
    """

    def __init__(self, tables: Tables, notes: tuple[str, ...] = ()) -> None:
        self.notes = notes
        """Messages about the whole journal, to show to people."""
        self._tables = tables
        self._evidence = EvidenceLog(tables)

    def head(self) -> Head:
        """Return the journal's identity and newest state."""
        with self._snapshot():
            seq, digest = self._chain_end()
            time, clock = self.clock()
            return Head(self._tables.identity.journal_id, seq, digest, time, self.last_processed_arrival(), clock)

    def batches(self, *, plan_sha256: str = "") -> Sequence[BatchRecord]:
        """Return all batches, oldest first, or only the one opened by the plan `plan_sha256`."""
        lines = self._query("batches_of_plan", plan_sha256=plan_sha256) if plan_sha256 else self._query("batches")
        return [BatchRecord(*line) for line in lines]

    def batch(self, batch: str, *, operation: str | None = None) -> BatchRecord | None:
        """Return the batch with this id and (unless None) operation, or None if there is no such batch."""
        return next((BatchRecord(*line) for line in self._query("batch", batch=batch, operation=operation)), None)

    def compare(
        self, operation: str, rows: Iterable[tuple[int, str, str]]
    ) -> tuple[Sequence[KnownRow], Sequence[Clash]]:
        """Compare a sheet's rows (row, client_orderid, content) with the journal. Returns known rows and clashes."""
        known, clashes = [], []
        with self._snapshot():
            results = self._tables.run_for_each("compare", ("row", "order_id", "content"), rows, operation=operation)
            for row, order_id, number, is_first_id, has_same_content, state_name, *rest in results:
                duplicate_of, since, batch, sheet_row, opened_at = rest
                state = STATES[state_name]
                if is_first_id and has_same_content:
                    known.append(KnownRow(row, number, state, batch, opened_at))
                    continue
                # The order id of a later attempt stays reserved for its instruction.
                can_amend = bool(is_first_id) and is_amendable(state, duplicate_of)
                clashes.append(Clash(row, order_id, number, batch, sheet_row, opened_at, state, can_amend, since))
            entries: list[KnownRow | Clash] = [*known, *clashes]
            holdable = (entry.instruction for entry in entries if entry.state in HOLDABLE_STATES)
            held = self._evidence.find_contested(holdable)
        return (
            [replace(entry, is_held=True) if entry.instruction in held else entry for entry in known],
            [replace(clash, is_amendable=False) if clash.instruction in held else clash for clash in clashes],
        )

    def look_alikes(
        self, operation: str, rows: Iterable[tuple[int, str, str, str, int]], *, since: str
    ) -> Sequence[LookAlike]:
        """Find rows (row, client_orderid, payee, currency, minor) that repeat a payment made under another order id.

        Returns at most one look-alike for each row: the newest whose id looks like a damaged variant of the row's id,
        even in an old batch. If there is none, returns the newest in a batch opened after `since`.
        """
        columns = ("row", "order_id", "payee", "currency", "minor")
        with self._snapshot():
            if not self._tables.run("any_order_id", operation=operation):
                return []
            look_alikes: dict[int, LookAlike] = {}
            for row, own_id, *rest in self._tables.run_for_each("look_alikes", columns, rows, operation=operation):
                order_id, batch, opened_at, number, state = rest
                is_rewritten, previous = are_damaged_variants(own_id, order_id), look_alikes.get(row)
                if (is_rewritten or opened_at > since) and (
                    previous is None or (previous.is_rewritten, previous.opened_at) <= (is_rewritten, opened_at)
                ):
                    look_alikes[row] = LookAlike(row, order_id, number, STATES[state], batch, opened_at, is_rewritten)
            found = look_alikes.values()
            held = self._evidence.find_contested(row.instruction for row in found if row.state in HOLDABLE_STATES)
            return [replace(row, is_held=row.instruction in held) for row in found]

    def used_spellings(self, operation: str, rows: Iterable[tuple[int, str, str]]) -> Sequence[UsedSpelling]:
        """Find rows (row, client_orderid, spelling) whose id was used before, but only in another spelling.

        `spelling` is the id after `normalise_spelling`. Returns each row's newest used id with the same `spelling`.
        """
        columns = ("row", "order_id", "spelling")
        with self._snapshot():
            if not self._tables.run("any_order_id", operation=operation):
                return []
            # The first query is cheap and excludes most rows, because most ids have only one spelling.
            candidates = list(self._tables.run_for_each("has_spelling", columns, rows, operation=operation))
            lines = self._tables.run_for_each("used_spellings", columns, candidates, operation=operation)
            return [UsedSpelling(*line) for line in lines]

    def repeated_batches(
        self, operation: str, rows: Iterable[tuple[str, str, str, int]], *, since: str
    ) -> Sequence[RepeatedBatch]:
        """Find batches that already pay rows (client_orderid, payee, currency, minor) under other order ids.

        Counts each row once for every batch that pays the same amount to the same payee. Considers only batches opened
        after `since`. Returns the newest first.
        """
        columns, counts = ("order_id", "payee", "currency", "minor"), Counter[int]()
        with self._snapshot():
            for number, count in self._tables.run_for_each("repeated", columns, rows, operation=operation, since=since):
                counts[number] += count
            return [
                RepeatedBatch(batch, sheet_name, opened_at, counts[number])
                for number in sorted(counts, reverse=True)
                for batch, sheet_name, opened_at in self._tables.run("batch_title", batch=number)
            ]

    def due(self, batch: int, *, after_row: int, limit: int) -> Sequence[DueRow]:
        """Return up to `limit` READY instructions of a batch after row `after_row`, in the sheet's order.

        Leaves out rows held by evidence. Raises `JournalCorrupt` if a row's state contradicts its newest fact.
        """
        with self._translating_errors():
            return due_rows(self._tables, batch, after_row, limit)

    def rows(
        self,
        batch: int,
        *,
        states: Collection[State] | None = None,
        numbers: Collection[int] | None = None,
        accepted_until: str | None = None,
        after: int = 0,
        limit: int | None = None,
    ) -> Iterator[RowState]:
        """Yield up to `limit` rows of a batch (all if None) after row `after`, in the sheet's order.

        `states` and `numbers` (row numbers in the sheet) filter the rows unless None. If `accepted_until` is given,
        accepted rows with a later intent are left out. The cost depends on the number of rows yielded, not on the size
        of the batch.
        """
        with self._translating_errors():
            yield from find_rows(
                self._tables,
                batch,
                states=states,
                numbers=numbers,
                accepted_until=accepted_until,
                after=after,
                limit=limit,
            )

    def batch_lines(self, batch: int) -> Iterator[Sequence[tuple[int | str | None, ...]]]:
        """Yield a batch's rows in groups, as tuples of `LINE_COLUMNS`. Far faster than `rows`."""
        last_row = -1
        with self._translating_errors():
            while lines := self._tables.run("standing_lines", batch=batch, after=last_row, limit=_CHUNK_SIZE):
                for state in {line[1] for line in lines}:
                    STATES[state]  # raises `JournalCorrupt` if unknown
                last_row = lines[-1][0]
                yield lines

    def pages(self, batch: int) -> Iterator[bytes]:
        """Yield a batch's sheet, exactly as received, page by page."""
        for (number,) in self._query("page_numbers", batch=batch):
            ((content,),) = self._query("page", batch=batch, number=number)
            yield bytes(content)

    def customer_urls(self, batch: int) -> Mapping[int, str]:
        """Return the payment page's URL for each row's latest attempt, by row."""
        return dict(self._query("customer_urls", batch=batch))

    def tallies(
        self, batch: int, *, kind: TallyKind = TallyKind.ALL, accepted_until: str | None = None
    ) -> Sequence[StateTally]:
        """Return the counts and sums of a batch's rows, sorted by country, currency and state.

        If `accepted_until` is given, accepted rows with a later intent are not counted.
        """
        with self._snapshot():
            return tallies(self._tables, batch, kind, accepted_until)

    def rows_being_sent(self, batch: int) -> Sequence[RowBeingSent]:  # noqa: ARG002 (a file has one sender)
        """Return the rows of a batch that live processes are sending."""
        return ()

    def messages(self, batch: int | None = None) -> Messages:
        """Return the messages that a person must check, read in one snapshot."""
        with self._snapshot():
            return super().messages(batch)

    def history(self, batch: int) -> Sequence[HistoryEntry]:
        """Return people's actions on a batch and its rows, oldest first."""
        return [entry for line in self._query("history", batch=batch) for entry in history_entries(HistoryFact(*line))]

    def audit_entries(self, *, before: int = NO_ENTRY, limit: int) -> Sequence[AuditEntry]:
        """Return up to `limit` entries of the audit trail before entry `before`, newest first."""
        return [AuditEntry(*line) for line in self._query("trail", before=before, limit=limit)]

    def find_payments(self, search: PaymentSearch, *, limit: int) -> Sequence[FoundPayment]:
        """Return up to `limit` payments that match a search, from all batches, newest first."""
        numbers = set[int]()
        with self._snapshot():
            if "\0" not in search.order_id and storable_text(search.order_id) == search.order_id:
                spelling = normalise_spelling(search.order_id)
                for (operation,) in self._tables.run("operations"):
                    lines = self._tables.run("same_spelling", operation=operation, spelling=spelling)
                    numbers.update(number for _, number in lines)
            if expression := self._search_expression(search):
                matches = self._tables.run("matching_payments", expression=expression, limit=limit)
                numbers.update(number for (number,) in matches)
            newest = sorted(numbers, reverse=True)[:limit]
            return [_parse_payment(line) for line in self._tables.run("payments", numbers=newest)] if newest else []

    def payments(self, batch: int, rows: Collection[int]) -> Mapping[int, FoundPayment]:
        """Return the payments in the given rows of a batch, with their payees, by row."""
        with self._snapshot():
            numbers_by_row = dict(self._tables.run("rows_by_number", batch=batch, rows=sorted(rows))) if rows else {}
            numbers = sorted(set(numbers_by_row.values()), reverse=True)
            lines = self._tables.run("payments", numbers=numbers) if numbers else []
        payments = {number: _parse_payment(line) for number, line in zip(numbers, lines, strict=True)}
        return {row: payments[number] for row, number in numbers_by_row.items()}

    def payments_to_forget(
        self, numbers: Sequence[int] | None = None, *, before: str = "", cutoff: str, recent: str = ""
    ) -> PaymentsToForget:
        """Return payments whose payees may be forgotten: those in `numbers` or, if None, all before a date.

        Their batches must be finished: each row is paid, returned, replaced or finally rejected, and no message awaits
        a person's answer. A row reported as rejected only by a person must have been sent no later than `cutoff`. New
        sheets are compared with batches opened at `recent` or later, so these are kept.
        """
        with self._snapshot():
            recent_batches = {record.number for record in self.batches() if recent and record.opened_at >= recent}

            def is_finished(batch: int) -> bool:
                return batch not in recent_batches and self._is_finished(batch, cutoff)

            return payments_to_forget(self._tables, numbers, before, is_finished)

    def _is_finished(self, batch: int, cutoff: str) -> bool:
        """Return whether all rows of a batch are in a final state and every message about it is answered."""
        if any(tally.state not in _FINAL_STATES for tally in tallies(self._tables, batch, TallyKind.ALL, None)):
            return False
        messages = self._evidence.messages(batch)
        rejected = find_rows(self._tables, batch, states={State.REJECTED})
        return not (messages.contradictions or messages.waiting) and not any(
            is_in_quarantine(row.quarantined_since, cutoff) for row in rejected
        )

    def first_forgetting(self, batch: int) -> HistoryEntry | None:
        """Return the first history entry about forgotten people in a batch, or None if there is none."""
        return next((entry for entry in self.history(batch) if entry.kind == "forgotten"), None)

    def replies(self, number: int) -> Sequence[AttemptReply]:
        """Return the stored raw replies to the attempts of instruction `number`, oldest first."""
        lines = self._query("replies", instruction=number)
        return [AttemptReply(attempt, at, StoredReply(head.decode(), body)) for attempt, at, head, body in lines]

    def verify(self, progress: VerifyProgress = ignore_progress) -> Mapping[str, int]:
        """Replay the whole journal and return counts by name. Raises `JournalCorrupt` at the first wrong line."""
        with self._snapshot():
            return {**self._verify(progress), "notifications_waiting": len(self._evidence.arrivals(NO_LIMIT))}

    def has_arrivals(self) -> bool:
        """Return whether there are unprocessed notifications."""
        return bool(self.arrivals(1))

    @abstractmethod
    def close(self) -> None:
        """Close the journal."""

    def _query(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        with self._translating_errors():
            return self._tables.run(name, **values)

    @abstractmethod
    def _translating_errors(self) -> AbstractContextManager[object]:
        """Convert the store's errors in the block to `JournalError`."""

    @abstractmethod
    def _snapshot(self) -> AbstractContextManager[object]:
        """Run the block's statements on one snapshot. Converts the store's errors to `JournalError`."""

    @abstractmethod
    def _chain_end(self) -> tuple[int, str]:
        """Return the number of facts and a hash (hex) that covers them all."""

    @abstractmethod
    def _search_expression(self, search: PaymentSearch) -> str:
        """Convert a search to a query of the store's text index. Returns an empty one if there are no words."""

    @abstractmethod
    def _verify(self, progress: VerifyProgress) -> Mapping[str, int]:
        """Replay the journal in the open snapshot and return the counts."""


class Journal(JournalReader):
    """One endpoint's journal, opened for writing."""

    def open_batch(
        self,
        batch: NewBatch,
        *,
        parts: Iterable[BatchPart],
        known: Iterable[KnownRow],
        amendments: Iterable[Amendment],
        at: str,
    ) -> BatchRecord:
        """Store a whole batch in one durable transaction.

        `parts` contains its pages and new rows in the sheet's order, `known` its rows that are already in another
        batch, and `amendments` its new rows that replace an instruction. Raises `InternalError` if the plan has already
        opened a batch or an order id is used and not amended (call `compare` first), `DocumentWithdrawn` if the plan is
        withdrawn before the commit, and `StaleRows` if another process moves a row that would be replaced.
        """
        batch = replace(batch, sheet_name=storable_text(batch.sheet_name), sheet_path=storable_text(batch.sheet_path))
        if batch.plan_sha256 and self.batches(plan_sha256=batch.plan_sha256):
            raise InternalError("a plan that has opened a batch was about to open another")
        amended = {amendment.row: amendment for amendment in amendments}
        replaced = {row: amendment.instruction for row, amendment in amended.items()}
        with self._write_transaction():
            ((newest_time, last_batch, last_instruction),) = self._tables.run("highest_numbers")
            at = max(at, newest_time or "")
            digests = OpeningDigests(batch, (last_instruction or 0) + 1)
            columns = (batch.sheet_name, batch.sheet_sha256, batch.rows, batch.defects, at, batch.sheet_path)
            record = BatchRecord((last_batch or 0) + 1, batch.batch, batch.operation, *columns)
            record = self._store_batch(record, batch.plan_sha256, digests, parts, known, replaced)
            # Raises if the plan was withdrawn, and prevents its withdrawal until the commit.
            self._evidence.require_in_force(batch.plan_sha256)
            self._record([Remark(digests.opening(), at, batch=record.number)])
            self._apply_amendments(record, amended, at)
            # Before a run can send the batch, rows that may have been sent in a lost commit must be held.
            hold_lost_orders(self._tables, self._record, digests.first_instruction)
        return record

    def withdraw(self, withdrawal: Withdrawal) -> None:
        """Record the withdrawal of a signed plan or order, without waiting for a run."""
        with self._write_transaction():
            self._evidence.record_notes(self._record, withdrawal)

    @abstractmethod
    def mark_interrupted(self, at: str) -> int:
        """Mark instructions left in flight by earlier runs as in doubt. Returns their number."""

    def record_evidence(
        self, evidence: Sequence[Evidence], words: Mapping[str, OutcomeKind], *, at: str
    ) -> Sequence[Finding]:
        """Record evidence in order and apply what it proves, in one transaction. Returns the findings.

        Stops before the first piece of evidence about a row in flight, which must be recorded later. `words` maps the
        operator's status words to outcomes (`[outcomes]`).
        """
        with self._write_transaction():
            return self._evidence.record_evidence(evidence, words, self._record, at)

    def process_arrivals(
        self, words: Mapping[str, OutcomeKind], *, at: str, at_most: int | None = None
    ) -> Counter[Finding]:
        """Process about `at_most` pending notifications (all if None), and return their counts by finding.

        Stops before the first one about a row in flight.
        """
        findings: Counter[Finding] = Counter()
        while at_most is None or findings.total() < at_most:
            if not (arrivals := self.arrivals(_NOTIFICATIONS_PER_TRANSACTION)):
                break
            new_findings = self.record_evidence([arrival_evidence(*arrival) for arrival in arrivals], words, at=at)
            findings.update(new_findings)
            if len(new_findings) < len(arrivals):
                break
        return findings

    def start_shared_run(
        self,
        batch: int,  # noqa: ARG002 (without workers)
        *,
        can_wait: bool = False,  # noqa: ARG002
        is_urgent: bool = False,  # noqa: ARG002
    ) -> SharedRunHandle | None:
        """Offer the batch to workers and release the write lock. Returns None if there are no workers.

        If it `can_wait`, the batch is offered even if no worker is alive. Workers send an `is_urgent` batch first.
        A journal in a file has no workers. Raises `JournalHeld` while workers are still ending a stopped run.
        """
        return None

    def reacquire_lock(self) -> None:
        """Reacquire the write lock after starting a shared run. Raises `JournalHeld` if another process holds it."""

    @abstractmethod
    def open_engine_journal(self) -> AbstractContextManager[EngineJournal]:
        """Yield the interface for an engine, which must be the journal's only user during the block."""

    @abstractmethod
    def schedule_end_notices(self, notices: Sequence[NewNotice], at: str) -> None:
        """Store the notices of a run that is about to send. They become due when the run ends."""

    def gate(self) -> Gate | None:
        """Return access to the limits shared by the endpoint's workers, or None if only one process sends."""
        return None

    def settle(
        self,
        entries: Sequence[Entry],
        *,
        note: StatementNote | ClockComparison | None = None,
        order: SignedOrder | None = None,
    ) -> None:
        """Record people's decisions about rows in one transaction. A decision about a held row lifts its hold.

        Also records `note` (the applied statement, or a comparison of our clock with the gateway's) and the signed
        `order` for the decisions. Raises `DocumentWithdrawn` if the order was withdrawn, and `StaleRows` if another
        process has moved a row, so that a decision would have no effect or settle a ready row that is not held.
        """
        with self._write_transaction():
            self._evidence.settle(entries, self._record)
            self._evidence.record_notes(self._record, note, order)

    def release(
        self,
        batch: int,
        rows: Sequence[int] | None,
        *,
        suffix: bool,
        by: str,
        at: str,
        cutoff: str = "",
        order: SignedOrder | None = None,
    ) -> int:
        """Release the given rejected rows of a batch (all if None) for another attempt. Returns their number.

        Skips rows sent after `cutoff` that only a person reported as rejected. Also records the signed `order` for the
        release. Raises `DocumentWithdrawn` if the order was withdrawn.
        """
        released, digest = 0, "" if order is None else order.sha256
        with self._write_transaction():
            ((operation,),) = self._tables.run("operation_of", batch=batch)
            rejected = find_rows(self._tables, batch, states={State.REJECTED}, numbers=rows)
            remaining = iter(array("q", (row.instruction for row in rejected)))
            while group := list(islice(remaining, _CHUNK_SIZE)):
                standings = self._standings(group)
                # During the quarantine, the gateway may still pay a row that a person resolved as rejected.
                entries = [
                    self._build_release(row, operation, suffix=suffix, fact=Released("", by, digest), at=at)
                    for row in (standings[number] for number in group)
                    if not is_in_quarantine(row.quarantined_since, cutoff)
                ]
                self._record(entries)
                released += len(entries)
            self._evidence.record_notes(self._record, order)
        return released

    def forget(
        self, payments: PaymentsToForget, *, by: str, at: str, order: SignedOrder | None = None
    ) -> RemainingData:
        """Forget the payees of these payments in one transaction. Returns where the payees' data may remain.

        Keeps ids, sums, states, times and the chain. Also records the signed `order` to forget the payees. Raises
        `DocumentWithdrawn` if the order was withdrawn.
        """
        digest = "" if order is None else order.sha256
        instructions = [number for numbers in payments.batches.values() for number in numbers]
        with self._forget_transaction(payments):
            forget_payees(self._tables, instructions)
            for batch in payments.batches:
                self._tables.run("forget_sheet", batch=batch)
            by_id = {record.batch: record.number for record in self.batches() if record.number in payments.batches}
            orders = forget_evidence(self._tables, instructions, payments.before, by_id) if by_id else {}
            facts = {
                batch: BatchForgotten(by, payments.before, len(numbers), digest, tuple(orders[batch]))
                for batch, numbers in payments.batches.items()
            }
            self._record([Remark(fact, at, batch=batch) for batch, fact in facts.items()])
            self._evidence.record_notes(self._record, order)
        return self.scrub()

    @abstractmethod
    def scrub(self) -> RemainingData:
        """Erase forgotten data as far as possible. Returns where some of it may remain."""

    @abstractmethod
    def _forget_transaction(self, payments: PaymentsToForget) -> AbstractContextManager[object]:
        """Run the block in a write transaction that may forget the payees of these payments."""

    def _apply_amendments(self, record: BatchRecord, amended: Mapping[int, Amendment], at: str) -> None:
        """Replace instructions with amendments, which take over their order ids. Releases those of rejected rows."""
        if not amended:
            return
        new_numbers = dict(self._tables.run("replacement_rows", batch=record.number))
        if len(new_numbers) != len(amended):
            raise InternalError("an amendment does not belong to a row of its batch")
        standings = self._standings([*(amendment.instruction for amendment in amended.values()), *new_numbers.values()])
        entries = []
        for row, amendment in amended.items():
            old, new = standings.get(amendment.instruction), standings[new_numbers[row]]
            if (
                old is None
                or not is_amendable(old.standing.state, old.standing.possible_duplicate_of)
                or is_in_quarantine(old.quarantined_since, amendment.cutoff)
                or self._evidence.find_contested((old.number,))
                or new.client_orderid != old.client_orderid
            ):
                raise InternalError("an amendment replaces a payment that must not be replaced")
            ids = {"order_id": old.client_orderid, "next_order_id": old.order_id}
            self._tables.run("move_order_ids", operation=record.operation, instruction=new.number, **ids)
            entries.append(Entry(old.number, old.standing.attempt, Replaced(record.batch, row), at))
            if old.standing.state is State.REJECTED:
                successor, fact = old._replace(number=new.number), Released("", "an amended sheet")
                entries.append(self._build_release(successor, record.operation, suffix=True, fact=fact, at=at))
        if not all(has_moved for _, _, has_moved in self._record(entries)):
            raise StaleRows

    def _standings(self, numbers: Sequence[int]) -> Mapping[int, RowStanding]:
        return {line[0]: parse_row_standing(line) for line in self._tables.run("standings", numbers=list(numbers))}

    def _build_release(self, row: RowStanding, operation: str, *, suffix: bool, fact: Released, at: str) -> Entry:
        """Reserve a rejected instruction's next order id and return the fact that releases the instruction."""

        def is_used(order_id: str) -> bool:
            spelling = normalise_spelling(order_id)
            return bool(self._tables.run("is_spelling_used", operation=operation, spelling=spelling))

        order_id = next_order_id(row, suffix=suffix, is_used=is_used)
        if suffix:
            self._tables.add_order_id(operation, order_id, row.number)
        return Entry(row.number, row.standing.attempt, replace(fact, order_id=order_id), at)

    @abstractmethod
    def _write_transaction(self) -> AbstractContextManager[object]:
        """Run the block in a transaction. Then make it durable and log it, or roll it back on an error."""

    @abstractmethod
    def _store_batch(
        self,
        record: BatchRecord,
        plan_sha256: str,
        digests: OpeningDigests,
        parts: Iterable[BatchPart],
        known_rows: Iterable[KnownRow],
        replaced: Mapping[int, int],
    ) -> BatchRecord:
        """Store a batch except its opening fact. Returns `record`, with the reference if the store computes it."""

    @abstractmethod
    def _record(self, entries: Sequence[Entry | Remark]) -> Sequence[tuple[int, str, bool]]:
        """Append facts in the open transaction and move their instructions (see `evidence.RecordFacts`)."""


def _parse_payment(line: Sequence[Any]) -> FoundPayment:
    columns = list(line)
    columns[10] = json.loads(columns[10])
    columns[12] = STATES[columns[12]]
    return FoundPayment(*columns)
