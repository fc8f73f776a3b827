"""Forgets people in a journal and checks that no other personal data is missing, for all stores.

People are forgotten in one transaction, which clears or removes personal data; facts, amounts and states stay. Each
store has its own `forget.sql` with statements of the same names.
"""

import json
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.tables import Tables
from paygw_batch.journal.values import BatchForgotten, ForgettablePayments
from paygw_batch.language import say

_CHUNK_SIZE = 5_000


def forget_payees(tables: Tables, numbers: Sequence[int]) -> None:
    """Forget the payees of instructions, including in facts and replies, in the open transaction."""
    remaining = iter(numbers)
    while group := list(islice(remaining, _CHUNK_SIZE)):
        for name in ("forget_people", "forget_said", "forget_texts"):
            tables.run(name, numbers=group)


def forget_evidence(
    tables: Tables, numbers: Sequence[int], before: str, batches: Mapping[str, int]
) -> Mapping[int, Sequence[int]]:
    """Forget evidence without an instruction from before a time, and signed orders that name a forgotten row.

    `batches` maps the ids of the forgotten batches to their numbers. Returns these orders' facts by batch.
    """
    orders: dict[int, list[int]] = {number: [] for number in batches.values()}
    for batch, order in _matching_orders(tables, numbers, batches):
        orders[batches[batch]].append(order)
    tables.run("forget_heard", before=before, orders=[0, *(order for facts in orders.values() for order in facts)])
    return orders


def _matching_orders(tables: Tables, numbers: Sequence[int], batches: Collection[str]) -> Iterator[tuple[str, int]]:
    """Yield the batch id and fact number of each stored order that names a forgotten person's row."""
    for number, details, document in tables.run("orders_to_look_at"):
        batch = json.loads(details)
        if batch not in batches or not numbers:
            continue
        lines = tables.run("rows_of", batch=batch, numbers=list(numbers))
        if not _named_rows(document).isdisjoint(row for (row,) in lines):
            yield batch, number


def _named_rows(document: str) -> frozenset[int]:
    """Return the rows that a signed order names, or none if it cannot be read."""
    try:
        return frozenset(row["row"] for row in json.loads(document)["content"]["rows"])
    except (ValueError, TypeError, KeyError):
        return frozenset()


def check_forgotten(tables: Tables, forgettings: Iterable[tuple[int, BatchForgotten]]) -> None:
    """Raise `JournalCorrupt` unless each batch lacks exactly as many payees as its facts forgot."""
    forgotten_counts = Counter[int]()
    for batch, forgetting in forgettings:
        forgotten_counts[batch] += forgetting.instructions
    if dict(tables.run("forgotten_rows")) != {batch: count for batch, count in forgotten_counts.items() if count}:
        raise JournalCorrupt(say("People were forgotten, but no fact records it."))


def forgettable_payments(
    tables: Tables, numbers: Sequence[int] | None, before: str, is_over: Callable[[int], bool]
) -> ForgettablePayments:
    """Return the payments whose payees may be forgotten: before a date, or those in `numbers`.

    `is_over` returns whether a batch is finished for good. A row is kept if an unfinished batch also covers it.
    """
    run, groups = tables.run, dict[int, "array[int]"]()
    if numbers is None:
        for (batch,) in run("opened_before", before=before):
            ((newest,),) = run("newest_move", batch=batch)
            if newest is None or newest < before:
                groups[batch] = array("q", (number for (number,) in run("not_forgotten", batch=batch)))
    else:
        for number, batch in run("not_forgotten_of", numbers=list(numbers)) if numbers else ():
            groups.setdefault(batch, array("q")).append(number)
    payments = [number for group in groups.values() for number in group]
    covering = run("knowing", numbers=payments) if payments else []
    affected = groups.keys() | {batch for batch, _ in covering}
    finished = {batch for batch in affected if is_over(batch)}
    finished = finished & groups.keys() if numbers is None else finished
    kept_rows = {number for batch, number in covering if batch not in finished}
    chosen = {batch: array("q", (row for row in groups.get(batch, ()) if row not in kept_rows)) for batch in finished}
    changed_batches = {batch for batch in finished if chosen[batch] or run("has_sheet", batch=batch)}
    batches = {batch: chosen[batch] for batch in sorted(changed_batches)}
    return ForgettablePayments(before, batches, sorted(affected - finished))
