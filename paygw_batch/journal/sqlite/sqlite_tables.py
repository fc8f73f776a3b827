"""The tables of a journal file: runs statements, writes batches and facts, and maintains the search indexes.

Payees' words are in SQLite's full-text index. ASCII order ids are found through an index on SQLite's `lower`, which is
the same as `normalise_spelling` for ASCII. The few other ids are in a separate table. `verify` also checks these
indexes, because a payment missing from one would look as if it had never been made.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from functools import cache, cached_property, lru_cache
from itertools import chain, zip_longest
from operator import attrgetter
from pathlib import Path
from typing import Any

import apsw

from paygw_batch.core.batch import derived_reference
from paygw_batch.core.text import normalise_spelling
from paygw_batch.errors import InternalError, JournalCorrupt
from paygw_batch.journal.evidence import PARTS, EvidenceLog
from paygw_batch.journal.facts import Line, chain_facts, line_text_sql
from paygw_batch.journal.new_batch import BatchPart, OpeningDigests, new_salt, new_salts, prefetch
from paygw_batch.journal.sqlite.connect import chain_end, fetch, load_identity
from paygw_batch.journal.tables import FILES, ON_SQLITE, VALUE, Tables, named_sql
from paygw_batch.journal.values import BatchRecord, Entry, Identity, KnownRow, Link, Remark
from paygw_batch.language import say

_GUARDED_TABLES = ("said", "instruction", "page", "reply")
_REBUILD_INDEX = """
    INSERT INTO payment_words (payment_words) VALUES ('delete-all');
    INSERT INTO payment_words (rowid, words) SELECT number, words FROM payment_text ORDER BY number"""


@contextmanager
def disabling_guards(connection: apsw.Connection) -> Iterator[None]:
    """Drop the triggers that protect immutable rows for the block, in the open transaction."""
    placeholders = ", ".join("?" * len(_GUARDED_TABLES))
    query = f"SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name IN ({placeholders})"  # noqa: S608
    triggers = [(name, sql) for name, sql in fetch(connection, query, _GUARDED_TABLES) if "_is_never_" in name]
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    yield
    for _, sql in triggers:
        connection.execute(sql)


def rebuild_payee_index(connection: apsw.Connection) -> None:
    connection.execute(_REBUILD_INDEX)


def scrub(connection: apsw.Connection, path: Path) -> bool:
    """Rewrite the file without deleted data and empty its log. Returns False if the log is still being read."""
    connection.pragma("temp_store_directory", str(path.parent))  # keeps the temporary file as private as the journal
    connection.pragma("temp_store", 1)
    try:
        connection.execute("VACUUM")
    finally:
        connection.pragma("temp_store", 2)
    ((busy, *_),) = fetch(connection, "PRAGMA wal_checkpoint(TRUNCATE)")
    return not busy


_PAYEE_INDEX, _STATE_INDEX = "instruction_by_payee", "state_counted"
_MIN_SORTED, _MAX_SORTED = 10_000, 1_000_000
"""How many rows to sort at a time. SQLite sorts them in memory, so temporary files contain no payee's data."""
_SAMPLE_SIZE = 16
_CUT_MARK = "\x1f"
"""The first character of content stored without its fields. No other content begins with it."""
_ADD_INSTRUCTION = """INSERT INTO instruction
    VALUES (NULL, {batch}, ?1, ?2, ?3, ?4, ?6, {replaces}, ?5, ?7, ?8, ?9, ?10, ?11, ?12)"""
"""Adds an instruction with the next number. Fields at the end of the content are stored only in their own column.
Content that already begins with `_CUT_MARK` is rejected."""
_ADD_STATES = """INSERT INTO state (instruction, batch, country, currency, minor)
    SELECT number, batch, country, currency, minor FROM instruction WHERE number >= ? AND number < ?"""
ADD_WORDS = "INSERT INTO payment_words (rowid, words) VALUES (?, ?)"
CONTENT = f"iif(substr(content, 1, 1) = char({ord(_CUT_MARK)}), substr(content, 2) || fields, content)"


def store_batch(
    connection: apsw.Connection,
    record: BatchRecord,
    digests: OpeningDigests,
    parts: Iterable[BatchPart],
    known_rows: Iterable[KnownRow],
    replaced: Mapping[int, int],
) -> None:
    batch, all_ascii = record.number, True
    first_without_id = digests.first_instruction
    """The first instruction whose order id is not stored yet."""
    connection.execute("INSERT INTO batch VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", astuple(record)[:9])
    with (
        _rebuilding_index(connection, _PAYEE_INDEX, digests.first_instruction - 1, record.rows),
        _rebuilding_index(connection, _STATE_INDEX, digests.first_instruction - 1, record.rows),
        closing(prefetch(_prepare_parts(parts, digests, replaced))) as prepared_parts,
    ):
        for part in prepared_parts:
            pages = enumerate(part.pages, start=part.first_page)
            connection.executemany("INSERT INTO page VALUES (?, ?, ?)", ((batch, *page) for page in pages))
            replaces = "?13" if replaced else "NULL"
            new_rows = ((*new, replaced.get(new[0])) for new in part.instructions) if replaced else part.instructions
            connection.executemany(_ADD_INSTRUCTION.format(batch=batch, replaces=replaces), new_rows)
            connection.execute(_ADD_STATES, (part.first, part.end))
            connection.executemany(ADD_WORDS, enumerate(part.payee_words, start=part.first))
            if _look_sorted(connection, first_without_id, part.end):
                _add_order_ids(connection, record.operation, first_without_id, part.end)
                first_without_id = part.end
            all_ascii = all_ascii and part.all_ascii
    ((last_instruction,),) = fetch(connection, "SELECT max(number) FROM instruction")
    if (last_instruction or 0) != digests.next_instruction - 1:
        raise InternalError("the instructions of a batch have other numbers than they were digested with")
    known = sorted(known_rows, key=attrgetter("row"))
    for row in known:
        digests.add_known(row)
    connection.executemany("INSERT INTO known VALUES (?, ?, ?)", ((batch, row.row, row.instruction) for row in known))
    _add_order_ids(connection, record.operation, first_without_id, digests.next_instruction)
    duplicate_query = "SELECT i.row FROM instruction i JOIN known k USING (batch, row) WHERE i.batch = ? LIMIT 1"
    if fetch(connection, duplicate_query, (batch,)):
        raise InternalError("a row of a batch is both new and known")
    _add_spellings(SqliteTables(connection), record, digests.first_instruction, all_ascii=all_ascii)


@dataclass(frozen=True, slots=True)
class _PreparedPart:
    """A part of a batch, ready to be stored. Its instruction numbers start at `first` and end before `end`."""

    first_page: int
    pages: Sequence[bytes]
    first: int
    end: int
    all_ascii: bool
    instructions: Iterable[tuple[Any, ...]]
    payee_words: Iterable[str | None]


def _prepare_parts(
    parts: Iterable[BatchPart], digests: OpeningDigests, replaced: Mapping[int, int]
) -> Iterator[_PreparedPart]:
    for part in parts:
        first_page, first, instructions = digests.pages, digests.next_instruction, part.instructions
        for page in part.pages:
            digests.add_page(page)
        salts = new_salts(len(instructions))
        payee_digests = digests.add_instructions(instructions, replaced, salts)
        rows = zip(instructions.shortened_rows(_CUT_MARK), salts, payee_digests, strict=True)
        lines = ((*row, *digest_columns) for row, *digest_columns in rows)
        columns = (instructions.have_ascii_ids(), lines, instructions.payee_words())
        yield _PreparedPart(first_page, part.pages, first, digests.next_instruction, *columns)


@contextmanager
def _rebuilding_index(connection: apsw.Connection, index: str, old_rows: int, new_rows: int) -> Iterator[None]:
    """Drop an index and rebuild it after the block, if that is faster because `new_rows` outnumber `old_rows`.

    All this happens in the open transaction, so nobody sees the table without its index. Adding a million unsorted
    payees one by one would rewrite every page of the index many times.
    """
    if not _MIN_SORTED <= new_rows <= _MAX_SORTED or old_rows > new_rows:
        yield
        return
    ((statement,),) = fetch(connection, "SELECT sql FROM sqlite_schema WHERE name = ?", (index,))
    connection.execute(f"DROP INDEX {index}")
    yield
    connection.execute(statement)


def _look_sorted(connection: apsw.Connection, first: int, end: int) -> bool:
    """Return whether a sample of these instructions' order ids is sorted, so that all of them probably are."""
    if first == end:
        return False
    sample = array("q", range(first, end, max(1, (end - first) // _SAMPLE_SIZE)))
    query = "SELECT client_orderid FROM instruction WHERE number IN carray(?) ORDER BY number"
    order_ids = fetch(connection, query, (apsw.carray(sample),))
    return order_ids == sorted(order_ids)


def _add_order_ids(connection: apsw.Connection, operation: str, first: int, end: int) -> None:
    """Store new instructions' order ids, sorted so that each page of the table is written only once."""
    for start in range(first, end, _MAX_SORTED):
        connection.execute(
            """INSERT INTO order_id SELECT ?, client_orderid, number FROM instruction
            WHERE number >= ? AND number < ? AND replaces IS NULL ORDER BY client_orderid""",
            (operation, start, min(start + _MAX_SORTED, end)),
        )


def write_facts(connection: apsw.Connection, entries: Sequence[Entry | Remark], end: Link) -> Sequence[Line]:
    """Write facts, personal data and raw replies in the open transaction. `end` is the current end of the chain."""
    lines, personal_lines = chain_facts(entries, end, new_salt)
    write_lines(connection, "INSERT INTO fact {lines}", lines)
    if personal_lines:
        write_lines(connection, "INSERT INTO said {lines}", personal_lines)
    replies = [
        (line.seq, entry.instruction, entry.reply.head.encode(), entry.reply.body)
        for entry, line in zip(entries, lines, strict=True)
        if isinstance(entry, Entry) and entry.reply is not None
    ]
    if replies:
        connection.executemany("INSERT INTO reply VALUES (?, ?, ?, ?)", replies)
    return lines


def append_facts(connection: apsw.Connection, entries: Sequence[Entry | Remark]) -> list[tuple[int, str, bool]]:
    """Append facts to the chain in the open transaction (see `evidence.RecordFacts`)."""
    return [(line.seq, line.at, True) for line in write_facts(connection, entries, chain_end(connection))]


# SQLite releases the GIL at every step of a statement. While the event loop is busy, reacquiring it takes far longer
# than the step, so each step writes a group of lines.

_GROUP_SIZES = (64, 32, 16, 8, 4, 2, 1)
"""How many lines one step can write. There are few sizes, because each needs its own statement, and compiling one takes
longer than running it. The largest is well within SQLite's limit on bound values."""


def write_lines(connection: apsw.Connection, statement: str, lines: Sequence[Sequence[Any]]) -> None:
    """Run `statement` for each group of lines. `{lines}` in the statement is replaced by a table of values."""
    start = 0
    while start < len(lines):
        size = next(size for size in _GROUP_SIZES if size <= len(lines) - start)
        group = lines[start : start + size]
        connection.execute(_fill_lines(statement, size, len(group[0])), list(chain.from_iterable(group)))
        start += size


@lru_cache(maxsize=64)
def _fill_lines(statement: str, line_count: int, column_count: int) -> str:
    placeholders = f"({', '.join('?' * column_count)})"
    return statement.format(lines=f"VALUES {', '.join([placeholders] * line_count)}")


QUERIES = named_sql(
    __package__, FILES, {**PARTS, "content": CONTENT, "chained": line_text_sql("f", "f.number", "char(10)")}, ON_SQLITE
)


class SqliteTables:
    """A journal's tables on one connection."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    @cached_property
    def identity(self) -> Identity:
        return load_identity(self._connection)

    def run(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(QUERIES[name], _bind_values(values)).fetchall()

    def stream(self, name: str, **values: Any) -> Iterator[tuple[Any, ...]]:
        return self._connection.execute(QUERIES[name], _bind_values(values))

    def run_for_each(
        self, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], **values: Any
    ) -> Iterator[tuple[Any, ...]]:
        query = _positional_query(name, (*columns, *values))
        cursor, other_values = self._connection.cursor(), tuple(values.values())
        try:
            yield from cursor.executemany(query, ((*row, *other_values) for row in rows))
        finally:
            cursor.close(force=True)

    def add_order_id(self, operation: str, order_id: str, instruction: int) -> None:
        """Store an order id and, unless it is ASCII, its spelling. The index on `lower` covers ASCII ids."""
        self.run("add_order_id", operation=operation, order_id=order_id, instruction=instruction)
        if not order_id.isascii():
            self.run("add_spelling", operation=operation, spelling=normalise_spelling(order_id), order_id=order_id)

    def lock_rows(self, _numbers: Sequence[int]) -> bool:
        """Do nothing, because a journal file has only one writer."""
        return False

    def lock_documents(self) -> None:
        """Do nothing, because a write transaction locks the whole file."""


def evidence_log(connection: apsw.Connection) -> EvidenceLog:
    return EvidenceLog(SqliteTables(connection))


@cache
def _positional_query(name: str, columns: tuple[str, ...]) -> str:
    """Return a statement with positional parameters in the order of `columns`, which are faster than named ones."""
    return VALUE.sub(lambda value: f"?{columns.index(value[1]) + 1}", QUERIES[name])


def _bind_values(values: dict[str, Any]) -> dict[str, Any]:
    for name, value in values.items():
        if isinstance(value, list):
            values[name] = apsw.carray(tuple(value) if isinstance(value[0], str) else array("q", value))
    return values


_NOT_ASCII = "*[^\x01-\x7f]*"
"""A GLOB pattern for non-ASCII text. No order id contains NUL."""
_INDEX = "payment_words"


def _add_spellings(tables: Tables, record: BatchRecord, first: int, *, all_ascii: bool) -> None:
    """Store a batch's reference and, unless its order ids are `all_ascii`, their spellings."""
    for (order_id,) in () if all_ascii else tables.run("odd_ids_from", first=first, odd=_NOT_ASCII):
        if not order_id.isascii():
            spelling = normalise_spelling(order_id)
            tables.run("add_spelling", operation=record.operation, spelling=spelling, order_id=order_id)
    for _, reference in _references(tables, record.number):
        tables.run("add_reference", batch=record.number, reference=reference)


def check_spellings(tables: Tables) -> None:
    """Raise `JournalCorrupt` unless the spellings and references match the order ids."""
    lines = tables.run("odd_ids", odd=_NOT_ASCII)
    expected = {(operation, normalise_spelling(order_id), order_id) for operation, order_id in lines}
    if set(tables.run("spellings")) != expected:
        raise JournalCorrupt(say("The index of spellings does not match the order ids."))
    if tables.run("references") != list(_references(tables)):
        raise JournalCorrupt(say("The batches' references do not match their order ids."))


def _references(tables: Tables, batch: int | None = None) -> Iterator[tuple[int, str]]:
    """Yield (number, reference) for each batch (or only `batch`) with derived order ids.

    Either all or none of a sheet's order ids are derived, so only the first new row is read. A batch without new rows
    has no reference.
    """
    for number, order_id in tables.run("first_rows", batch=batch):
        if (reference := derived_reference(order_id)) is not None:
            yield number, reference


def check_payee_index(connection: apsw.Connection) -> None:
    """Raise `JournalCorrupt` unless the payee index matches the instructions."""
    query = "SELECT term, group_concat(doc || ' ' || offset) FROM payment_word GROUP BY term"
    with closing(apsw.Connection(":memory:")) as rebuilt:
        for (statement,) in fetch(
            connection, "SELECT sql FROM sqlite_schema WHERE name IN (?, ?) ORDER BY rowid", (_INDEX, "payment_word")
        ):
            rebuilt.execute(statement)
        with rebuilt:
            rebuilt.executemany(ADD_WORDS, connection.execute("SELECT number, words FROM payment_text ORDER BY number"))
        for actual, expected in zip_longest(connection.execute(query), rebuilt.execute(query)):
            if actual != expected:
                raise JournalCorrupt(say("The index of payees does not match the instructions."))
