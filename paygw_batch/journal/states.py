"""Reads instructions' states, and a batch's rows by state."""

import json
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from paygw_batch.core.batch import BILLION, Instruction, attempt_order_id
from paygw_batch.core.lifecycle import STATE_AFTER, FactKind, Standing, State
from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.tables import Tables
from paygw_batch.journal.values import DueRow, RowState, StateTally, TallyKind
from paygw_batch.language import say

PROVEN_STATEMENT = "proven_statement"
"""The error code of a row rejected according to a proven statement. Such a row is not in quarantine."""


class _StatesByName(dict[str, State]):
    """Maps names to states and rejects unknown ones. A CHECK constraint would slow down each write by 3 us."""

    def __missing__(self, name: str) -> State:
        raise JournalCorrupt(say("An instruction has an unknown state: {state!r}.", state=str(name)[:20]))


STATES: Mapping[str, State] = _StatesByName({state.value: state for state in State})


class RowStanding(NamedTuple):
    """An instruction's standing, the `order_id` of its next attempt, and `quarantined_since` as in `Clash`."""

    number: int
    client_orderid: str
    order_id: str
    standing: Standing
    quarantined_since: str | None


def parse_row_standing(columns: Sequence[Any]) -> RowStanding:
    """Parse a line returned by the query `standings`."""
    number, client_orderid, order_id, state, *standing, since = columns
    return RowStanding(number, client_orderid, order_id, Standing(STATES[state], *standing), since)


def storable_text(text: str) -> str:
    """Replace characters that UTF-8 cannot encode (lone surrogates) with `?`."""
    return text.encode("utf-8", "replace").decode()


def is_amendable(state: State, possible_duplicate_of: int | None) -> bool:
    """Return whether an amended row may replace a payment in this state: rejected, or ready and certainly not paid.

    A ready row that a person resolved as not received may have been paid, so it is not amendable. For a row that a
    person resolved as rejected, the caller must also check that its quarantine has ended (`is_in_quarantine`).
    """
    return state is State.REJECTED or (state is State.READY and possible_duplicate_of is None)


def next_order_id(row: RowStanding, *, suffix: bool, is_used: Callable[[str], bool]) -> str:
    """Return the order id for a released row's next attempt: its last one, or (with `suffix`) the next unused one."""
    if not suffix:
        return row.order_id
    generation = row.standing.generation + 1
    while is_used(attempt_order_id(row.client_orderid, generation)):
        generation += 1
    return attempt_order_id(row.client_orderid, generation)


_CHUNK_SIZE = 10_000
_SCAN_SIZE = 1_000
_SCAN_FROM_ROWS = 20_000
"""If at least this many rows match, scanning the batch is faster than sorting them."""
NO_LIMIT = 2**62


def tallies(tables: Tables, batch: int, kind: TallyKind, accepted_until: str | None) -> list[StateTally]:
    """Return the counts and sums of a batch's rows, sorted by country, currency and state."""
    query = "known_tallies" if kind is TallyKind.KNOWN else "tallies"
    all_tallies = _parse_tallies(tables.run(query, batch=batch, until=accepted_until))
    if kind is not TallyKind.DUE:
        return all_tallies
    held = {(tally.country, tally.currency): tally for tally in _parse_tallies(tables.run("held_tallies", batch=batch))}
    due = []
    for tally in all_tallies:
        held_tally = held.get((tally.country, tally.currency), replace(tally, count=0, minor=0))
        if tally.state is State.READY and tally.count > held_tally.count:
            due.append(replace(tally, count=tally.count - held_tally.count, minor=tally.minor - held_tally.minor))
    return due


def _parse_tallies(lines: Iterable[Sequence[Any]]) -> list[StateTally]:
    return [
        StateTally(country, currency, STATES[state], int(rows), int(billions) * BILLION + int(rest))
        for country, currency, state, rows, billions, rest in lines
    ]


def find_rows(
    tables: Tables,
    batch: int,
    *,
    states: Collection[State] | None = None,
    numbers: Collection[int] | None = None,
    accepted_until: str | None = None,
    after: int = 0,
    limit: int | None = None,
) -> Iterator[RowState]:
    """Yield the matching rows of a batch in the sheet's order (see `JournalReader.rows`)."""
    if numbers is not None:
        rows = _load_row_states(tables, _numbered_pairs(tables, batch, numbers, after))
        if states is not None:
            wanted = set(states)
            rows = (row for row in rows if row.state in wanted and _is_within_cutoff(row, accepted_until))
        yield from islice(rows, limit)
    elif states is None:
        yield from _load_row_states(tables, islice(_all_pairs(tables, batch, after, limit), limit))
    elif states:
        filters = {"batch": batch, "states": [state.value for state in states], "until": accepted_until}
        yield from _load_row_states(tables, _find_pairs(tables, filters, after, limit))


def _load_row_states(tables: Tables, row_pairs: Iterable[tuple[int, int]]) -> Iterator[RowState]:
    remaining = iter(row_pairs)
    while group := list(islice(remaining, _CHUNK_SIZE)):
        lines = {line[0]: line for line in tables.run("row_states", numbers=[number for _, number in group])}
        for row, number in group:
            _, attempt, client_orderid, country, currency, minor, state, *rest = lines[number]
            columns = (number, attempt, client_orderid, country, currency, minor)
            yield RowState(row, *columns, STATES[state], *rest)


def due_rows(tables: Tables, batch: int, after: int, limit: int) -> list[DueRow]:
    """Return up to `limit` READY instructions of a batch after row `after`, except those held by evidence."""
    rows: list[DueRow] = []
    page_size = limit
    while len(rows) < limit and (lines := tables.run("due", batch=batch, after=after, limit=page_size)):
        due, after = parse_due_rows(lines), lines[-1][1]
        rows += due
        if not due:  # many finished rows may follow, so read larger pages
            page_size = _CHUNK_SIZE
            states = [State.READY.value]
            if not has_many_rows(tables, batch, states):
                next_ready = tables.run("rows_by_state", batch=batch, states=states, after=after, until=None, limit=1)
                if not next_ready:
                    break
                after = next_ready[0][0] - 1
    return rows[:limit]


def parse_due_rows(lines: Iterable[Sequence[Any]]) -> list[DueRow]:
    """Parse the rows that may be sent. Raises `JournalCorrupt` if a state does not match the row's newest fact."""
    rows = []
    for line in lines:
        number, row, client_orderid, country, currency, amount, form, fields, order_id, *standing = line[:12]
        state, inherited, fact, kind, fact_attempt, newest_fact, is_due = line[12:]
        if STATES[state] is not State.READY:
            continue
        target, attempt = (State.READY, inherited) if kind is None else (STATE_AFTER.get(FactKind(kind)), fact_attempt)
        # The state decides whether the row is sent, so it must match the newest fact, which the chain protects.
        # Otherwise, tampering with the table could cause a paid row to be sent again.
        if fact != newest_fact or target is not State.READY or attempt != standing[0]:
            message = say("The state of instruction {number} does not follow from its newest fact.", number=number)
            raise JournalCorrupt(message)
        if is_due:
            instruction = Instruction(client_orderid, country, currency, amount, form, json.loads(fields))
            rows.append(DueRow(number, row, instruction, Standing(State.READY, *standing), order_id))
    return rows


def _is_within_cutoff(row: RowState, accepted_until: str | None) -> bool:
    if row.state is not State.ACCEPTED or accepted_until is None:
        return True
    return row.intended_at is not None and row.intended_at <= accepted_until


def _all_pairs(tables: Tables, batch: int, after: int, limit: int | None) -> Iterator[tuple[int, int]]:
    """Yield (row, instruction) for all rows of a batch after `after`, reading up to `limit` rows at a time."""
    page_size = _CHUNK_SIZE if limit is None else min(limit, _CHUNK_SIZE)
    while lines := tables.run("next_rows", batch=batch, after=after, limit=page_size):
        yield from lines
        after = lines[-1][0]


def _numbered_pairs(tables: Tables, batch: int, numbers: Collection[int], after: int) -> Iterator[tuple[int, int]]:
    ordered = sorted({number for number in numbers if number > after})
    for start in range(0, len(ordered), _CHUNK_SIZE):
        yield from tables.run("rows_by_number", batch=batch, rows=ordered[start : start + _CHUNK_SIZE])


def _find_pairs(tables: Tables, filters: Mapping[str, Any], after: int, limit: int | None) -> Iterator[tuple[int, int]]:
    """Yield (row, instruction) for rows after `after` that match the batch, states and cutoff in `filters`."""
    if limit is not None and has_many_rows(tables, filters["batch"], filters["states"]):
        page_size, remaining = max(limit, _SCAN_SIZE), limit
        while remaining > 0 and (lines := tables.run("scanned_rows", **filters, after=after, limit=page_size)):
            matching = [(row, instruction) for row, instruction, is_match in lines if is_match]
            yield from matching[:remaining]
            remaining, after = remaining - len(matching), lines[-1][0]
        return
    # All rows are read before the first one is yielded, because the caller may write to the journal in between.
    rows, instructions = array("q"), array("q")
    max_rows = NO_LIMIT if limit is None else limit
    for row, instruction in tables.stream("rows_by_state", **filters, after=after, limit=max_rows):
        rows.append(row)
        instructions.append(instruction)
    yield from zip(rows, instructions, strict=True)


def has_many_rows(tables: Tables, batch: int, states: list[str]) -> bool:
    """Return whether enough of a batch's rows are in `states` for a scan of it to be faster than sorting them."""
    return tables.run("count_up_to_limit", batch=batch, states=states, limit=_SCAN_FROM_ROWS) == [(_SCAN_FROM_ROWS,)]
