"""Counts, finds and reads the rows of a batch."""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from psycopg import Connection

from paygw_batch.core.instruction import Instruction
from paygw_batch.core.lifecycle import Standing, State
from paygw_batch.errors import InternalError
from paygw_batch.journal.facts.progress import row_standing
from paygw_batch.journal.postgres.session import Row, fetch
from paygw_batch.journal.postgres.standing_lines import CHUNK_OF_ROW, PROGRESS, STATE_OF, progress_from
from paygw_batch.journal.values import Due, RowStanding, StateTally

_AT_ONCE = 10_000
_TALLIES = """SELECT i.country, i.currency, coalesce(s.state, 'ready') AS state, count(*), sum(i.minor)
    FROM {rows} JOIN instruction i ON i.number = c.instruction LEFT JOIN standing s ON s.instruction = c.instruction
    WHERE c.batch = %s {condition} GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"""
_PAGE = """page AS MATERIALIZED (
        (SELECT row, number AS instruction FROM instruction WHERE batch = %s AND row > %s ORDER BY row LIMIT %s)
        UNION ALL
        (SELECT row, instruction FROM known WHERE batch = %s AND row > %s ORDER BY row LIMIT %s)
        ORDER BY row LIMIT %s
    )"""
"""The next rows of a batch, found before all else: a page costs the same at any place of the batch."""
_SHOWN = f"c.row, p.number, p.client_orderid, p.country, p.currency, p.minor, {PROGRESS}"
_WALKED = f"""WITH {_PAGE} SELECT {_SHOWN}
    FROM page c JOIN progress p ON p.number = c.instruction ORDER BY c.row"""  # noqa: S608 - constants of ours
_CHOSEN = f"""SELECT {_SHOWN} FROM covered c JOIN progress p ON p.number = c.instruction
    WHERE c.batch = %s AND c.row > %s {{condition}} ORDER BY c.row LIMIT %s"""  # noqa: S608 - constants of ours
_LINES = f"""WITH {_PAGE} SELECT c.row, coalesce(s.state, 'ready'), coalesce(s.attempt - s.inherited_attempts, 0),
        s.sent_orderid, s.purpose, s.gateway_status, s.gateway_reference, s.http_status, s.error_code,
        CASE WHEN s.possible_duplicate_of IS NULL THEN s.message
            ELSE coalesce(s.message || ' [', '') || 'possible duplicate of attempt ' || s.possible_duplicate_of
                || CASE WHEN s.message IS NULL THEN '' ELSE ']' END END,
        coalesce(s.first_sent_at, CASE WHEN s.state = 'in_flight' THEN s.intended_at END), s.updated_at, i.minor
    FROM page c JOIN instruction i ON i.number = c.instruction LEFT JOIN standing s ON s.instruction = c.instruction
    ORDER BY c.row"""  # noqa: S608 - constants of ours
"""`LINE_COLUMNS` as `row_standing` has them."""

_OF_CHUNK = """page AS MATERIALIZED (
        SELECT i.row, i.number AS instruction FROM chunk r JOIN instruction i ON i.number BETWEEN r.first AND r.last
            WHERE r.number = %s AND i.batch = %s
        UNION ALL
        SELECT k.row, k.instruction FROM chunk r JOIN known k ON k.instruction BETWEEN r.first AND r.last
            WHERE r.number = %s AND k.batch = %s
    )"""
"""The rows of a batch in one chunk: those that it brought, or those that it also covers."""
_DUE = """WITH {page} SELECT p.number, c.row, p.client_orderid, p.country, p.currency, p.amount, p.form, p.fields,
        p.order_id, p.attempt, p.generation, p.possible_duplicate_of,
        p.state = 'ready' AND NOT EXISTS (SELECT FROM unanswered e WHERE e.instruction = p.number)
    FROM page c JOIN progress p ON p.number = c.instruction ORDER BY c.row"""


def lines_of_batch(connection: Connection[Row], batch: int) -> Iterator[Sequence[tuple[int | str | None, ...]]]:
    """Yield all rows of a batch as plain lines (see the port)."""
    row = -1
    while lines := fetch(connection, _LINES, _page(batch, row, _AT_ONCE)):
        for word in {line[1] for line in lines}:
            STATE_OF[word]  # raises for one that there is not
        row = lines[-1][0]
        yield lines


def count_states(
    connection: Connection[Row], batch: int, *, accepted_until: str | None = None, is_known: bool = False
) -> list[StateTally]:
    """Return counts and sums of a batch, or of its known rows, by country, currency and state (see the port)."""
    condition = ""
    values: list[Any] = [batch]
    if accepted_until is not None:
        condition = "AND (coalesce(s.state, 'ready') <> 'accepted' OR s.intended_at <= %s)"
        values.append(accepted_until)
    query = _TALLIES.format(rows="known c" if is_known else "covered c", condition=condition)
    return _tallies(fetch(connection, query, values))


def count_due(connection: Connection[Row], batch: int) -> list[StateTally]:
    """Return counts and sums of the rows that may be sent: those that are ready and not held by evidence."""
    condition = """AND coalesce(s.state, 'ready') = 'ready'
        AND NOT EXISTS (SELECT FROM unanswered e WHERE e.instruction = c.instruction)"""
    return _tallies(fetch(connection, _TALLIES.format(rows="covered c", condition=condition), (batch,)))


def _tallies(found: Iterable[Row]) -> list[StateTally]:
    return [
        StateTally(country, currency, STATE_OF[state], count, int(minor))
        for country, currency, state, count, minor in found
    ]


def find_rows(
    connection: Connection[Row],
    batch: int,
    *,
    states: Collection[State] | None = None,
    numbers: Collection[int] | None = None,
    accepted_until: str | None = None,
    after: int = 0,
    limit: int | None = None,
) -> Iterator[RowStanding]:
    """Yield the wanted rows of a batch, in the sheet's order (see the port).

    With `states`, all that is found is read at once: the caller may write to the journal between two rows.
    """
    if states is not None and numbers is None and State.READY in states and len(set(states)) > 1:
        raise InternalError("rows that are ready are asked for alone")
    found: Iterator[Row]
    if states is None and numbers is None:
        found = islice(_walked(connection, batch, after, limit), limit)
    else:
        condition, values = _condition(states, numbers, accepted_until)
        found = iter(fetch(connection, _CHOSEN.format(condition=condition), (batch, after, *values, limit)))
    for row, number, client_orderid, country, currency, minor, *columns in found:
        yield row_standing(row, number, client_orderid, country, currency, minor, progress_from(columns))


def _condition(
    states: Collection[State] | None, numbers: Collection[int] | None, accepted_until: str | None
) -> tuple[str, list[Any]]:
    conditions: list[str] = []
    values: list[Any] = []
    if numbers is not None:
        conditions.append("AND c.row = ANY (%s)")
        values.append(sorted(set(numbers)))
    if states is not None:
        conditions.append("AND p.state = ANY (%s)")
        values.append([state.value for state in states])
        if accepted_until is not None:
            conditions.append("AND (p.state <> 'accepted' OR p.intended_at <= %s)")
            values.append(accepted_until)
    return " ".join(conditions), values


def _walked(connection: Connection[Row], batch: int, after: int, limit: int | None) -> Iterator[Row]:
    at_once = _AT_ONCE if limit is None else min(limit, _AT_ONCE)
    while lines := fetch(connection, _WALKED, _page(batch, after, at_once)):
        yield from lines
        after = lines[-1][0]


def _page(batch: int, after: int, limit: int) -> tuple[int, ...]:
    """Return the values of `_PAGE`."""
    return (batch, after, limit, batch, after, limit, limit)


def due_rows(connection: Connection[Row], batch: int, after_row: int, limit: int) -> list[Due]:
    """Return up to `limit` READY instructions of a batch with a row above `after_row`; none that evidence holds."""
    found: list[Due] = []
    while len(found) < limit:
        lines = fetch(connection, _DUE.format(page=_PAGE), _page(batch, after_row, min(limit, _AT_ONCE)))
        if not lines:
            break
        found += [_due(columns) for *columns, is_due in lines if is_due]
        after_row = lines[-1][1]
    return found[:limit]


def due_rows_of_chunk(connection: Connection[Row], batch: int, chunk: int) -> list[Due]:
    """Return the READY instructions of a batch in one chunk; none that evidence holds."""
    lines = fetch(connection, _DUE.format(page=_OF_CHUNK), (chunk, batch, chunk, batch))
    return [_due(columns) for *columns, is_due in lines if is_due]


def chunks_of(connection: Connection[Row], numbers: Sequence[int]) -> dict[int, int]:
    """Return the chunk of each instruction."""
    query = f"SELECT p.number, c.number FROM instruction p {CHUNK_OF_ROW} WHERE p.number = ANY (%s)"  # noqa: S608 - ours
    return dict(fetch(connection, query, (list(numbers),)))


def _due(line: Sequence[Any]) -> Due:
    number, row, client_orderid, country, currency, amount, form, fields, order_id, *standing = line
    instruction = Instruction(client_orderid, country, currency, amount, form, json.loads(fields))
    return Due(number, row, instruction, Standing(State.READY, *standing), order_id)
