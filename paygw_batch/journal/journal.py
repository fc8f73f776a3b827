"""The journal of one endpoint: its queries, and the writes by people and commands, for all stores.

Two stores implement the abstract methods: `sqlite` (a file, or memory) and `postgres`. The same conformance tests run
on files, memory and PostgreSQL. A journal has one writer, and is called from one thread at a time.
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

from paygw_batch.core.evidence import Evidence, Finding, SignedOrder
from paygw_batch.core.lifecycle import Released, Replaced, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.core.text import are_damaged_variants, normalise_spelling
from paygw_batch.errors import InternalError, StaleRows
from paygw_batch.journal.audit import AuditEntry
from paygw_batch.journal.evidence import EvidenceLog, EvidenceQueries, arrival_evidence
from paygw_batch.journal.facts import HistoryFact, history_entries
from paygw_batch.journal.forget import forget_evidence, forget_payees, forgettable_payments
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
    ForgettablePayments,
    FoundPayment,
    Head,
    HistoryEntry,
    KnownRow,
    LookAlike,
    Messages,
    NewBatch,
    NewNotice,
    PaymentSearch,
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
"""The number of rows that are read or released at a time."""
_NOTIFICATIONS_PER_TRANSACTION = 200
"""The number of notifications that one transaction records."""
NO_ENTRY = 2**63 - 1
"""A number after that of every entry of the audit trail."""
_FINAL_STATES = frozenset({State.PAID, State.RETURNED, State.REPLACED, State.REJECTED})
"""The states of the rows of a batch that is over."""


class JournalReader(EvidenceQueries):
    """The journal of one endpoint, opened for reading: one snapshot, even while a run writes.

    Every method raises `JournalCorrupt` if the journal is damaged, and `JournalError` if reading fails.
    """

    def __init__(self, tables: Tables, notes: tuple[str, ...] = ()) -> None:
        self.notes = notes
        """Sentences about the whole journal for a person to read; they stop nothing."""
        self._tables = tables
        self._evidence = EvidenceLog(tables)

    def head(self) -> Head:
        """Return the journal's identity and newest state."""
        with self._snapshot():
            facts, digest = self._chain_end()
            newest_time, clock = self.clock()
            return Head(self._tables.identity.journal_id, facts, digest, newest_time, self.last_judged_arrival(), clock)

    def batches(self, *, plan_sha256: str = "") -> Sequence[BatchRecord]:
        """Return all batches, or the one that the plan with this digest opened, oldest first."""
        lines = self._run("batches_of_plan", plan_sha256=plan_sha256) if plan_sha256 else self._run("batches")
        return [BatchRecord(*line) for line in lines]

    def batch(self, batch: str, *, operation: str | None = None) -> BatchRecord | None:
        """Return the batch with this id and, if given, this operation, or None if there is no such batch."""
        return next((BatchRecord(*line) for line in self._run("batch", batch=batch, operation=operation)), None)

    def compare(
        self, operation: str, rows: Iterable[tuple[int, str, str]]
    ) -> tuple[Sequence[KnownRow], Sequence[Clash]]:
        """Compare each (row, client_orderid, content) of a sheet with all order ids ever used."""
        known, clashes = [], []
        with self._snapshot():
            results = self._tables.run_for_each("compare", ("row", "order_id", "content"), rows, operation=operation)
            for row, order_id, number, is_its_own, is_equal, word, *details in results:
                duplicate_of, since, batch, sheet_row, opened_at = details
                state = STATES[word]
                if is_its_own and is_equal:
                    known.append(KnownRow(row, number, state, batch, opened_at))
                    continue
                # An id under which an instruction was sent after a release stays reserved for that instruction.
                may_amend = bool(is_its_own) and is_amendable(state, duplicate_of)
                clashes.append(Clash(row, order_id, number, batch, sheet_row, opened_at, state, may_amend, since))
            held = self._evidence.contested_instructions(clash.instruction for clash in clashes if clash.is_amendable)
        return known, [replace(clash, is_amendable=False) if clash.instruction in held else clash for clash in clashes]

    def look_alikes(
        self, operation: str, rows: Iterable[tuple[int, str, str, str, int]], *, since: str
    ) -> Sequence[LookAlike]:
        """Find rows (row, client_orderid, payee, currency, minor) paid under another id in a batch since `since`.

        Returns the newest such instruction for each row, with its order id, batch and opening time. An instruction
        whose id looks like a damaged variant is preferred, and its batch may be older.
        """
        columns = ("row", "order_id", "payee", "currency", "minor")
        with self._snapshot():
            if not self._tables.run("any_order_id", operation=operation):
                return []
            by_row: dict[int, LookAlike] = {}
            for row, own_id, *line in self._tables.run_for_each("look_alikes", columns, rows, operation=operation):
                order_id, batch, opened_at = line
                is_rewritten, found = are_damaged_variants(own_id, order_id), by_row.get(row)
                if (is_rewritten or opened_at > since) and (
                    found is None or (found.is_rewritten, found.opened_at) <= (is_rewritten, opened_at)
                ):
                    by_row[row] = LookAlike(row, order_id, batch, opened_at, is_rewritten)
            return list(by_row.values())

    def used_spellings(self, operation: str, rows: Iterable[tuple[int, str, str]]) -> Sequence[UsedSpelling]:
        """Find rows (row, client_orderid, spelling) whose id was used before, but only in another spelling.

        `spelling` is `core.text.normalise_spelling` of the id. Returns the newest id with this spelling.
        """
        columns = ("row", "order_id", "spelling")
        with self._snapshot():
            if not self._tables.run("any_order_id", operation=operation):
                return []
            # The first query is cheaper, and it leaves out most ids, because these have no other spelling.
            results = list(self._tables.run_for_each("has_spelling", columns, rows, operation=operation))
            lines = self._tables.run_for_each("used_spellings", columns, results, operation=operation)
            return [UsedSpelling(*line) for line in lines]

    def repeated_batches(
        self, operation: str, rows: Iterable[tuple[str, str, str, int]], *, since: str
    ) -> Sequence[RepeatedBatch]:
        """Count the rows (client_orderid, payee, currency, minor) paid under other ids, by batch opened after `since`.

        A row counts once for each batch that pays the same amount to the same payee. The newest batch comes first.
        """
        columns, repeated = ("order_id", "payee", "currency", "minor"), Counter[int]()
        with self._snapshot():
            for batch, count in self._tables.run_for_each("repeated", columns, rows, operation=operation, since=since):
                repeated[batch] += count
            return [
                RepeatedBatch(batch, sheet_name, opened_at, repeated[number])
                for number in sorted(repeated, reverse=True)
                for batch, sheet_name, opened_at in self._tables.run("batch_title", batch=number)
            ]

    def due(self, batch: int, *, after_row: int, limit: int) -> Sequence[DueRow]:
        """Return up to `limit` READY instructions of a batch with a row above `after_row`, in the sheet's order.

        Leaves out rows that evidence holds until a person decides. Raises `JournalCorrupt` if the state of a row does
        not follow from its newest fact.
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
        """Yield up to `limit` rows (None: all) of a batch after row `after`, in the sheet's order.

        `states` and `numbers` (rows of the sheet) filter the rows; None means all. The cost grows with the rows
        yielded, not with the batch. With `accepted_until`, an accepted row is yielded only if its latest intent is not
        after that time.
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
        """Yield all rows of a batch as plain tuples of `LINE_COLUMNS`, in groups. This is far cheaper than `rows`.

        Reconciliations and statements use it, because they need every row.
        """
        row = -1
        with self._translating_errors():
            while lines := self._tables.run("standing_lines", batch=batch, after=row, limit=_CHUNK_SIZE):
                for word in {line[1] for line in lines}:
                    STATES[word]  # raises `JournalCorrupt` for an unknown state
                row = lines[-1][0]
                yield lines

    def pages(self, batch: int) -> Iterator[bytes]:
        """Yield a batch's sheet as it was received, in pieces."""
        for (number,) in self._run("page_numbers", batch=batch):
            ((content,),) = self._run("page", batch=batch, number=number)
            yield bytes(content)

    def customer_urls(self, batch: int) -> Mapping[int, str]:
        """Return the URLs where customers pay, from the gateway's replies to the latest attempts, by row."""
        return dict(self._run("customer_urls", batch=batch))

    def tallies(
        self, batch: int, *, kind: TallyKind = TallyKind.ALL, accepted_until: str | None = None
    ) -> Sequence[StateTally]:
        """Return the counts and sums of a batch by country, currency and state, in that order.

        With `accepted_until`, accepted rows count only if their latest intent is not after that time.
        """
        with self._snapshot():
            return tallies(self._tables, batch, kind, accepted_until)

    def rows_being_sent(self, batch: int) -> Sequence[RowBeingSent]:  # noqa: ARG002 (a file has one sender)
        """Return the rows of a batch that live processes have in flight."""
        return ()

    def messages(self, batch: int | None = None) -> Messages:
        """Return the messages as `EvidenceQueries.messages` does, all from one snapshot."""
        with self._snapshot():
            return super().messages(batch)

    def history(self, batch: int) -> Sequence[HistoryEntry]:
        """Return people's actions on a batch and its rows, oldest first."""
        return [entry for line in self._run("history", batch=batch) for entry in history_entries(HistoryFact(*line))]

    def audit_entries(self, *, before: int = NO_ENTRY, limit: int) -> Sequence[AuditEntry]:
        """Return up to `limit` entries of the audit trail before entry `before`, newest first."""
        return [AuditEntry(*line) for line in self._run("trail", before=before, limit=limit)]

    def find_payments(self, search: PaymentSearch, *, limit: int) -> Sequence[FoundPayment]:
        """Return up to `limit` payments of all batches that match a search, newest first."""
        numbers = set[int]()
        with self._snapshot():
            if "\0" not in search.order_id and storable_text(search.order_id) == search.order_id:
                spelling = normalise_spelling(search.order_id)
                for (operation,) in self._tables.run("operations"):
                    lines = self._tables.run("same_spelling", operation=operation, spelling=spelling)
                    numbers.update(number for _, number in lines)
            if expression := self._search_expression(search):
                matches = self._tables.run("payments_fitting", expression=expression, limit=limit)
                numbers.update(number for (number,) in matches)
            newest = sorted(numbers, reverse=True)[:limit]
            return [_parse_payment(line) for line in self._tables.run("payments", numbers=newest)] if newest else []

    def payments(self, batch: int, rows: Collection[int]) -> Mapping[int, FoundPayment]:
        """Return the payments of these rows of a batch, with their payees, keyed by row."""
        with self._snapshot():
            instructions = dict(self._tables.run("numbered", batch=batch, rows=sorted(rows), after=0)) if rows else {}
            numbers = sorted(set(instructions.values()), reverse=True)
            lines = self._tables.run("payments", numbers=numbers) if numbers else []
        payments = {number: _parse_payment(line) for number, line in zip(numbers, lines, strict=True)}
        return {row: payments[number] for row, number in instructions.items()}

    def forgettable_payments(
        self, numbers: Sequence[int] | None = None, *, before: str = "", cutoff: str, recent: str = ""
    ) -> ForgettablePayments:
        """Return the payments whose payees may be forgotten: before a date, or those in `numbers`.

        A batch can be forgotten once it is over: no message about it waits for a person, and each row is paid,
        returned, replaced, or rejected for good. A row that only a person called rejected must have been sent no later
        than `cutoff`. A batch opened at `recent` or later is kept, because otherwise a sheet could repeat its payments
        unnoticed.
        """
        with self._snapshot():
            recent_batches = {record.number for record in self.batches() if recent and record.opened_at >= recent}

            def is_over(batch: int) -> bool:
                return batch not in recent_batches and self._is_over(batch, cutoff)

            return forgettable_payments(self._tables, numbers, before, is_over)

    def _is_over(self, batch: int, cutoff: str) -> bool:
        """Return whether every row of a batch has its final state, and no message about it waits for a person."""
        if any(tally.state not in _FINAL_STATES for tally in tallies(self._tables, batch, TallyKind.ALL, None)):
            return False
        messages = self._evidence.messages(batch)
        rejected_rows = find_rows(self._tables, batch, states={State.REJECTED})
        return not (messages.contradictions or messages.waiting) and not any(
            is_in_quarantine(row.quarantined_since, cutoff) for row in rejected_rows
        )

    def first_forgetting(self, batch: int) -> HistoryEntry | None:
        """Return the first history entry about forgotten people of a batch, or None if nobody was forgotten."""
        return next((entry for entry in self.history(batch) if entry.kind == "forgotten"), None)

    def replies(self, number: int) -> Sequence[AttemptReply]:
        """Return the stored raw replies about instruction `number`, oldest first."""
        lines = self._run("replies", instruction=number)
        return [AttemptReply(attempt, at, StoredReply(head.decode(), body)) for attempt, at, head, body in lines]

    def verify(self, progress: VerifyProgress = ignore_progress) -> Mapping[str, int]:
        """Replay the whole journal and return the counts by name.

        Raises `JournalCorrupt`, naming the first wrong fact or line.
        """
        with self._snapshot():
            return {**self._verify(progress), "notifications_waiting": len(self._evidence.arrivals(NO_LIMIT))}

    def has_arrivals(self) -> bool:
        """Return whether notifications wait to be judged."""
        return bool(self.arrivals(1))

    @abstractmethod
    def close(self) -> None:
        """Close the journal. It can be reopened."""

    def _run(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        with self._translating_errors():
            return self._tables.run(name, **values)

    @abstractmethod
    def _translating_errors(self) -> AbstractContextManager[object]:
        """Turn errors of the store inside the block into errors of the journal."""

    @abstractmethod
    def _snapshot(self) -> AbstractContextManager[object]:
        """Run the statements of the block on one snapshot, and translate errors of the store."""

    @abstractmethod
    def _chain_end(self) -> tuple[int, str]:
        """Return the number of facts, and the hash (hex) that covers all of them."""

    @abstractmethod
    def _search_expression(self, search: PaymentSearch) -> str:
        """Return the search as a query for the store's text index, or empty if the search has no words."""

    @abstractmethod
    def _verify(self, progress: VerifyProgress) -> Mapping[str, int]:
        """Replay the journal inside the open snapshot and return the counts."""


class Journal(JournalReader):
    """The journal of one endpoint, opened for writing, with the operations of people and commands."""

    def open_batch(
        self,
        batch: NewBatch,
        *,
        parts: Iterable[BatchPart],
        known: Iterable[KnownRow],
        amendments: Iterable[Amendment],
        at: str,
    ) -> BatchRecord:
        """Store a whole batch durably in one transaction, or not at all.

        `parts` are its pages and new rows, in the sheet's order. `known` are rows that another batch already has, and
        that the new batch covers too. `amendments` are the new rows that replace an old instruction. Raises
        `InternalError` if an order id is taken and not amended (call `compare` first), or if the plan has opened a
        batch before. Raises `DocumentWithdrawn` if the plan was withdrawn before the commit, and `StaleRows` if another
        process moved a row that is replaced.
        """
        batch = replace(batch, sheet_name=storable_text(batch.sheet_name), sheet_path=storable_text(batch.sheet_path))
        if batch.plan_sha256 and self.batches(plan_sha256=batch.plan_sha256):
            raise InternalError("a plan that has opened a batch was about to open another")
        amended = {amendment.row: amendment for amendment in amendments}
        replaced = {row: amendment.instruction for row, amendment in amended.items()}
        with self._write_transaction():
            ((newest, highest_batch, highest),) = self._tables.run("highest_numbers")
            at = max(at, newest or "")
            digests = OpeningDigests(batch, (highest or 0) + 1)
            sheet = (batch.sheet_name, batch.sheet_sha256, batch.rows, batch.defects, at, batch.sheet_path)
            record = BatchRecord((highest_batch or 0) + 1, batch.batch, batch.operation, *sheet)
            record = self._store_batch(record, batch.plan_sha256, digests, parts, known, replaced)
            # From here to the commit nobody can withdraw the plan, so every earlier withdrawal stops the opening.
            self._evidence.require_in_force(batch.plan_sha256)
            self._record([Remark(digests.opening(), at, batch=record.number)])
            self._apply_amendments(record, amended, at)
            # A row of this sheet may have been sent in a lost commit, so it is held before any run finds it due.
            hold_lost_orders(self._tables, self._record, digests.first_instruction)
        return record

    def withdraw(self, withdrawal: Withdrawal) -> None:
        """Record the withdrawal of a signed plan or order, without waiting for a run."""
        with self._write_transaction():
            self._evidence.record_notes(self._record, withdrawal)

    @abstractmethod
    def mark_interrupted(self, at: str) -> int:
        """Put every in-flight instruction in doubt, because its run has ended. Returns their number."""

    def record_evidence(
        self, evidence: Sequence[Evidence], words: Mapping[str, OutcomeKind], *, at: str
    ) -> Sequence[Finding]:
        """Record evidence in order and apply the facts that it proves, in one transaction. Returns the findings.

        Stops before evidence about a row in flight, which can only be judged later. `words` are the operator's
        `[outcomes]`.
        """
        with self._write_transaction():
            return self._evidence.record_evidence(evidence, words, self._record, at)

    def judge_arrivals(
        self, words: Mapping[str, OutcomeKind], *, at: str, at_most: int | None = None
    ) -> Counter[Finding]:
        """Judge the waiting notifications (all, or about `at_most`) once, and count them by finding.

        Stops before a notification about a row in flight.
        """
        findings: Counter[Finding] = Counter()
        while at_most is None or findings.total() < at_most:
            if not (arrivals := self.arrivals(_NOTIFICATIONS_PER_TRANSACTION)):
                break
            judged = self.record_evidence([arrival_evidence(*arrival) for arrival in arrivals], words, at=at)
            findings.update(judged)
            if len(judged) < len(arrivals):
                break
        return findings

    def start_shared_run(
        self,
        batch: int,  # noqa: ARG002 (without workers)
        *,
        waits: bool = False,  # noqa: ARG002
        is_urgent: bool = False,  # noqa: ARG002
    ) -> SharedRunHandle | None:
        """Offer the batch to workers and release the write lock. Returns None if no worker is alive.

        With `waits`, the batch is offered even then, and waits for a worker. Workers send an `is_urgent` batch before
        others. A journal in a file has no workers. Raises `JournalHeld` while workers are still ending a stopped run of
        the batch.
        """
        return None

    def reacquire_lock(self) -> None:
        """Reacquire the write lock after a shared run was started. Raises `JournalHeld` if another process holds it."""

    @abstractmethod
    def open_engine_journal(self) -> AbstractContextManager[EngineJournal]:
        """Yield the journal's interface for an engine. Within the block, only the engine may use the journal."""

    @abstractmethod
    def schedule_end_notices(self, notices: Sequence[NewNotice], at: str) -> None:
        """Record the notices of a run that is about to send. They are due once the run is over."""

    def gate(self) -> Gate | None:
        """Return the limits shared by all workers of the endpoint, or None if only one process sends."""
        return None

    def settle(
        self,
        entries: Sequence[Entry],
        *,
        note: StatementNote | ClockComparison | None = None,
        order: SignedOrder | None = None,
    ) -> None:
        """Record people's decisions about rows in one transaction. A decision about a held row lifts its hold.

        The same transaction records `note` (the statement that was carried out, or the difference between our clock and
        the gateway's) and the signed `order` behind the decisions. Raises `DocumentWithdrawn` if the order was
        withdrawn. Raises `StaleRows` if another process moved a row since it was read, so that a decision would not
        move it or would settle a ready row without a hold.
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
        """Release the rejected rows of a batch (all, or those named) for another attempt. Returns their number.

        A row rejected only on a person's word is released only if it was sent no later than `cutoff`. The signed
        `order` behind the release is recorded in the same transaction. Raises `DocumentWithdrawn` if it was withdrawn.
        """
        released, digest = 0, "" if order is None else order.sha256
        with self._write_transaction():
            ((operation,),) = self._tables.run("operation_of", batch=batch)
            rejected_rows = find_rows(self._tables, batch, states={State.REJECTED}, numbers=rows)
            rejected = iter(array("q", (row.instruction for row in rejected_rows)))
            while group := list(islice(rejected, _CHUNK_SIZE)):
                states = self._standings(group)
                # The gateway may still pay a row that a person called rejected, until its quarantine is over.
                entries = [
                    self._release_entry(row, operation, suffix=suffix, fact=Released("", by, digest), at=at)
                    for row in (states[number] for number in group)
                    if not is_in_quarantine(row.quarantined_since, cutoff)
                ]
                self._record(entries)
                released += len(entries)
            self._evidence.record_notes(self._record, order)
        return released

    def forget(
        self, payments: ForgettablePayments, *, by: str, at: str, order: SignedOrder | None = None
    ) -> RemainingData:
        """Forget the payees of payments in one transaction. Ids, sums, states, times and the chain remain.

        The signed `order` behind it is recorded in the same transaction. Raises `DocumentWithdrawn` if it was
        withdrawn. Returns the places where these people's data may remain.
        """
        digest = "" if order is None else order.sha256
        instructions = [number for numbers in payments.batches.values() for number in numbers]
        with self._forget_transaction(payments):
            forget_payees(self._tables, instructions)
            for batch in payments.batches:
                self._tables.run("forget_sheet", batch=batch)
            ids = {record.batch: record.number for record in self.batches() if record.number in payments.batches}
            orders = forget_evidence(self._tables, instructions, payments.before, ids) if ids else {}
            facts = {
                batch: BatchForgotten(by, payments.before, len(numbers), digest, tuple(orders[batch]))
                for batch, numbers in payments.batches.items()
            }
            self._record([Remark(fact, at, batch=batch) for batch, fact in facts.items()])
            self._evidence.record_notes(self._record, order)
        return self.scrub()

    @abstractmethod
    def scrub(self) -> RemainingData:
        """Erase the bytes of forgotten people as far as the store can. Returns the places where some may remain."""

    @abstractmethod
    def _forget_transaction(self, payments: ForgettablePayments) -> AbstractContextManager[object]:
        """Run the block in a transaction like `_write_transaction` that may forget these people."""

    def _apply_amendments(self, record: BatchRecord, amended: Mapping[int, Amendment], at: str) -> None:
        """Transfer order ids and numbering from replaced instructions to new ones, and release the rejected ones."""
        new_numbers = dict(self._tables.run("replacing", batch=record.number)) if amended else {}
        if len(new_numbers) != len(amended):
            raise InternalError("an amendment does not belong to a row of its batch")
        if not amended:
            return
        states = self._standings([*(amendment.instruction for amendment in amended.values()), *new_numbers.values()])
        entries = []
        for row, amendment in amended.items():
            old, new = states.get(amendment.instruction), states[new_numbers[row]]
            if (
                old is None
                or not is_amendable(old.standing.state, old.standing.possible_duplicate_of)
                or is_in_quarantine(old.quarantined_since, amendment.cutoff)
                or self._evidence.contested_instructions((old.number,))
                or new.client_orderid != old.client_orderid
            ):
                raise InternalError("an amendment replaces a payment that must not be replaced")
            ids = {"order_id": old.client_orderid, "next_order_id": old.order_id}
            self._tables.run("move_order_ids", operation=record.operation, instruction=new.number, **ids)
            entries.append(Entry(old.number, old.standing.attempt, Replaced(record.batch, row), at))
            if old.standing.state is State.REJECTED:
                successor, fact = old._replace(number=new.number), Released("", "an amended sheet")
                entries.append(self._release_entry(successor, record.operation, suffix=True, fact=fact, at=at))
        if not all(has_moved for _, _, has_moved in self._record(entries)):
            raise StaleRows

    def _standings(self, numbers: Sequence[int]) -> Mapping[int, RowStanding]:
        """Return the instructions to move, keyed by number."""
        return {line[0]: parse_row_standing(line) for line in self._tables.run("standings", numbers=list(numbers))}

    def _release_entry(self, row: RowStanding, operation: str, *, suffix: bool, fact: Released, at: str) -> Entry:
        """Return the fact that releases a rejected instruction and reserve its next order id."""

        def is_used(order_id: str) -> bool:
            spelling = normalise_spelling(order_id)
            return bool(self._tables.run("is_spelling_used", operation=operation, spelling=spelling))

        order_id = next_order_id(row, suffix=suffix, is_used=is_used)
        if suffix:
            self._tables.add_order_id(operation, order_id, row.number)
        return Entry(row.number, row.standing.attempt, replace(fact, order_id=order_id), at)

    @abstractmethod
    def _write_transaction(self) -> AbstractContextManager[object]:
        """Run the block in one transaction: durable and in the sent log at the end, or rolled back on an error."""

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
        """Write a batch without its opening fact. Returns the batch, with its reference if the store computes one."""

    @abstractmethod
    def _record(self, entries: Sequence[Entry | Remark]) -> Sequence[tuple[int, str, bool]]:
        """Add facts to the chain inside the open transaction and move their instructions.

        Returns each fact's number, its time, and whether it moved its row.
        """


def _parse_payment(line: Sequence[Any]) -> FoundPayment:
    columns = list(line)
    columns[10] = json.loads(columns[10])
    columns[12] = STATES[columns[12]]
    return FoundPayment(*columns)
