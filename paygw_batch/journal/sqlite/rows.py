"""Turns values into lines of the tables, and lines into values."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any

import apsw

from paygw_batch.errors import InternalError
from paygw_batch.journal.batch_part import BatchPart, one_ahead
from paygw_batch.journal.facts.chain import Line, chained
from paygw_batch.journal.facts.digest import OpeningDigests
from paygw_batch.journal.salts import new_salt, new_salts
from paygw_batch.journal.sqlite.connect import fetch
from paygw_batch.journal.sqlite.schema import end_of
from paygw_batch.journal.values import BatchRecord, Entry, Known, Link, Remark

_BY_PAYEE, _COUNTED = "instruction_by_payee", "state_counted"
_FEWEST_SORTED, _MAX_SORTED = 10_000, 1_000_000
"""The number of rows that SQLite sorts in memory at a time: payees' data must not reach a temporary file."""
_IDS_LOOKED_AT = 16
_WITH_FIELDS = "\x1f"
"""Marks content that is stored without its trailing fields; no content has this control character."""
_ADD_INSTRUCTION = """INSERT INTO instruction
    VALUES (NULL, {batch}, ?1, ?2, ?3, ?4, ?6, {replaces}, ?5, ?7, ?8, ?9, ?10, ?11, ?12)"""
"""The stored values of a `NewInstruction`, numbered on from the highest. Most contents end with the fields, which have
their own column, and are stored without them; content that begins with the mark is refused."""
_ADD_STATES = """INSERT INTO state (instruction, batch, country, currency, minor)
    SELECT number, batch, country, currency, minor FROM instruction WHERE number >= ? AND number < ?"""
ADD_WORDS = "INSERT INTO payment_words (rowid, words) VALUES (?, ?)"
"""Adds the texts that name the payee of an instruction to the payee index (`lookups.py`)."""
CONTENT = f"iif(substr(content, 1, 1) = char({ord(_WITH_FIELDS)}), substr(content, 2) || fields, content)"
"""SQL for an instruction's content."""


def known_lines(batch: int, known: Iterable[Known], digests: OpeningDigests) -> Iterator[tuple[Any, ...]]:
    """Yield a batch's known rows as they are stored, counting them in `digests`."""
    for line in sorted(known, key=attrgetter("row")):
        digests.known(line)
        yield batch, line.row, line.instruction


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
        _sorted_once(connection, _BY_PAYEE, before=digests.first_instruction - 1, rows=record.rows),
        _sorted_once(connection, _COUNTED, before=digests.first_instruction - 1, rows=record.rows),
        one_ahead(_stored_parts(parts, digests, replaced)) as stored,
    ):
        for part in stored:
            pages = enumerate(part.pages, start=part.first_page)
            connection.executemany("INSERT INTO page VALUES (?, ?, ?)", ((number, *page) for page in pages))
            _add_instructions(connection, number, part.instructions, replaced)
            connection.execute(_ADD_STATES, (part.first, part.after))
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
        people = digests.instructions(new, replaced, salts)
        lines = ((*line, *own) for line, *own in zip(new.shortened(_WITH_FIELDS), salts, people, strict=True))
        columns = (new.have_ascii_ids(), lines, new.payee_words())
        yield _StoredPart(first_page, part.pages, first, digests.next_instruction, *columns)


def _add_instructions(
    connection: apsw.Connection, batch: int, instructions: Iterable[tuple[Any, ...]], replaced: Mapping[int, int]
) -> None:
    if not replaced:
        connection.executemany(_ADD_INSTRUCTION.format(batch=batch, replaces="NULL"), instructions)
        return
    lines = ((*new, replaced.get(new[0])) for new in instructions)
    connection.executemany(_ADD_INSTRUCTION.format(batch=batch, replaces="?13"), lines)


@contextmanager
def _sorted_once(connection: apsw.Connection, index: str, *, before: int, rows: int) -> Iterator[None]:
    """Rebuild an index after the block if the block adds most of its entries.

    All in the open transaction, so nobody sees the table without its index. Adding a million unsorted payees one by
    one would touch every page of the index again and again.
    """
    if not _FEWEST_SORTED <= rows <= _MAX_SORTED or before > rows:
        yield
        return
    ((statement,),) = fetch(connection, "SELECT sql FROM sqlite_schema WHERE name = ?", (index,))
    connection.execute(f"DROP INDEX {index}")
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


def add_facts(connection: apsw.Connection, entries: Sequence[Entry | Remark], end: Link) -> Sequence[Line]:
    """Write facts after `end`, in the open transaction, with what they say of people; return their lines.

    The raw replies of the gateway are kept for its support.
    """
    lines, said = chained(entries, end, new_salt)
    write_lines(connection, "INSERT INTO fact {lines}", lines)
    if said:
        write_lines(connection, "INSERT INTO said {lines}", said)
    kept = [
        (line.seq, entry.instruction, entry.reply.head.encode(), entry.reply.body)
        for entry, line in zip(entries, lines, strict=True)
        if isinstance(entry, Entry) and entry.reply is not None
    ]
    if kept:
        connection.executemany("INSERT INTO reply VALUES (?, ?, ?, ?)", kept)
    return lines


def record_last(connection: apsw.Connection, entries: Sequence[Entry | Remark]) -> list[tuple[int, str, bool]]:
    """Add facts that fit their rows at the end of the chain, in the open transaction (see `evidence_log.Record`)."""
    return [(line.seq, line.at, True) for line in add_facts(connection, entries, end_of(connection))]


# SQLite releases the interpreter at every step of a statement. Beside a busy event loop, getting it back takes far
# longer than the step, so one step writes a whole group of lines.

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
