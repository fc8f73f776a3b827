"""What was paid before in another spelling, or under other ids, in the journal's twin (see `memory.py`)."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from paygw_batch.core.reference import reference_of
from paygw_batch.core.spelling import spelled_alike
from paygw_batch.journal.evidence_memory import Held
from paygw_batch.journal.port import BatchRecord, LookAlike
from paygw_batch.journal.spelling_port import RepeatedBatch, UsedReference, UsedSpelling

_Paid = dict[tuple[str, str, int], list[Held]]
"""Instructions by payee, currency and minor units."""


class MemorySpellings:
    """The part of the journal's twin that finds what was paid before: it looks at every instruction."""

    _batches: list[BatchRecord]
    _instructions: dict[int, Held]
    _order_ids: dict[tuple[str, str], int]

    def is_used(self, operation: str, order_id: str) -> bool:
        """Whether an order id was ever used, in whatever spelling."""
        spelling = spelled_alike(order_id)
        return any(of == operation and spelled_alike(used) == spelling for of, used in self._order_ids)

    def used_spellings(self, operation: str, rows: Iterable[tuple[int, str, str]]) -> Sequence[UsedSpelling]:
        """Find rows whose order id was used in another spelling, and never as it is (see the port)."""
        used: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for (of, order_id), number in self._order_ids.items():
            if of == operation:
                used[spelled_alike(order_id)].append((number, order_id))
        found = []
        for row, client_orderid, spelling in rows:
            if spelling in used and (operation, client_orderid) not in self._order_ids:
                number, order_id = max(used[spelling])
                batch = self._instructions[number].batch
                found.append(UsedSpelling(row, order_id, batch.batch, batch.opened_at))
        return found

    def references(self, operation: str) -> Sequence[UsedReference]:
        """Return every reference that a batch's order ids were derived from, with each batch, oldest first."""
        first: dict[int, Held] = {}
        for held in self._instructions.values():
            before = first.setdefault(held.batch.number, held)
            if held.new.row < before.new.row:
                first[held.batch.number] = held
        return [
            UsedReference(reference, held.batch.batch, held.batch.opened_at)
            for _, held in sorted(first.items())
            if held.batch.operation == operation
            and (reference := reference_of(held.new.client_orderid, held.new.content)) is not None
        ]

    def repeated_batches(
        self, operation: str, rows: Iterable[tuple[str, str, str, int]], *, since: str
    ) -> Sequence[RepeatedBatch]:
        """Count rows paid under other ids, by batch opened after `since` (see the port)."""
        paid = self._paid(operation, since)
        counts: Counter[int] = Counter()
        for client_orderid, payee, currency, minor in rows:
            others = (
                held for held in paid.get((payee, currency, minor), []) if held.new.client_orderid != client_orderid
            )
            counts.update({held.batch.number for held in others})
        return [
            RepeatedBatch(record.batch, record.sheet_name, record.opened_at, counts[record.number])
            for record in reversed(self._batches)
            if record.number in counts
        ]

    def look_alikes(
        self, operation: str, rows: Iterable[tuple[int, str, str, str, int]], *, since: str
    ) -> Sequence[LookAlike]:
        """Find (row, client_orderid, payee, currency, minor) paid under another id in a batch opened after `since`."""
        paid = self._paid(operation, since)
        found = []
        for row, client_orderid, payee, currency, minor in rows:
            for held in reversed(paid.get((payee, currency, minor), [])):
                if held.new.client_orderid != client_orderid:
                    found.append(LookAlike(row, held.new.client_orderid, held.batch.batch, held.batch.opened_at))
                    break
        return found

    def _paid(self, operation: str, since: str) -> _Paid:
        paid: _Paid = defaultdict(list)
        for held in self._instructions.values():
            if held.batch.operation == operation and held.batch.opened_at > since:
                paid[held.new.payee, held.new.currency, held.new.minor].append(held)
        return paid
