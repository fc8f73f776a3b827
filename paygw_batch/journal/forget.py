"""Forgets people in a journal and checks that no other personal data is missing, for all stores.

A single transaction clears or deletes the personal data. Facts, amounts and states remain. Each store has its own
`forget.sql`, which defines the same statements.
"""

import json
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.tables import Tables
from paygw_batch.journal.values import BatchForgotten, PaymentsToForget
from paygw_batch.language import say

_CHUNK_SIZE = 5_000


def forget_payees(tables: Tables, instructions: Sequence[int]) -> None:
    """Forget these instructions' payees, including in facts and replies, in the open transaction."""
    remaining = iter(instructions)
    while group := list(islice(remaining, _CHUNK_SIZE)):
        for name in ("forget_people", "forget_said", "forget_texts"):
            tables.run(name, numbers=group)


def forget_evidence(
    tables: Tables, instructions: Sequence[int], before: str, batches: Mapping[str, int]
) -> Mapping[int, Sequence[int]]:
    """Forget signed orders that name a forgotten row, and evidence older than `before` that names no instruction.

    `batches` maps batch ids to numbers. Returns the facts of the forgotten orders by batch number.
    """
    orders: dict[int, list[int]] = {number: [] for number in batches.values()}
    for batch, fact in _matching_orders(tables, instructions, batches):
        orders[batches[batch]].append(fact)
    tables.run("forget_heard", before=before, orders=[0, *(fact for facts in orders.values() for fact in facts)])
    return orders


def _matching_orders(tables: Tables, numbers: Sequence[int], batches: Collection[str]) -> Iterator[tuple[str, int]]:
    """Yield (batch id, fact number) for each stored order about one of `batches` that names any of these rows."""
    for fact, details, document in tables.run("stored_orders"):
        batch = json.loads(details)
        if batch in batches and numbers:
            forgotten_rows = tables.run("rows_of", batch=batch, numbers=list(numbers))
            if not _named_rows(document).isdisjoint(row for (row,) in forgotten_rows):
                yield batch, fact


def _named_rows(document: str) -> frozenset[int]:
    try:
        return frozenset(row["row"] for row in json.loads(document)["content"]["rows"])
    except (ValueError, TypeError, KeyError):
        return frozenset()


def check_forgotten(tables: Tables, forgettings: Iterable[tuple[int, BatchForgotten]]) -> None:
    """Raise `JournalCorrupt` unless the number of payees missing from each batch matches `forgettings`."""
    forgotten_counts = Counter[int]()
    for batch, forgetting in forgettings:
        forgotten_counts[batch] += forgetting.instructions
    if dict(tables.run("forgotten_rows")) != {batch: count for batch, count in forgotten_counts.items() if count}:
        raise JournalCorrupt(say("People were forgotten, but no fact records it."))


def payments_to_forget(
    tables: Tables, instructions: Sequence[int] | None, before: str, is_finished: Callable[[int], bool]
) -> PaymentsToForget:
    """Return payments whose payees may be forgotten: those in `instructions` or, if None, all before a date.

    `is_finished` returns whether a batch is permanently finished. Leaves out payments also in an unfinished batch.
    """
    run, by_batch = tables.run, dict[int, "array[int]"]()
    if instructions is None:
        for (batch,) in run("opened_before", before=before):
            ((last_moved_at,),) = run("newest_move", batch=batch)
            if last_moved_at is None or last_moved_at < before:
                by_batch[batch] = array("q", (number for (number,) in run("not_forgotten", batch=batch)))
    else:
        for number, batch in run("not_forgotten_of", numbers=list(instructions)) if instructions else ():
            by_batch.setdefault(batch, array("q")).append(number)
    numbers = [number for batch_numbers in by_batch.values() for number in batch_numbers]
    memberships = run("rows_of_other_batches", numbers=numbers) if numbers else []
    affected_batches = by_batch.keys() | {batch for batch, _ in memberships}
    finished_batches = {batch for batch in affected_batches if is_finished(batch)}
    if instructions is None:
        finished_batches &= by_batch.keys()
    kept_numbers = {number for batch, number in memberships if batch not in finished_batches}
    payments = {}
    for batch in sorted(finished_batches):
        batch_numbers = array("q", (number for number in by_batch.get(batch, ()) if number not in kept_numbers))
        if batch_numbers or run("has_sheet", batch=batch):
            payments[batch] = batch_numbers
    return PaymentsToForget(before, payments, sorted(affected_batches - finished_batches))
