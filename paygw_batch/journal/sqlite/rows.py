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
"""Compare-and-set: write only if there is no line, or if its state and attempt are still those that were read."""


_BY_PAYEE, _COUNTING = "instruction_by_payee", "batch_is_counted"
_FEWEST_SORTED, _MAX_SORTED = 10_000, 1_000_000
"""The number of rows that SQLite sorts in memory at a time: payees' data must not reach a temporary file."""
_IDS_LOOKED_AT = 16
_WITH_FIELDS = "\x1f"
"""Marks content that is stored without its trailing fields; no content has this control character."""
_ADD_INSTRUCTION = """INSERT INTO instruction
    VALUES (NULL, {batch}, ?1, ?2, ?3, ?4, ?6, {replaces}, ?5, ?7, ?8, ?9, ?10, ?11, NULL)"""
"""The stored values of a `NewInstruction`, numbered on from the highest. Most contents end with the fields, which have
their own column, and are stored without them; content that begins with the mark is refused."""
ADD_WORDS = "INSERT INTO payment_words (rowid, words) VALUES (?, ?)"
"""Adds the texts that name the payee of an instruction to the payee index (`lookups.py`)."""
CONTENT = f"iif(substr(content, 1, 1) = char({ord(_WITH_FIELDS)}), substr(content, 2) || fields, content)"
"""SQL for an instruction's content."""


def known_lines(batch: int, known: Iterable[Known], digests: OpeningDigests) -> Iterator[tuple[Any, ...]]:
    """Yield a batch's known rows as they are stored, counting them in `digests`."""
    for line in sorted(known, key=attrgetter("row")):
        digests.known(line)
        yield batch, line.row, line.instruction


def _progress_line(number: int, after: RowProgress, before: RowProgress) -> tuple[str | int | None, ...]:
    """Return an instruction's progress as it is stored, followed by the state and attempt that it must replace."""
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
    """Instructions about to move: their order ids, batches and present progress, by number."""

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
    """Write a batch with its pages, instructions, known rows and order ids, in the open transaction.

    Return whether all order ids are ASCII.
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

    `first_page` and `first` number its first page and instruction; `after` is one past its last instruction.
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
    """Count the parts in `digests` and prepare their stored columns: everything that needs no connection."""
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
    """Rebuild the payee index after the block if the block adds most of its entries.

    All in the open transaction, so nobody sees the table without its index. Adding a million unsorted payees one by
    one would touch every page of the index again and again.
    """
    if not _FEWEST_SORTED <= rows <= _MAX_SORTED or before > rows:
        yield
        return
    ((statement,),) = fetch(connection, "SELECT sql FROM sqlite_schema WHERE name = ?", (_BY_PAYEE,))
    connection.execute(f"DROP INDEX {_BY_PAYEE}")
    yield
    connection.execute(statement)


def _seem_sorted(connection: apsw.Connection, first: int, after: int) -> bool:
    """Whether a sample of the new order ids is sorted; very likely all of them are then.

    Sorted ids are written part by part while the next part is prepared. Unsorted ones wait to be sorted all at once.
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
    """Write the totals of a large batch as counted part by part; the block adds the fact that opens it.

    The trigger would read all the batch's rows again, so it is dropped and recreated in the open transaction. It still
    computes totals that include known rows from earlier batches.
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
    """Write the order ids of new instructions in sorted order, so that each page of the table is touched once."""
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
    """Caches in-flight rows, so that recording an outcome needs no read.

    It mirrors the open transaction: one process writes a journal, and notes every move here. The table still compares
    and sets these rows like any other.
    """

    def __init__(self) -> None:
        self._rows: dict[int, tuple[str, int, RowProgress]] = {}

    def load(self, connection: apsw.Connection, numbers: Iterable[int]) -> Moving:
        """Return instructions about to move, reading only those that are not in flight."""
        wanted = set(numbers)
        kept = {number: self._rows[number] for number in wanted & self._rows.keys()}
        read = load(connection, wanted - kept.keys())
        return Moving(
            {**read.client_orderids, **{number: row[0] for number, row in kept.items()}},
            {**read.batches, **{number: row[1] for number, row in kept.items()}},
            {**read.progress, **{number: row[2] for number, row in kept.items()}},
        )

    def note(self, before: Moving, moved: Mapping[int, RowProgress]) -> None:
        """Note the new progress of instructions that moved in the open transaction."""
        for number, after in moved.items():
            if after.standing.state is State.IN_FLIGHT:
                self._rows[number] = (before.client_orderids[number], before.batches[number], after)
            else:
                self._rows.pop(number, None)

    def forget(self) -> None:
        """Empty the cache after a transaction was rolled back."""
        self._rows.clear()


def save_progress(connection: apsw.Connection, before: Moving, moved: Mapping[int, RowProgress]) -> None:
    """Write the new progress of instructions. Raises `InternalError` if one has changed since `before` was read."""
    already = connection.total_changes()
    lines = (_progress_line(number, after, before.progress[number]) for number, after in moved.items())
    connection.executemany(_SAVE_PROGRESS, lines)
    if connection.total_changes() - already != len(moved):
        raise InternalError("an instruction is no longer where it stood when it was read")


def keep_replies(connection: apsw.Connection, entries: Sequence[Entry], lines: Sequence[Line]) -> None:
    """Write the raw replies of `entries`, which became the facts `lines`, for the gateway's support."""
    kept = [
        (line.seq, entry.instruction, entry.reply.head, entry.reply.body)
        for entry, line in zip(entries, lines, strict=True)
        if entry.reply is not None
    ]
    if kept:
        connection.executemany("INSERT INTO reply VALUES (?, ?, ?, ?)", kept)


# SQLite releases the interpreter at every step of a statement. Beside a busy event loop, getting it back takes far
# longer than the step, so one step reads or writes a whole group of lines. Only progress is written line by line:
# comparing and setting a group would take a join with a table of values, which costs more.

_LINES_A_STEP = (64, 32, 16, 8, 4, 2, 1)
"""The group sizes for one step. There are few, because each is a separate statement, which takes longer to compile than
to run; the largest stays well under SQLite's limit of bound values for the widest table."""


def write_lines(connection: apsw.Connection, statement: str, lines: Sequence[Sequence[Any]]) -> None:
    """Run `statement` over all `lines` in groups; `{lines}` in it becomes a table of values."""
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
    """Return `columns` (texts, integers and nulls) of every line of `source`, the text after FROM."""
    query = f"SELECT json_group_array(json_array({columns})) FROM {source}"  # noqa: S608 - constants of our own
    ((found,),) = connection.execute(query, bindings)
    lines: list[Sequence[Any]] = json.loads(found)
    return lines
