"""Turns values into lines of the tables, and lines into values."""

import json
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any

import apsw

from paygw_batch.core.lifecycle import State
from paygw_batch.errors import InternalError
from paygw_batch.journal.batch_part import BatchPart, one_ahead
from paygw_batch.journal.facts.chain import Line
from paygw_batch.journal.facts.codec import BatchOpened
from paygw_batch.journal.facts.digest import OpeningDigests
from paygw_batch.journal.facts.progress import PROGRESS, RowProgress, progress_of
from paygw_batch.journal.salts import new_salts
from paygw_batch.journal.sqlite.connect import fetch
from paygw_batch.journal.values import BatchRecord, Entry, Known

_SAVE_PROGRESS = """
    INSERT INTO standing VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)
    ON CONFLICT (instruction) DO UPDATE SET state = excluded.state, attempt = excluded.attempt,
        generation = excluded.generation, possible_duplicate_of = excluded.possible_duplicate_of,
        inherited_attempts = excluded.inherited_attempts, order_id = excluded.order_id,
        sent_orderid = excluded.sent_orderid, purpose = excluded.purpose, gateway_status = excluded.gateway_status,
        gateway_reference = excluded.gateway_reference, http_status = excluded.http_status,
        error_code = excluded.error_code, message = excluded.message, intended_at = excluded.intended_at,
        first_sent_at = excluded.first_sent_at, updated_at = excluded.updated_at
    WHERE state = ?18 AND attempt = ?19"""
"""Compare-and-set: a line is written if there is none, or if state and attempt are still those that were read."""


_BY_PAYEE, _COUNTING = "instruction_by_payee", "batch_is_counted"
_FEWEST_SORTED, _MAX_SORTED = 10_000, 1_000_000
"""The number of rows that SQLite sorts at a time, in memory: payees' data must not reach a temporary file."""
_IDS_LOOKED_AT = 16
_WITH_FIELDS = "\x1f"
"""A control character, which no content has: it marks one that is stored without the fields that it ends with."""
_ADD_INSTRUCTION = """INSERT INTO instruction
    VALUES (NULL, {batch}, ?1, ?2, ?3, ?4, ?6, {replaces}, ?5, ?7, ?8, ?9, ?10, ?11, NULL)"""
"""The values of a `NewInstruction` as they are stored; numbers go on from the highest. Most contents end with the
fields, which have a column too, and are kept once; one that starts with the mark of that is refused, as no text."""
ADD_WORDS = "INSERT INTO payment_words (rowid, words) VALUES (?, ?)"
"""Takes the texts that name the payee of an instruction into the index of payees (`lookups.py`)."""
CONTENT = f"iif(substr(content, 1, 1) = char({ord(_WITH_FIELDS)}), substr(content, 2) || fields, content)"
"""An instruction's content, in SQL."""


def known_lines(batch: int, known: Iterable[Known], digests: OpeningDigests) -> Iterator[tuple[Any, ...]]:
    """Yield the known rows of a batch as they are stored, counted in `digests`."""
    for line in sorted(known, key=attrgetter("row")):
        digests.known(line)
        yield batch, line.row, line.instruction


def _progress_line(number: int, after: RowProgress, before: RowProgress) -> tuple[str | int | None, ...]:
    """Return an instruction's progress as it is stored, and after it the state and attempt it must have come from."""
    standing = after.standing
    return (
        number,
        standing.state,
        standing.attempt,
        standing.generation,
        standing.possible_duplicate_of,
        after.inherited_attempts,
        after.order_id,
        after.sent_orderid,
        after.purpose,
        after.gateway_status,
        after.gateway_reference,
        after.http_status,
        after.error_code,
        after.message,
        after.intended_at,
        after.first_sent_at,
        after.updated_at,
        before.standing.state,
        before.standing.attempt,
    )


@dataclass(frozen=True, slots=True)
class Moving:
    """Instructions about to move, by number: their order ids, batches and progress before."""

    client_orderids: Mapping[int, str]
    batches: Mapping[int, int]
    progress: Mapping[int, RowProgress]


def store_batch(
    connection: apsw.Connection,
    record: BatchRecord,
    digests: OpeningDigests,
    parts: Iterable[BatchPart],
    known: Iterable[Known],
    replaced: Mapping[int, int],
) -> bool:
    """Write a batch with its pages, instructions, known rows and order ids, inside the open transaction.

    Returns whether all order ids are ASCII.
    """
    number, are_ascii = record.number, True
    without_ids = digests.first_instruction
    """The first instruction whose order id is not written yet."""
    connection.execute("INSERT INTO batch VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", astuple(record)[:9])
    with (
        _payees_sorted(connection, before=digests.first_instruction - 1, rows=record.rows),
        one_ahead(_stored_parts(parts, digests, replaced)) as stored,
    ):
        for part in stored:
            pages = enumerate(part.pages, start=part.first_page)
            connection.executemany("INSERT INTO page VALUES (?, ?, ?)", ((number, *page) for page in pages))
            _add_instructions(connection, number, part.instructions, replaced)
            _add_words(connection, part)
            if _seem_sorted(connection, without_ids, part.after):
                _add_order_ids(connection, record.operation, without_ids, part.after)
                without_ids = part.after
            are_ascii = are_ascii and part.are_ascii
    ((highest,),) = fetch(connection, "SELECT max(number) FROM instruction")
    if (highest or 0) != digests.next_instruction - 1:
        raise InternalError("the instructions of a batch have other numbers than they were digested with")
    connection.executemany("INSERT INTO known VALUES (?, ?, ?)", known_lines(number, known, digests))
    _add_order_ids(connection, record.operation, without_ids, digests.next_instruction)
    twice = "SELECT i.row FROM instruction i JOIN known k USING (batch, row) WHERE i.batch = ? LIMIT 1"
    if fetch(connection, twice, (number,)):
        raise InternalError("a row of a batch is both new and known")
    return are_ascii


@dataclass(frozen=True, slots=True)
class _StoredPart:
    """A part of a batch as it is stored.

    With the numbers of its first page, of its first instruction and of the one `after` the last.
    """

    first_page: int
    pages: Sequence[bytes]
    first: int
    after: int
    are_ascii: bool
    instructions: Iterable[tuple[Any, ...]]
    payee_words: Iterable[str | None]


def _stored_parts(
    parts: Iterable[BatchPart], digests: OpeningDigests, replaced: Mapping[int, int]
) -> Iterator[_StoredPart]:
    """Count the parts in `digests`, and make the columns that are stored of them: all that needs no connection."""
    for part in parts:
        first_page, first, new = digests.pages, digests.next_instruction, part.instructions
        for page in part.pages:
            digests.page(page)
        salts = new_salts(len(new))
        digests.instructions(new, replaced, salts)
        lines = ((*line, salt) for line, salt in zip(new.shortened(_WITH_FIELDS), salts, strict=True))
        columns = (new.have_ascii_ids(), lines, new.payee_words())
        yield _StoredPart(first_page, part.pages, first, digests.next_instruction, *columns)


def _add_instructions(
    connection: apsw.Connection, batch: int, instructions: Iterable[tuple[Any, ...]], replaced: Mapping[int, int]
) -> None:
    if not replaced:
        connection.executemany(_ADD_INSTRUCTION.format(batch=batch, replaces="NULL"), instructions)
        return
    lines = ((*new, replaced.get(new[0])) for new in instructions)
    connection.executemany(_ADD_INSTRUCTION.format(batch=batch, replaces="?12"), lines)


@contextmanager
def _payees_sorted(connection: apsw.Connection, *, before: int, rows: int) -> Iterator[None]:
    """Rebuild the index of payees after the block, if most of its entries are added there.

    All within the open transaction: nobody ever sees the table without it. A million payees in no order, one by one,
    would touch every page of the index again and again.
    """
    if not _FEWEST_SORTED <= rows <= _MAX_SORTED or before > rows:
        yield
        return
    ((statement,),) = fetch(connection, "SELECT sql FROM sqlite_schema WHERE name = ?", (_BY_PAYEE,))
    connection.execute(f"DROP INDEX {_BY_PAYEE}")
    yield
    connection.execute(statement)


def _seem_sorted(connection: apsw.Connection, first: int, after: int) -> bool:
    """Whether some order ids of new instructions are in their order: very likely all of them are.

    Such ids are written part by part, while the next part is made. The others wait for one sort of all.
    """
    if first == after:
        return False
    looked_at = array("q", range(first, after, max(1, (after - first) // _IDS_LOOKED_AT)))
    query = "SELECT client_orderid FROM instruction WHERE number IN carray(?) ORDER BY number"
    found = fetch(connection, query, (apsw.carray(looked_at),))
    return found == sorted(found)


@contextmanager
def totals_written(
    connection: apsw.Connection, batch: int, opened: BatchOpened, digests: OpeningDigests
) -> Iterator[None]:
    """Write the totals of a large batch as they were counted part by part; the block adds the fact that opens it.

    A trigger would read all rows of the batch again. It is dropped and made again, all within the open transaction.
    Totals with known rows, which earlier batches brought, are left to it.
    """
    trigger = fetch(connection, "SELECT sql FROM sqlite_schema WHERE name = ?", (_COUNTING,))
    if opened.known or opened.rows < _FEWEST_SORTED or not trigger:
        yield
        return
    connection.execute(f"DROP TRIGGER {_COUNTING}")
    yield
    connection.execute(trigger[0][0])
    lines = ((batch, *kind, *totals) for kind, totals in digests.counted.items())
    connection.executemany("INSERT INTO batch_total VALUES (?, ?, ?, ?, ?, ?, ?, ?)", lines)


def _add_order_ids(connection: apsw.Connection, operation: str, first: int, after: int) -> None:
    """Write the order ids of new instructions, sorted: each page of the table is then touched once."""
    for start in range(first, after, _MAX_SORTED):
        connection.execute(
            """INSERT INTO order_id SELECT ?, client_orderid, number FROM instruction
            WHERE number >= ? AND number < ? AND replaces IS NULL ORDER BY client_orderid""",
            (operation, start, min(start + _MAX_SORTED, after)),
        )


def _add_words(connection: apsw.Connection, part: _StoredPart) -> None:
    connection.executemany(ADD_WORDS, enumerate(part.payee_words, start=part.first))


def load(connection: apsw.Connection, numbers: Collection[int]) -> Moving:
    """Read instructions that are about to move."""
    if not numbers:
        return Moving({}, {}, {})
    found = fetch_lines(
        connection,
        f"p.number, p.client_orderid, p.batch, {PROGRESS}",
        "carray(?) wanted JOIN progress p ON p.number = wanted.value",
        (apsw.carray(array("q", set(numbers))),),
    )
    if len(found) != len(set(numbers)):
        raise InternalError("a fact speaks of an instruction that the journal does not have")
    return Moving(
        {line[0]: line[1] for line in found},
        {line[0]: line[2] for line in found},
        {line[0]: progress_of(line[3:]) for line in found},
    )


class IntendedRows:
    """Remembers the rows in flight, so that nothing of them is read again for their outcomes.

    It holds what the open transaction holds: one process writes a journal, and notes here every move that it writes.
    Compare-and-set is the table's, for these rows as for any other.
    """

    def __init__(self) -> None:
        self._rows: dict[int, tuple[str, int, RowProgress]] = {}

    def load(self, connection: apsw.Connection, numbers: Iterable[int]) -> Moving:
        """Return instructions that are about to move, and read those that are not in flight."""
        wanted = set(numbers)
        kept = {number: self._rows[number] for number in wanted & self._rows.keys()}
        read = load(connection, wanted - kept.keys())
        return Moving(
            {**read.client_orderids, **{number: row[0] for number, row in kept.items()}},
            {**read.batches, **{number: row[1] for number, row in kept.items()}},
            {**read.progress, **{number: row[2] for number, row in kept.items()}},
        )

    def note(self, before: Moving, moved: Mapping[int, RowProgress]) -> None:
        """Note the new progress of instructions that moved, in the open transaction."""
        for number, after in moved.items():
            if after.standing.state is State.IN_FLIGHT:
                self._rows[number] = (before.client_orderids[number], before.batches[number], after)
            else:
                self._rows.pop(number, None)

    def forget(self) -> None:
        """Forget all of them: a transaction was rolled back."""
        self._rows.clear()


def save_progress(connection: apsw.Connection, before: Moving, moved: Mapping[int, RowProgress]) -> None:
    """Write the new progress of instructions. Raises `InternalError` if one is no longer where it was `before`."""
    already = connection.total_changes()
    lines = (_progress_line(number, after, before.progress[number]) for number, after in moved.items())
    connection.executemany(_SAVE_PROGRESS, lines)
    if connection.total_changes() - already != len(moved):
        raise InternalError("an instruction is no longer where it stood when it was read")


def keep_replies(connection: apsw.Connection, entries: Sequence[Entry], lines: Sequence[Line]) -> None:
    """Write the raw replies of `entries`, which became the facts `lines`: for the gateway's support."""
    kept = [
        (line.seq, entry.instruction, entry.reply.head, entry.reply.body)
        for entry, line in zip(entries, lines, strict=True)
        if entry.reply is not None
    ]
    if kept:
        connection.executemany("INSERT INTO reply VALUES (?, ?, ?, ?)", kept)


# SQLite lets go of the interpreter for every step of a statement. Beside a busy event loop, getting it back takes far
# longer than the step, so that a commit with a step for each line would spend most of its time waiting. So one step
# writes or reads a whole group of lines. Progress alone is written line by line: compare-and-set for a group would be a
# join with a table of values, and that costs more.

_LINES_A_STEP = (64, 32, 16, 8, 4, 2, 1)
"""The numbers of lines that a step may take. Few sizes, because each is a separate statement, and SQLite takes longer
to compile one than to run it; the largest is well under its limit of bound values for the widest table."""


def write_lines(connection: apsw.Connection, statement: str, lines: Sequence[Sequence[Any]]) -> None:
    """Run `statement` over all `lines`, a group at a time; `{lines}` in it becomes a table of values."""
    start = 0
    while start < len(lines):
        size = next(size for size in _LINES_A_STEP if size <= len(lines) - start)
        group = lines[start : start + size]
        connection.execute(_with_lines(statement, size, len(group[0])), list(chain.from_iterable(group)))
        start += size


@lru_cache(maxsize=64)
def _with_lines(statement: str, lines: int, columns: int) -> str:
    places = f"({', '.join('?' * columns)})"
    return statement.format(lines=f"VALUES {', '.join([places] * lines)}")


def fetch_lines(connection: apsw.Connection, columns: str, source: str, bindings: Sequence[Any]) -> list[Sequence[Any]]:
    """Return `columns` (texts, whole numbers and nulls) of every line of `source`, the text after FROM."""
    query = f"SELECT json_group_array(json_array({columns})) FROM {source}"  # noqa: S608 - constants of our own
    ((found,),) = connection.execute(query, bindings)
    lines: list[Sequence[Any]] = json.loads(found)
    return lines
