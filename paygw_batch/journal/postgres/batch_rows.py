"""Writes a new batch by COPY, and counts, finds and reads its rows."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from operator import attrgetter, itemgetter
from typing import Any

from psycopg import Connection

from paygw_batch.core.batch import Instruction, reference_of
from paygw_batch.core.lifecycle import LEADS_TO, FactKind, Standing, State
from paygw_batch.core.text import spelled_alike
from paygw_batch.errors import InternalError, JournalCorrupt
from paygw_batch.journal.batch_part import BatchPart, one_ahead, payee_texts
from paygw_batch.journal.facts.digest import OpeningDigests
from paygw_batch.journal.facts.progress import PROGRESS, STATES, progress_of, row_standing
from paygw_batch.journal.postgres.session import Row, fetch
from paygw_batch.journal.postgres.standing_lines import CHUNK_OF_ROW, words_of
from paygw_batch.journal.salts import new_salts
from paygw_batch.journal.values import BatchRecord, Due, Known, NewInstruction, RowState, StateTally, WantedRows
from paygw_batch.language import say

_INSTRUCTIONS = """COPY instruction (number, batch, row, client_orderid, country, currency, minor, replaces, amount,
    form, fields, payee, content, salt) FROM STDIN"""


def copy_batch(
    connection: Connection[Row],
    record: BatchRecord,
    plan_sha256: str,
    digests: OpeningDigests,
    parts: Iterable[BatchPart],
    known: Iterable[Known],
    replaced: Mapping[int, int],
    chunk_rows: int,
) -> str:
    """Write a whole batch; return the reference that its order ids were derived from, or none."""
    number = record.number
    first = digests.first_instruction
    with one_ahead(parts) as coming:
        for part in coming:
            for page in part.pages:
                fetch(connection, "INSERT INTO page VALUES (%s, %s, %s)", (number, digests.pages, page))
                digests.page(page)
            start = digests.next_instruction
            salts = new_salts(len(part.instructions))
            digests.instructions(part.instructions, replaced, salts)
            with connection.cursor() as cursor, cursor.copy(_INSTRUCTIONS) as copy:
                for place, (new, salt) in enumerate(zip(part.instructions, salts, strict=True), start=start):
                    copy.write_row(_line_of(place, number, new, replaced.get(new[0]), salt))
    last = first
    reference = ""
    query = (
        "SELECT number, client_orderid, fields, content, replaces FROM instruction WHERE number >= %s AND number < %s"
    )
    while found := fetch(connection, f"{query} ORDER BY number", (last, last + 10_000)):
        if last == first:
            reference = reference_of(found[0][1]) or ""
        _copy_ids(connection, record.operation, found)
        last = found[-1][0] + 1
    with connection.cursor() as cursor, cursor.copy("COPY known FROM STDIN") as copy:
        for one in sorted(known, key=attrgetter("row")):
            digests.known(one)
            copy.write_row((number, one.row, one.instruction))
    line = (number, record.batch, record.operation, record.sheet_name, record.sheet_sha256, record.rows, record.defects)
    more = (record.opened_at, record.sheet_path, plan_sha256, reference)
    fetch(connection, f"INSERT INTO batch VALUES ({', '.join(['%s'] * 11)})", (*line, *more))  # noqa: S608 - places alone
    divide(connection, number, first, last, chunk_rows)
    return reference


def _line_of(number: int, batch: int, new: NewInstruction, replaces: int | None, salt: bytes) -> Row:
    """Return the stored form of a new instruction."""
    row, client_orderid, country, currency, amount, minor, form, fields, payee, content = new
    own = (row, client_orderid, country, currency, minor, replaces, amount, form, fields, payee, content)
    return number, batch, *own, salt


def payee_words_of(fields: str) -> list[str]:
    """Return the words by which the payment with these fields is found."""
    return words_of(payee_texts(fields))


def _copy_ids(connection: Connection[Row], operation: str, found: list[Row]) -> None:
    """Write the order ids of new instructions, and the words of their payees."""
    own = sorted((client_orderid, number) for number, client_orderid, _, _, replaces in found if replaces is None)
    with connection.cursor() as cursor, cursor.copy("COPY order_id FROM STDIN") as copy:
        for client_orderid, number in own:
            copy.write_row((operation, client_orderid, number, spelled_alike(client_orderid)))
    numbers = [line[0] for line in found]
    words = [" ".join(payee_words_of(line[2])) for line in found]
    query = """INSERT INTO payee_words
        SELECT number, array_to_tsvector(string_to_array(nullif(words, ''), ' ')) FROM unnest(%s::bigint[], %s::text[])
        u(number, words) WHERE words <> ''"""
    fetch(connection, query, (numbers, words))


def divide(connection: Connection[Row], number: int, first: int, after_last: int, chunk_rows: int) -> None:
    """Divide the new instructions into chunks, count these, and check the batch."""
    query = """INSERT INTO chunk (batch, first, last)
        SELECT %s, first, least(first + %s, %s) - 1 FROM generate_series(%s::bigint, %s - 1, %s) first"""
    fetch(connection, query, (number, chunk_rows, after_last, first, after_last, chunk_rows))
    query = """INSERT INTO chunk_tally SELECT c.number, c.number, n.country, n.currency, n.state, n.rows, n.minor FROM (
            SELECT i.number - (i.number - %s) %% %s AS first, i.country, i.currency,
                coalesce(s.state, 'ready') AS state, count(*) AS rows, sum(i.minor) AS minor
            FROM instruction i LEFT JOIN standing s ON s.instruction = i.number AND s.instruction >= %s
            WHERE i.number >= %s AND i.number < %s GROUP BY 1, 2, 3, 4
        ) n JOIN chunk c USING (first)"""
    fetch(connection, query, (first, chunk_rows, first, first, after_last))
    twice = "SELECT FROM instruction i JOIN known k USING (batch, row) WHERE i.batch = %s LIMIT 1"
    if fetch(connection, twice, (number,)):
        raise InternalError("a row of a batch is both new and known")


_AT_ONCE = 10_000
_CHUNKS_AT_ONCE = 32
_LOOKED_THROUGH = 1_000
"""The number of rows read at a time if most are not due."""
_OF_BATCH = """SELECT t.country, t.currency, t.state, t.rows, t.minor
    FROM chunk c JOIN chunk_tally t ON t.chunk = c.number WHERE c.batch = %s"""
_KNOWN = """SELECT p.country, p.currency, p.state, 1 AS rows, p.minor
    FROM known k JOIN progress p ON p.number = k.instruction WHERE k.batch = %s"""
_HELD = """SELECT p.country, p.currency, 'ready', -1, -p.minor
    FROM (
        SELECT e.instruction FROM unanswered e
            WHERE e.instruction BETWEEN (SELECT min(first) FROM chunk WHERE batch = %s)
                AND (SELECT max(last) FROM chunk WHERE batch = %s)
        UNION
        SELECT e.instruction FROM known k JOIN unanswered e ON e.instruction = k.instruction WHERE k.batch = %s
    ) held CROSS JOIN LATERAL (SELECT * FROM progress WHERE number = held.instruction OFFSET 0) p
    WHERE p.state = 'ready'"""
"""The ready instructions of a batch that evidence holds, to be subtracted."""
_SUMMED = """SELECT country, currency, state, sum(rows), sum(minor) FROM ({rows}) n GROUP BY 1, 2, 3
    HAVING sum(rows) > 0 ORDER BY 1, 2, 3"""
_PAGE = """page AS MATERIALIZED (
        (SELECT row, number AS instruction FROM instruction WHERE batch = %s AND row > %s ORDER BY row LIMIT %s)
        UNION ALL
        (SELECT row, instruction FROM known WHERE batch = %s AND row > %s ORDER BY row LIMIT %s)
        ORDER BY row LIMIT %s
    )"""
"""The next rows of a batch, selected first: a page costs the same anywhere in the batch."""
_SHOWN = f"c.row, p.number, p.client_orderid, p.country, p.currency, p.minor, {PROGRESS}"
_WALKED = f"""WITH {_PAGE} SELECT {_SHOWN}
    FROM page c JOIN progress p ON p.number = c.instruction ORDER BY c.row"""  # noqa: S608 - constants of ours
_NUMBERED = f"""SELECT {_SHOWN} FROM covered c JOIN progress p ON p.number = c.instruction
    WHERE c.batch = %s AND c.row > %s AND c.row = ANY (%s)"""  # noqa: S608 - constants of ours
_CHUNKS_WITH = """SELECT c.first, c.last FROM chunk c JOIN chunk_tally t ON t.chunk = c.number
    WHERE c.batch = %s AND t.state = ANY (%s)
        AND c.last >= (SELECT number FROM instruction WHERE batch = %s AND row > %s ORDER BY row LIMIT 1)
    GROUP BY c.number HAVING sum(t.rows) > 0 ORDER BY c.first"""
"""The chunks of a batch that have rows in some states, after a row of the sheet."""
_IN_CHUNKS = f"""SELECT p.row, p.number, p.client_orderid, p.country, p.currency, p.minor, {PROGRESS}
    FROM unnest(%s::bigint[], %s::bigint[]) r(first, last) CROSS JOIN LATERAL ({{rows}} OFFSET 0) x
        JOIN progress p ON p.number = x.number
    WHERE p.row > %s {{condition}} ORDER BY p.number"""  # noqa: S608 - constants of ours
"""OFFSET 0: the rows of a chunk are looked up by their numbers, and never all rows of the journal by their states."""
_TOUCHED = """SELECT instruction AS number FROM standing
    WHERE instruction BETWEEN r.first AND r.last AND state = ANY (%s)"""
_READY = "SELECT number FROM instruction WHERE number BETWEEN r.first AND r.last"
_KNOWN_IN = f"""SELECT {_SHOWN} FROM known c JOIN progress p ON p.number = c.instruction
    WHERE c.batch = %s AND c.row > %s"""  # noqa: S608 - constants of ours
_LONG_ACCEPTED = """SELECT country, currency, 'accepted', count(*), sum(minor) FROM (
        SELECT i.country, i.currency, i.minor FROM unnest(%s::bigint[], %s::bigint[]) r(first, last)
            CROSS JOIN LATERAL (SELECT instruction FROM standing
                WHERE instruction BETWEEN r.first AND r.last AND state = 'accepted' AND intended_at <= %s OFFSET 0) x
            JOIN instruction i ON i.number = x.instruction
        UNION ALL
        SELECT p.country, p.currency, p.minor FROM known k JOIN progress p ON p.number = k.instruction
            WHERE k.batch = %s AND p.state = 'accepted' AND p.intended_at <= %s
    ) n GROUP BY 1, 2"""
"""The rows in some chunks, and those of earlier batches, that have waited for an answer since a time."""
_NEXT_READY = """SELECT i.row FROM chunk c JOIN instruction i ON i.number = c.first
    WHERE c.batch = %s AND c.first >= (SELECT max(first) FROM chunk WHERE first <=
            (SELECT number FROM instruction WHERE batch = %s AND row > %s ORDER BY row LIMIT 1))
        AND (SELECT sum(t.rows) FROM chunk_tally t WHERE t.chunk = c.number AND t.state = 'ready') > 0
    ORDER BY c.first LIMIT 1"""
"""The first row of the next chunk of a batch in which rows are ready."""
_MISCOUNTED = """SELECT chunk FROM (
        SELECT c.number AS chunk, c.last - c.first + 1 AS size, t.state, sum(t.rows) AS rows
        FROM chunk c LEFT JOIN chunk_tally t ON t.chunk = c.number WHERE c.batch = %s GROUP BY 1, 2, 3
    ) n GROUP BY chunk, size HAVING coalesce(sum(rows), 0) <> size OR min(rows) < 0 LIMIT 1"""
_NEXT_READY_KNOWN = """SELECT k.row FROM known k JOIN progress p ON p.number = k.instruction
    WHERE k.batch = %s AND k.row > %s AND k.row < coalesce(%s, k.row + 1) AND p.state = 'ready'
    ORDER BY k.row LIMIT 1"""
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
        p.state = 'ready' AND p.forgotten IS NULL
            AND NOT EXISTS (SELECT FROM unanswered e WHERE e.instruction = p.number),
        p.number, p.state, p.attempt, p.inherited_attempts, p.facts, n.kind, n.attempt,
        coalesce((SELECT max(nth) FROM fact WHERE instruction = p.number), 0)
    FROM page c JOIN progress p ON p.number = c.instruction LEFT JOIN LATERAL (
        SELECT kind, attempt FROM fact WHERE instruction = p.number AND contradicts IS NULL ORDER BY nth DESC LIMIT 1
    ) n ON true ORDER BY c.row"""
"""Rows that may be due, with their newest facts: a row whose state does not follow from its facts is never sent."""
_TOLD_COLUMNS = 8


def count_states(connection: Connection[Row], batch: int, *, accepted_until: str | None = None) -> list[StateTally]:
    """Return counts and sums of a batch, by country, currency and state.

    Its own rows are counted by chunk and need not be read; only those of earlier batches are read.
    """
    query = _SUMMED.format(rows=f"{_OF_BATCH} UNION ALL {_KNOWN}")
    tallies = _tallies(fetch(connection, query, (batch, batch)))
    if accepted_until is None or all(one.state is not State.ACCEPTED for one in tallies):
        return tallies
    counted = [one for one in tallies if one.state is not State.ACCEPTED]
    chunks = fetch(connection, _CHUNKS_WITH, (batch, [State.ACCEPTED.value], batch, -1))
    ranges = [list(ends) for ends in zip(*chunks, strict=True)] or [[], []]
    found = fetch(connection, _LONG_ACCEPTED, (*ranges, accepted_until, batch, accepted_until))
    return sorted([*counted, *_tallies(found)], key=lambda one: (one.country, one.currency, one.state))


def count_known(connection: Connection[Row], batch: int) -> list[StateTally]:
    """Return counts and sums of the batch's rows that an earlier batch brought."""
    return _tallies(fetch(connection, _SUMMED.format(rows=_KNOWN), (batch,)))


def count_due(connection: Connection[Row], batch: int) -> list[StateTally]:
    """Return counts and sums of the rows that may be sent: those that are ready and not held by evidence."""
    query = _SUMMED.format(rows=f"{_OF_BATCH} UNION ALL {_KNOWN} UNION ALL {_HELD}")
    tallies = _tallies(fetch(connection, query, (batch,) * 5))
    return [one for one in tallies if one.state is State.READY]


def _tallies(found: Iterable[Row]) -> list[StateTally]:
    return [
        StateTally(country, currency, STATES[state], int(count), int(minor))
        for country, currency, state, count, minor in found
    ]


def find_rows(connection: Connection[Row], batch: int, wanted: WantedRows) -> Iterator[RowState]:
    """Yield the wanted rows of a batch, in the sheet's order (see `JournalReader.rows`).

    With `states`, all matches are read at once: the caller may write to the journal between two rows.
    """
    states, numbers, limit = wanted.states, wanted.numbers, wanted.limit
    if states is not None and numbers is None and State.READY in states and len(set(states)) > 1:
        raise InternalError("rows that are ready are asked for alone")
    if states is None and numbers is None:
        found: Iterator[Row] = islice(_walked(connection, batch, wanted.after, limit), limit)
    else:
        condition, values = _condition(states, wanted.accepted_until)
        if numbers is not None:
            query = f"{_NUMBERED} {condition} ORDER BY c.row LIMIT %s"
            found = iter(fetch(connection, query, (batch, wanted.after, sorted(set(numbers)), *values, limit)))
        else:
            found = iter(_in_states(connection, batch, states or (), condition, values, wanted))
    for row, number, client_orderid, country, currency, minor, *columns in found:
        yield row_standing(row, number, client_orderid, country, currency, minor, progress_of(columns))


def _condition(states: Collection[State] | None, accepted_until: str | None) -> tuple[str, list[Any]]:
    if states is None:
        return "", []
    words = [state.value for state in states]
    if accepted_until is None:
        return "AND p.state = ANY (%s)", [words]
    return "AND p.state = ANY (%s) AND (p.state <> 'accepted' OR p.intended_at <= %s)", [words, accepted_until]


def _in_states(
    connection: Connection[Row],
    batch: int,
    states: Collection[State],
    condition: str,
    values: Sequence[Any],
    wanted: WantedRows,
) -> list[Row]:
    """Return the rows of a batch in some states, in the sheet's order: only chunks that have such rows are read."""
    words, after, limit = [state.value for state in states], wanted.after, wanted.limit
    rows, chosen = (_READY, []) if State.READY in states else (_TOUCHED, [words])
    query = _IN_CHUNKS.format(rows=rows, condition=condition)
    brought: list[Row] = []
    chunks = fetch(connection, _CHUNKS_WITH, (batch, words, batch, after))
    at_once = _CHUNKS_AT_ONCE if limit is None else 1
    while chunks and (limit is None or len(brought) < limit):
        ranges = [list(ends) for ends in zip(*chunks[:at_once], strict=True)]
        brought += fetch(connection, query, (*ranges, *chosen, after, *values))
        chunks, at_once = chunks[at_once:], min(2 * at_once, _CHUNKS_AT_ONCE)
    known = fetch(connection, f"{_KNOWN_IN} {condition} ORDER BY c.row LIMIT %s", (batch, after, *values, limit))
    return list(islice(merge(brought, known, key=itemgetter(0)), limit))


def _walked(connection: Connection[Row], batch: int, after: int, limit: int | None) -> Iterator[Row]:
    at_once = _AT_ONCE if limit is None else min(limit, _AT_ONCE)
    while lines := fetch(connection, _WALKED, _page(batch, after, at_once)):
        yield from lines
        after = lines[-1][0]


def _page(batch: int, after: int, limit: int) -> tuple[int, ...]:
    """Return the values of `_PAGE`."""
    return (batch, after, limit, batch, after, limit, limit)


def due_rows(connection: Connection[Row], batch: int, after_row: int, limit: int) -> list[Due]:
    """Return up to `limit` READY instructions of a batch after `after_row`, without those that evidence holds.

    If a page has none, it continues in the next chunk that has any.
    """
    found: list[Due] = []
    at_once, next_row = min(limit, _AT_ONCE), after_row + 1
    while len(found) < limit:
        lines = fetch(connection, _DUE.format(page=_PAGE), _page(batch, next_row - 1, at_once))
        due = _due_of(lines)
        found += due
        if not lines:
            break
        next_row = lines[-1][1] + 1
        if not due:
            if (ready := _next_ready(connection, batch, next_row)) is None:
                break
            at_once, next_row = max(at_once, _LOOKED_THROUGH), ready
    return found[:limit]


def _next_ready(connection: Connection[Row], batch: int, row: int) -> int | None:
    """Return the next row of a batch, from `row` on, that may be ready, or None.

    Raises `JournalCorrupt` if the count of a chunk is wrong: its rows could be skipped.
    """
    if wrong := fetch(connection, _MISCOUNTED, (batch,)):
        raise JournalCorrupt(say("The totals of chunk {chunk} do not match its rows.", chunk=wrong[0][0]))
    brought = fetch(connection, _NEXT_READY, (batch, batch, row - 1))
    until = max(row, brought[0][0]) if brought else None
    known = fetch(connection, _NEXT_READY_KNOWN, (batch, row - 1, until))
    return known[0][0] if known else until


def due_rows_of_chunk(connection: Connection[Row], batch: int, chunk: int) -> list[Due]:
    """Return the READY instructions of a batch in one chunk, without those that evidence holds."""
    lines = fetch(connection, _DUE.format(page=_OF_CHUNK), (chunk, batch, chunk, batch))
    return _due_of(lines)


def _due_of(lines: Sequence[Row]) -> list[Due]:
    """Return the rows that are due. Raises `JournalCorrupt` if the state of one does not follow from its facts."""
    found = []
    for line in lines:
        *columns, is_due = line[:-_TOLD_COLUMNS]
        _check_told(*line[-_TOLD_COLUMNS:])
        if is_due:
            found.append(_due(columns))
    return found


def _check_told(
    number: int, state: str, attempt: int, inherited: int, facts: int, kind: str | None, told_attempt: int, told: int
) -> None:
    """Raise `JournalCorrupt` unless an instruction's state and number of facts agree with its newest fact."""
    leads_to = (State.READY.value, inherited) if kind is None else (LEADS_TO[FactKind(kind)].value, told_attempt)
    if (state, attempt, facts) != (*leads_to, told):
        raise JournalCorrupt(
            say("The state of instruction {number} does not follow from its newest fact.", number=number)
        )


def chunks_of(connection: Connection[Row], numbers: Sequence[int]) -> dict[int, int]:
    """Return the chunk of each instruction."""
    query = f"SELECT p.number, c.number FROM instruction p {CHUNK_OF_ROW} WHERE p.number = ANY (%s)"  # noqa: S608 - ours
    return dict(fetch(connection, query, (list(numbers),)))


def _due(line: Sequence[Any]) -> Due:
    number, row, client_orderid, country, currency, amount, form, fields, order_id, *standing = line
    instruction = Instruction(client_orderid, country, currency, amount, form, json.loads(fields))
    return Due(number, row, instruction, Standing(State.READY, *standing), order_id)
