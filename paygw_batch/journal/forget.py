"""Forgets people in a journal, and checks that only people whom facts forgot are gone, for all stores.

Each forgetting is one transaction. It empties or removes the values about people; facts, amounts and states stay. Each
store has its own SQL, `forget.sql` in its folder, with the same names of statements.
"""

import json
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.tables import Tables
from paygw_batch.journal.values import BatchForgotten, Forgettable
from paygw_batch.language import say

_AT_ONCE = 5_000


def forget_payees(tables: Tables, numbers: Sequence[int]) -> None:
    """Forget the payees of instructions inside the open transaction, also in facts and replies."""
    remaining = iter(numbers)
    while group := list(islice(remaining, _AT_ONCE)):
        for name in ("forget_people", "forget_said", "forget_texts"):
            tables.run(name, numbers=group)


def forget_heard(
    tables: Tables, numbers: Sequence[int], before: str, batches: Mapping[str, int]
) -> Mapping[int, Sequence[int]]:
    """Forget evidence from before a time that is about no instruction, and signed orders that name a forgotten row.

    `batches` maps the ids of the forgotten batches to their numbers. Return the facts of these orders by batch.
    """
    orders: dict[int, list[int]] = {number: [] for number in batches.values()}
    for batch, order in _orders(tables, numbers, batches):
        orders[batches[batch]].append(order)
    tables.run("forget_heard", before=before, orders=[0, *(order for facts in orders.values() for order in facts)])
    return orders


def _orders(tables: Tables, numbers: Sequence[int], batches: Collection[str]) -> Iterator[tuple[str, int]]:
    """Yield the kept orders that name a row of a forgotten person: the batch's id, and the number of the fact."""
    for number, details, document in tables.run("orders_to_look_at"):
        batch = json.loads(details)
        if batch not in batches or not numbers:
            continue
        lines = tables.run("rows_of", batch=batch, numbers=list(numbers))
        if not _rows_of(document).isdisjoint(row for (row,) in lines):
            yield batch, number


def _rows_of(document: str) -> frozenset[int]:
    """Return the rows that a signed order names; none if the order cannot be read."""
    try:
        return frozenset(row["row"] for row in json.loads(document)["content"]["rows"])
    except (ValueError, TypeError, KeyError):
        return frozenset()


def check_forgotten(tables: Tables, forgotten: Iterable[tuple[int, BatchForgotten]]) -> None:
    """Raise `JournalCorrupt` unless, in each batch, as many payees are gone as facts forgot."""
    counted = Counter[int]()
    for batch, fact in forgotten:
        counted[batch] += fact.instructions
    if dict(tables.run("forgotten_rows")) != {batch: count for batch, count in counted.items() if count}:
        raise JournalCorrupt(say("People were forgotten, but no fact records it."))


def forgettable(
    tables: Tables, numbers: Sequence[int] | None, before: str, is_over: Callable[[int], bool]
) -> Forgettable:
    """Return the payments whose payees may be forgotten: all from before a date, or those of `numbers`.

    `is_over` says whether a batch is finished for ever. A row is kept if a batch that may not be forgotten also covers
    it.
    """
    run, wanted = tables.run, dict[int, "array[int]"]()
    if numbers is None:
        for (batch,) in run("opened_before", before=before):
            ((newest,),) = run("newest_move", batch=batch)
            if newest is None or newest < before:
                wanted[batch] = array("q", (number for (number,) in run("not_forgotten", batch=batch)))
    else:
        for number, batch in run("not_forgotten_of", numbers=list(numbers)) if numbers else ():
            wanted.setdefault(batch, array("q")).append(number)
    payments = [number for group in wanted.values() for number in group]
    known = run("knowing", numbers=payments) if payments else []
    touched = wanted.keys() | {batch for batch, _ in known}
    over = {batch for batch in touched if is_over(batch)}
    over = over & wanted.keys() if numbers is None else over
    kept = {number for batch, number in known if batch not in over}
    chosen = {batch: array("q", (number for number in wanted.get(batch, ()) if number not in kept)) for batch in over}
    has_more = {batch for batch in over if chosen[batch] or run("has_sheet", batch=batch)}
    batches = {batch: chosen[batch] for batch in sorted(has_more)}
    return Forgettable(before, batches, sorted(touched - over))
