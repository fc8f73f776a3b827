"""Order ids and references in one spelling: written with the batches that bring them, and looked up again.

An order id of ASCII alone is found by an index over SQLite's own `lower`, which is all that `spelled_alike` does to it.
The others, few in any journal, are in a table beside it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import apsw

from paygw_batch.core.reference import reference_of
from paygw_batch.core.spelling import spelled_alike
from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.sqlite.connect import fetch
from paygw_batch.journal.sqlite.rows import CONTENT
from paygw_batch.journal.values import RepeatedBatch

_NOT_ASCII = "*[^\x01-\x7f]*"
"""A pattern of SQLite's GLOB. No order id holds NUL."""
# Without its name SQLite takes the table's key instead, of which the operation alone is known: it reads all ids then.
_SAME_SPELLING = """SELECT order_id, instruction FROM order_id INDEXED BY order_id_in_one_case
    WHERE operation = {operation} AND lower(order_id) = {spelling}
    UNION ALL
    SELECT o.order_id, o.instruction FROM order_id_spelling s JOIN order_id o USING (operation, order_id)
    WHERE s.operation = {operation} AND s.spelling = {spelling}"""
HAS_SPELLING = """SELECT ?1, ?2, ?3 WHERE EXISTS (
        SELECT 1 FROM order_id INDEXED BY order_id_in_one_case WHERE operation = ?4 AND lower(order_id) = ?3
    ) OR EXISTS (SELECT 1 FROM order_id_spelling WHERE operation = ?4 AND spelling = ?3)"""
"""Whether there is anything for `USED_SPELLINGS` to find: for most rows there is not, and this is cheaper to ask."""
USED_SPELLINGS = f"""SELECT ?1, o.order_id, b.batch, b.opened_at
    FROM ({_SAME_SPELLING.format(operation="?4", spelling="?3")}) o
    JOIN instruction i ON i.number = o.instruction JOIN batch b ON b.number = i.batch
    WHERE NOT EXISTS (SELECT 1 FROM order_id WHERE operation = ?4 AND order_id = ?2)
    ORDER BY o.instruction DESC LIMIT 1"""  # noqa: S608 - constants of ours
"""Of row ?1 with order id ?2, in one spelling ?3, of operation ?4."""
REPEATED_BATCHES = """SELECT DISTINCT i.batch FROM instruction i JOIN batch b ON b.number = i.batch
    WHERE i.payee = ?2 AND i.minor = ?4 AND i.currency = ?3 AND i.client_orderid <> ?1
        AND b.operation = ?5 AND b.opened_at > ?6"""
_FIRST_ROWS = f"""SELECT b.number, i.client_orderid, {CONTENT} FROM batch b
    JOIN instruction i ON i.batch = b.number AND i.row = (SELECT min(row) FROM instruction WHERE batch = b.number)
    WHERE ?1 IS NULL OR b.number = ?1 ORDER BY b.number"""  # noqa: S608 - a constant of ours


def fill(connection: apsw.Connection) -> None:
    """Write down the spellings and references of a journal of an earlier version, inside the open transaction."""
    found = fetch(connection, "SELECT operation, order_id FROM order_id WHERE order_id GLOB ?", (_NOT_ASCII,))
    connection.executemany(
        "INSERT INTO order_id_spelling VALUES (?, ?, ?)",
        ((operation, spelled_alike(order_id), order_id) for operation, order_id in found),
    )
    connection.executemany("INSERT INTO batch_reference VALUES (?, ?)", list(_references(connection)))


def add_batch(connection: apsw.Connection, operation: str, batch: int, first: int, are_ascii: bool) -> None:
    """Write down the spellings and the reference of a batch whose instructions, from `first`, were just written.

    With `are_ascii`, no order id of them has a spelling to be written.
    """
    query = "SELECT client_orderid FROM instruction WHERE number >= ? AND replaces IS NULL AND client_orderid GLOB ?"
    for (order_id,) in [] if are_ascii else fetch(connection, query, (first, _NOT_ASCII)):
        add_order_id(connection, operation, order_id)
    for _, reference in _references(connection, batch):
        connection.execute("INSERT INTO batch_reference VALUES (?, ?)", (batch, reference))


def add_order_id(connection: apsw.Connection, operation: str, order_id: str) -> None:
    """Write down the spelling of an order id that has just been written."""
    if not order_id.isascii():
        line = (operation, spelled_alike(order_id), order_id)
        connection.execute("INSERT INTO order_id_spelling VALUES (?, ?, ?)", line)


def is_used(connection: apsw.Connection, operation: str, order_id: str) -> bool:
    """Return whether an order id was ever used, in any spelling."""
    query = _SAME_SPELLING.format(operation="?1", spelling="?2")
    return bool(fetch(connection, f"{query} LIMIT 1", (operation, spelled_alike(order_id))))


def instructions_spelled(connection: apsw.Connection, order_id: str) -> list[int]:
    """Return the instructions of every operation that go, or went, by an order id in any spelling."""
    query = _SAME_SPELLING.format(operation="?1", spelling="?2")
    operations = fetch(connection, "SELECT DISTINCT operation FROM batch")
    spelling = spelled_alike(order_id)
    return [line[1] for (operation,) in operations for line in fetch(connection, query, (operation, spelling))]


def has_order_ids(connection: apsw.Connection, operation: str) -> bool:
    """Whether any order id was used at all."""
    return bool(fetch(connection, "SELECT 1 FROM order_id WHERE operation = ? LIMIT 1", (operation,)))


def counted(connection: apsw.Connection, batches: Counter[int]) -> Sequence[RepeatedBatch]:
    """Return batches, by their numbers, with how many rows repeat them; newest first."""
    query = "SELECT batch, sheet_name, opened_at FROM batch WHERE number = ?"
    return [
        RepeatedBatch(batch, sheet_name, opened_at, batches[number])
        for number in sorted(batches, reverse=True)
        for batch, sheet_name, opened_at in fetch(connection, query, (number,))
    ]


def check(connection: apsw.Connection) -> None:
    """Raise `JournalCorrupt` unless the spellings and references are those of the order ids and batches."""
    found = fetch(connection, "SELECT operation, order_id FROM order_id WHERE order_id GLOB ?", (_NOT_ASCII,))
    wanted = {(operation, spelled_alike(order_id), order_id) for operation, order_id in found}
    if set(fetch(connection, "SELECT operation, spelling, order_id FROM order_id_spelling")) != wanted:
        raise JournalCorrupt("The spellings of order ids are not those of the order ids.")
    noted = fetch(connection, "SELECT batch, reference FROM batch_reference ORDER BY batch")
    if noted != list(_references(connection)):
        raise JournalCorrupt("The references of batches are not those that their order ids were derived from.")


def _references(connection: apsw.Connection, batch: int | None = None) -> Iterator[tuple[int, str]]:
    """Yield number and reference of every batch, or of one, whose first new row has a derived order id.

    The ids of a sheet are derived all of them, or none is. A batch without a new row repeats ids of an earlier one.
    """
    for number, order_id, content in fetch(connection, _FIRST_ROWS, (batch,)):
        if (reference := reference_of(order_id, content)) is not None:
            yield number, reference
