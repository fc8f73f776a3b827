"""Counts and finds a batch's rows by state without reading all of them.

Most rows of a batch are in one state. The totals were written when the batch opened, so the rows of every other state
are found by index and added up, and the most common state gets the remainder.
"""

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import islice

import apsw

from paygw_batch.core.batch import BILLION
from paygw_batch.core.lifecycle import State
from paygw_batch.errors import InternalError, JournalCorrupt
from paygw_batch.journal.facts.progress import STATES, progress_of, row_standing
from paygw_batch.journal.sqlite.connect import fetch
from paygw_batch.journal.sqlite.tables import QUERIES
from paygw_batch.journal.values import RowState, StateTally, WantedRows
from paygw_batch.language import say

_AT_ONCE = 10_000
_READY = State.READY.value
_ACCEPTED = State.ACCEPTED.value

_Sums = dict[tuple[str, str], tuple[int, int]]
"""Count and sum in minor units, by country and currency."""

_SUMMED = """SELECT country, currency, count(*), sum(minor / 1000000000), sum(minor % 1000000000)
    FROM ({rows}) GROUP BY 1, 2"""
_KNOWN = """SELECT i.country, i.currency, coalesce(s.state, 'ready'), count(*), sum(i.minor / 1000000000),
        sum(i.minor % 1000000000)
    FROM known k CROSS JOIN instruction i ON i.number = k.instruction
        LEFT JOIN standing s ON s.instruction = k.instruction
    WHERE k.batch = ? GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"""
_IN_STATES = """SELECT i.row, i.number, i.country, i.currency, i.minor FROM standing s INDEXED BY standing_by_state
        CROSS JOIN instruction i ON i.number = s.instruction WHERE i.batch = ?1 AND {wanted}
    UNION ALL
    SELECT k.row, i.number, i.country, i.currency, i.minor FROM standing s INDEXED BY standing_by_state
        CROSS JOIN known k ON k.batch = ?1 AND k.instruction = s.instruction
        CROSS JOIN instruction i ON i.number = s.instruction WHERE {wanted}"""
_UNTOUCHED = """SELECT i.country, i.currency, i.minor
    FROM covered c CROSS JOIN instruction i ON i.number = c.instruction
    WHERE c.batch = ?1 AND c.instruction > ?2
        AND NOT EXISTS (SELECT 1 FROM standing s WHERE s.instruction = c.instruction)"""
_PAGE = "SELECT row, instruction FROM covered WHERE batch = ? AND row > ? ORDER BY row LIMIT ?"
_ALL_READY = """SELECT c.row, c.instruction FROM covered c LEFT JOIN standing s ON s.instruction = c.instruction
    WHERE c.batch = ? AND c.row > ? AND coalesce(s.state, 'ready') = 'ready' ORDER BY c.row LIMIT ?"""
"""Includes held rows. Few lines of `standing` say that a row is ready, so an index on them would not help."""
_COMMON_ROWS = 20_000
"""From this many matches on, scanning the batch beats sorting."""
_WALKED_IN = """SELECT c.row, c.instruction FROM covered c CROSS JOIN standing s ON s.instruction = c.instruction
    WHERE c.batch = ? AND c.row > ? AND s.state IN ({marks}) ORDER BY c.row LIMIT ?"""


def tallies(connection: apsw.Connection, batch: int, accepted_until: str | None = None) -> list[StateTally]:
    """Return counts and sums of a batch, ordered by country, currency and state.

    Raises `JournalCorrupt` if the states have more rows than the batch.
    """
    left, bounds = _total(connection, batch)
    if bounds is None:
        return []
    (most, _), *others = _counts(connection, bounds).most_common()
    sums = {state: _of_state(connection, batch, state, bounds) for state, _ in others}
    for of_state in sums.values():
        for key, (count, minor) in of_state.items():
            rows, total = left.get(key, (0, 0))
            left[key] = rows - count, total - minor
    if any(count < 0 or minor < 0 for count, minor in left.values()):
        raise JournalCorrupt(say("Batch number {batch} has more rows than when it was opened.", batch=batch))
    sums[most] = {key: found for key, found in left.items() if found[0]}
    if accepted_until is not None and sums.get(_ACCEPTED):
        sums[_ACCEPTED] = _accepted_by(connection, batch, accepted_until)
    return sorted(
        (
            StateTally(*key, STATES[state], *found)
            for state, of_state in sums.items()
            for key, found in of_state.items()
        ),
        key=lambda tally: (tally.country, tally.currency, tally.state),
    )


def known_tallies(connection: apsw.Connection, batch: int) -> list[StateTally]:
    """Return counts and sums of a batch's rows that an earlier batch brought."""
    return [
        StateTally(country, currency, STATES[state], count, billions * BILLION + rest)
        for country, currency, state, count, billions, rest in fetch(connection, _KNOWN, (batch,))
    ]


def _accepted_by(connection: apsw.Connection, batch: int, until: str) -> _Sums:
    """Return counts and sums of a batch's accepted rows whose latest intent is no later than `until`."""
    found = _selected(connection, batch, {State.ACCEPTED}, until)
    if found is None:
        return {}
    query, bindings = found
    return _added_up(fetch(connection, _SUMMED.format(rows=query), bindings))


def due_tallies(connection: apsw.Connection, batch: int) -> list[StateTally]:
    """Return counts and sums of the rows that may be sent: ready, and not held by evidence."""
    held = _added_up(fetch(connection, _SUMMED.format(rows=QUERIES["held_rows"]), {"batch": batch}))
    due = []
    for tally in tallies(connection, batch):
        count, minor = held.get((tally.country, tally.currency), (0, 0))
        if tally.state is State.READY and tally.count > count:
            due.append(replace(tally, count=tally.count - count, minor=tally.minor - minor))
    return due


def rows(connection: apsw.Connection, batch: int, wanted: WantedRows) -> Iterator[RowState]:
    """Yield the wanted rows of a batch in the sheet's order (see `JournalReader.rows`).

    They are first found as row and instruction numbers; the details are then read in groups.
    """
    states, after, limit = wanted.states, wanted.after, wanted.limit
    if wanted.numbers is None:
        if states is None:
            found: Iterable[tuple[int, int]] = islice(_walked(connection, batch, after, limit), limit)
        elif set(states) == {State.READY}:
            found = fetch(connection, _ALL_READY, (batch, after, -1 if limit is None else limit))
        elif limit is not None and wanted.accepted_until is None and _are_common(connection, batch, states):
            query = _WALKED_IN.format(marks=", ".join("?" * len(states)))
            found = fetch(connection, query, (batch, after, *(state.value for state in states), limit))
        else:
            found = _in_states(connection, batch, states, wanted)
        yield from _described(connection, found)
        return
    standings = _described(connection, _numbered(connection, batch, wanted.numbers, after))
    if states is not None:
        named = set(states)
        standings = (one for one in standings if one.state in named and _is_old_enough(one, wanted.accepted_until))
    yield from islice(standings, limit)


def _are_common(connection: apsw.Connection, batch: int, states: Collection[State]) -> bool:
    """Whether very many instructions in the batch's number range, even of other batches, are in one of `states`."""
    _, bounds = _total(connection, batch)
    query = """SELECT count(*) FROM (SELECT 1 FROM standing INDEXED BY standing_by_state
        WHERE state = ? AND instruction BETWEEN ? AND ? LIMIT ?)"""
    return bounds is not None and any(
        fetch(connection, query, (state.value, *bounds, _COMMON_ROWS)) == [(_COMMON_ROWS,)] for state in states
    )


def _is_old_enough(one: RowState, accepted_until: str | None) -> bool:
    if one.state is not State.ACCEPTED or accepted_until is None:
        return True
    return one.intended_at is not None and one.intended_at <= accepted_until


def _walked(connection: apsw.Connection, batch: int, after: int, limit: int | None) -> Iterator[tuple[int, int]]:
    """Yield row and instruction of every row of a batch after row `after`, reading at most `limit` rows at a time."""
    at_once = _AT_ONCE if limit is None else min(limit, _AT_ONCE)
    while lines := fetch(connection, _PAGE, (batch, after, at_once)):
        yield from lines
        after = lines[-1][0]


def _numbered(
    connection: apsw.Connection, batch: int, numbers: Collection[int], after: int
) -> Iterator[tuple[int, int]]:
    """Yield row and instruction of the batch's rows after `after` that are in `numbers`."""
    ordered = array("q", sorted({number for number in numbers if number > after}))
    for start in range(0, len(ordered), _AT_ONCE):
        group = apsw.carray(ordered[start : start + _AT_ONCE])
        found: list[tuple[int, int]] = fetch(connection, QUERIES["numbered"], {"batch": batch, "rows": group})
        yield from found


def _in_states(
    connection: apsw.Connection, batch: int, states: Collection[State], wanted: WantedRows
) -> Iterator[tuple[int, int]]:
    """Yield row and instruction of the wanted rows of a batch that are in `states`."""
    found = _selected(connection, batch, states, wanted.accepted_until)
    if found is None:
        return
    query, bindings = found
    ordered = f"SELECT row, number FROM ({query}) WHERE row > ?5 ORDER BY row LIMIT ?6"  # noqa: S608 - ours
    # Read them all at once: the caller may write to the journal between two rows.
    rows, instructions = array("q"), array("q")
    limit = -1 if wanted.limit is None else wanted.limit
    for row, instruction in connection.execute(ordered, (*bindings, wanted.after, limit)):
        rows.append(row)
        instructions.append(instruction)
    yield from zip(rows, instructions, strict=True)


def _described(connection: apsw.Connection, found: Iterable[tuple[int, int]]) -> Iterator[RowState]:
    """Yield the given rows with everything that people read about them."""
    remaining = iter(found)
    while group := list(islice(remaining, _AT_ONCE)):
        instructions = apsw.carray(array("q", (instruction for _, instruction in group)))
        lines = fetch(connection, QUERIES["row_details"], {"numbers": instructions})
        for (row, instruction), (client_orderid, country, currency, minor, *columns) in zip(group, lines, strict=True):
            yield row_standing(row, instruction, client_orderid, country, currency, minor, progress_of(columns))


def _selected(
    connection: apsw.Connection, batch: int, states: Collection[State], accepted_until: str | None
) -> tuple[str, tuple[int | str | None, ...]] | None:
    """Return the query for a batch's rows in `states` and its parameters; None if no row can match."""
    if State.READY in states:
        raise InternalError("rows that are ready are asked for alone")
    _, bounds = _total(connection, batch)
    if bounds is None:
        return None
    if accepted_until is not None and State.ACCEPTED in states:
        # A batch's own rows were sent after it opened, so this usually shows at once that none is old enough.
        query = "SELECT opened_at <= ?2 OR EXISTS (SELECT 1 FROM known WHERE batch = ?1) FROM batch WHERE number = ?1"
        if fetch(connection, query, (batch, accepted_until)) == [(0,)]:
            states = set(states) - {State.ACCEPTED}
    old_enough = f" AND (s.state <> '{State.ACCEPTED.value}' OR ?4 IS NULL OR s.intended_at <= ?4)"
    return _rows_in(states, old_enough), (batch, *bounds, accepted_until)


def _total(connection: apsw.Connection, batch: int) -> tuple[_Sums, tuple[int, int] | None]:
    """Return a batch's totals and the bounds of its instruction numbers (None if it has none)."""
    query = "SELECT country, currency, rows, billions, rest, first, last FROM batch_total WHERE batch = ?"
    lines = fetch(connection, query, (batch,))
    total = {
        (country, currency): (rows, billions * BILLION + rest) for country, currency, rows, billions, rest, *_ in lines
    }
    return total, (min(line[5] for line in lines), max(line[6] for line in lines)) if lines else None


def _counts(connection: apsw.Connection, bounds: tuple[int, int]) -> Counter[str]:
    """Return the number of instructions within `bounds` in each state, of any batch.

    This decides which state gets the remainder, and lists every state that a row of the batch may have.
    """
    counts = _touched(connection, bounds)
    counts[_READY] += bounds[1] - bounds[0] + 1 - counts.total()
    return +counts


def _touched(connection: apsw.Connection, bounds: tuple[int, int]) -> Counter[str]:
    """Return the number of instructions within `bounds` in each state, from their lines in `standing`."""
    query = """SELECT count(*) FROM standing INDEXED BY standing_by_state
        WHERE state = ? AND instruction BETWEEN ? AND ?"""
    return Counter({state: fetch(connection, query, (state, *bounds))[0][0] for state in _words(connection)})


def _words(connection: apsw.Connection) -> list[str]:
    """Return the states present in `standing`, with one index look-up for each."""
    query = """WITH RECURSIVE word (state) AS (
            SELECT min(state) FROM standing
            UNION ALL
            SELECT (SELECT min(state) FROM standing WHERE state > word.state) FROM word WHERE word.state IS NOT NULL
        ) SELECT state FROM word WHERE state IS NOT NULL"""
    return [STATES[word].value for (word,) in fetch(connection, query)]


def _of_state(connection: apsw.Connection, batch: int, state: str, bounds: tuple[int, int]) -> _Sums:
    """Return counts and sums of a batch's rows in one state."""
    found = fetch(connection, _SUMMED.format(rows=_rows_in({State(state)})), (batch, *bounds))
    if state == _READY:
        found += fetch(connection, _SUMMED.format(rows=_UNTOUCHED), (batch, _touched_until(connection, bounds)))
    return _added_up(found)


def _added_up(found: Iterable[tuple[str, str, int, int, int]]) -> _Sums:
    sums: _Sums = {}
    for country, currency, count, billions, rest in found:
        rows, minor = sums.get((country, currency), (0, 0))
        sums[country, currency] = rows + count, minor + billions * BILLION + rest
    return sums


def _touched_until(connection: apsw.Connection, bounds: tuple[int, int]) -> int:
    """Return a number up to which every instruction of a batch has a line in `standing`.

    A run sends in the sheet's order, so this is usually the number that it has reached.
    """
    query = "SELECT max(instruction) FROM standing WHERE instruction BETWEEN ? AND ?"
    ((highest,),) = fetch(connection, query, bounds)
    first = bounds[0]
    if highest is None or _touched(connection, (first, highest)).total() < highest - first + 1:
        return first - 1
    return int(highest)


def _rows_in(states: Collection[State], condition: str = "") -> str:
    """Return the query for rows of batch ?1 in `states`; ?2 and ?3 are the bounds of its instructions' numbers."""
    words = ", ".join(f"'{state.value}'" for state in states)
    return _IN_STATES.format(wanted=f"s.state IN ({words}) AND s.instruction BETWEEN ?2 AND ?3{condition}")
